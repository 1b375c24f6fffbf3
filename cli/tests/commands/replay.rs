//! `gpumem replay` from the outside: what it counts, on the host device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, gzip, json, refused, replay, run, stderr, stdout, HEADER};
use tempfile::tempdir;

const MIB: u64 = 1 << 20;

/// `pairs` allocations of `size` bytes on alternating streams, half of them freed again, all by two
/// threads.
fn small_log(pairs: u64, size: u64) -> String {
    let mut log = HEADER.to_string();
    for i in 0..pairs {
        log += &format!("{},10:00:00:{i:06},allocate,{:#x},{size},{:#x}\n", i % 2, 0x1000 + i, 0x10 + i % 3);
    }
    for i in (0..pairs).step_by(2) {
        log += &format!("0,10:00:01:{i:06},free,{:#x},{size},{:#x}\n", 0x1000 + i, 0x10 + i % 3);
    }
    log
}

#[test]
fn the_json_object_has_the_documented_fields() {
    let dir = tempdir().unwrap();
    let log = small_log(10, 3 * MIB + 1);
    let path = file(&dir, "log.csv", log.as_bytes());
    let out = replay(&[], &path);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["ops"], 15);
    assert_eq!(r["failures"], 0);
    assert_eq!(r["peak_live_bytes"], 10 * (3 * MIB + 1));
    let mapped = r["peak_mapped_bytes"].as_u64().unwrap();
    assert!(mapped >= 10 * (3 * MIB + 1), "{mapped} bytes cannot hold what was live");
    let utilisation = r["utilisation"].as_f64().unwrap();
    assert!((utilisation - (10 * (3 * MIB + 1)) as f64 / mapped as f64).abs() < 1e-9, "{utilisation}");
    assert!(r["mean_ns_per_op"].as_f64().unwrap() > 0.0);
    assert_eq!(r["backend"], "host");
    assert_eq!((&r["streams"], &r["threads"]), (&3.into(), &2.into()));
    let calls = r["driver_calls"].as_object().unwrap();
    assert!(calls.values().all(|n| n.is_u64()) && calls.values().any(|n| n.as_u64() > Some(0)), "{calls:?}");
    assert!(r.get("passes").is_none(), "one pass is not listed again");
}

#[test]
fn plain_and_gzip_are_the_same_log() {
    let dir = tempdir().unwrap();
    let log = small_log(20, MIB);
    let plain = json(&replay(&[], &file(&dir, "log.csv", log.as_bytes())));
    let packed = json(&replay(&[], &file(&dir, "log.csv.gz", &gzip(log.as_bytes()))));
    let marked = json(&replay(&[], &file(&dir, "marked.csv", format!("\u{feff}{log}").as_bytes())));
    for field in ["ops", "failures", "peak_live_bytes", "peak_mapped_bytes", "streams"] {
        assert_eq!((&plain[field], &plain[field]), (&packed[field], &marked[field]), "{field}");
    }
}

#[test]
fn a_repeat_starts_from_nothing_live_and_lists_its_passes() {
    let dir = tempdir().unwrap();
    // Half of the log's allocations are never freed: were they kept, the footprint would grow with
    // each pass.
    let path = file(&dir, "log.csv", small_log(16, 5 * MIB).as_bytes());
    let once = json(&replay(&[], &path));
    let out = replay(&["--repeat", "6"], &path);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["ops"], 6 * 24);
    assert_eq!(r["peak_live_bytes"], once["peak_live_bytes"]);
    let passes = r["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 6);
    let peaks: Vec<_> = passes.iter().map(|p| p["peak_mapped_bytes"].as_u64().unwrap()).collect();
    assert!(peaks.iter().all(|&p| p <= peaks[0]), "the footprint grew after the first pass: {peaks:?}");
    assert_eq!(r["peak_mapped_bytes"].as_u64(), peaks.iter().max().copied());
    assert!(passes.iter().all(|p| p["failures"] == 0 && p["mean_ns_per_op"].as_f64() > Some(0.0)));
}

#[test]
fn streams_of_the_log_are_kept_apart() {
    let dir = tempdir().unwrap();
    // 65 streams, among them both spellings of the legacy stream and the per-thread one; frees on
    // other streams.
    let mut log = HEADER.to_string();
    for i in 0..65u64 {
        log +=
            &format!("0,{i},allocate,{:#x},{MIB},{i}\n0,{i},free,{:#x},{MIB},{}\n", 0x100 + i, 0x100 + i, (i + 1) % 65);
    }
    let out = replay(&[], &file(&dir, "log.csv", log.as_bytes()));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!((&r["streams"], &r["failures"], &r["peak_live_bytes"]), (&65.into(), &0.into(), &MIB.into()));
    let created = r["driver_calls"]["stream_create"].as_u64();
    assert!(created.unwrap_or(0) == 0, "streams are made before the replay, {created:?} were counted in it");
}

#[test]
fn lines_that_are_not_replayed_are_counted() {
    let dir = tempdir().unwrap();
    let log = format!(
        "{HEADER}1,10:00:00:000001,allocate,0x7f0000000000,100,0\n\
         1,10:00:00:000002,allocate failure,(nil),1000000000000,0\n\
         1,10:00:00:000003,allocate,(nil),0,0\n\
         1,10:00:00:000004,free,(nil),0,0\n\
         1,10:00:00:000005,free,0x7f0000000000,100,0\n"
    );
    let r = json(&replay(&[], &file(&dir, "log.csv", log.as_bytes())));
    assert_eq!((&r["ops"], &r["skipped_lines"], &r["peak_live_bytes"]), (&2.into(), &3.into(), &100.into()));
}

#[test]
fn failed_operations_are_counted_and_give_exit_code_1() {
    let dir = tempdir().unwrap();
    let log = format!(
        "{HEADER}0,0,allocate,1,100,0\n0,1,allocate,2,{},0\n0,2,free,2,{},0\n0,3,free,1,100,0\n",
        1u64 << 40,
        1u64 << 40
    );
    let path = file(&dir, "log.csv", log.as_bytes());
    let out = run(gpumem().env("GPUMEM_LIMIT", "64M").args(["replay", "--backend", "host", "--json"]).arg(&path));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["failures"], 1, "the free of what was never allocated is no second failure");
    let first = r["first_failure"].as_str().unwrap();
    assert!(first.contains("operation 2") && first.contains("GPUMEM_ERROR_OUT_OF_MEMORY"), "{first}");
}

#[test]
fn people_get_a_table_with_the_same_figures() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "log.csv", small_log(4, MIB).as_bytes());
    let out = run(gpumem().args(["replay", "--backend", "host", "--repeat", "2"]).arg(&path));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    for label in ["operations", "failures", "peak live", "peak mapped", "utilisation", "mean time", "driver calls"] {
        assert!(text.lines().any(|l| l.starts_with(label)), "no {label:?} in\n{text}");
    }
    assert!(text.contains("4.00 MiB (4,194,304 bytes)"), "{text}");
    assert!(text.contains("12 in 2 passes") && text.lines().any(|l| l.starts_with("pass 2")), "{text}");
    assert!(stderr(&out).is_empty(), "no progress bar where stderr is no terminal: {}", stderr(&out));
}

#[test]
fn the_plot_has_the_peaks_of_the_report() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "log.csv", small_log(10, 3 * MIB).as_bytes());
    let svg = dir.path().join("plot.svg");
    let r = json(&replay(&["--repeat", "2", "--svg", svg.to_str().unwrap()], &path));
    let text = std::fs::read_to_string(&svg).unwrap();
    let human = |field: &str| gpumem::base::size::human(r[field].as_u64().unwrap());
    for (line, field) in [("live", "peak_live_bytes"), ("mapped", "peak_mapped_bytes")] {
        assert!(text.contains(&format!("{line}, at most {}", human(field))), "{line}: {text}");
    }
    assert!(text.trim_end().ends_with("</svg>"), "{text}");
    // A point for each operation of both passes.
    let commas = |l: &str| Some(l.split("points=\"").nth(1)?.split('"').next()?.matches(',').count());
    let points = text.split("<polyline").filter_map(commas);
    assert_eq!(points.max(), Some(2 * 15), "{text}");
    // XML has no way to write some characters that names may have.
    let odd = file(&dir, "a<\u{1}&\u{fffe}.csv", small_log(10, 3 * MIB).as_bytes());
    json(&replay(&["--svg", svg.to_str().unwrap()], &odd));
    let text = std::fs::read_to_string(&svg).unwrap();
    assert!(text.contains("a&lt;\u{fffd}&amp;\u{fffd}.csv") && !text.contains(['\u{1}', '\u{fffe}']), "{text}");
    // What the replay has measured is not lost with the plot.
    let out = replay(&["--svg", "/dev/full"], &path);
    assert!(out.status.code() == Some(2) && stderr(&out).contains("/dev/full: cannot write"), "{}", stderr(&out));
    assert_eq!(json(&out)["ops"], 15);
}

#[test]
fn a_plot_on_stdout_is_alone_there() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "log.csv", small_log(4, MIB).as_bytes());
    refused(&replay(&["--svg", "-"], &path), &["--svg - and --json both write to standard output"]);
    let out = run(gpumem().args(["replay", "--backend", "host", "--svg", "-"]).arg(&path));
    let plot = stdout(&out);
    assert!(plot.starts_with("<svg ") && plot.trim_end().ends_with("</svg>"), "{plot}");
    assert!(stderr(&out).contains("peak mapped"), "the table is beside the plot: {}", stderr(&out));
}

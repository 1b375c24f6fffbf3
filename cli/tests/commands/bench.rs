//! `gpumem bench` from the outside, on the host device: what it measures, what it says, and what it
//! refuses. No assertion is about time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, json, refused, run, stderr, stdout, HEADER};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use tempfile::tempdir;

const WORKLOADS: [&str; 10] = [
    "cold",
    "hot",
    "live",
    "random",
    "threads",
    "threads_one_stream",
    "cross_stream",
    "growing",
    "checkerboard",
    "arena",
];

fn bench(args: &[&str]) -> Command {
    let mut command = gpumem();
    command.args(["bench", "--backend", "host", "--json"]).args(args);
    command
}

/// The measurements of one workload.
fn of<'a>(r: &'a Value, workload: &str) -> Vec<&'a Value> {
    r["measurements"].as_array().unwrap().iter().filter(|m| m["workload"] == workload).collect()
}

/// One figure of a measurement.
#[track_caller]
fn figure(m: &Value, metric: &str) -> f64 {
    let metrics = m["metrics"].as_array().unwrap();
    let found = metrics.iter().find(|f| f["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {metric} in {m}"))["value"].as_f64().unwrap()
}

#[test]
fn without_names_every_workload_is_measured() {
    let out = run(&mut bench(&["--ops", "300"]));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    let measured: BTreeSet<_> =
        r["measurements"].as_array().unwrap().iter().map(|m| m["workload"].as_str().unwrap()).collect();
    assert_eq!(measured, BTreeSet::from(WORKLOADS));
    assert_eq!((&r["backend"], &r["device"]), (&"host".into(), &0.into()));
    assert_eq!((r["scaled"].as_array().unwrap().len(), r["failed"].as_array().unwrap().len()), (0, 0), "{r}");
    for m in r["measurements"].as_array().unwrap() {
        for f in m["metrics"].as_array().unwrap() {
            assert!(f["value"].as_f64().is_some_and(|v| v.is_finite() && v >= 0.0) && f["unit"].is_string(), "{m}");
        }
        let calls: u64 = m["driver_calls"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        let each = calls as f64 / m["operations"].as_f64().unwrap();
        assert!((m["driver_calls_per_operation"].as_f64().unwrap() - each).abs() < 1e-9, "{m}");
    }
    let cases: Vec<_> = of(&r, "hot").iter().map(|m| m["case"].as_str().unwrap().to_string()).collect();
    assert_eq!(cases, ["256 B", "4 KiB", "64 KiB", "1 MiB", "2 MiB", "64 MiB", "1 GiB"]);
    assert!(of(&r, "hot").iter().all(|m| m["operations"] == 600), "300 pairs are 600 operations");
    let cases: Vec<_> = of(&r, "threads").iter().map(|m| m["case"].as_str().unwrap().to_string()).collect();
    assert_eq!(cases, ["1 thread", "4 threads", "16 threads"]);
}

#[test]
fn what_is_live_is_backed_by_device_memory() {
    let out = run(&mut bench(&["--ops", "2000", "random", "growing"]));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!((of(&r, "random").len(), of(&r, "growing").len()), (2, 1));
    for m in of(&r, "random").into_iter().chain(of(&r, "growing")) {
        let (live, used) = (figure(m, "peak live"), figure(m, "device used"));
        assert!(live > 1.0 && live <= used, "{live} GiB live in {used}");
        // The pool asks what the device has left when it maps, and not otherwise.
        let calls = |name: &str| m["driver_calls"].get(name).and_then(Value::as_u64).unwrap_or(0);
        assert!(calls("mem_info") <= 2 * calls("set_access"), "the measurement's own calls are counted: {m}");
    }
    let m = of(&r, "growing")[0];
    let utilisation = figure(m, "peak live") / figure(m, "device used");
    assert!((figure(m, "utilisation") - utilisation).abs() < 1e-9);
}

#[test]
fn the_hit_path_maps_nothing() {
    let r = json(&run(&mut bench(&["--ops", "500", "hot"])));
    for m in of(&r, "hot") {
        for call in ["phys_create", "map", "set_access", "unmap", "event_record", "event_query", "stream_wait"] {
            assert!(m["driver_calls"].get(call).is_none(), "{call} in {m}");
        }
    }
}

#[test]
fn a_checkerboard_is_moved_and_not_added_to() {
    let r = json(&run(&mut bench(&["checkerboard"])));
    let [m] = of(&r, "checkerboard")[..] else { panic!("{r}") };
    assert_eq!(figure(m, "largest free run before"), 64.0, "else it is no checkerboard");
    assert_eq!(figure(m, "device used before"), 20.0);
    assert_eq!(figure(m, "device used after"), 20.0);
    assert!(m["driver_calls"].get("phys_create").is_none(), "memory was created: {m}");
    assert!(m["driver_calls"]["map"].as_u64() >= Some(160), "{m}");
}

#[test]
fn workloads_are_made_smaller_for_a_small_device_and_that_is_said() {
    let out = run(bench(&["--ops", "300"]).env("GPUMEM_HOST_BYTES", "1G"));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    let scaled: Vec<_> = r["scaled"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    for workload in ["hot", "random", "growing", "checkerboard", "cold", "threads"] {
        let said = scaled.iter().any(|s| s.starts_with(&format!("{workload}: ")));
        assert!(said, "{workload} is not in {scaled:?}");
        assert!(!of(&r, workload).is_empty(), "{workload} was not measured");
    }
    assert_eq!(of(&r, "hot").len(), 6, "all but 1 GiB");
    assert!(figure(of(&r, "random")[0], "peak live") <= 1.0);
}

#[test]
fn a_workload_that_fails_does_not_take_the_others_along() {
    // Two pages: room for what one thread has live, and for nothing that needs pages of its own.
    let out = run(bench(&["--ops", "20", "checkerboard", "random"]).env("GPUMEM_LIMIT", "4M"));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["failed"], serde_json::json!(["checkerboard"]));
    assert_eq!(of(&r, "random").len(), 2);
    let said = stderr(&out);
    assert!(
        said.contains("GPUMEM_ERROR_OUT_OF_MEMORY") && said.contains("the workload checkerboard gave no"),
        "{said}"
    );
}

#[test]
fn traces_are_replayed_pass_by_pass() {
    let dir = tempdir().unwrap();
    let log = format!("{HEADER}0,0,allocate,1,3000000,0\n0,0,allocate,2,100,7\n0,0,free,1,3000000,0\n");
    let (a, b) = (file(&dir, "a.csv", log.as_bytes()), file(&dir, "b.csv", log.as_bytes()));
    let paths = [a.to_str().unwrap(), b.to_str().unwrap()];
    let out = run(&mut bench(&["--repeat", "3", "replay", paths[0], paths[1]]));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    let cases: Vec<_> = of(&r, "replay").iter().map(|m| m["case"].as_str().unwrap().to_string()).collect();
    let wanted = ["a.csv, pass 1", "a.csv, pass 2", "a.csv, pass 3", "b.csv, pass 1", "b.csv, pass 2", "b.csv, pass 3"];
    assert_eq!(cases, wanted);
    for m in of(&r, "replay") {
        assert_eq!((m["operations"].as_u64(), figure(m, "failures")), (Some(3), 0.0));
        assert_eq!(figure(m, "peak live"), 3_000_100.0 / f64::from(1 << 30));
    }
    let out = run(bench(&["replay", paths[0]]).env("GPUMEM_LIMIT", "2M"));
    assert_eq!(out.status.code(), Some(1), "a failed operation shows: {}", stderr(&out));
    assert_eq!(figure(of(&json(&out), "replay")[0], "failures"), 1.0);
    assert!(stderr(&out).contains("operation 1"), "{}", stderr(&out));
}

#[test]
fn people_get_tables() {
    let out = run(gpumem().args(["bench", "--backend", "host", "--ops", "200", "hot", "cross_stream"]));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = stdout(&out);
    for part in
        ["Reading the clock takes", "pair mean µs", "driver calls/op", "\n  256 B", "\n  64 MiB", "\ncross_stream"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(text.matches("  driver calls: ").count(), 2, "{text}");
    assert!(stderr(&out).is_empty(), "no progress where stderr is no terminal: {}", stderr(&out));
    let widths: BTreeSet<_> =
        text.lines().skip_while(|l| !l.starts_with("hot")).take(8).map(|l| l.chars().count()).collect();
    assert_eq!(widths.len(), 1, "the columns are not aligned:\n{text}");
}

#[test]
fn bad_input_is_refused_by_name() {
    let every: Vec<_> = WORKLOADS.into_iter().chain(["replay", "\"warm\""]).collect();
    refused(&run(&mut bench(&["warm"])), &every);
    refused(&run(&mut bench(&["hot", "--ops", "0"])), &["--ops", "0", "1.."]);
    refused(&run(&mut bench(&["hot", "--ops", "many"])), &["--ops", "many"]);
    refused(&run(&mut bench(&["--repeat", "0", "hot"])), &["--repeat", "0"]);
    refused(&run(&mut bench(&["hot", "hot"])), &["hot", "twice"]);
    refused(&run(&mut bench(&["replay"])), &["replay needs files"]);
    refused(&run(&mut bench(&["replay", "/no/such/trace.csv"])), &["/no/such/trace.csv", "cannot open"]);
    refused(&run(&mut bench(&["--device", "9", "hot"])), &["device 9 was asked for", "only device 0"]);
    refused(
        &run(bench(&["hot", "live"]).env("GPUMEM_LIMIT", "plenty")),
        &["GPUMEM_LIMIT", "no workload gave a result"],
    );
}

#[test]
fn the_bars_are_the_first_figure_of_each_case() {
    let dir = tempdir().unwrap();
    let svg = dir.path().join("bars.svg");
    let out = run(bench(&["hot", "--ops", "100", "--svg"]).arg(&svg));
    let r = json(&out);
    let text = std::fs::read_to_string(&svg).unwrap();
    let cases = of(&r, "hot");
    assert!(!cases.is_empty());
    for m in &cases {
        assert!(text.contains(m["case"].as_str().unwrap()), "no {} in {text}", m["case"]);
    }
    // One is the white ground.
    assert_eq!(text.matches("<rect").count(), cases.len() + 1, "{text}");
    assert!(text.contains("hot: ") && text.contains("</svg>"), "{text}");
}

#[test]
fn bars_on_stdout_are_alone_there() {
    refused(&run(&mut bench(&["hot", "--svg", "-"])), &["--svg - and --json both write to standard output"]);
    let out = run(gpumem().args(["bench", "--backend", "host", "hot", "--ops", "100", "--svg", "-"]));
    let bars = stdout(&out);
    assert!(bars.starts_with("<svg ") && bars.trim_end().ends_with("</svg>"), "{bars}");
    assert!(stderr(&out).contains("driver calls"), "the table is beside the bars: {}", stderr(&out));
}

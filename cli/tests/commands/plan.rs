//! `gpumem plan` from the outside. Layouts are read back from the CSV that it writes and checked
//! here, pair by pair, with nothing of the library's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, gzip, json, run, stderr, stdout};
use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};
use tempfile::{tempdir, TempDir};

/// Runs `gpumem plan ARGS FILE` on a file of these contents.
fn plan(dir: &TempDir, contents: &str, args: &[&str]) -> Output {
    let path = file(dir, "in.csv", contents.as_bytes());
    run(gpumem().arg("plan").args(args).arg(path).current_dir(dir.path()))
}

/// Records as maps from column to field; the first is the header.
fn records(csv: &str) -> (Vec<String>, Vec<HashMap<String, String>>) {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_string).collect();
    let rows = reader.records().map(|r| header.iter().cloned().zip(r.unwrap().iter().map(str::to_string)).collect());
    (header.clone(), rows.collect())
}

/// A buffer as the test understands it.
struct Placed {
    lower: u64,
    upper: u64,
    size: u64,
    offset: u64,
}

/// Reads `id,lower,upper,size,offset`.
fn placed(csv: &str) -> Vec<Placed> {
    let number = |row: &HashMap<String, String>, column: &str| row[column].parse().unwrap();
    let read = |row: &HashMap<String, String>| Placed {
        lower: number(row, "lower"),
        upper: number(row, "upper"),
        size: number(row, "size"),
        offset: number(row, "offset"),
    };
    records(csv).1.iter().map(read).collect()
}

/// No two share a byte at one step; returns the end of the highest.
#[track_caller]
fn checked(buffers: &[Placed]) -> u64 {
    let lives = |(_, b): &(usize, &Placed)| b.size > 0 && b.lower < b.upper;
    let there: Vec<_> = buffers.iter().enumerate().filter(lives).collect();
    for &(i, a) in &there {
        for &(j, b) in there.iter().filter(|&&(j, _)| j > i) {
            let together = a.lower < b.upper && b.lower < a.upper;
            let meet = a.offset < b.offset + b.size && b.offset < a.offset + a.size;
            assert!(!(together && meet), "rows {i} and {j} share bytes");
        }
    }
    there.iter().map(|(_, b)| b.offset + b.size).max().unwrap_or(0)
}

/// The largest sum of sizes at one step, by trying the first step of each.
fn bound(buffers: &[Placed]) -> u64 {
    let at = |step| buffers.iter().filter(|b| b.lower <= step && step < b.upper).map(|b| b.size).sum();
    buffers.iter().map(|b| at(b.lower)).max().unwrap_or(0)
}

/// A hundred buffers that overlap in many ways, some empty or live at no step.
fn hundred() -> String {
    let mut csv = "id,lower,upper,size\n".to_string();
    for i in 0..100u64 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        csv += &format!("t{i},{},{},{}\n", i / 3, i / 3 + mixed % 17, (mixed >> 8) % 5000 * u64::from(i % 11 != 0));
    }
    csv
}

/// A file in the directory, as text.
fn text(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).unwrap()
}

#[test]
fn the_json_object_is_about_the_layout_in_the_csv() {
    let dir = tempdir().unwrap();
    let out = plan(&dir, &hundred(), &["--json", "--out", "out.csv"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    let buffers = placed(&text(&dir, "out.csv"));
    let end = checked(&buffers);
    assert_eq!(r["buffers"], 100);
    assert_eq!(r["arena_size"], end);
    assert_eq!(r["best_size"], end);
    assert_eq!(r["lower_bound"], bound(&buffers));
    let total: u64 = buffers.iter().filter(|b| b.lower < b.upper).map(|b| b.size).sum();
    assert_eq!(r["total_unshared"], total);
    assert_eq!(r["saved"], total - end);
    let gap = (end - bound(&buffers)) as f64 / bound(&buffers) as f64;
    assert!((r["gap"].as_f64().unwrap() - gap).abs() < 1e-12);
    assert!(["optimal", "feasible"].contains(&r["status"].as_str().unwrap()));
    assert!(r["seconds"].as_f64().unwrap() >= 0.0);
    assert!(r["capacity"].is_null() && r.get("reason").is_none());
    assert_eq!(r["interrupted"], false);
    assert_eq!(r["critical_bytes"], bound(&buffers));
    let step = r["critical_step"].as_u64().unwrap();
    let live: Vec<_> = buffers.iter().filter(|b| b.lower <= step && step < b.upper && b.size > 0).collect();
    assert_eq!(live.iter().map(|b| b.size).sum::<u64>(), bound(&buffers));
    assert_eq!(r["critical_buffers"], live.len());
}

#[test]
fn every_option_gives_a_layout_and_the_same_one_twice() {
    let dir = tempdir().unwrap();
    for args in [&[][..], &["--fast"], &["--threads", "2"], &["--capacity", "1G"], &["--time-limit", "0.01"]] {
        let out = plan(&dir, &hundred(), &[args, &["--out", "a.csv"]].concat());
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", stderr(&out));
        checked(&placed(&text(&dir, "a.csv")));
        if !args.contains(&"--time-limit") {
            plan(&dir, &hundred(), &[args, &["--out", "b.csv"]].concat());
            assert_eq!(text(&dir, "a.csv"), text(&dir, "b.csv"), "{args:?}");
        }
    }
}

#[test]
fn a_file_gzip_and_standard_input_are_the_same() {
    let dir = tempdir().unwrap();
    let plain = stdout(&plan(&dir, &hundred(), &["--out", "-"]));
    assert_eq!(placed(&plain).len(), 100);
    let packed = file(&dir, "in.csv.gz", &gzip(hundred().as_bytes()));
    assert_eq!(stdout(&run(gpumem().args(["plan", "--out", "-"]).arg(&packed))), plain);
    // It may be its own result, and is read again as what it is named.
    let kept = file(&dir, "kept.csv.gz", &gzip(hundred().as_bytes()));
    assert!(run(gpumem().args(["plan", "--out"]).args([&kept, &kept])).status.success());
    assert_eq!(stdout(&run(gpumem().args(["plan", "--out", "-"]).arg(&kept))), plain);
    for input in [hundred().into_bytes(), gzip(hundred().as_bytes())] {
        let mut child = gpumem()
            .args(["plan", "-", "--out", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(stdout(&out), plain);
        assert!(stderr(&out).contains("standard input"), "the table is beside the CSV: {}", stderr(&out));
    }
}

#[test]
fn last_steps_in_place_of_ends_are_the_same_problem() {
    let dir = tempdir().unwrap();
    let halfopen = "id,lower,upper,size,gaps\na,0,4,8,\nb,4,9,8,\nc,2,8,8,3-5 6-7\nd,3,5,8,\n";
    let inclusive = "size,buffer_id,end,start,gaps\n8,a,3,0,\n8,b,8,4,\n8,c,7,2,3-4  6-6\n8,d,4,3,\n";
    let mixed = "begin,upper,buffer,size,gaps\n0,4,a,8,\n4,9,b,8,\n2,8,c,8,3-5 6-7\n3,5,d,8,\n";
    let offsets = |csv: &str, size: &str| -> Vec<String> {
        let out = plan(&dir, csv, &["--out", "-"]);
        let (header, rows) = records(&stdout(&out));
        assert_eq!(header.last().map(String::as_str), Some("offset"));
        assert!(header.contains(&size.to_string()), "the input's columns are kept: {header:?}");
        rows.iter().map(|row| row["offset"].clone()).collect()
    };
    let expected = offsets(halfopen, "lower");
    assert_eq!(offsets(inclusive, "end"), expected);
    assert_eq!(offsets(mixed, "begin"), expected);
    for csv in [halfopen, inclusive, mixed] {
        let r = json(&plan(&dir, csv, &["--json"]));
        // At step 3 a and d are live, and c is in a gap; without the gaps it would be 24.
        assert_eq!((&r["lower_bound"], &r["critical_step"]), (&16.into(), &2.into()), "{csv}");
    }
}

#[test]
fn a_gap_is_room_for_others() {
    let dir = tempdir().unwrap();
    let csv = "id,lower,upper,size,gaps\na,0,10,100,4-6\nb,4,6,100,\n";
    let out = plan(&dir, csv, &["--json", "--capacity", "100"]);
    assert_eq!(json(&out)["arena_size"], 100, "{}", stderr(&out));
}

#[test]
fn the_output_repeats_the_input() {
    let dir = tempdir().unwrap();
    let csv =
        "\u{feff}note, size ,ID,upper,lower,x\r\n\"a, \"\"b\"\"\",1,\"q,1\",5,0,\r\n\r\n  \r\n, 2 ,\" t \",5, 1,y\r\n";
    let out = plan(&dir, csv, &["--out", "-"]);
    let (header, rows) = records(&stdout(&out));
    assert_eq!(header, ["note", "size", "ID", "upper", "lower", "x", "offset"]);
    assert_eq!(rows.len(), 2, "blank lines are none");
    assert_eq!((&rows[0]["note"][..], &rows[0]["ID"][..], &rows[0]["x"][..]), ("a, \"b\"", "q,1", ""));
    assert_eq!((&rows[1]["size"][..], &rows[1]["ID"][..], &rows[1]["x"][..]), (" 2 ", " t ", "y"));
    let offsets: Vec<u64> = rows.iter().map(|row| row["offset"].parse().unwrap()).collect();
    assert!(offsets[0] < offsets[1] || offsets[1] + 2 <= offsets[0], "{offsets:?}");
    let r = json(&plan(&dir, csv, &["--json"]));
    assert_eq!(r["ignored_columns"], serde_json::json!(["note", "x"]));
    assert!(stdout(&plan(&dir, csv, &[])).contains("note, x"));
}

#[test]
fn fixed_offsets_stay_and_are_kept_clear() {
    let dir = tempdir().unwrap();
    let csv = "id,offset,lower,upper,size\na,64,0,9,16\nb,,0,9,32\nc,,3,5,48\nd, 96 ,5,9,8\ne,64,9,12,30\n";
    let out = plan(&dir, csv, &["--out", "-"]);
    let text = stdout(&out);
    let (header, rows) = records(&text);
    assert_eq!(header, ["id", "offset", "lower", "upper", "size"], "{}", stderr(&out));
    let offset = |row: usize| rows[row]["offset"].as_str();
    assert_eq!([offset(0), offset(3), offset(4)], ["64", "96", "64"]);
    checked(&placed(&text));
    // What was written is a problem with one solution.
    assert_eq!(stdout(&plan(&dir, &text, &["--out", "-"])), text);
}

#[test]
fn alignment_guards_and_hints_are_read() {
    let dir = tempdir().unwrap();
    let csv =
        "id,lower,upper,size,alignment,guard,hint\na,0,9,10,64,6,\nb,0,9,10,,,-1\nc,0,9,10,64,,128\nd,0,9,10,16,6,\n";
    let out = plan(&dir, csv, &["--out", "-"]);
    let (_, rows) = records(&stdout(&out));
    assert_eq!(rows.len(), 4, "{}", stderr(&out));
    let number = |row: &HashMap<String, String>, column: &str| row[column].parse::<u64>().unwrap_or(0);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for row in &rows {
        let offset = number(row, "offset");
        assert_eq!(offset % number(row, "alignment").max(1), 0, "{row:?}");
        ranges.push((offset, offset + 10 + number(row, "guard")));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
    let r = json(&plan(&dir, csv, &["--json"]));
    assert_eq!(r["arena_size"], ranges[3].1);
    assert_eq!(r["total_unshared"], 52, "guards count");
}

#[test]
fn a_capacity_below_the_bound_is_refused_at_once() {
    let dir = tempdir().unwrap();
    file(&dir, "out.csv", b"as it was");
    let csv = "id,lower,upper,size\na,0,9,60\nb,4,9,70\nc,2,3,100\n";
    let out = plan(&dir, csv, &["--json", "--capacity", "159", "--out", "out.csv", "--svg", "out.svg"]);
    assert_eq!(out.status.code(), Some(1));
    let r = json(&out);
    assert_eq!((&r["status"], &r["lower_bound"], &r["capacity"]), (&"infeasible".into(), &160.into(), &159.into()));
    assert!(r["arena_size"].is_null() && r["gap"].is_null() && r["saved"].is_null());
    assert!(r["best_size"].is_null(), "nothing was searched for");
    for part in ["159 bytes", "lower bound", "160 bytes", "step 2", "2 buffers"] {
        assert!(
            stderr(&out).contains(part) && r["reason"].as_str().unwrap().contains(part),
            "{part}: {}",
            stderr(&out)
        );
    }
    assert_eq!(text(&dir, "out.csv"), "as it was");
    assert!(text(&dir, "out.svg").contains("no layout fits the capacity"), "the picture shows why");
    let out = plan(&dir, csv, &["--capacity", "160", "--out", "out.csv"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(checked(&placed(&text(&dir, "out.csv"))), 160);
}

/// What rules every layout out is named.
#[test]
fn the_reason_names_what_does_not_fit() {
    let dir = tempdir().unwrap();
    let reason = |csv: &str| {
        let out = plan(&dir, csv, &["--json", "--capacity", "32"]);
        assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
        json(&out)["reason"].as_str().unwrap().to_string()
    };
    for arena in ["", "0", "1"] {
        let csv = format!("id,lower,upper,size,offset,arena\na,0,2,10,,{arena}\n\nb,1,3,10,30,{arena}\n");
        let text = reason(&csv);
        assert!(text.contains("buffer b (line 4) is fixed at offset 30 and ends at 40 bytes"), "{text}");
    }
    for arena in ["", "0", "1"] {
        let text = reason(&format!("id,lower,upper,size,arena\na,0,2,10,1\nb,0,2,33,{arena}\n"));
        assert!(text.contains("buffer b (line 3) takes 33 bytes, above the capacity of 32 bytes"), "{text}");
    }
    let text = reason("id,lower,upper,size,arena\na,0,2,17,\nb,0,2,17,\nc,0,2,17,1\nd,0,2,4,\n");
    assert!(text.contains("the smallest layout found has 55 bytes in all"), "{text}");
    let text = reason("id,lower,upper,size,arena\na,0,2,30,0\nb,0,2,20,3\nc,0,2,20,3\n");
    assert!(text.contains("below what arena 3 needs for its buffers, 40 bytes"), "{text}");
    let text = reason("id,lower,upper,size,arena\na,0,2,30,0\nb,0,2,20,1\nc,0,2,20,\n");
    assert!(
        text.contains("less in all than the lower bound of 70 bytes: nothing fits (at step 0, 3 buffers"),
        "{text}"
    );
}

/// More time or capacity does not help where fixed buffers of no arena clash in all of them.
#[test]
fn offsets_that_clash_in_every_arena_are_told() {
    let dir = tempdir().unwrap();
    let out = plan(&dir, "id,lower,upper,size,offset,arena\na,0,2,9,0,0\nb,0,2,9,0,1\nc,0,2,9,0,\n", &[]);
    assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
    let why = stderr(&out);
    assert!(why.contains("with an offset found no arena that is free there"), "{why}");
    assert!(!why.contains("time") && !why.contains("capacity"), "{why}");
}

/// Of many arenas the table shows those in use, and sums the rest up.
#[test]
fn the_table_shows_arenas_in_use() {
    let dir = tempdir().unwrap();
    let rows = |csv: &str| {
        let text = stdout(&plan(&dir, csv, &[]));
        let rows = text.lines().filter(|l| l.starts_with("arena ") && !l.starts_with("arena size"));
        let more = text.lines().find_map(|l| Some(l.strip_prefix("more arenas")?.trim().to_string()));
        (rows.map(str::to_string).collect::<Vec<_>>(), more)
    };
    let (shown, more) = rows("id,lower,upper,size,arena\na,0,2,30,20\n");
    assert!(shown[0].starts_with("arena 20 ") && shown[0].ends_with(" 30 bytes"), "{shown:?}");
    assert_eq!((shown.len(), more.as_deref()), (8, Some("13, 0 bytes in all")));
    let many: String = (0..9).map(|i| format!("b{i},0,2,30,{i}\n")).collect();
    let (shown, more) = rows(&format!("id,lower,upper,size,arena\n{many}"));
    assert_eq!((shown.len(), more.as_deref()), (8, Some("1, 30 bytes in all")));
}

#[test]
fn without_a_layout_the_best_size_is_told() {
    let dir = tempdir().unwrap();
    // Six bytes are live at once, and the second needs an offset of 4.
    let csv = "id,lower,upper,size,alignment\na,0,1,3,4\nb,0,1,3,4\n";
    let out = plan(&dir, csv, &["--json", "--capacity", "6", "--out", "out.csv"]);
    assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
    let r = json(&out);
    assert!(["infeasible", "out_of_time"].contains(&r["status"].as_str().unwrap()));
    assert_eq!((&r["best_size"], &r["lower_bound"]), (&7.into(), &6.into()));
    assert!(stderr(&out).contains("7 bytes") && stderr(&out).contains("6 bytes"), "{}", stderr(&out));
    assert!(!dir.path().join("out.csv").exists());
    let table = plan(&dir, csv, &["--capacity", "6"]);
    assert_eq!(table.status.code(), Some(1));
    assert!(stdout(&table).contains("7 bytes"), "{}", stdout(&table));
    assert_eq!(plan(&dir, csv, &["--capacity", "7"]).status.code(), Some(0));
}

#[test]
fn the_report_and_the_picture_show_the_same_layout() {
    let dir = tempdir().unwrap();
    let out = plan(&dir, &hundred(), &["--report", "--out", "out.csv", "--svg", "out.svg"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let (_, rows) = records(&text(&dir, "out.csv"));
    let offsets: HashMap<&str, &str> = rows.iter().map(|row| (row["id"].as_str(), row["offset"].as_str())).collect();
    let report = stdout(&out);
    assert!(report.starts_with("# arena_size="), "{report}");
    let lines: Vec<&str> = report.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 100);
    for line in &lines {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(offsets[fields[3]], fields[0], "{line}");
    }
    let svg = text(&dir, "out.svg");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("<title>t1\nbuffer 1,"), "ids are names");
    let shown = run(gpumem().args(["plan", "--svg", "-"]).arg(dir.path().join("in.csv")));
    assert_eq!(stdout(&shown), svg);
}

#[test]
fn the_table_is_short_and_says_what_matters() {
    let dir = tempdir().unwrap();
    let out = plan(&dir, "id,lower,upper,size\na,0,9,4096\nb,4,9,1024\nc,0,4,1024\n", &[]);
    let table = stdout(&out);
    for part in [
        "arena size",
        "5.00 KiB (5,120 bytes)",
        "lower bound",
        "0.00 %",
        "1.00 KiB of 6.00 KiB",
        "optimal",
        "2 buffers",
    ] {
        assert!(table.contains(part), "{part} is not in\n{table}");
    }
    assert!(table.lines().count() < 12 && stderr(&out).is_empty(), "{table}{}", stderr(&out));
}

#[test]
fn nothing_to_lay_out_is_a_layout() {
    let dir = tempdir().unwrap();
    let out = plan(&dir, "id,lower,upper,size\n", &["--json", "--out", "out.csv"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!((&json(&out)["arena_size"], &json(&out)["status"]), (&0.into(), &"optimal".into()));
    assert_eq!(text(&dir, "out.csv"), "id,lower,upper,size,offset\n");
    let out = plan(&dir, "id,lower,upper,size\nempty,0,9,0\nnever,5,5,100\n", &["--json", "--out", "out.csv"]);
    assert_eq!(json(&out)["arena_size"], 0, "{}", stderr(&out));
    assert_eq!(placed(&text(&dir, "out.csv")).len(), 2);
}

fn no_scratch(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains(".tmp")), "{left:?}");
}

#[test]
fn a_result_takes_the_place_of_a_file_whole() {
    let dir = tempdir().unwrap();
    let real = file(&dir, "real.csv", b"old");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("real.csv", dir.path().join("link.csv")).unwrap();
    assert_eq!(plan(&dir, &hundred(), &["--out", "link.csv"]).status.code(), Some(0));
    assert!(fs::symlink_metadata(dir.path().join("link.csv")).unwrap().is_symlink(), "the link is still one");
    assert_eq!(placed(&text(&dir, "real.csv")).len(), 100);
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    // The input's own name is as good as any.
    assert_eq!(plan(&dir, &hundred(), &["--out", "in.csv"]).status.code(), Some(0));
    assert_eq!(placed(&text(&dir, "in.csv")).len(), 100);
    // What is no file is written to, not replaced.
    assert_eq!(plan(&dir, &hundred(), &["--out", "/dev/null"]).status.code(), Some(0));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    no_scratch(dir.path());
}

#[test]
fn a_result_that_cannot_be_written_changes_nothing() {
    let dir = tempdir().unwrap();
    file(&dir, "in.csv", hundred().as_bytes());
    let old = file(&dir, "out.csv", b"old");
    // Files of at most one block of 512 bytes, and a signal at its end.
    let limited = "ulimit -f 1; exec \"$0\" plan in.csv --out out.csv";
    let program = gpumem().get_program().to_owned();
    let out = run(std::process::Command::new("sh").arg("-c").arg(limited).arg(program).current_dir(dir.path()));
    assert_eq!(out.status.code(), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("out.csv: cannot write"), "{}", stderr(&out));
    assert_eq!(fs::read(&old).unwrap(), b"old");
    no_scratch(dir.path());
    // A disk that is full: everything written to it fails.
    let out = plan(&dir, &hundred(), &["--out", "/dev/full"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr(&out).contains("/dev/full: cannot write"), "{}", stderr(&out));
    no_scratch(dir.path());
}

#[test]
fn an_interrupt_takes_the_best_so_far() {
    let dir = tempdir().unwrap();
    // Odd sizes at coarse offsets: padding keeps every layout above the bound, and no search gets
    // through all of them.
    let mut hard = "id,lower,upper,size,alignment\n".to_string();
    for i in 0..300u64 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (lower, life, size) = (mixed % 200, 1 + (mixed >> 8) % 80, ((mixed >> 12) % 100_000) | 1);
        hard += &format!("{i},{lower},{},{size},{}\n", lower + life, 1 << (4 * (mixed % 4)));
    }
    let hard = file(&dir, "hard.csv", hard.as_bytes());
    let mut child = gpumem()
        .args(["plan", "--json", "--time-limit", "100000", "--out", "out.csv"])
        .arg(hard)
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Bit 1 of the caught signals is SIGINT; before it is set, the signal would end the process.
    let status = format!("/proc/{}/status", child.id());
    let catches = |text: String| {
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
        caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    while !fs::read_to_string(&status).is_ok_and(catches) {
        assert_eq!(child.try_wait().unwrap(), None, "the search ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(run(std::process::Command::new("kill").args(["-INT", &child.id().to_string()])).status.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!(r["interrupted"], true);
    assert_eq!(checked(&placed(&text(&dir, "out.csv"))), r["arena_size"].as_u64().unwrap());
}

/// A layout as it is written, given again: everything has its place already, and that is said.
#[test]
fn a_file_that_gives_every_place_has_nothing_to_plan() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layout.csv");
    for (text, said) in [
        ("id,lower,upper,size,offset\na,0,2,64,0\nb,1,3,64,64\n", Some("nothing to plan")),
        ("id,lower,upper,size,offset\na,0,2,64,0\nb,1,3,64,\n", Some("gives 1 of them")),
        ("id,lower,upper,size\na,0,2,64\nb,1,3,64\n", None),
    ] {
        std::fs::write(&file, text).unwrap();
        let out = run(gpumem().arg("plan").arg(&file));
        let line = stdout(&out).lines().find(|l| l.starts_with("buffers")).unwrap().to_string();
        assert_eq!(line.contains("offset"), said.is_some(), "{line}");
        assert!(said.is_none_or(|said| line.contains(said)), "{line}");
    }
    let out = run(gpumem().arg("plan").arg(&file).args(["--out", "/no-such-folder/x.csv"]));
    let text = stderr(&out);
    assert!(text.contains("/no-such-folder/x.csv") && !text.contains(".gpumem-"), "{text}");
}

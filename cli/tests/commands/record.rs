//! Recordings from the outside: made by a replay, converted, replayed again, summed up, and shown
//! in a browser. Every figure is compared with what `replay` says of the log.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, gzip, json, refused, replay, run, stderr, stdout, HEADER};
use base64::Engine;
use gpumem::observe::format::{self, Holds};
use gpumem::observe::{Event, Kind};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::{tempdir, TempDir};

/// A log with streams, reuse of addresses and something left live.
fn log(n: u64) -> String {
    let mut log = HEADER.to_string();
    for i in 0..n {
        let size = if i % 10 == 0 { (i + 1) << 18 } else { 100 + i };
        log += &format!("1,0,allocate,{:#x},{size},{:#x}\n", 0x1000 + i, i % 3 * 16);
        if i % 3 > 0 {
            log += &format!("1,0,free,{:#x},{size},{:#x}\n", 0x1000 + i, i % 3 * 16);
        }
    }
    log
}

/// The made-up log, the example's, and every recorded one of the folder that `GPUMEM_TEST_TRACES`
/// names.
fn logs(dir: &TempDir) -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut logs = vec![file(dir, "made-up.csv", log(300).as_bytes()), here.join("../examples/traces/training.csv.gz")];
    let folder = std::env::var_os("GPUMEM_TEST_TRACES").map_or(here.join("../../shared/traces"), PathBuf::from);
    let found = std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = found.filter(|p| p.to_string_lossy().ends_with(".csv.gz")).collect();
    if found.is_empty() {
        println!("skipped: there are no recorded traces in {}; GPUMEM_TEST_TRACES names a folder", folder.display());
    }
    found.sort();
    logs.extend(found);
    logs
}

/// Replays a log while that is recorded; what the replay says, and the recording.
fn recorded(dir: &TempDir, log: &Path, env: &[(&str, &str)]) -> (Value, PathBuf) {
    let name = format!("{}.gmrec", log.file_name().unwrap().to_string_lossy());
    let to = dir.path().join(name);
    let mut command = gpumem();
    command.args(["replay", "--backend", "host", "--json"]).arg(log).env("GPUMEM_RECORD", &to);
    command.envs(env.iter().copied());
    let out = run(&mut command);
    assert!(out.status.code().is_some_and(|c| c < 2), "{}", stderr(&out));
    (json(&out), to)
}

fn convert(recording: &Path, to: &str, name: &str) -> PathBuf {
    let out = recording.with_file_name(name);
    let done = run(gpumem().args(["record", "convert", "--to", to, "--out"]).arg(&out).arg(recording));
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    out
}

#[test]
fn a_recording_and_its_conversion_are_the_log_again() {
    let dir = tempdir().unwrap();
    for log in logs(&dir) {
        let (first, recording) = recorded(&dir, &log, &[]);
        let csv = convert(&recording, "rmm-csv", "again.csv");
        let (direct, again) = (json(&replay(&[], &recording)), json(&replay(&[], &csv)));
        for field in ["ops", "streams", "peak_live_bytes", "failures"] {
            assert_eq!(direct[field], again[field], "{field} of {}", log.display());
        }
        assert_eq!(first["peak_live_bytes"], direct["peak_live_bytes"]);
        assert_eq!(first["streams"], direct["streams"]);
        // What the log leaves live is freed after a pass, which is recorded too.
        let text = std::fs::read_to_string(&csv).unwrap();
        let lines = |word: &str| text.lines().filter(|l| l.contains(word)).count() as u64;
        assert_eq!(lines(",allocate,"), lines(",free,"));
        assert_eq!(direct["ops"], 2 * lines(",allocate,"));
        let stats = json(&run(gpumem().args(["stats", "--json"]).arg(&recording)));
        assert_eq!(stats["peak_live_bytes"], first["peak_live_bytes"]);
        assert_eq!(
            (&stats["operations"], &stats["lost"], &stats["live_bytes"]),
            (&direct["ops"], &0.into(), &0.into())
        );
        assert_eq!(stats["peak_mapped_bytes"], first["peak_mapped_bytes"]);
    }
}

#[test]
fn no_result_takes_the_place_of_what_it_is_made_of() {
    let dir = tempdir().unwrap();
    let (_, recording) = recorded(&dir, &file(&dir, "a.csv", log(20).as_bytes()), &[]);
    let before = std::fs::read(&recording).unwrap();
    let link = dir.path().join("link.gmrec");
    std::os::unix::fs::symlink(&recording, &link).unwrap();
    for out in [&recording, &link] {
        let mut view = gpumem();
        view.arg("view").arg(&recording).arg("--out").arg(out);
        let mut plot = gpumem();
        plot.args(["replay", "--backend", "host"]).arg(&recording).arg("--svg").arg(out);
        let convert = ["rmm-csv", "perfetto", "torch-snapshot"].map(|to| {
            let mut convert = gpumem();
            convert.args(["record", "convert", "--to", to]).arg(&recording).arg("--out").arg(out);
            convert
        });
        for mut command in [view, plot].into_iter().chain(convert) {
            refused(&run(&mut command), &[&out.to_string_lossy(), "the file that is read"]);
            assert!(std::fs::read(&recording).unwrap() == before, "{command:?}");
        }
    }
}

/// Whether a result can be written is found before its input is looked at.
#[test]
fn a_place_for_the_result_comes_first() {
    for words in [
        "replay /no/such/input --svg /no/such/folder/result",
        "bench --svg /no/such/folder/result replay /no/such/input",
        "record convert --to perfetto /no/such/input --out /no/such/folder/result",
        "view /no/such/input --out /no/such/folder/result",
    ] {
        refused(&run(gpumem().args(words.split(' '))), &["/no/such/folder/result: cannot write"]);
    }
}

/// A page on stdout is alone there.
#[test]
fn a_page_on_stdout_has_no_name_behind_it() {
    let dir = tempdir().unwrap();
    let snapshot = file(&dir, "a.json", br#"{"gpumem_snapshot": 1, "report": ["No room."]}"#);
    let out = run(gpumem().args(["view", "--out", "-"]).arg(&snapshot));
    assert!(out.status.success() && stdout(&out).trim_end().ends_with("</html>"), "{}", stderr(&out));
}

/// A file says what was lost only at its end, and not what is in a damaged block.
#[test]
fn what_an_unfinished_recording_lost_is_not_known() {
    let dir = tempdir().unwrap();
    let (_, recording) = recorded(&dir, &file(&dir, "a.csv", log(3).as_bytes()), &[]);
    let stats = |path: &Path| stdout(&run(gpumem().arg("stats").arg(path)));
    assert!(stats(&recording).contains(", 0 lost\n"), "{}", stats(&recording));
    let whole = std::fs::read(&recording).unwrap();
    let cut = file(&dir, "cut.gmrec", &whole[..whole.len() - 20]);
    let mut bytes = whole.clone();
    // Within the first block.
    bytes[format::head().len() + 40] ^= 1;
    let damaged = file(&dir, "damaged.gmrec", &bytes);
    for unsure in [&cut, &damaged] {
        assert!(stats(unsure).contains(", not known how many lost\n"), "{}", stats(unsure));
        let numbers = |form| stdout(&run(gpumem().args(["stats", form]).arg(unsure)));
        assert!(numbers("--json").contains("\"lost\": null"), "{}", numbers("--json"));
        assert!(!numbers("--prometheus").contains("gpumem_lost"), "{}", numbers("--prometheus"));
    }
    let prometheus = stdout(&run(gpumem().args(["stats", "--prometheus"]).arg(&recording)));
    assert!(prometheus.contains("gpumem_lost 0\n"), "{prometheus}");
    let totals = format::block(Holds::Totals, 0, 0, br#"{"lost": 3, "end": false}"#);
    let lossy = file(&dir, "lossy.gmrec", &[format::head().to_vec(), totals].concat());
    assert!(stats(&lossy).contains(", at least 3 lost\n"), "{}", stats(&lossy));
}

/// RMM's log has a line for each request that failed, where it was among the others.
#[test]
fn failures_are_in_the_log_of_rmm() {
    let dir = tempdir().unwrap();
    let event = |kind, time: u64, address, bytes| Event { address, bytes, stream: 7, ..Event::new(kind, 1000 * time) };
    let failure = |time| event(Kind::OutOfMemory, time, 0, 99);
    let events = [failure(1), event(Kind::Malloc, 2, 16, 8), failure(3), event(Kind::Free, 4, 16, 0), failure(5)];
    let csv = convert(&made(&dir, "a.gmrec", &events, &[]), "rmm-csv", "a.csv");
    let text = std::fs::read_to_string(&csv).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).map(|l| l.split_once(",00:00:00:").unwrap().1).collect();
    let failed = |time: u64| format!("00000{time},allocate failure,(nil),99,0x7");
    let expected = [&failed(1), "000002,allocate,0x10,8,0x7", &failed(3), "000004,free,0x10,8,0x7", &failed(5)];
    assert_eq!(lines, expected);
    assert_eq!(json(&replay(&[], &csv))["skipped_lines"], 3);
}

#[test]
fn recordings_from_pipes_and_in_gzip() {
    let dir = tempdir().unwrap();
    let (replayed, recording) = recorded(&dir, &file(&dir, "a.csv", log(200).as_bytes()), &[]);
    let bytes = std::fs::read(&recording).unwrap();
    let packed = file(&dir, "a.gmrec.gz", &gzip(&bytes));
    for (words, field) in [("stats --json", "peak_live_bytes"), ("replay --backend host --json", "peak_live_bytes")] {
        let piped = format!("cat \"$1\" | \"$0\" {words} /dev/stdin");
        let mut command = Command::new("sh");
        test_support::forget_settings(&mut command);
        command.args(["-c", &piped, env!("CARGO_BIN_EXE_gpumem")]).arg(&recording);
        assert_eq!(json(&run(&mut command))[field], replayed[field], "{words}");
        let unpacked = run(gpumem().args(words.split(' ')).arg(&packed));
        assert_eq!(json(&unpacked)[field], replayed[field], "{words}");
    }
    let lines = |path| std::fs::read_to_string(convert(path, "rmm-csv", "again.csv")).unwrap();
    assert_eq!(lines(&packed), lines(&recording));
}

#[test]
fn a_command_of_several_lines_is_one_row() {
    let dir = tempdir().unwrap();
    let (_, recording) = recorded(&dir, &file(&dir, "two\nlines.csv", log(20).as_bytes()), &[]);
    let text = stdout(&run(gpumem().arg("stats").arg(&recording)));
    let rows: Vec<&str> = text.lines().take(2).collect();
    assert!(rows[0].starts_with("command ") && rows[0].ends_with("two lines.csv"), "{text}");
    assert!(rows[1].starts_with("time "), "{text}");
}

/// A recording of these events; stack 1 has these frames.
fn made(dir: &TempDir, name: &str, events: &[Event], frames: &[&str]) -> PathBuf {
    let numbers: Vec<u32> = (1..).take(frames.len()).collect();
    let strings = format::encode_strings(numbers.iter().copied().zip(frames.iter().copied()));
    let blocks = [
        format::block(Holds::Strings, 0, numbers.len() as u32, &strings),
        format::block(Holds::Stacks, 0, 1, &format::encode_stacks([(1, &numbers[..])])),
        format::block(Holds::Events, 1, events.len() as u32, &format::encode(events)),
        format::block(Holds::Totals, 0, 0, br#"{"lost":0,"end":true}"#),
    ];
    file(dir, name, &[format::head(), blocks.concat()].concat())
}

/// A resize in place makes no allocation and no free; one of an allocation that is not in the
/// recording is all that is known of its malloc.
#[test]
fn resizes_are_counted_as_such() {
    let dir = tempdir().unwrap();
    let event = |kind, time, address| Event { address, other: address, bytes: 8, ..Event::new(kind, time) };
    let mut events = vec![event(Kind::Malloc, 1, 16), event(Kind::Malloc, 2, 32), event(Kind::Free, 3, 32)];
    events.extend((4..14).map(|time| event(Kind::Realloc, time, 16)));
    events.extend([event(Kind::Realloc, 14, 64), event(Kind::Free, 15, 64)]);
    let recording = made(&dir, "a.gmrec", &events, &[]);
    let stats = json(&run(gpumem().args(["stats", "--json"]).arg(&recording)));
    let figures = ["allocations", "frees", "resizes", "operations", "live_allocations"].map(|f| stats[f].as_u64());
    assert_eq!(figures, [3, 2, 10, 15, 1].map(Some));
    let text = stdout(&run(gpumem().arg("stats").arg(&recording)));
    assert!(text.contains("3, 2 frees, 10 resizes in place, 0 failures"), "{text}");
    let meta: Value = serde_json::from_slice(&block(&view(&recording).1, "meta")).unwrap();
    assert!(meta["report"][0].as_str().unwrap().starts_with("3 allocations and 2 frees in "), "{meta}");
}

#[test]
fn a_terminal_obeys_no_name_of_a_recording() {
    let dir = tempdir().unwrap();
    let events = [Event { address: 8, bytes: 8, stack: 1, ..Event::new(Kind::Malloc, 1) }];
    let recording = made(&dir, "a.gmrec", &events, &["inner\x1b[31m (a.c:1)", "outer\r\u{9b}2J (b.c:2)"]);
    let text = stdout(&run(gpumem().arg("stats").arg(&recording)));
    assert!(text.contains("inner [31m (a.c:1)") && text.contains("outer  2J (b.c:2)"), "{text:?}");
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    let snapshot = file(&dir, "a.json", br#"{"gpumem_snapshot": 1, "report": ["No \u001b[31m room."]}"#);
    assert_eq!(stdout(&run(gpumem().arg("stats").arg(&snapshot))), "No  [31m room.\n");
}

/// Sizes and addresses that no machine has, as a damaged or a made-up file may have them.
#[test]
fn numbers_beyond_all_bounds_are_summed_up_and_converted() {
    const MOST: u64 = u64::MAX;
    let dir = tempdir().unwrap();
    let event = |kind, time, address, bytes| Event { address, bytes, ..Event::new(kind, time) };
    let files = [
        [event(Kind::Malloc, 1, 8, MOST), event(Kind::Malloc, 2, 9, MOST), event(Kind::OutOfMemory, 3, 0, MOST)],
        [event(Kind::Map, 1, MOST - 5, 100), event(Kind::Unmap, 2, MOST - 50, 100), event(Kind::Malloc, 3, MOST, 9)],
        [event(Kind::Map, 1, MOST - 95, 90), event(Kind::Map, 2, MOST - 5, 90), event(Kind::Malloc, 3, MOST - 9, 50)],
        [event(Kind::Create, 1, 1, MOST), event(Kind::Create, 2, 2, MOST), event(Kind::Malloc, MOST, 3, 1)],
        [
            Event { other: MOST, ..event(Kind::Growth, 1, 1, MOST) },
            Event { other: MOST, ..event(Kind::Map, 2, 1, MOST) },
            Event { other: MOST, ..event(Kind::Map, 3, 1, MOST) },
        ],
    ];
    for (n, events) in files.iter().enumerate() {
        let recording = made(&dir, &format!("{n}.gmrec"), events, &[]);
        let svg = recording.with_extension("svg");
        for words in [
            &["stats"][..],
            &["stats", "--json"],
            &["record", "convert", "--to", "rmm-csv"],
            &["record", "convert", "--to", "perfetto"],
            &["record", "convert", "--to", "torch-snapshot"],
            &["view", "--out", "page.html"],
            &["replay", "--backend", "host", "--svg", svg.to_str().unwrap()],
        ] {
            let out = run(gpumem().current_dir(dir.path()).args(words).arg(&recording));
            assert!(!stderr(&out).contains("panicked"), "{n} {words:?}: {}", stderr(&out));
            // Some cannot be replayed.
            assert!(out.status.code() == Some(0) || words[0] == "replay", "{n} {words:?}: {}", stderr(&out));
        }
    }
}

/// Where nothing can be printed, commands say so and fail; none panics.
#[test]
fn output_that_cannot_be_written() {
    let dir = tempdir().unwrap();
    let (_, recording) = recorded(&dir, &file(&dir, "a.csv", log(20).as_bytes()), &[]);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for words in [
        "view --out page.html",
        "stats",
        "stats --json",
        "stats --prometheus",
        "replay --backend host --json",
        "record convert --to rmm-csv",
        "view --port 0",
    ] {
        let mut command = gpumem();
        command.args(words.split(' ')).arg(&recording).current_dir(dir.path());
        let out = run(command.stdout(full()));
        refused(&out, &["gpumem: standard output: cannot write: No space left on device"]);
        // Neither can the reason.
        assert_eq!(command.stderr(full()).status().unwrap().code(), Some(2), "{words}");
    }
    let mut convert = gpumem();
    convert.args(["record", "convert", "--to", "perfetto", "--out", "/dev/full"]).arg(&recording);
    refused(&run(&mut convert), &["/dev/full: cannot write: No space left on device"]);
    // What was there stays.
    let page = file(&dir, "page.html", b"an earlier page");
    let limited = format!(
        "ulimit -f 1; exec {} view {} --out {}",
        env!("CARGO_BIN_EXE_gpumem"),
        recording.display(),
        page.display()
    );
    let out = run(std::process::Command::new("sh").args(["-c", &limited]));
    refused(&out, &["page.html: cannot write: File too large (os error 27)\n"]);
    assert_eq!(std::fs::read(&page).unwrap(), b"an earlier page");
}

/// A browser that asks and does not read keeps nobody from the page, nor from ending it.
#[test]
fn a_served_page_ends_while_somebody_does_not_read() {
    use std::io::{BufRead, BufReader, Read, Write};
    let dir = tempdir().unwrap();
    let large = format!(
        "{{\"gpumem_snapshot\": 1, \"report\": [\"{}\"]}}",
        (0..1_500_000).map(|i| format!("{:x}", i * 2654435761u64)).collect::<String>()
    );
    let mut child = gpumem()
        .args(["view", "--port", "0"])
        .arg(file(&dir, "a.json", large.as_bytes()))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let at = line.trim_start_matches("http://").split('/').next().unwrap().to_string();
    let ask = || {
        let mut stream = std::net::TcpStream::connect(&at).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
        stream
    };
    let mut idle = ask();
    idle.read_exact(&mut [0; 8]).unwrap();
    let mut page = Vec::new();
    ask().read_to_end(&mut page).unwrap();
    assert!(page.len() > 1 << 20 && page.starts_with(b"HTTP/1.1 200"));
    // SAFETY: the child is not waited for yet, so the number is its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
    assert!(child.wait().unwrap().success());
}

/// A library that has something to say, and nobody to say it to, works all the same.
#[test]
fn a_closed_stderr_changes_nothing() {
    let dir = tempdir().unwrap();
    let log = file(&dir, "a.csv", log(20).as_bytes());
    let missing = dir.path().join("missing/a.gmrec");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = gpumem();
    // A misspelt setting, no GPU, what the slow path decides, and a recording that cannot be made.
    command.args(["replay", "--json"]).arg(&log).env("GPUMEM_LIMITS", "1").env("GPUMEM_BACKEND", "auto");
    command.env("GPUMEM_LOG", "2").env("GPUMEM_RECORD", &missing);
    let out = run(command.stderr(full));
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(json(&out)["failures"], 0);
}

/// A second recording to the same file goes elsewhere, and says where.
#[test]
fn a_second_recording_says_where_it_is() {
    let dir = tempdir().unwrap();
    let log = file(&dir, "a.csv", log(20).as_bytes());
    let to = dir.path().join("a.gmrec");
    for (level, says) in [("1", false), ("1", true), ("0", false)] {
        let mut command = gpumem();
        command.args(["replay", "--backend", "host", "--json"]).arg(&log).env("GPUMEM_RECORD", &to);
        let child = command.env("GPUMEM_LOG", level).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let own = format!("{}.{}", to.display(), child.id());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        let expected = format!("{} is there already; this process records to {own}\n", to.display());
        assert_eq!(stderr(&out).contains(&expected), says, "level {level}: {}", stderr(&out));
        assert!(says || stderr(&out).is_empty(), "level {level}: {}", stderr(&out));
    }
}

/// A file that grows no further, as on a full disk: what there is of it can be read.
#[test]
fn a_recording_that_cannot_be_written_to_its_end() {
    let dir = tempdir().unwrap();
    let pair = |i| format!("1,0,allocate,{i},{},0\n1,0,free,{i},0,0\n", 100 + i);
    let log = file(&dir, "a.csv", (1..1000).map(pair).fold(HEADER.to_string(), |log, pair| log + &pair).as_bytes());
    for (level, name) in [("1", "a.gmrec"), ("0", "quiet.gmrec")] {
        let to = dir.path().join(name);
        let mut limited = Command::new("sh");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_gpumem")]);
        test_support::forget_settings(&mut limited);
        limited.args(["replay", "--backend", "host", "--json", "--repeat", "30"]).arg(&log);
        // The pool's memory is in a file too, which is longer.
        limited.env("GPUMEM_POOL", "off").env("GPUMEM_RECORD", &to);
        let out = run(limited.env("GPUMEM_LOG", level));
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        let says = format!("the recording {} ends here", to.display());
        assert_eq!(stderr(&out).contains(&says), level == "1", "{}", stderr(&out));
        assert!(level == "1" || stderr(&out).is_empty(), "{}", stderr(&out));
        let stats = run(gpumem().args(["stats", "--json"]).arg(&to));
        assert!(json(&stats)["operations"].as_u64().unwrap() > 0);
        assert!(stderr(&stats).contains("could not be written further"), "{}", stderr(&stats));
    }
}

#[test]
fn a_failure_at_the_end_is_in_every_format() {
    let dir = tempdir().unwrap();
    // Nothing is allocated or freed after the request that fails.
    let log = file(
        &dir,
        "a.csv",
        format!("{HEADER}1,0,allocate,0x1,8388608,0x0\n1,0,free,0x1,0,0x0\n1,0,allocate,0x2,67108864,0x0\n").as_bytes(),
    );
    let snapshot = dir.path().join("snap.json");
    let settings =
        [("GPUMEM_LIMIT", "16M"), ("GPUMEM_SNAPSHOT_ON", "oom,exit"), ("GPUMEM_SNAPSHOT", snapshot.to_str().unwrap())];
    let (replayed, recording) = recorded(&dir, &log, &settings);
    assert_eq!(replayed["failures"], 1);
    // What was not live all the time says nothing of how memory was used.
    assert!(replayed["utilisation"].is_null(), "{replayed}");
    let trace: Value =
        serde_json::from_slice(&std::fs::read(convert(&recording, "perfetto", "trace.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["name"] == "out of memory"));
    let pickle = std::fs::read(convert(&recording, "torch-snapshot", "snapshot.pickle")).unwrap();
    assert!(pickle.windows(3).any(|w| w == b"oom"));
    // And the snapshot of the end leaves that of the failure as it is.
    for (name, reason) in [("snap.json", "oom"), ("snap.exit.json", "exit")] {
        let seen = json(&run(gpumem().args(["stats", "--json"]).arg(dir.path().join(name))));
        assert_eq!(seen["reason"], reason, "{name}");
    }
}

#[test]
fn a_process_that_was_killed_publishes_nothing() {
    // As it leaves them: a number above all processes', and the moment of the last write long ago.
    let pid = 4_200_000_000_u32;
    let path = gpumem::observe::page::path(pid);
    let text = move || format!(r#"{{"pid":{pid},"backend":"host","unix_ms":1,"devices":[]}}"#);
    let page = gpumem::observe::page::Page::publish(path, text).unwrap();
    let top = run(gpumem().args(["top", "--json", &pid.to_string()]));
    drop(page);
    refused(&top, &[&format!("process {pid} has ended"), "behind; remove it"]);
}

#[test]
fn perfetto_gets_well_formed_events() {
    let dir = tempdir().unwrap();
    let (first, recording) = recorded(&dir, &file(&dir, "a.csv", log(200).as_bytes()), &[]);
    let out = convert(&recording, "perfetto", "trace.json");
    let trace: Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let mut most = 0;
    for e in events {
        let phase = e["ph"].as_str().unwrap();
        assert!(e["pid"].is_u64() && e["tid"].is_u64() && e["name"].is_string(), "{e}");
        assert!(phase == "M" || e["ts"].as_f64().is_some_and(|t| t >= 0.0), "{e}");
        match phase {
            "X" => assert!(e["dur"].as_f64().is_some_and(|d| d >= 0.0), "{e}"),
            "C" => most = most.max(e["args"].get("live").and_then(Value::as_u64).unwrap_or(0)),
            "M" | "i" | "b" | "e" => {}
            other => panic!("{other} is no phase: {e}"),
        }
    }
    assert_eq!(most, first["peak_live_bytes"].as_u64().unwrap());
    assert!(events.iter().any(|e| e["ph"] == "X" && e["name"] == "growth"));
}

#[test]
fn torch_gets_the_structure_of_its_snapshots() {
    let dir = tempdir().unwrap();
    // Everything that memory_viz looks at, by Python's own reader.
    let check = "
import pickle, sys
s = pickle.load(open(sys.argv[1], 'rb'))
assert set(s) >= {'segments', 'device_traces', 'allocator_settings', 'external_annotations'}, set(s)
allocated = 0
for g in s['segments']:
    for k in ('device', 'address', 'total_size', 'allocated_size', 'active_size', 'requested_size', 'stream', 'segment_type',
              'segment_pool_id', 'is_expandable', 'frames', 'blocks'):
        assert k in g, k
    at = g['address']
    for b in g['blocks']:
        assert b['address'] == at and b['state'] in ('active_allocated', 'inactive'), b
        at += b['size']
        allocated += b['requested_size'] if b['state'] == 'active_allocated' else 0
    assert at == g['address'] + g['total_size'], g
live = most = 0
for t in s['device_traces']:
    for e in t:
        assert e['action'] in ('alloc', 'free_requested', 'free_completed', 'segment_map', 'segment_unmap', 'oom'), e
        assert all(k in e for k in ('addr', 'size', 'stream', 'time_us', 'frames', 'compile_context', 'user_metadata')), e
        live += e['size'] if e['action'] == 'alloc' else -e['size'] if e['action'] == 'free_completed' else 0
        most = max(most, live)
print(most, live, allocated)
";
    let (first, recording) = recorded(&dir, &file(&dir, "a.csv", log(200).as_bytes()), &[]);
    let out = convert(&recording, "torch-snapshot", "snapshot.pickle");
    let read =
        serde_pickle::value_from_reader(std::fs::File::open(&out).unwrap(), serde_pickle::DeOptions::new()).unwrap();
    assert!(matches!(read, serde_pickle::Value::Dict(d) if d.len() == 4));
    match Command::new("python3").args(["-c", check]).arg(&out).output() {
        Ok(said) => {
            assert!(said.status.success(), "{}", stderr(&said));
            assert_eq!(stdout(&said).trim(), format!("{} 0 0", first["peak_live_bytes"]));
        }
        Err(e) => println!("skipped: python3 cannot be run: {e}"),
    }
}

/// A block of a page, unpacked.
fn block(page: &str, id: &str) -> Vec<u8> {
    let from = page.split(&format!("id=\"{id}\">")).nth(1).unwrap_or_else(|| panic!("no block {id}"));
    let packed = base64::engine::general_purpose::STANDARD.decode(from.split("</script>").next().unwrap()).unwrap();
    let mut bytes = Vec::new();
    flate2::read::DeflateDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

fn view(file: &Path) -> (PathBuf, String) {
    let page = file.with_extension("html");
    let out = run(gpumem().arg("view").arg(file).arg("--out").arg(&page));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let text = std::fs::read_to_string(&page).unwrap();
    (page, text)
}

#[test]
fn the_page_has_what_the_replay_says() {
    let dir = tempdir().unwrap();
    for log in logs(&dir) {
        let (first, recording) = recorded(&dir, &log, &[]);
        let (_, page) = view(&recording);
        let meta: Value = serde_json::from_slice(&block(&page, "meta")).unwrap();
        assert_eq!(meta["totals"]["peak_live_bytes"], first["peak_live_bytes"]);
        let most = meta["first"]["most"].as_array().unwrap().iter().filter_map(Value::as_u64).max();
        assert_eq!(most, first["peak_live_bytes"].as_u64());
        let chunks = meta["chunks"].as_u64().unwrap();
        assert!(chunks >= 1 && page.contains(&format!("id=\"chunk{}\"", chunks - 1)));
    }
}

/// The page's own decoder, in node, gives the same figures as the replay.
#[test]
fn the_pages_decoder_agrees() {
    let dir = tempdir().unwrap();
    let (first, recording) = recorded(&dir, &file(&dir, "a.csv", log(300).as_bytes()), &[]);
    let (path, page) = view(&recording);
    let meta: Value = serde_json::from_slice(&block(&page, "meta")).unwrap();
    let decoder = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("viewer/decode.js")).unwrap();
    let script = format!(
        "{decoder}
import {{ readFileSync }} from 'node:fs';
const page = readFileSync({:?}, 'utf8'), meta = {{changes: {}, lives: {}, chunks: {}}};
const store = new Store(meta.changes, meta.lives);
for (let i = 0; i < meta.chunks; i++) store.add(await inflate(page.split(`id=\"chunk${{i}}\">`)[1].split('</script>')[0]));
let most = 0;
for (let i = 0; i < store.changes; i++) most = Math.max(most, store.live[i]);
const [least, top] = store.extremes(0, store.changes);
let alive = 0;
for (const i of store.aliveAt(store.at[store.changes >> 1])) alive += store.bytes[i];
console.log(most, top, least, store.live[store.changes - 1], store.whole, alive - store.liveAt(store.at[store.changes >> 1]));
",
        path.display().to_string(),
        meta["changes"],
        meta["lives"],
        meta["chunks"]
    );
    match Command::new("node").args(["--input-type=module", "-e", &script]).output() {
        Ok(said) => {
            let peak = &first["peak_live_bytes"];
            assert_eq!(stdout(&said).trim(), format!("{peak} {peak} 0 0 true 0"), "{}", stderr(&said));
        }
        Err(e) => println!("skipped: node cannot be run: {e}"),
    }
}

/// What a browser makes of a page: its document once everything is read.
fn browsed(page: &Path) -> Option<String> {
    for name in ["chromium", "chromium-browser", "google-chrome"] {
        let mut command = Command::new(name);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]);
        let profile = page.with_extension("profile");
        command
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("file://{}#t=peak&by=tag", page.display()));
        if let Ok(out) = command.output() {
            assert!(out.status.success(), "{}", stderr(&out));
            let document = stdout(&out);
            assert!(document.contains("data-ready=\"all\""), "the page did not come to its end");
            return Some(document);
        }
    }
    println!("skipped: no Chromium is installed (apt install chromium)");
    None
}

fn figure(document: &str, id: &str) -> u64 {
    let from = document.split(&format!("id=\"{id}\" data-value=\"")).nth(1).unwrap_or_else(|| panic!("no figure {id}"));
    from.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn a_browser_shows_the_figures_of_the_replay() {
    let dir = tempdir().unwrap();
    for log in logs(&dir) {
        let (first, recording) = recorded(&dir, &log, &[]);
        let (page, _) = view(&recording);
        let Some(document) = browsed(&page) else { return };
        assert_eq!(Some(figure(&document, "peak")), first["peak_live_bytes"].as_u64());
        assert_eq!(Some(figure(&document, "mapped")), first["peak_mapped_bytes"].as_u64());
        let direct = json(&replay(&[], &recording));
        assert_eq!(Some(figure(&document, "operations")), direct["ops"].as_u64());
    }
}

#[test]
fn a_failure_leaves_a_snapshot_that_says_why() {
    let dir = tempdir().unwrap();
    // Many blocks of 1 MiB of which every second is freed, and then one that fits nowhere.
    let mut text = HEADER.to_string();
    (0..60).for_each(|i| text += &format!("1,0,allocate,{:#x},1048576,0\n", 0x1000 + i));
    (0..60).step_by(2).for_each(|i| text += &format!("1,0,free,{:#x},1048576,0\n", 0x1000 + i));
    text += "1,0,allocate,0x9999,41943040,0\n";
    let snapshot = dir.path().join("oom.json");
    let env = [
        ("GPUMEM_SNAPSHOT_ON", "oom"),
        ("GPUMEM_SNAPSHOT", snapshot.to_str().unwrap()),
        ("GPUMEM_LIMIT", "64M"),
        ("GPUMEM_SNAPSHOT_EVENTS", "20"),
    ];
    let (first, recording) = recorded(&dir, &file(&dir, "a.csv", text.as_bytes()), &env);
    assert_eq!(first["failures"], 1);
    let read: Value = serde_json::from_slice(&std::fs::read(&snapshot).unwrap()).unwrap();
    assert_eq!((&read["reason"], &read["failure"]["bytes"]), (&"oom".into(), &41_943_040.into()));
    let events = read["events"].as_array().unwrap();
    assert!(events.len() == 20 && events[19]["event"] == "out of memory", "{events:?}");
    let said = stdout(&run(gpumem().arg("stats").arg(&snapshot)));
    for part in ["could not give 40.00 MiB", "30.00 MiB are live in 30 allocations", "stranded", "A trim would give"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let metrics = stdout(&run(gpumem().args(["stats", "--prometheus"]).arg(&snapshot)));
    assert!(metrics.contains("gpumem_live{device=\"0\"} 31457280\n"), "{metrics}");
    // The recording has the failure too, and says so in words.
    let meta: Value = serde_json::from_slice(&block(&view(&recording).1, "meta")).unwrap();
    let report = meta["report"].to_string();
    assert!(
        report.contains("40.00 MiB (41943040 bytes) could not be given") && report.contains("30 allocations"),
        "{report}"
    );
    let (page, _) = view(&snapshot);
    if let Some(document) = browsed(&page) {
        assert!(document.contains("could not give 40.00 MiB"), "the report is not shown");
        assert_eq!(figure(&document, "live0"), 30 << 20);
    }
}

/// A program that keeps one buffer of each step until it gets none: the snapshot's page says so.
#[test]
fn a_leak_that_fails_is_shown_with_all_it_holds() {
    let dir = tempdir().unwrap();
    let mut text = HEADER.to_string();
    for step in 0..100_u64 {
        text += &format!("1,0,allocate,{:#x},3145728,0\n1,0,allocate,{:#x},1048576,0\n", 0x1000, 0x2000 + step);
        text += "1,0,free,0x1000,3145728,0\n";
    }
    let snapshot = dir.path().join("leak.json");
    let env = [("GPUMEM_SNAPSHOT_ON", "oom"), ("GPUMEM_SNAPSHOT", snapshot.to_str().unwrap()), ("GPUMEM_LIMIT", "64M")];
    recorded(&dir, &file(&dir, "leak.csv", text.as_bytes()), &env);
    let read: Value = serde_json::from_slice(&std::fs::read(&snapshot).unwrap()).unwrap();
    let stats = &read["devices"][0]["stats"];
    // 61 steps kept a buffer; the 62nd has its own 3 MiB, and the limit is full.
    assert_eq!((&stats["allocations"], &stats["live"]), (&62.into(), &(64 << 20).into()), "{stats}");
    assert_eq!(read["failure"]["bytes"], 1 << 20);
    let (page, _) = view(&snapshot);
    if let Some(document) = browsed(&page) {
        assert_eq!(figure(&document, "live0"), 64 << 20);
        for part in ["could not give 1.00 MiB", "62 allocations"] {
            assert!(document.contains(part), "{part:?} is not shown");
        }
    }
}

#[test]
fn the_page_is_served_to_this_machine() {
    use std::io::{BufRead, BufReader, Write};
    let dir = tempdir().unwrap();
    let (_, recording) = recorded(&dir, &file(&dir, "a.csv", log(30).as_bytes()), &[]);
    let mut child = gpumem()
        .arg("view")
        .arg(&recording)
        .args(["--port", "0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("http://").and_then(|l| l.split('/').next()).unwrap_or_else(|| panic!("{line:?}"));
    let ask = |method: &str, path: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "{method} {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let (page, other, head) = (ask("GET", "/"), ask("GET", "/etc/passwd"), ask("HEAD", "/"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        page.starts_with("HTTP/1.")
            && page.contains(" 200 ")
            && page.contains("id=\"meta\"")
            && page.contains("</html>")
    );
    assert!(other.lines().next().unwrap().contains(" 404 "), "{other}");
    assert!(head.lines().next().unwrap().contains(" 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let dir = tempdir().unwrap();
    let csv = file(&dir, "a.csv", log(3).as_bytes());
    refused(&run(gpumem().arg("view").arg(&csv)), &["a.csv", "neither a recording", "GPUMEM_RECORD"]);
    refused(&run(gpumem().args(["record", "convert", "--to", "perfetto"]).arg(&csv)), &["a.csv", "no recording"]);
    refused(&run(gpumem().arg("stats").arg(dir.path().join("none"))), &["none"]);
    refused(&run(gpumem().args(["top", "4294967295"])), &["GPUMEM_STATS_PAGE"]);
    let later = file(&dir, "b.json", b"{\"gpumem_snapshot\": 99}");
    refused(&run(gpumem().arg("view").arg(&later)), &["version 99"]);
    let empty = file(&dir, "c.json", b"{\"gpumem_snapshot\": 1}");
    refused(&run(gpumem().arg("stats").arg(&empty)), &["c.json", "a snapshot without its report"]);
    // A recording that ends early is read as far as it goes, and says so.
    let (_, recording) = recorded(&dir, &csv, &[]);
    let whole = std::fs::read(&recording).unwrap();
    let cut = file(&dir, "cut.gmrec", &whole[..whole.len() - 20]);
    let out = run(gpumem().args(["stats", "--json"]).arg(&cut));
    assert_eq!(out.status.code(), Some(0));
    assert!(stderr(&out).contains("ended before the recording did"), "{}", stderr(&out));
}

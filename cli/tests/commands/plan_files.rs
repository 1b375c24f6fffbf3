//! Where `gpumem plan` writes: links, names, pipes, and files that are named twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, refused, run, stderr, stdout};
use flate2::read::MultiGzDecoder;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::process::{Command, Output, Stdio};
use tempfile::{tempdir, TempDir};

const TWO: &str = "id,lower,upper,size\na,0,9,60\nb,4,9,70\n";

/// Runs `gpumem plan ARGS in.csv` in the directory.
fn plan(dir: &TempDir, args: &[&str]) -> Output {
    run(gpumem().arg("plan").args(args).arg("in.csv").current_dir(dir.path()))
}

fn with_input() -> TempDir {
    let dir = tempdir().unwrap();
    file(&dir, "in.csv", TWO.as_bytes());
    dir
}

fn text(dir: &TempDir, name: &str) -> String {
    fs::read_to_string(dir.path().join(name)).unwrap()
}

/// The names in the directory, sorted.
fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn through_a_link_to_nothing_the_target_is_made() {
    let dir = with_input();
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("sub/second", dir.path().join("first")).unwrap();
    symlink("../target.csv", dir.path().join("sub/second")).unwrap();
    let out = plan(&dir, &["--out", "first", "--svg", "out.svg"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    for link in ["first", "sub/second"] {
        assert!(fs::symlink_metadata(dir.path().join(link)).unwrap().is_symlink(), "{link} is still a link");
    }
    assert!(!fs::symlink_metadata(dir.path().join("target.csv")).unwrap().is_symlink());
    assert!(text(&dir, "target.csv").starts_with("id,lower,upper,size,offset\n"));
    assert_eq!(text(&dir, "first"), text(&dir, "target.csv"));

    symlink("nowhere/target.csv", dir.path().join("lost")).unwrap();
    refused(&plan(&dir, &["--out", "lost"]), &["lost leads to nowhere/target.csv: cannot write"]);
    symlink("round", dir.path().join("round")).unwrap();
    refused(&plan(&dir, &["--out", "round"]), &["round: cannot write"]);
    assert_eq!(names(&dir), ["first", "in.csv", "lost", "out.svg", "round", "sub", "target.csv"]);
}

#[test]
fn names_may_be_as_long_as_the_file_system_takes() {
    let dir = with_input();
    for len in [245, 254, 255] {
        let name = "n".repeat(len);
        // Made, then replaced.
        for _ in 0..2 {
            let out = plan(&dir, &["--out", &name]);
            assert_eq!(out.status.code(), Some(0), "{len}: {}", stderr(&out));
            assert!(text(&dir, &name).contains("offset"));
        }
    }
    assert_eq!(names(&dir).len(), 4);
    refused(&plan(&dir, &["--out", &"n".repeat(256)]), &["cannot write"]);
}

#[test]
fn a_file_is_for_those_whom_the_process_or_the_file_before_says() {
    let dir = with_input();
    let mode = |name| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    let made = || {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "umask 027; exec \"$0\" plan in.csv --out out.csv"]).arg(gpumem().get_program());
        let out = run(command.current_dir(dir.path()));
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        mode("out.csv")
    };
    assert_eq!(made(), 0o640);
    fs::set_permissions(dir.path().join("out.csv"), fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(made(), 0o604);
    assert_eq!(names(&dir), ["in.csv", "out.csv"]);
}

#[test]
fn one_file_has_one_use() {
    let dir = with_input();
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("in.csv", dir.path().join("link")).unwrap();
    symlink("new", dir.path().join("dangling")).unwrap();
    for svg in ["in.csv", "./in.csv", "sub/../in.csv", "link"] {
        refused(&plan(&dir, &["--svg", svg]), &["--svg names the input", "in.csv"]);
    }
    assert_eq!(text(&dir, "in.csv"), TWO, "the input is as it was");
    for (out, svg) in [("new", "new"), ("new", "./new"), ("sub/../new", "new"), ("dangling", "new")] {
        refused(&plan(&dir, &["--out", out, "--svg", svg]), &["--out and --svg both name", "new"]);
        assert!(!dir.path().join("new").exists());
    }
    file(&dir, "old", b"old");
    symlink("old", dir.path().join("to old")).unwrap();
    refused(&plan(&dir, &["--out", "old", "--svg", "to old"]), &["--out and --svg both name"]);
    assert_eq!(text(&dir, "old"), "old");
    // The input with offsets may take its place: nothing of it is lost.
    let out = plan(&dir, &["--out", "in.csv", "--svg", "new"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(text(&dir, "in.csv").starts_with("id,lower,upper,size,offset\n"));
    assert!(text(&dir, "new").starts_with("<svg "));
}

#[test]
fn a_result_that_nobody_takes_is_a_failure_and_help_says_so() {
    let dir = with_input();
    for args in [&["--out", "-"][..], &["--svg", "-"], &["--report"]] {
        let mut child = gpumem()
            .args(["plan", "in.csv"])
            .args(args)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // Closed; a write that comes before this goes into the pipe, so all of it is read by nobody
        // or refused.
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        let written_before = out.status.code() == Some(0);
        assert!(written_before || out.status.code() == Some(2), "{args:?}: {:?}", out.status);
        assert!(written_before || stderr(&out).contains("standard output: cannot write"), "{}", stderr(&out));
    }
    for args in [&["--out", "-"][..], &["--json"], &[]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = run(gpumem().args(["plan", "in.csv"]).args(args).current_dir(dir.path()).stdout(full));
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains("standard output: cannot write"), "{args:?}: {}", stderr(&out));
    }
    for words in ["help", "--help", "--version", "plan --help", "help plan"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = run(gpumem().args(words.split(' ')).stdout(full));
        refused(&out, &["gpumem: standard output: cannot write: No space left on device"]);
        assert_eq!(stderr(&out).lines().count(), 1, "{words}: {}", stderr(&out));
        // As much as somebody wanted to read.
        let (_, closed) = std::io::pipe().unwrap();
        let out = run(gpumem().args(words.split(' ')).stdout(closed));
        assert_eq!((out.status.code(), stderr(&out)), (Some(0), String::new()), "{words}");
    }
    let help = stdout(&run(gpumem().args(["plan", "--help"])));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("2 bad usage, bad input, or a result that could not be written"), "{help}");
}

/// A file that is open already, here as standard output, is written on, whatever it is called.
#[test]
fn a_file_that_is_open_goes_on() {
    let dir = with_input();
    let log = || fs::OpenOptions::new().append(true).open(dir.path().join("log.txt")).unwrap();
    let log_of = |args: &[&str]| {
        file(&dir, "log.txt", b"precious\n");
        let out = run(gpumem().args(["plan", "in.csv"]).args(args).current_dir(dir.path()).stdout(log()));
        (out.status.code(), stderr(&out), fs::read_to_string(dir.path().join("log.txt")).unwrap())
    };
    let same = log_of(&["--out", "-"]);
    assert!(same.0 == Some(0) && same.2.starts_with("precious\nid,lower,upper,size,offset\n"), "{same:?}");
    assert_eq!(log_of(&["--out", "log.txt"]).2, same.2);
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let (code, _, text) = log_of(&["--out", name]);
        assert_eq!((code, &text), (Some(0), &same.2), "{name}");
        let (code, says, text) = log_of(&["--out", name, "--json"]);
        assert_eq!((code, &*text), (Some(2), "precious\n"), "{name}");
        assert!(says.contains("both write to standard output"), "{says}");
    }
    // What is named as if it was compressed is, as it could not be read again otherwise.
    let packed = dir.path().join("packed.csv.gz");
    for (name, to) in [("packed.csv.gz", "packed.csv.gz"), ("link.gz", "packed.csv.gz"), ("link.gz", "log.txt")] {
        let _ = fs::remove_file(dir.path().join("link.gz"));
        symlink("/dev/stdout", dir.path().join("link.gz")).unwrap();
        fs::write(&packed, "").unwrap();
        let all = fs::OpenOptions::new().write(true).create(true).truncate(true).open(dir.path().join(to)).unwrap();
        let out = run(gpumem().args(["plan", "in.csv", "--out", name]).current_dir(dir.path()).stdout(all));
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        let mut text = String::new();
        let written = fs::read(dir.path().join(to)).unwrap();
        MultiGzDecoder::new(&*written).read_to_string(&mut text).unwrap();
        assert_eq!(format!("precious\n{text}"), same.2, "{name} to {to}");
    }
    // By whichever name, of a file too.
    for (name, to) in [("a.csv.gz", "a.blob"), ("b.csv", "b.gz"), ("c.gz", "missing.blob"), ("d.csv", "missing.gz")] {
        if !to.starts_with("missing") {
            fs::write(dir.path().join(to), "").unwrap();
        }
        symlink(to, dir.path().join(name)).unwrap();
        let out = plan(&dir, &["--out", name]);
        assert!(out.status.success(), "{}", stderr(&out));
        let mut text = String::new();
        let written = fs::read(dir.path().join(to)).unwrap();
        MultiGzDecoder::new(&*written).read_to_string(&mut text).unwrap();
        assert_eq!(format!("precious\n{text}"), same.2, "{name} to {to}");
    }
    // And one that is not standard output.
    std::os::unix::fs::symlink("/dev/fd/3", dir.path().join("link")).unwrap();
    for (name, number) in [("/dev/fd/3", 3), ("link", 3), ("/proc/thread-self/fd/3", 3), ("/dev/stderr", 2)] {
        let script = format!("\"$1\" plan in.csv --svg {name} {number}>> log.txt");
        file(&dir, "log.txt", b"precious\n");
        let program = env!("CARGO_BIN_EXE_gpumem");
        let out = run(Command::new("sh").args(["-c", &script, "sh", program]).current_dir(dir.path()));
        let text = fs::read_to_string(dir.path().join("log.txt")).unwrap();
        assert!(out.status.success() && text.starts_with("precious\n<svg "), "{name}: {text}");
    }
    let null = gpumem()
        .args(["plan", "in.csv", "--out", "/dev/null", "--json"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .status();
    assert!(null.unwrap().success());
}

/// The script beside the examples reads what the planner writes, whatever else is in it, and says
/// what a file lacks.
#[test]
fn the_script_of_the_examples_checks_layouts() {
    let dir = with_input();
    assert_eq!(plan(&dir, &["--out", "out.csv"]).status.code(), Some(0));
    file(&dir, "torn.csv", b"lower,upper,size,offset\n0,9,60,0\n4,9,70,sixty\n");
    file(&dir, "wrong.csv", b"lower,upper,size,offset\n0,9,60,0\n4,9,70,50\n");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/plans/check.py");
    for (name, code, says) in [
        ("out.csv", 0, "out.csv: 2 buffers in 130 bytes; 130 are live at the fullest step"),
        ("in.csv", 1, "in.csv: no column offset among id, lower, upper, size; gpumem plan --out adds offsets"),
        ("torn.csv", 1, "torn.csv: line 3: lower, upper, size, offset are 4, 9, 70, sixty, not whole numbers"),
        ("wrong.csv", 1, "wrong.csv: lines 2 and 3 share bytes at step 4"),
    ] {
        let Ok(out) = Command::new("python3").arg(script).arg(name).current_dir(dir.path()).output() else {
            println!("skipped: python3 is not installed");
            return;
        };
        assert_eq!((out.status.code(), stdout(&out) + &stderr(&out)), (Some(code), format!("{says}\n")));
    }
}

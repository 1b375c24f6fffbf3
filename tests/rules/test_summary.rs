//! The count line of `make test`: what `scripts/test-summary.awk` makes of planted test runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Last line and success of the summary of `log`.
fn summary(log: &str) -> (String, bool) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/test-summary.awk");
    let mut awk = Command::new("awk");
    let mut awk = awk.arg("-f").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    awk.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    let out = awk.wait_with_output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    (text.lines().last().unwrap_or_default().to_string(), out.status.success())
}

#[track_caller]
fn counted(log: &str, line: &str, ok: bool) {
    assert_eq!(summary(log), (line.to_string(), ok), "for this log:\n{log}");
}

fn binary(name: &str, result: &str) -> String {
    format!("     Running {name} (target/debug/deps/x-0123)\n\nrunning 9 tests\n{result}\n")
}

fn result(verdict: &str, passed: u32, failed: u32) -> String {
    format!(
        "test result: {verdict}. {passed} passed; {failed} failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s"
    )
}

#[test]
fn binaries_and_doc_tests_are_summed() {
    let log = binary("unittests src/lib.rs", &result("ok", 20, 0))
        + &binary("tests/a.rs", &result("ok", 3, 0))
        + "   Doc-tests gpumem\n\n"
        + &result("ok", 2, 0)
        + "\ncargo exit status: 0\n";
    counted(&log, "25 passed, 0 failed, 0 skipped", true);
}

#[test]
fn failures_are_summed_and_fail() {
    let log = binary("tests/a.rs", &result("FAILED", 3, 2))
        + "error: test failed, to rerun pass `--test a`\n"
        + &binary("tests/b.rs", &result("ok", 4, 0))
        + "cargo exit status: 101\n";
    counted(&log, "7 passed, 2 failed, 0 skipped", false);
}

#[test]
fn skipped_lines_are_counted_where_they_start_a_line() {
    let shown =
        "\n---- c stdout ----\n-- c\nskipped: this device has one stream\nnot skipped: this\n  skipped: nor this\n";
    let log = binary("tests/a.rs", &(shown.to_string() + &result("ok", 3, 0))) + "cargo exit status: 0\n";
    counted(&log, "3 passed, 0 failed, 1 skipped", true);
}

#[test]
fn a_test_that_was_skipped_has_not_passed() {
    let shown = "successes:\n\n---- a stdout ----\nskipped: no GPU here\n\n---- b stdout ----\nskipped: no cmake\n\
                 ---- c stdout ----\nseed 5\n\n\nsuccesses:\n    a\n    b\n    c\n\n";
    let log = binary("tests/a.rs", &(shown.to_string() + &result("ok", 9, 0))) + "cargo exit status: 0\n";
    counted(&log, "7 passed, 0 failed, 2 skipped", true);
    let one_thread = "test d ... skipped: no GPU here\nok\n";
    let log = binary("tests/a.rs", &(one_thread.to_string() + &result("ok", 2, 0))) + "cargo exit status: 0\n";
    counted(&log, "1 passed, 0 failed, 1 skipped", true);
}

#[test]
fn a_crash_without_a_result_is_a_failure() {
    let log = binary("tests/a.rs", "test x ... ok")
        + "error: test failed, to rerun pass `--test a`\n  process didn't exit successfully (signal: 11)\n"
        + &binary("tests/b.rs", &result("ok", 4, 0))
        + "cargo exit status: 101\n";
    counted(&log, "4 passed, 1 failed, 0 skipped", false);
}

#[test]
fn a_crash_after_the_last_test_is_a_failure() {
    let log = binary("tests/a.rs", &result("ok", 4, 0))
        + "error: test failed, to rerun pass `--test a`\ncargo exit status: 101\n";
    counted(&log, "4 passed, 1 failed, 0 skipped", false);
}

#[test]
fn a_harness_of_its_own_counts_as_one_test() {
    counted(&(binary("tests/c.rs", "all fine") + "cargo exit status: 0\n"), "1 passed, 0 failed, 0 skipped", true);
}

#[test]
fn what_never_ran_is_no_success() {
    counted("error: could not compile `gpumem`\ncargo exit status: 101\n", "0 passed, 1 failed, 0 skipped", false);
    counted("cargo exit status: 0\n", "0 passed, 0 failed, 0 skipped", false);
    counted(&binary("tests/a.rs", &result("ok", 4, 0)), "4 passed, 1 failed, 0 skipped", false);
    counted("", "0 passed, 1 failed, 0 skipped", false);
}

//! Tests in a process of their own: because they change or count what belongs to the whole process.

use std::process::{Command, Output, Stdio};

const ROLE: &str = "GPUMEM_TEST_CHILD";

/// Runs one test of this binary again, in a process in which [`role`] is `role`.
pub fn child(test: &str, role: &str, stdin: Stdio) -> Output {
    let exe = std::env::current_exe().unwrap();
    let out = Command::new(exe).args(["--exact", test, "--nocapture"]).env(ROLE, role).stdin(stdin).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("running 1 test"), "{test} is not a test: {out:?}");
    out
}

/// In the process of all tests, runs this one in another and is true; in that other one it is
/// false.
#[track_caller]
pub fn runs_elsewhere(module: &str, test: &str) -> bool {
    if role().is_some() {
        return false;
    }
    let (_, module) = module.split_once("::").unwrap();
    let out = child(&format!("{module}::{test}"), "alone", Stdio::null());
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    for line in said.lines() {
        if let Some(at) = line.find("skipped: ") {
            println!("{}", &line[at..]);
        }
    }
    true
}

/// What this process is to do for the one that started it; `None` in the process of all tests.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

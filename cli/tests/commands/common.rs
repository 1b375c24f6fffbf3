//! What the tests of the command share: running it, and writing logs for it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

pub const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// `gpumem` with no settings but the ones a test gives.
pub fn gpumem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpumem"));
    test_support::forget_settings(&mut command);
    command
}

pub fn run(command: &mut Command) -> Output {
    command.output().expect("gpumem starts")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8")
}

/// Bad usage or input: exit code 2, nothing on stdout, and a message with all of these parts.
#[track_caller]
pub fn refused(out: &Output, expected: &[&str]) {
    let text = stderr(out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(out.stdout.is_empty(), "something was printed all the same");
    for part in expected {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// The one JSON object on stdout.
#[track_caller]
pub fn json(output: &Output) -> serde_json::Value {
    let text = stdout(output);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("not one JSON object: {e}\n{text}\n{}", stderr(output)))
}

/// A file that lives as long as the directory.
pub fn file(dir: &TempDir, name: &str, contents: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, contents).expect("a scratch file can be written");
    path
}

pub fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(contents).expect("a Vec takes any bytes");
    out.finish().expect("a Vec takes any bytes")
}

/// `gpumem replay --backend host --json ARGS FILE`.
pub fn replay(args: &[&str], path: &Path) -> Output {
    run(gpumem().args(["replay", "--backend", "host", "--json"]).args(args).arg(path))
}

//! Every way an invocation or a log can be wrong: exit code 2, nothing on stdout, and a message
//! that names file, line and field and says what was expected.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, gzip, refused, replay, run, HEADER};
use tempfile::tempdir;

const GOOD: &str = "0,0,allocate,0x1,100,0\n";

/// `lines` after a header and one good line (the bad line is line 3 unless said).
#[track_caller]
fn log_refused(lines: &str, expected: &[&str]) {
    let dir = tempdir().unwrap();
    let path = file(&dir, "bad.csv", format!("{HEADER}{GOOD}{lines}\n").as_bytes());
    let out = replay(&[], &path);
    refused(&out, expected);
    refused(&out, &["bad.csv:"]);
}

#[test]
fn wrong_field_counts() {
    log_refused("0,0,free,0x1,100", &[":3:", "field count", "found 5", "expected 6"]);
    log_refused("0,0,free,0x1,100,0,7", &[":3:", "found 7"]);
    log_refused("0,0,allocate,0x2,5,0\nrubbish", &[":4:", "found 1"]);
}

#[test]
fn bad_numbers() {
    log_refused("0,0,allocate,0x2,12k,0", &[":3:", "field Size", "\"12k\"", "decimal"]);
    log_refused("0,0,allocate,0x2,-1,0", &[":3:", "field Size", "\"-1\""]);
    log_refused("0,0,allocate,0x2,+1,0", &[":3:", "field Size", "\"+1\""]);
    log_refused("0,0,allocate,0x2,,0", &[":3:", "field Size", "\"\""]);
    log_refused("0,0,allocate,0x2,18446744073709551616,0", &[":3:", "field Size", "2^64"]);
    log_refused("0,0,allocate,0x2,18446744073709551615,0", &[":3:", "field Size", "sum of live sizes"]);
    log_refused("0,0,allocate,0xzz,1,0", &[":3:", "field Pointer", "\"0xzz\""]);
    log_refused("0,0,allocate,0x,1,0", &[":3:", "field Pointer", "\"0x\""]);
    log_refused("0,0,allocate,0x11112222333344445,1,0", &[":3:", "field Pointer"]);
    log_refused("0,0,allocate,(nil),1,0", &[":3:", "field Pointer", "not null"]);
    log_refused("0,0,allocate,0x2,1,default", &[":3:", "field Stream", "\"default\""]);
}

#[test]
fn operations_that_cannot_have_happened() {
    log_refused("0,0,free,0x2,100,0", &[":3:", "field Pointer", "\"0x2\"", "earlier line allocated"]);
    log_refused("0,0,free,0x1,100,0\n0,0,free,0x1,100,0", &[":4:", "field Pointer", "\"0x1\""]);
    log_refused("0,0,allocate,0x1,100,0", &[":3:", "field Pointer", "line 2 allocated it"]);
}

#[test]
fn unknown_actions() {
    log_refused("0,0,realloc,0x1,100,0", &[":3:", "field Action", "\"realloc\"", "allocate, free"]);
    log_refused("0,0,,0x1,100,0", &[":3:", "field Action", "\"\""]);
}

#[test]
fn bytes_that_are_not_text() {
    let dir = tempdir().unwrap();
    let path = file(&dir, "bad.csv", &[HEADER.as_bytes(), b"0,0,allocate,\xff\xfe,1,0\n"].concat());
    refused(&replay(&[], &path), &["bad.csv:2:", "field Pointer"]);
}

#[test]
fn files_with_no_log_in_them() {
    let dir = tempdir().unwrap();
    refused(&replay(&[], &file(&dir, "empty.csv", b"")), &["empty.csv", "is empty", "Thread,Time"]);
    refused(&replay(&[], &file(&dir, "empty.csv.gz", b"")), &["empty.csv.gz", "is empty"]);
    refused(&replay(&[], &file(&dir, "packed.csv.gz", &gzip(b""))), &["packed.csv.gz", "is empty"]);
    refused(&replay(&[], &file(&dir, "header.csv", HEADER.as_bytes())), &["header.csv", "no operation"]);
    let wrong = file(&dir, "wrong.csv", GOOD.as_bytes());
    refused(&replay(&[], &wrong), &["wrong.csv:1:", "wrong header", "0,0,allocate,0x1,100,0", "Thread,Time"]);
    let swapped = file(&dir, "swapped.csv", HEADER.replace("Time,Action", "Action,Time").as_bytes());
    refused(&replay(&[], &swapped), &["swapped.csv:1:", "wrong header"]);
    refused(&replay(&[], &dir.path().join("missing.csv")), &["missing.csv", "cannot open"]);
    refused(&replay(&[], dir.path()), &["cannot open", "directory"]);
}

#[test]
fn files_that_are_neither_a_recording_nor_a_snapshot() {
    let dir = tempdir().unwrap();
    for (name, contents, says) in [
        ("empty", &b""[..], "the file is empty"),
        ("words", b"one two", "no JSON"),
        ("named.gz", b"gpumemRC", "the contents are not gzip"),
        ("short", b"gpumemRC", "ends within its first bytes"),
    ] {
        let path = file(&dir, name, contents);
        for command in ["stats", "view"] {
            refused(&run(gpumem().arg(command).arg(&path)), &[name, says]);
        }
    }
}

#[test]
fn damaged_gzip() {
    let dir = tempdir().unwrap();
    // Enough different lines that half the bytes still hold many whole ones.
    let log: String = (0..5000u64).map(|i| format!("0,{i},allocate,{:#x},{},0\n", i + 1, i * 7919 % 100_003)).collect();
    let whole = gzip(format!("{HEADER}{log}").as_bytes());
    let cut = file(&dir, "cut.csv.gz", &whole[..whole.len() / 2]);
    refused(&replay(&[], &cut), &["cut.csv.gz:", "truncated"]);
    let mut damaged = whole.clone();
    let at = damaged.len() - 6; // the checksum of the contents
    damaged[at] ^= 0xff;
    refused(&replay(&[], &file(&dir, "damaged.csv.gz", &damaged)), &["damaged.csv.gz:", "cannot read further"]);
    refused(&replay(&[], &file(&dir, "plain.csv.gz", HEADER.as_bytes())), &["plain.csv.gz", "not gzip"]);
}

#[test]
fn wrong_usage() {
    let dir = tempdir().unwrap();
    let log = file(&dir, "log.csv", format!("{HEADER}{GOOD}").as_bytes());
    refused(&run(gpumem().args(["replay"])), &["FILE"]);
    refused(&run(gpumem().args(["replay", "--backend", "rocm"]).arg(&log)), &["rocm", "host"]);
    refused(&replay(&["--repeat", "0"], &log), &["--repeat", "0"]);
    refused(&replay(&["--device", "99"], &log), &["device 99 was asked for", "GPUMEM_ERROR_NO_DEVICE"]);
    refused(&run(&mut gpumem()), &["Usage"]);
    refused(&run(gpumem().arg("frobnicate")), &["frobnicate"]);
}

#[test]
fn a_setting_that_does_not_parse_is_named() {
    let dir = tempdir().unwrap();
    let log = file(&dir, "log.csv", format!("{HEADER}{GOOD}").as_bytes());
    let out = run(gpumem().env("GPUMEM_LIMIT", "plenty").args(["replay", "--backend", "host"]).arg(&log));
    refused(&out, &["GPUMEM_ERROR_CONFIG", "GPUMEM_LIMIT", "plenty"]);
}

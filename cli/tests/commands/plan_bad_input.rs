//! Every way an invocation of `gpumem plan` or its file can be wrong: exit code 2, nothing on
//! stdout, no file written, and a message that names file, line and column and says what was found
//! and expected.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{file, gpumem, gzip, refused, run};
use std::path::Path;
use std::process::Output;
use tempfile::tempdir;

const HEADER: &str = "id,lower,upper,size\n";
const GOOD: &str = "a,0,9,100\n";

fn plan(path: &Path, args: &[&str]) -> Output {
    run(gpumem().arg("plan").args(args).arg(path))
}

/// A whole file is refused.
#[track_caller]
fn file_refused(contents: &[u8], expected: &[&str]) {
    let dir = tempdir().unwrap();
    let out = dir.path().join("out.csv");
    let result = plan(&file(&dir, "bad.csv", contents), &["--out", out.to_str().unwrap()]);
    refused(&result, expected);
    refused(&result, &["bad.csv:"]);
    assert!(!out.exists(), "no file is written");
}

/// `lines` after a header and one good line (the bad line is line 3 unless said).
#[track_caller]
fn lines_refused(lines: &str, expected: &[&str]) {
    file_refused(format!("{HEADER}{GOOD}{lines}\n").as_bytes(), expected);
}

/// The same with another header.
#[track_caller]
fn with_header_refused(header: &str, line: &str, expected: &[&str]) {
    file_refused(format!("{header}\n{line}\n").as_bytes(), expected);
}

#[test]
fn wrong_headers() {
    with_header_refused(
        "id,lower,upper",
        "a,0,1",
        &[":1:", "no column size", "\"id,lower,upper\"", "lower (or start)"],
    );
    with_header_refused("lower,upper,size", "0,1,5", &[":1:", "no column id"]);
    with_header_refused("id,upper,size", "a,1,5", &[":1:", "no column lower"]);
    with_header_refused("id,start,size", "a,1,5", &[":1:", "no column upper"]);
    with_header_refused("id,lower,upper,size,size", "a,0,1,5,5", &[":1:", "column size is there twice"]);
    with_header_refused("id,lower,upper,size,end", "a,0,1,5,0", &[":1:", "columns upper and end mean the same"]);
    with_header_refused("id,start,lower,upper,size", "a,0,0,1,5", &[":1:", "columns start and lower mean the same"]);
    with_header_refused("\n\na,0,9,100", GOOD, &[":3:", "no column id", "\"a,0,9,100\""]);
}

#[test]
fn wrong_field_counts() {
    lines_refused("b,0,1", &[":3:", "field count", "found 3", "expected 4"]);
    lines_refused("b,0,1,5,6", &[":3:", "found 5"]);
    lines_refused("b,0,1,5\n\n\nrubbish", &[":6:", "found 1"]);
    lines_refused("\"open,0,1,5\nc,0,1,5", &[":3:", "found 1"]);
}

#[test]
fn lines_are_counted_as_an_editor_does() {
    let crlf = format!("{HEADER}{GOOD}\nb,0,1,x\n").replace('\n', "\r\n");
    file_refused(crlf.as_bytes(), &[":4:", "column size"]);
    file_refused(b"\xef\xbb\xbfid,lower,upper,size\rb,0,1,5\rc,0,1,x\r", &[":3:", "column size"]);
    lines_refused("\"two\nlines\",0,1,5\nc,0,1,x", &[":5:", "column size"]);
}

#[test]
fn bad_numbers() {
    lines_refused("b,0,1,12k", &[":3:", "column size", "\"12k\"", "bytes", "decimal digits below 2^64"]);
    lines_refused("b,0,1,-1", &[":3:", "column size", "\"-1\""]);
    lines_refused("b,0,1,+1", &[":3:", "column size", "\"+1\""]);
    lines_refused("b,0,1,1.5", &[":3:", "column size", "\"1.5\""]);
    lines_refused("b,0,1,0x10", &[":3:", "column size", "\"0x10\""]);
    lines_refused("b,0,1,", &[":3:", "column size", "\"\""]);
    lines_refused("b,0,1,18446744073709551616", &[":3:", "column size", "below 2^64"]);
    lines_refused("b,-5,1,1", &[":3:", "column lower", "\"-5\"", "a step"]);
    lines_refused("b,0,x,1", &[":3:", "column upper", "\"x\"", "a step"]);
    lines_refused("b,0,18446744073709551616,1", &[":3:", "column upper"]);
}

#[test]
fn sums_that_pass_every_machine() {
    lines_refused("b,0,1,4611686018427387905", &[":3:", "column size", "2^62"]);
    lines_refused("b,0,1,18446744073709551615", &[":3:", "column size", "2^62"]);
    lines_refused("b,0,1,4611686018427387804\nc,3,4,1", &[":4:", "column size", "2^62", "4611686018427387904"]);
    with_header_refused("id,lower,upper,size,guard", "a,0,1,5,4611686018427387900", &[":2:", "column guard", "2^62"]);
    let line = "a,0,1,5,4611686018427387900";
    with_header_refused("id,lower,upper,size,offset", line, &[":2:", "column offset", "2^62"]);
}

#[test]
fn ranges_that_end_before_they_start() {
    lines_refused("b,5,4,1", &[":3:", "column upper", "\"4\"", "at or after lower, 5"]);
    with_header_refused("id,start,end,size", "a,5,4,1", &[":2:", "column end", "\"4\"", "at or after the first, 5"]);
    let line = "a,5,18446744073709551615,1";
    with_header_refused("id,lower,end,size", line, &[":2:", "column end", "below 2^64 - 1"]);
}

#[test]
fn bad_ids() {
    lines_refused("b,0,1,5\na,3,4,7", &[":4:", "column id", "\"a\"", "line 2 has the same"]);
    lines_refused(",0,1,5", &[":3:", "column id", "\"\""]);
    lines_refused("  ,0,1,5", &[":3:", "column id"]);
    file_refused(&[HEADER.as_bytes(), b"\xff\xfe,0,1,5\n"].concat(), &[":2:", "column id", "UTF-8"]);
}

#[test]
fn bad_alignments_and_offsets() {
    let header = "id,lower,upper,size,alignment,offset,hint";
    for alignment in ["0", "3", "9223372036854775808"] {
        let line = format!("a,0,1,5,{alignment},,");
        with_header_refused(header, &line, &[":2:", "column alignment", &format!("{alignment:?}"), "power of two"]);
    }
    with_header_refused(header, "a,0,1,5,-8,,", &[":2:", "column alignment", "decimal digits"]);
    with_header_refused(header, "a,0,1,5,,x,", &[":2:", "column offset", "\"x\"", "an offset in bytes"]);
    with_header_refused(header, "a,0,1,5,,-1,", &[":2:", "column offset", "\"-1\""]);
    with_header_refused(header, "a,0,1,5,16,24,", &[":2:", "column offset", "\"24\"", "multiple of the alignment, 16"]);
    with_header_refused(header, "a,0,1,5,16,,24", &[":2:", "column hint", "\"24\"", "multiple of the alignment, 16"]);
    with_header_refused(header, "a,0,1,5,,,-2", &[":2:", "column hint", "\"-2\""]);
}

#[test]
fn fixed_offsets_that_contradict_each_other() {
    let header = "id,lower,upper,size,offset,gaps,guard";
    let of = |lines: &str, expected: &[&str]| file_refused(format!("{header}\n{lines}").as_bytes(), expected);
    of("a,0,9,10,0,,\nb,3,5,10,9,,\n", &[":3:", "column offset", "\"9\"", "bytes 0 to 9 of line 2", "step 3"]);
    of("b,3,5,10,9,,\nx,0,1,1,,,\na,0,9,10,0,,\n", &[":4:", "column offset", "\"0\"", "bytes 9 to 18 of line 2"]);
    of("a,0,9,10,5,,\nb,8,12,20,0,,\n", &[":3:", "bytes 5 to 14 of line 2", "step 8"]);
    of("a,0,9,10,0,,6\nb,3,5,10,15,,\n", &[":3:", "bytes 0 to 15 of line 2"]);
    of("a,0,9,10,0,2-4,\nb,2,5,10,0,,\n", &[":3:", "line 2", "step 4"]);
    // One after the other, side by side, in a gap, of no bytes or no steps: all right.
    let fine = "a,0,9,10,0,4-6,\nb,9,12,10,0,,\nc,0,9,10,10,,\nd,4,6,10,0,,\ne,0,9,0,5,,\nf,3,3,10,5,,\n";
    let dir = tempdir().unwrap();
    let out = plan(&file(&dir, "fine.csv", format!("{header}\n{fine}").as_bytes()), &[]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn bad_gaps() {
    let header = "id,lower,upper,size,gaps";
    let of = |gaps: &str, expected: &[&str]| {
        with_header_refused(header, &format!("a,10,20,5,{gaps}"), &[&[":2:", "column gaps", gaps], expected].concat());
    };
    of("12", &["7-9"]);
    of("12-14-16", &["7-9"]);
    of("12-x", &["\"12-x\" is none"]);
    of("-5-14", &["7-9"]);
    of("14-12", &["at least one step", "\"14-12\""]);
    of("12-12", &["at least one step"]);
    of("12-15 14-16", &["apart", "steps, 10-20"]);
    of("8-12", &["inside"]);
    of("18-21", &["inside"]);
    of("12-14@0:2", &["windows"]);
    with_header_refused(
        "id,lower,end,size,gaps",
        "a,0,5,8,3-7",
        &["column gaps", "3-7", "inside the buffer's steps, 0-5"],
    );
    with_header_refused(
        "id,lower,end,size,gaps",
        "a,10,20,5,12-18446744073709551615",
        &["column gaps", "at least one step"],
    );
}

#[test]
fn files_with_no_buffers_in_them() {
    let dir = tempdir().unwrap();
    let of =
        |name: &str, contents: &[u8], expected: &[&str]| refused(&plan(&file(&dir, name, contents), &[]), expected);
    of("empty.csv", b"", &["empty.csv", "is empty", "lower (or start)"]);
    of("blank.csv", b"\n\r\n  \n", &["blank.csv", "is empty"]);
    of("empty.csv.gz", b"", &["empty.csv.gz", "is empty"]);
    of("packed.csv.gz", &gzip(b""), &["packed.csv.gz", "is empty"]);
    of("plain.csv.gz", HEADER.as_bytes(), &["plain.csv.gz", "not gzip"]);
    of("binary.csv", &[0u8; 4096], &["binary.csv:1:", "no column id"]);
    refused(&plan(&dir.path().join("missing.csv"), &[]), &["missing.csv", "cannot open"]);
    refused(&plan(dir.path(), &[]), &["cannot open", "directory"]);
    // Endless and without lines: not read whole.
    refused(&plan(Path::new("/dev/zero"), &[]), &["/dev/zero", "1048576 bytes"]);
}

#[test]
fn damaged_gzip() {
    let dir = tempdir().unwrap();
    let lines: String = (0..5000u64).map(|i| format!("b{i},{i},{},{}\n", i + 3, i * 7919 % 100_003)).collect();
    let whole = gzip(format!("{HEADER}{lines}").as_bytes());
    let cut = file(&dir, "cut.csv.gz", &whole[..whole.len() / 2]);
    refused(&plan(&cut, &[]), &["cut.csv.gz:", "truncated"]);
    let mut damaged = whole.clone();
    let at = damaged.len() - 6; // the checksum of the contents
    damaged[at] ^= 0xff;
    refused(&plan(&file(&dir, "damaged.csv.gz", &damaged), &[]), &["damaged.csv.gz:", "cannot read further"]);
}

#[test]
fn long_fields_are_not_repeated_whole() {
    let dir = tempdir().unwrap();
    let line = format!("{HEADER}{},0,1,{}\n", "n".repeat(100_000), "9".repeat(100_000));
    let out = plan(&file(&dir, "long.csv", line.as_bytes()), &[]);
    refused(&out, &["long.csv:2:", "column size", "999"]);
    assert!(out.stderr.len() < 400, "{} bytes", out.stderr.len());
}

#[test]
fn wrong_usage() {
    let dir = tempdir().unwrap();
    let good = file(&dir, "good.csv", format!("{HEADER}{GOOD}").as_bytes());
    refused(&run(gpumem().arg("plan")), &["FILE"]);
    refused(&plan(&good, &["--capacity", "lots"]), &["--capacity", "lots", "512M"]);
    refused(&plan(&good, &["--capacity", "-1"]), &["-1"]);
    for time in ["0", "-1", "nan", "soon", "inf", "1e300"] {
        refused(&plan(&good, &[&format!("--time-limit={time}")]), &["--time-limit", time, "above 0 and below 2^64"]);
    }
    refused(&plan(&good, &["--threads", "0"]), &["--threads", "0"]);
    refused(&plan(&good, &["--fast", "--time-limit", "1"]), &["--fast", "--time-limit"]);
    refused(&plan(&good, &["--json", "--report"]), &["--json", "--report"]);
    refused(&plan(&good, &["--json", "--out", "-"]), &["--out -", "--json", "standard output"]);
    refused(&plan(&good, &["--svg", "-", "--out", "-"]), &["--out -", "--svg -"]);
    refused(&plan(&good, &["--svg", "-", "--report"]), &["--svg -", "--report"]);
    let twice = good.to_str().unwrap();
    refused(&plan(&good, &["--svg", twice, "--out", twice]), &["good.csv", "--out and --svg"]);
    refused(&plan(&good, &["--out", dir.path().to_str().unwrap()]), &["cannot write", "directory"]);
    let nowhere = dir.path().join("no/such/place.csv");
    refused(
        &plan(&good, &["--out", nowhere.to_str().unwrap()]),
        &["place.csv: cannot write: No such file or directory (os error 2)\n"],
    );
}

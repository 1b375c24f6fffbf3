//! The trace in the repository is what its generator writes, and replays.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{json, replay, stderr};
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

fn traces() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/traces")
}

#[test]
fn the_generator_still_gives_the_committed_log() {
    let run = Command::new("python3").arg(traces().join("make_training_trace.py")).arg("-").output();
    let Ok(generated) = run else {
        println!("skipped: comparing the trace with its generator: python3 is not installed");
        return;
    };
    assert!(generated.status.success(), "{}", stderr(&generated));
    let mut committed = Vec::new();
    let file = std::fs::File::open(traces().join("training.csv.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_end(&mut committed).unwrap();
    assert!(committed == generated.stdout, "run examples/traces/make_training_trace.py and commit what it writes");
}

#[test]
fn the_log_replays_without_a_failure() {
    let out = replay(&[], &traces().join("training.csv.gz"));
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let r = json(&out);
    assert_eq!((&r["ops"], &r["failures"], &r["streams"]), (&9345.into(), &0.into(), &2.into()));
    assert_eq!(r["peak_live_bytes"], 2_115_770_564u64);
}

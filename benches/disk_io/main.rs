//! The disk tier next to plain direct I/O: `cargo bench --bench disk_io -- [DIR]`; with `--sweep`, engines, block sizes and
//! depths on bare files. `DIR` is where files are made (default: the current directory).

mod store;
mod sweep;

use std::path::PathBuf;

type Failure = Box<dyn std::error::Error>;

/// Bytes written and read per measurement.
const TOTAL: u64 = 256 << 20;
const ROUNDS: usize = 3;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.iter().find(|a| !a.starts_with("--")).map_or(PathBuf::from("."), PathBuf::from);
    if args.iter().any(|a| a == "--sweep") {
        return sweep::run(&dir, TOTAL, ROUNDS);
    }
    store::run(&dir, TOTAL, 2 * ROUNDS - 1)
}

/// MB/s.
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

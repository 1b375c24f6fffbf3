//! The disk tier next to plain direct I/O: `cargo bench -p gpumem-bench --bench disk_io -- [DIR]`; with `--sweep`,
//! engines, block sizes and depths on bare files. `DIR` is where files are made (default: the current directory);
//! `--mib=N` is what is written and read at a time (default: 256).

mod store;
mod sweep;

use std::path::PathBuf;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 3;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.iter().find(|a| !a.starts_with("--")).map_or(PathBuf::from("."), PathBuf::from);
    // A multiple of all blocks and slots.
    let mib: u64 = args.iter().find_map(|a| a.strip_prefix("--mib=")).map_or(Ok(256), str::parse)?;
    let total = mib.max(1).next_multiple_of(16) << 20;
    if args.iter().any(|a| a == "--sweep") {
        return sweep::run(&dir, total, ROUNDS);
    }
    store::run(&dir, total, 2 * ROUNDS - 1)
}

/// MB/s.
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

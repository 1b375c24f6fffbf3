//! The disk tier next to plain direct I/O: `cargo bench -p gpumem-bench --bench disk_io -- [DIR]`;
//! with `--sweep`, engines, block sizes and depths on bare files. `DIR` is where a folder for the
//! files is made, which goes at the end (default: cargo's target folder); `--mib=N` is what is
//! written and read at a time (default: 256).

mod store;
mod sweep;

type Failure = Box<dyn std::error::Error>;

const ROUNDS: usize = 3;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parent = args.iter().find(|a| !a.starts_with("--")).map_or(env!("CARGO_TARGET_TMPDIR"), String::as_str);
    let dir = tempfile::tempdir_in(parent)?;
    // A multiple of all blocks and slots.
    let mib: u64 = args.iter().find_map(|a| a.strip_prefix("--mib=")).map_or(Ok(256), str::parse)?;
    let total = mib.max(1).next_multiple_of(16) << 20;
    if args.iter().any(|a| a == "--sweep") {
        return sweep::run(dir.path(), total, ROUNDS);
    }
    store::run(dir.path(), total, 2 * ROUNDS - 1)
}

/// MB/s.
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

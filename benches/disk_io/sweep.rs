//! Every block size and number of requests in flight, on bare files.

use super::{median, rate, Failure};
use gpumem::driver::disk::{Buffer, Completion, Direction, Disk, IoRequest, OsDisk};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Writes or reads a whole file through a lane, `depth` requests at a time. Seconds.
pub fn through_lane(
    disk: &OsDisk,
    file: &Arc<File>,
    direction: Direction,
    total: u64,
    block: u64,
    depth: usize,
) -> Result<f64, Failure> {
    let mut idle = (0..depth).map(|_| Buffer::new(block)).collect::<Result<Vec<_>, _>>()?;
    for (i, buffer) in idle.iter_mut().enumerate() {
        buffer.bytes_mut().fill(i as u8 + 1);
    }
    let mut lane = disk.lane()?;
    let mut done: Vec<Completion> = Vec::new();
    let start = Instant::now();
    let mut at = 0;
    while at < total || lane.in_flight() > 0 {
        match idle.pop() {
            Some(buffer) if at < total => {
                let request =
                    IoRequest { direction, file: file.clone(), at, buffer, range: 0..block as usize, tag: at / block };
                lane.submit(request).map_err(|_| "refused")?;
                at += block;
            }
            other => {
                idle.extend(other);
                lane.wait(&mut done)?;
                for completion in done.drain(..) {
                    if completion.result? as u64 != block {
                        return Err("short".into());
                    }
                    idle.push(completion.request.buffer);
                }
            }
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Prints a table.
pub fn run(dir: &Path, total: u64, rounds: usize) -> Result<(), Failure> {
    println!("MB/s, {} MiB, median of {rounds}, O_DIRECT, file allocated beforehand", total >> 20);
    println!("{:>8} {:>6} {:>8} {:>8}", "block", "depth", "write", "read");
    let path = dir.join("gpumem-bench-sweep");
    for block in [64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        for depth in [1, 2, 4, 8, 16] {
            let disk = OsDisk::with_threads(depth);
            let (mut writes, mut reads) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let file = disk.create(&path, true)?;
                disk.remove(&path)?;
                disk.allocate(&file, total)?;
                let file = Arc::new(file);
                writes.push(through_lane(&disk, &file, Direction::Write, total, block, depth)?);
                reads.push(through_lane(&disk, &file, Direction::Read, total, block, depth)?);
            }
            let (write, read) = (rate(total, median(&mut writes)), rate(total, median(&mut reads)));
            println!("{:>6}K {depth:>6} {write:>8.0} {read:>8.0}", block >> 10);
        }
    }
    Ok(())
}

//! The store next to bare files, in turns.

use super::sweep::through_lane;
use super::{median, rate, Failure};
use gpumem::driver::disk::{Buffer, Direction, Disk, OsDisk};
use gpumem::tier::disk::{After, Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Seconds of a write and of a read.
type Pair = (f64, f64);

/// Chunks of the stores measured, bytes.
const CHUNKS: [u64; 4] = [256 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Buffers of each, of which the store has at most 8 in flight.
const BUFFERS: [u64; 5] = [4, 8, 16, 32, 64];
/// No more than this in all, bytes.
const MOST: u64 = 32 << 20;

/// What is measured: its name, whether it is a bare file, seconds of each round's write and read.
type Row = (String, bool, Vec<f64>, Vec<f64>);

/// A file made beforehand, blocks of `block` bytes, `depth` at a time. Depth 1 without `allocated`
/// is what `dd` does.
fn bare(disk: &OsDisk, path: &Path, total: u64, block: u64, depth: usize, allocated: bool) -> Result<Pair, Failure> {
    let start = Instant::now();
    let file = disk.create(path, true)?;
    disk.remove(path)?;
    if allocated {
        disk.allocate(&file, total)?;
    }
    let (file, made) = (Arc::new(file), start.elapsed().as_secs_f64());
    let write = made + through_lane(disk, &file, Direction::Write, total, block, depth)?;
    Ok((write, through_lane(disk, &file, Direction::Read, total, block, depth)?))
}

/// The same bytes as slots of `bytes` each, from making the file to its end.
fn slots(store: &Store, total: u64, bytes: u64, buffers: &mut Vec<Buffer>) -> Result<Pair, Failure> {
    let start = Instant::now();
    let slots =
        (0..total / bytes).map(|_| store.write(bytes, buffers, |_, _| Ok(()))).collect::<Result<Vec<_>, _>>()?;
    let write = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for &slot in &slots {
        store.read(slot, After::Keep, buffers, |_, _| Ok(()))?;
    }
    let read = start.elapsed().as_secs_f64();
    slots.into_iter().try_for_each(|slot| store.remove(slot))?;
    // Nobody else is to share the disk with what is given back.
    store.settle();
    Ok((write, read))
}

/// Prints both, and the store's share of the best bare ones.
pub fn run(dir: &Path, total: u64, rounds: usize) -> Result<(), Failure> {
    let disk = Arc::new(OsDisk::default());
    let blocking = OsDisk::with_threads(1);
    let open = |disk: &Arc<OsDisk>, chunk_bytes| {
        Store::open_on(disk.clone(), dir, &StoreOptions { chunk_bytes, ..StoreOptions::default() })
    };
    let mut stores = Vec::new();
    for chunk in CHUNKS {
        stores.push(open(&disk, chunk)?);
    }
    let store = &stores[1];
    println!("{}\n{} MiB, medians of {rounds} rounds in turns", store.describe(), total >> 20);
    let path = dir.join("gpumem-bench-bare");
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..rounds {
        let mut at = 0;
        let mut row = |name: String, bare: bool, (write, read): Pair| {
            if round == 0 {
                rows.push((name, bare, Vec::new(), Vec::new()));
            }
            rows[at].2.push(write);
            rows[at].3.push(read);
            at += 1;
        };
        for (block, depth) in
            [(512u64 << 10, 4), (512 << 10, 8), (1 << 20, 4), (1 << 20, 8), (4 << 20, 2), (4 << 20, 4)]
        {
            let name = format!("bare, {} KiB x {depth}", block >> 10);
            row(name, true, bare(&disk, &path, total, block, depth, true)?);
        }
        for block in [1u64 << 20, 4 << 20, 8 << 20] {
            row(format!("like dd, {} MiB", block >> 20), true, bare(&blocking, &path, total, block, 1, false)?);
        }
        for store in &stores {
            let chunk = store.chunk_bytes();
            for count in BUFFERS.into_iter().filter(|&count| count * chunk <= MOST) {
                let mut buffers = (0..count).map(|_| Buffer::new(chunk)).collect::<Result<Vec<_>, _>>()?;
                let name = format!("slot, {} KiB x {count}", chunk >> 10);
                row(name, false, slots(store, total, total, &mut buffers)?);
            }
        }
        let mut buffers = (0..32).map(|_| Buffer::new(512 << 10)).collect::<Result<Vec<_>, _>>()?;
        row("slots of 16 MiB, 512 KiB x 32".into(), false, slots(store, total, 16 << 20, &mut buffers)?);
    }
    let best = |of: fn(&Row) -> &Vec<f64>| {
        rows.iter().filter(|r| r.1).map(|r| median(&mut of(r).clone())).fold(f64::MAX, f64::min)
    };
    let (write, read) = (best(|r| &r.2), best(|r| &r.3));
    println!("{:<30} {:>10} {:>6} {:>10} {:>6}", "", "write MB/s", "", "read MB/s", "");
    for (name, _, writes, reads) in &mut rows {
        let (w, r) = (median(writes), median(reads));
        let share = |best: f64, mine: f64| format!("{:.2}", best / mine);
        println!(
            "{name:<30} {:>10.0} {:>6} {:>10.0} {:>6}",
            rate(total, w),
            share(write, w),
            rate(total, r),
            share(read, r)
        );
    }
    small(store)
}

/// What small slots cost, one after the other.
fn small(store: &Store) -> Result<(), Failure> {
    println!("{:<30} {:>10} {:>10} {:>10}", "small slots, µs each", "write", "read", "remove");
    for bytes in [1u64, 64 << 10, 1 << 20] {
        let mut buffers = vec![Buffer::new(1 << 20)?];
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..200 {
            let mut lap = Instant::now();
            let mut next = |of: &mut Vec<f64>| {
                of.push(lap.elapsed().as_secs_f64() * 1e6);
                lap = Instant::now();
            };
            let slot = store.write(bytes, &mut buffers, |_, _| Ok(()))?;
            next(&mut times[0]);
            store.read(slot, After::Keep, &mut buffers, |_, _| Ok(()))?;
            next(&mut times[1]);
            store.remove(slot)?;
            next(&mut times[2]);
        }
        let [write, read, remove] = times.map(|mut t| median(&mut t));
        println!("{:<30} {write:>10.0} {read:>10.0} {remove:>10.0}", gpumem::base::size::human(bytes));
    }
    Ok(())
}

//! `hot`: malloc and free of one size on one stream, over and over. `live`: malloc and free among
//! many other live blocks.

use super::measure::{us_each, Times};
use super::report::Measurement;
use super::script::{Builder, Player, Random};
use super::target::{free, malloc};
use super::workbench::Bench;
use gpumem::base::size::{self, GIB, KIB, MIB};
use gpumem::base::{Result, StreamHandle};
use std::time::{Duration, Instant};

const SIZES: [u64; 7] = [256, 4 * KIB, 64 * KIB, MIB, 2 * MIB, 64 * MIB, GIB];

/// Pairs in a loop, and how long a slow loop may go on.
const LOOP_PAIRS: usize = 200_000;
const LOOP_TIME: Duration = Duration::from_millis(250);
/// Pairs between two looks at the clock.
const BATCH: usize = 1_000;
/// Pairs whose calls are timed one by one.
const SINGLE_PAIRS: usize = 5_000;
/// Untimed pairs before each measurement.
const WARM_UP: usize = 50;

/// How many other blocks live, and log2 of their sizes: 37 KiB on average.
const LIVE: [usize; 3] = [1_000, 10_000, 100_000];
const LIVE_LOG: (f64, f64) = (8.0, 18.0);
const LIVE_SEED: u64 = 3;
/// One in this many is freed before the measurement, so that free blocks lie between live ones.
const LIVE_HOLES: usize = 5;

/// Every size.
pub fn run(b: &mut Bench) -> Result<()> {
    for bytes in SIZES {
        if bytes > b.target.budget() {
            b.scaled(format!("hot: {} left out; there is {} to use", case(bytes), size::human(b.target.budget())));
            continue;
        }
        b.step(&format!("hot pairs of {}", case(bytes)));
        let m = pairs(b, "hot", case(bytes), bytes)?;
        b.add(m);
    }
    Ok(())
}

/// Pairs of two sizes among ever more live blocks.
pub fn run_live(b: &mut Bench) -> Result<()> {
    let (low, high) = LIVE_LOG;
    let stream = [b.target.stream()];
    let most = b.ops_or(usize::MAX);
    let mut before = 0;
    for blocks in LIVE.map(|n| n.min(most)) {
        if blocks == before {
            break;
        }
        before = blocks;
        b.step(&format!("hot pairs among {blocks} live blocks"));
        let (mut random, mut script) = (Random::new(LIVE_SEED), Builder::default());
        for _ in 0..blocks + blocks / (LIVE_HOLES - 1) {
            script.allocate(random.size(low, high), 0);
        }
        // From the end, as the last block takes the number of the freed one.
        for k in (0..script.live()).rev().filter(|k| k % LIVE_HOLES == 0) {
            script.free(k, 0);
        }
        let script = script.finish();
        if script.peak_live > b.target.budget() {
            let budget = size::human(b.target.budget());
            b.scaled(format!("live: {blocks} blocks left out; there is {budget} to use"));
            continue;
        }
        let mut player = Player::new(&script, &stream);
        player.timed()?;
        for bytes in [4 * KIB, 2 * MIB] {
            let m = pairs(b, "live", format!("{blocks} live, {}", case(bytes)), bytes)?;
            b.add(m);
        }
        player.free_the_rest()?;
    }
    Ok(())
}

/// Pairs of one size: a loop for the mean, then single calls for the other figures.
pub(super) fn pairs(b: &Bench, workload: &str, case: String, bytes: u64) -> Result<Measurement> {
    let stream = b.target.stream();
    (0..WARM_UP).try_for_each(|_| pair(bytes, stream))?;
    let wanted = b.ops_or(LOOP_PAIRS);
    let (mut done, mut time) = (0, Duration::ZERO);
    let calls = b.target.calls();
    while done < wanted && time < LOOP_TIME {
        let batch = BATCH.min(wanted - done);
        time += batch_of(batch, bytes, stream)?;
        done += batch;
    }
    let calls = b.target.calls_since(&calls);
    let singles = b.ops_or(SINGLE_PAIRS).min(SINGLE_PAIRS);
    let (mallocs, frees) = single_pairs(singles, bytes, stream)?;
    let (mallocs, frees) = (mallocs.sorted(), frees.sorted());
    Ok(Measurement::new(workload, case, 2 * done as u64, calls)
        .with("pair mean", us_each(time, done as u64), "us")
        .with("malloc p50", mallocs.quantile_us(0.5, &b.clock), "us")
        .with("malloc p99", mallocs.quantile_us(0.99, &b.clock), "us")
        .with("free p50", frees.quantile_us(0.5, &b.clock), "us")
        .with("free p99", frees.quantile_us(0.99, &b.clock), "us"))
}

#[inline(never)]
fn batch_of(pairs: usize, bytes: u64, stream: StreamHandle) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..pairs {
        pair(bytes, stream)?;
    }
    Ok(start.elapsed())
}

#[inline(never)]
fn single_pairs(pairs: usize, bytes: u64, stream: StreamHandle) -> Result<(Times, Times)> {
    let (mut mallocs, mut frees) = (Times::with_capacity(pairs), Times::with_capacity(pairs));
    for _ in 0..pairs {
        let start = Instant::now();
        let ptr = malloc(bytes, stream)?;
        let between = Instant::now();
        free(ptr, stream)?;
        frees.push(between.elapsed());
        mallocs.push(between - start);
    }
    Ok((mallocs, frees))
}

#[inline(always)]
fn pair(bytes: u64, stream: StreamHandle) -> Result<()> {
    free(malloc(bytes, stream)?, stream)
}

/// A power of two as people write it.
fn case(bytes: u64) -> String {
    match bytes {
        n if n >= GIB => format!("{} GiB", n / GIB),
        n if n >= MIB => format!("{} MiB", n / MIB),
        n if n >= KIB => format!("{} KiB", n / KIB),
        n => format!("{n} B"),
    }
}

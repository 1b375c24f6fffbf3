//! `threads`: several threads with a stream each. `threads_one_stream`: several threads, all on one
//! stream.

use super::measure::median;
use super::report::Measurement;
use super::script::{Builder, Player, Random, Script};
use super::workbench::Bench;
use gpumem::base::size::{self, MIB};
use gpumem::base::{DeviceId, Error, Result, StreamHandle};
use gpumem::context::Context;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::sync::{Barrier, OnceLock};
use std::time::Instant;

const THREADS: [usize; 3] = [1, 4, 16];
/// Allocations of each thread in one round.
const ALLOCATIONS: usize = 20_000;
/// log2 of the sizes: 256 bytes to 16 MiB.
const LOG: (f64, f64) = (8.0, 24.0);
/// Blocks each thread keeps.
const KEPT: usize = 16;
/// Rounds timed; the median counts. Before them, the scripts play once to fill the pool.
const ROUNDS: usize = 5;
/// Seconds of a round. Each thread repeats its script until then, so that all work throughout.
const ROUND: f64 = 0.1;

/// A stream for each thread.
pub fn run(b: &mut Bench) -> Result<()> {
    measure(b, "threads", false)
}

/// One stream for all.
pub fn run_one_stream(b: &mut Bench) -> Result<()> {
    measure(b, "threads_one_stream", true)
}

fn measure(b: &mut Bench, workload: &str, one_stream: bool) -> Result<()> {
    let (low, mut high) = LOG;
    let most = THREADS.into_iter().max().unwrap_or(1) as u64 * (KEPT as u64 + 1);
    let largest = b.target.budget() / most;
    if largest < 16 * MIB {
        high = (largest as f64).log2().max(low);
        b.scaled(format!("{workload}: blocks of at most {} in place of 16 MiB", size::human(largest)));
    }
    let mut streams = vec![b.target.stream()];
    for threads in THREADS {
        while !one_stream && streams.len() < threads {
            streams.push(b.target.new_stream()?);
        }
        b.step(&format!("{workload}, {threads}"));
        let ops = b.ops_or(ALLOCATIONS);
        let scripts: Vec<_> = (0..threads).map(|t| script(t as u64, ops, low, high)).collect();
        // With `--ops`, threads do no more than that.
        let round = if b.ops.is_some() { 0.0 } else { ROUND };
        let calls = b.target.calls();
        let shares = play_rounds(b.target.ctx(), b.target.device(), &scripts, &streams, round)?;
        let calls = b.target.calls_since(&calls);
        let rates: Vec<f64> = (0..ROUNDS).map(|r| shares.iter().map(|of| of.rate(r)).sum::<f64>() / 1e6).collect();
        let done = shares.iter().map(|of| of.done).sum();
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let case = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
        // The calls are those of all plays, the first one included.
        let m = Measurement::new(workload, case, done, calls).with("rate", median(rates), "Mops/s").with(
            "slowest round",
            slowest,
            "Mops/s",
        );
        b.add(m);
    }
    Ok(())
}

/// One thread's script for a round, which begins and ends with nothing live.
fn script(seed: u64, allocations: usize, low: f64, high: f64) -> Script {
    let (mut random, mut script) = (Random::new(seed), Builder::default());
    for _ in 0..allocations {
        script.allocate(random.size(low, high), 0);
        if script.live() > KEPT {
            script.free(random.below(script.live()), 0);
        }
    }
    script.free_all(0);
    script.finish()
}

/// The work that one thread did.
struct Share {
    /// Operations in all.
    done: u64,
    /// Operations and seconds of each round.
    rounds: Vec<(u64, f64)>,
}

impl Share {
    /// Operations a second.
    fn rate(&self, round: usize) -> f64 {
        self.rounds.get(round).map_or(0.0, |&(done, seconds)| done as f64 / seconds)
    }
}

/// The start of rounds, which threads wait for.
struct Start {
    barrier: Barrier,
    /// How many times a thread has been awake for a round.
    awake: AtomicUsize,
    threads: usize,
    /// The start time of each round that has started.
    started: [OnceLock<Instant>; ROUNDS],
}

impl Start {
    /// Waits for all threads: asleep until the slowest arrives, then awake until the last wakes up.
    /// Returns the start of the round.
    fn wait(&self, round: usize) -> Instant {
        self.barrier.wait();
        let last = self.awake.fetch_add(1, AcqRel) + 1 == self.threads * (round + 1);
        let Some(started) = self.started.get(round) else { return Instant::now() };
        if last {
            return *started.get_or_init(Instant::now);
        }
        loop {
            match started.get() {
                Some(start) => return *start,
                // A thread that is awake leaves its processor to others that are not.
                None => std::thread::yield_now(),
            }
        }
    }
}

/// The work of each thread in rounds of `round` seconds.
fn play_rounds(
    ctx: &Context,
    device: DeviceId,
    scripts: &[Script],
    streams: &[StreamHandle],
    seconds: f64,
) -> Result<Vec<Share>> {
    let threads = scripts.len();
    let start = Start {
        barrier: Barrier::new(threads),
        awake: AtomicUsize::new(0),
        threads,
        started: [const { OnceLock::new() }; ROUNDS],
    };
    let shares = std::thread::scope(|scope| {
        let threads: Vec<_> = scripts
            .iter()
            .enumerate()
            .map(|(t, script)| {
                let (start, stream) = (&start, streams.get(t).or(streams.first()).copied());
                let place = (ctx, device, stream.unwrap_or_default());
                scope.spawn(move || one_thread(place, script, start, seconds))
            })
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Share>>| {
            t.join().unwrap_or_else(|_| Err(Error::internal("a thread of the benchmark panicked")))
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    shares.into_iter().collect()
}

/// One thread's rounds. It comes to the start of each, also after an error: the others wait there.
fn one_thread(
    (ctx, device, stream): (&Context, DeviceId, StreamHandle),
    script: &Script,
    start: &Start,
    seconds: f64,
) -> Result<Share> {
    let streams = [stream];
    let mut player = Player::new(script, &streams);
    let ops = script.ops.len() as u64;
    let mut share = Share { done: ops, rounds: Vec::with_capacity(ROUNDS) };
    let mut so_far = ctx.driver().set_current_device(device).and_then(|()| player.timed().map(|_| ()));
    for round in 0..ROUNDS {
        let start = start.wait(round);
        let (mut done, mut took) = (0, 0.0);
        while so_far.is_ok() && (done == 0 || took < seconds) {
            so_far = player.timed().map(|_| ());
            (done, took) = (done + ops, start.elapsed().as_secs_f64());
        }
        share.done += done;
        share.rounds.push((done, took));
    }
    so_far.map(|()| share)
}

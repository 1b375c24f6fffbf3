//! `threads`: several threads with a stream each. `threads_one_stream`: the same threads, all on one stream.

use super::measure::median;
use super::report::Measurement;
use super::script::{Builder, Player, Random, Script};
use super::Bench;
use gpumem::base::size::{self, MIB};
use gpumem::base::{DeviceId, Error, Result, StreamHandle};
use gpumem::context::Context;
use std::sync::Barrier;
use std::time::Instant;

const THREADS: [usize; 3] = [1, 4, 16];
/// Allocations of each thread in one round.
const ALLOCATIONS: usize = 20_000;
/// log2 of the sizes: 256 bytes to 16 MiB.
const LOG: (f64, f64) = (8.0, 24.0);
/// Blocks each thread keeps.
const KEPT: usize = 16;
/// Rounds timed; the median counts. One play of the scripts before them fills the pool, and another one says how many make a round.
const ROUNDS: usize = 5;
/// How often a thread plays its script in a round, at most.
const MOST_PLAYS: u64 = 1000;
/// Seconds of a round: shorter ones would measure how threads start.
const ROUND: f64 = 0.05;

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
        let done: u64 = scripts.iter().map(|s| s.ops.len() as u64).sum();
        let play = |rounds, plays| play_rounds(b.target.ctx(), b.target.device(), &scripts, &streams, rounds, plays);
        // Who says how many operations there are to be wants no more.
        let plays = match b.ops {
            Some(_) => 1,
            None => play(1, 1)?.first().map_or(1, |seconds| (ROUND / seconds) as u64).clamp(1, MOST_PLAYS),
        };
        let calls = b.target.calls();
        let rounds = play(ROUNDS, plays)?;
        let calls = b.target.calls_since(&calls);
        let rates: Vec<f64> = rounds.iter().map(|seconds| (done * plays) as f64 / seconds / 1e6).collect();
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let case = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
        // The calls are those of all plays, the first one included.
        let m = Measurement::new(workload, case, done * (ROUNDS as u64 * plays + 1), calls)
            .with("rate", median(rates), "Mops/s")
            .with("slowest round", slowest, "Mops/s");
        b.add(m);
    }
    Ok(())
}

/// What one thread does in a round: it begins and ends with nothing live.
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

/// Seconds of each round of so many plays, from the first thread's start to the last one's end.
fn play_rounds(
    ctx: &Context,
    device: DeviceId,
    scripts: &[Script],
    streams: &[StreamHandle],
    rounds: usize,
    plays: u64,
) -> Result<Vec<f64>> {
    let barrier = Barrier::new(scripts.len());
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = scripts
            .iter()
            .enumerate()
            .map(|(t, script)| {
                let (barrier, stream) = (&barrier, streams.get(t).or(streams.first()).copied());
                let place = (ctx, device, stream.unwrap_or_default());
                scope.spawn(move || one_thread(place, script, barrier, rounds, plays))
            })
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<Vec<(Instant, Instant)>>>| {
            t.join().unwrap_or_else(|_| Err(Error::internal("a thread of the benchmark panicked")))
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    let times = times.into_iter().collect::<Result<Vec<_>>>()?;
    let round = |r: usize| {
        let of_round = || times.iter().filter_map(|t| t.get(r));
        let (start, end) = (of_round().map(|t| t.0).min()?, of_round().map(|t| t.1).max()?);
        Some((end - start).as_secs_f64())
    };
    Ok((0..rounds).filter_map(round).collect())
}

/// One thread's rounds. It comes to every barrier, also after an error: the others wait there.
fn one_thread(
    (ctx, device, stream): (&Context, DeviceId, StreamHandle),
    script: &Script,
    barrier: &Barrier,
    rounds: usize,
    plays: u64,
) -> Result<Vec<(Instant, Instant)>> {
    let streams = [stream];
    let mut player = Player::new(script, &streams);
    let mut times = Vec::with_capacity(rounds);
    let mut so_far = ctx.driver().set_current_device(device).and_then(|()| player.timed().map(|_| ()));
    for _ in 0..rounds {
        barrier.wait();
        if so_far.is_ok() {
            let start = Instant::now();
            so_far = (0..plays).try_for_each(|_| player.timed().map(|_| ()));
            times.push((start, Instant::now()));
        }
    }
    so_far.map(|()| times)
}

//! `arena`: the cost of a malloc and free pair with no arena open, with one current, and with one
//! that only another thread is in; and the cost of leaving an arena, by how much it frees.

use super::hot::pairs;
use super::measure::us_each;
use super::report::Measurement;
use super::script::Random;
use super::target::malloc;
use super::workbench::Bench;
use gpumem::base::size::{KIB, MIB};
use gpumem::base::{Error, Result};
use std::sync::Barrier;
use std::time::Instant;

/// Sizes of the pairs.
const SIZES: [(u64, &str); 2] = [(4 * KIB, "4 KiB"), (2 * MIB, "2 MiB")];

/// How many allocations an exit frees, and log2 of their sizes in the mixed case.
const EXIT: usize = 100_000;
const EXIT_LOG: (f64, f64) = (8.0, 18.0);
const EXIT_SEED: u64 = 11;
/// Exits of each kind; the first runs cold.
const ROUNDS: usize = 3;

/// Every case.
pub fn run(b: &mut Bench) -> Result<()> {
    let ctx = b.target.ctx();
    for (bytes, size) in SIZES {
        let m = pairs(b, "arena", format!("no arena, {size}"), bytes)?;
        b.add(m);
        let arena = ctx.arena_enter("bench")?;
        let m = pairs(b, "arena", format!("in an arena, {size}"), bytes)?;
        b.add(m);
        ctx.arena_exit(&arena, &[])?;
        let m = beside_another(b, bytes, size)?;
        b.add(m);
    }
    let most = b.ops_or(EXIT).min(EXIT);
    for (case, log) in [("4 KiB each", (12.0, 12.0)), ("256 B to 256 KiB", EXIT_LOG)] {
        b.step(&format!("exit of {most} allocations, {case}"));
        for round in 1..=ROUNDS {
            let m = exit(b, most, format!("exit {most}, {case}, {round}."), log)?;
            b.add(m);
        }
    }
    Ok(())
}

/// Pairs on this thread while another one is in an arena.
fn beside_another(b: &Bench, bytes: u64, size: &str) -> Result<Measurement> {
    let (ctx, gate) = (b.target.ctx(), Barrier::new(2));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let arena = ctx.arena_enter("elsewhere");
            gate.wait();
            gate.wait();
            arena.and_then(|a| ctx.arena_exit(&a, &[]))
        });
        gate.wait();
        let m = pairs(b, "arena", format!("another thread in one, {size}"), bytes);
        gate.wait();
        other.join().map_err(|_| Error::internal("the other thread panicked"))??;
        m
    })
}

fn exit(b: &Bench, count: usize, case: String, log: (f64, f64)) -> Result<Measurement> {
    let (ctx, stream) = (b.target.ctx(), b.target.stream());
    let calls = b.target.calls();
    let arena = ctx.arena_enter("bench")?;
    let mut random = Random::new(EXIT_SEED);
    for _ in 0..count {
        malloc(random.size(log.0, log.1), stream)?;
    }
    let start = Instant::now();
    let report = ctx.arena_exit(&arena, &[])?;
    let time = start.elapsed();
    if report.freed != count as u64 {
        return Err(Error::internal(format!("the exit freed {} of {count}", report.freed)));
    }
    Ok(Measurement::new("arena", case, count as u64, b.target.calls_since(&calls))
        .with("exit", time.as_secs_f64() * 1e3, "ms")
        .with("each", us_each(time, report.freed), "us"))
}

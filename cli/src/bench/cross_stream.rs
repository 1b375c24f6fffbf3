//! `cross_stream`: allocate on one stream, free on another, as a pipeline does.

use super::measure::us_each;
use super::report::Measurement;
use super::script::{Builder, Player, Random};
use super::workbench::Bench;
use gpumem::base::size::{self, MIB};
use gpumem::base::Result;

const PAIRS: usize = 5_000;
/// log2 of the sizes: 4 KiB to 64 MiB.
const LOG: (f64, f64) = (12.0, 26.0);
const SEED: u64 = 1;

/// Two passes over the same pairs; the first starts on an empty pool.
pub fn run(b: &mut Bench) -> Result<()> {
    let (low, mut high) = LOG;
    // Blocks wait for their other stream, so that several are held at once.
    let largest = b.target.budget() / 16;
    if largest < 64 * MIB {
        high = (largest as f64).log2().max(low);
        b.scaled(format!("cross_stream: blocks of at most {} in place of 64 MiB", size::human(largest)));
    }
    let (mut random, mut script) = (Random::new(SEED), Builder::default());
    for _ in 0..b.ops_or(PAIRS) {
        script.allocate(random.size(low, high), 0);
        script.free(0, 1);
    }
    let script = script.finish();
    let pairs = script.ops.len() as u64 / 2;
    let streams = [b.target.stream(), b.target.other_stream()];
    let mut player = Player::new(&script, &streams);
    for pass in ["cold", "warm"] {
        b.step(&format!("cross_stream, {pass} pass"));
        b.target.reset_peak()?;
        let calls = b.target.calls();
        let time = player.timed()?;
        let calls = b.target.calls_since(&calls);
        let m = Measurement::new("cross_stream", pass, 2 * pairs, calls)
            .with("pair mean", us_each(time, pairs), "us")
            .with_gib("device used", b.target.peak_used()?);
        b.add(m);
    }
    Ok(())
}

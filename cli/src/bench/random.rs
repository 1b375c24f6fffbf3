//! `random`: a live set of random blocks on one stream, 256 bytes to 256 MiB, up to 16 GiB at once.

use super::measure::us_each;
use super::report::Measurement;
use super::script::{with_quantiles, Builder, Player, Random, Script};
use super::workbench::Bench;
use gpumem::base::size::{self, GIB};
use gpumem::base::Result;

const ALLOCATIONS: usize = 20_000;
const CAP: u64 = 16 * GIB;
const LOW_LOG: f64 = 8.0;
const HIGH_LOG: f64 = 28.0;
const SEED: u64 = 42;

/// Three passes over the same operations, each from an empty live set: cold (the pool is empty
/// too), warm, and warm with each call timed.
pub fn run(b: &mut Bench) -> Result<()> {
    let cap = CAP.min(b.target.budget());
    // The largest block stays a 64th of the cap, as it is at full size.
    let high = if cap == CAP { HIGH_LOG } else { (cap as f64 / 64.0).log2().max(LOW_LOG) };
    if cap < CAP {
        b.scaled(format!("random: at most {} live in place of {}", size::human(cap), size::human(CAP)));
    }
    let script = script(b.ops_or(ALLOCATIONS), cap, high);
    let ops = script.ops.len() as u64;
    let streams = [b.target.stream()];
    let mut player = Player::new(&script, &streams);

    b.target.reset_peak()?;
    b.step("random, cold pass");
    let calls = b.target.calls();
    let times = player.each_timed()?;
    let calls = b.target.calls_since(&calls);
    let m = Measurement::new("random", "cold", ops, calls).with("mean", times.mean_us(&b.clock), "us");
    let m = footprint(b, with_quantiles(m, &times, &b.clock), script.peak_live)?;
    b.add(m);
    player.free_the_rest()?;

    b.target.reset_peak()?;
    b.step("random, warm passes");
    let calls = b.target.calls();
    let time = player.timed()?;
    let calls = b.target.calls_since(&calls);
    player.free_the_rest()?;
    let times = player.each_timed()?;
    let m = Measurement::new("random", "warm", ops, calls).with("mean", us_each(time, ops), "us");
    let m = footprint(b, with_quantiles(m, &times, &b.clock), script.peak_live)?;
    b.add(m);
    player.free_the_rest()
}

fn footprint(b: &Bench, m: Measurement, peak_live: u64) -> Result<Measurement> {
    Ok(m.with_gib("peak live", peak_live).with_gib("device used", b.target.peak_used()?))
}

/// Frees of random blocks precede each allocation: as many as make room, else one or none by the
/// toss of a coin.
fn script(allocations: usize, cap: u64, high: f64) -> Script {
    let (mut random, mut script) = (Random::new(SEED), Builder::default());
    for _ in 0..allocations {
        let bytes = random.size(LOW_LOG, high);
        while script.live() > 0 && (script.live_bytes() + bytes > cap || random.number() % 2 == 0) {
            script.free(random.below(script.live()), 0);
            if script.live_bytes() + bytes <= cap {
                break;
            }
        }
        script.allocate(bytes, 0);
    }
    script.finish()
}

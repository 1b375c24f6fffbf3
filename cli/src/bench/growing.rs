//! `growing`: blocks grow from round to round, while random older ones are freed. Freed blocks are
//! always too small for the next ones, so pools that cannot move memory grow without end.

use super::measure::us_each;
use super::report::Measurement;
use super::script::{Builder, Player, Random, Script};
use super::workbench::Bench;
use gpumem::base::size::{self, GIB, MIB};
use gpumem::base::Result;

const ROUNDS: usize = 60;
const BLOCKS: usize = 40;
/// Live bytes that remain after each round.
const KEPT: u64 = 12 * GIB;
/// Bytes live at the peak, rounded up: the last round comes on top of the kept bytes.
const PEAK: u64 = 22 * GIB;
const SEED: u64 = 7;

/// One pass.
pub fn run(b: &mut Bench) -> Result<()> {
    let rounds = ROUNDS.min(b.ops_or(ROUNDS * BLOCKS).div_ceil(BLOCKS));
    let mut shrink = 1;
    while PEAK / shrink > b.target.budget() {
        shrink *= 2;
    }
    if shrink > 1 {
        b.scaled(format!("growing: every size ÷ {shrink}; about {} live at the peak", size::human(PEAK / shrink)));
    }
    let script = script(rounds, shrink);
    let ops = script.ops.len() as u64;
    let streams = [b.target.stream()];
    let mut player = Player::new(&script, &streams);
    b.step("growing");
    b.target.reset_peak()?;
    let calls = b.target.calls();
    let time = player.timed()?;
    let calls = b.target.calls_since(&calls);
    let used = b.target.peak_used()?;
    let m = Measurement::new("growing", format!("{rounds} rounds of {BLOCKS}"), ops, calls)
        .with("mean", us_each(time, ops), "us")
        .with_gib("peak live", script.peak_live)
        .with_gib("device used", used)
        .with("utilisation", script.peak_live as f64 / used.max(1) as f64, "1");
    b.add(m);
    player.free_the_rest()
}

fn script(rounds: usize, shrink: u64) -> Script {
    let (mut random, mut script) = (Random::new(SEED), Builder::default());
    for round in 0..rounds as u64 {
        for _ in 0..BLOCKS {
            script.allocate((16 + 4 * round + random.number() % 8) * MIB / shrink, 0);
        }
        script.shuffle(&mut random);
        while script.live_bytes() > KEPT / shrink {
            script.free(script.live() - 1, 0);
        }
    }
    script.finish()
}

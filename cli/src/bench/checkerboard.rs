//! `checkerboard`: 320 blocks of 64 MiB, every other one freed, then all free memory in one
//! allocation of 10 GiB.

use super::measure::us_each;
use super::report::Measurement;
use super::script::{Builder, Player};
use super::target::{free, malloc};
use super::workbench::Bench;
use gpumem::base::size::{self, MIB};
use gpumem::base::Result;
use std::time::Instant;

const BLOCKS: u64 = 320;
const BLOCK: u64 = 64 * MIB;
/// Blocks are not made smaller than this, bytes: moving memory is about pages, so there are fewer
/// blocks instead.
const SMALLEST: u64 = 4 * MIB;

/// Runs once, as the layout cannot be repeated.
pub fn run(b: &mut Bench) -> Result<()> {
    let (budget, mut block) = (b.target.budget(), BLOCK);
    while BLOCKS * block > budget && block > SMALLEST {
        block /= 2;
    }
    let blocks = BLOCKS.min(budget / block).max(2) & !1;
    if (blocks, block) != (BLOCKS, BLOCK) {
        b.scaled(format!("checkerboard: {blocks} blocks of {} in place of {BLOCKS} of 64 MiB", size::human(block)));
    }
    let mut script = Builder::default();
    (0..blocks).for_each(|_| script.allocate(block, 0));
    // From the end, as the last block takes the number of the freed one.
    (0..blocks as usize).rev().filter(|k| k % 2 == 1).for_each(|k| script.free(k, 0));
    let script = script.finish();
    let streams = [b.target.stream()];
    let mut player = Player::new(&script, &streams);
    b.step("checkerboard");
    player.timed()?;

    let pool = b.target.ctx().config().pool;
    let stats = || b.target.ctx().stats(b.target.device());
    let largest_free = if pool { stats()?.largest_free } else { 0 };
    let used = b.target.used()?;
    let bytes = blocks / 2 * block;
    let calls = b.target.calls();
    let start = Instant::now();
    let ptr = malloc(bytes, b.target.stream())?;
    let time = start.elapsed();
    let calls = b.target.calls_since(&calls);
    let case = format!("{} from holes of {}", size::human(bytes), size::human(block));
    let mut m = Measurement::new("checkerboard", case, 1, calls)
        .with("malloc", us_each(time, 1) / 1e3, "ms")
        .with_gib("device used before", used)
        .with_gib("device used after", b.target.used()?);
    if pool {
        m = m.with("largest free run before", largest_free as f64 / MIB as f64, "MiB");
    }
    b.add(m);
    free(ptr, b.target.stream())?;
    player.free_the_rest()
}

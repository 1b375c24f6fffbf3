//! Random numbers.

/// Random numbers that are the same everywhere: SplitMix64 (Steele, Lea and Flood, 2014). Not
/// `fastrand`, because figures in `docs/benchmarks.md` are of problems that this one draws.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`, and 0 if `n` is 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw().checked_rem(n).unwrap_or(0)
    }

    /// From `low` to `high`, both included; `low` if that is no range.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// From 1 to `most`, each power of two as likely; 1 if `most` is 0.
    pub fn magnitude(&mut self, most: u64) -> u64 {
        let top = 1u64 << self.below(u64::from(most.max(1).ilog2()) + 1);
        self.between(top, most.min(top.saturating_mul(2) - 1))
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    /// Non-empty steps `[lower, upper)` inside `[0, steps)`, short ones as likely as long ones;
    /// `[0, 1)` if `steps` is 0.
    pub fn steps(&mut self, steps: u64) -> (u64, u64) {
        let length = self.magnitude(steps);
        let lower = self.between(0, steps.saturating_sub(length));
        (lower, lower.saturating_add(length))
    }
}

//! Random numbers.

/// Numbers that follow from a seed, in the shapes that tests draw.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// From 0 to `n - 1`, and 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(0..n.max(1))
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high.max(low))
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
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

    /// One of `from`, if there is any.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        self.0.choice(from).cloned()
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}

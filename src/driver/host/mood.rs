//! How fast the simulated device is for a while.

#![deny(unsafe_code)]

/// A small, fast and well-mixed generator (splitmix64).
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`; 0 when `n` is 0. The bias is irrelevant for `n` this small.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// How the simulated device behaves for a while: it stalls, dawdles, or rushes, and neglects one
/// lane. A device with one steady speed would hide mistakes that need a long queue, or one stream
/// far behind the others.
pub(super) struct Mood {
    pub(super) rng: Rng,
    /// Calls until the mood changes.
    calls_left: usize,
    /// Twice the average number of steps per call.
    pace: usize,
    pub(super) neglected: Option<usize>,
    /// Whether it keeps up with the host for now, running everything that can run.
    pub(super) prompt: bool,
}

impl Mood {
    pub(super) fn new(seed: u64) -> Mood {
        Mood { rng: Rng(seed), calls_left: 0, pace: 0, neglected: None, prompt: false }
    }

    /// How many steps the device takes during this call.
    pub(super) fn steps(&mut self, active: &[usize]) -> usize {
        if self.calls_left == 0 {
            self.calls_left = 1 + self.rng.below(48);
            // 3 steps a call on average, more than a call can submit, so queues stay bounded.
            self.pace = [0, 0, 1, 2, 8, 25].get(self.rng.below(6)).copied().unwrap_or(1);
            self.neglected = active.get(self.rng.below(2 * active.len().max(1))).copied();
        }
        self.calls_left -= 1;
        self.rng.below(self.pace + 1)
    }
}

//! The edges of the plot, scales and their ticks.

/// Width of the picture, pixels.
pub const WIDTH: f64 = 1280.0;
/// Left edge of the plot; labels of bytes are beyond it.
pub const LEFT: f64 = 92.0;
/// Right edge of the plot; labels of lines are beyond it.
pub const RIGHT: f64 = WIDTH - 172.0;

/// Maps `[lo, hi)` of the problem to pixels.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Value at `from`.
    pub lo: u64,
    /// Value at `to`; above `lo`.
    pub hi: u64,
    /// Pixels.
    pub from: f64,
    /// Pixels; less than `from` when the axis points up.
    pub to: f64,
}

impl Scale {
    /// The pixel of `value`; values out of range go to the nearest end.
    pub fn at(&self, value: u64) -> f64 {
        self.at_f64(value.clamp(self.lo, self.hi).saturating_sub(self.lo) as f64)
    }

    /// The pixel of `lo + above`.
    pub fn at_f64(&self, above: f64) -> f64 {
        let share = above / self.hi.saturating_sub(self.lo).max(1) as f64;
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }
}

/// Multiples of a power of two from 0 to `max`: at most `most`, and at least half as many if there
/// are enough bytes.
pub fn byte_ticks(max: u64, most: u64) -> Vec<u64> {
    let mut step = 1u64;
    while max / step >= most.max(2) && step < 1 << 62 {
        step *= 2;
    }
    (0..=max / step).map(|i| i * step).collect()
}

/// Multiples of 1, 2 or 5 times a power of ten in `[lo, hi]`, at most `most`.
pub fn step_ticks(lo: u64, hi: u64, most: u64) -> Vec<u64> {
    let span = hi.saturating_sub(lo).max(1);
    let mut step = 1u64;
    'found: loop {
        for factor in [1, 2, 5] {
            // At most a span, so far below 2^64.
            if span / (step.saturating_mul(factor)) < most.max(2) {
                step = step.saturating_mul(factor);
                break 'found;
            }
        }
        step = step.saturating_mul(10);
    }
    let first = lo.div_ceil(step);
    (first..=hi / step).map(|i| i * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_inside() {
        assert_eq!(byte_ticks(1 << 20, 8), [0, 262_144, 524_288, 786_432, 1_048_576]);
        assert_eq!(byte_ticks(3, 8), [0, 1, 2, 3]);
        assert_eq!(byte_ticks(0, 8), [0]);
        assert_eq!(step_ticks(0, 21, 10), [0, 5, 10, 15, 20]);
        assert_eq!(step_ticks(995_328, 1_003_520, 6), [996_000, 998_000, 1_000_000, 1_002_000]);
        for max in [1, 7, 100, 12_345, u64::MAX >> 2, u64::MAX] {
            let bytes = byte_ticks(max, 9);
            assert!((2..=9).contains(&bytes.len()) && bytes.iter().all(|&t| t <= max), "{max}: {bytes:?}");
            let steps = step_ticks(max / 3, max, 9);
            assert!(
                (1..=9).contains(&steps.len()) && steps.iter().all(|&t| max / 3 <= t && t <= max),
                "{max}: {steps:?}"
            );
        }
    }

    #[test]
    fn a_scale_meets_its_ends_and_keeps_inside() {
        let up = Scale { lo: 10, hi: 20, from: 100.0, to: 0.0 };
        assert_eq!([up.at(10), up.at(15), up.at(20), up.at(0), up.at(u64::MAX)], [100.0, 50.0, 0.0, 100.0, 0.0]);
    }
}

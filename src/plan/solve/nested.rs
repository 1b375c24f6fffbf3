//! A layout in two passes, for when there is no time for a better one.
//!
//! The steps are halved again and again, and each buffer belongs to the shortest of these stretches
//! that contains its whole life. Stretches of equal length are disjoint, so they use the same
//! bytes; buffers of one stretch lie side by side. A short life may cross a border of long
//! stretches, so a second grid is shifted by a third of all steps. No life is near long borders of
//! both.

/// Average number of things in one of the shortest stretches.
const THINGS_A_STRETCH: u64 = 8;
/// Most of the shortest stretches: their counters must be quick to reach.
const MOST_STRETCHES: u64 = 1 << 17;

/// Something to place: (first step, end, bytes, stride); the offset is a multiple of the stride.
pub(super) type Thing = (u64, u64, u64, u64);

/// Places the things above `base`. Returns the highest end, and the offsets in the order of the
/// things.
pub(super) fn place(things: impl Iterator<Item = Thing> + Clone, base: u64) -> (u64, Vec<u64>) {
    let (mut first, mut last, mut count) = (u64::MAX, 0, 0);
    things.clone().for_each(|(from, to, ..)| (first, last, count) = (first.min(from), last.max(to - 1), count + 1));
    let bits = |steps: u64| u64::BITS - steps.leading_zeros();
    // Steps are counted in pairs, so that no sum is too large.
    let span = last.saturating_sub(first) / 2;
    let shifts = [0, span / 3];
    // Each grid's stretches are numbered as in a heap; 1 is all steps. Each of the shortest serves
    // several things: with more stretches, buffers at their borders cost more than is gained.
    let fewest = (count / THINGS_A_STRETCH + 1).min(MOST_STRETCHES);
    let (longest, shortest) = (bits(span + span / 3), bits(span / fewest));
    let nodes = 2usize << (longest - shortest);
    let stretch = |from: u64, to: u64| {
        let of = |grid: usize| {
            let at = |step: u64| (step - first) / 2 + shifts[grid];
            let length = bits(at(from) ^ at(to - 1)).max(shortest);
            (length, grid, grid * nodes + (1 << (longest - length)) + (at(from) >> length) as usize)
        };
        of(0).min(of(1))
    };
    let mut filled = vec![0u64; 2 * nodes];
    let mut offsets = Vec::with_capacity(count as usize);
    things.clone().for_each(|(from, to, size, stride)| {
        let filled = &mut filled[stretch(from, to).2];
        offsets.push(*filled);
        *filled += size + stride - 1;
    });
    // The offset at which the stretches of each length and grid begin.
    let mut bases = [[0; 2]; u64::BITS as usize + 1];
    let mut top = base;
    for length in shortest..=longest {
        for (grid, base) in bases[length as usize].iter_mut().enumerate() {
            let first = grid * nodes + (1 << (longest - length));
            *base = top;
            top += filled[first..first + (1 << (longest - length))].iter().copied().max().unwrap_or(0);
        }
    }
    let mut end = 0;
    for ((from, to, size, stride), at) in things.zip(&mut offsets) {
        let (length, grid, _) = stretch(from, to);
        *at = (bases[length as usize][grid] + *at).next_multiple_of(stride);
        end = end.max(*at + size);
    }
    (end, offsets)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use fastrand::Rng;

    #[test]
    fn what_is_live_together_is_apart() {
        for seed in 0..400 {
            let rng = &mut Rng::with_seed(seed);
            let steps = [1, 40, 5_000, u64::MAX - 90][seed as usize % 4];
            let things: Vec<Thing> = (0..rng.usize(1..60))
                .map(|_| {
                    let from = rng.u64(..steps);
                    (from, from + rng.u64(1..90), rng.u64(1..40), [1, 3, 8, 48][rng.usize(..4)])
                })
                .collect();
            let (end, offsets) = place(things.iter().copied(), 104);
            assert_eq!(end, things.iter().zip(&offsets).map(|(thing, at)| at + thing.2).max().unwrap(), "seed {seed}");
            for (n, (a, &at)) in things.iter().zip(&offsets).enumerate() {
                assert!(at >= 104 && at.is_multiple_of(a.3), "seed {seed}: {a:?} at {at}");
                for (b, &other) in things.iter().zip(&offsets).take(n) {
                    let (together, apart) = (a.0 < b.1 && b.0 < a.1, at + a.2 <= other || other + b.2 <= at);
                    assert!(!together || apart, "seed {seed}: {a:?} at {at}, {b:?} at {other}");
                }
            }
        }
        // A thousand short lives in a row, each across a border of some stretch, take no more than
        // a few of them do.
        let row = (0..1_000).map(|k| (10 * k, 10 * k + 10, 64, 1));
        assert!(place(row, 0).0 < 64 * 20);
        assert_eq!(place(std::iter::empty(), 0), (0, Vec::new()));
    }
}

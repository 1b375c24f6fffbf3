//! Lower bounds from sums: the bytes live at one step, and the ends of immovable ranges.

use crate::plan::covered::covered;
use crate::plan::problem::{Buffer, Place, Problem, Reserved, Step};

/// Bytes that any layout of `buffers` in one arena needs: the largest of the most bytes live at one
/// step, with `reserved` ranges; the highest fixed or reserved end; and, without reuse, the sum of
/// all extents.
pub(super) fn of_arena<'a>(
    problem: &Problem,
    reserved: &[&Reserved],
    buffers: impl Iterator<Item = &'a Buffer> + Clone,
) -> u64 {
    let ends = reserved.iter().map(|r| r.offset + r.size).max().unwrap_or(0);
    let all = Extremes::of(buffers.clone());
    let unshared = if problem.reuse() { 0 } else { buffers.clone().map(Buffer::extent).sum() };
    peak(buffers, &all, covered(reserved)).max(ends).max(all.fixed).max(unshared)
}

/// Bytes that each arena needs for the `buffers` bound to it, and that all need together wherever
/// free buffers go. `reserved` is by arena.
pub(super) fn of_all<'a>(
    problem: &Problem,
    reserved: &[Vec<&Reserved>],
    buffers: impl Iterator<Item = &'a Buffer> + Clone,
) -> (Vec<u64>, u64) {
    let mut bound = vec![Vec::new(); reserved.len()];
    for buffer in buffers.clone() {
        if let Some(arena) = buffer.arena {
            bound[arena as usize].push(buffer);
        }
    }
    let of_one = |(mine, reserved): (&Vec<&Buffer>, &Vec<_>)| of_arena(problem, reserved, mine.iter().copied());
    let by_arena: Vec<u64> = bound.iter().zip(reserved).map(of_one).collect();
    let covered = reserved.iter().flat_map(|ranges| covered(ranges)).collect();
    let all = peak(buffers.clone(), &Extremes::of(buffers), covered)
        .max(by_arena.iter().fold(0, |sum, bound| bound.saturating_add(sum)));
    (by_arena, all)
}

/// What one pass over the buffers tells.
struct Extremes {
    count: u64,
    first: Step,
    last: Step,
    /// The highest end of a fixed buffer.
    fixed: u64,
}

impl Extremes {
    fn of<'a>(buffers: impl Iterator<Item = &'a Buffer>) -> Extremes {
        let mut all = Extremes { count: 0, first: Step::MAX, last: 0, fixed: 0 };
        for b in buffers {
            all.count += 1;
            all.first = all.first.min(b.lower);
            all.last = all.last.max(b.upper);
            if let Place::Fixed(at) = b.place {
                all.fixed = all.fixed.max(at + b.extent());
            }
        }
        all
    }
}

/// The largest sum of live buffers and reserved bytes at one step. `covered` lists the changes in
/// reserved bytes; ranges that overlap in one arena count once, those of two arenas twice.
fn peak<'a>(buffers: impl Iterator<Item = &'a Buffer> + Clone, all: &Extremes, covered: Vec<(Step, bool, u64)>) -> u64 {
    let steps = || covered.iter().map(|change| change.0);
    let range = (steps().fold(all.first, Step::min), steps().fold(all.last, Step::max));
    most_live(range, all.count + covered.len() as u64, &|each| {
        for b in buffers.clone() {
            if b.gaps.is_empty() {
                each(b.lower, true, b.extent());
                each(b.upper, false, b.extent());
            }
            for live in b.live().filter(|_| !b.gaps.is_empty()) {
                each(live.lower, true, b.extent());
                each(live.upper, false, b.extent());
            }
        }
        covered.iter().for_each(|&(step, comes, bytes)| each(step, comes, bytes));
    })
}

/// Most stretches that [`most_live`] looks at: their sums take 16 MB.
const MOST_STRETCHES: u64 = 1 << 19;

/// A callback for each change: (step, whether bytes come, how many).
type Each<'a> = &'a mut dyn FnMut(Step, bool, u64);

/// The most bytes live at one step of a range. `changes` reports about `count` changes in any
/// order. Within a step, bytes go before others come.
///
/// Sums over stretches of equal length show which stretches may hold the maximum, and only their
/// changes are sorted.
fn most_live((first, last): (Step, Step), count: u64, changes: &dyn Fn(Each<'_>)) -> u64 {
    let span = last.saturating_sub(first);
    let length = u64::BITS - (span / (count + 1).min(MOST_STRETCHES)).leading_zeros();
    let stretch = |step: Step| ((step - first) >> length) as usize;
    // By stretch, the bytes that come and the bytes that go: within one, a buffer may come and go
    // often.
    let mut sums = vec![(0u128, 0u128); (span >> length) as usize + 1];
    changes(&mut |step, comes, bytes| {
        let (coming, going) = &mut sums[stretch(step)];
        *if comes { coming } else { going } += u128::from(bytes);
    });
    // The maximum is at least the largest sum at the end of a stretch.
    let (mut live, mut most) = (0u128, 0u128);
    for (coming, going) in &sums {
        live = live + coming - going;
        most = most.max(live);
    }
    if length == 0 {
        return u64::try_from(most).unwrap_or(u64::MAX);
    }
    // A stretch can exceed this only if it would with all its arrivals before any departure. The
    // arrivals in `sums` are then replaced by the live bytes before the stretch.
    let mut open = vec![false; sums.len()];
    live = 0;
    for ((coming, going), open) in sums.iter_mut().zip(&mut open) {
        *open = live + *coming > most;
        let after = live + *coming - *going;
        *coming = std::mem::replace(&mut live, after);
    }
    const COMES: u64 = 1 << 63;
    let mut events: Vec<(Step, u64)> = Vec::new();
    changes(&mut |step, comes, bytes| {
        if open[stretch(step)] {
            events.push((step, bytes | if comes { COMES } else { 0 }));
        }
    });
    events.sort_unstable();
    let mut at = usize::MAX;
    for (step, bytes) in events {
        if at != stretch(step) {
            at = stretch(step);
            live = sums[at].0;
        }
        let change = u128::from(bytes & !COMES);
        live = if bytes & COMES != 0 { live + change } else { live - change };
        most = most.max(live);
    }
    u64::try_from(most).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    /// A large buffer that comes and goes often within a stretch.
    #[test]
    fn sums_of_a_stretch_may_be_more_than_any_layout() {
        let found = most_live((0, 1000), 1, &|each| {
            for i in 0..10 {
                each(i * 2, true, 1 << 62);
                each(i * 2 + 1, false, 1 << 62);
            }
            each(2, true, 3000);
            each(3, false, 3000);
            each(900, true, 1);
            each(1000, false, 1);
        });
        assert_eq!(found, (1 << 62) + 3000);
    }

    #[test]
    fn the_most_that_is_live_is_that_of_every_step() {
        for seed in 0..300 {
            let rng = &mut Rng::with_seed(seed);
            let spread = [1, 1, 7, 1 << 20, 1 << 55][seed as usize % 5];
            let lives: Vec<(u64, u64, u64)> = (0..rng.u64(0..60))
                .map(|_| {
                    let from = rng.u64(..80);
                    (from * spread, (from + rng.u64(1..20)) * spread, rng.u64(1..9))
                })
                .collect();
            let at = |step: u64| lives.iter().filter(|l| l.0 <= step && step < l.1).map(|l| l.2).sum();
            let most = lives.iter().map(|l| at(l.0)).max().unwrap_or(0);
            let range = (lives.iter().map(|l| l.0).min().unwrap_or(7), lives.iter().map(|l| l.1).max().unwrap_or(0));
            let found = most_live(range, rng.u64(..90), &|each| {
                for l in &lives {
                    each(l.1, false, l.2);
                    each(l.0, true, l.2);
                }
            });
            assert_eq!(found, most, "seed {seed}: {lives:?}");
        }
    }
}

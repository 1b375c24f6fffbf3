//! The solver: [`solve()`].
//!
//! | file | holds |
//! |---|---|
//! | `check`, `taken` | contradictions, found before any search; byte ranges taken for a while |
//! | `bounds` | lower bounds from sums |
//! | `options` | what a caller asks for |
//! | `division` | a division of buffers among arenas, as data |
//! | `assign`, `divide`, `loads` | find a division; for many buffers, by sums first |
//! | `spread`, `stacked` | look for another division when some buffer has no room: by sums, and as one problem with borders |
//! | `arena`, `lay_out` | one arena: its movable buffers and its obstacles; a layout of the first around the second |
//! | `tiny` | a few buffers: every order |
//! | `parts`, `part`, `best` | an arena as independent parts; one part: greedy, then search; the best layout of it so far |
//! | `instance`, `order` | a part as the searches see it: items over sections; the order in which they are tried |
//! | `blocks` | obstacles over those sections |
//! | `skyline`, `first_fit` | greedy layouts: from the bottom up; in a fixed order |
//! | `nested`, `online` | layouts for a first answer: in two passes; as an online allocator makes them |
//! | `large` | the largest items by search, all others in the holes |
//! | `niche` | the exact search |
//! | `portfolio`, `glue` | the search with many rules in turn, over original and glued items |
//! | `repair` | large parts: the top of a layout searched anew |
//! | `general` | around obstacles and through gaps |
//! | `budget`, `in_time` | limits on steps and time; sorting that they can stop |
//! | `numbers` | arithmetic |

mod arena;
mod assign;
mod best;
mod blocks;
mod bounds;
mod budget;
mod check;
mod divide;
mod division;
mod first_fit;
mod general;
mod glue;
mod in_time;
mod instance;
mod large;
mod lay_out;
mod loads;
mod nested;
mod niche;
mod numbers;
mod online;
mod options;
mod order;
mod part;
mod parts;
mod portfolio;
mod repair;
mod skyline;
mod spread;
mod stacked;
mod taken;
mod tiny;

use super::layout::{ArenaUse, Layout, LayoutStatus, Slot};
use super::problem::{Buffer, Place, Problem};
use crate::base::{Error, Result};
use arena::{reserved, stride, Arena, Task};
use budget::Budget;
use std::time::{Duration, Instant};

pub use check::{clash, Clash};
pub use options::{Effort, SolveOptions};

/// Most steps of the search without a time limit: in all, and for each buffer.
const STEPS: u64 = 3_000_000;
const STEPS_A_BUFFER: u64 = 5_000;

/// Lays the buffers of `problem` out.
///
/// Errors are contradictions in the problem: sizes that add up to more than 2^62 bytes, fixed
/// buffers that overlap or are off the unit. A capacity that cannot be met is a status, not an
/// error.
pub fn solve(problem: &Problem, options: &SolveOptions<'_>) -> Result<Layout> {
    // With a time limit, only the clock decides.
    let most = STEPS.min(STEPS_A_BUFFER.saturating_mul(problem.buffers().len() as u64));
    solve_within(problem, options, options.time_limit.map_or(most, |_| u64::MAX))
}

/// Solves `problem` with at most this many `steps` of search.
fn solve_within(problem: &Problem, options: &SolveOptions<'_>, steps: u64) -> Result<Layout> {
    let start = Instant::now();
    check::check(problem)?;
    let buffers = problem.buffers();
    let arenas = problem.arenas();
    let earlier = options.previous.map(|l| &l.slots).filter(|slots| slots.len() == buffers.len());
    // Buffers that occupy bytes, and all others.
    let (mut ids, mut others) = (Vec::with_capacity(buffers.len()), Vec::new());
    let mut total_unshared = 0;
    for (i, buffer) in (0u32..).zip(buffers) {
        if buffer.occupies() && !problem.left_out().contains(buffer.kind) {
            total_unshared += buffer.extent();
            ids.push(i);
        } else {
            others.push(i);
        }
    }
    let deadline = options.time_limit.and_then(|limit| start.checked_add(limit));
    let mut budget = Budget::new(steps, deadline, options.cancel);
    let mut reserved = reserved(problem);
    let mut only = match &mut reserved[..] {
        [reserved] => Some(Arena::new(problem, std::mem::take(reserved), std::mem::take(&mut ids))),
        _ => None,
    };
    let (by_arena, lower_bound) = match &only {
        Some(arena) => (vec![arena.bound], arena.bound),
        None => bounds::of_all(problem, &reserved, ids.iter().map(|&i| &buffers[i as usize])),
    };
    let mut layout = Layout {
        slots: Vec::new(),
        arenas: by_arena.iter().map(|&lower_bound| ArenaUse { size: 0, lower_bound }).collect(),
        size: 0,
        lower_bound,
        total_unshared,
        status: LayoutStatus::Optimal,
        interrupted: false,
        elapsed: Duration::ZERO,
    };
    let without_slots = |mut layout: Layout, status| {
        layout.slots = vec![None; buffers.len()];
        layout.status = status;
        layout.elapsed = start.elapsed();
        Ok(layout)
    };
    // This needs no search, so it comes first whatever the effort.
    if beyond_capacity(problem, &ids, &by_arena, lower_bound) {
        return without_slots(layout, LayoutStatus::Infeasible);
    }
    // The buffers of each arena, and offsets of the movable ones if the division found them.
    let mut homes: Vec<(Vec<u32>, Option<Vec<u64>>)> = Vec::new();
    if only.is_some() {
        homes.push((ids, None));
    } else {
        let Some(assigned) = assign::assign(problem, &ids, options, &mut budget) else {
            layout.interrupted = budget.interrupted();
            return without_slots(layout, LayoutStatus::OutOfTime);
        };
        homes = assigned.by_arena(problem, &ids);
    }
    let mut optimal = true;
    let (mut too_large, mut impossible) = (false, false);
    let mut placements = Vec::new();
    let mut waiting = homes.iter().filter(|(ids, _)| !ids.is_empty()).count() as u32;
    for ((index, (ids, found)), reserved) in (0u32..).zip(homes).zip(reserved) {
        // Each arena that holds something has its share of the effort that is left: one whose
        // bound is out of reach would take all of it.
        let mut share = budget.part(waiting.max(1));
        waiting -= u32::from(!ids.is_empty());
        let capacity = arenas[index as usize].capacity;
        let mut arena = only.take().unwrap_or_else(|| Arena::new(problem, reserved, ids));
        let before = |slots: &Vec<Option<Slot>>| {
            let movable = arena.buffers.iter();
            movable.map(|&i| slots[i as usize].map_or(0, |s| s.offset)).collect()
        };
        arena.earlier = earlier.map(before);
        let task = Task { capacity, goal: 0, effort: options.effort, threads: options.threads };
        let mut placed = arena.lay_out(task, &mut share);
        budget.join_part(&share);
        layout.interrupted |= share.interrupted();
        if let Some(offsets) = found.filter(|_| capacity.is_some_and(|c| placed.size > c)) {
            placed.take_smaller(arena.size(&offsets), offsets);
        }
        layout.arenas[index as usize] = ArenaUse { size: placed.size, lower_bound: arena.bound };
        layout.size = layout.size.checked_add(placed.size).ok_or_else(|| {
            Error::invalid("the arenas take 2^64 bytes in all, or more; let what is fixed or reserved end lower")
        })?;
        optimal &= placed.optimal;
        if capacity.is_some_and(|c| placed.size > c) {
            too_large = true;
            impossible |= placed.optimal;
        }
        placements.push((index, arena.fixed, arena.buffers, placed.offsets));
    }
    layout.interrupted |= budget.interrupted();
    if too_large {
        // With several arenas, another division of the buffers might fit.
        let proved = impossible && arenas.len() == 1;
        return without_slots(layout, if proved { LayoutStatus::Infeasible } else { LayoutStatus::OutOfTime });
    }
    layout.slots = vec![None; buffers.len()];
    for i in others {
        layout.slots[i as usize] = empty_slot(problem, &buffers[i as usize]);
    }
    for (arena, fixed, ids, offsets) in placements {
        for (i, offset) in ids.into_iter().zip(offsets).chain(fixed) {
            layout.slots[i as usize] = Some(Slot { arena, offset });
        }
    }
    // With several arenas the division was not searched, so only the bound is a proof.
    let proved = layout.size <= layout.lower_bound || (optimal && arenas.len() == 1);
    layout.status = if proved { LayoutStatus::Optimal } else { LayoutStatus::Feasible };
    layout.elapsed = start.elapsed();
    Ok(layout)
}

/// The slot of a buffer that occupies nothing, or none if its kind is left out.
fn empty_slot(problem: &Problem, buffer: &Buffer) -> Option<Slot> {
    let offset = match buffer.place {
        Place::Fixed(at) => at,
        Place::Preferred(at) if at.is_multiple_of(stride(buffer.alignment, problem.unit())) => at,
        _ => 0,
    };
    (!problem.left_out().contains(buffer.kind)).then_some(Slot { arena: buffer.arena.unwrap_or(0), offset })
}

/// Whether lower bounds alone, for one arena or for all together, exceed the capacities, or one of
/// the buffers `ids` is too large for every arena.
fn beyond_capacity(problem: &Problem, ids: &[u32], by_arena: &[u64], all: u64) -> bool {
    let capacities = || problem.arenas().iter().map(|a| a.capacity);
    let sum = capacities().try_fold(0u64, |sum, c| Some(sum.saturating_add(c?)));
    let largest = capacities().try_fold(0u64, |most, c| Some(most.max(c?)));
    let end = |&i: &u32| match &problem.buffers()[i as usize] {
        b @ Buffer { place: Place::Fixed(at), .. } => at + b.extent(),
        b => b.extent(),
    };
    sum.is_some_and(|sum| sum < all)
        || capacities().zip(by_arena).any(|(c, &least)| c.is_some_and(|c| c < least))
        || largest.is_some_and(|most| ids.iter().any(|i| end(i) > most))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::plan::{verify, Interval};
    use fastrand::Rng;

    /// Wherever a solve of many buffers is stopped, it ends and leaves a layout. The time between
    /// looks at the clock is not tested: no test measures time.
    #[test]
    fn what_is_stopped_ends_at_once() {
        let count = in_time::PIECE as u64 + 9_000;
        let problem = |kind: u64| {
            let rng = &mut Rng::with_seed(kind);
            let mut problem = Problem::new();
            for k in 0..count {
                let lower = rng.u64(..count / 4);
                let mut buffer = Buffer::new(rng.u64(1..1_000), lower, lower + rng.u64(4..=40));
                match kind {
                    1 => buffer.alignment = 1 << rng.u64(..8),
                    2 if k % 1_000 == 0 => buffer.place = Place::Fixed(1_000 * k),
                    3 if k % 2 == 0 => buffer.gaps = vec![Interval::new(lower + 1, lower + 2)],
                    _ => {}
                }
                problem.add(buffer).unwrap();
            }
            problem
        };
        for kind in 0..4 {
            let problem = problem(kind);
            let mut reached = 0;
            for looks in [0, 2, 8, 1_000, 3_000, 6_000] {
                let solve = || solve(&problem, &SolveOptions::default()).unwrap();
                let (all, layout) = budget::tests::over_after(looks, solve);
                assert_eq!(verify(&problem, &layout), Ok(()));
                assert!(layout.interrupted, "problem {kind} was not stopped at look {looks}");
                assert!(all <= looks + 20, "problem {kind}: {all} looks, to be stopped at {looks}");
                reached = all;
            }
            assert!(reached > 6_000);
        }
    }

    /// More steps never give a larger arena, whatever the problem.
    #[test]
    fn more_effort_gives_nothing_worse() {
        let mut smaller = 0;
        for seed in 0..40 {
            let rng = &mut Rng::with_seed(seed);
            let count = [12, 40, 120][seed as usize % 3];
            let mut problem = Problem::new();
            for k in 0..count {
                let lower = if seed % 2 == 0 { k } else { rng.u64(..count) };
                let mut buffer = Buffer::new(rng.u64(1..1_000), lower, lower + rng.u64(1..=20));
                match seed / 6 % 5 {
                    1 => buffer.alignment = 1 << rng.u64(..8),
                    2 if rng.u64(..9) == 0 => buffer.place = Place::Preferred(rng.u64(..3_000)),
                    3 if buffer.upper - lower > 2 => buffer.gaps = vec![Interval::new(lower + 1, lower + 2)],
                    // Apart from one another.
                    4 if k % 9 == 0 => buffer.place = Place::Fixed(1_000 * (k / 9)),
                    _ => {}
                }
                problem.add(buffer).unwrap();
            }
            let mut last = u64::MAX;
            for steps in (0..8).map(|k| 5 << (2 * k)) {
                let layout = solve_within(&problem, &SolveOptions::default(), steps).unwrap();
                assert_eq!(verify(&problem, &layout), Ok(()));
                assert!(layout.size <= last, "seed {seed}: {} with {steps} steps, {last} with fewer", layout.size);
                smaller += u32::from(layout.size < last && last < u64::MAX);
                last = layout.size;
            }
        }
        assert!(smaller > 10, "{smaller}");
    }
}

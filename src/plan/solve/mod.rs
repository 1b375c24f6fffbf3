//! The solver: [`solve()`].
//!
//! | file | holds |
//! |---|---|
//! | `check` | contradictions, said before anything is searched |
//! | `bounds` | lower bounds from sums |
//! | `assign`, `divide`, `loads` | which arena each buffer goes to; of many buffers, by sums first |
//! | `spread`, `stacked` | another division where that leaves something over: by sums, and as one problem with borders |
//! | `arena` | one arena: what moves around what does not |
//! | `tiny` | a few buffers: every order |
//! | `parts`, `part` | an arena as independent parts; one part: greedy, then search |
//! | `instance`, `order` | a part as the searches see it: items over sections; in which order they are tried |
//! | `blocks` | what cannot move, over those sections |
//! | `skyline`, `first_fit` | greedy layouts, from the bottom up and in a fixed order |
//! | `online` | one as an allocator makes it, for a first answer |
//! | `large` | the largest items by search, all others in the holes |
//! | `niche` | the exact search |
//! | `portfolio`, `glue` | the search with many rules in turn, over items as they are and glued together |
//! | `repair` | large parts: the top of a layout searched anew |
//! | `general` | around obstacles and through gaps |
//! | `budget` | how long all this may go on |

mod arena;
mod assign;
mod blocks;
mod bounds;
mod budget;
mod check;
mod divide;
mod first_fit;
mod general;
mod glue;
mod instance;
mod large;
mod loads;
mod niche;
mod online;
mod order;
mod part;
mod parts;
mod portfolio;
mod repair;
mod skyline;
mod spread;
mod stacked;
mod tiny;

use super::layout::{ArenaUse, Layout, LayoutStatus, Slot};
use super::problem::{Buffer, Place, Problem};
use crate::base::Result;
use arena::{stride, Arena, Task};
use budget::Budget;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How hard to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// A few greedy orders and no search: under a millisecond for hundreds of buffers, for replanning at run time.
    Fast,
    /// Greedy orders, then a search whose steps are counted, so that the result does not depend on the machine.
    #[default]
    Normal,
}

/// How to solve.
#[derive(Clone, Copy, Debug, Default)]
pub struct SolveOptions<'a> {
    /// How hard to try.
    pub effort: Effort,
    /// With a limit, the search goes on until then, or until it has reached the lower bound or a proof: the result
    /// then depends on the machine. `None`: 5,000 steps for each buffer, at most 3,000,000, and no limit.
    /// There is a layout in any case, if no capacity stands against it.
    pub time_limit: Option<Duration>,
    /// Threads to search with; 0 and 1 search on the caller's. The result depends on their number, not on their timing.
    pub threads: u32,
    /// Set from another thread to stop early with the best so far.
    pub cancel: Option<&'a AtomicBool>,
    /// An earlier layout of the same buffers with other sizes, whose order is tried first: for replanning.
    pub previous: Option<&'a Layout>,
}

/// Most steps of the search without a time limit, and for each buffer.
const STEPS: u64 = 3_000_000;
const STEPS_A_BUFFER: u64 = 5_000;

/// Lays the buffers of `problem` out.
///
/// Errors are contradictions in the problem: sizes that add up to more than 2^62 bytes, fixed buffers that overlap or are
/// off the unit. A capacity that cannot be met is no error but a status.
pub fn solve(problem: &Problem, options: &SolveOptions<'_>) -> Result<Layout> {
    let start = Instant::now();
    check::check(problem)?;
    let buffers = problem.buffers();
    let earlier = options.previous.map(|l| &l.slots).filter(|slots| slots.len() == buffers.len());
    let occupied = |i: &u32| buffers[*i as usize].occupies() && !problem.left_out().contains(buffers[*i as usize].kind);
    let ids: Vec<u32> = (0..buffers.len() as u32).filter(occupied).collect();
    let of = |ids: &[u32]| ids.iter().map(|&i| &buffers[i as usize]).collect::<Vec<&Buffer>>();
    let mut layout = Layout {
        slots: buffers.iter().map(|b| empty_slot(problem, b)).collect(),
        arenas: vec![ArenaUse::default(); problem.arenas().len()],
        size: 0,
        lower_bound: bounds::of_all(problem, of(&ids).into_iter()),
        total_unshared: ids.iter().map(|&i| buffers[i as usize].extent()).sum(),
        status: LayoutStatus::Optimal,
        interrupted: false,
        elapsed: Duration::ZERO,
    };
    // Said at once, whatever the effort: this needs no search.
    if beyond_capacity(problem, &ids, layout.lower_bound) {
        return Ok(without_slots(layout, LayoutStatus::Infeasible, start));
    }
    // With a limit the clock decides, and nothing else.
    let steps = options.time_limit.map_or(STEPS.min(STEPS_A_BUFFER * ids.len() as u64), |_| u64::MAX);
    let deadline = options.time_limit.and_then(|limit| start.checked_add(limit));
    let mut budget = Budget::new(steps, deadline, options.cancel);
    let Some(assigned) = assign::assign(problem, &ids, options, &mut budget) else {
        layout.interrupted = budget.interrupted();
        return Ok(without_slots(layout, LayoutStatus::OutOfTime, start));
    };
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); problem.arenas().len()];
    for (k, &home) in assigned.homes.iter().enumerate() {
        if let Some(members) = members.get_mut(home as usize) {
            members.push(k);
        }
    }
    let mut optimal = true;
    let (mut too_large, mut impossible) = (false, false);
    for (index, members) in (0u32..).zip(members) {
        let capacity = problem.arenas()[index as usize].capacity;
        let mine: Vec<u32> = members.iter().map(|&k| ids[k]).collect();
        let (fixed, movable): (Vec<u32>, Vec<u32>) =
            mine.iter().partition(|&&i| matches!(buffers[i as usize].place, Place::Fixed(_)));
        let mut arena = Arena::new(problem, index, &movable, &fixed);
        arena.bound = match problem.arenas().len() {
            1 => layout.lower_bound,
            _ => bounds::of_arena(problem, index, of(&mine).into_iter()),
        };
        arena.earlier =
            earlier.map(|slots| movable.iter().map(|&i| slots[i as usize].map_or(0, |s| s.offset)).collect());
        let task = Task { goal: capacity.unwrap_or(0), effort: options.effort, threads: options.threads };
        let mut placed = arena.lay_out(task, &mut budget);
        if capacity.is_some_and(|c| placed.size > c) {
            // Where room was found for everything when the buffers were divided, that is a layout too.
            let is_movable = |k: &&usize| !matches!(buffers[ids[**k] as usize].place, Place::Fixed(_));
            let found: Option<Vec<u64>> = members.iter().filter(is_movable).map(|&k| assigned.offsets[k]).collect();
            if let Some(offsets) = found {
                placed.take_smaller(arena.size(&offsets), offsets);
            }
        }
        for (&i, &offset) in movable.iter().zip(&placed.offsets) {
            layout.slots[i as usize] = Some(Slot { arena: index, offset });
        }
        for &i in &fixed {
            if let Place::Fixed(offset) = buffers[i as usize].place {
                layout.slots[i as usize] = Some(Slot { arena: index, offset });
            }
        }
        if let Some(of_arena) = layout.arenas.get_mut(index as usize) {
            *of_arena = ArenaUse { size: placed.size, lower_bound: arena.bound };
        }
        layout.size += placed.size;
        optimal &= placed.optimal;
        if capacity.is_some_and(|c| placed.size > c) {
            too_large = true;
            impossible |= placed.optimal;
        }
    }
    layout.interrupted = budget.interrupted();
    if too_large {
        // With several arenas, another division of the buffers might fit.
        let proved = impossible && problem.arenas().len() == 1;
        let status = if proved { LayoutStatus::Infeasible } else { LayoutStatus::OutOfTime };
        return Ok(without_slots(layout, status, start));
    }
    // With several arenas the division was not searched, so that only the bound proves anything.
    let proved = layout.size <= layout.lower_bound || (optimal && problem.arenas().len() == 1);
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

/// Whether sums alone show that the capacities do not suffice.
fn beyond_capacity(problem: &Problem, ids: &[u32], lower_bound: u64) -> bool {
    let buffers = problem.buffers();
    let arenas = problem.arenas();
    let all = arenas.iter().try_fold(0u64, |sum, a| a.capacity.map(|c| sum.saturating_add(c)));
    all.is_some_and(|all| all < lower_bound)
        || (0u32..).zip(arenas).any(|(index, arena)| {
            let bound =
                ids.iter().map(|&i| &buffers[i as usize]).filter(|b| arenas.len() == 1 || b.arena == Some(index));
            arena.capacity.is_some_and(|c| c < bounds::of_arena(problem, index, bound))
        })
}

/// The result when no layout within the capacities was found.
fn without_slots(mut layout: Layout, status: LayoutStatus, start: Instant) -> Layout {
    layout.slots.fill(None);
    layout.status = status;
    layout.elapsed = start.elapsed();
    layout
}

/// The greatest common divisor; of 0 and a number, the number.
fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

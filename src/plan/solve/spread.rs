//! Several arenas, all with capacities: divides buffers by sums, then searches each arena.
//!
//! When the greedy order leaves some buffer without room, another division may work. Buffers are
//! dealt out by falling size, or in another order, each to the arena with the most room at the
//! fullest step of its life: arenas fill evenly, and two equal buffers go to different arenas. If
//! sums are within all capacities, each arena is laid out with a share of the effort. If that
//! fails, [`super::stacked`] tries all arenas as one problem.

use super::arena::{self, Arena};
use super::budget::Budget;
use super::division::{Assigned, Task};
use super::loads::Loads;
use super::numbers::mix;
use super::options::SolveOptions;
use super::stacked;
use crate::plan::problem::Place;
use std::cmp::Reverse;

/// Number of divisions to try.
const ROUNDS: u64 = 8;
/// Most arenas times sections to deal out over: each takes up to 64 bytes.
const MOST_CELLS: usize = 1 << 22;

/// A division of all buffers with a layout of each arena within its capacity, if one is found.
/// `assigned` gives the arenas of bound and fixed buffers.
pub(super) fn search(
    task: &Task<'_>,
    assigned: &Assigned,
    options: &SolveOptions<'_>,
    budget: &mut Budget<'_>,
) -> Option<Assigned> {
    let many = task.sections.saturating_mul(task.problem.arenas().len()) > MOST_CELLS;
    for round in 0..if many { 0 } else { ROUNDS } {
        if budget.spent() {
            return None;
        }
        let Some(homes) = deal_out(task, assigned, round, budget) else { continue };
        if let Some(found) = lay_out(task, homes, options, budget) {
            return Some(found);
        }
    }
    let mut half = budget.part(2);
    let found = stacked::search(task, assigned, options.threads, &mut half);
    budget.join_part(&half);
    found
}

/// An arena for each buffer, such that sums are within all capacities; `None` if there is none for
/// some buffer, or time is over.
fn deal_out(task: &Task<'_>, assigned: &Assigned, round: u64, budget: &mut Budget<'_>) -> Option<Vec<u32>> {
    let arenas = task.problem.arenas();
    let mut loads: Vec<Loads> = arenas.iter().map(|_| Loads::new(task.sections)).collect();
    let size = |shape: u32| task.shapes.shapes[shape as usize].size;
    let ranges = |shape: u32| task.shapes.ranges(shape as usize).iter().copied();
    for (loads, obstacles) in loads.iter_mut().zip(&task.obstacles) {
        for &(shape, _) in obstacles {
            ranges(shape).for_each(|(from, to)| loads.add(from, to, size(shape)));
        }
    }
    let mut order = task.order.clone();
    let life = |k: u32| ranges(k).map(|(from, to)| u64::from(to - from)).sum::<u64>();
    let key = |k: u32| {
        let share = (mix(round << 32 ^ u64::from(k)) >> 40) as f64 / (1u64 << 24) as f64;
        let by = match round % 3 {
            0 => size(k) as f64,
            1 => size(k) as f64 * life(k) as f64,
            _ => life(k) as f64,
        };
        // The first rounds have no noise; later ones have a little, which reorders nearly equal
        // buffers.
        if round < 3 {
            by
        } else {
            by * (1.0 + share / 4.0)
        }
    };
    let is_free = |k: u32| task.buffer(k).arena.is_none() && !matches!(task.buffer(k).place, Place::Fixed(_));
    order.sort_by(|&a, &b| is_free(a).cmp(&is_free(b)).then(key(b).total_cmp(&key(a))).then(a.cmp(&b)));
    let mut homes = assigned.homes.clone();
    for k in order {
        // It looks at every arena, of which there may be thousands.
        if budget.is_late() {
            return None;
        }
        let room = |a: usize| {
            let live = ranges(k).map(|(from, to)| loads[a].most(from, to)).max().unwrap_or(0);
            arenas[a].capacity.unwrap_or(u64::MAX).checked_sub(live.saturating_add(size(k)))
        };
        let home = if is_free(k) {
            (0..arenas.len())
                .filter_map(|a| room(a).map(|room| (room, a)))
                .max_by_key(|&(room, a)| (room, Reverse(a)))?
                .1
        } else {
            homes[k as usize] as usize
        };
        homes[k as usize] = home as u32;
        ranges(k).for_each(|(from, to)| loads[home].add(from, to, size(k)));
    }
    Some(homes)
}

/// Lays every arena out. Returns all movable offsets if each arena is within its capacity, and time
/// is not over before.
fn lay_out(task: &Task<'_>, homes: Vec<u32>, options: &SolveOptions<'_>, budget: &mut Budget<'_>) -> Option<Assigned> {
    let mut found = Assigned { offsets: vec![None; homes.len()], homes };
    for (index, of_arena) in (0u32..).zip(task.problem.arenas()) {
        if budget.is_late() {
            return None;
        }
        let mine = || (0..found.homes.len() as u32).filter(|&k| found.homes[k as usize] == index);
        let ids: Vec<u32> = mine().map(|k| task.ids[k as usize]).collect();
        let mut arena = Arena::new(task.problem, task.reserved[index as usize].clone(), ids);
        // Preferred offsets wait until the arena's buffers are known.
        arena.preferred.clear();
        let capacity = of_arena.capacity.unwrap_or(u64::MAX);
        let how = arena::Task { capacity: None, goal: capacity, effort: options.effort, threads: options.threads };
        let mut share = budget.part(4);
        let placed = arena.lay_out(how, &mut share);
        budget.join_part(&share);
        if placed.size > capacity {
            return None;
        }
        let movable: Vec<u32> = mine().filter(|&k| !matches!(task.buffer(k).place, Place::Fixed(_))).collect();
        for (k, at) in movable.into_iter().zip(placed.offsets) {
            found.offsets[k as usize] = Some(at);
        }
    }
    Some(found)
}

//! Which arena each buffer goes to.
//!
//! A buffer bound to none goes to the first arena, in order of adding, in which the greedy order by size finds room for
//! it; what is bound to an arena has the first claim on it. Finding that out compares every buffer with every other, so
//! many are divided by [`super::divide`]. Where no arena had room for something, [`super::spread`] looks for another division.

use super::arena::{blocking, stride, Steps};
use super::budget::Budget;
use super::divide::divide;
use super::first_fit::{FirstFit, Fit, Shapes};
use super::instance::Sections;
use super::parts::FIRST_STEPS;
use super::{spread, Effort, SolveOptions};
use crate::plan::problem::{Buffer, Place, Problem};
use std::cmp::Reverse;

/// Most buffers that are compared with one another.
const MOST_COMPARED: usize = 4_000;

/// Who goes where.
pub(super) struct Assigned {
    /// By position in the list of ids, the arena.
    pub(super) homes: Vec<u32>,
    /// By position, the offset at which there was room; `None` where that was not found out. Those of one arena, if they
    /// are all there, are a layout of it.
    pub(super) offsets: Vec<Option<u64>>,
}

impl Assigned {
    /// By arena, its buffers, and a layout of the movable ones if there is one.
    pub(super) fn by_arena(self, problem: &Problem, ids: &[u32]) -> Vec<(Vec<u32>, Option<Vec<u64>>)> {
        let mut arenas = vec![(Vec::new(), Some(Vec::new())); problem.arenas().len()];
        for ((&i, home), offset) in ids.iter().zip(self.homes).zip(self.offsets) {
            let (mine, found) = &mut arenas[home as usize];
            mine.push(i);
            match (problem.buffers()[i as usize].place, offset, &mut *found) {
                (Place::Fixed(_), ..) => {}
                (_, Some(at), Some(offsets)) => offsets.push(at),
                _ => *found = None,
            }
        }
        arenas
    }
}

/// What is to be divided, told in the sections that all arenas have in common.
pub(super) struct Task<'a> {
    pub(super) problem: &'a Problem,
    /// Buffers, by number.
    pub(super) ids: &'a [u32],
    /// Those, then reserved ranges.
    pub(super) shapes: Shapes,
    pub(super) sections: usize,
    /// By arena, its reserved ranges: shape and offset.
    pub(super) obstacles: Vec<Vec<(u32, u64)>>,
    /// Positions in `ids`: fixed before bound before free, larger before smaller.
    pub(super) order: Vec<u32>,
}

/// For each of `ids`, its arena. Buffers for which there is no room anywhere go to the last arena, whose size then says
/// what is missing. `None` when a fixed buffer is in the way of others in every arena: another division may do.
pub(super) fn assign(
    problem: &Problem,
    ids: &[u32],
    options: &SolveOptions<'_>,
    budget: &mut Budget<'_>,
) -> Option<Assigned> {
    let arenas = problem.arenas();
    let task = Task::new(problem, ids);
    let assigned = if ids.len() > MOST_COMPARED { divide(&task, budget)? } else { first_with_room(&task, budget)? };
    let fits = |k: usize, at: u64| {
        let capacity = arenas[assigned.homes[k] as usize].capacity;
        capacity.is_none_or(|c| at + task.buffer(k as u32).extent() <= c)
    };
    let all_fit = assigned.offsets.iter().enumerate().all(|(k, at)| at.is_some_and(|at| fits(k, at)));
    if all_fit || options.effort == Effort::Fast || arenas.iter().any(|a| a.capacity.is_none()) {
        return Some(assigned);
    }
    Some(spread::search(&task, &assigned, options, budget).unwrap_or(assigned))
}

/// For each buffer the first arena in which the greedy order finds room.
fn first_with_room(task: &Task<'_>, budget: &mut Budget<'_>) -> Option<Assigned> {
    let (arenas, ids) = (task.problem.arenas(), task.ids);
    let mut fits: Vec<FirstFit<'_>> = (0..arenas.len()).map(|_| FirstFit::new(&task.shapes)).collect();
    for (fit, obstacles) in fits.iter_mut().zip(&task.obstacles) {
        fit.restart(obstacles);
    }
    let mut clock = budget.after(FIRST_STEPS);
    let last = arenas.len() - 1;
    // Without time to look for room, what has no arena yet goes to one that has room for everything.
    let roomy = arenas.iter().position(|a| a.capacity.is_none()).unwrap_or(last);
    let mut assigned = Assigned { homes: vec![roomy as u32; ids.len()], offsets: vec![None; ids.len()] };
    for &k in &task.order {
        let buffer = task.buffer(k);
        let fixed = matches!(buffer.place, Place::Fixed(_));
        let in_time = clock.take(1) || fixed;
        let place = |fit: &FirstFit<'_>| match buffer.place {
            Place::Fixed(at) => fit.is_free(k, at).then_some(at),
            _ if !in_time => None,
            _ => Some(fit.offset_for(k, Fit::First)),
        };
        let room = |arena: usize, at: u64| arenas[arena].capacity.is_none_or(|c| at + buffer.extent() <= c);
        let found = match buffer.arena {
            Some(arena) => Some(arena as usize),
            None => (0..arenas.len()).find(|&a| place(&fits[a]).is_some_and(|at| room(a, at))),
        };
        let home = found.unwrap_or(if in_time { last } else { roomy });
        assigned.homes[k as usize] = home as u32;
        match place(&fits[home]) {
            Some(at) => {
                clock.take(fits[home].len() as u64 / 1024);
                fits[home].put(k, at);
                assigned.offsets[k as usize] = Some(at);
            }
            None if fixed => return None,
            None => {}
        }
    }
    if clock.interrupted() {
        budget.join(0, true);
    }
    Some(assigned)
}

impl<'a> Task<'a> {
    fn new(problem: &'a Problem, ids: &'a [u32]) -> Task<'a> {
        let buffers = problem.buffers();
        let arenas = problem.arenas().len() as u32;
        // Arenas do not touch one another, but what is in the way where must be told in the same sections.
        let steps: Vec<Steps> = (0..arenas).map(|a| Steps::new(problem, a)).collect();
        let one = steps.iter().find(|s| !matches!(s, Steps::One)).unwrap_or(&Steps::One);
        let live = |i: u32| one.of_buffer(&buffers[i as usize]);
        let reserved: Vec<_> = (0..arenas).flat_map(|a| blocking(problem, a)).collect();
        let ranges: Vec<(u64, u64)> =
            ids.iter().flat_map(|&i| live(i)).chain(reserved.iter().map(|r| one.of_reserved(r))).collect();
        let sections = Sections::new(ranges.iter().copied());
        let mut shapes = Shapes::default();
        for &i in ids {
            let buffer = &buffers[i as usize];
            let ranges = live(i).map(|(from, to)| sections.of(from, to));
            shapes.push(buffer.extent(), stride(buffer.alignment, problem.unit()), ranges);
        }
        let mut obstacles: Vec<Vec<(u32, u64)>> = vec![Vec::new(); arenas as usize];
        for range in reserved {
            let (from, to) = one.of_reserved(range);
            obstacles[range.arena as usize].push((shapes.shapes.len() as u32, range.offset));
            shapes.push(range.size, 1, std::iter::once(sections.of(from, to)));
        }
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|&k| {
            let buffer = &buffers[ids[k as usize] as usize];
            let class = match (buffer.place, buffer.arena) {
                (Place::Fixed(_), Some(_)) => 0,
                (_, Some(_)) => 1,
                (Place::Fixed(_), None) => 2,
                _ => 3,
            };
            (class, Reverse(buffer.extent()), k)
        });
        Task { problem, ids, shapes, sections: sections.len(), obstacles, order }
    }

    /// The buffer at a position.
    pub(super) fn buffer(&self, k: u32) -> &'a Buffer {
        &self.problem.buffers()[self.ids[k as usize] as usize]
    }
}

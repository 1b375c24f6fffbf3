//! Lays out one arena: what can move around what cannot.

use super::budget::Budget;
use super::first_fit::{FirstFit, Shape, Shapes};
use super::instance::{totals, Sections};
use super::{general, parts, tiny, Effort};
use crate::plan::problem::{Buffer, Place, Problem, Reserved};

/// The part of the effort that goes to the simpler problem without gaps: one in this many steps.
const SIMPLER_SHARE: u32 = 4;
/// And to the search around obstacles, which may have to round sizes.
const ROUNDED_SHARE: u32 = 2;

/// What is to be in one arena, in bytes.
#[derive(Default)]
pub(super) struct Arena {
    /// Everything that occupies bytes: movable buffers, then obstacles.
    pub(super) shapes: Shapes,
    /// The buffer of each movable shape.
    pub(super) buffers: Vec<u32>,
    /// Whether what is not live together may share bytes.
    pub(super) reuse: bool,
    /// First step and end of each movable shape, gaps included: some greedy orders go by them.
    pub(super) lives: Vec<(u64, u64)>,
    /// Fixed buffers and reserved ranges: shape and offset.
    pub(super) obstacles: Vec<(u32, u64)>,
    /// Where movable shapes would like to be.
    pub(super) preferred: Vec<(u32, u64)>,
    /// How many sections the live ranges are counted in.
    pub(super) sections: usize,
    /// The end of the highest obstacle.
    pub(super) obstructed: u64,
    /// No layout is smaller.
    pub(super) bound: u64,
    /// Offsets of an earlier layout, to take the order from.
    pub(super) earlier: Option<Vec<u64>>,
}

/// A layout of an [`Arena`].
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// By movable shape.
    pub(super) offsets: Vec<u64>,
    /// The end of the highest shape or obstacle.
    pub(super) size: u64,
    /// Whether no layout is smaller.
    pub(super) optimal: bool,
}

impl Placed {
    /// Takes another layout if it is smaller; it is not known to be the smallest.
    pub(super) fn take_smaller(&mut self, size: u64, offsets: Vec<u64>) {
        if size < self.size {
            *self = Placed { offsets, size, optimal: false };
        }
    }
}

/// How to lay an arena out.
#[derive(Clone, Copy)]
pub(super) struct Task {
    /// A size that is small enough, or 0.
    pub(super) goal: u64,
    pub(super) effort: Effort,
    pub(super) threads: u32,
}

impl Arena {
    /// The buffers `ids` and the reserved ranges of arena `index`.
    pub(super) fn new(problem: &Problem, index: u32, ids: &[u32]) -> Arena {
        let buffers = problem.buffers();
        let steps = Steps::new(problem, index);
        let reserved = || blocking(problem, index).map(|r| steps.of_reserved(r));
        let mut arena = Arena { reuse: problem.reuse(), ..Arena::default() };
        let ranges = ids.iter().flat_map(|&i| steps.of_buffer(&buffers[i as usize]));
        let ranges: Vec<_> = ranges.chain(reserved()).collect();
        let sections = Sections::new(ranges.iter().copied());
        drop(ranges);
        arena.sections = sections.len();
        let mut fixed = Vec::new();
        let movable = ids.iter().filter(|&&i| !matches!(buffers[i as usize].place, Place::Fixed(_))).count();
        arena.shapes.shapes.reserve_exact(ids.len() + reserved().count());
        arena.shapes.ranges.reserve_exact(ids.len() + reserved().count());
        arena.buffers.reserve_exact(movable);
        arena.lives.reserve_exact(movable);
        for &i in ids {
            let buffer = &buffers[i as usize];
            let ranges = steps.of_buffer(buffer).map(|(from, to)| sections.of(from, to));
            let (shape, stride) = (arena.shapes.shapes.len() as u32, stride(buffer.alignment, problem.unit()));
            match buffer.place {
                Place::Fixed(offset) => {
                    fixed.push((i, offset));
                    continue;
                }
                Place::Preferred(offset) if offset.is_multiple_of(stride) => arena.preferred.push((shape, offset)),
                _ => {}
            }
            arena.shapes.push(buffer.extent(), stride, ranges);
            arena.buffers.push(i);
            arena.lives.push((buffer.lower, buffer.upper));
        }
        for (i, offset) in fixed {
            let buffer = &buffers[i as usize];
            let ranges = steps.of_buffer(buffer).map(|(from, to)| sections.of(from, to));
            arena.obstacle(offset, buffer.extent(), ranges);
        }
        for (range, (from, to)) in blocking(problem, index).zip(reserved()) {
            arena.obstacle(range.offset, range.size, std::iter::once(sections.of(from, to)));
        }
        arena
    }

    /// The largest sum of sizes in one section, of what can move.
    pub(super) fn peak(&self) -> u64 {
        let of = |i: usize| self.shapes.ranges(i).iter().map(move |r| (r.0, r.1, self.shapes.shapes[i].size));
        let totals = totals((0..self.movable()).flat_map(of), self.sections);
        totals.into_iter().max().unwrap_or(0)
    }

    fn obstacle(&mut self, offset: u64, size: u64, ranges: impl Iterator<Item = (u32, u32)>) {
        self.obstacles.push((self.shapes.shapes.len() as u32, offset));
        self.shapes.push(size, 1, ranges);
        self.obstructed = self.obstructed.max(offset + size);
    }

    /// How many shapes can move.
    pub(super) fn movable(&self) -> usize {
        self.buffers.len()
    }

    /// The end of the highest shape at these offsets, or obstacle.
    pub(super) fn size(&self, offsets: &[u64]) -> u64 {
        let ends = offsets.iter().zip(&self.shapes.shapes).map(|(at, shape)| at + shape.size);
        ends.max().unwrap_or(0).max(self.obstructed)
    }

    /// Whether every movable shape is live in one range.
    pub(super) fn is_whole(&self) -> bool {
        self.shapes.shapes[..self.movable()].iter().all(|s| s.last - s.first == 1)
    }

    /// Lays the arena out.
    pub(super) fn lay_out(&self, task: Task, budget: &mut Budget<'_>) -> Placed {
        let mut placed = self.lay_out_freely(task, budget);
        if !self.preferred.is_empty() {
            self.prefer(task, &mut placed, budget);
            placed.size = self.size(&placed.offsets);
        }
        placed
    }

    fn lay_out_freely(&self, task: Task, budget: &mut Budget<'_>) -> Placed {
        let n = self.movable();
        if n == 0 || (n <= tiny::MOST && self.obstacles.len() <= tiny::MOST_OBSTACLES) {
            let movable: Vec<u32> = (0..n as u32).collect();
            let good = self.bound.max(self.obstructed);
            let (size, mut offsets) = tiny::smallest(&self.shapes, &movable, &self.obstacles, good);
            offsets.truncate(n);
            let size = if n == 0 { self.obstructed } else { size.max(self.obstructed) };
            return Placed { offsets, size, optimal: true };
        }
        if self.is_whole() && self.obstacles.is_empty() {
            let mut placed = parts::lay_out(self, task, budget);
            if placed.size > task.goal.max(self.bound) && !placed.optimal && task.effort != Effort::Fast {
                // In bytes and with all their rules, the orders may do better than parts in rounded sizes.
                general::improve(self, task, &mut placed, budget);
            }
            placed.optimal |= placed.size <= self.bound;
            return placed;
        }
        // A part of the effort goes to a simpler problem, without gaps; or to the same in rounded sizes.
        let mut simpler = budget.part(if self.is_whole() { ROUNDED_SHARE } else { SIMPLER_SHARE });
        let mut placed = parts::lay_out(self, task, &mut simpler);
        budget.join_part(&simpler);
        if placed.size > task.goal.max(self.bound) && !placed.optimal {
            general::improve(self, task, &mut placed, budget);
        }
        placed.optimal |= placed.size <= self.bound;
        placed
    }

    /// Moves shapes to where they would like to be, as far as that costs nothing: all of them at once if the arena
    /// gets no larger, and otherwise those whose places are free.
    fn prefer(&self, task: Task, placed: &mut Placed, budget: &mut Budget<'_>) {
        if self.preferred.iter().all(|&(shape, offset)| placed.offsets[shape as usize] == offset) {
            return;
        }
        if task.effort != Effort::Fast {
            if let Some(all) = self.with_all_preferred(task, placed.size, budget) {
                placed.offsets = all;
                return;
            }
        }
        let mut all = FirstFit::new(&self.shapes);
        let there = placed.offsets.iter().enumerate().map(|(shape, &offset)| (shape as u32, offset));
        all.restart(&there.chain(self.obstacles.iter().copied()).collect::<Vec<_>>());
        // Wishes that there is no time for are not met.
        let mut clock = budget.after(parts::FIRST_STEPS);
        for &(shape, offset) in &self.preferred {
            if !clock.take(1) {
                budget.join(0, true);
                return;
            }
            let fits = offset + self.shapes.shapes[shape as usize].size <= placed.size;
            if fits && all.is_free(shape, offset) {
                all.take(shape);
                all.put(shape, offset);
                placed.offsets[shape as usize] = offset;
            }
        }
    }

    /// A layout of at most `size` with every preferred shape where it would like to be, if one is found.
    fn with_all_preferred(&self, task: Task, size: u64, budget: &mut Budget<'_>) -> Option<Vec<u64>> {
        let mut wishes = vec![false; self.movable()];
        self.preferred.iter().for_each(|&(shape, _)| wishes[shape as usize] = true);
        let mut held =
            Arena { reuse: self.reuse, sections: self.sections, obstructed: self.obstructed, ..Arena::default() };
        let mut free = FirstFit::new(&self.shapes);
        free.restart(&self.obstacles);
        let mut moved = Vec::new();
        for shape in 0..self.movable() as u32 {
            if !wishes[shape as usize] {
                let Shape { size, align, .. } = self.shapes.shapes[shape as usize];
                held.shapes.push(size, align, self.shapes.ranges(shape as usize).iter().copied());
                held.buffers.push(self.buffers[shape as usize]);
                held.lives.push(self.lives[shape as usize]);
                moved.push(shape);
            }
        }
        let mut clock = budget.after(parts::FIRST_STEPS);
        for &(shape, offset) in &self.preferred {
            let bytes = self.shapes.shapes[shape as usize].size;
            if !clock.take(1) {
                return None;
            }
            if offset + bytes > size || !free.is_free(shape, offset) {
                return None;
            }
            free.put(shape, offset);
            held.obstacle(offset, bytes, self.shapes.ranges(shape as usize).iter().copied());
        }
        for &(shape, offset) in &self.obstacles {
            let bytes = self.shapes.shapes[shape as usize].size;
            held.obstacle(offset, bytes, self.shapes.ranges(shape as usize).iter().copied());
        }
        held.bound = self.bound;
        let found = held.lay_out_freely(Task { goal: size, ..task }, budget);
        (found.size <= size).then(|| {
            let mut offsets = vec![0; self.movable()];
            for (&shape, &at) in moved.iter().zip(&found.offsets) {
                offsets[shape as usize] = at;
            }
            for &(shape, at) in &self.preferred {
                offsets[shape as usize] = at;
            }
            offsets
        })
    }
}

/// The reserved ranges of an arena that are in the way of anything.
pub(super) fn blocking(problem: &Problem, arena: u32) -> impl Iterator<Item = &Reserved> + Clone {
    problem.reserved().iter().filter(move |r| r.arena == arena && r.blocks())
}

/// The ranges of steps at which things are in the way of one another.
///
/// Without reuse all buffers are in one another's way, but reserved ranges only in that of what is live with them: every
/// buffer gets a step after all others in common with all buffers.
pub(super) enum Steps {
    /// As they are.
    Live,
    /// One step for all.
    One,
    /// As they are, and this one.
    LiveAnd(u64),
}

impl Steps {
    /// For one arena of `problem`.
    pub(super) fn new(problem: &Problem, arena: u32) -> Steps {
        if problem.reuse() {
            return Steps::Live;
        }
        let buffers = problem.buffers().iter().map(|b| b.upper);
        let reserved = blocking(problem, arena).map(|r| r.during.upper);
        let last = buffers.chain(reserved.clone()).max().unwrap_or(0);
        // The last step there is has no successor; then reserved ranges are kept clear throughout.
        if reserved.count() == 0 || last == u64::MAX {
            Steps::One
        } else {
            Steps::LiveAnd(last)
        }
    }

    pub(super) fn of_buffer<'b>(&self, buffer: &'b Buffer) -> impl Iterator<Item = (u64, u64)> + use<'b> {
        let (lives, common) = match *self {
            Steps::Live => (true, None),
            Steps::One => (false, Some((0, 1))),
            Steps::LiveAnd(last) => (true, Some((last, last + 1))),
        };
        buffer.live().filter(move |_| lives).map(|r| (r.lower, r.upper)).chain(common)
    }

    pub(super) fn of_reserved(&self, reserved: &Reserved) -> (u64, u64) {
        match self {
            Steps::One => (0, 1),
            _ => (reserved.during.lower, reserved.during.upper),
        }
    }
}

/// What the offset of a buffer is a multiple of: the least common multiple of its alignment and the unit. The problem's
/// check has seen to it that it fits.
pub(super) fn stride(alignment: u64, unit: u64) -> u64 {
    alignment / super::gcd(alignment, unit) * unit
}

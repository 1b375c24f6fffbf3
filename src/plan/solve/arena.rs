//! One arena: what is to be in it, and a layout of that.

use super::budget::{Budget, FIRST_STEPS};
use super::first_fit::{Shape, Shapes};
use super::instance::{sections, totals};
use super::numbers::gcd;
use super::options::Effort;
use super::{bounds, nested};
use crate::plan::problem::{Buffer, Place, Problem, Reserved};

/// What is to be in one arena, in bytes.
pub(super) struct Arena<'p> {
    pub(super) problem: &'p Problem,
    /// Everything that occupies bytes: movable buffers, then obstacles.
    pub(super) shapes: Shapes,
    /// The buffer of each movable shape.
    pub(super) buffers: Vec<u32>,
    /// Whether what is not live together may share bytes.
    pub(super) reuse: bool,
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

impl<'p> Arena<'p> {
    /// Nothing yet.
    pub(super) fn empty(problem: &'p Problem) -> Arena<'p> {
        Arena {
            problem,
            shapes: Shapes::default(),
            buffers: Vec::new(),
            reuse: problem.reuse(),
            obstacles: Vec::new(),
            preferred: Vec::new(),
            sections: 0,
            obstructed: 0,
            bound: 0,
            earlier: None,
        }
    }

    /// The buffers `ids` and the reserved ranges of arena `index`.
    pub(super) fn new(problem: &'p Problem, index: u32, ids: &[u32], budget: &mut Budget<'_>) -> Arena<'p> {
        let buffers = problem.buffers();
        let steps = Steps::new(problem, index);
        let mut arena = Arena::empty(problem);
        let mut steps_of = Vec::with_capacity(ids.len());
        arena.shapes.shapes.reserve_exact(ids.len());
        arena.buffers.reserve_exact(ids.len());
        // Where they are live is said below.
        let mut push = |arena: &mut Arena<'_>, size, align, steps: &mut dyn Iterator<Item = (u64, u64)>| {
            let first = steps_of.len() as u32;
            steps_of.extend(steps);
            arena.shapes.shapes.push(Shape { size, align, span: (0, 0), first, last: steps_of.len() as u32 });
        };
        let mut fixed = Vec::new();
        for &i in ids {
            let buffer = &buffers[i as usize];
            let (shape, stride) = (arena.buffers.len() as u32, stride(buffer.alignment, problem.unit()));
            match buffer.place {
                Place::Fixed(offset) => {
                    fixed.push((buffer, offset));
                    continue;
                }
                Place::Preferred(offset) if offset.is_multiple_of(stride) => arena.preferred.push((shape, offset)),
                _ => {}
            }
            push(&mut arena, buffer.extent(), stride, &mut steps.of_buffer(buffer));
            arena.buffers.push(i);
        }
        for (buffer, offset) in fixed {
            arena.obstacle(offset, buffer.extent());
            push(&mut arena, buffer.extent(), 1, &mut steps.of_buffer(buffer));
        }
        for range in blocking(problem, index) {
            arena.obstacle(range.offset, range.size);
            push(&mut arena, range.size, 1, &mut std::iter::once(steps.of_reserved(range)));
        }
        let of_buffers = || bounds::of_arena(problem, index, ids.iter().map(|&i| &buffers[i as usize]));
        if arena.is_late(budget) {
            arena.bound = of_buffers();
            return arena;
        }
        let ranges;
        (ranges, arena.sections) = sections(steps_of);
        arena.shapes.set_ranges(ranges);
        arena.bound = if arena.obstacles.is_empty() && arena.reuse {
            // Sections say what is live as well as steps do.
            let shapes = &arena.shapes;
            let of = |i: usize| shapes.ranges(i).iter().map(move |r| (r.0, r.1, shapes.shapes[i].size));
            totals((0..arena.movable()).flat_map(of), arena.sections).into_iter().max().unwrap_or(0)
        } else {
            of_buffers()
        };
        arena
    }

    /// The next shape cannot move.
    pub(super) fn obstacle(&mut self, offset: u64, size: u64) {
        self.obstacles.push((self.shapes.shapes.len() as u32, offset));
        self.obstructed = self.obstructed.max(offset + size);
    }

    /// Whether there is no more time, and so much to do that it may not be done all the same.
    pub(super) fn is_late(&self, budget: &mut Budget<'_>) -> bool {
        self.movable() as u64 > FIRST_STEPS && budget.is_late()
    }

    /// First step and end of a movable shape, gaps included: some greedy orders go by them.
    pub(super) fn life(&self, i: usize) -> (u64, u64) {
        let buffer = &self.problem.buffers()[self.buffers[i] as usize];
        (buffer.lower, buffer.upper)
    }

    /// No layout: all others are smaller.
    pub(super) fn none(&self) -> Placed {
        Placed { offsets: vec![0; self.movable()], size: u64::MAX, optimal: false }
    }

    /// The quickest layout there is.
    pub(super) fn at_once(&self) -> Placed {
        let thing = |i: usize| {
            let (from, to) = if self.reuse { self.life(i) } else { (0, 1) };
            (from, to, self.shapes.shapes[i].size, self.shapes.shapes[i].align)
        };
        let offsets = nested::place((0..self.movable()).map(thing), self.obstructed);
        let size = self.size(&offsets);
        Placed { offsets, size, optimal: size <= self.bound }
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
        self.shapes.shapes[..self.movable()].iter().all(Shape::is_whole)
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
    alignment / gcd(alignment, unit) * unit
}

//! One arena: what is to be in it, and a layout of that.

use super::first_fit::Shapes;
use super::instance::{totals, Sections};
use super::numbers::gcd;
use super::options::Effort;
use crate::plan::problem::{Buffer, Place, Problem, Reserved};

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

    pub(super) fn obstacle(&mut self, offset: u64, size: u64, ranges: impl Iterator<Item = (u32, u32)>) {
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

//! One arena: its buffers and reserved ranges, and a layout of them.

use super::budget::{Budget, FIRST_STEPS};
use super::first_fit::{Shape, Shapes};
use super::in_time::PIECE;
use super::instance::sections;
use super::options::Effort;
use super::{bounds, nested};
use crate::plan::problem::{Buffer, Interval, Place, Problem, Reserved};

/// The contents of one arena, in bytes.
pub(super) struct Arena<'p> {
    pub(super) problem: &'p Problem,
    /// Its reserved ranges.
    reserved: Vec<&'p Reserved>,
    /// Movable buffers, then obstacles. [`Arena::find_sections`] fills this and `obstacles`.
    pub(super) shapes: Shapes,
    /// The buffer of each movable shape.
    pub(super) buffers: Vec<u32>,
    /// Fixed buffers and their offsets.
    pub(super) fixed: Vec<(u32, u64)>,
    /// Whether buffers that are never live together may share bytes.
    pub(super) reuse: bool,
    /// Fixed buffers and reserved ranges: (shape, offset).
    pub(super) obstacles: Vec<(u32, u64)>,
    /// Preferred places of movable shapes: (shape, offset).
    pub(super) preferred: Vec<(u32, u64)>,
    /// The number of sections of the live ranges.
    pub(super) sections: usize,
    /// The end of the highest obstacle.
    pub(super) obstructed: u64,
    /// A lower bound on the size.
    pub(super) bound: u64,
    /// Offsets of an earlier layout; some greedy orders follow them.
    pub(super) earlier: Option<Vec<u64>>,
}

/// A layout of an [`Arena`].
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Offset of each movable shape.
    pub(super) offsets: Vec<u64>,
    /// The end of the highest shape or obstacle.
    pub(super) size: u64,
    /// Whether no layout is smaller.
    pub(super) optimal: bool,
}

impl Placed {
    /// Takes another layout if it is smaller, and does not mark it optimal.
    pub(super) fn take_smaller(&mut self, size: u64, offsets: Vec<u64>) {
        if size < self.size {
            *self = Placed { offsets, size, optimal: false };
        }
    }
}

/// How to lay an arena out.
#[derive(Clone, Copy)]
pub(super) struct Task {
    /// A size to be within before anything smaller is looked for.
    pub(super) capacity: Option<u64>,
    /// A size that is small enough; 0 asks for the smallest.
    pub(super) goal: u64,
    pub(super) effort: Effort,
    pub(super) threads: u32,
}

impl Task {
    /// The sizes to be within, one after the other.
    pub(super) fn goals(self) -> impl Iterator<Item = u64> {
        self.capacity.filter(|&capacity| capacity > self.goal).into_iter().chain([self.goal])
    }
}

impl<'p> Arena<'p> {
    /// An arena without contents.
    pub(super) fn empty(problem: &'p Problem) -> Arena<'p> {
        Arena {
            problem,
            reserved: Vec::new(),
            shapes: Shapes::default(),
            buffers: Vec::new(),
            fixed: Vec::new(),
            reuse: problem.reuse(),
            obstacles: Vec::new(),
            preferred: Vec::new(),
            sections: 0,
            obstructed: 0,
            bound: 0,
            earlier: None,
        }
    }

    /// An arena of the buffers `ids` and the `reserved` ranges. It looks at each buffer only a few
    /// times, because clock and flag do not count until there is a layout.
    pub(super) fn new(problem: &'p Problem, reserved: Vec<&'p Reserved>, ids: Vec<u32>) -> Arena<'p> {
        let mut arena = Arena::empty(problem);
        let of = |&i: &u32| &problem.buffers()[i as usize];
        arena.bound = bounds::of_arena(problem, &reserved, ids.iter().map(of));
        (arena.reserved, arena.buffers) = (reserved, ids);
        let (mut shape, unit) = (0, problem.unit());
        let Arena { buffers, fixed, preferred, .. } = &mut arena;
        buffers.retain(|i| {
            match of(i).place {
                Place::Fixed(offset) => {
                    fixed.push((*i, offset));
                    return false;
                }
                Place::Preferred(offset) if offset.is_multiple_of(stride(of(i).alignment, unit)) => {
                    preferred.push((shape, offset));
                }
                _ => {}
            }
            shape += 1;
            true
        });
        let ends = arena.fixed.iter().map(|(i, at)| at + of(i).extent());
        arena.obstructed = ends.chain(arena.reserved.iter().map(|r| r.offset + r.size)).max().unwrap_or(0);
        arena
    }

    /// Turns buffers into shapes and steps into sections; `false` if time ran out.
    pub(super) fn find_sections(&mut self, budget: &mut Budget<'_>) -> bool {
        let problem = self.problem;
        let steps = Steps::new(problem, self.reserved.iter().copied());
        let count = self.buffers.len() + self.fixed.len();
        let mut steps_of = Vec::with_capacity(count);
        self.shapes.shapes.reserve_exact(count);
        // For now, their ranges are in steps.
        let mut push = |shapes: &mut Shapes, size, align, steps: &mut dyn Iterator<Item = (u64, u64)>| {
            let first = steps_of.len() as u32;
            steps_of.extend(steps);
            shapes.shapes.push(Shape { size, align, span: (0, 0), first, last: steps_of.len() as u32 });
        };
        for ids in self.buffers.chunks(PIECE) {
            if self.buffers.len() > PIECE && budget.is_late() {
                return false;
            }
            for &i in ids {
                let buffer = &problem.buffers()[i as usize];
                let align = stride(buffer.alignment, problem.unit());
                push(&mut self.shapes, buffer.extent(), align, &mut steps.of_buffer(buffer));
            }
        }
        for (i, offset) in self.fixed.clone() {
            let buffer = &problem.buffers()[i as usize];
            self.obstacle(offset, buffer.extent());
            push(&mut self.shapes, buffer.extent(), 1, &mut steps.of_buffer(buffer));
        }
        for range in self.reserved.clone() {
            self.obstacle(range.offset, range.size);
            push(&mut self.shapes, range.size, 1, &mut std::iter::once(steps.of_range(range.during)));
        }
        let Some((ranges, count)) = sections(steps_of, &mut || budget.is_late()) else { return false };
        self.shapes.set_ranges(ranges);
        self.sections = count;
        true
    }

    /// Makes an obstacle of the shape that is pushed next.
    pub(super) fn obstacle(&mut self, offset: u64, size: u64) {
        self.obstacles.push((self.shapes.shapes.len() as u32, offset));
        self.obstructed = self.obstructed.max(offset + size);
    }

    /// Whether time is over and more than [`FIRST_STEPS`] shapes can move: fewer are laid out all
    /// the same.
    pub(super) fn is_late(&self, budget: &mut Budget<'_>) -> bool {
        self.movable() as u64 > FIRST_STEPS && budget.is_late()
    }

    /// First step and end of a movable shape, gaps included. Some greedy orders use them.
    pub(super) fn life(&self, i: usize) -> (u64, u64) {
        let buffer = &self.problem.buffers()[self.buffers[i] as usize];
        (buffer.lower, buffer.upper)
    }

    /// A placeholder that any real layout beats.
    pub(super) fn none(&self) -> Placed {
        Placed { offsets: vec![0; self.movable()], size: u64::MAX, optimal: false }
    }

    /// A layout by the quickest method, [`nested::place`].
    pub(super) fn at_once(&self) -> Placed {
        let thing = |&i: &u32| {
            let buffer = &self.problem.buffers()[i as usize];
            let (from, to) = if self.reuse { (buffer.lower, buffer.upper) } else { (0, 1) };
            (from, to, buffer.extent(), stride(buffer.alignment, self.problem.unit()))
        };
        let (top, offsets) = nested::place(self.buffers.iter().map(thing), self.obstructed);
        let size = top.max(self.obstructed);
        Placed { offsets, size, optimal: size <= self.bound }
    }

    /// The number of movable shapes.
    pub(super) fn movable(&self) -> usize {
        self.buffers.len()
    }

    /// The highest end of the shapes at these offsets, or of an obstacle.
    pub(super) fn size(&self, offsets: &[u64]) -> u64 {
        let buffers = self.problem.buffers();
        let ends = offsets.iter().zip(&self.buffers).map(|(at, &i)| at + buffers[i as usize].extent());
        ends.max().unwrap_or(0).max(self.obstructed)
    }

    /// Whether every movable shape is live in one range.
    pub(super) fn is_whole(&self) -> bool {
        self.shapes.shapes[..self.movable()].iter().all(Shape::is_whole)
    }
}

/// By arena, the reserved ranges that block anything, found in one pass.
pub(super) fn reserved(problem: &Problem) -> Vec<Vec<&Reserved>> {
    let mut by_arena = vec![Vec::new(); problem.arenas().len()];
    for range in problem.reserved().iter().filter(|r| r.blocks()) {
        by_arena[range.arena as usize].push(range);
    }
    by_arena
}

/// The ranges of steps at which things exclude one another.
///
/// Without reuse, all buffers exclude one another, but a reserved range excludes only buffers live
/// during it. So the starts and ends of reserved ranges divide the steps into stretches, and all
/// buffers share an extra stretch after these. Stretches have their own numbers, as there may be no
/// step after the last.
pub(super) enum Steps {
    /// The steps as they are.
    Live,
    /// Stretches divided at these steps, then one for all buffers.
    Unshared(Vec<u64>),
}

impl Steps {
    /// The steps of a layout around these reserved ranges.
    pub(super) fn new<'p>(problem: &Problem, reserved: impl Iterator<Item = &'p Reserved>) -> Steps {
        if problem.reuse() {
            return Steps::Live;
        }
        let mut borders: Vec<u64> = reserved.flat_map(|r| [r.during.lower, r.during.upper]).collect();
        borders.sort_unstable();
        borders.dedup();
        Steps::Unshared(borders)
    }

    pub(super) fn of_buffer<'b>(&'b self, buffer: &'b Buffer) -> impl Iterator<Item = (u64, u64)> + 'b {
        let all = match self {
            Steps::Live => None,
            Steps::Unshared(borders) => Some((borders.len() as u64 + 1, borders.len() as u64 + 2)),
        };
        // With nothing reserved, the stretch for all buffers is enough.
        let lives = !matches!(self, Steps::Unshared(borders) if borders.is_empty());
        let mut end = 0;
        let of_life = move |live: Interval| {
            let (from, to) = self.of_range(live);
            // Live ranges on either side of a gap may touch the same stretch.
            let from = from.max(std::mem::replace(&mut end, to));
            (from < to).then_some((from, to))
        };
        buffer.live().filter(move |_| lives).filter_map(of_life).chain(all)
    }

    /// The range for `range`, a non-empty range of live or reserved steps.
    pub(super) fn of_range(&self, range: Interval) -> (u64, u64) {
        match self {
            Steps::Live => (range.lower, range.upper),
            Steps::Unshared(borders) => {
                let stretch = |step: u64| borders.partition_point(|&border| border <= step) as u64;
                (stretch(range.lower), stretch(range.upper - 1) + 1)
            }
        }
    }
}

/// The stride of a buffer's offset: the least common multiple of its alignment, a power of two, and
/// the unit. `check` ensures that it fits.
pub(super) fn stride(alignment: u64, unit: u64) -> u64 {
    (alignment >> unit.trailing_zeros().min(alignment.trailing_zeros())) * unit
}

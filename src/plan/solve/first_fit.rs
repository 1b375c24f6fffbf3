//! Greedy layout in a fixed order, each item at the lowest offset at which it fits, around obstacles.
//!
//! This is how most planners work (by size in TensorFlow Lite and in XLA's heap simulator, which add other orders); the
//! layouts are rarely the best, but it copes with whatever a problem may hold: fixed offsets, gaps in live ranges, and
//! reserved ranges are obstacles like any other item.

use super::budget::Budget;

/// Something to place, with its live ranges in [`Shapes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes, or grains, guard included.
    pub(super) size: u64,
    /// The offset is a multiple of this.
    pub(super) align: u64,
    /// First and last section, for a quick look; the ranges are `ranges[first..last]`.
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) first: u32,
    pub(super) last: u32,
}

/// Shapes and their live ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    pub(super) shapes: Vec<Shape>,
    pub(super) ranges: Vec<(u32, u32)>,
}

impl Shapes {
    /// Adds a shape that is live in `ranges`, in order and not empty.
    pub(super) fn push(&mut self, size: u64, align: u64, ranges: impl Iterator<Item = (u32, u32)>) {
        let first = self.ranges.len();
        self.ranges.extend(ranges);
        let from = self.ranges.get(first).map_or(0, |r| r.0);
        let to = self.ranges.last().map_or(0, |r| r.1);
        let (first, last) = (first as u32, self.ranges.len() as u32);
        self.shapes.push(Shape { size, align, from, to, first, last });
    }

    pub(super) fn ranges(&self, i: usize) -> &[(u32, u32)] {
        let shape = &self.shapes[i];
        &self.ranges[shape.first as usize..shape.last as usize]
    }

    /// Whether both are live in some section.
    pub(super) fn meet(&self, i: usize, j: usize) -> bool {
        let (a, b) = (&self.shapes[i], &self.shapes[j]);
        if a.from >= b.to || b.from >= a.to {
            return false;
        }
        if a.last - a.first == 1 && b.last - b.first == 1 {
            return true;
        }
        let (mut x, mut y) = (self.ranges(i).iter().peekable(), self.ranges(j).iter().peekable());
        while let (Some(a), Some(b)) = (x.peek(), y.peek()) {
            if a.0.max(b.0) < a.1.min(b.1) {
                return true;
            }
            if a.1 <= b.1 {
                x.next();
            } else {
                y.next();
            }
        }
        false
    }
}

/// Which of the places that an item fits it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest.
    First,
    /// The one between two items that is tightest, the lowest of those; above everything if there is none.
    Best,
}

/// Lays shapes out one after the other.
pub(super) struct FirstFit<'a> {
    shapes: &'a Shapes,
    /// What is placed, by offset: offset, end, shape.
    placed: Vec<(u64, u64, u32)>,
}

impl<'a> FirstFit<'a> {
    pub(super) fn new(shapes: &'a Shapes) -> FirstFit<'a> {
        FirstFit { shapes, placed: Vec::with_capacity(shapes.shapes.len()) }
    }

    /// How many are placed.
    pub(super) fn len(&self) -> usize {
        self.placed.len()
    }

    /// Starts again with these obstacles: shape and offset.
    pub(super) fn restart(&mut self, obstacles: &[(u32, u64)]) {
        self.placed.clear();
        self.placed.extend(obstacles.iter().map(|&(i, at)| (at, at + self.shapes.shapes[i as usize].size, i)));
        self.placed.sort_unstable();
    }

    /// The offset for shape `i` among what is placed.
    pub(super) fn offset_for(&self, i: u32, fit: Fit) -> u64 {
        let shape = &self.shapes.shapes[i as usize];
        let mut at = 0u64;
        let mut best = (u64::MAX, 0);
        for &(offset, end, other) in &self.placed {
            if end <= at || !self.shapes.meet(i as usize, other as usize) {
                continue;
            }
            if offset >= at && offset - at >= shape.size {
                if fit == Fit::First {
                    return at;
                }
                best = best.min((offset - at, at));
            }
            at = at.max(end.next_multiple_of(shape.align));
        }
        if best.0 == u64::MAX {
            at
        } else {
            best.1
        }
    }

    /// Puts shape `i` at `offset`.
    pub(super) fn put(&mut self, i: u32, offset: u64) {
        let entry = (offset, offset + self.shapes.shapes[i as usize].size, i);
        let at = self.placed.partition_point(|p| *p < entry);
        self.placed.insert(at, entry);
    }

    /// Takes shape `i` back from `offset`.
    pub(super) fn take(&mut self, i: u32, offset: u64) {
        let entry = (offset, offset + self.shapes.shapes[i as usize].size, i);
        if let Ok(at) = self.placed.binary_search(&entry) {
            self.placed.remove(at);
        }
    }

    /// Whether shape `i` meets nothing at `offset` but itself.
    pub(super) fn is_free(&self, i: u32, offset: u64) -> bool {
        let end = offset + self.shapes.shapes[i as usize].size;
        let hits = |&&(at, until, other): &&(u64, u64, u32)| at < end && offset < until && other != i;
        !self.placed.iter().filter(hits).any(|&(_, _, other)| self.shapes.meet(i as usize, other as usize))
    }

    /// Lays out everything in `order` around `obstacles`, into `offsets`, and returns the end of the highest item;
    /// `None` when the budget ran out or the size would pass `limit`.
    pub(super) fn place(
        &mut self,
        order: impl Iterator<Item = u32>,
        obstacles: &[(u32, u64)],
        fit: Fit,
        limit: u64,
        offsets: &mut [u64],
        budget: &mut Budget<'_>,
    ) -> Option<u64> {
        self.restart(obstacles);
        let mut size = 0;
        for i in order {
            let offset = self.offset_for(i, fit);
            let end = offset + self.shapes.shapes[i as usize].size;
            // A step of the budget is about a microsecond: some hundreds of comparisons.
            if end > limit || !budget.take(1 + self.placed.len() as u64 / 256) {
                return None;
            }
            offsets[i as usize] = offset;
            self.put(i, offset);
            size = size.max(end);
        }
        Some(size)
    }
}

//! A few buffers: tries every order, with each buffer at the lowest offset at which it fits.
//!
//! Some order gives an optimum. Take an optimal layout and place its buffers by rising offset. By
//! induction each lies no higher than in the optimum: the earlier buffers that it must avoid end at
//! or below its place there, and obstacles have not moved.

use super::first_fit::{FirstFit, Fit, Shapes};

/// Most buffers to try all orders of: 5,040 of them.
pub(super) const MOST: usize = 7;
/// Most obstacles for which all orders are tried.
pub(super) const MOST_OBSTACLES: usize = 1_000;

/// The smallest layout of the `movable` shapes around `obstacles`: the highest end of a movable
/// shape, and all offsets. `good` is a size that cannot be beaten.
pub(super) fn smallest(shapes: &Shapes, movable: &[u32], obstacles: &[(u32, u64)], good: u64) -> (u64, Vec<u64>) {
    let mut search = Search {
        fit: FirstFit::new(shapes),
        shapes,
        offsets: vec![0; shapes.shapes.len()],
        best: (u64::MAX, vec![0; shapes.shapes.len()]),
        good,
    };
    search.fit.restart(obstacles);
    search.place(movable, 0, 0);
    search.best
}

struct Search<'a> {
    fit: FirstFit<'a>,
    shapes: &'a Shapes,
    offsets: Vec<u64>,
    best: (u64, Vec<u64>),
    good: u64,
}

impl Search<'_> {
    /// Places the `movable` shapes without a bit in `done`. It recurses once for each buffer.
    fn place(&mut self, movable: &[u32], done: u32, size: u64) {
        if done.count_ones() as usize == movable.len() {
            self.best = (size, self.offsets.clone());
            return;
        }
        for (bit, &i) in movable.iter().enumerate() {
            if done >> bit & 1 == 1 || self.best.0 <= self.good {
                continue;
            }
            let offset = self.fit.offset_for(i, Fit::First).0;
            let end = size.max(offset + self.shapes.shapes[i as usize].size);
            if end < self.best.0 {
                self.offsets[i as usize] = offset;
                self.fit.put(i, offset);
                self.place(movable, done | 1 << bit, end);
                self.fit.take(i);
            }
        }
    }
}

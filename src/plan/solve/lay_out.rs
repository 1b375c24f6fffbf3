//! Lays out one arena: movable shapes around obstacles.

use super::arena::{Arena, Placed, Task};
use super::budget::{Budget, FIRST_STEPS};
use super::first_fit::{FirstFit, Shape, MOST_BEFORE_SKYLINE, MOST_SHAPES};
use super::options::Effort;
use super::{general, parts, tiny};

/// The simpler problem without gaps gets one in this many steps.
const SIMPLER_SHARE: u32 = 4;
/// The search around obstacles, which may have to round sizes, gets one in this many steps.
const ROUNDED_SHARE: u32 = 2;

impl Arena<'_> {
    /// Lays the arena out.
    pub(super) fn lay_out(&mut self, task: Task, budget: &mut Budget<'_>) -> Placed {
        // There is a layout from here on, so finding sections may be stopped, even for few buffers
        // with very many ranges.
        let mut placed = self.at_once();
        if !self.is_late(budget) && self.find_sections(budget) {
            let mut own = budget.part(1);
            let mut other = self.lay_out_freely(task, budget);
            // What the search for the bound finds on its way may be within a capacity that the
            // search for it is not. The clock leaves no time for both.
            let missed = task.capacity.is_some_and(|c| other.size > c && c > self.bound) && !other.optimal;
            if missed && task.effort != Effort::Fast && !budget.is_timed() && !budget.interrupted() {
                let found = self.lay_out_freely(Task { capacity: None, ..task }, &mut own);
                budget.join(0, own.interrupted());
                if found.optimal || found.size < other.size {
                    other = found;
                }
            }
            if other.size <= placed.size {
                placed = other;
            }
        }
        // No sections mean that there was no time for anything.
        if !self.preferred.is_empty() && self.sections > 0 {
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
                // The orders work in exact bytes, and may do better than parts in rounded sizes.
                general::improve(self, task, &mut placed, budget);
            }
            placed.optimal |= placed.size <= self.bound;
            return placed;
        }
        // A share of the effort goes to a simpler problem without gaps, or to the same problem in
        // rounded sizes.
        let share = match self.is_whole() {
            // It gets everything if nothing better follows.
            _ if n > MOST_SHAPES => 1,
            true if n > MOST_BEFORE_SKYLINE => 1,
            true => ROUNDED_SHARE,
            false => SIMPLER_SHARE,
        };
        let mut simpler = budget.part(share);
        let mut placed = parts::lay_out(self, task, &mut simpler);
        budget.join_part(&simpler);
        if placed.size > task.goal.max(self.bound) && !placed.optimal {
            general::improve(self, task, &mut placed, budget);
        }
        placed.optimal |= placed.size <= self.bound;
        placed
    }

    /// Moves shapes to their preferred places at no cost: all of them if the arena need not grow,
    /// and otherwise those whose places are free.
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
        // When time is over, the remaining preferences are dropped.
        let mut clock = budget.after(FIRST_STEPS);
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

    /// A layout of at most `size` with every preferred shape in its place, if one is found.
    fn with_all_preferred(&self, task: Task, size: u64, budget: &mut Budget<'_>) -> Option<Vec<u64>> {
        let mut wishes = vec![false; self.movable()];
        self.preferred.iter().for_each(|&(shape, _)| wishes[shape as usize] = true);
        let mut held = Arena::empty(self.problem);
        (held.sections, held.obstructed) = (self.sections, self.obstructed);
        let push = |held: &mut Arena<'_>, shape: u32| {
            let Shape { size, align, .. } = self.shapes.shapes[shape as usize];
            held.shapes.push(size, align, self.shapes.ranges(shape as usize).iter().copied());
        };
        let mut free = FirstFit::new(&self.shapes);
        free.restart(&self.obstacles);
        let mut moved = Vec::new();
        for shape in 0..self.movable() as u32 {
            if !wishes[shape as usize] {
                push(&mut held, shape);
                held.buffers.push(self.buffers[shape as usize]);
                moved.push(shape);
            }
        }
        let mut clock = budget.after(FIRST_STEPS);
        for &(shape, offset) in &self.preferred {
            let bytes = self.shapes.shapes[shape as usize].size;
            if !clock.take(1) {
                return None;
            }
            if offset + bytes > size || !free.is_free(shape, offset) {
                return None;
            }
            free.put(shape, offset);
            held.obstacle(offset, bytes);
            push(&mut held, shape);
        }
        for &(shape, offset) in &self.obstacles {
            held.obstacle(offset, self.shapes.shapes[shape as usize].size);
            push(&mut held, shape);
        }
        held.bound = self.bound;
        let found = held.lay_out_freely(Task { capacity: None, goal: size, ..task }, budget);
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

//! A division of buffers among arenas, and the input to it.

use super::arena::{reserved, stride, Steps};
use super::first_fit::Shapes;
use super::instance::sections;
use crate::plan::problem::{Buffer, Place, Problem, Reserved};
use std::cmp::Reverse;

/// A division: an arena for each buffer.
pub(super) struct Assigned {
    /// The arena of each buffer, by position in the list of ids.
    pub(super) homes: Vec<u32>,
    /// The offset found for each buffer, by position; `None` where none was found. If all offsets
    /// of an arena are known, they are a layout of it.
    pub(super) offsets: Vec<Option<u64>>,
}

impl Assigned {
    /// The buffers of each arena, and a layout of its movable ones if known.
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

/// The buffers to divide, over sections that all arenas share.
pub(super) struct Task<'a> {
    pub(super) problem: &'a Problem,
    /// The reserved ranges of each arena.
    pub(super) reserved: Vec<Vec<&'a Reserved>>,
    /// The buffers to divide, by index.
    pub(super) ids: &'a [u32],
    /// The shapes of `ids`, then of reserved ranges.
    pub(super) shapes: Shapes,
    pub(super) sections: usize,
    /// The reserved ranges of each arena: (shape, offset).
    pub(super) obstacles: Vec<Vec<(u32, u64)>>,
    /// Positions in `ids`. Fixed buffers come before movable, then bound before unbound, then
    /// larger before smaller.
    pub(super) order: Vec<u32>,
}

impl<'a> Task<'a> {
    /// The task of dividing `ids`.
    pub(super) fn new(problem: &'a Problem, ids: &'a [u32]) -> Task<'a> {
        let buffers = problem.buffers();
        // Arenas do not affect one another, but all of them must use the same sections.
        let by_arena = reserved(problem);
        let reserved = || by_arena.iter().flatten().copied();
        let steps = Steps::new(problem, reserved());
        let live = |i: u32| steps.of_buffer(&buffers[i as usize]);
        let ranges: Vec<(u64, u64)> =
            ids.iter().flat_map(|&i| live(i)).chain(reserved().map(|r| steps.of_range(r.during))).collect();
        let (ranges, count) = sections(ranges, &mut || false).unwrap_or_default();
        let mut ranges = ranges.into_iter();
        let mut shapes = Shapes::default();
        for &i in ids {
            let buffer = &buffers[i as usize];
            let ranges = ranges.by_ref().take(live(i).count());
            shapes.push(buffer.extent(), stride(buffer.alignment, problem.unit()), ranges);
        }
        let mut obstacles: Vec<Vec<(u32, u64)>> = vec![Vec::new(); by_arena.len()];
        for range in reserved() {
            obstacles[range.arena as usize].push((shapes.shapes.len() as u32, range.offset));
            shapes.push(range.size, 1, ranges.by_ref().take(1));
        }
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|&k| {
            let buffer = &buffers[ids[k as usize] as usize];
            let is_movable = !matches!(buffer.place, Place::Fixed(_));
            (is_movable, buffer.arena.is_none(), Reverse(buffer.extent()), k)
        });
        Task { problem, reserved: by_arena, ids, shapes, sections: count, obstacles, order }
    }

    /// The buffer at a position.
    pub(super) fn buffer(&self, k: u32) -> &'a Buffer {
        &self.problem.buffers()[self.ids[k as usize] as usize]
    }
}

//! Several arenas, all with capacities, as one problem. They are stacked, and no buffer lies across
//! a border between two. A buffer bound to an arena must lie within its band.

use super::blocks::Obstacle;
use super::budget::Budget;
use super::division::{Assigned, Task};
use super::instance::{Instance, Item};
use super::niche::Outcome;
use super::numbers::gcd;
use super::portfolio::{Experience, Portfolio};
use crate::plan::problem::{Place, MAX_BYTES};

/// Number of runs of the search.
const RUNS: u64 = 288;
/// Most items times sections to search; each of these cells takes two bits of memory.
const MOST_CELLS: usize = 1 << 24;
/// Most sections covered, summed over obstacles and the borders of arenas: 32 bytes each.
const MOST_BLOCKED: u64 = 1 << 21;

/// A division with its movable offsets, if one is found. `assigned` gives the arenas of fixed
/// buffers.
pub(super) fn search(task: &Task<'_>, assigned: &Assigned, threads: u32, budget: &mut Budget<'_>) -> Option<Assigned> {
    let arenas = task.problem.arenas();
    let fixed = |k: u32| match task.buffer(k).place {
        Place::Fixed(at) => Some(at),
        _ => None,
    };
    let (held, movable): (Vec<u32>, Vec<u32>) = (0..task.ids.len() as u32).partition(|&k| fixed(k).is_some());
    if movable.len().saturating_mul(task.sections) > MOST_CELLS {
        return None;
    }
    let shape = |k: u32| &task.shapes.shapes[k as usize];
    // By arena, its obstacles: (shape, offset).
    let mut obstacles = task.obstacles.clone();
    for &k in &held {
        obstacles[assigned.homes[k as usize] as usize].push((k, fixed(k)?));
    }
    let step = movable.iter().fold(0, |g, &k| gcd(g, shape(k).align)).max(1);
    let largest = movable.iter().map(|&k| shape(k).align).max().unwrap_or(1);
    let rounded = |bytes: u64| bytes.next_multiple_of(step);
    let taken = obstacles.iter().flatten().map(|&(k, at)| (at - at % step, rounded(at + shape(k).size)));
    let sizes = movable.iter().fold(0, |g, &k| gcd(g, rounded(shape(k).size)));
    let strides = movable.iter().map(|&k| shape(k).align).filter(|&align| align > 1).fold(sizes, gcd);
    let grain = taken.fold(strides, |g, (bottom, end)| gcd(gcd(g, bottom), end)).max(1);
    // Every arena begins at a multiple of the largest alignment.
    let mut bases = Vec::new();
    let mut borders = Vec::new();
    let mut top = 0u64;
    for arena in arenas {
        let base = top.checked_next_multiple_of((largest / grain).max(1))?;
        borders.push((top, base));
        bases.push(base);
        top = base.checked_add(arena.capacity? / grain).filter(|&top| top <= MAX_BYTES)?;
    }
    let sections = task.sections as u32;
    let border = |&(bottom, end): &(u64, u64)| Obstacle { from: 0, to: sections, bottom, end };
    let mut all: Vec<Obstacle> = borders.iter().skip(1).map(border).collect();
    for (&base, obstacles) in bases.iter().zip(&obstacles) {
        for &(k, at) in obstacles {
            let (bottom, end) = (base + (at - at % step) / grain, base + rounded(at + shape(k).size) / grain);
            all.extend(task.shapes.ranges(k as usize).iter().map(|&(from, to)| Obstacle { from, to, bottom, end }));
        }
    }
    if all.iter().map(|o| u64::from(o.to - o.from)).sum::<u64>() > MOST_BLOCKED {
        return None;
    }
    let item = |&k: &u32| {
        let shape = shape(k);
        let (size, align) = (rounded(shape.size) / grain, (shape.align / grain).max(1));
        Item { from: shape.span.0, to: shape.span.1, size, align }
    };
    let mut instance = Instance::around(movable.iter().map(item).collect(), all, task.sections);
    if movable.iter().any(|&k| task.buffer(k).arena.is_some()) {
        let band = |&k: &u32| match task.buffer(k).arena.map(|a| a as usize) {
            Some(a) => (bases[a], bases[a] + arenas[a].capacity.unwrap_or(0) / grain),
            None => (0, u64::MAX),
        };
        instance.bands = movable.iter().map(band).collect();
    }
    let mut offsets = vec![0; movable.len()];
    if Portfolio::new(&instance, threads).search(top, RUNS, &mut Experience::default(), &mut offsets, budget)
        != Outcome::Found
    {
        return None;
    }
    let mut found = Assigned { homes: assigned.homes.clone(), offsets: vec![None; task.ids.len()] };
    for (&k, &at) in movable.iter().zip(&offsets) {
        let home = bases.partition_point(|&base| base <= at) - 1;
        found.homes[k as usize] = home as u32;
        found.offsets[k as usize] = Some((at - bases[home]) * grain);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plan::problem::{Arena, Buffer, Problem};

    /// A border goes through all sections, so their memory is arenas times sections, however few
    /// buffers can move.
    #[test]
    fn many_arenas_over_many_sections_are_not_searched() {
        for (count, searched) in [(50, true), (1_000, false)] {
            let mut problem = Problem::new();
            problem.set_capacity(Some(9));
            (1..count).for_each(|_| _ = problem.add_arena(Arena { capacity: Some(9), ..Arena::default() }));
            let fixed = |k| Buffer { place: Place::Fixed(0), arena: Some(0), ..Buffer::new(1, k, k + 1) };
            (0..3_000).map(fixed).chain([Buffer::new(9, 0, 3_000)]).for_each(|b| _ = problem.add(b).unwrap());
            let ids: Vec<u32> = (0..=3_000).collect();
            let task = Task::new(&problem, &ids);
            let assigned = Assigned { homes: vec![0; ids.len()], offsets: vec![None; ids.len()] };
            let found = search(&task, &assigned, 1, &mut Budget::new(u64::MAX, None, None));
            assert_eq!(found.is_some(), searched, "{count} arenas");
        }
    }
}

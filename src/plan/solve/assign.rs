//! Which arena each buffer goes to.
//!
//! A buffer bound to none goes to the first arena, in order of adding, in which the greedy order by size finds room for
//! it; what is bound to an arena has the first claim on it.

use super::arena::{blocking, stride, Steps};
use super::first_fit::{FirstFit, Fit, Shapes};
use super::instance::Sections;
use crate::plan::problem::{Place, Problem};
use std::cmp::Reverse;

/// For each of `ids`, its arena. Buffers for which there is no room anywhere go to the last arena, whose size then says
/// what is missing. `None` when a fixed buffer is in the way of others in every arena: another division may do.
pub(super) fn assign(problem: &Problem, ids: &[u32]) -> Option<Vec<u32>> {
    let buffers = problem.buffers();
    let arenas = problem.arenas().len();
    if arenas == 1 {
        return Some(vec![0; ids.len()]);
    }
    // Arenas do not touch one another, but what is in the way where must be told in the same sections.
    let steps: Vec<Steps> = (0..arenas as u32).map(|a| Steps::new(problem, a)).collect();
    let one = steps.iter().find(|s| !matches!(s, Steps::One)).unwrap_or(&steps[0]);
    let live = |i: u32| one.of_buffer(&buffers[i as usize]);
    let reserved: Vec<_> = (0..arenas as u32).flat_map(|a| blocking(problem, a)).collect();
    let ranges: Vec<(u64, u64)> =
        ids.iter().flat_map(|&i| live(i)).chain(reserved.iter().map(|r| one.of_reserved(r))).collect();
    let sections = Sections::new(ranges.iter().copied());
    let mut shapes = Shapes::default();
    for &i in ids {
        let buffer = &buffers[i as usize];
        let ranges = live(i);
        let ranges = ranges.iter().map(|&(from, to)| sections.of(from, to));
        shapes.push(buffer.extent(), stride(buffer.alignment, problem.unit()), ranges);
    }
    let mut obstacles: Vec<Vec<(u32, u64)>> = vec![Vec::new(); arenas];
    for range in reserved {
        let (from, to) = one.of_reserved(range);
        obstacles[range.arena as usize].push((shapes.shapes.len() as u32, range.offset));
        shapes.push(range.size, 1, std::iter::once(sections.of(from, to)));
    }
    let mut fits: Vec<FirstFit<'_>> = (0..arenas).map(|_| FirstFit::new(&shapes)).collect();
    for (fit, obstacles) in fits.iter_mut().zip(&obstacles) {
        fit.restart(obstacles);
    }
    // Fixed before bound before free, larger before smaller.
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
    let mut homes = vec![0; ids.len()];
    for k in order {
        let buffer = &buffers[ids[k as usize] as usize];
        let place = |fit: &FirstFit<'_>| match buffer.place {
            Place::Fixed(at) => fit.is_free(k, at).then_some(at),
            _ => Some(fit.offset_for(k, Fit::First)),
        };
        let room = |arena: usize, at: u64| {
            problem.arenas()[arena].capacity.is_none_or(|capacity| at + buffer.extent() <= capacity)
        };
        let found = match buffer.arena {
            Some(arena) => Some(arena as usize),
            None => (0..arenas).find(|&a| place(&fits[a]).is_some_and(|at| room(a, at))),
        };
        let home = found.unwrap_or(arenas - 1);
        let at = place(&fits[home])?;
        fits[home].put(k, at);
        homes[k as usize] = home as u32;
    }
    Some(homes)
}

//! Assigns many buffers to arenas without comparing every pair.
//!
//! Arenas are filled in turn. Each takes the buffers bound to it, then, largest first, those that
//! fit by sums: the bytes live at any step stay within the capacity. A layout may need more than
//! the sums, so the greedy orders lay the arena out, and buffers that end above its capacity go on
//! to the next arena. An arena without a capacity takes all the rest, and so does the last. When
//! time is over, the others take no more, not even what is fixed.

use super::arena;
use super::arena::Arena;
use super::budget::Budget;
use super::division::{Assigned, Task};
use super::first_fit::FirstFit;
use super::in_time::PIECE;
use super::loads::Loads;
use super::options::Effort;
use crate::plan::problem::Place;

/// [`super::assign::assign`] for many buffers.
pub(super) fn divide(task: &Task<'_>, budget: &mut Budget<'_>) -> Option<Assigned> {
    let arenas = task.problem.arenas();
    let mut assigned = Assigned { homes: vec![0; task.ids.len()], offsets: vec![None; task.ids.len()] };
    let (mut free, mut fixed) = (Vec::new(), Vec::new());
    let mut bound: Vec<Vec<u32>> = vec![Vec::new(); arenas.len()];
    for &k in &task.order {
        match (task.buffer(k).arena, task.buffer(k).place) {
            (Some(arena), _) => bound[arena as usize].push(k),
            (None, Place::Fixed(_)) => fixed.push(k),
            (None, _) => free.push(k),
        }
    }
    let mut loads = Loads::new(task.sections);
    let mut fit = FirstFit::new(&task.shapes);
    for (index, mut mine) in bound.into_iter().enumerate() {
        let is_last = index + 1 == arenas.len();
        let late = budget.is_late();
        // Without time, they go straight to the last.
        if is_last || !late {
            mine.extend(take_fixed(task, index, &mine, &mut fixed, &mut fit));
        }
        if is_last && !fixed.is_empty() {
            return None;
        }
        let claims = mine.len();
        let capacity = arenas[index].capacity.filter(|_| !is_last);
        match capacity {
            None => mine.append(&mut free),
            Some(_) if late || free.is_empty() => {}
            Some(capacity) => {
                loads.clear();
                mine.extend(take_free(task, index, &mine, capacity, &mut free, &mut loads, budget));
            }
        }
        for &k in &mine {
            assigned.homes[k as usize] = index as u32;
        }
        let Some(capacity) = arenas[index].capacity.filter(|_| !late && !mine.is_empty()) else { continue };
        lay_out(task, index, &mine, capacity, &mut assigned, budget);
        if is_last {
            continue;
        }
        let claim = mine.split_off(claims);
        let above = |k: &u32| assigned.offsets[*k as usize].is_none_or(|at| at + task.buffer(*k).extent() > capacity);
        let evicted: Vec<u32> = claim.into_iter().filter(above).collect();
        if !evicted.is_empty() {
            evicted.iter().for_each(|&k| assigned.offsets[k as usize] = None);
            free.extend(evicted);
            // As in the order of the task.
            free.sort_by_key(|&k| (std::cmp::Reverse(task.buffer(k).extent()), k));
        }
    }
    Some(assigned)
}

/// Takes from `fixed`, which are bound to no arena, the buffers that fit in this one. `claims` are
/// bound to it.
fn take_fixed<'t>(
    task: &'t Task<'_>,
    index: usize,
    claims: &[u32],
    fixed: &mut Vec<u32>,
    fit: &mut FirstFit<'t>,
) -> Vec<u32> {
    let mut taken = Vec::new();
    if fixed.is_empty() {
        return taken;
    }
    let capacity = task.problem.arenas()[index].capacity;
    let is_last = index + 1 == task.problem.arenas().len();
    let mut obstacles = task.obstacles[index].clone();
    obstacles.extend(claims.iter().filter_map(|&k| match task.buffer(k).place {
        Place::Fixed(at) => Some((k, at)),
        _ => None,
    }));
    fit.restart(&obstacles);
    fixed.retain(|&k| {
        let Place::Fixed(at) = task.buffer(k).place else { return true };
        let room = is_last || capacity.is_none_or(|c| at + task.buffer(k).extent() <= c);
        if !room || !fit.is_free(k, at) {
            return true;
        }
        fit.put(k, at);
        taken.push(k);
        false
    });
    taken
}

/// Takes from `free` the buffers that fit beside `claims` by sums, until time is over. `loads` is
/// clear.
fn take_free(
    task: &Task<'_>,
    index: usize,
    claims: &[u32],
    capacity: u64,
    free: &mut Vec<u32>,
    loads: &mut Loads,
    budget: &mut Budget<'_>,
) -> Vec<u32> {
    let add = |loads: &mut Loads, shape: u32| {
        for &(from, to) in task.shapes.ranges(shape as usize) {
            loads.add(from, to, task.shapes.shapes[shape as usize].size);
        }
    };
    for &shape in claims.iter().chain(task.obstacles[index].iter().map(|(shape, _)| shape)) {
        add(loads, shape);
    }
    let (mut taken, mut seen, mut late) = (Vec::new(), 0, false);
    free.retain(|&k| {
        seen += 1;
        late = late || seen % PIECE == 0 && budget.is_late();
        if late {
            return true;
        }
        let size = task.shapes.shapes[k as usize].size;
        let ranges = task.shapes.ranges(k as usize);
        let live = ranges.iter().map(|&(from, to)| loads.most(from, to)).max().unwrap_or(0);
        if live.saturating_add(size) > capacity {
            return true;
        }
        add(loads, k);
        taken.push(k);
        false
    });
    taken
}

/// Lays out one arena, and records the offsets.
fn lay_out(
    task: &Task<'_>,
    index: usize,
    mine: &[u32],
    capacity: u64,
    assigned: &mut Assigned,
    budget: &mut Budget<'_>,
) {
    let mut mine = mine.to_vec();
    mine.sort_unstable();
    let ids: Vec<u32> = mine.iter().map(|&k| task.ids[k as usize]).collect();
    let mut arena = Arena::new(task.problem, task.reserved[index].clone(), ids);
    // Preferred offsets wait until the arena's buffers are known.
    arena.preferred.clear();
    let mut greedy = budget.without_count();
    let how = arena::Task { capacity: None, goal: capacity, effort: Effort::Fast, threads: 1 };
    let placed = arena.lay_out(how, &mut greedy);
    if greedy.interrupted() {
        budget.join(0, true);
    }
    let mut offsets = placed.offsets.into_iter();
    for k in mine {
        assigned.offsets[k as usize] = match task.buffer(k).place {
            Place::Fixed(at) => Some(at),
            _ => offsets.next(),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::budget::tests::over_after;
    use super::*;
    use crate::plan::problem::{Arena, Buffer, Problem};
    use fastrand::Rng;

    /// Problems of `count` buffers for many small arenas and one that takes the rest.
    fn problem(count: u64) -> Problem {
        let rng = &mut Rng::with_seed(1);
        let mut problem = Problem::new();
        problem.set_capacity(Some(3_000));
        (0..199).for_each(|_| _ = problem.add_arena(Arena { capacity: Some(3_000), ..Arena::default() }));
        problem.add_arena(Arena::default());
        for _ in 0..count {
            let lower = rng.u64(..count);
            problem.add(Buffer::new(rng.u64(500..1_000), lower, lower + rng.u64(1..count))).unwrap();
        }
        problem
    }

    #[test]
    fn the_end_of_time_ends_the_division() {
        let problem = problem(3_000);
        let ids: Vec<u32> = (0..3_000).collect();
        let task = Task::new(&problem, &ids);
        for looks in [1, 20, 200] {
            let divided = || divide(&task, &mut Budget::new(u64::MAX, None, None)).unwrap();
            let (all, assigned) = over_after(looks, divided);
            let filled = assigned.homes.iter().filter(|&&home| home < 200).max().map_or(0, |home| home + 1);
            // A look for each arena, and some for what is laid out in it.
            assert!(u64::from(filled) <= looks / 2, "{filled} arenas after {looks} looks");
            assert!(all <= looks + 300, "{all} looks, to be stopped at {looks}");
        }
    }

    /// What is fixed may wait for an arena behind very many.
    #[test]
    fn the_end_of_time_ends_the_look_for_room_of_what_is_fixed() {
        let mut problem = problem(100);
        let fixed = |arena| Buffer { place: Place::Fixed(0), arena, ..Buffer::new(1, 0, 100) };
        (0..150).for_each(|arena| _ = problem.add(fixed(Some(arena))).unwrap());
        problem.add(fixed(None)).unwrap();
        let ids: Vec<u32> = (0..=250).collect();
        let task = Task::new(&problem, &ids);
        for (looks, home) in [(u64::MAX, 150), (20, 200)] {
            let divided = || divide(&task, &mut Budget::new(u64::MAX, None, None)).unwrap();
            assert_eq!(over_after(looks, divided).1.homes[250], home, "{looks} looks");
        }
    }

    /// An arena may have to look at very many buffers of which it takes none.
    #[test]
    fn the_end_of_time_ends_the_look_at_what_is_free() {
        let count = 4 * PIECE as u32;
        let problem = problem(count.into());
        let ids: Vec<u32> = (0..count).collect();
        let task = Task::new(&problem, &ids);
        let (mut free, mut loads) = (task.order.clone(), Loads::new(task.sections));
        let take = || {
            let budget = &mut Budget::new(u64::MAX, None, None);
            take_free(&task, 0, &[], u64::MAX, &mut free, &mut loads, budget).len()
        };
        assert_eq!(over_after(2, take).1, 2 * PIECE - 1);
        assert_eq!(free.len(), 2 * PIECE + 1);
    }
}

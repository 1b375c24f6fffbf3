//! Which arena each buffer goes to.
//!
//! What is fixed has the first claim, then what is bound to an arena. A free buffer goes to the
//! first arena, in order of adding, in which the greedy order by size finds room. Where that leaves
//! some buffer without room, bound buffers come first of all. This compares every buffer with every
//! other, so [`super::divide`] divides large numbers of buffers. When some buffer fits no arena,
//! [`super::spread`] looks for another division.

use super::budget::{Budget, FIRST_STEPS};
use super::divide::divide;
use super::division::{Assigned, Task};
use super::first_fit::{FirstFit, Fit};
use super::options::{Effort, SolveOptions};
use super::spread;
use crate::plan::problem::{Place, Problem};

/// Most buffers compared with one another.
const MOST_COMPARED: usize = 4_000;

/// For each of `ids`, its arena. Buffers that fit nowhere go to the last arena, whose size then
/// shows how much is missing. `None` when a fixed buffer collides with others in every arena;
/// another division may work.
pub(super) fn assign(
    problem: &Problem,
    ids: &[u32],
    options: &SolveOptions<'_>,
    budget: &mut Budget<'_>,
) -> Option<Assigned> {
    let arenas = problem.arenas();
    let task = Task::new(problem, ids);
    let all_fit = |assigned: &Assigned| {
        let mut each = (0u32..).zip(assigned.homes.iter().zip(&assigned.offsets));
        each.all(|(k, (&home, at))| {
            let capacity = arenas[home as usize].capacity;
            at.is_some_and(|at| capacity.is_none_or(|c| at + task.buffer(k).extent() <= c))
        })
    };
    let many = ids.len() > MOST_COMPARED;
    let mut assigned = if many { divide(&task, budget) } else { first_with_room(&task, &task.order, budget) };
    if !many && !assigned.as_ref().is_some_and(all_fit) {
        // A fixed buffer may have taken room that a bound one needs, where another arena has it
        // too.
        let mut bound_first = task.order.clone();
        bound_first.sort_by_key(|&k| task.buffer(k).arena.is_none());
        if bound_first != task.order {
            assigned = first_with_room(&task, &bound_first, budget).or(assigned);
        }
    }
    let assigned = assigned?;
    if all_fit(&assigned) || options.effort == Effort::Fast || arenas.iter().any(|a| a.capacity.is_none()) {
        return Some(assigned);
    }
    Some(spread::search(&task, &assigned, options, budget).unwrap_or(assigned))
}

/// Assigns each buffer, in this order, to the first arena in which the greedy order finds room.
fn first_with_room(task: &Task<'_>, order: &[u32], budget: &mut Budget<'_>) -> Option<Assigned> {
    let (arenas, ids) = (task.problem.arenas(), task.ids);
    let mut fits: Vec<FirstFit<'_>> = (0..arenas.len()).map(|_| FirstFit::new(&task.shapes)).collect();
    for (fit, obstacles) in fits.iter_mut().zip(&task.obstacles) {
        fit.restart(obstacles);
    }
    let mut clock = budget.after(FIRST_STEPS);
    let last = arenas.len() - 1;
    // When time is over, the remaining buffers go to an arena with room for everything.
    let roomy = arenas.iter().position(|a| a.capacity.is_none()).unwrap_or(last);
    let mut assigned = Assigned { homes: vec![roomy as u32; ids.len()], offsets: vec![None; ids.len()] };
    for &k in order {
        let buffer = task.buffer(k);
        let fixed = matches!(buffer.place, Place::Fixed(_));
        // Every arena looked at counts: there may be thousands.
        let place = |arena: usize, fits: &[FirstFit<'_>], clock: &mut Budget<'_>| {
            let in_time = clock.take(1 + fits[arena].len() as u64 / 1024);
            match buffer.place {
                Place::Fixed(at) => fits[arena].is_free(k, at).then_some(at),
                _ => in_time.then(|| fits[arena].offset_for(k, Fit::First).0),
            }
        };
        let room = |arena: usize, at: u64| arenas[arena].capacity.is_none_or(|c| at + buffer.extent() <= c);
        let mut with_room =
            || (0..arenas.len()).find_map(|a| Some((a, place(a, &fits, &mut clock).filter(|&at| room(a, at))?)));
        let (home, at) = match buffer.arena {
            Some(arena) => (arena as usize, place(arena as usize, &fits, &mut clock)),
            None => match with_room() {
                Some((home, at)) => (home, Some(at)),
                None => {
                    let home = if clock.interrupted() && !fixed { roomy } else { last };
                    (home, place(home, &fits, &mut clock))
                }
            },
        };
        assigned.homes[k as usize] = home as u32;
        match at {
            Some(at) => {
                fits[home].put(k, at);
                assigned.offsets[k as usize] = Some(at);
            }
            None if fixed => return None,
            None => {}
        }
    }
    if clock.interrupted() {
        budget.join(0, true);
    }
    Some(assigned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::budget::tests::over_after;
    use super::*;
    use crate::plan::problem::{Arena, Buffer};

    /// Few buffers may have very many arenas to look at.
    #[test]
    fn the_end_of_time_ends_the_look_for_an_arena() {
        let mut problem = Problem::new();
        problem.set_capacity(Some(9));
        (0..200).for_each(|_| _ = problem.add_arena(Arena { capacity: Some(9), ..Arena::default() }));
        problem.add_arena(Arena::default());
        (0..1_000).for_each(|k| _ = problem.add(Buffer::new(10, k, k + 2)).unwrap());
        let ids: Vec<u32> = (0..1_000).collect();
        let task = Task::new(&problem, &ids);
        let mut budget = Budget::new(u64::MAX, None, None);
        let (_, assigned) = over_after(0, || first_with_room(&task, &task.order, &mut budget).unwrap());
        let placed = assigned.offsets.iter().flatten().count() as u64;
        assert!(budget.interrupted() && placed * 200 <= FIRST_STEPS, "{placed} placed without time");
    }
}

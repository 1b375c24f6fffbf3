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
        let in_time = clock.take(1) || fixed;
        let place = |fit: &FirstFit<'_>| match buffer.place {
            Place::Fixed(at) => fit.is_free(k, at).then_some(at),
            _ if !in_time => None,
            _ => Some(fit.offset_for(k, Fit::First).0),
        };
        let room = |arena: usize, at: u64| arenas[arena].capacity.is_none_or(|c| at + buffer.extent() <= c);
        let found = match buffer.arena {
            Some(arena) => Some(arena as usize),
            None => (0..arenas.len()).find(|&a| place(&fits[a]).is_some_and(|at| room(a, at))),
        };
        let home = found.unwrap_or(if in_time { last } else { roomy });
        assigned.homes[k as usize] = home as u32;
        match place(&fits[home]) {
            Some(at) => {
                clock.take(fits[home].len() as u64 / 1024);
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

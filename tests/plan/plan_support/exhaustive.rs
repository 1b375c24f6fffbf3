//! The smallest arena, by trying all orders.

use super::generate::{self, Features, Rng};
use super::greedy::{find, obstacles, place, Fit, Slots};
use gpumem::plan::{Buffer, Place, Problem, Slot};

/// Most buffers to try all orders of.
pub const MOST: usize = 7;

/// The smallest size of a problem in which every buffer can be in one arena only.
///
/// Some order of placing each buffer at the lowest offset where it fits ends with an optimum. Take
/// an optimum and place its movable buffers in the order of their offsets there. Each comes to lie
/// no higher than in the optimum, by induction: of the buffers before it, those that need other
/// bytes than it end at or below its offset in the optimum, as the two are disjoint there and the
/// other starts no higher; they lie no higher now; and what cannot move, fixed buffers and reserved
/// ranges, is where it is in the optimum. So its offset in the optimum, which is aligned, is still
/// free, and the lowest free one is no higher. Gaps change nothing: they only decide who needs
/// other bytes than whom. Arenas do not touch each other, so that one order serves all.
pub fn optimum(problem: &Problem) -> (u64, Slots) {
    let buffers = problem.buffers();
    let only = problem.arenas().len() == 1;
    assert!(only || buffers.iter().all(|b| b.arena.is_some()), "a buffer may be in several arenas");
    assert!(buffers.len() <= MOST, "{} buffers have too many orders", buffers.len());
    let (fixed, movable): (Vec<usize>, Vec<usize>) =
        (0..buffers.len()).partition(|i| matches!(buffers[*i].place, Place::Fixed(_)));
    let slots = place(problem, &fixed, Fit::First, |_| 0);
    let movable: Vec<usize> = movable.into_iter().filter(|i| !problem.left_out().contains(buffers[*i].kind)).collect();
    let mut best: Option<(u64, Slots)> = None;
    permute(problem, slots, movable, &mut best);
    best.unwrap()
}

fn permute(problem: &Problem, slots: Slots, rest: Vec<usize>, best: &mut Option<(u64, Slots)>) {
    if rest.is_empty() {
        let size = super::accounted(problem, slots.clone()).size;
        if best.as_ref().is_none_or(|(smallest, _)| size < *smallest) {
            *best = Some((size, slots));
        }
        return;
    }
    for (at, &i) in rest.iter().enumerate() {
        let buffer = &problem.buffers()[i];
        let arena = buffer.arena.unwrap_or(0);
        let offset = find(problem, &obstacles(problem, &slots, buffer, arena), buffer, Fit::First);
        let mut slots = slots.clone();
        slots[i] = Some(Slot { arena, offset });
        let mut rest = rest.clone();
        rest.remove(at);
        permute(problem, slots, rest, best);
    }
}

/// Small enough to try all orders, with any features; buffers that could choose an arena are bound
/// to one.
pub fn tiny(seed: u64) -> Problem {
    let rng = &mut Rng::new(seed);
    let most_buffers = if rng.one_in(8) { MOST } else { 6 };
    let count = rng.between(1, most_buffers as u64) as usize;
    let (steps, most) = (rng.between(1, 12), [4, 20, 1000][rng.below(3) as usize]);
    let features = if rng.one_in(3) { Features::default() } else { Features::some(rng) };
    let made = generate::with_features(rng.draw(), count, steps, most, features).unwrap();
    let mut problem = Problem::new();
    problem.set_unit(made.unit()).unwrap();
    problem.set_reuse(made.reuse());
    problem.set_left_out(made.left_out());
    for arena in made.arenas().iter().skip(1) {
        problem.add_arena(arena.clone());
    }
    // A buffer bound here may have more company than the generator made room for.
    problem.set_capacity(None);
    for range in made.reserved() {
        problem.reserve(range.clone()).unwrap();
    }
    for buffer in made.buffers() {
        problem.add(Buffer { arena: buffer.arena.or(Some(0)), ..buffer.clone() }).unwrap();
    }
    problem
}

//! Layouts to verify.

use super::generate::{self, Features, Rng};
use super::{accounted, greedy, stride};
use gpumem::plan::{Layout, LayoutStatus, Place, Problem, Slot};

/// A layout that is right, or nearly, or not at all.
pub fn any_layout(problem: &Problem, rng: &mut Rng) -> Layout {
    let mut slots = greedy::at_random(problem, rng);
    if rng.one_in(3) {
        // Offsets out of nowhere: of two or three buffers they are often right.
        for (slot, buffer) in slots.iter_mut().zip(problem.buffers()).filter_map(|(s, b)| Some((s.as_mut()?, b))) {
            slot.offset = match buffer.place {
                Place::Fixed(at) => at,
                _ => rng.below(128).next_multiple_of(stride(problem, buffer)),
            };
        }
    }
    let mut nudged = false;
    if !slots.is_empty() && rng.one_in(2) {
        let i = rng.below(slots.len() as u64) as usize;
        if let Some(slot) = &mut slots[i] {
            nudged = true;
            match rng.below(4) {
                0 => slot.offset += 1 << rng.below(7),
                1 => slot.offset = slot.offset.saturating_sub(1 << rng.below(7)),
                2 => slot.offset = 0,
                _ => slot.arena = rng.below(problem.arenas().len() as u64) as u32,
            }
        }
    }
    let mut layout = accounted(problem, slots);
    if nudged || rng.one_in(2) {
        return layout;
    }
    let sizes = layout.arenas.len() as u64;
    let arena = rng.below(sizes) as usize;
    let by = |rng: &mut Rng, value: &mut u64| {
        let near = [value.saturating_sub(1), *value + 1, *value / 2, *value * 2, 0];
        *value = near[rng.below(near.len() as u64) as usize];
    };
    match rng.below(9) {
        0 => by(rng, &mut layout.lower_bound),
        1 => by(rng, &mut layout.total_unshared),
        2 => by(rng, &mut layout.size),
        3 => by(rng, &mut layout.arenas[arena].lower_bound),
        4 => {
            by(rng, &mut layout.arenas[arena].size);
            layout.size = layout.arenas.iter().map(|a| a.size).sum();
        }
        5 => layout.status = [LayoutStatus::Optimal, LayoutStatus::Feasible][rng.below(2) as usize],
        6 if !layout.slots.is_empty() => {
            let i = rng.below(layout.slots.len() as u64) as usize;
            layout.slots[i] = if layout.slots[i].is_some() { None } else { Some(Slot { arena: 0, offset: 0 }) };
        }
        _ => {
            layout.status = [LayoutStatus::Infeasible, LayoutStatus::OutOfTime][rng.below(2) as usize];
            layout.slots = vec![None; layout.slots.len()];
            if rng.one_in(2) {
                layout.arenas[arena].size = rng.below(2 * layout.size + 100);
                layout.size = layout.arenas.iter().map(|a| a.size).sum();
            }
        }
    }
    layout
}

/// A small problem with any features, and perhaps a capacity that is or is not enough.
pub fn small(rng: &mut Rng) -> Problem {
    let (count, steps, most) = (rng.below(9) as usize, rng.between(1, 10), rng.between(1, 64));
    let features = Features::some(rng);
    let features = Features { arenas: features.arenas && rng.one_in(2), ..features };
    let mut problem = generate::with_features(rng.draw(), count, steps, most, features).unwrap();
    if rng.one_in(3) {
        problem.set_capacity(Some(rng.below(4 * most)));
    }
    problem
}

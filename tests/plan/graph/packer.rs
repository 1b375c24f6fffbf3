//! Valid layouts of a problem, tight and different for each random number: first fit in random
//! order. It knows nothing of the library's solver, and is too slow for anything but small
//! problems.

use super::Rng;
use gpumem::plan::{ArenaUse, Buffer, Interval, Layout, LayoutStatus, Place, Problem, Slot};
use std::time::Duration;

struct Taken {
    arena: u32,
    lower: u64,
    upper: u64,
    live: Vec<Interval>,
}

/// A layout in which what is live together shares no byte. Panics where fixed places make that
/// impossible.
pub fn pack(problem: &Problem, rng: &mut Rng) -> Layout {
    let mut taken: Vec<Taken> = Vec::new();
    for r in problem.reserved() {
        taken.push(Taken { arena: r.arena, lower: r.offset, upper: r.offset + r.size, live: vec![r.during] });
    }
    let mut order: Vec<usize> = (0..problem.buffers().len()).collect();
    rng.shuffle(&mut order);
    order.sort_by_key(|&i| !matches!(problem.buffers()[i].place, Place::Fixed(_)));
    let mut slots = vec![None; order.len()];
    // Sometimes a hole at the start, so that not everything begins at 0.
    let start = if rng.chance(20) { rng.below(40) } else { 0 };
    for i in order {
        let buffer = &problem.buffers()[i];
        if problem.left_out().contains(buffer.kind) {
            continue;
        }
        let arena = buffer.arena.unwrap_or(0);
        let offset = match buffer.place {
            Place::Fixed(offset) => {
                assert!(fits(problem, &taken, buffer, arena, offset), "fixed buffers overlap: {problem:#?}");
                offset
            }
            Place::Preferred(offset) if fits(problem, &taken, buffer, arena, offset) => offset,
            _ => {
                let ends = taken.iter().filter(|t| t.arena == arena).map(|t| t.upper);
                let starts = std::iter::once(start).chain(ends).map(|at| at.next_multiple_of(buffer.alignment));
                starts.filter(|&at| fits(problem, &taken, buffer, arena, at)).min().unwrap()
            }
        };
        slots[i] = Some(Slot { arena, offset });
        if buffer.occupies() {
            taken.push(Taken { arena, lower: offset, upper: offset + buffer.extent(), live: buffer.live().collect() });
        }
    }
    let mut arenas = vec![ArenaUse::default(); problem.arenas().len()];
    for t in &taken {
        let size = &mut arenas[t.arena as usize].size;
        *size = (*size).max(t.upper);
    }
    Layout {
        slots,
        size: arenas.iter().map(|a| a.size).sum(),
        arenas,
        lower_bound: 0,
        total_unshared: 0,
        status: LayoutStatus::Feasible,
        interrupted: false,
        elapsed: Duration::ZERO,
    }
}

/// Whether the slots of any layout are where they may be.
pub fn is_valid(problem: &Problem, layout: &Layout) -> bool {
    let mut taken: Vec<Taken> = Vec::new();
    for r in problem.reserved() {
        taken.push(Taken { arena: r.arena, lower: r.offset, upper: r.offset + r.size, live: vec![r.during] });
    }
    problem.buffers().iter().zip(&layout.slots).all(|(buffer, slot)| {
        let Some(Slot { arena, offset }) = *slot else { return problem.left_out().contains(buffer.kind) };
        if problem.left_out().contains(buffer.kind) {
            return true;
        }
        let good = offset % buffer.alignment == 0
            && (arena as usize) < problem.arenas().len()
            && buffer.arena.is_none_or(|a| a == arena)
            && !matches!(buffer.place, Place::Fixed(fixed) if fixed != offset)
            && fits(problem, &taken, buffer, arena, offset);
        if buffer.occupies() {
            taken.push(Taken { arena, lower: offset, upper: offset + buffer.extent(), live: buffer.live().collect() });
        }
        good
    })
}

fn fits(problem: &Problem, taken: &[Taken], buffer: &Buffer, arena: u32, offset: u64) -> bool {
    let clear = |t: &Taken| {
        t.arena != arena
            || offset + buffer.extent() <= t.lower
            || t.upper <= offset
            || (problem.reuse() && !buffer.live().any(|own| t.live.iter().any(|&other| own.overlaps(other))))
    };
    !buffer.occupies() || taken.iter().all(clear)
}

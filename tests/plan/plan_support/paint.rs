//! The verifier's oracle: everything that a layout promises, checked by painting every byte at
//! every step.

use super::{live_at, stride};
use gpumem::plan::{Layout, LayoutStatus, Place, Problem, Step};

/// What a byte is painted with.
#[derive(Clone, Copy, PartialEq)]
enum Paint {
    Free,
    Reserved,
    Buffer,
}

/// Above this an offset is not painted, and the layout is wrong: no test's problem needs as much.
const CANVAS: u64 = 1 << 13;

/// Whether the layout is right, or what is wrong with it.
pub fn check(problem: &Problem, layout: &Layout) -> Result<(), String> {
    let ensure = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_string()) };
    let placed = matches!(layout.status, LayoutStatus::Optimal | LayoutStatus::Feasible);
    let arenas = problem.arenas().len();
    ensure(layout.slots.len() == problem.buffers().len(), "slots")?;
    ensure(layout.arenas.len() == arenas, "arenas")?;
    ensure(layout.arenas.iter().map(|a| a.size as u128).sum::<u128>() == layout.size as u128, "sum of sizes")?;
    let steps: Vec<Step> = (0..problem
        .buffers()
        .iter()
        .map(|b| b.upper)
        .chain(problem.reserved().iter().map(|r| r.during.upper))
        .max()
        .unwrap_or(0))
        .collect();
    let counts = |i: usize| {
        let b = &problem.buffers()[i];
        b.size > 0 && steps.iter().any(|s| live_at(b, *s)) && !problem.left_out().contains(b.kind)
    };
    for (b, slot) in problem.buffers().iter().zip(&layout.slots) {
        ensure(slot.is_some() == (placed && !problem.left_out().contains(b.kind)), "who has a slot")?;
        let Some(slot) = slot else { continue };
        ensure((slot.arena as usize) < arenas, "arena")?;
        ensure(b.arena.is_none_or(|a| a == slot.arena), "bound arena")?;
        ensure(slot.offset % stride(problem, b) == 0, "alignment")?;
        ensure(!matches!(b.place, Place::Fixed(at) if at != slot.offset), "fixed offset")?;
    }
    // Sums by step: of all, and by arena of what is there and of what can only be there.
    let mut total = vec![0u64; steps.len()];
    let mut shown_by_arena = 0u64;
    for arena in 0..arenas {
        let mut there = vec![0u64; steps.len()];
        let mut bound = vec![0u64; steps.len()];
        let mut highest = 0;
        let mut ever = vec![Paint::Free; CANVAS as usize];
        let is_bound = |i: usize| problem.buffers()[i].arena.map_or(arenas == 1, |a| a as usize == arena);
        for &step in &steps {
            let mut bytes = vec![Paint::Free; CANVAS as usize];
            for r in problem.reserved().iter().filter(|r| r.arena as usize == arena) {
                for byte in r.offset..r.offset + r.size {
                    if r.during.lower <= step && step < r.during.upper {
                        bytes[byte as usize] = Paint::Reserved;
                        highest = highest.max(byte + 1);
                    }
                }
            }
            let reserved = bytes.iter().filter(|b| **b == Paint::Reserved).count() as u64;
            for i in (0..problem.buffers().len()).filter(|i| counts(*i)) {
                let b = &problem.buffers()[i];
                if !live_at(b, step) {
                    continue;
                }
                bound[step as usize] += if is_bound(i) { b.size + b.guard } else { 0 };
                total[step as usize] += if arena == 0 { b.size + b.guard } else { 0 };
                let Some(slot) = layout.slots[i].filter(|s| s.arena as usize == arena) else { continue };
                ensure(slot.offset < CANVAS - b.size - b.guard, "far off")?;
                for byte in slot.offset..slot.offset + b.size + b.guard {
                    ensure(bytes[byte as usize] == Paint::Free, "shared byte")?;
                    bytes[byte as usize] = Paint::Buffer;
                    highest = highest.max(byte + 1);
                }
            }
            there[step as usize] = bytes.iter().filter(|b| **b != Paint::Free).count() as u64;
            bound[step as usize] += reserved;
            total[step as usize] += reserved;
        }
        let (mut side_by_side, mut bound_side_by_side) = (0, 0);
        let (mut fixed_end, mut bound_fixed_end) = (0, 0);
        for i in (0..problem.buffers().len()).filter(|i| counts(*i)) {
            let b = &problem.buffers()[i];
            let end = if let Place::Fixed(at) = b.place { at + b.size + b.guard } else { 0 };
            if is_bound(i) {
                bound_side_by_side += b.size + b.guard;
                bound_fixed_end = bound_fixed_end.max(end);
            }
            let Some(slot) = layout.slots[i].filter(|s| s.arena as usize == arena) else { continue };
            side_by_side += b.size + b.guard;
            fixed_end = fixed_end.max(end);
            for byte in slot.offset..slot.offset + b.size + b.guard {
                ensure(problem.reuse() || ever[byte as usize] == Paint::Free, "reused byte")?;
                ever[byte as usize] = Paint::Buffer;
            }
        }
        let reserved = problem.reserved().iter().filter(|r| r.arena as usize == arena && r.size > 0);
        let reserved_end = reserved.filter(|r| !r.during.is_empty()).map(|r| r.offset + r.size).max().unwrap_or(0);
        let apart = |sum: u64| if problem.reuse() { 0 } else { sum };
        let most = |sums: &[u64]| sums.iter().copied().max().unwrap_or(0);
        shown_by_arena += most(&bound).max(bound_fixed_end).max(reserved_end).max(apart(bound_side_by_side));
        if placed {
            let used = layout.arenas[arena];
            ensure(used.size == highest, "size of an arena")?;
            ensure(problem.arenas()[arena].capacity.is_none_or(|c| used.size <= c), "capacity")?;
            let shown = most(&there).max(fixed_end).max(reserved_end).max(apart(side_by_side));
            ensure(used.lower_bound <= shown, "lower bound of an arena")?;
        }
    }
    let unshared = (0..problem.buffers().len()).filter(|i| counts(*i)).map(|i| &problem.buffers()[i]);
    let unshared: u64 = unshared.map(|b| b.size + b.guard).sum();
    let live = total.iter().copied().max().unwrap_or(0);
    let shown = live.max(shown_by_arena).max(if problem.reuse() { 0 } else { unshared });
    ensure(layout.total_unshared == unshared, "total_unshared")?;
    ensure(live <= layout.lower_bound && layout.lower_bound <= shown, "lower bound")?;
    if placed {
        ensure(layout.lower_bound <= layout.size, "lower bound above the size")?;
        return ensure(
            layout.size > layout.lower_bound || layout.status == LayoutStatus::Optimal,
            "not called optimal",
        );
    }
    ensure(layout.size == 0 || layout.lower_bound <= layout.size, "lower bound above the size")?;
    let capacities = || problem.arenas().iter().map(|a| a.capacity);
    let fixed = problem.buffers().iter().any(|b| matches!(b.place, Place::Fixed(_)));
    ensure(fixed || capacities().any(|c| c.is_some()), "nothing stands in the way")?;
    let too_large = layout.arenas.iter().zip(capacities()).any(|(a, c)| c.is_some_and(|c| a.size > c));
    ensure(layout.size == 0 || too_large, "the size fits")?;
    let proved = capacities().all(|c| c.is_some()) && capacities().flatten().sum::<u64>() < layout.lower_bound;
    ensure(!(proved && layout.status == LayoutStatus::OutOfTime), "it is proved infeasible")
}

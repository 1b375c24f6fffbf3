//! Checks whether a layout is right.
//!
//! It shares no code with the solver: it computes live ranges, extents and bounds again from the
//! fields of the problem, so that a mistake there does not hide here. It sweeps once over the
//! steps, with the live byte ranges in an ordered map. This takes O(n log n) time and linear
//! memory, and never builds the graph of overlaps.

mod cover;
mod item;
mod sweep;

use super::layout::{ArenaUse, Layout, LayoutStatus, Slot};
use super::problem::{Buffer, Place, Problem};
use crate::base::Result;
use item::{blocks_anything, described, live_ranges, named, wrong, Bytes, Item};
use std::time::Duration;
use sweep::Sweep;

/// Checks everything that `layout` promises about `problem`, as [`Layout`] and [`Buffer`] define
/// it, and names the first failure.
///
/// It checks which buffers have slots; arenas, alignment, unit and fixed offsets; that no two
/// things live at the same step, guards and reserved ranges included, share a byte; sizes,
/// capacities, bounds, the unshared total, and that the status agrees with them.
///
/// It trusts what only solving could check: `Optimal` when the size is above the lower bound,
/// `Infeasible` when the capacities are not below it, the size given without slots, and that a
/// preferred offset or an earlier arena did not work. It ignores `interrupted` and `elapsed`.
///
/// The error's status is `Invalid`, because the layout is an argument here. For a layout just made
/// by the solver, it is a bug.
pub fn verify(problem: &Problem, layout: &Layout) -> Result<()> {
    check(problem, layout).map_err(|e| e.context("wrong layout"))
}

/// Checks only slots and capacities, as [`verify`] does, for layouts from elsewhere. `slots` are by
/// buffer. Returns the size of each arena.
pub fn verify_slots(problem: &Problem, slots: &[Option<Slot>]) -> Result<Vec<u64>> {
    check_slots(problem, slots).map_err(|e| e.context("wrong layout"))
}

fn check_slots(problem: &Problem, slots: &[Option<Slot>]) -> Result<Vec<u64>> {
    let layout = Layout {
        slots: slots.to_vec(),
        arenas: vec![ArenaUse::default(); problem.arenas().len()],
        size: 0,
        lower_bound: 0,
        total_unshared: 0,
        status: LayoutStatus::Feasible,
        interrupted: false,
        elapsed: Duration::ZERO,
    };
    check_shape(problem, &layout)?;
    let items = items(problem, &layout)?;
    if !problem.reuse() {
        check_apart(problem, &items)?;
    }
    Sweep::run(problem, &items)?;
    let sizes: Vec<u64> = tops(problem, &items).iter().map(|top| top.end).collect();
    check_capacities(problem, &sizes)?;
    Ok(sizes)
}

fn check(problem: &Problem, layout: &Layout) -> Result<()> {
    check_shape(problem, layout)?;
    let placed = has_slots(layout.status);
    let items = items(problem, layout)?;
    if placed && !problem.reuse() {
        check_apart(problem, &items)?;
    }
    let sweep = Sweep::run(problem, &items)?;
    let tops = tops(problem, &items);
    if placed {
        check_sizes(problem, layout, &tops)?;
    }
    check_bounds(problem, layout, &items, &sweep)?;
    check_status(problem, layout)
}

fn has_slots(status: LayoutStatus) -> bool {
    matches!(status, LayoutStatus::Optimal | LayoutStatus::Feasible)
}

/// Checks counts, the sum of sizes, and which buffers have slots.
fn check_shape(problem: &Problem, layout: &Layout) -> Result<()> {
    let (buffers, arenas) = (problem.buffers().len(), problem.arenas().len());
    if layout.slots.len() != buffers {
        return wrong(format!("{} slots for {buffers} buffers; is it of another problem?", layout.slots.len()));
    }
    if layout.arenas.len() != arenas {
        return wrong(format!("sizes of {} arenas; the problem has {arenas}", layout.arenas.len()));
    }
    let sum: u128 = layout.arenas.iter().map(|a| u128::from(a.size)).sum();
    if sum != u128::from(layout.size) {
        return wrong(format!("size {} is not the sum of its arenas' sizes, {sum}", layout.size));
    }
    let placed = has_slots(layout.status);
    for (id, (buffer, slot)) in (0u32..).zip(problem.buffers().iter().zip(&layout.slots)) {
        let left_out = problem.left_out().contains(buffer.kind);
        match slot {
            Some(_) if !placed => {
                let status = layout.status.name();
                return wrong(format!("{} has a slot, and the status is {status}", named(problem, id)));
            }
            Some(_) if left_out => {
                return wrong(format!("{} has a slot, and its kind is left out", named(problem, id)));
            }
            None if placed && !left_out => return wrong(format!("{} has no slot", named(problem, id))),
            _ => {}
        }
    }
    Ok(())
}

/// The buffers that occupy bytes. Checks each slot by itself.
fn items(problem: &Problem, layout: &Layout) -> Result<Vec<Item>> {
    let only = (problem.arenas().len() == 1).then_some(0);
    let mut items = Vec::with_capacity(problem.buffers().len());
    for (id, (buffer, slot)) in (0u32..).zip(problem.buffers().iter().zip(&layout.slots)) {
        if problem.left_out().contains(buffer.kind) {
            continue;
        }
        let extent = buffer.size.saturating_add(buffer.guard);
        let mut at = None;
        if let Some(slot) = slot {
            check_slot(problem, buffer, slot.arena, slot.offset).map_err(|e| e.context(named(problem, id)))?;
            let Some(end) = slot.offset.checked_add(extent) else {
                let offset = slot.offset;
                return wrong(format!("{}: offset {offset} and {extent} bytes pass 2^64", named(problem, id)));
            };
            at = Some(Bytes { arena: slot.arena as usize, start: slot.offset, end });
        }
        if buffer.size > 0 && live_ranges(buffer).next().is_some() {
            items.push(Item { id, extent, home: buffer.arena.map(|a| a as usize).or(only), at });
        }
    }
    Ok(items)
}

fn check_slot(problem: &Problem, buffer: &Buffer, arena: u32, offset: u64) -> Result<()> {
    let arenas = problem.arenas().len();
    if arena as usize >= arenas {
        return wrong(format!("it is in arena {arena}; there are {arenas}"));
    }
    if let Some(bound) = buffer.arena.filter(|bound| *bound != arena) {
        return wrong(format!("it is in arena {arena} and bound to {bound}"));
    }
    if !offset.is_multiple_of(buffer.alignment) {
        return wrong(format!("offset {offset} is not a multiple of its alignment {}", buffer.alignment));
    }
    if !offset.is_multiple_of(problem.unit()) {
        return wrong(format!("offset {offset} is not a multiple of the unit {}", problem.unit()));
    }
    match buffer.place {
        Place::Fixed(at) if at != offset => wrong(format!("it is at offset {offset} and fixed at {at}")),
        _ => Ok(()),
    }
}

/// Checks that no two buffers share a byte at all, which holds without reuse.
fn check_apart(problem: &Problem, items: &[Item]) -> Result<()> {
    let mut placed: Vec<(Bytes, u32)> = items.iter().filter_map(|item| Some((item.at?, item.id))).collect();
    placed.sort_unstable_by_key(|(at, id)| (at.arena, at.start, *id));
    // They are sorted by start, so if none before overlap, only the previous one can overlap this
    // one.
    for ((before, one), (after, other)) in placed.iter().zip(placed.iter().skip(1)) {
        if before.arena == after.arena && after.start < before.end {
            return wrong(format!(
                "{} and {} of arena {} share bytes, and the problem allows no reuse",
                described(problem, *one, before.start, before.end),
                described(problem, *other, after.start, after.end),
                after.arena
            ));
        }
    }
    Ok(())
}

/// The highest end in an arena, and what ends there.
#[derive(Clone, Copy, Default)]
struct Top {
    end: u64,
    by: Option<Highest>,
}

#[derive(Clone, Copy)]
enum Highest {
    Buffer(u32),
    Reserved(usize),
}

fn tops(problem: &Problem, items: &[Item]) -> Vec<Top> {
    let mut tops = vec![Top::default(); problem.arenas().len()];
    let mut raise = |arena: usize, end: u64, by: Highest| {
        if let Some(top) = tops.get_mut(arena).filter(|top| top.end < end) {
            *top = Top { end, by: Some(by) };
        }
    };
    for (item, at) in items.iter().filter_map(|item| Some((item, item.at?))) {
        raise(at.arena, at.end, Highest::Buffer(item.id));
    }
    for (i, r) in problem.reserved().iter().enumerate().filter(|(_, r)| blocks_anything(r)) {
        raise(r.arena as usize, r.offset.saturating_add(r.size), Highest::Reserved(i));
    }
    tops
}

fn check_sizes(problem: &Problem, layout: &Layout, tops: &[Top]) -> Result<()> {
    for (arena, (top, used)) in tops.iter().zip(&layout.arenas).enumerate() {
        if top.end != used.size {
            let by = match top.by {
                Some(Highest::Buffer(id)) => named(problem, id),
                Some(Highest::Reserved(i)) => format!("reserved range {i}"),
                None => "nothing".to_string(),
            };
            let (end, size) = (top.end, used.size);
            return wrong(format!("arena {arena} has size {size}, and what ends last in it, {by}, ends at {end}"));
        }
    }
    check_capacities(problem, &layout.arenas.iter().map(|used| used.size).collect::<Vec<_>>())
}

fn check_capacities(problem: &Problem, sizes: &[u64]) -> Result<()> {
    for (arena, (size, capacity)) in sizes.iter().zip(problem.arenas().iter().map(|a| a.capacity)).enumerate() {
        if let Some(capacity) = capacity.filter(|capacity| size > capacity) {
            return wrong(format!("arena {arena} has size {size}, and its capacity is {capacity}"));
        }
    }
    Ok(())
}

fn check_bounds(problem: &Problem, layout: &Layout, items: &[Item], sweep: &Sweep) -> Result<()> {
    let unshared: u128 = items.iter().map(|item| u128::from(item.extent)).sum();
    if unshared != u128::from(layout.total_unshared) {
        return wrong(format!("total_unshared is {}, and the buffers have {unshared} bytes", layout.total_unshared));
    }
    let (claimed, live) = (u128::from(layout.lower_bound), sweep.total);
    let shown = shown_of_problem(problem, items, sweep);
    if claimed < live.most {
        return wrong(format!("lower_bound is {claimed}, and {} bytes are live at step {}", live.most, live.step));
    }
    if claimed > shown {
        return wrong(format!(
            "lower_bound is {claimed}, which nothing shows: most live are {} bytes at step {}, and with what must be \
             apart or at fixed offsets it is {shown}",
            live.most, live.step
        ));
    }
    if (has_slots(layout.status) || layout.size > 0) && layout.lower_bound > layout.size {
        return wrong(format!("lower_bound {claimed} is above the size {}", layout.size));
    }
    if !has_slots(layout.status) {
        return Ok(());
    }
    let inside = |item: &Item| item.at.map(|at| at.arena);
    for ((arena, used), shown) in layout.arenas.iter().enumerate().zip(shown_of_arenas(problem, items, inside)) {
        let live = sweep.placed.get(arena).map_or(0, |peak| peak.most);
        let shown = live.max(shown);
        if u128::from(used.lower_bound) > shown {
            return wrong(format!(
                "arena {arena} has lower_bound {}, and what is in it shows no more than {shown}",
                used.lower_bound
            ));
        }
    }
    Ok(())
}

/// The largest lower bound of the whole problem that follows from sums alone: see
/// [`Layout::lower_bound`].
fn shown_of_problem(problem: &Problem, items: &[Item], sweep: &Sweep) -> u128 {
    let bound = shown_of_arenas(problem, items, |item| item.home);
    let by_arena: u128 = bound.iter().zip(&sweep.bound).map(|(&shown, live)| live.most.max(shown)).sum();
    let apart = if problem.reuse() { 0 } else { items.iter().map(|item| u128::from(item.extent)).sum() };
    by_arena.max(apart).max(sweep.total.most)
}

/// What each arena needs for its items, apart from live sums: the highest end of anything
/// immovable, and the sum of extents where bytes are not reused.
fn shown_of_arenas(problem: &Problem, items: &[Item], arena_of: impl Fn(&Item) -> Option<usize>) -> Vec<u128> {
    let (mut apart, mut ends) = (vec![0u128; problem.arenas().len()], vec![0u128; problem.arenas().len()]);
    for item in items {
        let Some(arena) = arena_of(item) else { continue };
        if !problem.reuse() {
            apart[arena] += u128::from(item.extent);
        }
        if let Some(Place::Fixed(at)) = problem.buffers().get(item.id as usize).map(|b| b.place) {
            ends[arena] = ends[arena].max(u128::from(at) + u128::from(item.extent));
        }
    }
    for r in problem.reserved().iter().filter(|r| blocks_anything(r)) {
        let end = &mut ends[r.arena as usize];
        *end = (*end).max(u128::from(r.offset) + u128::from(r.size));
    }
    apart.into_iter().zip(ends).map(|(apart, end)| apart.max(end)).collect()
}

/// Checks that the status can be true, as far as possible without solving.
fn check_status(problem: &Problem, layout: &Layout) -> Result<()> {
    let capacities = || problem.arenas().iter().map(|a| a.capacity);
    let status = layout.status.name();
    if has_slots(layout.status) {
        if layout.size == layout.lower_bound && layout.status != LayoutStatus::Optimal {
            return wrong(format!("status is {status}, and the size {} is the lower bound: optimal", layout.size));
        }
        return Ok(());
    }
    let bounded = capacities().any(|c| c.is_some());
    let fixed = problem.buffers().iter().any(|b| matches!(b.place, Place::Fixed(_)));
    if !bounded && !fixed {
        return wrong(format!("status is {status}; with no capacity and no fixed buffer there is always a layout"));
    }
    let fits = layout.arenas.iter().zip(capacities()).all(|(a, c)| c.is_none_or(|c| a.size <= c));
    if layout.size > 0 && fits {
        return wrong(format!("status is {status}, and the sizes found, {} in all, fit the capacities", layout.size));
    }
    let all: Option<u128> = capacities().map(|c| c.map(u128::from)).sum();
    if layout.status == LayoutStatus::OutOfTime && all.is_some_and(|all| u128::from(layout.lower_bound) > all) {
        return wrong(format!(
            "status is {status}, and the lower bound {} is above the capacities, {} bytes: infeasible",
            layout.lower_bound,
            all.unwrap_or_default()
        ));
    }
    Ok(())
}

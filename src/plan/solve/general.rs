//! Layouts around obstacles and through gaps: greedy orders, then changed orders.
//!
//! The search starts from the best greedy order. Shapes that end too high move forward in the next
//! round's order ("squeaky wheel" optimisation, Joslin and Clements 1999).

use super::arena::{Arena, Placed, Task};
use super::budget::Budget;
use super::first_fit::{FirstFit, Fit, MOST_SHAPES};
use super::instance::{sections, RangeMax};
use super::numbers::mix;
use super::options::Effort;
use std::cmp::Reverse;

/// Steps of all greedy orders together, some seconds. Above about 15,000 shapes, not all orders
/// run.
const ORDER_STEPS: u64 = 1_000_000;
/// Rounds without a smaller layout before the order is reset.
const PATIENCE: u32 = 12;

/// Tries to make `placed` smaller until the budget is spent.
pub(super) fn improve(arena: &Arena<'_>, task: Task, placed: &mut Placed, budget: &mut Budget<'_>) {
    let n = arena.movable();
    // Sorting the orders takes a while, and does not look at the clock.
    if budget.interrupted() {
        return;
    }
    // Sorting this many would take seconds, and then no order would finish.
    if n > MOST_SHAPES {
        return;
    }
    let mut fit = FirstFit::new(&arena.shapes);
    // The results of the orders do not depend on `placed`, so further progress there costs nothing
    // here.
    let (mut own, mut best_order) = (u64::MAX, Vec::new());
    let mut offsets = vec![0; arena.shapes.shapes.len()];
    // The orders are the baseline for every layout, so their steps do not count; they have a limit
    // of their own. Clock and flag count, because there is a layout by now.
    let mut uncounted = budget.apart(ORDER_STEPS);
    let mut orders = orders(arena);
    // Sorting many shapes takes long.
    while !arena.is_late(&mut uncounted) {
        let Some((order, how)) = orders.next() else { break };
        if task.effort == Effort::Fast && !best_order.is_empty() {
            return;
        }
        fit.restart(&arena.obstacles);
        if let Some(size) = fit.place(order.iter().copied(), how, u64::MAX, &mut offsets, &mut uncounted) {
            let size = size.max(arena.obstructed);
            if size < own {
                (own, best_order) = (size, order);
            }
            if size < placed.size {
                placed.size = size;
                placed.offsets.copy_from_slice(&offsets[..n]);
            }
        }
    }
    if uncounted.interrupted() {
        budget.join(0, true);
        return;
    }
    for goal in task.goals().filter(|_| task.effort != Effort::Fast) {
        let goal = goal.max(arena.bound).max(arena.obstructed);
        reorder(arena, goal, (own, &best_order), placed, &mut fit, budget);
    }
}

/// Places shapes in an order that changes every round.
fn reorder(
    arena: &Arena<'_>,
    goal: u64,
    (mut own, start): (u64, &[u32]),
    placed: &mut Placed,
    fit: &mut FirstFit<'_>,
    budget: &mut Budget<'_>,
) {
    let n = arena.movable();
    let mut offsets = vec![0; arena.shapes.shapes.len()];
    // Sort key of each shape in the order.
    let mut place: Vec<u64> = vec![0; n];
    let reset = |place: &mut [u64]| {
        for (at, &i) in start.iter().enumerate() {
            place[i as usize] = (at as u64 + 1) << 20;
        }
    };
    reset(&mut place);
    let (mut round, mut since) = (0u64, 0);
    // Small arenas stop improving long before the budget is spent.
    let most_rounds = if budget.is_timed() { u64::MAX } else { 400 + 2_000_000 / (n as u64 * n as u64 + 1) };
    while placed.size > goal && round < most_rounds && budget.take(1) {
        round += 1;
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_unstable_by_key(|&i| (place[i as usize], i));
        // A layout larger than the best is still worth finishing: its highest shapes show what to
        // change.
        fit.restart(&arena.obstacles);
        let Some(size) = fit.place(order.into_iter(), Fit::First, u64::MAX, &mut offsets, budget) else {
            return;
        };
        let size = size.max(arena.obstructed);
        since += 1;
        if size < own {
            (own, since) = (size, 0);
        }
        if size < placed.size {
            placed.size = size;
            placed.offsets.copy_from_slice(&offsets[..n]);
        }
        if since > PATIENCE {
            reset(&mut place);
            since = 0;
        }
        for (i, at) in place.iter_mut().enumerate() {
            let draw = mix(round << 32 ^ i as u64);
            let end = offsets[i] + arena.shapes.shapes[i].size;
            if end >= own || end > goal {
                // Move it towards the front by a random share of the way.
                *at -= ((u128::from(*at) * u128::from(draw >> 40)) >> 24) as u64;
            } else if draw & 7 == 0 {
                *at += *at / 1_024 * (draw >> 8 & 127);
            }
        }
    }
}

/// The greedy orders of other planners, and the fit of each: by size, by size and life, by life, by
/// their product, and by the bytes live at the fullest step.
fn orders<'a>(arena: &'a Arena<'_>) -> impl Iterator<Item = (Vec<u32>, Fit)> + 'a {
    type Key<'k> = Box<dyn Fn(u32) -> (u128, u64, u64) + 'k>;
    let shapes = &arena.shapes.shapes[..arena.movable()];
    let size = |i: u32| shapes[i as usize].size;
    let align = |i: u32| shapes[i as usize].align;
    let birth = |i: u32| arena.life(i as usize).0;
    let life = move |i: u32| arena.life(i as usize).1 - birth(i);
    let mut keys: Vec<(Key<'a>, Fit)> = Vec::new();
    if let Some(earlier) = &arena.earlier {
        keys.push((Box::new(move |i| (u128::MAX - u128::from(earlier[i as usize]), 0, 0)), Fit::First));
    }
    if shapes.iter().any(|s| s.align != shapes[0].align) {
        // Sort by falling alignment, with sizes that are multiples of it first, to need little
        // padding.
        let whole = move |i| u64::from(size(i).is_multiple_of(align(i)));
        keys.push((Box::new(move |i| (align(i).into(), whole(i), size(i))), Fit::First));
        keys.push((Box::new(move |i| (align(i).into(), size(i), 0)), Fit::Best));
    }
    keys.push((Box::new(move |i| (size(i).into(), 0, 0)), Fit::First));
    keys.push((Box::new(move |i| (size(i).into(), 0, 0)), Fit::Best));
    keys.push((Box::new(move |i| (size(i).into(), life(i), u64::MAX - birth(i))), Fit::Best));
    keys.push((Box::new(move |i| (life(i).into(), size(i), 0)), Fit::Best));
    keys.push((Box::new(move |i| (u128::from(size(i)) * u128::from(life(i)), size(i), 0)), Fit::First));
    let last = std::iter::once_with(move || {
        let breadth = breadth(arena);
        // Among equally full sections, the first goes first.
        let key: Key<'a> =
            Box::new(move |i| (breadth[i as usize].0.into(), breadth[i as usize].1, shapes[i as usize].size));
        (key, Fit::Best)
    });
    keys.into_iter().chain(last).map(|(key, fit)| {
        let mut order: Vec<u32> = (0..shapes.len() as u32).collect();
        // A stable sort keeps ties in the order of adding.
        order.sort_by_key(|&i| Reverse(key(i)));
        (order, fit)
    })
}

/// For each movable shape, the bytes live in its fullest section, and that section's rank: fuller
/// sections rank higher.
fn breadth(arena: &Arena<'_>) -> Vec<(u64, u64)> {
    // Without reuse all shapes share one section, but live ranges still decide what to place first.
    let (lives, count) = if arena.reuse {
        (Vec::new(), arena.sections)
    } else {
        sections((0..arena.movable()).map(|i| arena.life(i)).collect(), &mut || false).unwrap_or_default()
    };
    let ranges = |i: usize| lives.get(i..=i).unwrap_or_else(|| arena.shapes.ranges(i));
    let mut change = vec![0u64; count + 1];
    for i in 0..arena.movable() {
        for &(from, to) in ranges(i) {
            let size = arena.shapes.shapes[i].size;
            change[from as usize] = change[from as usize].wrapping_add(size);
            change[to as usize] = change[to as usize].wrapping_sub(size);
        }
    }
    let mut sum = 0u64;
    for total in &mut change {
        sum = sum.wrapping_add(*total);
        *total = sum;
    }
    // Fullest sections first, so that each shape counts at its fullest section.
    let mut order: Vec<u32> = (0..count as u32).collect();
    order.sort_by_key(|&k| (Reverse(change[k as usize]), k));
    let mut rank = vec![0u64; count];
    for (at, &k) in order.iter().enumerate() {
        rank[k as usize] = (order.len() - at) as u64;
    }
    let most = RangeMax::new(&rank);
    (0..arena.movable())
        .map(|i| {
            let first = ranges(i).iter().map(|r| most.max(r.0 as usize..r.1 as usize)).max().unwrap_or(0);
            let section = order.get(order.len() - first as usize).copied().unwrap_or(0);
            (change[section as usize], first)
        })
        .collect()
}

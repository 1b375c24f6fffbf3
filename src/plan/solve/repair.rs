//! Improves layouts of large instances: takes the top off and searches for a better one.
//!
//! A layout that is too high has lost bytes in holes, and only holes below its highest items
//! matter. Items that start below some height stay and form a skyline; the search of
//! [`super::niche`] lays out the items above it anew. The height is chosen so that the holes below
//! lose no more than the target allows. There are hundreds of items above it, out of tens of
//! thousands. Between repairs, other greedy orders give other layouts to start from.
//!
//! This is large-neighbourhood search (Shaw 1998) with the upper part of the layout as the
//! neighbourhood.

use super::best::Best;
use super::budget::Budget;
use super::instance::{Instance, Item};
use super::niche::{Limits, Niche, Outcome};
use super::order::{rank, rank_in_time, By, Rule};
use super::skyline::Skyline;

/// Most items laid out anew.
const MOST_FREE: usize = 4_096;
/// Fewest items laid out anew: with fewer there is little to gain.
const FEWEST_FREE: usize = 64;
/// Items times sections set up in the time of one step.
const CELLS_A_STEP: u64 = 300;
/// Most sections covered, summed over the items laid out anew: the search records each for
/// backtracking.
const MOST_COVERED: u64 = 1 << 21;
/// Most sections whose holes are examined.
const MOST_SECTIONS: usize = 8;
/// Items examined in the time of one step.
const ITEMS_A_STEP: u64 = 4;
/// Searches over one top.
const RUNS: u64 = 4;
/// Orders, with noise, of the greedy layouts to start from.
const STARTS: [By; 4] = [By::Pressure, By::Size, By::Area, By::Width];

/// Improves `best` until it is within `goal` or the budget is spent.
pub(super) fn improve(instance: &Instance, goal: u64, best: &mut Best, budget: &mut Budget<'_>) {
    let Some(mut skyline) = Skyline::new(instance, &mut || budget.is_late()) else { return };
    let mut ranks = Vec::new();
    let mut round = 0;
    while best.size > goal && !budget.spent() {
        // The layout to repair: the best there is, then that of another order.
        let mut size = best.size;
        if round == 0 {
            best.scratch.copy_from_slice(&best.offsets);
        } else {
            let rule = Rule::noisy(STARTS[round as usize % STARTS.len()], round);
            // Not kept: for millions of items it is large, and quick to make again.
            let Some(pressure) = instance.pressure_in_time(&mut || budget.is_late()) else { return };
            if !rank_in_time(&instance.items, &pressure, rule, &mut ranks, &mut || budget.is_late()) {
                return;
            }
            drop(pressure);
            match skyline.place(&ranks, u64::MAX, &mut best.scratch, budget) {
                Some(placed) => size = placed,
                None => break,
            }
        }
        repair(instance, goal, &mut best.scratch, &mut size, budget);
        best.offer(Some(size));
        round += 1;
    }
}

/// Lowers a layout as far as possible by laying out its top anew.
fn repair(instance: &Instance, goal: u64, offsets: &mut [u64], size: &mut u64, budget: &mut Budget<'_>) {
    // Try the goal first; after each failure go half as far, until nothing is gained.
    let mut target = goal;
    while *size > goal && target < *size && !budget.spent() {
        if lower(instance, target, offsets, budget) {
            *size = instance.top(offsets);
            target = goal;
        } else {
            target += (*size - target).div_ceil(2).max(*size / 10_000);
        }
    }
}

/// Tries to bring a layout down to `target`; returns whether it did.
fn lower(instance: &Instance, target: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> bool {
    let Some(cut) = highest_cut(instance, target, offsets, budget) else { return true };
    if budget.interrupted() {
        return false;
    }
    budget.take(offsets.len() as u64 / ITEMS_A_STEP);
    let mut heights: Vec<u64> = offsets.to_vec();
    heights.sort_unstable_by(|a, b| b.cmp(a));
    let needed = heights.partition_point(|&at| at >= cut).max(FEWEST_FREE);
    // Start with few items, which are searched more quickly.
    let mut free = needed;
    while free <= MOST_FREE.min(heights.len()) {
        if lay_top_out(instance, target, cut.min(heights[free - 1]), offsets, budget) {
            return true;
        }
        if budget.spent() {
            return false;
        }
        free *= 2;
    }
    false
}

/// The height above which everything must be laid out anew for the layout to come down to `target`:
/// below it, none of the fullest sections has lost more than the target allows. `None` if the
/// layout is within the target. The result is arbitrary if time is over, because long-lived items
/// have many sections to scan.
fn highest_cut(instance: &Instance, target: u64, offsets: &[u64], budget: &mut Budget<'_>) -> Option<u64> {
    let over: Vec<usize> = (0..offsets.len()).filter(|&i| offsets[i] + instance.items[i].size > target).collect();
    // Take the fullest section under each item that is too high: it can afford least.
    let mut sections: Vec<usize> = over
        .iter()
        .take_while(|_| !budget.is_late())
        .filter_map(|&i| {
            let item = &instance.items[i];
            (item.from as usize..item.to as usize).max_by_key(|&k| instance.totals[k])
        })
        .collect();
    sections.sort_unstable_by_key(|&k| (std::cmp::Reverse(instance.totals[k]), k));
    sections.dedup();
    sections.truncate(MOST_SECTIONS);
    sections.into_iter().map(|k| cut_of_section(instance, k, target, offsets)).min()
}

/// The bottom of the hole in section `k` that costs it more than it can afford.
fn cut_of_section(instance: &Instance, k: usize, target: u64, offsets: &[u64]) -> u64 {
    let covers = |i: &Item| (i.from as usize) <= k && k < i.to as usize;
    let mut stack: Vec<(u64, u64)> = instance
        .items
        .iter()
        .zip(offsets)
        .filter(|(item, _)| covers(item))
        .map(|(item, &at)| (at, at + item.size))
        .chain(instance.obstacles.iter().filter(|o| o.from <= k as u32 && (k as u32) < o.to).map(|o| (o.bottom, o.end)))
        .collect();
    stack.sort_unstable();
    let slack = target.saturating_sub(stack.iter().map(|(at, end)| end - at).sum());
    let (mut top, mut lost) = (0, 0);
    for (at, end) in stack {
        lost += at.saturating_sub(top);
        if lost > slack {
            return top;
        }
        top = top.max(end);
    }
    top
}

/// Lays the items at or above `cut` out anew within `target`; returns whether it succeeded.
fn lay_top_out(instance: &Instance, target: u64, cut: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> bool {
    let free: Vec<u32> = (0..offsets.len() as u32).filter(|&i| offsets[i as usize] >= cut).collect();
    let top = instance.above(&free, |i| (offsets[i as usize] < cut).then(|| offsets[i as usize]));
    budget.take((free.len() * top.totals.len()) as u64 / CELLS_A_STEP);
    if top.covered() + top.blocked() > MOST_COVERED {
        return false;
    }
    let mut niche = Niche::new(&top);
    niche.set_capacity(target);
    let pressure = top.pressure();
    let mut ranks = Vec::new();
    for run in 0..RUNS {
        let rule = Rule::of_round(run);
        rank(&top.items, &pressure, rule, &mut ranks);
        match niche.run(&top, rule, &ranks, Limits::steps(4 * free.len() as u64), budget) {
            Outcome::Found => {
                for (&i, &at) in free.iter().zip(niche.offsets()) {
                    offsets[i as usize] = at;
                }
                return true;
            }
            Outcome::Impossible => return false,
            Outcome::Unknown if budget.spent() => return false,
            Outcome::Unknown => {}
        }
    }
    false
}

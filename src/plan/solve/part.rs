//! Lays out one part of a problem without fixed offsets, gaps or reserved ranges: items over sections.

use super::budget::Budget;
use super::first_fit::{FirstFit, Fit, Shapes};
use super::instance::Instance;
use super::niche::{mix, Niche, Outcome};
use super::order::{rank, By, Rule};
use super::skyline::Skyline;

/// Most items for the orders that compare every item with every other.
const FIRST_FIT_ITEMS: usize = 4_000;
/// Most items for the exact search, whose sets of items are a word for every 64.
const SEARCH_ITEMS: usize = 4_096;
/// Steps of the first restart of the search.
const FIRST_RUN: u64 = 2_000;

/// The best layout so far.
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) offsets: Vec<u64>,
    /// No layout is smaller than this: proved.
    pub(super) bound: u64,
    scratch: Vec<u64>,
}

impl Best {
    fn offer(&mut self, size: Option<u64>) {
        if let Some(size) = size {
            if size < self.size {
                self.size = size;
                std::mem::swap(&mut self.offsets, &mut self.scratch);
            }
        }
    }
}

/// A layout of `instance` of at most `goal`, or the smallest found until the budget ran out. The greedy orders are
/// always tried to the end, so that the result is never worse than the best of them.
pub(super) fn lay_out(instance: &Instance, goal: u64, search: bool, budget: &mut Budget<'_>) -> Best {
    let n = instance.items.len();
    let bound = instance.bound();
    let mut best = Best { size: u64::MAX, offsets: vec![0; n], bound, scratch: vec![0; n] };
    greedy(instance, &mut best);
    let goal = goal.max(bound);
    if search && best.size > goal {
        if n <= SEARCH_ITEMS {
            descend(instance, goal, &mut best, budget);
        } else {
            super::reorder::improve(instance, goal, &mut best, budget);
        }
    }
    best
}

/// The greedy orders.
fn greedy(instance: &Instance, best: &mut Best) {
    // Not limited: they are what every layout is measured by, and quick.
    let mut budget = Budget::new(u64::MAX, None, None);
    let pressure = instance.pressure();
    let mut ranks = Vec::new();
    let mut skyline = Skyline::new(instance);
    const ORDERS: [By; 4] = [By::Pressure, By::Size, By::Width, By::Area];
    for by in ORDERS {
        rank(&instance.items, &pressure, Rule::greedy(by), &mut ranks);
        let limit = best.size.saturating_sub(1);
        let size = skyline.place(&ranks, limit, &mut best.scratch, &mut budget);
        best.offer(size);
        if best.size <= best.bound {
            return;
        }
    }
    if instance.items.len() > FIRST_FIT_ITEMS {
        return;
    }
    let mut shapes = Shapes::default();
    for item in &instance.items {
        shapes.push(item.size, item.align, std::iter::once((item.from, item.to)));
    }
    let mut first_fit = FirstFit::new(&shapes);
    for by in ORDERS {
        rank(&instance.items, &pressure, Rule::greedy(by), &mut ranks);
        let mut order = vec![0; ranks.len()];
        for (i, &r) in ranks.iter().enumerate() {
            order[r as usize] = i as u32;
        }
        for fit in [Fit::First, Fit::Best] {
            let limit = best.size.saturating_sub(1);
            let size = first_fit.place(order.iter().copied(), &[], fit, limit, &mut best.scratch, &mut budget);
            best.offer(size);
        }
        if best.size <= best.bound {
            return;
        }
    }
}

/// Searches for smaller and smaller layouts: first for one of the goal's size, then between it and the best so far,
/// always with more steps than the time before.
fn descend(instance: &Instance, goal: u64, best: &mut Best, budget: &mut Budget<'_>) {
    let mut searcher = Searcher {
        instance,
        niche: Niche::new(instance),
        pressure: instance.pressure(),
        ranks: Vec::new(),
        capacity: 0,
    };
    let mut restarts = 24;
    while best.size > goal.max(best.bound) && !budget.spent() {
        // Straight for the goal, then for what is between the last capacity that failed and the best.
        let mut failed = goal.max(best.bound).saturating_sub(1);
        let mut target = failed + 1;
        loop {
            match searcher.try_capacity(target, restarts, budget) {
                Outcome::Found => {
                    best.scratch.copy_from_slice(searcher.niche.offsets());
                    best.offer(Some(top(instance, &best.scratch)));
                }
                Outcome::Impossible => {
                    best.bound = best.bound.max(target + 1);
                    failed = target;
                }
                Outcome::Unknown => failed = target,
            }
            // Closer than one in a thousand of the gap to the goal is left to the next round.
            if best.size <= failed + 1 || best.size - failed <= (best.size - goal.min(best.size)) / 8 || budget.spent() {
                break;
            }
            target = failed + (best.size - failed) / 2;
        }
        restarts *= 2;
    }
}

/// The end of the highest item.
fn top(instance: &Instance, offsets: &[u64]) -> u64 {
    instance.items.iter().zip(offsets).map(|(item, at)| at + item.size).max().unwrap_or(0)
}

struct Searcher<'a> {
    instance: &'a Instance,
    niche: Niche<'a>,
    pressure: Vec<u64>,
    ranks: Vec<u32>,
    capacity: u64,
}

impl Searcher<'_> {
    /// Runs the search `restarts` times with different rules and growing limits.
    fn try_capacity(&mut self, capacity: u64, restarts: u64, budget: &mut Budget<'_>) -> Outcome {
        if self.capacity != capacity {
            self.niche.set_capacity(capacity);
            self.capacity = capacity;
        }
        for round in 0..restarts {
            let rule = Rule::of_round(round);
            rank(&self.instance.items, &self.pressure, rule, &mut self.ranks);
            let limit = FIRST_RUN * luby(round / 12 + 1);
            let out = self.niche.run(self.instance, rule, &self.ranks, limit, budget);
            if std::env::var("TUNE").is_ok() { eprintln!("   cap {capacity} round {round} {:?} {:?} -> {out:?} left {}", rule.ask, rule.by, budget.left()); }
            match out {
                Outcome::Unknown if budget.spent() => return Outcome::Unknown,
                Outcome::Unknown => {}
                found_or_impossible => return found_or_impossible,
            }
        }
        Outcome::Unknown
    }
}

/// The sequence 1 1 2 1 1 2 4 …, from `i` = 1.
fn luby(i: u64) -> u64 {
    let bits = u64::BITS - i.leading_zeros();
    if i + 1 == 1 << bits {
        return 1 << (bits - 1);
    }
    luby(i + 1 - (1 << (bits - 1)))
}

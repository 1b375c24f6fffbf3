//! Lays out one part of a problem without fixed offsets, gaps or reserved ranges: items over sections.

use super::budget::Budget;
use super::first_fit::{FirstFit, Fit, Shapes};
use super::instance::Instance;
use super::glue::{Glue, Glued};
use super::niche::{mix, Niche, Outcome};
use super::order::{rank, By, Rule};
use super::skyline::Skyline;

/// Most items for the orders that compare every item with every other.
const FIRST_FIT_ITEMS: usize = 4_000;
/// Most items for the exact search, whose sets of items are a word for every 64.
const SEARCH_ITEMS: usize = 4_096;
/// Runs with one capacity before the next is tried.
const FIRST_ROUNDS: u64 = 36;
/// What is glued, in turn.
const GLUES: [Glue; 2] = [Glue::Triples, Glue::Pairs];

/// The best layout so far.
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) offsets: Vec<u64>,
    /// No layout is smaller than this: proved.
    pub(super) bound: u64,
    scratch: Vec<u64>,
}

impl Best {
    /// Keeps a layout if it is smaller than the best.
    pub(super) fn take(&mut self, size: u64, offsets: &mut Vec<u64>) {
        if size < self.size {
            self.size = size;
            std::mem::swap(&mut self.offsets, offsets);
        }
    }

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
            super::repair::improve(instance, goal, &mut best, budget);
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

/// Searches for smaller and smaller layouts, with more steps every time, until one is within `goal`.
fn descend(instance: &Instance, goal: u64, best: &mut Best, budget: &mut Budget<'_>) {
    let mut portfolio = Portfolio::new(instance);
    let mut rounds = FIRST_ROUNDS;
    while best.size > goal.max(best.bound) && !budget.spent() {
        // From below: little room makes the search quick to see that it is on the wrong way, so that the smallest
        // layout may be the easiest to find. Then from the goal up, halving what is open between failure and success.
        let mut target = best.bound;
        while target < goal && best.size > goal && !budget.spent() {
            attempt(&mut portfolio, target, rounds, best, budget);
            target += (goal - target).div_ceil(2);
        }
        let mut failed = goal.max(best.bound) - 1;
        target = failed + 1;
        while best.size > goal.max(best.bound) && !budget.spent() {
            if attempt(&mut portfolio, target, rounds, best, budget) != Outcome::Found {
                failed = target;
            }
            let open = best.size - failed;
            if open <= 1 || open <= (best.size - goal.min(best.size)) / 8 {
                break;
            }
            target = failed + open / 2;
        }
        rounds *= 2;
    }
}

/// Looks for a layout within `target` and keeps what comes of it.
fn attempt(
    portfolio: &mut Portfolio<'_>,
    target: u64,
    rounds: u64,
    best: &mut Best,
    budget: &mut Budget<'_>,
) -> Outcome {
    let outcome = portfolio.search(target, rounds, &mut best.scratch, budget);
    match outcome {
        Outcome::Found => {
            let size = portfolio.original.top(&best.scratch);
            best.offer(Some(size));
        }
        Outcome::Impossible => best.bound = best.bound.max(target + 1),
        Outcome::Unknown => {}
    }
    outcome
}

/// Searches in turn: over the items as they are, and over glued ones, each with every rule.
struct Portfolio<'a> {
    plain: Searcher<'a>,
    original: &'a Instance,
    glued: Vec<Glued>,
}

impl<'a> Portfolio<'a> {
    fn new(instance: &'a Instance) -> Portfolio<'a> {
        let glued = GLUES.iter().map(|&g| Glued::new(instance, g, 0)).filter(Glued::is_different).collect();
        Portfolio { plain: Searcher::new(instance), original: instance, glued }
    }

    /// Looks for a layout within `capacity`, in `rounds` runs with growing limits; one that is found is in `offsets`.
    fn search(&mut self, capacity: u64, rounds: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        let variants = 1 + self.glued.len() as u64;
        let mut searchers: Vec<Searcher<'_>> = self.glued.iter().map(|g| Searcher::new(&g.instance)).collect();
        for round in 0..rounds {
            let (variant, round) = (round % variants, round / variants);
            let cycle = round / Rule::COUNT;
            let effort = luby(cycle + 1);
            let rule = Rule::of_round(round);
            // The last variant is the original: it is the hardest, and the only one that can prove anything.
            let outcome = if variant + 1 == variants {
                let outcome = self.plain.run(capacity, rule, effort, budget);
                if outcome == Outcome::Found {
                    offsets.copy_from_slice(self.plain.niche.offsets());
                }
                outcome
            } else if cycle == 0 {
                let searcher = &mut searchers[variant as usize];
                let outcome = searcher.run(capacity, rule, effort, budget);
                if outcome == Outcome::Found {
                    self.glued[variant as usize].expand(searcher.niche.offsets(), offsets);
                }
                outcome
            } else {
                // Later on, other things are glued every time.
                let glued = Glued::new(self.original, GLUES[variant as usize], mix(round) | 1);
                let mut searcher = Searcher::new(&glued.instance);
                let outcome = searcher.run(capacity, rule, effort, budget);
                if outcome == Outcome::Found {
                    glued.expand(searcher.niche.offsets(), offsets);
                }
                outcome
            };
            match outcome {
                Outcome::Found => return Outcome::Found,
                Outcome::Impossible if variant + 1 == variants => return Outcome::Impossible,
                _ if budget.spent() => return Outcome::Unknown,
                _ => {}
            }
        }
        Outcome::Unknown
    }
}

/// One instance's search, and what it needs to order items.
struct Searcher<'a> {
    instance: &'a Instance,
    niche: Niche<'a>,
    pressure: Vec<u64>,
    ranks: Vec<u32>,
    capacity: u64,
}

impl<'a> Searcher<'a> {
    fn new(instance: &'a Instance) -> Searcher<'a> {
        let (niche, pressure) = (Niche::new(instance), instance.pressure());
        Searcher { instance, niche, pressure, ranks: Vec::new(), capacity: 0 }
    }

    fn run(&mut self, capacity: u64, rule: Rule, effort: u64, budget: &mut Budget<'_>) -> Outcome {
        if self.capacity != capacity {
            self.niche.set_capacity(capacity);
            self.capacity = capacity;
        }
        rank(&self.instance.items, &self.pressure, rule, &mut self.ranks);
        // Without a mistake it takes a step for every item. Many short runs find more than a few long ones.
        let n = self.instance.items.len() as u64;
        let limit = effort * 2 * n;
        self.niche.run(self.instance, rule, &self.ranks, limit, budget)
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

//! The search in many ways in turn: over glued items mostly, and over the items as they are.
//!
//! No way is the best for every problem, and a search that took a wrong turn early seldom comes back
//! from it; so each run is short, and has noise of its own on its order. The ways are those that
//! found most in the least time on MiniMalloc's cases; now and then a run takes twice the steps.
//! What they miss, others find: every third run, and each one around obstacles, takes the next of
//! every rule with every kind of glue, first without noise.
//!
//! Items are sorted first, so that the order in which buffers were added makes no difference.
//!
//! With several threads, thread k of n takes runs k, k + n, k + 2n and so on. The first run that
//! finds something counts, in the order of runs and not of time, so that the result depends on how
//! many threads there are and on nothing else.

use super::budget::Budget;
use super::glue::{Glue, Glued, ALL};
use super::instance::{Instance, Item};
use super::niche::{Niche, Outcome};
use super::numbers::mix;
use super::order::{rank, Ask, By, Rule};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is glued, and how many in eight of what fits; which section is asked next; what goes first.
type Way = (Option<(Glue, u64)>, Ask, By);

/// Without noise, once each.
const FIRST: [Way; 4] = [
    (Some((Glue::Stacks, ALL)), Ask::Fewest, By::Pressure),
    (Some((Glue::Stacks, ALL)), Ask::Hardest, By::Width),
    (None, Ask::Fewest, By::Pressure),
    (Some((Glue::Triples, ALL)), Ask::Fewest, By::Pressure),
];
/// With noise, in turn.
const WAYS: [Way; 8] = [
    (Some((Glue::Stacks, ALL)), Ask::Hardest, By::Width),
    (Some((Glue::Stacks, 7)), Ask::Fewest, By::Area),
    (Some((Glue::Stacks, 4)), Ask::Hardest, By::Area),
    (Some((Glue::Stacks, ALL)), Ask::Fewest, By::Width),
    (None, Ask::Hardest, By::Width),
    (Some((Glue::Stacks, 7)), Ask::Lowest, By::Width),
    (Some((Glue::Stacks, ALL)), Ask::Lowest, By::Area),
    (Some((Glue::Triples, 7)), Ask::Hardest, By::Width),
];
/// How far the noise spreads what items are ordered by, in turn.
const SPREADS: [f64; 4] = [0.03, 0.1, 0.3, 1.0];
/// What every rule is tried with, and how many in eight of what fits is glued once noise has begun.
const KINDS: [Option<Glue>; 3] = [Some(Glue::Stacks), Some(Glue::Triples), None];
const KINDS_SHARE: u64 = 6;
/// Steps of a run, for each item: without a mistake it takes one. Many short runs find more than a
/// few long ones.
const STEPS: u64 = 2;

/// Most threads used.
const MOST_THREADS: u64 = 256;

/// Searches of one instance.
pub(super) struct Portfolio {
    /// Of sorted items.
    instance: Instance,
    /// Where each of them was before.
    order: Vec<u32>,
    /// All that fits glued, as long as that makes a difference.
    glued: Vec<(Glue, Glued)>,
    threads: u64,
}

/// What one thread found, in which run, and the steps that its runs up to then took.
struct Found {
    run: u64,
    steps: u64,
    outcome: Outcome,
    offsets: Vec<u64>,
}

impl Portfolio {
    pub(super) fn new(of: &Instance, threads: u32) -> Portfolio {
        let mut order: Vec<u32> = (0..of.items.len() as u32).collect();
        let band = |i: u32| of.bands.get(i as usize).copied();
        order.sort_by_key(|&i| {
            let Item { from, to, size, align } = of.items[i as usize];
            (from, to, size, align, band(i))
        });
        let instance = Instance {
            items: order.iter().map(|&i| of.items[i as usize]).collect(),
            bands: order.iter().filter_map(|&i| band(i)).collect(),
            ..of.clone()
        };
        // A glued item could not follow floors that differ below its pieces, nor lie in two bands.
        let even = instance.floors.iter().all(|&f| f == 0) && instance.bands.is_empty();
        let glues = [Glue::Stacks, Glue::Triples].into_iter().filter(|_| even);
        let glued = glues.map(|g| (g, Glued::new(&instance, g, ALL, 0))).filter(|(_, g)| g.is_different()).collect();
        Portfolio { instance, order, glued, threads: u64::from(threads).clamp(1, MOST_THREADS) }
    }

    /// Looks for a layout within `capacity` in `runs` runs with growing limits; one that is found is in `offsets`.
    pub(super) fn search(&self, capacity: u64, runs: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        let mut sorted = vec![0; offsets.len()];
        let outcome = self.search_sorted(capacity, runs, &mut sorted, budget);
        if outcome == Outcome::Found {
            for (&i, at) in self.order.iter().zip(sorted) {
                offsets[i as usize] = at;
            }
        }
        outcome
    }

    fn search_sorted(&self, capacity: u64, runs: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        if self.threads == 1 {
            let mut lane = Lane::new(self, capacity);
            for run in 0..runs {
                match lane.run(run, offsets, budget) {
                    Outcome::Unknown if budget.spent() => return Outcome::Unknown,
                    Outcome::Unknown => {}
                    settled => return settled,
                }
            }
            return Outcome::Unknown;
        }
        let first = AtomicU64::new(u64::MAX);
        let lanes: Vec<(Option<Found>, Budget<'_>)> = std::thread::scope(|scope| {
            let lane = |thread| {
                let (mut budget, first) = (budget.share(), &first);
                move || (self.every_so_many(thread, capacity, runs, first, &mut budget), budget)
            };
            let started: Vec<_> = (0..self.threads)
                .map(|thread| (thread, std::thread::Builder::new().spawn_scoped(scope, lane(thread)).ok()))
                .collect();
            // What could not be started, or did not end well, runs here: how many lanes there are decides the result.
            started
                .into_iter()
                .map(|(thread, started)| started.and_then(|s| s.join().ok()).unwrap_or_else(|| lane(thread)()))
                .collect()
        });
        let best = lanes.iter().filter_map(|(found, _)| found.as_ref()).min_by_key(|found| found.run);
        // Threads that were told to stop took a number of steps that depends on timing; those that found something, or
        // came to the end, did not.
        let whole = lanes.iter().filter(|(found, _)| found.is_none()).map(|(_, share)| share.taken()).max();
        budget.join(best.map_or(whole.unwrap_or(0), |found| found.steps), lanes.iter().any(|(_, b)| b.interrupted()));
        match best {
            Some(found) => {
                offsets.copy_from_slice(&found.offsets);
                found.outcome
            }
            None => Outcome::Unknown,
        }
    }

    /// The runs of one thread, until one finds something or a run before its next one has.
    fn every_so_many(
        &self,
        thread: u64,
        capacity: u64,
        runs: u64,
        first: &AtomicU64,
        budget: &mut Budget<'_>,
    ) -> Option<Found> {
        let mut lane = Lane::new(self, capacity);
        let mut offsets = vec![0; self.instance.items.len()];
        let mut run = thread;
        while run < runs && run < first.load(Ordering::Relaxed) {
            match lane.run(run, &mut offsets, budget) {
                Outcome::Unknown if budget.spent() => return None,
                Outcome::Unknown => run += self.threads,
                outcome => {
                    first.fetch_min(run, Ordering::Relaxed);
                    return Some(Found { run, steps: budget.taken(), outcome, offsets });
                }
            }
        }
        None
    }
}

/// What one thread searches with, for one capacity.
struct Lane<'p> {
    portfolio: &'p Portfolio,
    capacity: u64,
    /// Of the items as they are, and of each of the glued instances: made when they are first used.
    plain: Option<Searcher<'p>>,
    glued: Vec<Option<Searcher<'p>>>,
}

impl<'p> Lane<'p> {
    fn new(portfolio: &'p Portfolio, capacity: u64) -> Lane<'p> {
        Lane { portfolio, capacity, plain: None, glued: portfolio.glued.iter().map(|_| None).collect() }
    }

    /// What is glued in a run, by what rule it goes, and how many times the usual steps it may take.
    fn way(&self, run: u64) -> (Option<(Glue, u64)>, Rule, u64) {
        let free = self.portfolio.instance.obstacles.is_empty();
        if free && run % 3 < 2 {
            let run = run / 3 * 2 + run % 3;
            let (first, cycle) = (FIRST.len() as u64, WAYS.len() as u64);
            let ((glue, ask, by), noise, round) = match run.checked_sub(first) {
                None => (FIRST[run as usize], 0, 0),
                Some(run) => (WAYS[(run % cycle) as usize], mix(run) | 1, run / cycle),
            };
            let spread = SPREADS[(round % SPREADS.len() as u64) as usize];
            return (glue, Rule { ask, by, noise, spread }, luby(round + 1));
        }
        let run = if free { run / 3 } else { run };
        let (kinds, round) = (KINDS.len() as u64, run / KINDS.len() as u64);
        let share = if round < Rule::COUNT { ALL } else { KINDS_SHARE };
        let glue = KINDS[(run % kinds) as usize].map(|glue| (glue, share));
        (glue, Rule::of_round(round), luby(round / Rule::COUNT + 1))
    }

    fn run(&mut self, run: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        let (capacity, instance) = (self.capacity, &self.portfolio.instance);
        let (glue, rule, effort) = self.way(run);
        let Some((glue, share)) = glue.filter(|_| !self.portfolio.glued.is_empty()) else {
            let plain = self.plain.get_or_insert_with(|| Searcher::new(instance, capacity));
            let outcome = plain.run(rule, effort, budget);
            if outcome == Outcome::Found {
                offsets.copy_from_slice(plain.niche.offsets());
            }
            return outcome;
        };
        let mut search = |glued: &Glued, searcher: &mut Searcher<'_>| match searcher.run(rule, effort, budget) {
            Outcome::Found => {
                glued.expand(searcher.niche.offsets(), offsets);
                Outcome::Found
            }
            // Only the items as they are can prove anything.
            Outcome::Impossible | Outcome::Unknown => Outcome::Unknown,
        };
        let known = self.portfolio.glued.iter().zip(&mut self.glued).find(|((g, _), _)| *g == glue && share == ALL);
        match known {
            Some(((_, glued), made)) => {
                search(glued, made.get_or_insert_with(|| Searcher::new(&glued.instance, capacity)))
            }
            None => {
                let glued = Glued::new(instance, glue, share, mix(run) | 1);
                search(&glued, &mut Searcher::new(&glued.instance, capacity))
            }
        }
    }
}

/// The search of one instance, and what it needs to order items.
struct Searcher<'p> {
    instance: &'p Instance,
    niche: Niche<'p>,
    pressure: Vec<u64>,
    ranks: Vec<u32>,
}

impl<'p> Searcher<'p> {
    fn new(instance: &'p Instance, capacity: u64) -> Searcher<'p> {
        let mut niche = Niche::new(instance);
        niche.set_capacity(capacity);
        Searcher { instance, niche, pressure: instance.pressure(), ranks: Vec::new() }
    }

    fn run(&mut self, rule: Rule, effort: u64, budget: &mut Budget<'_>) -> Outcome {
        rank(&self.instance.items, &self.pressure, rule, &mut self.ranks);
        let limit = effort * STEPS * self.instance.items.len() as u64;
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

//! The search with many rules in turn: over the items as they are, and over glued ones.
//!
//! No rule is the best for every problem, and a search that took a wrong turn early seldom comes back from it; so each
//! run is short, and after every rule had its turn all have another, with noise and, now and then, twice the steps.
//!
//! With several threads each takes every so-manieth run. The first run that finds something counts, in the order of
//! runs and not of time, so that the result depends on how many threads there are and on nothing else.

use super::budget::Budget;
use super::glue::{Glue, Glued};
use super::instance::Instance;
use super::niche::{mix, Niche, Outcome};
use super::order::{rank, Rule};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is glued, in turn.
const GLUES: [Glue; 3] = [Glue::Stacks, Glue::Triples, Glue::Pairs];
/// Most threads used.
const MOST_THREADS: u64 = 256;

/// Searches of one instance.
pub(super) struct Portfolio<'a> {
    instance: &'a Instance,
    glued: Vec<Glued>,
    threads: u64,
}

/// What one thread found, in which run, and the steps that its runs up to then took.
struct Found {
    run: u64,
    steps: u64,
    outcome: Outcome,
    offsets: Vec<u64>,
}

impl<'a> Portfolio<'a> {
    pub(super) fn new(instance: &'a Instance, threads: u32) -> Portfolio<'a> {
        // A glued item could not follow floors that differ below its pieces, nor lie in two bands.
        let even = instance.floors.iter().all(|&f| f == 0) && instance.bands.is_empty();
        let glues = GLUES.iter().filter(|_| even);
        let glued = glues.map(|&g| Glued::new(instance, g, 0)).filter(Glued::is_different).collect();
        Portfolio { instance, glued, threads: u64::from(threads).clamp(1, MOST_THREADS) }
    }

    pub(super) fn instance(&self) -> &'a Instance {
        self.instance
    }

    /// Looks for a layout within `capacity` in `runs` runs with growing limits; one that is found is in `offsets`.
    pub(super) fn search(&self, capacity: u64, runs: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
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
    portfolio: &'p Portfolio<'p>,
    capacity: u64,
    /// Made when they are first used.
    plain: Option<Searcher<'p>>,
    glued: Vec<Option<Searcher<'p>>>,
}

impl<'p> Lane<'p> {
    fn new(portfolio: &'p Portfolio<'p>, capacity: u64) -> Lane<'p> {
        let glued = portfolio.glued.iter().map(|_| None).collect();
        Lane { portfolio, capacity, plain: None, glued }
    }

    fn run(&mut self, run: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        let variants = 1 + self.glued.len() as u64;
        let (variant, round) = ((run % variants) as usize, run / variants);
        let rule = Rule::of_round(round);
        let effort = luby(round / Rule::COUNT + 1);
        // The last variant is the original: it takes longest, and only it can prove anything.
        if variant == self.glued.len() {
            let (instance, capacity) = (self.portfolio.instance, self.capacity);
            let plain = self.plain.get_or_insert_with(|| Searcher::new(instance, capacity));
            let outcome = plain.run(rule, effort, budget);
            if outcome == Outcome::Found {
                offsets.copy_from_slice(plain.niche.offsets());
            }
            return outcome;
        }
        let outcome = if round < Rule::COUNT {
            let (glued, capacity) = (&self.portfolio.glued[variant], self.capacity);
            let searcher = self.glued[variant].get_or_insert_with(|| Searcher::new(&glued.instance, capacity));
            let outcome = searcher.run(rule, effort, budget);
            if outcome == Outcome::Found {
                glued.expand(searcher.niche.offsets(), offsets);
            }
            outcome
        } else {
            // Later on, other things are glued every time.
            let glued = Glued::new(self.portfolio.instance, GLUES[variant], mix(round) | 1);
            let mut searcher = Searcher::new(&glued.instance, self.capacity);
            let outcome = searcher.run(rule, effort, budget);
            if outcome == Outcome::Found {
                glued.expand(searcher.niche.offsets(), offsets);
            }
            outcome
        };
        match outcome {
            Outcome::Impossible => Outcome::Unknown,
            other => other,
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
        // Without a mistake it takes a step for every item. Many short runs find more than a few long ones.
        let limit = effort * 2 * self.instance.items.len() as u64;
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

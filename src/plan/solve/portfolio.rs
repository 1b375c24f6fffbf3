//! Runs the search in many ways in turn: mostly over glued items, and over the original items.
//!
//! No way is best for every problem, and a search seldom recovers from an early mistake. So each
//! run is short and adds its own noise to the order. The ways are those that found most in the
//! least time on MiniMalloc's cases; now and then a run takes twice the steps or more. To catch
//! what they miss, every third run takes the next combination of rule and glue, first without
//! noise. Around obstacles, where the bound is often out of reach, so does every second run. After
//! one round of all combinations, most runs go the ways that came furthest on this problem.
//!
//! Items are sorted first, so that the order of adding buffers makes no difference.
//!
//! With several threads, thread k of n takes runs k, k + n, k + 2n and so on. The successful run
//! with the lowest number counts, not the first in time, so the result depends only on the number
//! of threads.

use super::budget::Budget;
use super::glue::{Glue, Glued, ALL};
use super::instance::{Instance, Item};
use super::niche::{Limits, Niche, Outcome, Trail};
use super::numbers::mix;
use super::order::{rank, Ask, By, Rule};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What to glue, and how many in eight of the pieces that fit; which section to ask next; which
/// items go first.
type Way = (Option<(Glue, u64)>, Ask, By);

/// The first ways, each run once without noise.
const FIRST: [Way; 4] = [
    (Some((Glue::Stacks, ALL)), Ask::Fewest, By::Pressure),
    (Some((Glue::Stacks, ALL)), Ask::Hardest, By::Width),
    (None, Ask::Fewest, By::Pressure),
    (Some((Glue::Triples, ALL)), Ask::Fewest, By::Pressure),
];
/// The ways used in turn with noise.
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
/// The spreads of the noise, used in turn.
const SPREADS: [f64; 4] = [0.03, 0.1, 0.3, 1.0];
/// The kinds of glue tried with every rule, and how many in eight of the pieces that fit are glued
/// in rounds with noise.
const KINDS: [Option<Glue>; 3] = [Some(Glue::Stacks), Some(Glue::Triples), None];
const KINDS_SHARE: u64 = 6;
/// Steps of a run for each item; a run without mistakes takes one. Many short runs find more than a
/// few long ones.
const STEPS: u64 = 2;

/// A run ends when it makes no progress for one step per this many items: its mistake is too far
/// back to be undone.
const PATIENCE: u64 = 4;
/// Runs that share one partly glued instance: gluing costs more than a run.
const SERVES: u64 = 8;
/// Of four runs, the number that go a successful way, once every rule has been tried.
const FAVOURED: u64 = 3;
/// The number of runs that try every rule once: one run in three does.
const EVERY_RULE: u64 = 3 * KINDS.len() as u64 * Rule::COUNT;
/// The spreads of the noise in runs that go a successful way, used in turn.
const FAVOURED_SPREADS: [f64; 3] = [0.2, 0.4, 0.6];
/// Ways are compared by the shortfall that one in this many of their runs beats.
const BEST_OF: usize = 10;
/// Most shortfalls kept for a way. Beyond that every second one is dropped, which leaves the best
/// tenth where it was.
const MOST_KEPT: usize = 256;

/// Most threads used.
const MOST_THREADS: u64 = 256;

/// The searches of one instance.
pub(super) struct Portfolio {
    /// The instance with its items sorted.
    instance: Instance,
    /// The original index of each sorted item.
    order: Vec<u32>,
    /// Fully glued instances, if gluing changes anything.
    glued: Vec<(Glue, Glued)>,
    threads: u64,
}

/// The results of runs at one capacity, from which later runs go on.
#[derive(Default)]
pub(super) struct Experience {
    /// Number of runs so far.
    runs: u64,
    /// Records of each thread.
    records: Vec<Vec<Record>>,
}

/// How long a run may go on.
#[derive(Clone, Copy)]
struct Limit {
    /// Multiple of the usual steps.
    runs: u64,
    /// Whether the run ends when it makes no progress. Around obstacles the smallest layout is
    /// often above the bound, and a run that is to prove this must go on.
    stalls: bool,
}

impl Limit {
    fn short(runs: u64) -> Limit {
        Limit { runs, stalls: true }
    }
}

/// The results of the runs of one way.
#[derive(Clone)]
struct Record {
    way: Way,
    runs: u64,
    /// The shares of items that runs left unplaced, rising; at most [`MOST_KEPT`].
    shortfalls: Vec<f64>,
}

/// The result of one thread: the run that gave it, and the steps of its runs up to then.
struct Found {
    run: u64,
    steps: u64,
    outcome: Outcome,
    offsets: Vec<u64>,
}

impl Record {
    fn new(way: Way) -> Record {
        Record { way, runs: 0, shortfalls: Vec::new() }
    }

    fn add(&mut self, shortfall: f64) {
        self.runs += 1;
        self.shortfalls.insert(self.shortfalls.partition_point(|s| *s < shortfall), shortfall);
        if self.shortfalls.len() > MOST_KEPT {
            let mut keep = false;
            self.shortfalls.retain(|_| {
                keep = !keep;
                keep
            });
        }
    }

    /// The shortfall at the end of its best tenth of runs; 1 before the first run.
    fn shortfall(&self) -> f64 {
        self.shortfalls.get(self.shortfalls.len() / BEST_OF).copied().unwrap_or(1.0)
    }
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

    /// Looks for a layout within `capacity` in `runs` more runs with growing limits. Writes a
    /// layout that it finds to `offsets`.
    pub(super) fn search(
        &self,
        capacity: u64,
        runs: u64,
        experience: &mut Experience,
        offsets: &mut [u64],
        budget: &mut Budget<'_>,
    ) -> Outcome {
        let mut sorted = vec![0; offsets.len()];
        experience.records.resize(self.threads as usize, Vec::new());
        let until = experience.runs.saturating_add(runs);
        let outcome = self.search_sorted(capacity, until, experience, &mut sorted, budget);
        experience.runs = until;
        if outcome == Outcome::Found {
            for (&i, at) in self.order.iter().zip(sorted) {
                offsets[i as usize] = at;
            }
        }
        outcome
    }

    fn search_sorted(
        &self,
        capacity: u64,
        until: u64,
        experience: &mut Experience,
        offsets: &mut [u64],
        budget: &mut Budget<'_>,
    ) -> Outcome {
        if self.threads == 1 {
            let mut lane = Lane::new(self, capacity, &mut experience.records[0]);
            for run in experience.runs..until {
                match lane.run(run, offsets, budget) {
                    Outcome::Unknown if budget.spent() => return Outcome::Unknown,
                    Outcome::Unknown => {}
                    settled => return settled,
                }
            }
            return Outcome::Unknown;
        }
        let first = AtomicU64::new(u64::MAX);
        let Experience { runs, records } = &*experience;
        let lanes: Vec<(Option<Found>, Vec<Record>, Budget<'_>)> = std::thread::scope(|scope| {
            let lane = |thread: u64| {
                let (mut budget, first) = (budget.share(), &first);
                let (runs, mut records) = (runs.saturating_add(thread)..until, records[thread as usize].clone());
                move || (self.every_so_many(runs, capacity, &mut records, first, &mut budget), records, budget)
            };
            let started: Vec<_> = (0..self.threads)
                .map(|thread| (thread, std::thread::Builder::new().spawn_scoped(scope, lane(thread)).ok()))
                .collect();
            // Lanes whose thread failed run here: the number of lanes decides the result.
            started
                .into_iter()
                .map(|(thread, started)| started.and_then(|s| s.join().ok()).unwrap_or_else(|| lane(thread)()))
                .collect()
        });
        let best = lanes.iter().filter_map(|(found, ..)| found.as_ref()).min_by_key(|found| found.run);
        // Steps of threads told to stop depend on timing; those of threads that found something or
        // finished do not.
        let whole = lanes.iter().filter(|(found, ..)| found.is_none()).map(|(.., share)| share.taken()).max();
        budget.join(best.map_or(whole.unwrap_or(0), |found| found.steps), lanes.iter().any(|(.., b)| b.interrupted()));
        match best {
            Some(found) => {
                offsets.copy_from_slice(&found.offsets);
                found.outcome
            }
            None => {
                experience.records = lanes.into_iter().map(|(_, records, _)| records).collect();
                Outcome::Unknown
            }
        }
    }

    /// The runs of one thread, until one finds something or a run before its next one has.
    fn every_so_many(
        &self,
        runs: Range<u64>,
        capacity: u64,
        records: &mut Vec<Record>,
        first: &AtomicU64,
        budget: &mut Budget<'_>,
    ) -> Option<Found> {
        let mut lane = Lane::new(self, capacity, records);
        let mut offsets = vec![0; self.instance.items.len()];
        let mut run = runs.start;
        while run < runs.end && run < first.load(Ordering::Relaxed) {
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

/// The search state of one thread for one capacity.
struct Lane<'p> {
    portfolio: &'p Portfolio,
    capacity: u64,
    /// Searchers of the original items, and of each glued instance, made on first use.
    plain: Option<Searcher<'p>>,
    glued: Vec<Option<Searcher<'p>>>,
    /// Partly glued instances: (glue, share, runs served, instance).
    partly: Vec<(Glue, u64, u64, Glued)>,
    records: &'p mut Vec<Record>,
    /// The trail of the current run.
    trail: Trail,
}

impl<'p> Lane<'p> {
    fn new(portfolio: &'p Portfolio, capacity: u64, records: &'p mut Vec<Record>) -> Lane<'p> {
        Lane {
            portfolio,
            capacity,
            plain: None,
            glued: portfolio.glued.iter().map(|_| None).collect(),
            partly: Vec::new(),
            records,
            trail: Trail::default(),
        }
    }

    /// The way in place `rank` of those whose runs came furthest, and its number of runs.
    fn favourite(&self, rank: usize) -> Option<(Way, u64)> {
        let mut order: Vec<&Record> = self.records.iter().collect();
        order.sort_by(|a, b| a.shortfall().total_cmp(&b.shortfall()));
        let best = order.get(rank.min(order.len().saturating_sub(1)))?;
        Some((best.way, best.runs))
    }

    /// Records how far a run came.
    fn record(&mut self, way: Way, shortfall: f64) {
        let at = self.records.iter().position(|r| r.way == way).unwrap_or(self.records.len());
        if at == self.records.len() {
            self.records.push(Record::new(way));
        }
        self.records[at].add(shortfall);
    }

    /// What a run glues, its rule and its limit.
    fn way(&self, run: u64) -> (Option<(Glue, u64)>, Rule, Limit) {
        // Around obstacles, every second run goes as it would without them.
        let around = !self.portfolio.instance.obstacles.is_empty();
        let (free, run) = if around { (run % 2 == 1, run / 2) } else { (true, run) };
        // The choice is random, because runs at a fixed interval might all belong to one thread.
        let draw = mix(run) >> 32;
        if free && run >= EVERY_RULE && draw % 4 < FAVOURED {
            // Half of these runs go the best way, a quarter the next, and so on, because the
            // ranking is a guess.
            if let Some(((glue, ask, by), count)) = self.favourite((draw / 4).trailing_zeros() as usize) {
                let spread = FAVOURED_SPREADS[(count % FAVOURED_SPREADS.len() as u64) as usize];
                return (glue, Rule { ask, by, noise: mix(run) | 1, spread }, Limit::short(1));
            }
        }
        if free && run % 3 < 2 {
            let run = run / 3 * 2 + run % 3;
            let (first, cycle) = (FIRST.len() as u64, WAYS.len() as u64);
            let ((glue, ask, by), noise, round) = match run.checked_sub(first) {
                None => (FIRST[run as usize], 0, 0),
                Some(run) => (WAYS[(run % cycle) as usize], mix(run) | 1, run / cycle),
            };
            let spread = SPREADS[(round % SPREADS.len() as u64) as usize];
            return (glue, Rule { ask, by, noise, spread }, Limit::short(luby(round + 1)));
        }
        let run = if free { run / 3 } else { run };
        let (kinds, round) = (KINDS.len() as u64, run / KINDS.len() as u64);
        let share = if round < Rule::COUNT { ALL } else { KINDS_SHARE };
        let glue = KINDS[(run % kinds) as usize].map(|glue| (glue, share));
        (glue, Rule::of_round(round), Limit { runs: luby(round / Rule::COUNT + 1), stalls: free })
    }

    fn run(&mut self, run: u64, offsets: &mut [u64], budget: &mut Budget<'_>) -> Outcome {
        let (capacity, instance) = (self.capacity, &self.portfolio.instance);
        let (glue, rule, limit) = self.way(run);
        let glue = glue.filter(|_| !self.portfolio.glued.is_empty());
        let way = (glue, rule.ask, rule.by);
        let Some((glue, share)) = glue else {
            let plain = self.plain.get_or_insert_with(|| Searcher::new(instance, capacity));
            let outcome = plain.run(rule, limit, &mut self.trail, budget);
            let shortfall = plain.niche.shortfall();
            if outcome == Outcome::Found {
                offsets.copy_from_slice(plain.niche.offsets());
            }
            self.record(way, shortfall);
            return outcome;
        };
        let mut shortfall = 1.0;
        let mut search = |glued: &Glued, searcher: &mut Searcher<'_>, budget: &mut Budget<'_>| {
            let outcome = searcher.run(rule, limit, &mut self.trail, budget);
            shortfall = searcher.niche.shortfall();
            match outcome {
                Outcome::Found => {
                    glued.expand(searcher.niche.offsets(), offsets);
                    Outcome::Found
                }
                // Only a search of the original items can prove anything.
                Outcome::Impossible | Outcome::Unknown => Outcome::Unknown,
            }
        };
        let known = self.portfolio.glued.iter().zip(&mut self.glued).find(|((g, _), _)| *g == glue && share == ALL);
        let outcome = match known {
            Some(((_, glued), made)) => {
                search(glued, made.get_or_insert_with(|| Searcher::new(&glued.instance, capacity)), budget)
            }
            None => {
                let serves = if instance.obstacles.is_empty() { SERVES } else { 1 };
                self.partly.retain(|&(g, s, served, _)| (g, s) != (glue, share) || served < serves);
                let at = self.partly.iter().position(|&(g, s, ..)| (g, s) == (glue, share));
                let at = at.unwrap_or_else(|| {
                    self.partly.push((glue, share, 0, Glued::new(instance, glue, share, mix(run) | 1)));
                    self.partly.len() - 1
                });
                let (_, _, served, glued) = &mut self.partly[at];
                *served += 1;
                search(glued, &mut Searcher::new(&glued.instance, capacity), budget)
            }
        };
        self.record(way, shortfall);
        outcome
    }
}

/// The search of one instance, with the data that orders its items.
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

    fn run(&mut self, rule: Rule, limit: Limit, trail: &mut Trail, budget: &mut Budget<'_>) -> Outcome {
        rank(&self.instance.items, &self.pressure, rule, &mut self.ranks);
        let items = self.instance.items.len() as u64;
        let steps = limit.runs * STEPS * items;
        let patience = if limit.stalls { limit.runs * (items / PATIENCE).max(1) } else { steps };
        self.niche.swap_trail(trail);
        let outcome = self.niche.run(self.instance, rule, &self.ranks, Limits { steps, patience }, budget);
        self.niche.swap_trail(trail);
        outcome
    }
}

/// The Luby sequence 1 1 2 1 1 2 4 …, from `i` = 1.
fn luby(i: u64) -> u64 {
    let bits = u64::BITS - i.leading_zeros();
    if i + 1 == 1 << bits {
        return 1 << (bits - 1);
    }
    luby(i + 1 - (1 << (bits - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_little_and_knows_its_best_tenth() {
        let mut record = Record::new(WAYS[0]);
        assert_eq!(record.shortfall(), 1.0);
        // Each of 0, .001, .. .999 once, in another order.
        for i in 0..1000 {
            record.add(f64::from(i * 387 % 1000) / 1000.0);
        }
        assert_eq!(record.runs, 1000);
        assert!(record.shortfalls.len() <= MOST_KEPT && record.shortfalls.is_sorted());
        assert!((record.shortfall() - 0.1).abs() < 0.03, "{}", record.shortfall());
    }
}

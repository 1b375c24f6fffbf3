//! The largest items first, then all others in the holes.
//!
//! In most large problems a few items make the size and the others are small beside them. So the k largest are laid out
//! alone, as low as they can be, and the others follow by first fit, the largest first: where they fit, a problem of tens
//! of thousands of items has cost little more than one of k. Which k suffices is not known, nor whether more do better
//! than fewer, so many are tried in turn, from few to many.

use super::best::Best;
use super::budget::Budget;
use super::first_fit::{FirstFit, Fit, Shapes};
use super::in_time;
use super::instance::Instance;
use super::niche::Outcome;
use super::portfolio::{Experience, Portfolio};

/// The first k: one in so many items, and no fewer than this.
const FIRST_SHARE: usize = 32;
const FEWEST: usize = 256;
/// After so many times that first fit ended at the same item as before, k is doubled.
const STUCK: u32 = 2;
/// Runs of the search over the largest.
const RUNS: u64 = 12;
/// Most items times sections that are searched: two bits of each search for each of them.
const MOST_CELLS: usize = 1 << 26;
/// Most sections covered by all of them together: the search notes each, so that it can go back.
const MOST_COVERED: u64 = 1 << 22;

/// Tries to bring `best` within `goal`, until all k have had their turn or the budget is spent.
pub(super) fn improve(instance: &Instance, goal: u64, best: &mut Best, threads: u32, budget: &mut Budget<'_>) {
    let items = &instance.items;
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    let life = |i: u32| items[i as usize].to - items[i as usize].from;
    let rank = |&i: &u32| (std::cmp::Reverse((items[i as usize].size, life(i))), i);
    if !in_time::sort(&mut order, |&i| !items[i as usize].size, |a, b| rank(a).cmp(&rank(b)), &mut || budget.is_late())
    {
        return;
    }
    let (shapes, obstacles) = Shapes::of(instance);
    let mut fit = FirstFit::new(&shapes);
    let mut offsets = vec![0; items.len()];
    let mut k = (items.len() / FIRST_SHARE).max(FEWEST);
    // Where first fit came to its end, and how often it was there again.
    let (mut reached, mut stuck) = (0, 0);
    while k < items.len() && best.size > goal && !budget.spent() {
        let (large, rest) = order.split_at(k);
        if let Some(at) = lay_out(instance, large, threads, budget) {
            fit.restart(&obstacles);
            for (&i, &at) in large.iter().zip(&at) {
                fit.put(i, at);
                offsets[i as usize] = at;
            }
            if fit.place(rest.iter().copied(), Fit::First, goal, &mut offsets, budget).is_some() {
                best.take(instance.top(&offsets), &mut offsets);
            }
            stuck = if fit.len() == reached { stuck + 1 } else { 0 };
            reached = fit.len();
        }
        // What first fit fails at again and again wants more of the search.
        k += if stuck >= STUCK { k } else { k / 4 };
        stuck %= STUCK;
    }
}

/// Lays `some` of the items out alone, as low as sums allow: their offsets.
fn lay_out(instance: &Instance, some: &[u32], threads: u32, budget: &mut Budget<'_>) -> Option<Vec<u64>> {
    let alone = if instance.obstacles.is_empty() {
        let items = some.iter().map(|&i| instance.items[i as usize]).collect();
        Instance::from_ranges_in_time(items, &mut || budget.is_late())?
    } else {
        instance.above(some, |_| None)
    };
    if some.len().saturating_mul(alone.totals.len()) > MOST_CELLS || alone.covered() > MOST_COVERED {
        return None;
    }
    let mut offsets = vec![0; some.len()];
    let outcome =
        Portfolio::new(&alone, threads).search(alone.bound(), RUNS, &mut Experience::default(), &mut offsets, budget);
    (outcome == Outcome::Found).then_some(offsets)
}

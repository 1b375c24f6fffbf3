//! The largest items first, then all others in the holes.
//!
//! In most large problems a few items determine the size and the others are small beside them. So
//! the k largest are laid out alone, as low as possible, and the others follow by first fit,
//! largest first. If they fit, a problem of tens of thousands of items costs little more than one
//! of k. With very many items, the others follow by skyline, which does not compare every pair. No
//! rule says which k suffices, or whether a larger k does better, so many are tried, from small to
//! large.

use super::best::Best;
use super::blocks::Obstacle;
use super::budget::Budget;
use super::first_fit::{FirstFit, Fit, Shapes, MOST_BEFORE_SKYLINE};
use super::in_time;
use super::instance::{Instance, Item};
use super::niche::Outcome;
use super::portfolio::{Experience, Portfolio};
use super::skyline::Skyline;
use std::cmp::Reverse;

/// Up to one item in `FEW_SHARE`, or `FEW` if that is more, k is chosen where sizes drop. Beyond
/// that it grows by a quarter.
const FEW_SHARE: usize = 32;
const FEW: usize = 256;
/// Every k is larger.
const FEWEST: usize = 32;
/// A layout above the goal by less than one part in this many is worth finishing: later work may
/// bring it within the goal.
const NEARLY: u64 = 1 << 10;
/// When first fit has ended at the same item as before this many times, k is doubled.
const STUCK: u32 = 2;
/// Fewest runs of the search over the k largest, and fewest runs times k: a few items can be as
/// hard as any small problem, which gets some hundred runs.
const RUNS: u64 = 12;
const RUNS_TIMES_ITEMS: u64 = 1 << 17;
/// Most items times sections to search; each of these cells takes half a bit of memory.
const MOST_CELLS: usize = 3 << 23;
/// Most sections covered, summed over the items: the search records each for backtracking.
const MOST_COVERED: u64 = 1 << 22;

/// Tries to bring `best` within `goal`, until every k has been tried or the budget is spent.
pub(super) fn improve(instance: &Instance, goal: u64, best: &mut Best, threads: u32, budget: &mut Budget<'_>) {
    let items = &instance.items;
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    let life = |i: u32| items[i as usize].to - items[i as usize].from;
    let rank = |&i: &u32| (Reverse((items[i as usize].size, life(i))), i);
    if !in_time::sort(&mut order, |&i| !items[i as usize].size, |a, b| rank(a).cmp(&rank(b)), &mut || budget.is_late())
    {
        return;
    }
    let shapes = (items.len() <= MOST_BEFORE_SKYLINE).then(|| Shapes::of(instance));
    let mut k = 0;
    let mut first = first_ks(|at| items[order[at] as usize].size, items.len()).into_iter();
    // How many items first fit placed, and how often in a row it ended there.
    let (mut reached, mut stuck) = (0, 0);
    while best.size > goal && !budget.spent() {
        // An item at which first fit keeps failing needs a larger search.
        k = first.next().unwrap_or(if stuck >= STUCK { 2 * k } else { k + k / 4 });
        stuck %= STUCK;
        if k >= items.len() {
            return;
        }
        let (large, rest) = order.split_at(k);
        let Some(at) = lay_out(instance, large, threads, budget) else { continue };
        for (&i, &at) in large.iter().zip(&at) {
            best.scratch[i as usize] = at;
        }
        let limit = (goal + goal / NEARLY).min(best.size - 1);
        let filled = match &shapes {
            Some((shapes, obstacles)) => {
                // Made anew each time: kept during the search, it would take as much memory as the
                // search.
                let mut fit = FirstFit::new(shapes);
                fit.restart(obstacles);
                large.iter().zip(&at).for_each(|(&i, &at)| fit.put(i, at));
                let filled = fit.place(rest.iter().copied(), Fit::First, limit, &mut best.scratch, budget).is_some();
                stuck = if fit.len() == reached { stuck + 1 } else { 0 };
                reached = fit.len();
                filled
            }
            None => {
                stuck = STUCK;
                fill(instance, large, rest, limit, &mut best.scratch, budget).is_some()
            }
        };
        best.offer(filled.then(|| instance.top(&best.scratch)));
    }
}

/// Lays `rest` out by skyline around `large`, which lie at `offsets`; `None` if the size exceeds
/// `limit` or time is over.
fn fill(
    instance: &Instance,
    large: &[u32],
    rest: &[u32],
    limit: u64,
    offsets: &mut [u64],
    budget: &mut Budget<'_>,
) -> Option<()> {
    let placed = large.iter().map(|&i| {
        let (Item { from, to, size, .. }, bottom) = (instance.items[i as usize], offsets[i as usize]);
        Obstacle { from, to, bottom, end: bottom + size }
    });
    let obstacles = instance.obstacles.iter().copied().chain(placed).collect();
    let items = rest.iter().map(|&i| instance.items[i as usize]).collect();
    let around = Instance::around(items, obstacles, instance.totals.len());
    let ranks: Vec<u32> = (0..rest.len() as u32).collect();
    let mut found = vec![0; rest.len()];
    Skyline::new(&around, &mut || budget.is_late())?.place(&ranks, limit, &mut found, budget)?;
    for (&i, at) in rest.iter().zip(found) {
        offsets[i as usize] = at;
    }
    Some(())
}

/// The first ks, for `count` falling sizes. Each is where the size drops to a half or less, at most
/// one between successive powers of two; the largest drop goes first. Beyond a drop, small items
/// would only make the search harder.
fn first_ks(size: impl Fn(usize) -> u64, count: usize) -> Vec<usize> {
    let fall = |&k: &usize| size(k - 1) as f64 / size(k) as f64;
    let by_fall = |a: &usize, b: &usize| fall(a).total_cmp(&fall(b));
    let last = FEW.max(count / FEW_SHARE).min(count.saturating_sub(1));
    let powers = std::iter::successors(Some(FEWEST), |k| Some(2 * k)).take_while(|&k| k < last);
    let cuts = powers.filter_map(|k| (k + 1..last.min(2 * k + 1)).max_by(by_fall));
    let mut ks: Vec<usize> = cuts.filter(|k| fall(k) >= 2.0).collect();
    if let Some(at) = (0..ks.len()).max_by(|&a, &b| by_fall(&ks[a], &ks[b])) {
        ks[..=at].rotate_right(1);
    }
    ks.push(last);
    ks
}

/// Lays `some` of the items out alone, as low as sums allow; returns their offsets.
fn lay_out(instance: &Instance, some: &[u32], threads: u32, budget: &mut Budget<'_>) -> Option<Vec<u64>> {
    let alone = if instance.obstacles.is_empty() {
        let items = some.iter().map(|&i| instance.items[i as usize]).collect();
        Instance::from_ranges_in_time(items, &mut || budget.is_late())?
    } else {
        instance.above(some, |_| None)
    };
    if some.len().saturating_mul(alone.totals.len()) > MOST_CELLS || alone.covered() + alone.blocked() > MOST_COVERED {
        return None;
    }
    let mut offsets = vec![0; some.len()];
    let runs = RUNS.max(RUNS_TIMES_ITEMS / some.len() as u64);
    let outcome =
        Portfolio::new(&alone, threads).search(alone.bound(), runs, &mut Experience::default(), &mut offsets, budget);
    (outcome == Outcome::Found).then_some(offsets)
}

//! Lays out one part: items over sections, greedily and then by search.

use super::best::Best;
use super::budget::{Budget, FIRST_STEPS};
use super::first_fit::{FirstFit, Fit, Shapes};
use super::in_time;
use super::instance::Instance;
use super::niche::Outcome;
use super::options::Effort;
use super::order::{rank_in_time, By, Rule};
use super::portfolio::{Experience, Portfolio};
use super::skyline::Skyline;
use super::{large, repair};

/// Most items for the orders that compare every item with every other.
const FIRST_FIT_ITEMS: usize = 4_000;
/// Most items for the exact search, whose sets of items are a word for every 64.
const SEARCH_ITEMS: usize = 4_096;
/// Most sections covered, summed over the obstacles, for the exact search: 16 bytes each.
const SEARCH_BLOCKED: u64 = 1 << 22;
/// Number of orders that [`Effort::Fast`] tries, and fewer with more than `MANY` items: on large
/// sets, the third order was never the best.
const FAST_ORDERS: usize = 3;
const FAST_ORDERS_OF_MANY: usize = 2;
const MANY: usize = 1 << 17;
/// Runs at the goal before other capacities are tried; each of those gets this many divided by
/// `OTHERS_SHARE`.
const FIRST_ROUNDS: u64 = 576;
const OTHERS_SHARE: u64 = 8;

/// Orders of the greedy layouts.
const ORDERS: [By; 4] = [By::Pressure, By::Width, By::Size, By::Area];

/// Improves on `best` by greedy orders. It tries all of them whatever the goal and the number of
/// steps left, so that no layout is worse than the best order. [`Effort::Fast`] skips some, as does
/// a part with too many items to compare every pair. Clock and flag stop all orders but the first,
/// which only `first` may stop.
pub(super) fn greedy(
    instance: &Instance,
    earlier: Option<Vec<u64>>,
    effort: Effort,
    best: &mut Best,
    first: &mut Budget<'_>,
    budget: &mut Budget<'_>,
) {
    let n = instance.items.len();
    let mut uncounted = budget.without_count();
    let orders = match effort {
        Effort::Fast if n > MANY => &ORDERS[..FAST_ORDERS_OF_MANY],
        Effort::Fast => &ORDERS[..FAST_ORDERS],
        Effort::Normal => &ORDERS[..],
    };
    if best.size <= best.bound || (best.size < u64::MAX && uncounted.is_late()) {
        budget.join(0, uncounted.interrupted());
        return;
    }
    // Without an earlier layout, pressure and skyline never exist together: for a million items
    // they take 8 MB and 40 MB.
    let order_by = |by: By, ranks: &mut Vec<u32>, late: &mut dyn FnMut() -> bool| {
        let pressure = if by == By::Pressure { instance.pressure_in_time(late) } else { Some(Vec::new()) };
        pressure.is_some_and(|pressure| rank_in_time(&instance.items, &pressure, Rule::greedy(by), ranks, late))
    };
    let mut ranks = Vec::new();
    let mut made: Option<Skyline<'_>> = None;
    if let Some(earlier) = &earlier {
        let mut late = || best.size < u64::MAX && uncounted.is_late();
        let mut order: Vec<u32> = (0..n as u32).collect();
        let sorted = in_time::sort(
            &mut order,
            |&i| earlier[i as usize],
            |&a, &b| (earlier[a as usize], a).cmp(&(earlier[b as usize], b)),
            &mut late,
        );
        let Some(mut skyline) = Skyline::new(instance, &mut late).filter(|_| sorted) else {
            budget.join(0, true);
            return;
        };
        ranks.resize(n, 0);
        for (at, &i) in order.iter().enumerate() {
            ranks[i as usize] = at as u32;
        }
        let size = skyline.place(&ranks, u64::MAX, &mut best.scratch, first);
        made = Some(skyline);
        best.offer(size);
        if best.size <= best.bound {
            return;
        }
    }
    for &by in orders {
        // Sorting many items takes long.
        let mut late = || n as u64 > FIRST_STEPS && uncounted.is_late();
        let ready = !late() && order_by(by, &mut ranks, &mut late);
        let skyline = if ready { made.take().or_else(|| Skyline::new(instance, &mut late)) } else { None };
        let Some(mut skyline) = skyline else {
            budget.join(0, true);
            return;
        };
        let size = match best.size {
            u64::MAX => skyline.place(&ranks, u64::MAX, &mut best.scratch, first),
            size => skyline.place(&ranks, size.saturating_sub(1), &mut best.scratch, &mut uncounted),
        };
        made = Some(skyline);
        best.offer(size);
        if best.size <= best.bound {
            return;
        }
        if first.interrupted() || uncounted.interrupted() {
            budget.join(0, true);
            return;
        }
    }
    if n > FIRST_FIT_ITEMS {
        return;
    }
    let (shapes, obstacles) = Shapes::of(instance);
    let mut first_fit = FirstFit::new(&shapes);
    let mut try_order = |best: &mut Best, order: &[u32], fit: Fit| {
        let limit = best.size.saturating_sub(1);
        first_fit.restart(&obstacles);
        let size = first_fit.place(order.iter().copied(), fit, limit, &mut best.scratch, &mut uncounted);
        best.offer(size);
    };
    if let Some(earlier) = earlier {
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|&i| earlier[i as usize]);
        try_order(best, &order, Fit::First);
    }
    if effort == Effort::Fast {
        return;
    }
    for by in ORDERS {
        order_by(by, &mut ranks, &mut || false);
        let mut order = vec![0; ranks.len()];
        for (i, &r) in ranks.iter().enumerate() {
            order[r as usize] = i as u32;
        }
        try_order(best, &order, Fit::First);
        try_order(best, &order, Fit::Best);
        if best.size <= best.bound {
            return;
        }
    }
}

/// Makes `best` smaller until it is within `goal`, it is proved smallest, or the budget is spent.
pub(super) fn improve(instance: &Instance, goal: u64, best: &mut Best, threads: u32, budget: &mut Budget<'_>) {
    let goal = goal.max(best.bound);
    if best.size <= goal || budget.spent() {
        return;
    }
    if instance.items.len() <= SEARCH_ITEMS && instance.blocked() <= SEARCH_BLOCKED {
        descend(instance, goal, best, threads, budget);
    } else {
        // With very many items each k takes long, so half the budget is left for repair.
        let mut part = budget.part(if instance.items.len() > MANY { 2 } else { 1 });
        large::improve(instance, goal, best, threads, &mut part);
        budget.join_part(&part);
        repair::improve(instance, goal, best, budget);
    }
}

/// Searches for smaller and smaller layouts, with more steps every time, until one is within
/// `goal`.
fn descend(instance: &Instance, goal: u64, best: &mut Best, threads: u32, budget: &mut Budget<'_>) {
    let search = &Portfolio::new(instance, threads);
    let mut at_goal = Experience::default();
    let mut rounds = FIRST_ROUNDS;
    while best.size > goal.max(best.bound) && !budget.spent() {
        // Try capacities from the bound up: little room lets the search detect mistakes early, so
        // the smallest layout may be the easiest to find. Then go from the goal up, halving the
        // interval between failure and success.
        let mut target = best.bound;
        while target < goal && best.size > goal && !budget.spent() {
            attempt(instance, search, target, rounds, &mut Experience::default(), best, budget);
            target += (goal - target).div_ceil(2);
        }
        let mut failed = goal.max(best.bound).saturating_sub(1);
        target = failed + 1;
        while best.size > goal.max(best.bound) && !budget.spent() {
            let (runs, experience) = match target <= goal {
                true => (rounds, &mut at_goal),
                false => (rounds / OTHERS_SHARE, &mut Experience::default()),
            };
            if attempt(instance, search, target, runs, experience, best, budget) != Outcome::Found {
                failed = target;
            }
            let open = best.size.saturating_sub(failed);
            if open <= 1 || open <= (best.size - goal.min(best.size)) / 8 {
                break;
            }
            target = failed + open / 2;
        }
        rounds = rounds.saturating_mul(2);
    }
}

/// Looks for a layout within `target`, and keeps the layout or the new bound.
fn attempt(
    instance: &Instance,
    portfolio: &Portfolio,
    target: u64,
    rounds: u64,
    experience: &mut Experience,
    best: &mut Best,
    budget: &mut Budget<'_>,
) -> Outcome {
    let outcome = portfolio.search(target, rounds, experience, &mut best.scratch, budget);
    match outcome {
        Outcome::Found => {
            let size = instance.top(&best.scratch);
            best.offer(Some(size));
        }
        Outcome::Impossible => best.bound = best.bound.max(target + 1),
        Outcome::Unknown => {}
    }
    outcome
}

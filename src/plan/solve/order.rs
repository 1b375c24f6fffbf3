//! Orders: which item goes first.

use super::in_time::{self, PIECE};
use super::instance::Item;
use super::numbers::mix;

/// The spread of the gentler noise.
const GENTLE: f64 = 0.1;

/// Which section of the niches to ask next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The lowest, and there the one with fewest choices.
    Lowest,
    /// The one with fewest choices, lower ones first.
    Fewest,
    /// The one with fewest choices relative to the weight of its failures.
    Hardest,
}

/// The key by which items are ordered, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Sections, then size.
    Width,
    /// Size × sections.
    Area,
    /// The total of the fullest section covered, then width, then size.
    Pressure,
    /// Size, then sections.
    Size,
}

/// The rules of one run of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) ask: Ask,
    pub(super) by: By,
    /// Seed of the noise on the order; 0 for none.
    pub(super) noise: u64,
    /// The range of the noise, as a share of the key.
    pub(super) spread: f64,
}

impl Rule {
    /// The number of rules without noise.
    pub(super) const COUNT: u64 = 12;

    /// The rule of the `round`-th restart: every way of asking with every order, the most
    /// successful of the measured ones first, then all again with noise.
    pub(super) fn of_round(round: u64) -> Rule {
        use {Ask::*, By::*};
        const RULES: [(Ask, By); Rule::COUNT as usize] = [
            (Fewest, Pressure),
            (Hardest, Width),
            (Lowest, Size),
            (Hardest, Area),
            (Fewest, Size),
            (Lowest, Pressure),
            (Fewest, Width),
            (Fewest, Area),
            (Hardest, Size),
            (Lowest, Area),
            (Hardest, Pressure),
            (Lowest, Width),
        ];
        let (ask, by) = RULES[(round % Rule::COUNT) as usize];
        // A little noise changes little but ties; a lot gives different orders.
        let spread = if round / Rule::COUNT % 2 == 1 { GENTLE } else { 1.0 };
        Rule { ask, by, noise: if round < Rule::COUNT { 0 } else { mix(round) | 1 }, spread }
    }

    /// An order for greedy placement.
    pub(super) fn greedy(by: By) -> Rule {
        Rule { ask: Ask::Lowest, by, noise: 0, spread: 0.0 }
    }

    /// An order for greedy placement with noise.
    pub(super) fn noisy(by: By, seed: u64) -> Rule {
        Rule { ask: Ask::Lowest, by, noise: mix(seed) | 1, spread: 1.0 }
    }

    /// The score of a section; the lowest is asked first.
    #[inline]
    pub(super) fn score(&self, choices: f64, floor: u64, capacity: u64, weight: f64) -> f64 {
        match self.ask {
            Ask::Lowest => floor as f64 + choices * 1e-3,
            Ask::Fewest => choices + floor as f64 / (capacity as f64 + 1.0),
            Ask::Hardest => choices / weight,
        }
    }
}

/// Ranks items by `rule`: `rank[i]` is the position of item `i`, and no two are equal. `pressure`
/// is [`Instance::pressure`]; it may be empty if the rule does not use it.
///
/// [`Instance::pressure`]: super::instance::Instance::pressure
pub(super) fn rank(items: &[Item], pressure: &[u64], rule: Rule, rank: &mut Vec<u32>) {
    rank_in_time(items, pressure, rule, rank, &mut || false);
}

/// As [`rank`], for many items; `false` if it became `late`.
pub(super) fn rank_in_time(
    items: &[Item],
    pressure: &[u64],
    rule: Rule,
    rank: &mut Vec<u32>,
    late: &mut dyn FnMut() -> bool,
) -> bool {
    let key = |i: u32| {
        let item = &items[i as usize];
        let width = f64::from(item.to - item.from);
        let size = item.size as f64;
        let pressure = || pressure.get(i as usize).copied().unwrap_or(0) as f64;
        let (first, second) = match rule.by {
            By::Width => (width, size),
            By::Area => (width * size, size),
            By::Pressure => (pressure(), width),
            By::Size => (size, width),
        };
        let noisy = if rule.noise == 0 {
            first
        } else {
            let share = (mix(rule.noise ^ u64::from(i)) >> 11) as f64 / (1u64 << 53) as f64;
            first * (1.0 + rule.spread * (share - 0.5))
        };
        (noisy, second, size)
    };
    // No key is below 0, so their bits have the same order. The first key is kept beside the item,
    // in two halves, so that a million items take 12 MB and not 16.
    let mut order: Vec<([u32; 2], u32)> = Vec::with_capacity(items.len());
    for i in 0..items.len() as u32 {
        if i as usize % PIECE == PIECE - 1 && late() {
            return false;
        }
        let bits = key(i).0.to_bits();
        order.push(([(bits >> 32) as u32, bits as u32], i));
    }
    let value = |entry: &([u32; 2], u32)| !(u64::from(entry.0[0]) << 32 | u64::from(entry.0[1]));
    if !in_time::sort(&mut order, value, |a, b| value(a).cmp(&value(b)).then(a.1.cmp(&b.1)), late) {
        return false;
    }
    // Only ties need the other keys.
    let mut tied = 0;
    for ties in order.chunk_by_mut(|a, b| a.0 == b.0).filter(|ties| ties.len() > 1) {
        tied += ties.len();
        if tied > PIECE && late() {
            return false;
        }
        tied %= PIECE;
        ties.sort_by_cached_key(|&(_, i)| {
            let (_, second, size) = key(i);
            (!second.to_bits(), !size.to_bits())
        });
    }
    rank.clear();
    rank.resize(items.len(), 0);
    for (position, &(_, i)) in order.iter().enumerate() {
        if position % PIECE == PIECE - 1 && late() {
            return false;
        }
        rank[i as usize] = position as u32;
    }
    true
}

//! A layout in one sweep over the sections, as an allocator would make it that does not know what comes.
//!
//! Items are placed in the order in which they are born, each in the smallest hole that it fits (best fit), and what
//! dies becomes a hole that is joined with those beside it. n items take O(n log n) steps, about a microsecond each: a
//! good first answer where the orders of [`super::skyline`] take long. When the clock ends even that, all get slots of
//! powers of two, tens of nanoseconds each: when it ended makes no difference, so that more time gives nothing worse.

use super::budget::Budget;
use super::instance::{in_order, Item};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Holes looked at for an item: the first may be off its alignment.
const LOOKED_AT: usize = 4;

/// Lays all items out above `base`, into `offsets`, and returns the end of the highest.
pub(super) fn place(items: &[Item], base: u64, offsets: &mut [u64], clock: &mut Budget<'_>) -> u64 {
    let mut births = in_order(items, |item| item.from);
    let deaths = in_order(items, |item| item.to);
    if !sweep(items, &mut births, &deaths, &mut Holes::new(base), offsets, clock) {
        let slots = &mut Slots { top: base, free: std::array::from_fn(|_| Vec::new()) };
        sweep(items, &mut births, &deaths, slots, offsets, &mut Budget::new(u64::MAX, None, None));
    }
    items.iter().zip(offsets.iter()).map(|(item, at)| at + item.size).max().unwrap_or(base)
}

/// Where items go, and what they leave.
trait Room {
    /// What is born at one step, in the order in which it is placed.
    fn sort(&self, born: &mut [u32], items: &[Item]);
    fn take(&mut self, item: &Item) -> u64;
    fn free(&mut self, offset: u64, item: &Item);
}

/// Goes over all births and deaths; whether it came to the end.
fn sweep(
    items: &[Item],
    births: &mut [u32],
    deaths: &[u32],
    room: &mut impl Room,
    offsets: &mut [u64],
    clock: &mut Budget<'_>,
) -> bool {
    let mut dead = deaths.iter().copied().peekable();
    for born in births.chunk_by_mut(|&a, &b| items[a as usize].from == items[b as usize].from) {
        let section = items[born[0] as usize].from;
        if !clock.take(born.len() as u64) {
            return false;
        }
        while let Some(j) = dead.next_if(|&j| items[j as usize].to <= section) {
            room.free(offsets[j as usize], &items[j as usize]);
        }
        room.sort(born, items);
        for &mut i in born {
            offsets[i as usize] = room.take(&items[i as usize]);
        }
    }
    true
}

/// Bytes below `top` that nothing is in: no two holes touch, and none touches the top.
struct Holes {
    /// By offset, the length.
    at: BTreeMap<u64, u64>,
    /// Length and offset.
    by_length: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Holes {
    fn new(base: u64) -> Holes {
        Holes { at: BTreeMap::new(), by_length: BTreeSet::new(), top: base }
    }

    fn add(&mut self, at: u64, length: u64) {
        if length > 0 {
            self.at.insert(at, length);
            self.by_length.insert((length, at));
        }
    }

    fn remove(&mut self, at: u64, length: u64) {
        self.at.remove(&at);
        self.by_length.remove(&(length, at));
    }
}

impl Room for Holes {
    fn sort(&self, born: &mut [u32], items: &[Item]) {
        born.sort_unstable_by_key(|&i| (Reverse(items[i as usize].size), i));
    }

    fn take(&mut self, item: &Item) -> u64 {
        let start = |at: u64| at.next_multiple_of(item.align);
        let fits = |&&(length, at): &&(u64, u64)| start(at) - at + item.size <= length;
        let found = self.by_length.range((item.size, 0)..).take(LOOKED_AT).find(fits).copied();
        let (length, at) = found.unwrap_or((start(self.top) + item.size - self.top, self.top));
        if found.is_some() {
            self.remove(at, length);
        } else {
            self.top = at + length;
        }
        let offset = start(at);
        self.add(at, offset - at);
        self.add(offset + item.size, at + length - offset - item.size);
        offset
    }

    fn free(&mut self, at: u64, item: &Item) {
        let (mut at, mut length) = (at, item.size);
        if let Some((&below, &more)) = self.at.range(..at).next_back().filter(|(&b, &l)| b + l == at) {
            self.remove(below, more);
            (at, length) = (below, length + more);
        }
        if let Some(&more) = self.at.get(&(at + length)) {
            self.remove(at + length, more);
            length += more;
        }
        if at + length == self.top {
            self.top = at;
        } else {
            self.add(at, length);
        }
    }
}

/// Slots whose lengths are powers of two.
struct Slots {
    top: u64,
    /// By logarithm of the length, those that are free.
    free: [Vec<u64>; 64],
}

impl Slots {
    fn class(item: &Item) -> usize {
        item.size.next_power_of_two().trailing_zeros() as usize % 64
    }
}

impl Room for Slots {
    fn sort(&self, _: &mut [u32], _: &[Item]) {}

    fn take(&mut self, item: &Item) -> u64 {
        if let Some(at) = self.free[Slots::class(item)].pop_if(|at| at.is_multiple_of(item.align)) {
            return at;
        }
        let at = self.top.next_multiple_of(item.align);
        self.top = at.saturating_add(item.size.next_power_of_two());
        at
    }

    fn free(&mut self, offset: u64, item: &Item) {
        self.free[Slots::class(item)].push(offset);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use fastrand::Rng;

    /// Live together means apart, whenever the clock ends the sweep; without it no hole is left between neighbours.
    #[test]
    fn what_is_live_together_is_apart_and_holes_are_used_again() {
        for seed in 0..300 {
            let rng = &mut Rng::with_seed(seed);
            let items: Vec<Item> = (0..rng.u64(1..60))
                .map(|_| {
                    let from = rng.u32(..30);
                    Item { from, to: from + rng.u32(1..10), size: rng.u64(1..40), align: 1 << rng.u64(..4) }
                })
                .collect();
            let mut offsets = vec![u64::MAX; items.len()];
            let mut clock = Budget::new(if seed % 3 == 0 { rng.u64(..40) } else { u64::MAX }, None, None);
            let top = place(&items, 104, &mut offsets, &mut clock);
            let ends = || items.iter().zip(&offsets).map(|(item, at)| at + item.size);
            assert_eq!(ends().max().unwrap(), top);
            for (n, (a, &at)) in items.iter().zip(&offsets).enumerate() {
                assert!(at >= 104 && at.is_multiple_of(a.align), "seed {seed}: {a:?} at {at}");
                for (b, &other) in items.iter().zip(&offsets).take(n) {
                    let together = a.from < b.to && b.from < a.to;
                    let apart = at + a.size <= other || other + b.size <= at;
                    assert!(!together || apart, "seed {seed}: {a:?} at {at}, {b:?} at {other}");
                }
            }
        }
        // Two that die side by side make room for one as large as both, also when the clock ended the sweep before.
        let item = |from, to, size| Item { from, to, size, align: 1 };
        let items = [item(0, 1, 32), item(0, 1, 32), item(0, 2, 32), item(1, 2, 64)];
        assert_eq!(place(&items, 0, &mut [0; 4], &mut Budget::new(u64::MAX, None, None)), 96);
        let chain: Vec<Item> = (0..50).map(|k| item(k, k + 1, 64 - u64::from(k) / 2)).collect();
        for steps in [0, u64::MAX] {
            assert_eq!(place(&chain, 0, &mut [0; 50], &mut Budget::new(steps, None, None)), 64);
        }
    }
}

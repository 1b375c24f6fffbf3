//! A layout in one sweep over the sections, as an online allocator would make it.
//!
//! Items are placed in order of birth, each in the smallest hole that it fits (best fit). A dead
//! item leaves a hole, which merges with its neighbours. n items take O(n log n) steps, about a
//! microsecond each: a good first answer when the orders of [`super::skyline`] take long. An
//! earlier sweep gives all items slots of power-of-two length, in tens of nanoseconds each.

use super::best::Best;
use super::budget::Budget;
use super::instance::{in_order, Item};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Most holes tried for an item: alignment may rule out the first.
const LOOKED_AT: usize = 4;

/// Lays all items out above `base`, in slots and then by best fit, as far as the clock allows.
pub(super) fn improve(items: &[Item], base: u64, best: &mut Best, clock: &mut Budget<'_>) {
    let mut in_order = |section: fn(&Item) -> u32| in_order(items, section, &mut || clock.is_late());
    let Some((mut births, deaths)) = in_order(|item| item.from).zip(in_order(|item| item.to)) else { return };
    let slots = &mut Slots { top: base, free: std::array::from_fn(|_| Vec::new()) };
    let mut size = sweep(items, &mut births, &deaths, slots, &mut best.scratch, clock);
    best.offer(size);
    if size.is_some() {
        size = sweep(items, &mut births, &deaths, &mut Holes::new(base), &mut best.scratch, clock);
        best.offer(size);
    }
}

/// Memory that items take and leave.
trait Room {
    /// Sorts items born at one step into the order of placement.
    fn sort(&self, born: &mut [u32], items: &[Item]);
    fn take(&mut self, item: &Item) -> u64;
    fn free(&mut self, offset: u64, item: &Item);
}

/// Sweeps over all births and deaths. Returns the highest end, or `None` if time ran out.
fn sweep(
    items: &[Item],
    births: &mut [u32],
    deaths: &[u32],
    room: &mut impl Room,
    offsets: &mut [u64],
    clock: &mut Budget<'_>,
) -> Option<u64> {
    let (mut dead, mut size) = (deaths.iter().copied().peekable(), 0);
    for born in births.chunk_by_mut(|&a, &b| items[a as usize].from == items[b as usize].from) {
        let section = items[born[0] as usize].from;
        if !clock.take(born.len() as u64) {
            return None;
        }
        while let Some(j) = dead.next_if(|&j| items[j as usize].to <= section) {
            room.free(offsets[j as usize], &items[j as usize]);
        }
        room.sort(born, items);
        for &mut i in born {
            let item = &items[i as usize];
            offsets[i as usize] = room.take(item);
            size = size.max(offsets[i as usize] + item.size);
        }
    }
    Some(size)
}

/// The holes below `top`: no two touch, and none touches the top.
struct Holes {
    /// Length of each hole, by offset.
    at: BTreeMap<u64, u64>,
    /// Holes as (length, offset).
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
    /// Offsets of free slots, by the logarithm of their length.
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

    fn placed(items: &[Item], base: u64, steps: u64) -> Best {
        let (n, mut clock) = (items.len(), Budget::new(steps, None, None));
        let mut best = Best { size: u64::MAX, offsets: vec![0; n], bound: 0, scratch: vec![0; n] };
        improve(items, base, &mut best, &mut clock);
        best
    }

    /// Items live together do not overlap, whenever the clock stops. With enough time, adjacent
    /// holes merge.
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
            let steps = items.len() as u64 + 1 + if seed % 3 == 0 { rng.u64(..40) } else { 60 };
            let Best { size, offsets, .. } = placed(&items, 104, steps);
            let ends = || items.iter().zip(&offsets).map(|(item, at)| at + item.size);
            assert_eq!(ends().max().unwrap(), size);
            for (n, (a, &at)) in items.iter().zip(&offsets).enumerate() {
                assert!(at >= 104 && at.is_multiple_of(a.align), "seed {seed}: {a:?} at {at}");
                for (b, &other) in items.iter().zip(&offsets).take(n) {
                    let together = a.from < b.to && b.from < a.to;
                    let apart = at + a.size <= other || other + b.size <= at;
                    assert!(!together || apart, "seed {seed}: {a:?} at {at}, {b:?} at {other}");
                }
            }
        }
        // Two adjacent items that die make room for one as large as both. Slots are reused, too,
        // when there is time only for them.
        let item = |from, to, size| Item { from, to, size, align: 1 };
        let items = [item(0, 1, 32), item(0, 1, 32), item(0, 2, 32), item(1, 2, 64)];
        assert_eq!(placed(&items, 0, u64::MAX).size, 96);
        let chain: Vec<Item> = (0..50).map(|k| item(k, k + 1, 64 - u64::from(k) / 2)).collect();
        for steps in [51, u64::MAX] {
            assert_eq!(placed(&chain, 0, steps).size, 64);
        }
        assert_eq!(placed(&chain, 0, 9).size, u64::MAX);
    }
}

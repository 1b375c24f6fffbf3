//! A layout in one sweep over the sections, for what there is no time to place better.
//!
//! Items are placed in the order in which they are born, each in a slot that a dead one has left, of those that are large
//! enough and not too large the smallest, or on top. n items take O(n log n) steps, a fraction of what the orders of
//! [`super::skyline`] take. No layout comes out larger than with all items side by side.

use super::instance::Item;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Slots looked at for an item: the first may be off its alignment.
const LOOKED_AT: usize = 4;

/// Lays the items `rest` out above `base`, into `offsets`, and returns the end of the highest.
pub(super) fn on_top(items: &[Item], mut rest: Vec<u32>, base: u64, offsets: &mut [u64]) -> u64 {
    rest.sort_unstable_by_key(|&i| {
        let item = &items[i as usize];
        (item.from, Reverse(item.size), i)
    });
    // (height, offset) of slots that nothing is in; (end, height, offset) of the others.
    let mut free: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut taken: BinaryHeap<Reverse<(u32, u64, u64)>> = BinaryHeap::new();
    let mut top = base;
    for i in rest {
        let Item { from, to, size, align } = items[i as usize];
        while let Some(&Reverse((end, height, offset))) = taken.peek().filter(|t| t.0 .0 <= from) {
            taken.pop();
            free.insert((height, offset));
            debug_assert!(end <= from);
        }
        let fits = |&&(height, offset): &&(u64, u64)| offset.next_multiple_of(align) - offset + size <= height;
        let found = free.range((size, 0)..=(size.saturating_mul(2), u64::MAX)).take(LOOKED_AT).find(fits).copied();
        let (height, offset) = match found {
            Some(slot) => {
                free.remove(&slot);
                slot
            }
            None => {
                let offset = top.next_multiple_of(align);
                top = offset + size;
                (size, offset)
            }
        };
        offsets[i as usize] = offset.next_multiple_of(align);
        taken.push(Reverse((to, height, offset)));
    }
    top
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::plan::generate::Rng;

    #[test]
    fn what_is_live_together_is_apart_and_slots_are_used_again() {
        for seed in 0..200 {
            let rng = &mut Rng::new(seed);
            let items: Vec<Item> = (0..rng.between(1, 60))
                .map(|_| {
                    let from = rng.below(30) as u32;
                    let to = from + 1 + rng.below(10) as u32;
                    Item { from, to, size: rng.between(1, 40), align: 1 << rng.below(4) }
                })
                .collect();
            let mut offsets = vec![u64::MAX; items.len()];
            let rest = (0..items.len() as u32).filter(|i| i % 5 != 4).collect::<Vec<u32>>();
            let top = on_top(&items, rest.clone(), 100, &mut offsets);
            let end = |i: u32| offsets[i as usize] + items[i as usize].size;
            assert_eq!(rest.iter().map(|&i| end(i)).max().unwrap(), top);
            let all: u64 = rest.iter().map(|&i| items[i as usize].size + items[i as usize].align - 1).sum();
            assert!(top <= 100 + all, "seed {seed}: {top} for {all}");
            for (n, &i) in rest.iter().enumerate() {
                let (a, at) = (&items[i as usize], offsets[i as usize]);
                assert!(at >= 100 && at.is_multiple_of(a.align), "seed {seed}: {a:?} at {at}");
                for &j in &rest[..n] {
                    let b = &items[j as usize];
                    let together = a.from < b.to && b.from < a.to;
                    assert!(!together || end(i) <= offsets[j as usize] || end(j) <= at, "seed {seed}: {a:?} {b:?}");
                }
            }
            assert!(items.iter().zip(&offsets).skip(4).step_by(5).all(|(_, &at)| at == u64::MAX));
        }
        // One after the other, in one slot.
        let chain: Vec<Item> =
            (0..50).map(|k| Item { from: k, to: k + 1, size: 64 - u64::from(k) / 2, align: 8 }).collect();
        assert_eq!(on_top(&chain, (0..50).collect(), 0, &mut vec![0; 50]), 64);
    }
}

//! Extents: physical memory, one driver handle each, mapped whole.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::driver::PhysHandle;
use std::collections::BTreeMap;

/// One physical allocation and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) handle: PhysHandle,
    pub(super) size: u64,
    /// Its number in the pool's table of aliases.
    pub(super) id: u32,
}

/// The extents mapped in one heap's spans, by address.
///
/// Invariants: extents do not overlap; those of a span tile it; `bytes` is the sum of their sizes.
#[derive(Default)]
pub(super) struct Extents {
    by_addr: BTreeMap<u64, Extent>,
    bytes: u64,
}

impl Extents {
    pub(super) fn insert(&mut self, addr: u64, e: Extent) {
        self.by_addr.insert(addr, e);
        self.bytes += e.size;
    }

    pub(super) fn remove(&mut self, addr: u64) -> Option<Extent> {
        let e = self.by_addr.remove(&addr)?;
        self.bytes -= e.size;
        Some(e)
    }

    /// The extent mapped from `addr` on.
    pub(super) fn get(&self, addr: u64) -> Option<Extent> {
        self.by_addr.get(&addr).copied()
    }

    /// Bytes of the extents that lie wholly in `[addr, end)`, a part of one span.
    pub(super) fn whole_bytes(&self, addr: u64, end: u64) -> u64 {
        let first = self.by_addr.range(addr..end).next().map_or(end, |(&a, _)| a);
        let last = self.by_addr.range(first..end).next_back().map_or(first, |(&a, e)| match a + e.size <= end {
            true => a + e.size,
            false => a,
        });
        last - first
    }

    /// Physical bytes here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.by_addr.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.by_addr.iter().map(|(&a, &e)| (a, e))
    }

    /// Those that lie wholly in `[addr, end)`: the ones that could move if that range is free.
    pub(super) fn within(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.by_addr.range(addr..end).map(|(&a, &e)| (a, e)).filter(move |(a, e)| a + e.size <= end)
    }
}

/// Sizes of the extents to create for `bytes` (a multiple of `page`): powers of two times `page`, largest first, so
/// that any later request finds pieces to make its size from.
pub(super) fn ladder(bytes: u64, page: u64, max: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut left = bytes;
    let largest = max.max(page);
    while left >= largest {
        sizes.push(largest);
        left -= largest;
    }
    while left > 0 {
        let pages = left / page;
        let size = page << (63 - pages.leading_zeros());
        sizes.push(size);
        left -= size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: u64 = 2 << 20;

    #[test]
    fn ladder_adds_up_in_powers_of_two() {
        for pages in 1..3000 {
            let sizes = ladder(pages * P, P, 512 * P);
            assert_eq!(sizes.iter().sum::<u64>(), pages * P);
            assert!(sizes.iter().all(|s| (s / P).is_power_of_two() && *s <= 512 * P));
            assert!(sizes.is_sorted_by(|a, b| a >= b));
        }
        assert_eq!(ladder(0, P, 512 * P), vec![]);
        assert_eq!(ladder(3 * P, P, P), vec![P, P, P]);
    }

    #[test]
    fn within_means_wholly() {
        let mut x = Extents::default();
        for (a, n) in [(10, 2), (12, 4), (16, 1)] {
            x.insert(a * P, Extent { handle: PhysHandle(a), size: n * P, id: a as u32 });
        }
        let found: Vec<u64> = x.within(10 * P, 15 * P).map(|(a, _)| a / P).collect();
        assert_eq!(found, vec![10]);
        let found: Vec<u64> = x.within(11 * P, 17 * P).map(|(a, _)| a / P).collect();
        assert_eq!(found, vec![12, 16]);
        for (from, to, whole) in [(10, 17, 7), (11, 17, 5), (11, 16, 4), (13, 15, 0), (13, 17, 1), (10, 12, 2)] {
            assert_eq!(x.whole_bytes(from * P, to * P), whole * P, "{from} to {to}");
        }
        assert_eq!(x.bytes(), 7 * P);
        x.remove(12 * P);
        assert_eq!((x.bytes(), x.len()), (3 * P, 2));
    }
}

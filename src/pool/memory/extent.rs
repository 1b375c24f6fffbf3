//! Extents: physical memory, one driver handle each, mapped whole.
//!
//! A heap keeps its extents in a table of what starts at each page, because a stitch or a flip
//! touches dozens of them. A leaf covers 64 pages with a bit for each, so a whole range of extents
//! is taken out, or put back as it was, a word at a time. An extent returns to an address much more
//! often than another comes there.

use crate::driver::PhysHandle;
use rustc_hash::FxHashMap;

/// Pages per leaf: 128 MiB of addresses, for pages of 2 MiB.
const LEAF_PAGES: u64 = 64;

/// A full table of this many leaves drops the empty ones. A smaller one keeps them, as spans come
/// and go at the same addresses.
const SPARE_LEAVES: usize = 4096;

/// One physical allocation and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) handle: PhysHandle,
    pub(crate) size: u64,
    /// Its number in the pool's table of aliases.
    pub(crate) id: u32,
}

/// A run's number and a position in it.
pub(crate) type AliasId = (u32, u32);

/// An extent where it is now, and the place of its alias there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) extent: Extent,
    pub(crate) place: AliasId,
}

/// The pages `first` to `last` of a leaf, as a mask.
fn mask(first: u64, last: u64) -> u64 {
    (u64::MAX << first) & (u64::MAX >> (LEAF_PAGES - 1 - last))
}

/// The extents that start at the pages of a leaf.
struct Leaf {
    /// One bit per page: whether an extent starts there.
    here: u64,
    /// One bit per page: whether `entries` still has the last one there. Includes all of `here`.
    known: u64,
    entries: Box<[Mapped]>,
}

/// The extents mapped in one heap's spans, by address.
///
/// Invariants: extents do not overlap, and none is smaller than a page, so no two start in one;
/// those of a span tile it; `bytes` is the sum of their sizes.
#[derive(Default)]
pub(crate) struct Extents {
    /// log2 of the page.
    bits: u32,
    leaves: FxHashMap<u64, Leaf>,
    bytes: u64,
}

impl Extents {
    /// No extents yet, for a pool with pages of this size (a power of two).
    pub(crate) fn of_pages(page: u64) -> Extents {
        Extents { bits: page.trailing_zeros(), ..Extents::default() }
    }

    /// The smallest extent there can be, bytes.
    pub(crate) fn page(&self) -> u64 {
        1 << self.bits
    }

    /// A leaf, made now if it does not exist yet. `fill` fills entries that are never read.
    fn leaf(&mut self, number: u64, fill: Mapped) -> &mut Leaf {
        if self.leaves.len() == self.leaves.capacity() && self.leaves.len() >= SPARE_LEAVES {
            self.leaves.retain(|_, l| l.here != 0);
        }
        let entries = || vec![fill; LEAF_PAGES as usize].into_boxed_slice();
        self.leaves.entry(number).or_insert_with(|| Leaf { here: 0, known: 0, entries: entries() })
    }

    /// The number of the leaf an address belongs to, and the page in it.
    #[inline]
    fn place(&self, addr: u64) -> (u64, u64) {
        let page = addr >> self.bits;
        (page / LEAF_PAGES, page % LEAF_PAGES)
    }

    fn addr(&self, leaf: u64, page: u64) -> u64 {
        (leaf * LEAF_PAGES + page) << self.bits
    }

    /// The leaves of `[addr, end)`, which is not empty, with the pages in each.
    #[inline]
    fn split(&self, addr: u64, end: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let ((first, from), (last, to)) = (self.place(addr), self.place(end - 1));
        (first..=last)
            .map(move |n| (n, mask(if n == first { from } else { 0 }, if n == last { to } else { LEAF_PAGES - 1 })))
    }

    /// Changes the leaves there are of `[addr, end)`, with the pages in each.
    #[inline]
    fn change(&mut self, addr: u64, end: u64, change: impl Fn(&mut Leaf, u64)) {
        for (number, mask) in self.split(addr, end) {
            if let Some(leaf) = self.leaves.get_mut(&number) {
                change(leaf, mask);
            }
        }
    }

    /// Inserts extents that tile `[addr, end)`, in the order of their addresses.
    pub(crate) fn insert_all(&mut self, addr: u64, end: u64, all: impl IntoIterator<Item = (u64, Mapped)>) {
        // What has left is forgotten, because others come there.
        self.change(addr, end, |leaf, mask| leaf.known &= leaf.here | !mask);
        let mut all = all.into_iter().peekable();
        while let Some(&(first, fill)) = all.peek() {
            let (bits, number) = (self.bits, self.place(first).0);
            let leaf = self.leaf(number, fill);
            while let Some((addr, entry)) = all.next_if(|x| (x.0 >> bits) / LEAF_PAGES == number) {
                let page = (addr >> bits) % LEAF_PAGES;
                leaf.here |= 1 << page;
                leaf.known |= 1 << page;
                leaf.entries[page as usize] = entry;
            }
        }
        self.bytes += end - addr;
    }

    /// Puts back the `len` extents that were once inserted here together and have all left. If they
    /// are not known any more, does nothing and returns `false`.
    pub(crate) fn put_back(&mut self, addr: u64, end: u64, len: usize) -> bool {
        let known = |(n, mask): (u64, u64)| self.leaves.get(&n).map_or(0, |l| (l.known & mask).count_ones() as usize);
        if self.split(addr, end).map(known).sum::<usize>() != len {
            return false;
        }
        self.change(addr, end, |leaf, mask| leaf.here |= leaf.known & mask);
        self.bytes += end - addr;
        true
    }

    /// Removes the extents that tile `[addr, end)`.
    #[inline]
    pub(crate) fn remove_all(&mut self, addr: u64, end: u64) {
        self.change(addr, end, |leaf, mask| leaf.here &= !mask);
        self.bytes -= end - addr;
    }

    /// Bytes of the extents wholly in `[addr, end)`, a part of one span.
    pub(crate) fn whole_bytes(&self, addr: u64, end: u64) -> u64 {
        self.tiled(addr, end).map_or(0, |(start, stop)| stop - start)
    }

    /// Physical bytes here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.leaves.values().map(|leaf| leaf.here.count_ones() as usize).sum()
    }

    /// All of them by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let mut numbers: Vec<u64> = self.leaves.keys().copied().collect();
        numbers.sort_unstable();
        self.of(numbers.into_iter().map(|n| (n, u64::MAX))).map(|(addr, m)| (addr, m.extent))
    }

    /// The extents wholly in `[addr, end)`, which could move if that range is free.
    pub(crate) fn within(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        // The page around `addr` may start before it.
        self.of(self.split(addr, end)).filter(move |(a, m)| *a >= addr && a + m.extent.size <= end)
    }

    /// The extents that start at the masked pages of these leaves.
    fn of<'a>(&'a self, leaves: impl Iterator<Item = (u64, u64)> + 'a) -> impl Iterator<Item = (u64, Mapped)> + 'a {
        leaves.filter_map(|(n, mask)| Some((n, mask, self.leaves.get(&n)?))).flat_map(move |(n, mask, leaf)| {
            let mut left = leaf.here & mask;
            std::iter::from_fn(move || {
                let page = u64::from(left.trailing_zeros());
                (left != 0).then(|| {
                    left &= left - 1;
                    (self.addr(n, page), leaf.entries[page as usize])
                })
            })
        })
    }

    /// From the first to the last of them. Extents of one span leave no gap between them.
    pub(crate) fn tiled(&self, addr: u64, end: u64) -> Option<(u64, u64)> {
        // The page around `addr` may start before it.
        let from = addr.next_multiple_of(self.page());
        if from >= end {
            return None;
        }
        let start = self.split(from, end).find_map(|(n, mask)| {
            let page = (self.leaves.get(&n)?.here & mask).trailing_zeros();
            (page < u64::BITS).then(|| self.addr(n, page.into()))
        })?;
        let (last, size) = self.split(start, end).rev().find_map(|(n, mask)| {
            let leaf = self.leaves.get(&n)?;
            let page = (leaf.here & mask).checked_ilog2()?;
            Some((self.addr(n, page.into()), leaf.entries[page as usize].extent.size))
        })?;
        let stop = if last + size <= end { last + size } else { last };
        (start < stop).then_some((start, stop))
    }

    /// Checks the invariants above, except those that involve regions.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let bytes = self.iter().map(|(_, e)| e.size).sum::<u64>();
        ensure!(bytes == self.bytes, "extents of {bytes} bytes, {} recorded", self.bytes);
        Ok(())
    }
}

/// Sizes of the extents to create for `bytes` (a multiple of `page`): powers of two times `page`,
/// largest first, so that any later request finds pieces to make its size from.
pub(crate) fn ladder(bytes: u64, page: u64, max: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut left = bytes;
    let largest = max.max(page);
    while left >= largest {
        sizes.push(largest);
        left -= largest;
    }
    while left > 0 {
        let size = page << (left / page).ilog2();
        sizes.push(size);
        left -= size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const P: u64 = 2 << 20;

    #[test]
    fn ladder_adds_up_in_powers_of_two() {
        for pages in 1..3000 {
            let sizes = ladder(pages * P, P, 512 * P);
            assert_eq!(sizes.iter().sum::<u64>(), pages * P);
            assert!(sizes.iter().all(|s| (s / P).is_power_of_two() && *s <= 512 * P));
            assert!(sizes.is_sorted_by(|a, b| a >= b));
        }
        assert!(ladder(0, P, 512 * P).is_empty());
        assert_eq!(ladder(3 * P, P, P), vec![P, P, P]);
    }

    fn mapped(id: u64, pages: u64) -> Mapped {
        Mapped { extent: Extent { handle: PhysHandle(id), size: pages * P, id: id as u32 }, place: (id as u32, 0) }
    }

    #[test]
    fn within_means_wholly() {
        let mut x = Extents::of_pages(P);
        for (a, n) in [(10, 2), (12, 4), (16, 1)] {
            x.insert_all(a * P, (a + n) * P, [(a * P, mapped(a, n))]);
        }
        let found: Vec<u64> = x.within(10 * P, 15 * P).map(|(a, _)| a / P).collect();
        assert_eq!(found, vec![10]);
        let found: Vec<u64> = x.within(11 * P, 17 * P).map(|(a, _)| a / P).collect();
        assert_eq!(found, vec![12, 16]);
        for (from, to, whole) in
            [(10, 16, 6), (11, 16, 4), (13, 15, 0), (13, 16, 0), (10, 12, 2), (10, 15, 2), (12, 16, 4)]
        {
            assert_eq!(x.whole_bytes(from * P, to * P), whole * P, "{from} to {to}");
        }
        assert_eq!(x.whole_bytes(10 * P + 1, 16 * P + 1), 4 * P, "parts of pages");
        assert_eq!(x.whole_bytes(15 * P + 1, 16 * P), 0, "less than a page");
        assert_eq!(x.bytes(), 7 * P);
        x.remove_all(12 * P, 16 * P);
        assert_eq!((x.bytes(), x.len()), (3 * P, 2));
    }

    /// Far more leaves than the smallest table has slots, in three distant places.
    #[test]
    fn many_leaves_are_found() {
        let mut x = Extents::of_pages(P);
        let at = |i: u64| ((i % 3) << 50) + i * 40 * P;
        let all = |x: &mut Extents, base: u64| {
            (0..20_000).for_each(|i| x.insert_all(base + at(i), base + at(i) + P, [(base + at(i), mapped(i, 1))]));
        };
        all(&mut x, 0);
        let get = |x: &Extents, addr| x.within(addr, addr + P).next().map(|(_, m)| m);
        assert!((0..20_000).all(|i| get(&x, at(i)) == Some(mapped(i, 1))));
        assert!(get(&x, at(20_000)).is_none() && get(&x, at(7) + P).is_none());
        assert!(x.iter().map(|(a, _)| a).is_sorted() && x.len() == 20_000);
        (0..20_000).for_each(|i| x.remove_all(at(i), at(i) + P));
        assert_eq!((x.len(), x.bytes()), (0, 0));
        // Now most leaves are empty, and go when the table is full.
        let before = x.leaves.capacity();
        all(&mut x, 9 << 55);
        assert_eq!(x.iter().count(), 20_000);
        assert!(x.leaves.capacity() <= 2 * before, "{} after {before}", x.leaves.capacity());
    }

    /// Slots of this many pages, which begin within leaves and cross into others.
    const SLOT: u64 = 100;

    proptest! {
        /// Against an ordered map. Each slot is filled with extents that tile it, which leave and
        /// are put back.
        #[test]
        fn is_a_map(ops in prop::collection::vec((0u8..4, 0u64..5, 1u64..7, 0u64..400, 1u64..300), 1..80)) {
            let mut x = Extents::of_pages(P);
            let mut map: BTreeMap<u64, Mapped> = BTreeMap::new();
            let mut known: [Vec<(u64, Mapped)>; 5] = Default::default();
            for (i, (op, slot, pages, at, len)) in ops.into_iter().enumerate() {
                let (start, end) = (slot * SLOT * P, (slot + 1) * SLOT * P);
                let tiles = &mut known[slot as usize];
                match (op, map.range(start..end).next().is_some()) {
                    (0, false) => {
                        let starts = (0..SLOT).step_by(pages as usize);
                        *tiles = starts.map(|p| (start + p * P, mapped(i as u64, pages.min(SLOT - p)))).collect();
                        x.insert_all(start, end, tiles.iter().copied());
                        map.extend(tiles.iter().copied());
                    }
                    (1, true) => {
                        x.remove_all(start, end);
                        map.retain(|&a, _| a < start || a >= end);
                    }
                    (2, false) if !tiles.is_empty() => {
                        prop_assert!(!x.put_back(start, end, tiles.len() + 1));
                        prop_assert!(x.put_back(start, end, tiles.len()));
                        map.extend(tiles.iter().copied());
                    }
                    _ => {}
                }
                let (from, to) = (at * P, (at + len) * P);
                let inside = |(a, m): &(u64, Mapped)| *a >= from && a + m.extent.size <= to;
                let expected: Vec<(u64, Mapped)> = map.iter().map(|(&a, &m)| (a, m)).filter(inside).collect();
                prop_assert_eq!(x.within(from, to).collect::<Vec<_>>(), expected);
                prop_assert_eq!(x.len(), map.len());
                prop_assert_eq!(x.bytes(), map.values().map(|m| m.extent.size).sum::<u64>());
                prop_assert!(x.iter().eq(map.iter().map(|(&a, m)| (a, m.extent))));
            }
        }
    }
}

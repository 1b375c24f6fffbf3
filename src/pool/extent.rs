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

/// Pages per leaf: 256 MiB of addresses in 3 KiB, for pages of 2 MiB.
const LEAF_PAGES: u64 = 128;
/// Leaves kept although they are empty: spans come and go at the same addresses.
const SPARE_LEAVES: usize = 4096;

/// Extents by the page they start in.
#[derive(Default)]
struct Leaf {
    /// One bit per page: whether an extent starts there.
    starts: [u64; (LEAF_PAGES / 64) as usize],
    extents: Vec<Extent>,
}

impl Leaf {
    /// The first page from `page` on, counted in the leaf, in which an extent starts.
    fn next(&self, page: u64) -> Option<u64> {
        let mut word = page / 64;
        let mut bits = self.starts.get(word as usize)? & (u64::MAX << (page % 64));
        while bits == 0 {
            word += 1;
            bits = *self.starts.get(word as usize)?;
        }
        Some(word * 64 + u64::from(bits.trailing_zeros()))
    }
}

/// The extents mapped in one heap's spans, by address: a table by page, as a flip touches each extent of a run.
///
/// Invariants: extents do not overlap; those of a span tile it; `bytes` is the sum of their sizes, `len` their number.
pub(super) struct Extents {
    /// log2 of the page. No extent is smaller, so no two start in one page.
    page_bits: u32,
    leaves: BTreeMap<u64, Leaf>,
    bytes: u64,
    len: usize,
}

impl Extents {
    /// None yet, of a pool with pages of this size (a power of two).
    pub(super) fn of_pages(page: u64) -> Extents {
        Extents { page_bits: page.trailing_zeros(), leaves: BTreeMap::new(), bytes: 0, len: 0 }
    }

    /// The smallest extent there can be, bytes.
    pub(super) fn page(&self) -> u64 {
        1 << self.page_bits
    }

    /// The leaf an address belongs to, and the page in it.
    fn leaf_of(&self, addr: u64) -> (u64, u64) {
        let page = addr >> self.page_bits;
        (page / LEAF_PAGES, page % LEAF_PAGES)
    }

    pub(super) fn insert(&mut self, addr: u64, e: Extent) {
        self.insert_all([(addr, e)]);
    }

    /// Inserts extents; neighbours are best given one after the other.
    pub(super) fn insert_all(&mut self, all: impl IntoIterator<Item = (u64, Extent)>) {
        let mut all = all.into_iter().peekable();
        while let Some(&(first, none)) = all.peek() {
            let bits = self.page_bits;
            let number = self.leaf_of(first).0;
            let leaf = self.leaves.entry(number).or_default();
            leaf.extents.resize(LEAF_PAGES as usize, none);
            while let Some((addr, e)) = all.next_if(|x| (x.0 >> bits) / LEAF_PAGES == number) {
                let page = (addr >> bits) % LEAF_PAGES;
                leaf.starts[(page / 64) as usize] |= 1 << (page % 64);
                leaf.extents[page as usize] = e;
                self.bytes += e.size;
                self.len += 1;
            }
        }
    }

    pub(super) fn remove(&mut self, addr: u64) -> Option<Extent> {
        let mut found = None;
        self.remove_within(addr, addr + self.page(), |e| found = Some(e));
        found
    }

    /// Removes the extents that start in `[addr, end)`.
    pub(super) fn remove_within(&mut self, addr: u64, end: u64, mut each: impl FnMut(Extent)) {
        let mut at = addr;
        while at < end {
            let (number, page) = self.leaf_of(at);
            at = ((number + 1) * LEAF_PAGES) << self.page_bits;
            let Some(leaf) = self.leaves.get_mut(&number) else { continue };
            let last = if end < at { ((end - 1) >> self.page_bits) % LEAF_PAGES } else { LEAF_PAGES - 1 };
            let mut next = leaf.next(page);
            while let Some(page) = next.filter(|&p| p <= last) {
                leaf.starts[(page / 64) as usize] &= !(1 << (page % 64));
                let e = leaf.extents[page as usize];
                self.bytes -= e.size;
                self.len -= 1;
                each(e);
                next = leaf.next(page + 1);
            }
            if leaf.starts == [0; 2] && self.leaves.len() > SPARE_LEAVES {
                self.leaves.remove(&number);
            }
        }
    }

    /// Bytes of the extents that lie wholly in `[addr, end)`, a part of one span.
    pub(super) fn whole_bytes(&self, addr: u64, end: u64) -> u64 {
        let Some((first, _)) = self.starting_in(addr, end).next() else { return 0 };
        // The last extent that starts here may reach beyond the end.
        let (mut leaf, mut page) = self.leaf_of(end - 1);
        loop {
            let starts = self.leaves.get(&leaf).map_or([0; 2], |l| l.starts);
            let upto = |word: u64| match page / 64 {
                p if p > word => starts[word as usize],
                p if p == word => starts[word as usize] & (u64::MAX >> (63 - page % 64)),
                _ => 0,
            };
            let both = u128::from(upto(1)) << 64 | u128::from(upto(0));
            if both != 0 {
                let last = (leaf * LEAF_PAGES + u64::from(127 - both.leading_zeros())) << self.page_bits;
                let stop = self.get(last).map_or(last, |e| last + e.size);
                return if stop <= end { stop - first } else { last.saturating_sub(first) };
            }
            let Some(before) = leaf.checked_sub(1) else { return 0 };
            (leaf, page) = (before, LEAF_PAGES - 1);
        }
    }

    /// The extent mapped from `addr` on.
    pub(super) fn get(&self, addr: u64) -> Option<Extent> {
        let (number, page) = self.leaf_of(addr);
        let leaf = self.leaves.get(&number)?;
        leaf.next(page).filter(|&p| p == page).map(|p| leaf.extents[p as usize])
    }

    /// Physical bytes here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.starting_in(0, u64::MAX)
    }

    fn starting_in(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let bits = self.page_bits;
        let (first, page) = self.leaf_of(addr);
        let leaves = self.leaves.range(first..=self.leaf_of(end.max(1) - 1).0);
        leaves
            .flat_map(move |(&number, leaf)| {
                let from = if number == first { page } else { 0 };
                let pages = std::iter::successors(leaf.next(from), |&p| leaf.next(p + 1));
                pages.map(move |p| ((number * LEAF_PAGES + p) << bits, leaf.extents[p as usize]))
            })
            // The page that `addr` lies in may have its start before it.
            .filter(move |x| x.0 >= addr)
            .take_while(move |x| x.0 < end)
    }

    /// Those that lie wholly in `[addr, end)`: the ones that could move if that range is free.
    pub(super) fn within(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.starting_in(addr, end).filter(move |(a, e)| a + e.size <= end)
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
        let mut x = Extents::of_pages(P);
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

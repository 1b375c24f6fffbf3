//! A table of what starts at each page, for entries that a stitch or a flip touches by the dozen.
//!
//! A leaf covers 64 pages with a bit for each, so a whole range of entries is taken out, or put
//! back as it was, a word at a time. An entry returns to an address much more often than another
//! comes there.

use rustc_hash::FxHashMap;

/// Pages per leaf: 128 MiB of addresses, for pages of 2 MiB.
const LEAF_PAGES: u64 = 64;

/// A full table of this many leaves drops the empty ones. A smaller one keeps them, as spans come
/// and go at the same addresses.
const SPARE_LEAVES: usize = 4096;

/// The pages `first` to `last` of a leaf, as a mask.
fn mask(first: u64, last: u64) -> u64 {
    (u64::MAX << first) & (u64::MAX >> (LEAF_PAGES - 1 - last))
}

/// What starts at the pages of a leaf.
struct Leaf<T> {
    /// One bit per page: whether there is an entry.
    here: u64,
    /// One bit per page: whether `entries` still has the last entry there. Includes all of `here`.
    known: u64,
    entries: Box<[T]>,
}

/// Entries of type `T` by the address they start at, at most one in a page.
pub(crate) struct Pages<T> {
    /// log2 of the page.
    bits: u32,
    leaves: FxHashMap<u64, Leaf<T>>,
}

impl<T: Copy> Default for Pages<T> {
    fn default() -> Pages<T> {
        Pages::new(1)
    }
}

impl<T: Copy> Pages<T> {
    /// An empty table for pages of this size (a power of two).
    pub(crate) fn new(page: u64) -> Pages<T> {
        Pages { bits: page.trailing_zeros(), leaves: FxHashMap::default() }
    }

    /// A leaf, made now if it does not exist yet. `fill` fills entries that are never read.
    fn leaf(&mut self, number: u64, fill: T) -> &mut Leaf<T> {
        if self.leaves.len() == self.leaves.capacity() && self.leaves.len() >= SPARE_LEAVES {
            self.leaves.retain(|_, l| l.here != 0);
        }
        let entries = || vec![fill; LEAF_PAGES as usize].into_boxed_slice();
        self.leaves.entry(number).or_insert_with(|| Leaf { here: 0, known: 0, entries: entries() })
    }

    pub(crate) fn page(&self) -> u64 {
        1 << self.bits
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
    fn split(&self, addr: u64, end: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> + use<T> {
        let ((first, from), (last, to)) = (self.place(addr), self.place(end - 1));
        (first..=last)
            .map(move |n| (n, mask(if n == first { from } else { 0 }, if n == last { to } else { LEAF_PAGES - 1 })))
    }

    /// Sets entries; neighbours are best given one after the other.
    pub(crate) fn set_all(&mut self, all: impl IntoIterator<Item = (u64, T)>) {
        let mut all = all.into_iter().peekable();
        while let Some(&(first, fill)) = all.peek() {
            let bits = self.bits;
            let number = self.place(first).0;
            let leaf = self.leaf(number, fill);
            while let Some((addr, entry)) = all.next_if(|x| (x.0 >> bits) / LEAF_PAGES == number) {
                let page = (addr >> bits) % LEAF_PAGES;
                leaf.here |= 1 << page;
                leaf.known |= 1 << page;
                leaf.entries[page as usize] = entry;
            }
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.leaves.values().map(|leaf| leaf.here.count_ones() as usize).sum()
    }

    /// Takes the entries of `[addr, end)` out.
    #[inline]
    pub(crate) fn take_all(&mut self, addr: u64, end: u64) {
        let ((first, from), (last, to)) = (self.place(addr), self.place(end - 1));
        match first == last {
            true => self.take_of(first, mask(from, to)),
            false => self.split(addr, end).for_each(|(number, mask)| self.take_of(number, mask)),
        }
    }

    /// Like [`Self::take_all`], for the pages of one leaf.
    #[inline]
    fn take_of(&mut self, number: u64, mask: u64) {
        if let Some(leaf) = self.leaves.get_mut(&number) {
            leaf.here &= !mask;
        }
    }

    /// Puts the entries back that [`Self::take_all`] took out of `[addr, end)`, if there are just
    /// as many as expected: then they are the same, because what replaced any was forgotten.
    pub(crate) fn put_back(&mut self, addr: u64, end: u64, expected: usize) -> bool {
        let known = |(n, mask): (u64, u64)| self.leaves.get(&n).map_or(0, |l| (l.known & mask).count_ones() as usize);
        if self.split(addr, end).map(known).sum::<usize>() != expected {
            return false;
        }
        for (number, mask) in self.split(addr, end) {
            if let Some(leaf) = self.leaves.get_mut(&number) {
                leaf.here |= leaf.known & mask;
            }
        }
        true
    }

    /// Forgets entries that have left `[addr, end)`, because others will come there.
    pub(crate) fn forget(&mut self, addr: u64, end: u64) {
        for (number, mask) in self.split(addr, end) {
            if let Some(leaf) = self.leaves.get_mut(&number) {
                leaf.known &= leaf.here | !mask;
            }
        }
    }

    /// All entries by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, T)> + '_ {
        let mut numbers: Vec<u64> = self.leaves.keys().copied().collect();
        numbers.sort_unstable();
        self.of(numbers.into_iter().map(|n| (n, u64::MAX)))
    }

    /// The entries of `[addr, end)` by address.
    pub(crate) fn range(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, T)> + '_ {
        self.of(self.split(addr, end))
    }

    fn of<'a>(&'a self, leaves: impl Iterator<Item = (u64, u64)> + 'a) -> impl Iterator<Item = (u64, T)> + 'a {
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

    /// The first address in `[addr, end)` that has an entry.
    pub(crate) fn first(&self, addr: u64, end: u64) -> Option<u64> {
        self.split(addr, end).find_map(|(n, mask)| {
            let found = self.leaves.get(&n)?.here & mask;
            (found != 0).then(|| self.addr(n, u64::from(found.trailing_zeros())))
        })
    }

    /// The last entry of `[addr, end)`.
    pub(crate) fn last(&self, addr: u64, end: u64) -> Option<(u64, T)> {
        self.split(addr, end).rev().find_map(|(n, mask)| {
            let leaf = self.leaves.get(&n)?;
            let page = (leaf.here & mask).checked_ilog2()?;
            Some((self.addr(n, u64::from(page)), leaf.entries[page as usize]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const P: u64 = 4096;

    /// Far more leaves than the smallest table has slots, in three distant places.
    #[test]
    fn many_leaves_are_found() {
        let mut pages = Pages::new(P);
        let at = |i: u64| ((i % 3) << 40) + i * 40 * P;
        let get = |pages: &Pages<u64>, addr| pages.range(addr, addr + P).next().map(|x| x.1);
        pages.set_all((0..20_000).map(|i| (at(i), i)));
        assert!((0..20_000).all(|i| get(&pages, at(i)) == Some(i)));
        assert!(get(&pages, at(20_000)).is_none() && get(&pages, at(7) + P).is_none());
        assert!(pages.iter().is_sorted() && pages.iter().count() == 20_000);
        (0..3).for_each(|place| pages.take_all(place << 40, (place << 40) + 20_000 * 40 * P));
        assert_eq!(pages.len(), 0);
        // Now most leaves are empty, and go when the table is full.
        let before = pages.leaves.capacity();
        pages.set_all((0..20_000).map(|i| ((9 << 40) + at(i), i)));
        assert_eq!(pages.iter().count(), 20_000);
        assert!(pages.leaves.capacity() <= 2 * before, "{} after {before}", pages.leaves.capacity());
    }

    proptest! {
        /// Against an ordered map, and a second one of what was last set where.
        #[test]
        fn is_a_map(ops in prop::collection::vec((0u8..4, 0u64..400, 1u64..300), 1..80)) {
            let mut pages = Pages::new(P);
            let (mut map, mut known) = (BTreeMap::new(), BTreeMap::new());
            for (i, (op, at, len)) in ops.into_iter().enumerate() {
                let (from, to) = (at * P, (at + len) * P);
                match op {
                    0 => {
                        let all: Vec<(u64, usize)> = (at..at + len).step_by(3).map(|p| (p * P, i)).collect();
                        pages.set_all(all.iter().copied());
                        map.extend(all.iter().copied());
                        known.extend(all);
                    }
                    1 => {
                        pages.take_all(from, to);
                        map.retain(|&a, _| a < from || a >= to);
                    }
                    2 => {
                        let there = known.range(from..to).map(|(&a, &e)| (a, e));
                        prop_assert!(!pages.put_back(from, to, there.clone().count() + 1));
                        prop_assert!(pages.put_back(from, to, there.clone().count()));
                        map.extend(there);
                    }
                    _ => {
                        pages.forget(from, to);
                        known.retain(|a, _| *a < from || *a >= to || map.contains_key(a));
                    }
                }
                let expected: Vec<(u64, usize)> = map.range(from..to).map(|(&a, &e)| (a, e)).collect();
                prop_assert_eq!(pages.len(), map.len());
                prop_assert_eq!(pages.first(from, to), expected.first().map(|x| x.0));
                prop_assert_eq!(pages.last(from, to), expected.last().copied());
                prop_assert_eq!(pages.range(from, to).collect::<Vec<_>>(), expected);
                prop_assert_eq!(pages.iter().collect::<Vec<_>>(), map.iter().map(|(&a, &e)| (a, e)).collect::<Vec<_>>());
            }
        }
    }
}

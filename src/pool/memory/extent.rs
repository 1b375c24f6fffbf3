//! Extents: physical memory, one driver handle each, mapped whole.

use crate::driver::PhysHandle;
use crate::pool::memory::pages::Pages;

/// One physical allocation and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) handle: PhysHandle,
    pub(crate) size: u64,
    /// Its number in the pool's table of aliases.
    pub(crate) id: u32,
}

/// An extent where it is now, and the place of its alias there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) extent: Extent,
    pub(crate) place: AliasId,
}

/// The extents mapped in one heap's spans, by address.
///
/// Invariants: extents do not overlap; those of a span tile it; `bytes` is the sum of their sizes.
#[derive(Default)]
pub(crate) struct Extents {
    /// No extent is smaller than a page, so no two start in one.
    pages: Pages<Mapped>,
    bytes: u64,
}

impl Extents {
    /// No extents yet, for a pool with pages of this size (a power of two).
    pub(crate) fn of_pages(page: u64) -> Extents {
        Extents { pages: Pages::new(page), ..Extents::default() }
    }

    /// The smallest extent there can be, bytes.
    pub(crate) fn page(&self) -> u64 {
        self.pages.page()
    }

    /// Inserts extents that tile `[addr, end)`.
    pub(crate) fn insert_all(&mut self, addr: u64, end: u64, all: impl IntoIterator<Item = (u64, Mapped)>) {
        self.pages.forget(addr, end);
        self.pages.set_all(all);
        self.bytes += end - addr;
    }

    /// Puts back the `len` extents that were once inserted here together and have all left. If they
    /// are not known any more, does nothing and returns `false`.
    pub(crate) fn put_back(&mut self, addr: u64, end: u64, len: usize) -> bool {
        let done = self.pages.put_back(addr, end, len);
        if done {
            self.bytes += end - addr;
        }
        done
    }

    /// Removes the extents that tile `[addr, end)`.
    pub(crate) fn remove_all(&mut self, addr: u64, end: u64) {
        self.pages.take_all(addr, end);
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
        self.pages.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.pages.iter().map(|(addr, m)| (addr, m.extent))
    }

    /// The extents wholly in `[addr, end)`, which could move if that range is free.
    pub(crate) fn within(&self, addr: u64, end: u64) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        // The page around `addr` may start before it.
        self.pages.range(addr, end).filter(move |(a, m)| *a >= addr && a + m.extent.size <= end)
    }

    /// From the first to the last of them. Extents of one span leave no gap between them.
    pub(crate) fn tiled(&self, addr: u64, end: u64) -> Option<(u64, u64)> {
        // The page around `addr` may start before it.
        let from = addr.next_multiple_of(self.page());
        if from >= end {
            return None;
        }
        let start = self.pages.first(from, end)?;
        let (last, m) = self.pages.last(start, end)?;
        let stop = if last + m.extent.size <= end { last + m.extent.size } else { last };
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

/// A run's number and a position in it.
pub(crate) type AliasId = (u32, u32);

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
        assert!(ladder(0, P, 512 * P).is_empty());
        assert_eq!(ladder(3 * P, P, P), vec![P, P, P]);
    }

    #[test]
    fn within_means_wholly() {
        let mut x = Extents::of_pages(P);
        for (a, n) in [(10, 2), (12, 4), (16, 1)] {
            let extent = Extent { handle: PhysHandle(a), size: n * P, id: a as u32 };
            x.insert_all(a * P, (a + n) * P, [(a * P, Mapped { extent, place: (0, 0) })]);
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
}

//! Leaving: memory that a flip or a stitch has given to a run, and that its heap's regions still show as free.
//!
//! Cutting half a dozen pieces out of free regions is most of what a flip costs, and nothing that its caller waits for: the run is
//! mapped already, and that its extents are there is what the table of aliases says. So the pieces are put on a list, and
//! the calls that come next cut a few each, until none is left. A hit that takes memory out of free regions, or joins anything with them,
//! first cuts those that make a difference to it, and everything else cuts all of them: so everything is decided as if they had been cut at once.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bins::NONE;
use super::cut::Cut;
use super::extend::take_out_all;
use super::heap::HeapState;
use super::region::GRANULE;

/// Steps that a hit does besides what it is called for, unless that is a large allocation, which costs as much by itself.
const AT_A_TIME: usize = 3;

/// What is left to do of a flip or a stitch.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Addresses leave a free region.
    Out { region: u32, addr: u64, end: u64 },
    /// A region, live but nobody's, is free: what the request leaves of the run.
    Back(u32),
}

/// What is left to do of a heap's last flip or stitch, the next step last.
#[derive(Default)]
pub(super) struct Leaving {
    steps: Vec<Step>,
    /// Bytes that leave free regions, and bytes that are going to be free.
    out: u64,
    back: u64,
}

/// Sizes: those of some bins and, as that is told with less work, a few more.
struct Bytes {
    from: u64,
    to: u64,
}

impl Bytes {
    #[inline]
    fn of_bins(from: u64, to: u64) -> Bytes {
        // A bin spans no more than that.
        let wide = |bytes: u64| bytes / 32 + GRANULE;
        Bytes { from: from.saturating_sub(wide(from)), to: to + wide(to) }
    }

    #[inline]
    fn of_bin(bytes: u64) -> Bytes {
        Bytes::of_bins(bytes, bytes)
    }

    #[inline]
    fn has(&self, bytes: u64) -> bool {
        self.from <= bytes && bytes <= self.to
    }
}

impl Leaving {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What so many bytes of free regions are going to be once all of it is done.
    #[inline]
    pub(super) fn settled(&self, ready: u64) -> u64 {
        ready + self.back - self.out
    }
}

impl HeapState {
    /// Pieces of free regions of this heap begin to leave, which come from high to low addresses: what is left of a region before a
    /// piece that is cut out keeps its number. After them goes what a request has left of the run that they went to.
    pub(super) fn leave(&mut self, pieces: impl DoubleEndedIterator<Item = (u32, u64, u64)>, cut: Cut) {
        debug_assert!(self.leaving.is_empty());
        let Leaving { steps, out, back } = &mut self.leaving;
        for r in [cut.rest, cut.lead].into_iter().flatten() {
            *back += self.regions.get(r).size;
            steps.push(Step::Back(r));
        }
        for (from, at, stop) in pieces.rev() {
            *out += stop - at;
            match steps.last_mut() {
                // Often neighbours leave together.
                Some(Step::Out { region, end, .. }) if *region == from && *end == at => *end = stop,
                _ => steps.push(Step::Out { region: from, addr: at, end: stop }),
            }
        }
    }

    /// Joins a block that has left the quick list with what is free around it: before what is leaving has left, if that makes no
    /// difference to any region or to the order of any bin.
    pub(super) fn join_freed(&mut self, r: u32) {
        if !self.leaving.is_empty() {
            let around = self.regions.joined_bytes(r);
            let region = self.regions.get(r);
            let near = [region.prev, region.next];
            let bins = Bytes::of_bin(around);
            let until = self.steps_until(|r| near.contains(&r), |bytes| bins.has(bytes));
            self.part_with(until);
        }
        self.regions.join(r);
    }

    /// The region that a search for `size` bytes is going to find once all has left, if what is left to do makes no difference to
    /// that, nor to the order of the bin that the rest of it goes to.
    pub(super) fn find_beside_leaving(&mut self, size: u64) -> Option<u32> {
        while let Some(r) = self.regions.pop_quick() {
            self.join_freed(r);
        }
        if self.leaving.is_empty() {
            return None;
        }
        loop {
            let found = self.regions.find(size, GRANULE, |_| true)?;
            let most = self.regions.get(found).size;
            let (seen, rest) = (Bytes::of_bins(size, most), Bytes::of_bin(most - size));
            match self.steps_until(|r| r == found, |bytes| seen.has(bytes) || rest.has(bytes)) {
                0 => return Some(found),
                until => self.part_with(until),
            }
        }
    }

    /// How many steps there are up to the last one that changes one of these regions, or the bin of a region of so many bytes.
    fn steps_until(&self, region_matters: impl Fn(u32) -> bool, matters: impl Fn(u64) -> bool) -> usize {
        // Where the piece before lies, which is cut out before: what is between the two is a region then.
        let mut before = (NONE, 0);
        let mut until = 0;
        for (step, number) in self.leaving.steps.iter().rev().zip(1..) {
            let it_matters = match *step {
                Step::Back(r) => region_matters(r) || matters(self.regions.get(r).size),
                Step::Out { region, addr, end } => {
                    let r = self.regions.get(region);
                    let stop = if before.0 == region { before.1 } else { r.end() };
                    before = (region, addr);
                    region_matters(region) || matters(r.size) || matters(addr - r.addr) || matters(stop - end)
                }
            };
            if it_matters {
                until = number;
            }
        }
        until
    }

    /// Some of what is leaving has left: called by hits, which leave the rest to the next.
    #[inline(never)]
    pub(super) fn part_with_some(&mut self) {
        self.part_with(AT_A_TIME);
    }

    /// The next steps, so many if there are.
    fn part_with(&mut self, steps: usize) {
        for _ in 0..steps {
            self.part_with_next();
        }
    }

    /// All that was leaving has left.
    #[inline(always)]
    pub(super) fn part_with_all(&mut self) {
        self.ready = None;
        while !self.leaving.is_empty() {
            self.part_with_next();
        }
    }

    /// Every free region is where searches find it, and nothing else is.
    #[inline]
    pub(super) fn tidy(&mut self) {
        self.part_with_all();
        self.regions.tidy();
    }

    fn part_with_next(&mut self) {
        match self.leaving.steps.pop() {
            Some(Step::Out { region, addr, end }) => {
                self.leaving.out -= end - addr;
                take_out_all(self, region, addr, end);
            }
            Some(Step::Back(region)) => {
                self.leaving.back -= self.regions.get(region).size;
                self.regions.put_back(region, self.regions.get(region).order);
            }
            None => return,
        }
        if self.leaving.is_empty() {
            self.note_taken();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::extent::{Extent, Mapped};
    use super::super::heap::Heap;
    use super::super::order::Tag;
    use super::*;
    use crate::driver::PhysHandle;

    const P: u64 = 2 << 20;

    /// A heap with ready regions that many pages from and long, and two live ones next to each other.
    fn heap(ready: &[(u64, u64)], live: [(u64, u64); 2]) -> (Heap, Vec<u32>, Cut) {
        let heap = Heap::new(1, 1, 0, false, P);
        let mut st = heap.lock();
        let mut add = |&(at, pages): &(u64, u64)| {
            for i in at..at + pages {
                let extent = Extent { handle: PhysHandle(i), size: P, id: i as u32 };
                st.extents.insert(i * P, Mapped { extent, place: (0, i as u32) });
            }
            st.regions.add(at * P, pages * P)
        };
        let numbers: Vec<u32> = ready.iter().map(&mut add).collect();
        let [block, rest] = live.map(|x| add(&x));
        numbers.iter().for_each(|&r| st.regions.put_back(r, Tag::SETTLED));
        drop(st);
        (heap, numbers, Cut { lead: None, block, rest: Some(rest) })
    }

    #[test]
    fn every_region_that_a_step_makes_or_changes_matters() {
        let (heap, numbers, cut) = heap(&[(10, 40), (60, 9)], [(100, 5), (105, 3)]);
        let mut st = heap.lock();
        let rest = cut.rest.unwrap();
        // Two pieces of one region, then one that is all of another, then what was left over.
        let pieces = [(numbers[1], 60 * P, 69 * P), (numbers[0], 40 * P, 42 * P), (numbers[0], 30 * P, 34 * P)];
        st.leave(pieces.into_iter(), cut);
        let sizes = [(9, 1), (8, 2), (6, 3), (20, 3), (40, 3), (3, 4), (16, 0), (5, 0), (2, 0)];
        for (pages, until) in sizes {
            assert_eq!(st.steps_until(|_| false, |bytes| bytes == pages * P), until, "{pages} pages");
        }
        for (region, until) in [(numbers[1], 1), (numbers[0], 3), (rest, 4), (rest + 100, 0)] {
            assert_eq!(st.steps_until(|r| r == region, |_| false), until, "region {region}");
        }
        let ready = st.regions.ready_bytes();
        let settled = st.leaving.settled(ready);
        st.part_with(2);
        assert_eq!(st.leaving.settled(st.regions.ready_bytes()), settled);
        st.part_with_all();
        assert_eq!((st.regions.ready_bytes(), st.regions.validate()), (settled, Ok(())));
    }

    #[test]
    fn a_search_has_only_done_what_matters_to_it() {
        // A region of 40 pages loses two in its middle: 36 and 2 are left. Another one has five.
        for (wanted, found, waits) in [
            (4, 60, true),
            // It leaves two, as the piece will: they go to one bin.
            (3, 60, false),
            (1, 48, false),
            (36, 10, false),
        ] {
            let (heap, numbers, cut) = heap(&[(10, 40), (60, 5)], [(100, 1), (101, 70)]);
            let mut st = heap.lock();
            st.leave([(numbers[0], 46 * P, 48 * P)].into_iter(), Cut { rest: None, ..cut });
            let region = st.find_beside_leaving(wanted * P).unwrap();
            assert_eq!((st.regions.get(region).addr / P, !st.leaving.is_empty()), (found, waits), "{wanted} pages");
        }
    }
}

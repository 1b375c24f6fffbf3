//! The stock: physical memory that the pool holds and that has no address but, for a while, zombies.
//!
//! A heap that has run empty after much stitching starts afresh: its extents go into the stock and its addresses become
//! zombies, with no driver call. What the heap needs next is made up from the stock the way it would be created, sizes
//! chosen for the requests that come, so that a workload that repeats finds memory as tight as the first time. Without
//! that, a second run inherits large extents where it wants small ones, and the footprint creeps up.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extend::take_out_all;
use super::extent::{ladder, Extent, Mapped};
use super::heap::{Heap, HeapState};
use super::order::{Order, Tag};
use super::region::State;
use super::{lock, Pool};
use std::collections::BTreeMap;

/// A heap starts afresh when it runs empty and has moved one extent for every this many it has: then the moves it is
/// likely to save next time are worth mapping everything again.
const MOVES_SHARE: u64 = 8;

/// Extents without an address, and when they were last used.
///
/// Invariants: `bytes` is the sum of the sizes in `slots`, `len` their number; every occupied slot has exactly one entry
/// in the class of its size, with its stamp; a class has at most twice as many entries as it has extents, and a few.
#[derive(Default)]
pub(super) struct Stock {
    /// By the extent's number.
    slots: Vec<Option<Slot>>,
    /// Size → extents of it, the latest last. Those taken by number leave their entry behind.
    classes: BTreeMap<u64, Class>,
    bytes: u64,
    len: usize,
    stamp: u64,
    /// The least that `bytes` was since [`Self::take_unused`].
    least: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    extent: Extent,
    tag: Tag,
    stamp: u64,
}

#[derive(Default)]
struct Class {
    /// Number and stamp.
    entries: Vec<(u32, u64)>,
    count: usize,
}

/// What a run is made of besides moved extents: extents out of the stock with their last use, and sizes to create.
#[derive(Debug, Default)]
pub(super) struct Supply {
    pub(super) stocked: Vec<(Extent, Tag)>,
    pub(super) create: Vec<u64>,
}

impl Stock {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn put(&mut self, extent: Extent, tag: Tag) {
        let i = extent.id as usize;
        if self.slots.len() <= i {
            self.slots.resize(i + 1, None);
        }
        self.stamp += 1;
        self.slots[i] = Some(Slot { extent, tag, stamp: self.stamp });
        let class = self.classes.entry(extent.size).or_default();
        class.entries.push((extent.id, self.stamp));
        class.count += 1;
        self.bytes += extent.size;
        self.len += 1;
    }

    /// When an extent here was last used.
    pub(super) fn tag(&self, extent: Extent) -> Option<Tag> {
        // Numbers are used again: another extent may have it by now.
        self.slots.get(extent.id as usize)?.filter(|s| s.extent == extent).map(|s| s.tag)
    }

    /// Takes this extent, if it is here.
    pub(super) fn take_this(&mut self, extent: Extent) -> Option<(Extent, Tag)> {
        let slot = self.slots.get_mut(extent.id as usize)?.take_if(|s| s.extent == extent)?;
        self.leave_class(slot.extent.size, 1);
        Some((slot.extent, slot.tag))
    }

    /// Takes these extents, which are here: as [`Self::take_this`] of each, with one look at the class for those of one size in a row.
    pub(super) fn take_all(&mut self, extents: impl Iterator<Item = Extent>) {
        let (mut size, mut count) = (0, 0);
        for e in extents {
            let here = self.slots.get_mut(e.id as usize).and_then(|s| s.take_if(|s| s.extent == e));
            debug_assert!(here.is_some());
            if e.size != size {
                self.leave_class(size, count);
                (size, count) = (e.size, 0);
            }
            count += usize::from(here.is_some());
        }
        self.leave_class(size, count);
    }

    /// Counts extents of one size that have left their slots.
    fn leave_class(&mut self, size: u64, count: usize) {
        self.bytes -= size * count as u64;
        self.least = self.least.min(self.bytes);
        self.len -= count;
        if let Some(class) = self.classes.get_mut(&size) {
            class.count -= count;
            if class.entries.len() > 2 * class.count + 16 {
                let slots = &self.slots;
                class.entries.retain(|&(i, stamp)| slots[i as usize].is_some_and(|s| s.stamp == stamp));
            }
        }
    }

    /// The latest extent of a size whose tag `usable` accepts.
    fn find(&self, size: u64, usable: &impl Fn(Tag) -> bool) -> Option<Extent> {
        let here = |&(i, stamp): &(u32, u64)| self.slots[i as usize].filter(|s| s.stamp == stamp);
        let entries = &self.classes.get(&size)?.entries;
        entries.iter().rev().filter_map(here).find(|s| usable(s.tag)).map(|s| s.extent)
    }

    /// Makes up the planned `sizes` for `lane`: extents of just these sizes, then any that fit into what is left, then
    /// the smallest that covers the rest, and only then new ones.
    pub(super) fn supply(&mut self, sizes: &[u64], page: u64, largest: u64, lane: u32, order: &Order) -> Supply {
        let mut supply = Supply::default();
        if self.len == 0 {
            supply.create = sizes.to_vec();
            return supply;
        }
        let usable = |t: Tag| order.settled(t) || order.own(t, lane);
        let mut left = 0;
        for &size in sizes {
            match self.find(size, &usable).and_then(|e| self.take_this(e)) {
                Some(found) => supply.stocked.push(found),
                None => left += size,
            }
        }
        while left > 0 && self.len > 0 {
            let fits = self.classes.range(..=left).rev().find_map(|(&size, _)| self.find(size, &usable));
            let covers = || self.classes.range(left..).find_map(|(&size, _)| self.find(size, &usable));
            let Some(found) = fits.or_else(covers).and_then(|e| self.take_this(e)) else { break };
            left = left.saturating_sub(found.0.size);
            supply.stocked.push(found);
        }
        supply.create = ladder(left, page, largest);
        supply
    }

    /// Bytes that have been here all the time since the last call of this.
    pub(super) fn take_unused(&mut self) -> u64 {
        std::mem::replace(&mut self.least, self.bytes)
    }

    /// All of it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Extent, Tag)> + '_ {
        self.slots.iter().flatten().map(|s| (s.extent, s.tag))
    }

    /// Lanes whose progress decides when extents here become usable by everyone.
    pub(super) fn lanes(&self, order: &Order) -> std::collections::BTreeSet<u32> {
        self.iter().filter(|x| !order.settled(x.1)).map(|x| x.1.lane()).collect()
    }

    /// Checks the invariants written above.
    pub(super) fn validate(&self) -> Result<(), String> {
        let bytes: u64 = self.iter().map(|x| x.0.size).sum();
        let listed = |s: &Slot| {
            let entries = self.classes.get(&s.extent.size).map_or(&[][..], |c| &c.entries);
            entries.iter().filter(|&&e| e == (s.extent.id, s.stamp)).count()
        };
        if self.slots.iter().flatten().any(|s| listed(s) != 1) {
            return Err("an extent in stock is not listed once by its size".into());
        }
        if (bytes, self.iter().count()) != (self.bytes, self.len) {
            return Err(format!("the stock has {bytes} bytes, {} recorded", self.bytes));
        }
        Ok(())
    }
}

impl Pool {
    /// Called when the last block of a heap that has moved extents is gone: puts its wholly free spans into the stock, if
    /// it has moved enough. The caller publishes.
    pub(super) fn maybe_restart(&self, heap: &Heap, st: &mut HeapState) {
        // A small heap that runs short keeps what it has: it has been given room enough not to move any more.
        if st.private.is_some()
            || st.moves * MOVES_SHARE < st.extents.len() as u64
            || (self.options.slack_floor > 0 && st.runs_short())
        {
            return;
        }
        while let Some(slab) = st.slabs.find_empty() {
            st.drop_slab(slab, &self.order, &self.index);
        }
        // Every span is one free region now, unless something waits for another stream or an old slab is still there.
        let whole = |&r: &u32| st.regions.get(r).state == State::Ready && st.regions.is_edge(st.regions.get(r).next);
        let spans: Vec<u32> = st.regions.spans().filter(whole).collect();
        self.say(|| format!("heap {} is empty and starts afresh after {} moves", heap.number, st.moves));
        let mut core = lock(&*self.core);
        for r in spans {
            let g = st.regions.get(r);
            let (addr, end, tag) = (g.addr, g.end(), g.order);
            for (_, Mapped { extent, place }) in st.extents.mapped_within(addr, end) {
                core.aliases.leave(place, tag);
                core.stock.put(extent, tag);
            }
            take_out_all(st, r, addr, end);
        }
        st.regions.start_over();
        st.memo.restart();
        st.moves = 0;
        st.peak_live = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::PhysHandle;

    const P: u64 = 2 << 20;

    fn stock(pages: &[u64]) -> Stock {
        let mut s = Stock::default();
        for (i, &n) in pages.iter().enumerate() {
            s.put(Extent { handle: PhysHandle(i as u64), size: n * P, id: i as u32 }, Tag::SETTLED);
        }
        s
    }

    fn go(have: &[u64], want: &[u64]) -> (Vec<u64>, Vec<u64>, u64) {
        let mut s = stock(have);
        let sizes: Vec<u64> = want.iter().map(|n| n * P).collect();
        let supply = s.supply(&sizes, P, 64 * P, 1, &Order::new(DeviceId(0)));
        let taken = supply.stocked.iter().map(|x| x.0.size / P).collect();
        s.validate().unwrap();
        (taken, supply.create.iter().map(|c| c / P).collect(), s.bytes() / P)
    }

    #[test]
    fn exact_sizes_first_then_what_fits_then_what_covers_then_new() {
        assert_eq!(go(&[8, 4, 2, 1], &[4, 1]), (vec![4, 1], vec![], 10));
        assert_eq!(go(&[8, 2, 1], &[4]), (vec![2, 1, 8], vec![], 0));
        assert_eq!(go(&[8, 2, 2], &[4]), (vec![2, 2], vec![], 8));
        assert_eq!(go(&[2], &[8, 1]), (vec![2], vec![4, 2, 1], 0));
        assert_eq!(go(&[], &[4, 1]), (vec![], vec![4, 1], 0));
    }
}

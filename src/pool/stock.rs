//! The stock: physical memory that the pool holds and that has no address but, for a while, zombies.
//!
//! A heap that has run empty after much stitching starts afresh: its extents go into the stock and its addresses become
//! zombies, with no driver call. What the heap needs next is made up from the stock the way it would be created, sizes
//! chosen for the requests that come, so that a workload that repeats finds memory as tight as the first time. Without
//! that, a second run inherits large extents where it wants small ones, and the footprint creeps up.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extent::{ladder, Extent};
use super::heap::{Heap, HeapState};
use super::order::{Order, Tag};
use super::region::State;
use super::{lock, Pool, Zombie};
use std::sync::atomic::Ordering::Relaxed;

/// A heap starts afresh when it runs empty and has moved one extent for every this many it has: then the moves it is
/// likely to save next time are worth mapping everything again.
const MOVES_SHARE: u64 = 8;

/// Extents without an address, and when they were last used.
///
/// Invariant: `bytes` is the sum of their sizes.
#[derive(Default)]
pub(super) struct Stock {
    extents: Vec<(Extent, Tag)>,
    bytes: u64,
    /// The least that `bytes` was since [`Self::take_unused`].
    least: u64,
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
        self.extents.len()
    }

    pub(super) fn put(&mut self, extent: Extent, tag: Tag) {
        self.extents.push((extent, tag));
        self.bytes += extent.size;
    }

    /// Takes one extent that `usable` accepts, the last in the list, if there is one.
    fn take(&mut self, usable: impl Fn(&Extent, Tag) -> bool) -> Option<(Extent, Tag)> {
        let i = self.extents.iter().rposition(|(e, t)| usable(e, *t))?;
        let found = self.extents.swap_remove(i);
        self.bytes -= found.0.size;
        self.least = self.least.min(self.bytes);
        Some(found)
    }

    /// Makes up the planned `sizes` for `lane`: extents of just these sizes, then any that fit into what is left, then
    /// the smallest that covers the rest, and only then new ones.
    pub(super) fn supply(&mut self, sizes: &[u64], page: u64, largest: u64, lane: u32, order: &Order) -> Supply {
        let mut supply = Supply::default();
        if self.extents.is_empty() {
            supply.create = sizes.to_vec();
            return supply;
        }
        let usable = |t: Tag| order.settled(t) || order.own(t, lane);
        let mut left = 0;
        for &size in sizes {
            match self.take(|e, t| e.size == size && usable(t)) {
                Some(found) => supply.stocked.push(found),
                None => left += size,
            }
        }
        while left > 0 {
            let fits = self.extents.iter().filter(|(e, t)| e.size <= left && usable(*t)).map(|x| x.0.size).max();
            let covers = self.extents.iter().filter(|(e, t)| e.size > left && usable(*t)).map(|x| x.0.size).min();
            let Some(size) = fits.or(covers) else { break };
            let Some(found) = self.take(|e, t| e.size == size && usable(t)) else { break };
            left = left.saturating_sub(size);
            supply.stocked.push(found);
        }
        supply.create = ladder(left, page, largest);
        supply
    }

    /// Takes an extent of at most `most` bytes that the device has passed, if there is one.
    pub(super) fn take_settled(&mut self, order: &Order, most: u64) -> Option<Extent> {
        self.take(|e, t| e.size <= most && order.settled(t)).map(|x| x.0)
    }

    /// Bytes that have been here all the time since the last call of this.
    pub(super) fn take_unused(&mut self) -> u64 {
        std::mem::replace(&mut self.least, self.bytes)
    }

    /// Lanes whose progress decides when extents here become usable by everyone.
    pub(super) fn lanes(&self, order: &Order) -> std::collections::BTreeSet<u32> {
        self.extents.iter().filter(|x| !order.settled(x.1)).map(|x| x.1.lane()).collect()
    }

    pub(super) fn sum(&self) -> u64 {
        self.extents.iter().map(|x| x.0.size).sum()
    }
}

impl Pool {
    /// Called when the last block of a heap that has moved extents is gone: puts its wholly free spans into the stock, if
    /// it has moved enough. The caller publishes.
    pub(super) fn maybe_restart(&self, heap: &Heap, st: &mut HeapState) {
        if st.moves * MOVES_SHARE < st.extents.len() as u64 {
            return;
        }
        while let Some(slab) = st.slabs.find_empty() {
            st.drop_slab(slab, &self.order, &self.index);
        }
        // Every span is one free region now, unless something waits for another stream or an old slab is still there.
        let whole = |&r: &u32| st.regions.get(r).state == State::Ready && st.regions.is_edge(st.regions.get(r).next);
        let spans: Vec<u32> = st.regions.spans().filter(whole).collect();
        self.say(|| format!("heap {} is empty and starts afresh after {} moves", heap.number, st.moves));
        let mut core = lock(&self.core);
        for r in spans {
            let g = st.regions.get(r);
            let (addr, size, end, tag) = (g.addr, g.size, g.end(), g.order);
            let extents: Vec<_> = st.extents.within(addr, end).collect();
            for (at, extent) in extents {
                st.extents.remove(at);
                core.stock.put(extent, tag);
            }
            st.regions.take_ready(r);
            st.regions.remove(r);
            core.zombies.push_back(Zombie { addr, size, tag });
            self.counters.zombie_bytes.fetch_add(size, Relaxed);
        }
        st.moves = 0;
        st.peak_live = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::PhysHandle;

    const P: u64 = 2 << 20;

    fn stock(pages: &[u64]) -> Stock {
        let mut s = Stock::default();
        for (i, &n) in pages.iter().enumerate() {
            s.put(Extent { handle: PhysHandle(i as u64), size: n * P }, Tag::SETTLED);
        }
        s
    }

    fn go(have: &[u64], want: &[u64]) -> (Vec<u64>, Vec<u64>, u64) {
        let mut s = stock(have);
        let sizes: Vec<u64> = want.iter().map(|n| n * P).collect();
        let supply = s.supply(&sizes, P, 64 * P, 1, &Order::new(DeviceId(0)));
        let taken = supply.stocked.iter().map(|x| x.0.size / P).collect();
        assert_eq!(s.bytes(), s.sum());
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

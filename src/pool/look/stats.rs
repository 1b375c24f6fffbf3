//! Counters of one pool, for its users.

use crate::pool::heap::{HeapState, State};
use crate::pool::memory::{Entry, Index, SLOT};
use crate::pool::state::Pool;
use std::sync::atomic::Ordering::Relaxed;

/// One pool's counters: bytes, unless they are called a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Addresses reserved.
    pub reserved: u64,
    /// Physical memory held: that of heaps (live, free and waiting blocks, free objects of slabs),
    /// `stock`, dedicated allocations, and freed dedicated ones that the device may still use.
    pub mapped: u64,
    /// The most `mapped` has been since the peaks were last reset.
    pub peak_mapped: u64,
    /// Requested bytes of live allocations.
    pub requested: u64,
    /// Bytes handed out, rounding included.
    pub live: u64,
    /// The most `live` has been since then: exact where there is one heap, and nothing dedicated.
    /// Otherwise it is an upper bound: the sum of each one's most, but never more than
    /// `peak_mapped`.
    pub peak_live: u64,
    /// Free mapped bytes usable by their own stream at once.
    pub free: u64,
    /// Free mapped bytes that wait for another stream.
    pub waiting: u64,
    /// Physical memory held for later without an address.
    pub stock: u64,
    /// Unmapped addresses inside the reservation.
    pub holes: u64,
    /// Old addresses of moved memory, mapped still so that it can come back to them.
    pub zombies: u64,
    /// The largest request that any stream's next allocation is sure to get even if the pool cannot
    /// grow, allowing for remapping, and for a wait until the device has passed what was freed. Not
    /// while a stream is being captured: then some of that cannot be asked. 0 below 64 KiB.
    pub largest_without_growth: u64,
    /// The largest free region usable with no driver call; 0 below 64 KiB, the least that
    /// a slab takes.
    pub largest_free: u64,
    /// Live allocations, a count.
    pub allocations: u64,
    /// Allocations ever made, a count.
    pub mallocs: u64,
    /// Frees ever done, a count.
    pub frees: u64,
    /// Physical allocations held, a count: mapped extents, those in stock, dedicated ones.
    pub extents: u64,
    /// Extents moved to other addresses so far, a count.
    pub moved: u64,
    /// Stitches that created nothing and flips that moved something, so far, a count.
    pub stitches: u64,
    /// Growths so far, a count.
    pub growths: u64,
    /// Streams known, a count. One that is used both eagerly and in a capture counts twice.
    pub streams: u64,
    /// Frees refused as double, a count.
    pub double_frees: u64,
    /// Pointers refused as unknown, a count.
    pub unknown_pointers: u64,
    /// Frees by id that came after the allocation had gone, a count.
    pub late_frees: u64,
    /// Requests refused for lack of memory, a count.
    pub out_of_memory: u64,
    /// The most that may be mapped; 0: what the device has.
    pub limit: u64,
}

impl HeapState {
    /// Calls `f` with the first and last address of each run of regions that will be free in one
    /// piece once nothing waits any more and slabs without objects are gone. Leaves out ready
    /// regions of less than a page that stand alone: no extent lies in them, and there may be very
    /// many.
    fn free_runs(&self, index: &Index, mut f: impl FnMut(u64, u64)) {
        let is_free = |r: u32| {
            let g = self.regions.get(r);
            match g.state {
                State::Ready | State::Quick | State::Waiting => true,
                State::Slab => match index.get(g.addr) {
                    Entry::Slab { slab, .. } => self.slabs.try_get(slab).is_some_and(|s| s.used == 0),
                    _ => false,
                },
                State::Live | State::Vacant | State::Edge => false,
            }
        };
        let page = self.extents.page();
        let slabs = self.slabs.iter().filter(|(_, s)| s.used == 0).map(|(_, s)| s.region);
        for r in self.waiting.regions().chain(slabs).chain(self.regions.ready_from(page)) {
            // The first of these in a run stands for the run. At most one small ready region lies
            // in front of it, as no two ready ones are neighbours.
            let mut first = r;
            let before = self.regions.get(self.regions.get(r).prev);
            if before.state == State::Ready && before.size < page {
                first = self.regions.get(r).prev;
            }
            if is_free(self.regions.get(first).prev) {
                continue;
            }
            let last = self.regions.walk(first).take_while(|&r| is_free(r)).last().unwrap_or(first);
            f(self.regions.get(first).addr, self.regions.get(last).end());
        }
    }
}

impl Pool {
    /// Counters, taken heap by heap.
    pub fn stats(&self) -> PoolStats {
        let c = &self.counters;
        let mut s = PoolStats {
            mapped: c.mapped.load(Relaxed),
            peak_mapped: c.peak_mapped.load(Relaxed),
            requested: c.dedicated_requested.load(Relaxed),
            mallocs: c.dedicated_mallocs.load(Relaxed),
            frees: c.dedicated_frees.load(Relaxed),
            growths: c.growths.load(Relaxed),
            streams: self.order.streams() - u64::from(self.shared_heap().is_some()),
            double_frees: c.double_frees.load(Relaxed),
            unknown_pointers: c.unknown_pointers.load(Relaxed),
            late_frees: c.late_frees.load(Relaxed),
            out_of_memory: c.out_of_memory.load(Relaxed),
            limit: match self.limit.load(Relaxed) {
                limit if limit < self.props.total_bytes => limit,
                _ => 0,
            },
            live: c.dedicated_live.load(Relaxed),
            peak_live: c.dedicated_most.load(Relaxed),
            ..PoolStats::default()
        };
        let (mut movable, mut run) = (0, 0);
        for heap in self.all_heaps() {
            let st = heap.lock();
            s.requested += st.requested_bytes;
            s.live += st.live_bytes;
            s.peak_live += st.most_live;
            s.mallocs += st.mallocs;
            s.frees += st.frees;
            s.stitches += st.stitches;
            s.moved += st.moved;
            s.free += st.regions.ready_bytes();
            s.waiting += st.waiting_bytes;
            s.extents += st.extents.len() as u64;
            if st.private.is_some() {
                s.holes += st.kept.1 - st.kept.0;
                continue;
            }
            s.largest_free = s.largest_free.max(st.regions.largest_ready());
            st.free_runs(&self.index, |start, end| {
                run = run.max(end - start);
                movable += st.extents.within(start, end).map(|(_, m)| m.extent.size).sum::<u64>();
            });
        }
        // Memory that is live at one time is also mapped then. But the heaps are read one after the
        // other, while threads map, free and allocate.
        s.mapped = s.mapped.max(c.mapped.load(Relaxed));
        s.peak_mapped = s.peak_mapped.max(c.peak_mapped.load(Relaxed)).max(s.mapped);
        s.live = s.live.min(s.mapped);
        s.requested = s.requested.min(s.live);
        s.peak_live = s.peak_live.min(s.peak_mapped).max(s.live);
        // The two are read one after the other, so they may be of different moments.
        s.allocations = s.mallocs.saturating_sub(s.frees);
        let core = self.core.lock();
        let dedicated = core.dedicated.values().filter(|d| d.handle.is_some()).count();
        s.extents += (dedicated + core.stock.len()) as u64;
        s.stock = core.stock.bytes();
        s.zombies = core.aliases.dormant_bytes() + core.zombies.iter().map(|z| z.1).sum::<u64>();
        let served = |size: u64| if size < SLOT { 0 } else { size };
        s.largest_without_growth = served(s.largest_free.max(run).max(movable + s.stock));
        s.largest_free = served(s.largest_free);
        let (reserved, holes) = core.holes.totals();
        s.reserved = reserved;
        // What an arena kept that has gone meanwhile is in both.
        s.holes = (s.holes + holes).min(reserved);
        s
    }

    /// Sets the recorded peaks back to the present values.
    pub fn reset_peaks(&self) {
        for heap in self.all_heaps() {
            let mut st = heap.lock_quick();
            st.most_live = st.live_bytes;
        }
        self.counters.dedicated_most.store(self.counters.dedicated_live.load(Relaxed), Relaxed);
        self.counters.peak_mapped.store(self.mapped_now(), Relaxed);
    }
}

//! The heap that all streams share. Large requests go there once the heaps of single streams have
//! proved too narrow for them.
//!
//! One heap per stream is the quickest for work that repeats. If nothing repeats, free memory lies
//! in as many pieces as there are streams, and no two of them ever join: with eight streams and the
//! same sizes and lifetimes, requests moved fifty times as many extents as with one. So once all
//! heaps together have paid more rent than a first pass costs,
//!
//! ```text
//! paid > FREE * max(peak, 256 MiB)        (remap/economy.rs)
//! ```
//!
//! a request of at least a quarter of a page that its own heap has no room for is met by the shared
//! heap, and memory moves there as it is wanted. No stream owns it: whatever is freed there waits
//! until the device has passed it, or the stream that freed it takes it back. So
//!
//! ```text
//! each ready region of the shared heap is settled
//! ```
//!
//! and its neighbours join whichever streams they were freed on.
//!
//! Rent is what was moved, and also what was found in other heaps after asking the device: to look
//! for it in a hundred heaps takes as long as a move.
//!
//! If the device is behind the host, memory is ready late in the shared heap, while a stream's own
//! heap gives back at once what that stream freed. So rent counts from when the device was last
//! seen behind: a marker in front of each move, and of each growth of the shared heap, tells. And
//! once nothing is shared any more, a stream takes back what it freed in the shared heap before it
//! moves or maps memory.
//!
//! docs/adr/shared-heap.md has the experiment.

use crate::base::{Result, StreamHandle};
use crate::pool::heap::{Heap, HeapState, Locked};
use crate::pool::state::Pool;
use crate::pool::types::Want;
use std::sync::atomic::Ordering::*;

/// Requests of at least one part in this many of a page are shared. Smaller ones would often lose a
/// hit in their own heap, and there they lie close together.
const PART_OF_PAGE: u64 = 4;

/// Memory of other heaps that is at most one part in this many of all is hardly any.
const OF_OTHERS: u64 = 8;

impl Pool {
    /// Whether the shared heap meets a request that its own heap has no room for.
    pub(crate) fn shares(&self, st: &HeapState, want: Want) -> bool {
        want.size >= self.page / PART_OF_PAGE
            && !st.of_captures
            && self.has_paid_rent()
            && !self.has_nearly_all(st, want.size)
    }

    /// Whether hardly any memory would be in other streams' heaps once a request of `size` is met.
    /// Then it would move no less in the shared heap, and not find there what it had before.
    fn has_nearly_all(&self, st: &HeapState, size: u64) -> bool {
        let of_stream = self.all_heaps().filter(|h| h.lane == st.lane && h.number != st.number);
        let beside: u64 = of_stream.map(|h| h.live.load(Relaxed) + h.free.load(Relaxed)).sum();
        let own = st.extents.bytes() + beside + self.core.lock().stock.bytes() + size;
        let all = self.mapped_now() + size;
        all.saturating_sub(own) <= all / OF_OTHERS
    }

    /// Locks the shared heap and brings it up to date. The caller holds no heap's lock.
    pub(crate) fn enter_shared_heap(&self) -> Result<Option<Locked<'_>>> {
        let Some(shared) = self.make_shared_heap() else { return Ok(None) };
        let mut st = shared.lock();
        self.poll_and_settle(&mut st)?;
        Ok(Some(st))
    }

    /// The shared heap, made now if there is none yet; `None` when there are too many heaps.
    fn make_shared_heap(&self) -> Option<&Heap> {
        if self.shared_heap().is_none() {
            let _streams = self.streams.lock();
            if self.shared_heap().is_none() {
                // It has no stream that could be named, so only the context vouches for it.
                let heap = self.add_lane_and_heap(true, (StreamHandle::LEGACY, 0), false)?;
                self.shared.store(heap.number, Release);
            }
        }
        self.shared_heap()
    }

    /// Takes all settled extents of another heap over, where they are: nothing is mapped or
    /// unmapped. Leaves a region that holds `size` bytes only with the parts of extents at its
    /// ends: the request's own heap can borrow there.
    pub(crate) fn take_settled(&self, shared: &mut HeapState, from: &mut HeapState, size: u64) {
        if from.live_bytes == 0 {
            from.drop_empty_slabs(&self.order, &self.index);
        }
        let goes = |&r: &u32| {
            let g = from.regions.get(r);
            self.order.settled(g.tag) && (g.size < size || from.extents.whole_bytes(g.addr, g.end()) >= size)
        };
        let regions: Vec<u32> = from.regions.ready_from(self.page).filter(goes).collect();
        for r in regions {
            self.hand_on_all(from, shared, r);
        }
    }

    /// Takes over, where they are, the extents a heap's own stream freed in the shared heap, once
    /// nothing is shared any more. In that stream's order they are free at once, while the shared
    /// heap waits for the device. Returns whether there were any.
    pub(crate) fn take_from_shared_heap(&self, st: &mut HeapState) -> bool {
        let has_some = |s: &&Heap| s.number != st.number && s.free.load(Relaxed) >= self.page;
        let Some(shared) = self.shared_heap().filter(has_some).filter(|_| !self.has_paid_rent()) else { return false };
        let Some(mut from) = shared.try_lock() else { return false };
        let ready = from.ready_extents_of(st.lane, &self.order);
        for &r in &ready {
            self.hand_on_all(&mut from, st, r);
        }
        !ready.is_empty()
    }
}

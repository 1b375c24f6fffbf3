//! Receipts: somebody else's count of what is live in the pool.
//!
//! A *receipt* goes with an allocation and is dropped when that ends, however it does: it is kept in the allocation's record
//! ([`super::members`]) or with a dedicated one, under the same lock that decides who frees it, so each is dropped exactly
//! once. What moves from scope to scope keeps its receipt; what an arena's end takes out of use for the detector has none
//! any more, as its user has freed it.
//!
//! Until somebody counts ([`Pool::count_live`]) there are none, and nothing here costs anything. From then on every live
//! allocation has one: with the request or, where it came without, from the counter.
//!
//! What is counted of an allocation is [`Pool::counted_bytes`]: the request, rounded up to 256 bytes and at least as many;
//! whole pages where it has pages of its own. Memory that another allocation owns, imported, is not counted here.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, HeapState};
use super::members::{Place, NO_MEMBER};
use super::region::State;
use super::slab::SMALL_MIN;
use super::{lock, AllocFlags, AllocRequest, Pool};
use crate::base::{Result, StreamHandle};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// Stands for an allocation in somebody's count. It is dropped when the allocation ends, and may be under a lock of the
/// pool: it must not call the pool or the driver then, nor in `resize`.
pub trait Receipt: Send + fmt::Debug {
    /// The bytes that it stands for.
    fn bytes(&self) -> u64;
    /// The allocation, where it is, is going to have `bytes`, or has become that small. On an error, which is for larger ones
    /// only, it does not become larger.
    fn resize(&mut self, bytes: u64) -> Result<()>;
}

/// Counts what comes without a receipt. Called with locks of the pool held: it must not call the pool or the driver.
pub trait Counter: Send + Sync {
    /// The receipt of an allocation that is there, come what may.
    fn count(&self, bytes: u64, stream: StreamHandle) -> Box<dyn Receipt>;
    /// The handle stands for another stream than before.
    fn stream_renewed(&self, stream: StreamHandle);
}

/// A receipt on its way into the pool. It is gone from here when an allocation was made with it.
pub struct Slip(Cell<Option<Box<dyn Receipt>>>);

impl Slip {
    /// With this receipt in it.
    pub fn new(receipt: Box<dyn Receipt>) -> Slip {
        Slip(Cell::new(Some(receipt)))
    }

    fn take(&self) -> Option<Box<dyn Receipt>> {
        self.0.take()
    }
}

impl fmt::Debug for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slip")
    }
}

/// What is counted of a pooled allocation.
#[inline]
fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(SMALL_MIN).unwrap_or(u64::MAX)
}

impl HeapState {
    /// A block or object just handed out joins what its request says, and gets its receipt.
    #[inline]
    pub(super) fn admit(&mut self, req: &AllocRequest, place: Place, pool: u64) {
        self.join(req.scope, place, pool);
        if req.slip.is_some() || self.counter.is_some() {
            self.enter(req, place);
        }
    }

    #[cold]
    fn enter(&mut self, req: &AllocRequest, place: Place) {
        let bytes = rounded(self.requested_at(place));
        let brought = req.slip.and_then(Slip::take);
        let receipt = brought.or_else(|| self.counter.as_ref().map(|c| c.count(bytes, req.stream)));
        if let Some(receipt) = receipt {
            self.give_receipt(place, receipt);
        }
    }

    /// From now on hits are left to those who count, and every allocation that has no receipt gets one.
    fn start_counting(&mut self, counter: &Arc<dyn Counter>, stream_of_objects: StreamHandle) {
        self.counter = Some(counter.clone());
        for (place, stream) in self.live_places(stream_of_objects) {
            let member = self.member_at(place);
            if !self.members.is_reclaimed(member) && self.members.receipt(member).is_none() {
                let receipt = counter.count(rounded(self.requested_at(place)), stream);
                self.give_receipt(place, receipt);
            }
        }
    }

    /// Every live block and object, and its stream.
    fn live_places(&self, stream_of_objects: StreamHandle) -> Vec<(Place, StreamHandle)> {
        let regions = self.regions.spans().flat_map(|span| self.regions.walk(span));
        let live = regions.filter(|&r| self.regions.get(r).state == State::Live);
        let mut found: Vec<_> =
            live.map(|region| (Place::Block { region }, self.regions.block(region).stream)).collect();
        for (slab, s) in self.slabs.iter() {
            let live = (0..s.capacity).filter(|&n| s.is_live(n));
            found.extend(live.map(|number| (Place::Object { slab, number }, stream_of_objects)));
        }
        found
    }

    /// The receipt of a block or object that is `requested` bytes large, or going to be.
    pub(super) fn resize_receipt(&mut self, place: Place, requested: u64) -> Result<()> {
        let member = self.member_at(place);
        match self.members.receipt_mut(member).filter(|_| member != NO_MEMBER) {
            Some(receipt) => receipt.resize(rounded(requested)),
            None => Ok(()),
        }
    }

    /// The sum of what is counted here. An error when anything live is not, or not with its bytes.
    pub(super) fn counted(&self) -> std::result::Result<u64, String> {
        let mut sum = 0;
        for (place, _) in self.live_places(StreamHandle::LEGACY) {
            let member = self.member_at(place);
            let (counted, due) = (self.members.receipt(member).map(|r| r.bytes()), rounded(self.requested_at(place)));
            let right = match (counted, self.members.is_reclaimed(member)) {
                (Some(bytes), false) => bytes == due,
                (Some(_), true) => false,
                (None, reclaimed) => reclaimed || self.counter.is_none(),
            };
            if !right {
                return Err(format!("{place:?} of {due} bytes counts as {counted:?}"));
            }
            sum += counted.unwrap_or(0);
        }
        Ok(sum)
    }
}

impl Pool {
    /// What an allocation is counted as, in bytes.
    pub fn counted_bytes(&self, size: u64, flags: AllocFlags) -> u64 {
        match flags == AllocFlags::default() {
            true => rounded(size),
            false => size.max(1).checked_next_multiple_of(self.page).unwrap_or(u64::MAX),
        }
    }

    /// Counts everything that lives, and from now on whatever comes without a receipt. Others may allocate and free meanwhile:
    /// when this returns, what is live has a receipt. Only once.
    pub fn count_live(&self, counter: Arc<dyn Counter>) {
        {
            // New heaps are made under this lock, and look.
            let _streams = lock(&*self.streams);
            if self.counter.set(counter.clone()).is_err() {
                return;
            }
        }
        for heap in self.all_heaps() {
            heap.lock().start_counting(&counter, self.order.stream(heap.lane));
        }
        let mut core = lock(&*self.core);
        for d in core.dedicated.values_mut().filter(|d| d.counts && d.receipt.is_none()) {
            d.receipt = Some(counter.count(d.mapped, d.info.stream));
        }
    }

    /// The receipt for a dedicated allocation of `mapped` bytes about to be entered. Under the core's lock.
    pub(super) fn receipt_for(&self, req: &AllocRequest, mapped: u64) -> Option<Box<dyn Receipt>> {
        let brought = req.slip.and_then(Slip::take);
        brought.or_else(|| self.counter.get().map(|c| c.count(mapped, req.stream)))
    }

    /// A new heap counts if its pool does. Under the lock of `streams`.
    pub(super) fn count_in(&self, heap: &Heap) {
        if let Some(counter) = self.counter.get() {
            heap.lock_quick().counter = Some(counter.clone());
        }
    }

    /// Makes sure that the pool knows which stream a handle stands for at present: whoever counts hears if it is a new one.
    pub fn meet(&self, stream: StreamHandle) -> Result<()> {
        self.heap_for(stream).map(drop)
    }
}

//! Allocation.
//!
//! Most are hits: a small block from a slab that has room, or a large one of a size that was just
//! freed. A hit takes one uncontended lock, makes no driver call, searches nothing, allocates no
//! host memory, and only reads what streams share. Cutting a large block from a ready region is
//! nearly as short. Anything else goes to [`Pool::malloc_search`], which defines what an allocation
//! means: a hit is a shorter way to the same end.

use crate::base::size::round_up;
use crate::base::{Result, Status, StreamHandle};
use crate::pool::heap::{slab, Place, GRANULE, SMALL_MAX};
use crate::pool::memory::SLOT;
use crate::pool::state::Pool;
use crate::pool::types::{checked_alignment, too_large, AllocFlags, AllocRequest, Scope};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

impl Pool {
    /// Allocates; the memory may be used by work submitted to the request's stream from now on.
    #[inline]
    pub fn malloc(&self, req: &AllocRequest) -> Result<u64> {
        let plain = req.align == 0 && req.flags == AllocFlags::default() && req.tag == 0;
        if plain && req.scope.is_none() && req.slip.is_none() {
            if let Some(addr) = self.malloc_hit(req.size, req.stream) {
                return Ok(addr.get());
            }
        }
        self.malloc_search(req)
    }

    /// Like [`Self::malloc`], without trying a hit first.
    pub fn malloc_search(&self, req: &AllocRequest) -> Result<u64> {
        let align = self.checked_align(req)?;
        if req.flags != AllocFlags::default() {
            return self.malloc_dedicated(req, align, None);
        }
        let (heap, routed) = self.heap_and_route(req.stream)?;
        let made = match routed {
            Some(routed) => self.malloc_captured(heap, &routed, req, align),
            None => self.malloc_in(self.enter(heap, req.stream, req.size), req, align),
        };
        made.inspect_err(|e| {
            if e.status == Status::OutOfMemory {
                self.counters.out_of_memory.fetch_add(1, Relaxed);
            }
        })
    }

    /// The alignment of a request. Refuses an invalid one, and a size that can never be had.
    pub(crate) fn checked_align(&self, req: &AllocRequest) -> Result<u64> {
        let align = checked_alignment(req.align)?;
        self.check_size(req.size)?;
        Ok(align)
    }

    /// Refuses a size larger than the device, or than both the limit and what is mapped.
    pub(crate) fn check_size(&self, size: u64) -> Result<()> {
        if size <= self.props.total_bytes.min(self.limit.load(Relaxed).max(self.mapped_now())) {
            return Ok(());
        }
        self.counters.out_of_memory.fetch_add(1, Relaxed);
        Err(if size > i64::MAX as u64 { too_large(size) } else { self.out_of_memory(size) })
    }

    /// Allocates with default alignment and flags and no tag, if that is a hit. `stream` is
    /// canonical.
    #[inline]
    pub fn malloc_hit(&self, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        self.malloc_hit_of(size, stream, None)
    }

    /// Like [`Self::malloc_hit`], for an allocation that joins a scope.
    #[inline]
    pub fn malloc_hit_in(&self, size: u64, stream: StreamHandle, scope: &Arc<Scope>) -> Option<NonZeroU64> {
        self.malloc_hit_of(size, stream, Some(scope))
    }

    // Inlined into both callers: joining a scope takes registers that the plain hit has a use for.
    #[inline(always)]
    fn malloc_hit_of(&self, size: u64, stream: StreamHandle, scope: Option<&Arc<Scope>>) -> Option<NonZeroU64> {
        let heap = self.cached_heap(stream)?;
        let mut st = self.for_size(heap, size).try_lock_quick()?;
        if st.counter.is_some() {
            // With a receipt to make, a hit saves nothing.
            return None;
        }
        let addr = match size <= SMALL_MAX {
            true => {
                let (place, addr) = st.take_object(slab::class_of(size), size)?;
                st.join(scope, place, self.number);
                addr
            }
            false => {
                // Rounded as `malloc_search` rounds.
                let r = st.take_region(round_up(size, GRANULE)?, GRANULE)?;
                let req = AllocRequest { size, stream, ..AllocRequest::default() };
                let block = self.block(&mut st, &req, heap.lane);
                let addr = st.hand_out(r, block, &self.index);
                st.join(scope, Place::Block { region: r }, self.number);
                addr
            }
        };
        NonZeroU64::new(addr)
    }
}

/// Every request that no slab serves is at least a slot long, so blocks start in different slots
/// without further rounding.
const _: () = assert!(SMALL_MAX >= SLOT);

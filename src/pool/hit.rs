//! The hit path: what nearly every allocation and every free does.
//!
//! A small block out of a slab that has room, or a large one of the size that was just freed; and the free of a block to the
//! stream whose heap it is in. One uncontended lock, no driver call, no search, no host memory, nothing shared with other
//! streams but what is only read. Nearly as short: a large block cut from what is ready, and the free of a block in the order
//! of another stream than its heap's. Whatever is not so simple is left
//! undone and for [`Pool::malloc_search`] and [`Pool::free_anyhow`], which define what both mean: these here are shorter
//! ways to the same end.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, HeapState};
use super::heap_lock::Locked;
use super::index::{Entry, SLOT};
use super::members::Place;
use super::region::{State, GRANULE};
use super::scope::Scope;
use super::slab::{self, Taken, SMALL_MAX};
use super::{AllocRequest, Pool};
use crate::base::StreamHandle;
use std::num::NonZeroU64;
use std::sync::Arc;

impl Pool {
    /// Allocates with default alignment and flags and no tag, if that is a hit. `stream` is canonical.
    #[inline]
    pub fn malloc_hit(&self, size: u64, stream: StreamHandle) -> Option<NonZeroU64> {
        self.malloc_hit_of(size, stream, None)
    }

    /// As [`Self::malloc_hit`], for an allocation that joins a scope.
    #[inline]
    pub fn malloc_hit_in(&self, size: u64, stream: StreamHandle, scope: &Arc<Scope>) -> Option<NonZeroU64> {
        self.malloc_hit_of(size, stream, Some(scope))
    }

    // One instance for each of them: joining a scope takes registers that the others have use for.
    #[inline(always)]
    fn malloc_hit_of(&self, size: u64, stream: StreamHandle, scope: Option<&Arc<Scope>>) -> Option<NonZeroU64> {
        let heap = self.cached_heap(stream)?;
        let mut st = heap.try_lock_quick()?;
        if st.counter.is_some() {
            // No hit is worth a receipt.
            return None;
        }
        let addr = match size <= SMALL_MAX {
            true => {
                let Taken { slab, number, addr } = st.take_object(slab::class_of(size), size)?;
                st.join(scope, Place::Object { slab, number }, self.number);
                addr
            }
            false => {
                // As `malloc` rounds. Larger requests than any device has overflow here and find nothing.
                let rounded = size.wrapping_add(GRANULE - 1) & !(GRANULE - 1);
                let r = match st.take_quick(rounded) {
                    Some(r) => r,
                    None => cut_ready(&mut st, rounded)?,
                };
                let req = AllocRequest { size, stream, ..AllocRequest::default() };
                let block = self.block(heap, &mut st, &req, GRANULE);
                let addr = st.hand_out(r, block, &self.index);
                st.join(scope, Place::Block { region: r }, self.number);
                addr
            }
        };
        heap.publish(&st);
        NonZeroU64::new(addr)
    }

    /// Frees in the order of `stream`, or of the stream that the block was allocated on when that is `None`, if that is a
    /// hit. Nothing has happened when it returns `false`.
    #[inline]
    pub fn free_hit(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        // Read with no lock held: what it says is checked under the heap's.
        let entry = self.index.get(ptr);
        let (Entry::Slab { heap, .. } | Entry::Block { heap, .. }) = entry else { return false };
        let Some(heap) = self.heap(heap) else { return false };
        if self.options.trim_threshold > 0 {
            return false;
        }
        if let Some(s) = stream {
            // Taken without looking at the stream: see `free`.
            match self.known_lane(s) {
                Some(lane) if lane == heap.lane => {}
                Some(lane) => return self.free_away(heap, entry, ptr, lane, s),
                None => return false,
            }
        }
        match entry {
            Entry::Slab { slab, .. } => {
                let Some(mut st) = self.try_lock_plain(heap) else { return false };
                let Some(size) = self.free_object(&mut st, slab, ptr, None) else { return false };
                self.freed(heap, st, size, stream);
                true
            }
            Entry::Block { region, .. } => self.free_large(heap, region, ptr, stream),
            _ => false,
        }
    }

    /// The large half of [`Self::free_hit`], in a frame of its own: together, each would keep in memory what the other needs in
    /// registers.
    #[inline(never)]
    fn free_large(&self, heap: &Heap, region: u32, ptr: u64, stream: Option<StreamHandle>) -> bool {
        let Some(mut st) = self.try_lock_plain(heap) else { return false };
        let Some(size) = self.free_block(&mut st, region, ptr, stream.is_none(), None) else { return false };
        self.freed(heap, st, size, stream);
        true
    }

    /// As [`Self::free_hit`], in the order of another lane than the heap's: that of `stream`.
    #[inline(never)]
    fn free_away(&self, heap: &Heap, entry: Entry, ptr: u64, lane: u32, stream: StreamHandle) -> bool {
        let Some(mut st) = self.try_lock_plain(heap) else { return false };
        let freed = match entry {
            Entry::Slab { slab, .. } => self.free_object(&mut st, slab, ptr, Some(lane)),
            Entry::Block { region, .. } => self.free_block(&mut st, region, ptr, false, Some(lane)),
            _ => None,
        };
        let Some(size) = freed else { return false };
        self.freed_away(heap, st, size, lane, Some(stream), &[]);
        true
    }

    /// The heap's lock if it is free and nothing about the heap's live blocks is special.
    #[inline(always)]
    fn try_lock_plain<'a>(&self, heap: &'a Heap) -> Option<Locked<'a, HeapState>> {
        let st = heap.try_lock_quick()?;
        if st.users.is_empty() && st.tags.is_empty() && st.is_current(&self.order) && st.private.is_none() {
            return Some(st);
        }
        None
    }

    /// Bytes of the object freed; in the order of lane `away`, or of the heap's own.
    #[inline(always)]
    fn free_object(&self, st: &mut HeapState, slab: u32, ptr: u64, away: Option<u32>) -> Option<u64> {
        let s = st.slabs.try_get(slab)?;
        let n = s.object_at(ptr)?;
        if s.old || !s.is_live(n) || st.members.is_reclaimed(s.object(n).member) {
            return None;
        }
        let size = slab::class_size(s.class as usize);
        match away {
            None => st.take_back_own_object(slab, n, &self.order, &self.index),
            Some(lane) => st.take_back_object(slab, n, &[self.order.tag(lane)], &self.order),
        }
        Some(size)
    }

    /// Bytes of the block freed; in the order of lane `away`, or of the heap's own. `of_its_own`: in the order of the stream
    /// it was allocated on.
    #[inline(always)]
    fn free_block(
        &self,
        st: &mut HeapState,
        region: u32,
        ptr: u64,
        of_its_own: bool,
        away: Option<u32>,
    ) -> Option<u64> {
        let r = st.regions.try_get(region)?;
        if r.addr != ptr || r.state != State::Live {
            return None;
        }
        let block = st.regions.block(region);
        if st.members.is_reclaimed(block.member)
            || of_its_own && (block.lane != st.lane || self.order.identity(st.lane) != block.stream_id)
        {
            return None;
        }
        let size = r.size;
        match away {
            None => st.take_back_own(region, self.order.tag(st.lane), &self.index),
            Some(lane) => st.take_back(region, &[self.order.tag(lane)], &self.index),
        }
        Some(size)
    }

    /// What follows a free in a heap's own order.
    #[inline(always)]
    pub(super) fn freed(&self, heap: &Heap, mut st: Locked<'_, HeapState>, size: u64, stream: Option<StreamHandle>) {
        if st.has_run_empty() {
            self.emptied(heap, &mut st);
        }
        heap.publish(&st);
        // With one stream nobody ever waits; and a marker can be recorded only on a stream that the caller has named.
        let named = stream.is_some();
        if self.order.streams() > 1 && (st.batch.is_due(size, named) || (named && self.order.is_wanted(heap.lane))) {
            self.freed_batch(heap, st, stream);
        }
    }

    /// A batch of frees is full, or somebody waits for one of them.
    #[cold]
    fn freed_batch(&self, heap: &Heap, mut st: Locked<'_, HeapState>, stream: Option<StreamHandle>) {
        let Some(stream) = stream else { return };
        if self.order.take_want(heap.lane) {
            st.batch.mark_sooner();
        }
        drop(st);
        let _ = self.mark_stream(stream);
    }

    /// For a heap that [`HeapState::has_run_empty`].
    #[cold]
    pub(super) fn emptied(&self, heap: &Heap, st: &mut HeapState) {
        st.regions.tidy();
        self.maybe_start_afresh(heap, st);
        st.moves_when_empty = st.moves;
    }
}

/// The best ready region, cut to `size` bytes: the first step of the general way.
#[inline(never)]
fn cut_ready(st: &mut HeapState, size: u64) -> Option<u32> {
    if size <= SMALL_MAX {
        // The rounding overflowed.
        return None;
    }
    st.regions.tidy();
    st.cut_for(size, GRANULE, |_| true)
}

/// Blocks start in slots of their own, so larger requests than a slab serves need no rounding up to one.
const _: () = assert!(SMALL_MAX >= SLOT);

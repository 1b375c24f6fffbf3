//! Resizing a live allocation.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::alloc::Want;
use super::free::Found;
use super::heap::{Heap, HeapState};
use super::index::SLOT;
use super::members::Place;
use super::region::{GRANULE, MIN_SPLIT};
use super::slab;
use super::{too_large, AllocFlags, AllocRequest, Pool};
use crate::base::size::round_up;
use crate::base::{Error, Result, Status, StreamHandle};

impl Pool {
    /// Changes the size of an allocation for use on `stream`: in place where it can, by mapping more behind it or
    /// giving its tail back; else by a copy in stream order. On failure the allocation is as it was.
    pub fn realloc(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        let me = self.heap_for(stream)?;
        if size > self.props.total_bytes {
            return Err(if size > i64::MAX as u64 { too_large(size) } else { self.out_of_memory(size) });
        }
        let (old, align, tag, flags, scope) = match self.find(ptr, "realloc")? {
            Found::Pooled { heap, mut st, place: Place::Object { slab, number } } => {
                let (requested, class, old) = st
                    .slabs
                    .try_get(slab)
                    .map_or((0, 0, true), |s| (s.object(number).requested, s.class as usize, s.old));
                let usable = slab::class_size(class);
                let fits = size <= usable && slab::class_of(size) == class;
                if fits && heap.lane == me.lane && !old && !st.users.contains_key(&ptr) {
                    st.resize_object(slab, number, size);
                    return Ok(ptr);
                }
                let tag = st.tags.get(&ptr).copied().unwrap_or(0);
                let scope = st.scope_at(Place::Object { slab, number });
                // A new object has at least the alignment that the old one's class gave it.
                (u64::from(requested), (usable & usable.wrapping_neg()).min(SLOT), tag, AllocFlags::default(), scope)
            }
            Found::Dedicated => {
                let i = self.dedicated_info(ptr)?;
                if i.flags.0 & AllocFlags::EVICTABLE.0 != 0 {
                    let text = format!("{ptr:#x} is evictable and keeps its size; allocate another and copy");
                    return Err(Error::new(Status::Unsupported, text));
                }
                (i.requested, self.dedicated_align(ptr), i.tag, self.dedicated_flags(ptr), self.dedicated_scope(ptr))
            }
            Found::Pooled { heap, mut st, place: Place::Block { region } } => {
                let block = st.regions.block(region);
                let (requested, align, tag) = (block.requested, block.align, block.tag);
                if heap.lane == st.lane_here(me.lane) && self.resize(heap, &mut st, region, size, stream)? {
                    heap.publish(&st);
                    return Ok(ptr);
                }
                (requested, align, tag, AllocFlags::default(), st.scope_at(Place::Block { region }))
            }
        };
        // Not in the scope yet: until the old one is gone nobody else may free it.
        let new = self.malloc(&AllocRequest { size, align, stream, flags, tag, scope: None })?;
        let kept = old.min(size);
        let copied = match kept {
            0 => Ok(()),
            n => self.driver.copy_async(self.dev, new, ptr, n, stream),
        };
        match copied.and_then(|()| self.free(ptr, Some(stream))) {
            Ok(()) => {
                // It stays where it belongs, whichever arena is current now.
                if scope.is_some() {
                    self.keep(new, None, scope.as_ref());
                }
                Ok(new)
            }
            Err(e) => {
                self.free(new, Some(stream))?;
                Err(e)
            }
        }
    }

    /// Resizes a block where it is. `false` when it cannot be done there.
    fn resize(
        &self,
        heap: &Heap,
        st: &mut HeapState,
        region: u32,
        requested: u64,
        stream: StreamHandle,
    ) -> Result<bool> {
        let size = round_up(requested.max(SLOT), GRANULE).ok_or_else(|| too_large(requested))?;
        st.regions.tidy();
        let old = st.regions.get(region).size;
        let laid_out = st.is_laid_out();
        // What it happened to get more than it asked for differs between a recorded run and one that is laid out.
        if laid_out && Some(size) > round_up(st.regions.block(region).requested.max(SLOT), GRANULE) {
            return Ok(false);
        }
        if size > old {
            let want = Want { size, align: GRANULE, stream };
            if !self.grow_block(heap, st, region, size, want)? {
                return Ok(false);
            }
        } else if old - size >= MIN_SPLIT && !st.is_monotone() && !st.users.contains_key(&st.regions.get(region).addr) {
            // A block that other streams use, too, keeps its tail: they may not be done with it.
            let rest = st.regions.split(region, size);
            st.regions.make_ready(rest, self.order.tag(heap.lane));
        }
        let new = st.regions.get(region).size;
        let private = st.private.is_some();
        let b = st.regions.block_mut(region);
        let (before, member) = (b.requested, b.member);
        b.requested = requested;
        // It belongs to the stream it was resized for now, whichever it was made on.
        b.stream = stream;
        if !private {
            // In an arena it tells what was used before the heap changed hands.
            b.stream_id = self.order.identity(heap.lane);
        }
        b.lane = heap.lane;
        st.live_bytes = st.live_bytes + new - old;
        st.requested_bytes = st.requested_bytes + requested - before;
        st.members.resized(member, before, requested);
        Ok(true)
    }
}

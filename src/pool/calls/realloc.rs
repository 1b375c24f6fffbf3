//! Resizing a live allocation.

use crate::base::{Error, Result, Status, StreamHandle};
use crate::pool::calls::find::Found;
use crate::pool::heap::{block_size, slab, HeapState, Known, Place, GRANULE, MIN_SPLIT};
use crate::pool::memory::{Dedicated, SLOT};
use crate::pool::order::CONTEXT;
use crate::pool::state::Pool;
use crate::pool::types::{AllocFlags, AllocRequest, Slip, Want};
use std::any::Any;
use std::cell::Cell;

/// The outcome of [`Pool::realloc_here`].
#[derive(Debug)]
pub enum Resized {
    /// The allocation has its new size where it is.
    Here,
    /// The allocation has to move, which [`Pool::realloc_moving`] does.
    Not(Relocation),
}

/// What the copy must know of an allocation that has to move.
#[derive(Debug)]
pub struct Relocation {
    /// Bytes its contents may take.
    pub usable: u64,
    align: u64,
    tag: u64,
    /// Its flags, the pool's own included.
    pub flags: AllocFlags,
    /// What its receipt says of where the new one should be counted.
    pub source: Option<Box<dyn Any + Send>>,
}

impl Pool {
    /// Changes the size of an allocation for use on `stream`: in place if it can, by mapping more
    /// behind it or giving its tail back, and else by a copy in stream order. On failure the
    /// allocation is as it was.
    pub fn realloc(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        match self.realloc_here(ptr, size, stream)? {
            Resized::Here => Ok(ptr),
            Resized::Not(moving) => self.realloc_moving(ptr, size, stream, &moving, (None, None)),
        }
    }

    /// Like [`Self::realloc`], but only if the allocation can stay where it is. If it has a
    /// receipt, that is resized too; if the receipt's source has too few bytes for growth, the
    /// allocation cannot stay.
    pub fn realloc_here(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<Resized> {
        let me = self.heap_for(stream)?;
        self.check_size(size)?;
        let flags = AllocFlags::default();
        Ok(Resized::Not(match self.find(ptr, "realloc")? {
            Found::Pooled { mut st, place: place @ Place::Object { slab, number } } => {
                let class = st.slabs.try_get(slab).map_or(0, |s| s.class as usize);
                let usable = slab::class_size(class);
                let Known { requested, inherited, .. } = st.at(place);
                // An object of a larger class than it needs stays that.
                let own_class = slab::class_of(size) == class || slab::class_of(requested) != class;
                let fits = size <= usable && own_class;
                let stays = fits && st.lane == me.lane && !inherited && !st.users.contains_key(&ptr);
                if stays && st.resize_receipt(place, size).is_ok() {
                    st.receipt_made(place);
                    st.resize_object(slab, number, size);
                    return Ok(Resized::Here);
                }
                let tag = st.user_tags.get(&ptr).copied().unwrap_or(0);
                // The new object is aligned at least as the old one's class was.
                let align = (usable & usable.wrapping_neg()).min(SLOT);
                Relocation { usable, align, tag, flags, source: st.source_of(place) }
            }
            Found::Dedicated { core, info } => {
                let own = core.dedicated.get(&ptr);
                // A copy of imported memory would be seen by this process only.
                let imported = own.is_some_and(Dedicated::is_imported);
                if imported || info.flags.has(AllocFlags::EVICTABLE) {
                    let what = if imported { "imported" } else { "evictable" };
                    let text = format!("{ptr:#x} is {what} and keeps its size; allocate another and copy");
                    return Err(Error::new(Status::Unsupported, text));
                }
                let (align, flags) = own.map_or((1, flags), |d| (d.align, d.flags));
                let source = own.and_then(|d| d.receipt.as_ref()?.source());
                Relocation { usable: info.usable, align, tag: info.tag, flags, source }
            }
            Found::Pooled { mut st, place: Place::Block { region } } => {
                let block = st.regions.block(region);
                let (align, tag, usable) = (block.align, block.user_tag, st.regions.get(region).size);
                let lane = st.lane_here(me.lane);
                let here = st.lane == lane || self.is_shared(st.number);
                if here && self.resize(&mut st, region, size, (stream, lane))? {
                    return Ok(Resized::Here);
                }
                Relocation { usable, align, tag, flags, source: st.source_of(Place::Block { region }) }
            }
        }))
    }

    /// Resizes by a copy in stream order what [`Self::realloc_here`] could not resize. On failure
    /// the allocation is as it was.
    pub fn realloc_moving(
        &self,
        ptr: u64,
        size: u64,
        stream: StreamHandle,
        moving: &Relocation,
        (slip, spared): (Option<&Slip>, Option<&Cell<bool>>),
    ) -> Result<u64> {
        let Relocation { usable, align, tag, flags, .. } = *moving;
        // It joins no scope yet: until the old one is freed, no other thread may free the new one.
        let new = self.malloc(&AllocRequest { size, align, stream, flags, tag, scope: None, slip, spared })?;
        let copied = match usable.min(size) {
            0 => Ok(()),
            n => self.driver.copy_async(self.dev, new, ptr, n, stream),
        };
        // The allocation stays in its scope, whichever arena is current now. It may have been
        // promoted while memory was looked for.
        let scope = copied.and_then(|()| self.scope_containing(ptr));
        match scope.and_then(|scope| self.free(ptr, Some(stream)).map(|()| scope)) {
            Ok(scope) => {
                if scope.is_some() {
                    self.change_scope(new, None, scope.as_ref());
                }
                Ok(new)
            }
            Err(e) => {
                // In the order of the stream it was allocated on, even if something is wrong with
                // that.
                self.free(new, None)?;
                Err(e)
            }
        }
    }

    /// Resizes a block where it is. Returns `false` if that is impossible.
    fn resize(
        &self,
        st: &mut HeapState,
        region: u32,
        requested: u64,
        (stream, lane): (StreamHandle, u32),
    ) -> Result<bool> {
        let size = block_size(requested)?;
        st.regions.tidy();
        let old = st.regions.get(region).size;
        // A block may have more than was asked for, and how much more differs between a recorded
        // run and one that follows a layout.
        let (place, before) = (Place::Block { region }, st.regions.block(region).requested);
        if st.is_laid_out() && size > block_size(before)? {
            return Ok(false);
        }
        if st.resize_receipt(place, requested.max(before)).is_err() {
            return Ok(false);
        }
        if size > old {
            let want = Want::new(size, GRANULE, (stream, lane));
            let grown = self.grow_block(st, region, want);
            if !matches!(grown, Ok(true)) {
                st.undo_receipt_growth(place);
                return grown;
            }
        } else if old - size >= MIN_SPLIT && !st.is_monotone() && !st.users.contains_key(&st.regions.get(region).addr) {
            // A block that other streams use too keeps its tail: they may still be using it.
            let before_the_capture = st.private.is_some() && st.regions.block(region).stream_id != st.identity;
            let rest = st.regions.split(region, size);
            // A graph is launched at any time, not only after what its stream did before.
            let tag = self.order.tag(if before_the_capture { CONTEXT } else { lane });
            // No heap has the context's lane.
            if st.lane == tag.lane() {
                st.regions.make_ready(rest, tag);
            } else {
                st.wait_for(rest, &[tag]);
            }
        }
        // The receipt of a block that has grown has this size already; shrinking one cannot fail.
        let _ = st.resize_receipt(place, requested);
        st.receipt_made(place);
        let new = st.regions.get(region).size;
        self.index.block_resized(st.regions.get(region).addr, old, new);
        let private = st.private.is_some();
        let b = st.regions.block_mut(region);
        let member = b.member;
        b.requested = requested;
        // From now on it belongs to the stream it was resized for, not to the one it was made on.
        b.stream = stream;
        if !private {
            // In an arena, `stream_id` tells which blocks were used before the heap changed hands.
            b.stream_id = self.order.identity(lane);
        }
        b.lane = lane;
        st.live_bytes = st.live_bytes + new - old;
        st.most_live = st.most_live.max(st.live_bytes);
        st.requested_bytes = st.requested_bytes + requested - before;
        st.members.resized(member, before, requested);
        Ok(true)
    }
}

//! Freeing, resizing, and questions about live allocations.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::alloc::Want;
use super::heap::{Heap, HeapState};
use super::heap_lock::Locked;
use super::index::{Entry, SLOT};
use super::order::{Tag, CONTEXT};
use super::region::{State, GRANULE, MIN_SPLIT};
use super::slab;
use super::{lock, too_large, AllocFlags, AllocInfo, AllocRequest, Pool};
use crate::base::size::round_up;
use crate::base::{Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering::Relaxed;

/// A live allocation, found and locked.
enum Found<'a> {
    Block { heap: &'a Heap, st: Locked<'a, HeapState>, region: u32 },
    Object { heap: &'a Heap, st: Locked<'a, HeapState>, slab: u32, number: u32 },
    Dedicated,
}

/// Notes that `lane` uses the block at `ptr`. Its own lane counts too: by the time of the free that may have gone to
/// another stream, or the free may name another.
fn note_user(st: &mut HeapState, ptr: u64, lane: u32) {
    let users = st.users.entry(ptr).or_default();
    if !users.contains(&lane) {
        users.push(lane);
    }
}

impl Pool {
    /// Frees `ptr`: in the order of `stream`, or of the stream it was allocated on when that is `None`.
    #[inline]
    pub fn free(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        match self.free_hit(ptr, stream) {
            true => Ok(()),
            false => self.free_anyhow(ptr, stream),
        }
    }

    /// As [`Self::free`], for one that was no hit.
    pub fn free_anyhow(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        // The freeing stream's lane comes first: finding it may take the registry's lock, which ranks below a heap's.
        // Taken from the thread's cache it may be stale, which is harmless as long as no marker is recorded for it:
        // whoever finds out that the handle has a new owner puts a barrier behind all of the lane's frees so far.
        let lane = stream.map(|s| self.lane_for(s)).transpose()?;
        match self.find(ptr, "free")? {
            Found::Dedicated => self.free_dedicated(ptr, stream)?,
            Found::Block { heap, mut st, region } => {
                self.bring_up_to_date(&mut st);
                let (block, size) = (st.regions.block(region), st.regions.get(region).size);
                let tag = match lane {
                    Some(lane) => self.order.tag(st.lane_here(lane)),
                    None => self.tag_of(block.lane, block.stream_id),
                };
                let users = st.take_users(ptr);
                let own = st.may_reuse(ptr) && tag.lane() == heap.lane && users.iter().all(|&u| u == heap.lane);
                if own || users.is_empty() {
                    st.take_back(region, &[tag], own, &self.index);
                } else {
                    st.take_back(region, &self.tags(tag, &users), false, &self.index);
                }
                if !users.is_empty() {
                    // It may have kept more than its size needs when it shrank: not for the next request of that size.
                    st.regions.tidy();
                }
                self.after_free(heap, st, size, own, tag.lane(), stream, &users);
            }
            Found::Object { heap, mut st, slab, number } => {
                self.bring_up_to_date(&mut st);
                let (old, size) =
                    st.slabs.try_get(slab).map_or((false, 0), |s| (s.old, slab::class_size(s.class as usize)));
                let tag =
                    self.order.tag(lane.map(|l| st.lane_here(l)).unwrap_or(if old { CONTEXT } else { heap.lane }));
                let users = st.take_users(ptr);
                // An old slab goes back as a whole, in the context's order, so its objects wait for nobody.
                let own =
                    st.may_reuse(ptr) && (tag.lane() == heap.lane || old) && users.iter().all(|&u| u == heap.lane);
                if own || users.is_empty() {
                    st.take_back_object(slab, number, &[tag], own, &self.order, &self.index);
                } else {
                    let tags = self.tags(tag, &users);
                    st.take_back_object(slab, number, &tags, false, &self.order, &self.index);
                }
                self.after_free(heap, st, size, own, tag.lane(), stream, &users);
            }
        }
        Ok(())
    }

    /// If the heap's handle is just going to another stream on another thread, that one has not come by here yet.
    fn bring_up_to_date(&self, st: &mut HeapState) {
        if !st.is_current(&self.order) {
            st.retire(&self.order, &self.index);
        }
    }

    /// When an allocation made on a stream was freed in that stream's order: now, if the stream is still the lane's.
    pub(super) fn tag_of(&self, lane: u32, stream_id: u64) -> Tag {
        // The identity is read after the epoch: whoever sees an epoch behind a barrier sees the new identity.
        let tag = self.order.tag(lane);
        match self.order.identity(lane) == stream_id {
            true => tag,
            false => self.order.tag(CONTEXT),
        }
    }

    fn tags(&self, free: Tag, users: &[u32]) -> Vec<Tag> {
        users.iter().copied().filter(|&u| u != free.lane()).map(|l| self.order.tag(l)).chain([free]).collect()
    }

    /// What follows a free that is done: it does not fail any more, and what is missed here is made up for later.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn after_free(
        &self,
        heap: &Heap,
        mut st: Locked<'_, HeapState>,
        size: u64,
        own: bool,
        lane: u32,
        stream: Option<StreamHandle>,
        users: &[u32],
    ) {
        if own {
            self.freed(heap, st, size, stream);
        } else {
            if st.live_bytes == 0 && st.moves > 0 {
                self.emptied(heap, &mut st);
            }
            heap.publish(&st);
            drop(st);
            self.mark_free(size, lane, stream, users);
        }
        if self.options.trim_threshold > 0 {
            self.trim_above_threshold(heap, size, stream);
        }
    }

    /// Records the markers for memory that another heap waits for: on every stream that also used it, and on the freeing
    /// stream when a batch is full or somebody waits. Only streams the caller vouches for are touched.
    fn mark_free(&self, size: u64, lane: u32, stream: Option<StreamHandle>, users: &[u32]) {
        for &user in users {
            let _ = self.mark_user(user);
        }
        let Some(stream) = stream else { return };
        if !users.is_empty() || self.order.due(lane, size) || self.order.take_want(lane) {
            let _ = self.mark_stream(stream);
        }
    }

    /// Records a marker on a stream named to `record_stream`, whose caller keeps it alive until the free. Where it
    /// cannot be named from here (another thread's own stream) the context's next marker does.
    pub(super) fn mark_user(&self, user: u32) -> Result<()> {
        let handle = self.order.stream(user);
        if self.driver.stream_id(self.dev, handle)? == self.order.identity(user) {
            self.order.mark(&*self.driver, user, handle)?;
        }
        Ok(())
    }

    /// Records a marker on a stream that the caller of this API call named.
    pub(super) fn mark_stream(&self, stream: StreamHandle) -> Result<()> {
        // The identity matters: the marker must be of the lane's own stream.
        let heap = self.heap_for(stream)?;
        self.order.mark(&*self.driver, heap.lane, stream).map(|_| ())
    }

    /// `GPUMEM_TRIM_THRESHOLD`: gives memory back when more than that is unused. Not on every free: only once a tenth of
    /// the threshold has been freed since the last try.
    #[cold]
    fn trim_above_threshold(&self, heap: &Heap, size: u64, stream: Option<StreamHandle>) {
        let threshold = self.options.trim_threshold;
        let freed = self.counters.freed_since_trim.fetch_add(size, Relaxed) + size;
        if heap.free.load(Relaxed) <= threshold || freed < threshold / 10 {
            return;
        }
        self.counters.freed_since_trim.store(0, Relaxed);
        if let Some(s) = stream {
            let _ = self.mark_stream(s);
        }
        // What cannot be given back now goes with a later free.
        let _ = self.release_free(self.live_now() + threshold);
    }

    /// Finds a live allocation that starts at `ptr` and locks its heap.
    fn find(&self, ptr: u64, verb: &str) -> Result<Found<'_>> {
        // The index is read with no lock held: what it says is checked under the lock, and read again if it changed.
        for _ in 0..64 {
            let entry = self.index.get(ptr);
            match entry {
                Entry::Block { heap, region } => {
                    let Some(heap) = self.heap(heap) else { break };
                    let st = heap.lock_quick();
                    if st.regions.try_get(region).is_some_and(|r| r.addr == ptr && r.state == State::Live) {
                        return Ok(Found::Block { heap, st, region });
                    }
                }
                Entry::Slab { heap, slab } => {
                    let Some(heap) = self.heap(heap) else { break };
                    let st = heap.lock_quick();
                    let number = st.slabs.try_get(slab).filter(|s| s.base <= ptr).and_then(|s| s.object_at(ptr));
                    if let (Some(number), Some(s)) = (number, st.slabs.try_get(slab)) {
                        if s.is_live(number) {
                            return Ok(Found::Object { heap, st, slab, number });
                        }
                        if self.index.get(ptr) == entry {
                            return Err(self.double_free(ptr, verb));
                        }
                    }
                }
                Entry::Dedicated if lock(&*self.core).dedicated.contains_key(&ptr) => return Ok(Found::Dedicated),
                Entry::Freed { offset } if offset == ptr % SLOT => return Err(self.double_free(ptr, verb)),
                _ => break,
            }
            if self.index.get(ptr) == entry {
                break;
            }
        }
        self.counters.unknown_pointers.fetch_add(1, Relaxed);
        let text = match self.info_containing(ptr) {
            Ok(i) => format!(
                "{verb}: {ptr:#x} is {} bytes inside the allocation at {:#x}; pass its start",
                ptr - i.base,
                i.base
            ),
            Err(_) => format!("{verb}: {ptr:#x} is not a live allocation of device {}", self.dev),
        };
        Err(Error::new(Status::UnknownPointer, text))
    }

    fn double_free(&self, ptr: u64, verb: &str) -> Error {
        self.counters.double_frees.fetch_add(1, Relaxed);
        Error::new(Status::DoubleFree, format!("{verb}: {ptr:#x} was freed already and has not been handed out since"))
    }

    /// The allocation is also used on `stream`, which stays alive until the allocation is freed.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let lane = self.heap_for(stream)?.lane;
        match self.find(ptr, "record_stream")? {
            Found::Dedicated => {
                if let Some(d) = lock(&*self.core).dedicated.get_mut(&ptr) {
                    d.add_user(lane);
                }
            }
            Found::Block { mut st, .. } | Found::Object { mut st, .. } => note_user(&mut st, ptr, lane),
        }
        Ok(())
    }

    /// Facts about the allocation that starts at `ptr`.
    pub fn info(&self, ptr: u64) -> Result<AllocInfo> {
        match self.find(ptr, "info")? {
            Found::Block { st, region, .. } => Ok(self.block_info(&st, region)),
            Found::Object { heap, st, slab, number } => Ok(self.object_info(heap, &st, slab, number)),
            Found::Dedicated => self.dedicated_info(ptr),
        }
    }

    /// Facts about the live allocation that contains `ptr`.
    pub fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        if let Ok(info) = self.dedicated_info(ptr) {
            return Ok(info);
        }
        let inside = |i: AllocInfo| (i.base <= ptr && ptr - i.base < i.usable.max(1)).then_some(i);
        let found = match self.index.find_back(ptr, self.props.total_bytes) {
            Some(Entry::Block { heap, region }) => self.heap(heap).and_then(|heap| {
                let st = heap.lock();
                let r = st.regions.try_get(region).filter(|r| r.state == State::Live)?;
                // The slot of `ptr` may hold the start of a later block: then the one before it contains `ptr`.
                let at = if r.addr > ptr { r.prev } else { region };
                st.regions.try_get(at).filter(|r| r.state == State::Live)?;
                inside(self.block_info(&st, at))
            }),
            Some(Entry::Slab { heap, slab }) => self.heap(heap).and_then(|heap| {
                let st = heap.lock();
                let s = st.slabs.try_get(slab).filter(|s| s.base <= ptr)?;
                let number = s.object_containing(ptr).filter(|&n| s.is_live(n))?;
                inside(self.object_info(heap, &st, slab, number))
            }),
            _ => None,
        };
        found.ok_or_else(|| {
            Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no live allocation of device {}", self.dev))
        })
    }

    fn block_info(&self, st: &HeapState, region: u32) -> AllocInfo {
        let (r, b) = (st.regions.get(region), st.regions.block(region));
        AllocInfo {
            base: r.addr,
            requested: b.requested,
            usable: r.size,
            device: self.dev,
            stream: b.stream,
            id: b.id,
            tag: b.tag,
            flags: AllocFlags::default(),
        }
    }

    fn object_info(&self, heap: &Heap, st: &HeapState, slab: u32, number: u32) -> AllocInfo {
        let s = st.slabs.try_get(slab);
        let object = s.map(|s| s.object(number)).unwrap_or_default();
        AllocInfo {
            base: s.map_or(0, |s| s.addr_of(number)),
            requested: u64::from(object.requested),
            usable: s.map_or(0, |s| slab::class_size(s.class as usize)),
            device: self.dev,
            stream: self.order.stream(heap.lane),
            id: object.id,
            tag: s.map_or(0, |s| st.tags.get(&s.addr_of(number)).copied().unwrap_or(0)),
            flags: AllocFlags::default(),
        }
    }

    /// Changes the size of an allocation for use on `stream`: in place where it can, by mapping more behind it or
    /// giving its tail back; else by a copy in stream order. On failure the allocation is as it was.
    pub fn realloc(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        let me = self.heap_for(stream)?;
        if size > self.props.total_bytes {
            return Err(if size > i64::MAX as u64 { too_large(size) } else { self.out_of_memory(size) });
        }
        let (old, align, tag, flags) = match self.find(ptr, "realloc")? {
            Found::Object { heap, mut st, slab, number } => {
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
                // A new object has at least the alignment that the old one's class gave it.
                (u64::from(requested), (usable & usable.wrapping_neg()).min(SLOT), tag, AllocFlags::default())
            }
            Found::Dedicated => {
                let i = self.dedicated_info(ptr)?;
                (i.requested, self.dedicated_align(ptr), i.tag, i.flags)
            }
            Found::Block { heap, mut st, region } => {
                let block = st.regions.block(region);
                let (requested, align, tag) = (block.requested, block.align, block.tag);
                if heap.lane == me.lane && self.resize(heap, &mut st, region, size, stream)? {
                    heap.publish(&st);
                    return Ok(ptr);
                }
                (requested, align, tag, AllocFlags::default())
            }
        };
        let new = self.malloc(&AllocRequest { size, align, stream, flags, tag })?;
        let kept = old.min(size);
        let copied = match kept {
            0 => Ok(()),
            n => self.driver.copy_async(self.dev, new, ptr, n, stream),
        };
        match copied.and_then(|()| self.free(ptr, Some(stream))) {
            Ok(()) => Ok(new),
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
        if size > old {
            let want = Want { size, align: GRANULE, stream };
            if st.is_laid_out() || !self.grow_block(heap, st, region, size, want)? {
                return Ok(false);
            }
        } else if old - size >= MIN_SPLIT && !st.is_monotone() && !st.users.contains_key(&st.regions.get(region).addr) {
            // A block that other streams use, too, keeps its tail: they may not be done with it.
            let rest = st.regions.split(region, size);
            st.regions.make_ready(rest, self.order.tag(heap.lane));
        }
        let new = st.regions.get(region).size;
        let b = st.regions.block_mut(region);
        let before = b.requested;
        b.requested = requested;
        // It belongs to the stream it was resized for now, whichever it was made on.
        b.stream = stream;
        b.stream_id = self.order.identity(heap.lane);
        b.lane = heap.lane;
        st.live_bytes = st.live_bytes + new - old;
        st.requested_bytes = st.requested_bytes + requested - before;
        Ok(true)
    }
}

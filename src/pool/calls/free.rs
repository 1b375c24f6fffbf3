//! Freeing.
//!
//! Most frees are hits: a block or object goes back to the stream whose heap it is in, with one
//! uncontended lock and no driver call. A free in the order of another stream than the heap's is
//! nearly as short. A hit that turns out to be none does nothing and goes to [`Pool::free_anyhow`],
//! which defines what a free means.

use crate::base::{Error, Result, Status, StreamHandle};
use crate::pool::calls::find::Found;
use crate::pool::heap::{Heap, HeapState, Known, Locked, Place};
use crate::pool::memory::Entry;
use crate::pool::order::CONTEXT;
use crate::pool::state::Pool;
use std::sync::atomic::Ordering::Relaxed;

/// What the caller must know about a block or object that was just taken back.
pub(crate) struct GivenUp {
    /// Bytes.
    pub(crate) size: u64,
    /// Whether the heap's own stream may use it at once.
    pub(crate) own: bool,
    /// The lane in whose order it was freed.
    pub(crate) lane: u32,
    /// Other lanes that used it.
    pub(crate) users: Vec<u32>,
}

impl Pool {
    /// Frees `ptr` in the order of `stream`, or if that is `None`, of the stream it was allocated
    /// on.
    #[inline]
    pub fn free(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        match self.free_hit(ptr, stream) {
            true => Ok(()),
            false => self.free_anyhow(ptr, stream),
        }
    }

    /// Like [`Self::free`], after [`Self::free_hit`] has returned `false`.
    pub fn free_anyhow(&self, ptr: u64, stream: Option<StreamHandle>) -> Result<()> {
        // The freeing stream's lane comes first: finding it may take the registry's lock, which
        // comes before a heap's. A lane from the thread's cache may be stale. That is harmless as
        // long as no marker is recorded for it: the thread that finds out that the handle has a new
        // owner puts a barrier behind all of the lane's frees so far.
        let by = self.freeing(stream)?;
        let found = self.find(ptr, "free").inspect_err(|e| self.count_refused(e))?;
        self.free_found(found, by, None).map(|_| ())
    }

    /// Like [`Self::free`], but only if the live allocation that starts at `ptr` has this id.
    /// Returns whether it had. A pointer whose allocation is gone is no error, whatever has become
    /// of its address: a finalizer cannot know what an arena has freed before it.
    pub fn free_id(&self, ptr: u64, id: u64, stream: Option<StreamHandle>) -> Result<bool> {
        let by = self.freeing(stream)?;
        let freed = match self.look(ptr) {
            Ok(found) if !found.is_reclaimed() => self.free_found(found, by, Some(id))?,
            _ => false,
        };
        if !freed {
            self.counters.late_frees.fetch_add(1, Relaxed);
        }
        Ok(freed)
    }

    /// The stream that a free names, and its lane.
    pub(crate) fn freeing(&self, stream: Option<StreamHandle>) -> Result<Option<(StreamHandle, u32)>> {
        stream.map(|s| Ok((s, self.lane_for(s)?))).transpose()
    }

    /// Frees what was found, in the order of the stream and lane `by`; if that is `None`, in the
    /// order of the stream it was allocated on. With an `id`, only if it has that. Returns whether
    /// it did.
    pub(crate) fn free_found(
        &self,
        found: Found<'_>,
        by: Option<(StreamHandle, u32)>,
        id: Option<u64>,
    ) -> Result<bool> {
        let (stream, lane) = by.unzip();
        let (mut st, place) = match found {
            Found::Dedicated { core, info } => {
                drop(core);
                return self.free_dedicated(info.base, stream, id);
            }
            Found::Pooled { st, place } => (st, place),
        };
        if id.is_some_and(|id| st.at(place).id != id) {
            return Ok(false);
        }
        let heap = st.heap();
        self.bring_up_to_date(&mut st);
        let GivenUp { size, own, lane, users } = self.give_up(&mut st, place, lane);
        // The free is done. Nothing here can fail it; what is missed is made up for later.
        if own {
            self.freed(st, size, stream);
        } else {
            self.freed_away(st, size, lane, stream, &users);
        }
        if self.options.trim_threshold > 0 {
            self.trim_above_threshold(heap, size, stream);
        }
        Ok(true)
    }

    /// Takes a live block or object back in the order of `lane`, or if that is `None`, of the
    /// stream it was allocated on.
    pub(crate) fn give_up(&self, st: &mut HeapState, place: Place, lane: Option<u32>) -> GivenUp {
        let Known { addr, size, inherited, .. } = st.at(place);
        let mut users = st.take_users(addr);
        self.bring_near(addr, &mut users);
        let tag = match place {
            Place::Block { region } => {
                let block = st.regions.block(region);
                // Used before the heap changed hands (see `graph/users.rs`), or lent by a heap of
                // captures: no capture may use it before the context has passed that.
                let before = st.private.is_some() && block.stream_id != st.identity;
                let lent = st.of_captures && st.private.is_none() && block.lane != st.lane;
                match lane {
                    Some(lane) if before || (lent && lane == st.lane) => self.order.tag(CONTEXT),
                    Some(lane) => self.order.tag(st.lane_here(lane)),
                    None => self.tag_of(block.lane, block.stream_id),
                }
            }
            Place::Object { .. } => match lane {
                Some(lane) if !inherited || st.private.is_none() => self.order.tag(st.lane_here(lane)),
                None if !inherited => self.order.tag(st.lane),
                _ => self.order.tag(CONTEXT),
            },
        };
        st.note_death(addr);
        let own = !st.is_monotone() && tag.lane() == st.lane && users.iter().all(|&u| u == st.lane);
        if own {
            st.take_back_own(place, || tag, &self.order, &self.index);
        } else if users.is_empty() {
            st.take_back(place, &[tag], &self.order, &self.index);
        } else {
            st.take_back(place, &self.tags(tag, &users), &self.order, &self.index);
        }
        if !users.is_empty() && matches!(place, Place::Block { .. }) {
            // The block may have kept a tail when it shrank. The quick list must not give it to the
            // next request of its size.
            st.regions.tidy();
        }
        GivenUp { size, own, lane: tag.lane(), users }
    }

    /// If the heap's handle has just gone to another stream on another thread, that thread may not
    /// have been here yet: then this one retires the heap.
    pub(crate) fn bring_up_to_date(&self, st: &mut HeapState) {
        if !st.is_current(&self.order) {
            st.retire(&self.order, &self.index, false);
        }
    }

    /// What follows a free whose memory the heap's own stream must wait for.
    #[inline]
    pub(crate) fn freed_away(
        &self,
        mut st: Locked<'_>,
        size: u64,
        lane: u32,
        stream: Option<StreamHandle>,
        users: &[u32],
    ) {
        // Memory that is joined with its neighbours before it is wanted serves larger requests,
        // without asking the device then.
        if st.has_settled(lane, &self.order) {
            st.settle(&self.order, &self.index);
        }
        self.end_free(&mut st);
        drop(st);
        self.mark_free(size, lane, stream, users);
    }

    /// `GPUMEM_TRIM_THRESHOLD`: gives memory back if the heap has more than that free. It tries
    /// only once a tenth of the threshold has been freed since the last try.
    #[cold]
    pub(crate) fn trim_above_threshold(&self, heap: &Heap, size: u64, stream: Option<StreamHandle>) {
        let threshold = self.options.trim_threshold;
        let freed = self.counters.freed_since_trim.fetch_add(size, Relaxed) + size;
        if heap.free.load(Relaxed) <= threshold || freed < threshold / 10 {
            return;
        }
        self.counters.freed_since_trim.store(0, Relaxed);
        let _ = match stream {
            Some(s) => self.mark_stream(s),
            None => self.order.mark_context_and_poll(None),
        };
        // What cannot be given back now is given back with a later free.
        let _changing = self.change();
        let _ = self.release_free(self.live_now() + threshold);
    }

    /// Counts a free that was refused.
    fn count_refused(&self, e: &Error) {
        match e.status {
            Status::DoubleFree => self.counters.double_frees.fetch_add(1, Relaxed),
            _ => self.counters.unknown_pointers.fetch_add(1, Relaxed),
        };
    }

    /// Frees in the order of `stream`, or if that is `None`, of the stream the block was allocated
    /// on, if that is a hit. If it returns `false`, nothing has happened.
    #[inline]
    pub fn free_hit(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        // Read without a lock; checked under the heap's.
        let entry = self.index.get(ptr);
        let Some(heap) = entry.heap().and_then(|n| self.heap(n)) else { return false };
        if self.options.trim_threshold > 0 {
            return false;
        }
        if let Some(s) = stream {
            // The cached lane, without looking at the stream: see `free_anyhow`.
            match self.known_lane(s) {
                Some(lane) if lane == heap.lane => {}
                Some(lane) => return self.free_away(heap, entry, ptr, lane, s),
                None => return false,
            }
        }
        match entry {
            Entry::Slab { .. } => self.free_own(heap, entry, ptr, stream),
            Entry::Block { region, .. } => self.free_large(heap, region, ptr, stream),
            _ => false,
        }
    }

    #[inline(always)]
    fn free_own(&self, heap: &Heap, entry: Entry, ptr: u64, stream: Option<StreamHandle>) -> bool {
        let Some(mut st) = self.try_lock_plain(heap) else { return false };
        let Some(size) = self.free_plain(&mut st, entry, ptr, stream.is_none(), None) else { return false };
        self.freed(st, size, stream);
        true
    }

    /// The large half of [`Self::free_hit`], in a frame of its own: in one frame, each half would
    /// keep in memory what the other needs in registers.
    #[inline(never)]
    fn free_large(&self, heap: &Heap, region: u32, ptr: u64, stream: Option<StreamHandle>) -> bool {
        self.free_own(heap, Entry::Block { heap: heap.number, region }, ptr, stream)
    }

    /// Like [`Self::free_hit`], in the order of `stream`, whose lane is not the heap's.
    #[inline(never)]
    fn free_away(&self, heap: &Heap, entry: Entry, ptr: u64, lane: u32, stream: StreamHandle) -> bool {
        let Some(mut st) = self.try_lock_plain(heap) else { return false };
        let Some(size) = self.free_plain(&mut st, entry, ptr, false, Some(lane)) else { return false };
        self.freed_away(st, size, lane, Some(stream), &[]);
        true
    }

    /// The heap's lock if it is free and nothing about the heap's live blocks is special.
    #[inline(always)]
    fn try_lock_plain<'a>(&self, heap: &'a Heap) -> Option<Locked<'a>> {
        let st = heap.try_lock_quick()?;
        if st.users.is_empty() && st.is_current(&self.order) && !st.of_captures {
            return Some(st);
        }
        None
    }

    /// Frees the live block or object at `ptr` in a heap in which nothing is special, in the order
    /// of the lane `away`, or if that is `None`, of the heap's own lane. `of_its_own`: in the order
    /// of the stream it was allocated on. Returns its bytes.
    #[inline(always)]
    fn free_plain(
        &self,
        st: &mut HeapState,
        entry: Entry,
        ptr: u64,
        of_its_own: bool,
        away: Option<u32>,
    ) -> Option<u64> {
        let (place, Known { size, member, inherited, .. }) = st.find(entry, ptr)?;
        if inherited || st.members.is_reclaimed(member) {
            return None;
        }
        self.take_back_plain(st, place, of_its_own, away).then_some(size)
    }

    /// Like [`Self::free_plain`], for a place that was found and is not inherited. Returns whether
    /// it was done.
    #[inline(always)]
    pub(crate) fn take_back_plain(
        &self,
        st: &mut HeapState,
        place: Place,
        of_its_own: bool,
        away: Option<u32>,
    ) -> bool {
        let lane = st.lane;
        if let (Place::Block { region }, true) = (place, of_its_own) {
            let block = st.regions.block(region);
            if block.lane != lane || self.order.identity(lane) != block.stream_id {
                return false;
            }
        }
        match away {
            None => st.take_back_own(place, || self.order.tag(lane), &self.order, &self.index),
            Some(lane) => st.take_back(place, &[self.order.tag(lane)], &self.order, &self.index),
        }
        true
    }

    /// What follows a free in a heap's own order.
    #[inline(always)]
    pub(crate) fn freed(&self, mut st: Locked<'_>, size: u64, stream: Option<StreamHandle>) {
        self.end_free(&mut st);
        // With one stream nobody waits for a marker. With more, one can be recorded only on a
        // stream that the caller has named.
        let named = stream.is_some();
        if self.order.streams() > 1 && (st.batch.is_due(size, named) || (named && self.order.is_asked(st.lane))) {
            self.freed_batch(st, stream);
        }
    }

    /// Records a marker: a batch of frees is full, or another heap waits for one of them.
    #[cold]
    fn freed_batch(&self, mut st: Locked<'_>, stream: Option<StreamHandle>) {
        let Some(stream) = stream else { return };
        if self.order.take_asked(st.lane) {
            st.batch.mark_sooner();
        }
        drop(st);
        let _ = self.mark_stream(stream);
    }

    /// Follows frees, before the heap's lock is given up.
    #[inline(always)]
    pub(crate) fn end_free(&self, st: &mut HeapState) {
        if st.has_run_low() {
            self.ran_low(st);
        }
    }

    /// For a heap of which [`HeapState::has_run_low`] is true.
    #[cold]
    fn ran_low(&self, st: &mut HeapState) {
        st.regions.tidy();
        self.maybe_start_afresh(st);
        st.low.note_reached(st.live_bytes, st.moves);
    }
}

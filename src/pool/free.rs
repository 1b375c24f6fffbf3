//! Freeing, and questions about live allocations.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, HeapState};
use super::heap_lock::Locked;
use super::index::{Entry, SLOT};
use super::members::Place;
use super::order::{Tag, CONTEXT};
use super::region::State;
use super::slab;
use super::{lock, AllocFlags, AllocInfo, Pool};
use crate::base::{Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering::Relaxed;

/// A live allocation, found and locked.
pub(super) enum Found<'a> {
    Pooled { heap: &'a Heap, st: Locked<'a, HeapState>, place: Place },
    Dedicated,
}

/// What is to be known about a block or object that was just taken back.
pub(super) struct GivenUp {
    /// Bytes.
    pub(super) size: u64,
    /// Whether it is ready for its heap's own stream.
    own: bool,
    /// The lane in whose order it was freed.
    lane: u32,
    /// Other lanes that used it.
    pub(super) users: Vec<u32>,
}

/// Why no live allocation starts at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    Unknown,
    /// One did, the last time that the address was handed out.
    Freed,
    /// One does, but only so that it is not handed out again yet.
    Reclaimed,
}

impl Found<'_> {
    fn is_reclaimed(&self) -> bool {
        match self {
            Found::Pooled { st, place, .. } => st.is_reclaimed(*place),
            Found::Dedicated => false,
        }
    }
}

/// Notes that `lane` uses the block at `ptr`. Its own lane counts too: by the time of the free that may have gone to
/// another stream, or the free may name another.
pub(super) fn note_user(st: &mut HeapState, ptr: u64, lane: u32) {
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
        let found = self.find(ptr, "free").inspect_err(|e| self.count_refused(e))?;
        self.free_found(ptr, found, lane, stream, None).map(|_| ())
    }

    /// As [`Self::free`], if the live allocation that starts at `ptr` is the one with this id; whether it was. A pointer
    /// whose allocation is gone is no error, whatever has become of the address: that is what a finalizer needs to know
    /// of what an arena may have freed before it.
    pub fn free_id(&self, ptr: u64, id: u64, stream: Option<StreamHandle>) -> Result<bool> {
        let lane = stream.map(|s| self.lane_for(s)).transpose()?;
        let freed = match self.look(ptr) {
            Ok(found) if !found.is_reclaimed() => self.free_found(ptr, found, lane, stream, Some(id))?,
            _ => false,
        };
        if !freed {
            self.counters.late_frees.fetch_add(1, Relaxed);
        }
        Ok(freed)
    }

    /// Frees what was found, if its id is the one asked for; whether it was.
    pub(super) fn free_found(
        &self,
        ptr: u64,
        found: Found<'_>,
        lane: Option<u32>,
        stream: Option<StreamHandle>,
        id: Option<u64>,
    ) -> Result<bool> {
        let (heap, mut st, place) = match found {
            Found::Dedicated => return self.free_dedicated(ptr, stream, id),
            Found::Pooled { heap, st, place } => (heap, st, place),
        };
        if id.is_some_and(|id| st.id_at(place) != id) {
            return Ok(false);
        }
        self.bring_up_to_date(&mut st);
        let freed = self.give_up(heap, &mut st, ptr, place, lane);
        self.after_free(heap, st, freed, stream);
        Ok(true)
    }

    /// Takes a live block or object back: in the order of `lane`, or of the stream it was allocated on.
    pub(super) fn give_up(
        &self,
        heap: &Heap,
        st: &mut HeapState,
        ptr: u64,
        place: Place,
        lane: Option<u32>,
    ) -> GivenUp {
        let mut users = st.take_users(ptr);
        self.bring_near(ptr, &mut users);
        match place {
            Place::Block { region } => {
                let (block, size) = (st.regions.block(region), st.regions.get(region).size);
                let tag = match lane {
                    // Used before the heap changed hands: see `claims`.
                    Some(_) if st.private.is_some() && block.stream_id != st.identity => self.order.tag(CONTEXT),
                    Some(lane) => self.order.tag(st.lane_here(lane)),
                    None => self.tag_of(block.lane, block.stream_id),
                };
                let own = st.may_reuse(ptr) && tag.lane() == heap.lane && users.iter().all(|&u| u == heap.lane);
                if own {
                    st.take_back_own(region, tag, &self.index);
                } else if users.is_empty() {
                    st.take_back(region, &[tag], &self.index);
                } else {
                    st.take_back(region, &self.tags(tag, &users), &self.index);
                }
                if !users.is_empty() {
                    // It may have kept more than its size needs when it shrank: not for the next request of that size.
                    st.regions.tidy();
                }
                GivenUp { size, own, lane: tag.lane(), users }
            }
            Place::Object { slab, number } => {
                let (old, size) =
                    st.slabs.try_get(slab).map_or((false, 0), |s| (s.old, slab::class_size(s.class as usize)));
                let tag =
                    self.order.tag(lane.map(|l| st.lane_here(l)).unwrap_or(if old { CONTEXT } else { heap.lane }));
                // An old slab goes back as a whole, in the context's order, so its objects wait for nobody.
                let own =
                    st.may_reuse(ptr) && (tag.lane() == heap.lane || old) && users.iter().all(|&u| u == heap.lane);
                if own {
                    st.take_back_own_object(slab, number, &self.order, &self.index);
                } else if users.is_empty() {
                    st.take_back_object(slab, number, &[tag], &self.order);
                } else {
                    st.take_back_object(slab, number, &self.tags(tag, &users), &self.order);
                }
                GivenUp { size, own, lane: tag.lane(), users }
            }
        }
    }

    /// If the heap's handle is just going to another stream on another thread, that one has not come by here yet.
    pub(super) fn bring_up_to_date(&self, st: &mut HeapState) {
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
    #[inline]
    fn after_free(&self, heap: &Heap, st: Locked<'_, HeapState>, freed: GivenUp, stream: Option<StreamHandle>) {
        let GivenUp { size, own, lane, users } = freed;
        if own {
            self.freed(heap, st, size, stream);
        } else {
            self.freed_away(heap, st, size, lane, stream, &users);
        }
        if self.options.trim_threshold > 0 {
            self.trim_above_threshold(heap, size, stream);
        }
    }

    /// What follows a free that the heap's own stream waits for.
    #[inline]
    pub(super) fn freed_away(
        &self,
        heap: &Heap,
        mut st: Locked<'_, HeapState>,
        size: u64,
        lane: u32,
        stream: Option<StreamHandle>,
        users: &[u32],
    ) {
        // Joined with its neighbours before it is wanted, memory serves larger requests, and they need not ask the device.
        if st.has_settled(lane, &self.order) {
            st.settle(&self.order, &self.index);
        }
        if st.has_run_empty() {
            self.emptied(heap, &mut st);
        }
        heap.publish(&st);
        drop(st);
        self.mark_free(size, lane, stream, users);
    }

    /// Records the markers for memory that another heap waits for: on every stream that also used it, and on the freeing
    /// stream when a batch is full or somebody waits. Only streams the caller vouches for are touched.
    fn mark_free(&self, size: u64, lane: u32, stream: Option<StreamHandle>, users: &[u32]) {
        for &user in users {
            let _ = self.mark_user(user);
        }
        let Some(stream) = stream else { return };
        if !users.is_empty() || self.order.due(lane, size) || self.order.take_want(lane) || self.is_relay(stream) {
            let _ = self.mark_stream(stream);
        }
    }

    /// Records a marker on a stream named to `record_stream`, whose caller keeps it alive until the free. Where it
    /// cannot be named from here (another thread's own stream) the context's next marker does.
    pub(super) fn mark_user(&self, user: u32) -> Result<()> {
        if user == CONTEXT {
            return Ok(());
        }
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
    pub(super) fn trim_above_threshold(&self, heap: &Heap, size: u64, stream: Option<StreamHandle>) {
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
        let _changing = self.change();
        let _ = self.release_free(self.live_now() + threshold);
    }

    /// Finds a live allocation that starts at `ptr` and locks its heap.
    pub(super) fn find(&self, ptr: u64, verb: &str) -> Result<Found<'_>> {
        let lost = match self.look(ptr) {
            Ok(found) if !found.is_reclaimed() => return Ok(found),
            Ok(_) => Lost::Reclaimed,
            Err(lost) => lost,
        };
        if lost != Lost::Unknown {
            return Err(Self::double_free(ptr, verb, lost));
        }
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

    pub(super) fn look(&self, ptr: u64) -> std::result::Result<Found<'_>, Lost> {
        // The index is read with no lock held: what it says is checked under the lock, and read again if it changed.
        for _ in 0..64 {
            let entry = self.index.get(ptr);
            match entry {
                Entry::Block { heap, region } => {
                    let Some(heap) = self.heap(heap) else { break };
                    let st = heap.lock_quick();
                    if st.regions.try_get(region).is_some_and(|r| r.addr == ptr && r.state == State::Live) {
                        return Ok(Found::Pooled { heap, st, place: Place::Block { region } });
                    }
                }
                Entry::Slab { heap, slab } => {
                    let Some(heap) = self.heap(heap) else { break };
                    let st = heap.lock_quick();
                    let number = st.slabs.try_get(slab).filter(|s| s.base <= ptr).and_then(|s| s.object_at(ptr));
                    if let (Some(number), Some(s)) = (number, st.slabs.try_get(slab)) {
                        if s.is_live(number) {
                            return Ok(Found::Pooled { heap, st, place: Place::Object { slab, number } });
                        }
                        if self.index.get(ptr) == entry {
                            return Err(Lost::Freed);
                        }
                    }
                }
                Entry::Dedicated if lock(&*self.core).dedicated.contains_key(&ptr) => return Ok(Found::Dedicated),
                Entry::Freed { offset } if offset == ptr % SLOT => return Err(Lost::Freed),
                _ => break,
            }
            if self.index.get(ptr) == entry {
                break;
            }
        }
        Err(Lost::Unknown)
    }

    /// Counts a free that was refused.
    fn count_refused(&self, e: &Error) {
        match e.status {
            Status::DoubleFree => self.counters.double_frees.fetch_add(1, Relaxed),
            _ => self.counters.unknown_pointers.fetch_add(1, Relaxed),
        };
    }

    fn double_free(ptr: u64, verb: &str, lost: Lost) -> Error {
        let how = match lost {
            Lost::Reclaimed => "was freed by the exit of its arena",
            _ => "was freed already",
        };
        Error::new(Status::DoubleFree, format!("{verb}: {ptr:#x} {how} and has not been handed out since"))
    }

    /// The allocation is also used on `stream`, which stays alive until the allocation is freed.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let by = self.heap_for(stream)?;
        // A capture's lane goes to other streams when the capture is gone, and the stream stays: the context knows both.
        let elsewhere = if by.is_of_captures() { CONTEXT } else { by.lane };
        match self.find(ptr, "record_stream")? {
            Found::Dedicated => {
                if let Some(d) = lock(&*self.core).dedicated.get_mut(&ptr) {
                    d.add_user(elsewhere);
                }
            }
            Found::Pooled { heap, mut st, .. } => {
                let here = heap.lane == st.lane_here(by.lane);
                note_user(&mut st, ptr, if here { heap.lane } else { elsewhere });
            }
        }
        Ok(())
    }

    /// Facts about the allocation that starts at `ptr`.
    pub fn info(&self, ptr: u64) -> Result<AllocInfo> {
        match self.find(ptr, "info")? {
            Found::Pooled { heap, st, place } => Ok(self.info_at(heap, &st, place)),
            Found::Dedicated => self.dedicated_info(ptr),
        }
    }

    /// Facts about the live allocation that contains `ptr`.
    pub fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        if let Ok(info) = self.dedicated_info(ptr) {
            return Ok(info);
        }
        self.pooled_around(ptr).ok_or_else(|| {
            Error::new(Status::UnknownPointer, format!("{ptr:#x} is in no live allocation of device {}", self.dev))
        })
    }

    /// The live block or object around `ptr`, which may point into the middle of it.
    ///
    /// The index is read with no lock held and again under the lock of the heap that it names. Where both agree, the heap's
    /// regions are what they were read for: while somebody has the allocation it is found, whatever is freed and handed
    /// out beside it.
    fn pooled_around(&self, ptr: u64) -> Option<AllocInfo> {
        loop {
            let nearest = || self.index.find_back(ptr, self.most_in_a_heap());
            let entry = nearest()?;
            let heap = match entry {
                Entry::Block { heap, .. } | Entry::Slab { heap, .. } => self.heap(heap)?,
                _ => return None,
            };
            let st = heap.lock();
            if nearest() != Some(entry) {
                continue;
            }
            let place = match entry {
                Entry::Block { region, .. } => {
                    // The start that the slot of `ptr` holds may be that of a later block, with free regions in front of it.
                    let mut at = region;
                    while st.regions.try_get(at).is_some_and(|r| r.addr > ptr && r.state != State::Edge) {
                        at = st.regions.get(at).prev;
                    }
                    st.regions.try_get(at).filter(|r| r.state == State::Live).map(|_| Place::Block { region: at })
                }
                Entry::Slab { slab, .. } => {
                    let s = st.slabs.try_get(slab).filter(|s| s.base <= ptr);
                    let number = s.and_then(|s| s.object_containing(ptr).filter(|&n| s.is_live(n)));
                    number.map(|number| Place::Object { slab, number })
                }
                _ => None,
            };
            let place = place.filter(|&p| !st.is_reclaimed(p))?;
            return Some(self.info_at(heap, &st, place)).filter(|i| i.base <= ptr && ptr - i.base < i.usable.max(1));
        }
    }

    /// No live block is longer than this, bytes: what is live in the heap that has most.
    pub(super) fn most_in_a_heap(&self) -> u64 {
        self.all_heaps().map(|h| h.live.load(Relaxed)).max().unwrap_or(0)
    }

    pub(super) fn info_at(&self, heap: &Heap, st: &HeapState, place: Place) -> AllocInfo {
        match place {
            Place::Block { region } => self.block_info(st, region),
            Place::Object { slab, number } => self.object_info(heap, st, slab, number),
        }
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
}

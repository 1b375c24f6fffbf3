//! Private heaps: memory of capture arenas, which no other heap takes from.
//!
//! A graph uses the addresses that it was captured with each time it is launched. So the memory of a capture comes from
//! heaps like any other, of which nothing is taken, moved or given back until the last graph is gone: every address that was
//! handed out in one stays mapped to the same physical memory, and nobody else gets it. An arena has such a heap for each
//! stream that allocates from it, and one more for each layout in use ([`super::planned`]). A private heap starts empty. It
//! grows at one place, at the start of addresses kept for it, and is made of what captures before it left, settled
//! memory of other heaps, and new memory.
//!
//! When the arena is released its heaps are public. All that is free in them waits for everything submitted to the context
//! so far, live blocks are blocks like any other, and the next arena uses the heaps that are empty.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::alloc::{Found, Want};
use super::bins::NONE;
use super::claims::{Now, User};
use super::heap::{Heap, HeapState};
use super::index::SLOT;
use super::order::Tag;
use super::planned::{Life, Notes, Plan, Span};
use super::region::GRANULE;
use super::routes::Routes;
use super::slab::{self, SMALL_MAX};
use super::streams::capture_key;
use super::{lock, too_large, AllocRequest, Pool};
use crate::base::size::{self, human, round_up};
use crate::base::sync::{AtomicBool, AtomicU64, Mutex};
use crate::base::{Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Addresses kept for each stream of an arena to grow in, bytes: a start in life, not a limit.
const USUAL_ROOM: u64 = 16 * size::GIB;
/// Identities of lanes that capture arenas use go down from here. No stream has them.
const IDENTITIES: u64 = u64::MAX - 1;

/// How an arena behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphArenaOptions {
    /// Nothing is handed out twice before the arena is released.
    pub monotone: bool,
    /// Note how long each large allocation lives.
    pub record: bool,
    /// Addresses to keep for each stream to grow in, bytes; 0 for the usual.
    pub reserve: u64,
}

/// One arena's counters, bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphArenaStats {
    /// Addresses: those mapped, and those kept to grow into.
    pub reserved: u64,
    /// Physical memory.
    pub mapped: u64,
    /// Handed out and not freed, rounding included.
    pub live: u64,
    /// The most `live` was.
    pub peak_live: u64,
    /// Handed out so far.
    pub total: u64,
    /// How often, a count.
    pub allocations: u64,
    /// Length of the layouts in use.
    pub planned: u64,
    /// Large allocations that were not where a layout had them, a count.
    pub deviations: u64,
    /// Streams that have allocated from it, a count.
    pub streams: u64,
}

#[derive(Default)]
pub(super) struct Counts {
    /// Every heap of the arena.
    heaps: Mutex<Vec<u32>>,
    peak: AtomicU64,
    total: AtomicU64,
    allocations: AtomicU64,
    pub(super) deviations: AtomicU64,
}

/// Memory for graphs; made by [`Pool::open_arena`], of no use to another pool.
pub struct GraphArena {
    options: GraphArenaOptions,
    counts: Arc<Counts>,
    pub(super) members: Mutex<Vec<Arc<StreamPart>>>,
    released: AtomicBool,
}

/// One stream's part of an arena.
pub(super) struct StreamPart {
    pub(super) key: usize,
    /// The lane of the heap for what no layout has a place for.
    lane: u32,
    monotone: bool,
    /// A copy of the arena's option: what grew in place could not be laid out.
    record: bool,
    /// That heap, and those of layouts.
    pub(super) heaps: Mutex<Vec<u32>>,
    /// Which stream the handle stood for, and who has claimed it.
    pub(super) user: Mutex<User>,
    pub(super) notes: Mutex<Notes>,
    pub(super) counts: Arc<Counts>,
}

/// What a pool knows of its arenas.
pub(super) struct Privates {
    pub(super) routes: Routes,
    /// Heaps of arenas that were released.
    pub(super) shells: Mutex<Vec<u32>>,
    pub(super) identities: AtomicU64,
}

impl Default for Privates {
    fn default() -> Privates {
        Privates { routes: Routes::default(), shells: Mutex::new(Vec::new()), identities: AtomicU64::new(IDENTITIES) }
    }
}

impl HeapState {
    /// Whether nothing that is freed here may be handed out again for now.
    pub(super) fn is_monotone(&self) -> bool {
        self.private.as_ref().is_some_and(|m| m.monotone)
    }

    /// Whether allocations here are told apart by their order, so that each has to be one of its own.
    pub(super) fn is_laid_out(&self) -> bool {
        self.private.as_ref().is_some_and(|m| m.record || lock(&m.notes).plan.is_some())
    }

    /// Notes that the block at `addr` is being freed; whether the heap's own stream may have it back at once.
    pub(super) fn may_reuse(&self, addr: u64) -> bool {
        let Some(member) = &self.private else { return true };
        if member.record {
            lock(&member.notes).died(addr);
        }
        !member.monotone
    }

    /// The lane of this heap if `lane` is that of another heap of the same stream in the same arena.
    pub(super) fn lane_here(&self, lane: u32) -> u32 {
        match &self.private {
            Some(m) if m.lane == lane => self.lane,
            _ => lane,
        }
    }
}

impl Pool {
    /// A new arena, without memory.
    pub fn open_arena(&self, options: GraphArenaOptions) -> Arc<GraphArena> {
        Arc::new(GraphArena {
            options,
            counts: Arc::default(),
            members: Mutex::default(),
            released: AtomicBool::new(false),
        })
    }

    /// The arena's memory becomes ordinary: what is free in it waits for all that has been submitted to the device so far,
    /// what is live stays so. Routes to it end. Happens once; no more than once is harmless.
    pub fn release_arena(&self, arena: &GraphArena) {
        self.end_routes(arena);
        let members = {
            let mut members = lock(&arena.members);
            arena.released.store(true, Release);
            std::mem::take(&mut *members)
        };
        for number in members.iter().flat_map(|m| lock(&m.heaps).clone()) {
            self.make_public(number);
        }
        members.iter().for_each(|m| m.forget_capture(&self.order));
    }

    /// The arena's part for a stream, made when the stream is new to it.
    pub(super) fn member(&self, arena: &GraphArena, stream: StreamHandle, now: Now) -> Result<Arc<StreamPart>> {
        let key = capture_key(stream);
        let mut members = lock(&arena.members);
        if arena.released.load(Acquire) {
            return Err(Error::invalid("the capture's memory has been released; begin another capture"));
        }
        if let Some(member) = members.iter().find(|m| m.key == key) {
            return Ok(member.clone());
        }
        let room = self.keep_room(arena.options.reserve)?;
        let heap = match self.empty_heap(stream) {
            Ok(heap) => heap,
            Err(e) => {
                lock(&*self.core).holes.unkeep(room.1);
                return Err(e);
            }
        };
        let record = arena.options.record;
        let member = Arc::new(StreamPart {
            key,
            lane: heap.lane,
            monotone: arena.options.monotone,
            record,
            heaps: Mutex::new(vec![heap.number]),
            user: Mutex::new(User::new(now)),
            notes: Mutex::new(Notes::new(record)),
            counts: arena.counts.clone(),
        });
        let mut st = heap.lock();
        st.private = Some(member.clone());
        st.room = room;
        drop(st);
        lock(&arena.counts.heaps).push(heap.number);
        members.push(member.clone());
        Ok(member)
    }

    /// The heap that a stream's allocations come from.
    pub(super) fn member_heap(&self, member: &StreamPart) -> Result<&Heap> {
        let first = lock(&member.heaps).first().copied();
        first.and_then(|n| self.heap(n)).ok_or_else(|| Error::internal("a capture's stream has no heap"))
    }

    /// Addresses to grow in: start and end. The usual ones are left out where there is no room for them.
    fn keep_room(&self, bytes: u64) -> Result<(u64, u64)> {
        let mut core = lock(&*self.core);
        let usual = USUAL_ROOM.min(self.props.total_bytes).min(core.holes.longest() / 4) & !(self.page - 1);
        let len = match bytes {
            0 => usual,
            n => n.checked_next_multiple_of(self.page).ok_or_else(|| too_large(n))?,
        };
        if len == 0 {
            return Ok((0, 0));
        }
        let mut start = core.holes.keep(len, self.page);
        if start.is_none() && bytes > 0 {
            self.reserve_root(&mut core, len)
                .map_err(|e| e.context(format!("{} of addresses for a capture", human(len))))?;
            start = core.holes.keep(len, self.page);
        }
        match start {
            Some(start) => Ok((start, start + len)),
            None if bytes == 0 => Ok((0, 0)),
            None => Err(Error::new(Status::OutOfMemory, format!("there is no room for {} of addresses", human(len)))),
        }
    }

    /// Maps `bytes` for a stream of the arena ahead.
    pub(super) fn map_ahead(&self, member: &StreamPart, stream: StreamHandle, bytes: u64) -> Result<()> {
        let heap = self.member_heap(member)?;
        let size = bytes.checked_next_multiple_of(self.page).ok_or_else(|| too_large(bytes))?;
        self.find_span(heap, Want { size, align: GRANULE, stream }).map(|_| ())
    }

    /// A ready region of the heap for the request, whole; its address.
    fn find_span(&self, heap: &Heap, want: Want) -> Result<u64> {
        if want.size > self.props.total_bytes {
            return Err(self.out_of_memory(want.size));
        }
        let req = AllocRequest { size: want.size, stream: want.stream, ..AllocRequest::default() };
        match self.find_region(heap, heap.lock(), want, &req, None)? {
            Found::Here(mut st, r) => {
                let addr = st.regions.get(r).addr;
                // All of it is settled: see `usable`.
                st.regions.make_ready(r, Tag::SETTLED);
                heap.publish(&st);
                Ok(addr)
            }
            Found::Borrowed(_) => Err(Error::internal("a capture's memory was borrowed")),
        }
    }

    /// From now on the stream's large allocations go where the layout has them.
    pub(super) fn lay_out(&self, member: &Arc<StreamPart>, stream: StreamHandle, span: &Arc<Span>) -> Result<()> {
        let want = Want { size: span.bytes, align: span.align.max(GRANULE), stream };
        // A layout that another graph of the arena was captured with has left its memory.
        let before = lock(&member.heaps).iter().skip(1).filter_map(|&n| self.heap(n)).find_map(|heap| {
            let mut st = heap.lock();
            st.settle(&self.order, &self.index);
            let r = st.regions.find(want.size, want.align, |_| true)?;
            Some((heap.number, st.regions.get(r).addr.next_multiple_of(want.align)))
        });
        let (heap, base) = match before {
            Some(found) => found,
            None if span.bytes == 0 => (NONE, 0),
            None => {
                let heap = self.empty_heap(stream)?;
                heap.lock().private = Some(member.clone());
                lock(&member.heaps).push(heap.number);
                lock(&member.counts.heaps).push(heap.number);
                (heap.number, self.find_span(heap, want)?)
            }
        };
        lock(&member.notes).plan = Some(Plan { span: span.clone(), heap, base, next: 0 });
        Ok(())
    }

    /// As [`Pool::malloc_search`], from the heap of a stream that is being captured.
    pub(super) fn malloc_captured(&self, heap: &Heap, req: &AllocRequest, align: u64) -> Result<u64> {
        let member = heap.lock_quick().private.clone();
        let Some(member) = member else { return self.malloc_in(heap, req, align) };
        let large = req.size > SMALL_MAX || align > SLOT;
        let size = match large {
            true => round_up(req.size.max(SLOT), GRANULE).ok_or_else(|| too_large(req.size))?,
            false => slab::class_size(slab::class_of(req.size)),
        };
        let placed = if large { self.place_as_planned(&member, req, size, align) } else { None };
        let addr = match placed {
            Some(addr) => addr,
            None => self.malloc_in(heap, req, align)?,
        };
        if large && member.record {
            lock(&member.notes).born(addr, size, align.max(GRANULE));
        }
        let c = &member.counts;
        c.allocations.fetch_add(1, Relaxed);
        c.total.fetch_add(size, Relaxed);
        let live = |n: &u32| self.heap(*n).map_or(0, |h| h.live.load(Relaxed));
        c.peak.fetch_max(lock(&c.heaps).iter().map(live).sum(), Relaxed);
        Ok(addr)
    }

    /// An arena's counters.
    pub fn arena_stats(&self, arena: &GraphArena) -> GraphArenaStats {
        let members = lock(&arena.members).clone();
        let c = &arena.counts;
        let mut s = GraphArenaStats {
            total: c.total.load(Relaxed),
            allocations: c.allocations.load(Relaxed),
            deviations: c.deviations.load(Relaxed),
            streams: members.len() as u64,
            ..GraphArenaStats::default()
        };
        for m in &members {
            for heap in lock(&m.heaps).clone().into_iter().filter_map(|n| self.heap(n)) {
                let st = heap.lock();
                s.mapped += st.extents.bytes();
                s.reserved += st.extents.bytes() + (st.room.1 - st.room.0);
                s.live += st.live_bytes;
            }
            s.planned += lock(&m.notes).plan.as_ref().map_or(0, |p| p.span.bytes);
        }
        s.peak_live = c.peak.fetch_max(s.live, Relaxed).max(s.live);
        s
    }

    /// What was recorded of each stream's large allocations, in the order in which the streams came.
    /// `None` for all when nothing is recorded.
    pub fn arena_lives(&self, arena: &GraphArena) -> Vec<Option<Vec<Life>>> {
        lock(&arena.members).iter().map(|m| lock(&m.notes).lives.clone()).collect()
    }
}

//! One stream's part of a capture arena: its private heaps.
//!
//! An arena has a private heap for each stream that allocates from it, and one more for each layout
//! in use. A private heap starts empty and grows in one place, from the start of the
//! addresses it keeps. It is made of memory that earlier captures left, settled memory of other
//! heaps, and new memory.

use crate::base::size::human;
use crate::base::{size, Error, Result, StreamHandle};
use crate::pool::heap::{Heap, LayoutInUse, Notes, Now, Span, StreamPart, User, GRANULE};
use crate::pool::state::{GraphArena, Pool};
use crate::pool::streams::capture_key;
use crate::pool::types::{AllocRequest, Ranked, Want, NONE};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Addresses that each stream of an arena keeps to grow in, bytes. The heap may outgrow them.
const KEPT_USUALLY: u64 = 16 * size::GIB;

impl Pool {
    /// The arena's part for a stream, made if the stream is new to it.
    pub(crate) fn part_for(&self, arena: &GraphArena, stream: StreamHandle, now: Now) -> Result<Arc<StreamPart>> {
        let key = capture_key(stream);
        let mut parts = arena.parts.lock();
        if arena.released.load(Acquire) {
            return Err(Error::invalid("the capture's memory has been released; begin another capture"));
        }
        if let Some(part) = parts.iter().find(|part| part.key == key) {
            return Ok(part.clone());
        }
        let heap = self.empty_heap(stream)?;
        // Under its lock, so that the addresses are its own as soon as they are no hole.
        let mut st = heap.lock();
        st.kept = match self.keep_addresses(arena.options.reserve) {
            Ok(kept) => kept,
            Err(e) => {
                drop(st);
                self.privates.shells.lock().push(heap.number);
                return Err(e);
            }
        };
        let part = Arc::new(StreamPart {
            key,
            lane: heap.lane,
            monotone: arena.options.monotone,
            heaps: Ranked::new(vec![heap.number]),
            user: Ranked::new(User::new(now)),
            notes: Ranked::new(Notes::new(arena.options.record)),
            counts: arena.counts.clone(),
        });
        st.private = Some(part.clone());
        drop(st);
        arena.counts.heaps.lock().push(heap.number);
        parts.push(part.clone());
        Ok(part)
    }

    /// The heap a stream's allocations come from.
    pub(crate) fn part_heap(&self, part: &StreamPart) -> Result<&Heap> {
        self.heaps_of(&part.heaps).next().ok_or_else(|| Error::internal("a capture's stream has no heap"))
    }

    /// Takes addresses to grow in, and returns their start and end. If none are asked for, and the
    /// usual number cannot be had, takes none.
    fn keep_addresses(&self, bytes: u64) -> Result<(u64, u64)> {
        if bytes > 0 {
            let len = self.whole_pages(bytes)?;
            let start = self.take_addresses(len, self.page);
            return start
                .map(|start| (start, start + len))
                .map_err(|e| e.context(format!("{} of addresses for a capture", human(len))));
        }
        let mut core = self.core.lock();
        let len = KEPT_USUALLY.min(self.props.total_bytes).min(core.holes.longest() / 4) & !(self.page - 1);
        let start = if len > 0 { core.holes.take(len, self.page) } else { None };
        Ok(start.map_or((0, 0), |start| (start, start + len)))
    }

    /// Maps `bytes` for a stream of the arena ahead.
    pub(crate) fn map_ahead(&self, part: &StreamPart, stream: StreamHandle, bytes: u64) -> Result<()> {
        let heap = self.part_heap(part)?;
        self.find_uncut(heap, Want::new(self.whole_pages(bytes)?, GRANULE, (stream, heap.lane))).map(|_| ())
    }

    /// Finds a ready region of the heap for the request, uncut, and returns its address.
    fn find_uncut(&self, heap: &Heap, want: Want) -> Result<u64> {
        if want.size > self.props.total_bytes {
            return Err(self.out_of_memory(want.size));
        }
        let req = AllocRequest { size: want.size, stream: want.stream, ..AllocRequest::default() };
        let (mut st, found) = self.find_region(heap.lock(), want, &req)?;
        let r = found.own()?;
        // Memory that the stream has freed eagerly may not have settled, and keeps its tag.
        let (addr, tag) = (st.regions.get(r).addr, st.regions.get(r).tag);
        st.regions.make_ready(r, tag);
        Ok(addr)
    }

    /// Makes the stream's large allocations go where the layout has them from now on.
    pub(crate) fn lay_out(&self, part: &Arc<StreamPart>, stream: StreamHandle, span: &Arc<Span>) -> Result<()> {
        let (heap, base) = match span.bytes {
            // A layout of no large allocations.
            0 => (NONE, 0),
            _ => self.memory_for(part, stream, span)?,
        };
        part.notes.lock().plan = Some(LayoutInUse { span: span.clone(), heap, base, next: 0 });
        Ok(())
    }

    /// A heap of the part with memory for the layout, and where the layout starts.
    fn memory_for(&self, part: &Arc<StreamPart>, stream: StreamHandle, span: &Span) -> Result<(u32, u64)> {
        let want = Want::new(span.bytes, span.align.max(GRANULE), (stream, part.lane));
        // A layout that an earlier graph of the arena was captured with may have left its memory.
        let before = self.heaps_of(&part.heaps).skip(1).find_map(|heap| {
            let mut st = heap.lock();
            st.settle(&self.order, &self.index);
            let r = st.regions.find(want.size, want.align, |_| true)?;
            Some((heap.number, st.regions.get(r).addr.next_multiple_of(want.align)))
        });
        if let Some(found) = before {
            return Ok(found);
        }
        let heap = self.empty_heap(stream)?;
        heap.lock().private = Some(part.clone());
        let base = self.find_uncut(heap, Want { lane: heap.lane, ..want });
        let base = base.inspect_err(|_| {
            // No other thread has come to know it as the part's.
            heap.lock().private = None;
            self.make_public(heap.number);
        })?;
        part.heaps.lock().push(heap.number);
        part.counts.heaps.lock().push(heap.number);
        Ok((heap.number, base))
    }

    /// Allocates a large block where the layout has it, if the layout has one and the place is
    /// free.
    pub(crate) fn place_as_planned(&self, part: &StreamPart, req: &AllocRequest, size: u64, align: u64) -> Option<u64> {
        let align = align.max(GRANULE);
        let (heap, addr) = part.notes.lock().next_place(size, align, &part.counts)?;
        let heap = self.heap(heap)?;
        let mut st = heap.lock();
        st.settle(&self.order, &self.index);
        let Some(r) = st.regions.ready_around(addr, addr + size, NONE) else {
            part.counts.deviations.fetch_add(1, Relaxed);
            return None;
        };
        let cut = st.regions.cut(r, addr, size);
        st.note_taken();
        Some(self.finish_block(&mut st, cut, req, heap.lane))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::{size::MIB, DeviceId, Status};
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::Driver;
    use crate::pool::{GraphArenaOptions, PoolOptions, WhichStreams};

    #[test]
    fn a_layout_that_finds_no_memory_leaves_nothing_behind() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let options = PoolOptions { limit: 64 * MIB, ..PoolOptions::default() };
        let pool = Pool::new(host.clone(), d, options).unwrap();
        let stream = host.stream_create(d).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let try_one = |bytes| {
            let span = Arc::new(Span { bytes, align: 1, placed: Vec::new() });
            pool.begin_route(&arena, WhichStreams::Handle(stream), 0, Some(&span))
        };
        let heaps = || (arena.counts.heaps.lock().len(), pool.heap_count.load(Relaxed));
        assert_eq!(try_one(96 * MIB).err().map(|e| e.status), Some(Status::OutOfMemory));
        let before = heaps();
        for _ in 0..10 {
            assert_eq!(try_one(96 * MIB).err().map(|e| e.status), Some(Status::OutOfMemory));
        }
        assert_eq!(heaps(), before);
        pool.validate().unwrap();
        // Memory that suffices is found after that.
        let route = try_one(32 * MIB).unwrap();
        pool.end_route(&route);
        pool.validate().unwrap();
        pool.release_arena(&arena);
    }

    #[test]
    fn a_layout_of_no_bytes_takes_no_memory_of_an_earlier_one() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let stream = host.stream_create(d).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let heap_for = |bytes| {
            let span = Arc::new(Span { bytes, align: 512, placed: Vec::new() });
            let route = pool.begin_route(&arena, WhichStreams::Handle(stream), 0, Some(&span)).unwrap();
            let part = arena.parts.lock()[0].clone();
            let heap = part.notes.lock().plan.as_ref().map(|plan| plan.heap);
            pool.end_route(&route);
            heap
        };
        let first = heap_for(32 * MIB);
        assert_eq!(heap_for(0), Some(NONE));
        assert_eq!(heap_for(32 * MIB), first);
        pool.validate().unwrap();
        pool.release_arena(&arena);
    }
}

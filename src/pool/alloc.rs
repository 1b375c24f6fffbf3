//! Allocation: the ways to memory, cheapest first.
//!
//! Own heap (no driver call) → what has settled since → settled memory of other streams → stitch and grow
//! (`extend.rs`) → give free memory of every heap back and try again → wait for the device → out of memory.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, HeapState};
use super::index::SLOT;
use super::order::CONTEXT;
use super::region::{Block, GRANULE};
use super::slab::{self, SMALL_MAX, SMALL_MIN};
use super::{lock, too_large, AllocFlags, AllocRequest, Pool};
use crate::base::size::{human, round_up};
use crate::base::{Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::MutexGuard;

/// Largest alignment on request, bytes.
const MAX_ALIGN: u64 = 1 << 30;

/// A request in the pool's own terms: rounded bytes and alignment of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) stream: StreamHandle,
}

impl Pool {
    /// Allocates; the memory may be used by work submitted to the request's stream from now on.
    pub fn malloc(&self, req: &AllocRequest) -> Result<u64> {
        let align = if req.align == 0 { SMALL_MIN } else { req.align };
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Error::invalid(format!(
                "alignment {align} is not a power of two up to {MAX_ALIGN}; pass 0 for the default of {SMALL_MIN}"
            )));
        }
        if req.size > self.props.total_bytes {
            self.counters.out_of_memory.fetch_add(1, Relaxed);
            if req.size > i64::MAX as u64 {
                return Err(too_large(req.size));
            }
            return Err(self.out_of_memory(req.size));
        }
        if req.flags != AllocFlags::default() {
            return self.malloc_dedicated(req, align);
        }
        let heap = self.heap_for(req.stream)?;
        if req.size <= SMALL_MAX && align <= SLOT && req.tag == 0 {
            let class = match align {
                SMALL_MIN => slab::class_of(req.size),
                _ => slab::aligned_class(req.size, align).ok_or_else(|| too_large(req.size))?,
            };
            let mut st = lock(&heap.state);
            if let Some(addr) = st.take_object(class, req.size, self.number) {
                heap.publish(&st);
                return Ok(addr);
            }
            return self.malloc_small_slow(heap, st, class, req);
        }
        // One slot at least, so that no two blocks start in the same slot of the index.
        let size = round_up(req.size.max(SLOT), GRANULE).ok_or_else(|| too_large(req.size))?;
        let want = Want { size, align: align.max(GRANULE), stream: req.stream };
        let mut st = lock(&heap.state);
        if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
            let block = self.block(heap, &mut st, req, want.align);
            let addr = st.hand_out(r, block, &self.index);
            heap.publish(&st);
            return Ok(addr);
        }
        self.malloc_large_slow(heap, st, want, req)
    }

    fn block(&self, heap: &Heap, st: &mut HeapState, req: &AllocRequest, align: u64) -> Block {
        Block {
            requested: req.size,
            id: st.new_id(self.number),
            tag: req.tag,
            stream: req.stream,
            stream_id: heap.stream_id.load(Relaxed),
            lane: heap.number,
            align,
        }
    }

    #[cold]
    fn malloc_small_slow(
        &self,
        heap: &Heap,
        mut st: MutexGuard<'_, HeapState>,
        class: usize,
        req: &AllocRequest,
    ) -> Result<u64> {
        self.poll_waits(heap, &st)?;
        st.settle(&self.order, &self.index);
        if let Some(addr) = st.take_object(class, req.size, self.number) {
            heap.publish(&st);
            return Ok(addr);
        }
        let want = Want { size: slab::slab_size(class), align: SLOT, stream: req.stream };
        let (mut st, region) = self.find_own(heap, st, want, req.size)?;
        st.add_slab(class, region, &self.index);
        let addr = st.take_object(class, req.size, self.number);
        heap.publish(&st);
        addr.ok_or_else(|| Error::internal("a fresh slab has no free object"))
    }

    #[cold]
    fn malloc_large_slow(
        &self,
        heap: &Heap,
        mut st: MutexGuard<'_, HeapState>,
        want: Want,
        req: &AllocRequest,
    ) -> Result<u64> {
        self.poll_waits(heap, &st)?;
        if st.settle(&self.order, &self.index) {
            if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
                let block = self.block(heap, &mut st, req, want.align);
                let addr = st.hand_out(r, block, &self.index);
                heap.publish(&st);
                return Ok(addr);
            }
        }
        let block = self.block(heap, &mut st, req, want.align);
        if let Some(addr) = self.from_others(heap, want, block)? {
            return Ok(addr);
        }
        let (mut st, region) = self.find_own(heap, st, want, req.size)?;
        let addr = st.hand_out(region, block, &self.index);
        heap.publish(&st);
        Ok(addr)
    }

    /// Asks the device about everything a heap waits for.
    fn poll_waits(&self, heap: &Heap, st: &HeapState) -> Result<()> {
        let _ = heap;
        st.waits_for().try_for_each(|lane| self.order.poll(&*self.driver, lane))
    }

    /// A block out of another stream's free memory that the device has passed, or that this very stream freed.
    fn from_others(&self, me: &Heap, want: Want, block: Block) -> Result<Option<u64>> {
        if self.order.streams() < 2 {
            return Ok(None);
        }
        for attempt in 0..2 {
            let mut unmarked = false;
            for other in self.all_heaps().filter(|h| h.number != me.number && h.free.load(Relaxed) >= want.size) {
                let Ok(mut st) = other.state.try_lock() else { continue };
                self.order.poll(&*self.driver, other.number)?;
                self.poll_waits(other, &st)?;
                st.settle(&self.order, &self.index);
                let found = st
                    .cut_for(want.size, want.align, |r| self.order.settled(r.order))
                    .or_else(|| st.take_waiting_of(me.number, want.size, want.align, &self.order));
                if let Some(r) = found {
                    let addr = st.hand_out(r, block, &self.index);
                    other.publish(&st);
                    return Ok(Some(addr));
                }
                unmarked |= st.unmarked(&self.order).next().is_some()
                    || st.regions.ready_from(want.size).any(|r| !self.order.marked(st.regions.get(r).order));
                self.order.want(other.number);
                other.publish(&st);
            }
            if attempt > 0 || !unmarked || !self.order.mark_context(&*self.driver)? {
                break;
            }
            self.order.poll(&*self.driver, CONTEXT)?;
        }
        Ok(None)
    }

    /// A live region in the heap itself, by stitching and growing; gives free memory back everywhere and waits for
    /// the device before it gives up.
    fn find_own<'a>(
        &self,
        heap: &'a Heap,
        mut st: MutexGuard<'a, HeapState>,
        want: Want,
        requested: u64,
    ) -> Result<(MutexGuard<'a, HeapState>, u32)> {
        for attempt in 0.. {
            if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
                return Ok((st, r));
            }
            if let Some(r) = self.extend(heap, &mut st, want)? {
                return Ok((st, r));
            }
            heap.publish(&st);
            drop(st);
            match attempt {
                0 => {
                    self.release_free(0)?;
                }
                1 => {
                    self.order.mark_context(&*self.driver)?;
                    self.order.sync(&*self.driver)?;
                    self.release_free(0)?;
                }
                _ => break,
            }
            st = lock(&heap.state);
            st.settle(&self.order, &self.index);
        }
        self.counters.out_of_memory.fetch_add(1, Relaxed);
        Err(self.out_of_memory(requested))
    }

    /// The text for a request that found no memory.
    pub(super) fn out_of_memory(&self, requested: u64) -> Error {
        let mapped = self.counters.mapped.load(Relaxed);
        let live = self.live_now();
        let limit = match self.limit.load(Relaxed) {
            u64::MAX => "no limit is set".to_string(),
            l => format!("the limit is {}", human(l)),
        };
        let device = match self.driver.mem_info(self.dev) {
            Ok(m) => format!("{} of {} free", human(m.free), human(m.total)),
            Err(e) => format!("memory not known ({})", e.message),
        };
        Error::new(
            Status::OutOfMemory,
            format!(
                "{requested} bytes ({}) were requested on device {}; the pool has {} mapped, {} of it live; {limit}; the \
                 device has {device}. Free memory, raise GPUMEM_LIMIT, or use smaller pieces",
                human(requested),
                self.dev,
                human(mapped),
                human(live),
            ),
        )
    }
}

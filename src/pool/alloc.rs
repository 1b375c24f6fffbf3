//! Allocation: the ways to memory, cheapest first.
//!
//! Own heap (one lock, and no driver call but the question which stream this is) → what has settled since → settled
//! memory of other streams, taken over by the extent or borrowed by the block → stitch and grow (`extend.rs`) → what a context
//! marker settles, then free memory of every heap given back, then the device waited for, each with all of the before → out of
//! memory.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::extend::take_out;
use super::extent::Mapped;
use super::heap::{Heap, HeapState};
use super::heap_lock::Locked;
use super::index::SLOT;
use super::members::{Place, NO_MEMBER};
use super::order::Tag;
use super::region::{Block, GRANULE};
use super::slab::{self, Taken, SMALL_MAX, SMALL_MIN};
use super::stitch::Source;
use super::{too_large, AllocFlags, AllocRequest, Pool};
use crate::base::size::{human, round_up};
use crate::base::{Error, Result, Status, StreamHandle};
use std::sync::atomic::Ordering::Relaxed;

/// Largest alignment on request, bytes.
const MAX_ALIGN: u64 = 1 << 30;
/// So many free bytes of other heaps are worth a context marker at a growth.
const MUCH_ELSEWHERE: u64 = 64 << 20;

/// A request in the pool's own terms: rounded bytes and alignment of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) stream: StreamHandle,
}

/// Where a request found its memory.
pub(super) enum Found<'a> {
    /// A live region of the heap itself, which is locked.
    Here(Locked<'a, HeapState>, u32),
    /// A block of another heap, handed out.
    Borrowed(u64),
}

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

    /// As [`Self::malloc`], for a request that was no hit, or may be none.
    pub fn malloc_search(&self, req: &AllocRequest) -> Result<u64> {
        let align = self.checked_align(req)?;
        if req.flags != AllocFlags::default() {
            return self.malloc_dedicated(req, align, None);
        }
        let heap = self.heap_for(req.stream)?;
        match heap.is_of_captures() {
            true => self.malloc_captured(heap, req, align),
            false => self.malloc_in(heap, req, align),
        }
    }

    /// The alignment of a request; refuses one that cannot be, and a size that no device has.
    pub(super) fn checked_align(&self, req: &AllocRequest) -> Result<u64> {
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
        Ok(align)
    }

    /// Allocates from a heap of the request's stream.
    pub(super) fn malloc_in(&self, heap: &Heap, req: &AllocRequest, align: u64) -> Result<u64> {
        let (heap, mut st) = self.enter(heap, req.stream);
        if req.size <= SMALL_MAX && align <= SLOT {
            let class = match align {
                SMALL_MIN => slab::class_of(req.size),
                _ => slab::aligned_class(req.size, align).ok_or_else(|| too_large(req.size))?,
            };
            if let Some(taken) = st.take_object(class, req.size) {
                self.finish_object(heap, &mut st, taken, req);
                return Ok(taken.addr);
            }
            return self.malloc_small_slow(heap, st, class, req);
        }
        // One slot at least, so that no two blocks start in the same slot of the index.
        let size = round_up(req.size.max(SLOT), GRANULE).ok_or_else(|| too_large(req.size))?;
        let want = Want { size, align: align.max(GRANULE), stream: req.stream };
        if let Some(r) = st.take_region(want.size, want.align) {
            let block = self.block(heap, &mut st, req, want.align);
            let addr = st.hand_out(r, block, &self.index);
            st.admit(req, Place::Block { region: r }, self.number);
            heap.publish(&st);
            return Ok(addr);
        }
        self.malloc_large_slow(heap, st, want, req)
    }

    /// What is to be known about a new block.
    #[inline(always)]
    pub(super) fn block(&self, heap: &Heap, st: &mut HeapState, req: &AllocRequest, align: u64) -> Block {
        Block {
            requested: req.size,
            id: st.new_id(),
            tag: req.tag,
            stream: req.stream,
            stream_id: self.order.identity(heap.lane),
            lane: heap.lane,
            member: NO_MEMBER,
            align,
        }
    }

    #[cold]
    fn malloc_small_slow(
        &self,
        heap: &Heap,
        mut st: Locked<'_, HeapState>,
        class: usize,
        req: &AllocRequest,
    ) -> Result<u64> {
        st.regions.tidy();
        self.settle(&mut st)?;
        if let Some(taken) = st.take_object(class, req.size) {
            self.finish_object(heap, &mut st, taken, req);
            return Ok(taken.addr);
        }
        let want = Want { size: slab::slab_size(class), align: SLOT, stream: req.stream };
        let (mut st, region) = match self.find_region(heap, st, want, req, None)? {
            Found::Here(st, region) => (st, region),
            Found::Borrowed(_) => return Err(Error::internal("a slab was borrowed")),
        };
        st.add_slab(class, region, &self.index);
        let taken = st.take_object(class, req.size);
        let taken = taken.ok_or_else(|| Error::internal("a fresh slab has no free object"))?;
        self.finish_object(heap, &mut st, taken, req);
        Ok(taken.addr)
    }

    /// What follows once a request has its object.
    #[inline]
    fn finish_object(&self, heap: &Heap, st: &mut HeapState, taken: Taken, req: &AllocRequest) {
        st.note_tag(taken.addr, req.tag);
        st.admit(req, Place::Object { slab: taken.slab, number: taken.number }, self.number);
        heap.publish(st);
    }

    #[cold]
    fn malloc_large_slow(
        &self,
        heap: &Heap,
        mut st: Locked<'_, HeapState>,
        want: Want,
        req: &AllocRequest,
    ) -> Result<u64> {
        let block = self.block(heap, &mut st, req, want.align);
        self.settle(&mut st)?;
        let (mut st, region) = match self.find_region(heap, st, want, req, Some(block))? {
            Found::Here(st, region) => (st, region),
            Found::Borrowed(addr) => return Ok(addr),
        };
        let addr = st.hand_out(region, block, &self.index);
        st.admit(req, Place::Block { region }, self.number);
        heap.publish(&st);
        Ok(addr)
    }

    /// Makes ready whatever of a heap the device has passed since. Returns whether anything was.
    fn settle(&self, st: &mut HeapState) -> Result<bool> {
        if st.waits_for().next().is_none() {
            return Ok(false);
        }
        self.order.poll(&*self.driver, st.waits_for())?;
        Ok(st.settle(&self.order, &self.index))
    }

    /// Sees to it that everything a heap waits for gets a marker: the caller's stream, of lane `me`, at once, other
    /// streams when they free next, and from the context what only that can settle.
    fn ask_for_markers(&self, me: u32, st: &HeapState, stream: StreamHandle) -> Result<()> {
        let (mut context, mut own) = (false, false);
        for tag in st.unmarked(&self.order) {
            if self.order.own(tag, me) {
                own = true;
            } else if self.order.only_context(tag) {
                context = true;
            } else {
                self.order.want(tag.lane());
            }
        }
        if own {
            self.order.mark(&*self.driver, me, stream)?;
        }
        if context {
            self.order.mark_context(&*self.driver, Some(stream))?;
        }
        Ok(())
    }

    /// Brings what is known about another heap up to date. Its stream may be gone, so nothing is recorded on it, unless
    /// it is the legacy stream, which always lives.
    fn refresh(&self, me: &Heap, other: &Heap, st: &mut HeapState, stream: StreamHandle) -> Result<()> {
        self.ask_for_markers(me.lane, st, stream)?;
        let unmarked = |r| !self.order.marked(st.regions.get(r).order);
        if other.lane != me.lane && st.regions.ready_from(self.page).any(unmarked) {
            if self.order.stream(other.lane) == StreamHandle::LEGACY {
                self.order.mark(&*self.driver, other.lane, StreamHandle::LEGACY)?;
            } else {
                self.order.want(other.lane);
            }
        }
        self.order.poll(&*self.driver, st.waits_for().chain([other.lane]))?;
        st.settle(&self.order, &self.index);
        Ok(())
    }

    /// Moves whole extents that hold the request out of another heap's free memory into this one, where they are:
    /// nothing is mapped or unmapped. Only memory that the device has passed, or of the same stream. Returns whether it
    /// found any.
    fn adopt(&self, me: &Heap, st: &mut HeapState, want: Want, which: impl Fn(&Heap) -> bool) -> Result<bool> {
        let may = |h: &&Heap| h.number != me.number && h.free.load(Relaxed) >= want.size && which(h);
        for other in self.all_heaps().filter(may) {
            let Some(mut from) = other.try_lock().filter(|st| st.private.is_none()) else { continue };
            self.refresh(me, other, &mut from, want.stream)?;
            let Some(run) = self.whole_run(me, other.number, &from, want) else {
                other.publish(&from);
                continue;
            };
            // From high to low addresses: what is left of a region before the cut keeps its number.
            let mut taken: Vec<(&Source, Option<Mapped>)> =
                run.iter().rev().map(|s| (s, take_out(&mut from, s))).collect();
            taken.reverse();
            other.publish(&from);
            drop(from);
            for (s, mapped) in taken {
                let Some(mapped) = mapped else { continue };
                let r = st.regions.add(s.addr, s.extent.size);
                st.extents.insert(s.addr, mapped);
                st.regions.make_ready(r, if self.order.settled(s.tag) { Tag::SETTLED } else { s.tag });
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Neighbouring extents in one settled free region of a heap that together hold the request: the fewest bytes.
    fn whole_run(&self, me: &Heap, number: u32, st: &HeapState, want: Want) -> Option<Vec<Source>> {
        let mut best: Option<(u64, Vec<Source>)> = None;
        for r in st.regions.ready_from(want.size) {
            let g = st.regions.get(r);
            if !self.usable(g.order, me) {
                continue;
            }
            let mut run: Vec<Source> = Vec::new();
            let source = |(addr, Mapped { extent, place })| Source {
                heap: number,
                region: r,
                region_size: g.size,
                addr,
                extent,
                place,
                tag: g.order,
            };
            for s in st.extents.mapped_within(g.addr, g.end()).map(source) {
                run.push(s);
                let (start, end) = (run[0].addr, s.addr + s.extent.size);
                if start.next_multiple_of(want.align) + want.size <= end {
                    if best.as_ref().is_none_or(|b| end - start < b.0) {
                        best = Some((end - start, run));
                    }
                    break;
                }
            }
            if best.as_ref().is_some_and(|b| b.0 < want.size + self.page) {
                break;
            }
        }
        best.map(|b| b.1)
    }

    /// A block out of another heap's free memory: settled, or freed there by this very stream.
    fn borrow(
        &self,
        me: &Heap,
        mine: &mut HeapState,
        want: Want,
        block: Block,
        req: &AllocRequest,
    ) -> Result<Option<u64>> {
        if self.heap_count.load(Relaxed) < 2 || mine.private.is_some() || !mine.borrowing.again() {
            return Ok(None);
        }
        for other in self.all_heaps().filter(|h| h.number != me.number && h.free.load(Relaxed) >= want.size) {
            let Some(mut st) = other.try_lock().filter(|st| st.private.is_none()) else { continue };
            let found =
                st.cut_for(want.size, want.align, |r| self.usable(r.order, me)).or_else(|| match me.is_of_captures() {
                    true => None,
                    false => st.take_waiting_of(me.lane, want.size, want.align, &self.order),
                });
            if let Some(r) = found {
                let addr = st.hand_out(r, block, &self.index);
                st.admit(req, Place::Block { region: r }, self.number);
                other.publish(&st);
                mine.borrowing.ended(true);
                return Ok(Some(addr));
            }
        }
        mine.borrowing.ended(false);
        Ok(None)
    }

    /// A live region for a request that the thread's heap had no object or block for: its own free memory, what is still
    /// mapped elsewhere, other heaps' memory (with a `block` for it, also a single block), and then by stitching and growing;
    /// gives free memory back everywhere and waits for the device before it gives up.
    pub(super) fn find_region<'a>(
        &self,
        heap: &'a Heap,
        mut st: Locked<'a, HeapState>,
        want: Want,
        req: &AllocRequest,
        block: Option<Block>,
    ) -> Result<Found<'a>> {
        for attempt in 0.. {
            if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
                return Ok(Found::Here(st, r));
            }
            if let Some(r) = self.flip_back(heap, &mut st, want) {
                return Ok(Found::Here(st, r));
            }
            if attempt > 0 {
                // What was in vain of late is worth a try now.
                st.try_everything();
            }
            self.ask_for_markers(heap.lane, &st, want.stream)?;
            if self.wait_a_moment(&mut st, want)? || self.take_over(heap, &mut st, want)? {
                if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
                    return Ok(Found::Here(st, r));
                }
            }
            if let Some(addr) = block.map(|b| self.borrow(heap, &mut st, want, b, req)).transpose()?.flatten() {
                return Ok(Found::Borrowed(addr));
            }
            if attempt == 0 && self.ask_about_others(heap, &mut st, want)? {
                if let Some(r) = st.cut_for(want.size, want.align, |_| true) {
                    return Ok(Found::Here(st, r));
                }
            }
            if let Some(r) = self.extend(heap, &mut st, want)? {
                return Ok(Found::Here(st, r));
            }
            heap.publish(&st);
            drop(st);
            match attempt {
                // Before anything is given back: what other streams have freed may do as it is.
                0 => {
                    if self.order.mark_context(&*self.driver, Some(want.stream))? {
                        self.order.poll_patiently(&*self.driver)?;
                    }
                }
                1 | 3 => {
                    let _changing = self.change();
                    self.make_room(want.size)?;
                }
                2 => self.order.drain(&*self.driver, Some(want.stream))?,
                _ => break,
            }
            st = heap.lock();
            st.settle(&self.order, &self.index);
        }
        self.counters.out_of_memory.fetch_add(1, Relaxed);
        Err(self.out_of_memory(req.size))
    }

    /// Memory that has a marker already is often ready within microseconds, sooner than anything could be mapped. Asks the
    /// device a few times, unless that has been in vain of late. Returns whether the request fits now: memory that has become
    /// ready and does not suffice is no reason to map while more is on its way.
    fn wait_a_moment(&self, st: &mut HeapState, want: Want) -> Result<bool> {
        let queries = self.options.patience;
        if queries == 0 || st.waiting_bytes < want.size || !st.about_to_settle(&self.order) || !st.patience.again() {
            return Ok(false);
        }
        for _ in 0..queries {
            self.order.poll(&*self.driver, st.waits_for())?;
            if st.settle(&self.order, &self.index) {
                if st.regions.find(want.size, want.align, |_| true).is_some() {
                    st.patience.ended(true);
                    return Ok(true);
                }
                if !st.about_to_settle(&self.order) {
                    break;
                }
            }
        }
        st.patience.ended(false);
        Ok(false)
    }

    /// Looks into other heaps for whole extents; into those of other streams not if that has been in vain of late: it takes
    /// their locks, their threads' time, and questions to the device.
    fn take_over(&self, heap: &Heap, st: &mut HeapState, want: Want) -> Result<bool> {
        if self.heap_count.load(Relaxed) < 2 {
            return Ok(false);
        }
        if st.private.is_some() {
            // What captures before it left, where it is; anything else becomes part of its own range of addresses.
            return self.adopt(heap, st, want, Heap::is_of_captures);
        }
        if !st.others.again() {
            return self.adopt(heap, st, want, |other| other.lane == heap.lane);
        }
        let found = self.adopt(heap, st, want, |_| true)?;
        st.others.ended(found);
        Ok(found)
    }

    /// Before anything is mapped while other heaps hold a lot of free memory: one context marker says of all of it whether the
    /// device has passed it, on streams that rest or are gone, too. Returns whether some of it is this heap's now. Not once a
    /// capture was met, which the marker could end, and not if it has been in vain of late.
    fn ask_about_others(&self, heap: &Heap, st: &mut HeapState, want: Want) -> Result<bool> {
        let elsewhere: u64 = self.all_heaps().filter(|h| h.number != heap.number).map(|h| h.free.load(Relaxed)).sum();
        let mapped = self.counters.mapped.load(Relaxed);
        let a_lot = want.size.max(MUCH_ELSEWHERE).max(mapped / 8);
        if elsewhere < a_lot || st.private.is_some() || self.order.captures_met() > 0 || !st.asking.again() {
            return Ok(false);
        }
        let mut found = false;
        if self.order.mark_context(&*self.driver, Some(want.stream))? {
            for _ in 0..self.options.patience.max(1) {
                if self.order.context_is_passed(&*self.driver)? {
                    found = self.adopt(heap, st, want, |_| true)?;
                    break;
                }
            }
        }
        st.asking.ended(found);
        Ok(found)
    }

    /// Gives free memory of all heaps back to the driver so that `bytes` can be created: as much as that takes, within
    /// the limit and on the device.
    pub(super) fn make_room(&self, bytes: u64) -> Result<()> {
        let mapped = self.counters.mapped.load(Relaxed);
        let keep = mapped.min(self.limit.load(Relaxed)).saturating_sub(bytes.saturating_add(self.page));
        self.release_free(keep).map(|_| ())
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

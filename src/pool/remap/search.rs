//! A request that its heap has no room for: the ways to memory, cheapest first.
//!
//! Extents still mapped where they were wanted before → other streams' memory that is known to have
//! settled, taken over in extents or borrowed in blocks, with no driver call → memory that settles
//! in a moment → other streams' memory that the device, when asked, has passed → stitch and grow
//! (`stitch.rs`) → all of this again after a context marker, then after giving back free memory of
//! every heap, then after waiting for the device, then after giving back once more → out of memory.
//! If another heap has as much free, the wait comes before anything is given back, too. While a
//! capture is known, the last resort is one more wait, which may cost that capture, and giving back
//! after it. What the limit has no room for beside what is live is refused before any of that,
//! unless the tiers can move something out. A small object takes the room of empty slabs first, and
//! at the end an object of a larger class.

use crate::base::size::MIB;
use crate::base::{Error, Result, Status};
use crate::pool::heap::{HeapState, Locked, Vain};
use crate::pool::remap::others::Obtained;
use crate::pool::state::Pool;
use crate::pool::types::{AllocRequest, Want};
use std::sync::atomic::Ordering::Relaxed;

impl Obtained {
    /// The region, for a request that is for neither a block nor an object: nothing is handed out
    /// for it.
    pub(crate) fn own(self) -> Result<u32> {
        match self {
            Obtained::Region(region) => Ok(region),
            Obtained::Made(at) => Err(Error::internal(format!("{at:#x} was handed out for no allocation"))),
        }
    }
}

/// A block of at least this many pages may begin with a page: no more than one part in so many is
/// lost between blocks.
const MANY_PAGES: u64 = 32;

/// A heap of at most this many bytes gives up the empty slabs that its classes keep, 6 MiB if each
/// has one, before it looks elsewhere for room for an object.
const MUCH_IN_SPARES: u64 = 16 * MIB;

/// Ends a search with what a step has found, if it has found something.
macro_rules! done_if {
    ($st:ident, $found:expr) => {
        if let Some(found) = $found {
            return Ok(($st, found));
        }
    };
}

impl Pool {
    /// Whether a request that its heap has no room for should begin with a page, if there is enough
    /// for that. Two blocks that share a page strand it until both are freed; apart, they leave the
    /// rest of the first one's last page. That pays where memory moves for ever
    /// (docs/adr/placement.md).
    fn begins_with_a_page(&self, st: &HeapState, want: Want) -> bool {
        let tight = self.options.finer || st.learnt.cramped;
        tight && want.size >= MANY_PAGES * self.page && st.private.is_none()
    }

    /// Memory for a request that the thread's heap had no object or block for. Tries its own
    /// free memory, runs that are still mapped, other heaps' memory (for a block, also by
    /// borrowing), and then stitching and growing. Before it gives up, waits for the device and
    /// gives free memory back everywhere. Returns the locked heap of what it has found.
    pub(crate) fn find_region<'a>(
        &'a self,
        mut st: Locked<'a>,
        mut want: Want,
        req: &AllocRequest,
    ) -> Result<(Locked<'a>, Obtained)> {
        let heap = st.heap();
        let align = want.align;
        if self.begins_with_a_page(&st, want) {
            want.align = align.max(self.page);
        }
        for attempt in 0.. {
            done_if!(st, self.take_own(&mut st, want, req));
            done_if!(st, self.flip(&mut st, want, None).map(Obtained::Region));
            if want.class.is_some() && st.extents.bytes() <= MUCH_IN_SPARES {
                st.drop_empty_slabs(&self.order, &self.index);
                done_if!(st, st.cut_for(want.size, want.align).map(Obtained::Region));
            }
            if want.class.is_some() && st.borrows_beside {
                // Memory is as short as the last time.
                done_if!(st, self.borrow_object(&st, want, req, false).map(Obtained::Made));
                st.borrows_beside = false;
            }
            if attempt > 0 {
                // Steps that were in vain of late are worth a try now.
                st.vain = Vain::default();
                want.reach = usize::MAX;
            }
            if self.is_shared(heap.number) {
                let waiting = st.take_waiting_of(want.lane, want.size, want.align, &self.order);
                done_if!(st, waiting.map(Obtained::Region));
            }
            if want.for_block && self.shares(&st, want) {
                drop(st);
                if let Some(shared) = self.enter_shared_heap()? {
                    let own = Want { for_block: false, class: None, ..want };
                    match self.find_region(shared, own, req) {
                        Ok((mut st, found)) => {
                            let addr = self.finish_block(&mut st, found.own()?, req, want.lane);
                            return Ok((st, Obtained::Made(addr)));
                        }
                        // Whole extents were not enough, but parts of extents may be free here, or
                        // be borrowed.
                        Err(e) if e.status == Status::OutOfMemory => {}
                        Err(e) => return Err(e),
                    }
                }
                st = heap.lock();
                st.settle(&self.order, &self.index);
            }
            let known = attempt == 0 && !heap.of_captures;
            if known {
                done_if!(st, self.take_known(&mut st, want, req)?);
            }
            self.ask_for_markers(&st, want)?;
            let settled = self.is_shared(heap.number) && self.poll_and_settle(&mut st)?;
            if settled || self.wait_a_moment(&mut st, want)? || self.take_over(&mut st, want)? {
                done_if!(st, self.take_own(&mut st, want, req));
            }
            match known {
                true => done_if!(st, self.look_around(&mut st, want, req)?),
                false => done_if!(st, self.borrow(&st, want, req).map(Obtained::Made)),
            }
            if !st.of_captures && self.take_from_shared_heap(&mut st) {
                done_if!(st, st.cut_for(want.size, want.align).map(Obtained::Region));
            }
            if let Some(class) = want.class.filter(|_| !want.for_block) {
                // Parts of extents may be free that no move can join.
                done_if!(st, st.cut_for_short_slab(class).map(Obtained::Region));
            }
            done_if!(st, self.stitch_or_grow(&mut st, want)?.map(Obtained::Region));
            if want.align > align {
                // Packed, it may need a page less.
                want.align = align;
                done_if!(st, st.cut_for(want.size, want.align).map(Obtained::Region));
                done_if!(st, self.stitch_or_grow(&mut st, want)?.map(Obtained::Region));
            }
            if let Some(addr) = self.borrow_object(&st, want, req, true) {
                st.borrows_beside = true;
                return Ok((st, Obtained::Made(addr)));
            }
            done_if!(st, self.take_larger(&mut st, want, req).map(Obtained::Made));
            if self.is_shared(heap.number) {
                // The request's own heap goes on: it may be lent a block before anything is waited
                // for or given back.
                return Err(Error::new(Status::OutOfMemory, "the shared heap has no room"));
            }
            let borrows = want.for_block && !st.of_captures;
            drop(st);
            // The tiers move out only what is still missing once free memory has been given back.
            let most = self.limit.load(Relaxed).max(self.mapped_now());
            if self.counter.get().is_none() && self.live_now().saturating_add(req.size) > most {
                break;
            }
            // Each wait for the device is followed by giving memory back: what the wait has settled
            // may be what must go.
            match attempt {
                // Before anything is given back: memory that other streams have freed may do as it
                // is.
                0 => self.order.mark_context_and_poll(Some(want.stream))?,
                // Giving back waits, too, if another heap has as much: parts of extents can be
                // lent, but not given back. A request that cannot borrow skips the wait.
                1 if !borrows || self.others_with(heap.number, want.size).next().is_none() => {}
                1 | 3 => self.order.drain(want.stream, |_| true)?,
                // This may cost a capture, so it comes last.
                5 if !self.order.captures.is_empty() => {
                    self.order.drain(want.stream, self.heeded(req, want.size))?;
                }
                2 | 4 | 6 => {
                    let _changing = self.change();
                    self.make_room(want.size)?;
                }
                _ => break,
            }
            // An empty slab beside free memory may be what the request lacks.
            self.drop_empty_slabs();
            st = heap.lock();
            st.settle(&self.order, &self.index);
        }
        // Peaks have risen by what was asked for in vain.
        self.lower_peaks();
        Err(self.refusal(Some(heap), req.size, req.size))
    }
}

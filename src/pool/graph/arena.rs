//! Capture arenas: memory for CUDA graphs.
//!
//! A graph uses the addresses it was captured with each time it is launched. So the memory of a
//! capture comes from private heaps: heaps like any other, except that nothing is taken out, moved
//! or given back until the last graph is gone. Every address handed out from one stays mapped to
//! the same physical memory, and nobody else gets it.
//!
//! When the arena is released, its heaps become public. Free memory in them waits for everything
//! submitted to the context so far, and live blocks become ordinary blocks. Heaps that are empty
//! serve the next arena (`shells.rs`).

use crate::base::sync::AtomicBool;
use crate::base::{Result, StreamHandle};
use crate::pool::heap::{block_size, Heap, Known, Life, GRANULE, SMALL_MAX};
use crate::pool::memory::SLOT;
use crate::pool::state::{GraphArena, GraphArenaOptions, GraphArenaStats, Pool, Routed};
use crate::pool::types::{AllocRequest, Ranked};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

impl Pool {
    /// A new arena, without memory.
    pub fn open_arena(&self, options: GraphArenaOptions) -> Arc<GraphArena> {
        Arc::new(GraphArena {
            options,
            counts: Arc::default(),
            parts: Ranked::default(),
            released: AtomicBool::new(false),
        })
    }

    /// Makes the arena's memory ordinary. Free memory in it waits for everything submitted to the
    /// device so far; live blocks stay live. Routes to it end. Further calls do nothing.
    pub fn release_arena(&self, arena: &GraphArena) {
        self.end_routes(arena);
        let parts = {
            let mut parts = arena.parts.lock();
            arena.released.store(true, Release);
            std::mem::take(&mut *parts)
        };
        for number in parts.iter().flat_map(|part| part.heaps.lock().clone()) {
            self.make_public(number);
        }
        self.privates.released.store(true, Relaxed);
        // The captures are forgotten, too: their graphs are gone.
        for part in &parts {
            let met = part.user.lock().met;
            self.order.captures.gone(part.key, met);
        }
        // The next call that names a stream asks anew which heap is its, and so records the marker.
        self.order.captures.forget_places();
    }

    /// Records the context marker for what was released, if it has none and no capture shows.
    /// Called where a stream is named that is not being captured: the next arena may begin when its
    /// stream is captured already, and so when no marker can be recorded.
    pub(crate) fn mark_released(&self, stream: StreamHandle) -> Result<()> {
        let p = &self.privates;
        // The question ends the stream's route if that began with a capture that is over.
        if !p.released.load(Relaxed) || self.order.captures.known() || self.is_claimed(stream)? {
            return Ok(());
        }
        let due = !self.captures_may_be_unmet() && p.released.swap(false, Relaxed) && self.shells_lack_a_marker();
        if due && !matches!(self.order.mark_context(Some(stream)), Ok(true)) {
            p.released.store(true, Relaxed);
        }
        Ok(())
    }

    /// Like [`Pool::malloc_search`], from the heap of a stream that allocates from an arena. If the
    /// arena is released meanwhile, this is an ordinary heap, and the allocation an ordinary one.
    pub(crate) fn malloc_captured(&self, heap: &Heap, routed: &Routed, req: &AllocRequest, align: u64) -> Result<u64> {
        let Routed { route, part } = routed;
        let large = req.size > SMALL_MAX || align > SLOT;
        let block = if large { block_size(req.size)? } else { 0 };
        let placed = if large { self.place_as_planned(part, req, block, align) } else { None };
        let addr = placed.map_or_else(|| self.malloc_in(heap.lock_quick(), req, align), Ok)?;
        if large {
            part.notes.lock().born(addr, block, align.max(GRANULE));
        }
        // Gone by now only if another thread has freed it.
        let Some((st, place)) = self.live_at(addr, None) else { return Ok(addr) };
        let Known { id, size, .. } = st.at(place);
        drop(st);
        let c = &part.counts;
        c.allocations.fetch_add(1, Relaxed);
        c.total.fetch_add(size, Relaxed);
        let live = |n: &u32| self.heap(*n).map_or(0, |h| h.live.load(Relaxed));
        c.peak.fetch_max(c.heaps.lock().iter().map(live).sum(), Relaxed);
        self.note_made(route, addr, id);
        Ok(addr)
    }

    /// An arena's counters.
    pub fn arena_stats(&self, arena: &GraphArena) -> GraphArenaStats {
        let parts = arena.parts.lock().clone();
        let c = &arena.counts;
        let mut s = GraphArenaStats {
            total: c.total.load(Relaxed),
            allocations: c.allocations.load(Relaxed),
            deviations: c.deviations.load(Relaxed),
            streams: parts.len() as u64,
            ..GraphArenaStats::default()
        };
        for part in &parts {
            for heap in self.heaps_of(&part.heaps) {
                let st = heap.lock();
                s.mapped += st.extents.bytes();
                s.reserved += st.extents.bytes() + (st.kept.1 - st.kept.0);
                s.live += st.live_bytes;
            }
            s.planned += part.notes.lock().plan.as_ref().map_or(0, |p| p.span.bytes);
        }
        s.peak_live = c.peak.fetch_max(s.live, Relaxed).max(s.live);
        s
    }

    /// The records of each stream's large allocations, in the order in which the streams came.
    /// `None` for all if the arena does not record.
    pub fn arena_lives(&self, arena: &GraphArena) -> Vec<Option<Vec<Life>>> {
        arena.parts.lock().iter().map(|part| part.notes.lock().lives.clone()).collect()
    }
}

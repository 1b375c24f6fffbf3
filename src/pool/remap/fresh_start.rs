//! Starting afresh: what a heap that has run empty after much stitching does, so that a workload
//! that repeats finds memory as tight as the first time. Its extents go into the stock and its
//! addresses stay mapped, with no driver call; what it needs next is made up from the stock the way
//! it would be created. Without that, a second run inherits large extents where it wants small
//! ones, and the footprint creeps up.

use crate::base::sync::lock;
use crate::pool::heap::{Heap, HeapState, State};
use crate::pool::memory::Mapped;
use crate::pool::remap::sources::take_out_all;
use crate::pool::state::Pool;

impl Pool {
    /// Called when the last block of a heap that has moved extents is gone: puts its wholly free
    /// spans into the stock, if it has moved enough and that has paid. The caller publishes.
    pub(crate) fn maybe_start_afresh(&self, heap: &Heap, st: &mut HeapState) {
        // A small heap that runs short keeps what it has: it has been given room enough not to move
        // any more.
        if st.private.is_some()
            || (self.options.slack_floor > 0 && st.runs_short())
            || !st.learnt.fresh_starts.decide(st.moves, st.extents.len() as u64)
        {
            return;
        }
        st.drop_empty_slabs(&self.order, &self.index);
        // Every span is one free region now, unless something waits for another stream or an old
        // slab is still there.
        let whole = |&r: &u32| st.regions.get(r).state == State::Ready && st.regions.is_edge(st.regions.get(r).next);
        let spans: Vec<u32> = st.regions.spans().filter(whole).collect();
        self.say(|| format!("heap {} is empty and starts afresh after {} moves", heap.number, st.moves));
        let mut core = lock(&*self.core);
        for r in spans {
            let g = st.regions.get(r);
            let (addr, end, tag) = (g.addr, g.end(), g.order);
            for (_, Mapped { extent, place }) in st.extents.within(addr, end) {
                core.aliases.leave(place, tag);
                core.stock.put(extent, tag);
            }
            take_out_all(st, r, addr, end);
        }
        st.regions.start_over();
        st.learnt.memo.restart();
        st.moves = 0;
        (st.learnt.peak_live, st.learnt.remapped) = (0, 0);
    }
}

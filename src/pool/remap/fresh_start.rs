//! Starting afresh: a heap that has run low after much stitching puts its free extents into the
//! stock, so that work that repeats finds memory as tight as the first time. Their addresses stay
//! mapped, with no driver call. What the heap needs next is made up from the stock the way it would
//! be created. Without that, a second run inherits large extents where it wants small ones, and the
//! footprint creeps up.

use crate::pool::heap::HeapState;
use crate::pool::remap::sources::{sources_in, take_out};
use crate::pool::state::Pool;

impl Pool {
    /// Starts a heap that has run low afresh, if it has moved enough extents, and that has paid or
    /// its work has gone the same way before: puts its wholly free extents into the stock. What is
    /// in use, or waits for another stream, stays where it is.
    pub(crate) fn maybe_start_afresh(&self, st: &mut HeapState) {
        // A small heap that runs short keeps what it has: it was given enough room to move no more.
        if st.private.is_some()
            || (self.options.slack_floor > 0 && st.runs_short())
            || !st.learnt.fresh_starts.decide(st.moves, st.extents.len() as u64, st.low.course())
        {
            return;
        }
        self.say(|| format!("heap {} has run low and starts afresh after {} moves", st.number, st.moves));
        st.low.start_afresh(st.extents.bytes());
        st.drop_empty_slabs(&self.order, &self.index);
        let mut free: Vec<u32> = st.regions.ready_from(self.page).collect();
        free.sort_unstable_by_key(|&r| st.regions.get(r).addr);
        let mut core = self.core.lock();
        for r in free {
            let g = st.regions.get(r);
            let Some(tiled) = st.extents.tiled(g.addr, g.end()) else { continue };
            for s in sources_in(st, r) {
                core.aliases.leave(s.place, s.tag);
                core.stock.put(s.extent, s.tag);
            }
            take_out(st, r, tiled);
        }
        st.note_taken();
        st.regions.start_over();
        st.learnt.memo.restart();
        st.moves = 0;
        // What moving has earned is kept while it is in doubt whether there will be less to move.
        if st.learnt.fresh_starts.doubt == 0 {
            (st.learnt.peak_live, st.learnt.remapped) = (st.live_bytes + st.waiting_bytes, 0);
        }
    }
}

//! A live block that grows where it is.

use crate::base::{Result, Status};
use crate::pool::heap::{HeapState, State};
use crate::pool::remap::anchor::Anchor;
use crate::pool::remap::plan::plan;
use crate::pool::remap::sources::Others;
use crate::pool::state::Pool;
use crate::pool::types::{Want, NONE};

impl Pool {
    /// Maps more directly behind a live block until it has the bytes wanted. `false` if the
    /// addresses there, or the memory, cannot be had.
    pub(crate) fn grow_block(&self, st: &mut HeapState, r: u32, want: Want) -> Result<bool> {
        let g = st.regions.get(r);
        let (next, end, size) = (g.next, g.end(), want.size);
        let lacks = Want { size: size - g.size, ..want };
        let next_ready = st.regions.get(next).state == State::Ready;
        let (gain, tail_end) =
            if next_ready { (st.regions.get(next).size, st.regions.get(next).end()) } else { (0, end) };
        if gain < lacks.size && self.flip(st, lacks, Some(tail_end)).is_none() {
            let at_end = st.regions.is_edge(if next_ready { st.regions.get(next).next } else { next });
            let need = (lacks.size - gain).next_multiple_of(self.page);
            let addresses = self.addresses_behind(st, tail_end);
            if !at_end || addresses < need {
                return Ok(false);
            }
            let region = if next_ready { next } else { NONE };
            let anchor = Anchor { region, at: tail_end, in_front: false, has: gain, old: false };
            let sources = self.sources(st, Some(anchor.region), |_| true);
            let allowed = self.decide_allowance(st, Want { size: need, ..want });
            // Otherwise a block that grows by little each time would be made of pages.
            let only_grows = sources.is_empty() && self.shares_extents(st, need);
            let (need, largest) = match self.ahead(st, Want { size: need, ..want }, only_grows, allowed) {
                (ahead, extent) if (need + 1..=addresses).contains(&ahead) => (ahead, extent),
                _ => (need, self.largest_extent(st, size)),
            };
            let Some(plan) = plan(need, self.page, largest, &sources, allowed) else {
                return Ok(false);
            };
            match self.carry_out(st, &mut Others::new(), Some(anchor), &plan, (lacks, false)) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(false),
                Err(e) if e.status == Status::OutOfMemory => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let next = st.regions.get(r).next;
        let behind = st.regions.get(next);
        if behind.state != State::Ready || behind.size < lacks.size {
            return Ok(false);
        }
        st.regions.cut(next, behind.addr, lacks.size);
        st.regions.absorb_next(r);
        st.note_taken();
        Ok(true)
    }
}

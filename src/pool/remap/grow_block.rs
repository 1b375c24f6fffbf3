//! A live block that grows where it is.

use crate::base::Result;
use crate::pool::heap::{HeapState, State};
use crate::pool::remap::anchor::Anchor;
use crate::pool::state::Pool;
use crate::pool::types::{Want, NONE};

impl Pool {
    /// Maps more directly behind a live block until it has the bytes wanted. `false` if the
    /// addresses there, or the memory, cannot be had.
    pub(crate) fn grow_block(&self, st: &mut HeapState, r: u32, want: Want) -> Result<bool> {
        let g = st.regions.get(r);
        let (next, end) = (g.next, g.end());
        let lacks = Want { size: want.size - g.size, ..want };
        let ready = Some(next).filter(|&n| st.regions.get(n).state == State::Ready);
        let (has, at) = ready.map_or((0, end), |n| (st.regions.get(n).size, st.regions.get(n).end()));
        if has < lacks.size && self.flip(st, lacks, Some(at)).is_none() {
            let behind = ready.map_or(next, |n| st.regions.get(n).next);
            let need = (lacks.size - has).next_multiple_of(self.page);
            if !st.regions.is_edge(behind) || self.addresses_behind(st, at) < need {
                return Ok(false);
            }
            let anchor = Anchor { region: ready.unwrap_or(NONE), at, in_front: false, has, old: false };
            if self.stitch_at(st, (lacks, false), Some(anchor))?.is_none() {
                return Ok(false);
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

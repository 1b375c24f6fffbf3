//! Placing a large block of a capture where a layout has it.

use crate::pool::heap::{StreamPart, GRANULE};
use crate::pool::state::Pool;
use crate::pool::types::{AllocRequest, Want, NONE};
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
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
        Some(self.finish_block(heap, &mut st, cut, req, Want::new(size, align, (req.stream, heap.lane))))
    }
}

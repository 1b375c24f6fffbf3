//! Placing a large block of a capture where a layout has it.

use crate::base::sync::lock;
use crate::pool::heap::{HeapState, Place, StreamPart, GRANULE};
use crate::pool::state::Pool;
use crate::pool::types::AllocRequest;
use std::sync::atomic::Ordering::Relaxed;

impl HeapState {
    /// The number of a ready region that has all of `[addr, addr + size)`.
    fn ready_around(&self, addr: u64, size: u64) -> Option<u32> {
        self.regions.ready_from(size).find(|&r| {
            let g = self.regions.get(r);
            g.addr <= addr && addr + size <= g.end()
        })
    }
}

impl Pool {
    /// A large block at the place that the layout has for it, if there is one and it is free.
    pub(crate) fn place_as_planned(
        &self,
        member: &StreamPart,
        req: &AllocRequest,
        size: u64,
        align: u64,
    ) -> Option<u64> {
        let align = align.max(GRANULE);
        let (heap, addr) = lock(&member.notes).next_place(size, align, &member.counts)?;
        let heap = self.heap(heap)?;
        let mut st = heap.lock();
        st.settle(&self.order, &self.index);
        let Some(r) = st.ready_around(addr, size) else {
            member.counts.deviations.fetch_add(1, Relaxed);
            return None;
        };
        let cut = st.regions.cut(r, addr, size);
        st.note_taken();
        let block = self.block(heap, &mut st, req, align);
        let addr = st.hand_out(cut, block, &self.index);
        st.admit(req, Place::Block { region: cut }, self.number);
        heap.publish(&st);
        Some(addr)
    }
}

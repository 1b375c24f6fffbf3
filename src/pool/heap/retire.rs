//! Handing a heap to another user: what the one before may still be using waits first.

use crate::pool::heap::region::GRANULE;
use crate::pool::heap::state::HeapState;
use crate::pool::memory::Index;
use crate::pool::order::{Order, CONTEXT};

impl HeapState {
    /// Hands the heap to a new stream with the old one's handle: what the old stream may still be
    /// using waits for the context from now on.
    pub(crate) fn retire(&mut self, order: &Order, index: &Index) {
        self.regions.tidy();
        self.identity = order.identity(self.lane);
        let tag = order.tag(CONTEXT);
        let unsettled: Vec<u32> =
            self.regions.ready_from(GRANULE).filter(|&r| !order.settled(self.regions.get(r).order)).collect();
        for r in unsettled {
            self.regions.take_ready(r);
            self.wait_for(r, &[tag]);
        }
        for slab in self.slabs.retire() {
            // The slab's last free may have named no stream, and so read the new stream's epoch.
            if self.slabs.try_get(slab).is_some_and(|s| !order.settled(s.idle)) {
                self.slabs.note_idle(slab, tag);
            }
            self.drop_slab(slab, order, index);
        }
    }

    /// Makes all free memory, settled or not, wait for everything submitted to the context so far:
    /// the last graph that could use it is gone, and until just now it could be launched on any
    /// stream.
    pub(crate) fn retire_all(&mut self, order: &Order, index: &Index) {
        self.regions.tidy();
        self.identity = order.identity(self.lane);
        let tag = order.tag(CONTEXT);
        self.wait_anew(tag);
        let ready: Vec<u32> = self.regions.ready_from(GRANULE).collect();
        for r in ready {
            self.regions.take_ready(r);
            self.wait_for(r, &[tag]);
        }
        let empty = self.slabs.retire();
        let slabs: Vec<u32> = self.slabs.iter().map(|s| s.0).collect();
        slabs.into_iter().for_each(|s| self.slabs.note_idle(s, tag));
        for slab in empty {
            self.drop_slab(slab, order, index);
        }
    }
}

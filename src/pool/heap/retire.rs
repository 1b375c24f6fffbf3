//! Handing a heap to another user: what the one before may still be using waits first.

use crate::pool::heap::region::GRANULE;
use crate::pool::heap::state::HeapState;
use crate::pool::memory::Index;
use crate::pool::order::{Order, Tag, CONTEXT};

impl HeapState {
    /// Hands the heap to its lane's new stream: what the old one may still be using waits for
    /// everything submitted to the context so far.
    ///
    /// `graphs`: until just now there was a graph that could use all free memory of the heap, and
    /// that could be launched on any stream. So all of it waits, settled or not.
    pub(crate) fn retire(&mut self, order: &Order, index: &Index, graphs: bool) {
        self.regions.tidy();
        self.identity = order.identity(self.lane);
        let tag = order.tag(CONTEXT);
        if graphs {
            self.wait_anew(tag);
        }
        let waits = |last: Tag| graphs || !order.settled(last);
        let ready: Vec<u32> = self.regions.ready_from(GRANULE).filter(|&r| waits(self.regions.get(r).tag)).collect();
        for r in ready {
            self.regions.take_ready(r);
            self.wait_for(r, &[tag]);
        }
        let empty = self.slabs.retire();
        // A slab's last free may have named no stream, and so read the new stream's epoch. That
        // goes for slabs with pending objects too: they are dropped later, but with this `idle`.
        let idle: Vec<u32> = self.slabs.iter().filter(|(_, s)| waits(s.idle)).map(|(i, _)| i).collect();
        idle.into_iter().for_each(|s| self.slabs.note_idle(s, tag));
        for slab in empty {
            self.drop_slab(slab, order, index);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::size::TIB;
    use crate::base::{DeviceId, StreamHandle};
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::pool::heap::slab::{class_of, slab_size};

    /// A stream's handle goes to another one. Before the heap hears of it, another thread frees the
    /// last object in use of a slab, naming no stream, while one more waits for another stream. The
    /// slab is dropped only when that has settled. The new stream must not take its memory as if it
    /// had freed it.
    #[test]
    fn an_old_slab_that_is_dropped_late_is_not_the_new_streams_own() {
        const PAGE: u64 = 2 << 20;
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let (order, index) = (Order::new(host, DeviceId(0), 4), Index::of_pages(PAGE));
        assert!(index.add_root(8 * TIB, TIB));
        let lane = order.add_lane(false, StreamHandle(1), 1).unwrap();
        let mut st = HeapState::new(0, lane, order.identity(lane), PAGE);
        let class = class_of(1000);
        let region = st.regions.add(8 * TIB, slab_size(class));
        st.add_slab(class, region, &index);
        let [away, last] = [(); 2].map(|()| st.take_object(class, 1000).unwrap().0);
        // The other stream's tag, which the device passes at once, as far as the heap is told.
        st.take_back(away, &[Tag::SETTLED], &order, &index);
        // The first half of `change_hands`, the free, and the second half.
        order.hand_over(lane, 2);
        st.take_back_own(last, || order.tag(lane), &order, &index);
        st.retire(&order, &index, false);
        assert!(st.settle(&order, &index));
        assert_eq!((st.slabs.iter().count(), st.waiting_bytes), (0, slab_size(class)));
        assert_eq!(st.take_waiting_of(lane, slab_size(class), GRANULE, &order), None);
    }
}

//! The memory of a heap that waits for other streams, and making it ready; and handing the heap to
//! another user, as what the one before may still be using waits first.

use crate::pool::heap::region::{Region, State, GRANULE, MIN_SPLIT};
use crate::pool::heap::state::HeapState;
use crate::pool::heap::waiting::{Item, Wait, MANY};
use crate::pool::memory::Index;
use crate::pool::order::{Order, Tag, CONTEXT};

/// How many regions that wait for one stream are looked at for its request: thousands wait where
/// the stream is far ahead of the device.
const LOOKS: usize = 256;

impl HeapState {
    /// Makes everything that waits wait for `tag` instead, which comes after all that it waited
    /// for.
    fn wait_anew(&mut self, tag: Tag) {
        for wait in std::mem::take(&mut self.waiting.queues).into_iter().flat_map(|q| q.1) {
            if let Item::Region(r) = wait.item {
                self.regions.get_mut(r).tag = tag;
            }
            self.waiting.push(Wait { tag, item: wait.item, also: Vec::new() });
        }
    }

    /// Drops the entries of regions that wait no longer from the queue of `lane`. Must come before
    /// what is left of them waits again: a part of a region may have its number.
    fn forget_taken(&mut self, lane: u32) {
        let Some(queue) = self.waiting.queues.iter_mut().find(|q| q.0 == lane) else { return };
        queue.1.retain(|w| w.item.region().is_none_or(|r| self.regions.get(r).state == State::Waiting));
    }

    /// The lanes that something here waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = u32> + '_ {
        let queues = self.waiting.queues.iter().filter(|q| !q.1.is_empty()).map(|q| q.0);
        queues.chain(self.slabs.old_since.map(Tag::lane))
    }

    /// Tags that something here waits for and that no marker covers yet.
    pub(crate) fn unmarked<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Tag> + 'a {
        let last = self.waiting.queues.iter().filter_map(|q| q.1.back()).map(|w| w.tag);
        last.chain(self.slabs.old_since).filter(|&t| !order.marked(t))
    }

    /// Whether something here will be ready once the device has passed a marker already recorded.
    pub(crate) fn about_to_settle(&self, order: &Order) -> bool {
        let first = self.waiting.queues.iter().filter_map(|q| q.1.front()).map(|w| w.tag);
        first.chain(self.slabs.old_since).any(|tag| order.marked(tag))
    }

    /// Bytes whose marker is recorded and not yet known to be passed.
    pub(crate) fn in_flight(&self, order: &Order) -> u64 {
        let marked = self.waiting.queues.iter().map(|q| q.1.iter().take_while(|w| order.marked(w.tag)));
        // Entries that the device is known to have passed may still be in front.
        let queues = marked.map(|q| q.skip_while(|w| order.settled(w.tag)));
        queues.flatten().filter_map(|w| w.item.region()).map(|r| self.regions.get(r).size).sum()
    }

    /// Whether something that waits for `lane` no longer has to.
    #[inline]
    pub(crate) fn has_settled(&self, lane: u32, order: &Order) -> bool {
        let queue = self.waiting.queues.iter().find(|q| q.0 == lane);
        queue.and_then(|q| q.1.front()).is_some_and(|w| order.settled(w.tag))
    }

    /// Makes ready whatever the device is known to have passed. Returns whether anything was.
    pub(crate) fn settle(&mut self, order: &Order, index: &Index) -> bool {
        let mut any = false;
        if self.is_monotone() {
            return any;
        }
        // A queue that is added meanwhile need not be visited: its tag has not settled.
        for q in 0..self.waiting.queues.len() {
            while let Some(mut wait) = self.waiting.pop_settled(q, order) {
                wait.also.retain(|&tag| !order.settled(tag));
                if let Some(&next) = wait.also.last() {
                    if let Item::Region(r) = wait.item {
                        self.regions.get_mut(r).tag = next;
                    }
                    self.waiting.push(Wait { tag: next, ..wait });
                    continue;
                }
                any = true;
                match wait.item {
                    Item::Region(r) => {
                        self.waiting_bytes -= self.regions.get(r).size;
                        self.regions.make_ready(r, Tag::SETTLED);
                    }
                    Item::Object { slab, number } => {
                        if self.slabs.settle(slab, number) {
                            self.drop_slab(slab, order, index);
                        }
                    }
                }
            }
        }
        if self.slabs.old_since.is_some_and(|tag| order.settled(tag)) {
            any = true;
            for slab in self.slabs.reopen(|tag| order.settled(tag)) {
                self.drop_slab(slab, order, index);
            }
        }
        if self.waiting.queues.len() > MANY {
            self.waiting.queues.retain(|q| !q.1.is_empty());
        }
        any
    }

    /// The regions that the present stream of `lane` freed itself and that wait for nothing else,
    /// and where in its queue they are.
    fn waiting_of<'a>(&'a self, lane: u32, order: &'a Order) -> impl Iterator<Item = (usize, u32)> + 'a {
        let queue = self.waiting.queues.iter().find(|q| q.0 == lane);
        queue.into_iter().flat_map(|q| &q.1).enumerate().filter_map(move |(at, w)| {
            let r = w.item.region()?;
            (w.also.is_empty() && order.own(w.tag, lane)).then_some((at, r))
        })
    }

    /// Makes extents ready that lie wholly in neighbouring regions of [`Self::waiting_of`], in that
    /// stream's order; what is left on either side goes on waiting. Returns their regions.
    pub(crate) fn ready_extents_of(&mut self, lane: u32, order: &Order) -> Vec<u32> {
        let mut own: Vec<u32> = self.waiting_of(lane, order).map(|w| w.1).collect();
        own.sort_unstable_by_key(|&r| self.regions.get(r).addr);
        let groups: Vec<&[u32]> = own.chunk_by(|&a, &b| self.regions.get(a).next == b).collect();
        let (mut ready, mut left) = (Vec::new(), Vec::new());
        for group in groups {
            let (Some(&first), Some(&last)) = (group.first(), group.last()) else { continue };
            let (start, stop) = (self.regions.get(first).addr, self.regions.get(last).end());
            let Some((addr, end)) = self.extents.tiled(start, stop) else { continue };
            let tag = group.iter().fold(Tag::SETTLED, |tag, &r| tag.later(self.regions.get(r).tag));
            self.waiting_bytes -= stop - start;
            for &r in group {
                self.regions.get_mut(r).state = State::Live;
            }
            (1..group.len()).for_each(|_| self.regions.absorb_next(first));
            let (whole, parts) = self.regions.cut_apart(first, addr, end - addr);
            left.extend(parts.into_iter().flatten().map(|part| (part, tag)));
            self.regions.put_back(whole, tag);
            ready.push(whole);
        }
        self.forget_taken(lane);
        left.into_iter().for_each(|(part, tag)| self.wait_for(part, &[tag]));
        ready
    }

    /// The smallest waiting region that the present stream of `lane` freed itself and that has
    /// `size` bytes and starts at a multiple of `align`, cut to size and marked live. Looks at the
    /// [`LOOKS`] oldest. What is left over, too, is only for that lane, so it goes on waiting.
    pub(crate) fn take_waiting_of(&mut self, lane: u32, size: u64, align: u64, order: &Order) -> Option<u32> {
        let fits = |r: &Region| r.addr.is_multiple_of(align) && r.size >= size;
        let own = self.waiting_of(lane, order).take(LOOKS).filter(|w| fits(self.regions.get(w.1)));
        let (at, best) = own.min_by_key(|w| self.regions.get(w.1).size)?;
        let tag = self.regions.get(best).tag;
        self.waiting_bytes -= self.regions.get(best).size;
        self.regions.get_mut(best).state = State::Live;
        // Before what is left of it waits again.
        self.waiting.queues.iter_mut().filter(|q| q.0 == lane).for_each(|q| _ = q.1.remove(at));
        let spare = self.regions.get(best).size - size;
        if spare >= MIN_SPLIT {
            let rest = self.regions.split(best, size);
            self.wait_for(rest, &[tag]);
        }
        Some(best)
    }

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
        // A slab's last free may have named no stream, and so read the new stream's epoch.
        let idle = |last: Tag| if waits(last) { tag } else { Tag::SETTLED };
        for slab in self.slabs.retire(tag, idle) {
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
    use crate::driver::Watch;
    use crate::pool::heap::slab::{class_of, slab_size};

    /// A stream's handle goes to another one. Before the heap hears of it, another thread frees the
    /// last object in use of a slab, naming no stream, while one more waits for another stream. The
    /// new stream must not take that memory as if it had freed it.
    #[test]
    fn an_old_slab_is_the_new_streams_once_the_context_has_passed() {
        const PAGE: u64 = 2 << 20;
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let (order, index) = (Order::new(host, DeviceId(0), 4, Watch::Ask), Index::of_pages(PAGE));
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
        st.drop_empty_slabs(&order, &index);
        assert_eq!((st.slabs.iter().count(), st.waiting_bytes, st.regions.ready_bytes()), (1, 0, 0));
        assert_eq!(st.take_object(class, 1000), None);
        assert!(order.mark_context(None).unwrap() && order.context_passes_within(10).unwrap());
        assert!(st.settle(&order, &index));
        assert!(st.take_object(class, 1000).is_some());
    }
}

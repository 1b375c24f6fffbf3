//! Flipping back: extents that are free return to addresses where they are mapped still, with no driver call.
//!
//! A run of dormant aliases can be taken back when every one of its extents is wholly free in this heap, or in stock and
//! of no other stream's unsettled order. Two places are looked at: what answered the same request at the same point
//! before the heap last started afresh, so that a workload that repeats is answered alike each time; and the latest runs
//! made for a request of this size.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::aliases::RunId;
use super::alloc::Want;
use super::extend::{commit, Arrival, Others, Piece};
use super::heap::{Heap, HeapState};
use super::order::Tag;
use super::region::State;
use super::{lock, Core, Pool};
use crate::base::size::human;
use std::sync::atomic::Ordering::Relaxed;

/// Free regions by address: start, end, number.
type Free = Vec<(u64, u64, u32)>;

impl Pool {
    /// Takes a run back that has room for the request, with what is free in front of it. Returns whether it did.
    pub(super) fn flip_back(&self, heap: &Heap, st: &mut HeapState, want: Want) -> bool {
        let mut core = lock(&*self.core);
        if core.aliases.dormant() == 0 {
            return false;
        }
        let mut free = Free::new();
        if let Some(run) = st.memo.next(want) {
            if self.take_run(&mut core, heap, st, &mut free, run, want) {
                st.memo.followed();
                return true;
            }
        }
        let similar: Vec<RunId> = st.memo.similar(want).collect();
        for run in similar {
            if self.take_run(&mut core, heap, st, &mut free, run, want) {
                st.memo.note(want, run);
                return true;
            }
        }
        false
    }

    fn take_run(
        &self,
        core: &mut Core,
        heap: &Heap,
        st: &mut HeapState,
        free: &mut Free,
        run: RunId,
        want: Want,
    ) -> bool {
        let Some((addr, extents)) = core.aliases.whole(run) else { return false };
        // What is free right in front of the run counts too.
        let ready = |&r: &u32| st.regions.get(r).state == State::Ready;
        let front = st.regions.tail_at(addr).filter(ready);
        let start = front.map_or(addr, |r| st.regions.get(r).addr);
        let mut end = addr;
        let (mut pieces, mut stocked) = (Vec::new(), Vec::new());
        let (mut moved, mut region_end) = (0, 0);
        let mut order = Tag::SETTLED;
        for (extent, present) in extents {
            end += extent.size;
            let Some(at) = present else {
                match core.stock.tag(extent) {
                    Some(t) if self.order.settled(t) => {}
                    Some(t) if self.order.own(t, heap.lane) => order = order.later(t),
                    _ => return false,
                }
                stocked.push(extent);
                continue;
            };
            // Often neighbours move together.
            let stop = at + extent.size;
            if let Some(p) = pieces.last_mut().filter(|p: &&mut Piece| p.end == at && stop <= region_end) {
                p.end = stop;
                moved += 1;
                continue;
            }
            if free.is_empty() {
                free.extend(st.regions.ready_from(self.page).map(|r| {
                    let g = st.regions.get(r);
                    (g.addr, g.end(), r)
                }));
                free.sort_unstable();
            }
            // What lies in a free region of this heap is this heap's.
            let i = free.partition_point(|f| f.0 <= at);
            match i.checked_sub(1).and_then(|i| free.get(i)) {
                Some(&(_, to, region)) if stop <= to && Some(region) != front => {
                    pieces.push(Piece { heap: heap.number, region, addr: at, end: stop });
                    region_end = to;
                    moved += 1;
                }
                _ => return false,
            }
        }
        if start.checked_next_multiple_of(want.align).is_none_or(|s| s.saturating_add(want.size) > end) {
            return false;
        }
        self.say(|| {
            let stocked = stocked.len();
            format!(
                "heap {}: {} for a request of {} where they are mapped still: {moved} extents moved, {stocked} from the stock",
                heap.number,
                human(end - addr),
                human(want.size)
            )
        });
        for &extent in &stocked {
            core.stock.take_this(extent);
        }
        commit(core, heap.number, st, &mut Others::new(), pieces, order, Arrival::Back { run });
        self.count_moves(st, moved);
        true
    }

    /// Counts what a stitch moved.
    pub(super) fn count_moves(&self, st: &mut HeapState, moved: u64) {
        if moved > 0 {
            st.moves += moved;
            self.counters.stitches.fetch_add(1, Relaxed);
            self.counters.moved.fetch_add(moved, Relaxed);
        }
    }
}

//! Flipping back: extents that are free return to addresses where they are mapped still, with no driver call.
//!
//! A run of dormant aliases can be taken back when every one of its extents is wholly free in this heap, or in stock and
//! of no other stream's unsettled order. Two places are looked at: what answered the same request at the same point
//! before the heap last started afresh, so that a workload that repeats is answered alike each time; and the latest runs
//! made for a request of this size.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::aliases::RunId;
use super::alloc::Want;
use super::heap::{Heap, HeapState};
use super::order::Tag;
use super::parts::Part;
use super::region::State;
use super::{lock, Core, Pool};
use crate::base::size::human;

/// A run that can be taken back: what of it lies in this heap is in the regions that its parts name.
struct Free {
    /// How many extents lie in this heap: the others are in stock.
    moved: u64,
    /// When the run was last used.
    order: Tag,
}

impl Pool {
    /// Takes a run back that has room for the request, with what is free next to it. Returns the request's own region, live.
    pub(super) fn flip_back(&self, heap: &Heap, st: &mut HeapState, want: Want) -> Option<u32> {
        if let Some(region) = self.flip_again(heap, st, want) {
            return Some(region);
        }
        let mut core = lock(&*self.core);
        if core.aliases.dormant() == 0 || st.private.is_some() {
            return None;
        }
        let similar: Vec<RunId> = st.memo.similar(want).collect();
        for run in similar {
            if let Some(region) = self.take_run(&mut core, heap, st, run, want) {
                st.memo.note(want, run);
                return Some(region);
            }
        }
        None
    }

    /// The same with the run that answered this request at this point the time before, if that can be taken back.
    pub(super) fn flip_again(&self, heap: &Heap, st: &mut HeapState, want: Want) -> Option<u32> {
        let run = st.memo.next(want).filter(|_| st.private.is_none())?;
        let mut core = lock(&*self.core);
        let region = self.take_run(&mut core, heap, st, run, want)?;
        st.memo.followed();
        fetch_ahead(&core, st);
        Some(region)
    }

    /// Takes a run back if it can be, and cuts the request out.
    fn take_run(&self, core: &mut Core, heap: &Heap, st: &mut HeapState, run: RunId, want: Want) -> Option<u32> {
        let mut parts = core.aliases.parts(run)?;
        let mut found = self.free_parts(core, heap, st, run, want, &mut parts);
        if found.is_none() && !core.aliases.hold(run, &parts, |e| core.stock.tag(e).is_some()) {
            parts = core.aliases.look_up(run);
            found = self.free_parts(core, heap, st, run, want, &mut parts);
        }
        let Some(Free { moved, order }) = found else {
            core.aliases.keep(run, parts);
            return None;
        };
        let (start, end, len) = core.aliases.bounds(run);
        if moved < len as u64 {
            for p in parts.iter().filter(|p| p.whereabouts().is_none()) {
                core.stock.take_all(core.aliases.extents(run, p));
            }
        }
        self.say(|| {
            format!(
                "heap {}: {} for a request of {} where they are mapped still: {moved} extents moved, {} from the stock",
                heap.number,
                human(end - start),
                human(want.size),
                len as u64 - moved,
            )
        });
        if !st.extents.put_back(start, end, len) {
            st.extents.insert_all(start, end, core.aliases.run(run));
        }
        let region = st.regions.add(start, end - start);
        let region = st.regions.take_neighbours(region, order);
        st.count_moves(moved);
        let (from, size) = st.place_in(region, want.size, want.align);
        let cut = st.regions.cut_apart(region, from, size);
        st.leave(&parts, cut);
        core.aliases.take_back(run, parts, order);
        Some(cut.block)
    }

    /// What to cut out of free regions of this heap, if all of the run is free and it has room for the request.
    fn free_parts(
        &self,
        core: &Core,
        heap: &Heap,
        st: &HeapState,
        run: RunId,
        want: Want,
        parts: &mut [Part],
    ) -> Option<Free> {
        let (addr, end, _) = core.aliases.bounds(run);
        // What is free right in front of the run and right behind it counts too.
        let ready = |&r: &u32| st.regions.get(r).state == State::Ready;
        let (front, back) = (st.regions.tail_at(addr).filter(ready), st.regions.head_at(end).filter(ready));
        let start = front.map_or(addr, |r| st.regions.get(r).addr);
        let end = back.map_or(end, |r| st.regions.get(r).end());
        if start.checked_next_multiple_of(want.align).is_none_or(|s| s.saturating_add(want.size) > end) {
            return None;
        }
        let (mut moved, mut order) = (0, Tag::SETTLED);
        for p in parts {
            let Some((at, stop)) = p.whereabouts() else {
                for extent in core.aliases.extents(run, p) {
                    match core.stock.tag(extent) {
                        Some(t) if self.order.settled(t) => {}
                        Some(t) if self.order.own(t, heap.lane) => order = order.later(t),
                        _ => return None,
                    }
                }
                continue;
            };
            // What lies in a free region of this heap is this heap's.
            let region = st.regions.wide_around(at, stop, p.region)?;
            p.region = region;
            if Some(region) == front || Some(region) == back {
                return None;
            }
            moved += u64::from(p.len);
            order = order.later(st.regions.get(region).order);
        }
        Some(Free { moved, order })
    }
}

/// Fetches what is kept about the next steps, if they are those of the time before: they are a few dozen operations away, and what is
/// known about the runs is scattered over more memory than stays near. What leads to a run's parts is fetched a step before them.
fn fetch_ahead(core: &Core, st: &HeapState) {
    if let Some(run) = st.memo.ahead(1) {
        core.aliases.fetch_run(run);
    }
    if let Some(run) = st.memo.ahead(0) {
        core.aliases.fetch_parts(run);
        let (start, end, _) = core.aliases.bounds(run);
        if start < end {
            st.extents.fetch(start, end);
        }
    }
}

//! Flipping back: free extents return, with no driver call, to addresses where they are still
//! mapped.
//!
//! A run of dormant aliases can be taken back if every one of its extents is wholly free in this
//! heap, or in stock and of no other stream's unsettled order. Only the run that last answered the
//! same request at the same point after a fresh start is looked at, so that work that repeats is
//! answered alike each time.

use crate::base::size::human;
use crate::pool::heap::{HeapState, State};
use crate::pool::memory::{RunId, RunPart};
use crate::pool::order::Tag;
use crate::pool::remap::sources::take_out;
use crate::pool::state::{Core, Pool};
use crate::pool::types::Want;

impl Pool {
    /// Takes back the run that answered this request at this point last time, if possible. Returns
    /// the request's own region, live. With `behind`, the request is what a block lacks: the run
    /// must begin there, where the ready memory behind the block ends. It becomes ready, and its
    /// region is returned.
    pub(crate) fn flip(&self, st: &mut HeapState, want: Want, behind: Option<u64>) -> Option<u32> {
        let run = st.learnt.memo.next(want).filter(|_| st.private.is_none())?;
        let mut core = self.core.lock();
        let (start, end, len) = core.aliases.bounds(run);
        if behind.is_some_and(|at| start != at) {
            return None;
        }
        let mut parts = core.aliases.parts(run)?;
        let mut free = self.free_parts(&core, st, run, want, &mut parts);
        if free.is_none() {
            // The extents may have moved since.
            parts = core.aliases.look_up(run);
            free = self.free_parts(&core, st, run, want, &mut parts);
        }
        let Some((moved, last_use)) = free else {
            core.aliases.set_parts(run, parts);
            return None;
        };
        for p in parts.iter().filter(|p| p.whereabouts().is_none()) {
            let Core { aliases, stock, .. } = &mut *core;
            aliases.extents(run, p).for_each(|e| _ = stock.take_this(e));
        }
        let cut = Some(want).filter(|_| behind.is_none());
        self.say(|| {
            let (heap, stocked) = (st.number, len as u64 - moved);
            let [run, asked] = [end - start, cut.map_or(end - start, |w| w.size)].map(human);
            format!(
                "heap {heap}: {run} for a request of {asked} where they are mapped still: {moved} extents moved, {stocked} \
                 from the stock"
            )
        });
        if !st.extents.put_back(start, end, len) {
            st.extents.insert_all(start, end, core.aliases.run(run));
        }
        st.count_moves(moved, moved);
        st.stitches += u64::from(moved > 0);
        st.learnt.fresh_starts.taken_back += len as u64;
        // From high to low addresses, as `parts_from` has sorted them: what is left of a region
        // keeps its number, by which later parts know it.
        for (p, there) in parts.iter().filter_map(|p| Some(p).zip(p.whereabouts())) {
            take_out(st, p.region, there);
        }
        let region = st.enter_run((start, end), last_use, cut);
        core.aliases.take_back(run, parts, st.regions.get(region).tag);
        st.learnt.memo.note(want, run);
        Some(region)
    }

    /// Looks for all of a run in free regions of this heap and in stock, with room for the request.
    /// Updates the regions that `parts` name.
    fn free_parts(
        &self,
        core: &Core,
        st: &HeapState,
        run: RunId,
        want: Want,
        parts: &mut [RunPart],
    ) -> Option<(u64, Tag)> {
        let (addr, end, _) = core.aliases.bounds(run);
        // What is free right in front of the run and right behind it counts too.
        let ready = |&r: &u32| st.regions.get(r).state == State::Ready;
        let (front, back) = (st.regions.tail_at(addr).filter(ready), st.regions.head_at(end).filter(ready));
        let start = front.map_or(addr, |r| st.regions.get(r).addr);
        let end = back.map_or(end, |r| st.regions.get(r).end());
        if start.checked_next_multiple_of(want.align).is_none_or(|s| s.saturating_add(want.size) > end) {
            return None;
        }
        let (mut moved, mut last_use) = (0, Tag::SETTLED);
        for p in parts {
            let Some((at, stop)) = p.whereabouts() else {
                for extent in core.aliases.extents(run, p) {
                    match core.stock.tag(extent) {
                        Some(t) if self.order.settled(t) => {}
                        Some(t) if self.order.own(t, st.lane) => last_use = last_use.later(t),
                        _ => return None,
                    }
                }
                continue;
            };
            // What lies in a free region of this heap is this heap's.
            let region = st.regions.ready_around(at, stop, p.region)?;
            p.region = region;
            // The run will join these regions, so none of its extents may come from there.
            if Some(region) == front || Some(region) == back {
                return None;
            }
            moved += u64::from(p.len);
            last_use = last_use.later(st.regions.get(region).tag);
        }
        Some((moved, last_use))
    }
}

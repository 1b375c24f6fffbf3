//! Where a stitched run goes: next to free memory that has a part of the request already, if there
//! is room there.
//!
//! Then only the rest is mapped. So it pays to keep the ends of spans open: moves empty small
//! regions before they touch large ones (`plan.rs`). docs/adr/extent-sizes.md has what it saves.

use crate::pool::heap::{HeapState, State};
use crate::pool::state::Pool;
use crate::pool::types::{Want, NONE};
use std::cell::Cell;
use std::cmp::Reverse;

/// A free region at an end of a span, next to which a run is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    /// [`NONE`] if nothing free lies next to the run.
    pub(crate) region: u32,
    /// Where the run starts, or ends if it goes in front of the region.
    pub(crate) at: u64,
    pub(crate) in_front: bool,
    /// Bytes of the request the region already holds.
    pub(crate) has: u64,
    /// Whether old addresses may lie there, which must be unmapped first (`old_addresses.rs`).
    pub(crate) old: bool,
}

/// Old addresses are unmapped for a region that has one part in this many of what the request
/// lacks, or more: an unmapping costs half as much as a move.
const WORTH_UNMAPPING: u64 = 2;

/// The most regions looked at for one at an end. Of many small ones none has much of the request.
const LOOKS: u32 = 4096;

impl Anchor {
    /// Where a run of `len` bytes starts. 0, where no addresses are, if fewer lie in front.
    pub(crate) fn start(&self, len: u64) -> u64 {
        match self.in_front {
            true => self.at.saturating_sub(len),
            false => self.at,
        }
    }
}

impl Pool {
    /// The free region at an end of a span that leaves least to add.
    pub(crate) fn anchor(&self, st: &HeapState, want: Want) -> Option<Anchor> {
        if let Some(anchor) = self.kept_anchor(st, want) {
            return Some(anchor);
        }
        let core = self.core.lock();
        let lacks = |has: u64| (want.size - has).next_multiple_of(self.page);
        let over = |has: u64| Some(&self.order).filter(|_| st.learnt.gives_up && has >= lacks(has) / WORTH_UNMAPPING);
        // The addresses that a private heap keeps lie behind what it has. The start of a run is
        // aligned to a page and no further.
        let may_precede = st.private.is_none() && want.align <= self.page;
        let beside = |r: u32, in_front: bool| {
            let g = st.regions.get(r);
            let (at, next, has) = match in_front {
                true => (g.addr, g.prev, g.size),
                false => (g.end(), g.next, g.size.saturating_sub(g.addr.next_multiple_of(want.align) - g.addr)),
            };
            let open = (may_precede || !in_front) && has > 0 && has < want.size && st.regions.is_edge(next);
            let may = open && core.addresses_beside(at, in_front, lacks(has), over(has)) >= lacks(has);
            may.then(|| Anchor { region: r, at, in_front, has, old: over(has).is_some() })
        };
        // Regions of one bin differ little. Of those that have most, take the one at the lowest
        // address.
        let (mut bins, looks) = (st.regions.ready_bins_down(), Cell::new(LOOKS));
        bins.find_map(|bin| {
            let bin = bin.take_while(|_| looks.replace(looks.get().saturating_sub(1)) > 0);
            let both = bin.flat_map(|r| [beside(r, false), beside(r, true)]).flatten();
            both.max_by_key(|a| (a.has, !a.in_front, Reverse(a.at)))
        })
    }

    /// Behind the last newly mapped run, if a span still ends there and enough addresses follow.
    pub(crate) fn growth_anchor(&self, st: &HeapState, want: Want) -> Option<Anchor> {
        let at = st.grown_to;
        let ends_there = st.private.is_none() && at.is_multiple_of(want.align) && st.regions.tail_at(at).is_some();
        let fits = ends_there && self.core.lock().holes.after(at) >= want.size;
        fits.then_some(Anchor { region: NONE, at, in_front: false, has: 0, old: false })
    }

    /// Where a private heap's span grows: at the start of the addresses it keeps, behind what is
    /// free there.
    fn kept_anchor(&self, st: &HeapState, want: Want) -> Option<Anchor> {
        let at = st.kept.0;
        let tail = st.regions.tail_at(at).filter(|&r| st.regions.get(r).state == State::Ready);
        let start = tail.map_or(at, |r| st.regions.get(r).addr).checked_next_multiple_of(want.align)?;
        let has = at.checked_sub(start)?;
        let need = want.size.checked_sub(has)?.checked_next_multiple_of(self.page)?;
        let fits = at > 0 && has < want.size && self.addresses_behind(st, at) >= need;
        let region = tail.filter(|_| has > 0).unwrap_or(NONE);
        fits.then_some(Anchor { region, at, in_front: false, has, old: false })
    }

    /// How many addresses from `at` on the heap may grow into.
    pub(crate) fn addresses_behind(&self, st: &HeapState, at: u64) -> u64 {
        match st.kept {
            (start, end) if start == at && start < end => end - start,
            _ => self.core.lock().holes.after(at),
        }
    }
}

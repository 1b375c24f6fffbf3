//! Old addresses that lie where a run is to go.
//!
//! Moved extents stay mapped at their old addresses, so that work that repeats can return there
//! (`flip.rs`). But those addresses also keep spans next to them from growing in place. A heap
//! whose work never repeats maps whole requests elsewhere for ever because of that. So, once it has
//! moved very much, it unmaps old addresses where they lie next to a free region that has much of
//! the request. docs/adr/aliases.md has what this saves.

use crate::pool::heap::{HeapState, State};
use crate::pool::order::Order;
use crate::pool::state::{Core, Pool};

/// A heap moves for ever if it has moved more than this many times its peak since it last started
/// afresh. Work that repeats after less finds all its old addresses.
const FOR_EVER: u64 = 8;

/// Blocks end in the order they were made if the 90th percentile of the live ones' ages is at most
/// this many times the median. In a queue it is 1.8 times that, and 3.3 times if any may end next.
const IN_ORDER: u64 = 2;

/// About so many regions tell how old live blocks are.
const SAMPLE: usize = 1024;

impl Pool {
    /// Whether a heap gives up old addresses to move less. Two kinds of work are better off with
    /// them: requests that have repeated since the last fresh start take everything back the time
    /// after; and where blocks end in the order they were made, a free region soon grows by itself.
    pub(crate) fn gives_up_old_addresses(&self, st: &HeapState) -> bool {
        let l = &st.learnt;
        // After a trim the peak may be less than what is live now.
        let peak = l.peak_live.max(st.live_bytes + st.waiting_bytes);
        st.private.is_none()
            && l.remapped > peak.saturating_mul(FOR_EVER)
            && !l.memo.repeats()
            && !ends_in_order(st, self.page)
    }

    /// Unmaps the old addresses where `len` bytes are to go behind `at`, or in front of it. `false`
    /// if that place cannot be had.
    pub(crate) fn make_way(&self, at: u64, in_front: bool, len: u64) -> bool {
        let claims = {
            let mut core = self.core.lock();
            if core.addresses_beside(at, in_front, len, Some(&self.order)) < len {
                return false;
            }
            let start = if in_front { at - len } else { at };
            core.aliases.claim_within(start, start + len, &self.order)
        };
        let done = self.unmap_claims(&claims);
        // The run goes elsewhere then.
        done.inspect_err(|e| self.say(|| format!("old addresses not unmapped: {}", e.message))).is_ok()
    }
}

/// Whether the heap's blocks of a page or more end in the order they were made.
fn ends_in_order(st: &HeapState, page: u64) -> bool {
    let live = st.regions.sample(SAMPLE).filter(|(_, g)| g.state == State::Live && g.size >= page);
    let mut made: Vec<u64> = live.map(|(r, _)| st.regions.block(r).id).collect();
    made.sort_unstable();
    let Some(&newest) = made.last() else { return false };
    let age = |percentile: usize| newest - made[(made.len() - 1) * (100 - percentile) / 100];
    age(90) <= age(50).saturating_mul(IN_ORDER)
}

impl Core {
    /// How many addresses right behind `at`, or right in front of it, a run may take. Old addresses
    /// that the device has passed count only if the order that tells so is given. Does not look
    /// further than for `enough`.
    pub(crate) fn addresses_beside(&self, at: u64, in_front: bool, enough: u64, old: Option<&Order>) -> u64 {
        let holes = |at: u64| if in_front { self.holes.before(at) } else { self.holes.after(at) };
        let mut found = holes(at);
        let Some(order) = old else { return found };
        while found < enough {
            let next = if in_front { at - found } else { at + found };
            match holes(next) + self.aliases.passed_beside(next, in_front, order) {
                0 => break,
                more => found += more,
            }
        }
        found
    }
}

//! How much a heap may map for a request: its slack and what it has bought (`economy.rs`), and what
//! it maps ahead.

use crate::base::size::MIB;
use crate::pool::heap::{HeapState, SMALL_HEAP};
use crate::pool::remap::plan::Allowance;
use crate::pool::state::Pool;
use crate::pool::types::Want;

/// A small heap that runs short grows by at least this many bytes, if it may without moving: memory
/// for one request alone leaves the next one short.
const AHEAD: u64 = 64 * MIB;

/// But not by more than one part in this many of what the limit leaves.
const AHEAD_SHARE: u64 = 8;

/// Its extents are then no larger than this, or than the request's, so that they strand less
/// (docs/adr/extent-sizes.md).
const AHEAD_EXTENT: u64 = 16 * MIB;

/// What is mapped for a request of at most this many bytes goes behind what was mapped before, and
/// may be more than is asked for. While a heap that may earn slack is small beside what is left,
/// that holds for twice as many. Larger requests get spans of their own, which can be continued at
/// their ends, and extents of their own, which can move one by one (docs/adr/pool-mechanisms.md).
const SMALL_GROWTH: u64 = 2 * MIB;

/// For small requests, a heap that only grows maps one part in this many of what it has at a time,
/// and at most its slack in bytes. A large one maps one part in [`LARGE_GROWTH_SHARE`], which its
/// slack as a share allows, and at most [`LARGE_GROWTH`]. So does a heap that may earn slack, once
/// it has none left: what keeps it from moving anything are live blocks beside what is free, and it
/// will have to grow again.
const GROWTH_SHARE: u64 = 8;

const LARGE_GROWTH_SHARE: u64 = 96;

const LARGE_GROWTH: u64 = 128 * MIB;

impl Pool {
    /// How much may be created for a request. The slack is the heap's own and counts from its last
    /// fresh start, so that work that repeats is decided alike each time.
    pub(crate) fn decide_allowance(&self, st: &mut HeapState, want: Want) -> Allowance {
        let size = want.size;
        // For this heap, memory that waits for another stream is in use.
        st.learnt.peak_live = st.learnt.peak_live.max(st.live_bytes + st.waiting_bytes + size);
        let slack = st.learnt.peak_live / 1000 * u64::from(self.options.slack_permille);
        let bought = self.decide_to_buy(st, size);
        let floor = match bought {
            0 => self.slack_floor(st, want),
            bought => self.slack_floor(st, want).max(slack + bought),
        };
        let more = |slack: u64| (st.learnt.peak_live + slack).saturating_sub(st.extents.bytes());
        let stock = self.core.lock().stock.bytes();
        let (cheap, floor) = (more(slack), more(floor));
        let all = match self.budget(st, size) {
            left if left < cheap.max(floor) => left.saturating_add(self.in_flight(st, want.reach)),
            left => left,
        };
        Allowance { hard: self.creatable().saturating_add(stock), cheap: cheap.min(all), floor: floor.min(all) }
    }

    /// Bytes a heap may map beyond its peak rather than move anything. A small heap that runs short
    /// again and again gets more: it would move memory all the time to save what the device will
    /// not miss.
    fn slack_floor(&self, st: &mut HeapState, want: Want) -> u64 {
        if want.class.is_none() {
            // A slab has room in any extent, so a heap never moves anything for it.
            st.note_short(want.size);
        }
        match self.options.slack_floor {
            floor if floor > 0 && st.runs_short() => floor + SMALL_HEAP.saturating_sub(st.learnt.peak_live) / 8,
            floor => floor,
        }
    }

    /// Whether what is mapped for a request of `size` bytes serves others, too. What is free beside
    /// a live block of the same extent is stranded then, at worst nearly all of it.
    pub(crate) fn shares_extents(&self, st: &HeapState, size: u64) -> bool {
        if st.private.is_some() || size > 2 * SMALL_GROWTH {
            return false;
        }
        let is_small = || self.unmapped().is_ok_and(|left| st.extents.bytes() <= left / AHEAD_SHARE);
        size <= SMALL_GROWTH || (self.options.earned_permille > 0 && is_small())
    }

    /// The least to map, bytes, as long as there is plenty, and the largest extent for that. A
    /// small heap that runs short maps ahead. So does one that has nothing to move for a small
    /// request: it grows by a share of what it has, which spreads the cost of a growth over many
    /// requests.
    pub(crate) fn ahead(&self, st: &mut HeapState, want: Want, only_grows: bool, allowed: Allowance) -> (u64, u64) {
        let fits = |bytes: u64, within: u64| bytes <= within && bytes <= allowed.hard / AHEAD_SHARE;
        let short = AHEAD.next_multiple_of(self.page);
        if st.runs_short() && fits(short, allowed.floor) {
            return (short, self.largest_extent(st, want.size.max(AHEAD_EXTENT)));
        }
        st.goes_without();
        if !only_grows {
            return (0, 0);
        }
        let has = st.extents.bytes();
        // One extent, as the driver charges for each.
        let one = |bytes: u64| if bytes < self.page { 0 } else { self.page << (bytes / self.page).ilog2() };
        let small = one((has / GROWTH_SHARE).min(self.options.slack_floor));
        let large = one((has / LARGE_GROWTH_SHARE).min(LARGE_GROWTH));
        let grown = if large > small && fits(large, allowed.cheap) {
            large
        } else if fits(small, allowed.floor) {
            small
        } else if self.options.earned_permille > 0 && fits(large, allowed.hard) {
            large
        } else {
            0
        };
        (grown, grown.max(self.largest_extent(st, want.size)))
    }
}

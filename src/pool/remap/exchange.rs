//! Exchanging coarse extents for finer ones, with `GPUMEM_SLACK=tight`.
//!
//! The first extents of a heap are coarse, as nothing has shown yet what will be cut from them. New
//! ones become finer where memory is stranded (`grain.rs`), but a heap that was filled at once gets
//! few new ones: it would strand as much for ever. So while a heap maps noticeably more than the
//! most it has had live, a request that has to be stitched first gives coarse free extents back to
//! the driver. What it then lacks is created, in extents of the present grain:
//!
//! ```text
//! excess = mapped - peak - max(peak / NOTICEABLE, least slack)
//! given back <= need - what else is free, in extents of any size or in stock + min(excess, need)
//! ```
//!
//! Work that repeats keeps its extents, so that it can take them back where it had them.
//! docs/adr/extent-sizes.md has what this costs and saves.

use crate::base::Result;
use crate::pool::heap::HeapState;
use crate::pool::remap::sources::{bytes_of, Source};
use crate::pool::state::Pool;
use crate::pool::types::Want;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

/// A heap noticeably exceeds its peak if it maps one part in this many more.
const NOTICEABLE: u64 = 25;

/// An extent is coarse if it is this many times as large as one that would be created now.
const COARSE: u64 = 4;

impl Pool {
    /// Gives coarse free extents outside the region `anchor` back, before a heap is stitched for
    /// `need` bytes of a request. Those that the device has not passed stay, and are marked for the
    /// next time. Returns the bytes given back. A refusal of the driver is no reason to refuse the
    /// request.
    pub(crate) fn exchange_coarse(&self, st: &mut HeapState, anchor: Option<u32>, need: u64, want: Want) -> u64 {
        let exchanges = self.options.finer && st.private.is_none() && st.learnt.halved > 0 && !st.learnt.memo.repeats();
        // Beyond the limit, as after a lowered one, what is given back cannot be made anew.
        if !exchanges || self.mapped_now() > self.limit.load(Relaxed) {
            return 0;
        }
        let peak = st.learnt.peak_live.max(st.live_bytes + st.waiting_bytes + want.size);
        let noticed = peak + (peak / NOTICEABLE).max(self.options.slack_floor);
        let excess = st.extents.bytes().saturating_sub(noticed);
        if excess == 0 {
            return 0;
        }
        let before = st.extents.bytes();
        let done = self.order.poll([want.lane]).and_then(|()| {
            let least = self.largest_extent(st, want.size).saturating_mul(COARSE);
            let free = self.sources(st, anchor, |_| true);
            let unmarked = |s: &Source| s.tag.lane() == want.lane && !self.order.marked(s.tag);
            let mark = free.iter().any(|s| s.extent.size >= least && unmarked(s));
            let (coarse, others): (Vec<Source>, Vec<Source>) =
                free.into_iter().partition(|s| s.extent.size >= least && self.order.settled(s.tag));
            let stock = self.core.lock().stock.bytes();
            let most = need.saturating_sub(bytes_of(&others) + stock) + excess.min(need);
            self.give_back(st, coarse, most)?;
            if mark {
                self.mark_here(want);
            }
            Ok(())
        });
        if let Err(e) = done {
            self.say(|| format!("coarse extents not exchanged: {}", e.message));
        }
        before - st.extents.bytes()
    }

    /// Releases settled free extents of a heap, the largest first, at most `most` bytes.
    fn give_back(&self, st: &mut HeapState, mut extents: Vec<Source>, most: u64) -> Result<()> {
        extents.sort_unstable_by_key(|s| Reverse((s.extent.size, s.addr)));
        let mut left = most;
        extents.retain(|s| {
            let fits = s.extent.size <= left;
            left -= if fits { s.extent.size } else { 0 };
            fits
        });
        // From high to low addresses: what is left of a region before a cut keeps its number.
        extents.sort_unstable_by_key(|s| Reverse(s.addr));
        extents.iter().try_for_each(|s| self.release_extent(st, s).map(|_| ()))
    }
}

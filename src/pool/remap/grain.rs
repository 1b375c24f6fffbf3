//! The grain of a heap: the size of the largest extents it creates.
//!
//! The driver charges per extent, so a heap begins with few and large ones. But an extent moves
//! only when all of it is free: memory that is free beside a live block in the same extent is
//! *stranded*. When a heap has to grow although it has enough free bytes, stranded memory is the
//! reason. If that has become a noticeable share of the heap, the grain is halved, and new extents
//! strand half as much. Fine extents make every move dear, so this is done only where memory is
//! scarce, or with [`PoolOptions::finer`](crate::pool::PoolOptions::finer). A large heap has a
//! coarse grain: its blocks are mostly large, and strand no larger a part of it.
//! docs/adr/extent-sizes.md has the experiment.

use crate::base::size::human;
use crate::pool::heap::{HeapState, State};
use crate::pool::state::Pool;
use crate::pool::types::Want;
use std::sync::atomic::Ordering::Relaxed;

/// Growth makes the grain finer if it takes the heap by more than this share, in 1/1000, beyond the
/// most it has had live.
const STRANDED_PERMILLE: u64 = 10;

/// The grain becomes no finer than the live blocks' mean size divided by this: half an extent
/// stranded at each end of a block is then a 48th of it.
const PIECES_OF_MEAN: u64 = 48;

/// Memory is scarce if less than one part in this many of the device, or of the limit, is left.
const SCARCE: u64 = 6;

/// A heap with as many bytes as this many extents of
/// [`PoolOptions::max_extent`](crate::pool::PoolOptions::max_extent), or more, has a grain of twice
/// that.
const MANY: u64 = 1024;

impl Pool {
    /// The grain of a heap after `halved` halvings: a power of two, bytes.
    fn grain(&self, st: &HeapState, halved: u32) -> u64 {
        let most = self.options.max_extent;
        let doubled = u32::from(st.extents.bytes() / most.max(1) >= MANY);
        ((most << doubled) >> halved).max(self.page)
    }

    /// The largest extent to create for a request of `size` bytes: a power of two.
    pub(crate) fn largest_extent(&self, st: &HeapState, size: u64) -> u64 {
        let mapped = self.mapped_now();
        // The pool's first request is nearly all there is, and nothing has shown how it will be cut
        // up.
        let cap = if mapped == 0 && !st.learnt.ahead {
            self.options.first_extent
        } else {
            let halved = if st.learnt.buys || self.was_scarce(st, size) { 0 } else { st.learnt.halved };
            self.grain(st, halved).max(size / self.options.extents_per_request.max(1))
        };
        let cap = cap.min(size.next_multiple_of(self.page)).max(self.page);
        1 << cap.ilog2()
    }

    /// Whether the grain was made finer while memory was scarce, and it is scarce no more.
    fn was_scarce(&self, st: &HeapState, growth: u64) -> bool {
        st.learnt.halved > 0 && !self.options.finer && !self.is_scarce(growth)
    }

    /// Whether little would be left for anybody once `growth` bytes more are mapped. Then memory
    /// counts for more than moves.
    fn is_scarce(&self, growth: u64) -> bool {
        let Ok(device) = self.driver.mem_info(self.dev) else { return true };
        let (left, all) = (device.free.min(self.headroom()), device.total.min(self.limit.load(Relaxed)));
        left.saturating_sub(growth) < all / SCARCE
    }

    /// Makes the grain finer if there is reason to, before a heap grows by `growth` bytes for a
    /// request that moving all it can does not meet.
    pub(crate) fn refine(&self, st: &mut HeapState, want: Want, growth: u64) {
        let stock = self.core.lock().stock.bytes();
        let after = st.extents.bytes() + growth;
        if st.learnt.buys
            || st.regions.ready_bytes() + stock < want.size
            || after
                <= st.learnt.peak_live + (st.learnt.peak_live / 1000 * STRANDED_PERMILLE).max(self.options.slack_floor)
            || self.grain(st, st.learnt.halved) == self.page
            || !(self.options.finer || self.is_scarce(growth))
            || self.grain(st, st.learnt.halved + 1) < mean_block(st, self.page) / PIECES_OF_MEAN
        {
            return;
        }
        st.learnt.halved += 1;
        self.say(|| format!("new extents are at most {} from now on", human(self.grain(st, st.learnt.halved))));
    }
}

/// Mean size of the live blocks of at least `least` bytes, 0 without any. Looks at all regions:
/// growing is rare.
fn mean_block(st: &HeapState, least: u64) -> u64 {
    let blocks = st.regions.iter().filter(|(_, g)| g.state == State::Live && g.size >= least);
    let (count, bytes) = blocks.fold((0, 0), |(count, bytes), (_, g)| (count + 1, bytes + g.size));
    bytes / count.max(1)
}

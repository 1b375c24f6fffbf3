//! When a heap may map more instead of moving what it has: a question of renting or buying.
//!
//! Moving memory is rent: it is paid each time. Mapping more is a price that is paid once, in
//! memory that others may want. A workload that repeats moves its memory once and takes it back for
//! nothing after that, so it pays hardly any rent, and stays as tight as it was. One that does not
//! repeat pays for ever. So rent earns the right to buy: with *peak* the most a heap has had live
//! and *remapped* the bytes it has moved since it started,
//!
//! ```text
//! earned = min((remapped - FREE * peak) / RENT, peak * earned_permille / 1000)
//! ```
//!
//! is what the heap may map beyond its peak besides its slack. It buys no more than half of what is
//! unused, where a reserve of the device counts as used: with *free* what the device, or the limit,
//! has left, and *mapped* the heap's bytes,
//!
//! ```text
//! bought = min(earned, (free + mapped - peak - reserve) / 2)
//! ```
//!
//! It is free memory like any other: moved, trimmed, and given up before a request fails.

use crate::pool::heap::HeapState;
use crate::pool::state::Pool;

/// A heap may move so many times its peak before it earns anything: the first time that a workload
/// is seen costs moves.
const FREE: u64 = 4;

/// So many bytes moved earn one.
const RENT: u64 = 4;

/// One part in so many of the device is left to others.
const RESERVE: u64 = 16;

/// See the module's comment.
fn earned(remapped: u64, peak: u64, permille: u32) -> u64 {
    let most = peak / 1000 * u64::from(permille);
    (remapped.saturating_sub(peak.saturating_mul(FREE)) / RENT).min(most)
}

impl Pool {
    fn entitled(&self, st: &HeapState) -> u64 {
        let by_right = st.learnt.peak_live / 1000 * u64::from(self.options.bought_permille);
        by_right.max(earned(st.learnt.remapped, st.learnt.peak_live, self.options.earned_permille))
    }

    /// Whether a heap buys: then it is no place for fine extents, which make every move dear.
    pub(crate) fn buys(&self, st: &HeapState) -> bool {
        self.entitled(st) > 0
    }

    /// Bytes that a heap may map beyond its slack once a request of `size` is met: 0 where the
    /// device would have no reserve left.
    pub(crate) fn bought(&self, st: &HeapState, size: u64) -> u64 {
        let most = self.entitled(st);
        if most == 0 {
            return 0;
        }
        let Ok(device) = self.driver.mem_info(self.dev) else { return 0 };
        let free = device.free.min(self.headroom()).saturating_sub(size);
        let beyond = st.extents.bytes().saturating_sub(st.learnt.peak_live);
        most.min((free + beyond).saturating_sub(device.total / RESERVE) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_earned_by_a_first_pass() {
        assert_eq!(earned(4 << 30, 1 << 30, 150), 0);
        assert_eq!(earned((4 << 30) + (40 << 20), 1 << 30, 150), 10 << 20);
        assert_eq!(earned(u64::MAX, 1 << 30, 150), (1 << 30) / 1000 * 150);
        assert_eq!(earned(u64::MAX, 1 << 30, 0), 0);
    }

    proptest! {
        /// What is bought never costs more than the share, and has been paid for four times over.
        #[test]
        fn it_is_paid_for_and_bounded(remapped in 0u64..1 << 50, peak in 0u64..1 << 40, permille in 0u32..1000) {
            let e = earned(remapped, peak, permille);
            prop_assert!(e <= peak && e * RENT <= remapped);
            prop_assert!(earned(remapped + peak, peak, permille) >= e);
        }
    }
}

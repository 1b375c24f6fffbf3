//! When a heap may map more instead of moving what it has: a question of renting or buying.
//!
//! Moving memory is rent: it is paid each time. Mapping more is a price paid once, in memory that
//! others may want. Work that repeats moves its memory once and then takes it back for nothing, so
//! it pays hardly any rent, and stays as tight as it was. Work that does not repeat pays for ever.
//! So rent earns the right to buy. Besides its slack, a heap may map this much beyond its *peak*,
//! the most it has had live; *remapped* is what it has moved or mapped again from the stock. Both
//! count from the last fresh start that was in no doubt, and trims lower them:
//!
//! ```text
//! earned = min((remapped - FREE * peak) / RENT, peak * earned_permille / 1000)
//! ```
//!
//! A heap buys no more than 55 % of what is unused. A reserve of the device or of the limit,
//! whichever is less, counts as used. *free* is what these leave, and *mapped* the heap's bytes:
//!
//! ```text
//! bought = min(earned, (free + mapped - peak - reserve) * 55 %), and 0 where free < reserve
//! ```
//!
//! What was bought is free memory like any other: moved, trimmed, and given up before a request
//! fails. Once memory has been given back, no peak stays above what is mapped, and what a trim on
//! demand has given back must be earned again.
//!
//! Heaps have their peaks at different times, so together they may map more than the device needs.
//! While other heaps hold as much free memory as is asked for, or 64 MiB and a quarter of it,
//! growth also stays within the budget of all. *peak* is the most they had live together when one
//! of them ran short, *remapped* what all have moved or mapped again, and *in flight* the freed
//! bytes that the device, asked just then, has not passed:
//!
//! ```text
//! mapped <= peak + slack + min((remapped - FREE * peak) / RENT, peak * share) + in flight
//! ```
//!
//! The slack is the share of one heap and a part of each heap's least slack, and stock counts as
//! mapped. Beyond the budget a heap moves its own free extents, and then others'.

use crate::pool::heap::HeapState;
use crate::pool::state::Pool;
use std::sync::atomic::Ordering::Relaxed;

/// Moving up to this many times its peak earns a heap nothing: a workload's first pass costs moves.
const FREE: u64 = 2;

/// Heaps share no sooner than if they had had this many bytes live together. A lone stream among
/// many that rest pays some rent while its heap grows; then it needs nobody.
const LEAST_PEAK: u64 = 256 << 20;

/// This many bytes moved earn one.
const RENT: u64 = 4;

/// One part in this many of the device is left to others.
const RESERVE: u64 = 16;

/// A heap buys at most this share of what is unused, in percent. Ten more save a heap that nearly
/// fills the device a third of its moves, and leave others less (docs/adr/renting-or-buying.md).
const BUYABLE_PERCENT: u64 = 55;

/// One part in this many of a limit is left, if that is less. With a sixteenth, more requests were
/// refused at limits close to what is live.
const RESERVE_OF_LIMIT: u64 = 8;

/// All heaps together earn one part in this many of what each may. One part in [`FLOOR_TOGETHER`]
/// of each one's least slack counts. By experiment on a pipeline over three streams, whose heaps
/// are never at their peaks together, and on 16 threads with a stream each, which should not take
/// memory from each other for ever.
const EARNED_TOGETHER: u32 = 3;

const FLOOR_TOGETHER: u64 = 2;

/// Other heaps' free memory counts if it is the whole request, or one part in this many of it and
/// [`MUCH_ELSEWHERE`]: pieces of a small request are not worth moving.
const WORTH: u64 = 4;

/// This many free bytes of other heaps are much, and worth a context marker.
pub(crate) const MUCH_ELSEWHERE: u64 = 64 << 20;

/// The least slack of no more heaps than this counts in the budget: the others are idle.
const MOST_FLOORS: u64 = 16;

/// How much of `remapped` still counts once `mapped` bytes are left: what it took to earn those
/// beyond the peak.
fn still_earned(remapped: u64, peak: u64, mapped: u64) -> u64 {
    let beyond = mapped.saturating_sub(peak);
    remapped.min(peak.saturating_mul(FREE).saturating_add(beyond.saturating_mul(RENT)))
}

/// See the module's comment.
fn earned(remapped: u64, peak: u64, permille: u32) -> u64 {
    let most = peak / 1000 * u64::from(permille);
    (remapped.saturating_sub(peak.saturating_mul(FREE)) / RENT).min(most)
}

impl Pool {
    /// Whether all heaps together have paid more rent than a first pass costs, since the device was
    /// last seen behind the host.
    pub(crate) fn has_paid_rent(&self) -> bool {
        let peak = self.counters.most_live.load(Relaxed);
        peak > 0 && self.counters.paid.load(Relaxed) > peak.max(LEAST_PEAK).saturating_mul(FREE)
    }

    /// Lowers peaks to what is mapped, after memory was given back or not obtained: what heaps once
    /// had live, or were asked for in vain, does not excuse mapping so much.
    pub(crate) fn lower_peaks(&self) {
        self.counters.most_live.fetch_min(self.mapped_now(), Relaxed);
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            st.learnt.peak_live = st.learnt.peak_live.min(st.extents.bytes());
        }
    }

    /// Makes heaps earn again what they bought, after memory was given back on demand. New extents
    /// are as coarse again as in a new pool.
    pub(crate) fn start_to_earn_anew(&self) {
        self.lower_peaks();
        let stocked = self.core.lock().stock.bytes() > 0;
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            let mapped = st.extents.bytes();
            if mapped == 0 && !stocked {
                // What a heap has learnt about extents goes with the last of them.
                st.forget();
            }
            let l = &mut st.learnt;
            l.remapped = still_earned(l.remapped, l.peak_live, mapped);
            (l.halved, l.cramped) = (0, false);
        }
        let c = &self.counters;
        let remapped = still_earned(c.remapped.load(Relaxed), c.most_live.load(Relaxed), self.mapped_now());
        c.remapped.fetch_min(remapped, Relaxed);
        c.paid.fetch_min(remapped, Relaxed);
    }

    /// Bytes that may still be created: what the limit leaves, and no more than the device has free
    /// if it has refused to create some of late.
    pub(crate) fn creatable(&self) -> u64 {
        let within = self.headroom();
        if !self.counters.device_is_full.load(Relaxed) {
            return within;
        }
        let Ok(device) = self.driver.mem_info(self.dev) else { return within };
        if device.free > device.total / RESERVE {
            self.counters.device_is_full.store(false, Relaxed);
        }
        within.min(device.free)
    }

    /// Bytes the budget of all heaps leaves for a growth, without what is in flight. No limit
    /// unless other heaps hold `size` free bytes in extents, or a part of that which is much.
    pub(crate) fn budget(&self, st: &HeapState, size: u64) -> u64 {
        if self.heap_count.load(Relaxed) < 2 || st.of_captures {
            return u64::MAX;
        }
        let live = self.live_now() + size;
        let peak = self.counters.most_live.fetch_max(live, Relaxed).max(live);
        let (mut heaps, mut free) = (1, 0);
        for of_other in self.others_with(st.number, self.page).map(|h| h.free.load(Relaxed)) {
            heaps = (heaps + 1).min(MOST_FLOORS);
            free += of_other;
        }
        if free < size.min((size / WORTH).max(MUCH_ELSEWHERE)) {
            return u64::MAX;
        }
        let options = &self.options;
        let share = |permille: u32| peak / 1000 * u64::from(permille);
        let earned = earned(self.counters.remapped.load(Relaxed), peak, options.earned_permille / EARNED_TOGETHER);
        let slack = share(options.slack_permille) + heaps * options.slack_floor / FLOOR_TOGETHER;
        let all = peak + slack + earned.max(share(options.bought_permille));
        all.saturating_sub(self.mapped_now())
    }

    /// Freed bytes the device is not known to have passed. All free bytes of a heap that cannot be
    /// looked at count.
    pub(crate) fn in_flight(&self, st: &HeapState, reach: usize) -> u64 {
        let of_others = self
            .others_with(st.number, self.page)
            .take(reach)
            .map(|other| other.try_lock_open().map_or(other.free.load(Relaxed), |st| st.in_flight(&self.order)));
        st.in_flight(&self.order) + of_others.sum::<u64>()
    }

    /// Bytes a heap may map beyond its slack once a request of `size` is met: 0 if no reserve would
    /// be left. The heap learns whether it buys, and whether that is less than it has earned.
    pub(crate) fn decide_to_buy(&self, st: &mut HeapState, size: u64) -> u64 {
        st.learnt.buys = false;
        let peak = st.learnt.peak_live;
        let by_right = peak / 1000 * u64::from(self.options.bought_permille);
        let most = by_right.max(earned(st.learnt.remapped, peak, self.options.earned_permille));
        if most == 0 {
            return 0;
        }
        let Ok(device) = self.driver.mem_info(self.dev) else { return 0 };
        let free = device.free.min(self.headroom()).saturating_sub(size);
        let beyond = st.extents.bytes().saturating_sub(peak);
        let reserve = (device.total / RESERVE).min(self.limit.load(Relaxed) / RESERVE_OF_LIMIT);
        let buyable = free.checked_sub(reserve).map_or(0, |unused| (unused + beyond) / 100 * BUYABLE_PERCENT);
        let bought = most.min(buyable);
        st.learnt.buys = bought > 0;
        st.learnt.cramped |= 0 < bought && bought < most;
        bought
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_earned_by_a_first_pass() {
        assert_eq!(earned(FREE << 30, 1 << 30, 150), 0);
        assert_eq!(earned((FREE << 30) + (40 << 20), 1 << 30, 150), 10 << 20);
        assert_eq!(earned(u64::MAX, 1 << 30, 150), (1 << 30) / 1000 * 150);
        assert_eq!(earned(u64::MAX, 1 << 30, 0), 0);
    }

    proptest! {
        /// What is bought is never more than the share, and has been paid for four times over.
        #[test]
        fn it_is_paid_for_and_bounded(remapped in 0u64..1 << 50, peak in 0u64..1 << 40, permille in 0u32..1000) {
            let e = earned(remapped, peak, permille);
            prop_assert!(e <= peak && e * RENT <= remapped);
            prop_assert!(earned(remapped + peak, peak, permille) >= e);
            // What is left after a trim has earned what is still there, and no more.
            let beyond = remapped % (peak + 1);
            let still = still_earned(remapped, peak, peak + beyond);
            prop_assert!(still <= remapped && earned(still, peak, 1000) <= beyond);
        }
    }
}

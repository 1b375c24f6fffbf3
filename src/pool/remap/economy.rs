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
//! unused, where a reserve of the device or the limit, whichever is less, counts as used: with *free*
//! what they leave, and *mapped* the heap's bytes,
//!
//! ```text
//! bought = min(earned, (free + mapped - peak - reserve) / 2), and 0 where free < reserve
//! ```
//!
//! It is free memory like any other: moved, trimmed, and given up before a request fails. No peak
//! stays above what is mapped once memory has been given back, and what a trim on demand has given
//! back is to be earned again.
//!
//! Heaps have their peaks at different times, so what each of them may map is more in all than the
//! device needs. While other heaps hold as much free memory as is asked for, or 64 MiB and a
//! quarter of it, growth also stays within the budget of all: with *peak* the most that they had
//! live together when one of them ran short, *remapped* the bytes that all have moved, and *in
//! flight* what is freed and the device has not passed, when it is asked just then,
//!
//! ```text
//! mapped <= peak + slack + min((remapped - FREE * peak) / RENT, peak * share) + in flight
//! ```
//!
//! where the slack is the share of one heap and a part of each heap's least slack, and what is in
//! stock counts as mapped. Beyond it a heap moves its own free extents, and then others'.

use crate::pool::heap::{Heap, HeapState};
use crate::pool::order::Tag;
use crate::pool::state::Pool;
use crate::pool::types::Want;
use std::sync::atomic::Ordering::Relaxed;

/// A heap may move so many times its peak before it earns anything: the first time that a workload
/// is seen costs moves.
const FREE: u64 = 2;

/// So many bytes moved earn one.
const RENT: u64 = 4;

/// One part in so many of the device is left to others.
const RESERVE: u64 = 16;

/// Of a limit one part in so many is left, if that is less. With a sixteenth more requests were
/// refused at limits close to what is live.
const RESERVE_OF_LIMIT: u64 = 8;

/// All heaps together earn one part in so many of what each may, and one part in so many of each
/// one's least slack counts: by experiment on a pipeline over three streams, whose heaps are never
/// at their peaks together, and on 16 threads with a stream each, which should not take memory from
/// each other for ever.
const EARNED_TOGETHER: u32 = 3;

const FLOOR_TOGETHER: u64 = 2;

/// What other heaps have free counts where it is the whole request, or one part in so many of it
/// and much: pieces of a small request are not worth moving.
const WORTH: u64 = 4;

/// So many free bytes of other heaps are much, and worth a context marker.
pub(crate) const MUCH_ELSEWHERE: u64 = 64 << 20;

/// No more heaps than this have a least slack in the budget: others rest.
const MOST_FLOORS: u64 = 16;

/// What was moved, as far as it counts once `mapped` bytes are left of what there was: as much as
/// has earned what they are beyond the peak.
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
    /// Whether all heaps together have moved more than a first pass costs, since the device was
    /// last seen behind the host.
    pub(crate) fn has_paid_rent(&self) -> bool {
        let peak = self.counters.most_live.load(Relaxed);
        let paid = self.counters.remapped.load(Relaxed).saturating_sub(self.counters.behind_at.load(Relaxed));
        peak > 0 && paid > peak.saturating_mul(FREE)
    }

    /// Marks how far a request's stream has come; `None` where it cannot be marked.
    pub(crate) fn mark_here(&self, want: Want) -> Option<Tag> {
        let here = self.order.tag(want.lane);
        let marked = self.order.mark(&*self.driver, want.lane, want.stream);
        matches!(marked, Ok(true)).then_some(here)
    }

    /// Asks whether the device has passed what was marked before a move, which takes longer than
    /// an idle device does.
    pub(crate) fn look_whether_behind(&self, marked: Option<Tag>) {
        let passed = marked.is_some_and(|tag| {
            let asked = self.order.poll(&*self.driver, [tag.lane()]);
            asked.is_ok() && self.order.settled(tag)
        });
        if !passed {
            self.counters.behind_at.store(self.counters.remapped.load(Relaxed), Relaxed);
        }
    }

    /// Memory has been given back: what heaps once had live does not excuse mapping it again.
    pub(crate) fn lower_peaks(&self) {
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            st.learnt.peak_live = st.learnt.peak_live.min(st.extents.bytes());
        }
    }

    /// Memory has been given back on demand: what was bought with it is to be earned again, and new
    /// extents are as coarse as in a new pool.
    pub(crate) fn start_to_earn_anew(&self) {
        self.lower_peaks();
        for heap in self.all_heaps() {
            let mut st = heap.lock();
            let mapped = st.extents.bytes();
            let l = &mut st.learnt;
            l.remapped = still_earned(l.remapped, l.peak_live, mapped);
            l.halved = 0;
        }
        let c = &self.counters;
        let remapped = still_earned(c.remapped.load(Relaxed), c.most_live.load(Relaxed), self.mapped_now());
        c.remapped.fetch_min(remapped, Relaxed);
        c.behind_at.fetch_min(remapped, Relaxed);
    }

    /// Bytes that may still be created: what the limit leaves, and on a device that has refused to
    /// create some of late, what that has.
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

    fn entitled(&self, st: &HeapState) -> u64 {
        let by_right = st.learnt.peak_live / 1000 * u64::from(self.options.bought_permille);
        by_right.max(earned(st.learnt.remapped, st.learnt.peak_live, self.options.earned_permille))
    }

    /// What the budget of all heaps leaves for a growth, bytes, but for what is in flight. No limit
    /// where other heaps do not hold `size` free bytes, or much and a part of it, in extents.
    pub(crate) fn budget(&self, heap: &Heap, st: &HeapState, size: u64) -> u64 {
        if self.heap_count.load(Relaxed) < 2 || !heap.is_ordinary(st) {
            return u64::MAX;
        }
        let live = self.live_now() + size;
        let peak = self.counters.most_live.fetch_max(live, Relaxed).max(live);
        let (mut heaps, mut free) = (1, 0);
        for of_other in self.others_with(heap, self.page).map(|h| h.free.load(Relaxed)) {
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

    /// Freed bytes that the device has not passed, as far as is known. What cannot be looked at
    /// counts.
    pub(crate) fn in_flight(&self, heap: &Heap, st: &HeapState, reach: usize) -> u64 {
        let of_others = self
            .others_with(heap, self.page)
            .take(reach)
            .map(|other| other.try_lock_open().map_or(other.free.load(Relaxed), |st| st.in_flight(&self.order)));
        st.in_flight(&self.order) + of_others.sum::<u64>()
    }

    /// Bytes that a heap may map beyond its slack once a request of `size` is met: 0 where no
    /// reserve would be left.
    pub(crate) fn bought(&self, st: &HeapState, size: u64) -> u64 {
        let most = self.entitled(st);
        if most == 0 {
            return 0;
        }
        let Ok(device) = self.driver.mem_info(self.dev) else { return 0 };
        let free = device.free.min(self.headroom()).saturating_sub(size);
        let beyond = st.extents.bytes().saturating_sub(st.learnt.peak_live);
        let reserve = (device.total / RESERVE).min(self.limit.load(Relaxed) / RESERVE_OF_LIMIT);
        match free.checked_sub(reserve) {
            Some(unused) => most.min((unused + beyond) / 2),
            None => 0,
        }
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
        /// What is bought never costs more than the share, and has been paid for four times over.
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

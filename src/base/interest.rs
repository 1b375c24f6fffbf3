//! Which features want to know of every allocation. One load says that none does.

#![deny(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Every allocation counts in a space.
const TIERS: u64 = 1 << 62;
/// Every allocation makes an event.
const EVENTS: u64 = 1 << 63;

/// See above. Below the two flags it counts how often a thread is attached to an arena, over all of
/// them, and one more while there is a detector of late uses.
#[derive(Debug, Default)]
pub struct Interest(AtomicU64);

impl Interest {
    /// Whether an allocation concerns only its pool.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Whether an allocation makes an event and concerns nothing else.
    #[inline]
    pub fn is_events_only(&self) -> bool {
        self.0.load(Relaxed) == EVENTS
    }

    /// Whether every allocation makes an event.
    #[inline]
    pub fn in_events(&self) -> bool {
        self.0.load(Relaxed) & EVENTS != 0
    }

    /// Whether a thread is attached to an arena, or there is a detector.
    pub fn in_arenas(&self) -> bool {
        self.0.load(Relaxed) & !(TIERS | EVENTS) != 0
    }

    /// A thread is attached to an arena, or a detector begins.
    pub fn join_arena(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// The end of what [`Self::join_arena`] began.
    pub fn leave_arena(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Allocations count in spaces from now on.
    pub fn start_tiers(&self) {
        self.0.fetch_or(TIERS, Relaxed);
    }

    /// Allocations make events from now on; whether they did not before.
    pub fn start_events(&self) -> bool {
        self.0.fetch_or(EVENTS, Relaxed) & EVENTS == 0
    }

    /// Allocations make no events any more; whether they did.
    pub fn stop_events(&self) -> bool {
        self.0.fetch_and(!EVENTS, Relaxed) & EVENTS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_party_comes_and_goes_alone() {
        let interest = Interest::default();
        assert!(interest.is_none() && !interest.in_events() && !interest.in_arenas());
        assert!(interest.start_events() && !interest.start_events());
        assert!(interest.is_events_only() && !interest.is_none() && !interest.in_arenas());
        interest.join_arena();
        assert!(!interest.is_events_only() && interest.in_events() && interest.in_arenas());
        interest.leave_arena();
        interest.start_tiers();
        assert!(!interest.is_events_only() && interest.in_events() && !interest.in_arenas());
        assert!(interest.stop_events() && !interest.stop_events());
        assert!(!interest.is_none() && !interest.in_events());
    }
}

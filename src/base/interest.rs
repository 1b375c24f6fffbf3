//! Which features must hear of every allocation. One load tells that none must.

#![deny(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flag: every allocation is counted in a space.
const TIERS: u64 = 1 << 62;
/// Flag: every allocation makes an event.
const EVENTS: u64 = 1 << 63;

/// The flags above, and below them a count: one for each attachment of a thread to an arena, and
/// one while there is a detector of late uses.
#[derive(Debug, Default)]
pub struct Interest(AtomicU64);

impl Interest {
    /// Whether no feature must hear of allocations.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// Whether allocations make events, and no other feature must hear of them.
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
    #[inline]
    pub fn in_arenas(&self) -> bool {
        self.0.load(Relaxed) & !(TIERS | EVENTS) != 0
    }

    /// Counts a thread that is attached to an arena, or a detector that starts.
    pub fn join_arena(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Takes back one [`Self::join_arena`].
    pub fn leave_arena(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Counts every allocation in a space from now on.
    pub fn start_tiers(&self) {
        self.0.fetch_or(TIERS, Relaxed);
    }

    /// Makes events of allocations from now on. Returns whether they were off before.
    pub fn start_events(&self) -> bool {
        self.0.fetch_or(EVENTS, Relaxed) & EVENTS == 0
    }

    /// Makes no events of allocations any more. Returns whether they were on before.
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

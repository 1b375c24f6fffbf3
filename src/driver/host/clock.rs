//! Vector clocks: which operations happen before which.
//!
//! Time is counted per lane (one stream at a time, see `stream.rs`): the operations of a lane are
//! numbered from 1. A clock holds, for each lane, the number of the last operation known to be
//! ordered before its owner. Operation `n` of lane `l` happens before the owner of clock `c`
//! exactly when `c.get(l) >= n`.

#![deny(unsafe_code)]

/// For each lane, the last operation that is ordered before the owner; lanes beyond the end are at
/// 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    pub(super) fn get(&self, lane: usize) -> u64 {
        self.0.get(lane).copied().unwrap_or(0)
    }

    /// Whether operation `seq` of `lane` happens before the owner.
    pub(super) fn covers(&self, lane: usize, seq: u64) -> bool {
        self.get(lane) >= seq
    }

    /// Moves one lane forward, never back; returns whether it moved.
    pub(super) fn advance(&mut self, lane: usize, seq: u64) -> bool {
        if self.covers(lane, seq) {
            return false;
        }
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        if let Some(t) = self.0.get_mut(lane) {
            *t = seq;
        }
        true
    }

    /// Adds everything that `other` knows; returns whether anything was new.
    pub(super) fn join(&mut self, other: &Clock) -> bool {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut news = false;
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            news |= *theirs > *mine;
            *mine = (*mine).max(*theirs);
        }
        news
    }

    /// Whether joining `other` would add nothing.
    pub(super) fn knows(&self, other: &Clock) -> bool {
        other.0.iter().enumerate().all(|(lane, t)| self.get(lane) >= *t)
    }

    /// How many lanes it holds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Keeps what both know.
    pub(super) fn meet(&mut self, other: &Clock) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).min(*theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_is_the_least_upper_bound_and_meet_the_greatest_lower() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.advance(0, 3);
        a.advance(2, 1);
        b.advance(0, 1);
        b.advance(1, 4);
        let (mut up, mut down) = (a.clone(), a.clone());
        assert!(up.join(&b));
        assert!(!up.join(&b), "the second time is no news");
        assert_eq!([up.get(0), up.get(1), up.get(2), up.get(9)], [3, 4, 1, 0]);
        down.meet(&b);
        assert_eq!([down.get(0), down.get(1), down.get(2)], [1, 0, 0]);
        assert!(up.knows(&a) && up.knows(&b) && !b.knows(&a));
    }
}

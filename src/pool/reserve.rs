//! Virtual addresses: reservations ("roots") and the holes in them.
//!
//! Addresses are plentiful, so they are spent to save copies and remaps: a new span is placed far from the others,
//! because a span with a hole behind it can grow in place.

#![deny(unsafe_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

/// Distance kept between spans while addresses last, bytes.
const SPACING: u64 = 4 << 30;

/// Unmapped addresses, all multiples of the granularity.
///
/// Invariants: `by_size` holds exactly the `(length, start)` of each hole in `by_addr`; holes neither overlap nor
/// touch within a root; every hole lies in one root; `total` is the sum of their lengths. Kept addresses are holes that only
/// who grows into them from their start takes: they are in `kept` alone, and counted in `total`.
#[derive(Default)]
pub(super) struct Holes {
    /// Root base → length. Neighbouring roots never coalesce: each is a reservation of its own.
    roots: BTreeMap<u64, u64>,
    by_addr: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// End → start.
    kept: BTreeMap<u64, u64>,
    total: u64,
}

impl Holes {
    /// Adds a reservation, all of it a hole.
    pub(super) fn add_root(&mut self, base: u64, len: u64) {
        self.roots.insert(base, len);
        self.insert(base, len);
    }

    /// Bytes reserved, and bytes of them that are holes.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.roots.values().sum(), self.total)
    }

    /// Every hole as `(start, length)`, those that are kept last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_addr.iter().map(|(&a, &l)| (a, l)).chain(self.kept.iter().map(|(&end, &a)| (a, end - a)))
    }

    /// Every reservation as `(base, length)`.
    pub(super) fn roots(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.roots.iter().map(|(&a, &l)| (a, l))
    }

    /// How many hole bytes follow `addr` directly.
    pub(super) fn after(&self, addr: u64) -> u64 {
        self.by_addr.get(&addr).copied().or_else(|| self.kept_at(addr).map(|end| end - addr)).unwrap_or(0)
    }

    /// Length of the longest hole.
    pub(super) fn longest(&self) -> u64 {
        self.by_size.last().map_or(0, |h| h.0)
    }

    /// Keeps `len` bytes for a span that will start there and grow. `None` when no hole fits.
    pub(super) fn keep(&mut self, len: u64, align: u64) -> Option<u64> {
        let start = self.take(len, align)?;
        self.kept.insert(start + len, start);
        self.total += len;
        Some(start)
    }

    /// What is left of the addresses kept up to `end` is a hole like any other.
    pub(super) fn unkeep(&mut self, end: u64) {
        if let Some(start) = self.kept.remove(&end) {
            self.total -= end - start;
            self.give(start, end - start);
        }
    }

    /// The end of the kept addresses that start at `addr`.
    fn kept_at(&self, addr: u64) -> Option<u64> {
        let (&end, &start) = self.kept.range(addr.saturating_add(1)..).next()?;
        (start == addr).then_some(end)
    }

    /// Takes `len` bytes for a new span, aligned to `align` (a multiple of the granularity), with room to grow behind
    /// the spans on both sides while there is any. `None` when no hole fits.
    pub(super) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let &(hole_len, hole) = self.by_size.last()?;
        let first = hole.checked_next_multiple_of(align)?;
        let slack = (hole + hole_len).checked_sub(first)?.checked_sub(len)?;
        let at_root = self.roots.contains_key(&hole);
        let gap = if at_root { 0 } else { SPACING.min(slack / 2) / align * align };
        let start = first + gap;
        self.carve(hole, hole_len, start, len);
        Some(start)
    }

    /// Takes exactly `[start, start + len)`. `false` when it is not all hole.
    pub(super) fn take_at(&mut self, start: u64, len: u64) -> bool {
        if let Some(end) = self.kept_at(start) {
            let fits = len <= end - start;
            if fits {
                self.kept.remove(&end);
                self.total -= len;
                if start + len < end {
                    self.kept.insert(end, start + len);
                }
            }
            return fits;
        }
        let Some((&hole, &hole_len)) = self.by_addr.range(..=start).next_back() else {
            return false;
        };
        if start + len > hole + hole_len {
            return false;
        }
        self.carve(hole, hole_len, start, len);
        true
    }

    /// Gives addresses back; nothing is mapped there.
    pub(super) fn give(&mut self, start: u64, len: u64) {
        if let Some(end) = self.kept_at(start + len) {
            // What could not be mapped there is kept again.
            self.kept.insert(end, start);
            self.total += len;
            return;
        }
        let root = self.roots.range(..=start).next_back().map_or((0, 0), |(&b, &l)| (b, l));
        let (mut start, mut len) = (start, len);
        if let Some((&before, &before_len)) = self.by_addr.range(..start).next_back() {
            if before + before_len == start && before >= root.0 {
                self.remove(before, before_len);
                start = before;
                len += before_len;
            }
        }
        if start + len < root.0 + root.1 {
            if let Some(&after_len) = self.by_addr.get(&(start + len)) {
                self.remove(start + len, after_len);
                len += after_len;
            }
        }
        self.insert(start, len);
    }

    fn carve(&mut self, hole: u64, hole_len: u64, start: u64, len: u64) {
        self.remove(hole, hole_len);
        if start > hole {
            self.insert(hole, start - hole);
        }
        if start + len < hole + hole_len {
            self.insert(start + len, hole + hole_len - start - len);
        }
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.by_addr.insert(start, len);
        self.by_size.insert((len, start));
        self.total += len;
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_addr.remove(&start);
        self.by_size.remove(&(len, start));
        self.total -= len;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const P: u64 = 2 << 20;

    fn list(h: &Holes) -> Vec<(u64, u64)> {
        h.iter().map(|(a, l)| (a / P, l / P)).collect()
    }

    #[test]
    fn taken_and_given_addresses_add_up() {
        let mut h = Holes::default();
        h.add_root(100 * P, 50 * P);
        let a = h.take(10 * P, P).unwrap();
        assert_eq!(a, 100 * P, "the first span starts the root");
        assert_eq!(h.after(110 * P), 40 * P);
        assert!(h.take_at(110 * P, 5 * P), "a span grows into the hole behind it");
        assert!(!h.take_at(114 * P, 2 * P), "not over addresses in use");
        let b = h.take(10 * P, P).unwrap();
        assert!(b > 115 * P, "a second span leaves room behind the first");
        h.give(a, 15 * P);
        h.give(b, 10 * P);
        assert_eq!(list(&h), vec![(100, 50)]);
        assert_eq!(h.totals(), (50 * P, 50 * P));
    }

    #[test]
    fn roots_never_coalesce() {
        let mut h = Holes::default();
        h.add_root(100 * P, 10 * P);
        h.add_root(110 * P, 10 * P);
        assert!(h.take_at(105 * P, 5 * P));
        assert!(h.take_at(110 * P, 5 * P));
        h.give(105 * P, 5 * P);
        h.give(110 * P, 5 * P);
        assert_eq!(list(&h), vec![(100, 10), (110, 10)]);
        assert!(h.take(11 * P, P).is_none());
    }

    #[test]
    fn kept_addresses_go_from_their_start_to_who_asks_for_just_them() {
        let mut h = Holes::default();
        h.add_root(100 * P, 100 * P);
        let a = h.keep(60 * P, P).unwrap();
        assert_eq!((h.after(a), h.longest(), h.totals().1), (60 * P, 40 * P, 100 * P));
        assert!(h.take(50 * P, P).is_none(), "nobody else has them");
        assert!(!h.take_at(a, 61 * P) && h.take_at(a, 10 * P));
        assert_eq!(h.after(a + 10 * P), 50 * P);
        h.give(a, 10 * P);
        assert_eq!((h.after(a), h.totals().1), (60 * P, 100 * P), "given back, they are kept again");
        assert!(h.take_at(a, 60 * P));
        h.unkeep(a + 60 * P);
        assert_eq!((h.after(a), h.totals().1), (0, 40 * P), "nothing was left of them");
        h.give(a, 60 * P);
        assert_eq!(list(&h), vec![(100, 100)]);
        let a = h.keep(60 * P, P).unwrap();
        h.unkeep(a + 60 * P);
        assert_eq!((list(&h), h.totals()), (vec![(100, 100)], (100 * P, 100 * P)));
    }

    #[test]
    fn alignment_beyond_the_granularity() {
        let mut h = Holes::default();
        h.add_root(101 * P, 100 * P);
        let a = h.take(3 * P, 16 * P).unwrap();
        assert_eq!(a % (16 * P), 0);
        assert_eq!(h.totals().1, 97 * P);
    }
}

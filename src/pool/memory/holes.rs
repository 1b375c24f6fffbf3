//! Virtual addresses: reservations ("roots") and the holes in them.
//!
//! Addresses are plentiful, so they are spent to save copies and remaps: a new span is placed far
//! from the others, because a span with holes around it can grow in place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Distance kept between spans while addresses last, bytes.
const SPACING: u64 = 4 << 30;

/// The most ranges that rest: each costs a page of the index.
const RESTING: usize = 256;

/// No more than one part in this many of all addresses rests.
const RESTING_SHARE: u64 = 8;

/// Unmapped addresses, all multiples of the granularity.
///
/// Invariants: `by_size` holds exactly the `(length, start)` of each hole in `by_addr`; holes
/// neither overlap nor touch; every hole lies in one root, as roots do not touch; `total` is the
/// sum of their lengths. Resting addresses are in `resting` alone, and counted in `total`;
/// `resting_bytes` is their sum.
#[derive(Default)]
pub(crate) struct Holes {
    /// Root base → length.
    roots: BTreeMap<u64, u64>,
    by_addr: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Resting addresses as `(start, length)`, those that have rested longest first.
    resting: VecDeque<(u64, u64)>,
    resting_bytes: u64,
    /// What rests no more, and the index may know still, as `(start, length)`.
    pub(crate) woken: Vec<(u64, u64)>,
    total: u64,
}

impl Holes {
    /// Adds addresses that touch no others, all of them a hole.
    pub(crate) fn add_root(&mut self, base: u64, len: u64) {
        self.roots.insert(base, len);
        self.insert(base, len);
    }

    /// Bytes reserved, and bytes of them that are holes.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.roots.values().sum(), self.total)
    }

    /// Every hole as `(start, length)`, those that rest last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_addr.iter().map(|(&a, &l)| (a, l)).chain(self.resting.iter().copied())
    }

    /// Every reservation as `(base, length)`.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.roots.iter().map(|(&a, &l)| (a, l))
    }

    /// Where the hole that has `addr` starts and ends; both are `addr` if it is in none.
    pub(crate) fn around(&self, addr: u64) -> (u64, u64) {
        let before = self.by_addr.range(..=addr).next_back().map(|(&start, &len)| (start, start + len));
        before.filter(|&(_, end)| addr < end).unwrap_or((addr, addr))
    }

    /// How many hole bytes follow `addr` directly.
    pub(crate) fn after(&self, addr: u64) -> u64 {
        self.by_addr.get(&addr).copied().unwrap_or(0)
    }

    /// How many hole bytes lie directly in front of `addr`.
    pub(crate) fn before(&self, addr: u64) -> u64 {
        let last = self.by_addr.range(..addr).next_back().filter(|&(&start, &len)| start + len == addr);
        last.map_or(0, |(_, &len)| len)
    }

    /// Length of the longest hole.
    pub(crate) fn longest(&self) -> u64 {
        self.by_size.last().map_or(0, |h| h.0)
    }

    /// Takes `len` bytes for a new span, aligned to `align` (a multiple of the granularity), with
    /// room to grow behind the spans on both sides while there is any. `None` when no hole fits.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        loop {
            let taken = self.take_awake(len, align);
            if taken.is_some() || !self.wake() {
                return taken;
            }
        }
    }

    fn take_awake(&mut self, len: u64, align: u64) -> Option<u64> {
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
    pub(crate) fn take_at(&mut self, start: u64, len: u64) -> bool {
        let Some((&hole, &hole_len)) = self.by_addr.range(..=start).next_back() else {
            return false;
        };
        if start + len > hole + hole_len {
            return false;
        }
        self.carve(hole, hole_len, start, len);
        true
    }

    /// Gives addresses back, if `len` is not 0; nothing is mapped there.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (before, after) = (self.before(start), self.after(start + len));
        if before > 0 {
            self.remove(start - before, before);
        }
        if after > 0 {
            self.remove(start + len, after);
        }
        self.insert(start - before, before + len + after);
    }

    /// Like [`Self::give`], for addresses that others may still know, such as NCCL, which forgets
    /// them only some calls after the memory has gone. While there are others, they are handed out
    /// again only after all that rest already.
    pub(crate) fn rest(&mut self, start: u64, len: u64) {
        self.resting.push_back((start, len));
        (self.resting_bytes, self.total) = (self.resting_bytes + len, self.total + len);
        let most = self.roots.values().sum::<u64>() / RESTING_SHARE;
        while (self.resting.len() > RESTING || self.resting_bytes > most) && self.wake() {}
    }

    /// Makes the addresses that have rested longest an ordinary hole. `false` if none rest.
    fn wake(&mut self) -> bool {
        let Some((start, len)) = self.resting.pop_front() else { return false };
        (self.resting_bytes, self.total) = (self.resting_bytes - len, self.total - len);
        self.give(start, len);
        self.woken.push((start, len));
        true
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
        assert_eq!((h.before(150 * P), h.before(110 * P), h.before(120 * P)), (40 * P, 0, 0));
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
    fn addresses_that_rest_come_back_last() {
        let mut h = Holes::default();
        h.add_root(0, 4096 * P);
        let taken: Vec<u64> = (0..300).map(|_| h.take(P, P).unwrap()).collect();
        taken.iter().for_each(|&a| h.rest(a, P));
        assert_eq!((h.resting.len(), h.totals().1), (RESTING, 4096 * P));
        let resting = |h: &Holes, a: u64| h.resting.iter().any(|r| r.0 == a);
        assert!(!resting(&h, taken[43]) && resting(&h, taken[44]) && resting(&h, taken[299]));
        assert!(h.woken.iter().map(|w| w.0).eq(taken[..44].iter().copied()));
        let again: Vec<u64> = (0..1000).map(|_| h.take(P, P).unwrap()).collect();
        assert!(taken[44..].iter().all(|a| !again.contains(a)), "while there are others");
        let mut all: Vec<u64> = again.into_iter().chain(std::iter::from_fn(|| h.take(P, P))).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq((0..4096).map(|i| i * P)), "and not lost");
        h.give(0, 4096 * P);
        h.take_at(0, 1000 * P);
        h.rest(0, 1000 * P);
        assert!(!resting(&h, 0), "more than a part of all");
        assert_eq!((list(&h), h.resting_bytes), (vec![(0, 4096)], 0));
    }

    #[test]
    fn an_address_is_in_its_hole_or_in_none() {
        let mut h = Holes::default();
        h.add_root(100 * P, 10 * P);
        h.add_root(200 * P, 10 * P);
        assert!(h.take_at(103 * P, P) && h.take_at(200 * P, P));
        let pages = |(start, end): (u64, u64)| (start / P, end / P);
        assert_eq!([102, 104, 205].map(|p| pages(h.around(p * P))), [(100, 103), (104, 110), (201, 210)]);
        assert_eq!([50, 103, 150, 200].map(|p| pages(h.around(p * P))), [50, 103, 150, 200].map(|p| (p, p)));
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

//! Edges by address: where a heap's spans start and end.
//!
//! A heap has a few hundred to a few thousand of them however far apart its spans lie, so the table is a small one that stays near,
//! where one by address would be as large as the addresses are wide.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::spread::slot_of;

/// Slots of the smallest table.
const MIN_SLOTS: usize = 16;
/// The address of an empty slot: none of an edge.
const EMPTY: u64 = u64::MAX;

/// An edge, and its address.
#[derive(Clone, Copy)]
struct Slot {
    addr: u64,
    edge: u32,
}

impl Slot {
    const EMPTY: Slot = Slot { addr: EMPTY, edge: 0 };
}

/// Edges by address, with open addressing: an address is in the slot that [`slot_of`] gives, or behind it. Those behind one that is
/// taken out move up (Knuth, The Art of Computer Programming 3, 6.4, algorithm R).
///
/// Invariants: the slots are a power of two, no more than half of them in use (`used` of them), with no empty one between where
/// an address should be and where it is; `shift` is 64 less their logarithm.
pub(super) struct Edges {
    slots: Vec<Slot>,
    shift: u32,
    used: usize,
}

impl Default for Edges {
    fn default() -> Edges {
        Edges::of(MIN_SLOTS)
    }
}

impl Edges {
    /// An empty table with this many slots.
    fn of(slots: usize) -> Edges {
        Edges { slots: vec![Slot::EMPTY; slots], shift: 64 - slots.trailing_zeros(), used: 0 }
    }

    /// The slot that an address should be in.
    #[inline]
    fn home(&self, addr: u64) -> usize {
        slot_of(addr, self.shift)
    }

    /// The slot of an address, or the empty one where it would go.
    #[inline]
    fn slot(&self, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(addr);
        while self.slots[slot].addr != addr && self.slots[slot].addr != EMPTY {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The edge at an address.
    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<u32> {
        let slot = self.slots[self.slot(addr)];
        (slot.addr == addr).then_some(slot.edge)
    }

    /// Adds an edge at an address that has none.
    #[inline]
    pub(super) fn add(&mut self, addr: u64, edge: u32) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let slot = self.slot(addr);
        self.slots[slot] = Slot { addr, edge };
        self.used += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::replace(self, Edges::of(self.slots.len() * 2));
        old.slots.into_iter().filter(|s| s.addr != EMPTY).for_each(|s| self.add(s.addr, s.edge));
    }

    /// Takes the edge at an address out.
    #[inline]
    pub(super) fn take(&mut self, addr: u64) -> Option<u32> {
        let mut gap = self.slot(addr);
        let found = self.slots[gap];
        if found.addr != addr {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = (gap + 1) & mask;
        while self.slots[at].addr != EMPTY {
            // It moves up unless its home is behind the gap.
            let home = self.home(self.slots[at].addr);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.slots[gap] = self.slots[at];
                gap = at;
            }
            at = (at + 1) & mask;
        }
        self.slots[gap] = Slot::EMPTY;
        self.used -= 1;
        Some(found.edge)
    }

    /// All of them by address.
    pub(super) fn in_order(&self) -> Vec<(u64, u32)> {
        let used = self.slots.iter().filter(|s| s.addr != EMPTY);
        let mut all: Vec<(u64, u32)> = used.map(|s| (s.addr, s.edge)).collect();
        all.sort_unstable();
        all
    }

    /// Checks the invariants written above.
    pub(super) fn validate(&self) -> Result<(), String> {
        let used = || self.slots.iter().filter(|s| s.addr != EMPTY);
        if let Some(s) = used().find(|s| self.get(s.addr) != Some(s.edge)) {
            return Err(format!("the edge at {:#x} is not found", s.addr));
        }
        let right = self.slots.len().is_power_of_two()
            && self.shift == 64 - self.slots.len().trailing_zeros()
            && self.used * 2 <= self.slots.len();
        match right && used().count() == self.used {
            true => Ok(()),
            false => Err(format!("{} of {} slots are used by {} edges", used().count(), self.slots.len(), self.used)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against an ordered map, with addresses near and far.
        #[test]
        fn is_a_map(ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..3), 1..300)) {
            let (mut edges, mut map) = (Edges::default(), BTreeMap::new());
            for (i, (add, page, far)) in (0u32..).zip(ops) {
                let addr = (far << 40) + (page << 21);
                if add && !map.contains_key(&addr) {
                    edges.add(addr, i);
                    map.insert(addr, i);
                } else if !add {
                    prop_assert_eq!(edges.take(addr), map.remove(&addr));
                }
                edges.validate().map_err(TestCaseError::fail)?;
                prop_assert_eq!(edges.get(addr), map.get(&addr).copied());
                prop_assert_eq!(edges.in_order(), map.iter().map(|(&a, &e)| (a, e)).collect::<Vec<_>>());
            }
        }
    }
}

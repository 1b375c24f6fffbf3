//! The quick list: blocks freed last, not yet joined with their neighbours.
//!
//! Programs ask again and again for the sizes they have just freed. Joining a freed block with what is free around it,
//! only to cut the same size off again, is most of the work of such a pair; so the last few freed blocks wait here as they
//! are, found by size. Everything that looks for anything but an exact match empties the list first
//! ([`Regions::tidy`](super::region::Regions::tidy)), so placement is decided as if it were not there.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::bins::NONE;
use super::spread::slot_of;

/// Places in the list; each size has one.
const PLACES: usize = 8;

#[derive(Clone, Copy)]
struct Place {
    /// The size of request that it is for, bytes.
    size: u64,
    /// [`NONE`] when the place is empty.
    region: u32,
}

/// The list. It holds region numbers and no memory: [`super::region`] says what the regions are.
pub(super) struct Quick {
    places: [Place; PLACES],
    used: u32,
}

#[inline]
fn place(size: u64) -> usize {
    // Of the size in granules.
    slot_of(size >> 9, 64 - PLACES.trailing_zeros())
}

impl Quick {
    pub(super) fn new() -> Quick {
        Quick { places: [Place { size: 0, region: NONE }; PLACES], used: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The region kept for requests of just this size. It stays in the list.
    #[inline]
    pub(super) fn get(&self, size: u64) -> Option<u32> {
        let p = &self.places[place(size)];
        (p.size == size && p.region != NONE).then_some(p.region)
    }

    /// Forgets what [`Self::get`] gave.
    #[inline]
    pub(super) fn take(&mut self, size: u64) {
        self.places[place(size)].region = NONE;
        self.used -= 1;
    }

    /// Keeps a region for requests of this size; returns the one that had its place.
    #[inline]
    pub(super) fn put(&mut self, size: u64, region: u32) -> Option<u32> {
        let old = std::mem::replace(&mut self.places[place(size)], Place { size, region }).region;
        self.used += u32::from(old == NONE);
        (old != NONE).then_some(old)
    }

    /// Takes any region out.
    pub(super) fn pop(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let p = self.places.iter_mut().find(|p| p.region != NONE)?;
        self.used -= 1;
        Some(std::mem::replace(&mut p.region, NONE))
    }

    /// Whether the region is in the list.
    pub(super) fn contains(&self, region: u32) -> bool {
        self.places.iter().any(|p| p.region == region)
    }

    pub(super) fn len(&self) -> usize {
        self.places.iter().filter(|p| p.region != NONE).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_of_each_size() {
        let mut q = Quick::new();
        assert_eq!((q.get(1 << 20), q.pop()), (None, None));
        assert_eq!(q.put(1 << 20, 7), None);
        assert_eq!(q.get(1 << 20), Some(7));
        assert_eq!(q.get(2 << 20), None, "not another size");
        assert_eq!(q.put(1 << 20, 8), Some(7));
        assert!(q.contains(8) && !q.contains(7));
        q.take(1 << 20);
        assert!(q.is_empty() && q.get(1 << 20).is_none());
        let mut out: Vec<u32> = (0..100u32).filter_map(|i| q.put(u64::from(i + 128) << 9, i)).collect();
        assert_eq!(q.len(), 100 - out.len());
        out.extend(std::iter::from_fn(|| q.pop()));
        out.sort_unstable();
        assert_eq!(out, (0..100).collect::<Vec<_>>(), "none is lost, none comes twice");
    }
}

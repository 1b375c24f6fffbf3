//! The quick list: blocks freed last, not yet joined with their neighbours.
//!
//! Programs ask again and again for the sizes they have just freed. Joining a freed block with its
//! free neighbours, only to cut the same size off again, is most of the work of such a pair. So the
//! last few freed blocks wait here as they are, found by size. Any search but one for an exact
//! match empties the list first ([`Regions::tidy`](super::region::Regions::tidy)), so placement is
//! decided as if the list did not exist.

use crate::pool::types::NONE;

/// Places in the list; each size has one.
const ENTRIES: usize = 8;

#[derive(Clone, Copy)]
struct Entry {
    /// The size of request that the block is for, bytes.
    size: u64,
    /// [`NONE`] when the place is empty.
    region: u32,
}

/// The list. It holds region numbers and no memory: [`crate::pool::heap::region`] says what the
/// regions are.
pub(crate) struct QuickList {
    entries: [Entry; ENTRIES],
    used: u32,
}

#[inline]
fn index(size: u64) -> usize {
    // The upper bits of the product of the size in granules with 2^64 divided by the golden ratio,
    // which spreads neighbours as evenly as can be (Knuth, The Art of Computer Programming 3, 6.4).
    ((size >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros())) as usize
}

impl Default for QuickList {
    fn default() -> QuickList {
        QuickList { entries: [Entry { size: 0, region: NONE }; ENTRIES], used: 0 }
    }
}

impl QuickList {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The region kept for requests of just this size. It stays in the list.
    #[inline]
    pub(crate) fn get(&self, size: u64) -> Option<u32> {
        let p = &self.entries[index(size)];
        (p.size == size && p.region != NONE).then_some(p.region)
    }

    /// Takes out the region that [`Self::get`] gave.
    #[inline]
    pub(crate) fn take(&mut self, size: u64) {
        self.entries[index(size)].region = NONE;
        self.used -= 1;
    }

    /// Keeps a region for requests of this size. Returns the one it pushes out.
    #[inline(always)]
    pub(crate) fn put(&mut self, size: u64, region: u32) -> Option<u32> {
        let p = index(size);
        let gone = match self.entries[p].region {
            NONE => None,
            _ => self.pop_at(p),
        };
        self.entries[p] = Entry { size, region };
        self.used += 1;
        gone
    }

    /// Takes any region out: one that no request has wanted back.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        match self.is_empty() {
            true => None,
            false => self.pop_at(self.entries.iter().position(|p| p.region != NONE)?),
        }
    }

    #[inline]
    fn pop_at(&mut self, p: usize) -> Option<u32> {
        self.used -= 1;
        Some(std::mem::replace(&mut self.entries[p].region, NONE))
    }

    /// Whether the region is in the list.
    pub(crate) fn contains(&self, region: u32) -> bool {
        self.entries.iter().any(|p| p.region == region)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.iter().filter(|p| p.region != NONE).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_of_each_size() {
        let mut q = QuickList::default();
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

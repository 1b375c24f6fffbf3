//! The quick list: blocks freed last, not yet joined with their neighbours.
//!
//! Programs ask again and again for the sizes they have just freed. Joining a freed block with its
//! free neighbours, only to cut the same size off again, is most of the work of such a pair. So the
//! last few freed blocks wait here as they are, found by size. Any search but one for an exact
//! match empties the list first ([`Regions::tidy`](super::region::Regions::tidy)), so placement is
//! decided as if the list did not exist. If blocks are hardly ever wanted back, the list keeps few:
//! each free then joins an earlier block, and no search has to join many at once.

use crate::pool::types::NONE;

/// Places in the list; each size has one.
const ENTRIES: usize = 8;

/// How many blocks the list keeps while it is of no use.
const FEW: u32 = 3;

/// What [`QuickList::worth`] is at first, and at most.
const WORTH: u8 = 16;

/// What a block that was wanted back adds to [`QuickList::worth`]. One that was not takes 1 off.
const GAIN: u8 = 2;

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
    /// How much use it has been of late. At 0 it keeps no more than [`FEW`] blocks.
    worth: u8,
}

#[inline]
fn index(size: u64) -> usize {
    // The upper bits of the product of the size in granules with 2^64 divided by the golden ratio,
    // which spreads neighbours as evenly as can be (Knuth, The Art of Computer Programming 3, 6.4).
    ((size >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ENTRIES.trailing_zeros())) as usize
}

impl Default for QuickList {
    fn default() -> QuickList {
        QuickList { entries: [Entry { size: 0, region: NONE }; ENTRIES], used: 0, worth: WORTH }
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
        self.worth = (self.worth + GAIN).min(WORTH);
    }

    /// Keeps a region for requests of this size. Returns the one it pushes out.
    #[inline(always)]
    pub(crate) fn put(&mut self, size: u64, region: u32) -> Option<u32> {
        let p = index(size);
        let gone = match self.entries[p].region {
            NONE if self.worth > 0 || self.used < FEW => None,
            NONE => self.pop(),
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
        self.worth = self.worth.saturating_sub(1);
        Some(std::mem::replace(&mut self.entries[p].region, NONE))
    }

    /// Forgets how much use the list has been.
    pub(crate) fn start_over(&mut self) {
        self.worth = WORTH;
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

    /// Sizes that go to entries of their own.
    fn sizes() -> Vec<u64> {
        let mut sizes: Vec<u64> = Vec::new();
        (1..).map(|i| i << 20).find(|&s| {
            if sizes.iter().all(|&t| index(s) != index(t)) {
                sizes.push(s);
            }
            sizes.len() == ENTRIES
        });
        sizes
    }

    #[test]
    fn keeps_few_where_none_is_wanted_back_and_more_where_they_are() {
        let (mut q, sizes) = (QuickList::default(), sizes());
        let put_all = |q: &mut QuickList| sizes.iter().zip(0..).filter_map(|(&s, i)| q.put(s, i)).count();
        let empty = |q: &mut QuickList| while q.pop().is_some() {};
        while q.worth > 0 {
            assert_eq!(put_all(&mut q), 0, "one for each place");
            empty(&mut q);
        }
        let few = FEW as usize;
        assert_eq!((put_all(&mut q), q.len()), (ENTRIES - few, few), "one goes for each that is too many");
        let last = sizes[ENTRIES - 1];
        assert_eq!(q.get(last), Some(ENTRIES as u32 - 1), "the last one stays");
        q.take(last);
        empty(&mut q);
        q.start_over();
        assert_eq!((put_all(&mut q), q.len()), (0, ENTRIES), "as at first");
    }

    #[test]
    fn what_is_wanted_back_makes_room() {
        let (mut q, sizes) = (QuickList::default(), sizes());
        q.worth = 0;
        for (&s, i) in sizes[..ENTRIES - 1].iter().zip(0..) {
            // The first is wanted back again and again.
            q.put(sizes[ENTRIES - 1], 100);
            assert_eq!(q.get(sizes[ENTRIES - 1]), Some(100));
            q.take(sizes[ENTRIES - 1]);
            assert_eq!(q.put(s, i), None, "{i} others");
        }
    }
}

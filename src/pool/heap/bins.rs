//! Size bins: which free regions could hold a request.
//!
//! A two-level segregated index after TLSF (Masmano et al., 2004): the first level is the size's
//! power of two, the second divides it into 32 equal steps, so a bin spans at most 3.2 % of its
//! size. Two bitmaps find the next non-empty bin in a few instructions. Unlike TLSF, a search also
//! looks into the request's own bin and takes the smallest region it sees there: a bounded best
//! fit.

use crate::pool::types::NONE;

/// log2 of the number of steps per power of two.
const STEP_BITS: u32 = 5;

const STEPS: usize = 1 << STEP_BITS;

/// Sizes are counted in units of `1 << UNIT_BITS` = 512 bytes, the pool's granule.
const UNIT_BITS: u32 = 9;

/// Enough powers of two for sizes below 2^49 bytes.
const LEVELS: usize = 36;

/// Heads of the bins' lists and bitmaps of the non-empty ones.
///
/// Invariants: bit `l` of `levels` is set iff `steps[l] != 0`; bit `s` of `steps[l]` is set iff
/// `heads[l * STEPS + s] != NONE`.
pub(crate) struct Bins {
    levels: u64,
    steps: [u32; LEVELS],
    heads: Box<[u32]>,
}

impl Default for Bins {
    fn default() -> Bins {
        Bins { levels: 0, steps: [0; LEVELS], heads: vec![NONE; LEVELS * STEPS].into_boxed_slice() }
    }
}

impl Bins {
    /// The number of the bin that holds regions of this size, a non-zero multiple of 512 bytes. The
    /// first 32 sizes have a bin each.
    #[inline]
    pub(crate) fn index(size: u64) -> usize {
        let units = size >> UNIT_BITS;
        debug_assert!(units > 0);
        // How many bits of the size the bin ignores: all behind its first `STEP_BITS` + 1. A
        // request may be beyond the last level, but no region is.
        let shift = u64::from(u64::BITS - 1 - STEP_BITS - (units | STEPS as u64).leading_zeros());
        ((shift << STEP_BITS) + (units >> shift)).min((LEVELS * STEPS - 1) as u64) as usize
    }

    /// First region of a bin.
    #[inline]
    pub(crate) fn head(&self, bin: usize) -> u32 {
        self.heads[bin]
    }

    /// Makes a region the first of a bin. Returns the one that was first.
    #[inline]
    pub(crate) fn push(&mut self, bin: usize, region: u32) -> u32 {
        let (level, step) = (bin / STEPS, bin % STEPS);
        self.steps[level] |= 1 << step;
        self.levels |= 1 << level;
        std::mem::replace(&mut self.heads[bin], region)
    }

    /// Takes the first region out of a bin; `next` becomes the first.
    #[inline]
    pub(crate) fn pop(&mut self, bin: usize, next: u32) {
        self.heads[bin] = next;
        if next == NONE {
            let (level, step) = (bin / STEPS, bin % STEPS);
            self.steps[level] &= !(1 << step);
            if self.steps[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    /// The first non-empty bin with a number of at least `bin`.
    #[inline]
    pub(crate) fn next_used(&self, bin: usize) -> Option<usize> {
        let (level, step) = (bin / STEPS, bin % STEPS);
        if level >= LEVELS {
            return None;
        }
        let here = self.steps[level] & (u32::MAX << step);
        if here != 0 {
            return Some(level * STEPS + here.trailing_zeros() as usize);
        }
        let above = self.levels & (u64::MAX << 1 << level);
        if above == 0 {
            return None;
        }
        let level = above.trailing_zeros() as usize;
        Some(level * STEPS + self.steps[level].trailing_zeros() as usize)
    }

    /// The non-empty bins with a number of at least `bin`, in order.
    pub(crate) fn used_from(&self, bin: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(self.next_used(bin), |&b| self.next_used(b + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_size_and_are_narrow() {
        let mut last = 0;
        let mut size = 512;
        while size < 1 << 43 {
            let bin = Bins::index(size);
            assert!(bin >= last, "bins are monotone at {size}");
            last = bin;
            // The next size in the same bin is at most 1/32 larger.
            let wide = size + size / 32 + 512;
            assert!(Bins::index(wide) > bin, "bin of {size} also holds {wide}");
            size += (size / 97).next_multiple_of(512).max(512);
        }
    }

    #[test]
    fn bitmaps_follow_heads() {
        let mut b = Bins::default();
        assert_eq!(b.next_used(0), None);
        for bin in [3, 40, 41, 1000] {
            assert_eq!(b.push(bin, bin as u32), NONE);
        }
        assert_eq!(b.next_used(0), Some(3));
        assert_eq!(b.next_used(4), Some(40));
        assert_eq!(b.next_used(41), Some(41));
        assert_eq!(b.next_used(42), Some(1000));
        assert_eq!(b.next_used(1001), None);
        assert_eq!(b.used_from(4).collect::<Vec<_>>(), [40, 41, 1000]);
        b.pop(1000, NONE);
        assert_eq!(b.next_used(42), None);
    }
}

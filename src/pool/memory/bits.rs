//! Sets of positions in a list, a bit for each.

use std::ops::Range;

/// Positions of a word.
const WORD: usize = u64::BITS as usize;

/// A set of positions in a list of fixed length.
///
/// Invariant: no position beyond that length is in it.
#[derive(Debug, Default)]
pub(crate) struct Bits(Box<[u64]>);

/// The words the positions of a range are in: number, and mask of the positions.
#[inline]
fn words(Range { start, end }: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    (start / WORD..end.div_ceil(WORD)).map(move |w| {
        let (from, to) = (start.saturating_sub(w * WORD), (end - w * WORD).min(WORD));
        (w, if from < to { (u64::MAX << from) & (u64::MAX >> (WORD - to)) } else { 0 })
    })
}

impl Bits {
    /// No position of a list of this length.
    pub(crate) fn none(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(WORD)].into_boxed_slice())
    }

    #[inline]
    pub(crate) fn has(&self, i: usize) -> bool {
        self.0.get(i / WORD).is_some_and(|w| w >> (i % WORD) & 1 == 1)
    }

    /// Whether it has all of `len` positions from `from` on.
    #[inline]
    pub(crate) fn has_all(&self, from: usize, len: usize) -> bool {
        words(from..from + len).all(|(w, mask)| self.0.get(w).is_some_and(|word| word & mask == mask))
    }

    /// Adds `len` positions from `from` on.
    #[inline]
    pub(crate) fn add(&mut self, from: usize, len: usize) {
        words(from..from + len).for_each(|(w, mask)| self.0[w] |= mask);
    }

    /// Removes `len` positions from `from` on.
    #[inline]
    pub(crate) fn remove(&mut self, from: usize, len: usize) {
        words(from..from + len).for_each(|(w, mask)| self.0[w] &= !mask);
    }

    /// How many positions it has.
    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set of numbers, in lists of up to three words.
        #[test]
        fn is_a_set(len in 1usize..300, ops in prop::collection::vec((any::<bool>(), 0usize..300, 0usize..300), 1..30)) {
            let (mut bits, mut set) = (Bits::none(len), BTreeSet::new());
            for (add, a, b) in ops {
                let (from, to) = (a.min(b).min(len), a.max(b).min(len));
                prop_assert_eq!(bits.has_all(from, to - from), (from..to).all(|i| set.contains(&i)), "{}..{}", from, to);
                if add {
                    bits.add(from, to - from);
                    set.extend(from..to);
                } else {
                    bits.remove(from, to - from);
                    set.retain(|i| !(from..to).contains(i));
                }
                prop_assert_eq!(bits.count(), set.len());
                prop_assert!((0..len + WORD).all(|i| bits.has(i) == set.contains(&i)));
            }
        }
    }
}

//! Sets of positions in a list, a bit for each.

#![deny(unsafe_code, clippy::unwrap_used)]

/// Positions of a word.
const WORD: usize = u64::BITS as usize;
/// Positions of a list that needs no words elsewhere.
const HERE: usize = 2 * WORD;

/// A set of positions below a length that is given when it is made. What is asked most is of lists no longer than [`HERE`],
/// whose words are where the set itself is.
///
/// Invariant: no position from the length on is in it.
#[derive(Debug, Default)]
pub(super) struct Bits {
    first: [u64; 2],
    more: Box<[u64]>,
}

/// What of the positions `from` to `to` is in a word whose first position is `start`.
#[inline]
fn mask(start: usize, from: usize, to: usize) -> u64 {
    let (from, to) = (from.saturating_sub(start), to.saturating_sub(start).min(WORD));
    match from < to {
        true => (u64::MAX << from) & (u64::MAX >> (WORD - to)),
        false => 0,
    }
}

impl Bits {
    /// No position of a list of this length.
    pub(super) fn none(len: usize) -> Bits {
        let more = len.saturating_sub(HERE).div_ceil(WORD);
        Bits { first: [0; 2], more: vec![0; more].into_boxed_slice() }
    }

    #[inline]
    pub(super) fn has(&self, i: usize) -> bool {
        let word = self.first.get(i / WORD).or_else(|| self.more.get(i.wrapping_sub(HERE) / WORD));
        word.is_some_and(|w| w >> (i % WORD) & 1 == 1)
    }

    /// Whether it has all of `len` positions from `from` on.
    #[inline]
    pub(super) fn has_all(&self, from: usize, len: usize) -> bool {
        let to = from + len;
        let (low, high) = (mask(0, from, to), mask(WORD, from, to));
        let missing = (!self.first[0] & low) | (!self.first[1] & high);
        missing == 0 && (to <= HERE || beyond(&self.more, from, to).all(|(w, mask)| w & mask == mask))
    }

    /// Adds `len` positions from `from` on.
    #[inline]
    pub(super) fn add(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first[0] |= mask(0, from, to);
        self.first[1] |= mask(WORD, from, to);
        if to > HERE {
            beyond(&mut self.more, from, to).for_each(|(w, mask)| *w |= mask);
        }
    }

    /// Removes `len` positions from `from` on.
    #[inline]
    pub(super) fn remove(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first[0] &= !mask(0, from, to);
        self.first[1] &= !mask(WORD, from, to);
        if to > HERE {
            beyond(&mut self.more, from, to).for_each(|(w, mask)| *w &= !mask);
        }
    }

    /// How many positions it has.
    pub(super) fn count(&self) -> usize {
        self.first.iter().chain(&self.more).map(|w| w.count_ones() as usize).sum()
    }
}

/// The words behind the first two, with what of the positions `from` to `to` is in each.
#[cold]
fn beyond<W>(more: impl IntoIterator<Item = W>, from: usize, to: usize) -> impl Iterator<Item = (W, u64)> {
    more.into_iter().enumerate().map(move |(k, w)| (w, mask(HERE + k * WORD, from, to)))
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

//! Sets of positions in a list, a bit for each.

/// Positions of a word.
const WORD: usize = u64::BITS as usize;

/// Positions of a list that needs no words elsewhere.
const HERE: usize = 2 * WORD;

/// A set of positions below a length that is given when it is made. What is asked most is of lists no longer than [`HERE`],
/// whose words are where the set itself is.
///
/// Invariant: no position from the length on is in it.
#[derive(Debug, Default)]
pub(crate) struct Bits {
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
    pub(crate) fn none(len: usize) -> Bits {
        let more = len.saturating_sub(HERE).div_ceil(WORD);
        Bits { first: [0; 2], more: vec![0; more].into_boxed_slice() }
    }

    /// Makes room for the positions of a list of this length, which is no shorter than before.
    pub(crate) fn grow(&mut self, len: usize) {
        let words = len.saturating_sub(HERE).div_ceil(WORD);
        if words > self.more.len() {
            let mut more = std::mem::take(&mut self.more).into_vec();
            more.resize(words.next_power_of_two(), 0);
            self.more = more.into_boxed_slice();
        }
    }

    #[inline]
    pub(crate) fn has(&self, i: usize) -> bool {
        let word = self.first.get(i / WORD).or_else(|| self.more.get(i.wrapping_sub(HERE) / WORD));
        word.is_some_and(|w| w >> (i % WORD) & 1 == 1)
    }

    /// Whether it has all of `len` positions from `from` on.
    #[inline]
    pub(crate) fn has_all(&self, from: usize, len: usize) -> bool {
        let to = from + len;
        let (low, high) = (mask(0, from, to), mask(WORD, from, to));
        let missing = (!self.first[0] & low) | (!self.first[1] & high);
        missing == 0
            && (to <= HERE || self.beyond(from, to).is_some_and(|mut words| words.all(|(w, mask)| w & mask == mask)))
    }

    /// Adds `len` positions from `from` on.
    #[inline]
    pub(crate) fn add(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first[0] |= mask(0, from, to);
        self.first[1] |= mask(WORD, from, to);
        if to > HERE {
            self.beyond_mut(from, to).for_each(|(w, mask)| *w |= mask);
        }
    }

    /// Removes `len` positions from `from` on.
    #[inline]
    pub(crate) fn remove(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first[0] &= !mask(0, from, to);
        self.first[1] &= !mask(WORD, from, to);
        if to > HERE {
            self.beyond_mut(from, to).for_each(|(w, mask)| *w &= !mask);
        }
    }

    /// How many positions it has.
    pub(crate) fn count(&self) -> usize {
        self.first.iter().chain(&self.more).map(|w| w.count_ones() as usize).sum()
    }

    /// The words behind the first two that some of the positions `from` to `to` are in, with what of those is in each; `None` where there is no
    /// room for all of them.
    #[cold]
    fn beyond(&self, from: usize, to: usize) -> Option<impl Iterator<Item = (&u64, u64)>> {
        let those = those(from, to);
        Some(self.more.get(those.clone())?.iter().zip(those.map(move |k| mask(HERE + k * WORD, from, to))))
    }

    #[cold]
    fn beyond_mut(&mut self, from: usize, to: usize) -> impl Iterator<Item = (&mut u64, u64)> {
        let those = those(from, to);
        self.more.get_mut(those.clone()).into_iter().flatten().zip(those.map(move |k| mask(HERE + k * WORD, from, to)))
    }
}

/// Which of the words behind the first two some of the positions `from` to `to` are in, `to` being beyond those two.
fn those(from: usize, to: usize) -> std::ops::Range<usize> {
    from.saturating_sub(HERE) / WORD..(to - HERE).div_ceil(WORD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set of numbers, in lists of up to three words.
        #[test]
        fn is_a_set(len in 1usize..300, grown in any::<bool>(), ops in prop::collection::vec((any::<bool>(), 0usize..300, 0usize..300), 1..30)) {
            let (mut bits, mut set) = (if grown { Bits::default() } else { Bits::none(len) }, BTreeSet::new());
            bits.grow(len / 2);
            bits.grow(len);
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

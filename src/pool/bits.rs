//! Sets of positions in a list, a bit for each.

#![deny(unsafe_code, clippy::unwrap_used)]

/// Positions of a word.
const WORD: usize = u64::BITS as usize;

/// A set of positions below a length that is given when it is made. What is asked most is of lists no longer than a word,
/// which is then where the set itself is.
///
/// Invariant: no position from the length on is in it.
#[derive(Debug, Default)]
pub(super) struct Bits {
    first: u64,
    more: Box<[u64]>,
}

/// The bits `from` to `to` of a word, as far as they are in it.
#[inline]
fn mask(from: usize, to: usize) -> u64 {
    match from < to.min(WORD) {
        true => (u64::MAX << from) & (u64::MAX >> (WORD - to.min(WORD))),
        false => 0,
    }
}

impl Bits {
    /// No position of a list of this length.
    pub(super) fn none(len: usize) -> Bits {
        Bits { first: 0, more: vec![0; len.saturating_sub(1) / WORD].into_boxed_slice() }
    }

    #[inline]
    pub(super) fn has(&self, i: usize) -> bool {
        let word = match i.checked_sub(WORD) {
            None => Some(&self.first),
            Some(beyond) => self.more.get(beyond / WORD),
        };
        word.is_some_and(|w| w >> (i % WORD) & 1 == 1)
    }

    /// Whether it has all of `len` positions from `from` on.
    #[inline]
    pub(super) fn has_all(&self, from: usize, len: usize) -> bool {
        let to = from + len;
        let here = mask(from, to);
        let words = || self.more.iter().enumerate().map(|(k, &w)| (w, beyond(k, from, to)));
        self.first & here == here && (to <= WORD || words().all(|(w, here)| w & here == here))
    }

    /// Adds `len` positions from `from` on.
    #[inline]
    pub(super) fn add(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first |= mask(from, to);
        if to > WORD {
            self.more.iter_mut().enumerate().for_each(|(k, w)| *w |= beyond(k, from, to));
        }
    }

    /// Removes `len` positions from `from` on.
    #[inline]
    pub(super) fn remove(&mut self, from: usize, len: usize) {
        let to = from + len;
        self.first &= !mask(from, to);
        if to > WORD {
            self.more.iter_mut().enumerate().for_each(|(k, w)| *w &= !beyond(k, from, to));
        }
    }

    /// How many positions it has.
    pub(super) fn count(&self) -> usize {
        std::iter::once(&self.first).chain(&*self.more).map(|w| w.count_ones() as usize).sum()
    }
}

/// What of the positions `from` to `to` is in the word number `k` behind the first.
#[cold]
fn beyond(k: usize, from: usize, to: usize) -> u64 {
    let start = (k + 1) * WORD;
    mask(from.saturating_sub(start), to.saturating_sub(start))
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

//! Sorting that clock and flag can stop.
//!
//! Sorting millions of buffers takes a second, and a caller that stops a search would wait for it.
//! So elements are first split by their leading bits, with a look at the clock between the parts.

use std::cmp::Ordering;

/// Most elements handled without a look at the clock: some 10 ms.
pub(super) const PIECE: usize = 1 << 17;
/// Number of parts.
const PARTS: u64 = 1 << 10;

/// Sorts by `compare`, which must agree with `key`. Returns `false` if `late` stopped it; with at
/// most [`PIECE`] elements, `late` is not called.
pub(super) fn sort<T>(
    all: &mut [T],
    key: impl Fn(&T) -> u64 + Copy,
    compare: impl Fn(&T, &T) -> Ordering + Copy,
    late: &mut dyn FnMut() -> bool,
) -> bool {
    if all.len() > PIECE && late() {
        return false;
    }
    let (least, most) = all.iter().map(key).fold((u64::MAX, 0), |(least, most), key| (least.min(key), most.max(key)));
    if all.len() <= PIECE || least == most {
        all.sort_unstable_by(compare);
        return true;
    }
    let bits = u64::BITS - ((most - least) / PARTS).leading_zeros();
    let part_of = |value: &T| ((key(value) - least) >> bits) as usize;
    // The index at which each part begins; the next entry is its end.
    let mut first = vec![0; PARTS as usize + 1];
    for piece in all.chunks(PIECE) {
        if late() {
            return false;
        }
        piece.iter().for_each(|value| first[part_of(value) + 1] += 1);
    }
    (0..PARTS as usize).for_each(|part| first[part + 1] += first[part]);
    let mut next = first.clone();
    let mut moved = 0;
    for part in 0..PARTS as usize {
        while next[part] < first[part + 1] {
            moved += 1;
            if moved % PIECE == 0 && late() {
                return false;
            }
            let home = part_of(&all[next[part]]);
            if home != part {
                all.swap(next[part], next[home]);
            }
            next[home] += 1;
        }
    }
    first.windows(2).all(|part| !late() && sort(&mut all[part[0]..part[1]], key, compare, late))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::numbers::mix;
    use super::*;

    #[test]
    fn all_is_sorted_unless_it_is_late() {
        for len in [0, 1, 1000, PIECE, PIECE + 1, 2 * PIECE + 7] {
            for spread in [0, 1, 40, 63, 64] {
                // Few keys or many, evenly spread or not.
                let key = |i: u64| if i.is_multiple_of(3) { 5 } else { mix(i).checked_shr(spread).unwrap_or(7) };
                let mut all: Vec<(u64, u64)> = (0..len as u64).map(|i| (key(i), mix(i) >> 50)).collect();
                let mut sorted = all.clone();
                sorted.sort_unstable();
                let mut looks = 0;
                let mut ends_at = |most: usize| {
                    looks = 0;
                    let mut late = || {
                        looks += 1;
                        looks > most
                    };
                    sort(&mut all, |v| v.0, Ord::cmp, &mut late)
                };
                assert_eq!(ends_at(500), len <= PIECE, "{len} {spread}");
                // An early end loses nothing.
                assert!(ends_at(usize::MAX));
                assert_eq!(all, sorted, "{len} {spread}");
            }
        }
    }
}

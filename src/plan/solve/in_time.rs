//! Sorting that clock and flag can end.
//!
//! Of millions of buffers one sort takes a second, and the caller that stops a search waits for it.
//! So what is to be sorted is parted by its leading bits first, with a look between the parts.

use std::cmp::Ordering;

/// Most that is done without a look: some 10 ms.
pub(super) const PIECE: usize = 1 << 17;
/// Parts.
const PARTS: u64 = 1 << 10;

/// Sorts by `key` and then as `compare` has it, which must not contradict `key`; `false` if `late`
/// ended that. Of few nobody asks.
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
    // Where each part begins, and with it the next one.
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
                // Of few keys or many, evenly spread or not.
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
                // Nothing is lost when it ends early.
                assert!(ends_at(usize::MAX));
                assert_eq!(all, sorted, "{len} {spread}");
            }
        }
    }
}

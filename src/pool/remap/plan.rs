//! Which free extents to move, and what to create, so that a request finds one run of addresses.
//!
//! The VPMM algorithm (docs/spec/pool.md) generalised from pages to extents of many sizes, at their
//! prices: moving an extent costs a map and a set-access; creating one costs a create besides, and
//! what is created stays. So memory is moved rather than created, unless creating is no dearer and
//! the heap stays within a small share of the most it has had live since it last started afresh.
//!
//! This file decides and touches nothing; `stitch.rs` carries plans out.

use crate::pool::memory::ladder;
use crate::pool::remap::sources::{bytes_of, Source};

/// What to do for a shortfall.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Extents to move.
    pub(crate) moves: Vec<Source>,
    /// Sizes of extents to create.
    pub(crate) creates: Vec<u64>,
}

/// How much may be created, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// The most, by the limit and the device.
    pub(crate) hard: u64,
    /// The most that does not hurt utilisation: within the heap's slack.
    pub(crate) cheap: u64,
    /// The most to create rather than move anything: the heap is small, and what is moved once will
    /// be moved again and again.
    pub(crate) floor: u64,
}

/// Prices in microseconds per extent on an H200: map 1 + set-access 24, and create 9 besides
/// (docs/adr/extent-sizes.md).
const MOVE_US: u64 = 25;

const CREATE_US: u64 = 34;

/// The cheapest way to `need` bytes (a multiple of `page`), or `None` when there is not enough.
pub(crate) fn plan(need: u64, page: u64, max_extent: u64, sources: &[Source], allowed: Allowance) -> Option<Plan> {
    let all_new = Plan { moves: Vec::new(), creates: ladder(need, page, max_extent) };
    if sources.is_empty() {
        return (need <= allowed.hard).then_some(all_new);
    }
    let moved: Vec<Source> = cover(need, sources).into_iter().map(|i| sources[i]).collect();
    let missing = need.saturating_sub(bytes_of(&moved));
    let stitched = Plan { moves: moved, creates: ladder(missing, page, max_extent) };
    let price = |p: &Plan| p.moves.len() as u64 * MOVE_US + p.creates.len() as u64 * CREATE_US;
    let better = need <= allowed.cheap && price(&all_new) <= price(&stitched);
    if need <= allowed.hard && (better || need <= allowed.floor) {
        return Some(all_new);
    }
    (missing <= allowed.hard).then_some(stitched)
}

/// Few sources that together have `need` bytes with little to spare, or all of them if they have
/// less.
///
/// Takes those with the least [`weight`] first, as long as they fit. Then, of those larger than
/// what is left, takes the one with the most weight, as that is a small one, and drops what this
/// makes superfluous.
fn cover(need: u64, sources: &[Source]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_cached_key(|&i| (weight(&sources[i]), sources[i].addr));
    let mut taken = Vec::new();
    let mut left = need;
    let mut skipped = None;
    for &i in &order {
        let size = sources[i].extent.size;
        if left == 0 {
            break;
        }
        if size <= left {
            taken.push(i);
            left -= size;
        } else {
            // Larger than what is left now, and so than what is left in the end.
            skipped = Some(i);
        }
    }
    if left > 0 {
        if let Some(i) = skipped {
            let mut spare = sources[i].extent.size - left;
            taken.retain(|&t| {
                let size = sources[t].extent.size;
                let superfluous = size <= spare;
                if superfluous {
                    spare -= size;
                }
                !superfluous
            });
            taken.push(i);
        }
    }
    taken
}

/// How much speaks against moving an extent: 8^neighbours × size of its region ÷ (its own
/// size)^1.9, by experiment (docs/adr/extent-sizes.md). A small extent costs as much to move as a
/// large one. A large free region may hold a request, or most of one, as it is. A region's
/// neighbours may join it once they are freed, unless a hole is left between them. Comparable as an
/// integer: floats that are not negative are in the order of their bits.
fn weight(s: &Source) -> u64 {
    let (region, extent) = (s.region_size as f64, s.extent.size as f64);
    (8_f64.powi(s.neighbours) * region / extent.powf(1.9)).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::PhysHandle;
    use crate::pool::memory::Extent;
    use crate::pool::order::Tag;

    const P: u64 = 2 << 20;

    fn sources(pages: &[u64]) -> Vec<Source> {
        let at = |i: usize, n: u64| Source {
            heap: 1,
            region: i as u32,
            region_size: n * P,
            neighbours: 2,
            addr: i as u64 * 1000 * P,
            extent: Extent { handle: PhysHandle(i as u64), size: n * P, id: i as u32 },
            place: (0, 0),
            tag: Tag::SETTLED,
        };
        pages.iter().enumerate().map(|(i, &n)| at(i, n)).collect()
    }

    fn go(need: u64, have: &[u64], hard: u64, cheap: u64) -> Option<(Vec<u64>, Vec<u64>)> {
        let s = sources(have);
        let p = plan(need * P, P, 512 * P, &s, Allowance { hard: hard * P, cheap: cheap * P, floor: 0 })?;
        let moves: Vec<u64> = p.moves.iter().map(|s| s.extent.size / P).collect();
        let creates: Vec<u64> = p.creates.iter().map(|c| c / P).collect();
        assert!(moves.iter().chain(&creates).sum::<u64>() >= need);
        Some((moves, creates))
    }

    #[test]
    fn moves_before_it_creates() {
        assert_eq!(go(10, &[8, 4, 2, 1], 100, 0), Some((vec![8, 2], vec![])));
        assert_eq!(go(20, &[8, 4], 100, 0), Some((vec![8, 4], vec![8])));
        assert_eq!(go(5, &[], 100, 0), Some((vec![], vec![4, 1])));
    }

    #[test]
    fn covers_with_the_smallest_that_does_and_drops_the_superfluous() {
        assert_eq!(go(5, &[8, 4], 100, 0), Some((vec![8], vec![])));
        assert_eq!(go(7, &[4, 4, 2], 100, 0), Some((vec![4, 4], vec![])));
    }

    #[test]
    fn empties_small_regions_before_it_touches_large_ones() {
        // Two extents of 4 pages in a region of 8, one of 3 pages and one of 2 alone in theirs.
        let mut s = sources(&[4, 4, 3, 2]);
        for (source, region) in s.iter_mut().zip([0, 0, 2, 3]) {
            source.region = region;
        }
        (s[0].region_size, s[1].region_size) = (8 * P, 8 * P);
        let moves = |need: u64| cover(need * P, &s);
        assert_eq!(moves(2), [3], "as large as needed");
        assert_eq!(moves(5), [2, 3], "not one of 4 and a smaller one");
        assert_eq!(moves(9), [2, 3, 0], "the rest out of the large region");
        assert_eq!(moves(4), [1], "one that covers what is left makes smaller ones superfluous");
    }

    #[test]
    fn leaves_what_may_be_joined_for_last() {
        let mut s = sources(&[2, 4, 4, 4]);
        (s[1].neighbours, s[2].neighbours, s[3].neighbours) = (1, 0, 1);
        let moves = |need: u64| cover(need * P, &s);
        assert_eq!(moves(4), [2], "a span of its own");
        assert_eq!(moves(10), [2, 1, 0], "what is between two others last");
        assert_eq!(moves(12), [2, 1, 3]);
    }

    #[test]
    fn creates_when_that_is_cheaper_and_there_is_slack() {
        assert_eq!(go(4, &[1, 1, 1, 1], 100, 4), Some((vec![], vec![4])));
        assert_eq!(go(4, &[1, 1, 1, 1], 100, 3), Some((vec![1, 1, 1, 1], vec![])));
        assert_eq!(go(4, &[4], 100, 100), Some((vec![4], vec![])), "moving one is cheaper than creating one");
    }

    #[test]
    fn says_when_there_is_not_enough() {
        assert_eq!(go(10, &[4, 4], 1, 1), None);
        assert_eq!(go(10, &[4, 4], 2, 0), Some((vec![4, 4], vec![2])));
        assert_eq!(go(10, &[], 9, 9), None);
    }
}

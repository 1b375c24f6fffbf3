//! The quick list: freed blocks that wait for a request of their size are as free as any other
//! memory.

use crate::pool_support::{checked, late, request, Rig, D, GIB_DEVICE, PAGE};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::Driver;
use gpumem::pool::PoolOptions;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn a_block_comes_back_for_its_size_where_it_was_although_others_would_fit() {
    let rig = Rig::small();
    let s = rig.stream();
    for size in [64 * KIB + 1, MIB, 3 * MIB + 511, 20 * MIB] {
        // Free places of just this size before and after the block, with live ones between.
        let blocks: Vec<u64> = (0..7).map(|_| rig.malloc(size, s)).collect();
        rig.free(blocks[1], s);
        rig.free(blocks[5], s);
        rig.books();
        rig.free(blocks[3], s);
        rig.fault.start_recording();
        for near in [0, 1, 511] {
            // The same to the allocator when it rounds to the same granule.
            let asked = size.next_multiple_of(512) - near;
            let p = rig.malloc(asked, s);
            assert_eq!(p, blocks[3], "{asked} after {size}");
            assert_eq!(rig.pool.info(p).unwrap().requested, asked);
            rig.free(p, s);
        }
        assert!(rig.fault.stop_recording().is_empty());
        [0, 2, 4, 6].into_iter().for_each(|i| rig.free(blocks[i], s));
    }
    rig.close();
}

#[test]
fn what_was_just_freed_counts_as_free_serves_other_streams_and_goes_with_a_trim() {
    let rig = Rig::small();
    let (s, t) = (rig.stream(), rig.stream());
    let (p, q) = (rig.malloc(6 * MIB, s), rig.malloc(10 * MIB, s));
    rig.free(q, s);
    assert_eq!((rig.pool.stats().free, rig.pool.stats().largest_free), (10 * MIB, 10 * MIB));
    // Somebody looks and asks for a marker; the next free is followed by one.
    let of_t = rig.malloc(2 * MIB, t);
    let q = rig.malloc(10 * MIB, s);
    rig.free(q, s);
    let mapped = rig.mapped();
    let other = rig.malloc(10 * MIB, t);
    assert_eq!((other, rig.mapped()), (q, mapped), "taken over where it was");
    [other, of_t].into_iter().for_each(|p| rig.free(p, t));
    rig.free(p, s);
    rig.sync();
    // Nothing has looked at the heap of s since the free.
    rig.pool.trim(0).unwrap();
    assert_eq!(rig.mapped(), 0, "{}", rig.pool.dump());
    rig.close();
}

/// What is left of the last block joins the rest when a heap that has moved memory runs empty, as
/// it may start afresh then; once that is done, it may run empty as often as it likes.
#[test]
fn a_block_comes_back_to_a_heap_that_runs_empty_again_without_having_moved_anything() {
    let options = PoolOptions { slack_floor: 0, limit: 64 * PAGE, ..PoolOptions::default() };
    let rig = Rig::new(checked(GIB), options);
    let s = rig.stream();
    let mut blocks: Vec<u64> = (0..64).map(|_| rig.malloc(PAGE, s)).collect();
    for i in [40, 20] {
        rig.free(blocks.swap_remove(i), s);
    }
    blocks.push(rig.malloc(2 * PAGE, s));
    assert_eq!(rig.pool.stats().stitches, 1);
    blocks.into_iter().for_each(|p| rig.free(p, s));

    for _ in 0..3 {
        // Both in what was put together; joined, that would be more than the many places of one
        // page for the smaller.
        let (p, q) = (rig.malloc(5 * MIB / 2, s), rig.malloc(MIB, s));
        assert_eq!(q, p + 5 * MIB / 2);
        rig.free(p, s);
        rig.free(q, s);
        assert_eq!(rig.malloc(MIB, s), q);
        rig.free(q, s);
        rig.books();
    }
    rig.close();
}

/// The block freed last by the old stream is what the new one asks for first; what it was used for
/// is still running.
#[test]
fn a_reused_handle_does_not_hit_what_the_old_stream_freed_last() {
    for size in [64 * KIB + 1, 3 * MIB, 17 * MIB] {
        let rig = Rig::new(late(size, GIB_DEVICE), PoolOptions::default());
        let (s, blocker) = (rig.stream(), rig.stream());
        rig.host.hold(D, blocker).unwrap();
        rig.order(blocker, s);
        let p = rig.malloc(size, s);
        rig.fill(s, p, size, 1);
        rig.free(p, s);
        rig.host.stream_destroy(D, s).unwrap();
        assert_eq!(rig.stream(), s);
        let q = rig.malloc(size, s);
        assert_ne!(p, q, "{size} bytes");
        rig.fill(s, q, size, 2);
        rig.check(s, q, size, 2);
        rig.free(q, s);
        rig.host.release(D, blocker).unwrap();
        rig.close();
    }
}

#[test]
fn a_block_grows_into_what_was_just_freed_behind_it() {
    let rig = Rig::small();
    let s = rig.stream();
    let whole = rig.malloc(12 * MIB, s);
    rig.free(whole, s);
    let [p, q] = [5, 7].map(|n| rig.malloc(n * MIB, s));
    assert_eq!((p, q), (whole, whole + 5 * MIB));
    rig.fill(s, p, 5 * MIB, 3);
    rig.free(q, s);
    rig.fault.start_recording();
    assert_eq!(rig.pool.realloc(p, 12 * MIB, s).unwrap(), p);
    let calls = rig.fault.stop_recording();
    assert!(calls.is_empty(), "{calls:?}");
    rig.check(s, p, 5 * MIB, 3);
    rig.books();
    // The size that the list knew is in use: it must not be handed out.
    let r = rig.malloc(7 * MIB, s);
    assert!(r >= p + 12 * MIB || r + 7 * MIB <= p);
    rig.free(r, s);
    rig.free(p, s);
    rig.close();
}

/// A block that keeps more than its size needs, because another use of it was recorded when it
/// shrank, is not handed out whole for that size.
#[test]
fn a_shrunk_block_that_kept_its_tail_is_cut_when_it_comes_back() {
    let rig = Rig::small();
    let s = rig.stream();
    let p = rig.malloc(32 * MIB, s);
    rig.pool.record_stream(p, s).unwrap();
    assert_eq!(rig.pool.realloc(p, MIB, s).unwrap(), p);
    assert_eq!(rig.pool.info(p).unwrap().usable, 32 * MIB);
    rig.free(p, s);
    let q = rig.malloc(MIB, s);
    assert_eq!(rig.pool.info(q).unwrap().usable, MIB);
    rig.free(q, s);
    rig.close();
}

/// One step of a random sequence.
#[derive(Clone, Debug)]
enum Step {
    /// Allocates one of a few sizes, so that many are hits.
    Malloc(usize),
    /// Frees the n-th live block.
    Free(usize),
    /// Allocates the largest gap between live blocks, whole, and frees it again.
    Largest,
}

const SPAN: u64 = 64 * MIB;
const SIZES: [u64; 7] = [64 * KIB + 1, 100 * KIB, 400_000, MIB, MIB + 512, 3 * MIB, 7 * MIB];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..SIZES.len()).prop_map(Step::Malloc),
        7 => (0..1000usize).prop_map(Step::Free),
        1 => Just(Step::Largest),
    ]
}

/// The gaps that live blocks leave in `[start, start + SPAN)`: address and size, in address order.
fn gaps(start: u64, live: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut at = start;
    let mut gaps = Vec::new();
    for (&p, &size) in live.iter().chain([(&(start + SPAN), &0)]) {
        if p > at {
            gaps.push((at, p - at));
        }
        at = p + size;
    }
    gaps
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// A list that kept blocks apart would make the largest gap smaller than what lies between live
    /// blocks. Fails when `take_region` in `src/pool/heap/state.rs` does not tidy.
    #[test]
    fn other_sizes_see_free_memory_joined_whatever_was_freed_last(steps in vec(step(), 1..120)) {
        // One run. A request that finds no room in it maps more, which is seen.
        let options = PoolOptions { prealloc: SPAN, ..PoolOptions::default() };
        let rig = Rig::new(checked(GIB), options);
        let s = StreamHandle::LEGACY;
        let first = rig.malloc(SPAN, s);
        rig.free(first, s);
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        rig.fault.start_recording();
        for step in steps {
            match step {
                Step::Malloc(i) => {
                    let largest = gaps(first, &live).into_iter().map(|g| g.1).max().unwrap_or(0);
                    // Where nothing fits the pool would grow: another matter.
                    if largest < SIZES[i].next_multiple_of(512) {
                        continue;
                    }
                    let p = rig.pool.malloc(&request(SIZES[i], s)).unwrap();
                    let info = rig.pool.info(p).unwrap();
                    prop_assert!(info.usable < SIZES[i] + 512 + 4096, "{info:?}");
                    let inside = |g: &(u64, u64)| g.0 <= p && p + info.usable <= g.0 + g.1;
                    prop_assert!(gaps(first, &live).iter().any(inside), "{info:?} is not in a gap");
                    live.insert(p, info.usable);
                }
                Step::Free(_) if live.is_empty() => {}
                Step::Free(n) => {
                    let p = *live.keys().nth(n % live.len()).unwrap();
                    live.remove(&p);
                    rig.free(p, s);
                }
                Step::Largest => {
                    let size = gaps(first, &live).into_iter().map(|g| g.1).max().unwrap_or(0);
                    if size <= 64 * KIB {
                        continue;
                    }
                    let p = rig.pool.malloc(&request(size, s)).unwrap();
                    prop_assert!(gaps(first, &live).contains(&(p, size)), "{size} bytes at {p:#x}");
                    rig.free(p, s);
                }
            }
        }
        prop_assert_eq!(rig.fault.stop_recording(), vec![], "what is free in one piece needs no driver call");
        // Seen from outside: the pieces are the live blocks and the gaps between them.
        let mut pieces: Vec<(u64, String)> = live.iter().map(|(&p, &size)| (p, format!("[{}]", size / 512))).collect();
        pieces.extend(gaps(first, &live).into_iter().map(|(p, size)| (p, format!("[-{}]", size / 512))));
        pieces.sort();
        prop_assert_eq!(rig.pool.layout(512), pieces.into_iter().map(|p| p.1).collect::<String>());
        live.into_keys().for_each(|p| rig.free(p, s));
        rig.close();
    }
}

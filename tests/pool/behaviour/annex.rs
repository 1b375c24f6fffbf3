//! Small blocks that live long among large ones that do not.

use crate::pool_support::{checked, late, Rig, D};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::{Call, Driver};
use gpumem::pool::PoolOptions;
use std::collections::{BTreeSet, VecDeque};
use test_support::Rng;

/// Bytes of small blocks that are live at a time.
const QUEUE: u64 = 256 * MIB;

/// A queue of small blocks, and ten large ones, of which a random one is freed each time. Returns
/// the small blocks left, and the most that was live.
fn strand(rig: &Rig, s: StreamHandle, small: (u64, u64)) -> (Vec<u64>, u64) {
    let mut rng = Rng::new(7);
    let (mut queue, mut temporary) = (VecDeque::new(), Vec::new());
    let (mut live, mut most, mut of_queue) = (0, 0, 0);
    for _ in 0..4000 {
        let bytes = rng.between(small.0, small.1);
        queue.push_back((rig.malloc(bytes, s), bytes));
        of_queue += bytes;
        let large = rng.between(8 * MIB, 128 * MIB);
        temporary.push((rig.malloc(large, s), large));
        live += bytes + large;
        most = most.max(live);
        while of_queue > QUEUE {
            let (p, bytes) = queue.pop_front().unwrap();
            rig.free(p, s);
            (live, of_queue) = (live - bytes, of_queue - bytes);
        }
        if temporary.len() > 10 {
            let (p, bytes) = temporary.swap_remove(rng.below(10) as usize);
            rig.free(p, s);
            live -= bytes;
        }
    }
    temporary.into_iter().for_each(|t| rig.free(t.0, s));
    (queue.into_iter().map(|q| q.0).collect(), most)
}

/// The numbers of the heaps in which something is live.
fn heaps(rig: &Rig) -> BTreeSet<u32> {
    rig.pool.heap_sizes().iter().filter(|h| h.2 > 0).map(|h| h.0).collect()
}

#[test]
fn small_blocks_stop_stranding_what_large_ones_leave() {
    for small in [(4 * KIB, MIB), (256, 64 * KIB), (200 * KIB, 2 * MIB)] {
        let rig = Rig::new(checked(16 * GIB), PoolOptions::default());
        let s = rig.stream();
        let (blocks, most) = strand(&rig, s, small);
        assert!(rig.mapped() <= most * 3 / 2, "{small:?}: {} mapped for {most}", rig.mapped());
        rig.books();
        blocks.iter().for_each(|&p| rig.free(p, s));
        rig.close();
    }
}

/// Nothing is parted where large blocks live as long.
#[test]
fn a_heap_within_its_bounds_stays_one() {
    let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
    let s = rig.stream();
    let blocks: Vec<u64> = (0..100).flat_map(|_| [32 * MIB, 300 * KIB]).map(|size| rig.malloc(size, s)).collect();
    assert_eq!(heaps(&rig).len(), 1);
    blocks.iter().for_each(|&p| rig.free(p, s));
    rig.close();
}

/// The annex goes with its stream's lane: what the stream before has used there waits for it.
#[test]
fn the_next_stream_at_the_handle_waits_for_the_annex_too() {
    const SMALL: u64 = 300 * KIB;
    for seed in 1..4 {
        let rig = Rig::new(late(seed, 16 * GIB), PoolOptions::default());
        let s = rig.stream();
        let (blocks, _) = strand(&rig, s, (4 * KIB, MIB));
        assert_eq!(heaps(&rig).len(), 1, "the annex has all that is live");
        blocks.iter().for_each(|&p| rig.free(p, s));
        let used: Vec<u64> = (0..40).map(|_| rig.malloc(SMALL, s)).collect();
        for &p in &used {
            rig.fill(s, p, SMALL, 1);
            rig.free(p, s);
        }
        rig.host.stream_destroy(D, s).unwrap();
        let next = rig.stream();
        assert_eq!(next, s, "the handle comes back");
        let again: Vec<u64> = (0..40).map(|_| rig.malloc(SMALL, next)).collect();
        for &p in &again {
            rig.fill(next, p, SMALL, 2);
            rig.check(next, p, SMALL, 2);
        }
        again.iter().for_each(|&p| rig.free(p, next));
        rig.close();
    }
}

/// At the limit, what is free beside large blocks serves small ones: in the order of their own
/// stream, so nothing is waited for, and in slabs.
#[test]
fn small_requests_at_the_limit_use_what_the_other_heap_has_in_parts() {
    let rig = Rig::new(checked(16 * GIB), PoolOptions::default());
    let s = rig.stream();
    let (blocks, _) = strand(&rig, s, (4 * KIB, MIB));
    blocks.iter().for_each(|&p| rig.free(p, s));
    rig.sync();
    rig.pool.trim(0).unwrap();
    let large: Vec<u64> = (0..300).map(|_| rig.malloc(3 * MIB, s)).collect();
    rig.pool.set_limit(rig.mapped()).unwrap();
    let (gone, kept): (Vec<_>, Vec<_>) = large.into_iter().zip(0..).partition(|b| b.1 % 2 == 0);
    gone.iter().for_each(|&(p, _)| rig.free(p, s));
    let live = rig.pool.stats().live;
    rig.fault.start_recording();
    let small: Vec<u64> = (0..5000).map(|_| rig.malloc(1000, s)).collect();
    let calls = rig.fault.stop_recording();
    let waits = [Call::EventSync, Call::StreamSync, Call::DeviceSync];
    assert!(!calls.iter().any(|c| waits.contains(c)), "{calls:?}");
    assert!(rig.pool.stats().live - live <= 5000 * 1024);
    rig.books();
    kept.iter().map(|b| b.0).chain(small).for_each(|p| rig.free(p, s));
    rig.pool.set_limit(0).unwrap();
    rig.close();
}

//! Requests when nothing more can be mapped: each finds what there is, in whichever heap, and the
//! counters say so before.

use crate::pool_support::{checked, request, Rig};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::pool::{AllocRequest, PoolOptions};
use test_support::Rng;

/// A pool of three streams with a few allocations and many gaps, its device idle, that may map
/// nothing more.
fn full(seed: u64) -> (Rig, Vec<StreamHandle>, Vec<u64>) {
    let rig = Rig::new(checked(4 * GIB), PoolOptions { wait: seed.is_multiple_of(2), ..PoolOptions::default() });
    let streams: Vec<StreamHandle> = (0..3).map(|_| rig.stream()).collect();
    let (mut rng, mut live) = (Rng::new(seed), Vec::new());
    let one = |rng: &mut Rng| streams[rng.below(3) as usize];
    for _ in 0..rng.between(4, 60) {
        if live.is_empty() || rng.chance(60) {
            let size = match rng.below(3) {
                0 => rng.between(1, 64 * KIB),
                1 => rng.between(64 * KIB, 8 * MIB),
                _ => rng.between(1, 40) * MIB,
            };
            live.push(rig.malloc(size, one(&mut rng)));
        } else {
            rig.free(live.swap_remove(rng.below(live.len() as u64) as usize), one(&mut rng));
        }
    }
    while live.len() > 3 {
        rig.free(live.swap_remove(rng.below(live.len() as u64) as usize), one(&mut rng));
    }
    rig.sync();
    rig.pool.set_limit(rig.mapped()).unwrap();
    (rig, streams, live)
}

/// `largest_without_growth` is what any stream gets, one that had nothing before, too, whether or
/// not anybody has looked yet if the device is done with what was freed. And a stream that had
/// nothing gets no more, unless it is by the rounding of sizes to pages.
#[test]
fn the_largest_request_without_growth_is_met_on_every_stream() {
    for seed in 0..120 {
        let promised = full(seed).0.pool.stats().largest_without_growth;
        let try_one = |who: usize, size: u64| {
            let (rig, mut streams, live) = full(seed);
            streams.push(rig.stream());
            let got = rig.pool.malloc(&request(size, streams[who]));
            rig.books();
            live.into_iter().chain(got.iter().copied()).for_each(|p| rig.free(p, streams[who]));
            rig.close();
            got
        };
        for who in 0..4 {
            let got = try_one(who, promised);
            assert!(promised == 0 || got.is_ok(), "seed {seed}, stream {who}, {promised} bytes: {got:?}");
        }
        let more = try_one(3, promised + 512);
        assert_eq!(more.unwrap_err().status, Status::OutOfMemory, "seed {seed}, {promised} bytes and one granule");
    }
}

/// A small object is met out of another heap's gap, although that lends no slab; so is one whose
/// slab would be larger than what is left. Refusals are counted once each.
#[test]
fn a_small_object_needs_no_slab() {
    let rig = Rig::new(checked(GIB), PoolOptions { limit: 2 * MIB, ..PoolOptions::default() });
    let (a, b) = (rig.stream(), rig.stream());
    let most = rig.malloc(2 * MIB - 128 * KIB, a);
    let (p, q) = (rig.malloc(1000, b), rig.malloc(40 * KIB, b));
    assert!(p > most && p < most + 2 * MIB && q > most && q < most + 2 * MIB, "not beside {most:x}: {p:x} {q:x}");
    rig.fill(b, p, 1000, 1);
    assert_eq!((rig.mapped(), rig.pool.stats().out_of_memory), (2 * MIB, 0));
    assert_eq!(rig.pool.malloc(&request(1000, b)).unwrap_err().status, Status::OutOfMemory);
    assert_eq!(rig.pool.stats().out_of_memory, 1);
    [p, q].into_iter().for_each(|p| rig.free(p, b));
    rig.free(most, a);
    rig.close();
}

/// Gaps that no slab of eight objects fits into: small objects take them before anything is mapped.
#[test]
fn small_objects_take_the_gaps_between_blocks() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let s = rig.stream();
    let blocks: Vec<u64> = (0..200).map(|_| rig.malloc(130 * KIB, s)).collect();
    let (kept, gaps): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    gaps.iter().for_each(|&(_, p)| rig.free(p, s));
    let mapped = rig.mapped();
    // Two objects of 60 KB, or eleven of 11 KiB, fit into a gap.
    let sizes = [60_000, 11 * KIB].into_iter().cycle();
    let objects: Vec<(u64, u64)> = sizes.take(140).map(|size| (rig.malloc(size, s), size)).collect();
    assert_eq!(rig.mapped(), mapped, "{}", rig.pool.dump());
    for &(p, size) in &objects {
        assert_eq!(rig.pool.info_containing(p + size - 1).map(|info| info.base), Ok(p), "{}", rig.pool.dump());
    }
    rig.books();
    kept.iter().map(|k| k.1).chain(objects.iter().map(|o| o.0)).for_each(|p| rig.free(p, s));
    rig.close();
}

/// A gap of one slot of the index and 2 KiB more is a slab of one slot.
#[test]
fn every_byte_of_an_object_leads_to_it() {
    let rig = Rig::new(checked(GIB), PoolOptions::default());
    let s = rig.stream();
    rig.malloc(256, s);
    let (_, gap, _) = (rig.malloc(128 * KIB, s), rig.malloc(66 * KIB, s), rig.malloc(100 * KIB, s));
    rig.free(gap, s);
    for _ in 0..6 {
        let p = rig.malloc(11 * KIB, s);
        assert_eq!(rig.pool.info_containing(p + 11 * KIB - 1).map(|info| info.base), Ok(p));
    }
    rig.books();
}

/// A small request is an object of a slab, and a slab takes 64 KiB.
#[test]
fn what_no_slab_fits_into_is_not_promised() {
    for left in [4 * KIB, 40 * KIB, 64 * KIB] {
        let rig = Rig::new(checked(GIB), PoolOptions::default());
        let s = rig.stream();
        rig.malloc(2 * MIB, s);
        rig.malloc(2 * MIB - left, s);
        rig.pool.set_limit(rig.mapped()).unwrap();
        let stats = rig.pool.stats();
        let least = if left < 64 * KIB { 0 } else { left };
        assert_eq!((stats.free, stats.largest_free, stats.largest_without_growth), (left, least, least));
        assert_eq!(rig.pool.malloc(&request(left, s)).is_ok(), least > 0);
    }
}

/// A heap full of objects of one size, most of which are freed, in all slabs but the first short
/// ones: there is no room for a slab.
#[test]
fn at_the_limit_a_small_object_takes_the_place_of_a_larger_one() {
    let rig = Rig::new(checked(GIB), PoolOptions { limit: 8 * MIB, ..PoolOptions::default() });
    let s = rig.stream();
    let mut live: Vec<u64> = (0..512).map(|_| rig.malloc(16 * KIB, s)).collect();
    assert!(rig.pool.malloc(&request(16 * KIB, s)).is_err());
    let (kept, gone): (Vec<_>, Vec<_>) = live.drain(..).enumerate().partition(|(i, _)| i % 8 == 0 || *i < 8);
    gone.iter().for_each(|&(_, p)| rig.free(p, s));
    let sizes = [15 * KIB, 1000, 1].into_iter().cycle().take(gone.len());
    let mut small: Vec<u64> = sizes.map(|size| rig.malloc(size, s)).collect();
    let aligned = AllocRequest { align: 16 * KIB, ..request(KIB, s) };
    rig.free(small.swap_remove(5), s);
    let p = rig.pool.malloc(&aligned).unwrap();
    assert!(p.is_multiple_of(16 * KIB), "{p:#x}");
    let e = rig.pool.malloc(&request(KIB, s)).unwrap_err();
    assert!(!e.message.contains("GPUMEM_SLACK"), "{e}");
    // There is no other place that it could move to.
    for size in [1000, 15 * KIB, 1, 16 * KIB] {
        assert_eq!(rig.pool.realloc(small[7], size, s).unwrap(), small[7]);
    }
    rig.books();
    kept.into_iter().map(|(_, p)| p).chain(small).chain([p]).for_each(|p| rig.free(p, s));
    rig.close();
}

/// An error for lack of memory names the way out that helps: finer extents where enough is free
/// beside live blocks, more room under the limit where there is a limit.
#[test]
fn an_error_says_whether_memory_is_stranded() {
    for finer in [false, true] {
        let limit = 64 * MIB;
        let rig = Rig::new(checked(GIB), PoolOptions { limit, finer, ..PoolOptions::default() });
        let s = rig.stream();
        let blocks: Vec<u64> = (0..64).map(|_| rig.malloc(MIB, s)).collect();
        let refused = |size: u64| {
            let e = rig.pool.malloc(&request(size, s)).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory, "{e}");
            assert!(e.message.contains("raise the limit (GPUMEM_LIMIT"), "{e}");
            e.message.contains("GPUMEM_SLACK=tight")
        };
        assert!(!refused(8 * MIB), "nothing is free");
        // Half of every extent.
        blocks.iter().step_by(2).for_each(|&p| rig.pool.free(p, Some(s)).unwrap());
        assert_eq!(refused(8 * MIB), !finer, "32 MiB are free");
        assert!(!refused(40 * MIB), "no extents would make them more");
    }
    let less_than_a_page = Rig::new(checked(GIB), PoolOptions { limit: 1, ..PoolOptions::default() });
    let e = less_than_a_page.pool.malloc(&request(1, less_than_a_page.stream())).unwrap_err();
    assert!(!e.message.contains("GPUMEM_SLACK"), "nothing is mapped: {e}");
    let rig = Rig::new(checked(64 * MIB), PoolOptions::default());
    let e = rig.pool.malloc(&request(65 * MIB, rig.stream())).unwrap_err();
    assert!(!e.message.contains("GPUMEM_LIMIT"), "there is none: {e}");
}

//! Memory that one stream allocates and another one frees: when it comes back, and what is asked
//! and mapped meanwhile.

use crate::pool_support::{checked, late, request, Rig, D, GIB_DEVICE, PAGE};
use gpumem::base::size::{KIB, MIB};
use gpumem::driver::{Call, Driver};
use gpumem::pool::PoolOptions;

const SIZES: [u64; 5] = [300, 40 * KIB, 65 * KIB, 3 * MIB, 20 * MIB];

/// The short way of `free` keeps the order that the long one keeps.
#[test]
fn what_another_stream_freed_by_the_short_way_waits_for_it() {
    let rig = Rig::new(late(2, GIB_DEVICE), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    // The thread knows both streams, which the short way needs.
    let known = rig.malloc(100, t);
    for size in SIZES {
        let p = rig.malloc(size, s);
        rig.order(s, t);
        rig.host.hold(D, t).unwrap();
        rig.fill(t, p, size, 1);
        assert!(rig.pool.free_hit(p, Some(t)), "{size} bytes");
        let q = rig.malloc(size, s);
        assert_ne!(p, q, "{size} bytes: the other stream has not passed the free");
        rig.fill(s, q, size, 2);
        rig.host.release(D, t).unwrap();
        rig.free(q, s);
        rig.sync();
    }
    rig.free(known, t);
    rig.books();
    rig.close();
}

/// The short way leaves to the long one what is special: recorded streams, tags, double frees.
#[test]
fn what_is_special_is_no_hit_on_another_stream_either() {
    let rig = Rig::small();
    let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
    let known = rig.malloc(100, t);
    for size in SIZES {
        let p = rig.malloc(size, s);
        rig.pool.record_stream(p, u).unwrap();
        assert!(!rig.pool.free_hit(p, Some(t)), "{size} bytes: used on a third stream");
        rig.free(p, t);
        assert!(!rig.pool.free_hit(p, Some(t)), "{size} bytes: freed already");
        assert!(!rig.pool.free_hit(p + 512, Some(t)), "{size} bytes: inside");
    }
    assert_eq!(rig.pool.stats().double_frees, 0, "what is no hit has not happened");
    rig.free(known, t);
    rig.close();
}

/// Each marker of the freeing stream is asked about when the next one is recorded, so that what it
/// has passed is ready, and joined with its neighbours, before anybody is short of memory.
#[test]
fn what_the_freeing_stream_has_passed_is_ready_before_it_is_asked_for() {
    let rig = Rig::new(checked(GIB_DEVICE), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let known = rig.malloc(100, t);
    // In one piece, so that the blocks are neighbours.
    let space = rig.malloc(32 * MIB, s);
    rig.free(space, s);
    let blocks: Vec<u64> = (0..6).map(|_| rig.malloc(4 * MIB, s)).collect();
    blocks.iter().for_each(|&p| rig.free(p, t));
    rig.fault.start_recording();
    let p = rig.pool.malloc_hit(16 * MIB, s).expect("four of the six").get();
    assert_eq!(rig.fault.stop_recording(), [], "nothing needs to be asked");
    rig.free(p, s);
    rig.free(known, t);
    rig.close();
}

/// A request that two streams stand in the way of waits for both, as long as they have markers and
/// enough waits: nothing is mapped when the first of them is done.
#[test]
fn a_request_waits_until_it_fits_while_more_is_on_its_way() {
    let mut waited = 0;
    for seed in 0..40 {
        let options = PoolOptions { patience: 2000, slack_floor: 0, slack_permille: 0, ..PoolOptions::default() };
        let rig = Rig::new(late(seed, GIB_DEVICE), options);
        let (s, t, u, v) = (rig.stream(), rig.stream(), rig.stream(), rig.stream());
        let space = rig.malloc(32 * MIB, s);
        rig.free(space, s);
        let blocks =
            [(t, 8 * MIB), (u, 8 * MIB), (v, 16 * MIB)].map(|(other, size)| (rig.malloc(size, s), size, other));
        assert_eq!(blocks[1].0, blocks[0].0 + 8 * MIB, "neighbours");
        rig.host.hold(D, v).unwrap();
        for (p, size, other) in blocks {
            for id in 0..20 {
                rig.fill(other, p, size, id);
            }
            rig.free(p, other);
        }
        let before = rig.mapped();
        rig.fault.start_recording();
        let p = rig.pool.malloc(&request(16 * MIB, s)).unwrap();
        let calls = rig.fault.stop_recording();
        waited += calls.iter().filter(|&&c| c == Call::EventQuery).count();
        assert_eq!((p, rig.mapped()), (blocks[0].0, before), "seed {seed}: {calls:?}");
        rig.host.release(D, v).unwrap();
        rig.fill(s, p, 16 * MIB, 7);
        rig.free(p, s);
        rig.close();
    }
    assert!(waited > 80, "{waited} questions: no run had to wait");
}

/// Small objects that wait for another stream serve a request before it fails, and before anything
/// is mapped for it, although no region comes free with them.
#[test]
fn objects_freed_elsewhere_serve_a_request_that_nothing_else_can() {
    for (size, seed) in [300, 4000, 64 * KIB].into_iter().flat_map(|size| [(size, 1), (size, 2), (size, 3)]) {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions { limit: PAGE, ..PoolOptions::default() });
        let (s, t) = (rig.stream(), rig.stream());
        let blocks: Vec<u64> = std::iter::from_fn(|| rig.pool.malloc(&request(size, s)).ok()).collect();
        let (gone, left): (Vec<_>, Vec<_>) = blocks.iter().zip(0..).partition(|b| b.1 % 8 == 0);
        rig.order(s, t);
        for (&p, _) in &gone {
            rig.fill(t, p, size, 1);
            rig.free(p, t);
        }
        let again: Vec<u64> = gone.iter().map(|_| rig.malloc(size, s)).collect();
        again.iter().for_each(|&p| rig.fill(s, p, size, 2));
        rig.books();
        left.iter().map(|b| b.0).chain(&again).for_each(|&p| rig.free(p, s));
        rig.close();
    }
}

/// Objects used on streams that are gone wait for the context. It is asked before more is mapped,
/// so one live object at a time never takes more than a page.
#[test]
fn objects_that_wait_for_the_context_come_back() {
    for size in [300, 4000, 64 * KIB] {
        let rig = Rig::new(checked(GIB_DEVICE), PoolOptions::default());
        let s = rig.stream();
        for _ in 0..2000 {
            let t = rig.stream();
            let p = rig.malloc(size, s);
            rig.pool.record_stream(p, t).unwrap();
            rig.fill(t, p, size, 1);
            rig.free(p, s);
            rig.host.stream_destroy(D, t).unwrap();
        }
        assert_eq!(rig.mapped(), PAGE, "{size} bytes");
        rig.close();
    }
}

//! What a heap does for the next stream at a handle, and what many streams and markers leave
//! behind.

use crate::pool_support::{checked, late, request, Rig, D, PAGE};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::driver::{Call, Driver};
use gpumem::pool::PoolOptions;
use std::time::Duration;
use test_support::Rng;

/// Memory in single pages and no more than is needed.
fn pages() -> PoolOptions {
    PoolOptions { max_extent: PAGE, first_extent: PAGE, slack_permille: 0, slack_floor: 0, ..PoolOptions::default() }
}

/// Destroys a stream; another one has its handle.
fn hand_over(rig: &Rig, old: StreamHandle) -> StreamHandle {
    rig.host.stream_destroy(D, old).unwrap();
    let new = rig.stream();
    assert_eq!(new, old, "the handle comes back");
    new
}

/// The old stream left nothing that waits, so no marker of the context is recorded at once; but the
/// new stream's frees must settle one day.
#[test]
fn frees_of_the_next_stream_settle_too() {
    let mapped = [false, true].map(|changes_hands| {
        let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
        let (a, mut b) = (rig.stream(), rig.stream());
        rig.malloc(MIB, a);
        rig.malloc(40 * MIB, b);
        if changes_hands {
            b = hand_over(&rig, b);
        }
        rig.malloc(MIB, b);
        for _ in 0..30 {
            let p = rig.malloc(64 * MIB, a);
            rig.free(p, b);
            for _ in 0..40 {
                let q = rig.malloc(2 * MIB, b);
                rig.free(q, b);
            }
            rig.sync();
        }
        rig.mapped()
    });
    assert!(mapped[1] <= mapped[0] + 128 * MIB, "{mapped:?}");
}

#[test]
fn the_next_stream_uses_the_stock_of_the_last() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let mut s = rig.stream();
    let mut mapped = Vec::new();
    for round in 0..8 {
        let blocks: Vec<u64> = (0..8).map(|_| rig.malloc(32 * MIB, s)).collect();
        blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
        let large = rig.malloc(128 * MIB, s);
        blocks.iter().skip(1).step_by(2).for_each(|&p| rig.free(p, s));
        rig.free(large, s);
        rig.sync();
        // A stream does not find its predecessor's runs again, so after three times that has not
        // paid, and occasions pass.
        assert!(round > 2 || rig.pool.stats().stock > 0, "the heap has started afresh");
        mapped.push(rig.mapped());
        s = hand_over(&rig, s);
    }
    assert!(mapped.iter().all(|&m| m == mapped[0]), "{mapped:?}");
}

/// Markers of full batches that nobody ever asks about.
#[test]
fn events_do_not_pile_up() {
    let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
    let (a, b) = (rig.stream(), rig.stream());
    rig.malloc(MIB, a);
    rig.fault.start_recording();
    for _ in 0..20_000 {
        let p = rig.malloc(256 * MIB, b);
        rig.free(p, b);
    }
    let calls = rig.fault.stop_recording();
    let count = |call| calls.iter().filter(|&&c| c == call).count();
    assert!(count(Call::EventRecord) > 100, "{} markers", count(Call::EventRecord));
    assert!(count(Call::EventCreate) <= 16, "{} events", count(Call::EventCreate));
}

/// Each stream leaves objects behind, of which any goes next. Once the device has passed what the
/// stream did, the next one uses what is free beside them.
#[test]
fn objects_that_outlive_their_streams_leave_their_slabs_to_the_next() {
    for (host, named) in [(checked(GIB), true), (checked(GIB), false), (late(3, GIB), true), (late(4, GIB), false)] {
        let rig = Rig::new(host, PoolOptions::default());
        let (mut rng, mut live, mut s) = (Rng::new(7), Vec::new(), rig.stream());
        for round in 0..400 {
            for _ in 0..10 {
                let size = 1 + rng.below(8 * KIB);
                let p = rig.malloc(size, s);
                rig.fill(s, p, size, p);
                live.push(p);
                // One of this stream, which has no successor's barrier before it.
                let own = rig.malloc(size, s);
                rig.fill(s, own, size, round);
                rig.free(own, s);
            }
            if named {
                rig.pool.sync_stream(s).unwrap();
            }
            s = hand_over(&rig, s);
            while live.len() > 300 {
                let p = live.swap_remove(rng.below(live.len() as u64) as usize);
                rig.pool.free(p, named.then_some(s)).unwrap();
            }
            if round % 50 == 0 {
                rig.sync();
                rig.books();
            }
        }
        let mapped = rig.mapped();
        // Where nobody waits, the device may not have passed what the last streams did.
        let most = if named { 6 * MIB } else { 24 * MIB };
        assert!(mapped <= most, "{} MiB mapped for 300 objects, frees that name the stream: {named}", mapped / MIB);
        live.into_iter().for_each(|p| rig.pool.free(p, None).unwrap());
        rig.close();
    }
}

/// While a trim is giving an extent of the stock back, others empty the stock, and extents that are
/// made later have the numbers of those it has yet to look at.
#[test]
fn a_trim_releases_the_extents_it_saw_and_no_others() {
    let rig = Rig::new(checked(GIB), pages());
    let s = rig.stream();
    let to_stock = || {
        let blocks: Vec<u64> = (0..8).map(|_| rig.malloc(PAGE, s)).collect();
        blocks.iter().step_by(2).for_each(|&p| rig.free(p, s));
        let large = rig.malloc(4 * PAGE, s);
        blocks.iter().skip(1).step_by(2).for_each(|&p| rig.free(p, s));
        rig.free(large, s);
    };
    to_stock();
    rig.sync();
    let before = rig.pool.stats().stock;
    assert!(before > 0);
    rig.fault.slow_down(Some((Call::PhysRelease, Duration::from_millis(300))));
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| rig.pool.trim(0));
        while rig.pool.stats().stock == before {
            std::thread::yield_now();
        }
        rig.fault.slow_down(None);
        rig.pool.trim(0).unwrap();
        to_stock();
        to_stock();
        rig.sync();
        rig.pool.trim(u64::MAX).unwrap();
        trim.join().unwrap().unwrap();
    });
    rig.pool.validate().unwrap();
    rig.pool.trim(0).unwrap();
    let memory = rig.host.mem_info(D).unwrap();
    assert_eq!((rig.mapped(), memory.total - memory.free), (0, 0));
}

/// Old addresses of moved extents take up what can be reserved, and are given up for new ones.
#[test]
fn old_addresses_make_room() {
    let rig = Rig::new(checked(GIB), PoolOptions { va_size: 64 * PAGE, ..pages() });
    let s = rig.stream();
    rig.malloc(1000, s);
    let (mut rng, mut bytes, mut live) = (Rng::new(1), 0, Vec::<(u64, u64)>::new());
    for i in 0..4000 {
        let size = PAGE + rng.below(24 * PAGE);
        while bytes + size > 200 * PAGE {
            let (p, n) = live.swap_remove(rng.below(live.len() as u64) as usize);
            bytes -= n;
            rig.free(p, s);
        }
        let p = rig.pool.malloc(&request(size, s)).unwrap_or_else(|e| panic!("request {i}: {e}"));
        live.push((p, size));
        bytes += size;
    }
    assert!(rig.pool.stats().reserved <= 64 * 64 * PAGE);
    rig.pool.validate().unwrap();
}

/// What a workload has taught a heap about extents is gone once all of its memory is: the next
/// workload does not start with extents as small as the last one came to need.
#[test]
fn a_full_trim_forgets_the_grain() {
    let rig = Rig::new(checked(8 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let created = || {
        rig.fault.start_recording();
        let (mut rng, mut live) = (Rng::new(7), Vec::new());
        for _ in 0..1500 {
            live.push(rig.malloc(MIB + rng.below(90 * MIB), s));
            if live.len() > 40 {
                rig.free(live.swap_remove(rng.below(live.len() as u64) as usize), s);
            }
        }
        live.into_iter().for_each(|p| rig.free(p, s));
        let calls = rig.fault.stop_recording();
        rig.sync();
        rig.pool.trim(0).unwrap();
        assert_eq!(rig.mapped(), 0);
        calls.iter().filter(|&&c| c == Call::PhysCreate).count()
    };
    let first = created();
    assert_eq!(created(), first);
}

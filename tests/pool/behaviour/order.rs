//! Stream order: who may use freed memory, and when. The device checks every access for races.

use crate::pool_support::{checked, late, Rig, D, GIB_DEVICE};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::{Call, Driver, FaultRule};
use gpumem::pool::{AllocFlags, PoolOptions};

#[test]
fn own_memory_is_reused_at_once_and_with_no_driver_call_but_the_streams_identity() {
    let rig = Rig::new(late(1, GIB_DEVICE), PoolOptions::default());
    let s = rig.stream();
    for size in [100, 50 * KIB, MIB, 100 * MIB] {
        let p = rig.malloc(size, s);
        rig.host.hold(D, s).unwrap();
        rig.fill(s, p, size, 1);
        rig.free(p, s);
        rig.fault.start_recording();
        let q = rig.malloc(size, s);
        rig.free(q, s);
        let calls = rig.fault.stop_recording();
        assert!(q == p && calls.iter().all(|c| c.name() == "stream_id"), "{calls:?}");
        rig.host.release(D, s).unwrap();
    }
    rig.close();
}

#[test]
fn memory_freed_on_another_stream_waits_for_that_stream() {
    for (seed, wait) in (0..30).flat_map(|seed| [(seed, false), (seed, true)]) {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions { limit: 64 * MIB, wait, ..PoolOptions::default() });
        let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
        for round in 0..6 {
            for size in [3000, 40 * KIB, 3 * MIB, 20 * MIB] {
                let p = rig.malloc(size, s);
                rig.fill(s, p, size, round);
                rig.order(s, t);
                rig.check(t, p, size, round);
                rig.free(p, t);
                // Somebody else, the owner again, and the stream that freed it.
                for user in [u, s, t] {
                    let q = rig.malloc(size, user);
                    rig.fill(user, q, size, 7);
                    rig.check(user, q, size, 7);
                    rig.free(q, user);
                }
            }
        }
        rig.books();
        rig.close();
    }
}

#[test]
fn a_held_stream_keeps_what_it_freed() {
    let rig = Rig::new(late(4, GIB_DEVICE), PoolOptions::default());
    let (s, t) = (rig.stream(), rig.stream());
    let p = rig.malloc(8 * MIB, s);
    rig.order(s, t);
    rig.host.hold(D, t).unwrap();
    rig.fill(t, p, 8 * MIB, 1);
    rig.free(p, t);
    let q = rig.malloc(8 * MIB, s);
    assert_ne!(p, q, "the other stream has not passed the free");
    assert_eq!(rig.malloc(8 * MIB, t), p, "but may use it itself");
    rig.fill(s, q, 8 * MIB, 2);
    rig.host.release(D, t).unwrap();
    rig.sync();
    rig.free(q, s);
    rig.free(p, t);
    assert!(rig.mapped() == 16 * MIB);
    rig.close();
}

#[test]
fn recorded_streams_are_waited_for() {
    for seed in 0..30 {
        let rig =
            Rig::new(late(seed, GIB_DEVICE), PoolOptions { limit: 96 * MIB, wait: true, ..PoolOptions::default() });
        let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
        for (i, size) in [2000, 30 * KIB, 5 * MIB, 30 * MIB].into_iter().cycle().take(16).enumerate() {
            let flags = if i % 5 == 4 { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
            let p = rig.malloc_with(size, s, flags);
            rig.fill(s, p, size, 1);
            for other in [t, u] {
                rig.order(s, other);
                rig.pool.record_stream(p, other).unwrap();
                rig.pool.record_stream(p, other).unwrap();
                rig.check(other, p, size, 1);
            }
            // With and without naming the stream, and on one of those that were recorded.
            rig.pool.free(p, [Some(s), None, Some(t)][i % 3].filter(|&f| f == s || i % 3 == 2)).unwrap();
            if i % 3 == 2 {
                // Freed on t: its user vouches for s being ordered before, which it is.
            }
            let q = rig.malloc(size, s);
            rig.fill(s, q, size, 2);
            rig.free(q, s);
        }
        rig.books();
        rig.close();
    }
}

#[test]
fn recording_and_freeing_without_a_stream_does_not_grow_the_pool() {
    for size in [MIB, 16 * MIB] {
        let rig = Rig::small();
        let (s, t) = (rig.stream(), rig.stream());
        for _ in 0..100 {
            let p = rig.malloc(size, s);
            rig.fill(s, p, size, 1);
            rig.order(s, t);
            rig.pool.record_stream(p, t).unwrap();
            rig.check(t, p, size, 1);
            rig.pool.free(p, None).unwrap();
        }
        // Not the hundred blocks there were: as many as the device is behind.
        assert!(rig.mapped() <= 25 * size.max(2 * MIB), "{:?}", rig.pool.stats());
        rig.close();
    }
}

#[test]
fn a_free_without_a_stream_works_when_the_stream_is_gone() {
    for (seed, reopen) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions { limit: 64 * MIB, ..PoolOptions::default() });
        let s = rig.stream();
        let sizes = [200, 40 * KIB, 3 * MIB, 17 * MIB];
        let mut blocks: Vec<(u64, u64)> = sizes.map(|n| (rig.malloc(n, s), n)).into();
        blocks.push((rig.malloc_with(2 * MIB, s, AllocFlags::SINGLE_HANDLE), 2 * MIB));
        blocks.iter().for_each(|&(p, n)| rig.fill(s, p, n, 1));
        rig.host.stream_destroy(D, s).unwrap();
        let e = rig.pool.malloc(&crate::pool_support::request(100, s)).unwrap_err();
        assert_eq!(e.status, Status::InvalidStream);
        let t = rig.stream();
        assert_eq!(s, t, "the handle is used again");
        if reopen {
            let p = rig.malloc(100, t);
            rig.fill(t, p, 100, 2);
            rig.free(p, t);
        }
        for &(p, _) in &blocks {
            rig.pool.free(p, None).unwrap();
            // A slab that has gone takes the memory of its objects' frees with it.
            let again = rig.pool.free(p, None).unwrap_err().status;
            assert!(again == Status::DoubleFree || again == Status::UnknownPointer);
        }
        for n in sizes {
            let p = rig.malloc(n, t);
            rig.fill(t, p, n, 3);
            rig.free(p, t);
        }
        rig.books();
        rig.close();
    }
}

/// The old stream's work may still be running when its handle belongs to a new one.
#[test]
fn a_reused_handle_never_races_with_the_old_streams_work() {
    for (seed, wait) in (0..40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let options = PoolOptions { limit: 96 * MIB, wait, watch: seed % 4 != 0, ..PoolOptions::default() };
        let rig = Rig::new(late(seed, GIB_DEVICE), options);
        let other = rig.stream();
        let mut carried: Option<(u64, u64)> = None;
        for round in 0..12 {
            let s = rig.stream();
            for size in [500, 20 * KIB, 3 * MIB, 12 * MIB] {
                let p = rig.malloc(size, s);
                rig.fill(s, p, size, round);
                let q = rig.malloc(size, other);
                rig.fill(other, q, size, round);
                // Own, crosswise, and left for the next stream of this handle.
                match (round + size / KIB) % 3 {
                    0 => {
                        rig.free(p, s);
                        rig.order(other, s);
                        rig.free(q, s);
                    }
                    1 => {
                        rig.order(s, other);
                        rig.free(p, other);
                        rig.free(q, other);
                    }
                    _ => {
                        if let Some((old, _)) = carried.replace((p, size)) {
                            rig.pool.free(old, None).unwrap();
                        }
                        rig.pool.free(q, None).unwrap();
                    }
                }
            }
            rig.host.stream_destroy(D, s).unwrap();
        }
        if let Some((p, _)) = carried {
            rig.pool.free(p, None).unwrap();
        }
        rig.books();
        rig.close();
    }
}

#[test]
fn stream_churn_keeps_the_footprint_flat() {
    for named in [true, false] {
        let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
        for _ in 0..500 {
            let s = rig.stream();
            let p = rig.malloc(64 * MIB, s);
            let q = rig.malloc(1000, s);
            rig.fill(s, p, 64 * MIB, 1);
            rig.fill(s, q, 1000, 1);
            if named {
                rig.free(p, s);
                rig.free(q, s);
                rig.host.stream_destroy(D, s).unwrap();
            } else {
                rig.host.stream_destroy(D, s).unwrap();
                rig.pool.free(p, None).unwrap();
                rig.pool.free(q, None).unwrap();
            }
            // A heap that has nothing free grows by an eighth for a small object.
            assert!(rig.mapped() <= 72 * MIB, "{:?}", rig.pool.stats());
        }
        assert!(rig.pool.stats().streams <= 2);
        rig.books();
        rig.close();
    }
}

/// Streams of different handles, so that each has a heap of its own.
#[test]
fn memory_of_dead_streams_serves_new_ones() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let mut open: Vec<StreamHandle> = Vec::new();
    for _ in 0..50 {
        let s = rig.stream();
        let p = rig.malloc(64 * MIB, s);
        rig.fill(s, p, 64 * MIB, 1);
        rig.free(p, s);
        open.push(s);
    }
    assert!(rig.mapped() <= 128 * MIB, "{:?}", rig.pool.stats());
    assert_eq!(rig.pool.stats().streams, 50);
    open.into_iter().for_each(|s| rig.host.stream_destroy(D, s).unwrap());
    rig.close();
}

#[test]
fn per_thread_streams_are_told_apart() {
    let rig = Rig::new(late(6, GIB_DEVICE), PoolOptions::default());
    let s = StreamHandle::PER_THREAD;
    let here = rig.malloc(4 * MIB, s);
    rig.fill(s, here, 4 * MIB, 1);
    rig.free(here, s);
    let there = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let p = rig.malloc(4 * MIB, s);
            rig.fill(s, p, 4 * MIB, 2);
            rig.free(p, s);
            p
        });
        run.join().unwrap()
    });
    assert_ne!(here, there, "this thread's work may not be done");
    assert_eq!(rig.pool.stats().streams, 2);
    // The legacy stream under both its names is one.
    let p = rig.malloc(4 * MIB, StreamHandle::LEGACY);
    rig.free(p, StreamHandle(1).canonical());
    assert_eq!(rig.pool.stats().streams, 3);
    rig.close();
}

/// A thread's stream goes with it, and what it leaves behind serves the next one.
#[test]
fn threads_that_come_and_go_share_what_their_streams_leave_behind() {
    let rig = Rig::new(checked(GIB_DEVICE), PoolOptions::default());
    let s = StreamHandle::PER_THREAD;
    for round in 0..50 {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                for size in [1000, 48 * MIB] {
                    let p = rig.malloc(size, s);
                    rig.fill(s, p, size, round);
                    rig.check(s, p, size, round);
                    rig.free(p, s);
                }
            });
            run.join().unwrap();
        });
        assert_eq!(rig.pool.stats().streams, 1, "round {round}");
        assert!(rig.mapped() <= 50 * MIB, "round {round}: {:?}", rig.pool.stats());
    }
    rig.close();
}

/// CUDA before 12.5 has no context markers: what only they can settle waits until memory is short,
/// and then for the whole device.
#[test]
fn a_driver_without_context_markers_waits_for_the_device_before_memory_runs_out() {
    for seed in 0..20 {
        let rig = Rig::new(late(seed, GIB_DEVICE), PoolOptions { limit: 64 * MIB, ..PoolOptions::default() });
        let no_markers = FaultRule::nth_of(Call::ContextRecord, 0).with_status(Status::Unsupported).lasting();
        rig.fault.set_rule(Some(no_markers));
        let mut synced = 0;
        for round in 0..6 {
            // The handle comes back each time, and so does the memory that only the context can
            // settle.
            let s = rig.stream();
            let p = rig.malloc(40 * MIB, s);
            rig.fill(s, p, 40 * MIB, round);
            rig.host.stream_destroy(D, s).unwrap();
            rig.pool.free(p, None).unwrap();
            let t = rig.stream();
            rig.fault.start_recording();
            let q = rig.malloc(50 * MIB, t);
            synced += rig.fault.stop_recording().iter().filter(|c| **c == Call::DeviceSync).count();
            rig.fill(t, q, 50 * MIB, round + 10);
            rig.check(t, q, 50 * MIB, round + 10);
            rig.free(q, t);
            rig.books();
            rig.host.stream_destroy(D, t).unwrap();
        }
        assert!(synced > 0 && rig.fault.fired() > 0);
        // Such a driver cannot trim what it cannot settle.
        rig.fault.set_rule(None);
        rig.close();
    }
}

/// While the device works on one thing for long, streams come and go with handles of earlier ones.
#[test]
fn what_waits_for_the_context_takes_a_bounded_number_of_events() {
    let rig = Rig::new(late(1, 16 * GIB), PoolOptions::default());
    let slow = rig.stream();
    let (p, kept) = (rig.malloc(MIB, slow), rig.malloc(MIB, slow));
    rig.fill(slow, p, MIB, 1);
    rig.host.hold(D, slow).unwrap();
    rig.fill(slow, kept, MIB, 2);
    rig.fault.start_recording();
    for round in 0..300 {
        let t = rig.stream();
        let q = rig.malloc(128 * KIB, t);
        rig.fill(t, q, 128 * KIB, round);
        rig.free(q, t);
        rig.host.stream_destroy(D, t).unwrap();
    }
    let calls = rig.fault.stop_recording();
    let count = |call| calls.iter().filter(|&&c| c == call).count();
    assert!(count(Call::ContextRecord) > 200 && count(Call::EventCreate) < 100, "{}", count(Call::EventCreate));
    rig.host.release(D, slow).unwrap();
    rig.check(slow, kept, MIB, 2);
    [p, kept].into_iter().for_each(|p| rig.free(p, slow));
    rig.close();
}

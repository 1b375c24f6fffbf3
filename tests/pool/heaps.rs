//! Several heaps of one stream: when there is more than one, that they share memory as one heap
//! would, and that a stream that comes after theirs gets nothing that theirs still uses.
//!
//! Threads meet at a heap's lock here because mapping is made slow: the lock is held through it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::host::HostDriver;
use gpumem::driver::{Call, Driver};
use gpumem::pool::{Pool, PoolOptions};
use pool_support::{checked, late, request, Rig, D};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

const THREADS: usize = 8;
/// Above 4 MiB: while nothing is free, each is mapped on its own, under the heap's lock.
const BLOCK: u64 = 6 * MIB;
/// A mapping call, when threads are to meet: long enough for all of them to come to the lock.
const SLOW: Duration = Duration::from_millis(1);

/// The heaps that have memory.
fn heaps(rig: &Rig) -> BTreeSet<u64> {
    let dump = rig.pool.dump();
    let number = |line: &str| line.split_once("] heap ")?.1.split(',').next()?.trim().parse().ok();
    dump.lines().filter_map(number).collect()
}

/// Most heaps of a stream; a stream on a machine with one processor never needs a second.
fn most_heaps() -> Option<usize> {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => {
            println!("skipped: there is one processor, so a stream has one heap");
            None
        }
        n => Some(n),
    }
}

/// Runs `f` on every thread at once with the thread's number.
fn together<T: Send>(f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let f = &f;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || f(t))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// All threads allocate at the same moment, again and again, while mapping is slow; then each does
/// `then`, as a thread that has moved to another heap or has not. On a busy machine a thread may
/// come to the lock late. So where there are not several heaps yet, they allocate up to twice more,
/// each time with far slower mapping. Returns what they allocated.
fn meet<T: Send>(rig: &Rig, s: StreamHandle, rounds: usize, then: impl Fn(usize) -> T + Sync) -> (Vec<u64>, Vec<T>) {
    let barrier = Barrier::new(THREADS);
    rig.fault.slow_down(Some((Call::Map, SLOW)));
    let made = Mutex::new(Vec::new());
    let met = AtomicBool::new(false);
    let results = together(|t| {
        for pass in 1..4 {
            for _ in 0..rounds {
                barrier.wait();
                let p = rig.malloc(BLOCK, s);
                made.lock().unwrap().push(p);
            }
            if barrier.wait().is_leader() {
                met.store(heaps(rig).len() > 1, Relaxed);
                rig.fault.slow_down(Some((Call::Map, SLOW * 8u32.pow(pass))));
            }
            barrier.wait();
            if met.load(Relaxed) {
                break;
            }
        }
        rig.fault.slow_down(None);
        then(t)
    });
    (made.into_inner().unwrap(), results)
}

#[test]
fn a_stream_gets_another_heap_when_its_threads_keep_meeting_and_only_then() {
    let Some(most) = most_heaps() else { return };
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let s = rig.stream();
    // The same threads taking turns.
    let turn = Mutex::new(());
    rig.fault.slow_down(Some((Call::Map, SLOW / 10)));
    let blocks = together(|_| {
        let one = |_| {
            let _turn = turn.lock().unwrap();
            rig.malloc(BLOCK, s)
        };
        (0..16).map(one).collect::<Vec<_>>()
    });
    assert_eq!(heaps(&rig).len(), 1, "{}", rig.pool.dump());
    let (more, _) = meet(&rig, s, 16, |_| ());
    let n = heaps(&rig).len();
    assert!((2..=most).contains(&n), "{n} heaps\n{}", rig.pool.dump());
    assert_eq!(rig.pool.stats().streams, 1, "it is still one stream");
    rig.books();
    blocks.into_iter().flatten().chain(more).for_each(|p| rig.free(p, s));
    rig.close();
}

/// The stream is held, so nothing that it used is settled: only because the heaps are in one order
/// may one of them use at once what is free in the other.
#[test]
fn heaps_of_a_stream_take_over_each_others_memory_with_no_marker_and_no_wait() {
    if most_heaps().is_none() {
        return;
    }
    let rig = Rig::new(late(3, 4 * GIB), PoolOptions { slack_floor: 0, ..PoolOptions::default() });
    let s = rig.stream();
    let (blocks, _) = meet(&rig, s, 16, |_| ());
    assert!(heaps(&rig).len() > 1);
    rig.host.hold(D, s).unwrap();
    for (i, &p) in blocks.iter().enumerate() {
        rig.fill(s, p, BLOCK, i as u64);
        rig.check(s, p, BLOCK, i as u64);
    }
    let free_all = |blocks: &[u64]| blocks.iter().for_each(|&p| rig.free(p, s));
    free_all(&blocks);
    let before = rig.pool.stats();
    // All of it, by a thread that has met nobody.
    rig.fault.start_recording();
    let again: Vec<u64> = blocks.iter().map(|_| rig.malloc(BLOCK, s)).collect();
    let calls = rig.fault.stop_recording();
    // Where in the stream's order it has come cannot be known without a marker, and need not be.
    let other_calls = |c: &&Call| !matches!(c, Call::EventQuery);
    assert_eq!(calls.iter().filter(other_calls).count(), 0, "{calls:?}");
    assert_eq!(again.iter().collect::<BTreeSet<_>>(), blocks.iter().collect(), "the same blocks");
    free_all(&again);
    // In other sizes: it moves, and old addresses get markers, but nobody waits and nothing is
    // created.
    let mut left = blocks.len() as u64 * BLOCK * 9 / 10;
    let mut again: Vec<(u64, u64)> = Vec::new();
    rig.fault.start_recording();
    for &size in [2 * BLOCK, 5 * BLOCK, BLOCK / 2, 100 * KIB].iter().cycle() {
        if left < size {
            break;
        }
        left -= size;
        let p = rig.malloc(size, s);
        rig.fill(s, p, size, left);
        rig.check(s, p, size, left);
        again.push((p, size));
    }
    let calls = rig.fault.stop_recording();
    let waits = [Call::StreamWait, Call::EventSync, Call::StreamSync, Call::DeviceSync, Call::PhysCreate];
    assert!(!calls.iter().any(|c| waits.contains(c)), "{calls:?}");
    let after = rig.pool.stats();
    assert_eq!((after.growths, after.mapped), (before.growths, before.mapped), "{}", rig.pool.dump());
    rig.books();
    again.into_iter().for_each(|(p, _)| rig.free(p, s));
    rig.host.release(D, s).unwrap();
    rig.close();
}

/// Threads that have moved apart pass their blocks round, each frees what another allocated, and
/// every byte is checked.
#[test]
fn many_threads_on_one_stream_with_several_heaps() {
    let Some(most) = most_heaps() else { return };
    let rig = Rig::new(checked(8 * GIB), PoolOptions::default());
    let s = rig.stream();
    let barrier = Barrier::new(THREADS);
    let passed: Vec<Mutex<Vec<(u64, u64, u64)>>> = (0..THREADS).map(|_| Mutex::default()).collect();
    let sizes = [300, 5000, 70 * KIB, MIB + 1, 3 * MIB, 9 * MIB];
    let each: u64 = sizes.iter().sum();
    let (blocks, _) = meet(&rig, s, 16, |t| {
        for round in 0..60u64 {
            let mut mine: Vec<(u64, u64, u64)> = Vec::new();
            for (i, &size) in sizes.iter().enumerate() {
                let id = (t as u64) << 32 | round << 8 | i as u64;
                let p = rig.malloc(size, s);
                rig.fill(s, p, size, id);
                // A hit in whichever heap it is.
                let q = rig.malloc(size, s);
                rig.free(q, s);
                mine.push((p, size, id));
            }
            *passed[(t + round as usize) % THREADS].lock().unwrap() = mine;
            barrier.wait();
            for (p, size, id) in passed[t].lock().unwrap().drain(..) {
                rig.check(s, p, size, id);
                match id % 2 {
                    0 => rig.free(p, s),
                    _ => rig.pool.free(p, None).unwrap(),
                }
            }
            if t == 0 && round % 8 == 0 {
                assert!(rig.pool.dump().contains("heap"));
            }
            barrier.wait();
        }
    });
    let st = rig.pool.stats();
    assert!(heaps(&rig).len() > 1, "{}", rig.pool.dump());
    // A heap that is busy is passed over, so each may come to have enough for all threads on its
    // own; no more than that.
    let need = blocks.len() as u64 * BLOCK + THREADS as u64 * 2 * each;
    assert!(st.peak_mapped <= most as u64 * need, "{} MiB for {} MiB", st.peak_mapped / MIB, need / MIB);
    blocks.into_iter().for_each(|p| rig.free(p, s));
    rig.close();
}

/// All heaps of the old stream hold memory that its work may still be using when its handle belongs
/// to a new one. The new stream's threads meet, too, and so come to use all of them. Fails when
/// `change_hands` in `src/pool/streams/registry.rs` retires the first heap only.
#[test]
fn a_reused_handle_races_in_none_of_several_heaps() {
    if most_heaps().is_none() {
        return;
    }
    for watch in [true, false] {
        let rig = Rig::new(late(11, 8 * GIB), PoolOptions { watch, ..PoolOptions::default() });
        let (mut s, blocker) = (rig.stream(), rig.stream());
        // What the old streams do waits for this one, also when they are gone.
        rig.host.hold(D, blocker).unwrap();
        rig.order(blocker, s);
        for round in 0..4u64 {
            let small = |t: usize| {
                let make = |i: u64| {
                    let size = [200, 3000, 100 * KIB, MIB][i as usize % 4];
                    let p = rig.malloc(size, s);
                    rig.fill(s, p, size, round << 16 | (t as u64) << 8 | i);
                    p
                };
                (0..24).map(make).collect::<Vec<_>>()
            };
            let (blocks, objects) = meet(&rig, s, 16, small);
            for (i, &p) in blocks.iter().enumerate() {
                rig.fill(s, p, BLOCK, i as u64);
            }
            assert!(heaps(&rig).len() > 1, "{}", rig.pool.dump());
            // Freed in the order of the stream while it has all that to do; then it is gone.
            blocks.iter().chain(objects.iter().flatten()).for_each(|&p| rig.free(p, s));
            rig.host.stream_destroy(D, s).unwrap();
            let old = std::mem::replace(&mut s, rig.stream());
            assert_eq!(s, old, "the handle comes back");
            rig.order(blocker, s);
            rig.books();
        }
        rig.host.release(D, blocker).unwrap();
        rig.close();
    }
}

#[test]
fn one_stream_too_many_is_refused_and_the_others_go_on() {
    let rig = Rig::new(late(1, GIB), PoolOptions { max_lanes: 3, ..PoolOptions::default() });
    let [a, b, c] = [(); 3].map(|()| rig.host.stream_create(D).unwrap());
    let held = [rig.malloc(BLOCK, a), rig.malloc(KIB, b)];
    let before = rig.pool.stats();
    for size in [KIB, BLOCK] {
        let refused = rig.pool.malloc(&pool_support::request(size, c)).unwrap_err();
        assert_eq!(refused.status, Status::Unsupported);
        assert_eq!(refused.message, "more than 2 streams have used this pool; reuse streams");
    }
    assert_eq!(rig.pool.stats(), before);
    // Its free names no memory of its own.
    let refused = rig.pool.free(held[0], Some(c)).unwrap_err();
    assert_eq!(refused.status, Status::Unsupported, "{refused:?}");
    let more = rig.malloc(BLOCK, b);
    for (p, s) in [(held[0], b), (held[1], a), (more, b)] {
        rig.free(p, s);
    }
    rig.close();
}

/// A thread that has used a stream with one pool knows nothing of it in any later pool.
#[test]
fn what_a_thread_knows_of_a_pool_is_never_taken_for_another() {
    let host = HostDriver::new(checked(GIB)).unwrap();
    let stream = host.stream_create(D).unwrap();
    let used = |stream| {
        let options = PoolOptions { va_size: GIB, ..PoolOptions::default() };
        let pool = Pool::new(host.clone(), D, options).unwrap();
        pool.free(pool.malloc(&request(MIB, stream)).unwrap(), None).unwrap();
        pool.trim(0).unwrap();
        pool
    };
    assert!(used(StreamHandle::LEGACY).knows(StreamHandle::LEGACY));
    for _ in 0..600 {
        // The other stream's heap has the number that the legacy stream's had.
        assert!(!used(stream).knows(StreamHandle::LEGACY));
    }
}

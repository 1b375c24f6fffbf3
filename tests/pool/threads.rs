//! Many threads in one pool at once. Kernels check the contents, the device checks the order, and
//! nothing leaks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::host::HostOptions;
use gpumem::driver::{Call, Driver, FaultRule};
use gpumem::pool::{AllocFlags, AllocRequest, PoolOptions, PoolStats};
use pool_support::{checked, request, Rig, D};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{mpsc, Barrier};
use std::time::{Duration, Instant};

const THREADS: u64 = 12;
/// Each test ends after this long or when it has done enough, whichever comes first.
const MOST: Duration = Duration::from_secs(4);

/// A small seeded generator: only the variety matters.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    /// Mostly small, sometimes many pages.
    fn size(&mut self) -> u64 {
        let bits = 8 + self.below(15);
        self.below(1 << bits)
    }
}

/// Runs `f` on every thread at once with the thread's number.
fn together(f: impl Fn(u64) + Sync) {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (f, start) = (&f, &start);
            scope.spawn(move || {
                start.wait();
                f(t)
            });
        }
    });
}

/// What was asked for is at most what is live, and that at most what is mapped, whatever other
/// threads do at that moment.
#[test]
fn the_counters_of_a_moment_fit_together() {
    let rig = Rig::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }, PoolOptions::default());
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for s in [rig.stream(), rig.stream()] {
            let (rig, done) = (&rig, &done);
            scope.spawn(move || {
                while done.load(Relaxed) == 0 {
                    let p = rig.pool.malloc(&request(20 * MIB, s)).unwrap();
                    rig.pool.free(p, Some(s)).unwrap();
                }
            });
        }
        let end = Instant::now() + MOST / 8;
        let fit = |s: &PoolStats| {
            s.requested <= s.live && s.live <= s.mapped.min(s.peak_live) && s.peak_live <= s.peak_mapped
        };
        let mut stats = rig.pool.stats();
        while Instant::now() < end && fit(&stats) {
            stats = rig.pool.stats();
            let _ = rig.pool.trim(0);
        }
        done.store(1, Relaxed);
        assert!(fit(&stats), "{stats:?}");
    });
}

/// As if other threads had taken, three times, what was given back for a request.
#[test]
fn a_dedicated_request_tries_again_while_enough_is_free() {
    let rig = Rig::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }, PoolOptions::default());
    let s = rig.stream();
    let taken = FaultRule::nth_of(Call::PhysCreate, 0).with_status(Status::OutOfMemory).lasting();
    let free: Vec<u64> = (0..64).map(|_| rig.malloc(4 * MIB, s)).collect();
    free.into_iter().for_each(|p| rig.free(p, s));
    // Each try gives something back, which takes the other thread's time.
    rig.fault.slow_down(Some((Call::PhysRelease, MOST / 40)));
    rig.fault.set_rule(Some(taken));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while rig.fault.fired() < 3 {
                std::thread::yield_now();
            }
            rig.fault.set_rule(None);
        });
        rig.free(rig.malloc_with(2 * MIB, s, AllocFlags::SINGLE_HANDLE), s);
    });
    // But not for ever.
    rig.fault.slow_down(None);
    rig.fault.set_rule(Some(taken));
    let before = rig.fault.fired();
    let why = rig.pool.malloc(&AllocRequest { flags: AllocFlags::SINGLE_HANDLE, ..request(2 * MIB, s) }).unwrap_err();
    assert_eq!((why.status, rig.fault.fired() - before), (Status::OutOfMemory, 10));
    rig.fault.set_rule(None);
    rig.close();
}

/// Allocates and frees on one stream, every block filled and checked; `id` makes patterns that
/// nobody else writes.
fn work(rig: &Rig, stream: StreamHandle, seed: u64, rounds: u64) {
    let end = Instant::now() + MOST;
    let mut dice = Dice(seed);
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    for n in 0..rounds {
        if live.len() > 24 || (!live.is_empty() && dice.below(5) < 2) {
            let (p, size, id) = live.swap_remove(dice.below(live.len() as u64) as usize);
            rig.check(stream, p, size, id);
            rig.free(p, stream);
        } else {
            let (size, id) = (dice.size(), seed << 32 | n);
            match rig.pool.malloc(&request(size, stream)) {
                Ok(p) => {
                    rig.fill(stream, p, size, id);
                    live.push((p, size, id));
                }
                Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e}"),
            }
        }
        if n % 64 == 0 && Instant::now() > end {
            break;
        }
    }
    for (p, size, id) in live {
        rig.check(stream, p, size, id);
        rig.free(p, stream);
    }
}

#[test]
fn a_stream_for_each_thread() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let streams: Vec<StreamHandle> = (0..THREADS).map(|_| rig.stream()).collect();
    together(|t| work(&rig, streams[t as usize], t + 1, 1500));
    assert_eq!(rig.pool.stats().streams, THREADS);
    rig.close();
}

#[test]
fn all_threads_on_one_stream() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let s = rig.stream();
    together(|t| work(&rig, s, t + 1, 1500));
    rig.close();
}

#[test]
fn a_limit_holds_however_many_threads_run_into_it() {
    let limit = 96 * MIB;
    let rig = Rig::new(checked(GIB), PoolOptions { limit, wait: true, ..PoolOptions::default() });
    let streams: Vec<StreamHandle> = (0..THREADS).map(|_| rig.stream()).collect();
    let refused = AtomicU64::new(0);
    together(|t| {
        let (s, end) = (streams[t as usize], Instant::now() + MOST);
        let mut dice = Dice(t);
        for n in 0..120 {
            // Together they want more than there is.
            let size = (1 + dice.below(12)) * MIB;
            let flags = if dice.below(4) == 0 { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
            match rig.pool.malloc(&AllocRequest { flags, ..request(size, s) }) {
                Ok(p) => {
                    rig.fill(s, p, size, n);
                    rig.check(s, p, size, n);
                    rig.free(p, s);
                }
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory, "{e}");
                    refused.fetch_add(1, Relaxed);
                }
            }
            if Instant::now() > end {
                break;
            }
        }
    });
    let st = rig.pool.stats();
    assert!(st.peak_mapped <= limit, "{} of {limit}, {refused:?} refused", st.peak_mapped);
    rig.close();
}

/// One thread allocates on its stream, another frees on its own.
#[test]
fn producers_and_consumers() {
    let rig = Rig::new(checked(4 * GIB), PoolOptions::default());
    let streams: Vec<StreamHandle> = (0..THREADS).map(|_| rig.stream()).collect();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..THREADS / 2 {
        let (tx, rx) = mpsc::sync_channel::<(u64, u64, u64)>(32);
        senders.push(std::sync::Mutex::new(Some(tx)));
        receivers.push(std::sync::Mutex::new(rx));
    }
    together(|t| {
        let (pair, s) = ((t / 2) as usize, streams[t as usize]);
        if t % 2 == 0 {
            let tx = senders[pair].lock().unwrap().take().unwrap();
            let (mut dice, end) = (Dice(t + 7), Instant::now() + MOST);
            for n in 0..1000 {
                let (size, id) = (dice.size(), t << 32 | n);
                let p = rig.malloc(size, s);
                rig.fill(s, p, size, id);
                // The consumer's stream is ordered behind the fill, by the thread that hands the
                // block over.
                rig.order(s, streams[t as usize + 1]);
                tx.send((p, size, id)).unwrap();
                if Instant::now() > end {
                    break;
                }
            }
        } else {
            for (p, size, id) in receivers[pair].lock().unwrap().iter() {
                rig.check(s, p, size, id);
                rig.free(p, s);
            }
        }
    });
    let st = rig.pool.stats();
    assert_eq!((st.mallocs, st.allocations), (st.frees, 0));
    rig.close();
}

/// Frees are no hits where memory is given back by threshold; without a watch no allocation is.
#[test]
fn everything_at_once() {
    for (watch, trim_threshold) in [(true, 0), (true, 64 * MIB), (false, 0)] {
        let options = PoolOptions { limit: 512 * MIB, wait: true, trim_threshold, watch, ..PoolOptions::default() };
        everything(&Rig::new(checked(GIB), options));
    }
}

fn everything(rig: &Rig) {
    let shared = rig.stream();
    together(|t| {
        let end = Instant::now() + MOST;
        let mut dice = Dice(t * 1000 + 1);
        let mut own = rig.stream();
        for n in 0..250 {
            if Instant::now() > end {
                break;
            }
            let s = [own, shared, StreamHandle::LEGACY, StreamHandle::PER_THREAD][dice.below(4) as usize];
            let (size, id) = (dice.size(), t << 32 | n);
            let flags = if dice.below(16) == 0 { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
            let align = if dice.below(8) == 0 { 1 << dice.below(24) } else { 0 };
            let Ok(mut p) = rig.pool.malloc(&AllocRequest { align, flags, ..request(size, s) }) else { continue };
            rig.fill(s, p, size, id);
            match dice.below(6) {
                // Grown or shrunk, with what is kept of it.
                0 => {
                    let to = dice.size();
                    rig.fill(s, p, size.min(to), id);
                    match rig.pool.realloc(p, to, s) {
                        Ok(q) => {
                            rig.check(s, q, size.min(to), id);
                            p = q;
                        }
                        Err(e) => assert_eq!(e.status, Status::OutOfMemory, "{e}"),
                    }
                    rig.free(p, s);
                }
                // Freed on another stream.
                1 | 2 => {
                    let other = if s == own { shared } else { own };
                    rig.order(s, other);
                    rig.check(other, p, size, id);
                    rig.free(p, other);
                }
                // Used on another stream as well.
                3 => {
                    rig.pool.record_stream(p, own).unwrap();
                    rig.order(s, own);
                    rig.check(own, p, size, id);
                    rig.free(p, s);
                }
                _ => {
                    assert_eq!(rig.pool.info(p).unwrap().requested, size);
                    rig.check(s, p, size, id);
                    rig.pool.free(p, None).unwrap();
                }
            }
            match dice.below(40) {
                0 => drop(rig.pool.trim(dice.below(256) * MIB).unwrap()),
                1 => assert!(rig.pool.stats().mapped <= 512 * MIB),
                2 => assert!(rig.pool.dump().contains("device 0")),
                3 => assert!(rig.pool.free(dice.below(1 << 40), None).is_err()),
                // A stream of one's own goes and another takes its handle.
                4 => {
                    rig.host.stream_destroy(D, own).unwrap();
                    own = rig.stream();
                }
                // It is captured. Others may spoil that: they trim, and run out of memory.
                5 => {
                    rig.host.begin_capture(own).unwrap();
                    let in_capture: Vec<u64> =
                        (0..3).filter_map(|_| rig.pool.malloc(&request(size, own)).ok()).collect();
                    in_capture.into_iter().for_each(|p| rig.free(p, own));
                    let _valid = rig.host.end_capture(own).unwrap();
                }
                _ => {}
            }
        }
    });
    assert!(rig.pool.stats().peak_mapped <= 512 * MIB);
    rig.close();
}

/// Work runs late and in any order: threads with a stream each and exact sizes, so that memory goes
/// round between them.
#[test]
fn memory_goes_round_between_late_streams() {
    for seed in 0..3 {
        let host = HostOptions { bytes_per_device: GIB, ..HostOptions::simulation(seed) };
        let rig = Rig::new(host, PoolOptions { limit: 128 * MIB, wait: true, ..PoolOptions::default() });
        let streams: Vec<StreamHandle> = (0..THREADS).map(|_| rig.stream()).collect();
        together(|t| {
            let (s, end) = (streams[t as usize], Instant::now() + MOST / 3);
            for n in 0..60 {
                for size in [40 * KIB, 3 * MIB, 7 * MIB] {
                    if let Ok(p) = rig.pool.malloc(&request(size, s)) {
                        rig.fill(s, p, size, t << 32 | n);
                        rig.check(s, p, size, t << 32 | n);
                        rig.free(p, s);
                    }
                }
                if Instant::now() > end {
                    break;
                }
            }
        });
        rig.close();
    }
}

/// The books are looked at while dedicated memory comes and goes, heaps grow, and free memory is
/// given back: they are right at every moment.
#[test]
fn the_invariants_hold_at_any_moment() {
    let rig = Rig::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::default() }, PoolOptions::default());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (rig, stop) = (&rig, &stop);
            scope.spawn(move || {
                let (stream, mut dice, mut live) = (rig.stream(), Dice(t + 1), Vec::new());
                while !stop.load(Relaxed) {
                    if live.len() > 16 || (!live.is_empty() && dice.below(2) == 0) {
                        rig.free(live.swap_remove(dice.below(live.len() as u64) as usize), stream);
                    } else {
                        let flags = [AllocFlags::default(), AllocFlags::SINGLE_HANDLE, AllocFlags::GUARD];
                        let flags = flags[dice.below(3) as usize];
                        let req = AllocRequest { size: dice.below(5 * MIB), stream, flags, ..AllocRequest::default() };
                        live.extend(rig.pool.malloc(&req));
                    }
                    if t == 0 && dice.below(16) == 0 {
                        rig.pool.trim(0).unwrap();
                    }
                }
                live.into_iter().for_each(|p| rig.free(p, stream));
            });
        }
        let looked = (0..400).try_for_each(|_| rig.pool.validate());
        stop.store(true, Relaxed);
        looked.unwrap();
    });
    rig.sync();
    rig.pool.validate().unwrap();
}

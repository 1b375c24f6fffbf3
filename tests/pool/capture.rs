//! The pool while a stream is being captured into a graph.
//!
//! A capture is global: one driver call that is illegal meanwhile, from any thread, and the graph
//! is lost. The pool needs only one such call, the context marker, so the rule that these tests
//! hold it to is: **no call of the pool's breaks a capture that the pool knows of, except a trim
//! and, where no route has it, the last resort before a request for another stream fails for lack
//! of memory.** It knows of a capture once it has been asked for something on the captured stream,
//! until it is asked for something there again after the end. CUDA has no way to ask whether any
//! other stream is being captured; a capture that the pool has never heard of survives everything
//! that needs no context marker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::host::HostOptions;
use gpumem::driver::{Call, Driver};
use gpumem::pool::{AllocFlags, AllocRequest, GraphArenaOptions, PoolOptions, WhichStreams};
use pool_support::{checked, late, page_extents, request, Rig, D};
use std::sync::Mutex;

const BYTES: u64 = 1 << 30;
const SIZES: [u64; 5] = [300, 40 * KIB, 200 * KIB, 3 * MIB, 9 * MIB];

/// A pool, a stream to capture, another stream, and everything live.
struct Scene {
    rig: Rig,
    /// The stream that is captured.
    cap: StreamHandle,
    other: StreamHandle,
    /// Allocations from before the capture, `SIZES` each: of `cap`, and of `other`.
    before: [Vec<u64>; 2],
    live: Mutex<Vec<(u64, u64)>>,
}

impl Scene {
    fn new(host: HostOptions, options: PoolOptions) -> Scene {
        let rig = Rig::new(host, options);
        let (cap, other) = (rig.stream(), rig.stream());
        let mut scene = Scene { rig, cap, other, before: Default::default(), live: Mutex::default() };
        scene.before = [cap, other].map(|s| SIZES.map(|size| scene.malloc(size, s)).to_vec());
        // Free memory of both streams, some of it waiting for the other.
        for (s, t) in [(cap, other), (other, cap)] {
            for size in SIZES {
                let (p, q) = (scene.malloc(size, s), scene.malloc(size, s));
                scene.free(p, Some(s));
                scene.rig.order(s, t);
                scene.free(q, Some(t));
            }
        }
        scene
    }

    /// Notes an allocation; it overlaps no other.
    fn born(&self, p: u64, size: u64) {
        let mut live = self.live.lock().unwrap();
        let overlap = live.iter().find(|&&(q, n)| p < q + n && q < p + size);
        assert_eq!(overlap, None, "{p:#x}, {size} bytes, was handed out over a live block");
        live.push((p, size));
    }

    fn dead(&self, p: u64) -> u64 {
        let mut live = self.live.lock().unwrap();
        let i = live.iter().position(|b| b.0 == p).unwrap();
        live.swap_remove(i).1
    }

    fn malloc(&self, size: u64, s: StreamHandle) -> u64 {
        self.malloc_with(size, s, AllocFlags::default())
    }

    fn malloc_with(&self, size: u64, s: StreamHandle, flags: AllocFlags) -> u64 {
        let p = self.rig.pool.malloc(&AllocRequest { flags, ..request(size, s) }).unwrap();
        self.born(p, size);
        self.rig.fill(s, p, size, p);
        self.rig.check(s, p, size, p);
        p
    }

    fn free(&self, p: u64, s: Option<StreamHandle>) {
        self.dead(p);
        self.rig.pool.free(p, s).unwrap();
    }

    fn realloc(&self, p: u64, size: u64, s: StreamHandle) -> u64 {
        let q = self.rig.pool.realloc(p, size, s).unwrap();
        self.dead(p);
        self.born(q, size);
        self.rig.fill(s, q, size, q);
        q
    }

    /// Every call of the pool's on `s`: of all sizes, with memory of the capture's own and from
    /// before on `old`.
    fn everything(&self, s: StreamHandle, old: &[u64]) {
        for size in SIZES {
            let (p, q, r) = (self.malloc(size, s), self.malloc(size, s), self.malloc(size, s));
            self.free(p, Some(s));
            let p = self.malloc(size, s);
            self.free(q, None);
            let p = self.realloc(p, size * 3, s);
            let p = self.realloc(p, size / 2, s);
            self.rig.pool.record_stream(r, self.cap).unwrap();
            self.rig.pool.record_stream(r, self.other).unwrap();
            self.free(r, Some(s));
            self.free(p, Some(s));
        }
        let p = self.realloc(old[3], 5 * MIB, s);
        let q = self.realloc(old[0], 3000, s);
        [p, q, old[1], old[2]].into_iter().for_each(|p| self.free(p, Some(s)));
        self.rig.pool.record_stream(old[4], s).unwrap();
        self.free(old[4], None);
        self.rig.books();
    }

    /// Runs `f` while `cap` is being captured; says whether the capture is still valid. With `told`
    /// the pool has heard of it first. Afterwards everything that was live still is, can be used
    /// and freed, and the memory comes back.
    fn capture(self, told: bool, f: impl FnOnce(&Scene)) -> bool {
        self.rig.host.begin_capture(self.cap).unwrap();
        if told {
            let p = self.malloc(100, self.cap);
            self.free(p, Some(self.cap));
        }
        f(&self);
        let valid = self.rig.host.end_capture(self.cap).unwrap();
        self.rig.books();
        let live: Vec<(u64, u64)> = self.live.lock().unwrap().clone();
        // All work on blocks from before the capture is behind this.
        self.rig.sync();
        for (p, size) in live {
            self.rig.fill(self.cap, p, size, 5);
            self.rig.check(self.cap, p, size, 5);
            self.free(p, Some(self.cap));
        }
        let mapped = self.rig.mapped();
        for s in [self.cap, self.other] {
            SIZES.map(|size| self.malloc(size, s)).into_iter().for_each(|p| self.free(p, Some(s)));
        }
        assert!(self.rig.mapped() <= mapped + 16 * MIB, "{}", self.rig.pool.dump());
        self.rig.close();
        valid
    }
}

/// Runs `f` during captures on devices that are early and late, told and not; every other one where
/// the driver is asked which stream it is.
fn stays_valid(options: PoolOptions, f: impl Fn(&Scene)) {
    for (host, told) in hosts().into_iter().flat_map(|h| [(h.clone(), false), (h, true)]) {
        let options = PoolOptions { watch: host.seed % 2 == 0, ..options };
        let what = format!("{host:?}, told: {told}, {options:?}");
        assert!(Scene::new(host, options).capture(told, &f), "the capture was lost: {what}");
    }
}

/// The same for captures that the pool has heard of.
fn stays_valid_when_known(options: PoolOptions, f: impl Fn(&Scene)) {
    for host in hosts() {
        let what = format!("{host:?}");
        assert!(Scene::new(host, options).capture(true, &f), "the capture was lost: {what}");
    }
}

fn hosts() -> Vec<HostOptions> {
    (1..6).map(|seed| late(seed, BYTES)).chain([checked(BYTES)]).collect()
}

fn elsewhere<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

#[test]
fn on_the_captured_stream() {
    stays_valid(page_extents(), |w| w.everything(w.cap, &w.before[0]));
    stays_valid(page_extents(), |w| w.everything(w.cap, &w.before[1]));
}

#[test]
fn on_another_stream_of_the_same_thread() {
    stays_valid(page_extents(), |w| w.everything(w.other, &w.before[1]));
}

#[test]
fn from_another_thread() {
    stays_valid(page_extents(), |w| elsewhere(|| w.everything(w.other, &w.before[1])));
    stays_valid(page_extents(), |w| elsewhere(|| w.everything(w.cap, &w.before[0])));
    stays_valid_when_known(page_extents(), |w| {
        elsewhere(|| w.everything(StreamHandle::LEGACY, &w.before[1]));
        elsewhere(|| w.everything(StreamHandle::PER_THREAD, &w.before[0]));
    });
}

#[test]
fn both_streams_in_turn() {
    stays_valid_when_known(page_extents(), |w| {
        for _ in 0..3 {
            for size in SIZES {
                // Freed in the capture's order, which no marker can cover before its end.
                let (p, q) = (w.malloc(size, w.other), w.malloc(size, w.cap));
                elsewhere(|| w.free(p, Some(w.cap)));
                elsewhere(|| w.free(q, Some(w.other)));
                let (p, q) = (w.malloc(size, w.other), w.malloc(size, w.cap));
                w.free(p, Some(w.cap));
                w.free(q, Some(w.other));
            }
        }
        w.everything(w.other, &w.before[1]);
    });
}

#[test]
fn a_miss_that_grows() {
    stays_valid(page_extents(), |w| {
        for (s, size) in [(w.cap, 100 * MIB), (w.other, 150 * MIB)] {
            let growths = w.rig.pool.stats().growths;
            w.malloc(size, s);
            assert!(w.rig.pool.stats().growths > growths);
        }
    });
}

#[test]
fn a_miss_that_stitches() {
    for on_cap in [false, true] {
        for slow in [false, true] {
            stays_valid(PoolOptions { limit: 256 * MIB, ..page_extents() }, |w| {
                let s = if on_cap { w.cap } else { w.other };
                // A checkerboard that leaves no room for the request in one piece, nor under the
                // limit.
                let blocks: Vec<u64> = (0..18).map(|_| w.malloc(8 * MIB, s)).collect();
                blocks.iter().step_by(2).for_each(|&p| w.free(p, Some(s)));
                if slow && !on_cap {
                    w.rig.host.hold(D, s).unwrap();
                }
                w.rig.pool.set_limit(w.rig.mapped()).unwrap();
                let moved = w.rig.pool.stats().moved;
                w.malloc(32 * MIB, s);
                assert!(w.rig.pool.stats().moved > moved, "{}", w.rig.pool.dump());
                if slow && !on_cap {
                    w.rig.host.release(D, s).unwrap();
                }
            });
        }
    }
}

#[test]
fn a_miss_that_takes_over_memory_of_other_streams() {
    stays_valid(page_extents(), |w| {
        let third = w.rig.stream();
        let blocks = [64 * MIB; 2].map(|size| w.malloc(size, third));
        blocks.into_iter().for_each(|p| w.free(p, Some(third)));
        // The frees of so much recorded markers, and the device passes them.
        w.rig.host.event_sync(D, recorded(w, third)).unwrap();
        let mapped = w.rig.mapped();
        w.malloc(64 * MIB, w.cap);
        w.malloc(64 * MIB, w.other);
        assert_eq!(w.rig.mapped(), mapped, "{}", w.rig.pool.dump());
    });
}

fn recorded(w: &Scene, s: StreamHandle) -> gpumem::driver::EventHandle {
    let e = w.rig.host.event_create(D).unwrap();
    w.rig.host.event_record(D, e, s).unwrap();
    e
}

#[test]
fn a_new_stream_on_a_reused_handle() {
    for threads in [false, true] {
        stays_valid_when_known(page_extents(), |w| {
            let churn = || {
                for round in 0..6 {
                    let s = w.rig.stream();
                    let blocks = SIZES.map(|size| w.malloc(size, s));
                    // In the stream's order, and after it has gone.
                    blocks[..3].iter().for_each(|&p| w.free(p, Some(s)));
                    w.rig.host.stream_destroy(D, s).unwrap();
                    blocks[3..].iter().for_each(|&p| w.free(p, None));
                    let t = w.rig.stream();
                    assert_eq!(s, t, "round {round}: the handle is used again");
                    w.malloc(5 * MIB, t);
                    w.rig.host.stream_destroy(D, t).unwrap();
                }
            };
            if threads {
                elsewhere(churn)
            } else {
                churn()
            }
        });
    }
}

/// Nothing of the old stream's is waited for, so the pool needs no context marker and an unknown
/// capture survives too.
#[test]
fn a_new_stream_on_a_handle_that_left_nothing_behind() {
    stays_valid(page_extents(), |w| {
        let s = w.rig.stream();
        let p = w.malloc(3 * MIB, s);
        w.rig.host.stream_destroy(D, s).unwrap();
        let t = w.rig.stream();
        assert_eq!(s, t);
        w.malloc(5 * MIB, t);
        assert_eq!(w.rig.pool.info(p).unwrap().requested, 3 * MIB);
    });
}

#[test]
fn dedicated_memory() {
    stays_valid_when_known(page_extents(), |w| {
        for s in [w.cap, w.other] {
            for flags in [AllocFlags::SINGLE_HANDLE, AllocFlags::EXPORTABLE, AllocFlags::GUARD] {
                let [p, q, r] = [(); 3].map(|()| w.malloc_with(3 * MIB, s, flags));
                w.rig.pool.record_stream(r, w.cap).unwrap();
                [(p, Some(s)), (q, None), (r, Some(w.other))].into_iter().for_each(|(p, by)| w.free(p, by));
            }
        }
    });
}

#[test]
fn questions_limits_and_giving_back_by_threshold() {
    stays_valid(PoolOptions { trim_threshold: 16 * MIB, ..page_extents() }, |w| {
        let p = w.malloc(64 * MIB, w.other);
        assert_eq!(w.rig.pool.info(p + 5).unwrap_err().status, Status::UnknownPointer);
        assert_eq!(w.rig.pool.info_containing(p + 5).unwrap().base, p);
        w.free(p, Some(w.other));
        let p = w.malloc(64 * MIB, w.cap);
        w.free(p, Some(w.cap));
        assert!(w.rig.pool.stats().mapped > 0 && w.rig.pool.dump().contains("device 0"));
        w.rig.pool.reset_peaks();
        w.rig.pool.set_limit(200 * MIB).unwrap();
        w.rig.pool.set_limit(0).unwrap();
        w.rig.pool.validate().unwrap();
    });
}

/// The captured stream's own requests never cost the capture, not even for want of memory.
#[test]
fn out_of_memory_on_the_captured_stream() {
    stays_valid(PoolOptions { limit: 128 * MIB, ..page_extents() }, |w| {
        for flags in [AllocFlags::default(), AllocFlags::SINGLE_HANDLE] {
            let e = w.rig.pool.malloc(&AllocRequest { flags, ..request(200 * MIB, w.cap) }).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory, "{e}");
        }
        let e = w.rig.pool.realloc(w.before[0][4], 200 * MIB, w.cap).unwrap_err();
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        w.malloc(MIB, w.cap);
    });
}

/// Only the last resort may, and only for what is free.
#[test]
fn out_of_memory_elsewhere_may_cost_the_capture() {
    for host in hosts() {
        for (size, lost) in [(120 * MIB, false), (100 * MIB, true)] {
            let w = Scene::new(host.clone(), PoolOptions { limit: 128 * MIB, ..page_extents() });
            let valid = w.capture(true, |w| {
                for flags in [AllocFlags::default(), AllocFlags::SINGLE_HANDLE] {
                    let e = w.rig.pool.malloc(&AllocRequest { flags, ..request(200 * MIB, w.other) }).unwrap_err();
                    assert_eq!(e.status, Status::OutOfMemory, "{e}");
                }
                if let Ok(p) = w.rig.pool.malloc(&request(size, w.other)) {
                    w.rig.pool.free(p, Some(w.other)).unwrap();
                }
                w.malloc(MIB, w.other);
            });
            assert_eq!(valid, !lost);
        }
    }
}

#[test]
fn a_trim_may_cost_the_capture_but_does_not_fail() {
    for host in hosts() {
        Scene::new(host, page_extents()).capture(true, |w| {
            w.rig.pool.trim(0).unwrap();
            w.malloc(9 * MIB, w.cap);
            w.malloc(9 * MIB, w.other);
        });
    }
}

/// The graph may be launched anywhere, and what the stream did before the capture may be pending
/// then.
#[test]
fn a_capture_does_not_get_what_the_stream_used_before_it() {
    stays_valid(PoolOptions { limit: 128 * MIB, ..page_extents() }, |w| {
        let old: Vec<u64> = w.before.iter().flatten().copied().collect();
        for &p in &old {
            w.free(p, Some(w.cap));
        }
        for size in SIZES.repeat(2) {
            let p = w.malloc(size, w.cap);
            assert!(!old.contains(&p), "{p:#x}");
        }
    });
}

/// The cache is warm and nothing is said to the pool when the capture begins: the hit itself has to
/// notice. Its end, too.
#[test]
fn a_capture_that_begins_between_two_hits_is_noticed_and_so_is_its_end() {
    for watch in [true, false] {
        let rig = Rig::new(late(7, BYTES), PoolOptions { watch, ..PoolOptions::default() });
        let s = rig.stream();
        let pair = |size| {
            let p = rig.malloc(size, s);
            rig.free(p, s);
            p
        };
        for size in SIZES {
            let p = pair(size);
            for round in 0..3 {
                assert_eq!(pair(size), p, "a hit");
                // What is pending when the graph runs.
                rig.host.hold(D, s).unwrap();
                rig.fill(s, p, size, round);
                rig.host.begin_capture(s).unwrap();
                let in_capture = rig.malloc(size, s);
                assert_ne!(in_capture, p, "watch: {watch}, {size} bytes: the stream's own memory went into a graph");
                rig.free(in_capture, s);
                assert_eq!(pair(size), in_capture, "the capture's at once");
                let kept = rig.malloc(size, s);
                assert!(rig.host.end_capture(s).unwrap());
                assert_eq!(pair(size), p, "the ordinary heap again");
                let other = rig.malloc(size, s);
                assert_ne!(other, kept);
                rig.free(other, s);
                rig.host.begin_capture(s).unwrap();
                let first = rig.malloc(size, s);
                rig.free(kept, s);
                assert_eq!(pair(size), kept, "what is freed in a capture stays the captures'");
                rig.free(first, s);
                assert!(rig.host.end_capture(s).unwrap());
                rig.host.release(D, s).unwrap();
                rig.books();
            }
        }
        rig.close();
    }
}

/// What is freed in the capture's order is the capture's at once.
#[test]
fn a_capture_reuses_its_own_memory() {
    stays_valid(page_extents(), |w| {
        for size in SIZES {
            let round = |_: u32| {
                let p = w.malloc(size, w.cap);
                w.free(p, Some(w.cap));
            };
            // The first rounds may settle where the memory is.
            (0..3).for_each(round);
            let mapped = w.rig.mapped();
            (0..40).for_each(round);
            assert_eq!(w.rig.mapped(), mapped, "{size} bytes");
        }
    });
}

/// What a capture leaves behind serves the next one.
#[test]
fn many_captures_keep_the_footprint_flat() {
    for host in hosts() {
        let w = Scene::new(host, page_extents());
        let mut mapped = Vec::new();
        for round in 0..40 {
            let s = if round % 2 == 0 { w.cap } else { w.other };
            w.rig.host.begin_capture(s).unwrap();
            SIZES.map(|size| w.malloc(size, s)).into_iter().for_each(|p| w.free(p, Some(s)));
            assert!(w.rig.host.end_capture(s).unwrap());
            SIZES.map(|size| w.malloc(size, s)).into_iter().for_each(|p| w.free(p, Some(s)));
            w.rig.sync();
            mapped.push(w.rig.mapped());
        }
        assert_eq!(mapped[10], mapped[39], "{mapped:?}");
        w.capture(false, |_| {});
    }
}

/// Once the captured stream is named again after the end, context markers are recorded as before.
/// A route that no allocation has used ends while its stream is being captured. A capture that any
/// call has seen stays known, so memory of a stream that is gone gets no context marker.
#[test]
fn the_end_of_a_route_is_not_the_end_of_a_capture() {
    for before_the_route in [true, false] {
        let w = Scene::new(checked(BYTES), page_extents());
        let arena = w.rig.pool.open_arena(GraphArenaOptions::default());
        let begin = || w.rig.pool.begin_route(&arena, WhichStreams::Handle(w.cap), 0, None).unwrap();
        let route = if before_the_route {
            w.rig.host.begin_capture(w.cap).unwrap();
            let p = w.malloc(100, w.cap);
            w.free(p, Some(w.cap));
            begin()
        } else {
            let route = begin();
            w.rig.host.begin_capture(w.cap).unwrap();
            assert!(w.rig.pool.is_claimed(w.cap).unwrap());
            route
        };
        w.rig.pool.end_route(&route);
        let s = w.rig.stream();
        let p = w.malloc(64 * MIB, s);
        w.free(p, Some(s));
        w.rig.host.stream_destroy(D, s).unwrap();
        let s = w.rig.stream();
        let p = w.malloc(64 * MIB, s);
        w.free(p, Some(s));
        assert!(w.rig.host.end_capture(w.cap).unwrap(), "the capture was lost");
        w.rig.pool.release_arena(&arena);
        w.before.iter().flatten().for_each(|&p| w.free(p, None));
        w.rig.close();
    }
}

#[test]
fn after_the_capture_memory_of_gone_streams_comes_back_as_before() {
    let w = Scene::new(checked(BYTES), page_extents());
    w.rig.host.begin_capture(w.cap).unwrap();
    let p = w.malloc(100, w.cap);
    w.free(p, Some(w.cap));
    let s = w.rig.stream();
    let p = w.malloc(64 * MIB, s);
    w.free(p, Some(s));
    w.rig.host.stream_destroy(D, s).unwrap();
    w.rig.fault.start_recording();
    let s = w.rig.stream();
    let p = w.malloc(64 * MIB, s);
    w.free(p, Some(s));
    assert!(!w.rig.fault.stop_recording().contains(&Call::ContextRecord), "the capture is known to be in progress");
    assert!(w.rig.host.end_capture(w.cap).unwrap());
    let p = w.malloc(100, w.cap);
    w.free(p, Some(w.cap));
    let mapped = w.rig.mapped();
    for _ in 0..5 {
        let p = w.malloc(64 * MIB, s);
        w.free(p, Some(s));
        w.rig.host.stream_destroy(D, s).unwrap();
        assert_eq!(w.rig.stream(), s);
    }
    assert!(w.rig.mapped() <= mapped, "{}", w.rig.pool.dump());
    w.rig.host.begin_capture(w.cap).unwrap();
    w.rig.host.end_capture(w.cap).unwrap();
    w.before.iter().flatten().for_each(|&p| w.free(p, None));
    w.rig.close();
}

/// Whether a context marker is recorded for memory of a stream that is gone, when the next stream
/// of its handle is named.
fn gone_streams_get_a_marker(w: &Scene) -> bool {
    w.rig.fault.start_recording();
    for _ in 0..2 {
        let s = w.rig.stream();
        let p = w.malloc(64 * MIB, s);
        w.free(p, Some(s));
        w.rig.host.stream_destroy(D, s).unwrap();
    }
    w.rig.fault.stop_recording().contains(&Call::ContextRecord)
}

/// The pool looks whether the captured stream is captured still, although nobody names it; and sees
/// when it is captured again, although nobody allocates in that capture.
#[test]
fn the_pool_sees_when_a_capture_is_over_and_when_the_next_one_begins() {
    for watch in [true, false] {
        let w = Scene::new(checked(BYTES), PoolOptions { watch, ..page_extents() });
        w.rig.host.begin_capture(w.cap).unwrap();
        let p = w.malloc(100, w.cap);
        w.free(p, Some(w.cap));
        assert!(!gone_streams_get_a_marker(&w), "the capture is in progress");
        assert!(w.rig.host.end_capture(w.cap).unwrap(), "the capture was lost");
        for _ in 0..2 {
            assert_eq!(gone_streams_get_a_marker(&w), watch);
            w.rig.host.begin_capture(w.cap).unwrap();
            assert!(!gone_streams_get_a_marker(&w), "the next one is in progress");
            assert!(w.rig.host.end_capture(w.cap).unwrap(), "the capture was lost");
        }
        let p = w.malloc(100, w.cap);
        w.free(p, Some(w.cap));
        w.before.iter().flatten().for_each(|&p| w.free(p, None));
        w.rig.close();
    }
}

/// The device refuses to be waited for during a capture. So after a wait none that was in progress
/// before is, and what was freed before may be used anywhere, even if the pool cannot see the
/// captured stream; then it cannot tell whether the next capture has begun, and records no marker.
#[test]
fn a_wait_for_the_device_says_that_captures_are_over() {
    for (watch, gone) in [(true, false), (true, true), (false, false), (false, true)] {
        let w = Scene::new(checked(BYTES), PoolOptions { watch, ..page_extents() });
        let s = w.rig.stream();
        w.rig.host.begin_capture(s).unwrap();
        let p = w.malloc(64 * MIB, s);
        w.free(p, Some(s));
        assert!(w.rig.host.end_capture(s).unwrap());
        if gone {
            w.rig.host.stream_destroy(D, s).unwrap();
        }
        w.rig.pool.sync_device().unwrap();
        let mapped = w.rig.mapped();
        let p = w.malloc(64 * MIB, w.other);
        assert_eq!(w.rig.mapped(), mapped, "{}", w.rig.pool.dump());
        w.free(p, Some(w.other));
        // The next stream has the handle of one that is gone.
        assert_eq!(gone_streams_get_a_marker(&w), watch || gone);
        w.before.iter().flatten().for_each(|&p| w.free(p, None));
        w.rig.close();
    }
}

/// A heap of captures lends a block to the stream's own work. Freed in the next capture, it is not
/// that capture's, whose graph may be launched on any stream.
#[test]
fn what_a_heap_of_captures_has_lent_is_not_the_next_captures_at_once() {
    for seed in 1..20 {
        let rig = Rig::new(late(seed, BYTES), PoolOptions { limit: 4 * MIB, ..PoolOptions::default() });
        let (s, other) = (rig.stream(), rig.stream());
        rig.host.begin_capture(s).unwrap();
        let x = rig.malloc(1000, s);
        let first = rig.malloc(3 * MIB, s);
        rig.free(first, s);
        assert!(rig.host.end_capture(s).unwrap());
        rig.pool.sync_stream(s).unwrap();
        rig.sync();
        let lent = rig.malloc(3 * MIB, s);
        rig.fill(s, lent, 3 * MIB, 1);
        rig.host.begin_capture(s).unwrap();
        let y = rig.malloc(1000, s);
        rig.free(lent, s);
        let next = rig.pool.malloc(&request(3 * MIB, s));
        assert!(rig.host.end_capture(s).unwrap());
        if let Ok(p) = next {
            rig.fill(other, p, 3 * MIB, 2);
        }
        rig.sync();
        next.into_iter().chain([x, y]).for_each(|p| rig.pool.free(p, None).unwrap());
        rig.close();
    }
}

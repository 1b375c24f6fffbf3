//! Private heaps and routes: the memory of capture arenas at the level of the pool.
//!
//! Until an arena is released its addresses are the same memory and nobody else's, whatever other
//! streams and threads do; afterwards there is nothing left to tell it from ordinary memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::driver::host::HostOptions;
use gpumem::driver::{Call, Driver, FaultRule};
use gpumem::pool::{
    AllocRequest, GraphArena, GraphArenaOptions, Guest, Placed, PoolOptions, Route, Span, WhichStreams,
};
use pool_support::{checked, late, page_extents, request, Rig, D, PAGE};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

const BYTES: u64 = GIB;
const SIZES: [u64; 6] = [300, 40 * KIB, 200 * KIB, 3 * MIB, 9 * MIB, 2 * MIB];

fn hosts() -> Vec<HostOptions> {
    (1..4).map(|seed| late(seed, BYTES)).chain([checked(BYTES)]).collect()
}

/// A capture with an arena: begun before the stream's own, as torch does, or after it.
struct Capture {
    arena: Arc<GraphArena>,
    route: Arc<Route>,
    stream: StreamHandle,
}

impl Capture {
    fn begin(rig: &Rig, stream: StreamHandle, options: GraphArenaOptions) -> Capture {
        Capture::share(rig, stream, &rig.pool.open_arena(options))
    }

    fn share(rig: &Rig, stream: StreamHandle, arena: &Arc<GraphArena>) -> Capture {
        let route = rig.pool.begin_route(arena, WhichStreams::Handle(stream), 0, None).unwrap();
        rig.host.begin_capture(stream).unwrap();
        Capture { arena: arena.clone(), route, stream }
    }

    /// The capture is over and was not lost.
    fn end(&self, rig: &Rig) {
        assert!(rig.host.end_capture(self.stream).unwrap(), "the capture was lost");
        rig.pool.end_route(&self.route);
    }

    fn mapped(&self, rig: &Rig) -> u64 {
        rig.pool.arena_stats(&self.arena).mapped
    }
}

fn disjoint(blocks: &[(u64, u64)]) {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    for w in sorted.windows(2) {
        assert!(w[0].0 + w[0].1 <= w[1].0, "{:#x}+{:#x} and {:#x} overlap", w[0].0, w[0].1, w[1].0);
    }
}

/// Allocations and frees of every kind on another stream, none of them in `ranges`.
fn churn(rig: &Rig, s: StreamHandle, rounds: u64, ranges: &[(u64, u64)]) {
    let clear = |p: u64, n: u64| {
        let hit = ranges.iter().find(|&&(q, m)| p < q + m && q < p + n);
        assert_eq!(hit, None, "{p:#x} of {n} bytes was handed out to another stream");
    };
    for round in 0..rounds {
        let blocks: Vec<(u64, u64)> = (0..8)
            .map(|i| {
                let size = SIZES[(i + round as usize) % SIZES.len()] + 4096 * (i as u64 + round % 5);
                let p = rig.malloc(size, s);
                clear(p, size);
                rig.fill(s, p, size, p);
                (p, size)
            })
            .collect();
        for &(p, size) in blocks.iter().step_by(2).chain(blocks.iter().skip(1).step_by(2)) {
            rig.check(s, p, size, p);
            rig.free(p, s);
        }
    }
}

#[test]
fn it_grows_in_place() {
    for reserve in [0, 256 * MIB] {
        for ahead in [0, 8 * MIB] {
            let rig = Rig::new(checked(BYTES), page_extents());
            let (s, t) = (rig.stream(), rig.stream());
            let arena = rig.pool.open_arena(GraphArenaOptions { reserve, ..GraphArenaOptions::default() });
            let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), ahead, None).unwrap();
            rig.host.begin_capture(s).unwrap();
            let mut end = None;
            let mut blocks = Vec::new();
            for i in 0..30 {
                let size = (1 + i % 4) * PAGE;
                let p = rig.malloc(size, s);
                assert_eq!(end.unwrap_or(p), p, "allocation {i} continues the one before");
                end = Some(p + size);
                blocks.push((p, size));
                // Spans of others do not get in the way.
                churn(&rig, t, 1, &blocks);
            }
            disjoint(&blocks);
            assert!(rig.host.end_capture(s).unwrap());
            rig.pool.end_route(&route);
            let st = rig.pool.arena_stats(&arena);
            assert!(st.reserved >= st.mapped.max(reserve), "{st:?}");
            assert_eq!((st.live, st.peak_live, st.allocations), (st.total, st.total, 30));
            rig.books();
            rig.pool.release_arena(&arena);
            blocks.iter().for_each(|b| rig.free(b.0, s));
            rig.close();
        }
    }
}

#[test]
fn more_addresses_than_there_are_is_an_error_and_nothing_stays() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let before = rig.pool.stats();
    for reserve in [1 << 60, u64::MAX - PAGE + 1] {
        let arena = rig.pool.open_arena(GraphArenaOptions { reserve, ..GraphArenaOptions::default() });
        let e = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, None).err().unwrap();
        assert_eq!(e.status, Status::OutOfMemory, "{e}");
        rig.pool.release_arena(&arena);
    }
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    let e = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 2 * BYTES, None).err().unwrap();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    rig.pool.release_arena(&arena);
    let after = rig.pool.stats();
    assert_eq!((after.mapped, after.reserved, after.holes), (before.mapped, before.reserved, before.holes));
    let p = rig.malloc(3 * MIB, s);
    assert_eq!(rig.pool.info(p).unwrap().stream, s);
    rig.free(p, s);
    rig.close();
}

/// A stream may allocate from an arena without being captured. Evictable memory is refused only to
/// a captured one.
#[test]
fn evictable_memory_is_for_streams_that_are_not_captured() {
    #[derive(Debug)]
    struct Nobody;
    impl Guest for Nobody {
        fn gone(&self) {}
    }
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    let route = rig.pool.begin_route(&arena, WhichStreams::Filter(Box::new(|_| true)), 0, None).unwrap();
    let req = AllocRequest { size: 3 * MIB, stream: s, ..AllocRequest::default() };
    let made = rig.pool.malloc_evictable(&req, Arc::new(Nobody)).unwrap();
    rig.pool.note_use(made.base, made.id, s).unwrap();
    rig.host.begin_capture(s).unwrap();
    let refused = rig.pool.malloc_evictable(&req, Arc::new(Nobody)).unwrap_err();
    assert_eq!(refused.status, Status::Capturing, "{refused}");
    assert_eq!(rig.pool.note_use(made.base, made.id, s).unwrap_err().status, Status::Capturing);
    assert!(rig.host.end_capture(s).unwrap(), "the capture was lost");
    rig.pool.end_route(&route);
    rig.pool.release_arena(&arena);
    rig.free(made.base, s);
    rig.close();
}

/// An arena that is given fewer addresses than it needs goes on behind them, and its figures stay
/// true.
#[test]
fn it_grows_beyond_the_addresses_kept_for_it() {
    for host in hosts() {
        let rig = Rig::new(host, page_extents());
        let s = rig.stream();
        let c = Capture::begin(&rig, s, GraphArenaOptions { reserve: 1, ..GraphArenaOptions::default() });
        let blocks: Vec<u64> = [1, 2, 1, 3].iter().map(|pages| rig.malloc(pages * PAGE, s)).collect();
        let stats = rig.pool.arena_stats(&c.arena);
        assert_eq!((stats.mapped, stats.reserved), (7 * PAGE, 7 * PAGE), "the page that was kept is used: {stats:?}");
        rig.books();
        c.end(&rig);
        rig.pool.release_arena(&c.arena);
        blocks.iter().for_each(|&p| rig.free(p, s));
        rig.close();
    }
}

/// A small request for more than the least alignment gets a larger object, and that is what counts.
#[test]
fn what_an_aligned_small_request_gets_counts_in_full() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let c = Capture::begin(&rig, s, GraphArenaOptions::default());
    let p = rig.pool.malloc(&AllocRequest { align: 4096, ..request(300, s) }).unwrap();
    let stats = rig.pool.arena_stats(&c.arena);
    assert_eq!((stats.total, stats.live), (4096, 4096), "{stats:?}");
    c.end(&rig);
    rig.pool.release_arena(&c.arena);
    rig.free(p, s);
    rig.close();
}

/// The addresses that an arena keeps are somebody's at every moment.
#[test]
fn the_pool_is_valid_while_captures_come_and_go() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3000 {
                let arena = rig.pool.open_arena(GraphArenaOptions::default());
                let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, None).unwrap();
                rig.pool.end_route(&route);
                rig.pool.release_arena(&arena);
            }
            over.store(true, SeqCst);
        });
        while !over.load(SeqCst) {
            rig.pool.validate().unwrap();
            let stats = rig.pool.stats();
            assert!(stats.holes <= stats.reserved, "{stats:?}");
        }
    });
    rig.close();
}

/// What could not be mapped leaves the arena its addresses: it grows there once it can.
#[test]
fn it_keeps_the_addresses_of_a_growth_that_failed() {
    for call in [Call::PhysCreate, Call::Map, Call::SetAccess] {
        let rig = Rig::new(checked(BYTES), page_extents());
        let s = rig.stream();
        for reserve in [8 * PAGE, PAGE] {
            let c = Capture::begin(&rig, s, GraphArenaOptions { reserve, ..GraphArenaOptions::default() });
            let first = rig.malloc(PAGE, s);
            let before = (rig.pool.stats().holes, rig.pool.arena_stats(&c.arena));
            rig.fault.set_rule(Some(FaultRule::nth_of(call, 0).lasting()));
            rig.pool.malloc(&request(3 * PAGE, s)).unwrap_err();
            rig.fault.set_rule(None);
            rig.books();
            assert_eq!((rig.pool.stats().holes, rig.pool.arena_stats(&c.arena)), before, "{call:?}");
            let second = rig.malloc(3 * PAGE, s);
            assert_eq!(second, first + PAGE, "{call:?} of {reserve} bytes");
            c.end(&rig);
            rig.pool.release_arena(&c.arena);
            for p in [first, second] {
                rig.free(p, s);
            }
            rig.sync();
            rig.pool.trim(0).unwrap();
        }
        rig.close();
    }
}

#[test]
fn stream_order_reuses_and_monotone_does_not() {
    for monotone in [false, true] {
        for host in hosts() {
            let rig = Rig::new(host, page_extents());
            let s = rig.stream();
            let c = Capture::begin(&rig, s, GraphArenaOptions { monotone, ..GraphArenaOptions::default() });
            let mut seen = Vec::new();
            for _ in 0..4 {
                for size in SIZES {
                    let (p, q) = (rig.malloc(size, s), rig.malloc(size, s));
                    rig.pool.free(p, None).unwrap();
                    rig.free(q, s);
                    seen.extend([(p, size), (q, size)]);
                }
            }
            match monotone {
                true => disjoint(&seen),
                false => {
                    assert!(seen[SIZES.len() * 2..].iter().all(|b| seen[..SIZES.len() * 2].contains(b)), "{seen:x?}")
                }
            }
            let st = rig.pool.arena_stats(&c.arena);
            assert_eq!(st.live, 0);
            assert!(if monotone { st.mapped > st.total / 2 } else { st.mapped < st.total / 2 }, "{st:?}");
            // A double free is seen all the same.
            let e = rig.pool.free(seen.last().unwrap().0, None).unwrap_err();
            assert_eq!(e.status, Status::DoubleFree);
            rig.books();
            c.end(&rig);
            rig.pool.release_arena(&c.arena);
            rig.close();
        }
    }
}

#[test]
fn a_monotone_arena_keeps_tails_and_reallocates_elsewhere() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let c = Capture::begin(&rig, s, GraphArenaOptions { monotone: true, ..GraphArenaOptions::default() });
    let p = rig.malloc(8 * MIB, s);
    assert_eq!(rig.pool.realloc(p, MIB, s).unwrap(), p);
    let q = rig.malloc(3 * MIB, s);
    assert!(q >= p + 8 * MIB || q + 3 * MIB <= p, "the tail was handed out");
    rig.free(p, s);
    rig.free(q, s);
    c.end(&rig);
    rig.pool.release_arena(&c.arena);
    rig.close();
}

/// Everything that could take or move an arena's memory, while a graph owns it and work at its
/// addresses goes on.
#[test]
fn addresses_are_nobody_elses_until_release() {
    for host in hosts() {
        let rig = Rig::new(host, PoolOptions { limit: 512 * MIB, trim_threshold: 16 * MIB, ..page_extents() });
        let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
        let warm: Vec<u64> = (0..8).map(|_| rig.malloc(8 * MIB, t)).collect();
        warm.iter().for_each(|&p| rig.free(p, t));
        rig.sync();
        let c = Capture::begin(&rig, s, GraphArenaOptions::default());
        let kept: Vec<(u64, u64)> = SIZES.iter().map(|&n| (rig.malloc(n, s), n)).collect();
        let temporary: Vec<(u64, u64)> = SIZES.iter().map(|&n| (rig.malloc(n, s), n)).collect();
        temporary.iter().for_each(|b| rig.free(b.0, s));
        c.end(&rig);
        let ranges: Vec<(u64, u64)> = kept.iter().chain(&temporary).copied().collect();
        let replay = |round: u64| {
            for &(p, n) in &ranges {
                rig.fill(u, p, n, round + p);
            }
            for &(p, n) in &ranges {
                rig.check(u, p, n, round + p);
            }
        };
        let mapped = c.mapped(&rig);
        for round in 0..6 {
            replay(round);
            churn(&rig, t, 3, &ranges);
            rig.pool.trim(0).unwrap();
            rig.pool.trim_unused(0).unwrap();
            replay(round);
            // A checkerboard on the streams themselves: what follows has to be stitched.
            for who in [s, t] {
                let blocks: Vec<u64> = (0..16).map(|_| rig.malloc(6 * MIB, who)).collect();
                blocks.iter().step_by(2).for_each(|&p| rig.free(p, who));
                let large = rig.malloc(40 * MIB, who);
                assert!(ranges.iter().all(|&(p, n)| p + n <= large || large + 40 * MIB <= p));
                rig.free(large, who);
                blocks.iter().skip(1).step_by(2).for_each(|&p| rig.free(p, who));
            }
            // Out of memory takes everything there is but this.
            let e = rig.pool.malloc(&request(500 * MIB, t)).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory);
            replay(round);
            rig.pool.set_limit(c.mapped(&rig) + 8 * MIB).unwrap();
            rig.pool.set_limit(512 * MIB).unwrap();
            assert_eq!(c.mapped(&rig), mapped, "nothing was taken");
            rig.books();
        }
        rig.sync();
        rig.pool.trim(0).unwrap();
        assert_eq!(rig.mapped(), mapped, "all that is left is the arena's: {}", rig.pool.dump());
        rig.pool.release_arena(&c.arena);
        kept.iter().for_each(|b| rig.free(b.0, s));
        rig.close();
    }
}

#[test]
fn graphs_share_an_arena() {
    for host in hosts() {
        let rig = Rig::new(host, page_extents());
        let (s, t) = (rig.stream(), rig.stream());
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let mut mapped = Vec::new();
        let mut outputs = Vec::new();
        for round in 0..4 {
            let c = Capture::share(&rig, if round < 2 { s } else { t }, &arena);
            let temporary = SIZES.map(|n| rig.malloc(n, c.stream));
            outputs.push(rig.malloc(3 * MIB, c.stream));
            temporary.iter().for_each(|&p| rig.free(p, c.stream));
            c.end(&rig);
            mapped.push(c.mapped(&rig));
            rig.books();
        }
        // The second graph of a stream runs in what the first one's temporaries had.
        assert!(mapped[1] <= mapped[0] + 6 * MIB && mapped[3] <= mapped[2] + 6 * MIB, "{mapped:?}");
        assert_eq!(rig.pool.arena_stats(&arena).streams, 2);
        disjoint(&outputs.iter().map(|&p| (p, 3 * MIB)).collect::<Vec<_>>());
        rig.pool.release_arena(&arena);
        outputs.iter().for_each(|&p| rig.pool.free(p, None).unwrap());
        rig.close();
    }
}

#[test]
fn memory_is_ordinary_after_release() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let (s, t) = (rig.stream(), rig.stream());
    let c = Capture::begin(&rig, s, GraphArenaOptions::default());
    let blocks = [64 * MIB; 3].map(|n| rig.malloc(n, s));
    c.end(&rig);
    rig.free(blocks[0], s);
    rig.free(blocks[1], t);
    rig.pool.release_arena(&c.arena);
    rig.pool.release_arena(&c.arena);
    rig.books();
    assert_eq!(rig.pool.info(blocks[2]).unwrap().requested, 64 * MIB, "what is live stays so");
    // Named again, the stream is seen not to be captured.
    let p = rig.malloc(MIB, s);
    let mapped = rig.mapped();
    // Another stream takes it over: the first time it asks for the marker that shows that the
    // device is done.
    for _ in 0..3 {
        let q = rig.malloc(64 * MIB, t);
        rig.free(q, t);
    }
    assert!(rig.mapped() <= mapped, "{}", rig.pool.dump());
    rig.free(blocks[2], s);
    rig.free(p, s);
    rig.close();
}

/// The last replay is still running when the arena goes.
#[test]
fn what_a_replay_may_still_use_waits_for_it() {
    for seed in 1..12 {
        for how in 0..3 {
            let rig = Rig::new(late(seed, BYTES), PoolOptions { limit: 256 * MIB, ..page_extents() });
            let (s, launcher, other) = (rig.stream(), rig.stream(), rig.stream());
            let c = Capture::begin(&rig, s, GraphArenaOptions::default());
            let output = rig.malloc(16 * MIB, s);
            let temporary = [rig.malloc(30 * MIB, s), rig.malloc(20 * KIB, s)];
            temporary.iter().for_each(|&p| rig.free(p, s));
            c.end(&rig);
            // Settled by a marker of before the replay.
            rig.sync();
            rig.pool.trim(0).unwrap();
            rig.host.hold(D, launcher).unwrap();
            rig.fill(launcher, temporary[0], 30 * MIB, 1);
            rig.fill(launcher, temporary[1], 20 * KIB, 2);
            rig.fill(launcher, output, 16 * MIB, 3);
            match how {
                0 => rig.free(output, launcher),
                1 => rig.pool.free(output, None).unwrap(),
                _ => {}
            }
            match how {
                1 => drop(rig.pool.abort_route(&c.route)),
                _ => rig.pool.release_arena(&c.arena),
            }
            rig.pool.release_arena(&c.arena);
            rig.books();
            let mut blocks = Vec::new();
            for who in [other, s, other] {
                for size in [20 * MIB, 20 * KIB] {
                    let p = rig.malloc(size, who);
                    rig.fill(who, p, size, 9);
                    blocks.push((p, who));
                }
            }
            // Another capture gets nothing of it either.
            let next = Capture::begin(&rig, s, GraphArenaOptions::default());
            let p = rig.malloc(20 * KIB, s);
            assert!(!temporary.contains(&p));
            rig.free(p, s);
            next.end(&rig);
            rig.pool.release_arena(&next.arena);
            rig.host.release(D, launcher).unwrap();
            rig.sync();
            assert!(rig.host.reports().is_empty(), "{:#?}", rig.host.reports());
            blocks.into_iter().for_each(|(p, who)| rig.free(p, who));
            if how == 2 {
                rig.free(output, s);
            }
            rig.close();
        }
    }
}

/// The limit leaves only what the stream has freed eagerly. The begin of a capture asks about that,
/// so that the capture can have it; one that is begun later says what has to come first.
#[test]
fn a_capture_gets_what_its_stream_has_freed_before_its_begin() {
    for host in hosts() {
        for before in [true, false] {
            let rig = Rig::new(host.clone(), PoolOptions { limit: 64 * MIB, ..page_extents() });
            let s = rig.stream();
            let p = rig.malloc(40 * MIB, s);
            rig.fill(s, p, 40 * MIB, 1);
            rig.free(p, s);
            let arena = rig.pool.open_arena(GraphArenaOptions::default());
            let begin = || rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, None).unwrap();
            let route = before.then(begin);
            rig.host.begin_capture(s).unwrap();
            let route = route.unwrap_or_else(begin);
            match rig.pool.malloc(&request(40 * MIB, s)) {
                Ok(p) => {
                    assert!(before);
                    rig.fill(s, p, 40 * MIB, 2);
                    rig.free(p, s);
                }
                Err(e) => {
                    assert!(!before && e.message.contains("call gpumem_device_sync, or gpumem_stream_sync"), "{e}");
                }
            }
            assert!(rig.host.end_capture(s).unwrap());
            rig.pool.end_route(&route);
            rig.pool.release_arena(&arena);
            rig.free(rig.malloc(100, s), s);
            rig.close();
        }
    }
}

/// When the capture's memory begins, and what comes between two captures.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// Before the stream's own capture.
    Before,
    /// After it; the stream is waited for in between.
    After,
    /// Automatically; the stream allocates eagerly in between.
    Automatic,
    /// By a filter, as PyTorch does. A graph of the same stream is kept all the time.
    Filtered,
}

fn captures_leave_no_trace(order: Order, rounds: u64) {
    let rig = Rig::new(HostOptions { bytes_per_device: BYTES, check: false, ..HostOptions::default() }, page_extents());
    let s = rig.stream();
    let held = rig.malloc(5 * MIB, s);
    let begin = |options| {
        let arena = rig.pool.open_arena(options);
        let route = |which| rig.pool.begin_route(&arena, which, 0, None).unwrap();
        let own = || rig.host.begin_capture(s).unwrap();
        let route = match order {
            Order::Before => {
                let route = route(WhichStreams::Handle(s));
                own();
                route
            }
            Order::After => {
                own();
                route(WhichStreams::Handle(s))
            }
            Order::Automatic => {
                own();
                route(WhichStreams::CaptureOf(s))
            }
            Order::Filtered => {
                let route = route(WhichStreams::Filter(Box::new(move |t| t == s)));
                own();
                route
            }
        };
        Capture { arena, route, stream: s }
    };
    let kept = (order == Order::Filtered).then(|| {
        let c = begin(GraphArenaOptions::default());
        let p = rig.malloc(MIB, s);
        c.end(&rig);
        (c, p)
    });
    let live = 1 + u64::from(kept.is_some());
    let mut first = None;
    for round in 0..rounds {
        let c = begin(GraphArenaOptions { monotone: round % 3 == 0, ..GraphArenaOptions::default() });
        let a = rig.malloc(2 * MIB + (round % 7) * 100 * KIB, s);
        let b = rig.malloc(1000, s);
        rig.free(a, s);
        let d = rig.malloc(3 * MIB, s);
        if round % 2 == 0 {
            rig.free(b, s);
            rig.free(d, s);
            c.end(&rig);
        } else {
            assert!(rig.host.end_capture(s).unwrap());
            rig.pool.abort_route(&c.route);
        }
        rig.pool.release_arena(&c.arena);
        match order {
            Order::After => rig.pool.sync_stream(s).unwrap(),
            Order::Automatic => rig.free(rig.malloc(100, s), s),
            Order::Before | Order::Filtered => {}
        }
        let st = rig.pool.stats();
        let now = (st.streams, st.mapped, st.reserved, st.allocations);
        if round == 100 {
            first = Some(now);
        }
        if round % 500 == 0 {
            rig.books();
            assert!(
                first.is_none_or(|f| now.0 <= f.0 && now.1 <= f.1 && now.2 <= f.2),
                "{order:?}, {round}: {now:?}, {first:?}"
            );
        }
        assert_eq!(st.allocations, live);
    }
    rig.free(held, s);
    if let Some((c, p)) = kept {
        rig.free(p, s);
        rig.pool.release_arena(&c.arena);
    }
    // The stream is named, so it is seen that the last capture is over.
    rig.free(rig.malloc(100, s), s);
    rig.close();
}

#[test]
fn ten_thousand_captures_leave_no_trace() {
    captures_leave_no_trace(Order::Before, 10_000);
    for order in [Order::After, Order::Automatic, Order::Filtered] {
        captures_leave_no_trace(order, 1001);
    }
}

#[test]
fn an_abandoned_capture_ends_when_its_handle_comes_again() {
    for begun_before in [true, false] {
        let rig = Rig::new(checked(BYTES), page_extents());
        let s = rig.stream();
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        if !begun_before {
            rig.host.begin_capture(s).unwrap();
        }
        let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, None).unwrap();
        if begun_before {
            rig.host.begin_capture(s).unwrap();
        }
        let p = rig.malloc(3 * MIB, s);
        rig.host.end_capture(s).unwrap();
        rig.host.stream_destroy(D, s).unwrap();
        let again = rig.stream();
        assert_eq!(again, s);
        let q = rig.malloc(3 * MIB, s);
        assert!(route.is_over());
        assert_eq!(rig.pool.arena_stats(&arena).allocations, 1, "the new stream's memory is ordinary");
        rig.free(q, s);
        assert_eq!(rig.malloc(3 * MIB, s), q);
        rig.free(q, s);
        rig.pool.end_route(&route);
        rig.pool.release_arena(&arena);
        rig.free(p, s);
        rig.close();
    }
}

#[test]
fn one_capture_at_a_time_on_a_stream() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let c = Capture::begin(&rig, s, GraphArenaOptions::default());
    let e = rig.pool.begin_route(&c.arena, WhichStreams::Handle(s), 0, None).err().unwrap();
    assert_eq!(e.status, Status::Invalid, "{e}");
    c.end(&rig);
    let route = rig.pool.begin_route(&c.arena, WhichStreams::Handle(s), 0, None).unwrap();
    rig.pool.release_arena(&c.arena);
    assert!(route.is_over(), "a released arena has no routes");
    assert!(rig.pool.begin_route(&c.arena, WhichStreams::Handle(s), 0, None).is_err());
    rig.close();
}

#[test]
fn abort_frees_what_the_capture_allocated_and_nothing_else() {
    for host in hosts() {
        let rig = Rig::new(host, page_extents());
        let (s, t) = (rig.stream(), rig.stream());
        let ordinary = rig.malloc(3 * MIB, s);
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let first = Capture::share(&rig, s, &arena);
        let kept = SIZES.map(|n| rig.malloc(n, s));
        first.end(&rig);
        let second = Capture::share(&rig, s, &arena);
        let gone = SIZES.map(|n| rig.malloc(n, s));
        rig.pool.record_stream(gone[3], t).unwrap();
        rig.pool.record_stream(gone[0], t).unwrap();
        rig.pool.abort_route(&second.route);
        assert!(rig.host.end_capture(s).unwrap());
        rig.books();
        kept.iter().for_each(|&p| assert!(rig.pool.info(p).is_ok()));
        for p in gone {
            let e = rig.pool.free(p, None).unwrap_err();
            assert!(matches!(e.status, Status::DoubleFree | Status::UnknownPointer), "{e}");
        }
        kept.iter().for_each(|&p| rig.free(p, s));
        rig.free(ordinary, s);
        rig.pool.release_arena(&arena);
        rig.close();
    }
}

/// A layout made from the recording needs no room for what an aborted capture had allocated.
#[test]
fn what_an_abort_frees_has_died_in_the_recording() {
    let rig = Rig::new(checked(GIB), page_extents());
    let s = rig.stream();
    let arena = rig.pool.open_arena(GraphArenaOptions { record: true, ..GraphArenaOptions::default() });
    for aborted in [false, true] {
        let capture = Capture::share(&rig, s, &arena);
        let p = rig.malloc(8 * MIB, s);
        if aborted {
            rig.pool.abort_route(&capture.route);
            assert!(rig.host.end_capture(s).unwrap());
        } else {
            rig.free(p, s);
            capture.end(&rig);
        }
    }
    let lives: Vec<_> = rig.pool.arena_lives(&arena).into_iter().flatten().flatten().collect();
    assert!(lives.len() == 2 && lives.iter().all(|l| l.death.is_some()), "{lives:?}");
    rig.pool.release_arena(&arena);
    rig.close();
}

#[test]
fn frees_in_and_after_a_capture_by_anybody() {
    for watch in [true, false] {
        for host in hosts() {
            let rig = Rig::new(host, PoolOptions { watch, ..page_extents() });
            let (s, t) = (rig.stream(), rig.stream());
            let old: Vec<u64> = SIZES.iter().cycle().take(18).map(|&n| rig.malloc(n, s)).collect();
            let c = Capture::begin(&rig, s, GraphArenaOptions::default());
            let own: Vec<u64> = SIZES.iter().cycle().take(30).map(|&n| rig.malloc(n, s)).collect();
            // Ordinary memory: deferred, not lost.
            for (i, &p) in old[..12].iter().enumerate() {
                rig.pool.free(p, [Some(s), Some(t), None][i % 3]).unwrap();
            }
            // The arena's, in it.
            for (i, &p) in own[..12].iter().enumerate() {
                rig.pool.free(p, [Some(s), Some(t), None][i % 3]).unwrap();
            }
            let fresh = SIZES.map(|n| rig.malloc(n, s));
            assert!(fresh.iter().all(|p| !old.contains(p)), "ordinary memory went into the graph");
            fresh.iter().for_each(|&p| rig.free(p, s));
            c.end(&rig);
            for (i, &p) in own[12..24].iter().chain(&old[12..]).enumerate() {
                rig.pool.free(p, [Some(s), Some(t), None][i % 3]).unwrap();
            }
            rig.books();
            let r = rig.malloc(3 * MIB, s);
            assert!(!own.contains(&r) && !fresh.contains(&r), "the arena's memory is still its own");
            rig.free(r, s);
            rig.pool.release_arena(&c.arena);
            for (i, &p) in own[24..].iter().enumerate() {
                rig.pool.free(p, [Some(s), Some(t), None][i % 3]).unwrap();
            }
            for &p in old.iter().chain(&own) {
                let e = rig.pool.free(p, Some(s)).unwrap_err();
                assert!(matches!(e.status, Status::DoubleFree | Status::UnknownPointer), "{e}");
            }
            rig.close();
        }
    }
}

#[test]
fn other_threads_go_on_meanwhile() {
    let rig = Rig::new(checked(BYTES), PoolOptions::default());
    let stop = AtomicBool::new(false);
    let (s, streams) = (rig.stream(), [rig.stream(), rig.stream()]);
    std::thread::scope(|scope| {
        for &t in &streams {
            let (rig, stop) = (&rig, &stop);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    churn(rig, t, 1, &[]);
                }
            });
        }
        for round in 0..30 {
            let c =
                Capture::begin(&rig, s, GraphArenaOptions { monotone: round % 2 == 0, ..GraphArenaOptions::default() });
            let blocks: Vec<(u64, u64)> = SIZES.iter().cycle().take(12).map(|&n| (rig.malloc(n, s), n)).collect();
            disjoint(&blocks);
            blocks.iter().step_by(2).for_each(|b| rig.free(b.0, s));
            c.end(&rig);
            for &(p, n) in blocks.iter().skip(1).step_by(2) {
                rig.fill(s, p, n, 7);
                rig.check(s, p, n, 7);
            }
            blocks.iter().skip(1).step_by(2).for_each(|b| rig.free(b.0, s));
            rig.pool.release_arena(&c.arena);
        }
        stop.store(true, Relaxed);
    });
    rig.free(rig.malloc(100, s), s);
    rig.close();
}

#[test]
fn a_filter_says_which_streams() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    // What is known of the streams before is forgotten.
    [s, t, u].iter().for_each(|&x| rig.free(rig.malloc(3 * MIB, x), x));
    let filter = Box::new(move |x| x == s || x == t);
    let route = rig.pool.begin_route(&arena, WhichStreams::Filter(filter), 0, None).unwrap();
    let blocks = [s, t, u, s].map(|x| rig.malloc(3 * MIB, x));
    assert_eq!(rig.pool.arena_stats(&arena).allocations, 3);
    assert_eq!(rig.pool.arena_stats(&arena).streams, 2);
    rig.pool.end_route(&route);
    let last = rig.malloc(3 * MIB, s);
    assert_eq!(rig.pool.arena_stats(&arena).allocations, 3);
    blocks.iter().chain([&last]).for_each(|&p| rig.pool.free(p, None).unwrap());
    rig.pool.release_arena(&arena);
    rig.close();
}

/// By hand: two blocks that take turns at one place, one that lives beside them.
#[test]
fn a_layout_puts_blocks_where_it_has_them() {
    for host in hosts() {
        let rig = Rig::new(host, page_extents());
        let s = rig.stream();
        let placed =
            [(8, 0), (4, 8), (8, 0), (2, 12)].map(|(n, at)| Placed { size: n * MIB, offset: at * MIB }).to_vec();
        let span = Arc::new(Span { bytes: 14 * MIB, align: 2 * MIB, placed });
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let mut bases = Vec::new();
        for _ in 0..2 {
            let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, Some(&span)).unwrap();
            rig.host.begin_capture(s).unwrap();
            let small = rig.malloc(1000, s);
            let a = rig.malloc(8 * MIB, s);
            let b = rig.malloc(4 * MIB, s);
            rig.free(a, s);
            let c = rig.malloc(8 * MIB, s);
            let d = rig.malloc(2 * MIB, s);
            assert_eq!([b - a, c - a, d - a], [8 * MIB, 0, 12 * MIB]);
            assert!(small < a || small >= a + 14 * MIB, "small ones are elsewhere");
            let known = bases.len() as u64;
            assert_eq!(rig.pool.arena_stats(&arena).deviations, known);
            let grown = rig.pool.realloc(d, 3 * MIB, s).unwrap();
            assert!(grown < a || grown >= a + 14 * MIB);
            assert_eq!(rig.pool.arena_stats(&arena).deviations, known + 1, "one more than recorded");
            [small, b, c, grown].iter().for_each(|&p| rig.free(p, s));
            assert!(rig.host.end_capture(s).unwrap());
            rig.pool.end_route(&route);
            rig.books();
            bases.push(a);
            assert_eq!(rig.pool.arena_stats(&arena).planned, 14 * MIB);
        }
        assert_eq!(bases[0], bases[1], "the same memory for the second graph");
        rig.pool.release_arena(&arena);
        rig.close();
    }
}

#[test]
fn what_deviates_from_a_layout_is_served_all_the_same() {
    let rig = Rig::new(checked(BYTES), page_extents());
    let s = rig.stream();
    let placed = [(8, 0), (8, 0)].map(|(n, at)| Placed { size: n * MIB, offset: at * MIB }).to_vec();
    let span = Arc::new(Span { bytes: 8 * MIB, align: 512, placed });
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 0, Some(&span)).unwrap();
    let blocks = [8, 8, 5, 1].map(|n| (rig.malloc(n * MIB, s), n * MIB));
    disjoint(&blocks);
    assert_eq!(rig.pool.arena_stats(&arena).deviations, 3, "the first still lives, the others are unknown");
    rig.pool.abort_route(&route);
    rig.pool.release_arena(&arena);
    rig.close();
}

//! Whose a capture arena's memory is when streams come and go, are used eagerly before they are
//! captured, or share it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::pool_support;

use gpumem::arena::capture::{Capture, CaptureOptions};
use gpumem::arena::DebugMode;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::StreamHandle;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{CaptureMode, Driver};
use gpumem::pool::{GraphArena, GraphArenaOptions, PoolOptions, Route, WhichStreams};
use pool_support::{checked, late, page_extents, Rig, D, STRIDE};
use std::sync::Arc;

const SIZES: [u64; 4] = [900, 40 * KIB, 3 * MIB, 9 * MIB];

fn begin(rig: &Rig, arena: &Arc<GraphArena>, s: StreamHandle) -> Arc<Route> {
    rig.pool.begin_route(arena, WhichStreams::Handle(s), 0, None).unwrap()
}

/// Work of some length at each of the addresses.
fn work(rig: &Rig, s: StreamHandle, name: &'static str, id: u64, blocks: &[(u64, u64)]) {
    for &(p, n) in blocks {
        rig.host.launch(D, s, Kernel::write_pattern(name, p..p + n, id, STRIDE)).unwrap();
    }
}

fn blocks(rig: &Rig, s: StreamHandle) -> Vec<(u64, u64)> {
    SIZES.iter().map(|&n| (rig.malloc(n, s), n)).collect()
}

/// Nothing that a stream used may go to the next stream of its handle while it may still be
/// running.
#[test]
fn the_next_stream_of_a_handle_does_not_get_what_the_last_one_uses() {
    for seed in 1..6 {
        for (filtered, captured) in [(false, false), (true, false), (true, true)] {
            let rig = Rig::new(late(seed, GIB), page_extents());
            let s = rig.stream();
            let arena = rig.pool.open_arena(GraphArenaOptions::default());
            let which = if filtered { WhichStreams::Filter(Box::new(|_| true)) } else { WhichStreams::Handle(s) };
            let first = rig.pool.begin_route(&arena, which, 0, None).unwrap();
            let old = blocks(&rig, s);
            work(&rig, s, "old", 1, &old);
            old.iter().for_each(|b| rig.free(b.0, s));
            if !filtered {
                rig.pool.end_route(&first);
            }
            rig.host.stream_destroy(D, s).unwrap();
            let next = rig.stream();
            assert_eq!(next, s, "the handle comes back");
            let second = (!filtered).then(|| begin(&rig, &arena, next));
            if captured {
                rig.host.capture_begin(D, next, CaptureMode::Relaxed).unwrap();
            }
            let new = blocks(&rig, next);
            work(&rig, next, "new", 2, &new);
            // What another stream allocates after a marker of the new one.
            new.iter().for_each(|b| rig.free(b.0, next));
            if captured {
                let graph = rig.host.capture_end(D, next).unwrap();
                rig.host.graph_launch(D, graph, rig.stream()).unwrap();
                rig.sync();
                rig.host.graph_destroy(D, graph).unwrap();
            }
            rig.sync();
            assert!(rig.host.reports().is_empty(), "{seed} {filtered}: {:#?}", rig.host.reports());
            second.iter().chain([&first]).for_each(|r| rig.pool.end_route(r));
            rig.pool.release_arena(&arena);
            rig.free(rig.malloc(100, next), next);
            rig.close();
        }
    }
}

/// Eager work on the stream goes on while the graph runs on another one.
#[test]
fn a_graph_does_not_get_what_its_stream_uses_eagerly() {
    for seed in 1..6 {
        for how in ["freed before", "freed within", "shared"] {
            let rig = Rig::new(late(seed, GIB), page_extents());
            let (s, t) = (rig.stream(), rig.stream());
            let arena = rig.pool.open_arena(GraphArenaOptions::default());
            let mut route = begin(&rig, &arena, s);
            let eager = blocks(&rig, s);
            work(&rig, s, "eager", 1, &eager);
            let free_all = || eager.iter().for_each(|b| rig.free(b.0, s));
            if how != "freed within" {
                free_all();
            }
            if how == "shared" {
                rig.pool.end_route(&route);
                route = begin(&rig, &arena, s);
            }
            rig.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
            if how == "freed within" {
                free_all();
            }
            let captured = blocks(&rig, s);
            work(&rig, s, "graph", 2, &captured);
            captured.iter().for_each(|b| rig.free(b.0, s));
            let graph = rig.host.capture_end(D, s).unwrap();
            rig.pool.end_route(&route);
            rig.host.graph_launch(D, graph, t).unwrap();
            rig.sync();
            assert!(rig.host.reports().is_empty(), "{seed} {how}: {:#?}", rig.host.reports());
            rig.host.graph_destroy(D, graph).unwrap();
            rig.pool.release_arena(&arena);
            rig.free(rig.malloc(100, s), s);
            rig.close();
        }
    }
}

/// The same, where memory is wanted ahead and all of what was freed eagerly is just as much.
#[test]
fn what_is_mapped_ahead_may_still_be_in_use() {
    for seed in 1..6 {
        let rig = Rig::new(late(seed, GIB), page_extents());
        let (s, t) = (rig.stream(), rig.stream());
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let block = || [(rig.malloc(16 * MIB, s), 16 * MIB)];
        let route = begin(&rig, &arena, s);
        let eager = block();
        work(&rig, s, "eager", 1, &eager);
        rig.free(eager[0].0, s);
        rig.pool.end_route(&route);
        let route = rig.pool.begin_route(&arena, WhichStreams::Handle(s), 16 * MIB, None).unwrap();
        rig.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
        let captured = block();
        work(&rig, s, "graph", 2, &captured);
        rig.free(captured[0].0, s);
        let graph = rig.host.capture_end(D, s).unwrap();
        rig.pool.end_route(&route);
        rig.host.graph_launch(D, graph, t).unwrap();
        rig.sync();
        assert!(rig.host.reports().is_empty(), "{seed}: {:#?}", rig.host.reports());
        rig.host.graph_destroy(D, graph).unwrap();
        rig.pool.release_arena(&arena);
        rig.free(rig.malloc(100, s), s);
        rig.close();
    }
}

/// An eager run that is over before the capture begins leaves it its memory.
#[test]
fn a_capture_after_a_finished_eager_run_needs_nothing_more() {
    let rig = Rig::new(checked(GIB), page_extents());
    let s = rig.stream();
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    let route = begin(&rig, &arena, s);
    for _ in 0..3 {
        blocks(&rig, s).iter().for_each(|b| rig.free(b.0, s));
    }
    rig.pool.end_route(&route);
    let mapped = rig.pool.arena_stats(&arena).mapped;
    let route = begin(&rig, &arena, s);
    rig.sync();
    rig.host.begin_capture(s).unwrap();
    let large: Vec<u64> = SIZES[2..].iter().map(|&n| rig.malloc(n, s)).collect();
    large.iter().for_each(|&p| rig.free(p, s));
    assert!(rig.host.end_capture(s).unwrap(), "the capture was lost");
    rig.pool.end_route(&route);
    assert_eq!(rig.pool.arena_stats(&arena).mapped, mapped);
    rig.pool.release_arena(&arena);
    rig.free(rig.malloc(100, s), s);
    rig.close();
}

/// Captures of one arena, aborted in every order.
#[test]
fn an_abort_frees_what_its_own_capture_allocated() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let rig = Rig::new(checked(GIB), page_extents());
        let s = rig.stream();
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let made: Vec<_> = (0..3)
            .map(|_| {
                let route = begin(&rig, &arena, s);
                let blocks = blocks(&rig, s);
                rig.pool.end_route(&route);
                (route, blocks)
            })
            .collect();
        for (i, &which) in order.iter().enumerate() {
            rig.pool.abort_route(&made[which].0);
            for (other, (_, blocks)) in made.iter().enumerate() {
                let live = blocks.iter().filter(|b| rig.pool.info(b.0).is_ok()).count();
                let gone = order[..=i].contains(&other);
                assert_eq!(live, if gone { 0 } else { SIZES.len() }, "{which} aborted, of {other}");
            }
            rig.books();
        }
        rig.pool.release_arena(&arena);
        rig.free(rig.malloc(100, s), s);
        rig.close();
    }
}

/// What waits for the context gets its marker again although nobody names the captured stream any
/// more; and a capture in progress is not taken for one of the arena that goes.
#[test]
fn a_released_arena_leaves_no_capture_behind() {
    for another in [false, true] {
        let rig = Rig::new(checked(GIB), page_extents());
        let (s, t) = (rig.stream(), rig.stream());
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let route = begin(&rig, &arena, s);
        rig.host.begin_capture(s).unwrap();
        let p = rig.malloc(64 * MIB, s);
        rig.free(p, s);
        assert!(rig.host.end_capture(s).unwrap());
        rig.pool.end_route(&route);
        let other = rig.pool.open_arena(GraphArenaOptions::default());
        let route = another.then(|| {
            let route = begin(&rig, &other, s);
            rig.host.begin_capture(s).unwrap();
            rig.free(rig.malloc(MIB, s), s);
            route
        });
        rig.pool.release_arena(&arena);
        let mapped = rig.mapped();
        for _ in 0..3 {
            rig.free(rig.malloc(64 * MIB, t), t);
        }
        match route {
            None => assert!(rig.mapped() <= mapped, "{}", rig.pool.dump()),
            Some(route) => {
                assert!(rig.host.end_capture(s).unwrap(), "the capture was lost");
                rig.pool.end_route(&route);
            }
        }
        rig.pool.release_arena(&other);
        rig.close();
    }
}

/// A capture is announced, and has not begun when memory that only the context can settle is
/// trimmed: the marker of the trim says nothing about it. Once it has begun, what else waits for
/// the context waits for its end. So does the second capture of a route.
#[test]
fn an_announced_capture_outlasts_a_trim_before_it_begins() {
    let rounds =
        [(true, false, 0), (true, true, 0), (true, false, 1), (true, true, 2), (false, false, 0), (false, true, 0)];
    for (a_route, is_seen, earlier) in rounds {
        let rig = Rig::new(checked(GIB), page_extents());
        let (s, t) = (rig.stream(), rig.stream());
        // Freed by a stream that is gone, whose handle another one has: only a marker of the
        // context settles it.
        let leave = || {
            let gone = rig.stream();
            rig.free(rig.malloc(64 * MIB, gone), gone);
            rig.host.stream_destroy(D, gone).unwrap();
            rig.free(rig.malloc(100, rig.stream()), t);
        };
        let arena = rig.pool.open_arena(GraphArenaOptions::default());
        let route = a_route.then(|| begin(&rig, &arena, s));
        let expected = (!a_route).then(|| rig.pool.expect_capture(s));
        for _ in 0..earlier {
            rig.host.begin_capture(s).unwrap();
            rig.free(rig.malloc(MIB, s), s);
            assert!(rig.host.end_capture(s).unwrap());
            rig.free(rig.malloc(MIB, s), s);
        }
        leave();
        rig.pool.trim(0).unwrap();
        rig.host.begin_capture(s).unwrap();
        if is_seen {
            rig.free(rig.malloc(MIB, s), s);
        }
        leave();
        assert!(rig.host.end_capture(s).unwrap(), "the capture was lost");
        // After it ends, it stands in nobody's way.
        match (&route, expected) {
            (Some(route), _) => rig.pool.end_route(route),
            (None, Some(_)) => rig.pool.capture_ended(s),
            (None, None) => unreachable!("one or the other announced it"),
        }
        rig.free(rig.malloc(100, s), s);
        rig.sync();
        rig.pool.trim(0).unwrap();
        rig.pool.release_arena(&arena);
        rig.close();
    }
}

/// What is shrunk, or grows within what it was, takes its place in the order of the allocations
/// alike in both runs.
#[test]
fn a_layout_fits_a_run_that_reallocates() {
    let rig = Rig::new(checked(GIB), page_extents());
    let s = rig.stream();
    let run = || {
        let a = rig.malloc(8 * MIB, s);
        let mut a = rig.pool.realloc(a, 2 * MIB, s).unwrap();
        for size in [2 * MIB - 100, 2 * MIB, 2 * MIB + 4096, 3 * MIB, 3 * MIB - 4096, 3 * MIB - 1000, MIB] {
            a = rig.pool.realloc(a, size, s).unwrap();
        }
        // Found in a place that is a little too large, with a layout it has its own.
        let (hole, guard) = (rig.malloc(2 * MIB + 512, s), rig.malloc(2 * MIB, s));
        rig.free(hole, s);
        let b = rig.malloc(2 * MIB, s);
        let b = rig.pool.realloc(b, 2 * MIB + 512, s).unwrap();
        let all: Vec<u64> = (0..10).map(|i| rig.malloc((1 + i) * MIB, s)).collect();
        all.iter().chain([&a, &b, &guard]).for_each(|&p| rig.free(p, s));
    };
    let record = GraphArenaOptions { record: true, ..GraphArenaOptions::default() };
    let recorded = Capture::begin(&rig.pool, s, CaptureOptions { arena: record, ..CaptureOptions::default() }).unwrap();
    run();
    recorded.end(&rig.pool);
    let layout = CaptureOptions { layout: Some(&recorded), ..CaptureOptions::default() };
    let laid_out = Capture::begin(&rig.pool, s, layout).unwrap();
    run();
    laid_out.end(&rig.pool);
    let stats = laid_out.stats(&rig.pool).arena;
    assert_eq!((stats.deviations, stats.allocations), (0, recorded.stats(&rig.pool).arena.allocations), "{stats:?}");
    for c in [laid_out, recorded] {
        c.release(&rig.pool).unwrap();
    }
    rig.close();
}

/// Addresses kept for a capture are its own: a span that grows up to them stops there.
#[test]
fn others_do_not_grow_into_the_room_of_a_capture() {
    const ROOM: u64 = 128 * MIB;
    let reserve = GraphArenaOptions { reserve: ROOM, ..GraphArenaOptions::default() };
    // The first round tells where the room is, the second fills what is in front of it.
    let mut distance = None;
    for _ in 0..2 {
        let rig = Rig::new(checked(GIB), PoolOptions { va_size: GIB, ..page_extents() });
        let (s, t) = (rig.stream(), rig.stream());
        let base = rig.malloc(2 * MIB, s);
        let arena = rig.pool.open_arena(reserve);
        let route = begin(&rig, &arena, t);
        let mut grown = base;
        if let Some(distance) = distance {
            let mut size = 2 * MIB;
            while grown == base && size < distance + ROOM / 2 {
                size += 2 * MIB;
                grown = rig.pool.realloc(base, size, s).unwrap();
            }
            assert_ne!(grown, base, "it grew into the room");
            assert!(size > distance, "it stopped before");
        }
        let first = rig.malloc(2 * MIB, t);
        assert_eq!(*distance.get_or_insert(first - base), first - base);
        for at in (2 * MIB..ROOM).step_by(2 * MIB as usize) {
            assert_eq!(rig.malloc(2 * MIB, t), first + at, "it grows in place");
        }
        let stats = rig.pool.arena_stats(&arena);
        assert_eq!((stats.reserved, stats.mapped), (ROOM, ROOM));
        rig.books();
        rig.pool.abort_route(&route);
        rig.pool.release_arena(&arena);
        rig.free(grown, s);
        rig.free(rig.malloc(100, t), t);
        rig.close();
    }
}

/// The detector does not unmap what a graph keeps, whether the stream was captured already when it
/// was allocated or not.
#[test]
fn no_memory_of_a_capture_is_unmapped() {
    let mode = DebugMode { check: true, abort: false, poison: false, unmap: true };
    let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..checked(GIB) }).unwrap();
    let ctx = Context::new(host.clone(), Config { arena_debug: mode, log: 0, ..Config::default() }).unwrap();
    let (s, t) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
    let malloc = |size, stream| ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let c = ctx.capture_begin(s, CaptureOptions::default()).unwrap();
    let early = malloc(3 * MIB, s);
    let other = malloc(3 * MIB, t);
    host.begin_capture(s).unwrap();
    let late = malloc(3 * MIB, s);
    assert!(host.end_capture(s).unwrap());
    ctx.capture_end(&c).unwrap();
    assert_eq!(ctx.capture_stats(&c).unwrap().arena.allocations, 2);
    assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, 3);
    // Seen not to be captured any more.
    ctx.free_async(malloc(100, s), s).unwrap();
    ctx.trim(0).unwrap();
    let touch = |p| {
        let before = host.reports().len();
        let done = host.set_async(D, p, 1, MIB, s).and_then(|()| host.device_sync(D));
        done.is_ok() && host.reports().len() == before
    };
    assert!(touch(early) && touch(late), "a graph uses them yet");
    assert!(!touch(other), "what is not of the capture is unmapped");
}

/// A capture whose stream is destroyed before its end claims what the next stream of the handle
/// captures, as which stream that is cannot be asked; it ends when that stream is named idle.
#[test]
fn an_abandoned_capture_ends_when_the_next_stream_is_named_idle() {
    let rig = Rig::new(checked(GIB), page_extents());
    let s = rig.stream();
    let arena = rig.pool.open_arena(GraphArenaOptions::default());
    let route = begin(&rig, &arena, s);
    rig.free(rig.malloc(3 * MIB, s), s);
    rig.host.stream_destroy(D, s).unwrap();
    let next = rig.stream();
    assert_eq!(next, s, "the handle comes back");
    rig.host.begin_capture(next).unwrap();
    rig.free(rig.malloc(3 * MIB, next), next);
    assert!(!route.is_over());
    assert_eq!(rig.pool.arena_stats(&arena).allocations, 2, "its graph needs the arena, too");
    assert!(rig.host.end_capture(next).unwrap());
    rig.free(rig.malloc(3 * MIB, next), next);
    assert!(route.is_over());
    assert_eq!(rig.pool.arena_stats(&arena).allocations, 2, "ordinary memory");
    rig.pool.release_arena(&arena);
    rig.close();
}

//! What an arena's end keeps from being handed out, next to everything else that happens to memory:
//! captures, recorded streams, frees by id, limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::arena_support;

use arena_support::{malloc, D};
use gpumem::arena::capture::CaptureOptions;
use gpumem::arena::DebugMode;
use gpumem::base::size::{GIB, MIB};
use gpumem::base::DeviceId;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{CaptureMode, Driver};
use gpumem::pool::{AllocFlags, Scope, ScopeChange};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

const CHECK: DebugMode = DebugMode { check: true, abort: false, poison: false, unmap: false };
const POISON: DebugMode = DebugMode { poison: true, ..CHECK };

fn with(arena_debug: DebugMode) -> (Arc<HostDriver>, Context) {
    let options = HostOptions { bytes_per_device: 4 * GIB, check: true, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    (host.clone(), Context::new(host, Config { arena_debug, log: 0, ..Config::default() }).unwrap())
}

fn kept(ctx: &Context) -> u64 {
    ctx.detector().unwrap().stats().kept
}

fn clean(host: &HostDriver, ctx: &Context) {
    ctx.validate().unwrap();
    assert!(host.reports().is_empty(), "{:?}", host.reports());
}

/// A graph writes to its temporaries each time it is launched, also when the arena that they were
/// allocated in has ended.
#[test]
fn the_temporaries_of_a_graph_are_not_poisoned() {
    let (host, ctx) = with(POISON);
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let eager = malloc(&ctx, 3 * MIB, s);
    let c = ctx.capture_begin(s, CaptureOptions::default()).unwrap();
    host.capture_begin(D, s, CaptureMode::Global).unwrap();
    let temporaries = [300, 3 * MIB].map(|n| {
        let p = malloc(&ctx, n, s);
        host.launch(D, s, Kernel::write_pattern("write", p..p + n, 1, 64)).unwrap();
        p
    });
    let graph = host.capture_end(D, s).unwrap();
    ctx.capture_end(&c).unwrap();
    // The pool learns that the capture is over.
    ctx.free_async(malloc(&ctx, 100, s), s).unwrap();
    assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, 3);
    assert_eq!(kept(&ctx), 1, "what was eager");
    for p in temporaries.into_iter().chain([eager]) {
        assert!(ctx.check(p, "op", "x").is_err() && ctx.free(p).is_err());
    }
    for _ in 0..3 {
        host.graph_launch(D, graph, s).unwrap();
        ctx.arena_verify().unwrap();
    }
    host.graph_destroy(D, graph).unwrap();
    assert!(ctx.capture_release(&c).unwrap());
    ctx.trim(0).unwrap();
    assert_eq!((kept(&ctx), ctx.stats(D).unwrap().allocations), (0, 0));
    clean(&host, &ctx);
}

/// The abort of a capture frees what it allocated and is live: not what its arena's end has in hand
/// already, of which it would make somebody else's memory while that still looks after it.
#[test]
fn the_abort_of_a_capture_leaves_alone_what_an_exit_has_taken() {
    let (host, ctx) = with(POISON);
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let c = ctx.capture_begin(s, CaptureOptions::default()).unwrap();
    let p = malloc(&ctx, 8 * MIB, s);
    ctx.capture_end(&c).unwrap();
    ctx.arena_exit(&arena, &[]).unwrap();
    ctx.capture_abort(&c).unwrap();
    host.device_sync(D).unwrap();
    let q = std::iter::repeat_with(|| malloc(&ctx, 8 * MIB, s)).take(200).find(|&q| q == p);
    let q = q.expect("the memory can be had again");
    host.set_async(D, q, 0x11, 8 * MIB, s).unwrap();
    ctx.arena_verify().unwrap();
    let mut bytes = [0u8; 16];
    host.copy_async(D, bytes.as_mut_ptr() as u64, q, 16, s).unwrap();
    host.stream_sync(D, s).unwrap();
    assert_eq!(bytes, [0x11; 16], "a live allocation keeps its contents");

    // The same while the exit is under way, step by step.
    let pool = ctx.pool(D).unwrap();
    let (scope, aside) = (Scope::new(1, None), Scope::of_reclaimed());
    let c = ctx.capture_begin(s, CaptureOptions::default()).unwrap();
    for n in [300, 3 * MIB] {
        let p = malloc(&ctx, n, s);
        assert!(matches!(pool.change_scope(p, None, Some(&scope)), ScopeChange::Moved(..)));
    }
    scope.close();
    assert_eq!(pool.move_scope(&scope, &aside, false).len(), 0);
    assert_eq!(pool.move_scope(&scope, &aside, true).len(), 2);
    ctx.capture_abort(&c).unwrap();
    assert_eq!(pool.free_scope(&aside).count, 2, "the abort has freed what the exit had taken");
    clean(&host, &ctx);
}

/// What the quarantine could not keep is neither filled nor read, and does not push out what it can
/// keep.
#[test]
fn what_there_is_no_room_for_is_not_touched() {
    let options = HostOptions { bytes_per_device: 4 * GIB, check: true, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    let config = Config { arena_debug: POISON, arena_quarantine: Some(32 * MIB), log: 0, ..Config::default() };
    let ctx = Context::new(host.clone(), config).unwrap();
    let s = host.stream_create(D).unwrap();
    let fills = || ctx.driver_calls().iter().find(|c| c.0 == "set_async").unwrap().1;
    let reads = || ctx.driver_calls().iter().find(|c| c.0 == "copy_async").unwrap().1;
    // Sizes of an arena's allocations, oldest first; and how many of them can be kept, which are
    // the newest.
    let cases: [(&[u64], u64); 6] = [
        (&[33 * MIB], 0),
        (&[GIB], 0),
        (&[8 * MIB, GIB, 8 * MIB], 2),
        (&[16 * MIB, 16 * MIB, 16 * MIB], 2),
        (&[32 * MIB, 100], 1),
        (&[100, 32 * MIB], 1),
    ];
    for (sizes, fit) in cases {
        ctx.trim(0).unwrap();
        let (filled, read, before) = (fills(), reads(), ctx.detector().unwrap().stats());
        assert_eq!(before.kept, 0);
        let arena = ctx.arena_enter("step").unwrap();
        for &size in sizes {
            malloc(&ctx, size, s);
        }
        assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, sizes.len() as u64);
        let after = ctx.detector().unwrap().stats();
        assert_eq!((fills() - filled, reads() - read, after.kept), (fit, 0, fit), "{sizes:?}");
        assert_eq!(after.unchecked - before.unchecked, sizes.len() as u64 - fit, "{sizes:?}");
        clean(&host, &ctx);
    }
    // What is kept already stays when something comes that is not.
    let exit = |size| {
        let arena = ctx.arena_enter("step").unwrap();
        malloc(&ctx, size, s);
        ctx.arena_exit(&arena, &[]).unwrap();
    };
    ctx.trim(0).unwrap();
    exit(16 * MIB);
    exit(GIB);
    assert_eq!(kept(&ctx), 1);
    clean(&host, &ctx);
}

/// What a stream that allocations were recorded on must outlive is the arena's end, not the
/// quarantine.
#[test]
fn a_recorded_stream_may_be_gone_once_its_memory_is_in_quarantine() {
    let (host, ctx) = with(POISON);
    let (s, u, v) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
    let asked = |ctx: &Context| ctx.driver_calls().iter().find(|c| c.0.contains("stream_id")).map_or(0, |c| c.1);
    // With no capture the exit waits for the stream; with one it does not.
    for capturing in [false, true] {
        let arena = ctx.arena_enter("step").unwrap();
        let (p, q) = (malloc(&ctx, 300, s), malloc(&ctx, 3 * MIB, s));
        for p in [p, q] {
            ctx.record_stream(p, u).unwrap();
            host.launch(D, u, Kernel::write_pattern("late", p..p + 300, 1, 4)).unwrap();
        }
        if capturing {
            host.begin_capture(v).unwrap();
            ctx.free_async(malloc(&ctx, 100, v), v).unwrap();
        }
        ctx.arena_exit(&arena, &[]).unwrap();
        assert_eq!(ctx.detector().unwrap().stats().unchecked, if capturing { 2 } else { 0 });
        if capturing {
            assert!(host.end_capture(v).unwrap());
            ctx.free_async(malloc(&ctx, 100, v), v).unwrap();
            host.stream_destroy(D, u).unwrap();
        }
        let before = asked(&ctx);
        ctx.trim(0).unwrap();
        assert_eq!((kept(&ctx), asked(&ctx)), (0, before), "capturing: {capturing}");
        // All of it can be had again.
        host.device_sync(D).unwrap();
        ctx.trim(0).unwrap();
        assert_eq!(ctx.stats(D).unwrap().mapped, 0);
        clean(&host, &ctx);
    }
}

/// What somebody takes out of an arena while that ends has either gone with it or lives: it is
/// never both.
#[test]
fn what_escapes_an_exit_is_never_stale() {
    const MANY: u64 = 400;
    let (host, ctx) = with(CHECK);
    let request = Request { size: 100, flags: AllocFlags::SINGLE_HANDLE, ..Request::default() };
    for _ in 0..20 {
        let arena = ctx.arena_enter("step").unwrap();
        let all: Vec<u64> = (0..MANY).map(|_| ctx.malloc(&request).unwrap()).collect();
        let together = Barrier::new(2);
        let (freed, escaped) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                together.wait();
                // The exit begins at the other end.
                all.iter().rev().copied().filter(|&p| ctx.arena_escape(p).is_ok()).collect::<Vec<_>>()
            });
            together.wait();
            (ctx.arena_exit(&arena, &[]).unwrap().freed, other.join().unwrap())
        });
        assert_eq!(freed + escaped.len() as u64, MANY);
        for p in escaped {
            ctx.check(p, "op", "x").unwrap();
            ctx.free(p).unwrap();
        }
    }
    assert_eq!(ctx.stats(D).unwrap().allocations, 0);
    clean(&host, &ctx);
}

#[test]
fn a_limit_that_takes_nothing_away_leaves_the_quarantine_alone() {
    let (host, ctx) = with(POISON);
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    malloc(&ctx, 3 * MIB, s);
    ctx.arena_exit(&arena, &[]).unwrap();
    assert!(ctx.set_limit(DeviceId(7), 1).is_err(), "there is no such device");
    for limit in [3 * GIB, 2 * GIB, 3 * GIB, 0] {
        ctx.set_limit(D, limit).unwrap();
        assert_eq!(kept(&ctx), 1);
    }
    ctx.set_limit(D, 2 * MIB).unwrap();
    assert_eq!(kept(&ctx), 0);
    assert!(ctx.stats(D).unwrap().mapped <= 2 * MIB);
    clean(&host, &ctx);
}

/// The checks that every other test ends with can fail: what is in quarantine must still be there.
#[test]
fn a_quarantine_that_has_lost_something_is_not_valid() {
    let (host, ctx) = with(POISON);
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let p = malloc(&ctx, 3 * MIB, s);
    let id = ctx.info(p).unwrap().id;
    ctx.arena_exit(&arena, &[]).unwrap();
    assert_eq!(kept(&ctx), 1);
    ctx.validate().unwrap();
    // Freed behind the quarantine's back.
    ctx.pool(D).unwrap().free_reclaimed(p, id).unwrap();
    let e = ctx.validate().unwrap_err();
    assert!(e.message.contains("is in quarantine and not kept"), "{e}");
}

/// A request for which there is no memory is not refused while another thread has what is in
/// quarantine in hand.
#[test]
fn memory_that_is_being_looked_at_can_be_had() {
    let options = HostOptions { bytes_per_device: 32 * MIB, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    let config = Config { arena_debug: POISON, arena_quarantine: Some(GIB), log: 0, ..Config::default() };
    let ctx = Context::new(host.clone(), config).unwrap();
    let s = host.stream_create(D).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                ctx.arena_verify().unwrap();
            }
        });
        for _ in 0..100 {
            let arena = ctx.arena_enter("step").unwrap();
            let made: Result<Vec<u64>, _> =
                (0..3).map(|_| ctx.malloc(&Request { size: 8 * MIB, stream: s, ..Request::default() })).collect();
            ctx.arena_exit(&arena, &[]).unwrap();
            if let Err(e) = made {
                stop.store(true, Relaxed);
                panic!("{e}");
            }
        }
        stop.store(true, Relaxed);
    });
    ctx.trim(0).unwrap();
    clean(&host, &ctx);
}

//! Arenas over the pools of one context, on the host device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::arena_support;

use arena_support::{live, malloc, D};
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::{AllocFlags, AllocRequest, Scope};
use std::sync::Arc;

const SIZES: [u64; 4] = [300, 40 * KIB, 200 * KIB, 5 * MIB];

fn context() -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::simulation(7) }).unwrap();
    (host.clone(), Context::new(host, Config::default()).unwrap())
}

#[test]
fn exit_frees_all_but_what_is_kept_and_nothing_else() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let before = malloc(&ctx, 1000, s);
    let outer = ctx.arena_enter("outer").unwrap();
    let in_outer = malloc(&ctx, 3 * MIB, s);
    let inner = ctx.arena_enter("inner").unwrap();
    assert_eq!((outer.depth(), inner.depth()), (0, 1));
    let all: Vec<u64> =
        SIZES.iter().flat_map(|&n| [malloc(&ctx, n, s), malloc(&ctx, n, StreamHandle::LEGACY)]).collect();
    let dedicated = |ctx: &Context| {
        let request = Request { size: 100, stream: s, flags: AllocFlags::SINGLE_HANDLE, ..Request::default() };
        ctx.malloc(&request).unwrap()
    };
    let (special, special_kept) = (dedicated(&ctx), dedicated(&ctx));
    let stats = ctx.arena_stats(&inner).unwrap();
    assert_eq!((stats.live, stats.live_bytes), (10, 2 * SIZES.iter().sum::<u64>() + 200));
    // One freed early, by its pointer.
    ctx.free(all[0]).unwrap();

    // Interior, twice, another arena's, an ordinary one, nothing, and freed already.
    let keep = [all[6] + 4096, special_kept, all[6], in_outer, before, 0, all[0], 12345];
    let report = ctx.arena_exit(&inner, &keep).unwrap();
    assert_eq!((report.kept, report.kept_bytes), (2, 5 * MIB + 100));
    assert_eq!((report.freed, report.freed_bytes), (7, 2 * SIZES.iter().sum::<u64>() - 300 - 5 * MIB + 100));
    assert_eq!((report.duplicate, report.foreign, report.unknown, report.depth), (1, 2, 2, 1));
    ctx.validate().unwrap();
    for p in all.iter().filter(|&&p| p != all[6]).chain([&special]) {
        assert_eq!(ctx.free(*p).unwrap_err().status, Status::DoubleFree, "freed once already");
    }
    // What was kept belongs to the arena around it now, and goes with that.
    let stats = ctx.arena_stats(&outer).unwrap();
    assert_eq!((stats.live, stats.joined, stats.left), (3, 3, 0));
    assert_eq!(ctx.arena_of(all[6]).unwrap().unwrap().id(), outer.id());
    let report = ctx.arena_exit(&outer, &[all[6]]).unwrap();
    assert_eq!((report.freed, report.kept), (2, 1));
    // At the outermost level it becomes ordinary.
    assert!(ctx.arena_of(all[6]).unwrap().is_none());
    assert_eq!(live(&ctx), (2, 1000 + 5 * MIB));
    ctx.free(all[6]).unwrap();
    ctx.free(before).unwrap();
    ctx.validate().unwrap();
    assert_eq!(live(&ctx), (0, 0));
}

#[test]
fn sixty_four_buffers_never_released_in_four_nested_rounds() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let base = live(&ctx);
    let mut kept = Vec::new();
    for round in 0..4u64 {
        let arenas: Vec<_> = (0..4).map(|i| ctx.arena_enter(&format!("round {round} level {i}")).unwrap()).collect();
        let all: Vec<u64> = (0..64).map(|i| malloc(&ctx, 1000 + 5000 * i, s)).collect();
        host.set_async(D, all[17], 0x5a, 1000, s).unwrap();
        let mut keep = vec![all[17]];
        for (i, arena) in arenas.iter().enumerate().rev() {
            let report = ctx.arena_exit(arena, &keep).unwrap();
            assert_eq!(report.freed, if i == 3 { 63 } else { 0 });
            assert_eq!((report.kept, report.unknown), (1, 0));
        }
        kept.append(&mut keep);
        assert_eq!(live(&ctx), (base.0 + round + 1, base.1 + (round + 1) * 86_000));
    }
    host.stream_sync(D, s).unwrap();
    for p in kept {
        let mut bytes = [0u8; 1000];
        host.copy_async(D, bytes.as_mut_ptr() as u64, p, 1000, s).unwrap();
        host.stream_sync(D, s).unwrap();
        assert!(bytes.iter().all(|&b| b == 0x5a), "a kept buffer has kept its contents");
        ctx.free(p).unwrap();
    }
    assert_eq!(live(&ctx), base);
    ctx.validate().unwrap();
    assert!(host.reports().is_empty(), "{:?}", host.reports());
}

#[test]
fn twice_the_steps_need_no_more() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let run = |steps: usize| {
        for step in 0..steps {
            let arena = ctx.arena_enter("step").unwrap();
            for i in 0..50u64 {
                malloc(&ctx, (i * 7919 + 1) % 300 * KIB, s);
            }
            assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, 50, "step {step}");
        }
        let stats = ctx.stats(D).unwrap();
        (stats.allocations, stats.requested, stats.mapped)
    };
    let once = run(20);
    assert_eq!((once.0, once.1), (0, 0));
    assert_eq!(run(40), once);
}

#[test]
fn unbalanced_doubled_and_foreign_exits_are_refused_and_change_nothing() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let outer = ctx.arena_enter("outer").unwrap();
    let inner = ctx.arena_enter("inner").unwrap();
    let p = malloc(&ctx, 1000, s);
    let refused = |result: Result<_, gpumem::base::Error>, says: &str| {
        let e = result.map(|_: gpumem::arena::ExitReport| ()).unwrap_err();
        assert_eq!(e.status, Status::Invalid);
        assert!(e.message.contains(says), "{}", e.message);
        assert_eq!(live(&ctx), (1, 1000));
    };
    refused(ctx.arena_exit(&outer, &[]), "not this thread's current arena");
    std::thread::scope(|scope| {
        scope.spawn(|| refused(ctx.arena_exit(&inner, &[]), "not attached")).join().unwrap();
        // Attached on a second thread: nobody can exit it until that one detaches.
        scope
            .spawn(|| {
                ctx.arena_attach(&inner).unwrap();
                refused(ctx.arena_exit(&inner, &[]), "other threads (1) are attached");
                refused(ctx.arena_abort(&inner), "other threads (1) are attached");
                // The thread ends without detaching, which detaches it.
            })
            .join()
            .unwrap();
    });
    ctx.arena_attach(&outer).unwrap_err();
    assert_eq!(ctx.arena_exit(&inner, &[p]).unwrap().kept, 1);
    refused(ctx.arena_exit(&inner, &[]), "exited already");
    refused(ctx.arena_abort(&inner), "exited already");
    assert!(ctx.arena_stats(&inner).is_err() && ctx.arena_attach(&inner).is_err() && ctx.arena_detach(&inner).is_err());
    assert_eq!(ctx.arena_exit(&outer, &[]).unwrap().freed, 1);
    assert_eq!((ctx.arena_count(), live(&ctx)), (0, (0, 0)));
}

#[test]
fn an_arena_is_handed_from_thread_to_thread() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("handed over").unwrap();
    let mine = malloc(&ctx, 1000, s);
    ctx.arena_detach(&arena).unwrap();
    let outside = malloc(&ctx, 2000, s);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            ctx.arena_attach(&arena).unwrap();
            let inner = ctx.arena_enter("inner").unwrap();
            malloc(&ctx, 100, s);
            ctx.arena_abort(&inner).unwrap();
            let theirs = malloc(&ctx, 3000, s);
            let report = ctx.arena_exit(&arena, &[theirs]).unwrap();
            assert_eq!((report.freed, report.kept), (1, 1));
            theirs
        });
        ctx.free(there.join().unwrap()).unwrap();
    });
    assert_eq!(ctx.free(mine).unwrap_err().status, Status::DoubleFree);
    ctx.free(outside).unwrap();
    assert_eq!(live(&ctx), (0, 0));
}

#[test]
fn abort_takes_what_was_left_open_inside_with_it() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let outer = ctx.arena_enter("outer").unwrap();
    let middle = ctx.arena_enter("middle").unwrap();
    malloc(&ctx, 1000, s);
    let inner = ctx.arena_enter("inner").unwrap();
    malloc(&ctx, 5 * MIB, s);
    ctx.arena_detach(&inner).unwrap();
    let inside = format!("inside (1, arena {} \"inner\" (depth 2) among them)", inner.id());
    let refused = ctx.arena_exit(&middle, &[]).unwrap_err().message;
    assert!(refused.contains(&inside) && refused.contains("abort this one, which ends them too"), "{refused}");
    ctx.arena_attach(&inner).unwrap();
    let report = ctx.arena_abort(&middle).unwrap();
    assert_eq!((report.freed, report.freed_bytes, report.kept, report.depth), (2, 1000 + 5 * MIB, 0, 1));
    assert!(ctx.arena_stats(&inner).is_err());
    assert_eq!(ctx.arena_current().unwrap().id(), outer.id());
    malloc(&ctx, 1, s);
    assert_eq!(ctx.arena_exit(&outer, &[]).unwrap().freed, 1);
    assert_eq!((ctx.arena_count(), live(&ctx)), (0, (0, 0)));
}

#[test]
fn promote_escape_and_the_arena_by_name() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let outer = ctx.arena_enter("outer").unwrap();
    let inner = ctx.arena_enter("inner").unwrap();
    let (promoted, escaped) = (malloc(&ctx, 1000, s), malloc(&ctx, 3 * MIB, s));
    let named = ctx.malloc(&Request { size: 10, stream: s, arena: Some(&outer), ..Request::default() }).unwrap();
    ctx.arena_promote(promoted + 5).unwrap();
    ctx.arena_escape(escaped + MIB).unwrap();
    ctx.arena_escape(escaped).unwrap();
    assert!(ctx.arena_promote(escaped).unwrap_err().message.contains("in no arena"));
    assert_eq!(ctx.arena_promote(1234).unwrap_err().status, Status::UnknownPointer);
    let stats = ctx.arena_stats(&inner).unwrap();
    assert_eq!((stats.live, stats.joined, stats.left, stats.promoted, stats.peak_bytes), (0, 2, 2, 2, 1000 + 3 * MIB));
    for (p, arena) in [(promoted, Some(outer.id())), (escaped, None), (named, Some(outer.id()))] {
        assert_eq!(ctx.arena_of(p).unwrap().map(|a| a.id()), arena);
    }
    assert_eq!(ctx.arena_exit(&inner, &[]).unwrap().freed, 0);
    assert_eq!(ctx.arena_exit(&outer, &[]).unwrap().freed, 2);
    let request = Request { size: 10, stream: s, arena: Some(&inner), ..Request::default() };
    assert!(ctx.malloc(&request).unwrap_err().message.contains("exited already"));
    assert_eq!(live(&ctx), (1, 3 * MIB));
    ctx.free(escaped).unwrap();
    ctx.validate().unwrap();
}

#[test]
fn a_resized_allocation_stays_where_it_belongs() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let constant = malloc(&ctx, 1000, s);
    let outer = ctx.arena_enter("outer").unwrap();
    let in_outer = [1000, 100 * KIB, 3 * MIB].map(|n| malloc(&ctx, n, s));
    let inner = ctx.arena_enter("inner").unwrap();
    let constant = ctx.realloc(constant, 200_000, s).unwrap();
    let grown = in_outer.map(|p| ctx.realloc(p, 20 * MIB, s).unwrap());
    let shrunk = grown.map(|p| ctx.realloc(p, 500, s).unwrap());
    assert_eq!(ctx.arena_stats(&outer).unwrap().live_bytes, 1500);
    assert_eq!(ctx.arena_exit(&inner, &[]).unwrap().freed, 0);
    for p in shrunk {
        assert_eq!(ctx.arena_of(p).unwrap().unwrap().id(), outer.id());
    }
    let report = ctx.arena_exit(&outer, &[]).unwrap();
    assert_eq!((report.freed, report.freed_bytes), (3, 1500));
    assert_eq!(live(&ctx), (1, 200_000));
    ctx.free(constant).unwrap();
    ctx.validate().unwrap();
}

#[test]
fn a_finalizer_frees_only_what_it_was_made_for() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    for (size, flags) in [(1000, 0), (300 * KIB, 0), (100, AllocFlags::SINGLE_HANDLE.0)] {
        let request = Request { size, stream: s, flags: AllocFlags(flags), ..Request::default() };
        let arena = ctx.arena_enter("").unwrap();
        let p = ctx.malloc(&request).unwrap();
        let id = ctx.info(p).unwrap().id;
        ctx.arena_exit(&arena, &[]).unwrap();
        let late = ctx.stats(D).unwrap().late_frees;
        assert!(!ctx.free_id(p, id, None).unwrap(), "freed by the exit");
        host.stream_sync(D, s).unwrap();
        // The address lives again.
        let again: Vec<u64> = (0..4).map(|_| ctx.malloc(&request).unwrap()).collect();
        assert!(flags != 0 || again.contains(&p));
        assert!(!ctx.free_id(p, id, Some(s)).unwrap());
        assert_eq!(ctx.stats(D).unwrap().late_frees, late + 2);
        for p in again {
            let id = ctx.info(p).unwrap().id;
            assert!(ctx.free_id(p, id, Some(s)).unwrap());
            assert!(!ctx.free_id(p, id, Some(s)).unwrap());
            assert_eq!(ctx.free(p).unwrap_err().status, Status::DoubleFree, "a bare late free is an error");
        }
        assert_eq!(ctx.free_id(4096, id, None).unwrap_err().status, Status::UnknownPointer);
    }
    assert_eq!(live(&ctx), (0, 0));
    ctx.validate().unwrap();
}

/// Whatever the heap has of an arena that has been closed already, what is allocated then belongs
/// to the one around it.
#[test]
fn nothing_joins_an_arena_that_is_closed() {
    let (host, ctx) = context();
    let s = host.stream_create(D).unwrap();
    let pool = ctx.pool(D).unwrap();
    let outer = Scope::new(1, None);
    let inner = Scope::new(2, Some(outer.clone()));
    let make = |size: u64, flags: AllocFlags| {
        let req = AllocRequest { size, stream: s, flags, scope: Some(&inner), ..AllocRequest::default() };
        pool.malloc_search(&req).unwrap()
    };
    let all = || {
        let dedicated = make(100, AllocFlags::SINGLE_HANDLE);
        SIZES.map(|n| make(n, AllocFlags::default())).into_iter().chain([dedicated]).collect::<Vec<u64>>()
    };
    let of = |p: u64| pool.scope_containing(p).unwrap().unwrap();
    let before = all();
    inner.close();
    let after = all();
    // By the short way, too.
    let short = pool.malloc_hit_in(300, s, &inner).unwrap().get();
    assert!(before.iter().all(|&p| Arc::ptr_eq(&of(p), &inner)));
    assert!(after.iter().chain([&short]).all(|&p| Arc::ptr_eq(&of(p), &outer)));
    assert_eq!(pool.free_scope(&inner).count, 5);
    assert_eq!((inner.live_bytes(), pool.scope_counts(&outer).joined), (0, 5));
    outer.close();
    assert_eq!(pool.free_scope(&outer).count, 6);
    // With both closed it is in none.
    let p = make(300, AllocFlags::default());
    assert!(pool.scope_containing(p).unwrap().is_none());
    ctx.free(p).unwrap();
    assert_eq!(live(&ctx), (0, 0));
    ctx.validate().unwrap();
}

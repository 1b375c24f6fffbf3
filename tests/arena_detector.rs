//! The detector of late uses of what arenas have freed, on the host device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::DebugMode;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

const D: DeviceId = DeviceId(0);
const SIZES: [u64; 4] = [300, 40 * KIB, 200 * KIB, 5 * MIB];
const CHECK: DebugMode = DebugMode { check: true, abort: false, poison: false, unmap: false };

fn context(config: Config) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::simulation(7) }).unwrap();
    (host.clone(), Context::new(host, config).unwrap())
}

fn with(mode: DebugMode) -> (Arc<HostDriver>, Context) {
    context(Config { arena_debug: mode, log: 0, ..Config::default() })
}

fn malloc(ctx: &Context, size: u64, stream: StreamHandle) -> u64 {
    ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap()
}

fn id(ctx: &Context, ptr: u64) -> u64 {
    ctx.info(ptr).unwrap().id
}

fn live(ctx: &Context) -> (u64, u64) {
    let s = ctx.stats(D).unwrap();
    (s.allocations, s.requested)
}

/// The text of the error that a use gives.
fn stale(used: gpumem::base::Result<()>) -> String {
    let e = used.expect_err("a stale use was not found");
    assert_eq!(e.status, Status::UseAfterFree);
    e.message
}

#[test]
fn a_late_use_is_found_and_named() {
    let (host, ctx) = with(CHECK);
    let s = host.stream_create(D).unwrap();
    let before = malloc(&ctx, 1000, s);
    let outer = ctx.arena_enter("outer").unwrap();
    let inner = ctx.arena_enter("step").unwrap();
    let mut all: Vec<(u64, u64)> = SIZES.iter().map(|&n| (malloc(&ctx, n, s), n)).collect();
    let special = Request { size: 100, stream: s, flags: AllocFlags::SINGLE_HANDLE, tag: 9, ..Request::default() };
    all.push((ctx.malloc(&special).unwrap(), 100));
    let ids: Vec<u64> = all.iter().map(|&(p, _)| id(&ctx, p)).collect();
    let kept = malloc(&ctx, 7000, s);
    let escaped = malloc(&ctx, 7000, s);
    ctx.arena_escape(escaped).unwrap();
    for &(p, _) in &all {
        ctx.check(p, "add", "lhs").unwrap();
    }
    let report = ctx.arena_exit(&inner, &[kept]).unwrap();
    assert_eq!((report.freed, report.freed_bytes), (5, SIZES.iter().sum::<u64>() + 100), "as with no detector");
    for (&(p, n), &id) in all.iter().zip(&ids) {
        let tag = if n == 100 { ", tag 9" } else { "" };
        let want = format!(
            "was reclaimed by arena_exit at depth 1 (arena {} \"step\", allocation {id} of {n} bytes{tag})",
            inner.id()
        );
        assert_eq!(stale(ctx.check(p, "add", "lhs")), format!("use-after-arena-free: add lhs {want}"));
        assert_eq!(stale(ctx.check(p + n - 1, "mul", "?")), format!("use-after-arena-free: mul ? {want}"));
        assert_eq!(stale(ctx.check_id(p, id, "mul", "rhs")), format!("use-after-arena-free: mul rhs {want}"));
        assert_eq!(ctx.free(p).unwrap_err().status, Status::DoubleFree);
        assert!(ctx.info_containing(p + n - 1).is_err());
    }
    let said = ctx.detector().unwrap().describe(all[3].0 + 4096).unwrap();
    assert!(said.contains("is 4096 bytes into allocation") && said.ends_with("by arena_exit at depth 1"), "{said}");
    // What was kept, what escaped, what is ordinary, and what is nothing.
    for p in [kept, kept + 6999, escaped, before, 0, 12345] {
        ctx.check(p, "add", "lhs").unwrap();
        assert!(ctx.detector().unwrap().describe(p).is_none());
    }
    ctx.arena_exit(&outer, &[]).unwrap();
    assert!(stale(ctx.check(kept, "add", "lhs")).contains("depth 0"));
    ctx.free(before).unwrap();
    ctx.free(escaped).unwrap();
    let stats = ctx.detector().unwrap().stats();
    assert_eq!((stats.remembered, stats.stale_uses, live(&ctx)), (6, 16, (0, 0)));
    ctx.validate().unwrap();
}

#[test]
fn off_there_is_nothing_and_an_allocation_costs_what_it_did() {
    let (host, ctx) = with(DebugMode::default());
    let s = host.stream_create(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let p = malloc(&ctx, 1000, s);
    let id = id(&ctx, p);
    ctx.arena_exit(&arena, &[]).unwrap();
    ctx.check(p, "add", "lhs").unwrap();
    ctx.check_id(p, id, "add", "lhs").unwrap();
    assert!(ctx.detector().is_none());
    // Without a pool there are no arenas, so no detector either.
    let (_, ctx) = context(Config { arena_debug: CHECK, pool: false, ..Config::default() });
    assert!(ctx.detector().is_none());
}

#[test]
fn an_address_that_lives_again_is_nobodys_stale_use_but_its_old_id_is() {
    let (host, ctx) = with(CHECK);
    let s = host.stream_create(D).unwrap();
    for n in SIZES {
        let arena = ctx.arena_enter("step").unwrap();
        let p = malloc(&ctx, n, s);
        let old = id(&ctx, p);
        ctx.arena_exit(&arena, &[]).unwrap();
        // In an arena or in none, by the fast way or by the long one.
        for in_arena in [false, true] {
            let arena = in_arena.then(|| ctx.arena_enter("again").unwrap());
            let request = Request { size: n, stream: s, tag: u64::from(in_arena), ..Request::default() };
            let again = ctx.malloc(&request).unwrap();
            assert_eq!(again, p);
            ctx.check(p, "add", "lhs").unwrap();
            ctx.check(p + n - 1, "add", "lhs").unwrap();
            ctx.check_id(p, id(&ctx, p), "add", "lhs").unwrap();
            assert!(stale(ctx.check_id(p, old, "add", "lhs")).contains(&format!("allocation {old} of {n} bytes")));
            match arena {
                Some(arena) => drop(ctx.arena_exit(&arena, &[]).unwrap()),
                None => ctx.free(p).unwrap(),
            }
        }
        assert!(stale(ctx.check(p, "add", "lhs")).contains("\"again\""));
    }
    // Freed with no arena at all.
    let p = malloc(&ctx, 100, s);
    let old = id(&ctx, p);
    ctx.free(p).unwrap();
    ctx.check(p, "add", "lhs").unwrap();
    let text = stale(ctx.check_id(p, old, "add", "lhs"));
    assert!(text.starts_with(&format!("use-after-free: add lhs is allocation {old} at")), "{text}");
    assert!(text.ends_with("which is gone"), "{text}");
    let again = malloc(&ctx, 100, s);
    let text = stale(ctx.check_id(p, old, "add", "lhs"));
    assert!(text.ends_with(&format!("allocation {} has its address now", id(&ctx, again))), "{text}");
}

#[test]
fn growing_in_place_takes_stale_addresses_too() {
    let (host, ctx) = with(CHECK);
    let s = host.stream_create(D).unwrap();
    let p = malloc(&ctx, MIB, s);
    let arena = ctx.arena_enter("").unwrap();
    let behind = malloc(&ctx, MIB, s);
    assert_eq!(behind, p + MIB);
    ctx.arena_exit(&arena, &[]).unwrap();
    stale(ctx.check(behind, "add", "lhs"));
    assert_eq!(ctx.realloc(p, MIB + MIB / 2, s).unwrap(), p);
    ctx.check(behind, "add", "lhs").unwrap();
    stale(ctx.check(behind + MIB / 2, "add", "lhs"));
    ctx.free(p).unwrap();
}

#[test]
fn aborted_arenas_are_told_from_exited_ones() {
    let (host, ctx) = with(CHECK);
    let s = host.stream_create(D).unwrap();
    let outer = ctx.arena_enter("").unwrap();
    let in_outer = malloc(&ctx, 100, s);
    let inner = ctx.arena_enter("inner").unwrap();
    let in_inner = malloc(&ctx, 200, s);
    ctx.arena_abort(&outer).unwrap();
    let text = |p| stale(ctx.check(p, "op", "x"));
    assert!(text(in_outer).contains(&format!("arena_abort at depth 0 (arena {}, allocation", outer.id())));
    assert!(text(in_inner).contains(&format!("arena_abort at depth 1 (arena {} \"inner\", ", inner.id())));
}

/// Threads that share a stream hand memory to each other all the time: a live allocation is never taken for a stale one.
/// That needs the table to know of an address before it can be handed out again.
#[test]
fn no_live_allocation_is_ever_reported() {
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::default() }).unwrap();
    let ctx = Context::new(host, Config { arena_debug: CHECK, log: 0, ..Config::default() }).unwrap();
    let stop = AtomicBool::new(false);
    let rounds: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let (ctx, stop) = (&ctx, &stop);
                scope.spawn(move || {
                    let mut round = 0;
                    while round < 400 || !stop.load(Relaxed) {
                        let arena = ctx.arena_enter("step").unwrap();
                        let mine: Vec<u64> = (0..20)
                            .map(|i| malloc(ctx, 256 + (t * 7 + i * 13 + round) % 5 * 900, StreamHandle::LEGACY))
                            .collect();
                        for &p in &mine {
                            ctx.check(p, "op", "x").unwrap();
                        }
                        assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, 20);
                        round += 1;
                        if round == 400 {
                            stop.store(true, Relaxed);
                        }
                    }
                    round as usize
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(rounds >= 1600);
    assert_eq!((live(&ctx), ctx.detector().unwrap().stats().stale_uses), ((0, 0), 0));
    ctx.validate().unwrap();
}

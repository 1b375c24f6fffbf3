//! The detector of late uses of what arenas have freed, on the host device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::arena_support;

use arena_support::{live, malloc, D};
use gpumem::arena::DebugMode;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{Error, Status, StreamHandle};
use gpumem::context::config::Limit;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel, ReportKind};
use gpumem::driver::{Driver, Fault, FaultRule};
use gpumem::pool::AllocFlags;
use std::sync::{Arc, Barrier};

const SIZES: [u64; 4] = [300, 40 * KIB, 200 * KIB, 5 * MIB];
const CHECK: DebugMode = DebugMode { check: true, abort: false, poison: false, unmap: false };

fn context(config: Config) -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::simulation(7) }).unwrap();
    (host.clone(), Context::new(host, config).unwrap())
}

fn with(mode: DebugMode) -> (Arc<HostDriver>, Context) {
    context(Config { arena_debug: mode, log: 0, ..Config::default() })
}

fn id(ctx: &Context, ptr: u64) -> u64 {
    ctx.info(ptr).unwrap().id
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
            "was reclaimed by arena_exit at depth 1 (arena {} \"step\", allocation {id} of {n} bytes{tag}); keep it at the \
             exit, or gpumem_arena_escape it before",
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

/// A thread that waits for memory gets what an arena of another one is just freeing: it is never
/// told that this is stale. That needs the table to know of an address before it can be handed out
/// again.
#[test]
fn no_live_allocation_is_ever_reported() {
    const ROUNDS: usize = 30;
    let host = HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::default() }).unwrap();
    let config = Config { arena_debug: CHECK, limit: Limit::Bytes(256 * MIB), log: 0, ..Config::default() };
    let ctx = Context::new(host, config).unwrap();
    let request = Request { size: 70 * KIB, ..Request::default() };
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let arena = ctx.arena_enter("step").unwrap();
                let made = (0..10_000).take_while(|_| ctx.malloc(&request).is_ok()).count();
                assert!(made > 1000);
                together.wait();
                assert_eq!(ctx.arena_exit(&arena, &[]).unwrap().freed, made as u64);
                together.wait();
                together.wait();
            }
        });
        let mut stale = 0;
        for _ in 0..ROUNDS {
            together.wait();
            let p = std::iter::repeat_with(|| ctx.malloc(&request)).find_map(Result::ok).unwrap();
            together.wait();
            stale += usize::from(ctx.check(p, "op", "x").is_err());
            ctx.free(p).unwrap();
            together.wait();
        }
        assert_eq!(stale, 0, "of {ROUNDS}");
    });
    assert_eq!((live(&ctx), ctx.detector().unwrap().stats().stale_uses), ((0, 0), 0));
    ctx.validate().unwrap();
}

// ---- poison -------------------------------------------------------------------------------------

const POISON: DebugMode = DebugMode { poison: true, ..CHECK };
const UNMAP: DebugMode = DebugMode { unmap: true, ..CHECK };

fn read(host: &HostDriver, ptr: u64, bytes: u64, s: StreamHandle) -> Vec<u8> {
    let mut all = vec![0u8; bytes as usize];
    host.copy_async(D, all.as_mut_ptr() as u64, ptr, bytes, s).unwrap();
    host.stream_sync(D, s).unwrap();
    all
}

#[test]
fn poisoned_memory_is_filled_kept_and_looked_at() {
    let (host, ctx) = with(POISON);
    let (s, t) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
    let arena = ctx.arena_enter("step").unwrap();
    let all: Vec<(u64, u64)> = SIZES.iter().chain(&SIZES).map(|&n| (malloc(&ctx, n, s), n)).collect();
    let ids: Vec<u64> = all.iter().map(|&(p, _)| id(&ctx, p)).collect();
    for &(p, n) in &all {
        // Other streams may use it, too; the fill waits for them.
        host.set_async(D, p, 1, n, s).unwrap();
        ctx.record_stream(p, t).unwrap();
    }
    host.stream_destroy(D, s).unwrap();
    let report = ctx.arena_exit(&arena, &[]).unwrap();
    assert_eq!((report.freed, report.freed_bytes), (8, 2 * SIZES.iter().sum::<u64>()));
    let found = || ctx.detector().unwrap().stats();
    assert_eq!((found().kept, found().unchecked), (8, 0));
    let mut between = Vec::new();
    for &(p, n) in &all {
        assert!(read(&host, p, n, t).iter().all(|&b| b == 0xff));
        assert_eq!(ctx.free(p).unwrap_err().status, Status::DoubleFree);
        assert!(ctx.info_containing(p).is_err() && ctx.realloc(p, 10, t).is_err() && ctx.record_stream(p, t).is_err());
        // None of it is handed out.
        between.push(malloc(&ctx, n, t));
    }
    assert!(all.iter().all(|a| !between.contains(&a.0)));
    assert!(!ctx.free_id(all[0].0, ids[0], None).unwrap());
    ctx.arena_verify().unwrap();
    ctx.validate().unwrap();

    // Written to in three places: found once each.
    host.set_async(D, all[0].0, 0, 4, t).unwrap();
    host.set_async(D, all[3].0 + 4 * MIB - 2, 0, 1, t).unwrap();
    host.set_async(D, all[3].0 + 4 * MIB + 7, 0, 1, t).unwrap();
    host.set_async(D, all[7].0 + 5 * MIB - 1, 0, 1, t).unwrap();
    let text = stale(ctx.arena_verify());
    let want = format!(
        "stale write after arena_exit: 4 bytes from offset 0 of allocation {} (300 bytes) of arena 1 \"step\", reclaimed \
         by arena_exit at depth 0; 2 more, each on stderr",
        ids[0]
    );
    assert_eq!((text, found().stale_writes), (want, 3));
    ctx.arena_verify().unwrap();
    host.set_async(D, all[3].0 + 4 * MIB - 2, 0, 1, t).unwrap();
    host.set_async(D, all[3].0 + 4 * MIB + 7, 0, 1, t).unwrap();
    let text = stale(ctx.arena_verify());
    assert!(text.contains(&format!("10 bytes from offset {} of allocation {}", 4 * MIB - 2, ids[3])), "{text}");

    // Given up: found at the end, too, and the memory is like any other.
    host.set_async(D, all[5].0, 0, 1, t).unwrap();
    ctx.trim(0).unwrap();
    assert_eq!((found().stale_writes, found().kept, found().kept_bytes), (5, 0, 0));
    assert_eq!(live(&ctx).0, 8, "the ones that were made in between");
    between.into_iter().for_each(|p| ctx.free(p).unwrap());
    assert_eq!(live(&ctx), (0, 0));
    ctx.validate().unwrap();
    assert!(host.reports().is_empty(), "{:?}", host.reports());
}

#[test]
fn the_quarantine_is_first_in_first_out_and_bounded() {
    let (host, ctx) =
        context(Config { arena_debug: POISON, arena_quarantine: Some(8 * MIB), log: 0, ..Config::default() });
    let s = host.stream_create(D).unwrap();
    let step = |n: u64| {
        let arena = ctx.arena_enter("").unwrap();
        let p = malloc(&ctx, n, s);
        ctx.arena_exit(&arena, &[]).unwrap();
        p
    };
    let mut last = Vec::new();
    for _ in 0..20 {
        last.push(step(2 * MIB));
        assert!(ctx.detector().unwrap().stats().kept_bytes <= 8 * MIB);
        // Of the last four none comes again.
        let recent = &last[last.len().saturating_sub(4)..];
        assert_eq!(recent.iter().collect::<std::collections::HashSet<_>>().len(), recent.len());
    }
    assert_eq!(ctx.detector().unwrap().stats().kept, 4);
    let mapped = ctx.stats(D).unwrap().mapped;
    assert!(mapped <= 16 * MIB, "{mapped} bytes are mapped for a quarantine of 8 MiB");
    // Larger than all of it: not touched, and it pushes nothing out.
    step(20 * MIB);
    assert_eq!(ctx.detector().unwrap().stats().kept, 4);
    ctx.validate().unwrap();
}

#[test]
fn what_is_in_quarantine_is_given_up_before_a_request_fails() {
    for mode in [POISON, UNMAP] {
        let (host, ctx) =
            context(Config { arena_debug: mode, limit: Limit::Bytes(64 * MIB), log: 0, ..Config::default() });
        let s = host.stream_create(D).unwrap();
        for _ in 0..5 {
            let arena = ctx.arena_enter("").unwrap();
            let p = malloc(&ctx, 40 * MIB, s);
            assert_eq!(ctx.realloc(p, 41 * MIB, s).map(|_| ()).is_ok(), mode == POISON, "a move needs both");
            ctx.arena_exit(&arena, &[]).unwrap();
        }
        let p = malloc(&ctx, 50 * MIB, s);
        let request = Request { size: 50 * MIB, stream: s, ..Request::default() };
        assert_eq!(ctx.malloc(&request).unwrap_err().status, Status::OutOfMemory);
        ctx.free(p).unwrap();
        ctx.validate().unwrap();
    }
}

#[test]
fn while_a_stream_is_captured_nothing_is_waited_for() {
    for mode in [POISON, UNMAP] {
        let (host, ctx) = with(mode);
        let (s, t) = (host.stream_create(D).unwrap(), host.stream_create(D).unwrap());
        let outside = malloc(&ctx, 1000, t);
        let arena = ctx.arena_enter("").unwrap();
        let p = malloc(&ctx, 1000, t);
        host.begin_capture(s).unwrap();
        let captured = malloc(&ctx, 1000, s);
        ctx.arena_exit(&arena, &[]).unwrap();
        let found = || ctx.detector().unwrap().stats();
        assert_eq!(found().unchecked, if mode == POISON { 2 } else { 1 });
        stale(ctx.check(p, "op", "x"));
        stale(ctx.check(captured, "op", "x"));
        if mode == POISON {
            assert_eq!(ctx.arena_verify().unwrap_err().status, Status::Capturing);
        }
        assert!(host.end_capture(s).unwrap(), "the capture has survived it");
        // The next use of the stream shows that the capture is over.
        ctx.free_async(outside, s).unwrap();
        ctx.free(malloc(&ctx, 1000, s)).unwrap();
        ctx.arena_verify().unwrap();
        ctx.trim(0).unwrap();
        assert_eq!((found().kept, found().stale_writes, live(&ctx)), (0, 0, (0, 0)));
        ctx.validate().unwrap();
    }
}

// ---- unmap --------------------------------------------------------------------------------------

#[test]
fn a_late_use_of_unmapped_memory_faults() {
    let (host, ctx) = with(UNMAP);
    let s = host.stream_create(D).unwrap();
    let ordinary = malloc(&ctx, 1000, s);
    let before = ctx.stats(D).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let all: Vec<(u64, u64)> = SIZES.iter().chain(&SIZES).map(|&n| (malloc(&ctx, n, s), n)).collect();
    for &(p, n) in &all {
        host.set_async(D, p, 1, n, s).unwrap();
        let info = ctx.info(p).unwrap();
        assert_eq!((info.flags, info.requested), (AllocFlags::default(), n));
    }
    let kept = malloc(&ctx, 1000, s);
    let report = ctx.arena_exit(&arena, &[kept]).unwrap();
    assert_eq!((report.freed, report.freed_bytes, report.kept), (8, 2 * SIZES.iter().sum::<u64>(), 1));
    let stats = ctx.stats(D).unwrap();
    assert_eq!((stats.mapped, stats.allocations), (before.mapped + 2 * MIB, 2), "all but the kept one is unmapped");
    assert!(host.reports().is_empty(), "{:?}", host.reports());
    // A simulated kernel finds nothing there.
    let (p, n) = all[2];
    host.launch(D, s, Kernel::new("late").writes(p..p + n)).unwrap();
    host.stream_sync(D, s).unwrap();
    let reports = host.take_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!((reports[0].kind, reports[0].range.start), (ReportKind::Fault, p));
    // Nor does anybody get the addresses.
    let mut between = Vec::new();
    for &(p, n) in &all {
        assert!(host.set_async(D, p, 1, 1, s).is_err());
        between.push(malloc(&ctx, n, s));
        assert_eq!(ctx.free(p).unwrap_err().status, Status::DoubleFree);
    }
    assert!(all.iter().all(|a| !between.contains(&a.0)));
    ctx.validate().unwrap();
    assert!(ctx.dump(D).unwrap().contains("addresses kept"));
    let e = ctx.explain(Error::invalid("fill"), &[(p + 5, 10)]);
    assert!(e.message.contains("is in memory reclaimed by arena_exit at depth 0"), "{e}");
    ctx.trim(0).unwrap();
    ctx.validate().unwrap();
    assert!(!ctx.dump(D).unwrap().contains("addresses kept"));
    ctx.free(ordinary).unwrap();
    ctx.free(kept).unwrap();
    between.into_iter().for_each(|p| ctx.free(p).unwrap());
    assert_eq!(live(&ctx), (0, 0));
}

#[test]
fn a_fault_that_the_driver_reports_names_what_went_last_and_only_once() {
    let (host, ctx) = context(Config { arena_debug: UNMAP, ..Config::default() });
    let s = host.stream_create(D).unwrap();
    let fault =
        Error::new(Status::Driver, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access)");
    assert_eq!(ctx.fault_hint(&fault), None, "nothing was reclaimed");
    let mut ids = Vec::new();
    for step in 0..20 {
        let arena = ctx.arena_enter(&format!("step {step}")).unwrap();
        ids.push(id(&ctx, malloc(&ctx, 4096, s)));
        ctx.arena_exit(&arena, &[]).unwrap();
    }
    assert_eq!(ctx.fault_hint(&Error::new(Status::Driver, "cuMemMap: CUDA_ERROR_INVALID_VALUE")), None);
    assert_eq!(ctx.fault_hint(&Error::new(Status::Invalid, fault.message.clone())), None);
    let text = ctx.fault_hint(&fault).unwrap();
    let first = format!(
        "a kernel used memory that is not mapped; reclaimed most recently: allocation {} (4096 bytes) of arena 20 \"step \
         19\", by arena_exit at depth 0; allocation {} ",
        ids[19], ids[18]
    );
    assert!(text.starts_with(&first), "{text}");
    assert_eq!(text.matches("allocation").count(), 16);
    assert_eq!(ctx.fault_hint(&fault), None);
}

// ---- failures -----------------------------------------------------------------------------------

/// Whichever driver call of an exit fails: everything is freed all the same, nothing is found that
/// was not there, and nothing is left behind in the end.
#[test]
fn a_driver_call_that_fails_at_an_exit_loses_nothing() {
    for mode in [POISON, UNMAP] {
        let mut tried = 0;
        for (n, lasting) in (0..200).flat_map(|n| [(n, false), (n, true)]) {
            let host =
                HostDriver::new(HostOptions { bytes_per_device: 4 * GIB, ..HostOptions::simulation(n) }).unwrap();
            let fault = Arc::new(Fault::new(host.clone()));
            let config = Config { arena_debug: mode, arena_quarantine: Some(6 * MIB), log: 0, ..Config::default() };
            let ctx = Context::new(fault.clone(), config).unwrap();
            let s = host.stream_create(D).unwrap();
            let step = |fails: bool| {
                let arena = ctx.arena_enter("").unwrap();
                let all = [300, 300 * KIB, 3 * MIB].map(|bytes| {
                    let p = malloc(&ctx, bytes, s);
                    host.set_async(D, p, 1, bytes, s).unwrap();
                    p
                });
                let rule = FaultRule::nth(n);
                fault.set_rule(fails.then_some(if lasting { rule.lasting() } else { rule }));
                let report = ctx.arena_exit(&arena, &[]).unwrap();
                let fired = fault.fired();
                fault.set_rule(None);
                assert_eq!(report.freed, 3);
                assert!(all.iter().all(|&p| ctx.check(p, "op", "x").is_err() && ctx.free(p).is_err()));
                fired
            };
            // The second exit makes room for what it keeps.
            let fired = [false, true, false].map(step);
            assert_eq!(
                (live(&ctx).0, ctx.detector().unwrap().stats().stale_writes),
                (if mode == POISON { ctx.detector().unwrap().stats().kept } else { 0 }, 0,)
            );
            ctx.validate().unwrap();
            ctx.trim(0).unwrap();
            host.device_sync(D).unwrap();
            ctx.trim(0).unwrap();
            assert_eq!((live(&ctx), ctx.detector().unwrap().stats().kept), ((0, 0), 0));
            assert_eq!(ctx.stats(D).unwrap().mapped, 0);
            ctx.validate().unwrap();
            assert!(host.reports().is_empty(), "{:?}", host.reports());
            tried += usize::from(fired[1] > 0);
            if fired[1] == 0 {
                break;
            }
        }
        assert!(tried >= 10, "only {tried} calls failed");
    }
}

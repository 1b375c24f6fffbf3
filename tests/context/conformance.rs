//! The behaviours of `bindings/CONFORMANCE.md` in Rust, each a test of that name.
//! `tests/capi/bindings.rs` compares the names with the list, which C and the bindings share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::capture::CaptureOptions;
use gpumem::arena::{Arena, DebugMode};
use gpumem::base::size::{KIB, MIB};
use gpumem::base::{DeviceId, Error, Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::PoolStats;
use gpumem::tier::{self, LimitPolicy, Reservation, SpaceId, SpaceUsage, Tier};
use std::sync::{Arc, Barrier};
use std::thread;

const D: DeviceId = DeviceId(0);
const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const S: StreamHandle = StreamHandle::LEGACY;
const CHECK: DebugMode = DebugMode { check: true, abort: false, poison: false, unmap: false };

struct Rig {
    host: Arc<HostDriver>,
    ctx: Context,
}

/// A buffer, freed by its number when it is dropped.
struct Object<'a> {
    rig: &'a Rig,
    ptr: u64,
    id: u64,
}

impl Object<'_> {
    /// Whether this freed it.
    fn finalize(&self) -> bool {
        self.rig.ctx.free_id(self.ptr, self.id, None).unwrap()
    }

    fn is_live(&self) -> bool {
        self.rig.ctx.info(self.ptr).is_ok_and(|i| i.id == self.id)
    }

    fn holds(&self, bytes: usize, byte: u8) -> bool {
        self.rig.holds(self.ptr, bytes, byte)
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        // What an arena has freed is found out by the number.
        let _ = self.rig.ctx.free_id(self.ptr, self.id, None);
    }
}

impl Rig {
    fn try_malloc(&self, size: u64, stream: StreamHandle) -> Result<u64, Error> {
        self.ctx.malloc(&Request { size, stream, ..Request::default() })
    }

    fn make(&self, size: u64) -> Object<'_> {
        self.made_on(size, S)
    }

    fn made_on(&self, size: u64, stream: StreamHandle) -> Object<'_> {
        let ptr = self.try_malloc(size, stream).unwrap();
        Object { rig: self, ptr, id: self.ctx.info(ptr).unwrap().id }
    }

    fn fill(&self, ptr: u64, bytes: u64, byte: u8) {
        self.host.set_async(D, ptr, byte, bytes, S).unwrap();
    }

    fn holds(&self, ptr: u64, bytes: usize, byte: u8) -> bool {
        let mut found = vec![!byte; bytes];
        self.host.copy_async(D, found.as_mut_ptr() as u64, ptr, bytes as u64, S).unwrap();
        self.host.stream_sync(D, S).unwrap();
        found.iter().all(|&b| b == byte)
    }

    fn stats(&self) -> PoolStats {
        self.ctx.stats(D).unwrap()
    }

    fn enter(&self) -> Arc<Arena> {
        self.ctx.arena_enter("").unwrap()
    }

    fn leave(&self, arena: &Arc<Arena>, keep: &[&Object<'_>]) -> gpumem::arena::ExitReport {
        let keep: Vec<u64> = keep.iter().map(|o| o.ptr).collect();
        self.ctx.arena_exit(arena, &keep).unwrap()
    }

    fn reserve(&self, bytes: u64) -> Reservation {
        let want = tier::Request::exact(GPU, bytes).policy(LimitPolicy::Fail);
        self.ctx.tiers().unwrap().manager().reserve(want).unwrap()
    }

    fn usage(&self) -> SpaceUsage {
        self.ctx.tiers().unwrap().manager().usage(GPU).unwrap()
    }
}

/// Runs a behaviour on a context of its own; it leaves nothing behind, a sound state, and a device
/// with nothing to report.
#[track_caller]
fn behaviour(test: impl FnOnce(&Rig)) {
    let host = HostDriver::new(HostOptions { check: true, ..HostOptions::default() }).unwrap();
    let config = Config { arena_debug: CHECK, log: 0, ..Config::default() };
    let rig = Rig { ctx: Context::new(host.clone(), config).unwrap(), host };
    test(&rig);
    let s = rig.stats();
    assert_eq!((s.allocations, s.requested, s.live, rig.ctx.arena_count()), (0, 0, 0, 0));
    rig.ctx.validate().unwrap();
    rig.host.device_sync(D).unwrap();
    assert!(rig.host.reports().is_empty(), "{:#?}", rig.host.reports());
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, status: Status, says: &str) {
    let Err(e) = result else { panic!("it was not refused") };
    assert_eq!(e.status, status, "{e}");
    assert!(e.message.contains(says), "{e} does not say {says:?}");
}

#[test]
fn zero_bytes() {
    behaviour(|r| {
        let (a, b) = (r.make(0), r.make(0));
        assert!(a.ptr != 0 && a.ptr != b.ptr && a.id != 0 && a.id != b.id && a.is_live());
        assert!(a.finalize() && !a.is_live());
    });
}

#[test]
fn round_trip() {
    behaviour(|r| {
        let (a, b) = (r.make(8000), r.make(8000));
        let sent = [3u8; 8000];
        r.host.copy_async(D, a.ptr, sent.as_ptr() as u64, 8000, S).unwrap();
        assert!(a.holds(8000, 3));
        r.fill(b.ptr, 8000, 7);
        r.host.copy_async(D, b.ptr, a.ptr, 4000, S).unwrap();
        assert!(b.holds(4000, 3) && r.holds(b.ptr + 4000, 4000, 7));
    });
}

#[test]
fn free_once() {
    behaviour(|r| {
        let a = r.make(4 * KIB);
        let before = r.stats();
        assert!(a.finalize() && !a.finalize() && !a.is_live());
        let after = r.stats();
        assert_eq!((after.frees, after.double_frees), (before.frees + 1, before.double_frees));
    });
}

#[test]
fn double_free() {
    behaviour(|r| {
        let p = r.try_malloc(4 * KIB, S).unwrap();
        r.ctx.free_async(p, S).unwrap();
        let before = r.stats();
        refused(r.ctx.free_async(p, S), Status::DoubleFree, &format!("{p:#x}"));
        assert_eq!(r.stats().double_frees, before.double_frees + 1);
    });
}

#[test]
fn unknown_pointer() {
    behaviour(|r| refused(r.ctx.free_async(0x1000, S), Status::UnknownPointer, "0x1000"));
}

#[test]
fn interior_free() {
    behaviour(|r| {
        let a = r.make(4 * KIB);
        refused(r.ctx.free_async(a.ptr + 256, S), Status::UnknownPointer, &format!("{:#x}", a.ptr + 256));
        assert!(a.is_live());
    });
}

#[test]
fn out_of_memory_text() {
    behaviour(|r| {
        r.ctx.set_limit(D, 64 * MIB).unwrap();
        refused(r.try_malloc(65 * MIB, S), Status::OutOfMemory, &(65 * MIB).to_string());
        r.ctx.set_limit(D, 0).unwrap();
        r.make(65 * MIB);
    });
}

#[test]
fn finalizer_frees() {
    behaviour(|r| {
        for _ in 0..20 {
            drop(r.make(4 * KIB));
        }
        assert_eq!((r.stats().allocations, r.stats().frees), (0, 20));
    });
}

#[test]
fn finalizer_after_exit() {
    behaviour(|r| {
        let arena = r.enter();
        let a = r.make(4 * KIB);
        r.leave(&arena, &[]);
        let before = r.stats();
        drop(a);
        let after = r.stats();
        assert_eq!((after.late_frees, after.frees), (before.late_frees + 1, before.frees));
        assert_eq!(after.double_frees, before.double_frees);
    });
}

#[test]
fn finalizer_after_address_reuse() {
    behaviour(|r| {
        let arena = r.enter();
        let old = r.make(4 * KIB);
        r.leave(&arena, &[]);
        let young = r.make(4 * KIB);
        assert!(young.ptr == old.ptr && young.id != old.id);
        r.fill(young.ptr, 4 * KIB, 5);
        assert!(!old.finalize());
        assert!(young.is_live() && !old.is_live() && young.holds(4096, 5));
    });
}

#[test]
fn finalizer_on_other_thread() {
    behaviour(|r| {
        let all: Vec<_> = (0..64).map(|_| r.make(4 * KIB)).collect();
        thread::scope(|scope| scope.spawn(move || drop(all)).join().unwrap());
        assert_eq!(r.stats().allocations, 0);
    });
}

#[test]
fn hundred_thousand_buffers() {
    behaviour(|r| {
        let all: Vec<_> = (0..100_000).map(|_| r.make(256)).collect();
        assert_eq!(r.stats().allocations, 100_000);
        drop(all);
        assert_eq!((r.stats().mallocs, r.stats().frees), (100_000, 100_000));
    });
}

/// 64 buffers of 4096 floats that are still referred to when their arena ends, four times.
#[test]
fn exit_frees_all() {
    behaviour(|r| {
        let mut held = Vec::new();
        for round in 1..=4 {
            let arena = r.enter();
            held.extend((0..64).map(|_| r.make(4 * 4096)));
            assert_eq!((r.stats().allocations, r.stats().frees), (64, 64 * (round - 1)));
            r.leave(&arena, &[]);
            assert_eq!((r.stats().allocations, r.stats().requested, r.stats().frees), (0, 0, 64 * round));
        }
        assert!(held.iter().all(|o| !o.is_live()));
    });
}

#[test]
fn exit_keeps() {
    behaviour(|r| {
        let arena = r.enter();
        let (a, b) = (r.make(4 * KIB), r.make(4 * KIB));
        r.fill(b.ptr, 4 * KIB, 1);
        let report = r.leave(&arena, &[&b]);
        assert_eq!((report.freed, report.kept), (1, 1));
        assert!(!a.is_live() && b.is_live() && b.holds(4096, 1));
    });
}

#[test]
fn exit_keeps_interior_pointer() {
    behaviour(|r| {
        let arena = r.enter();
        let a = r.make(4 * KIB);
        let report = r.ctx.arena_exit(&arena, &[a.ptr + 1000]).unwrap();
        assert_eq!((report.kept, report.freed, a.is_live()), (1, 0, true));
    });
}

#[test]
fn exit_counts_odd_entries() {
    behaviour(|r| {
        let outside = r.make(256);
        let arena = r.enter();
        let (a, gone) = (r.make(256), r.make(256));
        gone.finalize();
        let report = r.ctx.arena_exit(&arena, &[a.ptr, a.ptr, outside.ptr, gone.ptr, 0]).unwrap();
        assert_eq!((report.kept, report.duplicate, report.foreign, report.unknown), (1, 1, 1, 1));
        assert_eq!((report.depth, report.kept_bytes), (0, 256));
        assert!(a.is_live() && outside.is_live());
    });
}

#[test]
fn early_free_in_arena() {
    behaviour(|r| {
        let arena = r.enter();
        let (a, _held) = (r.make(256), r.make(512));
        a.finalize();
        let s = r.ctx.arena_stats(&arena).unwrap();
        assert_eq!((s.left, s.promoted), (1, 0));
        let report = r.leave(&arena, &[]);
        assert_eq!((report.freed, report.freed_bytes), (1, 512));
    });
}

/// What a caller does with an error on its way out.
#[test]
fn exception_keeps_nothing() {
    behaviour(|r| {
        let arena = r.enter();
        let a = r.make(4 * KIB);
        r.ctx.arena_abort(&arena).unwrap();
        assert!(!a.is_live() && r.ctx.arena_current().is_none());
    });
}

#[test]
fn exception_ends_inner_arenas() {
    behaviour(|r| {
        let (outer, inner) = (r.enter(), r.enter());
        let a = r.make(256);
        r.ctx.arena_abort(&outer).unwrap();
        assert!(!a.is_live());
        refused(r.ctx.arena_exit(&inner, &[]), Status::Invalid, "");
    });
}

#[test]
fn nested_promote() {
    behaviour(|r| {
        let (outer, inner) = (r.enter(), r.enter());
        let a = r.make(256);
        r.ctx.arena_promote(a.ptr).unwrap();
        assert_eq!(r.ctx.arena_stats(&outer).unwrap().live, 1);
        r.leave(&inner, &[]);
        assert!(a.is_live());
        r.leave(&outer, &[]);
        assert!(!a.is_live());
    });
}

#[test]
fn inner_keep_ends_with_outer() {
    behaviour(|r| {
        let (outer, inner) = (r.enter(), r.enter());
        let (a, b) = (r.make(256), r.make(512));
        assert_eq!(r.leave(&inner, &[&a, &b]).depth, 1);
        assert!(a.is_live() && b.is_live());
        r.leave(&outer, &[&b]);
        assert!(!a.is_live() && b.is_live());
    });
}

#[test]
fn outermost_keep_is_ordinary() {
    behaviour(|r| {
        let arena = r.enter();
        let a = r.make(256);
        r.leave(&arena, &[&a]);
        assert!(r.ctx.arena_of(a.ptr).unwrap().is_none());
        r.leave(&r.enter(), &[]);
        assert!(a.is_live());
    });
}

#[test]
fn exit_in_wrong_order() {
    behaviour(|r| {
        let (outer, inner) = (r.enter(), r.enter());
        refused(r.ctx.arena_exit(&outer, &[]), Status::Invalid, "current arena");
        assert_eq!((r.leave(&inner, &[]).depth, r.leave(&outer, &[]).depth), (1, 0));
    });
}

#[test]
fn stale_arena() {
    behaviour(|r| {
        let arena = r.enter();
        r.leave(&arena, &[]);
        refused(r.ctx.arena_exit(&arena, &[]), Status::Invalid, "exited already");
        refused(r.ctx.arena_stats(&arena), Status::Invalid, "exited already");
        refused(r.ctx.arena_attach(&arena), Status::Invalid, "exited already");
    });
}

#[test]
fn escape() {
    behaviour(|r| {
        let (outer, inner) = (r.enter(), r.enter());
        let a = r.make(256);
        r.fill(a.ptr, 256, 9);
        r.ctx.arena_escape(a.ptr).unwrap();
        r.leave(&inner, &[]);
        r.leave(&outer, &[]);
        assert!(a.is_live() && a.holds(256, 9));
        r.ctx.arena_escape(a.ptr).unwrap();
    });
}

#[test]
fn thread_attach() {
    behaviour(|r| {
        let arena = r.enter();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    r.ctx.arena_attach(&arena).unwrap();
                    (0..50).for_each(|_| assert!(r.try_malloc(256, S).is_ok()));
                    r.ctx.arena_detach(&arena).unwrap();
                });
            }
        });
        assert_eq!(r.leave(&arena, &[]).freed, 400);
    });
}

#[test]
fn other_threads_unaffected() {
    behaviour(|r| {
        let arena = r.enter();
        let a = thread::scope(|scope| scope.spawn(|| r.make(256)).join().unwrap());
        assert_eq!(r.leave(&arena, &[]).freed, 0);
        assert!(a.is_live());
    });
}

#[test]
fn exit_refused_while_attached() {
    behaviour(|r| {
        let arena = r.enter();
        let turn = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                r.ctx.arena_attach(&arena).unwrap();
                turn.wait();
                turn.wait();
                r.ctx.arena_detach(&arena).unwrap();
            });
            turn.wait();
            refused(r.ctx.arena_exit(&arena, &[]), Status::Invalid, "other threads (1) are attached");
            refused(r.ctx.arena_abort(&arena), Status::Invalid, "other threads (1) are attached");
            turn.wait();
        });
        r.leave(&arena, &[]);
    });
}

#[test]
fn arena_name_and_stats() {
    behaviour(|r| {
        let arena = r.ctx.arena_enter("forward").unwrap();
        let (_a, b) = (r.make(1000), r.make(24));
        b.finalize();
        let s = r.ctx.arena_stats(&arena).unwrap();
        assert_eq!((arena.name(), s.live, s.live_bytes), ("forward", 1, 1000));
        assert_eq!((s.peak_bytes, s.joined, s.left, s.promoted), (1024, 2, 1, 0));
        r.leave(&arena, &[]);
    });
}

#[test]
fn detector_message() {
    behaviour(|r| {
        let arena = r.ctx.arena_enter("step").unwrap();
        let a = r.make(4096);
        r.leave(&arena, &[]);
        let says = format!(
            "use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena {} \"step\", allocation {} of 4096 bytes)",
            arena.id(),
            a.id
        );
        refused(r.ctx.check(a.ptr, "add", "lhs"), Status::UseAfterFree, &says);
    });
}

#[test]
fn detector_after_address_reuse() {
    behaviour(|r| {
        let arena = r.enter();
        let old = r.make(4096);
        r.leave(&arena, &[]);
        let young = r.make(4096);
        assert_eq!(young.ptr, old.ptr);
        r.ctx.check_id(young.ptr, young.id, "add", "lhs").unwrap();
        refused(r.ctx.check_id(old.ptr, old.id, "add", "rhs"), Status::UseAfterFree, "add rhs");
    });
}

#[test]
fn exit_races_finalizers() {
    behaviour(|r| {
        for _ in 0..20 {
            let before = r.stats();
            let arena = r.enter();
            let all: Vec<_> = (0..1000).map(|_| r.make(256)).collect();
            let turn = Barrier::new(2);
            let freed = thread::scope(|scope| {
                let turn = &turn;
                scope.spawn(move || {
                    turn.wait();
                    drop(all);
                });
                turn.wait();
                r.leave(&arena, &[]).freed
            });
            let after = r.stats();
            assert_eq!((after.frees, after.double_frees), (before.frees + 1000, before.double_frees));
            assert_eq!(freed, after.late_frees - before.late_frees);
        }
    });
}

#[test]
fn capture_keeps_addresses() {
    behaviour(|r| {
        let s = r.host.stream_create(D).unwrap();
        let capture = r.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        let inside = r.try_malloc(4 * MIB, s).unwrap();
        r.ctx.free_async(inside, s).unwrap();
        r.ctx.capture_end(&capture).unwrap();
        let others: Vec<_> = (0..4).map(|_| r.made_on(4 * MIB, s)).collect();
        assert!(others.iter().all(|o| o.ptr != inside));
        capture.retain().unwrap();
        assert!(!r.ctx.capture_release(&capture).unwrap() && r.ctx.capture_release(&capture).unwrap());
        refused(r.ctx.capture_release(&capture), Status::Invalid, "");
    });
}

#[test]
fn capture_error_frees() {
    behaviour(|r| {
        let s = r.host.stream_create(D).unwrap();
        let capture = r.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        let a = r.made_on(4 * KIB, s);
        r.ctx.capture_abort(&capture).unwrap();
        assert!(!a.is_live());
        let capture = r.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        r.ctx.capture_end(&capture).unwrap();
        r.ctx.capture_release(&capture).unwrap();
    });
}

#[test]
fn reservation_draws() {
    behaviour(|r| {
        let reservation = r.reserve(8 * MIB);
        reservation.attach_thread().unwrap();
        let a = r.make(MIB);
        assert_eq!((reservation.size(), reservation.drawn()), (8 * MIB, MIB));
        drop(a);
        assert_eq!(reservation.drawn(), 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                reservation.attach_thread().unwrap();
                let _a = r.make(2 * MIB);
                assert_eq!(reservation.drawn(), 2 * MIB);
            });
        });
        assert_eq!(reservation.release().unwrap().drawn, 0);
    });
}

#[test]
fn reservation_refuses_more() {
    behaviour(|r| {
        let reservation = r.reserve(MIB);
        reservation.attach_thread().unwrap();
        refused(r.try_malloc(2 * MIB, S), Status::OutOfMemory, "reservation");
        assert_eq!(reservation.release().unwrap().drawn, 0);
        refused(reservation.release(), Status::Invalid, "");
    });
}

#[test]
fn reservation_ends_after_error() {
    behaviour(|r| {
        let fails = || -> Result<u64, Error> {
            let reservation = r.reserve(MIB);
            reservation.attach_thread()?;
            r.try_malloc(2 * MIB, S)
        };
        refused(fails(), Status::OutOfMemory, "reservation");
        assert_eq!(r.usage().promised, 0);
        // The thread draws from it no more.
        r.make(2 * MIB);
    });
}

#[test]
fn trim_gives_back() {
    behaviour(|r| {
        r.make(64 * MIB);
        r.ctx.stream_sync(S).unwrap();
        assert!(r.stats().mapped >= 64 * MIB);
        r.ctx.trim(0).unwrap();
        assert_eq!(r.stats().mapped, 0);
    });
}

#[test]
fn stats_count() {
    behaviour(|r| {
        let a = r.make(1000);
        let s = r.stats();
        assert_eq!((s.mallocs, s.frees, s.requested), (1, 0, 1000));
        assert!(s.live >= 1000 && s.mapped >= s.live);
        drop(a);
        assert_eq!(r.stats().frees, 1);
    });
}

//! Allocations of a context that has its tiers in use: each counts in its device's space, and draws
//! from reservations, until it ends. `tier_accounts_threads.rs` has those with many threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::arena::capture::CaptureOptions;
use gpumem::arena::DebugMode;
use gpumem::base::size::{GIB, KIB, MIB};
use gpumem::base::{DeviceId, Error, Status, StreamHandle};
use gpumem::context::config::Limit;
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use gpumem::tier::{self, *};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

const D: DeviceId = DeviceId(0);
const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
/// The host device's granularity.
const PAGE: u64 = 2 * MIB;

struct Rig {
    host: Arc<HostDriver>,
    ctx: Arc<Context>,
    s: StreamHandle,
}

impl Rig {
    fn new(config: Config) -> Rig {
        let options = HostOptions { bytes_per_device: GIB, devices: 2, check: true, ..HostOptions::default() };
        let host = HostDriver::new(options).unwrap();
        let ctx = Arc::new(Context::new(host.clone(), config).unwrap());
        let s = host.stream_create(D).unwrap();
        Rig { host, ctx, s }
    }

    /// With the tiers in use.
    fn counted() -> Rig {
        let rig = Rig::new(Config::default());
        rig.ctx.tiers().unwrap();
        rig
    }

    fn stream(&self) -> StreamHandle {
        self.host.stream_create(D).unwrap()
    }

    fn try_malloc(&self, size: u64) -> Result<u64, Error> {
        self.ctx.malloc(&Request { size, stream: self.s, ..Request::default() })
    }

    fn malloc(&self, size: u64) -> u64 {
        self.try_malloc(size).unwrap()
    }

    fn malloc_on(&self, size: u64, stream: StreamHandle) -> u64 {
        self.ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap()
    }

    fn malloc_with(&self, size: u64, flags: AllocFlags) -> u64 {
        self.ctx.malloc(&Request { size, stream: self.s, flags, ..Request::default() }).unwrap()
    }

    fn free(&self, ptr: u64) {
        self.ctx.free_async(ptr, self.s).unwrap();
    }

    fn manager(&self) -> &Arc<Manager> {
        self.ctx.tiers().unwrap().manager()
    }

    fn usage(&self) -> SpaceUsage {
        self.manager().usage(GPU).unwrap()
    }

    fn reserve(&self, bytes: u64, policy: LimitPolicy) -> Reservation {
        self.manager().reserve(tier::Request::exact(GPU, bytes).policy(policy)).unwrap()
    }

    /// Everything is as it should be, and so much of the device's space is used, all of it by what
    /// its pool has handed out.
    #[track_caller]
    fn uses(&self, bytes: u64) {
        self.ctx.validate().unwrap();
        assert_eq!((self.usage().used, self.ctx.pool(D).unwrap().counted().unwrap()), (bytes, bytes));
    }

    /// Nothing is used or promised any more.
    #[track_caller]
    fn close(&self) {
        self.uses(0);
        let (u, stats) = (self.usage(), self.ctx.stats(D).unwrap());
        assert_eq!((u.promised, u.unreserved, u.beyond, u.available), (0, 0, 0, u.limit), "{u:?}");
        assert_eq!((stats.allocations, stats.requested), (0, 0));
    }
}

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, Error>, status: Status, parts: &[&str]) {
    let e = result.unwrap_err();
    assert_eq!(e.status, status, "{e}");
    for part in parts {
        assert!(e.message.contains(part), "{e:?} does not say {part:?}");
    }
}

// ---- what is counted ----------------------------------------------------------------------------

#[test]
fn what_lives_when_the_tiers_start_is_counted_and_what_comes_later() {
    let rig = Rig::new(Config::default());
    let (small, large) = (rig.malloc(1), rig.malloc(3 * MIB + 1));
    let own = rig.malloc_with(5, AllocFlags::SINGLE_HANDLE);
    let freed = rig.malloc(700);
    rig.free(freed);
    let other = rig.malloc_on(100 * KIB, rig.stream());
    rig.uses(256 + 3 * MIB + 256 + PAGE + 100 * KIB);
    assert_eq!(rig.usage().unreserved, rig.usage().used);
    // Hits, too, of a heap that there is and of one that is new.
    let more = [rig.malloc(700), rig.malloc(0), rig.malloc_on(257, rig.stream())];
    let before = 256 + 3 * MIB + 256 + PAGE + 100 * KIB;
    rig.uses(before + 768 + 256 + 512);
    for p in [small, large, own, other] {
        rig.free(p);
    }
    rig.uses(768 + 256 + 512);
    more.into_iter().for_each(|p| rig.free(p));
    assert!(rig.usage().peak >= before + 768);
    rig.close();
}

#[test]
fn with_the_setting_they_are_counted_from_the_first() {
    let rig = Rig::new(Config { tiers: true, ..Config::default() });
    let p = rig.malloc(1000);
    let q = rig.malloc(1000);
    rig.uses(2048);
    // The pool of another device, made later.
    let far = rig.ctx.malloc(&Request { size: 300, device: Some(DeviceId(1)), ..Request::default() }).unwrap();
    let space = rig.ctx.tiers().unwrap().gpu(DeviceId(1)).unwrap().clone();
    assert_eq!(space.usage().now(), 512);
    [p, q, far].into_iter().for_each(|p| rig.ctx.free(p).unwrap());
    assert_eq!(space.usage().now(), 0);
    rig.close();
}

#[test]
fn requests_count_rounded_up_and_special_ones_as_whole_pages() {
    let rig = Rig::counted();
    for (size, bytes) in
        [(0, 256), (1, 256), (256, 256), (257, 512), (70 * KIB + 1, 70 * KIB + 256), (4 * MIB, 4 * MIB)]
    {
        let p = rig.malloc(size);
        rig.uses(bytes);
        rig.free(p);
        rig.uses(0);
    }
    for (flags, size) in [(AllocFlags::SINGLE_HANDLE, 0), (AllocFlags::GUARD, 1), (AllocFlags::EXPORTABLE, PAGE)] {
        let p = rig.malloc_with(size, flags);
        rig.uses(PAGE);
        rig.ctx.free(p).unwrap();
        rig.uses(0);
    }
    // Imported memory is another allocation's.
    let p = rig.malloc_with(PAGE + 1, AllocFlags::EXPORTABLE);
    let fd = rig.ctx.export_fd(p).unwrap();
    let q = rig.ctx.import_fd(D, &fd, PAGE + 1).unwrap();
    rig.uses(2 * PAGE);
    rig.free(p);
    rig.uses(0);
    rig.free(q);
    rig.close();
}

#[test]
fn a_size_that_changes_is_counted() {
    let rig = Rig::counted();
    let realloc = |p, size| rig.ctx.realloc(p, size, rig.s).unwrap();
    // In place: within a class, within a block, a block that grows by what is behind it.
    let p = rig.malloc(2100);
    assert_eq!(realloc(p, 2300), p);
    rig.uses(2304);
    let p = realloc(p, 40 * KIB);
    rig.uses(40 * KIB);
    let p = realloc(p, 3 * MIB);
    rig.uses(3 * MIB);
    let grown = realloc(p, 6 * MIB - 100);
    assert_eq!(grown, p, "there is room behind it");
    rig.uses(6 * MIB);
    assert_eq!(realloc(p, 300 * KIB), p);
    rig.uses(300 * KIB);
    assert_eq!(realloc(p, 300 * KIB - 300), p, "too little to be cut off");
    rig.uses(300 * KIB - 256);
    let own = rig.malloc_with(PAGE, AllocFlags::SINGLE_HANDLE);
    let own = realloc(own, PAGE + 1);
    rig.uses(300 * KIB - 256 + 2 * PAGE);
    // Null allocates; what cannot be leaves all as it was.
    let fresh = realloc(0, 10);
    rig.uses(300 * KIB + 2 * PAGE);
    says(rig.ctx.realloc(p, GIB - MIB, rig.s), Status::OutOfMemory, &["GPU 0", "asked"]);
    says(rig.ctx.realloc(p, 3 * GIB, rig.s), Status::OutOfMemory, &[]);
    rig.uses(300 * KIB + 2 * PAGE);
    [p, own, fresh].into_iter().for_each(|p| rig.free(p));
    rig.close();
}

// ---- how an allocation ends ---------------------------------------------------------------------

#[test]
fn every_way_out_gives_the_bytes_back_once() {
    let rig = Rig::counted();
    let other = rig.stream();
    let id = |p| rig.ctx.info(p).unwrap().id;
    for size in [300, 100 * KIB, 3 * MIB] {
        let bytes = size.next_multiple_of(256);
        let p = rig.malloc(size);
        rig.ctx.free_async(p, other).unwrap();
        says(rig.ctx.free(p), Status::DoubleFree, &[]);
        rig.uses(0);
        let p = rig.malloc(size);
        rig.ctx.record_stream(p, other).unwrap();
        rig.free(p);
        let p = rig.malloc(size);
        assert!(!rig.ctx.free_id(p, id(p) + 1, None).unwrap());
        rig.uses(bytes);
        assert!(rig.ctx.free_id(p, id(p), None).unwrap());
        rig.uses(0);

        // An arena's exit, with something kept, something escaped and something moved in from
        // outside of it.
        let outer = rig.ctx.arena_enter("outer").unwrap();
        let inner = rig.ctx.arena_enter("inner").unwrap();
        let all = [(); 40].map(|()| rig.malloc(size));
        let own = rig.malloc_with(size, AllocFlags::SINGLE_HANDLE);
        rig.ctx.arena_escape(all[0]).unwrap();
        rig.free(all[1]);
        rig.uses(39 * bytes + size.next_multiple_of(PAGE));
        rig.ctx.arena_exit(&inner, &[all[2], own]).unwrap();
        rig.uses(2 * bytes + size.next_multiple_of(PAGE));
        rig.ctx.arena_abort(&outer).unwrap();
        rig.uses(bytes);
        let named = rig.ctx.arena_enter("named").unwrap();
        rig.ctx.malloc(&Request { size, stream: rig.s, arena: Some(&named), ..Request::default() }).unwrap();
        rig.uses(2 * bytes);
        rig.ctx.arena_exit(&named, &[]).unwrap();
        rig.free(all[0]);
        rig.uses(0);

        // Captures: what is freed during one, after it, and with it.
        let capture = rig.ctx.capture_begin(rig.s, CaptureOptions::default()).unwrap();
        let [a, b] = [(); 2].map(|()| rig.malloc(size));
        rig.free(a);
        rig.uses(bytes);
        rig.ctx.capture_end(&capture).unwrap();
        rig.ctx.capture_release(&capture).unwrap();
        rig.uses(bytes);
        rig.free(b);
        let capture = rig.ctx.capture_begin(rig.s, CaptureOptions::default()).unwrap();
        let _ = [(); 5].map(|()| rig.malloc(size));
        rig.uses(5 * bytes);
        rig.ctx.capture_abort(&capture).unwrap();
        rig.uses(0);
    }
    rig.ctx.trim(0).unwrap();
    rig.close();
}

/// What an arena's exit keeps from being handed out is its user's no more.
#[test]
fn what_is_in_quarantine_is_not_counted() {
    for unmap in [false, true] {
        let arena_debug = DebugMode { check: true, poison: !unmap, unmap, ..DebugMode::default() };
        let rig = Rig::new(Config { arena_debug, tiers: true, log: 0, ..Config::default() });
        let arena = rig.ctx.arena_enter("step").unwrap();
        let all = [300, 100 * KIB, 3 * MIB].map(|n| rig.malloc(n));
        assert!(rig.usage().used >= 300 + 100 * KIB + 3 * MIB);
        rig.ctx.arena_exit(&arena, &all[1..2]).unwrap();
        rig.uses(if unmap { PAGE } else { 100 * KIB });
        assert!(rig.ctx.check(all[0], "read", "x").is_err(), "it is in quarantine");
        rig.free(all[1]);
        // Giving the quarantine up changes nothing.
        rig.ctx.trim(0).unwrap();
        rig.close();
    }
}

// ---- reservations -------------------------------------------------------------------------------

#[test]
fn allocations_draw_from_what_they_name_else_the_streams_else_the_threads() {
    let rig = Rig::counted();
    let [named, of_stream, of_thread] = [(); 3].map(|()| rig.reserve(MIB, LimitPolicy::Fail));
    let t = rig.stream();
    let drawn = || [&named, &of_stream, &of_thread].map(Reservation::drawn);
    rig.ctx.attach_stream(&of_stream, rig.s).unwrap();
    of_thread.attach_thread().unwrap();
    let by_name = rig
        .ctx
        .malloc(&Request { size: 1000, stream: rig.s, reservation: Some(&named), ..Request::default() })
        .unwrap();
    assert_eq!(drawn(), [1024, 0, 0]);
    let by_stream = rig.malloc(1000);
    assert_eq!(drawn(), [1024, 1024, 0]);
    let by_thread = rig.malloc_on(1000, t);
    assert_eq!(drawn(), [1024, 1024, 1024]);
    assert_eq!(rig.usage().unreserved, 0);
    thread::scope(|s| {
        s.spawn(|| {
            let p = rig.malloc_on(512, t);
            assert_eq!((drawn(), rig.usage().unreserved), ([1024, 1024, 1024], 512), "another thread");
            // Freed by another thread and on another stream, they go back to where they came from.
            rig.ctx.free_async(by_stream, t).unwrap();
            rig.free(by_thread);
            rig.ctx.free(p).unwrap();
        });
    });
    assert_eq!(drawn(), [1024, 0, 0]);
    named.release().unwrap();
    assert_eq!(rig.usage().unreserved, 1024, "it outlives its reservation");
    rig.manager().detach_thread(rig.ctx.tiers().unwrap().gpu(D).unwrap()).unwrap();
    rig.free(by_name);
    drop((of_stream, of_thread));
    rig.close();
}

#[test]
fn a_reservation_of_another_space_is_refused() {
    let rig = Rig::counted();
    let far = rig.manager().reserve(tier::Request::exact(SpaceId::new(Tier::Gpu, 1), MIB)).unwrap();
    let from =
        |ctx: &Context, r| ctx.malloc(&Request { size: 8, stream: rig.s, reservation: Some(r), ..Request::default() });
    says(from(&rig.ctx, &far), Status::Invalid, &["GPU 1", "GPU 0", "use a reservation of that space"]);
    let near = rig.reserve(MIB, LimitPolicy::Fail);
    let strange = Rig::new(Config::default());
    says(from(&strange.ctx, &near), Status::Invalid, &["nothing is counted yet"]);
    strange.ctx.tiers().unwrap();
    says(from(&strange.ctx, &near), Status::Invalid, &["use a reservation of that space"]);
    near.release().unwrap();
    says(from(&rig.ctx, &near), Status::Invalid, &["has been released"]);
    drop(far);
    rig.close();
}

#[test]
fn the_policies_decide_about_what_does_not_fit() {
    let rig = Rig::counted();
    let fail = rig.reserve(MIB, LimitPolicy::Fail);
    fail.attach_thread().unwrap();
    let p = rig.malloc(MIB - 256);
    says(rig.try_malloc(257), Status::OutOfMemory, &["reservation", "512 B asked"]);
    rig.uses(MIB - 256);
    // In place, and by moving: neither fits, and all is as it was.
    says(rig.ctx.realloc(p, MIB + 1, rig.s), Status::OutOfMemory, &["reservation"]);
    assert_eq!((fail.drawn(), rig.ctx.info(p).unwrap().requested), (MIB - 256, MIB - 256));
    let p = rig.ctx.realloc(p, MIB, rig.s).unwrap();
    assert_eq!(fail.drawn(), MIB);
    fail.set_policy(LimitPolicy::Ignore).unwrap();
    let q = rig.malloc(300);
    assert_eq!((rig.usage().unreserved, fail.drawn()), (512, MIB));
    fail.set_policy(LimitPolicy::Increase { factor: Factor::new(2.0).unwrap(), cap: None, beyond_limit: false })
        .unwrap();
    let r = rig.malloc(300);
    assert_eq!((rig.usage().unreserved, fail.size()), (512, 2 * MIB));
    let told = Arc::new(Mutex::new(Vec::new()));
    fail.set_policy(LimitPolicy::Callback({
        let told = told.clone();
        Arc::new(move |o: &Overdraw| {
            told.lock().unwrap().push((o.bytes, o.stream));
            Decision::Grow(4 * MIB)
        })
    }))
    .unwrap();
    let big = rig.malloc(2 * MIB);
    assert_eq!((fail.size(), fail.drawn()), (6 * MIB, 3 * MIB + 512));
    // An allocation that grows in place calls nobody back under the pool's lock: it moves.
    let big = rig.ctx.realloc(big, 6 * MIB, rig.s).unwrap();
    assert_eq!((fail.size(), fail.drawn()), (10 * MIB, 7 * MIB + 512));
    assert_eq!(*told.lock().unwrap(), [(2 * MIB, rig.s.0 as u64), (6 * MIB, rig.s.0 as u64)]);
    [p, q, r, big].into_iter().for_each(|p| rig.free(p));
    assert_eq!(fail.drawn(), 0);
    drop(fail);
    rig.close();
}

/// Nothing is available outside of the reservation that it was allocated from by name. In place or
/// not, it grows there, and counts for the stream that it is resized on. When the reservation is
/// released it draws like any other.
#[test]
fn what_is_resized_stays_in_its_reservation() {
    let rig = Rig::counted();
    let [mine, of_thread] = [(); 2].map(|()| rig.reserve(64 * MIB, LimitPolicy::Fail));
    let full = rig.reserve(4 * KIB, LimitPolicy::Fail);
    let rest = rig.reserve(rig.usage().available, LimitPolicy::Fail);
    of_thread.attach_thread().unwrap();
    let t = rig.stream();
    let used = |s: StreamHandle| {
        let space = rig.ctx.tiers().unwrap().gpu(D).unwrap();
        rig.manager().stream_usage(space, s.0 as u64).unwrap().unwrap().now()
    };
    let malloc = |size, flags| {
        let reservation = Some(&mine);
        rig.ctx.malloc(&Request { size, flags, stream: rig.s, reservation, ..Request::default() }).unwrap()
    };
    // An object, a block, and one with memory of its own.
    for (size, flags, bytes) in [
        (1000, AllocFlags::default(), 40 * KIB),
        (4 * MIB, AllocFlags::default(), 8 * MIB),
        (PAGE, AllocFlags::SINGLE_HANDLE, 2 * PAGE),
    ] {
        let (p, behind) = (malloc(size, flags), malloc(size, flags));
        let before = mine.drawn();
        let q = rig.ctx.realloc(p, bytes, t).unwrap();
        assert_ne!(p, q, "it has moved");
        assert_eq!((mine.drawn(), of_thread.drawn()), (before / 2 + bytes, 0));
        assert_eq!((used(rig.s), used(t)), (before / 2, bytes));
        says(rig.ctx.realloc(q, 64 * MIB, t), Status::OutOfMemory, &["reservation"]);
        [q, behind].into_iter().for_each(|p| rig.ctx.free(p).unwrap());
        assert_eq!((mine.drawn(), used(t)), (0, 0));
    }
    // What shrinks does not fail where there is no room for both.
    let reservation = Some(&full);
    let p = rig.ctx.malloc(&Request { size: 4 * KIB, stream: rig.s, reservation, ..Request::default() }).unwrap();
    let p = rig.ctx.realloc(p, 512, t).unwrap();
    assert_eq!((full.drawn(), of_thread.drawn()), (0, 512));
    rig.ctx.free(p).unwrap();
    let p = malloc(4 * MIB, AllocFlags::default());
    let behind = malloc(4 * MIB, AllocFlags::default());
    mine.release().unwrap();
    let q = rig.ctx.realloc(p, 8 * MIB, t).unwrap();
    assert_eq!((of_thread.drawn(), rig.usage().unreserved), (8 * MIB, 4 * MIB));
    [q, behind].into_iter().for_each(|p| rig.ctx.free(p).unwrap());
    rig.manager().detach_thread(rig.ctx.tiers().unwrap().gpu(D).unwrap()).unwrap();
    drop((of_thread, full, rest));
    rig.close();
}

/// Part of it is beyond the reservation, which has room again. It neither grows in place, for which
/// all of that room is drawn first, nor has room to move.
#[test]
fn a_resize_that_fails_gives_back_what_it_drew_where_that_came_from() {
    let rig = Rig::counted();
    let r = rig.reserve(MIB, LimitPolicy::Ignore);
    let malloc = |size| {
        let reservation = Some(&r);
        rig.ctx.malloc(&Request { size, stream: rig.s, reservation, ..Request::default() }).unwrap()
    };
    let (first, partly, behind) = (malloc(512 * KIB), malloc(2 * MIB), rig.malloc(2 * MIB));
    rig.free(first);
    let before = rig.usage();
    rig.manager().set_limit(GPU, Some(before.promised + before.unreserved + MIB)).unwrap();
    assert_eq!((r.drawn(), before.unreserved), (512 * KIB, 3 * MIB + 512 * KIB));
    says(rig.ctx.realloc(partly, 2 * MIB + 600 * KIB, rig.s), Status::OutOfMemory, &["available in the space"]);
    let after = rig.usage();
    assert_eq!((r.drawn(), after.unreserved, after.peak), (512 * KIB, before.unreserved, before.peak));
    [partly, behind].into_iter().for_each(|p| rig.free(p));
    rig.manager().set_limit(GPU, None).unwrap();
    drop(r);
    rig.close();
}

#[test]
fn an_out_of_memory_callback_frees_and_retries() {
    let rig = Rig::counted();
    let cache = Arc::new(Mutex::new(vec![rig.malloc(500 * MIB), rig.malloc(300 * MIB)]));
    let calls = Arc::new(AtomicU64::new(0));
    let policy = OutOfMemoryPolicy::Callback({
        // The context outlives the callback's calls; a strong reference would be a circle.
        let (ctx, cache, calls) = (Arc::downgrade(&rig.ctx), cache.clone(), calls.clone());
        Arc::new(move |s: &Shortage| {
            assert_eq!(u64::from(s.attempt), calls.fetch_add(1, SeqCst) + 1);
            let ctx = ctx.upgrade().unwrap();
            // It may allocate itself.
            ctx.free(ctx.malloc(&Request { size: 100, ..Request::default() }).unwrap()).unwrap();
            cache.lock().unwrap().pop().is_some_and(|p| ctx.free(p).is_ok())
        })
    });
    rig.manager().set_out_of_memory_policy(GPU, policy.clone()).unwrap();
    let p = rig.malloc(600 * MIB);
    assert_eq!((calls.swap(0, SeqCst), cache.lock().unwrap().len()), (2, 0));
    says(rig.try_malloc(600 * MIB), Status::OutOfMemory, &["asked outside of any reservation"]);
    assert_eq!(calls.swap(0, SeqCst), 1, "there is nothing left to free");
    rig.uses(600 * MIB);

    // A reservation's own policy comes before the space's.
    let r = rig.reserve(MIB, LimitPolicy::Fail);
    r.set_out_of_memory_policy(Some(OutOfMemoryPolicy::Fail)).unwrap();
    let from = |size| rig.ctx.malloc(&Request { size, stream: rig.s, reservation: Some(&r), ..Request::default() });
    says(from(2 * MIB), Status::OutOfMemory, &["reservation"]);
    assert_eq!(calls.load(SeqCst), 0);
    rig.free(p);
    drop(r);
    rig.close();
}

/// The pool has no memory although the space has: that counts as a shortage, too.
#[test]
fn a_pool_without_memory_asks_the_policy() {
    let rig = Rig::counted();
    rig.ctx.set_limit(D, 100 * MIB).unwrap();
    let hoard = Arc::new(Mutex::new(Some(rig.malloc(80 * MIB))));
    let ctx = Arc::downgrade(&rig.ctx);
    let taken = hoard.clone();
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |_: &Shortage| {
        let ctx = ctx.upgrade().unwrap();
        taken.lock().unwrap().take().is_some_and(|p| ctx.free(p).is_ok())
    }));
    rig.manager().set_out_of_memory_policy(GPU, policy).unwrap();
    let p = rig.malloc(50 * MIB);
    rig.uses(50 * MIB);
    says(rig.try_malloc(80 * MIB), Status::OutOfMemory, &["the limit is 100.00 MiB"]);
    rig.uses(50 * MIB);
    rig.free(p);
    rig.close();
}

#[test]
fn the_limit_holds_for_what_is_promised_and_used() {
    let rig = Rig::new(Config { limit: Limit::Bytes(100 * MIB), tiers: true, ..Config::default() });
    let p = rig.malloc(30 * MIB);
    assert_eq!((rig.usage().limit, rig.usage().capacity), (100 * MIB, GIB));
    let r = rig.reserve(60 * MIB, LimitPolicy::Fail);
    says(
        rig.try_malloc(11 * MIB),
        Status::OutOfMemory,
        &["GPU 0", "11.00 MiB asked", "10.00 MiB of 100.00 MiB available"],
    );
    rig.uses(30 * MIB);
    let q = rig.malloc(10 * MIB);
    r.attach_thread().unwrap();
    // What was promised is there.
    let s = rig.malloc(40 * MIB);
    rig.uses(80 * MIB);
    [p, q, s].into_iter().for_each(|p| rig.free(p));
    drop(r);
    rig.close();
}

/// When counting begins, a space has the limit that its pool has then, if that was raised.
#[test]
fn a_space_starts_with_the_limit_in_force() {
    for (set, limit) in [(256 * MIB, 256 * MIB), (0, GIB)] {
        let rig = Rig::new(Config { limit: Limit::Bytes(64 * MIB), ..Config::default() });
        rig.ctx.set_limit(D, set).unwrap();
        let p = rig.malloc(40 * MIB);
        rig.ctx.tiers().unwrap();
        assert_eq!(rig.usage().limit, limit);
        let q = rig.malloc(100 * MIB);
        let asked = ["available", "free or release something"];
        says(rig.try_malloc(limit), Status::OutOfMemory, &asked);
        [p, q].into_iter().for_each(|p| rig.free(p));
    }
}

/// CUDA gives the handle of a destroyed stream to the next one: a reservation of the old one is not
/// the new one's.
#[test]
fn a_new_stream_of_an_old_handle_has_no_reservation() {
    let rig = Rig::counted();
    let r = rig.reserve(MIB, LimitPolicy::Fail);
    let old = rig.stream();
    rig.ctx.attach_stream(&r, old).unwrap();
    let p = rig.malloc_on(256, old);
    assert_eq!(r.drawn(), 256);
    rig.ctx.free_async(p, old).unwrap();
    rig.host.stream_destroy(D, old).unwrap();
    let new = rig.stream();
    assert_eq!(new, old, "the handle comes back");
    let p = rig.malloc_on(256, new);
    assert_eq!((r.drawn(), rig.usage().unreserved), (0, 256));
    // And what is attached to the new one before its first allocation stays.
    rig.host.stream_destroy(D, new).unwrap();
    let newer = rig.stream();
    assert_eq!(newer, old);
    rig.ctx.attach_stream(&r, newer).unwrap();
    let q = rig.malloc_on(256, newer);
    assert_eq!((r.drawn(), rig.usage().unreserved), (256, 256));
    [p, q].into_iter().for_each(|p| rig.ctx.free(p).unwrap());
    drop(r);
    rig.close();
}

/// What leaves memory and comes back is counted where it was, while that is there.
#[test]
fn a_source_draws_where_its_receipt_was_drawn() {
    let rig = Rig::counted();
    let r = rig.reserve(1000, LimitPolicy::Fail);
    let drawn = r.draw(600, 7).unwrap();
    let source = drawn.source();
    assert_eq!((source.space().id(), source.stream()), (GPU, 7));
    drop(drawn);
    let keep = |drawn, _: Option<&_>| Ok(drawn);
    let back = rig.manager().allocate_again(&source, 600, keep).unwrap();
    assert_eq!((r.drawn(), back.reservation()), (600, Some(r.id())));
    says(rig.manager().allocate_again(&source, 401, keep), Status::OutOfMemory, &["reservation"]);
    r.release().unwrap();
    let more = rig.manager().allocate_again(&source, 401, keep).unwrap();
    assert_eq!((rig.usage().unreserved, more.reservation()), (1001, None));
    drop((back, more));
    rig.close();
}

/// A pool without memory refuses what the space and the reservation would allow: growth, peaks and
/// all else are as before.
#[test]
fn what_the_pool_refuses_changes_neither_its_reservation_nor_a_peak() {
    let rig = Rig::counted();
    let increase = LimitPolicy::Increase { factor: Factor::new(2.0).unwrap(), cap: None, beyond_limit: false };
    let r = rig.reserve(8 * MIB, increase);
    rig.ctx.attach_stream(&r, rig.s).unwrap();
    rig.ctx.set_limit(D, 16 * MIB).unwrap();
    let p = rig.malloc(4 * MIB);
    let space = r.in_space();
    let stream = rig.manager().stream_usage(space, rig.s.0 as u64).unwrap().unwrap();
    let as_before = || {
        let peaks = [space.usage().peak(), r.usage().peak(), stream.peak()];
        assert_eq!((r.size(), r.drawn(), peaks), (8 * MIB, 4 * MIB, [4 * MIB; 3]));
        rig.uses(4 * MIB);
    };
    for bytes in [64 * MIB, 900 * MIB] {
        says(rig.try_malloc(bytes), Status::OutOfMemory, &[]);
        as_before();
        // It can neither grow where it is nor move.
        says(rig.ctx.realloc(p, bytes, rig.s), Status::OutOfMemory, &[]);
        as_before();
    }
    // What is made keeps its growth: by the factor, or by the need if that is more.
    let p = rig.ctx.realloc(p, 10 * MIB, rig.s).unwrap();
    assert_eq!((r.size(), r.drawn(), r.usage().peak()), (16 * MIB, 10 * MIB, 10 * MIB));
    rig.uses(10 * MIB);
    rig.free(p);
    drop(r);
    rig.close();
}

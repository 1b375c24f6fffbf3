//! Arenas under threads: finalizers against exits, and allocations in arenas that others end,
//! counted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::arena::{Arena, Pools, Registry};
use gpumem::base::size::{GIB, KIB};
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::{Config, Context, Request};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::{AllocFlags, Pool};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier, Mutex, OnceLock, RwLock};

const D: DeviceId = DeviceId(0);

fn context() -> (Arc<HostDriver>, Context) {
    let host = HostDriver::new(HostOptions { bytes_per_device: 16 * GIB, ..HostOptions::simulation(11) }).unwrap();
    (host.clone(), Context::new(host, Config::default()).unwrap())
}

fn nothing_left(host: &HostDriver, ctx: &Context) {
    let stats = ctx.stats(D).unwrap();
    assert_eq!((stats.allocations, stats.requested, stats.mallocs), (0, 0, stats.frees));
    ctx.validate().unwrap();
    assert!(host.reports().is_empty(), "{:?}", host.reports());
}

/// Small and large, and now and then with an extent of its own.
fn request(i: u64, stream: StreamHandle) -> Request<'static> {
    let flags = if i.is_multiple_of(500) { AllocFlags::SINGLE_HANDLE } else { AllocFlags::default() };
    let size = if i.is_multiple_of(64) { 300 * KIB } else { 300 + i % 7 * 1000 };
    Request { size, stream, flags, ..Request::default() }
}

/// Two threads free by id all that is allocated in an arena while the arena is exited, and a third
/// takes up what is freed.
#[test]
fn finalizers_race_the_exit_and_the_books_balance() {
    const BATCHES: u64 = 10;
    const BATCH: u64 = 4000;
    let (host, ctx) = context();
    let stream = host.stream_create(D).unwrap();
    let published = RwLock::new(Vec::new());
    // The exit and two finalizers; the first turn of a batch lets them loose, the second waits for
    // them.
    let turn = Barrier::new(3);
    let progress = AtomicUsize::new(0);
    let (exited, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (by_id, mut by_exit) = (AtomicU64::new(0), 0);
    std::thread::scope(|scope| {
        let finalizer = |swapped: bool| {
            for _ in 0..BATCHES {
                turn.wait();
                let published = published.read().unwrap();
                for i in 0..published.len() {
                    // The last quarter is the exit's, so that both have something to free, whatever
                    // the scheduler.
                    while i >= published.len() / 4 * 3 && !exited.load(Acquire) {
                        std::thread::yield_now();
                    }
                    let at = if swapped { i ^ 3 } else { i };
                    let (ptr, id): (u64, u64) = published[at];
                    by_id.fetch_add(u64::from(ctx.free_id(ptr, id, (i % 2 == 0).then_some(stream)).unwrap()), Relaxed);
                    progress.fetch_add(1, Relaxed);
                }
                drop(published);
                turn.wait();
            }
        };
        scope.spawn(move || finalizer(false));
        scope.spawn(move || finalizer(true));
        // What this one allocates takes up what is freed, and nobody else frees it.
        scope.spawn(|| {
            while !done.load(Acquire) {
                let mine = [(); 16].map(|()| ctx.malloc(&request(3, stream)).unwrap());
                mine.into_iter().for_each(|p| ctx.free(p).unwrap());
            }
        });
        for batch in 0..BATCHES {
            let arena = ctx.arena_enter("raced").unwrap();
            let made = (0..BATCH).map(|i| ctx.malloc(&request(i, stream)).unwrap());
            *published.write().unwrap() = made.map(|p| (p, ctx.info(p).unwrap().id)).collect();
            progress.store(0, Relaxed);
            exited.store(false, Relaxed);
            turn.wait();
            while progress.load(Relaxed) < (batch * 997 % BATCH) as usize {
                std::thread::yield_now();
            }
            by_exit += ctx.arena_exit(&arena, &[]).unwrap().freed;
            exited.store(true, Release);
            turn.wait();
        }
        done.store(true, Release);
    });
    let by_id = by_id.into_inner();
    println!("{by_exit} freed by exits, {by_id} by id");
    assert_eq!(by_exit + by_id, BATCHES * BATCH, "each is freed once");
    assert!(by_exit > 0 && by_id > 0);
    assert_eq!(ctx.stats(D).unwrap().late_frees, 2 * BATCHES * BATCH - by_id);
    nothing_left(&host, &ctx);
}

/// Threads allocate in an arena that they name while its owner ends it and enters the next. What
/// they were given is in the arena or was freed with it; what they were refused is freed; and
/// nobody else's memory is touched.
#[test]
fn allocations_in_arenas_that_end_are_in_them_or_refused() {
    let (host, ctx) = context();
    let stream = host.stream_create(D).unwrap();
    let now: Mutex<Option<Arc<Arena>>> = Mutex::new(None);
    let done = AtomicBool::new(false);
    let (given, refused, mut freed) = (AtomicU64::new(0), AtomicU64::new(0), 0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Acquire) {
                    let Some(arena) = now.lock().unwrap().clone() else { continue };
                    match ctx.malloc(&Request { arena: Some(&arena), ..request(3, stream) }) {
                        Ok(_) => drop(given.fetch_add(1, Relaxed)),
                        Err(e) => {
                            assert!(e.message.contains("exited already"), "{e}");
                            refused.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
        }
        // What this one allocates is of the same size, so it takes up what is freed, and is never
        // freed under it.
        scope.spawn(|| {
            while !done.load(Acquire) {
                let mine = [(); 8].map(|()| ctx.malloc(&request(3, stream)).unwrap());
                mine.into_iter().for_each(|p| ctx.free(p).unwrap());
            }
        });
        for _ in 0..300 {
            let arena = ctx.arena_enter("short").unwrap();
            *now.lock().unwrap() = Some(arena.clone());
            // Until somebody has used it.
            let before = given.load(Relaxed);
            while given.load(Relaxed) == before {
                std::thread::yield_now();
            }
            freed += ctx.arena_exit(&arena, &[]).unwrap().freed;
        }
        done.store(true, Release);
    });
    let (given, refused) = (given.into_inner(), refused.into_inner());
    println!("{given} given, {freed} freed by exits, {refused} refused");
    assert!(given >= 300 && freed >= given && freed <= given + refused);
    nothing_left(&host, &ctx);
}

/// What an exit is to keep is kept, whatever part of it the pointer names and whatever others free
/// and allocate beside it.
#[test]
fn an_exit_keeps_what_interior_pointers_name_beside_other_threads() {
    let (host, ctx) = context();
    let stream = host.stream_create(D).unwrap();
    let done = AtomicBool::new(false);
    // Blocks, which share their last 64 KiB with what lies behind them.
    let size = |i: u64| 66_000 + i * 7919 % 200_000;
    std::thread::scope(|scope| {
        for seed in [1, 2] {
            let (ctx, done) = (&ctx, &done);
            scope.spawn(move || {
                let mut all: Vec<u64> = Vec::new();
                for i in 0u64.. {
                    if done.load(Acquire) {
                        break;
                    }
                    if all.len() > 20 {
                        let at = (i * 31 % 20) as usize;
                        ctx.free(all.swap_remove(at)).unwrap();
                    }
                    let size = size(i + seed);
                    all.push(ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap());
                }
                all.into_iter().for_each(|p| ctx.free(p).unwrap());
            });
        }
        let wrong = (0..300u64).find_map(|round| {
            let arena = ctx.arena_enter("kept").unwrap();
            let mine = (0..20).map(|i| {
                let size = size(round * 20 + i);
                (ctx.malloc(&Request { size, stream, ..Request::default() }).unwrap(), size)
            });
            let mine: Vec<(u64, u64)> = mine.collect();
            let keep: Vec<u64> = mine.iter().map(|(p, size)| p + size - 1).collect();
            let report = ctx.arena_exit(&arena, &keep).unwrap();
            let lost = mine.iter().filter(|(p, _)| ctx.free(*p).is_err()).count();
            let counts = (report.kept, report.freed, report.unknown, lost);
            (counts != (20, 0, 0, 0)).then(|| format!("round {round}: kept, freed, unknown, lost: {counts:?}"))
        });
        done.store(true, Release);
        assert_eq!(wrong, None);
    });
    nothing_left(&host, &ctx);
}

/// Calls a function where an arena's end looks at the pools.
struct Meanwhile<F>(F);

impl<F: Fn()> Pools for Meanwhile<F> {
    fn each(&self, _: &mut dyn FnMut(&Pool)) {
        self.0();
    }
}

/// What an exit keeps goes to the arena around, which another thread must not end before.
#[test]
fn an_arena_is_not_aborted_while_another_thread_ends_one_inside_it() {
    let registry = Registry::default();
    let nothing: Arc<[OnceLock<Pool>]> = Arc::new([]);
    let outer = registry.enter("outer").unwrap();
    let inner = registry.enter("inner").unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            registry.attach(&inner).unwrap();
            std::thread::park();
            let during = Meanwhile(|| {
                let e = registry.abort(&outer, &nothing).unwrap_err();
                assert!(e.status == Status::Invalid && e.message.contains("being ended"), "{e}");
            });
            registry.exit(&inner, &[1], &during).unwrap();
        });
        while registry.stats(&inner, &nothing).unwrap().threads < 2 {
            std::thread::yield_now();
        }
        registry.detach(&inner).unwrap();
        registry.detach(&outer).unwrap();
        other.thread().unpark();
    });
    registry.abort(&outer, &nothing).unwrap();
    assert_eq!(registry.open_count(), 0);
}

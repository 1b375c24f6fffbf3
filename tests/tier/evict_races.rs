//! Evictable allocations that are used, moved and freed at once, by many threads or in callbacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::evict_support;

use evict_support::{Options, Rig, D, PAGE};
use gpumem::base::size::MIB;
use gpumem::base::{Status, StreamHandle};
use gpumem::context::config::{Config, Limit, PinnedBlocks};
use gpumem::context::{Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions, Kernel};
use gpumem::driver::{Call, Driver, Fault, FaultRule};
use gpumem::pool::AllocFlags;
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::{
    Amount, Decision, LimitPolicy, OutOfMemoryPolicy, Overdraw, Request as Reserve, SpaceId, Strategy, Tier,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use test_support::rounds;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);

/// Whatever moment a free comes at, nothing is lost: not the memory, not the addresses, not a
/// count.
#[test]
fn a_free_at_any_moment_of_a_move_loses_nothing() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let (at, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let p = at.load(Acquire);
                    if p != 0 {
                        let _ = rig.ctx.shift(What::One(p), Goal::Lower, None, None);
                        let _ = rig.ctx.shift(What::One(p), Goal::Device, None, None);
                    }
                }
            });
        }
        // The books are right at every moment, not only when all is done.
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                rig.ctx.validate().unwrap();
            }
        });
        let s = rig.stream();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..rounds(1500) {
            let p = rig.malloc(4096, 1, s);
            at.store(p, Release);
            for _ in 0..rng.u32(0..20000) {
                std::hint::spin_loop();
            }
            rig.ctx.free_async(p, s).unwrap();
        }
        stop.store(true, Relaxed);
    });
    rig.close();
}

/// A move of one allocation that is freed before it is there says so. One of a tag goes on.
#[test]
fn a_move_of_what_is_freed_meanwhile_is_an_error() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let other = tempfile::TempDir::new().unwrap();
    let other = rig.ctx.tiers().unwrap().disks().add_mount(other.path(), Some(64 * MIB)).unwrap();
    let s = rig.stream();
    let (disk, host) = (Goal::Away(To::Tier(Tier::Disk)), Goal::Nearer(To::Tier(Tier::Host)));
    let to_other = Goal::Away(To::Space(SpaceId::new(Tier::Disk, other)));
    let moves = [
        (None, Goal::Lower),
        (None, disk),
        (Some(Goal::Lower), Goal::Device),
        (Some(Goal::Lower), disk),
        (Some(disk), Goal::Device),
        (Some(disk), host),
        (Some(disk), to_other),
    ];
    for (from, goal) in moves {
        for what in [What::One, |_| What::Tag(1)] {
            let all = [(); 2].map(|()| rig.malloc(PAGE, 1, s));
            if let Some(from) = from {
                rig.ctx.shift(What::Tag(1), from, Some(s), None).unwrap();
            }
            let mut freed = false;
            let mut free = |_, _| {
                if !std::mem::replace(&mut freed, true) {
                    rig.ctx.free_async(all[0], s).unwrap();
                }
                true
            };
            match (what(all[0]), rig.ctx.shift(what(all[0]), goal, Some(s), Some(&mut free))) {
                (What::One(_), moved) => assert_eq!(moved.unwrap_err().status, Status::UnknownPointer, "{goal:?}"),
                (What::Tag(_), moved) => assert_eq!(moved.unwrap().items, 1, "{goal:?}"),
            }
            rig.ctx.free_async(all[1], s).unwrap();
        }
    }
    rig.close();
}

/// Allocations that come and go while others move, at addresses that are used again and again: the
/// order of use has just those that live.
#[test]
fn addresses_that_are_used_again_do_not_confuse_the_order_of_use() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let slots: Vec<_> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let users: Vec<_> = (0..3)
            .map(|t| {
                let (rig, slots) = (&rig, &slots);
                scope.spawn(move || {
                    let s = rig.stream();
                    let mut rng = fastrand::Rng::with_seed(t);
                    for _ in 0..600 {
                        let slot = &slots[rng.usize(0..slots.len())];
                        let Ok(p) = rig.try_malloc(PAGE, 1, s) else { continue };
                        if rng.bool() && rig.ctx.hold(p).is_ok() {
                            rig.ctx.unhold(p, s).unwrap();
                        }
                        let old = slot.swap(p, AcqRel);
                        if old != 0 {
                            rig.ctx.free_async(old, s).unwrap();
                        }
                    }
                })
            })
            .collect();
        for goal in [Goal::Lower, Goal::Device] {
            let (rig, stop) = (&rig, &stop);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    let _ = rig.ctx.shift(What::Tag(1), goal, None, None);
                }
            });
        }
        users.into_iter().for_each(|u| u.join().unwrap());
        stop.store(true, Relaxed);
    });
    rig.books();
    for slot in &slots {
        let p = slot.load(Relaxed);
        if p != 0 {
            rig.ctx.free(p).unwrap();
        }
    }
    rig.close();
}

/// Several threads allocate the first evictable memory at once: there is one mover, and it works.
#[test]
fn whoever_comes_first_the_mover_lives() {
    for _ in 0..rounds(15) {
        let rig = Rig::new(Options { pages: 100, mover: true, ..Options::default() });
        let s = rig.stream();
        rig.ctx.tiers().unwrap();
        let (together, all) = (Barrier::new(4), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    all.lock().unwrap().push(rig.malloc(PAGE, 0, s));
                });
            }
        });
        let mut all = all.into_inner().unwrap();
        while all.len() < 86 {
            let p = rig.malloc(PAGE, 0, s);
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
            all.push(p);
        }
        let start = Instant::now();
        while rig.usage(GPU).used / PAGE > 65 {
            assert!(start.elapsed() < Duration::from_secs(30), "nobody moves anything");
            thread::sleep(Duration::from_millis(1));
        }
        for p in all {
            rig.ctx.free_async(p, s).unwrap();
        }
        rig.close();
    }
}

/// Far more unholds than markers can be pending, on a stream that does not come on.
#[test]
fn a_busy_stream_can_be_named_as_often_as_one_likes() {
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let p = rig.malloc(PAGE, 0, s);
    rig.host.hold(D, s).unwrap();
    rig.fill(s, p, PAGE, 1);
    for _ in 0..2000 {
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
    }
    rig.host.release(D, s).unwrap();
    rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap();
    rig.ctx.hold(p).unwrap();
    rig.check(s, p, PAGE, 1);
    rig.ctx.unhold(p, s).unwrap();
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

/// A stream is destroyed with work left that uses the allocation, and another one gets its handle.
#[test]
fn uses_on_a_stream_that_is_gone_are_waited_for() {
    for seed in 0..20 {
        let rig = Rig::new(Options { late: Some(seed), ..Options::default() });
        let home = rig.stream();
        let p = rig.malloc(PAGE, 0, home);
        rig.fill(home, p, PAGE, 1);
        rig.host.stream_sync(D, home).unwrap();
        for _ in 0..2 {
            let s = rig.stream();
            rig.ctx.hold(p).unwrap();
            rig.check(s, p, PAGE, 1);
            rig.ctx.unhold(p, s).unwrap();
            rig.host.stream_destroy(D, s).unwrap();
        }
        rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap();
        let q = rig.malloc(PAGE, 0, home);
        rig.fill(home, q, PAGE, 2);
        for p in [p, q] {
            rig.ctx.free_async(p, home).unwrap();
        }
        rig.close();
    }
}

/// Two restores that find no memory, and out-of-memory callbacks that evict what the other
/// restores: both come back.
#[test]
fn callbacks_that_evict_what_another_move_holds_get_an_error() {
    let rig = Arc::new(Rig::new(Options { pages: 4, ..Options::default() }));
    let s = rig.stream();
    let mut all = Vec::new();
    for tag in [1, 2] {
        for _ in 0..2 {
            all.push(rig.malloc(PAGE, tag, s));
            rig.ctx.shift(What::Tag(tag), Goal::Lower, Some(s), None).unwrap();
        }
    }
    // Of the three free pages two are taken, so both restores lack one, whichever is first.
    all.push(rig.malloc(2 * PAGE, 9, s));
    let (mine, both) = (Arc::new(Mutex::new(std::collections::HashMap::new())), Arc::new(Barrier::new(2)));
    let (weak, whose) = (Arc::downgrade(&rig), mine.clone());
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |shortage| {
        if shortage.attempt > 1 {
            return false;
        }
        both.wait();
        let own: u64 = whose.lock().unwrap()[&thread::current().id()];
        let rig = weak.upgrade().unwrap();
        // It works where the other one has given up meanwhile.
        if let Err(e) = rig.ctx.shift(What::Tag(3 - own), Goal::Lower, None, None) {
            assert!(e.status == Status::Invalid && e.message.contains("callback"), "{e}");
        }
        false
    }));
    rig.ctx.tiers().unwrap().manager().set_out_of_memory_policy(GPU, policy).unwrap();
    thread::scope(|scope| {
        for tag in [1, 2] {
            let (rig, mine) = (&rig, &mine);
            scope.spawn(move || {
                mine.lock().unwrap().insert(thread::current().id(), tag);
                let e = rig.ctx.shift(What::Tag(tag), Goal::Device, None, None).unwrap_err();
                assert_eq!(e.status, Status::OutOfMemory, "{e}");
            });
        }
    });
    rig.books();
    rig.ctx.tiers().unwrap().manager().set_out_of_memory_policy(GPU, OutOfMemoryPolicy::Fail).unwrap();
    for p in all {
        rig.ctx.free(p).unwrap();
    }
    rig.close();
}

/// The callback of a reservation that a move draws from allocates on the device that the move
/// empties: there is no memory before the callback ends, so it is told that, and the move goes on.
#[test]
fn an_overdraw_callback_does_not_wait_for_the_move_that_called_it() {
    let rig = Arc::new(Rig::new(Options { pages: 8, ..Options::default() }));
    let s = rig.stream();
    let leaving = rig.malloc(PAGE, 1, s);
    rig.ctx.hold(leaving).unwrap();
    rig.ctx.unhold(leaving, s).unwrap();
    let fixed = rig.malloc(6 * PAGE, 2, s);
    let tiers = rig.ctx.tiers().unwrap();
    let space = SpaceId::new(Tier::Host, tiers.host().nodes()[0]);
    let (weak, seen) = (Arc::downgrade(&rig), Arc::new(Mutex::new(Vec::new())));
    let policy = LimitPolicy::Callback({
        let seen = seen.clone();
        Arc::new(move |_: &Overdraw| {
            let got = weak.upgrade().unwrap().try_malloc(PAGE, 3, s).map_err(|e| e.status);
            seen.lock().unwrap().push(got);
            Decision::Ignore
        })
    });
    let request = Reserve::new(Strategy::Space(space), Amount::Exact(1)).policy(policy);
    let small = tiers.manager().reserve(request).unwrap();
    small.attach_thread().unwrap();
    let moved = rig.ctx.shift(What::One(leaving), Goal::Lower, Some(s), None).unwrap();
    assert_eq!((moved.items, &*seen.lock().unwrap()), (1, &vec![Err(Status::OutOfMemory)]));
    tiers.manager().detach_thread(small.in_space()).unwrap();
    small.release().unwrap();
    for p in [leaving, fixed] {
        rig.ctx.free(p).unwrap();
    }
    rig.close();
}

/// A hold lacks memory while a move of a tag waits for what it holds: the idle part of the tag
/// makes room, since the move has let go of it.
#[test]
fn a_move_that_waits_keeps_nothing_from_making_room() {
    let rig = Rig::new(Options { pages: 10, ..Options::default() });
    let s = rig.stream();
    let mut all = [(); 2].map(|()| rig.malloc(4 * PAGE, 1, s));
    all.sort();
    let [idle, wanted] = all;
    let manager = rig.ctx.tiers().unwrap().manager();
    let (called, wait) = std::sync::mpsc::channel();
    // Where it is called, the hold has claimed what it brings back.
    let policy = LimitPolicy::Callback({
        let called = Mutex::new(Some(called));
        Arc::new(move |_: &Overdraw| {
            if let Some(called) = called.lock().unwrap().take() {
                called.send(()).unwrap();
                thread::sleep(Duration::from_millis(200));
            }
            Decision::Ignore
        })
    });
    rig.ctx.free_async(wanted, s).unwrap();
    let small = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(4 * PAGE))).unwrap();
    small.attach_thread().unwrap();
    let wanted = rig.malloc(4 * PAGE, 1, s);
    assert!(idle < wanted, "the one that is idle is claimed first");
    manager.detach_thread(small.in_space()).unwrap();
    rig.ctx.hold(idle).unwrap();
    rig.ctx.unhold(idle, s).unwrap();
    rig.ctx.shift(What::One(wanted), Goal::Lower, Some(s), None).unwrap();
    small.shrink(2 * PAGE).unwrap();
    small.set_policy(policy).unwrap();
    let fixed = rig.malloc(3 * PAGE, 2, s);
    thread::scope(|scope| {
        let rig = &rig;
        scope.spawn(move || {
            wait.recv().unwrap();
            let moved = rig.ctx.shift(What::Tag(1), Goal::Lower, None, None);
            assert_eq!(moved.unwrap_err().status, Status::Invalid, "it is held by then");
        });
        rig.ctx.hold(wanted).unwrap();
    });
    assert_ne!(rig.ctx.location(idle).unwrap().space, Some(GPU));
    small.release().unwrap();
    for p in [idle, wanted, fixed] {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// A restore of a tag lets go of what is there already: it makes room for a hold meanwhile.
#[test]
fn what_need_not_move_makes_room_while_the_others_do() {
    let rig = Rig::new(Options { pages: 53, ..Options::default() });
    let s = rig.stream();
    // So many parts that the first is over before the last is submitted.
    let (first, wanted) = (rig.malloc(40 * PAGE, 1, s), rig.malloc(PAGE, 2, s));
    for p in [first, wanted] {
        rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
    }
    let there: Vec<u64> = (0..12).map(|_| rig.malloc(PAGE, 1, s)).collect();
    for &p in &there {
        assert!(first < p, "it is claimed first, and moved first");
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
    }
    thread::scope(|scope| {
        let mut held = None;
        // Called before the others of the tag have their turn.
        let mut progress = |_, _| {
            held.get_or_insert_with(|| scope.spawn(|| rig.ctx.hold(wanted)).join().unwrap());
            true
        };
        rig.ctx.shift(What::Tag(1), Goal::Device, Some(s), Some(&mut progress)).unwrap();
        held.unwrap().unwrap();
    });
    for p in [vec![first, wanted], there].concat() {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// A thread moves a tag again and again, most of which is idle: it never keeps a hold from making
/// room.
#[test]
fn claims_of_a_moment_keep_no_hold_from_making_room() {
    let cases: [(u64, u64, &[Goal]); 4] = [
        (1001, 1000, &[Goal::Device]),
        (17, 40, &[Goal::Device]),
        (17, 40, &[Goal::Lower]),
        (3, 1, &[Goal::Lower, Goal::Device]),
    ];
    for (pages, tagged, goals) in cases {
        let rig = Rig::new(Options { pages, ..Options::default() });
        let s = rig.stream();
        let malloc = |tag| {
            let p = rig.malloc(4096, tag, s);
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
            p
        };
        let tagged: Vec<u64> = (0..tagged).map(|_| malloc(1)).collect();
        let wanted = malloc(2);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    for &goal in goals {
                        // A restore of all may be more than there is room for.
                        let _ = rig.ctx.shift(What::Tag(1), goal, None, None);
                    }
                }
            });
            let holds = || {
                (0..rounds(4000)).try_for_each(|_| {
                    rig.ctx.hold(wanted)?;
                    rig.ctx.unhold(wanted, s)?;
                    // So that the next hold needs room, too.
                    rig.ctx.shift(What::One(wanted), Goal::Lower, None, None).map(drop)
                })
            };
            let outcome = holds();
            stop.store(true, Relaxed);
            outcome.unwrap();
        });
        for p in [vec![wanted], tagged].concat() {
            rig.ctx.free_async(p, s).unwrap();
        }
        rig.close();
    }
}

/// A callback that makes room for a resize promotes what is resized: it stays where the callback
/// has put it.
#[test]
fn what_is_promoted_while_it_is_resized_stays_promoted() {
    let rig = Arc::new(Rig::new(Options { pages: 16, ..Options::default() }));
    let manager = rig.ctx.tiers().unwrap().manager();
    let arena = rig.ctx.arena_enter("step").unwrap();
    let malloc = |pages| rig.ctx.malloc(&Request { size: pages * PAGE, ..Request::default() }).unwrap();
    let (resized, in_the_way) = (malloc(4), malloc(8));
    let weak = Arc::downgrade(&rig);
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |shortage| {
        let rig = weak.upgrade().unwrap();
        rig.ctx.arena_promote(resized).unwrap();
        rig.ctx.free(in_the_way).unwrap();
        shortage.attempt == 1
    }));
    manager.set_out_of_memory_policy(GPU, policy).unwrap();
    let moved = rig.ctx.realloc(resized, 9 * PAGE, StreamHandle::LEGACY).unwrap();
    assert_ne!(moved, resized);
    assert_eq!(rig.ctx.arena_exit(&arena, &[]).unwrap().freed, 0);
    rig.ctx.free(moved).unwrap();
    manager.set_out_of_memory_policy(GPU, OutOfMemoryPolicy::Fail).unwrap();
    rig.close();
}

/// A copy fails, and so does the wait for those that were submitted before it: nothing is taken for
/// whole, and what the device may still touch is not used for anything else.
#[test]
fn copies_that_were_never_known_to_be_over_count_for_nothing() {
    for seed in 0..20 {
        let bytes_per_device = 64 * PAGE;
        let host = HostDriver::new(HostOptions { bytes_per_device, ..HostOptions::simulation(seed) }).unwrap();
        let inner = Arc::new(Fault::new(host.clone()));
        let outer = Arc::new(Fault::new(inner.clone()));
        let config = Config {
            pinned_blocks: PinnedBlocks { block_bytes: MIB, blocks: 8, chunks: 1 },
            pinned_limit: Limit::Bytes(256 * MIB),
            mover: false,
            ..Config::default()
        };
        let ctx = Context::new(outer.clone(), config).unwrap();
        let s = host.stream_create(D).unwrap();
        let malloc = || {
            let flags = AllocFlags::EVICTABLE;
            ctx.malloc(&Request { size: PAGE, tag: 1, stream: s, flags, ..Request::default() }).unwrap()
        };
        let all = [malloc(), malloc()];
        for &p in &all {
            host.launch(D, s, Kernel::write_pattern("fill", p..p + PAGE, p, 4096)).unwrap();
        }
        host.device_sync(D).unwrap();
        for goal in [Goal::Lower, Goal::Device] {
            outer.set_rule(Some(FaultRule::nth_of(Call::CopyAsync, 1).with_status(Status::Driver)));
            inner.set_rule(Some(FaultRule::nth_of(Call::StreamSync, 0).with_status(Status::Driver).lasting()));
            let e = ctx.shift(What::Tag(1), goal, Some(s), None).unwrap_err();
            assert_eq!(e.status, Status::Driver, "{e}");
            outer.set_rule(None);
            inner.set_rule(None);
            ctx.shift(What::Tag(1), goal, Some(s), None).unwrap();
        }
        for &p in &all {
            host.launch(D, s, Kernel::check_pattern("check", p..p + PAGE, p, 4096)).unwrap();
            ctx.free_async(p, s).unwrap();
        }
        host.device_sync(D).unwrap();
        assert!(host.reports().is_empty(), "seed {seed}: {:#?}", host.reports());
        ctx.trim(0).unwrap();
        let m = host.mem_info(D).unwrap();
        assert_eq!(m.free, m.total, "seed {seed}");
        for space in ctx.tiers().unwrap().manager().spaces() {
            assert_eq!(space.usage().now(), 0, "seed {seed}: {}", space.id());
        }
    }
}

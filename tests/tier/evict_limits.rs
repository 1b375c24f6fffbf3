//! What is moved for want of memory, and what is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::evict_support;

use evict_support::{asked_in_vain, Options, Rig, D, PAGE};
use gpumem::arena::DebugMode;
use gpumem::base::size::MIB;
use gpumem::base::{DeviceId, Status, StreamHandle};
use gpumem::context::config::{Config, DiskMount, Limit, PinnedBlocks};
use gpumem::context::{Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::AllocFlags;
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::{
    Amount, Decision, Factor, LimitPolicy, OutOfMemoryPolicy, Request as Reserve, Shortage, SpaceId, Strategy, Tier,
    Wait,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);

/// Evictable pages that may be moved by themselves.
fn movable(rig: &Rig, n: usize, s: StreamHandle) -> Vec<u64> {
    let one = || {
        let p = rig.malloc(PAGE, 0, s);
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
        p
    };
    (0..n).map(|_| one()).collect()
}

fn resident(rig: &Rig, all: &[u64]) -> usize {
    all.iter().filter(|&&p| rig.ctx.location(p).unwrap().space == Some(GPU)).count()
}

fn close(rig: &Rig, all: &[u64], s: StreamHandle) {
    for &p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// What would not be enough if all of it went stays.
#[test]
fn a_request_that_can_never_be_met_moves_nothing() {
    let rig = Rig::new(Options { pages: 32, ..Options::default() });
    let s = rig.stream();
    let all = movable(&rig, 10, s);
    let fixed = rig.malloc(12 * PAGE, 0, s);
    for size in [1 << 50, 33 * PAGE, 20 * PAGE] {
        for flags in [AllocFlags::EVICTABLE, AllocFlags::SINGLE_HANDLE, AllocFlags::default()] {
            let e = rig.ctx.malloc(&Request { size, stream: s, flags, ..Request::default() }).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory, "{e}");
            assert_eq!(resident(&rig, &all), 10, "{size} {flags:?}");
        }
    }
    rig.ctx.free_async(fixed, s).unwrap();
    close(&rig, &all, s);
}

/// Where a limit was lowered below the use, what is above it must go, too: if that cannot be met,
/// nothing goes, and otherwise just as much as is missing.
#[test]
fn what_is_above_a_lowered_limit_is_missing_as_well() {
    for of_the_pool in [false, true] {
        let rig = Rig::new(Options { pages: 64, ..Options::default() });
        let s = rig.stream();
        let all = movable(&rig, 6, s);
        let fixed = rig.malloc(16 * PAGE, 0, s);
        let manager = rig.ctx.tiers().unwrap().manager();
        let lower = |pages: u64| match of_the_pool {
            true => rig.ctx.set_limit(D, pages * PAGE).unwrap(),
            false => manager.set_limit(GPU, Some(pages * PAGE)).unwrap(),
        };
        // 23 pages are used, one of them by the rig.
        lower(10);
        for flags in [AllocFlags::EVICTABLE, AllocFlags::SINGLE_HANDLE, AllocFlags::default()] {
            let e = rig.ctx.malloc(&Request { size: PAGE, stream: s, flags, ..Request::default() }).unwrap_err();
            assert_eq!(e.status, Status::OutOfMemory, "{e}");
            assert_eq!(resident(&rig, &all), 6, "{of_the_pool} {flags:?}");
        }
        lower(20);
        let p = rig.malloc(PAGE, 0, s);
        assert_eq!(resident(&rig, &all), 2, "{of_the_pool}");
        close(&rig, &[all, vec![fixed, p]].concat(), s);
    }
}

/// A reservation that may grow above the limit needs what the capacity lacks, and no more.
#[test]
fn what_a_policy_let_go_above_the_limit_is_not_missing() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let s = rig.stream();
    let all = movable(&rig, 20, s);
    let manager = rig.ctx.tiers().unwrap().manager();
    manager.set_limit(GPU, Some(32 * PAGE)).unwrap();
    let policy = LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: true };
    let request = Reserve::new(Strategy::Space(GPU), Amount::Exact(PAGE));
    let above = manager.reserve(Reserve { policy, ..request }).unwrap();
    above.attach_thread().unwrap();
    // All of the device: 21 pages are used outside of the reservation.
    let p = rig.malloc(43 * PAGE, 0, s);
    assert_eq!((resident(&rig, &all), rig.usage(GPU).beyond), (20, 32 * PAGE));
    let q = rig.malloc(2 * PAGE, 0, s);
    assert_eq!((resident(&rig, &all), rig.usage(GPU).beyond), (18, 32 * PAGE));
    manager.detach_thread(above.in_space()).unwrap();
    above.release().unwrap();
    close(&rig, &[all, vec![p, q]].concat(), s);
}

/// A reservation that is too small is helped only by what is drawn from it.
#[test]
fn an_overdrawn_reservation_moves_only_its_own() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let s = rig.stream();
    let others = movable(&rig, 10, s);
    let manager = rig.ctx.tiers().unwrap().manager();
    let small = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(4 * PAGE))).unwrap();
    small.attach_thread().unwrap();
    assert_eq!(rig.try_malloc(5 * PAGE, 0, s).unwrap_err().status, Status::OutOfMemory);
    assert_eq!(resident(&rig, &others), 10);
    // A working set of three times the reservation lives in it.
    let own = movable(&rig, 12, s);
    assert_eq!((resident(&rig, &others), resident(&rig, &own)), (10, 4));
    assert_eq!((small.drawn(), small.size()), (4 * PAGE, 4 * PAGE));
    for &p in &own {
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
    }
    assert_eq!((resident(&rig, &others), resident(&rig, &own)), (10, 4));
    manager.detach_thread(small.in_space()).unwrap();
    small.release().unwrap();
    close(&rig, &[others, own].concat(), s);
}

/// A reservation that may take from outside or grow finds the space too full: what is outside of
/// all reservations makes room, oldest first, and just as much as is short. What others have
/// reserved stays, since moving it out would give the space nothing.
#[test]
fn a_reservation_that_takes_from_outside_moves_what_is_outside() {
    let grow = |pages: u64| LimitPolicy::Callback(Arc::new(move |_| Decision::Grow(pages * PAGE)));
    let increase = LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: false };
    for policy in [LimitPolicy::Ignore, increase, grow(16)] {
        let rig = Rig::new(Options { pages: 64, ..Options::default() });
        let s = rig.stream();
        let manager = rig.ctx.tiers().unwrap().manager();
        let reserve = |pages, policy| {
            let request = Reserve::new(Strategy::Space(GPU), Amount::Exact(pages * PAGE));
            manager.reserve(Reserve { policy, ..request }).unwrap()
        };
        let theirs = reserve(10, LimitPolicy::Fail);
        theirs.attach_thread().unwrap();
        let reserved = movable(&rig, 10, s);
        manager.detach_thread(theirs.in_space()).unwrap();
        let outside = movable(&rig, 40, s);
        let small = reserve(4, policy.clone());
        small.attach_thread().unwrap();
        // 4 of its own, and 16 more, of which the space has 9: one of its 64 is the rig's.
        let p = rig.malloc(20 * PAGE, 0, s);
        assert_eq!((resident(&rig, &reserved), resident(&rig, &outside)), (10, 33), "{policy:?}");
        assert!(outside[..7].iter().all(|p| rig.ctx.location(*p).unwrap().space != Some(GPU)));
        manager.detach_thread(small.in_space()).unwrap();
        small.release().unwrap();
        theirs.release().unwrap();
        close(&rig, &[reserved, outside, vec![p]].concat(), s);
    }
}

/// All of the space is promised, so a reservation that may take from outside or grow gets nothing
/// there. Its own idle memory makes room, as it does for one whose policy is to fail: for a hold
/// and for new memory, whatever it wants to grow by.
#[test]
fn a_reservation_that_may_have_more_still_makes_room_by_its_own() {
    let grow = |pages: u64| LimitPolicy::Callback(Arc::new(move |_| Decision::Grow(pages * PAGE)));
    let increase = LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: false };
    let ignore = LimitPolicy::Callback(Arc::new(|_| Decision::Ignore));
    for policy in [LimitPolicy::Fail, LimitPolicy::Ignore, increase, ignore, grow(2), grow(40), grow(1000)] {
        let rig = Rig::new(Options { pages: 64, ..Options::default() });
        let s = rig.stream();
        let manager = rig.ctx.tiers().unwrap().manager();
        let request = Reserve::new(Strategy::Space(GPU), Amount::Exact(8 * PAGE));
        let small = manager.reserve(Reserve { policy: policy.clone(), ..request }).unwrap();
        let rest = Amount::Exact(rig.usage(GPU).available);
        let rest = manager.reserve(Reserve::new(Strategy::Space(GPU), rest)).unwrap();
        small.attach_thread().unwrap();
        let own = movable(&rig, 8, s);
        rig.ctx.shift(What::One(own[7]), Goal::Lower, Some(s), None).unwrap();
        let new = movable(&rig, 1, s);
        assert_eq!(resident(&rig, &own), 7, "{policy:?}");
        rig.ctx.hold(own[7]).unwrap();
        assert_eq!((resident(&rig, &own), resident(&rig, &new)), (7, 1), "{policy:?}: the oldest has gone");
        assert_eq!((small.drawn(), small.size()), (8 * PAGE, 8 * PAGE));
        manager.detach_thread(small.in_space()).unwrap();
        rest.release().unwrap();
        small.release().unwrap();
        close(&rig, &[own, new].concat(), s);
    }
}

/// All of the space is promised, and an allocation from a reservation needs no promise, only
/// memory: just as much moves out as the device lacks.
#[test]
fn what_a_reservation_has_promised_lacks_only_memory() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let s = rig.stream();
    let all = movable(&rig, 20, s);
    rig.ctx.set_limit(D, 40 * PAGE).unwrap();
    let manager = rig.ctx.tiers().unwrap().manager();
    let large = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(43 * PAGE))).unwrap();
    assert_eq!(rig.usage(GPU).available, 0);
    large.attach_thread().unwrap();
    // Of the 40 pages 21 are used, so 11 are missing.
    let flags = AllocFlags::SINGLE_HANDLE;
    let p = rig.ctx.malloc(&Request { size: 30 * PAGE, stream: s, flags, ..Request::default() }).unwrap();
    assert_eq!(resident(&rig, &all), 9);
    manager.detach_thread(large.in_space()).unwrap();
    rig.ctx.free_async(p, s).unwrap();
    large.release().unwrap();
    close(&rig, &all, s);
}

/// Of what the space is short, only the part outside of its reservation helps.
#[test]
fn what_is_partly_reserved_makes_room_by_its_other_part() {
    let rig = Rig::new(Options { pages: 64, ..Options::default() });
    let s = rig.stream();
    let manager = rig.ctx.tiers().unwrap().manager();
    let request = Reserve::new(Strategy::Space(GPU), Amount::Exact(8 * PAGE));
    let small = manager.reserve(Reserve { policy: LimitPolicy::Ignore, ..request }).unwrap();
    small.attach_thread().unwrap();
    let partly = rig.malloc(10 * PAGE, 0, s);
    rig.ctx.hold(partly).unwrap();
    rig.ctx.unhold(partly, s).unwrap();
    manager.detach_thread(small.in_space()).unwrap();
    let outside = movable(&rig, 10, s);
    let fixed = rig.malloc(43 * PAGE, 0, s);
    // Nothing is available: 2 of the 10 pages would help, and 10 are there besides.
    let e = rig.try_malloc(13 * PAGE, 0, s).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory, "{e}");
    assert_eq!((resident(&rig, &[partly]), resident(&rig, &outside)), (1, 10), "all of it would not be enough");
    let p = rig.malloc(11 * PAGE, 0, s);
    assert_eq!((resident(&rig, &[partly]), resident(&rig, &outside)), (0, 1));
    small.release().unwrap();
    close(&rig, &[outside, vec![partly, fixed, p]].concat(), s);
}

/// What an arena's exit keeps from being handed out goes before anything is moved, and before an
/// allocation or a restore fails.
#[test]
fn what_is_in_quarantine_goes_first() {
    let host = HostDriver::new(HostOptions { bytes_per_device: 64 * PAGE, ..HostOptions::default() }).unwrap();
    let arena_debug = DebugMode { check: true, poison: true, ..DebugMode::default() };
    let ctx = Context::new(host, Config { arena_debug, log: 0, mover: false, ..Config::default() }).unwrap();
    let s = StreamHandle::LEGACY;
    let quarantine = |pages: u64| {
        let arena = ctx.arena_enter("step").unwrap();
        ctx.malloc(&Request { size: pages * PAGE, stream: s, ..Request::default() }).unwrap();
        ctx.arena_exit(&arena, &[]).unwrap();
    };
    let malloc = |pages: u64| {
        ctx.malloc(&Request { size: pages * PAGE, stream: s, flags: AllocFlags::EVICTABLE, ..Request::default() })
            .unwrap()
    };
    let place = |p: u64| ctx.location(p).unwrap().space.unwrap().tier;
    let a = malloc(20);
    ctx.hold(a).unwrap();
    ctx.unhold(a, s).unwrap();
    quarantine(40);
    let b = malloc(40);
    assert_eq!(place(a), Tier::Gpu, "it could have been moved");
    ctx.shift(What::One(b), Goal::Lower, Some(s), None).unwrap();
    for restore in [true, false] {
        quarantine(40);
        match restore {
            true => drop(ctx.shift(What::One(b), Goal::Device, Some(s), None).unwrap()),
            false => ctx.hold(b).unwrap(),
        }
        assert_eq!([place(a), place(b)], [Tier::Gpu; 2]);
        if restore {
            ctx.shift(What::One(b), Goal::Lower, Some(s), None).unwrap();
        }
    }
    ctx.unhold(b, s).unwrap();
    for p in [a, b] {
        ctx.free_async(p, s).unwrap();
    }
    ctx.validate().unwrap();
}

/// What was drawn outside of any reservation comes back outside, whatever is attached to who
/// restores it: others make room.
#[test]
fn an_attached_reservation_does_not_stand_in_the_way_of_a_restore() {
    let rig = Rig::new(Options { pages: 16, ..Options::default() });
    let s = rig.stream();
    let manager = rig.ctx.tiers().unwrap().manager();
    let small = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(PAGE))).unwrap();
    let all = movable(&rig, 20, s);
    assert!(resident(&rig, &all) < 16);
    small.attach_thread().unwrap();
    for &p in &all {
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
    }
    assert_eq!(small.drawn(), 0);
    manager.detach_thread(small.in_space()).unwrap();
    small.release().unwrap();
    close(&rig, &all, s);
}

/// The driver gives the handle of a destroyed stream to the next: what comes back counts for the
/// one that it was made on.
#[test]
fn what_comes_back_counts_for_its_own_stream() {
    let rig = Rig::new(Options { pages: 16, ..Options::default() });
    let manager = rig.ctx.tiers().unwrap().manager();
    let gone = rig.stream();
    let p = rig.malloc(2 * PAGE, 0, gone);
    rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap();
    rig.ctx.forget_stream(gone);
    rig.ctx.driver().stream_destroy(D, gone).unwrap();
    let next = rig.stream();
    assert_eq!(next, gone, "another handle shows nothing");
    rig.ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
    let space = manager.space(GPU).unwrap();
    let usage = manager.stream_usage(&space, next.0 as u64).unwrap().unwrap();
    assert_eq!((usage.now(), usage.peak()), (0, 0));
    close(&rig, &[p], next);
}

/// What moves out to make room takes nothing of what was promised below to the thread that needs
/// the room.
#[test]
fn making_room_draws_nothing_from_an_attached_reservation() {
    for tier in [Tier::Host, Tier::Disk] {
        let pinned = if tier == Tier::Host { 64 * MIB } else { MIB };
        let rig = Rig::new(Options { pages: 16, pinned, disk: true, ..Options::default() });
        let s = rig.stream();
        let others = movable(&rig, 10, s);
        let manager = rig.ctx.tiers().unwrap().manager();
        let below = Strategy::Space(SpaceId::new(tier, 0));
        let mine = manager.reserve(Reserve::new(below, Amount::Exact(8 * PAGE))).unwrap();
        mine.attach_thread().unwrap();
        let p = rig.malloc(12 * PAGE, 0, s);
        assert!(resident(&rig, &others) < 10);
        assert_eq!((mine.drawn(), mine.usage().peak()), (0, 0), "{tier}");
        mine.release().unwrap();
        close(&rig, &[others, vec![p]].concat(), s);
    }
}

/// The pinned buffers of a move to or from a file: they come from what the host has to spare, and
/// if that is nothing, from nobody. No reservation grows for them, and no callback hears of them.
#[test]
fn buffers_of_a_file_are_drawn_from_nobody() {
    for spare in [32 * MIB, 0] {
        let rig = Rig::new(Options { pages: 16, pinned: MIB + spare, disk: true, ..Options::default() });
        let (s, host) = (rig.stream(), SpaceId::new(Tier::Host, 0));
        let manager = rig.ctx.tiers().unwrap().manager();
        let (asked, policy) = asked_in_vain();
        manager.set_out_of_memory_policy(host, policy).unwrap();
        let policy = LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: false };
        let request = Reserve { policy, ..Reserve::new(Strategy::Space(host), Amount::Exact(MIB)) };
        let mine = manager.reserve(request).unwrap();
        mine.attach_thread().unwrap();
        let p = rig.malloc(12 * PAGE, 0, s);
        rig.fill(s, p, 12 * PAGE, 1);
        rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(s), None).unwrap();
        rig.ctx.shift(What::One(p), Goal::Device, Some(s), None).unwrap();
        rig.check(s, p, 12 * PAGE, 1);
        assert_eq!((mine.size(), mine.usage().peak(), asked.load(Relaxed)), (MIB, 0, 0), "{spare} spare");
        assert_eq!(rig.usage(host).peak > 0, spare > 0, "the buffers are pinned where there is room");
        mine.release().unwrap();
        close(&rig, &[p], s);
    }
}

/// Pinned memory that a caller asks for makes room in the host, with what has been evicted there:
/// just as much as is missing goes on to the disk, oldest first, and nothing where that would not
/// be enough. A move that finds the host full goes to the disk itself, and moves nothing on.
#[test]
fn pinned_memory_makes_room_in_the_host() {
    let rig = Rig::new(Options { pages: 64, pinned: 64 * MIB, disk: true, ..Options::default() });
    let s = rig.stream();
    let tier = |p: u64| rig.ctx.location(p).unwrap().space.unwrap().tier;
    let lower = |all: &[u64]| {
        for &p in all {
            assert_eq!(rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap().items, 1);
        }
    };
    let in_host = |all: &[u64]| all.iter().filter(|&&p| tier(p) == Tier::Host).count();
    let all = movable(&rig, 8, s);
    lower(&all);
    assert_eq!(in_host(&all), 8);
    assert_eq!(rig.ctx.host_malloc(Some(0), 65 * MIB).unwrap_err().status, Status::OutOfMemory);
    assert_eq!(in_host(&all), 8);
    let pinned = rig.ctx.host_malloc(Some(0), 56 * MIB).unwrap();
    assert_eq!((in_host(&all[..4]), in_host(&all[4..])), (0, 4));
    assert_eq!(rig.usage(SpaceId::new(Tier::Host, 0)).available, 0);
    let more = movable(&rig, 1, s);
    lower(&more);
    assert_eq!((tier(more[0]), in_host(&all)), (Tier::Disk, 4));
    let blocks = rig.ctx.host_blocks(Some(0), 3 * MIB, None).unwrap();
    assert_eq!(in_host(&all), 2, "3 MiB were missing");
    drop(blocks);
    rig.ctx.host_free(pinned).unwrap();

    // A reservation makes room by what is drawn from it, and by nothing else.
    let manager = rig.ctx.tiers().unwrap().manager();
    let request = Reserve::new(Strategy::Space(SpaceId::new(Tier::Host, 0)), Amount::Exact(4 * PAGE));
    let small = manager.reserve(request).unwrap();
    small.attach_thread().unwrap();
    let own = movable(&rig, 4, s);
    lower(&own);
    assert_eq!((small.drawn(), in_host(&own)), (4 * PAGE, 4));
    let blocks = rig.ctx.host_blocks(None, 2 * PAGE, Some(&small)).unwrap();
    assert_eq!((in_host(&own), in_host(&all)), (2, 2));
    drop(blocks);
    manager.detach_thread(small.in_space()).unwrap();
    small.release().unwrap();
    for (i, &p) in [&all, &own, &more].into_iter().flatten().enumerate() {
        rig.ctx.hold(p).unwrap();
        rig.fill(s, p, PAGE, i as u64);
        rig.check(s, p, PAGE, i as u64);
        rig.ctx.unhold(p, s).unwrap();
    }
    close(&rig, &[all, own, more].concat(), s);
}

/// Threads that want pinned memory at the same time wait for what others move on to the disk.
#[test]
fn threads_that_want_pinned_memory_wait_for_what_leaves() {
    for mover in [false, true] {
        let rig = Rig::new(Options { pages: 64, pinned: 64 * MIB, disk: true, mover, ..Options::default() });
        let s = rig.stream();
        let all = movable(&rig, 24, s);
        for &p in &all {
            rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Host)), Some(s), None).unwrap();
        }
        // All of it at last.
        let all_have = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let held = [(); 4].map(|()| rig.ctx.host_blocks(Some(0), 4 * MIB, None).map_err(|e| e.message));
                    all_have.wait();
                    assert!(held.iter().all(Result::is_ok), "{held:?}");
                });
            }
        });
        close(&rig, &all, s);
    }
}

/// The oldest does not fit into what the host has left: those behind it go instead.
#[test]
fn one_that_cannot_go_does_not_keep_the_others() {
    let rig = Rig::new(Options { pages: 32, pinned: 8 * MIB, ..Options::default() });
    let s = rig.stream();
    let big = rig.malloc(8 * PAGE, 0, s);
    rig.ctx.hold(big).unwrap();
    rig.ctx.unhold(big, s).unwrap();
    let small = movable(&rig, 20, s);
    let more = rig.malloc(5 * PAGE, 0, s);
    assert_eq!(rig.ctx.location(big).unwrap().space, Some(GPU));
    assert_eq!(resident(&rig, &small), 18);
    close(&rig, &[vec![big, more], small].concat(), s);
}

/// The host has no room for the one that is to go, and its policy frees that: it has gone as well.
#[test]
fn what_ends_on_its_way_makes_room() {
    let rig = Arc::new(Rig::new(Options { pages: 16, pinned: MIB, ..Options::default() }));
    let s = rig.stream();
    let p = rig.malloc(12 * PAGE, 0, s);
    rig.ctx.hold(p).unwrap();
    rig.ctx.unhold(p, s).unwrap();
    let weak = Arc::downgrade(&rig);
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |_: &Shortage| {
        weak.upgrade().unwrap().ctx.free_async(p, s).unwrap();
        false
    }));
    let manager = rig.ctx.tiers().unwrap().manager();
    manager.set_out_of_memory_policy(SpaceId::new(Tier::Host, 0), policy).unwrap();
    let more = rig.malloc(8 * PAGE, 0, s);
    manager.set_out_of_memory_policy(SpaceId::new(Tier::Host, 0), OutOfMemoryPolicy::Fail).unwrap();
    close(&rig, &[more], s);
}

/// A reservation makes room as an allocation does: whether it waits or not, as much goes as it
/// lacks, and nothing where all of it would not be enough.
#[test]
fn a_reservation_moves_others_out() {
    for wait in [Wait::No, Wait::For(Duration::from_secs(20))] {
        let rig = Rig::new(Options { pages: 16, ..Options::default() });
        let s = rig.stream();
        let manager = rig.ctx.tiers().unwrap().manager();
        let reserve = |pages, wait| manager.reserve(Reserve::exact(GPU, pages * PAGE).wait(wait));
        let all = movable(&rig, 12, s);
        let used = rig.malloc(2 * PAGE, 0, s);
        for pages in [14, 100] {
            assert_eq!(reserve(pages, Wait::No).unwrap_err().status, Status::OutOfMemory);
        }
        assert_eq!(resident(&rig, &all), 12);
        let promised = reserve(6, wait).unwrap();
        assert_eq!((promised.size(), resident(&rig, &all)), (6 * PAGE, 7));
        // What is there already moves nothing.
        promised.release().unwrap();
        let promised = reserve(6, wait).unwrap();
        assert_eq!(resident(&rig, &all), 7);
        promised.release().unwrap();
        close(&rig, &[all, vec![used]].concat(), s);
    }
}

/// The host has no room for one of the items, so nothing that is as large is tried in vain: its
/// policy is asked once for each size that is smaller than all before.
#[test]
fn what_there_is_no_room_for_is_tried_once() {
    let rig = Rig::new(Options { pages: 32, pinned: MIB, ..Options::default() });
    let s = rig.stream();
    let (asked, policy) = asked_in_vain();
    let manager = rig.ctx.tiers().unwrap().manager();
    manager.set_out_of_memory_policy(SpaceId::new(Tier::Host, 0), policy).unwrap();
    let all = movable(&rig, 24, s);
    for pages in [8, 12, 20] {
        let e = rig.try_malloc(pages * PAGE, 0, s).unwrap_err();
        assert_eq!((e.status, asked.swap(0, Relaxed)), (Status::OutOfMemory, 1), "{pages}: {e}");
    }
    let smaller = rig.malloc(PAGE - 1, 0, s);
    rig.ctx.hold(smaller).unwrap();
    rig.ctx.unhold(smaller, s).unwrap();
    rig.try_malloc(7 * PAGE, 0, s).unwrap_err();
    assert_eq!(asked.swap(0, Relaxed), 2);
    assert_eq!(resident(&rig, &all), 24);
    manager.set_out_of_memory_policy(SpaceId::new(Tier::Host, 0), OutOfMemoryPolicy::Fail).unwrap();
    close(&rig, &[all, vec![smaller]].concat(), s);
}

/// Ordinary allocations make room as well.
#[test]
fn an_ordinary_allocation_moves_others_out() {
    let rig = Rig::new(Options { pages: 16, ..Options::default() });
    let s = rig.stream();
    let all = movable(&rig, 14, s);
    for flags in [AllocFlags::default(), AllocFlags::SINGLE_HANDLE] {
        let p = rig.ctx.malloc(&Request { size: 4 * PAGE, stream: s, flags, ..Request::default() }).unwrap();
        assert!(resident(&rig, &all) <= 11);
        rig.ctx.free_async(p, s).unwrap();
        for &p in &all {
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
        }
        assert_eq!(resident(&rig, &all), 14);
    }
    close(&rig, &all, s);
}

#[test]
fn bytes_that_may_be_used_are_those_that_are_moved() {
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let p = rig.malloc(1000, 0, s);
    assert_eq!(rig.ctx.info(p).unwrap().usable, 1000);
    close(&rig, &[p], s);
}

/// Of two mounts the first is gone.
#[test]
fn a_mount_that_is_gone_does_not_hide_the_next() {
    let host = HostDriver::new(HostOptions { bytes_per_device: 64 * PAGE, ..HostOptions::default() }).unwrap();
    let dirs = [(); 2].map(|()| tempfile::TempDir::new().unwrap());
    let disks = dirs.iter().map(|d| DiskMount { path: d.path().to_path_buf(), limit: Some(1024 * MIB) }).collect();
    let config = Config {
        pinned_blocks: PinnedBlocks { block_bytes: MIB, blocks: 8, chunks: 1 },
        pinned_limit: Limit::Bytes(2 * MIB),
        disks,
        mover: false,
        ..Config::default()
    };
    let ctx = Context::new(host.clone(), config).unwrap();
    let s = host.stream_create(D).unwrap();
    ctx.tiers().unwrap();
    std::fs::remove_dir_all(dirs[0].path()).unwrap();
    let flags = AllocFlags::EVICTABLE;
    let p = ctx.malloc(&Request { size: 4 * PAGE, stream: s, flags, ..Request::default() }).unwrap();
    for goal in [Goal::Lower, Goal::Away(To::Tier(Tier::Disk))] {
        // The host is too small.
        assert_eq!(ctx.shift(What::One(p), goal, Some(s), None).unwrap().items, 1);
        assert_eq!(ctx.location(p).unwrap().space, Some(SpaceId::new(Tier::Disk, 1)));
        ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
    }
    let e = ctx.shift(What::One(p), Goal::Away(To::Space(SpaceId::new(Tier::Disk, 0))), Some(s), None).unwrap_err();
    assert_eq!(e.status, Status::Io, "{e}");
    ctx.free(p).unwrap();
}

/// A stream of another device ends a hold and moves a tag of both devices;
/// tests/context/streams_across.rs shows that it is waited for.
#[test]
fn streams_of_other_devices_are_taken() {
    let options = HostOptions { devices: 2, bytes_per_device: 64 * PAGE, ..HostOptions::default() };
    let host = HostDriver::new(options).unwrap();
    let ctx = Context::new(host.clone(), Config { mover: false, ..Config::default() }).unwrap();
    let streams = [0, 1].map(|d| host.stream_create(DeviceId(d)).unwrap());
    let all = streams.map(|stream| {
        let flags = AllocFlags::EVICTABLE;
        ctx.malloc(&Request { size: PAGE, stream, tag: 1, flags, ..Request::default() }).unwrap()
    });
    ctx.hold(all[0]).unwrap();
    ctx.unhold(all[0], streams[1]).unwrap();
    assert_eq!(ctx.unhold(all[0], streams[1]).unwrap_err().status, Status::Invalid);
    for s in streams {
        assert_eq!(ctx.shift(What::Tag(1), Goal::Lower, Some(s), None).unwrap().items, 2);
        assert!(all.iter().all(|&p| ctx.location(p).unwrap().space.unwrap().tier == Tier::Host));
        assert_eq!(ctx.shift(What::Tag(1), Goal::Device, Some(s), None).unwrap().items, 2);
        assert!(all.iter().all(|&p| ctx.location(p).unwrap().space.unwrap().tier == Tier::Gpu));
    }
    all.iter().for_each(|&p| ctx.free(p).unwrap());
}

/// Peaks count what is moved wherever it was, also when it has left again.
#[test]
fn what_was_moved_leaves_its_peak_in_each_space() {
    for tier in [Tier::Host, Tier::Disk] {
        let pinned = if tier == Tier::Host { 64 * MIB } else { MIB };
        let rig = Rig::new(Options { pages: 16, pinned, disk: true, ..Options::default() });
        let s = rig.stream();
        let manager = rig.ctx.tiers().unwrap().manager();
        let gpu = manager.space(GPU).unwrap();
        let peak = |tier| rig.usage(SpaceId::new(tier, 0)).peak;
        // The rig has some memory of its own.
        let own = gpu.usage().now();
        let p = rig.malloc(2 * PAGE, 0, s);
        rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap();
        assert_eq!((gpu.usage().now(), gpu.usage().peak()), (own, own + 2 * PAGE), "made");
        gpu.usage().reset_peak();
        rig.ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
        close(&rig, &[p], s);
        assert_eq!(peak(Tier::Gpu), own + 2 * PAGE, "come back");
        assert!(peak(tier) >= 2 * PAGE, "{tier}");
    }
}

/// What is free in the pool goes back first, so that no more is moved out than is missing then.
#[test]
fn no_more_is_moved_out_than_is_missing_beside_free_memory() {
    for movable_pages in [10, 30] {
        let rig = Rig::new(Options { pages: 128, ..Options::default() });
        let s = rig.stream();
        let all = movable(&rig, movable_pages, s);
        rig.ctx.set_limit(D, (30 + movable_pages as u64) * PAGE).unwrap();
        let manager = rig.ctx.tiers().unwrap().manager();
        let large = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(80 * PAGE))).unwrap();
        large.attach_thread().unwrap();
        let plain = |size| rig.ctx.malloc(&Request { size, stream: s, ..Request::default() });
        let free = plain(20 * PAGE).unwrap();
        rig.ctx.free_async(free, s).unwrap();
        let p = plain(34 * PAGE).unwrap();
        // One page is the pool's own.
        assert_eq!(resident(&rig, &all), movable_pages - 5);
        manager.detach_thread(large.in_space()).unwrap();
        rig.ctx.free_async(p, s).unwrap();
        large.release().unwrap();
        close(&rig, &all, s);
    }
}

//! What is moved without being asked for: to make room, and by the mover.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::evict_support;

use evict_support::{asked_in_vain, Options, Rig, D, PAGE};
use gpumem::base::size::MIB;
use gpumem::context::What;
use gpumem::driver::Driver;
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::{OutOfMemoryPolicy, SpaceId, Tier};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use test_support::{rounds, stride};

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const HOST: SpaceId = SpaceId::new(Tier::Host, 0);
const DISK: SpaceId = SpaceId::new(Tier::Disk, 0);

/// Waits for something that another thread does.
fn wait_until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} has not come");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Buffers of three times the device's memory, used in skewed random order by threads with a stream
/// each: each use reads what the last one wrote and writes anew. Pinned memory holds less than the
/// rest, so some goes to the disk.
#[test]
fn a_working_set_of_three_times_the_memory_is_right_to_the_last_byte() {
    const BUFFERS: usize = 96;
    for (seed, threads, mover) in [(1, 1, false), (3, 4, true)] {
        let rig = Rig::new(Options {
            pages: 65,
            pinned: 80 * MIB,
            disk: true,
            mover,
            late: (threads == 1).then_some(seed),
            ..Options::default()
        });
        let s = rig.stream();
        let buffers: Vec<_> = (0..BUFFERS as u64)
            .map(|i| {
                let size = 3 * PAGE / 2 + i * 1000;
                let p = rig.malloc(size, i, s);
                rig.fill(s, p, size, i << 32);
                rig.ctx.hold(p).unwrap();
                rig.ctx.unhold(p, s).unwrap();
                // The version that was written last; locked while it is used.
                (p, size, std::sync::Mutex::new(i << 32))
            })
            .collect();
        let all: u64 = buffers.iter().map(|b| rig.ctx.location(b.0).unwrap().mapped).sum();
        assert!(all >= 3 * 64 * PAGE - PAGE, "{all}");
        rig.host.device_sync(D).unwrap();
        let restored = AtomicU64::new(0);
        thread::scope(|scope| {
            for t in 0..threads {
                let (rig, buffers, restored) = (&rig, &buffers, &restored);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed * 100 + t);
                    let s = rig.stream();
                    for _ in 0..rounds(100) / threads {
                        // Half of all uses are of an eighth of the buffers.
                        let i = match rng.bool() {
                            true => rng.usize(0..BUFFERS / 8),
                            false => rng.usize(0..BUFFERS),
                        };
                        let (p, size, version) = &buffers[i];
                        let mut version = version.lock().unwrap();
                        if rig.ctx.location(*p).unwrap().space != Some(GPU) {
                            restored.fetch_add(1, Relaxed);
                        }
                        rig.ctx.hold(*p).unwrap();
                        rig.check(s, *p, *size, *version);
                        *version += 1;
                        rig.fill(s, *p, *size, *version);
                        rig.ctx.unhold(*p, s).unwrap();
                        if threads > 1 {
                            // The next user is on another stream, and orders itself after this one
                            // on the host.
                            rig.host.stream_sync(D, s).unwrap();
                        }
                    }
                });
            }
        });
        assert!(restored.into_inner() > 20);
        // Those that follow are on another stream.
        rig.host.device_sync(D).unwrap();
        for (p, size, version) in &buffers {
            rig.ctx.hold(*p).unwrap();
            rig.check(s, *p, *size, *version.lock().unwrap());
            rig.ctx.unhold(*p, s).unwrap();
        }
        rig.host.device_sync(D).unwrap();
        wait_until("the mover's rest", || !mover || !rig.ctx.tiers().unwrap().gpu(D).unwrap().should_downgrade());
        for (p, ..) in buffers {
            rig.ctx.free_async(p, s).unwrap();
        }
        rig.close();
    }
}

/// Use that swings between 0.70 and 0.84 of the capacity moves nothing; past 0.85 exactly enough
/// moves to reach 0.65.
#[test]
fn the_mover_waits_for_the_trigger_and_stops_at_the_stop() {
    let rig = Rig::new(Options { pages: 100, mover: true, ..Options::default() });
    let s = rig.stream();
    let used = || rig.usage(GPU).used / PAGE;
    let mut all = Vec::new();
    let more = |all: &mut Vec<u64>, upto: u64| {
        while used() < upto {
            let p = rig.malloc(PAGE, 0, s);
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
            all.push(p);
        }
    };
    more(&mut all, 70);
    for _ in 0..20 {
        more(&mut all, 84);
        while used() > 70 {
            rig.ctx.free_async(all.pop().unwrap(), s).unwrap();
        }
    }
    more(&mut all, 84);
    assert!(all.iter().all(|&p| rig.ctx.location(p).unwrap().space == Some(GPU)), "nothing has moved");
    assert_eq!(rig.usage(HOST).used, 0);
    more(&mut all, 85);
    wait_until("the stop", || used() <= 65);
    // It does not go on.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(used(), 65);
    let down: Vec<bool> = all.iter().map(|&p| rig.ctx.location(p).unwrap().space == Some(HOST)).collect();
    assert!(down[..20].iter().all(|&d| d) && !down[20..].contains(&true), "the oldest 20 of {}: {down:?}", down.len());
    for p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// Only what has been unheld is moved by itself, by the mover too; and pinned memory that is too
/// full goes on to the disk.
#[test]
fn the_mover_leaves_alone_what_was_never_unheld_and_empties_the_host_too() {
    let rig = Rig::new(Options { pages: 100, pinned: 4096 * MIB, mover: true, disk: true, ..Options::default() });
    let s = rig.stream();
    let never: Vec<u64> = (0..40).map(|_| rig.malloc(PAGE, 1, s)).collect();
    let host_capacity = 40 * PAGE;
    let manager = rig.ctx.tiers().unwrap().manager();
    let thresholds = gpumem::tier::Thresholds::new(0.85, 0.65).unwrap();
    manager.set_limits(HOST, host_capacity, host_capacity, thresholds).unwrap();
    let mut all: Vec<u64> = Vec::new();
    while all.len() < 80 {
        let p = rig.malloc(PAGE, 0, s);
        rig.fill(s, p, PAGE, all.len() as u64);
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, s).unwrap();
        all.push(p);
    }
    wait_until("room on the device", || !rig.ctx.tiers().unwrap().gpu(D).unwrap().should_downgrade());
    wait_until("room in the host", || rig.usage(HOST).used < host_capacity * 85 / 100 && rig.slots() > 0);
    assert!(never.iter().all(|&p| rig.ctx.location(p).unwrap().space == Some(GPU)));
    let on_disk = all.iter().filter(|&&p| rig.ctx.location(p).unwrap().space == Some(DISK)).count();
    assert!(on_disk > 0);
    for (i, &p) in all.iter().enumerate() {
        rig.ctx.hold(p).unwrap();
        rig.check(s, p, PAGE, i as u64);
        rig.ctx.unhold(p, s).unwrap();
    }
    rig.host.device_sync(D).unwrap();
    for p in never.into_iter().chain(all) {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// The mover, which finds no room below at each ring, tries less and less often.
#[test]
fn the_mover_does_not_try_in_vain_at_every_ring() {
    let rig = Rig::new(Options { pages: 100, pinned: MIB, mover: true, ..Options::default() });
    let s = rig.stream();
    let (asked, policy) = asked_in_vain();
    let manager = rig.ctx.tiers().unwrap().manager();
    manager.set_out_of_memory_policy(HOST, policy).unwrap();
    let all: Vec<u64> = (0..90).map(|_| rig.malloc(PAGE, 0, s)).collect();
    let start = Instant::now();
    // The pauses of ten tries, each twice as long as the one before, are more than this together.
    while start.elapsed() < Duration::from_secs(2) {
        for &p in &all {
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
        }
        thread::sleep(Duration::from_millis(1));
    }
    let asked = asked.load(Relaxed);
    assert!((1..10).contains(&asked), "{asked}");
    manager.set_out_of_memory_policy(HOST, OutOfMemoryPolicy::Fail).unwrap();
    for p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// Pinned memory that a caller asks for wakes the mover when that makes the host too full.
#[test]
fn the_mover_hears_of_pinned_memory() {
    let rig = Rig::new(Options { pages: 100, pinned: 64 * MIB, mover: true, disk: true, ..Options::default() });
    let s = rig.stream();
    for blocks in [false, true] {
        let all = [(); 3].map(|()| rig.malloc(4 * PAGE, 0, s));
        for p in all {
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
            rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
        }
        assert_eq!((rig.usage(HOST).used, rig.slots()), (24 * MIB, 0));
        // 60 of 64 MiB: all three have to go.
        let (mut pinned, mut pieces) = (None, None);
        match blocks {
            true => pieces = Some(rig.ctx.host_blocks(Some(0), 36 * MIB, None).unwrap()),
            false => pinned = Some(rig.ctx.host_malloc(Some(0), 36 * MIB).unwrap()),
        }
        wait_until("room in the host", || rig.usage(HOST).used <= 64 * MIB * 65 / 100);
        wait_until("the disk", || rig.slots() == 3);
        drop(pieces);
        pinned.into_iter().for_each(|p| rig.ctx.host_free(p).unwrap());
        for p in all {
            rig.ctx.free_async(p, s).unwrap();
        }
        wait_until("the end of the moves", || rig.slots() == 0);
    }
    rig.close();
}

/// Moves, holds, frees and allocations of the same memory by many threads: every counter is exact
/// at the end.
#[test]
fn threads_that_meet_at_the_same_memory_leave_it_whole() {
    let rig = Rig::new(Options { pages: 40, pinned: 40 * PAGE, disk: true, mover: true, ..Options::default() });
    let slots: Vec<_> = (0..16).map(|_| std::sync::Mutex::new(0u64)).collect();
    thread::scope(|scope| {
        for t in 0..6u64 {
            let (rig, slots) = (&rig, &slots);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(t);
                let s = rig.stream();
                for _ in 0..300 {
                    let slot = &slots[rng.usize(0..slots.len())];
                    let p = *slot.lock().unwrap();
                    // Whatever has become of it meanwhile: every call either does what it says or
                    // changes nothing.
                    match rng.u32(0..8) {
                        0 => {
                            let Ok(new) = rig.try_malloc(rng.u64(1..5 * PAGE), t, s) else { continue };
                            let old = std::mem::replace(&mut *slot.lock().unwrap(), new);
                            if old != 0 {
                                let _ = rig.ctx.free_async(old, s);
                            }
                        }
                        1 => {
                            let p = std::mem::take(&mut *slot.lock().unwrap());
                            if p != 0 {
                                rig.ctx.free_async(p, s).unwrap();
                            }
                        }
                        2 | 3 => {
                            if rig.ctx.hold(p).is_ok() {
                                let _ = rig.ctx.unhold(p, s);
                            }
                        }
                        4 => drop(rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(s), None)),
                        5 => drop(rig.ctx.shift(What::One(p), Goal::Device, Some(s), None)),
                        6 => drop(rig.ctx.shift(What::Tag(t), Goal::Lower, Some(s), None)),
                        _ => drop(rig.ctx.shift(What::Tag(t), Goal::Device, Some(s), None)),
                    }
                }
            });
        }
    });
    for slot in slots {
        let p = slot.into_inner().unwrap();
        if p != 0 {
            rig.ctx.free(p).unwrap();
        }
    }
    rig.close();
}

/// A context that ends stops its mover, whatever that is doing, and waits for it: nothing of it
/// lives on.
#[test]
fn the_mover_ends_with_its_context() {
    for round in (0..16).step_by(stride(4)) {
        let rig = Rig::new(Options { pages: 100, mover: true, disk: true, ..Options::default() });
        let s = rig.stream();
        let all: Vec<u64> = (0..90).map(|_| rig.malloc(PAGE, 0, s)).collect();
        for &p in &all {
            rig.fill(s, p, PAGE, p);
            rig.ctx.hold(p).unwrap();
            rig.ctx.unhold(p, s).unwrap();
        }
        // At its beginning, in the midst of it, at its end, and asleep.
        if round > 0 {
            let goal = rig.usage(GPU).used - round * PAGE;
            // Below the trigger it may have been before.
            wait_until("the mover", || rig.usage(GPU).used <= goal.max(84 * PAGE));
        }
        let Rig { host, fault, ctx, .. } = rig;
        drop(ctx);
        assert_eq!(std::sync::Arc::strong_count(&fault), 1, "somebody has the driver still");
        assert!(host.reports().is_empty(), "{:#?}", host.reports());
    }
}

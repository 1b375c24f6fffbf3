//! Callbacks of moves that panic: the panic reaches the caller, and the move has not happened. What
//! had not arrived is whole where it was, and can be moved, held and freed as before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::evict_support;

use evict_support::{Options, Rig, D, PAGE};
use gpumem::base::size::{round_up, MIB};
use gpumem::base::StreamHandle;
use gpumem::context::What;
use gpumem::driver::Driver;
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::{Amount, OutOfMemoryPolicy, Request as Reserve, SpaceId, Strategy, Tier};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Arc, Barrier};
use test_support::rounds;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const HOST: SpaceId = SpaceId::new(Tier::Host, 0);
const DISK: SpaceId = SpaceId::new(Tier::Disk, 0);

/// What is thrown: nothing else that panics passes for it.
#[derive(Debug, PartialEq)]
struct Thrown(u64);

/// Panics without a word on stderr.
fn throw(n: u64) -> ! {
    resume_unwind(Box::new(Thrown(n)))
}

/// Calls `f`, which throws that or returns.
fn thrown<T>(f: impl FnOnce() -> T) -> Result<T, u64> {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    outcome.map_err(|payload| match payload.downcast::<Thrown>() {
        Ok(thrown) => thrown.0,
        Err(other) => resume_unwind(other),
    })
}

/// Moves a tag, and panics at call `at` of the progress.
fn shift(rig: &Rig, goal: Goal, s: StreamHandle, at: u64) -> Result<u64, u64> {
    let mut calls = 0;
    let mut progress = |_, _| {
        calls += 1;
        if calls == at {
            throw(at);
        }
        true
    };
    thrown(|| rig.ctx.shift(What::Tag(1), goal, Some(s), Some(&mut progress)).unwrap().items)
}

/// Every space has what lies in it, and no more.
#[track_caller]
fn exact(rig: &Rig, all: &[u64], size: u64) {
    rig.books();
    let there = |space| all.iter().filter(|&&p| rig.ctx.location(p).unwrap().space == Some(space)).count() as u64;
    let [device, host, disk] = [GPU, HOST, DISK].map(there);
    assert_eq!(device + host + disk, all.len() as u64, "all of them are somewhere");
    assert!(all.iter().all(|&p| rig.ctx.location(p).unwrap().holds == 0));
    let mapped = device * round_up(size, PAGE).unwrap() + PAGE;
    let total = rig.host.mem_info(D).unwrap().total;
    assert_eq!((rig.usage(GPU).used, rig.stats().live, rig.device_free()), (mapped, mapped, total - mapped));
    assert_eq!((rig.host_used(), rig.slots()), (host * round_up(size, MIB).unwrap(), disk));
}

/// Whenever it is told of, in all directions.
#[test]
fn a_progress_that_panics_leaves_everything_whole() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let size = 16 * MIB + 5;
    let all: Vec<u64> = (0..2).map(|_| rig.malloc(size, 1, s)).collect();
    for (i, &p) in all.iter().enumerate() {
        rig.fill(s, p, size, i as u64);
    }
    let mut panics = 0;
    for (from, goal) in [
        (Goal::Device, Goal::Lower),
        (Goal::Lower, Goal::Device),
        (Goal::Device, Goal::Away(To::Tier(Tier::Disk))),
        (Goal::Away(To::Tier(Tier::Disk)), Goal::Device),
        (Goal::Lower, Goal::Away(To::Tier(Tier::Disk))),
        (Goal::Away(To::Tier(Tier::Disk)), Goal::Nearer(To::Tier(Tier::Host))),
    ] {
        // A file has 33 pieces of each.
        for at in [1, 17, 33, 34] {
            rig.ctx.shift(What::Tag(1), Goal::Device, Some(s), None).unwrap();
            rig.ctx.shift(What::Tag(1), from, Some(s), None).unwrap();
            exact(&rig, &all, size);
            let Err(thrown) = shift(&rig, goal, s, at) else { break };
            assert_eq!(thrown, at);
            panics += 1;
            exact(&rig, &all, size);
            // All of it can be moved and held, and holds what it held.
            rig.ctx.shift(What::Tag(1), goal, Some(s), None).unwrap();
            for (i, &p) in all.iter().enumerate() {
                rig.ctx.hold(p).unwrap();
                rig.check(s, p, size, i as u64);
                rig.ctx.unhold(p, s).unwrap();
            }
            exact(&rig, &all, size);
        }
    }
    assert!(panics > 14, "{panics} panics");
    for p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// The memory that a move has taken is given to others when the device is done with it, and not
/// before.
#[test]
fn copies_in_flight_are_over_before_anybody_gets_their_memory() {
    for seed in 0..rounds(2) {
        let rig = Rig::new(Options { late: Some(seed), pinned: 128 * MIB, ..Options::default() });
        let s = rig.stream();
        let size = 112 * MIB;
        let p = rig.malloc(size, 1, s);
        rig.fill(s, p, size, 7);
        // The first that is told of is one of seven: four more are in flight.
        assert_eq!(shift(&rig, Goal::Lower, s, 1), Err(1));
        exact(&rig, &[p], size);
        let tiers = rig.ctx.tiers().unwrap();
        let mut theirs = tiers.host().contiguous(0, size, None).and_then(|m| m.into_buffer()).unwrap();
        theirs.bytes_mut().fill(0xAB);
        rig.host.device_sync(D).unwrap();
        assert!(theirs.bytes().iter().all(|&b| b == 0xAB), "a copy came late");
        drop(theirs);
        // And the way back: the device itself reports what is unmapped under a copy.
        rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
        assert_eq!(shift(&rig, Goal::Device, s, 1), Err(1));
        exact(&rig, &[p], size);
        rig.ctx.hold(p).unwrap();
        rig.check(s, p, size, 7);
        rig.ctx.unhold(p, s).unwrap();
        rig.ctx.free_async(p, s).unwrap();
        rig.close();
    }
}

/// One that is freed in the very callback that panics goes with its claim.
#[test]
fn what_is_freed_before_the_panic_is_gone() {
    for goal in [Goal::Lower, Goal::Away(To::Tier(Tier::Disk)), Goal::Device] {
        let rig = Rig::new(Options { disk: true, ..Options::default() });
        let s = rig.stream();
        let size = 40 * MIB;
        let [p, q] = [(); 2].map(|()| rig.malloc(size, 1, s));
        rig.fill(s, q, size, 3);
        if goal == Goal::Device {
            rig.ctx.shift(What::Tag(1), Goal::Lower, Some(s), None).unwrap();
        }
        let mut progress = |_, _| {
            rig.ctx.free_async(p, s).unwrap();
            throw(9);
        };
        let outcome = thrown(|| rig.ctx.shift(What::Tag(1), goal, Some(s), Some(&mut progress)).unwrap());
        assert_eq!(outcome, Err(9));
        assert!(rig.ctx.location(p).is_err());
        rig.host.device_sync(D).unwrap();
        rig.ctx.trim(0).unwrap();
        exact(&rig, &[q], size);
        rig.ctx.hold(q).unwrap();
        rig.check(s, q, size, 3);
        rig.ctx.unhold(q, s).unwrap();
        rig.ctx.free_async(q, s).unwrap();
        rig.close();
    }
}

/// A restore that asks for memory, and whose policy panics.
#[test]
fn an_out_of_memory_callback_that_panics_leaves_the_bytes_below() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let size = 3 * PAGE;
    let all = [(); 2].map(|()| rig.malloc(size, 1, s));
    for (goal, way) in [(Goal::Lower, 0), (Goal::Away(To::Tier(Tier::Disk)), 1)] {
        for p in all {
            rig.fill(s, p, size, p);
        }
        rig.ctx.shift(What::Tag(1), goal, Some(s), None).unwrap();
        let manager = rig.ctx.tiers().unwrap().manager();
        // Room for one of the two.
        let room = rig.usage(GPU).available;
        let taken = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(room - size))).unwrap();
        let policy = OutOfMemoryPolicy::Callback(Arc::new(|_| throw(4)));
        manager.set_out_of_memory_policy(GPU, policy).unwrap();
        let outcome = match way {
            0 => thrown(|| rig.ctx.shift(What::Tag(1), Goal::Device, None, None).unwrap().items),
            _ => thrown(|| all.iter().map(|&p| rig.ctx.hold(p).map_or(0, |()| 1)).sum()),
        };
        assert_eq!(outcome, Err(4));
        manager.set_out_of_memory_policy(GPU, OutOfMemoryPolicy::Fail).unwrap();
        taken.release().unwrap();
        if way == 1 {
            rig.ctx.unhold(all[0], s).unwrap();
        }
        exact(&rig, &all, size);
        rig.ctx.shift(What::Tag(1), Goal::Device, None, None).unwrap();
        for p in all {
            rig.check(s, p, size, p);
        }
    }
    for p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// After the panic the thread is in no move any more: it may wait for others again.
#[test]
fn the_thread_may_wait_for_moves_again() {
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let p = rig.malloc(40 * MIB, 1, s);
    rig.fill(s, p, 40 * MIB, 1);
    assert_eq!(shift(&rig, Goal::Lower, s, 1), Err(1));
    rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
    let (started, held) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = true;
            let mut progress = |_, _| {
                if std::mem::take(&mut first) {
                    started.wait();
                    held.wait();
                }
                true
            };
            rig.ctx.shift(What::One(p), Goal::Device, None, Some(&mut progress)).unwrap();
        });
        started.wait();
        scope.spawn(|| held.wait());
        rig.ctx.hold(p).expect("waits for the other thread's move");
    });
    rig.check(s, p, 40 * MIB, 1);
    rig.ctx.unhold(p, s).unwrap();
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

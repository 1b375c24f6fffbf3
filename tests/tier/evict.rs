//! Evictable allocations: where their bytes go and come back, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::evict_support;

use evict_support::{asked_in_vain, Options, Rig, D, PAGE};
use gpumem::arena::DebugMode;
use gpumem::base::size::{KIB, MIB};
use gpumem::base::{Status, StreamHandle};
use gpumem::context::config::{Config, StreamCheck};
use gpumem::context::{Context, Request, What};
use gpumem::driver::host::{HostDriver, HostOptions};
use gpumem::driver::Driver;
use gpumem::pool::{AllocFlags, AllocRequest, Guest};
use gpumem::tier::evict::{Goal, To};
use gpumem::tier::{Amount, Request as Reserve, SpaceId, Strategy, Tier};
use std::sync::Arc;
use test_support::rounds;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const HOST: SpaceId = SpaceId::new(Tier::Host, 0);
const DISK: SpaceId = SpaceId::new(Tier::Disk, 0);

/// Down to the host, on to the disk, back to the host and to the device: the same bytes at the same
/// addresses.
#[test]
fn bytes_come_back_to_their_addresses_from_every_tier() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let p = rig.malloc(3 * PAGE + 5, 7, s);
    rig.fill(s, p, 3 * PAGE + 5, 1);
    let (free, extents) = (rig.device_free(), rig.stats().extents);
    let ways: [&[(Goal, SpaceId)]; 4] = [
        &[(Goal::Lower, HOST), (Goal::Device, GPU)],
        &[(Goal::Away(To::Tier(Tier::Disk)), DISK), (Goal::Device, GPU)],
        &[(Goal::Lower, HOST), (Goal::Away(To::Space(DISK)), DISK), (Goal::Device, GPU)],
        &[
            (Goal::Away(To::Space(DISK)), DISK),
            (Goal::Nearer(To::Tier(Tier::Host)), HOST),
            (Goal::Away(To::Tier(Tier::Disk)), DISK),
            (Goal::Device, GPU),
        ],
    ];
    for way in ways {
        for &(goal, space) in way {
            let moved = rig.ctx.shift(What::One(p), goal, None, None).unwrap();
            assert_eq!((moved.items, moved.bytes, moved.already), (1, 3 * PAGE + 5, 0), "{goal:?}");
            assert_eq!(rig.ctx.location(p).unwrap().space, Some(space));
            assert_eq!(rig.device_free(), if space == GPU { free } else { free + 4 * PAGE }, "{goal:?}");
            assert_eq!(rig.ctx.shift(What::One(p), goal, None, None).unwrap().already, 1);
            let (is, gone) = if space == GPU { ("mapped", 0) } else { ("evicted", 1) };
            let (dump, id) = (rig.ctx.dump(D).unwrap(), rig.ctx.info(p).unwrap().id);
            let whose = format!(" {is}, {} asked for, stream {s}, tag 7, id {id}\n", 3 * PAGE + 5);
            assert!(dump.contains(&whose), "{whose} is not in:\n{dump}");
            assert_eq!(rig.stats().extents, extents - gone);
            rig.books();
        }
        rig.check(s, p, 3 * PAGE + 5, 1);
    }
    assert!(rig.slots() == 0 && rig.host_used() == 0, "nothing is left behind in lower tiers");
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

/// A restore never sends anything away, and an eviction never brings anything nearer: it is there
/// already, and stays.
#[test]
fn what_is_beyond_where_it_was_to_go_is_there_already() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let p = rig.malloc(PAGE + 5, 7, s);
    rig.fill(s, p, PAGE + 5, 1);
    let host = |way: fn(To) -> Goal| [way(To::Tier(Tier::Host)), way(To::Space(HOST))];
    let cases: [(Goal, SpaceId, Vec<Goal>); 3] = [
        (Goal::Device, GPU, host(Goal::Nearer).into()),
        (Goal::Lower, HOST, host(Goal::Away).into_iter().chain(host(Goal::Nearer)).collect()),
        (Goal::Away(To::Tier(Tier::Disk)), DISK, host(Goal::Away).into_iter().chain([Goal::Lower]).collect()),
    ];
    for (there, at, goals) in cases {
        rig.ctx.shift(What::One(p), there, None, None).unwrap();
        for (goal, what) in goals.iter().flat_map(|&g| [(g, What::One(p)), (g, What::Tag(7))]) {
            let moved = rig.ctx.shift(what, goal, None, None).unwrap();
            assert_eq!((moved.items, moved.bytes, moved.already), (0, 0, 1), "{goal:?} from {at}");
            assert_eq!(rig.ctx.location(p).unwrap().space, Some(at), "{goal:?}");
        }
    }
    // A space that there is not is refused wherever the bytes are.
    for way in [Goal::Away, Goal::Nearer] {
        let e = rig.ctx.shift(What::One(p), way(To::Space(SpaceId::new(Tier::Host, 77))), None, None).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains("HOST 77"), "{e}");
    }
    rig.ctx.hold(p).unwrap();
    let moved = rig.ctx.shift(What::One(p), Goal::Nearer(To::Tier(Tier::Host)), None, None).unwrap();
    assert_eq!(moved.already, 1, "what is held is nearer");
    rig.ctx.unhold(p, s).unwrap();
    rig.check(s, p, PAGE + 5, 1);
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

/// With the bytes of each and the counters of both, alone and by the tag; there and back.
#[test]
fn from_one_disk_to_another() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let other = tempfile::TempDir::new().unwrap();
    let disks = rig.ctx.tiers().unwrap().disks();
    let second = SpaceId::new(Tier::Disk, disks.add_mount(other.path(), Some(1024 * MIB)).unwrap());
    let s = rig.stream();
    // One of less than a sector, of less than a chunk, of whole chunks, and of more than are read
    // ahead.
    let sizes = [1, 100 * KIB + 3, 2 * MIB, 9 * MIB + 7];
    let all: Vec<u64> = sizes.iter().map(|&n| rig.malloc(n, 5, s)).collect();
    for (i, (&p, &n)) in all.iter().zip(&sizes).enumerate() {
        rig.fill(s, p, n, i as u64);
    }
    rig.ctx.shift(What::Tag(5), Goal::Away(To::Space(DISK)), None, None).unwrap();
    let (total, largest) = (sizes.iter().sum::<u64>(), sizes[3]);
    let mut told = Vec::new();
    let mut progress = |done: u64, of: u64| {
        told.push((done, of));
        true
    };
    let to_second = Goal::Away(To::Space(second));
    let moved = rig.ctx.shift(What::One(all[3]), to_second, None, Some(&mut progress)).unwrap();
    assert_eq!((moved.items, moved.bytes, moved.already), (1, largest, 0));
    assert_eq!(told.last(), Some(&(largest, largest)), "{told:?}");
    assert_eq!(rig.ctx.location(all[3]).unwrap().space, Some(second));
    rig.books();
    let moved = rig.ctx.shift(What::Tag(5), to_second, None, None).unwrap();
    assert_eq!((moved.items, moved.bytes, moved.already), (3, total - largest, 1));
    assert_eq!((rig.usage(DISK).used, rig.slots()), (0, 4), "the first has nothing any more");
    assert_eq!(rig.ctx.shift(What::Tag(5), Goal::Away(To::Tier(Tier::Disk)), None, None).unwrap().already, 4);
    let e = rig.ctx.shift(What::Tag(5), Goal::Away(To::Space(DISK)), None, Some(&mut |_, _| false)).unwrap_err();
    assert_eq!(e.status, Status::Cancelled);
    rig.books();
    assert_eq!(rig.ctx.shift(What::Tag(5), Goal::Nearer(To::Space(DISK)), None, None).unwrap().items, 4);
    assert_eq!(rig.usage(second).used, 0);
    rig.ctx.shift(What::Tag(5), Goal::Device, None, None).unwrap();
    for (i, (&p, &n)) in all.iter().zip(&sizes).enumerate() {
        rig.check(s, p, n, i as u64);
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// Of many sizes, in random order over all ways, to and fro.
#[test]
fn a_thousand_allocations_of_all_sizes_go_round() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    for i in 0..1000u64 {
        let size = match i {
            0 => 1,
            1 => 64 * MIB,
            _ => 1 << rng.u32(0..20),
        };
        let size = rng.u64(size.div_ceil(2)..=size);
        let p = rig.malloc(size, i % 5, s);
        rig.fill(s, p, size, i);
        all.push((p, size, i));
    }
    for round in 0..3 {
        for tag in 0..5 {
            let goal = if (round + tag) % 2 == 0 { Goal::Lower } else { Goal::Away(To::Tier(Tier::Disk)) };
            assert_eq!(rig.ctx.shift(What::Tag(tag), goal, Some(s), None).unwrap().items, 200);
        }
        assert_eq!(rig.stats().live, PAGE, "the rig's own");
        for tag in [3, 1, 4, 0, 2] {
            assert_eq!(rig.ctx.shift(What::Tag(tag), Goal::Device, Some(s), None).unwrap().items, 200);
        }
        for &(p, size, id) in &all {
            rig.check(s, p, size, id);
        }
        rig.books();
    }
    for (p, ..) in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// Work that has been submitted before a move is done with the bytes that were there; work that is
/// submitted after it sees those that came back. The device checks every access, late and out of
/// order.
#[test]
fn moves_are_in_stream_order() {
    for seed in 0..30 {
        let rig = Rig::new(Options { late: Some(seed), ..Options::default() });
        let [s, u] = [(); 2].map(|()| rig.stream());
        let p = rig.malloc(2 * PAGE, 1, s);
        for round in 0..4u64 {
            let by = if round % 2 == 0 { s } else { u };
            rig.fill(by, p, 2 * PAGE, round);
            // Named in the move, or when it was unheld.
            let named = match seed % 2 {
                0 => Some(by),
                _ => {
                    rig.ctx.hold(p).unwrap();
                    rig.ctx.unhold(p, by).unwrap();
                    None
                }
            };
            rig.ctx.shift(What::One(p), Goal::Lower, named, None).unwrap();
            rig.ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
            let other = if by == s { u } else { s };
            rig.check(other, p, 2 * PAGE, round);
            rig.order(other, by);
            rig.order(by, other);
        }
        rig.ctx.free_async(p, s).unwrap();
        rig.close();
    }
}

/// More than a move's buffers hold, which are used again and again while copies from them run late.
#[test]
fn buffers_of_a_file_are_used_again_when_their_copies_are_over() {
    for seed in 0..3 {
        let rig = Rig::new(Options { disk: true, late: Some(seed), ..Options::default() });
        let s = rig.stream();
        let p = rig.malloc(24 * MIB, 1, s);
        rig.fill(s, p, 24 * MIB, seed);
        rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(s), None).unwrap();
        rig.ctx.shift(What::One(p), Goal::Device, Some(s), None).unwrap();
        rig.check(s, p, 24 * MIB, seed);
        rig.ctx.free_async(p, s).unwrap();
        rig.close();
    }
}

/// Of a group, uses that are known by their stream alone are waited for once for each stream, and
/// not forgotten for any.
#[test]
fn a_group_waits_once_for_each_stream() {
    let mut in_all = 0;
    for seed in 0..rounds(6) {
        let rig = Rig::new(Options { late: Some(seed), ..Options::default() });
        let streams = [(); 3].map(|()| rig.stream());
        let own = |i: u64| streams[i as usize % 3];
        let all: Vec<u64> = (0..24).map(|i| rig.malloc(PAGE, 5, own(i))).collect();
        for (&p, i) in all.iter().zip(0..) {
            rig.fill(own(i), p, PAGE, i);
        }
        let by = (seed % 2 == 0).then_some(streams[1]);
        if by.is_some() {
            rig.order(streams[0], streams[1]);
            rig.order(streams[2], streams[1]);
        }
        let waits = || rig.ctx.driver_calls().iter().filter(|c| c.0 == "stream_wait").map(|c| c.1).sum::<u64>();
        let before = waits();
        rig.ctx.shift(What::Tag(5), Goal::Lower, by, None).unwrap();
        // None for a stream whose work happens to be done.
        let (most, waited) = (if by.is_some() { 1 } else { 3 }, waits() - before);
        assert!(waited <= most, "{waited} waits, seed {seed}");
        in_all += waited;
        rig.ctx.shift(What::Tag(5), Goal::Device, None, None).unwrap();
        for (&p, i) in all.iter().zip(0..) {
            rig.check(own(i + 1), p, PAGE, i);
            rig.order(own(i + 1), own(i));
            rig.ctx.free_async(p, own(i)).unwrap();
        }
        rig.close();
    }
    assert!(in_all > 0, "nothing was ever waited for");
}

/// A stream that the allocation was recorded on is waited for; another one that is busy is not.
#[test]
fn other_streams_go_on_while_a_move_waits_for_its_own() {
    let rig = Rig::new(Options { late: Some(3), ..Options::default() });
    let [s, busy] = [(); 2].map(|()| rig.stream());
    let p = rig.malloc(PAGE, 1, s);
    rig.fill(s, p, PAGE, 9);
    rig.host.hold(D, busy).unwrap();
    rig.fill(busy, rig.scratch, 256, 1);
    rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
    rig.ctx.shift(What::One(p), Goal::Device, Some(s), None).unwrap();
    rig.check(s, p, PAGE, 9);
    rig.host.release(D, busy).unwrap();
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

#[test]
fn what_is_held_stays_until_it_is_unheld_as_often() {
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let p = rig.malloc(PAGE, 4, s);
    rig.fill(s, p, PAGE, 2);
    rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
    // A hold brings it back.
    rig.ctx.hold(p).unwrap();
    rig.ctx.hold(p).unwrap();
    rig.check(s, p, PAGE, 2);
    let q = rig.malloc(PAGE, 4, s);
    for what in [What::One(p), What::Tag(4)] {
        let e = rig.ctx.shift(what, Goal::Lower, Some(s), None).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains("held 2 times"), "{e}");
    }
    assert_eq!(rig.ctx.location(q).unwrap().space, Some(GPU), "of a tag all are moved or none");
    rig.ctx.unhold(p, s).unwrap();
    let e = rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap_err();
    assert!(e.message.contains("is held once"), "{e}");
    rig.ctx.unhold(p, s).unwrap();
    let e = rig.ctx.unhold(p, s).unwrap_err();
    assert!(e.status == Status::Invalid && e.message.contains("not held"), "{e}");
    assert_eq!(rig.ctx.shift(What::Tag(4), Goal::Lower, Some(s), None).unwrap().items, 2);
    for p in [p, q] {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

#[test]
fn what_cannot_be_moved_is_refused_by_name() {
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let flags = |flags| Request { size: PAGE, stream: s, flags, ..Request::default() };
    let pooled = rig.ctx.malloc(&flags(AllocFlags::default())).unwrap();
    let single = rig.ctx.malloc(&flags(AllocFlags::SINGLE_HANDLE)).unwrap();
    let p = rig.malloc(PAGE, 0, s);
    let freed = rig.malloc(PAGE, 0, s);
    rig.ctx.free_async(freed, s).unwrap();
    let cases: [(u64, Status, &str); 5] = [
        (pooled, Status::Invalid, "EVICTABLE"),
        (single, Status::Invalid, "flags 0x1"),
        (p + 256, Status::UnknownPointer, "pass its start"),
        (0x1000, Status::UnknownPointer, "no live memory"),
        (freed, Status::UnknownPointer, "no live memory"),
    ];
    for (ptr, status, text) in cases {
        for goal in [Goal::Lower, Goal::Device, Goal::Away(To::Tier(Tier::Disk))] {
            let e = rig.ctx.shift(What::One(ptr), goal, None, None).unwrap_err();
            assert!(e.status == status && e.message.contains(text), "{e}");
        }
        assert_eq!(rig.ctx.hold(ptr).unwrap_err().status, status);
        assert_eq!(rig.ctx.unhold(ptr, s).unwrap_err().status, status);
        assert_eq!(rig.ctx.location(ptr).unwrap_err().status, status);
    }
    let e = rig.ctx.shift(What::Tag(77), Goal::Lower, None, None).unwrap_err();
    assert!(e.status == Status::Invalid && e.message.contains("77"), "{e}");
    for goal in [Goal::Away(To::Tier(Tier::Disk)), Goal::Away(To::Space(DISK))] {
        let e = rig.ctx.shift(What::One(p), goal, None, None).unwrap_err();
        assert!(e.status == Status::Invalid && e.message.contains("DISK"), "{e}");
    }
    for held in [AllocFlags::SINGLE_HANDLE, AllocFlags::EXPORTABLE] {
        let both = AllocFlags(held.0 | AllocFlags::EVICTABLE.0);
        assert_eq!(rig.ctx.malloc(&flags(both)).unwrap_err().status, Status::Invalid);
    }
    assert_eq!(rig.ctx.realloc(p, 2 * PAGE, s).unwrap_err().status, Status::Unsupported);
    rig.books();
    for p in [pooled, single, p] {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// A stream that is being captured cannot be waited for, and what its graph will use must not go.
#[test]
fn captures_are_left_alone() {
    use gpumem::driver::CaptureMode;
    let rig = Rig::new(Options::default());
    let s = rig.stream();
    let p = rig.malloc(PAGE, 0, s);
    rig.ctx.hold(p).unwrap();
    rig.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
    let e = rig.ctx.unhold(p, s).unwrap_err();
    assert!(e.status == Status::Capturing && e.message.contains("a hold cannot end"), "{e}");
    let e = rig.try_malloc(PAGE, 0, s).unwrap_err();
    assert!(e.status == Status::Capturing && e.message.contains("cannot be allocated"), "{e}");
    assert_eq!(rig.ctx.location(p).unwrap().holds, 1);
    let q = rig.malloc(PAGE, 0, rig.stream());
    let e = rig.ctx.shift(What::One(q), Goal::Lower, Some(s), None).unwrap_err();
    assert_eq!(e.status, Status::Capturing);
    let graph = rig.host.capture_end(D, s).unwrap();
    rig.host.graph_destroy(D, graph).unwrap();
    rig.ctx.unhold(p, s).unwrap();
    assert_eq!(rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap().items, 1);
    for p in [p, q] {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// What would make room is used by a stream that is being captured: a hold or a restore says so,
/// where new memory is just missing. The out-of-memory policy is asked for memory all the same.
#[test]
fn a_hold_says_that_a_capture_is_in_its_way() {
    use gpumem::driver::CaptureMode;
    use std::sync::atomic::Ordering::SeqCst;
    let rig = Rig::new(Options { pages: 9, ..Options::default() });
    let (s, captured) = (rig.stream(), rig.stream());
    let away = rig.malloc(4 * PAGE, 0, s);
    rig.ctx.shift(What::One(away), Goal::Lower, Some(s), None).unwrap();
    let used = rig.malloc(5 * PAGE, 0, s);
    rig.ctx.hold(used).unwrap();
    rig.ctx.record_stream(used, captured).unwrap();
    rig.ctx.unhold(used, s).unwrap();
    let (asked, policy) = asked_in_vain();
    rig.ctx.tiers().unwrap().manager().set_out_of_memory_policy(GPU, policy).unwrap();
    rig.host.capture_begin(D, captured, CaptureMode::Relaxed).unwrap();
    let held = rig.ctx.hold(away).unwrap_err();
    let restored = rig.ctx.shift(What::One(away), Goal::Device, Some(s), None).unwrap_err();
    let new = rig.try_malloc(4 * PAGE, 0, s).unwrap_err();
    let statuses = [held, restored, new].map(|e| e.status);
    assert_eq!(statuses, [Status::Capturing, Status::Capturing, Status::OutOfMemory]);
    assert_eq!((asked.load(SeqCst), rig.ctx.location(away).unwrap().holds), (3, 0));
    let graph = rig.host.capture_end(D, captured).unwrap();
    rig.host.graph_destroy(D, graph).unwrap();
    rig.ctx.hold(away).unwrap();
    for p in [away, used] {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// What a captured stream has freed could be had at the cost of the capture. That is left alone
/// while moving memory out does as well, whatever the memory is for. With nothing to
/// move, it is the last resort: in vain, as the capture is not over.
#[test]
fn room_is_made_before_a_capture_is_given_up() {
    use gpumem::driver::CaptureMode;
    type Asks = fn(&Rig, StreamHandle, u64) -> gpumem::base::Result<u64>;
    let asks: [(&str, Asks); 4] = [
        ("hold", |rig, _, away| rig.ctx.hold(away).map(|()| away)),
        ("restore", |rig, s, away| rig.ctx.shift(What::One(away), Goal::Device, Some(s), None).map(|_| away)),
        ("malloc", |rig, s, _| rig.ctx.malloc(&Request { size: 2 * PAGE, stream: s, ..Request::default() })),
        ("malloc evictable", |rig, s, _| rig.try_malloc(2 * PAGE, 0, s)),
    ];
    for ((name, ask), movable) in asks.iter().flat_map(|&ask| [(ask, true), (ask, false)]) {
        let rig = Rig::new(Options { pages: 10, ..Options::default() });
        let (s, captured) = (rig.stream(), rig.stream());
        let away = rig.malloc(2 * PAGE, 0, s);
        rig.ctx.shift(What::One(away), Goal::Lower, Some(s), None).unwrap();
        let freed = rig.ctx.malloc(&Request { size: 2 * PAGE, stream: captured, ..Request::default() }).unwrap();
        let (idle, held) = (rig.malloc(2 * PAGE, 0, s), rig.malloc(4 * PAGE, 0, s));
        [idle, held].iter().for_each(|&p| rig.ctx.hold(p).unwrap());
        if movable {
            rig.ctx.unhold(idle, s).unwrap();
        }
        rig.host.device_sync(D).unwrap();
        rig.host.capture_begin(D, captured, CaptureMode::Relaxed).unwrap();
        let small = rig.ctx.malloc(&Request { size: 512, stream: captured, ..Request::default() }).unwrap();
        rig.ctx.free_async(small, captured).unwrap();
        rig.ctx.free_async(freed, captured).unwrap();
        let got = ask(&rig, s, away);
        let ended = rig.host.capture_end(D, captured);
        assert_eq!((got.is_ok(), ended.is_ok()), (movable, movable), "{name}: {:?}", got.as_ref().err());
        if let Ok(graph) = ended {
            rig.host.graph_destroy(D, graph).unwrap();
        }
        let all: std::collections::BTreeSet<u64> = got.into_iter().chain([away, idle, held]).collect();
        all.into_iter().for_each(|p| rig.ctx.free_async(p, s).unwrap());
        rig.close();
    }
}

/// A stream that has the handle of an ended one has markers of its own, which can be waited for
/// while another stream's capture forbids a marker of the context.
#[test]
fn a_reused_handle_can_be_waited_for_during_a_capture() {
    use gpumem::driver::CaptureMode;
    let rig = Rig::new(Options::default());
    let (old, captured) = (rig.stream(), rig.stream());
    let small = |stream| rig.ctx.malloc(&Request { size: 4 * KIB, stream, ..Request::default() }).unwrap();
    rig.ctx.free_async(small(old), old).unwrap();
    rig.host.stream_sync(D, old).unwrap();
    rig.host.capture_begin(D, captured, CaptureMode::Relaxed).unwrap();
    rig.ctx.free_async(small(captured), captured).unwrap();
    rig.host.stream_destroy(D, old).unwrap();
    let s = rig.stream();
    assert_eq!(s, old);
    rig.ctx.free_async(small(s), s).unwrap();
    let p = rig.malloc(PAGE, 0, s);
    rig.ctx.hold(p).unwrap();
    rig.fill(s, p, PAGE, 1);
    rig.ctx.unhold(p, s).unwrap();
    assert_eq!(rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap().items, 1);
    let graph = rig.host.capture_end(D, captured).unwrap();
    rig.host.graph_destroy(D, graph).unwrap();
    rig.ctx.hold(p).unwrap();
    rig.check(s, p, PAGE, 1);
    rig.ctx.free_async(p, s).unwrap();
    rig.close();
}

/// Wherever it is, in every way to free.
#[test]
fn what_is_freed_elsewhere_leaves_nothing_there() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    for goal in [Goal::Device, Goal::Lower, Goal::Away(To::Tier(Tier::Disk))] {
        for way in 0..3 {
            let p = rig.malloc(2 * PAGE, 0, s);
            rig.fill(s, p, 2 * PAGE, 1);
            rig.ctx.shift(What::One(p), goal, Some(s), None).unwrap();
            match way {
                0 => rig.ctx.free(p).unwrap(),
                1 => rig.ctx.free_async(p, s).unwrap(),
                _ => assert!(rig.ctx.free_id(p, rig.ctx.info(p).unwrap().id, None).unwrap()),
            }
            assert_eq!(rig.ctx.location(p).unwrap_err().status, Status::UnknownPointer);
            assert!(rig.slots() == 0 && rig.host_used() == 0);
            rig.books();
        }
    }
    rig.close();
}

/// When there is no memory, what was unheld goes, oldest use first, and only as much as is needed.
#[test]
fn the_least_recently_unheld_make_room() {
    let rig = Rig::new(Options { pages: 8, ..Options::default() });
    let s = rig.stream();
    let all: Vec<u64> = (0..6).map(|_| rig.malloc(PAGE, 0, s)).collect();
    for &i in &[2, 0, 1, 3, 4] {
        rig.ctx.hold(all[i]).unwrap();
        rig.ctx.unhold(all[i], s).unwrap();
    }
    rig.ctx.hold(all[0]).unwrap();
    let where_are = || all.iter().map(|&p| rig.ctx.location(p).unwrap().space == Some(GPU)).collect::<Vec<_>>();
    // One page is the rig's, one is left: three are missing. 2 is the oldest, 0 is held, then come
    // 1 and 3.
    let big = rig.malloc(4 * PAGE, 0, s);
    assert_eq!(where_are(), [true, false, false, false, true, true]);
    // 4 is all that may still go: 5 was never unheld.
    let e = rig.try_malloc(2 * PAGE, 0, s).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory);
    rig.ctx.free_async(big, s).unwrap();
    rig.ctx.hold(all[4]).unwrap();
    let ordinary = rig.ctx.malloc(&Request { size: 4 * PAGE, stream: s, ..Request::default() }).unwrap();
    let e = rig.ctx.hold(all[1]).unwrap_err();
    assert_eq!(e.status, Status::OutOfMemory);
    assert_eq!(rig.ctx.location(all[1]).unwrap().holds, 0, "a hold that failed is none");
    rig.ctx.free_async(ordinary, s).unwrap();
    rig.host.device_sync(D).unwrap();
    rig.ctx.hold(all[1]).unwrap();
    for p in all {
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

#[test]
fn moves_can_be_watched_and_cancelled() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let size = 40 * MIB;
    let all: Vec<u64> = (0..3).map(|_| rig.malloc(size, 9, s)).collect();
    for (i, &p) in all.iter().enumerate() {
        rig.fill(s, p, size, i as u64);
    }
    for goal in [Goal::Lower, Goal::Away(To::Tier(Tier::Disk)), Goal::Device] {
        for stop in [1, 30 * MIB, 50 * MIB] {
            let mut told = Vec::new();
            let mut progress = |done: u64, total: u64| {
                told.push((done, total));
                done < stop
            };
            let e = rig.ctx.shift(What::Tag(9), goal, Some(s), Some(&mut progress)).unwrap_err();
            assert!(e.status == Status::Cancelled && e.message.contains("copied"), "{e}");
            assert!(told.windows(2).all(|w| w[0].0 <= w[1].0), "{told:?}");
            assert!(told.iter().all(|t| t.1 % size == 0 && t.0 <= t.1), "{told:?}");
            rig.books();
        }
        let mut last = (0, 0);
        let mut progress = |done: u64, total: u64| {
            last = (done, total);
            true
        };
        rig.ctx.shift(What::Tag(9), goal, Some(s), Some(&mut progress)).unwrap();
        assert_eq!(last.0, last.1, "the last says that it is over");
    }
    for (i, &p) in all.iter().enumerate() {
        rig.check(s, p, size, i as u64);
        rig.ctx.free_async(p, s).unwrap();
    }
    rig.close();
}

/// A guest that nobody has registered.
#[derive(Debug)]
struct Stranger;

impl Guest for Stranger {
    fn gone(&self) {}
}

/// Validating a context checks what its tiers know, too: evictable memory, and pinned memory.
#[test]
fn a_context_validates_its_tiers() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let says = |part: &str| {
        let e = rig.ctx.validate().unwrap_err();
        assert!(e.status == Status::Internal && e.message.contains(part), "{e}");
    };
    let p = rig.malloc(PAGE, 0, rig.stream());
    rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), None, None).unwrap();
    rig.ctx.validate().unwrap();
    let manager = rig.ctx.tiers().unwrap().manager();
    let drawn = manager.draw(&manager.space(HOST).unwrap(), None, MIB, 0).unwrap();
    says("HOST 0: ");
    drop(drawn);
    let (pool, flags) = (rig.ctx.pool(D).unwrap(), AllocFlags::EVICTABLE);
    let made =
        pool.malloc_evictable(&AllocRequest { size: PAGE, flags, ..AllocRequest::default() }, Arc::new(Stranger));
    says("2 evictable allocations live, 1 are registered");
    rig.ctx.free(made.unwrap().base).unwrap();
    rig.ctx.free(p).unwrap();
    rig.close();
}

/// Device memory of what is elsewhere belongs to the space again; a restore draws it anew.
#[test]
fn spaces_count_what_is_in_them() {
    let rig = Rig::new(Options { disk: true, ..Options::default() });
    let s = rig.stream();
    let before = rig.usage(GPU).used;
    let p = rig.malloc(3 * PAGE - 100, 0, s);
    assert_eq!(rig.usage(GPU).used, before + 3 * PAGE);
    rig.ctx.shift(What::One(p), Goal::Lower, Some(s), None).unwrap();
    assert_eq!(rig.usage(GPU).used, before);
    assert!(rig.usage(HOST).used >= 3 * PAGE - 100);
    rig.ctx.shift(What::One(p), Goal::Away(To::Tier(Tier::Disk)), Some(s), None).unwrap();
    assert_eq!(rig.usage(HOST).used, 0);
    assert!((3 * PAGE - 100..3 * PAGE + 64 * KIB).contains(&rig.usage(DISK).used));
    // Somebody is promised what is left: the hold is refused, and nothing has changed.
    let manager = rig.ctx.tiers().unwrap().manager();
    let rest = rig.usage(GPU).available;
    let all = manager.reserve(Reserve::new(Strategy::Space(GPU), Amount::Exact(rest - PAGE))).unwrap();
    let e = rig.ctx.hold(p).unwrap_err();
    assert!(e.status == Status::OutOfMemory, "{e}");
    assert_eq!(rig.ctx.location(p).unwrap().space, Some(DISK));
    all.release().unwrap();
    rig.ctx.hold(p).unwrap();
    assert_eq!((rig.usage(GPU).used, rig.usage(DISK).used), (before + 3 * PAGE, 0));
    rig.ctx.unhold(p, s).unwrap();
    rig.ctx.free_async(p, s).unwrap();
    assert_eq!(rig.usage(GPU).used, before);
    rig.close();
}

#[test]
fn a_null_stream_is_the_legacy_stream() {
    let rig = Rig::new(Options::default());
    let p = rig.malloc(PAGE, 0, StreamHandle::LEGACY);
    rig.fill(StreamHandle::LEGACY, p, PAGE, 3);
    rig.ctx.shift(What::One(p), Goal::Lower, None, None).unwrap();
    rig.ctx.shift(What::One(p), Goal::Device, None, None).unwrap();
    rig.check(StreamHandle::LEGACY, p, PAGE, 3);
    rig.ctx.free(p).unwrap();
    rig.close();
}

/// Evictable memory that lies where an arena freed something is used in its own right: the detector
/// does not take it for what was there.
#[test]
fn evictable_memory_where_an_arena_freed_is_not_a_late_use() {
    let host = HostDriver::new(HostOptions::default()).unwrap();
    let arena_debug = DebugMode { check: true, ..DebugMode::default() };
    let ctx = Context::new(host, Config { arena_debug, log: 0, ..Config::default() }).unwrap();
    let malloc = |flags| ctx.malloc(&Request { size: 2 * PAGE, flags, ..Request::default() }).unwrap();
    let arena = ctx.arena_enter("step").unwrap();
    let old = malloc(AllocFlags::default());
    ctx.arena_exit(&arena, &[]).unwrap();
    assert!(ctx.check(old, "read", "x").is_err());
    ctx.device_sync().unwrap();
    ctx.trim(0).unwrap();
    let overlaps = |p: u64| p < old + 2 * PAGE && old < p + 2 * PAGE;
    let new: Vec<u64> = (0..64).map(|_| malloc(AllocFlags::EVICTABLE)).collect();
    assert!(new.iter().any(|&p| overlaps(p)), "none lies where the arena's was");
    for p in new {
        ctx.check(p, "read", "x").unwrap();
        ctx.free(p).unwrap();
    }
}

/// What a server does that captures graphs, keeps them, and is put to sleep: no call names the
/// capture's stream after its end, so nothing but the end says that it is over. Memory that was
/// never held waits for the whole device.
#[test]
fn memory_goes_once_a_capture_has_ended_though_no_call_names_its_stream_again() {
    use gpumem::arena::capture::CaptureOptions;
    use gpumem::driver::CaptureMode;
    for (of_torch, check) in [(false, StreamCheck::Auto), (false, StreamCheck::Driver), (true, StreamCheck::Driver)] {
        let rig = Rig::new(Options { late: Some(7), stream_check: check, ..Options::default() });
        let (s, captured) = (rig.stream(), rig.stream());
        let p = rig.malloc(PAGE, 7, s);
        rig.fill(s, p, PAGE, 1);
        let sleep = || rig.ctx.shift(What::Tag(7), Goal::Lower, None, None);
        let mine = (!of_torch).then(|| rig.ctx.capture_begin(captured, CaptureOptions::default()).unwrap());
        if of_torch {
            rig.ctx.torch_begin(D, (1, 2), Box::new(move |s| s == captured)).unwrap();
        }
        rig.host.capture_begin(D, captured, CaptureMode::Relaxed).unwrap();
        let made = rig.ctx.malloc(&Request { size: PAGE, stream: captured, ..Request::default() }).unwrap();
        rig.fill(captured, made, PAGE, 2);
        // Frees name the stream as well, after the last allocation.
        let temporary = rig.ctx.malloc(&Request { size: 512, stream: captured, ..Request::default() }).unwrap();
        rig.ctx.free_async(temporary, captured).unwrap();
        assert_eq!(sleep().unwrap_err().status, Status::Capturing, "it is in progress");
        let graph = rig.host.capture_end(D, captured).unwrap();
        assert_eq!(sleep().unwrap_err().status, Status::Capturing, "it may be in progress");
        match &mine {
            Some(capture) => rig.ctx.capture_end(capture).unwrap(),
            None => rig.ctx.torch_end(D, (1, 2)).unwrap(),
        }
        rig.host.stream_destroy(D, captured).unwrap();
        let moved = sleep().unwrap();
        assert_eq!((moved.items, moved.bytes), (1, PAGE));
        rig.ctx.shift(What::Tag(7), Goal::Device, None, None).unwrap();
        rig.check(s, p, PAGE, 1);
        rig.host.graph_destroy(D, graph).unwrap();
        rig.ctx.free(made).unwrap();
        match &mine {
            Some(capture) => rig.ctx.capture_abort(capture).unwrap(),
            None => rig.ctx.torch_release(D, (1, 2)).unwrap(),
        }
        rig.ctx.free_async(p, s).unwrap();
        rig.close();
    }
}

/// While one route is left, no capture is over because another route has ended: neither for moves
/// nor for what is freed meanwhile.
#[test]
fn the_end_of_one_route_ends_no_capture_of_another() {
    use gpumem::arena::capture::CaptureOptions;
    use gpumem::driver::CaptureMode;
    fn goes_on(name: &str, end: impl Fn(&Rig, StreamHandle, &dyn Fn())) {
        let rig = Rig::new(Options { pages: 32, ..Options::default() });
        let (s, t) = (rig.stream(), rig.stream());
        let p = rig.malloc(PAGE, 7, t);
        rig.fill(t, p, PAGE, 1);
        let exported = Request { size: PAGE, stream: t, flags: AllocFlags::EXPORTABLE, ..Request::default() };
        let exported = rig.ctx.malloc(&exported).unwrap();
        let allocate = || _ = rig.ctx.malloc(&Request { size: PAGE, stream: s, ..Request::default() }).unwrap();
        end(&rig, s, &allocate);
        let moved = rig.ctx.shift(What::Tag(7), Goal::Lower, None, None);
        assert_eq!(moved.unwrap_err().status, Status::Capturing, "{name}");
        rig.ctx.free(exported).unwrap();
        rig.host.capture_end(D, s).unwrap_or_else(|e| unreachable!("{name}: {e}"));
        // What is live in the captures stays with the device.
        std::mem::forget(rig);
    }
    let capture = |rig: &Rig, s| rig.host.capture_begin(D, s, CaptureMode::Relaxed).unwrap();
    let torch_begin = |rig: &Rig, id, s| rig.ctx.torch_begin(D, (id, 0), Box::new(move |x| x == s)).unwrap();
    let torch_end = |rig: &Rig, id| rig.ctx.torch_end(D, (id, 0)).unwrap();
    goes_on("a second capture of an arena ends", |rig, s, allocate| {
        let first = rig.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        capture(rig, s);
        allocate();
        let share = CaptureOptions { share: Some(&first), ..CaptureOptions::default() };
        let second = rig.ctx.capture_begin(rig.stream(), share).unwrap();
        rig.ctx.capture_end(&second).unwrap();
        std::mem::forget((first, second));
    });
    for inner in 1..3 {
        goes_on("a pool within a pool of torch's, later an empty one", |rig, s, allocate| {
            torch_begin(rig, 1, s);
            capture(rig, s);
            allocate();
            for i in 0..inner {
                torch_begin(rig, 2, s);
                if i == 0 {
                    allocate();
                }
                torch_end(rig, 2);
            }
        });
    }
    goes_on("a pool of torch's within an announced capture, of which there are two", |rig, s, allocate| {
        let announced = rig.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        capture(rig, s);
        torch_begin(rig, 2, s);
        allocate();
        torch_end(rig, 2);
        rig.host.capture_end(D, s).unwrap();
        rig.ctx.trim(0).unwrap();
        capture(rig, s);
        std::mem::forget(announced);
    });
}

/// What was captured by routes that have all ended is still heeded by everything but moves.
#[test]
fn a_capture_stays_known_when_all_routes_have_ended() {
    use gpumem::arena::capture::CaptureOptions;
    for share in [false, true] {
        let rig = Rig::new(Options { pages: 32, ..Options::default() });
        let (s, t) = (rig.stream(), rig.stream());
        let exported = Request { size: PAGE, stream: t, flags: AllocFlags::EXPORTABLE, ..Request::default() };
        let exported = rig.ctx.malloc(&exported).unwrap();
        let first = rig.ctx.capture_begin(s, CaptureOptions::default()).unwrap();
        rig.host.capture_begin(D, s, gpumem::driver::CaptureMode::Relaxed).unwrap();
        let made = rig.ctx.malloc(&Request { size: PAGE, stream: s, ..Request::default() }).unwrap();
        let options = CaptureOptions { share: share.then_some(&first), ..CaptureOptions::default() };
        let second = rig.ctx.capture_begin(rig.stream(), options).unwrap();
        rig.ctx.capture_end(&first).unwrap();
        rig.ctx.capture_end(&second).unwrap();
        // Its memory waits for the whole device.
        rig.ctx.free(exported).unwrap();
        let graph = rig.host.capture_end(D, s).unwrap();
        rig.host.graph_destroy(D, graph).unwrap();
        rig.ctx.free(made).unwrap();
        rig.ctx.capture_abort(&second).unwrap();
        rig.ctx.capture_abort(&first).unwrap();
        rig.close();
    }
}

/// A capture that has begun before the first call to name its stream is known before room is made:
/// for memory mapped ahead, and for an allocation.
#[test]
fn room_for_a_capture_in_progress_does_not_end_it() {
    use gpumem::arena::capture::CaptureOptions;
    let ahead = |rig: &Rig, s| {
        let options = CaptureOptions { bytes: 14 * PAGE, ..CaptureOptions::default() };
        rig.ctx.capture_begin(s, options).map(drop)
    };
    let first = |rig: &Rig, s| rig.ctx.malloc(&Request { size: 14 * PAGE, stream: s, ..Request::default() }).map(drop);
    for ask in [ahead as fn(&Rig, StreamHandle) -> gpumem::base::Result<()>, first] {
        let rig = Rig::new(Options { pages: 32, ..Options::default() });
        let (s, t, u) = (rig.stream(), rig.stream(), rig.stream());
        let p = rig.malloc(24 * PAGE, 0, t);
        rig.fill(t, p, PAGE, 1);
        rig.ctx.hold(p).unwrap();
        rig.ctx.unhold(p, t).unwrap();
        // Only the whole device shows when the use on a stream is over that is gone.
        rig.ctx.record_stream(p, u).unwrap();
        rig.host.stream_destroy(D, u).unwrap();
        rig.ctx.tiers().unwrap().manager().set_limit(GPU, Some(32 * PAGE)).unwrap();
        rig.host.capture_begin(D, s, gpumem::driver::CaptureMode::Relaxed).unwrap();
        assert!(ask(&rig, s).is_err(), "there was room");
        let graph = rig.host.capture_end(D, s).unwrap();
        rig.host.graph_destroy(D, graph).unwrap();
        rig.ctx.free_async(p, t).unwrap();
        rig.ctx.stream_sync(s).unwrap();
        rig.close();
    }
}

/// Where no route shows that a capture is over, the stream itself does, or a wait for it if that
/// cannot be seen.
#[test]
fn memory_goes_once_a_captured_stream_is_seen_or_has_been_waited_for() {
    for check in [StreamCheck::Auto, StreamCheck::Driver] {
        let rig = Rig::new(Options { late: Some(7), stream_check: check, ..Options::default() });
        let (s, captured) = (rig.stream(), rig.stream());
        let p = rig.malloc(PAGE, 7, s);
        let sleep = || rig.ctx.shift(What::Tag(7), Goal::Lower, None, None);
        rig.host.capture_begin(D, captured, gpumem::driver::CaptureMode::Relaxed).unwrap();
        let made = rig.ctx.malloc(&Request { size: PAGE, stream: captured, ..Request::default() }).unwrap();
        assert_eq!(sleep().unwrap_err().status, Status::Capturing);
        let graph = rig.host.capture_end(D, captured).unwrap();
        if check == StreamCheck::Driver {
            assert_eq!(sleep().unwrap_err().status, Status::Capturing, "it may be in progress");
            rig.ctx.stream_sync(captured).unwrap();
        }
        assert_eq!(sleep().unwrap().items, 1);
        rig.host.graph_destroy(D, graph).unwrap();
        rig.ctx.free_async(made, captured).unwrap();
        rig.ctx.free_async(p, s).unwrap();
        rig.close();
    }
}

/// A capture's memory, mapped ahead or laid out, makes room for itself as any other does.
#[test]
fn a_capture_that_wants_memory_ahead_makes_room() {
    use gpumem::arena::capture::CaptureOptions;
    use gpumem::pool::GraphArenaOptions;
    let rig = Rig::new(Options { pages: 32, ..Options::default() });
    let s = rig.stream();
    let record = GraphArenaOptions { record: true, ..GraphArenaOptions::default() };
    let dry = rig.ctx.capture_begin(s, CaptureOptions { arena: record, ..CaptureOptions::default() }).unwrap();
    let made = rig.ctx.malloc(&Request { size: 8 * PAGE, stream: s, ..Request::default() }).unwrap();
    rig.ctx.free_async(made, s).unwrap();
    rig.ctx.capture_end(&dry).unwrap();
    rig.ctx.capture_plan(&dry).unwrap();
    let layout = CaptureOptions { layout: Some(&dry), ..CaptureOptions::default() };
    for options in [CaptureOptions { bytes: 8 * PAGE, ..CaptureOptions::default() }, layout] {
        rig.ctx.trim(0).unwrap();
        // Leaves half of what the capture wants.
        let p = rig.malloc(28 * PAGE - rig.stats().mapped, 0, s);
        rig.fill(s, p, PAGE, 1);
        rig.ctx.hold(p).unwrap();
        assert_eq!(rig.ctx.capture_begin(s, options).err().unwrap().status, Status::OutOfMemory);
        rig.ctx.unhold(p, s).unwrap();
        let capture = rig.ctx.capture_begin(s, options).unwrap();
        assert_eq!(rig.ctx.location(p).unwrap().space, Some(HOST));
        rig.ctx.capture_abort(&capture).unwrap();
        rig.ctx.hold(p).unwrap();
        rig.check(s, p, PAGE, 1);
        rig.ctx.free_async(p, s).unwrap();
        rig.ctx.device_sync().unwrap();
    }
    rig.ctx.capture_abort(&dry).unwrap();
    rig.close();
}

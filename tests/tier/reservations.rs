//! Reservations, one rule at a time; `tier_waiting.rs` has those about waiting, `tier_model.rs` all
//! at once.
//!
//! Tests named after cuCascade are of faults found by reading that library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::{Error, Status};
use gpumem::driver::thread_end::watch;
use gpumem::tier::*;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const GPU1: SpaceId = SpaceId::new(Tier::Gpu, 1);
const HOST: SpaceId = SpaceId::new(Tier::Host, 0);
const HOST1: SpaceId = SpaceId::new(Tier::Host, 1);
const DISK: SpaceId = SpaceId::new(Tier::Disk, 0);
const STREAM: u64 = 7;

fn manager(spaces: &[(SpaceId, u64)]) -> Manager {
    let m = Manager::new();
    for &(id, capacity) in spaces {
        m.add_space(id, &SpaceOptions::new(capacity)).unwrap();
    }
    m
}

fn one(capacity: u64) -> (Manager, Arc<Space>) {
    let m = manager(&[(GPU, capacity)]);
    let space = m.space(GPU).unwrap();
    (m, space)
}

/// Every counter of every space is exactly 0, and the equations hold.
#[track_caller]
fn assert_empty(m: &Manager) {
    m.validate().unwrap();
    for s in m.spaces() {
        let u = m.usage(s.id()).unwrap();
        let counts = [u.promised, u.unreserved, u.used, u.beyond, u.reservations, u.waiters];
        assert_eq!((counts, u.available), ([0; 6], u.limit), "{}: {u:?}", s.id());
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

// ---- counters -----------------------------------------------------------------------------------

#[test]
fn promises_draws_and_releases_are_counted_exactly() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 400)).unwrap();
    let inside = r.draw(150, STREAM).unwrap();
    let outside = m.draw(&space, None, 100, STREAM).unwrap();
    let u = m.usage(GPU).unwrap();
    assert_eq!((u.promised, u.unreserved, u.used, u.peak, u.available), (400, 100, 250, 250, 500));
    assert_eq!((r.size(), r.drawn(), inside.reservation(), outside.reservation()), (400, 150, Some(r.id()), None));
    m.validate().unwrap();

    // What outlives its reservation is use outside of any; the rest of the promise is free at once.
    assert_eq!(r.release(), Ok(Released { size: 400, drawn: 150 }));
    let u = m.usage(GPU).unwrap();
    assert_eq!((u.promised, u.unreserved, u.used, u.available, u.reservations), (0, 250, 250, 750, 0));
    m.validate().unwrap();
    thread::spawn(move || drop(inside)).join().unwrap();
    assert_eq!(m.usage(GPU).unwrap().unreserved, 100);
    drop(outside);
    assert_empty(&m);
    assert_eq!(space.usage().peak(), 250);
    space.usage().reset_peak();
    assert_eq!(space.usage().peak(), 0);
}

#[test]
fn growing_and_shrinking_are_counted_exactly() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 100)).unwrap();
    r.grow(300, Wait::No, None).unwrap();
    let mut d = r.draw(250, STREAM).unwrap();
    assert_eq!((r.size(), space.available()), (400, 600));
    r.shrink(50).unwrap();
    assert_eq!((r.size(), r.drawn(), space.available()), (350, 250, 650));
    assert_eq!(r.shrink_to_fit(), Ok(100));
    assert_eq!((r.size(), r.drawn(), space.available()), (250, 250, 750));
    d.shrink(200);
    assert_eq!((r.size(), r.drawn(), d.bytes(), space.usage().now()), (250, 50, 50, 50));
    m.validate().unwrap();
    drop(d);
    assert_eq!((r.drawn(), r.usage().peak(), r.shrink_to_fit()), (0, 250, Ok(250)));
    drop(r);
    assert_empty(&m);
}

#[test]
fn up_to_says_how_much_it_became() {
    let (m, _) = one(1000);
    let up_to = |least, most| m.reserve(Request::new(Strategy::Space(GPU), Amount::UpTo { least, most }));
    let a = up_to(1, 700).unwrap();
    let b = up_to(1, 700).unwrap();
    assert_eq!((a.size(), b.size()), (700, 300));
    says(up_to(1, 700), Status::OutOfMemory, &["1 B", "GPU 0: 0 B of 1000 B available"]);
    b.shrink(50).unwrap();
    says(up_to(51, 700), Status::OutOfMemory, &["51 B", "50 B of"]);
    drop((a, b));
    assert_empty(&m);
}

// ---- bad input ----------------------------------------------------------------------------------

#[test]
fn bad_requests_say_what_was_asked_what_there_is_and_what_to_do() {
    let m = manager(&[(GPU, 1000), (HOST, 2000)]);
    says(m.reserve(Request::exact(GPU, 0)), Status::Invalid, &["a reservation of 0 bytes", "at least 1"]);
    let up_to = |least, most| m.reserve(Request::new(Strategy::Space(GPU), Amount::UpTo { least, most }));
    says(up_to(0, 5), Status::Invalid, &["a reservation of 0 bytes", "at least 1"]);
    says(up_to(6, 5), Status::Invalid, &["least that will do, 6 bytes", "is asked for, 5"]);
    let forever = |r: Request| m.reserve(r.wait(Wait::Forever));
    let more = ["1001 B", "may ever be promised", "of 1000 B", "the capacity is 1000 B at most, so ask for less"];
    says(forever(Request::exact(GPU, 1001)), Status::OutOfMemory, &more);
    let limited = Manager::new();
    let space = limited.add_space(GPU, &SpaceOptions { limit: Some(900), ..SpaceOptions::new(1000) }).unwrap();
    says(limited.reserve(Request::exact(GPU, 901)), Status::OutOfMemory, &["ask for less or raise the limit"]);
    says(limited.reserve(Request::exact(GPU, 1001)), Status::OutOfMemory, &["the capacity is 1000 B at most"]);
    says(limited.draw(&space, None, 901, STREAM), Status::OutOfMemory, &["900 B of 900 B", "or raise the limit"]);
    says(limited.draw(&space, None, 1001, STREAM), Status::OutOfMemory, &["capacity is 1000 B, so ask for less"]);
    let disk = limited.add_space(SpaceId::new(Tier::Disk, 0), &SpaceOptions::new(1000)).unwrap();
    let larger = &["capacity is 1000 B, so raise its size in GPUMEM_DISK, or add a disk"];
    says(limited.draw(&disk, None, 1001, STREAM), Status::OutOfMemory, larger);
    says(forever(Request::exact(GPU, u64::MAX)), Status::OutOfMemory, &["TiB"]);
    // Two sizes that look alike are told apart.
    let large = manager(&[(GPU, 8 << 20)]);
    let all = &["8.00 MiB (8388609 bytes)", "8.00 MiB of 8.00 MiB available"];
    says(large.reserve(Request::exact(GPU, (8 << 20) + 1)), Status::OutOfMemory, all);
    says(forever(Request::exact(GPU1, 1)), Status::Invalid, &["no space GPU 1", "there are GPU 0, HOST 0"]);
    says(Manager::new().reserve(Request::exact(GPU, 1)), Status::Invalid, &["no space at all", "add one"]);
    says(m.add_space(GPU, &SpaceOptions::new(1)), Status::Invalid, &["GPU 0 exists already"]);
    let limit = SpaceOptions { limit: Some(11), ..SpaceOptions::new(10) };
    says(m.add_space(GPU1, &limit), Status::Invalid, &["limit of 11 B", "capacity, 10 B"]);
    says(m.add_space(GPU1, &SpaceOptions::new(u64::MAX)), Status::Invalid, &["is the most"]);
    says(m.usage(DISK), Status::Invalid, &["DISK 0"]);
    let other = manager(&[(GPU, 1000)]);
    says(m.draw(&other.space(GPU).unwrap(), None, 1, 0), Status::Invalid, &["another manager"]);
    let token = other.cancel_token();
    says(m.reserve(Request::exact(GPU, 1).cancel(&token)), Status::Invalid, &["another manager"]);
    assert_empty(&m);
}

#[test]
fn bad_changes_of_a_reservation_change_nothing() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 100)).unwrap();
    let d = r.draw(60, STREAM).unwrap();
    says(r.shrink(41), Status::Invalid, &["41 B", "60 B of its 100 B are drawn", "by 40 bytes at most"]);
    says(r.shrink(u64::MAX), Status::Invalid, &["are drawn"]);
    says(r.shrink(0), Status::Invalid, &["at least 1"]);
    says(r.grow(0, Wait::No, None), Status::Invalid, &["at least 1"]);
    says(r.grow(901, Wait::Forever, None), Status::OutOfMemory, &["100 B larger by 901 B", "ever"]);
    says(r.grow(u64::MAX, Wait::Forever, None), Status::OutOfMemory, &["ever"]);
    says(m.draw(&space, None, u64::MAX, STREAM), Status::OutOfMemory, &["more than any space has"]);
    says(r.draw(u64::MAX, STREAM), Status::OutOfMemory, &["more than any space has"]);
    let full = m.draw(&space, None, 901, STREAM).unwrap_err().message;
    assert!(
        full.ends_with("901 B asked outside of any reservation, 900 B of 1000 B available; free or release something"),
        "{full}"
    );
    assert_eq!((r.size(), r.drawn(), space.available()), (100, 60, 900));
    m.validate().unwrap();

    r.release().unwrap();
    let gone = format!("reservation {} has been released", r.id());
    says(r.release(), Status::Invalid, &[&gone]);
    says(r.shrink(1), Status::Invalid, &[&gone]);
    says(r.shrink_to_fit(), Status::Invalid, &[&gone]);
    says(r.grow(1, Wait::Forever, None), Status::Invalid, &[&gone]);
    says(r.draw(1, STREAM), Status::Invalid, &[&gone]);
    says(r.attach_stream(STREAM), Status::Invalid, &[&gone]);
    says(r.attach_thread(), Status::Invalid, &[&gone]);
    says(r.set_policy(LimitPolicy::Ignore), Status::Invalid, &[&gone]);
    assert_eq!((r.size(), r.drawn(), r.is_released()), (0, 0, true));
    drop(d);
    drop(r);
    assert_empty(&m);
}

// ---- strategies ---------------------------------------------------------------------------------

#[track_caller]
fn goes_to(m: &Manager, strategy: Strategy, bytes: u64, space: SpaceId) -> Reservation {
    let r = m.reserve(Request::new(strategy, Amount::Exact(bytes))).unwrap();
    assert_eq!((r.space(), r.size()), (space, bytes));
    r
}

#[test]
fn any_of_a_tier_is_the_one_with_the_most_room() {
    let m = manager(&[(GPU, 1000), (GPU1, 1100), (HOST, 9000)]);
    let a = goes_to(&m, Strategy::Tier(Tier::Gpu), 200, GPU1);
    let b = goes_to(&m, Strategy::Tier(Tier::Gpu), 950, GPU);
    let c = goes_to(&m, Strategy::Tier(Tier::Gpu), 900, GPU1);
    says(
        m.reserve(Request::new(Strategy::Tier(Tier::Gpu), Amount::Exact(51))),
        Status::OutOfMemory,
        &["GPU 0: 50 B of 1000 B", "GPU 1: 0 B of 1.07 KiB"],
    );
    says(m.reserve(Request::new(Strategy::Tier(Tier::Disk), Amount::Exact(1))), Status::Invalid, &["tier DISK"]);
    drop((a, b, c));
    assert_empty(&m);
}

#[test]
fn a_list_of_tiers_falls_back_in_its_order() {
    let m = manager(&[(DISK, 5000), (GPU, 1000), (GPU1, 1000), (HOST, 2000)]);
    let tiers = || Strategy::Tiers(vec![Tier::Gpu, Tier::Host, Tier::Gpu, Tier::Disk]);
    let a = goes_to(&m, tiers(), 900, GPU);
    let b = goes_to(&m, tiers(), 900, GPU1);
    let c = goes_to(&m, tiers(), 900, HOST);
    // What fits a tier of less preference only goes there, and a later one that fits the first goes
    // to the first.
    let d = goes_to(&m, tiers(), 1500, DISK);
    let e = goes_to(&m, tiers(), 100, GPU);
    drop(a);
    let f = goes_to(&m, tiers(), 900, GPU);
    // Up-to, too, prefers the first tier that has the least that will do.
    let up_to = |least| m.reserve(Request::new(tiers(), Amount::UpTo { least, most: 1000 })).unwrap();
    let g = up_to(50);
    assert_eq!((g.space(), g.size()), (GPU1, 100));
    let h = up_to(200);
    assert_eq!((h.space(), h.size()), (HOST, 1000));
    says(m.reserve(Request::new(Strategy::Tiers(vec![]), Amount::Exact(1))), Status::Invalid, &["empty list"]);
    drop((b, c, d, e, f, g, h));
    assert_empty(&m);
}

#[test]
fn moving_down_goes_to_the_nearest_lower_tier_and_node() {
    let m = Manager::new();
    let near = |capacity, numa| SpaceOptions { numa, ..SpaceOptions::new(capacity) };
    m.add_space(GPU, &near(1000, Some(1))).unwrap();
    m.add_space(HOST, &near(1000, Some(0))).unwrap();
    m.add_space(HOST1, &near(500, Some(1))).unwrap();
    m.add_space(DISK, &near(9000, None)).unwrap();
    let down = |to| Strategy::DowngradeFrom { from: GPU, to };
    let a = goes_to(&m, down(None), 400, HOST1);
    let b = goes_to(&m, down(None), 400, HOST);
    let c = goes_to(&m, down(None), 700, DISK);
    let d = goes_to(&m, down(Some(Tier::Disk)), 10, DISK);
    let up = |from, to| Strategy::UpgradeFrom { from, to };
    let e = goes_to(&m, up(DISK, None), 500, HOST);
    let f = goes_to(&m, up(DISK, None), 600, GPU);
    let g = goes_to(&m, up(DISK, Some(Tier::Gpu)), 100, GPU);
    let h = goes_to(&m, up(HOST1, None), 100, GPU);
    drop((a, b, c, d, e, f, g, h));
    assert_empty(&m);
}

/// cuCascade makes an empty list of candidates and waits for ever.
#[test]
fn cucascade_moving_with_nowhere_to_go_is_an_error_at_once() {
    let m = manager(&[(GPU, 1000), (DISK, 1000)]);
    let forever = |s| m.reserve(Request::new(s, Amount::Exact(1)).wait(Wait::Forever));
    let down = |from, to| Strategy::DowngradeFrom { from, to };
    let up = |from, to| Strategy::UpgradeFrom { from, to };
    says(forever(down(DISK, None)), Status::Invalid, &["a lower tier to move DISK 0 down", "there are GPU 0, DISK 0"]);
    says(forever(down(GPU, Some(Tier::Host))), Status::Invalid, &["the lower tier HOST", "GPU 0"]);
    says(forever(down(DISK, Some(Tier::Gpu))), Status::Invalid, &["the lower tier GPU"]);
    says(forever(up(GPU, None)), Status::Invalid, &["a higher tier to move GPU 0 up"]);
    says(forever(up(DISK, Some(Tier::Host))), Status::Invalid, &["the higher tier HOST"]);
    says(forever(down(HOST, None)), Status::Invalid, &["no space HOST 0"]);
    says(forever(Strategy::Tier(Tier::Host)), Status::Invalid, &["tier HOST"]);
    let no_disk = manager(&[(GPU, 1000), (HOST, 1000)]);
    let to_disk = |s| no_disk.reserve(Request::new(s, Amount::Exact(1)));
    let all = "there are GPU 0, HOST 0; GPUMEM_DISK and gpumem_space_disk_add add disks";
    says(to_disk(down(GPU, Some(Tier::Disk))), Status::Invalid, &["the lower tier DISK to move GPU 0", all]);
    says(to_disk(Strategy::Space(DISK)), Status::Invalid, &["no space DISK 0", all]);
    assert_empty(&m);
}

// ---- policies -----------------------------------------------------------------------------------

fn increase(factor: f64, cap: Option<u64>, beyond_limit: bool) -> LimitPolicy {
    LimitPolicy::Increase { factor: Factor::new(factor).unwrap(), cap, beyond_limit }
}

fn with(m: &Manager, bytes: u64, policy: LimitPolicy) -> Reservation {
    m.reserve(Request::exact(GPU, bytes).policy(policy)).unwrap()
}

#[test]
fn the_default_policy_fails_and_names_the_reservation() {
    let (m, _) = one(1000);
    let r = m.reserve(Request::exact(GPU, 100)).unwrap();
    let d = r.draw(90, STREAM).unwrap();
    says(r.draw(11, STREAM), Status::OutOfMemory, &["11 B asked", "90 B of its 100 B drawn", "GPU 0"]);
    assert_eq!((r.drawn(), r.size()), (90, 100));
    drop((d, r));
    assert_empty(&m);
}

#[test]
fn the_ignore_policy_takes_the_rest_from_outside_within_the_limit() {
    let (m, space) = one(1000);
    let r = with(&m, 100, LimitPolicy::Ignore);
    let other = m.reserve(Request::exact(GPU, 850)).unwrap();
    let d = r.draw(130, STREAM).unwrap();
    let u = m.usage(GPU).unwrap();
    assert_eq!((d.inside(), r.drawn(), r.size(), u.unreserved, u.used), (100, 100, 100, 30, 130));
    m.validate().unwrap();
    says(r.draw(21, STREAM), Status::OutOfMemory, &["21 B asked", "only 20 B available in the space"]);
    let e = r.draw(20, STREAM).unwrap();
    assert_eq!((e.inside(), space.available()), (0, 0));
    // The failed one took nothing of what was free meanwhile.
    drop(e);
    says(r.draw(200, STREAM), Status::OutOfMemory, &["200 B"]);
    m.validate().unwrap();
    drop(other);
    drop(r);
    assert_eq!(m.usage(GPU).unwrap().unreserved, 130);
    drop(d);
    assert_empty(&m);
}

#[test]
fn the_increase_policy_grows_by_the_factor_by_the_need_or_by_what_there_is() {
    let (m, space) = one(1000);
    let r = with(&m, 100, increase(1.25, None, false));
    let a = r.draw(101, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn()), (125, 101), "by the factor");
    let b = r.draw(200, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn()), (301, 301), "by the need");
    let other = m.reserve(Request::exact(GPU, 690)).unwrap();
    let c = r.draw(5, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn(), space.available()), (310, 306, 0), "to what there is");
    says(r.draw(5, STREAM), Status::OutOfMemory, &["5 B asked", "0 B more to grow by"]);
    m.validate().unwrap();
    drop((a, b, c));
    assert_eq!((r.size(), r.drawn()), (310, 0));
    drop((other, r));
    assert_empty(&m);
}

#[test]
fn the_increase_policy_stops_at_its_cap() {
    let (m, _) = one(1000);
    let r = with(&m, 100, increase(2.0, Some(150), false));
    let a = r.draw(120, STREAM).unwrap();
    assert_eq!(r.size(), 150);
    says(r.draw(31, STREAM), Status::OutOfMemory, &["would need 151 B and may grow to 150 B"]);
    let b = r.draw(30, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn()), (150, 150));
    drop((a, b, r));
    assert_empty(&m);
}

#[test]
fn the_increase_policy_goes_beyond_the_limit_only_where_told_and_never_beyond_the_capacity() {
    let m = Manager::new();
    let space = m.add_space(GPU, &SpaceOptions { limit: Some(800), ..SpaceOptions::new(1000) }).unwrap();
    let r = with(&m, 700, increase(1.0, None, false));
    says(r.draw(801, STREAM), Status::OutOfMemory, &["100 B more to grow by"]);
    r.set_policy(increase(1.0, None, true)).unwrap();
    let a = r.draw(900, STREAM).unwrap();
    let u = m.usage(GPU).unwrap();
    assert_eq!((u.promised, u.used, u.beyond, u.available), (900, 900, 100, 0));
    m.validate().unwrap();
    says(r.draw(101, STREAM), Status::OutOfMemory, &["0 B more to grow by"]);
    let b = r.draw(100, STREAM).unwrap();
    assert_eq!(m.usage(GPU).unwrap().beyond, 200);
    says(m.draw(&space, None, 1, STREAM), Status::OutOfMemory, &["0 B of 800 B available"]);
    drop(a);
    r.shrink_to_fit().unwrap();
    assert_eq!((m.usage(GPU).unwrap().beyond, space.available()), (0, 700));
    drop((b, r));
    assert_empty(&m);
}

fn full<T>(_: Drawn, _: Option<&Cell<bool>>) -> Result<T, Error> {
    Err(Error::new(Status::OutOfMemory, "the device is full"))
}

#[test]
fn a_failed_allocation_leaves_a_reservation_that_grew_for_it_as_it_was() {
    let m = Manager::new();
    let space = m.add_space(GPU, &SpaceOptions { limit: Some(800), ..SpaceOptions::new(1000) }).unwrap();
    let r = with(&m, 100, increase(2.0, None, true));
    let kept = r.draw(30, STREAM).unwrap();
    for bytes in [71, 150, 700, 900] {
        says(
            m.allocate_with(&space, Some(&r), bytes, STREAM, full::<()>),
            Status::OutOfMemory,
            &["the device is full"],
        );
        let u = m.usage(GPU).unwrap();
        assert_eq!((r.size(), r.drawn(), u.available, u.beyond), (100, 30, 700, 0), "{bytes}");
        m.validate().unwrap();
    }
    // Who waits for what it grew by gets that.
    let waiter = thread::scope(|s| {
        let mut waiter = None;
        let fails = |_: Drawn, _: Option<&Cell<bool>>| -> Result<(), Error> {
            waiter = Some(s.spawn(|| m.reserve(Request::exact(GPU, 700).wait(Wait::Forever)).unwrap()));
            while m.waiters() == 0 {
                thread::yield_now();
            }
            Err(Error::new(Status::Driver, "broken"))
        };
        says(m.allocate_with(&space, Some(&r), 71, STREAM, fails), Status::Driver, &["broken"]);
        waiter.take().unwrap().join().unwrap()
    });
    assert_eq!((r.size(), waiter.size(), space.available()), (100, 700, 0));
    drop((kept, waiter, r));
    assert_empty(&m);
}

#[test]
fn a_reservation_that_ends_while_it_grows_for_an_allocation_that_fails_leaves_nothing() {
    let (m, space) = one(1000);
    let r = with(&m, 100, increase(2.0, None, false));
    let released = |drawn: Drawn, _: Option<&Cell<bool>>| {
        r.release().unwrap();
        full::<()>(drawn, None)
    };
    says(m.allocate_with(&space, Some(&r), 150, STREAM, released), Status::OutOfMemory, &["full"]);
    assert_empty(&m);
}

/// In whatever order they end, each gives back what it grew by and nothing of another's.
#[test]
fn allocations_that_fail_at_once_leave_their_reservation_as_it_was() {
    let (m, space) = one(1000);
    let r = with(&m, 100, increase(2.0, None, false));
    for first in [0, 1] {
        let fails = |a: Drawn, _: Option<&Cell<bool>>| {
            let mut a = Some(a);
            says(
                m.allocate_with(&space, Some(&r), 120, STREAM, |b, _| {
                    let mut both = [Some(b), a.take()];
                    drop(both[first].take());
                    m.validate().unwrap();
                    full::<()>(both[1 - first].take().unwrap(), None)
                }),
                Status::OutOfMemory,
                &["full"],
            );
            Err::<(), _>(Error::new(Status::OutOfMemory, "full"))
        };
        says(m.allocate_with(&space, Some(&r), 150, STREAM, fails), Status::OutOfMemory, &["full"]);
        assert_eq!((r.size(), r.drawn(), space.available()), (100, 0, 900), "{first}");
    }
    thread::scope(|s| {
        for t in 0..4u64 {
            let (m, space, r) = (&m, &space, &r);
            s.spawn(move || {
                for i in 0..500 {
                    let bytes = 60 + (i * 7 + t * 13) % 90;
                    let fails = |drawn: Drawn, _: Option<&Cell<bool>>| {
                        thread::yield_now();
                        full::<()>(drawn, None)
                    };
                    m.allocate_with(space, Some(r), bytes, STREAM, fails).unwrap_err();
                }
            });
        }
    });
    assert_eq!((r.size(), r.drawn(), space.available()), (100, 0, 900));
    drop(r);
    assert_empty(&m);
}

/// cuCascade adds the overflow to the allocated bytes and to the reservation's, and takes it off
/// only one of them.
#[test]
fn cucascade_an_increase_counts_the_overflow_once_and_leaks_nothing() {
    let (m, _) = one(10_000);
    for round in 0..100 {
        let r = with(&m, 10, increase(1.25, None, false));
        let drawn: Vec<_> = (1..=20).map(|n| r.draw(n * 2, round).unwrap()).collect();
        let u = m.usage(GPU).unwrap();
        assert_eq!((u.used, u.unreserved, r.drawn()), (420, 0, 420));
        assert_eq!(u.promised, r.size());
        m.validate().unwrap();
        // On even rounds the allocations end first, on odd ones the reservation.
        match round % 2 {
            0 => drop(drawn),
            _ => assert_eq!(r.release().unwrap().drawn, 420),
        }
        drop(r);
        if round % 2 == 0 {
            assert_empty(&m);
        }
    }
    assert_empty(&m);
}

/// cuCascade lowers the reservation but not the total.
#[test]
fn cucascade_shrinking_lowers_the_total() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 1000)).unwrap();
    r.shrink(600).unwrap();
    assert_eq!((m.usage(GPU).unwrap().promised, space.available()), (400, 600));
    let other = m.reserve(Request::exact(GPU, 600)).unwrap();
    r.shrink_to_fit().unwrap();
    assert_eq!(m.usage(GPU).unwrap().promised, 600);
    drop((r, other));
    assert_empty(&m);
}

#[test]
fn a_callback_decides_is_told_the_facts_and_is_called_with_no_lock_held() {
    let m = Arc::new(one(1000).0);
    let answers = Arc::new(Mutex::new(vec![Decision::Fail]));
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept: Arc<Mutex<Option<Drawn>>> = Arc::default();
    let callback: LimitCallbackFor = {
        let (m, answers, told, kept) = (m.clone(), answers.clone(), told.clone(), kept.clone());
        Arc::new(move |o: &Overdraw| {
            told.lock().unwrap().push(*o);
            // Whatever takes the manager's locks would hang here if one were held.
            assert!(m.usage(GPU).is_ok());
            let scratch = m.reserve(Request::exact(GPU, 1)).unwrap();
            drop(scratch.draw(1, 0).unwrap());
            let answer = answers.lock().unwrap().remove(0);
            if answer == Decision::Retry {
                drop(kept.lock().unwrap().take());
            }
            answer
        })
    };
    let r = with(&m, 100, LimitPolicy::Callback(callback));
    *kept.lock().unwrap() = Some(r.draw(90, STREAM).unwrap());
    says(r.draw(20, STREAM), Status::OutOfMemory, &["90 B of its 100 B drawn"]);
    let facts = |attempt, size, drawn, bytes| Overdraw {
        space: GPU,
        reservation: r.id(),
        size,
        drawn,
        bytes,
        stream: STREAM,
        attempt,
    };
    assert_eq!(told.lock().unwrap().drain(..).collect::<Vec<_>>(), [facts(1, 100, 90, 20)]);

    *answers.lock().unwrap() = vec![Decision::Ignore];
    let around = r.draw(20, STREAM).unwrap();
    assert_eq!((around.inside(), m.usage(GPU).unwrap().unreserved), (10, 10));

    // Not enough by the first answer, so it is asked again; then what the callback freed will do.
    told.lock().unwrap().clear();
    *answers.lock().unwrap() = vec![Decision::Grow(5), Decision::Grow(30), Decision::Retry];
    let grown = r.draw(35, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn()), (135, 135));
    assert_eq!(told.lock().unwrap().drain(..).collect::<Vec<_>>(), [facts(1, 100, 100, 35), facts(2, 105, 100, 35)]);
    let retried = r.draw(90, STREAM).unwrap();
    assert_eq!((r.size(), r.drawn()), (135, 135));
    *answers.lock().unwrap() = vec![Decision::Grow(u64::MAX)];
    says(r.draw(1, STREAM), Status::OutOfMemory, &["more to grow by not available"]);
    m.validate().unwrap();
    drop((around, grown, retried, r));
    assert_empty(&m);
}

type LimitCallbackFor = gpumem::tier::promise::policy::LimitCallback;

#[test]
fn an_out_of_memory_callback_makes_room_and_the_allocation_is_counted_once() {
    let (m, space) = one(1000);
    let m = Arc::new(m);
    let cache =
        Arc::new(Mutex::new(vec![m.draw(&space, None, 400, 1).unwrap(), m.draw(&space, None, 500, 1).unwrap()]));
    let told = Arc::new(Mutex::new(Vec::new()));
    let evict: gpumem::tier::promise::policy::OutOfMemoryCallback = {
        let (cache, told) = (cache.clone(), told.clone());
        Arc::new(move |s: &Shortage| {
            told.lock().unwrap().push((s.space, s.bytes, s.stream, s.attempt));
            cache.lock().unwrap().pop().is_some()
        })
    };
    m.set_out_of_memory_policy(GPU, OutOfMemoryPolicy::Callback(evict)).unwrap();
    // First the space is full; once one is evicted the memory itself refuses, and another goes.
    let refusals = AtomicU64::new(1);
    let malloc = |drawn, _: Option<&_>| match refusals.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)) {
        Ok(_) => Err(Error::new(Status::OutOfMemory, "the device is full")),
        Err(_) => Ok((0x1000, drawn)),
    };
    let (ptr, drawn) = m.allocate_with(&space, None, 300, STREAM, malloc).unwrap();
    assert_eq!((ptr, drawn.bytes(), space.usage().now()), (0x1000, 300, 300));
    assert_eq!(*told.lock().unwrap(), [(GPU, 300, STREAM, 1), (GPU, 300, STREAM, 2)]);
    refusals.store(5, SeqCst);
    says(m.allocate_with(&space, None, 1, STREAM, malloc), Status::OutOfMemory, &["the device is full"]);
    assert_eq!((told.lock().unwrap().len(), space.usage().now()), (3, 300));

    // A reservation's own policy comes first.
    let r = m.reserve(Request::exact(GPU, 100)).unwrap();
    r.attach_stream(STREAM).unwrap();
    r.set_out_of_memory_policy(Some(OutOfMemoryPolicy::Fail)).unwrap();
    refusals.store(1, SeqCst);
    says(m.allocate_with(&space, None, 1, STREAM, malloc), Status::OutOfMemory, &["full"]);
    assert_eq!((told.lock().unwrap().len(), r.drawn()), (3, 0));
    drop((drawn, r));
    assert_empty(&m);
}

#[test]
fn a_failed_allocation_raises_no_peak() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 500)).unwrap();
    let stream = || m.stream_usage(&space, STREAM).unwrap().unwrap();
    let peaks = || (space.usage().peak(), r.usage().peak(), stream().peak());
    m.allocate_with(&space, Some(&r), 400, STREAM, full::<()>).unwrap_err();
    m.allocate_with(&space, DrawFrom::Outside, 300, STREAM, full::<()>).unwrap_err();
    assert_eq!(peaks(), (0, 0, 0));
    let kept = r.draw(40, STREAM).unwrap();
    m.allocate_with(&space, Some(&r), 400, STREAM, full::<()>).unwrap_err();
    assert_eq!(peaks(), (40, 40, 40));
    drop(kept);
    assert_eq!(peaks(), (40, 40, 40));
    drop(r);
    assert_empty(&m);
}

/// A relief that makes 1,000 bytes of room from its call number `from` on, and before that says so
/// while others take it. Returns the count of its calls.
fn relief(m: &Manager, space: &Arc<Space>, from: u64, each_time: impl Fn() + Send + Sync + 'static) -> Arc<AtomicU64> {
    let used = Mutex::new(Some(m.draw(space, None, 800, STREAM).unwrap()));
    let calls = Arc::new(AtomicU64::new(0));
    let count = calls.clone();
    m.set_relief(Box::new(move |_| {
        if count.fetch_add(1, SeqCst) >= from {
            drop(used.lock().unwrap().take());
        }
        each_time();
        Ok(true)
    }));
    calls
}

/// Others may take the room that was made for a reservation, or for a larger one. It is made again
/// then, a few times.
#[test]
fn room_is_made_again_when_others_take_it() {
    for (taken, made) in [(5, 6), (1000, 16)] {
        let expected = if made > taken { Ok(()) } else { Err(Status::OutOfMemory) };
        let (m, space) = one(1000);
        let calls = relief(&m, &space, taken, || ());
        let status = m.reserve(Request::exact(GPU, 500)).map(drop).map_err(|e| e.status);
        assert_eq!((status, calls.load(SeqCst)), (expected, made));

        let (m, space) = one(1000);
        let small = m.reserve(Request::exact(GPU, 100)).unwrap();
        let calls = relief(&m, &space, taken, || ());
        let status = small.grow(400, Wait::No, None).map_err(|e| e.status);
        assert_eq!((status, calls.load(SeqCst)), (expected, made));
        assert_eq!(small.size(), if expected.is_ok() { 500 } else { 100 });
    }
}

/// No room is made for a request that has been cancelled, or whose time is over.
#[test]
fn no_room_is_made_for_who_has_gone() {
    let (m, space) = one(1000);
    let cancel = m.cancel_token();
    let theirs = cancel.clone();
    let calls = relief(&m, &space, 1000, move || theirs.cancel());
    let e = m.reserve(Request::exact(GPU, 500).wait(Wait::Forever).cancel(&cancel)).map(drop).unwrap_err();
    assert_eq!((e.status, calls.load(SeqCst)), (Status::Cancelled, 1));

    let (m, space) = one(1000);
    let small = m.reserve(Request::exact(GPU, 100)).unwrap();
    let calls = relief(&m, &space, 1000, || ());
    let e = small.grow(400, Wait::For(std::time::Duration::from_nanos(1)), None).unwrap_err();
    assert_eq!((e.status, calls.load(SeqCst)), (Status::TimedOut, 1));
}

// ---- thresholds ---------------------------------------------------------------------------------

#[test]
fn usage_between_the_thresholds_moves_nothing_and_above_exactly_enough() {
    let (m, space) = one(10_000);
    let base = m.draw(&space, None, 7_000, STREAM).unwrap();
    for more in (0..1_400).step_by(7) {
        let d = m.draw(&space, None, more, STREAM).unwrap();
        assert!(!space.should_downgrade(), "{}", space.usage().now());
        drop(d);
    }
    let below = m.draw(&space, None, 1_499, STREAM).unwrap();
    assert!(!space.should_downgrade());
    let last = m.draw(&space, None, 1, STREAM).unwrap();
    assert!(space.should_downgrade() && !space.should_stop_downgrading());
    assert_eq!(space.amount_to_downgrade(), 2_000);
    // The promises do not count: moving data makes no promise smaller.
    let r = m.reserve(Request::exact(GPU, 1_000)).unwrap();
    assert_eq!(space.amount_to_downgrade(), 2_000);
    drop(below);
    assert!(!space.should_downgrade() && !space.should_stop_downgrading(), "moving goes on down to the stop");
    assert_eq!(space.amount_to_downgrade(), 501);
    let mut base = base;
    base.shrink(500);
    assert!(!space.should_stop_downgrading());
    base.shrink(1);
    assert!(space.should_stop_downgrading() && space.amount_to_downgrade() == 0);
    drop((base, last, r));
    assert_empty(&m);
}

#[test]
fn limits_and_thresholds_can_be_changed() {
    let (m, space) = one(1000);
    let d = m.draw(&space, None, 600, STREAM).unwrap();
    let t = Thresholds::new(0.5, 0.25).unwrap();
    m.set_limits(GPU, 1000, 500, t).unwrap();
    let u = m.usage(GPU).unwrap();
    assert_eq!((u.limit, u.beyond, u.available, u.trigger, u.stop), (500, 100, 0, 250, 125));
    assert!(space.should_downgrade() && space.amount_to_downgrade() == 475);
    m.validate().unwrap();
    says(m.set_limits(GPU, 400, 500, t), Status::Invalid, &["500 B", "400 B"]);
    m.set_limits(GPU, 2000, 2000, t).unwrap();
    assert_eq!((space.available(), space.should_downgrade()), (1400, false));
    drop(d);
    assert_empty(&m);
}

/// Data moves out before the limit is reached, however low it is, and the shares that were given
/// stay.
#[test]
fn thresholds_follow_the_limit() {
    let (m, space) = one(1000);
    let d = m.draw(&space, None, 400, STREAM).unwrap();
    let bytes = |m: &Manager| m.usage(GPU).map(|u| (u.trigger, u.stop)).unwrap();
    assert_eq!((bytes(&m), space.should_downgrade()), ((850, 650), false));
    m.set_limit(GPU, Some(460)).unwrap();
    assert_eq!((bytes(&m), space.should_downgrade(), space.amount_to_downgrade()), ((391, 299), true, 101));
    m.set_thresholds(GPU, Thresholds::new(1.0, 0.5).unwrap()).unwrap();
    assert_eq!((bytes(&m), space.should_downgrade()), ((460, 230), false));
    says(m.set_limit(GPU, Some(1001)), Status::Invalid, &["1001 B"]);
    assert_eq!(bytes(&m), (460, 230), "as before");
    m.set_limit(GPU, None).unwrap();
    assert_eq!(bytes(&m), (1000, 500));
    drop(d);
    assert_empty(&m);
    let m = Manager::new();
    let half = m.add_space(GPU, &SpaceOptions { limit: Some(500), ..SpaceOptions::new(1000) }).unwrap();
    let d = m.draw(&half, None, 425, STREAM).unwrap();
    assert!(half.should_downgrade() && half.amount_to_downgrade() == 100);
    drop(d);
}

// ---- attaching ----------------------------------------------------------------------------------

#[test]
fn allocations_draw_from_the_streams_reservation_else_from_the_threads() {
    let (m, space) = one(1000);
    let [of_stream, of_thread] = [200, 300].map(|n| m.reserve(Request::exact(GPU, n)).unwrap());
    let drawn = |stream| {
        let d = m.draw(&space, None, 10, stream).unwrap();
        assert_eq!(d.reservation(), m.current(&space, stream).unwrap());
        d.reservation()
    };
    assert_eq!(drawn(1), None);
    of_stream.attach_stream(1).unwrap();
    assert_eq!((drawn(1), drawn(2)), (Some(of_stream.id()), None));
    of_thread.attach_thread().unwrap();
    assert_eq!((drawn(1), drawn(2)), (Some(of_stream.id()), Some(of_thread.id())));
    thread::scope(|s| {
        s.spawn(|| assert_eq!((drawn(1), drawn(2)), (Some(of_stream.id()), None)));
    });
    says(of_thread.attach_stream(1), Status::Invalid, &["stream 0x1", "detach it first"]);
    says(of_stream.attach_thread(), Status::Invalid, &["this thread", "detach it first"]);
    m.detach_stream(&space, 1).unwrap();
    assert_eq!(drawn(1), Some(of_thread.id()));
    says(m.detach_stream(&space, 1), Status::Invalid, &["stream 0x1", "no reservation of GPU 0"]);
    // Releasing detaches: the next draws are outside, and another may be attached.
    of_stream.attach_stream(1).unwrap();
    of_stream.release().unwrap();
    of_thread.release().unwrap();
    assert_eq!((drawn(1), drawn(2)), (None, None));
    says(m.detach_stream(&space, 1), Status::Invalid, &["no reservation"]);
    says(m.detach_thread(&space), Status::Invalid, &["this thread"]);
    let again = m.reserve(Request::exact(GPU, 5)).unwrap();
    again.attach_stream(1).unwrap();
    again.attach_thread().unwrap();
    says(m.draw(&space, None, 6, 1), Status::OutOfMemory, &["6 B asked"]);
    m.detach_thread(&space).unwrap();
    m.forget_stream(1);
    assert_eq!(drawn(1), None);
    drop((of_stream, of_thread, again));
    assert_empty(&m);
}

/// The end of a stream, of an attachment or of a reservation takes off that alone.
#[test]
fn each_end_takes_off_its_own_attachments_alone() {
    let (m, space) = one(1000);
    let [a, b] = [100, 200].map(|n| m.reserve(Request::exact(GPU, n)).unwrap());
    let current = || [1, 2, 3].map(|stream| m.current(&space, stream).unwrap());
    for stream in [1, 2, 3] {
        a.attach_stream(stream).unwrap();
    }
    m.forget_stream(1);
    m.detach_stream(&space, 2).unwrap();
    assert_eq!(current(), [None, None, Some(a.id())]);
    // The next stream with the handle of the first.
    b.attach_stream(1).unwrap();
    b.attach_stream(2).unwrap();
    a.release().unwrap();
    assert_eq!(current(), [Some(b.id()), Some(b.id()), None]);
    b.release().unwrap();
    assert_eq!(current(), [None; 3]);
    drop((a, b));
    assert_empty(&m);
}

thread_local! {
    /// What the thread attaches at its end. No destructor of Rust's takes it away before.
    static ATTACHED_LATE: ManuallyDrop<Cell<Option<Arc<Reservation>>>> = const { ManuallyDrop::new(Cell::new(None)) };
}

fn attach_late() {
    if let Some(r) = ATTACHED_LATE.with(|r| r.take()) {
        r.attach_thread().unwrap();
    }
}

#[test]
fn a_thread_that_attaches_in_its_last_destructors_keeps_nothing() {
    let (m, space) = one(1000);
    let known = Arc::strong_count(&space);
    let r = Arc::new(m.reserve(Request::exact(GPU, 100)).unwrap());
    let theirs = r.clone();
    let ends = thread::spawn(move || {
        watch(attach_late).unwrap();
        ATTACHED_LATE.with(|r| r.set(Some(theirs)));
    });
    ends.join().unwrap();
    assert_eq!(Arc::strong_count(&r), 1, "the destructor has run");
    drop(r);
    assert_eq!(Arc::strong_count(&space), known);
    assert_empty(&m);
}

/// cuCascade has one reservation for each thread, whatever the space.
#[test]
fn cucascade_a_threads_reservations_of_two_spaces_are_apart() {
    let m = manager(&[(GPU, 1000), (HOST, 1000)]);
    let (gpu, host) = (m.space(GPU).unwrap(), m.space(HOST).unwrap());
    let a = m.reserve(Request::exact(GPU, 100)).unwrap();
    let b = m.reserve(Request::exact(HOST, 100)).unwrap();
    a.attach_thread().unwrap();
    assert_eq!(m.draw(&host, None, 50, STREAM).unwrap().reservation(), None);
    b.attach_thread().unwrap();
    let (d, e) = (m.draw(&gpu, None, 50, STREAM).unwrap(), m.draw(&host, None, 60, STREAM).unwrap());
    assert_eq!((a.drawn(), b.drawn()), (50, 60));
    m.detach_thread(&gpu).unwrap();
    assert_eq!((m.current(&gpu, STREAM).unwrap(), m.current(&host, STREAM).unwrap()), (None, Some(b.id())));
    // The same stream number in two spaces is two streams.
    a.attach_stream(STREAM).unwrap();
    m.detach_thread(&host).unwrap();
    assert_eq!((m.current(&gpu, STREAM).unwrap(), m.current(&host, STREAM).unwrap()), (Some(a.id()), None));
    drop((d, e, a, b));
    assert_empty(&m);
}

#[test]
fn streams_have_usage_and_peaks_of_their_own() {
    let (m, space) = one(1000);
    let r = m.reserve(Request::exact(GPU, 500)).unwrap();
    let usage = |stream| m.stream_usage(&space, stream).unwrap().unwrap();
    // What is no stream is asked about without a trace.
    let books = format!("{m:?}");
    assert_eq!((usage(77).now(), usage(77).peak(), m.current(&space, 77).unwrap()), (0, 0, None));
    assert_eq!(format!("{m:?}"), books);
    let a = m.draw(&space, None, 100, 1).unwrap();
    let b = r.draw(200, 1).unwrap();
    let c = m.draw(&space, None, 50, 2).unwrap();
    assert_eq!((usage(1).now(), usage(2).now(), usage(1).peak()), (300, 50, 300));
    drop(b);
    assert_eq!((usage(1).now(), usage(1).peak(), r.usage().peak()), (100, 300, 200));
    usage(1).reset_peak();
    assert_eq!((usage(1).peak(), usage(2).peak(), space.usage().peak()), (100, 50, 350));
    drop((a, c, r));
    assert_eq!((usage(1).now(), usage(2).now()), (0, 0));
    let off = m.add_space(HOST, &SpaceOptions { per_stream: false, ..SpaceOptions::new(10) }).unwrap();
    drop(m.draw(&off, None, 10, 1).unwrap());
    assert!(m.stream_usage(&off, 1).unwrap().is_none());
    assert_empty(&m);
}

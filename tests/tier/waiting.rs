//! Waiting for room: in turn, with an end, and woken by whatever makes room.
//!
//! Tests named after cuCascade are of faults found by reading that library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::{Error, Status};
use gpumem::tier::*;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);
const GPU1: SpaceId = SpaceId::new(Tier::Gpu, 1);
const HOST: SpaceId = SpaceId::new(Tier::Host, 0);
const SHORT: Wait = Wait::For(Duration::from_millis(5));

fn manager(spaces: &[(SpaceId, u64)]) -> Arc<Manager> {
    let m = Manager::new();
    for &(id, capacity) in spaces {
        m.add_space(id, &SpaceOptions::new(capacity)).unwrap();
    }
    Arc::new(m)
}

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

/// Starts a request on a thread of its own and returns when it waits.
fn waiting(m: &Arc<Manager>, request: Request) -> JoinHandle<Result<Reservation, Error>> {
    let before = m.waiters();
    let thread = thread::spawn({
        let m = m.clone();
        move || m.reserve(request)
    });
    until(|| m.waiters() > before);
    thread
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

fn forever(space: SpaceId, bytes: u64) -> Request {
    Request::exact(space, bytes).wait(Wait::Forever)
}

#[test]
fn cucascade_a_wait_can_have_an_end() {
    let m = manager(&[(GPU, 100)]);
    let r = m.reserve(Request::exact(GPU, 60)).unwrap();
    let timed_out = ["41 B", "40 B of 100 B available", "in time"];
    says(m.reserve(Request::exact(GPU, 41).wait(SHORT)), Status::TimedOut, &timed_out);
    says(m.reserve(Request::exact(GPU, 41).wait(Wait::For(Duration::ZERO))), Status::TimedOut, &timed_out);
    says(m.reserve(Request::exact(GPU, 41)), Status::OutOfMemory, &["41 B", "40 B of 100 B available"]);
    let other = m.reserve(Request::exact(GPU, 20)).unwrap();
    says(r.grow(21, SHORT, None), Status::TimedOut, &["21 B", "20 B of 100 B available", "in time"]);
    drop(other);
    // A time that no clock reaches is no end, but there is room.
    drop(m.reserve(Request::exact(GPU, 40).wait(Wait::For(Duration::MAX))).unwrap());
    let unending = waiting(&m, Request::exact(GPU, 41).wait(Wait::For(Duration::MAX)));
    drop(r);
    drop(unending.join().unwrap().unwrap());
    assert_empty(&m);
}

/// Each of 100 waiters gets its byte in the order of their coming, though all threads sleep at
/// once.
#[test]
fn cucascade_waiters_are_served_in_the_order_of_their_coming() {
    let m = manager(&[(GPU, 100)]);
    let all = m.reserve(Request::exact(GPU, 100)).unwrap();
    let (served, order) = channel();
    let threads: Vec<_> = (0..100)
        .map(|n| {
            let (m, served) = (m.clone(), served.clone());
            let before = m.waiters();
            let thread = thread::spawn({
                let m = m.clone();
                move || {
                    let r = m.reserve(forever(GPU, 1)).unwrap();
                    served.send(n).unwrap();
                    r
                }
            });
            until(|| m.waiters() > before);
            thread
        })
        .collect();
    for n in 0..100 {
        all.shrink(1).unwrap();
        assert_eq!(order.recv().unwrap(), n);
        assert_eq!(m.waiters(), 99 - n);
    }
    drop(all);
    threads.into_iter().for_each(|t| drop(t.join().unwrap()));
    assert_empty(&m);
}

#[test]
fn nobody_overtakes_a_large_request() {
    let m = manager(&[(GPU, 100)]);
    let first = m.reserve(Request::exact(GPU, 50)).unwrap();
    let second = m.reserve(Request::exact(GPU, 50)).unwrap();
    let large = waiting(&m, forever(GPU, 100));
    drop(first);
    // 50 bytes are there, but somebody came before.
    says(m.reserve(Request::exact(GPU, 1)), Status::OutOfMemory, &["1 B", "50 B of 100 B", "1 waiting before it"]);
    says(m.reserve(Request::exact(GPU, 1).wait(SHORT)), Status::TimedOut, &["1 waiting before it"]);
    let up_to = Request::new(Strategy::Space(GPU), Amount::UpTo { least: 1, most: 9 });
    says(m.reserve(up_to), Status::OutOfMemory, &["1 waiting"]);
    says(second.grow(1, Wait::No, None), Status::OutOfMemory, &["1 waiting"]);
    let small = waiting(&m, forever(GPU, 10));
    drop(second);
    let large = large.join().unwrap().unwrap();
    assert_eq!((large.size(), m.waiters()), (100, 1));
    drop(large);
    drop(small.join().unwrap().unwrap());
    assert_empty(&m);
}

/// Who waits holds up only those who want a space that would do for it.
#[test]
fn waiters_hold_up_the_spaces_they_want_and_no_others() {
    let m = manager(&[(GPU, 100), (GPU1, 100), (HOST, 1000)]);
    let full = m.reserve(Request::exact(GPU, 100)).unwrap();
    let partly = m.reserve(Request::exact(GPU1, 60)).unwrap();
    let either = waiting(&m, Request::new(Strategy::Tier(Tier::Gpu), Amount::Exact(50)).wait(Wait::Forever));
    says(m.reserve(Request::exact(GPU1, 40)), Status::OutOfMemory, &["40 B of 100 B", "1 waiting"]);
    // Falling back is not held up: the host is nobody's.
    let tiers = Strategy::Tiers(vec![Tier::Gpu, Tier::Host]);
    let fallen = m.reserve(Request::new(tiers.clone(), Amount::Exact(10)).wait(Wait::Forever)).unwrap();
    assert_eq!(fallen.space(), HOST);
    let rest = m.reserve(Request::exact(HOST, 990)).unwrap();
    let anywhere = waiting(&m, Request::new(tiers, Amount::Exact(100)).wait(Wait::Forever));
    let host = waiting(&m, forever(HOST, 10));
    // Room in the host is for the one who came before and would take it from there.
    rest.shrink(50).unwrap();
    assert_eq!(m.waiters(), 3);
    partly.shrink(10).unwrap();
    let either = either.join().unwrap().unwrap();
    assert_eq!((either.space(), m.waiters()), (GPU1, 2));
    rest.shrink(60).unwrap();
    let anywhere = anywhere.join().unwrap().unwrap();
    let host = host.join().unwrap().unwrap();
    assert_eq!((anywhere.space(), host.space(), m.waiters()), (HOST, HOST, 0));
    drop((full, partly, either, fallen, rest, anywhere, host));
    assert_empty(&m);
}

/// With nobody to notify, cuCascade returns less than was asked for, possibly nothing.
#[test]
fn cucascade_a_reservation_is_never_silently_smaller() {
    let m = manager(&[(GPU, 100)]);
    // Used, but by no reservation: nobody would notify.
    let d = m.draw(&m.space(GPU).unwrap(), None, 99, 0).unwrap();
    says(m.reserve(Request::exact(GPU, 2)), Status::OutOfMemory, &["2 B", "1 B of 100 B"]);
    says(m.reserve(Request::exact(GPU, 2).wait(SHORT)), Status::TimedOut, &["2 B"]);
    let exact = waiting(&m, forever(GPU, 100));
    drop(d);
    let exact = exact.join().unwrap().unwrap();
    assert_eq!(exact.size(), 100);
    let up_to = Request::new(Strategy::Space(GPU), Amount::UpTo { least: 10, most: 100 });
    says(m.reserve(up_to.clone()), Status::OutOfMemory, &["10 B", "0 B of 100 B"]);
    let some = waiting(&m, up_to.wait(Wait::Forever));
    exact.shrink(9).unwrap();
    assert_eq!(m.waiters(), 1);
    exact.shrink(1).unwrap();
    let some = some.join().unwrap().unwrap();
    assert_eq!(some.size(), 10);
    drop((exact, some));
    assert_empty(&m);
}

/// Whatever makes 10 bytes of room wakes the one who waits for them; cuCascade wakes for destroyed
/// reservations only.
#[test]
fn cucascade_whatever_makes_room_wakes_who_waits_for_it() {
    type Room = Box<dyn FnOnce()>;
    type Make = fn(&Arc<Manager>) -> Room;
    let ways: [(&str, Make); 10] = [
        ("a dropped reservation", |m| {
            let r = m.reserve(Request::exact(GPU, 10)).unwrap();
            Box::new(move || drop(r))
        }),
        ("a released reservation", |m| {
            let r = m.reserve(Request::exact(GPU, 10)).unwrap();
            Box::new(move || assert_eq!(r.release().unwrap().size, 10))
        }),
        ("a shrunken reservation", |m| {
            let r = m.reserve(Request::exact(GPU, 11)).unwrap();
            Box::new(move || {
                r.shrink(10).unwrap();
                // Still there while the waiter is served.
                std::mem::forget(r);
            })
        }),
        ("one shrunken to fit", |m| {
            let r = m.reserve(Request::exact(GPU, 30)).unwrap();
            let d = r.draw(20, 1).unwrap();
            Box::new(move || {
                assert_eq!(r.shrink_to_fit(), Ok(10));
                std::mem::forget((r, d));
            })
        }),
        ("a freed allocation outside", |m| {
            let d = m.draw(&m.space(GPU).unwrap(), None, 10, 1).unwrap();
            Box::new(move || drop(d))
        }),
        ("a shrunken allocation outside", |m| {
            let mut d = m.draw(&m.space(GPU).unwrap(), None, 15, 1).unwrap();
            Box::new(move || {
                d.shrink(10);
                std::mem::forget(d);
            })
        }),
        ("one that outlived its reservation", |m| {
            let r = m.reserve(Request::exact(GPU, 10)).unwrap();
            let d = r.draw(10, 1).unwrap();
            r.release().unwrap();
            Box::new(move || drop(d))
        }),
        ("the excess of one", |m| {
            let r = m.reserve(Request::exact(GPU, 5).policy(LimitPolicy::Ignore)).unwrap();
            let d = r.draw(15, 1).unwrap();
            Box::new(move || {
                drop(d);
                std::mem::forget(r);
            })
        }),
        ("a raised limit", |m| {
            let m = m.clone();
            Box::new(move || m.set_limits(GPU, 110, 110, Thresholds::default()).unwrap())
        }),
        ("an end of the wait before it", |m| {
            let r = m.reserve(Request::exact(GPU, 90)).unwrap();
            let token = m.cancel_token();
            let first = waiting(m, forever(GPU, 50).cancel(&token));
            Box::new(move || {
                token.cancel();
                says(first.join().unwrap(), Status::Cancelled, &["50 B"]);
                std::mem::forget(r);
            })
        }),
    ];
    for (name, make) in ways {
        let m = manager(&[(GPU, 100)]);
        let room = make(&m);
        let space = m.space(GPU).unwrap();
        let is_held_up = m.waiters() > 0;
        let rest = (!is_held_up).then(|| m.draw(&space, DrawFrom::Outside, space.available(), 2).unwrap());
        let waiter = waiting(&m, forever(GPU, 10));
        room();
        // The test hangs here when nobody wakes it.
        assert_eq!(waiter.join().unwrap().map(|r| r.size()), Ok(10), "{name}");
        drop(rest);
        assert_eq!(m.waiters(), 0);
        m.validate().unwrap();
    }
}

#[test]
fn a_timeout_lets_those_behind_through() {
    let m = manager(&[(GPU, 100)]);
    let r = m.reserve(Request::exact(GPU, 50)).unwrap();
    // The second can only be served once the first has given up.
    let first = thread::spawn({
        let m = m.clone();
        move || m.reserve(Request::exact(GPU, 51).wait(Wait::For(Duration::from_millis(30))))
    });
    until(|| m.waiters() == 1 || first.is_finished());
    drop(m.reserve(forever(GPU, 50)).unwrap());
    says(first.join().unwrap(), Status::TimedOut, &["51 B"]);
    drop(r);
    assert_empty(&m);
}

/// cuCascade wakes one.
#[test]
fn cucascade_a_shutdown_ends_a_hundred_waits() {
    let m = manager(&[(GPU, 100), (HOST, 100)]);
    let full = [GPU, HOST].map(|s| m.reserve(Request::exact(s, 100)).unwrap());
    let d = full[0].draw(10, 1).unwrap();
    let waiters: Vec<_> = (0..99).map(|n| waiting(&m, forever(if n % 2 == 0 { GPU } else { HOST }, 1 + n))).collect();
    thread::scope(|s| {
        let growing = s.spawn(|| {
            let token = m.cancel_token();
            m.reserve(forever(GPU, 100).cancel(&token))
        });
        until(|| m.waiters() == 100);
        m.shut_down();
        says(growing.join().unwrap(), Status::ShuttingDown, &["shut down"]);
    });
    for w in waiters {
        says(w.join().unwrap(), Status::ShuttingDown, &["nothing more is promised"]);
    }
    says(m.reserve(Request::exact(GPU, 1)), Status::ShuttingDown, &["shut down"]);
    says(full[1].grow(1, Wait::Forever, None), Status::ShuttingDown, &["shut down"]);
    // What there is goes on until its end.
    drop(full[0].draw(90, 1).unwrap());
    drop((d, full));
    assert_empty(&m);
}

#[test]
fn a_dropped_manager_ends_the_waits_of_its_reservations() {
    let m = Manager::new();
    m.add_space(GPU, &SpaceOptions::new(100)).unwrap();
    let full = m.reserve(Request::exact(GPU, 100)).unwrap();
    let small = {
        full.shrink(10).unwrap();
        m.reserve(Request::exact(GPU, 10)).unwrap()
    };
    thread::scope(|s| {
        let growing = s.spawn(|| small.grow(1, Wait::Forever, None));
        until(|| m.waiters() == 1);
        drop(m);
        says(growing.join().unwrap(), Status::ShuttingDown, &[]);
    });
    assert_eq!(full.release(), Ok(Released { size: 90, drawn: 0 }));
}

#[test]
fn a_token_ends_the_waits_that_carry_it_now_and_later() {
    let m = manager(&[(GPU, 100)]);
    let r = m.reserve(Request::exact(GPU, 100)).unwrap();
    let [token, other] = [m.cancel_token(), m.cancel_token()];
    let mine: Vec<_> = (0..3).map(|_| waiting(&m, forever(GPU, 20).cancel(&token.clone()))).collect();
    let theirs = waiting(&m, forever(GPU, 30).cancel(&other));
    token.cancel();
    for w in mine {
        says(w.join().unwrap(), Status::Cancelled, &["20 B", "nothing was taken"]);
    }
    assert_eq!((m.waiters(), token.is_cancelled(), other.is_cancelled()), (1, true, false));
    says(m.reserve(forever(GPU, 1).cancel(&token)), Status::Cancelled, &["1 B"]);
    says(r.grow(1, Wait::Forever, Some(&token)), Status::OutOfMemory, &["ever"]);
    r.shrink(30).unwrap();
    let theirs = theirs.join().unwrap().unwrap();
    // Too late: granted is granted.
    other.cancel();
    assert_eq!(theirs.size(), 30);
    says(theirs.grow(1, Wait::Forever, Some(&other)), Status::Cancelled, &["1 B"]);
    drop((r, theirs));
    assert_empty(&m);
}

#[test]
fn growing_waits_in_turn_and_ends_with_the_reservation() {
    let m = manager(&[(GPU, 100)]);
    let r = Arc::new(m.reserve(Request::exact(GPU, 40)).unwrap());
    let other = m.reserve(Request::exact(GPU, 60)).unwrap();
    let grow = |bytes| {
        let (r, before) = (r.clone(), m.waiters());
        let thread = thread::spawn(move || r.grow(bytes, Wait::Forever, None));
        until(|| m.waiters() > before);
        thread
    };
    let first = grow(20);
    let second = waiting(&m, forever(GPU, 10));
    let third = grow(30);
    other.shrink(30).unwrap();
    first.join().unwrap().unwrap();
    let second = second.join().unwrap().unwrap();
    assert_eq!((r.size(), second.size(), m.waiters()), (60, 10, 1));
    m.validate().unwrap();
    // The third is given up with its reservation, and leaves the way free.
    let fourth = waiting(&m, forever(GPU, 60));
    r.release().unwrap();
    says(third.join().unwrap(), Status::Invalid, &["has been released"]);
    drop((other, second, fourth.join().unwrap().unwrap(), r));
    assert_empty(&m);
}

#[test]
fn a_lowered_limit_ends_the_waits_for_what_can_never_be() {
    let m = manager(&[(GPU, 100), (GPU1, 50)]);
    let full = [GPU, GPU1].map(|s| m.reserve(Request::exact(s, m.usage(s).unwrap().limit)).unwrap());
    let large = waiting(&m, forever(GPU, 80));
    let small = waiting(&m, forever(GPU, 40));
    let either = waiting(&m, Request::new(Strategy::Tier(Tier::Gpu), Amount::Exact(45)).wait(Wait::Forever));
    m.set_limits(GPU, 40, 40, Thresholds::default()).unwrap();
    says(large.join().unwrap(), Status::OutOfMemory, &["80 B", "ever", "of 40 B"]);
    assert_eq!(m.waiters(), 2);
    drop(full);
    let (small, either) = (small.join().unwrap().unwrap(), either.join().unwrap().unwrap());
    assert_eq!((small.space(), either.space()), (GPU, GPU1));
    drop((small, either));
    assert_empty(&m);
}

/// Eight threads want anything up to everything, again and again: all are served.
#[test]
fn nobody_starves() {
    let m = manager(&[(GPU, 64), (GPU1, 64)]);
    let (done, turns) = channel();
    thread::scope(|s| {
        for t in 0..8u64 {
            let (m, done) = (&m, done.clone());
            s.spawn(move || {
                for n in 0..1_000u64 {
                    // One thread always wants everything of a space; the others mostly a little.
                    let bytes = if t == 0 { 64 } else { 1 + (n * 7 + t * 13) % 16 };
                    let strategy = match (n + t) % 3 {
                        0 => Strategy::Tier(Tier::Gpu),
                        1 => Strategy::Space(GPU),
                        _ => Strategy::Space(GPU1),
                    };
                    let any = strategy == Strategy::Tier(Tier::Gpu);
                    let r = m.reserve(Request::new(strategy, Amount::Exact(bytes)).wait(Wait::Forever)).unwrap();
                    assert_eq!(r.size(), bytes);
                    done.send((r.turn(), r.space(), any)).unwrap();
                    let d = r.draw(bytes, t).unwrap();
                    // Long enough now and then for others to come, however busy the machine is.
                    match n % 8 {
                        0 => thread::sleep(Duration::from_micros(100)),
                        _ => thread::yield_now(),
                    }
                    // On every other round what frees the last byte is the end of an allocation.
                    if n % 2 == 0 {
                        drop(r);
                        drop(d);
                    }
                }
            });
        }
    });
    drop(done);
    assert_in_turn(&turns);
    assert_empty(&m);
}

/// Of two who wanted a space, the earlier was served first, if it was served from there or the
/// later took from there.
fn assert_in_turn(turns: &Receiver<(Turn, SpaceId, bool)>) {
    let mut turns: Vec<_> = turns.iter().collect();
    assert_eq!(turns.len(), 8_000);
    assert!(turns.iter().filter(|t| t.0.granted > t.0.arrived + 1).count() > 100, "hardly anybody waited");
    turns.sort_by_key(|t| t.0.arrived);
    for space in [GPU, GPU1] {
        // From the last to come backwards: the earliest grant of any that came later and took from
        // the space.
        let mut earliest = u64::MAX;
        for (turn, from, any) in turns.iter().rev() {
            if *from == space || *any {
                assert!(turn.granted < earliest, "{turn:?} was overtaken in {space}");
            }
            if *from == space {
                earliest = earliest.min(turn.granted);
            }
        }
    }
}

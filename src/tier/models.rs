//! Models of reservations for loom: `sh scripts/loom.sh`. Each comment names a change that makes
//! its model fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::base::{Error, Result, Status};
use loom::thread;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

const GPU: SpaceId = SpaceId::new(Tier::Gpu, 0);

/// Every execution, without a bound on the switches between threads.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    let executions = Arc::new(AtomicU64::new(0));
    builder.check({
        let executions = executions.clone();
        move || {
            executions.fetch_add(1, Relaxed);
            model();
        }
    });
    println!("{} executions", executions.load(Relaxed));
}

fn one(capacity: u64) -> (Arc<Manager>, Arc<Space>) {
    let m = Manager::new();
    let space = m.add_space(GPU, &SpaceOptions { per_stream: false, ..SpaceOptions::new(capacity) }).unwrap();
    (Arc::new(m), space)
}

fn empty(m: &Manager) {
    m.validate().unwrap();
    let u = m.usage(GPU).unwrap();
    assert_eq!((u.promised, u.used, u.waiters, u.available), (0, 0, 0, u.limit));
}

fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> thread::JoinHandle<T> {
    thread::spawn(f)
}

fn forever(bytes: u64) -> Request {
    Request::exact(GPU, bytes).wait(Wait::Forever)
}

/// An allocation outside of any reservation ends while another thread begins to wait for its bytes:
/// the wait ends. Fails, waiting for ever, when `Hub::request` does not serve after it has joined
/// the queue.
#[test]
fn no_wake_up_is_lost() {
    explore(|| {
        let (m, space) = one(10);
        let d = m.draw(&space, DrawFrom::Outside, 5, 0).unwrap();
        let waiter = spawn({
            let m = m.clone();
            move || drop(m.reserve(forever(10)).unwrap())
        });
        drop(d);
        waiter.join().unwrap();
        empty(&m);
    });
}

/// A wait is cancelled while its bytes become available: it is granted or cancelled, and nothing is
/// lost either way. Fails when the thread in `Hub::request` looks at the token, once woken, before
/// it looks for an outcome.
#[test]
fn a_cancelled_wait_is_granted_or_not() {
    explore(|| {
        let (m, space) = one(10);
        let d = m.draw(&space, DrawFrom::Outside, 5, 0).unwrap();
        let token = m.cancel_token();
        let waiter = spawn({
            let (m, token) = (m.clone(), token.clone());
            move || m.reserve(forever(10).cancel(&token)).map(|r| r.size())
        });
        let free = spawn(move || drop(d));
        token.cancel();
        free.join().unwrap();
        let got = waiter.join().unwrap().map_err(|e| e.status);
        assert!(got == Ok(10) || got == Err(Status::Cancelled), "{got:?}");
        empty(&m);
    });
}

/// The first of two waiters is cancelled, and the second fits then. Fails, waiting for ever, when
/// `Cancel::cancel` does not serve those behind.
#[test]
fn a_cancelled_wait_lets_the_next_through() {
    explore(|| {
        let (m, _) = one(10);
        let r = m.reserve(Request::exact(GPU, 5)).unwrap();
        let token = m.cancel_token();
        let large = spawn({
            let (m, token) = (m.clone(), token.clone());
            move || m.reserve(forever(10).cancel(&token)).map(|r| r.size())
        });
        let small = spawn({
            let m = m.clone();
            move || drop(m.reserve(forever(5)).unwrap())
        });
        token.cancel();
        small.join().unwrap();
        assert_eq!(large.join().unwrap().map_err(|e| e.status), Err(Status::Cancelled));
        drop(r);
        empty(&m);
    });
}

/// A shutdown meets a request: it is granted what there is or gets an error, and waits no more.
/// Fails, waiting for ever, when `Hub::shut_down` sets its mark under another hold of the mutex
/// than it ends the waits.
#[test]
fn a_shutdown_ends_every_wait() {
    explore(|| {
        let (m, _) = one(10);
        let r = m.reserve(Request::exact(GPU, 5)).unwrap();
        let waiter = spawn({
            let m = m.clone();
            move || m.reserve(forever(10)).map(|r| r.size())
        });
        m.shut_down();
        assert_eq!(waiter.join().unwrap().map_err(|e| e.status), Err(Status::ShuttingDown));
        drop(r);
        empty(&m);
    });
}

/// A reservation is released while an allocation of it ends and another begins: every byte returns
/// once. Fails when `Account::release` reads the room and sets its bit in two steps.
#[test]
fn a_release_meets_draws_and_ends_of_allocations() {
    explore(|| {
        let (m, space) = one(10);
        let r = Arc::new(m.reserve(Request::exact(GPU, 6)).unwrap());
        let d = r.draw(3, 0).unwrap();
        let free = spawn(move || drop(d));
        let draw = spawn({
            let r = r.clone();
            move || r.draw(2, 0).ok()
        });
        r.release().unwrap();
        free.join().unwrap();
        let drawn = draw.join().unwrap();
        m.validate().unwrap();
        assert_eq!(space.available(), if drawn.is_some() { 8 } else { 10 });
        drop(drawn);
        empty(&m);
    });
}

/// A reservation shrinks while it is drawn from: both never fit. Fails when `Account::shrink`
/// compares the room and takes from it in two steps.
#[test]
fn a_draw_and_a_shrink_never_both_get_the_last_bytes() {
    explore(|| {
        let (m, _) = one(10);
        let r = Arc::new(m.reserve(Request::exact(GPU, 10)).unwrap());
        let draw = spawn({
            let r = r.clone();
            move || r.draw(6, 0)
        });
        let shrunk = r.shrink(6);
        let drawn = draw.join().unwrap();
        assert!(shrunk.is_ok() != drawn.is_ok(), "{shrunk:?} {drawn:?}");
        m.validate().unwrap();
        drop((drawn, r));
        empty(&m);
    });
}

/// Two allocations make a reservation grow at once. Fails when `Hub::take_growing` draws in a step
/// after the growing, as the other one takes the room then.
#[test]
fn two_growing_draws_are_each_counted_once() {
    explore(|| {
        let (m, _) = one(10);
        let policy = LimitPolicy::Increase { factor: Factor::default(), cap: None, beyond_limit: false };
        let r = Arc::new(m.reserve(Request::exact(GPU, 1).policy(policy)).unwrap());
        let draw = spawn({
            let r = r.clone();
            move || r.draw(5, 0).unwrap()
        });
        let mine = r.draw(5, 0).unwrap();
        let theirs = draw.join().unwrap();
        assert_eq!((r.size(), r.drawn()), (10, 10));
        m.validate().unwrap();
        drop((mine, theirs, r));
        empty(&m);
    });
}

/// The peak starts anew while use goes up: it is never below the use. Fails when
/// `Usage::reset_peak` only loads `now`, or stores it as the peak.
#[test]
fn a_reset_peak_is_not_below_the_use() {
    explore(|| {
        let usage = Arc::new(Usage::default());
        let add = |usage: &Usage, bytes| {
            usage.add(bytes);
            usage.raise_peak();
        };
        add(&usage, 20);
        usage.sub(14);
        let other = spawn({
            let usage = usage.clone();
            move || add(&usage, 5)
        });
        usage.reset_peak();
        other.join().unwrap();
        usage.sub(11);
        assert!(usage.now() == 0 && usage.peak() >= 11, "{usage:?}");
    });
}

/// Numbers instead of streams. The one numbered as told is refused.
struct Numbers(AtomicU64, u64);

impl Streams for Numbers {
    fn create(&self) -> Result<u64> {
        match self.0.fetch_add(1, Relaxed) {
            n if n == self.1 => Err(Error::new(Status::Driver, "refused")),
            n => Ok(n),
        }
    }
    fn destroy(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

/// Two threads borrow the one stream of a pool, and making it may fail the first time. Fails,
/// waiting for ever, when `Shared::make` does not hand its leave on.
#[test]
fn a_stream_comes_back_to_who_waits() {
    for refused in [0, 9] {
        explore(move || {
            let pool = Arc::new(StreamPool::new(1, Box::new(Numbers(AtomicU64::new(0), refused))).unwrap());
            let borrow = |pool: &StreamPool| pool.borrow(Exhausted::Wait(Wait::Forever)).map(drop).is_ok();
            let other = spawn({
                let pool = pool.clone();
                move || borrow(&pool)
            });
            let got = u32::from(borrow(&pool)) + u32::from(other.join().unwrap());
            assert_eq!(got, if refused == 0 { 1 } else { 2 });
            let counts = pool.counts();
            assert_eq!((counts.made, counts.idle, counts.borrowed, counts.waiters), (1, 1, 0, 0));
        });
    }
}

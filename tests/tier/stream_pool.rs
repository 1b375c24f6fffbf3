//! Borrowed streams: exclusive, made when needed, waited for in turn, and none lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use gpumem::base::{Error, Result, Status};
use gpumem::tier::*;
use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Streams that are numbers: which are alive, and how often making one is still refused.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<(BTreeSet<u64>, u64, u32)>>);

impl Numbers {
    fn alive(&self) -> usize {
        self.0.lock().unwrap().0.len()
    }

    fn refuse(&self, times: u32) {
        self.0.lock().unwrap().2 = times;
    }
}

impl Streams for Numbers {
    fn create(&self) -> Result<u64> {
        let mut n = self.0.lock().unwrap();
        if n.2 > 0 {
            n.2 -= 1;
            return Err(Error::new(Status::Driver, "no more streams"));
        }
        n.1 += 1;
        let stream = n.1;
        n.0.insert(stream);
        Ok(stream)
    }

    fn destroy(&self, stream: u64) -> Result<()> {
        match self.0.lock().unwrap().0.remove(&stream) {
            true => Ok(()),
            false => Err(Error::new(Status::Driver, "not alive")),
        }
    }
}

fn pool(size: usize) -> (Numbers, Arc<StreamPool>) {
    let numbers = Numbers::default();
    let pool = StreamPool::new(size, Box::new(numbers.clone())).unwrap();
    (numbers, Arc::new(pool))
}

const FOREVER: Exhausted = Exhausted::Wait(Wait::Forever);
const NO: Exhausted = Exhausted::Wait(Wait::No);

fn status<T>(r: Result<T>) -> Option<Status> {
    r.err().map(|e| e.status)
}

fn counts(p: &StreamPool) -> [usize; 4] {
    let c = p.counts();
    [c.made, c.idle, c.borrowed, c.waiters]
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn streams_are_made_when_needed_lent_to_one_and_lent_again() {
    let (numbers, p) = pool(stream_pool::DEFAULT_STREAMS);
    assert_eq!((numbers.alive(), counts(&p)), (0, [0, 0, 0, 0]));
    let lent: Vec<_> = (0..16).map(|_| p.borrow(NO).unwrap()).collect();
    let different: BTreeSet<u64> = lent.iter().map(Borrowed::stream).collect();
    assert_eq!((different.len(), numbers.alive(), counts(&p)), (16, 16, [16, 0, 16, 0]));
    let e = p.borrow(NO).err().unwrap();
    assert_eq!(e.status, Status::OutOfMemory);
    assert!(e.message.contains("all streams (16) are borrowed"), "{e}");
    let short = Exhausted::Wait(Wait::For(Duration::from_millis(2)));
    assert_eq!((status(p.borrow(short)), counts(&p)), (Some(Status::TimedOut), [16, 0, 16, 0]));
    let more = p.borrow(Exhausted::Grow).unwrap();
    assert!(!different.contains(&more.stream()));
    drop(lent);
    drop(more);
    assert_eq!(counts(&p), [17, 17, 0, 0]);
    drop(p.borrow(Exhausted::Grow).unwrap());
    assert_eq!((numbers.alive(), counts(&p)), (17, [17, 17, 0, 0]), "growing takes an idle one first");
    p.close().unwrap();
    assert_eq!((numbers.alive(), counts(&p)), (0, [0; 4]));
    assert!(StreamPool::new(0, Box::new(numbers)).is_err_and(|e| e.message.contains("0 streams")));
}

#[test]
fn who_waits_is_served_in_turn() {
    let (_, p) = pool(1);
    let mut lent = Some(p.borrow(FOREVER).unwrap());
    let (tell, served) = channel();
    let (go_on, end) = channel::<()>();
    let end = Arc::new(Mutex::new(end));
    let threads: Vec<_> = (0..20)
        .map(|n| {
            let (pool, tell, end) = (p.clone(), tell.clone(), end.clone());
            let thread = thread::spawn(move || {
                let b = pool.borrow(FOREVER).unwrap();
                tell.send((n, b.stream())).unwrap();
                end.lock().unwrap().recv().unwrap();
                drop(b);
            });
            until(|| p.counts().waiters == n + 1);
            thread
        })
        .collect();
    for n in 0..20 {
        match lent.take() {
            Some(first) => drop(first),
            None => go_on.send(()).unwrap(),
        }
        assert_eq!(served.recv().unwrap(), (n, 1));
        assert_eq!(counts(&p), [1, 0, 1, 19 - n]);
    }
    go_on.send(()).unwrap();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(counts(&p), [1, 1, 0, 0]);
}

#[test]
fn a_refused_stream_is_an_error_for_one_and_the_next_may_try() {
    let (numbers, p) = pool(2);
    numbers.refuse(1);
    let e = p.borrow(FOREVER).err().unwrap();
    assert_eq!((e.status, counts(&p)), (Status::Driver, [0; 4]));
    assert!(e.message.contains("making a stream of the pool: no more streams"), "{e}");
    let lent = [p.borrow(FOREVER).unwrap(), p.borrow(FOREVER).unwrap()];
    numbers.refuse(1);
    assert_eq!(status(p.borrow(Exhausted::Grow)), Some(Status::Driver));
    assert_eq!(counts(&p), [2, 0, 2, 0]);
    drop(lent);
    assert_eq!(counts(&p), [2, 2, 0, 0]);
}

#[test]
fn closing_ends_a_hundred_waits_and_destroys_every_stream() {
    let (numbers, p) = pool(2);
    let lent = [p.borrow(NO).unwrap(), p.borrow(NO).unwrap()];
    drop(p.borrow(Exhausted::Grow).unwrap());
    let third = p.borrow(NO).unwrap();
    let threads: Vec<_> = (0..100)
        .map(|_| {
            let p = p.clone();
            thread::spawn(move || status(p.borrow(FOREVER)))
        })
        .collect();
    until(|| p.counts().waiters == 100);
    p.close().unwrap();
    for t in threads {
        assert_eq!(t.join().unwrap(), Some(Status::ShuttingDown));
    }
    assert_eq!(status(p.borrow(Exhausted::Grow)), Some(Status::ShuttingDown));
    assert_eq!((numbers.alive(), counts(&p)), (3, [3, 0, 3, 0]), "what is borrowed lives on");
    drop((lent, third));
    assert_eq!((numbers.alive(), counts(&p)), (0, [0; 4]));
}

/// Eight threads borrow three streams: nobody ever has another's.
#[test]
fn no_stream_is_lent_twice_at_once() {
    let (numbers, p) = pool(3);
    let mine: Mutex<BTreeSet<u64>> = Mutex::default();
    thread::scope(|s| {
        for t in 0..8 {
            let (p, mine) = (&p, &mine);
            s.spawn(move || {
                for n in 0..500 {
                    let wait = if (n + t) % 5 == 0 { Wait::For(Duration::from_micros(50)) } else { Wait::Forever };
                    let Ok(b) = p.borrow(Exhausted::Wait(wait)) else { continue };
                    assert!(mine.lock().unwrap().insert(b.stream()), "stream {} has another borrower", b.stream());
                    thread::yield_now();
                    mine.lock().unwrap().remove(&b.stream());
                }
            });
        }
    });
    assert!(counts(&p)[0] <= 3 && counts(&p)[2..] == [0, 0]);
    p.close().unwrap();
    assert_eq!(numbers.alive(), 0);
}

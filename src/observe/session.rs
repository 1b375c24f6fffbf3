//! A session, one period of recording: the data that its threads and its writer share.
//!
//! Every thread has a ring of its own, which only it fills and only the writer empties. A thread
//! whose ring is full waits for the writer. So nothing is lost unless the file can no longer be
//! written, or the writer is stuck for long.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::event::Event;
use super::recording::Happened;
use super::stacks::Names;
use crate::base::sync::lock;
use crate::driver::process;
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Events of a thread's ring.
const RING: usize = 1 << 12;
/// The writer is woken after this many events of a thread.
const WAKE: u32 = RING as u32 / 2;
/// How long a thread waits for room in its ring before an event counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a waiting thread sleeps between looks.
const NAP: Duration = Duration::from_micros(20);

/// The writer's end of a thread's ring.
pub(super) struct Ring {
    pub(super) thread: u32,
    pub(super) events: Consumer<Event>,
}

/// The thread's end of its ring.
pub(super) struct Local {
    pub(super) session: Arc<Session>,
    events: Producer<Event>,
    pushed: u32,
}

/// The shared data.
pub(super) struct Session {
    /// Unique among the sessions of the process, and not 0.
    pub(super) number: u64,
    pub(super) rings: Mutex<Vec<Ring>>,
    /// Events of threads that have no ring: those whose end cannot be watched.
    pub(super) strays: Mutex<Vec<Happened>>,
    pub(super) names: Mutex<Names>,
    /// The most stack frames taken; 0: none.
    pub(super) depth: usize,
    /// The last events, oldest first.
    pub(super) last: Mutex<VecDeque<Happened>>,
    /// How many events `last` keeps.
    pub(super) keep: usize,
    pub(super) written: AtomicU64,
    pub(super) lost: AtomicU64,
    /// Why the file can no longer be written, once that is so.
    pub(super) failed: OnceLock<io::Error>,
    pub(super) stop: AtomicBool,
    /// Rounds requested, rounds done, and whether the writer has ended.
    pub(super) rounds: Mutex<(u64, u64, bool)>,
    pub(super) done: Condvar,
    pub(super) writer: OnceLock<Thread>,
}

impl Session {
    pub(super) fn new(depth: usize, keep: usize) -> Session {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        Session {
            number: NUMBER.fetch_add(1, Relaxed),
            rings: Mutex::default(),
            strays: Mutex::default(),
            names: Mutex::default(),
            depth,
            last: Mutex::default(),
            keep,
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            failed: OnceLock::new(),
            stop: AtomicBool::new(false),
            rounds: Mutex::default(),
            done: Condvar::new(),
            writer: OnceLock::new(),
        }
    }

    /// A ring for the calling thread.
    pub(super) fn attach(self: &Arc<Session>) -> Local {
        let (events, consumer) = RingBuffer::new(RING);
        lock(&self.rings).push(Ring { thread: process::thread_number(), events: consumer });
        Local { session: self.clone(), events, pushed: 0 }
    }

    pub(super) fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    /// Makes the writer take everything pushed before this call, and waits for it for a limited
    /// time.
    pub(super) fn flush(&self) {
        if process::forked() {
            return;
        }
        let mut rounds = lock(&self.rounds);
        rounds.0 += 1;
        let wanted = rounds.0;
        self.wake();
        let start = Instant::now();
        while rounds.1 < wanted && !rounds.2 && start.elapsed() < PATIENCE {
            rounds =
                self.done.wait_timeout(rounds, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the session and waits for the writer for a limited time. Returns whether it has ended.
    pub(super) fn end(&self) -> bool {
        if process::forked() {
            return false;
        }
        self.stop.store(true, Release);
        self.wake();
        let mut rounds = lock(&self.rounds);
        let start = Instant::now();
        while !rounds.2 && start.elapsed() < PATIENCE {
            rounds =
                self.done.wait_timeout(rounds, Duration::from_millis(50)).unwrap_or_else(PoisonError::into_inner).0;
        }
        rounds.2
    }

    /// Keeps an event of a thread that has no ring any more.
    #[cold]
    pub(super) fn stray(&self, event: Event) {
        lock(&self.strays).push(Happened { event, thread: process::thread_number() });
    }
}

impl Local {
    /// Hands an event to the writer.
    #[inline]
    pub(super) fn push(&mut self, event: Event) {
        if let Err(PushError::Full(event)) = self.events.push(event) {
            self.push_patiently(event);
        }
        self.pushed = self.pushed.wrapping_add(1);
        if self.pushed.is_multiple_of(WAKE) {
            self.session.wake();
        }
    }

    #[cold]
    fn push_patiently(&mut self, mut event: Event) {
        let start = Instant::now();
        // In a forked child there is no writer.
        while self.session.failed.get().is_none() && !process::forked() && start.elapsed() < PATIENCE {
            self.session.wake();
            std::thread::sleep(NAP);
            match self.events.push(event) {
                Ok(()) => return,
                Err(PushError::Full(back)) => event = back,
            }
        }
        self.session.lost.fetch_add(1, Relaxed);
    }
}

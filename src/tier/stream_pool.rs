//! Streams to borrow: each belongs to one borrower at a time.
//!
//! Streams are made when they are first needed, up to the pool's size, and kept. A borrower that
//! finds none waits in turn, or has one more made, which stays in the pool. The driver is called
//! with no lock held.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::promise::Wait;
use crate::base::sync::{lock, Condvar, Mutex, MutexGuard};
use crate::base::{Error, Result, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// How many streams a pool has by default.
pub const DEFAULT_STREAMS: usize = 16;

/// Makes and ends a pool's streams. Called with no lock held, from any thread.
pub trait Streams: Send + Sync {
    /// A new stream.
    fn create(&self) -> Result<u64>;
    /// Ends a stream that is no longer used; work that it still has goes on.
    fn destroy(&self, stream: u64) -> Result<()>;
}

/// What to do when every stream is borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// Wait for one to come back.
    Wait(Wait),
    /// Make one more.
    Grow,
}

/// Streams to borrow.
pub struct StreamPool {
    shared: Arc<Shared>,
}

struct Shared {
    streams: Box<dyn Streams>,
    size: usize,
    state: Mutex<State>,
}

/// `made == idle + borrowed + given + being made`.
#[derive(Default)]
struct State {
    idle: Vec<u64>,
    made: usize,
    borrowed: usize,
    closed: bool,
    /// The waiters, in turn, by number.
    waiting: VecDeque<(u64, Arc<Condvar>)>,
    last: u64,
    /// What former waiters were given: a stream, or leave to make one.
    given: BTreeMap<u64, Option<u64>>,
}

/// Counts of a pool at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCounts {
    /// Streams that exist or are being made.
    pub made: usize,
    /// Streams not lent.
    pub idle: usize,
    /// Streams that a [`Borrowed`] has.
    pub borrowed: usize,
    /// Waiters for a stream.
    pub waiters: usize,
}

/// A stream, until it is dropped: then it goes back to its pool, with whatever work it still has.
pub struct Borrowed {
    shared: Arc<Shared>,
    stream: u64,
}

impl State {
    /// Gives the first waiter a stream, or with `None` leave to make one. `false` if nobody waits.
    fn give(&mut self, stream: Option<u64>) -> bool {
        let Some((number, bell)) = self.waiting.pop_front() else { return false };
        self.given.insert(number, stream);
        bell.notify_one();
        true
    }
}

fn closed() -> Error {
    Error::new(Status::ShuttingDown, "the stream pool has been closed; it lends no more streams")
}

impl Shared {
    /// Makes a stream. Leave for it has been counted.
    fn make(&self) -> Result<u64> {
        let made = self.streams.create();
        let mut state = lock(&self.state);
        match made {
            Ok(stream) => {
                state.borrowed += 1;
                Ok(stream)
            }
            Err(e) => {
                // The leave goes to the next waiter, which may be luckier.
                if !state.give(None) {
                    state.made -= 1;
                }
                Err(e.context("making a stream of the pool"))
            }
        }
    }

    /// Waits in turn for a stream, or for leave to make one.
    fn wait(&self, mut state: MutexGuard<'_, State>, wait: Wait) -> Result<Option<u64>> {
        let deadline = match wait {
            Wait::No => {
                let text = format!("all streams ({}) are borrowed; wait, let the pool grow, or return one", state.made);
                return Err(Error::new(Status::OutOfMemory, text));
            }
            Wait::For(time) => Instant::now().checked_add(time),
            Wait::Forever => None,
        };
        state.last += 1;
        let number = state.last;
        let bell = Arc::new(Condvar::new());
        state.waiting.push_back((number, bell.clone()));
        loop {
            if let Some(given) = state.given.remove(&number) {
                return Ok(given);
            }
            if state.closed {
                return Err(closed());
            }
            state = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                None => bell.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if !left.is_zero() => {
                    bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    state.waiting.retain(|w| w.0 != number);
                    let text =
                        format!("all streams ({}) stayed borrowed; wait longer, or let the pool grow", state.made);
                    return Err(Error::new(Status::TimedOut, text));
                }
            };
        }
    }
}

impl StreamPool {
    /// A pool that makes up to `size` streams on demand.
    pub fn new(size: usize, streams: Box<dyn Streams>) -> Result<StreamPool> {
        if size == 0 {
            return Err(Error::invalid(format!("a pool of 0 streams lends none; {DEFAULT_STREAMS} is usual")));
        }
        Ok(StreamPool { shared: Arc::new(Shared { streams, size, state: Mutex::new(State::default()) }) })
    }

    /// Borrows a stream that is not lent.
    pub fn borrow(&self, exhausted: Exhausted) -> Result<Borrowed> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        if state.closed {
            return Err(closed());
        }
        let found = match (state.idle.pop(), exhausted) {
            (Some(stream), _) => {
                state.borrowed += 1;
                drop(state);
                Some(stream)
            }
            (None, Exhausted::Wait(wait)) if state.made >= shared.size => shared.wait(state, wait)?,
            (None, _) => {
                state.made += 1;
                drop(state);
                None
            }
        };
        let stream = match found {
            Some(stream) => stream,
            None => shared.make()?,
        };
        Ok(Borrowed { shared: shared.clone(), stream })
    }

    /// How many streams were made, and what they do now.
    pub fn counts(&self) -> StreamCounts {
        let state = lock(&self.shared.state);
        StreamCounts {
            made: state.made,
            idle: state.idle.len(),
            borrowed: state.borrowed,
            waiters: state.waiting.len(),
        }
    }

    /// Lends no more streams: waiters get an error, idle streams are destroyed now, and borrowed
    /// ones when they come back. Returns the first error of the driver. A pool that is dropped
    /// without this leaves its streams alone.
    pub fn close(&self) -> Result<()> {
        let idle = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.waiting.drain(..).for_each(|(_, bell)| bell.notify_one());
            let idle = std::mem::take(&mut state.idle);
            state.made -= idle.len();
            idle
        };
        idle.into_iter().map(|stream| self.shared.streams.destroy(stream)).fold(Ok(()), Result::and)
    }
}

impl Borrowed {
    /// The stream.
    pub fn stream(&self) -> u64 {
        self.stream
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        // A stream that goes to a waiter stays borrowed.
        if state.give(Some(self.stream)) {
            return;
        }
        state.borrowed -= 1;
        if state.closed {
            state.made -= 1;
            drop(state);
            // Nobody can be told of an error: the pool is closed, and the stream was only lent.
            let _ = self.shared.streams.destroy(self.stream);
        } else {
            state.idle.push(self.stream);
        }
    }
}

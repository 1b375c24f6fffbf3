//! The state that reservations share, under one mutex: the spaces' promises, the live reservations
//! and the queue.
//!
//! A call that makes room serves its waiters at once, under the mutex, so nothing can overtake
//! them. A wait ends once, with a grant or an error. That is decided under the mutex, and left for
//! the waiter's thread to find.
//!
//! The mutex may be taken under any other lock of the library, and nothing outside of this folder
//! is called while it is held: no pool, no driver, no callback, not even the destructor of one.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{released, Account, Policies};
use super::attach::Attachments;
use super::policy::OutOfMemoryPolicy;
use super::queue::{Queue, Trigger, Waiter, Want};
use super::relief::ReliefCell;
use super::space::{Clerk, Space};
use super::strategy::Candidates;
use super::terms::Wait;
use crate::base::sync::{self, Condvar, Mutex, MutexGuard};
use crate::base::{size::exact, Error, Result, Status};
use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// The state that reservations share, and the attachments.
#[derive(Debug)]
pub(super) struct Hub {
    /// No other hub ever has it.
    pub(super) id: u64,
    state: Mutex<State>,
    pub(super) attachments: Attachments,
    pub(super) relief: ReliefCell,
}

/// What the mutex guards.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) books: Books,
    pub(super) queue: Queue,
    shut_down: bool,
}

/// Spaces and the reservations in them.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) spaces: Vec<Arc<Space>>,
    /// One for each space.
    pub(super) out_of_memory: Vec<OutOfMemoryPolicy>,
    /// Live reservations by number.
    pub(super) live: BTreeMap<u64, Arc<Account>>,
    last_id: u64,
    /// Counts arrivals and grants.
    clock: u64,
}

fn cancelled(want: &Want) -> Error {
    Error::new(Status::Cancelled, format!("the wait for {} was cancelled; nothing was taken", exact(want.least())))
}

impl Books {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Grants what is wanted from a candidate that is not `held` and has it: in the first rank
    /// where any has, from the one with the most room.
    fn grant(
        &mut self,
        want: &Want,
        candidates: &Candidates,
        arrived: u64,
        held: impl Fn(usize) -> bool,
    ) -> Option<Arc<Account>> {
        let (least, most) = match want {
            Want::New { amount, .. } => amount.bounds(),
            Want::Grow { bytes, .. } => (*bytes, *bytes),
        };
        for rank in candidates {
            let mut free: Vec<_> =
                rank.iter().filter(|s| !held(**s)).filter_map(|s| self.spaces.get(*s)).cloned().collect();
            free.sort_by_key(|s| std::cmp::Reverse(s.available()));
            for space in free {
                let Some(bytes) = space.take_between(least, most, 0) else { continue };
                return Some(match want {
                    Want::New { policies, .. } => self.open(space, bytes, policies.clone(), arrived),
                    Want::Grow { account, .. } => {
                        account.grow(bytes);
                        account.clone()
                    }
                });
            }
        }
        None
    }

    /// Makes a reservation of bytes the space has given.
    fn open(&mut self, space: Arc<Space>, bytes: u64, policies: Policies, arrived: u64) -> Arc<Account> {
        self.last_id += 1;
        let id = self.last_id;
        space.promised.fetch_add(bytes, AcqRel);
        space.reservations.fetch_add(1, AcqRel);
        let account = Arc::new(Account::new(space, id, bytes, policies, (arrived, self.tick())));
        self.live.insert(id, account.clone());
        account
    }

    /// Whether some candidate could ever grant it.
    fn ever(&self, want: &Want, candidates: &Candidates) -> bool {
        candidates.iter().flatten().filter_map(|s| self.spaces.get(*s)).any(|s| want.fits(s.limit()))
    }

    /// What the candidates have, for an error's text.
    fn there_is(&self, candidates: &Candidates) -> String {
        let spaces = candidates.iter().flatten().filter_map(|s| self.spaces.get(*s));
        let one = |s: &Arc<Space>| format!("{}: {} of {} available", s.id, exact(s.available()), exact(s.limit()));
        spaces.map(one).collect::<Vec<_>>().join("; ")
    }

    fn never(&self, want: &Want, candidates: &Candidates) -> Error {
        let what = match want {
            Want::New { .. } => format!("a reservation of {}", exact(want.least())),
            Want::Grow { account, bytes } => {
                format!("a reservation of {} larger by {}", exact(account.size()), exact(*bytes))
            }
        };
        let spaces = candidates.iter().flatten().filter_map(|s| self.spaces.get(*s));
        let most = spaces.map(|s| s.capacity()).max().unwrap_or(0);
        let advice = match want.fits(most) {
            true => "ask for less or raise the limit (gpumem_space_limit_set)".into(),
            false => format!("the capacity is {} at most, so ask for less", exact(most)),
        };
        let text = format!("{what} is more than may ever be promised ({}); {advice}", self.there_is(candidates));
        Error::new(Status::OutOfMemory, text)
    }
}

impl State {
    /// Goes through the waiters, from the first, and grants each what it wants if there is room.
    /// Call it whenever there may be more room than before, or one waiter fewer.
    pub(super) fn serve(&mut self) {
        let State { books, queue, .. } = self;
        let mut held = vec![false; books.spaces.len()];
        // How many spaces have a waiter that no earlier waiter holds up there.
        let mut open = queue.wanted_spaces();
        let mut at = 0;
        while open > 0 {
            let Some(waiter) = queue.get(at) else { return };
            let is_held = |s: usize| held.get(s).copied().unwrap_or(true);
            match books.grant(&waiter.want, &waiter.candidates, waiter.arrived, is_held) {
                Some(account) => queue.end(at, Ok(account), &books.spaces),
                // A reservation that has grown meanwhile may want more now than the limit allows.
                None if !books.ever(&waiter.want, &waiter.candidates) => {
                    let never = books.never(&waiter.want, &waiter.candidates);
                    queue.end(at, Err(never), &books.spaces);
                }
                None => {
                    for space in waiter.spaces() {
                        if let Some(held @ false) = held.get_mut(space) {
                            *held = true;
                            open -= 1;
                        }
                    }
                    at += 1;
                }
            }
        }
    }

    /// Ends the waits for what can never be granted any more.
    pub(super) fn end_hopeless(&mut self) {
        let State { books, queue, .. } = self;
        queue.end_those(&books.spaces, |w| {
            (!books.ever(&w.want, &w.candidates)).then(|| books.never(&w.want, &w.candidates))
        });
    }

    /// Ends the waits for which there is an error. Returns whether there were any.
    fn end_those(&mut self, error: impl Fn(&Waiter) -> Option<Error>) -> bool {
        self.queue.end_those(&self.books.spaces, error)
    }

    fn refuse_if_shut_down(&self) -> Result<()> {
        match self.shut_down {
            true => Err(shut_down()),
            false => Ok(()),
        }
    }

    /// Why there is no room, for a request that does not wait, or waits no longer.
    fn short(&self, status: Status, want: &Want, candidates: &Candidates, arrived: u64) -> Error {
        let wanted =
            |w: &&Waiter| w.arrived < arrived && w.spaces().any(|s| candidates.iter().flatten().any(|c| *c == s));
        let before = self.queue.iter().filter(wanted).count();
        let (what, todo) = match status {
            Status::TimedOut => ("did not become available in time", "wait longer"),
            _ => ("is not available", "wait"),
        };
        let text = format!(
            "{} {what} ({}; {before} waiting before it); {todo}, ask for less, or release something",
            exact(want.least()),
            self.books.there_is(candidates)
        );
        Error::new(status, text)
    }
}

fn shut_down() -> Error {
    Error::new(Status::ShuttingDown, "the reservations have been shut down; nothing more is promised")
}

impl Hub {
    pub(super) fn new() -> Arc<Hub> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Relaxed) + 1;
        let (attachments, relief) = (Attachments::default(), ReliefCell::new());
        Arc::new(Hub { id, state: Mutex::new(State::default()), attachments, relief })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Gets what is wanted from one of the candidates, or waits for it.
    pub(super) fn request(
        self: &Arc<Hub>,
        want: Want,
        candidates: impl FnOnce(&Books) -> Result<Candidates>,
        wait: Wait,
        trigger: Option<Trigger>,
    ) -> Result<Arc<Account>> {
        // Keeps the last copy of a callback from being dropped while the mutex is held.
        let _outlive = want.clone();
        let mut state = self.lock();
        state.refuse_if_shut_down()?;
        let candidates = candidates(&state.books)?;
        if !state.books.ever(&want, &candidates) {
            return Err(state.books.never(&want, &candidates));
        }
        if trigger.as_ref().is_some_and(|t| t.load(Relaxed)) {
            return Err(cancelled(&want));
        }
        let arrived = state.books.tick();
        {
            let State { books, queue, .. } = &mut *state;
            if let Some(account) = books.grant(&want, &candidates, arrived, |s| queue.wanting(s) > 0) {
                return Ok(account);
            }
        }
        let deadline = match wait {
            Wait::No => return Err(state.short(Status::OutOfMemory, &want, &candidates, arrived)),
            // A deadline later than any clock goes is none.
            Wait::For(time) => Instant::now().checked_add(time),
            Wait::Forever => None,
        };
        let bell = Arc::new(Condvar::new());
        {
            let State { books, queue, .. } = &mut *state;
            let waiter =
                Waiter { arrived, want: want.clone(), candidates: candidates.clone(), trigger, bell: bell.clone() };
            queue.join(waiter, &books.spaces);
        }
        // Bytes given back before the spaces said that they have waiters have served nobody.
        state.serve();
        loop {
            if let Some(outcome) = state.queue.outcome(arrived) {
                return outcome;
            }
            state = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                None => bell.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if !left.is_zero() => {
                    bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let error = state.short(Status::TimedOut, &want, &candidates, arrived);
                    let State { books, queue, .. } = &mut *state;
                    queue.leave(arrived, &books.spaces);
                    state.serve();
                    return Err(error);
                }
            };
        }
    }

    /// Ends a reservation: what is drawn of it becomes use outside of any. `None` if it has been
    /// released already.
    pub(super) fn release(&self, account: &Arc<Account>) -> Option<(u64, u64)> {
        let mut state = self.lock();
        let (size, room) = account.release()?;
        account.space.put_quietly(room);
        let entry = state.books.live.remove(&account.id);
        let grows = |w: &Waiter| matches!(&w.want, Want::Grow { account: a, .. } if Arc::ptr_eq(a, account));
        state.end_those(|w| grows(w).then(|| released(account.id)));
        let policies = std::mem::take(&mut *sync::lock(&account.policies));
        state.serve();
        drop(state);
        // Callbacks end here, not with the last allocation that the reservation made.
        drop((entry, policies));
        self.attachments.forget(account);
        Some((size, room))
    }

    /// Ends the waits that carry this trigger, and refuses those to come.
    pub(super) fn cancel(&self, trigger: &Trigger) {
        let mut state = self.lock();
        trigger.store(true, Relaxed);
        let theirs = |w: &Waiter| w.trigger.as_ref().is_some_and(|t| Arc::ptr_eq(t, trigger));
        if state.end_those(|w| theirs(w).then(|| cancelled(&w.want))) {
            state.serve();
        }
    }

    /// Refuses every request from now on, and ends every wait with an error.
    pub(super) fn shut_down(&self) {
        let mut state = self.lock();
        state.shut_down = true;
        state.end_those(|_| Some(shut_down()));
    }
}

impl Clerk for Hub {
    fn with_mutex(&self, change: &mut dyn FnMut() -> bool) {
        let mut state = self.lock();
        if change() {
            state.serve();
        }
    }
}

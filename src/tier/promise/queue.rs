//! The queue of waiters, first come first served.
//!
//! A waiter that does not fit holds every space that would do for it against later ones. So no
//! waiter overtakes another in a space that both want, and each has its turn once those before it
//! have been served or have left.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{Account, Policies};
use super::space::Space;
use super::strategy::Candidates;
use super::terms::Amount;
use crate::base::sync::Condvar;
use crate::base::Result;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// What is waited for.
#[derive(Clone, Debug)]
pub(super) enum Want {
    /// A reservation.
    New { amount: Amount, policies: Policies },
    /// More bytes for one.
    Grow { account: Arc<Account>, bytes: u64 },
}

impl Want {
    /// The fewest bytes that will do.
    pub(super) fn least(&self) -> u64 {
        match self {
            Want::New { amount, .. } => amount.bounds().0,
            Want::Grow { bytes, .. } => *bytes,
        }
    }

    /// Whether a space with this limit could ever grant it, if it were otherwise empty.
    pub(super) fn fits(&self, limit: u64) -> bool {
        let own = match self {
            Want::New { .. } => 0,
            Want::Grow { account, .. } => account.size(),
        };
        own.saturating_add(self.least()) <= limit
    }
}

/// What a token shares with its waiters. Written and read under the mutex.
pub(super) type Trigger = Arc<AtomicBool>;

/// One waiter.
#[derive(Debug)]
pub(super) struct Waiter {
    /// When it came: no other waiter has the same.
    pub(super) arrived: u64,
    pub(super) want: Want,
    pub(super) candidates: Candidates,
    /// Ends the wait once it is true.
    pub(super) trigger: Option<Trigger>,
    /// Its thread sleeps here, with the manager's mutex.
    pub(super) bell: Arc<Condvar>,
}

impl Waiter {
    pub(super) fn spaces(&self) -> impl Iterator<Item = usize> + '_ {
        self.candidates.iter().flatten().copied()
    }
}

/// The waiters, in the order of arrival, and the outcomes of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiter>,
    /// How many wait for each space.
    wanted: Vec<u64>,
    /// Outcomes of former waiters, until their threads look.
    outcomes: BTreeMap<u64, Result<Arc<Account>>>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Waiter> {
        self.waiting.get(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter()
    }

    /// How many wait for the space.
    pub(super) fn wanting(&self, space: usize) -> u64 {
        self.wanted.get(space).copied().unwrap_or(0)
    }

    /// How many spaces have waiters.
    pub(super) fn wanted_spaces(&self) -> usize {
        self.wanted.iter().filter(|n| **n > 0).count()
    }

    /// Adds a waiter at the end.
    pub(super) fn join(&mut self, waiter: Waiter, spaces: &[Arc<Space>]) {
        self.wanted.resize(spaces.len(), 0);
        for space in waiter.spaces() {
            if let (Some(n), Some(space)) = (self.wanted.get_mut(space), spaces.get(space)) {
                *n += 1;
                space.set_waited(true);
            }
        }
        self.waiting.push_back(waiter);
    }

    /// Takes a waiter out, whatever its outcome.
    fn remove(&mut self, at: usize, spaces: &[Arc<Space>]) -> Option<Waiter> {
        let waiter = self.waiting.remove(at)?;
        for space in waiter.spaces() {
            if let (Some(n), Some(space)) = (self.wanted.get_mut(space), spaces.get(space)) {
                *n -= 1;
                if *n == 0 {
                    space.set_waited(false);
                }
            }
        }
        Some(waiter)
    }

    /// Ends a wait with an outcome and wakes its thread.
    pub(super) fn end(&mut self, at: usize, outcome: Result<Arc<Account>>, spaces: &[Arc<Space>]) {
        if let Some(waiter) = self.remove(at, spaces) {
            self.outcomes.insert(waiter.arrived, outcome);
            waiter.bell.notify_one();
        }
    }

    /// Ends every wait for which `why` has an error. Returns whether there was one.
    pub(super) fn end_those(
        &mut self,
        spaces: &[Arc<Space>],
        mut why: impl FnMut(&Waiter) -> Option<crate::base::Error>,
    ) -> bool {
        let (mut at, mut any) = (0, false);
        while let Some(waiter) = self.waiting.get(at) {
            match why(waiter) {
                None => at += 1,
                Some(error) => {
                    self.end(at, Err(error), spaces);
                    any = true;
                }
            }
        }
        any
    }

    /// The outcome for the waiter that came at `arrived`, if it no longer waits.
    pub(super) fn outcome(&mut self, arrived: u64) -> Option<Result<Arc<Account>>> {
        self.outcomes.remove(&arrived)
    }

    /// Takes out the waiter that came at `arrived`, which gives up.
    pub(super) fn leave(&mut self, arrived: u64, spaces: &[Arc<Space>]) {
        if let Some(at) = self.waiting.iter().position(|w| w.arrived == arrived) {
            self.remove(at, spaces);
        }
    }
}

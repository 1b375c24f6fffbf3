//! Which reservation an allocation that names none draws from: its stream's, else its thread's in
//! that space.
//!
//! Allocations ask often, and attachments change rarely. So each thread remembers its last answers,
//! and a number that every change raises tells it when they are out of date.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{released, Account};
use super::space::Space;
use super::usage::Usage;
use crate::base::sync::lock;
use crate::base::{Error, Result};
use crate::driver::thread_end;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

/// How many answers a thread remembers.
const REMEMBERED: usize = 4;

/// A stream of a space: the space's index and the stream's identity.
type Key = (usize, u64);

/// What is known of a stream in a space.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    pub(super) account: Option<Arc<Account>>,
    /// What its live allocations use; `None` if the space does not count by stream.
    pub(super) usage: Option<Arc<Usage>>,
}

/// All attachments.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    /// Raised by every change to what is known of a stream, with the lock held.
    version: AtomicU64,
    known: Mutex<Known>,
}

/// What is known of streams. It is kept both ways, so that the end of a stream or a reservation
/// need not look at all others.
#[derive(Debug, Default)]
struct Known {
    /// By stream, and by the space's index.
    streams: HashMap<u64, BTreeMap<usize, Stream>>,
    /// The streams that a reservation is attached to, by its number. None is empty.
    attached: BTreeMap<u64, BTreeSet<u64>>,
}

impl Known {
    fn get(&self, (space, stream): Key) -> Option<&Stream> {
        self.streams.get(&stream)?.get(&space)
    }

    fn entry(&mut self, (space, stream): Key) -> &mut Stream {
        self.streams.entry(stream).or_default().entry(space).or_default()
    }

    /// Takes a reservation off a stream.
    fn take(&mut self, (space, stream): Key) -> Option<Arc<Account>> {
        let account = self.streams.get_mut(&stream)?.get_mut(&space)?.account.take()?;
        self.unlink(&account, stream);
        Some(account)
    }

    fn unlink(&mut self, account: &Account, stream: u64) {
        if let Some(streams) = self.attached.get_mut(&account.id) {
            streams.remove(&stream);
            if streams.is_empty() {
                self.attached.remove(&account.id);
            }
        }
    }
}

/// What a thread remembers.
#[derive(Default)]
struct Local {
    /// Last answers, the latest first: hub, version, key and answer.
    answers: Vec<(u64, u64, Key, Stream)>,
    /// Attached reservations, each with its hub and space.
    attached: Vec<(u64, usize, Arc<Account>)>,
}

impl Local {
    /// What the thread has attached in a space.
    fn attached_in(&self, hub: u64, space: &Space) -> Option<Arc<Account>> {
        self.attached.iter().find(|a| a.0 == hub && a.1 == space.index).map(|a| a.2.clone())
    }
}

thread_local! {
    static LOCAL: ManuallyDrop<RefCell<Local>> =
        const { ManuallyDrop::new(RefCell::new(Local { answers: Vec::new(), attached: Vec::new() })) };
}

/// Forgets what a thread that ends remembers.
fn forget() {
    // Dropped once it can be borrowed again: that may end a callback, which may call gpumem.
    drop(LOCAL.with(|local| local.take()));
}

/// Calls `f` with what the thread remembers; `None` inside another such call.
fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> Option<R> {
    LOCAL.with(|local| local.try_borrow_mut().ok().map(|mut l| f(&mut l)))
}

impl Attachments {
    /// The reservation an allocation on the stream draws from, and the stream's usage. The
    /// reservation may be released by the time it is used.
    pub(super) fn current(&self, hub: u64, space: &Space, stream: u64) -> Stream {
        let version = self.version.load(Acquire);
        let key = (space.index, stream);
        let found = with_local(|local| {
            let known = local.answers.iter().find(|a| a.0 == hub && a.1 == version && a.2 == key);
            let mut answer = match known {
                Some(known) => known.3.clone(),
                None => {
                    let answer = self.look(space, key);
                    local.answers.retain(|a| a.0 == hub && a.1 == version);
                    if thread_end::watch(forget).is_ok() {
                        local.answers.insert(0, (hub, version, key, answer.clone()));
                        local.answers.truncate(REMEMBERED);
                    }
                    answer
                }
            };
            if answer.account.is_none() {
                answer.account = local.attached_in(hub, space);
            }
            answer
        });
        found.unwrap_or_else(|| self.look(space, key))
    }

    /// Like [`Self::current`], for who only asks: it may be about what is no stream, which is not
    /// entered.
    pub(super) fn find(&self, hub: u64, space: &Space, stream: u64) -> Stream {
        let mut found = lock(&self.known).get((space.index, stream)).cloned().unwrap_or_default();
        if found.account.is_none() {
            found.account = with_local(|local| local.attached_in(hub, space)).flatten();
        }
        found
    }

    /// The usage of a stream, if the space counts by stream.
    pub(super) fn usage(&self, hub: u64, space: &Space, stream: u64) -> Option<Arc<Usage>> {
        match space.per_stream {
            true => self.current(hub, space, stream).usage,
            false => None,
        }
    }

    fn look(&self, space: &Space, key: Key) -> Stream {
        let mut known = lock(&self.known);
        if !space.per_stream {
            return known.get(key).cloned().unwrap_or_default();
        }
        let entry = known.entry(key);
        entry.usage.get_or_insert_with(Arc::default);
        entry.clone()
    }

    /// Attaches a reservation to a stream.
    pub(super) fn attach_stream(&self, account: &Arc<Account>, stream: u64) -> Result<()> {
        let mut known = lock(&self.known);
        // With the lock held: a later release takes it, too, and finds the entry.
        if account.released() {
            return Err(released(account.id));
        }
        let space = account.space.id;
        let entry = known.entry((account.space.index, stream));
        if let Some(other) = &entry.account {
            return Err(Error::invalid(format!(
                "stream {stream:#x} has reservation {} of {space} attached; detach it first",
                other.id
            )));
        }
        entry.account = Some(account.clone());
        known.attached.entry(account.id).or_default().insert(stream);
        self.version.fetch_add(1, Release);
        Ok(())
    }

    /// Detaches a stream's reservation in a space.
    pub(super) fn detach_stream(&self, space: &Space, stream: u64) -> Result<()> {
        let mut known = lock(&self.known);
        let taken = known.take((space.index, stream));
        if taken.is_none() {
            return Err(Error::invalid(format!("stream {stream:#x} has no reservation of {} attached", space.id)));
        }
        self.version.fetch_add(1, Release);
        Ok(())
    }

    /// Attaches a reservation to the calling thread.
    pub(super) fn attach_thread(&self, hub: u64, account: &Arc<Account>) -> Result<()> {
        thread_end::watch(forget)?;
        let attached = with_local(|local| {
            local.attached.retain(|a| !a.2.released());
            let space = &account.space;
            if account.released() {
                return Err(released(account.id));
            }
            if let Some(other) = local.attached.iter().find(|a| a.0 == hub && a.1 == space.index) {
                return Err(Error::invalid(format!(
                    "this thread has reservation {} of {} attached; detach it first",
                    other.2.id, space.id
                )));
            }
            local.attached.push((hub, space.index, account.clone()));
            Ok(())
        });
        attached
            .unwrap_or_else(|| Err(Error::invalid("this thread is just changing what it has attached; do it later")))
    }

    /// Detaches the calling thread's reservation in a space, if it has the number `only`.
    pub(super) fn detach_thread(&self, hub: u64, space: &Space, only: Option<u64>) -> Result<()> {
        let gone = with_local(|local| {
            local.attached.retain(|a| !a.2.released());
            let is_meant = |a: &Account| only.is_none_or(|id| id == a.id);
            let at = local.attached.iter().position(|a| a.0 == hub && a.1 == space.index && is_meant(&a.2))?;
            Some(local.attached.swap_remove(at))
        });
        match (gone.flatten(), only) {
            (Some(_), _) => Ok(()),
            (None, None) => Err(Error::invalid(format!("this thread has no reservation of {} attached", space.id))),
            (None, Some(id)) => Err(Error::invalid(format!("reservation {id} is not attached to this thread"))),
        }
    }

    /// Detaches a released reservation from every stream; threads notice by themselves.
    pub(super) fn forget(&self, account: &Arc<Account>) {
        let mut known = lock(&self.known);
        let Some(streams) = known.attached.remove(&account.id) else { return };
        for stream in streams {
            known.entry((account.space.index, stream)).account = None;
        }
        self.version.fetch_add(1, Release);
    }

    /// Forgets a stream that is gone, in every space.
    pub(super) fn forget_stream(&self, stream: u64) {
        let mut known = lock(&self.known);
        let Some(gone) = known.streams.remove(&stream) else { return };
        gone.values().filter_map(|s| s.account.as_ref()).for_each(|account| known.unlink(account, stream));
        self.version.fetch_add(1, Release);
    }
}

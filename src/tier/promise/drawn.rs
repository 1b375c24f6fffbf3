//! The receipt of a counted allocation, and where its bytes came from.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::Account;
use super::lack::Lack;
use super::overdraw::{grow_on, take_quietly, Parts};
use super::space::{Space, MAX_BYTES};
use super::usage::Usage;
use crate::base::{size::human, Error, Result, Status};
use crate::pool::Receipt;
use std::any::Any;
use std::sync::Arc;

/// The stream for memory that belongs to none, pinned or on a disk. No stream has it as handle or
/// identity.
pub(in crate::tier) const NO_STREAM: u64 = u64::MAX;

/// Where an allocation's bytes come from.
#[derive(Clone, Debug)]
pub(super) enum From {
    Reservation(Arc<Account>),
    Space(Arc<Space>),
}

impl From {
    pub(super) fn space(&self) -> &Arc<Space> {
        match self {
            From::Reservation(account) => &account.space,
            From::Space(space) => space,
        }
    }

    /// The reservation's books, released or not.
    fn account(&self) -> Option<&Arc<Account>> {
        match self {
            From::Reservation(account) => Some(account),
            From::Space(_) => None,
        }
    }
}

/// The receipt of an allocation's bytes. The keeper of the allocation holds it, and drops it on any
/// thread when the allocation ends. That gives the bytes back to the reservation while it lives, or
/// else to the space.
///
/// Dropping it takes a few atomic operations. Only if requests wait for the space it takes the
/// manager's mutex too, under which nothing else is ever called. So it may be dropped under any
/// other lock.
///
/// Until the allocation has been [made](Drawn::made), dropping it also undoes what its reservation
/// has grown by for it, and no peak counts it.
#[derive(Debug)]
pub struct Drawn {
    pub(super) from: From,
    /// Its stream, and what that stream's allocations use, if that is counted.
    pub(super) stream: u64,
    pub(super) usage: Option<Arc<Usage>>,
    /// Its bytes of the reservation, and those outside of any.
    inside: u64,
    outside: u64,
    /// What of them the last draw took, until the allocation has been made or has grown.
    unmade: Parts,
}

impl Drawn {
    /// A receipt of bytes that have been taken: inside of the reservation, and outside of any.
    pub(super) fn new(from: From, (stream, usage): (u64, Option<Arc<Usage>>), parts: Parts) -> Drawn {
        let mut drawn = Drawn { from, stream, usage, inside: 0, outside: 0, unmade: Parts::default() };
        drawn.add(parts);
        drawn
    }

    /// Counts bytes that have been taken.
    fn add(&mut self, taken: Parts) {
        self.usages().for_each(|usage| usage.add(taken.inside + taken.outside));
        debug_assert!(self.unmade.inside + self.unmade.outside == 0, "the draw before is not made");
        self.inside += taken.inside;
        self.outside += taken.outside;
        self.unmade = taken;
    }

    /// The usages its bytes count in.
    fn usages(&self) -> impl Iterator<Item = &Usage> {
        let of_account = self.from.account().map(|account| &account.usage);
        self.usage.as_deref().into_iter().chain([&*self.space().usage]).chain(of_account)
    }

    /// The allocation has been made, or has grown: its bytes count in the peaks, and its
    /// reservation keeps what it has grown by. Whoever keeps an allocation calls it. May be called
    /// under any lock.
    pub fn made(mut self) -> Drawn {
        Receipt::made(&mut self);
        self
    }

    /// The allocation's bytes.
    pub fn bytes(&self) -> u64 {
        self.inside + self.outside
    }

    /// How many of them came from the reservation.
    pub fn inside(&self) -> u64 {
        self.inside
    }

    /// How many bytes its end would give back, of those an allocation lacks.
    pub fn helps(&self, lack: &Lack) -> u64 {
        let (of, inside) = match &self.from {
            From::Reservation(account) if !account.released() => (Some(account.id), self.inside),
            _ => (None, 0),
        };
        match *lack {
            Lack::Reservation(short) if of == Some(short.number) => inside,
            Lack::Reservation(_) => 0,
            Lack::Promise { short: Some(short), .. } if of == Some(short.number) => self.bytes(),
            Lack::Promise { .. } => self.bytes() - inside,
            Lack::Memory(_) => self.bytes(),
        }
    }

    /// The space the bytes are in.
    pub fn space(&self) -> &Space {
        self.from.space()
    }

    /// The number of the reservation it was made with, if any.
    pub fn reservation(&self) -> Option<u64> {
        self.from.account().map(|a| a.id)
    }

    /// Gives the last `bytes` of an allocation that has been made back, at most all of it: first
    /// those beyond the reservation.
    pub fn shrink(&mut self, bytes: u64) {
        debug_assert!(bytes == 0 || self.unmade.inside + self.unmade.outside == 0, "the last draw is not made");
        let outside = bytes.min(self.outside);
        let inside = (bytes - outside).min(self.inside);
        self.outside -= outside;
        self.inside -= inside;
        self.give(Parts { inside, outside, ..Parts::default() });
    }

    /// Bytes leave the usage first and go back into the rooms after, so that the usage never
    /// exceeds what the rooms have given.
    fn give(&self, Parts { inside, outside, grown, .. }: Parts) {
        let bytes = inside + outside;
        if bytes == 0 {
            return;
        }
        self.usages().for_each(|usage| usage.sub(bytes));
        let mut back = outside + grown;
        if let Some(account) = self.from.account() {
            if grown > 0 {
                account.space.with_mutex(|| (account.undo_growth(grown), false));
            }
            if inside > grown {
                back += account.give(inside - grown);
            }
        }
        if back > 0 {
            self.space().put(back);
        }
    }

    /// Where the bytes were drawn from.
    pub fn source(&self) -> Source {
        Source { from: self.from.clone(), stream: self.stream, usage: self.usage.clone() }
    }

    /// Draws `bytes` more from where these were drawn: from the reservation while it lives, by its
    /// policy, or else from the space. A policy that calls back counts as one that fails, so this
    /// may be called under any lock.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > MAX_BYTES {
            return Err(no_more(self.space(), bytes));
        }
        let taken = match &self.from {
            From::Reservation(account) => take_quietly(account, bytes)?,
            From::Space(_) => None,
        };
        self.add(match taken {
            Some(parts) => parts,
            None if self.space().take(bytes) => Parts { outside: bytes, ..Parts::default() },
            None => return Err(no_more(self.space(), bytes)),
        });
        Ok(())
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        self.give(Parts { inside: self.inside, outside: self.outside, ..self.unmade });
    }
}

/// Where an allocation's bytes were drawn from: a reservation or just a space, and on which stream.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) from: From,
    stream: u64,
    /// The stream's own usage, which another stream with its handle does not share.
    pub(super) usage: Option<Arc<Usage>>,
}

impl Source {
    /// The space.
    pub fn space(&self) -> &Arc<Space> {
        self.from.space()
    }

    /// The stream.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// The number of the reservation, if it is one.
    pub fn reservation(&self) -> Option<u64> {
        self.account().map(|a| a.id)
    }

    /// The reservation's books, released or not.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.from.account()
    }

    /// The reservation's books, if it lives and is of this space.
    pub(super) fn live_in(&self, space: &Arc<Space>) -> Option<&Arc<Account>> {
        self.account().filter(|account| !account.released() && Arc::ptr_eq(&account.space, space))
    }
}

fn no_more(space: &Space, bytes: u64) -> Error {
    Error::new(
        Status::OutOfMemory,
        format!(
            "{}: an allocation needs {} more to grow in place, and they are not available",
            space.id(),
            human(bytes)
        ),
    )
}

impl Receipt for Drawn {
    fn bytes(&self) -> u64 {
        Drawn::bytes(self)
    }

    fn resize(&mut self, bytes: u64) -> Result<()> {
        let now = Drawn::bytes(self);
        match bytes > now {
            true => self.grow(bytes - now),
            false => {
                self.shrink(now - bytes);
                Ok(())
            }
        }
    }

    fn undo_growth(&mut self) {
        let taken = std::mem::take(&mut self.unmade);
        self.inside -= taken.inside;
        self.outside -= taken.outside;
        self.give(taken);
    }

    fn made(&mut self) {
        let Parts { grown, target, .. } = std::mem::take(&mut self.unmade);
        if let (1.., Some(account)) = (grown, self.from.account()) {
            grow_on(account, target);
        }
        self.usages().for_each(Usage::raise_peak);
    }

    fn source(&self) -> Option<Box<dyn Any + Send>> {
        let live = self.from.account().is_some_and(|account| !account.released());
        live.then(|| Box::new(Drawn::source(self)) as Box<dyn Any + Send>)
    }
}

//! A reservation's books.
//!
//! `room` is the part of the reservation that is not drawn; its highest bit says whether it is
//! released. With `size`, which only changes under the manager's mutex, `drawn == size - room`. A
//! draw takes from the room and the end of an allocation puts back into it, each with one atomic
//! operation and no lock; growing and shrinking change both. Releasing sets the bit. What is in the
//! room at that moment goes back to the space. What comes into it later is passed on to the space
//! by the thread that brings it. So each byte returns exactly once, whichever of the two comes
//! first.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::policy::{LimitPolicy, OutOfMemoryPolicy};
use super::space::Space;
use super::usage::Usage;
use crate::base::sync::{AtomicU64, Mutex};
use crate::base::Error;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// The bit of `room` that says that the reservation is released.
const RELEASED: u64 = 1 << 63;

/// What a reservation does when memory is missing.
#[derive(Clone, Debug, Default)]
pub(super) struct Policies {
    pub(super) limit: LimitPolicy,
    /// `None`: the space's.
    pub(super) out_of_memory: Option<OutOfMemoryPolicy>,
}

/// A reservation's books.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) space: Arc<Space>,
    /// No other reservation of the manager ever has it.
    pub(super) id: u64,
    /// Bytes that are not drawn, and [`RELEASED`].
    room: AtomicU64,
    /// Bytes promised. Written under the mutex; 0 once released.
    size: AtomicU64,
    /// Live allocations made with it, even beyond its size or after its release.
    pub(super) usage: Usage,
    pub(super) policies: Mutex<Policies>,
    /// When it was asked for and granted, by the manager's count of events.
    pub(super) arrived: u64,
    pub(super) granted: u64,
}

/// The outcome of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All bytes were drawn.
    All,
    /// Too few are left: this many.
    Short(u64),
    /// The reservation is released.
    Released,
}

impl Account {
    pub(super) fn new(
        space: Arc<Space>,
        id: u64,
        size: u64,
        policies: Policies,
        (arrived, granted): (u64, u64),
    ) -> Account {
        Account {
            space,
            id,
            room: AtomicU64::new(size),
            size: AtomicU64::new(size),
            usage: Usage::default(),
            policies: Mutex::new(policies),
            arrived,
            granted,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Acquire)
    }

    /// Bytes that are not drawn.
    pub(super) fn room(&self) -> u64 {
        self.room.load(Acquire) & !RELEASED
    }

    pub(super) fn released(&self) -> bool {
        self.room.load(Acquire) & RELEASED != 0
    }

    /// Bytes that are drawn of it: exact under the mutex.
    pub(super) fn drawn(&self) -> u64 {
        // Once released, the size is 0 and the room is whatever came back.
        self.size().saturating_sub(self.room())
    }

    /// Draws `bytes` if that many are left.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> Taken {
        match self.take_between(bytes, bytes) {
            Ok(_) => Taken::All,
            Err(other) => other,
        }
    }

    /// Draws at least `least` and at most `most` bytes. Returns how many.
    #[inline]
    pub(super) fn take_between(&self, least: u64, most: u64) -> Result<u64, Taken> {
        let mut room = self.room.load(Acquire);
        loop {
            if room & RELEASED != 0 {
                return Err(Taken::Released);
            }
            let n = most.min(room);
            if n < least {
                return Err(Taken::Short(room));
            }
            match self.room.compare_exchange_weak(room, room - n, AcqRel, Acquire) {
                Ok(_) => return Ok(n),
                Err(now) => room = now,
            }
        }
    }

    /// Ends a draw of `bytes`. Returns how many of them the caller has to put into the space: all,
    /// once the reservation is released.
    #[inline]
    pub(super) fn give(&self, bytes: u64) -> u64 {
        match self.room.fetch_add(bytes, AcqRel) & RELEASED {
            0 => 0,
            _ => bytes,
        }
    }

    /// Adds bytes the space has given. Under the mutex, and only to a live reservation.
    pub(super) fn grow(&self, bytes: u64) {
        self.size.fetch_add(bytes, AcqRel);
        self.space.promised.fetch_add(bytes, AcqRel);
        self.room.fetch_add(bytes, AcqRel);
    }

    /// Adds `more` bytes, given by the space, to a room of exactly `room` bytes, and draws `bytes`
    /// of both. Under the mutex, and only of a live reservation. Does nothing and returns `false`
    /// if the room has changed.
    pub(super) fn grow_and_take(&self, room: u64, more: u64, bytes: u64) -> bool {
        debug_assert!(room + more >= bytes);
        if self.room.compare_exchange(room, room + more - bytes, AcqRel, Acquire).is_err() {
            return false;
        }
        self.size.fetch_add(more, AcqRel);
        self.space.promised.fetch_add(more, AcqRel);
        true
    }

    /// Takes between `least` and `most` bytes away that are not drawn. Returns how many; the caller
    /// has to put them into the space. Under the mutex.
    pub(super) fn shrink(&self, least: u64, most: u64) -> Result<u64, Taken> {
        let n = self.take_between(least, most)?;
        self.size.fetch_sub(n, AcqRel);
        self.space.promised.fetch_sub(n, AcqRel);
        Ok(n)
    }

    /// Undoes growth by `bytes` that are drawn and that the caller has to put into the space. Under
    /// the mutex. If the reservation has been released, that has undone it.
    pub(super) fn undo_growth(&self, bytes: u64) {
        if !self.released() {
            self.size.fetch_sub(bytes, AcqRel);
            self.space.promised.fetch_sub(bytes, AcqRel);
        }
    }

    /// Ends the reservation, if it has not ended. Returns its size, and the bytes that were not
    /// drawn, which the caller has to put into the space. Under the mutex.
    pub(super) fn release(&self) -> Option<(u64, u64)> {
        let room = self.room.fetch_or(RELEASED, AcqRel);
        if room & RELEASED != 0 {
            return None;
        }
        let size = self.size.swap(0, AcqRel);
        self.space.promised.fetch_sub(size, AcqRel);
        self.space.reservations.fetch_sub(1, AcqRel);
        Some((size, room))
    }
}

/// The error of a call that needs a live reservation.
pub(super) fn released(id: u64) -> Error {
    Error::invalid(format!("reservation {id} has been released"))
}

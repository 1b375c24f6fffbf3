//! Moves that have begun, and what becomes of those that do not finish.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::item::{Claim, Item};
use crate::base::{Error, Result};
use crate::pool::{Moving, Pool};
use crate::tier::host::HostMemory;
use crate::tier::Drawn;
use std::sync::Arc;

/// A move that the pool knows of. However it is left, by an error or by a callback's panic, the
/// pool is told that it is over, and the bytes are where they were. Code that leaves it knows that
/// no copy to or from device memory is in flight, or says that it does not know ([`Begun::undo`]).
pub(super) struct Begun<'a> {
    pool: &'a Pool,
    item: Arc<Item>,
    /// `None` once it has ended.
    moving: Option<Moving>,
    /// Whether memory has been mapped for it, and the bytes are not there yet.
    empty: bool,
}

impl<'a> Begun<'a> {
    /// `None` if the allocation has ended.
    pub(super) fn new(pool: &'a Pool, item: &Arc<Item>) -> Result<Option<Begun<'a>>> {
        let moving = pool.begin_move(item.base, item.id)?;
        Ok(moving.map(|m| Begun { pool, item: item.clone(), moving: Some(m), empty: false }))
    }

    pub(super) fn moving(&self) -> Result<&Moving> {
        self.moving.as_ref().ok_or_else(|| Error::internal("a move was used after its end"))
    }

    /// Notes that there is memory, with this receipt, for bytes that are still to come.
    pub(super) fn filled(&mut self, drawn: Drawn) {
        self.empty = true;
        self.item.set_drawn(Some(drawn));
    }

    /// Ends the move with its allocation.
    pub(super) fn ended(mut self) {
        self.moving = None;
    }

    /// Gives the memory up, as the bytes are elsewhere. `false` if the allocation has ended
    /// meanwhile.
    pub(super) fn vacate(mut self) -> Result<bool> {
        match self.moving.take() {
            Some(moving) => self.pool.vacate(moving),
            None => Ok(false),
        }
    }

    /// Ends the move, as the bytes are in the memory. `false` if the allocation has ended
    /// meanwhile.
    pub(super) fn end(mut self) -> bool {
        self.item.drawn_made();
        self.moving.take().is_some_and(|m| self.pool.end_move(&m))
    }

    /// Leaves the bytes where they were. Memory that was mapped for them goes, unless the device
    /// may still be using it: then it stays for the next try.
    pub(super) fn undo(mut self, broken: bool) -> Result<()> {
        self.leave(broken)
    }

    fn leave(&mut self, broken: bool) -> Result<()> {
        let Some(moving) = self.moving.take() else { return Ok(()) };
        if !self.empty {
            self.pool.end_move(&moving);
            return Ok(());
        }
        let undone = match broken {
            true => {
                self.pool.end_move(&moving);
                Ok(())
            }
            false => self.pool.vacate(moving).map(drop),
        };
        self.item.set_drawn(None);
        undone
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // Nobody can be told of an error: what the driver would not unmap stays for the next try.
        let _ = self.leave(false);
    }
}

/// Stands for copies that have not all been submitted.
pub(super) const SUBMITTING: u64 = u64::MAX;

/// An item with copies in flight. It may be dropped when they are over. Its claim is the last part
/// to go, so that the item cannot be claimed before the rest is done.
pub(super) struct Pending<'a> {
    pub(super) begun: Begun<'a>,
    pub(super) way: Way,
    pub(super) claim: Claim,
    /// What the flow will have completed when they are over, or [`SUBMITTING`].
    pub(super) upto: u64,
}

pub(super) enum Way {
    /// Into this memory.
    Out(HostMemory),
    In,
}

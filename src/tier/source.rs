//! Receipts as the pool keeps them: they change size with their allocation; and where one came from, for memory that goes and
//! comes back.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{Account, Drawn, From};
use super::hub::Hub;
use super::manager::Manager;
use super::space::{Space, MAX_BYTES};
use crate::base::{size::human, Error, Result, Status, StreamHandle};
use crate::pool::{Counter, Receipt};
use std::sync::Arc;

/// Where an allocation's bytes were drawn from: a reservation or just a space, and on which stream.
#[derive(Clone, Debug)]
pub struct Source {
    from: From,
    stream: u64,
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
}

impl Source {
    /// The number of the reservation, if it is one.
    pub fn reservation(&self) -> Option<u64> {
        self.account().map(|a| a.id)
    }

    /// The reservation's books, released or not.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        match &self.from {
            From::Reservation(account) => Some(account),
            From::Space(_) => None,
        }
    }
}

impl From {
    pub(super) fn space(&self) -> &Arc<Space> {
        match self {
            From::Reservation(account) => &account.space,
            From::Space(space) => space,
        }
    }
}

impl Hub {
    /// See [`Manager::draw_from_source`].
    pub(super) fn draw_again(&self, source: &Source, bytes: u64) -> Result<Drawn> {
        match &source.from {
            From::Reservation(account) if !account.released() => {
                match self.draw_from(account, bytes, source.stream) {
                    // Released in between.
                    Err(_) if account.released() => self.draw_outside(&account.space, bytes, source.stream),
                    drawn => drawn,
                }
            }
            from => self.draw_outside(from.space(), bytes, source.stream),
        }
    }
}

impl Drawn {
    /// Where it was drawn from.
    pub fn source(&self) -> Source {
        Source { from: self.from.clone(), stream: self.stream }
    }

    /// Draws `bytes` more where it was drawn from: from the reservation while that lives, by its policy, but for a policy that
    /// calls back, which counts as one that fails; else from the space. May be called under any lock.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes > MAX_BYTES {
            return Err(no_more(self.space(), bytes));
        }
        let taken = match &self.from {
            From::Reservation(account) => match account.space.hub.upgrade() {
                Some(hub) => hub.take_quietly(account, bytes)?,
                None => return Err(no_more(self.space(), bytes)),
            },
            From::Space(_) => None,
        };
        let (inside, outside) = match taken {
            Some(parts) => parts,
            None if self.space().take(bytes) => (0, bytes),
            None => return Err(no_more(self.space(), bytes)),
        };
        self.add(inside, outside);
        Ok(())
    }
}

fn no_more(space: &Space, bytes: u64) -> Error {
    Error::new(
        Status::OutOfMemory,
        format!("{}: {} more asked for an allocation to grow in place, and not there", space.id(), human(bytes)),
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
}

/// Counts what lives in a device's pool without a receipt, outside of any reservation: what was there when counting began,
/// and what was on its way.
pub struct LiveCounter {
    manager: Arc<Manager>,
    space: Arc<Space>,
}

impl LiveCounter {
    /// For the pool whose memory the space is. The space must be the manager's.
    pub fn new(manager: Arc<Manager>, space: Arc<Space>) -> LiveCounter {
        LiveCounter { manager, space }
    }
}

impl Counter for LiveCounter {
    fn count(&self, bytes: u64, stream: StreamHandle) -> Box<dyn Receipt> {
        Box::new(self.manager.draw_anyway(&self.space, bytes, stream.0 as u64))
    }

    fn stream_renewed(&self, stream: StreamHandle) {
        self.manager.forget_stream(stream.0 as u64);
    }
}

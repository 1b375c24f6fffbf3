//! Counting an allocation: in a reservation, beyond one, or outside of any.
//!
//! Allocations never wait, so waiters do not hold them up: bytes of a reservation are its own, and
//! those available in the space go to the first that takes them. A waiter gets what is left when it
//! is served.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{released, Account};
use super::drawn::{Drawn, From, Source};
use super::hub::Hub;
use super::lack::{Counting, Lack, Refused};
use super::overdraw::{take, Parts};
use super::policy::OutOfMemoryPolicy;
use super::space::{Space, Tier, MAX_BYTES};
use super::usage::Usage;
use crate::base::sync::lock;
use crate::base::{size::exact, Error, Result, Status};
use std::sync::Arc;

fn too_many(bytes: u64) -> Result<()> {
    match bytes > MAX_BYTES {
        true => {
            Err(Error::new(Status::OutOfMemory, format!("{bytes} bytes are more than any space has; ask for less")))
        }
        false => Ok(()),
    }
}

fn outside(bytes: u64) -> Parts {
    Parts { outside: bytes, ..Parts::default() }
}

fn no_room(space: &Space, bytes: u64) -> Refused {
    let (limit, capacity) = (space.limit(), space.capacity());
    let advice = if bytes > capacity && space.id.tier == Tier::Disk {
        format!("the capacity is {}, so raise its size in GPUMEM_DISK, or add a disk", exact(capacity))
    } else if bytes > capacity {
        format!("the capacity is {}, so ask for less", exact(capacity))
    } else if limit < capacity {
        "free or release something, or raise the limit (gpumem_space_limit_set)".to_string()
    } else {
        "free or release something".to_string()
    };
    let text = format!(
        "{}: {} asked outside of any reservation, {} of {} available; {advice}",
        space.id,
        exact(bytes),
        exact(space.available()),
        exact(limit)
    );
    Refused { error: Error::new(Status::OutOfMemory, text), lack: Some(Lack::Promise { bytes, above: 0, short: None }) }
}

impl Hub {
    /// Counts an allocation that names no reservation.
    pub(super) fn draw(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Counting<Drawn> {
        too_many(bytes)?;
        let current = self.attachments.current(self.id, space, stream);
        if let Some(account) = current.account {
            if let Some(parts) = take(&account, bytes, stream)? {
                return Ok(Drawn::new(From::Reservation(account), (stream, current.usage), parts));
            }
        }
        match space.take(bytes) {
            true => Ok(Drawn::new(From::Space(space.clone()), (stream, current.usage), outside(bytes))),
            false => Err(no_room(space, bytes)),
        }
    }

    /// Counts an allocation outside of any reservation, whatever is attached.
    pub(super) fn draw_outside(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Counting<Drawn> {
        draw_outside_for(space, bytes, (stream, self.attachments.usage(self.id, space, stream)))
    }

    /// Counts an allocation in a reservation.
    pub(super) fn draw_from(&self, account: &Arc<Account>, bytes: u64, stream: u64) -> Counting<Drawn> {
        draw_from_for(account, bytes, (stream, self.attachments.usage(self.id, &account.space, stream)))
    }

    /// Counts an allocation that exists already, outside of any reservation, whether or not there
    /// is room for it.
    pub(super) fn draw_anyway(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Drawn {
        let bytes = bytes.min(MAX_BYTES);
        if !space.take(bytes) {
            let _state = self.lock();
            space.take_anyway(bytes);
        }
        let usage = self.attachments.usage(self.id, space, stream);
        Drawn::new(From::Space(space.clone()), (stream, usage), outside(bytes)).made()
    }

    /// The policy for allocations for which there is no memory: that of the reservation they are
    /// counted in, or else the space's.
    pub(super) fn out_of_memory(&self, space: &Space, account: Option<&Arc<Account>>) -> OutOfMemoryPolicy {
        let own = account.and_then(|a| lock(&a.policies).out_of_memory.clone());
        own.unwrap_or_else(|| self.lock().books.out_of_memory.get(space.index).cloned().unwrap_or_default())
    }

    /// Counts an allocation like that of an earlier receipt: in its reservation while that lives,
    /// or else outside of any.
    pub(super) fn draw_again(&self, source: &Source, bytes: u64) -> Counting<Drawn> {
        // By now another stream may have the stream's handle.
        let counts_for = || (source.stream(), source.usage.clone());
        match &source.from {
            From::Reservation(account) if !account.released() => {
                match draw_from_for(account, bytes, counts_for()) {
                    // Released in between.
                    Err(_) if account.released() => draw_outside_for(&account.space, bytes, counts_for()),
                    drawn => drawn,
                }
            }
            from => draw_outside_for(from.space(), bytes, counts_for()),
        }
    }
}

/// A stream, and what its live allocations use, if that is counted.
type CountsFor = (u64, Option<Arc<Usage>>);

fn draw_outside_for(space: &Arc<Space>, bytes: u64, counts_for: CountsFor) -> Counting<Drawn> {
    too_many(bytes)?;
    match space.take(bytes) {
        true => Ok(Drawn::new(From::Space(space.clone()), counts_for, outside(bytes))),
        false => Err(no_room(space, bytes)),
    }
}

fn draw_from_for(account: &Arc<Account>, bytes: u64, counts_for: CountsFor) -> Counting<Drawn> {
    too_many(bytes)?;
    let parts = take(account, bytes, counts_for.0)?.ok_or_else(|| released(account.id))?;
    Ok(Drawn::new(From::Reservation(account.clone()), counts_for, parts))
}

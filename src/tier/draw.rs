//! Counting an allocation: in a reservation, beyond one, or outside of any.
//!
//! Allocations never wait, so they are not held up by those who do: what a reservation has is its own, and what is
//! available in the space goes to whoever takes it first. A waiter gets what is left when it is served.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{Account, Drawn, Taken};
use super::hub::{released, Hub};
use super::policy::{Decision, Factor, LimitPolicy, OutOfMemoryPolicy, Overdraw};
use super::space::{Space, MAX_BYTES};
use crate::base::sync::lock;
use crate::base::{size::human, Error, Result, Status};
use std::sync::Arc;

/// What was taken: bytes of the reservation, bytes outside of any. `None` when the reservation is released.
pub(super) type Parts = Option<(u64, u64)>;

/// How a reservation may grow for an allocation.
#[derive(Clone, Copy)]
struct Growth {
    factor: Factor,
    cap: Option<u64>,
    beyond_limit: bool,
}

fn too_many(bytes: u64) -> Result<()> {
    match bytes > MAX_BYTES {
        true => {
            Err(Error::new(Status::OutOfMemory, format!("{bytes} bytes are more than any space has; ask for less")))
        }
        false => Ok(()),
    }
}

fn no_room(space: &Space, bytes: u64, also: &str) -> Error {
    let text = format!(
        "{}: {} asked outside of any reservation, {} of {} available{also}; free or release something, or raise the limit",
        space.id,
        human(bytes),
        human(space.available()),
        human(space.limit())
    );
    Error::new(Status::OutOfMemory, text)
}

fn overdrawn(account: &Account, bytes: u64, also: &str) -> Error {
    let text = format!(
        "reservation {} of {}: {} asked, {} of its {} drawn{also}; free something, or grow it first",
        account.id,
        account.space.id,
        human(bytes),
        human(account.drawn()),
        human(account.size())
    );
    Error::new(Status::OutOfMemory, text)
}

impl Hub {
    /// Counts an allocation that names no reservation.
    pub(super) fn draw(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Result<Drawn> {
        too_many(bytes)?;
        let current = self.attachments.current(self.id, space, stream);
        if let Some(account) = current.account {
            if let Some((inside, outside)) = self.take(&account, bytes, stream)? {
                return Ok(Drawn::of_reservation(account, (stream, current.usage), inside, outside));
            }
        }
        match space.take(bytes) {
            true => Ok(Drawn::of_space(space.clone(), (stream, current.usage), bytes)),
            false => Err(no_room(space, bytes, "")),
        }
    }

    /// Counts an allocation outside of any reservation, whatever is attached.
    pub(super) fn draw_outside(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Result<Drawn> {
        too_many(bytes)?;
        let usage = self.attachments.usage(self.id, space, stream);
        match space.take(bytes) {
            true => Ok(Drawn::of_space(space.clone(), (stream, usage), bytes)),
            false => Err(no_room(space, bytes, "")),
        }
    }

    /// Counts an allocation in a reservation.
    pub(super) fn draw_from(&self, account: &Arc<Account>, bytes: u64, stream: u64) -> Result<Drawn> {
        too_many(bytes)?;
        let (inside, outside) = self.take(account, bytes, stream)?.ok_or_else(|| released(account.id))?;
        let usage = self.attachments.usage(self.id, &account.space, stream);
        Ok(Drawn::of_reservation(account.clone(), (stream, usage), inside, outside))
    }

    /// Counts an allocation that is there already outside of any reservation, whether or not there is room for it.
    pub(super) fn draw_anyway(&self, space: &Arc<Space>, bytes: u64, stream: u64) -> Drawn {
        let bytes = bytes.min(MAX_BYTES);
        if !space.take(bytes) {
            let _state = self.lock();
            space.take_anyway(bytes);
        }
        Drawn::of_space(space.clone(), (stream, self.attachments.usage(self.id, space, stream)), bytes)
    }

    /// The policy for allocations for which there is no memory: that of the reservation they are made with, else of the
    /// one attached to the stream, else of the space.
    pub(super) fn out_of_memory(
        &self,
        space: &Space,
        account: Option<&Arc<Account>>,
        stream: u64,
    ) -> OutOfMemoryPolicy {
        let account = match account {
            Some(account) => Some(account.clone()),
            None => self.attachments.current(self.id, space, stream).account,
        };
        let own = account.and_then(|a| lock(&a.policies).out_of_memory.clone());
        own.unwrap_or_else(|| self.lock().books.out_of_memory.get(space.index).cloned().unwrap_or_default())
    }

    /// Takes an allocation's bytes, by the reservation's policy where they do not fit. No lock is held in a callback.
    fn take(&self, account: &Arc<Account>, bytes: u64, stream: u64) -> Result<Parts> {
        let mut attempt = 0u32;
        loop {
            match account.take(bytes) {
                Taken::All => return Ok(Some((bytes, 0))),
                Taken::Released => return Ok(None),
                Taken::Short(_) => {}
            }
            let policy = lock(&account.policies).limit.clone();
            let decision = match policy {
                LimitPolicy::Fail => Decision::Fail,
                LimitPolicy::Ignore => Decision::Ignore,
                LimitPolicy::Increase { factor, cap, beyond_limit } => {
                    return self.take_growing(account, bytes, Growth { factor, cap, beyond_limit });
                }
                LimitPolicy::Callback(callback) => {
                    attempt = attempt.saturating_add(1);
                    callback(&Overdraw {
                        space: account.space.id,
                        reservation: account.id,
                        size: account.size(),
                        drawn: account.drawn(),
                        bytes,
                        stream,
                        attempt,
                    })
                }
            };
            match decision {
                Decision::Fail => return Err(overdrawn(account, bytes, "")),
                Decision::Ignore => return take_around(account, bytes),
                Decision::Grow(more) => self.grow_now(account, more, bytes)?,
                Decision::Retry => {}
            }
        }
    }

    /// As [`Self::take`], under any lock: nobody is called back, so a policy that would does not help.
    pub(super) fn take_quietly(&self, account: &Arc<Account>, bytes: u64) -> Result<Parts> {
        match account.take(bytes) {
            Taken::All => return Ok(Some((bytes, 0))),
            Taken::Released => return Ok(None),
            Taken::Short(_) => {}
        }
        // Not cloned: the last copy of a callback must not go under somebody's lock.
        let growth = match lock(&account.policies).limit {
            LimitPolicy::Increase { factor, cap, beyond_limit } => Some(Growth { factor, cap, beyond_limit }),
            LimitPolicy::Ignore => None,
            LimitPolicy::Fail | LimitPolicy::Callback(_) => return Err(overdrawn(account, bytes, "")),
        };
        match growth {
            Some(growth) => self.take_growing(account, bytes, growth),
            None => take_around(account, bytes),
        }
    }

    /// Grows a reservation so that `bytes` fit, and draws them.
    fn take_growing(&self, account: &Arc<Account>, bytes: u64, growth: Growth) -> Result<Parts> {
        // The mutex keeps its size and its being alive; draws and ends of other allocations go on.
        let mut state = self.lock();
        if account.released() {
            return Ok(None);
        }
        let (space, size) = (&account.space, account.size());
        let mut more = 0;
        loop {
            let room = account.room();
            let short = bytes.saturating_sub(room.saturating_add(more));
            if short > 0 {
                let needed = size.saturating_add(more).saturating_add(short);
                let cap = growth.cap.unwrap_or(u64::MAX);
                let target = growth.factor.of(size).max(needed).min(cap).min(MAX_BYTES);
                let taken = match needed <= cap {
                    false => None,
                    true => match space.take_between(short, target.saturating_sub(size + more).max(short), 0) {
                        None if growth.beyond_limit && space.take_beyond(short) => Some(short),
                        taken => taken,
                    },
                };
                match taken {
                    Some(taken) => more += taken,
                    None => {
                        space.put_quietly(more);
                        state.serve();
                        let also = match needed <= cap {
                            false => format!(", it would need {} and may grow to {}", human(needed), human(cap)),
                            true => format!(", {} more to grow by available in the space", human(space.available())),
                        };
                        return Err(overdrawn(account, bytes, &also));
                    }
                }
            }
            if account.grow_and_take(room, more, bytes) {
                return Ok(Some((bytes, 0)));
            }
        }
    }

    /// Grows a reservation at once, past those who wait: an allocation needs it.
    fn grow_now(&self, account: &Arc<Account>, more: u64, bytes: u64) -> Result<()> {
        let _state = self.lock();
        if account.released() {
            // Noticed by the next look.
            return Ok(());
        }
        if more > MAX_BYTES || !account.space.take(more) {
            let also = format!(", {} more to grow by not available in the space", human(more));
            return Err(overdrawn(account, bytes, &also));
        }
        account.grow(more);
        Ok(())
    }
}

/// Takes what the reservation still has, and what is missing from outside of it.
fn take_around(account: &Arc<Account>, bytes: u64) -> Result<Parts> {
    let Ok(inside) = account.take_between(0, bytes) else { return Ok(None) };
    if account.space.take(bytes - inside) {
        return Ok(Some((inside, bytes - inside)));
    }
    let released = account.give(inside);
    if released > 0 {
        account.space.put(released);
    }
    let also = format!(", and only {} available in the space", human(account.space.available()));
    Err(overdrawn(account, bytes, &also))
}

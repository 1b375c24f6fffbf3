//! Drawing from a reservation, by its policy if an allocation does not fit.
//!
//! For an allocation, a reservation first grows by just what that lacks, and draws that at once. So
//! nobody else has used any of it if the allocation fails, and it can be undone. What the factor
//! adds to it comes when the allocation has been made.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{Account, Taken};
use super::lack::{Counting, Lack, Refused, Short};
use super::policy::{call_back, Decision, Factor, LimitPolicy, Overdraw};
use super::space::MAX_BYTES;
use crate::base::sync::lock;
use crate::base::{size::exact, Error, Result, Status};

/// Bytes taken for an allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    /// Those of the reservation.
    pub(super) inside: u64,
    /// Those outside of any.
    pub(super) outside: u64,
    /// How many of those inside the reservation has grown by, for an allocation that is not made
    /// yet.
    pub(super) grown: u64,
    /// The size that the reservation then grows to, if there is room.
    pub(super) target: u64,
}

/// What was taken; `None` if the reservation is released.
pub(super) type Got = Option<Parts>;

fn inside(bytes: u64) -> Got {
    Some(Parts { inside: bytes, ..Parts::default() })
}

/// How a reservation may grow for an allocation.
#[derive(Clone, Copy)]
struct Growth {
    factor: Factor,
    cap: Option<u64>,
    beyond_limit: bool,
}

/// Why a reservation cannot grow any more.
const NO_MANAGER: &str = ", and its manager is gone";

/// What a space would have to promise: bytes, and how far above its limit it may go for them.
type OfSpace = (u64, u64);

/// The refusal of an allocation. `of_space`: what the space lacks; `None` if the reservation lacks
/// it.
fn overdrawn(account: &Account, bytes: u64, of_space: Option<OfSpace>, also: &str) -> Refused {
    let text = format!(
        "reservation {} of {}: {} asked, {} of its {} drawn{also}; free something, or grow it first",
        account.id,
        account.space.id,
        exact(bytes),
        exact(account.drawn()),
        exact(account.size())
    );
    let short = Short { number: account.id, bytes: bytes.saturating_sub(account.room()).max(1) };
    let lack = match of_space {
        Some((bytes, above)) => Lack::Promise { bytes, above, short: Some(short) },
        None => Lack::Reservation(short),
    };
    Refused { error: Error::new(Status::OutOfMemory, text), lack: Some(lack) }
}

/// Takes an allocation's bytes, by the reservation's policy if they do not fit. No lock is held in
/// a callback.
pub(super) fn take(account: &Account, bytes: u64, stream: u64) -> Counting<Got> {
    let mut attempt = 0u32;
    loop {
        match account.take(bytes) {
            Taken::All => return Ok(inside(bytes)),
            Taken::Released => return Ok(None),
            Taken::Short(_) => {}
        }
        let policy = lock(&account.policies).limit.clone();
        let decision = match policy {
            LimitPolicy::Fail => Decision::Fail,
            LimitPolicy::Ignore => Decision::Ignore,
            LimitPolicy::Increase { factor, cap, beyond_limit } => {
                return take_growing(account, bytes, Growth { factor, cap, beyond_limit });
            }
            LimitPolicy::Callback(callback) => {
                attempt = attempt.saturating_add(1);
                let what = Overdraw {
                    space: account.space.id,
                    reservation: account.id,
                    size: account.size(),
                    drawn: account.drawn(),
                    bytes,
                    stream,
                    attempt,
                };
                call_back(|| callback(&what))
            }
        };
        match decision {
            Decision::Fail => return Err(overdrawn(account, bytes, None, "")),
            Decision::Ignore => return take_around(account, bytes),
            Decision::Grow(more) => grow_now(account, more, bytes)?,
            Decision::Retry => {}
        }
    }
}

/// Like [`take`], but may be called under any lock: it calls nothing back, so it fails where a
/// policy would.
pub(super) fn take_quietly(account: &Account, bytes: u64) -> Result<Got> {
    match account.take(bytes) {
        Taken::All => return Ok(inside(bytes)),
        Taken::Released => return Ok(None),
        Taken::Short(_) => {}
    }
    // Not cloned: the last copy of a callback must not be dropped under a lock.
    let growth = match lock(&account.policies).limit {
        LimitPolicy::Increase { factor, cap, beyond_limit } => Some(Growth { factor, cap, beyond_limit }),
        LimitPolicy::Ignore => None,
        LimitPolicy::Fail | LimitPolicy::Callback(_) => return Err(overdrawn(account, bytes, None, "").error),
    };
    let taken = match growth {
        Some(growth) => take_growing(account, bytes, growth),
        None => take_around(account, bytes),
    };
    taken.map_err(|refused| refused.error)
}

/// Grows a reservation so that `bytes` fit, and draws them.
fn take_growing(account: &Account, bytes: u64, growth: Growth) -> Counting<Got> {
    // The mutex keeps the size as it is and the reservation alive; other draws and ends go on. What
    // was taken to grow by and not needed is available to others again.
    let taken = account.space.with_mutex(|| (grow_and_take(account, bytes, growth), true));
    match taken {
        Some(Ok(got)) => Ok(got),
        Some(Err((of_space, also))) => Err(overdrawn(account, bytes, of_space, &also)),
        None => Err(overdrawn(account, bytes, None, NO_MANAGER)),
    }
}

/// Like [`take_growing`], under the mutex. The error has what the space lacks, if it does, and an
/// addition to the text of [`overdrawn`].
fn grow_and_take(account: &Account, bytes: u64, growth: Growth) -> std::result::Result<Got, (Option<OfSpace>, String)> {
    if account.released() {
        return Ok(None);
    }
    let (space, size) = (&account.space, account.size());
    let cap = growth.cap.unwrap_or(u64::MAX);
    let mut more = 0;
    loop {
        let room = account.room();
        let lacking = bytes.saturating_sub(room);
        let needed = size.saturating_add(lacking);
        if lacking < more {
            space.put_quietly(more - lacking);
        } else if lacking > more {
            let short = lacking - more;
            let taken = needed <= cap && (space.take(short) || growth.beyond_limit && space.take_beyond(short));
            if !taken {
                space.put_quietly(more);
                return Err(match needed <= cap {
                    false => (None, format!(", it would need {} and may grow to {}", exact(needed), exact(cap))),
                    true => {
                        let there = exact(space.available());
                        let above = if growth.beyond_limit { space.above_limit() } else { 0 };
                        (Some((lacking, above)), format!(", {there} more to grow by available in the space"))
                    }
                });
            }
        }
        more = lacking;
        if account.grow_and_take(room, more, bytes) {
            let target = growth.factor.of(size).min(cap).min(MAX_BYTES);
            return Ok(Some(Parts { inside: bytes, outside: 0, grown: more, target }));
        }
    }
}

/// Grows a reservation to `target`, or by what there is, as it has grown for an allocation that has
/// been made.
pub(super) fn grow_on(account: &Account, target: u64) {
    account.space.with_mutex(|| {
        let more = target.saturating_sub(account.size());
        if more > 0 && !account.released() {
            account.grow(account.space.take_between(0, more, 0).unwrap_or(0));
        }
        ((), false)
    });
}

/// Grows a reservation at once, ahead of the waiters, because an allocation needs it.
fn grow_now(account: &Account, more: u64, bytes: u64) -> Counting<()> {
    let grown = account.space.with_mutex(|| {
        if account.released() {
            // The next look notices that.
            return (true, false);
        }
        let grows = more <= MAX_BYTES && account.space.take(more);
        if grows {
            account.grow(more);
        }
        (grows, false)
    });
    match grown {
        Some(true) => Ok(()),
        Some(false) => {
            let also = format!(", {} more to grow by not available in the space", exact(more));
            Err(overdrawn(account, bytes, Some((more, 0)), &also))
        }
        None => Err(overdrawn(account, bytes, None, NO_MANAGER)),
    }
}

/// Takes what the reservation still has, and the rest from outside of it.
fn take_around(account: &Account, bytes: u64) -> Counting<Got> {
    let Ok(inside) = account.take_between(0, bytes) else { return Ok(None) };
    if account.space.take(bytes - inside) {
        return Ok(Some(Parts { inside, outside: bytes - inside, ..Parts::default() }));
    }
    let released = account.give(inside);
    if released > 0 {
        account.space.put(released);
    }
    let also = format!(", and only {} available in the space", exact(account.space.available()));
    Err(overdrawn(account, bytes, Some((bytes - inside, 0)), &also))
}

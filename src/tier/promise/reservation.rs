//! A reservation, as its owner holds it.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::account::{released, Account, Taken};
use super::cancel::Cancel;
use super::drawn::Drawn;
use super::hub::Hub;
use super::policy::{LimitPolicy, OutOfMemoryPolicy};
use super::queue::Want;
use super::space::{Space, SpaceId};
use super::terms::Wait;
use super::usage::Usage;
use crate::base::sync::lock;
use crate::base::{size::exact, Error, Result};
use std::sync::Arc;

/// A promise of bytes in one space. Dropping it releases it.
///
/// Every method may be called from any thread, but not with a lock held that a policy's callback
/// takes.
#[derive(Debug)]
pub struct Reservation {
    hub: Arc<Hub>,
    account: Arc<Account>,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its size, in bytes.
    pub size: u64,
    /// Bytes drawn of it by live allocations. From now on they count as use outside of any
    /// reservation.
    pub drawn: u64,
}

/// When a reservation was asked for and granted, in the manager's count of such events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When the request came.
    pub arrived: u64,
    /// When it was granted.
    pub granted: u64,
}

impl Reservation {
    pub(super) fn new(hub: Arc<Hub>, account: Arc<Account>) -> Reservation {
        Reservation { hub, account }
    }

    /// A number that no other reservation of the manager has.
    pub fn id(&self) -> u64 {
        self.account.id
    }

    /// The space it is in.
    pub fn space(&self) -> SpaceId {
        self.account.space.id
    }

    /// The space itself.
    pub fn in_space(&self) -> &Arc<Space> {
        &self.account.space
    }

    /// Its books, if it is in this space.
    pub(super) fn account_in(&self, space: &Arc<Space>) -> Result<&Arc<Account>> {
        match Arc::ptr_eq(&self.account.space, space) {
            true => Ok(&self.account),
            false => Err(Error::invalid(format!(
                "reservation {} is of {}, and the allocation is in {}; use a reservation of that space",
                self.account.id, self.account.space.id, space.id
            ))),
        }
    }

    /// Bytes promised; 0 once released.
    pub fn size(&self) -> u64 {
        self.account.size()
    }

    /// Bytes of it that live allocations use; 0 once released.
    pub fn drawn(&self) -> u64 {
        let _state = self.hub.lock();
        self.account.drawn()
    }

    /// Bytes of live allocations made with it, and their peak. Includes those beyond its size and
    /// those that outlive it.
    pub fn usage(&self) -> &Usage {
        &self.account.usage
    }

    /// When it was asked for and granted.
    pub fn turn(&self) -> Turn {
        Turn { arrived: self.account.arrived, granted: self.account.granted }
    }

    /// Whether it has been released.
    pub fn is_released(&self) -> bool {
        self.account.released()
    }

    /// Makes it `bytes` larger. If they are not there, the relief makes room, and then it waits in
    /// turn. An earlier request may be waiting for just what this reservation has, so a wait
    /// without an end may never end. Call it with no lock held.
    pub fn grow(&self, bytes: u64, wait: Wait, cancel: Option<&Cancel>) -> Result<()> {
        if bytes == 0 {
            return Err(Error::invalid("a reservation cannot grow by 0 bytes; ask for at least 1"));
        }
        let account = &self.account;
        let want = Want::Grow { account: account.clone(), bytes };
        let own = |_: &_| match account.released() {
            true => Err(released(account.id)),
            false => Ok(vec![vec![account.space.index]]),
        };
        let trigger = cancel.map(|c| c.trigger(&self.hub)).transpose()?;
        self.hub.request_with_room(want, own, wait, trigger).map(drop)
    }

    /// Makes it `bytes` smaller. None of them may be drawn.
    pub fn shrink(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Err(Error::invalid("a reservation cannot shrink by 0 bytes; ask for at least 1"));
        }
        self.shrink_between(bytes, bytes).map(drop)
    }

    /// Makes it as small as what is drawn of it. Returns how many bytes went back to the space,
    /// possibly none.
    pub fn shrink_to_fit(&self) -> Result<u64> {
        self.shrink_between(0, u64::MAX)
    }

    fn shrink_between(&self, least: u64, most: u64) -> Result<u64> {
        let mut state = self.hub.lock();
        let account = &self.account;
        match account.shrink(least, most) {
            Ok(bytes) => {
                account.space.put_quietly(bytes);
                state.serve();
                Ok(bytes)
            }
            Err(Taken::Short(room)) => Err(Error::invalid(format!(
                "reservation {} of {} cannot shrink by {}: {} of its {} are drawn; shrink it by {room} bytes at most, or \
                 free something",
                account.id,
                account.space.id,
                exact(least),
                exact(account.size().saturating_sub(room)),
                exact(account.size())
            ))),
            Err(_) => Err(released(account.id)),
        }
    }

    /// Ends it. What is drawn of it goes on as use outside of any reservation. It is detached from
    /// streams and threads.
    pub fn release(&self) -> Result<Released> {
        match self.hub.release(&self.account) {
            Some((size, room)) => Ok(Released { size, drawn: size.saturating_sub(room) }),
            None => Err(released(self.account.id)),
        }
    }

    /// Counts an allocation in it that is made already. Callbacks of its limit policy may be called
    /// meanwhile.
    pub fn draw(&self, bytes: u64, stream: u64) -> Result<Drawn> {
        self.hub.draw_from(&self.account, bytes, stream).map(Drawn::made).map_err(|refused| refused.error)
    }

    /// Lets allocations on the stream in this space draw from it.
    pub fn attach_stream(&self, stream: u64) -> Result<()> {
        self.hub.attachments.attach_stream(&self.account, stream)
    }

    /// Lets allocations of the calling thread in this space draw from it, on streams that have none
    /// of their own.
    pub fn attach_thread(&self) -> Result<()> {
        self.hub.attachments.attach_thread(self.hub.id, &self.account)
    }

    /// Undoes [`Self::attach_thread`].
    pub fn detach_thread(&self) -> Result<()> {
        self.hub.attachments.detach_thread(self.hub.id, &self.account.space, Some(self.account.id))
    }

    /// Sets what an allocation that does not fit does.
    pub fn set_policy(&self, policy: LimitPolicy) -> Result<()> {
        self.set_policies(|p| std::mem::replace(&mut p.limit, policy)).map(drop)
    }

    /// Sets what an allocation does if there is no memory for it; `None`: as the space says.
    pub fn set_out_of_memory_policy(&self, policy: Option<OutOfMemoryPolicy>) -> Result<()> {
        self.set_policies(|p| std::mem::replace(&mut p.out_of_memory, policy)).map(drop)
    }

    /// Returns the old policy, so that it ends with no lock held.
    fn set_policies<T>(&self, set: impl FnOnce(&mut super::account::Policies) -> T) -> Result<T> {
        let _state = self.hub.lock();
        match self.account.released() {
            true => Err(released(self.account.id)),
            false => Ok(set(&mut lock(&self.account.policies))),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.hub.release(&self.account);
    }
}

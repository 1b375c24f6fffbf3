//! A token that ends waits.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::hub::Hub;
use super::queue::Trigger;
use crate::base::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Ends the wait of every request that carries it, now or later. Copies are the same token.
#[derive(Clone, Debug)]
pub struct Cancel {
    hub: Arc<Hub>,
    trigger: Trigger,
}

impl Cancel {
    pub(super) fn new(hub: Arc<Hub>) -> Cancel {
        Cancel { hub, trigger: Trigger::default() }
    }

    /// Triggers it: its waiters get an error, unless their requests have been granted already.
    pub fn cancel(&self) {
        self.hub.cancel(&self.trigger);
    }

    /// Whether it has been triggered.
    pub fn is_cancelled(&self) -> bool {
        let _state = self.hub.lock();
        self.trigger.load(Relaxed)
    }

    /// What a request at `hub` carries. Fails if the token is another manager's.
    pub(super) fn trigger(&self, hub: &Arc<Hub>) -> Result<Trigger> {
        match Arc::ptr_eq(&self.hub, hub) {
            true => Ok(self.trigger.clone()),
            false => Err(Error::invalid("the token is another manager's; make one with this manager")),
        }
    }
}

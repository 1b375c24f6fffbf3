//! Counting the live allocations of a pool that were never counted, outside of any reservation.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::manager::Manager;
use super::space::Space;
use crate::base::StreamHandle;
use crate::pool::{Counter, Receipt};
use std::sync::Arc;

/// Counts live allocations of a device's pool that have no receipt, outside of any reservation:
/// those that were there when counting began, and those that were on their way.
pub struct LiveCounter {
    manager: Arc<Manager>,
    space: Arc<Space>,
}

impl LiveCounter {
    /// For the pool whose memory the space is. The space must be `manager`'s.
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

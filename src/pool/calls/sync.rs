//! Waiting on the host, and what that proves: memory freed in front of it is everybody's behind it.

use crate::base::{Result, StreamHandle};
use crate::pool::state::Pool;

impl Pool {
    /// Waits until a live stream of this device has done what has been submitted to it. What was
    /// freed in its order before the call is settled then.
    pub fn sync_stream(&self, stream: StreamHandle) -> Result<()> {
        let lane = self.registered_lane(stream);
        if let Some(lane) = lane {
            // Without a marker nothing is known to be settled, and all waits as it did.
            let _ = self.order.mark(&*self.driver, lane, stream);
        }
        self.driver.stream_sync(self.dev, stream)?;
        self.order.poll(&*self.driver, lane)
    }

    /// Waits until the device has done what has been submitted to it. What was freed before the
    /// call is settled then.
    pub fn sync_device(&self) -> Result<()> {
        // As above; while a capture is known there is none.
        let _ = self.order.mark_context(&*self.driver, None);
        self.driver.device_sync(self.dev)?;
        self.order.poll_all(&*self.driver)
    }
}

//! Waiting on the host: afterwards, any stream may use what was freed before the wait.

use crate::base::{Result, StreamHandle};
use crate::pool::state::Pool;
use crate::pool::streams::capture_key;

impl Pool {
    /// Whether the pool knows, or the driver shows, that a stream is being captured.
    pub fn is_capturing(&self) -> bool {
        self.order.captures.known() || self.order.may_be_capturing(None)
    }

    /// Waits until a live stream of this device has done everything submitted to it. Memory freed
    /// in its order before the call is settled then.
    pub fn sync_stream(&self, stream: StreamHandle) -> Result<()> {
        let lane = self.registered_lane(stream);
        if let Some(lane) = lane {
            // If no marker can be recorded, nothing is settled and memory goes on waiting.
            let _ = self.order.mark(lane, stream);
        }
        self.driver.stream_sync(self.dev, stream)?;
        // A captured stream cannot be waited for.
        self.order.captures.over(|| capture_key(stream));
        self.mark_released(stream)?;
        self.order.poll(lane)
    }

    /// Waits until the device has done everything submitted to it. Memory freed before the call is
    /// settled then.
    pub fn sync_device(&self) -> Result<()> {
        self.order.sync_device()?;
        self.order.poll_all()
    }
}

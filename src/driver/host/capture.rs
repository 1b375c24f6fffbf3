//! Stream capture, as far as an allocator notices it.
//!
//! Work submitted to a stream during its capture is checked and dropped: there is no graph to launch later. What
//! counts is which driver calls are legal meanwhile, and which of them spoil the capture.

#![deny(unsafe_code)]

use super::HostDriver;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::Driver;
use std::sync::atomic::Ordering;

impl HostDriver {
    /// Starts capturing a stream, in CUDA's global mode. The legacy default stream cannot be captured.
    pub fn begin_capture(&self, s: StreamHandle) -> Result<()> {
        let dev = self.stream_device(s)?;
        if s.canonical() == StreamHandle::LEGACY {
            return Err(Error::invalid("the legacy default stream cannot be captured"));
        }
        self.change_capture(dev, s, |capture| match capture {
            Some(_) => Err(Error::new(Status::Capturing, format!("stream {s} is being captured already"))),
            None => {
                *capture = Some(true);
                self.captures.fetch_add(1, Ordering::Release);
                self.handles.set_captured(s, true);
                Ok(())
            }
        })
    }

    /// Ends the capture of a stream; says whether it was still valid.
    pub fn end_capture(&self, s: StreamHandle) -> Result<bool> {
        let dev = self.stream_device(s)?;
        self.change_capture(dev, s, |capture| {
            let valid = capture.take().ok_or_else(|| Error::invalid(format!("stream {s} is not being captured")))?;
            self.captures.fetch_sub(1, Ordering::Release);
            self.handles.set_captured(s, false);
            Ok(valid)
        })
    }

    fn change_capture<T>(
        &self,
        dev: DeviceId,
        s: StreamHandle,
        f: impl FnOnce(&mut Option<bool>) -> Result<T>,
    ) -> Result<T> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        f(&mut st.lanes.get_mut(lane)?.capture)
    }
}

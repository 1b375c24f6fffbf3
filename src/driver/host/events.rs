//! Events: marks that move.

#![deny(unsafe_code)]

use super::clock::Clock;
use crate::base::{DeviceId, Error, Result};
use crate::driver::EventHandle;
use std::collections::HashMap;
use std::sync::Arc;

/// A point in one or more lanes. Work that waits for it is ordered after its points, and after what
/// its clock holds.
pub(super) struct Mark {
    /// `(lane, seq)`: it is reached when all of these are complete.
    pub(super) points: Vec<(usize, u64)>,
    /// Without what the host had seen complete, as in a lane.
    pub(super) clock: Arc<Clock>,
}

pub(super) struct Event {
    pub(super) dev: DeviceId,
    /// `None` until recorded.
    pub(super) mark: Option<Arc<Mark>>,
}

/// All events. Handles are not reused, so a destroyed event is recognised.
#[derive(Default)]
pub(super) struct Events {
    list: HashMap<u64, Event>,
    last: u64,
}

impl Events {
    pub(super) fn create(&mut self, dev: DeviceId) -> EventHandle {
        self.last += 1;
        self.list.insert(self.last, Event { dev, mark: None });
        EventHandle(self.last)
    }

    pub(super) fn destroy(&mut self, e: EventHandle) -> Result<()> {
        self.list.remove(&e.0).map(|_| ()).ok_or_else(|| unknown(e))
    }

    /// A live event of device `dev`.
    pub(super) fn get_mut(&mut self, dev: DeviceId, e: EventHandle) -> Result<&mut Event> {
        let x = self.list.get_mut(&e.0).ok_or_else(|| unknown(e))?;
        if x.dev != dev {
            return Err(Error::invalid(format!("event {} belongs to device {}, not {dev}", e.0, x.dev)));
        }
        Ok(x)
    }

    /// The mark of an event of any device.
    pub(super) fn mark(&self, e: EventHandle) -> Result<Option<Arc<Mark>>> {
        self.list.get(&e.0).map(|x| x.mark.clone()).ok_or_else(|| unknown(e))
    }
}

fn unknown(e: EventHandle) -> Error {
    Error::invalid(format!("event {} was never created, or has been destroyed", e.0))
}

//! Noting that an allocation is also used on another stream, of this device or of another one.

use crate::base::sync::lock;
use crate::base::{DeviceId, Result, StreamHandle};
use crate::pool::calls::find::Found;
use crate::pool::heap::HeapState;
use crate::pool::order::CONTEXT;
use crate::pool::state::{Pool, RemoteStream};

impl Pool {
    /// Like [`Pool::record_stream`], for a stream of another device.
    pub fn record_stream_on_other_device(&self, ptr: u64, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        let stream = match stream {
            StreamHandle::PER_THREAD => StreamHandle::LEGACY,
            s => s,
        };
        let source = RemoteStream { dev, stream, identity: self.driver.stream_id(dev, stream)? };
        let relay = self.relay()?;
        let lane = self.heap_for(relay)?.lane;
        match self.find(ptr, "record_stream")? {
            Found::Dedicated => {
                let mut core = lock(&*self.core);
                if let Some(d) = core.dedicated.get_mut(&ptr) {
                    d.add_user(lane);
                    self.announce(ptr, source);
                }
            }
            Found::Pooled { mut st, .. } => {
                note_user(&mut st, ptr, lane);
                self.announce(ptr, source);
            }
        }
        Ok(())
    }
}

/// Notes that `lane` uses the block at `ptr`. The heap's own lane counts too: by the time of the
/// free the lane may belong to another stream, or the free may name another.
pub(crate) fn note_user(st: &mut HeapState, ptr: u64, lane: u32) {
    let users = st.users.entry(ptr).or_default();
    if !users.contains(&lane) {
        users.push(lane);
    }
}

impl Pool {
    /// The allocation is also used on `stream`, which stays alive until the allocation is freed.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let by = self.heap_for(stream)?;
        // A capture's lane goes to other streams once the capture is gone, while this stream may go
        // on. The context covers both.
        let elsewhere = if by.of_captures { CONTEXT } else { by.lane };
        match self.find(ptr, "record_stream")? {
            Found::Dedicated => {
                if let Some(d) = lock(&*self.core).dedicated.get_mut(&ptr) {
                    d.add_user(elsewhere);
                }
            }
            Found::Pooled { heap, mut st, .. } => {
                let here = heap.lane == st.lane_here(by.lane);
                note_user(&mut st, ptr, if here { heap.lane } else { elsewhere });
            }
        }
        Ok(())
    }
}

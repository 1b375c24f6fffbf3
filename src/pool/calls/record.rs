//! Noting that an allocation is also used on another stream, of this device or of another one.

use crate::base::{DeviceId, Result, StreamHandle};
use crate::pool::calls::find::Found;
use crate::pool::order::CONTEXT;
use crate::pool::state::{Pool, RemoteStream};

impl Pool {
    /// The allocation is also used on `stream`, which stays alive until the allocation is freed.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let by = self.heap_for(stream)?;
        // A capture's lane goes to other streams once the capture is gone, while this stream may go
        // on. The context covers both.
        let elsewhere = if by.of_captures { CONTEXT } else { by.lane };
        self.note_user(ptr, by.lane, elsewhere, None)
    }

    /// Like [`Pool::record_stream`], for a stream of another device.
    pub fn record_stream_on_other_device(&self, ptr: u64, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        let stream = match stream {
            StreamHandle::PER_THREAD => StreamHandle::LEGACY,
            s => s,
        };
        let source = RemoteStream { dev, stream, identity: self.driver.stream_id(dev, stream)? };
        let relay = self.relay()?;
        let lane = self.heap_for(relay)?.lane;
        self.note_user(ptr, lane, lane, Some(source))
    }

    /// Notes that `lane` uses the allocation at `ptr`: as the heap's own lane if it allocates from
    /// that heap, else as `elsewhere`. The heap's own lane counts too: by the time of the free the
    /// lane may belong to another stream, or the free may name another.
    fn note_user(&self, ptr: u64, lane: u32, elsewhere: u32, source: Option<RemoteStream>) -> Result<()> {
        let mut found = self.find(ptr, "record_stream")?;
        if let Some(source) = source {
            self.announce(ptr, source);
        }
        let (users, user) = match &mut found {
            Found::Dedicated { core, .. } => (core.dedicated.get_mut(&ptr).map(|d| &mut d.users), elsewhere),
            Found::Pooled { heap, st, .. } => {
                let own = heap.lane == st.lane_here(lane);
                (Some(st.users.entry(ptr).or_default()), if own { heap.lane } else { elsewhere })
            }
        };
        if let Some(users) = users.filter(|users| !users.contains(&user)) {
            users.push(user);
        }
        Ok(())
    }
}

//! Noting that an allocation is also used on another stream, of this device or of another one.

use crate::base::{DeviceId, Result, StreamHandle};
use crate::pool::calls::find::Found;
use crate::pool::order::CONTEXT;
use crate::pool::state::{Pool, RemoteStream};

impl Pool {
    /// The allocation is also used on `stream`, which stays alive until the allocation is freed.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        self.note_user(ptr, stream, None)
    }

    /// Like [`Pool::record_stream`], for a stream of another device.
    pub fn record_stream_on_other_device(&self, ptr: u64, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        let stream = if stream == StreamHandle::PER_THREAD { StreamHandle::LEGACY } else { stream };
        let source = RemoteStream { dev, stream, identity: self.driver.stream_id(dev, stream)? };
        self.note_user(ptr, self.relay()?, Some(source))
    }

    /// Notes that a stream uses the allocation at `ptr`, by its lane. The lane of the allocation's
    /// own heap counts, too: by the time of the free it may belong to another stream, or the free
    /// may name another.
    fn note_user(&self, ptr: u64, stream: StreamHandle, source: Option<RemoteStream>) -> Result<()> {
        let by = self.heap_for(stream)?;
        // A capture's lane goes to other streams once the capture is gone, while this stream may go
        // on. The context covers both.
        let elsewhere = if by.of_captures { CONTEXT } else { by.lane };
        let mut found = self.find(ptr, "record_stream")?;
        if let Some(source) = source {
            self.announce(ptr, source);
        }
        let (users, user) = match &mut found {
            Found::Dedicated { core, .. } => (core.dedicated.get_mut(&ptr).map(|d| &mut d.users), elsewhere),
            Found::Pooled { st, .. } => {
                let user = if st.lane == st.lane_here(by.lane) { st.lane } else { elsewhere };
                (Some(st.users.entry(ptr).or_default()), user)
            }
        };
        if let Some(users) = users.filter(|users| !users.contains(&user)) {
            users.push(user);
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::Driver;
    use crate::pool::{AllocRequest, GraphArenaOptions, PoolOptions, WhichStreams};

    /// The relay may allocate from a capture arena, too. Its lane there goes to another stream once
    /// the arena is gone, and says nothing about the use then.
    #[test]
    fn a_use_on_another_device_is_noted_by_no_lane_of_an_arena() {
        let (d, other) = (DeviceId(0), DeviceId(1));
        let host = HostDriver::new(HostOptions { devices: 2, ..HostOptions::default() }).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let (s, far) = (host.stream_create(d).unwrap(), host.stream_create(other).unwrap());
        let p = pool.malloc(&AllocRequest { size: 1 << 20, stream: s, ..AllocRequest::default() }).unwrap();
        let arena = pool.open_arena(GraphArenaOptions::default());
        let route = pool.begin_route(&arena, WhichStreams::Filter(Box::new(|_| true)), 0, None).unwrap();
        pool.record_stream_on_other_device(p, other, far).unwrap();
        let found = pool.find(p, "test").unwrap();
        assert!(matches!(&found, Found::Pooled { st, .. } if st.users.get(&p) == Some(&vec![CONTEXT])));
        drop(found);
        pool.end_route(&route);
        pool.release_arena(&arena);
        pool.free(p, Some(s)).unwrap();
        pool.validate().unwrap();
    }
}

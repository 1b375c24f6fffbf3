//! A device for models: streams are counts of what was submitted and done, behind one lock, as a
//! driver's queues are.

use crate::base::sync::{lock, Mutex};
use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::driver::{
    CaptureInfo, CaptureMode, DeviceProps, Driver, EventHandle, GraphHandle, GraphNodes, MemInfo, PhysFlags, PhysHandle,
};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

const STREAMS: usize = 3;
type Positions = [u64; STREAMS];

#[derive(Default)]
struct Queues {
    submitted: Positions,
    done: Positions,
    /// What each event waits for: a position in each stream.
    events: HashMap<u64, Positions>,
    created: u64,
}

/// As lazy as stream order allows: it only does work that a queried event waits for.
pub(super) struct Device(Mutex<Queues>);

impl Device {
    pub(super) fn new() -> Device {
        Device(Mutex::new(Queues::default()))
    }

    /// Submits one piece of work; its position in the stream.
    pub(super) fn submit(&self, s: StreamHandle) -> u64 {
        let mut q = lock(&self.0);
        q.submitted[s.0] += 1;
        q.submitted[s.0]
    }

    pub(super) fn has_done(&self, s: StreamHandle, work: u64) -> bool {
        lock(&self.0).done[s.0] >= work
    }
}

macro_rules! absent {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $out:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $out {
            $(let _ = $arg;)*
            Err(Error::internal(concat!("the model's device has no ", stringify!($name))))
        })*
    };
}

impl Driver for Device {
    fn backend(&self) -> &'static str {
        "model"
    }
    fn version(&self) -> String {
        "model".into()
    }
    fn device_count(&self) -> u32 {
        1
    }
    fn stream_is_capturing(&self, _: DeviceId, _: StreamHandle) -> Result<bool> {
        Ok(false)
    }
    fn graphs_gone(&self) -> Vec<u64> {
        Vec::new()
    }
    fn event_create(&self, _: DeviceId) -> Result<EventHandle> {
        let mut q = lock(&self.0);
        q.created += 1;
        Ok(EventHandle(q.created))
    }
    fn event_record(&self, _: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()> {
        let mut q = lock(&self.0);
        let mut at = Positions::default();
        at[s.0] = q.submitted[s.0];
        q.events.insert(e.0, at);
        Ok(())
    }
    fn context_record(&self, _: DeviceId, e: EventHandle) -> Result<()> {
        let mut q = lock(&self.0);
        let at = q.submitted;
        q.events.insert(e.0, at);
        Ok(())
    }
    fn event_query(&self, _: DeviceId, e: EventHandle) -> Result<bool> {
        let mut q = lock(&self.0);
        let at = q.events.get(&e.0).copied().unwrap_or_default();
        q.done.iter_mut().zip(at).for_each(|(done, at)| *done = at.max(*done));
        Ok(true)
    }

    absent! {
        fn device_props(&self, dev: DeviceId) -> Result<DeviceProps>;
        fn current_device(&self) -> Result<DeviceId>;
        fn set_current_device(&self, dev: DeviceId) -> Result<()>;
        fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool>;
        fn mem_info(&self, dev: DeviceId) -> Result<MemInfo>;
        fn device_sync(&self, dev: DeviceId) -> Result<()>;
        fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64>;
        fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()>;
        fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle>;
        fn phys_release(&self, h: PhysHandle) -> Result<()>;
        fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd>;
        fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle>;
        fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()>;
        fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()>;
        fn unmap(&self, va: u64, size: u64) -> Result<()>;
        fn stream_device(&self, s: StreamHandle) -> Result<DeviceId>;
        fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64>;
        fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle>;
        fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
        fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
        fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()>;
        fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
        fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
        fn capture_begin(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()>;
        fn capture_end(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle>;
        fn capture_info(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>>;
        fn graph_retain(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()>;
        fn graph_launch(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()>;
        fn graph_destroy(&self, dev: DeviceId, g: GraphHandle) -> Result<()>;
        fn graph_nodes(&self, g: GraphHandle) -> Result<GraphNodes>;
        fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()>;
        fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()>;
        fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64>;
        fn host_alloc_on(&self, dev: DeviceId, size: u64, numa: Option<u32>) -> Result<u64>;
        fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()>;
        fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64>;
        fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()>;
    }
}

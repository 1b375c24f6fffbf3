//! A driver around another that asks a hook before every device call.

use super::{
    Call, CaptureInfo, CaptureMode, DeviceProps, Driver, EventHandle, GraphHandle, GraphNodes, MemInfo, PhysFlags,
    PhysHandle, Watch,
};
use crate::base::{DeviceId, Result, StreamHandle};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The hook of a [`Wrap`], asked before each call.
pub trait Hook: Send + Sync {
    /// Runs before `call`; an error is returned in its place, and the wrapped driver never sees the
    /// call.
    fn before(&self, call: Call) -> Result<()>;

    /// Whether `call`, which records an event, is dropped and reported as done.
    #[inline]
    fn drops(&self, _call: Call) -> bool {
        false
    }

    /// The answer to `event_query` in place of the wrapped driver's.
    #[inline]
    fn event_is_done(&self) -> Option<bool> {
        None
    }

    /// Runs before `context_record`, and is held during it; an error is returned in its place.
    #[inline]
    fn open_gate(&self) -> Result<Gate<'_>> {
        Ok(None)
    }

    /// Waits for everything that has been submitted to a device.
    #[inline]
    fn device_sync(&self, inner: &dyn Driver, dev: DeviceId) -> Result<()> {
        inner.device_sync(dev)
    }

    /// The flags with which physical memory is created, given those asked for.
    #[inline]
    fn flags(&self, _dev: DeviceId, flags: PhysFlags) -> PhysFlags {
        flags
    }

    /// The devices that may access a range besides those named.
    #[inline]
    fn also(&self) -> Vec<DeviceId> {
        Vec::new()
    }

    /// Runs after a call that has changed the addresses or memory in use.
    #[inline]
    fn changed(&self, _change: Change) {}

    /// The device of the [`Step`]s of calls that name none.
    #[inline]
    fn device(&self) -> DeviceId {
        DeviceId(0)
    }

    /// The start time of a call, for its [`Step`]; `None` if nobody wants one.
    #[inline]
    fn begins(&self) -> Option<Instant> {
        None
    }

    /// Runs after a successful call for which `begins` returned a time.
    #[inline]
    fn stepped(&self, _step: &Step) {}
}

/// A driver call that has changed the addresses or memory in use, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which call.
    pub call: Call,
    /// The device that the call names, or else the hook.
    pub device: DeviceId,
    /// The first address, if it is about addresses.
    pub address: u64,
    /// Bytes, if the call names them; else 0.
    pub bytes: u64,
    /// The physical memory, if it is about some; else 0.
    pub handle: u64,
    /// How long it took.
    pub took: Duration,
}

/// Receives each [`Step`].
pub trait Observer: Send + Sync {
    /// Whether it wants steps at present.
    fn is_on(&self) -> bool;
    /// A call has succeeded, on this thread.
    fn step(&self, step: &Step);
}

/// Kept while a context marker is being recorded.
pub type Gate<'a> = Option<std::sync::RwLockReadGuard<'a, u64>>;

/// A successful change of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Addresses were reserved: the first, and bytes.
    Reserved(u64, u64),
    /// A whole reservation was given back.
    Freed(u64),
    /// Physical memory was created or imported.
    Created(PhysHandle),
    /// A handle of physical memory was dropped.
    Released(PhysHandle),
    /// Physical memory was mapped: address, bytes, handle.
    Mapped(u64, u64, PhysHandle),
    /// A range was unmapped: address, bytes.
    Unmapped(u64, u64),
}

/// Forwards every call to `inner` once `hook` has let it pass.
pub struct Wrap<H> {
    inner: Arc<dyn Driver>,
    pub(super) hook: H,
}

impl<H: Hook> Wrap<H> {
    pub(super) fn around(inner: Arc<dyn Driver>, hook: H) -> Wrap<H> {
        Wrap { inner, hook }
    }

    /// The driver inside.
    pub fn inner(&self) -> &Arc<dyn Driver> {
        &self.inner
    }
}

impl<H: Hook> Wrap<H> {
    /// Makes a call, and reports its [`Step`] if anybody wants it.
    #[inline]
    fn timed<T>(
        &self,
        (call, device): (Call, DeviceId),
        run: impl FnOnce() -> Result<T>,
        about: impl FnOnce(&T) -> (u64, u64, u64),
    ) -> Result<T> {
        let Some(begin) = self.hook.begins() else { return run() };
        let done = run()?;
        let (address, bytes, handle) = about(&done);
        self.hook.stepped(&Step { call, device, address, bytes, handle, took: begin.elapsed() });
        Ok(done)
    }
}

macro_rules! forward {
    ($($call:ident: fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $out:ty;)*) => {
        $(
            #[inline]
            fn $name(&self $(, $arg: $ty)*) -> $out {
                self.hook.before(Call::$call)?;
                self.inner.$name($($arg),*)
            }
        )*
    };
}

impl<H: Hook> Driver for Wrap<H> {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }
    fn version(&self) -> String {
        self.inner.version()
    }
    fn device_count(&self) -> u32 {
        self.inner.device_count()
    }
    fn adopt_thread(&self, dev: DeviceId) {
        self.inner.adopt_thread(dev);
    }
    fn stream_blocks(&self, dev: DeviceId, s: StreamHandle) -> Result<bool> {
        self.inner.stream_blocks(dev, s)
    }
    fn mistakes(&self) -> u64 {
        self.inner.mistakes()
    }
    fn stream_watch(&self, dev: DeviceId) -> Watch {
        self.inner.stream_watch(dev)
    }
    #[inline]
    fn graphs_gone(&self) -> Vec<u64> {
        self.inner.graphs_gone()
    }

    #[inline]
    fn event_record(&self, dev: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()> {
        self.hook.before(Call::EventRecord)?;
        match self.hook.drops(Call::EventRecord) {
            true => Ok(()),
            false => self.inner.event_record(dev, e, s),
        }
    }

    #[inline]
    fn context_record(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        self.hook.before(Call::ContextRecord)?;
        let _gate = self.hook.open_gate()?;
        match self.hook.drops(Call::ContextRecord) {
            true => Ok(()),
            false => self.inner.context_record(dev, e),
        }
    }

    fn device_sync(&self, dev: DeviceId) -> Result<()> {
        self.hook.before(Call::DeviceSync)?;
        self.hook.device_sync(&*self.inner, dev)
    }

    #[inline]
    fn event_query(&self, dev: DeviceId, e: EventHandle) -> Result<bool> {
        self.hook.before(Call::EventQuery)?;
        match self.hook.event_is_done() {
            Some(done) => Ok(done),
            None => self.inner.event_query(dev, e),
        }
    }

    fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64> {
        self.hook.before(Call::VaReserve)?;
        self.timed((Call::VaReserve, dev), || self.inner.va_reserve(dev, size, align), |&va| (va, size, 0))
            .inspect(|&va| self.hook.changed(Change::Reserved(va, size)))
    }
    fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()> {
        self.hook.before(Call::VaFree)?;
        // Before the call: the addresses may be given out again as soon as it is made.
        self.hook.changed(Change::Freed(va));
        self.timed((Call::VaFree, dev), || self.inner.va_free(dev, va, size), |()| (va, size, 0))
            .inspect_err(|_| self.hook.changed(Change::Reserved(va, size)))
    }
    fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle> {
        self.hook.before(Call::PhysCreate)?;
        let flags = self.hook.flags(dev, flags);
        let made = self.timed((Call::PhysCreate, dev), || self.inner.phys_create(dev, size, flags), |h| (0, size, h.0));
        made.inspect(|&h| self.hook.changed(Change::Created(h)))
    }
    fn phys_release(&self, h: PhysHandle) -> Result<()> {
        self.hook.before(Call::PhysRelease)?;
        // Before the call: the number may be given out again as soon as it is made.
        self.hook.changed(Change::Released(h));
        self.timed((Call::PhysRelease, self.hook.device()), || self.inner.phys_release(h), |()| (0, 0, h.0))
            .inspect_err(|_| self.hook.changed(Change::Created(h)))
    }
    fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle> {
        self.hook.before(Call::PhysImport)?;
        self.inner.phys_import(dev, fd).inspect(|&h| self.hook.changed(Change::Created(h)))
    }
    fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()> {
        self.hook.before(Call::Map)?;
        self.timed((Call::Map, dev), || self.inner.map(dev, va, size, h), |()| (va, size, h.0))
            .inspect(|()| self.hook.changed(Change::Mapped(va, size, h)))
    }
    fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()> {
        self.hook.before(Call::SetAccess)?;
        let mut all = self.hook.also();
        let of = devs.first().copied().unwrap_or(DeviceId(0));
        let about = |(): &()| (va, size, 0);
        if all.is_empty() {
            return self.timed((Call::SetAccess, of), || self.inner.set_access(va, size, devs), about);
        }
        all.extend(devs);
        all.sort_unstable();
        all.dedup();
        self.timed((Call::SetAccess, of), || self.inner.set_access(va, size, &all), about)
    }
    fn unmap(&self, va: u64, size: u64) -> Result<()> {
        self.hook.before(Call::Unmap)?;
        self.timed((Call::Unmap, self.hook.device()), || self.inner.unmap(va, size), |()| (va, size, 0))
            .inspect(|()| self.hook.changed(Change::Unmapped(va, size)))
    }

    forward! {
        DeviceProps: fn device_props(&self, dev: DeviceId) -> Result<DeviceProps>;
        CurrentDevice: fn current_device(&self) -> Result<DeviceId>;
        SetCurrentDevice: fn set_current_device(&self, dev: DeviceId) -> Result<()>;
        CanAccess: fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool>;
        MemInfo: fn mem_info(&self, dev: DeviceId) -> Result<MemInfo>;
        PhysExport: fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd>;
        StreamDevice: fn stream_device(&self, s: StreamHandle) -> Result<DeviceId>;
        StreamId: fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64>;
        StreamIsCapturing: fn stream_is_capturing(&self, dev: DeviceId, s: StreamHandle) -> Result<bool>;
        StreamCreate: fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle>;
        StreamDestroy: fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
        StreamSync: fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
        StreamWait: fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()>;
        EventCreate: fn event_create(&self, dev: DeviceId) -> Result<EventHandle>;
        EventDestroy: fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
        EventSync: fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
        CaptureBegin: fn capture_begin(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()>;
        CaptureEnd: fn capture_end(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle>;
        CaptureInfo: fn capture_info(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>>;
        GraphRetain: fn graph_retain(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()>;
        GraphLaunch: fn graph_launch(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()>;
        GraphDestroy: fn graph_destroy(&self, dev: DeviceId, g: GraphHandle) -> Result<()>;
        GraphNodes: fn graph_nodes(&self, g: GraphHandle) -> Result<GraphNodes>;
        CopyAsync: fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()>;
        SetAsync: fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()>;
        HostAlloc: fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64>;
        HostAllocOn: fn host_alloc_on(&self, dev: DeviceId, size: u64, numa: Option<u32>) -> Result<u64>;
        HostFree: fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()>;
        NativeAlloc: fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64>;
        NativeFree: fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()>;
    }
}

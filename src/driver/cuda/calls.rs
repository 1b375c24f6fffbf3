//! The driver boundary's calls, on CUDA.
//!
//! Each binds the context it needs, enters relaxed capture mode where the call would otherwise be
//! unsafe during a capture, makes one driver call and judges its result. `SAFETY` comments are
//! short here because the reasons are the same throughout: out-parameters point to locals, handles
//! and addresses are live by the preconditions of [`Driver`], and the context that the call needs
//! is current.

use super::code::{is_refusal, CODE_CAPTURE_IMPLICIT, CODE_NOT_READY, CODE_SUCCESS};
use super::device::Bound;
use super::driver::CudaDriver;
use super::error::Subject;
use super::handles::{is_special, raw_event, raw_stream};
use super::props::{physical, POSIX_FD};
use super::{load, watch};
use crate::base::{size, DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{
    CaptureInfo, CaptureMode, DeviceProps, Driver, EventHandle, GraphHandle, GraphNodes, MemInfo, PhysFlags,
    PhysHandle, Watch,
};
use cudarc::driver::sys::{
    CUevent_flags, CUmemAccessDesc, CUmemAccess_flags, CUmemLocation, CUmemLocationType, CUstreamCaptureStatus,
    CUstream_flags,
};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identity of a device's legacy stream is this bit and the device's number. CUDA counts its
/// own stream ids up from small numbers, so the two never meet.
const LEGACY_ID: u64 = 1 << 63;

fn range(va: u64, bytes: u64) -> String {
    format!("{} at {va:#x}", size::human(bytes))
}

impl CudaDriver {
    /// Serialises creating, mapping and unmapping. Concurrent calls now and then corrupt the
    /// driver's own heap: with eight threads stitching and trimming, 4 of 6 runs of
    /// `gpu/torture.cu` ended in a double free inside `cuMemUnmap` (H200, driver 580.159.04), and 0
    /// of 5 with this lock. It costs nothing: the driver serialises these calls anyway, and more
    /// slowly.
    fn one_at_a_time(&self) -> MutexGuard<'static, ()> {
        // The process has one driver heap, however many `CudaDriver`s it has.
        static MAPPING: Mutex<()> = Mutex::new(());
        MAPPING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the device's context if the stream's handle does not identify one.
    #[inline]
    fn bind_if_special(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<Bound<'_>>> {
        if is_special(s) {
            return self.bind(dev).map(Some);
        }
        self.alive().map(|()| None)
    }

    /// Whether a stream is being captured. A special stream needs a context bound.
    #[inline]
    pub(super) fn captured(&self, s: StreamHandle) -> Result<bool> {
        let mut status: u32 = 0;
        let out = (&raw mut status).cast::<CUstreamCaptureStatus>();
        // SAFETY: a live stream, or a special one with a context bound; writes one unsigned int.
        let code = unsafe { (self.api.cuStreamIsCapturing)(raw_stream(s), out) };
        // The legacy stream cannot be captured, and cannot be used while a stream that synchronises
        // with it is being captured.
        if code == CODE_CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.check_stream(code, "cuStreamIsCapturing", || format!("stream {s}"))?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32)
    }
}

impl Driver for CudaDriver {
    fn backend(&self) -> &'static str {
        "cuda"
    }

    fn version(&self) -> String {
        load::version_text(self.version)
    }

    // ---- devices --------------------------------------------------------------------------------

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_props(&self, dev: DeviceId) -> Result<DeviceProps> {
        let device = self.device(dev)?;
        if let Some(props) = device.props.get() {
            return Ok(props.clone());
        }
        self.alive()?;
        let props = self.read_props(dev, device)?;
        Ok(device.props.get_or_init(|| props).clone())
    }

    fn current_device(&self) -> Result<DeviceId> {
        self.device_of_thread()
    }

    fn set_current_device(&self, dev: DeviceId) -> Result<()> {
        self.alive()?;
        let context = self.context(dev)?;
        // SAFETY: a primary context that is never released.
        let code = unsafe { (self.api.cuCtxSetCurrent)(context) };
        self.check(code, "cuCtxSetCurrent", || format!("device {dev}"))
    }

    fn adopt_thread(&self, dev: DeviceId) {
        self.adopt(dev);
    }

    fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool> {
        let (device, peer) = (self.device(dev)?, self.device(owner)?);
        if dev == owner {
            return Ok(true);
        }
        self.alive()?;
        let mut yes = 0;
        // SAFETY: devices of this driver; writes one int.
        let code = unsafe { (self.api.cuDeviceCanAccessPeer)(&mut yes, device.raw, peer.raw) };
        self.check(code, "cuDeviceCanAccessPeer", || format!("device {dev} to memory of device {owner}"))?;
        Ok(yes != 0)
    }

    fn mem_info(&self, dev: DeviceId) -> Result<MemInfo> {
        let _bound = self.bind(dev)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes.
        let code = unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check(code, "cuMemGetInfo", || format!("device {dev}"))?;
        Ok(MemInfo { free: free as u64, total: total as u64 })
    }

    fn device_sync(&self, dev: DeviceId) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: no parameters; the context is current.
        let code = unsafe { (self.api.cuCtxSynchronize)() };
        self.check(code, "cuCtxSynchronize", || format!("device {dev}"))
    }

    // ---- virtual memory -------------------------------------------------------------------------

    fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64> {
        let _bound = self.bind(dev)?;
        let mut va = 0;
        // SAFETY: writes one address; address hint and flags are 0.
        let code = unsafe { (self.api.cuMemAddressReserve)(&mut va, size as usize, align as usize, 0, 0) };
        self.check(code, "cuMemAddressReserve", || {
            format!("{} of addresses aligned to {} on device {dev}", size::human(size), size::human(align))
        })?;
        Ok(va)
    }

    fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()> {
        let _bound = self.bind(dev)?;
        // SAFETY: a whole reservation with nothing mapped in it.
        let code = unsafe { (self.api.cuMemAddressFree)(va, size as usize) };
        self.check(code, "cuMemAddressFree", || range(va, size))
    }

    fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle> {
        let _bound = self.bind(dev)?;
        let device = self.device(dev)?;
        let mut prop = physical(device, flags);
        prop.allocFlags.usage = device.usage.load(Relaxed);
        let mut handle = 0;
        let _one = self.one_at_a_time();
        // SAFETY: a complete description; writes one handle; flags are 0.
        let mut code = unsafe { (self.api.cuMemCreate)(&mut handle, size as usize, &prop, 0) };
        if prop.allocFlags.usage != 0 && is_refusal(code) {
            // The optional usage is not worth failing for.
            prop.allocFlags.usage = 0;
            // SAFETY: as above.
            code = unsafe { (self.api.cuMemCreate)(&mut handle, size as usize, &prop, 0) };
            if code == CODE_SUCCESS {
                device.usage.store(0, Relaxed);
            }
        }
        self.check(code, "cuMemCreate", || format!("{} on device {dev}, {flags:?}", size::human(size)))?;
        Ok(PhysHandle(handle))
    }

    fn phys_release(&self, h: PhysHandle) -> Result<()> {
        let _bound = self.bind_any()?;
        let _one = self.one_at_a_time();
        // SAFETY: a handle not released before.
        let code = unsafe { (self.api.cuMemRelease)(h.0) };
        self.check(code, "cuMemRelease", || format!("handle {:#x}", h.0))
    }

    fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd> {
        let _bound = self.bind_any()?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the result is written as one int; flags are 0.
        let code = unsafe { (self.api.cuMemExportToShareableHandle)((&raw mut fd).cast(), h.0, POSIX_FD, 0) };
        self.check(code, "cuMemExportToShareableHandle", || format!("POSIX descriptor of handle {:#x}", h.0))?;
        if fd < 0 {
            return Err(Error::new(Status::Driver, "cuMemExportToShareableHandle gave no descriptor"));
        }
        // SAFETY: a descriptor just made for the caller, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A program started by this one must not hold the memory by accident.
        // SAFETY: sets a flag of a descriptor that is open.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(fd)
    }

    fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle> {
        let _bound = self.bind(dev)?;
        let mut handle = 0;
        let os_handle = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: for this handle type the descriptor is passed as the pointer's value, and stays
        // the caller's.
        let code = unsafe { (self.api.cuMemImportFromShareableHandle)(&mut handle, os_handle, POSIX_FD) };
        self.check(code, "cuMemImportFromShareableHandle", || {
            format!("descriptor {} on device {dev}; it must come from an exported allocation", fd.as_raw_fd())
        })?;
        Ok(PhysHandle(handle))
    }

    fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _one = self.one_at_a_time();
        // SAFETY: reserved and unmapped addresses, a live handle of exactly this size, offset and
        // flags 0.
        let code = unsafe { (self.api.cuMemMap)(va, size as usize, 0, h.0, 0) };
        self.check(code, "cuMemMap", || format!("handle {:#x}, {}", h.0, range(va, size)))
    }

    fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()> {
        if devs.is_empty() {
            return Ok(());
        }
        // Any context will do. One of `devs` may be a device that the program does not use.
        let _bound = self.bind_any()?;
        let mut access = Vec::with_capacity(devs.len());
        for dev in devs {
            access.push(CUmemAccessDesc {
                location: CUmemLocation {
                    type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id: self.device(*dev)?.raw,
                },
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            });
        }
        let _one = self.one_at_a_time();
        // SAFETY: whole mappings without gaps; the array has as many entries as said.
        let code = unsafe { (self.api.cuMemSetAccess)(va, size as usize, access.as_ptr(), access.len()) };
        self.check(code, "cuMemSetAccess", || format!("{} for {} devices", range(va, size), devs.len()))
    }

    fn unmap(&self, va: u64, size: u64) -> Result<()> {
        let _bound = self.bind_any()?;
        let _one = self.one_at_a_time();
        // SAFETY: whole mappings without gaps, which no device work uses any more.
        let code = unsafe { (self.api.cuMemUnmap)(va, size as usize) };
        self.check(code, "cuMemUnmap", || range(va, size))
    }

    // ---- streams and order ----------------------------------------------------------------------

    fn stream_device(&self, s: StreamHandle) -> Result<DeviceId> {
        if self.devices.len() == 1 {
            return Ok(DeviceId(0));
        }
        // CUDA does not tell a capturing stream's device, but a thread that captures on the stream
        // has that device current.
        if is_special(s) || self.stream_is_capturing(DeviceId(0), s)? {
            return self.device_of_thread();
        }
        self.alive()?;
        self.device_of_stream(s)
    }

    #[inline]
    fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64> {
        if s.canonical() == StreamHandle::LEGACY {
            return Ok(LEGACY_ID | u64::from(dev.0));
        }
        let _bound = self.bind_if_special(dev, s)?;
        // Asking for the id of a stream that is being captured would end the capture.
        if self.captured(s)? {
            return Err(Error::new(Status::Capturing, format!("stream {s} of device {dev} is being captured")));
        }
        let mut id = 0;
        // SAFETY: a live stream, or the per-thread one with a context bound; writes one integer.
        // The id is unique for the life of the program, across devices.
        let code = unsafe { (self.api.cuStreamGetId)(raw_stream(s), &mut id) };
        self.check_stream(code, "cuStreamGetId", || format!("stream {s}, device {dev}"))?;
        if id == 0 || id >= LEGACY_ID {
            return Err(Error::internal(format!("cuStreamGetId gave {id:#x} for stream {s}")));
        }
        Ok(id)
    }

    fn stream_blocks(&self, dev: DeviceId, s: StreamHandle) -> Result<bool> {
        self.alive()?;
        let Some(get_flags) = self.api.cuStreamGetFlags else { return Ok(true) };
        let mut flags = 0;
        // SAFETY: a live created stream; writes one unsigned int.
        let code = unsafe { get_flags(raw_stream(s), &mut flags) };
        self.check_stream(code, "cuStreamGetFlags", || format!("stream {s}, device {dev}"))?;
        Ok(flags & CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 0)
    }

    fn stream_watch(&self, dev: DeviceId) -> Watch {
        self.watch.get_or_init(|| watch::find(self, dev)).clone()
    }

    #[inline]
    fn stream_is_capturing(&self, dev: DeviceId, s: StreamHandle) -> Result<bool> {
        let _bound = self.bind_if_special(dev, s)?;
        self.captured(s)
    }

    fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle> {
        let _bound = self.bind(dev)?;
        let mut stream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.cuStreamCreate)(&mut stream, flags) };
        self.check(code, "cuStreamCreate", || format!("device {dev}"))?;
        Ok(StreamHandle(stream as usize))
    }

    fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        if is_special(s) {
            return Err(Error::invalid(format!("the {s} stream cannot be destroyed")));
        }
        let _bound = self.bind(dev)?;
        // SAFETY: a live stream, which the caller gives up.
        let code = unsafe { (self.api.cuStreamDestroy_v2)(raw_stream(s)) };
        self.check_stream(code, "cuStreamDestroy", || format!("stream {s}, device {dev}"))
    }

    fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: a live stream.
        let code = unsafe { (self.api.cuStreamSynchronize)(raw_stream(s)) };
        self.check_stream(code, "cuStreamSynchronize", || format!("stream {s}, device {dev}"))
    }

    fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        // SAFETY: a live stream and event; flags are 0.
        let code = unsafe { (self.api.cuStreamWaitEvent)(raw_stream(s), raw_event(e), 0) };
        self.check_stream(code, "cuStreamWaitEvent", || format!("stream {s}, device {dev}"))
    }

    fn event_create(&self, dev: DeviceId) -> Result<EventHandle> {
        let _bound = self.bind(dev)?;
        let mut event = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.cuEventCreate)(&mut event, CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) };
        self.check(code, "cuEventCreate", || format!("device {dev}"))?;
        Ok(EventHandle(event as u64))
    }

    fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        // SAFETY: a live event, which the caller gives up.
        let code = unsafe { (self.api.cuEventDestroy_v2)(raw_event(e)) };
        self.check(code, "cuEventDestroy", || format!("device {dev}"))
    }

    fn event_record(&self, dev: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        // SAFETY: a live stream and event.
        let code = unsafe { (self.api.cuEventRecord)(raw_event(e), raw_stream(s)) };
        self.check_stream(code, "cuEventRecord", || {
            format!("stream {s}, device {dev}; a stream must be of the device's primary context")
        })
    }

    fn context_record(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        let Some(record) = self.api.cuCtxRecordEvent else {
            return Err(Error::new(
                Status::Unsupported,
                format!("the driver is for {}; cuCtxRecordEvent needs CUDA 12.5 or later", self.version()),
            ));
        };
        let _bound = self.bind(dev)?;
        // No capture mode makes this call safe while a stream of the device is capturing.
        // SAFETY: the primary context and a live event made in it.
        let code = unsafe { record(self.context(dev)?, raw_event(e)) };
        self.check(code, "cuCtxRecordEvent", || format!("device {dev}"))
    }

    fn event_query(&self, dev: DeviceId, e: EventHandle) -> Result<bool> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: a live event.
        match unsafe { (self.api.cuEventQuery)(raw_event(e)) } {
            CODE_SUCCESS => Ok(true),
            CODE_NOT_READY => Ok(false),
            code => Err(self.failure(code, Subject::Other, "cuEventQuery", &format!("device {dev}"))),
        }
    }

    fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: a live event.
        let code = unsafe { (self.api.cuEventSynchronize)(raw_event(e)) };
        self.check(code, "cuEventSynchronize", || format!("device {dev}"))
    }

    // ---- captures and graphs --------------------------------------------------------------------

    fn capture_begin(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.begin_capture(dev, s, mode)
    }

    fn capture_end(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle> {
        self.end_capture(dev, s)
    }

    fn capture_info(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>> {
        self.info_of_capture(dev, s)
    }

    fn graph_retain(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()> {
        self.tie_token(dev, graph, token)
    }

    fn graphs_gone(&self) -> Vec<u64> {
        self.graphs.gone.take()
    }

    fn graph_launch(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()> {
        self.launch_graph(dev, g, s)
    }

    fn graph_destroy(&self, dev: DeviceId, g: GraphHandle) -> Result<()> {
        self.destroy_graph(dev, g)
    }

    fn graph_nodes(&self, g: GraphHandle) -> Result<GraphNodes> {
        self.count_nodes(g)
    }

    // ---- data -----------------------------------------------------------------------------------

    fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: the caller vouches for both ranges; unified addressing tells CUDA where each
        // lives.
        let code = unsafe { (self.api.cuMemcpyAsync)(dst, src, size as usize, raw_stream(s)) };
        self.check_stream(code, "cuMemcpyAsync", || {
            format!("{} from {src:#x} to {dst:#x}, stream {s}, device {dev}", size::human(size))
        })
    }

    fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        // SAFETY: the caller vouches for the range.
        let code = unsafe { (self.api.cuMemsetD8Async)(dst, byte, size as usize, raw_stream(s)) };
        self.check_stream(code, "cuMemsetD8Async", || format!("{}, stream {s}, device {dev}", range(dst, size)))
    }

    fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64> {
        self.pin(dev, size)
    }

    fn host_alloc_on(&self, dev: DeviceId, size: u64, numa: Option<u32>) -> Result<u64> {
        self.pin_on(dev, size, numa)
    }

    fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()> {
        self.unpin(dev, ptr)
    }

    // ---- the driver's own allocator -------------------------------------------------------------

    fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        self.prepare_native(dev, self.device(dev)?)?;
        let mut ptr = 0;
        // SAFETY: a live stream; writes one address.
        let code = unsafe { (self.api.cuMemAllocAsync)(&mut ptr, size as usize, raw_stream(s)) };
        self.check_stream(code, "cuMemAllocAsync", || format!("{} on stream {s}, device {dev}", size::human(size)))?;
        Ok(ptr)
    }

    fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()> {
        let _bound = self.bind(dev)?;
        let _relaxed = self.relax()?;
        // SAFETY: a pointer from `native_alloc`, which the caller gives up, and a live stream.
        let code = unsafe { (self.api.cuMemFreeAsync)(ptr, raw_stream(s)) };
        self.check_stream(code, "cuMemFreeAsync", || format!("{ptr:#x} on stream {s}, device {dev}"))
    }
}

//! The boundary to CUDA and to the operating system: one table of calls with the preconditions of
//! each.
//!
//! Everything above this folder is written against [`Driver`]; only the files here talk to a real
//! device. There are two implementations: [`cuda`] (a real GPU) and [`host`] (a device made of
//! ordinary memory that enforces CUDA's rules); and two wrappers around any other ([`wrap`]):
//! [`counted`] counts calls, [`fault`] fails chosen ones.
//!
//! Rules that hold for every call:
//! - Any thread may call; implementations do their own locking and bind the context they need. They
//!   leave the calling thread's current context and capture mode as they found them, except for
//!   [`Driver::adopt_thread`].
//! - None of the virtual-memory calls waits for the device. Calls that may block say so.
//! - No call invalidates a stream capture, except where it says so. "Illegal during a capture"
//!   means that the call fails with `Capturing` and may invalidate every capture that forbids it
//!   ([`CaptureMode`]).
//! - On error nothing has happened.
//! - A `dev` passed with a stream or an event is the device that the stream or event belongs to.
//! - A stream handle must be alive (CUDA crashes on a destroyed one; the host device returns
//!   `InvalidStream`). So callers use a handle only within the API call in which the user passed
//!   it.

pub mod call;
pub mod counted;
pub mod cuda;
pub mod disk;
pub mod exit;
pub mod fault;
pub mod graph;
pub mod host;
pub mod ledger;
pub mod numa;
pub mod nvtx;
pub mod pages;
pub mod process;
pub mod thread_end;
pub mod watch;
pub mod words;
pub mod wrap;

pub use call::Call;
pub use counted::Counted;
pub use fault::{Fault, FaultRule};
pub use graph::{CaptureInfo, CaptureMode, GraphHandle, GraphNodes};
pub use ledger::Ledger;
pub use watch::Watch;
pub use words::{empty_cells, Words};

use crate::base::{DeviceId, Result, StreamHandle};
use std::os::fd::OwnedFd;

/// One physical allocation (a `CUmemGenericAllocationHandle`): whole, never split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysHandle(pub u64);

/// An event (a `CUevent`), created without timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventHandle(pub u64);

/// Facts about one device, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProps {
    /// The device's product name.
    pub name: String,
    /// Physical memory in bytes.
    pub total_bytes: u64,
    /// Granularity of physical allocations and mappings, bytes, a power of two (2 MiB on every CUDA
    /// device so far).
    pub granularity: u64,
    /// Whether virtual memory management works on it; the pool needs it.
    pub vmm: bool,
    /// Whether physical memory can be exported as a POSIX file descriptor.
    pub posix_fd: bool,
    /// Whether physical memory can be made `gpuDirectRDMACapable`.
    pub rdma: bool,
    /// The most mappings within the system's limits; no limit is known on CUDA.
    pub max_mappings: usize,
    /// Compute capability `(major, minor)`; `(0, 0)` on the host device.
    pub compute: (u32, u32),
    /// The NUMA node that it is near to; `None` where that is not known.
    pub numa: Option<u32>,
}

/// What a physical allocation must support besides mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PhysFlags {
    /// Exportable as a POSIX file descriptor.
    pub posix_fd: bool,
    /// Usable for RDMA (`gpuDirectRDMACapable`).
    pub rdma: bool,
}

/// Device memory as the driver reports it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Bytes that nobody uses.
    pub free: u64,
    /// All bytes of the device.
    pub total: u64,
}

/// The calls an allocator is built from. See the module text for the rules that hold for all of
/// them.
pub trait Driver: Send + Sync {
    /// `"cuda"` or `"host"` (a wrapper answers for what it wraps).
    fn backend(&self) -> &'static str;
    /// The driver's version for people, e.g. `CUDA 13.0`.
    fn version(&self) -> String;

    // ---- devices --------------------------------------------------------------------------------
    /// How many devices there are; at least one.
    fn device_count(&self) -> u32;
    /// Facts about a device.
    fn device_props(&self, dev: DeviceId) -> Result<DeviceProps>;
    /// The calling thread's current device (device 0 when the thread has none).
    fn current_device(&self) -> Result<DeviceId>;
    /// Makes `dev` the calling thread's current device.
    fn set_current_device(&self, dev: DeviceId) -> Result<()>;
    /// The calling thread begins to allocate on `dev`. A thread without a current device that needs
    /// one to use the memory gets the one the CUDA runtime would give it, device 0, and never
    /// another.
    fn adopt_thread(&self, _dev: DeviceId) {}
    /// Whether `dev` can access memory that lives on `owner` (true when they are equal).
    fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool>;
    /// Free and total memory. Legal during capture.
    fn mem_info(&self, dev: DeviceId) -> Result<MemInfo>;
    /// Waits until everything submitted to `dev` is done. Blocks. Illegal during a capture on any
    /// of its streams, in any mode, and during those of other devices that forbid it.
    fn device_sync(&self, dev: DeviceId) -> Result<()>;

    /// How many mistakes the device has found in the program's work: races, accesses to missing
    /// memory. Only a simulated device looks for them; others return 0.
    fn mistakes(&self) -> u64 {
        0
    }

    // ---- virtual memory -------------------------------------------------------------------------
    /// Reserves `size` bytes of addresses (multiple of the granularity, not 0), aligned to `align`
    /// (power of two).
    fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64>;
    /// Gives back a whole reservation in which nothing is mapped.
    fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()>;
    /// Creates `size` bytes of physical memory (multiple of the granularity, not 0). `OutOfMemory`
    /// when the device is full.
    fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle>;
    /// Drops the handle. The memory itself goes when its last mapping goes. Passing a dropped
    /// handle is an error.
    fn phys_release(&self, h: PhysHandle) -> Result<()>;
    /// A file descriptor for an allocation created with `PhysFlags::posix_fd`; the caller owns it.
    fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd>;
    /// Opens an exported allocation (possibly from another process). The caller keeps the
    /// descriptor.
    fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle>;
    /// Maps the whole of `h` at `va`: inside one reservation, nothing mapped there, `size` exactly
    /// the handle's size. One handle may be mapped at several addresses. Not accessible before
    /// `set_access`.
    fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()>;
    /// Makes `[va, va + size)` readable and writable by `devs` (not empty), besides the devices
    /// that can access it already. The range consists of whole mappings, no gaps.
    fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()>;
    /// Unmaps `[va, va + size)`, whole mappings without gaps. Device work that still uses these
    /// addresses faults, so the caller has waited for it.
    fn unmap(&self, va: u64, size: u64) -> Result<()>;

    // ---- streams and order ----------------------------------------------------------------------
    /// The device a stream belongs to. The legacy and per-thread streams belong to the current
    /// device.
    fn stream_device(&self, s: StreamHandle) -> Result<DeviceId>;
    /// The stream's identity: never reused within the process, unlike the handle, and never 0.
    /// `PER_THREAD` has a different identity on each thread. Identities of different devices never
    /// coincide. `Capturing` while the stream is being captured, when CUDA has no answer; the
    /// capture goes on.
    fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64>;
    /// How to see, without a call, which created stream of `dev` a handle is at present. Asked once
    /// by each pool.
    fn stream_watch(&self, _dev: DeviceId) -> Watch {
        Watch::Ask
    }
    /// Whether a created stream synchronises with the legacy default stream. CUDA invalidates a
    /// capture in progress on it.
    fn stream_blocks(&self, _dev: DeviceId, _s: StreamHandle) -> Result<bool> {
        Ok(false)
    }
    /// Whether the stream is being captured into a graph. Legal during capture.
    fn stream_is_capturing(&self, dev: DeviceId, s: StreamHandle) -> Result<bool>;
    /// Creates a stream that does not synchronise with the legacy default stream.
    fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle>;
    /// Destroys a stream; work already submitted to it still runs. The handle may be given out
    /// again at once.
    fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
    /// Waits until everything submitted to `s` is done. Blocks. Illegal while `s` is being
    /// captured, and during captures on other streams that forbid it.
    fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()>;
    /// Makes later work on `s` wait, on the device, for the mark that `e` has now; recording it
    /// again changes nothing for this wait. An event never recorded delays nothing. Illegal while
    /// `s` is being captured: fails, and invalidates the capture.
    fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()>;
    /// Creates an event. Legal during capture.
    fn event_create(&self, dev: DeviceId) -> Result<EventHandle>;
    /// Destroys an event; legal while it is pending.
    fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
    /// Marks the point on `s` after everything submitted so far. `s` must not be capturing (the
    /// mark would become a node of the graph): the host device then fails. Recording again moves
    /// the mark.
    fn event_record(&self, dev: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()>;
    /// Marks everything submitted to the device so far, on every stream, dead ones too. While a
    /// capture is in progress it **fails and invalidates** the capture, whatever the thread's
    /// capture mode, so callers make sure that there is none. `Unsupported` where the driver lacks
    /// it (CUDA before 12.5).
    fn context_record(&self, dev: DeviceId, e: EventHandle) -> Result<()>;
    /// Whether everything before the mark is done. An event never recorded is done. Does not
    /// invalidate captures.
    fn event_query(&self, dev: DeviceId, e: EventHandle) -> Result<bool>;
    /// Waits for the mark. Blocks. Legal during capture.
    fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()>;

    // ---- captures and graphs --------------------------------------------------------------------
    /// Starts capturing `s`: work submitted to it becomes nodes of a graph and does not run.
    /// `Invalid` for the legacy default stream, `Capturing` if it is being captured already;
    /// neither harms a capture in progress.
    fn capture_begin(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()>;
    /// Ends the capture that was begun on `s`, and makes its graph ready to be launched. Only the
    /// thread that began it may, unless the mode was `Relaxed`; other threads get `Capturing`, yet
    /// the capture ends and its work is lost (driver 580.159 does so). `Invalid` if `s` is not
    /// being captured. An invalidated capture gives `Capturing`, and a graph that cannot be made
    /// ready gives the driver's error; either way the captured work is lost and `s` is no longer
    /// being captured.
    fn capture_end(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle>;
    /// The capture that `s` is part of, `None` when it is part of none. `Capturing` when that
    /// capture has been invalidated and not ended. Legal during capture.
    fn capture_info(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>>;
    /// Ties `token` to a graph that is being captured (as `capture_info` just gave it):
    /// [`Driver::graphs_gone`] gives it back when the graph and everything made from it are gone,
    /// even if the capture fails. A graph can have several tokens. Legal during capture, on a
    /// thread that orders this with the captured work. `Unsupported` where the driver lacks it.
    fn graph_retain(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()>;
    /// The tokens whose graphs have gone since the last call, each once. A graph is gone when its
    /// executable copies and their launches are gone too; the driver may take its time. Reaches no
    /// device; costs one load when there are none.
    fn graphs_gone(&self) -> Vec<u64>;
    /// Runs the graph's work on `s`, a stream of the device that it was captured on, after
    /// everything submitted to `s` so far and after earlier launches of this graph on any stream.
    /// The memory that the work uses must exist when it runs. `Capturing` if `s` is being captured,
    /// without harm to that capture.
    fn graph_launch(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()>;
    /// Destroys a graph. Launches in flight still run.
    fn graph_destroy(&self, dev: DeviceId, g: GraphHandle) -> Result<()>;
    /// Counts a graph's nodes.
    fn graph_nodes(&self, g: GraphHandle) -> Result<GraphNodes>;

    // ---- data -----------------------------------------------------------------------------------
    /// Copies `size` bytes, in stream order, between any two of: device memory, pinned host memory,
    /// pageable host memory. The ranges do not overlap. When the call returns, pageable memory that
    /// was read may be changed, and pageable memory that was written holds the data. While `s` is
    /// being captured neither may be pageable: the host device then fails, and invalidates the
    /// capture.
    fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()>;
    /// Fills device memory with `byte`, in stream order.
    fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()>;
    /// Page-locked host memory that `dev` can copy to and from at full speed. Blocks (0.3 s a GiB
    /// on CUDA).
    fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64>;
    /// Like [`Driver::host_alloc`], but faster (0.03 s a GiB on CUDA), and near the NUMA node if
    /// the system has memory left there. Aligned to its size rounded up to a power of two, at most
    /// 2 MiB. A forked child does not have it.
    fn host_alloc_on(&self, dev: DeviceId, size: u64, numa: Option<u32>) -> Result<u64>;
    /// Frees page-locked memory of either kind, on any device. Blocks.
    fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()>;

    // ---- the driver's own allocator, for comparison and where it alone manages memory -----------
    /// `cudaMallocAsync` from the device's default pool.
    fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64>;
    /// `cudaFreeAsync`.
    fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()>;
}

/// Makes a stream of device `to` wait for everything submitted to `on` of device `from`, which may
/// be the same device. Neither stream is being captured.
pub fn wait_for_stream(
    driver: &dyn Driver,
    (to, stream): (DeviceId, StreamHandle),
    (from, on): (DeviceId, StreamHandle),
) -> Result<()> {
    let event = driver.event_create(from)?;
    let waits = driver.event_record(from, event, on).and_then(|()| driver.stream_wait(to, stream, event));
    // A pending event may be destroyed: the wait keeps what it needs. The first failure is
    // returned.
    let gone = driver.event_destroy(from, event);
    waits.and(gone)
}

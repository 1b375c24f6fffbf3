//! Starting
//!
//! Nothing happens when the library loads. The first call that needs gpumem's state starts it with
//! the settings of the environment: GPUMEM_BACKEND, GPUMEM_VA_SIZE, GPUMEM_PAGE_SIZE,
//! GPUMEM_PREALLOC, GPUMEM_LIMIT, GPUMEM_SLACK, GPUMEM_REUSE, GPUMEM_TRIM_THRESHOLD,
//! GPUMEM_TRIM_INTERVAL, GPUMEM_STREAM_CHECK, GPUMEM_ARENA_DEBUG, GPUMEM_ARENA_QUARANTINE,
//! GPUMEM_CAPTURE, GPUMEM_TIERS, GPUMEM_PINNED_BLOCKS, GPUMEM_PINNED_LIMIT, GPUMEM_DISK,
//! GPUMEM_DOWNGRADE, GPUMEM_MOVER, GPUMEM_RECORD, GPUMEM_RECORD_STACKS, GPUMEM_SNAPSHOT_ON,
//! GPUMEM_SNAPSHOT, GPUMEM_SNAPSHOT_EVENTS, GPUMEM_STATS_PAGE, GPUMEM_NVTX, GPUMEM_LOG,
//! GPUMEM_POOL, and for the host device GPUMEM_HOST_DEVICES, GPUMEM_HOST_BYTES, GPUMEM_HOST_MODE
//! and GPUMEM_HOST_SEED. gpumem_init starts it with the program's own settings, which override the
//! environment's. While a variable does not parse, every such call returns GPUMEM_ERROR_CONFIG,
//! gpumem_init too, even where its options set the field; while the driver does not start,
//! GPUMEM_ERROR_DRIVER or GPUMEM_ERROR_NO_DEVICE. There is nothing to shut down: at exit the memory
//! goes with the process.

use crate::capi::call::options::extensible;
use std::ffi::c_char;

/// CUDA when a driver and a device exist, else the host device, with one line on stderr.
pub const GPUMEM_BACKEND_AUTO: i32 = 1;
/// CUDA or an error.
pub const GPUMEM_BACKEND_CUDA: i32 = 2;
/// A device made of ordinary memory that enforces CUDA's rules, for machines without a GPU.
pub const GPUMEM_BACKEND_HOST: i32 = 3;

/// Slack grows with how much memory the workload has moved, up to 23 %. None for work that
/// repeats.
pub const GPUMEM_SLACK_AUTO: i32 = -1;
/// Next to no slack: memory is moved rather than added. A stream with less than 1 GiB may still add
/// some where it keeps running short.
pub const GPUMEM_SLACK_TIGHT: i32 = -2;

/// Another stream gets freed memory only once the device has passed the free.
pub const GPUMEM_REUSE_SETTLED: i32 = 1;
/// As a last resort another stream gets freed memory earlier, and waits on the device for the free.
/// The default.
pub const GPUMEM_REUSE_WAIT: i32 = 2;

/// Nothing on stderr, as GPUMEM_LOG=0. The other constants equal the variable's numbers.
pub const GPUMEM_LOG_NOTHING: i32 = -1;
/// Warnings on stderr: the default.
pub const GPUMEM_LOG_WARNINGS: i32 = 1;
/// Warnings and slow-path decisions on stderr.
pub const GPUMEM_LOG_DECISIONS: i32 = 2;

/// Every request goes to the pool.
pub const GPUMEM_POOL_ON: i32 = 1;
/// Every request goes straight to the driver's own allocator, for comparison.
pub const GPUMEM_POOL_OFF: i32 = 2;

/// Reads where the driver keeps the stream's state, if that place was found at the start, else asks
/// the driver. The default.
pub const GPUMEM_STREAM_CHECK_AUTO: i32 = 1;
/// Asks the driver on every allocation, with two calls.
pub const GPUMEM_STREAM_CHECK_DRIVER: i32 = 2;

/// Does not look for late uses of an arena's memory. The default.
pub const GPUMEM_ARENA_DEBUG_OFF: u32 = 1;
/// Arenas remember what they free, for gpumem_check. GPUMEM_ARENA_DEBUG_ABORT, _POISON and _UNMAP
/// imply it.
pub const GPUMEM_ARENA_DEBUG_CHECK: u32 = 2;
/// The first late use found aborts the process.
pub const GPUMEM_ARENA_DEBUG_ABORT: u32 = 4;
/// Freed memory is filled, kept for a while, and checked for writes. Not with
/// GPUMEM_ARENA_DEBUG_UNMAP.
pub const GPUMEM_ARENA_DEBUG_POISON: u32 = 8;
/// Freed memory is unmapped and its addresses are kept for a while, so that any use faults.
pub const GPUMEM_ARENA_DEBUG_UNMAP: u32 = 16;

/// Only captures begun with gpumem_capture_begin get memory of their own: the default.
pub const GPUMEM_CAPTURE_DETECTION_OFF: i32 = 1;
/// Every stream that is being captured gets memory of its own.
pub const GPUMEM_CAPTURE_DETECTION_AUTO: i32 = 2;

/// Spaces count allocations from the first call about spaces or reservations: the default.
pub const GPUMEM_TIERS_OFF: i32 = 1;
/// Spaces count allocations from the first allocation.
pub const GPUMEM_TIERS_ON: i32 = 2;

/// Evictable memory moves out only on request, or when something else needs the room.
pub const GPUMEM_MOVER_OFF: i32 = 1;
/// Once there is evictable memory, a thread moves it out of spaces that are too full: the default.
pub const GPUMEM_MOVER_ON: i32 = 2;

/// No automatic snapshot: the default.
pub const GPUMEM_SNAPSHOT_ON_NOTHING: u32 = 1;
/// A snapshot when a request first fails for lack of memory. The last events are kept for it, so
/// each malloc and free takes some tens of nanoseconds longer, unless there are to be no events.
pub const GPUMEM_SNAPSHOT_ON_OOM: u32 = 2;
/// A snapshot at the process's end.
pub const GPUMEM_SNAPSHOT_ON_EXIT: u32 = 4;

/// For gpumem_context_options.record_stacks: record no stacks.
pub const GPUMEM_RECORD_STACKS_NONE: u32 = u32::MAX;
/// For gpumem_context_options.snapshot_events: snapshots without events.
pub const GPUMEM_SNAPSHOT_EVENTS_NONE: u32 = u32::MAX;

/// No counters are published: the default.
pub const GPUMEM_STATS_PAGE_OFF: i32 = 1;
/// A thread publishes counters for gpumem top.
pub const GPUMEM_STATS_PAGE_ON: i32 = 2;

/// No NVTX ranges: the default.
pub const GPUMEM_NVTX_OFF: i32 = 1;
/// The slow path makes NVTX ranges, for the tool that NVTX_INJECTION64_PATH names.
pub const GPUMEM_NVTX_ON: i32 = 2;

/// The host device runs work when it is submitted: the default, unless there is a seed.
pub const GPUMEM_HOST_MODE_EAGER: i32 = 1;
/// The host device runs work late and in surprising orders, and reports mistakes on stderr: races,
/// work on memory that is not mapped, and memory unmapped while in use.
pub const GPUMEM_HOST_MODE_SIMULATE: i32 = 2;
/// As GPUMEM_HOST_MODE_SIMULATE, and the first mistake aborts the process.
pub const GPUMEM_HOST_MODE_ABORT: i32 = 3;

/// For gpumem_context_options.pinned_chunks: pin nothing ahead of need.
pub const GPUMEM_PINNED_CHUNKS_NONE: u32 = u32::MAX;

/// Settings, for gpumem_init and from gpumem_settings_get. A field that is 0 means what the
/// environment says, or the default where it says nothing.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_context_options {
    /// sizeof(gpumem_context_options).
    pub size: u32,
    /// GPUMEM_BACKEND_*.
    pub backend: i32,
    /// GPUMEM_REUSE_*: how memory freed on another stream is reused.
    pub reuse: i32,
    /// GPUMEM_LOG_*: the numbers of GPUMEM_LOG, except that GPUMEM_LOG_NOTHING stands for its 0.
    pub log: i32,
    /// GPUMEM_POOL_*.
    pub pool: i32,
    /// Memory mapped when a pool starts, as a percentage of what is then free, 1 to 100. Not with
    /// prealloc_bytes.
    pub prealloc_percent: u32,
    /// Memory mapped when a pool starts, bytes. Not with prealloc_percent.
    pub prealloc_bytes: u64,
    /// Addresses reserved at a time per device, bytes, a multiple of 2 MiB up to 64 TiB.
    pub va_size: u64,
    /// Smallest physical allocation, bytes, a power of two up to 1 GiB. It is never smaller than
    /// the device's granularity.
    pub page_size: u64,
    /// Most bytes a pool may map on one device. Not with limit_percent.
    pub limit_bytes: u64,
    /// After a free that leaves more unused mapped bytes than this, memory goes back to the device.
    pub trim_threshold: u64,
    /// Host device only: memory of each simulated device, bytes. Only touched pages take memory.
    pub host_bytes: u64,
    /// Host device only: the seed that chooses the order in which its streams run, with
    /// GPUMEM_HOST_MODE_SIMULATE or _ABORT. It implies the first where no mode is given. A program
    /// that calls from one thread gets the same order from the same seed.
    pub host_seed: u64,
    /// Host device only: how many devices to simulate.
    pub host_devices: u32,
    /// Most memory a pool may map on one device, as a percentage of the device's, 1 to 100. Not
    /// with limit_bytes.
    pub limit_percent: u32,
    /// The interval, milliseconds, at which a gpumem thread gives back free memory that has gone
    /// unused for as long, on every device in use. It keeps trim_threshold bytes. 0 means no such
    /// thread. While the thread has something to give back, it records a marker on the device. That
    /// would break a capture on a stream that gpumem has never been called with; it does not happen
    /// while a stream that gpumem knows is being captured.
    pub trim_interval_ms: u64,
    /// GPUMEM_STREAM_CHECK_*: how gpumem learns which stream a handle names, and whether it is
    /// being captured.
    pub stream_check: i32,
    /// GPUMEM_ARENA_DEBUG_*, or-ed together: how to find uses of memory whose arena has ended.
    pub arena_debug: u32,
    /// How much of what arenas have freed is kept for arena_debug: bytes of memory with
    /// GPUMEM_ARENA_DEBUG_POISON, of addresses with GPUMEM_ARENA_DEBUG_UNMAP.
    pub arena_quarantine: u64,
    /// GPUMEM_CAPTURE_DETECTION_*: whether every captured stream gets memory of its own.
    pub capture_detection: i32,
    /// GPUMEM_TIERS_*: when spaces begin to count allocations.
    pub tiers: i32,
    /// GPUMEM_MOVER_*: whether a thread moves out of spaces that are too full.
    pub mover: i32,
    /// Most pinned memory of a NUMA node, as a percentage of the node's, 1 to 100. Not with
    /// pinned_limit_bytes.
    pub pinned_limit_percent: u32,
    /// Most pinned memory of a NUMA node, bytes. Not with pinned_limit_percent.
    pub pinned_limit_bytes: u64,
    /// Size of a block of pinned memory, bytes, a power of two from 4 KiB to 1 GiB.
    pub pinned_block_bytes: u64,
    /// How many blocks make a chunk, the unit of pinning: 1 to 1048576.
    pub pinned_blocks: u32,
    /// How many chunks are pinned at first need, up to 1048576, or GPUMEM_PINNED_CHUNKS_NONE.
    pub pinned_chunks: u32,
    /// Directories to move memory to: absolute paths separated by ;, each followed by = and a size
    /// if it has a limit, such as "/scratch=200G;/mnt/nvme". NULL means those of GPUMEM_DISK.
    pub disk: *const c_char,
    /// The use at which data starts to move out of a space, as a fraction of its limit: above 0, up
    /// to 1. 0 takes this and downgrade_stop from GPUMEM_DOWNGRADE.
    pub downgrade_trigger: f64,
    /// The use at which moving out stops, as a fraction of the limit, from 0 to downgrade_trigger.
    /// Must be 0 when that is 0.
    pub downgrade_stop: f64,
    /// Host device only: GPUMEM_HOST_MODE_*, which says when it runs submitted work.
    pub host_mode: i32,
    /// GPUMEM_SLACK_*, or a percentage from 1 to 100: how much more than the peak of live memory
    /// may stay mapped, of each stream's heap and of all together, so that memory moves less often.
    pub slack: i32,
    /// The file in which every allocation is recorded. NULL means that of GPUMEM_RECORD, if there
    /// is one.
    pub record: *const c_char,
    /// Where automatic snapshots go. NULL means where GPUMEM_SNAPSHOT says.
    pub snapshot: *const c_char,
    /// Frames of the stack that is recorded with each allocation, up to 256, or
    /// GPUMEM_RECORD_STACKS_NONE.
    pub record_stacks: u32,
    /// GPUMEM_SNAPSHOT_ON_*, or-ed together: when to write a snapshot automatically.
    pub snapshot_on: u32,
    /// How many of the last events are in a snapshot, up to 65536, or GPUMEM_SNAPSHOT_EVENTS_NONE.
    pub snapshot_events: u32,
    /// GPUMEM_STATS_PAGE_*: whether counters are published for gpumem top.
    pub stats_page: i32,
    /// GPUMEM_NVTX_*: whether growths, stitches, trims and evictions are NVTX ranges.
    pub nvtx: i32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: repr(C), a u32 first; the sum of its fields shows no padding. Any bits are a value:
// numbers, and a pointer that the caller's contract makes NULL or a string.
extensible!(
    gpumem_context_options,
    88,
    6 * 4 + 7 * 8 + 2 * 4 + 8 + 2 * 4 + 8 + 4 * 4 + 2 * 8 + 2 * 4 + 3 * 8 + 2 * 4 + 2 * 8 + 6 * 4
);

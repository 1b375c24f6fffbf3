//! One device's memory.

use crate::base::{DeviceId, StreamHandle};

/// Special needs of one allocation, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllocFlags(pub u32);

impl AllocFlags {
    /// One physical handle, never remapped (NCCL, RDMA, IPC).
    pub const SINGLE_HANDLE: AllocFlags = AllocFlags(1);
    /// Single handle that can be exported as a file descriptor.
    pub const EXPORTABLE: AllocFlags = AllocFlags(2);
    /// The bytes after the allocation are unmapped, so overruns fault.
    pub const GUARD: AllocFlags = AllocFlags(4);
    /// Every bit that has a meaning.
    pub const ALL: AllocFlags = AllocFlags(7);
}

/// Facts about one live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocInfo {
    /// First byte.
    pub base: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes usable from `base`.
    pub usable: u64,
    /// The device it lives on.
    pub device: DeviceId,
    /// The stream it was allocated on, as the caller named it.
    pub stream: StreamHandle,
    /// A number no other allocation of this process has.
    pub id: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The flags it was made with.
    pub flags: AllocFlags,
}

/// One pool's counters, bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Addresses reserved.
    pub reserved: u64,
    /// Physical memory mapped: `live + cached + free`.
    pub mapped: u64,
    /// The most `mapped` ever was.
    pub peak_mapped: u64,
    /// Bytes callers asked for and have not freed.
    pub requested: u64,
    /// Bytes handed out, rounding included.
    pub live: u64,
    /// The most `live` was at any point where it was observed (every growth and every call of this).
    pub peak_live: u64,
    /// Free mapped bytes usable by their own stream at once.
    pub free: u64,
    /// Free mapped bytes that wait for another stream.
    pub waiting: u64,
    /// Unmapped addresses inside the reservation.
    pub holes: u64,
    /// Old addresses of moved memory, not yet unmapped.
    pub zombies: u64,
    /// The largest request that could be met without growing, allowing for remapping.
    pub largest_without_growth: u64,
    /// The largest free region usable with no driver call.
    pub largest_free: u64,
    /// Live allocations, a count.
    pub allocations: u64,
    /// Allocations ever made, a count.
    pub mallocs: u64,
    /// Frees ever done, a count.
    pub frees: u64,
    /// Extents mapped, a count.
    pub extents: u64,
    /// Extents moved to other addresses so far, a count.
    pub moved: u64,
    /// Stitches so far, a count.
    pub stitches: u64,
    /// Growths so far, a count.
    pub growths: u64,
    /// Streams known, a count.
    pub streams: u64,
    /// Frees refused as double, a count.
    pub double_frees: u64,
    /// Pointers refused as unknown, a count.
    pub unknown_pointers: u64,
    /// Requests refused for lack of memory, a count.
    pub out_of_memory: u64,
}

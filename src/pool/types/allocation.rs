//! What is allocated: requests, flags, and facts about live allocations.

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::pool::types::receipts::{Counter, Receipt, Slip};
use crate::pool::types::scope::Scope;
use crate::pool::types::units::SMALL_MIN;
use std::cell::Cell;
use std::sync::Arc;

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

    /// Physical memory of its own that may be given up and come back at the same addresses.
    pub const EVICTABLE: AllocFlags = AllocFlags(8);

    /// Physical memory and addresses that nothing else shares. The pool's own: not accepted from C,
    /// and not shown.
    pub const SEPARATE: AllocFlags = AllocFlags(1 << 31);

    /// Every bit that has a meaning to users.
    pub const ALL: AllocFlags = AllocFlags(15);

    /// Whether any bit of the other is set.
    pub fn has(self, other: AllocFlags) -> bool {
        self.0 & other.0 != 0
    }
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

/// What to allocate from a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocRequest<'a> {
    /// Bytes; 0 gives a unique pointer that must be freed.
    pub size: u64,
    /// Alignment in bytes, a power of two; 0 means 256.
    pub align: u64,
    /// The stream whose order the allocation follows.
    pub stream: StreamHandle,
    /// Special needs.
    pub flags: AllocFlags,
    /// A number the caller chooses, shown in dumps.
    pub tag: u64,
    /// The scope it joins.
    pub scope: Option<&'a Arc<Scope>>,
    /// Its receipt, which leaves the slip when the allocation is made.
    pub slip: Option<&'a Slip>,
    /// If there, the request fails rather than end a capture as the last resort, and sets this if
    /// it would have: the caller can make room first.
    pub spared: Option<&'a Cell<bool>>,
}

impl AllocRequest<'_> {
    /// The receipt of an allocation just made: the one the request brought, or else the counter's
    /// for so many bytes.
    pub(crate) fn receipt(&self, counter: Option<&Arc<dyn Counter>>, bytes: u64) -> Option<Box<dyn Receipt>> {
        let brought = self.slip.and_then(Slip::take);
        brought.or_else(|| counter.map(|c| c.count(bytes, self.stream)))
    }
}

/// Largest alignment on request, bytes.
const MAX_ALIGN: u64 = 1 << 30;

/// The alignment for the one asked for, bytes. Fails if that is not allowed.
pub(crate) fn checked_alignment(asked: u64) -> Result<u64> {
    let align = if asked == 0 { SMALL_MIN } else { asked };
    if !align.is_power_of_two() || align > MAX_ALIGN {
        return Err(Error::invalid(format!(
            "alignment {align} is not a power of two up to {MAX_ALIGN}; pass 0 for the default of {SMALL_MIN}"
        )));
    }
    Ok(align)
}

/// The error for a request that no device could meet.
pub(crate) fn too_large(bytes: u64) -> Error {
    let why = format!("{bytes} bytes were requested, more than any address space holds; ask for less at a time");
    Error::new(Status::OutOfMemory, why)
}

/// A request in the pool's own terms: rounded bytes and alignment of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) size: u64,
    pub(crate) align: u64,
    pub(crate) stream: StreamHandle,
    /// The lane of that stream.
    pub(crate) lane: u32,
    /// Whether it is for one block, which another heap may hand out.
    pub(crate) for_block: bool,
    /// If it is for a small object: the object's class. Then a free object of the heap's slabs will
    /// do, too.
    pub(crate) class: Option<usize>,
    /// How many other heaps with enough free memory to look at: few at first, so that the cost of a
    /// request does not grow with the number of idle streams, and all before it fails.
    pub(crate) reach: usize,
}

/// [`Want::reach`] at first.
const NEAR: usize = 32;

impl Want {
    pub(crate) fn new(size: u64, align: u64, (stream, lane): (StreamHandle, u32)) -> Want {
        Want { size, align, stream, lane, for_block: false, class: None, reach: NEAR }
    }
}

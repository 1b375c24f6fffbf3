//! Dedicated allocations and their graves: one physical handle each, never moved.

use crate::driver::PhysHandle;
use crate::pool::order::Tag;
use crate::pool::types::{AllocFlags, AllocInfo, Receipt, Scope};
use std::fmt::Debug;
use std::sync::Arc;

/// One dedicated allocation, by the pointer handed out.
///
/// `[va, va + mapped)` is mapped while there is a handle; `[va + mapped, va + reserved)` is a
/// guard.
#[derive(Debug)]
pub(crate) struct Dedicated {
    pub(crate) va: u64,
    pub(crate) mapped: u64,
    pub(crate) reserved: u64,
    /// `None` while an evictable allocation has no memory.
    pub(crate) handle: Option<PhysHandle>,
    /// If evictable: the code that knows where its bytes are.
    pub(crate) guest: Option<Arc<dyn Guest>>,
    /// If evictable: whether a thread is copying, mapping or unmapping it.
    pub(crate) moving: bool,
    /// If evictable: uses that were named when it was unheld, the last of each lane.
    pub(crate) uses: Vec<Tag>,
    pub(crate) info: AllocInfo,
    pub(crate) lane: u32,
    pub(crate) stream_id: u64,
    pub(crate) users: Vec<u32>,
    /// As asked for: with the pool's own, unlike those of `info`.
    pub(crate) flags: AllocFlags,
    pub(crate) align: u64,
    pub(crate) scope: Option<Arc<Scope>>,
    /// Whether the pool counts its memory: not if it is imported or evictable.
    pub(crate) counts: bool,
    pub(crate) receipt: Option<Box<dyn Receipt>>,
}

impl Dedicated {
    /// Whether another process, or another allocation of this one, has the same memory. Of what
    /// does not count, only evictable memory has a guest.
    pub(crate) fn is_imported(&self) -> bool {
        !self.counts && self.guest.is_none()
    }
}

/// A freed dedicated allocation that the device may still be using, or whose addresses are kept
/// from being handed out again. If only addresses are kept, nothing is mapped: `mapped` is 0, and
/// there is no handle.
#[derive(Clone, Debug)]
pub(crate) struct Grave {
    pub(crate) va: u64,
    pub(crate) mapped: u64,
    pub(crate) reserved: u64,
    pub(crate) handle: Option<PhysHandle>,
    pub(crate) tags: Vec<Tag>,
    /// Its addresses stay here when it is unmapped.
    pub(crate) held: bool,
    /// A thread is still unmapping or moving it.
    pub(crate) busy: bool,
}

/// Moves the bytes of an evictable allocation. The pool drops it when the allocation ends, with no
/// lock held.
pub trait Guest: Send + Sync + Debug {
    /// The allocation has ended; called once, with no lock of the pool held.
    fn gone(&self);
}

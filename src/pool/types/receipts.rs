//! Receipts: the count of what is live in the pool that other parts of gpumem keep.
//!
//! A *receipt* goes with an allocation and is dropped when that ends, however it does: it is kept
//! in the allocation's record (`heap/members.rs`) or with a dedicated one, under the same lock that
//! decides who frees it, so each is dropped exactly once. What moves from scope to scope keeps its
//! receipt; what an arena's end takes out of use for the detector has none any more, as its user
//! has freed it.

use crate::base::{Result, StreamHandle};
use crate::pool::types::units::SMALL_MIN;
use std::cell::Cell;
use std::fmt;

/// Stands for an allocation in such a count. It is dropped when the allocation ends, and may be
/// under a lock of the pool: it must not call the pool or the driver then, nor in `resize`.
pub trait Receipt: Send + fmt::Debug {
    /// The bytes that it stands for.
    fn bytes(&self) -> u64;
    /// The allocation, where it is, is going to have `bytes`, or has become that small. On an
    /// error, which is for larger ones only, it does not become larger.
    fn resize(&mut self, bytes: u64) -> Result<()>;
}

/// Counts what comes without a receipt. Called with locks of the pool held: it must not call the
/// pool or the driver.
pub trait Counter: Send + Sync {
    /// The receipt of an allocation that is there, come what may.
    fn count(&self, bytes: u64, stream: StreamHandle) -> Box<dyn Receipt>;
    /// The handle stands for another stream than before.
    fn stream_renewed(&self, stream: StreamHandle);
}

/// A receipt on its way into the pool. It is gone from here when an allocation was made with it.
pub struct Slip(Cell<Option<Box<dyn Receipt>>>);

impl Slip {
    /// With this receipt in it.
    pub fn new(receipt: Box<dyn Receipt>) -> Slip {
        Slip(Cell::new(Some(receipt)))
    }

    pub(crate) fn take(&self) -> Option<Box<dyn Receipt>> {
        self.0.take()
    }
}

impl fmt::Debug for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slip")
    }
}

/// What is counted of a pooled allocation.
#[inline]
pub(crate) fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(SMALL_MIN).unwrap_or(u64::MAX)
}

//! Receipts: how other parts of gpumem count what is live in the pool.
//!
//! A *receipt* goes with an allocation and is dropped when that ends, in whatever way. It is kept
//! in the allocation's record (`heap/members.rs`) or in a dedicated allocation, under the lock that
//! decides who frees it, so it is dropped exactly once. An allocation that moves from scope to
//! scope keeps its receipt. One that an arena's end takes out of use for the detector loses it, as
//! its user has freed it.

use crate::base::{Result, StreamHandle};
use crate::pool::types::units::SMALL_MIN;
use std::any::Any;
use std::cell::Cell;
use std::fmt;

/// Stands for an allocation in such a count. It is dropped when the allocation ends, perhaps under
/// a lock of the pool, so neither its drop nor its changes may call the pool or the driver.
pub trait Receipt: Send + fmt::Debug {
    /// The bytes it stands for.
    fn bytes(&self) -> u64;
    /// The allocation is going to grow in place to `bytes`, or has shrunk to them. Only growth may
    /// fail; the allocation does not grow then.
    fn resize(&mut self, bytes: u64) -> Result<()>;
    /// The allocation could not grow as `resize` said, if it said so: what was taken for that goes
    /// back where it came from.
    fn undo_growth(&mut self);
    /// The allocation has been made, or has grown as `resize` said.
    fn made(&mut self) {}
    /// What a new allocation that takes this one's place should be counted in, for the code that
    /// brings the receipts; the pool only hands it on.
    fn source(&self) -> Option<Box<dyn Any + Send>> {
        None
    }
}

/// Counts allocations that come without a receipt. Called with locks of the pool held, so it must
/// not call the pool or the driver.
pub trait Counter: Send + Sync {
    /// The receipt of an allocation that exists already, so it cannot be refused.
    fn count(&self, bytes: u64, stream: StreamHandle) -> Box<dyn Receipt>;
    /// Tells that the handle now stands for another stream.
    fn stream_renewed(&self, stream: StreamHandle);
}

/// A receipt on its way into the pool. It leaves the slip when an allocation has been made with it.
pub struct Slip(Cell<Option<Box<dyn Receipt>>>);

impl Slip {
    /// A slip with this receipt.
    pub fn new(receipt: Box<dyn Receipt>) -> Slip {
        Slip(Cell::new(Some(receipt)))
    }

    pub(crate) fn take(&self) -> Option<Box<dyn Receipt>> {
        let mut receipt = self.0.take()?;
        receipt.made();
        Some(receipt)
    }
}

impl fmt::Debug for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slip")
    }
}

/// The bytes a pooled allocation counts as.
#[inline]
pub(crate) fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(SMALL_MIN).unwrap_or(u64::MAX)
}

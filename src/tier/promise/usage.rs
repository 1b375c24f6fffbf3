//! Bytes in use now, and the most there were.
//!
//! Bytes count from their draw on, but they raise the peak only when their allocation has been
//! made: one that fails leaves the peak as it was. Whoever raises it counts what others are drawing
//! just then, as `now` does. So the peak is never below what existed at one time.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::AtomicU64;
use std::sync::atomic::Ordering::*;

/// Bytes in use now, and the most there were.
#[derive(Debug, Default)]
pub struct Usage {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Usage {
    /// Bytes in use.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now.load(Acquire)
    }

    /// The most bytes that were in use since the last [`Usage::reset_peak`]; never less than what
    /// is in use now, although some of that may be for an allocation that will fail.
    pub fn peak(&self) -> u64 {
        self.peak.load(Acquire).max(self.now())
    }

    /// Sets the peak back to what is in use now.
    pub fn reset_peak(&self) {
        self.peak.swap(0, AcqRel);
        // Reads by writing: an `add` is either before this and counted here, or after it, and then
        // its `raise_peak` sees the swap.
        let now = self.now.fetch_add(0, AcqRel);
        self.peak.fetch_max(now, AcqRel);
    }

    #[inline]
    pub(in crate::tier) fn add(&self, bytes: u64) {
        self.now.fetch_add(bytes, AcqRel);
    }

    /// Counts what is in use in the peak: the allocation that bytes were added for has been made.
    #[inline]
    pub(in crate::tier) fn raise_peak(&self) {
        let now = self.now();
        if now > self.peak.load(Acquire) {
            self.peak.fetch_max(now, AcqRel);
        }
    }

    #[inline]
    pub(in crate::tier) fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, AcqRel);
    }
}

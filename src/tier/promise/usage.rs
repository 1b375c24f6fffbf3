//! Bytes in use now, and the most there were.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::AtomicU64;
use std::sync::atomic::Ordering::*;

/// Bytes in use now, and the most there were. `peak >= now` whenever nothing is being added.
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

    /// The most bytes that were in use since the last [`Usage::reset_peak`].
    pub fn peak(&self) -> u64 {
        self.peak.load(Acquire)
    }

    /// Sets the peak back to what is in use now.
    pub fn reset_peak(&self) {
        self.peak.swap(0, AcqRel);
        // Reads by writing: an `add` is either before this and counted here, or after it and then
        // sees the swap.
        let now = self.now.fetch_add(0, AcqRel);
        self.peak.fetch_max(now, AcqRel);
    }

    #[inline]
    pub(in crate::tier) fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, AcqRel).saturating_add(bytes);
        if now > self.peak.load(Acquire) {
            self.peak.fetch_max(now, AcqRel);
        }
    }

    #[inline]
    pub(in crate::tier) fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, AcqRel);
    }
}

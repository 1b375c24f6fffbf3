//! When the next marker is due for frees that other heaps wait for.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// One marker stands for so many frees or bytes at first,
const FREES: u64 = 16;
const BYTES: u64 = 1 << 20;
/// twice as many after so many markers that nobody asked for, half as many whenever somebody does ask,
const UNASKED: u32 = 8;
/// and so on, at most that many times.
const DOUBLINGS: u32 = 6;

/// Frees in a lane's order of memory that other streams' heaps wait for, since its last marker. On a line of its own: it
/// is written when its neighbours are only read.
#[repr(align(128))]
pub(super) struct Due {
    /// A count, and bytes.
    frees: AtomicU64,
    bytes: AtomicU64,
    /// Batches marked that nobody asked for.
    unasked: AtomicU32,
}

impl Default for Due {
    fn default() -> Due {
        Due { frees: AtomicU64::new(0), bytes: AtomicU64::new(0), unasked: AtomicU32::new(0) }
    }
}

impl Due {
    /// Notes a free; whether it fills the batch. Of frees that threads note at the same moment one may be lost, which puts the
    /// marker off by a free: adding for all of them would cost each as much as the heap's lock.
    #[inline]
    pub(super) fn note(&self, bytes: u64) -> bool {
        let frees = self.frees.load(Relaxed) + 1;
        let bytes = self.bytes.load(Relaxed) + bytes;
        self.frees.store(frees, Relaxed);
        self.bytes.store(bytes, Relaxed);
        let unasked = self.unasked.load(Relaxed);
        let scale = unasked / UNASKED;
        let due = frees >= FREES << scale || bytes >= BYTES << scale;
        if due {
            self.unasked.store((unasked + 1).min(UNASKED * DOUBLINGS), Relaxed);
        }
        due
    }

    /// A marker was recorded: the next batch begins.
    pub(super) fn marked(&self) {
        self.frees.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }

    /// Somebody asked for a marker.
    pub(super) fn asked(&self) {
        let unasked = self.unasked.load(Relaxed);
        self.unasked.store(unasked.saturating_sub(UNASKED), Relaxed);
    }
}

//! When the next marker is due.
//!
//! A marker costs more than a hit, so one stands for a batch of frees. Batches grow while no marker
//! is asked for, and shrink when one is. There are two kinds: a stream's frees into other heaps,
//! which wait for it ([`AwayBatch`]), and its frees into its own heap, for which only other streams
//! may need a marker ([`OwnBatch`]).

use crate::base::size::MIB;
use crate::base::sync::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering::Relaxed;

/// At first, one marker stands for this many frees, or for [`BYTES`].
const FREES: u64 = 16;

const BYTES: u64 = 1 << 20;

/// Batches double after this many markers that were not asked for, and halve whenever one is.
const UNASKED: u32 = 8;

/// The most doublings.
const DOUBLINGS: u32 = 6;

/// A lane's frees into other streams' heaps since its last marker. On a cache line of its own: it
/// is written when its neighbours are only read.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct AwayBatch {
    /// Frees so far: a count, and their bytes.
    frees: AtomicU64,
    bytes: AtomicU64,
    /// Batches marked that were not asked for.
    unasked: AtomicU32,
}

impl AwayBatch {
    /// Notes a free. Returns whether it fills the batch. If threads note frees at the same moment,
    /// one may be lost, which delays the marker by one free. Adding up all of them would cost each
    /// as much as the heap's lock.
    #[inline]
    pub(crate) fn note(&self, bytes: u64) -> bool {
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

    /// Begins the next batch, as a marker was recorded.
    pub(crate) fn marked(&self) {
        self.frees.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }

    /// Halves the batch, as a marker was asked for.
    pub(crate) fn asked(&self) {
        let unasked = self.unasked.load(Relaxed);
        self.unasked.store(unasked.saturating_sub(UNASKED), Relaxed);
    }
}

/// Bytes of a stream's own frees that one marker stands for at first.
const OWN_BYTES: u64 = 64 * MIB;

/// Batches double after this many markers that were not asked for.
const OWN_UNASKED: u32 = 4;

/// The most doublings: to 4 GiB.
const OWN_DOUBLINGS: u32 = 6;

/// Frees in a heap's own order since the last marker.
#[derive(Default)]
pub(crate) struct OwnBatch {
    bytes: u64,
    /// How many batches were marked since a marker was asked for.
    unasked: u32,
}

impl OwnBatch {
    /// Notes bytes freed. Returns whether a marker is due: once a batch is full and the free has
    /// `named` a stream to record it on. Batches grow while no marker is asked for.
    #[inline]
    pub(crate) fn is_due(&mut self, bytes: u64, named: bool) -> bool {
        self.bytes += bytes;
        let due = named && self.bytes >= OWN_BYTES << (self.unasked / OWN_UNASKED);
        if due {
            self.bytes = 0;
            self.unasked = (self.unasked + 1).min(OWN_UNASKED * OWN_DOUBLINGS);
        }
        due
    }

    /// Makes batches small again, as a marker was asked for.
    pub(crate) fn mark_sooner(&mut self) {
        *self = OwnBatch::default();
    }
}

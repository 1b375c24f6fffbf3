//! When the next marker is due for what a stream frees to its own heap, which only other streams need one for.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::size::MIB;

/// Bytes of a stream's own frees that one marker stands for, at first,
const BATCH: u64 = 64 * MIB;
/// twice as many after so many markers that nobody asked for,
const UNASKED: u32 = 4;
/// and so on, at most that many times: to 4 GiB.
const DOUBLINGS: u32 = 6;

/// What was freed in a heap's own order since the last marker.
#[derive(Default)]
pub(super) struct Batch {
    bytes: u64,
    /// How many batches were marked since somebody asked for a marker.
    unasked: u32,
}

impl Batch {
    /// Notes bytes freed; whether it is time for a marker: one each time a batch is full and the free has `named` a stream to record
    /// it on. Batches grow while nobody asks for markers.
    #[inline]
    pub(super) fn is_due(&mut self, bytes: u64, named: bool) -> bool {
        self.bytes += bytes;
        let due = named && self.bytes >= BATCH << (self.unasked / UNASKED);
        if due {
            self.bytes = 0;
            self.unasked = (self.unasked + 1).min(UNASKED * DOUBLINGS);
        }
        due
    }

    /// Somebody asked for a marker: batches start small again.
    pub(super) fn mark_sooner(&mut self) {
        *self = Batch::default();
    }
}

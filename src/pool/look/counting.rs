//! Counting what is live, for other parts of gpumem.
//!
//! Until [`Pool::count_live`] is called there are no receipts, and they cost nothing. From then on
//! every live allocation has one: the one its request brought, or else one from the counter.
//!
//! An allocation counts as [`Pool::counted_bytes`]: the request rounded up to a multiple of 256
//! bytes, and at least 256; or whole pages, if it has pages of its own. Imported memory belongs to
//! another allocation and is not counted here.

use crate::pool::state::Pool;
use crate::pool::types::{rounded, AllocFlags, Counter};
use std::sync::Arc;

impl Pool {
    /// What an allocation is counted as, in bytes.
    pub fn counted_bytes(&self, size: u64, flags: AllocFlags) -> u64 {
        match flags == AllocFlags::default() {
            true => rounded(size),
            false => size.max(1).checked_next_multiple_of(self.page).unwrap_or(u64::MAX),
        }
    }

    /// Counts everything live, and from now on every allocation without a receipt. Other threads
    /// may allocate and free meanwhile: when this returns, everything live has a receipt. Only the
    /// first call does anything.
    pub fn count_live(&self, counter: Arc<dyn Counter>) {
        {
            // New heaps are made under this lock, and look for a counter.
            let _streams = self.streams.lock();
            if self.counter.set(counter.clone()).is_err() {
                return;
            }
        }
        for heap in self.all_heaps() {
            heap.lock().start_counting(&counter, self.order.stream(heap.lane));
        }
        let mut core = self.core.lock();
        for d in core.dedicated.values_mut().filter(|d| d.counts && d.receipt.is_none()) {
            d.receipt = Some(counter.count(d.mapped, d.info.stream));
        }
    }
}

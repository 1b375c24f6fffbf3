//! Counting what is live, for other parts of gpumem.
//!
//! Until [`Pool::count_live`] is called there are no receipts, and they cost nothing. From then on
//! every live allocation has one: with the request or, where it came without, from the counter.
//!
//! What is counted of an allocation is [`Pool::counted_bytes`]: the request, rounded up to 256
//! bytes and at least as many; whole pages where it has pages of its own. Memory that another
//! allocation owns, imported, is not counted here.

use crate::base::sync::lock;
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

    /// Counts everything that lives, and from now on whatever comes without a receipt. Others may
    /// allocate and free meanwhile: when this returns, what is live has a receipt. Only once.
    pub fn count_live(&self, counter: Arc<dyn Counter>) {
        {
            // New heaps are made under this lock, and look.
            let _streams = lock(&*self.streams);
            if self.counter.set(counter.clone()).is_err() {
                return;
            }
        }
        for heap in self.all_heaps() {
            heap.lock().start_counting(&counter, self.order.stream(heap.lane));
        }
        let mut core = lock(&*self.core);
        for d in core.dedicated.values_mut().filter(|d| d.counts && d.receipt.is_none()) {
            d.receipt = Some(counter.count(d.mapped, d.info.stream));
        }
    }
}

//! Annexes: a heap whose free memory is stranded gets a second heap of the same stream for small
//! requests.
//!
//! A small block in what is left beside a large one may outlive that one. Then it strands the whole
//! extent, and the next large block is mapped elsewhere: small blocks that live long among large
//! ones that do not once took three times the memory that was ever live. As long as a heap keeps
//! within what it may map, nothing is gained by parting them, and work that repeats lies closest in
//! one heap. So a heap begins without an annex, and gets one when it has to grow so far that
//!
//! ```text
//! mapped > peak + slack + most that it may earn + 5 % of peak + 64 MiB
//! ```
//!
//! and keeps it. docs/adr/placement.md has the experiment.

use crate::pool::heap::{Heap, HeapState, WANTED};
use crate::pool::state::Pool;
use crate::pool::types::NONE;
use std::sync::atomic::Ordering::*;

/// Requests of at most this many bytes, a page on most devices, go to the annex.
const SMALL: u64 = 2 << 20;

/// What a heap maps beyond its slack and the most that it may earn is stranded if it is more than
/// this share of its peak, in 1/1000, and [`STRANDED_BYTES`].
const STRANDED_PERMILLE: u64 = 50;

const STRANDED_BYTES: u64 = 64 << 20;

impl Pool {
    /// The heap that takes a request of `size` bytes for this one: itself, or its annex. The caller
    /// holds no lock.
    #[inline(always)]
    pub(crate) fn for_size<'a>(&'a self, heap: &'a Heap, size: u64) -> &'a Heap {
        match size > SMALL || heap.annex.load(Relaxed) == NONE {
            true => heap,
            false => self.annex_of(heap),
        }
    }

    /// The annex of a heap that has or wants one.
    #[inline(never)]
    fn annex_of<'a>(&'a self, heap: &'a Heap) -> &'a Heap {
        if heap.annex.load(Acquire) == WANTED {
            self.make_annex(heap);
        }
        self.heap(heap.annex.load(Acquire)).unwrap_or(heap)
    }

    /// Has the next small request make an annex, if the heap has just grown although much of it is
    /// free.
    pub(crate) fn want_annex(&self, st: &HeapState) {
        let o = &self.options;
        let share = u64::from(o.slack_permille + o.earned_permille.max(o.bought_permille)) + STRANDED_PERMILLE;
        let peak = st.learnt.peak_live;
        if st.extents.bytes() <= peak + peak / 1000 * share + o.slack_floor + STRANDED_BYTES
            || st.of_captures
            || self.is_shared(st.number)
        {
            return;
        }
        if let Some(heap) = self.heap(st.number) {
            if heap.annex.compare_exchange(NONE, WANTED, Relaxed, Relaxed).is_ok() {
                self.say(|| format!("heap {}: small blocks go to a heap of their own from now on", st.number));
            }
        }
    }

    /// Makes the annex of a heap that wants one. If there are too many heaps, it does without.
    #[cold]
    fn make_annex(&self, heap: &Heap) {
        let mut streams = self.streams.lock();
        if heap.annex.load(Relaxed) != WANTED {
            return;
        }
        let entry = streams.values_mut().find(|e| e.lane == heap.lane);
        let made = entry.and_then(|entry| {
            let annex = self.add_heap(heap.lane, false)?.number;
            entry.annexes.push(annex);
            // It wants none itself.
            self.heap(annex)?.annex.store(annex, Relaxed);
            Some(annex)
        });
        heap.annex.store(made.unwrap_or(NONE), Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::DeviceId;
    use crate::driver::host::{HostDriver, HostOptions};
    use crate::driver::Driver;
    use crate::pool::{AllocRequest, PoolOptions};

    #[test]
    fn threads_that_want_an_annex_at_the_same_moment_share_one() {
        let host = HostDriver::new(HostOptions::default()).unwrap();
        let pool = Pool::new(host.clone(), DeviceId(0), PoolOptions::default()).unwrap();
        let stream = host.stream_create(DeviceId(0)).unwrap();
        let heap = pool.heap_for(stream).unwrap();
        let before = pool.heap_count.load(Relaxed);
        heap.annex.store(WANTED, Relaxed);
        let start = std::sync::Barrier::new(4);
        let malloc = |size| pool.malloc(&AllocRequest { size, stream, ..AllocRequest::default() }).unwrap();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (start, malloc) = (&start, &malloc);
                scope.spawn(move || {
                    start.wait();
                    malloc(1000 + (i << 17));
                    malloc(SMALL + 1);
                });
            }
        });
        assert_eq!(pool.heap_count.load(Relaxed), before + 1);
        assert_ne!(heap.lock().live_bytes, 0, "large blocks stay");
        pool.validate().unwrap();
    }
}

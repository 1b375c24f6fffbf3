//! Annexes: a heap whose free memory is stranded gets a second heap of the same stream, so that
//! small requests and large ones are met by different heaps.
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
//! and keeps it. What is live then stays where it is, so the memory of what moves to the annex is
//! mapped twice until all of that has gone. Small blocks are many, and it takes all of them to free
//! an extent. So if they are a good part of what is live, they stay, and the annex takes the large
//! ones, whose extents are whole when they are freed. docs/adr/placement.md has the experiment.

use crate::pool::heap::{Heap, HeapState, State, WANTED};
use crate::pool::state::Pool;
use crate::pool::types::NONE;
use std::sync::atomic::Ordering::*;

/// Requests of at most this many bytes, a page on most devices, are small.
const SMALL: u64 = 2 << 20;

/// Small blocks stay in the heap if they are at least one part in this many of what is live.
const PART_THAT_STAYS: u64 = 4;

/// In [`Heap::annex`]: the annex takes the large requests, not the small ones.
const OF_LARGE: u32 = 1 << 31;

/// What a heap maps beyond its slack and the most that it may earn is stranded if it is more than
/// this share of its peak, in 1/1000, and [`STRANDED_BYTES`].
const STRANDED_PERMILLE: u64 = 50;

const STRANDED_BYTES: u64 = 64 << 20;

impl Pool {
    /// The heap that takes a request of `size` bytes for this one: itself, or its annex. The caller
    /// holds no lock.
    #[inline(always)]
    pub(crate) fn for_size<'a>(&'a self, heap: &'a Heap, size: u64) -> &'a Heap {
        match heap.annex.load(Relaxed) == NONE {
            true => heap,
            false => self.with_annex(heap, size),
        }
    }

    /// Like [`Self::for_size`], for a heap that has or wants an annex.
    #[inline(never)]
    fn with_annex<'a>(&'a self, heap: &'a Heap, size: u64) -> &'a Heap {
        if heap.annex.load(Acquire) == WANTED {
            self.make_annex(heap);
        }
        let annex = heap.annex.load(Acquire);
        match (size > SMALL) == (annex & OF_LARGE != 0) {
            true => self.heap(annex & !OF_LARGE).unwrap_or(heap),
            false => heap,
        }
    }

    /// Has the next request make an annex, if the heap has just grown although much of it is
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
                self.say(|| {
                    format!("heap {}: small blocks and large ones go to different heaps from now on", st.number)
                });
            }
        }
    }

    /// Makes the annex of a heap that wants one. If there are too many heaps, it does without.
    #[cold]
    fn make_annex(&self, heap: &Heap) {
        let of_large = {
            let st = heap.lock();
            let blocks = st.regions.iter().filter(|(_, g)| g.state == State::Live && g.size > SMALL);
            let small = st.live_bytes - blocks.map(|(_, g)| g.size).sum::<u64>();
            if small >= st.live_bytes / PART_THAT_STAYS {
                OF_LARGE
            } else {
                0
            }
        };
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
        heap.annex.store(made.map_or(NONE, |n| n | of_large), Release);
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
        assert_ne!(heap.lock().live_bytes, 0, "blocks of one kind stay");
        pool.validate().unwrap();
    }

    #[test]
    fn small_blocks_stay_if_they_are_many() {
        for (small, stay) in [(0, false), (2, false), (3, true), (8, true)] {
            let host = HostDriver::new(HostOptions::default()).unwrap();
            let pool = Pool::new(host.clone(), DeviceId(0), PoolOptions::default()).unwrap();
            let stream = host.stream_create(DeviceId(0)).unwrap();
            let malloc = |size| pool.malloc(&AllocRequest { size, stream, ..AllocRequest::default() }).unwrap();
            let heap = pool.heap_for(stream).unwrap();
            malloc(8 << 20);
            (0..small).for_each(|_| _ = malloc(1 << 20));
            heap.annex.store(WANTED, Relaxed);
            let live = || heap.lock().live_bytes;
            let before = live();
            malloc(1 << 20);
            assert_eq!(live() > before, stay, "{small} small ones of 1 MiB, beside 8 MiB");
            let before = live();
            malloc(4 << 20);
            assert_eq!(live() > before, !stay, "{small} small ones of 1 MiB, beside 8 MiB");
            pool.validate().unwrap();
        }
    }
}

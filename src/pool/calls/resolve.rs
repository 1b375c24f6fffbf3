//! From a stream's handle to its heap.
//!
//! A per-thread cache maps handle and identity to a heap. Each allocation makes sure that the
//! handle still has that identity and that the stream is not being captured: by looking where the
//! driver keeps both ([`crate::driver::watch`]), which is no driver call, or else by asking the
//! driver. A captured stream cannot be asked for its identity, so it has a heap of its own.

use crate::base::{Result, StreamHandle};
use crate::pool::heap::{Heap, Locked, Now};
use crate::pool::state::{Key, Pool, Routed};
use crate::pool::streams::{capture_key, slot, CachedStream, Check, CACHE, CAPTURED_ID};
use std::cell::Cell;

/// Finding the lock of a heap taken counts if it is within this many of the heap's allocations from
/// the last time.
const COLLIDING: u64 = 64;

/// After this many collisions that count, the thread moves to another heap.
const COLLISIONS: u32 = 8;

impl Pool {
    /// Makes sure that the pool knows which stream a handle stands for at present. Code that counts
    /// allocations hears of a new one.
    pub fn meet(&self, stream: StreamHandle) -> Result<()> {
        self.heap_for(stream).map(drop)
    }

    /// The heap of a live stream that the caller has just named.
    #[inline]
    pub(crate) fn heap_for(&self, stream: StreamHandle) -> Result<&Heap> {
        self.heap_and_route(stream).map(|found| found.0)
    }

    /// Like [`Self::heap_for`], and also returns what lets the stream allocate from a capture
    /// arena, if it does.
    #[inline]
    pub(crate) fn heap_and_route(&self, stream: StreamHandle) -> Result<(&Heap, Option<Routed>)> {
        match self.cached_heap(stream) {
            Some(heap) => Ok((heap, None)),
            None => CACHE.with(|c| self.find_heap(&c[slot(stream)], stream)),
        }
    }

    /// Like [`Self::heap_for`], if the thread's cache has the heap and no driver call is needed to
    /// be sure of it.
    #[inline(always)]
    pub(crate) fn cached_heap(&self, stream: StreamHandle) -> Option<&Heap> {
        let p = self.cached(stream)?;
        let heap = self.heap(p.heap)?;
        self.is_right(stream, p).then_some(heap)
    }

    /// The stream's place of the thread's cache, if it is the stream's.
    #[inline(always)]
    fn cached(&self, stream: StreamHandle) -> Option<CachedStream> {
        let p = CACHE.with(|c| c[slot(stream)].get());
        (p.handle == stream.0 && p.pool == self.number).then_some(p)
    }

    /// Whether the watch is known to show captures of this stream, which is not being captured.
    fn is_shown(&self, stream: StreamHandle) -> bool {
        self.watch.shows_blocking() || matches!(self.driver.stream_blocks(self.dev, stream), Ok(false))
    }

    /// Whether the thread's cache has the stream, and its handle still stands for that stream.
    pub fn knows(&self, stream: StreamHandle) -> bool {
        self.cached_heap(stream).is_some()
    }

    /// Whether a place of the cache is still right about the stream.
    #[inline(always)]
    fn is_right(&self, stream: StreamHandle, p: CachedStream) -> bool {
        let same = match p.check {
            Check::Never => true,
            Check::Look => self.watch.look(stream) == Some(p.id),
            Check::Ask => false,
        };
        same && p.captures == self.order.captures.changes()
    }

    /// Asks the driver which stream it is, and fills the cache's place.
    #[cold]
    fn find_heap(&self, place: &Cell<CachedStream>, stream: StreamHandle) -> Result<(&Heap, Option<Routed>)> {
        // Read before the questions: a capture met meanwhile makes the place void.
        let changes = self.order.captures.changes();
        // The cache keeps nothing of a stream that allocates from a capture arena.
        if let Some((heap, routed)) = self.routed_heap(stream)? {
            return Ok((heap, Some(routed)));
        }
        let Now::Idle(id) = self.now(stream)? else {
            return match self.report_unclaimed(stream)? {
                Some((heap, routed)) => Ok((heap, Some(routed))),
                None => Ok((self.captured_heap(stream)?, None)),
            };
        };
        self.order.captures.over(|| capture_key(stream));
        let p = place.get();
        if p.captures != changes {
            self.mark_released(stream)?;
        }
        let here = p.pool == self.number && p.handle == stream.0 && p.id == id;
        let known = self.heap(p.heap).filter(|h| here && self.order.identity(h.lane) == id);
        let heap = known.map_or_else(|| self.register(stream, id), Ok)?;
        let check = match stream {
            StreamHandle::LEGACY => Check::Never,
            // The watch is tested first: the driver has just said what it must show.
            s if self.watch.look(s) == Some(id) && self.is_shown(s) => Check::Look,
            _ => Check::Ask,
        };
        place.set(CachedStream {
            pool: self.number,
            handle: stream.0,
            id,
            heap: heap.number,
            lane: heap.lane,
            check,
            captures: changes,
            ..p
        });
        if !here {
            self.driver.adopt_thread(self.dev);
        }
        Ok((heap, None))
    }

    /// Locks the heap from which this thread allocates `size` bytes on `stream`: `heap` or its
    /// annex, or those of another one if the thread keeps meeting others there.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, heap: &'a Heap, stream: StreamHandle, size: u64) -> Locked<'a> {
        match self.for_size(heap, size).try_lock_quick() {
            Some(st) => st,
            None => self.enter_later(heap, stream, size),
        }
    }

    #[cold]
    fn enter_later<'a>(&'a self, heap: &'a Heap, stream: StreamHandle, size: u64) -> Locked<'a> {
        let st = self.for_size(heap, size).lock_quick();
        let mallocs = st.mallocs;
        let move_on = CACHE.with(|c| {
            let p = c[slot(stream)].get();
            if p.pool != self.number || p.heap != heap.number || heap.of_captures {
                return false;
            }
            let again = mallocs.wrapping_sub(p.collided_at) <= COLLIDING;
            let collisions = if again { p.collisions + 1 } else { 0 };
            c[slot(stream)].set(CachedStream { collisions, collided_at: mallocs, ..p });
            collisions >= COLLISIONS
        });
        if !move_on {
            return st;
        }
        drop(st);
        let other = self.another_heap(heap);
        CACHE.with(|c| {
            let p = c[slot(stream)].get();
            c[slot(stream)].set(CachedStream { heap: other.number, collisions: 0, ..p });
        });
        self.for_size(other, size).lock_quick()
    }

    /// The heap of a captured stream. Every allocation during a capture of this handle comes from
    /// here, and only the context can settle what is freed here.
    #[cold]
    fn captured_heap(&self, stream: StreamHandle) -> Result<&Heap> {
        let key = capture_key(stream);
        self.order.captures.met(key, self.seen_captured(stream), false);
        // This key stands for no particular stream, so its identity never changes.
        self.register_as(Key::Captured(key), stream, CAPTURED_ID)
    }

    /// The lane of the stream a free names.
    pub(crate) fn lane_for(&self, stream: StreamHandle) -> Result<u32> {
        match self.known_lane(stream) {
            Some(lane) => Ok(lane),
            None => Ok(self.heap_for(stream)?.lane),
        }
    }

    /// Like [`Self::lane_for`], from the thread's cache and without looking at the stream;
    /// `free_anyhow` says why a stale answer does no harm. `None` after a capture was met, because
    /// memory freed in a capture is ready in that capture at once.
    #[inline]
    pub(crate) fn known_lane(&self, stream: StreamHandle) -> Option<u32> {
        let p = self.cached(stream)?;
        let known = p.captures == self.order.captures.changes() && self.order.identity(p.lane) == p.id;
        known.then_some(p.lane)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::{size, DeviceId};
    use crate::driver::host::{HostDriver, HostOptions, Kernel};
    use crate::driver::Driver;
    use crate::pool::{AllocRequest, PoolOptions};

    /// A heap's handle goes to another stream. Before the heap hears of it, another thread frees
    /// the heap's last object. Memory that the old stream may still be writing to must not look as
    /// if the new stream had freed it.
    #[test]
    fn a_free_between_the_barrier_and_the_heap_vouches_for_nothing() {
        const P: u64 = 2 << 20;
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions { bytes_per_device: size::GIB, ..HostOptions::simulation(3) }).unwrap();
        let options =
            PoolOptions { max_extent: P, first_extent: P, slack_permille: 0, slack_floor: 0, ..PoolOptions::default() };
        let pool = Pool::new(host.clone(), d, options).unwrap();
        let s = host.stream_create(d).unwrap();
        let malloc = |size, stream| pool.malloc(&AllocRequest { size, stream, ..AllocRequest::default() }).unwrap();
        let object = malloc(1000, s);
        let written = malloc(2 * P, s);
        let blocks: Vec<u64> = (0..8).map(|_| malloc(3 * P, s)).collect();
        blocks.iter().step_by(2).for_each(|&p| pool.free(p, Some(s)).unwrap());
        let large = malloc(8 * P, s);
        host.launch(d, s, Kernel::write_pattern("old", written..written + 2 * P, 1, 4096)).unwrap();
        pool.free(written, Some(s)).unwrap();
        blocks.iter().skip(1).step_by(2).for_each(|&p| pool.free(p, Some(s)).unwrap());
        pool.free(large, Some(s)).unwrap();
        let lane = pool.heap_for(s).unwrap().lane;
        host.stream_destroy(d, s).unwrap();
        let next = host.stream_create(d).unwrap();
        assert_eq!(next, s, "the handle comes back");
        // The first half of `change_hands`, the free, and the second half.
        pool.order.hand_over(lane, host.stream_id(d, next).unwrap());
        pool.free(object, None).unwrap();
        for heap in pool.all_heaps() {
            heap.lock().retire(&pool.order, &pool.index, false);
        }
        let p = malloc(10 * P, next);
        host.launch(d, next, Kernel::write_pattern("new", p..p + 10 * P, 2, 4096)).unwrap();
        host.device_sync(d).unwrap();
        assert!(host.reports().is_empty(), "{:?}", host.reports());
    }
}

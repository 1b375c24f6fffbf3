//! The registry: the lane and the heaps of each stream in use.
//!
//! A handle does not identify a stream: CUDA hands the handle of a destroyed stream to the next one
//! at once, while the old one's work may still be running. When the identity behind a handle has
//! changed, the heaps stay with the handle but everything the old stream may still be using waits
//! for the context first.
//!
//! A stream has one heap until several threads that allocate on it keep meeting at its lock; then a
//! thread that has met others often enough moves to another heap of the same stream.

use crate::base::{Error, Result, Status, StreamHandle};
use crate::pool::heap::Heap;
use crate::pool::state::{Key, Pool, StreamHeaps};
use crate::pool::streams::cache::{leave_at_exit, take_spare};

/// Stands for the identity of a captured stream, which cannot be asked for it. No stream has it.
pub(crate) const CAPTURED_ID: u64 = u64::MAX;

/// Most heaps of one stream.
const MAX_HEAPS: usize = 64;

impl Pool {
    /// The identity of a stream that is being captured, if the watch shows both for every stream:
    /// of a captured one, CUDA cannot be asked whether it blocks.
    pub(crate) fn seen_captured(&self, stream: StreamHandle) -> Option<u64> {
        self.watch.look_captured(stream).filter(|_| self.watch.shows_blocking())
    }

    /// Another heap of the same lane: a new one while there are fewer than threads that can run at
    /// once.
    pub(crate) fn another_heap<'a>(&'a self, heap: &'a Heap) -> &'a Heap {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_HEAPS);
        let mut streams = self.streams.lock();
        let Some(entry) = streams.values_mut().find(|e| e.lane == heap.lane) else { return heap };
        if entry.heaps.len() < most {
            if let Some(new) = self.add_heap(heap.lane, false) {
                entry.heaps.push(new.number);
                return new;
            }
        }
        entry.next = (entry.next + 1) % entry.heaps.len();
        entry.heaps.get(entry.next).and_then(|&n| self.heap(n)).unwrap_or(heap)
    }

    /// The lane of a live stream, if the pool knows the stream and it is not being captured.
    pub(crate) fn registered_lane(&self, stream: StreamHandle) -> Option<u32> {
        let id = self.driver.stream_id(self.dev, stream).ok()?;
        let lane = self.streams.lock().get(&Self::key(stream, id))?.lane;
        (self.order.identity(lane) == id).then_some(lane)
    }

    fn key(stream: StreamHandle, id: u64) -> Key {
        if stream == StreamHandle::PER_THREAD {
            Key::PerThread(id)
        } else {
            Key::Handle(stream.0)
        }
    }

    pub(crate) fn register(&self, stream: StreamHandle, id: u64) -> Result<&Heap> {
        self.register_as(Self::key(stream, id), stream, id)
    }

    /// Adds a heap with a lane of its own, for captures. It has no stream yet.
    pub(crate) fn add_private_heap(&self) -> Result<&Heap> {
        let _streams = self.streams.lock();
        self.add_lane_and_heap(true, (StreamHandle::LEGACY, 0), true).ok_or_else(|| self.too_many())
    }

    pub(crate) fn register_as(&self, key: Key, stream: StreamHandle, id: u64) -> Result<&Heap> {
        let mut streams = self.streams.lock();
        if let Some(entry) = streams.get(&key) {
            if self.order.identity(entry.lane) != id {
                self.change_hands(entry, stream, id)?;
            }
            return self.first_heap(entry);
        }
        let per_thread = matches!(key, Key::PerThread(_));
        if per_thread {
            // A thread that has ended leaves its stream's heaps behind.
            if let Some(entry) = take_spare(&self.spare_streams).and_then(|old| streams.remove(&Key::PerThread(old))) {
                let entry = streams.entry(key).or_insert(entry);
                leave_at_exit(&self.spare_streams, id);
                self.change_hands(entry, stream, id)?;
                return self.first_heap(entry);
            }
        }
        let unnamed = !matches!(key, Key::Handle(_));
        let heap = self.add_lane_and_heap(unnamed, (stream, id), id == CAPTURED_ID).ok_or_else(|| self.too_many())?;
        streams.insert(key, StreamHeaps { lane: heap.lane, heaps: vec![heap.number], annexes: Vec::new(), next: 0 });
        if per_thread {
            leave_at_exit(&self.spare_streams, id);
        }
        Ok(heap)
    }

    #[cold]
    fn too_many(&self) -> Error {
        let most = self.options.max_lanes.saturating_sub(1);
        Error::new(Status::Unsupported, format!("more than {most} streams have used this pool; reuse streams"))
    }

    fn first_heap(&self, entry: &StreamHeaps) -> Result<&Heap> {
        let first = entry.heaps.first().and_then(|&n| self.heap(n));
        first.ok_or_else(|| Error::internal("a stream has no heap"))
    }

    /// Makes what the heap's old stream may still be using wait for the context. Returns whether
    /// anything waits that has no marker.
    pub(crate) fn retire(&self, heap: &Heap) -> bool {
        let mut st = heap.lock();
        st.retire(&self.order, &self.index, false);
        let waits = st.unmarked(&self.order).any(|tag| self.order.only_context(tag));
        waits
    }

    /// Hands the lane's heaps to another stream: what the old one may still be using waits for the
    /// context.
    fn change_hands(&self, entry: &StreamHeaps, stream: StreamHandle, id: u64) -> Result<()> {
        // First the barrier, then the heaps: a later free into one of them sees the barrier.
        self.order.hand_over(entry.lane, id);
        if let Some(counter) = self.counter.get().filter(|_| stream != StreamHandle::PER_THREAD) {
            counter.stream_renewed(stream);
        }
        let heaps = entry.heaps.iter().chain(&entry.annexes).filter_map(|&n| self.heap(n));
        // Counted, so that every heap is retired.
        let waits = heaps.filter(|heap| self.retire(heap)).count() > 0;
        // Most often the old stream is long done; then its memory is ready again at once.
        if waits && self.order.mark_context(Some(stream))? {
            self.order.poll([])?;
        }
        Ok(())
    }
}

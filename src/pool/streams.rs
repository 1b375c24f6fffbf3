//! From a stream's handle to its heap.
//!
//! A handle does not identify a stream: CUDA hands the handle of a destroyed stream to the next one at once, while
//! the old one's work may still be running. So allocation asks the driver for the stream's identity (two cheap calls on
//! CUDA, about 30 ns in all: whether it is being captured, and its id) and a per-thread cache maps handle and identity to
//! the heap with no lock of the pool's. When the identity behind a handle has changed, the heap stays with the handle but
//! everything the old stream may still be using waits for the context first. A free takes the lane out of the cache
//! without asking. A stream that is being captured has no identity that could be asked for, so it has a heap of its own.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, CAPTURED_ID};
use super::{lock, Pool};
use crate::base::{Error, Result, Status, StreamHandle};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::Mutex;

/// What the registry knows a stream by: its handle, or its identity where many streams share one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Handle(usize),
    PerThread(u64),
    /// A stream that is being captured, by [`capture_key`]: which stream it is cannot be asked then, so captures have
    /// heaps of their own.
    Captured(usize),
}

#[derive(Clone, Copy)]
struct Cached {
    pool: u64,
    handle: usize,
    id: u64,
    lane: u32,
}

/// Entries of the per-thread cache; a thread seldom uses more streams at a time.
const CACHED: usize = 8;

thread_local! {
    static CACHE: [Cell<Cached>; CACHED] =
        const { [const { Cell::new(Cached { pool: 0, handle: 0, id: 0, lane: 0 }) }; CACHED] };
}

/// Pool and lane of per-thread streams whose threads have ended.
static ORPHANS: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());

/// The lanes of a thread's own streams; passed on when it ends.
struct Lanes(RefCell<Vec<(u64, u32)>>);

impl Drop for Lanes {
    fn drop(&mut self) {
        lock(&ORPHANS).append(self.0.get_mut());
    }
}

thread_local! {
    static OWN_LANES: Lanes = const { Lanes(RefCell::new(Vec::new())) };
}

fn leave_at_exit(pool: u64, lane: u32) {
    // A thread that is ending already keeps its lane for good: no more than one per such thread.
    let _ = OWN_LANES.try_with(|l| l.0.borrow_mut().push((pool, lane)));
}

fn take_orphan(pool: u64) -> Option<u32> {
    let mut orphans = lock(&ORPHANS);
    let i = orphans.iter().position(|o| o.0 == pool)?;
    Some(orphans.swap_remove(i).1)
}

/// Tells streams that are being captured from each other: by their handles, and per-thread streams, which share one,
/// by an address of their thread's own.
fn capture_key(stream: StreamHandle) -> usize {
    match stream {
        StreamHandle::PER_THREAD => CACHE.with(|c| std::ptr::from_ref(c) as usize),
        s => s.0,
    }
}

#[inline]
fn slot(pool: u64, stream: StreamHandle) -> usize {
    // Handles are pointers to structures of some hundred bytes: the low bits say nothing.
    (stream.0 >> 6 ^ stream.0 >> 12 ^ stream.0 ^ pool as usize) % CACHED
}

impl Pool {
    /// The heap of a live stream that the caller's user just named.
    #[inline]
    pub(super) fn heap_for(&self, stream: StreamHandle) -> Result<&Heap> {
        let id = match self.driver.stream_id(self.dev, stream) {
            Ok(id) => id,
            Err(e) if e.status == Status::Capturing => return self.captured_heap(stream),
            Err(e) => return Err(e),
        };
        self.order.capture_over(|| capture_key(stream));
        let cell = slot(self.number, stream);
        let cached = CACHE.with(|c| c[cell].get());
        if cached.pool == self.number && cached.handle == stream.0 && cached.id == id {
            if let Some(heap) = self.heap(cached.lane) {
                if heap.stream_id.load(Relaxed) == id {
                    return Ok(heap);
                }
            }
        }
        let heap = self.register(stream, id)?;
        CACHE.with(|c| c[cell].set(Cached { pool: self.number, handle: stream.0, id, lane: heap.number }));
        Ok(heap)
    }

    /// The heap of a stream that is being captured. Every allocation during a capture of this handle comes from here;
    /// what is freed here only the context can settle.
    #[cold]
    fn captured_heap(&self, stream: StreamHandle) -> Result<&Heap> {
        let key = capture_key(stream);
        self.order.capture_met(key);
        // The heap's stream never changes.
        self.register_as(Key::Captured(key), stream, CAPTURED_ID)
    }

    fn register(&self, stream: StreamHandle, id: u64) -> Result<&Heap> {
        let key = if stream == StreamHandle::PER_THREAD { Key::PerThread(id) } else { Key::Handle(stream.0) };
        self.register_as(key, stream, id)
    }

    fn register_as(&self, key: Key, stream: StreamHandle, id: u64) -> Result<&Heap> {
        let mut streams = lock(&self.streams);
        if let Some(heap) = streams.get(&key).and_then(|&lane| self.heap(lane)) {
            if heap.stream_id.load(Relaxed) != id {
                self.change_hands(heap, stream, id)?;
            }
            return Ok(heap);
        }
        let per_thread = matches!(key, Key::PerThread(_));
        if per_thread {
            // A thread that has ended leaves its stream's heap behind.
            if let Some(heap) = take_orphan(self.number).and_then(|lane| self.heap(lane)) {
                streams.remove(&Key::PerThread(heap.stream_id.load(Relaxed)));
                streams.insert(key, heap.number);
                self.change_hands(heap, stream, id)?;
                leave_at_exit(self.number, heap.number);
                return Ok(heap);
            }
        }
        let lane = self.order.add_lane(!matches!(key, Key::Handle(_))).ok_or_else(|| {
            Error::new(
                Status::Unsupported,
                format!("more than {} streams have used this pool; reuse streams", super::order::MAX_LANES - 1),
            )
        })?;
        let heap = self.heaps[lane as usize].get_or_init(|| Box::new(Heap::new(lane, stream.0, id, self.page)));
        streams.insert(key, lane);
        if per_thread {
            leave_at_exit(self.number, lane);
        }
        Ok(heap)
    }

    /// The heap goes to another stream: what the old one may still be using waits for the context.
    fn change_hands(&self, heap: &Heap, stream: StreamHandle, id: u64) -> Result<()> {
        let mut st = lock(&heap.state);
        // The identity changes before the barrier goes up: whoever sees an epoch behind the barrier sees it changed.
        heap.stream_id.store(id, Release);
        self.order.hand_over(heap.number);
        st.retire(&self.order, &self.index);
        heap.publish(&st);
        let waits = st.unmarked(&self.order).any(|tag| self.order.only_context(tag));
        drop(st);
        // Most often the old stream is long done; then its memory is ready again at once.
        if waits && self.order.mark_context(&*self.driver, Some(stream))? {
            self.order.poll(&*self.driver, [])?;
        }
        Ok(())
    }
}

impl Pool {
    /// The lane of the stream a free names. From the thread's cache without asking the driver where possible: see
    /// `free` for why a stale answer does no harm there.
    #[inline]
    pub(super) fn cached_lane(&self, stream: StreamHandle) -> Result<u32> {
        let cached = CACHE.with(|c| c[slot(self.number, stream)].get());
        // During a capture the handle may stand for the capture's lane: what is freed in it is its own at once.
        if cached.pool == self.number && cached.handle == stream.0 && !self.order.capture_known() {
            let fresh = self.heap(cached.lane).is_some_and(|h| h.stream_id.load(Relaxed) == cached.id);
            if fresh {
                return Ok(cached.lane);
            }
        }
        Ok(self.heap_for(stream)?.number)
    }
}

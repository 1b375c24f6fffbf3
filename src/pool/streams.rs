//! From a stream's handle to its heap.
//!
//! A handle does not identify a stream: CUDA hands the handle of a destroyed stream to the next one at once, while
//! the old one's work may still be running. A per-thread cache maps handle and identity to a heap, and each allocation
//! makes sure that the identity is still the handle's and that the stream is not being captured: by looking where the
//! driver keeps both ([`crate::driver::watch`]), which is no driver call, or, where that is not possible, by asking. When
//! the identity behind a handle has changed, the heaps stay with the handle but everything the old stream may still be using
//! waits for the context first. A free takes the lane out of the cache without looking. A stream that is being captured
//! has no identity that could be asked for, so it has a heap of its own.
//!
//! A stream has one heap until several threads that allocate on it keep meeting at its lock; then a thread that has met
//! others often enough moves to another heap of the same stream.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::heap::{Heap, HeapState};
use super::heap_lock::Locked;
use super::{lock, Pool};
use crate::base::{Error, Result, Status, StreamHandle};
use std::cell::{Cell, RefCell};
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

/// Stands for the identity of a stream that is being captured, which cannot be asked for it. No stream has it.
const CAPTURED_ID: u64 = u64::MAX;

/// What the registry has for a stream.
pub(super) struct Members {
    lane: u32,
    /// Heap numbers; never empty.
    heaps: Vec<u32>,
    /// Which of them the next thread that wants another one gets, when no more are made.
    next: usize,
}

/// How to make sure that a handle still stands for the stream it stood for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// It always does: the legacy stream.
    Never,
    /// By the driver's structures.
    Look,
    /// By a driver call.
    Ask,
}

/// A place of the per-thread cache.
struct Place {
    /// The pool's number; 0 in an empty place.
    pool: Cell<u64>,
    handle: Cell<usize>,
    id: Cell<u64>,
    heap: Cell<u32>,
    lane: Cell<u32>,
    check: Cell<Check>,
    /// The order's count of captures met when the place was filled: it is filled anew after each.
    captures: Cell<u64>,
    /// How often the thread met others at the heap's lock of late, and the heap's count of allocations the last time.
    met: Cell<u32>,
    met_at: Cell<u64>,
}

impl Place {
    #[allow(clippy::declare_interior_mutable_const, reason = "only to make each place from")]
    const EMPTY: Place = Place {
        pool: Cell::new(0),
        handle: Cell::new(0),
        id: Cell::new(0),
        heap: Cell::new(0),
        lane: Cell::new(0),
        check: Cell::new(Check::Ask),
        captures: Cell::new(0),
        met: Cell::new(0),
        met_at: Cell::new(0),
    };
}

/// Places of the per-thread cache; a thread seldom uses more streams at a time.
const PLACES: usize = 8;
/// Meeting others at a lock counts when it happens again within so many allocations from the heap,
const MEETING: u64 = 64;
/// and after so many times that count the thread moves to another heap.
const MEETINGS: u32 = 8;
/// Most heaps of one stream.
const MAX_HEAPS: usize = 64;

thread_local! {
    static CACHE: [Place; PLACES] = const { [const { Place::EMPTY }; PLACES] };
}

/// Pool and heap of per-thread streams whose threads have ended.
static ORPHANS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// The identities of a thread's own streams; passed on when it ends.
struct OwnStreams(RefCell<Vec<(u64, u64)>>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        lock(&ORPHANS).append(self.0.get_mut());
    }
}

thread_local! {
    static OWN_STREAMS: OwnStreams = const { OwnStreams(RefCell::new(Vec::new())) };
}

fn leave_at_exit(pool: u64, id: u64) {
    // A thread that is ending already keeps its lane for good: no more than one per such thread.
    let _ = OWN_STREAMS.try_with(|l| l.0.borrow_mut().push((pool, id)));
}

fn take_orphan(pool: u64) -> Option<u64> {
    let mut orphans = lock(&ORPHANS);
    let i = orphans.iter().position(|o| o.0 == pool)?;
    Some(orphans.swap_remove(i).1)
}

/// Tells streams that are being captured from each other: by their handles, and per-thread streams, which share one,
/// by an address of their thread's own.
pub(super) fn capture_key(stream: StreamHandle) -> usize {
    match stream {
        StreamHandle::PER_THREAD => CACHE.with(|c| std::ptr::from_ref(c) as usize),
        s => s.0,
    }
}

#[inline]
fn place(stream: StreamHandle) -> usize {
    // Handles are pointers to structures of some hundred bytes: the low bits say nothing.
    (stream.0 >> 4 ^ stream.0 >> 8 ^ stream.0 >> 12 ^ stream.0) % PLACES
}

impl Pool {
    /// The heap of a live stream that the caller's user just named.
    #[inline]
    pub(super) fn heap_for(&self, stream: StreamHandle) -> Result<&Heap> {
        match self.cached_heap(stream) {
            Some(heap) => Ok(heap),
            None => CACHE.with(|c| self.find_heap(&c[place(stream)], stream)),
        }
    }

    /// As [`Self::heap_for`], if the thread's cache has it and no driver call is needed to be sure of it.
    #[inline(always)]
    pub(super) fn cached_heap(&self, stream: StreamHandle) -> Option<&Heap> {
        // Copied out, so that the closure is short enough to be inlined.
        let (heap, id, captures, check) = CACHE.with(|c| {
            let p = &c[place(stream)];
            let here = p.handle.get() == stream.0 && p.pool.get() == self.number;
            here.then(|| (p.heap.get(), p.id.get(), p.captures.get(), p.check.get()))
        })?;
        self.heap(heap).filter(|_| self.still(stream, id, captures, check))
    }

    /// Whether captures of the stream are known to show where the watch looks.
    fn is_shown(&self, stream: StreamHandle) -> bool {
        self.watch.shows_blocking() || matches!(self.driver.stream_blocks(self.dev, stream), Ok(false))
    }

    /// Whether the thread's cache has the stream, and it is still the one that it was.
    pub fn knows(&self, stream: StreamHandle) -> bool {
        self.cached_heap(stream).is_some()
    }

    /// Whether what a place says is right about the stream.
    #[inline(always)]
    fn still(&self, stream: StreamHandle, id: u64, captures: u64, check: Check) -> bool {
        let same = match check {
            Check::Never => true,
            Check::Look => self.watch.look(stream) == Some(id),
            Check::Ask => false,
        };
        same && captures == self.order.captures_met()
    }

    /// Asks the driver which stream it is, and fills the place.
    #[cold]
    fn find_heap(&self, p: &Place, stream: StreamHandle) -> Result<&Heap> {
        let met = self.order.captures_met();
        // Nothing is kept of a stream that allocates from a capture arena.
        if let Some(heap) = self.routed_heap(stream)? {
            return Ok(heap);
        }
        let id = match self.driver.stream_id(self.dev, stream) {
            Ok(id) => id,
            Err(e) if e.status == Status::Capturing => {
                return match self.unclaimed(stream)? {
                    Some(heap) => Ok(heap),
                    None => self.captured_heap(stream),
                };
            }
            Err(e) => return Err(e),
        };
        self.order.capture_over(|| capture_key(stream));
        let here = p.pool.get() == self.number && p.handle.get() == stream.0 && p.id.get() == id;
        let known = self.heap(p.heap.get()).filter(|h| here && self.order.identity(h.lane) == id);
        let heap = match known {
            Some(heap) => heap,
            None => self.register(stream, id)?,
        };
        p.pool.set(self.number);
        p.handle.set(stream.0);
        p.id.set(id);
        p.heap.set(heap.number);
        p.lane.set(heap.lane);
        p.captures.set(met);
        p.check.set(match stream {
            StreamHandle::LEGACY => Check::Never,
            // Not taken on trust: the driver has just said what is to be seen.
            s if self.watch.look(s) == Some(id) && self.is_shown(s) => Check::Look,
            _ => Check::Ask,
        });
        if !here {
            self.driver.adopt_thread(self.dev);
        }
        Ok(heap)
    }

    /// Locks the heap from which this thread allocates on `stream`: `heap`, or another one if it keeps meeting other
    /// threads there.
    #[inline]
    pub(super) fn enter<'a>(&'a self, heap: &'a Heap, stream: StreamHandle) -> (&'a Heap, Locked<'a, HeapState>) {
        match heap.try_lock_quick() {
            Some(st) => (heap, st),
            None => self.enter_later(heap, stream),
        }
    }

    #[cold]
    fn enter_later<'a>(&'a self, heap: &'a Heap, stream: StreamHandle) -> (&'a Heap, Locked<'a, HeapState>) {
        let st = heap.lock_quick();
        let mallocs = st.mallocs;
        let move_on = CACHE.with(|c| {
            let p = &c[place(stream)];
            if p.pool.get() != self.number || p.heap.get() != heap.number || heap.is_of_captures() {
                return false;
            }
            let again = mallocs.wrapping_sub(p.met_at.replace(mallocs)) <= MEETING;
            p.met.set(if again { p.met.get() + 1 } else { 0 });
            p.met.get() >= MEETINGS
        });
        if !move_on {
            return (heap, st);
        }
        drop(st);
        let other = self.another_heap(heap);
        CACHE.with(|c| {
            let p = &c[place(stream)];
            p.heap.set(other.number);
            p.met.set(0);
        });
        (other, other.lock_quick())
    }

    /// Another heap of the same lane: a new one while there are fewer than threads that can run at once.
    fn another_heap<'a>(&'a self, heap: &'a Heap) -> &'a Heap {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_HEAPS);
        let mut streams = lock(&*self.streams);
        let Some(members) = streams.values_mut().find(|m| m.lane == heap.lane) else { return heap };
        if members.heaps.len() < most {
            if let Some(new) = self.add_heap(heap.lane, false) {
                members.heaps.push(new.number);
                return new;
            }
        }
        members.next = (members.next + 1) % members.heaps.len();
        members.heaps.get(members.next).and_then(|&n| self.heap(n)).unwrap_or(heap)
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

    /// The lane of a live stream, if the pool knows the stream and it is not being captured.
    pub(super) fn registered_lane(&self, stream: StreamHandle) -> Option<u32> {
        let id = self.driver.stream_id(self.dev, stream).ok()?;
        let lane = lock(&*self.streams).get(&Self::key(stream, id))?.lane;
        (self.order.identity(lane) == id).then_some(lane)
    }

    fn key(stream: StreamHandle, id: u64) -> Key {
        if stream == StreamHandle::PER_THREAD {
            Key::PerThread(id)
        } else {
            Key::Handle(stream.0)
        }
    }

    fn register(&self, stream: StreamHandle, id: u64) -> Result<&Heap> {
        self.register_as(Self::key(stream, id), stream, id)
    }

    /// One more heap with a lane of its own, for captures: of no stream yet.
    pub(super) fn add_private_heap(&self) -> Result<&Heap> {
        let _streams = lock(&*self.streams);
        let lane = self.order.add_lane(true, StreamHandle::LEGACY, 0).ok_or_else(|| self.too_many())?;
        self.add_heap(lane, true).ok_or_else(|| self.too_many())
    }

    fn register_as(&self, key: Key, stream: StreamHandle, id: u64) -> Result<&Heap> {
        let mut streams = lock(&*self.streams);
        if let Some(members) = streams.get(&key) {
            if self.order.identity(members.lane) != id {
                self.change_hands(members, stream, id)?;
            }
            return self.first_heap(members);
        }
        let per_thread = matches!(key, Key::PerThread(_));
        if per_thread {
            // A thread that has ended leaves its stream's heaps behind.
            if let Some(members) = take_orphan(self.number).and_then(|old| streams.remove(&Key::PerThread(old))) {
                let members = streams.entry(key).or_insert(members);
                leave_at_exit(self.number, id);
                self.change_hands(members, stream, id)?;
                return self.first_heap(members);
            }
        }
        let lane = self.order.add_lane(!matches!(key, Key::Handle(_)), stream, id).ok_or_else(|| self.too_many())?;
        let heap = self.add_heap(lane, id == CAPTURED_ID).ok_or_else(|| self.too_many())?;
        streams.insert(key, Members { lane, heaps: vec![heap.number], next: 0 });
        if per_thread {
            leave_at_exit(self.number, id);
        }
        Ok(heap)
    }

    #[cold]
    fn too_many(&self) -> Error {
        let most = self.options.max_lanes.saturating_sub(1);
        Error::new(Status::Unsupported, format!("more than {most} streams have used this pool; reuse streams"))
    }

    fn first_heap(&self, members: &Members) -> Result<&Heap> {
        let first = members.heaps.first().and_then(|&n| self.heap(n));
        first.ok_or_else(|| Error::internal("a stream has no heap"))
    }

    /// The lane's heaps go to another stream: what the old one may still be using waits for the context.
    fn change_hands(&self, members: &Members, stream: StreamHandle, id: u64) -> Result<()> {
        // First the barrier, then the heaps: what is freed into one of them after its turn sees the barrier.
        self.order.hand_over(members.lane, id);
        if let Some(counter) = self.counter.get().filter(|_| stream != StreamHandle::PER_THREAD) {
            counter.stream_renewed(stream);
        }
        let mut waits = false;
        for heap in members.heaps.iter().filter_map(|&n| self.heap(n)) {
            let mut st = heap.lock();
            st.retire(&self.order, &self.index);
            heap.publish(&st);
            waits |= st.unmarked(&self.order).any(|tag| self.order.only_context(tag));
        }
        // Most often the old stream is long done; then its memory is ready again at once.
        if waits && self.order.mark_context(&*self.driver, Some(stream))? {
            self.order.poll(&*self.driver, [])?;
        }
        Ok(())
    }

    /// The lane of the stream a free names.
    pub(super) fn lane_for(&self, stream: StreamHandle) -> Result<u32> {
        match self.known_lane(stream) {
            Some(lane) => Ok(lane),
            None => Ok(self.heap_for(stream)?.lane),
        }
    }

    /// As [`Self::lane_for`], out of the thread's cache without looking at the stream: see `free` for why a stale answer does
    /// no harm there. Not after a capture was met: what is freed in one is its own at once.
    #[inline]
    pub(super) fn known_lane(&self, stream: StreamHandle) -> Option<u32> {
        CACHE.with(|c| {
            let p = &c[place(stream)];
            let known = p.handle.get() == stream.0
                && p.pool.get() == self.number
                && p.captures.get() == self.order.captures_met()
                && self.order.identity(p.lane.get()) == p.id.get();
            known.then(|| p.lane.get())
        })
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

    /// A heap's handle goes to another stream, and before the heap has heard of it another thread frees the heap's last
    /// object. What the old stream may still be writing to must not look as if the new stream had freed it.
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
            let mut st = heap.lock();
            st.retire(&pool.order, &pool.index);
            heap.publish(&st);
        }
        let p = malloc(10 * P, next);
        host.launch(d, next, Kernel::write_pattern("new", p..p + 10 * P, 2, 4096)).unwrap();
        host.device_sync(d).unwrap();
        assert!(host.reports().is_empty(), "{:?}", host.reports());
    }
}

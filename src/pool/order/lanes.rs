//! Stream order: which frees the device has passed.
//!
//! Every stream in use has a *lane*. A lane counts *epochs*; a free in stream order belongs to the
//! lane's open epoch, and its [`Tag`] is the pair. A *marker* (an event) closes the open epoch: the
//! number goes up first, then the event is recorded, so the event covers every free that read the
//! old number. A tag is *settled* once a marker of its lane with at least its epoch has completed;
//! settled memory may be used by any stream with no wait.
//!
//! A free reads the open epoch with a plain load, which is enough. The work the free comes after
//! was submitted before it, and the driver orders submissions to a stream and events recorded on
//! it. If the event came first, the epoch was closed before that, and the free sees the new number.
//! So a thread that reads the old number has submitted work that the event covers.
//!
//! Lane 0 is no stream but the whole context. Memory goes there when its last use is in no lane's
//! order, mostly because the stream is gone; only a context marker settles it. A context marker
//! closes an epoch of every lane.
//!
//! Lock order: a lane's markers, the captures' list, the context's markers, then the spare events.
//! Driver calls under them never block.

use crate::base::sync::{Apart, AtomicBool, AtomicU64, AtomicUsize, OnceBox};
use crate::base::{DeviceId, Result, Status, StreamHandle};
use crate::driver::{empty_cells, Driver, EventHandle, Watch};
use crate::pool::order::cadence::AwayBatch;
use crate::pool::order::captures::{Captures, KnownCapture};
use crate::pool::order::tag::{Tag, CONTEXT};
use crate::pool::types::{Rank, Ranked};
use std::collections::VecDeque;
use std::iter;
use std::sync::atomic::fence;
use std::sync::atomic::Ordering::{Relaxed, SeqCst, *};
use std::sync::Arc;

/// One stream's lane, on cache lines of its own: every free reads its lane's first fields, and
/// other threads use the neighbouring lanes.
#[derive(Default)]
#[repr(align(128))]
struct Lane {
    /// The open epoch, from 1.
    epoch: AtomicU64,
    /// Epochs up to here have a marker recorded, of either kind. `done <= marked < epoch`.
    marked: AtomicU64,
    /// Epochs up to here have a context marker. `by_context <= marked`.
    by_context: AtomicU64,
    /// Epochs up to here belong to earlier streams of the same handle: markers of the present
    /// stream say nothing about them, only context markers do. `barrier < epoch`.
    barrier: AtomicU64,
    /// Epochs up to here are settled.
    done: AtomicU64,
    /// Whether only a context marker settles its tags: other threads cannot name its stream (a
    /// per-thread stream), or that cannot take a marker (a captured stream).
    unnamed: bool,
    /// Whether another stream wants memory of this lane: then the next free on it records a marker.
    wanted: AtomicBool,
    /// The stream's handle; per-thread streams share one.
    stream: AtomicUsize,
    /// The stream's identity. Changes when the handle is given to a new stream.
    identity: AtomicU64,
    away: AwayBatch,
    /// Recorded markers in the order they were recorded, epochs ascending.
    markers: Ranked<VecDeque<Marker>, { Rank::Markers as u8 }>,
}

impl Lane {
    /// Notes a context marker, or a wait that does as much, behind the epoch.
    fn covered_by_context(&self, epoch: u64) {
        self.marked.fetch_max(epoch, AcqRel);
        self.by_context.fetch_max(epoch, AcqRel);
    }
}

/// With this many context markers pending, recording another first looks which are done.
const MANY_CONTEXT_MARKERS: usize = 8;

/// With this many context markers pending, another one takes the last one's place.
const MOST_CONTEXT_MARKERS: usize = 64;

/// With this many markers of a lane pending, no more are recorded.
const MOST_LANE_MARKERS: usize = 256;

/// An event on a lane's stream that closed an epoch.
#[derive(Clone, Copy)]
struct Marker {
    epoch: u64,
    /// The lane's barrier when the marker was recorded. It says nothing about epochs up to there,
    /// so it settles nothing before those are settled.
    behind: u64,
    event: EventHandle,
}

struct ContextMarker {
    event: EventHandle,
    /// For every lane, the epoch it closed.
    closed: Vec<u64>,
}

/// The order of one device.
pub(crate) struct Order {
    dev: DeviceId,
    lanes: Box<[OnceBox<Lane>]>,
    /// Stands in for a lane that there is not. No caller names one.
    none: Lane,
    count: AtomicU64,
    pub(crate) captures: Captures,
    context: Apart<Ranked<VecDeque<ContextMarker>, { Rank::Context as u8 }>>,
    spare: Apart<Ranked<Vec<EventHandle>, { Rank::Spare as u8 }>>,
    /// Events made so far: each is spare, or a pending marker.
    events: AtomicU64,
    /// How often `Order::owe` was called.
    owed: AtomicU64,
    /// How many of these have been waited for. `paid <= owed`.
    paid: AtomicU64,
    driver: Arc<dyn Driver>,
}

impl Order {
    /// An order with room for this many lanes, that sees streams by this watch.
    pub(crate) fn new(driver: Arc<dyn Driver>, dev: DeviceId, lanes: usize, watch: Watch) -> Order {
        let order = Order {
            dev,
            lanes: empty_cells(lanes),
            none: Lane::default(),
            count: AtomicU64::new(0),
            captures: Captures::new(watch),
            context: Apart::default(),
            spare: Apart::default(),
            events: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            paid: AtomicU64::new(0),
            driver,
        };
        order.add_lane(false, StreamHandle::LEGACY, 0);
        order
    }

    /// Opens the next lane, for a stream and its identity; `None` when there are too many. Callers
    /// serialise.
    pub(crate) fn add_lane(&self, unnamed: bool, stream: StreamHandle, identity: u64) -> Option<u32> {
        let n = self.count.load(Relaxed);
        let lane = Lane {
            epoch: AtomicU64::new(1),
            unnamed,
            stream: AtomicUsize::new(stream.0),
            identity: AtomicU64::new(identity),
            ..Lane::default()
        };
        let _ = self.lanes.get(n as usize)?.set(Box::new(lane));
        self.count.store(n + 1, Release);
        Some(n as u32)
    }

    /// Lanes in use, without the context's: one for each stream, and one for each that allocates
    /// from a capture arena, even if it is used eagerly too.
    pub(crate) fn streams(&self) -> u64 {
        self.count.load(Acquire) - 1
    }

    #[inline]
    fn lane(&self, lane: u32) -> &Lane {
        self.lanes.get(lane as usize).and_then(OnceBox::get).unwrap_or(&self.none)
    }

    /// The lanes in use, by number.
    fn in_use(&self) -> impl Iterator<Item = &Lane> {
        self.lanes[..self.count.load(Acquire) as usize].iter().filter_map(OnceBox::get)
    }

    /// The handle of a lane's stream.
    pub(crate) fn stream(&self, lane: u32) -> StreamHandle {
        StreamHandle(self.lane(lane).stream.load(Relaxed))
    }

    /// Renames the lane's stream, when the lane goes to a stream with another handle.
    pub(crate) fn rename(&self, lane: u32, stream: StreamHandle) {
        self.lane(lane).stream.store(stream.0, Relaxed);
    }

    /// The identity of a lane's stream; 0 is no stream's.
    #[inline]
    pub(crate) fn identity(&self, lane: u32) -> u64 {
        self.lane(lane).identity.load(Acquire)
    }

    /// The tag for a free happening now in the order of `lane`.
    #[inline]
    pub(crate) fn tag(&self, lane: u32) -> Tag {
        Tag::new(lane, self.lane(lane).epoch.load(Acquire))
    }

    /// Whether the device is known to have passed the tag.
    #[inline]
    pub(crate) fn settled(&self, tag: Tag) -> bool {
        tag == Tag::SETTLED || tag.epoch() <= self.lane(tag.lane()).done.load(Acquire)
    }

    /// Whether a marker has been recorded that will settle the tag.
    pub(crate) fn marked(&self, tag: Tag) -> bool {
        let l = self.lane(tag.lane());
        let (barrier, by_context) = (l.barrier.load(Acquire), l.by_context.load(Acquire));
        let by = if tag.epoch() <= barrier { by_context } else { l.marked.load(Acquire) };
        // The present stream's markers settle nothing before what lies in front of the barrier is
        // settled.
        tag == Tag::SETTLED || (tag.epoch() <= by && barrier <= by_context)
    }

    /// Whether only a context marker can settle the tag: its stream is gone, or cannot be named
    /// from here, or has followed one that is gone and that no context marker covers yet.
    pub(crate) fn only_context(&self, tag: Tag) -> bool {
        let l = self.lane(tag.lane());
        let barrier = l.barrier.load(Acquire);
        tag.lane() == CONTEXT || l.unnamed || tag.epoch() <= barrier || l.by_context.load(Acquire) < barrier
    }

    /// Hands the lane to another stream. Everything freed on it so far needs a context marker.
    pub(crate) fn hand_over(&self, lane: u32, identity: u64) {
        let l = self.lane(lane);
        // The identity changes before the barrier goes up: a thread that sees an epoch behind the
        // barrier sees it changed.
        l.identity.store(identity, Release);
        let _markers = l.markers.lock();
        let epoch = l.epoch.fetch_add(1, AcqRel);
        l.barrier.fetch_max(epoch, AcqRel);
    }

    /// Whether the lane's present stream may use memory with this tag at once, having freed it
    /// itself.
    pub(crate) fn own(&self, tag: Tag, lane: u32) -> bool {
        tag.lane() == lane && tag.epoch() > self.lane(lane).barrier.load(Acquire)
    }

    /// Asks the next free on `lane` to record a marker.
    pub(crate) fn ask_for_marker(&self, lane: u32) {
        let l = self.lane(lane);
        l.wanted.store(true, Relaxed);
        l.away.asked();
    }

    /// Whether a marker was asked for. A request is answered once.
    #[inline]
    pub(crate) fn take_asked(&self, lane: u32) -> bool {
        self.is_asked(lane) && self.lane(lane).wanted.swap(false, Relaxed)
    }

    /// Whether a marker on `lane` is asked for.
    #[inline]
    pub(crate) fn is_asked(&self, lane: u32) -> bool {
        self.lane(lane).wanted.load(Relaxed)
    }

    /// Notes a free in the order of `lane` that another heap waits for. Returns whether a marker is
    /// due. One marker serves a batch: a record costs more than a hit (0.14 µs on an H200), and all
    /// threads together get only five million a second. Batches grow while nobody asks for markers.
    /// A request shrinks them, and is met at the next free.
    pub(crate) fn due(&self, lane: u32, bytes: u64) -> bool {
        self.lane(lane).away.note(bytes)
    }

    fn event(&self) -> Result<EventHandle> {
        match self.spare.lock().pop() {
            Some(e) => Ok(e),
            None => {
                let event = self.driver.event_create(self.dev)?;
                self.events.fetch_add(1, Relaxed);
                Ok(event)
            }
        }
    }

    /// Closes the open epoch of `lane` with a marker on `stream`, which must be the lane's stream
    /// and have been named in this very call. Returns `false`, and records nothing, if the stream
    /// is being captured, or if very many markers are pending, as a later one will do.
    pub(crate) fn mark(&self, lane: u32, stream: StreamHandle) -> Result<bool> {
        let l = self.lane(lane);
        if self.driver.stream_is_capturing(self.dev, stream)? {
            return Ok(false);
        }
        let mut markers = l.markers.lock();
        // Earlier markers first: those that are done give their events back, and what they settle
        // is known when memory is short.
        self.pop_done(l, &mut markers)?;
        if markers.len() >= MOST_LANE_MARKERS {
            return Ok(false);
        }
        let event = self.event()?;
        let epoch = l.epoch.fetch_add(1, AcqRel);
        let recorded = self.driver.event_record(self.dev, event, stream);
        recorded.inspect_err(|_| self.spare.lock().push(event))?;
        // `hand_over` raises the barrier under the lock of `markers`: it has not moved meanwhile.
        markers.push_back(Marker { epoch, behind: l.barrier.load(Acquire), event });
        l.away.marked();
        l.marked.fetch_max(epoch, AcqRel);
        Ok(true)
    }

    /// Closes the open epoch of every lane with one context marker. Returns `false`, and records
    /// nothing, if a capture is known, the caller's stream is being captured, the legacy stream
    /// shows that another one is, a wait for other devices is owed, or the driver has no context
    /// markers.
    ///
    /// CUDA gives no way to see a capture on a non-blocking stream that no call has named, and a
    /// context marker would invalidate it; so callers come here only when there is memory that no
    /// marker they could record on a stream would settle.
    pub(crate) fn mark_context(&self, stream: Option<StreamHandle>) -> Result<bool> {
        self.mark_context_heeding(stream, |_| true)
    }

    /// Like [`Self::mark_context`], but while a capture is known only if `heed` does not accept it.
    /// It may have ended long ago, on a stream that is no longer used. Moves on request and the
    /// begin of a capture arena heed those that are open; trims heed none, and nor may requests
    /// before they fail for lack of memory.
    pub(crate) fn mark_context_heeding(
        &self,
        stream: Option<StreamHandle>,
        heed: fn(&KnownCapture) -> bool,
    ) -> Result<bool> {
        if self.may_be_capturing(stream) || self.in_debt() {
            return Ok(false);
        }
        if self.context.lock().len() >= MANY_CONTEXT_MARKERS {
            self.poll_context()?;
        }
        let mut captured = self.captures.keys.lock();
        // A thread that begins a capture through gpumem announces it first, and waits here until
        // the marker is recorded.
        if self.captures.any_of(&captured, heed) {
            return Ok(false);
        }
        let event = self.event()?;
        let mut queue = self.context.lock();
        let closed = self.close_all();
        if self.in_debt() {
            self.spare.lock().push(event);
            return Ok(false);
        }
        if let Err(e) = self.driver.context_record(self.dev, event) {
            self.spare.lock().push(event);
            return match e.status {
                Status::Unsupported | Status::Capturing => Ok(false),
                _ => Err(e),
            };
        }
        self.captures.marked(&mut captured, heed);
        for (lane, &epoch) in self.in_use().zip(&closed) {
            lane.covered_by_context(epoch);
        }
        if queue.len() >= MOST_CONTEXT_MARKERS {
            // What it covers the new one covers, too.
            queue.pop_back().into_iter().for_each(|m| self.spare.lock().push(m.event));
        }
        queue.push_back(ContextMarker { event, closed });
        Ok(true)
    }

    /// Whether `stream` is being captured, or the legacy stream shows that another one is, or the
    /// driver does not say.
    pub(crate) fn may_be_capturing(&self, stream: Option<StreamHandle>) -> bool {
        let capturing = |s| self.driver.stream_is_capturing(self.dev, s).unwrap_or(true);
        stream.is_some_and(capturing) || capturing(StreamHandle::LEGACY)
    }

    /// Closes the open epoch of every lane. Returns them, lane by lane.
    fn close_all(&self) -> Vec<u64> {
        let closed = self.in_use().map(|l| l.epoch.fetch_add(1, AcqRel)).collect();
        // Pairs with the fence of `owe`: the caller sees the debt of any thread that read one of
        // these epochs.
        fence(SeqCst);
        closed
    }

    /// Asks the device how far the context's markers and those of some lanes have come.
    pub(crate) fn poll(&self, lanes: impl IntoIterator<Item = u32>) -> Result<()> {
        self.poll_context()?;
        lanes.into_iter().map(|lane| self.lane(lane)).try_for_each(|l| self.pop_done(l, &mut l.markers.lock()))
    }

    /// Drops the markers of a lane that the device has passed, from the oldest on.
    fn pop_done(&self, l: &Lane, markers: &mut VecDeque<Marker>) -> Result<()> {
        while let Some(&m) = markers.front() {
            // A context marker may have settled this epoch; then nobody need ask. A marker behind a
            // barrier that has not settled says nothing yet, and later ones wait for it.
            let done = l.done.load(Acquire);
            if m.epoch > done && (done < m.behind || !self.driver.event_query(self.dev, m.event)?) {
                break;
            }
            l.done.fetch_max(m.epoch, AcqRel);
            markers.pop_front();
            self.spare.lock().push(m.event);
        }
        Ok(())
    }

    /// Asks, at most so many times, whether the device has passed every context marker recorded so
    /// far. Returns whether it has.
    pub(crate) fn context_passes_within(&self, queries: u32) -> Result<bool> {
        for _ in 0..queries {
            self.poll_context()?;
            if self.context.lock().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Asks the device how far every lane has come.
    pub(crate) fn poll_all(&self) -> Result<()> {
        self.poll(0..self.count.load(Acquire) as u32)
    }

    /// Like [`Self::mark_context`], and then asks the device whether it has passed the marker.
    pub(crate) fn mark_context_and_poll(&self, stream: Option<StreamHandle>) -> Result<()> {
        match self.mark_context(stream)? {
            true => self.poll_patiently(),
            false => Ok(()),
        }
    }

    /// Polls until everything recorded so far is known to be done, or the device has been asked
    /// often enough to say that it is busy: an idle device takes some microseconds to pass a fresh
    /// marker.
    pub(crate) fn poll_patiently(&self) -> Result<()> {
        const QUERIES: u32 = 512;
        self.context_passes_within(QUERIES)?;
        self.poll_all()
    }

    fn poll_context(&self) -> Result<()> {
        let mut queue = self.context.lock();
        while let Some(front) = queue.front() {
            if !self.driver.event_query(self.dev, front.event)? {
                break;
            }
            for (lane, &epoch) in self.in_use().zip(&front.closed) {
                lane.done.fetch_max(epoch, AcqRel);
            }
            self.spare.lock().push(front.event);
            queue.pop_front();
        }
        Ok(())
    }

    /// Makes `stream` wait on the device for a marked tag. `false` when no marker covers it.
    pub(crate) fn wait(&self, tag: Tag, stream: StreamHandle) -> Result<bool> {
        if self.settled(tag) {
            return Ok(true);
        }
        // A marker of the same stream, which may be gone: an event outlives its stream.
        let covers = |m: &&Marker| m.behind < tag.epoch() && tag.epoch() <= m.epoch;
        if let Some(m) = self.lane(tag.lane()).markers.lock().iter().find(covers) {
            return self.driver.stream_wait(self.dev, stream, m.event).map(|()| true);
        }
        let queue = self.context.lock();
        let covers = |m: &&ContextMarker| m.closed.get(tag.lane() as usize).is_some_and(|&e| e >= tag.epoch());
        match queue.iter().find(covers) {
            Some(m) => self.driver.stream_wait(self.dev, stream, m.event).map(|()| true),
            // Another thread may have seen the marker done and dropped it since.
            None => Ok(self.settled(tag)),
        }
    }

    /// Settles everything freed so far by waiting for the device. Blocks; call it with no lock
    /// held. If a capture prevents that, or one is known that `heed` accepts, settles only what has
    /// a marker.
    pub(crate) fn drain(&self, stream: StreamHandle, heed: fn(&KnownCapture) -> bool) -> Result<()> {
        self.cover(Some(stream), heed)?;
        self.sync()
    }

    /// Records a context marker. Where there can be none, waits for the device instead. Does
    /// neither and returns `false` if a capture prevents both, or one is known that `heed` accepts.
    pub(crate) fn cover(&self, stream: Option<StreamHandle>, heed: fn(&KnownCapture) -> bool) -> Result<bool> {
        if self.mark_context_heeding(stream, heed)? {
            return Ok(true);
        }
        if self.captures.any(heed) || self.may_be_capturing(stream) {
            return Ok(false);
        }
        match self.sync_device() {
            Err(e) if e.status == Status::Capturing => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Notes that memory freed to the context's lane may be in use on other devices. No context
    /// marker is recorded until those have been waited for.
    pub(crate) fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
        fence(SeqCst);
    }

    /// Whether a wait for other devices is owed and has not ended yet.
    fn in_debt(&self) -> bool {
        self.paid.load(Acquire) < self.owed.load(Relaxed)
    }

    /// Does what a context marker and a wait for it would do, also where no marker can be recorded:
    /// on a driver that has none, or while a wait for other devices is owed or a capture is known.
    /// Fails while a capture is in progress, and invalidates it.
    pub(crate) fn sync_device(&self) -> Result<()> {
        let met = self.captures.now();
        let closed = self.close_all();
        let owed = self.owed.load(Relaxed);
        let owes = owed > self.paid.load(Acquire);
        let others = (0..self.driver.device_count()).map(DeviceId).filter(|&d| owes && d != self.dev);
        iter::once(self.dev).chain(others).try_for_each(|d| self.driver.device_sync(d))?;
        // CUDA refuses to begin to wait for a device while anything on it is captured, in any mode.
        self.captures.waited(met);
        for (lane, epoch) in self.in_use().zip(closed) {
            lane.covered_by_context(epoch);
            lane.done.fetch_max(epoch, AcqRel);
        }
        // Only after the wait: until then no other thread may take the debt for paid.
        self.paid.fetch_max(owed, AcqRel);
        Ok(())
    }

    /// Waits on the host until every marker recorded so far is done.
    pub(crate) fn sync(&self) -> Result<()> {
        let last_context = self.context.lock().back().map(|m| m.event);
        let events = self.in_use().filter_map(|l| l.markers.lock().back().map(|m| m.event)).chain(last_context);
        // An event may be recycled while we wait; then it stands for a later mark, and we wait a
        // little longer.
        for event in events.collect::<Vec<_>>() {
            self.driver.event_sync(self.dev, event)?;
        }
        self.poll_all()
    }

    /// Checks the invariants written in [`Lane`], and that every event is spare or pending.
    /// Threads that record events meanwhile wait; one with an event in hand first puts it away.
    pub(crate) fn validate(&self) -> std::result::Result<(), String> {
        let lanes: Vec<_> = self.in_use().map(|l| (l, l.markers.lock_among_others())).collect();
        for (i, (l, markers)) in lanes.iter().enumerate() {
            // In this order, as others may raise them meanwhile.
            let (done, by_context, barrier) =
                (l.done.load(Acquire), l.by_context.load(Acquire), l.barrier.load(Acquire));
            let (marked, epoch) = (l.marked.load(Acquire), l.epoch.load(Acquire));
            let ordered = done <= marked && by_context <= marked && marked < epoch && barrier < epoch;
            ensure!(
                ordered,
                "lane {i}: done {done}, by_context {by_context}, barrier {barrier}, marked {marked}, epoch {epoch}"
            );
            ensure!(markers.iter().is_sorted_by(|a, b| a.epoch < b.epoch), "lane {i}: markers out of order");
        }
        // Context markers are recorded under this lock.
        let _captures = self.captures.keys.lock_among_others();
        let context = self.context.lock_among_others();
        let pending: usize = lanes.iter().map(|(_, markers)| markers.len()).sum();
        let events = context.len() + self.spare.lock().len() + pending;
        let made = self.events.load(Relaxed);
        ensure!(events as u64 == made, "{made} events were made, {events} are spare or pending");
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::size::{GIB, MIB};
    use crate::driver::host::{HostDriver, HostOptions, Kernel};
    use crate::pool::{AllocRequest, Pool, PoolOptions};

    /// Memory is chosen by its marker; before the wait for it, the handle of the marker's stream
    /// goes to another stream.
    #[test]
    fn a_marker_can_be_waited_for_when_its_stream_is_gone() {
        let d = DeviceId(0);
        let mut reports = [0, 0];
        for (seed, waits) in (1..40).flat_map(|seed| [(seed, true), (seed, false)]) {
            let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::simulation(seed) }).unwrap();
            let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
            let (s, t) = (host.stream_create(d).unwrap(), host.stream_create(d).unwrap());
            let p = pool.malloc(&AllocRequest { size: MIB, stream: s, ..AllocRequest::default() }).unwrap();
            let write = |stream, id| {
                host.launch(d, stream, Kernel::write_pattern("write", p..p + MIB, id, 64)).unwrap();
            };
            write(s, 1);
            let lane = pool.lane_for(s).unwrap();
            let tag = pool.order.tag(lane);
            assert!(pool.order.mark(lane, s).unwrap());
            pool.order.hand_over(lane, u64::MAX);
            // The next stream's marker says nothing about the tag.
            assert!(pool.order.mark(lane, t).unwrap());
            assert!(!waits || pool.order.wait(tag, t).unwrap());
            assert!(!pool.order.wait(pool.order.tag(lane), t).unwrap(), "what no marker covers");
            write(t, 2);
            host.device_sync(d).unwrap();
            reports[usize::from(waits)] += host.reports_made();
        }
        assert!(reports[0] > 0 && reports[1] == 0, "without and with a wait: {reports:?}");
    }

    /// The driver has let the wait begin, and the next capture begins meanwhile.
    #[test]
    fn a_stream_that_is_captured_again_during_a_wait_for_the_device_stays_known() {
        let d = DeviceId(0);
        let host = HostDriver::new(HostOptions { bytes_per_device: GIB, ..HostOptions::default() }).unwrap();
        let pool = Pool::new(host.clone(), d, PoolOptions::default()).unwrap();
        let s = host.stream_create(d).unwrap();
        host.begin_capture(s).unwrap();
        let p = pool.malloc(&AllocRequest { size: MIB, stream: s, ..AllocRequest::default() }).unwrap();
        pool.free(p, Some(s)).unwrap();
        assert!(host.end_capture(s).unwrap());
        let captures = &pool.order.captures;
        let began = captures.now();
        host.begin_capture(s).unwrap();
        captures.waited(began);
        assert!(!pool.order.mark_context(None).unwrap());
        assert!(host.end_capture(s).unwrap(), "it was not invalidated");
        // Once it is over, nothing stands in a marker's way.
        assert!(!captures.known() && pool.order.mark_context(None).unwrap());
    }
}

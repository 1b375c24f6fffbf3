//! Streams: handles, identities and queues.
//!
//! A *lane* is the queue behind a stream. Handles are slots, reused last in first out like CUDA's; identities come
//! from a counter of the process and are never reused. The work of a destroyed stream stays in its lane and still
//! runs. A dead lane whose work the host has seen complete can serve a new stream, which goes on with its numbering:
//! all of the old work is ordered before anything new anyway.

#![deny(unsafe_code)]

use super::capture::Capture;
use super::clock::Clock;
use super::op::Op;
use super::state::State;
use super::HostDriver;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The queue behind one stream at a time.
pub(super) struct Lane {
    /// Identity of the stream.
    pub(super) id: u64,
    /// What callers name it by.
    pub(super) handle: StreamHandle,
    pub(super) dev: DeviceId,
    /// Whether it synchronises with the legacy default stream.
    pub(super) blocking: bool,
    /// Number of the last operation submitted.
    pub(super) submitted: u64,
    /// Number of the last operation completed; `submitted - completed` are queued or running.
    pub(super) completed: u64,
    pub(super) queue: VecDeque<Op>,
    /// What the operation that a thread is executing right now touches.
    pub(super) running: Option<Vec<Range<u64>>>,
    /// The harness keeps it from making progress.
    pub(super) held: bool,
    /// Not destroyed.
    pub(super) alive: bool,
    /// What is ordered before the next operation, besides this lane's own.
    pub(super) clock: Arc<Clock>,
    /// Version of the host's clock that `clock` includes.
    pub(super) host_seen: u64,
    /// While it is being captured.
    pub(super) capture: Option<Box<Capture>>,
}

impl Lane {
    /// What is ordered before something that waits for all work submitted so far.
    pub(super) fn clock_now(&self, lane: usize) -> Clock {
        let mut c = Clock::clone(&self.clock);
        c.advance(lane, self.submitted);
        c
    }
}

/// All lanes.
pub(super) struct Lanes {
    pub(super) list: Vec<Lane>,
    /// Slot → lane of the stream whose handle it is.
    slots: Vec<Option<usize>>,
    free_slots: Vec<usize>,
    /// Device → lane of its legacy default stream.
    pub(super) legacy: Vec<usize>,
    /// Lanes that have work queued or running, in no particular but a deterministic order.
    pub(super) active: Vec<usize>,
    dead: Vec<usize>,
}

/// The next identity; 0 is never one.
fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Lanes {
    pub(super) fn new(devices: u32) -> Lanes {
        let mut lanes = Lanes {
            list: Vec::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            legacy: Vec::new(),
            active: Vec::new(),
            dead: Vec::new(),
        };
        for d in 0..devices {
            let lane = lanes.open(DeviceId(d), true, &Clock::default(), 0);
            lanes.legacy.push(lane);
        }
        lanes
    }

    /// A lane for a new stream. `host` is what the host has seen complete.
    pub(super) fn open(&mut self, dev: DeviceId, blocking: bool, host: &Clock, host_version: u64) -> usize {
        let fresh = |submitted| Lane {
            id: new_id(),
            handle: StreamHandle::LEGACY,
            dev,
            blocking,
            submitted,
            completed: submitted,
            queue: VecDeque::new(),
            running: None,
            held: false,
            alive: true,
            clock: Arc::new(host.clone()),
            host_seen: host_version,
            capture: None,
        };
        let old = self.dead.iter().position(|l| {
            self.list.get(*l).is_some_and(|x| x.completed == x.submitted && host.covers(*l, x.submitted))
        });
        if let Some(lane) = old.map(|i| self.dead.swap_remove(i)) {
            if let Some(slot) = self.list.get_mut(lane) {
                *slot = fresh(slot.submitted);
                return lane;
            }
        }
        self.list.push(fresh(0));
        self.list.len() - 1
    }

    /// Gives a lane a handle.
    pub(super) fn assign_slot(&mut self, lane: usize) -> usize {
        if let Some(slot) = self.free_slots.pop() {
            if let Some(s) = self.slots.get_mut(slot) {
                *s = Some(lane);
            }
            return slot;
        }
        self.slots.push(Some(lane));
        self.slots.len() - 1
    }

    /// Ends the stream of a slot; its lane runs dry by itself.
    pub(super) fn close(&mut self, slot: usize) {
        if let Some(lane) = self.slots.get_mut(slot).and_then(Option::take) {
            self.free_slots.push(slot);
            self.dead.push(lane);
            if let Some(l) = self.list.get_mut(lane) {
                l.alive = false;
            }
        }
    }

    pub(super) fn by_slot(&self, slot: usize) -> Option<usize> {
        self.slots.get(slot).copied().flatten()
    }

    pub(super) fn get(&self, lane: usize) -> Result<&Lane> {
        self.list.get(lane).ok_or_else(|| Error::internal("no such lane"))
    }

    pub(super) fn get_mut(&mut self, lane: usize) -> Result<&mut Lane> {
        self.list.get_mut(lane).ok_or_else(|| Error::internal("no such lane"))
    }

    /// Whether operation `seq` of `lane` is complete.
    pub(super) fn done(&self, lane: usize, seq: u64) -> bool {
        self.list.get(lane).map_or(u64::MAX, |l| l.completed) >= seq
    }

    /// Drops lanes without work from `active`.
    pub(super) fn prune_active(&mut self) {
        let list = &self.list;
        self.active.retain(|l| list.get(*l).is_some_and(|l| l.completed < l.submitted));
    }
}

const CHUNK: usize = 1024;
const CHUNKS: usize = 64;
/// Handles are `BASE + slot * STEP`: far from any mapped address, so nobody dereferences one by mistake.
const BASE: usize = 0x7357_0000_0000_0000;
const STEP: usize = 64;
const ID_BITS: u32 = 48;

/// Set in a word while the stream is being captured.
const CAPTURED: u64 = 1 << 63;

/// Handle → identity and device, readable without a lock: every allocation looks here. A word holds
/// `device << 48 | id`, and [`CAPTURED`]; 0 means that no stream has the handle.
pub struct Identities {
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl Identities {
    pub(super) fn new() -> Identities {
        Identities { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The identity of a live created stream that is not being captured.
    #[inline]
    pub(in crate::driver) fn idle(&self, s: StreamHandle) -> Option<u64> {
        let word = self.word(Self::slot(s)?)?.load(Ordering::Acquire);
        (word != 0 && word & CAPTURED == 0).then_some(word & ((1 << ID_BITS) - 1))
    }

    /// Notes that the capture of a stream has begun or ended.
    pub(super) fn set_captured(&self, s: StreamHandle, captured: bool) {
        if let Some(word) = Self::slot(s).and_then(|slot| self.word(slot)) {
            match captured {
                true => word.fetch_or(CAPTURED, Ordering::Release),
                false => word.fetch_and(!CAPTURED, Ordering::Release),
            };
        }
    }

    /// Names slot `slot`; `None` when there are more streams than the table holds.
    pub(super) fn set(&self, slot: usize, dev: DeviceId, id: u64) -> Option<StreamHandle> {
        let chunk = self.chunks.get(slot / CHUNK)?;
        let words = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        // Release: whoever learns the handle from the creator sees the word without further ado.
        words.get(slot % CHUNK)?.store(u64::from(dev.0) << ID_BITS | id, Ordering::Release);
        Some(StreamHandle(BASE + slot * STEP))
    }

    pub(super) fn clear(&self, slot: usize) {
        if let Some(w) = self.word(slot) {
            w.store(0, Ordering::Release);
        }
    }

    #[inline]
    fn word(&self, slot: usize) -> Option<&AtomicU64> {
        self.chunks.get(slot / CHUNK)?.get()?.get(slot % CHUNK)
    }

    /// The slot that a handle names, alive or not.
    #[inline]
    pub(super) fn slot(s: StreamHandle) -> Option<usize> {
        let offset = s.0.checked_sub(BASE)?;
        (offset % STEP == 0).then_some(offset / STEP)
    }

    /// Device and identity of a live stream that was created.
    #[inline]
    pub(super) fn lookup(&self, s: StreamHandle) -> Result<(DeviceId, u64)> {
        let word = Self::slot(s).and_then(|slot| self.word(slot)).map_or(0, |w| w.load(Ordering::Acquire));
        if word == 0 {
            return Err(Error::new(
                Status::InvalidStream,
                format!("stream {s} does not exist: it was destroyed, or is no handle of this device's"),
            ));
        }
        Ok((DeviceId(((word & !CAPTURED) >> ID_BITS) as u32), word & ((1 << ID_BITS) - 1)))
    }
}

/// What one thread has to do with one host driver.
pub(super) struct Seat {
    driver: u64,
    pub(super) device: DeviceId,
    /// Its per-thread default streams: `(device, lane, id)`.
    pub(super) streams: Vec<(DeviceId, usize, u64)>,
}

thread_local! {
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on this thread's seat at driver number `driver`.
pub(super) fn seat<T>(driver: u64, f: impl FnOnce(&mut Seat) -> T) -> T {
    SEATS.with_borrow_mut(|seats| {
        let at = seats.iter().position(|s| s.driver == driver).unwrap_or_else(|| {
            seats.push(Seat { driver, device: DeviceId(0), streams: Vec::new() });
            seats.len() - 1
        });
        f(&mut seats[at])
    })
}

/// Forgets this thread's seat at a driver that is going away.
pub(super) fn leave(driver: u64) {
    // The thread may be ending, its seats gone already.
    let _ = SEATS.try_with(|s| s.borrow_mut().retain(|s| s.driver != driver));
}

impl HostDriver {
    /// The lane of a stream of `dev`.
    pub(super) fn lane(&self, st: &mut State, dev: DeviceId, s: StreamHandle) -> Result<usize> {
        self.check_device(dev)?;
        match s.canonical() {
            StreamHandle::LEGACY => {
                st.lanes.legacy.get(dev.0 as usize).copied().ok_or_else(|| Error::internal("no legacy stream"))
            }
            StreamHandle::PER_THREAD => Ok(self.per_thread(st, dev).0),
            s => {
                let (owner, _) = self.handles.lookup(s)?;
                if owner != dev {
                    return Err(Error::invalid(format!("stream {s} belongs to device {owner}, not {dev}")));
                }
                // The table said it lives; under the lock the answer is final.
                Identities::slot(s).and_then(|slot| st.lanes.by_slot(slot)).ok_or_else(|| {
                    Error::new(Status::InvalidStream, format!("stream {s} has just been destroyed by another thread"))
                })
            }
        }
    }

    /// Lane and identity of the calling thread's default stream.
    pub(super) fn per_thread(&self, st: &mut State, dev: DeviceId) -> (usize, u64) {
        seat(self.instance, |seat| {
            if let Some((_, lane, id)) = seat.streams.iter().find(|(d, ..)| *d == dev) {
                return (*lane, *id);
            }
            let lane = st.lanes.open(dev, true, &st.host, st.host_version);
            let id = st.lanes.list.get_mut(lane).map_or(0, |l| {
                l.handle = StreamHandle::PER_THREAD;
                l.id
            });
            seat.streams.push((dev, lane, id));
            (lane, id)
        })
    }

    pub(super) fn new_stream(&self, dev: DeviceId, blocking: bool) -> Result<StreamHandle> {
        self.check_device(dev)?;
        let st = &mut *self.enter();
        let lane = st.lanes.open(dev, blocking, &st.host, st.host_version);
        let slot = st.lanes.assign_slot(lane);
        let l = st.lanes.get_mut(lane)?;
        match self.handles.set(slot, dev, l.id) {
            Some(handle) => {
                l.handle = handle;
                Ok(handle)
            }
            None => {
                st.lanes.close(slot);
                Err(Error::new(Status::Driver, "the host device has no room for more streams; destroy some"))
            }
        }
    }
}

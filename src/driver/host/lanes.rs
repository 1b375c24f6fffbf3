//! The queues behind streams.

#![deny(unsafe_code)]

use super::captured::Capture;
use super::clock::Clock;
use super::events::Mark;
use super::op::Op;
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The queue behind one stream at a time.
pub(super) struct Lane {
    /// Identity of the stream.
    pub(super) id: u64,
    /// The handle that callers use.
    pub(super) handle: StreamHandle,
    pub(super) dev: DeviceId,
    /// Whether it synchronises with the legacy default stream.
    pub(super) blocking: bool,
    /// Number of the last operation submitted.
    pub(super) submitted: u64,
    /// Number of the last operation completed; `submitted - completed` are queued or running.
    pub(super) completed: u64,
    pub(super) queue: VecDeque<Op>,
    /// The ranges touched by the operation that a thread is executing now.
    pub(super) running: Option<Vec<Range<u64>>>,
    /// Whether the harness holds it back.
    pub(super) held: bool,
    /// The operations of other lanes ordered before the next one; what the host has seen complete
    /// is too, and need not be in it.
    pub(super) clock: Arc<Clock>,
    /// Version of the host's clock that `clock` includes.
    pub(super) host_seen: u64,
    /// The capture in progress, if any.
    pub(super) capture: Option<Box<Capture>>,
}

impl Lane {
    /// All work submitted so far, as a mark.
    pub(super) fn mark(&self, lane: usize) -> Mark {
        Mark { points: vec![(lane, self.submitted)], clock: self.clock.clone() }
    }

    /// Orders the next operation after everything in `clock`.
    pub(super) fn order_after(&mut self, clock: &Clock) {
        if !self.clock.knows(clock) {
            Arc::make_mut(&mut self.clock).join(clock);
        }
    }

    /// Adds the lane's work, and what its next operation is ordered after, to `clock`. What `host`,
    /// the host's clock, holds anyway is left out, and the lane forgets it.
    pub(super) fn add_unseen(&mut self, lane: usize, host: &Clock, clock: &mut Clock) {
        if !host.covers(lane, self.submitted) || !host.knows(&self.clock) {
            clock.join(&self.clock);
            clock.advance(lane, self.submitted);
        } else if *self.clock != Clock::default() {
            (self.clock, self.host_seen) = (Arc::default(), 0);
        }
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
    /// Lanes that have work queued or running, in an arbitrary but deterministic order.
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
            let lane = lanes.open(DeviceId(d), true, &Clock::default());
            lanes.legacy.push(lane);
        }
        lanes
    }

    /// A lane for a new stream. `host` is what the host has seen complete.
    pub(super) fn open(&mut self, dev: DeviceId, blocking: bool, host: &Clock) -> usize {
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
            clock: Arc::default(),
            host_seen: 0,
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

    /// Ends the stream of a slot; its lane still runs its queue.
    pub(super) fn close(&mut self, slot: usize) {
        if let Some(lane) = self.slots.get_mut(slot).and_then(Option::take) {
            self.free_slots.push(slot);
            self.end(lane);
        }
    }

    /// Ends the stream of a lane; returns its capture, if there is one. The lane still runs its
    /// queue.
    pub(super) fn end(&mut self, lane: usize) -> Option<Box<Capture>> {
        self.dead.push(lane);
        self.list.get_mut(lane)?.capture.take()
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

    /// Whether a lane is being captured.
    pub(super) fn is_captured(&self, lane: usize) -> Result<bool> {
        Ok(self.get(lane)?.capture.is_some())
    }

    /// An error with this text when a lane is being captured.
    pub(super) fn refuse_captured(&self, lane: usize, text: impl FnOnce() -> String) -> Result<()> {
        match self.is_captured(lane)? {
            true => Err(Error::new(Status::Capturing, text())),
            false => Ok(()),
        }
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

//! Streams that moves copy on: each move borrows one of its own, with its events.

#![deny(unsafe_code, clippy::unwrap_used)]

use crate::base::sync::{lock, Mutex};
use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::driver::{Driver, EventHandle};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes of one copy: how finely progress is told and moves are cancelled.
const CHUNK: u64 = 16 << 20;
/// Copies in flight: enough for the device never to wait for the host.
const DEPTH: usize = 4;

/// The lanes not in use.
pub(super) struct Lanes {
    driver: Arc<dyn Driver>,
    idle: Mutex<Vec<Idle>>,
    /// Lanes whose remaining work is unknown.
    lost: Mutex<Vec<Lost>>,
}

/// A lane that could not be waited for, and what its copies may touch.
struct Lost {
    lane: Idle,
    _held: Vec<Box<dyn Any + Send>>,
}

struct Idle {
    device: DeviceId,
    stream: StreamHandle,
    events: Vec<EventHandle>,
}

/// Hears how far a move is: bytes done, bytes in all. Returning `false` cancels it. If it panics,
/// bytes that have not arrived stay where they were, and the panic goes on to the caller that asked
/// for the move.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// A borrowed lane: copies in flight, in order.
///
/// `completed <= submitted`, and each entry of `ring` says what `completed` is when its event is
/// done.
pub(super) struct Flow<'a> {
    lanes: &'a Lanes,
    idle: Option<Idle>,
    ring: VecDeque<(EventHandle, u64)>,
    submitted: u64,
    completed: u64,
    /// Whether something without an event may be in flight.
    dirty: bool,
    /// Kept until all copies are known to be over.
    held: Vec<Box<dyn Any + Send>>,
}

impl Lanes {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Lanes {
        Lanes { driver, idle: Mutex::new(Vec::new()), lost: Mutex::new(Vec::new()) }
    }

    /// Takes back lanes that could not be waited for before, if they can be now.
    fn find_lost(&self) {
        let lost = std::mem::take(&mut *lock(&self.lost));
        for lost in lost {
            match self.driver.stream_sync(lost.lane.device, lost.lane.stream) {
                Ok(()) => lock(&self.idle).push(lost.lane),
                Err(_) => lock(&self.lost).push(lost),
            }
        }
    }

    pub(super) fn borrow(&self, device: DeviceId) -> Result<Flow<'_>> {
        self.find_lost();
        let found = {
            let mut idle = lock(&self.idle);
            idle.iter().position(|l| l.device == device).map(|at| idle.swap_remove(at))
        };
        let idle = match found {
            Some(idle) => idle,
            None => Idle { device, stream: self.driver.stream_create(device)?, events: Vec::new() },
        };
        Ok(Flow {
            lanes: self,
            idle: Some(idle),
            ring: VecDeque::new(),
            submitted: 0,
            completed: 0,
            dirty: false,
            held: Vec::new(),
        })
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // Nobody can be told of an error: the driver may be gone with the process.
        for lane in std::mem::take(&mut *lock(&self.idle)) {
            for event in lane.events {
                let _ = self.driver.event_destroy(lane.device, event);
            }
            let _ = self.driver.stream_destroy(lane.device, lane.stream);
        }
    }
}

impl Flow<'_> {
    fn idle(&mut self) -> Result<&mut Idle> {
        self.idle.as_mut().ok_or_else(|| Error::internal("a lane was used after its end"))
    }

    /// The stream it copies on.
    pub(super) fn stream(&self) -> StreamHandle {
        self.idle.as_ref().map_or(StreamHandle::LEGACY, |l| l.stream)
    }

    /// Bytes whose copies are over.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Bytes whose copies have been submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Submits the copy of `bytes` bytes, in parts, waiting for earlier ones where too many are in
    /// flight. `told` hears of what is over.
    pub(super) fn copy(
        &mut self,
        dst: u64,
        src: u64,
        bytes: u64,
        told: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(CHUNK);
            while self.ring.len() >= DEPTH {
                self.wait_one()?;
                told(self.completed)?;
            }
            let (driver, event) = (&*self.lanes.driver, self.event()?);
            let dirty = std::mem::replace(&mut self.dirty, true);
            let Idle { device, stream, events } = self.idle()?;
            let done = driver
                .copy_async(*device, dst + at, src + at, n, *stream)
                .and_then(|()| driver.event_record(*device, event, *stream));
            if let Err(e) = done {
                events.push(event);
                return Err(e);
            }
            self.dirty = dirty;
            self.submitted += n;
            self.ring.push_back((event, self.submitted));
            at += n;
        }
        Ok(())
    }

    /// Copies, and waits until that is over.
    pub(super) fn copy_now(&mut self, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.copy(dst, src, bytes, &mut |_| Ok(()))?;
        self.wait(self.submitted, &mut |_| Ok(()))
    }

    fn event(&mut self) -> Result<EventHandle> {
        let driver = &*self.lanes.driver;
        let idle = self.idle()?;
        match idle.events.pop() {
            Some(event) => Ok(event),
            None => driver.event_create(idle.device),
        }
    }

    /// Waits for the oldest copy in flight.
    fn wait_one(&mut self) -> Result<()> {
        let Some(&(event, upto)) = self.ring.front() else { return Ok(()) };
        let driver = &*self.lanes.driver;
        let idle = self.idle()?;
        driver.event_sync(idle.device, event)?;
        idle.events.push(event);
        self.ring.pop_front();
        self.completed = upto;
        Ok(())
    }

    /// Waits until `upto` bytes have been copied.
    pub(super) fn wait(&mut self, upto: u64, told: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        while self.completed < upto && !self.ring.is_empty() {
            self.wait_one()?;
            told(self.completed)?;
        }
        Ok(())
    }

    /// Keeps what a copy may still touch until all are known to be over.
    pub(super) fn hold(&mut self, what: impl Any + Send) {
        self.held.push(Box::new(what));
    }

    /// Waits until nothing is in flight: afterwards the device touches nothing of the move. After
    /// an error that is unknown, and what the copies may touch must never be used again.
    pub(super) fn drain(&mut self) -> Result<()> {
        while !self.ring.is_empty() {
            self.wait_one()?;
        }
        if self.dirty {
            // Only where it must be: a capture may forbid waiting for a stream, never for events.
            let driver = &*self.lanes.driver;
            let idle = self.idle()?;
            driver.stream_sync(idle.device, idle.stream)?;
            self.dirty = false;
        }
        self.completed = self.submitted;
        Ok(())
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        let drained = self.drain();
        let Some(idle) = self.idle.take() else { return };
        match drained {
            Ok(()) => lock(&self.lanes.idle).push(idle),
            Err(_) => lock(&self.lanes.lost).push(Lost { lane: idle, _held: std::mem::take(&mut self.held) }),
        }
    }
}

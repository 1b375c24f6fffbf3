//! Memory that was freed without a stream, and waits until the device has passed everything that
//! was submitted before.
//!
//! Frees are collected in batches. A batch gets one context marker, an event that is complete once
//! all earlier work of the context is done, on every stream. Then the batch is free for everybody.
//! A marker would invalidate an open capture, so meanwhile none is recorded and the batch stays
//! open.
//!
//! A host far ahead of the device frees faster than the device completes. So at most as many bytes
//! wait as are live, or 256 MiB: a free beyond that waits for the oldest batches. The driver's own
//! `cudaFree` would wait for all work under way.

use crate::captures;
use crate::cuda::Ptr;
use gpumem::base::{DeviceId, Status};
use gpumem::driver::{Driver, EventHandle, Ledger};
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Frees after which a batch gets its marker.
const FREES: usize = 64;
/// Bytes after which a batch gets its marker.
const BYTES: u64 = 16 << 20;

/// This many bytes may wait, however few are live.
const LEAST: u64 = 256 << 20;

/// Addresses, with the numbers of their allocations.
type Batch = Vec<(Ptr, u64)>;

/// A batch that has its marker.
struct Marked {
    event: EventHandle,
    batch: Batch,
    bytes: u64,
}

#[derive(Default)]
struct Waiting {
    open: Batch,
    open_bytes: u64,
    /// The oldest first.
    marked: VecDeque<Marked>,
    /// Bytes of all marked batches.
    marked_bytes: u64,
    members: HashSet<Ptr>,
    /// Events to use again.
    spare: Vec<EventHandle>,
}

/// The device that memory in a quarantine is on.
pub trait Home {
    /// Its driver.
    fn ledger(&self) -> &Ledger;
    /// Its number.
    fn dev(&self) -> DeviceId;
    /// Takes memory back that the device has passed.
    fn give_back(&self, ptr: Ptr, id: u64);
    /// Bytes that have been handed out and not taken back, including those in the quarantine.
    fn handed_out(&self) -> u64;
}

#[derive(Default)]
pub struct Quarantine {
    waiting: Mutex<Waiting>,
    /// How many allocations are in it.
    count: AtomicU64,
    /// Whether the driver lacks context markers.
    unsupported: AtomicBool,
}

impl Quarantine {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `ptr` has been freed and waits.
    #[inline]
    pub fn has(&self, ptr: Ptr) -> bool {
        self.count.load(Acquire) > 0 && self.lock().members.contains(&ptr)
    }

    /// Whether frees may wait here instead of making the host wait.
    pub fn works(&self) -> bool {
        !self.unsupported.load(Relaxed)
    }

    /// Bytes of the memory in it.
    pub fn bytes(&self) -> u64 {
        let w = self.lock();
        w.open_bytes.saturating_add(w.marked_bytes)
    }

    /// Takes memory in; `false` if it is in here already.
    pub fn add(&self, home: &impl Home, ptr: Ptr, id: u64, bytes: u64) -> bool {
        let mut w = self.lock();
        if !w.members.insert(ptr) {
            return false;
        }
        w.open.push((ptr, id));
        w.open_bytes = w.open_bytes.saturating_add(bytes);
        self.count.fetch_add(1, Release);
        if w.open.len() < FREES && w.open_bytes < BYTES {
            return true;
        }
        self.mark(home, &mut w);
        let waiting = w.marked_bytes;
        drop(w);
        if waiting > LEAST {
            // If as much waits as is live, half of what is handed out waits.
            let most = LEAST.max(home.handed_out() / 2);
            if waiting > most {
                self.wait(home, most / 2);
            }
        }
        true
    }

    /// Waits for the oldest batches until no more than `most` bytes wait. No lock is held
    /// meanwhile: the event may come to stand for a later batch, and this waits longer.
    fn wait(&self, home: &impl Home, most: u64) {
        loop {
            self.poll_some(home, false);
            let w = self.lock();
            let Some(oldest) = w.marked.front().map(|m| m.event).filter(|_| w.marked_bytes > most) else { return };
            drop(w);
            if captures::any() || home.ledger().event_sync(home.dev(), oldest).is_err() {
                return;
            }
        }
    }

    /// Frees the memory that the device has passed; with `all`, first gives the open batch a
    /// marker.
    #[inline]
    pub fn poll(&self, home: &impl Home, all: bool) {
        if self.count.load(Acquire) > 0 {
            self.poll_some(home, all);
        }
    }

    fn poll_some(&self, home: &impl Home, all: bool) {
        let mut w = self.lock();
        if all {
            self.mark(home, &mut w);
        }
        while let Some(oldest) = w.marked.front() {
            if !home.ledger().event_query(home.dev(), oldest.event).unwrap_or(false) {
                break;
            }
            let Some(Marked { event, batch, bytes }) = w.marked.pop_front() else { break };
            w.marked_bytes = w.marked_bytes.saturating_sub(bytes);
            w.spare.push(event);
            for (ptr, id) in batch {
                w.members.remove(&ptr);
                self.count.fetch_sub(1, Release);
                home.give_back(ptr, id);
            }
        }
    }

    /// Gives the open batch a marker, if that can be done now.
    fn mark(&self, home: &impl Home, w: &mut Waiting) {
        if w.open.is_empty() || captures::any() {
            return;
        }
        let event = match w.spare.pop().map_or_else(|| home.ledger().event_create(home.dev()), Ok) {
            Ok(event) => event,
            Err(_) => return,
        };
        match home.ledger().context_record(home.dev(), event) {
            Ok(()) => {
                let (batch, bytes) = (std::mem::take(&mut w.open), std::mem::take(&mut w.open_bytes));
                w.marked_bytes = w.marked_bytes.saturating_add(bytes);
                w.marked.push_back(Marked { event, batch, bytes });
            }
            Err(e) => {
                w.spare.push(event);
                if e.status == Status::Unsupported {
                    self.unsupported.store(true, Relaxed);
                    // From now on the host waits, for this batch too.
                    if home.ledger().device_sync(home.dev()).is_ok() {
                        w.open_bytes = 0;
                        for (ptr, id) in std::mem::take(&mut w.open) {
                            w.members.remove(&ptr);
                            self.count.fetch_sub(1, Release);
                            home.give_back(ptr, id);
                        }
                    }
                }
            }
        }
    }
}

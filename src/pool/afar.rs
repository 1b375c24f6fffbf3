//! Streams of other devices, on which memory of this one is freed or used.
//!
//! A lane is a stream of the pool's own device: its markers are recorded there, and the context's marker covers it. A stream of
//! another device therefore has no lane. What has to come after its work comes after the *relay*, a stream of the pool's
//! device that only waits: the relay waits, on the device, for an event on the other stream, and the memory is freed in the
//! relay's order.
//!
//! A use that was only announced ([`Pool::record_stream_afar`]) ends when the memory is freed, so the relay waits for it
//! then. The thread that frees may not be able to name the per-thread stream that was announced; the legacy stream of its device
//! stands for that, which waits for all per-thread streams. Where nothing can be recorded at that time, because of a
//! capture, the memory goes to the context and the order owes a wait for the other devices ([`Order::owe`]).
//!
//! Lock order: the list of announced uses comes after a heap's lock and the core's; nothing is called under it.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::free::{note_user, Found};
use super::order::{Order, CONTEXT};
use super::{lock, Pool};
use crate::base::sync::{AtomicU64, Mutex, OnceLock};
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::Driver;
use std::collections::HashMap;
use std::sync::atomic::{fence, Ordering::Relaxed, Ordering::SeqCst};

/// A stream of another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    dev: DeviceId,
    stream: StreamHandle,
    identity: u64,
}

/// What one pool knows of streams of other devices.
pub(super) struct Afar {
    /// Made when first needed, and kept.
    relay: OnceLock<StreamHandle>,
    /// Start of a live allocation → the streams that it was recorded on.
    announced: Mutex<HashMap<u64, Vec<Source>>>,
    /// How many entries `announced` has, so that nearly all frees look no further.
    count: AtomicU64,
}

impl Afar {
    pub(super) fn new() -> Afar {
        Afar { relay: OnceLock::new(), announced: Mutex::new(HashMap::new()), count: AtomicU64::new(0) }
    }
}

/// Makes `stream` of device `to` wait for what has been submitted to `on` of device `from`.
fn wait_across(
    driver: &dyn Driver,
    (to, stream): (DeviceId, StreamHandle),
    (from, on): (DeviceId, StreamHandle),
) -> Result<()> {
    let event = driver.event_create(from)?;
    let waits = driver.event_record(from, event, on).and_then(|()| driver.stream_wait(to, stream, event));
    // A pending event may be destroyed: the wait keeps what it needs.
    let gone = driver.event_destroy(from, event);
    waits.and(gone)
}

impl Order {
    /// What is freed to the context's lane may be in use on other devices: no context markers until they have been waited for.
    fn owe(&self) {
        self.owes.store(true, Relaxed);
        fence(SeqCst);
    }
}

impl Pool {
    /// A stream of this device for work that comes after what has been submitted to a stream of another one. `Capturing` while
    /// that is being captured: an event on it would be part of the graph.
    pub fn after(&self, dev: DeviceId, stream: StreamHandle) -> Result<StreamHandle> {
        if self.driver.stream_is_capturing(dev, stream)? {
            return Err(Error::new(
                Status::Capturing,
                format!(
                    "memory of device {} cannot follow the stream {stream} of device {dev} while that, or a stream that it \
                     waits for, is being captured; name a stream of device {}, or end the capture first",
                    self.dev, self.dev
                ),
            ));
        }
        let relay = self.relay()?;
        wait_across(&*self.driver, (self.dev, relay), (dev, stream))?;
        Ok(relay)
    }

    /// Makes a stream of another device wait for what [`Self::after`]'s stream has been given.
    pub fn before(&self, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        wait_across(&*self.driver, (dev, stream), (self.dev, self.relay()?))
    }

    /// As [`Pool::record_stream`], for a stream of another device.
    pub fn record_stream_afar(&self, ptr: u64, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        let stream = match stream {
            StreamHandle::PER_THREAD => StreamHandle::LEGACY,
            s => s,
        };
        let source = Source { dev, stream, identity: self.driver.stream_id(dev, stream)? };
        let relay = self.relay()?;
        let lane = self.heap_for(relay)?.lane;
        match self.find(ptr, "record_stream")? {
            Found::Dedicated => {
                let mut core = lock(&*self.core);
                if let Some(d) = core.dedicated.get_mut(&ptr) {
                    d.add_user(lane);
                    self.announce(ptr, source);
                }
            }
            Found::Pooled { mut st, .. } => {
                note_user(&mut st, ptr, lane);
                self.announce(ptr, source);
            }
        }
        Ok(())
    }

    /// Called under the lock that keeps the allocation alive.
    fn announce(&self, ptr: u64, source: Source) {
        let mut announced = lock(&self.afar.announced);
        let sources = announced.entry(ptr).or_default();
        if !sources.contains(&source) {
            sources.push(source);
        }
        self.afar.count.store(announced.len() as u64, Relaxed);
    }

    /// Before the tags are taken that an allocation is freed with: the relay waits for its uses on other devices, which
    /// `users`, if it has any, then stand for. Called under the lock that keeps the allocation alive, which is where the count was
    /// changed, too.
    pub(super) fn bring_near(&self, ptr: u64, users: &mut Vec<u32>) {
        if users.is_empty() || self.afar.count.load(Relaxed) == 0 {
            return;
        }
        let sources = {
            let mut announced = lock(&self.afar.announced);
            let sources = announced.remove(&ptr);
            self.afar.count.store(announced.len() as u64, Relaxed);
            sources
        };
        if !sources.unwrap_or_default().iter().all(|s| self.follow_source(s).is_ok()) {
            self.order.owe();
            users.push(CONTEXT);
        }
    }

    /// As [`Self::bring_near`], for an allocation that lives on.
    pub(super) fn bring_near_alive(&self, ptr: u64) -> Result<()> {
        if self.afar.count.load(Relaxed) == 0 {
            return Ok(());
        }
        let sources = lock(&self.afar.announced).get(&ptr).cloned().unwrap_or_default();
        sources.iter().try_for_each(|s| self.follow_source(s))
    }

    fn follow_source(&self, source: &Source) -> Result<()> {
        let Source { dev, stream, identity } = *source;
        if self.driver.stream_id(dev, stream)? != identity {
            return Err(Error::new(Status::InvalidStream, format!("the stream {stream} of device {dev} is gone")));
        }
        self.after(dev, stream).map(drop)
    }

    /// Whether it is the relay: then a marker on it need not wait for anybody to name it.
    pub(super) fn is_relay(&self, stream: StreamHandle) -> bool {
        self.afar.relay.get() == Some(&stream)
    }

    fn relay(&self) -> Result<StreamHandle> {
        if let Some(&relay) = self.afar.relay.get() {
            return Ok(relay);
        }
        let stream = self.driver.stream_create(self.dev)?;
        if self.afar.relay.set(stream).is_err() {
            // Another thread was first.
            let _ = self.driver.stream_destroy(self.dev, stream);
        }
        Ok(self.afar.relay.get().copied().unwrap_or(stream))
    }
}

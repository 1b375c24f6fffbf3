//! Streams of other devices, on which memory of this one is freed or used.
//!
//! A lane is a stream of the pool's own device: its markers are recorded there, and the context's
//! marker covers it. A stream of another device therefore has no lane. What has to come after its
//! work comes after the *relay*, a stream of the pool's own: the relay waits, on the device, for an
//! event on the other stream, and the memory is freed in the relay's order. Besides that, only the
//! detector uses it, to fill memory and read it.
//!
//! A use that was only announced ([`Pool::record_stream_on_other_device`]) ends when the memory is
//! freed, so the relay waits for it then. The thread that frees may not be able to name the
//! per-thread stream that was announced; the legacy stream of its device stands for that, which
//! waits for all per-thread streams. Where nothing can be recorded at that time, because of a
//! capture, the memory goes to the context and the order owes a wait for the other devices
//! (`Order::owe`).
//!
//! Lock order: the list of announced uses comes after a heap's lock and the core's; nothing is
//! called under it.

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::wait_for_stream;
use crate::pool::order::CONTEXT;
use crate::pool::state::{Pool, RemoteStream};
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// A stream of this device for work that comes after everything submitted so far to a stream of
    /// another device. Fails with `Capturing` if that stream is being captured: an event on it
    /// would be part of the graph.
    pub fn after(&self, dev: DeviceId, stream: StreamHandle) -> Result<StreamHandle> {
        if self.driver.stream_is_capturing(dev, stream)? {
            let why = format!(
                "memory of device {0} cannot follow the stream {stream} of device {dev} while that, or a stream that it \
                 waits for, is being captured; name a stream of device {0}, or end the capture first",
                self.dev
            );
            return Err(Error::new(Status::Capturing, why));
        }
        let relay = self.relay()?;
        wait_for_stream(&*self.driver, (self.dev, relay), (dev, stream))?;
        Ok(relay)
    }

    /// Makes a stream of another device wait for everything submitted to [`Self::after`]'s stream.
    pub fn before(&self, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        wait_for_stream(&*self.driver, (dev, stream), (self.dev, self.relay()?))
    }

    /// Notes a use on another device. Called under the lock that keeps the allocation alive.
    pub(crate) fn announce(&self, ptr: u64, source: RemoteStream) {
        let mut announced = self.other_devices.announced.lock();
        let sources = announced.entry(ptr).or_default();
        if !sources.contains(&source) {
            sources.push(source);
        }
        self.other_devices.count.store(announced.len() as u64, Relaxed);
    }

    /// Makes the relay wait for an allocation's uses on other devices. `users`, unless it is empty,
    /// stands for them then. Called before the tags of its free are taken, under the lock that
    /// keeps the allocation alive, under which the count was changed, too.
    pub(crate) fn bring_near(&self, ptr: u64, users: &mut Vec<u32>) {
        if users.is_empty() || self.other_devices.count.load(Relaxed) == 0 {
            return;
        }
        let sources = {
            let mut announced = self.other_devices.announced.lock();
            let sources = announced.remove(&ptr);
            self.other_devices.count.store(announced.len() as u64, Relaxed);
            sources
        };
        if !sources.unwrap_or_default().iter().all(|s| self.follow_source(s).is_ok()) {
            self.order.owe();
            users.push(CONTEXT);
        }
    }

    /// Like [`Self::bring_near`], for an allocation that lives on.
    pub(crate) fn bring_near_alive(&self, ptr: u64) -> Result<()> {
        if self.other_devices.count.load(Relaxed) == 0 {
            return Ok(());
        }
        let sources = self.other_devices.announced.lock().get(&ptr).cloned().unwrap_or_default();
        sources.iter().try_for_each(|s| self.follow_source(s))
    }

    fn follow_source(&self, source: &RemoteStream) -> Result<()> {
        let RemoteStream { dev, stream, identity } = *source;
        if self.driver.stream_id(dev, stream)? != identity {
            return Err(Error::new(Status::InvalidStream, format!("the stream {stream} of device {dev} is gone")));
        }
        self.after(dev, stream).map(drop)
    }

    /// Whether this is the relay, on which a marker can be recorded without a caller that names it.
    pub(crate) fn is_relay(&self, stream: StreamHandle) -> bool {
        self.other_devices.relay.get() == Some(&stream)
    }

    pub(crate) fn relay(&self) -> Result<StreamHandle> {
        if let Some(&relay) = self.other_devices.relay.get() {
            return Ok(relay);
        }
        let stream = self.driver.stream_create(self.dev)?;
        if self.other_devices.relay.set(stream).is_err() {
            // Another thread was first.
            let _ = self.driver.stream_destroy(self.dev, stream);
        }
        Ok(self.other_devices.relay.get().copied().unwrap_or(stream))
    }
}

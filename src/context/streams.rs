//! Which device a stream is of, and memory that is used on streams of another device.
//!
//! Every device has a default stream, and one handle names them all. In a call that names a device,
//! the handle names that device's; elsewhere it names that of the calling thread's current device,
//! whatever device the memory in the call is on. So a pointer alone decides nothing, and a stream
//! passed with one need not be of its device.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::Context;
use crate::base::{DeviceId, Result, StreamHandle};
use crate::driver::Driver;
use crate::pool::Pool;

impl Context {
    /// The device of a stream that is passed without a device.
    #[inline]
    pub(super) fn home_of(&self, stream: StreamHandle) -> Result<DeviceId> {
        match self.pools.len() {
            1 => Ok(DeviceId(0)),
            _ if stream.is_default() => self.driver.current_device(),
            _ => self.driver.stream_device(stream),
        }
    }

    /// A stream of the pool's device that is ordered after what has been submitted to `stream`,
    /// which may be of another device.
    #[inline]
    pub(super) fn stream_after(&self, pool: &Pool, stream: StreamHandle) -> Result<StreamHandle> {
        let stream = stream.canonical();
        match self.home_of(stream)? {
            dev if dev == pool.device() => Ok(stream),
            dev => pool.after(dev, stream),
        }
    }

    /// [`Self::free_hit`] where there are several devices. In a frame of its own, which one
    /// device's hits do not pay for.
    #[inline(never)]
    pub(super) fn free_hit_on_one_of(&self, ptr: u64, stream: Option<StreamHandle>) -> bool {
        match stream {
            None => self.pools().any(|p| p.free_hit(ptr, None)),
            Some(s) if s.is_default() => {
                let here = self.driver.current_device().ok().and_then(|dev| self.made_pool(dev));
                here.is_some_and(|p| p.free_hit(ptr, Some(s)))
            }
            // A pool may remember the handle for a stream that is gone, and by now it may be one of
            // another device.
            Some(s) => self.pools().any(|p| p.knows(s) && p.free_hit(ptr, Some(s))),
        }
    }

    /// [`Self::realloc`] in the order of a stream of another device: the memory stays on its own,
    /// and follows a stream of the pool's there.
    pub(super) fn realloc_on_other_device(
        &self,
        pool: &Pool,
        (ptr, size): (u64, u64),
        (dev, stream): (DeviceId, StreamHandle),
    ) -> Result<u64> {
        let relay = pool.after(dev, stream)?;
        let new = self.realloc_on(pool, ptr, size, relay)?;
        // It is reallocated, and an error would say that it is not: so the host waits where the
        // stream cannot.
        match pool.before(dev, stream) {
            Ok(()) => Ok(new),
            Err(_) => self.driver.stream_sync(pool.device(), relay).map(|()| new),
        }
    }

    /// Waits until a stream has done everything submitted to it. Memory freed in its order is then
    /// free for every stream.
    pub fn stream_sync(&self, stream: StreamHandle) -> Result<()> {
        self.collect_graphs();
        let stream = stream.canonical();
        let dev = if stream.is_default() { self.home_of(stream)? } else { self.driver.stream_device(stream)? };
        match self.made_pool(dev) {
            Some(pool) => pool.sync_stream(stream),
            None => self.driver.stream_sync(dev, stream),
        }
    }

    /// Like [`Self::stream_sync`], for all streams of the current device.
    pub fn device_sync(&self) -> Result<()> {
        self.collect_graphs();
        let dev = self.driver.current_device()?;
        match self.made_pool(dev) {
            Some(pool) => pool.sync_device(),
            None => self.driver.device_sync(dev),
        }
    }

    /// Announces that the allocation is also used on `stream`: reuse waits for that use too. The
    /// stream must stay alive until the free.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let stream = stream.canonical();
        let dev = self.home_of(stream)?;
        self.record_stream_of(ptr, dev, stream)
    }

    /// Like [`Self::record_stream`], for a stream of the device that the memory is on.
    pub fn record_stream_at_home(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        let dev = self.info(ptr)?.device;
        self.record_stream_of(ptr, dev, stream.canonical())
    }

    fn record_stream_of(&self, ptr: u64, dev: DeviceId, stream: StreamHandle) -> Result<()> {
        self.want_pool("record_stream needs")?;
        match self.owner(ptr, "record_stream")? {
            pool if pool.device() == dev => pool.record_stream(ptr, stream),
            pool => pool.record_stream_on_other_device(ptr, dev, stream),
        }
    }
}

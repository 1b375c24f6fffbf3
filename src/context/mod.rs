//! One process's gpumem: configuration, the driver in use, and one pool per device.
//!
//! There is at most one global context, made by the first call that needs it; tests make their own.

pub mod backend;
pub mod config;
pub mod environment;

use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::driver::Driver;
use crate::pool::{AllocFlags, AllocInfo, PoolStats};
pub use config::Config;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What to allocate. `Default` is: no bytes, default alignment, the stream's device, the legacy stream, no flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Bytes; 0 gives a unique pointer that must be freed.
    pub size: u64,
    /// Alignment in bytes, a power of two; 0 means 256.
    pub align: u64,
    /// The device; `None` means the one the stream belongs to.
    pub device: Option<DeviceId>,
    /// The stream whose order the allocation follows.
    pub stream: StreamHandle,
    /// Special needs.
    pub flags: AllocFlags,
    /// A number of the caller's, shown in dumps.
    pub tag: u64,
}

/// The library's state in one process (or one test).
pub struct Context {
    driver: Arc<dyn Driver>,
}

#[allow(unused_variables)]
impl Context {
    /// The process's context, made from the environment on first use. A failure is reported and tried again by the
    /// next call.
    pub fn global() -> Result<&'static Context> {
        Err(Error::internal("not built yet"))
    }
    /// Makes the process's context from explicit options; `Invalid` when it exists already.
    pub fn init_global(config: Config) -> Result<&'static Context> {
        Err(Error::internal("not built yet"))
    }
    /// A context of one's own over any driver.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Context> {
        Ok(Context { driver })
    }
    /// The configuration in force.
    pub fn config(&self) -> &Config {
        todo!()
    }
    /// The driver, for device, stream and copy helpers. Calls through it are counted.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }
    /// How often each driver call was made, by name, in a fixed order.
    pub fn driver_calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Allocates; the memory is usable by work submitted to the request's stream from now on.
    pub fn malloc(&self, req: &Request) -> Result<u64> {
        Err(Error::internal("not built yet"))
    }
    /// Frees in the order of the stream it was allocated on. Null is allowed and does nothing.
    pub fn free(&self, ptr: u64) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Frees in the order of `stream`: all use of the memory has been submitted to `stream` or ordered before it.
    pub fn free_async(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Changes an allocation's size, in place where it can, else by copying in stream order.
    pub fn realloc(&self, ptr: u64, size: u64, stream: StreamHandle) -> Result<u64> {
        Err(Error::internal("not built yet"))
    }
    /// The allocation is also used on `stream`, which stays alive until it is freed: reuse waits for that use too.
    pub fn record_stream(&self, ptr: u64, stream: StreamHandle) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Facts about the live allocation that starts at `ptr`.
    pub fn info(&self, ptr: u64) -> Result<AllocInfo> {
        Err(Error::internal("not built yet"))
    }
    /// Facts about the live allocation that contains `ptr`.
    pub fn info_containing(&self, ptr: u64) -> Result<AllocInfo> {
        Err(Error::internal("not built yet"))
    }
    /// Gives free physical memory of every started pool back to the driver until no more than `keep` bytes stay
    /// mapped per device.
    pub fn trim(&self, keep: u64) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Counters of one device's pool.
    pub fn stats(&self, dev: DeviceId) -> Result<PoolStats> {
        Err(Error::internal("not built yet"))
    }
    /// Sets a peak counter back to the present value.
    pub fn reset_peaks(&self, dev: DeviceId) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Sets the most bytes the device's pool may map; below what is mapped now, only free memory goes.
    pub fn set_limit(&self, dev: DeviceId, bytes: u64) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// Every region of one device's pool in address order, in the notation of docs/spec/pool.md.
    pub fn dump(&self, dev: DeviceId) -> Result<String> {
        Err(Error::internal("not built yet"))
    }
    /// Checks every invariant of every pool.
    pub fn validate(&self) -> Result<()> {
        Err(Error::internal("not built yet"))
    }
    /// A file descriptor for an `EXPORTABLE` allocation, to be imported by another process.
    pub fn export_fd(&self, ptr: u64) -> Result<OwnedFd> {
        Err(Error::internal("not built yet"))
    }
    /// Maps exported memory of `size` bytes; freed like any allocation.
    pub fn import_fd(&self, dev: DeviceId, fd: &OwnedFd, size: u64) -> Result<u64> {
        Err(Error::internal("not built yet"))
    }
}

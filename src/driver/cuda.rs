//! The real driver, loaded at run time.

use super::{DeviceProps, Driver, EventHandle, MemInfo, PhysFlags, PhysHandle};
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The CUDA driver.
pub enum CudaDriver {}

impl CudaDriver {
    /// Loads the driver.
    pub fn open() -> Result<Arc<CudaDriver>> {
        Err(Error::new(Status::NoDevice, "the CUDA driver is not built yet"))
    }
}

#[allow(unused_variables)]
impl Driver for CudaDriver {
    fn backend(&self) -> &'static str {
        match *self {}
    }
    fn version(&self) -> String {
        match *self {}
    }
    fn device_count(&self) -> u32 {
        match *self {}
    }
    fn device_props(&self, dev: DeviceId) -> Result<DeviceProps> {
        match *self {}
    }
    fn current_device(&self) -> Result<DeviceId> {
        match *self {}
    }
    fn set_current_device(&self, dev: DeviceId) -> Result<()> {
        match *self {}
    }
    fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool> {
        match *self {}
    }
    fn mem_info(&self, dev: DeviceId) -> Result<MemInfo> {
        match *self {}
    }
    fn device_sync(&self, dev: DeviceId) -> Result<()> {
        match *self {}
    }
    fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64> {
        match *self {}
    }
    fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()> {
        match *self {}
    }
    fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle> {
        match *self {}
    }
    fn phys_release(&self, h: PhysHandle) -> Result<()> {
        match *self {}
    }
    fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd> {
        match *self {}
    }
    fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle> {
        match *self {}
    }
    fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()> {
        match *self {}
    }
    fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()> {
        match *self {}
    }
    fn unmap(&self, va: u64, size: u64) -> Result<()> {
        match *self {}
    }
    fn stream_device(&self, s: StreamHandle) -> Result<DeviceId> {
        match *self {}
    }
    fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64> {
        match *self {}
    }
    fn stream_is_capturing(&self, dev: DeviceId, s: StreamHandle) -> Result<bool> {
        match *self {}
    }
    fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle> {
        match *self {}
    }
    fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        match *self {}
    }
    fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        match *self {}
    }
    fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()> {
        match *self {}
    }
    fn event_create(&self, dev: DeviceId) -> Result<EventHandle> {
        match *self {}
    }
    fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        match *self {}
    }
    fn event_record(&self, dev: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()> {
        match *self {}
    }
    fn context_record(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        match *self {}
    }
    fn event_query(&self, dev: DeviceId, e: EventHandle) -> Result<bool> {
        match *self {}
    }
    fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        match *self {}
    }
    fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()> {
        match *self {}
    }
    fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()> {
        match *self {}
    }
    fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64> {
        match *self {}
    }
    fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()> {
        match *self {}
    }
    fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64> {
        match *self {}
    }
    fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()> {
        match *self {}
    }
}

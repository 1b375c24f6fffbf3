//! The driver of this process: results of its calls, contexts, capture modes.

use super::api::Api;
use super::code::{Code, CODE_DEINITIALIZED, CODE_OUT_OF_MEMORY, CODE_SUCCESS};
use super::device::{Bound, Device, Relaxed};
use super::error::{self, Subject};
use super::graphs::Graphs;
use super::handles::raw_stream;
use super::load::{load, Loaded};
use super::registered::Registered;
use crate::base::{size, DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::Watch;
use cudarc::driver::sys::CUcontext;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

const _: () = assert!(size_of::<usize>() == 8, "gpumem needs 64-bit addresses");

/// The CUDA driver of this process.
pub struct CudaDriver {
    pub(super) api: Api,
    pub(super) version: i32,
    pub(super) path: String,
    pub(super) devices: Box<[Device]>,
    /// Set by the first call that finds the driver shut down.
    pub(super) down: AtomicBool,
    /// Where the driver keeps a stream's identity and capture state, found on first use.
    pub(super) watch: OnceLock<Watch>,
    pub(super) graphs: Graphs,
    /// Host memory that is registered with the driver.
    pub(super) registered: Registered,
}

impl CudaDriver {
    /// Opens the driver like [`open`](super::open), from the first of `libraries` that exists.
    pub fn open_from(libraries: &[&str]) -> Result<Arc<CudaDriver>> {
        let Loaded { api, version, path, devices } = load(libraries)?;
        Ok(Arc::new(CudaDriver {
            api,
            version,
            path,
            devices: devices.into_iter().map(Device::new).collect(),
            down: AtomicBool::new(false),
            watch: OnceLock::new(),
            graphs: Graphs::default(),
            registered: Registered::default(),
        }))
    }

    /// The file that the driver was loaded from.
    pub fn library(&self) -> &str {
        &self.path
    }

    pub(super) fn device(&self, dev: DeviceId) -> Result<&Device> {
        self.devices.get(dev.0 as usize).ok_or_else(|| {
            Error::invalid(format!("there is no device {dev}: the driver has {}, counted from 0", self.devices.len()))
        })
    }

    // ---- results --------------------------------------------------------------------------------

    /// The result of a call that took no stream handle.
    #[inline]
    pub(super) fn check(&self, code: Code, call: &str, what: impl FnOnce() -> String) -> Result<()> {
        if code == CODE_SUCCESS {
            return Ok(());
        }
        Err(self.failure(code, Subject::Other, call, &what()))
    }

    /// The result of a call that took a stream handle.
    #[inline]
    pub(super) fn check_stream(&self, code: Code, call: &str, what: impl FnOnce() -> String) -> Result<()> {
        if code == CODE_SUCCESS {
            return Ok(());
        }
        Err(self.failure(code, Subject::Stream, call, &what()))
    }

    #[cold]
    pub(super) fn failure(&self, code: Code, subject: Subject, call: &str, what: &str) -> Error {
        if code == CODE_DEINITIALIZED {
            self.down.store(true, Ordering::Relaxed);
        }
        let mut text = format!("{call} ({what}) failed: {}", error::describe(&self.api, code));
        if code == CODE_OUT_OF_MEMORY && !call.starts_with("cuMemHost") {
            if let Some((free, total)) = self.memory_here() {
                text.push_str(&format!("; {} of {} is free", size::human(free), size::human(total)));
            }
        }
        Error::new(error::status(code, subject), text)
    }

    /// Free and total memory of the current context's device, if there is one.
    pub(super) fn memory_here(&self) -> Option<(u64, u64)> {
        let (mut context, mut free, mut total) = (std::ptr::null_mut(), 0, 0);
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.cuCtxGetCurrent)(&mut context) };
        if code != CODE_SUCCESS || context.is_null() {
            return None;
        }
        // SAFETY: writes two sizes; a context is current. Legal during capture.
        let code = unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        (code == CODE_SUCCESS).then_some((free as u64, total as u64))
    }

    /// Refuses once the driver is shut down.
    #[inline]
    pub(super) fn alive(&self) -> Result<()> {
        if self.down.load(Ordering::Relaxed) {
            return Err(Error::new(Status::ShuttingDown, "the CUDA driver is shut down; the process is exiting"));
        }
        Ok(())
    }

    // ---- contexts and capture modes -------------------------------------------------------------

    /// The device's primary context, retained on first use.
    #[inline]
    pub(super) fn context(&self, dev: DeviceId) -> Result<CUcontext> {
        match self.retained(dev) {
            Some(context) => Ok(context),
            None => self.retain(dev, self.device(dev)?),
        }
    }

    /// The device's primary context, if it has been retained.
    #[inline]
    pub(super) fn retained(&self, dev: DeviceId) -> Option<CUcontext> {
        let context = self.devices.get(dev.0 as usize)?.context.load(Ordering::Acquire);
        (!context.is_null()).then_some(context)
    }

    /// Whether this driver holds the device's primary context.
    pub fn holds(&self, dev: DeviceId) -> bool {
        self.retained(dev).is_some()
    }

    #[cold]
    pub(super) fn retain(&self, dev: DeviceId, device: &Device) -> Result<CUcontext> {
        let _one_at_a_time = device.retaining.lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = device.context.load(Ordering::Acquire);
        if context.is_null() {
            // Making a context allocates, which would end another thread's capture.
            let _relaxed = Relaxed::enter(&self.api).ok();
            // SAFETY: a device of this driver; writes one pointer.
            let code = unsafe { (self.api.cuDevicePrimaryCtxRetain)(&mut context, device.raw) };
            self.check(code, "cuDevicePrimaryCtxRetain", || format!("device {dev}"))?;
            device.context.store(context, Ordering::Release);
        }
        Ok(context)
    }

    /// Gives a thread that works on `dev` and has no context the one that CUDA's runtime would.
    pub(super) fn adopt(&self, dev: DeviceId) {
        // The next call reports any failure.
        let Ok(current) = self.alive().and_then(|()| self.current_context()) else { return };
        if !current.is_null() {
            return;
        }
        // A thread that works on another device does not create device 0's context, which costs
        // that device hundreds of MiB.
        if let Some(context) = self.retained(DeviceId(0)).or_else(|| (dev.0 == 0).then(|| self.context(dev).ok())?) {
            // SAFETY: a primary context that is never released.
            unsafe { (self.api.cuCtxSetCurrent)(context) };
        }
    }

    /// This thread's current context, null when it has none.
    #[inline]
    pub(super) fn current_context(&self) -> Result<CUcontext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.cuCtxGetCurrent)(&mut context) };
        self.check(code, "cuCtxGetCurrent", String::new)?;
        Ok(context)
    }

    /// Makes the device's primary context current until the guard is dropped; does nothing if it is
    /// current already.
    #[inline]
    pub(super) fn bind(&self, dev: DeviceId) -> Result<Bound<'_>> {
        self.alive()?;
        let context = self.context(dev)?;
        if self.current_context()? == context {
            return Ok(Bound::already(&self.api));
        }
        self.push(context)
    }

    /// Binds for calls that work in any context: the current one, else a retained one, so that no
    /// further device gets one.
    #[inline]
    pub(super) fn bind_any(&self) -> Result<Bound<'_>> {
        self.alive()?;
        if !self.current_context()?.is_null() {
            return Ok(Bound::already(&self.api));
        }
        self.push(self.context(self.first_retained().unwrap_or(DeviceId(0)))?)
    }

    /// The first device whose primary context has been retained.
    fn first_retained(&self) -> Option<DeviceId> {
        (0..self.devices.len() as u32).map(DeviceId).find(|&dev| self.retained(dev).is_some())
    }

    /// Binds for calls that work in any primary context: the device's if retained, else an existing
    /// one, so that no further device gets one. A context costs its device hundreds of MiB.
    pub(super) fn bind_near(&self, dev: DeviceId) -> Result<Bound<'_>> {
        self.device(dev)?;
        if self.retained(dev).is_some() {
            return self.bind(dev);
        }
        self.alive()?;
        let there = match self.first_retained() {
            Some(first) => first,
            // This may be the CUDA runtime's: retaining it creates no new context.
            None if !self.current_context()?.is_null() => self.device_of_thread()?,
            None => dev,
        };
        self.bind(there)
    }

    pub(super) fn push(&self, context: CUcontext) -> Result<Bound<'_>> {
        Bound::push(&self.api, context)
            .map_err(|code| self.failure(code, Subject::Other, "cuCtxPushCurrent", "primary context"))
    }

    /// Puts this thread in relaxed capture mode until the guard is dropped.
    #[inline]
    pub(super) fn relax(&self) -> Result<Relaxed<'_>> {
        Relaxed::enter(&self.api)
            .map_err(|code| self.failure(code, Subject::Other, "cuThreadExchangeStreamCaptureMode", "relaxed"))
    }

    /// The current context's device; device 0 when there is no context.
    pub(super) fn device_of_thread(&self) -> Result<DeviceId> {
        self.alive()?;
        let context = self.current_context()?;
        if context.is_null() {
            return Ok(DeviceId(0));
        }
        if let Some(dev) = self.device_of_primary(context) {
            return Ok(dev);
        }
        let mut raw = 0;
        // SAFETY: writes one int; a context is current.
        let code = unsafe { (self.api.cuCtxGetDevice)(&mut raw) };
        self.check(code, "cuCtxGetDevice", String::new)?;
        self.device_of_raw(raw)
    }

    /// The device whose retained primary context this is.
    pub(super) fn device_of_primary(&self, context: CUcontext) -> Option<DeviceId> {
        let i = self.devices.iter().position(|d| d.context.load(Ordering::Acquire) == context)?;
        Some(DeviceId(i as u32))
    }

    pub(super) fn device_of_raw(&self, raw: i32) -> Result<DeviceId> {
        match self.devices.iter().position(|d| d.raw == raw) {
            Some(i) => Ok(DeviceId(i as u32)),
            None => Err(Error::internal(format!("CUDA names a device {raw} that it did not list"))),
        }
    }

    /// The device of a created stream.
    pub(super) fn device_of_stream(&self, s: StreamHandle) -> Result<DeviceId> {
        let stream = raw_stream(s);
        let mut raw = 0;
        if let Some(get_device) = self.api.cuStreamGetDevice {
            // SAFETY: the caller vouches for the stream; writes one int.
            let code = unsafe { get_device(stream, &mut raw) };
            self.check_stream(code, "cuStreamGetDevice", || format!("stream {s}"))?;
            return self.device_of_raw(raw);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller vouches for the stream; writes one pointer.
        let code = unsafe { (self.api.cuStreamGetCtx)(stream, &mut context) };
        self.check_stream(code, "cuStreamGetCtx", || format!("stream {s}"))?;
        if let Some(dev) = self.device_of_primary(context) {
            return Ok(dev);
        }
        let _bound = self.push(context)?;
        self.device_of_thread()
    }
}

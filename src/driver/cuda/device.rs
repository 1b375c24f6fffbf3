//! Per-device state, and the guards that lend a thread the right context and capture mode.

use super::api::Api;
use super::code::{Code, CODE_SUCCESS};
use cudarc::driver::sys::{CUcontext, CUctx_st, CUdevice, CUstreamCaptureMode, CU_MEM_CREATE_USAGE_HW_DECOMPRESS};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16};
use std::sync::{Mutex, OnceLock};

use crate::driver::DeviceProps;

/// One device of the process.
pub(super) struct Device {
    /// The driver's name for it.
    pub raw: CUdevice,
    /// The primary context, null until first needed. Retained once and never released: the
    /// process's other users of the primary context come and go, and our memory lives in it to the
    /// end.
    pub context: AtomicPtr<CUctx_st>,
    /// Held while the context is retained, so that it is retained once.
    pub retaining: Mutex<()>,
    /// Facts, read once.
    pub props: OnceLock<DeviceProps>,
    /// `CUmemAllocationProp::allocFlags::usage` of memory created on this device: usable for
    /// hardware decompression, as memory from `cuMemAlloc` is, even on devices without that
    /// hardware. It costs nothing and cannot be added later. 0 once the driver has refused the
    /// flag, new in 12.8.
    pub usage: AtomicU16,
    /// Whether the default pool of `cuMemAllocAsync` has been told to keep its memory.
    pub native_ready: AtomicBool,
}

impl Device {
    pub fn new(raw: CUdevice) -> Device {
        Device {
            raw,
            context: AtomicPtr::new(std::ptr::null_mut()),
            retaining: Mutex::new(()),
            props: OnceLock::new(),
            usage: AtomicU16::new(CU_MEM_CREATE_USAGE_HW_DECOMPRESS as u16),
            native_ready: AtomicBool::new(false),
        }
    }
}

/// Keeps a context current on this thread until dropped, then leaves the thread as it was. `!Send`:
/// the stack of current contexts belongs to the thread.
pub(super) struct Bound<'a> {
    api: &'a Api,
    pushed: bool,
    _thread: PhantomData<*mut ()>,
}

impl<'a> Bound<'a> {
    /// A guard for a thread on which the right context is already current.
    pub fn already(api: &'a Api) -> Bound<'a> {
        Bound { api, pushed: false, _thread: PhantomData }
    }

    /// Pushes `context` on top of the current one.
    pub fn push(api: &'a Api, context: CUcontext) -> Result<Bound<'a>, Code> {
        // SAFETY: a primary context that is never released, or one that the driver just named as a
        // live stream's.
        match unsafe { (api.cuCtxPushCurrent_v2)(context) } {
            CODE_SUCCESS => Ok(Bound { api, pushed: true, _thread: PhantomData }),
            code => Err(code),
        }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: undoes this guard's push on the same thread. A failure means that the driver
            // is shutting down, and then there is no context left to restore.
            unsafe { (self.api.cuCtxPopCurrent_v2)(&mut popped) };
        }
    }
}

/// Puts this thread in relaxed capture mode until dropped: calls that are unsafe during capture
/// then neither fail nor invalidate a capture, of this thread or of any other. `!Send`: the mode
/// belongs to the thread.
pub(super) struct Relaxed<'a> {
    api: &'a Api,
    previous: Code,
    _thread: PhantomData<*mut ()>,
}

impl<'a> Relaxed<'a> {
    pub fn enter(api: &'a Api) -> Result<Relaxed<'a>, Code> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as Code;
        match exchange(api, &mut mode) {
            CODE_SUCCESS => Ok(Relaxed { api, previous: mode, _thread: PhantomData }),
            code => Err(code),
        }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        let mut mode = self.previous;
        // A failure means that the driver is shutting down, when modes no longer matter.
        exchange(self.api, &mut mode);
    }
}

/// Swaps this thread's capture mode with `mode`.
fn exchange(api: &Api, mode: &mut Code) -> Code {
    // SAFETY: the parameter is read and written as an unsigned int, which CUstreamCaptureMode is;
    // the value passed is one of the driver's own. This side keeps it as a number, so a mode newer
    // than the bindings does no harm.
    unsafe { (api.cuThreadExchangeStreamCaptureMode)((mode as *mut Code).cast::<CUstreamCaptureMode>()) }
}

//! Types every entry point uses, and their conversions. The header's prologue declares the handles
//! here by hand.

use crate::base::{DeviceId, Error, Result, StreamHandle};
use crate::context::Context;
use crate::tier::Wait;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// CUDA's stream object. Never looked into here.
#[repr(C)]
pub struct CUstream_st {
    _opaque: [u8; 0],
}

/// A `cudaStream_t` / `CUstream`; null is the legacy default stream.
#[allow(non_camel_case_types)]
pub type gpumem_stream = *mut CUstream_st;

/// The type that a `gpumem_arena` points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_arena_st(());

/// A handle to an arena; see [`crate::capi::arena::scope`].
#[allow(non_camel_case_types)]
pub type gpumem_arena = *mut gpumem_arena_st;

/// The type that a `gpumem_reservation` points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_reservation_st(());

/// A handle to a reservation; see [`crate::capi::tiers::reserve`].
#[allow(non_camel_case_types)]
pub type gpumem_reservation = *mut gpumem_reservation_st;

/// The core's name for a stream.
pub(in crate::capi) fn stream(s: gpumem_stream) -> StreamHandle {
    StreamHandle(s as usize).canonical()
}

/// The core's name for a device, if there is such a device.
pub(in crate::capi) fn device_id(ctx: &Context, ordinal: c_int) -> Result<DeviceId> {
    let count = ctx.driver().device_count();
    match u32::try_from(ordinal) {
        Ok(d) if d < count => Ok(DeviceId(d)),
        _ => Err(Error::invalid(format!("device {ordinal} does not exist: there are {count}, counted from 0"))),
    }
}

/// An address as the core counts it.
pub(in crate::capi) fn address(ptr: *const c_void) -> u64 {
    ptr as usize as u64
}

/// A device address as C holds it. Addresses come from this process's address space, so they always
/// fit.
pub(in crate::capi) fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

/// How long to wait, from C's milliseconds.
pub(in crate::capi) fn wait(timeout_ms: u64) -> Wait {
    match timeout_ms {
        0 => Wait::No,
        u64::MAX => Wait::Forever,
        ms => Wait::For(Duration::from_millis(ms)),
    }
}

/// Fails if a pointer parameter is null.
pub(in crate::capi) fn not_null<T>(ptr: *const T, parameter: &str) -> Result<()> {
    if ptr.is_null() {
        return Err(Error::invalid(format!("{parameter} is NULL")));
    }
    Ok(())
}

//! Devices
//!
//! These calls work on a GPU and on the host device alike, so that one source runs on both. Devices
//! are counted from 0 as CUDA counts them. The current device is CUDA's: setting it here or with
//! cudaSetDevice is the same thing. (With a CUDA 11 runtime, cudaSetDevice takes effect at the next
//! call of the runtime that needs a device.)
//!
//! gpumem works in each device's primary context, which is the CUDA runtime's. While a context made
//! with cuCtxCreate is current, CUDA takes NULL and GPUMEM_STREAM_PER_THREAD as that context's
//! default streams, and gpumem as the primary context's: pass streams that the program made.
//! cudaDeviceReset and cuDevicePrimaryCtxReset take the memory away from under gpumem, so a program
//! that calls gpumem must not call them. Under `gpumem run` it may.

use crate::capi::call::arguments::{guard_out, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::text;
use crate::capi::call::types::device_id;
use crate::context::Context;
use std::ffi::{c_char, c_int};

/// Facts about a device.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gpumem_device_props {
    /// sizeof(gpumem_device_props), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// 1 when virtual memory management works on it; the pool needs it.
    pub vmm: u32,
    /// 1 when memory can be exported as a file descriptor (GPUMEM_MALLOC_EXPORTABLE).
    pub posix_fd: u32,
    /// 1 when memory can be used for RDMA.
    pub rdma: u32,
    /// Major number of the compute capability; 0 on the host device.
    pub compute_major: u32,
    /// Minor number of the compute capability; 0 on the host device.
    pub compute_minor: u32,
    /// Physical memory, bytes.
    pub total_bytes: u64,
    /// Physical memory is created and mapped in multiples of this, bytes.
    pub granularity: u64,
    /// Product name, terminated.
    pub name: [c_char; 128],
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_device_props, 168, 6 * 4 + 2 * 8 + 128);

/// How many devices there are, at least 1.
///
/// out receives the count. Errors: GPUMEM_ERROR_INVALID when out is NULL.
#[no_mangle]
pub unsafe extern "C" fn gpumem_device_count_get(out: *mut c_int) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe { guard_out(out, || Ok(c_int::try_from(Context::global()?.driver().device_count()).unwrap_or(c_int::MAX))) }
}

/// The calling thread's current device.
///
/// out receives its number. Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_device_get(out: *mut c_int) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe {
        guard_out(out, || Ok(c_int::try_from(Context::global()?.driver().current_device()?.0).unwrap_or(c_int::MAX)))
    }
}

/// Makes a device the calling thread's current one.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_device_set(device: c_int) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        ctx.driver().set_current_device(device_id(ctx, device)?)
    })
}

/// Waits until everything submitted to the current device is done. Blocks. Memory freed there
/// before this call is free for every stream after it.
///
/// Errors: GPUMEM_ERROR_CAPTURING during a stream capture that forbids it, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_device_sync() -> gpumem_status {
    guard(|| Context::global()?.device_sync())
}

/// Facts about a device.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device,
/// out is NULL or its size impossible; GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_device_props_get(device: c_int, out: *mut gpumem_device_props) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let ctx = Context::global()?;
        let props = ctx.driver().device_props(device_id(ctx, device)?)?;
        let value = gpumem_device_props {
            size: 0,
            vmm: props.vmm.into(),
            posix_fd: props.posix_fd.into(),
            rdma: props.rdma.into(),
            compute_major: props.compute.0,
            compute_minor: props.compute.1,
            total_bytes: props.total_bytes,
            granularity: props.granularity,
            name: text::fill(&props.name),
        };
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// Gets a device's free and total memory in bytes, as the driver sees it for all processes
/// together.
///
/// Either output may be NULL. Legal during a stream capture. Errors: GPUMEM_ERROR_INVALID when
/// there is no such device, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_device_memory_get(
    device: c_int,
    free_bytes: *mut usize,
    total_bytes: *mut usize,
) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        let info = ctx.driver().mem_info(device_id(ctx, device)?)?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(free_bytes, info.free as usize) };
        // SAFETY: as above.
        unsafe { put(total_bytes, info.total as usize) };
        Ok(())
    })
}

//! Copying and filling
//!
//! Copies go between device memory and host memory in any direction. The asynchronous forms return
//! before the work is done: host memory must stay valid until the stream has passed it. Copies from
//! or to host memory that is not page-locked may block.

use crate::base::{Error, Result, StreamHandle};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::types::{address, gpumem_stream, not_null, stream};
use crate::context::Context;
use std::ffi::{c_int, c_void};

/// Copies bytes from src to dst in the order of a stream.
///
/// Either may be device or host memory; they must not overlap. 0 bytes does nothing, whatever the
/// pointers.
/// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, the ranges overlap or wrap around, or, on
/// the host device, for device memory that is not mapped;
/// GPUMEM_ERROR_USE_AFTER_FREE for memory that was unmapped when its arena ended
/// (GPUMEM_ARENA_DEBUG=unmap); GPUMEM_ERROR_CAPTURING when s is being captured and cannot do it
/// then, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_memcpy_async(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    s: gpumem_stream,
) -> gpumem_status {
    guard(|| {
        check_copy(dst, src, bytes)?;
        copy(Context::global()?, dst, src, bytes, stream(s))
    })
}

/// Copies bytes from src to dst in the order of the legacy default stream, and waits until it is
/// done.
///
/// Like gpumem_memcpy_async, but blocks: GPUMEM_ERROR_CAPTURING during a stream capture that
/// forbids it.
#[no_mangle]
pub unsafe extern "C" fn gpumem_memcpy(dst: *mut c_void, src: *const c_void, bytes: usize) -> gpumem_status {
    guard(|| {
        check_copy(dst, src, bytes)?;
        let ctx = Context::global()?;
        blocking(ctx, || copy(ctx, dst, src, bytes, StreamHandle::LEGACY))
    })
}

/// Fills device memory with a byte, in the order of a stream.
///
/// value is converted to unsigned char, as memset does. 0 bytes does nothing, whatever the pointer.
/// Errors: GPUMEM_ERROR_INVALID when dst is NULL or the range wraps around, or, on the host device,
/// for memory that is not mapped;
/// GPUMEM_ERROR_USE_AFTER_FREE as for gpumem_memcpy_async; GPUMEM_ERROR_CAPTURING when s is being
/// captured and cannot do it then, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_memset_async(
    dst: *mut c_void,
    value: c_int,
    bytes: usize,
    s: gpumem_stream,
) -> gpumem_status {
    guard(|| {
        check_range(dst, bytes, "dst")?;
        set(Context::global()?, dst, value, bytes, stream(s))
    })
}

/// Fills device memory with a byte in the order of the legacy default stream, and waits until it is
/// done.
///
/// Like gpumem_memset_async, but blocks: GPUMEM_ERROR_CAPTURING during a stream capture that
/// forbids it.
#[no_mangle]
pub unsafe extern "C" fn gpumem_memset(dst: *mut c_void, value: c_int, bytes: usize) -> gpumem_status {
    guard(|| {
        check_range(dst, bytes, "dst")?;
        let ctx = Context::global()?;
        blocking(ctx, || set(ctx, dst, value, bytes, StreamHandle::LEGACY))
    })
}

/// Submits work to the legacy stream and waits for it. Waits before, too: a capture that forbids
/// waiting is met while nothing has been done.
fn blocking(ctx: &Context, submit: impl FnOnce() -> Result<()>) -> Result<()> {
    let driver = ctx.driver();
    let sync = || driver.stream_sync(driver.current_device()?, StreamHandle::LEGACY);
    sync()?;
    submit()?;
    sync()
}

fn copy(ctx: &Context, dst: *mut c_void, src: *const c_void, bytes: usize, s: StreamHandle) -> Result<()> {
    let (driver, dst, src, bytes) = (ctx.driver(), address(dst), address(src), bytes as u64);
    let dev = driver.stream_device(s)?;
    if bytes == 0 {
        return Ok(());
    }
    ctx.check_mapped(&[(dst, bytes), (src, bytes)])?;
    driver.copy_async(dev, dst, src, bytes, s).map_err(|e| ctx.explain(e, &[(dst, bytes), (src, bytes)]))
}

fn set(ctx: &Context, dst: *mut c_void, value: c_int, bytes: usize, s: StreamHandle) -> Result<()> {
    let (driver, dst, bytes) = (ctx.driver(), address(dst), bytes as u64);
    let dev = driver.stream_device(s)?;
    if bytes == 0 {
        return Ok(());
    }
    ctx.check_mapped(&[(dst, bytes)])?;
    driver.set_async(dev, dst, value as u8, bytes, s).map_err(|e| ctx.explain(e, &[(dst, bytes)]))
}

fn check_copy(dst: *const c_void, src: *const c_void, bytes: usize) -> Result<()> {
    check_range(dst, bytes, "dst")?;
    check_range(src, bytes, "src")?;
    if address(dst).abs_diff(address(src)) < bytes as u64 {
        return Err(Error::invalid(format!("cannot copy {bytes} bytes from {src:p} to {dst:p}: the ranges overlap")));
    }
    Ok(())
}

fn check_range(ptr: *const c_void, bytes: usize, parameter: &str) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    not_null(ptr, parameter)?;
    match address(ptr).checked_add(bytes as u64) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!("{bytes} bytes from {parameter} {ptr:p} end beyond the address space"))),
    }
}

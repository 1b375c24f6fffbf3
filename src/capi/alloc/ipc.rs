//! Sharing with other processes
//!
//! Memory allocated with GPUMEM_MALLOC_EXPORTABLE can be handed to another process as a file
//! descriptor, sent over a Unix socket or inherited. Both processes then see the same memory and
//! must order their own work on it. gpumem_realloc_async makes other memory of exportable memory,
//! which is exportable too and has to be exported again; imported memory keeps its size.

use crate::base::{Error, Result};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::types::{address, device_id, not_null, pointer};
use crate::context::Context;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Makes a file descriptor for an allocation.
///
/// ptr is the start of a live allocation made with GPUMEM_MALLOC_EXPORTABLE. out receives the
/// descriptor, which the caller owns and closes; it keeps the memory alive, as every import does.
/// It is closed by exec.
/// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, or the allocation is of 0 bytes or not
/// exportable; GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_DOUBLE_FREE when it was freed,
/// GPUMEM_ERROR_UNSUPPORTED (with GPUMEM_POOL=off), GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_export_fd(ptr: *const c_void, out: *mut c_int) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        not_null(out, "out")?;
        let fd = Context::global()?.export_fd(address(ptr))?;
        // SAFETY: not null, so a writable int by the contract.
        unsafe { out.write(fd.into_raw_fd()) };
        Ok(())
    })
}

/// Maps memory that gpumem_export_fd exported, in this or another process.
///
/// fd stays the caller's and may be closed afterwards. bytes is the size that the exporter asked
/// for. Both processes must have the same GPUMEM_PAGE_SIZE. Imported memory counts as mapped in
/// both, and takes nothing more from the device. out receives the memory on the given device. The
/// caller owns it and frees it like any other; the other processes keep theirs. A wrong size within
/// the same number of pages goes unnoticed.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, fd is not a descriptor, bytes is 0 or not the
/// exported size, or there is no such device; GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_UNSUPPORTED
/// (with GPUMEM_POOL=off), GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_import_fd(
    fd: c_int,
    bytes: usize,
    device: c_int,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let fd = borrowed(fd)?;
        if bytes == 0 {
            return Err(Error::invalid("cannot import 0 bytes; pass the size that the exporter asked for"));
        }
        let ctx = Context::global()?;
        let ptr = ctx.import_fd(device_id(ctx, device)?, &fd, bytes as u64)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(ptr)) };
        Ok(())
    })
}

/// A descriptor of the caller's, to look at and not to close.
fn borrowed(fd: c_int) -> Result<ManuallyDrop<OwnedFd>> {
    // SAFETY: F_GETFD takes any number and touches no memory.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Error::invalid(format!("{fd} is not an open file descriptor")));
    }
    // SAFETY: it is open (just checked), stays so during the call by the contract, and is never
    // closed through this.
    Ok(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

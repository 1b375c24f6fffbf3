//! Errors
//!
//! A function that can fail returns a gpumem_status. Where its type leaves no room for one, it
//! returns NULL or 0, and gpumem_last_status has the status. Each thread keeps the text of its last
//! failure: what was asked, what there was, and, where that is not plain, what to do next. Success
//! does not clear it.

use super::last_error;
use crate::base::Status;
use std::ffi::{c_char, CStr};

/// The outcome of a call: GPUMEM_OK or one of GPUMEM_ERROR_*. Numbers are never reused; expect new
/// ones.
#[allow(non_camel_case_types)]
pub type gpumem_status = i32;

/// Success.
pub const GPUMEM_OK: gpumem_status = 0;
/// An argument, option or combination of flags is not allowed.
pub const GPUMEM_ERROR_INVALID: gpumem_status = 1;
/// The request does not fit the device, the configured limit or the address space.
pub const GPUMEM_ERROR_OUT_OF_MEMORY: gpumem_status = 2;
/// The pointer was never handed out, or points into the middle of an allocation.
pub const GPUMEM_ERROR_UNKNOWN_POINTER: gpumem_status = 3;
/// The pointer was handed out and has been freed already. Once its memory has merged with other
/// free memory, gpumem cannot recognise it and returns GPUMEM_ERROR_UNKNOWN_POINTER.
pub const GPUMEM_ERROR_DOUBLE_FREE: gpumem_status = 4;
/// A driver call failed; the text names the call and the driver's error.
pub const GPUMEM_ERROR_DRIVER: gpumem_status = 5;
/// There is no usable driver or device.
pub const GPUMEM_ERROR_NO_DEVICE: gpumem_status = 6;
/// This driver, device or build cannot do what was asked.
pub const GPUMEM_ERROR_UNSUPPORTED: gpumem_status = 7;
/// An environment variable or context option does not parse, or names a missing directory.
pub const GPUMEM_ERROR_CONFIG: gpumem_status = 8;
/// The process was forked after gpumem had started; children must not use it.
pub const GPUMEM_ERROR_FORKED: gpumem_status = 9;
/// A bug in gpumem: an internal check failed or a panic was caught.
pub const GPUMEM_ERROR_INTERNAL: gpumem_status = 10;
/// The driver is shutting down, or the stream pool or all waits for reservations were closed.
pub const GPUMEM_ERROR_SHUTTING_DOWN: gpumem_status = 11;
/// Not legal while a stream capture is in progress.
pub const GPUMEM_ERROR_CAPTURING: gpumem_status = 12;
/// The handle is not a stream, or no longer one. Only the host device can tell; CUDA crashes.
pub const GPUMEM_ERROR_INVALID_STREAM: gpumem_status = 13;
/// Freed memory was used or written to. gpumem_check and its relatives return this, and with
/// GPUMEM_ARENA_DEBUG=unmap copies and fills do too.
pub const GPUMEM_ERROR_USE_AFTER_FREE: gpumem_status = 14;
/// A wait ended at its timeout, before there was room.
pub const GPUMEM_ERROR_TIMED_OUT: gpumem_status = 15;
/// A wait or a move was cancelled.
pub const GPUMEM_ERROR_CANCELLED: gpumem_status = 16;
/// A file could not be read or written; the text names the file and the system's error.
pub const GPUMEM_ERROR_IO: gpumem_status = 17;
/// Data in the disk tier is not what was written there: truncated, or altered.
pub const GPUMEM_ERROR_CORRUPT: gpumem_status = 18;

/// The name of a status, such as "GPUMEM_ERROR_INVALID".
///
/// Never NULL: an unknown number gives "GPUMEM_ERROR_?". The string is static. Needs no device,
/// cannot fail.
#[no_mangle]
pub extern "C" fn gpumem_status_name(status: gpumem_status) -> *const c_char {
    name(status).as_ptr()
}

/// The status of this thread's last failed call, GPUMEM_OK when none has failed.
///
/// For functions that return NULL or 0 on failure. Needs no device, cannot fail.
#[no_mangle]
pub extern "C" fn gpumem_last_status() -> gpumem_status {
    last_error::last_status() as gpumem_status
}

/// Copies the text of this thread's last failed call, cut to fit and always terminated.
///
/// buf may be NULL when cap is 0; cap is in bytes. Returns the length of the whole text in bytes
/// without its NUL (0 when nothing has failed), so a return value of cap or more means that it was
/// cut. Texts are UTF-8, at most 1000 bytes, and for people: compare statuses, not texts. Needs no
/// device, cannot fail.
#[no_mangle]
pub unsafe extern "C" fn gpumem_last_error(buf: *mut c_char, cap: usize) -> usize {
    // SAFETY: the caller passes NULL or `cap` writable bytes.
    unsafe { last_error::last_text(buf, cap) }
}

fn name(status: gpumem_status) -> &'static CStr {
    match Status::from_code(status) {
        Some(Status::Ok) => c"GPUMEM_OK",
        Some(Status::Invalid) => c"GPUMEM_ERROR_INVALID",
        Some(Status::OutOfMemory) => c"GPUMEM_ERROR_OUT_OF_MEMORY",
        Some(Status::UnknownPointer) => c"GPUMEM_ERROR_UNKNOWN_POINTER",
        Some(Status::DoubleFree) => c"GPUMEM_ERROR_DOUBLE_FREE",
        Some(Status::Driver) => c"GPUMEM_ERROR_DRIVER",
        Some(Status::NoDevice) => c"GPUMEM_ERROR_NO_DEVICE",
        Some(Status::Unsupported) => c"GPUMEM_ERROR_UNSUPPORTED",
        Some(Status::Config) => c"GPUMEM_ERROR_CONFIG",
        Some(Status::Forked) => c"GPUMEM_ERROR_FORKED",
        Some(Status::Internal) => c"GPUMEM_ERROR_INTERNAL",
        Some(Status::ShuttingDown) => c"GPUMEM_ERROR_SHUTTING_DOWN",
        Some(Status::Capturing) => c"GPUMEM_ERROR_CAPTURING",
        Some(Status::InvalidStream) => c"GPUMEM_ERROR_INVALID_STREAM",
        Some(Status::UseAfterFree) => c"GPUMEM_ERROR_USE_AFTER_FREE",
        Some(Status::TimedOut) => c"GPUMEM_ERROR_TIMED_OUT",
        Some(Status::Cancelled) => c"GPUMEM_ERROR_CANCELLED",
        Some(Status::Io) => c"GPUMEM_ERROR_IO",
        Some(Status::Corrupt) => c"GPUMEM_ERROR_CORRUPT",
        None => c"GPUMEM_ERROR_?",
    }
}

// The constants are literals, for the header's sake; these lines keep them and the core's numbers
// the same.
const _: () = {
    assert!(GPUMEM_OK == Status::Ok as i32);
    assert!(GPUMEM_ERROR_INVALID == Status::Invalid as i32);
    assert!(GPUMEM_ERROR_OUT_OF_MEMORY == Status::OutOfMemory as i32);
    assert!(GPUMEM_ERROR_UNKNOWN_POINTER == Status::UnknownPointer as i32);
    assert!(GPUMEM_ERROR_DOUBLE_FREE == Status::DoubleFree as i32);
    assert!(GPUMEM_ERROR_DRIVER == Status::Driver as i32);
    assert!(GPUMEM_ERROR_NO_DEVICE == Status::NoDevice as i32);
    assert!(GPUMEM_ERROR_UNSUPPORTED == Status::Unsupported as i32);
    assert!(GPUMEM_ERROR_CONFIG == Status::Config as i32);
    assert!(GPUMEM_ERROR_FORKED == Status::Forked as i32);
    assert!(GPUMEM_ERROR_INTERNAL == Status::Internal as i32);
    assert!(GPUMEM_ERROR_SHUTTING_DOWN == Status::ShuttingDown as i32);
    assert!(GPUMEM_ERROR_CAPTURING == Status::Capturing as i32);
    assert!(GPUMEM_ERROR_INVALID_STREAM == Status::InvalidStream as i32);
    assert!(GPUMEM_ERROR_USE_AFTER_FREE == Status::UseAfterFree as i32);
    assert!(GPUMEM_ERROR_TIMED_OUT == Status::TimedOut as i32);
    assert!(GPUMEM_ERROR_CANCELLED == Status::Cancelled as i32);
    assert!(GPUMEM_ERROR_IO == Status::Io as i32);
    assert!(GPUMEM_ERROR_CORRUPT == Status::Corrupt as i32);
    assert!(Status::ALL.len() == 19);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_cores() {
        for s in Status::ALL {
            assert_eq!(name(s as i32).to_str(), Ok(s.name()));
        }
        for n in [-1, 19, i32::MIN, i32::MAX] {
            assert_eq!(name(n), c"GPUMEM_ERROR_?");
        }
    }
}

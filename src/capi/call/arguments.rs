//! Text and arrays that come in from C, and where results go.

use super::error::gpumem_status;
use super::guard::guard;
use super::types::not_null;
use crate::base::{Error, Result};
use crate::plan::problem::MAX_BUFFERS;
use std::ffi::{c_char, CStr};

/// Text of the caller's, or nothing for null.
///
/// # Safety
/// `text` is null or a terminated string that stays as it is for `'a`.
pub(in crate::capi) unsafe fn name<'a>(text: *const c_char, parameter: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so a terminated string by the contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|e| Error::invalid(format!("{parameter} is not UTF-8: {e}")))
}

/// An array of the caller's; it may be null when it is empty.
///
/// # Safety
/// `ptr` is null or has `len` readable elements that stay as they are for `'a`.
pub(in crate::capi) unsafe fn array<'a, T>(ptr: *const T, len: usize, parameter: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    not_null(ptr, parameter)?;
    if len > MAX_BUFFERS || !ptr.is_aligned() {
        return Err(Error::invalid(format!(
            "{parameter} has {len} elements at {ptr:p}; it must be aligned, with at most {MAX_BUFFERS} elements"
        )));
    }
    // SAFETY: not null, aligned, and by the contract `len` elements; `MAX_BUFFERS` of them are far
    // below `isize::MAX`.
    Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
}

/// Runs an entry point that gives one value, and writes it to `out`, which must not be null.
///
/// # Safety
/// `out` is null or a place to write to.
pub(in crate::capi) unsafe fn guard_out<T>(out: *mut T, entry: impl FnOnce() -> Result<T>) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let value = entry()?;
        // SAFETY: not null, so a place to write to by the contract.
        unsafe { out.write(value) };
        Ok(())
    })
}

/// Writes a result to where the caller wants it. Null is allowed: then it writes nothing.
///
/// # Safety
/// `to` is null or a place to write to.
pub(in crate::capi) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, so a place to write to by the contract.
        unsafe { to.write(value) };
    }
}

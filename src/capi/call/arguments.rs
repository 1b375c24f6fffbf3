//! Text and arrays that come in from C, and places for results.

use super::error::gpumem_status;
use super::guard::guard;
use super::text;
use super::types::not_null;
use crate::base::{Error, Result};
use crate::plan::problem::MAX_BUFFERS;
use std::ffi::{c_char, CStr};

/// The caller's text; `None` for null.
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

/// The caller's array, which may be null if it is empty.
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

/// Runs an entry point that returns one value, and writes it to `out`, which must not be null.
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

/// Runs an entry point that gives a text. Copies as much of it as fits to `buf`, which may be null
/// when `cap` is 0; `needed` receives the bytes that the whole text takes, its NUL included.
///
/// # Safety
/// `buf` is null or `cap` writable bytes, `needed` null or a place to write to.
pub(in crate::capi) unsafe fn guard_text(
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
    entry: impl FnOnce() -> Result<String>,
) -> gpumem_status {
    guard(|| {
        if cap > 0 {
            not_null(buf, "buf")?;
        }
        let said = entry()?;
        // SAFETY: passed on from the caller.
        let len = unsafe { text::copy_out(said.as_bytes(), buf, cap) };
        // SAFETY: passed on from the caller.
        unsafe { put(needed, len + 1) };
        Ok(())
    })
}

/// Runs an entry point that gives a list. Writes its first `cap` elements to `out`, which may be
/// null when `cap` is 0; `count` receives how many there are.
///
/// # Safety
/// `out` is null or has room for `cap` elements, `count` is null or a place to write to.
pub(in crate::capi) unsafe fn guard_list<T>(
    out: *mut T,
    parameter: &str,
    cap: usize,
    count: *mut usize,
    entry: impl FnOnce() -> Result<Vec<T>>,
) -> gpumem_status {
    guard(|| {
        if cap > 0 {
            not_null(out, parameter)?;
        }
        let list = entry()?;
        let all = list.len();
        for (i, element) in list.into_iter().take(cap).enumerate() {
            // SAFETY: `i < cap`, and there is room for `cap` elements by the contract.
            unsafe { out.add(i).write(element) };
        }
        // SAFETY: passed on from the caller.
        unsafe { put(count, all) };
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

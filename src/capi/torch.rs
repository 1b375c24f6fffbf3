//! PyTorch
//!
//! The two functions for torch.cuda.memory.CUDAPluggableAllocator(path, alloc, free), and the hooks that its
//! _allocator takes by address: set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn,
//! set_record_stream_fn. The signatures are torch's.
//!
//! Torch takes whatever its allocator returns for memory, NULL included, and only an exception stops it. So in a
//! process that has loaded torch's libc10_cuda.so a failure here throws std::runtime_error with the text of
//! gpumem_last_error, which Python sees as RuntimeError; gpumem_torch_free and gpumem_torch_record_stream, which
//! torch calls where it cannot take an exception, only keep the error. Elsewhere no function of this header throws.

use super::alloc::report_free;
use super::guard;
use super::types::{address, device_id, gpumem_stream, not_null, pointer, stream};
use crate::base::{Error, Result, StreamHandle};
use crate::context::{Context, Request};
use std::ffi::{c_char, c_int, c_void};

/// Allocates for torch: size bytes on a device, in the order of torch's current stream.
///
/// A size of 0 gives a unique pointer that torch will free. Returns the memory, or fails as said above; outside of
/// torch a failure returns NULL.
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_malloc(size: libc::ssize_t, device: c_int, s: gpumem_stream) -> *mut c_void {
    let result = guard::run(|| {
        let bytes = u64::try_from(size)
            .map_err(|_| Error::invalid(format!("torch asked for {size} bytes on device {device}")))?;
        let ctx = Context::global()?;
        let device = Some(device_id(ctx, device)?);
        ctx.malloc(&Request { size: bytes, device, stream: stream(s), ..Request::default() }).map(pointer)
    });
    or_throw(result, std::ptr::null_mut())
}

/// Frees what gpumem_torch_malloc gave, in the order of the stream that torch allocated it on.
///
/// size and device are torch's record of it and not needed. ptr may be NULL. Never throws: an error changes nothing,
/// is kept as this thread's last one and said on stderr, as gpumem_free does.
#[no_mangle]
pub extern "C" fn gpumem_torch_free(ptr: *mut c_void, size: libc::ssize_t, device: c_int, s: gpumem_stream) {
    let _ = (size, device);
    let freed = guard::run(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let ctx = Context::global()?;
        match stream(s) {
            // The handle of the default stream stands for the current device's, and torch frees from threads whose
            // current device is any; the allocation knows which one is meant.
            StreamHandle::LEGACY => ctx.free(address(ptr)),
            own => ctx.free_async(address(ptr), own),
        }
    });
    if let Err(e) = freed {
        report_free("gpumem_torch_free", ptr, &e);
    }
}

/// For set_init_fn: starts gpumem, so that a wrong setting fails here and not at the first tensor.
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_init(device_count: c_int) {
    let result = guard::run(|| {
        let have = Context::global()?.driver().device_count();
        if i64::from(device_count) > i64::from(have) {
            return Err(Error::invalid(format!("torch sees {device_count} devices and gpumem {have}")));
        }
        Ok(())
    });
    or_throw(result, ());
}

/// For set_reset_fn, which torch.cuda.empty_cache() calls: gives all free physical memory back, as gpumem_trim(0).
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_reset() {
    or_throw(guard::run(|| Context::global()?.trim(0)), ());
}

/// For set_memory_fraction_fn: limits a device to a share of its memory, more than 0 and at most 1.
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_memory_fraction(fraction: f64, device: c_int) {
    let result = guard::run(|| {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(Error::invalid(format!("memory fraction {fraction} is not above 0 and at most 1")));
        }
        let ctx = Context::global()?;
        let dev = device_id(ctx, device)?;
        let total = ctx.driver().device_props(dev)?.total_bytes;
        // 0 would mean no limit.
        ctx.set_limit(dev, ((total as f64 * fraction) as u64).max(1))
    });
    or_throw(result, ());
}

/// For set_base_alloc_fn: the start of the allocation that contains ptr, and in *size, unless NULL, its usable bytes.
///
/// Fails as said above for a pointer that gpumem does not know; outside of torch it then returns NULL.
#[no_mangle]
pub unsafe extern "C-unwind" fn gpumem_torch_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let result = guard::run(|| {
        not_null(ptr, "ptr")?;
        let info = Context::global()?.info_containing(address(ptr))?;
        if !size.is_null() {
            // SAFETY: not null, so a writable size_t by the contract.
            unsafe { size.write(info.usable as usize) };
        }
        Ok(pointer(info.base))
    });
    or_throw(result, std::ptr::null_mut())
}

/// For set_record_stream_fn, which Tensor.record_stream() calls: as gpumem_record_stream.
///
/// NULL does nothing. Never throws: memory that is not gpumem's is left alone, as torch's own allocator does.
#[no_mangle]
pub extern "C" fn gpumem_torch_record_stream(ptr: *mut c_void, s: gpumem_stream) {
    // The error, if any, is the thread's last one already.
    let _ = guard::run(|| {
        if ptr.is_null() {
            return Ok(());
        }
        Context::global()?.record_stream(address(ptr), stream(s))
    });
}

/// The value; or, in a process with torch in it, a C++ exception; or `failed`.
fn or_throw<T: Copy>(result: Result<T>, failed: T) -> T {
    let Err(e) = result else { return result.unwrap_or(failed) };
    let mut text: [c_char; 1100] = super::text::fill(&e.to_string());
    drop(e);
    if let Some(throw) = torch_throw() {
        // Nothing in this frame or in the entry point's needs dropping, and both may be unwound by contract.
        throw(text.as_mut_ptr());
    }
    failed
}

/// `std::__throw_runtime_error(char const*)`, when torch is in this process.
fn torch_throw() -> Option<extern "C-unwind" fn(*const c_char) -> !> {
    // SAFETY: the names are terminated; RTLD_NOLOAD loads nothing, so no foreign code runs. The symbol is part of
    // the ABI of libstdc++.so.6 with this signature; it throws, so it does not return. libstdc++ stays loaded: the
    // handle that keeps it is never closed.
    unsafe {
        let torch = libc::dlopen(c"libc10_cuda.so".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if torch.is_null() {
            return None;
        }
        libc::dlclose(torch);
        let cxx = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if cxx.is_null() {
            return None;
        }
        let throw = libc::dlsym(cxx, c"_ZSt21__throw_runtime_errorPKc".as_ptr());
        if throw.is_null() {
            return None;
        }
        Some(std::mem::transmute::<*mut c_void, extern "C-unwind" fn(*const c_char) -> !>(throw))
    }
}

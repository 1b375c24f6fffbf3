//! PyTorch
//!
//! The two functions for torch.cuda.memory.CUDAPluggableAllocator(path, alloc, free), and the hooks
//! that its _allocator takes by address: set_init_fn, set_reset_fn, set_memory_fraction_fn,
//! set_base_alloc_fn, set_record_stream_fn, and for torch.cuda.graph set_begin_allocate_to_pool,
//! set_end_allocate_to_pool_fn, set_release_pool. The signatures are torch's.
//!
//! Torch takes whatever its allocator returns as memory, even NULL; only an exception stops it. So
//! in a process that has loaded torch's libc10_cuda.so, a failure here throws std::runtime_error
//! with the text of gpumem_last_error, which Python sees as RuntimeError. gpumem_torch_free and
//! gpumem_torch_record_stream only keep the error, because torch calls them where it cannot take an
//! exception. In any other process no function of this header throws.

use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::capi::call::arguments::put;
use crate::capi::call::guard;
use crate::capi::call::types::{address, device_id, gpumem_stream, not_null, pointer, stream};
use crate::capi::everyday::malloc::report_free;
use crate::context::{Context, Request};
use std::ffi::{c_char, c_int, c_void};

/// Allocates for torch: size bytes on a device, in the order of torch's current stream.
///
/// A size of 0 gives a unique pointer that torch will free. The memory is in no arena and outlives
/// the abort of a capture, as torch frees it by its address alone, be that after either. Returns
/// the memory. A failure throws in torch, as above, and returns NULL elsewhere.
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_malloc(size: libc::ssize_t, device: c_int, s: gpumem_stream) -> *mut c_void {
    let hit = || {
        let device = DeviceId(u32::try_from(device).ok()?);
        let ptr = Context::started()?.malloc_hit_on(device, u64::try_from(size).ok()?, stream(s))?;
        Some(pointer(ptr.get()))
    };
    let result = guard::run_hit(hit, || {
        let bytes = u64::try_from(size)
            .map_err(|_| Error::invalid(format!("torch asked for {size} bytes on device {device}")))?;
        let ctx = Context::global()?;
        let device = Some(device_id(ctx, device)?);
        let ptr = ctx.malloc_search(&Request { size: bytes, device, stream: stream(s), ..Request::default() })?;
        if ctx.owner_id(ptr, stream(s))? != 0 {
            ctx.arena_escape(ptr)?;
        }
        Ok(pointer(ptr))
    });
    or_throw(result, std::ptr::null_mut())
}

/// Frees what gpumem_torch_malloc gave, in the order of the stream that torch allocated it on.
///
/// size and device are torch's record of the allocation; they are ignored. ptr may be NULL. Never
/// throws: an error changes nothing, becomes this thread's last error and goes to stderr, as for
/// gpumem_free.
#[no_mangle]
pub extern "C" fn gpumem_torch_free(ptr: *mut c_void, size: libc::ssize_t, device: c_int, s: gpumem_stream) {
    let _ = (size, device);
    // The handle of the default stream stands for the current device's, and torch frees from
    // threads whose current device is any; the allocation knows which one is meant.
    let order = Some(stream(s)).filter(|&s| s != StreamHandle::LEGACY);
    let freed = guard::run_hit(
        || Context::started()?.free_hit(address(ptr), order).then_some(()),
        || {
            if ptr.is_null() {
                return Ok(());
            }
            let ctx = Context::global()?;
            match ctx.free_anyhow(address(ptr), order) {
                // A stream of somebody else's (torch.cuda.ExternalStream) may be gone by now.
                Err(e) if e.status == Status::InvalidStream => ctx.free_anyhow(address(ptr), None),
                freed => freed,
            }
        },
    );
    if let Err(e) = freed {
        report_free("gpumem_torch_free", ptr, &e);
    }
}

/// For set_init_fn: starts gpumem, so that a wrong setting fails here and not at the first tensor.
/// device_count is the number of devices that torch sees; it must not exceed gpumem's.
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

/// For set_reset_fn, which torch.cuda.empty_cache() calls: gives all free physical memory back, as
/// gpumem_trim(0).
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_reset() {
    or_throw(guard::run(|| Context::global()?.trim(0)), ());
}

/// For set_memory_fraction_fn: limits a device to a fraction of its memory, more than 0 and at most
/// 1.
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

/// For set_base_alloc_fn: returns the start of the allocation that contains ptr. size, unless NULL,
/// receives its usable bytes.
///
/// A pointer that gpumem does not know is a failure: it throws in torch, as above, and returns NULL
/// elsewhere.
#[no_mangle]
pub unsafe extern "C-unwind" fn gpumem_torch_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let result = guard::run(|| {
        not_null(ptr, "ptr")?;
        let info = Context::global()?.info_containing(address(ptr))?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(size, info.usable as usize) };
        Ok(pointer(info.base))
    });
    or_throw(result, std::ptr::null_mut())
}

/// For set_record_stream_fn, which Tensor.record_stream() calls: does what gpumem_record_stream
/// does.
///
/// ptr may be NULL, which does nothing. Never throws: memory that is not gpumem's is left alone, as
/// in torch's own allocator.
#[no_mangle]
pub extern "C" fn gpumem_torch_record_stream(ptr: *mut c_void, s: gpumem_stream) {
    // The error, if any, is the thread's last one already.
    let _ = guard::run(|| {
        if ptr.is_null() {
            return Ok(());
        }
        let (ctx, s) = (Context::global()?, stream(s));
        if s.is_default() {
            // Torch calls from threads whose current device is any, and says only the handle: it
            // may be either device's.
            ctx.record_stream_at_home(address(ptr), s)?;
        }
        ctx.record_stream(address(ptr), s)
    });
}

/// How torch names a memory pool: its c10::cuda::MempoolId_t, a std::pair of two unsigned long
/// long.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_torch_pool_id {
    /// The pair's first value.
    pub first: u64,
    /// The pair's second value.
    pub second: u64,
}

/// For set_begin_allocate_to_pool, which torch.cuda.graph and torch.cuda.use_mem_pool call: from
/// now on the streams that filter accepts allocate from the memory of torch's pool id, as between
/// gpumem_capture_begin and gpumem_capture_end.
///
/// filter is torch's std::function<bool(cudaStream_t)> of libstdc++, passed as C++ passes it by
/// value; it is copied. Graphs that are captured with one pool share its memory. Each call takes a
/// reference to the pool.
#[no_mangle]
pub unsafe extern "C-unwind" fn gpumem_torch_begin_allocate_to_pool(
    device: c_int,
    id: gpumem_torch_pool_id,
    filter: *mut c_void,
) {
    let result = guard::run(|| {
        // SAFETY: NULL, or what torch passes for a std::function of this signature by value.
        let filter = unsafe { TorchFilter::copy_of(filter.cast()) }?;
        let ctx = Context::global()?;
        ctx.torch_begin(device_id(ctx, device)?, (id.first, id.second), Box::new(move |s| filter.accepts(s)))
    });
    or_throw(result, ());
}

/// For set_end_allocate_to_pool_fn: allocations are ordinary again, and torch's pool stays as it
/// is.
#[no_mangle]
pub extern "C-unwind" fn gpumem_torch_end_allocate_to_pool(device: c_int, id: gpumem_torch_pool_id) {
    let result = guard::run(|| {
        let ctx = Context::global()?;
        ctx.torch_end(device_id(ctx, device)?, (id.first, id.second))
    });
    or_throw(result, ());
}

/// For set_release_pool: drops one reference to torch's pool, as gpumem_capture_release does. A
/// pool from which nothing was allocated is left alone. Never throws, because torch calls it from
/// destructors.
#[no_mangle]
pub extern "C" fn gpumem_torch_release_pool(device: c_int, id: gpumem_torch_pool_id) {
    // The error, if any, is the thread's last one already.
    let _ = guard::run(|| {
        let ctx = Context::global()?;
        ctx.torch_release(device_id(ctx, device)?, (id.first, id.second))
    });
}

/// A `std::function<bool(cudaStream_t)>` as libstdc++ lays it out.
#[repr(C)]
struct TorchFilter {
    functor: [usize; 2],
    /// Copies a functor (operation 2) and destroys one (operation 3).
    manager: Option<unsafe extern "C-unwind" fn(*mut [usize; 2], *const [usize; 2], c_int) -> bool>,
    invoker: Option<unsafe extern "C-unwind" fn(*const [usize; 2], *mut gpumem_stream) -> bool>,
}

const CLONE_FUNCTOR: c_int = 2;
const DESTROY_FUNCTOR: c_int = 3;

// SAFETY: torch calls its filters from any thread and copies them between threads.
unsafe impl Send for TorchFilter {}
// SAFETY: as above; calling one does not change it.
unsafe impl Sync for TorchFilter {}

impl TorchFilter {
    /// # Safety
    /// `from` is null or a live `std::function` of this signature.
    unsafe fn copy_of(from: *const TorchFilter) -> Result<TorchFilter> {
        not_null(from, "filter")?;
        // SAFETY: not null, so live by the contract.
        let (functor, manager, invoker) = unsafe { (&raw const (*from).functor, (*from).manager, (*from).invoker) };
        let (Some(manage), Some(_)) = (manager, invoker) else {
            return Err(Error::invalid("torch's filter is empty: no stream would be accepted"));
        };
        let mut copy = TorchFilter { functor: [0; 2], manager: None, invoker };
        // SAFETY: the manager of a std::function copies its functor into such storage; a function
        // without one is empty, which was ruled out.
        unsafe { manage(&raw mut copy.functor, functor, CLONE_FUNCTOR) };
        // Only now is there something to destroy.
        copy.manager = manager;
        Ok(copy)
    }

    fn accepts(&self, s: StreamHandle) -> bool {
        let mut s = s.0 as gpumem_stream;
        // SAFETY: the functor is alive until `self` goes, and the invoker is its own; it takes the
        // argument by reference.
        self.invoker.is_some_and(|invoke| unsafe { invoke(&raw const self.functor, &raw mut s) })
    }
}

impl Drop for TorchFilter {
    fn drop(&mut self) {
        if let Some(manage) = self.manager {
            let functor = &raw mut self.functor;
            // SAFETY: the functor is alive, and nothing uses it afterwards.
            unsafe { manage(functor, functor, DESTROY_FUNCTOR) };
        }
    }
}

/// The value; or, in a process with torch in it, a C++ exception; or `failed`.
fn or_throw<T: Copy>(result: Result<T>, failed: T) -> T {
    match result {
        Ok(value) => value,
        Err(e) => {
            throw(e);
            failed
        }
    }
}

/// Throws the error as a C++ exception in a process with torch in it, returns in any other.
#[cold]
#[inline(never)]
fn throw(e: Error) {
    let mut text: [c_char; 1100] = crate::capi::call::text::fill(&e.to_string());
    drop(e);
    if let Some(throw) = torch_throw() {
        // Nothing in the frames from here to the entry point's needs dropping, and all may be
        // unwound by contract.
        throw(text.as_mut_ptr());
    }
}

/// `std::__throw_runtime_error(char const*)`, when torch is in this process.
fn torch_throw() -> Option<extern "C-unwind" fn(*const c_char) -> !> {
    // SAFETY: the names are terminated; RTLD_NOLOAD loads nothing, so no foreign code runs. The
    // symbol is part of the ABI of libstdc++.so.6 with this signature; it throws, so it does not
    // return. libstdc++ stays loaded: the handle that keeps it is never closed.
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

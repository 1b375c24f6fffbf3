//! Allocating and freeing
//!
//! Memory is ordered on a stream: it may be used by work submitted to that stream after the
//! allocation, and by other streams once they wait for that point. A free is ordered too: it takes
//! effect after the work submitted before it, so nobody waits on the host. Addresses are device
//! addresses: do not dereference them on the host.

use crate::base::{Error, Status, StreamHandle};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::{self, guard, guard_hit, guard_value};
use crate::capi::call::types::{address, gpumem_stream, not_null, pointer, stream};
use crate::context::{Context, Request};
use crate::driver::process;
use std::ffi::c_void;
use std::num::NonZeroU64;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocates on the current device, in the order of its legacy default stream.
///
/// bytes may be 0: the result is a unique pointer that must be freed. Aligned to 256 bytes, not
/// cleared. Returns the memory, which the caller owns until a free, or NULL on failure;
/// gpumem_last_status says why: GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_DRIVER. A stream that does
/// not synchronise with the default stream must wait for it before using the memory; for such
/// streams use gpumem_malloc_async.
#[no_mangle]
pub extern "C" fn gpumem_malloc(bytes: usize) -> *mut c_void {
    let request = Request { size: bytes as u64, ..Request::default() };
    let allocated = guard::run_hit(
        || Context::started()?.malloc_hit(request.size, request.stream).map(NonZeroU64::get),
        || Context::global()?.malloc_search(&request),
    );
    allocated.map_or(std::ptr::null_mut(), pointer)
}

/// Frees, in the order of the stream the memory was allocated on.
///
/// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have
/// been submitted to the stream it was allocated on, or ordered before it, or announced by
/// gpumem_record_stream; otherwise use gpumem_free_async. Never blocks on the device. A pointer
/// that is unknown, interior or already freed changes nothing: gpumem_stats counts it, this
/// thread's last error becomes GPUMEM_ERROR_UNKNOWN_POINTER or GPUMEM_ERROR_DOUBLE_FREE, and a line
/// goes to stderr (rate-limited; GPUMEM_LOG=0 turns it off). In a forked child and at exit this
/// does nothing.
#[no_mangle]
pub extern "C" fn gpumem_free(ptr: *mut c_void) {
    let freed = guard::run_hit(
        || Context::started()?.free_hit(address(ptr), None).then_some(()),
        || if ptr.is_null() { Ok(()) } else { Context::global()?.free_anyhow(address(ptr), None) },
    );
    if let Err(e) = freed {
        report_free("gpumem_free", ptr, &e);
    }
}

/// Allocates in the order of a stream, on the stream's device.
///
/// bytes may be 0: the result is a unique pointer that must be freed. s is a live stream or NULL.
/// Aligned to 256 bytes, not cleared. out receives the memory, which the caller owns until a free.
/// Work submitted to s from now on may use it. Does not wait for the device unless memory is short
/// (GPUMEM_REUSE).
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_OUT_OF_MEMORY,
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_malloc_async(bytes: usize, s: gpumem_stream, out: *mut *mut c_void) -> gpumem_status {
    let hit = || {
        let ctx = Context::started().filter(|_| !out.is_null());
        let Some(ptr) = ctx.and_then(|ctx| ctx.malloc_hit(bytes as u64, stream(s))) else { return false };
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(ptr.get())) };
        true
    };
    guard_hit(hit, || {
        not_null(out, "out")?;
        let request = Request { size: bytes as u64, stream: stream(s), ..Request::default() };
        let ptr = Context::global()?.malloc_search(&request)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(ptr)) };
        Ok(())
    })
}

/// Frees in the order of a stream: the memory is reused once the work submitted to s before this
/// call is done.
///
/// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have
/// been submitted to s, or ordered before it, or announced by gpumem_record_stream; s need not be
/// the stream it was allocated on. The allocation itself counts as a use: its previous owner's work
/// may still be using memory that you have not touched. s may be of another device than the memory;
/// NULL is the current device's, whatever device the memory is on. While the process exits and the
/// driver is gone, this returns GPUMEM_OK and does nothing.
/// Errors: GPUMEM_ERROR_UNKNOWN_POINTER (also for an interior pointer), GPUMEM_ERROR_DOUBLE_FREE,
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING when s is of another device and is being
/// captured, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_FORKED; nothing is freed then.
#[no_mangle]
pub extern "C" fn gpumem_free_async(ptr: *mut c_void, s: gpumem_stream) -> gpumem_status {
    guard_hit(
        || Context::started().is_some_and(|ctx| ctx.free_hit(address(ptr), Some(stream(s)))),
        || if ptr.is_null() { Ok(()) } else { Context::global()?.free_anyhow(address(ptr), Some(stream(s))) },
    )
}

/// Changes the size of an allocation, keeping its contents up to the smaller of gpumem_usable_size
/// and bytes.
///
/// ptr is the start of an allocation; NULL allocates. bytes may be 0, which leaves a unique pointer
/// that must be freed. Grows in place by mapping where it can, otherwise moves by a copy in the
/// order of s, on which all use of the old memory must be ordered. out receives the memory, which
/// may be at the same address; then ptr is no longer the caller's. On failure ptr is unchanged and
/// still the caller's. The memory stays on its device. s may be of another one; the memory then
/// counts as allocated on a stream of gpumem's own, so free it with gpumem_free_async, or announce
/// s with gpumem_record_stream. While s is being captured, do not resize what was allocated before
/// the capture: the graph would read its old memory at every launch, whoever has it by then.
/// Errors: those of gpumem_malloc_async and gpumem_free_async; GPUMEM_ERROR_UNSUPPORTED for memory
/// made with GPUMEM_MALLOC_EVICTABLE, and for imported memory.
#[no_mangle]
pub unsafe extern "C" fn gpumem_realloc_async(
    ptr: *mut c_void,
    bytes: usize,
    s: gpumem_stream,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let ctx = Context::global()?;
        let new = if ptr.is_null() {
            ctx.malloc(&Request { size: bytes as u64, stream: stream(s), ..Request::default() })?
        } else {
            ctx.realloc(address(ptr), bytes as u64, stream(s))?
        };
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(new)) };
        Ok(())
    })
}

/// Announces that an allocation is also used on s: after it is freed, reuse waits for the work
/// submitted to s too.
///
/// ptr is the start of an allocation. s must stay alive until the free. Call it after submitting to
/// s, or at any time before the free; once per stream is enough. s may be of another device than
/// the memory.
/// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER,
/// GPUMEM_ERROR_DOUBLE_FREE when it was freed, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING
/// when s is of another device and is being captured, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_UNSUPPORTED
/// with GPUMEM_POOL=off.
#[no_mangle]
pub extern "C" fn gpumem_record_stream(ptr: *mut c_void, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.record_stream(address(ptr), stream(s))
    })
}

/// Returns how many bytes are usable from ptr, the start of an allocation: at least those asked
/// for.
///
/// 0 for NULL. 0 also for a pointer that is not the start of a live allocation; then
/// gpumem_last_status has GPUMEM_ERROR_UNKNOWN_POINTER, or GPUMEM_ERROR_DOUBLE_FREE when it was
/// freed.
#[no_mangle]
pub extern "C" fn gpumem_usable_size(ptr: *const c_void) -> usize {
    guard_value(0, || if ptr.is_null() { Ok(0) } else { Ok(Context::global()?.info(address(ptr))?.usable as usize) })
}

/// Gives free physical memory back to the device until no more than keep_bytes stay mapped on each
/// device that is in use. Live memory stays. 0 gives back all that is free.
///
/// Memory that submitted work may still use stays mapped; synchronise first to get all of it back.
/// Do not call it while a stream is being captured: it can invalidate the capture.
/// Errors: GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_trim(keep_bytes: usize) -> gpumem_status {
    guard(|| Context::global()?.trim(keep_bytes as u64))
}

/// Says on stderr that a free without a status was refused: each of the first eight, then each time
/// their number doubles.
pub(in crate::capi) fn report_free(entry: &str, ptr: *mut c_void, e: &Error) {
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    if matches!(e.status, Status::Forked | Status::ShuttingDown) {
        return;
    }
    let _uncancelled = process::Uncancelled::new();
    // A panic in here is caught, and not told: the failed free stays the thread's last error.
    let _ = catch_unwind(|| {
        let log = Context::global().map_or(1, |ctx| ctx.config().log);
        let n = REFUSED.fetch_add(1, Ordering::Relaxed) + 1;
        if log >= 1 && (n <= 8 || n.is_power_of_two()) {
            process::say(format_args!("{entry}({ptr:p}) did nothing: {e} ({n} so far)"));
        }
    });
}

// The legacy default stream is what a zeroed request means, and what `gpumem_malloc` promises.
const _: () = assert!(StreamHandle::LEGACY.0 == 0);

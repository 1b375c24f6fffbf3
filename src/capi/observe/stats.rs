//! Looking inside
//!
//! Counters and dumps are snapshots: other threads go on while they are taken.

use crate::capi::call::arguments::{guard_list, guard_text};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::text;
use crate::capi::call::types::device_id;
use crate::context::{counters, Context};
use crate::pool::PoolStats;
use std::ffi::{c_char, c_int};

/// One device's counters. Bytes unless a field says that it is a count.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_stats {
    /// sizeof(gpumem_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// The device that the counters belong to.
    pub device: i32,
    /// Addresses reserved.
    pub reserved: u64,
    /// Physical memory held, including `stock`.
    pub mapped: u64,
    /// The most that mapped has been since the last gpumem_stats_reset_peak.
    pub peak_mapped: u64,
    /// Memory that callers asked for and have not freed, without what is evicted now.
    pub requested: u64,
    /// Memory that is live: requested, with rounding included.
    pub live: u64,
    /// The most that live has been since the last gpumem_stats_reset_peak. It is exact where the
    /// pool has one heap, and nothing with a handle of its own. Otherwise it is an upper bound: at
    /// most the sum of the peaks of each heap and of all that has, and at most peak_mapped.
    pub peak_live: u64,
    /// Free mapped memory that its own stream can use at once, without free room among small
    /// objects.
    pub free: u64,
    /// Free mapped memory that waits for a stream.
    pub waiting: u64,
    /// Physical memory without an address, held for later.
    pub stock: u64,
    /// Unmapped addresses inside the reservation.
    pub holes: u64,
    /// Old addresses of memory that has moved, not yet unmapped.
    pub zombies: u64,
    /// The largest request that is sure to succeed next, on any stream, even if no physical memory
    /// can be added, as long as no stream is being captured. It may take remapping, and a wait
    /// until the device has passed earlier frees; where memory may be added, the pool may prefer
    /// that. Some streams may get more. 0 if less than 64 KiB is free in one piece.
    pub largest_without_growth: u64,
    /// The largest free region, usable with no driver call; 0 if that has less than 64 KiB, since
    /// small objects need as much.
    pub largest_free: u64,
    /// Live allocations, evicted ones too, a count.
    pub allocations: u64,
    /// Allocations ever made, a count.
    pub mallocs: u64,
    /// Frees ever done, a count.
    pub frees: u64,
    /// Physical allocations mapped, a count.
    pub extents: u64,
    /// Physical allocations moved to other addresses so far, a count.
    pub moved: u64,
    /// Requests met with physical memory from elsewhere in the pool, with none added, so far, a
    /// count.
    pub stitches: u64,
    /// Times that physical memory was added to the pool so far, a count. Allocations with memory of
    /// their own (GPUMEM_MALLOC_EVICTABLE and others) are no part of it.
    pub growths: u64,
    /// Streams known, a count. One that is used eagerly and in captures counts twice.
    pub streams: u64,
    /// Frees refused as double, a count.
    pub double_frees: u64,
    /// Frees refused because the pointer is unknown, a count.
    pub unknown_pointers: u64,
    /// Frees by id (gpumem_free_id) of allocations that were gone already, a count.
    pub late_frees: u64,
    /// Requests that the pool had no memory for, a count. It includes those for which room was then
    /// made by moving evictable memory out, but not those that a reservation or a space's limit
    /// refused.
    pub out_of_memory: u64,
    /// The most that may be mapped (gpumem_device_limit_set). 0 means all that the device has.
    pub limit: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_stats, 208, 2 * 4 + 26 * 8);

/// How often one driver call was made.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gpumem_driver_call {
    /// The call's name, terminated.
    pub name: [c_char; 40],
    /// How often it was made since gpumem started.
    pub calls: u64,
}

/// Gets the counters of one device.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device,
/// out is NULL or its size impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_stats_get(device: c_int, out: *mut gpumem_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let ctx = Context::global()?;
        let value = convert(device, &ctx.stats(device_id(ctx, device)?)?);
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// Sets the peaks of one device back to the present values.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such device.
#[no_mangle]
pub extern "C" fn gpumem_stats_reset_peak(device: c_int) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        ctx.reset_peaks(device_id(ctx, device)?)
    })
}

/// Checks every invariant of gpumem's own state: pools, spaces and what is in them, arenas. Slow;
/// for tests. Other threads may go on: what changes just then is looked at again, for a second.
///
/// Errors: GPUMEM_ERROR_INTERNAL with the first invariant that does not hold.
#[no_mangle]
pub extern "C" fn gpumem_validate() -> gpumem_status {
    guard(|| Context::global()?.validate())
}

/// Lists every region of one device's memory in address order, as text for people.
///
/// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may
/// be NULL; it receives the bytes that the whole text takes, its NUL included, so more than cap
/// means that it was cut.
/// Errors: GPUMEM_ERROR_INVALID when there is no such device or buf is NULL and cap is not 0.
#[no_mangle]
pub unsafe extern "C" fn gpumem_dump(device: c_int, buf: *mut c_char, cap: usize, needed: *mut usize) -> gpumem_status {
    let dump = || {
        let ctx = Context::global()?;
        ctx.dump(device_id(ctx, device)?)
    };
    // SAFETY: the caller passes `cap` writable bytes, or NULL and 0; NULL or a place to write to.
    unsafe { guard_text(buf, cap, needed, dump) }
}

/// Gets how often each driver call was made, in a fixed order.
///
/// out has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count
/// may be NULL; it receives how many there are.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0.
#[no_mangle]
pub unsafe extern "C" fn gpumem_driver_calls_get(
    out: *mut gpumem_driver_call,
    cap: usize,
    count: *mut usize,
) -> gpumem_status {
    let list = || {
        let calls = Context::global()?.driver_calls();
        Ok(calls.iter().map(|(name, calls)| gpumem_driver_call { name: text::fill(name), calls: *calls }).collect())
    };
    // SAFETY: the caller passes room for `cap` entries, or NULL and 0; NULL or a place to write to.
    unsafe { guard_list(out, "out", cap, count, list) }
}

/// The core's counters, which have the same names here.
fn convert(device: c_int, stats: &PoolStats) -> gpumem_stats {
    macro_rules! fields {
        (() $($name:ident),*) => {{
            let PoolStats { $($name),* } = *stats;
            gpumem_stats { size: 0, device, $($name),* }
        }};
    }
    counters!(fields!())
}

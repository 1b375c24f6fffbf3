//! Allocating with options, and facts about allocations
//!
//! These functions take as options what the functions of core.h leave at its default.

use crate::base::{Error, Result};
use crate::capi::arena::scope;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::{guard, guard_hit};
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{
    address, device_id, gpumem_arena, gpumem_reservation, gpumem_stream, not_null, pointer, stream,
};
use crate::capi::capture::capture_arena;
use crate::capi::tiers::reservations;
use crate::context::{Context, Request};
use crate::pool::AllocFlags;
use std::ffi::{c_int, c_void};

/// Uses one physical handle and never remaps it: for NCCL registration, RDMA and other users of
/// physical memory.
pub const GPUMEM_MALLOC_SINGLE_HANDLE: u32 = 1;
/// Uses a single handle that gpumem_export_fd can share with another process.
pub const GPUMEM_MALLOC_EXPORTABLE: u32 = 2;
/// Leaves the addresses after the allocation unmapped, so that overruns fault. With
/// GPUMEM_MALLOC_EXPORTABLE they start after its last page, otherwise at its end, as closely as the
/// alignment allows. For debugging; costs memory.
pub const GPUMEM_MALLOC_GUARD: u32 = 4;
/// The memory can leave the device and come back at the same addresses: see gpumem_evict. It takes
/// whole pages and belongs to no arena.
pub const GPUMEM_MALLOC_EVICTABLE: u32 = 8;
/// Uses the device field. Without this flag the allocation lives on its stream's device.
pub const GPUMEM_MALLOC_ON_DEVICE: u32 = 65536;

const _: () = {
    assert!(GPUMEM_MALLOC_SINGLE_HANDLE == AllocFlags::SINGLE_HANDLE.0);
    assert!(GPUMEM_MALLOC_EXPORTABLE == AllocFlags::EXPORTABLE.0);
    assert!(GPUMEM_MALLOC_GUARD == AllocFlags::GUARD.0);
    assert!(GPUMEM_MALLOC_EVICTABLE == AllocFlags::EVICTABLE.0);
    assert!(GPUMEM_MALLOC_ON_DEVICE & AllocFlags::ALL.0 == 0);
};

/// What to allocate, for gpumem_malloc_with. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_malloc_options {
    /// sizeof(gpumem_malloc_options).
    pub size: u32,
    /// GPUMEM_MALLOC_*, or-ed together.
    pub flags: u32,
    /// Size in bytes. 0 gives a unique pointer that must be freed.
    pub bytes: usize,
    /// Alignment in bytes, a power of two up to 2^30. 0 means 256; less than 256 gives 256.
    pub alignment: usize,
    /// The stream whose order the memory follows. With GPUMEM_MALLOC_ON_DEVICE it is a stream of
    /// that device, and NULL is that device's legacy default stream.
    pub stream: gpumem_stream,
    /// A number of the caller's choice, shown in dumps and by gpumem_pointer_info_get.
    pub tag: u64,
    /// The arena that the memory belongs to. The calling thread need not be attached to it. NULL
    /// means the thread's current arena, if it has one.
    pub arena: gpumem_arena,
    /// The device, with GPUMEM_MALLOC_ON_DEVICE; must be 0 without it.
    pub device: i32,
    /// Must be 0.
    pub reserved: u32,
    /// The reservation to draw from, in the device's space. NULL means the one attached to the
    /// stream or to the thread, if there is one.
    pub reservation: gpumem_reservation,
}

// SAFETY: repr(C), a u32 first, integers and raw pointers only; the sum of its fields shows no
// padding.
extensible!(gpumem_malloc_options, 56, 4 * 4 + 6 * 8);

/// Facts about a live allocation.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_pointer_info {
    /// sizeof(gpumem_pointer_info), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// GPUMEM_MALLOC_* it was made with.
    pub flags: u32,
    /// Its first byte.
    pub base: *mut c_void,
    /// Bytes asked for.
    pub requested: usize,
    /// Bytes usable from base, at least those asked for.
    pub usable: usize,
    /// The stream it was allocated on. A name only: the stream may be gone.
    pub stream: gpumem_stream,
    /// A number that is never reused in this process.
    pub id: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The device it lives on.
    pub device: i32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), a u32 first, integers and raw pointers only; the sum of its fields shows no
// padding.
extensible!(gpumem_pointer_info, 64, 4 * 4 + 6 * 8);

/// Allocates with options.
///
/// opts is read and not kept. out receives the memory, as from gpumem_malloc_async.
/// Errors: those of gpumem_malloc_async; GPUMEM_ERROR_INVALID also for an alignment that is not a
/// power of two, unknown flags, a device that does not exist or is not the stream's, an arena that
/// has been exited, an arena together with GPUMEM_MALLOC_EVICTABLE, or malformed options;
/// GPUMEM_ERROR_UNSUPPORTED where the device cannot do what a flag asks. With GPUMEM_POOL=off
/// GPUMEM_ERROR_UNSUPPORTED also for a flag that asks for memory of another kind, and for an
/// alignment that the driver's memory does not have.
#[no_mangle]
pub unsafe extern "C" fn gpumem_malloc_with(
    opts: *const gpumem_malloc_options,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read(opts) }?;
        not_null(out, "out")?;
        let ctx = Context::global()?;
        let arena = scope::named(opts.arena)?;
        let reservation = reservations::named(opts.reservation)?;
        let (arena, reservation) = (arena.as_ref(), reservation.as_deref());
        let ptr = ctx.malloc(&Request { arena, reservation, ..request(ctx, &opts)? })?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(ptr)) };
        Ok(())
    })
}

/// Sets the most bytes that gpumem may map on a device.
///
/// When more is mapped now, free memory goes back to the device and live memory stays. Like
/// gpumem_trim, that can invalidate the capture of a stream. What another thread is mapping for one
/// allocation at that moment may still go by the limit before. 0 means all that the device has.
/// With GPUMEM_POOL=off the limit applies to what is live. Once the device's space is counted
/// (space.h), that keeps its own limit: see gpumem_space_limit_set.
/// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_device_limit_set(device: c_int, bytes: usize) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        let dev = device_id(ctx, device)?;
        let bytes = if bytes == 0 { ctx.driver().device_props(dev)?.total_bytes } else { bytes as u64 };
        ctx.set_limit(dev, bytes)
    })
}

/// Like gpumem_trim, on one device.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_device_trim(device: c_int, keep_bytes: usize) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        ctx.trim_device(device_id(ctx, device)?, keep_bytes as u64)
    })
}

/// Gets the number of an allocation. Addresses are reused; numbers never are within a process.
///
/// ptr is the start of a live allocation. out receives a number that is not 0.
/// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER,
/// GPUMEM_ERROR_DOUBLE_FREE when it was freed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_allocation_id_get(ptr: *const c_void, out: *mut u64) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        not_null(out, "out")?;
        let id = Context::global()?.info(address(ptr))?.id;
        // SAFETY: not null, so a writable uint64_t by the contract.
        unsafe { out.write(id) };
        Ok(())
    })
}

/// Gets the number by which an object that owns memory has to free it: for owners that may outlive
/// an arena or a capture. Call it right after the allocation, on the same thread.
///
/// ptr is the start of a live allocation, s the stream that it was made on. The end of an arena and
/// gpumem_capture_abort free what owners still hold, and by the time that those free it the address
/// may be another owner's. So where the memory is in an arena or the stream in a capture, out
/// receives the allocation's number (gpumem_allocation_id_get), for gpumem_free_id. Elsewhere it
/// receives 0: only its owner frees the memory, with gpumem_free, which is quicker. An owner that
/// can only free by address calls gpumem_arena_escape where there is a number.
/// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL; while there is an arena, or the stream is
/// in a capture, those of gpumem_allocation_id_get.
#[no_mangle]
pub unsafe extern "C" fn gpumem_owner_id_get(ptr: *const c_void, s: gpumem_stream, out: *mut u64) -> gpumem_status {
    // C++'s buffers and PyTorch's tensors ask whenever they allocate.
    let hit = || {
        let arenas = || Context::started().is_none_or(Context::may_have_arenas);
        if ptr.is_null() || out.is_null() || capture_arena::any() || arenas() {
            return false;
        }
        // SAFETY: not null, so a writable uint64_t by the contract.
        unsafe { out.write(0) };
        true
    };
    guard_hit(hit, || {
        not_null(ptr, "ptr")?;
        not_null(out, "out")?;
        let id = Context::global()?.owner_id(address(ptr), stream(s))?;
        // SAFETY: as above.
        unsafe { out.write(id) };
        Ok(())
    })
}

/// Gets facts about the live allocation that contains ptr, which may be an interior pointer.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL or the
/// size impossible, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_pointer_info_get(ptr: *const c_void, out: *mut gpumem_pointer_info) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let info = Context::global()?.info_containing(address(ptr))?;
        let value = gpumem_pointer_info {
            size: 0,
            flags: info.flags.0,
            base: pointer(info.base),
            requested: info.requested as usize,
            usable: info.usable as usize,
            stream: info.stream.0 as gpumem_stream,
            id: info.id,
            tag: info.tag,
            device: i32::try_from(info.device.0).unwrap_or(i32::MAX),
            reserved: 0,
        };
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// What options ask for, except for the arena, whose reference the caller keeps.
pub(in crate::capi) fn request(ctx: &Context, o: &gpumem_malloc_options) -> Result<Request<'static>> {
    let unknown = o.flags & !(AllocFlags::ALL.0 | GPUMEM_MALLOC_ON_DEVICE);
    if unknown != 0 {
        return Err(Error::invalid(format!("gpumem_malloc_options.flags has unknown bits {unknown:#x}")));
    }
    if o.reserved != 0 {
        return Err(Error::invalid("gpumem_malloc_options.reserved is not 0; zero the structure first"));
    }
    if o.alignment != 0 && !o.alignment.is_power_of_two() {
        return Err(Error::invalid(format!("alignment {} is not a power of two", o.alignment)));
    }
    let on_device = o.flags & GPUMEM_MALLOC_ON_DEVICE != 0;
    if !on_device && o.device != 0 {
        return Err(Error::invalid(format!(
            "gpumem_malloc_options.device is {} without GPUMEM_MALLOC_ON_DEVICE in flags; set both or neither",
            o.device
        )));
    }
    Ok(Request {
        arena: None,
        size: o.bytes as u64,
        align: o.alignment as u64,
        device: on_device.then(|| device_id(ctx, o.device)).transpose()?,
        stream: stream(o.stream),
        flags: AllocFlags(o.flags & AllocFlags::ALL.0),
        tag: o.tag,
        reservation: None,
    })
}

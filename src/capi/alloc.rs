//! Allocating and freeing
//!
//! Memory is ordered on a stream: it may be used by work submitted to that stream after the allocation, and by other
//! streams once they wait for that point. A free is ordered too: it takes effect after the work submitted before it,
//! so nobody waits on the host. Addresses are device addresses: do not dereference them on the host.

use super::arena;
use super::error::gpumem_status;
use super::guard::{self, guard, guard_hit, guard_value};
use super::options::{self, Extensible};
use super::reserve;
use super::types::{address, device_id, gpumem_arena, gpumem_reservation, gpumem_stream, not_null, pointer, stream};
use crate::base::{Error, Result, Status, StreamHandle};
use crate::context::{Context, Request};
use crate::pool::AllocFlags;
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::num::NonZeroU64;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

/// One physical handle, never remapped: for NCCL registration, RDMA and other users of physical memory.
pub const GPUMEM_MALLOC_SINGLE_HANDLE: u32 = 1;
/// A single handle that gpumem_export_fd can share with another process.
pub const GPUMEM_MALLOC_EXPORTABLE: u32 = 2;
/// Addresses after the allocation are unmapped, so that overruns fault. For debugging; costs memory.
pub const GPUMEM_MALLOC_GUARD: u32 = 4;
/// It can be moved out of the device and come back to its addresses: see gpumem_evict. Whole pages; in no arena.
pub const GPUMEM_MALLOC_EVICTABLE: u32 = 8;
/// The device field counts. Without it the allocation lives on the device its stream belongs to.
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
    /// How much, bytes. 0 gives a unique pointer that must be freed.
    pub bytes: usize,
    /// A power of two, bytes; 0 means 256, and less than 256 gives 256.
    pub alignment: usize,
    /// The stream whose order the memory follows; NULL is the legacy default stream.
    pub stream: gpumem_stream,
    /// A number of the caller's, shown in dumps and by gpumem_pointer_info_get.
    pub tag: u64,
    /// The arena it belongs to, which the calling thread need not be attached to; NULL means the thread's current one,
    /// if it has one.
    pub arena: gpumem_arena,
    /// The device, with GPUMEM_MALLOC_ON_DEVICE; must be 0 without it.
    pub device: i32,
    /// Must be 0.
    pub reserved: u32,
    /// The reservation that it draws from, of the device's space; NULL means the one attached to the stream or to the thread, if
    /// there is one.
    pub reservation: gpumem_reservation,
}

// SAFETY: repr(C), a u32 first, integers and raw pointers only, and the assertion below shows no padding.
unsafe impl Extensible for gpumem_malloc_options {
    const NAME: &'static str = "gpumem_malloc_options";
    const FIRST_BYTES: usize = 56;
}
const _: () = assert!(size_of::<gpumem_malloc_options>() == 4 * 4 + 6 * 8);

/// Facts about a live allocation.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_pointer_info {
    /// sizeof(gpumem_pointer_info), set by the caller; afterwards the bytes filled.
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
    /// A number that no other allocation of this process has had or will have.
    pub id: u64,
    /// The caller's tag.
    pub tag: u64,
    /// The device it lives on.
    pub device: i32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), a u32 first, integers and raw pointers only, and the assertion below shows no padding.
unsafe impl Extensible for gpumem_pointer_info {
    const NAME: &'static str = "gpumem_pointer_info";
    const FIRST_BYTES: usize = 64;
}
const _: () = assert!(size_of::<gpumem_pointer_info>() == 4 * 4 + 6 * 8);

/// Allocates on the current device, in the order of its legacy default stream.
///
/// bytes may be 0: the result is a unique pointer that must be freed. Aligned to 256 bytes, not cleared.
/// Returns the memory, which the caller owns until a free, or NULL on failure; gpumem_last_status says why:
/// GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_DRIVER, and what starting can give. Work on a stream that does not
/// synchronise with the default stream must be made to wait for it; gpumem_malloc_async is made for that.
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
/// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have been submitted to
/// the stream it was allocated on, or ordered before it, or announced by gpumem_record_stream; otherwise use
/// gpumem_free_async. Never blocks on the device. A pointer that is unknown, interior or freed already changes
/// nothing; it is counted in gpumem_stats, kept as this thread's last error, and said on stderr (not every one of a
/// flood; GPUMEM_LOG=0 turns it off). In a forked child and at exit it does nothing.
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
/// bytes may be 0: the result is a unique pointer that must be freed. s is a live stream or NULL. Aligned to 256
/// bytes, not cleared. out receives the memory, which the caller owns until a free; usable by work submitted to s
/// from now on. Does not wait for the device unless memory is short (GPUMEM_REUSE).
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_INVALID_STREAM,
/// GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER, and what starting can give.
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

/// Frees in the order of a stream: the memory is reused once the work submitted to s before this call is done.
///
/// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have been submitted to
/// s, or ordered before it, or announced by gpumem_record_stream; s need not be the stream it was allocated on. The
/// allocation itself counts as a use: memory that nobody has touched may still be in use by what had it before.
/// Errors: GPUMEM_ERROR_UNKNOWN_POINTER (interior ones too), GPUMEM_ERROR_DOUBLE_FREE,
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_FORKED, GPUMEM_ERROR_SHUTTING_DOWN; nothing is freed then.
#[no_mangle]
pub extern "C" fn gpumem_free_async(ptr: *mut c_void, s: gpumem_stream) -> gpumem_status {
    guard_hit(
        || Context::started().is_some_and(|ctx| ctx.free_hit(address(ptr), Some(stream(s)))),
        || if ptr.is_null() { Ok(()) } else { Context::global()?.free_anyhow(address(ptr), Some(stream(s))) },
    )
}

/// Allocates with every option there is.
///
/// opts is read and not kept. out receives the memory, as from gpumem_malloc_async.
/// Errors: those of gpumem_malloc_async; GPUMEM_ERROR_INVALID also for an alignment that is no power of two, unknown
/// flags, a device that does not exist or is not the stream's, an arena that has been exited, or options that are not
/// well formed;
/// GPUMEM_ERROR_UNSUPPORTED where the device cannot do what a flag asks.
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
        let arena = arena::named(opts.arena)?;
        let reservation = reserve::named(opts.reservation)?;
        let (arena, reservation) = (arena.as_ref(), reservation.as_deref());
        let ptr = ctx.malloc(&Request { arena, reservation, ..request(ctx, &opts)? })?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(ptr)) };
        Ok(())
    })
}

/// Changes the size of an allocation, keeping its contents up to the smaller of both sizes.
///
/// ptr is the start of an allocation; NULL allocates. bytes may be 0, which leaves a unique pointer that must be
/// freed. Grows in place by mapping where it can, otherwise moves by a copy in the order of s, on which all use of
/// the old memory must be ordered. out receives the memory, which may be at the same address; then ptr is no longer
/// the caller's. On failure ptr is unchanged and still the caller's.
/// Errors: those of gpumem_malloc_async and gpumem_free_async.
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

/// Announces that an allocation is also used on s: after it is freed, reuse waits for the work submitted to s too.
///
/// ptr is the start of an allocation. s must stay alive until the free. Call it after submitting to s, or at any time
/// before the free; once per stream is enough.
/// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_INVALID_STREAM.
#[no_mangle]
pub extern "C" fn gpumem_record_stream(ptr: *mut c_void, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.record_stream(address(ptr), stream(s))
    })
}

/// Gives free physical memory back to the device until no more than keep_bytes stay mapped on each device that is in
/// use. Live memory stays. 0 gives back all that is free.
///
/// Memory whose last use is not done yet stays mapped; synchronise first to have all of it back.
/// Errors: GPUMEM_ERROR_DRIVER, and what starting can give.
#[no_mangle]
pub extern "C" fn gpumem_trim(keep_bytes: usize) -> gpumem_status {
    guard(|| Context::global()?.trim(keep_bytes as u64))
}

/// Sets the most bytes that gpumem may map on a device.
///
/// Below what is mapped now, free memory is given back and live memory stays. 0 means what the device has.
/// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER, and what starting can give.
#[no_mangle]
pub extern "C" fn gpumem_set_limit(device: c_int, bytes: usize) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        let dev = device_id(ctx, device)?;
        let bytes = if bytes == 0 { ctx.driver().device_props(dev)?.total_bytes } else { bytes as u64 };
        ctx.set_limit(dev, bytes)
    })
}

/// How many bytes can be used from ptr, the start of an allocation: at least those asked for.
///
/// 0 for NULL. 0 also for a pointer that is not the start of a live allocation; then gpumem_last_status has
/// GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub extern "C" fn gpumem_usable_size(ptr: *const c_void) -> usize {
    guard_value(0, || if ptr.is_null() { Ok(0) } else { Ok(Context::global()?.info(address(ptr))?.usable as usize) })
}

/// The number of an allocation: no other of this process has had it or will have it, though addresses come again.
///
/// ptr is the start of a live allocation. out receives a number that is not 0.
/// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_allocation_id(ptr: *const c_void, out: *mut u64) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        not_null(out, "out")?;
        let id = Context::global()?.info(address(ptr))?.id;
        // SAFETY: not null, so a writable uint64_t by the contract.
        unsafe { out.write(id) };
        Ok(())
    })
}

/// Facts about the live allocation that contains ptr, which may point into the middle of it.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL or the size impossible,
/// GPUMEM_ERROR_UNKNOWN_POINTER.
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

/// Checks every invariant of gpumem's own state. Slow; for tests.
///
/// Errors: GPUMEM_ERROR_INTERNAL with the first invariant that does not hold, and what starting can give.
#[no_mangle]
pub extern "C" fn gpumem_validate() -> gpumem_status {
    guard(|| Context::global()?.validate())
}

/// What options ask for, but for the arena, whose reference the caller keeps.
pub(super) fn request(ctx: &Context, o: &gpumem_malloc_options) -> Result<Request<'static>> {
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

/// Says on stderr that a free without a status was refused: each of the first eight, then each time their number
/// doubles.
pub(super) fn report_free(entry: &str, ptr: *mut c_void, e: &Error) {
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    if matches!(e.status, Status::Forked | Status::ShuttingDown) {
        return;
    }
    // A panic in here is caught, and not told: the failed free stays the thread's last error.
    let _ = catch_unwind(|| {
        let log = Context::global().map_or(1, |ctx| ctx.config().log);
        let n = REFUSED.fetch_add(1, Ordering::Relaxed) + 1;
        if log >= 1 && (n <= 8 || n.is_power_of_two()) {
            let line = format!("gpumem: {entry}({ptr:p}) did nothing: {e} ({n} so far)\n");
            // Unlike eprintln!, this does not panic when stderr is closed.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    });
}

// The legacy default stream is what a zeroed request means, and what `gpumem_malloc` promises.
const _: () = assert!(StreamHandle::LEGACY.0 == 0);

//! Moving memory out of the device and back
//!
//! Memory allocated with GPUMEM_MALLOC_EVICTABLE can leave its device and come back at the same
//! addresses: to pinned memory of the host, to a file of a disk (GPUMEM_DISK), or from one to the
//! other. Meanwhile its device memory is free for other uses. Each such allocation has whole pages
//! of its own (2 MiB on most devices). It belongs to no arena and lives, wherever it is, until it
//! is freed.
//!
//! Sleep and wake, for data that the program knows to be idle, such as the weights of a model:
//!
//!   opts.flags = GPUMEM_MALLOC_EVICTABLE; opts.tag = WEIGHTS; gpumem_malloc_with(&opts, &w);
//!   ...
//!   gpumem_evict_tag(WEIGHTS, NULL, NULL);             (all of them: the device memory is free)
//!   gpumem_restore_tag(WEIGHTS, NULL, NULL);           (they are back where they were)
//!
//! Holds, for more data than the device holds:
//!
//!   gpumem_hold(w);                                     (there until unheld; restored if need be)
//!   kernel<<<.., stream>>>(w);
//!   gpumem_unhold(w, stream);                           (may go when the stream has come this far)
//!
//! By itself  gpumem moves allocations out, oldest use first, if they have been unheld at least
//!            once and are not held now. It does so when an allocation, a reservation, a hold or a
//!            restore finds no memory, and from a thread of its own when a space is too full
//!            (GPUMEM_DOWNGRADE, GPUMEM_MOVER). So hold an allocation before each use. One that was
//!            never unheld moves only by the functions below.
//! Streams    A move out waits on the device for the work that uses the memory: what was submitted
//!            so far to the streams named in gpumem_unhold, in gpumem_record_stream and in the
//!            move's options. If neither an unhold nor the move names a stream, it waits for the
//!            stream of the allocation and those it was recorded on; if it was recorded on none,
//!            for the whole device. Other streams go on meanwhile.
//! Faults     Bytes leave a place only when they are whole in another. A move that fails or is
//!            cancelled leaves them where they were. Device code that uses memory that is not there
//!            faults.
//! Files      End with the process: its exit removes them. The next process that uses the directory
//!            removes what a killed one left.
//! Threads    Any thread may call any of these; of two that want the same allocation, one waits for
//!            the other. Inside a callback of a move or a hold (progress, out of memory) nothing
//!            waits for what is being moved: a call that would have to wait returns
//!            GPUMEM_ERROR_INVALID.
//! No pool    With GPUMEM_POOL=off each of these is GPUMEM_ERROR_UNSUPPORTED.

use super::space::{c_space, gpumem_space, tier};
use crate::base::{Error, Result};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{address, gpumem_stream, not_null, stream};
use crate::context::{Context, What};
use crate::tier::evict::{Goal, Moved, To};
use crate::tier::{SpaceId, Tier};
use std::ffi::c_void;

/// Uses gpumem_move_options.stream: all use of the memory so far has been submitted to it, or is
/// ordered before it.
pub const GPUMEM_MOVE_ON_STREAM: u32 = 1;
/// Moves to exactly the space in gpumem_move_options.space.
pub const GPUMEM_MOVE_TO_SPACE: u32 = 2;

/// Called on the thread that moves, with the bytes moved so far and in total. A result other than 0
/// cancels the move.
#[allow(non_camel_case_types)]
pub type gpumem_progress = Option<unsafe extern "C" fn(done: u64, total: u64, user: *mut c_void) -> i32>;

/// How to move. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_move_options {
    /// sizeof(gpumem_move_options).
    pub size: u32,
    /// GPUMEM_MOVE_*, or-ed together.
    pub flags: u32,
    /// The destination: any space of this tier, or exactly this space with GPUMEM_MOVE_TO_SPACE,
    /// without which the id must be 0. Zeros mean, when evicting, the nearest space of a lower tier
    /// that has room; when restoring, the device.
    pub space: gpumem_space,
    /// The stream, with GPUMEM_MOVE_ON_STREAM; must be NULL without that flag.
    pub stream: gpumem_stream,
    /// Called now and then during the move; may be NULL. It must return: no longjmp, no C++
    /// exception.
    pub progress: gpumem_progress,
    /// Passed to progress, and not used after the move.
    pub user: *mut c_void,
}

// SAFETY: repr(C), a u32 first; the sum of its fields shows no padding. Any bits are a value:
// integers, pointers that are only passed on, and a function pointer that the caller's contract
// makes NULL or valid.
extensible!(gpumem_move_options, 40, 4 * 4 + 3 * 8);

/// What a move did.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_move_report {
    /// sizeof(gpumem_move_report), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Allocations moved, a count.
    pub moved: u64,
    /// Bytes of the moved allocations, as asked for.
    pub moved_bytes: u64,
    /// Allocations that were there already, or beyond, a count.
    pub already: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_move_report, 32, 2 * 4 + 3 * 8);

/// Where an evictable allocation is.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_location {
    /// sizeof(gpumem_location), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// The space that holds its bytes; its tier is 0 while a call moves it or is about to.
    pub space: gpumem_space,
    /// How often it is held.
    pub holds: u32,
    /// Bytes asked for.
    pub bytes: u64,
    /// Device memory that it occupies while on the device, bytes.
    pub device_bytes: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_location, 32, 4 * 4 + 2 * 8);

/// Keeps an evictable allocation in its device's memory until gpumem_unhold has been called as
/// often. Restores it first if it is elsewhere.
///
/// ptr is the start of an allocation made with GPUMEM_MALLOC_EVICTABLE. Waits for the bytes: work
/// submitted to any stream after this returns may use the memory. Allocations that are not held may
/// move out to make room.
/// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and none can be made,
/// GPUMEM_ERROR_CAPTURING when what would make room is used by a stream that is being captured,
/// GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER,
/// GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_IO and GPUMEM_ERROR_CORRUPT of its file. On failure the
/// allocation stays where it was, and is not held.
#[no_mangle]
pub extern "C" fn gpumem_hold(ptr: *mut c_void) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.hold(address(ptr))
    })
}

/// Ends one hold. All use of the memory so far has been submitted to s, or is ordered before it.
///
/// From the first call on, gpumem may move the memory out whenever it is not held.
/// Errors: GPUMEM_ERROR_INVALID when it is not held or not evictable, GPUMEM_ERROR_UNKNOWN_POINTER,
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_CAPTURING when s is being
/// captured: what a graph uses stays held. Nothing has changed then.
#[no_mangle]
pub extern "C" fn gpumem_unhold(ptr: *mut c_void, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.unhold(address(ptr), stream(s))
    })
}

/// Moves an evictable allocation out of its device, and returns when its device memory is free.
///
/// ptr is its start. opts may be NULL; it is read and not kept. out may be NULL. A move only goes
/// away from the device, including from the host to a disk when opts->space names one. An
/// allocation that is as far away as asked, or farther, stays and counts as already there. A move
/// within a tier (disk to disk, node to node) is neither nearer nor farther: both functions do it,
/// with GPUMEM_MOVE_TO_SPACE.
/// Errors: GPUMEM_ERROR_INVALID when it is held or not evictable, or the options are not allowed;
/// GPUMEM_ERROR_INVALID_STREAM; GPUMEM_ERROR_OUT_OF_MEMORY when no lower space has room,
/// GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_IO,
/// GPUMEM_ERROR_CORRUPT of a file that it moves from, GPUMEM_ERROR_UNKNOWN_POINTER, also when it is
/// freed meanwhile. On failure it stays where it was.
#[no_mangle]
pub unsafe extern "C" fn gpumem_evict(
    ptr: *mut c_void,
    opts: *const gpumem_move_options,
    out: *mut gpumem_move_report,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe {
        not_null(ptr, "ptr")?;
        shift(What::One(address(ptr)), false, opts, out)
    })
}

/// Moves an evictable allocation back to its device, to the addresses it has, and returns when its
/// bytes are there.
///
/// Like gpumem_evict, but only ever nearer to the device: with opts->space.tier GPUMEM_TIER_HOST,
/// from a disk to the host. An allocation that is as near as asked, or nearer, stays and counts as
/// already there. Work submitted to any stream after this returns may use the memory. But unless it
/// is held, or was never unheld, it may leave again at once.
/// Errors: as gpumem_evict and gpumem_hold.
#[no_mangle]
pub unsafe extern "C" fn gpumem_restore(
    ptr: *mut c_void,
    opts: *const gpumem_move_options,
    out: *mut gpumem_move_report,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe {
        not_null(ptr, "ptr")?;
        shift(What::One(address(ptr)), true, opts, out)
    })
}

/// Moves all evictable allocations with a tag out of their devices.
///
/// Like gpumem_evict for each of them. When one of them is held, none moves. After any other error,
/// as many as the error text counts have moved, and the others are where they were.
/// Errors: as gpumem_evict; GPUMEM_ERROR_INVALID when none has the tag.
#[no_mangle]
pub unsafe extern "C" fn gpumem_evict_tag(
    tag: u64,
    opts: *const gpumem_move_options,
    out: *mut gpumem_move_report,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe { shift(What::Tag(tag), false, opts, out) })
}

/// Moves all evictable allocations with a tag back to their devices, as gpumem_restore does each.
///
/// Errors: as gpumem_evict_tag and gpumem_restore.
#[no_mangle]
pub unsafe extern "C" fn gpumem_restore_tag(
    tag: u64,
    opts: *const gpumem_move_options,
    out: *mut gpumem_move_report,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe { shift(What::Tag(tag), true, opts, out) })
}

/// Says where an evictable allocation is.
///
/// ptr is its start. out is filled as far as its size field says.
/// Errors: GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_location_get(ptr: *mut c_void, out: *mut gpumem_location) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        // SAFETY: the caller passes a structure whose size field is true, or NULL.
        unsafe { options::check_output(out) }?;
        let at = Context::global()?.location(address(ptr))?;
        let value = gpumem_location {
            size: 0,
            space: at.space.map(c_space).unwrap_or_default(),
            holds: at.holds,
            bytes: at.bytes,
            device_bytes: at.mapped,
        };
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// # Safety
/// `opts` and `out` are NULL or structures whose size fields are true; the callback is NULL or may
/// be called.
unsafe fn shift(what: What, back: bool, opts: *const gpumem_move_options, out: *mut gpumem_move_report) -> Result<()> {
    // SAFETY: NULL, or a structure by the caller's promise.
    let o = unsafe { options::read_if_any(opts) }?;
    if !out.is_null() {
        // SAFETY: not NULL, so a structure by the caller's promise.
        unsafe { options::check_output(out) }?;
    }
    let goal = goal(o.as_ref(), back)?;
    let by = o.as_ref().filter(|o| o.flags & GPUMEM_MOVE_ON_STREAM != 0).map(|o| stream(o.stream));
    let told = o.as_ref().and_then(|o| o.progress.map(|f| (f, o.user)));
    let mut tell = |done: u64, total: u64| {
        // SAFETY: the caller's function, which it promises may be called with this argument while
        // the move lasts.
        told.is_none_or(|(f, user)| unsafe { f(done, total, user) } == 0)
    };
    let Moved { items, bytes, already } = Context::global()?.shift(what, goal, by, Some(&mut tell))?;
    if out.is_null() {
        return Ok(());
    }
    let report = gpumem_move_report { size: 0, reserved: 0, moved: items, moved_bytes: bytes, already };
    // SAFETY: checked above.
    unsafe { options::write(out, &report) }
}

/// Where the options say that it is to go.
fn goal(o: Option<&gpumem_move_options>, back: bool) -> Result<Goal> {
    let default = if back { Goal::Device } else { Goal::Lower };
    let Some(o) = o else { return Ok(default) };
    let unknown = o.flags & !(GPUMEM_MOVE_ON_STREAM | GPUMEM_MOVE_TO_SPACE);
    if unknown != 0 {
        return Err(Error::invalid(format!("gpumem_move_options.flags: {unknown:#x} is not known to this version")));
    }
    if o.flags & GPUMEM_MOVE_ON_STREAM == 0 && !o.stream.is_null() {
        return Err(Error::invalid(
            "gpumem_move_options.stream is set without GPUMEM_MOVE_ON_STREAM; set both or neither",
        ));
    }
    let to_space = o.flags & GPUMEM_MOVE_TO_SPACE != 0;
    if !to_space && o.space.id != 0 {
        return Err(Error::invalid(
            "gpumem_move_options.space.id is set without GPUMEM_MOVE_TO_SPACE; set both or neither",
        ));
    }
    let at = match o.space.tier {
        0 if to_space => {
            return Err(Error::invalid(
                "gpumem_move_options.space.tier is 0 with GPUMEM_MOVE_TO_SPACE; name the space's tier",
            ))
        }
        0 => return Ok(default),
        number => tier(number)?,
    };
    let to = |tier| match to_space {
        true => To::Space(SpaceId::new(tier, o.space.id)),
        false => To::Tier(tier),
    };
    match (at, back) {
        (Tier::Gpu, true) if to_space => {
            Err(Error::invalid("an allocation comes back to its own device; leave the space out"))
        }
        (Tier::Gpu, true) => Ok(Goal::Device),
        (Tier::Gpu, false) => {
            Err(Error::invalid("gpumem_evict moves to the host or a disk; to come back: gpumem_restore"))
        }
        (Tier::Disk, true) if !to_space => {
            Err(Error::invalid("gpumem_restore moves to the device or the host; to a disk: gpumem_evict"))
        }
        (tier, true) => Ok(Goal::Nearer(to(tier))),
        (tier, false) => Ok(Goal::Away(to(tier))),
    }
}

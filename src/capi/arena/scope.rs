//! Arenas
//!
//! An arena holds what is allocated while it is entered. Its exit frees all of it except what you
//! keep, no matter who still holds a pointer. It is for programs that cannot say when each buffer
//! ends but know when all of them do: a step of a training loop, a request, a call into a runtime
//! whose garbage collector frees too late.
//!
//!   gpumem_arena step;
//!   gpumem_arena_enter(&step);
//!   ...                                                (allocate at will, free or not)
//!   void *keep[] = {weights, loss};
//!   gpumem_arena_exit(step, keep, 2, NULL);            (frees all else that was allocated since)
//!
//! Members    A thread can be attached to several arenas; the last one is its current arena.
//!            Everything that the thread allocates belongs to its current arena, whichever function
//!            allocates: gpumem_malloc and its relatives, gpumem_plan_materialise. In no arena are
//!            evictable memory, imported memory and what PyTorch's adapter allocates (torch.h).
//!            Other threads are not affected. gpumem_malloc_options can name another arena. A
//!            resized allocation stays in its arena. Memory allocated before an arena was entered
//!            is not in it.
//! Nesting    An arena entered while another is current is nested in that one and must be exited
//!            first. Allocations that an exit keeps move to the enclosing arena, and are freed with
//!            that one unless kept again. Kept from the outermost arena, they become ordinary
//!            allocations.
//! Frees      Any thread may free an allocation before its arena ends. Of all frees and the exit,
//!            exactly one frees the allocation; the others find it gone. gpumem_free after the exit
//!            is a double free or, worse, frees what lives at the address by then. Finalizers may
//!            run at any time, so they must call gpumem_free_id, with the number that
//!            gpumem_allocation_id_get gave while the allocation was live.
//! Streams    An exit frees each allocation in the order of the stream it was allocated on, as
//!            gpumem_free does, and waits for nothing. Use on other streams must be ordered before,
//!            or announced by gpumem_record_stream.
//! Threads    gpumem_arena_attach makes an arena current on a second thread, and
//!            gpumem_arena_detach undoes that. A thread that ends is detached. Only the last
//!            attached thread can exit an arena.
//! Handles    Exit and abort make the handle of an arena stale, and the handles of the arenas
//!            inside it. Every function here returns GPUMEM_ERROR_INVALID for a stale handle.
//!
//! Needs the pool: with GPUMEM_POOL=off there are no arenas (GPUMEM_ERROR_UNSUPPORTED).
//! docs/spec/arenas.md has every rule.

use crate::arena::{Arena, ExitReport};
use crate::base::{Error, Result};
use crate::capi::call::arguments::{array, name};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::text;
use crate::capi::call::types::{address, gpumem_arena, gpumem_stream, not_null, stream};
use crate::context::Context;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a name, without its end.
const NAME_BYTES: usize = 63;

/// Every open arena of the process.
static ARENAS: Handles<Arc<Arena>> = Handles::ended_by(b'A', "gpumem_arena", "exited or aborted");

/// What an exit did. Bytes are as asked for.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_arena_report {
    /// sizeof(gpumem_arena_report), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// How many arenas enclosed it.
    pub depth: u32,
    /// Allocations freed, a count.
    pub freed: u64,
    /// Bytes of the freed allocations.
    pub freed_bytes: u64,
    /// Allocations kept, a count.
    pub kept: u64,
    /// Bytes of the kept allocations.
    pub kept_bytes: u64,
    /// Entries of the keep list that are in no live allocation, a count.
    pub unknown: u64,
    /// Entries of the keep list that repeat an allocation, a count.
    pub duplicate: u64,
    /// Entries of the keep list that name an allocation of another arena or of none, a count. The
    /// allocation stays where it is.
    pub foreign: u64,
    /// How long the arena was open, nanoseconds.
    pub nanoseconds: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_arena_report, 72, 2 * 4 + 8 * 8);

/// What has happened in an open arena so far. Bytes are as asked for. Other threads go on while it
/// is read.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_arena_stats {
    /// sizeof(gpumem_arena_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// How many arenas enclose it.
    pub depth: u32,
    /// Allocations in it now, a count.
    pub live: u64,
    /// Bytes of the live allocations.
    pub live_bytes: u64,
    /// The most that live_bytes was.
    pub peak_bytes: u64,
    /// Allocations that came into it, made there or kept from a nested arena, a count.
    pub joined: u64,
    /// Allocations that left it, freed, promoted or escaped, a count.
    pub left: u64,
    /// Allocations that left it promoted or escaped, a count.
    pub promoted: u64,
    /// Allocations that were freed before the exit, a count.
    pub freed_early: u64,
    /// Threads attached to it, a count.
    pub threads: u64,
    /// How long it has been open, nanoseconds.
    pub nanoseconds: u64,
    /// A number that no other arena of this process has had or will have; error texts name it.
    pub id: u64,
    /// Its name, terminated; empty when it has none.
    pub name: [c_char; 64],
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_arena_stats, 152, 2 * 4 + 10 * 8 + NAME_BYTES + 1);

/// Opens an arena inside the calling thread's current one, if it has one, and makes it the current
/// one.
///
/// out receives the handle; end it with gpumem_arena_exit or gpumem_arena_abort.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
/// GPUMEM_ERROR_INVALID also when the thread is ending and in the last round of its pthread keys'
/// destructors.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_enter(out: *mut gpumem_arena) -> gpumem_status {
    // SAFETY: passed on from the caller; NULL is a name.
    guard(|| unsafe { enter(std::ptr::null(), out) })
}

/// Like gpumem_arena_enter, with a name for statistics and the texts of errors.
///
/// name is UTF-8 or NULL, which is no name; it is copied, and cut at 63 bytes.
/// Errors: those of gpumem_arena_enter; GPUMEM_ERROR_INVALID also for a name that is not UTF-8.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_enter_named(name: *const c_char, out: *mut gpumem_arena) -> gpumem_status {
    // SAFETY: passed on from the caller.
    guard(|| unsafe { enter(name, out) })
}

/// Ends an arena and frees what is in it. Kept allocations move to the enclosing arena, or become
/// ordinary memory where there is none.
///
/// The arena must be the calling thread's current one, with no other thread attached to it and no
/// open arena inside. keep has keep_len pointers, each to any byte of an allocation; it may be NULL
/// when keep_len is 0. NULL entries are skipped. An entry that points to nothing live, repeats an
/// allocation or names one outside this arena is not an error: it changes nothing, and the report
/// counts it. An allocation that another thread frees at the same time is freed once. out_or_null
/// receives the report; its size must be set (GPUMEM_INIT).
/// Errors: GPUMEM_ERROR_INVALID when the arena cannot be exited now, or by this thread; when keep
/// is NULL and keep_len is not 0; or when the report's size is impossible. The arena is then open
/// as before.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_exit(
    arena: gpumem_arena,
    keep: *const *mut c_void,
    keep_len: usize,
    out_or_null: *mut gpumem_arena_report,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes `keep_len` pointers.
        let keep = unsafe { array(keep, keep_len, "keep") }?;
        let keep: Vec<u64> = keep.iter().map(|p| address(*p)).collect();
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { end(arena, out_or_null, |ctx, arena| ctx.arena_exit(arena, &keep)) }
    })
}

/// Ends an arena and every open one inside it, keeping nothing.
///
/// No other thread may be attached to any of them; the calling one need not be. out_or_null
/// receives a report on all of them together; its size must be set (GPUMEM_INIT).
/// Errors: GPUMEM_ERROR_INVALID while other threads are attached, or when the report's size is
/// impossible. All of them are then open as before.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_abort(
    arena: gpumem_arena,
    out_or_null: *mut gpumem_arena_report,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { end(arena, out_or_null, |ctx, arena| ctx.arena_abort(arena)) }?;
        // The handles of arenas that were open inside.
        ARENAS.sweep(|a| a.scope().is_closed());
        Ok(())
    })
}

/// Makes an open arena the calling thread's current one, on top of the present one.
///
/// Until the thread detaches or ends, other threads can neither exit nor abort the arena.
/// Errors: GPUMEM_ERROR_INVALID when the thread is attached to it already, or is ending and
/// in the last round of its pthread keys' destructors.
#[no_mangle]
pub extern "C" fn gpumem_arena_attach(arena: gpumem_arena) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        ctx.arena_attach(&get(arena)?)
    })
}

/// Detaches the calling thread from its current arena; the one before it is current again. The
/// arena stays open.
///
/// The thread that entered an arena can detach too, and so hand it over to a thread that attaches.
/// Errors: GPUMEM_ERROR_INVALID when it is not the thread's current arena.
#[no_mangle]
pub extern "C" fn gpumem_arena_detach(arena: gpumem_arena) -> gpumem_status {
    guard(|| {
        let ctx = Context::global()?;
        ctx.arena_detach(&*get(arena)?)
    })
}

/// Gets the calling thread's current arena, to which its allocations belong.
///
/// out receives the handle, NULL when there is none.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_current_get(out: *mut gpumem_arena) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: not null, so a place to write to by the contract.
        unsafe { out.write(handle_of(Context::global()?.arena_current().as_ref())) };
        Ok(())
    })
}

/// Gets the arena that a live allocation is in.
///
/// ptr is any byte of it. out receives the handle, NULL when it is in none.
/// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_find(ptr: *const c_void, out: *mut gpumem_arena) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        not_null(out, "out")?;
        let found = Context::global()?.arena_of(address(ptr))?;
        // SAFETY: not null, so a writable handle by the contract.
        unsafe { out.write(handle_of(found.as_ref())) };
        Ok(())
    })
}

/// Moves a live allocation into the enclosing arena now, or out of all arenas when there is none,
/// as an exit does with what it keeps.
///
/// ptr is any byte of it. Any thread may do this.
/// Errors: GPUMEM_ERROR_INVALID when ptr is NULL or in no arena, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub extern "C" fn gpumem_arena_promote(ptr: *mut c_void) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.arena_promote(address(ptr))
    })
}

/// Takes a live allocation out of all arenas, and out of what gpumem_capture_abort frees: for a
/// constant that one step makes and later steps use, and for owners that can only free by address.
///
/// ptr is any byte of it. Nothing happens when it is in neither. Any thread may do this. A resize
/// that moves it on a stream in a capture makes it that capture's again.
/// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
#[no_mangle]
pub extern "C" fn gpumem_arena_escape(ptr: *mut c_void) -> gpumem_status {
    guard(|| {
        not_null(ptr, "ptr")?;
        Context::global()?.arena_escape(address(ptr))
    })
}

/// What has happened in an open arena so far.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
/// impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_stats_get(arena: gpumem_arena, out: *mut gpumem_arena_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let ctx = Context::global()?;
        let arena = get(arena)?;
        let stats = ctx.arena_stats(&arena)?;
        let value = gpumem_arena_stats {
            size: 0,
            depth: stats.depth,
            live: stats.live,
            live_bytes: stats.live_bytes,
            peak_bytes: stats.peak_bytes,
            joined: stats.joined,
            left: stats.left,
            promoted: stats.promoted,
            // Counted one after the other, so they may be of different moments.
            freed_early: stats.left.saturating_sub(stats.promoted),
            threads: u64::from(stats.threads),
            nanoseconds: nanoseconds(stats.open_for),
            id: arena.id(),
            name: text::fill(arena.name()),
        };
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// Frees the allocation with this id, if it is still live: for finalizers, which may run after its
/// arena has ended.
///
/// ptr is the start of an allocation that gpumem made, live or not, or NULL, which does nothing. id
/// is what gpumem_allocation_id_get gave for it. When that allocation is gone, even if another
/// lives at its address now, nothing changes: the call returns GPUMEM_OK and
/// gpumem_stats.late_frees counts it. Frees in the order of the stream it was allocated on, as
/// gpumem_free does. It works for memory outside of arenas too.
/// Errors: GPUMEM_ERROR_INVALID when id is 0, GPUMEM_ERROR_UNKNOWN_POINTER for an address that
/// gpumem never gave; with GPUMEM_POOL=off such an address counts as one whose allocation is gone.
#[no_mangle]
pub extern "C" fn gpumem_free_id(ptr: *mut c_void, id: u64) -> gpumem_status {
    guard(|| free_id(ptr, id, None))
}

/// Like gpumem_free_id, but in the order of s, as gpumem_free_async frees.
///
/// Errors: those of gpumem_free_id, and GPUMEM_ERROR_INVALID_STREAM; nothing is freed then.
#[no_mangle]
pub extern "C" fn gpumem_free_id_async(ptr: *mut c_void, id: u64, s: gpumem_stream) -> gpumem_status {
    guard(|| free_id(ptr, id, Some(s)))
}

/// # Safety
/// `called` is null or a terminated string, `out` null or writable.
unsafe fn enter(called: *const c_char, out: *mut gpumem_arena) -> Result<()> {
    not_null(out, "out")?;
    // SAFETY: passed on from the caller.
    let called = unsafe { name(called, "name") }?.unwrap_or_default();
    let ctx = Context::global()?;
    let cut = text::floor_char_boundary(called, NAME_BYTES);
    let arena = ctx.arena_enter(called.get(..cut).unwrap_or_default())?;
    let handle = match ARENAS.insert(arena.clone()) {
        Ok(handle) => handle,
        // Nothing is in it yet.
        Err(e) => return ctx.arena_abort(&arena).and(Err(e)),
    };
    arena.set_key(handle);
    // SAFETY: not null, so a writable handle by the contract.
    unsafe { out.write(handle as gpumem_arena) };
    Ok(())
}

/// Ends an arena as `how` does, and its handle.
///
/// # Safety
/// `out` is null or a structure whose size field is true.
unsafe fn end(
    handle: gpumem_arena,
    out: *mut gpumem_arena_report,
    how: impl FnOnce(&Context, &Arc<Arena>) -> Result<ExitReport>,
) -> Result<()> {
    if !out.is_null() {
        // SAFETY: passed on from the caller.
        unsafe { options::check_output(out) }?;
    }
    let ctx = Context::global()?;
    let arena = get(handle)?;
    let open = arena.age();
    let ended = how(ctx, &arena)?;
    // Another thread's abort may have swept it away already.
    let _ = ARENAS.remove(handle as usize);
    if out.is_null() {
        return Ok(());
    }
    let ExitReport { freed, freed_bytes, kept, kept_bytes, unknown, duplicate, foreign, depth } = ended;
    let nanoseconds = nanoseconds(open);
    let value = gpumem_arena_report {
        size: 0,
        depth,
        freed,
        freed_bytes,
        kept,
        kept_bytes,
        unknown,
        duplicate,
        foreign,
        nanoseconds,
    };
    // SAFETY: as above.
    unsafe { options::write(out, &value) }
}

fn free_id(ptr: *mut c_void, id: u64, s: Option<gpumem_stream>) -> Result<()> {
    if ptr.is_null() {
        return Ok(());
    }
    if id == 0 {
        return Err(Error::invalid("id is 0, which no allocation has; pass the number from gpumem_allocation_id_get"));
    }
    Context::global()?.free_id(address(ptr), id, s.map(stream)).map(|_| ())
}

/// The open arena of a handle.
fn get(handle: gpumem_arena) -> Result<Arc<Arena>> {
    ARENAS.get(handle as usize).map(|arena| (*arena).clone())
}

/// The arena that options name, if they name one.
pub(in crate::capi) fn named(handle: gpumem_arena) -> Result<Option<Arc<Arena>>> {
    match handle.is_null() {
        true => Ok(None),
        false => get(handle).map(Some),
    }
}

fn handle_of(arena: Option<&Arc<Arena>>) -> gpumem_arena {
    arena.map_or(0, |a| a.key()) as gpumem_arena
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

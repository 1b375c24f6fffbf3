//! Finding late uses
//!
//! An arena frees what was allocated in it, no matter who still holds a pointer.
//! GPUMEM_ARENA_DEBUG, or the field arena_debug of gpumem_context_options, turns on the search for
//! late uses:
//!
//!    check     Arenas remember what they free, and gpumem_check says whether a pointer points into
//!              that. A runtime calls it where its operations take their operands.
//!    abort     The first late use found ends the process by SIGABRT, after a line on stderr.
//!    poison    Freed memory is filled with 0xff, NaN in every floating-point format, and kept for
//!              a while (GPUMEM_ARENA_QUARANTINE). Late writes are found when the memory is handed
//!              out again, and by gpumem_arena_verify.
//!    unmap     Each allocation gets physical memory of its own, which is unmapped when the arena
//!              ends; its addresses are kept for a while. Any late use faults, a kernel's too.
//!
//! Combine them with commas, except poison with unmap. Each includes check. With poison or unmap,
//! the end of an arena waits for the device, which would break a capture on a stream that gpumem
//! has never been called with; it does not wait while a stream that gpumem knows is being captured.
//! When all are off, gpumem_check, gpumem_check_id and gpumem_arena_verify return GPUMEM_OK at the
//! cost of a branch, and gpumem_arena_describe returns GPUMEM_ERROR_UNSUPPORTED.

use crate::arena::DetectorStats;
use crate::base::{Error, Status};
use crate::capi::call::arguments::guard_text;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::{guard, guard_hit};
use crate::capi::call::options::{self, extensible};
use crate::capi::call::text;
use crate::capi::call::types::address;
use crate::capi::settings::context_options::{
    GPUMEM_ARENA_DEBUG_ABORT, GPUMEM_ARENA_DEBUG_CHECK, GPUMEM_ARENA_DEBUG_OFF, GPUMEM_ARENA_DEBUG_POISON,
    GPUMEM_ARENA_DEBUG_UNMAP,
};
use crate::context::Context;
use crate::driver::process;
use std::ffi::{c_char, c_void, CStr};

/// What has been found so far in this process, on all devices. Counts unless a field says bytes.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_arena_debug_stats {
    /// sizeof(gpumem_arena_debug_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// GPUMEM_ARENA_DEBUG_* in force.
    pub mode: u32,
    /// Remembered allocations that arenas have freed. When there are very many, the oldest are
    /// forgotten.
    pub remembered: u64,
    /// Late uses that gpumem_check and gpumem_check_id have found.
    pub stale_uses: u64,
    /// Poisoned allocations found overwritten.
    pub stale_writes: u64,
    /// Allocations kept at present: their memory with "poison", their addresses with "unmap".
    pub kept: u64,
    /// Size of what is kept, bytes.
    pub kept_bytes: u64,
    /// Allocations that could not be filled, unmapped or checked in time: a stream was being
    /// captured, a driver call failed, or with "poison" GPUMEM_ARENA_QUARANTINE had no room for
    /// them.
    pub unchecked: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_arena_debug_stats, 56, 2 * 4 + 6 * 8);

/// Says whether an arena has freed the memory at ptr.
///
/// ptr is any address, also inside an allocation, or NULL, which is GPUMEM_OK. op and operand are
/// for the text: which operation, and which of its operands ptr is; NULL is shown as "?". They are
/// not kept.
/// Errors: GPUMEM_ERROR_USE_AFTER_FREE when ptr is in memory that the end of an arena has freed and
/// that has not been handed out since: "use-after-arena-free: add lhs was reclaimed by arena_exit
/// at depth 0 (arena 7 "step", allocation 123 of 4096 bytes); ...", where the outermost arena has
/// depth 0. The text also goes to stderr (rate-limited; GPUMEM_LOG=0 turns it off), and with
/// "abort" the process ends there. Always GPUMEM_OK without "check". Memory that was freed
/// otherwise, or that has been handed out again, is not found: gpumem_check_id finds that.
#[no_mangle]
pub unsafe extern "C" fn gpumem_check(ptr: *const c_void, op: *const c_char, operand: *const c_char) -> gpumem_status {
    guard_hit(nothing_to_check, || {
        // SAFETY: the caller passes NULL or terminated strings.
        let (op, operand) = unsafe { (word(op), word(operand)) };
        Context::global()?.check(address(ptr), &op, &operand)
    })
}

/// Says whether ptr is still in the allocation that it was made for.
///
/// Like gpumem_check, but exact: id is the allocation's number, from gpumem_allocation_id_get, so a
/// use is found also when memory of another allocation is at the address now, or when it was freed
/// with no arena. Without "check" always GPUMEM_OK.
/// Errors: GPUMEM_ERROR_USE_AFTER_FREE when the live allocation that contains ptr has another
/// number, or there is none.
#[no_mangle]
pub unsafe extern "C" fn gpumem_check_id(
    ptr: *const c_void,
    id: u64,
    op: *const c_char,
    operand: *const c_char,
) -> gpumem_status {
    guard_hit(nothing_to_check, || {
        // SAFETY: the caller passes NULL or terminated strings.
        let (op, operand) = unsafe { (word(op), word(operand)) };
        Context::global()?.check_id(address(ptr), id, &op, &operand)
    })
}

/// Says what was at an address that an arena has freed, such as a faulting address that a tool
/// reports.
///
/// buf may be NULL when cap is 0; cap is in bytes. Copies what fits of a sentence like
/// "0x7f0000001200 is 512 bytes into allocation 123 (4096 bytes, tag 5) of arena 7 "step",
/// reclaimed by arena_exit at depth 0", always terminated. needed may be NULL; it receives the
/// bytes that the whole text takes, its NUL included.
/// Errors: GPUMEM_ERROR_UNKNOWN_POINTER when no arena is known to have freed what was there, or the
/// address has been handed out since; GPUMEM_ERROR_UNSUPPORTED without "check";
/// GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_describe(
    addr: *const c_void,
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
) -> gpumem_status {
    let describe = || {
        let detector = Context::global()?.detector().ok_or_else(|| {
            Error::new(Status::Unsupported, "arenas do not remember what they free; set GPUMEM_ARENA_DEBUG=check")
        })?;
        detector.describe(address(addr)).ok_or_else(|| {
            Error::new(Status::UnknownPointer, format!("{addr:p} is in no memory that an arena is known to have freed"))
        })
    };
    // SAFETY: the caller passes `cap` writable bytes, or NULL and 0; NULL or a place to write to.
    unsafe { guard_text(buf, cap, needed, describe) }
}

/// Checks now all the memory that "poison" keeps.
///
/// Waits for the device, and reads up to GPUMEM_ARENA_QUARANTINE bytes of its memory. Each
/// overwritten allocation is reported on stderr ("stale write after arena_exit: 16 bytes from
/// offset 0 of allocation 123 (4096 bytes) of arena 7 "step", ..."), where the bytes run from the
/// first changed one to the last, and is filled again. GPUMEM_OK without "poison".
/// Errors: GPUMEM_ERROR_USE_AFTER_FREE when anything was written to; GPUMEM_ERROR_CAPTURING while a
/// stream is being captured on which gpumem was called; GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_arena_verify() -> gpumem_status {
    guard_hit(nothing_to_check, || Context::global()?.arena_verify())
}

/// Gets what has been found so far.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
/// impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_arena_debug_stats_get(out: *mut gpumem_arena_debug_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let value = stats(Context::global()?);
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &value) }
    })
}

fn stats(ctx: &Context) -> gpumem_arena_debug_stats {
    let Some(detector) = ctx.detector() else {
        return gpumem_arena_debug_stats { mode: GPUMEM_ARENA_DEBUG_OFF, ..gpumem_arena_debug_stats::default() };
    };
    let mode = detector.mode();
    let flags = [
        (mode.abort, GPUMEM_ARENA_DEBUG_ABORT),
        (mode.poison, GPUMEM_ARENA_DEBUG_POISON),
        (mode.unmap, GPUMEM_ARENA_DEBUG_UNMAP),
    ];
    let mode = flags.iter().filter(|f| f.0).fold(GPUMEM_ARENA_DEBUG_CHECK, |all, f| all | f.1);
    let DetectorStats { remembered, stale_uses, stale_writes, kept, kept_bytes, unchecked } = detector.stats();
    gpumem_arena_debug_stats { size: 0, mode, remembered, stale_uses, stale_writes, kept, kept_bytes, unchecked }
}

/// Whether there is no detector. A forked child whose parent had one goes on, and is told that it
/// is one.
#[inline]
fn nothing_to_check() -> bool {
    Context::existing().is_none_or(|ctx| ctx.detector().is_none()) && !process::forked()
}

/// Longest operation or operand shown, bytes.
const WORD_BYTES: usize = 200;

/// # Safety
/// `text` is null or a terminated string.
unsafe fn word(text: *const c_char) -> String {
    if text.is_null() {
        return "?".to_string();
    }
    // SAFETY: passed on from the caller.
    let all = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let cut = text::floor_char_boundary(&all, WORD_BYTES);
    all.get(..cut).unwrap_or_default().to_string()
}

//! Looking at a plan
//!
//! Reports are text for people and for scripts; their formats are in docs/spec/planner.md.

use super::buffers::{gpumem_plan, with};
use super::solve::GPUMEM_PLAN_NO_OFFSET;
use super::state::Solved;
use crate::base::{Error, Result};
use crate::capi::call::arguments::{array, guard_list, guard_text, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::types::not_null;
use crate::plan::{verify_slots, Lowered, Placement, Slot};
use std::ffi::c_char;

/// The layout as text: the sizes, and a line per slot in the order of offsets.
///
/// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may
/// be NULL; it receives the bytes that the whole text takes, its NUL included, so more than cap
/// means that it was cut.
/// Errors: GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0, or the plan has not been solved
/// since it was changed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_report_get(
    plan: gpumem_plan,
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    unsafe { copy(plan, buf, cap, needed, |s| crate::plan::report(&s.lowered.problem, &s.layout)) }
}

/// The slots and their offsets as CSV, in the order of ids, with a header: what `gpumem plan` reads
/// and writes. It reads offsets as fixed ones, so what it makes of a solved plan is the same
/// layout.
///
/// Like gpumem_plan_report_get.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_csv_get(
    plan: gpumem_plan,
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    unsafe { copy(plan, buf, cap, needed, |s| crate::plan::csv(&s.lowered.problem, &s.layout)) }
}

/// The layout as a picture, SVG: steps from left to right, offsets upwards, a rectangle for each
/// live range.
///
/// Like gpumem_plan_report_get.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_svg_get(
    plan: gpumem_plan,
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
) -> gpumem_status {
    // SAFETY: passed on from the caller.
    unsafe { copy(plan, buf, cap, needed, |s| crate::plan::svg(&s.lowered.problem, &s.layout)) }
}

/// Gets the buffers and values whose slots are live at the critical step, in the order of ids. The
/// critical step is the first at which most bytes are live, reserved ranges included. A slot is
/// named by the value that owns it, not by views of it or values that took it over. Only smaller or
/// shorter-lived ones among these can make the arena smaller.
///
/// ids has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count
/// may be NULL; it receives how many there are. The step is in gpumem_plan_stats.
/// Errors: GPUMEM_ERROR_INVALID when ids is NULL and cap is not 0, or the plan has not been solved
/// since it was changed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_critical_get(
    plan: gpumem_plan,
    ids: *mut u32,
    cap: usize,
    count: *mut usize,
) -> gpumem_status {
    let list = || Ok(with(plan, |state| state.solved().cloned())?.critical().values.clone());
    // SAFETY: the caller passes room for `cap` entries, or NULL and 0; NULL or a place to write to.
    unsafe { guard_list(ids, "ids", cap, count, list) }
}

/// Gets the steps during which the slot of a buffer or value holds something, gaps ignored. A view
/// has those of its parent. A value written in place also has those of what it was written over.
///
/// lower receives the first such step, upper the first step after the last.
/// Errors: GPUMEM_ERROR_INVALID when an output is NULL, id does not exist or has no slot, or the
/// plan has not been solved since it was changed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_live_get(
    plan: gpumem_plan,
    id: u32,
    lower: *mut u64,
    upper: *mut u64,
) -> gpumem_status {
    guard(|| {
        not_null(lower, "lower")?;
        not_null(upper, "upper")?;
        let live = with(plan, |state| state.solved()?.live(id))?;
        // SAFETY: neither is null, so writable by the contract.
        unsafe {
            lower.write(live.lower);
            upper.write(live.upper);
        }
        Ok(())
    })
}

/// Checks a layout of the caller's own for a plan: that what is live at the same step shares no
/// bytes, and that alignments, the unit, fixed offsets, obstacles, guards, arenas and capacities
/// are respected. The plan need not be solved, and is not changed.
///
/// offsets[i] is where buffer or value i is; count is how many there are in the plan. arenas[i] is
/// its arena; arenas may be NULL, which means arena 0 for all. GPUMEM_PLAN_NO_OFFSET stands for
/// what has no slot. It may also stand for a view or a value written in place, whose offset follows
/// from another's; an offset given for one must agree with that. The arrays are read and not kept.
/// bytes may be NULL; it receives what all arenas together need.
/// Errors: GPUMEM_ERROR_INVALID for the first fault found, which the text names; also when offsets
/// is NULL and count is not 0, count is not the plan's, or the plan's graph contradicts itself. For
/// an empty plan, NULL and 0 are a valid layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_verify(
    plan: gpumem_plan,
    arenas: *const u32,
    offsets: *const u64,
    count: usize,
    bytes: *mut u64,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes arrays of `count` elements, or NULL.
        let offsets = unsafe { array(offsets, count, "offsets") }?;
        let arenas = match arenas.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { array(arenas, count, "arenas") }?),
        };
        let lowered = with(plan, |state| state.graph.lower())?;
        let slots = slots(&lowered, arenas, offsets)?;
        let sizes = verify_slots(&lowered.problem, &slots)?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(bytes, sizes.iter().fold(0, |all, size| all.saturating_add(*size))) };
        Ok(())
    })
}

/// Copies a text about a solved plan out, without locking the plan meanwhile.
///
/// # Safety
/// `buf` is null or `cap` writable bytes, `needed` null or writable.
unsafe fn copy(
    plan: gpumem_plan,
    buf: *mut c_char,
    cap: usize,
    needed: *mut usize,
    make: impl FnOnce(&Solved) -> String,
) -> gpumem_status {
    let made = || {
        let solved = with(plan, |state| state.solved().cloned())?;
        Ok(make(&solved))
    };
    // SAFETY: passed on from the caller.
    unsafe { guard_text(buf, cap, needed, made) }
}

/// What offsets by value say about the slots of buffers.
fn slots(lowered: &Lowered, arenas: Option<&[u32]>, offsets: &[u64]) -> Result<Vec<Option<Slot>>> {
    let count = lowered.placements.len();
    if offsets.len() != count {
        return Err(Error::invalid(format!("count is {}; the plan has {count} buffers and values", offsets.len())));
    }
    let mut slots: Vec<Option<Slot>> = vec![None; lowered.problem.buffers().len()];
    for (id, (placement, offset)) in lowered.placements.iter().zip(offsets).enumerate() {
        if *offset == GPUMEM_PLAN_NO_OFFSET {
            continue;
        }
        let arena = arenas.and_then(|arenas| arenas.get(id)).copied().unwrap_or(0);
        let said = Slot { arena, offset: *offset };
        match placement {
            Placement::At(slot) if *slot == said => {}
            Placement::At(slot) => {
                return Err(Error::invalid(format!(
                    "value {id} is at offset {offset} of arena {arena}; another plan shares it at {} of arena {}",
                    slot.offset, slot.arena
                )));
            }
            Placement::Nowhere => {
                return Err(Error::invalid(format!(
                    "value {id} has no slot; pass GPUMEM_PLAN_NO_OFFSET for it, not {offset}"
                )));
            }
            Placement::In { buffer, offset: inside } => {
                let Some(start) = offset.checked_sub(*inside) else {
                    return Err(Error::invalid(format!(
                        "value {id} is at offset {offset}, and {inside} bytes behind what it is a view of"
                    )));
                };
                let said = Slot { arena, offset: start };
                match slots.get_mut(buffer.index()) {
                    Some(Some(slot)) if *slot != said => {
                        return Err(Error::invalid(format!(
                            "value {id} is at offset {offset} of arena {arena}; it has its bytes in common with another \
                             value, after which it would be at {} of arena {}",
                            slot.offset.saturating_add(*inside),
                            slot.arena
                        )));
                    }
                    Some(slot) => *slot = Some(said),
                    None => return Err(Error::internal(format!("value {id} is in {buffer}, which does not exist"))),
                }
            }
        }
    }
    Ok(slots)
}

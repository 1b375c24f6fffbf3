//! Giving a plan its memory
//!
//! An arena of a solved plan becomes one allocation of the pool, and its buffers pointers into it.
//! A plan can be given memory any number of times. It does not track that memory, which belongs to
//! the caller like any other.

use super::buffers::{gpumem_plan, with};
use crate::base::{Error, Result};
use crate::capi::alloc::malloc_with::{self, gpumem_malloc_options};
use crate::capi::arena::scope as arenas;
use crate::capi::call::arguments::array;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options;
use crate::capi::call::types::{address, gpumem_stream, not_null, pointer, stream};
use crate::capi::tiers::reservations;
use crate::context::{Context, Request};
use std::ffi::c_void;

/// What every allocation is aligned to, bytes.
const ALWAYS: u64 = 256;

/// Allocates an arena of a solved plan, in the order of a stream, on the stream's device.
///
/// s is a live stream or NULL. out receives the memory, which the caller owns until gpumem_free or
/// gpumem_free_async. An arena of no bytes gives a unique pointer all the same. The memory is
/// aligned as its buffers ask, and to at least 256 bytes. Changing, solving or destroying the plan
/// later does not touch it.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, there is no such arena or the plan has no layout;
/// those of gpumem_malloc_async; for an alignment that memory cannot have, GPUMEM_ERROR_INVALID
/// beyond 1 GiB, and with GPUMEM_POOL=off GPUMEM_ERROR_UNSUPPORTED beyond what the driver gives.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_materialise(
    plan: gpumem_plan,
    arena: u32,
    s: gpumem_stream,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let request = Request { stream: stream(s), ..needs(plan, arena)? };
        let base = Context::global()?.malloc(&request)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(base)) };
        Ok(())
    })
}

/// Like gpumem_plan_materialise, with the options of gpumem_malloc_with: flags, device, stream,
/// tag.
///
/// opts is read and not kept. Its bytes must be 0. Its alignment applies where it exceeds what the
/// plan needs.
/// Errors: those of gpumem_plan_materialise and of gpumem_malloc_with.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_materialise_with(
    plan: gpumem_plan,
    arena: u32,
    opts: *const gpumem_malloc_options,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read(opts) }?;
        not_null(out, "out")?;
        if opts.bytes != 0 {
            return Err(Error::invalid(format!(
                "gpumem_malloc_options.bytes is {}; the plan says how many",
                opts.bytes
            )));
        }
        let needs = needs(plan, arena)?;
        let ctx = Context::global()?;
        let request = malloc_with::request(ctx, &opts)?;
        let named = arenas::named(opts.arena)?;
        let reservation = reservations::named(opts.reservation)?;
        let (arena, reservation) = (named.as_ref(), reservation.as_deref());
        let align = request.align.max(needs.align);
        let request = Request { arena, reservation, size: needs.size, align, ..request };
        let base = ctx.malloc(&request)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(base)) };
        Ok(())
    })
}

/// Gets the address of a buffer or value in the memory of a solved plan.
///
/// bases[a] is the address of arena a; base_count is how many arenas bases covers. For a plan with
/// one arena, pass &base and 1. out receives bases[its arena] + its offset. Needs no device.
/// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, the base of its arena included, base_count
/// does not cover its arena, id does not exist or has no slot, or the plan has no layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_pointer_get(
    plan: gpumem_plan,
    id: u32,
    bases: *const *mut c_void,
    base_count: usize,
    out: *mut *mut c_void,
) -> gpumem_status {
    guard(|| {
        not_null(bases, "bases")?;
        not_null(out, "out")?;
        // SAFETY: the caller passes an array of `base_count` pointers.
        let bases = unsafe { array(bases, base_count, "bases") }?;
        let slot = with(plan, |state| state.laid_out()?.slot(id))?;
        let Some(base) = bases.get(slot.arena as usize) else {
            return Err(Error::invalid(format!("value {id} is in arena {}; base_count is {base_count}", slot.arena)));
        };
        not_null(*base, "the base of its arena")?;
        let Some(at) = address(*base).checked_add(slot.offset) else {
            return Err(Error::invalid(format!(
                "offset {} from the base {:#x} is beyond the address space",
                slot.offset,
                address(*base)
            )));
        };
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(pointer(at)) };
        Ok(())
    })
}

/// What an arena asks of memory: its size, and the largest alignment of a buffer in it.
fn needs(plan: gpumem_plan, arena: u32) -> Result<Request<'static>> {
    let solved = with(plan, |state| state.laid_out().cloned())?;
    let size = solved.arena(arena)?.size;
    let align = solved.lowered.alignment_in(&solved.layout, arena);
    Ok(Request { size, align: if align > ALWAYS { align } else { 0 }, ..Request::default() })
}

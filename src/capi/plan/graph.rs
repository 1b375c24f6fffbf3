//! Planning a graph
//!
//! A plan can derive live ranges: tell it the values, and the operations that write and read them.
//! The operations run one per step, in the order of adding unless gpumem_plan_order_set says
//! otherwise. A value is live from the operation that writes it to the last that reads it; inputs,
//! parameters and constants are live throughout, outputs to the end. Values and buffers can be
//! mixed in one plan.

use super::buffers::{buffer, change, gpumem_plan, gpumem_plan_buffer_options, with};
use crate::base::{Error, Result};
use crate::capi::call::arguments::{self, array, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options;
use crate::capi::call::types::not_null;
use crate::plan::{Buffer, OpId, Preset, Value, ValueId};
use std::ffi::c_char;

/// For running a model: inputs, parameters and constants are left out, because they are in memory
/// already. Nothing is kept for a backward pass.
pub const GPUMEM_PLAN_INFERENCE: i32 = 1;
/// For a later backward pass: no kind is left out, and everything that outputs were computed from
/// lives to the end. This can take many times the memory.
pub const GPUMEM_PLAN_BACKWARD: i32 = 2;

/// Adds a value: a tensor whose live range follows from the operations that write and read it.
///
/// opts is read and not kept; its live range and gaps must be left zero. out receives the value's
/// id.
/// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_buffer_add.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_value_add(
    plan: gpumem_plan,
    opts: *const gpumem_plan_buffer_options,
    out: *mut u32,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read(opts) }?;
        not_null(out, "out")?;
        // SAFETY: the options' pointers are what the contract says.
        let value = unsafe { value(&opts) }?;
        let id = change(plan, |state| state.graph.add_value(value))?;
        // SAFETY: not null, so a writable uint32_t by the contract.
        unsafe { out.write(id.0) };
        Ok(())
    })
}

/// Adds an operation that reads inputs and writes outputs. It runs after those added before it. A
/// value that is both input and output is read and left with other contents.
///
/// name is for reports, UTF-8, copied, and may be NULL. The arrays hold ids of values and may be
/// NULL when their count is 0; they are read and not kept. out may be NULL; it receives the
/// operation's number. Operations are numbered on their own, from 0.
/// Errors: GPUMEM_ERROR_INVALID for an id that does not exist, an output that comes twice, and one
/// that another operation produces already. Solving finds out whether each value is written before
/// it is read.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_op_add(
    plan: gpumem_plan,
    name: *const c_char,
    inputs: *const u32,
    input_count: usize,
    outputs: *const u32,
    output_count: usize,
    out: *mut u32,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a terminated string.
        let name = unsafe { arguments::name(name, "name") }?;
        // SAFETY: the caller passes arrays of that many elements, or NULL.
        let (inputs, outputs) =
            unsafe { (array(inputs, input_count, "inputs")?, array(outputs, output_count, "outputs")?) };
        let (inputs, outputs) = (values(inputs), values(outputs));
        let id = change(plan, |state| state.graph.add_op(name, &inputs, &outputs))?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(out, id.0) };
        Ok(())
    })
}

/// Sets the order in which the operations run: every operation added so far, once. Those added
/// later run after them.
///
/// ops has count operation numbers and may be NULL when it is 0; it is read and not kept.
/// Errors: GPUMEM_ERROR_INVALID when an operation is missing, comes twice or does not exist.
/// Solving finds out whether each value is written before it is read.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_order_set(plan: gpumem_plan, ops: *const u32, count: usize) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes an array of `count` elements, or NULL.
        let order: Vec<OpId> = unsafe { array(ops, count, "ops") }?.iter().map(|op| OpId(*op)).collect();
        change(plan, |state| state.graph.set_order(&order))
    })
}

/// Makes a value a view: child is the bytes of parent that start at offset, as many as child has.
/// child gets no slot of its own. Reading it reads its parent, which may be a view itself.
///
/// Errors: GPUMEM_ERROR_INVALID when a value does not exist, child is a view already or would be
/// one of itself, was added with a place, a guard or a live range of its own, or passes the end of
/// its parent. Solving finds out whether its kind, arena and alignment, where given, agree with the
/// parent's.
#[no_mangle]
pub extern "C" fn gpumem_plan_view_set(plan: gpumem_plan, child: u32, parent: u32, offset: u64) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.view(ValueId(child), ValueId(parent), offset)))
}

/// Allows an operation to write output over input, from its first byte on. The plan does so where
/// input dies there and output fits: both then have the same offset.
///
/// Errors: GPUMEM_ERROR_INVALID when op does not exist, does not read input or does not write
/// output.
#[no_mangle]
pub extern "C" fn gpumem_plan_in_place_add(plan: gpumem_plan, op: u32, input: u32, output: u32) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.in_place(OpId(op), ValueId(input), ValueId(output))))
}

/// Keeps a value live through a step, as an operation that reads it then would. A step after the
/// last operation extends the plan.
///
/// Errors: GPUMEM_ERROR_INVALID when the value does not exist, or step is UINT64_MAX or outside the
/// range that was stated for the value or for what it is a view of.
#[no_mangle]
pub extern "C" fn gpumem_plan_extend(plan: gpumem_plan, value: u32, step: u64) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.extend_to(ValueId(value), step)))
}

/// Keeps a value live to the end, for a reader outside the plan.
///
/// Errors: GPUMEM_ERROR_INVALID when it does not exist.
#[no_mangle]
pub extern "C" fn gpumem_plan_keep(plan: gpumem_plan, value: u32) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.pin(ValueId(value))))
}

/// Keeps everything that a value was computed from live to the end, but not the value itself. A
/// value that is a view is kept too, because its bytes are those of its parent.
///
/// Errors: GPUMEM_ERROR_INVALID when it does not exist.
#[no_mangle]
pub extern "C" fn gpumem_plan_keep_ancestors(plan: gpumem_plan, value: u32) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.pin_ancestors(ValueId(value))))
}

/// Sets whether everything that outputs were computed from lives to the end: 0 for no, the default,
/// anything else for yes.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such plan.
#[no_mangle]
pub extern "C" fn gpumem_plan_keep_ancestors_set(plan: gpumem_plan, keep: i32) -> gpumem_status {
    guard(|| {
        change(plan, |state| {
            state.graph.set_keep_ancestors(keep != 0);
            Ok(())
        })
    })
}

/// Sets for a purpose, GPUMEM_PLAN_INFERENCE or GPUMEM_PLAN_BACKWARD, what gpumem_plan_left_out_set
/// and gpumem_plan_keep_ancestors_set set.
///
/// Errors: GPUMEM_ERROR_INVALID for another number.
#[no_mangle]
pub extern "C" fn gpumem_plan_preset_set(plan: gpumem_plan, preset: i32) -> gpumem_status {
    guard(|| {
        let preset = match preset {
            GPUMEM_PLAN_INFERENCE => Preset::Inference,
            GPUMEM_PLAN_BACKWARD => Preset::Backward,
            other => {
                return Err(Error::invalid(format!(
                    "preset {other} does not exist; use GPUMEM_PLAN_INFERENCE or GPUMEM_PLAN_BACKWARD"
                )));
            }
        };
        change(plan, |state| {
            state.graph.set_preset(preset);
            Ok(())
        })
    })
}

/// States that another plan has the weight of this name at these bytes of an arena that both plans
/// use. A parameter or constant of that name then gets this slot, and this plan puts nothing else
/// there.
///
/// name is UTF-8, copied. Stating the same again changes nothing. To share the weight at another
/// place, take it back with gpumem_plan_unshare first.
/// Errors: GPUMEM_ERROR_INVALID when name is NULL or not UTF-8, the weight is shared at another
/// place or with another size already, there is no such arena, or the range passes 2^62 bytes.
/// Solving finds out whether size, kind, alignment, arena and fixed offset of the value agree, and
/// whether a guard covers another shared weight.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_share(
    plan: gpumem_plan,
    name: *const c_char,
    arena: u32,
    offset: u64,
    bytes: u64,
) -> gpumem_status {
    guard(|| {
        not_null(name, "name")?;
        // SAFETY: not null, so a terminated string by the contract.
        let name = unsafe { arguments::name(name, "name") }?.unwrap_or_default();
        change(plan, |state| state.graph.share(name, arena, offset, bytes))
    })
}

/// Like gpumem_plan_share, for every parameter and constant that lives throughout another solved
/// plan and has a slot there, and for what that plan shares itself. Weights added with a range that
/// does not cover the whole plan are left out. Those without a name, and the guards of all, are
/// kept clear.
///
/// from is not kept; later changes to it do not matter here. count may be NULL; it receives how
/// many weights have a name. Calling this again with the same layout changes nothing. After from
/// has been solved anew, call gpumem_plan_unshare first.
/// Errors: those of gpumem_plan_share, and nothing is shared then; GPUMEM_ERROR_INVALID when from
/// has no layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_share_from(
    plan: gpumem_plan,
    from: gpumem_plan,
    count: *mut usize,
) -> gpumem_status {
    guard(|| {
        // One plan is locked at a time, so that two that share from each other cannot wait for each
        // other.
        let other = with(from, |state| state.laid_out().cloned())?;
        let shared = change(plan, |state| state.graph.share_from(&other.lowered, &other.layout))?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(count, shared) };
        Ok(())
    })
}

/// Takes back what gpumem_plan_share or gpumem_plan_share_from stated about the weight of this
/// name, its guard included. A value of that name then gets a slot of this plan's again. NULL takes
/// everything back, weights without a name included.
///
/// Errors: GPUMEM_ERROR_INVALID when no weight of that name is shared, or name is not UTF-8.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_unshare(plan: gpumem_plan, name: *const c_char) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a terminated string.
        let name = unsafe { arguments::name(name, "name") }?;
        change(plan, |state| match name {
            Some(name) => state.graph.unshare(name),
            None => {
                state.graph.unshare_all();
                Ok(())
            }
        })
    })
}

fn values(ids: &[u32]) -> Vec<ValueId> {
    ids.iter().map(|id| ValueId(*id)).collect()
}

/// The value that options describe; its alignment is 0 where they leave it to the plan.
///
/// # Safety
/// As for [`buffer`].
unsafe fn value(o: &gpumem_plan_buffer_options) -> Result<Value> {
    if (o.lower, o.upper) != (0, 0) || o.gap_count != 0 {
        return Err(Error::invalid(
            "gpumem_plan_buffer_options.lower, upper and gap_count must be 0 for a value: its live range follows from the \
             operations; use gpumem_plan_buffer_add where it is known",
        ));
    }
    // SAFETY: passed on from the caller.
    let Buffer { size, alignment, guard, place, arena, kind, name, .. } = unsafe { buffer(o) }?;
    Ok(Value { size, alignment, guard, place, arena, kind, name })
}

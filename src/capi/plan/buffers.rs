//! Planning
//!
//! A plan lays buffers out in an arena before anything runs. Given the size of each buffer and the
//! steps during which it is live, it finds an offset for each, so that buffers live at the same
//! step share no bytes and the arena is as small as possible. docs/spec/planner.md has the precise
//! rules.
//!
//!   gpumem_plan plan;
//!   gpumem_plan_buffer_options b;
//!   uint32_t id;
//!   uint64_t offset;
//!   gpumem_plan_create(NULL, &plan);
//!   GPUMEM_INIT(&b);
//!   b.bytes = 1 << 20, b.lower = 0, b.upper = 3;       (live at steps 0, 1 and 2)
//!   gpumem_plan_buffer_add(plan, &b, &id);
//!   ...
//!   gpumem_plan_solve(plan, NULL);
//!   gpumem_plan_offset_get(plan, id, NULL, &offset);
//!   gpumem_plan_destroy(plan);
//!
//! Planning needs no device and starts nothing, except for gpumem_plan_materialise, which allocates
//! the arena. A plan belongs to the process that made it. In a forked child every call on it,
//! gpumem_plan_destroy included, returns GPUMEM_ERROR_FORKED at once and does nothing, whatever the
//! parent was doing with it. The child can make plans of its own, even where gpumem had started
//! before the fork.
//!
//! Steps are positions in the execution order, counted from 0; a range of them is half-open,
//! [lower, upper). Ids count from 0 in the order of adding, in one sequence for buffers and the
//! values of a graph. Offsets, sizes and sums of them are at most 2^62 bytes.
//!
//! A gpumem_plan is a handle. Each of these functions returns GPUMEM_ERROR_INVALID for one that has
//! been destroyed or was never a plan. Calls on one plan from several threads take turns, so a
//! query waits for a solve in progress; gpumem_plan_cancel and gpumem_plan_destroy do not. A call
//! that changes a plan makes its layout stale: queries return GPUMEM_ERROR_INVALID until it is
//! solved again.

use super::state::{Answer, Plan, State};
use crate::base::{Error, Result};
use crate::capi::call::arguments::{self, array, put};
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::not_null;
use crate::plan::problem::{MAX_ALIGNMENT, MAX_BUFFERS};
use crate::plan::{Arena, Buffer, Graph, Interval, Kind, Kinds, Place, Problem, Reserved, ValueId};
use std::ffi::c_char;
use std::sync::Arc;

/// The type that a gpumem_plan points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_plan_st(());

/// A handle to a plan. It is opaque: compare it only with NULL and other handles.
#[allow(non_camel_case_types)]
pub type gpumem_plan = *mut gpumem_plan_st;

/// Kind of a buffer or value: made and used up within the run.
pub const GPUMEM_PLAN_TEMPORARY: i32 = 0;
/// Kind: given by the caller for each run.
pub const GPUMEM_PLAN_INPUT: i32 = 1;
/// Kind: read by the caller after each run.
pub const GPUMEM_PLAN_OUTPUT: i32 = 2;
/// Kind: a weight, which outlives the run.
pub const GPUMEM_PLAN_PARAMETER: i32 = 3;
/// Kind: never written.
pub const GPUMEM_PLAN_CONSTANT: i32 = 4;

/// All buffers and values of kind GPUMEM_PLAN_TEMPORARY. These sets are or-ed together.
pub const GPUMEM_PLAN_TEMPORARIES: u32 = 1;
/// All of kind GPUMEM_PLAN_INPUT.
pub const GPUMEM_PLAN_INPUTS: u32 = 2;
/// All of kind GPUMEM_PLAN_OUTPUT.
pub const GPUMEM_PLAN_OUTPUTS: u32 = 4;
/// All of kind GPUMEM_PLAN_PARAMETER.
pub const GPUMEM_PLAN_PARAMETERS: u32 = 8;
/// All of kind GPUMEM_PLAN_CONSTANT.
pub const GPUMEM_PLAN_CONSTANTS: u32 = 16;

/// A buffer may go wherever it fits.
pub const GPUMEM_PLAN_ANYWHERE: i32 = 0;
/// A buffer goes to its offset and nowhere else.
pub const GPUMEM_PLAN_FIXED: i32 = 1;
/// A buffer goes to its offset if that makes the arena no larger.
pub const GPUMEM_PLAN_PREFERRED: i32 = 2;

/// For a plan: no two buffers share bytes, at any step. It helps to find out whether a wrong result
/// comes from sharing.
pub const GPUMEM_PLAN_NO_REUSE: u32 = 1;

/// For a buffer: it goes to the arena in its arena field. Without this flag it goes to the first
/// arena that has room.
pub const GPUMEM_PLAN_IN_ARENA: u32 = 1;

const _: () = {
    assert!(GPUMEM_PLAN_TEMPORARY == Kind::Temporary as i32 && GPUMEM_PLAN_TEMPORARIES == 1 << Kind::Temporary as u32);
    assert!(GPUMEM_PLAN_INPUT == Kind::Input as i32 && GPUMEM_PLAN_INPUTS == 1 << Kind::Input as u32);
    assert!(GPUMEM_PLAN_OUTPUT == Kind::Output as i32 && GPUMEM_PLAN_OUTPUTS == 1 << Kind::Output as u32);
    assert!(GPUMEM_PLAN_PARAMETER == Kind::Parameter as i32 && GPUMEM_PLAN_PARAMETERS == 1 << Kind::Parameter as u32);
    assert!(GPUMEM_PLAN_CONSTANT == Kind::Constant as i32 && GPUMEM_PLAN_CONSTANTS == 1 << Kind::Constant as u32);
};

/// A half-open range of steps, [lower, upper).
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_plan_interval {
    /// First step in it.
    pub lower: u64,
    /// First step after it.
    pub upper: u64,
}

/// Settings of a plan, for gpumem_plan_create. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_plan_options {
    /// sizeof(gpumem_plan_options).
    pub size: u32,
    /// GPUMEM_PLAN_NO_REUSE or 0.
    pub flags: u32,
    /// The most bytes of arena 0; 0 means as many as it takes.
    pub capacity: u64,
    /// Every offset is a multiple of this many bytes, which need not be a power of two. Set it to
    /// the size of the buffers' elements for offsets that can count elements. 0 means 1.
    pub unit: u64,
    /// Alignment of what is added without one, bytes, a power of two up to 2^40. It does not apply
    /// to views, which lie in their parents. 0 means 1; tensors on a GPU want 256.
    pub alignment: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_plan_options, 32, 2 * 4 + 3 * 8);

/// A buffer, for gpumem_plan_buffer_add, or a value, for gpumem_plan_value_add. A field that is 0
/// means its default.
///
/// While live, it occupies [offset, offset + bytes + guard) of its arena. A buffer of no bytes, or
/// live at no step, occupies nothing, not even its guard. It still gets an aligned offset, which
/// others may have too.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_plan_buffer_options {
    /// sizeof(gpumem_plan_buffer_options).
    pub size: u32,
    /// GPUMEM_PLAN_IN_ARENA or 0.
    pub flags: u32,
    /// What it is for: GPUMEM_PLAN_TEMPORARY and so on.
    pub kind: i32,
    /// Where it may go: GPUMEM_PLAN_ANYWHERE, _FIXED or _PREFERRED.
    pub place: i32,
    /// Its size in bytes, guard not included.
    pub bytes: u64,
    /// First step at which it holds something. Must be 0 for a value.
    pub lower: u64,
    /// First step after its last use. Must be 0 for a value.
    pub upper: u64,
    /// Alignment of its offset, bytes, a power of two up to 2^40. 0 means the plan's alignment, or
    /// none for a view.
    pub alignment: u64,
    /// Bytes after it that nothing else may use while it is live.
    pub guard: u64,
    /// Its offset in the arena, with GPUMEM_PLAN_FIXED and GPUMEM_PLAN_PREFERRED. Must be 0
    /// otherwise.
    pub offset: u64,
    /// The arena it goes to, with GPUMEM_PLAN_IN_ARENA. Must be 0 otherwise.
    pub arena: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Ranges of steps inside its live range at which it holds nothing, so that others may use its
    /// bytes. They are in order, do not overlap, and none is empty. Its contents do not survive
    /// them. May be NULL when gap_count is 0. Not for a value.
    pub gaps: *const gpumem_plan_interval,
    /// How many gaps there are, a count.
    pub gap_count: usize,
    /// Its name in reports, and for sharing with other plans: UTF-8, terminated, copied. May be
    /// NULL.
    pub name: *const c_char,
}

// SAFETY: repr(C), a u32 first, integers and raw pointers only; the sum of its fields shows no
// padding.
extensible!(gpumem_plan_buffer_options, 96, 6 * 4 + 9 * 8);

/// Makes an empty plan with one arena, arena 0.
///
/// opts may be NULL, which leaves every setting at its default; it is read and not kept. out
/// receives the plan, which the caller owns until gpumem_plan_destroy. Needs no device.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or a setting is not allowed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_create(opts: *const gpumem_plan_options, out: *mut gpumem_plan) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read_if_any(opts) }?;
        not_null(out, "out")?;
        let handle = PLANS.insert(empty(opts.as_ref())?)?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(handle as gpumem_plan) };
        Ok(())
    })
}

/// Destroys a plan. Memory that gpumem_plan_materialise allocated for it stays the caller's.
///
/// plan may be NULL, which does nothing. Does not wait. A solve in progress on another thread is
/// cancelled and returns GPUMEM_ERROR_INVALID there. Other calls in progress end as they would
/// have.
/// Errors: GPUMEM_ERROR_INVALID when it has been destroyed already or is no plan.
#[no_mangle]
pub extern "C" fn gpumem_plan_destroy(plan: gpumem_plan) -> gpumem_status {
    guard(|| {
        if !plan.is_null() {
            PLANS.remove(plan as usize)?.abandon();
        }
        Ok(())
    })
}

/// Adds a buffer whose live range is known.
///
/// opts is read and not kept. out receives the buffer's id.
/// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, or for a range that ends before it starts,
/// an alignment that is not a power of two or is more than 2^40, an offset that is not aligned, an
/// arena that does not exist, gaps out of order or out of range, an unknown kind, place or flag, a
/// size beyond 2^62, a name that is not UTF-8. Nothing is added then. Solving finds out whether
/// fixed buffers conflict.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_buffer_add(
    plan: gpumem_plan,
    opts: *const gpumem_plan_buffer_options,
    out: *mut u32,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read(opts) }?;
        not_null(out, "out")?;
        // SAFETY: the options' pointers are what the contract says.
        let buffer = unsafe { buffer(&opts) }?;
        let id = change(plan, |state| state.graph.add_buffer(buffer))?;
        // SAFETY: not null, so a writable uint32_t by the contract.
        unsafe { out.write(id.0) };
        Ok(())
    })
}

/// Adds many temporaries at once: buffer i has bytes[i] bytes and is live in [lowers[i],
/// uppers[i]).
///
/// The arrays have count elements each and may be NULL when it is 0. They are read and not kept.
/// first may be NULL; it receives the id of buffer 0, and the ids of the others follow it.
/// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_buffer_add, naming the buffer's index; none is
/// added then.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_buffers_add(
    plan: gpumem_plan,
    count: usize,
    bytes: *const u64,
    lowers: *const u64,
    uppers: *const u64,
    first: *mut u32,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes arrays of `count` elements, or NULL.
        let (bytes, lowers, uppers) = unsafe {
            (array(bytes, count, "bytes")?, array(lowers, count, "lowers")?, array(uppers, count, "uppers")?)
        };
        let ranges = lowers.iter().zip(uppers);
        let buffers =
            || bytes.iter().zip(ranges.clone()).map(|(size, (lower, upper))| Buffer::new(*size, *lower, *upper));
        // Found out beforehand, because what the graph has, it has.
        let mut trial = Problem::new();
        buffers().try_for_each(|b| trial.add(b).map(|_| ()))?;
        let id = change(plan, |state| {
            let id = state.graph.value_count();
            if count > MAX_BUFFERS - id.min(MAX_BUFFERS) {
                return Err(Error::invalid(format!("{count} more than {id} buffers; a plan holds {MAX_BUFFERS}")));
            }
            buffers().try_for_each(|b| state.graph.add_buffer(Buffer { alignment: 0, ..b }).map(|_| ()))?;
            Ok(id as u32)
        })?;
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(first, id) };
        Ok(())
    })
}

/// Adds an arena: a run of bytes of its own, such as another device's memory.
///
/// capacity is the most bytes it may have; 0 means as many as it takes. name is for reports, UTF-8,
/// copied, and may be NULL. out receives its number. Numbers are consecutive, and every plan has
/// arena 0. A buffer that is bound to no arena goes to the first that has room.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or name is not UTF-8.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_arena_add(
    plan: gpumem_plan,
    capacity: u64,
    name: *const c_char,
    out: *mut u32,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: the caller passes NULL or a terminated string.
        let name = unsafe { arguments::name(name, "name") }?.map(Into::into);
        let id = change(plan, |state| Ok(state.graph.add_arena(Arena { name, capacity: limit(capacity) })))?;
        // SAFETY: not null, so a writable uint32_t by the contract.
        unsafe { out.write(id) };
        Ok(())
    })
}

/// Sets the most bytes that an arena may have; 0 means as many as it takes.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such arena.
#[no_mangle]
pub extern "C" fn gpumem_plan_capacity_set(plan: gpumem_plan, arena: u32, bytes: u64) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.set_arena_capacity(arena, limit(bytes))))
}

/// Makes every offset a multiple of unit bytes, which need not be a power of two. 0 means 1.
///
/// Errors: GPUMEM_ERROR_INVALID when it is more than 2^62.
#[no_mangle]
pub extern "C" fn gpumem_plan_unit_set(plan: gpumem_plan, unit: u64) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.set_unit(unit.max(1))))
}

/// Sets whether buffers that are not live together may share bytes: 0 for no, anything else for
/// yes, the default.
#[no_mangle]
pub extern "C" fn gpumem_plan_reuse_set(plan: gpumem_plan, reuse: i32) -> gpumem_status {
    guard(|| {
        change(plan, |state| {
            state.graph.set_reuse(reuse != 0);
            Ok(())
        })
    })
}

/// Keeps bytes [offset, offset + bytes) of an arena free of buffers during steps [lower, upper),
/// for the caller's own use. UINT64_MAX for upper means to the end.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such arena, the range passes 2^62 bytes or the
/// steps end before they start.
#[no_mangle]
pub extern "C" fn gpumem_plan_obstacle_add(
    plan: gpumem_plan,
    arena: u32,
    offset: u64,
    bytes: u64,
    lower: u64,
    upper: u64,
) -> gpumem_status {
    let reserved = Reserved { arena, offset, size: bytes, during: Interval::new(lower, upper) };
    guard(|| change(plan, |state| state.graph.reserve(reserved)))
}

/// Sets the kinds that get no slot, because the caller provides their memory:
/// GPUMEM_PLAN_TEMPORARIES and so on, or-ed together; 0 for none, the default. A view goes by the
/// kind of its root: it has a slot if and only if the root has one. A shared weight is where it is
/// shared all the same.
///
/// Errors: GPUMEM_ERROR_INVALID for a bit that is no kind.
#[no_mangle]
pub extern "C" fn gpumem_plan_left_out_set(plan: gpumem_plan, kinds: u32) -> gpumem_status {
    guard(|| {
        let all = Kind::ALL.into_iter().fold(0, |all, kind| all | 1 << kind as u32);
        if kinds & !all != 0 {
            return Err(Error::invalid(format!(
                "kinds {kinds:#x} has bits beyond {all:#x}; use GPUMEM_PLAN_INPUTS and so on"
            )));
        }
        let set = Kind::ALL.into_iter().filter(|kind| kinds & 1 << *kind as u32 != 0).fold(Kinds::NONE, Kinds::with);
        change(plan, |state| {
            state.graph.set_left_out(set);
            Ok(())
        })
    })
}

/// Changes the size of a buffer or value. Solve again afterwards; GPUMEM_PLAN_EFFORT_FAST is made
/// for that.
///
/// Errors: GPUMEM_ERROR_INVALID when id does not exist, a view of it no longer fits, it no longer
/// fits its own parent, or bytes passes 2^62 together with its guard or with its fixed or preferred
/// offset. On failure the size stays as it was.
#[no_mangle]
pub extern "C" fn gpumem_plan_resize(plan: gpumem_plan, id: u32, bytes: u64) -> gpumem_status {
    guard(|| change(plan, |state| state.graph.resize(ValueId(id), bytes)))
}

/// Every plan of the process.
static PLANS: Handles<Plan> = Handles::new(b'P', "gpumem_plan");

/// Reads or changes a plan in its turn.
pub(in crate::capi) fn with<T>(plan: gpumem_plan, f: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
    get(plan)?.with(f)
}

/// Changes what is to be laid out; if that succeeds, the layout there was is stale.
pub(in crate::capi) fn change<T>(plan: gpumem_plan, f: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
    with(plan, |state| {
        let changed = f(state)?;
        if matches!(state.answer, Answer::Solved(_)) {
            state.answer = Answer::Stale;
        }
        Ok(changed)
    })
}

/// The plan of a handle.
pub(in crate::capi) fn get(plan: gpumem_plan) -> Result<Arc<Plan>> {
    PLANS.get(plan as usize)
}

fn limit(bytes: u64) -> Option<u64> {
    (bytes != 0).then_some(bytes)
}

fn empty(opts: Option<&gpumem_plan_options>) -> Result<Plan> {
    let mut graph = Graph::new();
    if let Some(o) = opts {
        if o.flags & !GPUMEM_PLAN_NO_REUSE != 0 {
            return Err(Error::invalid(format!(
                "gpumem_plan_options.flags is {:#x}; unknown flags must be 0",
                o.flags
            )));
        }
        if o.alignment != 0 && (!o.alignment.is_power_of_two() || o.alignment > MAX_ALIGNMENT) {
            return Err(Error::invalid(format!(
                "gpumem_plan_options.alignment is {}; it is a power of two up to 2^40, or 0 for 1",
                o.alignment
            )));
        }
        graph.set_capacity(limit(o.capacity));
        graph.set_unit(o.unit.max(1))?;
        graph.set_reuse(o.flags & GPUMEM_PLAN_NO_REUSE == 0);
        graph.set_alignment(o.alignment);
    }
    Ok(Plan::new(graph))
}

/// The buffer that options describe; its alignment is 0 where they leave it to the plan.
///
/// # Safety
/// The pointers in them are null, or an array of `gap_count` intervals and a terminated string.
pub(in crate::capi) unsafe fn buffer(o: &gpumem_plan_buffer_options) -> Result<Buffer> {
    let refuse = |field: &str, value: &dyn std::fmt::Display, instead: &str| {
        Err(Error::invalid(format!("gpumem_plan_buffer_options.{field} is {value}; {instead}")))
    };
    if o.flags & !GPUMEM_PLAN_IN_ARENA != 0 {
        return refuse("flags", &o.flags, "unknown flags must be 0");
    }
    if o.reserved != 0 {
        return refuse("reserved", &o.reserved, "it must be 0");
    }
    let bound = o.flags & GPUMEM_PLAN_IN_ARENA != 0;
    if o.arena != 0 && !bound {
        return refuse("arena", &o.arena, "set GPUMEM_PLAN_IN_ARENA in flags for it to count");
    }
    let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as i32 == o.kind) else {
        return refuse("kind", &o.kind, "use GPUMEM_PLAN_TEMPORARY, _INPUT, _OUTPUT, _PARAMETER or _CONSTANT");
    };
    let place = match o.place {
        GPUMEM_PLAN_ANYWHERE if o.offset != 0 => {
            return refuse(
                "offset",
                &o.offset,
                "set place to GPUMEM_PLAN_FIXED or GPUMEM_PLAN_PREFERRED for it to count",
            );
        }
        GPUMEM_PLAN_ANYWHERE => Place::Anywhere,
        GPUMEM_PLAN_FIXED => Place::Fixed(o.offset),
        GPUMEM_PLAN_PREFERRED => Place::Preferred(o.offset),
        other => return refuse("place", &other, "use GPUMEM_PLAN_ANYWHERE, _FIXED or _PREFERRED"),
    };
    // SAFETY: passed on from the caller.
    let (gaps, name) = unsafe { (array(o.gaps, o.gap_count, "gaps")?, arguments::name(o.name, "name")?) };
    Ok(Buffer {
        size: o.bytes,
        lower: o.lower,
        upper: o.upper,
        gaps: gaps.iter().map(|g| Interval::new(g.lower, g.upper)).collect(),
        alignment: o.alignment,
        guard: o.guard,
        place,
        arena: bound.then_some(o.arena),
        kind,
        name: name.map(Into::into),
    })
}

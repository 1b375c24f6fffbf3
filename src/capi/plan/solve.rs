//! Solving a plan
//!
//! Solving finds an offset for every buffer and value. The effort is counted in steps of the
//! search, so the same plan and options give the same layout on every machine, unless the clock or
//! gpumem_plan_cancel stops the search (the summary says so). Every layout is verified before it is
//! used.

use super::buffers::{get, gpumem_plan, with};
use super::state::{Answer, Solved, State};
use crate::base::{Error, Result, Status};
use crate::capi::call::arguments::put;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::not_null;
use crate::plan::{solve, verify, Effort, Layout, LayoutStatus, Problem, Slot, SolveOptions, ValueId};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

/// Tries greedy orders, then searches for a limited number of steps. The default.
pub const GPUMEM_PLAN_EFFORT_NORMAL: i32 = 0;
/// Tries a few greedy orders and does not search. Takes under a millisecond for hundreds of
/// buffers. For planning again at run time.
pub const GPUMEM_PLAN_EFFORT_FAST: i32 = 1;

/// Tries the order of the last layout first, if the plan still has as many slots. For planning
/// again after gpumem_plan_resize. The layout then depends on the last one too.
pub const GPUMEM_PLAN_FROM_LAST: u32 = 1;

/// Status of a layout: no smaller arena is possible.
pub const GPUMEM_PLAN_OPTIMAL: i32 = 0;
/// Status of a layout: valid, and perhaps not the smallest.
pub const GPUMEM_PLAN_FEASIBLE: i32 = 1;
/// Status: no layout fits the capacities, which is proved.
pub const GPUMEM_PLAN_INFEASIBLE: i32 = 2;
/// Status: no layout that fits the capacities was found; there may be one.
pub const GPUMEM_PLAN_OUT_OF_TIME: i32 = 3;

/// Stands for the offset of a buffer or value that has no slot, in gpumem_plan_offsets_get and
/// gpumem_plan_verify.
pub const GPUMEM_PLAN_NO_OFFSET: u64 = u64::MAX;

const _: () = {
    assert!(GPUMEM_PLAN_OPTIMAL == LayoutStatus::Optimal as i32);
    assert!(GPUMEM_PLAN_FEASIBLE == LayoutStatus::Feasible as i32);
    assert!(GPUMEM_PLAN_INFEASIBLE == LayoutStatus::Infeasible as i32);
    assert!(GPUMEM_PLAN_OUT_OF_TIME == LayoutStatus::OutOfTime as i32);
};

/// How to solve, for gpumem_plan_solve. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_plan_solve_options {
    /// sizeof(gpumem_plan_solve_options).
    pub size: u32,
    /// GPUMEM_PLAN_EFFORT_*.
    pub effort: i32,
    /// Time to search, milliseconds. With a limit, the normal effort searches until then, or until
    /// it reaches the lower bound or a proof, and the layout may depend on the machine. 0 means the
    /// steps of the effort however long they take, usually seconds at most. A quick answer is
    /// made in any case, and the first greedy order for up to 4,096 buffers. Of several arenas,
    /// each has its share of the time.
    pub time_limit_ms: u64,
    /// Threads to search with, a count up to 256; 0 and 1 search on the caller's thread.
    pub threads: u32,
    /// GPUMEM_PLAN_FROM_LAST or 0.
    pub flags: u32,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_plan_solve_options, 24, 4 * 4 + 8);

/// The result of solving, from gpumem_plan_stats_get. Bytes unless a field says otherwise.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct gpumem_plan_stats {
    /// sizeof(gpumem_plan_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// GPUMEM_PLAN_OPTIMAL, _FEASIBLE, _INFEASIBLE or _OUT_OF_TIME.
    pub status: i32,
    /// Size of all arenas together. With _INFEASIBLE and _OUT_OF_TIME, that of the smallest layout
    /// found that ignores the capacities; 0 if none was found.
    pub arena_bytes: u64,
    /// No layout can be smaller than this. It is at least the largest sum of what is live at one
    /// step.
    pub lower_bound: u64,
    /// What the buffers would take without sharing bytes.
    pub total_unshared: u64,
    /// What sharing bytes saves: total_unshared - arena_bytes, but at least 0; 0 where arena_bytes
    /// is 0.
    pub saved: u64,
    /// How far arena_bytes is above lower_bound, as a fraction of lower_bound. 0 means optimal, if
    /// there is a layout.
    pub gap: f64,
    /// How long planning took, seconds.
    pub seconds: f64,
    /// The first step at which most is live.
    pub critical_step: u64,
    /// Steps, a count.
    pub steps: u64,
    /// Slots laid out, a count: views and values written in place have none of their own.
    pub slots: u64,
    /// Buffers and values, a count: ids are below it.
    pub values: u64,
    /// Operations, a count.
    pub operations: u64,
    /// Arenas, a count.
    pub arenas: u32,
    /// 1 when the search was cancelled or stopped by the clock: another run may give another
    /// layout.
    pub interrupted: u32,
}

// SAFETY: repr(C), a u32 first, numbers only; the sum of its fields shows no padding.
extensible!(gpumem_plan_stats, 104, 4 * 4 + 11 * 8);

/// Lays a plan out. The result of an earlier solve is replaced.
///
/// opts may be NULL, which leaves every setting at its default; it is read and not kept. Other
/// calls on the plan wait, except for gpumem_plan_cancel, which ends this one early with the best
/// layout so far, and gpumem_plan_destroy.
/// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when no layout was found, within the capacities or with an
/// arena for each fixed buffer that is bound to none; the text has the capacity, the lower bound
/// and the smallest size found. gpumem_plan_stats_get has them too, and says whether it is proved
/// that no layout fits. This replaces the result of an earlier solve, and there are no offsets.
/// GPUMEM_ERROR_INVALID when a value is read before it is written, the graph contradicts itself,
/// fixed buffers conflict with each other or an obstacle or are off the unit, sizes add up to more
/// than 2^62 bytes, an option is not allowed, or the plan was destroyed meanwhile. The plan is then
/// as it was.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_solve(plan: gpumem_plan, opts: *const gpumem_plan_solve_options) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or options whose size field is true.
        let (options, from_last) = match unsafe { options::read_if_any(opts) }? {
            None => (SolveOptions::default(), false),
            Some(options) => options_of(&options)?,
        };
        get(plan)?.solve(|state, cancel| run(state, &options, from_last, cancel))
    })
}

/// Ends a solve in progress on another thread soon, with the best layout so far.
///
/// Does nothing when none is in progress; does not wait. Errors: GPUMEM_ERROR_INVALID when there is
/// no such plan.
#[no_mangle]
pub extern "C" fn gpumem_plan_cancel(plan: gpumem_plan) -> gpumem_status {
    guard(|| {
        get(plan)?.cancel();
        Ok(())
    })
}

/// Gets the result of solving, even where there is no layout.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
/// impossible, or the plan has not been solved since it was changed.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_stats_get(plan: gpumem_plan, out: *mut gpumem_plan_stats) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let solved = with(plan, |state| state.solved().cloned())?;
        let value = summary(&solved);
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

/// Gets how many bytes an arena needs.
///
/// bytes receives the size. lower_bound may be NULL; it receives a size that no layout of the
/// arena's buffers can go below.
/// Errors: GPUMEM_ERROR_INVALID when bytes is NULL, there is no such arena, or the plan has no
/// layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_arena_bytes_get(
    plan: gpumem_plan,
    arena: u32,
    bytes: *mut u64,
    lower_bound: *mut u64,
) -> gpumem_status {
    guard(|| {
        not_null(bytes, "bytes")?;
        let needs = with(plan, |state| state.laid_out()?.arena(arena))?;
        // SAFETY: not null, so a writable uint64_t by the contract.
        unsafe { bytes.write(needs.size) };
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(lower_bound, needs.lower_bound) };
        Ok(())
    })
}

/// Gets the offset of a buffer or value. A view's lies inside its parent.
///
/// arena may be NULL; it receives the arena. offset receives the offset in it.
/// Errors: GPUMEM_ERROR_INVALID when offset is NULL, id does not exist or has no slot (its kind is
/// left out, or nothing uses it), or the plan has no layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_offset_get(
    plan: gpumem_plan,
    id: u32,
    arena: *mut u32,
    offset: *mut u64,
) -> gpumem_status {
    guard(|| {
        not_null(offset, "offset")?;
        let slot = with(plan, |state| state.laid_out()?.slot(id))?;
        // SAFETY: not null, so a writable uint64_t by the contract.
        unsafe { offset.write(slot.offset) };
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(arena, slot.arena) };
        Ok(())
    })
}

/// Gets the offsets of many buffers and values: ids first, first + 1 and so on.
///
/// The arrays have room for cap elements. arenas may be NULL; it receives the arenas. offsets
/// receives the offsets, GPUMEM_PLAN_NO_OFFSET for what has no slot; its arena is then 0. It may be
/// NULL when cap is 0. count may be NULL; it receives how many there are from first on, so more
/// than cap means that some were left out.
/// Errors: GPUMEM_ERROR_INVALID when offsets is NULL and cap is not 0, first is more than the
/// number of ids, or the plan has no layout.
#[no_mangle]
pub unsafe extern "C" fn gpumem_plan_offsets_get(
    plan: gpumem_plan,
    first: u32,
    cap: usize,
    arenas: *mut u32,
    offsets: *mut u64,
    count: *mut usize,
) -> gpumem_status {
    guard(|| {
        if cap > 0 {
            not_null(offsets, "offsets")?;
        }
        let solved = with(plan, |state| state.laid_out().cloned())?;
        let all = solved.lowered.placements.len();
        let Some(there) = all.checked_sub(first as usize) else {
            return Err(Error::invalid(format!("first is {first}; there are {all} buffers and values")));
        };
        for i in 0..there.min(cap) {
            let slot = solved.lowered.slot(&solved.layout, ValueId(first + i as u32));
            let slot = slot.unwrap_or(Slot { arena: 0, offset: GPUMEM_PLAN_NO_OFFSET });
            // SAFETY: `i < cap`, and the caller passes room for `cap` elements.
            unsafe { offsets.add(i).write(slot.offset) };
            if !arenas.is_null() {
                // SAFETY: as above.
                unsafe { arenas.add(i).write(slot.arena) };
            }
        }
        // SAFETY: the caller passes NULL or a place to write to.
        unsafe { put(count, there) };
        Ok(())
    })
}

/// Most threads of one search.
const MOST_THREADS: u32 = 256;

/// Longer limits count as this: a clock may not reach further.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Options, and whether the last layout counts.
fn options_of(o: &gpumem_plan_solve_options) -> Result<(SolveOptions<'static>, bool)> {
    let effort = match o.effort {
        GPUMEM_PLAN_EFFORT_NORMAL => Effort::Normal,
        GPUMEM_PLAN_EFFORT_FAST => Effort::Fast,
        other => {
            return Err(Error::invalid(format!(
                "gpumem_plan_solve_options.effort is {other}; use GPUMEM_PLAN_EFFORT_NORMAL or _FAST"
            )));
        }
    };
    if o.flags & !GPUMEM_PLAN_FROM_LAST != 0 {
        let flags = o.flags;
        return Err(Error::invalid(format!("gpumem_plan_solve_options.flags is {flags:#x}; unknown flags must be 0")));
    }
    if o.threads > MOST_THREADS {
        return Err(Error::invalid(format!(
            "gpumem_plan_solve_options.threads is {}; {MOST_THREADS} are the most, and more than there are cores do not help",
            o.threads
        )));
    }
    let time_limit = (o.time_limit_ms != 0).then(|| Duration::from_millis(o.time_limit_ms).min(LONGEST));
    let options = SolveOptions { effort, time_limit, threads: o.threads, ..SolveOptions::default() };
    Ok((options, o.flags & GPUMEM_PLAN_FROM_LAST != 0))
}

fn run(state: &mut State, options: &SolveOptions<'_>, from_last: bool, cancel: &AtomicBool) -> Result<()> {
    let lowered = state.graph.lower()?;
    let previous = state.last.as_ref().filter(|_| from_last).map(|last| &last.layout);
    let layout = solve(&lowered.problem, &SolveOptions { cancel: Some(cancel), previous, ..*options })?;
    verify(&lowered.problem, &layout)
        .map_err(|e| Error::internal(format!("the solver gave a wrong layout, which is a bug: {}", e.message)))?;
    let refused = refusal(&lowered.problem, &layout);
    let solved = Arc::new(Solved::new(lowered, layout, state.graph.op_count()));
    if refused.is_none() {
        state.last = Some(solved.clone());
    }
    state.answer = Answer::Solved(solved);
    refused.map_or(Ok(()), Err)
}

/// Why there is no layout, if there is none: what was asked for, what is known, and what can be
/// done.
fn refusal(problem: &Problem, layout: &Layout) -> Option<Error> {
    let (why, next) = match layout.status {
        LayoutStatus::Optimal | LayoutStatus::Feasible => return None,
        LayoutStatus::Infeasible => ("this is proved", "raise the capacity"),
        // Without a division among the arenas, nothing is laid out.
        LayoutStatus::OutOfTime if layout.size == 0 && !layout.interrupted => (
            "some fixed buffer found no arena that is free at its offset",
            "bind fixed buffers to arenas, or move them",
        ),
        LayoutStatus::OutOfTime => match layout.interrupted {
            true => ("the clock or gpumem_plan_cancel ended the search", "raise the time limit or the capacity"),
            false => ("the search ended with its effort", "raise the capacity, or set a time limit to search longer"),
        },
    };
    let best = match layout.size {
        0 => String::new(),
        size => format!(", the smallest found without a capacity takes {size}"),
    };
    Some(Error::new(
        Status::OutOfMemory,
        format!(
            "the plan has no layout {}; {why}. At least {} bytes are needed{best}: {next}",
            limits(problem),
            layout.lower_bound
        ),
    ))
}

/// The capacities, for a text.
fn limits(problem: &Problem) -> String {
    const MOST: usize = 8;
    let arenas = problem.arenas();
    match arenas {
        _ if arenas.iter().all(|a| a.capacity.is_none()) => "that keeps what is fixed apart".into(),
        [only] => format!("within {} bytes", only.capacity.unwrap_or_default()),
        _ => {
            let texts = arenas.iter().take(MOST).map(|a| a.capacity.map_or("any".to_string(), |c| c.to_string()));
            let more = if arenas.len() > MOST { ", ..." } else { "" };
            format!("within arenas of {}{more} bytes", texts.collect::<Vec<_>>().join(", "))
        }
    }
}

fn summary(solved: &Solved) -> gpumem_plan_stats {
    let (lowered, layout) = (&solved.lowered, &solved.layout);
    gpumem_plan_stats {
        size: 0,
        status: layout.status as i32,
        arena_bytes: layout.size,
        lower_bound: layout.lower_bound,
        total_unshared: layout.total_unshared,
        saved: layout.saved(),
        gap: layout.gap(),
        seconds: layout.elapsed.as_secs_f64(),
        critical_step: solved.critical().step,
        steps: lowered.end,
        slots: layout.slots.iter().flatten().count() as u64,
        values: lowered.placements.len() as u64,
        operations: solved.operations as u64,
        arenas: lowered.problem.arenas().len() as u32,
        interrupted: layout.interrupted.into(),
    }
}

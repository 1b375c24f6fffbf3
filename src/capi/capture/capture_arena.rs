//! Memory for CUDA graphs
//!
//! Every launch of a graph uses the addresses that it was captured with. Between
//! gpumem_capture_begin and gpumem_capture_end, everything allocated on a stream comes from a
//! separate range that grows in place. Until the last reference is released, nothing else gets an
//! address in that range, and nothing in it is moved or unmapped. Afterwards it is ordinary memory
//! again.
//!
//!   gpumem_capture c;
//!   gpumem_capture_begin(s, NULL, &c);
//!   cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
//!   ... allocate, launch, free ...
//!   cudaStreamEndCapture(s, &graph);
//!   gpumem_capture_end(c);
//!   ... launch the graph, any number of times, on any stream ...
//!   gpumem_capture_release(c);      (no launch may follow; reuse waits for those in flight)
//!
//! gpumem_capture_begin may come before or after cudaStreamBeginCapture, and works on a stream that
//! is not captured, too. Other streams forked into the same CUDA capture take part once the stream
//! has allocated during it. Memory freed during the capture may be handed out again within it, in
//! stream order, and to the next capture that shares its memory. If the capture's stream has used
//! such memory outside of a graph before it was freed, launch that next graph behind this use: on
//! the same stream, or on one that waits for it. Memory that is live at the release stays
//! allocated, as ordinary memory. The caller keeps alive any memory that was allocated before the
//! capture and that the graph uses. Allocations with flags (GPUMEM_MALLOC_*) are never part of a
//! capture.
//!
//! An allocation never costs its own stream's capture, nor one that gpumem_capture_begin has begun
//! and gpumem_capture_end has not ended, nor one of PyTorch's during which something was allocated.
//! A capture that gpumem knows of only from an allocation on its stream may be lost, and
//! cudaStreamEndCapture then says so, if an allocation on another stream would fail otherwise
//! although as much is free. One that gpumem has not heard of may be lost to any call that has to
//! learn what other streams have done, and to the first one on a stream after the memory of a
//! capture was released; and any to gpumem_trim.
//!
//! With GPUMEM_CAPTURE=auto gpumem automatically begins a capture for every stream that is being
//! captured and has none, and releases it when the graph and everything made from it are gone (CUDA
//! 11.3 and newer). It learns of that at the next allocation that free memory does not serve at
//! once, at gpumem_stream_sync and gpumem_device_sync, and in gpumem_stats_get.

use crate::arena::capture::{Capture, CaptureOptions, CaptureStats};
use crate::base::{Error, Result};
use crate::capi::call::arguments::put;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_stream, not_null, stream};
use crate::context::Context;
use crate::pool::GraphArenaOptions;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

/// The type that a gpumem_capture points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_capture_st(());

/// A handle to a capture. It is opaque: compare it only with NULL and other handles.
#[allow(non_camel_case_types)]
pub type gpumem_capture = *mut gpumem_capture_st;

/// Never reuse memory during the capture: every allocation has addresses of its own.
pub const GPUMEM_CAPTURE_MONOTONE: u32 = 1;
/// Record how long each allocation above 64 KiB lives, for gpumem_capture_solve. An ordinary run of
/// the same work will do; it need not be captured.
pub const GPUMEM_CAPTURE_RECORD: u32 = 2;

/// Settings of a capture, for gpumem_capture_begin. A field that is 0 means its default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_capture_options {
    /// sizeof(gpumem_capture_options).
    pub size: u32,
    /// GPUMEM_CAPTURE_*, or-ed together.
    pub flags: u32,
    /// Bytes of memory to map ahead. Where there is too little, evictable allocations move out, as
    /// for gpumem_malloc of that and of the layout's bytes, whatever a shared capture has free.
    pub bytes: u64,
    /// Bytes of addresses to set aside for growth. The default is 16 GiB, or less where addresses
    /// are short. Growth beyond them goes elsewhere.
    pub reserve: u64,
    /// A capture to share memory with, for graphs that never run at the same time: one uses what
    /// the other has freed. flags and reserve must be 0, as the other capture's apply. NULL means
    /// memory of its own.
    pub share: gpumem_capture,
    /// A recorded capture whose layout (gpumem_capture_solve) to use: the i-th allocation above 64
    /// KiB gets the place of the i-th one there. An allocation of another size, or whose place is
    /// taken, is served as usual and counted. Not with GPUMEM_CAPTURE_MONOTONE. NULL means no
    /// layout.
    pub layout: gpumem_capture,
}

// SAFETY: repr(C), a u32 first, integers and pointers that are never followed; the sum of its
// fields shows no padding.
extensible!(gpumem_capture_options, 40, 2 * 4 + 2 * 8 + 2 * size_of::<usize>());

/// The counters of a capture's memory. They cover all captures together where several share it.
/// Bytes unless a field says that it is a count.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct gpumem_capture_stats {
    /// sizeof(gpumem_capture_stats), set by the caller; on return, the bytes filled.
    pub size: u32,
    /// The device.
    pub device: i32,
    /// Addresses, mapped or set aside for growth.
    pub reserved: u64,
    /// Physical memory.
    pub mapped: u64,
    /// Live bytes, rounding included.
    pub live: u64,
    /// The most that live was.
    pub peak_live: u64,
    /// Bytes handed out so far.
    pub total: u64,
    /// Allocations made so far, a count.
    pub allocations: u64,
    /// References not yet released, a count.
    pub references: u64,
    /// Length of the layouts in use.
    pub planned: u64,
    /// Allocations above 64 KiB that were not where a layout had them, a count.
    pub deviations: u64,
    /// Streams that took part, a count.
    pub streams: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_capture_stats, 88, 2 * 4 + 10 * 8);

/// Every capture of the process that C knows of.
static CAPTURES: Handles<Arc<Capture>> = Handles::ended_by(b'C', "gpumem_capture", "released or aborted");

/// How many they are, to be read without their lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether C knows of any capture.
pub(in crate::capi) fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

/// Takes the capture of a handle out: the handle is stale from now on.
fn removed(capture: gpumem_capture) -> Result<Arc<Capture>> {
    let held = CAPTURES.remove(capture as usize)?;
    COUNT.fetch_sub(1, Relaxed);
    Ok(Arc::clone(&held))
}

/// Begins a capture: from now on the stream allocates from the capture's memory.
///
/// s is a live stream, or NULL, which stands for the default stream of the current device; a stream
/// can be in one capture at a time. opts may be NULL for the defaults; it is read and not kept. out
/// receives the capture, with one reference that the caller owns until gpumem_capture_release or
/// gpumem_capture_abort. End a capture before you destroy its stream. Otherwise it ends when a call
/// passes the same handle for another stream that is not being captured; until then, captures of
/// that stream allocate from it. Memory that the stream allocates before CUDA captures it belongs
/// to the capture too. Once freed, it is not used for the graph while work on it may be running.
/// Does not wait for the device.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL, an option is not allowed, share or layout is not
/// a capture of the stream's device, layout lacks GPUMEM_CAPTURE_RECORD, or the stream is in a
/// capture already; GPUMEM_ERROR_OUT_OF_MEMORY; GPUMEM_ERROR_UNSUPPORTED where GPUMEM_POOL is off;
/// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER. Nothing has begun then.
#[no_mangle]
pub unsafe extern "C" fn gpumem_capture_begin(
    s: gpumem_stream,
    opts: *const gpumem_capture_options,
    out: *mut gpumem_capture,
) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        // SAFETY: the caller passes NULL or options whose size field is true.
        let opts = unsafe { options::read_if_any(opts) }?;
        let (share, layout) = match &opts {
            Some(o) => (named(o.share)?, named(o.layout)?),
            None => (None, None),
        };
        let mut wanted = CaptureOptions { share: share.as_deref(), layout: layout.as_deref(), ..Default::default() };
        if let Some(o) = &opts {
            if o.flags & !(GPUMEM_CAPTURE_MONOTONE | GPUMEM_CAPTURE_RECORD) != 0 {
                return Err(Error::invalid(format!("gpumem_capture_options.flags has unknown bits: {:#x}", o.flags)));
            }
            wanted.bytes = o.bytes;
            wanted.arena = GraphArenaOptions {
                monotone: o.flags & GPUMEM_CAPTURE_MONOTONE != 0,
                record: o.flags & GPUMEM_CAPTURE_RECORD != 0,
                reserve: o.reserve,
            };
        }
        let ctx = Context::global()?;
        let capture = Arc::new(ctx.capture_begin(stream(s), wanted)?);
        let handle = CAPTURES.insert(capture.clone()).inspect_err(|_| {
            let _ = ctx.capture_abort(&capture);
        })?;
        COUNT.fetch_add(1, Relaxed);
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(handle as gpumem_capture) };
        Ok(())
    })
}

/// Ends a capture: allocations on its stream are ordinary again.
///
/// Its allocations stay as they are, and the caller still owns its reference. Ending it again does
/// nothing. May come before or after the end of the stream's own capture; between the two, a move
/// that names no stream (gpumem_evict, gpumem_evict_tag) may invalidate that. Makes no driver call:
/// a stream that allocated while it was captured still counts as captured until a gpumem call names
/// it again, or the capture's memory is released. Meanwhile, memory that waits for destroyed
/// streams is reused later, on all streams; nothing else changes.
/// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
#[no_mangle]
pub extern "C" fn gpumem_capture_end(capture: gpumem_capture) -> gpumem_status {
    guard(|| Context::global()?.capture_end(&*CAPTURES.get(capture as usize)?))
}

/// Abandons a capture: frees all its live memory and drops all its references.
///
/// The handle is stale afterwards, and the capture's pointers are freed, as after gpumem_free:
/// owners that outlive it free by number (gpumem_owner_id_get). What gpumem_arena_escape has taken
/// out stays live, and captures that share the memory keep theirs. This does not wait; the memory
/// is reused only once submitted work on it is done.
/// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
#[no_mangle]
pub extern "C" fn gpumem_capture_abort(capture: gpumem_capture) -> gpumem_status {
    guard(|| Context::global()?.capture_abort(&*removed(capture)?))
}

/// Takes one more reference to a capture's memory, for one more graph. Each reference needs a
/// gpumem_capture_release.
///
/// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
#[no_mangle]
pub extern "C" fn gpumem_capture_retain(capture: gpumem_capture) -> gpumem_status {
    guard(|| CAPTURES.get(capture as usize)?.retain())
}

/// Drops a reference: its graph must not be launched from now on. Launches in flight may go on.
///
/// Dropping the last one makes the handle stale, and ends the capture if it has not ended. When no
/// capture that shares the memory has a reference left, it becomes ordinary memory: its free parts
/// are reused once everything submitted to the device so far is done, and its live allocations are
/// freed with gpumem_free like any other. Does not wait for the device and makes no driver call. So
/// the next capture gets this memory only if gpumem hears of a stream that is not being captured in
/// between: by its begin, if that comes before cudaStreamBeginCapture, by gpumem_stream_sync, or by
/// any allocation on such a stream.
/// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
#[no_mangle]
pub extern "C" fn gpumem_capture_release(capture: gpumem_capture) -> gpumem_status {
    guard(|| {
        let held = CAPTURES.get(capture as usize)?;
        if Context::global()?.capture_release(&held)? {
            removed(capture)?;
        }
        Ok(())
    })
}

/// Lays out what a capture with GPUMEM_CAPTURE_RECORD has recorded so far, for captures that name
/// it as their layout.
///
/// Allocations that were not freed count as live to the end. bytes, unless NULL, receives the
/// length of the layout. peak, unless NULL, receives the most that was live at a time: no layout is
/// shorter. Takes up to a second for thousands of allocations. If this was not called,
/// gpumem_capture_begin with the layout does the same. Release the recorded capture only after
/// that.
/// Errors: GPUMEM_ERROR_INVALID when there is no such capture, or it does not record.
#[no_mangle]
pub unsafe extern "C" fn gpumem_capture_solve(
    capture: gpumem_capture,
    bytes: *mut u64,
    peak: *mut u64,
) -> gpumem_status {
    guard(|| {
        let (planned, most) = Context::global()?.capture_plan(&*CAPTURES.get(capture as usize)?)?;
        for (to, value) in [(bytes, planned), (peak, most)] {
            // SAFETY: the caller passes NULL or a place to write to.
            unsafe { put(to, value) };
        }
        Ok(())
    })
}

/// The counters of a capture's memory.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such capture,
/// out is NULL or its size impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_capture_stats_get(
    capture: gpumem_capture,
    out: *mut gpumem_capture_stats,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let held = CAPTURES.get(capture as usize)?;
        let stats = Context::global()?.capture_stats(&held)?;
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &filled(&held, &stats)) }
    })
}

fn filled(capture: &Capture, s: &CaptureStats) -> gpumem_capture_stats {
    gpumem_capture_stats {
        size: 0,
        device: capture.device().0 as i32,
        reserved: s.arena.reserved,
        mapped: s.arena.mapped,
        live: s.arena.live,
        peak_live: s.arena.peak_live,
        total: s.arena.total,
        allocations: s.arena.allocations,
        references: s.references,
        planned: s.arena.planned,
        deviations: s.arena.deviations,
        streams: s.arena.streams,
    }
}

/// The capture that an option names, if it names one.
fn named(capture: gpumem_capture) -> Result<Option<Arc<Capture>>> {
    match capture.is_null() {
        true => Ok(None),
        false => CAPTURES.get(capture as usize).map(|held| Some(Arc::clone(&*held))),
    }
}

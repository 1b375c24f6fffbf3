//! Captures and graphs
//!
//! CUDA graphs without a CUDA runtime, for tests, examples and programs that also run where there
//! is no GPU. While a stream is captured, work submitted to it becomes nodes of a graph and does
//! not run. Each launch of the graph runs it.
//!
//!   gpumem_sim_graph graph;
//!   gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL);
//!   gpumem_memset_async(p, 0, bytes, s);
//!   gpumem_memcpy_async(q, p, bytes, s);
//!   gpumem_sim_capture_end(s, &graph);
//!   gpumem_sim_graph_launch(graph, s);               (as often as you like)
//!   gpumem_stream_sync(s);
//!   gpumem_sim_graph_destroy(graph);
//!
//! The captures are true CUDA captures, and everything that CUDA or gpumem say about those holds
//! for them. A graph keeps addresses, not memory: the memory that its nodes name must be there, and
//! hold what they expect, whenever the graph runs. During a capture gpumem_memcpy_async takes
//! device memory and page-locked host memory only.
//!
//! A call that is illegal during a capture fails with GPUMEM_ERROR_CAPTURING and may invalidate the
//! capture, which then ends without a graph. Waiting for the captured stream or its device is
//! illegal (gpumem_stream_sync, gpumem_device_sync), and making the stream wait for another. The
//! mode says which threads may wait for other streams meanwhile.
//!
//! The stream's device must be current on the calling thread. A gpumem_sim_graph is a handle. One
//! that has been destroyed, or was never a graph, is GPUMEM_ERROR_INVALID. Calls on one graph from
//! several threads take turns.

use crate::base::{DeviceId, Error, Result, Status};
use crate::capi::call::arguments::guard_out;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::guard;
use crate::capi::call::handles::Handles;
use crate::capi::call::options::{self, extensible};
use crate::capi::call::types::{gpumem_stream, not_null, stream};
use crate::context::Context;
use crate::driver::{CaptureMode, GraphHandle};

/// The type that a gpumem_sim_graph points to: opaque, never defined.
#[allow(non_camel_case_types)]
pub struct gpumem_sim_graph_st(());

/// A handle to a graph that can be launched. It is opaque: compare it only with NULL and other
/// handles.
#[allow(non_camel_case_types)]
pub type gpumem_sim_graph = *mut gpumem_sim_graph_st;

/// Mode of a capture: no thread may wait for a stream or device meanwhile.
pub const GPUMEM_SIM_CAPTURE_GLOBAL: i32 = 0;
/// Mode of a capture: the thread that began it may not wait for a stream or device; others may.
pub const GPUMEM_SIM_CAPTURE_THREAD_LOCAL: i32 = 1;
/// Mode of a capture: every thread may wait for other streams, and any thread may end the capture.
pub const GPUMEM_SIM_CAPTURE_RELAXED: i32 = 2;

/// What a graph consists of, from gpumem_sim_graph_info_get.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gpumem_sim_graph_info {
    /// sizeof(gpumem_sim_graph_info).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Nodes in all.
    pub nodes: u64,
    /// Nodes that allocate or free memory when the graph runs. Allocations from gpumem during a
    /// capture make none.
    pub memory_nodes: u64,
}

// SAFETY: repr(C), a u32 first, integers only; the sum of its fields shows no padding.
extensible!(gpumem_sim_graph_info, 24, 2 * 4 + 2 * 8);

/// Every graph of the process.
static GRAPHS: Handles<Graph> = Handles::new(b'G', "gpumem_sim_graph");

/// One graph, and the device that it was captured on.
struct Graph {
    dev: DeviceId,
    graph: GraphHandle,
}

/// Starts capturing a stream. mode is GPUMEM_SIM_CAPTURE_GLOBAL and so on.
///
/// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured already, GPUMEM_ERROR_INVALID
/// for the legacy default stream or an unknown mode, GPUMEM_ERROR_INVALID_STREAM,
/// GPUMEM_ERROR_DRIVER. They harm no capture in progress.
#[no_mangle]
pub extern "C" fn gpumem_sim_capture_begin(s: gpumem_stream, mode: i32) -> gpumem_status {
    guard(|| {
        let mode = match mode {
            GPUMEM_SIM_CAPTURE_GLOBAL => CaptureMode::Global,
            GPUMEM_SIM_CAPTURE_THREAD_LOCAL => CaptureMode::ThreadLocal,
            GPUMEM_SIM_CAPTURE_RELAXED => CaptureMode::Relaxed,
            _ => return Err(Error::invalid(format!("{mode} is no capture mode: they are 0, 1 and 2"))),
        };
        let handle = stream(s);
        let cx = Context::global()?;
        let driver = cx.driver();
        let dev = driver.stream_device(handle)?;
        // Other threads' requests must not spoil it meanwhile.
        let expected = cx.made_pool(dev).map(|pool| (pool, pool.expect_capture(handle)));
        driver.capture_begin(dev, handle, mode).inspect_err(|e| {
            if let Some((pool, expected)) = expected.filter(|_| e.status != Status::Capturing) {
                pool.no_capture(handle, expected);
            }
        })
    })
}

/// Ends the capture of a stream, on the thread that began it (any thread in relaxed mode).
///
/// out receives the graph, ready to be launched, which the caller owns until
/// gpumem_sim_graph_destroy.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or the stream is not being captured.
/// GPUMEM_ERROR_CAPTURING on the wrong thread, which ends it all the same, and when it was
/// invalidated; after that, and after GPUMEM_ERROR_OUT_OF_MEMORY and GPUMEM_ERROR_DRIVER, its work
/// is lost and the stream is no longer being captured. GPUMEM_ERROR_INVALID_STREAM.
#[no_mangle]
pub unsafe extern "C" fn gpumem_sim_capture_end(s: gpumem_stream, out: *mut gpumem_sim_graph) -> gpumem_status {
    guard(|| {
        not_null(out, "out")?;
        let handle = stream(s);
        let cx = Context::global()?;
        let driver = cx.driver();
        let dev = driver.stream_device(handle)?;
        let ended = driver.capture_end(dev, handle);
        if let (Some(pool), Ok(false)) = (cx.made_pool(dev), driver.stream_is_capturing(dev, handle)) {
            pool.capture_ended(handle);
        }
        let graph = ended?;
        let kept = GRAPHS.insert(Graph { dev, graph }).inspect_err(|_| {
            // The first failure is the one to tell.
            let _ = driver.graph_destroy(dev, graph);
        })?;
        // SAFETY: not null, so a writable pointer by the contract.
        unsafe { out.write(kept as gpumem_sim_graph) };
        Ok(())
    })
}

/// Runs a graph's work in the order of a stream, after earlier launches of the same graph on any
/// stream.
///
/// The stream belongs to the device that the graph was captured on. Does not block.
/// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured, GPUMEM_ERROR_INVALID when it
/// belongs to another device, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_OUT_OF_MEMORY,
/// GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub extern "C" fn gpumem_sim_graph_launch(graph: gpumem_sim_graph, s: gpumem_stream) -> gpumem_status {
    guard(|| {
        let g = get(graph)?;
        let handle = stream(s);
        let driver = Context::global()?.driver();
        driver.graph_launch(driver.stream_device(handle)?, g.graph, handle)
    })
}

/// Destroys a graph. Launches in flight still run, and the memory that their nodes name must stay
/// until they have finished.
///
/// graph may be NULL, which does nothing. Errors: GPUMEM_ERROR_INVALID when it has been destroyed
/// already or is no graph; GPUMEM_ERROR_DRIVER, after which the handle is gone too.
#[no_mangle]
pub extern "C" fn gpumem_sim_graph_destroy(graph: gpumem_sim_graph) -> gpumem_status {
    guard(|| {
        if graph.is_null() {
            return Ok(());
        }
        let driver = Context::global()?.driver();
        let g = GRAPHS.remove(graph as usize)?;
        driver.graph_destroy(g.dev, g.graph)
    })
}

/// Gets what a graph consists of.
///
/// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
/// impossible, GPUMEM_ERROR_DRIVER.
#[no_mangle]
pub unsafe extern "C" fn gpumem_sim_graph_info_get(
    graph: gpumem_sim_graph,
    out: *mut gpumem_sim_graph_info,
) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let g = get(graph)?;
        let nodes = Context::global()?.driver().graph_nodes(g.graph)?;
        let value = gpumem_sim_graph_info { size: 0, reserved: 0, nodes: nodes.total, memory_nodes: nodes.memory };
        // SAFETY: as above.
        unsafe { options::write(out, &value) }
    })
}

fn get(graph: gpumem_sim_graph) -> Result<std::sync::Arc<Graph>> {
    not_null(graph, "graph")?;
    GRAPHS.get(graph as usize)
}

/// Gets how many mistakes the host device has found in the work submitted to it.
///
/// It looks for them with GPUMEM_HOST_MODE=simulate, and reports each on stderr with the
/// operations, their streams and the memory. A mistake is unordered work of two streams on the same
/// memory where one of them writes, or the use of memory after it was unmapped. Work is checked
/// when it runs, so synchronise first. out receives the count, which is 0 on a GPU and without a
/// simulation.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL.
#[no_mangle]
pub unsafe extern "C" fn gpumem_sim_reports_get(out: *mut u64) -> gpumem_status {
    // SAFETY: the caller passes NULL or a place to write to.
    unsafe { guard_out(out, || Ok(Context::global()?.driver().mistakes())) }
}

/* gpumem/sim.h: graphs without a CUDA runtime, for tests; gpumem.h does not include it.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_SIM_H
#define GPUMEM_SIM_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Captures and graphs -----------------------------------------------------------------------
 *
 * CUDA graphs without a CUDA runtime, for tests, examples and programs that also run where there
 * is no GPU. While a stream is captured, work submitted to it becomes nodes of a graph and does
 * not run. Each launch of the graph runs it.
 *
 *   gpumem_sim_graph graph;
 *   gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL);
 *   gpumem_memset_async(p, 0, bytes, s);
 *   gpumem_memcpy_async(q, p, bytes, s);
 *   gpumem_sim_capture_end(s, &graph);
 *   gpumem_sim_graph_launch(graph, s);               (as often as you like)
 *   gpumem_stream_sync(s);
 *   gpumem_sim_graph_destroy(graph);
 *
 * The captures are true CUDA captures, and everything that CUDA or gpumem say about those holds
 * for them. A graph keeps addresses, not memory: the memory that its nodes name must be there, and
 * hold what they expect, whenever the graph runs. During a capture gpumem_memcpy_async takes
 * device memory and page-locked host memory only.
 *
 * A call that is illegal during a capture fails with GPUMEM_ERROR_CAPTURING and may invalidate the
 * capture, which then ends without a graph. Waiting for the captured stream or its device is
 * illegal (gpumem_stream_sync, gpumem_device_sync), and making the stream wait for another. The
 * mode says which threads may wait for other streams meanwhile.
 *
 * The stream's device must be current on the calling thread. A gpumem_sim_graph is a handle. One
 * that has been destroyed, or was never a graph, is GPUMEM_ERROR_INVALID. Calls on one graph from
 * several threads take turns.
 */

// Mode of a capture: no thread may wait for a stream or device meanwhile.
#define GPUMEM_SIM_CAPTURE_GLOBAL 0

// Mode of a capture: the thread that began it may not wait for a stream or device; others may.
#define GPUMEM_SIM_CAPTURE_THREAD_LOCAL 1

// Mode of a capture: every thread may wait for other streams, and any thread may end the capture.
#define GPUMEM_SIM_CAPTURE_RELAXED 2

// The type that a gpumem_sim_graph points to: opaque, never defined.
typedef struct gpumem_sim_graph_st gpumem_sim_graph_st;

// A handle to a graph that can be launched. It is opaque: compare it only with NULL and other
// handles.
typedef struct gpumem_sim_graph_st *gpumem_sim_graph;

// What a graph consists of, from gpumem_sim_graph_info_get.
typedef struct gpumem_sim_graph_info {
    // sizeof(gpumem_sim_graph_info).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Nodes in all.
    uint64_t nodes;
    // Nodes that allocate or free memory when the graph runs. Allocations from gpumem during a
    // capture make none.
    uint64_t memory_nodes;
} gpumem_sim_graph_info;

// Starts capturing a stream. mode is GPUMEM_SIM_CAPTURE_GLOBAL and so on.
//
// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured already, GPUMEM_ERROR_INVALID
// for the legacy default stream or an unknown mode, GPUMEM_ERROR_INVALID_STREAM,
// GPUMEM_ERROR_DRIVER. They harm no capture in progress.
gpumem_status gpumem_sim_capture_begin(gpumem_stream s, int32_t mode);

// Ends the capture of a stream, on the thread that began it (any thread in relaxed mode).
//
// out receives the graph, ready to be launched, which the caller owns until
// gpumem_sim_graph_destroy.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or the stream is not being captured.
// GPUMEM_ERROR_CAPTURING on the wrong thread, which ends it all the same, and when it was
// invalidated; after that, and after GPUMEM_ERROR_OUT_OF_MEMORY and GPUMEM_ERROR_DRIVER, its work
// is lost and the stream is no longer being captured. GPUMEM_ERROR_INVALID_STREAM.
gpumem_status gpumem_sim_capture_end(gpumem_stream s, gpumem_sim_graph *out);

// Runs a graph's work in the order of a stream, after earlier launches of the same graph on any
// stream.
//
// The stream belongs to the device that the graph was captured on. Does not block.
// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured, GPUMEM_ERROR_INVALID when it
// belongs to another device, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_OUT_OF_MEMORY,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_sim_graph_launch(gpumem_sim_graph graph, gpumem_stream s);

// Destroys a graph. Launches in flight still run, and the memory that their nodes name must stay
// until they have finished.
//
// graph may be NULL, which does nothing. Errors: GPUMEM_ERROR_INVALID when it has been destroyed
// already or is no graph; GPUMEM_ERROR_DRIVER, after which the handle is gone too.
gpumem_status gpumem_sim_graph_destroy(gpumem_sim_graph graph);

// Gets what a graph consists of.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
// impossible, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_sim_graph_info_get(gpumem_sim_graph graph, struct gpumem_sim_graph_info *out);

// Gets how many mistakes the host device has found in the work submitted to it.
//
// It looks for them with GPUMEM_HOST_MODE=simulate, and reports each on stderr with the
// operations, their streams and the memory. A mistake is unordered work of two streams on the same
// memory where one of them writes, or the use of memory after it was unmapped. Work is checked
// when it runs, so synchronise first. out receives the count, which is 0 on a GPU and without a
// simulation.
// Errors: GPUMEM_ERROR_INVALID when out is NULL.
gpumem_status gpumem_sim_reports_get(uint64_t *out);

#ifdef __cplusplus
}
#endif

#endif

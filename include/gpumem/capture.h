/* gpumem/capture.h: memory for CUDA graphs.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_CAPTURE_H
#define GPUMEM_CAPTURE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Memory for CUDA graphs --------------------------------------------------------------------
 *
 * A graph uses the addresses that it was captured with every time it is launched. Between
 * gpumem_capture_begin and gpumem_capture_end everything that is allocated on a stream comes from
 * a range of its own that grows in place; until the last reference is released, nothing else gets
 * an address in it, and nothing in it is moved or unmapped. Afterwards it is ordinary memory
 * again.
 *
 *   gpumem_capture c;
 *   gpumem_capture_begin(s, NULL, &c);
 *   cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
 *   ... allocate, launch, free ...
 *   cudaStreamEndCapture(s, &graph);
 *   gpumem_capture_end(c);
 *   ... launch the graph, any number of times, on any stream ...
 *   gpumem_capture_release(c);      when no launch will follow; those in flight are waited for
 *
 * Begin may come before or after the stream's own begin of capture; it works on a stream that is
 * not captured, too. Other streams forked into the same capture take part once the stream has
 * allocated during it. Memory that is freed during the capture may be handed out again in it, in
 * stream order. Memory that is live at the release stays allocated, as ordinary memory; memory
 * allocated before the capture and used by the graph is the caller's to keep. Allocations with
 * flags (GPUMEM_MALLOC_*) are never part of a capture.
 *
 * With GPUMEM_CAPTURE=auto gpumem automatically begins a capture for every stream that is being
 * captured and has none, and releases it when the graph and all that was made of it are gone (CUDA
 * 11.3 and newer).
 */

// Never reuse memory during the capture: every allocation has addresses of its own.
#define GPUMEM_CAPTURE_MONOTONE 1

// Record how long each allocation above 64 KiB lives, for gpumem_capture_solve. An ordinary run of
// the same work will do; it need not be captured.
#define GPUMEM_CAPTURE_RECORD 2

// The type that a gpumem_capture points to: opaque, never defined.
typedef struct gpumem_capture_st gpumem_capture_st;

// A handle to a capture. It is opaque: compare it only with NULL and other handles.
typedef struct gpumem_capture_st *gpumem_capture;

// Settings of a capture, for gpumem_capture_begin. A field that is 0 means its default.
typedef struct gpumem_capture_options {
    // sizeof(gpumem_capture_options).
    uint32_t size;
    // GPUMEM_CAPTURE_*, or-ed together.
    uint32_t flags;
    // Bytes of memory to map ahead.
    uint64_t bytes;
    // Bytes of addresses to keep for growth; the default is 16 GiB, less where addresses are
    // short. Growth beyond them goes elsewhere.
    uint64_t reserve;
    // A capture whose memory to share; flags and reserve must be 0, as that one's apply. For
    // graphs that never run at the same time: one uses what the other has freed. NULL: memory of
    // its own.
    gpumem_capture share;
    // A recorded capture whose layout to use (gpumem_capture_solve): the i-th allocation above 64
    // KiB gets the place of the i-th there. An allocation of another size, or whose place is
    // taken, is served as usual and counted. Not with GPUMEM_CAPTURE_MONOTONE. NULL: no layout.
    gpumem_capture layout;
} gpumem_capture_options;

// The counters of a capture's memory, of all captures together where several share it. Bytes
// unless a field says that it counts.
typedef struct gpumem_capture_stats {
    // sizeof(gpumem_capture_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // The device.
    int32_t device;
    // Addresses: mapped, or kept to grow into.
    uint64_t reserved;
    // Physical memory.
    uint64_t mapped;
    // Live bytes, rounding included.
    uint64_t live;
    // The most that live was.
    uint64_t peak_live;
    // Handed out so far.
    uint64_t total;
    // How often, a count.
    uint64_t allocations;
    // References not yet released, a count.
    uint64_t references;
    // Length of the layouts in use.
    uint64_t planned;
    // Allocations above 64 KiB that were not where a layout had them, a count.
    uint64_t deviations;
    // Streams that took part, a count.
    uint64_t streams;
} gpumem_capture_stats;

// Lets a stream allocate from a capture's memory from now on.
//
// s is a live stream, or NULL, which stands for the default stream of the current device; a stream
// can be in one capture at a time. opts may be NULL for the defaults; it is read and not kept. out
// receives the capture, with one reference that the caller owns until gpumem_capture_release or
// gpumem_capture_abort. End a capture before you destroy its stream. Otherwise it ends when a call
// names the handle for another stream that is not being captured; until then, captures of that
// stream allocate from it. What the stream allocates before CUDA captures it is the capture's too;
// once freed, it is not used for the graph while work on it may be running. Does not wait for the
// device.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, an option is not allowed, share or layout are no
// captures of the stream's device, layout does not record, or the stream is in a capture
// already; GPUMEM_ERROR_OUT_OF_MEMORY; GPUMEM_ERROR_UNSUPPORTED where GPUMEM_POOL is off;
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER. Nothing has begun then.
gpumem_status gpumem_capture_begin(gpumem_stream s, const struct gpumem_capture_options *opts, gpumem_capture *out);

// Ends a capture: allocations on its stream are ordinary again.
//
// What was allocated stays as it is, and the caller still owns its reference. Once ended, ending
// again does nothing. May come before or after the end of the stream's own capture. Makes no
// driver call: a stream that allocated while it was captured still counts as captured until a
// gpumem call names it again, or the capture's memory is released. Meanwhile, memory that waits
// for destroyed streams is reused later, on all streams; nothing else changes.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_end(gpumem_capture capture);

// Abandons a capture: frees all its live memory and drops all its references.
//
// The handle is stale afterwards, and the capture's pointers are freed, as after gpumem_free.
// Captures that share the memory keep theirs. This does not wait; the memory is reused only once
// submitted work on it is done.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_abort(gpumem_capture capture);

// One more reference to a capture's memory, for one more graph: each needs a
// gpumem_capture_release.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_retain(gpumem_capture capture);

// Drops a reference: its graph must not be launched from now on. Launches in flight may go on.
//
// With the last one the handle is stale, and the capture ends if it has not; with the last of all
// captures that share the memory it is ordinary memory: what is free in it is reused once
// everything submitted to the device so far is done, and what is live is freed by gpumem_free like
// any other. Does not wait for the device and makes no driver call.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_release(gpumem_capture capture);

// Lays out what a capture with GPUMEM_CAPTURE_RECORD has recorded so far, for captures that name
// it as their layout.
//
// Allocations that were not freed count as live to the end. bytes, unless NULL, receives the
// length of the layout; peak, unless NULL, the most that was live at a time: no layout is shorter.
// Takes up to a second for thousands of allocations. gpumem_capture_begin does it where it was not
// done before. Release the capture only afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture, or it does not record.
gpumem_status gpumem_capture_solve(gpumem_capture capture, uint64_t *bytes, uint64_t *peak);

// The counters of a capture's memory.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such capture,
// out is NULL or its size impossible.
gpumem_status gpumem_capture_stats_get(gpumem_capture capture, struct gpumem_capture_stats *out);

#ifdef __cplusplus
}
#endif

#endif

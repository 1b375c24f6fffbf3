/*
 * gpumem: device memory for C and C++, and for every language that calls C.
 *
 * A stream-ordered pool over CUDA virtual memory that remaps its memory instead of fragmenting it. The same calls work
 * on a machine without a GPU, on a device made of ordinary memory. Valid C99 and C++17; needs no CUDA header.
 *
 *     gpumem_stream s;
 *     void *p;
 *     if (gpumem_stream_create(&s) != GPUMEM_OK) ...
 *     if (gpumem_malloc_async(1 << 20, s, &p) != GPUMEM_OK) ...
 *     gpumem_memset_async(p, 0, 1 << 20, s);
 *     gpumem_free_async(p, s);            (takes effect after the memset; nobody waits)
 *
 * CONVENTIONS. They hold for every function unless it says otherwise.
 *
 * Names      gpumem_<verb> for the everyday calls, gpumem_<noun>_<verb> for the rest. The library exports nothing else.
 * Status     A gpumem_status: GPUMEM_OK is 0, errors are GPUMEM_ERROR_*. gpumem_last_error has the text.
 * On error   Everything is as it was before the call, and the next call works.
 * Outputs    Come last, and are written only on success. No parameter is both read and written, except that a
 *            structure to be filled says in its first field how large the caller's version is.
 * NULL       Is refused with GPUMEM_ERROR_INVALID where a parameter is not said to allow it.
 * Units      Bytes. Counts are called counts.
 * Structures Begin with uint32_t size. Zero the whole and set the size: GPUMEM_INIT(&options) does both. Zero means
 *            default. Structures grow at the end: what an older caller leaves out is zero; something set in a part
 *            that the library does not know is GPUMEM_ERROR_INVALID.
 * Threads    Every function may be called from any thread at any time, except from signal handlers.
 * Streams    A gpumem_stream is a cudaStream_t or CUstream. NULL is the legacy default stream of the calling thread's
 *            current device. A handle must be a live stream: CUDA crashes on a destroyed one.
 * Ownership  Memory belongs to whoever got it, until one free. A free of memory that is not live is an error and a
 *            count, never damage. Strings that are returned are static. What is passed in is read during the call only,
 *            except the data of asynchronous copies; callbacks are kept, and what they are handed is the program's.
 * Starting   The first call that needs a device starts the library, so every such call can fail with
 *            GPUMEM_ERROR_CONFIG, GPUMEM_ERROR_NO_DEVICE or GPUMEM_ERROR_DRIVER ("what starting can give").
 * Fork       A child of a process that had started gpumem gets GPUMEM_ERROR_FORKED; its frees do nothing. exec mends it.
 * Exit       Nothing needs to be freed or shut down. Calls from exit handlers are safe; once the driver goes away they
 *            return GPUMEM_ERROR_SHUTTING_DOWN and frees do nothing.
 * Exceptions None leave the library and none may enter it; the section on PyTorch has the one exception.
 *
 * WORDS
 *
 * device           A GPU, or the host device that stands in for one. Numbered as CUDA numbers them.
 * stream           A queue of work on a device, done in order. Work on different streams is not ordered.
 * stream order     Memory may be used by work submitted to its stream after the allocation and before the free.
 * settled          Freed, and the device has passed the free on every stream that used the memory.
 * mapped           Physical memory that gpumem holds and that has an address.
 * reserved         Addresses set aside. They cost nothing.
 * extent           One physical allocation of the driver's, mapped as a whole.
 * region           A range of addresses in one state: live, free, hole, zombie.
 * hole             Reserved addresses with nothing mapped.
 * zombie           The old addresses of memory that has moved, kept until no work can use them.
 * stitch           To meet a request by moving free extents to one range of addresses; nothing is copied.
 * trim             To give free physical memory back to the device.
 * plan             Buffers, or a graph of values and operations, laid out ahead of a run.
 * arena            Allocations that end together: entered and exited like a block of a program. Of a plan: a run of
 *                  bytes that its buffers are laid out in, and that becomes one allocation.
 * keep, promote    To move an allocation out of its arena to the one around it, or out of all when there is none.
 * escape           To take an allocation out of all arenas.
 * space            One place that memory can be in: a device, a NUMA node of the host, a disk's mount. Its tier is its kind.
 * reservation      A promise of bytes of one space. Drawn: what live allocations use of it.
 * step             Of a plan: a position in the execution order.
 * live             Of a buffer in a plan: at the steps at which it holds something.
 *
 * DELIBERATELY NOT HERE
 *
 * Synchronous free  cudaFree waits for the device; gpumem_free does not. Synchronise yourself where you need to.
 * Host access       Device addresses are not for the host, not even on the host device. Copy.
 * Kernels, events   CUDA's own work with this memory; gpumem replaces the allocator and nothing else.
 * Shutting down     See "Exit" above.
 * Managed memory    Migrates by faults; a different thing from a pool.
 */

#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A cudaStream_t or CUstream: the same type, declared without CUDA's headers. */
typedef struct CUstream_st *gpumem_stream;

/* A handle to an arena: see the section on arenas. Compare it with NULL and with others; do not look into it. */
typedef struct gpumem_arena_st *gpumem_arena;

/* A handle to a reservation: see the section on them. Compare it with NULL and with others; do not look into it. */
typedef struct gpumem_reservation_st *gpumem_reservation;

/* The legacy default stream of the current device; CUDA's cudaStreamLegacy means the same. */
#define GPUMEM_STREAM_LEGACY ((gpumem_stream)0)
/* The default stream of the calling thread, CUDA's cudaStreamPerThread. */
#define GPUMEM_STREAM_PER_THREAD ((gpumem_stream)2)

/* Zeroes a structure of this header and sets its size: gpumem_stats stats; GPUMEM_INIT(&stats); */
#define GPUMEM_INIT(structure) \
    (memset((structure), 0, sizeof *(structure)), (void)((structure)->size = (uint32_t)sizeof *(structure)))

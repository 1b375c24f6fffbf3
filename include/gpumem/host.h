/* gpumem/host.h: pinned host memory.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_HOST_H
#define GPUMEM_HOST_H

#include "core.h"
#include "space.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Pinned host memory ------------------------------------------------------------------------
 *
 * Host memory that devices copy to and from directly. Copies run at the speed of the bus, overlap
 * with other work, and can be captured. The host reads and writes it like any other memory.
 * Pinning is slow, so gpumem pins large chunks ahead of need, keeps them, and hands out blocks of
 * them (1 MiB by default: GPUMEM_PINNED_BLOCKS), or a part of a block for half a block or less.
 *
 *   void *p;
 *   if (gpumem_host_malloc(bytes, GPUMEM_HOST_NEAREST, &p) != GPUMEM_OK) ...
 *   memcpy(p, data, bytes);
 *   gpumem_memcpy_async(on_device, p, bytes, s);
 *   gpumem_stream_sync(s);
 *   gpumem_host_free(p);
 *
 * One piece    gpumem_host_malloc returns a pointer. A request larger than a chunk (128 MiB by
 *              default) is pinned on its own.
 * Many pieces  gpumem_host_blocks_malloc returns a handle to as few pieces as possible. It
 *              succeeds whenever enough blocks are free, wherever they are, so use it for large
 *              memory.
 * Nodes        Memory belongs to a NUMA node of the host, which is a space: GPUMEM_TIER_HOST and
 *              the node's number. GPUMEM_HOST_NEAREST means the node nearest to the current
 *              device, or the first one where the machine does not tell. A node's limit starts at
 *              GPUMEM_PINNED_LIMIT, by default half of its memory.
 * Counting     Memory counts in its space by whole blocks and parts (powers of two). It is drawn
 *              from the given reservation, else from the one attached to the calling thread, else
 *              from what is available outside any reservation.
 * Freeing      Does not wait for the device: copies to and from the memory must be complete. The
 *              memory stays pinned for the next request until gpumem_host_trim.
 * Fork         A forked child does not have the memory: reading it there may fault.
 */

// The NUMA node nearest to the current device, or the first one where the machine does not tell.
#define GPUMEM_HOST_NEAREST -1

// The type that a gpumem_host_blocks points to: opaque, never defined.
typedef struct gpumem_host_blocks_st gpumem_host_blocks_st;

// A handle to pinned memory in pieces. It is opaque: compare it only with NULL and other handles.
typedef struct gpumem_host_blocks_st *gpumem_host_blocks;

// The counters of a node's pinned memory. Bytes unless a field says otherwise.
typedef struct gpumem_host_stats {
    // sizeof(gpumem_host_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // The node.
    uint32_t node;
    // One block.
    uint64_t block_bytes;
    // Pinned: blocks handed out, shared and free.
    uint64_t pinned;
    // The most that pinned was.
    uint64_t peak;
    // Blocks that are handed out whole.
    uint64_t blocks;
    // Blocks with parts handed out.
    uint64_t shared;
    // Parts that are handed out.
    uint64_t parts;
    // Blocks with nothing handed out.
    uint64_t free;
    // The longest run of free blocks: the largest piece that needs no further pinning.
    uint64_t longest;
    // Chunks that are pinned, a count.
    uint64_t chunks;
    // How often memory has been pinned, a count.
    uint64_t pins;
    // How often the system refused to pin memory, a count.
    uint64_t refused;
} gpumem_host_stats;

// Allocates pinned memory in one piece.
//
// bytes must not be 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST. out receives the
// memory, which the caller owns until gpumem_host_free; it is not cleared. Its alignment is bytes
// rounded up to a power of two, but at least 256 and at most 4096. Every device can copy to and
// from it. When too little is free, the call pins more or waits for a thread that does. When the
// limit or the reservation is short, evicted memory that may move automatically goes on to a disk,
// if there is one and as much.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, bytes 0 or there is no such node;
// GPUMEM_ERROR_OUT_OF_MEMORY when the limit, a reservation or the system forbids so much, or what
// is free is in pieces; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_SHUTTING_DOWN,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_host_malloc(size_t bytes, int32_t node, void **out);

// Frees memory from gpumem_host_malloc, on any thread. Calls no driver and waits for nothing.
//
// ptr may be NULL, which does nothing. Copies to and from the memory must be complete.
// Errors: GPUMEM_ERROR_DOUBLE_FREE when it was freed in one of the last 1024 frees;
// GPUMEM_ERROR_UNKNOWN_POINTER for every other pointer that is not the start of such memory.
// Nothing is freed then.
gpumem_status gpumem_host_free(void *ptr);

// Allocates pinned memory in as few pieces as possible: whole blocks, the last one cut to size.
//
// bytes must not be 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST, which means the
// reservation's node if r is given. r is a reservation of the node's space to draw from instead of
// the one attached to the thread, or NULL. out receives a handle, which the caller owns until
// gpumem_host_blocks_free. Each piece starts at a multiple of 4096, and all but the last are whole
// blocks. Half a block or less is one piece, a part of a block. When too little is free, the call
// pins more, waits for a thread that does, or makes room as gpumem_host_malloc does.
// Errors: as gpumem_host_malloc, except that free memory in pieces is no error;
// GPUMEM_ERROR_INVALID when there is no such reservation, or it is of another space.
gpumem_status gpumem_host_blocks_malloc(size_t bytes, int32_t node, gpumem_reservation r, gpumem_host_blocks *out);

// Gets the number of pieces.
//
// Errors: GPUMEM_ERROR_INVALID when out is NULL, or there is no such memory.
gpumem_status gpumem_host_blocks_count_get(gpumem_host_blocks blocks, size_t *out);

// Gets piece i of the memory, counted from 0. The bytes of all pieces add up to what was asked
// for.
//
// ptr_out receives its start and bytes_out its length; either may be NULL. They do not change
// until the memory is freed.
// Errors: GPUMEM_ERROR_INVALID when there is no such piece or memory.
gpumem_status gpumem_host_blocks_get(gpumem_host_blocks blocks, size_t i, void **ptr_out, size_t *bytes_out);

// Frees memory in pieces, on any thread. Calls no driver and waits for nothing.
//
// blocks may be NULL, which does nothing. Copies to and from the memory must be complete. The
// handle is stale afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such memory, or it has been freed.
gpumem_status gpumem_host_blocks_free(gpumem_host_blocks blocks);

// Pins memory of a node until its free blocks come to bytes, so that allocations do not wait for
// pinning.
//
// bytes is rounded up to whole blocks. node as in gpumem_host_malloc. Nothing is set aside: the
// next request, by any thread, may take it.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_OUT_OF_MEMORY when the
// limit or the system forbids so much (what has been pinned until then stays),
// GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_host_prepare(int32_t node, uint64_t bytes);

// Returns a node's unused memory to the system, except keep bytes of free blocks.
//
// Only whole chunks can go. node as in gpumem_host_malloc. out_or_null receives the bytes
// returned. May wait for the devices.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_UNSUPPORTED,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_host_trim(int32_t node, uint64_t keep, uint64_t *out_or_null);

// The counters of a node's pinned memory.
//
// out->size must be set (GPUMEM_INIT). node as in gpumem_host_malloc. What gpumem pins for itself
// counts too, for instance memory evicted from a device.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, out is NULL or its size impossible;
// GPUMEM_ERROR_UNSUPPORTED.
gpumem_status gpumem_host_stats_get(int32_t node, struct gpumem_host_stats *out);

#ifdef __cplusplus
}
#endif

#endif

/* gpumem/alloc.h: allocating with options, facts about an allocation, sharing it.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_ALLOC_H
#define GPUMEM_ALLOC_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Allocating with options, and facts about allocations --------------------------------------
 *
 * These functions take as options what the functions of core.h leave at its default.
 */

// Uses one physical handle and never remaps it: for NCCL registration, RDMA and other users of
// physical memory.
#define GPUMEM_MALLOC_SINGLE_HANDLE 1

// Uses a single handle that gpumem_export_fd can share with another process.
#define GPUMEM_MALLOC_EXPORTABLE 2

// Leaves the addresses after the allocation unmapped, so that overruns fault. With
// GPUMEM_MALLOC_EXPORTABLE they start after its last page, otherwise at its end, as closely as the
// alignment allows. For debugging; costs memory.
#define GPUMEM_MALLOC_GUARD 4

// The memory can leave the device and come back at the same addresses: see gpumem_evict. It takes
// whole pages and belongs to no arena.
#define GPUMEM_MALLOC_EVICTABLE 8

// Uses the device field. Without this flag the allocation lives on its stream's device.
#define GPUMEM_MALLOC_ON_DEVICE 65536

// What to allocate, for gpumem_malloc_with. A field that is 0 means its default.
typedef struct gpumem_malloc_options {
    // sizeof(gpumem_malloc_options).
    uint32_t size;
    // GPUMEM_MALLOC_*, or-ed together.
    uint32_t flags;
    // Size in bytes. 0 gives a unique pointer that must be freed.
    size_t bytes;
    // Alignment in bytes, a power of two up to 2^30. 0 means 256; less than 256 gives 256.
    size_t alignment;
    // The stream whose order the memory follows. With GPUMEM_MALLOC_ON_DEVICE it is a stream of
    // that device, and NULL is that device's legacy default stream.
    gpumem_stream stream;
    // A number of the caller's choice, shown in dumps and by gpumem_pointer_info_get.
    uint64_t tag;
    // The arena that the memory belongs to. The calling thread need not be attached to it. NULL
    // means the thread's current arena, if it has one.
    gpumem_arena arena;
    // The device, with GPUMEM_MALLOC_ON_DEVICE; must be 0 without it.
    int32_t device;
    // Must be 0.
    uint32_t reserved;
    // The reservation to draw from, in the device's space. NULL means the one attached to the
    // stream or to the thread, if there is one.
    gpumem_reservation reservation;
} gpumem_malloc_options;

// Facts about a live allocation.
typedef struct gpumem_pointer_info {
    // sizeof(gpumem_pointer_info), set by the caller; on return, the bytes filled.
    uint32_t size;
    // GPUMEM_MALLOC_* it was made with.
    uint32_t flags;
    // Its first byte.
    void *base;
    // Bytes asked for.
    size_t requested;
    // Bytes usable from base, at least those asked for.
    size_t usable;
    // The stream it was allocated on. A name only: the stream may be gone.
    gpumem_stream stream;
    // A number that is never reused in this process.
    uint64_t id;
    // The caller's tag.
    uint64_t tag;
    // The device it lives on.
    int32_t device;
    // 0.
    uint32_t reserved;
} gpumem_pointer_info;

// Allocates with options.
//
// opts is read and not kept. out receives the memory, as from gpumem_malloc_async.
// Errors: those of gpumem_malloc_async; GPUMEM_ERROR_INVALID also for an alignment that is not a
// power of two, unknown flags, a device that does not exist or is not the stream's, an arena that
// has been exited, an arena together with GPUMEM_MALLOC_EVICTABLE, or malformed options;
// GPUMEM_ERROR_UNSUPPORTED where the device cannot do what a flag asks. With GPUMEM_POOL=off
// GPUMEM_ERROR_UNSUPPORTED also for a flag that asks for memory of another kind, and for an
// alignment that the driver's memory does not have.
gpumem_status gpumem_malloc_with(const struct gpumem_malloc_options *opts, void **out);

// Sets the most bytes that gpumem may map on a device.
//
// When more is mapped now, free memory goes back to the device and live memory stays. Like
// gpumem_trim, that can invalidate the capture of a stream. What another thread is mapping for one
// allocation at that moment may still go by the limit before. 0 means all that the device has.
// With GPUMEM_POOL=off the limit applies to what is live. Once the device's space is counted
// (space.h), that keeps its own limit: see gpumem_space_limit_set.
// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_limit_set(int device, size_t bytes);

// Like gpumem_trim, on one device.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_trim(int device, size_t keep_bytes);

// Gets the number of an allocation. Addresses are reused; numbers never are within a process.
//
// ptr is the start of a live allocation. out receives a number that is not 0.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER,
// GPUMEM_ERROR_DOUBLE_FREE when it was freed.
gpumem_status gpumem_allocation_id_get(const void *ptr, uint64_t *out);

// Gets the number by which an object that owns memory has to free it: for owners that may outlive
// an arena or a capture. Call it right after the allocation, on the same thread.
//
// ptr is the start of a live allocation, s the stream that it was made on. The end of an arena and
// gpumem_capture_abort free what owners still hold, and by the time that those free it the address
// may be another owner's. So where the memory is in an arena or the stream in a capture, out
// receives the allocation's number (gpumem_allocation_id_get), for gpumem_free_id. Elsewhere it
// receives 0: only its owner frees the memory, with gpumem_free, which is quicker. An owner that
// can only free by address calls gpumem_arena_escape where there is a number.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL; while there is an arena, or the stream is
// in a capture, those of gpumem_allocation_id_get.
gpumem_status gpumem_owner_id_get(const void *ptr, gpumem_stream s, uint64_t *out);

// Gets facts about the live allocation that contains ptr, which may be an interior pointer.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL or the
// size impossible, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_pointer_info_get(const void *ptr, struct gpumem_pointer_info *out);

/* ---- Sharing with other processes --------------------------------------------------------------
 *
 * Memory allocated with GPUMEM_MALLOC_EXPORTABLE can be handed to another process as a file
 * descriptor, sent over a Unix socket or inherited. Both processes then see the same memory and
 * must order their own work on it. gpumem_realloc_async makes other memory of exportable memory,
 * which is exportable too and has to be exported again; imported memory keeps its size.
 */

// Makes a file descriptor for an allocation.
//
// ptr is the start of a live allocation made with GPUMEM_MALLOC_EXPORTABLE. out receives the
// descriptor, which the caller owns and closes; it keeps the memory alive, as every import does.
// It is closed by exec.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, or the allocation is of 0 bytes or not
// exportable; GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_DOUBLE_FREE when it was freed,
// GPUMEM_ERROR_UNSUPPORTED (with GPUMEM_POOL=off), GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_export_fd(const void *ptr, int *out);

// Maps memory that gpumem_export_fd exported, in this or another process.
//
// fd stays the caller's and may be closed afterwards. bytes is the size that the exporter asked
// for. Both processes must have the same GPUMEM_PAGE_SIZE. Imported memory counts as mapped in
// both, and takes nothing more from the device. out receives the memory on the given device. The
// caller owns it and frees it like any other; the other processes keep theirs. A wrong size within
// the same number of pages goes unnoticed.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, fd is not a descriptor, bytes is 0 or not the
// exported size, or there is no such device; GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_UNSUPPORTED
// (with GPUMEM_POOL=off), GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_import_fd(int fd, size_t bytes, int device, void **out);

#ifdef __cplusplus
}
#endif

#endif

/* gpumem/stats.h: counters, dumps, checks.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_STATS_H
#define GPUMEM_STATS_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Looking inside ----------------------------------------------------------------------------
 *
 * Counters and dumps are snapshots: other threads go on while they are taken.
 */

// One device's counters. Bytes unless a field says that it is a count.
typedef struct gpumem_stats {
    // sizeof(gpumem_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // The device that the counters belong to.
    int32_t device;
    // Addresses reserved.
    uint64_t reserved;
    // Physical memory held, including `stock`.
    uint64_t mapped;
    // The most that mapped has been since the last gpumem_stats_reset_peak.
    uint64_t peak_mapped;
    // Memory that callers asked for and have not freed, without what is evicted now.
    uint64_t requested;
    // Memory that is live: requested, with rounding included.
    uint64_t live;
    // The most that live has been since the last gpumem_stats_reset_peak. It is exact where the
    // pool has one heap, and nothing with a handle of its own. Otherwise it is an upper bound: at
    // most the sum of the peaks of each heap and of all that has, and at most peak_mapped.
    uint64_t peak_live;
    // Free mapped memory that its own stream can use at once, without free room among small
    // objects.
    uint64_t free;
    // Free mapped memory that waits for a stream.
    uint64_t waiting;
    // Physical memory without an address, held for later.
    uint64_t stock;
    // Unmapped addresses inside the reservation.
    uint64_t holes;
    // Old addresses of memory that has moved, not yet unmapped.
    uint64_t zombies;
    // The largest request that is sure to succeed next, on any stream, even if no physical memory
    // can be added, as long as no stream is being captured. It may take remapping, and a wait
    // until the device has passed earlier frees; where memory may be added, the pool may prefer
    // that. Some streams may get more. 0 if less than 64 KiB is free in one piece.
    uint64_t largest_without_growth;
    // The largest free region, usable with no driver call; 0 if that has less than 64 KiB, since
    // small objects need as much.
    uint64_t largest_free;
    // Live allocations, evicted ones too, a count.
    uint64_t allocations;
    // Allocations ever made, a count.
    uint64_t mallocs;
    // Frees ever done, a count.
    uint64_t frees;
    // Physical allocations mapped, a count.
    uint64_t extents;
    // Physical allocations moved to other addresses so far, a count.
    uint64_t moved;
    // Requests met with physical memory from elsewhere in the pool, with none added, so far, a
    // count.
    uint64_t stitches;
    // Times that physical memory was added to the pool so far, a count. Allocations with memory of
    // their own (GPUMEM_MALLOC_EVICTABLE and others) are no part of it.
    uint64_t growths;
    // Streams known, a count. One that is used eagerly and in captures counts twice.
    uint64_t streams;
    // Frees refused as double, a count.
    uint64_t double_frees;
    // Frees refused because the pointer is unknown, a count.
    uint64_t unknown_pointers;
    // Frees by id (gpumem_free_id) of allocations that were gone already, a count.
    uint64_t late_frees;
    // Requests that the pool had no memory for, a count. It includes those for which room was then
    // made by moving evictable memory out, but not those that a reservation or a space's limit
    // refused.
    uint64_t out_of_memory;
    // The most that may be mapped (gpumem_device_limit_set). 0 means all that the device has.
    uint64_t limit;
} gpumem_stats;

// How often one driver call was made.
typedef struct gpumem_driver_call {
    // The call's name, terminated.
    char name[40];
    // How often it was made since gpumem started.
    uint64_t calls;
} gpumem_driver_call;

// Gets the counters of one device.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device,
// out is NULL or its size impossible.
gpumem_status gpumem_stats_get(int device, struct gpumem_stats *out);

// Sets the peaks of one device back to the present values.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such device.
gpumem_status gpumem_stats_reset_peak(int device);

// Checks every invariant of gpumem's own state: pools, spaces and what is in them, arenas. Slow;
// for tests. Other threads may go on: what changes just then is looked at again, for a second.
//
// Errors: GPUMEM_ERROR_INTERNAL with the first invariant that does not hold.
gpumem_status gpumem_validate(void);

// Lists every region of one device's memory in address order, as text for people.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may
// be NULL; it receives the bytes that the whole text takes, its NUL included, so more than cap
// means that it was cut.
// Errors: GPUMEM_ERROR_INVALID when there is no such device or buf is NULL and cap is not 0.
gpumem_status gpumem_dump(int device, char *buf, size_t cap, size_t *needed);

// Gets how often each driver call was made, in a fixed order.
//
// out has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count
// may be NULL; it receives how many there are.
// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0.
gpumem_status gpumem_driver_calls_get(struct gpumem_driver_call *out, size_t cap, size_t *count);

#ifdef __cplusplus
}
#endif

#endif

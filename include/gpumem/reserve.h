/* gpumem/reserve.h: reservations.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_RESERVE_H
#define GPUMEM_RESERVE_H

#include "core.h"
#include "space.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Reservations ------------------------------------------------------------------------------
 *
 * A reservation is a promise of bytes in one space. Bytes promised to one go to no other
 * reservation, nor to allocations outside. A job with a reservation does not run out of memory
 * half-way because of its neighbours: it waits before it starts.
 *
 *   gpumem_reserve_options want;
 *   GPUMEM_INIT(&want);
 *   want.bytes = 4ull << 30;
 *   want.timeout_ms = 10000;
 *   gpumem_reservation r;
 *   if (gpumem_reserve(&want, &r) != GPUMEM_OK) ...
 *   gpumem_reservation_attach_thread(r);
 *   ...                                        (what this thread allocates in the space is drawn
 *                                              from it)
 *   gpumem_reservation_release(r, NULL);
 *
 * Drawing    An allocation on a stream draws from the reservation that is attached to the stream
 *            in the device's space, else from the one attached to the calling thread, else from
 *            what is available outside any reservation. When it is freed, on any thread and
 *            stream, its bytes go back to where they came from. When it is resized, in place or
 *            not, the new bytes come from there too, while the reservation lives; one that moves
 *            has its old and its new bytes there until the copy is submitted. The reservation's
 *            policy (space.h) says what happens to an allocation that does not fit. Allocations
 *            never wait.
 * Sizes      Sizes are exact: gpumem_reserve gives what was asked for or fails. If least_bytes
 *            says that less will do, gpumem_reservation_info_get has the size. No memory is set
 *            aside: an allocation can still fail because of other programs on the device, or of
 *            memory that the pool holds for other streams.
 * Waiting    Each space serves requests first come, first served. Every release, shrink, free or
 *            raised limit that makes room serves the waiting requests. A request that can never be
 *            met fails at once.
 * Room       Where gpumem_reserve and gpumem_reservation_grow find none, what gpumem may move by
 *            itself (evict.h) moves out of the space, as for an allocation: as much as is missing,
 *            or nothing if all of it would not be enough. That is done before they wait: what may
 *            move only later does not end the wait. A move that has begun is finished, even if the
 *            time is over or the request is cancelled meanwhile.
 * Release    Allocations drawn from a released reservation live on, outside any reservation. Its
 *            streams and threads are detached. Its handle is stale afterwards:
 *            GPUMEM_ERROR_INVALID.
 * Threads    A reservation may be used, and released, by any thread. A wait in
 *            gpumem_reservation_grow ends with an error when another thread releases it.
 */

// Strategy: in the named space. The default.
#define GPUMEM_RESERVE_SPACE 1

// Strategy: in any space of the named space's tier, the one with the most room.
#define GPUMEM_RESERVE_TIER 2

// Strategy: in any space of the first of tiers that has room, else of the next, and so on.
#define GPUMEM_RESERVE_TIERS 3

// Strategy: in a space that data of the named one can move down to, in the next lower tier with
// room, spaces of the same NUMA node first; or in tiers[0], if that is given.
#define GPUMEM_RESERVE_DOWNGRADE 4

// Strategy: in a space that data of the named one can move up to, in the next higher tier with
// room, spaces of the same NUMA node first; or in tiers[0], if that is given.
#define GPUMEM_RESERVE_UPGRADE 5

// What to reserve, for gpumem_reserve. A field that is 0 means its default.
typedef struct gpumem_reserve_options {
    // sizeof(gpumem_reserve_options).
    uint32_t size;
    // GPUMEM_RESERVE_*: where.
    int32_t strategy;
    // Size in bytes; must not be 0.
    uint64_t bytes;
    // The least bytes that will do, unless 0. The reservation then gets as much as there is, up to
    // bytes.
    uint64_t least_bytes;
    // The named space. With GPUMEM_RESERVE_SPACE zeros mean the current device's; with
    // GPUMEM_RESERVE_TIER the id must be 0.
    gpumem_space space;
    // GPUMEM_TIER_*, most preferred first; ends with a 0 unless full.
    int32_t tiers[4];
    // The longest wait for room in milliseconds; 0 means no wait, GPUMEM_WAIT_FOREVER no limit.
    uint64_t timeout_ms;
    // Ends the wait when triggered; may be NULL.
    gpumem_token cancel;
    // What happens to an allocation that does not fit. NULL means that it fails.
    const gpumem_reserve_policy *policy;
    // What happens to an allocation that finds no memory. NULL means that the space's callback
    // decides.
    gpumem_out_of_memory_callback out_of_memory;
    // Passed to out_of_memory.
    void *user;
    // Called when user is no longer used; may be NULL.
    gpumem_free_user free_user;
} gpumem_reserve_options;

// Facts about a live reservation. Bytes unless a field says otherwise.
typedef struct gpumem_reservation_info {
    // sizeof(gpumem_reservation_info), set by the caller; on return, the bytes filled.
    uint32_t size;
    // Its space.
    gpumem_space space;
    // 0.
    uint32_t reserved;
    // A number that is never reused in this process. Error texts name it; once the handle is
    // stale, they name that instead.
    uint64_t number;
    // Its size.
    uint64_t promised;
    // How much of promised live allocations use.
    uint64_t drawn;
    // What live allocations made with it use, including what a policy took from outside it.
    uint64_t used;
    // The most that used was.
    uint64_t peak;
    // When it was asked for: a position in the process's sequence of requests and grants.
    uint64_t arrived;
    // When it was granted: a position in the same sequence as arrived.
    uint64_t granted;
} gpumem_reservation_info;

// Promises bytes of a space, or waits until they can be.
//
// opts is read and not kept, except for the callbacks in it. out receives the reservation, which
// the caller owns until gpumem_reservation_release. Blocks if opts->timeout_ms is not 0; do not
// wait for bytes that only the waiting thread would release. The time that it takes to make room
// is no part of the timeout.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, an option not allowed, or there is no such
// space; GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and timeout_ms is 0, or there can never
// be enough; GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_SHUTTING_DOWN after
// gpumem_reservation_shutdown; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_DRIVER.
// Nothing is promised then.
gpumem_status gpumem_reserve(const struct gpumem_reserve_options *opts, gpumem_reservation *out);

// Ends a reservation: its bytes are available to others.
//
// Live allocations drawn from it stay. Their bytes count as use outside any reservation from now
// on; drawn_or_null receives how many bytes that is. The handle is stale afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it has been released.
gpumem_status gpumem_reservation_release(gpumem_reservation r, uint64_t *drawn_or_null);

// Makes a reservation larger, or waits until it can be.
//
// timeout_ms as in gpumem_reserve_options; cancel may be NULL. It waits in the same queue as
// gpumem_reserve. A request ahead of it may be waiting for the very bytes that this reservation
// holds, so set a timeout unless you know that none is.
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or there is no such reservation, also when it is
// released meanwhile; those of a wait as for gpumem_reserve. After an error it is as large as
// before.
gpumem_status gpumem_reservation_grow(gpumem_reservation r, uint64_t bytes, uint64_t timeout_ms, gpumem_token cancel);

// Makes a reservation smaller by bytes, none of which may be drawn.
//
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or more than the undrawn part, or there is no such
// reservation.
gpumem_status gpumem_reservation_shrink(gpumem_reservation r, uint64_t bytes);

// Shrinks a reservation to what is drawn of it.
//
// out_or_null receives the number of bytes given up, possibly 0.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation.
gpumem_status gpumem_reservation_shrink_to_fit(gpumem_reservation r, uint64_t *out_or_null);

// Facts about a reservation.
//
// out->size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, out is NULL or its size
// impossible.
gpumem_status gpumem_reservation_info_get(gpumem_reservation r, struct gpumem_reservation_info *out);

// Lets allocations on a stream in the reservation's space draw from it, on every thread.
//
// A stream has at most one reservation of each space. gpumem_space_detach_stream, the release and
// gpumem_stream_destroy detach it. Detach it before you destroy the stream by other means: CUDA
// gives the handle to the next stream. GPUMEM_STREAM_PER_THREAD counts as one stream here,
// whichever thread uses it.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, the stream already has one of
// this space, or the stream is of another device than the reservation;
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_reservation_attach_stream(gpumem_reservation r, gpumem_stream s);

// Lets the calling thread's allocations in the reservation's space draw from it, on streams that
// have none of their own.
//
// A thread has at most one reservation of each space. gpumem_reservation_detach_thread,
// gpumem_space_detach_thread, the release and the end of the thread detach it.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or the thread already has one of
// this space, or is ending and in the last round of its pthread keys' destructors.
gpumem_status gpumem_reservation_attach_thread(gpumem_reservation r);

// Undoes gpumem_reservation_attach_thread on the same thread.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it is not the one that the
// thread has attached.
gpumem_status gpumem_reservation_detach_thread(gpumem_reservation r);

#ifdef __cplusplus
}
#endif

#endif

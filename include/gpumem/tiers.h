/* gpumem/tiers.h: spaces, reservations, moving memory out of the device and back.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_TIERS_H
#define GPUMEM_TIERS_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Spaces ------------------------------------------------------------------------------------
 *
 * A space is one place that memory can be in: a device's memory, the pinned memory of a NUMA node
 * of the host, or the files under a mount. Its tier names the kind. Its id names one of that kind:
 * the number of a device or of a node; for a mount its place in GPUMEM_DISK, or the id that adding
 * it returned. Every byte of a space is counted:
 *
 *   used        live allocations
 *   promised    the sizes of live reservations; see there
 *   unreserved  live allocations that are not drawn from a reservation
 *   committed   promised + unreserved: at most the limit, unless a policy allowed more or the
 *               limit was lowered
 *
 * Counting begins with the first call about spaces or reservations; with GPUMEM_TIERS=on it begins
 * with the first allocation. It needs the pool: with GPUMEM_POOL=off these calls return
 * GPUMEM_ERROR_UNSUPPORTED. The limit of a device's space applies to what is in use. It starts at
 * GPUMEM_LIMIT, which applies to what the pool maps.
 *
 * Every function here returns GPUMEM_ERROR_INVALID when there is no such space.
 */

// The memory of devices.
#define GPUMEM_TIER_GPU 1

// Pinned memory of the host.
#define GPUMEM_TIER_HOST 2

// Files.
#define GPUMEM_TIER_DISK 3

// Which space: { GPUMEM_TIER_GPU, 0 } is the memory of device 0.
typedef struct gpumem_space {
    // GPUMEM_TIER_*; 0 where no space is allowed.
    int32_t tier;
    // Which one of the tier.
    uint32_t id;
} gpumem_space;

// The counters of one space. Bytes unless a field says otherwise.
typedef struct gpumem_space_stats {
    // sizeof(gpumem_space_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // Which space.
    struct gpumem_space space;
    // 1 when use has reached the trigger, so that data should move out; else 0.
    uint32_t should_downgrade;
    // 1 when use is low enough that moving out should stop; else 0.
    uint32_t should_stop;
    // 0.
    uint32_t reserved;
    // The capacity.
    uint64_t capacity;
    // The limit of what may be promised or used.
    uint64_t limit;
    // Sum of the sizes of live reservations.
    uint64_t promised;
    // Live allocations that draw from no reservation.
    uint64_t unreserved;
    // Live allocations.
    uint64_t used;
    // The most that used was since the last gpumem_space_stats_reset_peak.
    uint64_t peak;
    // What can still be promised or used.
    uint64_t available;
    // By how much promised + unreserved exceeds the limit.
    uint64_t beyond;
    // The use from which data should move out: a share of the limit.
    uint64_t trigger;
    // The use at which moving out stops: a share of the limit.
    uint64_t stop;
    // How much has to move out for moving to stop; 0 when none has to.
    uint64_t amount_to_downgrade;
    // Live reservations, a count.
    uint64_t reservations;
    // Requests that wait for this space, alone or among others, a count.
    uint64_t waiters;
} gpumem_space_stats;

// Lists every space.
//
// out has room for cap entries and may be NULL when cap is 0; spaces beyond are left out. count
// may be NULL; it receives how many there are. Spaces of one tier come in the order of their ids.
// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0.
gpumem_status gpumem_space_list_get(struct gpumem_space *out, size_t cap, size_t *count);

// Adds a space of files.
//
// path is a directory, UTF-8. It is looked up now, and written to when data first moves there.
// limit is the most bytes that the files may take; 0 means as many as the file system has free
// now. out receives the space, whose tier is GPUMEM_TIER_DISK. GPUMEM_DISK adds spaces in the same
// way. A space cannot be removed.
// Errors: GPUMEM_ERROR_INVALID when path or out is NULL, or the directory is a space already;
// GPUMEM_ERROR_IO when path does not exist or is no directory.
gpumem_status gpumem_space_disk_add(const char *path, uint64_t limit, struct gpumem_space *out);

// The counters of a space.
//
// out->size must be set (GPUMEM_INIT). The counters are of one moment unless other threads
// allocate meanwhile.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
gpumem_status gpumem_space_stats_get(struct gpumem_space space, struct gpumem_space_stats *out);

// Sets how much of a space may be promised or used.
//
// bytes is at most the capacity; UINT64_MAX stands for all of it. What exceeds a lowered limit
// stays, and is counted in beyond. Waiting requests that can never be met any more end with
// GPUMEM_ERROR_OUT_OF_MEMORY; those that fit now are granted. The thresholds are shares of the
// limit and move with it. Data moves out at the next allocation, hold, unhold or move in the
// space, not before.
// Errors: GPUMEM_ERROR_INVALID for more than the capacity.
gpumem_status gpumem_space_limit_set(struct gpumem_space space, uint64_t bytes);

// Sets at which share of a space's limit data starts to move out, and at which share it stops.
//
// Both are from 0 to 1, and stop is not above trigger. They start as GPUMEM_DOWNGRADE says: 0.85
// and 0.65 by default. The limit is never above the capacity.
// Errors: GPUMEM_ERROR_INVALID for other numbers.
gpumem_status gpumem_space_thresholds_set(struct gpumem_space space, double trigger, double stop);

// Sets the peak of a space back to what is used now.
gpumem_status gpumem_space_stats_reset_peak(struct gpumem_space space);

// What live allocations of a stream use in a space.
//
// An allocation counts for the stream that it was made on, not the one it is freed on. used and
// peak receive bytes, and may be NULL. peak is the most that used was since the stream was first
// seen, or since gpumem_space_stream_stats_reset_peak. GPUMEM_STREAM_PER_THREAD counts as one
// stream here, whichever thread uses it.
// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
gpumem_status gpumem_space_stream_stats_get(struct gpumem_space space, gpumem_stream s, uint64_t *used, uint64_t *peak);

// Sets the peak of a stream in a space back to what it uses now.
//
// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
gpumem_status gpumem_space_stream_stats_reset_peak(struct gpumem_space space, gpumem_stream s);

// The reservation that the calling thread's allocations on a stream draw from in a space: the
// stream's, else the thread's.
//
// out receives its number (gpumem_reservation_info.number), 0 when there is none.
// Errors: GPUMEM_ERROR_INVALID when out is NULL.
gpumem_status gpumem_space_current_get(struct gpumem_space space, gpumem_stream s, uint64_t *out);

// Detaches a stream from its reservation of a space.
//
// Errors: GPUMEM_ERROR_INVALID when it has none.
gpumem_status gpumem_space_detach_stream(struct gpumem_space space, gpumem_stream s);

// Detaches the calling thread from its reservation of a space.
//
// Errors: GPUMEM_ERROR_INVALID when it has none.
gpumem_status gpumem_space_detach_thread(struct gpumem_space space);

/* ---- Policies ----------------------------------------------------------------------------------
 *
 * A policy says what happens when an allocation overdraws, which means that it does not fit the
 * reservation it draws from, and when there is no memory for it. A function of the program's can
 * decide both.
 *
 * Callbacks  Run on the thread that allocates, on several threads at once, with no lock of
 *            gpumem's held. They may call every function of this header: free, shrink, grow and
 *            release reservations, for instance. An allocation that overdraws inside an overdraw
 *            callback calls it again; one that finds no memory inside an out-of-memory callback
 *            fails. A callback must not wait for a thread that waits for this one, and must
 *            return: no longjmp, no C++ exception (gpumem.hpp catches them).
 * user       Is passed to the callback, and stays the program's. free_user, unless NULL, is called
 *            with it once, after the last call of the callback: when the callback has been
 *            replaced, or its reservation released. It may run on any thread, with no lock of
 *            gpumem's held. It does not run when the function that took it has failed, nor at
 *            exit.
 */

// An allocation that overdraws fails: the default.
#define GPUMEM_POLICY_FAIL 1

// The allocation takes what is missing from outside the reservation, if the space's limit allows.
#define GPUMEM_POLICY_IGNORE 2

// The reservation grows to factor times its size, or by what the allocation needs if that is more.
// Where the space has less, it grows by what there is. It does not wait.
#define GPUMEM_POLICY_INCREASE 3

// The callback decides.
#define GPUMEM_POLICY_CALLBACK 4

// With GPUMEM_POLICY_INCREASE: the reservation may grow by what the allocation needs above the
// space's limit, up to its capacity.
#define GPUMEM_POLICY_BEYOND_LIMIT 1

// Returned by an overdraw callback: the allocation fails. So it does for any number without a
// meaning.
#define GPUMEM_OVERDRAW_FAIL 0

// Returned by an overdraw callback: proceed as GPUMEM_POLICY_IGNORE does.
#define GPUMEM_OVERDRAW_IGNORE -1

// Returned by an overdraw callback: try again; something was freed.
#define GPUMEM_OVERDRAW_RETRY -2

// What an overdraw callback is told.
typedef struct gpumem_overdraw {
    // The bytes that the library filled. Fields beyond them do not exist.
    uint32_t size;
    // How often the callback has been called for this allocation, from 1.
    uint32_t attempt;
    // The reservation's space.
    gpumem_space space;
    // The reservation's number.
    uint64_t number;
    // The reservation's size, bytes.
    uint64_t promised;
    // How much of that is drawn, bytes.
    uint64_t drawn;
    // What the allocation needs, bytes.
    uint64_t bytes;
    // Its stream.
    gpumem_stream stream;
} gpumem_overdraw;

// Decides about an allocation that overdraws. Returns GPUMEM_OVERDRAW_*, or a positive number of
// bytes: the reservation then grows by that much, without waiting, and the allocation is tried
// again. It fails if the space has less.
typedef int64_t (*gpumem_overdraw_callback)(const struct gpumem_overdraw *what, void *user);

// Called when user is no longer used.
typedef void (*gpumem_free_user)(void *user);

// What happens to an allocation that overdraws. A field that is 0 means its default.
typedef struct gpumem_reserve_policy {
    // sizeof(gpumem_reserve_policy).
    uint32_t size;
    // GPUMEM_POLICY_*.
    int32_t kind;
    // With GPUMEM_POLICY_INCREASE: how much larger, from 1 to 1000; the default is 1.25.
    double factor;
    // With GPUMEM_POLICY_INCREASE: the most that the reservation may grow to, bytes; 0 means no
    // cap.
    uint64_t cap;
    // GPUMEM_POLICY_BEYOND_LIMIT or 0.
    uint32_t flags;
    // Must be 0.
    uint32_t reserved;
    // With GPUMEM_POLICY_CALLBACK: the function, else NULL.
    gpumem_overdraw_callback callback;
    // Passed to the callback.
    void *user;
    // Called when user is no longer used; may be NULL.
    gpumem_free_user free_user;
} gpumem_reserve_policy;

// What an out-of-memory callback is told.
typedef struct gpumem_shortage {
    // The bytes that the library filled. Fields beyond them do not exist.
    uint32_t size;
    // How often the allocation has failed, from 1.
    uint32_t attempt;
    // Where.
    gpumem_space space;
    // What it needs, bytes.
    uint64_t bytes;
    // Its stream.
    gpumem_stream stream;
} gpumem_shortage;

// Makes room for an allocation that found no memory. Returns 0 to give up, anything else to try
// again. It runs after every try that fails.
typedef int32_t (*gpumem_out_of_memory_callback)(const struct gpumem_shortage *what, void *user);

// Sets what happens to an allocation that does not fit a reservation.
//
// policy is read and not kept; NULL means GPUMEM_POLICY_FAIL. Allocations under way may still
// follow the previous one.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation or a field is not allowed.
gpumem_status gpumem_reservation_policy_set(gpumem_reservation r, const struct gpumem_reserve_policy *policy);

// Sets what happens to an allocation in a reservation that finds no memory.
//
// callback may be NULL: the callback of the space decides. user and free_user may be NULL.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or user is given and no
// callback.
gpumem_status gpumem_reservation_out_of_memory_set(gpumem_reservation r,
                                                   gpumem_out_of_memory_callback callback,
                                                   void *user,
                                                   gpumem_free_user free_user);

// Sets what happens to an allocation in a space that finds no memory, unless its reservation has a
// callback.
//
// callback may be NULL: the allocation fails, which is the default. user and free_user may be
// NULL.
// Errors: GPUMEM_ERROR_INVALID when there is no such space, or user is given and no callback;
// GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
gpumem_status gpumem_space_out_of_memory_set(gpumem_space space,
                                             gpumem_out_of_memory_callback callback,
                                             void *user,
                                             gpumem_free_user free_user);

/* ---- Ending waits ------------------------------------------------------------------------------
 *
 * Pass a token to calls that wait for a reservation; gpumem_token_cancel then ends their waits.
 * Any number of calls may share one token.
 */

// The type that a gpumem_token points to: opaque, never defined.
typedef struct gpumem_token_st gpumem_token_st;

// A handle to a token that ends waits. It is opaque: compare it only with NULL and other handles.
typedef struct gpumem_token_st *gpumem_token;

// Makes a token that ends waits.
//
// out receives it; the caller owns it until gpumem_token_destroy.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
gpumem_status gpumem_token_create(gpumem_token *out);

// Ends every wait with this token with GPUMEM_ERROR_CANCELLED, those under way and later ones.
//
// A request is either granted or cancelled. One that would not have to wait is refused too.
// Errors: GPUMEM_ERROR_INVALID when there is no such token.
gpumem_status gpumem_token_cancel(gpumem_token cancel);

// Destroys a token. Waits with it go on.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such token.
gpumem_status gpumem_token_destroy(gpumem_token cancel);

// Ends every wait for a reservation with GPUMEM_ERROR_SHUTTING_DOWN, and refuses every request
// from now on.
//
// This cannot be undone. Allocations, frees and releases work as before. It is for programs that
// have to join their threads.
// Errors: GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
gpumem_status gpumem_reservation_shutdown(void);

/* ---- Reservations ------------------------------------------------------------------------------
 *
 * A reservation is a promise of bytes of one space. What is promised to one goes to no other, nor
 * to allocations outside. A job with a reservation does not run out of memory half-way because of
 * its neighbours: it waits before it starts.
 *
 *   gpumem_reserve_options want;
 *   GPUMEM_INIT(&want);
 *   want.bytes = 4ull << 30;
 *   want.timeout_ms = 10000;
 *   gpumem_reservation r;
 *   if (gpumem_reserve(&want, &r) != GPUMEM_OK) ...
 *   gpumem_reservation_attach_thread(r);
 *   ...                                        (what this thread allocates in the space is drawn from it)
 *   gpumem_reservation_release(r, NULL);
 *
 * Drawing    An allocation on a stream draws from the reservation that is attached to the stream
 *            in the device's space, else from the one attached to the calling thread, else from
 *            what is available outside of any. When it ends, on any thread and stream, its bytes
 *            go back to where they came from. The reservation's policy (above) says what happens
 *            to an allocation that does not fit. Allocations never wait.
 * Sizes      Are exact: gpumem_reserve gives what was asked for or fails, unless least_bytes says
 *            that less will do; gpumem_reservation_info_get then says how much it is. No memory is
 *            set aside: an allocation can still fail because of other programs on the device, or
 *            of memory that the pool holds for other streams.
 * Waiting    Is first come, first served in each space. Each release, shrink, free or raised limit
 *            that makes room serves the requests that wait. A request that can never be met fails
 *            at once.
 * Release    What is drawn of a released reservation lives on, outside of any reservation. Its
 *            streams and threads are detached. The handle is stale afterwards:
 *            GPUMEM_ERROR_INVALID.
 * Threads    A reservation may be used, and released, by any thread. A wait in
 *            gpumem_reservation_grow ends with an error when another thread releases it.
 */

// In the space that is named: the default.
#define GPUMEM_RESERVE_SPACE 1

// In any space of the tier of the one that is named: the one with the most room.
#define GPUMEM_RESERVE_TIER 2

// In any space of the first of tiers that has room, else of the next, and so on.
#define GPUMEM_RESERVE_TIERS 3

// In a space that data of the named one can move down to: in the next lower tier with room, spaces
// of the same NUMA node first; or in tiers[0], if that is given.
#define GPUMEM_RESERVE_DOWNGRADE 4

// In a space that data of the named one can move up to, likewise.
#define GPUMEM_RESERVE_UPGRADE 5

// What to reserve, for gpumem_reserve. A field that is 0 means its default.
typedef struct gpumem_reserve_options {
    // sizeof(gpumem_reserve_options).
    uint32_t size;
    // GPUMEM_RESERVE_*: where.
    int32_t strategy;
    // How much, bytes; not 0.
    uint64_t bytes;
    // If not 0: the least that will do. The reservation then gets as much as there is, up to
    // bytes.
    uint64_t least_bytes;
    // The space that the strategy names. With GPUMEM_RESERVE_SPACE zeros mean the one of the
    // current device; with GPUMEM_RESERVE_TIER the id must be 0.
    gpumem_space space;
    // GPUMEM_TIER_*, the one that is preferred first; ends with a 0 unless full.
    int32_t tiers[4];
    // The longest wait for room, milliseconds; 0 means no wait, GPUMEM_WAIT_FOREVER no limit.
    uint64_t timeout_ms;
    // Ends the wait when triggered; may be NULL.
    gpumem_token cancel;
    // What happens to an allocation that does not fit; NULL: it fails.
    const gpumem_reserve_policy *policy;
    // What happens to an allocation that finds no memory; NULL: the callback of the space decides.
    gpumem_out_of_memory_callback out_of_memory;
    // Passed to out_of_memory.
    void *user;
    // Called when user is no longer used; may be NULL.
    gpumem_free_user free_user;
} gpumem_reserve_options;

// Facts about a live reservation. Bytes unless a field says otherwise.
typedef struct gpumem_reservation_info {
    // sizeof(gpumem_reservation_info), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // Its space.
    gpumem_space space;
    // 0.
    uint32_t reserved;
    // A number that is never reused in this process. Error texts name it.
    uint64_t number;
    // Its size.
    uint64_t promised;
    // How much of that live allocations use.
    uint64_t drawn;
    // What live allocations made with it use, also what a policy took from outside of it.
    uint64_t used;
    // The most that used was.
    uint64_t peak;
    // When it was asked for, in a count of requests and grants of the whole process.
    uint64_t arrived;
    // When it was granted, in the same count.
    uint64_t granted;
} gpumem_reservation_info;

// Promises bytes of a space, or waits until they can be.
//
// opts is read and not kept, except for the callbacks in it. out receives the reservation, which
// the caller owns until gpumem_reservation_release. Blocks if opts->timeout_ms is not 0; do not
// wait for what the waiting thread itself would release.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, an option not allowed, or there is no such
// space; GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and timeout_ms is 0, or there can never
// be so much; GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_SHUTTING_DOWN after
// gpumem_reservation_shutdown; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_DRIVER.
// Nothing is promised then.
gpumem_status gpumem_reserve(const struct gpumem_reserve_options *opts, gpumem_reservation *out);

// Ends a reservation: its bytes are available to others.
//
// Live allocations that were drawn from it stay, and their bytes count as use outside of any
// reservation from now on. drawn_or_null receives how many those are. The handle is stale
// afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it has been released.
gpumem_status gpumem_reservation_release(gpumem_reservation r, uint64_t *drawn_or_null);

// Makes a reservation larger, or waits until it can be.
//
// timeout_ms as in gpumem_reserve_options; cancel may be NULL. It waits in one queue with
// gpumem_reserve. A request ahead of it may be waiting for just what this reservation holds, so
// set a timeout unless you know that none does.
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or there is no such reservation, also when it is
// released meanwhile; those of a wait as gpumem_reserve. It is as large as before then.
gpumem_status gpumem_reservation_grow(gpumem_reservation r, uint64_t bytes, uint64_t timeout_ms, gpumem_token cancel);

// Makes a reservation smaller by what is not drawn of it.
//
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or more than is not drawn, or there is no such
// reservation.
gpumem_status gpumem_reservation_shrink(gpumem_reservation r, uint64_t bytes);

// Shrinks a reservation to what is drawn of it.
//
// out_or_null receives by how many bytes, possibly none.
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
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, the stream has one of this
// space, or is one of another device than the reservation; GPUMEM_ERROR_INVALID_STREAM,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_reservation_attach_stream(gpumem_reservation r, gpumem_stream s);

// Lets the calling thread's allocations in the reservation's space draw from it, on streams that
// have none of their own.
//
// A thread has at most one reservation of each space. gpumem_space_detach_thread, the release and
// the end of the thread detach it.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or the thread has one of this
// space.
gpumem_status gpumem_reservation_attach_thread(gpumem_reservation r);

/* ---- Moving memory out of the device and back --------------------------------------------------
 *
 * Memory allocated with GPUMEM_MALLOC_EVICTABLE can leave its device and come back at the same
 * addresses: to pinned memory of the host, to a file of a disk (GPUMEM_DISK), or from one to the
 * other. Meanwhile its device memory is free for others. Each such allocation has whole pages of
 * its own (2 MiB on most devices). It belongs to no arena and lives, wherever it is, until it is
 * freed.
 *
 * Sleep and wake, for data that the program knows to be idle, such as the weights of a model:
 *
 *   opts.flags = GPUMEM_MALLOC_EVICTABLE; opts.tag = WEIGHTS; gpumem_malloc_with(&opts, &w);
 *   ...
 *   gpumem_evict_tag(WEIGHTS, NULL, NULL);             (all of them: the device memory is free)
 *   gpumem_restore_tag(WEIGHTS, NULL, NULL);           (they are back where they were)
 *
 * Holds, for more data than the device holds:
 *
 *   gpumem_hold(w);                                     (there now, restored if need be, and to stay)
 *   kernel<<<.., stream>>>(w);
 *   gpumem_unhold(w, stream);                           (may go when the stream has come this far)
 *
 * By itself  gpumem moves out, oldest use first, what has been unheld at least once and is not
 *            held now: when an allocation, a hold or a restore finds no memory, and from a thread
 *            when a space is too full (GPUMEM_DOWNGRADE, GPUMEM_MOVER). So hold it before each
 *            use. What was never unheld moves only by the functions below.
 * Streams    A move out waits on the device for the work that uses the memory: what was submitted
 *            so far to the streams named in gpumem_unhold, in gpumem_record_stream and in the
 *            move's options; where none is named, to the whole device. Other streams go on
 *            meanwhile.
 * Faults     Bytes leave a place only when they are whole in another. A move that fails or is
 *            cancelled leaves them where they were. Device code that uses memory that is not there
 *            faults.
 * Files      End with the process: its exit removes them. The next process that uses the directory
 *            removes what a killed one left.
 * Threads    Any thread may call any of these; of two that want the same allocation, one waits for
 *            the other. Inside a callback of a move or a hold (progress, out of memory) nothing
 *            waits for what is being moved: a call that would have to returns
 *            GPUMEM_ERROR_INVALID.
 * No pool   With GPUMEM_POOL=off each of these is GPUMEM_ERROR_UNSUPPORTED.
 */

// gpumem_move_options.stream counts: all use of the memory so far has been submitted to it, or is
// ordered before it.
#define GPUMEM_MOVE_ON_STREAM 1

// gpumem_move_options.space counts.
#define GPUMEM_MOVE_TO_SPACE 2

// Called on the thread that moves, with the bytes moved so far and in all. A result other than 0
// cancels the move.
typedef int32_t (*gpumem_progress)(uint64_t done, uint64_t total, void *user);

// How to move. A field that is 0 means its default.
typedef struct gpumem_move_options {
    // sizeof(gpumem_move_options).
    uint32_t size;
    // GPUMEM_MOVE_*, or-ed together.
    uint32_t flags;
    // Where to: any space of the tier, or with GPUMEM_MOVE_TO_SPACE this one; the id must be 0
    // without. Zeros: evicted, to the nearest space of a lower tier that has room; restored, to
    // the device.
    gpumem_space space;
    // The stream, with GPUMEM_MOVE_ON_STREAM; must be NULL without.
    gpumem_stream stream;
    // Called now and then; may be NULL. It must return: no longjmp, no C++ exception.
    gpumem_progress progress;
    // Passed to it.
    void *user;
} gpumem_move_options;

// What a move did.
typedef struct gpumem_move_report {
    // sizeof(gpumem_move_report), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Allocations moved, a count.
    uint64_t moved;
    // Bytes of these, as asked for.
    uint64_t moved_bytes;
    // Allocations that were there already, or farther, a count.
    uint64_t already;
} gpumem_move_report;

// Where an evictable allocation is.
typedef struct gpumem_location {
    // sizeof(gpumem_location), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // The space that holds its bytes; its tier is 0 during a move.
    gpumem_space space;
    // How often it is held.
    uint32_t holds;
    // Bytes asked for.
    uint64_t bytes;
    // Device memory that it occupies while on the device, bytes.
    uint64_t device_bytes;
} gpumem_location;

// Keeps an evictable allocation in its device's memory until gpumem_unhold has been called as
// often, restoring it first if it is elsewhere: work submitted to any stream after this returns
// may use it.
//
// ptr is the start of an allocation made with GPUMEM_MALLOC_EVICTABLE. Waits for the bytes.
// Allocations that are not held may move out to make room.
// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and none can be made,
// GPUMEM_ERROR_CAPTURING when what would make room is used by a stream that is being captured,
// GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_DRIVER,
// GPUMEM_ERROR_IO and GPUMEM_ERROR_CORRUPT of its file. On failure the allocation stays where it
// was, and is not held.
gpumem_status gpumem_hold(void *ptr);

// Ends one hold. All use of the memory so far has been submitted to s, or is ordered before it.
//
// From the first call on, gpumem may move the memory out whenever it is not held.
// Errors: GPUMEM_ERROR_INVALID when it is not held or not evictable, GPUMEM_ERROR_UNKNOWN_POINTER,
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_CAPTURING when s is being
// captured: what a graph uses stays held. Nothing has changed then.
gpumem_status gpumem_unhold(void *ptr, gpumem_stream s);

// Moves an evictable allocation out of its device, and returns when its device memory is free.
//
// ptr is its start. opts may be NULL; it is read and not kept. out may be NULL. A move only goes
// away from the device: from the host to a disk too, when opts->space names one. What is as far
// away as asked, or farther, stays and counts as already there. A move within a tier (disk to
// disk, node to node) is neither nearer nor farther: both functions do it, with
// GPUMEM_MOVE_TO_SPACE.
// Errors: GPUMEM_ERROR_INVALID when it is held or not evictable, or for options that make no
// sense, GPUMEM_ERROR_INVALID_STREAM; GPUMEM_ERROR_OUT_OF_MEMORY when no lower space has room,
// GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_IO,
// GPUMEM_ERROR_CORRUPT of a file that it moves from, GPUMEM_ERROR_UNKNOWN_POINTER. On failure it
// stays where it was.
gpumem_status gpumem_evict(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves an evictable allocation back to its device, to the addresses it has, and returns when its
// bytes are there.
//
// Like gpumem_evict, but only ever nearer to the device: with opts->space.tier GPUMEM_TIER_HOST
// from a disk to the host; what is as near as that, or nearer, stays and counts as already there.
// Work submitted to any stream after this returns may use the memory. But unless it is held, or
// was never unheld, it may leave again at once.
// Errors: as gpumem_evict and gpumem_hold.
gpumem_status gpumem_restore(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves all evictable allocations with a tag out of their devices.
//
// Like gpumem_evict for each of them. When one of them is held, none moves. After any other error,
// those that the error text counts have moved and the others are where they were.
// Errors: as gpumem_evict; GPUMEM_ERROR_INVALID when none has the tag.
gpumem_status gpumem_evict_tag(uint64_t tag, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves all evictable allocations with a tag back to their devices, as gpumem_restore does each.
//
// Errors: as gpumem_evict_tag and gpumem_restore.
gpumem_status gpumem_restore_tag(uint64_t tag, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Says where an evictable allocation is.
//
// ptr is its start. out is filled as far as its size field says.
// Errors: GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_location_get(void *ptr, struct gpumem_location *out);

/* ---- Pinned host memory ------------------------------------------------------------------------
 *
 * Host memory that devices copy to and from directly. Copies are as fast as the bus, run beside
 * other work, and can be captured. The host reads and writes it like any other memory. Pinning is
 * slow, so gpumem pins large chunks ahead of need, keeps them, and hands out blocks of them (1 MiB
 * by default: GPUMEM_PINNED_BLOCKS), or a part of a block for half a block or less.
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
 *              from the reservation given, else from the one attached to the calling thread, else
 *              from what is available outside of any.
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

// The pinned memory of a node. Bytes unless a field says otherwise.
typedef struct gpumem_host_stats {
    // sizeof(gpumem_host_stats), set by the caller; afterwards the bytes filled.
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
    // Blocks of which parts are handed out.
    uint64_t shared;
    // Those parts.
    uint64_t parts;
    // Blocks of which nothing is handed out.
    uint64_t free;
    // The longest run of them: the largest piece that needs no further pinning.
    uint64_t longest;
    // Chunks that are pinned, a count.
    uint64_t chunks;
    // How often memory has been pinned, a count.
    uint64_t pins;
    // How often the system refused that, a count.
    uint64_t refused;
} gpumem_host_stats;

// Allocates pinned memory in one piece.
//
// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST. out receives the memory,
// which the caller owns until gpumem_host_free; it is not cleared. It is aligned to bytes rounded
// up to a power of two, but to 256 at least and 4096 at most. Every device can copy to and from
// it. When too little is free this pins more, or waits for a thread that does.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, bytes 0 or there is no such node;
// GPUMEM_ERROR_OUT_OF_MEMORY when the limit, a reservation or the system forbids so much, or what
// is free is in pieces; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, GPUMEM_ERROR_SHUTTING_DOWN,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_host_malloc(size_t bytes, int32_t node, void **out);

// Frees memory of gpumem_host_malloc, on any thread. Calls no driver and waits for nothing.
//
// ptr may be NULL, which does nothing. Copies to and from the memory must be complete.
// Errors: GPUMEM_ERROR_DOUBLE_FREE when it has been freed, as far as the last 1024 frees tell;
// GPUMEM_ERROR_UNKNOWN_POINTER for every other pointer that is not the start of such memory.
// Nothing is freed then.
gpumem_status gpumem_host_free(void *ptr);

// Allocates pinned memory in as few pieces as possible: whole blocks, the last one cut to size.
//
// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST, which with a reservation
// stands for that one's node. r is a reservation of the node's space to draw from, whatever is
// attached to the thread, or NULL. out receives a handle, which the caller owns until
// gpumem_host_blocks_free. Each piece starts at a multiple of 4096, and all but the last are whole
// blocks. Half a block or less is one piece, a part of a block. When too little is free this pins
// more, or waits for a thread that does.
// Errors: as gpumem_host_malloc, except that free memory in pieces is no error;
// GPUMEM_ERROR_INVALID when there is no such reservation, or it is one of another space.
gpumem_status gpumem_host_blocks_malloc(size_t bytes, int32_t node, gpumem_reservation r, gpumem_host_blocks *out);

// How many pieces there are.
//
// Errors: GPUMEM_ERROR_INVALID when out is NULL, or there is no such memory.
gpumem_status gpumem_host_blocks_count_get(gpumem_host_blocks blocks, size_t *out);

// A piece of memory, the first of which is 0. Their bytes add up to what was asked for.
//
// ptr_out receives where it starts, bytes_out how long it is; either may be NULL. They do not
// change until the memory is freed.
// Errors: GPUMEM_ERROR_INVALID when there is no such piece or memory.
gpumem_status gpumem_host_blocks_get(gpumem_host_blocks blocks, size_t i, void **ptr_out, size_t *bytes_out);

// Frees memory in pieces, on any thread. Calls no driver and waits for nothing.
//
// blocks may be NULL, which does nothing. Copies to and from the memory must be complete. The
// handle is stale afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such memory, or it has been freed.
gpumem_status gpumem_host_blocks_free(gpumem_host_blocks blocks);

// Pins memory of a node until bytes of its blocks are free, so that allocations do not wait for
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

/* gpumem/space.h: spaces, and what happens when one is full.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_SPACE_H
#define GPUMEM_SPACE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Spaces ------------------------------------------------------------------------------------
 *
 * A space is a place where memory can be: a device's memory, the pinned memory of a NUMA node of
 * the host, or the files under a mount. Its tier names the kind. Its id names one of that kind:
 * the number of a device or of a node; for a mount its position in GPUMEM_DISK, or the id that
 * gpumem_space_disk_add returned. Every byte of a space is counted:
 *
 *   used        live allocations
 *   promised    the sizes of live reservations (reserve.h)
 *   unreserved  live allocations that are not drawn from a reservation
 *   committed   promised + unreserved: at most the limit, unless a policy allowed more, the limit
 *               was lowered, or more was live when counting began
 *
 * Counting begins with the first call about spaces or reservations; with GPUMEM_TIERS=on it begins
 * with the first allocation. It needs the pool: with GPUMEM_POOL=off these calls return
 * GPUMEM_ERROR_UNSUPPORTED. The limit of a device's space applies to what is in use. It starts at
 * GPUMEM_LIMIT, which applies to what the pool maps, or at more if gpumem_device_limit_set has
 * raised that; from then on each has its own call.
 *
 * Every function here returns GPUMEM_ERROR_INVALID when there is no such space.
 */

// The memory of devices.
#define GPUMEM_TIER_GPU 1

// Pinned memory of the host.
#define GPUMEM_TIER_HOST 2

// Files.
#define GPUMEM_TIER_DISK 3

// Names a space: { GPUMEM_TIER_GPU, 0 } is the memory of device 0.
typedef struct gpumem_space {
    // GPUMEM_TIER_*; 0 where no space is allowed.
    int32_t tier;
    // The space's number within its tier.
    uint32_t id;
} gpumem_space;

// The counters of one space. Bytes unless a field says otherwise.
typedef struct gpumem_space_stats {
    // sizeof(gpumem_space_stats), set by the caller; on return, the bytes filled.
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
    // The use at which data should start to move out: the trigger's share of the limit, in bytes.
    uint64_t trigger;
    // The use at which moving out stops: the stop's share of the limit, in bytes.
    uint64_t stop;
    // How much has to move out before moving stops; 0 when nothing has to.
    uint64_t amount_to_downgrade;
    // Live reservations, a count.
    uint64_t reservations;
    // Requests that wait for this space, alone or among other spaces, a count.
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

// Gets what the live allocations of a stream use in a space.
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

// Gets the reservation that the calling thread's allocations on a stream draw from in a space: the
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
 * An allocation overdraws when it does not fit the reservation that it draws from. A policy says
 * what happens then. A function of the program's can decide it, and also what happens when there
 * is no memory for an allocation.
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

// With GPUMEM_POLICY_INCREASE: the reservation may grow above the space's limit by what the
// allocation needs, up to the space's capacity.
#define GPUMEM_POLICY_BEYOND_LIMIT 1

// Returned by an overdraw callback: the allocation fails. Any number without a meaning does the
// same.
#define GPUMEM_OVERDRAW_FAIL 0

// Returned by an overdraw callback: proceed as GPUMEM_POLICY_IGNORE does.
#define GPUMEM_OVERDRAW_IGNORE -1

// Returned by an overdraw callback: try again; something was freed.
#define GPUMEM_OVERDRAW_RETRY -2

// What an overdraw callback receives.
typedef struct gpumem_overdraw {
    // The bytes that the library filled. Fields beyond them do not exist.
    uint32_t size;
    // How often the callback has been called for this try of the allocation, from 1. When an
    // out-of-memory callback has the allocation tried again, the count restarts at 1.
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
// again. It fails if the space has less. The growth stays, even if there is no memory then.
typedef int64_t (*gpumem_overdraw_callback)(const struct gpumem_overdraw *what, void *user);

// Called when user is no longer used.
typedef void (*gpumem_free_user)(void *user);

// What happens to an allocation that overdraws. A field that is 0 means its default.
typedef struct gpumem_reserve_policy {
    // sizeof(gpumem_reserve_policy).
    uint32_t size;
    // GPUMEM_POLICY_*.
    int32_t kind;
    // With GPUMEM_POLICY_INCREASE: the factor to grow by, from 1 to 1000; the default is 1.25.
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

// What an out-of-memory callback receives.
typedef struct gpumem_shortage {
    // The bytes that the library filled. Fields beyond them do not exist.
    uint32_t size;
    // How often the allocation has failed, from 1.
    uint32_t attempt;
    // The space that has no memory for it.
    gpumem_space space;
    // What the allocation needs, bytes.
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
// callback may be NULL, which leaves the decision to the space's callback. user and free_user may
// be NULL.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or user is given and no
// callback.
gpumem_status gpumem_reservation_out_of_memory_set(gpumem_reservation r,
                                                   gpumem_out_of_memory_callback callback,
                                                   void *user,
                                                   gpumem_free_user free_user);

// Sets what happens to an allocation in a space that finds no memory, unless its reservation has a
// callback.
//
// In a disk's space the allocation is a file that a move is to write: callback is called when the
// space's limit forbids it, even where another disk has room, but not when the file system is
// full. It is called on the thread that moves, which may be gpumem's own.
//
// In a host space, callback is called for memory that the program asks for, and for data that is
// to move there. It is never called for the buffers that a move to or from a file copies through:
// ordinary memory takes their place. They are drawn from no reservation either.
//
// callback may be NULL, the default: the allocation then fails. user and free_user may be NULL.
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

// Ends every wait that uses this token, under way or later, with GPUMEM_ERROR_CANCELLED.
//
// A request is either granted or cancelled. A later one is refused even if it would not have to
// wait.
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

#ifdef __cplusplus
}
#endif

#endif

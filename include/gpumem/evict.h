/* gpumem/evict.h: moving memory out of the device and back.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_EVICT_H
#define GPUMEM_EVICT_H

#include "core.h"
#include "space.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Moving memory out of the device and back --------------------------------------------------
 *
 * Memory allocated with GPUMEM_MALLOC_EVICTABLE can leave its device and come back at the same
 * addresses: to pinned memory of the host, to a file of a disk (GPUMEM_DISK), or from one to the
 * other. Meanwhile its device memory is free for other uses. Each such allocation has whole pages
 * of its own (2 MiB on most devices). It belongs to no arena and lives, wherever it is, until it
 * is freed.
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
 *   gpumem_hold(w);                                     (there until unheld; restored if need be)
 *   kernel<<<.., stream>>>(w);
 *   gpumem_unhold(w, stream);                           (may go when the stream has come this far)
 *
 * By itself  gpumem moves allocations out, oldest use first, if they have been unheld at least
 *            once and are not held now. It does so when an allocation, a reservation, a hold or a
 *            restore finds no memory, and from a thread of its own when a space is too full
 *            (GPUMEM_DOWNGRADE, GPUMEM_MOVER). So hold an allocation before each use. One that was
 *            never unheld moves only by the functions below.
 * Streams    A move out waits on the device for the work that uses the memory: what was submitted
 *            so far to the streams named in gpumem_unhold, in gpumem_record_stream and in the
 *            move's options. If neither an unhold nor the move names a stream, it waits for the
 *            stream of the allocation and those it was recorded on; if it was recorded on none,
 *            for the whole device. Other streams go on meanwhile.
 * Faults     Bytes leave a place only when they are whole in another. A move that fails or is
 *            cancelled leaves them where they were. Device code that uses memory that is not there
 *            faults.
 * Files      End with the process: its exit removes them. The next process that uses the directory
 *            removes what a killed one left.
 * Threads    Any thread may call any of these; of two that want the same allocation, one waits for
 *            the other. Inside a callback of a move or a hold (progress, out of memory) nothing
 *            waits for what is being moved: a call that would have to wait returns
 *            GPUMEM_ERROR_INVALID.
 * No pool    With GPUMEM_POOL=off each of these is GPUMEM_ERROR_UNSUPPORTED.
 */

// Uses gpumem_move_options.stream: all use of the memory so far has been submitted to it, or is
// ordered before it.
#define GPUMEM_MOVE_ON_STREAM 1

// Moves to exactly the space in gpumem_move_options.space.
#define GPUMEM_MOVE_TO_SPACE 2

// Called on the thread that moves, with the bytes moved so far and in total. A result other than 0
// cancels the move.
typedef int32_t (*gpumem_progress)(uint64_t done, uint64_t total, void *user);

// How to move. A field that is 0 means its default.
typedef struct gpumem_move_options {
    // sizeof(gpumem_move_options).
    uint32_t size;
    // GPUMEM_MOVE_*, or-ed together.
    uint32_t flags;
    // The destination: any space of this tier, or exactly this space with GPUMEM_MOVE_TO_SPACE,
    // without which the id must be 0. Zeros mean, when evicting, the nearest space of a lower tier
    // that has room; when restoring, the device.
    gpumem_space space;
    // The stream, with GPUMEM_MOVE_ON_STREAM; must be NULL without that flag.
    gpumem_stream stream;
    // Called now and then during the move; may be NULL. It must return: no longjmp, no C++
    // exception.
    gpumem_progress progress;
    // Passed to progress, and not used after the move.
    void *user;
} gpumem_move_options;

// What a move did.
typedef struct gpumem_move_report {
    // sizeof(gpumem_move_report), set by the caller; on return, the bytes filled.
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Allocations moved, a count.
    uint64_t moved;
    // Bytes of the moved allocations, as asked for.
    uint64_t moved_bytes;
    // Allocations that were there already, or beyond, a count.
    uint64_t already;
} gpumem_move_report;

// Where an evictable allocation is.
typedef struct gpumem_location {
    // sizeof(gpumem_location), set by the caller; on return, the bytes filled.
    uint32_t size;
    // The space that holds its bytes; its tier is 0 while a call moves it or is about to.
    gpumem_space space;
    // How often it is held.
    uint32_t holds;
    // Bytes asked for.
    uint64_t bytes;
    // Device memory that it occupies while on the device, bytes.
    uint64_t device_bytes;
} gpumem_location;

// Keeps an evictable allocation in its device's memory until gpumem_unhold has been called as
// often. Restores it first if it is elsewhere.
//
// ptr is the start of an allocation made with GPUMEM_MALLOC_EVICTABLE. Waits for the bytes: work
// submitted to any stream after this returns may use the memory. Allocations that are not held may
// move out to make room.
// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and none can be made,
// GPUMEM_ERROR_CAPTURING when what would make room is used by a stream that is being captured,
// GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER,
// GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_IO and GPUMEM_ERROR_CORRUPT of its file. On failure the
// allocation stays where it was, and is not held.
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
// away from the device, including from the host to a disk when opts->space names one. An
// allocation that is as far away as asked, or farther, stays and counts as already there. A move
// within a tier (disk to disk, node to node) is neither nearer nor farther: both functions do it,
// with GPUMEM_MOVE_TO_SPACE.
// Errors: GPUMEM_ERROR_INVALID when it is held or not evictable, or the options are not allowed;
// GPUMEM_ERROR_INVALID_STREAM; GPUMEM_ERROR_OUT_OF_MEMORY when no lower space has room,
// GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_IO,
// GPUMEM_ERROR_CORRUPT of a file that it moves from, GPUMEM_ERROR_UNKNOWN_POINTER, also when it is
// freed meanwhile. On failure it stays where it was.
gpumem_status gpumem_evict(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves an evictable allocation back to its device, to the addresses it has, and returns when its
// bytes are there.
//
// Like gpumem_evict, but only ever nearer to the device: with opts->space.tier GPUMEM_TIER_HOST,
// from a disk to the host. An allocation that is as near as asked, or nearer, stays and counts as
// already there. Work submitted to any stream after this returns may use the memory. But unless it
// is held, or was never unheld, it may leave again at once.
// Errors: as gpumem_evict and gpumem_hold.
gpumem_status gpumem_restore(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves all evictable allocations with a tag out of their devices.
//
// Like gpumem_evict for each of them. When one of them is held, none moves. After any other error,
// as many as the error text counts have moved, and the others are where they were.
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

#ifdef __cplusplus
}
#endif

#endif

/* gpumem/core.h: statuses, malloc and free.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_CORE_H
#define GPUMEM_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* A cudaStream_t or CUstream: the same type, declared without CUDA's headers. */
typedef struct CUstream_st *gpumem_stream;

/* A handle to an arena: see arena.h. It is opaque: compare it only with NULL and other handles. */
typedef struct gpumem_arena_st *gpumem_arena;

/* A handle to a reservation: see reserve.h. It is opaque: compare it only with NULL and other
 * handles. */
typedef struct gpumem_reservation_st *gpumem_reservation;

/* Casts that neither language warns about, for the macros below. */
#ifdef __cplusplus
#define GPUMEM_CAST(type, value) static_cast<type>(value)
#define GPUMEM_STREAM_NUMBER(number) reinterpret_cast<gpumem_stream>(GPUMEM_CAST(uintptr_t, number))
#else
#define GPUMEM_CAST(type, value) ((type)(value))
#define GPUMEM_STREAM_NUMBER(number) ((gpumem_stream)(number))
#endif

/* The legacy default stream of the current device, CUDA's cudaStreamLegacy; NULL means the same. */
#define GPUMEM_STREAM_LEGACY GPUMEM_STREAM_NUMBER(1)
/* The default stream of the calling thread, CUDA's cudaStreamPerThread. */
#define GPUMEM_STREAM_PER_THREAD GPUMEM_STREAM_NUMBER(2)
/* What CUDA means by stream 0 in this file: the thread's own stream where it is compiled with
 * CUDA_API_PER_THREAD_DEFAULT_STREAM (nvcc --default-stream per-thread), else the legacy one. The
 * functions cannot know how their caller was compiled: NULL is the legacy stream to them, so pass
 * this where you would pass 0 to CUDA. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define GPUMEM_STREAM_DEFAULT GPUMEM_STREAM_PER_THREAD
#elif defined(__cplusplus)
#define GPUMEM_STREAM_DEFAULT GPUMEM_CAST(gpumem_stream, nullptr)
#else
#define GPUMEM_STREAM_DEFAULT GPUMEM_STREAM_NUMBER(0)
#endif

/* Zeroes a structure of this header and sets its size: gpumem_stats stats; GPUMEM_INIT(&stats); The
 * argument is evaluated once. The size is the first field of every structure. */
#define GPUMEM_INIT(structure) \
    GPUMEM_CAST(void, *GPUMEM_CAST(uint32_t *, memset((structure), 0, sizeof *(structure))) = \
        GPUMEM_CAST(uint32_t, sizeof *(structure) + 0 * sizeof (structure)->size))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ------------------------------------------------------------------------------------
 *
 * A function that can fail returns a gpumem_status. Where its type leaves no room for one, it
 * returns NULL or 0, and gpumem_last_status has the status. Each thread keeps the text of its last
 * failure: what was asked, what there was, and, where that is not plain, what to do next. Success
 * does not clear it.
 */

// The outcome of a call: GPUMEM_OK or one of GPUMEM_ERROR_*. Numbers are never reused; expect new
// ones.
typedef int32_t gpumem_status;

// Success.
#define GPUMEM_OK 0

// An argument, option or combination of flags is not allowed.
#define GPUMEM_ERROR_INVALID 1

// The request does not fit the device, the configured limit or the address space.
#define GPUMEM_ERROR_OUT_OF_MEMORY 2

// The pointer was never handed out, or points into the middle of an allocation.
#define GPUMEM_ERROR_UNKNOWN_POINTER 3

// The pointer was handed out and has been freed already. Once its memory has merged with other
// free memory, gpumem cannot recognise it and returns GPUMEM_ERROR_UNKNOWN_POINTER.
#define GPUMEM_ERROR_DOUBLE_FREE 4

// A driver call failed; the text names the call and the driver's error.
#define GPUMEM_ERROR_DRIVER 5

// There is no usable driver or device.
#define GPUMEM_ERROR_NO_DEVICE 6

// This driver, device or build cannot do what was asked.
#define GPUMEM_ERROR_UNSUPPORTED 7

// An environment variable or context option does not parse, or names a missing directory.
#define GPUMEM_ERROR_CONFIG 8

// The process was forked after gpumem had started; children must not use it.
#define GPUMEM_ERROR_FORKED 9

// A bug in gpumem: an internal check failed or a panic was caught.
#define GPUMEM_ERROR_INTERNAL 10

// The driver is shutting down, or the stream pool or all waits for reservations were closed.
#define GPUMEM_ERROR_SHUTTING_DOWN 11

// Not legal while a stream capture is in progress.
#define GPUMEM_ERROR_CAPTURING 12

// The handle is not a stream, or no longer one. Only the host device can tell; CUDA crashes.
#define GPUMEM_ERROR_INVALID_STREAM 13

// Freed memory was used or written to. gpumem_check and its relatives return this, and with
// GPUMEM_ARENA_DEBUG=unmap copies and fills do too.
#define GPUMEM_ERROR_USE_AFTER_FREE 14

// A wait ended at its timeout, before there was room.
#define GPUMEM_ERROR_TIMED_OUT 15

// A wait or a move was cancelled.
#define GPUMEM_ERROR_CANCELLED 16

// A file could not be read or written; the text names the file and the system's error.
#define GPUMEM_ERROR_IO 17

// Data in the disk tier is not what was written there: truncated, or altered.
#define GPUMEM_ERROR_CORRUPT 18

// The name of a status, such as "GPUMEM_ERROR_INVALID".
//
// Never NULL: an unknown number gives "GPUMEM_ERROR_?". The string is static. Needs no device,
// cannot fail.
const char *gpumem_status_name(gpumem_status status);

// The status of this thread's last failed call, GPUMEM_OK when none has failed.
//
// For functions that return NULL or 0 on failure. Needs no device, cannot fail.
gpumem_status gpumem_last_status(void);

// Copies the text of this thread's last failed call, cut to fit and always terminated.
//
// buf may be NULL when cap is 0; cap is in bytes. Returns the length of the whole text in bytes
// without its NUL (0 when nothing has failed), so a return value of cap or more means that it was
// cut. Texts are UTF-8, at most 1000 bytes, and for people: compare statuses, not texts. Needs no
// device, cannot fail.
size_t gpumem_last_error(char *buf, size_t cap);

/* ---- Allocating and freeing --------------------------------------------------------------------
 *
 * Memory is ordered on a stream: it may be used by work submitted to that stream after the
 * allocation, and by other streams once they wait for that point. A free is ordered too: it takes
 * effect after the work submitted before it, so nobody waits on the host. Addresses are device
 * addresses: do not dereference them on the host.
 */

// Allocates on the current device, in the order of its legacy default stream.
//
// bytes may be 0: the result is a unique pointer that must be freed. Aligned to 256 bytes, not
// cleared. Returns the memory, which the caller owns until a free, or NULL on failure;
// gpumem_last_status says why: GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_DRIVER. A stream that does
// not synchronise with the default stream must wait for it before using the memory; for such
// streams use gpumem_malloc_async.
void *gpumem_malloc(size_t bytes);

// Frees, in the order of the stream the memory was allocated on.
//
// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have
// been submitted to the stream it was allocated on, or ordered before it, or announced by
// gpumem_record_stream; otherwise use gpumem_free_async. Never blocks on the device. A pointer
// that is unknown, interior or already freed changes nothing: gpumem_stats counts it, this
// thread's last error becomes GPUMEM_ERROR_UNKNOWN_POINTER or GPUMEM_ERROR_DOUBLE_FREE, and a line
// goes to stderr (rate-limited; GPUMEM_LOG=0 turns it off). In a forked child and at exit this
// does nothing.
void gpumem_free(void *ptr);

// Allocates in the order of a stream, on the stream's device.
//
// bytes may be 0: the result is a unique pointer that must be freed. s is a live stream or NULL.
// Aligned to 256 bytes, not cleared. out receives the memory, which the caller owns until a free.
// Work submitted to s from now on may use it. Does not wait for the device unless memory is short
// (GPUMEM_REUSE).
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_OUT_OF_MEMORY,
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_malloc_async(size_t bytes, gpumem_stream s, void **out);

// Frees in the order of a stream: the memory is reused once the work submitted to s before this
// call is done.
//
// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have
// been submitted to s, or ordered before it, or announced by gpumem_record_stream; s need not be
// the stream it was allocated on. The allocation itself counts as a use: its previous owner's work
// may still be using memory that you have not touched. s may be of another device than the memory;
// NULL is the current device's, whatever device the memory is on. While the process exits and the
// driver is gone, this returns GPUMEM_OK and does nothing.
// Errors: GPUMEM_ERROR_UNKNOWN_POINTER (also for an interior pointer), GPUMEM_ERROR_DOUBLE_FREE,
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING when s is of another device and is being
// captured, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_FORKED; nothing is freed then.
gpumem_status gpumem_free_async(void *ptr, gpumem_stream s);

// Changes the size of an allocation, keeping its contents up to the smaller of gpumem_usable_size
// and bytes.
//
// ptr is the start of an allocation; NULL allocates. bytes may be 0, which leaves a unique pointer
// that must be freed. Grows in place by mapping where it can, otherwise moves by a copy in the
// order of s, on which all use of the old memory must be ordered. out receives the memory, which
// may be at the same address; then ptr is no longer the caller's. On failure ptr is unchanged and
// still the caller's. The memory stays on its device. s may be of another one; the memory then
// counts as allocated on a stream of gpumem's own, so free it with gpumem_free_async, or announce
// s with gpumem_record_stream. While s is being captured, do not resize what was allocated before
// the capture: the graph would read its old memory at every launch, whoever has it by then.
// Errors: those of gpumem_malloc_async and gpumem_free_async; GPUMEM_ERROR_UNSUPPORTED for memory
// made with GPUMEM_MALLOC_EVICTABLE, and for imported memory.
gpumem_status gpumem_realloc_async(void *ptr, size_t bytes, gpumem_stream s, void **out);

// Announces that an allocation is also used on s: after it is freed, reuse waits for the work
// submitted to s too.
//
// ptr is the start of an allocation. s must stay alive until the free. Call it after submitting to
// s, or at any time before the free; once per stream is enough. s may be of another device than
// the memory.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER,
// GPUMEM_ERROR_DOUBLE_FREE when it was freed, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_CAPTURING
// when s is of another device and is being captured, GPUMEM_ERROR_DRIVER, GPUMEM_ERROR_UNSUPPORTED
// with GPUMEM_POOL=off.
gpumem_status gpumem_record_stream(void *ptr, gpumem_stream s);

// Returns how many bytes are usable from ptr, the start of an allocation: at least those asked
// for.
//
// 0 for NULL. 0 also for a pointer that is not the start of a live allocation; then
// gpumem_last_status has GPUMEM_ERROR_UNKNOWN_POINTER, or GPUMEM_ERROR_DOUBLE_FREE when it was
// freed.
size_t gpumem_usable_size(const void *ptr);

// Gives free physical memory back to the device until no more than keep_bytes stay mapped on each
// device that is in use. Live memory stays. 0 gives back all that is free.
//
// Memory that submitted work may still use stays mapped; synchronise first to get all of it back.
// Do not call it while a stream is being captured: it can invalidate the capture.
// Errors: GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_trim(size_t keep_bytes);

/* ---- Version -----------------------------------------------------------------------------------
 *
 * The macros give the version a program was compiled against, the functions the one it runs with.
 */

// Raised when programs must be changed.
#define GPUMEM_VERSION_MAJOR 0

// Raised when something is added.
#define GPUMEM_VERSION_MINOR 1

// Raised when something is fixed.
#define GPUMEM_VERSION_PATCH 0

// The library's version as major * 10000 + minor * 100 + patch. Needs no device, cannot fail.
uint32_t gpumem_version(void);

// The library's version as text, such as "0.1.0". Static, never NULL. Needs no device, cannot
// fail.
const char *gpumem_version_string(void);

#ifdef __cplusplus
}
#endif

#endif

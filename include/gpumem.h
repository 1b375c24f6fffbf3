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

/* ---- Errors --------------------------------------------------------------------------------------------------------
 *
 * Every function that can fail says so with a gpumem_status, or by returning NULL or 0 where its type leaves no room
 * for one; then gpumem_last_status has the status. The text behind a failure is kept per thread: what was asked, what
 * there was, and what to do next. Success does not clear it.
 */

// The outcome of a call: GPUMEM_OK or one of GPUMEM_ERROR_*. Numbers are never reused; expect new ones.
typedef int32_t gpumem_status;

// Success.
#define GPUMEM_OK 0

// An argument, option or combination of flags is not allowed.
#define GPUMEM_ERROR_INVALID 1

// The request does not fit the device, the configured limit or the address space.
#define GPUMEM_ERROR_OUT_OF_MEMORY 2

// The pointer was never handed out, or points into the middle of an allocation.
#define GPUMEM_ERROR_UNKNOWN_POINTER 3

// The pointer was handed out and has been freed already. Once its memory has merged with other free memory there is
// nothing left to tell it by, and it is GPUMEM_ERROR_UNKNOWN_POINTER.
#define GPUMEM_ERROR_DOUBLE_FREE 4

// A driver call failed; the text names the call and the driver's error.
#define GPUMEM_ERROR_DRIVER 5

// There is no usable driver or device.
#define GPUMEM_ERROR_NO_DEVICE 6

// This driver, device or build cannot do what was asked.
#define GPUMEM_ERROR_UNSUPPORTED 7

// An environment variable or context option does not parse.
#define GPUMEM_ERROR_CONFIG 8

// The process was forked after gpumem had started; children must not use it.
#define GPUMEM_ERROR_FORKED 9

// A bug in gpumem: an internal check failed or a panic was caught.
#define GPUMEM_ERROR_INTERNAL 10

// The driver is shutting down; nothing can be done any more.
#define GPUMEM_ERROR_SHUTTING_DOWN 11

// Not legal while a stream capture is in progress.
#define GPUMEM_ERROR_CAPTURING 12

// The handle is not, or no longer, a stream. Only the host device can tell; CUDA crashes.
#define GPUMEM_ERROR_INVALID_STREAM 13

// Memory is used, or was written to, that had been freed. gpumem_check and its like say so, and with
// GPUMEM_ARENA_DEBUG=unmap copies and fills too.
#define GPUMEM_ERROR_USE_AFTER_FREE 14

// A wait ended at its timeout, before there was room.
#define GPUMEM_ERROR_TIMED_OUT 15

// A wait was cancelled, before there was room.
#define GPUMEM_ERROR_CANCELLED 16

// A file of the disk tier could not be read or written; the text names the call, the file and the system's error.
#define GPUMEM_ERROR_IO 17

// Data in the disk tier is not what was written there: truncated, or altered.
#define GPUMEM_ERROR_CORRUPT 18

// The name of a status, such as "GPUMEM_ERROR_INVALID".
//
// Never NULL: a number that is no status gives "GPUMEM_ERROR_?". The string is static. Needs no device, cannot fail.
const char *gpumem_status_name(gpumem_status status);

// The status of this thread's last failed call, GPUMEM_OK when none has failed.
//
// For functions that return NULL or 0 on failure. Needs no device, cannot fail.
gpumem_status gpumem_last_status(void);

// Copies the text of this thread's last failed call, cut to fit and always terminated.
//
// buf may be NULL when cap is 0; cap is in bytes. Returns the length of the whole text in bytes without its NUL
// (0 when nothing has failed), so a return value of cap or more means that it was cut. Texts are UTF-8, at most 1000
// bytes, and for people: compare statuses, not texts. Needs no device, cannot fail.
size_t gpumem_last_error(char *buf, size_t cap);

/* ---- Version -------------------------------------------------------------------------------------------------------
 *
 * The macros are what a program was compiled against, the functions what it runs with.
 */

// Changes when programs must be changed.
#define GPUMEM_VERSION_MAJOR 0

// Changes when something is added.
#define GPUMEM_VERSION_MINOR 1

// Changes when something is repaired.
#define GPUMEM_VERSION_PATCH 0

// The library's version as major * 10000 + minor * 100 + patch. Needs no device, cannot fail.
uint32_t gpumem_version(void);

// The library's version as text, such as "0.1.0". Static, never NULL. Needs no device, cannot fail.
const char *gpumem_version_string(void);

/* ---- Starting ------------------------------------------------------------------------------------------------------
 *
 * Nothing happens when the library loads. The first call that needs a device starts gpumem with the settings of the
 * environment: GPUMEM_BACKEND, GPUMEM_VA_SIZE, GPUMEM_PAGE_SIZE, GPUMEM_PREALLOC, GPUMEM_LIMIT, GPUMEM_REUSE,
 * GPUMEM_TRIM_THRESHOLD, GPUMEM_TRIM_INTERVAL, GPUMEM_STREAM_CHECK, GPUMEM_ARENA_DEBUG, GPUMEM_ARENA_QUARANTINE,
 * GPUMEM_CAPTURE, GPUMEM_TIERS, GPUMEM_PINNED_BLOCKS, GPUMEM_PINNED_LIMIT, GPUMEM_DISK, GPUMEM_DOWNGRADE, GPUMEM_MOVER,
 * GPUMEM_LOG, GPUMEM_POOL, and for the host device GPUMEM_HOST_DEVICES, GPUMEM_HOST_BYTES and GPUMEM_HOST_SEED. Or with
 * those of gpumem_init, which come before the environment's. A variable that does not parse is GPUMEM_ERROR_CONFIG from that
 * call and from every later one until it is mended; so is a driver that fails to start GPUMEM_ERROR_DRIVER or
 * GPUMEM_ERROR_NO_DEVICE. There is nothing to shut down: at exit the memory goes with the process.
 */

// CUDA when a driver and a device exist, else the host device, with one line on stderr.
#define GPUMEM_BACKEND_AUTO 1

// CUDA or an error.
#define GPUMEM_BACKEND_CUDA 2

// A device made of ordinary memory that enforces CUDA's rules, for machines without a GPU.
#define GPUMEM_BACKEND_HOST 3

// Memory freed on one stream is given to another when the device has passed the free.
#define GPUMEM_REUSE_SETTLED 1

// As a last resort also earlier, by making the other stream wait on the device.
#define GPUMEM_REUSE_WAIT 2

// Nothing on stderr.
#define GPUMEM_LOG_NOTHING 1

// Warnings on stderr.
#define GPUMEM_LOG_WARNINGS 2

// Warnings and slow-path decisions on stderr.
#define GPUMEM_LOG_DECISIONS 3

// Every request goes to the pool.
#define GPUMEM_POOL_ON 1

// Every request goes straight to the driver's own allocator, for comparison.
#define GPUMEM_POOL_OFF 2

// By looking where the driver keeps it, if that was found out at start, else by asking: the default.
#define GPUMEM_STREAM_CHECK_AUTO 1

// By asking the driver on every allocation, two calls.
#define GPUMEM_STREAM_CHECK_DRIVER 2

// Nothing is done to find uses of memory after the arena that it belonged to has ended: the default.
#define GPUMEM_ARENA_DEBUG_OFF 1

// What arenas free is remembered, for gpumem_check. The following imply it.
#define GPUMEM_ARENA_DEBUG_CHECK 2

// The process is aborted at the first such use found.
#define GPUMEM_ARENA_DEBUG_ABORT 4

// What arenas free is filled, kept for a while, and checked for writes. Not with GPUMEM_ARENA_DEBUG_UNMAP.
#define GPUMEM_ARENA_DEBUG_POISON 8

// What arenas free is unmapped, and its addresses are kept for a while, so that any use faults.
#define GPUMEM_ARENA_DEBUG_UNMAP 16

// Only captures that are begun with gpumem_capture_begin get memory of their own: the default.
#define GPUMEM_CAPTURE_DETECTION_OFF 1

// Every stream that is being captured does.
#define GPUMEM_CAPTURE_DETECTION_AUTO 2

// Allocations count in their space from the first call about spaces or reservations on: the default.
#define GPUMEM_TIERS_OFF 1

// They do from the first on.
#define GPUMEM_TIERS_ON 2

// Memory is moved out only when it is asked for, or when there is none for something else.
#define GPUMEM_MOVER_OFF 1

// A thread moves out of spaces that are too full, once there is evictable memory: the default.
#define GPUMEM_MOVER_ON 2

// For gpumem_context_options.pinned_chunks: nothing is pinned ahead of the first need.
#define GPUMEM_PINNED_CHUNKS_NONE UINT32_MAX

// Settings for gpumem_init. A field that is 0 leaves what the environment says, and where that is silent the default.
typedef struct gpumem_context_options {
    // sizeof(gpumem_context_options).
    uint32_t size;
    // GPUMEM_BACKEND_*.
    int32_t backend;
    // GPUMEM_REUSE_*: how memory freed on another stream is reused.
    int32_t reuse;
    // GPUMEM_LOG_*.
    int32_t log;
    // GPUMEM_POOL_*.
    int32_t pool;
    // Memory mapped when a pool starts, as a share of what is then free, 1 to 100. Not with prealloc_bytes.
    uint32_t prealloc_percent;
    // Memory mapped when a pool starts, bytes. Not with prealloc_percent.
    uint64_t prealloc_bytes;
    // Addresses reserved at a time per device, bytes, a multiple of 2 MiB up to 64 TiB.
    uint64_t va_size;
    // Smallest physical allocation, bytes, a power of two up to 1 GiB; at least the device's granularity is used.
    uint64_t page_size;
    // Most bytes a pool may map on one device. Not with limit_percent.
    uint64_t limit_bytes;
    // After a free that leaves more unused mapped bytes than this, memory goes back to the device.
    uint64_t trim_threshold;
    // Host device only: memory of each pretended device, bytes. Only pages that are touched cost anything.
    uint64_t host_bytes;
    // Host device only: chooses the order in which its streams run; the same seed gives the same order.
    uint64_t host_seed;
    // Host device only: how many devices to pretend.
    uint32_t host_devices;
    // Most memory a pool may map on one device, as a share of the device's, 1 to 100. Not with limit_bytes.
    uint32_t limit_percent;
    // Every so many milliseconds a thread of gpumem's gives free memory back that has been unused for as long, on every
    // device in use, but for trim_threshold bytes of it. 0: no such thread. It records a marker on the device while it
    // has something to give back, but not while a stream is being captured on which gpumem was called; a capture on
    // streams that gpumem has not met would be lost to it.
    uint64_t trim_interval_ms;
    // GPUMEM_STREAM_CHECK_*: how to find out which stream a handle is, and whether it is being captured.
    int32_t stream_check;
    // GPUMEM_ARENA_DEBUG_*, or-ed together: how to find uses of memory after the arena that it belonged to has ended.
    uint32_t arena_debug;
    // How much of what arenas have freed is kept for that: bytes of memory with GPUMEM_ARENA_DEBUG_POISON, of addresses
    // with GPUMEM_ARENA_DEBUG_UNMAP.
    uint64_t arena_quarantine;
    // GPUMEM_CAPTURE_DETECTION_*: whether a stream that is being captured gets memory of its own by itself.
    int32_t capture_detection;
    // GPUMEM_TIERS_*: from when on allocations count in their space.
    int32_t tiers;
    // GPUMEM_MOVER_*: whether a thread moves out of spaces that are too full.
    int32_t mover;
    // Most pinned memory of a NUMA node, as a share of the node's, 1 to 100. Not with pinned_limit_bytes.
    uint32_t pinned_limit_percent;
    // Most pinned memory of a NUMA node, bytes. Not with pinned_limit_percent.
    uint64_t pinned_limit_bytes;
    // A block of pinned memory, bytes, a power of two from 4 KiB to 1 GiB.
    uint64_t pinned_block_bytes;
    // How many blocks are pinned at a time, a chunk: 1 to 1048576.
    uint32_t pinned_blocks;
    // How many chunks are pinned at first need, up to 1048576, or GPUMEM_PINNED_CHUNKS_NONE.
    uint32_t pinned_chunks;
    // Directories to move to, in place of those of GPUMEM_DISK and written as there: absolute, with ; between, each with
    // = and a size if it has a limit, such as "/scratch=200G;/mnt/nvme". NULL: those of GPUMEM_DISK.
    const char *disk;
    // From which use on data is moved out of a space, as a part of its limit, above 0 up to 1. 0: this and downgrade_stop
    // are GPUMEM_DOWNGRADE's.
    double downgrade_trigger;
    // Down to which use, from 0 to downgrade_trigger. Must be 0 without that.
    double downgrade_stop;
} gpumem_context_options;

// Starts gpumem now, with explicit settings.
//
// opts may be NULL: the environment's settings. They, and what they point to, are read and not kept.
// Errors: GPUMEM_ERROR_INVALID for a field out of range, or when gpumem has started already (by any call that needed
// a device); GPUMEM_ERROR_CONFIG, _DRIVER, _NO_DEVICE, _FORKED. After an error gpumem has not started, and this or
// any other call may start it.
gpumem_status gpumem_init(const struct gpumem_context_options *opts);

// Which kind of device is in use: "cuda" or "host"; "none" when gpumem cannot start, and gpumem_last_error says why.
//
// Starts gpumem if need be. The string is static, never NULL.
const char *gpumem_backend_name(void);

/* ---- Devices -------------------------------------------------------------------------------------------------------
 *
 * The same calls on a GPU and on the host device, so that one source runs on both. Devices are counted from 0 as
 * CUDA counts them. The current device is CUDA's: setting it here or with cudaSetDevice is the same thing.
 */

// Facts about a device.
typedef struct gpumem_device_props {
    // sizeof(gpumem_device_props), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // 1 when virtual memory management works on it; the pool needs it.
    uint32_t vmm;
    // 1 when memory can be exported as a file descriptor (GPUMEM_MALLOC_EXPORTABLE).
    uint32_t posix_fd;
    // 1 when memory can be used for RDMA.
    uint32_t rdma;
    // Compute capability; 0.0 on the host device.
    uint32_t compute_major;
    // Compute capability, the part after the point.
    uint32_t compute_minor;
    // Physical memory, bytes.
    uint64_t total_bytes;
    // Physical memory is created and mapped in multiples of this, bytes.
    uint64_t granularity;
    // Product name, terminated.
    char name[128];
} gpumem_device_props;

// How many devices there are, at least 1.
//
// out receives the count. Errors: GPUMEM_ERROR_INVALID when out is NULL, and what starting can give.
gpumem_status gpumem_device_count(int *out);

// The calling thread's current device.
//
// out receives its number. Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER, and what starting can
// give.
gpumem_status gpumem_device_get(int *out);

// Makes a device the calling thread's current one.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_device_set(int device);

// Waits until everything submitted to the current device is done. Blocks; not legal during a stream capture.
gpumem_status gpumem_device_sync(void);

// Facts about a device.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device, out is NULL or its
// size impossible; GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_device_props_get(int device, struct gpumem_device_props *out);

// A device's memory as the driver sees it, all processes together, bytes.
//
// Either output may be NULL. Legal during a stream capture. Errors: GPUMEM_ERROR_INVALID when there is no such
// device, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_device_mem_info(int device, size_t *free_bytes, size_t *total_bytes);

/* ---- Streams -------------------------------------------------------------------------------------------------------
 *
 * A gpumem_stream is a cudaStream_t or CUstream of the program's; these helpers make some where there is no CUDA
 * runtime to ask. A handle must be a live stream whenever it is passed: the host device answers
 * GPUMEM_ERROR_INVALID_STREAM to a destroyed one, CUDA crashes or takes it for another stream.
 */

// Creates a stream on the current device that does not synchronise with the legacy default stream.
//
// out receives it; the caller owns it and gives it to gpumem_stream_destroy. It is a true CUDA stream.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_stream_create(gpumem_stream *out);

// Destroys a stream. Work already submitted to it still runs, and memory freed on it is still reused in its order.
//
// The handle must not be used afterwards: CUDA gives the same value to the next stream at once. Memory allocated on
// it and not yet freed stays valid; free it with gpumem_free_async on a stream that is ordered after its last use,
// or with gpumem_free, after which its reuse waits for the whole device.
// Reservations attached to it are detached.
// Errors: GPUMEM_ERROR_INVALID for a default stream, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_destroy(gpumem_stream s);

// Waits until everything submitted to a stream is done. Blocks; not legal while it is captured.
//
// Errors: GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_sync(gpumem_stream s);

// Makes later work on one stream wait, on the device, for everything submitted so far to another, on.
//
// Does not block the caller. The streams may belong to different devices. Errors: GPUMEM_ERROR_CAPTURING when either is being captured (use
// CUDA's own events there), GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_wait(gpumem_stream s,
                                 gpumem_stream on);

/* ---- Pools of streams ----------------------------------------------------------------------------------------------
 *
 * A stream pool lends streams of one device, each to one borrower at a time. It makes them when they are first needed, up to its
 * size, and keeps them. Whoever finds none waits in turn, or has one more made.
 *
 * A stream goes back with whatever work it still has; the next borrower's work comes after that. Reservations that are attached
 * to it are detached.
 */

// A wait without an end, where a parameter is a time in milliseconds.
#define GPUMEM_WAIT_FOREVER UINT64_MAX

// What a gpumem_stream_pool seems to point to. There is nothing there.
typedef struct gpumem_stream_pool_st gpumem_stream_pool_st;

// A handle to a stream pool. Compare it with NULL and with others; do not look into it.
typedef struct gpumem_stream_pool_st *gpumem_stream_pool;

// What there is in a stream pool.
typedef struct gpumem_stream_pool_counts {
    // sizeof(gpumem_stream_pool_counts), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // The device that its streams are of.
    int32_t device;
    // Streams there are, or that are just being made.
    uint64_t made;
    // Those that nobody has.
    uint64_t idle;
    // Those that are lent.
    uint64_t borrowed;
    // Calls that wait for one.
    uint64_t waiters;
} gpumem_stream_pool_counts;

// Makes a pool of streams of the current device.
//
// size is how many it makes by itself at most; 0 means 16. None is made yet. out receives the pool; the caller owns it until
// gpumem_stream_pool_close.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_stream_pool_create(size_t size,
                                        gpumem_stream_pool *out);

// Borrows a stream that nobody else has, or waits for one, in turn.
//
// timeout_ms is how long at most, milliseconds; 0 means not at all, GPUMEM_WAIT_FOREVER without an end. out receives the stream,
// which is the caller's until gpumem_stream_pool_return. The caller must not destroy it.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or there is no such pool, GPUMEM_ERROR_OUT_OF_MEMORY when all streams are lent
// and timeout_ms is 0, GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_SHUTTING_DOWN when the pool is closed meanwhile,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_pool_borrow(gpumem_stream_pool pool,
                                        uint64_t timeout_ms,
                                        gpumem_stream *out);

// As gpumem_stream_pool_borrow, but when all streams are lent, one more is made, which stays in the pool.
//
// Does not wait. Errors: those of gpumem_stream_pool_borrow, without those of a wait.
gpumem_status gpumem_stream_pool_borrow_or_grow(gpumem_stream_pool pool, gpumem_stream *out);

// Gives a borrowed stream back, on any thread. Does not wait for its work.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such pool, or it has not lent this stream.
gpumem_status gpumem_stream_pool_return(gpumem_stream_pool pool, gpumem_stream s);

// Closes a pool: it lends no more, and calls that wait get GPUMEM_ERROR_SHUTTING_DOWN.
//
// Streams that nobody has are destroyed now, each of the others when it is returned, and with the last of them the handle is
// stale, at once if there is none. Until then the pool can be asked for its counts, and closed again, which does nothing.
// Errors: GPUMEM_ERROR_INVALID when there is no such pool; GPUMEM_ERROR_DRIVER when a stream could not be destroyed, the pool is
// closed all the same.
gpumem_status gpumem_stream_pool_close(gpumem_stream_pool pool);

// What there is in a pool.
//
// out->size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID when there is no such pool, out is NULL or its size impossible.
gpumem_status gpumem_stream_pool_counts_get(gpumem_stream_pool pool, struct gpumem_stream_pool_counts *out);

/* ---- Allocating and freeing ----------------------------------------------------------------------------------------
 *
 * Memory is ordered on a stream: it may be used by work submitted to that stream after the allocation, and by other
 * streams once they wait for that point. A free is ordered too: it takes effect after the work submitted before it,
 * so nobody waits on the host. Addresses are device addresses: do not dereference them on the host.
 */

// One physical handle, never remapped: for NCCL registration, RDMA and other users of physical memory.
#define GPUMEM_MALLOC_SINGLE_HANDLE 1

// A single handle that gpumem_export_fd can share with another process.
#define GPUMEM_MALLOC_EXPORTABLE 2

// Addresses after the allocation are unmapped, so that overruns fault. For debugging; costs memory.
#define GPUMEM_MALLOC_GUARD 4

// It can be moved out of the device and come back to its addresses: see gpumem_evict. Whole pages; in no arena.
#define GPUMEM_MALLOC_EVICTABLE 8

// The device field counts. Without it the allocation lives on the device its stream belongs to.
#define GPUMEM_MALLOC_ON_DEVICE 65536

// What to allocate, for gpumem_malloc_with. A field that is 0 means its default.
typedef struct gpumem_malloc_options {
    // sizeof(gpumem_malloc_options).
    uint32_t size;
    // GPUMEM_MALLOC_*, or-ed together.
    uint32_t flags;
    // How much, bytes. 0 gives a unique pointer that must be freed.
    size_t bytes;
    // A power of two, bytes; 0 means 256, and less than 256 gives 256.
    size_t alignment;
    // The stream whose order the memory follows; NULL is the legacy default stream.
    gpumem_stream stream;
    // A number of the caller's, shown in dumps and by gpumem_pointer_info_get.
    uint64_t tag;
    // The arena it belongs to, which the calling thread need not be attached to; NULL means the thread's current one,
    // if it has one.
    gpumem_arena arena;
    // The device, with GPUMEM_MALLOC_ON_DEVICE; must be 0 without it.
    int32_t device;
    // Must be 0.
    uint32_t reserved;
    // The reservation that it draws from, of the device's space; NULL means the one attached to the stream or to the thread, if
    // there is one.
    gpumem_reservation reservation;
} gpumem_malloc_options;

// Facts about a live allocation.
typedef struct gpumem_pointer_info {
    // sizeof(gpumem_pointer_info), set by the caller; afterwards the bytes filled.
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
    // A number that no other allocation of this process has had or will have.
    uint64_t id;
    // The caller's tag.
    uint64_t tag;
    // The device it lives on.
    int32_t device;
    // 0.
    uint32_t reserved;
} gpumem_pointer_info;

// Allocates on the current device, in the order of its legacy default stream.
//
// bytes may be 0: the result is a unique pointer that must be freed. Aligned to 256 bytes, not cleared.
// Returns the memory, which the caller owns until a free, or NULL on failure; gpumem_last_status says why:
// GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_DRIVER, and what starting can give. Work on a stream that does not
// synchronise with the default stream must be made to wait for it; gpumem_malloc_async is made for that.
void *gpumem_malloc(size_t bytes);

// Frees, in the order of the stream the memory was allocated on.
//
// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have been submitted to
// the stream it was allocated on, or ordered before it, or announced by gpumem_record_stream; otherwise use
// gpumem_free_async. Never blocks on the device. A pointer that is unknown, interior or freed already changes
// nothing; it is counted in gpumem_stats, kept as this thread's last error, and said on stderr (not every one of a
// flood; GPUMEM_LOG=0 turns it off). In a forked child and at exit it does nothing.
void gpumem_free(void *ptr);

// Allocates in the order of a stream, on the stream's device.
//
// bytes may be 0: the result is a unique pointer that must be freed. s is a live stream or NULL. Aligned to 256
// bytes, not cleared. out receives the memory, which the caller owns until a free; usable by work submitted to s
// from now on. Does not wait for the device unless memory is short (GPUMEM_REUSE).
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_INVALID_STREAM,
// GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_malloc_async(size_t bytes, gpumem_stream s, void **out);

// Frees in the order of a stream: the memory is reused once the work submitted to s before this call is done.
//
// ptr is the start of an allocation or NULL, which does nothing. All use of the memory must have been submitted to
// s, or ordered before it, or announced by gpumem_record_stream; s need not be the stream it was allocated on. The
// allocation itself counts as a use: memory that nobody has touched may still be in use by what had it before.
// Errors: GPUMEM_ERROR_UNKNOWN_POINTER (interior ones too), GPUMEM_ERROR_DOUBLE_FREE,
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_FORKED, GPUMEM_ERROR_SHUTTING_DOWN; nothing is freed then.
gpumem_status gpumem_free_async(void *ptr, gpumem_stream s);

// Allocates with every option there is.
//
// opts is read and not kept. out receives the memory, as from gpumem_malloc_async.
// Errors: those of gpumem_malloc_async; GPUMEM_ERROR_INVALID also for an alignment that is no power of two, unknown
// flags, a device that does not exist or is not the stream's, an arena that has been exited, or options that are not
// well formed;
// GPUMEM_ERROR_UNSUPPORTED where the device cannot do what a flag asks.
gpumem_status gpumem_malloc_with(const struct gpumem_malloc_options *opts, void **out);

// Changes the size of an allocation, keeping its contents up to the smaller of both sizes.
//
// ptr is the start of an allocation; NULL allocates. bytes may be 0, which leaves a unique pointer that must be
// freed. Grows in place by mapping where it can, otherwise moves by a copy in the order of s, on which all use of
// the old memory must be ordered. out receives the memory, which may be at the same address; then ptr is no longer
// the caller's. On failure ptr is unchanged and still the caller's.
// Errors: those of gpumem_malloc_async and gpumem_free_async.
gpumem_status gpumem_realloc_async(void *ptr, size_t bytes, gpumem_stream s, void **out);

// Announces that an allocation is also used on s: after it is freed, reuse waits for the work submitted to s too.
//
// ptr is the start of an allocation. s must stay alive until the free. Call it after submitting to s, or at any time
// before the free; once per stream is enough.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_INVALID_STREAM.
gpumem_status gpumem_record_stream(void *ptr, gpumem_stream s);

// Gives free physical memory back to the device until no more than keep_bytes stay mapped on each device that is in
// use. Live memory stays. 0 gives back all that is free.
//
// Memory whose last use is not done yet stays mapped; synchronise first to have all of it back.
// Errors: GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_trim(size_t keep_bytes);

// Sets the most bytes that gpumem may map on a device.
//
// Below what is mapped now, free memory is given back and live memory stays. 0 means what the device has.
// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_set_limit(int device, size_t bytes);

// How many bytes can be used from ptr, the start of an allocation: at least those asked for.
//
// 0 for NULL. 0 also for a pointer that is not the start of a live allocation; then gpumem_last_status has
// GPUMEM_ERROR_UNKNOWN_POINTER.
size_t gpumem_usable_size(const void *ptr);

// The number of an allocation: no other of this process has had it or will have it, though addresses come again.
//
// ptr is the start of a live allocation. out receives a number that is not 0.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_allocation_id(const void *ptr, uint64_t *out);

// Facts about the live allocation that contains ptr, which may point into the middle of it.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL or the size impossible,
// GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_pointer_info_get(const void *ptr, struct gpumem_pointer_info *out);

// Checks every invariant of gpumem's own state. Slow; for tests.
//
// Errors: GPUMEM_ERROR_INTERNAL with the first invariant that does not hold, and what starting can give.
gpumem_status gpumem_validate(void);

/* ---- Arenas --------------------------------------------------------------------------------------------------------
 *
 * An arena holds what is allocated while it is entered, and its exit frees all of that, whoever may still hold a
 * pointer to it, but for what is to be kept. It is for programs that cannot say when each buffer ends but know when all
 * of them do: a step of a training loop, a request, a call into a runtime whose garbage collector frees too late.
 *
 *   gpumem_arena step;
 *   gpumem_arena_enter(&step);
 *   ...                                                (allocate at will, free or not)
 *   void *keep[] = {weights, loss};
 *   gpumem_arena_exit(step, keep, 2, NULL);            (all else that was allocated since is free)
 *
 * Whose      Each thread has arenas it is attached to; the last one is its current arena, and what the thread allocates
 *            belongs to that, whichever function does it: gpumem_malloc and its like, gpumem_plan_materialise, the
 *            adapters for PyTorch. Other threads are not affected. gpumem_malloc_options can name another arena. A
 *            resized allocation stays where it belongs. What was allocated before an arena was entered is not in it.
 * Nesting    An arena entered while another is current is inside that one, and must be exited first. What an exit keeps
 *            moves to the arena around it, and goes with that one unless kept again; out of the outermost arena it
 *            becomes an ordinary allocation.
 * Frees      What is in an arena may be freed early, by any thread. Exactly one of all frees and the exit frees an
 *            allocation; the others find out that it is gone. gpumem_free of what an exit has freed is a double free,
 *            or worse, takes what lives at the address by then; so finalizers, which may run at any time, call
 *            gpumem_free_id with the number that gpumem_allocation_id gave while the allocation lived.
 * Streams    An exit frees each allocation in the order of the stream it was allocated on, as gpumem_free does, and
 *            waits for nothing. Use on other streams must be ordered before, or announced by gpumem_record_stream.
 * Threads    gpumem_arena_attach makes an arena current on a second thread, gpumem_arena_detach undoes it; a thread that
 *            ends is detached. An arena is exited by its one last thread.
 * Handles    A gpumem_arena is a handle. Exit and abort make it stale, and those of the arenas inside; a stale one is
 *            GPUMEM_ERROR_INVALID, which each of these functions can give.
 *
 * Needs the pool: with GPUMEM_POOL=off there are no arenas (GPUMEM_ERROR_UNSUPPORTED). docs/spec/arenas.md has every
 * rule.
 */

// What an exit did. Bytes are as asked for.
typedef struct gpumem_arena_report {
    // sizeof(gpumem_arena_report), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // How many arenas were around it.
    uint32_t depth;
    // Allocations freed, a count.
    uint64_t freed;
    // Bytes of these.
    uint64_t freed_bytes;
    // Allocations kept, a count.
    uint64_t kept;
    // Bytes of these.
    uint64_t kept_bytes;
    // Entries of the keep list that are in no live allocation, a count.
    uint64_t unknown;
    // Entries that name an allocation again, a count.
    uint64_t duplicate;
    // Entries that name an allocation of another arena or of none, a count. It stays where it is.
    uint64_t foreign;
    // How long the arena was open.
    uint64_t nanoseconds;
} gpumem_arena_report;

// What has happened in an open arena so far. Bytes are as asked for. Other threads go on while it is counted.
typedef struct gpumem_arena_stats {
    // sizeof(gpumem_arena_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // How many arenas are around it.
    uint32_t depth;
    // Allocations in it now, a count.
    uint64_t live;
    // Bytes of these.
    uint64_t live_bytes;
    // The most that live_bytes was.
    uint64_t peak_bytes;
    // Allocations that came into it, made there or kept from an arena inside, a count.
    uint64_t joined;
    // Allocations that left it, freed, promoted or escaped, a count.
    uint64_t left;
    // Those of them that were promoted or escaped, a count.
    uint64_t promoted;
    // Those of them that were freed, a count: what somebody did without waiting for the exit.
    uint64_t freed_early;
    // Threads attached to it, a count.
    uint64_t threads;
    // How long it has been open.
    uint64_t nanoseconds;
    // A number that no other arena of this process has had or will have; texts of errors have it too.
    uint64_t id;
    // Its name, terminated; empty when it has none.
    char name[64];
} gpumem_arena_stats;

// Opens an arena inside the calling thread's current one, if it has one, and makes it the current one.
//
// out receives the handle; end it with gpumem_arena_exit or gpumem_arena_abort.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, and what starting can
// give.
gpumem_status gpumem_arena_enter(gpumem_arena *out);

// As gpumem_arena_enter, with a name for statistics and the texts of errors.
//
// name is UTF-8 or NULL, which is no name; it is copied, and cut at 63 bytes.
// Errors: those of gpumem_arena_enter; GPUMEM_ERROR_INVALID also for a name that is not UTF-8.
gpumem_status gpumem_arena_enter_named(const char *name, gpumem_arena *out);

// Ends an arena: frees what is in it, but for what is to be kept, which moves to the arena around it, or becomes
// ordinary where there is none.
//
// The arena must be the calling thread's current one, with no other thread attached to it and no open arena inside.
// keep has keep_len pointers, each to any byte of an allocation, and may be NULL when there are none. NULL in the list
// is passed over. Pointers to nothing live, to the same allocation again, and to what is not in this arena are no
// errors: they are counted in the report, and change nothing. What other threads free at the same time is freed once.
// out_or_null receives the report; its size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID for an arena that is not to be exited now or here, when keep is NULL and keep_len is
// not 0, or for an impossible size of the report; the arena is then open as before.
gpumem_status gpumem_arena_exit(gpumem_arena arena,
                                void *const *keep,
                                size_t keep_len,
                                struct gpumem_arena_report *out_or_null);

// Ends an arena and every open one inside it, keeping nothing.
//
// No other thread may be attached to any of them; the calling one need not be. out_or_null receives a report on all of
// them together; its size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID while other threads are attached, or for an impossible size of the report; all is then
// open as before.
gpumem_status gpumem_arena_abort(gpumem_arena arena, struct gpumem_arena_report *out_or_null);

// Makes an open arena the calling thread's current one, over the one that is.
//
// Until the thread detaches or ends, other threads can neither exit nor abort the arena.
// Errors: GPUMEM_ERROR_INVALID when the thread is attached to it already.
gpumem_status gpumem_arena_attach(gpumem_arena arena);

// Takes the calling thread's current arena back; the one before it is current again. The arena stays open.
//
// Also for the thread that entered it, which thereby hands it over to whoever attaches.
// Errors: GPUMEM_ERROR_INVALID when it is not the thread's current arena.
gpumem_status gpumem_arena_detach(gpumem_arena arena);

// The calling thread's current arena: what it allocates belongs to that.
//
// out receives the handle, NULL when there is none.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, and what starting can give.
gpumem_status gpumem_arena_current(gpumem_arena *out);

// The arena that a live allocation is in.
//
// ptr is any byte of it. out receives the handle, NULL when it is in none.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_of(const void *ptr, gpumem_arena *out);

// Moves a live allocation out of its arena into the one around that, or out of all when there is none; what an exit
// does to what it keeps, at once.
//
// ptr is any byte of it. Any thread may do this.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL or in no arena, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_promote(void *ptr);

// Takes a live allocation out of all arenas: a constant that is made in a step and cached for those to come.
//
// ptr is any byte of it. Nothing happens when it is in no arena. Any thread may do this.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_escape(void *ptr);

// What has happened in an open arena so far.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
gpumem_status gpumem_arena_stats_get(gpumem_arena arena, struct gpumem_arena_stats *out);

// Frees the allocation with this id, if it still lives: for finalizers, which may come after the exit of its arena.
//
// ptr is the start of an allocation that gpumem made, living or not, or NULL, which does nothing; id is what
// gpumem_allocation_id gave for it. GPUMEM_OK also when that allocation is gone, even if its address has been handed
// out again; that is counted in gpumem_stats.late_frees and changes nothing. In the order of the stream it was
// allocated on, as gpumem_free. Memory without an arena can be freed so as well.
// Errors: GPUMEM_ERROR_INVALID when id is 0, GPUMEM_ERROR_UNKNOWN_POINTER for an address that gpumem never gave.
gpumem_status gpumem_free_id(void *ptr, uint64_t id);

// As gpumem_free_id, in the order of s, as gpumem_free_async.
//
// Errors: those of gpumem_free_id, and GPUMEM_ERROR_INVALID_STREAM; nothing is freed then.
gpumem_status gpumem_free_id_async(void *ptr, uint64_t id, gpumem_stream s);

/* ---- Finding late uses ---------------------------------------------------------------------------------------------
 *
 * An arena frees what was allocated in it, whoever still holds a pointer there. GPUMEM_ARENA_DEBUG, or the field
 * arena_debug of gpumem_context_options, turns on what finds late uses:
 *
 *    check     arenas remember what they free, and gpumem_check says whether a pointer is into that. A runtime calls it
 *              where its operations take their operands.
 *    abort     the first late use that is found ends the process by SIGABRT, behind a line on stderr.
 *    poison    what arenas free is filled with 0xff, NaN in every floating-point format, and kept for a while
 *              (GPUMEM_ARENA_QUARANTINE). Late writes are found when it is handed on, and by gpumem_arena_verify.
 *    unmap     what is allocated in an arena gets physical memory of its own, which is unmapped when the arena ends; its
 *              addresses are kept for a while. Any late use faults, that by a kernel too.
 *
 * Several go together, with commas between, but not poison and unmap. Each includes check. With poison and unmap the
 * end of an arena waits for the device, unless a stream is being captured on which gpumem was called; a capture on
 * streams that gpumem has not met would be lost to it. Off, the functions below return GPUMEM_OK at the cost of a
 * branch.
 */

// What has been found so far in this process, on all devices. Counts unless a field says bytes.
typedef struct gpumem_arena_debug_stats {
    // sizeof(gpumem_arena_debug_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // GPUMEM_ARENA_DEBUG_* in force.
    uint32_t mode;
    // Allocations freed by arenas that are remembered. Of very many, the oldest are forgotten.
    uint64_t remembered;
    // Late uses that gpumem_check and gpumem_check_id have found.
    uint64_t stale_uses;
    // Poisoned allocations that were found to have been written to.
    uint64_t stale_writes;
    // Allocations of which something is kept at present: memory with "poison", addresses with "unmap".
    uint64_t kept;
    // How much that is, bytes.
    uint64_t kept_bytes;
    // Allocations that could not be filled, unmapped or looked at when they should have been, because a stream was being
    // captured or a driver call failed.
    uint64_t unchecked;
} gpumem_arena_debug_stats;

// Says whether ptr may be used, as far as arenas are concerned.
//
// ptr is any address, also inside an allocation, or NULL, which is GPUMEM_OK. op and operand are for the text: which
// operation, and which of its operands ptr is; NULL is shown as "?". They are not kept.
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when ptr is in memory that the end of an arena has freed and that has not been
// handed out since: "use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena 7 "step", allocation
// 123 of 4096 bytes)", where the outermost arena has depth 0. It is also said on stderr (not every one of a flood;
// GPUMEM_LOG=0 turns it off), and with "abort" the process ends there. Always GPUMEM_OK without "check". Memory that
// was freed otherwise, or that has been handed out again, is not found: gpumem_check_id finds that.
gpumem_status gpumem_check(const void *ptr, const char *op, const char *operand);

// Says whether ptr is still in the allocation that it was made for.
//
// As gpumem_check, and exact: id is the allocation's number, from gpumem_allocation_id, so a use is found also when
// memory of another allocation is at the address now, or when it was freed with no arena. Without "check" always
// GPUMEM_OK.
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when the live allocation that contains ptr has another number, or there is none.
gpumem_status gpumem_check_id(const void *ptr, uint64_t id, const char *op, const char *operand);

// Says what was at an address that an arena has freed, such as one that a tool reports for a fault.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits of a sentence like "0x7f0000001200 is 512 bytes into
// allocation 123 (4096 bytes, tag 5) of arena 7 "step", reclaimed by arena_exit at depth 0", always terminated. needed
// may be NULL; it receives the bytes that the whole text takes, its NUL included.
// Errors: GPUMEM_ERROR_UNKNOWN_POINTER when no arena is known to have freed what was there, or the address has been
// handed out since; GPUMEM_ERROR_UNSUPPORTED without "check"; GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0;
// and what starting can give.
gpumem_status gpumem_arena_describe(const void *addr, char *buf, size_t cap, size_t *needed);

// Looks at all memory that "poison" keeps, now.
//
// Waits for the device, and reads up to GPUMEM_ARENA_QUARANTINE bytes of its memory. What was written to is said on
// stderr ("stale write after arena_exit: 16 bytes from offset 0 of allocation 123 (4096 bytes) of arena 7 "step", ..."),
// where the bytes are those from the first that has changed to the last, and is filled again. GPUMEM_OK without "poison".
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when anything was written to; GPUMEM_ERROR_CAPTURING while a stream is being
// captured on which gpumem was called; GPUMEM_ERROR_DRIVER; and what starting can give.
gpumem_status gpumem_arena_verify(void);

// What has been found so far.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible, and what
// starting can give.
gpumem_status gpumem_arena_debug_stats_get(struct gpumem_arena_debug_stats *out);

/* ---- Copying and filling -------------------------------------------------------------------------------------------
 *
 * Between device memory and host memory in any direction. The asynchronous forms return before the work is done:
 * host memory must stay valid until the stream has passed it. Copies from or to host memory that is not page-locked
 * may block.
 */

// Copies bytes from src to dst in the order of a stream.
//
// Either may be device or host memory; they must not overlap. 0 bytes does nothing, whatever the pointers.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, the ranges overlap or wrap around;
// GPUMEM_ERROR_USE_AFTER_FREE for memory that was unmapped when its arena ended (GPUMEM_ARENA_DEBUG=unmap);
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_memcpy_async(void *dst, const void *src, size_t bytes, gpumem_stream s);

// Copies bytes from src to dst in the order of the legacy default stream, and waits until it is done.
//
// As gpumem_memcpy_async. Blocks; not legal during a stream capture.
gpumem_status gpumem_memcpy(void *dst, const void *src, size_t bytes);

// Fills device memory with a byte, in the order of a stream.
//
// value is converted to unsigned char, as memset does. 0 bytes does nothing, whatever the pointer.
// Errors: GPUMEM_ERROR_INVALID when dst is NULL or the range wraps around; GPUMEM_ERROR_USE_AFTER_FREE as for
// gpumem_memcpy_async; GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_memset_async(void *dst, int value, size_t bytes, gpumem_stream s);

// Fills device memory with a byte in the order of the legacy default stream, and waits until it is done.
//
// As gpumem_memset_async. Blocks; not legal during a stream capture.
gpumem_status gpumem_memset(void *dst, int value, size_t bytes);

/* ---- Captures and graphs -------------------------------------------------------------------------------------------
 *
 * CUDA graphs without a CUDA runtime, for tests, examples and programs that also run where there is no GPU. A stream is
 * captured: what is submitted to it becomes nodes of a graph and does not run. The graph does it at each launch.
 *
 *   gpumem_graph graph;
 *   gpumem_stream_begin_capture(s, GPUMEM_CAPTURE_MODE_THREAD_LOCAL);
 *   gpumem_memset_async(p, 0, bytes, s);
 *   gpumem_memcpy_async(q, p, bytes, s);
 *   gpumem_stream_end_capture(s, &graph);
 *   gpumem_graph_launch(graph, s);               (as often as you like)
 *   gpumem_stream_sync(s);
 *   gpumem_graph_destroy(graph);
 *
 * The captures are true CUDA captures, and everything that CUDA or gpumem say about those holds for them. A graph keeps
 * addresses and not memory: what its nodes name must be there, and hold what they expect, whenever it runs. During a
 * capture gpumem_memcpy_async takes device memory and page-locked host memory only.
 *
 * A call that is illegal during a capture fails with GPUMEM_ERROR_CAPTURING and may invalidate the capture, which then
 * ends without a graph. Waiting for the captured stream or its device is illegal (gpumem_stream_sync,
 * gpumem_device_sync), and making the stream wait for another. The mode says who may wait for other streams meanwhile.
 *
 * The stream's device must be current on the calling thread. A gpumem_graph is a handle. One that has been destroyed, or
 * was never a graph, is GPUMEM_ERROR_INVALID. Calls on one graph from several threads take turns.
 */

// Modes of a capture: no thread may wait for a stream or device meanwhile.
#define GPUMEM_CAPTURE_MODE_GLOBAL 0

// The thread that began the capture may not; others may.
#define GPUMEM_CAPTURE_MODE_THREAD_LOCAL 1

// Every thread may wait for other streams, and any thread may end the capture.
#define GPUMEM_CAPTURE_MODE_RELAXED 2

// What a gpumem_graph seems to point to. There is nothing there.
typedef struct gpumem_graph_st gpumem_graph_st;

// A handle to a graph that can be launched. Compare it with NULL and with others; do not look into it.
typedef struct gpumem_graph_st *gpumem_graph;

// What a graph consists of, from gpumem_graph_info_get.
typedef struct gpumem_graph_info {
    // sizeof(gpumem_graph_info).
    uint32_t size;
    // 0.
    uint32_t reserved;
    // Nodes in all.
    uint64_t nodes;
    // Nodes that allocate or free memory when the graph runs. What gpumem allocates during a capture makes none.
    uint64_t memory_nodes;
} gpumem_graph_info;

// Starts capturing a stream. mode is GPUMEM_CAPTURE_MODE_GLOBAL and so on.
//
// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured already, GPUMEM_ERROR_INVALID for the legacy default
// stream or an unknown mode, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, and what starting can give. They harm no
// capture in progress.
gpumem_status gpumem_stream_begin_capture(gpumem_stream s, int32_t mode);

// Ends the capture of a stream, on the thread that began it (any thread in relaxed mode).
//
// out receives the graph, ready to be launched; the caller owns it and gives it to gpumem_graph_destroy.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or the stream is not being captured. GPUMEM_ERROR_CAPTURING on the wrong
// thread, which ends it all the same, and when it was invalidated; after that, and after GPUMEM_ERROR_OUT_OF_MEMORY and
// GPUMEM_ERROR_DRIVER, its work is lost and the stream is no longer being captured. GPUMEM_ERROR_INVALID_STREAM.
gpumem_status gpumem_stream_end_capture(gpumem_stream s,
                                        gpumem_graph *out);

// Runs a graph's work in the order of a stream, after earlier launches of the same graph on whatever stream.
//
// The stream belongs to the device that the graph was captured on. Does not block.
// Errors: GPUMEM_ERROR_CAPTURING when the stream is being captured, GPUMEM_ERROR_INVALID when it belongs to another
// device, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_graph_launch(gpumem_graph graph, gpumem_stream s);

// Destroys a graph. Launches in flight still run, and what their nodes name must stay until they have.
//
// graph may be NULL, which does nothing. Errors: GPUMEM_ERROR_INVALID when it has been destroyed already or is no graph;
// GPUMEM_ERROR_DRIVER, after which the handle is gone too.
gpumem_status gpumem_graph_destroy(gpumem_graph graph);

// What a graph consists of.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_graph_info_get(gpumem_graph graph, struct gpumem_graph_info *out);

/* ---- Sharing with other processes ----------------------------------------------------------------------------------
 *
 * Memory allocated with GPUMEM_MALLOC_EXPORTABLE can be handed to another process as a file descriptor, sent over a
 * Unix socket or inherited. Both processes then see the same memory; ordering their work is their own affair.
 */

// Makes a file descriptor for an allocation.
//
// ptr is the start of a live allocation made with GPUMEM_MALLOC_EXPORTABLE. out receives the descriptor, which the
// caller owns and closes; it keeps the memory alive, as every import does. It is closed by exec.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL or the allocation is not exportable,
// GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_export_fd(const void *ptr, int *out);

// Maps memory that gpumem_export_fd exported, in this or another process.
//
// fd stays the caller's and may be closed afterwards. bytes is what the exporter asked for. out receives the memory
// on the given device, which the caller owns and frees like any other; freeing it here leaves it with the others.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, fd is no descriptor, bytes is 0 or not the export's, or there is no
// such device; GPUMEM_ERROR_OUT_OF_MEMORY, GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_import_fd(int fd, size_t bytes, int device, void **out);

/* ---- Looking inside ------------------------------------------------------------------------------------------------
 *
 * Counters and dumps are a moment's picture: other threads go on while they are taken.
 */

// One device's counters. Bytes unless a field says that it counts.
typedef struct gpumem_stats {
    // sizeof(gpumem_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // The device they belong to.
    int32_t device;
    // Addresses reserved.
    uint64_t reserved;
    // Physical memory mapped.
    uint64_t mapped;
    // The most that mapped ever was, since the last gpumem_stats_reset_peak.
    uint64_t peak_mapped;
    // What callers asked for and have not freed.
    uint64_t requested;
    // What was handed out for it, rounding included.
    uint64_t live;
    // The most that live was where it was observed: at every growth and at every gpumem_stats_get.
    uint64_t peak_live;
    // Free and mapped, usable by its own stream at once.
    uint64_t free;
    // Free and mapped, waiting for a stream.
    uint64_t waiting;
    // Physical memory held for later without an address.
    uint64_t stock;
    // Unmapped addresses inside the reservation.
    uint64_t holes;
    // Old addresses of memory that has moved, not yet unmapped.
    uint64_t zombies;
    // The largest request that could be met without new physical memory, allowing for remapping.
    uint64_t largest_without_growth;
    // The largest free region, usable with no driver call.
    uint64_t largest_free;
    // Live allocations, a count.
    uint64_t allocations;
    // Allocations ever made, a count.
    uint64_t mallocs;
    // Frees ever done, a count.
    uint64_t frees;
    // Physical allocations mapped, a count.
    uint64_t extents;
    // Physical allocations moved to other addresses so far, a count.
    uint64_t moved;
    // Requests met by moving physical memory so far, a count.
    uint64_t stitches;
    // Times that physical memory was added so far, a count.
    uint64_t growths;
    // Streams known, a count.
    uint64_t streams;
    // Frees refused as double, a count.
    uint64_t double_frees;
    // Pointers refused as unknown, a count.
    uint64_t unknown_pointers;
    // Frees by id that came when the allocation was gone already (gpumem_free_id), a count.
    uint64_t late_frees;
    // Requests refused for lack of memory, a count.
    uint64_t out_of_memory;
} gpumem_stats;

// How often one driver call was made.
typedef struct gpumem_driver_call {
    // The call's name, terminated.
    char name[40];
    // How often it was made since gpumem started.
    uint64_t calls;
} gpumem_driver_call;

// The counters of one device.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device, out is NULL or its
// size impossible, and what starting can give.
gpumem_status gpumem_stats_get(int device, struct gpumem_stats *out);

// Sets the peaks of one device back to the present values.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such device, and what starting can give.
gpumem_status gpumem_stats_reset_peak(int device);

// Lists every region of one device's memory in address order, as text for people.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may be NULL; it
// receives the bytes that the whole text takes, its NUL included, so more than cap means that it was cut.
// Errors: GPUMEM_ERROR_INVALID when there is no such device or buf is NULL and cap is not 0, and what starting can
// give.
gpumem_status gpumem_dump(int device, char *buf, size_t cap, size_t *needed);

// How often each driver call was made, in a fixed order.
//
// out has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count may be NULL; it
// receives how many there are.
// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0, and what starting can give.
gpumem_status gpumem_driver_calls(struct gpumem_driver_call *out, size_t cap, size_t *count);

/* ---- Spaces --------------------------------------------------------------------------------------------------------
 *
 * A space is one place that memory can be in: a device's memory, the pinned memory of a NUMA node of the host, the files
 * under a mount. Its tier says which kind, its id which one of the kind: for a device its number, for a node the node's, for a
 * mount its place in GPUMEM_DISK, or what adding it gave. All bytes of a space are counted:
 *
 *   used        live allocations
 *   promised    the sizes of live reservations; see there
 *   unreserved  live allocations that are not drawn from a reservation
 *   committed   promised + unreserved: at most the limit, unless somebody was given leave or the limit was lowered
 *
 * Counting begins with the first call about spaces or reservations, or with GPUMEM_TIERS=on with the first allocation. It needs
 * the pool: with GPUMEM_POOL=off these calls are GPUMEM_ERROR_UNSUPPORTED. The limit of a device's space is of what is in use;
 * GPUMEM_LIMIT, which it starts from, is of what the pool maps.
 *
 * Every function here is GPUMEM_ERROR_INVALID for a space that there is not, and can give what starting can give.
 */

// The memory of devices.
#define GPUMEM_TIER_GPU 1

// Pinned memory of the host.
#define GPUMEM_TIER_HOST 2

// Files.
#define GPUMEM_TIER_DISK 3

// Which space.
typedef struct gpumem_space {
    // GPUMEM_TIER_*.
    int32_t tier;
    // Which one of the tier.
    uint32_t id;
} gpumem_space;

// The counters of one space. Bytes unless a field says otherwise.
typedef struct gpumem_space_usage {
    // sizeof(gpumem_space_usage), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // GPUMEM_TIER_*.
    int32_t tier;
    // Which one of the tier.
    uint32_t id;
    // 1 when so much is used that data should be moved out, else 0.
    uint32_t should_downgrade;
    // 1 when moving data out, once started, should stop, else 0.
    uint32_t should_stop;
    // 0.
    uint32_t reserved;
    // What there is.
    uint64_t capacity;
    // What may be promised or used.
    uint64_t limit;
    // Sum of the sizes of live reservations.
    uint64_t promised;
    // Live allocations that are not drawn from a reservation.
    uint64_t unreserved;
    // Live allocations.
    uint64_t used;
    // The most that used was since the last gpumem_space_reset_peak.
    uint64_t peak;
    // What can still be promised or used.
    uint64_t available;
    // How far promised + unreserved is above the limit.
    uint64_t beyond;
    // From this use on data should be moved out: a share of the limit.
    uint64_t trigger;
    // At this use moving stops: a share of the limit.
    uint64_t stop;
    // What to move out so that as much is used as moving stops at; 0 when it is not more.
    uint64_t amount_to_downgrade;
    // Live reservations, a count.
    uint64_t reservations;
    // Requests that wait for this space, among others or alone, a count.
    uint64_t waiters;
} gpumem_space_usage;

// Lists every space.
//
// out has room for cap entries and may be NULL when cap is 0; spaces beyond are left out. count may be NULL; it receives how
// many there are. Spaces of one tier come in the order of their ids.
// Errors: GPUMEM_ERROR_INVALID when out is NULL and cap is not 0.
gpumem_status gpumem_space_list(struct gpumem_space *out,
                                size_t cap,
                                size_t *count);

// Adds a space of files.
//
// path is a directory of the program's choice, UTF-8; it is looked up now, and written to when data is first moved there. limit is
// how many bytes of files there may be; 0: as many as the file system has left now. out_id receives the id of the space, whose
// tier is GPUMEM_TIER_DISK. GPUMEM_DISK adds spaces in the same way; there is no taking away.
// Errors: GPUMEM_ERROR_INVALID when path or out_id is NULL, or the directory is a space already; GPUMEM_ERROR_IO when it is not
// there or no directory.
gpumem_status gpumem_space_add_disk(const char *path,
                                    uint64_t limit,
                                    uint32_t *out_id);

// The counters of a space.
//
// out->size must be set (GPUMEM_INIT). The counters are of one moment as far as other threads' allocations allow.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
gpumem_status gpumem_space_usage_get(int32_t tier, uint32_t id, struct gpumem_space_usage *out);

// Sets how much of a space may be promised or used.
//
// bytes is at most the capacity; UINT64_MAX stands for all of it. What is above a lowered limit stays, and is counted as
// beyond. Requests that wait for what can no longer ever be end with GPUMEM_ERROR_OUT_OF_MEMORY; those that now fit are
// granted. The thresholds change with the limit, as they are shares of it; data is not moved out before somebody allocates,
// pins, unpins or moves there.
// Errors: GPUMEM_ERROR_INVALID for more than the capacity.
gpumem_status gpumem_space_set_limit(int32_t tier,
                                     uint32_t id,
                                     uint64_t bytes);

// Sets from which share of its limit on data should be moved out of a space, and down to which.
//
// The limit is never above the capacity. Numbers from 0 to 1, stop not above trigger; at first GPUMEM_DOWNGRADE's, which is 0.85 and 0.65 by default.
// Errors: GPUMEM_ERROR_INVALID for others.
gpumem_status gpumem_space_set_thresholds(int32_t tier,
                                          uint32_t id,
                                          double trigger,
                                          double stop);

// Starts the peak of a space anew, from what is used now.
gpumem_status gpumem_space_reset_peak(int32_t tier, uint32_t id);

// What live allocations of a stream use in a space.
//
// An allocation belongs to the stream that it was made on, whichever it is freed on. used and peak may be NULL; they receive
// bytes, peak the most that used was since the stream was first seen, or since gpumem_space_stream_reset_peak.
// GPUMEM_STREAM_PER_THREAD is one stream here, that of all threads.
// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
gpumem_status gpumem_space_stream_usage(int32_t tier,
                                        uint32_t id,
                                        gpumem_stream s,
                                        uint64_t *used,
                                        uint64_t *peak);

// Starts the peak of a stream in a space anew, from what is used now.
//
// Errors: GPUMEM_ERROR_UNSUPPORTED for a space that does not count by stream.
gpumem_status gpumem_space_stream_reset_peak(int32_t tier, uint32_t id, gpumem_stream s);

// The reservation that the calling thread's allocations on a stream draw from in a space: the stream's, else the thread's.
//
// out receives its number (gpumem_reservation_info.number), 0 when there is none.
// Errors: GPUMEM_ERROR_INVALID when out is NULL.
gpumem_status gpumem_space_current(int32_t tier,
                                   uint32_t id,
                                   gpumem_stream s,
                                   uint64_t *out);

// Takes the reservation of a space that is attached to a stream off it.
//
// Errors: GPUMEM_ERROR_INVALID when none is.
gpumem_status gpumem_space_detach_stream(int32_t tier, uint32_t id, gpumem_stream s);

// Takes the reservation of a space that is attached to the calling thread off it.
//
// Errors: GPUMEM_ERROR_INVALID when none is.
gpumem_status gpumem_space_detach_thread(int32_t tier, uint32_t id);

/* ---- Policies ------------------------------------------------------------------------------------------------------
 *
 * What happens when an allocation does not fit the reservation that it draws from (it overdraws), and when there is no memory for
 * it. Both can be left to a function of the program's.
 *
 * Callbacks  Are called by the thread that allocates, with no lock of gpumem's held, from several threads at once. They may
 *            call every function of this header, in particular free, and shrink, grow or release reservations. An allocation
 *            in an overdraw callback that overdraws calls it again; one in an out-of-memory callback for which there is no
 *            memory fails. They must not wait for a thread that waits for this one, and must return: no longjmp, no C++
 *            exception (gpumem.hpp catches them).
 * user       Is handed to the callback. It stays the program's. free_user, unless NULL, is called with it once, when the
 *            callback is not running and will not be called any more: after it was replaced, or its reservation was released.
 *            On which thread is not said; it holds no lock of gpumem's. It is not called when the function that was given it
 *            fails, nor at exit.
 */

// An allocation that overdraws fails: the default.
#define GPUMEM_POLICY_FAIL 1

// What is missing is taken from outside of the reservation, if the space's limit allows.
#define GPUMEM_POLICY_IGNORE 2

// The reservation grows to factor times its size, or by what the allocation needs if that is more; where the space has less
// than that, by what there is. It does not wait.
#define GPUMEM_POLICY_INCREASE 3

// The callback decides.
#define GPUMEM_POLICY_CALLBACK 4

// With GPUMEM_POLICY_INCREASE: the reservation may grow by what the allocation needs above the space's limit, up to its
// capacity.
#define GPUMEM_POLICY_BEYOND_LIMIT 1

// Of an overdraw callback: the allocation fails. So it does with a number that has no meaning.
#define GPUMEM_OVERDRAW_FAIL 0

// Of an overdraw callback: as GPUMEM_POLICY_IGNORE.
#define GPUMEM_OVERDRAW_IGNORE -1

// Of an overdraw callback: look again; something was freed.
#define GPUMEM_OVERDRAW_RETRY -2

// An allocation that overdraws, as a callback is told of it.
typedef struct gpumem_overdraw {
    // Bytes that the library filled; fields beyond are not there.
    uint32_t size;
    // How often the callback has been called for this allocation, from 1.
    uint32_t attempt;
    // The reservation's space: GPUMEM_TIER_*.
    int32_t tier;
    // The reservation's space: which one of the tier.
    uint32_t id;
    // The reservation's number.
    uint64_t number;
    // The reservation's size, bytes.
    uint64_t promised;
    // How much of that is drawn, bytes.
    uint64_t drawn;
    // What the allocation needs, bytes.
    uint64_t bytes;
    // The stream that it is on.
    gpumem_stream stream;
} gpumem_overdraw;

// Decides about an allocation that overdraws: GPUMEM_OVERDRAW_*, or a positive number of bytes by which the reservation is to
// grow at once, before the allocation is tried again. If the space has not that much, the allocation fails.
typedef int64_t (*gpumem_overdraw_callback)(const struct gpumem_overdraw *what, void *user);

// Is told that user is not used any more.
typedef void (*gpumem_free_user)(void *user);

// What an allocation does that overdraws. A field that is 0 means its default.
typedef struct gpumem_reserve_policy {
    // sizeof(gpumem_reserve_policy).
    uint32_t size;
    // GPUMEM_POLICY_*.
    int32_t kind;
    // With GPUMEM_POLICY_INCREASE: how much larger, from 1 to 1000; the default is 1.25.
    double factor;
    // With GPUMEM_POLICY_INCREASE: the reservation never gets larger than this, bytes; 0 means that it may.
    uint64_t cap;
    // GPUMEM_POLICY_BEYOND_LIMIT or 0.
    uint32_t flags;
    // Must be 0.
    uint32_t reserved;
    // With GPUMEM_POLICY_CALLBACK: the function, else NULL.
    gpumem_overdraw_callback callback;
    // For the callback.
    void *user;
    // Told when user is not used any more; may be NULL.
    gpumem_free_user free_user;
} gpumem_reserve_policy;

// An allocation for which there is no memory, as a callback is told of it.
typedef struct gpumem_shortage {
    // Bytes that the library filled; fields beyond are not there.
    uint32_t size;
    // How often the allocation has failed, from 1.
    uint32_t attempt;
    // Where: GPUMEM_TIER_*.
    int32_t tier;
    // Where: which one of the tier.
    uint32_t id;
    // What it needs, bytes.
    uint64_t bytes;
    // The stream that it is on.
    gpumem_stream stream;
} gpumem_shortage;

// Makes room for an allocation for which there is no memory, and returns whether to try it again: 0 gives up. It is asked after
// every try that fails.
typedef int32_t (*gpumem_out_of_memory_callback)(const struct gpumem_shortage *what, void *user);

// Sets what an allocation does that does not fit a reservation.
//
// policy is read and not kept; NULL means GPUMEM_POLICY_FAIL. Allocations under way may still see the one before.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation or a field is not allowed.
gpumem_status gpumem_reservation_set_policy(gpumem_reservation r, const struct gpumem_reserve_policy *policy);

// Sets what an allocation in a reservation does for which there is no memory.
//
// callback may be NULL: what its space does. user and free_user may be NULL.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or user is given and no callback.
gpumem_status gpumem_reservation_set_out_of_memory(gpumem_reservation r,
                                                   gpumem_out_of_memory_callback callback,
                                                   void *user,
                                                   gpumem_free_user free_user);

// Sets what an allocation in a space does for which there is no memory, unless its reservation says otherwise.
//
// callback may be NULL: it fails, which is so at first. user and free_user may be NULL.
// Errors: GPUMEM_ERROR_INVALID when there is no such space, or user is given and no callback; GPUMEM_ERROR_UNSUPPORTED with
// GPUMEM_POOL=off, and what starting can give.
gpumem_status gpumem_space_set_out_of_memory(int32_t tier,
                                             uint32_t id,
                                             gpumem_out_of_memory_callback callback,
                                             void *user,
                                             gpumem_free_user free_user);

/* ---- Ending waits --------------------------------------------------------------------------------------------------
 *
 * A token is given to calls that wait for a reservation, and ends their waits when it is triggered. One token may be in any
 * number of calls.
 */

// What a gpumem_cancel seems to point to. There is nothing there.
typedef struct gpumem_cancel_st gpumem_cancel_st;

// A handle to a token that ends waits. Compare it with NULL and with others; do not look into it.
typedef struct gpumem_cancel_st *gpumem_cancel;

// Makes a token that ends waits.
//
// out receives it; the caller owns it until gpumem_cancel_destroy.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, and what starting can give.
gpumem_status gpumem_cancel_create(gpumem_cancel *out);

// Ends every wait that has this token with GPUMEM_ERROR_CANCELLED, now and from now on.
//
// A request is either granted or cancelled. One that need not wait is refused as well.
// Errors: GPUMEM_ERROR_INVALID when there is no such token.
gpumem_status gpumem_cancel_trigger(gpumem_cancel cancel);

// Gives a token up. Waits that have it go on.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such token.
gpumem_status gpumem_cancel_destroy(gpumem_cancel cancel);

// Ends every wait for a reservation with GPUMEM_ERROR_SHUTTING_DOWN, and refuses every request from now on.
//
// There is no way back. Allocations, frees and releases go on as before. For programs that must get their threads home.
// Errors: GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, and what starting can give.
gpumem_status gpumem_tiers_shutdown(void);

/* ---- Reservations --------------------------------------------------------------------------------------------------
 *
 * A reservation is a promise of bytes of one space: what was promised to one is not given to another, nor to allocations outside.
 * So a job that has its reservation does not run out of memory half-way because of its neighbours; it waits before it starts.
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
 * Drawing    An allocation on a stream draws from the reservation that is attached to the stream in the device's space, else
 *            from the one attached to the calling thread, else from what is available outside of any. When it ends, on
 *            whichever thread and stream, its bytes go back to where they came from. What an allocation does that does not
 *            fit is the reservation's policy: see above. Allocations never wait.
 * Sizes      Are exact: gpumem_reserve gives what was asked for or fails, unless least_bytes says that less will do; then
 *            gpumem_reservation_info_get tells what it became. Memory itself is not set aside: other programs on the device,
 *            and memory that a pool holds for other streams, can still make an allocation fail.
 * Waiting    Is in turn: whoever came first is served first in a space that both want. Each release, shrink, free or raised
 *            limit that makes room serves those who wait. A request that can never be met fails at once.
 * Release    What is drawn of a released reservation goes on as use outside of any. Streams and threads it was attached to
 *            have none any more. The handle is stale afterwards, which is GPUMEM_ERROR_INVALID.
 * Threads    A reservation may be used, and released, by any thread. A wait in gpumem_reservation_grow ends with an error when
 *            another thread releases it.
 */

// In the space that tier and id name: the default.
#define GPUMEM_RESERVE_SPACE 1

// In any space of tier: the one with the most room.
#define GPUMEM_RESERVE_TIER 2

// In any space of the first of tiers that has room, else of the next, and so on.
#define GPUMEM_RESERVE_TIERS 3

// In one that data of the space tier, id can be moved down to: of the next tier below that has room, spaces of the same NUMA
// node first; or of tiers[0], if that is given.
#define GPUMEM_RESERVE_DOWNGRADE 4

// In one that data of the space tier, id can be moved up to, likewise.
#define GPUMEM_RESERVE_UPGRADE 5

// What to reserve, for gpumem_reserve. A field that is 0 means its default.
typedef struct gpumem_reserve_options {
    // sizeof(gpumem_reserve_options).
    uint32_t size;
    // GPUMEM_RESERVE_*: where.
    int32_t strategy;
    // How much, bytes; not 0.
    uint64_t bytes;
    // If not 0: less than bytes will do, but not less than this; it becomes as much as there is.
    uint64_t least_bytes;
    // GPUMEM_TIER_*. With GPUMEM_RESERVE_SPACE 0 means the space of the current device; id must be 0 then.
    int32_t tier;
    // Which one of the tier, for the strategies that name a space.
    uint32_t id;
    // GPUMEM_TIER_*, the one that is preferred first; ends with a 0 unless full.
    int32_t tiers[4];
    // How long to wait for room at most, milliseconds; 0 means not at all, GPUMEM_WAIT_FOREVER without an end.
    uint64_t timeout_ms;
    // Ends the wait when triggered; may be NULL.
    gpumem_cancel cancel;
    // What an allocation does that does not fit; NULL: it fails.
    const gpumem_reserve_policy *policy;
    // What an allocation does for which there is no memory; NULL: what the space does.
    gpumem_out_of_memory_callback out_of_memory;
    // For out_of_memory.
    void *user;
    // Told when user is not used any more; may be NULL.
    gpumem_free_user free_user;
} gpumem_reserve_options;

// Facts about a live reservation. Bytes unless a field says otherwise.
typedef struct gpumem_reservation_info {
    // sizeof(gpumem_reservation_info), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // Its space: GPUMEM_TIER_*.
    int32_t tier;
    // Its space: which one of the tier.
    uint32_t id;
    // 0.
    uint32_t reserved;
    // A number that no other reservation of this process has had or will have; texts of errors have it too.
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
// opts is read and not kept, but for the callbacks in it. out receives the reservation, which the caller owns until
// gpumem_reservation_release. Blocks if opts->timeout_ms is not 0; do not wait for what the waiting thread itself would
// release.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, an option not allowed, or there is no such space;
// GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and timeout_ms is 0, or there can never be so much;
// GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_SHUTTING_DOWN after gpumem_tiers_shutdown;
// GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off, and what starting can give. Nothing is promised then.
gpumem_status gpumem_reserve(const struct gpumem_reserve_options *opts, gpumem_reservation *out);

// Ends a reservation: its bytes are available to others.
//
// Live allocations that were drawn from it stay, and their bytes count as use outside of any reservation from now on.
// drawn_or_null receives how many those are. The handle is stale afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or it has been released.
gpumem_status gpumem_reservation_release(gpumem_reservation r, uint64_t *drawn_or_null);

// Makes a reservation larger, or waits until it can be.
//
// timeout_ms as in gpumem_reserve_options; cancel may be NULL. The wait is in turn with those of gpumem_reserve, and whoever came
// before may be waiting for just what this reservation has: a wait without an end is for those who know better.
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or there is no such reservation, also when it is released meanwhile; those of a
// wait as gpumem_reserve. It is as large as before then.
gpumem_status gpumem_reservation_grow(gpumem_reservation r,
                                      uint64_t bytes,
                                      uint64_t timeout_ms,
                                      gpumem_cancel cancel);

// Makes a reservation smaller by what is not drawn of it.
//
// Errors: GPUMEM_ERROR_INVALID when bytes is 0 or more than is not drawn, or there is no such reservation.
gpumem_status gpumem_reservation_shrink(gpumem_reservation r, uint64_t bytes);

// Makes a reservation as small as what is drawn of it.
//
// out_or_null receives by how many bytes, possibly none.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation.
gpumem_status gpumem_reservation_shrink_to_fit(gpumem_reservation r, uint64_t *out_or_null);

// Facts about a reservation.
//
// out->size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, out is NULL or its size impossible.
gpumem_status gpumem_reservation_info_get(gpumem_reservation r, struct gpumem_reservation_info *out);

// Lets allocations on a stream in the reservation's space draw from it, on every thread.
//
// A stream has at most one reservation of each space. It is detached by gpumem_space_detach_stream, by the release, and by
// gpumem_stream_destroy; before the program destroys a stream by other means, it must detach it, as CUDA gives the handle to
// the next stream. GPUMEM_STREAM_PER_THREAD is one stream here, that of all threads.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, the stream has one of this space, or is one of another
// device than the reservation; GPUMEM_ERROR_INVALID_STREAM.
gpumem_status gpumem_reservation_attach_stream(gpumem_reservation r,
                                               gpumem_stream s);

// Lets the calling thread's allocations in the reservation's space draw from it, on streams that have none of their own.
//
// A thread has at most one reservation of each space. It is detached by gpumem_space_detach_thread, by the release, and by the
// end of the thread.
// Errors: GPUMEM_ERROR_INVALID when there is no such reservation, or the thread has one of this space.
gpumem_status gpumem_reservation_attach_thread(gpumem_reservation r);

/* ---- Moving memory out of the device and back ----------------------------------------------------------------------
 *
 * Memory allocated with GPUMEM_MALLOC_EVICTABLE can leave its device and come back at the same addresses: to pinned
 * memory of the host, to a file of a disk (GPUMEM_DISK), or from one to the other. Meanwhile its device memory is free
 * for others. Each such allocation has whole pages of its own (2 MiB on most devices), belongs to no arena and lives
 * until it is freed, wherever it is.
 *
 * Sleep and wake, for what rests at times that the program knows, such as the weights of a model:
 *
 *   opts.flags = GPUMEM_MALLOC_EVICTABLE; opts.tag = WEIGHTS; gpumem_malloc_with(&opts, &w);
 *   ...
 *   gpumem_evict_tag(WEIGHTS, NULL, NULL);             (all of them: the device memory is free)
 *   gpumem_restore_tag(WEIGHTS, NULL, NULL);           (they are back where they were)
 *
 * Pins, for more data than the device holds:
 *
 *   gpumem_pin(w);                                     (there now, restored if need be, and to stay)
 *   kernel<<<.., stream>>>(w);
 *   gpumem_unpin(w, stream);                           (may go when the stream has come this far)
 *
 * By itself  What has been unpinned at least once, and is not pinned now, is moved out without being asked for, oldest
 *            use first: when an allocation, a pin or a restore finds no memory, and by a thread when a space is too
 *            full (GPUMEM_DOWNGRADE, GPUMEM_MOVER). So pin it before each use. What was never unpinned is moved only
 *            by the functions below.
 * Streams    A move out waits on the device for the work that uses the memory: what was submitted so far to the
 *            streams named in gpumem_unpin, in gpumem_record_stream and in the options of the move; without any of
 *            these, to the device. Other streams go on meanwhile.
 * Faults     Bytes leave a place only when they are whole in another. A move that fails or is cancelled leaves them
 *            where they were. Device code that uses memory that is not there faults.
 * Files      Go with the process: its exit removes them, and what a killed one leaves, the next that uses the directory.
 * Threads    Any thread may call any of these; of two that want the same allocation one waits for the other. In a
 *            callback of a move or a pin (progress, out of memory) nothing that is being moved is waited for: what
 *            would have to is GPUMEM_ERROR_INVALID there.
 */

// gpumem_move_options.stream counts: all use of the memory so far has been submitted to it, or is ordered before it.
#define GPUMEM_MOVE_ON_STREAM 1

// gpumem_move_options.space counts.
#define GPUMEM_MOVE_TO_SPACE 2

// Tells how far a move is, on the thread that moves: bytes done, bytes in all. A result that is not 0 cancels the move.
typedef int32_t (*gpumem_progress)(uint64_t done, uint64_t total, void *user);

// How to move. A field that is 0 means its default.
typedef struct gpumem_move_options {
    // sizeof(gpumem_move_options).
    uint32_t size;
    // GPUMEM_MOVE_*, or-ed together.
    uint32_t flags;
    // GPUMEM_TIER_*: where to. 0: evicted, to the nearest space of a lower tier that has room; restored, to the device.
    int32_t tier;
    // Which space of that tier, with GPUMEM_MOVE_TO_SPACE; must be 0 without.
    uint32_t space;
    // The stream, with GPUMEM_MOVE_ON_STREAM; must be NULL without.
    gpumem_stream stream;
    // Called now and then; NULL: nobody asks. It must return: no longjmp, no C++ exception.
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
    // Allocations that were there already, a count.
    uint64_t already;
} gpumem_move_report;

// Where an evictable allocation is.
typedef struct gpumem_location {
    // sizeof(gpumem_location), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // GPUMEM_TIER_*; 0 while it is moved.
    int32_t tier;
    // Which space of the tier.
    uint32_t space;
    // How often it is pinned.
    uint32_t pins;
    // Bytes asked for.
    uint64_t bytes;
    // Bytes of device memory that it takes while it is there.
    uint64_t device_bytes;
} gpumem_location;

// Keeps an evictable allocation in its device's memory until gpumem_unpin has been called as often, restoring it first
// if it is elsewhere: work submitted to any stream after this returns may use it.
//
// ptr is the start of an allocation made with GPUMEM_MALLOC_EVICTABLE. Waits for the bytes. What is not pinned may be
// moved out to make room.
// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when there is no room and none can be made, GPUMEM_ERROR_INVALID when it is not
// evictable, GPUMEM_ERROR_UNKNOWN_POINTER, GPUMEM_ERROR_IO and GPUMEM_ERROR_CORRUPT of its file. It is where it was then,
// and not pinned.
gpumem_status gpumem_pin(void *ptr);

// Ends one pin. All use of the memory so far has been submitted to s, or is ordered before it.
//
// From the first call on the memory may be moved by itself whenever it is not pinned.
// Errors: GPUMEM_ERROR_INVALID when it is not pinned or not evictable, GPUMEM_ERROR_UNKNOWN_POINTER,
// GPUMEM_ERROR_CAPTURING when s is being captured: what a graph uses stays pinned. Nothing has changed then.
gpumem_status gpumem_unpin(void *ptr, gpumem_stream s);

// Moves an evictable allocation out of its device, and returns when its device memory is free.
//
// ptr is the start of it. opts may be NULL; it is read and not kept. out may be NULL. With opts->tier GPUMEM_TIER_DISK
// it also moves from the host to a disk.
// Errors: GPUMEM_ERROR_INVALID when it is pinned or not evictable, or for options that make no sense;
// GPUMEM_ERROR_OUT_OF_MEMORY when no lower space has room, GPUMEM_ERROR_CANCELLED, GPUMEM_ERROR_CAPTURING,
// GPUMEM_ERROR_IO, GPUMEM_ERROR_UNKNOWN_POINTER. It is where it was then.
gpumem_status gpumem_evict(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves an evictable allocation back to its device, to the addresses it has, and returns when its bytes are there.
//
// As gpumem_evict; with opts->tier GPUMEM_TIER_HOST from a disk to the host. Work submitted to any stream after this
// returns may use the memory; but what may be moved by itself and is not pinned may leave again at once.
// Errors: as gpumem_evict and gpumem_pin.
gpumem_status gpumem_restore(void *ptr, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves all evictable allocations with a tag out of their devices.
//
// As gpumem_evict for each. When one of them is pinned nothing is moved. After another error those that the text counts
// have been moved, the others are where they were.
// Errors: as gpumem_evict; GPUMEM_ERROR_INVALID when none has the tag.
gpumem_status gpumem_evict_tag(uint64_t tag, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Moves all evictable allocations with a tag back to their devices, as gpumem_restore does each.
//
// Errors: as gpumem_evict_tag and gpumem_restore.
gpumem_status gpumem_restore_tag(uint64_t tag, const struct gpumem_move_options *opts, struct gpumem_move_report *out);

// Says where an evictable allocation is.
//
// ptr is the start of it. out is filled as far as its size field says.
// Errors: GPUMEM_ERROR_INVALID when it is not evictable, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_locate(void *ptr, struct gpumem_location *out);

/* ---- Pinned host memory --------------------------------------------------------------------------------------------
 *
 * Memory of the host that devices copy to and from directly: copies are as fast as the bus, run beside other work, and can be
 * captured. The host reads and writes it like any other. The system pins slowly, so gpumem does it in large chunks, ahead of
 * need, keeps them, and hands out blocks of them (1 MiB by default: GPUMEM_PINNED_BLOCKS), or parts of blocks to those who
 * need half a block or less.
 *
 *   void *p;
 *   if (gpumem_host_malloc(bytes, GPUMEM_HOST_NEAREST, &p) != GPUMEM_OK) ...
 *   memcpy(p, data, bytes);
 *   gpumem_memcpy_async(on_device, p, bytes, s);
 *   gpumem_stream_sync(s);
 *   gpumem_host_free(p);
 *
 * One piece    gpumem_host_malloc gives a pointer. What is larger than a chunk (128 MiB by default) is pinned for it.
 * Many pieces  gpumem_host_blocks_alloc gives a handle to as few pieces as there are. It finds room whenever enough blocks are
 *              free, wherever they are, so it is the one for what is large.
 * Nodes        Memory belongs to a NUMA node of the host, which is a space: GPUMEM_TIER_HOST and the node's number.
 *              GPUMEM_HOST_NEAREST stands for the node that the current device is nearest to, or the first where the machine
 *              does not say. A node's limit is GPUMEM_PINNED_LIMIT at first, half of its memory by default.
 * Counting     What is handed out counts in its space, by whole blocks and parts (powers of two of bytes). It is drawn from
 *              the reservation that is given, else from the one that is attached to the calling thread, else from what is
 *              available outside of any.
 * Freeing      Does not wait for the device: copies to and from the memory must be done. The memory stays pinned, for
 *              others, until gpumem_host_trim.
 * Fork         A child that was forked does not have the memory: what reads it there may fault.
 */

// The NUMA node that the current device is nearest to, or the first where the machine does not say.
#define GPUMEM_HOST_NEAREST -1

// What a gpumem_host_blocks seems to point to. There is nothing there.
typedef struct gpumem_host_blocks_st gpumem_host_blocks_st;

// A handle to pinned memory in pieces. Compare it with NULL and with others; do not look into it.
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
    // The longest run of them: what one piece can have without more being pinned.
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
// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST. out receives the memory, which the caller owns until
// gpumem_host_free; not cleared, at a multiple of 4096, or, where that is less, of bytes rounded up to a power of two, but of
// 256 at least. Every device can copy to and from it. Pins more when too little is free, and waits for who does.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, bytes 0 or there is no such node; GPUMEM_ERROR_OUT_OF_MEMORY when the limit, a
// reservation or the system forbids so much, or what is free is in pieces; GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off,
// GPUMEM_ERROR_SHUTTING_DOWN, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_host_malloc(size_t bytes,
                                 int32_t node,
                                 void **out);

// Frees memory of gpumem_host_malloc, on any thread. Calls no driver and waits for nothing.
//
// ptr may be NULL, which does nothing. Copies to and from the memory must be done.
// Errors: GPUMEM_ERROR_DOUBLE_FREE when it has been freed, as far as the last 1024 frees tell; GPUMEM_ERROR_UNKNOWN_POINTER
// for every other pointer that is not the start of such memory. Nothing is freed then.
gpumem_status gpumem_host_free(void *ptr);

// Allocates pinned memory in as few pieces as there are: whole blocks, the last cut to what was asked for.
//
// bytes is not 0. node is a NUMA node's number or GPUMEM_HOST_NEAREST, which with a reservation stands for that one's node.
// r is a reservation of the node's space to draw from, whatever is attached to the thread, or NULL. out receives a handle, which
// the caller owns until gpumem_host_blocks_free. Each piece starts at a multiple of 4096, and all but the last are whole
// blocks. Half a block or less is one piece, a part of a block. Pins more when too little is free, and waits for who does.
// Errors: as gpumem_host_malloc, but pieces do no harm; GPUMEM_ERROR_INVALID when there is no such reservation, or it is one
// of another space.
gpumem_status gpumem_host_blocks_alloc(size_t bytes,
                                       int32_t node,
                                       gpumem_reservation r,
                                       gpumem_host_blocks *out);

// How many pieces memory has.
//
// Errors: GPUMEM_ERROR_INVALID when out is NULL, or there is no such memory.
gpumem_status gpumem_host_blocks_count(gpumem_host_blocks blocks, size_t *out);

// A piece of memory, the first of which is 0. Their bytes add up to what was asked for.
//
// ptr_out receives where it starts, bytes_out how long it is; either may be NULL. They do not change until the memory is
// freed.
// Errors: GPUMEM_ERROR_INVALID when there is no such piece or memory.
gpumem_status gpumem_host_blocks_get(gpumem_host_blocks blocks,
                                     size_t i,
                                     void **ptr_out,
                                     size_t *bytes_out);

// Frees memory in pieces, on any thread. Calls no driver and waits for nothing.
//
// blocks may be NULL, which does nothing. Copies to and from the memory must be done. The handle is stale afterwards.
// Errors: GPUMEM_ERROR_INVALID when there is no such memory, or it has been freed.
gpumem_status gpumem_host_blocks_free(gpumem_host_blocks blocks);

// Pins memory of a node until bytes of its blocks are free, so that allocations need not wait for that.
//
// bytes is rounded up to whole blocks. node as in gpumem_host_malloc. Nothing is set aside: whoever comes first gets it.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_OUT_OF_MEMORY when the limit or the system forbids so
// much (what has been pinned until then stays), GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER, and what starting can give.
gpumem_status gpumem_host_prepare(int32_t node,
                                  uint64_t bytes);

// Gives memory of a node that nobody has back to the system, but for keep bytes of free blocks.
//
// Only whole chunks can go. node as in gpumem_host_malloc. out_or_null receives how many bytes went. May wait for the devices.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, GPUMEM_ERROR_UNSUPPORTED, GPUMEM_ERROR_DRIVER, and what starting can
// give.
gpumem_status gpumem_host_trim(int32_t node,
                               uint64_t keep,
                               uint64_t *out_or_null);

// The counters of a node's pinned memory.
//
// out->size must be set (GPUMEM_INIT). node as in gpumem_host_malloc. What gpumem pins for itself counts as well: memory that
// was moved out of a device, for instance.
// Errors: GPUMEM_ERROR_INVALID when there is no such node, out is NULL or its size impossible; GPUMEM_ERROR_UNSUPPORTED, and what
// starting can give.
gpumem_status gpumem_host_stats_get(int32_t node,
                                    struct gpumem_host_stats *out);

/* ---- Memory for CUDA graphs ----------------------------------------------------------------------------------------
 *
 * A graph uses the addresses that it was captured with every time it is launched. Between gpumem_capture_begin and
 * gpumem_capture_end everything that is allocated on a stream comes from a range of its own that grows in place; until
 * the last reference to it is released nobody else gets an address of it, and nothing in it is moved or unmapped.
 * Afterwards it is ordinary memory again.
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
 * Begin may come before or after the stream's own begin of capture; it works on a stream that is not captured, too.
 * Other streams forked into the same capture take part once the stream has allocated during it. Memory that is freed
 * during the capture may be handed out again in it, in stream order. Memory that is live at the release stays
 * allocated, as ordinary memory; memory allocated before the capture and used by the graph is the caller's to keep.
 * Allocations with flags (GPUMEM_ALLOC_*) are never part of a capture.
 *
 * With GPUMEM_CAPTURE=auto gpumem begins a capture by itself for every stream that is being captured and has none, and
 * releases it when the graph and all that was made of it are gone (CUDA 11.3 and newer).
 */

// Hand nothing out twice during the capture: every allocation has addresses of its own.
#define GPUMEM_CAPTURE_MONOTONE 1

// Note how long each allocation above 64 KiB lives, for gpumem_capture_plan. It need not be a capture: a run of the
// same work that is not captured will do.
#define GPUMEM_CAPTURE_RECORD 2

// What a gpumem_capture seems to point to. There is nothing there.
typedef struct gpumem_capture_st gpumem_capture_st;

// A handle to a capture. Compare it with NULL and with others; do not look into it.
typedef struct gpumem_capture_st *gpumem_capture;

// Settings of a capture, for gpumem_capture_begin. A field that is 0 means its default.
typedef struct gpumem_capture_options {
    // sizeof(gpumem_capture_options).
    uint32_t size;
    // GPUMEM_CAPTURE_*, or-ed together.
    uint32_t flags;
    // Bytes of memory to map ahead.
    uint64_t bytes;
    // Bytes of addresses to keep for the range to grow in; the default is 16 GiB, less where that is short. Beyond
    // them it goes on elsewhere.
    uint64_t reserve;
    // Allocate from this capture's memory; flags and reserve must be 0, they are that one's. For graphs that never run at
    // the same time: what one has freed the other uses. NULL: memory of its own.
    gpumem_capture share;
    // Lay allocations above 64 KiB out as gpumem_capture_plan has planned for this capture, which was recorded: the
    // i-th gets the place of the i-th. One of another size, or whose place is taken, is served as usual and
    // counted. Not with GPUMEM_CAPTURE_MONOTONE. NULL: no layout.
    gpumem_capture layout;
} gpumem_capture_options;

// The counters of a capture's memory, of all captures together where several share it. Bytes unless a field says that
// it counts.
typedef struct gpumem_capture_stats {
    // sizeof(gpumem_capture_stats), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // The device.
    int32_t device;
    // Addresses: mapped, or kept to grow into.
    uint64_t reserved;
    // Physical memory.
    uint64_t mapped;
    // Handed out and not freed, rounding included.
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
    // Streams that allocated, a count.
    uint64_t streams;
} gpumem_capture_stats;

// Lets a stream allocate from a capture's memory from now on.
//
// s is a live stream, or NULL, which stands for the default stream of the current device; a stream can be in one capture at
// a time. opts may be NULL for the defaults; it is read and not kept. out receives the capture, with one reference that
// the caller owns until gpumem_capture_release or gpumem_capture_abort. End a capture before its stream is destroyed. If
// that was missed, it ends when a call names the handle for another stream that is not being captured; until then captures
// of that one allocate from it. What the stream allocates before it is captured is the capture's, too; freed again, it is
// not used for the graph while work on it may be running. Does not wait for the device.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, an option is not allowed, share or layout are no captures of the stream's
// device, layout has recorded nothing or the stream is in a capture already; GPUMEM_ERROR_OUT_OF_MEMORY;
// GPUMEM_ERROR_UNSUPPORTED where GPUMEM_POOL is off; GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER, and what starting
// can give. Nothing has begun then.
gpumem_status gpumem_capture_begin(gpumem_stream s,
                                   const struct gpumem_capture_options *opts,
                                   gpumem_capture *out);

// Ends a capture: allocations on its stream are ordinary again.
//
// What was allocated stays as it is, and the caller still owns its reference. Once ended, ending again does nothing. May
// come before or after the end of the stream's own capture. Makes no driver call, so where the stream has allocated while
// it was being captured, it is taken to be captured yet until a call of gpumem names it again, or the capture's memory is
// released. That does no harm, but memory that waits for streams that are gone is reused later meanwhile, on all streams.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_end(gpumem_capture capture);

// Ends a capture that came to nothing: frees all that it allocated and that is live, and drops all its references.
//
// The handle is stale afterwards. Pointers from the capture are freed ones then, as after gpumem_free. Captures that share
// the memory keep theirs. Work on the memory that has been submitted is waited for before the memory is reused, not here.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_abort(gpumem_capture capture);

// One more reference to a capture's memory, for one more graph: each needs a gpumem_capture_release.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_retain(gpumem_capture capture);

// Gives a reference up: no graph that it stood for is launched from now on. Launches in flight may go on.
//
// With the last one the handle is stale, and the capture ends if it has not; with the last of all captures that share the
// memory it is ordinary memory: what is free in it is reused once everything submitted to the device so far is done, and
// what is live is freed by gpumem_free like any other. Does not wait for the device and makes no driver call.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture.
gpumem_status gpumem_capture_release(gpumem_capture capture);

// Lays out what a capture with GPUMEM_CAPTURE_RECORD has recorded so far, for captures that name it as their layout.
//
// Allocations that were not freed count as live to the end. bytes, unless NULL, receives the length of the layout; peak,
// unless NULL, the most that was live at a time: no layout is shorter. Takes up to a second for thousands of
// allocations. gpumem_capture_begin does it by itself where it was not done; the capture must not be released before.
// Errors: GPUMEM_ERROR_INVALID when there is no such capture or nothing was recorded.
gpumem_status gpumem_capture_plan(gpumem_capture capture,
                                  uint64_t *bytes,
                                  uint64_t *peak);

// The counters of a capture's memory.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such capture, out is NULL or its size
// impossible.
gpumem_status gpumem_capture_stats_get(gpumem_capture capture,
                                       struct gpumem_capture_stats *out);

/* ---- Planning ------------------------------------------------------------------------------------------------------
 *
 * A plan lays buffers out in an arena before anything runs: given how large each is and during which steps it is live,
 * it finds an offset for each, so that buffers live at the same step share no bytes and the arena is as small as can
 * be. docs/spec/planner.md says precisely what is laid out, and how.
 *
 *   gpumem_plan plan;
 *   gpumem_plan_buffer_options b;
 *   uint32_t id;
 *   uint64_t offset;
 *   gpumem_plan_create(NULL, &plan);
 *   GPUMEM_INIT(&b);
 *   b.bytes = 1 << 20, b.lower = 0, b.upper = 3;       (live at steps 0, 1 and 2)
 *   gpumem_plan_add_buffer(plan, &b, &id);
 *   ...
 *   gpumem_plan_solve(plan, NULL);
 *   gpumem_plan_offset(plan, id, NULL, &offset);
 *   gpumem_plan_destroy(plan);
 *
 * Planning needs no device and starts nothing, except for gpumem_plan_materialise, which allocates the arena. A plan
 * belongs to the process that made it: in a forked child every call on it, gpumem_plan_destroy included, gives
 * GPUMEM_ERROR_FORKED at once and does nothing, whatever the parent was doing with it. The child can make plans of its
 * own, even where gpumem had started before the fork.
 *
 * Steps are positions in the execution order, counted from 0; a range of them is half-open, [lower, upper). Ids are
 * consecutive from 0 in the order of adding, the same sequence for buffers and for the values of a graph. Offsets,
 * sizes and sums of them are at most 2^62 bytes.
 *
 * A gpumem_plan is a handle. One that has been destroyed, or was never a plan, is GPUMEM_ERROR_INVALID, which each of
 * these functions can give. Calls on one plan from several threads take turns, so a query waits for a solve in
 * progress; gpumem_plan_cancel and gpumem_plan_destroy do not. A call that changes a plan makes its layout stale:
 * queries give GPUMEM_ERROR_INVALID until it is solved again.
 */

// Kinds of buffers and values: made and used up on the way.
#define GPUMEM_PLAN_TEMPORARY 0

// Given by the caller for each run.
#define GPUMEM_PLAN_INPUT 1

// Read by the caller after each run.
#define GPUMEM_PLAN_OUTPUT 2

// Weights: they outlive the run.
#define GPUMEM_PLAN_PARAMETER 3

// Never written.
#define GPUMEM_PLAN_CONSTANT 4

// Sets of kinds, or-ed together: all of GPUMEM_PLAN_TEMPORARY.
#define GPUMEM_PLAN_TEMPORARIES 1

// All of GPUMEM_PLAN_INPUT.
#define GPUMEM_PLAN_INPUTS 2

// All of GPUMEM_PLAN_OUTPUT.
#define GPUMEM_PLAN_OUTPUTS 4

// All of GPUMEM_PLAN_PARAMETER.
#define GPUMEM_PLAN_PARAMETERS 8

// All of GPUMEM_PLAN_CONSTANT.
#define GPUMEM_PLAN_CONSTANTS 16

// Where a buffer may go: wherever it fits.
#define GPUMEM_PLAN_ANYWHERE 0

// At its offset and nowhere else.
#define GPUMEM_PLAN_FIXED 1

// At its offset if that makes the arena no larger.
#define GPUMEM_PLAN_PREFERRED 2

// For a plan: each buffer has bytes of its own, shared with nothing at any step. For finding out whether a wrong
// result comes from sharing.
#define GPUMEM_PLAN_NO_REUSE 1

// For a buffer: it goes to the arena in its arena field. Without this it goes to the first that has room.
#define GPUMEM_PLAN_IN_ARENA 1

// What a gpumem_plan seems to point to. There is nothing there.
typedef struct gpumem_plan_st gpumem_plan_st;

// Settings of a plan, for gpumem_plan_create. A field that is 0 means its default.
typedef struct gpumem_plan_options {
    // sizeof(gpumem_plan_options).
    uint32_t size;
    // GPUMEM_PLAN_NO_REUSE or 0.
    uint32_t flags;
    // Most bytes of arena 0; 0 means as many as it takes.
    uint64_t capacity;
    // Every offset is a multiple of this, bytes, which need not be a power of two: the size of the elements of all
    // buffers, so that offsets can count elements. 0 means 1.
    uint64_t unit;
    // Alignment of what is added without one, a power of two up to 2^40, bytes. 0 means 1; 256 is what tensors on a GPU
    // want.
    uint64_t alignment;
} gpumem_plan_options;

// A handle to a plan. Compare it with NULL and with others; do not look into it.
typedef struct gpumem_plan_st *gpumem_plan;

// A half-open range of steps, [lower, upper).
typedef struct gpumem_plan_interval {
    // First step in it.
    uint64_t lower;
    // First step after it.
    uint64_t upper;
} gpumem_plan_interval;

// A buffer, for gpumem_plan_add_buffer, or a value, for gpumem_plan_add_value. A field that is 0 means its default.
//
// While it is live it occupies [offset, offset + bytes + guard) of its arena. Of no bytes, or live at no step, it
// occupies nothing, its guard included; it gets an aligned offset all the same, which may be anyone's.
typedef struct gpumem_plan_buffer_options {
    // sizeof(gpumem_plan_buffer_options).
    uint32_t size;
    // GPUMEM_PLAN_IN_ARENA or 0.
    uint32_t flags;
    // GPUMEM_PLAN_TEMPORARY and so on: what it is for.
    int32_t kind;
    // GPUMEM_PLAN_ANYWHERE, _FIXED or _PREFERRED: where it may go.
    int32_t place;
    // How large it is, guard not included.
    uint64_t bytes;
    // First step at which it holds something. Must be 0 for a value.
    uint64_t lower;
    // First step after its last use. Must be 0 for a value.
    uint64_t upper;
    // Its offset is a multiple of this power of two, bytes, up to 2^40; 0 means the plan's.
    uint64_t alignment;
    // Bytes behind it that nothing else may use while it is live.
    uint64_t guard;
    // With GPUMEM_PLAN_FIXED and GPUMEM_PLAN_PREFERRED: its first byte in the arena. Must be 0 otherwise.
    uint64_t offset;
    // With GPUMEM_PLAN_IN_ARENA: the arena it goes to. Must be 0 otherwise.
    uint32_t arena;
    // Must be 0.
    uint32_t reserved;
    // Ranges of steps inside its live range at which it holds nothing, so that others may use its bytes: in order,
    // apart, none empty. Its contents do not survive them. May be NULL when gap_count is 0. Not for a value.
    const struct gpumem_plan_interval *gaps;
    // How many gaps there are, a count.
    size_t gap_count;
    // For reports, and for sharing with other plans: UTF-8, terminated, copied. May be NULL.
    const char *name;
} gpumem_plan_buffer_options;

// Makes an empty plan with one arena, arena 0.
//
// opts may be NULL: every setting at its default. They are read and not kept. out receives the plan, which the caller
// owns and gives to gpumem_plan_destroy. Needs no device.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or a setting is not allowed.
gpumem_status gpumem_plan_create(const struct gpumem_plan_options *opts, gpumem_plan *out);

// Destroys a plan. Memory that gpumem_plan_materialise allocated for it stays the caller's.
//
// plan may be NULL, which does nothing. Does not wait: a solve in progress on another thread is cancelled and gives
// GPUMEM_ERROR_INVALID there, and other calls in progress end as they would have.
// Errors: GPUMEM_ERROR_INVALID when it has been destroyed already or is no plan.
gpumem_status gpumem_plan_destroy(gpumem_plan plan);

// Adds a buffer whose live range is known.
//
// opts is read and not kept. out receives the buffer's id.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, or for a range that ends before it starts, an alignment that is
// no power of two or more than 2^40, an offset that is not aligned, an arena that does not exist, gaps out of order or out of range, an
// unknown kind, place or flag, a size beyond 2^62, a name that is not UTF-8. Nothing is added then. Whether fixed
// buffers are in each other's way is seen when the plan is solved.
gpumem_status gpumem_plan_add_buffer(gpumem_plan plan,
                                     const struct gpumem_plan_buffer_options *opts,
                                     uint32_t *out);

// Adds many temporaries at once: buffer i has bytes[i] bytes and is live in [lowers[i], uppers[i]).
//
// The arrays have count elements each and may be NULL when it is 0. They are read and not kept. first may be NULL; it
// receives the id of buffer 0, those of the others follow.
// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_add_buffer, naming the buffer's index; none is added then.
gpumem_status gpumem_plan_add_buffers(gpumem_plan plan,
                                      size_t count,
                                      const uint64_t *bytes,
                                      const uint64_t *lowers,
                                      const uint64_t *uppers,
                                      uint32_t *first);

// Adds an arena: a run of bytes of its own, such as another device's memory.
//
// capacity is the most bytes it may have; 0 means as many as it takes. name is for reports, UTF-8, copied, and may be
// NULL. out receives its number; they are consecutive, and every plan has arena 0. A buffer that is bound to no arena
// goes to the first that has room.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or name is not UTF-8.
gpumem_status gpumem_plan_add_arena(gpumem_plan plan, uint64_t capacity, const char *name, uint32_t *out);

// Sets the most bytes that an arena may have; 0 means as many as it takes.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such arena.
gpumem_status gpumem_plan_set_capacity(gpumem_plan plan, uint32_t arena, uint64_t bytes);

// Makes every offset a multiple of unit bytes, which need not be a power of two. 0 means 1.
//
// Errors: GPUMEM_ERROR_INVALID when it is more than 2^62.
gpumem_status gpumem_plan_set_unit(gpumem_plan plan, uint64_t unit);

// Whether buffers that are not live together may share bytes: 0 for no, anything else for yes, the default.
gpumem_status gpumem_plan_set_reuse(gpumem_plan plan, int32_t reuse);

// Keeps bytes [offset, offset + bytes) of an arena free of buffers during steps [lower, upper): memory of the caller's
// own. UINT64_MAX for upper means to the end.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such arena, the range passes 2^62 bytes or the steps end before they
// start.
gpumem_status gpumem_plan_reserve(gpumem_plan plan,
                                  uint32_t arena,
                                  uint64_t offset,
                                  uint64_t bytes,
                                  uint64_t lower,
                                  uint64_t upper);

// Sets the kinds that get no slot, because their memory is the caller's business: GPUMEM_PLAN_TEMPORARIES and so on,
// or-ed together; 0 for none, the default. A view goes by the kind of its root: it is left out with it, and has a slot
// where that has one. A shared weight is where it is shared all the same.
//
// Errors: GPUMEM_ERROR_INVALID for a bit that is no kind.
gpumem_status gpumem_plan_set_left_out(gpumem_plan plan, uint32_t kinds);

// Changes how large a buffer or value is. Solve again afterwards; GPUMEM_PLAN_EFFORT_FAST is made for that.
//
// Errors: GPUMEM_ERROR_INVALID when id does not exist, views of it or what it is a view of do not fit any more, or bytes
// with its guard, or from its fixed or preferred offset on, are more than 2^62. Its size stays as it was then.
gpumem_status gpumem_plan_resize(gpumem_plan plan,
                                 uint32_t id,
                                 uint64_t bytes);

/* ---- Planning a graph ----------------------------------------------------------------------------------------------
 *
 * Where live ranges are not known, a plan derives them: it is told the values, and the operations that write and read
 * them. The operations run one per step, in the order of adding unless gpumem_plan_set_order says otherwise. A value is
 * live from the operation that writes it to the last that reads it; inputs, parameters and constants are live
 * throughout, outputs to the end. Values and buffers can be mixed in one plan.
 */

// For running a model: inputs, parameters and constants are left out, being somewhere already; nothing is kept for a
// backward pass.
#define GPUMEM_PLAN_INFERENCE 1

// For a backward pass to come: no kind is left out, and all that outputs were computed from lives to the end. This can
// take many times the memory.
#define GPUMEM_PLAN_BACKWARD 2

// Adds a value: a tensor whose live range follows from the operations that write and read it.
//
// opts is read and not kept; its live range and gaps must be left zero. out receives the value's id.
// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_add_buffer.
gpumem_status gpumem_plan_add_value(gpumem_plan plan, const gpumem_plan_buffer_options *opts, uint32_t *out);

// Adds an operation that reads inputs and writes outputs. It runs after those added before it. A value that is both is
// updated: read, and left with other contents.
//
// name is for reports, UTF-8, copied, and may be NULL. The arrays hold ids of values and may be NULL when their count
// is 0; they are read and not kept. out may be NULL; it receives the operation's number: operations are counted on
// their own, from 0.
// Errors: GPUMEM_ERROR_INVALID for an id that does not exist, an output that comes twice, and one that another operation
// produces already. Whether each value is written before it is read is seen when the plan is solved.
gpumem_status gpumem_plan_add_op(gpumem_plan plan,
                                 const char *name,
                                 const uint32_t *inputs,
                                 size_t input_count,
                                 const uint32_t *outputs,
                                 size_t output_count,
                                 uint32_t *out);

// Sets the order in which the operations run: every operation added so far, once. Those added later run after them.
//
// ops has count operation numbers and may be NULL when it is 0; it is read and not kept.
// Errors: GPUMEM_ERROR_INVALID when an operation is missing, comes twice or does not exist. Whether each value is
// written before it is read is seen when the plan is solved.
gpumem_status gpumem_plan_set_order(gpumem_plan plan, const uint32_t *ops, size_t count);

// Makes a value a view: child is the bytes of parent from offset on, as many as child has. It gets no slot of its own,
// and whoever reads it reads its parent, which may be a view itself.
//
// Errors: GPUMEM_ERROR_INVALID when a value does not exist, child is a view already or would be one of itself, was added
// with a place, a guard or a live range of its own, or passes the end of its parent. Whether kinds, arenas and
// alignments agree with those of the parent is seen when the plan is solved.
gpumem_status gpumem_plan_view(gpumem_plan plan,
                               uint32_t child,
                               uint32_t parent,
                               uint64_t offset);

// Allows an operation to write output over input, byte for byte from the first. The plan makes use of it where input
// dies there and output fits: then both have the same offset.
//
// Errors: GPUMEM_ERROR_INVALID when op does not exist, does not read input or does not write output.
gpumem_status gpumem_plan_in_place(gpumem_plan plan, uint32_t op, uint32_t input, uint32_t output);

// Keeps a value live through a step, as an operation that reads it then would. A step after the last operation moves
// the end.
//
// Errors: GPUMEM_ERROR_INVALID when the value does not exist, or step is UINT64_MAX, which no step comes after.
gpumem_status gpumem_plan_extend_to(gpumem_plan plan, uint32_t value, uint64_t step);

// Keeps a value live to the end, for a reader that the plan does not know of.
//
// Errors: GPUMEM_ERROR_INVALID when it does not exist.
gpumem_status gpumem_plan_pin(gpumem_plan plan, uint32_t value);

// Keeps everything that a value was computed from live to the end, but not the value itself; a view is kept too, being
// bytes of its parent, which it came from.
//
// Errors: GPUMEM_ERROR_INVALID when it does not exist.
gpumem_status gpumem_plan_pin_ancestors(gpumem_plan plan, uint32_t value);

// Whether everything that outputs were computed from lives to the end: 0 for no, the default, anything else for yes.
gpumem_status gpumem_plan_set_keep_ancestors(gpumem_plan plan, int32_t keep);

// Sets what gpumem_plan_set_left_out and gpumem_plan_set_keep_ancestors set, for a purpose: GPUMEM_PLAN_INFERENCE or
// GPUMEM_PLAN_BACKWARD.
//
// Errors: GPUMEM_ERROR_INVALID for another number.
gpumem_status gpumem_plan_set_preset(gpumem_plan plan, int32_t preset);

// States that another plan has the weight of this name at these bytes of an arena that both plans use: a parameter or
// constant of that name gets no slot of its own but this one, and nothing of this plan is put there.
//
// name is UTF-8, copied. Stating the same again changes nothing; gpumem_plan_unshare takes it back, to share the weight
// at another place.
// Errors: GPUMEM_ERROR_INVALID when name is NULL or not UTF-8, the weight is shared at another place or with another
// size already, there is no such arena, or the range passes 2^62 bytes. Whether size, kind, alignment, arena and fixed
// offset of the value agree, and whether a guard covers another shared weight, is seen when the plan is solved.
gpumem_status gpumem_plan_share(gpumem_plan plan, const char *name, uint32_t arena, uint64_t offset, uint64_t bytes);

// As gpumem_plan_share, for every parameter and constant that lives throughout another solved plan and has a slot there,
// and for what that plan shares itself. Those added with a range that does not cover the whole plan are left out. Those
// without a name, and the guards of all, are kept clear.
//
// from is not kept: what happens to it later does not matter here. count may be NULL; it receives how many have a name.
// Calling it again with the same layout changes nothing; after from was solved anew, gpumem_plan_unshare comes first.
// Errors: those of gpumem_plan_share, and nothing is shared then; GPUMEM_ERROR_INVALID when from has no layout.
gpumem_status gpumem_plan_share_from(gpumem_plan plan,
                                     gpumem_plan from,
                                     size_t *count);

// Takes back what gpumem_plan_share or gpumem_plan_share_from stated about the weight of this name, its guard included:
// a value of that name gets a slot of this plan's again. NULL takes back all there is, weights without a name included.
//
// Errors: GPUMEM_ERROR_INVALID when no weight of that name is shared, or name is not UTF-8.
gpumem_status gpumem_plan_unshare(gpumem_plan plan, const char *name);

/* ---- Solving a plan ------------------------------------------------------------------------------------------------
 *
 * Solving finds an offset for every buffer and value. The effort is counted in steps of the search, so the same plan and
 * options give the same layout on every machine, unless the clock or gpumem_plan_cancel stops the search (the summary
 * says so). Every layout is verified before it is used.
 */

// Greedy orders, then a search of a limited number of steps. The default.
#define GPUMEM_PLAN_EFFORT_NORMAL 0

// A few greedy orders and no search, under a millisecond for hundreds of buffers: for planning again at run time.
#define GPUMEM_PLAN_EFFORT_FAST 1

// Tries the order of the last layout first, if the plan has as many slots as then: for planning again after
// gpumem_plan_resize. The layout then depends on that one too.
#define GPUMEM_PLAN_FROM_LAST 1

// No smaller arena is possible.
#define GPUMEM_PLAN_OPTIMAL 0

// Right, and perhaps not the smallest.
#define GPUMEM_PLAN_FEASIBLE 1

// No layout fits the capacities: proved.
#define GPUMEM_PLAN_INFEASIBLE 2

// No layout that fits the capacities was found; there may be one.
#define GPUMEM_PLAN_OUT_OF_TIME 3

// The offset of what has no slot, in what gpumem_plan_offsets fills and gpumem_plan_verify reads.
#define GPUMEM_PLAN_NO_OFFSET UINT64_MAX

// How to solve, for gpumem_plan_solve. A field that is 0 means its default.
typedef struct gpumem_plan_solve_options {
    // sizeof(gpumem_plan_solve_options).
    uint32_t size;
    // GPUMEM_PLAN_EFFORT_*.
    int32_t effort;
    // Time to search, milliseconds: with a limit, the normal effort takes as many steps as usually fit into it, more or
    // fewer than it would without one, and ends at the limit if they take longer. 0: the steps of the effort, however
    // long they take, which is seconds at most as a rule. Greedy orders are tried in any case.
    uint64_t time_limit_ms;
    // Threads to search with, a count up to 256; 0 and 1 search on the caller's.
    uint32_t threads;
    // GPUMEM_PLAN_FROM_LAST or 0.
    uint32_t flags;
} gpumem_plan_solve_options;

// What solving gave, from gpumem_plan_summary_get. Bytes unless a field says otherwise.
typedef struct gpumem_plan_summary {
    // sizeof(gpumem_plan_summary), set by the caller; afterwards the bytes filled.
    uint32_t size;
    // GPUMEM_PLAN_OPTIMAL, _FEASIBLE, _INFEASIBLE or _OUT_OF_TIME.
    int32_t status;
    // All arenas together. With the last two statuses, of the smallest layout found that ignores the capacities; 0 if
    // none was.
    uint64_t arena_bytes;
    // No layout can be smaller: at least the largest sum of what is live at one step.
    uint64_t lower_bound;
    // What the buffers would take side by side.
    uint64_t total_unshared;
    // What sharing bytes saves: total_unshared - arena_bytes, or 0.
    uint64_t saved;
    // How far arena_bytes is above lower_bound, as a share of it; 0 is optimal.
    double gap;
    // How long planning took, seconds.
    double seconds;
    // The first step at which most is live.
    uint64_t critical_step;
    // Steps, a count.
    uint64_t steps;
    // Slots laid out, a count: views and values written in place have none of their own.
    uint64_t slots;
    // Buffers and values, a count: ids are below it.
    uint64_t values;
    // Operations, a count.
    uint64_t operations;
    // Arenas, a count.
    uint32_t arenas;
    // 1 when the search was cancelled or stopped by the clock: another run may give another layout.
    uint32_t interrupted;
} gpumem_plan_summary;

// Lays a plan out. What an earlier solve gave is replaced.
//
// opts may be NULL: every setting at its default. They are read and not kept. Other calls on the plan wait, but for
// gpumem_plan_cancel, which ends this one early with the best so far, and gpumem_plan_destroy.
// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when no layout within the capacities was found; the text has the capacity, the
// lower bound and the smallest size found, and gpumem_plan_summary_get has them and says whether it is proved that
// there is none. That is an answer too: it replaces what an earlier solve gave, and there are no offsets.
// GPUMEM_ERROR_INVALID when a value is read before it is written, the graph contradicts itself, fixed buffers are in
// each other's way, in that of a reserved range or off the unit, sizes add up to more than 2^62 bytes, an option is not
// allowed, or the plan was destroyed meanwhile; then the plan is as it was.
gpumem_status gpumem_plan_solve(gpumem_plan plan, const struct gpumem_plan_solve_options *opts);

// Ends a solve in progress on another thread soon, with the best layout so far.
//
// Does nothing when none is in progress; does not wait.
gpumem_status gpumem_plan_cancel(gpumem_plan plan);

// What solving gave, also where it gave no layout.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible, or the
// plan has not been solved since it was changed.
gpumem_status gpumem_plan_summary_get(gpumem_plan plan, struct gpumem_plan_summary *out);

// How many bytes an arena needs.
//
// bytes receives them; lower_bound may be NULL and receives what no layout of the buffers that are in it can go below.
// Errors: GPUMEM_ERROR_INVALID when bytes is NULL, there is no such arena, or the plan has no layout.
gpumem_status gpumem_plan_arena_bytes(gpumem_plan plan, uint32_t arena, uint64_t *bytes, uint64_t *lower_bound);

// Where a buffer or value is. That of a view is inside its parent's.
//
// arena may be NULL and receives the arena. offset receives the first byte there.
// Errors: GPUMEM_ERROR_INVALID when offset is NULL, id does not exist or has no slot (its kind is left out, or nothing
// uses it), or the plan has no layout.
gpumem_status gpumem_plan_offset(gpumem_plan plan, uint32_t id, uint32_t *arena, uint64_t *offset);

// Where many are: ids first, first + 1 and so on.
//
// The arrays have room for cap elements. arenas may be NULL; it receives the arenas. offsets receives the offsets,
// GPUMEM_PLAN_NO_OFFSET for what has no slot; its arena is then 0. It may be NULL when cap is 0. count may be NULL; it
// receives how many there are from first on, so more than cap means that some were left out.
// Errors: GPUMEM_ERROR_INVALID when offsets is NULL and cap is not 0, first is more than the number of ids, or the plan
// has no layout.
gpumem_status gpumem_plan_offsets(gpumem_plan plan,
                                  uint32_t first,
                                  size_t cap,
                                  uint32_t *arenas,
                                  uint64_t *offsets,
                                  size_t *count);

/* ---- Looking at a plan ---------------------------------------------------------------------------------------------
 *
 * Reports are text for people and for scripts; their formats are in docs/spec/planner.md.
 */

// The layout as text: the sizes, and a line per slot in the order of offsets.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may be NULL; it receives
// the bytes that the whole text takes, its NUL included, so more than cap means that it was cut.
// Errors: GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0, or the plan has not been solved since it was changed.
gpumem_status gpumem_plan_report(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// The slots and their offsets as CSV, in the order of ids, with a header: what `gpumem plan` reads and writes. It reads
// offsets as fixed ones, so what it makes of a solved plan is the same layout.
//
// As gpumem_plan_report.
gpumem_status gpumem_plan_csv(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// The layout as a picture, SVG: steps from left to right, offsets upwards, a rectangle for each live range.
//
// As gpumem_plan_report.
gpumem_status gpumem_plan_svg(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// The buffers and values whose slots are live at the critical step, the first at which most bytes are live, reserved
// ranges included; in the order of ids. A slot is named by the value that owns it, not by views of it or values that
// took it over. Making these smaller, or live for less long, is what can make the arena smaller.
//
// ids has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count may be NULL; it
// receives how many there are. The step is in gpumem_plan_summary.
// Errors: GPUMEM_ERROR_INVALID when ids is NULL and cap is not 0, or the plan has not been solved since it was changed.
gpumem_status gpumem_plan_critical(gpumem_plan plan, uint32_t *ids, size_t cap, size_t *count);

// The steps during which the bytes of a buffer or value hold something, its gaps not considered: those of its slot, so
// that a view has its parent's, and a value written in place has those of what it was written over, too.
//
// lower receives the first such step, upper the first after them.
// Errors: GPUMEM_ERROR_INVALID when an output is NULL, id does not exist or has no slot, or the plan has not been solved
// since it was changed.
gpumem_status gpumem_plan_live(gpumem_plan plan,
                               uint32_t id,
                               uint64_t *lower,
                               uint64_t *upper);

// Checks a layout of the caller's own for a plan: that what is live at the same step shares no bytes, and that
// alignments, the unit, fixed offsets, reserved ranges, guards, arenas and capacities are kept. The plan need not be
// solved, and whether it is does not change.
//
// offsets[i] is where buffer or value i is; count is how many there are in the plan. arenas[i] is its arena; arenas may
// be NULL, which means arena 0 for all. GPUMEM_PLAN_NO_OFFSET stands for what has no slot, and may stand for a view and
// a value written in place, since their offsets follow from another's; where they are given they must agree with it.
// The arrays are read and not kept. bytes may be NULL; it receives what all arenas together need.
// Errors: GPUMEM_ERROR_INVALID for the first thing that is wrong, with what it is; also when offsets is NULL and count
// is not 0, count is not the plan's, or the plan's graph contradicts itself. Of an empty plan, NULL and 0 are a layout.
gpumem_status gpumem_plan_verify(gpumem_plan plan,
                                 const uint32_t *arenas,
                                 const uint64_t *offsets,
                                 size_t count,
                                 uint64_t *bytes);

/* ---- Giving a plan its memory --------------------------------------------------------------------------------------
 *
 * An arena of a solved plan becomes one allocation of the pool, and its buffers pointers into it. A plan can be given
 * memory any number of times, and does not know of it: the memory is the caller's, like any other.
 */

// Allocates an arena of a solved plan, in the order of a stream, on the stream's device.
//
// s is a live stream or NULL. out receives the memory, which the caller owns until gpumem_free or gpumem_free_async; an
// arena of no bytes gives a unique pointer all the same. It is aligned as its buffers ask, and to 256 bytes at least.
// Changing, solving or destroying the plan later does not touch it.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, there is no such arena or the plan has no layout; those of
// gpumem_malloc_async; those of an alignment that memory cannot have: GPUMEM_ERROR_INVALID beyond 1 GiB,
// GPUMEM_ERROR_UNSUPPORTED beyond what the driver gives where GPUMEM_POOL is off.
gpumem_status gpumem_plan_materialise(gpumem_plan plan, uint32_t arena, gpumem_stream s, void **out);

// As gpumem_plan_materialise, with the options of gpumem_malloc_with: flags, device, stream, tag.
//
// opts is read and not kept. Its bytes must be 0; its alignment counts where it is more than the plan needs.
// Errors: those of gpumem_plan_materialise and of gpumem_malloc_with.
gpumem_status gpumem_plan_materialise_with(gpumem_plan plan,
                                           uint32_t arena,
                                           const gpumem_malloc_options *opts,
                                           void **out);

// The address of a buffer or value in the memory of a solved plan.
//
// bases[a] is where arena a is; base_count is how many arenas that covers. For a plan with one arena, &base and 1.
// out receives bases[its arena] + its offset. Needs no device.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, that of its arena included, base_count does not cover its arena,
// id does not exist or has no slot, or the plan has no layout.
gpumem_status gpumem_plan_pointer(gpumem_plan plan, uint32_t id, void *const *bases, size_t base_count, void **out);

/* ---- PyTorch -------------------------------------------------------------------------------------------------------
 *
 * The two functions for torch.cuda.memory.CUDAPluggableAllocator(path, alloc, free), and the hooks that its
 * _allocator takes by address: set_init_fn, set_reset_fn, set_memory_fraction_fn, set_base_alloc_fn,
 * set_record_stream_fn, and for torch.cuda.graph set_begin_allocate_to_pool, set_end_allocate_to_pool_fn,
 * set_release_pool. The signatures are torch's.
 *
 * Torch takes whatever its allocator returns for memory, NULL included, and only an exception stops it. So in a
 * process that has loaded torch's libc10_cuda.so a failure here throws std::runtime_error with the text of
 * gpumem_last_error, which Python sees as RuntimeError; gpumem_torch_free and gpumem_torch_record_stream, which
 * torch calls where it cannot take an exception, only keep the error. Elsewhere no function of this header throws.
 */

// How torch names a memory pool: its c10::cuda::MempoolId_t, a std::pair of two unsigned long long.
typedef struct gpumem_torch_pool_id {
    // The pair's first.
    uint64_t first;
    // The pair's second.
    uint64_t second;
} gpumem_torch_pool_id;

// Allocates for torch: size bytes on a device, in the order of torch's current stream.
//
// A size of 0 gives a unique pointer that torch will free. Returns the memory, or fails as said above; outside of
// torch a failure returns NULL.
void *gpumem_torch_malloc(ssize_t size, int device, gpumem_stream s);

// Frees what gpumem_torch_malloc gave, in the order of the stream that torch allocated it on.
//
// size and device are torch's record of it and not needed. ptr may be NULL. Never throws: an error changes nothing,
// is kept as this thread's last one and said on stderr, as gpumem_free does.
void gpumem_torch_free(void *ptr, ssize_t size, int device, gpumem_stream s);

// For set_init_fn: starts gpumem, so that a wrong setting fails here and not at the first tensor.
void gpumem_torch_init(int device_count);

// For set_reset_fn, which torch.cuda.empty_cache() calls: gives all free physical memory back, as gpumem_trim(0).
void gpumem_torch_reset(void);

// For set_memory_fraction_fn: limits a device to a share of its memory, more than 0 and at most 1.
void gpumem_torch_memory_fraction(double fraction, int device);

// For set_base_alloc_fn: the start of the allocation that contains ptr, and in *size, unless NULL, its usable bytes.
//
// Fails as said above for a pointer that gpumem does not know; outside of torch it then returns NULL.
void *gpumem_torch_base_alloc(void *ptr, size_t *size);

// For set_record_stream_fn, which Tensor.record_stream() calls: as gpumem_record_stream.
//
// NULL does nothing. Never throws: memory that is not gpumem's is left alone, as torch's own allocator does.
void gpumem_torch_record_stream(void *ptr, gpumem_stream s);

// For set_begin_allocate_to_pool, which torch.cuda.graph and torch.cuda.use_mem_pool call: from now on the streams that
// the filter accepts allocate from memory of torch's pool id, as between gpumem_capture_begin and gpumem_capture_end.
//
// filter is torch's std::function<bool(cudaStream_t)>, passed as C++ passes it by value, of libstdc++; it is copied. Graphs
// that are captured with one pool share its memory. Each call is a reference to it.
void gpumem_torch_begin_allocate_to_pool(int device,
                                         struct gpumem_torch_pool_id id,
                                         void *filter);

// For set_end_allocate_to_pool_fn: allocations are ordinary again; torch's pool stays as it is.
void gpumem_torch_end_allocate_to_pool(int device, struct gpumem_torch_pool_id id);

// For set_release_pool: gives one reference to torch's pool up, as gpumem_capture_release. A pool that nothing was
// allocated to is left alone. Never throws, as torch calls it from destructors.
void gpumem_torch_release_pool(int device, struct gpumem_torch_pool_id id);

#ifdef __cplusplus
}
#endif

#endif

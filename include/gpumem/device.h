/* gpumem/device.h: devices, streams, copies, for programs without a CUDA runtime.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_DEVICE_H
#define GPUMEM_DEVICE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices -----------------------------------------------------------------------------------
 *
 * These calls work on a GPU and on the host device alike, so that one source runs on both. Devices
 * are counted from 0 as CUDA counts them. The current device is CUDA's: setting it here or with
 * cudaSetDevice is the same thing. (With a CUDA 11 runtime, cudaSetDevice takes effect at the next
 * call of the runtime that needs a device.)
 *
 * gpumem works in each device's primary context, which is the CUDA runtime's. While a context made
 * with cuCtxCreate is current, CUDA takes NULL and GPUMEM_STREAM_PER_THREAD as that context's
 * default streams, and gpumem as the primary context's: pass streams that the program made.
 * cudaDeviceReset and cuDevicePrimaryCtxReset take the memory away from under gpumem, so a program
 * that calls gpumem must not call them. Under `gpumem run` it may.
 */

// Facts about a device.
typedef struct gpumem_device_props {
    // sizeof(gpumem_device_props), set by the caller; on return, the bytes filled.
    uint32_t size;
    // 1 when virtual memory management works on it; the pool needs it.
    uint32_t vmm;
    // 1 when memory can be exported as a file descriptor (GPUMEM_MALLOC_EXPORTABLE).
    uint32_t posix_fd;
    // 1 when memory can be used for RDMA.
    uint32_t rdma;
    // Major number of the compute capability; 0 on the host device.
    uint32_t compute_major;
    // Minor number of the compute capability; 0 on the host device.
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
// out receives the count. Errors: GPUMEM_ERROR_INVALID when out is NULL.
gpumem_status gpumem_device_count_get(int *out);

// The calling thread's current device.
//
// out receives its number. Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_get(int *out);

// Makes a device the calling thread's current one.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such device, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_set(int device);

// Waits until everything submitted to the current device is done. Blocks. Memory freed there
// before this call is free for every stream after it.
//
// Errors: GPUMEM_ERROR_CAPTURING during a stream capture that forbids it, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_sync(void);

// Facts about a device.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when there is no such device,
// out is NULL or its size impossible; GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_props_get(int device, struct gpumem_device_props *out);

// Gets a device's free and total memory in bytes, as the driver sees it for all processes
// together.
//
// Either output may be NULL. Legal during a stream capture. Errors: GPUMEM_ERROR_INVALID when
// there is no such device, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_device_memory_get(int device, size_t *free_bytes, size_t *total_bytes);

/* ---- Streams -----------------------------------------------------------------------------------
 *
 * A gpumem_stream is a cudaStream_t or CUstream of the program's. These helpers create streams
 * where there is no CUDA runtime. A handle must be a live stream whenever it is passed. For a
 * destroyed one, the host device returns GPUMEM_ERROR_INVALID_STREAM, except from a free on a
 * thread that has allocated on it; CUDA crashes or takes it for another stream.
 */

// Creates a stream on the current device that does not synchronise with the legacy default stream.
//
// out receives the stream, which the caller owns until gpumem_stream_destroy. On a GPU it is a
// true CUDA stream.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_create(gpumem_stream *out);

// Destroys a stream. Work already submitted to it still runs, and memory freed on it is still
// reused in its order.
//
// The handle must not be used afterwards: CUDA gives the same value to the next stream at once.
// Memory allocated on it and not yet freed stays valid; free it with gpumem_free_async on a stream
// that is ordered after its last use, or with gpumem_free, after which its reuse waits for the
// whole device. Reservations attached to it are detached.
// Errors: GPUMEM_ERROR_INVALID for a default stream, GPUMEM_ERROR_CAPTURING while it is being
// captured, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_destroy(gpumem_stream s);

// Waits until everything submitted to a stream is done. Blocks; not legal while the stream is
// being captured. Memory of its device freed in the order of s before this call is free for every
// stream after it.
//
// Errors: GPUMEM_ERROR_CAPTURING, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_sync(gpumem_stream s);

// Makes later work on stream s wait, on the device, for everything submitted so far to stream on.
//
// Does not block the caller. The streams may belong to different devices. Errors:
// GPUMEM_ERROR_CAPTURING when either is being captured (use CUDA's own events there),
// GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_wait(gpumem_stream s, gpumem_stream on);

/* ---- Pools of streams --------------------------------------------------------------------------
 *
 * A stream pool lends streams of one device, each to one borrower at a time. It makes them on
 * demand, up to its size, and keeps them. When all are lent, a borrower waits its turn or has one
 * more made.
 *
 * A stream goes back with whatever work it still has; the next borrower's work runs after that.
 * Reservations attached to it are detached.
 */

// A wait without a limit, where a parameter is a time in milliseconds.
#define GPUMEM_WAIT_FOREVER UINT64_MAX

// The type that a gpumem_stream_pool points to: opaque, never defined.
typedef struct gpumem_stream_pool_st gpumem_stream_pool_st;

// A handle to a stream pool. It is opaque: compare it only with NULL and other handles.
typedef struct gpumem_stream_pool_st *gpumem_stream_pool;

// The counters of a stream pool.
typedef struct gpumem_stream_pool_stats {
    // sizeof(gpumem_stream_pool_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // The device of its streams.
    int32_t device;
    // Streams that exist or are being made, a count.
    uint64_t made;
    // Streams not lent, a count.
    uint64_t idle;
    // Streams lent, a count.
    uint64_t borrowed;
    // Calls that are waiting for a stream, a count.
    uint64_t waiters;
} gpumem_stream_pool_stats;

// Makes a pool of streams of the current device.
//
// size is the most streams that it makes on demand; 0 means 16. It makes none yet. out receives
// the pool; the caller owns it until gpumem_stream_pool_destroy.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_pool_create(size_t size, gpumem_stream_pool *out);

// Borrows a stream that is not lent, or waits its turn for one.
//
// timeout_ms is the longest wait in milliseconds; 0 means no wait, GPUMEM_WAIT_FOREVER no limit.
// out receives the stream, which is the caller's until gpumem_stream_pool_return. The caller must
// not destroy it.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or there is no such pool,
// GPUMEM_ERROR_OUT_OF_MEMORY when all streams are lent and timeout_ms is 0,
// GPUMEM_ERROR_TIMED_OUT, GPUMEM_ERROR_SHUTTING_DOWN when the pool is closed meanwhile,
// GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_stream_pool_borrow(gpumem_stream_pool pool, uint64_t timeout_ms, gpumem_stream *out);

// Like gpumem_stream_pool_borrow, but makes one more stream when all are lent. It stays in the
// pool.
//
// Does not wait. Errors: those of gpumem_stream_pool_borrow, without those of a wait.
gpumem_status gpumem_stream_pool_borrow_or_grow(gpumem_stream_pool pool, gpumem_stream *out);

// Gives a borrowed stream back, on any thread. Does not wait for its work.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such pool, or it has not lent this stream.
gpumem_status gpumem_stream_pool_return(gpumem_stream_pool pool, gpumem_stream s);

// Closes a pool: it lends no more, and calls that wait get GPUMEM_ERROR_SHUTTING_DOWN.
//
// Streams that are not lent are destroyed now, and each of the others when it is returned. The
// handle becomes stale when the last stream is gone: at once if none is lent. Until then the pool
// still gives its counters, and closing it again does nothing.
// Errors: GPUMEM_ERROR_INVALID when there is no such pool; those of gpumem_stream_destroy when a
// stream could not be destroyed; the pool is closed all the same.
gpumem_status gpumem_stream_pool_destroy(gpumem_stream_pool pool);

// Gets the counters of a pool.
//
// out->size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID when there is no such pool, out is NULL or its size impossible.
gpumem_status gpumem_stream_pool_stats_get(gpumem_stream_pool pool, struct gpumem_stream_pool_stats *out);

/* ---- Copying and filling -----------------------------------------------------------------------
 *
 * Copies go between device memory and host memory in any direction. The asynchronous forms return
 * before the work is done: host memory must stay valid until the stream has passed it. Copies from
 * or to host memory that is not page-locked may block.
 */

// Copies bytes from src to dst in the order of a stream.
//
// Either may be device or host memory; they must not overlap. 0 bytes does nothing, whatever the
// pointers.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, the ranges overlap or wrap around, or, on
// the host device, for device memory that is not mapped;
// GPUMEM_ERROR_USE_AFTER_FREE for memory that was unmapped when its arena ended
// (GPUMEM_ARENA_DEBUG=unmap); GPUMEM_ERROR_CAPTURING when s is being captured and cannot do it
// then, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_memcpy_async(void *dst, const void *src, size_t bytes, gpumem_stream s);

// Copies bytes from src to dst in the order of the legacy default stream, and waits until it is
// done.
//
// Like gpumem_memcpy_async, but blocks: GPUMEM_ERROR_CAPTURING during a stream capture that
// forbids it.
gpumem_status gpumem_memcpy(void *dst, const void *src, size_t bytes);

// Fills device memory with a byte, in the order of a stream.
//
// value is converted to unsigned char, as memset does. 0 bytes does nothing, whatever the pointer.
// Errors: GPUMEM_ERROR_INVALID when dst is NULL or the range wraps around, or, on the host device,
// for memory that is not mapped;
// GPUMEM_ERROR_USE_AFTER_FREE as for gpumem_memcpy_async; GPUMEM_ERROR_CAPTURING when s is being
// captured and cannot do it then, GPUMEM_ERROR_INVALID_STREAM, GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_memset_async(void *dst, int value, size_t bytes, gpumem_stream s);

// Fills device memory with a byte in the order of the legacy default stream, and waits until it is
// done.
//
// Like gpumem_memset_async, but blocks: GPUMEM_ERROR_CAPTURING during a stream capture that
// forbids it.
gpumem_status gpumem_memset(void *dst, int value, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif

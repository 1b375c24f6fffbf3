/* gpumem/torch.h: the functions that PyTorch calls.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_TORCH_H
#define GPUMEM_TORCH_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- PyTorch -----------------------------------------------------------------------------------
 *
 * The two functions for torch.cuda.memory.CUDAPluggableAllocator(path, alloc, free), and the hooks
 * that its _allocator takes by address: set_init_fn, set_reset_fn, set_memory_fraction_fn,
 * set_base_alloc_fn, set_record_stream_fn, and for torch.cuda.graph set_begin_allocate_to_pool,
 * set_end_allocate_to_pool_fn, set_release_pool. The signatures are torch's.
 *
 * Torch takes whatever its allocator returns as memory, even NULL; only an exception stops it. So
 * in a process that has loaded torch's libc10_cuda.so, a failure here throws std::runtime_error
 * with the text of gpumem_last_error, which Python sees as RuntimeError. gpumem_torch_free and
 * gpumem_torch_record_stream only keep the error, because torch calls them where it cannot take an
 * exception. In any other process no function of this header throws.
 */

// How torch names a memory pool: its c10::cuda::MempoolId_t, a std::pair of two unsigned long
// long.
typedef struct gpumem_torch_pool_id {
    // The pair's first value.
    uint64_t first;
    // The pair's second value.
    uint64_t second;
} gpumem_torch_pool_id;

// Allocates for torch: size bytes on a device, in the order of torch's current stream.
//
// A size of 0 gives a unique pointer that torch will free. The memory is in no arena and outlives
// the abort of a capture, as torch frees it by its address alone, be that after either. Returns
// the memory. A failure throws in torch, as above, and returns NULL elsewhere.
void *gpumem_torch_malloc(ssize_t size, int device, gpumem_stream s);

// Frees what gpumem_torch_malloc gave, in the order of the stream that torch allocated it on.
//
// size and device are torch's record of the allocation; they are ignored. ptr may be NULL. Never
// throws: an error changes nothing, becomes this thread's last error and goes to stderr, as for
// gpumem_free.
void gpumem_torch_free(void *ptr, ssize_t size, int device, gpumem_stream s);

// For set_init_fn: starts gpumem, so that a wrong setting fails here and not at the first tensor.
// device_count is the number of devices that torch sees; it must not exceed gpumem's.
void gpumem_torch_init(int device_count);

// For set_reset_fn, which torch.cuda.empty_cache() calls: gives all free physical memory back, as
// gpumem_trim(0).
void gpumem_torch_reset(void);

// For set_memory_fraction_fn: limits a device to a fraction of its memory, more than 0 and at most
// 1.
void gpumem_torch_memory_fraction(double fraction, int device);

// For set_base_alloc_fn: returns the start of the allocation that contains ptr. size, unless NULL,
// receives its usable bytes.
//
// A pointer that gpumem does not know is a failure: it throws in torch, as above, and returns NULL
// elsewhere.
void *gpumem_torch_base_alloc(void *ptr, size_t *size);

// For set_record_stream_fn, which Tensor.record_stream() calls: does what gpumem_record_stream
// does.
//
// ptr may be NULL, which does nothing. Never throws: memory that is not gpumem's is left alone, as
// in torch's own allocator.
void gpumem_torch_record_stream(void *ptr, gpumem_stream s);

// For set_begin_allocate_to_pool, which torch.cuda.graph and torch.cuda.use_mem_pool call: from
// now on the streams that filter accepts allocate from the memory of torch's pool id, as between
// gpumem_capture_begin and gpumem_capture_end.
//
// filter is torch's std::function<bool(cudaStream_t)> of libstdc++, passed as C++ passes it by
// value; it is copied. Graphs that are captured with one pool share its memory. Each call takes a
// reference to the pool.
void gpumem_torch_begin_allocate_to_pool(int device, struct gpumem_torch_pool_id id, void *filter);

// For set_end_allocate_to_pool_fn: allocations are ordinary again, and torch's pool stays as it
// is.
void gpumem_torch_end_allocate_to_pool(int device, struct gpumem_torch_pool_id id);

// For set_release_pool: drops one reference to torch's pool, as gpumem_capture_release does. A
// pool from which nothing was allocated is left alone. Never throws, because torch calls it from
// destructors.
void gpumem_torch_release_pool(int device, struct gpumem_torch_pool_id id);

#ifdef __cplusplus
}
#endif

#endif

// The device under every allocator: streams, memory in use, waiting.
//
// With CUDA's headers this is CUDA. With -DWITHOUT_CUDA it is gpumem's own helpers, so that the
// whole benchmark, with gpumem as its only allocator, also runs on the host device where there is
// no GPU.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#ifdef WITHOUT_CUDA
#include <gpumem.h>
#else
#include <cuda_runtime_api.h>
#endif

// What cudaStream_t, CUstream and gpumem_stream all are.
using Stream = struct CUstream_st *;

namespace device {

#ifdef WITHOUT_CUDA

inline void check(gpumem_status status, const char *call) {
    if (status != GPUMEM_OK) throw std::runtime_error(std::string(call) + ": " + gpumem_status_name(status));
}
inline void init() { check(gpumem_device_set(0), "gpumem_device_set"); }
inline void use_on_this_thread() { init(); }
inline void memory(size_t *free_bytes, size_t *total) {
    check(gpumem_device_memory_get(0, free_bytes, total), "gpumem_device_memory_get");
}
inline Stream new_stream() {
    Stream s;
    check(gpumem_stream_create(&s), "gpumem_stream_create");
    return s;
}
inline void destroy_stream(Stream s) { gpumem_stream_destroy(s); }
inline void sync() { check(gpumem_device_sync(), "gpumem_device_sync"); }
// Work that uses memory, in the order of a stream. The host device's memory is the host's, so a
// page of it is enough.
inline void fill(void *p, size_t bytes, Stream s) {
    check(gpumem_memset_async(p, 1, bytes < 4096 ? bytes : 4096, s), "gpumem_memset_async");
}
// What comes on stream `s` waits for what is on `other` now.
inline void wait(Stream s, Stream other) { check(gpumem_stream_wait(s, other), "gpumem_stream_wait"); }

#else

// Clears the error, so that the next call's is its own.
inline void check(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error));
}
inline void use_on_this_thread() { check(cudaSetDevice(0), "cudaSetDevice"); }
// Makes the context, which takes device memory of its own.
inline void init() {
    use_on_this_thread();
    check(cudaFree(nullptr), "cudaFree");
}
inline void memory(size_t *free_bytes, size_t *total) { check(cudaMemGetInfo(free_bytes, total), "cudaMemGetInfo"); }
inline Stream new_stream() {
    Stream s;
    check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return s;
}
inline void destroy_stream(Stream s) { (void)cudaStreamDestroy(s); }
inline void sync() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
// Work that uses memory, in the order of a stream.
inline void fill(void *p, size_t bytes, Stream s) { check(cudaMemsetAsync(p, 1, bytes, s), "cudaMemsetAsync"); }
// What comes on stream `s` waits for what is on `other` now.
inline void wait(Stream s, Stream other) {
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventRecord(event, other), "cudaEventRecord");
    check(cudaStreamWaitEvent(s, event, 0), "cudaStreamWaitEvent");
    check(cudaEventDestroy(event), "cudaEventDestroy");
}

#endif

inline size_t used() {
    size_t free_bytes, total;
    memory(&free_bytes, &total);
    return total - free_bytes;
}

}  // namespace device

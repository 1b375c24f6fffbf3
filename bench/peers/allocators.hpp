// The allocators. Which ones there are depends on what the program is built with:
//   nothing        cudaMallocAsync, cudaMalloc
//   WITH_GPUMEM    gpumem
//   WITH_RMM       RMM's
//   WITH_TORCH     PyTorch's
//
// Each is made with the bytes that a pool of fixed size should take up front. `note` says what has
// to be known to read figures of device memory. Where they are there: start() is what a process
// does once, before anything is measured; trim() gives everything free back; `grows` says that the
// size is not fixed after all.
#pragma once

#include "device.hpp"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#ifdef WITH_GPUMEM
#include <gpumem.h>

struct Gpumem {
    static constexpr const char *note = "";
    // Loads the driver and reads the settings, as cudaFree(nullptr) has done for CUDA's own
    // allocators.
    static void start() { check(gpumem_device_set(0)); }
    // Making the pool, which the first allocation would do otherwise.
    explicit Gpumem(size_t) { check(gpumem_stats_reset_peak(0)); }
    ~Gpumem() { gpumem_trim(0); }
    void *allocate(size_t bytes, Stream s) {
        void *p;
        gpumem_status status = gpumem_malloc_async(bytes, s, &p);
        if (__builtin_expect(status != GPUMEM_OK, 0)) check(status);
        return p;
    }
    void free(void *p, size_t, Stream s) {
        gpumem_status status = gpumem_free_async(p, s);
        if (__builtin_expect(status != GPUMEM_OK, 0)) check(status);
    }
    void trim() { check(gpumem_trim(0)); }
    // All driver calls since gpumem started.
    uint64_t driver_calls() const {
        gpumem_driver_call calls[128];
        size_t count = 0;
        check(gpumem_driver_calls_get(calls, 128, &count));
        uint64_t sum = 0;
        for (size_t i = 0; i < count && i < 128; i++) sum += calls[i].calls;
        return sum;
    }
    [[gnu::cold]] static void check(gpumem_status status) {
        if (status == GPUMEM_OK) return;
        char text[1024];
        gpumem_last_error(text, sizeof text);
        throw std::runtime_error(text);
    }
};
#endif

#ifndef WITHOUT_CUDA

struct CudaMallocAsync {
    static constexpr const char *note = "";
    cudaMemPool_t pool;
    // The default pool, told to keep what it has.
    explicit CudaMallocAsync(size_t) {
        device::check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
        uint64_t keep = UINT64_MAX;
        device::check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    }
    ~CudaMallocAsync() {
        (void)cudaDeviceSynchronize();
        (void)cudaMemPoolTrimTo(pool, 0);
    }
    void *allocate(size_t bytes, Stream s) {
        void *p;
        device::check(cudaMallocAsync(&p, bytes, s), "cudaMallocAsync");
        return p;
    }
    void free(void *p, size_t, Stream s) { device::check(cudaFreeAsync(p, s), "cudaFreeAsync"); }
    void trim() { device::check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo"); }
};

// For `cold` only: it is no pool, and its free waits for the device.
struct CudaMalloc {
    static constexpr const char *note = "";
    explicit CudaMalloc(size_t) {}
    void *allocate(size_t bytes, Stream) {
        void *p;
        device::check(cudaMalloc(&p, bytes), "cudaMalloc");
        return p;
    }
    void free(void *p, size_t, Stream) { device::check(cudaFree(p), "cudaFree"); }
    void trim() {}
};

#endif

#ifdef WITH_RMM
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <optional>

template <class Resource>
struct Rmm {
    Resource resource;
    void *allocate(size_t bytes, Stream s) { return resource.allocate(cuda::stream_ref{s}, bytes, 256); }
    void free(void *p, size_t bytes, Stream s) { resource.deallocate(cuda::stream_ref{s}, p, bytes, 256); }
};
struct RmmPool : Rmm<rmm::mr::pool_memory_resource> {
    static constexpr const char *note = "taken up front";
    static constexpr bool grows = true;
    explicit RmmPool(size_t bytes) : Rmm{rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource{}, bytes)} {}
};
struct RmmArena : Rmm<rmm::mr::arena_memory_resource> {
    static constexpr const char *note = "taken up front";
    explicit RmmArena(size_t bytes) : Rmm{rmm::mr::arena_memory_resource(rmm::mr::cuda_memory_resource{}, bytes)} {}
};
// Keeps what it has, like CudaMallocAsync.
struct RmmAsync : Rmm<rmm::mr::cuda_async_memory_resource> {
    static constexpr const char *note = "";
    explicit RmmAsync(size_t) : Rmm{rmm::mr::cuda_async_memory_resource(std::nullopt, SIZE_MAX)} {}
    void trim() { device::check(cudaMemPoolTrimTo(resource.pool_handle(), 0), "cudaMemPoolTrimTo"); }
};
#endif

#ifdef WITH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>

// Native, or with expandable segments: the environment decides, before the library is loaded (see
// main).
struct Torch {
    static constexpr const char *note = "";
    static void start() { c10::cuda::CUDACachingAllocator::init(1); }
    explicit Torch(size_t) {}
    ~Torch() { c10::cuda::CUDACachingAllocator::emptyCache(); }
    void *allocate(size_t bytes, Stream s) {
        return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, s);
    }
    // It has no free on a stream of the caller's: memory goes back to the stream it came from.
    void free(void *p, size_t, Stream) { c10::cuda::CUDACachingAllocator::raw_delete(p); }
    void trim() { c10::cuda::CUDACachingAllocator::emptyCache(); }
};
#endif

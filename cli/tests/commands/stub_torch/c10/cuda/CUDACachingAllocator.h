// What bench/peers uses of PyTorch's header of this name; stand_ins.cpp has the allocator itself.
#pragma once

#include <cstddef>

typedef struct CUstream_st *cudaStream_t;

namespace c10::cuda::CUDACachingAllocator {

struct CUDAAllocator {
    virtual ~CUDAAllocator() = default;
    virtual void init(int devices) = 0;
    virtual void *raw_alloc_with_stream(size_t size, cudaStream_t stream) = 0;
    virtual void raw_delete(void *p) = 0;
};

CUDAAllocator *get();

}  // namespace c10::cuda::CUDACachingAllocator

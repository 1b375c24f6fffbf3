// The two that calls of a PyTorch program are passed on to: PyTorch's own caching allocator, and
// gpumem as PyTorch is given it. For libraries that stand in for gpumem behind
// CUDAPluggableAllocator.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <sys/types.h>

[[noreturn]] inline void die(const std::string &why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    std::exit(2);
}

// Must be made while it is still the program's current allocator, which is when the library is
// loaded.
class TorchOwn {
public:
    // PyTorch has only made ready the allocator that it was told to use. Before the first allocate;
    // later calls do nothing.
    void prepare() {
        std::call_once(ready_, [this] { native_->init(c10::cuda::device_count()); });
    }
    void *allocate(ssize_t size, cudaStream_t stream) { return native_->raw_alloc_with_stream(static_cast<size_t>(size), stream); }
    void release(void *p) { native_->raw_delete(p); }

private:
    c10::cuda::CUDACachingAllocator::CUDAAllocator *native_ = c10::cuda::CUDACachingAllocator::get();
    std::once_flag ready_;
};

// Ends the process where there is no such library: a figure of something else would be worse than
// none.
class Gpumem {
public:
    explicit Gpumem(const std::string &path) {
        void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) die(dlerror());
        allocate_ = reinterpret_cast<decltype(allocate_)>(dlsym(library, "gpumem_torch_malloc"));
        release_ = reinterpret_cast<decltype(release_)>(dlsym(library, "gpumem_torch_free"));
        if (allocate_ == nullptr || release_ == nullptr) die(path + " has no gpumem_torch_malloc and gpumem_torch_free");
    }
    void *allocate(ssize_t size, int device, cudaStream_t stream) { return allocate_(size, device, stream); }
    void release(void *p, ssize_t size, int device, cudaStream_t stream) { release_(p, size, device, stream); }

private:
    void *(*allocate_)(ssize_t, int, cudaStream_t) = nullptr;
    void (*release_)(void *, ssize_t, int, cudaStream_t) = nullptr;
};

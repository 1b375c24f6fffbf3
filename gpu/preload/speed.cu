// Nanoseconds of a pair, the best of several rounds: name, bytes, ns.
#include "check.cuh"
#include <algorithm>
#include <chrono>
#include <cuda.h>
#include <dlfcn.h>

template <typename F> static double best(int pairs, F pair) {
    double least = 1e30;
    for (int round = 0; round < 7; round++) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < pairs; i++) pair();
        least = std::min(least, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / pairs);
    }
    return least;
}

int main() {
    cudaStream_t s;
    cudaMemPool_t pool;
    uint64_t all = ~0ull;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    // What everybody does who wants the driver's pool to be fast.
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    // The driver's own functions: what the runtime adds to them is the same with any allocator.
    auto alloc = (decltype(&cuMemAllocAsync))dlsym(RTLD_DEFAULT, "cuMemAllocAsync");
    auto release = (decltype(&cuMemFreeAsync))dlsym(RTLD_DEFAULT, "cuMemFreeAsync");
    if (void *driver = alloc ? nullptr : dlopen("libcuda.so.1", RTLD_NOW)) {
        alloc = (decltype(&cuMemAllocAsync))dlsym(driver, "cuMemAllocAsync");
        release = (decltype(&cuMemFreeAsync))dlsym(driver, "cuMemFreeAsync");
    }
    for (size_t bytes : {65536ul, 64ul << 20}) {
        void *p;
        std::printf("async %zu %.0f\n", bytes, best(20000, [&] { CHECK(cudaMallocAsync(&p, bytes, s)); CHECK(cudaFreeAsync(p, s)); }));
        if (alloc && release) {
            CUdeviceptr d;
            std::printf("driver %zu %.0f\n", bytes, best(20000, [&] { if (alloc(&d, bytes, s) || release(d, s)) std::exit(1); }));
        }
        std::printf("sync %zu %.0f\n", bytes, best(1000, [&] { CHECK(cudaMalloc(&p, bytes)); CHECK(cudaFree(p)); }));
    }
    return 0;
}

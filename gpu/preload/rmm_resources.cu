// RMM's resources over CUDA itself: cuda (cudaMalloc) and cuda_async (a pool of its own, or the
// default one).
#include "check.cuh"
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_async_view_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>

template <typename R> static unsigned long long use(R &resource) {
    rmm::cuda_stream s;
    rmm::device_buffer bad(8, s.view(), resource);
    CHECK(cudaMemsetAsync(bad.data(), 0, 8, s.value()));
    for (size_t bytes : {1000ul, 1ul << 20, 100ul << 20}) {
        rmm::device_buffer b(bytes, s.view(), resource);
        fill<<<64, 256, 0, s.value()>>>((uint32_t *)b.data(), bytes / 4, 7);
        verify<<<64, 256, 0, s.value()>>>((uint32_t *)b.data(), bytes / 4, 7, (unsigned long long *)bad.data());
    }
    unsigned long long n = 1;
    CHECK(cudaMemcpyAsync(&n, bad.data(), 8, cudaMemcpyDeviceToHost, s.value()));
    s.synchronize();
    return n;
}

int main() {
    rmm::mr::cuda_memory_resource cuda;
    std::printf("cuda: wrong %llu\n", use(cuda));
    cudaMemPool_t pool;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    rmm::mr::cuda_async_view_memory_resource view(pool);
    std::printf("cuda_async, default pool: wrong %llu\n", use(view));
    rmm::mr::cuda_async_memory_resource async;
    std::printf("cuda_async, its own pool: wrong %llu\n", use(async));
    return 0;
}

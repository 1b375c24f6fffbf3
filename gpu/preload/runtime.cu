// A program of the CUDA runtime: allocates by every call there is, computes, prints what came out.
// The same with gpumem and without.
#include "check.cuh"
#include <vector>

static unsigned long long *bad;

static unsigned long long round_trip(uint32_t *p, size_t words, uint32_t seed, cudaStream_t s) {
    unsigned long long count = 0;
    CHECK(cudaMemsetAsync(bad, 0, 8, s));
    fill<<<64, 256, 0, s>>>(p, words, seed);
    verify<<<64, 256, 0, s>>>(p, words, seed, bad);
    CHECK(cudaMemcpyAsync(&count, bad, 8, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    return count;
}

int main() {
    cudaStream_t s;
    uint32_t *p, *q;
    size_t pitch = 0, before, after, total;
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (size_t bytes : {4096ul, 65536ul, 3ul << 20, 200ul << 20}) {
        CHECK(cudaMalloc(&p, bytes));
        CHECK(cudaMallocAsync(&q, bytes, s));
        std::printf("%zu: %llu %llu\n", bytes, round_trip(p, bytes / 4, 1, 0), round_trip(q, bytes / 4, 2, s));
        CHECK(cudaFree(p));
        CHECK(cudaFreeAsync(q, s));
        CHECK(cudaMallocAsync(&q, bytes, 0));
        std::printf("default stream: %llu\n", round_trip(q, bytes / 4, 3, 0));
        CHECK(cudaFree(q));
    }
    CHECK(cudaMallocPitch((void **)&p, &pitch, 1000, 77));
    std::printf("pitch %zu: %llu\n", pitch, round_trip(p, pitch * 77 / 4, 4, s));
    CHECK(cudaFree(p));
    CHECK(cudaMemGetInfo(&before, &total));
    CHECK(cudaMalloc(&p, 1ul << 30));
    CHECK(cudaMemGetInfo(&after, &total));
    std::printf("a GiB less: %d\n", before - after >= (1ul << 30) - (64ul << 20) && before - after <= (1ul << 30) + (64ul << 20));
    cudaPointerAttributes a;
    CHECK(cudaPointerGetAttributes(&a, p + 100));
    std::printf("device memory %d of %d\n", a.type == cudaMemoryTypeDevice, a.device);
    CHECK(cudaFree(p));
    std::printf("twice: %s\n", cudaGetErrorName(cudaFree(p)));
    cudaGetLastError();
    std::printf("too much: %s\n", cudaGetErrorName(cudaMalloc(&p, 1ul << 46)));
    cudaGetLastError();
    // Memory nodes of a graph.
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMallocAsync(&p, 1 << 20, s));
    fill<<<64, 256, 0, s>>>(p, 1 << 18, 5);
    verify<<<64, 256, 0, s>>>(p, 1 << 18, 5, bad);
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaMemset(bad, 0, 8));
    for (int i = 0; i < 20; i++) CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    unsigned long long count = 1;
    CHECK(cudaMemcpy(&count, bad, 8, cudaMemcpyDeviceToHost));
    std::printf("graph: %llu\n", count);
    cudaMemPool_t pool;
    uint64_t used = 0;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMallocAsync(&p, 64 << 20, s));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    std::printf("used: %d\n", used >= (64u << 20));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    std::printf("done\n");
    return 0;
}

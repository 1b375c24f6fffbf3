// What the programs for several devices share: errors that end the program, a pattern that depends on its owner and on
// the place, and devices.
#pragma once

#include <gpumem.h>

#include <cuda.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

typedef unsigned long long u64;

static const size_t MiB = (size_t)1 << 20;

// The word 77 tells the script that a step cannot run here; the last line says why.
enum { SKIPPED = 77 };

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        const cudaError_t e_ = (call);                                                                                 \
        if (e_ != cudaSuccess) {                                                                                       \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                         \
            std::fflush(nullptr);                                                                                      \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

#define DRIVER(call)                                                                                                   \
    do {                                                                                                               \
        const CUresult r_ = (call);                                                                                    \
        if (r_ != CUDA_SUCCESS) {                                                                                      \
            std::printf("%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, (int)r_);                             \
            std::fflush(nullptr);                                                                                      \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

#define OWN(call)                                                                                                      \
    do {                                                                                                               \
        const gpumem_status s_ = (call);                                                                               \
        if (s_ != GPUMEM_OK) {                                                                                         \
            char text_[1024] = "";                                                                                     \
            gpumem_last_error(text_, sizeof text_);                                                                    \
            std::printf("%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, gpumem_status_name(s_), text_);              \
            std::fflush(nullptr);                                                                                      \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                \
            std::printf(__VA_ARGS__);                                                                                  \
            std::printf("\n");                                                                                         \
            std::fflush(nullptr);                                                                                      \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

// The driver's functions through the runtime, so that the program needs no libcuda to be linked.
template <class F> F entry(const char *name) {
    void *p = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 13000
    CUDA(cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &found));
#else
    CUDA(cudaGetDriverEntryPoint(name, &p, cudaEnableDefault, &found));
#endif
    REQUIRE(found == cudaDriverEntryPointSuccess && p != nullptr, "the driver has no %s", name);
    return (F)p;
}

static inline gpumem_stream handle(cudaStream_t s) { return (gpumem_stream)s; }

static inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static inline cudaStream_t new_stream(int device) {
    cudaStream_t s = nullptr;
    CUDA(cudaSetDevice(device));
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline gpumem_stats stats_of(int device) {
    gpumem_stats s;
    GPUMEM_INIT(&s);
    OWN(gpumem_stats_get(device, &s));
    return s;
}

static inline void sync_all(int devices) {
    for (int d = 0; d < devices; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaDeviceSynchronize());
    }
}

// Every device reaches every other one's memory.
static inline bool all_peers(int devices) {
    for (int a = 0; a < devices; a++)
        for (int b = 0; b < devices; b++) {
            int yes = 1;
            if (a != b) CUDA(cudaDeviceCanAccessPeer(&yes, a, b));
            if (!yes) return false;
        }
    return true;
}

// At least so many devices, or the program ends with SKIPPED.
static inline int devices_or_skip(int least) {
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < least) {
        std::printf("skipped: %d devices are needed, there are %d%s%s\n", least, e == cudaSuccess ? n : 0,
                    e == cudaSuccess ? "" : ": ", e == cudaSuccess ? "" : cudaGetErrorString(e));
        std::fflush(nullptr);
        std::_Exit(SKIPPED);
    }
    return n;
}

// ---- patterns ---------------------------------------------------------------------------------------------------------

struct Report { u64 words, address, at, expected, found; };

__device__ __forceinline__ static unsigned pattern(u64 id, u64 word) {
    u64 x = id * 0x9E3779B97F4A7C15ull + word;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    return (unsigned)(x >> 32);
}

__device__ __forceinline__ static void spin(unsigned nanoseconds) {
    if (nanoseconds == 0) return;
    u64 start, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    } while (t - start < nanoseconds);
}

// `bytes` is rounded down to words.
static __global__ void fill(unsigned *p, size_t bytes, u64 id, unsigned delay) {
    spin(delay);
    const size_t n = bytes / 4, stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) p[i] = pattern(id, i);
}

static __global__ void check(const unsigned *p, size_t bytes, u64 id, unsigned delay, Report *report) {
    spin(delay);
    const size_t n = bytes / 4, stride = (size_t)gridDim.x * blockDim.x;
    u64 wrong = 0, at = 0;
    unsigned expected = 0, found = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const unsigned want = pattern(id, i), have = __ldcg(p + i);
        if (want != have && wrong++ == 0) {
            at = i;
            expected = want;
            found = have;
        }
    }
    if (wrong == 0) return;
    if (atomicAdd(&report->words, wrong) == 0) {
        report->address = (u64)p;
        report->at = at;
        report->expected = expected;
        report->found = found;
    }
}

static inline unsigned grid_of(size_t bytes) {
    const size_t n = bytes / (256 * 32) + 1;
    return (unsigned)(n > 128 ? 128 : n);
}

// A report of each device, in memory that is not gpumem's.
struct Reports {
    std::vector<Report *> of;

    explicit Reports(int devices) : of((size_t)devices) {
        for (int d = 0; d < devices; d++) {
            CUDA(cudaSetDevice(d));
            CUDA(cudaMalloc(&of[(size_t)d], sizeof(Report)));
            CUDA(cudaMemset(of[(size_t)d], 0, sizeof(Report)));
            CUDA(cudaDeviceSynchronize());
        }
    }

    // Words that were wrong, on all devices together; says where the first was.
    u64 wrong() const {
        u64 all = 0;
        for (size_t d = 0; d < of.size(); d++) {
            Report r;
            CUDA(cudaSetDevice((int)d));
            CUDA(cudaMemcpy(&r, of[d], sizeof r, cudaMemcpyDeviceToHost));
            if (r.words)
                std::printf("device %zu saw %llu wrong words; one of them: word %llu of %#llx is %#llx and not %#llx\n", d, r.words,
                            r.at, r.address, r.found, r.expected);
            all += r.words;
        }
        return all;
    }
};

static inline void fill_on(int device, cudaStream_t s, void *p, size_t bytes, u64 id, unsigned delay = 0) {
    CUDA(cudaSetDevice(device));
    fill<<<grid_of(bytes), 256, 0, s>>>((unsigned *)p, bytes, id, delay);
    CUDA(cudaGetLastError());
}

static inline void check_on(int device, cudaStream_t s, const void *p, size_t bytes, u64 id, const Reports &r, unsigned delay = 0) {
    CUDA(cudaSetDevice(device));
    check<<<grid_of(bytes), 256, 0, s>>>((const unsigned *)p, bytes, id, delay, r.of[(size_t)device]);
    CUDA(cudaGetLastError());
}

// RMM's 29 cases of a memory resource (gpu/rmm_cases.hpp) on a GPU, with kernels that write and
// check every byte. With -DWITH_RMM through RMM: its refs, its resource of each device, its
// exception. Otherwise through CCCL's any_resource.
//
//   rmm_conformance [PART-OF-A-CASE'S-NAME]
//
// Before that a resource with a deliberate fault is found out.
#include "check.cuh"
#include "rmm_cases.hpp"
#include <cuda.h>

#ifdef WITH_RMM
#include <rmm/error.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/resource_ref.hpp>
static_assert(GPUMEM_HAS_RMM, "gpumem.hpp has not found RMM");
#endif
static_assert(GPUMEM_HAS_CCCL, "gpumem.hpp has not found CCCL 3.2");

// The byte at an offset of memory with a seed: neighbours, and neighbouring seeds, differ.
__host__ __device__ static inline unsigned char pattern(unsigned long long i, unsigned seed) {
    unsigned x = (unsigned)(i ^ (i >> 32)) * 2654435761u ^ seed * 2246822519u;
    x ^= x >> 15;
    return (unsigned char)(x * 2654435761u >> 24);
}

__global__ void write_bytes(unsigned char *p, unsigned long long bytes, unsigned seed) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < bytes; i += step) {
        p[i] = pattern(i, seed);
    }
}

// Leaves other bytes behind: the next owner of the memory cannot find its own there.
__global__ void check_bytes(unsigned char *p, unsigned long long bytes, unsigned seed, unsigned long long *wrong) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long here = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < bytes; i += step) {
        here += p[i] != pattern(i, seed);
        p[i] = 0xee;
    }
    if (here != 0) atomicAdd_system(wrong, here);
}

namespace {

// What a device's resource is before another is set: no gpumem::memory_resource to those who
// compare.
struct first_resource : gpumem::memory_resource {};

class cuda_world {
  public:
    static ::cuda::stream_ref cuda(gpumem::stream_ref s) { return ::cuda::stream_ref(s.get()); }
    using any = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;
    any subject() { return subject_; }

#ifdef WITH_RMM
    using out_of_memory = rmm::out_of_memory; // the one type that RMM's adaptors catch
    static bool says_out_of_memory(const char *text) { return std::strstr(text, "out_of_memory") != nullptr; }
    any set_current(any to) { return rmm::mr::set_current_device_resource(std::move(to)); }
    void reset_current() { rmm::mr::reset_current_device_resource(); }
    any current() { return any(rmm::mr::get_current_device_resource_ref()); }
#else
    using out_of_memory = gpumem::out_of_memory;
    static bool says_out_of_memory(const char *text) { return std::strstr(text, "OUT_OF_MEMORY") != nullptr; }
    any set_current(any to) { return current_.set(device(), std::move(to)); }
    void reset_current() { current_.reset(device()); }
    any current() { return current_.get(device()); }
#endif

    explicit cuda_world(any subject = any(gpumem::memory_resource{})) : subject_(std::move(subject)) {
        CUDA(cudaMallocHost((void **)&wrong_, sizeof *wrong_));
        *wrong_ = 0;
    }
    ~cuda_world() { cudaFreeHost(wrong_); }
    cuda_world(const cuda_world &) = delete;
    cuda_world &operator=(const cuda_world &) = delete;

    int devices() {
        int count = 0;
        CUDA(cudaGetDeviceCount(&count));
        return count;
    }
    void use_device(int device) { CUDA(cudaSetDevice(device)); }
    bool is_device_memory(void *p) {
        cudaPointerAttributes a;
        return cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeDevice && a.devicePointer == p;
    }
    std::size_t largest() { return std::size_t{1} << 30; }
    std::size_t most() { return std::size_t{5} << 20; }
    int messages() { return 100; }

    void write(void *p, std::size_t bytes, unsigned seed, gpumem::stream_ref s) {
        unsigned char *to = static_cast<unsigned char *>(p);
        unsigned long long n = bytes;
        void *args[] = {&to, &n, &seed};
        CUDA(cudaLaunchKernel((const void *)write_bytes, grid(bytes), dim3(256), args, 0, s.get()));
    }
    void check(void *p, std::size_t bytes, unsigned seed, gpumem::stream_ref s) {
        unsigned char *at = static_cast<unsigned char *>(p);
        unsigned long long n = bytes;
        void *args[] = {&at, &n, &seed, &wrong_};
        CUDA(cudaLaunchKernel((const void *)check_bytes, grid(bytes), dim3(256), args, 0, s.get()));
    }

    class mark {
      public:
        mark() { CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
        ~mark() { cudaEventDestroy(event_); }
        mark(const mark &) = delete;
        mark &operator=(const mark &) = delete;
        void set(gpumem::stream_ref s) { CUDA(cudaEventRecord(event_, s.get())); }
        void before(gpumem::stream_ref s) { CUDA(cudaStreamWaitEvent(s.get(), event_, 0)); }

      private:
        cudaEvent_t event_ = nullptr;
    };

    unsigned long long wrong() {
        int here = 0;
        CUDA(cudaGetDevice(&here));
        for (int d = 0; d < devices(); d++) {
            CUDA(cudaSetDevice(d));
            CUDA(cudaDeviceSynchronize());
        }
        CUDA(cudaSetDevice(here));
        return std::exchange(*wrong_, 0);
    }

  private:
    static dim3 grid(std::size_t bytes) {
        const std::size_t blocks = (bytes + 255) / 256;
        return dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096));
    }
    any subject_;
    // Pinned: the host reads it when all kernels are done, whatever device they are on.
    unsigned long long *wrong_ = nullptr;
#ifndef WITH_RMM
    static int device() {
        int out = 0;
        CUDA(cudaGetDevice(&out));
        return out;
    }
    rmm_cases::per_device<any> current_{any(first_resource{})};
#endif
};

// Whether the driver lets hardware decompress into memory (RMM's HWDecompressTest); -1 where it
// cannot say.
int decompresses(const void *p) {
#if CUDART_VERSION >= 12080
    using query = CUresult (*)(void *, CUpointer_attribute, CUdeviceptr);
    void *get = nullptr;
    cudaDriverEntryPointQueryResult found;
    CUDA(cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &get, 12080, cudaEnableDefault, &found));
    bool yes = false;
    const auto attribute = CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
    if (found == cudaDriverEntryPointSuccess &&
        reinterpret_cast<query>(get)(&yes, attribute, reinterpret_cast<CUdeviceptr>(p)) == CUDA_SUCCESS) {
        return yes;
    }
#endif
    (void)p;
    return -1;
}

void what_is_decompressed_into_cudas_goes_into_gpumems() {
    void *theirs = nullptr, *ours = gpumem::memory_resource().allocate_sync(100);
    CUDA(cudaMalloc(&theirs, 100));
    CHECK(decompresses(ours) == decompresses(theirs), "hardware decompression: %d, cudaMalloc's %d", decompresses(ours),
          decompresses(theirs));
    CUDA(cudaFree(theirs));
    gpumem::memory_resource().deallocate_sync(ours, 100);
}

} // namespace

int main(int argc, char **argv) {
    CUDA(cudaSetDevice(0));
    int failed = 0;
    {
        cuda_world careless(cuda_world::any(rmm_cases::careless_resource{}));
        CHECK(rmm_cases::cases<cuda_world>(careless).finds_faults(), "a fault was not found");
    }
    {
        cuda_world world;
        failed = rmm_cases::cases<cuda_world>(world).run(argc > 1 ? argv[1] : nullptr);
    }
    what_is_decompressed_into_cudas_goes_into_gpumems();
    int count = 0;
    CUDA(cudaGetDeviceCount(&count));
    for (int d = 0; d < count; d++) {
        gpumem_stats stats;
        GPUMEM_INIT(&stats);
        OWN(gpumem_stats_get(d, &stats));
        CHECK(stats.allocations == 0, "device %d: %llu live", d, (unsigned long long)stats.allocations);
    }
    OWN(gpumem_validate());
#ifdef WITH_RMM
    const char *through = "RMM";
#else
    const char *through = "CCCL";
#endif
    std::printf("%s, through %s\n", failed + failures == 0 ? "all as they should be" : "FAILED", through);
    return failed + failures != 0;
}

// gpumem as a memory resource. With CCCL 3 on the include path (any CUDA 13 toolkit)
// gpumem::memory_resource is what cuda::mr calls a resource, so RMM and Thrust take it; without
// CUDA the same class works with gpumem's own stream_ref.
//
// With RMM one line is enough, and every rmm::device_buffer comes from gpumem:
//
//     rmm::mr::set_current_device_resource(gpumem::memory_resource{});
#include <gpumem.hpp>

#include <cstdio>

// Code that takes any resource, as libraries do.
template <class Resource> static std::size_t build(Resource &mr, gpumem::stream_ref s) {
    std::size_t total = 0;
    for (std::size_t bytes = 1000; bytes < 50000000; bytes *= 3) {
        void *level = mr.allocate(s, bytes, 256);
        gpumem::check(gpumem_memset_async(level, 0, bytes, s.get()));
        mr.deallocate(s, level, bytes, 256);
        total += bytes;
    }
    return total;
}

int main() try {
    gpumem::stream s;
    const gpumem::stream_ref order{s.get()};

    gpumem::memory_resource pool;
    std::printf("%zu bytes through gpumem::memory_resource\n", build(pool, order));

#if GPUMEM_HAS_CCCL
    // Type-erased and owning: what RMM keeps per device.
    cuda::mr::any_resource<cuda::mr::device_accessible> any{pool};
    std::printf("%zu bytes through cuda::mr::any_resource\n", build(any, order));
#else
    std::printf("compiled without CCCL: cuda::mr::any_resource left out\n");
#endif
    s.sync();
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}

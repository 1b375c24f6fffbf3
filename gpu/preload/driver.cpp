// A program of the driver API: `driver direct|dlsym|proc primary|created`. What it prints is the
// same with gpumem and without.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <vector>

#define FUNCTIONS(X)                                                                                                           \
    X(cuMemAlloc, cuMemAlloc_v2, CUresult (*)(CUdeviceptr *, size_t), 3020)                                                    \
    X(cuMemFree, cuMemFree_v2, CUresult (*)(CUdeviceptr), 3020)                                                                \
    X(cuMemAllocAsync, cuMemAllocAsync, CUresult (*)(CUdeviceptr *, size_t, CUstream), 11020)                                  \
    X(cuMemFreeAsync, cuMemFreeAsync, CUresult (*)(CUdeviceptr, CUstream), 11020)                                              \
    X(cuMemGetAddressRange, cuMemGetAddressRange_v2, CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr), 3020)
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemGetAddressRange
struct Functions {
#define FIELD(name, exported, type, version) void *name;
    FUNCTIONS(FIELD)
} f;
#define CALL(name, type) (reinterpret_cast<type>(f.name))
#define CHECK(call)                                                                                                            \
    do {                                                                                                                       \
        CUresult r_ = (call);                                                                                                  \
        if (r_ != CUDA_SUCCESS) { std::printf("%d: %s = %d\n", __LINE__, #call, (int)r_); std::exit(1); }                      \
    } while (0)

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!std::strcmp(argv[1], "direct")) {
#define DIRECT(name, exported, type, version) f.name = reinterpret_cast<void *>(static_cast<type>(exported));
        FUNCTIONS(DIRECT)
    } else if (!std::strcmp(argv[1], "dlsym")) {
#define BY_NAME(name, exported, type, version) f.name = dlsym(library, #exported);
        FUNCTIONS(BY_NAME)
    } else {
        auto get = reinterpret_cast<CUresult (*)(const char *, void **, int, cuuint64_t, void *)>(dlsym(library, "cuGetProcAddress_v2"));
#define BY_ASKING(name, exported, type, version) CHECK(get(#name, &f.name, version, 0, nullptr));
        FUNCTIONS(BY_ASKING)
    }
    typedef CUresult (*Alloc)(CUdeviceptr *, size_t);
    typedef CUresult (*Free)(CUdeviceptr);
    typedef CUresult (*AllocAsync)(CUdeviceptr *, size_t, CUstream);
    typedef CUresult (*FreeAsync)(CUdeviceptr, CUstream);
    typedef CUresult (*Range)(CUdeviceptr *, size_t *, CUdeviceptr);
    CUcontext context;
    CUdevice device;
    CUstream s;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    if (!std::strcmp(argv[2], "created")) {
        auto create = reinterpret_cast<CUresult (*)(CUcontext *, unsigned, CUdevice)>(dlsym(library, "cuCtxCreate_v2"));
        CHECK(create(&context, 0, device));
    } else {
        CHECK(cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cuCtxSetCurrent(context));
    }
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (size_t bytes : {1000ul, 100000ul, 5ul << 20, 300ul << 20}) {
        CUdeviceptr p, q, base = 0;
        size_t length = 0, wrong = 0;
        std::vector<unsigned char> back(bytes);
        CHECK(CALL(cuMemAlloc, Alloc)(&p, bytes));
        CHECK(CALL(cuMemAllocAsync, AllocAsync)(&q, bytes, s));
        CHECK(cuMemsetD8Async(p, 3, bytes, s));
        CHECK(cuMemsetD8Async(q, 4, bytes, s));
        CHECK(cuMemcpyDtoDAsync(p, q, bytes / 2, s));
        CHECK(cuStreamSynchronize(s));
        CHECK(cuMemcpyDtoH(back.data(), p, bytes));
        for (size_t i = 0; i < bytes; i++) wrong += back[i] != (i < bytes / 2 ? 4 : 3);
        CHECK(CALL(cuMemGetAddressRange, Range)(&base, &length, p + bytes / 3));
        std::printf("%zu: %zu wrong, range %d %d\n", bytes, wrong, base == p, length >= bytes);
        CHECK(CALL(cuMemFree, Free)(p));
        CHECK(CALL(cuMemFreeAsync, FreeAsync)(q, s));
        std::printf("again %d\n", (int)CALL(cuMemFree, Free)(p));
    }
    CHECK(cuCtxSynchronize());
    if (!std::strcmp(argv[2], "created")) CHECK(cuCtxDestroy(context));
    std::printf("done\n");
    return 0;
}

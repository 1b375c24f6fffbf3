// Loads a library that stands in for gpumem in PyTorch programs (bench/peers), with an allocator
// that counts in place of PyTorch's own, and checks to whom calls are passed on: stand_ins LIBRARY
// OF-OWN
//
// OF-OWN: how many of two allocations PyTorch's own is to get, 0 or 2; or `turns`, for a library
// that is told.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <set>
#include <sys/types.h>

#define CHECK(what) ((what) ? (void)0 : (std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what), std::exit(1)))

struct Counting : c10::cuda::CUDACachingAllocator::CUDAAllocator {
    std::set<void *> live;
    int devices = 0, most = 0;
    void init(int n) override {
        CHECK(devices == 0);
        devices = n;
    }
    void *raw_alloc_with_stream(size_t size, cudaStream_t) override {
        CHECK(devices == 3);
        void *p = std::malloc(size);
        live.insert(p);
        most++;
        return p;
    }
    void raw_delete(void *p) override {
        CHECK(live.erase(p) == 1);
        std::free(p);
    }
};

static Counting own;
c10::cuda::CUDACachingAllocator::CUDAAllocator *c10::cuda::CUDACachingAllocator::get() { return &own; }
int c10::cuda::device_count() noexcept { return 3; }

template <typename F> static F *symbol(void *library, const char *name) { return reinterpret_cast<F *>(dlsym(library, name)); }

int main(int argc, char **argv) {
    CHECK(argc == 3);
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
    CHECK(library != nullptr);
    auto *allocate = symbol<void *(ssize_t, int, cudaStream_t)>(library, "gpumem_torch_malloc");
    auto *release = symbol<void(void *, ssize_t, int, cudaStream_t)>(library, "gpumem_torch_free");
    CHECK(allocate != nullptr && release != nullptr);
    if (std::strcmp(argv[2], "turns") != 0) {
        void *p = allocate(4096, 0, nullptr), *q = allocate(1 << 21, 0, nullptr);
        CHECK(p != nullptr && q != nullptr && own.most == std::atoi(argv[2]));
        release(p, 4096, 0, nullptr);
        release(q, 1 << 21, 0, nullptr);
        CHECK(own.live.empty());
        return 0;
    }
    auto *choose = symbol<void(int)>(library, "torch_turns_choose");
    CHECK(choose != nullptr);
    void *blocks[6];
    for (int i = 0; i < 6; i++) {
        choose(i % 2);
        blocks[i] = allocate(100000 + i, 0, nullptr);
        CHECK(blocks[i] != nullptr && own.live.count(blocks[i]) == (i % 2 == 0));
    }
    // Three, and the one that stays.
    CHECK(own.most == 4 && own.live.size() == 4);
    for (int i = 0; i < 6; i++) release(blocks[i], 100000 + i, 0, nullptr);
    CHECK(own.live.size() == 1);
    release(nullptr, 0, 0, nullptr);
    return 0;
}

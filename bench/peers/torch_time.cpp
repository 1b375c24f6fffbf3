// What a PyTorch program spends in its allocator: a library for CUDAPluggableAllocator that takes
// the time of every call and passes it on, to gpumem or to PyTorch's own caching allocator. Both
// are then called at the same places of the same program, behind the same interface, with caches as
// the program leaves them; a step's time would show mostly what else the program does.
//
//   TIMED=native | FOLDER/libgpumem.so.0    whom the calls go to
//   TIMED_OUT=FILE                          one JSON line is added there when the process ends
//
// torch_time.sh runs it.
#include "measure.hpp"
#include "torch_allocators.hpp"

#include <atomic>
#include <memory>

namespace {

// A call as long as this has waited for the driver or lost its processor: it is counted apart.
constexpr auto LONG = std::chrono::microseconds(20);

// Sums over one kind of call. calls + long_calls is how many there were.
struct Sums {
    std::atomic<uint64_t> calls{0}, ns{0}, long_calls{0}, long_ns{0};
    void add(Clock::duration d) {
        const auto took = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
        const bool is_long = d >= LONG;
        (is_long ? long_calls : calls).fetch_add(1, std::memory_order_relaxed);
        (is_long ? long_ns : ns).fetch_add(took, std::memory_order_relaxed);
    }
    // Microseconds, less what a look at the clock costs.
    double mean_us() const {
        const double n = static_cast<double>(calls);
        return n == 0 ? 0 : std::max(0.0, static_cast<double>(ns) / n - Times::clock_ns()) / 1e3;
    }
};

struct Timed {
    Sums mallocs, frees;
    TorchOwn own;
    std::unique_ptr<Gpumem> gpumem;  // none: the calls go to PyTorch's own

    Timed() {
        const char *to = std::getenv("TIMED");
        if (to == nullptr) die("torch_time: TIMED is not set: native, or the path of libgpumem.so.0");
        if (std::string(to) != "native") gpumem = std::make_unique<Gpumem>(to);
    }

    ~Timed() {
        const char *path = std::getenv("TIMED_OUT");
        std::FILE *out = path == nullptr ? stderr : std::fopen(path, "a");
        if (out == nullptr) return;
        std::fprintf(out,
                     "{\"allocator\":\"%s\",\"mallocs\":%llu,\"malloc_us\":%.4f,\"frees\":%llu,\"free_us\":%.4f,"
                     "\"long_calls\":%llu,\"long_ms\":%.3f}\n",
                     gpumem ? "gpumem" : "torch_native", static_cast<unsigned long long>(mallocs.calls), mallocs.mean_us(),
                     static_cast<unsigned long long>(frees.calls), frees.mean_us(),
                     static_cast<unsigned long long>(mallocs.long_calls + frees.long_calls),
                     static_cast<double>(mallocs.long_ns + frees.long_ns) / 1e6);
        if (out != stderr) std::fclose(out);
    }
};

Timed timed;

}  // namespace

// The names of libgpumem.so's own, so that a program can be given this library in its place.
extern "C" void *gpumem_torch_malloc(ssize_t size, int device, cudaStream_t stream) {
    if (!timed.gpumem) timed.own.prepare();
    const auto start = Clock::now();
    void *p = timed.gpumem ? timed.gpumem->allocate(size, device, stream) : timed.own.allocate(size, stream);
    timed.mallocs.add(Clock::now() - start);
    return p;
}

extern "C" void gpumem_torch_free(void *p, ssize_t size, int device, cudaStream_t stream) {
    const auto start = Clock::now();
    if (timed.gpumem) {
        timed.gpumem->release(p, size, device, stream);
    } else {
        timed.own.release(p);
    }
    timed.frees.add(Clock::now() - start);
}

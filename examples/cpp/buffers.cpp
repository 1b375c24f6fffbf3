// Device memory owned by objects: freed when they go, in stream order, also when an exception
// passes.
#include <gpumem.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

// Sends numbers through device memory and back, on a stream.
static std::vector<float> round_trip(const std::vector<float> &in, const gpumem::stream &s) {
    const std::size_t bytes = in.size() * sizeof(float);
    gpumem::scoped_async_buffer<float> first(in.size(), s), second(in.size(), s);
    std::vector<float> out(in.size());
    gpumem::check(gpumem_memcpy_async(first.data(), in.data(), bytes, s.get()));
    gpumem::check(gpumem_memcpy_async(second.data(), first.data(), bytes, s.get()));
    gpumem::check(gpumem_memcpy_async(out.data(), second.data(), bytes, s.get()));
    s.sync();
    return out; // both buffers are freed here, after their last use on the stream
}

int main() try {
    gpumem::stream s;
    std::vector<float> numbers(100000);
    std::iota(numbers.begin(), numbers.end(), 0.0f);
    std::printf("round trip: %s\n", round_trip(numbers, s) == numbers ? "the same" : "DIFFERENT");

    // For the length of an object rather than of a scope.
    gpumem::unique_buffer<int> weights(1 << 20);
    std::printf("%zu elements, %zu bytes\n", weights.size(), weights.size_bytes());

    try {
        gpumem::unique_buffer<char> too_much(std::size_t(1) << 60);
    } catch (const std::bad_alloc &e) {
        std::printf("as it should be: %s\n", e.what());
    }
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}

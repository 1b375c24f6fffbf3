// gpumem::capture: released by its destructor, aborted where an exception comes before its end.
#include "harness.h"
#include "throws.hpp"
#include <gpumem.hpp>

static void released_at_the_end_of_the_scope() {
    const std::size_t n = 3 * MIB;
    gpumem::stream s;
    void *kept = nullptr;
    {
        gpumem::capture c(s);
        kept = must_malloc_async(n, s.get());
        c.end();
        CHECK(c.stats().references == 1 && c.stats().live >= n);
        gpumem::capture moved(std::move(c));
        CHECK(!c && moved);
        gpumem::capture shared = moved.share(s);
        OK(gpumem_free_async(must_malloc_async(n, s.get()), s.get()));
        shared.end();
        CHECK(shared.stats().references == 2);
        c = std::move(moved);
        CHECK(c && !moved);
    }
    OK(gpumem_free_async(kept, s.get()));
    nothing_left();
}

static void ending_again_does_nothing() {
    gpumem::stream s;
    gpumem::capture c(s);
    OK(gpumem_free_async(must_malloc_async(3 * MIB, s.get()), s.get()));
    c.end();
    const gpumem_capture handle = c.get();
    c.end();
    // The reference is still there, and with it the memory of a graph.
    CHECK(c.get() == handle && c.stats().references == 1);
    c = gpumem::capture(s);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_end(handle));
    c.end();
    gpumem::capture moved(std::move(c));
    CHECK(throws<gpumem::error>([&] { c.share(s); }, GPUMEM_ERROR_INVALID, "capture holds nothing"));
}

// As every other owner, it can end before its scope does.
static void reset_ends_it() {
    gpumem::stream s;
    gpumem::capture c(s);
    must_malloc_async(3 * MIB, s.get());
    c.reset();
    // Not ended before: what it had allocated is free.
    CHECK(!c);
    nothing_left();
    c = gpumem::capture(s);
    void *kept = must_malloc_async(3 * MIB, s.get());
    c.end();
    const gpumem_capture handle = c.get();
    c.reset();
    c.reset();
    CHECK(!c);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_retain(handle));
    OK(gpumem_free_async(kept, s.get()));
    nothing_left();
}

static void an_exception_aborts() {
    gpumem::stream s;
    try {
        gpumem::capture c(s);
        must_malloc_async(3 * MIB, s.get());
        must_malloc_async(300, s.get());
        throw std::runtime_error("the capture came to nothing");
    } catch (const std::runtime_error &) {
    }
    // What it had allocated is free.
    nothing_left();
    try {
        gpumem_capture_options options;
        GPUMEM_INIT(&options);
        options.flags = 64;
        gpumem::capture c(s, options);
        CHECK(false);
    } catch (const gpumem::error &e) {
        CHECK(e.status() == GPUMEM_ERROR_INVALID);
    }
}

// A buffer may outlive the capture that it was filled in. What lives at its address by then stays.
static void what_is_left_of_a_buffer_frees_nothing_of_others() {
    constexpr std::size_t n = 8 * MIB;
    gpumem::stream s;
    gpumem::unique_buffer<char> plain;
    gpumem::async_buffer<char> resized(0, s), handed_over;
    const std::uint64_t late = stats_now().late_frees;
    {
        gpumem::capture c(s);
        plain = gpumem::unique_buffer<char>(n, s);
        resized.reset();
        resized.resize(n);
        handed_over = gpumem::async_buffer<char>(n, s);
        handed_over.set_stream(nullptr);
    }
    nothing_left();
    s.sync();
    void *victims[64];
    for (void *&v : victims) v = must_malloc_async(n, s.get());
    CHECK(throws<gpumem::error>([&] { resized.resize(2 * n); }, GPUMEM_ERROR_USE_AFTER_FREE,
                                "went with its arena or capture"));
    plain.reset();
    resized.reset();
    handed_over.reset();
    CHECK(stats_now().late_frees == late + 3);
    for (void *v : victims) CHECK(gpumem_usable_size(v) >= n);
    for (void *v : victims) gpumem_free(v);
    nothing_left();
    // One that is ended keeps what is its buffers'.
    gpumem::capture c(s);
    plain = gpumem::unique_buffer<char>(n, s);
    c.end();
    c.reset();
    CHECK(stats_now().allocations == 1);
    plain.reset();
    CHECK(stats_now().late_frees == late + 3);
    nothing_left();
}

int main() {
    RUN(released_at_the_end_of_the_scope);
    RUN(ending_again_does_nothing);
    RUN(reset_ends_it);
    RUN(an_exception_aborts);
    RUN(what_is_left_of_a_buffer_frees_nothing_of_others);
    return 0;
}

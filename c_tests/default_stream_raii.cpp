// gpumem.hpp in a file that is compiled with CUDA's per-thread default stream: stream 0 is each
// thread's own.
#define __CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "harness.h"
#include <gpumem.hpp>
#include <thread>

enum { BYTES = 100000 };

static void stream_0_is_the_threads_own() {
    for (gpumem::stream_ref s : {gpumem::stream_ref(), gpumem::stream_ref(0), gpumem::stream_ref(nullptr),
                                 gpumem::stream_ref(gpumem_stream(nullptr))}) {
        CHECK(s.get() == GPUMEM_STREAM_PER_THREAD);
    }
    CHECK(gpumem::stream_ref(GPUMEM_STREAM_LEGACY).get() == GPUMEM_STREAM_LEGACY);
    CHECK(gpumem::async_buffer<char>(1).get_stream().get() == GPUMEM_STREAM_PER_THREAD);
    CHECK(gpumem::allocator<char>(nullptr).get_stream() == gpumem::stream_ref());
}

// Whatever is made on stream 0 here can be used on another thread's stream 0 only behind it: what
// this thread frees while its own stream is held up by a capture is not that thread's to have.
static void two_threads_have_two() {
    const gpumem::stream_ref mine;
    gpumem::async_buffer<char> a(BYTES);
    gpumem::check(gpumem_memset_async(a.data(), 1, BYTES, mine.get()));
    mine.sync();
    gpumem::begin_capture(0, GPUMEM_SIM_CAPTURE_RELAXED);
    gpumem::check(gpumem_memset_async(a.data(), 2, BYTES, mine.get()));
    std::thread([] {
        gpumem::memory_resource mr;
        gpumem::unique_buffer<char> b(BYTES);
        void *p = mr.allocate(0, BYTES), *q = mr.allocate_sync(BYTES);
        for (void *each : {static_cast<void *>(b.data()), p, q}) {
            fill(each, BYTES, 3, gpumem::stream_ref().get());
            CHECK(holds(each, BYTES, 3, gpumem::stream_ref(0).get()));
        }
        mr.deallocate(nullptr, p, BYTES);
        mr.deallocate_sync(q, BYTES);
    }).join();
    gpumem::graph g = gpumem::end_capture(0);
    CHECK(holds_byte(a.data(), BYTES, 1, mine.get()));
    g.launch({});
    CHECK(holds_byte(a.data(), BYTES, 2, mine.get()));
}

// The memory of a buffer is ordered on the stream of the thread that made it, wherever it goes.
static void a_buffer_may_end_on_another_thread() {
    gpumem::unique_buffer<char> a(BYTES);
    gpumem::check(gpumem_memset_async(a.data(), 1, BYTES, gpumem::stream_ref().get()));
    std::thread([&a] { a.reset(); }).join();
    gpumem::unique_buffer<char> again(BYTES);
    fill(again.data(), BYTES, 4, gpumem::stream_ref().get());
    CHECK(holds(again.data(), BYTES, 4, gpumem::stream_ref().get()));
}

// Nor does it matter where a buffer ends whose stream was set to this thread's own.
static void a_stream_that_is_set_is_this_threads() {
    const gpumem::stream_ref mine;
    gpumem::stream s;
    gpumem::async_buffer<char> a(2 * MIB, s);
    void *const at = a.data();
    mine.wait(s);
    a.set_stream(mine);
    gpumem::async_buffer<char>().set_stream(mine);
    OK(gpumem_last_status());
    mine.sync();
    gpumem::begin_capture(0, GPUMEM_SIM_CAPTURE_RELAXED);
    std::thread([&a, at] {
        a.reset();
        // The other thread's stream is held up, so the memory is nobody's yet.
        gpumem::async_buffer<char> taken(2 * MIB);
        CHECK(taken.data() != at);
    }).join();
    gpumem::end_capture(0);
}

int main() {
    RUN(stream_0_is_the_threads_own);
    RUN(two_threads_have_two);
    RUN(a_buffer_may_end_on_another_thread);
    RUN(a_stream_that_is_set_is_this_threads);
    nothing_left();
    return 0;
}

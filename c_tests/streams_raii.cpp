// gpumem.hpp for who has a cudaStream_t, which is a gpumem_stream: whatever takes a stream takes
// any stream.
#include "harness.h"
#include <gpumem.hpp>
#include <array>
#include <thread>
#include <vector>

namespace {

// As cuda::stream_ref and rmm::cuda_stream_view are.
struct with_get {
    gpumem_stream s;
    gpumem_stream get() const noexcept { return s; }
};
struct becomes_one {
    gpumem_stream s;
    operator gpumem_stream() const noexcept { return s; }
};
struct no_stream {
    int *get() const noexcept { return nullptr; }
};

static_assert(std::is_convertible<gpumem_stream, gpumem::stream_ref>::value, "");
static_assert(std::is_convertible<std::nullptr_t, gpumem::stream_ref>::value, "");
static_assert(!std::is_convertible<no_stream, gpumem::stream_ref>::value, "");
static_assert(!std::is_convertible<gpumem::capture, gpumem::stream_ref>::value, "");
static_assert(!std::is_convertible<int, gpumem::stream_ref>::value, "");
// A stream is taken over only where that is asked for.
static_assert(!std::is_convertible<gpumem_stream, gpumem::stream>::value, "");

gpumem_stream handle(gpumem::stream_ref s) { return s.get(); }

void every_stream_becomes_a_ref() {
    gpumem::stream s;
    gpumem::stream_pool pool(2);
    auto borrowed = pool.borrow();
    CHECK(handle(s) == s.get() && handle(s.get()) == s.get() && handle(borrowed) == borrowed.get());
    CHECK(handle(with_get{s.get()}) == s.get() && handle(becomes_one{s.get()}) == s.get());
    CHECK(handle(nullptr) == nullptr && handle(0) == nullptr && handle({}) == nullptr);
    CHECK(gpumem::stream_ref(s) == gpumem::stream_ref(s.get()) && gpumem::stream_ref(s) != gpumem::stream_ref());
    borrowed.wait(s);
    s.wait(borrowed);
    gpumem::stream_ref(borrowed).wait(nullptr);
    gpumem::stream_ref(s.get()).sync();
    borrowed.sync();
}

void a_stream_of_mine_can_be_taken_over() {
    gpumem_stream raw = must_stream();
    gpumem::stream own(raw);
    CHECK(own && own.get() == raw);
    raw = own.release();
    CHECK(!own && raw != nullptr);
    own = gpumem::stream(raw);
    own.reset();
    CHECK(!own);
}

template <class Stream> void takes(const Stream &s) {
    const std::size_t n = 1000;
    gpumem::async_buffer<int> a(n, s);
    gpumem::unique_buffer<int> b(n, s);
    gpumem::memory_resource mr;
    gpumem::allocator<int> alloc(s);
    CHECK(a.size_bytes() == 4 * n && b.size_bytes() == 4 * n);
    fill(a.data(), a.size_bytes(), 1, handle(s));
    fill(b.data(), b.size_bytes(), 2, handle(s));
    CHECK(holds(a.data(), a.size_bytes(), 1, handle(s)) && holds(b.data(), b.size_bytes(), 2, handle(s)));
    mr.deallocate(s, mr.allocate(s, 100), 100);
    alloc.deallocate(alloc.allocate(3), 3);
    gpumem::space::gpu().current(s);
    auto evictable = gpumem::make_evictable<int>(n, 3, s);
    { gpumem::held here(evictable, s); }
    gpumem::evict(evictable, gpumem::move_options().after(s));
    gpumem::restore(evictable, gpumem::move_options().after(s));
}

void everything_takes_every_stream() {
    gpumem::stream s;
    gpumem::stream_pool pool(1);
    auto borrowed = pool.borrow();
    takes(s);
    takes(s.get());
    takes(borrowed);
    takes(with_get{s.get()});
    takes(becomes_one{s.get()});
    takes(nullptr);
    takes(GPUMEM_STREAM_PER_THREAD);
    for (gpumem_stream raw : {s.get(), borrowed.get()}) {
        gpumem::capture c(raw);
        c.end();
        gpumem::capture shared = c.share(raw);
        shared.end();
        gpumem::begin_capture(raw);
        gpumem::async_buffer<char> inside(10, raw);
        gpumem::graph g = gpumem::end_capture(raw);
        g.launch(raw);
        g.launch(borrowed);
    }
    gpumem::plan plan;
    plan.add(100, 0, 1);
    plan.solve();
    CHECK(plan.materialise(s.get()).size() == 100 && plan.materialise(borrowed).size() == 100);
    s.sync();
    borrowed.sync();
    nothing_left();
}

gpumem::async_buffer<float> make(gpumem::stream_ref s) {
    gpumem::async_buffer<float> x(10, s);
    return x;
}

void async_buffers_move_and_grow() {
    gpumem::stream s, t;
    {
        std::vector<gpumem::async_buffer<float>> all;
        for (int i = 0; i < 20; i++) all.emplace_back(static_cast<std::size_t>(i), s);
        all.push_back(make(t));
        CHECK(all.back().size() == 10 && all.back().get_stream() == t && stats_now().allocations == 21);
        gpumem::async_buffer<float> empty, moved(std::move(all.back()));
        CHECK(!all.back() && all.back().size() == 0 && moved && !empty);
        all.back() = std::move(moved);
        CHECK(!moved && all.back().size() == 10);
        std::swap(all.front(), all.back());
        CHECK(all.front().get_stream() == t && all.back().get_stream() == s);

        gpumem::async_buffer<char> grows(0, s);
        grows.resize(1000);
        fill(grows.data(), 1000, 1, s.get());
        grows.resize(5 * MIB);
        CHECK(grows.size() == 5 * MIB && holds(grows.data(), 1000, 1, s.get()));
        grows.resize(500);
        CHECK(grows.size() == 500 && holds(grows.data(), 500, 1, s.get()));
        t.wait(s);
        grows.set_stream(t);
        grows.resize(MIB);
        CHECK(grows.get_stream() == t && holds(grows.data(), 500, 1, t.get()));
        // An empty one, and one that was moved from, can be filled again.
        gpumem::async_buffer<char> other(std::move(grows));
        grows.set_stream(s);
        grows.resize(10);
        CHECK(grows.size() == 10 && grows.data() != nullptr && other.size() == MIB);
        char *raw = other.release();
        CHECK(!other && other.size() == 0);
        OK(gpumem_free_async(raw, t.get()));
        other.reset();
        grows.reset();
        CHECK(!grows);
    }
    nothing_left();
}

void buffers_hold_bytes_and_constants() {
    gpumem::allocator<int> ints{gpumem::stream_ref()};
    gpumem::allocator<char> chars(ints);
    CHECK(ints == chars && !(chars != ints));
    gpumem::unique_buffer<void> bytes(100);
    gpumem::async_buffer<const float> constant(10);
    CHECK(bytes.size_bytes() == 100 && constant.size_bytes() == 40);
    CHECK(gpumem_usable_size(bytes.data()) >= 100);
}

void an_arena_keeps_what_it_is_given() {
    gpumem::stream s;
    gpumem::arena step("step");
    gpumem::unique_buffer<float> a(10, s);
    gpumem::async_buffer<const double> b(10, s);
    gpumem::unique_buffer<const char> c(10);
    std::array<float *, 1> all{{static_cast<float *>(gpumem_malloc(10))}};
    {
        gpumem::arena inner;
        std::vector<float *> keep{static_cast<float *>(gpumem_malloc(100)), all[0]};
        CHECK(inner.exit(keep).kept == 1); // the other is of the arena around it
        gpumem_free(keep[0]);
    }
    CHECK(step.exit({a, b, c.data(), all[0]}).kept == 4);
    gpumem::arena next;
    gpumem_free(all[0]);
    CHECK(next.exit(all).unknown == 1);
}

} // namespace

int main() {
    RUN(every_stream_becomes_a_ref);
    RUN(a_stream_of_mine_can_be_taken_over);
    RUN(everything_takes_every_stream);
    RUN(async_buffers_move_and_grow);
    RUN(buffers_hold_bytes_and_constants);
    RUN(an_arena_keeps_what_it_is_given);
    nothing_left();
    return 0;
}

// gpumem.hpp's spaces, reservations and stream pools: promises and streams that end with their
// scopes.
#include "harness.h"
#include "throws.hpp"
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

static const gpumem::space gpu = gpumem::space::gpu();
static const std::uint64_t all = 100 * MIB;

static void spaces_are_values() {
    bool found = false;
    for (const gpumem::space &one : gpumem::space::all()) {
        found = found || one == gpu;
        CHECK(one.stats().limit <= one.stats().capacity);
    }
    CHECK(found && gpu == gpumem::space(GPUMEM_TIER_GPU, 0) && gpu != gpumem::space::host(0));
    CHECK(gpumem::space::disk(3).tier() == GPUMEM_TIER_DISK && gpumem::space::disk(3).id() == 3);
    gpu.set_limit();
    CHECK(gpu.stats().limit == gpu.stats().capacity);
    gpu.set_thresholds(0.5, 0.25);
    CHECK(gpu.stats().stop == gpu.stats().capacity / 4);
    gpu.set_thresholds(0.85, 0.65);
    gpu.reset_peak();
    CHECK(throws<gpumem::error>([] { gpumem::space::gpu(99).stats(); }, GPUMEM_ERROR_INVALID, "no space GPU 99"));
    CHECK(throws<gpumem::error>([] { gpumem::space::add_disk("/no/such/directory"); }, GPUMEM_ERROR_IO, "no/such"));
    gpu.set_limit(all);
}

static void promises_end_with_their_scopes() {
    static_assert(!std::is_copy_constructible<gpumem::reservation>::value, "move-only");
    static_assert(!std::is_copy_constructible<gpumem::reservation_attachment>::value, "move-only");
    static_assert(!std::is_copy_constructible<gpumem::token>::value, "move-only");
    static_assert(std::is_nothrow_move_constructible<gpumem::reservation>::value, "noexcept");
    gpumem::reservation outer, empty;
    CHECK(!empty && throws<gpumem::error>([&] { empty.info(); }, GPUMEM_ERROR_INVALID, "NULL"));
    {
        gpumem::reservation a = gpumem::reserve(60 * MIB), b = gpumem::reserve(gpu, 30 * MIB);
        CHECK(a.size() == 60 * MIB && gpu.stats().promised == 90 * MIB);
        CHECK(throws<gpumem::bad_alloc>([] { gpumem::reserve(11 * MIB); }, GPUMEM_ERROR_OUT_OF_MEMORY, "not available"));
        CHECK(throws<gpumem::error>([] { gpumem::reserve(gpu, 11 * MIB, 1); }, GPUMEM_ERROR_TIMED_OUT, "in time"));
        a.grow(10 * MIB);
        CHECK(throws<gpumem::error>([&] { b.grow(1, 1); }, GPUMEM_ERROR_TIMED_OUT, "in time"));
        a.shrink(20 * MIB);
        CHECK(a.size() == 50 * MIB && b.release() == 0 && !b && gpu.stats().promised == 50 * MIB);
        CHECK(throws<gpumem::error>([&] { b.release(); }, GPUMEM_ERROR_INVALID, "NULL"));
        outer = std::move(a);
        CHECK(!a && outer.size() == 50 * MIB);
        try {
            gpumem::reservation inside = gpumem::reserve(MIB);
            throw std::runtime_error("in the middle");
        } catch (const std::runtime_error &) {
            CHECK(gpu.stats().promised == 50 * MIB);
        }
    }
    CHECK(outer.shrink_to_fit() == 50 * MIB && gpu.stats().reservations == 1);
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = 2 * all;
    options.least_bytes = 1;
    outer = gpumem::reserve(options); // releases the one before
    CHECK(outer.size() == all && gpu.stats().reservations == 1);
}

static void threads_and_streams_draw_from_what_is_attached() {
    gpumem::stream s, t;
    gpumem::reservation a = gpumem::reserve(MIB), b = gpumem::reserve(MIB);
    a.attach(s);
    CHECK(gpu.current(s.get()) == a.info().number && gpu.current(t.get()) == 0);
    {
        gpumem::reservation_attachment here(b), moved(std::move(here));
        CHECK(gpu.current(t.get()) == b.info().number);
        std::thread([&] { CHECK(gpu.current(t.get()) == 0); }).join();
        CHECK(throws<gpumem::error>([&] { gpumem::reservation_attachment twice(a); }, GPUMEM_ERROR_INVALID, "detach it"));
    }
    CHECK(gpu.current(t.get()) == 0);
    gpu.detach(s);
    CHECK(gpu.current(s.get()) == 0);
    {
        gpumem::reservation_attachment here(b);
        b.release(); // before its attachment ends
    }
    // That is no failure, which a thread without one before shows.
    std::thread([] {
        {
            gpumem::reservation own = gpumem::reserve(MIB);
            gpumem::reservation_attachment here(own);
            own.release();
        }
        OK(gpumem_last_status());
    }).join();
    {
        // The default stream has one too, which comes before the thread's.
        gpumem::reservation of_stream = gpumem::reserve(MIB), of_thread = gpumem::reserve(MIB);
        of_stream.attach(nullptr);
        { gpumem::reservation_attachment here(of_thread); }
        CHECK(gpu.current(t) == 0 && gpu.current(nullptr) == of_stream.info().number);
    }
    // The end of an attachment whose reservation is released is none of another's.
    gpumem::reservation c = gpumem::reserve(MIB), d = gpumem::reserve(MIB);
    gpumem::reservation_attachment here(c);
    c.release();
    here = gpumem::reservation_attachment(d);
    CHECK(gpu.current(t.get()) == d.info().number);
    here.reset();
    CHECK(gpu.current(t.get()) == 0);
    // Only what is attached is detached.
    here = gpumem::reservation_attachment(d);
    gpumem::reservation e = gpumem::reserve(MIB);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_detach_thread(e.get()));
    CHECK(error_says("is not attached") && gpu.current(t.get()) == d.info().number);
    CHECK(throws<gpumem::error>([&] { gpumem::reservation_attachment late(b); }, GPUMEM_ERROR_INVALID, "NULL"));
}

static void waits_are_cancelled() {
    gpumem::reservation a = gpumem::reserve(90 * MIB), b = gpumem::reserve(10 * MIB);
    gpumem::token token, moved(std::move(token));
    std::thread waits([&] {
        CHECK(throws<gpumem::error>([&] { b.grow(MIB, gpumem::forever, moved); }, GPUMEM_ERROR_CANCELLED, "cancelled"));
    });
    while (gpu.stats().waiters == 0) std::this_thread::yield();
    moved.cancel();
    waits.join();
    CHECK(b.size() == 10 * MIB && token.get() == nullptr);
    // No wait that nothing can cancel.
    CHECK(throws<gpumem::error>([&] { b.grow(MIB, 1, token); }, GPUMEM_ERROR_INVALID, "token holds nothing"));
}

// What a function holds lives as long as it can be called, and no longer.
static void functions_live_as_long_as_they_are_set() {
    auto held = std::make_shared<int>(1);
    {
        gpumem::reservation r = gpumem::reserve(MIB);
        r.on_overdraw([held](const gpumem_overdraw &) { return std::int64_t{GPUMEM_OVERDRAW_IGNORE}; });
        r.on_out_of_memory([held](const gpumem_shortage &) { return false; });
        CHECK(held.use_count() == 3);
        r.on_overdraw(nullptr);
        CHECK(held.use_count() == 2);
        r.on_overdraw([held](const gpumem_overdraw &) { return std::int64_t{1}; });
        gpumem_reserve_policy policy;
        GPUMEM_INIT(&policy);
        policy.kind = GPUMEM_POLICY_INCREASE;
        r.set_policy(policy);
        CHECK(held.use_count() == 2);
    }
    CHECK(held.use_count() == 1);
    gpumem::reservation gone;
    CHECK(throws<gpumem::error>([&] { gone.on_overdraw([held](const gpumem_overdraw &) { return std::int64_t{0}; }); },
                                GPUMEM_ERROR_INVALID, "NULL"));
    CHECK(throws<gpumem::error>([&] { gone.on_out_of_memory([held](const gpumem_shortage &) { return true; }); },
                                GPUMEM_ERROR_INVALID, "NULL"));
    CHECK(held.use_count() == 1);
    gpu.on_out_of_memory([held](const gpumem_shortage &) { return false; });
    CHECK(held.use_count() == 2);
    gpu.on_out_of_memory(nullptr);
    CHECK(held.use_count() == 1);

    // An exception ends in the function that gpumem calls.
    gpumem_overdraw overdraw{};
    gpumem_shortage shortage{};
    gpumem::overdraw_function angry = [](const gpumem_overdraw &) -> std::int64_t { throw 1; };
    gpumem::out_of_memory_function furious = [](const gpumem_shortage &) -> bool { throw 1; };
    CHECK(gpumem::detail::call_overdraw(&overdraw, &angry) == GPUMEM_OVERDRAW_FAIL);
    CHECK(gpumem::detail::call_out_of_memory(&shortage, &furious) == 0);
}

static void streams_are_lent_to_one_at_a_time() {
    static_assert(!std::is_copy_constructible<gpumem::borrowed_stream>::value, "move-only");
    gpumem::stream_pool pool(2);
    {
        gpumem::borrowed_stream a = pool.borrow(), b = pool.borrow(0);
        CHECK(a && a.get() != b.get());
        CHECK(throws<gpumem::bad_alloc>([&] { pool.borrow(0); }, GPUMEM_ERROR_OUT_OF_MEMORY, "all streams (2)"));
        CHECK(throws<gpumem::error>([&] { pool.borrow(1); }, GPUMEM_ERROR_TIMED_OUT, "stayed borrowed"));
        gpumem::borrowed_stream c = pool.borrow_or_grow(), moved(std::move(c));
        CHECK(!c && pool.stats().made == 3 && pool.stats().borrowed == 3);
        gpumem::scoped_async_buffer<int> buffer(100, a.get());
        a.sync();
        a = std::move(b); // a's stream goes back
        CHECK(pool.stats().borrowed == 2 && pool.stats().idle == 1);
    }
    CHECK(pool.stats().borrowed == 0 && pool.stats().idle == 3);
    std::set<gpumem_stream> seen;
    std::vector<gpumem::borrowed_stream> held;
    for (int i = 0; i < 3; i++) held.push_back(pool.borrow());
    for (const auto &one : held) seen.insert(one.get());
    CHECK(seen.size() == 3);
    { gpumem::stream_pool closed(std::move(pool)); }
    CHECK(pool.get() == nullptr);
    held.back().sync(); // outlives the pool
    held.clear();
}

int main() {
    gpumem::check(gpumem_init(nullptr));
    RUN(spaces_are_values);
    RUN(promises_end_with_their_scopes);
    RUN(threads_and_streams_draw_from_what_is_attached);
    RUN(waits_are_cancelled);
    RUN(functions_live_as_long_as_they_are_set);
    RUN(streams_are_lent_to_one_at_a_time);
    CHECK(gpu.stats().promised == 0 && gpu.stats().reservations == 0);
    nothing_left();
    return 0;
}

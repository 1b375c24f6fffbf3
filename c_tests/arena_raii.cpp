// gpumem.hpp's arenas: scopes that end with their allocations, by exit, by exception, by being
// forgotten.
#include "harness.h"
#include <gpumem.hpp>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

template <class E, class F> static bool throws(F call, const char *says) {
    try {
        call();
    } catch (const E &e) {
        return std::string(e.what()).find(says) != std::string::npos;
    }
    return false;
}

static gpumem_arena current() {
    gpumem_arena a = nullptr;
    gpumem::check(gpumem_arena_current_get(&a));
    return a;
}

static gpumem_arena arena_of(const void *p) {
    gpumem_arena a = nullptr;
    gpumem::check(gpumem_arena_find(p, &a));
    return a;
}

static void exits_keep_what_they_are_told() {
    gpumem::stream s;
    gpumem::arena outer, inner("inner"), innermost(std::string("innermost"));
    CHECK(throws<gpumem::error>([] { gpumem::arena cut(std::string("a\0b", 3)); }, "the name has a NUL"));
    CHECK(current() == innermost.get() && innermost && std::string(innermost.stats().name) == "innermost");
    void *a = must_malloc_async(100, s.get()), *b = must_malloc_async(200, s.get()), *c = must_malloc_async(300, s.get());
    fill(a, 100, 1, s.get());
    gpumem_arena_report report = innermost.exit({a, b});
    CHECK(report.kept == 2 && report.freed_bytes == 300 && report.depth == 2);
    CHECK(!innermost && arena_of(a) == inner.get());
    report = inner.exit(std::vector<void *>{a, c}); // c is gone
    CHECK(report.kept == 1 && report.freed_bytes == 200 && report.unknown == 1);
    void *const keep[] = {a};
    report = outer.exit(keep, 1);
    CHECK(report.kept == 1 && report.freed == 0 && arena_of(a) == nullptr);
    CHECK(holds(a, 100, 1, s.get()));
    gpumem_free(a);
    gpumem::arena nothing;
    CHECK(nothing.exit().freed == 0);
    // One alone, and an array, which is no pointer.
    gpumem::arena one;
    gpumem::unique_buffer<float> buffer(10, s);
    gpumem_malloc(10);
    CHECK(one.exit(buffer).freed == 1);
    gpumem::arena another;
    void *all[] = {gpumem_malloc(10), gpumem_malloc(20)};
    CHECK(another.exit(all).kept == 2);
    gpumem::arena third;
    void *last = gpumem_malloc(30);
    CHECK(third.exit(last).kept == 1);
    buffer.reset();
    for (void *p : {all[0], all[1], last}) gpumem_free(p);
    nothing_left();
}

// What an exception passes through is freed: the arena's own, and that of arenas still open inside.
static void exceptions_free_everything() {
    gpumem::arena outer("outer");
    gpumem_malloc(10);
    for (int i = 0; i < 3; i++) {
        try {
            gpumem::arena step("step");
            gpumem_malloc(1000);
            gpumem_arena raw = nullptr;
            gpumem::check(gpumem_arena_enter(&raw)); // and never exited
            gpumem_malloc(2000);
            CHECK(outer.stats().live == 1 && step.stats().live == 1 && stats_now().allocations == 3);
            if (i < 3) throw std::runtime_error("in the middle of a step");
            step.exit();
        } catch (const std::runtime_error &e) {
            CHECK(std::string(e.what()) == "in the middle of a step");
        }
        CHECK(stats_now().allocations == 1 && current() == outer.get());
    }
    CHECK(outer.exit().freed == 1);
    { gpumem::arena forgotten; gpumem_malloc(5); }
    nothing_left();
}

static void failed_exits_throw_and_leave_the_arena_open() {
    gpumem::arena outer("outer");
    {
        gpumem::arena inner("inner");
        void *p = gpumem_malloc(10);
        CHECK(throws<gpumem::error>([&] { outer.exit({p}); }, "this thread's current arena"));
        std::thread([&] { CHECK(throws<gpumem::error>([&] { inner.exit(); }, "not attached")); }).join();
        CHECK(outer && inner && arena_of(p) == inner.get());
        gpumem_arena raw = inner.get();
        inner.exit();
        CHECK(throws<gpumem::error>([&] { inner.exit(); }, "NULL"));
        CHECK(throws<gpumem::error>([&] { inner.stats(); }, "NULL"));
        CHECK(throws<gpumem::error>([&] { gpumem::arena_attachment again(raw); }, "exited"));
    }
    CHECK(throws<gpumem::error>([] { gpumem::arena bad("\xff"); }, "UTF-8"));
    CHECK(outer.abort().freed == 0);
    nothing_left();
}

static void moved_arenas_end_once() {
    static_assert(!std::is_copy_constructible<gpumem::arena>::value, "move-only");
    static_assert(!std::is_copy_constructible<gpumem::arena_attachment>::value, "move-only");
    // The new one is inside the old one, and would end with it.
    static_assert(!std::is_move_assignable<gpumem::arena>::value, "no assignment");
    static_assert(!std::is_move_assignable<gpumem::arena_attachment>::value, "no assignment");
    static_assert(std::is_nothrow_move_constructible<gpumem::arena>::value, "noexcept");
    static_assert(std::is_nothrow_destructible<gpumem::arena>::value, "noexcept");
    {
        gpumem::arena a("a"), moved(std::move(a));
        CHECK(!a && moved && current() == moved.get());
        gpumem_malloc(10);
        gpumem::arena inside("inside");
        gpumem_malloc(20);
        inside.reset(); // aborts the one inside
        inside.swap(moved);
        CHECK(!moved && current() == inside.get() && stats_now().allocations == 1);
        gpumem_arena raw = inside.release();
        CHECK(!inside);
        gpumem::check(gpumem_arena_exit(raw, nullptr, 0, nullptr));
    }
    nothing_left();
}

static void attachments_are_scopes() {
    gpumem::arena a("shared");
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++) {
        threads.emplace_back([&] {
            {
                gpumem::arena_attachment here(a), moved(std::move(here));
                CHECK(here.get() == nullptr && current() == a.get());
                gpumem_malloc(100);
                CHECK(throws<gpumem::error>([&] { gpumem::arena_attachment twice(a); }, "already"));
            }
            CHECK(current() == nullptr);
        });
    }
    for (std::thread &t : threads) t.join();
    CHECK(a.stats().threads == 1 && a.exit().freed == 4);
    // A buffer that escapes outlives the arena and is freed by its owner.
    gpumem::unique_buffer<float> cached;
    {
        gpumem::arena step;
        cached = gpumem::unique_buffer<float>(1000);
        gpumem::check(gpumem_arena_escape(cached.data()));
    }
    CHECK(stats_now().allocations == 1);
    cached.reset();
    nothing_left();
}

// An arena that cannot end because another thread is attached: the scope's thread leaves it, and
// what is open inside, but nothing around it.
static void a_scope_that_cannot_end_its_arena_leaves_it() {
    gpumem_arena raw = nullptr;
    std::promise<void> attached, detach;
    std::thread other;
    gpumem::arena around("around");
    try {
        gpumem::arena step("step");
        raw = step.get();
        other = std::thread([&] {
            gpumem::arena_attachment here(raw);
            attached.set_value();
            detach.get_future().wait();
        });
        attached.get_future().wait();
        gpumem::arena("inner").release();
        throw std::runtime_error("in the middle of a step");
    } catch (const std::runtime_error &) {
    }
    CHECK(current() == around.get());
    gpumem::unique_buffer<char> later(MIB);
    CHECK(arena_of(later.data()) == around.get());
    try {
        gpumem::arena outer("outer"), inner("inner");
        outer.abort();
        throw std::runtime_error("in the middle of a step");
    } catch (const std::runtime_error &) {
    }
    CHECK(current() == around.get());
    detach.set_value();
    other.join();
    CHECK(gpumem_arena_abort(raw, nullptr) == GPUMEM_OK && stats_now().allocations == 1);
    around.exit();
    nothing_left();
}

// A buffer may outlive the arena that it was filled in. What lives at its address by then stays.
static void what_is_left_of_a_buffer_frees_nothing_of_others() {
    constexpr std::size_t count = MIB;
    gpumem::stream s;
    gpumem::unique_buffer<float> assigned, swapped, adopted, of_another_arena;
    gpumem::async_buffer<char> grown(0, s), handed_over;
    const std::uint64_t late = stats_now().late_frees;
    const std::uint64_t refused = stats_now().double_frees + stats_now().unknown_pointers;
    {
        gpumem::arena step("step");
        assigned = gpumem::unique_buffer<float>(count, s);
        gpumem::unique_buffer<float> other(count, s);
        swapped.swap(other);
        adopted = gpumem::unique_buffer<float>::adopt(static_cast<float *>(must_malloc_async(4 * count, s.get())), count);
        grown.reset();
        grown.resize(4 * count);
        handed_over = gpumem::async_buffer<char>(4 * count);
        handed_over.set_stream(s);
        float *const inside = static_cast<float *>(must_malloc_async(4 * count, s.get()));
        // Resized or adopted where there is no arena, memory stays in its own.
        gpumem::check(gpumem_arena_detach(step.get()));
        grown.resize(5 * count);
        of_another_arena = gpumem::unique_buffer<float>::adopt(inside, count);
    }
    nothing_left();
    void *victims[6];
    for (void *&v : victims) v = must_malloc_async(4 * count, s.get());
    CHECK(throws<gpumem::error>([&] { grown.resize(8 * count); }, "went with its arena"));
    CHECK(grown.size() == 5 * count);
    assigned.reset();
    gpumem::unique_buffer<float>().swap(swapped);
    { gpumem::unique_buffer<float> moved(std::move(adopted)); }
    of_another_arena.reset();
    grown.reset();
    handed_over = gpumem::async_buffer<char>();
    for (void *v : victims) CHECK(gpumem_usable_size(v) >= 4 * count);
    CHECK(stats_now().late_frees == late + 6);
    // A buffer that is used again is as new.
    grown.resize(10);
    CHECK(stats_now().allocations == 7);
    grown.reset();
    for (void *v : victims) gpumem_free(v);
    CHECK(stats_now().double_frees + stats_now().unknown_pointers == refused && stats_now().late_frees == late + 6);
    nothing_left();
}

// What the arena keeps is its buffer's as before, also when resizing has moved it.
static void what_is_kept_of_a_buffer_is_freed_once() {
    gpumem::async_buffer<char> kept, handed_over, released;
    gpumem::unique_buffer<char> whole;
    {
        gpumem::arena step;
        kept.resize(100);
        released = gpumem::async_buffer<char>(100);
        whole = gpumem::unique_buffer<char>(100);
        handed_over = gpumem::async_buffer<char>(100);
        step.exit({kept, handed_over, released, whole});
    }
    kept.resize(MIB);
    kept.resize(10 * MIB);
    handed_over.set_stream(nullptr);
    CHECK(stats_now().allocations == 4);
    const std::uint64_t late = stats_now().late_frees;
    gpumem_free(released.release());
    released.resize(10);
    kept.reset();
    handed_over.reset();
    whole.reset();
    CHECK(stats_now().allocations == 1);
    released.reset();
    CHECK(stats_now().late_frees == late);
    nothing_left();
}

int main() {
    gpumem::check(gpumem_init(nullptr));
    RUN(exits_keep_what_they_are_told);
    RUN(exceptions_free_everything);
    RUN(failed_exits_throw_and_leave_the_arena_open);
    RUN(moved_arenas_end_once);
    RUN(attachments_are_scopes);
    RUN(a_scope_that_cannot_end_its_arena_leaves_it);
    RUN(what_is_left_of_a_buffer_frees_nothing_of_others);
    RUN(what_is_kept_of_a_buffer_is_freed_once);
    return 0;
}

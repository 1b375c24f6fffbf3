// gpumem.hpp's plan: it owns its handle, failures are exceptions, and its memory is a buffer.
#include "plan.h"
#include <gpumem.hpp>
#include <utility>

template <class E, class F> static bool throws(F call) {
    try {
        call();
    } catch (const E &e) {
        return e.what()[0] != '\0';
    }
    return false;
}

static void plans_own_their_handles() {
    gpumem_plan handle;
    {
        gpumem::plan a, b;
        handle = a.get();
        a.add(100, 0, 2);
        b = std::move(a);
        CHECK(a.get() == nullptr && b.get() == handle);
        CHECK(throws<gpumem::error>([&] { a.add(1, 0, 1); }));
        gpumem::plan c(std::move(b));
        a.swap(c);
        CHECK(a.get() == handle && c.get() == nullptr);
        a.solve();
        CHECK(a.bytes() == 100);
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(handle, NULL));
    gpumem_plan_options options;
    GPUMEM_INIT(&options);
    options.alignment = 3;
    CHECK(throws<gpumem::error>([&] { gpumem::plan p(options); }));
    options.alignment = 64;
    gpumem::plan aligned(options);
    aligned.add(1, 0, 1);
    auto second = aligned.add(1, 0, 1);
    aligned.solve();
    CHECK(aligned.offset(0) % 64 == 0 && aligned.offset(second) % 64 == 0 && aligned.bytes() == 65);
}

static void buffers_are_laid_out() {
    gpumem::plan plan;
    CHECK(plan.add(100, 0, 2) == 0);
    CHECK(plan.add_all({50, 60}, {1, 2}, {4, 5}) == 1);
    gpumem_plan_buffer_options last = described(1000, 0, 9);
    last.kind = GPUMEM_PLAN_CONSTANT;
    CHECK(plan.add(last) == 3);
    plan.set_left_out(GPUMEM_PLAN_CONSTANTS);
    CHECK(throws<gpumem::error>([&] { plan.offset(0); }));
    plan.solve();
    CHECK(plan.stats().status == GPUMEM_PLAN_OPTIMAL && plan.bytes() == 150 && plan.arena(2) == 0);
    CHECK(plan.lower_bound() == 150 && plan.live(1).lower == 1 && plan.live(1).upper == 4);
    CHECK(throws<gpumem::error>([&] { plan.lower_bound(1); }) && throws<gpumem::error>([&] { plan.live(3); }));
    const std::vector<std::uint64_t> offsets = plan.offsets();
    CHECK(offsets.size() == 4 && offsets[3] == GPUMEM_PLAN_NO_OFFSET && offsets[1] == plan.offset(1));
    CHECK(plan.critical() == (std::vector<gpumem::plan::id>{0, 1}));
    CHECK(plan.verify(offsets) == 150 && plan.verify(offsets, {0, 0, 0, 0}) == 150);
    CHECK(throws<gpumem::error>([&] { plan.verify({0, 0, 0, GPUMEM_PLAN_NO_OFFSET}); }));
    CHECK(throws<gpumem::error>([&] { plan.verify(offsets, {0}); }));
    CHECK(throws<gpumem::error>([&] { plan.add_all({1}, {0, 1}, {1, 2}); }));
    CHECK(plan.report().find("arena_size=150") != std::string::npos && plan.report().back() == '\n');
    CHECK(plan.csv().rfind("id,lower,upper,size", 0) == 0);
    CHECK(plan.svg().find("</svg>") != std::string::npos);
    plan.set_capacity(149);
    CHECK(throws<gpumem::bad_alloc>([&] { plan.solve(); }));
    CHECK(throws<std::bad_alloc>([&] { plan.solve(); }));
    CHECK(plan.stats().status == GPUMEM_PLAN_INFEASIBLE && plan.stats().lower_bound == 150);
    plan.set_capacity(0);
    plan.add_obstacle(0, 10);
    plan.resize(0, 110);
    gpumem_plan_solve_options fast;
    GPUMEM_INIT(&fast);
    fast.effort = GPUMEM_PLAN_EFFORT_FAST;
    plan.solve(fast);
    CHECK(plan.bytes() == 170);
    plan.set_reuse(false);
    plan.set_unit(7);
    plan.solve();
    CHECK(plan.bytes() >= 230 && plan.offset(0) % 7 == 0 && plan.offset(2) % 7 == 0);
    CHECK(plan.add_arena(5, "second") == 1);
    plan.cancel();
}

static void graphs_are_laid_out() {
    gpumem::plan plan;
    auto in = plan.value(400, GPUMEM_PLAN_INPUT, "in"), weight = plan.value(800, GPUMEM_PLAN_PARAMETER, "weight");
    auto hidden = plan.value(4000), half = plan.value(2000), activated = plan.value(4000);
    auto out = plan.value(40, GPUMEM_PLAN_OUTPUT);
    plan.op({in, weight}, {hidden}, "first");
    auto relu = plan.op({hidden}, {activated}, "relu");
    plan.op({half}, {out});
    plan.view(half, activated, 2000);
    plan.in_place(relu, hidden, activated);
    plan.set_order({0, 1, 2});
    plan.solve();
    CHECK(plan.offset(hidden) == plan.offset(activated) && plan.offset(half) == plan.offset(hidden) + 2000);
    CHECK(plan.stats().slots == 4 && plan.bytes() == 5240);
    plan.extend_to(hidden, 2);
    plan.keep(hidden);
    plan.keep_ancestors(out);
    plan.set_keep_ancestors(true);
    plan.solve();
    CHECK(plan.offset(hidden) != plan.offset(activated) && plan.bytes() == 9240);

    gpumem::plan other;
    auto theirs = other.value(800, GPUMEM_PLAN_PARAMETER, "weight");
    auto result = other.value(1, GPUMEM_PLAN_OUTPUT);
    other.op({theirs}, {result});
    CHECK(other.share_from(plan) == 1);
    other.solve();
    CHECK(other.offset(theirs) == plan.offset(weight));
    other.set_preset(GPUMEM_PLAN_INFERENCE);
    other.share("another", 0, 100000, 10);
    other.solve();
    CHECK(other.offset(theirs) == plan.offset(weight) && other.bytes() == 100010);
    other.unshare("another");
    other.solve();
    CHECK(other.bytes() < 100000 && other.offset(theirs) == plan.offset(weight));
    CHECK(throws<gpumem::error>([&] { other.unshare("another"); }));
    other.unshare();
    other.solve();
    CHECK(throws<gpumem::error>([&] { other.offset(theirs); })); // left out, and shared no more
    CHECK(throws<gpumem::error>([&] { plan.op({99}, {}); }));
}

static void memory_is_a_buffer() {
    {
        gpumem::stream s;
        gpumem::plan plan;
        auto a = plan.add(1000, 0, 2), b = plan.add(500, 1, 3);
        auto second = plan.add_arena();
        plan.solve();
        auto memory = plan.materialise(s);
        CHECK(memory && memory.size_bytes() == 1500 && stats_now().allocations == 1);
        auto none = plan.materialise(nullptr, second);
        CHECK(none && none.size() == 0);
        gpumem_malloc_options options;
        GPUMEM_INIT(&options);
        options.alignment = 8192;
        auto aligned = plan.materialise_with(options);
        CHECK(aligned.size() == 1500 && reinterpret_cast<std::uintptr_t>(aligned.data()) % 8192 == 0);
        options.bytes = 1;
        CHECK(throws<gpumem::error>([&] { plan.materialise_with(options); }));
        float *at = plan.pointer<float>(a, memory);
        fill(at, 1000, 1, s.get());
        fill(plan.pointer(b, memory), 500, 2, s.get());
        CHECK(holds(at, 1000, 1, s.get()));
        CHECK(plan.pointer(b, std::vector<void *>{memory.data(), none.data()}) == memory.data() + plan.offset(b));
        auto moved = std::move(memory);
        CHECK(!memory && moved.size() == 1500);
        plan = gpumem::plan();
        CHECK(holds(at, 1000, 1, s.get()));
    }
    nothing_left();
}

int main() {
    RUN(plans_own_their_handles);
    RUN(buffers_are_laid_out);
    RUN(graphs_are_laid_out);
    RUN(memory_is_a_buffer);
    return 0;
}

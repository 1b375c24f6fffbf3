// gpumem.hpp's evictable buffers, holds and moves: scopes end holds, and exceptions pass through a
// progress.
#include "harness.h"
#include "throws.hpp"
#include <atomic>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

static const gpumem::space gpu = gpumem::space::gpu(), host = gpumem::space::host(), disk = gpumem::space::disk();

template <class T> static bool is_in(const gpumem::unique_buffer<T> &b, std::int32_t tier) {
    return gpumem::locate(b).space.tier == tier;
}

static void buffers_go_and_come_back() {
    gpumem::stream s;
    const std::size_t n = 300001;
    auto a = gpumem::make_evictable<int>(n, 0, s);
    static_assert(std::is_same<decltype(a), gpumem::unique_buffer<int>>::value, "an ordinary owner");
    CHECK(a.size() == n && gpumem::locate(a).bytes == 4 * n && gpumem::locate(a.data()).device_bytes >= 4 * n);
    fill(a.data(), a.size_bytes(), 1, s.get());
    gpumem_move_report report = gpumem::evict(a);
    CHECK(report.moved == 1 && report.moved_bytes == 4 * n && report.already == 0 && is_in(a, GPUMEM_TIER_HOST));
    CHECK(gpumem::evict(a).already == 1);
    CHECK(gpumem::evict(a, gpumem::move_options().to(GPUMEM_TIER_DISK)).moved == 1 && is_in(a, GPUMEM_TIER_DISK));
    CHECK(gpumem::restore(a, gpumem::move_options().to(GPUMEM_TIER_HOST)).moved == 1 && is_in(a, GPUMEM_TIER_HOST));
    CHECK(gpumem::evict(a.data(), gpumem::move_options().to(disk).after(s)).moved == 1 && is_in(a, GPUMEM_TIER_DISK));
    CHECK(gpumem::restore(a.data()).moved == 1 && is_in(a, GPUMEM_TIER_GPU));
    CHECK(holds(a.data(), a.size_bytes(), 1, s.get()));
    // The last word counts.
    gpumem::move_options how = gpumem::move_options().to(disk).to(GPUMEM_TIER_HOST);
    CHECK(how.get().flags == 0 && how.get().space.tier == GPUMEM_TIER_HOST && how.get().space.id == 0);
    CHECK(throws<gpumem::error>([&] { gpumem::evict(a, gpumem::move_options().to(gpu)); }, GPUMEM_ERROR_INVALID, "restore"));
    CHECK(throws<gpumem::error>([&] { gpumem::evict(a, gpumem::move_options().to(gpumem::space::disk(9))); },
                                GPUMEM_ERROR_INVALID, "DISK 9"));
    gpumem::unique_buffer<int> ordinary(5), nothing;
    CHECK(throws<gpumem::error>([&] { gpumem::evict(ordinary); }, GPUMEM_ERROR_INVALID, "EVICTABLE"));
    CHECK(throws<gpumem::error>([&] { gpumem::restore(nothing); }, GPUMEM_ERROR_INVALID, "NULL"));
    CHECK(throws<gpumem::error>([&] { gpumem::locate(nothing); }, GPUMEM_ERROR_INVALID, "NULL"));
    CHECK(throws<gpumem::bad_alloc>([] { gpumem::make_evictable<int>(std::size_t{1} << 60); },
                                    GPUMEM_ERROR_OUT_OF_MEMORY, "") );
    CHECK(gpumem::evict(a, gpumem::move_options().to(disk)).moved == 1);
    a.reset(); // wherever it is
    CHECK(disk.stats().used == 0);
}

static void tags_sleep_and_wake() {
    const std::uint64_t weights = 77;
    std::vector<gpumem::unique_buffer<char>> all;
    for (unsigned i = 0; i < 4; i++) {
        all.push_back(gpumem::make_evictable<char>(MIB + i, weights));
        fill(all.back().data(), MIB + i, i, nullptr);
    }
    const std::uint64_t used = gpu.stats().used;
    CHECK(used >= 4 * MIB);
    CHECK(gpumem::evict_tag(weights).moved == 4 && gpu.stats().used == 0);
    CHECK(gpumem::evict_tag(weights, gpumem::move_options().to(disk)).moved == 4 && disk.stats().used >= 4 * MIB);
    CHECK(gpumem::restore_tag(weights).moved == 4 && gpu.stats().used == used && disk.stats().used == 0);
    for (unsigned i = 0; i < 4; i++) CHECK(holds(all[i].data(), MIB + i, i, nullptr));
    CHECK(throws<gpumem::error>([] { gpumem::evict_tag(78); }, GPUMEM_ERROR_INVALID, "78"));
    CHECK(throws<gpumem::error>([] { gpumem::restore_tag(78); }, GPUMEM_ERROR_INVALID, "78"));
}

static void holds_end_with_their_scopes() {
    static_assert(!std::is_copy_constructible<gpumem::held>::value, "move-only");
    static_assert(!std::is_copy_assignable<gpumem::held>::value, "move-only");
    static_assert(std::is_nothrow_move_constructible<gpumem::held>::value, "noexcept");
    gpumem::stream s;
    auto a = gpumem::make_evictable<char>(MIB, 0, s), b = gpumem::make_evictable<char>(MIB, 0, s);
    const auto times = [](const gpumem::unique_buffer<char> &of) { return gpumem::locate(of).holds; };
    fill(a.data(), MIB, 3, s.get());
    gpumem::evict(a);
    {
        gpumem::held here(a, s);
        CHECK(here && here.get() == a.data() && times(a) == 1 && is_in(a, GPUMEM_TIER_GPU));
        CHECK(holds(a.data(), MIB, 3, s.get()));
        CHECK(throws<gpumem::error>([&] { gpumem::evict(a); }, GPUMEM_ERROR_INVALID, "is held once"));
        gpumem::held again(a.data(), s), moved(std::move(here));
        CHECK(times(a) == 2 && !here && here.get() == nullptr && moved);
        again = gpumem::held(b, s.get()); // unholds a
        CHECK(times(a) == 1 && times(b) == 1);
        again.unhold();
        CHECK(times(b) == 0 && !again);
        CHECK(throws<gpumem::error>([&] { again.unhold(); }, GPUMEM_ERROR_INVALID, "NULL"));
        try {
            gpumem::held inside(b, s);
            throw std::runtime_error("in the middle");
        } catch (const std::runtime_error &) {
            CHECK(times(b) == 0);
        }
        void *kept = gpumem::held(b, s).release();
        CHECK(kept == b.data() && times(b) == 1);
        OK(gpumem_unhold(kept, s.get()));
    }
    CHECK(times(a) == 0 && gpumem::evict(a).moved == 1);
    gpumem::unique_buffer<char> ordinary(5);
    CHECK(throws<gpumem::error>([&] { gpumem::held none(ordinary, s); }, GPUMEM_ERROR_INVALID, "EVICTABLE"));

    // What a graph uses stays.
    {
        gpumem::held here(b, s);
        gpumem::begin_capture(s, GPUMEM_SIM_CAPTURE_RELAXED);
        CHECK(throws<gpumem::error>([&] { here.unhold(); }, GPUMEM_ERROR_CAPTURING, "captured") && here);
        gpumem::graph graph = gpumem::end_capture(s);
    }
    CHECK(times(b) == 0);
}

static void a_progress_is_told_and_may_throw() {
    gpumem::stream s;
    const std::size_t n = 3 * MIB + 1;
    auto a = gpumem::make_evictable<char>(n, 5, s);
    fill(a.data(), n, 9, s.get());
    std::uint64_t last = 0;
    const auto told = gpumem::move_options().to(disk).on_progress([&](std::uint64_t done, std::uint64_t total) {
        CHECK(done >= last && done <= total && total == n);
        last = done;
        return true;
    });
    CHECK(gpumem::evict(a, told).moved == 1 && last == n);
    last = 0;
    CHECK(gpumem::evict_tag(5, told).already == 1 && last == 0);

    // false cancels; what is thrown comes out, and what was to be moved is where it was.
    const auto no = gpumem::move_options().on_progress([](std::uint64_t, std::uint64_t) { return false; });
    const auto angry = gpumem::move_options().on_progress([](std::uint64_t, std::uint64_t) -> bool { throw n; });
    for (std::int32_t tier : {GPUMEM_TIER_DISK, GPUMEM_TIER_HOST, GPUMEM_TIER_GPU}) {
        gpumem::restore(a);
        if (tier != GPUMEM_TIER_GPU) gpumem::evict(a, gpumem::move_options().to(tier));
        const auto move = [&](const gpumem::move_options &how) {
            return tier == GPUMEM_TIER_GPU ? gpumem::evict_tag(5, how) : gpumem::restore_tag(5, how);
        };
        CHECK(throws<gpumem::error>([&] { move(no); }, GPUMEM_ERROR_CANCELLED, "cancelled"));
        CHECK(is_in(a, tier));
        try {
            move(angry);
            CHECK(!"nothing was thrown");
        } catch (const std::size_t &thrown) {
            CHECK(thrown == n);
        }
        CHECK(is_in(a, tier));
        CHECK(move(gpumem::move_options()).moved == 1);
    }
    gpumem::restore(a);
    CHECK(holds(a.data(), n, 9, s.get()));
}

// Threads with more buffers than there is room for, each use of one by one thread at a time.
static void threads_share_a_device_that_is_too_small() {
    enum { THREADS = 3, EACH = 4, ROUNDS = 6 };
    int device = 0;
    const std::uint64_t page = gpumem::locate(gpumem::make_evictable<char>(1)).device_bytes;
    gpumem::check(gpumem_device_get(&device));
    OK(gpumem_device_sync());
    gpumem::check(gpumem_trim(0));
    gpumem::check(gpumem_device_limit_set(device, static_cast<std::size_t>(stats_now().mapped + 5 * page)));
    std::atomic<int> restored{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < THREADS; t++) {
        threads.emplace_back([&, t] {
            gpumem::stream s;
            std::vector<gpumem::unique_buffer<char>> own;
            for (unsigned i = 0; i < EACH; i++) {
                own.push_back(gpumem::make_evictable<char>(page, t, s));
                gpumem::held here(own.back(), s);
                fill(own.back().data(), page, t * EACH + i, s.get());
            }
            for (unsigned round = 0; round < unsigned(rounds(ROUNDS)); round++) {
                for (unsigned i = 0; i < EACH; i++) {
                    if (!is_in(own[i], GPUMEM_TIER_GPU)) restored++;
                    gpumem::held here(own[i], s);
                    CHECK(holds(own[i].data(), page, t * EACH + i + round, s.get()));
                    fill(own[i].data(), page, t * EACH + i + round + 1, s.get());
                }
            }
        });
    }
    for (std::thread &one : threads) one.join();
    CHECK(restored > 0);
    gpumem::check(gpumem_device_limit_set(device, 0));
}

int main() {
    char mount[] = "/tmp/gpumem-evict-raii-XXXXXX";
    CHECK(mkdtemp(mount) != nullptr);
    setenv("GPUMEM_DISK", mount, 1);
    setenv("GPUMEM_PINNED_BLOCKS", "1M,16,1", 1);
    RUN(buffers_go_and_come_back);
    RUN(tags_sleep_and_wake);
    RUN(holds_end_with_their_scopes);
    RUN(a_progress_is_told_and_may_throw);
    RUN(threads_share_a_device_that_is_too_small);
    nothing_left();
    CHECK(gpu.stats().used == 0 && host.stats().used == 0 && disk.stats().used == 0);
    CHECK(std::system(("rm -rf '" + std::string(mount) + "'").c_str()) == 0);
    return 0;
}

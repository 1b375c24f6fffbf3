// gpumem.hpp's recordings and counters.
#include "harness.h"
#include "throws.hpp"
#include <cstdio>
#include <type_traits>
#include <utility>

static std::string file(const char *name) {
    const char *dir = getenv("TMPDIR");
    return std::string(dir != nullptr ? dir : "/tmp") + "/gpumem-record-raii-" + std::to_string(getpid()) + name;
}

static void a_recording_ends_with_its_scope() {
    static_assert(!std::is_copy_constructible<gpumem::recording>::value, "move-only");
    static_assert(std::is_nothrow_move_constructible<gpumem::recording>::value, "noexcept");
    const std::string a = file("a.gmrec"), b = file("b.gmrec");
    remove(a.c_str());
    remove(b.c_str());
    CHECK(throws<gpumem::error>([&] { gpumem::recording cut(a + '\0'); }, GPUMEM_ERROR_INVALID, "the path has a NUL"));
    {
        gpumem::recording first(a), moved(std::move(first));
        CHECK(!first && moved);
        CHECK(throws<gpumem::error>([&] { gpumem::recording second(b); }, GPUMEM_ERROR_INVALID, "under way"));
        CHECK(throws<gpumem::error>([&] { first.stop(); }, GPUMEM_ERROR_INVALID, "moved from"));
    }
    // The first has ended, or this could not begin.
    gpumem::recording second(b);
    gpumem::unique_buffer<char> buffer(1000);
    buffer.reset();
    const gpumem::recording::totals totals = second.stop();
    CHECK(!second && totals.events >= 2 && totals.lost == 0);
    CHECK(gpumem_record_stop(nullptr, nullptr) == GPUMEM_ERROR_INVALID);
    CHECK(throws<gpumem::error>([&] { second.stop(); }, GPUMEM_ERROR_INVALID, "has ended"));
    CHECK(remove(a.c_str()) == 0 && remove(b.c_str()) == 0);
}

static void counters_are_those_of_a_device() {
    const gpumem_stats before = gpumem::stats();
    gpumem::unique_buffer<char> buffer(1000);
    CHECK(gpumem::stats().allocations == before.allocations + 1 && gpumem::stats().requested == before.requested + 1000);
    CHECK(gpumem::stats(before.device).allocations == before.allocations + 1);
    CHECK(throws<gpumem::error>([] { gpumem::stats(1000); }, GPUMEM_ERROR_INVALID, "1000"));
}

int main() {
    RUN(a_recording_ends_with_its_scope);
    RUN(counters_are_those_of_a_device);
    nothing_left();
    return 0;
}

// gpumem.hpp: objects own, exceptions tell, and a moved-from object owns nothing.
#include "harness.h"
#include <gpumem.hpp>
#include <utility>
#include <vector>

template <class E, class F> static bool throws(F call) {
    try {
        call();
    } catch (const E &e) {
        return e.what()[0] != '\0';
    }
    return false;
}

static void buffers_own_their_memory() {
    {
        gpumem::unique_buffer<float> a(1000), b;
        CHECK(a && !b);
        CHECK(a.size() == 1000 && a.size_bytes() == 4000 && gpumem_usable_size(a.data()) >= 4000);
        fill(a.data(), a.size_bytes(), 1, nullptr);
        b = std::move(a);
        CHECK(!a && a.size() == 0 && b.size() == 1000);
        CHECK(holds(b.data(), b.size_bytes(), 1, nullptr));
        gpumem::unique_buffer<float> c(std::move(b));
        CHECK(!b && c);
        c = gpumem::unique_buffer<float>(5);
        CHECK(stats_now().allocations == 1);
        float *raw = c.release();
        CHECK(!c && raw != nullptr);
        gpumem_free(raw);
        c.reset();
        std::vector<gpumem::unique_buffer<char>> many;
        for (int i = 0; i < 20; i++) many.emplace_back(static_cast<std::size_t>(i) * 100);
        CHECK(stats_now().allocations == 20);
    }
    nothing_left();
}

// Also where a type asks for more than gpumem_malloc_async gives.
static void memory_is_aligned_as_its_type_is() {
    struct alignas(4096) wide {
        char bytes[4096];
    };
    const auto is_aligned = [](const void *p) { return reinterpret_cast<std::uintptr_t>(p) % alignof(wide) == 0; };
    {
        gpumem::stream s;
        gpumem::allocator<wide> allocator(s);
        std::vector<gpumem::unique_buffer<char>> between;
        std::vector<gpumem::unique_buffer<wide>> unique;
        std::vector<gpumem::async_buffer<const wide>> async;
        for (int i = 0; i < 10; i++) {
            between.emplace_back(70000u, s);
            unique.emplace_back(33u, s);
            between.emplace_back(75000u, s);
            async.emplace_back(33u, s);
            wide *p = allocator.allocate(33);
            CHECK(is_aligned(unique.back().data()) && is_aligned(async.back().data()) && is_aligned(p));
            between.emplace_back(80000u, s);
            allocator.deallocate(p, 33);
        }
        CHECK(is_aligned(gpumem::make_evictable<wide>(1, 0, s).data()));
        gpumem::async_buffer<void> bytes(10, s);
        bytes.resize(20);
        CHECK(bytes.size_bytes() == 20);
    }
    nothing_left();
}

static void scoped_buffers_follow_their_stream() {
    gpumem::stream s, t;
    unsigned char out[20];
    for (int i = 0; i < 20; i++) {
        gpumem::scoped_async_buffer<unsigned char> buffer(100000, s);
        gpumem::check(gpumem_memset_async(buffer.data(), i, buffer.size_bytes(), s.get()));
        gpumem::check(gpumem_memcpy_async(&out[i], buffer.data() + 99999, 1, s.get()));
    }
    s.sync();
    for (int i = 0; i < 20; i++) CHECK(out[i] == i);
    {
        gpumem::scoped_async_buffer<int> grows(10, s.get());
        fill(grows.data(), 40, 3, s.get());
        grows.resize(1000000);
        CHECK(grows.size() == 1000000);
        CHECK(holds(grows.data(), 40, 3, s.get()));
        t.wait(s);
        CHECK(holds(grows.data(), 40, 3, t.get()));
    }
    gpumem::stream moved(std::move(t));
    CHECK(t.get() == nullptr && moved.get() != nullptr);
    moved = gpumem::stream();
    moved.sync();
    nothing_left();
}

static void failures_are_exceptions() {
    const std::size_t much = std::size_t(1) << 62;
    CHECK(throws<gpumem::bad_alloc>([&] { gpumem::unique_buffer<char> b(much); }));
    CHECK(throws<std::bad_alloc>([&] { gpumem::unique_buffer<char> b(much); }));
    CHECK(throws<std::bad_alloc>([&] { gpumem::unique_buffer<double> b(much); })); // count * 8 overflows
    CHECK(throws<std::bad_alloc>([&] { gpumem::scoped_async_buffer<char> b(much, gpumem_stream(nullptr)); }));
    CHECK(throws<gpumem::error>([] { gpumem::check(gpumem_device_set(999)); }));
    CHECK(throws<std::runtime_error>([] { gpumem::check(gpumem_device_set(999)); }));
    try {
        gpumem::check(gpumem_device_set(999));
    } catch (const gpumem::error &e) {
        CHECK(e.status() == GPUMEM_ERROR_INVALID);
        CHECK(std::string(e.what()).find("999") != std::string::npos);
    }
    gpumem::stream s;
    gpumem::scoped_async_buffer<char> keeps(100, s);
    char *before = keeps.data();
    CHECK(throws<std::bad_alloc>([&] { keeps.resize(much); }));
    CHECK(keeps.data() == before && keeps.size() == 100);
}

// As RMM's own resources do; the C functions keep a pointer for every request.
static void the_resource_has_no_memory_for_nothing() {
    gpumem::memory_resource mr, here(0);
    gpumem::stream s;
    CHECK(mr.allocate(s, 0) == nullptr && here.allocate(s, 0, 4096) == nullptr);
    CHECK(mr.allocate_sync(0) == nullptr && here.allocate_sync(0) == nullptr);
    CHECK(throws<gpumem::error>([&] { (void)mr.allocate(s, 0, 3); }));
    CHECK(stats_now().allocations == 0);
    const std::uint64_t unknown = stats_now().unknown_pointers;
    mr.deallocate(s, nullptr, 0);
    mr.deallocate_sync(nullptr, 0);
    here.deallocate(s, nullptr, 100, 4096);
    CHECK(stats_now().unknown_pointers == unknown);
    for (std::size_t alignment = 1; alignment <= (std::size_t(1) << 21); alignment *= 2) {
        void *p = mr.allocate(s, 100, alignment);
        CHECK(reinterpret_cast<std::uintptr_t>(p) % (alignment < 256 ? 256 : alignment) == 0);
        fill(p, 100, 1, s.get());
        CHECK(holds(p, 100, 1, s.get()));
        mr.deallocate(s, p, 100, alignment);
    }
    nothing_left();
}

// In a child, with two devices: whatever is current stays current, and the right device is waited
// for.
static void the_resource_of_a_device_leaves_the_current_one() {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int device = -1, devices = 0;
        setenv("GPUMEM_HOST_DEVICES", "2", 1);
        OK(gpumem_device_count_get(&devices));
        if (devices < 2) {
            printf("skipped: there is one device\n");
            exit(0);
        }
        gpumem::memory_resource other(1);
        void *p = other.allocate_sync(MIB);
        OK(gpumem_device_get(&device));
        CHECK(device == 0);
        gpumem_pointer_info info;
        GPUMEM_INIT(&info);
        OK(gpumem_pointer_info_get(p, &info));
        CHECK(info.device == 1);
        // What was freed on the other device's default stream is not in use there any more.
        OK(gpumem_device_set(1));
        gpumem::stream on_other;
        OK(gpumem_memset_async(p, 1, MIB, nullptr));
        OK(gpumem_free_async(p, nullptr));
        OK(gpumem_device_set(0));
        p = other.allocate_sync(MIB);
        OK(gpumem_device_set(1));
        OK(gpumem_memset_async(p, 2, MIB, on_other.get()));
        CHECK(holds_byte(p, MIB, 2, on_other.get()));
        OK(gpumem_device_set(0));
        CHECK(throws<gpumem::out_of_memory>([&] { (void)other.allocate_sync(std::size_t(1) << 62); }));
        CHECK(throws<gpumem::error>([&] { (void)gpumem::memory_resource(7).allocate_sync(1); }));
        OK(gpumem_device_get(&device));
        CHECK(device == 0);
        other.deallocate_sync(p, MIB);
        nothing_left();
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

static void the_resource_allocates() {
    gpumem::memory_resource mr, same, here(0);
    gpumem::stream s;
    CHECK(mr == same && mr != here);
    gpumem::stream_ref ref{s.get()};
    void *p = mr.allocate(ref, 1000), *q = here.allocate(ref, 1000, 4096);
    CHECK(p != nullptr && reinterpret_cast<std::uintptr_t>(q) % 4096 == 0);
    fill(p, 1000, 1, s.get());
    CHECK(holds(p, 1000, 1, s.get()));
    mr.deallocate(ref, p, 1000);
    here.deallocate(ref, q, 1000, 4096);
    p = mr.allocate_sync(500, 256);
    fill(p, 500, 2, s.get()); // any stream, at once
    CHECK(holds(p, 500, 2, s.get()));
    mr.deallocate_sync(p, 500, 256);
    CHECK(throws<std::bad_alloc>([&] { (void)mr.allocate(ref, std::size_t(1) << 62); }));
    CHECK(throws<gpumem::out_of_memory>([&] { (void)mr.allocate(ref, std::size_t(1) << 62); }));
    CHECK(throws<gpumem::out_of_memory>([&] { (void)mr.allocate_sync(std::size_t(1) << 62); }));
    CHECK(throws<gpumem::error>([&] { (void)mr.allocate(ref, 1, 3); }));
    for (int none : {-1, 999}) {
        CHECK(gpumem::memory_resource(none) != mr);
        CHECK(throws<gpumem::error>([&] { (void)gpumem::memory_resource(none).allocate(s, 1); }));
        CHECK(error_says(("device " + std::to_string(none)).c_str()));
        CHECK(throws<gpumem::error>([&] { (void)gpumem::memory_resource(none).allocate_sync(1); }));
        CHECK(error_says(("device " + std::to_string(none)).c_str()));
    }
    gpumem::allocator<int> a(s.get());
    gpumem::allocator<char> b(a);
    CHECK(a == gpumem::allocator<int>(b));
    int *n = a.allocate(10);
    a.deallocate(n, 10);
    nothing_left();
}

// In a child, before anything has started gpumem.
static void settings_are_given_at_the_start() {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_context_options options;
        GPUMEM_INIT(&options);
        options.disk = "not absolute";
        CHECK(throws<gpumem::error>([&] { gpumem::init(options); }) && error_says("disk"));
        options.disk = nullptr;
        options.limit_bytes = 32 * MIB;
        gpumem::init(options);
        CHECK(throws<std::bad_alloc>([] { gpumem::unique_buffer<char> b(33 * MIB); }));
        CHECK(throws<gpumem::error>([&] { gpumem::init(options); }));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main() {
    RUN(the_resource_of_a_device_leaves_the_current_one);
    RUN(settings_are_given_at_the_start);
    RUN(buffers_own_their_memory);
    RUN(memory_is_aligned_as_its_type_is);
    RUN(scoped_buffers_follow_their_stream);
    RUN(failures_are_exceptions);
    RUN(the_resource_allocates);
    RUN(the_resource_has_no_memory_for_nothing);
    return 0;
}

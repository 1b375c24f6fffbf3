// Which device's a default stream is, for every function that takes a stream, on a simulated host
// device: what is ordered on the wrong stream races there. tests/context/streams_across.rs has
// those that take memory beside it.
#include "harness.h"
#include "throws.hpp"
#include <gpumem.hpp>

#include <thread>

// Under valgrind every byte is dear.
static const size_t BYTES = (is_slow() ? 2 : 8) * MIB;

static void starts_a_simulation() {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.backend = GPUMEM_BACKEND_HOST;
    options.host_devices = 2;
    options.host_mode = GPUMEM_HOST_MODE_SIMULATE;
    options.host_seed = 1;
    OK(gpumem_init(&options));
}

static uint64_t reports() {
    uint64_t n = 0;
    OK(gpumem_device_set(0));
    OK(gpumem_device_sync());
    OK(gpumem_device_set(1));
    OK(gpumem_device_sync());
    OK(gpumem_sim_reports_get(&n));
    return n;
}

// Memory that device 1's default stream is still busy with is not usable on other streams before
// that is waited for.
static void a_resource_waits_for_the_default_stream_of_its_device() {
    gpumem::memory_resource mr(1);
    OK(gpumem_device_set(1));
    gpumem::stream other;
    for (int round = 0; round < (is_slow() ? 2 : 20); round++) {
        OK(gpumem_device_set(1));
        void *p = must_malloc_async(BYTES, nullptr);
        OK(gpumem_memset_async(p, 1, BYTES, nullptr));
        OK(gpumem_free_async(p, nullptr));
        OK(gpumem_device_set(0));
        void *q = mr.allocate_sync(BYTES);
        int now = -1;
        OK(gpumem_device_get(&now));
        CHECK(now == 0);
        OK(gpumem_device_set(1));
        OK(gpumem_memset_async(q, 2, BYTES, other.get()));
        CHECK(holds_byte(q, BYTES, 2, other.get()));
        mr.deallocate_sync(q, BYTES);
        CHECK(reports() == 0);
    }
}

// Memory of device 1 that its default stream is still busy with goes back, whatever device is
// current, on whatever thread.
static void what_owns_memory_knows_its_default_stream() {
    for (int how = 0; how < 4; how++) {
        for (int round = 0; round < (is_slow() ? 2 : 20); round++) {
            gpumem::memory_resource mr(1);
            gpumem::allocator<char> allocator{gpumem::stream_ref()};
            gpumem::async_buffer<char> buffer;
            OK(gpumem_device_set(how == 0 ? 0 : 1));
            void *p = how == 0 ? mr.allocate({}, BYTES) : how == 1 ? allocator.allocate(BYTES) : nullptr;
            if (how > 1) {
                buffer = gpumem::async_buffer<char>(BYTES);
                p = buffer.data();
            }
            OK(gpumem_device_set(1));
            OK(gpumem_memset_async(p, 1, BYTES, nullptr));
            OK(gpumem_device_set(0));
            switch (how) {
            case 0: mr.deallocate({}, p, BYTES); break;
            case 1: allocator.deallocate(static_cast<char *>(p), BYTES); break;
            case 2: buffer.reset(); break;
            default: std::thread([b = std::move(buffer)]() {}).join();
            }
            int now = -1;
            OK(gpumem_device_get(&now));
            CHECK(now == 0);
            OK(gpumem_device_set(1));
            gpumem::stream other;
            gpumem::async_buffer<char> next(BYTES, other);
            OK(gpumem_memset_async(next.data(), 2, BYTES, other.get()));
            other.sync();
            next.reset();
            CHECK(reports() == 0);
        }
    }
}

// A default stream set later, or met by a resize, is that of the device that is current then.
static void a_stream_that_is_set_is_the_current_devices() {
    for (int how = 0; how < 2; how++) {
        for (int round = 0; round < (is_slow() ? 2 : 20); round++) {
            OK(gpumem_device_set(0));
            gpumem::stream other, another;
            gpumem::async_buffer<char> buffer;
            if (how == 0) {
                buffer = gpumem::async_buffer<char>(MIB, other);
                gpumem::stream_ref().wait(other);
                buffer.set_stream({});
            } else {
                buffer = gpumem::async_buffer<char>(MIB);
                OK(gpumem_device_sync());
                OK(gpumem_device_set(1));
                buffer.resize(8 * BYTES);
            }
            OK(gpumem_memset_async(buffer.data(), 1, MIB, nullptr));
            OK(gpumem_device_set(1));
            const std::size_t bytes = buffer.size();
            buffer.reset();
            OK(gpumem_device_set(0));
            const gpumem::stream_ref now = how == 0 ? gpumem::stream_ref(another) : gpumem::stream_ref();
            gpumem::async_buffer<char> next(bytes, now), last(bytes, other);
            OK(gpumem_memset_async(next.data(), 2, MIB, now.get()));
            OK(gpumem_memset_async(last.data(), 2, MIB, other.get()));
            CHECK(reports() == 0);
        }
    }
}

// Empty, a buffer is still its stream's.
static void a_buffer_keeps_its_stream() {
    gpumem::stream s;
    gpumem::async_buffer<char> buffer(BYTES, s);
    gpumem::unique_buffer<char> taken = gpumem::unique_buffer<char>::adopt(buffer.release(), BYTES);
    CHECK(!buffer && buffer.size() == 0 && buffer.get_stream() == s);
    for (int round = 0; round < (is_slow() ? 2 : 20); round++) {
        {
            gpumem::async_buffer<char> before(BYTES);
            OK(gpumem_memset_async(before.data(), 1, BYTES, nullptr));
        }
        buffer.resize(BYTES);
        OK(gpumem_memset_async(buffer.data(), 2, BYTES, s.get()));
        buffer.reset();
        CHECK(!buffer && buffer.get_stream() == s);
    }
    CHECK(reports() == 0);
}

// The same handle, twice: the current device's, whatever device the memory is on.
static void a_free_on_a_default_stream_is_the_current_devices() {
    for (int round = 0; round < (is_slow() ? 2 : 20); round++) {
        gpumem_stream s = round % 2 ? GPUMEM_STREAM_LEGACY : GPUMEM_STREAM_PER_THREAD;
        OK(gpumem_device_set(1));
        void *p = must_malloc_async(BYTES, s);
        OK(gpumem_device_sync());
        OK(gpumem_device_set(0));
        OK(gpumem_memset_async(p, 3, BYTES, s));
        OK(gpumem_free_async(p, s));
        OK(gpumem_device_set(1));
        void *q = must_malloc_async(BYTES, s);
        OK(gpumem_memset_async(q, 4, BYTES, s));
        CHECK(holds_byte(q, BYTES, 4, s));
        OK(gpumem_free_async(q, s));
        CHECK(reports() == 0);
    }
}

static int device_of(const void *p) {
    gpumem_pointer_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_pointer_info_get(p, &info));
    return info.device;
}

// Writes on a stream of its own, which is ordered after nothing but what is said here: whether that
// raced.
static bool races_with(void *p, gpumem_stream s) {
    uint64_t before = 0;
    OK(gpumem_sim_reports_get(&before));
    OK(gpumem_memset_async(p, 9, BYTES, s));
    return reports() > before;
}

// Every function that allocates on a stream: NULL is of the current device, or of the one that is
// named.
static void memory_comes_from_the_current_or_the_named_device() {
    gpumem_plan plan;
    OK(gpumem_plan_create(nullptr, &plan));
    gpumem_plan_buffer_options buffer;
    GPUMEM_INIT(&buffer);
    buffer.bytes = BYTES;
    buffer.upper = 1;
    uint32_t id;
    OK(gpumem_plan_buffer_add(plan, &buffer, &id));
    OK(gpumem_plan_solve(plan, nullptr));
    for (gpumem_stream s : {(gpumem_stream) nullptr, GPUMEM_STREAM_LEGACY, GPUMEM_STREAM_PER_THREAD}) {
        for (int here = 0; here < 2; here++) {
            OK(gpumem_device_set(here));
            void *p[5] = {};
            gpumem_malloc_options options;
            GPUMEM_INIT(&options);
            options.stream = s;
            OK(gpumem_plan_materialise_with(plan, 0, &options, &p[0]));
            options.bytes = BYTES;
            OK(gpumem_malloc_with(&options, &p[1]));
            OK(gpumem_malloc_async(BYTES, s, &p[2]));
            OK(gpumem_realloc_async(nullptr, BYTES, s, &p[3]));
            OK(gpumem_plan_materialise(plan, 0, s, &p[4]));
            for (void *q : p) {
                CHECK(device_of(q) == here);
                OK(gpumem_memset_async(q, 1, BYTES, s));
                OK(gpumem_free_async(q, s));
            }
            CHECK(reports() == 0);

            // Named: the other device, in the order of its own default stream.
            int other = 1 - here;
            OK(gpumem_device_set(here));
            options.flags = GPUMEM_MALLOC_ON_DEVICE;
            options.device = other;
            OK(gpumem_malloc_with(&options, &p[0]));
            p[1] = gpumem_torch_malloc(BYTES, other, s);
            for (int i = 0; i < 2; i++) {
                CHECK(device_of(p[i]) == other);
                OK(gpumem_device_set(other));
                OK(gpumem_memset_async(p[i], 1, BYTES, s));
                OK(gpumem_device_set(here));
            }
            // Torch frees with any device current, and means the stream that it allocated on.
            gpumem_torch_record_stream(p[1], s);
            gpumem_torch_free(p[1], BYTES, other, s);
            gpumem_free(p[0]);
            OK(gpumem_device_set(other));
            for (int i = 0; i < 2; i++) {
                p[i] = must_malloc_async(BYTES, s);
                OK(gpumem_memset_async(p[i], 2, BYTES, s));
            }
            for (int i = 0; i < 2; i++) OK(gpumem_free_async(p[i], s));
            CHECK(reports() == 0);
        }
    }
    OK(gpumem_plan_destroy(plan));
}

// Every function that waits for a stream, or puts work on it: NULL is the current device's, so the
// other one's is not waited for. Last of the tests, as it makes mistakes.
static void waits_are_for_the_current_devices_default_stream() {
    OK(gpumem_device_set(1));
    gpumem_stream other = must_stream();
    gpumem_stream target = must_stream();
    void *p = must_malloc_async(BYTES, other);
    OK(gpumem_stream_sync(other));
    for (gpumem_stream s : {(gpumem_stream) nullptr, GPUMEM_STREAM_PER_THREAD}) {
        for (int here = 0; here < 2; here++) {
            // Device 1's default stream writes; then a stream waits, or the host, for that of the
            // current device.
            for (int way = 0; way < 3; way++) {
                OK(gpumem_device_set(1));
                OK(gpumem_memset_async(p, 1, BYTES, s));
                OK(gpumem_device_set(here));
                if (way == 0) OK(gpumem_stream_sync(s));
                if (way == 1) OK(gpumem_stream_wait(other, s));
                if (way == 2) {
                    // The same by what the default stream does next: a copy, and a fill.
                    void *q = must_malloc_async(2 * BYTES, s);
                    OK(gpumem_memset_async(q, 0, BYTES, s));
                    OK(gpumem_memcpy_async((char *)q + BYTES, q, BYTES, s));
                    OK(gpumem_stream_wait(other, s));
                    OK(gpumem_free_async(q, s));
                }
                OK(gpumem_device_set(1));
                CHECK(races_with(p, other) == (here == 0));
            }
            // The default stream waits.
            OK(gpumem_device_set(1));
            OK(gpumem_memset_async(p, 1, BYTES, target));
            OK(gpumem_device_set(here));
            OK(gpumem_stream_wait(s, target));
            OK(gpumem_device_set(1));
            CHECK(races_with(p, s) == (here == 0));
        }
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_destroy(s));
    }
    OK(gpumem_free_async(p, other));
    OK(gpumem_stream_destroy(target));
    OK(gpumem_stream_destroy(other));
}

// Where a space or a reservation is named, NULL is the default stream of its device.
static void spaces_name_the_device_of_a_default_stream() {
    gpumem_space space = space_at(GPUMEM_TIER_GPU, 1);
    gpumem_reserve_options want;
    GPUMEM_INIT(&want);
    want.strategy = GPUMEM_RESERVE_SPACE;
    want.space = space;
    want.bytes = 4 * BYTES;
    gpumem_reservation r;
    OK(gpumem_reserve(&want, &r));
    gpumem_reservation_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_reservation_info_get(r, &info));
    OK(gpumem_device_set(0));
    OK(gpumem_reservation_attach_stream(r, nullptr));
    uint64_t number = 0, used = 0;
    OK(gpumem_space_current_get(space, nullptr, &number));
    CHECK(number == info.number);
    OK(gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), nullptr, &number));
    CHECK(number == 0);
    void *near = must_malloc_async(BYTES, nullptr);
    OK(gpumem_reservation_info_get(r, &info));
    CHECK(info.drawn == 0);
    OK(gpumem_space_stream_stats_get(space, nullptr, &used, nullptr));
    CHECK(used == 0);
    OK(gpumem_device_set(1));
    void *far = must_malloc_async(BYTES, nullptr);
    OK(gpumem_device_set(0));
    OK(gpumem_reservation_info_get(r, &info));
    CHECK(info.drawn == BYTES);
    OK(gpumem_space_stream_stats_get(space, nullptr, &used, nullptr));
    CHECK(used == BYTES);
    OK(gpumem_space_stream_stats_reset_peak(space, nullptr));
    OK(gpumem_space_detach_stream(space, nullptr));
    OK(gpumem_space_current_get(space, nullptr, &number));
    CHECK(number == 0);
    gpumem_free(near);
    gpumem_free(far);
    OK(gpumem_reservation_release(r, nullptr));
    CHECK(reports() == 0);
}

// A capture that begins on a default stream is of the current device.
static void a_capture_is_of_the_current_device() {
    for (int here = 0; here < 2; here++) {
        OK(gpumem_device_set(here));
        gpumem_capture capture;
        OK(gpumem_capture_begin(GPUMEM_STREAM_PER_THREAD, nullptr, &capture));
        OK(gpumem_sim_capture_begin(GPUMEM_STREAM_PER_THREAD, GPUMEM_SIM_CAPTURE_RELAXED));
        void *p = must_malloc_async(BYTES, GPUMEM_STREAM_PER_THREAD);
        OK(gpumem_memset_async(p, 1, BYTES, GPUMEM_STREAM_PER_THREAD));
        gpumem_sim_graph graph;
        OK(gpumem_sim_capture_end(GPUMEM_STREAM_PER_THREAD, &graph));
        OK(gpumem_capture_end(capture));
        gpumem_capture_stats stats;
        GPUMEM_INIT(&stats);
        OK(gpumem_capture_stats_get(capture, &stats));
        CHECK(stats.device == here && stats.allocations == 1 && device_of(p) == here);
        OK(gpumem_sim_graph_launch(graph, GPUMEM_STREAM_PER_THREAD));
        CHECK(holds_byte(p, BYTES, 1, GPUMEM_STREAM_PER_THREAD));
        OK(gpumem_free_async(p, GPUMEM_STREAM_PER_THREAD));
        OK(gpumem_sim_graph_destroy(graph));
        OK(gpumem_capture_release(capture));
    }
    CHECK(reports() == 0);
}

int main() {
    if (strcmp(getenv("GPUMEM_BACKEND"), "host") != 0) {
        printf("skipped: a simulation is of the host device\n");
        return 0;
    }
    RUN(starts_a_simulation);
    RUN(a_resource_waits_for_the_default_stream_of_its_device);
    RUN(what_owns_memory_knows_its_default_stream);
    RUN(a_stream_that_is_set_is_the_current_devices);
    RUN(a_buffer_keeps_its_stream);
    RUN(a_free_on_a_default_stream_is_the_current_devices);
    RUN(memory_comes_from_the_current_or_the_named_device);
    RUN(spaces_name_the_device_of_a_default_stream);
    RUN(a_capture_is_of_the_current_device);
    RUN(waits_are_for_the_current_devices_default_stream);
    return 0;
}

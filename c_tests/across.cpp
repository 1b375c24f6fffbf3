// Memory of one device and default streams of another, on a simulated host device: what is ordered on the wrong stream races there.
#include "harness.h"
#include "throws.hpp"
#include <gpumem.hpp>

static const size_t BYTES = 8 * MIB;

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

// Memory that device 1's default stream is still busy with is not usable on other streams before that is waited for.
static void a_resource_waits_for_the_default_stream_of_its_device() {
    gpumem::memory_resource mr(1);
    OK(gpumem_device_set(1));
    gpumem::stream other;
    for (int round = 0; round < 20; round++) {
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

// The same handle, twice: the current device's, whatever device the memory is on.
static void a_free_on_a_default_stream_is_the_current_devices() {
    for (int round = 0; round < 20; round++) {
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

int main() {
    if (strcmp(getenv("GPUMEM_BACKEND"), "host") != 0) {
        printf("skipped: a simulation is of the host device\n");
        return 0;
    }
    RUN(starts_a_simulation);
    RUN(a_resource_waits_for_the_default_stream_of_its_device);
    RUN(a_free_on_a_default_stream_is_the_current_devices);
    return 0;
}

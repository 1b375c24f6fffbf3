/* Devices, one or several: memory lives where it was asked for. */
#include "harness.h"

static int devices;

static void properties_make_sense(void) {
    int d;
    for (d = 0; d < devices; d++) {
        gpumem_device_props props;
        size_t free_bytes = 0, total_bytes = 0;
        GPUMEM_INIT(&props);
        OK(gpumem_device_props_get(d, &props));
        CHECK(props.size == sizeof props);
        CHECK(props.name[0] != '\0' && memchr(props.name, '\0', sizeof props.name) != NULL);
        CHECK(props.total_bytes > 0);
        CHECK(props.granularity > 0 && (props.granularity & (props.granularity - 1)) == 0);
        CHECK(props.vmm == 1);
        OK(gpumem_device_memory_get(d, &free_bytes, &total_bytes));
        CHECK(free_bytes <= total_bytes && total_bytes > 0);
        OK(gpumem_device_memory_get(d, NULL, NULL));
        printf("   device %d: %s\n", d, props.name);
    }
}

static void the_current_device_is_the_one_set(void) {
    int d, now = -1;
    for (d = devices - 1; d >= 0; d--) {
        OK(gpumem_device_set(d));
        OK(gpumem_device_get(&now));
        CHECK(now == d);
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_device_set(devices));
    OK(gpumem_device_get(&now));
    CHECK(now == 0);
}

static void memory_lives_where_it_was_asked_for(void) {
    int d;
    for (d = 0; d < devices; d++) {
        gpumem_stream s;
        gpumem_pointer_info info;
        gpumem_malloc_options options;
        void *p, *q, *r = NULL;
        OK(gpumem_device_set(d));
        s = must_stream();
        p = gpumem_malloc(1000);
        GPUMEM_INIT(&info);
        OK(gpumem_pointer_info_get(p, &info));
        CHECK(info.device == d);

        /* A stream brings its device along. */
        OK(gpumem_device_set(devices - 1 - d));
        q = must_malloc_async(1000, s);
        GPUMEM_INIT(&info);
        OK(gpumem_pointer_info_get(q, &info));
        CHECK(info.device == d);
        fill(q, 1000, 1, s);
        CHECK(holds(q, 1000, 1, s));

        /* Asking for another device than the stream's is a mistake. */
        GPUMEM_INIT(&options);
        options.bytes = 10;
        options.stream = s;
        options.flags = GPUMEM_MALLOC_ON_DEVICE;
        options.device = d;
        OK(gpumem_malloc_with(&options, &r));
        if (devices > 1) {
            void *never = &options;
            options.device = (d + 1) % devices;
            CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &never));
            CHECK(never == &options);
        }
        OK(gpumem_free_async(q, s));
        OK(gpumem_free_async(r, s));
        gpumem_free(p);
        OK(gpumem_stream_destroy(s));
        OK(gpumem_device_set(d));
        nothing_left();
    }
    OK(gpumem_device_set(0));
}

static void data_crosses_devices(void) {
    gpumem_stream a, b;
    void *p, *q;
    if (devices < 2) {
        printf("   skipped: there is one device\n");
        return;
    }
    OK(gpumem_device_set(0));
    a = must_stream();
    p = must_malloc_async(100000, a);
    fill(p, 100000, 4, a);
    OK(gpumem_device_set(1));
    b = must_stream();
    q = must_malloc_async(100000, b);
    OK(gpumem_stream_wait(b, a));
    OK(gpumem_memcpy_async(q, p, 100000, b));
    OK(gpumem_stream_wait(a, b));
    OK(gpumem_free_async(p, a));
    CHECK(holds(q, 100000, 4, b));
    OK(gpumem_free_async(q, b));
    OK(gpumem_stream_destroy(b));
    OK(gpumem_device_set(0));
    OK(gpumem_stream_destroy(a));
    nothing_left();
}

/* Each device is given back what is free on it, and has a limit of its own. */
static void a_device_is_trimmed_and_limited_alone(void) {
    int d;
    gpumem_stats stats;
    for (d = 0; d < devices; d++) {
        OK(gpumem_device_set(d));
        gpumem_free(gpumem_malloc(5 << 20));
        OK(gpumem_device_sync());
    }
    for (d = 0; d < devices; d++) {
        GPUMEM_INIT(&stats);
        OK(gpumem_stats_get(d, &stats));
        CHECK(stats.mapped >= 5 << 20 && stats.limit == 0);
    }
    OK(gpumem_device_trim(0, 0));
    OK(gpumem_device_limit_set(0, 64 << 20));
    for (d = 0; d < devices; d++) {
        GPUMEM_INIT(&stats);
        OK(gpumem_stats_get(d, &stats));
        CHECK((stats.mapped == 0) == (d == 0));
        CHECK(stats.limit == (d == 0 ? 64 << 20 : 0));
    }
    OK(gpumem_device_limit_set(0, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_device_trim(devices, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_device_trim(-1, 0));
    OK(gpumem_trim(0));
    OK(gpumem_device_set(0));
}

int main(void) {
    /* The host device pretends two; a GPU machine has what it has. */
    setenv("GPUMEM_HOST_DEVICES", "2", 1);
    OK(gpumem_device_count_get(&devices));
    CHECK(devices >= 1);
    RUN(properties_make_sense);
    RUN(the_current_device_is_the_one_set);
    RUN(memory_lives_where_it_was_asked_for);
    RUN(data_crosses_devices);
    RUN(a_device_is_trimmed_and_limited_alone);
    return 0;
}

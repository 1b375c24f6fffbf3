/* Starting with explicit options. */
#include "harness.h"

static int in_child(void (*work)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work();
        exit(0);
    }
    return exit_code(child);
}

static void with_limit(void) {
    gpumem_context_options options;
    void *p = NULL;
    GPUMEM_INIT(&options);
    options.limit_bytes = 32 * MIB;
    options.log = GPUMEM_LOG_NOTHING;
    OK(gpumem_init(&options));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(33 * MIB, NULL, &p));
    p = must_malloc_async(16 * MIB, NULL);
    fill(p, 16 * MIB, 1, NULL);
    gpumem_free(p);
    nothing_left();
}

static void bad_options_then_good_ones(void) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.reuse = 17;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));
    CHECK(error_says("reuse"));
    options.reuse = GPUMEM_REUSE_SETTLED;
    options.prealloc_percent = 101;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));
    options.prealloc_percent = 0;
    options.arena_debug = GPUMEM_ARENA_DEBUG_POISON | GPUMEM_ARENA_DEBUG_UNMAP;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));
    CHECK(error_says("arena_debug"));
    options.arena_debug = GPUMEM_ARENA_DEBUG_OFF;
    options.size = 1;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));
    options.size = sizeof options;
    OK(gpumem_init(&options));
    gpumem_free(must_malloc_async(1000, NULL));
    nothing_left();
}

static void with_prealloc(void) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.prealloc_bytes = 64 * MIB;
    OK(gpumem_init(&options));
    gpumem_free(gpumem_malloc(1000));
    CHECK(stats_now().mapped >= 64 * MIB);
    nothing_left();
}

static void without_options(void) {
    OK(gpumem_init(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(NULL));
}

static void two_host_devices(void) {
    gpumem_context_options options;
    int n = 0;
    GPUMEM_INIT(&options);
    options.backend = GPUMEM_BACKEND_HOST;
    options.host_devices = 2;
    options.host_bytes = 512 * MIB;
    OK(gpumem_init(&options));
    OK(gpumem_device_count(&n));
    CHECK(n == 2);
    CHECK(on_host_device());
}

static void options_hold(void) { CHECK(in_child(with_limit) == 0); }
static void bad_options_do_not_start(void) { CHECK(in_child(bad_options_then_good_ones) == 0); }
static void preallocated_memory_is_mapped(void) { CHECK(in_child(with_prealloc) == 0); }
static void null_means_the_environment(void) { CHECK(in_child(without_options) == 0); }
static void the_host_device_can_be_asked_for(void) { CHECK(in_child(two_host_devices) == 0); }

int main(void) {
    RUN(options_hold);
    RUN(bad_options_do_not_start);
    RUN(preallocated_memory_is_mapped);
    RUN(null_means_the_environment);
    RUN(the_host_device_can_be_asked_for);
    return 0;
}

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
    fill(p, is_slow() ? MIB : 16 * MIB, 1, NULL);
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
    OK(gpumem_device_count_get(&n));
    CHECK(n == 2);
    CHECK(on_host_device());
}

static char folder[] = "/tmp/gpumem-init-XXXXXX";

static gpumem_space_stats usage(int32_t tier, uint32_t id) {
    gpumem_space_stats out;
    GPUMEM_INIT(&out);
    OK(gpumem_space_stats_get(space_at(tier, id), &out));
    return out;
}

static gpumem_host_stats host_stats(void) {
    gpumem_host_stats out;
    GPUMEM_INIT(&out);
    OK(gpumem_host_stats_get(GPUMEM_HOST_NEAREST, &out));
    return out;
}

/* Options come before the environment, which has other values for all of them. */
static void set_other_values(void) {
    setenv("GPUMEM_TIERS", "off", 1);
    setenv("GPUMEM_MOVER", "on", 1);
    setenv("GPUMEM_PINNED_LIMIT", "64M", 1);
    setenv("GPUMEM_PINNED_BLOCKS", "2M,4,4", 1);
    setenv("GPUMEM_DISK", "/tmp", 1);
    setenv("GPUMEM_DOWNGRADE", "0.9,0.8", 1);
    setenv("GPUMEM_CAPTURE", "off", 1);
}

static void with_tiers(void) {
    gpumem_context_options options;
    gpumem_space_stats disk;
    gpumem_host_stats stats;
    char text[128];
    void *pinned = NULL;
    set_other_values();
    GPUMEM_INIT(&options);
    options.log = GPUMEM_LOG_NOTHING;
    options.tiers = GPUMEM_TIERS_ON;
    options.pinned_limit_bytes = 3 * MIB;
    options.pinned_block_bytes = 64 * KIB;
    options.pinned_blocks = 8;
    options.pinned_chunks = GPUMEM_PINNED_CHUNKS_NONE;
    options.downgrade_trigger = 0.5;
    snprintf(text, sizeof text, "%s=5M", folder);
    options.disk = text;
    OK(gpumem_init(&options));
    memset(text, 'x', sizeof text); /* it is not kept */
    gpumem_free(gpumem_malloc(1000));
    CHECK(usage(GPUMEM_TIER_GPU, 0).peak > 0); /* it was counted before anybody asked */
    disk = usage(GPUMEM_TIER_DISK, 0);
    CHECK(disk.limit == 5 * MIB && disk.trigger == 5 * MIB / 2 && disk.stop == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stats_get(space_at(GPUMEM_TIER_DISK, 1), &disk));
    OK(gpumem_host_malloc(64 * KIB, GPUMEM_HOST_NEAREST, &pinned));
    stats = host_stats();
    CHECK(stats.block_bytes == 64 * KIB && stats.pinned == 8 * 64 * KIB && stats.chunks == 1);
    CHECK(usage(GPUMEM_TIER_HOST, stats.node).limit == 3 * MIB);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_prepare(GPUMEM_HOST_NEAREST, 4 * MIB));
    OK(gpumem_host_free(pinned));
    nothing_left();
}

/* Without options the environment's hold. */
static void with_those_of_the_environment(void) {
    gpumem_context_options options;
    gpumem_host_stats stats;
    void *pinned = NULL;
    set_other_values();
    GPUMEM_INIT(&options);
    OK(gpumem_init(&options));
    gpumem_free(gpumem_malloc(1000));
    CHECK(usage(GPUMEM_TIER_GPU, 0).peak == 0);
    OK(gpumem_host_malloc(64 * KIB, GPUMEM_HOST_NEAREST, &pinned));
    stats = host_stats();
    CHECK(stats.block_bytes == 2 * MIB && stats.pinned >= 8 * MIB);
    CHECK(usage(GPUMEM_TIER_HOST, stats.node).limit == 64 * MIB);
    CHECK(usage(GPUMEM_TIER_DISK, 0).limit > 5 * MIB);
    CHECK(usage(GPUMEM_TIER_DISK, 0).trigger > usage(GPUMEM_TIER_DISK, 0).limit / 10 * 8);
    OK(gpumem_host_free(pinned));
}

/* An allocation that may be moved by itself, in a space that is too full with it: whether the
 * thread moves it in so many milliseconds. */
static int is_moved_by_itself(int32_t mover, int most) {
    gpumem_context_options options;
    gpumem_malloc_options how;
    gpumem_location at;
    void *p = NULL;
    int i;
    GPUMEM_INIT(&options);
    options.mover = mover;
    options.downgrade_trigger = 0.5;
    options.downgrade_stop = 0.1;
    OK(gpumem_init(&options));
    GPUMEM_INIT(&how);
    GPUMEM_INIT(&at);
    how.flags = GPUMEM_MALLOC_EVICTABLE;
    how.bytes = 2 * MIB;
    OK(gpumem_malloc_with(&how, &p));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 3 * MIB));
    OK(gpumem_hold(p));
    OK(gpumem_unhold(p, NULL));
    for (i = 0; i < most; i++) {
        OK(gpumem_location_get(p, &at));
        if (at.space.tier == GPUMEM_TIER_HOST) return 1;
        usleep(1000);
    }
    return 0;
}

/* With the thread it takes a moment; without, a wait as long as many of those finds it where it
 * was. */
static void without_a_mover(void) {
    set_other_values();
    CHECK(!is_moved_by_itself(GPUMEM_MOVER_OFF, 300));
}

static void with_a_mover(void) {
    setenv("GPUMEM_MOVER", "off", 1);
    CHECK(is_moved_by_itself(GPUMEM_MOVER_ON, 10000));
}

/* Whether an allocation on a stream that is being captured stays with its graph. */
static void with_captures(void) {
    gpumem_context_options options;
    gpumem_stream s;
    gpumem_sim_graph graph = NULL;
    void *p;
    int i;
    set_other_values();
    GPUMEM_INIT(&options);
    options.capture_detection = GPUMEM_CAPTURE_DETECTION_AUTO;
    OK(gpumem_init(&options));
    s = must_stream();
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_RELAXED));
    p = must_malloc_async(3 * MIB, s);
    OK(gpumem_memset_async(p, 1, 3 * MIB, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_sim_capture_end(s, &graph));
    OK(gpumem_trim(0));
    CHECK(stats_now().mapped >= 3 * MIB);
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_device_sync());
    /* The driver may take a moment to say that the graph is gone. */
    for (i = 0; i < 1000 && stats_now().mapped > 0; i++) {
        OK(gpumem_trim(0));
        usleep(1000);
    }
    CHECK(stats_now().mapped == 0);
    OK(gpumem_stream_destroy(s));
}

static void bad_tiers_then_good_ones(void) {
    gpumem_context_options options;
#define REFUSED(set, says)                                                                                             \
    do {                                                                                                               \
        GPUMEM_INIT(&options);                                                                                         \
        set;                                                                                                           \
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_init(&options));                                                     \
        CHECK(error_says(says));                                                                                       \
    } while (0)
    REFUSED(options.capture_detection = 3, "GPUMEM_CAPTURE_DETECTION_*");
    REFUSED(options.tiers = 3, "GPUMEM_TIERS_*");
    REFUSED(options.mover = 3, "GPUMEM_MOVER_*");
    REFUSED(options.pinned_limit_percent = 101, "pinned_limit_percent is 101");
    REFUSED(options.pinned_block_bytes = 5000, "pinned_block_bytes is 5000");
    REFUSED(options.pinned_blocks = 2000000, "pinned_blocks is 2000000");
    REFUSED(options.pinned_chunks = 2000000, "pinned_chunks is 2000000");
    REFUSED(options.disk = "scratch", "directories that begin with /");
    REFUSED(options.downgrade_trigger = 1.5, "downgrade_trigger");
    REFUSED(options.downgrade_stop = 0.5, "the second is not the larger");
#undef REFUSED
    GPUMEM_INIT(&options);
    OK(gpumem_init(&options));
}

static void options_hold(void) { CHECK(in_child(with_limit) == 0); }
static void bad_options_do_not_start(void) { CHECK(in_child(bad_options_then_good_ones) == 0); }
static void preallocated_memory_is_mapped(void) { CHECK(in_child(with_prealloc) == 0); }
static void null_means_the_environment(void) { CHECK(in_child(without_options) == 0); }
static void the_host_device_can_be_asked_for(void) { CHECK(in_child(two_host_devices) == 0); }
static void tiers_can_be_set_up(void) {
    CHECK(mkdtemp(folder) != NULL);
    CHECK(in_child(with_tiers) == 0);
    CHECK(in_child(with_those_of_the_environment) == 0);
    CHECK(in_child(bad_tiers_then_good_ones) == 0);
}
static void the_mover_can_be_chosen(void) {
    CHECK(in_child(without_a_mover) == 0);
    CHECK(in_child(with_a_mover) == 0);
}
static void captures_can_be_found(void) { CHECK(in_child(with_captures) == 0); }

static void remove_folder(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

int main(void) {
    RUN(options_hold);
    RUN(bad_options_do_not_start);
    RUN(preallocated_memory_is_mapped);
    RUN(null_means_the_environment);
    RUN(the_host_device_can_be_asked_for);
    RUN(tiers_can_be_set_up);
    RUN(the_mover_can_be_chosen);
    RUN(captures_can_be_found);
    remove_folder();
    return 0;
}

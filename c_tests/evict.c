/* Memory that leaves its device and comes back to its addresses: from the host and a disk, by
 * tag, by hold, by itself. */
#include "evict.h"

#include <sched.h>

/* The report of a move that went well. */
static void moved(const gpumem_move_report *report, uint64_t count, uint64_t bytes, uint64_t already) {
    CHECK(report->size == sizeof *report && report->reserved == 0);
    CHECK(report->moved == count && report->moved_bytes == bytes && report->already == already);
}

static void bytes_come_back_from_every_tier(void) {
    static const size_t sizes[] = {0, 1, 4096, 100001, 3 * MIB + 5};
    gpumem_stream s = must_stream(), t = must_stream();
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        uint64_t held = (n == 0 ? 1 : (n + page - 1) / page) * page, mapped;
        void *p = evictable(n, 0, s);
        gpumem_location at = where(p);
        gpumem_move_report report;
        gpumem_move_options options;
        GPUMEM_INIT(&report);
        CHECK(at.space.tier == GPUMEM_TIER_GPU && at.space.id == 0 && at.holds == 0 && at.bytes == n && at.device_bytes == held);
        CHECK(used_in(GPUMEM_TIER_GPU) == held);
        fill(p, n, 7, s);
        mapped = stats_now().mapped;

        OK(gpumem_evict(p, NULL, &report));
        moved(&report, 1, n, 0);
        at = where(p);
        CHECK(at.space.tier == GPUMEM_TIER_HOST && at.bytes == n && at.device_bytes == held);
        CHECK(stats_now().requested == 0 && stats_now().live == 0 && stats_now().allocations == 1);
        CHECK(stats_now().mapped == mapped - held && used_in(GPUMEM_TIER_GPU) == 0 && used_in(GPUMEM_TIER_HOST) >= n);
        OK(gpumem_evict(p, NULL, &report));
        moved(&report, 0, 0, 1);
        CHECK(gpumem_usable_size(p) >= n);
        OK(gpumem_restore(p, NULL, &report));
        moved(&report, 1, n, 0);
        CHECK(is_in(p, GPUMEM_TIER_GPU) && stats_now().mapped == mapped && used_in(GPUMEM_TIER_HOST) == 0);
        CHECK(holds(p, n, 7, t));

        /* To the disk and back at once, after work on another stream. */
        fill(p, n, 8, t);
        options = to(GPUMEM_TIER_DISK);
        options.flags = GPUMEM_MOVE_ON_STREAM;
        options.stream = t;
        OK(gpumem_evict(p, &options, NULL));
        CHECK(is_in(p, GPUMEM_TIER_DISK) && used_in(GPUMEM_TIER_DISK) >= n && used_in(GPUMEM_TIER_GPU) == 0);
        OK(gpumem_restore(p, NULL, NULL));
        CHECK(holds(p, n, 8, s));

        /* Down by steps, and up by steps. */
        options = to(GPUMEM_TIER_HOST);
        OK(gpumem_evict(p, &options, NULL));
        options = to_space(GPUMEM_TIER_DISK, 0);
        OK(gpumem_evict(p, &options, &report));
        moved(&report, 1, n, 0);
        CHECK(is_in(p, GPUMEM_TIER_DISK) && where(p).space.id == 0 && used_in(GPUMEM_TIER_HOST) == 0);
        options = to(GPUMEM_TIER_HOST);
        OK(gpumem_restore(p, &options, &report));
        moved(&report, 1, n, 0);
        CHECK(is_in(p, GPUMEM_TIER_HOST) && used_in(GPUMEM_TIER_DISK) == 0);
        OK(gpumem_restore(p, &options, &report));
        moved(&report, 0, 0, 1);
        options = to(GPUMEM_TIER_GPU);
        OK(gpumem_restore(p, &options, NULL));
        CHECK(is_in(p, GPUMEM_TIER_GPU) && holds(p, n, 8, s));
        OK(gpumem_free_async(p, s));
        everything_is_free();
    }
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
}

static void tags_move_together(void) {
    gpumem_stream s = must_stream();
    gpumem_move_report report;
    gpumem_move_options options = to(GPUMEM_TIER_DISK);
    void *weights[3], *other = evictable(MIB, 6, s);
    uint64_t bytes = 0;
    unsigned i;
    GPUMEM_INIT(&report);
    for (i = 0; i < 3; i++) {
        weights[i] = evictable((i + 1) * MIB + i, 5, s);
        bytes += (i + 1) * MIB + i;
        fill(weights[i], (i + 1) * MIB + i, i, s);
    }
    OK(gpumem_evict(weights[1], NULL, NULL));
    OK(gpumem_evict_tag(5, NULL, &report));
    moved(&report, 2, bytes - (2 * MIB + 1), 1);
    CHECK(is_in(other, GPUMEM_TIER_GPU));
    for (i = 0; i < 3; i++) CHECK(is_in(weights[i], GPUMEM_TIER_HOST));
    OK(gpumem_evict_tag(5, &options, &report));
    moved(&report, 3, bytes, 0);
    OK(gpumem_restore_tag(5, NULL, &report));
    moved(&report, 3, bytes, 0);
    OK(gpumem_restore_tag(5, NULL, &report));
    moved(&report, 0, 0, 3);
    for (i = 0; i < 3; i++) CHECK(holds(weights[i], (i + 1) * MIB + i, i, s));

    /* All or none. */
    OK(gpumem_hold(weights[2]));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict_tag(5, NULL, &report));
    CHECK(error_says("is held once"));
    for (i = 0; i < 3; i++) CHECK(is_in(weights[i], GPUMEM_TIER_GPU));
    OK(gpumem_restore_tag(5, NULL, NULL)); /* a hold is in nobody's way here */
    OK(gpumem_unhold(weights[2], s));
    report.moved = 77;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict_tag(12345, NULL, &report));
    CHECK(error_says("12345") && report.moved == 77);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_restore_tag(12345, NULL, &report));
    CHECK(report.moved == 77);
    for (i = 0; i < 3; i++) OK(gpumem_free_async(weights[i], s));
    OK(gpumem_free_async(other, s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

static void pins_keep_it_in_the_device(void) {
    gpumem_stream s = must_stream();
    void *p = evictable(MIB, 0, s);
    fill(p, MIB, 1, s);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_unhold(p, s));
    CHECK(error_says("is not held"));
    OK(gpumem_evict(p, NULL, NULL));
    OK(gpumem_hold(p)); /* brings it back */
    OK(gpumem_hold(p));
    CHECK(is_in(p, GPUMEM_TIER_GPU) && where(p).holds == 2 && holds(p, MIB, 1, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict(p, NULL, NULL));
    CHECK(error_says("held 2 times"));
    OK(gpumem_unhold(p, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict(p, NULL, NULL));
    OK(gpumem_unhold(p, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_unhold(p, s));
    CHECK(where(p).holds == 0);
    OK(gpumem_evict(p, NULL, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_unhold(p, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

static void captured_streams_keep_what_they_use(void) {
    gpumem_stream s = must_stream();
    gpumem_sim_graph graph = NULL;
    gpumem_move_options options = to(0);
    void *p = evictable(MIB, 0, s);
    options.flags = GPUMEM_MOVE_ON_STREAM;
    options.stream = s;
    OK(gpumem_hold(p));
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_RELAXED));
    CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_unhold(p, s));
    CHECK(where(p).holds == 1);
    OK(gpumem_unhold(p, NULL)); /* nothing was submitted to s */
    CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_evict(p, &options, NULL));
    CHECK(is_in(p, GPUMEM_TIER_GPU));
    OK(gpumem_sim_capture_end(s, &graph));
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_evict(p, &options, NULL));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

/* In modes that forbid waiting for streams too: moves of what no captured stream uses succeed,
 * and harm no capture. */
static void moves_leave_captures_whole(void) {
    gpumem_stream s = must_stream(), captured = must_stream();
    const int32_t modes[] = {GPUMEM_SIM_CAPTURE_GLOBAL, GPUMEM_SIM_CAPTURE_THREAD_LOCAL};
    const int32_t tiers[] = {GPUMEM_TIER_HOST, GPUMEM_TIER_DISK};
    void *p = evictable(5 * MIB, 0, s);
    int i, j;
    fill(p, 5 * MIB, 3, s);
    OK(gpumem_hold(p));
    OK(gpumem_unhold(p, s));
    OK(gpumem_device_sync()); /* what earlier streams of these handles did is over, too */
    for (i = 0; i < 2; i++) {
        for (j = 0; j < 2; j++) {
            gpumem_sim_graph graph = NULL;
            gpumem_move_options options = to(tiers[j]);
            options.flags = GPUMEM_MOVE_ON_STREAM;
            options.stream = s;
            OK(gpumem_sim_capture_begin(captured, modes[i]));
            OK(gpumem_evict(p, &options, NULL));
            CHECK(is_in(p, tiers[j]));
            OK(gpumem_hold(p));
            OK(gpumem_unhold(p, s));
            OK(gpumem_evict(p, &options, NULL));
            OK(gpumem_restore(p, NULL, NULL));
            OK(gpumem_sim_capture_end(captured, &graph));
            OK(gpumem_sim_graph_destroy(graph));
            CHECK(holds(p, 5 * MIB, 3, s));
        }
    }
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(captured));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

static int slots_found;

static void count_slot(const char *path, int is_dir) { slots_found += !is_dir && is_slot(path); }

static void what_is_freed_elsewhere_leaves_nothing(void) {
    static const int32_t tiers[] = {GPUMEM_TIER_HOST, GPUMEM_TIER_DISK};
    size_t i;
    for (i = 0; i < 4; i++) {
        gpumem_move_options options = to(tiers[i % 2]);
        void *p = evictable(MIB, 0, NULL);
        OK(gpumem_evict(p, &options, NULL));
        if (i < 2) {
            gpumem_free(p);
        } else {
            uint64_t id = 0;
            OK(gpumem_allocation_id_get(p, &id));
            OK(gpumem_free_id(p, id));
        }
        CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_restore(p, NULL, NULL));
        slots_found = 0;
        walk(mount, count_slot);
        CHECK(slots_found == 0);
        everything_is_free();
    }
}

/* Buffers for which there is no room all at once: those that were used longest ago go. */
static void the_least_recently_unheld_make_room(void) {
    enum { BUFFERS = 6, ROOM = 4 };
    static const int used[ROOM] = {2, 0, 3, 1};
    gpumem_stream s = must_stream();
    void *buffers[BUFFERS], *stays, *none = NULL;
    int device = 0, i, round;
    OK(gpumem_device_get(&device));
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    OK(gpumem_device_limit_set(device, (size_t)stats_now().mapped + ROOM * page));
    for (i = 0; i < ROOM; i++) {
        buffers[i] = evictable(page - 100, 0, s);
        fill(buffers[i], page - 100, (unsigned)i, s);
        OK(gpumem_hold(buffers[i]));
    }
    for (i = 0; i < ROOM; i++) OK(gpumem_unhold(buffers[used[i]], s));
    for (i = ROOM; i < BUFFERS; i++) {
        int k;
        buffers[i] = evictable(page - 100, 0, s);
        fill(buffers[i], page - 100, (unsigned)i, s);
        OK(gpumem_hold(buffers[i]));
        OK(gpumem_unhold(buffers[i], s));
        for (k = 0; k < ROOM; k++) CHECK(is_in(buffers[used[k]], GPUMEM_TIER_GPU) == (k > i - ROOM));
    }
    for (round = 1; round < 4; round++) {
        for (i = 0; i < BUFFERS; i++) {
            OK(gpumem_hold(buffers[i]));
            CHECK(holds(buffers[i], page - 100, (unsigned)(i + (round - 1) * BUFFERS), s));
            fill(buffers[i], page - 100, (unsigned)(i + round * BUFFERS), s);
            OK(gpumem_unhold(buffers[i], s));
        }
    }
    /* What is held, or never was, stays; a request that only these could make room for fails. */
    for (i = 0; i < 2; i++) OK(gpumem_hold(buffers[i]));
    stays = evictable(2 * page, 0, s);
    CHECK(is_in(buffers[0], GPUMEM_TIER_GPU) && is_in(buffers[1], GPUMEM_TIER_GPU) && !is_in(buffers[5], GPUMEM_TIER_GPU));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, try_evictable(1, 0, s, &none));
    CHECK(none == NULL && is_in(stays, GPUMEM_TIER_GPU));
    OK(gpumem_free_async(stays, s));
    for (i = 0; i < 2; i++) OK(gpumem_unhold(buffers[i], s));
    OK(gpumem_device_limit_set(device, 0));
    for (i = 0; i < BUFFERS; i++) OK(gpumem_free_async(buffers[i], s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

struct attempt {
    gpumem_status plain, evictable;
    int calls;
};

static int32_t allocate_inside(uint64_t done, uint64_t total, void *user) {
    struct attempt *attempt = (struct attempt *)user;
    void *p = NULL;
    (void)done, (void)total;
    if (attempt->calls++ > 0) return 0;
    attempt->plain = gpumem_malloc_async(8 * page, NULL, &p);
    attempt->evictable = try_evictable(8 * page, 0, NULL, &p);
    return 0;
}

/* Room that is only made once the callback has ended is not waited for in it. */
static void an_allocation_in_the_callback_of_a_move_does_not_wait_for_the_move(void) {
    struct attempt attempt = {GPUMEM_OK, GPUMEM_OK, 0};
    gpumem_move_options options;
    const uint64_t all = usage_of(GPUMEM_TIER_GPU, 0).limit;
    void *p = evictable(12 * page, 0, NULL);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 16 * page));
    OK(gpumem_hold(p));
    OK(gpumem_unhold(p, NULL));
    GPUMEM_INIT(&options);
    options.progress = allocate_inside;
    options.user = &attempt;
    OK(gpumem_evict(p, &options, NULL));
    CHECK(attempt.calls > 0 && attempt.plain == GPUMEM_ERROR_OUT_OF_MEMORY && attempt.evictable == GPUMEM_ERROR_OUT_OF_MEMORY);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), all));
    OK(gpumem_free_async(p, NULL));
    everything_is_free();
}

/* What the pool has free and mapped takes no room in the space, and makes nothing seem hopeless. */
static void memory_that_the_pool_has_free_does_not_keep_others_in_the_device(void) {
    const uint64_t all = usage_of(GPUMEM_TIER_GPU, 0).limit;
    void *first, *other, *second;
    int device = 0;
    OK(gpumem_device_get(&device));
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    OK(gpumem_device_limit_set(device, (size_t)stats_now().mapped + 32 * page));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 32 * page));
    first = evictable(16 * page, 0, NULL);
    OK(gpumem_hold(first));
    OK(gpumem_unhold(first, NULL));
    OK(gpumem_malloc_async(15 * page, NULL, &other));
    OK(gpumem_free_async(other, NULL));
    second = evictable(20 * page, 0, NULL);
    CHECK(!is_in(first, GPUMEM_TIER_GPU) && is_in(second, GPUMEM_TIER_GPU));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), all));
    OK(gpumem_device_limit_set(device, 0));
    OK(gpumem_free_async(first, NULL));
    OK(gpumem_free_async(second, NULL));
    everything_is_free();
}

/* The mover empties the device's space by itself from the trigger on, down to the stop. */
static void the_mover_works_between_the_thresholds(void) {
    enum { BUFFERS = 5, STAY = 3 };
    gpumem_stream s = must_stream();
    const double all = (double)usage_of(GPUMEM_TIER_GPU, 0).limit;
    void *buffers[BUFFERS];
    int i;
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 4.5 * (double)page / all, 3.5 * (double)page / all));
    for (i = 0; i < BUFFERS; i++) {
        buffers[i] = evictable(page, 0, s);
        fill(buffers[i], page, (unsigned)i, s);
        OK(gpumem_hold(buffers[i]));
        if (i < BUFFERS - 1) CHECK(used_in(GPUMEM_TIER_GPU) == (uint64_t)(i + 1) * page);
        OK(gpumem_unhold(buffers[i], s));
    }
    while (used_in(GPUMEM_TIER_GPU) > STAY * page) sched_yield();
    for (i = 0; i < BUFFERS; i++) {
        while (where(buffers[i]).space.tier == 0) sched_yield(); /* on its way */
        CHECK(is_in(buffers[i], i < BUFFERS - STAY ? GPUMEM_TIER_HOST : GPUMEM_TIER_GPU));
    }
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.85, 0.65));
    for (i = 0; i < BUFFERS; i++) {
        OK(gpumem_hold(buffers[i]));
        CHECK(holds(buffers[i], page, (unsigned)i, s));
        OK(gpumem_free_async(buffers[i], s)); /* a hold ends with its allocation */
    }
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

int main(void) {
    set_up();
    RUN(bytes_come_back_from_every_tier);
    RUN(tags_move_together);
    RUN(pins_keep_it_in_the_device);
    RUN(captured_streams_keep_what_they_use);
    RUN(moves_leave_captures_whole);
    RUN(what_is_freed_elsewhere_leaves_nothing);
    RUN(the_least_recently_unheld_make_room);
    RUN(an_allocation_in_the_callback_of_a_move_does_not_wait_for_the_move);
    RUN(memory_that_the_pool_has_free_does_not_keep_others_in_the_device);
    RUN(the_mover_works_between_the_thresholds);
    clean_up();
    return 0;
}

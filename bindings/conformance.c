/*
 * The behaviours of bindings/CONFORMANCE.md in C, each a function of that name.
 * tests/capi/bindings.rs runs it.
 *
 * A runtime's object stands here as what a binding makes of it: a pointer and a number, freed by
 * both.
 */
#include "../c_tests/harness.h"

#include <pthread.h>
#include <sched.h>

typedef struct {
    void *ptr;
    uint64_t id;
} object;

static object make(size_t bytes) {
    object o;
    o.ptr = NULL;
    o.id = 0;
    OK(gpumem_malloc_async(bytes, NULL, &o.ptr));
    OK(gpumem_allocation_id_get(o.ptr, &o.id));
    return o;
}

static void finalize(object o) { OK(gpumem_free_id(o.ptr, o.id)); }

static int is_live(object o) {
    uint64_t id = 0;
    return gpumem_allocation_id_get(o.ptr, &id) == GPUMEM_OK && id == o.id;
}

static gpumem_arena enter(const char *name) {
    gpumem_arena arena = NULL;
    OK(gpumem_arena_enter_named(name, &arena));
    return arena;
}

static gpumem_arena_report leave(gpumem_arena arena, void *const *keep, size_t count) {
    gpumem_arena_report report;
    GPUMEM_INIT(&report);
    OK(gpumem_arena_exit(arena, keep, count, &report));
    return report;
}

/* Runs a function on a thread of its own, to its end. */
static void elsewhere(void *(*f)(void *), void *what) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, f, what) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void zero_bytes(void) {
    object a = make(0), b = make(0);
    CHECK(a.ptr != b.ptr && a.id != 0 && a.id != b.id && is_live(a));
    finalize(a);
    finalize(b);
    CHECK(!is_live(a));
}

static void round_trip(void) {
    object a = make(8000), b = make(8000);
    fill(a.ptr, 8000, 3, NULL);
    CHECK(holds(a.ptr, 8000, 3, NULL));
    OK(gpumem_memset_async(b.ptr, 7, 8000, NULL));
    OK(gpumem_memcpy_async(b.ptr, a.ptr, 4000, NULL));
    CHECK(holds(b.ptr, 4000, 3, NULL) && holds_byte((char *)b.ptr + 4000, 4000, 7, NULL));
    finalize(a);
    finalize(b);
}

/* A binding remembers that it has freed, or leaves it to the number. */
static void free_once(void) {
    object a = make(4 * KIB);
    gpumem_stats before = stats_now(), after;
    finalize(a);
    finalize(a);
    after = stats_now();
    CHECK(after.frees == before.frees + 1 && after.double_frees == before.double_frees);
    CHECK(!is_live(a));
}

static void double_free(void) {
    object a = make(4 * KIB);
    gpumem_stats before = stats_now(), after;
    gpumem_status status;
    OK(gpumem_free_async(a.ptr, NULL));
    status = gpumem_free_async(a.ptr, NULL);
    CHECK(status == GPUMEM_ERROR_DOUBLE_FREE || status == GPUMEM_ERROR_UNKNOWN_POINTER);
    after = stats_now();
    CHECK(after.double_frees + after.unknown_pointers == before.double_frees + before.unknown_pointers + 1);
    CHECK(gpumem_last_error(NULL, 0) > 0);
}

static void unknown_pointer(void) {
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_free_async((void *)(uintptr_t)0x1000, NULL));
    CHECK(error_says("0x1000"));
}

static void interior_free(void) {
    object a = make(4 * KIB);
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_free_async((char *)a.ptr + 256, NULL));
    CHECK(is_live(a));
    finalize(a);
}

static void out_of_memory_text(void) {
    void *p = NULL;
    char asked[32];
    OK(gpumem_trim(0));
    OK(gpumem_device_limit_set(0, 64 * MIB));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(65 * MIB, NULL, &p));
    snprintf(asked, sizeof asked, "%lu", (unsigned long)(65 * MIB));
    CHECK(error_says(asked));
    OK(gpumem_device_limit_set(0, 0));
    finalize(make(65 * MIB));
}

static void finalizer_frees(void) {
    int i;
    for (i = 0; i < 20; i++) finalize(make(4 * KIB));
    CHECK(stats_now().allocations == 0);
}

static void finalizer_after_exit(void) {
    gpumem_arena arena = enter(NULL);
    object a = make(4 * KIB);
    gpumem_stats before, after;
    leave(arena, NULL, 0);
    before = stats_now();
    finalize(a);
    after = stats_now();
    CHECK(after.late_frees == before.late_frees + 1 && after.frees == before.frees);
    CHECK(after.double_frees == before.double_frees);
}

static void finalizer_after_address_reuse(void) {
    gpumem_arena arena = enter(NULL);
    object old = make(4 * KIB), young;
    leave(arena, NULL, 0);
    young = make(4 * KIB);
    CHECK(young.ptr == old.ptr && young.id != old.id);
    fill(young.ptr, 4 * KIB, 5, NULL);
    finalize(old);
    CHECK(is_live(young) && !is_live(old) && holds(young.ptr, 4 * KIB, 5, NULL));
    finalize(young);
}

static void *finalize_64(void *what) {
    int i;
    for (i = 0; i < 64; i++) finalize(((object *)what)[i]);
    return NULL;
}

static void finalizer_on_other_thread(void) {
    object all[64];
    int i;
    for (i = 0; i < 64; i++) all[i] = make(4 * KIB);
    elsewhere(finalize_64, all);
    CHECK(stats_now().allocations == 0);
}

static void hundred_thousand_buffers(void) {
    enum { MANY = 100000 };
    object *all = (object *)malloc(MANY * sizeof *all);
    gpumem_stats before = stats_now(), after;
    int i;
    CHECK(all != NULL);
    for (i = 0; i < MANY; i++) all[i] = make(256);
    CHECK(stats_now().allocations == MANY);
    for (i = 0; i < MANY; i++) finalize(all[i]);
    after = stats_now();
    CHECK(after.mallocs == before.mallocs + MANY && after.frees == before.frees + MANY);
    free(all);
}

/* 64 buffers of 4096 floats that are reachable across the exit, four times. */
static void exit_frees_all(void) {
    gpumem_stats before = stats_now(), now;
    object held[256];
    size_t i, round, count = 0;
    for (round = 1; round <= 4; round++) {
        gpumem_arena arena = enter(NULL);
        for (i = 0; i < 64; i++) held[count++] = make(4 * 4096);
        now = stats_now();
        CHECK(now.allocations == before.allocations + 64 && now.frees == before.frees + 64 * (round - 1));
        leave(arena, NULL, 0);
        now = stats_now();
        CHECK(now.allocations == before.allocations && now.requested == before.requested);
        CHECK(now.frees == before.frees + 64 * round);
    }
    for (i = 0; i < count; i++) CHECK(!is_live(held[i]));
}

static void exit_keeps(void) {
    gpumem_arena arena = enter("step");
    object a = make(4 * KIB), b = make(4 * KIB);
    gpumem_arena_report report;
    fill(b.ptr, 4 * KIB, 1, NULL);
    report = leave(arena, &b.ptr, 1);
    CHECK(report.freed == 1 && report.kept == 1 && !is_live(a) && is_live(b) && holds(b.ptr, 4 * KIB, 1, NULL));
    finalize(b);
}

static void exit_keeps_interior_pointer(void) {
    gpumem_arena arena = enter(NULL);
    object a = make(4 * KIB);
    void *inside = (char *)a.ptr + 1000;
    gpumem_arena_report report = leave(arena, &inside, 1);
    CHECK(report.kept == 1 && report.freed == 0 && is_live(a));
    finalize(a);
}

static void exit_counts_odd_entries(void) {
    object outside = make(256), a, gone;
    void *keep[5];
    gpumem_arena arena = enter(NULL);
    gpumem_arena_report report;
    a = make(256);
    gone = make(256);
    finalize(gone);
    keep[0] = keep[1] = a.ptr;
    keep[2] = outside.ptr;
    keep[3] = gone.ptr;
    keep[4] = NULL;
    report = leave(arena, keep, 5);
    CHECK(report.kept == 1 && report.duplicate == 1 && report.foreign == 1 && report.unknown == 1);
    CHECK(report.depth == 0 && report.kept_bytes == 256);
    finalize(a);
    finalize(outside);
}

static void early_free_in_arena(void) {
    gpumem_arena arena = enter(NULL);
    gpumem_arena_stats stats;
    gpumem_arena_report report;
    object a = make(256);
    make(512);
    finalize(a);
    GPUMEM_INIT(&stats);
    OK(gpumem_arena_stats_get(arena, &stats));
    CHECK(stats.freed_early == 1);
    report = leave(arena, NULL, 0);
    CHECK(report.freed == 1 && report.freed_bytes == 512);
}

/* C has no exceptions: what a binding calls on the way out of one. */
static void exception_keeps_nothing(void) {
    gpumem_arena arena = enter(NULL), now = NULL;
    object a = make(4 * KIB);
    OK(gpumem_arena_abort(arena, NULL));
    OK(gpumem_arena_current_get(&now));
    CHECK(!is_live(a) && now == NULL);
}

static void exception_ends_inner_arenas(void) {
    gpumem_arena outer = enter(NULL), inner = enter("forgotten");
    object a = make(256);
    OK(gpumem_arena_abort(outer, NULL));
    CHECK(!is_live(a));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(inner, NULL, 0, NULL));
}

static void nested_promote(void) {
    gpumem_arena outer = enter(NULL), inner = enter(NULL);
    gpumem_arena_stats stats;
    object a = make(256);
    OK(gpumem_arena_promote(a.ptr));
    GPUMEM_INIT(&stats);
    OK(gpumem_arena_stats_get(outer, &stats));
    CHECK(stats.live == 1);
    leave(inner, NULL, 0);
    CHECK(is_live(a));
    leave(outer, NULL, 0);
    CHECK(!is_live(a));
}

static void inner_keep_ends_with_outer(void) {
    gpumem_arena outer = enter(NULL), inner = enter("inner");
    object a = make(256), b = make(512);
    void *keep[2];
    keep[0] = a.ptr;
    keep[1] = b.ptr;
    CHECK(leave(inner, keep, 2).depth == 1);
    CHECK(is_live(a) && is_live(b));
    leave(outer, &b.ptr, 1);
    CHECK(!is_live(a) && is_live(b));
    finalize(b);
}

static void outermost_keep_is_ordinary(void) {
    gpumem_arena arena = enter(NULL), found;
    object a = make(256);
    leave(arena, &a.ptr, 1);
    OK(gpumem_arena_find(a.ptr, &found));
    CHECK(found == NULL);
    leave(enter(NULL), NULL, 0);
    CHECK(is_live(a));
    finalize(a);
}

static void exit_in_wrong_order(void) {
    gpumem_arena outer = enter(NULL), inner = enter(NULL);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(outer, NULL, 0, NULL));
    CHECK(leave(inner, NULL, 0).depth == 1);
    CHECK(leave(outer, NULL, 0).depth == 0);
}

static void stale_arena(void) {
    gpumem_arena arena = enter(NULL);
    gpumem_arena_stats stats;
    leave(arena, NULL, 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(arena, NULL, 0, NULL));
    GPUMEM_INIT(&stats);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_stats_get(arena, &stats));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_attach(arena));
}

static void escape(void) {
    gpumem_arena outer = enter(NULL), inner = enter(NULL);
    object a = make(256);
    fill(a.ptr, 256, 9, NULL);
    OK(gpumem_arena_escape(a.ptr));
    leave(inner, NULL, 0);
    leave(outer, NULL, 0);
    CHECK(is_live(a) && holds(a.ptr, 256, 9, NULL));
    OK(gpumem_arena_escape(a.ptr));
    finalize(a);
}

static void *allocate_attached(void *arena) {
    int i;
    OK(gpumem_arena_attach((gpumem_arena)arena));
    for (i = 0; i < 50; i++) make(256);
    OK(gpumem_arena_detach((gpumem_arena)arena));
    return NULL;
}

static void thread_attach(void) {
    gpumem_arena arena = enter(NULL);
    pthread_t threads[8];
    int i;
    for (i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, allocate_attached, arena) == 0);
    for (i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(leave(arena, NULL, 0).freed == 400);
}

static void *allocate_one(void *out) {
    *(object *)out = make(256);
    return NULL;
}

static void other_threads_unaffected(void) {
    gpumem_arena arena = enter(NULL);
    object a;
    elsewhere(allocate_one, &a);
    CHECK(leave(arena, NULL, 0).freed == 0);
    CHECK(is_live(a));
    finalize(a);
}

static struct {
    gpumem_arena arena;
    pthread_barrier_t barrier;
} held;

static void *hold_attached(void *unused) {
    (void)unused;
    OK(gpumem_arena_attach(held.arena));
    pthread_barrier_wait(&held.barrier);
    pthread_barrier_wait(&held.barrier);
    OK(gpumem_arena_detach(held.arena));
    return NULL;
}

static void exit_refused_while_attached(void) {
    pthread_t thread;
    held.arena = enter(NULL);
    CHECK(pthread_barrier_init(&held.barrier, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, hold_attached, NULL) == 0);
    pthread_barrier_wait(&held.barrier);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(held.arena, NULL, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_abort(held.arena, NULL));
    pthread_barrier_wait(&held.barrier);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_barrier_destroy(&held.barrier) == 0);
    leave(held.arena, NULL, 0);
}

static void arena_name_and_stats(void) {
    gpumem_arena arena = enter("forward");
    gpumem_arena_stats stats;
    object b;
    make(1000);
    b = make(24);
    finalize(b);
    GPUMEM_INIT(&stats);
    OK(gpumem_arena_stats_get(arena, &stats));
    CHECK(strcmp(stats.name, "forward") == 0 && stats.live == 1 && stats.live_bytes == 1000);
    CHECK(stats.peak_bytes == 1024 && stats.joined == 2 && stats.left == 1 && stats.freed_early == 1);
    leave(arena, NULL, 0);
}

static void detector_message(void) {
    gpumem_arena arena = enter("step");
    object a = make(4096);
    char text[128];
    leave(arena, NULL, 0);
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check(a.ptr, "add", "lhs"));
    CHECK(error_says("use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena "));
    snprintf(text, sizeof text, "\"step\", allocation %" PRIu64 " of 4096 bytes)", a.id);
    CHECK(error_says(text));
}

static void detector_after_address_reuse(void) {
    gpumem_arena arena = enter("step");
    object old = make(4096), young;
    leave(arena, NULL, 0);
    young = make(4096);
    CHECK(young.ptr == old.ptr);
    OK(gpumem_check_id(young.ptr, young.id, "add", "lhs"));
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check_id(old.ptr, old.id, "add", "rhs"));
    finalize(young);
}

static struct {
    object all[1000];
    pthread_barrier_t barrier;
} race;

static void *finalize_1000(void *unused) {
    int i;
    (void)unused;
    pthread_barrier_wait(&race.barrier);
    for (i = 0; i < 1000; i++) finalize(race.all[i]);
    return NULL;
}

static void exit_races_finalizers(void) {
    int round, i;
    CHECK(pthread_barrier_init(&race.barrier, NULL, 2) == 0);
    for (round = 0; round < 20; round++) {
        gpumem_stats before = stats_now(), after;
        gpumem_arena_report report;
        pthread_t thread;
        gpumem_arena arena = enter(NULL);
        for (i = 0; i < 1000; i++) race.all[i] = make(256);
        CHECK(pthread_create(&thread, NULL, finalize_1000, NULL) == 0);
        pthread_barrier_wait(&race.barrier);
        report = leave(arena, NULL, 0);
        CHECK(pthread_join(thread, NULL) == 0);
        after = stats_now();
        CHECK(after.frees == before.frees + 1000 && after.double_frees == before.double_frees);
        CHECK(report.freed == after.late_frees - before.late_frees);
    }
    CHECK(pthread_barrier_destroy(&race.barrier) == 0);
}

static void capture_keeps_addresses(void) {
    gpumem_stream s = must_stream();
    gpumem_capture capture;
    void *inside, *others[4];
    int i;
    OK(gpumem_capture_begin(s, NULL, &capture));
    inside = must_malloc_async(4 * MIB, s);
    OK(gpumem_free_async(inside, s));
    OK(gpumem_capture_end(capture));
    for (i = 0; i < 4; i++) {
        others[i] = must_malloc_async(4 * MIB, s);
        CHECK(others[i] != inside);
    }
    OK(gpumem_capture_retain(capture));
    OK(gpumem_capture_release(capture));
    OK(gpumem_capture_release(capture));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_release(capture));
    for (i = 0; i < 4; i++) OK(gpumem_free_async(others[i], s));
    OK(gpumem_stream_destroy(s));
}

static void capture_error_frees(void) {
    gpumem_stream s = must_stream();
    gpumem_capture capture;
    object a;
    OK(gpumem_capture_begin(s, NULL, &capture));
    a.ptr = must_malloc_async(4 * KIB, s);
    OK(gpumem_allocation_id_get(a.ptr, &a.id));
    OK(gpumem_capture_abort(capture));
    CHECK(!is_live(a));
    OK(gpumem_capture_begin(s, NULL, &capture));
    OK(gpumem_capture_end(capture));
    OK(gpumem_capture_release(capture));
    OK(gpumem_stream_destroy(s));
}

static gpumem_reservation reserve(uint64_t bytes) {
    gpumem_reserve_options want;
    gpumem_reservation r = NULL;
    GPUMEM_INIT(&want);
    want.bytes = bytes;
    OK(gpumem_reserve(&want, &r));
    return r;
}

static uint64_t drawn_of(gpumem_reservation r) {
    gpumem_reservation_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_reservation_info_get(r, &info));
    CHECK(info.promised == 8 * MIB);
    return info.drawn;
}

static void *draw_elsewhere(void *r) {
    object a;
    OK(gpumem_reservation_attach_thread((gpumem_reservation)r));
    a = make(2 * MIB);
    CHECK(drawn_of((gpumem_reservation)r) == 2 * MIB);
    finalize(a);
    return NULL;
}

static void reservation_draws(void) {
    gpumem_reservation r = reserve(8 * MIB);
    object a;
    OK(gpumem_reservation_attach_thread(r));
    a = make(1 * MIB);
    CHECK(drawn_of(r) == 1 * MIB);
    finalize(a);
    CHECK(drawn_of(r) == 0);
    elsewhere(draw_elsewhere, r);
    OK(gpumem_reservation_release(r, NULL));
}

static void reservation_refuses_more(void) {
    gpumem_reservation r = reserve(1 * MIB);
    uint64_t drawn = 1;
    void *p = NULL;
    OK(gpumem_reservation_attach_thread(r));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(2 * MIB, NULL, &p));
    CHECK(error_says("reservation"));
    OK(gpumem_reservation_release(r, &drawn));
    CHECK(drawn == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_release(r, NULL));
}

/* C has no exceptions: a release takes the reservation off the thread. */
static void reservation_ends_after_error(void) {
    gpumem_reservation r = reserve(1 * MIB);
    gpumem_reservation_info info;
    OK(gpumem_reservation_attach_thread(r));
    OK(gpumem_reservation_release(r, NULL));
    GPUMEM_INIT(&info);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_info_get(r, &info));
    finalize(make(2 * MIB));
}

static void trim_gives_back(void) {
    finalize(make(64 * MIB));
    OK(gpumem_stream_sync(NULL));
    CHECK(stats_now().mapped >= 64 * MIB);
    OK(gpumem_trim(0));
    CHECK(stats_now().mapped == 0);
}

static void stats_count(void) {
    gpumem_stats before = stats_now(), during;
    object a = make(1000);
    during = stats_now();
    CHECK(during.mallocs == before.mallocs + 1 && during.requested == 1000 && during.live >= 1000);
    CHECK(during.mapped >= during.live);
    finalize(a);
    CHECK(stats_now().frees == before.frees + 1);
}

/* Each leaves nothing behind and a sound state. */
#define BEHAVIOUR(test)                                                                                                \
    do {                                                                                                               \
        harness_test = #test;                                                                                          \
        test();                                                                                                        \
        nothing_left();                                                                                                \
        printf("ok %s\n", #test);                                                                                      \
        fflush(stdout);                                                                                                \
    } while (0)

int main(void) {
    /* Read when the library starts. */
    setenv("GPUMEM_ARENA_DEBUG", "check", 1);
    setenv("GPUMEM_LOG", "0", 0);
    BEHAVIOUR(zero_bytes);
    BEHAVIOUR(round_trip);
    BEHAVIOUR(free_once);
    BEHAVIOUR(double_free);
    BEHAVIOUR(unknown_pointer);
    BEHAVIOUR(interior_free);
    BEHAVIOUR(out_of_memory_text);
    BEHAVIOUR(finalizer_frees);
    BEHAVIOUR(finalizer_after_exit);
    BEHAVIOUR(finalizer_after_address_reuse);
    BEHAVIOUR(finalizer_on_other_thread);
    BEHAVIOUR(hundred_thousand_buffers);
    BEHAVIOUR(exit_frees_all);
    BEHAVIOUR(exit_keeps);
    BEHAVIOUR(exit_keeps_interior_pointer);
    BEHAVIOUR(exit_counts_odd_entries);
    BEHAVIOUR(early_free_in_arena);
    BEHAVIOUR(exception_keeps_nothing);
    BEHAVIOUR(exception_ends_inner_arenas);
    BEHAVIOUR(nested_promote);
    BEHAVIOUR(inner_keep_ends_with_outer);
    BEHAVIOUR(outermost_keep_is_ordinary);
    BEHAVIOUR(exit_in_wrong_order);
    BEHAVIOUR(stale_arena);
    BEHAVIOUR(escape);
    BEHAVIOUR(thread_attach);
    BEHAVIOUR(other_threads_unaffected);
    BEHAVIOUR(exit_refused_while_attached);
    BEHAVIOUR(arena_name_and_stats);
    BEHAVIOUR(detector_message);
    BEHAVIOUR(detector_after_address_reuse);
    BEHAVIOUR(exit_races_finalizers);
    BEHAVIOUR(capture_keeps_addresses);
    BEHAVIOUR(capture_error_frees);
    BEHAVIOUR(reservation_draws);
    BEHAVIOUR(reservation_refuses_more);
    BEHAVIOUR(reservation_ends_after_error);
    BEHAVIOUR(trim_gives_back);
    BEHAVIOUR(stats_count);
    return 0;
}

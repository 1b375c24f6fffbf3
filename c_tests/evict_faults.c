/* Moves that are refused, cancelled or fail: the status, the words, and everything as it was. */
#include "evict.h"

#include <fcntl.h>

/* Sets the limit of every space of a tier. */
static void limit_tier(int32_t tier, uint64_t bytes) {
    gpumem_space spaces[64];
    size_t count = 0, i;
    OK(gpumem_space_list_get(spaces, 64, &count));
    for (i = 0; i < count; i++) {
        if (spaces[i].tier == tier) OK(gpumem_space_limit_set(space_at(tier, spaces[i].id), bytes));
    }
}

/* Each call refuses a pointer with this status and these words. */
static void refuse(void *p, gpumem_status status, const char *says) {
    gpumem_location at;
    gpumem_move_report report;
    GPUMEM_INIT(&at);
    GPUMEM_INIT(&report);
    at.space.tier = 77;
    report.moved = 77;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        CHECK_STATUS(status, call);                                                                                    \
        if (!error_says(says)) harness_fail(__FILE__, __LINE__, says);                                                 \
    } while (0)
    REFUSED(gpumem_evict(p, NULL, &report));
    REFUSED(gpumem_restore(p, NULL, &report));
    REFUSED(gpumem_hold(p));
    REFUSED(gpumem_unhold(p, NULL));
    REFUSED(gpumem_location_get(p, &at));
#undef REFUSED
    CHECK(at.space.tier == 77 && report.moved == 77);
}

static void what_is_not_evictable_is_refused(void) {
    gpumem_malloc_options options;
    gpumem_arena arena = NULL;
    void *pooled = must_malloc_async(MIB, NULL), *p = evictable(MIB, 0, NULL), *q = NULL;
    refuse(NULL, GPUMEM_ERROR_INVALID, "ptr is NULL");
    refuse(&options, GPUMEM_ERROR_UNKNOWN_POINTER, "is no live memory");
    refuse(pooled, GPUMEM_ERROR_INVALID, "EVICTABLE");
    refuse((char *)p + 256, GPUMEM_ERROR_UNKNOWN_POINTER, "pass its start");

    GPUMEM_INIT(&options);
    options.bytes = MIB;
    options.flags = GPUMEM_MALLOC_EVICTABLE | GPUMEM_MALLOC_SINGLE_HANDLE;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &q));
    options.flags = GPUMEM_MALLOC_EVICTABLE | GPUMEM_MALLOC_EXPORTABLE;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &q));
    OK(gpumem_arena_enter(&arena));
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.arena = arena;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &q));
    CHECK(error_says("belongs to no arena") && q == NULL);
    q = evictable(MIB, 0, NULL); /* in the arena's scope, but not of it */
    OK(gpumem_arena_exit(arena, NULL, 0, NULL));
    CHECK(is_in(q, GPUMEM_TIER_GPU));
    CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_realloc_async(q, 2 * MIB, NULL, &q));
    gpumem_free(q);
    refuse(q, GPUMEM_ERROR_UNKNOWN_POINTER, "is no live memory");
    gpumem_free(p);
    gpumem_free(pooled);
    everything_is_free();
}

static void options_that_make_no_sense_are_refused(void) {
    struct {
        gpumem_move_options known;
        uint64_t later;
    } newer;
    gpumem_move_options options;
    gpumem_move_report report;
    gpumem_location at;
    void *p = evictable(MIB, 9, NULL);
#define REFUSED(call, says)                                                                                            \
    do {                                                                                                               \
        CHECK_STATUS(GPUMEM_ERROR_INVALID, call);                                                                      \
        CHECK(error_says(says));                                                                                       \
        CHECK(is_in(p, GPUMEM_TIER_GPU));                                                                              \
    } while (0)
    options = to(0);
    options.flags = 4;
    REFUSED(gpumem_evict(p, &options, NULL), "0x4 is not known");
    options = to(0);
    options.stream = GPUMEM_STREAM_PER_THREAD;
    REFUSED(gpumem_evict(p, &options, NULL), "GPUMEM_MOVE_ON_STREAM");
    options = to(GPUMEM_TIER_DISK);
    options.space.id = 1;
    REFUSED(gpumem_evict(p, &options, NULL), "GPUMEM_MOVE_TO_SPACE");
    options = to_space(0, 0);
    REFUSED(gpumem_evict(p, &options, NULL), "name the space's tier");
    options = to(GPUMEM_TIER_GPU);
    REFUSED(gpumem_evict(p, &options, NULL), "gpumem_restore");
    REFUSED(gpumem_evict_tag(9, &options, NULL), "gpumem_restore");
    options = to(GPUMEM_TIER_DISK);
    REFUSED(gpumem_restore(p, &options, NULL), "gpumem_evict");
    REFUSED(gpumem_restore_tag(9, &options, NULL), "gpumem_evict");
    options = to_space(GPUMEM_TIER_GPU, 0);
    REFUSED(gpumem_restore(p, &options, NULL), "leave the space out");
    options = to(4);
    REFUSED(gpumem_evict(p, &options, NULL), "is no tier");
    options = to_space(GPUMEM_TIER_HOST, 4000);
    REFUSED(gpumem_evict(p, &options, NULL), "there is no space HOST 4000");
    options = to_space(GPUMEM_TIER_DISK, 1);
    REFUSED(gpumem_evict(p, &options, NULL), "there is no space DISK 1");

    /* Of another version. */
    options = to(0);
    options.size = 8;
    REFUSED(gpumem_evict(p, &options, NULL), "size");
    memset(&newer, 0, sizeof newer);
    newer.known.size = (uint32_t)sizeof newer;
    newer.later = 1;
    REFUSED(gpumem_evict(p, &newer.known, NULL), "knows only the first");
    newer.later = 0;
    OK(gpumem_evict(p, &newer.known, NULL));
    OK(gpumem_restore(p, &newer.known, NULL));
    GPUMEM_INIT(&report);
    report.size = 4;
    REFUSED(gpumem_evict(p, NULL, &report), "size");
    REFUSED(gpumem_restore(p, NULL, &report), "size");
    REFUSED(gpumem_evict_tag(9, NULL, &report), "size");
    REFUSED(gpumem_restore_tag(9, NULL, &report), "size");
    GPUMEM_INIT(&at);
    at.size = 0;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_location_get(p, &at));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_location_get(p, NULL));
#undef REFUSED
    gpumem_free(p);
    everything_is_free();
}

static void no_room_is_an_error_that_changes_nothing(void) {
    gpumem_stream s = must_stream();
    gpumem_move_report report;
    void *p = evictable(2 * page, 3, s), *q;
    int device = 0;
    OK(gpumem_device_get(&device));
    GPUMEM_INIT(&report);
    report.moved = 77;
    fill(p, 2 * page, 4, s);
    limit_tier(GPUMEM_TIER_HOST, 0);
    OK(gpumem_evict(p, NULL, NULL));
    CHECK(is_in(p, GPUMEM_TIER_DISK)); /* the nearest that has room */
    OK(gpumem_restore(p, NULL, NULL));
    limit_tier(GPUMEM_TIER_DISK, 0);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_evict(p, NULL, &report));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_evict_tag(3, NULL, &report));
    CHECK(is_in(p, GPUMEM_TIER_GPU) && report.moved == 77 && holds(p, 2 * page, 4, s));
    limit_tier(GPUMEM_TIER_HOST, UINT64_MAX);
    limit_tier(GPUMEM_TIER_DISK, UINT64_MAX);

    /* The device has less now than it had. */
    OK(gpumem_evict(p, NULL, NULL));
    OK(gpumem_trim(0));
    q = evictable(2 * page, 0, s);
    OK(gpumem_device_limit_set(device, (size_t)stats_now().mapped + page));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_restore(p, NULL, &report));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_restore_tag(3, NULL, &report));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_hold(p));
    CHECK(is_in(p, GPUMEM_TIER_HOST) && where(p).holds == 0 && report.moved == 77 && is_in(q, GPUMEM_TIER_GPU));
    /* What has been unheld makes room. */
    OK(gpumem_hold(q));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_hold(p));
    OK(gpumem_unhold(q, s));
    OK(gpumem_hold(p));
    CHECK(is_in(q, GPUMEM_TIER_HOST) && holds(p, 2 * page, 4, s));
    OK(gpumem_unhold(p, s));
    OK(gpumem_device_limit_set(device, 0));
    OK(gpumem_free_async(p, s));
    OK(gpumem_free_async(q, s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

/* What a progress was told. */
typedef struct {
    void *ptr;
    uint64_t calls, last, total;
    /* From so many bytes on it cancels. */
    uint64_t cancel_at;
    int in_order;
    gpumem_status hold, locate;
    int32_t tier;
} watched;

static int32_t watch(uint64_t done, uint64_t total, void *user) {
    watched *w = (watched *)user;
    gpumem_location at;
    GPUMEM_INIT(&at);
    w->in_order = w->in_order && done >= w->last && done <= total && (w->calls == 0 || total == w->total);
    w->calls++;
    w->last = done;
    w->total = total;
    /* It may call gpumem; to wait for what this very move has is refused. */
    w->locate = gpumem_location_get(w->ptr, &at);
    w->tier = at.space.tier;
    w->hold = gpumem_hold(w->ptr);
    return done >= w->cancel_at;
}

static void moves_are_watched_and_cancelled(void) {
    gpumem_stream s = must_stream();
    const size_t n = 5 * MIB + 3;
    void *p = evictable(n, 2, s);
    gpumem_move_options ways[3];
    watched w;
    int i;
    ways[0] = to(0);
    ways[1] = to(GPUMEM_TIER_DISK);
    ways[2] = to(0);
    fill(p, n, 6, s);
    for (i = 0; i < 3; i++) {
        gpumem_move_options options = ways[i];
        const int32_t before = where(p).space.tier;
        gpumem_move_report report;
        GPUMEM_INIT(&report);
        report.moved = 77;
        options.progress = watch;
        options.user = &w;
        memset(&w, 0, sizeof w);
        w.ptr = p;
        w.in_order = 1;
        w.cancel_at = 1;
        CHECK_STATUS(GPUMEM_ERROR_CANCELLED, i < 2 ? gpumem_evict(p, &options, &report) : gpumem_restore(p, &options, &report));
        CHECK(error_says("was cancelled"));
        CHECK(w.calls >= 1 && w.total == n && w.in_order && report.moved == 77);
        CHECK(w.locate == GPUMEM_OK && w.tier == 0 && w.hold == GPUMEM_ERROR_INVALID);
        CHECK(where(p).space.tier == before && where(p).holds == 0);
        memset(&w, 0, sizeof w);
        w.ptr = p;
        w.in_order = 1;
        w.cancel_at = UINT64_MAX;
        OK(i < 2 ? gpumem_evict_tag(2, &options, &report) : gpumem_restore_tag(2, &options, &report));
        CHECK(w.calls >= 1 && w.in_order && w.last == n && w.total == n && report.moved == 1);
    }
    CHECK(is_in(p, GPUMEM_TIER_GPU) && holds(p, n, 6, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    everything_is_free();
}

static int slots_found;

static void alter_slot(const char *path, int is_dir) {
    unsigned char byte = 0;
    int f;
    if (is_dir || !is_slot(path)) return;
    slots_found++;
    f = open(path, O_RDWR);
    CHECK(f >= 0 && pread(f, &byte, 1, 100000) == 1);
    byte ^= 1;
    CHECK(pwrite(f, &byte, 1, 100000) == 1 && close(f) == 0);
}

static void remove_slot(const char *path, int is_dir) {
    if (!is_dir && is_slot(path)) CHECK(unlink(path) == 0);
}

static void damaged_files_are_noticed(void) {
    gpumem_move_options disk = to(GPUMEM_TIER_DISK), host = to(GPUMEM_TIER_HOST);
    int gone;
    for (gone = 0; gone < 2; gone++) {
        gpumem_status want = gone ? GPUMEM_ERROR_IO : GPUMEM_ERROR_CORRUPT;
        void *p = evictable(MIB, 4, NULL), *q = evictable(MIB, 0, NULL);
        fill(p, MIB, 1, NULL);
        fill(q, MIB, 2, NULL);
        OK(gpumem_evict(p, &disk, NULL));
        slots_found = 0;
        walk(mount, gone ? remove_slot : alter_slot);
        OK(gpumem_evict(q, &disk, NULL));
        CHECK_STATUS(want, gpumem_restore(p, NULL, NULL));
        CHECK_STATUS(want, gpumem_restore(p, &host, NULL));
        CHECK_STATUS(want, gpumem_restore_tag(4, NULL, NULL));
        CHECK_STATUS(want, gpumem_hold(p));
        CHECK(is_in(p, GPUMEM_TIER_DISK) && where(p).holds == 0);
        CHECK(gone || slots_found == 1);
        OK(gpumem_restore(q, NULL, NULL));
        CHECK(holds(q, MIB, 2, NULL));
        gpumem_free(p);
        gpumem_free(q);
        everything_is_free();
    }
}

int main(void) {
    set_up();
    RUN(what_is_not_evictable_is_refused);
    RUN(options_that_make_no_sense_are_refused);
    RUN(no_room_is_an_error_that_changes_nothing);
    RUN(moves_are_watched_and_cancelled);
    RUN(damaged_files_are_noticed);
    clean_up();
    return 0;
}

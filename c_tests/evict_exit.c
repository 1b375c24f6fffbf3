/*
 * The end of the process: once exit handlers run, the thread that moves memory by itself makes no
 * driver call, whatever there is to be moved; calls of the program's own go on.
 */
#include "evict.h"

#include <time.h>

#define ITEMS 20

static void *items[ITEMS];
static int count_only;

static void nap(long ms) {
    struct timespec t;
    t.tv_sec = ms / 1000;
    t.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&t, NULL);
}

/* As CHECK, where the harness's own way out does not lead: an exit handler runs already. */
#define SAY(condition)                                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "FAILED %s at %s:%d: %s\n", harness_test, __FILE__, __LINE__, #condition);                 \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)


static int resident(void) {
    int n = 0, i;
    for (i = 0; i < ITEMS; i++) n += is_in(items[i], GPUMEM_TIER_GPU);
    return n;
}

static uint64_t driver_calls(void) {
    gpumem_driver_call calls[256];
    uint64_t sum = 0;
    size_t n = 0, i;
    OK(gpumem_driver_calls_get(calls, 256, &n));
    CHECK(n <= 256);
    for (i = 0; i < n; i++) sum += calls[i].calls;
    return sum;
}

/* From now on all of it may be moved by itself, and the space is too full. 0 when the driver has
 * ended before: CUDA's exit handler may come before the one below, and the host device has none. */
static int let_go(void) {
    int i;
    for (i = 0; i < ITEMS; i++) {
        gpumem_status s;
        OK(gpumem_hold(items[i]));
        s = gpumem_unhold(items[i], NULL);
        if (s == GPUMEM_ERROR_SHUTTING_DOWN && !on_host_device()) return 0;
        OK(s);
    }
    return 1;
}

/* Entered before gpumem has started, so it is the last to be called. */
static void last_of_all(void) {
    uint64_t before;
    int was, i;
    void *p = NULL;
    gpumem_status s;
    if (!count_only) {
        SAY(resident() == ITEMS);
        let_go();
    }
    was = resident();
    before = driver_calls();
    for (i = 0; i < 40; i++) {
        nap(5);
        SAY(resident() == was);
        SAY(driver_calls() == before);
    }
    /* The program itself may still do what it likes, as long as there is a driver. */
    s = try_evictable(1, 0, NULL, &p);
    SAY(s == GPUMEM_OK ? gpumem_evict(p, NULL, NULL) == GPUMEM_OK : s == GPUMEM_ERROR_SHUTTING_DOWN && !on_host_device());
    gpumem_free(p);
    clean_up();
}

/* A child that leaves: with nothing to be moved before the last handler, or while so much is
 * being moved. */
static void leave(int moving, long after_ms) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint64_t limit;
        int i;
        count_only = moving;
        CHECK(atexit(last_of_all) == 0);
        set_up();
        limit = 32 * page;
        OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), limit));
        OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.5, 0.1));
        for (i = 0; i < ITEMS; i++) items[i] = evictable(page, 0, NULL);
        if (moving) {
            CHECK(let_go());
            nap(after_ms);
        }
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

static void nothing_starts_to_move_at_exit(void) { leave(0, 0); }

static void what_is_moving_stops_at_exit(void) {
    long ms;
    for (ms = 0; ms < rounds(6); ms++) leave(1, ms);
}

/* That there was something to move: without exit the same goes at once. */
static void it_would_move(void) {
    int i, ms;
    set_up();
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 32 * page));
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.5, 0.1));
    for (i = 0; i < ITEMS; i++) items[i] = evictable(page, 0, NULL);
    CHECK(let_go());
    for (ms = 0; ms < 60000 && resident() > 3; ms++) nap(1);
    CHECK(resident() <= 3);
    for (i = 0; i < ITEMS; i++) gpumem_free(items[i]);
    /* What is moved just now goes when its move is over. */
    for (ms = 0; ms < 60000 && used_in(GPUMEM_TIER_GPU) + used_in(GPUMEM_TIER_HOST) > 0; ms++) nap(1);
    everything_is_free();
    clean_up();
}

int main(void) {
    /* The children first: they start gpumem themselves. */
    RUN(nothing_starts_to_move_at_exit);
    RUN(what_is_moving_stops_at_exit);
    RUN(it_would_move);
    return 0;
}

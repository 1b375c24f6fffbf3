/* Waiting for a reservation: in turn, with an end, and woken by whatever makes room. */
#include "reserve.h"
#include <pthread.h>
#include <sched.h>

#define ALL (100 * MIB)
enum { MANY = 32 };

/* A request on a thread of its own: for a reservation, or for more of one. */
struct job {
    gpumem_reserve_options options;
    gpumem_reservation r; /* receives it, or is to grow */
    int grows;
    gpumem_status status;
    char text[300];
    pthread_t thread;
};

static void *run(void *arg) {
    struct job *job = (struct job *)arg;
    job->status = job->grows ? gpumem_reservation_grow(job->r, job->options.bytes, job->options.timeout_ms,
                                                       job->options.cancel)
                             : gpumem_reserve(&job->options, &job->r);
    if (job->status != GPUMEM_OK) gpumem_last_error(job->text, sizeof job->text);
    return NULL;
}

/* Starts a request and returns when it waits. */
static void start(struct job *job) {
    uint64_t before = gpu().waiters;
    CHECK(pthread_create(&job->thread, NULL, run, job) == 0);
    while (gpu().waiters == before) sched_yield();
}

static void start_wanting(struct job *job, uint64_t bytes, gpumem_token cancel) {
    memset(job, 0, sizeof *job);
    GPUMEM_INIT(&job->options);
    job->options.bytes = bytes;
    job->options.timeout_ms = GPUMEM_WAIT_FOREVER;
    job->options.cancel = cancel;
    start(job);
}

static void join(struct job *job) { CHECK(pthread_join(job->thread, NULL) == 0); }

static void ends_with(struct job *job, gpumem_status status, const char *says) {
    join(job);
    CHECK_STATUS(status, job->status);
    CHECK(strstr(job->text, says) != NULL);
    if (!job->grows) CHECK(job->r == NULL);
}

static void nobody_overtakes(void) {
    gpumem_reservation first = must_reserve(60 * MIB);
    struct job large, small;
    gpumem_reserve_options options;
    gpumem_reservation r = NULL;
    start_wanting(&large, 80 * MIB, NULL);
    start_wanting(&small, 10 * MIB, NULL); /* fits, but came later */
    CHECK(gpu().waiters == 2 && gpu().available == 40 * MIB);
    GPUMEM_INIT(&options);
    options.bytes = 1;
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_reserve(&options, &r));
    CHECK(error_says("2 waiting before it"));
    OK(gpumem_reservation_release(first, NULL));
    join(&large);
    join(&small);
    CHECK(large.status == GPUMEM_OK && small.status == GPUMEM_OK);
    CHECK(info_of(large.r).arrived < info_of(small.r).arrived && info_of(large.r).granted < info_of(small.r).granted);
    CHECK(gpu().available == 10 * MIB && gpu().waiters == 0);
    OK(gpumem_reservation_release(large.r, NULL));
    OK(gpumem_reservation_release(small.r, NULL));
}

/* A shrink, a raised limit and a cancelled predecessor make room as well. */
static void whatever_makes_room_wakes(void) {
    gpumem_reservation first = must_reserve(ALL);
    gpumem_token cancel = NULL;
    struct job a, b, c;
    OK(gpumem_token_create(&cancel));
    start_wanting(&a, 10 * MIB, NULL);
    OK(gpumem_reservation_shrink(first, 10 * MIB));
    join(&a);
    CHECK(a.status == GPUMEM_OK);
    start_wanting(&b, 50 * MIB, NULL);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL + 50 * MIB));
    join(&b);
    CHECK(b.status == GPUMEM_OK && gpu().available == 0);
    OK(gpumem_reservation_release(b.r, NULL));
    start_wanting(&b, 60 * MIB, cancel);
    start_wanting(&c, 50 * MIB, NULL);
    OK(gpumem_token_cancel(cancel));
    ends_with(&b, GPUMEM_ERROR_CANCELLED, "cancelled");
    join(&c);
    CHECK(c.status == GPUMEM_OK);
    OK(gpumem_token_destroy(cancel));
    OK(gpumem_reservation_release(a.r, NULL));
    OK(gpumem_reservation_release(c.r, NULL));
    OK(gpumem_reservation_release(first, NULL));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL));
}

static void waits_end_at_their_timeout(void) {
    gpumem_reservation first = must_reserve(ALL), r = NULL;
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = MIB;
    options.timeout_ms = 5;
    CHECK_STATUS(GPUMEM_ERROR_TIMED_OUT, gpumem_reserve(&options, &r));
    CHECK(error_says("did not become available in time") && r == NULL);
    OK(gpumem_reservation_shrink(first, MIB));
    OK(gpumem_reserve(&options, &r));
    CHECK_STATUS(GPUMEM_ERROR_TIMED_OUT, gpumem_reservation_grow(first, 1, 5, NULL));
    CHECK(gpu().waiters == 0 && info_of(first).promised == ALL - MIB);
    OK(gpumem_reservation_release(r, NULL));
    OK(gpumem_reservation_release(first, NULL));
}

static void tokens_end_waits_now_and_later(void) {
    gpumem_reservation first = must_reserve(ALL), r = NULL;
    gpumem_reserve_options options;
    gpumem_token cancel = NULL, other = NULL;
    struct job a, b, c;
    OK(gpumem_token_create(&cancel));
    OK(gpumem_token_create(&other));
    start_wanting(&a, MIB, cancel);
    start_wanting(&b, 2 * MIB, cancel);
    start_wanting(&c, MIB, other);
    OK(gpumem_token_cancel(cancel));
    ends_with(&a, GPUMEM_ERROR_CANCELLED, "cancelled");
    ends_with(&b, GPUMEM_ERROR_CANCELLED, "cancelled");
    CHECK(gpu().waiters == 1);
    GPUMEM_INIT(&options);
    options.bytes = 1;
    options.cancel = cancel;
    CHECK_STATUS(GPUMEM_ERROR_CANCELLED, gpumem_reserve(&options, &r));
    OK(gpumem_reservation_shrink(first, 1));
    CHECK_STATUS(GPUMEM_ERROR_CANCELLED, gpumem_reservation_grow(first, 1, 0, cancel));
    CHECK(info_of(first).promised == ALL - 1);
    OK(gpumem_token_cancel(cancel));
    OK(gpumem_token_destroy(cancel));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_token_cancel(cancel));
    CHECK(error_says("has been destroyed"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reserve(&options, &r));

    /* A wait goes on when its token is given up. */
    OK(gpumem_token_destroy(other));
    CHECK(gpu().waiters == 1);
    OK(gpumem_reservation_release(first, NULL));
    join(&c);
    CHECK(c.status == GPUMEM_OK && r == NULL);
    OK(gpumem_reservation_release(c.r, NULL));
}

static void waits_to_grow_end_with_the_reservation(void) {
    gpumem_reservation r = must_reserve(50 * MIB), other = must_reserve(50 * MIB);
    struct job grows;
    memset(&grows, 0, sizeof grows);
    GPUMEM_INIT(&grows.options);
    grows.options.bytes = MIB;
    grows.options.timeout_ms = GPUMEM_WAIT_FOREVER;
    grows.grows = 1;
    grows.r = r;
    start(&grows);
    OK(gpumem_reservation_shrink(other, MIB));
    join(&grows);
    CHECK(grows.status == GPUMEM_OK && info_of(r).promised == 51 * MIB);
    start(&grows);
    OK(gpumem_reservation_release(r, NULL));
    ends_with(&grows, GPUMEM_ERROR_INVALID, "released");
    OK(gpumem_reservation_release(other, NULL));
}

static void hopeless_waits_end(void) {
    gpumem_reservation first = must_reserve(50 * MIB);
    struct job a, b;
    start_wanting(&a, 90 * MIB, NULL);
    start_wanting(&b, 60 * MIB, NULL);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 80 * MIB));
    ends_with(&a, GPUMEM_ERROR_OUT_OF_MEMORY, "more than may ever be promised");
    CHECK(gpu().waiters == 1);
    OK(gpumem_reservation_release(first, NULL));
    join(&b);
    CHECK(b.status == GPUMEM_OK);
    OK(gpumem_reservation_release(b.r, NULL));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL));
}

/* Two wait to grow one reservation; with what the first gets, the second asks for more than the
 * limit. */
static void what_another_gets_can_make_a_wait_hopeless(void) {
    gpumem_reservation r = must_reserve(20 * MIB), other = must_reserve(60 * MIB);
    struct job grows[2];
    int i;
    for (i = 0; i < 2; i++) {
        memset(&grows[i], 0, sizeof grows[i]);
        GPUMEM_INIT(&grows[i].options);
        grows[i].options.bytes = 50 * MIB;
        grows[i].options.timeout_ms = GPUMEM_WAIT_FOREVER;
        grows[i].grows = 1;
        grows[i].r = r;
        start(&grows[i]);
    }
    OK(gpumem_reservation_release(other, NULL));
    join(&grows[0]);
    CHECK(grows[0].status == GPUMEM_OK && info_of(r).promised == 70 * MIB);
    ends_with(&grows[1], GPUMEM_ERROR_OUT_OF_MEMORY, "more than may ever be promised");
    CHECK(gpu().waiters == 0);
    OK(gpumem_reservation_release(must_reserve(10 * MIB), NULL));
    OK(gpumem_reservation_release(r, NULL));
}

/* Threads reserve, grow, shrink and release at random; never is more promised than there is, and
 * at the end nothing. */
static uint64_t promised_by_all;

static void *at_random(void *arg) {
    unsigned state = (unsigned)(size_t)arg * 2654435761u + 1;
    int i;
    for (i = 0; i < rounds(1000); i++) {
        gpumem_reserve_options options;
        gpumem_reservation r = NULL;
        uint64_t size, back = 0;
        state = state * 1664525u + 1013904223u;
        GPUMEM_INIT(&options);
        options.bytes = 1 + (state >> 8) % (60 * MIB);
        options.least_bytes = state % 3 == 0 ? options.bytes / 2 + 1 : 0;
        options.timeout_ms = GPUMEM_WAIT_FOREVER;
        OK(gpumem_reserve(&options, &r));
        size = info_of(r).promised;
        CHECK(size <= options.bytes && size >= (options.least_bytes ? options.least_bytes : options.bytes));
        CHECK(__atomic_add_fetch(&promised_by_all, size, __ATOMIC_SEQ_CST) <= ALL);
        if (state % 5 == 0 && gpumem_reservation_grow(r, MIB, 1, NULL) == GPUMEM_OK) {
            CHECK(__atomic_add_fetch(&promised_by_all, MIB, __ATOMIC_SEQ_CST) <= ALL);
            size += MIB;
        }
        if (state % 7 == 0) {
            __atomic_sub_fetch(&promised_by_all, size, __ATOMIC_SEQ_CST);
            OK(gpumem_reservation_shrink_to_fit(r, &back));
            CHECK(back == size);
            size = 0;
        }
        __atomic_sub_fetch(&promised_by_all, size, __ATOMIC_SEQ_CST);
        OK(gpumem_reservation_release(r, NULL));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_release(r, NULL));
    }
    return NULL;
}

static void eight_threads_at_random(void) {
    pthread_t thread[8];
    size_t i;
    for (i = 0; i < 8; i++) CHECK(pthread_create(&thread[i], NULL, at_random, (void *)i) == 0);
    for (i = 0; i < 8; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(promised_by_all == 0);
}

/* Last, as there is no way back. */
static void a_shutdown_ends_every_wait(void) {
    static struct job jobs[MANY];
    gpumem_reservation first = must_reserve(ALL), r = NULL;
    gpumem_reserve_options options;
    int i;
    for (i = 0; i < MANY; i++) start_wanting(&jobs[i], (uint64_t)(i + 1) * MIB, NULL);
    CHECK(gpu().waiters == MANY);
    OK(gpumem_reservation_shutdown());
    for (i = 0; i < MANY; i++) ends_with(&jobs[i], GPUMEM_ERROR_SHUTTING_DOWN, "shut down");
    CHECK(gpu().waiters == 0);
    OK(gpumem_reservation_shutdown());
    OK(gpumem_reservation_shrink(first, 10 * MIB));
    GPUMEM_INIT(&options);
    options.bytes = 1;
    CHECK_STATUS(GPUMEM_ERROR_SHUTTING_DOWN, gpumem_reserve(&options, &r));
    CHECK_STATUS(GPUMEM_ERROR_SHUTTING_DOWN, gpumem_reservation_grow(first, 1, 0, NULL));
    OK(gpumem_reservation_release(first, NULL));
}

int main(void) {
    OK(gpumem_init(NULL));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL));
    RUN(nobody_overtakes);
    RUN(whatever_makes_room_wakes);
    RUN(waits_end_at_their_timeout);
    RUN(tokens_end_waits_now_and_later);
    RUN(waits_to_grow_end_with_the_reservation);
    RUN(hopeless_waits_end);
    RUN(what_another_gets_can_make_a_wait_hopeless);
    RUN(eight_threads_at_random);
    RUN(a_shutdown_ends_every_wait);
    CHECK(gpu().promised == 0 && gpu().available == ALL && gpu().reservations == 0);
    nothing_left();
    return 0;
}

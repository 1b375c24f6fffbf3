/* Stream pools: each stream belongs to one borrower at a time. */
#include "harness.h"
#include <pthread.h>
#include <sched.h>

enum { THREADS = 8, SIZE = 3 };

static gpumem_stream_pool must_pool(size_t size) {
    gpumem_stream_pool pool = NULL;
    OK(gpumem_stream_pool_create(size, &pool));
    CHECK(pool != NULL);
    return pool;
}

static gpumem_stream_pool_stats counts_of(gpumem_stream_pool pool) {
    gpumem_stream_pool_stats counts;
    GPUMEM_INIT(&counts);
    OK(gpumem_stream_pool_stats_get(pool, &counts));
    CHECK(counts.size == sizeof counts && counts.device == 0);
    return counts;
}

static int counts_are(gpumem_stream_pool pool, uint64_t made, uint64_t idle, uint64_t borrowed) {
    gpumem_stream_pool_stats now = counts_of(pool);
    return now.made == made && now.idle == idle && now.borrowed == borrowed && now.waiters == 0;
}

static gpumem_stream must_borrow(gpumem_stream_pool pool) {
    gpumem_stream s = NULL;
    OK(gpumem_stream_pool_borrow(pool, 0, &s));
    CHECK(s != NULL);
    return s;
}

static void streams_are_lent_made_and_kept(void) {
    gpumem_stream_pool pool = must_pool(2);
    gpumem_stream a, b, c = NULL;
    void *p;
    CHECK(counts_are(pool, 0, 0, 0));
    a = must_borrow(pool);
    b = must_borrow(pool);
    CHECK(a != b && counts_are(pool, 2, 0, 2));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_stream_pool_borrow(pool, 0, &c));
    CHECK(error_says("all streams (2) are borrowed") && c == NULL);
    CHECK_STATUS(GPUMEM_ERROR_TIMED_OUT, gpumem_stream_pool_borrow(pool, 5, &c));
    CHECK(c == NULL && counts_are(pool, 2, 0, 2));
    OK(gpumem_stream_pool_borrow_or_grow(pool, &c));
    CHECK(c != a && c != b && counts_are(pool, 3, 0, 3));
    p = must_malloc_async(1000, a); /* they are streams */
    fill(p, 1000, 1, a);
    CHECK(holds(p, 1000, 1, a));
    OK(gpumem_free_async(p, a));
    OK(gpumem_stream_pool_return(pool, a));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_return(pool, a));
    CHECK(error_says("is not borrowed") && counts_are(pool, 3, 1, 2));
    CHECK(must_borrow(pool) == a);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_return(pool, NULL));
    OK(gpumem_stream_pool_return(pool, a));
    OK(gpumem_stream_pool_return(pool, b));
    OK(gpumem_stream_pool_return(pool, c));
    CHECK(counts_are(pool, 3, 3, 0));
    OK(gpumem_stream_pool_destroy(pool));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_destroy(pool));
    CHECK(error_says("has been closed"));
    if (on_host_device()) CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_sync(a));
}

static void sixteen_is_the_default(void) {
    gpumem_stream_pool pool = must_pool(0);
    gpumem_stream s[16], more = NULL;
    int i;
    for (i = 0; i < 16; i++) s[i] = must_borrow(pool);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_stream_pool_borrow(pool, 0, &more));
    for (i = 0; i < 16; i++) OK(gpumem_stream_pool_return(pool, s[i]));
    OK(gpumem_stream_pool_destroy(pool));
}

/* What is lent at the close comes back later, and the handle ends with the last of it. */
static void a_closed_pool_takes_back_what_it_has_lent(void) {
    gpumem_stream_pool pool = must_pool(3);
    gpumem_stream a = must_borrow(pool), b = must_borrow(pool), c = must_borrow(pool);
    OK(gpumem_stream_pool_return(pool, c));
    OK(gpumem_stream_pool_destroy(pool));
    CHECK(counts_are(pool, 2, 0, 2));
    c = NULL;
    CHECK_STATUS(GPUMEM_ERROR_SHUTTING_DOWN, gpumem_stream_pool_borrow(pool, GPUMEM_WAIT_FOREVER, &c));
    CHECK_STATUS(GPUMEM_ERROR_SHUTTING_DOWN, gpumem_stream_pool_borrow_or_grow(pool, &c));
    CHECK(c == NULL);
    OK(gpumem_stream_pool_destroy(pool));
    OK(gpumem_stream_sync(a)); /* a stream as before */
    OK(gpumem_stream_pool_return(pool, a));
    if (on_host_device()) CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_sync(a));
    CHECK(counts_are(pool, 1, 0, 1));
    OK(gpumem_stream_pool_return(pool, b));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_return(pool, b));
    CHECK(error_says("has been closed"));
}

static void a_stream_goes_back_without_its_reservations(void) {
    gpumem_stream_pool pool = must_pool(1);
    gpumem_stream s = must_borrow(pool);
    gpumem_reserve_options options;
    gpumem_reservation r = NULL;
    uint64_t number = 0;
    GPUMEM_INIT(&options);
    options.bytes = MIB;
    OK(gpumem_reserve(&options, &r));
    OK(gpumem_reservation_attach_stream(r, s));
    OK(gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), s, &number));
    CHECK(number != 0);
    OK(gpumem_stream_pool_return(pool, s));
    CHECK(must_borrow(pool) == s);
    OK(gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), s, &number));
    CHECK(number == 0);
    OK(gpumem_stream_pool_return(pool, s));
    OK(gpumem_reservation_release(r, NULL));
    OK(gpumem_stream_pool_destroy(pool));
}

static void bad_input_is_refused(void) {
    gpumem_stream_pool pool = must_pool(1);
    gpumem_stream s = must_stream(), out = NULL;
    gpumem_stream_pool_stats counts;
    GPUMEM_INIT(&counts);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_create(1, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_borrow(pool, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_borrow_or_grow(pool, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_borrow(NULL, 0, &out));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_borrow((gpumem_stream_pool)&pool, 0, &out));
    CHECK(error_says("is no gpumem_stream_pool") && out == NULL);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_return(pool, s)); /* somebody else's */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_stats_get(pool, NULL));
    counts.size = 8;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_stats_get(pool, &counts));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_stream_pool_destroy(NULL));
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    CHECK(counts_are(pool, 0, 0, 0));
    OK(gpumem_stream_pool_destroy(pool));
}

static gpumem_stream_pool shared;
static int closed_waits;

static void *waits_for_the_close(void *unused) {
    gpumem_stream s = NULL;
    (void)unused;
    CHECK_STATUS(GPUMEM_ERROR_SHUTTING_DOWN, gpumem_stream_pool_borrow(shared, GPUMEM_WAIT_FOREVER, &s));
    CHECK(error_says("has been closed") && s == NULL);
    __atomic_add_fetch(&closed_waits, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void a_close_ends_every_wait(void) {
    pthread_t thread[THREADS];
    gpumem_stream s;
    int i;
    shared = must_pool(1);
    s = must_borrow(shared);
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, waits_for_the_close, NULL) == 0);
    while (counts_of(shared).waiters < THREADS) sched_yield();
    OK(gpumem_stream_pool_destroy(shared));
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(closed_waits == THREADS);
    OK(gpumem_stream_pool_return(shared, s));
}

/* Who has which stream; nobody else may. */
static gpumem_stream taken[THREADS];
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;

static void *borrows_and_returns(void *arg) {
    size_t me = (size_t)arg, k;
    int i;
    for (i = 0; i < rounds(2000); i++) {
        gpumem_stream s = NULL;
        OK(gpumem_stream_pool_borrow(shared, GPUMEM_WAIT_FOREVER, &s));
        pthread_mutex_lock(&taken_lock);
        for (k = 0; k < THREADS; k++) CHECK(taken[k] != s);
        taken[me] = s;
        pthread_mutex_unlock(&taken_lock);
        if (i % 10 == 0) OK(gpumem_stream_sync(s));
        pthread_mutex_lock(&taken_lock);
        taken[me] = NULL;
        pthread_mutex_unlock(&taken_lock);
        OK(gpumem_stream_pool_return(shared, s));
    }
    return NULL;
}

static void eight_threads_share_three_streams(void) {
    pthread_t thread[THREADS];
    size_t i;
    shared = must_pool(SIZE);
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, borrows_and_returns, (void *)i) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(counts_of(shared).made <= SIZE && counts_of(shared).borrowed == 0 && counts_of(shared).waiters == 0);
    OK(gpumem_stream_pool_destroy(shared));
}

int main(void) {
    OK(gpumem_init(NULL));
    RUN(streams_are_lent_made_and_kept);
    RUN(sixteen_is_the_default);
    RUN(a_closed_pool_takes_back_what_it_has_lent);
    RUN(a_stream_goes_back_without_its_reservations);
    RUN(bad_input_is_refused);
    RUN(a_close_ends_every_wait);
    RUN(eight_threads_share_three_streams);
    nothing_left();
    return 0;
}

/* A thread that is cancelled inside gpumem leaves it as any other does: the call is done, and
 * the thread ends after it. */
#include "harness.h"
#include <pthread.h>
#include <unistd.h>

static gpumem_stream s;

static void allocates_and_frees(void) {
    /* New memory is mapped, and with GPUMEM_LOG=2 that is said on stderr. */
    void *p = must_malloc_async(64 * MIB, s);
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_sync(s));
    OK(gpumem_trim(0));
}

static void frees_what_is_not_live(void) {
    /* Said on stderr. */
    gpumem_free(&s);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
}

static void resizes_and_copies(void) {
    void *p = must_malloc_async(1 * MIB, s), *q = p;
    char bytes[1000];
    OK(gpumem_realloc_async(p, 90 * MIB, s, &q));
    OK(gpumem_memset_async(q, 3, 90 * MIB, s));
    OK(gpumem_memcpy_async(bytes, q, sizeof bytes, s));
    OK(gpumem_stream_sync(s));
    CHECK(bytes[999] == 3);
    OK(gpumem_free_async(q, s));
}

static void makes_streams(void) {
    gpumem_stream t = must_stream();
    OK(gpumem_stream_wait(t, s));
    OK(gpumem_stream_destroy(t));
}

static void uses_an_arena(void) {
    gpumem_arena a;
    OK(gpumem_arena_enter(&a));
    must_malloc_async(5 * MIB, s);
    OK(gpumem_arena_exit(a, NULL, 0, NULL));
}

static void moves_memory(void) {
    gpumem_malloc_options options;
    void *p = NULL;
    GPUMEM_INIT(&options);
    options.bytes = 4 * MIB;
    options.stream = s;
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    OK(gpumem_malloc_with(&options, &p));
    OK(gpumem_evict(p, NULL, NULL));
    OK(gpumem_restore(p, NULL, NULL));
    OK(gpumem_free_async(p, s));
}

static void pins_memory(void) {
    void *p = NULL;
    OK(gpumem_host_malloc(4 * MIB, GPUMEM_HOST_NEAREST, &p));
    OK(gpumem_host_free(p));
}

static void looks(void) {
    char text[100];
    size_t needed = 0;
    OK(gpumem_dump(0, text, sizeof text, &needed));
    CHECK(needed > 0);
    OK(gpumem_validate());
    stats_now();
}

/* The pair is served at once: no search, no driver call. */
static void is_watched(void) {
    OK(gpumem_free_async(must_malloc_async(1000, s), s));
    gpumem_free(must_malloc_async(1000, s));
}

static void sleeps(const gpumem_event *event, void *user) {
    (void)event;
    (void)user;
    usleep(1);
}

typedef void (*work)(void);
static int returned;

static void *is_cancelled_before(void *arg) {
    returned = 0;
    /* Deferred: it takes effect at the first cancellation point. */
    pthread_cancel(pthread_self());
    (*(work *)arg)();
    returned = 1;
    pthread_testcancel();
    returned = 2;
    return NULL;
}

static void a_call_is_no_cancellation_point(void) {
    static work all[] = {allocates_and_frees, frees_what_is_not_live, resizes_and_copies, makes_streams,
                         uses_an_arena,       moves_memory,           pins_memory,        looks};
    size_t i, round;
    for (round = 0; round < (size_t)rounds(3); round++)
        for (i = 0; i < sizeof all / sizeof *all; i++) {
            pthread_t thread;
            void *end = NULL;
            CHECK(pthread_create(&thread, NULL, is_cancelled_before, &all[i]) == 0);
            CHECK(pthread_join(thread, &end) == 0);
            CHECK(returned == 1 && end == PTHREAD_CANCELED);
        }
    OK(gpumem_validate());
}

static void a_callback_for_events_is_none_either(void) {
    static work watched = is_watched;
    pthread_t thread;
    void *end = NULL;
    is_watched();
    OK(gpumem_event_callback_set(sleeps, NULL));
    CHECK(pthread_create(&thread, NULL, is_cancelled_before, &watched) == 0);
    CHECK(pthread_join(thread, &end) == 0);
    CHECK(returned == 1 && end == PTHREAD_CANCELED);
    OK(gpumem_event_callback_set(NULL, NULL));
}

static void *works_until_cancelled(void *arg) {
    (void)arg;
    for (;;) {
        void *all[20];
        unsigned i;
        int before;
        /* Only so that nothing is lost when the thread goes: what is tested above needs no help. */
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        for (i = 0; i < 20; i++) all[i] = must_malloc_async(1 + i * 300000, s);
        for (i = 0; i < 20; i++) OK(gpumem_free_async(all[i], s));
        pthread_setcancelstate(before, &before);
        CHECK(before == PTHREAD_CANCEL_DISABLE);
        gpumem_free(&s);
        pthread_testcancel();
    }
    return NULL;
}

static void threads_are_cancelled_at_work(void) {
    int round, i;
    for (round = 0; round < rounds(20); round++) {
        pthread_t threads[4];
        for (i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, works_until_cancelled, NULL) == 0);
        usleep(3000);
        for (i = 0; i < 4; i++) CHECK(pthread_cancel(threads[i]) == 0);
        for (i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    nothing_left();
}

int main(void) {
    setenv("GPUMEM_LOG", "2", 1);
    s = must_stream();
    RUN(a_call_is_no_cancellation_point);
    RUN(a_callback_for_events_is_none_either);
    RUN(threads_are_cancelled_at_work);
    OK(gpumem_stream_destroy(s));
    return 0;
}

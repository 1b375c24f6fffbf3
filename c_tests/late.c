/*
 * Calls from a thread's last destructors and from exit handlers, after what gpumem and the language
 * keep of the thread is gone.
 */
#include "evict.h"

#include <pthread.h>

#define BYTES (4 * MIB)

/* As CHECK, where the harness's own way out does not lead: an exit handler runs already. */
#define SAY(condition)                                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            char said[1024];                                                                                           \
            gpumem_last_error(said, sizeof said);                                                                      \
            fprintf(stderr, "FAILED %s at %s:%d: %s: %s\n", harness_test, __FILE__, __LINE__, #condition, said);       \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static pthread_key_t key;
static void *item;
static int called;

/* Allocating, copying, streams, and memory that comes and goes. */
static void everything(void) {
    void *p = NULL, *q = NULL;
    gpumem_stream s;
    gpumem_capture capture;
    unsigned char byte = 0;
    int device = -1;
    SAY(gpumem_device_get(&device) == GPUMEM_OK && device == 0);
    SAY(gpumem_device_set(0) == GPUMEM_OK);
    SAY(gpumem_malloc_async(100, GPUMEM_STREAM_PER_THREAD, &p) == GPUMEM_OK);
    SAY(gpumem_malloc_async(3 * MIB, NULL, &q) == GPUMEM_OK);
    SAY(gpumem_memset_async(p, 5, 100, GPUMEM_STREAM_PER_THREAD) == GPUMEM_OK);
    SAY(gpumem_stream_sync(GPUMEM_STREAM_PER_THREAD) == GPUMEM_OK);
    SAY(gpumem_memcpy(&byte, p, 1) == GPUMEM_OK && byte == 5);
    SAY(gpumem_free_async(p, GPUMEM_STREAM_PER_THREAD) == GPUMEM_OK);
    gpumem_free(q);
    SAY(gpumem_stream_create(&s) == GPUMEM_OK);
    SAY(gpumem_capture_begin(s, NULL, &capture) == GPUMEM_OK);
    SAY(gpumem_malloc_async(100, s, &p) == GPUMEM_OK);
    SAY(gpumem_capture_abort(capture) == GPUMEM_OK);
    SAY(gpumem_stream_sync(s) == GPUMEM_OK && gpumem_stream_destroy(s) == GPUMEM_OK);
    SAY(gpumem_evict(item, NULL, NULL) == GPUMEM_OK && gpumem_hold(item) == GPUMEM_OK);
    SAY(gpumem_unhold(item, NULL) == GPUMEM_OK && gpumem_evict(item, NULL, NULL) == GPUMEM_OK);
    SAY(gpumem_restore(item, NULL, NULL) == GPUMEM_OK);
    SAY(gpumem_memcpy(&byte, item, 1) == GPUMEM_OK && byte == 9);
    SAY(gpumem_device_sync() == GPUMEM_OK && gpumem_trim(0) == GPUMEM_OK && gpumem_validate() == GPUMEM_OK);
    called += 1;
}

/* Keys are looked at several times; in the last, what other keys keep is gone. */
static void last_of_all(void *round) {
    size_t next = (size_t)round + 1;
    if (next < 4) {
        pthread_setspecific(key, (void *)next);
    } else {
        everything();
    }
}

static void *thread(void *unused) {
    pthread_setspecific(key, (void *)1);
    /* So that there is something of the thread that goes. */
    everything();
    return unused;
}

static void a_thread_calls_to_its_end(void) {
    pthread_t t;
    item = evictable(BYTES, 0, NULL);
    OK(gpumem_memset(item, 9, BYTES));
    if (is_slow()) {
        /* The host device's memory of so late a call stays: some bytes a thread, which valgrind
         * counts as lost. */
        everything();
        called += 1;
        return;
    }
    CHECK(pthread_key_create(&key, last_of_all) == 0);
    CHECK(pthread_create(&t, NULL, thread, NULL) == 0 && pthread_join(t, NULL) == 0);
    CHECK(called == 2);
}

static pthread_key_t first_key;
static gpumem_arena arena;
static gpumem_reservation reservation;

static void attaches(void *unused) {
    (void)unused;
    SAY(gpumem_arena_attach(arena) == GPUMEM_OK);
    SAY(gpumem_reservation_attach_thread(reservation) == GPUMEM_OK);
}

static void uses_its_stream(void *unused) {
    void *p = NULL;
    (void)unused;
    SAY(gpumem_malloc_async(100, GPUMEM_STREAM_PER_THREAD, &p) == GPUMEM_OK);
    SAY(gpumem_free_async(p, GPUMEM_STREAM_PER_THREAD) == GPUMEM_OK);
}

/* Calls nothing of gpumem's before its destructors. */
static void *sets_the_first_key(void *unused) {
    (void)unused;
    pthread_setspecific(first_key, (void *)1);
    return NULL;
}

static void threads_call_first_at_their_end(void (*destructor)(void *)) {
    pthread_t t;
    int i;
    CHECK(pthread_key_create(&first_key, destructor) == 0);
    for (i = 0; i < 10; i++) {
        CHECK(pthread_create(&t, NULL, sets_the_first_key, NULL) == 0 && pthread_join(t, NULL) == 0);
    }
    CHECK(pthread_key_delete(first_key) == 0);
}

static void threads_that_attach_at_their_end_are_detached(void) {
    gpumem_arena_stats stats;
    gpumem_reserve_options options;
    GPUMEM_INIT(&stats);
    GPUMEM_INIT(&options);
    options.bytes = MIB;
    OK(gpumem_reserve(&options, &reservation));
    OK(gpumem_arena_enter(&arena));
    threads_call_first_at_their_end(attaches);
    OK(gpumem_arena_stats_get(arena, &stats));
    CHECK(stats.threads == 1);
    OK(gpumem_arena_exit(arena, NULL, 0, NULL));
    OK(gpumem_reservation_release(reservation, NULL));
}

static void threads_leave_their_streams_to_the_next(void) {
    gpumem_stats before, after;
    if (is_slow()) return; /* as above */
    GPUMEM_INIT(&before);
    GPUMEM_INIT(&after);
    OK(gpumem_stats_get(0, &before));
    threads_call_first_at_their_end(uses_its_stream);
    OK(gpumem_stats_get(0, &after));
    CHECK(after.streams <= before.streams + 1);
    OK(gpumem_validate());
}

static void at_exit(void) {
    /* CUDA may have ended. */
    if (on_host_device()) {
        everything();
        SAY(called == 3);
    }
}

int main(void) {
    CHECK(atexit(at_exit) == 0);
    RUN(a_thread_calls_to_its_end);
    RUN(threads_that_attach_at_their_end_are_detached);
    RUN(threads_leave_their_streams_to_the_next);
    return 0;
}

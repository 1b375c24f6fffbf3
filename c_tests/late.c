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
    return 0;
}

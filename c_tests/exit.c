/* Leaving with memory live, work in flight and threads running is clean; so are calls from exit
 * handlers. */
#include "harness.h"
#include <pthread.h>

static void *live;

static void at_exit(void) {
    gpumem_status status;
    void *p = NULL;
    gpumem_free(live);
    status = gpumem_malloc_async(100, NULL, &p);
    if (status != GPUMEM_OK && status != GPUMEM_ERROR_SHUTTING_DOWN) {
        fprintf(stderr, "FAILED: an exit handler got %s\n", gpumem_status_name(status));
        _exit(1);
    }
    gpumem_free(p);
    gpumem_free((void *)&live); /* even this is only said */
}

static pthread_key_t key;

/* Runs when a thread ends, after thread-locals with destructors are gone. */
static void at_thread_end(void *p) {
    gpumem_free(p);
    if (gpumem_malloc(SIZE_MAX) != NULL || gpumem_last_status() != GPUMEM_ERROR_OUT_OF_MEMORY) _exit(1);
}

static void *ends_with_memory(void *unused) {
    (void)unused;
    pthread_setspecific(key, gpumem_malloc(1000));
    return NULL;
}

static void *allocates_for_ever(void *unused) {
    (void)unused;
    for (;;) {
        gpumem_stream s = NULL;
        void *p = NULL;
        if (gpumem_stream_create(&s) != GPUMEM_OK) break;
        if (gpumem_malloc_async(100000, s, &p) == GPUMEM_OK) gpumem_memset_async(p, 1, 100000, s);
        gpumem_free_async(p, s);
        gpumem_stream_destroy(s);
    }
    return NULL;
}

static void threads_end_with_memory(void) {
    pthread_t thread;
    int i;
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    for (i = 0; i < 10; i++) {
        CHECK(pthread_create(&thread, NULL, ends_with_memory, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    nothing_left();
}

static void leave(int how) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_stream s = must_stream();
        pthread_t thread;
        void *p;
        CHECK(atexit(at_exit) == 0);
        live = gpumem_malloc(5 * MIB);
        p = must_malloc_async(MIB, s);
        OK(gpumem_memset_async(p, 1, MIB, s));
        if (how == 1) CHECK(pthread_create(&thread, NULL, allocates_for_ever, NULL) == 0);
        if (how == 2) _exit(0);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

static void leaving_with_live_memory(void) { leave(0); }
static void leaving_while_a_thread_allocates(void) { leave(1); }
static void leaving_without_handlers(void) { leave(2); }

int main(void) {
    /* The children first: they start gpumem themselves. */
    RUN(leaving_with_live_memory);
    RUN(leaving_while_a_thread_allocates);
    RUN(leaving_without_handlers);
    RUN(threads_end_with_memory);
    live = gpumem_malloc(MIB);
    CHECK(live != NULL);
    CHECK(atexit(at_exit) == 0);
    return 0;
}

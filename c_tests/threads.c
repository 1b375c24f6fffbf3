/* Many threads at once, each with a stream, also freeing what others have allocated. */
#include "harness.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 150, SLOTS = 16 };

static uint32_t step(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void *own_stream(void *arg) {
    uint32_t state = (uint32_t)(size_t)arg * 2654435761u + 1;
    unsigned seed = (unsigned)(size_t)arg;
    gpumem_stream s = must_stream();
    void *p[SLOTS];
    size_t bytes[SLOTS];
    int i;
    memset(p, 0, sizeof p);
    for (i = 0; i < rounds(ROUNDS); i++) {
        unsigned k = step(&state) % SLOTS;
        if (p[k] != NULL) {
            CHECK(holds(p[k], bytes[k], seed + k, s));
            OK(gpumem_free_async(p[k], s));
        }
        bytes[k] = 1 + step(&state) % (step(&state) % 4 == 0 ? 300000u : 5000u);
        p[k] = must_malloc_async(bytes[k], s);
        fill(p[k], bytes[k], seed + k, s);
    }
    for (i = 0; i < SLOTS; i++) {
        if (p[i] != NULL) {
            CHECK(holds(p[i], bytes[i], seed + (unsigned)i, s));
            OK(gpumem_free_async(p[i], s));
        }
    }
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    return NULL;
}

static void run_threads(void *(*work)(void *)) {
    pthread_t thread[THREADS];
    size_t i;
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void each_with_its_own_stream(void) {
    run_threads(own_stream);
    nothing_left();
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *shelf[64];

/* Takes what some thread has put on a shelf, frees it, and puts something of its own there. */
static void *exchange(void *arg) {
    uint32_t state = (uint32_t)(size_t)arg + 99;
    gpumem_stream s = must_stream();
    int i;
    for (i = 0; i < rounds(ROUNDS * 2); i++) {
        unsigned k = step(&state) % 64;
        size_t bytes = 1 + step(&state) % 100000;
        void *mine = must_malloc_async(bytes, s), *theirs;
        OK(gpumem_memset_async(mine, i, bytes, s));
        OK(gpumem_stream_sync(s)); /* so that its use is done for the thread that takes it */
        pthread_mutex_lock(&mutex);
        theirs = shelf[k];
        shelf[k] = mine;
        pthread_mutex_unlock(&mutex);
        OK(gpumem_free_async(theirs, s));
    }
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    return NULL;
}

static void freeing_what_others_allocated(void) {
    int i;
    run_threads(exchange);
    for (i = 0; i < 64; i++) {
        OK(gpumem_free_async(shelf[i], NULL));
        shelf[i] = NULL;
    }
    nothing_left();
}

/* All threads free the same pointers: each is freed once. */
static void *contested[200];
static size_t freed[THREADS];

static void *free_all(void *arg) {
    size_t me = (size_t)arg, i;
    for (i = 0; i < 200; i++) {
        gpumem_status status = gpumem_free_async(contested[i], NULL);
        if (status == GPUMEM_OK)
            freed[me]++;
        else
            CHECK(status == GPUMEM_ERROR_DOUBLE_FREE || status == GPUMEM_ERROR_UNKNOWN_POINTER);
    }
    return NULL;
}

static void one_of_many_frees_wins(void) {
    size_t i, total = 0;
    for (i = 0; i < 200; i++) contested[i] = must_malloc_async(100 + i * 1000, NULL);
    run_threads(free_all);
    for (i = 0; i < THREADS; i++) total += freed[i];
    CHECK(total == 200);
    nothing_left();
}

static void *fails_in_its_own_way(void *arg) {
    int device = 1000 + (int)(size_t)arg, i;
    char want[16];
    snprintf(want, sizeof want, "%d", device);
    for (i = 0; i < 200; i++) {
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_device_set(device));
        CHECK(error_says(want));
    }
    return NULL;
}

static void errors_stay_with_their_threads(void) { run_threads(fails_in_its_own_way); }

static void *starts(void *unused) {
    (void)unused;
    gpumem_free(gpumem_malloc(1000));
    return NULL;
}

static void all_may_make_the_first_call(void) {
    run_threads(starts);
    nothing_left();
}

int main(void) {
    RUN(all_may_make_the_first_call);
    RUN(each_with_its_own_stream);
    RUN(freeing_what_others_allocated);
    RUN(one_of_many_frees_wins);
    RUN(errors_stay_with_their_threads);
    return 0;
}

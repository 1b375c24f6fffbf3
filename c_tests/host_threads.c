/* Pinned host memory on many threads: freed by others, freed twice at once. */
#include "host.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 150, SHELF = 24 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned char *shelf[SHELF];
static size_t shelf_bytes[SHELF];
static int freed_once;

/* Takes what some thread has put on a shelf, looks at it, frees it, and puts something of its
 * own there. */
static void *exchange(void *arg) {
    uint32_t state = (uint32_t)(size_t)arg * 2654435761u + 1;
    int i;
    for (i = 0; i < ROUNDS; i++) {
        unsigned char *mine, *theirs;
        size_t bytes, their_bytes, k;
        state = state * 1664525u + 1013904223u;
        k = (state >> 8) % SHELF;
        bytes = 1 + (state >> 12) % (state % 3 == 0 ? 200000u : 3000u);
        mine = (unsigned char *)pinned(bytes);
        paint(mine, bytes, (unsigned)bytes);
        CHECK(pthread_mutex_lock(&mutex) == 0);
        theirs = shelf[k];
        their_bytes = shelf_bytes[k];
        shelf[k] = mine;
        shelf_bytes[k] = bytes;
        CHECK(pthread_mutex_unlock(&mutex) == 0);
        if (theirs != NULL) {
            CHECK(painted(theirs, their_bytes, (unsigned)their_bytes));
            OK(gpumem_host_free(theirs));
        }
    }
    return NULL;
}

static void *free_it(void *p) {
    if (gpumem_host_free(p) == GPUMEM_OK) {
        CHECK(pthread_mutex_lock(&mutex) == 0);
        freed_once++;
        CHECK(pthread_mutex_unlock(&mutex) == 0);
    } else {
        CHECK(gpumem_last_status() == GPUMEM_ERROR_DOUBLE_FREE);
    }
    return NULL;
}

static void run_threads(void *(*work)(void *), void *arg) {
    pthread_t thread[THREADS];
    size_t i;
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, work, arg ? arg : (void *)i) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void threads_free_what_others_have_allocated(void) {
    size_t i;
    run_threads(exchange, NULL);
    for (i = 0; i < SHELF; i++) {
        CHECK(shelf[i] == NULL || painted(shelf[i], shelf_bytes[i], (unsigned)shelf_bytes[i]));
        OK(gpumem_host_free(shelf[i]));
    }
    CHECK(usage().used == 0);
}

static void one_of_many_frees_wins(void) {
    size_t i;
    for (i = 1; i <= 20; i++) {
        run_threads(free_it, pinned(100));
        CHECK(freed_once == (int)i && usage().used == 0);
    }
}

int main(void) {
    small_blocks();
    start();
    RUN(threads_free_what_others_have_allocated);
    RUN(one_of_many_frees_wins);
    nothing_left();
    return 0;
}

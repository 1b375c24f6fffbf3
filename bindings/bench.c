/* What a pair of an allocation and a free costs from C; see bench.sh. */
#include <gpumem.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

enum { PAIRS = 1000000, RUNS = 7, BYTES = 4096 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double plain(void) {
    const double start = now();
    int i;
    for (i = 0; i < PAIRS; i++) {
        void *p = NULL;
        if (gpumem_malloc_async(BYTES, NULL, &p) != GPUMEM_OK || gpumem_free_async(p, NULL) != GPUMEM_OK) return -1;
    }
    return (now() - start) / PAIRS;
}

/* What a binding's object does: it asks for the number, and frees by it. */
static double by_id(void) {
    const double start = now();
    int i;
    for (i = 0; i < PAIRS; i++) {
        void *p = NULL;
        uint64_t id = 0;
        if (gpumem_malloc_async(BYTES, NULL, &p) != GPUMEM_OK || gpumem_allocation_id_get(p, &id) != GPUMEM_OK ||
            gpumem_free_id(p, id) != GPUMEM_OK)
            return -1;
    }
    return (now() - start) / PAIRS;
}

static double least(double (*f)(void)) {
    double best = f();
    int i;
    for (i = 1; i < RUNS; i++) {
        const double t = f();
        if (t < best) best = t;
    }
    return best;
}

int main(void) {
    printf("C      malloc_async, free_async            %6.1f ns\n", least(plain));
    printf("C      malloc_async, id, free_id           %6.1f ns\n", least(by_id));
    return 0;
}

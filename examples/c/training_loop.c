/*
 * A long loop in a runtime that collects its garbage too late: flat device memory with an arena
 * around each step.
 *
 * The runtime here stands for Lean's, Julia's or Python's: it gives every buffer a finalizer that
 * frees device memory, and runs the finalizers when its own heap is full, which does not happen,
 * because to it a buffer is a few bytes. The loop makes some fifty buffers a step and frees none.
 * Without arenas device memory grows by all of them, until the limit; with an arena around each
 * step only the parameters outlive it, and the finalizers that come late find that their buffers
 * are gone, even where the address has been handed out again.
 *
 * Runs on a GPU, and without one on the host device (GPUMEM_BACKEND=host asks for it).
 *
 *     cc training_loop.c $(pkg-config --cflags --libs gpumem) -o training_loop
 */
#include <gpumem.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 400, BUFFERS = 50, MOST = STEPS * (BUFFERS + 1) + 1, PARAMETER_BYTES = 1 << 20 };

/* Ends the program with what went wrong. */
static void check(gpumem_status status, const char *what) {
    if (status != GPUMEM_OK) {
        char text[512];
        gpumem_last_error(text, sizeof text);
        fprintf(stderr, "%s: %s: %s\n", what, gpumem_status_name(status), text);
        exit(EXIT_FAILURE);
    }
}

/* ---- the runtime ---- */

/* Every buffer it has made and not collected: its pointer and its number, which no other
 * allocation ever has. */
static struct {
    void *ptr;
    uint64_t id;
} reachable[MOST];
static size_t reachable_count;

/* A buffer, with its finalizer. NULL when there is no memory. */
static void *make_buffer(size_t bytes, gpumem_stream s) {
    void *p = NULL;
    if (gpumem_malloc_async(bytes, s, &p) != GPUMEM_OK) return NULL;
    check(gpumem_allocation_id_get(p, &reachable[reachable_count].id), "id");
    reachable[reachable_count++].ptr = p;
    return p;
}

/* The collector, at last: runs the finalizer of every buffer. */
static size_t collect(void) {
    size_t i, count = reachable_count;
    for (i = 0; i < count; i++) check(gpumem_free_id(reachable[i].ptr, reachable[i].id), "finalizer");
    reachable_count = 0;
    return count;
}

/* ---- the training ---- */

/* One eager step: makes activations and gradients, and new parameters from the old ones. NULL
 * when memory ran out. */
static void *train(const void *parameters, int step, gpumem_stream s) {
    void *updated;
    int i;
    for (i = 0; i < BUFFERS; i++) {
        size_t bytes = 32768 + (size_t)((i * 7 + step) % BUFFERS) * 9000;
        void *buffer = make_buffer(bytes, s);
        if (buffer == NULL) return NULL;
        check(gpumem_memset_async(buffer, step, 4096, s), "compute");
    }
    updated = make_buffer(PARAMETER_BYTES, s);
    if (updated == NULL) return NULL;
    /* What is learnt in a step is here that there was one: byte k of the parameters says so of
     * step k. */
    check(gpumem_memcpy_async(updated, parameters, PARAMETER_BYTES, s), "update");
    check(gpumem_memset_async((char *)updated + step, 1, 1, s), "update");
    return updated;
}

static void *initial_parameters(gpumem_stream s) {
    void *p = make_buffer(PARAMETER_BYTES, s);
    if (p == NULL) check(gpumem_last_status(), "parameters");
    check(gpumem_memset_async(p, 0, PARAMETER_BYTES, s), "parameters");
    return p;
}

static gpumem_stats stats_now(void) {
    gpumem_stats stats;
    int device = 0;
    check(gpumem_device_get(&device), "device");
    GPUMEM_INIT(&stats);
    check(gpumem_stats_get(device, &stats), "statistics");
    return stats;
}

static void report(const char *how, int step) {
    gpumem_stats stats = stats_now();
    printf("%s, step %3d: %4" PRIu64 " MiB mapped, %5" PRIu64 " live buffers\n", how, step, stats.mapped >> 20,
           stats.allocations);
}

/* Each step in an arena, which keeps the parameters. */
static void with_arenas(gpumem_stream s) {
    static unsigned char learnt_in[PARAMETER_BYTES];
    void *parameters = initial_parameters(s), *updated;
    uint64_t late;
    int step, learnt = 0;
    size_t finalizers;
    for (step = 1; step <= STEPS; step++) {
        gpumem_arena arena;
        check(gpumem_arena_enter_named("step", &arena), "enter");
        updated = train(parameters, step, s);
        if (updated == NULL) check(gpumem_last_status(), "train");
        check(gpumem_arena_exit(arena, &updated, 1, NULL), "exit");
        gpumem_free(parameters); /* the loop knows that the old ones end here */
        parameters = updated;
        if (step % 50 == 0) report("with arenas", step);
    }
    check(gpumem_memcpy_async(learnt_in, parameters, PARAMETER_BYTES, s), "read");
    check(gpumem_stream_sync(s), "synchronise");
    for (step = 1; step <= STEPS; step++) learnt += learnt_in[step];
    late = stats_now().late_frees;
    finalizers = collect();
    late = stats_now().late_frees - late;
    printf("learnt from %d of %d steps; %zu finalizers ran, %" PRIu64 " of them too late, no harm done\n", learnt, STEPS,
           finalizers, late);
    if (learnt != STEPS || stats_now().allocations != 0) exit(EXIT_FAILURE);
}

/* The same without arenas, on a device that gives gpumem half a gibibyte. */
static void without_arenas(gpumem_stream s) {
    void *parameters;
    char text[512];
    int step, device = 0;
    check(gpumem_device_get(&device), "device");
    check(gpumem_trim(0), "trim");
    check(gpumem_device_limit_set(device, (size_t)512 << 20), "limit");
    parameters = initial_parameters(s);
    for (step = 1; parameters != NULL && step <= STEPS; step++) {
        parameters = train(parameters, step, s);
        if (parameters != NULL && step % 10 == 0) report("without arenas", step);
    }
    if (parameters != NULL) {
        fprintf(stderr, "the limit was not met\n");
        exit(EXIT_FAILURE);
    }
    gpumem_last_error(text, sizeof text);
    printf("without arenas, step %d ended with %s: %s\n", step - 1, gpumem_status_name(gpumem_last_status()), text);
    collect();
    report("after the collector", step - 1);
}

int main(void) {
    gpumem_stream s;
    check(gpumem_stream_create(&s), "stream");
    printf("%d steps of %d buffers on the %s device\n", STEPS, BUFFERS, gpumem_backend_name());
    with_arenas(s);
    without_arenas(s);
    check(gpumem_stream_sync(s), "synchronise");
    check(gpumem_stream_destroy(s), "destroy");
    return EXIT_SUCCESS;
}

/* Where threads cannot be started, what they would have done is done by the caller, with the
 * same result. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan.h"
#include <dlfcn.h>
#include <pthread.h>

enum { BUFFERS = 8, THREADS = 4 };

static int asked, refused, refuse_every;

typedef int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* In the place of the system's, for the library too. */
#ifdef __cplusplus
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) noexcept {
#else
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
#endif
    create real;
    *(void **)(void *)&real = dlsym(RTLD_NEXT, "pthread_create");
    CHECK(real != NULL);
    asked++;
    if (refuse_every != 0 && asked % refuse_every == 0) {
        refused++;
        return EAGAIN;
    }
    return real(thread, attr, run, arg);
}

/* Padding keeps every layout above the bound, so that threads are asked for. */
static void solve_hard(uint64_t *offsets) {
    gpumem_plan plan = must_plan();
    gpumem_plan_solve_options options;
    uint32_t state = 6;
    int i;
    for (i = 0; i < BUFFERS; i++) {
        uint64_t lower = draw(&state) % 12;
        gpumem_plan_buffer_options b = described((draw(&state) % 5000) | 1, lower, lower + 1 + draw(&state) % 6);
        b.alignment = (uint64_t)1 << 4 * (draw(&state) % 3);
        must_add(plan, b);
    }
    GPUMEM_INIT(&options);
    options.threads = THREADS;
    OK(gpumem_plan_solve(plan, &options));
    OK(gpumem_plan_offsets_get(plan, 0, BUFFERS, NULL, offsets, NULL));
    CHECK(summary_of(plan).slots == BUFFERS && summary_of(plan).interrupted == 0);
    OK(gpumem_plan_destroy(plan));
}

static void the_caller_does_what_threads_would(void) {
    uint64_t with[BUFFERS], without[BUFFERS];
    solve_hard(with);
    CHECK(asked > 0 && asked % THREADS == 0 && refused == 0);
    /* Half of them refused is both at once, where that is slow. */
    for (refuse_every = is_slow() ? 2 : 1; refuse_every <= 2; refuse_every++) {
        asked = refused = 0;
        solve_hard(without);
        CHECK(refused > 0 && refused == asked / refuse_every);
        CHECK(memcmp(with, without, sizeof with) == 0);
    }
}

int main(void) {
    RUN(the_caller_does_what_threads_would);
    return 0;
}

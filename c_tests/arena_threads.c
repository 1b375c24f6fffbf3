/* Arenas and threads: attaching, handing over, and finalizers that race the exit. */
#include "harness.h"
#include <pthread.h>
#include <sched.h>

enum { THREADS = 8 };

static gpumem_arena must_enter(const char *name) {
    gpumem_arena a = NULL;
    OK(gpumem_arena_enter_named(name, &a));
    return a;
}

static gpumem_arena_report must_exit(gpumem_arena a, void *const *keep, size_t keep_len) {
    gpumem_arena_report report;
    GPUMEM_INIT(&report);
    OK(gpumem_arena_exit(a, keep, keep_len, &report));
    return report;
}

static gpumem_arena arena_of(const void *p) {
    gpumem_arena a = (gpumem_arena)&a;
    OK(gpumem_arena_find(p, &a));
    return a;
}

static void on_threads(int count, void *(*work)(void *)) {
    pthread_t thread[THREADS];
    int i;
    for (i = 0; i < count; i++) CHECK(pthread_create(&thread[i], NULL, work, (void *)(size_t)i) == 0);
    for (i = 0; i < count; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static gpumem_arena shared;
static gpumem_stream stream;
static void *theirs;

static void *has_no_arena(void *unused) {
    gpumem_arena a = shared;
    void *p;
    (void)unused;
    OK(gpumem_arena_current_get(&a));
    CHECK(a == NULL);
    p = gpumem_malloc(10); /* while another thread is in an arena */
    CHECK(arena_of(p) == NULL);
    gpumem_free(p);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(shared, NULL, 0, NULL));
    CHECK(error_says("not attached"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_detach(shared));
    return NULL;
}

static void *attaches_and_ends(void *unused) {
    (void)unused;
    OK(gpumem_arena_attach(shared));
    theirs = gpumem_malloc(20);
    CHECK(arena_of(theirs) == shared);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(shared, NULL, 0, NULL)); /* two are attached */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_abort(shared, NULL));
    CHECK(error_says("must detach first"));
    return NULL; /* which detaches it */
}

static void exits_by_other_threads_are_refused(void) {
    gpumem_arena_stats stats;
    gpumem_arena_report report;
    GPUMEM_INIT(&stats);
    shared = must_enter("shared");
    on_threads(1, has_no_arena);
    on_threads(1, attaches_and_ends);
    OK(gpumem_arena_stats_get(shared, &stats));
    CHECK(stats.threads == 1 && stats.live == 1);
    report = must_exit(shared, NULL, 0);
    CHECK(report.freed == 1 && report.freed_bytes == 20);
    nothing_left();
}

static void *takes_over(void *unused) {
    gpumem_arena inner;
    (void)unused;
    OK(gpumem_arena_attach(shared));
    inner = must_enter("inner");
    gpumem_malloc(30);
    theirs = gpumem_malloc(40);
    CHECK(must_exit(inner, &theirs, 1).freed == 1);
    CHECK(arena_of(theirs) == shared);
    OK(gpumem_arena_detach(shared));
    CHECK(arena_of(theirs) == shared);
    OK(gpumem_arena_attach(shared));
    CHECK(must_exit(shared, &theirs, 1).freed == 1);
    return NULL;
}

static void an_arena_is_handed_over(void) {
    gpumem_arena none = shared;
    shared = must_enter("handed over");
    gpumem_malloc(50);
    OK(gpumem_arena_detach(shared));
    OK(gpumem_arena_current_get(&none));
    CHECK(none == NULL);
    on_threads(1, takes_over);
    CHECK(arena_of(theirs) == NULL);
    gpumem_free(theirs);
    nothing_left();
}

/* Steps in arenas, one buffer kept of each and checked in the next step. */
static void steps(unsigned seed, gpumem_stream s, int count) {
    void *kept = NULL;
    gpumem_arena whole = must_enter("whole");
    gpumem_arena_report report;
    int step, i;
    for (step = 0; step < count; step++) {
        gpumem_arena a = must_enter("step");
        void *p[12];
        for (i = 0; i < 12; i++) {
            size_t bytes = 200 + (seed * 37 + (unsigned)i * 911 + (unsigned)step * 131) % 60000;
            p[i] = must_malloc_async(bytes, s);
            OK(gpumem_memset_async(p[i], (int)seed, bytes, s));
        }
        if (kept != NULL) CHECK(holds(kept, 200, seed + (unsigned)step - 1, s));
        fill(p[step % 12], 200, seed + (unsigned)step, s);
        OK(gpumem_free_async(p[(step + 1) % 12], s));
        report = must_exit(a, &p[step % 12], 1);
        CHECK(report.freed == 10 && report.kept == 1 && report.unknown + report.foreign + report.duplicate == 0);
        OK(gpumem_free_async(kept, s));
        kept = p[step % 12];
    }
    report = must_exit(whole, NULL, 0);
    CHECK(report.freed == 1 && report.kept == 0);
}

static void *own_arena_and_stream(void *arg) {
    gpumem_stream s = must_stream();
    steps((unsigned)(size_t)arg * 1000, s, rounds(300));
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    return NULL;
}

static void *own_arena_one_stream(void *arg) {
    steps((unsigned)(size_t)arg * 1000, stream, rounds(300));
    return NULL;
}

static void eight_threads_with_streams_of_their_own(void) {
    on_threads(THREADS, own_arena_and_stream);
    nothing_left();
}

static void eight_threads_on_one_stream(void) {
    stream = must_stream();
    on_threads(THREADS, own_arena_one_stream);
    OK(gpumem_stream_sync(stream));
    OK(gpumem_stream_destroy(stream));
    nothing_left();
}

/* All threads in one arena, which the first exits when the others are gone. */
static void *works_in_the_shared_arena(void *arg) {
    int i;
    OK(gpumem_arena_attach(shared));
    for (i = 0; i < rounds(800); i++) {
        void *p = must_malloc_async(100 + (size_t)arg * 1000 + (size_t)i, stream);
        CHECK(arena_of(p) == shared);
        if (i % 4 == 0) OK(gpumem_free_async(p, stream));
        if (i % 4 == 1) OK(gpumem_arena_escape(p)), OK(gpumem_free_async(p, stream));
    }
    OK(gpumem_arena_detach(shared));
    return NULL;
}

static void eight_threads_in_one_arena(void) {
    uint64_t half = (uint64_t)THREADS * (uint64_t)rounds(800) / 2;
    gpumem_arena_stats stats;
    GPUMEM_INIT(&stats);
    stream = must_stream();
    shared = must_enter("of all");
    on_threads(THREADS, works_in_the_shared_arena);
    OK(gpumem_arena_stats_get(shared, &stats));
    CHECK(stats.joined == 2 * half && stats.live == half && stats.threads == 1);
    CHECK(stats.promoted == half / 2 && stats.freed_early == half / 2);
    CHECK(must_exit(shared, NULL, 0).freed == half);
    OK(gpumem_stream_destroy(stream));
    nothing_left();
}

/*
 * Finalizers race the exit: the main thread allocates in an arena and publishes pointers and ids;
 * two threads free what is published by id, and the main thread exits somewhere in the middle of
 * that. Every allocation is freed exactly once, by the first to try; the rest of the frees are
 * late. Meanwhile another thread allocates and frees on the same stream, so addresses come again.
 */
enum { MOST = 100000, FINALIZERS = 2 };
static int batch; /* allocations of one arena */

static struct {
    void *ptr;
    uint64_t id;
} published[MOST];
static int published_count, progress, exited; /* of a batch: how many are published, freed by the first finalizer */
static int batches, over, stop;
static pthread_barrier_t start_line, finish_line;

static int load(const int *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
static void store(int *to, int value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }

static void wait_for(const int *what, int at_least) {
    int spins;
    for (spins = 0; load(what) < at_least; spins++)
        if (spins > 1000) sched_yield();
}

static void *finalizer(void *arg) {
    int other_order = arg != NULL ? 7 : 0, i;
    for (;;) {
        pthread_barrier_wait(&start_line);
        if (over) return NULL;
        /* Both free all: so they race each other as well. The first quarter races the
         * allocating, the last is late. */
        for (i = 0; i < batch; i++) {
            int k = i ^ other_order;
            if (i == batch / 4 * 3) wait_for(&exited, 1);
            wait_for(&published_count, i < batch / 4 ? k + 1 : batch);
            OK(k % 3 == 0 ? gpumem_free_id_async(published[k].ptr, published[k].id, stream)
                          : gpumem_free_id(published[k].ptr, published[k].id));
            if (arg == NULL) store(&progress, i + 1);
        }
        pthread_barrier_wait(&finish_line);
    }
}

static uint64_t bystander_count;

static void *bystander(void *unused) {
    (void)unused;
    while (!load(&stop)) {
        void *p[16];
        int i;
        for (i = 0; i < 16; i++) p[i] = must_malloc_async((size_t)(i % 4) * 3000 + 400, stream);
        for (i = 0; i < 16; i++) OK(gpumem_free_async(p[i], stream)); /* nobody else has freed it */
        bystander_count += 16;
    }
    return NULL;
}

static void finalizers_race_the_exit(void) {
    pthread_t thread[FINALIZERS], by;
    gpumem_stats before, after;
    uint64_t by_exit = 0, allocated = 0, late, finalized;
    int b, i, in_the_middle = 0;
    batches = rounds(12); /* 2.4 million frees by id, and half as many allocations */
    batch = is_slow() ? MOST / 20 : MOST;
    stop = over = 0;
    stream = must_stream();
    CHECK(pthread_barrier_init(&start_line, NULL, FINALIZERS + 1) == 0);
    CHECK(pthread_barrier_init(&finish_line, NULL, FINALIZERS + 1) == 0);
    before = stats_now();
    for (i = 0; i < FINALIZERS; i++) CHECK(pthread_create(&thread[i], NULL, finalizer, i == 0 ? NULL : &thread) == 0);
    CHECK(pthread_create(&by, NULL, bystander, NULL) == 0);
    for (b = 0; b < batches; b++) {
        gpumem_arena a = must_enter("raced");
        int exit_at = batch / 4 + b * 9777 % (batch / 2);
        published_count = progress = exited = 0; /* nobody looks before the start line */
        pthread_barrier_wait(&start_line);
        for (i = 0; i < batch; i++) {
            published[i].ptr = must_malloc_async((size_t)(i % 4) * 3000 + 400, i % 8 < 6 ? stream : NULL);
            OK(gpumem_allocation_id_get(published[i].ptr, &published[i].id));
            store(&published_count, i + 1);
        }
        allocated += batch;
        wait_for(&progress, exit_at);
        by_exit += must_exit(a, NULL, 0).freed;
        in_the_middle += load(&progress) < batch / 4 * 3;
        store(&exited, 1);
        pthread_barrier_wait(&finish_line);
    }
    over = 1;
    pthread_barrier_wait(&start_line);
    for (i = 0; i < FINALIZERS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    store(&stop, 1);
    CHECK(pthread_join(by, NULL) == 0);
    after = stats_now();
    late = after.late_frees - before.late_frees;
    finalized = allocated * FINALIZERS - late; /* frees by id that freed */
    printf("%" PRIu64 " allocated, %" PRIu64 " freed by exits and %" PRIu64 " by finalizers, %" PRIu64 " late; ", allocated,
           by_exit, finalized, late);
    printf("%d of %d exits in the middle\n", in_the_middle, batches);
    CHECK(by_exit + finalized == allocated);
    CHECK(by_exit >= allocated / 4 && finalized >= allocated / 4);
    CHECK(after.mallocs - before.mallocs == allocated + bystander_count);
    CHECK(after.frees - before.frees == allocated + bystander_count);
    CHECK(after.double_frees == before.double_frees && after.unknown_pointers == before.unknown_pointers);
    pthread_barrier_destroy(&start_line);
    pthread_barrier_destroy(&finish_line);
    OK(gpumem_stream_destroy(stream));
    nothing_left();
}

/* A child ends in an arena while another thread of its parent was in the middle of entering one. */
static void *enters_and_exits(void *unused) {
    (void)unused;
    while (!load(&stop)) must_exit(must_enter("busy"), NULL, 0);
    return NULL;
}

static void forks_while_others_enter(void) {
    pthread_t thread;
    gpumem_arena a;
    int i;
    if (getenv("GPUMEM_VA_SIZE") != NULL) {
        printf("skipped: to valgrind, what the parent's other threads hold is lost in a child\n");
        return;
    }
    if (getenv("GPUMEM_TEST_SANITIZER") != NULL) {
        printf("skipped: when a child ends, compute-sanitizer waits for a thread of its own that only the parent has\n");
        return;
    }
    a = must_enter("around the forks");
    stop = 0;
    CHECK(pthread_create(&thread, NULL, enters_and_exits, NULL) == 0);
    for (i = 0; i < rounds(400); i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(30); /* instead of waiting for a lock that nobody holds */
            exit(0);   /* the thread's list of arenas goes */
        }
        CHECK(exit_code(child) == 0);
    }
    store(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    must_exit(a, NULL, 0);
    nothing_left();
}

int main(void) {
    OK(gpumem_init(NULL));
    RUN(exits_by_other_threads_are_refused);
    RUN(an_arena_is_handed_over);
    RUN(eight_threads_with_streams_of_their_own);
    RUN(eight_threads_on_one_stream);
    RUN(eight_threads_in_one_arena);
    RUN(finalizers_race_the_exit);
    RUN(forks_while_others_enter);
    return 0;
}

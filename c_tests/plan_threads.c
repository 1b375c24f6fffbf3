/* One plan in the hands of several threads. */
#include "plan.h"
#include <pthread.h>
#include <signal.h>

enum { EACH = 300, THREADS = 4, LARGE = 4000 };

static gpumem_plan shared;

static void run_threads(void *(*work)(void *), size_t threads) {
    pthread_t thread[THREADS];
    size_t i;
    for (i = 0; i < threads; i++) CHECK(pthread_create(&thread[i], NULL, work, (void *)i) == 0);
    for (i = 0; i < threads; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

/* What thread t adds as its i-th: no two are the same. */
static uint64_t bytes_by(size_t t, size_t i) { return (uint64_t)(1 + i * THREADS + t); }

static uint32_t ids[THREADS][EACH];

static void *adds(void *arg) {
    size_t me = (size_t)arg, i;
    for (i = 0; i < EACH; i++) {
        if (i % 2 == 0) {
            ids[me][i] = add(shared, bytes_by(me, i), 0, 1);
        } else {
            uint64_t bytes = bytes_by(me, i), lower = 0, upper = 1;
            OK(gpumem_plan_buffers_add(shared, 1, &bytes, &lower, &upper, &ids[me][i]));
        }
    }
    return NULL;
}

static void all_may_add_at_once(void) {
    static uint64_t offset[THREADS * EACH], bytes[THREADS * EACH];
    static unsigned char seen[THREADS * EACH];
    uint64_t sum = 0;
    size_t t, i, j;
    shared = must_plan();
    run_threads(adds, THREADS);
    solved(shared);
    for (t = 0; t < THREADS; t++) {
        for (i = 0; i < EACH; i++) {
            CHECK(ids[t][i] < THREADS * EACH && !seen[ids[t][i]]);
            seen[ids[t][i]] = 1;
            bytes[ids[t][i]] = bytes_by(t, i);
            sum += bytes_by(t, i);
        }
    }
    /* Each id stands for what its thread added: all live at once, they lie side by side. */
    CHECK(bytes_of(shared, 0) == sum);
    OK(gpumem_plan_offsets_get(shared, 0, THREADS * EACH, NULL, offset, NULL));
    for (i = 0; i < THREADS * EACH; i++)
        for (j = 0; j < i; j++)
            CHECK(offset[i] + bytes[i] <= offset[j] || offset[j] + bytes[j] <= offset[i]);
    OK(gpumem_plan_destroy(shared));
}

/* Many buffers of no pattern: a search for the best layout does not come to an end. */
static void fill_with_a_hard_problem(void) {
    uint32_t state = 11;
    int i;
    for (i = 0; i < LARGE; i++) {
        uint64_t lower = draw(&state) % 3000;
        add(shared, 1 + draw(&state) % 9973, lower, lower + 1 + draw(&state) % (draw(&state) % 7 == 0 ? 900 : 60));
    }
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int over;

static int is_over(void) {
    int now;
    pthread_mutex_lock(&mutex);
    now = over;
    pthread_mutex_unlock(&mutex);
    return now;
}

static gpumem_status result;

static void *solves(void *unused) {
    gpumem_plan_solve_options options;
    (void)unused;
    GPUMEM_INIT(&options);
    options.time_limit_ms = 1000 * 3600;
    result = gpumem_plan_solve(shared, &options);
    pthread_mutex_lock(&mutex);
    over = 1;
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void another_thread_cancels(void) {
    pthread_t thread;
    gpumem_plan_stats summary;
    shared = must_plan();
    add(shared, 1, 0, 1);
    OK(gpumem_plan_cancel(shared)); /* nothing in progress: nothing happens */
    solved(shared);
    CHECK(summary_of(shared).interrupted == 0);
    fill_with_a_hard_problem();
    over = 0;
    CHECK(pthread_create(&thread, NULL, solves, NULL) == 0);
    while (!is_over()) {
        OK(gpumem_plan_cancel(shared));
        usleep(2000);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(result == GPUMEM_OK);
    summary = summary_of(shared);
    CHECK(summary.interrupted == 1 || summary.status == GPUMEM_PLAN_OPTIMAL);
    if (!summary.interrupted) printf("   solved before it was cancelled\n");
    CHECK(summary.slots == LARGE + 1);
    OK(gpumem_plan_destroy(shared));
}

static void a_time_limit_ends_a_search(void) {
    gpumem_plan_solve_options options;
    gpumem_plan_stats summary;
    shared = must_plan();
    fill_with_a_hard_problem();
    GPUMEM_INIT(&options);
    options.time_limit_ms = 1;
    OK(gpumem_plan_solve(shared, &options));
    summary = summary_of(shared);
    CHECK(summary.interrupted == 1 || summary.status == GPUMEM_PLAN_OPTIMAL);
    options.time_limit_ms = UINT64_MAX; /* no overflow */
    options.effort = GPUMEM_PLAN_EFFORT_FAST;
    options.threads = 2;
    OK(gpumem_plan_resize(shared, 0, 10));
    OK(gpumem_plan_destroy(shared));
    shared = must_plan();
    add(shared, 1, 0, 1);
    OK(gpumem_plan_solve(shared, &options));
    OK(gpumem_plan_destroy(shared));
}

static void it_is_destroyed_while_it_is_solved(void) {
    int round;
    for (round = 0; round < (is_slow() ? 2 : 4); round++) {
        pthread_t thread;
        gpumem_plan before;
        before = shared = must_plan();
        fill_with_a_hard_problem();
        over = 0;
        CHECK(pthread_create(&thread, NULL, solves, NULL) == 0);
        usleep((useconds_t)round * 3000);
        OK(gpumem_plan_destroy(before));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_cancel(before));
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(result == GPUMEM_ERROR_INVALID || result == GPUMEM_OK);
        if (result == GPUMEM_OK) printf("   solved before it was destroyed\n");
    }
}

/* The thread that solves does not exist in the child: nothing there may wait for it. */
static void the_process_forks_while_it_is_solved(void) {
    int round;
    for (round = 0; round < (is_slow() ? 2 : 4); round++) {
        pthread_t thread;
        pid_t child;
        shared = must_plan();
        fill_with_a_hard_problem();
        over = 0;
        CHECK(pthread_create(&thread, NULL, solves, NULL) == 0);
        usleep((useconds_t)round * 3000);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            gpumem_plan theirs = shared;
            uint64_t bytes = 7;
            size_t needed = 7;
            alarm(240); /* ends a child that waits after all */
            CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_arena_bytes_get(theirs, 0, &bytes, NULL));
            CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_report_get(theirs, NULL, 0, &needed));
            CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_solve(theirs, NULL));
            CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_cancel(theirs));
            CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_destroy(theirs));
            CHECK(bytes == 7 && needed == 7);
            shared = must_plan();
            add(shared, 30, 0, 1);
            solved(shared);
            CHECK(bytes_of(shared, 0) == 30);
            OK(gpumem_plan_destroy(shared));
            /* What only the solving thread knew of is lost here, which a leak check at exit
             * would not like. */
            kill(getpid(), SIGKILL);
        }
        CHECK(exit_code(child) == 1000 + SIGKILL);
        while (!is_over()) {
            OK(gpumem_plan_cancel(shared));
            usleep(2000);
        }
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(result == GPUMEM_OK && summary_of(shared).slots == LARGE);
        OK(gpumem_plan_destroy(shared));
    }
}

/* Everyone asks, changes and solves; whatever comes out is an answer or the error that says to
 * solve. */
static void *meddles(void *arg) {
    uint32_t state = (uint32_t)(size_t)arg + 5;
    int i;
    for (i = 0; i < 200; i++) {
        uint64_t offset = 0;
        gpumem_plan_stats summary;
        size_t needed = 0;
        gpumem_status status;
        GPUMEM_INIT(&summary);
        switch (draw(&state) % 6) {
        case 0: add(shared, 1 + draw(&state) % 100, 0, 5); break;
        case 1: solved(shared); break;
        case 2: OK(gpumem_plan_cancel(shared)); break;
        case 3: status = gpumem_plan_offset_get(shared, 0, NULL, &offset);
            CHECK(status == GPUMEM_OK || status == GPUMEM_ERROR_INVALID);
            break;
        case 4: status = gpumem_plan_stats_get(shared, &summary);
            CHECK(status == GPUMEM_OK || status == GPUMEM_ERROR_INVALID);
            if (status == GPUMEM_OK) CHECK(summary.slots == summary.values && summary.arena_bytes > 0);
            break;
        default: status = gpumem_plan_report_get(shared, NULL, 0, &needed);
            CHECK(status == GPUMEM_OK || status == GPUMEM_ERROR_INVALID);
        }
    }
    return NULL;
}

static void calls_on_one_plan_take_turns(void) {
    shared = must_plan();
    add(shared, 1, 0, 1);
    run_threads(meddles, THREADS);
    solved(shared);
    OK(gpumem_plan_destroy(shared));
}

static gpumem_plan crossed[2];

static void *shares(void *arg) {
    size_t me = (size_t)arg;
    int i;
    for (i = 0; i < 500; i++) {
        gpumem_status status = gpumem_plan_share_from(crossed[me], crossed[1 - me], NULL);
        CHECK(status == GPUMEM_OK || error_says("changed after it was solved"));
        solved(crossed[me]);
    }
    return NULL;
}

/* Two plans that share from each other do not wait for each other, nor does one that shares from
 * itself. */
static void sharing_crosswise_does_not_hang(void) {
    size_t i;
    for (i = 0; i < 2; i++) {
        crossed[i] = must_plan();
        add(crossed[i], 1, 0, 1);
        solved(crossed[i]);
    }
    OK(gpumem_plan_share_from(crossed[0], crossed[0], NULL));
    solved(crossed[0]);
    run_threads(shares, 2);
    for (i = 0; i < 2; i++) OK(gpumem_plan_destroy(crossed[i]));
}

int main(void) {
    RUN(all_may_add_at_once);
    RUN(another_thread_cancels);
    RUN(a_time_limit_ends_a_search);
    RUN(it_is_destroyed_while_it_is_solved);
    RUN(the_process_forks_while_it_is_solved);
    RUN(calls_on_one_plan_take_turns);
    RUN(sharing_crosswise_does_not_hang);
    return 0;
}

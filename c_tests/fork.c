/* Children of a process that has started gpumem are refused; the parent goes on. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

static void a_child_is_refused_and_the_parent_goes_on(void) {
    void *p = gpumem_malloc(100000);
    gpumem_stream s = must_stream();
    pid_t child;
    fill(p, 100000, 1, s);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_stats stats;
        void *q = &stats;
        int n = -5;
        GPUMEM_INIT(&stats);
        CHECK(gpumem_malloc(10) == NULL);
        CHECK(gpumem_last_status() == GPUMEM_ERROR_FORKED);
        CHECK(gpumem_last_error(NULL, 0) > 0);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_malloc_async(10, s, &q));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_free_async(p, s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_realloc_async(p, 10, s, &q));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_record_stream(p, s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_memset_async(p, 0, 10, s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_memcpy(p, &n, sizeof n));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_stream_create(&s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_stream_sync(s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_stream_destroy(s));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_device_count_get(&n));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_device_sync());
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_stats_get(0, &stats));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_dump(0, NULL, 0, NULL));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_trim(0));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_validate());
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_init(NULL));
        CHECK(q == &stats && n == -5);
        gpumem_free(p); /* nothing */
        gpumem_free(p);
        CHECK(gpumem_version() > 0);
        exit(0); /* with the exit handlers */
    }
    CHECK(exit_code(child) == 0);
    CHECK(holds(p, 100000, 1, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* The end of a child that has lost its other threads: valgrind would count what those had as
 * lost, but not of another program. */
static void end_well(void) {
    execlp("true", "true", (char *)NULL);
    _exit(1);
}

static void *starts(void *unused) {
    gpumem_free(gpumem_malloc(MIB));
    return unused;
}

/* A child that is forked while another thread starts gpumem is told so, or may use it: it does not
 * wait for that thread, which it does not have. Each try is a process of its own. */
static void a_child_forked_during_the_start_does_not_wait(void) {
    long delay;
    for (delay = 0; delay < 600; delay += is_slow() ? 200 : 30) {
        pid_t process = fork();
        CHECK(process >= 0);
        if (process == 0) {
            struct timespec t;
            pthread_t thread;
            pid_t child;
            t.tv_sec = 0;
            t.tv_nsec = delay * 1000;
            CHECK(pthread_create(&thread, NULL, starts, NULL) == 0);
            nanosleep(&t, NULL);
            child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                void *p = NULL;
                gpumem_status s;
                alarm(60);
                s = gpumem_malloc_async(4096, NULL, &p);
                CHECK(s == GPUMEM_OK || s == GPUMEM_ERROR_FORKED);
                end_well();
            }
            CHECK(exit_code(child) == 0);
            CHECK(pthread_join(thread, NULL) == 0);
            end_well();
        }
        CHECK(exit_code(process) == 0);
    }
}

static void *initialises(void *unused) {
    gpumem_init(NULL);
    return unused;
}

/* The same while that thread waits for somebody to read what gpumem writes to stderr. */
static void a_child_forked_during_a_message_does_not_wait(void) {
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        static char block[65536];
        struct timespec t = {0, 50000000};
        int ends[2], stderr_before = dup(2);
        pthread_t thread;
        pid_t child;
        CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
        while (write(ends[1], block, sizeof block) > 0) {
        }
        CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && setenv("GPUMEM_NOT_A_SETTING", "1", 1) == 0);
        CHECK(dup2(ends[1], 2) == 2);
        CHECK(pthread_create(&thread, NULL, initialises, NULL) == 0);
        nanosleep(&t, NULL);
        CHECK(dup2(stderr_before, 2) == 2);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            gpumem_status s;
            alarm(60);
            CHECK(dup2(open("/dev/null", O_WRONLY), 2) == 2);
            s = gpumem_init(NULL);
            CHECK(s == GPUMEM_OK || s == GPUMEM_ERROR_FORKED);
            end_well();
        }
        CHECK(exit_code(child) == 0);
        CHECK(read(ends[0], block, sizeof block) > 0);
        CHECK(pthread_join(thread, NULL) == 0);
        end_well();
    }
    CHECK(exit_code(process) == 0);
}

/* A child made before gpumem starts may use it, and so may its parent. */
static void before_the_start_anybody_may(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *p = gpumem_malloc(1000);
        CHECK(p != NULL);
        fill(p, 1000, 7, NULL);
        gpumem_free(p);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main(void) {
    RUN(before_the_start_anybody_may);
    RUN(a_child_forked_during_the_start_does_not_wait);
    RUN(a_child_forked_during_a_message_does_not_wait);
    RUN(a_child_is_refused_and_the_parent_goes_on);
    RUN(a_child_is_refused_and_the_parent_goes_on);
    return 0;
}

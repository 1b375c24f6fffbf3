/* What gpumem writes by itself, to stderr or to a file, does not end the program by a signal. */
#include "harness.h"
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static int is_pending(int signal) {
    sigset_t pending;
    CHECK(sigpending(&pending) == 0);
    return sigismember(&pending, signal);
}

static void nobody_reads_stderr(void) {
    int ends[2], err = dup(2);
    CHECK(err >= 0 && pipe(ends) == 0);
    CHECK(dup2(ends[1], 2) == 2 && close(ends[0]) == 0 && close(ends[1]) == 0);
    /* Said on stderr. */
    gpumem_free(&err);
    CHECK(dup2(err, 2) == 2 && close(err) == 0);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
    CHECK(!is_pending(SIGPIPE));
}

static void a_file_may_grow_no_more(void) {
    struct rlimit before, small;
    char name[300];
    const char *dir = getenv("TMPDIR");
    snprintf(name, sizeof name, "%s/gpumem-signals-%ld", dir != NULL ? dir : "/tmp", (long)getpid());
    /* So that the device needs no more. */
    gpumem_free(gpumem_malloc(1000));
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 16;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(gpumem_snapshot(name) == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_record_start(name, 0) == GPUMEM_ERROR_INVALID);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(!is_pending(SIGXFSZ));
    /* What could not be written has left nothing behind. */
    CHECK(access(name, F_OK) != 0);
    OK(gpumem_validate());
}

int main(void) {
    RUN(nobody_reads_stderr);
    RUN(a_file_may_grow_no_more);
    return 0;
}

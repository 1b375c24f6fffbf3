/* What gpumem writes by itself, to stderr or to a file, does not end the program by a signal. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
    struct stat so_far;
    uint64_t events = 7, lost = 0;
    char name[300], text[1024];
    const char *dir = getenv("TMPDIR");
    snprintf(name, sizeof name, "%s/gpumem-signals-%ld", dir != NULL ? dir : "/tmp", (long)getpid());
    /* So that the device needs no more. */
    gpumem_free(gpumem_malloc(1000));
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 16;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK(gpumem_snapshot(name) == GPUMEM_ERROR_IO);
    CHECK(gpumem_record_start(name, 0) == GPUMEM_ERROR_IO);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    /* What could not be written has left nothing behind. */
    CHECK(access(name, F_OK) != 0);
    /* A recording that has begun. */
    OK(gpumem_record_start(name, 0));
    CHECK(stat(name, &so_far) == 0);
    small.rlim_cur = (rlim_t)so_far.st_size;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    gpumem_free(gpumem_malloc(1000));
    CHECK(gpumem_record_stop(&events, &lost) == GPUMEM_ERROR_IO);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(events == 0 && lost == 2);
    gpumem_last_error(text, sizeof text);
    CHECK(strstr(text, name) != NULL && strstr(text, "File too large") != NULL && strstr(text, "2 are lost") != NULL);
    CHECK(unlink(name) == 0);
    CHECK(!is_pending(SIGXFSZ));
    OK(gpumem_validate());
}

int main(void) {
    RUN(nobody_reads_stderr);
    RUN(a_file_may_grow_no_more);
    return 0;
}

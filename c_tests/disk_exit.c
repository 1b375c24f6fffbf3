/* A process that exits removes the files of what it had moved to a disk; what a killed one
 * leaves, the next one removes. */
#include "evict.h"
#include <pthread.h>
#include <signal.h>

enum { BYTES = 300000 };

static int files, folders, slots;

static void count(const char *path, int is_dir) {
    files += !is_dir;
    folders += is_dir;
    slots += !is_dir && is_slot(path);
}

static void look(void) {
    files = folders = slots = 0;
    walk(mount, count);
}

/* The guard and the user's folder, which all processes share. */
static int is_empty(void) {
    look();
    return files == 1 && folders == 1;
}

static void *on_disk(unsigned seed) {
    void *p = evictable(BYTES, 1, NULL);
    gpumem_move_options move = to(GPUMEM_TIER_DISK);
    fill(p, BYTES, seed, NULL);
    OK(gpumem_evict(p, &move, NULL));
    CHECK(is_in(p, GPUMEM_TIER_DISK));
    return p;
}

static void *moves_for_ever(void *p) {
    gpumem_move_options move = to(GPUMEM_TIER_DISK);
    while (gpumem_restore(p, NULL, NULL) == GPUMEM_OK && gpumem_evict(p, &move, NULL) == GPUMEM_OK) {
    }
    /* What goes on at the exit finds that there are no files any more, if anything. */
    if (gpumem_last_status() != GPUMEM_ERROR_SHUTTING_DOWN && gpumem_last_status() != GPUMEM_ERROR_IO) _exit(2);
    return NULL;
}

static void *kept;
static gpumem_stream stream;

/* Registered before gpumem was used: it still has its files. A GPU's driver may be gone by then. */
static void at_exit(void) {
    gpumem_status status = gpumem_restore(kept, NULL, NULL);
    if (status == GPUMEM_ERROR_SHUTTING_DOWN) return;
    if (status != GPUMEM_OK || !holds(kept, BYTES, 5, stream)) _exit(3);
}

enum how { BY_EXIT, BY_EXIT_WITH_A_HANDLER, BY_EXIT_OF_A_CHILD_TOO, BY_EXIT_WHILE_MOVING, BY_UNDERSCORE_EXIT, BY_SIGKILL };

static pid_t leave(enum how how) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        if (how == BY_EXIT_WITH_A_HANDLER) CHECK(atexit(at_exit) == 0);
        stream = must_stream();
        kept = on_disk(5);
        gpumem_free(on_disk(6));
        on_disk(7);
        look();
        CHECK(slots == 2);
        switch (how) {
        case BY_EXIT_OF_A_CHILD_TOO: {
            pid_t grandchild = fork();
            int code;
            CHECK(grandchild >= 0);
            if (grandchild == 0) exit(0);
            code = exit_code(grandchild);
            /* valgrind ends it with 97: what threads of the parent had is lost in a child. */
            CHECK(code == 0 || code == 97);
            OK(gpumem_restore(kept, NULL, NULL));
            CHECK(holds(kept, BYTES, 5, NULL));
            exit(0);
        }
        case BY_EXIT_WHILE_MOVING:
            CHECK(pthread_create(&thread, NULL, moves_for_ever, kept) == 0);
            exit(0);
        case BY_UNDERSCORE_EXIT: _exit(0);
        case BY_SIGKILL: raise(SIGKILL); break;
        default: exit(0);
        }
    }
    return child;
}

static void an_exit_leaves_nothing(void) {
    CHECK(exit_code(leave(BY_EXIT)) == 0);
    CHECK(is_empty());
}

static void exit_handlers_come_first(void) {
    CHECK(exit_code(leave(BY_EXIT_WITH_A_HANDLER)) == 0);
    CHECK(is_empty());
}

static void a_forked_child_leaves_the_files_alone(void) {
    if (getenv("GPUMEM_TEST_SANITIZER") != NULL) {
        printf("skipped: when a child ends, compute-sanitizer waits for a thread of its own that only the parent has\n");
        return;
    }
    CHECK(exit_code(leave(BY_EXIT_OF_A_CHILD_TOO)) == 0);
    CHECK(is_empty());
}

static void an_exit_while_something_moves_is_clean(void) {
    int i;
    for (i = 0; i < rounds(5); i++) CHECK(exit_code(leave(BY_EXIT_WHILE_MOVING)) == 0);
    /* Whatever was made at the last moment goes with the next, which is that of the next test
     * where all is slow. */
    if (is_slow()) return;
    CHECK(exit_code(leave(BY_EXIT)) == 0);
    CHECK(is_empty());
}

static void what_others_leave_goes_with_the_next(void) {
    int status = 0;
    CHECK(waitpid(leave(BY_SIGKILL), &status, 0) > 0 && WIFSIGNALED(status));
    look();
    CHECK(slots == 2);
    CHECK(exit_code(leave(BY_UNDERSCORE_EXIT)) == 0);
    look();
    CHECK(slots == 2);
    CHECK(exit_code(leave(BY_EXIT)) == 0);
    CHECK(is_empty());
}

int main(void) {
    CHECK(mkdtemp(mount) != NULL);
    setenv("GPUMEM_DISK", mount, 1);
    setenv("GPUMEM_PINNED_BLOCKS", "1M,16,1", 1);
    if (!is_slow()) RUN(an_exit_leaves_nothing); /* the last test ends with the same */
    RUN(exit_handlers_come_first);
    RUN(a_forked_child_leaves_the_files_alone);
    RUN(an_exit_while_something_moves_is_clean);
    RUN(what_others_leave_goes_with_the_next);
    clean_up();
    return 0;
}

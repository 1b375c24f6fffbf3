/* Late uses of what arenas have freed are found: with a planted one, with none, and with the
 * detector off. */
#include "harness.h"
#include <signal.h>

/* ---- running a piece of a program with settings of its own ----------------------------------- */

static char said[1 << 16]; /* what the last child wrote to stderr */

/* Runs work in a child that starts gpumem with these settings; gives its exit code as exit_code
 * does. */
static int with(const char *debug, const char *quarantine, void (*work)(void)) {
    int pipes[2];
    size_t have = 0;
    ssize_t got;
    pid_t child;
    fflush(NULL);
    CHECK(pipe(pipes) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(pipes[1], 2) == 2);
        close(pipes[0]);
        close(pipes[1]);
        if (debug != NULL) CHECK(setenv("GPUMEM_ARENA_DEBUG", debug, 1) == 0);
        if (quarantine != NULL) CHECK(setenv("GPUMEM_ARENA_QUARANTINE", quarantine, 1) == 0);
        work();
        exit(0);
    }
    close(pipes[1]);
    while ((got = read(pipes[0], said + have, sizeof said - 1 - have)) > 0) have += (size_t)got;
    said[have] = 0;
    close(pipes[0]);
    return exit_code(child);
}

static int child_said(const char *part) { return strstr(said, part) != NULL; }

#define RUNS_CLEAN(debug, quarantine, work)                                                                            \
    do {                                                                                                               \
        if (with(debug, quarantine, work) != 0) {                                                                      \
            fprintf(stderr, "%s", said);                                                                               \
            CHECK(!"the child failed");                                                                                \
        }                                                                                                              \
    } while (0)

/* ---- the planted use, and the valid one ------------------------------------------------------ */

static gpumem_stream s;
static void *stale, *kept;
static uint64_t stale_id;
enum { BYTES = 4096 };

/* One step that keeps one of its two buffers. */
static void step(void) {
    gpumem_arena arena = NULL;
    s = must_stream();
    OK(gpumem_arena_enter_named("step", &arena));
    stale = must_malloc_async(BYTES, s);
    kept = must_malloc_async(BYTES, s);
    OK(gpumem_memset_async(stale, 1, BYTES, s));
    OK(gpumem_memset_async(kept, 2, BYTES, s));
    OK(gpumem_allocation_id_get(stale, &stale_id));
    OK(gpumem_check(stale, "add", "lhs"));
    OK(gpumem_arena_exit(arena, &kept, 1, NULL));
}

static gpumem_arena_debug_stats found_now(void) {
    gpumem_arena_debug_stats stats;
    GPUMEM_INIT(&stats);
    OK(gpumem_arena_debug_stats_get(&stats));
    return stats;
}

static void end(void) {
    gpumem_free(kept);
    OK(gpumem_trim(0));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void planted_use(void) {
    step();
    gpumem_check(stale, "add", "lhs");
    end();
}

static void valid_promotion(void) {
    step();
    OK(gpumem_check(kept, "add", "lhs"));
    OK(gpumem_check((char *)kept + BYTES - 1, "add", "lhs"));
    CHECK(holds_byte(kept, BYTES, 2, s));
    end();
}

static void planted_use_is_an_error(void) {
    char want[256], text[300];
    size_t needed = 0;
    step();
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check(stale, "add", "lhs"));
    CHECK(error_says("use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena 1 \"step\", "));
    snprintf(want, sizeof want, "allocation %" PRIu64 " of %d bytes)", stale_id, BYTES);
    CHECK(error_says(want));
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check((char *)stale + BYTES - 1, NULL, NULL));
    CHECK(error_says("use-after-arena-free: ? ? was reclaimed"));
    OK(gpumem_check(kept, "add", "rhs"));
    OK(gpumem_check(NULL, "add", "rhs"));
    OK(gpumem_check_id(NULL, stale_id, "add", "rhs"));
    OK(gpumem_check(&needed, "add", "rhs"));
    OK(gpumem_arena_verify());

    OK(gpumem_arena_describe((char *)stale + 16, NULL, 0, &needed));
    CHECK(needed > 40 && needed < sizeof text);
    OK(gpumem_arena_describe((char *)stale + 16, text, sizeof text, NULL));
    CHECK(strlen(text) + 1 == needed && strstr(text, "is 16 bytes into allocation") != NULL);
    CHECK(strstr(text, "(4096 bytes) of arena 1 \"step\", reclaimed by arena_exit at depth 0") != NULL);
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_describe(kept, text, sizeof text, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_describe(stale, NULL, 1, NULL));
    CHECK(found_now().stale_uses == 2 && found_now().remembered == 1);
    CHECK(found_now().mode == GPUMEM_ARENA_DEBUG_CHECK);
    end();
}

static void an_address_that_lives_again(void) {
    uint64_t id = 0;
    void *again;
    step();
    again = must_malloc_async(BYTES, s);
    CHECK(again == stale);
    OK(gpumem_check(again, "add", "lhs"));
    OK(gpumem_allocation_id_get(again, &id));
    OK(gpumem_check_id(again, id, "add", "lhs"));
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check_id(again, stale_id, "add", "lhs"));
    CHECK(error_says("use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0"));
    gpumem_free(again);
    OK(gpumem_check(again, "add", "lhs"));
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_check_id(again, id, "add", "lhs"));
    CHECK(error_says("use-after-free: add lhs is allocation"));
    end();
}

static void off(void) {
    char text[8];
    step();
    OK(gpumem_check(stale, "add", "lhs"));
    OK(gpumem_check_id(stale, stale_id, "add", "lhs"));
    OK(gpumem_arena_verify());
    CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_arena_describe(stale, text, sizeof text, NULL));
    CHECK(found_now().mode == GPUMEM_ARENA_DEBUG_OFF && found_now().remembered == 0);
    end();
}

static void by_options(void) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.arena_debug = GPUMEM_ARENA_DEBUG_ABORT;
    options.log = GPUMEM_LOG_NOTHING;
    OK(gpumem_init(&options));
    planted_use();
}

/* The message of the planted use. */
#define MESSAGE "use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0"

static void a_planted_use_with_abort_ends_the_process_with_the_message(void) {
    CHECK(with("abort", NULL, planted_use) == 1000 + SIGABRT);
    CHECK(child_said(MESSAGE));
    if (is_slow()) return;
    CHECK(with("poison,abort", NULL, planted_use) == 1000 + SIGABRT);
    CHECK(child_said(MESSAGE));
    CHECK(with("unmap,abort", NULL, planted_use) == 1000 + SIGABRT);
    CHECK(child_said(MESSAGE));
    CHECK(with(NULL, NULL, by_options) == 1000 + SIGABRT);
    CHECK(child_said(MESSAGE));
}

static void a_planted_use_with_check_is_an_error_and_a_line(void) {
    RUNS_CLEAN("1", NULL, planted_use_is_an_error);
    CHECK(child_said(MESSAGE));
    RUNS_CLEAN("check", NULL, an_address_that_lives_again);
}

static void a_valid_promotion_is_silent_in_every_mode(void) {
    static const char *const modes[] = {"off", "1", "abort", "poison", "unmap", "poison,abort", "unmap,abort"};
    size_t i;
    for (i = 0; i < sizeof modes / sizeof *modes; i++) {
        RUNS_CLEAN(modes[i], NULL, valid_promotion);
        CHECK(!child_said("use-after") && !child_said("stale"));
    }
}

static void off_the_planted_use_runs_clean(void) {
    RUNS_CLEAN(NULL, NULL, off);
    CHECK(!child_said("use-after"));
    if (is_slow()) return;
    RUNS_CLEAN("off", NULL, off);
    CHECK(!child_said("use-after"));
}

/* ---- poison ---------------------------------------------------------------------------------- */

static void stale_write(void) {
    step();
    CHECK(found_now().kept == 1 && found_now().kept_bytes >= BYTES);
    OK(gpumem_arena_verify());
    CHECK(holds_byte(stale, BYTES, 0xff, s));
    OK(gpumem_memset_async((char *)stale + 100, 7, 16, s));
    CHECK_STATUS(GPUMEM_ERROR_USE_AFTER_FREE, gpumem_arena_verify());
    CHECK(error_says("stale write after arena_exit: 16 bytes from offset 100 of allocation "));
    CHECK(error_says("(4096 bytes) of arena 1 \"step\", reclaimed by arena_exit at depth 0"));
    OK(gpumem_arena_verify());
    /* Found also without asking, when the memory is wanted again. */
    OK(gpumem_memset_async((char *)stale + BYTES - 1, 7, 1, s));
    end();
    CHECK(found_now().stale_writes == 2 && found_now().kept == 0);
}

static void a_stale_write(void) {
    step();
    OK(gpumem_memset_async(stale, 7, 1, s));
    gpumem_arena_verify();
    end();
}

/* What is kept of ended arenas: less than the steps of many_steps free, which are fewer where
 * everything is slow. */
static const char *some_of_it(void) { return is_slow() ? "1M" : "8M"; }

static void many_steps(void) {
    size_t most = (is_slow() ? 1 : 8) * MIB, large = is_slow() ? MIB / 4 : MIB;
    int i;
    for (i = 0; i < (is_slow() ? 5 : 16); i++) {
        gpumem_arena arena = NULL;
        gpumem_stream t = must_stream();
        OK(gpumem_arena_enter(&arena));
        OK(gpumem_memset_async(must_malloc_async(100, t), 1, 100, t));
        OK(gpumem_memset_async(must_malloc_async(100 * KIB, t), 1, 100 * KIB, t));
        OK(gpumem_memset_async(must_malloc_async(large, t), 1, large, t));
        OK(gpumem_arena_exit(arena, NULL, 0, NULL));
        OK(gpumem_stream_destroy(t));
        CHECK(found_now().kept_bytes <= most);
    }
    OK(gpumem_arena_verify());
    CHECK(found_now().stale_writes == 0 && found_now().unchecked == 0 && found_now().kept > 0);
    OK(gpumem_trim(0));
    nothing_left();
    CHECK(found_now().kept == 0 && found_now().kept_bytes == 0);
}

/* More than there is, unless what is kept of ended arenas is given up. */
static void short_of_memory(void) {
    int i;
    OK(gpumem_device_limit_set(0, (is_slow() ? 2 : 8) * MIB));
    for (i = 0; i < 3; i++) {
        gpumem_arena arena = NULL;
        OK(gpumem_arena_enter(&arena));
        must_malloc_async((is_slow() ? 1 : 5) * MIB + KIB, NULL);
        OK(gpumem_arena_exit(arena, NULL, 0, NULL));
    }
    OK(gpumem_trim(0));
    nothing_left();
}

static void a_stale_write_to_poisoned_memory_is_reported(void) {
    RUNS_CLEAN("poison", NULL, stale_write);
    CHECK(child_said("stale write after arena_exit: 16 bytes from offset 100"));
    CHECK(child_said("stale write after arena_exit: 1 bytes from offset 4095"));
    CHECK(with("poison,abort", NULL, a_stale_write) == 1000 + SIGABRT);
    CHECK(child_said("stale write after arena_exit: 1 bytes from offset 0"));
    RUNS_CLEAN("off", NULL, a_stale_write);
    RUNS_CLEAN("1", NULL, a_stale_write);
}

static void a_clean_run_with_poison_is_clean_and_bounded(void) {
    RUNS_CLEAN("poison,abort", some_of_it(), many_steps);
    RUNS_CLEAN("poison,abort", NULL, short_of_memory);
}

/* ---- unmap ----------------------------------------------------------------------------------- */

static void stale_memset(void) {
    void *p;
    step();
    CHECK(gpumem_memset_async(stale, 7, 16, s) != GPUMEM_OK);
    CHECK(error_says("is in memory reclaimed by arena_exit at depth 0 (arena 1 \"step\", allocation "));
    CHECK(gpumem_memset_async((char *)stale + BYTES - 1, 7, 1, s) != GPUMEM_OK);
    CHECK(gpumem_memcpy_async(kept, stale, 16, s) != GPUMEM_OK);
    CHECK(error_says("is in memory reclaimed by arena_exit at depth 0"));
    CHECK(gpumem_memcpy_async(stale, kept, 16, s) != GPUMEM_OK);
    CHECK(holds_byte(kept, BYTES, 2, s));
    /* Nobody gets the address. */
    p = must_malloc_async(BYTES, s);
    CHECK(p != stale);
    gpumem_free(p);
    CHECK_STATUS(GPUMEM_ERROR_DOUBLE_FREE, gpumem_free_async(stale, s));
    CHECK(found_now().kept == 1);
    end();
    CHECK(found_now().kept == 0);
}

/* Addresses are plentiful, and even so there is an end to what is kept. */
static void many_unmapped(void) {
    gpumem_stream t = must_stream();
    int i, j;
    for (i = 0; i < (is_slow() ? 5 : 20); i++) {
        gpumem_arena arena = NULL;
        OK(gpumem_arena_enter(&arena));
        for (j = 0; j < 5; j++) OK(gpumem_memset_async(must_malloc_async(1000, t), 1, 1000, t));
        must_malloc_async(20 * MIB, t);
        OK(gpumem_arena_exit(arena, NULL, 0, NULL));
        CHECK(found_now().kept_bytes <= 64 * MIB);
        CHECK(stats_now().mapped == 0);
    }
    CHECK(found_now().unchecked == 0 && found_now().kept > 0);
    OK(gpumem_validate());
    OK(gpumem_trim(0));
    nothing_left();
    CHECK(found_now().kept == 0);
    OK(gpumem_stream_destroy(t));
}

static void resized_in_an_arena(void) {
    gpumem_arena arena = NULL;
    void *p, *q = NULL;
    gpumem_pointer_info info;
    s = must_stream();
    OK(gpumem_arena_enter(&arena));
    p = must_malloc_async(1000, s);
    fill(p, 1000, 3, s);
    GPUMEM_INIT(&info);
    OK(gpumem_pointer_info_get(p, &info));
    CHECK(info.flags == 0 && info.requested == 1000);
    OK(gpumem_realloc_async(p, 5 * MIB, s, &q));
    CHECK(holds(q, 1000, 3, s));
    OK(gpumem_arena_exit(arena, NULL, 0, NULL));
    CHECK(gpumem_memset_async(q, 7, 16, s) != GPUMEM_OK);
    CHECK(error_says("allocation") && error_says("of 5242880 bytes"));
    kept = NULL;
    end();
}

static void a_late_use_of_unmapped_memory_is_refused_and_named(void) {
    RUNS_CLEAN("unmap", NULL, stale_memset);
    RUNS_CLEAN("unmap", NULL, resized_in_an_arena);
}

static void unmapped_memory_is_given_back_and_its_addresses_in_the_end(void) {
    RUNS_CLEAN("unmap,abort", "64M", many_unmapped);
    RUNS_CLEAN("unmap,abort", NULL, short_of_memory);
    RUNS_CLEAN("unmap", "0", valid_promotion);
}

/* ---- odd places ------------------------------------------------------------------------------ */

static void in_a_fork(void) {
    pid_t child;
    step();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_check(stale, "add", "lhs"));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_verify());
        _exit(0);
    }
    CHECK(exit_code(child) == 0);
    end();
}

static void before_the_start(void) {
    OK(gpumem_check(&s, "add", "lhs"));
    OK(gpumem_check_id(&s, 1, "add", "lhs"));
    OK(gpumem_arena_verify());
}

static void a_forked_child_is_told(void) { RUNS_CLEAN("poison", NULL, in_a_fork); }
static void before_the_start_there_is_nothing_to_find(void) { RUNS_CLEAN("1", NULL, before_the_start); }

/* ---- several in one process ------------------------------------------------------------------ */

/*
 * Where everything is slow, most of it is the start of a process. So there what has the same
 * settings shares one, and each first asserts what only a fresh process has.
 */

static void all_with_check(void) {
    before_the_start();
    planted_use_is_an_error();
    an_address_that_lives_again();
    valid_promotion();
}

static void all_with_poison(void) {
    stale_write();
    in_a_fork();
}

static void all_clean_with_poison_and_abort(void) {
    valid_promotion();
    many_steps();
    short_of_memory();
}

static void all_with_unmap(void) {
    stale_memset();
    resized_in_an_arena();
}

static void all_clean_with_unmap_and_abort(void) {
    valid_promotion();
    many_unmapped();
    short_of_memory();
}

static void check_in_one_process(void) {
    RUNS_CLEAN("1", NULL, all_with_check);
    CHECK(child_said(MESSAGE));
}

static void poison_in_one_process(void) {
    RUNS_CLEAN("poison", NULL, all_with_poison);
    CHECK(child_said("stale write after arena_exit: 16 bytes from offset 100"));
    CHECK(child_said("stale write after arena_exit: 1 bytes from offset 4095"));
    RUNS_CLEAN("poison,abort", some_of_it(), all_clean_with_poison_and_abort);
    CHECK(!child_said("use-after") && !child_said("stale"));
    CHECK(with("poison,abort", NULL, a_stale_write) == 1000 + SIGABRT);
    CHECK(child_said("stale write after arena_exit: 1 bytes from offset 0"));
}

static void unmap_in_one_process(void) {
    RUNS_CLEAN("unmap", NULL, all_with_unmap);
    RUNS_CLEAN("unmap,abort", "64M", all_clean_with_unmap_and_abort);
    CHECK(!child_said("use-after") && !child_said("stale"));
}

int main(void) {
    RUN(a_planted_use_with_abort_ends_the_process_with_the_message);
    RUN(off_the_planted_use_runs_clean);
    if (is_slow()) {
        RUN(check_in_one_process);
        RUN(poison_in_one_process);
        RUN(unmap_in_one_process);
        return 0;
    }
    RUN(a_planted_use_with_check_is_an_error_and_a_line);
    RUN(a_valid_promotion_is_silent_in_every_mode);
    RUN(a_stale_write_to_poisoned_memory_is_reported);
    RUN(a_clean_run_with_poison_is_clean_and_bounded);
    RUN(a_late_use_of_unmapped_memory_is_refused_and_named);
    RUN(unmapped_memory_is_given_back_and_its_addresses_in_the_end);
    RUN(a_forked_child_is_told);
    RUN(before_the_start_there_is_nothing_to_find);
    return 0;
}

/* The settings in force can be read, and mean the same in the environment and in options. */
#include "harness.h"

static int in_child(void (*work)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work();
        exit(0);
    }
    return exit_code(child);
}

static gpumem_context_options in_force(void) {
    gpumem_context_options now;
    GPUMEM_INIT(&now);
    OK(gpumem_settings_get(&now));
    CHECK(now.size == sizeof now);
    return now;
}

static void from_the_environment(void) {
    gpumem_context_options now;
    setenv("GPUMEM_LOG", "2", 1);
    setenv("GPUMEM_REUSE", "settled", 1);
    setenv("GPUMEM_LIMIT", "1G", 1);
    setenv("GPUMEM_DISK", "/tmp=1G;/var/tmp", 1);
    now = in_force();
    CHECK(now.log == 2 && now.log == GPUMEM_LOG_DECISIONS);
    CHECK(now.reuse == GPUMEM_REUSE_SETTLED && now.limit_bytes == 1024 * MIB && now.limit_percent == 0);
    CHECK(strcmp(now.disk, "/tmp=1G;/var/tmp") == 0);
    CHECK(now.pool == GPUMEM_POOL_ON && now.mover == GPUMEM_MOVER_ON && now.host_mode == GPUMEM_HOST_MODE_EAGER);
    CHECK(now.arena_debug == GPUMEM_ARENA_DEBUG_OFF && now.pinned_chunks == 4);
    CHECK(now.downgrade_trigger > 0.849 && now.downgrade_trigger < 0.851);
}

static void from_options(void) {
    gpumem_context_options options, now;
    GPUMEM_INIT(&options);
    options.log = 2;
    options.limit_percent = 30;
    options.host_seed = 5;
    options.pinned_chunks = GPUMEM_PINNED_CHUNKS_NONE;
    OK(gpumem_init(&options));
    now = in_force();
    CHECK(now.log == 2 && now.limit_percent == 30 && now.limit_bytes == 0);
    CHECK(now.host_seed == 5 && now.host_mode == GPUMEM_HOST_MODE_SIMULATE);
    CHECK(now.pinned_chunks == GPUMEM_PINNED_CHUNKS_NONE && now.disk == NULL);
}

static void with_nothing_to_say(void) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.log = GPUMEM_LOG_NOTHING;
    OK(gpumem_init(&options));
    CHECK(in_force().log == GPUMEM_LOG_NOTHING);
}

static void what_is_in_force_can_be_given_again(void) {
    gpumem_context_options now;
    pid_t child;
    int fds[2];
    CHECK(pipe(fds) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("GPUMEM_PREALLOC", "10%", 1);
        setenv("GPUMEM_ARENA_DEBUG", "check,abort", 1);
        now = in_force();
        CHECK(write(fds[1], &now, sizeof now) == (ssize_t)sizeof now);
        _exit(0);
    }
    CHECK(exit_code(child) == 0);
    CHECK(read(fds[0], &now, sizeof now) == (ssize_t)sizeof now);
    CHECK(now.prealloc_percent == 10);
    CHECK(now.arena_debug == (GPUMEM_ARENA_DEBUG_CHECK | GPUMEM_ARENA_DEBUG_ABORT));
    OK(gpumem_init(&now));
    {
        gpumem_context_options again = in_force();
        CHECK(memcmp(&again, &now, sizeof now) == 0);
    }
}

static void bad_calls(void) {
    gpumem_context_options now;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_settings_get(NULL));
    memset(&now, 0, sizeof now);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_settings_get(&now));
}

static void each_in_a_process_of_its_own(void) {
    CHECK(in_child(from_the_environment) == 0);
    CHECK(in_child(from_options) == 0);
    CHECK(in_child(with_nothing_to_say) == 0);
    CHECK(in_child(what_is_in_force_can_be_given_again) == 0);
    CHECK(in_child(bad_calls) == 0);
}

int main(void) {
    RUN(each_in_a_process_of_its_own);
    return 0;
}

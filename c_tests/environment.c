/* A setting that does not parse is an error that names it, from every call, and nothing is stuck
 * afterwards. */
#include "harness.h"

static const struct {
    const char *variable, *value;
} bad[] = {
    {"GPUMEM_BACKEND", "gpu"},         {"GPUMEM_VA_SIZE", "huge"},   {"GPUMEM_VA_SIZE", "-1"},
    {"GPUMEM_PAGE_SIZE", "3M"},        {"GPUMEM_PREALLOC", "120%"},  {"GPUMEM_LIMIT", "1.5.2G"},
    {"GPUMEM_REUSE", "often"},         {"GPUMEM_LOG", "loud"},       {"GPUMEM_POOL", "maybe"},
    {"GPUMEM_TRIM_THRESHOLD", "99999999999T"}, {"GPUMEM_LIMIT", ""}, {"GPUMEM_HOST_DEVICES", "0"},
    {"GPUMEM_ARENA_DEBUG", "poison,unmap"}, {"GPUMEM_ARENA_QUARANTINE", "much"},
};

static void bad_values_are_named(void) {
    size_t i;
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            void *p = &p;
            int n = -5;
            const char *old = getenv(bad[i].variable);
            char *good = old == NULL ? NULL : strdup(old);
            setenv(bad[i].variable, bad[i].value, 1);
            CHECK_STATUS(GPUMEM_ERROR_CONFIG, gpumem_malloc_async(1, NULL, &p));
            CHECK(p == &p);
            CHECK(error_says(bad[i].variable) && error_says(bad[i].value));
            CHECK(gpumem_malloc(1) == NULL && gpumem_last_status() == GPUMEM_ERROR_CONFIG);
            CHECK_STATUS(GPUMEM_ERROR_CONFIG, gpumem_device_count_get(&n));
            CHECK_STATUS(GPUMEM_ERROR_CONFIG, gpumem_init(NULL));
            CHECK(strcmp(gpumem_backend_name(), "none") == 0);
            unsetenv(bad[i].variable);
            if (good != NULL) setenv(bad[i].variable, good, 1);
            free(good);
            OK(gpumem_device_count_get(&n)); /* mended */
            CHECK(n >= 1);
            exit(0);
        }
        CHECK(exit_code(child) == 0);
        printf("   %s=%s\n", bad[i].variable, bad[i].value);
    }
}

static void a_limit_from_the_environment_holds(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *p = NULL;
        setenv("GPUMEM_LIMIT", "64M", 1);
        CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(65 * MIB, NULL, &p));
        p = must_malloc_async(32 * MIB, NULL);
        gpumem_free(p);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

static void a_missing_driver_is_said(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int n = -5;
        setenv("GPUMEM_BACKEND", "cuda", 1);
        if (gpumem_device_count_get(&n) == GPUMEM_OK) {
            printf("   skipped: there is a CUDA device\n");
            fflush(stdout);
            _exit(0);
        }
        CHECK(gpumem_last_status() == GPUMEM_ERROR_NO_DEVICE || gpumem_last_status() == GPUMEM_ERROR_DRIVER);
        CHECK(n == -5);
        CHECK(gpumem_last_error(NULL, 0) > 20);
        setenv("GPUMEM_BACKEND", "host", 1);
        OK(gpumem_device_count_get(&n));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main(void) {
    RUN(bad_values_are_named);
    RUN(a_limit_from_the_environment_holds);
    RUN(a_missing_driver_is_said);
    return 0;
}

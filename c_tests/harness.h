/*
 * A small harness for tests in C: one program per file, a line per test, the first failure ends the
 * program.
 *
 * Everything goes through gpumem's own helpers, so the same programs run on a GPU and on the host
 * device; device memory is never touched by the host. The sources compile as C99 and as C++17.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <gpumem.h>
#include <gpumem/sim.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static const char *harness_test = "(no test)";

static inline void harness_fail(const char *file, int line, const char *what) {
    char text[1024];
    gpumem_last_error(text, sizeof text);
    fprintf(stderr, "FAILED %s at %s:%d: %s\n  last error: %s: %s\n", harness_test, file, line, what,
            gpumem_status_name(gpumem_last_status()), text);
    fflush(NULL);
    _exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : harness_fail(__FILE__, __LINE__, #condition))

static inline void harness_status(const char *file, int line, const char *call, gpumem_status want, gpumem_status got) {
    if (want != got) {
        char what[512];
        snprintf(what, sizeof what, "%s gave %s, not %s", call, gpumem_status_name(got), gpumem_status_name(want));
        harness_fail(file, line, what);
    }
}

#define CHECK_STATUS(want, call) harness_status(__FILE__, __LINE__, #call, (want), (call))
#define OK(call) CHECK_STATUS(GPUMEM_OK, call)

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        harness_test = #test;                                                                                          \
        test();                                                                                                        \
        printf("ok %s\n", #test);                                                                                      \
        fflush(stdout);                                                                                                \
    } while (0)

/* Whether it runs many times slower than otherwise: under valgrind or AddressSanitizer, which
 * get small processes. */
static inline int is_slow(void) { return getenv("GPUMEM_VA_SIZE") != NULL; }

/* How often a loop of so many rounds goes round: less often where that is slow. */
static inline int rounds(int all) { return is_slow() ? (all + 19) / 20 : all; }

static inline int on_host_device(void) { return strcmp(gpumem_backend_name(), "host") == 0; }

/* The last error's text holds this. */
static inline int error_says(const char *part) {
    char text[1024];
    gpumem_last_error(text, sizeof text);
    return strstr(text, part) != NULL;
}

/* Patterns repeat after a prime number of bytes, so that no multiple of a page or block looks
 * like another. */
enum { PATTERN_BYTES = 16381 };
static unsigned char pattern_twice[2 * PATTERN_BYTES];

__attribute__((constructor)) static void pattern_make(void) {
    uint32_t x = 1;
    size_t i;
    for (i = 0; i < PATTERN_BYTES; i++) {
        x = x * 1664525u + 1013904223u;
        pattern_twice[i] = pattern_twice[PATTERN_BYTES + i] = (unsigned char)(x >> 24);
    }
}

/* One turn of the pattern with this seed. */
static inline const unsigned char *pattern(unsigned seed) { return pattern_twice + seed * 7919u % PATTERN_BYTES; }

static inline size_t pattern_part(size_t left) { return left < PATTERN_BYTES ? left : (size_t)PATTERN_BYTES; }

/* Writes the pattern with this seed to host memory. */
static inline void paint(void *p, size_t bytes, unsigned seed) {
    size_t i;
    for (i = 0; i < bytes; i += PATTERN_BYTES) memcpy((char *)p + i, pattern(seed), pattern_part(bytes - i));
}

/* Whether host memory holds the pattern with this seed. */
static inline int painted(const void *p, size_t bytes, unsigned seed) {
    size_t i;
    for (i = 0; i < bytes; i += PATTERN_BYTES) {
        if (memcmp((const char *)p + i, pattern(seed), pattern_part(bytes - i)) != 0) return 0;
    }
    return 1;
}

/* Writes a pattern to device memory in the order of a stream, and waits until it is there. */
static inline void fill(void *device_memory, size_t bytes, unsigned seed, gpumem_stream s) {
    unsigned char *host = (unsigned char *)malloc(bytes + 1);
    CHECK(host != NULL);
    paint(host, bytes, seed);
    OK(gpumem_memcpy_async(device_memory, host, bytes, s));
    OK(gpumem_stream_sync(s));
    free(host);
}

/* What device memory holds, read in the order of a stream, one byte longer; to be freed. Waits. */
static inline unsigned char *read_back(const void *device_memory, size_t bytes, int before, gpumem_stream s) {
    unsigned char *host = (unsigned char *)malloc(bytes + 1);
    CHECK(host != NULL);
    memset(host, before, bytes + 1);
    OK(gpumem_memcpy_async(host, device_memory, bytes, s));
    OK(gpumem_stream_sync(s));
    return host;
}

/* Whether device memory holds a pattern, read in the order of a stream. Waits. */
static inline int holds(const void *device_memory, size_t bytes, unsigned seed, gpumem_stream s) {
    unsigned char *host = read_back(device_memory, bytes, 0, s);
    int same = painted(host, bytes, seed);
    free(host);
    return same;
}

/* Whether device memory holds one byte throughout, read in the order of a stream. Waits. */
static inline int holds_byte(const void *device_memory, size_t bytes, unsigned char value, gpumem_stream s) {
    unsigned char *host = read_back(device_memory, bytes, ~value, s);
    int same = bytes == 0 || (host[0] == value && memcmp(host, host + 1, bytes - 1) == 0);
    free(host);
    return same;
}

static inline gpumem_space space_at(int32_t tier, uint32_t id) {
    gpumem_space space;
    space.tier = tier;
    space.id = id;
    return space;
}

static inline gpumem_stats stats_now(void) {
    gpumem_stats stats;
    int device = 0;
    GPUMEM_INIT(&stats);
    OK(gpumem_device_get(&device));
    OK(gpumem_stats_get(device, &stats));
    return stats;
}

static inline void *must_malloc_async(size_t bytes, gpumem_stream s) {
    void *p = NULL;
    OK(gpumem_malloc_async(bytes, s, &p));
    CHECK(p != NULL);
    return p;
}

static inline gpumem_stream must_stream(void) {
    gpumem_stream s = NULL;
    OK(gpumem_stream_create(&s));
    CHECK(s != NULL);
    return s;
}

/* Every test leaves nothing behind and a sound state. */
static inline void nothing_left(void) {
    OK(gpumem_device_sync());
    CHECK(stats_now().allocations == 0);
    CHECK(stats_now().requested == 0);
    OK(gpumem_validate());
}

/* Waits for a child and gives its exit code, or 1000 and its signal. */
static inline int exit_code(pid_t child) {
    int status = 0;
    pid_t got;
    do {
        got = waitpid(child, &status, 0);
    } while (got < 0 && errno == EINTR);
    CHECK(got == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif

/* Statistics, dumps, limits and trimming. */
#include "harness.h"

static void statistics_add_up(void) {
    gpumem_stats before = stats_now(), now;
    void *p = gpumem_malloc(10 * MIB), *q = gpumem_malloc(100);
    now = stats_now();
    CHECK(now.size == sizeof now);
    CHECK(now.requested == before.requested + 10 * MIB + 100);
    CHECK(now.allocations == before.allocations + 2);
    CHECK(now.mallocs == before.mallocs + 2);
    CHECK(now.live >= now.requested);
    CHECK(now.mapped >= now.live);
    CHECK(now.peak_mapped >= now.mapped);
    CHECK(now.peak_live >= now.live);
    CHECK(now.reserved >= now.mapped);
    gpumem_free(p);
    gpumem_free(q);
    now = stats_now();
    CHECK(now.requested == before.requested);
    CHECK(now.allocations == before.allocations);
    CHECK(now.frees == before.frees + 2);
    CHECK(now.peak_live >= 10 * MIB);
}

static void peaks_can_be_reset(void) {
    int device = 0;
    void *p = gpumem_malloc(20 * MIB);
    CHECK(stats_now().peak_live >= 20 * MIB);
    gpumem_free(p);
    OK(gpumem_device_sync());
    CHECK(stats_now().peak_live >= 20 * MIB);
    OK(gpumem_trim(0));
    OK(gpumem_device_get(&device));
    OK(gpumem_stats_reset_peak(device));
    CHECK(stats_now().peak_live < 20 * MIB);
    CHECK(stats_now().peak_mapped == stats_now().mapped);
}

static void trim_gives_free_memory_back(void) {
    void *keep = gpumem_malloc(1 * MIB), *p = gpumem_malloc(64 * MIB);
    fill(keep, 1 * MIB, 8, NULL);
    CHECK(stats_now().mapped >= 65 * MIB);
    gpumem_free(p);
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    CHECK(stats_now().mapped < 64 * MIB);
    CHECK(holds(keep, 1 * MIB, 8, NULL));
    OK(gpumem_validate());
    gpumem_free(keep);
    nothing_left();
}

static void older_programs_get_what_they_know(void) {
    gpumem_stats stats;
    memset(&stats, 0x5a, sizeof stats);
    stats.size = 208; /* the first version */
    OK(gpumem_stats_get(0, &stats));
    CHECK(stats.size == 208);
}

static void newer_programs_get_zeros_for_what_the_library_lacks(void) {
    struct {
        gpumem_stats known;
        uint64_t unknown[4];
    } future;
    memset(&future, 0x5a, sizeof future);
    future.known.size = sizeof future;
    OK(gpumem_stats_get(0, &future.known));
    CHECK(future.known.size == sizeof(gpumem_stats));
    CHECK(future.unknown[0] == 0 && future.unknown[3] == 0);
}

static void dumps_list_regions(void) {
    size_t needed = 0, again = 0;
    char *text, small[8];
    void *p = gpumem_malloc(3 * MIB);
    OK(gpumem_dump(0, NULL, 0, &needed));
    CHECK(needed > 1);
    text = (char *)malloc(needed + 4096);
    CHECK(text != NULL);
    memset(text, 'x', needed + 4096);
    OK(gpumem_dump(0, text, needed + 4096, &again));
    CHECK(strlen(text) + 1 == again);
    CHECK(strchr(text, '\n') != NULL);
    memset(small, 'x', sizeof small);
    OK(gpumem_dump(0, small, 4, &again));
    CHECK(small[3] == '\0' && small[4] == 'x');
    CHECK(again > 4);
    CHECK(strncmp(small, text, 3) == 0);
    OK(gpumem_dump(0, text, needed, NULL));
    free(text);
    gpumem_free(p);
}

static void driver_calls_are_counted(void) {
    gpumem_driver_call calls[64];
    size_t count = 0, i;
    uint64_t before = 0, after = 0;
    void *p = gpumem_malloc(1000);
    int round;
    for (round = 0; round < 2; round++) {
        memset(calls, 0x5a, sizeof calls);
        OK(gpumem_driver_calls_get(calls, 64, &count));
        CHECK(count > 0 && count <= 64);
        for (i = 0; i < count; i++) {
            CHECK(memchr(calls[i].name, '\0', sizeof calls[i].name) != NULL && calls[i].name[0] != '\0');
            if (strcmp(calls[i].name, "set_async") == 0) *(round == 0 ? &before : &after) = calls[i].calls;
        }
        if (round == 0) OK(gpumem_memset(p, 0, 1000));
    }
    CHECK(after == before + 1);
    memset(calls, 0x5a, sizeof calls);
    OK(gpumem_driver_calls_get(calls, 1, &count));
    CHECK(count > 1 && calls[1].name[0] == 0x5a);
    OK(gpumem_driver_calls_get(NULL, 0, NULL));
    gpumem_free(p);
}

/* Calls of every kind so far. */
static uint64_t all_driver_calls(void) {
    gpumem_driver_call calls[64];
    size_t count = 0, i;
    uint64_t sum = 0;
    OK(gpumem_driver_calls_get(calls, 64, &count));
    CHECK(count <= 64);
    for (i = 0; i < count; i++) sum += calls[i].calls;
    return sum;
}

/* The only stream that this process has allocated on is the legacy one: it is always itself, so
 * on every backend a hit needs nobody's help. */
static void hits_make_no_driver_call(void) {
    static const size_t sizes[] = {256, 4 * KIB, 64 * KIB, 64 * KIB + 1, MIB, 64 * MIB};
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *first = must_malloc_async(sizes[i], NULL), *p;
        uint64_t before;
        int pair;
        OK(gpumem_free_async(first, NULL));
        before = all_driver_calls();
        for (pair = 0; pair < 1000; pair++) {
            p = must_malloc_async(sizes[i], NULL);
            CHECK(p == first);
            if (pair % 2) {
                gpumem_free(p);
            } else {
                OK(gpumem_free_async(p, NULL));
            }
        }
        CHECK(all_driver_calls() == before);
    }
    nothing_left();
}

static void a_limit_limits(void) {
    void *p = NULL;
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    OK(gpumem_device_limit_set(0, 64 * MIB));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(128 * MIB, NULL, &p));
    CHECK(p == NULL);
    p = must_malloc_async(16 * MIB, NULL);
    gpumem_free(p);
    OK(gpumem_device_limit_set(0, 0));
    p = must_malloc_async(128 * MIB, NULL);
    gpumem_free(p);
    nothing_left();
}

/* Memory of the process that is no file's, bytes; 0 where the system does not say. */
static size_t anonymous(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    size_t kib = 0;
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Anonymous:", 10) == 0) kib = (size_t)strtoul(line + 10, NULL, 10);
    fclose(file);
    return kib * KIB;
}

/* What gpumem knows of device memory takes little memory of the host: some bytes an object, some
 * more a block. */
static void the_books_are_small(void) {
    static const struct {
        size_t bytes, each;
    } cases[] = {{512, 32}, {70000, 512}};
    enum { MANY = 40000 };
    static void *all[MANY];
    gpumem_stream s = must_stream();
    size_t i, k, before, after;
    for (k = 0; k < 2; k++) {
        int count = rounds(MANY), n;
        OK(gpumem_free_async(must_malloc_async(cases[k].bytes, s), s));
        before = anonymous();
        for (n = 0; n < count; n++) all[n] = must_malloc_async(cases[k].bytes, s);
        after = anonymous();
        printf("   %d of %zu bytes: %zu bytes of the host each\n", count, cases[k].bytes, (after - before) / (size_t)count);
        /* Under valgrind it is mostly valgrind's, and on a GPU there are the driver's books. */
        if (!is_slow() && on_host_device()) CHECK(after <= before + MANY * cases[k].each);
        for (i = 0; i < (size_t)count; i++) OK(gpumem_free_async(all[i], s));
        OK(gpumem_device_sync());
        OK(gpumem_trim(0));
    }
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

int main(void) {
    RUN(statistics_add_up);
    RUN(peaks_can_be_reset);
    RUN(trim_gives_free_memory_back);
    RUN(older_programs_get_what_they_know);
    RUN(newer_programs_get_zeros_for_what_the_library_lacks);
    RUN(dumps_list_regions);
    RUN(driver_calls_are_counted);
    RUN(hits_make_no_driver_call);
    RUN(a_limit_limits);
    RUN(the_books_are_small);
    return 0;
}

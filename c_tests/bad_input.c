/* Every function with every kind of bad input: a status, a text, and nothing changed. */
#include "harness.h"

/* What the calls below are tried with. */
static void *live;       /* a live allocation of 1000 bytes */
static void *freed;      /* one that has been freed */
static void *untouched;  /* an output that no failing call may write */
static void *const SENTINEL = (void *)&untouched;
static int local;

static gpumem_malloc_options with(size_t bytes, size_t alignment) {
    gpumem_malloc_options options;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    options.alignment = alignment;
    return options;
}

/* The table: a name, the status wanted, the call. */
#define CALLS(CALL)                                                                                                    \
    CALL(malloc_async_out_null, INVALID, gpumem_malloc_async(1, NULL, NULL))                                           \
    CALL(malloc_async_size_max, OUT_OF_MEMORY, gpumem_malloc_async(SIZE_MAX, NULL, &untouched))                        \
    CALL(malloc_async_rounding_overflows, OUT_OF_MEMORY, gpumem_malloc_async(SIZE_MAX - 511, NULL, &untouched))        \
    CALL(malloc_async_half_of_everything, OUT_OF_MEMORY, gpumem_malloc_async(SIZE_MAX / 2, NULL, &untouched))          \
    CALL(malloc_with_null, INVALID, gpumem_malloc_with(NULL, &untouched))                                              \
    CALL(malloc_with_out_null, INVALID, malloc_with_out_null())                                                       \
    CALL(malloc_with_size_0, INVALID, malloc_with_size(0))                                                             \
    CALL(malloc_with_size_too_small, INVALID, malloc_with_size(8))                                                     \
    CALL(malloc_with_size_nonsense, INVALID, malloc_with_size(0xcccccccc))                                             \
    CALL(malloc_with_unknown_tail, INVALID, malloc_with_tail(1))                                                       \
    CALL(malloc_with_unknown_flag, INVALID, malloc_with_flags(1u << 30))                                               \
    CALL(malloc_with_reserved, INVALID, malloc_with_reserved(1))                                                       \
    CALL(malloc_with_alignment_3, INVALID, malloc_with_alignment(3))                                                   \
    CALL(malloc_with_alignment_255, INVALID, malloc_with_alignment(255))                                               \
    CALL(malloc_with_alignment_max, INVALID, malloc_with_alignment(SIZE_MAX))                                          \
    CALL(malloc_with_device_without_flag, INVALID, malloc_with_device(1, 0))                                           \
    CALL(malloc_with_device_negative, INVALID, malloc_with_device(-1, GPUMEM_MALLOC_ON_DEVICE))                        \
    CALL(malloc_with_device_999, INVALID, malloc_with_device(999, GPUMEM_MALLOC_ON_DEVICE))                            \
    CALL(malloc_with_size_max, OUT_OF_MEMORY, malloc_with_bytes(SIZE_MAX))                                             \
    CALL(malloc_with_size_max_exportable, OUT_OF_MEMORY, malloc_with_bytes_flags(SIZE_MAX, GPUMEM_MALLOC_EXPORTABLE))  \
    CALL(malloc_with_size_max_guard, OUT_OF_MEMORY, malloc_with_bytes_flags(SIZE_MAX, GPUMEM_MALLOC_GUARD))            \
    CALL(free_async_unknown, UNKNOWN_POINTER, gpumem_free_async((void *)0x1000, NULL))                                 \
    CALL(free_async_host, UNKNOWN_POINTER, gpumem_free_async(&local, NULL))                                            \
    CALL(free_async_last, UNKNOWN_POINTER, gpumem_free_async((void *)UINTPTR_MAX, NULL))                               \
    CALL(free_async_interior_1, UNKNOWN_POINTER, gpumem_free_async((char *)live + 1, NULL))                            \
    CALL(free_async_interior_256, UNKNOWN_POINTER, gpumem_free_async((char *)live + 256, NULL))                        \
    CALL(free_async_before, UNKNOWN_POINTER, gpumem_free_async((char *)live - 1, NULL))                                \
    CALL(free_async_twice, DOUBLE_FREE, gpumem_free_async(freed, NULL))                                                \
    CALL(realloc_out_null, INVALID, gpumem_realloc_async(live, 10, NULL, NULL))                                        \
    CALL(realloc_unknown, UNKNOWN_POINTER, gpumem_realloc_async(&local, 10, NULL, &untouched))                         \
    CALL(realloc_interior, UNKNOWN_POINTER, gpumem_realloc_async((char *)live + 256, 10, NULL, &untouched))            \
    CALL(realloc_size_max, OUT_OF_MEMORY, gpumem_realloc_async(live, SIZE_MAX, NULL, &untouched))                      \
    CALL(realloc_null_size_max, OUT_OF_MEMORY, gpumem_realloc_async(NULL, SIZE_MAX, NULL, &untouched))                 \
    CALL(record_stream_null, INVALID, gpumem_record_stream(NULL, NULL))                                                \
    CALL(record_stream_unknown, UNKNOWN_POINTER, gpumem_record_stream(&local, NULL))                                   \
    CALL(allocation_id_null, INVALID, gpumem_allocation_id_get(NULL, (uint64_t *)&untouched))                              \
    CALL(allocation_id_out_null, INVALID, gpumem_allocation_id_get(live, NULL))                                            \
    CALL(allocation_id_interior, UNKNOWN_POINTER, gpumem_allocation_id_get((char *)live + 1, (uint64_t *)&untouched))      \
    CALL(info_null, INVALID, info_of(NULL, sizeof(gpumem_pointer_info)))                                               \
    CALL(info_out_null, INVALID, gpumem_pointer_info_get(live, NULL))                                                  \
    CALL(info_size_0, INVALID, info_of(live, 0))                                                                       \
    CALL(info_unknown, UNKNOWN_POINTER, info_of(&local, sizeof(gpumem_pointer_info)))                                  \
    CALL(memcpy_dst_null, INVALID, gpumem_memcpy(NULL, live, 1))                                                       \
    CALL(memcpy_src_null, INVALID, gpumem_memcpy(live, NULL, 1))                                                       \
    CALL(memcpy_wraps, INVALID, gpumem_memcpy(live, &local, SIZE_MAX))                                                 \
    CALL(memcpy_overlaps, INVALID, gpumem_memcpy(live, (char *)live + 10, 11))                                         \
    CALL(memcpy_async_dst_null, INVALID, gpumem_memcpy_async(NULL, live, 1, NULL))                                     \
    CALL(memcpy_async_src_null, INVALID, gpumem_memcpy_async(live, NULL, 1, NULL))                                     \
    CALL(memcpy_async_onto_itself, INVALID, gpumem_memcpy_async(live, live, 1, NULL))                                  \
    CALL(memset_null, INVALID, gpumem_memset(NULL, 0, 1))                                                              \
    CALL(memset_wraps, INVALID, gpumem_memset(live, 0, SIZE_MAX))                                                      \
    CALL(memset_async_null, INVALID, gpumem_memset_async(NULL, 0, 1, NULL))                                            \
    CALL(device_count_null, INVALID, gpumem_device_count_get(NULL))                                                        \
    CALL(device_get_null, INVALID, gpumem_device_get(NULL))                                                            \
    CALL(device_set_negative, INVALID, gpumem_device_set(-1))                                                          \
    CALL(device_set_999, INVALID, gpumem_device_set(999))                                                              \
    CALL(device_props_null, INVALID, gpumem_device_props_get(0, NULL))                                                 \
    CALL(device_props_999, INVALID, props_of(999, sizeof(gpumem_device_props)))                                        \
    CALL(device_props_size, INVALID, props_of(0, 4))                                                                   \
    CALL(device_mem_info_999, INVALID, gpumem_device_memory_get(999, NULL, NULL))                                        \
    CALL(stream_create_null, INVALID, gpumem_stream_create(NULL))                                                      \
    CALL(stream_destroy_legacy, INVALID, gpumem_stream_destroy(GPUMEM_STREAM_LEGACY))                                  \
    CALL(stream_destroy_legacy_too, INVALID, gpumem_stream_destroy((gpumem_stream)1))                                  \
    CALL(stream_destroy_per_thread, INVALID, gpumem_stream_destroy(GPUMEM_STREAM_PER_THREAD))                          \
    CALL(stats_null, INVALID, gpumem_stats_get(0, NULL))                                                               \
    CALL(stats_size_0, INVALID, stats_of(0, 0))                                                                        \
    CALL(stats_999, INVALID, stats_of(999, sizeof(gpumem_stats)))                                                      \
    CALL(stats_reset_999, INVALID, gpumem_stats_reset_peak(999))                                                       \
    CALL(dump_999, INVALID, gpumem_dump(999, NULL, 0, (size_t *)&untouched))                                           \
    CALL(dump_null, INVALID, gpumem_dump(0, NULL, 10, (size_t *)&untouched))                                           \
    CALL(driver_calls_null, INVALID, gpumem_driver_calls_get(NULL, 1, (size_t *)&untouched))                               \
    CALL(set_limit_negative, INVALID, gpumem_device_limit_set(-1, 0))                                                         \
    CALL(export_null, INVALID, gpumem_export_fd(NULL, &local))                                                         \
    CALL(export_out_null, INVALID, gpumem_export_fd(live, NULL))                                                       \
    CALL(export_unknown, UNKNOWN_POINTER, gpumem_export_fd(&local, &local))                                            \
    CALL(export_ordinary, INVALID, gpumem_export_fd(live, &local))                                                     \
    CALL(import_out_null, INVALID, gpumem_import_fd(0, 4096, 0, NULL))                                                 \
    CALL(import_negative, INVALID, gpumem_import_fd(-1, 4096, 0, &untouched))                                          \
    CALL(import_closed, INVALID, gpumem_import_fd(987, 4096, 0, &untouched))                                           \
    CALL(import_no_bytes, INVALID, gpumem_import_fd(0, 0, 0, &untouched))                                              \
    CALL(import_999, INVALID, gpumem_import_fd(0, 4096, 999, &untouched))                                              \
    CALL(init_again, INVALID, gpumem_init(NULL))                                                                       \
    CALL(init_size, INVALID, init_size(12))

static gpumem_status malloc_with_out_null(void) {
    gpumem_malloc_options options = with(1, 0);
    return gpumem_malloc_with(&options, NULL);
}

static gpumem_status malloc_with_size(uint32_t size) {
    gpumem_malloc_options options = with(1, 0);
    options.size = size;
    return gpumem_malloc_with(&options, &untouched);
}

static gpumem_status malloc_with_tail(unsigned char last) {
    struct {
        gpumem_malloc_options known;
        unsigned char unknown[16];
    } future;
    memset(&future, 0, sizeof future);
    future.known = with(1, 0);
    future.known.size = sizeof future;
    future.unknown[15] = last;
    return gpumem_malloc_with(&future.known, &untouched);
}

static gpumem_status malloc_with_bytes_flags(size_t bytes, uint32_t flags) {
    gpumem_malloc_options options = with(bytes, 0);
    options.flags = flags;
    return gpumem_malloc_with(&options, &untouched);
}

static gpumem_status malloc_with_bytes(size_t bytes) { return malloc_with_bytes_flags(bytes, 0); }
static gpumem_status malloc_with_flags(uint32_t flags) { return malloc_with_bytes_flags(1, flags); }

static gpumem_status malloc_with_reserved(uint32_t reserved) {
    gpumem_malloc_options options = with(1, 0);
    options.reserved = reserved;
    return gpumem_malloc_with(&options, &untouched);
}

static gpumem_status malloc_with_alignment(size_t alignment) {
    gpumem_malloc_options options = with(1, alignment);
    return gpumem_malloc_with(&options, &untouched);
}

static gpumem_status malloc_with_device(int device, uint32_t flags) {
    gpumem_malloc_options options = with(1, 0);
    options.device = device;
    options.flags = flags;
    return gpumem_malloc_with(&options, &untouched);
}

static gpumem_status info_of(const void *p, uint32_t size) {
    gpumem_pointer_info info;
    GPUMEM_INIT(&info);
    info.size = size;
    return gpumem_pointer_info_get(p, &info);
}

static gpumem_status props_of(int device, uint32_t size) {
    gpumem_device_props props;
    GPUMEM_INIT(&props);
    props.size = size;
    return gpumem_device_props_get(device, &props);
}

static gpumem_status stats_of(int device, uint32_t size) {
    gpumem_stats stats;
    GPUMEM_INIT(&stats);
    stats.size = size;
    return gpumem_stats_get(device, &stats);
}

static gpumem_status init_size(uint32_t size) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    options.size = size;
    return gpumem_init(&options);
}

#define DEFINE(name, want, call)                                                                                       \
    static gpumem_status call_##name(void) { return call; }
CALLS(DEFINE)

static const struct {
    const char *name;
    gpumem_status want;
    gpumem_status (*call)(void);
} table[] = {
#define ENTRY(name, want, call) {#name, GPUMEM_ERROR_##want, call_##name},
    CALLS(ENTRY)};

static void every_bad_call_is_refused_and_changes_nothing(void) {
    size_t i;
    live = gpumem_malloc(1000);
    freed = gpumem_malloc(900);
    CHECK(live != NULL && freed != NULL);
    fill(live, 1000, 3, NULL);
    gpumem_free(freed);
    for (i = 0; i < sizeof table / sizeof *table; i++) {
        gpumem_stats before = stats_now(), after;
        gpumem_status got;
        untouched = SENTINEL;
        local = 12345;
        got = table[i].call();
        harness_status(__FILE__, __LINE__, table[i].name, table[i].want, got);
        CHECK(gpumem_last_status() == table[i].want);
        CHECK(gpumem_last_error(NULL, 0) > 0);
        CHECK(untouched == SENTINEL && local == 12345);
        after = stats_now();
        CHECK(after.allocations == before.allocations && after.requested == before.requested);
        CHECK(after.mallocs == before.mallocs && after.frees == before.frees && after.live == before.live);
        OK(gpumem_validate());
        printf("   %-40s %s\n", table[i].name, gpumem_status_name(got));
    }
    CHECK(holds(live, 1000, 3, NULL));
    gpumem_free(live);
    nothing_left();
}

static void null_and_zero_results_say_why(void) {
    CHECK(gpumem_malloc(SIZE_MAX) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_OUT_OF_MEMORY);
    CHECK(gpumem_malloc(SIZE_MAX - 4095) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_OUT_OF_MEMORY);
    CHECK(gpumem_usable_size(&local) == 0);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
}

static void out_of_memory_says_how_much_and_is_got_over(void) {
    gpumem_device_props props;
    uint64_t refused = stats_now().out_of_memory;
    void *p = NULL;
    GPUMEM_INIT(&props);
    OK(gpumem_device_props_get(0, &props));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(props.total_bytes * 2, NULL, &p));
    CHECK(p == NULL);
    CHECK(gpumem_last_error(NULL, 0) > 20);
    CHECK(stats_now().out_of_memory == refused + 1);
    p = must_malloc_async(1000, NULL);
    gpumem_free(p);
    nothing_left();
}

static void alignments_beyond_reason_are_refused(void) {
    gpumem_malloc_options options = with(1, (size_t)1 << 63);
    void *p = SENTINEL;
    CHECK(gpumem_malloc_with(&options, &p) != GPUMEM_OK);
    CHECK(p == SENTINEL);
    options = with(SIZE_MAX - 100, (size_t)1 << 40);
    CHECK(gpumem_malloc_with(&options, &p) != GPUMEM_OK);
    CHECK(p == SENTINEL);
    nothing_left();
}

static void a_destroyed_stream_is_refused(void) {
    gpumem_stream s = must_stream();
    void *p = gpumem_malloc(100), *q = SENTINEL;
    OK(gpumem_stream_destroy(s));
    if (!on_host_device()) {
        printf("   skipped: CUDA itself crashes on a destroyed stream\n");
        gpumem_free(p);
        return;
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_malloc_async(1, s, &q));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_free_async(p, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_realloc_async(p, 200, s, &q));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_record_stream(p, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_memset_async(p, 0, 1, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_memcpy_async(p, &q, 1, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_sync(s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_wait(s, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_wait(NULL, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_stream_destroy(s));
    CHECK(q == SENTINEL);
    gpumem_free(p);
    nothing_left();
}

static void error_texts_are_cut_to_fit(void) {
    char small[9];
    size_t whole;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_device_set(999));
    CHECK(error_says("999"));
    whole = gpumem_last_error(NULL, 0);
    memset(small, 'x', sizeof small);
    CHECK(gpumem_last_error(small, 8) == whole && whole > 8);
    CHECK(small[7] == '\0' && small[8] == 'x');
    OK(gpumem_device_set(0));
    CHECK(gpumem_last_error(NULL, 0) == whole); /* success does not clear it */
    CHECK(strcmp(gpumem_status_name(gpumem_last_status()), "GPUMEM_ERROR_INVALID") == 0);
}

int main(void) {
    RUN(every_bad_call_is_refused_and_changes_nothing);
    RUN(null_and_zero_results_say_why);
    RUN(out_of_memory_says_how_much_and_is_got_over);
    RUN(alignments_beyond_reason_are_refused);
    RUN(a_destroyed_stream_is_refused);
    RUN(error_texts_are_cut_to_fit);
    return 0;
}

/* The adapters for PyTorch, called as torch calls them, in a process without torch: failures are
 * NULL. */
#include "harness.h"

static void allocates_and_frees(void) {
    gpumem_stream s = must_stream();
    gpumem_pointer_info info;
    size_t size = 0;
    void *p = gpumem_torch_malloc(100000, 0, s), *q = gpumem_torch_malloc(100000, 0, NULL);
    CHECK(p != NULL && q != NULL);
    GPUMEM_INIT(&info);
    OK(gpumem_pointer_info_get(p, &info));
    CHECK(info.device == 0 && info.stream == s);
    fill(p, 100000, 1, s);
    CHECK(gpumem_torch_base_alloc((char *)p + 5000, &size) == p);
    CHECK(size >= 100000);
    CHECK(gpumem_torch_base_alloc(p, NULL) == p);
    gpumem_torch_record_stream(q, s);
    gpumem_torch_free(p, 100000, 0, s);
    gpumem_torch_free(q, 100000, 0, NULL);
    gpumem_torch_reset();
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void no_bytes_and_null(void) {
    void *p = gpumem_torch_malloc(0, 0, NULL), *q = gpumem_torch_malloc(0, 0, NULL);
    CHECK(p != NULL && q != NULL && p != q);
    gpumem_torch_free(p, 0, 0, NULL);
    gpumem_torch_free(q, 0, 0, NULL);
    gpumem_torch_free(NULL, 0, 0, NULL);
    gpumem_torch_record_stream(NULL, NULL);
    nothing_left();
}

static void failures_are_null_without_torch(void) {
    int local = 0;
    size_t size = 77;
    CHECK(gpumem_torch_malloc(-1, 0, NULL) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_torch_malloc(10, 999, NULL) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_torch_malloc((ssize_t)(SIZE_MAX / 2), 0, NULL) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_OUT_OF_MEMORY);
    CHECK(gpumem_torch_base_alloc(&local, &size) == NULL && size == 77);
    CHECK(gpumem_torch_base_alloc(NULL, &size) == NULL && size == 77);
    gpumem_torch_record_stream(&local, NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
    gpumem_torch_free(&local, 4, 0, NULL);
    gpumem_torch_init(100000);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID);
    nothing_left();
}

static void its_memory_is_in_no_arena(void) {
    gpumem_arena a;
    gpumem_arena_report report;
    void *small, *large;
    OK(gpumem_arena_enter(&a));
    small = gpumem_torch_malloc(1000, 0, NULL);
    large = gpumem_torch_malloc(40 << 20, 0, NULL);
    CHECK(small != NULL && large != NULL);
    GPUMEM_INIT(&report);
    OK(gpumem_arena_exit(a, NULL, 0, &report));
    CHECK(report.freed == 0);
    gpumem_torch_free(small, 1000, 0, NULL);
    gpumem_torch_free(large, 40 << 20, 0, NULL);
    nothing_left();
}

static void its_stream_may_be_gone(void) {
    gpumem_stream s = must_stream();
    void *p = gpumem_torch_malloc(3 << 20, 0, s);
    CHECK(p != NULL);
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    gpumem_torch_free(p, 3 << 20, 0, s);
    nothing_left();
}

static void the_fraction_limits(void) {
    gpumem_device_props props;
    void *p;
    GPUMEM_INIT(&props);
    OK(gpumem_device_props_get(0, &props));
    gpumem_torch_init(1);
    OK(gpumem_trim(0));
    gpumem_torch_memory_fraction(0.01, 0);
    CHECK(gpumem_torch_malloc((ssize_t)(props.total_bytes / 50), 0, NULL) == NULL);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_OUT_OF_MEMORY);
    gpumem_torch_memory_fraction(1.0, 0);
    p = gpumem_torch_malloc((ssize_t)(props.total_bytes / 50), 0, NULL);
    CHECK(p != NULL);
    gpumem_torch_free(p, 0, 0, NULL);
    gpumem_torch_memory_fraction(0.0, 0);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID && error_says("fraction"));
    gpumem_torch_memory_fraction(1.5, 0);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID);
    gpumem_torch_reset();
    nothing_left();
}

int main(void) {
    RUN(allocates_and_frees);
    RUN(no_bytes_and_null);
    RUN(failures_are_null_without_torch);
    RUN(its_memory_is_in_no_arena);
    RUN(its_stream_may_be_gone);
    RUN(the_fraction_limits);
    return 0;
}

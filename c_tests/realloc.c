/* Growing and shrinking keep the contents. */
#include "harness.h"

static void grows_and_keeps_its_contents(void) {
    gpumem_stream s = must_stream();
    size_t bytes = 1000, next;
    void *p = must_malloc_async(bytes, s);
    fill(p, bytes, 9, s);
    for (next = 3000; next < 40 * MIB; next = next * 3 + 17) {
        void *q = NULL;
        OK(gpumem_realloc_async(p, next, s, &q));
        CHECK(q != NULL);
        CHECK(gpumem_usable_size(q) >= next);
        CHECK(holds(q, bytes, 9, s));
        fill(q, next, 9, s);
        p = q;
        bytes = next;
        CHECK(stats_now().allocations == 1);
        OK(gpumem_validate());
    }
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void growing_does_not_run_into_a_neighbour(void) {
    void *p = gpumem_malloc(2 * MIB), *neighbour = gpumem_malloc(2 * MIB), *q = NULL;
    CHECK(p != NULL && neighbour != NULL);
    fill(p, 2 * MIB, 1, NULL);
    fill(neighbour, 2 * MIB, 2, NULL);
    OK(gpumem_realloc_async(p, 6 * MIB, NULL, &q));
    OK(gpumem_memset_async((char *)q + 2 * MIB, 0x55, 4 * MIB, NULL));
    CHECK(holds(q, 2 * MIB, 1, NULL));
    CHECK(holds(neighbour, 2 * MIB, 2, NULL));
    gpumem_free(neighbour);
    gpumem_free(q);
    nothing_left();
}

static void shrinks_and_keeps_the_front(void) {
    gpumem_stream s = must_stream();
    void *p = must_malloc_async(8 * MIB, s), *q = NULL;
    fill(p, 8 * MIB, 5, s);
    OK(gpumem_realloc_async(p, 12345, s, &q));
    CHECK(holds(q, 12345, 5, s));
    OK(gpumem_realloc_async(q, 0, s, &p));
    CHECK(p != NULL);
    CHECK(stats_now().allocations == 1);
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void null_allocates(void) {
    void *p = NULL;
    OK(gpumem_realloc_async(NULL, 777, NULL, &p));
    fill(p, 777, 1, NULL);
    gpumem_free(p);
    nothing_left();
}

static void failure_leaves_the_old_memory(void) {
    void *p = gpumem_malloc(4096), *q = (void *)&p;
    fill(p, 4096, 6, NULL);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_realloc_async(p, SIZE_MAX, NULL, &q));
    CHECK(q == (void *)&p);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_realloc_async(p, SIZE_MAX / 2, NULL, &q));
    CHECK(q == (void *)&p);
    CHECK(holds(p, 4096, 6, NULL));
    OK(gpumem_realloc_async(p, 8192, NULL, &q));
    CHECK(holds(q, 4096, 6, NULL));
    gpumem_free(q);
    nothing_left();
}

static void the_old_pointer_is_gone_when_it_moved(void) {
    void *p = gpumem_malloc(4096), *blocker = gpumem_malloc(4096), *q = NULL;
    OK(gpumem_realloc_async(p, 32 * MIB, NULL, &q));
    if (q != p) {
        gpumem_status status = gpumem_free_async(p, NULL);
        CHECK(status == GPUMEM_ERROR_DOUBLE_FREE || status == GPUMEM_ERROR_UNKNOWN_POINTER);
    }
    gpumem_free(blocker);
    gpumem_free(q);
    nothing_left();
}

int main(void) {
    RUN(grows_and_keeps_its_contents);
    RUN(growing_does_not_run_into_a_neighbour);
    RUN(shrinks_and_keeps_the_front);
    RUN(null_allocates);
    RUN(failure_leaves_the_old_memory);
    RUN(the_old_pointer_is_gone_when_it_moved);
    return 0;
}

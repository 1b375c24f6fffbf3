/* Memory follows the order of streams: nobody sees another's bytes, and nobody waits on the
 * host. */
#include "harness.h"

static void one_stream_reuses_its_own_memory_in_order(void) {
    enum { ROUNDS = 200 };
    gpumem_stream s = must_stream();
    unsigned char out[ROUNDS];
    size_t bytes = 300000;
    int i;
    memset(out, 0xff, sizeof out);
    for (i = 0; i < ROUNDS; i++) {
        /* Freed before the work is done; the next round's memset must not be seen by this
         * round's copy. */
        void *p = must_malloc_async(bytes, s);
        OK(gpumem_memset_async(p, i, bytes, s));
        OK(gpumem_memcpy_async(&out[i], (char *)p + bytes - 1, 1, s));
        OK(gpumem_free_async(p, s));
    }
    OK(gpumem_stream_sync(s));
    for (i = 0; i < ROUNDS; i++) CHECK(out[i] == (unsigned char)i);
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void streams_do_not_see_each_others_bytes(void) {
    enum { STREAMS = 4, ROUNDS = 100 };
    gpumem_stream s[STREAMS];
    static unsigned char out[STREAMS][ROUNDS];
    int i, k;
    for (k = 0; k < STREAMS; k++) s[k] = must_stream();
    for (i = 0; i < ROUNDS; i++) {
        for (k = 0; k < STREAMS; k++) {
            size_t bytes = 1000 + (size_t)((i * 7919 + k * 104729) % 500000);
            void *p = must_malloc_async(bytes, s[k]);
            OK(gpumem_memset_async(p, i * STREAMS + k, bytes, s[k]));
            OK(gpumem_memcpy_async(&out[k][i], (char *)p + bytes / 2, 1, s[k]));
            OK(gpumem_free_async(p, s[k]));
        }
    }
    for (k = 0; k < STREAMS; k++) OK(gpumem_stream_sync(s[k]));
    for (i = 0; i < ROUNDS; i++) {
        for (k = 0; k < STREAMS; k++) CHECK(out[k][i] == (unsigned char)(i * STREAMS + k));
    }
    for (k = 0; k < STREAMS; k++) OK(gpumem_stream_destroy(s[k]));
    nothing_left();
}

static void one_stream_hands_over_to_another(void) {
    gpumem_stream a = must_stream(), b = must_stream();
    int i;
    for (i = 0; i < 50; i++) {
        size_t bytes = 64 * KIB + (size_t)i * 1000;
        void *p = must_malloc_async(bytes, a);
        OK(gpumem_memset_async(p, i, bytes, a));
        OK(gpumem_stream_wait(b, a));
        CHECK(holds_byte(p, bytes, (unsigned char)i, b));
        /* Allocated on a, freed on b, where its last use is. */
        OK(gpumem_free_async(p, b));
    }
    OK(gpumem_stream_destroy(a));
    OK(gpumem_stream_destroy(b));
    nothing_left();
}

static void recorded_streams_are_waited_for(void) {
    gpumem_stream a = must_stream(), b = must_stream();
    static unsigned char out[50];
    size_t bytes = 200000;
    int i;
    for (i = 0; i < 50; i++) {
        void *p = must_malloc_async(bytes, a), *q;
        OK(gpumem_memset_async(p, i, bytes, a));
        OK(gpumem_stream_wait(b, a));
        OK(gpumem_memcpy_async(&out[i], (char *)p + 1, 1, b));
        OK(gpumem_record_stream(p, b));
        OK(gpumem_free_async(p, a));
        /* On a again, the same memory perhaps: it must not be overwritten before b has read it. */
        q = must_malloc_async(bytes, a);
        OK(gpumem_memset_async(q, 0xee, bytes, a));
        OK(gpumem_free_async(q, a));
    }
    OK(gpumem_stream_sync(a));
    OK(gpumem_stream_sync(b));
    for (i = 0; i < 50; i++) CHECK(out[i] == (unsigned char)i);
    OK(gpumem_stream_destroy(a));
    OK(gpumem_stream_destroy(b));
    nothing_left();
}

static void memory_outlives_its_stream(void) {
    gpumem_stream a = must_stream(), b = must_stream();
    void *p = must_malloc_async(50000, a), *q = must_malloc_async(50000, a);
    fill(p, 50000, 3, a);
    fill(q, 50000, 4, a);
    OK(gpumem_stream_destroy(a));
    CHECK(holds(p, 50000, 3, b));
    CHECK(holds(q, 50000, 4, b));
    OK(gpumem_free_async(p, b));
    gpumem_free(q); /* its stream is gone; safe all the same */
    p = must_malloc_async(50000, b);
    fill(p, 50000, 5, b);
    CHECK(holds(p, 50000, 5, b));
    OK(gpumem_free_async(p, b));
    OK(gpumem_stream_destroy(b));
    nothing_left();
}

static void default_streams_work(void) {
    void *p = must_malloc_async(1000, GPUMEM_STREAM_LEGACY);
    fill(p, 1000, 1, GPUMEM_STREAM_LEGACY);
    OK(gpumem_free_async(p, GPUMEM_STREAM_LEGACY));
    p = must_malloc_async(1000, GPUMEM_STREAM_PER_THREAD);
    fill(p, 1000, 2, GPUMEM_STREAM_PER_THREAD);
    CHECK(holds(p, 1000, 2, GPUMEM_STREAM_PER_THREAD));
    OK(gpumem_free_async(p, GPUMEM_STREAM_PER_THREAD));
    nothing_left();
}

/* The sync has proved that it is free, so nothing is mapped for another stream. */
static void what_was_freed_before_a_sync_is_everybodys(void) {
    gpumem_stream a = must_stream(), b = must_stream(), c = must_stream();
    int whole_device;
    for (whole_device = 0; whole_device < 2; whole_device++) {
        uint64_t mapped;
        void *p = must_malloc_async(20 * MIB, a);
        OK(gpumem_memset_async(p, 1, 20 * MIB, a));
        OK(gpumem_stream_wait(b, a));
        OK(gpumem_free_async(p, b));
        OK(whole_device ? gpumem_device_sync() : gpumem_stream_sync(b));
        mapped = stats_now().mapped;
        p = must_malloc_async(20 * MIB, c);
        CHECK(stats_now().mapped == mapped);
        OK(gpumem_free_async(p, c));
        OK(gpumem_device_sync());
        OK(gpumem_trim(0));
    }
    OK(gpumem_stream_destroy(a));
    OK(gpumem_stream_destroy(b));
    OK(gpumem_stream_destroy(c));
    nothing_left();
}

int main(void) {
    RUN(one_stream_reuses_its_own_memory_in_order);
    RUN(streams_do_not_see_each_others_bytes);
    RUN(one_stream_hands_over_to_another);
    RUN(recorded_streams_are_waited_for);
    RUN(memory_outlives_its_stream);
    RUN(default_streams_work);
    RUN(what_was_freed_before_a_sync_is_everybodys);
    return 0;
}

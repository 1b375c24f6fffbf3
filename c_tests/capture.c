/* Captures: memory for graphs, its references, layouts from recorded runs, and everything that
 * is not allowed. */
#include "harness.h"

static gpumem_capture_stats stats_of(gpumem_capture c) {
    gpumem_capture_stats stats;
    GPUMEM_INIT(&stats);
    OK(gpumem_capture_stats_get(c, &stats));
    return stats;
}

/* out = 3 * n bytes of 0x5a, by way of two temporaries. */
static void work(void *out, size_t n, gpumem_stream s) {
    void *a = must_malloc_async(n, s), *b;
    OK(gpumem_memset_async(a, 0x5a, n, s));
    b = must_malloc_async(2 * n, s);
    OK(gpumem_memcpy_async(b, a, n, s));
    OK(gpumem_memcpy_async((char *)b + n, a, n, s));
    OK(gpumem_free_async(a, s));
    OK(gpumem_memcpy_async(out, b, 2 * n, s));
    a = must_malloc_async(n, s);
    OK(gpumem_memset_async(a, 0x5a, n, s));
    OK(gpumem_memcpy_async((char *)out + 2 * n, a, n, s));
    OK(gpumem_free_async(a, s));
    OK(gpumem_free_async(b, s));
}

static gpumem_sim_graph captured(void *out, size_t n, gpumem_stream s) {
    gpumem_sim_graph graph = NULL;
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL));
    work(out, n, s);
    OK(gpumem_sim_capture_end(s, &graph));
    return graph;
}

/* Takes whatever is free, writes to it, and gives it back to the device. */
static void churn(gpumem_stream s) {
    void *p[6];
    int i;
    for (i = 0; i < 6; i++) {
        p[i] = must_malloc_async((size_t)(i + 1) * MIB, s);
        OK(gpumem_memset_async(p[i], 0xee, (size_t)(i + 1) * MIB, s));
    }
    for (i = 0; i < 6; i++) OK(gpumem_free_async(p[i], s));
    OK(gpumem_stream_sync(s));
    OK(gpumem_trim(0));
}

static void replays_while_the_pool_is_busy(void) {
    const size_t n = 1500 * KIB;
    gpumem_stream s = must_stream(), t = must_stream();
    void *out = must_malloc_async(3 * n, s);
    gpumem_capture c = NULL;
    gpumem_sim_graph graph;
    gpumem_capture_stats stats;
    int round;
    OK(gpumem_capture_begin(s, NULL, &c));
    CHECK(c != NULL);
    graph = captured(out, n, s);
    OK(gpumem_capture_end(c));
    OK(gpumem_capture_end(c));
    stats = stats_of(c);
    CHECK(stats.device == 0 && stats.references == 1 && stats.allocations == 3 && stats.live == 0 && stats.streams == 1);
    CHECK(stats.total >= 4 * n && stats.peak_live >= 3 * n && stats.mapped >= 3 * n && stats.reserved >= stats.mapped);
    for (round = 0; round < 4; round++) {
        OK(gpumem_memset_async(out, 0, 3 * n, s));
        OK(gpumem_stream_wait(t, s));
        OK(gpumem_sim_graph_launch(graph, t));
        OK(gpumem_stream_wait(s, t));
        churn(s);
        CHECK(holds_byte(out, 3 * n, 0x5a, t));
        churn(t);
        CHECK(stats_of(c).mapped == stats.mapped);
    }
    OK(gpumem_sim_graph_launch(graph, t));
    OK(gpumem_capture_release(c));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_release(c));
    CHECK(error_says("released or aborted"));
    churn(s);
    OK(gpumem_stream_sync(t));
    CHECK(holds_byte(out, 3 * n, 0x5a, t));
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_free_async(out, s));
    nothing_left();
    OK(gpumem_trim(0));
    CHECK(stats_now().mapped == 0);
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
}

static void references_and_sharing(void) {
    gpumem_stream s = must_stream();
    gpumem_capture c = NULL, d = NULL;
    gpumem_capture_options opts;
    void *p;
    OK(gpumem_capture_begin(s, NULL, &c));
    OK(gpumem_capture_retain(c));
    p = must_malloc_async(3 * MIB, s);
    OK(gpumem_capture_end(c));
    GPUMEM_INIT(&opts);
    opts.share = c;
    OK(gpumem_capture_begin(s, &opts, &d));
    CHECK(d != c);
    CHECK(stats_of(d).references == 3);
    OK(gpumem_free_async(p, s));
    CHECK(must_malloc_async(3 * MIB, s) == p);
    OK(gpumem_capture_release(c));
    OK(gpumem_capture_release(c));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_end(c));
    CHECK(stats_of(d).references == 1 && stats_of(d).live >= 3 * MIB);
    /* What d allocated goes with it. */
    OK(gpumem_capture_abort(d));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_abort(d));
    CHECK(gpumem_free_async(p, s) != GPUMEM_OK);
    nothing_left();
    OK(gpumem_stream_destroy(s));
}

static void monotone_and_laid_out(void) {
    const size_t n = 2 * MIB;
    gpumem_stream s = must_stream();
    void *out = must_malloc_async(3 * n, s);
    gpumem_capture mono = NULL, recorded = NULL, planned = NULL;
    gpumem_capture_options opts;
    uint64_t bytes = 0, peak = 0;
    GPUMEM_INIT(&opts);
    opts.flags = GPUMEM_CAPTURE_MONOTONE;
    OK(gpumem_capture_begin(s, &opts, &mono));
    OK(gpumem_sim_graph_destroy(captured(out, n, s)));
    CHECK(stats_of(mono).total == 4 * n && stats_of(mono).mapped >= 4 * n);
    OK(gpumem_capture_release(mono));

    /* The dry run is not captured at all. */
    opts.flags = GPUMEM_CAPTURE_RECORD;
    opts.bytes = MIB;
    OK(gpumem_capture_begin(s, &opts, &recorded));
    work(out, n, s);
    OK(gpumem_capture_end(recorded));
    OK(gpumem_capture_solve(recorded, &bytes, &peak));
    CHECK(peak == 3 * n && bytes == 3 * n);
    OK(gpumem_capture_solve(recorded, NULL, NULL));
    GPUMEM_INIT(&opts);
    opts.layout = recorded;
    OK(gpumem_capture_begin(s, &opts, &planned));
    OK(gpumem_capture_release(recorded));
    OK(gpumem_sim_graph_destroy(captured(out, n, s)));
    CHECK(stats_of(planned).planned == 3 * n && stats_of(planned).deviations == 0);
    CHECK(stats_of(planned).mapped == 3 * n);
    OK(gpumem_capture_release(planned));
    OK(gpumem_free_async(out, s));
    nothing_left();
    OK(gpumem_stream_destroy(s));
}

static void what_is_not_allowed(void) {
    gpumem_stream s = must_stream();
    gpumem_capture c = NULL, other = NULL;
    gpumem_capture_options opts;
    gpumem_capture_stats stats;
    int local = 0;
    gpumem_capture fake = (gpumem_capture)(void *)&local;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, NULL, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_end(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_abort(fake));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_retain(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_release(fake));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_solve(NULL, NULL, NULL));
    GPUMEM_INIT(&opts);
    opts.flags = 8;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, &opts, &c));
    CHECK(error_says("flags"));
    opts.flags = 0;
    opts.share = fake;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, &opts, &c));
    opts.share = NULL;
    opts.size = 3;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, &opts, &c));
    CHECK(c == NULL);
    OK(gpumem_capture_begin(s, NULL, &c));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, NULL, &other));
    CHECK(error_says("already"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_solve(c, NULL, NULL));
    CHECK(error_says("GPUMEM_CAPTURE_RECORD"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_stats_get(c, NULL));
    GPUMEM_INIT(&stats);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_stats_get(fake, &stats));
    GPUMEM_INIT(&opts);
    opts.share = c;
    opts.reserve = MIB;
    OK(gpumem_capture_end(c));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, &opts, &other));
    GPUMEM_INIT(&opts);
    opts.bytes = (uint64_t)1 << 60;
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_capture_begin(s, &opts, &other));
    opts.bytes = 0;
    opts.flags = GPUMEM_CAPTURE_MONOTONE;
    opts.layout = c;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_capture_begin(s, &opts, &other));
    CHECK(other == NULL);
    OK(gpumem_capture_release(c));
    nothing_left();
    OK(gpumem_stream_destroy(s));
}

int main(void) {
    RUN(replays_while_the_pool_is_busy);
    RUN(references_and_sharing);
    RUN(monotone_and_laid_out);
    RUN(what_is_not_allowed);
    RUN(replays_while_the_pool_is_busy);
    return 0;
}

/* GPUMEM_CAPTURE=auto: graphs keep what they were captured with, and give it back when they go. */
#include "harness.h"

static const size_t n = 3 * 1024 * 1024;

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

static void graphs_keep_their_memory_by_themselves(void) {
    gpumem_stream s = must_stream(), t = must_stream();
    void *out = must_malloc_async(n, s), *temporary = NULL;
    gpumem_sim_graph graph = NULL;
    int round;
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL));
    temporary = must_malloc_async(n, s);
    OK(gpumem_memset_async(temporary, 0x5a, n, s));
    OK(gpumem_memcpy_async(out, temporary, n, s));
    OK(gpumem_free_async(temporary, s));
    OK(gpumem_sim_capture_end(s, &graph));
    for (round = 0; round < 4; round++) {
        churn(s);
        churn(t);
        CHECK(stats_now().mapped >= 2 * n);
        OK(gpumem_memset_async(out, 0, n, s));
        OK(gpumem_sim_graph_launch(graph, s));
        CHECK(holds_byte(out, n, 0x5a, s));
    }
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_free_async(out, s));
    OK(gpumem_device_sync());
    /* The driver may take a moment to say that the graph is gone. */
    for (round = 0; round < 1000 && stats_now().mapped > 0; round++) {
        OK(gpumem_trim(0));
        usleep(1000);
    }
    CHECK(stats_now().mapped == 0);
    nothing_left();
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
}

int main(void) {
    CHECK(setenv("GPUMEM_CAPTURE", "auto", 1) == 0);
    RUN(graphs_keep_their_memory_by_themselves);
    RUN(graphs_keep_their_memory_by_themselves);
    return 0;
}

/* Captured copies and fills, replayed: the same bytes on a GPU and on the host device. */
#include "harness.h"

#include <pthread.h>

static const int MODES[3] = {GPUMEM_SIM_CAPTURE_GLOBAL, GPUMEM_SIM_CAPTURE_THREAD_LOCAL, GPUMEM_SIM_CAPTURE_RELAXED};

static gpumem_sim_graph_info info_of(gpumem_sim_graph graph) {
    gpumem_sim_graph_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_sim_graph_info_get(graph, &info));
    CHECK(info.size == sizeof info && info.reserved == 0);
    return info;
}

static void a_graph_is_replayed(void) {
    enum { BYTES = 300000, ROUNDS = 10 };
    int m;
    for (m = 0; m < 3; m++) {
        gpumem_stream s = must_stream(), t = must_stream();
        char *in = (char *)must_malloc_async(BYTES, s), *out = (char *)must_malloc_async(BYTES, s);
        gpumem_sim_graph graph = NULL;
        int round;
        OK(gpumem_memset_async(out, 0x11, BYTES, s));
        OK(gpumem_stream_sync(s));
        OK(gpumem_sim_capture_begin(s, MODES[m]));
        OK(gpumem_memcpy_async(out + 1000, in + 1000, BYTES - 1000, s));
        OK(gpumem_memset_async(out, 0x22, 500, s));
        OK(gpumem_memset_async(in, 0x33, BYTES, s));
        OK(gpumem_memcpy_async(out + 500, in, 500, s));
        OK(gpumem_sim_capture_end(s, &graph));
        CHECK(graph != NULL);
        CHECK(info_of(graph).nodes == 4 && info_of(graph).memory_nodes == 0);
        CHECK(holds_byte(out, BYTES, 0x11, s)); /* nothing has run */
        for (round = 0; round < ROUNDS; round++) {
            gpumem_stream on = round % 3 == 1 ? t : s;
            OK(gpumem_memset_async(in, 0x40 + round, BYTES, on));
            OK(gpumem_sim_graph_launch(graph, on));
            CHECK(holds_byte(out, 500, 0x22, on));
            CHECK(holds_byte(out + 500, 500, 0x33, on));
            CHECK(holds_byte(out + 1000, BYTES - 1000, (unsigned char)(0x40 + round), on));
            CHECK(holds_byte(in, BYTES, 0x33, on));
        }
        OK(gpumem_sim_graph_destroy(graph));
        OK(gpumem_free_async(in, s));
        OK(gpumem_free_async(out, s));
        OK(gpumem_stream_destroy(s));
        OK(gpumem_stream_destroy(t));
        nothing_left();
    }
}

static void launches_follow_each_other(void) {
    enum { BYTES = 100000, LAUNCHES = 40 };
    gpumem_stream s[3];
    char *p, *q;
    gpumem_sim_graph graph;
    int i;
    for (i = 0; i < 3; i++) s[i] = must_stream();
    p = (char *)must_malloc_async(BYTES, s[0]);
    q = (char *)must_malloc_async(BYTES, s[0]);
    OK(gpumem_memset_async(p, 0, BYTES, s[0]));
    OK(gpumem_memset_async(q, 0, BYTES, s[0]));
    OK(gpumem_memset_async(p, 7, 1, s[0]));
    /* Each launch moves everything by one byte: two at once would leave a mixture. */
    OK(gpumem_sim_capture_begin(s[0], GPUMEM_SIM_CAPTURE_GLOBAL));
    OK(gpumem_memcpy_async(p + 1, q, BYTES - 1, s[0]));
    OK(gpumem_memcpy_async(q, p, BYTES, s[0]));
    OK(gpumem_sim_capture_end(s[0], &graph));
    OK(gpumem_stream_sync(s[0]));
    for (i = 0; i < LAUNCHES; i++) OK(gpumem_sim_graph_launch(graph, s[i % 3]));
    OK(gpumem_sim_graph_destroy(graph)); /* they run all the same */
    OK(gpumem_device_sync());
    CHECK(holds_byte(q, LAUNCHES, 7, s[0]));
    CHECK(holds_byte(q + LAUNCHES, BYTES - LAUNCHES, 0, s[0]));
    OK(gpumem_free_async(p, s[0]));
    OK(gpumem_free_async(q, s[0]));
    for (i = 0; i < 3; i++) OK(gpumem_stream_destroy(s[i]));
    nothing_left();
}

static void a_spoilt_capture_gives_no_graph(void) {
    gpumem_stream s = must_stream();
    void *p = must_malloc_async(1000, s);
    gpumem_sim_graph untouched = (gpumem_sim_graph)&untouched, graph = untouched;
    int m;
    for (m = 0; m < 3; m++) {
        OK(gpumem_sim_capture_begin(s, MODES[m]));
        OK(gpumem_memset_async(p, 1, 1000, s));
        CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_stream_sync(s));
        CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_memset_async(p, 1, 1000, s));
        CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_sim_capture_end(s, &graph));
        CHECK(graph == untouched);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_end(s, &graph));
        OK(gpumem_memset_async(p, 0x50 + m, 1000, s));
        CHECK(holds_byte(p, 1000, (unsigned char)(0x50 + m), s));
    }
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* They block. The host device forbids that during a capture; CUDA does for streams that wait for
 * the legacy one. What is refused is not done. */
static void filling_and_copying_during_a_capture_is_done_or_refused(void) {
    gpumem_stream s = must_stream();
    unsigned char here, *p = (unsigned char *)must_malloc_async(1, s);
    gpumem_sim_graph graph;
    gpumem_status filled, copied;
    int m;
    for (m = 0; m < 3; m++) {
        here = 9;
        OK(gpumem_memset(p, 1, 1));
        OK(gpumem_sim_capture_begin(s, MODES[m]));
        filled = gpumem_memset(p, 2, 1);
        copied = gpumem_memcpy(&here, p, 1);
        CHECK(filled == GPUMEM_OK || filled == GPUMEM_ERROR_CAPTURING);
        CHECK(copied == filled && here == (copied == GPUMEM_OK ? 2 : 9));
        if (on_host_device() && MODES[m] != GPUMEM_SIM_CAPTURE_RELAXED) CHECK(filled == GPUMEM_ERROR_CAPTURING);
        CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_stream_destroy(s));
        CHECK(error_says("end the capture"));
        CHECK_STATUS(filled, gpumem_sim_capture_end(s, &graph));
        if (filled == GPUMEM_OK) OK(gpumem_sim_graph_destroy(graph));
        CHECK(holds_byte(p, 1, filled == GPUMEM_OK ? 2 : 1, s));
    }
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void bad_input_is_refused(void) {
    gpumem_stream s = must_stream();
    void *p = must_malloc_async(1000, s);
    gpumem_sim_graph graph, other, untouched = (gpumem_sim_graph)&other;
    gpumem_sim_graph_info info;
    int mode;
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_GLOBAL));
    OK(gpumem_memset_async(p, 1, 1000, s));
    OK(gpumem_sim_capture_end(s, &graph));
    for (mode = -2; mode < 6; mode++) {
        if (mode >= 0 && mode <= 2) continue;
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_begin(s, mode));
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_begin(GPUMEM_STREAM_LEGACY, GPUMEM_SIM_CAPTURE_GLOBAL));
    CHECK(error_says("legacy"));
    other = untouched;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_end(s, &other));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_end(GPUMEM_STREAM_LEGACY, &other));
    CHECK(other == untouched);
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_GLOBAL));
    CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_GLOBAL));
    CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_sim_graph_launch(graph, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_end(s, NULL));
    OK(gpumem_sim_capture_end(s, &other)); /* still valid, and of nothing */
    CHECK(other != graph && info_of(other).nodes == 0);
    OK(gpumem_sim_graph_launch(other, s));
    OK(gpumem_sim_graph_destroy(other));

    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_launch(NULL, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_launch(other, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_launch((gpumem_sim_graph)p, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_launch(untouched, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_destroy(other));
    CHECK(error_says("gpumem_sim_graph"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_destroy((gpumem_sim_graph)p));
    OK(gpumem_sim_graph_destroy(NULL));
    GPUMEM_INIT(&info);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_info_get(graph, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_info_get(NULL, &info));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_info_get(other, &info));
    info.size = 4;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_graph_info_get(graph, &info));
    /* None of it has harmed the graph. */
    OK(gpumem_memset_async(p, 0, 1000, s));
    OK(gpumem_sim_graph_launch(graph, s));
    CHECK(holds_byte(p, 1000, 1, s));
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* A stream that gets the handle of a destroyed one makes the pool ask what has become of that one's
 * memory: not while a capture that was begun here is in progress, which asking would spoil. */
static void requests_do_not_spoil_a_capture(void) {
    enum { BYTES = 100000 };
    int m;
    for (m = 0; m < 3; m++) {
        gpumem_stream s = must_stream(), old = must_stream(), renewed;
        char *p = (char *)must_malloc_async(BYTES, s), *q = (char *)must_malloc_async(BYTES, old);
        gpumem_sim_graph graph;
        OK(gpumem_memset_async(q, 1, BYTES, old));
        OK(gpumem_free_async(q, old));
        OK(gpumem_stream_destroy(old));
        OK(gpumem_sim_capture_begin(s, MODES[m]));
        OK(gpumem_memset_async(p, 5, BYTES, s));
        renewed = must_stream();
        q = (char *)must_malloc_async(BYTES, renewed);
        OK(gpumem_memset_async(p, 6, BYTES / 2, s));
        OK(gpumem_sim_capture_end(s, &graph));
        CHECK(info_of(graph).nodes == 2);
        OK(gpumem_sim_graph_launch(graph, s));
        CHECK(holds_byte(p, BYTES / 2, 6, s) && holds_byte(p + BYTES / 2, BYTES / 2, 5, s));
        OK(gpumem_sim_graph_destroy(graph));
        OK(gpumem_free_async(p, s));
        OK(gpumem_free_async(q, renewed));
        OK(gpumem_stream_destroy(s));
        OK(gpumem_stream_destroy(renewed));
        nothing_left();
    }
}

/* A thread that captures, replays and destroys on a stream of its own, while others do. */
static void *capture_and_replay(void *seed_of) {
    int seed = *(int *)seed_of, i;
    size_t bytes = 20000 + (size_t)seed * 1000;
    gpumem_stream s = must_stream();
    for (i = 0; i < 20; i++) {
        char *p = (char *)must_malloc_async(bytes, s), *q = (char *)must_malloc_async(bytes, s);
        gpumem_sim_graph graph;
        OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL));
        OK(gpumem_memset_async(p, seed + i, bytes, s));
        OK(gpumem_memcpy_async(q, p, bytes, s));
        OK(gpumem_sim_capture_end(s, &graph));
        OK(gpumem_memset_async(q, 0, bytes, s));
        OK(gpumem_sim_graph_launch(graph, s));
        OK(gpumem_sim_graph_launch(graph, s));
        CHECK(holds_byte(q, bytes, (unsigned char)(seed + i), s));
        OK(gpumem_sim_graph_destroy(graph));
        OK(gpumem_free_async(p, s));
        OK(gpumem_free_async(q, s));
    }
    OK(gpumem_stream_destroy(s));
    return NULL;
}

static void threads_capture_at_the_same_time(void) {
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    int seed[THREADS], i;
    for (i = 0; i < THREADS; i++) {
        seed[i] = i * 50;
        CHECK(pthread_create(&thread[i], NULL, capture_and_replay, &seed[i]) == 0);
    }
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    nothing_left();
}

int main(void) {
    RUN(a_graph_is_replayed);
    RUN(launches_follow_each_other);
    RUN(a_spoilt_capture_gives_no_graph);
    RUN(filling_and_copying_during_a_capture_is_done_or_refused);
    RUN(bad_input_is_refused);
    RUN(requests_do_not_spoil_a_capture);
    RUN(threads_capture_at_the_same_time);
    return 0;
}

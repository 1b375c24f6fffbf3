/* In a file that is compiled with CUDA's per-thread default stream GPUMEM_STREAM_DEFAULT is each
 * thread's own. */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "harness.h"
#include <pthread.h>

enum { BYTES = 100000 };

/* Another thread's default stream works while this thread's is captured: work on the captured
 * one would not run. */
static void *on_its_own(void *arg) {
    void *p = must_malloc_async(BYTES, GPUMEM_STREAM_DEFAULT);
    (void)arg;
    fill(p, BYTES, 3, GPUMEM_STREAM_DEFAULT);
    CHECK(holds(p, BYTES, 3, GPUMEM_STREAM_DEFAULT));
    OK(gpumem_free_async(p, GPUMEM_STREAM_DEFAULT));
    return NULL;
}

static void two_threads_have_two(void) {
    gpumem_sim_graph graph = NULL;
    pthread_t thread;
    void *p;
    CHECK(GPUMEM_STREAM_DEFAULT == GPUMEM_STREAM_PER_THREAD && GPUMEM_STREAM_DEFAULT != GPUMEM_STREAM_LEGACY);
    p = must_malloc_async(BYTES, GPUMEM_STREAM_DEFAULT);
    OK(gpumem_memset_async(p, 1, BYTES, GPUMEM_STREAM_DEFAULT));
    OK(gpumem_stream_sync(GPUMEM_STREAM_DEFAULT));
    OK(gpumem_sim_capture_begin(GPUMEM_STREAM_DEFAULT, GPUMEM_SIM_CAPTURE_RELAXED));
    OK(gpumem_memset_async(p, 2, BYTES, GPUMEM_STREAM_DEFAULT));
    CHECK(pthread_create(&thread, NULL, on_its_own, NULL) == 0 && pthread_join(thread, NULL) == 0);
    OK(gpumem_sim_capture_end(GPUMEM_STREAM_DEFAULT, &graph));
    CHECK(holds_byte(p, BYTES, 1, GPUMEM_STREAM_DEFAULT));
    OK(gpumem_sim_graph_launch(graph, GPUMEM_STREAM_DEFAULT));
    CHECK(holds_byte(p, BYTES, 2, GPUMEM_STREAM_DEFAULT));
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_free_async(p, GPUMEM_STREAM_DEFAULT));
    nothing_left();
}

/* The functions cannot know how their caller was compiled. */
static void null_is_the_legacy_stream(void) {
    gpumem_stream s = must_stream();
    void *p = must_malloc_async(BYTES, NULL);
    fill(p, BYTES, 1, GPUMEM_STREAM_LEGACY);
    CHECK(holds(p, BYTES, 1, NULL));
    OK(gpumem_free_async(p, GPUMEM_STREAM_LEGACY));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_sim_capture_begin(NULL, GPUMEM_SIM_CAPTURE_RELAXED));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

int main(void) {
    RUN(two_threads_have_two);
    RUN(null_is_the_legacy_stream);
    return 0;
}

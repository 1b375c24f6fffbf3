/* Allocations that draw from reservations: what is attached, what does not fit, what callbacks
 * may do. */
#include "reserve.h"
#include <pthread.h>

#define ALL (100 * MIB)

static void nothing_counts(void) {
    gpumem_space_stats now = gpu();
    CHECK(now.used == 0 && now.promised == 0 && now.unreserved == 0 && now.available == ALL && now.beyond == 0);
    nothing_left();
}

static void *frees(void *p) {
    gpumem_free(p);
    return NULL;
}

static void allocations_draw_from_what_is_attached(void) {
    gpumem_stream s = must_stream(), t = must_stream();
    gpumem_reservation a = must_reserve_by(20 * MIB, NULL), b = must_reserve_by(20 * MIB, NULL);
    uint64_t used = 0, peak = 0, drawn = 0;
    pthread_t thread;
    void *p, *q, *r;
    OK(gpumem_reservation_attach_stream(a, s));
    OK(gpumem_reservation_attach_thread(b));
    p = must_malloc_async(5 * MIB + 1, s);
    q = must_malloc_async(1, t);
    CHECK(info_of(a).drawn == 5 * MIB + 256 && info_of(b).drawn == 256);
    CHECK(gpu().used == 5 * MIB + 512 && gpu().unreserved == 0 && gpu().available == ALL - 40 * MIB);
    OK(gpumem_space_stream_stats_get(space_at(GPUMEM_TIER_GPU, 0), s, &used, &peak));
    CHECK(used == 5 * MIB + 256 && peak == used);
    OK(gpumem_space_detach_thread(space_at(GPUMEM_TIER_GPU, 0)));
    r = must_malloc_async(3 * MIB, t);
    CHECK(gpu().unreserved == 3 * MIB && info_of(b).drawn == 256);

    /* Freed on another stream, and on another thread. */
    OK(gpumem_free_async(p, t));
    CHECK(info_of(a).drawn == 0 && info_of(a).peak == 5 * MIB + 256);
    CHECK(pthread_create(&thread, NULL, frees, q) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(info_of(b).drawn == 0);
    OK(gpumem_space_stream_stats_get(space_at(GPUMEM_TIER_GPU, 0), s, &used, &peak));
    CHECK(used == 0 && peak == 5 * MIB + 256);

    /* What outlives its reservation goes on outside of any. */
    p = must_malloc_async(4 * MIB, s);
    OK(gpumem_reservation_release(a, &drawn));
    CHECK(drawn == 4 * MIB && gpu().unreserved == 7 * MIB && gpu().promised == 20 * MIB);
    OK(gpumem_free_async(p, s));
    OK(gpumem_free_async(r, s));
    OK(gpumem_reservation_release(b, NULL));
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
    nothing_counts();
}

static void options_name_a_reservation(void) {
    gpumem_reservation a = must_reserve_by(20 * MIB, NULL), b = must_reserve_by(20 * MIB, NULL);
    gpumem_malloc_options options;
    void *p = NULL, *none = NULL;
    OK(gpumem_reservation_attach_thread(a));
    GPUMEM_INIT(&options);
    options.bytes = MIB;
    options.reservation = b;
    OK(gpumem_malloc_with(&options, &p));
    CHECK(info_of(a).drawn == 0 && info_of(b).drawn == MIB);
    options.bytes = 20 * MIB;
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_with(&options, &none));
    CHECK(none == NULL && info_of(b).drawn == MIB);
    gpumem_free(p);
    OK(gpumem_reservation_release(b, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &none));
    CHECK(error_says("has been released") && none == NULL);
    OK(gpumem_reservation_release(a, NULL));
    nothing_counts();
}

static void exits_of_arenas_give_back(void) {
    gpumem_reservation r = must_reserve_by(20 * MIB, NULL);
    gpumem_arena arena = NULL;
    void *keep[1];
    int i;
    OK(gpumem_reservation_attach_thread(r));
    OK(gpumem_arena_enter(&arena));
    for (i = 0; i < 10; i++) keep[0] = must_malloc_async(MIB, NULL);
    CHECK(info_of(r).drawn == 10 * MIB);
    OK(gpumem_arena_exit(arena, keep, 1, NULL));
    CHECK(info_of(r).drawn == MIB);
    gpumem_free(keep[0]);
    CHECK(info_of(r).drawn == 0);
    OK(gpumem_reservation_release(r, NULL));
    nothing_counts();
}

static void policies_decide_what_does_not_fit(void) {
    gpumem_reservation r = must_reserve_by(10 * MIB, NULL);
    gpumem_reserve_policy policy;
    void *p = NULL, *q;
    OK(gpumem_reservation_attach_thread(r));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(11 * MIB, NULL, &p));
    CHECK(error_says("reservation") && p == NULL && info_of(r).drawn == 0);
    GPUMEM_INIT(&policy);
    policy.kind = GPUMEM_POLICY_IGNORE;
    OK(gpumem_reservation_policy_set(r, &policy));
    p = must_malloc_async(11 * MIB, NULL);
    CHECK(info_of(r).drawn == 10 * MIB && info_of(r).used == 11 * MIB && gpu().unreserved == MIB);
    gpumem_free(p);
    policy.kind = GPUMEM_POLICY_INCREASE;
    OK(gpumem_reservation_policy_set(r, &policy));
    p = must_malloc_async(8 * MIB, NULL);
    q = must_malloc_async(4 * MIB, NULL);
    CHECK(info_of(r).promised == 10 * MIB + 5 * MIB / 2 && info_of(r).drawn == 12 * MIB && gpu().unreserved == 0);
    gpumem_free(p);
    gpumem_free(q);
    OK(gpumem_reservation_release(r, NULL));
    nothing_counts();
}

/* A callback may call anything: this one frees, grows and asks for another try. */
struct helper {
    gpumem_reservation r;
    void *spare;
    unsigned calls;
};

static int64_t frees_and_retries(const gpumem_overdraw *what, void *user) {
    struct helper *h = (struct helper *)user;
    CHECK(what->size == sizeof *what && what->space.tier == GPUMEM_TIER_GPU && what->space.id == 0);
    CHECK(what->number == info_of(h->r).number && what->bytes == 8 * MIB && what->attempt == ++h->calls);
    if (h->spare == NULL) return GPUMEM_OVERDRAW_FAIL;
    gpumem_free(h->spare);
    h->spare = NULL;
    return GPUMEM_OVERDRAW_RETRY;
}

static void an_overdraw_callback_may_free(void) {
    struct helper h = {NULL, NULL, 0};
    gpumem_reserve_policy policy;
    void *p, *q = NULL;
    GPUMEM_INIT(&policy);
    policy.kind = GPUMEM_POLICY_CALLBACK;
    policy.callback = frees_and_retries;
    policy.user = &h;
    h.r = must_reserve_by(10 * MIB, &policy);
    OK(gpumem_reservation_attach_thread(h.r));
    h.spare = must_malloc_async(5 * MIB, NULL);
    p = must_malloc_async(8 * MIB, NULL);
    CHECK(h.calls == 1 && h.spare == NULL && info_of(h.r).drawn == 8 * MIB);
    h.calls = 0;
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(8 * MIB, NULL, &q));
    CHECK(h.calls == 1 && q == NULL);
    gpumem_free(p);
    OK(gpumem_reservation_release(h.r, NULL));
    nothing_counts();
}

static int32_t makes_room(const gpumem_shortage *what, void *user) {
    struct helper *h = (struct helper *)user;
    CHECK(what->size == sizeof *what && what->bytes == 60 * MIB && what->attempt == ++h->calls);
    if (h->spare == NULL) return 0;
    gpumem_free(h->spare);
    h->spare = NULL;
    return 1;
}

static void an_out_of_memory_callback_may_free(void) {
    struct helper h = {NULL, NULL, 0};
    void *p, *q = NULL;
    OK(gpumem_space_out_of_memory_set(space_at(GPUMEM_TIER_GPU, 0), makes_room, &h, NULL));
    h.spare = must_malloc_async(50 * MIB, NULL);
    p = must_malloc_async(60 * MIB, NULL);
    CHECK(h.calls == 1 && h.spare == NULL && gpu().unreserved == 60 * MIB);
    h.calls = 0;
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_malloc_async(60 * MIB, NULL, &q));
    CHECK(h.calls == 1 && q == NULL);
    OK(gpumem_space_out_of_memory_set(space_at(GPUMEM_TIER_GPU, 0), NULL, NULL, NULL));
    gpumem_free(p);
    nothing_counts();
}

/* A free outside of any reservation grants what waits for it. */
static void *waits(void *out) {
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = 60 * MIB;
    options.timeout_ms = GPUMEM_WAIT_FOREVER;
    OK(gpumem_reserve(&options, (gpumem_reservation *)out));
    return NULL;
}

static void a_free_wakes_who_waits(void) {
    void *p = must_malloc_async(50 * MIB, NULL);
    gpumem_reservation r = NULL;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits, &r) == 0);
    while (gpu().waiters == 0) usleep(100);
    gpumem_free(p);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(info_of(r).promised == 60 * MIB);
    OK(gpumem_reservation_release(r, NULL));
    nothing_counts();
}

/* A stream that is being captured stays, and keeps what is attached to it. */
static void a_stream_that_stays_keeps_its_reservation(void) {
    gpumem_stream s = must_stream();
    gpumem_reservation r = must_reserve_by(MIB, NULL);
    gpumem_sim_graph graph;
    uint64_t number = 0;
    if (!on_host_device()) return;
    OK(gpumem_reservation_attach_stream(r, s));
    OK(gpumem_sim_capture_begin(s, 1));
    CHECK_STATUS(GPUMEM_ERROR_CAPTURING, gpumem_stream_destroy(s));
    OK(gpumem_sim_capture_end(s, &graph));
    OK(gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), s, &number));
    CHECK(number != 0);
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_stream_destroy(s));
    OK(gpumem_reservation_release(r, NULL));
}

int main(void) {
    OK(gpumem_init(NULL));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL));
    RUN(allocations_draw_from_what_is_attached);
    RUN(options_name_a_reservation);
    RUN(exits_of_arenas_give_back);
    RUN(policies_decide_what_does_not_fit);
    RUN(an_overdraw_callback_may_free);
    RUN(an_out_of_memory_callback_may_free);
    RUN(a_free_wakes_who_waits);
    RUN(a_stream_that_stays_keeps_its_reservation);
    return 0;
}

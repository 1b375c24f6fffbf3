/* Reservations: promises that are exact, in one thread. Waiting is in reserve_wait.c. */
#include "reserve.h"

#define ALL (100 * MIB)

/* The request is refused with these words, and nothing is promised. */
static void refused(const gpumem_reserve_options *options, gpumem_status status, const char *says) {
    gpumem_reservation r = NULL;
    uint64_t promised = gpu().promised;
    CHECK_STATUS(status, gpumem_reserve(options, &r));
    if (!error_says(says)) harness_fail(__FILE__, __LINE__, says);
    CHECK(r == NULL && gpu().promised == promised);
}

static void promises_are_exact(void) {
    gpumem_reservation a = must_reserve(60 * MIB), b = must_reserve(40 * MIB), c;
    gpumem_reserve_options options = want(1);
    gpumem_reservation_info info = info_of(a);
    uint64_t drawn = 9;
    CHECK(info.promised == 60 * MIB && info.drawn == 0 && info.used == 0 && info.peak == 0);
    CHECK(info.space.tier == GPUMEM_TIER_GPU && info.space.id == 0 && info.arrived < info.granted);
    CHECK(info_of(b).number != info.number && info_of(b).arrived > info.granted);
    CHECK(gpu().promised == ALL && gpu().available == 0 && gpu().reservations == 2);
    refused(&options, GPUMEM_ERROR_OUT_OF_MEMORY, "is not available");
    OK(gpumem_reservation_shrink(a, 10 * MIB));
    CHECK(info_of(a).promised == 50 * MIB && gpu().available == 10 * MIB);
    c = must_reserve(10 * MIB);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_reservation_grow(b, 1, 0, NULL));
    OK(gpumem_reservation_release(c, &drawn));
    CHECK(drawn == 0);
    OK(gpumem_reservation_grow(b, 10 * MIB, 0, NULL));
    CHECK(info_of(b).promised == 50 * MIB && gpu().available == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_shrink(b, 50 * MIB + 1));
    OK(gpumem_reservation_shrink_to_fit(b, &drawn));
    CHECK(drawn == 50 * MIB && info_of(b).promised == 0);
    OK(gpumem_reservation_shrink_to_fit(b, NULL));
    OK(gpumem_reservation_release(a, NULL));
    OK(gpumem_reservation_release(b, NULL));
    CHECK(gpu().promised == 0 && gpu().available == ALL && gpu().reservations == 0);
}

static void up_to_takes_what_there_is(void) {
    gpumem_reservation a = must_reserve(70 * MIB), b = NULL;
    gpumem_reserve_options options = want(50 * MIB);
    options.least_bytes = 30 * MIB + 1;
    refused(&options, GPUMEM_ERROR_OUT_OF_MEMORY, "30.00 MiB (31457281 bytes) is not available (GPU 0: 30.00 MiB of ");
    options.least_bytes = 20 * MIB;
    OK(gpumem_reserve(&options, &b));
    CHECK(info_of(b).promised == 30 * MIB);
    OK(gpumem_reservation_release(a, NULL));
    OK(gpumem_reserve(&options, &a));
    CHECK(info_of(a).promised == 50 * MIB);
    OK(gpumem_reservation_release(a, NULL));
    OK(gpumem_reservation_release(b, NULL));
    options.least_bytes = 51 * MIB;
    refused(&options, GPUMEM_ERROR_INVALID, "53477376 bytes, is more than what is asked for, 52428800");
    options = want(0);
    refused(&options, GPUMEM_ERROR_INVALID, "a reservation of 0 bytes");
}

static void strategies_name_where(void) {
    gpumem_reserve_options options = want(MIB);
    gpumem_reservation r = NULL;
    options.strategy = GPUMEM_RESERVE_SPACE;
    options.space.tier = GPUMEM_TIER_GPU;
    OK(gpumem_reserve(&options, &r));
    CHECK(info_of(r).space.tier == GPUMEM_TIER_GPU && info_of(r).space.id == 0);
    OK(gpumem_reservation_release(r, NULL));
    options.strategy = GPUMEM_RESERVE_TIER;
    OK(gpumem_reserve(&options, &r));
    CHECK(info_of(r).space.tier == GPUMEM_TIER_GPU);
    OK(gpumem_reservation_release(r, NULL));
    options = want(MIB);
    options.strategy = GPUMEM_RESERVE_TIERS;
    options.tiers[0] = GPUMEM_TIER_GPU;
    options.tiers[1] = GPUMEM_TIER_HOST;
    OK(gpumem_reserve(&options, &r));
    CHECK(info_of(r).space.tier == GPUMEM_TIER_GPU);
    OK(gpumem_reservation_release(r, NULL));

    options = want(MIB);
    options.strategy = GPUMEM_RESERVE_UPGRADE;
    options.space.tier = GPUMEM_TIER_GPU;
    refused(&options, GPUMEM_ERROR_INVALID, "to move GPU 0 up to");
    options.strategy = GPUMEM_RESERVE_DOWNGRADE;
    options.tiers[0] = GPUMEM_TIER_GPU;
    refused(&options, GPUMEM_ERROR_INVALID, "to move GPU 0 down to");
}

/* Two devices: in a child, as gpumem starts once in a process. */
static void the_current_device_and_the_roomiest_are_found(void) {
    gpumem_reserve_options options = want(MIB);
    gpumem_reservation a = NULL, b = NULL;
    gpumem_stream s;
    pid_t child;
    if (strcmp(getenv("GPUMEM_TEST_BACKEND"), "host") != 0) {
        printf("skipped: this is about two devices\n");
        return;
    }
    child = fork();
    CHECK(child >= 0);
    if (child != 0) {
        CHECK(exit_code(child) == 0);
        return;
    }
    setenv("GPUMEM_HOST_DEVICES", "2", 1);
    OK(gpumem_device_set(1));
    s = must_stream();
    OK(gpumem_reserve(&options, &a));
    CHECK(info_of(a).space.id == 1);
    options.strategy = GPUMEM_RESERVE_TIER;
    options.space.tier = GPUMEM_TIER_GPU;
    OK(gpumem_reserve(&options, &b));
    CHECK(info_of(b).space.id == 0);
    OK(gpumem_reservation_attach_stream(a, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_stream(b, s));
    CHECK(error_says("is of device 1"));
    OK(gpumem_reservation_attach_stream(b, NULL)); /* a default stream is of every device */
    OK(gpumem_reservation_release(a, NULL));
    OK(gpumem_reservation_release(b, NULL));
    OK(gpumem_stream_destroy(s));
    exit(0);
}

static uint64_t current(gpumem_stream s) {
    uint64_t number = 77;
    OK(gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), s, &number));
    return number;
}

static void attachments_last_until_detached_or_released(void) {
    gpumem_stream s = must_stream(), t = must_stream();
    gpumem_reservation a = must_reserve(MIB), b = must_reserve(MIB);
    uint64_t na = info_of(a).number, nb = info_of(b).number;
    CHECK(na != 0 && nb != 0 && current(s) == 0);
    OK(gpumem_reservation_attach_stream(a, s));
    CHECK(current(s) == na && current(t) == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_stream(b, s));
    CHECK(error_says("detach it first") && current(s) == na);
    OK(gpumem_reservation_attach_thread(b));
    CHECK(current(s) == na && current(t) == nb); /* the stream's comes first */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_thread(a));
    OK(gpumem_space_detach_stream(space_at(GPUMEM_TIER_GPU, 0), s));
    CHECK(current(s) == nb);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_detach_stream(space_at(GPUMEM_TIER_GPU, 0), s));
    CHECK(error_says("has no reservation"));
    OK(gpumem_space_detach_thread(space_at(GPUMEM_TIER_GPU, 0)));
    CHECK(current(s) == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_detach_thread(space_at(GPUMEM_TIER_GPU, 0)));

    OK(gpumem_reservation_attach_stream(a, s));
    OK(gpumem_reservation_attach_stream(a, t));
    OK(gpumem_reservation_attach_thread(a));
    OK(gpumem_reservation_release(a, NULL));
    CHECK(current(s) == 0 && current(t) == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_stream(a, s));

    /* A stream that is destroyed leaves nothing to the one that gets its handle. */
    OK(gpumem_reservation_attach_stream(b, s));
    OK(gpumem_stream_destroy(s));
    CHECK(current(s) == 0);
    if (on_host_device()) CHECK_STATUS(GPUMEM_ERROR_INVALID_STREAM, gpumem_reservation_attach_stream(b, s));
    OK(gpumem_reservation_release(b, NULL));
    OK(gpumem_stream_destroy(t));
}

static void released_handles_are_stale(void) {
    gpumem_reservation r = must_reserve(MIB);
    gpumem_reservation_info info;
    gpumem_reserve_policy policy;
    GPUMEM_INIT(&info);
    GPUMEM_INIT(&policy);
    OK(gpumem_reservation_release(r, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_release(r, NULL));
    CHECK(error_says("has been released"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_grow(r, 1, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_shrink(r, 1));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_shrink_to_fit(r, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_info_get(r, &info));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_stream(r, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_attach_thread(r));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_policy_set(r, &policy));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_out_of_memory_set(r, NULL, NULL, NULL));
    CHECK(error_says("has been released"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_release(NULL, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_release((gpumem_reservation)&info, NULL));
    CHECK(error_says("is no gpumem_reservation"));
    CHECK(gpu().promised == 0);
}

static int64_t never_called(const gpumem_overdraw *what, void *user) {
    (void)what;
    (void)user;
    abort();
    return 0;
}

static int32_t gives_up(const gpumem_shortage *what, void *user) {
    (void)what;
    (void)user;
    return 0;
}

static int freed[2];
static void frees(void *user) { freed[user == &freed[1]]++; }

static void impossible_requests_are_refused(void) {
    gpumem_reservation r = must_reserve(MIB);
    gpumem_reserve_options o = want(0);
    refused(&o, GPUMEM_ERROR_INVALID, "0 bytes");
    o = want(ALL + 1);
    refused(&o, GPUMEM_ERROR_OUT_OF_MEMORY, "more than may ever be promised");
    o.timeout_ms = GPUMEM_WAIT_FOREVER; /* which does not wait */
    refused(&o, GPUMEM_ERROR_OUT_OF_MEMORY, "more than may ever be promised");
    o = want(UINT64_MAX);
    refused(&o, GPUMEM_ERROR_OUT_OF_MEMORY, "more than may ever be promised");
    o = want(1);
    o.space.tier = GPUMEM_TIER_GPU, o.space.id = 7;
    refused(&o, GPUMEM_ERROR_INVALID, "there is no space GPU 7");
    o = want(1);
    o.space.id = 1;
    refused(&o, GPUMEM_ERROR_INVALID, "tier not set");
    o = want(1);
    o.space.tier = 9;
    refused(&o, GPUMEM_ERROR_INVALID, "9 is no tier");
    o = want(1);
    o.strategy = 6;
    refused(&o, GPUMEM_ERROR_INVALID, "strategy is 6");
    o = want(1);
    o.tiers[0] = GPUMEM_TIER_GPU;
    refused(&o, GPUMEM_ERROR_INVALID, ".tiers is set");
    o = want(1);
    o.strategy = GPUMEM_RESERVE_TIER;
    refused(&o, GPUMEM_ERROR_INVALID, "0 is no tier");
    o.space.tier = GPUMEM_TIER_GPU, o.space.id = 1;
    refused(&o, GPUMEM_ERROR_INVALID, ".id is set");
    o = want(1);
    o.strategy = GPUMEM_RESERVE_TIERS;
    refused(&o, GPUMEM_ERROR_INVALID, "empty list");
    o.tiers[1] = GPUMEM_TIER_GPU;
    refused(&o, GPUMEM_ERROR_INVALID, "0 in the middle");
    o.tiers[0] = 4;
    refused(&o, GPUMEM_ERROR_INVALID, "4 is no tier");
    o.tiers[0] = GPUMEM_TIER_GPU, o.space.tier = GPUMEM_TIER_GPU;
    refused(&o, GPUMEM_ERROR_INVALID, ".space is set");
    o = want(1);
    o.strategy = GPUMEM_RESERVE_DOWNGRADE, o.space.tier = GPUMEM_TIER_GPU;
    o.tiers[0] = GPUMEM_TIER_HOST, o.tiers[1] = GPUMEM_TIER_DISK;
    refused(&o, GPUMEM_ERROR_INVALID, "more than the one tier");
    o = want(1);
    o.cancel = (gpumem_token)r;
    refused(&o, GPUMEM_ERROR_INVALID, "is no gpumem_token");
    o = want(1);
    o.user = &o;
    refused(&o, GPUMEM_ERROR_INVALID, "the callback is NULL");
    o.user = NULL, o.free_user = frees;
    refused(&o, GPUMEM_ERROR_INVALID, "the callback is NULL");
    o = want(1);
    o.size = 88;
    refused(&o, GPUMEM_ERROR_INVALID, "gpumem_reserve_options.size is 88");
    refused(NULL, GPUMEM_ERROR_INVALID, "NULL");
    o = want(1);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reserve(&o, NULL));

    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_grow(r, 0, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_reservation_grow(r, UINT64_MAX, GPUMEM_WAIT_FOREVER, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_grow(r, 1, 0, (gpumem_token)r));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_shrink(r, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_info_get(r, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_token_create(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_token_cancel(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_token_destroy((gpumem_token)r));
    CHECK(info_of(r).promised == MIB);
    OK(gpumem_reservation_release(r, NULL));
}

static void policies_that_make_no_sense_are_refused(void) {
    gpumem_reserve_options o = want(1);
    gpumem_reserve_policy p;
    o.policy = &p;
    GPUMEM_INIT(&p);
    p.kind = 5;
    refused(&o, GPUMEM_ERROR_INVALID, "kind is 5");
    p.kind = GPUMEM_POLICY_CALLBACK;
    refused(&o, GPUMEM_ERROR_INVALID, "callback is NULL");
    p.callback = never_called;
    p.factor = 2;
    refused(&o, GPUMEM_ERROR_INVALID, "factor, cap or flags is set");
    p.factor = 0;
    p.kind = 0;
    refused(&o, GPUMEM_ERROR_INVALID, "callback, user or free_user is set");
    GPUMEM_INIT(&p);
    p.kind = GPUMEM_POLICY_INCREASE;
    p.factor = 0.5;
    refused(&o, GPUMEM_ERROR_INVALID, "from 1 to 1000");
    p.factor = 0;
    p.flags = 2;
    refused(&o, GPUMEM_ERROR_INVALID, "unknown bits");
    p.flags = GPUMEM_POLICY_BEYOND_LIMIT;
    p.reserved = 1;
    refused(&o, GPUMEM_ERROR_INVALID, "unknown bits");
    GPUMEM_INIT(&p);
    p.kind = GPUMEM_POLICY_IGNORE;
    p.cap = 1;
    refused(&o, GPUMEM_ERROR_INVALID, "factor, cap or flags is set");
    p.size = 4;
    refused(&o, GPUMEM_ERROR_INVALID, "gpumem_reserve_policy.size");
}

/* free_user is called once, when nobody can call the callback any more; not when the call that
 * brought it has failed. */
static void users_are_freed_once(void) {
    gpumem_reserve_options o = want(ALL);
    gpumem_reserve_policy p;
    gpumem_reservation r = NULL, none = NULL;
    GPUMEM_INIT(&p);
    p.kind = GPUMEM_POLICY_CALLBACK;
    p.callback = never_called;
    p.user = &freed[0];
    p.free_user = frees;
    o.policy = &p;
    o.out_of_memory = gives_up;
    o.user = &freed[1];
    o.free_user = frees;
    OK(gpumem_reserve(&o, &r));
    CHECK(freed[0] == 0 && freed[1] == 0);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_reserve(&o, &none)); /* granted are callbacks only with bytes */
    CHECK(freed[0] == 0 && freed[1] == 0);
    OK(gpumem_reservation_policy_set(r, &p)); /* the same again: one use of it ends */
    CHECK(freed[0] == 1 && freed[1] == 0);
    p.factor = 3;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_policy_set(r, &p));
    CHECK(freed[0] == 1);
    OK(gpumem_reservation_policy_set(r, NULL));
    CHECK(freed[0] == 2 && freed[1] == 0);
    OK(gpumem_reservation_out_of_memory_set(r, NULL, NULL, NULL));
    CHECK(freed[1] == 1);
    OK(gpumem_reservation_out_of_memory_set(r, gives_up, &freed[1], frees));
    p.factor = 0;
    OK(gpumem_reservation_policy_set(r, &p));
    CHECK(freed[0] == 2 && freed[1] == 1);
    OK(gpumem_reservation_release(r, NULL));
    CHECK(freed[0] == 3 && freed[1] == 2);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_reservation_out_of_memory_set(r, gives_up, &freed[1], frees));
    CHECK(freed[0] == 3 && freed[1] == 2);

    OK(gpumem_space_out_of_memory_set(space_at(GPUMEM_TIER_GPU, 0), gives_up, &freed[1], frees));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_out_of_memory_set(space_at(GPUMEM_TIER_GPU, 0), NULL, &freed[1], NULL));
    CHECK(freed[1] == 2);
    OK(gpumem_space_out_of_memory_set(space_at(GPUMEM_TIER_GPU, 0), NULL, NULL, NULL));
    CHECK(freed[1] == 3);
}

int main(void) {
    RUN(the_current_device_and_the_roomiest_are_found);
    OK(gpumem_init(NULL));
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), ALL));
    RUN(promises_are_exact);
    RUN(up_to_takes_what_there_is);
    RUN(strategies_name_where);
    RUN(attachments_last_until_detached_or_released);
    RUN(released_handles_are_stale);
    RUN(impossible_requests_are_refused);
    RUN(policies_that_make_no_sense_are_refused);
    RUN(users_are_freed_once);
    CHECK(gpu().promised == 0 && gpu().available == ALL && gpu().waiters == 0);
    nothing_left();
    return 0;
}

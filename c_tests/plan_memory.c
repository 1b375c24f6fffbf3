/* Plans that get memory: every buffer keeps what was written to it for as long as it is live. */
#include "plan.h"

enum { MOST = 40, STEPS = 30 };

static struct {
    uint64_t bytes, lower, upper;
    unsigned char *at;
} b[MOST];

static uint32_t buffers(void) { return is_slow() ? 12 : MOST; }

/* How good the layout is does not matter here: without a search where that is slow. */
static void laid_out(gpumem_plan plan) {
    gpumem_plan_solve_options options;
    GPUMEM_INIT(&options);
    options.effort = is_slow() ? GPUMEM_PLAN_EFFORT_FAST : GPUMEM_PLAN_EFFORT_NORMAL;
    OK(gpumem_plan_solve(plan, &options));
}

/* Runs the steps: fills what begins, checks what ends. */
static void run_steps(gpumem_stream s) {
    uint64_t step;
    size_t i;
    for (step = 0; step <= STEPS + 10; step++) {
        for (i = 0; i < buffers(); i++)
            if (b[i].upper == step) CHECK(holds(b[i].at, b[i].bytes, (unsigned)i, s));
        for (i = 0; i < buffers(); i++)
            if (b[i].lower == step) fill(b[i].at, b[i].bytes, (unsigned)i, s);
    }
}

static gpumem_plan make(uint64_t alignment) {
    gpumem_plan_options options;
    gpumem_plan plan = NULL;
    uint32_t state = 3;
    size_t i;
    GPUMEM_INIT(&options);
    options.alignment = alignment;
    OK(gpumem_plan_create(&options, &plan));
    for (i = 0; i < buffers(); i++) {
        b[i].bytes = 1 + draw(&state) % 20000;
        b[i].lower = draw(&state) % STEPS;
        b[i].upper = b[i].lower + 1 + draw(&state) % 8;
        CHECK(add(plan, b[i].bytes, b[i].lower, b[i].upper) == i);
    }
    laid_out(plan);
    return plan;
}

static void find_pointers(gpumem_plan plan, void *const *bases, size_t count, uint64_t alignment) {
    uint32_t i;
    for (i = 0; i < buffers(); i++) {
        void *at = NULL;
        OK(gpumem_plan_pointer_get(plan, i, bases, count, &at));
        CHECK((uintptr_t)at % alignment == 0);
        CHECK((unsigned char *)at == (unsigned char *)bases[arena_of(plan, i)] + offset_of(plan, i));
        b[i].at = (unsigned char *)at;
    }
}

static void contents_live_as_long_as_planned(void) {
    gpumem_plan plan = make(256);
    gpumem_stream s = must_stream();
    void *base = NULL, *again = NULL;
    uint64_t bytes = bytes_of(plan, 0);
    OK(gpumem_plan_materialise(plan, 0, s, &base));
    CHECK(base != NULL && (uintptr_t)base % 256 == 0 && gpumem_usable_size(base) >= bytes);
    CHECK(stats_now().allocations == 1 && stats_now().requested == bytes);
    find_pointers(plan, &base, 1, 256);
    run_steps(s);
    OK(gpumem_plan_materialise(plan, 0, NULL, &again)); /* any number of times */
    CHECK(again != base);
    gpumem_free(again);

    /* The memory is the caller's whatever happens to the plan. */
    OK(gpumem_plan_destroy(plan));
    run_steps(s);
    OK(gpumem_free_async(base, s));
    OK(gpumem_stream_sync(s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void large_alignments_hold(void) {
    gpumem_plan plan = make(64 * KIB);
    void *base = NULL;
    OK(gpumem_plan_materialise(plan, 0, NULL, &base));
    find_pointers(plan, &base, 1, 64 * KIB);
    run_steps(NULL);
    gpumem_free(base);
    OK(gpumem_plan_destroy(plan));

    plan = must_plan(); /* of one buffer only */
    add(plan, 10, 0, 1);
    {
        gpumem_plan_buffer_options o = described(10, 0, 1);
        o.alignment = 4 * MIB;
        must_add(plan, o);
    }
    laid_out(plan);
    OK(gpumem_plan_materialise(plan, 0, NULL, &base));
    CHECK((uintptr_t)base % (4 * MIB) == 0);
    gpumem_free(base);
    OK(gpumem_plan_resize(plan, 0, 0));
    {
        gpumem_plan_buffer_options o = described(10, 0, 1);
        o.alignment = (uint64_t)1 << 40;
        must_add(plan, o);
    }
    laid_out(plan);
    base = &base;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_materialise(plan, 0, NULL, &base));
    CHECK(base == &base);
    OK(gpumem_plan_destroy(plan));
    nothing_left();
}

static void every_arena_is_an_allocation(void) {
    gpumem_plan plan = make(256);
    gpumem_malloc_options options;
    gpumem_pointer_info info;
    void *bases[3] = {NULL, NULL, NULL}, *at = NULL;
    uint32_t second = 0, third = 0;
    OK(gpumem_plan_capacity_set(plan, 0, bytes_of(plan, 0) * 2 / 3));
    OK(gpumem_plan_arena_add(plan, 0, NULL, &second));
    OK(gpumem_plan_arena_add(plan, 0, "empty", &third));
    laid_out(plan);
    CHECK(bytes_of(plan, second) > 0 && bytes_of(plan, third) == 0);
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_SINGLE_HANDLE;
    options.tag = 4711;
    options.alignment = 4096;
    OK(gpumem_plan_materialise(plan, 0, NULL, &bases[0]));
    OK(gpumem_plan_materialise_with(plan, second, &options, &bases[1]));
    OK(gpumem_plan_materialise(plan, third, NULL, &bases[2]));
    CHECK(bases[2] != NULL && stats_now().allocations == 3); /* of no bytes, and a pointer all the same */
    GPUMEM_INIT(&info);
    OK(gpumem_pointer_info_get(bases[1], &info));
    CHECK(info.tag == 4711 && info.flags == GPUMEM_MALLOC_SINGLE_HANDLE && (uintptr_t)bases[1] % 4096 == 0);
    CHECK(info.requested == bytes_of(plan, second));
    find_pointers(plan, bases, 3, 256);
    run_steps(NULL);
    for (second = 0; second < buffers() && arena_of(plan, second) == 0; second++) {
    }
    CHECK(second < buffers());
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_pointer_get(plan, second, bases, 1, &at)); /* its base is not given */
    gpumem_free(bases[0]);
    gpumem_free(bases[1]);
    gpumem_free(bases[2]);
    options.flags = 1u << 30;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_materialise_with(plan, 0, &options, &at));
    OK(gpumem_plan_destroy(plan));
    nothing_left();
}

/* Without the pool the driver chooses the alignment: it suffices, or the caller is told. */
static void without_the_pool(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_plan plan = make(256);
        gpumem_plan_buffer_options o = described(10, 0, 1);
        gpumem_malloc_options ask;
        void *base = NULL;
        gpumem_status status;
        setenv("GPUMEM_POOL", "off", 1);
        OK(gpumem_plan_materialise(plan, 0, NULL, &base));
        find_pointers(plan, &base, 1, 256);
        run_steps(NULL);
        gpumem_free(base);
        o.alignment = 1024 * MIB;
        must_add(plan, o);
        laid_out(plan);
        status = gpumem_plan_materialise(plan, 0, NULL, &base);
        CHECK(status == GPUMEM_ERROR_UNSUPPORTED || (status == GPUMEM_OK && (uintptr_t)base % o.alignment == 0));
        GPUMEM_INIT(&ask);
        ask.bytes = 4096;
        ask.alignment = 1024 * MIB;
        status = gpumem_malloc_with(&ask, &base);
        CHECK(status == GPUMEM_ERROR_UNSUPPORTED || (status == GPUMEM_OK && (uintptr_t)base % ask.alignment == 0));
        ask.alignment = 3;
        CHECK(gpumem_malloc_with(&ask, &base) == GPUMEM_ERROR_INVALID);
        ask.alignment = 64;
        OK(gpumem_malloc_with(&ask, &base));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main(void) {
    RUN(without_the_pool);
    RUN(contents_live_as_long_as_planned);
    RUN(large_alignments_hold);
    RUN(every_arena_is_an_allocation);
    return 0;
}

/* Arenas: what is allocated in one ends with it, but for what is kept. */
#include "harness.h"

static gpumem_arena must_enter(const char *name) {
    gpumem_arena a = NULL;
    OK(gpumem_arena_enter_named(name, &a));
    CHECK(a != NULL);
    return a;
}

static gpumem_arena_report must_exit(gpumem_arena a, void *const *keep, size_t keep_len) {
    gpumem_arena_report report;
    GPUMEM_INIT(&report);
    OK(gpumem_arena_exit(a, keep, keep_len, &report));
    CHECK(report.size == sizeof report);
    return report;
}

static gpumem_arena_stats stats_of(gpumem_arena a) {
    gpumem_arena_stats stats;
    GPUMEM_INIT(&stats);
    OK(gpumem_arena_stats_get(a, &stats));
    CHECK(stats.size == sizeof stats);
    return stats;
}

static gpumem_arena current(void) {
    gpumem_arena a = (gpumem_arena)&a;
    OK(gpumem_arena_current_get(&a));
    return a;
}

static gpumem_arena arena_of(const void *p) {
    gpumem_arena a = (gpumem_arena)&a;
    OK(gpumem_arena_find(p, &a));
    return a;
}

static uint64_t id_of(const void *p) {
    uint64_t id = 0;
    OK(gpumem_allocation_id_get(p, &id));
    CHECK(id != 0);
    return id;
}

static void an_exit_frees_all_but_what_is_kept(void) {
    gpumem_stream s = must_stream();
    void *before = must_malloc_async(5000, s), *keep[7], *p[6], *q;
    gpumem_arena a, unused = NULL;
    gpumem_arena_report report;
    size_t i;
    CHECK(current() == NULL);
    OK(gpumem_arena_enter(&a));
    CHECK(current() == a);
    for (i = 0; i < 4; i++) p[i] = must_malloc_async(1000 << (4 * i), s); /* objects of slabs, and blocks */
    p[4] = gpumem_malloc(777);
    OK(gpumem_realloc_async(NULL, 888, s, &p[5]));
    for (i = 0; i < 6; i++) CHECK(arena_of(p[i]) == a);
    CHECK(arena_of(before) == NULL);
    fill(p[3], 100000, 3, s);
    gpumem_free(p[0]); /* early */
    OK(gpumem_realloc_async(before, 600000, s, &before));

    /* Interior, the same again, ordinary, freed already, nothing, and no memory of gpumem's. */
    keep[0] = (char *)p[3] + 70000;
    keep[1] = p[3];
    keep[2] = before;
    keep[3] = p[0];
    keep[4] = NULL;
    keep[5] = &a;
    keep[6] = p[1];
    report = must_exit(a, keep, 7);
    CHECK(report.depth == 0 && report.freed == 3 && report.freed_bytes == 256000 + 777 + 888);
    CHECK(report.kept == 2 && report.kept_bytes == 16000 + 4096000);
    CHECK(report.duplicate == 1 && report.foreign == 1 && report.unknown == 2);
    CHECK(current() == NULL);

    /* What was kept out of the outermost arena is ordinary, and as it was. */
    CHECK(arena_of(p[3]) == NULL && arena_of(p[1]) == NULL && arena_of(before) == NULL);
    CHECK(holds(p[3], 100000, 3, s));
    CHECK_STATUS(GPUMEM_ERROR_DOUBLE_FREE, gpumem_free_async(p[2], s));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_find(p[2], &unused));
    CHECK(unused == NULL);
    q = must_malloc_async(100, s); /* in no arena */
    CHECK(arena_of(q) == NULL);
    CHECK(stats_now().allocations == 4);
    OK(gpumem_free_async(q, s));
    OK(gpumem_free_async(p[1], s));
    OK(gpumem_free_async(p[3], s));
    OK(gpumem_free_async(before, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* 64 buffers that nobody releases, in four nested arenas, four times: one is kept through all of
 * them. */
static void never_released_buffers_in_nested_rounds(void) {
    gpumem_stream s = must_stream();
    void *kept[4];
    int round, level, i;
    for (round = 0; round < 4; round++) {
        gpumem_arena arena[4];
        for (level = 0; level < 4; level++) {
            arena[level] = must_enter("nested");
            CHECK(stats_of(arena[level]).depth == (uint32_t)level);
            for (i = 0; i < 16; i++) {
                size_t bytes = 500 + (size_t)(level * 16 + i) * 7000;
                void *p = must_malloc_async(bytes, s);
                OK(gpumem_memset_async(p, i, bytes, s));
                if (level == 3 && i == 9) kept[round] = p;
            }
        }
        OK(gpumem_memset_async(kept[round], 0x50 + round, 300000, s));
        CHECK(stats_now().allocations == 64u + (unsigned)round);
        for (level = 3; level >= 0; level--) {
            gpumem_arena_report report = must_exit(arena[level], &kept[round], 1);
            CHECK(report.freed == (level == 3 ? 15u : 16u) && report.kept == 1);
            CHECK(report.unknown + report.duplicate + report.foreign == 0 && report.depth == (uint32_t)level);
            CHECK(arena_of(kept[round]) == (level > 0 ? arena[level - 1] : NULL));
        }
        CHECK(stats_now().allocations == (unsigned)round + 1);
        CHECK(stats_now().requested == (uint64_t)(round + 1) * (500 + 57 * 7000));
    }
    for (round = 0; round < 4; round++) {
        CHECK(holds_byte(kept[round], 300000, (unsigned char)(0x50 + round), s));
        OK(gpumem_free_async(kept[round], s));
    }
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* Runs steps that release nothing; what is live and mapped afterwards. */
static gpumem_stats after_steps(int steps, gpumem_stream s) {
    int step, i;
    for (step = 0; step < steps; step++) {
        gpumem_arena a = must_enter("step");
        for (i = 0; i < 50; i++) {
            void *p = must_malloc_async(1 + (size_t)((step + i) % 50) * 20000, s);
            OK(gpumem_memset_async(p, i, 1, s));
        }
        CHECK(must_exit(a, NULL, 0).freed == 50);
    }
    OK(gpumem_stream_sync(s));
    return stats_now();
}

static void twice_the_steps_need_no_more(void) {
    gpumem_stream s = must_stream();
    gpumem_stats once = after_steps(50, s), twice = after_steps(100, s);
    CHECK(once.allocations == 0 && once.requested == 0 && once.live == 0);
    CHECK(twice.allocations == 0 && twice.requested == 0 && twice.live == 0);
    CHECK(once.mapped > 0 && twice.mapped == once.mapped);
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void promote_and_escape(void) {
    gpumem_stream s = must_stream();
    static void *cached; /* a constant that the first step makes, for all steps */
    gpumem_arena outer = must_enter("outer"), inner, named;
    gpumem_malloc_options options;
    void *promoted, *in_outer, *p;
    int step;
    for (step = 0; step < 3; step++) {
        inner = must_enter("step");
        if (cached == NULL) {
            cached = must_malloc_async(200000, s);
            fill(cached, 200000, 42, s);
            OK(gpumem_arena_escape((char *)cached + 100));
            OK(gpumem_arena_escape(cached)); /* again: nothing */
            CHECK(arena_of(cached) == NULL);
            CHECK(stats_of(inner).promoted == 1 && stats_of(inner).live == 0);
        }
        CHECK(holds(cached, 200000, 42, s));
        must_malloc_async(200000, s);
        CHECK(must_exit(inner, NULL, 0).freed == 1);
    }
    inner = must_enter(NULL);
    promoted = must_malloc_async(3000, s);
    OK(gpumem_arena_promote((char *)promoted + 2999));
    CHECK(arena_of(promoted) == outer);
    GPUMEM_INIT(&options);
    options.bytes = 10;
    options.stream = s;
    options.arena = outer; /* by name, though another is current */
    OK(gpumem_malloc_with(&options, &in_outer));
    CHECK(arena_of(in_outer) == outer && current() == inner);
    CHECK(must_exit(inner, NULL, 0).freed == 0);
    named = outer;
    CHECK(must_exit(outer, NULL, 0).freed == 2);
    options.arena = named; /* exited */
    p = &p;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &p));
    CHECK(error_says("exited") && p == &p);
    options.arena = (gpumem_arena)&options;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_malloc_with(&options, &p));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_promote(cached));
    CHECK(error_says("in no arena"));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_promote(promoted));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_escape(promoted));
    CHECK(holds(cached, 200000, 42, s));
    OK(gpumem_free_async(cached, s));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void names_and_statistics(void) {
    gpumem_stream s = must_stream();
    char long_name[80];
    gpumem_arena a, inner;
    gpumem_arena_stats stats;
    gpumem_arena_report report;
    void *p[10];
    int i;
    memset(long_name, 'x', sizeof long_name);
    memcpy(long_name + 62, "\xc3\xa9!", 4); /* the 63rd and 64th byte are one letter: cut before it */
    a = must_enter("a training step");
    CHECK(strcmp(stats_of(a).name, "a training step") == 0);
    inner = must_enter(long_name);
    stats = stats_of(inner);
    CHECK(strlen(stats.name) == 62 && strncmp(stats.name, long_name, 62) == 0);
    CHECK(stats.id > stats_of(a).id && stats_of(a).id > 0);
    for (i = 0; i < 10; i++) p[i] = must_malloc_async(1000 * (size_t)(i + 1), s);
    OK(gpumem_free_async(p[9], s));
    OK(gpumem_free_id(p[8], id_of(p[8])));
    OK(gpumem_arena_promote(p[0]));
    stats = stats_of(inner);
    CHECK(stats.depth == 1 && stats.threads == 1 && stats.joined == 10 && stats.left == 3 && stats.promoted == 1);
    CHECK(stats.freed_early == 2 && stats.live == 7 && stats.live_bytes == 35000 && stats.peak_bytes == 55000);
    report = must_exit(inner, NULL, 0);
    CHECK(report.depth == 1 && report.freed == 7 && report.freed_bytes == 35000);
    CHECK(report.nanoseconds >= stats.nanoseconds && stats.nanoseconds > 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_stats_get(inner, &stats));
    CHECK(must_exit(a, NULL, 0).freed_bytes == 1000);
    inner = must_enter(NULL);
    CHECK(stats_of(inner).name[0] == '\0');
    OK(gpumem_arena_exit(inner, NULL, 0, NULL)); /* no report wanted */
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* An exit at the wrong time, or of the wrong arena, is refused and changes nothing. */
static void unbalanced_and_doubled_exits(void) {
    gpumem_arena outer = must_enter("outer"), inner = must_enter("inner");
    void *p = gpumem_malloc(1000);
    gpumem_arena_report report;
    GPUMEM_INIT(&report);
    report.freed = 77;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(outer, &p, 1, &report));
    CHECK(error_says("not this thread's current arena"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_detach(outer));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_attach(outer));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(inner, NULL, 1, &report));
    report.size = 5;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(inner, &p, 1, &report));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_abort(inner, &report));
    report.size = sizeof report;
    CHECK(report.freed == 77 && arena_of(p) == inner && current() == inner);
    CHECK(must_exit(inner, &p, 1).kept == 1);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(inner, NULL, 0, &report));
    CHECK(error_says("has been exited or aborted"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_abort(inner, &report));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_attach(inner));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_detach(inner));
    CHECK(report.freed == 77 && arena_of(p) == outer);

    /* The new arena has the slot of the old one, and the old handle stays stale. */
    inner = must_enter("another");
    CHECK(must_exit(inner, NULL, 0).freed == 0);
    CHECK(must_exit(outer, NULL, 0).freed == 1);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(NULL, NULL, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit((gpumem_arena)&report, NULL, 0, NULL));
    nothing_left();
}

static void abort_ends_what_is_inside(void) {
    gpumem_arena outer = must_enter("outer"), middle = must_enter("middle"), inner;
    gpumem_arena_report report;
    gpumem_stats before;
    void *in_outer;
    gpumem_malloc(1000);
    inner = must_enter("inner");
    gpumem_malloc(2000);
    OK(gpumem_arena_detach(inner));
    OK(gpumem_arena_attach(inner));
    GPUMEM_INIT(&report);
    OK(gpumem_arena_abort(middle, &report));
    CHECK(report.freed == 2 && report.freed_bytes == 3000 && report.kept == 0 && report.depth == 1);
    CHECK(current() == outer);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(middle, NULL, 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_exit(inner, NULL, 0, NULL));
    CHECK(error_says("has been exited or aborted"));
    in_outer = gpumem_malloc(5);
    CHECK(arena_of(in_outer) == outer);
    before = stats_now();
    OK(gpumem_arena_abort(outer, NULL));
    CHECK(stats_now().frees == before.frees + 1);
    nothing_left();
}

static uint64_t owner_id_of(const void *p, gpumem_stream s) {
    uint64_t id = 77;
    OK(gpumem_owner_id_get(p, s, &id));
    return id;
}

/* An owner frees by number where an arena or a capture may free before it. */
static void owners_have_a_number_in_arenas_and_captures(void) {
    gpumem_stream s = must_stream(), t = must_stream();
    gpumem_arena a;
    gpumem_capture c = NULL;
    uint64_t id = 77;
    gpumem_malloc_options named;
    void *p = must_malloc_async(1000, s), *q = must_malloc_async(1000, NULL), *r, *n;
    CHECK(owner_id_of(p, s) == 0 && owner_id_of(q, NULL) == 0);
    a = must_enter("step");
    r = must_malloc_async(1000, s);
    CHECK(owner_id_of(r, s) == id_of(r) && owner_id_of(p, s) == 0);
    /* In an arena that is not the thread's: named, or resized there. */
    OK(gpumem_arena_detach(a));
    GPUMEM_INIT(&named);
    named.bytes = 1000;
    named.stream = s;
    named.arena = a;
    OK(gpumem_malloc_with(&named, &n));
    CHECK(owner_id_of(n, s) == id_of(n));
    OK(gpumem_realloc_async(r, 5000, s, &r));
    CHECK(owner_id_of(r, s) == id_of(r) && owner_id_of(p, s) == 0);
    OK(gpumem_arena_abort(a, NULL));
    CHECK(owner_id_of(p, s) == 0);
    OK(gpumem_capture_begin(s, NULL, &c));
    gpumem_free(p);
    p = must_malloc_async(1000, s);
    CHECK(owner_id_of(p, s) == id_of(p) && owner_id_of(q, NULL) == 0 && owner_id_of(q, t) == 0);
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_owner_id_get(&id, s, &id));
    OK(gpumem_capture_end(c));
    CHECK(owner_id_of(p, s) == 0);
    OK(gpumem_capture_release(c));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_owner_id_get(NULL, s, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_owner_id_get(p, s, NULL));
    CHECK(id == 77);
    gpumem_free(p);
    gpumem_free(q);
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
    nothing_left();
}

/* The number and not the address decides what a finalizer frees. */
static void late_frees(void) {
    gpumem_stream s = must_stream();
    uint64_t late = stats_now().late_frees, doubled;
    const size_t sizes[2] = {1000, 300000};
    int i;
    for (i = 0; i < 2; i++) {
        gpumem_arena a = must_enter("short");
        void *p = must_malloc_async(sizes[i], s), *again[4];
        uint64_t id = id_of(p);
        int k, same = -1;
        must_exit(a, NULL, 0);
        OK(gpumem_free_id(p, id)); /* the exit was first */
        CHECK(stats_now().late_frees == ++late);
        doubled = stats_now().double_frees;
        gpumem_free(p); /* a bare late free: counted, and said */
        CHECK(gpumem_last_status() == GPUMEM_ERROR_DOUBLE_FREE && stats_now().double_frees == doubled + 1);
        OK(gpumem_stream_sync(s));
        for (k = 0; k < 4; k++) {
            again[k] = must_malloc_async(sizes[i], s);
            if (again[k] == p) same = k;
        }
        CHECK(same >= 0); /* the address lives again */
        fill(again[same], sizes[i], 9, s);
        OK(gpumem_free_id_async(p, id, s));
        CHECK(stats_now().late_frees == ++late && holds(p, sizes[i], 9, s));
        for (k = 0; k < 4; k++) {
            id = id_of(again[k]);
            if (k % 2 == 0)
                OK(gpumem_free_id(again[k], id));
            else
                OK(gpumem_free_id_async(again[k], id, s));
            OK(gpumem_free_id(again[k], id));
            CHECK(stats_now().late_frees == ++late);
        }
    }
    OK(gpumem_free_id(NULL, 5));
    OK(gpumem_free_id_async(NULL, 5, s));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_free_id(&late, 0));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_free_id(&late, 5));
    CHECK(stats_now().late_frees == late);
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

static void bad_arguments(void) {
    gpumem_arena a = must_enter("for its errors");
    gpumem_arena_stats stats;
    void *p = gpumem_malloc(10);
    GPUMEM_INIT(&stats);
    stats.size = 8;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_enter(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_enter_named("x", NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_enter_named("\xff", &a));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_current_get(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_find(p, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_find(NULL, &a));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_find(&stats, &a));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_promote(NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_escape(NULL));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_arena_escape(&stats));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_stats_get(a, &stats));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_stats_get(a, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_arena_attach(NULL));
    CHECK(current() == a && arena_of(p) == a);
    must_exit(a, NULL, 0);
    nothing_left();
}

/* Memory of a plan belongs to the arena that is current, like any other. */
static void a_plans_memory_is_in_the_arena(void) {
    gpumem_arena a = must_enter("plan"), other;
    gpumem_plan plan;
    gpumem_plan_buffer_options b;
    gpumem_malloc_options options;
    uint32_t id;
    void *base, *in_other;
    OK(gpumem_plan_create(NULL, &plan));
    GPUMEM_INIT(&b);
    b.bytes = 50000;
    b.upper = 2;
    OK(gpumem_plan_buffer_add(plan, &b, &id));
    OK(gpumem_plan_solve(plan, NULL));
    OK(gpumem_plan_materialise(plan, 0, NULL, &base));
    other = must_enter("inside");
    GPUMEM_INIT(&options);
    options.arena = a;
    OK(gpumem_plan_materialise_with(plan, 0, &options, &in_other));
    CHECK(arena_of(base) == a && arena_of(in_other) == a);
    CHECK(must_exit(other, NULL, 0).freed == 0);
    CHECK(must_exit(a, NULL, 0).freed_bytes == 100000);
    OK(gpumem_plan_destroy(plan));
    nothing_left();
}

/* In a child, as gpumem starts once in a process. */
static void without_the_pool_there_are_none(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_arena out = NULL;
        void *p;
        setenv("GPUMEM_POOL", "off", 1);
        p = gpumem_malloc(1000);
        CHECK(p != NULL);
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_arena_enter(&out));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_arena_find(p, &out));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_arena_promote(p));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_arena_escape(p));
        CHECK(error_says("GPUMEM_POOL"));
        OK(gpumem_free_id(p, id_of(p)));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

static void a_forked_child_is_refused(void) {
    gpumem_arena a = must_enter("parent's");
    void *p = gpumem_malloc(1000);
    uint64_t id = id_of(p);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_arena out = a;
        gpumem_arena_stats stats;
        GPUMEM_INIT(&stats);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_enter(&out));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_enter_named("x", &out));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_current_get(&out));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_find(p, &out));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_promote(p));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_escape(p));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_stats_get(a, &stats));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_attach(a));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_detach(a));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_exit(a, NULL, 0, NULL));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_arena_abort(a, NULL));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_free_id(p, id));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_free_id_async(p, id, NULL));
        CHECK(out == a);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
    CHECK(must_exit(a, NULL, 0).freed == 1);
    nothing_left();
}

int main(void) {
    RUN(without_the_pool_there_are_none);
    OK(gpumem_init(NULL));
    RUN(an_exit_frees_all_but_what_is_kept);
    RUN(never_released_buffers_in_nested_rounds);
    RUN(twice_the_steps_need_no_more);
    RUN(promote_and_escape);
    RUN(names_and_statistics);
    RUN(unbalanced_and_doubled_exits);
    RUN(abort_ends_what_is_inside);
    RUN(owners_have_a_number_in_arenas_and_captures);
    RUN(late_frees);
    RUN(bad_arguments);
    RUN(a_plans_memory_is_in_the_arena);
    RUN(a_forked_child_is_refused);
    return 0;
}

/* The planner with handles that are none, with bad input, and where there is no device. */
#include "plan.h"

/* What the calls below are tried with. */
static gpumem_plan plan;      /* solved: two buffers that are live together */
static uint64_t untouched;    /* an output that no failing call may write */
static const uint64_t SENTINEL = 0x1234567812345678u;
static const uint64_t numbers[2] = {1, 2};
static uint32_t *const out = (uint32_t *)(void *)&untouched;
static size_t *const count = (size_t *)(void *)&untouched;
static void **const pointer = (void **)(void *)&untouched;
static char text[8];
static void *const base[1] = {text};
static void *const no_base[1] = {NULL};

/* Every function with a handle, and otherwise good arguments. */
#define CALLS_WITH_A_PLAN(CALL)                                                                                        \
    CALL(add_buffer, add_with(p, described(1, 0, 1)))                                                                  \
    CALL(add_buffers, gpumem_plan_buffers_add(p, 2, numbers, numbers, numbers, out))                                   \
    CALL(add_arena, gpumem_plan_arena_add(p, 0, NULL, out))                                                            \
    CALL(set_capacity, gpumem_plan_capacity_set(p, 0, 0))                                                              \
    CALL(set_unit, gpumem_plan_unit_set(p, 1))                                                                         \
    CALL(set_reuse, gpumem_plan_reuse_set(p, 1))                                                                       \
    CALL(reserve, gpumem_plan_obstacle_add(p, 0, 0, 0, 0, 0))                                                               \
    CALL(set_left_out, gpumem_plan_left_out_set(p, 0))                                                                 \
    CALL(resize, gpumem_plan_resize(p, 0, 100))                                                                        \
    CALL(add_value, add_value_with(p, described(1, 0, 0)))                                                             \
    CALL(add_op, gpumem_plan_op_add(p, NULL, NULL, 0, NULL, 0, out))                                                   \
    CALL(set_order, gpumem_plan_order_set(p, NULL, 0))                                                                 \
    CALL(view, gpumem_plan_view_set(p, 0, 1, 0))                                                                           \
    CALL(in_place, gpumem_plan_in_place_add(p, 0, 0, 1))                                                                   \
    CALL(extend_to, gpumem_plan_extend(p, 0, 0))                                                                    \
    CALL(pin, gpumem_plan_keep(p, 0))                                                                                   \
    CALL(pin_ancestors, gpumem_plan_keep_ancestors(p, 0))                                                               \
    CALL(set_keep_ancestors, gpumem_plan_keep_ancestors_set(p, 0))                                                     \
    CALL(set_preset, gpumem_plan_preset_set(p, GPUMEM_PLAN_INFERENCE))                                                 \
    CALL(share, gpumem_plan_share(p, "w", 0, 0, 1))                                                                    \
    CALL(share_from, gpumem_plan_share_from(p, plan, count))                                                           \
    CALL(share_from_it, gpumem_plan_share_from(plan, p, count))                                                        \
    CALL(unshare, gpumem_plan_unshare(p, NULL))                                                                        \
    CALL(solve, gpumem_plan_solve(p, NULL))                                                                            \
    CALL(cancel, gpumem_plan_cancel(p))                                                                                \
    CALL(summary, summary_with(p, sizeof(gpumem_plan_stats)))                                                        \
    CALL(arena_bytes, gpumem_plan_arena_bytes_get(p, 0, &untouched, NULL))                                                 \
    CALL(offset, gpumem_plan_offset_get(p, 0, NULL, &untouched))                                                           \
    CALL(offsets, gpumem_plan_offsets_get(p, 0, 1, NULL, &untouched, NULL))                                                \
    CALL(report, gpumem_plan_report_get(p, text, sizeof text, NULL))                                                       \
    CALL(csv, gpumem_plan_csv_get(p, text, sizeof text, NULL))                                                             \
    CALL(svg, gpumem_plan_svg_get(p, text, sizeof text, NULL))                                                             \
    CALL(critical, gpumem_plan_critical_get(p, out, 1, NULL))                                                              \
    CALL(live, gpumem_plan_live_get(p, 0, &untouched, &untouched))                                                         \
    CALL(verify, gpumem_plan_verify(p, NULL, numbers, 2, &untouched))                                                  \
    CALL(materialise, gpumem_plan_materialise(p, 0, NULL, pointer))                                                    \
    CALL(materialise_with, materialise_with(p, 0))                                                                     \
    CALL(pointer, gpumem_plan_pointer_get(p, 0, base, 1, pointer))

/* Calls on a good plan that must fail. */
#define BAD_CALLS(CALL)                                                                                                \
    CALL(create_null, gpumem_plan_create(NULL, NULL))                                                                  \
    CALL(create_size, create_with(7, 0, 0, 0))                                                                         \
    CALL(create_flags, create_with(sizeof(gpumem_plan_options), 2, 0, 0))                                              \
    CALL(create_alignment, create_with(sizeof(gpumem_plan_options), 0, 48, 0))                                         \
    CALL(create_alignment_max, create_with(sizeof(gpumem_plan_options), 0, UINT64_C(1) << 63, 0))                      \
    CALL(create_alignment_huge, create_with(sizeof(gpumem_plan_options), 0, UINT64_C(1) << 41, 0))                     \
    CALL(create_unit_max, create_with(sizeof(gpumem_plan_options), 0, 0, UINT64_MAX))                                  \
    CALL(add_null, gpumem_plan_buffer_add(plan, NULL, out))                                                            \
    CALL(add_out_null, add_out_null())                                                                                 \
    CALL(add_size, add_changed(0, 12))                                                                                 \
    CALL(add_flags, add_changed(1, 2))                                                                                 \
    CALL(add_kind, add_changed(2, 5))                                                                                  \
    CALL(add_kind_negative, add_changed(2, -1))                                                                        \
    CALL(add_place, add_changed(3, 3))                                                                                 \
    CALL(add_bytes, add_changed(4, -1))                                                                                \
    CALL(add_lower, add_changed(5, 10))                                                                                \
    CALL(add_alignment, add_changed(6, 3))                                                                             \
    CALL(add_alignment_max, add_changed(6, INT64_MIN))                                                                 \
    CALL(add_alignment_huge, add_changed(6, INT64_C(1) << 41))                                                         \
    CALL(add_guard, add_changed(7, -1))                                                                                \
    CALL(add_offset_without_place, add_changed(8, 64))                                                                 \
    CALL(add_arena_without_flag, add_changed(9, 1))                                                                    \
    CALL(add_reserved, add_changed(10, 1))                                                                             \
    CALL(add_gaps_null, add_changed(11, 1))                                                                            \
    CALL(add_name, add_changed(12, 0))                                                                                 \
    CALL(add_fixed_unaligned, add_changed(13, 0))                                                                      \
    CALL(add_arena_unknown, add_changed(14, 0))                                                                        \
    CALL(add_gap_outside, add_changed(15, 0))                                                                          \
    CALL(add_fixed_far, add_changed(16, 0))                                                                            \
    CALL(add_gaps_many, add_changed(17, 0))                                                                            \
    CALL(bulk_null, gpumem_plan_buffers_add(plan, 2, NULL, numbers, numbers, out))                                     \
    CALL(bulk_null_too, gpumem_plan_buffers_add(plan, 2, numbers, NULL, numbers, out))                                 \
    CALL(bulk_null_last, gpumem_plan_buffers_add(plan, 2, numbers, numbers, NULL, out))                                \
    CALL(bulk_many, gpumem_plan_buffers_add(plan, SIZE_MAX, numbers, numbers, numbers, out))                           \
    CALL(bulk_odd, gpumem_plan_buffers_add(plan, 1, (const uint64_t *)1, numbers, numbers, out))                       \
    CALL(bulk_backwards, bulk_backwards())                                                                             \
    CALL(arena_out_null, gpumem_plan_arena_add(plan, 0, NULL, NULL))                                                   \
    CALL(arena_name, gpumem_plan_arena_add(plan, 0, "\xc3", out))                                                      \
    CALL(capacity_unknown, gpumem_plan_capacity_set(plan, 1, 5))                                                       \
    CALL(unit_max, gpumem_plan_unit_set(plan, UINT64_MAX))                                                             \
    CALL(reserve_unknown, gpumem_plan_obstacle_add(plan, 1, 0, 1, 0, 1))                                                    \
    CALL(reserve_far, gpumem_plan_obstacle_add(plan, 0, UINT64_MAX, UINT64_MAX, 0, 1))                                      \
    CALL(reserve_backwards, gpumem_plan_obstacle_add(plan, 0, 0, 1, 2, 1))                                                  \
    CALL(leave_out_unknown, gpumem_plan_left_out_set(plan, 32))                                                        \
    CALL(resize_max, gpumem_plan_resize(plan, 0, (UINT64_C(1) << 62) + 1))                                             \
    CALL(resize_unknown, gpumem_plan_resize(plan, 2, 1))                                                               \
    CALL(extend_max, gpumem_plan_extend(plan, 0, UINT64_MAX))                                                       \
    CALL(unshare_unknown, gpumem_plan_unshare(plan, "nobody"))                                                         \
    CALL(unshare_name, gpumem_plan_unshare(plan, "\xc3"))                                                              \
    CALL(verify_null, gpumem_plan_verify(plan, NULL, NULL, 2, &untouched))                                             \
    CALL(verify_null_and_none, gpumem_plan_verify(plan, NULL, NULL, 0, &untouched))                                    \
    CALL(solve_threads, solve_on(257))                                                                                 \
    CALL(solve_size, solve_with(3, 0, 0))                                                                              \
    CALL(solve_effort, solve_with(sizeof(gpumem_plan_solve_options), 2, 0))                                            \
    CALL(solve_flags, solve_with(sizeof(gpumem_plan_solve_options), 0, 2))                                             \
    CALL(summary_null, gpumem_plan_stats_get(plan, NULL))                                                            \
    CALL(summary_size, summary_with(plan, 11))                                                                         \
    CALL(arena_bytes_null, gpumem_plan_arena_bytes_get(plan, 0, NULL, &untouched))                                         \
    CALL(arena_bytes_unknown, gpumem_plan_arena_bytes_get(plan, 1, &untouched, NULL))                                      \
    CALL(offset_null, gpumem_plan_offset_get(plan, 0, out, NULL))                                                          \
    CALL(offset_unknown, gpumem_plan_offset_get(plan, 2, NULL, &untouched))                                                \
    CALL(offset_max, gpumem_plan_offset_get(plan, UINT32_MAX, NULL, &untouched))                                           \
    CALL(offsets_null, gpumem_plan_offsets_get(plan, 0, 1, NULL, NULL, count))                                             \
    CALL(offsets_beyond, gpumem_plan_offsets_get(plan, 3, 1, NULL, &untouched, NULL))                                      \
    CALL(critical_null, gpumem_plan_critical_get(plan, NULL, 1, count))                                                    \
    CALL(live_null, gpumem_plan_live_get(plan, 0, NULL, &untouched))                                                       \
    CALL(live_null_too, gpumem_plan_live_get(plan, 0, &untouched, NULL))                                                   \
    CALL(live_unknown, gpumem_plan_live_get(plan, 2, &untouched, &untouched))                                              \
    CALL(materialise_null, gpumem_plan_materialise(plan, 0, NULL, NULL))                                               \
    CALL(materialise_unknown, gpumem_plan_materialise(plan, 1, NULL, pointer))                                         \
    CALL(materialise_with_null, gpumem_plan_materialise_with(plan, 0, NULL, pointer))                                  \
    CALL(materialise_with_bytes, materialise_with(plan, 1))                                                            \
    CALL(pointer_bases_null, gpumem_plan_pointer_get(plan, 0, NULL, 1, pointer))                                           \
    CALL(pointer_no_base, gpumem_plan_pointer_get(plan, 0, base, 0, pointer))                                              \
    CALL(pointer_base_null, gpumem_plan_pointer_get(plan, 1, no_base, 1, pointer))                                         \
    CALL(pointer_out_null, gpumem_plan_pointer_get(plan, 0, base, 1, NULL))                                                \
    CALL(pointer_unknown, gpumem_plan_pointer_get(plan, 2, base, 1, pointer))

static gpumem_status add_with(gpumem_plan p, gpumem_plan_buffer_options b) { return gpumem_plan_buffer_add(p, &b, out); }
static gpumem_status add_value_with(gpumem_plan p, gpumem_plan_buffer_options b) {
    return gpumem_plan_value_add(p, &b, out);
}

static gpumem_status add_out_null(void) {
    gpumem_plan_buffer_options b = described(1, 0, 1);
    return gpumem_plan_buffer_add(plan, &b, NULL);
}

/* A good buffer with one field changed. */
static gpumem_status add_changed(int field, int64_t to) {
    gpumem_plan_buffer_options b = described(100, 2, 9);
    gpumem_plan_interval gap;
    gap.lower = 8, gap.upper = 10;
    b.alignment = 16;
    switch (field) {
    case 0: b.size = (uint32_t)to; break;
    case 1: b.flags = (uint32_t)to; break;
    case 2: b.kind = (int32_t)to; break;
    case 3: b.place = (int32_t)to; break;
    case 4: b.bytes = (uint64_t)to; break;
    case 5: b.lower = (uint64_t)to; break;
    case 6: b.alignment = (uint64_t)to; break;
    case 7: b.guard = (uint64_t)to; break;
    case 8: b.offset = (uint64_t)to; break;
    case 9: b.arena = (uint32_t)to; break;
    case 10: b.reserved = (uint32_t)to; break;
    case 11: b.gap_count = (size_t)to; break;
    case 12: b.name = "\xff\xfe"; break;
    case 13: b.place = GPUMEM_PLAN_FIXED, b.offset = 8; break;
    case 14: b.flags = GPUMEM_PLAN_IN_ARENA, b.arena = 1; break;
    case 15: b.gaps = &gap, b.gap_count = 1; break;
    case 16: b.place = GPUMEM_PLAN_FIXED, b.offset = UINT64_MAX - 15; break;
    case 17: b.gaps = &gap, b.gap_count = SIZE_MAX; break;
    default: CHECK(0);
    }
    return gpumem_plan_buffer_add(plan, &b, out);
}

/* The second of two is wrong, so neither is added. */
static gpumem_status bulk_backwards(void) {
    static const uint64_t uppers[2] = {1, 1};
    gpumem_status status = gpumem_plan_buffers_add(plan, 2, numbers, numbers, uppers, out);
    CHECK(error_says("buffer 1"));
    return status;
}

static gpumem_status create_with(uint32_t size, uint32_t flags, uint64_t alignment, uint64_t unit) {
    gpumem_plan_options options;
    GPUMEM_INIT(&options);
    options.size = size;
    options.flags = flags;
    options.alignment = alignment;
    options.unit = unit;
    return gpumem_plan_create(&options, (gpumem_plan *)(void *)&untouched);
}

static gpumem_status solve_with(uint32_t size, int32_t effort, uint32_t flags) {
    gpumem_plan_solve_options options;
    GPUMEM_INIT(&options);
    options.size = size;
    options.effort = effort;
    options.flags = flags;
    return gpumem_plan_solve(plan, &options);
}

static gpumem_status solve_on(uint32_t threads) {
    gpumem_plan_solve_options options;
    GPUMEM_INIT(&options);
    options.threads = threads;
    return gpumem_plan_solve(plan, &options);
}

static gpumem_status summary_with(gpumem_plan p, uint32_t size) {
    gpumem_plan_stats summary, before;
    gpumem_status status;
    memset(&summary, 0x77, sizeof summary);
    summary.size = size;
    before = summary;
    status = gpumem_plan_stats_get(p, &summary);
    CHECK(memcmp(&summary, &before, sizeof summary) == 0);
    return status;
}

static gpumem_status materialise_with(gpumem_plan p, size_t bytes) {
    gpumem_malloc_options options;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    return gpumem_plan_materialise_with(p, 0, &options, pointer);
}

typedef struct entry {
    const char *name;
    gpumem_status (*call)(gpumem_plan p);
} entry;

#define DEFINE(name, call)                                                                                             \
    static gpumem_status with_##name(gpumem_plan p) {                                                                  \
        (void)p;                                                                                                       \
        return call;                                                                                                   \
    }
CALLS_WITH_A_PLAN(DEFINE)
BAD_CALLS(DEFINE)
#define ENTRY(name, call) {#name, with_##name},
static const entry with_a_plan[] = {CALLS_WITH_A_PLAN(ENTRY)};
static const entry bad_calls[] = {BAD_CALLS(ENTRY)};

/* The call is refused with a status, and writes nothing. */
static void refused_as(const entry *e, gpumem_plan p, gpumem_status status) {
    untouched = SENTINEL;
    strcpy(text, "as is");
    harness_status(__FILE__, __LINE__, e->name, status, e->call(p));
    CHECK(gpumem_last_status() == status && gpumem_last_error(NULL, 0) > 0);
    CHECK(untouched == SENTINEL && strcmp(text, "as is") == 0);
}

/* The call is refused, and the good plan is solved and as it was. */
static void refused(const entry *e, gpumem_plan p) {
    refused_as(e, p, GPUMEM_ERROR_INVALID);
    CHECK(summary_of(plan).values == 2 && bytes_of(plan, 0) == 300);
}

static void make_plan(void) {
    plan = must_plan();
    add(plan, 100, 0, 2);
    add(plan, 200, 1, 3);
    solved(plan);
}

static void handles_that_are_none_are_refused(void) {
    gpumem_plan stale = must_plan(), other, none[6];
    size_t i, k;
    make_plan();
    solved(stale);
    OK(gpumem_plan_destroy(stale));
    other = must_plan(); /* in the slot of the stale one */
    CHECK(other != stale);
    none[0] = NULL;
    none[1] = stale;
    none[2] = (gpumem_plan)(void *)&untouched;
    none[3] = (gpumem_plan)(uintptr_t)1;
    none[4] = (gpumem_plan)(uintptr_t)UINTPTR_MAX;
    none[5] = (gpumem_plan)((uintptr_t)other + 1); /* of a generation to come */
    for (k = 0; k < sizeof none / sizeof *none; k++) {
        for (i = 0; i < sizeof with_a_plan / sizeof *with_a_plan; i++) refused(&with_a_plan[i], none[k]);
        if (none[k] != NULL) CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_destroy(none[k]));
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_destroy(stale));
    CHECK(error_says("destroyed"));
    OK(gpumem_plan_destroy(NULL));
    OK(gpumem_plan_destroy(other));
    OK(gpumem_plan_destroy(plan));
}

static void bad_input_is_refused_and_changes_nothing(void) {
    size_t i;
    make_plan();
    for (i = 0; i < sizeof bad_calls / sizeof *bad_calls; i++) refused(&bad_calls[i], NULL);
    OK(gpumem_plan_destroy(plan));
}

static void queries_before_solving_say_so(void) {
    static const char *const queries[] = {"summary", "arena_bytes", "offset",      "offsets",          "report",  "csv",
                                          "svg",     "critical",    "materialise", "materialise_with", "pointer", "live",
                                          "share_from_it"};
    gpumem_plan fresh = must_plan();
    size_t i, k, found = 0;
    make_plan();
    add(fresh, 1, 0, 1);
    for (k = 0; k < 2; k++) {
        for (i = 0; i < sizeof with_a_plan / sizeof *with_a_plan; i++) {
            size_t q;
            for (q = 0; q < sizeof queries / sizeof *queries; q++)
                if (strcmp(queries[q], with_a_plan[i].name) == 0) {
                    refused(&with_a_plan[i], fresh);
                    CHECK(error_says(k == 0 ? "has not been solved" : "changed after it was solved"));
                    CHECK(error_says("gpumem_plan_solve"));
                    found++;
                }
        }
        solved(fresh);
        add(fresh, 1, 0, 1); /* then the same again */
    }
    CHECK(found == 2 * sizeof queries / sizeof *queries);
    OK(gpumem_plan_destroy(fresh));
    OK(gpumem_plan_destroy(plan));
}

/* Every call that changes a plan makes its layout stale. */
static void every_change_needs_another_solve(void) {
    static const char *const others[] = {"solve",    "cancel", "summary",  "arena_bytes",   "offset",      "offsets",
                                         "report",   "csv",    "svg",      "critical",      "live",        "verify",
                                         "pointer",  "share_from_it",      "materialise",   "materialise_with",
                                         "share_from", /* nothing to share from itself: see below */
                                         "view",     "in_place", "set_order"};
    size_t i, changed = 0;
    for (i = 0; i < sizeof with_a_plan / sizeof *with_a_plan; i++) {
        size_t o, is_change = 1;
        gpumem_plan_stats summary;
        for (o = 0; o < sizeof others / sizeof *others; o++) is_change &= strcmp(others[o], with_a_plan[i].name) != 0;
        if (!is_change) continue;
        make_plan();
        OK(with_a_plan[i].call(plan));
        GPUMEM_INIT(&summary);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_stats_get(plan, &summary));
        OK(gpumem_plan_destroy(plan));
        changed++;
    }
    CHECK(changed == 18);
}

/* 2^40 is the largest alignment; what is refused is refused when it is stated, and says so. */
static void huge_alignments_are_refused_when_they_are_stated(void) {
    gpumem_plan p = must_plan();
    gpumem_plan_buffer_options b = described(1, 0, 2);
    gpumem_plan_options options;
    uint32_t id;
    b.alignment = UINT64_C(1) << 40;
    must_add(p, b);
    id = must_add(p, b);
    solved(p);
    CHECK(bytes_of(p, 0) == b.alignment + 1 && offset_of(p, 0) + offset_of(p, id) == b.alignment);
    b.alignment = UINT64_C(1) << 62;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_buffer_add(p, &b, &id));
    CHECK(error_says("alignment 4611686018427387904") && error_says("2^40"));
    b.upper = 0;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_value_add(p, &b, &id));
    CHECK(error_says("alignment"));
    solved(p);
    OK(gpumem_plan_unit_set(p, (UINT64_C(1) << 62) - 1));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(p, NULL)); /* only both together are too much */
    CHECK(error_says("alignment") && error_says("unit"));
    OK(gpumem_plan_destroy(p));
    GPUMEM_INIT(&options);
    options.alignment = UINT64_C(1) << 41;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_create(&options, &p));
    CHECK(error_says("alignment") && error_says("2^40"));
}

static void nothing_is_a_layout_of_nothing(void) {
    gpumem_plan p = must_plan();
    uint64_t bytes = 7;
    OK(gpumem_plan_verify(p, NULL, NULL, 0, &bytes));
    CHECK(bytes == 0);
    OK(gpumem_plan_destroy(p));
}

static void huge_sizes_do_not_overflow(void) {
    gpumem_plan p = must_plan();
    const uint64_t most = UINT64_C(1) << 62;
    void *base = NULL;
    int i;
    add(p, most, 0, 2);
    solved(p);
    CHECK(bytes_of(p, 0) == most);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_plan_materialise(p, 0, NULL, &base));
    CHECK(base == NULL);
    add(p, most, 0, UINT64_MAX); /* now more than that is live at once */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(p, NULL));
    CHECK(error_says("2^62"));
    for (i = 0; i < 6; i++) add(p, most, 0, 1); /* 2^64 bytes and more */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(p, NULL));
    OK(gpumem_plan_destroy(p));
}

static void an_address_beyond_the_last_is_refused_and_named(void) {
    gpumem_plan p = must_plan();
    void *bases[1], *at = NULL;
    char want[64];
    add(p, 100, 0, 1);
    add(p, 100, 0, 1);
    solved(p);
    bases[0] = (void *)(UINTPTR_MAX - 15);
    snprintf(want, sizeof want, "100 from the base 0x%" PRIxPTR, UINTPTR_MAX - 15);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_pointer_get(p, offset_of(p, 0) == 100 ? 0 : 1, bases, 1, &at));
    CHECK(at == NULL && error_says(want));
    OK(gpumem_plan_destroy(p));
}

/* In a child, so that this process has not started gpumem before. */
static void planning_needs_no_device(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *base = NULL, *at = NULL, *bases[1];
        setenv("GPUMEM_BACKEND", "none of them", 1);
        make_plan();
        CHECK(offset_of(plan, 1) + offset_of(plan, 0) >= 100);
        bases[0] = text;
        OK(gpumem_plan_pointer_get(plan, 0, bases, 1, &at));
        CHECK(at == text + offset_of(plan, 0));
        CHECK_STATUS(GPUMEM_ERROR_CONFIG, gpumem_plan_materialise(plan, 0, NULL, &base));
        CHECK(base == NULL);
        OK(gpumem_plan_destroy(plan));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

/* Plans stay with the process that made them; a child makes its own. */
static void a_forked_child_has_plans_of_its_own(void) {
    gpumem_plan theirs;
    pid_t child;
    gpumem_free(gpumem_malloc(1));
    make_plan();
    theirs = plan;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *base = NULL;
        size_t i;
        make_plan();
        CHECK(plan != theirs);
        for (i = 0; i < sizeof with_a_plan / sizeof *with_a_plan; i++)
            refused_as(&with_a_plan[i], theirs, GPUMEM_ERROR_FORKED);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_destroy(theirs));
        CHECK(error_says("forked"));
        add(plan, 50, 1, 2);
        solved(plan);
        CHECK(bytes_of(plan, 0) == 350);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_plan_materialise(plan, 0, NULL, &base));
        OK(gpumem_plan_destroy(plan));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
    CHECK(bytes_of(plan, 0) == 300);
    OK(gpumem_plan_destroy(plan));
}

int main(void) {
    RUN(planning_needs_no_device);
    RUN(handles_that_are_none_are_refused);
    RUN(bad_input_is_refused_and_changes_nothing);
    RUN(queries_before_solving_say_so);
    RUN(every_change_needs_another_solve);
    RUN(huge_alignments_are_refused_when_they_are_stated);
    RUN(nothing_is_a_layout_of_nothing);
    RUN(huge_sizes_do_not_overflow);
    RUN(an_address_beyond_the_last_is_refused_and_named);
    RUN(a_forked_child_has_plans_of_its_own);
    return 0;
}

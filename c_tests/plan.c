/* Plans of buffers whose live ranges are known. The oracle compares every pair of them. */
#include "plan.h"

enum { MANY = 150 };

/* A random problem, and room for where its buffers are. */
static struct {
    uint64_t bytes[MANY], lower[MANY], upper[MANY], alignment[MANY], guard[MANY], offset[MANY];
} made;

static void make(uint32_t seed) {
    size_t i;
    for (i = 0; i < MANY; i++) {
        made.bytes[i] = 1 + draw(&seed) % 5000;
        made.lower[i] = draw(&seed) % 60;
        made.upper[i] = made.lower[i] + 1 + draw(&seed) % (draw(&seed) % 5 == 0 ? 40 : 6);
        made.alignment[i] = (uint64_t)1 << draw(&seed) % 9;
        made.guard[i] = draw(&seed) % 3 == 0 ? draw(&seed) % 100 : 0;
    }
}

static gpumem_plan plan_of_made(void) {
    gpumem_plan plan = must_plan();
    size_t i;
    for (i = 0; i < MANY; i++) {
        gpumem_plan_buffer_options b = described(made.bytes[i], made.lower[i], made.upper[i]);
        b.alignment = made.alignment[i];
        b.guard = made.guard[i];
        CHECK(must_add(plan, b) == i);
    }
    return plan;
}

/* The largest sum of what is live at a step, and the first such step. */
static uint64_t most_live(uint64_t *step) {
    uint64_t most = 0, s;
    for (s = 0; s < 200; s++) {
        uint64_t sum = 0;
        size_t i;
        for (i = 0; i < MANY; i++)
            if (made.lower[i] <= s && s < made.upper[i]) sum += made.bytes[i] + made.guard[i];
        if (sum > most) most = sum, *step = s;
    }
    return most;
}

/* A search takes its time under valgrind. */
static void solved_fast(gpumem_plan plan) {
    gpumem_plan_solve_options options;
    GPUMEM_INIT(&options);
    options.effort = GPUMEM_PLAN_EFFORT_FAST;
    OK(gpumem_plan_solve(plan, &options));
}

static void what_is_live_together_is_apart(void) {
    uint32_t seed;
    for (seed = 1; seed <= 5; seed++) {
        gpumem_plan plan;
        gpumem_plan_stats summary;
        uint64_t end = 0, total = 0, step = 0, bound, own;
        uint32_t ids[MANY];
        size_t i, j, count = 0, live = 0;
        make(seed);
        plan = plan_of_made();
        if (seed == 1 && !is_slow())
            solved(plan);
        else
            solved_fast(plan);
        OK(gpumem_plan_offsets_get(plan, 0, MANY, NULL, made.offset, &count));
        CHECK(count == MANY);
        for (i = 0; i < MANY; i++) {
            uint64_t i_end = made.offset[i] + made.bytes[i] + made.guard[i];
            CHECK(made.offset[i] % made.alignment[i] == 0);
            CHECK(offset_of(plan, (uint32_t)i) == made.offset[i] && arena_of(plan, (uint32_t)i) == 0);
            for (j = 0; j < i; j++) {
                uint64_t j_end = made.offset[j] + made.bytes[j] + made.guard[j];
                CHECK(!overlap(made.lower[i], made.upper[i], made.lower[j], made.upper[j]) ||
                      !overlap(made.offset[i], i_end, made.offset[j], j_end));
            }
            if (i_end > end) end = i_end;
            total += made.bytes[i] + made.guard[i];
        }
        summary = summary_of(plan);
        CHECK(summary.arena_bytes == end && bytes_of(plan, 0) == end);
        CHECK(summary.lower_bound == most_live(&step) && summary.critical_step == step);
        CHECK(summary.lower_bound <= end && summary.total_unshared == total && summary.saved == total - end);
        CHECK(summary.status == GPUMEM_PLAN_OPTIMAL || summary.status == GPUMEM_PLAN_FEASIBLE);
        CHECK((summary.gap == 0) == (end == summary.lower_bound) && summary.gap >= 0 && summary.seconds >= 0);
        CHECK(summary.slots == MANY && summary.values == MANY && summary.operations == 0 && summary.arenas == 1);
        CHECK(summary.interrupted == 0);
        OK(gpumem_plan_arena_bytes_get(plan, 0, &own, &bound));
        CHECK(own == end && bound <= end);

        OK(gpumem_plan_critical_get(plan, ids, MANY, &count));
        for (i = 0; i < MANY; i++)
            if (made.lower[i] <= step && step < made.upper[i]) CHECK(live < count && ids[live++] == i);
        CHECK(live == count);
        OK(gpumem_plan_destroy(plan));
    }
}

static void the_same_plan_gives_the_same_layout(void) {
    gpumem_plan one, other;
    uint64_t offset[MANY];
    uint32_t first = 9;
    size_t i, count = 0;
    make(7);
    for (i = 0; i < MANY; i++) made.alignment[i] = 1, made.guard[i] = 0;
    one = plan_of_made();
    other = must_plan();
    OK(gpumem_plan_buffers_add(other, 100, made.bytes, made.lower, made.upper, &first));
    CHECK(first == 0);
    OK(gpumem_plan_buffers_add(other, 0, NULL, NULL, NULL, NULL));
    OK(gpumem_plan_buffers_add(other, MANY - 100, made.bytes + 100, made.lower + 100, made.upper + 100, &first));
    CHECK(first == 100);
    solved_fast(one);
    solved_fast(other);
    OK(gpumem_plan_offsets_get(one, 0, MANY, NULL, made.offset, NULL));
    OK(gpumem_plan_offsets_get(other, 0, MANY, NULL, offset, NULL));
    CHECK(memcmp(offset, made.offset, sizeof offset) == 0);
    solved_fast(one); /* again, unchanged */
    OK(gpumem_plan_offsets_get(one, MANY - 2, 5, NULL, offset, &count));
    CHECK(count == 2 && memcmp(offset, made.offset + MANY - 2, 2 * sizeof *offset) == 0);
    OK(gpumem_plan_offsets_get(one, MANY, 0, NULL, NULL, &count));
    CHECK(count == 0);
    OK(gpumem_plan_destroy(one));
    OK(gpumem_plan_destroy(other));
}

static void places_are_kept(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options b = described(100, 0, 4);
    gpumem_plan_interval gaps[2];
    uint32_t fixed, preferred, elsewhere, gappy, inside;
    b.place = GPUMEM_PLAN_FIXED;
    b.offset = 512;
    b.alignment = 256;
    fixed = must_add(plan, b);
    b = described(50, 0, 9);
    b.place = GPUMEM_PLAN_PREFERRED;
    b.offset = 300;
    preferred = must_add(plan, b);
    elsewhere = add(plan, 200, 0, 4);
    OK(gpumem_plan_obstacle_add(plan, 0, 0, 64, 0, UINT64_MAX));

    /* A buffer in the gaps of another, at the same bytes. */
    gaps[0].lower = 12, gaps[0].upper = 14;
    gaps[1].lower = 15, gaps[1].upper = 18;
    b = described(1000, 10, 20);
    b.gaps = gaps;
    b.gap_count = 2;
    b.name = "gappy";
    gappy = must_add(plan, b);
    inside = add(plan, 1000, 12, 14);
    solved(plan);
    CHECK(offset_of(plan, fixed) == 512);
    CHECK(offset_of(plan, preferred) == 300);
    CHECK(offset_of(plan, elsewhere) >= 64);
    CHECK(offset_of(plan, gappy) == 64 && offset_of(plan, inside) == 64);
    CHECK(bytes_of(plan, 0) == 1064);
    OK(gpumem_plan_destroy(plan));
}

static void settings_hold(void) {
    gpumem_plan_options options;
    gpumem_plan plan = NULL;
    uint32_t a, b, c;
    GPUMEM_INIT(&options);
    options.alignment = 256;
    options.capacity = 1000;
    OK(gpumem_plan_create(&options, &plan));
    a = add(plan, 10, 0, 2);
    b = add(plan, 10, 1, 3);
    c = add(plan, 10, 2, 4);
    solved(plan);
    CHECK(offset_of(plan, a) % 256 == 0 && offset_of(plan, b) % 256 == 0 && offset_of(plan, c) % 256 == 0);
    CHECK(bytes_of(plan, 0) == 266);
    OK(gpumem_plan_reuse_set(plan, 0));
    solved(plan);
    CHECK(bytes_of(plan, 0) == 522 && summary_of(plan).saved == 0);
    OK(gpumem_plan_reuse_set(plan, 1));
    OK(gpumem_plan_unit_set(plan, 768));
    solved(plan);
    CHECK(bytes_of(plan, 0) == 778);
    OK(gpumem_plan_capacity_set(plan, 0, 700));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_plan_solve(plan, NULL));
    OK(gpumem_plan_capacity_set(plan, 0, 0));
    solved(plan);
    OK(gpumem_plan_unit_set(plan, 0));
    solved(plan);
    CHECK(bytes_of(plan, 0) == 266);
    OK(gpumem_plan_destroy(plan));

    options.flags = GPUMEM_PLAN_NO_REUSE;
    options.unit = 3;
    options.alignment = 0;
    options.capacity = 0;
    OK(gpumem_plan_create(&options, &plan));
    a = add(plan, 10, 0, 1);
    b = add(plan, 10, 7, 8);
    solved(plan);
    CHECK(offset_of(plan, a) + offset_of(plan, b) == 12 && bytes_of(plan, 0) == 22);
    OK(gpumem_plan_destroy(plan));
}

static void kinds_can_be_left_out(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options b = described(1000, 0, 5);
    uint64_t offset[3];
    uint32_t weight, arena[3] = {9, 9, 9};
    add(plan, 10, 0, 5);
    b.kind = GPUMEM_PLAN_PARAMETER;
    weight = must_add(plan, b);
    add(plan, 10, 0, 5);
    OK(gpumem_plan_left_out_set(plan, GPUMEM_PLAN_PARAMETERS | GPUMEM_PLAN_CONSTANTS));
    solved(plan);
    CHECK(bytes_of(plan, 0) == 20 && summary_of(plan).slots == 2 && summary_of(plan).total_unshared == 20);
    CHECK(has_no_slot(plan, weight));
    OK(gpumem_plan_offsets_get(plan, 0, 3, arena, offset, NULL));
    CHECK(offset[1] == GPUMEM_PLAN_NO_OFFSET && offset[0] + offset[2] == 10);
    CHECK(arena[0] == 0 && arena[1] == 0 && arena[2] == 0);
    OK(gpumem_plan_left_out_set(plan, 0));
    solved(plan);
    CHECK(bytes_of(plan, 0) == 1020 && !has_no_slot(plan, weight));
    OK(gpumem_plan_destroy(plan));
}

static void what_occupies_nothing_gets_an_aligned_offset(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options b = described(0, 0, 9);
    uint32_t empty, dead;
    add(plan, 100, 0, 9);
    b.alignment = 64;
    b.guard = 1000;
    empty = must_add(plan, b);
    b.bytes = 500;
    b.upper = 0;
    dead = must_add(plan, b);
    solved(plan);
    CHECK(offset_of(plan, empty) % 64 == 0 && offset_of(plan, dead) % 64 == 0);
    CHECK(bytes_of(plan, 0) == 100 && summary_of(plan).total_unshared == 100);
    OK(gpumem_plan_destroy(plan));

    plan = must_plan();
    solved(plan); /* nothing at all */
    CHECK(bytes_of(plan, 0) == 0 && summary_of(plan).status == GPUMEM_PLAN_OPTIMAL);
    OK(gpumem_plan_destroy(plan));
}

static void buffers_go_to_their_arenas(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options b = described(100, 0, 1);
    uint64_t offset[3];
    uint32_t second = 0, bound, loose, arena[3], id;
    OK(gpumem_plan_capacity_set(plan, 0, 150));
    OK(gpumem_plan_arena_add(plan, 300, "host", &second));
    CHECK(second == 1);
    b.flags = GPUMEM_PLAN_IN_ARENA;
    b.arena = 1;
    bound = must_add(plan, b);
    b.arena = 0;
    id = must_add(plan, b);
    loose = add(plan, 120, 0, 1);
    solved(plan);
    CHECK(arena_of(plan, bound) == 1 && arena_of(plan, id) == 0 && arena_of(plan, loose) == 1);
    CHECK(bytes_of(plan, 0) == 100 && bytes_of(plan, 1) == 220 && summary_of(plan).arena_bytes == 320);
    CHECK(summary_of(plan).arenas == 2);
    OK(gpumem_plan_offsets_get(plan, 0, 3, arena, offset, NULL));
    CHECK(arena[0] == 1 && arena[1] == 0 && arena[2] == 1);
    OK(gpumem_plan_capacity_set(plan, 1, 210));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_plan_solve(plan, NULL));
    OK(gpumem_plan_destroy(plan));
}

/* More time or capacity does not help where a fixed buffer of no arena is in others' way in all. */
static void what_is_fixed_and_finds_no_arena_is_told(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options b = described(100, 0, 1);
    uint32_t second = 0;
    OK(gpumem_plan_arena_add(plan, 0, NULL, &second));
    b.place = GPUMEM_PLAN_FIXED;
    must_add(plan, b);
    must_add(plan, b);
    solved(plan);
    must_add(plan, b);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_plan_solve(plan, NULL));
    CHECK(error_says("found no arena that is free at its offset") && error_says("bind fixed buffers to arenas"));
    OK(gpumem_plan_destroy(plan));
}

static void a_capacity_that_is_too_small_is_told(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_stats summary;
    uint64_t offset = 5;
    size_t count = 0, needed = 0;
    add(plan, 600, 0, 2);
    add(plan, 500, 1, 3);
    solved(plan);
    OK(gpumem_plan_capacity_set(plan, 0, 1001));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_plan_solve(plan, NULL));
    CHECK(error_says("1001") && error_says("At least 1100 bytes are needed: raise the capacity"));
    summary = summary_of(plan);
    CHECK(summary.arena_bytes == 0 && summary.saved == 0); /* nothing was laid out */
    CHECK(summary.status == GPUMEM_PLAN_INFEASIBLE && summary.lower_bound == 1100 && summary.interrupted == 0);
    CHECK(summary.total_unshared == 1100 && summary.slots == 0 && summary.values == 2);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_offset_get(plan, 0, NULL, &offset));
    CHECK(error_says("infeasible") && offset == 5);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_arena_bytes_get(plan, 0, &offset, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_offsets_get(plan, 0, 0, NULL, NULL, &count));
    OK(gpumem_plan_critical_get(plan, NULL, 0, &count)); /* what to make smaller */
    CHECK(count == 2);
    OK(gpumem_plan_report_get(plan, NULL, 0, &needed));
    OK(gpumem_plan_capacity_set(plan, 0, 1100));
    solved(plan);
    CHECK(summary_of(plan).status == GPUMEM_PLAN_OPTIMAL);
    OK(gpumem_plan_destroy(plan));

    plan = must_plan(); /* fixed buffers in each other's way */
    {
        gpumem_plan_buffer_options b = described(100, 0, 5);
        b.place = GPUMEM_PLAN_FIXED;
        must_add(plan, b);
        b.offset = 99;
        must_add(plan, b);
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(plan, NULL));
    CHECK(error_says("fixed") && error_says("buffer 1"));
    OK(gpumem_plan_destroy(plan));
}

static void another_size_needs_another_layout(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_solve_options fast;
    uint32_t a = add(plan, 100, 0, 2);
    uint64_t offset = 5;
    add(plan, 100, 1, 3);
    solved(plan);
    OK(gpumem_plan_resize(plan, a, 300));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_offset_get(plan, a, NULL, &offset));
    CHECK(error_says("solve") && error_says("changed"));
    GPUMEM_INIT(&fast);
    fast.effort = GPUMEM_PLAN_EFFORT_FAST;
    OK(gpumem_plan_solve(plan, &fast));
    CHECK(bytes_of(plan, 0) == 400);
    OK(gpumem_plan_resize(plan, a, 250));
    fast.flags = GPUMEM_PLAN_FROM_LAST;
    OK(gpumem_plan_solve(plan, &fast));
    CHECK(bytes_of(plan, 0) == 350);
    add(plan, 50, 0, 3); /* another number of slots: the last layout is no help, and no harm */
    OK(gpumem_plan_solve(plan, &fast));
    CHECK(bytes_of(plan, 0) == 400);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_resize(plan, 3, 1));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_resize(plan, a, UINT64_MAX));
    CHECK(bytes_of(plan, 0) == 400); /* what fails leaves the layout alone */
    OK(gpumem_plan_destroy(plan));
}

static void layouts_of_ones_own_are_verified(void) {
    gpumem_plan plan = must_plan();
    uint64_t offset[4] = {0, 100, 0, GPUMEM_PLAN_NO_OFFSET}, bytes = 0;
    uint32_t arena[4] = {0, 0, 0, 0};
    gpumem_plan_buffer_options b = described(100, 3, 5);
    add(plan, 100, 0, 2);
    add(plan, 50, 1, 4);
    b.alignment = 64;
    must_add(plan, b);
    b.kind = GPUMEM_PLAN_CONSTANT;
    must_add(plan, b);
    OK(gpumem_plan_left_out_set(plan, GPUMEM_PLAN_CONSTANTS));
    OK(gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    CHECK(bytes == 150);
    OK(gpumem_plan_verify(plan, arena, offset, 4, NULL));
    bytes = 7;
    offset[1] = 99;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    CHECK(error_says("buffer 0") && error_says("buffer 1") && bytes == 7);
    offset[1] = 100;
    offset[2] = 32;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    CHECK(error_says("alignment"));
    offset[2] = 0;
    offset[3] = 0;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    CHECK(error_says("no slot"));
    offset[3] = offset[0] = GPUMEM_PLAN_NO_OFFSET;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    offset[0] = 0;
    arena[2] = 1;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, arena, offset, 4, &bytes));
    CHECK(error_says("arena 1"));
    OK(gpumem_plan_capacity_set(plan, 0, 149));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 4, &bytes));
    CHECK(error_says("149"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 3, &bytes));
    CHECK(error_says("count"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, NULL, 4, &bytes));
    CHECK(bytes == 7);
    OK(gpumem_plan_destroy(plan));
}

static void texts_are_whole_or_cut(void) {
    static const struct {
        gpumem_status (*call)(gpumem_plan, char *, size_t, size_t *);
        const char *says;
    } texts[] = {{gpumem_plan_report_get, "arena_size=150"}, {gpumem_plan_csv_get, "id,lower,upper,size"}, {gpumem_plan_svg_get, "<svg"}};
    gpumem_plan plan = must_plan();
    size_t i;
    add(plan, 100, 0, 2);
    add(plan, 50, 1, 4);
    for (i = 0; i < sizeof texts / sizeof *texts; i++)
        CHECK_STATUS(GPUMEM_ERROR_INVALID, texts[i].call(plan, NULL, 0, NULL));
    CHECK(error_says("solve"));
    solved(plan);
    for (i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t needed = 0;
        char *text, small[9];
        OK(texts[i].call(plan, NULL, 0, &needed));
        CHECK(needed > 20);
        text = (char *)malloc(needed);
        CHECK(text != NULL);
        OK(texts[i].call(plan, text, needed, NULL));
        CHECK(strlen(text) == needed - 1 && strstr(text, texts[i].says) != NULL);
        memset(small, 'x', sizeof small);
        needed = 0;
        OK(texts[i].call(plan, small, 8, &needed));
        CHECK(needed == strlen(text) + 1 && small[7] == '\0' && small[8] == 'x' && memcmp(small, text, 7) == 0);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, texts[i].call(plan, NULL, 1, &needed));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, texts[i].call(NULL, small, 8, &needed));
        free(text);
    }
    OK(gpumem_plan_destroy(plan));
}

int main(void) {
    RUN(what_is_live_together_is_apart);
    RUN(the_same_plan_gives_the_same_layout);
    RUN(places_are_kept);
    RUN(settings_hold);
    RUN(kinds_can_be_left_out);
    RUN(what_occupies_nothing_gets_an_aligned_offset);
    RUN(buffers_go_to_their_arenas);
    RUN(what_is_fixed_and_finds_no_arena_is_told);
    RUN(a_capacity_that_is_too_small_is_told);
    RUN(another_size_needs_another_layout);
    RUN(layouts_of_ones_own_are_verified);
    RUN(texts_are_whole_or_cut);
    return 0;
}

/* Plans of graphs: live ranges, views, writing in place, what is kept, shared weights. */
#include "plan.h"

static uint32_t value(gpumem_plan plan, uint64_t bytes, int32_t kind, const char *name) {
    gpumem_plan_buffer_options v;
    uint32_t id = UINT32_MAX;
    GPUMEM_INIT(&v);
    v.bytes = bytes;
    v.kind = kind;
    v.name = name;
    OK(gpumem_plan_value_add(plan, &v, &id));
    return id;
}

static uint32_t op(gpumem_plan plan, uint32_t input, uint32_t output) {
    uint32_t number = UINT32_MAX;
    OK(gpumem_plan_op_add(plan, NULL, &input, 1, &output, 1, &number));
    return number;
}

static int lives(gpumem_plan plan, uint32_t id, uint64_t lower, uint64_t upper) {
    uint64_t from = UINT64_MAX, to = UINT64_MAX;
    OK(gpumem_plan_live_get(plan, id, &from, &to));
    if (from != lower || to != upper) printf("   value %u lives in [%d, %d)\n", id, (int)from, (int)to);
    return from == lower && to == upper;
}

/* input -> a -> b -> c -> output, one operation per arrow. */
typedef struct chain {
    gpumem_plan plan;
    uint32_t input, a, b, c, output;
    uint32_t ops[4];
} chain;

static chain make_chain(void) {
    chain g;
    g.plan = must_plan();
    g.input = value(g.plan, 100, GPUMEM_PLAN_INPUT, "input");
    g.a = value(g.plan, 100, GPUMEM_PLAN_TEMPORARY, "a");
    g.b = value(g.plan, 100, GPUMEM_PLAN_TEMPORARY, "b");
    g.c = value(g.plan, 100, GPUMEM_PLAN_TEMPORARY, "c");
    g.output = value(g.plan, 100, GPUMEM_PLAN_OUTPUT, "output");
    g.ops[0] = op(g.plan, g.input, g.a);
    g.ops[1] = op(g.plan, g.a, g.b);
    g.ops[2] = op(g.plan, g.b, g.c);
    g.ops[3] = op(g.plan, g.c, g.output);
    return g;
}

static void values_live_from_writer_to_last_reader(void) {
    chain g = make_chain();
    gpumem_plan_stats summary;
    solved(g.plan);
    CHECK(lives(g.plan, g.input, 0, 4));
    CHECK(lives(g.plan, g.a, 0, 2) && lives(g.plan, g.b, 1, 3) && lives(g.plan, g.c, 2, 4));
    CHECK(lives(g.plan, g.output, 3, 4));
    summary = summary_of(g.plan);
    CHECK(summary.steps == 4 && summary.operations == 4 && summary.values == 5 && summary.slots == 5);
    CHECK(summary.lower_bound == 300 && bytes_of(g.plan, 0) == 300);
    OK(gpumem_plan_destroy(g.plan));
}

static void the_execution_order_counts(void) {
    /* Two chains that share nothing: interleaved or one after the other. */
    gpumem_plan plan = must_plan();
    uint32_t in = value(plan, 1, GPUMEM_PLAN_INPUT, NULL), x[2], y[2], make[2], use[2], order[4];
    int i;
    for (i = 0; i < 2; i++) x[i] = value(plan, 1000, GPUMEM_PLAN_TEMPORARY, NULL);
    for (i = 0; i < 2; i++) y[i] = value(plan, 1, GPUMEM_PLAN_OUTPUT, NULL);
    for (i = 0; i < 2; i++) make[i] = op(plan, in, x[i]);
    for (i = 0; i < 2; i++) use[i] = op(plan, x[i], y[i]);
    solved(plan);
    CHECK(lives(plan, x[0], 0, 3) && lives(plan, x[1], 1, 4));
    CHECK(bytes_of(plan, 0) >= 2000);
    order[0] = make[1], order[1] = use[1], order[2] = make[0], order[3] = use[0];
    OK(gpumem_plan_order_set(plan, order, 4));
    solved(plan);
    CHECK(lives(plan, x[0], 2, 4) && lives(plan, x[1], 0, 2));
    CHECK(bytes_of(plan, 0) < 2000);

    order[1] = make[0], order[2] = use[1]; /* from then on, used before it is made */
    order[0] = use[0], order[3] = make[1];
    OK(gpumem_plan_order_set(plan, order, 4));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(plan, NULL));
    CHECK(error_says("reads") && error_says("order"));
    OK(gpumem_plan_destroy(plan));
}

static void views_are_inside_their_parents(void) {
    gpumem_plan plan = must_plan();
    uint32_t in = value(plan, 8, GPUMEM_PLAN_INPUT, NULL), root, half, quarter, out, other;
    uint64_t offset[6];
    root = value(plan, 1000, GPUMEM_PLAN_TEMPORARY, "root");
    half = value(plan, 500, GPUMEM_PLAN_TEMPORARY, NULL);
    quarter = value(plan, 250, GPUMEM_PLAN_TEMPORARY, NULL);
    out = value(plan, 8, GPUMEM_PLAN_OUTPUT, NULL);
    other = value(plan, 8, GPUMEM_PLAN_OUTPUT, NULL);
    op(plan, in, root);
    op(plan, in, other);
    op(plan, quarter, out);
    OK(gpumem_plan_view_set(plan, half, root, 500));
    OK(gpumem_plan_view_set(plan, quarter, half, 100));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(plan, half, root, 0));    /* a view already */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(plan, root, quarter, 0)); /* of itself */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(plan, root, root, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(plan, out, quarter, 243)); /* beyond the parent */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(plan, out, quarter, UINT64_MAX));
    solved(plan);
    CHECK(offset_of(plan, half) == offset_of(plan, root) + 500);
    CHECK(offset_of(plan, quarter) == offset_of(plan, root) + 600);
    CHECK(lives(plan, root, 0, 3) && lives(plan, quarter, 0, 3)); /* reads of a view count on its root */
    CHECK(summary_of(plan).slots == 4);

    /* A layout of one's own: a view may be left out, or must agree. */
    OK(gpumem_plan_offsets_get(plan, 0, 6, NULL, offset, NULL));
    OK(gpumem_plan_verify(plan, NULL, offset, 6, NULL));
    offset[half] = GPUMEM_PLAN_NO_OFFSET;
    OK(gpumem_plan_verify(plan, NULL, offset, 6, NULL));
    offset[quarter]++;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 6, NULL));
    CHECK(error_says("in common with another"));
    offset[quarter] = 599;
    offset[root] = GPUMEM_PLAN_NO_OFFSET;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(plan, NULL, offset, 6, NULL));
    CHECK(error_says("599"));

    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_resize(plan, root, 999));
    OK(gpumem_plan_resize(plan, root, 2000));
    OK(gpumem_plan_destroy(plan));
}

static void outputs_can_take_over_inputs(void) {
    chain g = make_chain();
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_in_place_add(g.plan, g.ops[1], g.b, g.a));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_in_place_add(g.plan, 4, g.a, g.b));
    OK(gpumem_plan_in_place_add(g.plan, g.ops[1], g.a, g.b));
    OK(gpumem_plan_in_place_add(g.plan, g.ops[2], g.b, g.c));
    OK(gpumem_plan_in_place_add(g.plan, g.ops[0], g.input, g.a)); /* allowed, and not used: the input lives on */
    solved(g.plan);
    CHECK(offset_of(g.plan, g.a) == offset_of(g.plan, g.b) && offset_of(g.plan, g.b) == offset_of(g.plan, g.c));
    CHECK(offset_of(g.plan, g.a) != offset_of(g.plan, g.input));
    CHECK(lives(g.plan, g.b, 0, 4) && summary_of(g.plan).slots == 3);
    OK(gpumem_plan_extend(g.plan, g.a, 3)); /* somebody reads it later: b needs bytes of its own */
    solved(g.plan);
    CHECK(offset_of(g.plan, g.a) != offset_of(g.plan, g.b) && offset_of(g.plan, g.b) == offset_of(g.plan, g.c));
    OK(gpumem_plan_destroy(g.plan));
}

static void what_is_asked_for_is_kept(void) {
    chain g = make_chain();
    OK(gpumem_plan_extend(g.plan, g.a, 2));
    OK(gpumem_plan_keep(g.plan, g.c));
    OK(gpumem_plan_extend(g.plan, g.b, 6)); /* after the last operation: the end moves */
    solved(g.plan);
    CHECK(lives(g.plan, g.a, 0, 3) && lives(g.plan, g.c, 2, 7) && lives(g.plan, g.b, 1, 7));
    CHECK(lives(g.plan, g.input, 0, 7) && lives(g.plan, g.output, 3, 7));
    OK(gpumem_plan_destroy(g.plan));

    g = make_chain();
    OK(gpumem_plan_keep_ancestors(g.plan, g.b));
    solved(g.plan);
    CHECK(lives(g.plan, g.a, 0, 4) && lives(g.plan, g.b, 1, 3) && lives(g.plan, g.c, 2, 4));
    OK(gpumem_plan_keep_ancestors_set(g.plan, 1));
    solved(g.plan);
    CHECK(lives(g.plan, g.a, 0, 4) && lives(g.plan, g.b, 1, 4) && bytes_of(g.plan, 0) == 500);
    OK(gpumem_plan_keep_ancestors_set(g.plan, 0));
    solved(g.plan);
    CHECK(lives(g.plan, g.b, 1, 3));
    OK(gpumem_plan_destroy(g.plan));
}

static void presets_set_what_belongs_together(void) {
    chain g = make_chain();
    OK(gpumem_plan_preset_set(g.plan, GPUMEM_PLAN_INFERENCE));
    solved(g.plan);
    CHECK(has_no_slot(g.plan, g.input) && bytes_of(g.plan, 0) == 200);
    OK(gpumem_plan_preset_set(g.plan, GPUMEM_PLAN_BACKWARD));
    solved(g.plan);
    CHECK(!has_no_slot(g.plan, g.input) && bytes_of(g.plan, 0) == 500);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_preset_set(g.plan, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_preset_set(g.plan, 3));
    CHECK(bytes_of(g.plan, 0) == 500);
    OK(gpumem_plan_destroy(g.plan));
}

/* A plan with two weights and something that reads both. */
static gpumem_plan with_weights(uint32_t *first, uint32_t *second, uint64_t scratch_bytes) {
    gpumem_plan plan = must_plan();
    uint32_t weights[2], scratch, out;
    scratch = value(plan, scratch_bytes, GPUMEM_PLAN_TEMPORARY, NULL);
    weights[0] = *first = value(plan, 300, GPUMEM_PLAN_PARAMETER, "first");
    weights[1] = *second = value(plan, 700, GPUMEM_PLAN_CONSTANT, "second");
    out = value(plan, 8, GPUMEM_PLAN_OUTPUT, NULL);
    OK(gpumem_plan_op_add(plan, "read", weights, 2, &scratch, 1, NULL));
    op(plan, scratch, out);
    return plan;
}

static void weights_are_where_the_other_plan_has_them(void) {
    uint32_t a1, a2, b1, b2;
    uint64_t first, second;
    size_t count = 99;
    gpumem_plan a = with_weights(&a1, &a2, 5000), b = with_weights(&b1, &b2, 100);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share_from(b, a, &count)); /* not solved */
    CHECK(error_says("solve") && count == 99);
    solved(a);
    first = offset_of(a, a1);
    second = offset_of(a, a2);
    OK(gpumem_plan_share_from(b, a, &count));
    CHECK(count == 2);
    OK(gpumem_plan_destroy(a)); /* what was shared stays */
    solved(b);
    CHECK(offset_of(b, b1) == first && offset_of(b, b2) == second);
    CHECK(!overlap(offset_of(b, 0), offset_of(b, 0) + 100, first, first + 300));
    CHECK(!overlap(offset_of(b, 0), offset_of(b, 0) + 100, second, second + 700));
    OK(gpumem_plan_destroy(b));

    b = with_weights(&b1, &b2, 100);
    OK(gpumem_plan_share(b, "first", 0, 1000, 300));
    OK(gpumem_plan_share(b, "unknown here", 0, 0, 1000)); /* kept clear all the same */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share(b, "first", 0, 2000, 300));
    CHECK(error_says("first"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share(b, "other", 1, 0, 300));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share(b, "other", 0, UINT64_MAX, 300));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share(b, NULL, 0, 0, 300));
    solved(b);
    CHECK(offset_of(b, b1) == 1000 && offset_of(b, b2) >= 1300 && offset_of(b, 0) >= 1300);
    CHECK(lives(b, b1, 0, 2));
    OK(gpumem_plan_left_out_set(b, GPUMEM_PLAN_PARAMETERS));
    solved(b);
    CHECK(offset_of(b, b1) == 1000 && lives(b, b1, 0, 2)); /* left out, and still known where */
    OK(gpumem_plan_share(b, "second", 0, 0, 1)); /* another size than here */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(b, NULL));
    CHECK(error_says("second"));
    OK(gpumem_plan_destroy(b));
}

static void what_is_shared_can_be_taken_back(void) {
    uint32_t a1, a2, b1, b2;
    uint64_t first, second;
    size_t count = 0, i, needed = 0, again = 0;
    gpumem_plan a = with_weights(&a1, &a2, 5000), b = with_weights(&b1, &b2, 100);
    add(a, 10, 0, 2);
    value(a, 60, GPUMEM_PLAN_PARAMETER, NULL);
    solved(a);
    OK(gpumem_plan_share_from(b, a, NULL));
    solved(b);
    OK(gpumem_plan_report_get(b, NULL, 0, &needed));
    for (i = 0; i < 20; i++) OK(gpumem_plan_share_from(b, a, &count)); /* the same again: nothing new */
    solved(b);
    OK(gpumem_plan_report_get(b, NULL, 0, &again));
    CHECK(count == 2 && again == needed);

    /* The other plan is laid out anew, with the weights elsewhere. */
    first = offset_of(a, a1), second = offset_of(a, a2);
    OK(gpumem_plan_obstacle_add(a, 0, 0, 20000, 0, UINT64_MAX));
    solved(a);
    CHECK(offset_of(a, a1) != first && offset_of(a, a2) != second);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_share_from(b, a, &count));
    CHECK(error_says("unshare") && offset_of(b, b1) == first); /* nothing has changed, so the layout still holds */
    OK(gpumem_plan_unshare(b, "first"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_unshare(b, "first"));
    CHECK(error_says("first") && error_says("not shared"));
    OK(gpumem_plan_share(b, "first", 0, 30000, 300));
    solved(b);
    CHECK(offset_of(b, b1) == 30000 && offset_of(b, b2) == second);
    OK(gpumem_plan_unshare(b, NULL));
    solved(b);
    CHECK(bytes_of(b, 0) < 1200); /* what was shared without a name is no longer kept clear either */
    OK(gpumem_plan_share_from(b, a, &count));
    solved(b);
    CHECK(count == 2 && offset_of(b, b1) == offset_of(a, a1) && offset_of(b, b2) == offset_of(a, a2));
    OK(gpumem_plan_destroy(a));
    OK(gpumem_plan_destroy(b));
}

/* A guard is for writes past the end: there must be nothing of another weight's. */
static void a_guard_over_another_shared_weight_is_refused(void) {
    gpumem_plan plan = must_plan();
    gpumem_plan_buffer_options w;
    uint32_t id, reader;
    GPUMEM_INIT(&w);
    w.bytes = 100;
    w.kind = GPUMEM_PLAN_PARAMETER;
    w.name = "w";
    w.guard = 51;
    OK(gpumem_plan_value_add(plan, &w, &id));
    OK(gpumem_plan_op_add(plan, NULL, &id, 1, NULL, 0, &reader));
    OK(gpumem_plan_share(plan, "w", 0, 1000, 100));
    OK(gpumem_plan_share(plan, "next", 0, 1150, 10));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(plan, NULL));
    CHECK(error_says("shared weight w") && error_says("guard") && error_says("[1100, 1151)") && error_says("next"));
    OK(gpumem_plan_unshare(plan, "next"));
    OK(gpumem_plan_share(plan, "next", 0, 1151, 10));
    solved(plan);
    CHECK(offset_of(plan, id) == 1000);
    OK(gpumem_plan_destroy(plan));
}

static void buffers_and_values_mix(void) {
    chain g = make_chain();
    uint32_t workspace = add(g.plan, 400, 1, 2);
    solved(g.plan);
    CHECK(workspace == 5 && lives(g.plan, workspace, 1, 2));
    CHECK(bytes_of(g.plan, 0) == 700);
    OK(gpumem_plan_destroy(g.plan));
}

static void graphs_that_make_no_sense_are_refused(void) {
    chain g = make_chain();
    gpumem_plan_buffer_options v;
    gpumem_plan_interval gap = {1, 2};
    uint32_t twice[2], unused, missing = 99, id = 1234, order[4];
    uint64_t zeros[6] = {0, 0, 0, 0, 0, 0};
    memcpy(order, g.ops, sizeof order);
    twice[0] = twice[1] = g.a;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, &g.b, 1, &g.a, 1, &id)); /* made already */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, &missing, 1, NULL, 0, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, NULL, 0, &missing, 1, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, NULL, 0, twice, 2, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, NULL, 1, twice, 1, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, twice, 1, NULL, 1, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, "\xff", NULL, 0, NULL, 0, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_op_add(g.plan, NULL, twice, SIZE_MAX, NULL, 0, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_order_set(g.plan, order, 3));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_order_set(g.plan, NULL, 4));
    order[1] = order[0];
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_order_set(g.plan, order, 4));
    order[1] = 4;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_order_set(g.plan, order, 4));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_keep(g.plan, 5));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_keep_ancestors(g.plan, 5));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_extend(g.plan, 5, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_extend(g.plan, g.a, UINT64_MAX));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(g.plan, 5, g.a, 0));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_view_set(g.plan, g.a, 5, 0));
    GPUMEM_INIT(&v);
    v.bytes = 1;
    v.upper = 1;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_value_add(g.plan, &v, &id));
    CHECK(error_says("gpumem_plan_buffer_add"));
    v.upper = 0;
    v.gaps = &gap;
    v.gap_count = 1;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_value_add(g.plan, &v, &id));
    CHECK(id == 1234);
    solved(g.plan); /* and nothing of it was taken in */
    CHECK(bytes_of(g.plan, 0) == 300 && summary_of(g.plan).operations == 4 && summary_of(g.plan).values == 5);

    unused = value(g.plan, 10, GPUMEM_PLAN_TEMPORARY, NULL);
    solved(g.plan);
    CHECK(has_no_slot(g.plan, unused));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_live_get(g.plan, unused, &v.lower, &v.upper));
    OK(gpumem_plan_op_add(g.plan, NULL, &unused, 1, NULL, 0, NULL)); /* reads what nothing writes */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(g.plan, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_verify(g.plan, NULL, zeros, 6, NULL));
    OK(gpumem_plan_destroy(g.plan));

    g.plan = must_plan(); /* a cycle: whichever runs first reads what is not there yet */
    g.a = value(g.plan, 1, GPUMEM_PLAN_TEMPORARY, "a");
    g.b = value(g.plan, 1, GPUMEM_PLAN_TEMPORARY, "b");
    op(g.plan, g.a, g.b);
    op(g.plan, g.b, g.a);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_plan_solve(g.plan, NULL));
    CHECK(error_says("(a)"));
    OK(gpumem_plan_destroy(g.plan));
}

int main(void) {
    RUN(values_live_from_writer_to_last_reader);
    RUN(the_execution_order_counts);
    RUN(views_are_inside_their_parents);
    RUN(outputs_can_take_over_inputs);
    RUN(what_is_asked_for_is_kept);
    RUN(presets_set_what_belongs_together);
    RUN(weights_are_where_the_other_plan_has_them);
    RUN(what_is_shared_can_be_taken_back);
    RUN(a_guard_over_another_shared_weight_is_refused);
    RUN(buffers_and_values_mix);
    RUN(graphs_that_make_no_sense_are_refused);
    return 0;
}

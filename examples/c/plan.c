/*
 * Memory planned ahead: a network of two layers, laid out in one arena before it runs.
 *
 * The graph is told to a plan: values, and operations that read and write them. The plan finds when
 * each value is live and where it goes; one allocation then holds them all. The "kernels" here fill
 * and copy bytes; what they wrote is there when its readers come, which is what the plan promises.
 *
 * Runs on a GPU, and without one on the host device (GPUMEM_BACKEND=host asks for it).
 *
 *     cc plan.c $(pkg-config --cflags --libs gpumem) -o plan
 */
#include <gpumem.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, IN = 784, HIDDEN = 512, OUT = 128 };

/* Ends the program with what went wrong. */
static void check(gpumem_status status, const char *what) {
    if (status != GPUMEM_OK) {
        char text[512];
        gpumem_last_error(text, sizeof text);
        fprintf(stderr, "%s: %s: %s\n", what, gpumem_status_name(status), text);
        exit(EXIT_FAILURE);
    }
}

/* A tensor of floats. */
static uint32_t tensor(gpumem_plan plan, const char *name, int32_t kind, uint64_t rows, uint64_t columns) {
    gpumem_plan_buffer_options value;
    uint32_t id = 0;
    GPUMEM_INIT(&value);
    value.name = name;
    value.kind = kind;
    value.bytes = rows * columns * sizeof(float);
    check(gpumem_plan_value_add(plan, &value, &id), name);
    return id;
}

/* An operation with up to three inputs and one output. */
static uint32_t op(gpumem_plan plan, const char *name, const uint32_t *inputs, size_t count, uint32_t output) {
    uint32_t number = 0;
    check(gpumem_plan_op_add(plan, name, inputs, count, &output, 1, &number), name);
    return number;
}

static unsigned char *address_of(gpumem_plan plan, uint32_t id, void *base) {
    void *at = NULL;
    check(gpumem_plan_pointer_get(plan, id, &base, 1, &at), "pointer");
    return (unsigned char *)at;
}

/* What an operation computes here: its output is filled with a byte. */
static void run(gpumem_plan plan, uint32_t id, void *base, int byte, size_t bytes, gpumem_stream s) {
    check(gpumem_memset_async(address_of(plan, id, base), byte, bytes, s), "run");
}

/* Ends the program unless a value holds one byte throughout. */
static void expect(gpumem_plan plan, uint32_t id, void *base, int byte, size_t bytes, gpumem_stream s) {
    unsigned char *host = (unsigned char *)malloc(bytes);
    size_t i;
    if (host == NULL) exit(EXIT_FAILURE);
    check(gpumem_memcpy_async(host, address_of(plan, id, base), bytes, s), "read");
    check(gpumem_stream_sync(s), "synchronise");
    for (i = 0; i < bytes; i++) {
        if (host[i] != byte) {
            fprintf(stderr, "value %u: byte %zu is %d and not %d\n", (unsigned)id, i, host[i], byte);
            exit(EXIT_FAILURE);
        }
    }
    free(host);
}

int main(void) {
    gpumem_plan_options options;
    gpumem_plan_stats summary;
    gpumem_plan plan;
    gpumem_stream s;
    uint32_t image, pixels, scaled, w1, b1, w2, b2, hidden, active, scores, shares, args[3], relu;
    size_t needed = 0;
    char *report;
    void *base;
    const size_t in_bytes = BATCH * IN * sizeof(float), w1_bytes = IN * HIDDEN * sizeof(float);
    const size_t hidden_bytes = BATCH * HIDDEN * sizeof(float), out_bytes = BATCH * OUT * sizeof(float);

    GPUMEM_INIT(&options);
    options.alignment = 256; /* what kernels like their tensors aligned to */
    check(gpumem_plan_create(&options, &plan), "plan");

    image = tensor(plan, "image", GPUMEM_PLAN_INPUT, BATCH, IN);
    w1 = tensor(plan, "w1", GPUMEM_PLAN_PARAMETER, IN, HIDDEN);
    b1 = tensor(plan, "b1", GPUMEM_PLAN_PARAMETER, 1, HIDDEN);
    w2 = tensor(plan, "w2", GPUMEM_PLAN_PARAMETER, HIDDEN, OUT);
    b2 = tensor(plan, "b2", GPUMEM_PLAN_PARAMETER, 1, OUT);
    pixels = tensor(plan, "pixels", GPUMEM_PLAN_TEMPORARY, BATCH, IN);
    scaled = tensor(plan, "scaled", GPUMEM_PLAN_TEMPORARY, BATCH, IN);
    hidden = tensor(plan, "hidden", GPUMEM_PLAN_TEMPORARY, BATCH, HIDDEN);
    active = tensor(plan, "active", GPUMEM_PLAN_TEMPORARY, BATCH, HIDDEN);
    scores = tensor(plan, "scores", GPUMEM_PLAN_TEMPORARY, BATCH, OUT);
    shares = tensor(plan, "shares", GPUMEM_PLAN_OUTPUT, BATCH, OUT);

    /* A reshape moves nothing: pixels are the image's bytes and get no memory of their own. */
    check(gpumem_plan_view_set(plan, pixels, image, 0), "view");

    op(plan, "scale", &pixels, 1, scaled);
    args[0] = scaled, args[1] = w1, args[2] = b1;
    op(plan, "layer 1", args, 3, hidden);
    relu = op(plan, "relu", &hidden, 1, active);
    args[0] = active, args[1] = w2, args[2] = b2;
    op(plan, "layer 2", args, 3, scores);
    op(plan, "softmax", &scores, 1, shares);

    /* Element by element, so the result may take over the argument's bytes. */
    check(gpumem_plan_in_place_add(plan, relu, hidden, active), "in place");

    check(gpumem_plan_solve(plan, NULL), "solve");
    check(gpumem_plan_report_get(plan, NULL, 0, &needed), "report");
    report = (char *)malloc(needed);
    if (report == NULL) return EXIT_FAILURE;
    check(gpumem_plan_report_get(plan, report, needed, NULL), "report");
    fputs(report, stdout);
    free(report);

    /* One allocation for everything. */
    check(gpumem_stream_create(&s), "stream");
    check(gpumem_plan_materialise(plan, 0, s, &base), "materialise");
    printf("on the %s device at %p\n", gpumem_backend_name(), base);

    run(plan, image, base, 1, in_bytes, s);
    run(plan, w1, base, 2, w1_bytes, s);
    expect(plan, pixels, base, 1, in_bytes, s); /* the view sees its parent */

    run(plan, scaled, base, 3, in_bytes, s);
    expect(plan, scaled, base, 3, in_bytes, s);
    run(plan, hidden, base, 4, hidden_bytes, s);
    expect(plan, hidden, base, 4, hidden_bytes, s);
    run(plan, active, base, 5, hidden_bytes, s);
    expect(plan, hidden, base, 5, hidden_bytes, s); /* taken over */
    run(plan, scores, base, 6, out_bytes, s);       /* where scaled was: nobody reads that any more */
    expect(plan, active, base, 5, hidden_bytes, s);
    expect(plan, scores, base, 6, out_bytes, s);
    run(plan, shares, base, 7, out_bytes, s);
    expect(plan, shares, base, 7, out_bytes, s);
    expect(plan, image, base, 1, in_bytes, s); /* inputs and weights live throughout */
    expect(plan, w1, base, 2, w1_bytes, s);

    GPUMEM_INIT(&summary);
    check(gpumem_plan_stats_get(plan, &summary), "summary");
    printf("%" PRIu64 " values in %" PRIu64 " slots: %" PRIu64 " bytes, %" PRIu64 " saved, all as written\n",
           summary.values, summary.slots, summary.arena_bytes, summary.saved);

    check(gpumem_free_async(base, s), "free");
    check(gpumem_stream_sync(s), "synchronise");
    check(gpumem_stream_destroy(s), "destroy");
    check(gpumem_plan_destroy(plan), "destroy");
    return EXIT_SUCCESS;
}

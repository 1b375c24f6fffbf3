/* Recordings, snapshots, visits and event callbacks. */
#include "harness.h"

static char path[300];

static const char *file(const char *name) {
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/gpumem-record-%ld-%s", dir != NULL ? dir : "/tmp", (long)getpid(), name);
    return path;
}

static long length_of(const char *name) {
    FILE *f = fopen(name, "rb");
    long n;
    if (f == NULL) return -1;
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    fclose(f);
    return n;
}

static void a_recording_is_made_and_counted(void) {
    uint64_t events = 0, lost = 7;
    const char *name = file("a.gmrec");
    void *p;
    remove(name);
    OK(gpumem_record_start(name, 0));
    CHECK(gpumem_record_start(name, 0) == GPUMEM_ERROR_INVALID);
    p = gpumem_malloc(1000);
    gpumem_free(p);
    OK(gpumem_record_stop(&events, &lost));
    CHECK(events >= 2 && lost == 0);
    CHECK(length_of(name) > 100);
    CHECK(gpumem_record_stop(NULL, NULL) == GPUMEM_ERROR_INVALID);
    remove(name);
}

static void bad_input_is_refused(void) {
    CHECK(gpumem_record_start(NULL, 0) == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_record_start("", 0) == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_record_start("/no/such/place/a.gmrec", 0) == GPUMEM_ERROR_IO);
    CHECK(gpumem_record_start("x", 257) == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_snapshot(NULL) == GPUMEM_ERROR_INVALID);
    CHECK(gpumem_snapshot("/no/such/place/s.json") == GPUMEM_ERROR_IO);
    CHECK(gpumem_snapshot("/dev/full") == GPUMEM_ERROR_IO);
    CHECK(gpumem_visit_allocations(NULL, NULL, NULL) == GPUMEM_ERROR_INVALID);
}

static void a_snapshot_is_json(void) {
    const char *name = file("s.json");
    void *p = gpumem_malloc(3000);
    char text[64] = {0};
    FILE *f;
    OK(gpumem_snapshot(name));
    f = fopen(name, "rb");
    CHECK(f != NULL);
    CHECK(fread(text, 1, sizeof text - 1, f) > 10 && text[0] == '{');
    fclose(f);
    remove(name);
    gpumem_free(p);
}

struct found {
    int count;
    size_t bytes;
    uint64_t tags;
    int stop_after;
};

static int visit(const gpumem_allocation *a, void *user) {
    struct found *found = (struct found *)user;
    CHECK(a->size == sizeof *a && a->base != NULL && a->usable >= a->requested && a->id != 0);
    CHECK(gpumem_usable_size(a->base) == a->usable);
    found->count++;
    found->bytes += a->requested;
    found->tags += a->tag;
    return found->count == found->stop_after;
}

static void what_is_live_is_visited_and_filtered(void) {
    gpumem_malloc_options o;
    gpumem_visit_filter filter;
    struct found found = {0, 0, 0, 0};
    void *small, *large, *tagged;
    small = gpumem_malloc(100);
    large = gpumem_malloc(3000000);
    GPUMEM_INIT(&o);
    o.bytes = 200;
    o.tag = 9;
    OK(gpumem_malloc_with(&o, &tagged));
    OK(gpumem_visit_allocations(NULL, visit, &found));
    CHECK(found.count == 3 && found.bytes == 3000300 && found.tags == 9);
    GPUMEM_INIT(&filter);
    filter.tag = 9;
    memset(&found, 0, sizeof found);
    OK(gpumem_visit_allocations(&filter, visit, &found));
    CHECK(found.count == 1 && found.bytes == 200);
    GPUMEM_INIT(&filter);
    filter.least_bytes = 1000;
    memset(&found, 0, sizeof found);
    OK(gpumem_visit_allocations(&filter, visit, &found));
    CHECK(found.count == 1 && found.bytes == 3000000);
    filter.on_device = 1;
    memset(&found, 0, sizeof found);
    OK(gpumem_visit_allocations(&filter, visit, &found));
    CHECK(found.count == 1);
    filter.device = 99;
    CHECK(gpumem_visit_allocations(&filter, visit, &found) == GPUMEM_ERROR_INVALID && error_says("device 99"));
    filter.on_device = 0;
    CHECK(gpumem_visit_allocations(&filter, visit, &found) == GPUMEM_ERROR_INVALID && error_says("on_device is 0"));
    filter.device = 0;
    filter.on_device = 2;
    CHECK(gpumem_visit_allocations(&filter, visit, &found) == GPUMEM_ERROR_INVALID && error_says("on_device is 2"));
    CHECK(found.count == 1);
    memset(&found, 0, sizeof found);
    found.stop_after = 1;
    OK(gpumem_visit_allocations(NULL, visit, &found));
    CHECK(found.count == 1);
    gpumem_free(small);
    gpumem_free(large);
    gpumem_free(tagged);
}

struct aged {
    int found;
    uint64_t age[2];
    char stack[2][1000];
};

static int note_age(const gpumem_allocation *a, void *user) {
    struct aged *aged = (struct aged *)user;
    if (a->tag == 1 || a->tag == 2) {
        aged->age[a->tag - 1] = a->age_ns;
        snprintf(aged->stack[a->tag - 1], sizeof aged->stack[0], "%s", a->stack != NULL ? a->stack : "");
        aged->found++;
    }
    return 0;
}

static void *tagged(uint64_t tag) {
    gpumem_malloc_options o;
    void *p;
    GPUMEM_INIT(&o);
    o.bytes = 5000;
    o.tag = tag;
    OK(gpumem_malloc_with(&o, &p));
    return p;
}

static void ages_and_stacks_come_from_the_recording(void) {
    gpumem_visit_filter filter;
    struct aged aged;
    void *before = tagged(1), *after;
    const char *name = file("b.gmrec");
    memset(&aged, 0, sizeof aged);
    GPUMEM_INIT(&filter);
    filter.age_and_stack = 1;
    CHECK(gpumem_visit_allocations(&filter, note_age, &aged) == GPUMEM_ERROR_INVALID && error_says("GPUMEM_RECORD"));
    remove(name);
    OK(gpumem_record_start(name, is_slow() ? 0 : 8)); /* naming what is on a stack reads every library */
    gpumem_free(tagged(3)); /* the next may have its address */
    after = tagged(2);
    OK(gpumem_visit_allocations(&filter, note_age, &aged));
    CHECK(aged.found == 2 && aged.age[1] > 0 && aged.age[0] >= aged.age[1]);
    CHECK(aged.stack[0][0] == 0);
    CHECK(is_slow() || strstr(aged.stack[1], "ages_and_stacks") != NULL);
    filter.age_and_stack = 2;
    CHECK(gpumem_visit_allocations(&filter, note_age, &aged) == GPUMEM_ERROR_INVALID);
    filter.age_and_stack = 0;
    OK(gpumem_visit_allocations(&filter, note_age, &aged));
    CHECK(aged.found == 4 && aged.age[0] == 0 && aged.age[1] == 0 && aged.stack[1][0] == 0);
    OK(gpumem_record_stop(NULL, NULL));
    gpumem_free(before);
    gpumem_free(after);
    remove(name);
}

struct seen {
    int mallocs, frees;
    uint64_t bytes;
};

static void see(const gpumem_event *e, void *user) {
    struct seen *seen = (struct seen *)user;
    if (e->kind == GPUMEM_EVENT_MALLOC) {
        void *inside = gpumem_malloc(10); /* makes no event */
        seen->mallocs++;
        seen->bytes += e->bytes;
        gpumem_free(inside);
    }
    if (e->kind == GPUMEM_EVENT_FREE) seen->frees++;
}

static void events_come_to_a_callback(void) {
    struct seen seen = {0, 0, 0};
    void *p;
    OK(gpumem_event_callback_set(see, &seen));
    p = gpumem_malloc(500);
    gpumem_free(p);
    CHECK(seen.mallocs == 1 && seen.frees == 1 && seen.bytes == 500);
    OK(gpumem_event_callback_set(NULL, NULL));
    p = gpumem_malloc(500);
    gpumem_free(p);
    CHECK(seen.mallocs == 1 && seen.frees == 1);
}

static void ask(const gpumem_event *e, void *user) {
    gpumem_stats stats;
    (void)e;
    ++*(int *)user;
    GPUMEM_INIT(&stats);
    OK(gpumem_stats_get(0, &stats));
    gpumem_free(gpumem_malloc(3 << 20));
}

/* Events of the slow path too, which come of calls that hold locks. */
static void a_callback_may_call_gpumem(void) {
    int events = 0, i;
    void *p[50], *q;
    OK(gpumem_event_callback_set(ask, &events));
    for (i = 0; i < 50; i++) CHECK((p[i] = gpumem_malloc((size_t)(i + 1) << 20)) != NULL);
    for (i = 0; i < 50; i += 2) gpumem_free(p[i]);
    OK(gpumem_trim(0));
    CHECK((q = gpumem_malloc((size_t)600 << 20)) != NULL);
    OK(gpumem_realloc_async(q, (size_t)700 << 20, NULL, &q));
    gpumem_free(q);
    for (i = 1; i < 50; i += 2) gpumem_free(p[i]);
    OK(gpumem_event_callback_set(NULL, NULL));
    CHECK(events > 2 * 52 + 50);
    OK(gpumem_validate());
}

int main(void) {
    RUN(a_recording_is_made_and_counted);
    RUN(bad_input_is_refused);
    RUN(a_snapshot_is_json);
    RUN(what_is_live_is_visited_and_filtered);
    RUN(ages_and_stacks_come_from_the_recording);
    RUN(events_come_to_a_callback);
    RUN(a_callback_may_call_gpumem);
    nothing_left();
    return 0;
}

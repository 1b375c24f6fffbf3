/* gpumem_free has no status to give: it counts, remembers and says so, and does no harm. */
#include "harness.h"

static int lines_on_stderr(void (*work)(void)) {
    char name[] = "/tmp/gpumem-frees-XXXXXX";
    int file = mkstemp(name), saved = dup(2), lines = 0, c;
    FILE *in;
    CHECK(file >= 0 && saved >= 0);
    fflush(stderr);
    dup2(file, 2);
    work();
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    close(file);
    in = fopen(name, "r");
    CHECK(in != NULL);
    while ((c = fgetc(in)) != EOF) lines += c == '\n';
    fclose(in);
    remove(name);
    return lines;
}

static void *live;

static void free_what_is_not_live(void) {
    int local = 0;
    gpumem_free(&local);
    gpumem_free((char *)live + 256);
}

static void unknown_and_interior_pointers(void) {
    gpumem_stats before, after;
    live = gpumem_malloc(10000);
    fill(live, 10000, 1, NULL);
    before = stats_now();
    CHECK(lines_on_stderr(free_what_is_not_live) == 2);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
    after = stats_now();
    CHECK(after.allocations == before.allocations && after.frees == before.frees);
    CHECK(after.unknown_pointers + after.double_frees == before.unknown_pointers + before.double_frees + 2);
    CHECK(holds(live, 10000, 1, NULL));
    gpumem_free(live);
    nothing_left();
}

static void free_a_thousand_times_more(void) {
    int i;
    for (i = 0; i < 1000; i++) gpumem_free(live);
}

static void double_frees(void) {
    uint64_t before;
    int lines;
    live = gpumem_malloc(3000);
    before = stats_now().double_frees;
    gpumem_free(live);
    lines = lines_on_stderr(free_a_thousand_times_more);
    CHECK(lines >= 5 && lines <= 20); /* a flood is not repeated on stderr */
    CHECK(gpumem_last_status() == GPUMEM_ERROR_DOUBLE_FREE);
    CHECK(stats_now().double_frees == before + 1000);
    nothing_left();
}

static void the_memory_of_a_double_free_is_not_handed_out_twice(void) {
    void *a = gpumem_malloc(5000), *b, *c;
    gpumem_free(a);
    CHECK(gpumem_free_async(a, NULL) == GPUMEM_ERROR_DOUBLE_FREE);
    b = gpumem_malloc(5000);
    c = gpumem_malloc(5000);
    CHECK(b != c);
    fill(b, 5000, 1, NULL);
    fill(c, 5000, 2, NULL);
    CHECK(holds(b, 5000, 1, NULL));
    gpumem_free(b);
    gpumem_free(c);
    nothing_left();
}

int main(void) {
    RUN(unknown_and_interior_pointers);
    RUN(double_frees);
    RUN(the_memory_of_a_double_free_is_not_handed_out_twice);
    return 0;
}

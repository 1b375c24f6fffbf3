/* Allocate, use, free: what a program does all day. */
#include "harness.h"

static void allocates_uses_and_frees(void) {
    void *p = gpumem_malloc(100000);
    CHECK(p != NULL);
    fill(p, 100000, 1, NULL);
    CHECK(holds(p, 100000, 1, NULL));
    gpumem_free(p);
    nothing_left();
}

static void every_size_is_aligned_and_its_own(void) {
    enum { N = 64 };
    void *p[N];
    size_t bytes[N];
    int i, j;
    for (i = 0; i < N; i++) {
        bytes[i] = (size_t)1 << (i % 22);
        bytes[i] += (size_t)(i * i * 37);
        p[i] = gpumem_malloc(bytes[i]);
        CHECK(p[i] != NULL);
        CHECK((uintptr_t)p[i] % 256 == 0);
        CHECK(gpumem_usable_size(p[i]) >= bytes[i]);
        for (j = 0; j < i; j++) {
            char *a = (char *)p[i], *b = (char *)p[j];
            CHECK(a + bytes[i] <= b || b + bytes[j] <= a);
        }
    }
    for (i = 0; i < N; i++) fill(p[i], bytes[i], (unsigned)i, NULL);
    for (i = 0; i < N; i++) CHECK(holds(p[i], bytes[i], (unsigned)i, NULL));
    for (i = 0; i < N; i += 2) gpumem_free(p[i]);
    for (i = 1; i < N; i += 2) CHECK(holds(p[i], bytes[i], (unsigned)i, NULL));
    for (i = 1; i < N; i += 2) gpumem_free(p[i]);
    nothing_left();
}

static void no_bytes_are_a_pointer_too(void) {
    void *a = gpumem_malloc(0), *b = gpumem_malloc(0), *c = must_malloc_async(0, NULL);
    CHECK(a != NULL && b != NULL);
    CHECK(a != b && b != c && a != c);
    CHECK(stats_now().allocations == 3);
    gpumem_free(a);
    OK(gpumem_free_async(b, NULL));
    gpumem_free(c);
    nothing_left();
}

static void null_is_freed_by_doing_nothing(void) {
    uint64_t frees = stats_now().frees;
    gpumem_free(NULL);
    OK(gpumem_free_async(NULL, NULL));
    CHECK(gpumem_usable_size(NULL) == 0);
    CHECK(stats_now().frees == frees);
}

static void options_arrive(void) {
    static const size_t alignments[] = {0, 1, 256, 512, 4096, 65536, 2097152};
    gpumem_malloc_options options;
    gpumem_pointer_info info;
    size_t i;
    for (i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        size_t alignment = alignments[i] < 256 ? 256 : alignments[i];
        int device = -1;
        void *p = NULL;
        OK(gpumem_device_get(&device));
        GPUMEM_INIT(&options);
        options.bytes = 5000 + i;
        options.alignment = alignments[i];
        options.tag = 77 + i;
        options.flags = i % 2 ? GPUMEM_MALLOC_ON_DEVICE : 0;
        options.device = i % 2 ? device : 0;
        OK(gpumem_malloc_with(&options, &p));
        CHECK((uintptr_t)p % alignment == 0);

        GPUMEM_INIT(&info);
        OK(gpumem_pointer_info_get((char *)p + 4999, &info));
        CHECK(info.size == sizeof info);
        CHECK(info.base == p);
        CHECK(info.requested == 5000 + i);
        CHECK(info.usable >= info.requested && info.usable == gpumem_usable_size(p));
        CHECK(info.tag == 77 + i);
        CHECK(info.device == device);
        CHECK(info.stream == NULL);
        CHECK((info.flags & ~GPUMEM_MALLOC_ON_DEVICE) == 0);
        gpumem_free(p);
    }
    nothing_left();
}

static void identities_are_never_reused(void) {
    uint64_t last = 0;
    int i;
    for (i = 0; i < 100; i++) {
        uint64_t id = 0;
        void *p = gpumem_malloc(4096);
        gpumem_pointer_info info;
        GPUMEM_INIT(&info);
        OK(gpumem_allocation_id_get(p, &id));
        CHECK(id != 0 && id != last);
        OK(gpumem_pointer_info_get(p, &info));
        CHECK(info.id == id);
        last = id;
        gpumem_free(p);
    }
    nothing_left();
}

static void blocking_copies_and_sets(void) {
    char host[1000];
    char *p = (char *)gpumem_malloc(1000), *q = (char *)gpumem_malloc(1000);
    CHECK(p != NULL && q != NULL);
    OK(gpumem_memset(p, 0x1ab, 1000)); /* the low byte counts, as with memset */
    OK(gpumem_memset(p + 10, 7, 3));
    OK(gpumem_memcpy(q, p, 1000));
    memset(host, 0, sizeof host);
    OK(gpumem_memcpy(host, q, 1000));
    CHECK((unsigned char)host[9] == 0xab && host[10] == 7 && host[12] == 7 && (unsigned char)host[13] == 0xab);
    CHECK((unsigned char)host[999] == 0xab);
    OK(gpumem_memcpy(NULL, NULL, 0));
    OK(gpumem_memset(NULL, 1, 0));
    gpumem_free(p);
    gpumem_free(q);
    nothing_left();
}

static void versions_agree(void) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", GPUMEM_VERSION_MAJOR, GPUMEM_VERSION_MINOR, GPUMEM_VERSION_PATCH);
    CHECK(strcmp(gpumem_version_string(), text) == 0);
    CHECK(gpumem_version() == GPUMEM_VERSION_MAJOR * 10000 + GPUMEM_VERSION_MINOR * 100 + GPUMEM_VERSION_PATCH);
    CHECK(strcmp(gpumem_status_name(GPUMEM_OK), "GPUMEM_OK") == 0);
    CHECK(strcmp(gpumem_status_name(-7), "GPUMEM_ERROR_?") == 0);
}

static void a_structure_is_initialised_once(void) {
    gpumem_stats all[2], *next = all;
    memset(all, 1, sizeof all);
    GPUMEM_INIT(next++);
    CHECK(next == all + 1 && all[0].size == sizeof all[0] && all[0].allocations == 0);
    CHECK(all[1].size == 0x01010101);
}

int main(void) {
    RUN(versions_agree);
    RUN(allocates_uses_and_frees);
    RUN(every_size_is_aligned_and_its_own);
    RUN(no_bytes_are_a_pointer_too);
    RUN(null_is_freed_by_doing_nothing);
    RUN(options_arrive);
    RUN(a_structure_is_initialised_once);
    RUN(identities_are_never_reused);
    RUN(blocking_copies_and_sets);
    return 0;
}

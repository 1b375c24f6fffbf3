/* Pinned host memory: one piece by its pointer, many by a handle, its nodes, limits and
 * reservations. */
#include "host.h"

/* What one piece is counted with. */
static size_t counted(size_t bytes) {
    size_t part = 256;
    while (part < bytes) part *= 2;
    return part <= BLOCK / 2 ? part : (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

/* First, while no thread pins ahead of need. */
static void memory_is_pinned_ahead_and_given_back(void) {
    uint64_t went = 7;
    CHECK(host().pinned == 0 && host().pins == 0);
    OK(gpumem_host_prepare(GPUMEM_HOST_NEAREST, 0));
    CHECK(host().pinned == 0);
    OK(gpumem_host_prepare(GPUMEM_HOST_NEAREST, 2 * MIB + 1));
    CHECK(host().free >= 2 * MIB + BLOCK && host().chunks >= 3 && host().longest >= MIB && usage().used == 0);
    OK(gpumem_host_prepare((int32_t)node, 2 * MIB));
    CHECK(host().node == node && host().pins == host().chunks);
    OK(gpumem_host_trim(GPUMEM_HOST_NEAREST, MIB + 1, &went));
    CHECK(went == MIB && host().free == 2 * MIB);
    OK(gpumem_host_trim((int32_t)node, 0, NULL));
    CHECK(host().pinned == 0 && host().peak == 3 * MIB && host().chunks == 0);
    OK(gpumem_host_trim(GPUMEM_HOST_NEAREST, 0, &went));
    CHECK(went == 0);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_prepare(GPUMEM_HOST_NEAREST, LIMIT + 1));
    CHECK(error_says("the limit is 8.00 MiB"));
    OK(gpumem_host_trim(GPUMEM_HOST_NEAREST, 0, NULL));
    CHECK(host().pinned == 0);
}

static void one_piece_of_every_size(void) {
    static const size_t sizes[] = {1, 255, 256, 257, 4095, 4096, 5000, 32768, 32769, 65536, 70000, 1048576, 3000000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    void *p[SIZES];
    uint64_t used = 0;
    size_t i;
    for (i = 0; i < SIZES; i++) {
        size_t aligned = counted(sizes[i]) < 4096 ? counted(sizes[i]) : 4096;
        p[i] = pinned(sizes[i]);
        CHECK((size_t)p[i] % aligned == 0);
        used += counted(sizes[i]);
        CHECK(usage().used == used && host().blocks + host().parts == used);
        paint(p[i], sizes[i], (unsigned)i);
    }
    for (i = 0; i < SIZES; i++) {
        CHECK(painted(p[i], sizes[i], (unsigned)i));
        OK(gpumem_host_free(p[i]));
        used -= counted(sizes[i]);
        CHECK(usage().used == used);
    }
    CHECK(used == 0 && usage().peak > 4 * MIB && usage().available == LIMIT);
}

/* There and back, also in a capture, where CUDA takes pinned memory only. */
static void devices_copy_to_and_from_it(void) {
    enum { BYTES = 300000 };
    gpumem_stream s = must_stream();
    char *device = (char *)must_malloc_async(BYTES, s);
    char *in = (char *)pinned(BYTES), *out = (char *)pinned(BYTES), *one = (char *)pinned(100);
    gpumem_sim_graph graph = NULL;
    paint(in, BYTES, 1);
    OK(gpumem_memcpy_async(device, in, BYTES, s));
    OK(gpumem_memcpy_async(out, device, BYTES, s));
    OK(gpumem_stream_sync(s));
    CHECK(painted(out, BYTES, 1));

    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL));
    OK(gpumem_memcpy_async(device, in, BYTES, s));
    OK(gpumem_memcpy_async(out, device, BYTES, s));
    OK(gpumem_memcpy_async(one, device + 7, 100, s));
    OK(gpumem_sim_capture_end(s, &graph));
    paint(in, BYTES, 2);
    CHECK(painted(out, BYTES, 1));
    OK(gpumem_sim_graph_launch(graph, s));
    OK(gpumem_stream_sync(s));
    CHECK(painted(out, BYTES, 2) && memcmp(one, in + 7, 100) == 0);
    OK(gpumem_sim_graph_destroy(graph));
    OK(gpumem_free_async(device, s));
    OK(gpumem_host_free(in));
    OK(gpumem_host_free(out));
    OK(gpumem_host_free(one));
    OK(gpumem_stream_destroy(s));
    nothing_left();
}

/* Every second block is taken: one piece of two is not to be had, pieces are. */
static void pieces_are_found_where_one_is_not(void) {
    enum { ALL = LIMIT / BLOCK, BYTES = ALL / 2 * BLOCK - 100 };
    void *p[ALL], *none = &none, *piece;
    gpumem_stream s = must_stream();
    gpumem_host_blocks blocks;
    char *device = (char *)must_malloc_async(BYTES, s);
    size_t i, count = 0, bytes = 0, at = 0;
    OK(gpumem_host_trim(GPUMEM_HOST_NEAREST, 0, NULL));
    for (i = 0; i < ALL; i++) p[i] = pinned(BLOCK);
    CHECK(usage().used == LIMIT && host().free == 0 && host().chunks == LIMIT / MIB);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_malloc(1, GPUMEM_HOST_NEAREST, &none));
    CHECK(none == &none && usage().used == LIMIT);
    /* Chunks may lie anywhere, so neighbours are found by their addresses. */
    for (i = 0; i < ALL; i++) {
        if ((size_t)p[i] / BLOCK % 2 == 0) OK(gpumem_host_free(p[i]));
    }
    CHECK(usage().used == LIMIT / 2 && host().longest == BLOCK);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_malloc(2 * BLOCK, GPUMEM_HOST_NEAREST, &none));
    CHECK(error_says("in pieces") && none == &none && usage().used == LIMIT / 2);

    blocks = pieces(BYTES);
    CHECK(usage().used == LIMIT);
    OK(gpumem_host_blocks_count_get(blocks, &count));
    CHECK(count == ALL / 2);
    for (i = 0; i < count; i++) {
        OK(gpumem_host_blocks_get(blocks, i, &piece, &bytes));
        CHECK((size_t)piece % 4096 == 0 && bytes == (i + 1 < count ? BLOCK : BLOCK - 100));
        paint(piece, bytes, (unsigned)i);
        OK(gpumem_memcpy_async(device + at, piece, bytes, s));
        at += bytes;
    }
    CHECK(at == BYTES);
    OK(gpumem_stream_sync(s));
    for (i = 0; i < count; i++) {
        OK(gpumem_host_blocks_get(blocks, i, &piece, NULL));
        OK(gpumem_host_blocks_get(blocks, i, NULL, &bytes));
        memset(piece, 0, bytes);
        OK(gpumem_memcpy_async(piece, device + i * BLOCK, bytes, s));
        OK(gpumem_stream_sync(s));
        CHECK(painted(piece, bytes, (unsigned)i));
    }

    /* A piece has no pointer of its own to free. This one was freed above, and lives again. */
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(piece));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_get(blocks, count, &piece, &bytes));
    CHECK(error_says("there are 64") && bytes == BLOCK - 100);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_count_get(blocks, NULL));
    OK(gpumem_host_blocks_free(blocks));
    CHECK(usage().used == LIMIT / 2);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_free(blocks));
    CHECK(error_says("has been freed"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_count_get(blocks, &count));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_get(blocks, 0, &piece, &bytes));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_get(NULL, 0, &piece, &bytes));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_free((gpumem_host_blocks)(void *)device));
    OK(gpumem_host_blocks_free(NULL));
    for (i = 0; i < ALL; i++) {
        if ((size_t)p[i] / BLOCK % 2 != 0) OK(gpumem_host_free(p[i]));
    }
    CHECK(usage().used == 0 && host().blocks == 0 && host().free == LIMIT);
    OK(gpumem_free_async(device, s));
    OK(gpumem_stream_destroy(s));
}

static void wrong_frees_are_refused(void) {
    int local;
    char text[64];
    gpumem_stream s = must_stream();
    char *p = (char *)pinned(1000), *device = (char *)must_malloc_async(1000, s);
    uint64_t before = usage().used;
    paint(p, 1000, 3);
    OK(gpumem_host_free(NULL));
    snprintf(text, sizeof text, "%p is 1 bytes into 1000 at %p", (void *)(p + 1), (void *)p);
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(p + 1));
    CHECK(error_says(text));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(p + 999));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(&local));
    snprintf(text, sizeof text, "%p is not", (void *)&local);
    CHECK(error_says(text));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(device));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free((void *)(size_t)-1));
    CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_free_async(p, s));
    CHECK(usage().used == before && painted(p, 1000, 3));
    OK(gpumem_host_free(p));
    CHECK(usage().used == before - 1024);
    CHECK_STATUS(GPUMEM_ERROR_DOUBLE_FREE, gpumem_host_free(p));
    snprintf(text, sizeof text, "%p was freed already", (void *)p);
    CHECK(error_says(text) && usage().used == before - 1024);
    OK(gpumem_free_async(device, s));
    OK(gpumem_stream_destroy(s));
}

static void wrong_requests_are_refused(void) {
    static const int32_t nodes[] = {-2, INT32_MIN, 12345, INT32_MAX};
    gpumem_host_blocks blocks = NULL;
    gpumem_host_stats stats;
    void *p = NULL;
    uint64_t out = 5;
    size_t i;
    GPUMEM_INIT(&stats);
    for (i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        const char *says = nodes[i] < 0 ? "is no NUMA node" : "the host has no NUMA node";
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_malloc(1, nodes[i], &p));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_malloc(1, nodes[i], NULL, &blocks));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_prepare(nodes[i], 1));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_trim(nodes[i], 1, &out));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_stats_get(nodes[i], &stats));
        CHECK(error_says(says));
    }
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_malloc(0, GPUMEM_HOST_NEAREST, &p));
    CHECK(error_says("0 bytes"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_malloc(0, GPUMEM_HOST_NEAREST, NULL, &blocks));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_malloc(1, GPUMEM_HOST_NEAREST, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_malloc(1, GPUMEM_HOST_NEAREST, NULL, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_stats_get(GPUMEM_HOST_NEAREST, NULL));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_malloc(LIMIT + 1, GPUMEM_HOST_NEAREST, &p));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_malloc(SIZE_MAX, GPUMEM_HOST_NEAREST, &p));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_blocks_malloc(SIZE_MAX / 2, GPUMEM_HOST_NEAREST, NULL, &blocks));
    stats.size = 88;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_stats_get(GPUMEM_HOST_NEAREST, &stats));
    CHECK(p == NULL && blocks == NULL && out == 5 && stats.pinned == 0 && usage().used == 0);
}

static uint64_t drawn(gpumem_reservation r) {
    gpumem_reservation_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_reservation_info_get(r, &info));
    return info.drawn;
}

static int32_t count_and_give_up(const gpumem_shortage *shortage, void *user) {
    (void)shortage;
    ++*(int *)user;
    return 0;
}

static void memory_is_drawn_from_reservations(void) {
    int shortages = 0;
    gpumem_reserve_options options;
    gpumem_reservation r = NULL, gpu = NULL;
    gpumem_host_blocks a = NULL, b = NULL;
    void *p = NULL;
    uint64_t left = 0;
    GPUMEM_INIT(&options);
    options.space.tier = GPUMEM_TIER_HOST;
    options.space.id = node;
    options.bytes = MIB;
    OK(gpumem_reserve(&options, &r));
    options.space.tier = GPUMEM_TIER_GPU;
    options.space.id = 0;
    OK(gpumem_reserve(&options, &gpu));

    OK(gpumem_host_blocks_malloc(MIB / 2 + 1, GPUMEM_HOST_NEAREST, r, &a));
    CHECK(drawn(r) == MIB / 2 + BLOCK && usage().used == MIB / 2 + BLOCK && usage().unreserved == 0);
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_blocks_malloc(MIB / 2, (int32_t)node, r, &b));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_malloc(1, GPUMEM_HOST_NEAREST, gpu, &b));
    CHECK(error_says("GPU 0"));
    CHECK(b == NULL && drawn(r) == MIB / 2 + BLOCK && drawn(gpu) == 0);

    OK(gpumem_reservation_out_of_memory_set(r, count_and_give_up, &shortages, NULL));
    CHECK_STATUS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_host_blocks_malloc(MIB / 2, (int32_t)node, r, &b));
    CHECK(shortages == 1 && b == NULL);
    OK(gpumem_reservation_out_of_memory_set(r, NULL, NULL, NULL));

    p = pinned(BLOCK);
    CHECK(drawn(r) == MIB / 2 + BLOCK && usage().unreserved == BLOCK);
    OK(gpumem_host_free(p));
    OK(gpumem_reservation_attach_thread(r));
    p = pinned(300);
    CHECK(drawn(r) == MIB / 2 + BLOCK + 512 && usage().unreserved == 0);
    b = pieces(300);
    CHECK(drawn(r) == MIB / 2 + BLOCK + 512 + 4096);
    OK(gpumem_host_blocks_free(b));
    OK(gpumem_host_blocks_free(a));
    CHECK(drawn(r) == 512);
    OK(gpumem_reservation_release(r, &left));
    CHECK(left == 512 && usage().promised == 0 && usage().unreserved == 512);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_host_blocks_malloc(1, GPUMEM_HOST_NEAREST, r, &b));
    CHECK(error_says("released"));
    OK(gpumem_host_free(p));
    CHECK(usage().used == 0);
    OK(gpumem_reservation_release(gpu, NULL));
}

/* In a child, as gpumem starts once in a process. */
static void without_the_pool_there_is_none(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *p = NULL;
        int local;
        setenv("GPUMEM_POOL", "off", 1);
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_malloc(1, GPUMEM_HOST_NEAREST, &p));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_host_prepare(GPUMEM_HOST_NEAREST, 1));
        CHECK_STATUS(GPUMEM_ERROR_UNKNOWN_POINTER, gpumem_host_free(&local));
        OK(gpumem_host_free(NULL));
        CHECK(p == NULL);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

/* While there is no thread that pins: valgrind calls what it owns lost in the child. */
static void children_are_refused(void) {
    void *p = pinned(100);
    gpumem_host_blocks blocks = pieces(100);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        void *other = NULL;
        alarm(30);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_host_malloc(1, GPUMEM_HOST_NEAREST, &other));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_host_free(p));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_host_blocks_get(blocks, 0, &other, NULL));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_host_blocks_free(blocks));
        exit(0);
    }
    CHECK(exit_code(child) == 0);
    OK(gpumem_host_free(p));
    OK(gpumem_host_blocks_free(blocks));
    CHECK(usage().used == 0);
}

int main(void) {
    small_blocks();
    RUN(without_the_pool_there_is_none);
    start();
    RUN(memory_is_pinned_ahead_and_given_back);
    RUN(children_are_refused);
    RUN(one_piece_of_every_size);
    RUN(devices_copy_to_and_from_it);
    RUN(pieces_are_found_where_one_is_not);
    RUN(wrong_frees_are_refused);
    RUN(wrong_requests_are_refused);
    RUN(memory_is_drawn_from_reservations);
    nothing_left();
    return 0;
}

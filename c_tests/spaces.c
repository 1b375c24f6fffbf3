/* Spaces: what there is, its limit, its thresholds, its peaks. */
#include "reserve.h"

static void every_device_has_a_space(void) {
    gpumem_space spaces[64];
    size_t count = 0, more = 0, i;
    uint32_t gpus = 0;
    int devices = 0;
    OK(gpumem_device_count_get(&devices));
    OK(gpumem_space_list_get(NULL, 0, &count));
    CHECK(count >= (size_t)devices && count < 64);
    memset(spaces, 0x7f, sizeof spaces);
    OK(gpumem_space_list_get(spaces, 1, &more));
    CHECK(more == count && spaces[0].tier == GPUMEM_TIER_GPU && spaces[0].id == 0);
    CHECK(spaces[1].tier == 0x7f7f7f7f && spaces[1].id == 0x7f7f7f7f);
    OK(gpumem_space_list_get(spaces, 64, NULL));
    for (i = 0; i < count; i++) {
        gpumem_space_stats usage = usage_of(spaces[i].tier, spaces[i].id);
        CHECK(usage.limit <= usage.capacity && usage.used == 0 && usage.promised == 0 && usage.reservations == 0);
        if (spaces[i].tier == GPUMEM_TIER_GPU) {
            gpumem_device_props props;
            GPUMEM_INIT(&props);
            CHECK(spaces[i].id == gpus);
            OK(gpumem_device_props_get((int)gpus++, &props));
            CHECK(usage.capacity == props.total_bytes && usage.available == usage.limit);
        }
    }
    CHECK(gpus == (uint32_t)devices && spaces[count].tier == 0x7f7f7f7f);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_list_get(NULL, 1, &count));
    CHECK(error_says("out is NULL"));
}

static void limits_are_kept_and_may_be_lowered_below_what_is_promised(void) {
    gpumem_space_stats before = gpu(), now;
    gpumem_reservation r;
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 100 * MIB));
    now = gpu();
    CHECK(now.limit == 100 * MIB && now.available == 100 * MIB && now.capacity == before.capacity);
    r = must_reserve(60 * MIB);
    now = gpu();
    CHECK(now.promised == 60 * MIB && now.available == 40 * MIB && now.reservations == 1 && now.used == 0);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 50 * MIB));
    now = gpu();
    CHECK(now.promised == 60 * MIB && now.available == 0 && now.beyond == 10 * MIB);

    /* Refused: everything is as it was. */
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), before.capacity + 1));
    CHECK(error_says("exceeds the capacity"));
    CHECK(gpu().limit == 50 * MIB);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 0));
    CHECK(gpu().limit == 0 && gpu().beyond == 60 * MIB);
    OK(gpumem_reservation_release(r, NULL));
    CHECK(gpu().beyond == 0 && gpu().promised == 0 && gpu().available == 0);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), UINT64_MAX));
    CHECK(gpu().limit == before.capacity && gpu().available == before.capacity);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), before.limit));
}

static void thresholds_are_shares_of_the_limit(void) {
    gpumem_space_stats before = gpu(), now;
    CHECK(before.trigger == (before.limit * 85 + 99) / 100 && before.stop == before.limit * 65 / 100);
    CHECK(before.should_downgrade == 0 && before.should_stop == 1 && before.amount_to_downgrade == 0);
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 1.0, 0.0));
    now = gpu();
    CHECK(now.trigger == now.limit && now.stop == 0 && now.limit == before.limit);
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.5, 0.5));
    CHECK(gpu().trigger == (before.limit + 1) / 2 && gpu().stop == before.limit / 2);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 60 * MIB));
    CHECK(gpu().trigger == 30 * MIB && gpu().stop == 30 * MIB);
    OK(gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), before.limit));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.4, 0.5));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 1.5, 0.5));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.5, -0.1));
    CHECK(gpu().stop == before.limit / 2);
    OK(gpumem_space_thresholds_set(space_at(GPUMEM_TIER_GPU, 0), 0.85, 0.65));
    CHECK(gpu().trigger == before.trigger && gpu().stop == before.stop);
}

static void peaks_start_anew(void) {
    gpumem_stream s = must_stream();
    uint64_t used = 9, peak = 9;
    OK(gpumem_space_stats_reset_peak(space_at(GPUMEM_TIER_GPU, 0)));
    CHECK(gpu().peak == gpu().used);
    OK(gpumem_space_stream_stats_get(space_at(GPUMEM_TIER_GPU, 0), s, &used, &peak));
    CHECK(used == 0 && peak == 0);
    OK(gpumem_space_stream_stats_get(space_at(GPUMEM_TIER_GPU, 0), NULL, NULL, NULL));
    OK(gpumem_space_stream_stats_reset_peak(space_at(GPUMEM_TIER_GPU, 0), s));
    OK(gpumem_stream_destroy(s));
}

/* Each call with a space that there is not, and with a tier that is none. */
static void missing_spaces_are_refused(void) {
    static const gpumem_space none[] = {
        {GPUMEM_TIER_GPU, 77}, {GPUMEM_TIER_HOST, 1000000}, {GPUMEM_TIER_DISK, UINT32_MAX}, {0, 0}, {4, 0}, {-1, 0}};
    size_t i;
    for (i = 0; i < sizeof none / sizeof *none; i++) {
        const gpumem_space space = none[i];
        const char *says = i < 3 ? "there is no space" : "is no tier";
        gpumem_space_stats usage;
        uint64_t out = 77;
        GPUMEM_INIT(&usage);
        usage.capacity = 123;
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stats_get(space, &usage));
        CHECK(error_says(says) && usage.capacity == 123);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_limit_set(space, 0));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_thresholds_set(space, 1, 0));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stats_reset_peak(space));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stream_stats_get(space, NULL, &out, &out));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stream_stats_reset_peak(space, NULL));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_current_get(space, NULL, &out));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_detach_stream(space, NULL));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_detach_thread(space));
        CHECK(error_says(says));
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_out_of_memory_set(space, NULL, NULL, NULL));
        CHECK(error_says(says) && out == 77);
    }
}

static void directories_become_spaces(void) {
    char dir[] = "/tmp/gpumem-spaces-XXXXXX", file[64];
    gpumem_space spaces[64];
    gpumem_space disk = {0, 77}, more = {77, 77};
    size_t before = 0, after = 0;
    FILE *f;
    CHECK(mkdtemp(dir) != NULL);
    OK(gpumem_space_list_get(NULL, 0, &before));
    OK(gpumem_space_disk_add(dir, 64 * MIB, &disk));
    OK(gpumem_space_list_get(spaces, 64, &after));
    CHECK(after == before + 1 && disk.tier == GPUMEM_TIER_DISK && spaces[before].tier == GPUMEM_TIER_DISK && spaces[before].id == disk.id);
    CHECK(usage_of(GPUMEM_TIER_DISK, disk.id).capacity == 64 * MIB && usage_of(GPUMEM_TIER_DISK, disk.id).limit == 64 * MIB);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(dir, 0, &more));
    CHECK(error_says("already"));
    CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_space_stream_stats_get(disk, NULL, NULL, NULL));

    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(NULL, 0, &more));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add("/tmp", 0, NULL));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add("/\xff", 0, &more));
    CHECK(error_says("UTF-8"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_disk_add("/no/such/directory", 0, &more));
    snprintf(file, sizeof file, "%s/file", dir);
    f = fopen(file, "w");
    CHECK(f != NULL && fclose(f) == 0);
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_disk_add(file, 0, &more));
    CHECK(error_says("not a directory") && more.tier == 77 && more.id == 77);
    OK(gpumem_space_list_get(NULL, 0, &before));
    CHECK(before == after);
    CHECK(unlink(file) == 0 && rmdir(dir) == 0); /* nothing was written there */
}

static void wrong_outputs_are_refused(void) {
    gpumem_space_stats usage;
    gpumem_stats stats;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stats_get(space_at(GPUMEM_TIER_GPU, 0), NULL));
    GPUMEM_INIT(&usage);
    usage.size = 120;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_stats_get(space_at(GPUMEM_TIER_GPU, 0), &usage));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_current_get(space_at(GPUMEM_TIER_GPU, 0), NULL, NULL));
    GPUMEM_INIT(&stats);
    OK(gpumem_stats_get(0, &stats));
    CHECK(stats.allocations == 0);
}

/* In a child, as gpumem starts once in a process. */
static void without_the_pool_there_are_no_spaces(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        size_t count = 5;
        gpumem_token cancel = NULL;
        gpumem_reserve_options options;
        gpumem_reservation r = NULL;
        setenv("GPUMEM_POOL", "off", 1);
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_space_list_get(NULL, 0, &count));
        CHECK(error_says("GPUMEM_POOL") && count == 5);
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_space_limit_set(space_at(GPUMEM_TIER_GPU, 0), 0));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_token_create(&cancel));
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_reservation_shutdown());
        GPUMEM_INIT(&options);
        options.bytes = 1;
        CHECK_STATUS(GPUMEM_ERROR_UNSUPPORTED, gpumem_reserve(&options, &r));
        CHECK(r == NULL && cancel == NULL);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

/* A child of a process that has spaces is refused, and waits for nothing. */
static void children_are_refused(void) {
    gpumem_reservation r = must_reserve(1 * MIB);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        size_t count = 5;
        alarm(30);
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_space_list_get(NULL, 0, &count));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_reservation_release(r, NULL));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_reservation_shrink(r, 1));
        CHECK_STATUS(GPUMEM_ERROR_FORKED, gpumem_reservation_shutdown());
        exit(0);
    }
    CHECK(exit_code(child) == 0);
    CHECK(gpu().promised == 1 * MIB);
    OK(gpumem_reservation_release(r, NULL));
}

int main(void) {
    RUN(without_the_pool_there_are_no_spaces);
    OK(gpumem_init(NULL));
    RUN(every_device_has_a_space);
    RUN(limits_are_kept_and_may_be_lowered_below_what_is_promised);
    RUN(thresholds_are_shares_of_the_limit);
    RUN(peaks_start_anew);
    RUN(missing_spaces_are_refused);
    RUN(directories_become_spaces);
    RUN(wrong_outputs_are_refused);
    RUN(children_are_refused);
    nothing_left();
    return 0;
}

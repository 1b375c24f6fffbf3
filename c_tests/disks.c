/* Spaces of disks that are added while the program runs. */
#include "reserve.h"
#include <sys/stat.h>

static char folder[] = "/tmp/gpumem-disks-XXXXXX";

/* A folder, or a name for one, in this test's own. */
static const char *inside(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void remove_folder(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

static size_t spaces(void) {
    size_t count = 0;
    OK(gpumem_space_list_get(NULL, 0, &count));
    return count;
}

/* Each with the limit that it was added with. */
static void folders_become_spaces(void) {
    size_t before = spaces();
    gpumem_space id = {77, 77};
    gpumem_space_stats usage;
    OK(gpumem_space_disk_add(inside("a"), 64 * MIB, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 0);
    CHECK(id.tier == GPUMEM_TIER_DISK && id.id == 0 && usage.capacity == 64 * MIB && usage.limit == 64 * MIB && usage.used == 0);
    OK(gpumem_space_disk_add(inside("b"), 0, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 1);
    CHECK(id.id == 1 && usage.limit > 0 && usage.limit <= usage.capacity);
    OK(gpumem_space_disk_add(inside("c/."), UINT64_MAX, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 2);
    CHECK(id.id == 2 && usage.limit == usage.capacity && usage.capacity == usage_of(GPUMEM_TIER_DISK, 1).capacity);
    CHECK(spaces() == before + 3);
}

static void wrong_folders_are_refused(void) {
    size_t before = spaces();
    gpumem_space id = {77, 77};
    FILE *file = fopen(inside("file"), "w");
    CHECK(file != NULL && fclose(file) == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(NULL, 0, &id));
    CHECK(error_says("path is NULL"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(inside("a"), 0, NULL));
    CHECK(error_says("out is NULL"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_disk_add("", 0, &id));
    CHECK(error_says("name is empty"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(inside("b/../a"), 0, &id));
    CHECK(error_says("is DISK 0 already"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_disk_add(inside("missing"), 0, &id));
    CHECK(error_says("missing"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_disk_add(inside("file"), 0, &id));
    CHECK(error_says("is not a directory"));
    CHECK(id.tier == 77 && id.id == 77 && spaces() == before);
}

/* Data goes there and comes back, and its file counts in the space. */
static void data_moves_to_an_added_folder(void) {
    enum { BYTES = 300000 };
    gpumem_stream s = must_stream();
    gpumem_malloc_options options;
    gpumem_move_options move;
    gpumem_location at;
    void *p = NULL;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = BYTES;
    options.stream = s;
    OK(gpumem_malloc_with(&options, &p));
    fill(p, BYTES, 5, s);
    GPUMEM_INIT(&move);
    move.flags = GPUMEM_MOVE_TO_SPACE;
    move.space.tier = GPUMEM_TIER_DISK;
    move.space.id = 2;
    OK(gpumem_evict(p, &move, NULL));
    GPUMEM_INIT(&at);
    OK(gpumem_location_get(p, &at));
    CHECK(at.space.tier == GPUMEM_TIER_DISK && at.space.id == 2 && usage_of(GPUMEM_TIER_DISK, 2).used >= BYTES && usage_of(GPUMEM_TIER_DISK, 0).used == 0);
    OK(gpumem_restore(p, NULL, NULL));
    CHECK(holds(p, BYTES, 5, s) && usage_of(GPUMEM_TIER_DISK, 2).used == 0);
    move.space.id = 3;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict(p, &move, NULL));
    CHECK(holds(p, BYTES, 5, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
}

static void holds_on_disk(uint32_t id, uint64_t bytes) {
    uint32_t i;
    for (i = 0; i < 3; i++) {
        const uint64_t used = usage_of(GPUMEM_TIER_DISK, i).used;
        CHECK(i == id ? used >= bytes : used == 0);
    }
}

/* From one folder to another, alone and by the tag; what is as far away as it is to go, or
 * farther, stays. */
static void data_moves_between_folders(void) {
    enum { BYTES = 1300000, TAG = 7 };
    gpumem_malloc_options options;
    gpumem_move_options move;
    gpumem_move_report report;
    void *p[2] = {NULL, NULL};
    int i;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = BYTES;
    options.tag = TAG;
    for (i = 0; i < 2; i++) {
        OK(gpumem_malloc_with(&options, &p[i]));
        fill(p[i], BYTES, (unsigned)i, NULL);
    }
    GPUMEM_INIT(&move);
    move.flags = GPUMEM_MOVE_TO_SPACE;
    move.space = space_at(GPUMEM_TIER_DISK, 0);
    OK(gpumem_evict_tag(TAG, &move, NULL));
    holds_on_disk(0, 2 * BYTES);
    move.space.id = 1;
    GPUMEM_INIT(&report);
    OK(gpumem_evict(p[1], &move, &report));
    CHECK(report.moved == 1 && report.moved_bytes == BYTES && report.already == 0);
    CHECK(usage_of(GPUMEM_TIER_DISK, 1).used >= BYTES && usage_of(GPUMEM_TIER_DISK, 0).used >= BYTES);
    GPUMEM_INIT(&report);
    OK(gpumem_evict_tag(TAG, &move, &report));
    CHECK(report.moved == 1 && report.moved_bytes == BYTES && report.already == 1);
    holds_on_disk(1, 2 * BYTES);
    move.space.id = 0;
    GPUMEM_INIT(&report);
    OK(gpumem_restore(p[0], &move, &report)); /* neither nearer nor farther: both functions do it */
    CHECK(report.moved == 1 && report.already == 0);
    GPUMEM_INIT(&report);
    OK(gpumem_restore_tag(TAG, &move, &report));
    CHECK(report.moved == 1 && report.already == 1);
    holds_on_disk(0, 2 * BYTES);

    GPUMEM_INIT(&move);
    move.space.tier = GPUMEM_TIER_DISK;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_restore(p[0], &move, NULL));
    GPUMEM_INIT(&move);
    move.space.tier = GPUMEM_TIER_HOST;
    GPUMEM_INIT(&report);
    OK(gpumem_evict_tag(TAG, &move, &report)); /* would bring it nearer */
    CHECK(report.moved == 0 && report.moved_bytes == 0 && report.already == 2);
    holds_on_disk(0, 2 * BYTES);
    OK(gpumem_restore_tag(TAG, NULL, NULL));
    GPUMEM_INIT(&report);
    OK(gpumem_restore_tag(TAG, &move, &report)); /* would send it away */
    CHECK(report.moved == 0 && report.moved_bytes == 0 && report.already == 2);
    for (i = 0; i < 2; i++) {
        gpumem_location at;
        GPUMEM_INIT(&at);
        OK(gpumem_location_get(p[i], &at));
        CHECK(at.space.tier == GPUMEM_TIER_GPU && holds(p[i], BYTES, (unsigned)i, NULL));
        OK(gpumem_free_async(p[i], NULL));
    }
    holds_on_disk(0, 0);
}

/* In a child, as gpumem starts once in a process. */
static void added_folders_come_after_those_of_the_environment(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        gpumem_space id = {77, 77};
        setenv("GPUMEM_DISK", inside("a"), 1);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_disk_add(inside("a"), 0, &id));
        OK(gpumem_space_disk_add(inside("b"), 4 * MIB, &id));
        CHECK(id.id == 1 && usage_of(GPUMEM_TIER_DISK, 1).capacity == 4 * MIB && usage_of(GPUMEM_TIER_DISK, 0).capacity > 4 * MIB);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

/* In a child, as gpumem starts once in a process. */
static void folders_of_the_environment_have_to_be_there(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        size_t count = 0;
        setenv("GPUMEM_DISK", inside("late"), 1);
        CHECK_STATUS(GPUMEM_ERROR_CONFIG, gpumem_space_list_get(NULL, 0, &count));
        CHECK(error_says("GPUMEM_DISK or gpumem_context_options.disk: looking for ") && error_says("late"));
        CHECK(mkdir(inside("late"), 0700) == 0);
        OK(gpumem_space_list_get(NULL, 0, &count));
        CHECK(count > 1);
        CHECK(rmdir(inside("late")) == 0);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    CHECK(mkdir(inside("a"), 0700) == 0 && mkdir(inside("b"), 0700) == 0 && mkdir(inside("c"), 0700) == 0);
    RUN(added_folders_come_after_those_of_the_environment);
    RUN(folders_of_the_environment_have_to_be_there);
    OK(gpumem_init(NULL));
    RUN(folders_become_spaces);
    RUN(wrong_folders_are_refused);
    RUN(data_moves_to_an_added_folder);
    RUN(data_moves_between_folders);
    nothing_left();
    remove_folder();
    return 0;
}

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
    OK(gpumem_space_list(NULL, 0, &count));
    return count;
}

/* Each with the limit that it was added with. */
static void folders_become_spaces(void) {
    size_t before = spaces();
    uint32_t id = 77;
    gpumem_space_usage usage;
    OK(gpumem_space_add_disk(inside("a"), 64 * MIB, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 0);
    CHECK(id == 0 && usage.capacity == 64 * MIB && usage.limit == 64 * MIB && usage.used == 0);
    OK(gpumem_space_add_disk(inside("b"), 0, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 1);
    CHECK(id == 1 && usage.limit > 0 && usage.limit <= usage.capacity);
    OK(gpumem_space_add_disk(inside("c/."), UINT64_MAX, &id));
    usage = usage_of(GPUMEM_TIER_DISK, 2);
    CHECK(id == 2 && usage.limit == usage.capacity && usage.capacity == usage_of(GPUMEM_TIER_DISK, 1).capacity);
    CHECK(spaces() == before + 3);
}

static void wrong_folders_are_refused(void) {
    size_t before = spaces();
    uint32_t id = 77;
    FILE *file = fopen(inside("file"), "w");
    CHECK(file != NULL && fclose(file) == 0);
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_add_disk(NULL, 0, &id));
    CHECK(error_says("path is NULL"));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_add_disk(inside("a"), 0, NULL));
    CHECK(error_says("out_id is NULL"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_add_disk("", 0, &id));
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_add_disk(inside("b/../a"), 0, &id));
    CHECK(error_says("is DISK 0 already"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_add_disk(inside("missing"), 0, &id));
    CHECK(error_says("missing"));
    CHECK_STATUS(GPUMEM_ERROR_IO, gpumem_space_add_disk(inside("file"), 0, &id));
    CHECK(error_says("is not a directory"));
    CHECK(id == 77 && spaces() == before);
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
    move.tier = GPUMEM_TIER_DISK;
    move.space = 2;
    OK(gpumem_evict(p, &move, NULL));
    GPUMEM_INIT(&at);
    OK(gpumem_locate(p, &at));
    CHECK(at.tier == GPUMEM_TIER_DISK && at.space == 2 && usage_of(GPUMEM_TIER_DISK, 2).used >= BYTES && usage_of(GPUMEM_TIER_DISK, 0).used == 0);
    OK(gpumem_restore(p, NULL, NULL));
    CHECK(holds(p, BYTES, 5, s) && usage_of(GPUMEM_TIER_DISK, 2).used == 0);
    move.space = 3;
    CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_evict(p, &move, NULL));
    CHECK(holds(p, BYTES, 5, s));
    OK(gpumem_free_async(p, s));
    OK(gpumem_stream_destroy(s));
}

/* In a child, as gpumem starts once in a process. */
static void added_folders_come_after_those_of_the_environment(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint32_t id = 77;
        setenv("GPUMEM_DISK", inside("a"), 1);
        CHECK_STATUS(GPUMEM_ERROR_INVALID, gpumem_space_add_disk(inside("a"), 0, &id));
        OK(gpumem_space_add_disk(inside("b"), 4 * MIB, &id));
        CHECK(id == 1 && usage_of(GPUMEM_TIER_DISK, 1).capacity == 4 * MIB && usage_of(GPUMEM_TIER_DISK, 0).capacity > 4 * MIB);
        exit(0);
    }
    CHECK(exit_code(child) == 0);
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    CHECK(mkdir(inside("a"), 0700) == 0 && mkdir(inside("b"), 0700) == 0 && mkdir(inside("c"), 0700) == 0);
    RUN(added_folders_come_after_those_of_the_environment);
    OK(gpumem_init(NULL));
    RUN(folders_become_spaces);
    RUN(wrong_folders_are_refused);
    RUN(data_moves_to_an_added_folder);
    nothing_left();
    remove_folder();
    return 0;
}

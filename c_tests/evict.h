/* Evictable memory, for the tests of moving it: made, found, and nothing left of it. Each
 * program has a mount of its own. */
#ifndef EVICT_H
#define EVICT_H

#include "reserve.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

static char mount[] = "/tmp/gpumem-evict-XXXXXX";
/* The device memory of the least allocation, bytes. */
static size_t page;

/* What all spaces of a tier use together, bytes. */
static inline uint64_t used_in(int32_t tier) {
    gpumem_space spaces[64];
    uint64_t used = 0;
    size_t count = 0, i;
    OK(gpumem_space_list_get(spaces, 64, &count));
    CHECK(count <= 64);
    for (i = 0; i < count; i++) {
        if (spaces[i].tier == tier) used += usage_of(tier, spaces[i].id).used;
    }
    return used;
}

static inline gpumem_status try_evictable(size_t bytes, uint64_t tag, gpumem_stream s, void **out) {
    gpumem_malloc_options options;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = bytes;
    options.tag = tag;
    options.stream = s;
    return gpumem_malloc_with(&options, out);
}

static inline void *evictable(size_t bytes, uint64_t tag, gpumem_stream s) {
    void *p = NULL;
    OK(try_evictable(bytes, tag, s, &p));
    CHECK(p != NULL);
    return p;
}

static inline gpumem_location where(void *p) {
    gpumem_location at;
    GPUMEM_INIT(&at);
    OK(gpumem_location_get(p, &at));
    CHECK(at.size == sizeof at);
    return at;
}

static inline int is_in(void *p, int32_t tier) { return where(p).space.tier == tier; }

static inline gpumem_move_options to(int32_t tier) {
    gpumem_move_options options;
    GPUMEM_INIT(&options);
    options.space.tier = tier;
    return options;
}

static inline gpumem_move_options to_space(int32_t tier, uint32_t id) {
    gpumem_move_options options = to(tier);
    options.flags = GPUMEM_MOVE_TO_SPACE;
    options.space.id = id;
    return options;
}

static inline void everything_is_free(void) {
    nothing_left();
    CHECK(used_in(GPUMEM_TIER_GPU) == 0 && used_in(GPUMEM_TIER_HOST) == 0 && used_in(GPUMEM_TIER_DISK) == 0);
}

/* Walks the files and folders below a directory, deepest first. */
static inline void walk(const char *dir, void (*each)(const char *path, int is_dir)) {
    DIR *open = opendir(dir);
    struct dirent *entry;
    if (open == NULL) return;
    while ((entry = readdir(open)) != NULL) {
        char path[PATH_MAX];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        CHECK((size_t)snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) < sizeof path);
        if (lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) walk(path, each);
        each(path, S_ISDIR(st.st_mode));
    }
    closedir(open);
}

static inline int is_slot(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".slot") == 0;
}

static inline void remove_any(const char *path, int is_dir) { (void)(is_dir ? rmdir(path) : unlink(path)); }

/* Settings of the process, before its first call that needs a device. */
static inline void set_up(void) {
    void *p;
    CHECK(mkdtemp(mount) != NULL);
    setenv("GPUMEM_DISK", mount, 1);
    setenv("GPUMEM_PINNED_BLOCKS", "1M,16,1", 1);
    p = evictable(1, 0, NULL);
    page = (size_t)where(p).device_bytes;
    CHECK(page >= 64 * KIB);
    gpumem_free(p);
}

static inline void clean_up(void) {
    walk(mount, remove_any);
    CHECK(rmdir(mount) == 0);
}

#endif

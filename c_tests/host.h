/* What the tests of pinned host memory share. */
#ifndef HOST_H
#define HOST_H

#include "reserve.h"

/* Blocks of 64 KiB, 16 in a chunk, 8 MiB in all. */
#define BLOCK (64 * KIB)
#define LIMIT (8 * MIB)

static uint32_t node;

static inline void small_blocks(void) {
    setenv("GPUMEM_PINNED_BLOCKS", "64K,16,1", 1);
    setenv("GPUMEM_PINNED_LIMIT", "8M", 1);
}

static inline gpumem_host_stats host(void) {
    gpumem_host_stats stats;
    GPUMEM_INIT(&stats);
    OK(gpumem_host_stats_get(GPUMEM_HOST_NEAREST, &stats));
    CHECK(stats.size == sizeof stats && stats.block_bytes == BLOCK);
    CHECK(stats.pinned == stats.blocks + stats.shared + stats.free && stats.parts <= stats.shared);
    CHECK(stats.peak >= stats.pinned && stats.longest <= stats.free && (stats.chunks > 0) == (stats.pinned > 0));
    return stats;
}

static inline gpumem_space_stats usage(void) { return usage_of(GPUMEM_TIER_HOST, node); }

static inline void *pinned(size_t bytes) {
    void *p = NULL;
    OK(gpumem_host_malloc(bytes, GPUMEM_HOST_NEAREST, &p));
    CHECK(p != NULL);
    return p;
}

static inline gpumem_host_blocks pieces(size_t bytes) {
    gpumem_host_blocks blocks = NULL;
    OK(gpumem_host_blocks_malloc(bytes, GPUMEM_HOST_NEAREST, NULL, &blocks));
    CHECK(blocks != NULL);
    return blocks;
}

/* After small_blocks(). */
static inline void start(void) {
    gpumem_host_stats stats;
    OK(gpumem_init(NULL));
    GPUMEM_INIT(&stats);
    OK(gpumem_host_stats_get(GPUMEM_HOST_NEAREST, &stats));
    node = stats.node;
}

#endif

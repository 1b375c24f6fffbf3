/* What the tests of the planner share. */
#ifndef PLAN_H
#define PLAN_H

#include "harness.h"

static inline gpumem_plan must_plan(void) {
    gpumem_plan plan = NULL;
    OK(gpumem_plan_create(NULL, &plan));
    CHECK(plan != NULL);
    return plan;
}

static inline gpumem_plan_buffer_options described(uint64_t bytes, uint64_t lower, uint64_t upper) {
    gpumem_plan_buffer_options b;
    GPUMEM_INIT(&b);
    b.bytes = bytes;
    b.lower = lower;
    b.upper = upper;
    return b;
}

static inline uint32_t must_add(gpumem_plan plan, gpumem_plan_buffer_options b) {
    uint32_t id = UINT32_MAX;
    OK(gpumem_plan_buffer_add(plan, &b, &id));
    return id;
}

static inline uint32_t add(gpumem_plan plan, uint64_t bytes, uint64_t lower, uint64_t upper) {
    return must_add(plan, described(bytes, lower, upper));
}

static inline void solved(gpumem_plan plan) { OK(gpumem_plan_solve(plan, NULL)); }

static inline uint64_t offset_of(gpumem_plan plan, uint32_t id) {
    uint64_t offset = GPUMEM_PLAN_NO_OFFSET;
    OK(gpumem_plan_offset_get(plan, id, NULL, &offset));
    return offset;
}

static inline uint32_t arena_of(gpumem_plan plan, uint32_t id) {
    uint64_t offset;
    uint32_t arena = UINT32_MAX;
    OK(gpumem_plan_offset_get(plan, id, &arena, &offset));
    return arena;
}

static inline gpumem_plan_stats summary_of(gpumem_plan plan) {
    gpumem_plan_stats summary;
    GPUMEM_INIT(&summary);
    OK(gpumem_plan_stats_get(plan, &summary));
    CHECK(summary.size == sizeof summary);
    return summary;
}

static inline uint64_t bytes_of(gpumem_plan plan, uint32_t arena) {
    uint64_t bytes = UINT64_MAX;
    OK(gpumem_plan_arena_bytes_get(plan, arena, &bytes, NULL));
    return bytes;
}

/* Whether a value has no slot. */
static inline int has_no_slot(gpumem_plan plan, uint32_t id) {
    uint64_t offset = 77;
    gpumem_status status = gpumem_plan_offset_get(plan, id, NULL, &offset);
    CHECK(status == GPUMEM_OK || (status == GPUMEM_ERROR_INVALID && error_says("has no slot") && offset == 77));
    return status != GPUMEM_OK;
}

static inline int overlap(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end) {
    return (a > b ? a : b) < (a_end < b_end ? a_end : b_end);
}

static inline uint32_t draw(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif

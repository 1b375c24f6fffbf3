/* What the tests of spaces and reservations share. */
#ifndef RESERVE_H
#define RESERVE_H

#include "harness.h"

static inline gpumem_space_stats usage_of(int32_t tier, uint32_t id) {
    gpumem_space_stats usage;
    GPUMEM_INIT(&usage);
    OK(gpumem_space_stats_get(space_at(tier, id), &usage));
    CHECK(usage.size == sizeof usage && usage.space.tier == tier && usage.space.id == id && usage.reserved == 0);
    return usage;
}

static inline gpumem_space_stats gpu(void) { return usage_of(GPUMEM_TIER_GPU, 0); }

static inline gpumem_reserve_options want(uint64_t bytes) {
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    return options;
}

/* policy may be NULL. */
static inline gpumem_reservation must_reserve_by(uint64_t bytes, const gpumem_reserve_policy *policy) {
    gpumem_reserve_options options = want(bytes);
    gpumem_reservation r = NULL;
    options.policy = policy;
    OK(gpumem_reserve(&options, &r));
    CHECK(r != NULL);
    return r;
}

static inline gpumem_reservation must_reserve(uint64_t bytes) { return must_reserve_by(bytes, NULL); }

static inline gpumem_reservation_info info_of(gpumem_reservation r) {
    gpumem_reservation_info info;
    GPUMEM_INIT(&info);
    OK(gpumem_reservation_info_get(r, &info));
    CHECK(info.size == sizeof info);
    return info;
}

#endif

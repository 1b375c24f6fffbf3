// gpumem/stats.hpp: counters.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_STATS_HPP
#define GPUMEM_STATS_HPP

#include <gpumem/core.hpp>

GPUMEM_NAMESPACE_BEGIN

// The counters of a device.
inline gpumem_stats stats(int device) {
    return detail::filled<gpumem_stats>(gpumem_stats_get, device);
}
// The counters of the current device.
inline gpumem_stats stats() {
    int device = 0;
    check(gpumem_device_get(&device));
    return stats(device);
}

GPUMEM_NAMESPACE_END

#endif

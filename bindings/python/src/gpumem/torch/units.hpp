// Sizes as PyTorch counts them, its statistics, and libgpumem's errors as its exceptions.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <gpumem.h>

#include <algorithm>
#include <sstream>
#include <string>

namespace gpumem_torch {

using Stat = c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

// PyTorch counts sizes in these units, and what is larger than kSmall in statistics of its own; so
// do we, to be comparable.
constexpr size_t kUnit = 512;
constexpr size_t kSmall = 1 << 20;

inline size_t round_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}
inline size_t counted(size_t n) {
  return std::max(kUnit, round_up(n, kUnit));
}

inline std::string last_error() {
  char text[1024];
  gpumem_last_error(text, sizeof text);
  return text;
}

inline void ok(gpumem_status status, const char* what) {
  TORCH_CHECK(status == GPUMEM_OK, what, ": ", gpumem_status_name(status), ": ", last_error());
}

inline std::string human(uint64_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed;
  if (bytes >= 1ull << 30) {
    out << double(bytes) / double(1ull << 30) << " GiB";
  } else if (bytes >= 1ull << 20) {
    out << double(bytes) / double(1ull << 20) << " MiB";
  } else if (bytes >= 1024) {
    out << double(bytes) / 1024.0 << " KiB";
  } else {
    out << bytes << " bytes";
  }
  return out.str();
}

// A block comes or goes: in all, and in the statistics of its class.
inline void add(StatArray& stats, size_t block, size_t amount) {
  stats[size_t(StatType::AGGREGATE)].increase(amount);
  stats[size_t(block <= kSmall ? StatType::SMALL_POOL : StatType::LARGE_POOL)].increase(amount);
}
inline void subtract(StatArray& stats, size_t block, size_t amount) {
  stats[size_t(StatType::AGGREGATE)].decrease(amount);
  stats[size_t(block <= kSmall ? StatType::SMALL_POOL : StatType::LARGE_POOL)].decrease(amount);
}
// What libgpumem counts, at the moment of a question.
inline void set(Stat& stat, uint64_t now, uint64_t peak) {
  const auto was = stat.current;
  if (int64_t(now) > was) {
    stat.increase(size_t(int64_t(now) - was));
  } else {
    stat.decrease(size_t(was - int64_t(now)));
  }
  stat.peak = std::max<int64_t>(int64_t(now), int64_t(peak));
}

template <typename F>
void each(DeviceStats& s, F f) {
  for (auto* array : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes,
                      &s.inactive_split_bytes, &s.requested_bytes}) {
    for (auto& stat : *array) f(stat);
  }
  f(s.oversize_allocations);
  f(s.oversize_segments);
}

}  // namespace gpumem_torch

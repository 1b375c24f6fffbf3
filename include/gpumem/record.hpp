// gpumem/record.hpp: recordings.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_RECORD_HPP
#define GPUMEM_RECORD_HPP

#include <gpumem/core.hpp>

GPUMEM_NAMESPACE_BEGIN

namespace detail {

struct stop_recording {
    void operator()(bool is_under_way) const noexcept {
        if (is_under_way) {
            gpumem_record_stop(nullptr, nullptr);
        }
    }
};

} // namespace detail

// Records every allocation to a file until it is destroyed: gpumem_record_start. The destructor
// waits until the file is written. A process has one recording at a time. Move-only.
//
//     gpumem::recording r("steps.gmrec", 16);        // with 16 frames of each stack
class recording : public detail::owner<bool, detail::stop_recording> {
  public:
    explicit recording(const std::string &path, std::uint32_t stack_frames = 0) {
        check(gpumem_record_start(detail::c_string(path, "path"), stack_frames));
        state_ = true;
    }
    // Whether the recording is under way.
    explicit operator bool() const noexcept { return state_; }

    struct totals {
        std::uint64_t events; // in the file
        std::uint64_t lost;   // that it lacks
    };
    // Does now what the destructor does, and returns how much was recorded.
    totals stop() {
        if (!std::exchange(state_, false)) {
            throw error(GPUMEM_ERROR_INVALID, "gpumem: the recording has ended, or was moved from");
        }
        totals out{};
        check(gpumem_record_stop(&out.events, &out.lost));
        return out;
    }
};

GPUMEM_NAMESPACE_END

#endif

// gpumem/evict.hpp: memory that moves out of its device and back.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_EVICT_HPP
#define GPUMEM_EVICT_HPP

#include <gpumem/buffer.hpp>
#include <gpumem/reserve.hpp>

#include <exception>
#include <functional>

GPUMEM_NAMESPACE_BEGIN

// Receives the progress of a move, on the thread that moves: bytes done, bytes in total. Returning
// false cancels the move. So does an exception, which the call that moves then throws.
using progress_function = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// How to move. A value type, to be built in place:
//
//     gpumem::evict(weights, gpumem::move_options().to(GPUMEM_TIER_DISK).after(s));
class move_options {
  public:
    // The defaults: an eviction goes to the nearest space of a lower tier that has room, a restore
    // to the device.
    move_options() noexcept { GPUMEM_INIT(&options_); }
    // Moves to any space of a tier.
    move_options &to(std::int32_t tier) noexcept {
        options_.flags &= ~std::uint32_t{GPUMEM_MOVE_TO_SPACE};
        options_.space = {tier, 0};
        return *this;
    }
    // Moves to one space.
    move_options &to(const space &where) noexcept {
        options_.flags |= std::uint32_t{GPUMEM_MOVE_TO_SPACE};
        options_.space = where.get();
        return *this;
    }
    // Says that all use of the memory so far has been submitted to a stream, or is ordered before
    // it.
    move_options &after(stream_ref s) noexcept {
        options_.flags |= std::uint32_t{GPUMEM_MOVE_ON_STREAM};
        options_.stream = s.get();
        return *this;
    }
    move_options &on_progress(progress_function call) {
        progress_ = std::move(call);
        return *this;
    }

    // The options for gpumem.h, without the progress.
    const gpumem_move_options &get() const noexcept { return options_; }
    const progress_function &progress() const noexcept { return progress_; }

  private:
    gpumem_move_options options_;
    progress_function progress_;
};

namespace detail {

// A progress that is being told, and what it threw.
struct told {
    const progress_function *call;
    std::exception_ptr thrown;
};
inline std::int32_t call_progress(std::uint64_t done, std::uint64_t total, void *user) noexcept {
    told &to = *static_cast<told *>(user);
    try {
        return (*to.call)(done, total) ? 0 : 1;
    } catch (...) {
        to.thrown = std::current_exception();
        return 1;
    }
}

template <class Call> gpumem_move_report move(const move_options &how, Call call) {
    gpumem_move_options options = how.get();
    told to{&how.progress(), nullptr};
    if (how.progress()) {
        options.progress = call_progress;
        options.user = &to;
    }
    auto report = detail::sized<gpumem_move_report>();
    const gpumem_status done = call(&options, &report);
    if (to.thrown) {
        std::rethrow_exception(to.thrown);
    }
    check(done);
    return report;
}

} // namespace detail

// Allocates memory that can move out of the device and back to the same addresses
// (GPUMEM_MALLOC_EVICTABLE), in the order of a stream. Memory with the same tag can be moved
// together.
template <class T> unique_buffer<T> make_evictable(std::size_t count, std::uint64_t tag = 0,
                                                   stream_ref s = stream_ref()) {
    auto options = detail::sized<gpumem_malloc_options>();
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = detail::bytes_of<T>(count);
    options.alignment = detail::alignment_of<T>;
    options.tag = tag;
    options.stream = s.get();
    void *p = nullptr;
    check(gpumem_malloc_with(&options, &p));
    return unique_buffer<T>::adopt(static_cast<T *>(p), count);
}

// Move memory out of the device, as gpumem_evict does, and back, as gpumem_restore does.
inline gpumem_move_report evict(void *p, const move_options &how = move_options()) {
    return detail::move(how, [p](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_evict(p, options, out);
    });
}
template <class T>
gpumem_move_report evict(const unique_buffer<T> &b, const move_options &how = move_options()) {
    return evict(detail::untyped(b.data()), how);
}
inline gpumem_move_report restore(void *p, const move_options &how = move_options()) {
    return detail::move(how, [p](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_restore(p, options, out);
    });
}
template <class T>
gpumem_move_report restore(const unique_buffer<T> &b, const move_options &how = move_options()) {
    return restore(detail::untyped(b.data()), how);
}
// Move all memory with a tag: sleep and wake.
inline gpumem_move_report evict_tag(std::uint64_t tag, const move_options &how = move_options()) {
    return detail::move(how, [tag](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_evict_tag(tag, options, out);
    });
}
inline gpumem_move_report restore_tag(std::uint64_t tag, const move_options &how = move_options()) {
    return detail::move(how, [tag](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_restore_tag(tag, options, out);
    });
}

// Says where evictable memory is.
inline gpumem_location locate(void *p) {
    return detail::filled<gpumem_location>(gpumem_location_get, p);
}
template <class T> gpumem_location locate(const unique_buffer<T> &b) {
    return locate(detail::untyped(b.data()));
}

namespace detail {

struct hold {
    void *data = nullptr;
    stream_ref stream;
};
struct end_hold {
    void operator()(const hold &p) const noexcept {
        if (p.data != nullptr) {
            // While the stream is captured that fails, and the memory stays held: what a graph
            // uses must not go.
            gpumem_unhold(p.data, p.stream.get());
        }
    }
};

} // namespace detail

// Holds evictable memory in its device for the length of a scope, restoring it first if need be:
// gpumem_hold, and at the end gpumem_unhold on the stream to which the scope's work is submitted.
// Move-only.
//
//     {
//         gpumem::held here(weights, s);
//         kernel<<<grid, block, 0, s.get()>>>(weights.data());
//     }                                       // may go once s has come this far
//
// The stream and the memory must outlive the guard.
class held : public detail::owner<detail::hold, detail::end_hold> {
  public:
    held(void *p, stream_ref s) {
        check(gpumem_hold(p));
        state_ = {p, s};
    }
    template <class T> held(const unique_buffer<T> &b, stream_ref s)
        : held(detail::untyped(b.data()), s) {}

    // NULL once it has been unheld, released or moved from.
    void *get() const noexcept { return state_.data; }
    explicit operator bool() const noexcept { return state_.data != nullptr; }
    // Ends the hold now. If this throws, the memory is held as before.
    void unhold() {
        check(gpumem_unhold(state_.data, state_.stream.get()));
        state_.data = nullptr;
    }
    // Gives the hold up; the caller ends it.
    void *release() noexcept { return std::exchange(state_.data, nullptr); }
};

GPUMEM_NAMESPACE_END

#endif

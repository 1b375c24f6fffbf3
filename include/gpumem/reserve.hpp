// gpumem/reserve.hpp: spaces, reservations, and waits for them.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_RESERVE_HPP
#define GPUMEM_RESERVE_HPP

#include <gpumem/stream.hpp>

#include <functional>
#include <memory>
#include <vector>

GPUMEM_NAMESPACE_BEGIN

// Decides about an allocation that does not fit its reservation. Returns GPUMEM_OVERDRAW_*, or the
// bytes to grow the reservation by.
using overdraw_function = std::function<std::int64_t(const gpumem_overdraw &)>;
// Makes room for an allocation that found no memory. Returns true to try it again.
using out_of_memory_function = std::function<bool(const gpumem_shortage &)>;

namespace detail {

// The functions that stand between gpumem.h and a std::function that it keeps. An exception in one
// counts as giving up.
inline std::int64_t call_overdraw(const gpumem_overdraw *what, void *user) noexcept {
    try {
        return (*static_cast<overdraw_function *>(user))(*what);
    } catch (...) {
        return GPUMEM_OVERDRAW_FAIL;
    }
}
inline std::int32_t call_out_of_memory(const gpumem_shortage *what, void *user) noexcept {
    try {
        return (*static_cast<out_of_memory_function *>(user))(*what) ? 1 : 0;
    } catch (...) {
        return 0;
    }
}
template <class F> void free_function(void *user) noexcept {
    delete static_cast<F *>(user);
}

// Hands a function to a call of gpumem.h, which keeps it if it succeeds.
template <class Call> void give_out_of_memory(out_of_memory_function call, Call set) {
    if (!call) {
        check(set(nullptr, nullptr, nullptr));
        return;
    }
    auto kept = std::make_unique<out_of_memory_function>(std::move(call));
    check(set(call_out_of_memory, kept.get(), free_function<out_of_memory_function>));
    kept.release();
}

} // namespace detail

// A place where memory can be: gpumem_space_*. A value type; its calls throw when there is no such
// space.
class space {
  public:
    space(const gpumem_space &which) noexcept : which_(which) {}
    space(std::int32_t tier, std::uint32_t id) noexcept : which_{tier, id} {}
    static space gpu(std::uint32_t device = 0) noexcept { return space(GPUMEM_TIER_GPU, device); }
    static space host(std::uint32_t node = 0) noexcept { return space(GPUMEM_TIER_HOST, node); }
    static space disk(std::uint32_t mount = 0) noexcept { return space(GPUMEM_TIER_DISK, mount); }
    // Adds a directory as a space. limit is the most bytes of files; 0 means as many as there is
    // room for.
    static space add_disk(const std::string &path, std::uint64_t limit = 0) {
        gpumem_space out{};
        check(gpumem_space_disk_add(detail::c_string(path, "path"), limit, &out));
        return out;
    }
    static std::vector<space> all() {
        std::vector<gpumem_space> list;
        std::size_t count = 0;
        check(gpumem_space_list_get(nullptr, 0, &count));
        do {
            list.resize(count);
            check(gpumem_space_list_get(list.data(), list.size(), &count));
        } while (count > list.size());
        return std::vector<space>(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
    }

    const gpumem_space &get() const noexcept { return which_; }
    std::int32_t tier() const noexcept { return which_.tier; }
    std::uint32_t id() const noexcept { return which_.id; }
    gpumem_space_stats stats() const {
        return detail::filled<gpumem_space_stats>(gpumem_space_stats_get, which_);
    }
    // Sets how many bytes may be promised or used; by default, all there are.
    void set_limit(std::uint64_t bytes = UINT64_MAX) const {
        check(gpumem_space_limit_set(which_, bytes));
    }
    void set_thresholds(double trigger, double stop) const {
        check(gpumem_space_thresholds_set(which_, trigger, stop));
    }
    void reset_peak() const { check(gpumem_space_stats_reset_peak(which_)); }
    // Sets what happens to allocations that find no memory, unless their reservation has a
    // function. Without a function they fail.
    void on_out_of_memory(out_of_memory_function call) const {
        detail::give_out_of_memory(
            std::move(call), [this](auto function, void *user, auto free_user) {
                return gpumem_space_out_of_memory_set(which_, function, user, free_user);
            });
    }
    void detach(stream_ref s) const { check(gpumem_space_detach_stream(which_, s.get())); }
    // The number of the reservation that this thread's allocations on a stream draw from; 0 if
    // there is none.
    std::uint64_t current(stream_ref s) const {
        std::uint64_t out = 0;
        check(gpumem_space_current_get(which_, s.get(), &out));
        return out;
    }

    friend bool operator==(const space &a, const space &b) noexcept {
        return a.tier() == b.tier() && a.id() == b.id();
    }
    friend bool operator!=(const space &a, const space &b) noexcept { return !(a == b); }

  private:
    gpumem_space which_;
};

// Ends waits: gpumem_token_*. Move-only. cancel() may be called from any thread.
class token
    : public detail::owned_handle<gpumem_token,
                                  detail::closed_by<gpumem_token, gpumem_token_destroy>> {
  public:
    token() { check(gpumem_token_create(&state_)); }
    void cancel() const { check(gpumem_token_cancel(state_)); }
};

namespace detail {

struct release_reservation {
    void operator()(gpumem_reservation r) const noexcept {
        if (r != nullptr) {
            gpumem_reservation_release(r, nullptr);
        }
    }
};
struct attached {
    gpumem_reservation reservation = nullptr;
    gpumem_space space{};
};
struct detach_thread {
    void operator()(const attached &a) const noexcept {
        std::uint64_t now = 0;
        if (a.reservation != nullptr) {
            gpumem_space_current_get(a.space, nullptr, &now);
        }
        // One that was released meanwhile is detached already, which is no failure.
        if (now != 0) {
            gpumem_reservation_detach_thread(a.reservation);
        }
    }
};

} // namespace detail

// A promise of bytes until the end of a scope: gpumem_reservation_*. Move-only.
//
//     auto job = gpumem::reserve(std::uint64_t{4} << 30, 10000); // waits up to ten seconds
//     gpumem::reservation_attachment here(job); // what this thread allocates draws from it
//
// A request for which there is no room throws bad_alloc; a wait that ends without throws error,
// whose status says why.
class reservation : public detail::owned_handle<gpumem_reservation, detail::release_reservation> {
  public:
    // Holds nothing.
    reservation() noexcept = default;
    explicit reservation(const gpumem_reserve_options &options) {
        check(gpumem_reserve(&options, &state_));
    }

    gpumem_reservation_info info() const {
        return detail::filled<gpumem_reservation_info>(gpumem_reservation_info_get, state_);
    }
    // Its size, bytes.
    std::uint64_t size() const { return info().promised; }
    void grow(std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
        check(gpumem_reservation_grow(state_, bytes, timeout_ms, nullptr));
    }
    void grow(std::uint64_t bytes, std::uint64_t timeout_ms, const token &cancel) {
        check(gpumem_reservation_grow(state_, bytes, timeout_ms, detail::given(cancel, "token")));
    }
    void shrink(std::uint64_t bytes) { check(gpumem_reservation_shrink(state_, bytes)); }
    // Returns the number of bytes given up.
    std::uint64_t shrink_to_fit() {
        std::uint64_t out = 0;
        check(gpumem_reservation_shrink_to_fit(state_, &out));
        return out;
    }
    // Ends it now. Returns how many of its bytes live allocations have drawn; they count as use
    // outside any reservation from now on.
    std::uint64_t release() {
        std::uint64_t drawn = 0;
        check(gpumem_reservation_release(state_, &drawn));
        state_ = nullptr;
        return drawn;
    }
    void attach(stream_ref s) const { check(gpumem_reservation_attach_stream(state_, s.get())); }
    // Sets what happens to an allocation that does not fit.
    void set_policy(const gpumem_reserve_policy &policy) {
        check(gpumem_reservation_policy_set(state_, &policy));
    }
    void on_overdraw(overdraw_function call) {
        auto policy = detail::sized<gpumem_reserve_policy>();
        if (!call) {
            set_policy(policy);
            return;
        }
        auto kept = std::make_unique<overdraw_function>(std::move(call));
        policy.kind = GPUMEM_POLICY_CALLBACK;
        policy.callback = detail::call_overdraw;
        policy.user = kept.get();
        policy.free_user = detail::free_function<overdraw_function>;
        set_policy(policy);
        kept.release();
    }
    // Sets what happens to an allocation that finds no memory. Without a function, the space's
    // decides.
    void on_out_of_memory(out_of_memory_function call) {
        detail::give_out_of_memory(
            std::move(call), [this](auto function, void *user, auto free_user) {
                return gpumem_reservation_out_of_memory_set(state_, function, user, free_user);
            });
    }
};

inline reservation reserve(const gpumem_reserve_options &options) {
    return reservation(options);
}
// Reserves bytes in a space, or by default in the current device's. Waits at most timeout_ms
// milliseconds.
inline reservation reserve(const space &where, std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
    auto options = detail::sized<gpumem_reserve_options>();
    options.bytes = bytes;
    options.space = where.get();
    options.timeout_ms = timeout_ms;
    return reservation(options);
}
inline reservation reserve(std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
    auto options = detail::sized<gpumem_reserve_options>();
    options.bytes = bytes;
    options.timeout_ms = timeout_ms;
    return reservation(options);
}

// Attaches a reservation to the thread for the length of a scope, which must end on the same
// thread.
class reservation_attachment : public detail::owner<detail::attached, detail::detach_thread> {
  public:
    explicit reservation_attachment(const reservation &r) : reservation_attachment(r.get()) {}
    explicit reservation_attachment(gpumem_reservation r) {
        const auto info = detail::filled<gpumem_reservation_info>(gpumem_reservation_info_get, r);
        check(gpumem_reservation_attach_thread(r));
        state_.reservation = r;
        state_.space = info.space;
    }
};

GPUMEM_NAMESPACE_END

#endif

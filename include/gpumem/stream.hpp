// gpumem/stream.hpp: streams, owned, borrowed, or somebody else's.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_STREAM_HPP
#define GPUMEM_STREAM_HPP

#include <gpumem/core.hpp>

GPUMEM_NAMESPACE_BEGIN

class stream_ref;

namespace detail {

template <class S, class = void> struct has_handle : std::false_type {};
template <class S> struct has_handle<
    S,
    std::enable_if_t<std::is_same<decltype(std::declval<const S &>().get()), gpumem_stream>::value>>
    : std::true_type {};

// An object that has a cudaStream_t, or becomes one, and is no stream_ref itself.
template <class S> struct is_stream
    : std::integral_constant<bool, std::is_class<S>::value && !std::is_same<S, stream_ref>::value &&
                                       (has_handle<S>::value ||
                                        std::is_convertible<const S &, gpumem_stream>::value)> {};

} // namespace detail

// A stream that somebody else owns, and which outlives its use: what every function and class here
// takes. It is made from a cudaStream_t, CUstream or gpumem_stream, which are one type; from a
// gpumem::stream or borrowed_stream; from NULL, 0 or nothing, which mean the default stream, as do
// objects that hold none; and from any object with a get() that gives a cudaStream_t, or that
// becomes one: cuda::stream_ref, rmm::cuda_stream_view.
//
// The default stream is CUDA's: the legacy one, and the calling thread's own where the file is
// compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM (nvcc --default-stream per-thread).
class stream_ref {
  public:
    stream_ref() noexcept = default;
    stream_ref(gpumem_stream s) noexcept : handle_(s != nullptr ? s : GPUMEM_STREAM_DEFAULT) {}
    template <class S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
    stream_ref(const S &s) noexcept : stream_ref(handle_of(s)) {}

    // For gpumem.h and CUDA. GPUMEM_STREAM_DEFAULT for the default stream.
    gpumem_stream get() const noexcept { return handle_; }
    // Blocks until everything submitted is done.
    void sync() const { check(gpumem_stream_sync(handle_)); }
    // Later work here waits, on the device, for what has been submitted to another stream.
    void wait(stream_ref on) const { check(gpumem_stream_wait(handle_, on.handle_)); }

    // Whether both are the same handle.
    friend bool operator==(stream_ref a, stream_ref b) noexcept { return a.handle_ == b.handle_; }
    friend bool operator!=(stream_ref a, stream_ref b) noexcept { return a.handle_ != b.handle_; }

  private:
    template <class S> static gpumem_stream handle_of(const S &s) noexcept {
        if constexpr (detail::has_handle<S>::value) {
            return s.get();
        } else {
            return s;
        }
    }
    gpumem_stream handle_ = GPUMEM_STREAM_DEFAULT;
};

// Owns a stream of the current device. Move-only.
class stream
    : public detail::owned_handle<gpumem_stream,
                                  detail::closed_by<gpumem_stream, gpumem_stream_destroy>> {
  public:
    stream() { check(gpumem_stream_create(&state_)); }
    // Takes over a stream, which is destroyed with this. To use one that stays yours: stream_ref.
    explicit stream(gpumem_stream own) noexcept : owned_handle(own) {}

    void sync() const { stream_ref(*this).sync(); }
    void wait(stream_ref on) const { stream_ref(*this).wait(on); }
};

// A wait without an end, where a parameter is a time in milliseconds.
constexpr std::uint64_t forever = GPUMEM_WAIT_FOREVER;

namespace detail {

struct borrowed {
    gpumem_stream_pool pool = nullptr;
    gpumem_stream handle = nullptr;
};
struct give_back {
    void operator()(const borrowed &b) const noexcept {
        if (b.pool != nullptr) {
            gpumem_stream_pool_return(b.pool, b.handle);
        }
    }
};

} // namespace detail

// A stream of a pool, until it is destroyed: then it goes back, with whatever work it still has. It
// may outlive the stream_pool that lent it. Move-only.
class borrowed_stream : public detail::owner<detail::borrowed, detail::give_back> {
  public:
    gpumem_stream get() const noexcept { return state_.handle; }
    explicit operator bool() const noexcept { return state_.pool != nullptr; }
    void sync() const { stream_ref(*this).sync(); }
    void wait(stream_ref on) const { stream_ref(*this).wait(on); }

  private:
    friend class stream_pool;
    using owner::owner;
};

// Lends streams of the device that is current when it is made: gpumem_stream_pool_*. Move-only.
// borrow() and borrow_or_grow() may be called from several threads at once. When it goes, streams
// that are lent are destroyed as they come back.
class stream_pool
    : public detail::owned_handle<
          gpumem_stream_pool, detail::closed_by<gpumem_stream_pool, gpumem_stream_pool_destroy>> {
  public:
    // Makes up to size streams by itself.
    explicit stream_pool(std::size_t size = 16) { check(gpumem_stream_pool_create(size, &state_)); }

    // Waits, without an end unless one is given, for a stream that nobody has.
    borrowed_stream borrow(std::uint64_t timeout_ms = forever) const {
        gpumem_stream out = nullptr;
        check(gpumem_stream_pool_borrow(state_, timeout_ms, &out));
        return borrowed_stream({state_, out});
    }
    // Has one more made instead of waiting.
    borrowed_stream borrow_or_grow() const {
        gpumem_stream out = nullptr;
        check(gpumem_stream_pool_borrow_or_grow(state_, &out));
        return borrowed_stream({state_, out});
    }
    gpumem_stream_pool_stats stats() const {
        return detail::filled<gpumem_stream_pool_stats>(gpumem_stream_pool_stats_get, state_);
    }
};

GPUMEM_NAMESPACE_END

#endif

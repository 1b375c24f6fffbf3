// gpumem/stream.hpp: streams that are owned, borrowed or only referred to. gpumem.hpp has the
// conventions that hold for everything here.
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

// A class that has a cudaStream_t or converts to one, and is not stream_ref itself.
template <class S> struct is_stream
    : std::integral_constant<bool, std::is_class<S>::value && !std::is_same<S, stream_ref>::value &&
                                       (has_handle<S>::value ||
                                        std::is_convertible<const S &, gpumem_stream>::value)> {};

} // namespace detail

// A non-owning reference to a stream, which must outlive its use. Every function and class here
// takes one. It is made from a cudaStream_t, CUstream or gpumem_stream, which are one type; from a
// gpumem::stream or borrowed_stream; or from any object that converts to a cudaStream_t or whose
// get() returns one: cuda::stream_ref, rmm::cuda_stream_view. NULL, 0, nothing, and an object that
// holds no stream mean the default stream.
//
// The default stream is CUDA's: the legacy one, or the calling thread's own where the file is
// compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM (nvcc --default-stream per-thread).
class stream_ref {
  public:
    stream_ref() noexcept = default;
    stream_ref(gpumem_stream s) noexcept : handle_(s != nullptr ? s : GPUMEM_STREAM_DEFAULT) {}
    template <class S, std::enable_if_t<detail::is_stream<S>::value, int> = 0>
    stream_ref(const S &s) noexcept : stream_ref(handle_of(s)) {}

    // The handle for gpumem.h and CUDA. For the default stream it is GPUMEM_STREAM_DEFAULT.
    gpumem_stream get() const noexcept { return handle_; }
    // Blocks until everything submitted to the stream is done.
    void sync() const { check(gpumem_stream_sync(handle_)); }
    // Makes later work on this stream wait, on the device, for what has been submitted to another.
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
    // Takes ownership of a stream, which is destroyed with this object. To use one without owning
    // it, take a stream_ref.
    explicit stream(gpumem_stream own) noexcept : owned_handle(own) {}

    void sync() const { stream_ref(*this).sync(); }
    void wait(stream_ref on) const { stream_ref(*this).wait(on); }
};

// No limit, where a parameter is a time to wait in milliseconds.
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

// A stream borrowed from a pool. The destructor gives it back, with whatever work it still has. It
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
// borrow() and borrow_or_grow() may be called from several threads at once. Streams that are lent
// when the pool is destroyed are destroyed as they come back.
class stream_pool
    : public detail::owned_handle<
          gpumem_stream_pool, detail::closed_by<gpumem_stream_pool, gpumem_stream_pool_destroy>> {
  public:
    // The pool makes up to size streams on demand.
    stream_pool() : stream_pool(16) {}
    explicit stream_pool(std::size_t size) { check(gpumem_stream_pool_create(size, &state_)); }

    // Borrows a stream that is not lent. Waits for one up to timeout_ms milliseconds; by default
    // without limit.
    borrowed_stream borrow(std::uint64_t timeout_ms = forever) const {
        gpumem_stream out = nullptr;
        check(gpumem_stream_pool_borrow(state_, timeout_ms, &out));
        return borrowed_stream({state_, out});
    }
    // Borrows a stream; makes one more instead of waiting.
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

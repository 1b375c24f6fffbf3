// gpumem/buffer.hpp: objects that own device memory. gpumem.hpp has the conventions that hold for
// everything here.
#ifndef GPUMEM_BUFFER_HPP
#define GPUMEM_BUFFER_HPP

#include <gpumem/stream.hpp>

GPUMEM_NAMESPACE_BEGIN

namespace detail {

template <class T> struct extent {
    T *data = nullptr;
    std::size_t size = 0;
};
struct free_in_own_order {
    template <class T> void operator()(const extent<T> &e) const noexcept {
        gpumem_free(untyped(e.data)); // NULL does nothing
    }
};

template <class T> struct stream_extent {
    T *data = nullptr;
    std::size_t size = 0;
    stream_ref stream;
    // Another stream was set since the memory was allocated.
    bool is_handed_over = false;
};
struct free_in_stream_order {
    template <class T> void operator()(const stream_extent<T> &e) const noexcept {
        if (e.is_handed_over) {
            gpumem_free_async(untyped(e.data), e.stream.get());
        } else {
            // By now a default stream may mean that of another device or thread. gpumem knows which
            // it was.
            gpumem_free(untyped(e.data));
        }
    }
};

// The interface that both kinds of buffers share.
template <class T, class State, class Close> class buffer : public owner<State, Close> {
  public:
    using value_type = T;
    T *data() const noexcept { return this->state_.data; }
    // The number of elements; for void, of bytes.
    std::size_t size() const noexcept { return this->state_.size; }
    std::size_t size_bytes() const noexcept { return size() * element_size<T>::value; }
    explicit operator bool() const noexcept { return data() != nullptr; }
    // Gives the memory up; the caller frees it.
    T *release() noexcept { return std::exchange(this->state_, State{}).data; }

  protected:
    using owner<State, Close>::owner;
};

} // namespace detail

// Owns device memory for count elements, in the order of one stream. Work submitted to that stream,
// or ordered after the allocation there, may use it, and it is freed in that stream's order.
// Move-only, like std::unique_ptr.
template <class T> class unique_buffer
    : public detail::buffer<T, detail::extent<T>, detail::free_in_own_order> {
    using base = detail::buffer<T, detail::extent<T>, detail::free_in_own_order>;

  public:
    unique_buffer() noexcept = default;
    explicit unique_buffer(std::size_t count, stream_ref s = stream_ref()) {
        void *p = nullptr;
        check(gpumem_malloc_async(detail::bytes_of<T>(count), s.get(), &p));
        this->state_ = {static_cast<T *>(p), count};
    }
    // Takes ownership of memory from gpumem that has room for count elements. It is freed in the
    // order of the stream that it was allocated on.
    static unique_buffer adopt(T *data, std::size_t count) noexcept {
        return unique_buffer(detail::extent<T>{data, count});
    }

  private:
    explicit unique_buffer(detail::extent<T> e) noexcept : base(e) {}
};

// Owns device memory for count elements and remembers its stream. Allocating, resizing and freeing
// take place in the order of that stream, and the host does not wait for them. The stream must
// outlive the buffer. A default stream is that of the device, or thread, of the allocation;
// resize() and set_stream() take the one that is current then. Move-only.
//
//     gpumem::async_buffer<float> x(count, stream);     // a cudaStream_t, a gpumem::stream, ...
//     kernel<<<grid, block, 0, stream>>>(x.data());
template <class T> class async_buffer
    : public detail::buffer<T, detail::stream_extent<T>, detail::free_in_stream_order> {
  public:
    // An empty buffer on the default stream.
    async_buffer() noexcept = default;
    explicit async_buffer(std::size_t count, stream_ref s = stream_ref()) {
        void *p = nullptr;
        check(gpumem_malloc_async(detail::bytes_of<T>(count), s.get(), &p));
        this->state_ = {static_cast<T *>(p), count, s, false};
    }

    // The stream in whose order the memory is resized and freed.
    stream_ref get_stream() const noexcept { return this->state_.stream; }
    // Uses another stream from now on. All use of the memory so far must be ordered before what is
    // submitted to that stream.
    void set_stream(stream_ref s) noexcept {
        this->state_.stream = s;
        this->state_.is_handed_over = this->data() != nullptr;
    }
    // Gives the memory up; the caller frees it. The stream stays.
    T *release() noexcept {
        this->state_.size = 0;
        this->state_.is_handed_over = false;
        return std::exchange(this->state_.data, nullptr);
    }
    // Frees the memory now. The stream stays.
    void reset() noexcept {
        detail::free_in_stream_order()(this->state_);
        release();
    }
    // Changes the number of elements, keeping the contents of those that stay. data() may change.
    // If this throws, nothing has changed.
    void resize(std::size_t count) {
        void *p = nullptr;
        check(gpumem_realloc_async(detail::untyped(this->data()), detail::bytes_of<T>(count),
                                   get_stream().get(), &p));
        this->state_.data = static_cast<T *>(p);
        this->state_.size = count;
    }
};

// An async_buffer that lives as long as a scope.
template <class T> using scoped_async_buffer = async_buffer<T>;

GPUMEM_NAMESPACE_END

#endif

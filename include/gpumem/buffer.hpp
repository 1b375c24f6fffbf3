// gpumem/buffer.hpp: objects that own device memory. gpumem.hpp has the conventions that hold for
// everything here.
#ifndef GPUMEM_BUFFER_HPP
#define GPUMEM_BUFFER_HPP

#include <gpumem/stream.hpp>

GPUMEM_NAMESPACE_BEGIN

namespace detail {

// Allocates for count elements, aligned as their type asks.
template <class T> T *allocate(std::size_t count, stream_ref s) {
    const std::size_t bytes = bytes_of<T>(count);
    void *p = nullptr;
    if constexpr (alignment_of<T> <= default_alignment) {
        check(gpumem_malloc_async(bytes, s.get(), &p));
    } else {
        auto options = sized<gpumem_malloc_options>();
        options.bytes = bytes;
        options.alignment = alignment_of<T>;
        options.stream = s.get();
        check(gpumem_malloc_with(&options, &p));
    }
    return static_cast<T *>(p);
}

// The number of the allocation at p, by which its owner frees it whatever has become of it. 0 for
// NULL.
inline std::uint64_t number_of(const volatile void *p) noexcept {
    std::uint64_t id = 0;
    if (p != nullptr) {
        gpumem_allocation_id_get(untyped(p), &id);
    }
    return id;
}

// The same for what was just allocated at p, but 0 where only its owner can free it: outside of
// arenas and captures. It frees by address then, which is quicker.
inline std::uint64_t owner_number_of(const volatile void *p, stream_ref s) noexcept {
    std::uint64_t id = 0;
    if (p != nullptr) {
        gpumem_owner_id_get(untyped(p), s.get(), &id);
    }
    return id;
}

// Whether a handle means another stream on another device or thread.
inline bool is_default(stream_ref s) noexcept {
    return s.get() == nullptr || s.get() == GPUMEM_STREAM_LEGACY ||
           s.get() == GPUMEM_STREAM_PER_THREAD;
}

// Whether memory is of the device whose default streams a default handle means now.
inline bool is_on_current_device(const volatile void *p) noexcept {
    auto info = sized<gpumem_pointer_info>();
    int now = 0;
    gpumem_device_get(&now);
    return gpumem_pointer_info_get(untyped(p), &info) != GPUMEM_OK || info.device == now;
}

// Frees in the order of the stream that the memory was allocated on. NULL does nothing.
inline void free_numbered(void *p, std::uint64_t id) noexcept {
    if (id == 0) {
        gpumem_free(p);
    } else {
        gpumem_free_id(p, id);
    }
}

template <class T> struct extent {
    T *data = nullptr;
    std::size_t size = 0;
    // Of owner_number_of().
    std::uint64_t id = 0;
};
struct free_in_own_order {
    template <class T> void operator()(const extent<T> &e) const noexcept {
        free_numbered(untyped(e.data), e.id);
    }
};

template <class T> struct stream_extent {
    T *data = nullptr;
    std::size_t size = 0;
    std::uint64_t id = 0;
    stream_ref stream;
    // Another stream was set since the memory was allocated.
    bool is_handed_over = false;
};
struct free_in_stream_order {
    template <class T> void operator()(const stream_extent<T> &e) const noexcept {
        if (!e.is_handed_over) {
            // By now a default stream may mean that of another device or thread. gpumem knows which
            // it was.
            free_numbered(untyped(e.data), e.id);
        } else if (e.id == 0) {
            gpumem_free_async(untyped(e.data), e.stream.get());
        } else {
            gpumem_free_id_async(untyped(e.data), e.id, e.stream.get());
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
        T *p = detail::allocate<T>(count, s);
        this->state_ = {p, count, detail::owner_number_of(p, s)};
    }
    // Takes ownership of memory from gpumem that has room for count elements. It is freed in the
    // order of the stream that it was allocated on.
    static unique_buffer adopt(T *data, std::size_t count) noexcept {
        // The memory may be in an arena that this thread is not in, or of a capture that is over.
        return unique_buffer(detail::extent<T>{data, count, detail::number_of(data)});
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
        T *p = detail::allocate<T>(count, s);
        this->state_ = {p, count, detail::owner_number_of(p, s), s, false};
    }

    // The stream in whose order the memory is resized and freed.
    stream_ref get_stream() const noexcept { return this->state_.stream; }
    // Uses another stream from now on. All use of the memory so far must be ordered before what is
    // submitted to that stream.
    void set_stream(stream_ref s) noexcept {
        // A default stream is announced now: by the free, its handle may mean another stream.
        const bool is_announced =
            this->data() != nullptr && detail::is_default(s) &&
            gpumem_record_stream(detail::untyped(this->data()), s.get()) == GPUMEM_OK;
        this->state_.stream = s;
        this->state_.is_handed_over = this->data() != nullptr && !is_announced;
    }
    // Gives the memory up; the caller frees it. The stream stays.
    T *release() noexcept {
        this->state_.size = 0;
        this->state_.id = 0;
        this->state_.is_handed_over = false;
        return std::exchange(this->state_.data, nullptr);
    }
    // Frees the memory now. The stream stays.
    void reset() noexcept {
        detail::free_in_stream_order()(this->state_);
        release();
    }
    // Changes the number of elements, keeping the contents of those that stay. data() may change.
    // If this throws, nothing has changed. It throws when the memory has gone with its arena or
    // capture.
    void resize(std::size_t count) {
        static_assert(detail::alignment_of<T> <= detail::default_alignment,
                      "resize() aligns to no more than 256 bytes; make another buffer and copy");
        const std::uint64_t id = this->state_.id;
        if (id != 0 && detail::number_of(this->data()) != id) {
            throw error(GPUMEM_ERROR_USE_AFTER_FREE,
                        "gpumem::async_buffer: the memory went with its arena or capture; reset() "
                        "the buffer before resize(), or keep the memory when the arena ends");
        }
        void *p = nullptr;
        check(gpumem_realloc_async(detail::untyped(this->data()), detail::bytes_of<T>(count),
                                   get_stream().get(), &p));
        if (detail::is_default(get_stream()) && !detail::is_on_current_device(p)) {
            // It counts as allocated on a stream of gpumem's own. Were the announcement refused,
            // which it is without a pool only, the free would wait for the device.
            gpumem_record_stream(p, get_stream().get());
        }
        this->state_.data = static_cast<T *>(p);
        this->state_.size = count;
        this->state_.id =
            id != 0 ? detail::number_of(p) : detail::owner_number_of(p, get_stream());
    }
};

// An async_buffer that lives as long as a scope.
template <class T> using scoped_async_buffer = async_buffer<T>;

GPUMEM_NAMESPACE_END

#endif

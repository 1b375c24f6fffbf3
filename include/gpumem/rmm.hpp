// gpumem/rmm.hpp: gpumem as a memory resource for RMM, CCCL and Thrust.
// gpumem.hpp has the conventions that hold for everything here.
//
// CCCL 3.2 or newer and RMM are found by their headers on the include path; neither is needed.
//
// GPUMEM_NO_CCCL     leaves CCCL out: memory_resource is a class of its own then, with the same
//                    members.
// GPUMEM_NO_RMM      leaves RMM out: memory_resource throws gpumem::bad_alloc, which RMM's adaptors
//                    do not catch. With RMM's headers but not its library, a use of memory_resource
//                    does not link; this macro fixes that.
// GPUMEM_HAS_CCCL    1 or 0: what was found.
// GPUMEM_HAS_RMM     1 or 0: what was found.
#ifndef GPUMEM_RMM_HPP
#define GPUMEM_RMM_HPP

#include <gpumem/buffer.hpp>

#define GPUMEM_HAS_CCCL 0
#if !defined(GPUMEM_NO_CCCL) && __has_include(<cuda_runtime_api.h>) &&                             \
    __has_include(<cuda/std/version>)
#include <cuda/std/version>
// Older ones (CUDA 13.0 and 13.1 have them) have concepts of other forms.
#if defined(CCCL_VERSION) && CCCL_VERSION >= 3002000
#if !__has_include(<cuda/memory_resource>)
#error "gpumem: this CCCL has no <cuda/memory_resource>; use another, or define GPUMEM_NO_CCCL"
#endif
#include <cuda/memory_resource>
#undef GPUMEM_HAS_CCCL
#define GPUMEM_HAS_CCCL 1
#endif
#endif

// RMM's headers need CCCL's; without those nothing of RMM can be in this file.
#define GPUMEM_HAS_RMM 0
#if !defined(GPUMEM_NO_RMM) && __has_include(<cuda/std/version>)
#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#undef GPUMEM_HAS_RMM
#define GPUMEM_HAS_RMM 1
#elif __has_include(<rmm/detail/error.hpp>)
#include <rmm/detail/error.hpp>
#undef GPUMEM_HAS_RMM
#define GPUMEM_HAS_RMM 1
#elif __has_include(<rmm/device_buffer.hpp>)
#error "gpumem: this RMM has no <rmm/error.hpp>; use another, or define GPUMEM_NO_RMM"
#endif
#endif

GPUMEM_NAMESPACE_BEGIN

namespace detail {

// No device's number, also not that of one which does not exist, such as -1.
constexpr int any_device = std::numeric_limits<int>::min();

// Makes a device current for the length of a scope; any_device leaves the current one as it is.
class current_device {
  public:
    explicit current_device(int device) {
        if (device != any_device) {
            check(gpumem_device_get(&before_));
            check(gpumem_device_set(device));
        }
    }
    current_device(const current_device &) = delete;
    current_device &operator=(const current_device &) = delete;
    ~current_device() {
        if (before_ >= 0) {
            gpumem_device_set(before_);
        }
    }

  private:
    int before_ = -1;
};

} // namespace detail

// What is thrown differs with RMM and without, and so does the name of what throws it.
#if GPUMEM_HAS_RMM
inline namespace with_rmm {

// Lack of memory, as RMM's adaptors catch it. Only after this exception do failure callbacks, and
// through them spilling, try again.
class out_of_memory : public ::rmm::out_of_memory {
  public:
    explicit out_of_memory(const std::string &text) : ::rmm::out_of_memory(text) {}
    gpumem_status status() const noexcept { return GPUMEM_ERROR_OUT_OF_MEMORY; }
};
#else
inline namespace without_rmm {

using out_of_memory = bad_alloc;
#endif

// gpumem as a memory resource. With CCCL 3.2 it models
// cuda::mr::resource_with<cuda::mr::device_accessible>, so it works with cuda::mr::any_resource and
// resource_ref, and through them with RMM 26 (rmm::device_buffer, the adaptors,
// rmm::mr::set_current_device_resource) and Thrust (rmm::exec_policy, rmm::device_vector). A value
// type: copies compare equal.
//
// Lack of memory throws out_of_memory, which is always a std::bad_alloc and, with RMM, an
// rmm::out_of_memory. 0 bytes give a null pointer, as with RMM's own resources; it may be
// deallocated.
//
// It frees by address: deallocate nothing after the end of the arena, or the abort of the capture,
// that it was allocated in.
class memory_resource {
  public:
    static constexpr std::size_t default_alignment = detail::default_alignment;

    // Allocates on the stream's device; for a default stream, on the current device. Deallocate
    // memory of a default stream with the same device current.
    memory_resource() noexcept = default;
    // Allocates on one device, whichever is current.
    explicit memory_resource(int device) noexcept : device_(device) {}

    // Allocates in stream order, as gpumem_malloc_async does. alignment is a power of two and may
    // exceed 256.
    void *allocate(stream_ref s, std::size_t bytes, std::size_t alignment = default_alignment) {
        auto options = detail::sized<gpumem_malloc_options>();
        options.bytes = bytes;
        options.alignment = alignment;
        options.stream = s.get();
        if (device_ != detail::any_device) {
            options.flags = GPUMEM_MALLOC_ON_DEVICE;
            options.device = device_;
        }
        if ((alignment & (alignment - 1)) != 0) {
            throw error(GPUMEM_ERROR_INVALID, "gpumem::memory_resource: an alignment of " +
                                                  std::to_string(alignment) +
                                                  "; give a power of two");
        }
        void *p = nullptr;
        const gpumem_status done = bytes == 0 ? GPUMEM_OK : gpumem_malloc_with(&options, &p);
        if (done == GPUMEM_ERROR_OUT_OF_MEMORY) {
            throw out_of_memory(last_error_text());
        }
        check(done);
        return p;
    }
    // Frees in stream order, as gpumem_free_async does. NULL does nothing.
    void deallocate(stream_ref s, void *p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        (void)bytes;
        (void)alignment;
        if (p == nullptr) {
            return;
        }
        int before = detail::any_device;
        // A default stream is the current device's; the one meant is that of allocate().
        const bool is_default = s.get() == nullptr || s.get() == GPUMEM_STREAM_LEGACY ||
                                s.get() == GPUMEM_STREAM_PER_THREAD;
        if (device_ != detail::any_device && is_default &&
            gpumem_device_get(&before) == GPUMEM_OK) {
            gpumem_device_set(device_);
        }
        gpumem_free_async(p, s.get());
        if (before != detail::any_device) {
            gpumem_device_set(before);
        }
    }
    // Allocates memory that every stream can use at once, so it waits for the device's default
    // stream. Prefer allocate().
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        // A default stream is the current device's.
        const detail::current_device here(device_);
        const stream_ref s;
        void *p = allocate(s, bytes, alignment);
        if (p == nullptr) {
            return p;
        }
        const gpumem_status done = gpumem_stream_sync(s.get());
        if (done != GPUMEM_OK) {
            const std::string text = last_error_text();
            gpumem_free(p);
            throw error(done, text);
        }
        return p;
    }
    // Frees memory after the caller has waited for all use of it. NULL does nothing.
    void deallocate_sync(void *p, std::size_t bytes,
                         std::size_t alignment = default_alignment) noexcept {
        (void)bytes;
        (void)alignment;
        gpumem_free(p);
    }

    friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept {
        return a.device_ == b.device_;
    }
    friend bool operator!=(const memory_resource &a, const memory_resource &b) noexcept {
        return !(a == b);
    }
#if GPUMEM_HAS_CCCL
    friend constexpr void get_property(const memory_resource &,
                                       ::cuda::mr::device_accessible) noexcept {}
#endif

  private:
    int device_ = detail::any_device;
};

#if GPUMEM_HAS_CCCL
static_assert(
    ::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>,
    "gpumem::memory_resource is not what this CCCL calls a resource; define GPUMEM_NO_CCCL to "
    "do without");
#endif

} // inline namespace

// An allocator bound to a stream, for Thrust's temporary memory:
// thrust::cuda::par_nosync(alloc).on(stream), with gpumem::allocator<char> alloc(stream). It frees
// by address, as memory_resource does.
template <class T> class allocator {
  public:
    using value_type = T;

    explicit allocator(stream_ref s) noexcept : stream_(s) {}
    template <class U> allocator(const allocator<U> &other) noexcept
        : stream_(other.get_stream()) {}

    T *allocate(std::size_t count) { return detail::allocate<T>(count, stream_); }
    // Frees in the order of the stream that the memory was allocated on.
    void deallocate(T *p, std::size_t) noexcept { gpumem_free(p); }
    stream_ref get_stream() const noexcept { return stream_; }

  private:
    stream_ref stream_;
};
template <class T, class U>
bool operator==(const allocator<T> &a, const allocator<U> &b) noexcept {
    return a.get_stream() == b.get_stream();
}
template <class T, class U>
bool operator!=(const allocator<T> &a, const allocator<U> &b) noexcept {
    return !(a == b);
}

GPUMEM_NAMESPACE_END

#endif

// gpumem/host.hpp: pinned memory of the host.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_HOST_HPP
#define GPUMEM_HOST_HPP

#include <gpumem/buffer.hpp>
#include <gpumem/reserve.hpp>

#include <vector>

GPUMEM_NAMESPACE_BEGIN

namespace detail {

struct free_host {
    template <class T> void operator()(const extent<T> &e) const noexcept {
        if (e.data != nullptr) {
            gpumem_host_free(e.data);
        }
    }
};

} // namespace detail

// Owns pinned host memory for count elements in one piece: gpumem_host_malloc. Not initialised.
// Copies to and from it must be complete before it is destroyed. Move-only, like std::unique_ptr.
//
//     gpumem::host_buffer<float> in(count);
//     for (float &x : in) x = next();
//     gpumem::check(gpumem_memcpy_async(on_device, in.data(), in.size_bytes(), s.get()));
//     s.sync();
//
// The memory is drawn from the reservation of its space that is attached to the thread, if there is
// one.
template <class T> class host_buffer
    : public detail::buffer<T, detail::extent<T>, detail::free_host> {
    static_assert(alignof(T) <= 4096, "pinned memory is aligned to no more than 4096 bytes");

  public:
    host_buffer() noexcept = default;
    // Allocates on a NUMA node. 0 elements take no memory.
    explicit host_buffer(std::size_t count, std::int32_t node = GPUMEM_HOST_NEAREST) {
        void *p = nullptr;
        if (count > 0) {
            check(gpumem_host_malloc(detail::bytes_of<T>(count), node, &p));
        }
        this->state_ = {static_cast<T *>(p), count};
    }

    T &operator[](std::size_t i) const noexcept { return this->data()[i]; }
    T *begin() const noexcept { return this->data(); }
    T *end() const noexcept { return this->data() + this->size(); }
};

// An allocator for containers whose elements devices copy to and from: std::vector<float,
// gpumem::host_allocator<float>>. Copies to and from the elements must be complete before the
// container frees them, which it also does when it grows.
template <class T> class host_allocator {
  public:
    using value_type = T;
    using is_always_equal = std::true_type;

    host_allocator() noexcept = default;
    explicit host_allocator(std::int32_t node) noexcept : node_(node) {}
    template <class U> host_allocator(const host_allocator<U> &other) noexcept
        : node_(other.node()) {}

    T *allocate(std::size_t count) {
        static_assert(alignof(T) <= 4096, "pinned memory is aligned to no more than 4096 bytes");
        if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
            throw std::bad_array_new_length();
        }
        void *p = nullptr;
        check(gpumem_host_malloc(count > 0 ? count * sizeof(T) : 1, node_, &p));
        return static_cast<T *>(p);
    }
    void deallocate(T *p, std::size_t) noexcept { gpumem_host_free(p); }
    std::int32_t node() const noexcept { return node_; }

  private:
    std::int32_t node_ = GPUMEM_HOST_NEAREST;
};

// Any host_allocator can free what another has allocated.
template <class T, class U>
bool operator==(const host_allocator<T> &, const host_allocator<U> &) noexcept {
    return true;
}
template <class T, class U>
bool operator!=(const host_allocator<T> &, const host_allocator<U> &) noexcept {
    return false;
}

// One piece of host_blocks: neighbouring bytes.
struct host_piece {
    std::byte *data;
    std::size_t bytes;
};

// Owns pinned host memory in as few pieces as possible: gpumem_host_blocks_*. Copies to and from it
// must be complete before it is destroyed. Move-only.
//
//     gpumem::host_blocks copy(bytes);
//     for (const gpumem::host_piece &piece : copy) {
//         gpumem::check(gpumem_memcpy_async(piece.data, from, piece.bytes, s.get()));
//         from += piece.bytes;
//     }
class host_blocks
    : public detail::owned_handle<gpumem_host_blocks,
                                  detail::closed_by<gpumem_host_blocks, gpumem_host_blocks_free>> {
  public:
    // Holds nothing.
    host_blocks() noexcept = default;
    // Allocates on a NUMA node.
    explicit host_blocks(std::size_t bytes, std::int32_t node = GPUMEM_HOST_NEAREST)
        : host_blocks(bytes, nullptr, node) {}
    // Allocates on a reservation's node, drawing from the reservation.
    host_blocks(std::size_t bytes, const reservation &from)
        : host_blocks(bytes, detail::given(from, "reservation"), GPUMEM_HOST_NEAREST) {}
    host_blocks(host_blocks &&other) noexcept { swap(other); }
    host_blocks &operator=(host_blocks &&other) noexcept {
        host_blocks moved(std::move(other));
        swap(moved);
        return *this;
    }

    // The number of pieces.
    std::size_t size() const noexcept { return pieces_.size(); }
    std::size_t size_bytes() const noexcept { return bytes_; }
    const host_piece &operator[](std::size_t i) const noexcept { return pieces_[i]; }
    const host_piece *begin() const noexcept { return pieces_.data(); }
    const host_piece *end() const noexcept { return pieces_.data() + pieces_.size(); }
    // Frees the memory now.
    void reset() noexcept { host_blocks().swap(*this); }
    // Gives the memory up; the caller frees it with gpumem_host_blocks_free.
    gpumem_host_blocks release() noexcept {
        host_blocks old(std::move(*this));
        return std::exchange(old.state_, nullptr);
    }
    void swap(host_blocks &other) noexcept {
        owned_handle::swap(other);
        std::swap(bytes_, other.bytes_);
        pieces_.swap(other.pieces_);
    }

  private:
    // The base is whole when this throws, and frees what there is.
    host_blocks(std::size_t bytes, gpumem_reservation from, std::int32_t node) {
        check(gpumem_host_blocks_malloc(bytes, node, from, &state_));
        bytes_ = bytes;
        std::size_t count = 0;
        check(gpumem_host_blocks_count_get(state_, &count));
        pieces_.reserve(count);
        for (std::size_t i = 0; i < count; i++) {
            void *p = nullptr;
            std::size_t length = 0;
            check(gpumem_host_blocks_get(state_, i, &p, &length));
            pieces_.push_back({static_cast<std::byte *>(p), length});
        }
    }
    std::size_t bytes_ = 0;
    std::vector<host_piece> pieces_;
};

GPUMEM_NAMESPACE_END

#endif

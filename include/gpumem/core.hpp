// gpumem/core.hpp: errors as exceptions, and what the other parts are made of.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_CORE_HPP
#define GPUMEM_CORE_HPP

#if __cplusplus < 201703L
#error "gpumem's C++ headers need C++17: compile with -std=c++17 or newer, or use gpumem.h"
// There is no such file, which ends it here: what would follow are errors that say less.
#include <gpumem/needs-c++17>
#endif

#include <gpumem.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

// Stream 0 is another stream in a file that is compiled with the per-thread default stream, so what
// depends on it has another name there: files of both kinds in one program never share such code,
// and a function that takes an object does not link with a file of the other kind. One that only
// returns an object does, wrongly: a function's name in the program says what it takes.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define GPUMEM_NAMESPACE_BEGIN                                                                     \
    namespace gpumem {                                                                             \
    inline namespace per_thread_stream {
#define GPUMEM_NAMESPACE_END                                                                       \
    }                                                                                              \
    }
#else
#define GPUMEM_NAMESPACE_BEGIN namespace gpumem {
#define GPUMEM_NAMESPACE_END }
#endif

namespace gpumem {

// Returns the text of this thread's last failed call, preceded by the name of its status.
inline std::string last_error_text() {
    std::string text(gpumem_last_error(nullptr, 0), '\0');
    gpumem_last_error(text.data(), text.size() + 1);
    return std::string(gpumem_status_name(gpumem_last_status())) + ": " + text;
}

// Thrown for any failure except a lack of memory.
class error : public std::runtime_error {
  public:
    error(gpumem_status status, const std::string &text)
        : std::runtime_error(text), status_(status) {}
    gpumem_status status() const noexcept { return status_; }

  private:
    gpumem_status status_;
};

// Thrown for GPUMEM_ERROR_OUT_OF_MEMORY.
class bad_alloc : public std::bad_alloc {
  public:
    explicit bad_alloc(const std::string &text) : text_(text) {}
    const char *what() const noexcept override { return text_.what(); }
    gpumem_status status() const noexcept { return GPUMEM_ERROR_OUT_OF_MEMORY; }

  private:
    std::runtime_error text_; // copies without throwing, as an exception must
};

// Throws this thread's last error as the exception for its status.
[[noreturn]] inline void throw_last_error(gpumem_status status) {
    if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
        throw bad_alloc(last_error_text());
    }
    throw error(status, last_error_text());
}

// Throws when a call of gpumem.h has failed: gpumem::check(gpumem_trim(0));
inline void check(gpumem_status status) {
    if (status != GPUMEM_OK) {
        throw_last_error(status);
    }
}

// Starts gpumem now, with explicit settings. A field that is 0 takes the environment's setting.
// Throws when gpumem has started already.
//
//     gpumem_context_options options;
//     GPUMEM_INIT(&options);
//     options.tiers = GPUMEM_TIERS_ON;
//     gpumem::init(options);
inline void init(const gpumem_context_options &options) {
    check(gpumem_init(&options));
}

} // namespace gpumem

GPUMEM_NAMESPACE_BEGIN

namespace detail {

// A structure of gpumem.h, zeroed and with its size.
template <class Structure> Structure sized() {
    Structure out;
    GPUMEM_INIT(&out);
    return out;
}

// What a call of gpumem.h fills in: filled<gpumem_stats>(gpumem_stats_get, device)
template <class Structure, class Call, class... Args> Structure filled(Call call, Args... args) {
    Structure out = sized<Structure>();
    check(call(args..., &out));
    return out;
}

// Owns what a State stands for, and passes it to a Close once, on destruction. Move-only; a
// moved-from object owns nothing, which is State{}.
template <class State, class Close> class owner {
  public:
    owner() noexcept = default;
    explicit owner(State state) noexcept : state_(std::move(state)) {}
    owner(owner &&other) noexcept : state_(std::exchange(other.state_, State{})) {}
    owner &operator=(owner &&other) noexcept {
        owner(std::move(other)).swap(*this);
        return *this;
    }
    owner(const owner &) = delete;
    owner &operator=(const owner &) = delete;
    ~owner() { Close()(state_); }

    void swap(owner &other) noexcept { std::swap(state_, other.state_); }
    // Ends what is owned, now.
    void reset() noexcept { owner().swap(*this); }

  protected:
    State state_{};
};

template <class Handle, gpumem_status (*Call)(Handle)> struct closed_by {
    void operator()(Handle handle) const noexcept {
        if (handle != nullptr) {
            Call(handle); // what fails is this thread's last error
        }
    }
};

// Owns a handle of gpumem.h.
template <class Handle, class Close> class owned_handle : public owner<Handle, Close> {
  public:
    using owner<Handle, Close>::owner;
    // NULL when there is none.
    Handle get() const noexcept { return this->state_; }
    explicit operator bool() const noexcept { return this->state_ != nullptr; }
    // Gives it up; the caller ends it.
    Handle release() noexcept { return std::exchange(this->state_, nullptr); }
};

// The handle of an object that must have one: to gpumem.h, NULL would mean that none is given.
template <class Owner> auto given(const Owner &owner, const char *what) {
    if (!owner) {
        throw error(GPUMEM_ERROR_INVALID, std::string("gpumem: the ") + what +
                                              " holds nothing: it was released or moved from");
    }
    return owner.get();
}

// A string for gpumem.h, which would take it to end at a NUL.
inline const char *c_string(const std::string &text, const char *what) {
    if (text.find('\0') != std::string::npos) {
        throw error(GPUMEM_ERROR_INVALID,
                    std::string("gpumem: the ") + what + " has a NUL character in it");
    }
    return text.c_str();
}

// Elements of no type are bytes.
template <class T> struct element_size : std::integral_constant<std::size_t, sizeof(T)> {
    static_assert(std::is_trivially_copyable<T>::value,
                  "device memory holds bytes; no constructor runs there");
};
template <> struct element_size<void> : std::integral_constant<std::size_t, 1> {};
template <> struct element_size<const void> : std::integral_constant<std::size_t, 1> {};

// What gpumem_malloc_async promises; and what a type may ask for beyond it.
constexpr std::size_t default_alignment = 256;
template <class T>
constexpr std::size_t alignment_of =
    alignof(std::conditional_t<std::is_void<T>::value, std::byte, T>);

template <class T> std::size_t bytes_of(std::size_t count) {
    constexpr std::size_t each = element_size<T>::value;
    if (count > std::numeric_limits<std::size_t>::max() / each) {
        throw bad_alloc("gpumem: " + std::to_string(count) + " elements of " +
                        std::to_string(each) + " bytes exceed the address space");
    }
    return count * each;
}

// Casts a pointer to what the functions of gpumem.h take; they never write through it themselves.
template <class T> void *untyped(T *p) noexcept {
    return const_cast<void *>(static_cast<const volatile void *>(p));
}

} // namespace detail

GPUMEM_NAMESPACE_END

#endif

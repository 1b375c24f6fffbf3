// gpumem/arena.hpp: allocations that end together.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_ARENA_HPP
#define GPUMEM_ARENA_HPP

#include <gpumem/buffer.hpp>

#include <initializer_list>
#include <iterator>
#include <vector>

GPUMEM_NAMESPACE_BEGIN

namespace detail {

struct abort_arena {
    void operator()(gpumem_arena a) const noexcept {
        auto open = sized<gpumem_arena_stats>();
        if (a == nullptr || gpumem_arena_abort(a, nullptr) == GPUMEM_OK ||
            gpumem_arena_stats_get(a, &open) != GPUMEM_OK) {
            return;
        }
        // Where that is refused, the thread at least leaves the arena and those inside, unless it
        // has left it before.
        if (gpumem_arena_attach(a) == GPUMEM_OK) {
            gpumem_arena_detach(a);
            return;
        }
        gpumem_arena now = nullptr;
        do {
            gpumem_arena_current_get(&now);
        } while (gpumem_arena_detach(now) == GPUMEM_OK && now != a &&
                 gpumem_arena_stats_get(a, &open) == GPUMEM_OK);
    }
};

} // namespace detail

// Something that exit() keeps: a pointer into an allocation, or a buffer.
class kept {
  public:
    kept(const volatile void *p) noexcept : pointer_(const_cast<void *>(p)) {}
    template <class T> kept(const unique_buffer<T> &b) noexcept : kept(b.data()) {}
    template <class T> kept(const async_buffer<T> &b) noexcept : kept(b.data()) {}
    void *get() const noexcept { return pointer_; }

  private:
    void *pointer_;
};

// An arena for the length of a scope: gpumem_arena_*. Everything that this thread allocates in the
// scope is freed at its end, except what exit() keeps. A scope that is left without exit(), for
// instance by an exception, keeps nothing and also ends the arenas still open inside it. While
// other threads are attached that is refused. The arena and those inside then stay open, for
// gpumem_arena_abort later, and this thread leaves them.
//
//     gpumem::arena step("step");
//     ...
//     step.exit({weights, loss});
//
// A unique_buffer or async_buffer may outlive the arena in which it was filled: it then owns memory
// that is gone, and frees nothing. To use the memory later, keep it, or take it out of all arenas:
// gpumem_arena_escape(b.data()). What frees by address (memory_resource, allocator) must not
// outlive the arena: it would free what lives there by then. Move-only.
class arena : public detail::owned_handle<gpumem_arena, detail::abort_arena> {
  public:
    arena() { check(gpumem_arena_enter(&state_)); }
    explicit arena(const char *name) { check(gpumem_arena_enter_named(name, &state_)); }
    explicit arena(const std::string &name) : arena(detail::c_string(name, "name")) {}
    arena(arena &&) noexcept = default;
    // Not assignable: another arena would be open inside this one and would end with it. reset()
    // this one and make a new one.
    arena &operator=(arena &&) = delete;

    // Ends the arena, as gpumem_arena_exit does. If this throws, it is open as before.
    gpumem_arena_report exit(void *const *keep, std::size_t count) {
        auto report = detail::sized<gpumem_arena_report>();
        check(gpumem_arena_exit(state_, keep, count, &report));
        state_ = nullptr;
        return report;
    }
    gpumem_arena_report exit(std::initializer_list<kept> keep = {}) { return exit_all(keep); }
    // The same, keeping one pointer or buffer, or what a container or array of them names.
    template <class Keep> gpumem_arena_report exit(const Keep &keep) {
        if constexpr (std::is_convertible<const Keep &, kept>::value &&
                      !std::is_array<Keep>::value) {
            return exit({kept(keep)});
        } else {
            return exit_all(keep);
        }
    }
    // Ends the arena and those inside it, keeping nothing, as gpumem_arena_abort does. If this
    // throws, nothing has changed.
    gpumem_arena_report abort() {
        auto report = detail::sized<gpumem_arena_report>();
        check(gpumem_arena_abort(state_, &report));
        state_ = nullptr;
        return report;
    }
    gpumem_arena_stats stats() const {
        return detail::filled<gpumem_arena_stats>(gpumem_arena_stats_get, state_);
    }

  private:
    template <class Container> gpumem_arena_report exit_all(const Container &keep) {
        std::vector<void *> all;
        for (const kept one : keep)
            all.push_back(one.get());
        return exit(all.data(), all.size());
    }
};

// Attaches the thread to an arena for the length of a scope, which must end on the same thread.
// Move-only.
class arena_attachment
    : public detail::owned_handle<gpumem_arena,
                                  detail::closed_by<gpumem_arena, gpumem_arena_detach>> {
  public:
    explicit arena_attachment(gpumem_arena a) {
        check(gpumem_arena_attach(a));
        state_ = a;
    }
    explicit arena_attachment(const arena &a) : arena_attachment(a.get()) {}
    arena_attachment(arena_attachment &&) noexcept = default;
    // Not assignable: another attachment would be on top of this one.
    arena_attachment &operator=(arena_attachment &&) = delete;
};

GPUMEM_NAMESPACE_END

#endif

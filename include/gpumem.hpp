// gpumem for C++17: ownership by objects, failures by exceptions, and a memory resource for CCCL, RMM and Thrust.
//
// Header-only over gpumem.h, whose conventions hold. Nothing here dereferences device memory: T is the type of the
// elements on the device, and copies are the caller's.
//
// Threads: different objects may be used from different threads at once, one object from one thread at a time.
// Exceptions: gpumem::bad_alloc (a std::bad_alloc) when memory is short, gpumem::error (a std::runtime_error) for
// everything else. Destructors, reset() and deallocate() never throw; what fails in them is kept as the thread's last
// error and counted in gpumem_stats.
#ifndef GPUMEM_HPP
#define GPUMEM_HPP

#include <gpumem.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// CCCL 3 has the memory resource concepts in the form used here. Define GPUMEM_NO_CCCL to leave it out.
#if !defined(GPUMEM_NO_CCCL) && defined(__has_include)
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cuda/std/version>)
#include <cuda/std/version>
#if defined(CCCL_MAJOR_VERSION) && CCCL_MAJOR_VERSION >= 3
#if __has_include(<cuda/memory_resource>) && __has_include(<cuda/stream_ref>)
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#define GPUMEM_HAS_CCCL 1
#endif
#endif
#endif
#endif
#ifndef GPUMEM_HAS_CCCL
#define GPUMEM_HAS_CCCL 0
#endif

namespace gpumem {

// ---- errors ---------------------------------------------------------------------------------------------------------

// The text of this thread's last failed call, with the name of its status in front.
inline std::string last_error_text() {
    std::string text(gpumem_last_error(nullptr, 0), '\0');
    gpumem_last_error(text.data(), text.size() + 1);
    return std::string(gpumem_status_name(gpumem_last_status())) + ": " + text;
}

// Any failure but a lack of memory.
class error : public std::runtime_error {
  public:
    error(gpumem_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    gpumem_status status() const noexcept { return status_; }

  private:
    gpumem_status status_;
};

// GPUMEM_ERROR_OUT_OF_MEMORY.
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

// Starts gpumem now, with explicit settings; those that are 0 are the environment's. Throws when it has started already.
//
//     gpumem_context_options options;
//     GPUMEM_INIT(&options);
//     options.tiers = GPUMEM_TIERS_ON;
//     gpumem::init(options);
inline void init(const gpumem_context_options &options) { check(gpumem_init(&options)); }

// ---- streams and graphs ---------------------------------------------------------------------------------------------

class stream;

// Owns a graph that stream::end_capture has made. Move-only; one that was moved from owns nothing.
class graph {
  public:
    graph() noexcept = default;
    graph(graph &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    graph &operator=(graph &&other) noexcept {
        graph(std::move(other)).swap(*this);
        return *this;
    }
    graph(const graph &) = delete;
    graph &operator=(const graph &) = delete;
    // Launches in flight still run.
    ~graph() {
        if (handle_ != nullptr) {
            gpumem_graph_destroy(handle_);
        }
    }

    gpumem_graph get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // Runs its work in the order of a stream, after its earlier launches.
    inline void launch(const stream &s) const;
    gpumem_graph_info info() const {
        gpumem_graph_info out;
        GPUMEM_INIT(&out);
        check(gpumem_graph_info_get(handle_, &out));
        return out;
    }
    void swap(graph &other) noexcept { std::swap(handle_, other.handle_); }

  private:
    friend class stream;
    explicit graph(gpumem_graph handle) noexcept : handle_(handle) {}
    gpumem_graph handle_ = nullptr;
};

// Owns a stream of the current device. A gpumem_stream is a cudaStream_t, so get() can be given to CUDA.
class stream {
  public:
    stream() { check(gpumem_stream_create(&handle_)); }
    stream(stream &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    stream &operator=(stream &&other) noexcept {
        stream(std::move(other)).swap(*this);
        return *this;
    }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;
    ~stream() {
        if (handle_ != nullptr) {
            gpumem_stream_destroy(handle_);
        }
    }

    gpumem_stream get() const noexcept { return handle_; }
    // Blocks until everything submitted is done.
    void sync() const { check(gpumem_stream_sync(handle_)); }
    // Later work here waits, on the device, for what has been submitted to another stream.
    void wait(const stream &on) const { check(gpumem_stream_wait(handle_, on.handle_)); }
    // What is submitted from now on becomes a graph, which end_capture gives, and does not run.
    void begin_capture(int mode = GPUMEM_CAPTURE_MODE_THREAD_LOCAL) const {
        check(gpumem_stream_begin_capture(handle_, mode));
    }
    graph end_capture() const {
        gpumem_graph out = nullptr;
        check(gpumem_stream_end_capture(handle_, &out));
        return graph(out);
    }
    void swap(stream &other) noexcept { std::swap(handle_, other.handle_); }

  private:
    gpumem_stream handle_ = nullptr;
};

inline void graph::launch(const stream &s) const { check(gpumem_graph_launch(handle_, s.get())); }

// ---- captures -------------------------------------------------------------------------------------------------------

// Memory for CUDA graphs: a stream allocates from it from the construction to end(). The destructor releases the one
// reference of this object, when no graph that used the memory is launched any more; before end() it aborts the capture,
// so an exception on the way leaves nothing behind.
class capture {
  public:
    explicit capture(const stream &s) { check(gpumem_capture_begin(s.get(), nullptr, &handle_)); }
    capture(const stream &s, const gpumem_capture_options &options) {
        check(gpumem_capture_begin(s.get(), &options, &handle_));
    }
    capture(capture &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), ended_(std::exchange(other.ended_, true)) {}
    capture &operator=(capture &&other) noexcept {
        capture(std::move(other)).swap(*this);
        return *this;
    }
    capture(const capture &) = delete;
    capture &operator=(const capture &) = delete;
    ~capture() {
        if (handle_ != nullptr && ended_) {
            gpumem_capture_release(handle_);
        } else if (handle_ != nullptr) {
            gpumem_capture_abort(handle_);
        }
    }

    gpumem_capture get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // The stream's allocations are ordinary again.
    void end() {
        check(gpumem_capture_end(handle_));
        ended_ = true;
    }
    // Another capture in the same memory, for a graph that never runs at the same time as this one's.
    capture share(const stream &s) const {
        gpumem_capture_options options;
        GPUMEM_INIT(&options);
        options.share = handle_;
        return capture(s, options);
    }
    gpumem_capture_stats stats() const {
        gpumem_capture_stats out;
        GPUMEM_INIT(&out);
        check(gpumem_capture_stats_get(handle_, &out));
        return out;
    }
    void swap(capture &other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(ended_, other.ended_);
    }

  private:
    gpumem_capture handle_ = nullptr;
    bool ended_ = false;
};

// ---- buffers --------------------------------------------------------------------------------------------------------

namespace detail {

template <class T> std::size_t bytes_of(std::size_t count) {
    static_assert(std::is_trivially_copyable<T>::value, "device memory holds bytes; no constructor runs there");
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
        throw bad_alloc("gpumem: " + std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
                        " bytes exceed the address space");
    }
    return count * sizeof(T);
}

} // namespace detail

// Owns device memory for count elements, allocated and freed in the order of the legacy default stream, as
// gpumem_malloc and gpumem_free. Move-only, like std::unique_ptr.
template <class T> class unique_buffer {
  public:
    unique_buffer() noexcept = default;
    explicit unique_buffer(std::size_t count) : size_(count) {
        data_ = static_cast<T *>(gpumem_malloc(detail::bytes_of<T>(count)));
        if (data_ == nullptr) {
            throw_last_error(gpumem_last_status());
        }
    }
    unique_buffer(unique_buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    unique_buffer &operator=(unique_buffer &&other) noexcept {
        unique_buffer(std::move(other)).swap(*this);
        return *this;
    }
    unique_buffer(const unique_buffer &) = delete;
    unique_buffer &operator=(const unique_buffer &) = delete;
    ~unique_buffer() { gpumem_free(data_); }
    // Takes over memory of gpumem's that has room for count elements. It is freed in the order of the stream that it was
    // allocated on.
    static unique_buffer adopt(T *data, std::size_t count) noexcept {
        unique_buffer owner;
        owner.data_ = data;
        owner.size_ = count;
        return owner;
    }

    T *data() const noexcept { return data_; }
    // Elements, not bytes.
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    // Gives the memory up; the caller frees it.
    T *release() noexcept {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }
    // Frees now.
    void reset() noexcept { unique_buffer().swap(*this); }
    void swap(unique_buffer &other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// Device memory for the length of a scope, in the order of one stream: work submitted to the stream inside the scope may
// use it, and the end of the scope waits for nothing. The stream must outlive the scope.
template <class T> class scoped_async_buffer {
  public:
    scoped_async_buffer(std::size_t count, gpumem_stream s) : size_(count), stream_(s) {
        void *p = nullptr;
        check(gpumem_malloc_async(detail::bytes_of<T>(count), s, &p));
        data_ = static_cast<T *>(p);
    }
    scoped_async_buffer(std::size_t count, const stream &s) : scoped_async_buffer(count, s.get()) {}
    scoped_async_buffer(const scoped_async_buffer &) = delete;
    scoped_async_buffer &operator=(const scoped_async_buffer &) = delete;
    ~scoped_async_buffer() { gpumem_free_async(data_, stream_); }

    T *data() const noexcept { return data_; }
    // Elements, not bytes.
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    gpumem_stream get_stream() const noexcept { return stream_; }
    // Changes the number of elements, keeping their contents, in the order of the stream. data() may change.
    void resize(std::size_t count) {
        void *p = nullptr;
        check(gpumem_realloc_async(data_, detail::bytes_of<T>(count), stream_, &p));
        data_ = static_cast<T *>(p);
        size_ = count;
    }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
    gpumem_stream stream_ = nullptr;
};

// ---- arenas ---------------------------------------------------------------------------------------------------------

// An arena for the length of a scope: gpumem_arena_*. Everything that this thread allocates in the scope is freed at its
// end, but for what exit() is told to keep. A scope that is left without exit(), by an exception for instance, keeps
// nothing, and ends the arenas that are still open inside with it.
//
//     gpumem::arena step("step");
//     ...
//     step.exit({weights, loss});
//
// Objects that own memory (unique_buffer and the like) and live longer than the arena they were filled in would free
// what is free already: keep or escape() what they own, or release() them. Move-only.
class arena {
  public:
    arena() { check(gpumem_arena_enter(&handle_)); }
    explicit arena(const char *name) { check(gpumem_arena_enter_named(name, &handle_)); }
    explicit arena(const std::string &name) : arena(name.c_str()) {}
    arena(arena &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    // Aborts the arena there was.
    arena &operator=(arena &&other) noexcept {
        arena(std::move(other)).swap(*this);
        return *this;
    }
    arena(const arena &) = delete;
    arena &operator=(const arena &) = delete;
    // Aborts unless exited. While other threads are attached that fails, and the arena stays open.
    ~arena() {
        if (handle_ != nullptr) {
            gpumem_arena_abort(handle_, nullptr);
        }
    }

    // NULL once it has been exited, aborted, released or moved from.
    gpumem_arena get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    void swap(arena &other) noexcept { std::swap(handle_, other.handle_); }
    // Gives the arena up; the caller ends it.
    gpumem_arena release() noexcept { return std::exchange(handle_, nullptr); }

    // Ends the arena, as gpumem_arena_exit. If that throws, it is open as before.
    gpumem_arena_report exit(void *const *keep, std::size_t count) {
        gpumem_arena_report report;
        GPUMEM_INIT(&report);
        check(gpumem_arena_exit(handle_, keep, count, &report));
        handle_ = nullptr;
        return report;
    }
    gpumem_arena_report exit(std::initializer_list<void *> keep = {}) { return exit(keep.begin(), keep.size()); }
    gpumem_arena_report exit(const std::vector<void *> &keep) { return exit(keep.data(), keep.size()); }
    // Ends the arena and those inside it, keeping nothing, as gpumem_arena_abort. If that throws, all is as before.
    gpumem_arena_report abort() {
        gpumem_arena_report report;
        GPUMEM_INIT(&report);
        check(gpumem_arena_abort(handle_, &report));
        handle_ = nullptr;
        return report;
    }
    gpumem_arena_stats stats() const {
        gpumem_arena_stats out;
        GPUMEM_INIT(&out);
        check(gpumem_arena_stats_get(handle_, &out));
        return out;
    }

  private:
    gpumem_arena handle_ = nullptr;
};

// Attaches the thread to an arena for the length of a scope, which must end on the same thread.
class arena_attachment {
  public:
    explicit arena_attachment(gpumem_arena a) {
        check(gpumem_arena_attach(a));
        handle_ = a;
    }
    explicit arena_attachment(const arena &a) : arena_attachment(a.get()) {}
    arena_attachment(arena_attachment &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    arena_attachment &operator=(arena_attachment &&other) noexcept {
        arena_attachment(std::move(other)).swap(*this);
        return *this;
    }
    arena_attachment(const arena_attachment &) = delete;
    arena_attachment &operator=(const arena_attachment &) = delete;
    ~arena_attachment() {
        if (handle_ != nullptr) {
            gpumem_arena_detach(handle_);
        }
    }

    gpumem_arena get() const noexcept { return handle_; }
    void swap(arena_attachment &other) noexcept { std::swap(handle_, other.handle_); }

  private:
    gpumem_arena handle_ = nullptr;
};

// ---- spaces and reservations ----------------------------------------------------------------------------------------

// A wait without an end, where a parameter is a time in milliseconds.
constexpr std::uint64_t forever = GPUMEM_WAIT_FOREVER;

// Decides about an allocation that does not fit its reservation: GPUMEM_OVERDRAW_*, or bytes to grow it by.
using overdraw_function = std::function<std::int64_t(const gpumem_overdraw &)>;
// Makes room for an allocation for which there is no memory; true to try it again.
using out_of_memory_function = std::function<bool(const gpumem_shortage &)>;

namespace detail {

// The functions that stand between gpumem.h and a std::function that it keeps. An exception in one counts as giving up.
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
template <class F> void free_function(void *user) noexcept { delete static_cast<F *>(user); }

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

// One place that memory can be in: gpumem_space_*. A value; whether there is such a space its calls tell.
class space {
  public:
    space(std::int32_t tier, std::uint32_t id) noexcept : tier_(tier), id_(id) {}
    static space gpu(std::uint32_t device = 0) noexcept { return space(GPUMEM_TIER_GPU, device); }
    static space host(std::uint32_t node = 0) noexcept { return space(GPUMEM_TIER_HOST, node); }
    static space disk(std::uint32_t mount = 0) noexcept { return space(GPUMEM_TIER_DISK, mount); }
    // Adds a directory, of at most so many bytes of files; 0: as many as there is room for.
    static space add_disk(const std::string &path, std::uint64_t limit = 0) {
        std::uint32_t id = 0;
        check(gpumem_space_add_disk(path.c_str(), limit, &id));
        return disk(id);
    }
    static std::vector<space> all() {
        std::vector<gpumem_space> list;
        std::size_t count = 0;
        check(gpumem_space_list(nullptr, 0, &count));
        do {
            list.resize(count);
            check(gpumem_space_list(list.data(), list.size(), &count));
        } while (count > list.size());
        std::vector<space> out;
        for (const gpumem_space &one : list) out.emplace_back(one.tier, one.id);
        return out;
    }

    std::int32_t tier() const noexcept { return tier_; }
    std::uint32_t id() const noexcept { return id_; }
    gpumem_space_usage usage() const {
        gpumem_space_usage out;
        GPUMEM_INIT(&out);
        check(gpumem_space_usage_get(tier_, id_, &out));
        return out;
    }
    // How much may be promised or used, bytes; without a number, all there is.
    void set_limit(std::uint64_t bytes = UINT64_MAX) const { check(gpumem_space_set_limit(tier_, id_, bytes)); }
    void set_thresholds(double trigger, double stop) const {
        check(gpumem_space_set_thresholds(tier_, id_, trigger, stop));
    }
    void reset_peak() const { check(gpumem_space_reset_peak(tier_, id_)); }
    // What allocations do for which there is no memory, unless their reservation says otherwise. Without a function they
    // fail.
    void on_out_of_memory(out_of_memory_function call) const {
        detail::give_out_of_memory(std::move(call), [this](auto function, void *user, auto free_user) {
            return gpumem_space_set_out_of_memory(tier_, id_, function, user, free_user);
        });
    }
    void detach(gpumem_stream s) const { check(gpumem_space_detach_stream(tier_, id_, s)); }
    void detach(const stream &s) const { detach(s.get()); }
    // The number of the reservation that this thread's allocations on a stream draw from, 0 for none.
    std::uint64_t current(gpumem_stream s) const {
        std::uint64_t out = 0;
        check(gpumem_space_current(tier_, id_, s, &out));
        return out;
    }

    friend bool operator==(const space &a, const space &b) noexcept { return a.tier_ == b.tier_ && a.id_ == b.id_; }
    friend bool operator!=(const space &a, const space &b) noexcept { return !(a == b); }

  private:
    std::int32_t tier_;
    std::uint32_t id_;
};

// Ends waits: gpumem_cancel_*. Move-only. trigger() may come from any thread.
class cancel_token {
  public:
    cancel_token() { check(gpumem_cancel_create(&handle_)); }
    cancel_token(cancel_token &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    cancel_token &operator=(cancel_token &&other) noexcept {
        cancel_token(std::move(other)).swap(*this);
        return *this;
    }
    cancel_token(const cancel_token &) = delete;
    cancel_token &operator=(const cancel_token &) = delete;
    ~cancel_token() {
        if (handle_ != nullptr) {
            gpumem_cancel_destroy(handle_);
        }
    }

    gpumem_cancel get() const noexcept { return handle_; }
    void trigger() const { check(gpumem_cancel_trigger(handle_)); }
    void swap(cancel_token &other) noexcept { std::swap(handle_, other.handle_); }

  private:
    gpumem_cancel handle_ = nullptr;
};

// A promise of bytes until the end of a scope: gpumem_reservation_*. Move-only.
//
//     gpumem::reservation job = gpumem::reserve(std::uint64_t{4} << 30, 10000); // waits up to ten seconds
//     gpumem::reservation_attachment here(job);                               // what this thread allocates draws from it
//
// A request for which there is no room throws bad_alloc; a wait that ends without throws error, whose status says why.
class reservation {
  public:
    // Holds nothing.
    reservation() noexcept = default;
    explicit reservation(const gpumem_reserve_options &options) { check(gpumem_reserve(&options, &handle_)); }
    reservation(reservation &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    // Releases the one there was.
    reservation &operator=(reservation &&other) noexcept {
        reservation(std::move(other)).swap(*this);
        return *this;
    }
    reservation(const reservation &) = delete;
    reservation &operator=(const reservation &) = delete;
    ~reservation() {
        if (handle_ != nullptr) {
            gpumem_reservation_release(handle_, nullptr);
        }
    }

    // NULL once it has been released or moved from.
    gpumem_reservation get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    void swap(reservation &other) noexcept { std::swap(handle_, other.handle_); }

    gpumem_reservation_info info() const {
        gpumem_reservation_info out;
        GPUMEM_INIT(&out);
        check(gpumem_reservation_info_get(handle_, &out));
        return out;
    }
    // Its size, bytes.
    std::uint64_t size() const { return info().promised; }
    void grow(std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
        check(gpumem_reservation_grow(handle_, bytes, timeout_ms, nullptr));
    }
    void grow(std::uint64_t bytes, std::uint64_t timeout_ms, const cancel_token &cancel) {
        check(gpumem_reservation_grow(handle_, bytes, timeout_ms, cancel.get()));
    }
    void shrink(std::uint64_t bytes) { check(gpumem_reservation_shrink(handle_, bytes)); }
    // Returns by how many bytes.
    std::uint64_t shrink_to_fit() {
        std::uint64_t out = 0;
        check(gpumem_reservation_shrink_to_fit(handle_, &out));
        return out;
    }
    // Ends it now. Returns how much of it live allocations had drawn: use outside of any reservation from now on.
    std::uint64_t release() {
        std::uint64_t drawn = 0;
        check(gpumem_reservation_release(handle_, &drawn));
        handle_ = nullptr;
        return drawn;
    }
    void attach(gpumem_stream s) const { check(gpumem_reservation_attach_stream(handle_, s)); }
    void attach(const stream &s) const { attach(s.get()); }
    // What an allocation does that does not fit.
    void set_policy(const gpumem_reserve_policy &policy) { check(gpumem_reservation_set_policy(handle_, &policy)); }
    void on_overdraw(overdraw_function call) {
        gpumem_reserve_policy policy;
        GPUMEM_INIT(&policy);
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
    // What an allocation does for which there is no memory. Without a function, what the space does.
    void on_out_of_memory(out_of_memory_function call) {
        detail::give_out_of_memory(std::move(call), [this](auto function, void *user, auto free_user) {
            return gpumem_reservation_set_out_of_memory(handle_, function, user, free_user);
        });
    }

  private:
    gpumem_reservation handle_ = nullptr;
};

inline reservation reserve(const gpumem_reserve_options &options) { return reservation(options); }
// In a space, or that of the current device, with a wait of at most so many milliseconds.
inline reservation reserve(const space &where, std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    options.tier = where.tier();
    options.id = where.id();
    options.timeout_ms = timeout_ms;
    return reservation(options);
}
inline reservation reserve(std::uint64_t bytes, std::uint64_t timeout_ms = 0) {
    gpumem_reserve_options options;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    options.timeout_ms = timeout_ms;
    return reservation(options);
}

// Attaches a reservation to the thread for the length of a scope, which must end on the same thread.
class reservation_attachment {
  public:
    explicit reservation_attachment(const reservation &r) : reservation_attachment(r.get()) {}
    explicit reservation_attachment(gpumem_reservation r) {
        gpumem_reservation_info info;
        GPUMEM_INIT(&info);
        check(gpumem_reservation_info_get(r, &info));
        check(gpumem_reservation_attach_thread(r));
        space_ = {info.tier, info.id};
    }
    reservation_attachment(reservation_attachment &&other) noexcept : space_(std::exchange(other.space_, {0, 0})) {}
    reservation_attachment &operator=(reservation_attachment &&other) noexcept {
        reservation_attachment(std::move(other)).swap(*this);
        return *this;
    }
    reservation_attachment(const reservation_attachment &) = delete;
    reservation_attachment &operator=(const reservation_attachment &) = delete;
    // One that was released meanwhile is detached already.
    ~reservation_attachment() {
        if (space_.tier != 0) {
            gpumem_space_detach_thread(space_.tier, space_.id);
        }
    }
    void swap(reservation_attachment &other) noexcept { std::swap(space_, other.space_); }

  private:
    gpumem_space space_ = {0, 0};
};

// ---- moving memory --------------------------------------------------------------------------------------------------

// Hears how far a move is, on the thread that moves: bytes done, bytes in all. false cancels the move; so does an
// exception, which comes out of the call that moves.
using progress_function = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// How to move; a value, to be written in place:
//
//     gpumem::evict(weights, gpumem::move_options().to(GPUMEM_TIER_DISK).after(s).on_progress(show));
class move_options {
  public:
    // Evicted, to the nearest space of a lower tier that has room; restored, to the device.
    move_options() noexcept { GPUMEM_INIT(&options_); }
    // To any space of a tier.
    move_options &to(std::int32_t tier) noexcept {
        options_.flags &= ~std::uint32_t{GPUMEM_MOVE_TO_SPACE};
        options_.tier = tier;
        options_.space = 0;
        return *this;
    }
    // To one space.
    move_options &to(const space &where) noexcept {
        options_.flags |= std::uint32_t{GPUMEM_MOVE_TO_SPACE};
        options_.tier = where.tier();
        options_.space = where.id();
        return *this;
    }
    // All use of the memory so far has been submitted to a stream, or is ordered before it.
    move_options &after(gpumem_stream s) noexcept {
        options_.flags |= std::uint32_t{GPUMEM_MOVE_ON_STREAM};
        options_.stream = s;
        return *this;
    }
    move_options &after(const stream &s) noexcept { return after(s.get()); }
    move_options &on_progress(progress_function call) {
        progress_ = std::move(call);
        return *this;
    }

    // What gpumem.h takes, but for the progress.
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
    gpumem_move_report report;
    GPUMEM_INIT(&report);
    const gpumem_status done = call(&options, &report);
    if (to.thrown) {
        std::rethrow_exception(to.thrown);
    }
    check(done);
    return report;
}

} // namespace detail

// Memory that can be moved out of the device and back to its addresses: GPUMEM_MALLOC_EVICTABLE, in the order of a
// stream. A tag names what is moved together.
template <class T>
unique_buffer<T> make_evictable(std::size_t count, std::uint64_t tag = 0, gpumem_stream s = GPUMEM_STREAM_LEGACY) {
    gpumem_malloc_options options;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = detail::bytes_of<T>(count);
    options.tag = tag;
    options.stream = s;
    void *p = nullptr;
    check(gpumem_malloc_with(&options, &p));
    return unique_buffer<T>::adopt(static_cast<T *>(p), count);
}
template <class T> unique_buffer<T> make_evictable(std::size_t count, std::uint64_t tag, const stream &s) {
    return make_evictable<T>(count, tag, s.get());
}

// Out of the device, as gpumem_evict; and back, as gpumem_restore.
inline gpumem_move_report evict(void *p, const move_options &how = move_options()) {
    return detail::move(how, [p](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_evict(p, options, out);
    });
}
template <class T> gpumem_move_report evict(const unique_buffer<T> &b, const move_options &how = move_options()) {
    return evict(static_cast<void *>(b.data()), how);
}
inline gpumem_move_report restore(void *p, const move_options &how = move_options()) {
    return detail::move(how, [p](const gpumem_move_options *options, gpumem_move_report *out) {
        return gpumem_restore(p, options, out);
    });
}
template <class T> gpumem_move_report restore(const unique_buffer<T> &b, const move_options &how = move_options()) {
    return restore(static_cast<void *>(b.data()), how);
}
// All that has a tag: sleep and wake.
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

// Where evictable memory is.
inline gpumem_location locate(void *p) {
    gpumem_location out;
    GPUMEM_INIT(&out);
    check(gpumem_locate(p, &out));
    return out;
}
template <class T> gpumem_location locate(const unique_buffer<T> &b) { return locate(static_cast<void *>(b.data())); }

// Evictable memory in its device for the length of a scope, restored first if need be: gpumem_pin, and at the end
// gpumem_unpin on the stream that the scope's work is submitted to. Move-only.
//
//     {
//         gpumem::pinned here(weights, s);
//         kernel<<<grid, block, 0, s.get()>>>(weights.data());
//     }                                       // may go once s has come this far
//
// The stream and the memory must outlive the guard.
class pinned {
  public:
    pinned(void *p, gpumem_stream s) : stream_(s) {
        check(gpumem_pin(p));
        data_ = p;
    }
    pinned(void *p, const stream &s) : pinned(p, s.get()) {}
    template <class T> pinned(const unique_buffer<T> &b, gpumem_stream s) : pinned(static_cast<void *>(b.data()), s) {}
    template <class T> pinned(const unique_buffer<T> &b, const stream &s) : pinned(b, s.get()) {}
    pinned(pinned &&other) noexcept : data_(std::exchange(other.data_, nullptr)), stream_(other.stream_) {}
    // Unpins what there was.
    pinned &operator=(pinned &&other) noexcept {
        pinned(std::move(other)).swap(*this);
        return *this;
    }
    pinned(const pinned &) = delete;
    pinned &operator=(const pinned &) = delete;
    // While the stream is captured that fails, and the memory stays pinned: what a graph uses must not go.
    ~pinned() {
        if (data_ != nullptr) {
            gpumem_unpin(data_, stream_);
        }
    }

    // NULL once it has been unpinned, released or moved from.
    void *get() const noexcept { return data_; }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    // Ends the pin now. If that throws, it is pinned as before.
    void unpin() {
        check(gpumem_unpin(data_, stream_));
        data_ = nullptr;
    }
    // Gives the pin up; the caller ends it.
    void *release() noexcept { return std::exchange(data_, nullptr); }
    void swap(pinned &other) noexcept {
        std::swap(data_, other.data_);
        std::swap(stream_, other.stream_);
    }

  private:
    void *data_ = nullptr;
    gpumem_stream stream_ = nullptr;
};

// ---- pinned host memory ---------------------------------------------------------------------------------------------

// Owns pinned host memory for count elements in one piece: gpumem_host_malloc. Not initialised. Copies to and from it must
// be done before it goes. Move-only, like std::unique_ptr.
//
//     gpumem::host_buffer<float> in(count);
//     for (float &x : in) x = next();
//     gpumem::check(gpumem_memcpy_async(on_device, in.data(), in.size_bytes(), s.get()));
//     s.sync();
//
// Pinned memory is drawn from the reservation of its space that is attached to the thread, if one is.
template <class T> class host_buffer {
    static_assert(alignof(T) <= 4096, "pinned memory is aligned to no more than 4096 bytes");

  public:
    host_buffer() noexcept = default;
    // Of a NUMA node. No memory for 0 elements.
    explicit host_buffer(std::size_t count, std::int32_t node = GPUMEM_HOST_NEAREST) : size_(count) {
        if (count > 0) {
            void *p = nullptr;
            check(gpumem_host_malloc(detail::bytes_of<T>(count), node, &p));
            data_ = static_cast<T *>(p);
        }
    }
    host_buffer(host_buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    host_buffer &operator=(host_buffer &&other) noexcept {
        host_buffer(std::move(other)).swap(*this);
        return *this;
    }
    host_buffer(const host_buffer &) = delete;
    host_buffer &operator=(const host_buffer &) = delete;
    ~host_buffer() {
        if (data_ != nullptr) {
            gpumem_host_free(data_);
        }
    }

    T *data() const noexcept { return data_; }
    // Elements, not bytes.
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    T &operator[](std::size_t i) const noexcept { return data_[i]; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + size_; }
    // Gives the memory up; the caller frees it with gpumem_host_free.
    T *release() noexcept {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }
    // Frees now.
    void reset() noexcept { host_buffer().swap(*this); }
    void swap(host_buffer &other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

  private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// An allocator for containers whose elements devices copy to and from: std::vector<float, gpumem::host_allocator<float>>.
// Copies to and from the elements must be done before the container frees them, also when it grows.
template <class T> class host_allocator {
    static_assert(alignof(T) <= 4096, "pinned memory is aligned to no more than 4096 bytes");

  public:
    using value_type = T;
    using is_always_equal = std::true_type;

    explicit host_allocator(std::int32_t node = GPUMEM_HOST_NEAREST) noexcept : node_(node) {}
    template <class U> host_allocator(const host_allocator<U> &other) noexcept : node_(other.node()) {}

    T *allocate(std::size_t count) {
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
    std::int32_t node_;
};

// What one has allocated any other can free.
template <class T, class U> bool operator==(const host_allocator<T> &, const host_allocator<U> &) noexcept {
    return true;
}
template <class T, class U> bool operator!=(const host_allocator<T> &, const host_allocator<U> &) noexcept {
    return false;
}

// One piece of host_blocks: neighbouring bytes.
struct host_piece {
    std::byte *data;
    std::size_t bytes;
};

// Owns pinned host memory in as few pieces as there are: gpumem_host_blocks_*. Copies to and from it must be done before
// it goes. Move-only.
//
//     gpumem::host_blocks copy(bytes);
//     for (const gpumem::host_piece &piece : copy) {
//         gpumem::check(gpumem_memcpy_async(piece.data, from, piece.bytes, s.get()));
//         from += piece.bytes;
//     }
class host_blocks {
  public:
    // Holds nothing.
    host_blocks() noexcept = default;
    // Of a NUMA node.
    explicit host_blocks(std::size_t bytes, std::int32_t node = GPUMEM_HOST_NEAREST)
        : host_blocks(bytes, nullptr, node) {}
    // Drawn from a reservation, of its node.
    host_blocks(std::size_t bytes, const reservation &from) : host_blocks(bytes, from.get(), GPUMEM_HOST_NEAREST) {}
    host_blocks(host_blocks &&other) noexcept { swap(other); }
    host_blocks &operator=(host_blocks &&other) noexcept {
        host_blocks(std::move(other)).swap(*this);
        return *this;
    }
    host_blocks(const host_blocks &) = delete;
    host_blocks &operator=(const host_blocks &) = delete;
    ~host_blocks() { gpumem_host_blocks_free(handle_); }

    gpumem_host_blocks get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // Pieces, a count.
    std::size_t size() const noexcept { return pieces_.size(); }
    std::size_t size_bytes() const noexcept { return bytes_; }
    const host_piece &operator[](std::size_t i) const noexcept { return pieces_[i]; }
    const host_piece *begin() const noexcept { return pieces_.data(); }
    const host_piece *end() const noexcept { return pieces_.data() + pieces_.size(); }
    // Frees now.
    void reset() noexcept { host_blocks().swap(*this); }
    void swap(host_blocks &other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(bytes_, other.bytes_);
        pieces_.swap(other.pieces_);
    }

  private:
    // Once the delegated constructor is through, the destructor frees what this one leaves when it throws.
    host_blocks(std::size_t bytes, gpumem_reservation from, std::int32_t node) : host_blocks() {
        check(gpumem_host_blocks_alloc(bytes, node, from, &handle_));
        bytes_ = bytes;
        std::size_t count = 0;
        check(gpumem_host_blocks_count(handle_, &count));
        pieces_.reserve(count);
        for (std::size_t i = 0; i < count; i++) {
            void *p = nullptr;
            std::size_t length = 0;
            check(gpumem_host_blocks_get(handle_, i, &p, &length));
            pieces_.push_back({static_cast<std::byte *>(p), length});
        }
    }
    gpumem_host_blocks handle_ = nullptr;
    std::size_t bytes_ = 0;
    std::vector<host_piece> pieces_;
};

// ---- stream pools ---------------------------------------------------------------------------------------------------

// A stream of a pool, until it is destroyed: then it goes back, with whatever work it still has. It may outlive the
// stream_pool that lent it. Move-only.
class borrowed_stream {
  public:
    borrowed_stream(borrowed_stream &&other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), handle_(std::exchange(other.handle_, nullptr)) {}
    borrowed_stream &operator=(borrowed_stream &&other) noexcept {
        borrowed_stream(std::move(other)).swap(*this);
        return *this;
    }
    borrowed_stream(const borrowed_stream &) = delete;
    borrowed_stream &operator=(const borrowed_stream &) = delete;
    ~borrowed_stream() {
        if (pool_ != nullptr) {
            gpumem_stream_pool_return(pool_, handle_);
        }
    }

    gpumem_stream get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return pool_ != nullptr; }
    // Blocks until everything submitted is done.
    void sync() const { check(gpumem_stream_sync(handle_)); }
    void swap(borrowed_stream &other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(handle_, other.handle_);
    }

  private:
    friend class stream_pool;
    borrowed_stream(gpumem_stream_pool pool, gpumem_stream handle) noexcept : pool_(pool), handle_(handle) {}
    gpumem_stream_pool pool_ = nullptr;
    gpumem_stream handle_ = nullptr;
};

// Lends streams of the device that is current when it is made: gpumem_stream_pool_*. Move-only. borrow() and
// borrow_or_grow() may be called from several threads at once.
class stream_pool {
  public:
    // Makes up to size streams by itself.
    explicit stream_pool(std::size_t size = 16) { check(gpumem_stream_pool_create(size, &handle_)); }
    stream_pool(stream_pool &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    stream_pool &operator=(stream_pool &&other) noexcept {
        stream_pool(std::move(other)).swap(*this);
        return *this;
    }
    stream_pool(const stream_pool &) = delete;
    stream_pool &operator=(const stream_pool &) = delete;
    // Closes it: streams that are lent are destroyed when they come back.
    ~stream_pool() {
        if (handle_ != nullptr) {
            gpumem_stream_pool_close(handle_);
        }
    }

    gpumem_stream_pool get() const noexcept { return handle_; }
    void swap(stream_pool &other) noexcept { std::swap(handle_, other.handle_); }
    // Waits, without an end unless one is given, for a stream that nobody has.
    borrowed_stream borrow(std::uint64_t timeout_ms = forever) const {
        gpumem_stream out = nullptr;
        check(gpumem_stream_pool_borrow(handle_, timeout_ms, &out));
        return borrowed_stream(handle_, out);
    }
    // Has one more made instead of waiting.
    borrowed_stream borrow_or_grow() const {
        gpumem_stream out = nullptr;
        check(gpumem_stream_pool_borrow_or_grow(handle_, &out));
        return borrowed_stream(handle_, out);
    }
    gpumem_stream_pool_counts counts() const {
        gpumem_stream_pool_counts out;
        GPUMEM_INIT(&out);
        check(gpumem_stream_pool_counts_get(handle_, &out));
        return out;
    }

  private:
    gpumem_stream_pool handle_ = nullptr;
};

// ---- memory resource ------------------------------------------------------------------------------------------------

#if GPUMEM_HAS_CCCL
using stream_ref = ::cuda::stream_ref;
#else
// What cuda::stream_ref is where CCCL is: a stream that somebody else owns.
class stream_ref {
  public:
    stream_ref(gpumem_stream s) noexcept : handle_(s) {}
    stream_ref(const stream &s) noexcept : handle_(s.get()) {}
    gpumem_stream get() const noexcept { return handle_; }

  private:
    gpumem_stream handle_;
};
#endif

// gpumem as a memory resource. With CCCL 3 it models cuda::mr::resource_with<cuda::mr::device_accessible>, so it goes
// into cuda::mr::any_resource and resource_ref, and from there into RMM 26 (rmm::device_buffer, the adaptors,
// rmm::mr::set_current_device_resource) and Thrust (rmm::exec_policy, rmm::device_vector). A value: copies are equal.
class memory_resource {
  public:
    static constexpr std::size_t default_alignment = 256;

    // On the device of the stream, or the current one.
    memory_resource() noexcept = default;
    // On one device, whatever is current.
    explicit memory_resource(int device) noexcept : flags_(GPUMEM_MALLOC_ON_DEVICE), device_(device) {}

    // In stream order, as gpumem_malloc_async.
    void *allocate(stream_ref s, std::size_t bytes, std::size_t alignment = default_alignment) {
        return allocate_on(s.get(), bytes, alignment);
    }
    // In stream order, as gpumem_free_async.
    void deallocate(stream_ref s, void *p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        (void)bytes;
        (void)alignment;
        gpumem_free_async(p, s.get());
    }
    // Usable on every stream at once, so this waits for the default stream. Prefer allocate().
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        void *p = allocate_on(nullptr, bytes, alignment);
        const gpumem_status done = gpumem_stream_sync(nullptr);
        if (done != GPUMEM_OK) {
            const std::string text = last_error_text();
            gpumem_free(p);
            throw error(done, text);
        }
        return p;
    }
    // The caller has waited for all use of the memory.
    void deallocate_sync(void *p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        (void)bytes;
        (void)alignment;
        gpumem_free(p);
    }

    friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept {
        return a.flags_ == b.flags_ && a.device_ == b.device_;
    }
    friend bool operator!=(const memory_resource &a, const memory_resource &b) noexcept { return !(a == b); }
#if GPUMEM_HAS_CCCL
    friend constexpr void get_property(const memory_resource &, ::cuda::mr::device_accessible) noexcept {}
#endif

  private:
    void *allocate_on(gpumem_stream s, std::size_t bytes, std::size_t alignment) const {
        gpumem_malloc_options options;
        GPUMEM_INIT(&options);
        options.flags = flags_;
        options.bytes = bytes;
        options.alignment = alignment;
        options.stream = s;
        options.device = device_;
        void *p = nullptr;
        check(gpumem_malloc_with(&options, &p));
        return p;
    }

    std::uint32_t flags_ = 0;
    int device_ = 0;
};

#if GPUMEM_HAS_CCCL
static_assert(::cuda::mr::resource_with<memory_resource, ::cuda::mr::device_accessible>,
              "gpumem::memory_resource is not what this CCCL calls a resource");
#endif

// An allocator bound to a stream, for Thrust's temporary memory: thrust::cuda::par_nosync(alloc).on(stream), with
// gpumem::allocator<char> alloc(stream).
template <class T> class allocator {
  public:
    using value_type = T;

    explicit allocator(gpumem_stream s) noexcept : stream_(s) {}
    template <class U> allocator(const allocator<U> &other) noexcept : stream_(other.get_stream()) {}

    T *allocate(std::size_t count) {
        void *p = nullptr;
        check(gpumem_malloc_async(detail::bytes_of<T>(count), stream_, &p));
        return static_cast<T *>(p);
    }
    void deallocate(T *p, std::size_t) noexcept { gpumem_free_async(p, stream_); }
    gpumem_stream get_stream() const noexcept { return stream_; }

    friend bool operator==(const allocator &a, const allocator &b) noexcept { return a.stream_ == b.stream_; }
    friend bool operator!=(const allocator &a, const allocator &b) noexcept { return !(a == b); }

  private:
    gpumem_stream stream_;
};

// ---- plans ----------------------------------------------------------------------------------------------------------

// Lays buffers and values out in arenas: gpumem_plan_*, with ids and numbers as there. Needs no device but for
// materialise(). Move-only. cancel() may come from any thread.
//
//     gpumem::plan plan;
//     auto x = plan.value(4096, GPUMEM_PLAN_INPUT), y = plan.value(4096), z = plan.value(16, GPUMEM_PLAN_OUTPUT);
//     plan.op({x}, {y});
//     plan.op({y}, {z});
//     plan.solve();
//     auto memory = plan.materialise(stream);
//     float *in = plan.pointer<float>(x, memory);
//
// A plan for which there is no layout throws bad_alloc from solve(); summary() says more.
class plan {
  public:
    using id = std::uint32_t;

    plan() { check(gpumem_plan_create(nullptr, &handle_)); }
    explicit plan(const gpumem_plan_options &options) { check(gpumem_plan_create(&options, &handle_)); }
    plan(plan &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    plan &operator=(plan &&other) noexcept {
        plan(std::move(other)).swap(*this);
        return *this;
    }
    plan(const plan &) = delete;
    plan &operator=(const plan &) = delete;
    ~plan() { gpumem_plan_destroy(handle_); }

    gpumem_plan get() const noexcept { return handle_; }
    void swap(plan &other) noexcept { std::swap(handle_, other.handle_); }

    // A temporary that is live in [lower, upper).
    id add(std::uint64_t bytes, std::uint64_t lower, std::uint64_t upper) {
        gpumem_plan_buffer_options options;
        GPUMEM_INIT(&options);
        options.bytes = bytes;
        options.lower = lower;
        options.upper = upper;
        return add(options);
    }
    id add(const gpumem_plan_buffer_options &options) {
        id out = 0;
        check(gpumem_plan_add_buffer(handle_, &options, &out));
        return out;
    }
    // Many temporaries; the first one's id, those of the others follow.
    id add_all(const std::vector<std::uint64_t> &bytes, const std::vector<std::uint64_t> &lowers,
               const std::vector<std::uint64_t> &uppers) {
        if (lowers.size() != bytes.size() || uppers.size() != bytes.size()) {
            throw error(GPUMEM_ERROR_INVALID, "gpumem::plan::add_all: the vectors are not of one length");
        }
        id first = 0;
        check(gpumem_plan_add_buffers(handle_, bytes.size(), bytes.data(), lowers.data(), uppers.data(), &first));
        return first;
    }
    // A value whose live range follows from the operations.
    id value(std::uint64_t bytes, std::int32_t kind = GPUMEM_PLAN_TEMPORARY, const char *name = nullptr) {
        gpumem_plan_buffer_options options;
        GPUMEM_INIT(&options);
        options.bytes = bytes;
        options.kind = kind;
        options.name = name;
        return value(options);
    }
    id value(const gpumem_plan_buffer_options &options) {
        id out = 0;
        check(gpumem_plan_add_value(handle_, &options, &out));
        return out;
    }
    // An operation; returns its number.
    id op(const std::vector<id> &inputs, const std::vector<id> &outputs, const char *name = nullptr) {
        id out = 0;
        check(gpumem_plan_add_op(handle_, name, inputs.data(), inputs.size(), outputs.data(), outputs.size(), &out));
        return out;
    }
    void set_order(const std::vector<id> &ops) { check(gpumem_plan_set_order(handle_, ops.data(), ops.size())); }
    void view(id child, id parent, std::uint64_t offset = 0) {
        check(gpumem_plan_view(handle_, child, parent, offset));
    }
    void in_place(id op, id input, id output) { check(gpumem_plan_in_place(handle_, op, input, output)); }
    void extend_to(id value, std::uint64_t step) { check(gpumem_plan_extend_to(handle_, value, step)); }
    void pin(id value) { check(gpumem_plan_pin(handle_, value)); }
    void pin_ancestors(id value) { check(gpumem_plan_pin_ancestors(handle_, value)); }
    void set_keep_ancestors(bool keep) { check(gpumem_plan_set_keep_ancestors(handle_, keep)); }
    void set_left_out(std::uint32_t kinds) { check(gpumem_plan_set_left_out(handle_, kinds)); }
    void set_preset(std::int32_t preset) { check(gpumem_plan_set_preset(handle_, preset)); }
    void share(const char *name, std::uint32_t arena, std::uint64_t offset, std::uint64_t bytes) {
        check(gpumem_plan_share(handle_, name, arena, offset, bytes));
    }
    // Returns how many weights with names the other plan had.
    std::size_t share_from(const plan &from) {
        std::size_t count = 0;
        check(gpumem_plan_share_from(handle_, from.handle_, &count));
        return count;
    }
    // Takes back what was shared under a name, or everything.
    void unshare(const char *name = nullptr) { check(gpumem_plan_unshare(handle_, name)); }
    std::uint32_t add_arena(std::uint64_t capacity = 0, const char *name = nullptr) {
        std::uint32_t out = 0;
        check(gpumem_plan_add_arena(handle_, capacity, name, &out));
        return out;
    }
    void set_capacity(std::uint64_t bytes, std::uint32_t arena = 0) {
        check(gpumem_plan_set_capacity(handle_, arena, bytes));
    }
    void set_unit(std::uint64_t unit) { check(gpumem_plan_set_unit(handle_, unit)); }
    void set_reuse(bool reuse) { check(gpumem_plan_set_reuse(handle_, reuse)); }
    void reserve(std::uint64_t offset, std::uint64_t bytes, std::uint64_t lower = 0, std::uint64_t upper = UINT64_MAX,
                 std::uint32_t arena = 0) {
        check(gpumem_plan_reserve(handle_, arena, offset, bytes, lower, upper));
    }
    void resize(id value, std::uint64_t bytes) { check(gpumem_plan_resize(handle_, value, bytes)); }

    void solve() { check(gpumem_plan_solve(handle_, nullptr)); }
    void solve(const gpumem_plan_solve_options &options) { check(gpumem_plan_solve(handle_, &options)); }
    // From another thread: ends a solve early.
    void cancel() const { check(gpumem_plan_cancel(handle_)); }

    gpumem_plan_summary summary() const {
        gpumem_plan_summary out;
        GPUMEM_INIT(&out);
        check(gpumem_plan_summary_get(handle_, &out));
        return out;
    }
    // Bytes that an arena needs.
    std::uint64_t bytes(std::uint32_t arena = 0) const {
        std::uint64_t out = 0;
        check(gpumem_plan_arena_bytes(handle_, arena, &out, nullptr));
        return out;
    }
    // What the buffers in an arena cannot do with less than, bytes.
    std::uint64_t lower_bound(std::uint32_t arena = 0) const {
        std::uint64_t out = 0, size = 0;
        check(gpumem_plan_arena_bytes(handle_, arena, &size, &out));
        return out;
    }
    // The steps at which the bytes of a value hold something.
    gpumem_plan_interval live(id value) const {
        gpumem_plan_interval out{};
        check(gpumem_plan_live(handle_, value, &out.lower, &out.upper));
        return out;
    }
    std::uint64_t offset(id value) const {
        std::uint64_t out = 0;
        check(gpumem_plan_offset(handle_, value, nullptr, &out));
        return out;
    }
    std::uint32_t arena(id value) const {
        std::uint32_t out = 0;
        std::uint64_t offset = 0;
        check(gpumem_plan_offset(handle_, value, &out, &offset));
        return out;
    }
    // By id; GPUMEM_PLAN_NO_OFFSET for what has no slot.
    std::vector<std::uint64_t> offsets() const {
        std::vector<std::uint64_t> out(count([&](std::size_t *n) {
            return gpumem_plan_offsets(handle_, 0, 0, nullptr, nullptr, n);
        }));
        check(gpumem_plan_offsets(handle_, 0, out.size(), nullptr, out.data(), nullptr));
        return out;
    }
    // What is live when most is.
    std::vector<id> critical() const {
        std::vector<id> out(count([&](std::size_t *n) { return gpumem_plan_critical(handle_, nullptr, 0, n); }));
        check(gpumem_plan_critical(handle_, out.data(), out.size(), nullptr));
        return out;
    }
    // Checks a layout of the caller's own, by id, and returns the bytes it needs. Throws error for what is wrong with it.
    std::uint64_t verify(const std::vector<std::uint64_t> &offsets, const std::vector<std::uint32_t> &arenas = {}) const {
        if (!arenas.empty() && arenas.size() != offsets.size()) {
            throw error(GPUMEM_ERROR_INVALID, "gpumem::plan::verify: the vectors are not of one length");
        }
        std::uint64_t out = 0;
        check(gpumem_plan_verify(handle_, arenas.empty() ? nullptr : arenas.data(), offsets.data(), offsets.size(),
                                 &out));
        return out;
    }
    std::string report() const { return text(gpumem_plan_report); }
    std::string csv() const { return text(gpumem_plan_csv); }
    std::string svg() const { return text(gpumem_plan_svg); }

    // Memory for an arena, allocated and freed in the order of a stream.
    unique_buffer<std::byte> materialise(gpumem_stream s, std::uint32_t arena = 0) const {
        const std::uint64_t size = bytes(arena);
        void *base = nullptr;
        check(gpumem_plan_materialise(handle_, arena, s, &base));
        return unique_buffer<std::byte>::adopt(static_cast<std::byte *>(base), static_cast<std::size_t>(size));
    }
    unique_buffer<std::byte> materialise(const stream &s, std::uint32_t arena = 0) const {
        return materialise(s.get(), arena);
    }
    // The same with the options of gpumem_malloc_with, whose bytes must be 0.
    unique_buffer<std::byte> materialise_with(const gpumem_malloc_options &options, std::uint32_t arena = 0) const {
        const std::uint64_t size = bytes(arena);
        void *base = nullptr;
        check(gpumem_plan_materialise_with(handle_, arena, &options, &base));
        return unique_buffer<std::byte>::adopt(static_cast<std::byte *>(base), static_cast<std::size_t>(size));
    }
    // Where a buffer or value is in the memory of arena 0.
    template <class T = void> T *pointer(id value, const unique_buffer<std::byte> &memory) const {
        return pointer<T>(value, std::vector<void *>{memory.data()});
    }
    // The same with several arenas, whose memory is given by number.
    template <class T = void> T *pointer(id value, const std::vector<void *> &bases) const {
        void *out = nullptr;
        check(gpumem_plan_pointer(handle_, value, bases.data(), bases.size(), &out));
        return static_cast<T *>(out);
    }

  private:
    template <class F> static std::size_t count(F call) {
        std::size_t n = 0;
        check(call(&n));
        return n;
    }
    std::string text(gpumem_status (*call)(gpumem_plan, char *, std::size_t, std::size_t *)) const {
        std::size_t needed = 1;
        check(call(handle_, nullptr, 0, &needed));
        std::string out(needed - 1, '\0');
        check(call(handle_, out.data(), needed, nullptr)); // its NUL is the string's own
        return out;
    }

    gpumem_plan handle_ = nullptr;
};

} // namespace gpumem

#endif

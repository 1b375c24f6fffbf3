// gpumem/plan.hpp: layouts computed ahead of a run.
// gpumem.hpp has the conventions that hold for everything here.
#ifndef GPUMEM_PLAN_HPP
#define GPUMEM_PLAN_HPP

#include <gpumem/buffer.hpp>

#include <string>
#include <vector>

GPUMEM_NAMESPACE_BEGIN

// Lays buffers and values out in arenas: gpumem_plan_*, with the same ids and numbers. Only
// materialise() needs a device. Move-only. cancel() may be called from any thread.
//
//     gpumem::plan plan;
//     auto x = plan.value(4096, GPUMEM_PLAN_INPUT), y = plan.value(4096);
//     auto z = plan.value(16, GPUMEM_PLAN_OUTPUT);
//     plan.op({x}, {y});
//     plan.op({y}, {z});
//     plan.solve();
//     auto memory = plan.materialise(stream);
//     float *in = plan.pointer<float>(x, memory);
//
// solve() throws bad_alloc when there is no layout; stats() says more.
class plan : public detail::owned_handle<gpumem_plan,
                                         detail::closed_by<gpumem_plan, gpumem_plan_destroy>> {
  public:
    using id = std::uint32_t;

    plan() { check(gpumem_plan_create(nullptr, &state_)); }
    explicit plan(const gpumem_plan_options &options) {
        check(gpumem_plan_create(&options, &state_));
    }

    // Adds a temporary that is live in [lower, upper).
    id add(std::uint64_t bytes, std::uint64_t lower, std::uint64_t upper) {
        auto options = detail::sized<gpumem_plan_buffer_options>();
        options.bytes = bytes;
        options.lower = lower;
        options.upper = upper;
        return add(options);
    }
    id add(const gpumem_plan_buffer_options &options) {
        id out = 0;
        check(gpumem_plan_buffer_add(state_, &options, &out));
        return out;
    }
    // Adds many temporaries. Returns the id of the first; the ids of the others follow it.
    id add_all(const std::vector<std::uint64_t> &bytes, const std::vector<std::uint64_t> &lowers,
               const std::vector<std::uint64_t> &uppers) {
        if (lowers.size() != bytes.size() || uppers.size() != bytes.size()) {
            throw error(GPUMEM_ERROR_INVALID,
                        "gpumem::plan::add_all: the vectors are not of one length");
        }
        id first = 0;
        check(gpumem_plan_buffers_add(state_, bytes.size(), bytes.data(), lowers.data(),
                                      uppers.data(), &first));
        return first;
    }
    // Adds a value whose live range follows from the operations.
    id value(std::uint64_t bytes, std::int32_t kind = GPUMEM_PLAN_TEMPORARY,
             const char *name = nullptr) {
        auto options = detail::sized<gpumem_plan_buffer_options>();
        options.bytes = bytes;
        options.kind = kind;
        options.name = name;
        return value(options);
    }
    id value(const gpumem_plan_buffer_options &options) {
        id out = 0;
        check(gpumem_plan_value_add(state_, &options, &out));
        return out;
    }
    // Adds an operation and returns its number.
    id op(const std::vector<id> &inputs, const std::vector<id> &outputs,
          const char *name = nullptr) {
        id out = 0;
        check(gpumem_plan_op_add(state_, name, inputs.data(), inputs.size(), outputs.data(),
                                 outputs.size(), &out));
        return out;
    }
    void set_order(const std::vector<id> &ops) {
        check(gpumem_plan_order_set(state_, ops.data(), ops.size()));
    }
    void view(id child, id parent, std::uint64_t offset = 0) {
        check(gpumem_plan_view_set(state_, child, parent, offset));
    }
    void in_place(id op, id input, id output) {
        check(gpumem_plan_in_place_add(state_, op, input, output));
    }
    void extend_to(id value, std::uint64_t step) {
        check(gpumem_plan_extend(state_, value, step));
    }
    void keep(id value) { check(gpumem_plan_keep(state_, value)); }
    void keep_ancestors(id value) { check(gpumem_plan_keep_ancestors(state_, value)); }
    void set_keep_ancestors(bool keep) { check(gpumem_plan_keep_ancestors_set(state_, keep)); }
    void set_left_out(std::uint32_t kinds) { check(gpumem_plan_left_out_set(state_, kinds)); }
    void set_preset(std::int32_t preset) { check(gpumem_plan_preset_set(state_, preset)); }
    void share(const char *name, std::uint32_t arena, std::uint64_t offset, std::uint64_t bytes) {
        check(gpumem_plan_share(state_, name, arena, offset, bytes));
    }
    // Returns how many weights with names the other plan had.
    std::size_t share_from(const plan &from) {
        std::size_t count = 0;
        check(gpumem_plan_share_from(state_, from.get(), &count));
        return count;
    }
    // Takes back what was shared under a name, or everything.
    void unshare(const char *name = nullptr) { check(gpumem_plan_unshare(state_, name)); }
    std::uint32_t add_arena(std::uint64_t capacity = 0, const char *name = nullptr) {
        std::uint32_t out = 0;
        check(gpumem_plan_arena_add(state_, capacity, name, &out));
        return out;
    }
    void set_capacity(std::uint64_t bytes, std::uint32_t arena = 0) {
        check(gpumem_plan_capacity_set(state_, arena, bytes));
    }
    void set_unit(std::uint64_t unit) { check(gpumem_plan_unit_set(state_, unit)); }
    void set_reuse(bool reuse) { check(gpumem_plan_reuse_set(state_, reuse)); }
    void add_obstacle(std::uint64_t offset, std::uint64_t bytes, std::uint64_t lower = 0,
                      std::uint64_t upper = UINT64_MAX, std::uint32_t arena = 0) {
        check(gpumem_plan_obstacle_add(state_, arena, offset, bytes, lower, upper));
    }
    void resize(id value, std::uint64_t bytes) { check(gpumem_plan_resize(state_, value, bytes)); }

    void solve() { check(gpumem_plan_solve(state_, nullptr)); }
    void solve(const gpumem_plan_solve_options &options) {
        check(gpumem_plan_solve(state_, &options));
    }
    // Ends a solve on another thread early.
    void cancel() const { check(gpumem_plan_cancel(state_)); }

    gpumem_plan_stats stats() const {
        return detail::filled<gpumem_plan_stats>(gpumem_plan_stats_get, state_);
    }
    // The bytes that an arena needs.
    std::uint64_t bytes(std::uint32_t arena = 0) const {
        std::uint64_t out = 0;
        check(gpumem_plan_arena_bytes_get(state_, arena, &out, nullptr));
        return out;
    }
    // The bytes that no layout of an arena's buffers can go below.
    std::uint64_t lower_bound(std::uint32_t arena = 0) const {
        std::uint64_t out = 0, size = 0;
        check(gpumem_plan_arena_bytes_get(state_, arena, &size, &out));
        return out;
    }
    // The steps during which the slot of a value holds something.
    gpumem_plan_interval live(id value) const {
        gpumem_plan_interval out{};
        check(gpumem_plan_live_get(state_, value, &out.lower, &out.upper));
        return out;
    }
    std::uint64_t offset(id value) const {
        std::uint64_t out = 0;
        check(gpumem_plan_offset_get(state_, value, nullptr, &out));
        return out;
    }
    std::uint32_t arena(id value) const {
        std::uint32_t out = 0;
        std::uint64_t offset = 0;
        check(gpumem_plan_offset_get(state_, value, &out, &offset));
        return out;
    }
    // The offsets, indexed by id; GPUMEM_PLAN_NO_OFFSET for what has no slot.
    std::vector<std::uint64_t> offsets() const {
        std::vector<std::uint64_t> out(count([&](std::size_t *n) {
            return gpumem_plan_offsets_get(state_, 0, 0, nullptr, nullptr, n);
        }));
        check(gpumem_plan_offsets_get(state_, 0, out.size(), nullptr, out.data(), nullptr));
        return out;
    }
    // The ids of what is live at the step at which most is live.
    std::vector<id> critical() const {
        std::vector<id> out(
            count([&](std::size_t *n) { return gpumem_plan_critical_get(state_, nullptr, 0, n); }));
        check(gpumem_plan_critical_get(state_, out.data(), out.size(), nullptr));
        return out;
    }
    // Checks a layout of the caller's own, indexed by id, and returns the bytes it needs. Throws
    // error with what is wrong with it.
    std::uint64_t verify(const std::vector<std::uint64_t> &offsets,
                         const std::vector<std::uint32_t> &arenas = {}) const {
        if (!arenas.empty() && arenas.size() != offsets.size()) {
            throw error(GPUMEM_ERROR_INVALID,
                        "gpumem::plan::verify: the vectors are not of one length");
        }
        std::uint64_t out = 0;
        check(gpumem_plan_verify(state_, arenas.empty() ? nullptr : arenas.data(), offsets.data(),
                                 offsets.size(), &out));
        return out;
    }
    std::string report() const { return text(gpumem_plan_report_get); }
    std::string csv() const { return text(gpumem_plan_csv_get); }
    std::string svg() const { return text(gpumem_plan_svg_get); }

    // Allocates memory for an arena; it is allocated and freed in the order of a stream.
    unique_buffer<std::byte> materialise(stream_ref s, std::uint32_t arena = 0) const {
        const std::uint64_t size = bytes(arena);
        void *base = nullptr;
        check(gpumem_plan_materialise(state_, arena, s.get(), &base));
        return unique_buffer<std::byte>::adopt(static_cast<std::byte *>(base),
                                               static_cast<std::size_t>(size));
    }
    // Like materialise(), with the options of gpumem_malloc_with. Their bytes must be 0.
    unique_buffer<std::byte> materialise_with(const gpumem_malloc_options &options,
                                              std::uint32_t arena = 0) const {
        const std::uint64_t size = bytes(arena);
        void *base = nullptr;
        check(gpumem_plan_materialise_with(state_, arena, &options, &base));
        return unique_buffer<std::byte>::adopt(static_cast<std::byte *>(base),
                                               static_cast<std::size_t>(size));
    }
    // The address of a buffer or value in the memory of arena 0.
    template <class T = void> T *pointer(id value, const unique_buffer<std::byte> &memory) const {
        return pointer<T>(value, std::vector<void *>{memory.data()});
    }
    // The address of a buffer or value when there are several arenas: bases[i] is the memory of
    // arena i.
    template <class T = void> T *pointer(id value, const std::vector<void *> &bases) const {
        void *out = nullptr;
        check(gpumem_plan_pointer_get(state_, value, bases.data(), bases.size(), &out));
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
        check(call(state_, nullptr, 0, &needed));
        std::string out(needed - 1, '\0');
        check(call(state_, out.data(), needed, nullptr)); // its NUL is the string's own
        return out;
    }
};

GPUMEM_NAMESPACE_END

#endif

// The hooks for torch.cuda.graph, called as torch calls them: with its types, by value, through
// std::function.
#include "harness.h"
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

// c10::cuda::MempoolId_t and cudaStream_t.
using pool_id = std::pair<unsigned long long, unsigned long long>;
using filter = std::function<bool(gpumem_stream)>;

// As torch keeps them, made from addresses.
template <class F> static F *at(void *address) { return reinterpret_cast<F *>(address); }
template <class F> static void *address_of(F *f) { return reinterpret_cast<void *>(f); }
static const std::function<void(int, pool_id, filter)> begin =
    at<void(int, pool_id, filter)>(address_of(gpumem_torch_begin_allocate_to_pool));
static const std::function<void(int, pool_id)> end =
    at<void(int, pool_id)>(address_of(gpumem_torch_end_allocate_to_pool));
static const std::function<void(int, pool_id)> release_pool =
    at<void(int, pool_id)>(address_of(gpumem_torch_release_pool));

static void *torch_malloc(std::size_t bytes, gpumem_stream s) {
    void *p = gpumem_torch_malloc(static_cast<ssize_t>(bytes), 0, s);
    CHECK(p != nullptr);
    return p;
}

// torch's order: the hook, the stream's capture, the end of that, the hook.
static gpumem_sim_graph capture(pool_id id, gpumem_stream s, const std::function<void()> &body) {
    // What torch's filter asks of the stream; large enough not to fit into the std::function
    // itself.
    auto capturing = std::make_shared<bool>(false);
    const char padding[64] = {1};
    begin(0, id, [capturing, s, padding](gpumem_stream asked) { return *capturing && asked == s && padding[0] == 1; });
    CHECK(capturing.use_count() == 2);
    OK(gpumem_sim_capture_begin(s, GPUMEM_SIM_CAPTURE_THREAD_LOCAL));
    *capturing = true;
    body();
    gpumem_sim_graph graph = nullptr;
    *capturing = false;
    OK(gpumem_sim_capture_end(s, &graph));
    end(0, id);
    return graph;
}

static void graphs_replay_in_torchs_pool() {
    const std::size_t n = 3 * MIB;
    const pool_id id(7, 0);
    gpumem_stream s = must_stream(), t = must_stream();
    void *input = torch_malloc(n, s), *output = nullptr;
    gpumem_sim_graph graph = capture(id, s, [&] {
        void *temporary = torch_malloc(n, s);
        OK(gpumem_memcpy_async(temporary, input, n, s));
        output = torch_malloc(n, s);
        OK(gpumem_memcpy_async(output, temporary, n, s));
        gpumem_torch_free(temporary, static_cast<ssize_t>(n), 0, s);
    });
    for (unsigned round = 0; round < 4; round++) {
        fill(input, n, round, s);
        OK(gpumem_sim_graph_launch(graph, s));
        // Other tensors come and go.
        for (int i = 0; i < 4; i++) {
            void *p = torch_malloc(n, t);
            OK(gpumem_memset_async(p, 0xee, n, t));
            gpumem_torch_free(p, static_cast<ssize_t>(n), 0, t);
        }
        gpumem_torch_reset();
        CHECK(holds(output, n, round, s));
    }
    // torch.cuda.graph(pool=...): a second graph in the memory of the first.
    const std::uint64_t mapped = stats_now().mapped;
    gpumem_sim_graph second = capture(id, s, [&] {
        void *temporary = torch_malloc(n, s);
        OK(gpumem_memset_async(temporary, 9, n, s));
        OK(gpumem_memcpy_async(output, temporary, n, s));
        gpumem_torch_free(temporary, static_cast<ssize_t>(n), 0, s);
    });
    CHECK(stats_now().mapped == mapped);
    OK(gpumem_sim_graph_launch(second, s));
    CHECK(holds_byte(output, n, 9, s));
    // The first graph goes: the pool stays for the second.
    OK(gpumem_sim_graph_destroy(graph));
    release_pool(0, id);
    OK(gpumem_sim_graph_launch(second, t));
    OK(gpumem_stream_sync(t));
    OK(gpumem_sim_graph_destroy(second));
    release_pool(0, id);
    release_pool(0, id);
    gpumem_torch_free(output, static_cast<ssize_t>(n), 0, s);
    gpumem_torch_free(input, static_cast<ssize_t>(n), 0, s);
    nothing_left();
    gpumem_torch_reset();
    CHECK(stats_now().mapped == 0);
    OK(gpumem_stream_destroy(s));
    OK(gpumem_stream_destroy(t));
}

// torch.cuda.use_mem_pool: the filter accepts a thread, whatever the stream.
static void a_filter_may_mean_a_thread() {
    const pool_id id(0, 3);
    gpumem_stream s = must_stream();
    const std::thread::id me = std::this_thread::get_id();
    // What the thread knows of the stream is from before.
    gpumem_torch_free(torch_malloc(2 * MIB, s), 0, 0, s);
    void *outside = torch_malloc(2 * MIB, s);
    gpumem_torch_free(outside, 0, 0, s);
    auto alive = std::make_shared<int>(0);
    begin(0, id, [me, alive](gpumem_stream) { return std::this_thread::get_id() == me; });
    void *inside = torch_malloc(2 * MIB, s), *elsewhere = nullptr;
    CHECK(inside != outside);
    std::thread([&] { elsewhere = torch_malloc(2 * MIB, s); }).join();
    CHECK(elsewhere == outside);
    end(0, id);
    CHECK(alive.use_count() == 1 || alive.use_count() == 2);
    gpumem_torch_free(inside, 0, 0, s);
    gpumem_torch_free(elsewhere, 0, 0, s);
    release_pool(0, id);
    CHECK(alive.use_count() == 1);
    CHECK(torch_malloc(2 * MIB, s) == outside);
    gpumem_torch_free(outside, 0, 0, s);
    nothing_left();
    OK(gpumem_stream_destroy(s));
}

static void what_is_not_allowed() {
    const pool_id id(99, 0);
    begin(0, id, filter());
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID && error_says("empty"));
    begin(999, id, [](gpumem_stream) { return true; });
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID && error_says("999"));
    end(0, id);
    CHECK(gpumem_last_status() == GPUMEM_ERROR_INVALID && error_says("99"));
    release_pool(0, id);
    gpumem_torch_pool_id plain = {99, 0};
    gpumem_torch_begin_allocate_to_pool(0, plain, nullptr);
    CHECK(error_says("NULL"));
    nothing_left();
}

int main() {
    RUN(graphs_replay_in_torchs_pool);
    RUN(a_filter_may_mean_a_thread);
    RUN(what_is_not_allowed);
    RUN(graphs_replay_in_torchs_pool);
    return 0;
}

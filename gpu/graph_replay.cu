// CUDA graphs over gpumem's capture arenas on a real GPU.
//
//   graph_replay [replays=10000] [case ...]      cases: replay growth shared planned failures modes
//                                                auto; all by default
//   graph_replay N unprotected                   the same without an arena, to see that wrong words
//                                                are found
//
// A program of more than fifty kernels over 28 allocations, made and freed on the way, is run
// eagerly for some inputs, then captured and launched again and again; every launch's output is
// compared with the eager one, word by word, by a kernel. Meanwhile another thread fills, checks
// and frees blocks of its own on other streams, under a limit that makes the pool move memory, and
// gives memory back. Prints one line per case and exits with 1 when one fails.
#include "check.cuh"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

typedef unsigned long long u64;

static std::string detail;

// ---- kernels ------------------------------------------------------------------------------------

__global__ void mix(unsigned *out, size_t n, const unsigned *a, size_t na, const unsigned *b, size_t nb, unsigned salt) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const unsigned x = a[i % na] * 2654435761u + salt, y = b[(i * 7 + salt) % nb];
        out[i] = (x >> 7 | x << 25) ^ y;
    }
}

// Each word of the output depends on what it was and on a word of the buffer.
__global__ void fold(unsigned *out, size_t n, const unsigned *a, size_t na, unsigned salt) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const unsigned x = out[i] * 2654435761u + salt;
        out[i] = (x >> 9 | x << 23) ^ a[(i * 7 + salt) % na];
    }
}

__global__ void set(unsigned *out, size_t n, unsigned salt) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = (unsigned)i * 2246822519u + salt;
    }
}

__global__ void differences(const unsigned *a, const unsigned *b, size_t n, u64 *count) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    u64 wrong = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) wrong += a[i] != b[i];
    if (wrong) atomicAdd(count, wrong);
}

__global__ void check_set(const unsigned *p, size_t n, unsigned salt, u64 *count) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    u64 wrong = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        wrong += p[i] != (unsigned)i * 2246822519u + salt;
    }
    if (wrong) atomicAdd(count, wrong);
}

static const int BLOCKS = 128, THREADS = 256;

// ---- the program --------------------------------------------------------------------------------

static const size_t IO = 1 << 18;  // words of input and output
static const int BUFFERS = 28;

static size_t words_of(int i, int scale) {
    static const size_t sizes[] = {200, 300000, 5000, 1 << 20, 40000, 3000000, 17, 700000, 2500000};
    return sizes[i % 9] * (size_t)scale;
}

struct Buffer {
    unsigned *p;
    size_t n;
};

static Buffer take(cudaStream_t s, size_t n) {
    void *p = nullptr;
    OWN(gpumem_malloc_async(n * 4, handle(s), &p));
    return {(unsigned *)p, n};
}

// Some sixty kernels; every buffer depends on those before it, the output on all of them.
// `addresses` receives where the buffers were.
static void program(cudaStream_t s, const unsigned *in, unsigned *out, unsigned salt, int scale, std::vector<void *> *addresses) {
    std::vector<Buffer> live;
    Buffer last = {nullptr, 0};
    mix<<<BLOCKS, THREADS, 0, s>>>(out, IO, in, IO, in, IO, salt);
    for (int i = 0; i < BUFFERS; i++) {
        Buffer b = take(s, words_of(i, scale));
        if (addresses) addresses->push_back(b.p);
        const unsigned *from = last.p ? last.p : in;
        mix<<<BLOCKS, THREADS, 0, s>>>(b.p, b.n, from, last.p ? last.n : IO, in, IO, salt + i);
        const Buffer other = live.empty() ? b : live[live.size() / 2];
        fold<<<BLOCKS, THREADS, 0, s>>>(out, IO, other.p, other.n, salt * 31 + i);
        live.push_back(b);
        last = b;
        // Not in the order of allocation, and some much later than others.
        if (live.size() > 6 && i % 3 != 0) {
            const size_t k = (size_t)(i * 5) % (live.size() - 1);
            OWN(gpumem_free_async(live[k].p, handle(s)));
            live.erase(live.begin() + (long)k);
        }
    }
    for (size_t k = 0; k < live.size(); k++) {
        fold<<<BLOCKS, THREADS, 0, s>>>(out, IO, live[k].p, live[k].n, (unsigned)k);
        OWN(gpumem_free_async(live[k].p, handle(s)));
    }
    CUDA(cudaGetLastError());
}

// Inputs, and what the program makes of them when it is run eagerly.
struct Expected {
    enum { INPUTS = 6 };
    unsigned *in[INPUTS], *out[INPUTS], *fixed_in, *fixed_out;
    u64 *wrong;
    unsigned salt;

    Expected(cudaStream_t s, unsigned salt_, int scale) : salt(salt_) {
        // From CUDA, so that nothing here depends on what is tested.
        for (int k = 0; k < INPUTS; k++) {
            CUDA(cudaMalloc((void **)&in[k], IO * 4));
            CUDA(cudaMalloc((void **)&out[k], IO * 4));
            set<<<BLOCKS, THREADS, 0, s>>>(in[k], IO, 1000003u * (unsigned)k + salt);
            program(s, in[k], out[k], salt, scale, nullptr);
        }
        CUDA(cudaMalloc((void **)&fixed_in, IO * 4));
        CUDA(cudaMalloc((void **)&fixed_out, IO * 4));
        CUDA(cudaMalloc((void **)&wrong, 8));
        CUDA(cudaMemsetAsync(wrong, 0, 8, s));
        CUDA(cudaStreamSynchronize(s));
    }
    ~Expected() {
        cudaDeviceSynchronize();
        for (int k = 0; k < INPUTS; k++) cudaFree(in[k]), cudaFree(out[k]);
        cudaFree(fixed_in), cudaFree(fixed_out), cudaFree(wrong);
    }
    // Launches for one of the inputs and has the output compared.
    void launch(cudaGraphExec_t exec, cudaStream_t s, int k) {
        CUDA(cudaMemcpyAsync(fixed_in, in[k], IO * 4, cudaMemcpyDeviceToDevice, s));
        CUDA(cudaMemsetAsync(fixed_out, 0xee, IO * 4, s));
        CUDA(cudaGraphLaunch(exec, s));
        differences<<<BLOCKS, THREADS, 0, s>>>(fixed_out, out[k], IO, wrong);
    }
    u64 wrong_words(cudaStream_t s) {
        u64 n = 0;
        CUDA(cudaMemcpyAsync(&n, wrong, 8, cudaMemcpyDeviceToHost, s));
        CUDA(cudaStreamSynchronize(s));
        return n;
    }
};

struct Graph {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    gpumem_capture arena = nullptr;
    std::vector<void *> addresses;
    gpumem_capture_stats before, after;

    void destroy() {
        if (exec) CUDA(cudaGraphExecDestroy(exec));
        if (graph) CUDA(cudaGraphDestroy(graph));
        exec = nullptr, graph = nullptr;
    }
};

static gpumem_capture_stats stats_of(gpumem_capture c) {
    gpumem_capture_stats s;
    GPUMEM_INIT(&s);
    OWN(gpumem_capture_stats_get(c, &s));
    return s;
}

// Captures the program; without options and with `managed` false, gpumem has to notice the capture
// by itself.
static Graph capture(cudaStream_t s, Expected &e, cudaStreamCaptureMode mode, const gpumem_capture_options *opts, int scale, bool managed = true) {
    Graph g;
    if (managed) OWN(gpumem_capture_begin(handle(s), opts, &g.arena));
    if (managed) g.before = stats_of(g.arena);
    CUDA(cudaStreamBeginCapture(s, mode));
    program(s, e.fixed_in, e.fixed_out, e.salt, scale, &g.addresses);
    CUDA(cudaStreamEndCapture(s, &g.graph));
    if (managed) OWN(gpumem_capture_end(g.arena));
    if (managed) g.after = stats_of(g.arena);
    CUDA(cudaGraphInstantiate(&g.exec, g.graph, 0));
    size_t n = 0;
    CUDA(cudaGraphGetNodes(g.graph, nullptr, &n));
    std::vector<cudaGraphNode_t> nodes(n);
    CUDA(cudaGraphGetNodes(g.graph, nodes.data(), &n));
    size_t kernels = 0, memory = 0;
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        CUDA(cudaGraphNodeGetType(node, &type));
        kernels += type == cudaGraphNodeTypeKernel;
        memory += type == cudaGraphNodeTypeMemAlloc || type == cudaGraphNodeTypeMemFree;
    }
    CHECK(kernels >= 50, "%zu kernels", kernels);
    CHECK(memory == 0, "%zu memory nodes", memory);
    return g;
}

// ---- the other thread ---------------------------------------------------------------------------

// Fills, checks and frees blocks on streams of its own until told to stop; every so often frees all
// and trims.
struct Churn {
    std::atomic<bool> stop{false};
    std::atomic<u64> blocks{0}, wrong{0}, trims{0};
    std::thread thread;

    explicit Churn(bool trim, u64 seed = 1) : thread([this, trim, seed] { run(trim, seed); }) {}
    void end() {
        stop = true;
        thread.join();
        CHECK(wrong == 0, "%llu wrong words in the other thread's blocks", (u64)wrong);
        CHECK(blocks > 20, "the other thread made %llu blocks only", (u64)blocks);
    }
    void run(bool trim, u64 seed) {
        // Work of its own must not count against a capture in thread-local mode elsewhere, nor wait
        // in one.
        cudaStream_t streams[3];
        for (cudaStream_t &s : streams) CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        std::mt19937_64 random(seed);
        struct Block { unsigned *p; size_t n; unsigned salt; int stream; };
        std::vector<Block> live;
        u64 *count = nullptr;
        OWN(gpumem_malloc_async(8, handle(streams[0]), (void **)&count));
        CUDA(cudaMemsetAsync(count, 0, 8, streams[0]));
        cudaEvent_t zeroed;
        CUDA(cudaEventCreateWithFlags(&zeroed, cudaEventDisableTiming));
        CUDA(cudaEventRecord(zeroed, streams[0]));
        for (cudaStream_t s : streams) CUDA(cudaStreamWaitEvent(s, zeroed, 0));
        const auto drop = [&](size_t k) {
            const Block b = live[k];
            check_set<<<32, THREADS, 0, streams[b.stream]>>>(b.p, b.n, b.salt, count);
            OWN(gpumem_free_async(b.p, handle(streams[b.stream])));
            live[k] = live.back();
            live.pop_back();
        };
        for (u64 round = 1; !stop; round++) {
            const int s = (int)(random() % 3);
            const size_t n = (size_t)1 << (8 + random() % 18);
            const Block b = {take(streams[s], n + random() % n).p, n, (unsigned)random(), s};
            set<<<32, THREADS, 0, streams[s]>>>(b.p, b.n, b.salt);
            live.push_back(b);
            blocks++;
            while (live.size() > 24) drop(random() % live.size());
            if (round % 400 == 0) {
                while (!live.empty()) drop(live.size() - 1);
                if (trim) {
                    OWN(gpumem_trim(0));
                    trims++;
                }
            }
        }
        while (!live.empty()) drop(live.size() - 1);
        // Not a call that would end somebody's capture: an event that is waited for with this
        // thread's mode relaxed.
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
        for (cudaStream_t s : streams) CUDA(cudaStreamSynchronize(s));
        u64 n = 0;
        CUDA(cudaMemcpyAsync(&n, count, 8, cudaMemcpyDeviceToHost, streams[0]));
        CUDA(cudaStreamSynchronize(streams[0]));
        wrong = n;
        OWN(gpumem_free_async(count, handle(streams[0])));
        for (cudaStream_t s : streams) CUDA(cudaStreamDestroy(s));
        CUDA(cudaEventDestroy(zeroed));
    }
};

// ---- cases --------------------------------------------------------------------------------------

static gpumem_stats pool_stats() {
    gpumem_stats s;
    GPUMEM_INIT(&s);
    OWN(gpumem_stats_get(0, &s));
    return s;
}

static void nothing_left(const char *after) {
    CUDA(cudaDeviceSynchronize());
    OWN(gpumem_validate());
    const gpumem_stats s = pool_stats();
    CHECK(s.allocations == 0, "%s left %llu allocations", after, (u64)s.allocations);
    OWN(gpumem_trim(0));
    const gpumem_stats t = pool_stats();
    CHECK(t.mapped == 0, "%s left %llu bytes mapped after a full trim", after, (u64)t.mapped);
}

static void replay(cudaStream_t s, int replays) {
    Expected e(s, 17, 1);
    const gpumem_stats start = pool_stats();
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1);
    {
        Churn churn(true);
        for (int i = 0; i < replays; i++) {
            e.launch(g.exec, s, (int)(i % Expected::INPUTS));
            // Not further ahead than some launches, so that trims and moves fall between them.
            if (i % 16 == 15) CUDA(cudaStreamSynchronize(s));
        }
        CHECK(e.wrong_words(s) == 0, "%llu wrong words in %d launches", e.wrong_words(s), replays);
        churn.end();
        const gpumem_stats end = pool_stats();
        CHECK(end.moved > start.moved, "nothing was moved meanwhile");
        CHECK(churn.trims > 0, "nothing was trimmed meanwhile");
        char text[256];
        std::snprintf(text, sizeof text, "%d launches, %llu blocks, %llu extents moved and %llu full trims beside them", replays,
                      (u64)churn.blocks, (u64)(end.moved - start.moved), (u64)churn.trims);
        detail = text;
    }
    const gpumem_capture_stats last = stats_of(g.arena);
    CHECK(last.mapped == g.after.mapped, "the arena changed while it was replayed");
    // Freed while a launch may be running.
    e.launch(g.exec, s, 0);
    OWN(gpumem_capture_release(g.arena));
    Buffer b = take(s, 1 << 20);
    OWN(gpumem_free_async(b.p, handle(s)));
    CHECK(e.wrong_words(s) == 0, "the last launch was disturbed by the release");
    g.destroy();
    nothing_left("replay");
}

static void growth(cudaStream_t s) {
    Expected e(s, 5, 4);
    OWN(gpumem_trim(0));
    gpumem_capture_options opts;
    GPUMEM_INIT(&opts);
    opts.flags = GPUMEM_CAPTURE_MONOTONE;
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, &opts, 4);
    CHECK(g.before.mapped < g.after.mapped, "%llu bytes before, %llu after", (u64)g.before.mapped, (u64)g.after.mapped);
    u64 low = ~0ull, high = 0;
    for (int i = 0; i < BUFFERS; i++) {
        const u64 p = (u64)g.addresses[(size_t)i], end = p + words_of(i, 4) * 4;
        low = p < low ? p : low;
        high = end > high ? end : high;
        for (int k = 0; k < i; k++) {
            const u64 q = (u64)g.addresses[(size_t)k], q_end = q + words_of(k, 4) * 4;
            CHECK(end <= q || q_end <= p, "a monotone arena handed out the same bytes twice");
        }
    }
    CHECK(high - low <= g.after.mapped, "%llu bytes of addresses, %llu mapped: not in one piece", high - low, (u64)g.after.mapped);
    for (int i = 0; i < 200; i++) e.launch(g.exec, s, i % Expected::INPUTS);
    CHECK(e.wrong_words(s) == 0, "wrong words");
    char text[160];
    std::snprintf(text, sizeof text, "%.1f MiB grown in place during the capture", (double)(g.after.mapped - g.before.mapped) / 1048576);
    detail = text;
    g.destroy();
    OWN(gpumem_capture_release(g.arena));
    nothing_left("growth");
}

static void shared(cudaStream_t s) {
    Expected e(s, 23, 1), f(s, 99, 2);
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1);
    gpumem_capture_options opts;
    GPUMEM_INIT(&opts);
    opts.share = g.arena;
    Graph h = capture(s, f, cudaStreamCaptureModeThreadLocal, &opts, 2);
    Churn churn(true, 7);
    for (int i = 0; i < 1000; i++) {
        e.launch(g.exec, s, i % Expected::INPUTS);
        f.launch(h.exec, s, (i + 1) % Expected::INPUTS);
        if (i % 16 == 15) CUDA(cudaStreamSynchronize(s));
    }
    CHECK(e.wrong_words(s) == 0 && f.wrong_words(s) == 0, "wrong words");
    // The first graph goes; the second goes on.
    g.destroy();
    OWN(gpumem_capture_release(g.arena));
    for (int i = 0; i < 200; i++) f.launch(h.exec, s, i % Expected::INPUTS);
    CHECK(f.wrong_words(s) == 0, "wrong words after the other graph was gone");
    churn.end();
    char text[160];
    std::snprintf(text, sizeof text, "%.1f MiB for the first, %.1f for both", (double)g.after.mapped / 1048576, (double)h.after.mapped / 1048576);
    detail = text;
    h.destroy();
    OWN(gpumem_capture_release(h.arena));
    nothing_left("shared");
}

static void planned(cudaStream_t s) {
    const int scale = 8;  // so that nearly all bytes are in large allocations
    Expected e(s, 41, scale);
    gpumem_capture_options opts;
    GPUMEM_INIT(&opts);
    opts.flags = GPUMEM_CAPTURE_RECORD;
    gpumem_capture dry = nullptr;
    OWN(gpumem_capture_begin(handle(s), &opts, &dry));
    program(s, e.fixed_in, e.fixed_out, e.salt, scale, nullptr);
    OWN(gpumem_capture_end(dry));
    CUDA(cudaStreamSynchronize(s));
    opts.flags = 0;
    opts.layout = dry;
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, &opts, scale);
    OWN(gpumem_capture_release(dry));
    CHECK(g.after.deviations == 0, "%llu deviations", (u64)g.after.deviations);
    const double over = (double)g.after.mapped / (double)g.after.peak_live;
    CHECK(over <= 1.05, "%.3f of peak live", over);
    Churn churn(true, 3);
    for (int i = 0; i < 300; i++) e.launch(g.exec, s, i % Expected::INPUTS);
    CHECK(e.wrong_words(s) == 0, "wrong words");
    churn.end();
    char text[200];
    std::snprintf(text, sizeof text, "arena %.1f MiB, %.3f of peak live; monotone would take %.1f MiB", (double)g.after.mapped / 1048576, over,
                  (double)g.after.total / 1048576);
    detail = text;
    g.destroy();
    OWN(gpumem_capture_release(g.arena));
    nothing_left("planned");
}

static void failures_case(cudaStream_t s) {
    Expected e(s, 3, 1);
    // A capture that CUDA invalidates.
    gpumem_capture c = nullptr;
    OWN(gpumem_capture_begin(handle(s), nullptr, &c));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    program(s, e.fixed_in, e.fixed_out, e.salt, 1, nullptr);
    Buffer left = take(s, 1 << 20);
    CHECK(cudaStreamSynchronize(s) != cudaSuccess);
    cudaGraph_t none = nullptr;
    CHECK(cudaStreamEndCapture(s, &none) != cudaSuccess);
    cudaGetLastError();
    OWN(gpumem_capture_abort(c));
    CHECK(gpumem_free_async(left.p, handle(s)) != GPUMEM_OK, "the abort has freed it");
    CHECK(gpumem_capture_release(c) == GPUMEM_ERROR_INVALID, "the handle is stale");
    nothing_left("an invalidated capture");
    // Given up half-way, the stream destroyed while it is captured.
    cudaStream_t t;
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    OWN(gpumem_capture_begin(handle(t), nullptr, &c));
    CUDA(cudaStreamBeginCapture(t, cudaStreamCaptureModeRelaxed));
    left = take(t, 1 << 20);
    CUDA(cudaStreamEndCapture(t, &none));
    CUDA(cudaGraphDestroy(none));
    CUDA(cudaStreamDestroy(t));
    cudaStream_t again;
    CUDA(cudaStreamCreateWithFlags(&again, cudaStreamNonBlocking));
    Buffer b = take(again, 1 << 20);
    OWN(gpumem_free_async(b.p, handle(again)));
    OWN(gpumem_free_async(left.p, handle(again)));
    OWN(gpumem_capture_release(c));
    CUDA(cudaStreamDestroy(again));
    nothing_left("an abandoned capture");
    // And all is as before.
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1);
    for (int i = 0; i < 50; i++) e.launch(g.exec, s, i % Expected::INPUTS);
    CHECK(e.wrong_words(s) == 0, "wrong words");
    g.destroy();
    OWN(gpumem_capture_release(g.arena));
    nothing_left("failures");
}

static void modes(cudaStream_t s) {
    Expected e(s, 61, 1);
    const cudaStreamCaptureMode all[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
    u64 blocks = 0;
    for (cudaStreamCaptureMode mode : all) {
        Churn churn(false, 11 + (u64)mode);
        // The thread has met its streams before the first capture begins.
        while (churn.blocks < 50) std::this_thread::yield();
        for (int round = 0; round < 20; round++) {
            Graph g = capture(s, e, mode, nullptr, 1);
            for (int i = 0; i < 10; i++) e.launch(g.exec, s, i % Expected::INPUTS);
            CHECK(e.wrong_words(s) == 0, "wrong words in mode %d", (int)mode);
            g.destroy();
            OWN(gpumem_capture_release(g.arena));
        }
        churn.end();
        blocks += churn.blocks;
    }
    char text[160];
    std::snprintf(text, sizeof text, "60 captures, %llu blocks allocated and freed by another thread meanwhile", blocks);
    detail = text;
    nothing_left("modes");
}

// No arena: what the graph uses is anybody's. That must be found, or the other cases prove nothing.
static void unprotected(cudaStream_t s, int replays) {
    Expected e(s, 17, 1);
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1, false);
    // The stream is known not to be captured any more, and its memory is free for all.
    Buffer b = take(s, 1 << 20);
    OWN(gpumem_free_async(b.p, handle(s)));
    Churn churn(true);
    for (int i = 0; i < replays; i++) {
        e.launch(g.exec, s, (int)(i % Expected::INPUTS));
        if (i % 16 == 15) CUDA(cudaStreamSynchronize(s));
    }
    CHECK(e.wrong_words(s) == 0, "%llu wrong words in %d launches", e.wrong_words(s), replays);
    churn.end();
    g.destroy();
}

// In a process of its own, with GPUMEM_CAPTURE=auto.
static void automatic(cudaStream_t s) {
    Expected e(s, 77, 1);
    Graph g = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1, false);
    Graph h = capture(s, e, cudaStreamCaptureModeThreadLocal, nullptr, 1, false);
    Churn churn(true, 5);
    for (int i = 0; i < 1000; i++) {
        e.launch(g.exec, s, i % Expected::INPUTS);
        e.launch(h.exec, s, (i + 3) % Expected::INPUTS);
        if (i % 16 == 15) CUDA(cudaStreamSynchronize(s));
    }
    CHECK(e.wrong_words(s) == 0, "wrong words");
    churn.end();
    CUDA(cudaDeviceSynchronize());
    OWN(gpumem_trim(0));
    const gpumem_stats held = pool_stats();
    CHECK(held.mapped > 0, "the graphs' memory went while they were there");
    g.destroy();
    h.destroy();
    CUDA(cudaDeviceSynchronize());
    // CUDA says in its own time that a graph is gone.
    for (int i = 0; i < 200 && pool_stats().mapped > 0; i++) {
        usleep(10000);
        Buffer b = take(s, 1000);
        OWN(gpumem_free_async(b.p, handle(s)));
        CUDA(cudaDeviceSynchronize());
        OWN(gpumem_trim(0));
    }
    char text[160];
    std::snprintf(text, sizeof text, "%.1f MiB held for two graphs until both were gone", (double)held.mapped / 1048576);
    detail = text;
    nothing_left("auto");
}

static bool run_alone(const char *program_path, const char *name) {
    std::string command = std::string("GPUMEM_CAPTURE=auto '") + program_path + "' 1 " + name;
    return std::system(command.c_str()) == 0;
}

int main(int argc, char **argv) {
    const int replays = argc > 1 ? std::atoi(argv[1]) : 10000;
    std::vector<std::string> cases;
    for (int i = 2; i < argc; i++) cases.push_back(argv[i]);
    if (cases.empty()) cases = {"replay", "growth", "shared", "planned", "failures", "modes", "auto"};
    if (std::getenv("GPUMEM_BACKEND") == nullptr) setenv("GPUMEM_BACKEND", "cuda", 1);
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(nullptr));
    OWN(gpumem_device_limit_set(0, (size_t)6 << 30));
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    int failed = 0;
    for (const std::string &name : cases) {
        failures = 0;
        detail.clear();
        if (name == "replay") replay(s, replays);
        else if (name == "unprotected") unprotected(s, replays);
        else if (name == "growth") growth(s);
        else if (name == "shared") shared(s);
        else if (name == "planned") planned(s);
        else if (name == "failures") failures_case(s);
        else if (name == "modes") modes(s);
        else if (name == "auto" && std::getenv("GPUMEM_CAPTURE") == nullptr) {
            if (run_alone(argv[0], "auto")) continue;
            failed++;
            continue;
        } else if (name == "auto") automatic(s);
        else {
            std::fprintf(stderr, "no case %s\n", name.c_str());
            return 2;
        }
        failed += failures != 0;
        std::printf("%s %-9s %s\n", failures ? "FAIL" : "pass", name.c_str(), detail.c_str());
        std::fflush(stdout);
    }
    CUDA(cudaStreamDestroy(s));
    return failed != 0;
}

// What breaks careless allocators: `adversarial
// late|late_async|capture|reset|destructor|fork|local|threads|torture [SECONDS]`. Prints "wrong 0"
// when every byte is right, and the same with gpumem and without.
#include "check.cuh"
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static unsigned long long count_of(const uint32_t *p, size_t words, uint32_t seed) {
    static thread_local unsigned long long *bad = nullptr;
    static thread_local cudaStream_t s;
    unsigned long long n = 0;
    if (!bad) {
        CHECK(cudaMalloc(&bad, 8));
        CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    }
    CHECK(cudaMemsetAsync(bad, 0, 8, s));
    verify<<<64, 256, 0, s>>>(p, words, seed, bad);
    CHECK(cudaMemcpyAsync(&n, bad, 8, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    return n;
}

// A kernel that runs for a second and then writes: the memory is freed meanwhile, and must not be
// anybody else's yet.
static int late(bool async) {
    unsigned long long wrong = 0;
    cudaStream_t busy, other;
    CHECK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (size_t bytes : {65536ul, 64ul << 20}) {
        uint32_t *p, *q;
        CHECK(cudaMalloc(&p, bytes));
        spin<<<1, 1, 0, busy>>>(1000000000ull);
        fill<<<64, 256, 0, busy>>>(p, bytes / 4, 1);
        // cudaFree does not return, or does not give the memory away, before the kernel is done.
        if (async) CHECK(cudaFreeAsync(p, busy));
        else CHECK(cudaFree(p));
        std::vector<uint32_t *> all;
        for (int i = 0; i < 8; i++) {
            if (async) CHECK(cudaMallocAsync(&q, bytes, other));
            else CHECK(cudaMalloc(&q, bytes));
            fill<<<64, 256, 0, other>>>(q, bytes / 4, 100 + i);
            all.push_back(q);
        }
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < 8; i++) wrong += count_of(all[i], bytes / 4, 100 + i);
        for (uint32_t *r : all) CHECK(cudaFree(r));
    }
    std::printf("wrong %llu\n", wrong);
    return wrong != 0;
}

// Another thread frees and allocates while this one captures, in the mode that allows it.
static int capture() {
    cudaStream_t s;
    uint32_t *p;
    const size_t words = 1 << 20;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&p, words * 4));
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0}, pairs{0};
    CHECK(cudaDeviceSynchronize());
    unsigned long long wrong = 0;
    std::thread other([&] {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
        cudaStream_t t;
        CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
        while (!stop) {
            void *q;
            failed += cudaMallocAsync(&q, 1 << 20, t) != cudaSuccess || cudaFreeAsync(q, t) != cudaSuccess;
            pairs++;
            cudaGetLastError();
        }
    });
    for (int i = 0; i < 50; i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        fill<<<64, 256, 0, s>>>(p, words, i);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        CHECK(cudaStreamEndCapture(s, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        wrong += count_of(p, words, i);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    stop = true;
    other.join();
    std::printf("wrong %llu, failed %d, some %d\n", wrong, failed.load(), pairs.load() > 0);
    return wrong || failed;
}

// With gpumem a cudaFree of another thread's waits for the end of the capture, where the driver
// would end it: run with gpumem only.
static int capture_free() {
    cudaStream_t s;
    uint32_t *p, *q;
    cudaGraph_t graph;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&p, 1 << 20));
    CHECK(cudaMalloc(&q, 1 << 20));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    std::thread([&] { CHECK(cudaFree(q)); CHECK(cudaMalloc(&q, 1 << 20)); }).join();
    fill<<<64, 256, 0, s>>>(p, 1 << 18, 1);
    CHECK(cudaStreamEndCapture(s, &graph));
    std::printf("wrong 0\n");
    return 0;
}

static int reset() {
    unsigned long long wrong = 0;
    size_t first = 0, last = 0, total;
    for (int i = 0; i < 4; i++) {
        uint32_t *p;
        CHECK(cudaMalloc(&p, 1ul << 30));
        fill<<<64, 256>>>(p, 1 << 28, i);
        CHECK(cudaMallocAsync(&p, 64 << 20, 0));
        fill<<<64, 256>>>(p, 1 << 24, i);
        CHECK(cudaDeviceSynchronize());
        unsigned long long *bad, n = 0;
        CHECK(cudaMalloc(&bad, 8));
        CHECK(cudaMemset(bad, 0, 8));
        verify<<<64, 256>>>(p, 1 << 24, i, bad);
        CHECK(cudaMemcpy(&n, bad, 8, cudaMemcpyDeviceToHost));
        wrong += n;
        CHECK(cudaDeviceReset());
        CHECK(cudaMemGetInfo(i ? &last : &first, &total));
    }
    std::printf("wrong %llu, all came back %d\n", wrong, last + (256ul << 20) > first);
    return wrong != 0;
}

static void *late_pointer;
struct Late {
    ~Late() {
        if (!late_pointer) return;
        cudaError_t e = cudaFree(late_pointer);
        std::printf("destructor: %d\n", e == cudaSuccess || e == cudaErrorCudartUnloading);
    }
} late_object;

static int forks() {
    uint32_t *p;
    int status = 0;
    CHECK(cudaMalloc(&p, 1 << 20));
    fill<<<64, 256>>>(p, 1 << 18, 9);
    CHECK(cudaDeviceSynchronize());
    pid_t child = fork();
    if (child == 0) {
        void *q;
        // No CUDA here: it must fail, and neither crash nor hang.
        _exit(cudaMalloc(&q, 1 << 20) != cudaSuccess ? 5 : 6);
    }
    waitpid(child, &status, 0);
    std::printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    std::fflush(stdout);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "adversarial", "threads", "1", nullptr);
        _exit(9);
    }
    waitpid(child, &status, 0);
    std::printf("exec %d, wrong %llu\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, count_of(p, 1 << 18, 9));
    return 0;
}

// Random work: blocks are filled by one kernel and checked by a later one, on streams that only
// events order.
static void torture(unsigned seed, double seconds, std::atomic<unsigned long long> *wrong, std::atomic<unsigned long long> *done, size_t most) {
    std::mt19937_64 random(seed);
    struct Block { uint32_t *p; size_t words; uint32_t seed; int stream; bool async; };
    std::vector<Block> live;
    cudaStream_t streams[4];
    cudaEvent_t event;
    unsigned long long *bad, n = 0;
    for (auto &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaMemset(bad, 0, 8));
    CHECK(cudaDeviceSynchronize());
    size_t held = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        if (held < most && random() % 2) {
            Block b;
            b.words = size_t(1) << (6 + random() % 17);
            b.words += random() % b.words;
            b.seed = uint32_t(random());
            b.stream = int(random() % 4);
            b.async = random() % 2;
            if (b.async) CHECK(cudaMallocAsync(&b.p, b.words * 4, streams[b.stream]));
            else CHECK(cudaMalloc(&b.p, b.words * 4));
            if (random() % 64 == 0) spin<<<1, 1, 0, streams[b.stream]>>>(random() % 3000000);
            fill<<<32, 256, 0, streams[b.stream]>>>(b.p, b.words, b.seed);
            held += b.words * 4;
            live.push_back(b);
        } else if (!live.empty()) {
            size_t i = random() % live.size();
            Block b = live[i];
            live[i] = live.back();
            live.pop_back();
            int on = int(random() % 4);
            CHECK(cudaEventRecord(event, streams[b.stream]));
            CHECK(cudaStreamWaitEvent(streams[on], event, 0));
            verify<<<32, 256, 0, streams[on]>>>(b.p, b.words, b.seed, bad);
            // What is written last would be seen in somebody else's block.
            fill<<<32, 256, 0, streams[on]>>>(b.p, b.words, ~b.seed);
            // Memory of cudaMallocAsync is freed in a stream's order: the driver's cudaFree does
            // not wait for its users.
            if (b.async) CHECK(cudaFreeAsync(b.p, streams[on]));
            else CHECK(cudaFree(b.p));
            held -= b.words * 4;
            ++*done;
        }
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&n, bad, 8, cudaMemcpyDeviceToHost));
    *wrong += n;
    for (Block &b : live) CHECK(cudaFree(b.p));
}

// Keeps 64 KiB in each thread's local memory: some 18 GB, as an H200 has it for all threads that it
// could run at once.
__global__ void deep(unsigned words, unsigned long long *bad) {
    uint32_t mine[1 << 14];
    for (unsigned i = 0; i < words; i++) mine[i * 7 % words] = i;
    for (unsigned i = 0; i < words; i++) {
        if (mine[i * 7 % words] != i) atomicAdd(bad, 1ull);
    }
}

// A launch that needs much local memory, on a device that was full of what the program has freed.
static int local() {
    std::vector<void *> all;
    void *p;
    unsigned long long *bad, wrong = 1;
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaMemset(bad, 0, 8));
    while (cudaMalloc(&p, size_t(1) << 30) == cudaSuccess) all.push_back(p);
    cudaGetLastError();
    for (void *q : all) CHECK(cudaFree(q));
    deep<<<4, 32>>>((1 << 14) - 1, bad);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(&wrong, bad, 8, cudaMemcpyDeviceToHost));
    std::printf("wrong %llu\n", wrong);
    return wrong != 0;
}

int main(int argc, char **argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    const double seconds = argc > 2 ? std::atof(argv[2]) : 5;
    if (what == "late") return late(false);
    if (what == "late_async") return late(true);
    if (what == "capture") return capture();
    if (what == "capture_free") return capture_free();
    if (what == "reset") return reset();
    if (what == "fork") return forks();
    if (what == "local") return local();
    if (what == "destructor") { CHECK(cudaMalloc(&late_pointer, 1 << 20)); std::printf("wrong 0\n"); return 0; }
    if (what == "threads" || what == "torture") {
        std::atomic<unsigned long long> wrong{0}, done{0};
        std::vector<std::thread> all;
        const int count = what == "threads" ? 16 : 4;
        for (int i = 0; i < count; i++) all.emplace_back(torture, 17u + i, seconds, &wrong, &done, size_t(1) << (what == "threads" ? 28 : 31));
        for (auto &t : all) t.join();
        std::printf("wrong %llu\n", wrong.load());
        std::fprintf(stderr, "%llu blocks\n", done.load());
        return wrong.load() != 0;
    }
    return 2;
}

// Kernel-level torture of gpumem on a real GPU.
//
//   torture [seconds=60] [threads=4] [limit MiB=6144] [seed=1] [break]
//
// Every block is filled by a kernel with a pattern of its owner's id, and every word of it is
// compared by a kernel right before it is freed. Some kernels spin for a millisecond before they
// touch memory, so that memory handed on too early is caught in the act: the old owner's late check
// finds the new owner's words, or its late fill destroys them. Blocks are freed on their own
// stream, on another stream, after record_stream, in the order of the stream they came from, and by
// another thread; streams are created, used and destroyed on the way with work pending; a limit on
// mapped memory makes large requests stitch. Counts every wrong word, every error and every refused
// request; exits with 1 when there is any corruption or error. With `break` it frees some blocks on
// a stream that is not ordered after their last use, which no allocator can make good: the
// corruption that follows must be found, or the torture is no proof.
#include <gpumem.h>

#include <cuda_runtime.h>

#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

typedef unsigned long long u64;

// ---- kernels ------------------------------------------------------------------------------------

struct Finding { u64 id, address, word, expected, found; };
enum { FINDINGS = 16 };
struct Report { u64 wrong_words, wrong_blocks; unsigned findings; Finding finding[FINDINGS]; };

__device__ __forceinline__ unsigned pattern(u64 id, u64 word) {
    u64 x = id * 0x9E3779B97F4A7C15ull + word;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    return (unsigned)(x >> 32);
}

__device__ __forceinline__ void spin(unsigned nanoseconds) {
    if (nanoseconds == 0) return;
    u64 start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

// The last bytes of a size that is no multiple of 4 hold the first bytes of the next word
// (little-endian), so that any prefix of a block is a block with the same id.
__global__ void fill(unsigned char *p, size_t bytes, u64 id, unsigned delay) {
    spin(delay);
    const size_t words = bytes / 4, stride = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned *w = (unsigned *)p;
    for (size_t i = first; i < words; i += stride) w[i] = pattern(id, i);
    if (first < bytes % 4) p[words * 4 + first] = (unsigned char)(pattern(id, words) >> (8 * first));
}

__global__ void check(const unsigned char *p, size_t bytes, u64 id, unsigned delay, Report *report) {
    spin(delay);
    const size_t words = bytes / 4, stride = (size_t)gridDim.x * blockDim.x;
    const size_t first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned *w = (const unsigned *)p;
    u64 wrong = 0, at = 0;
    unsigned expected = 0, found = 0;
    for (size_t i = first; i < words; i += stride) {
        const unsigned want = pattern(id, i), have = __ldcg(w + i);
        if (want != have) {
            if (wrong++ == 0) at = i, expected = want, found = have;
        }
    }
    if (first < bytes % 4) {
        const unsigned char want = (unsigned char)(pattern(id, words) >> (8 * first)), have = p[words * 4 + first];
        if (want != have) {
            if (wrong++ == 0) at = words, expected = want, found = have;
        }
    }
    if (wrong) {
        atomicAdd(&report->wrong_words, wrong);
        const unsigned slot = atomicAdd(&report->findings, 1u);
        if (slot < FINDINGS) report->finding[slot] = Finding{id, (u64)p, at, expected, found};
    }
}

// ---- shared state -------------------------------------------------------------------------------

static std::atomic<bool> stop{false};
static std::atomic<u64> errors{0}, next_id{1};
static std::atomic<u64> n_alloc{0}, n_free{0}, n_cross{0}, n_recorded{0}, n_origin{0}, n_handed{0}, n_realloc{0},
    n_streams{0}, n_big{0}, n_trim{0}, n_refused{0}, n_retried{0}, n_delayed{0}, bytes_checked{0};
static std::atomic<int64_t> live_bytes{0};
static size_t limit_bytes;
static bool broken = false;
static Report *report;  // device memory that is not gpumem's

static void failed(const char *what, const char *why, int line) {
    static std::mutex m;
    std::lock_guard<std::mutex> lock(m);
    if (errors.fetch_add(1) < 20) fprintf(stderr, "torture: line %d: %s: %s\n", line, what, why);
    stop = true;
}

#define CUDA(call)                                                                  \
    do {                                                                            \
        cudaError_t e_ = (call);                                                    \
        if (e_ != cudaSuccess) failed(#call, cudaGetErrorString(e_), __LINE__);     \
    } while (0)

static void gpumem_failed(const char *what, gpumem_status s, int line) {
    char text[1024] = "";
    gpumem_last_error(text, sizeof text);
    char why[1200];
    snprintf(why, sizeof why, "%s: %s", gpumem_status_name(s), text);
    failed(what, why, line);
}

#define GPUMEM(call)                                              \
    do {                                                          \
        gpumem_status s_ = (call);                                \
        if (s_ != GPUMEM_OK) gpumem_failed(#call, s_, __LINE__);  \
    } while (0)

struct Block {
    void *ptr = nullptr;
    size_t bytes = 0;
    u64 id = 0;
    int origin = -1;  // index of the stream it was allocated on, -1 when that one is gone or another thread's
    int stream = 0;   // index of the stream that has seen all of its work
};

struct Handed { Block block; cudaEvent_t done; };
static std::mutex mailbox_mutex;
static std::deque<Handed> mailbox;
static std::atomic<int64_t> mailbox_bytes{0};

// ---- one host thread ----------------------------------------------------------------------------

class Worker {
  public:
    Worker(int number, u64 seed, int64_t share) : number_(number), share_(share), random_(seed * 1000003 + number) {}

    void run() {
        CUDA(cudaSetDevice(0));
        for (int i = 0; i < 3; i++) streams_.push_back(new_stream());
        // The default streams too: the legacy one on one thread, the per-thread one on another.
        if (number_ == 0) streams_.push_back(nullptr);
        if (number_ == 1) streams_.push_back(cudaStreamPerThread);
        pending_.assign(streams_.size(), 0);
        for (int i = 0; i < 64; i++) {
            cudaEvent_t e = nullptr;
            CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
            events_.push_back(e);
        }
        while (!stop) step();
        while (!blocks_.empty()) release(blocks_.size() - 1);
        for (auto s : streams_) CUDA(cudaStreamSynchronize(s));
        for (auto s : streams_)
            if (s && s != cudaStreamPerThread) CUDA(cudaStreamDestroy(s));
        for (auto e : events_) CUDA(cudaEventDestroy(e));
    }

  private:
    u64 below(u64 n) { return random_() % n; }
    bool chance(unsigned percent) { return below(100) < percent; }
    int any_stream() { return (int)below(streams_.size()); }

    cudaStream_t new_stream() {
        cudaStream_t s = nullptr;
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        return s;
    }

    // Makes `later` wait for what `earlier` has been given so far. An event may be recorded again
    // at once.
    void order(cudaStream_t later, cudaStream_t earlier) {
        if (later == earlier) return;
        cudaEvent_t e = events_[event_++ % events_.size()];
        CUDA(cudaEventRecord(e, earlier));
        CUDA(cudaStreamWaitEvent(later, e, 0));
    }

    unsigned delay() {
        if (!chance(12)) return 0;
        n_delayed++;
        return 1000000;  // 1 ms
    }

    // Few blocks, so that a delayed kernel is one wave and leaves room for kernels of other
    // streams.
    static unsigned grid(size_t bytes) {
        size_t n = bytes / (256 * 32) + 1;
        return (unsigned)(n > 128 ? 128 : n);
    }

    void fill_on(cudaStream_t s, const Block &b) {
        fill<<<grid(b.bytes), 256, 0, s>>>((unsigned char *)b.ptr, b.bytes, b.id, delay());
        CUDA(cudaGetLastError());
    }

    void check_on(cudaStream_t s, const Block &b, size_t bytes) {
        check<<<grid(bytes), 256, 0, s>>>((const unsigned char *)b.ptr, bytes, b.id, delay(), report);
        CUDA(cudaGetLastError());
        bytes_checked += bytes;
    }

    // Keeps the host from running away from the device.
    void submitted(int stream) {
        if (++pending_[stream] >= 24) {
            CUDA(cudaStreamSynchronize(streams_[stream]));
            pending_[stream] = 0;
        }
    }

    // Allocates or is refused. What other threads have freed and the device has not passed may be
    // in the way, so the device is waited for and the request repeated; a refusal after that is a
    // fault when less than a quarter of the limit is live, and a fact to report otherwise.
    bool allocate(size_t bytes, cudaStream_t s, void **out) {
        gpumem_status status = gpumem_malloc_async(bytes, s, out);
        for (int i = 0; i < 3 && status == GPUMEM_ERROR_OUT_OF_MEMORY; i++) {
            n_retried++;
            CUDA(cudaDeviceSynchronize());
            status = gpumem_malloc_async(bytes, s, out);
        }
        if (status == GPUMEM_OK) {
            n_alloc++;
            live_bytes += (int64_t)bytes;
            return true;
        }
        if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
            n_refused++;
            if ((size_t)live_bytes + bytes > limit_bytes / 4) return false;
        }
        gpumem_failed("gpumem_malloc_async", status, __LINE__);
        return false;
    }

    size_t any_size() {
        const u64 kind = below(100);
        if (kind < 40) return 1 + below(64 << 10);
        if (kind < 80) return (64 << 10) + below(8 << 20);
        return (8u << 20) + below(96u << 20);
    }

    bool add(size_t bytes, int stream) {
        Block b;
        if (mine_ + (int64_t)bytes > share_ || !allocate(bytes, streams_[stream], &b.ptr)) return false;
        b.bytes = bytes;
        b.id = next_id++;
        b.origin = b.stream = stream;
        fill_on(streams_[stream], b);
        submitted(stream);
        blocks_.push_back(b);
        mine_ += (int64_t)bytes;
        return true;
    }

    // Takes a block out of this thread's books.
    Block take(size_t i) {
        Block b = blocks_[i];
        blocks_[i] = blocks_.back();
        blocks_.pop_back();
        mine_ -= (int64_t)b.bytes;
        return b;
    }

    void gone(const Block &b) {
        n_free++;
        live_bytes -= (int64_t)b.bytes;
    }

    void release(size_t i) {
        const Block b = take(i);
        const int on = b.stream, to = any_stream();
        // What lies in the mailbox is in nobody's share, so there must not be much of it.
        const bool hand_over = !stop && mailbox_bytes + (int64_t)b.bytes <= (int64_t)(limit_bytes / 16);
        switch (below(hand_over ? 5 : 4)) {
        case 0:  // on the stream that used it last
            check_on(streams_[on], b, b.bytes);
            GPUMEM(gpumem_free_async(b.ptr, streams_[on]));
            break;
        case 1:  // on another stream, ordered after that
            if (broken) {
                check_on(streams_[on], b, b.bytes);
            } else {
                order(streams_[to], streams_[on]);
                check_on(streams_[to], b, b.bytes);
            }
            GPUMEM(gpumem_free_async(b.ptr, streams_[to]));
            submitted(to);
            n_cross++;
            break;
        case 2:  // still read on another stream when it is freed: record_stream keeps it until then
            order(streams_[to], streams_[on]);
            check_on(streams_[to], b, b.bytes);
            GPUMEM(gpumem_record_stream(b.ptr, streams_[to]));
            GPUMEM(gpumem_free_async(b.ptr, streams_[on]));
            submitted(to);
            n_recorded++;
            break;
        case 3:  // in the order of the stream it came from
            if (b.origin < 0) {
                check_on(streams_[on], b, b.bytes);
                GPUMEM(gpumem_free_async(b.ptr, streams_[on]));
                break;
            }
            order(streams_[b.origin], streams_[on]);
            check_on(streams_[b.origin], b, b.bytes);
            gpumem_free(b.ptr);
            submitted(b.origin);
            n_origin++;
            break;
        default: {  // by whichever thread finds it
            Handed h{b, nullptr};
            CUDA(cudaEventCreateWithFlags(&h.done, cudaEventDisableTiming));
            CUDA(cudaEventRecord(h.done, streams_[on]));
            std::lock_guard<std::mutex> lock(mailbox_mutex);
            mailbox.push_back(h);
            mailbox_bytes += (int64_t)b.bytes;
            return;
        }
        }
        submitted(on);
        gone(b);
    }

    void receive() {
        Handed h;
        {
            std::lock_guard<std::mutex> lock(mailbox_mutex);
            if (mailbox.empty()) return;
            h = mailbox.front();
            mailbox.pop_front();
            mailbox_bytes -= (int64_t)h.block.bytes;
        }
        const int s = any_stream();
        CUDA(cudaStreamWaitEvent(streams_[s], h.done, 0));
        CUDA(cudaEventDestroy(h.done));
        check_on(streams_[s], h.block, h.block.bytes);
        GPUMEM(gpumem_free_async(h.block.ptr, streams_[s]));
        submitted(s);
        gone(h.block);
        n_handed++;
    }

    // Checks a block on another stream and gives it a new owner there.
    void pass_on() {
        if (blocks_.empty()) return;
        Block &b = blocks_[below(blocks_.size())];
        const int to = any_stream();
        order(streams_[to], streams_[b.stream]);
        check_on(streams_[to], b, b.bytes);
        b.id = next_id++;
        b.stream = to;
        fill_on(streams_[to], b);
        submitted(to);
    }

    void resize() {
        if (blocks_.empty()) return;
        Block &b = blocks_[below(blocks_.size())];
        const size_t bytes = chance(50) ? b.bytes + b.bytes / 2 + 1 : any_size();
        if (mine_ - (int64_t)b.bytes + (int64_t)bytes > share_) return;
        void *moved = nullptr;
        const cudaStream_t s = streams_[b.stream];
        const gpumem_status status = gpumem_realloc_async(b.ptr, bytes, s, &moved);
        if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {  // the old block is as it was, which its next check proves
            n_refused++;
            return;
        }
        if (status != GPUMEM_OK) return gpumem_failed("gpumem_realloc_async", status, __LINE__);
        const size_t kept = bytes < b.bytes ? bytes : b.bytes;
        live_bytes += (int64_t)bytes - (int64_t)b.bytes;
        mine_ += (int64_t)bytes - (int64_t)b.bytes;
        b.ptr = moved;
        b.bytes = bytes;
        b.origin = -1;
        check_on(s, b, kept);
        b.id = next_id++;
        fill_on(s, b);
        submitted(b.stream);
        n_realloc++;
    }

    // A stream that lives for a moment: memory freed on it while its kernels still run, memory that
    // outlives it.
    void short_lived_stream() {
        cudaStream_t s = new_stream();
        const size_t bytes = any_size();
        if (mine_ + 2 * (int64_t)bytes <= share_) {
            Block b;
            if (allocate(bytes, s, &b.ptr)) {
                b.bytes = bytes;
                b.id = next_id++;
                fill_on(s, b);
                check_on(s, b, b.bytes);
                GPUMEM(gpumem_free_async(b.ptr, s));
                gone(b);
            }
            if (allocate(bytes, s, &b.ptr)) {
                b.bytes = bytes;
                b.id = next_id++;
                fill_on(s, b);
                b.stream = any_stream();
                order(streams_[b.stream], s);
                submitted(b.stream);
                blocks_.push_back(b);
                mine_ += (int64_t)bytes;
            }
        }
        CUDA(cudaStreamDestroy(s));
        n_streams++;
    }

    // Replaces one of this thread's streams, with work pending on the old one and blocks that came
    // from it alive.
    void replace_stream() {
        const int i = (int)below(3);
        const cudaStream_t old = streams_[i], fresh = new_stream();
        order(fresh, old);
        streams_[i] = fresh;
        CUDA(cudaStreamDestroy(old));
        for (auto &b : blocks_)
            if (b.origin == i) b.origin = -1;
        n_streams++;
    }

    // Blocks of middling size, every other one freed, then one as large as the gaps together: no
    // single gap holds it.
    void comb() {
        const size_t tooth = ((size_t)8 << 20) + below((size_t)24 << 20);
        const int s = any_stream();
        const size_t before = blocks_.size();
        while (blocks_.size() < before + 12 && !stop && add(tooth + below(4 << 20), s)) {}
        size_t gaps = 0;
        for (size_t i = blocks_.size(); i > before;) {
            i--;
            if ((i - before) % 2 == 0 && i < blocks_.size()) {
                gaps += blocks_[i].bytes;
                // Taken out in place, so that the neighbours stay where they are in this loop.
                const Block b = blocks_[i];
                blocks_.erase(blocks_.begin() + (long)i);
                mine_ -= (int64_t)b.bytes;
                check_on(streams_[b.stream], b, b.bytes);
                GPUMEM(gpumem_free_async(b.ptr, streams_[b.stream]));
                submitted(b.stream);
                gone(b);
            }
        }
        if (gaps > 0 && add(gaps, chance(70) ? s : any_stream())) n_big++;
    }

    void step() {
        const u64 r = below(1000);
        if (r < 400) {
            if (!add(any_size(), any_stream()) && !blocks_.empty()) release(below(blocks_.size()));
        } else if (r < 760) {
            if (!blocks_.empty()) release(below(blocks_.size()));
        } else if (r < 840) {
            receive();
        } else if (r < 920) {
            pass_on();
        } else if (r < 960) {
            resize();
        } else if (r < 975) {
            short_lived_stream();
        } else if (r < 980) {
            replace_stream();
        } else if (r < 997) {
            comb();
        } else {
            GPUMEM(gpumem_trim(chance(50) ? 0 : (size_t)below(limit_bytes)));
            n_trim++;
        }
        // Near the share: make room at once, or nothing but refusals would follow.
        while (!stop && mine_ > share_ * 9 / 10 && !blocks_.empty()) release(below(blocks_.size()));
    }

    int number_;
    int64_t share_, mine_ = 0;
    std::mt19937_64 random_;
    std::vector<cudaStream_t> streams_;
    std::vector<int> pending_;
    std::vector<cudaEvent_t> events_;
    size_t event_ = 0;
    std::vector<Block> blocks_;
};

// ---- the whole ----------------------------------------------------------------------------------

static gpumem_stats stats() {
    gpumem_stats s;
    memset(&s, 0, sizeof s);
    s.size = sizeof s;
    GPUMEM(gpumem_stats_get(0, &s));
    return s;
}

// What only stitching can satisfy: with a limit of 1 GiB, fifteen blocks of 64 MiB, every other one
// freed, then 256 MiB. Alternately the large block is for the stream of the freed ones and for
// another, and kernels still read the freed ones when it is asked for. The blocks in between must
// come through unharmed.
static void stitch_rounds(int rounds) {
    const size_t tooth = (size_t)64 << 20, large = (size_t)256 << 20;
    cudaStream_t s[2];
    for (auto &stream : s) CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GPUMEM(gpumem_trim(0));
    GPUMEM(gpumem_device_limit_set(0, (size_t)1 << 30));
    const u64 before = stats().stitches;
    for (int round = 0; round < rounds && !stop; round++) {
        const cudaStream_t other = s[round % 2];
        void *block[15] = {}, *big = nullptr;
        const u64 first = next_id.fetch_add(16);
        for (int i = 0; i < 15 && !stop; i++) {
            GPUMEM(gpumem_malloc_async(tooth, s[0], &block[i]));
            if (!stop) fill<<<128, 256, 0, s[0]>>>((unsigned char *)block[i], tooth, first + i, 0);
        }
        for (int i = 1; i < 15 && !stop; i += 2) {
            check<<<64, 256, 0, s[0]>>>((const unsigned char *)block[i], tooth, first + i, 300000, report);
            GPUMEM(gpumem_free_async(block[i], s[0]));
        }
        if (stop) break;
        gpumem_status status = gpumem_malloc_async(large, other, &big);
        if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {  // GPUMEM_REUSE=settled does not wait for the other stream
            n_retried++;
            CUDA(cudaDeviceSynchronize());
            status = gpumem_malloc_async(large, other, &big);
        }
        if (status != GPUMEM_OK) {
            gpumem_failed("256 MiB from 448 MiB in gaps of 64 MiB", status, __LINE__);
            break;
        }
        fill<<<128, 256, 0, other>>>((unsigned char *)big, large, first + 15, 0);
        check<<<128, 256, 0, other>>>((const unsigned char *)big, large, first + 15, 1000000, report);
        GPUMEM(gpumem_free_async(big, other));
        for (int i = 0; i < 15; i += 2) {
            check<<<64, 256, 0, s[0]>>>((const unsigned char *)block[i], tooth, first + i, 0, report);
            GPUMEM(gpumem_free_async(block[i], s[0]));
        }
        CUDA(cudaGetLastError());
        CUDA(cudaDeviceSynchronize());
        if (round % 4 == 3) GPUMEM(gpumem_trim(0));
    }
    for (auto stream : s) CUDA(cudaStreamDestroy(stream));
    const u64 stitched = stats().stitches - before;
    printf("stitching alone: %d rounds, %llu stitches\n", rounds, stitched);
    if (stitched == 0) failed("stitch_rounds", "no request was met by stitching", __LINE__);
    GPUMEM(gpumem_device_limit_set(0, limit_bytes));
}

static double mib(u64 bytes) { return (double)bytes / (1 << 20); }

// Where a crash of the host side happened, so that a rare one need not happen twice to be
// understood.
static void crashed(int signal_number) {
    void *frames[64];
    const int n = backtrace(frames, 64);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

int main(int argc, char **argv) {
    void *warm[1];
    backtrace(warm, 1);  // loads what it needs now, not in the handler
    signal(SIGABRT, crashed);
    signal(SIGSEGV, crashed);
    const double seconds = argc > 1 ? atof(argv[1]) : 60;
    const int threads = argc > 2 ? atoi(argv[2]) : 4;
    limit_bytes = (size_t)(argc > 3 ? atoll(argv[3]) : 6144) << 20;
    const u64 seed = argc > 4 ? strtoull(argv[4], nullptr, 0) : 1;
    broken = argc > 5 && strcmp(argv[5], "break") == 0;
    if (seconds <= 0 || argc > 6 || (argc > 5 && !broken) || threads < 1 || limit_bytes < ((size_t)512 << 20)) {
        fprintf(stderr, "usage: torture [seconds > 0] [threads >= 1] [limit in MiB >= 512] [seed] [break]\n");
        return 2;
    }
    CUDA(cudaSetDevice(0));
    CUDA(cudaMalloc(&report, sizeof *report));
    CUDA(cudaMemset(report, 0, sizeof *report));
    CUDA(cudaDeviceSynchronize());
    GPUMEM(gpumem_device_limit_set(0, limit_bytes));
    if (errors) return 1;
    printf("torture: %.0f s, %d threads, limit %.0f MiB, seed %llu, backend %s\n", seconds, threads, mib(limit_bytes), seed,
           gpumem_backend_name());
    stitch_rounds(20);

    // Part of the limit may be live: the rest is for pending frees, old and new blocks of reallocs,
    // and the mailbox.
    const int64_t share = (int64_t)(limit_bytes / 3 * 2) / threads;
    std::vector<std::thread> running;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < threads; i++) running.emplace_back([=] { Worker(i, seed, share).run(); });
    auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    double next = 5;
    while (!stop && elapsed() < seconds) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (elapsed() >= next) {
            const gpumem_stats s = stats();
            printf("%6.0f s: %llu allocations, %llu frees, live %.0f MiB, mapped %.0f MiB, stitches %llu, moved %llu\n", elapsed(),
                   (u64)n_alloc, (u64)n_free, mib(s.live), mib(s.mapped), (u64)s.stitches, (u64)s.moved);
            fflush(stdout);
            next += 5;
        }
    }
    stop = true;
    for (auto &t : running) t.join();
    const double took = elapsed();

    // What was handed over and not received.
    cudaStream_t last = nullptr;
    CUDA(cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking));
    while (!mailbox.empty()) {
        const Handed h = mailbox.front();
        mailbox.pop_front();
        CUDA(cudaStreamWaitEvent(last, h.done, 0));
        CUDA(cudaEventDestroy(h.done));
        check<<<64, 256, 0, last>>>((const unsigned char *)h.block.ptr, h.block.bytes, h.block.id, 0, report);
        CUDA(cudaGetLastError());
        GPUMEM(gpumem_free_async(h.block.ptr, last));
        n_free++;
    }
    CUDA(cudaDeviceSynchronize());

    static Report found;
    CUDA(cudaMemcpy(&found, report, sizeof found, cudaMemcpyDeviceToHost));
    GPUMEM(gpumem_validate());
    const gpumem_stats before = stats();
    GPUMEM(gpumem_trim(0));
    const gpumem_stats after = stats();

    const u64 frees = n_free, allocs = n_alloc;
    printf("allocations %llu, frees %llu (on another stream %llu, after record_stream %llu, in their origin's order %llu, "
           "by another thread %llu)\n", allocs, frees, (u64)n_cross, (u64)n_recorded, (u64)n_origin, (u64)n_handed);
    printf("reallocs %llu, large requests over gaps %llu, trims %llu, streams created and destroyed %llu, delayed kernels "
           "%llu\n", (u64)n_realloc, (u64)n_big, (u64)n_trim, (u64)n_streams, (u64)n_delayed);
    printf("checked %.1f GiB; stitches %llu, extents moved %llu, growths %llu, peak mapped %.0f MiB, mapped after trim %.0f MiB\n",
           mib(bytes_checked) / 1024, (u64)before.stitches, (u64)before.moved, (u64)before.growths, mib(before.peak_mapped),
           mib(after.mapped));
    printf("retried after a device sync %llu, refused %llu\n", (u64)n_retried, (u64)n_refused);
    printf("operations per second %.0f\n", (double)(allocs + frees) / took);
    for (unsigned i = 0; i < found.findings && i < FINDINGS; i++) {
        const Finding &f = found.finding[i];
        printf("CORRUPTION: block id %llu at %#llx, word %llu: expected %08llx, found %08llx\n", f.id, f.address, f.word,
               f.expected, f.found);
    }
    if (after.allocations != 0 || allocs != frees) {
        printf("LEAK: %llu allocations are live after everything was freed\n", (u64)after.allocations);
        errors++;
    }
    if (after.mapped > before.mapped) {
        printf("TRIM: %.0f MiB mapped after trim, %.0f before\n", mib(after.mapped), mib(before.mapped));
        errors++;
    }
    printf("corrupted words %llu, errors %llu\n", found.wrong_words, (u64)errors);
    const bool good = found.wrong_words == 0 && errors == 0;
    printf("torture: %s\n", good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}

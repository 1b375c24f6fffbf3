// Devices that work in each other's pool memory while both pools stitch.
//
//   peer_torture [seconds=60] [threads=4] [limit MiB=4096] [seed=1] [break]
//
// Each block is filled by a kernel with a pattern of its owner's id and compared, every word, by
// another before it is freed; either kernel may run on a device that the block is not on. Blocks
// are copied between devices and checked there, freed and reallocated in the order of streams of
// other devices, handed to other threads, and evicted and restored. A limit on each device makes
// large requests stitch. Ends with 1 when a word is wrong, a call fails, a limit is passed, or a
// device has never stitched. With `break`, some blocks are freed before a kernel of another device
// is done with them: the torture must find that.
#include "common.cuh"

#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

static std::atomic<bool> stop{false};
static std::atomic<u64> next_id{1}, n_alloc{0}, n_free{0}, n_far{0}, n_copied{0}, n_recorded{0}, n_realloc{0}, n_moved{0}, n_handed{0},
    n_big{0}, n_trim{0}, n_refused{0}, n_retried{0}, checked{0};
static int devices;
static bool peers, broken;
static Reports *reports;

static size_t limit_of(int device, size_t limit) { return limit + (size_t)device * 512 * MiB; }
static size_t limit_base;

struct Block {
    void *ptr = nullptr;
    size_t bytes = 0;
    u64 id = 0;
    int home = 0;     // the device it is on
    int stream = 0;   // index of the stream that has seen all of its work
    bool own = true;  // freed in the order of the stream it came from: that stream is this thread's, and has been told of all use
    int origin = 0;
};

struct Handed { Block block; cudaEvent_t done; };
static std::mutex mailbox_mutex;
static std::deque<Handed> mailbox;

static std::vector<std::atomic<int64_t>> live(64);

class Worker {
  public:
    Worker(int number, u64 seed, size_t share) : number_(number), share_((int64_t)share), random_(seed * 1000003 + (u64)number) {}

    void run() {
        for (int d = 0; d < devices; d++) {
            for (int i = 0; i < 2; i++) streams_.push_back({new_stream(d), d});
            // The default streams: the legacy one on one thread, its own on another.
            if (number_ == 0) streams_.push_back({nullptr, d});
            if (number_ == 1) streams_.push_back({cudaStreamPerThread, d});
            CUDA(cudaSetDevice(d));
            events_.emplace_back(32);
            for (auto &e : events_.back()) CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        }
        mine_.assign((size_t)devices, 0);
        pending_.assign(streams_.size(), 0);
        while (!stop) step();
        while (!blocks_.empty()) release(blocks_.size() - 1);
        for (size_t i = 0; i < streams_.size(); i++) wait(i);
        for (auto &s : streams_)
            if (s.s && s.s != cudaStreamPerThread) CUDA(cudaStreamDestroy(s.s));
    }

  private:
    struct Stream { cudaStream_t s; int device; };

    u64 below(u64 n) { return random_() % n; }
    bool chance(unsigned percent) { return below(100) < percent; }
    int any_stream() { return (int)below(streams_.size()); }
    // Kernels of other devices need peer access.
    int stream_for(int home) {
        for (;;) {
            const int i = any_stream();
            if (peers || streams_[(size_t)i].device == home) return i;
        }
    }
    const Stream &at(int i) { return streams_[(size_t)i]; }

    // Makes the stream's device current where the handle alone does not say which is meant; else
    // any.
    gpumem_stream named(int i) {
        const Stream &s = at(i);
        const bool is_default = s.s == nullptr || s.s == cudaStreamPerThread;
        CUDA(cudaSetDevice(is_default ? s.device : (int)below((u64)devices)));
        return handle(s.s);
    }

    void wait(size_t i) {
        CUDA(cudaSetDevice(streams_[i].device));
        CUDA(cudaStreamSynchronize(streams_[i].s));
    }

    // Makes `later` wait for what `earlier` has been given so far.
    void order(int later, int earlier) {
        if (later == earlier) return;
        auto &events = events_[(size_t)at(earlier).device];
        const cudaEvent_t e = events[event_++ % events.size()];
        CUDA(cudaSetDevice(at(earlier).device));
        CUDA(cudaEventRecord(e, at(earlier).s));
        CUDA(cudaSetDevice(at(later).device));
        CUDA(cudaStreamWaitEvent(at(later).s, e, 0));
    }

    unsigned delay() { return chance(10) ? 1000000 : 0; }

    void filled(int i, const Block &b) {
        if (at(i).device != b.home) n_far++;
        fill_on(at(i).device, at(i).s, b.ptr, b.bytes, b.id, delay());
        submitted(i);
    }

    void compare(int i, const Block &b, size_t bytes) {
        if (at(i).device != b.home) n_far++;
        check_on(at(i).device, at(i).s, b.ptr, bytes, b.id, *reports, delay());
        checked += bytes;
        submitted(i);
    }

    // Keeps the host from running away from the devices.
    void submitted(int i) {
        if (++pending_[(size_t)i] < 24) return;
        wait((size_t)i);
        pending_[(size_t)i] = 0;
    }

    bool allocate(size_t bytes, int stream, Block *out, unsigned flags = 0) {
        const int home = at(stream).device;
        if (mine_[(size_t)home] + (int64_t)bytes > share_) return false;
        gpumem_status status = GPUMEM_OK;
        for (int i = 0; i < 4; i++) {
            if (i > 0) {
                n_retried++;
                sync_all(devices);
            }
            gpumem_malloc_options o;
            GPUMEM_INIT(&o);
            o.bytes = bytes;
            o.stream = named(stream);
            o.flags = flags;
            status = gpumem_malloc_with(&o, &out->ptr);
            if (status != GPUMEM_ERROR_OUT_OF_MEMORY) break;
        }
        if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
            n_refused++;
            if ((size_t)live[(size_t)home] + bytes > limit_of(home, limit_base) / 4) return false;
        }
        OWN(status);
        n_alloc++;
        out->bytes = bytes;
        out->home = home;
        out->stream = out->origin = stream;
        out->own = true;
        live[(size_t)home] += (int64_t)bytes;
        mine_[(size_t)home] += (int64_t)bytes;
        return true;
    }

    bool add(size_t bytes, int stream, unsigned flags = 0) {
        Block b;
        if (!allocate(bytes, stream, &b, flags)) return false;
        b.id = next_id++;
        filled(stream, b);
        blocks_.push_back(b);
        return true;
    }

    size_t any_size() {
        const u64 kind = below(100);
        if (kind < 40) return 4 + below(64 << 10);
        if (kind < 80) return (64 << 10) + below(8 << 20);
        return (8u << 20) + below(64u << 20);
    }

    void gone(const Block &b) {
        n_free++;
        live[(size_t)b.home] -= (int64_t)b.bytes;
    }

    void free_on(const Block &b, int i) {
        OWN(gpumem_free_async(b.ptr, named(i)));
        gone(b);
    }

    Block take(size_t i) {
        const Block b = blocks_[i];
        blocks_[i] = blocks_.back();
        blocks_.pop_back();
        mine_[(size_t)b.home] -= (int64_t)b.bytes;
        return b;
    }

    void release(size_t i) {
        const Block b = take(i);
        const int on = b.stream, to = stream_for(b.home);
        bool hand_over = !stop;
        if (hand_over) {
            std::lock_guard<std::mutex> lock(mailbox_mutex);
            hand_over = mailbox.size() < 8 && b.bytes < 16 * MiB;
        }
        switch (below(hand_over ? 5 : 4)) {
        case 0:  // on the stream that used it last
            compare(on, b, b.bytes);
            free_on(b, on);
            return;
        case 1:  // on another stream, of any device, ordered after that
            if (!broken) order(to, on);
            else check_on(at(on).device, at(on).s, b.ptr, b.bytes, b.id, *reports, 3000000);
            if (!broken) compare(to, b, b.bytes);
            free_on(b, to);
            return;
        case 2:  // still read by another stream when it is freed: record_stream keeps it until then
            order(to, on);
            compare(to, b, b.bytes);
            OWN(gpumem_record_stream(b.ptr, named(to)));
            free_on(b, on);
            n_recorded++;
            return;
        case 3:  // in the order of the stream it came from
            if (!b.own) {
                compare(on, b, b.bytes);
                free_on(b, on);
                return;
            }
            order(b.origin, on);
            compare(b.origin, b, b.bytes);
            named(b.origin);
            gpumem_free(b.ptr);
            gone(b);
            return;
        default: {  // by whichever thread finds it
            Handed h{b, nullptr};
            CUDA(cudaSetDevice(at(on).device));
            CUDA(cudaEventCreateWithFlags(&h.done, cudaEventDisableTiming));
            CUDA(cudaEventRecord(h.done, at(on).s));
            std::lock_guard<std::mutex> lock(mailbox_mutex);
            mailbox.push_back(h);
        }
        }
    }

    void receive() {
        Handed h;
        {
            std::lock_guard<std::mutex> lock(mailbox_mutex);
            if (mailbox.empty()) return;
            h = mailbox.front();
            mailbox.pop_front();
        }
        const int s = stream_for(h.block.home);
        CUDA(cudaSetDevice(at(s).device));
        CUDA(cudaStreamWaitEvent(at(s).s, h.done, 0));
        CUDA(cudaEventDestroy(h.done));
        compare(s, h.block, h.block.bytes);
        free_on(h.block, s);
        n_handed++;
    }

    // Checked by another stream, of any device, which gives it a new owner.
    void pass_on() {
        if (blocks_.empty()) return;
        Block &b = blocks_[below(blocks_.size())];
        const int to = stream_for(b.home);
        order(to, b.stream);
        compare(to, b, b.bytes);
        b.id = next_id++;
        b.stream = to;
        filled(to, b);
    }

    // A copy of a block on another device, or the same. The copy and the original hold the same
    // words.
    void copy() {
        if (blocks_.empty()) return;
        const size_t n = below(blocks_.size());
        const int to = any_stream();
        Block c;
        if (!allocate(blocks_[n].bytes, to, &c)) return;
        Block &b = blocks_[n];
        order(to, b.stream);
        CUDA(cudaSetDevice(at(to).device));
        if (chance(50)) CUDA(cudaMemcpyPeerAsync(c.ptr, c.home, b.ptr, b.home, b.bytes, at(to).s));
        else CUDA(cudaMemcpyAsync(c.ptr, b.ptr, b.bytes, cudaMemcpyDefault, at(to).s));
        submitted(to);
        order(b.stream, to);
        c.id = b.id;
        compare(to, c, c.bytes);
        if (c.home != b.home) n_copied++;
        blocks_.push_back(c);
    }

    void resize() {
        if (blocks_.empty()) return;
        Block &b = blocks_[below(blocks_.size())];
        const size_t bytes = chance(50) ? b.bytes + b.bytes / 2 + 4 : any_size();
        int64_t &mine = mine_[(size_t)b.home];
        if (mine - (int64_t)b.bytes + (int64_t)bytes > share_) return;
        void *moved = nullptr;
        const gpumem_status status = gpumem_realloc_async(b.ptr, bytes, named(b.stream), &moved);
        if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
            n_refused++;
            return;
        }
        OWN(status);
        const size_t kept = bytes < b.bytes ? bytes : b.bytes;
        mine += (int64_t)bytes - (int64_t)b.bytes;
        live[(size_t)b.home] += (int64_t)bytes - (int64_t)b.bytes;
        b.ptr = moved;
        b.bytes = bytes;
        b.own = false;
        compare(b.stream, b, kept);
        b.id = next_id++;
        filled(b.stream, b);
        n_realloc++;
    }

    // Out of the device and back at the same addresses, where another device reads it.
    void evict_and_restore() {
        const int s = any_stream();
        Block b;
        const size_t bytes = 2 * MiB + below(8 << 20);
        if (!allocate(bytes, s, &b, GPUMEM_MALLOC_EVICTABLE)) return;
        b.id = next_id++;
        const int writer = stream_for(b.home), reader = stream_for(b.home);
        order(writer, s);
        filled(writer, b);
        OWN(gpumem_record_stream(b.ptr, named(writer)));
        OWN(gpumem_evict(b.ptr, nullptr, nullptr));
        gpumem_status status = gpumem_restore(b.ptr, nullptr, nullptr);
        for (int i = 0; i < 3 && status == GPUMEM_ERROR_OUT_OF_MEMORY; i++) {
            n_retried++;
            sync_all(devices);
            status = gpumem_restore(b.ptr, nullptr, nullptr);
        }
        if (status != GPUMEM_ERROR_OUT_OF_MEMORY) {
            OWN(status);
            compare(reader, b, b.bytes);
            n_moved++;
            free_on(b, reader);
        } else {
            n_refused++;
            free_on(b, s);
        }
        mine_[(size_t)b.home] -= (int64_t)b.bytes;
    }

    // Blocks of middling size, every other one freed, then one as large as the gaps together: no
    // single gap holds it.
    void comb() {
        const size_t tooth = 8 * MiB + below(16 << 20);
        const int s = any_stream();
        const size_t before = blocks_.size();
        while (blocks_.size() < before + 12 && !stop && add(tooth + below(4 << 20), s)) {}
        size_t gaps = 0;
        for (size_t i = blocks_.size(); i > before;) {
            i--;
            if ((i - before) % 2 != 0) continue;
            const Block b = blocks_[i];
            gaps += b.bytes;
            blocks_.erase(blocks_.begin() + (long)i);
            mine_[(size_t)b.home] -= (int64_t)b.bytes;
            // By another device, which is still at it when the block is free.
            const int reader = stream_for(b.home);
            order(reader, b.stream);
            compare(reader, b, b.bytes);
            free_on(b, reader);
        }
        if (gaps > 0 && add(gaps, s)) n_big++;
    }

    void step() {
        const u64 r = below(1000);
        if (r < 350) {
            if (!add(any_size(), any_stream()) && !blocks_.empty()) release(below(blocks_.size()));
        } else if (r < 690) {
            if (!blocks_.empty()) release(below(blocks_.size()));
        } else if (r < 760) {
            receive();
        } else if (r < 850) {
            pass_on();
        } else if (r < 920) {
            copy();
        } else if (r < 960) {
            resize();
        } else if (r < 970) {
            evict_and_restore();
        } else if (r < 996) {
            comb();
        } else {
            OWN(gpumem_device_trim((int)below((u64)devices), chance(50) ? 0 : (size_t)below(limit_base)));
            n_trim++;
        }
        // Near the share of a device: make room at once, or nothing but refusals would follow.
        for (int d = 0; d < devices; d++)
            while (!stop && mine_[(size_t)d] > share_ * 9 / 10 && !blocks_.empty()) release(below(blocks_.size()));
    }

    int number_;
    int64_t share_;
    std::mt19937_64 random_;
    std::vector<Stream> streams_;
    std::vector<int> pending_;
    std::vector<std::vector<cudaEvent_t>> events_;
    size_t event_ = 0;
    std::vector<Block> blocks_;
    std::vector<int64_t> mine_;
};

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
    const int threads = argc > 2 ? std::atoi(argv[2]) : 4;
    limit_base = (size_t)(argc > 3 ? std::atoll(argv[3]) : 4096) * MiB;
    const u64 seed = argc > 4 ? std::strtoull(argv[4], nullptr, 0) : 1;
    broken = argc > 5 && std::strcmp(argv[5], "break") == 0;
    if (seconds <= 0 || threads < 1 || limit_base < 512 * MiB || argc > 6 || (argc > 5 && !broken)) {
        std::fprintf(stderr, "usage: peer_torture [seconds > 0] [threads >= 1] [limit in MiB >= 512] [seed] [break]\n");
        return 2;
    }
    if (std::getenv("GPUMEM_BACKEND") == nullptr) setenv("GPUMEM_BACKEND", "cuda", 1);
    devices = devices_or_skip(2);
    peers = all_peers(devices);
    if (!peers) std::printf("no peer access: only copies cross devices\n");
    reports = new Reports(devices);
    for (int d = 0; d < devices; d++) OWN(gpumem_device_limit_set(d, limit_of(d, limit_base)));
    const size_t share = limit_base / 3 * 2 / (size_t)threads;
    const double start = now();
    std::vector<std::thread> running;
    for (int i = 0; i < threads; i++) running.emplace_back([=] { Worker(i, seed, share).run(); });
    double next = 10;
    std::vector<size_t> over((size_t)devices, 0);
    while (now() - start < seconds) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        for (int d = 0; d < devices; d++) {
            const gpumem_stats s = stats_of(d);
            if (s.mapped > limit_of(d, limit_base)) over[(size_t)d] = s.mapped;
            if (now() - start >= next) {
                std::printf("%5.0f s, device %d: %llu mallocs, live %llu MiB, mapped %llu MiB, stitches %llu, moved %llu\n", now() - start,
                            d, (u64)s.mallocs, (u64)(s.live / MiB), (u64)(s.mapped / MiB), (u64)s.stitches, (u64)s.moved);
                std::fflush(stdout);
            }
        }
        if (now() - start >= next) next += 10;
    }
    stop = true;
    for (auto &t : running) t.join();
    while (!mailbox.empty()) {
        const Handed h = mailbox.front();
        mailbox.pop_front();
        CUDA(cudaEventSynchronize(h.done));
        cudaStream_t s = new_stream(h.block.home);
        check_on(h.block.home, s, h.block.ptr, h.block.bytes, h.block.id, *reports);
        OWN(gpumem_free_async(h.block.ptr, handle(s)));
        CUDA(cudaStreamSynchronize(s));
        n_free++;
    }
    sync_all(devices);
    const u64 wrong = reports->wrong();
    OWN(gpumem_validate());
    bool good = wrong == 0;
    u64 stitches = 0;
    for (int d = 0; d < devices; d++) {
        const gpumem_stats before = stats_of(d);
        OWN(gpumem_device_trim(d, 0));
        sync_all(devices);
        OWN(gpumem_device_trim(d, 0));
        const gpumem_stats after = stats_of(d);
        stitches += before.stitches;
        std::printf("device %d: stitches %llu, extents moved %llu, growths %llu, peak mapped %llu MiB of %llu, live in the end %llu, mapped after "
                    "trim %llu MiB\n", d, (u64)before.stitches, (u64)before.moved, (u64)before.growths, (u64)(before.peak_mapped / MiB),
                    (u64)(limit_of(d, limit_base) / MiB), (u64)after.live, (u64)(after.mapped / MiB));
        if (before.stitches == 0 && seconds >= 10) {
            std::printf("device %d has never stitched: the run proves nothing\n", d);
            good = false;
        }
        if (over[(size_t)d]) {
            std::printf("device %d had %zu MiB mapped, beyond its limit\n", d, over[(size_t)d] / MiB);
            good = false;
        }
        if (after.allocations != 0) {
            std::printf("device %d has %llu allocations left\n", d, (u64)after.allocations);
            good = false;
        }
    }
    std::printf("reallocs %llu, recorded %llu, handed over %llu, trims %llu, retried after a synchronisation %llu, refused %llu\n",
                (u64)n_realloc, (u64)n_recorded, (u64)n_handed, (u64)n_trim, (u64)n_retried, (u64)n_refused);
    std::printf("figure %llu allocations and %llu frees, %llu kernels on another device than the memory's, %llu copies across, %llu evicted "
                "and restored, %llu requests over gaps, %llu stitches, %.0f GiB checked, %llu wrong words\n", (u64)n_alloc, (u64)n_free, (u64)n_far,
                (u64)n_copied, (u64)n_moved, (u64)n_big, stitches, (double)checked / (1 << 30), wrong);
    std::printf("%s\n", good ? "PASS" : "FAIL");
    return good ? 0 : 1;
}

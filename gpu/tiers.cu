// Moving memory between the device, pinned host memory and a disk, on a real GPU.
//
//   tiers [DIRECTORY=.] [case ...]      cases: trips oversubscribe cycles timeline (checks), copies
//                                       sleep disk (figures); all by default
//
// DIRECTORY is on the disk to use. Prints one line per case, figures as "figure NAME VALUE UNIT",
// and exits with 1 when a case fails. GIB=N (default 32) is how much sleeps and wakes; TRIPS_GIB=N
// (default 6) is about how much makes the round trips.
#include "check.cuh"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

typedef unsigned long long u64;

static const u64 KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static void figure(const std::string &name, double value, const char *unit) {
    std::printf("figure %-44s %10.3f %s\n", name.c_str(), value, unit);
    std::fflush(stdout);
}

// ---- data ---------------------------------------------------------------------------------------

__host__ __device__ static inline unsigned char byte_at(u64 seed, u64 i) {
    u64 x = (i >> 3) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 32;
    return (unsigned char)(x >> (8 * (i & 7)));
}

__global__ void fill_kernel(unsigned char *p, u64 n, u64 seed) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) p[i] = byte_at(seed, i);
}

__global__ void check_kernel(const unsigned char *p, u64 n, u64 seed, u64 *wrong) {
    const u64 stride = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        if (p[i] != byte_at(seed, i)) atomicAdd(wrong, 1ull);
}

static u64 *wrong;

static int blocks(u64 n) { return (int)std::min<u64>((n + 255) / 256, 2048); }
static void fill(void *p, u64 n, u64 seed, cudaStream_t s) { fill_kernel<<<blocks(n), 256, 0, s>>>((unsigned char *)p, n, seed); }
static void check(const void *p, u64 n, u64 seed, cudaStream_t s) {
    check_kernel<<<blocks(n), 256, 0, s>>>((const unsigned char *)p, n, seed, wrong);
}
static u64 wrong_bytes() {
    CUDA(cudaDeviceSynchronize());
    u64 n = *wrong;
    *wrong = 0;
    return n;
}

static void *evictable(u64 bytes, u64 tag, cudaStream_t s) {
    gpumem_malloc_options o;
    GPUMEM_INIT(&o);
    o.bytes = bytes;
    o.flags = GPUMEM_MALLOC_EVICTABLE;
    o.tag = tag;
    o.stream = handle(s);
    void *p = nullptr;
    OWN(gpumem_malloc_with(&o, &p));
    return p;
}

static gpumem_move_options on(cudaStream_t s, int tier = 0) {
    gpumem_move_options o;
    GPUMEM_INIT(&o);
    o.flags = GPUMEM_MOVE_ON_STREAM;
    o.stream = handle(s);
    o.space.tier = tier;
    return o;
}

static gpumem_location where(void *p) {
    gpumem_location at;
    GPUMEM_INIT(&at);
    OWN(gpumem_location_get(p, &at));
    return at;
}

static u64 device_free() {
    size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    return free;
}

// ---- cases --------------------------------------------------------------------------------------

struct Buffer {
    void *p;
    u64 bytes, seed;
};

// 1,000 and more allocations of 1 B to 1 GiB go down to the host, on to the disk, back to the host
// and to the device.
static void trips(const std::string &) {
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    const char *env = std::getenv("TRIPS_GIB");
    const u64 budget = (env ? std::strtoull(env, nullptr, 10) : 6) * GIB;
    std::mt19937_64 rng(1);
    std::vector<Buffer> all;
    u64 total = 0;
    auto add = [&](u64 n) {
        all.push_back({evictable(n, all.size() % 4, s), n, all.size()});
        fill(all.back().p, n, all.back().seed, s);
        total += n;
    };
    add(1);
    add(GIB);
    for (int i = 0; i < 1100; i++) {
        // Each power of two as often as the next, as far as that goes.
        const u64 top = total < budget ? 29 : 22;
        add((u64)std::exp2(std::uniform_real_distribution<>(0, (double)top)(rng)) + rng() % 4096);
    }
    const struct { int tier; bool back; } way[] = {
        {GPUMEM_TIER_HOST, false}, {GPUMEM_TIER_DISK, false}, {GPUMEM_TIER_HOST, true}, {GPUMEM_TIER_GPU, true}};
    for (auto step : way) {
        const double start = now();
        for (u64 tag = 0; tag < 4; tag++) {
            gpumem_move_options o = on(s, step.tier);
            OWN(step.back ? gpumem_restore_tag(tag, &o, nullptr) : gpumem_evict_tag(tag, &o, nullptr));
        }
        figure(std::string("round trip, to tier ") + std::to_string(step.tier) + (step.back ? ", back" : ""), (double)total / (now() - start) / 1e9, "GB/s");
        for (auto &b : all) CHECK(where(b.p).space.tier == step.tier);
    }
    for (auto &b : all) check(b.p, b.bytes, b.seed, s);
    const u64 bad = wrong_bytes();
    CHECK(bad == 0, "%llu bytes of %llu are wrong", bad, total);
    for (auto &b : all) OWN(gpumem_free_async(b.p, handle(s)));
    CUDA(cudaStreamSynchronize(s));
    std::printf("%zu allocations, %.2f GiB\n", all.size(), (double)total / GIB);
}

// Buffers of three times the limit, used in skewed random order on two streams; every byte is
// checked at every use.
static void oversubscribe(const std::string &) {
    const u64 limit = 3 * GIB, each = 48 * MIB;
    const int count = (int)(3 * limit / each);
    cudaStream_t s[2];
    for (auto &one : s) CUDA(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OWN(gpumem_trim(0));
    OWN(gpumem_space_limit_set({GPUMEM_TIER_GPU, 0}, limit));
    OWN(gpumem_device_limit_set(0, limit));
    std::vector<Buffer> all;
    std::vector<u64> version(count, 0);
    std::mt19937_64 rng(7);
    for (int i = 0; i < count; i++) {
        const u64 n = each - rng() % 100000;
        all.push_back({evictable(n, 9, s[0]), n, (u64)i << 32});
        OWN(gpumem_hold(all[i].p));
        fill(all[i].p, n, all[i].seed, s[0]);
        OWN(gpumem_unhold(all[i].p, handle(s[0])));
    }
    CUDA(cudaDeviceSynchronize());
    int misses = 0;
    const int steps = 600;
    const double start = now();
    cudaEvent_t done;
    CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (int step = 0; step < steps; step++) {
        // Half of all uses are of a tenth of the buffers.
        const int i = (int)(rng() & 1 ? rng() % (count / 10) : rng() % count);
        const int k = step & 1;
        Buffer &b = all[i];
        misses += where(b.p).space.tier != GPUMEM_TIER_GPU;
        OWN(gpumem_hold(b.p));
        // Both streams in turn: each waits for what the other did last.
        CUDA(cudaEventRecord(done, s[1 - k]));
        CUDA(cudaStreamWaitEvent(s[k], done, 0));
        check(b.p, b.bytes, b.seed + version[i], s[k]);
        fill(b.p, b.bytes, b.seed + ++version[i], s[k]);
        OWN(gpumem_unhold(b.p, handle(s[k])));
    }
    CUDA(cudaDeviceSynchronize());
    figure("oversubscribed three times, uses", steps / (now() - start), "1/s");
    u64 bad = wrong_bytes();
    for (int i = 0; i < count; i++) {
        OWN(gpumem_hold(all[i].p));
        check(all[i].p, all[i].bytes, all[i].seed + version[i], s[0]);
        OWN(gpumem_unhold(all[i].p, handle(s[0])));
    }
    bad += wrong_bytes();
    CHECK(bad == 0, "%llu bytes are wrong", bad);
    CHECK(misses > steps / 5, "only %d of %d uses found their buffer elsewhere", misses, steps);
    std::printf("%d buffers, %.2f GiB over a limit of %.2f GiB, %d uses, %d of them restored\n", count, (double)count * each / GIB,
                (double)limit / GIB, steps, misses);
    for (auto &b : all) gpumem_free(b.p);
    OWN(gpumem_space_limit_set({GPUMEM_TIER_GPU, 0}, UINT64_MAX));
    OWN(gpumem_device_limit_set(0, 0));
    CUDA(cudaDeviceSynchronize());
}

static u64 files_in(const std::string &dir) {
    u64 bytes = 0;
    if (DIR *d = opendir(dir.c_str())) {
        while (dirent *e = readdir(d)) {
            if (e->d_name[0] == '.') continue;
            const std::string path = dir + "/" + e->d_name;
            struct stat st;
            if (lstat(path.c_str(), &st) == 0) bytes += S_ISDIR(st.st_mode) ? files_in(path) : (u64)st.st_blocks * 512;
        }
        closedir(d);
    }
    return bytes;
}

static u64 resident() {
    u64 total = 0, pages = 0;
    if (FILE *f = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(f, "%llu %llu", &total, &pages) != 2) pages = 0;
        std::fclose(f);
    }
    return pages * (u64)sysconf(_SC_PAGESIZE);
}

// 100 times down to the host, to the disk and back: nothing grows.
static void cycles(const std::string &dir) {
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    std::vector<Buffer> all;
    for (u64 i = 0; i < 24; i++) {
        const u64 n = (i + 1) * MIB + i * 777;
        all.push_back({evictable(n, 20 + i % 2, s), n, i});
        fill(all[i].p, n, i, s);
    }
    u64 device = 0, host = 0, disk = 0;
    for (int round = 0; round < 100; round++) {
        gpumem_move_options o = on(s), file = on(s, GPUMEM_TIER_DISK);
        OWN(gpumem_evict_tag(20, &o, nullptr));
        OWN(gpumem_evict_tag(21, &file, nullptr));
        if (round % 2) OWN(gpumem_evict_tag(20, &file, nullptr));
        if (round == 9 || round == 99) {
            CUDA(cudaDeviceSynchronize());
            if (round == 9) device = device_free(), host = resident(), disk = files_in(dir);
            else {
                CHECK(device_free() == device, "device: %lld bytes fewer", (long long)(device - device_free()));
                CHECK(resident() <= host + 4 * MIB, "host: %lld bytes more", (long long)(resident() - host));
                CHECK(files_in(dir) == disk, "disk: %lld bytes more", (long long)(files_in(dir) - disk));
                std::printf("after 10 and 100 cycles: device free %.1f MiB, %.1f MiB; resident %.1f MiB, %.1f MiB; files %.1f MiB, %.1f MiB\n",
                            device / 1048576.0, device_free() / 1048576.0, host / 1048576.0, resident() / 1048576.0,
                            disk / 1048576.0, files_in(dir) / 1048576.0);
            }
        }
        OWN(gpumem_restore_tag(20, nullptr, nullptr));
        OWN(gpumem_restore_tag(21, nullptr, nullptr));
        for (auto &b : all) check(b.p, b.bytes, b.seed, s);
    }
    const u64 bad = wrong_bytes();
    CHECK(bad == 0, "%llu bytes are wrong", bad);
    for (auto &b : all) OWN(gpumem_free_async(b.p, handle(s)));
    CUDA(cudaStreamSynchronize(s));
}

__global__ void spin(long long ticks) {
    const long long start = clock64();
    while (clock64() - start < ticks) {
    }
}

// Short kernels on another stream, before, during and after moves: how many end in each 10 ms.
static void timeline(const std::string &) {
    cudaStream_t s, busy;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    std::vector<Buffer> all;
    for (u64 i = 0; i < 16; i++) {
        all.push_back({evictable(512 * MIB, 31, s), 512 * MIB, i});
        fill(all[i].p, 512 * MIB, i, s);
    }
    OWN(gpumem_evict_tag(31, nullptr, nullptr)); // pins the memory
    OWN(gpumem_restore_tag(31, nullptr, nullptr));
    const double start = now();
    std::atomic<bool> stop{false};
    std::vector<double> ends;
    std::thread kernels([&] {
        CUDA(cudaSetDevice(0));
        while (!stop) {
            spin<<<1, 32, 0, busy>>>(150000); // about 0.1 ms
            CUDA(cudaStreamSynchronize(busy));
            ends.push_back(now() - start);
        }
    });
    auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
    double edge[4];
    rest();
    edge[0] = now() - start;
    OWN(gpumem_evict_tag(31, nullptr, nullptr));
    edge[1] = now() - start;
    rest();
    edge[2] = now() - start;
    OWN(gpumem_restore_tag(31, nullptr, nullptr));
    edge[3] = now() - start;
    rest();
    stop = true;
    kernels.join();
    const double bin = 0.01, end = now() - start;
    std::vector<int> bins((size_t)(end / bin) + 1, 0);
    for (double t : ends) bins[(size_t)(t / bin)]++;
    std::printf("kernels of 0.1 ms on another stream that ended in each 10 ms; evict from %.0f to %.0f ms, restore from %.0f to %.0f ms\n",
                edge[0] * 1e3, edge[1] * 1e3, edge[2] * 1e3, edge[3] * 1e3);
    for (size_t i = 0; i < bins.size(); i++) {
        const double t = ((double)i + 0.5) * bin;
        const char mark = t > edge[0] && t < edge[1] ? 'v' : t > edge[2] && t < edge[3] ? '^' : ' ';
        std::printf("%c%d%s", mark, bins[i], i % 20 == 19 ? "\n" : " ");
    }
    std::printf("\n");
    auto rate = [&](double from, double to) {
        return std::count_if(ends.begin(), ends.end(), [&](double t) { return t >= from && t < to; }) / (to - from);
    };
    const double calm = rate(0, edge[0]), out = rate(edge[0], edge[1]), in = rate(edge[2], edge[3]);
    figure("kernels while nothing moves", calm, "1/s");
    figure("kernels during the evict", out, "1/s");
    figure("kernels during the restore", in, "1/s");
    double worst = 0, last = 0;
    for (double t : ends) worst = std::max(worst, t - last), last = t;
    figure("longest time without a kernel's end", worst * 1e3, "ms");
    CHECK(out > calm / 4 && in > calm / 4, "kernels stood still during a move");
    for (auto &b : all) check(b.p, b.bytes, b.seed, s);
    CHECK(wrong_bytes() == 0);
    for (auto &b : all) OWN(gpumem_free_async(b.p, handle(s)));
    CUDA(cudaStreamSynchronize(s));
}

// ---- figures ------------------------------------------------------------------------------------

static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

// Evict and restore next to plain pinned copies of the same bytes, in turns.
static void copies(const std::string &) {
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (u64 each : {GIB, 64 * MIB, 4 * MIB}) {
        const int count = (int)std::min<u64>(4 * GIB / each, 128);
        const u64 total = each * (u64)count;
        void *plain = nullptr;
        char *pinned = nullptr;
        CUDA(cudaMalloc(&plain, total));
        CUDA(cudaHostAlloc(&pinned, total, cudaHostAllocDefault));
        std::vector<void *> all;
        for (int i = 0; i < count; i++) {
            all.push_back(evictable(each, 41, s));
            fill(all.back(), each, (u64)i, s);
        }
        CUDA(cudaDeviceSynchronize());
        OWN(gpumem_evict_tag(41, nullptr, nullptr)); // pins the memory
        OWN(gpumem_restore_tag(41, nullptr, nullptr));
        std::vector<double> out, in, down, up;
        for (int round = 0; round < 9; round++) {
            auto time = [&](std::vector<double> &into, auto call) {
                const double start = now();
                call();
                into.push_back(now() - start);
            };
            auto copy = [&](bool back) {
                for (int i = 0; i < count; i++) {
                    void *d = (char *)plain + each * i, *h = pinned + each * i;
                    CUDA(cudaMemcpyAsync(back ? d : h, back ? h : d, each, cudaMemcpyDefault, s));
                }
                CUDA(cudaStreamSynchronize(s));
            };
            time(down, [&] { copy(false); });
            time(out, [&] { OWN(gpumem_evict_tag(41, nullptr, nullptr)); });
            time(up, [&] { copy(true); });
            time(in, [&] { OWN(gpumem_restore_tag(41, nullptr, nullptr)); });
        }
        const std::string name = std::to_string(count) + " x " + std::to_string(each / MIB) + " MiB";
        figure("plain copy to the host, " + name, total / median(down) / 1e9, "GB/s");
        figure("evict, " + name, total / median(out) / 1e9, "GB/s");
        figure("evict over plain, " + name, median(down) / median(out), "x");
        figure("plain copy to the device, " + name, total / median(up) / 1e9, "GB/s");
        figure("restore, " + name, total / median(in) / 1e9, "GB/s");
        figure("restore over plain, " + name, median(up) / median(in), "x");
        for (int i = 0; i < count; i++) check(all[i], each, (u64)i, s);
        CHECK(wrong_bytes() == 0);
        for (void *p : all) OWN(gpumem_free_async(p, handle(s)));
        CUDA(cudaStreamSynchronize(s));
        OWN(gpumem_trim(0));
        CUDA(cudaFree(plain));
        CUDA(cudaFreeHost(pinned));
    }
}

// A model of 32 GiB sleeps and wakes by its tag; the time of its copies alone is taken from chunks
// of pinned memory.
static void sleep_and_wake(const std::string &) {
    const char *env = std::getenv("GIB");
    const u64 total = (env ? std::strtoull(env, nullptr, 10) : 32) * GIB;
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    // As weights are: some large, many small.
    std::vector<Buffer> all;
    u64 sum = 0;
    std::mt19937_64 rng(3);
    while (sum < total) {
        const u64 sizes[] = {512 * MIB, 128 * MIB, 128 * MIB, 32 * MIB, 32 * MIB, 8 * KIB, 8 * KIB};
        const u64 n = std::min(sizes[rng() % 7], total - sum);
        all.push_back({evictable(n, 51, s), n, (u64)all.size()});
        fill(all.back().p, n, all.back().seed, s);
        sum += n;
    }
    CUDA(cudaDeviceSynchronize());
    const double first = now();
    OWN(gpumem_evict_tag(51, nullptr, nullptr));
    figure("first sleep, which pins the memory", now() - first, "s");
    OWN(gpumem_restore_tag(51, nullptr, nullptr));
    // What plain copies take: 4 GiB of pinned memory, as often as needed.
    char *pinned = nullptr;
    const u64 part = 4 * GIB;
    CUDA(cudaHostAlloc(&pinned, part, cudaHostAllocDefault));
    std::vector<double> sleeps, wakes, down, up;
    for (int round = 0; round < 5; round++) {
        for (int back = 0; back < 2; back++) {
            double start = now();
            u64 at = 0;
            for (auto &b : all) {
                if (at + b.bytes > part) at = 0;
                void *h = pinned + at;
                CUDA(cudaMemcpyAsync(back ? b.p : h, back ? h : b.p, b.bytes, cudaMemcpyDefault, s));
                at += (b.bytes + 255) / 256 * 256;
            }
            CUDA(cudaStreamSynchronize(s));
            (back ? up : down).push_back(now() - start);
        }
        for (auto &b : all) fill(b.p, b.bytes, b.seed, s);
        CUDA(cudaStreamSynchronize(s));
        double start = now();
        OWN(gpumem_evict_tag(51, nullptr, nullptr));
        sleeps.push_back(now() - start);
        start = now();
        OWN(gpumem_restore_tag(51, nullptr, nullptr));
        wakes.push_back(now() - start);
        for (auto &b : all) check(b.p, b.bytes, b.seed, s);
    }
    const u64 bad = wrong_bytes();
    CHECK(bad == 0, "%llu bytes are wrong", bad);
    std::printf("%zu allocations, %.1f GiB\n", all.size(), (double)sum / GIB);
    figure("sleep", median(sleeps), "s");
    figure("its copies", median(down), "s");
    figure("sleep over its copies", median(sleeps) / median(down), "x");
    figure("wake", median(wakes), "s");
    figure("its copies", median(up), "s");
    figure("wake over its copies", median(wakes) / median(up), "x");
    for (auto &b : all) OWN(gpumem_free_async(b.p, handle(s)));
    CUDA(cudaStreamSynchronize(s));
    OWN(gpumem_trim(0));
    CUDA(cudaFreeHost(pinned));
}

// Evict to the disk and restore from it, next to plain O_DIRECT writes and reads of one file, as dd
// makes them, at the best of several block sizes, in turns.
static void disk(const std::string &dir) {
    // What was unlinked is given back behind everybody's back; nobody's figure is to pay for
    // another's file.
    auto settle = [&] {
        for (u64 before = 0, same = 0; same < 6; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
            struct statvfs now;
            if (statvfs(dir.c_str(), &now) != 0) return;
            same = now.f_bfree == before ? same + 1 : 0;
            before = now.f_bfree;
        }
    };
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    const u64 total = GIB;
    void *p = evictable(total, 61, s);
    fill(p, total, 5, s);
    CUDA(cudaDeviceSynchronize());
    const std::string path = dir + "/tiers-plain";
    const u64 most = 16 * MIB;
    char *buffer = nullptr;
    CUDA(cudaHostAlloc(&buffer, most, cudaHostAllocDefault));
    for (u64 i = 0; i < most; i++) buffer[i] = (char)byte_at(1, i);
    auto plain = [&](u64 block, bool write) {
        const int fd = open(path.c_str(), (write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY) | O_DIRECT, 0600);
        CHECK(fd >= 0, "%s", path.c_str());
        if (write && posix_fallocate(fd, 0, (off_t)total) != 0) std::fprintf(stderr, "no space kept\n");
        const double start = now();
        for (u64 at = 0; at < total; at += block) {
            const ssize_t n = write ? pwrite(fd, buffer, block, (off_t)at) : pread(fd, buffer, block, (off_t)at);
            if (n != (ssize_t)block) {
                CHECK(false, "%zd of %llu bytes", n, block);
                break;
            }
        }
        const double took = now() - start;
        close(fd);
        return (double)total / took / 1e9;
    };
    const u64 blocks[] = {MIB, 4 * MIB, 16 * MIB};
    std::vector<double> plain_out[3], plain_in[3], out, in, hosted;
    for (int round = 0; round < 11; round++) {
        for (int i = 0; i < 3; i++) {
            plain_out[i].push_back(plain(blocks[i], true));
            plain_in[i].push_back(plain(blocks[i], false));
        }
        unlink(path.c_str());
        settle();
        gpumem_move_options o = on(s, GPUMEM_TIER_DISK);
        double start = now();
        OWN(gpumem_evict(p, &o, nullptr));
        out.push_back((double)total / (now() - start) / 1e9);
        start = now();
        OWN(gpumem_restore(p, nullptr, nullptr));
        in.push_back((double)total / (now() - start) / 1e9);
        settle();
        gpumem_move_options h = on(s, GPUMEM_TIER_HOST);
        OWN(gpumem_evict(p, &h, nullptr));
        start = now();
        OWN(gpumem_evict(p, &o, nullptr));
        hosted.push_back((double)total / (now() - start) / 1e9);
        OWN(gpumem_restore(p, nullptr, nullptr));
        settle();
        check(p, total, 5, s);
    }
    CHECK(wrong_bytes() == 0);
    // The best size and not the best of many tries: a disk's figures scatter, and gpumem has one
    // try a round.
    auto best = [](const std::vector<double> *of) { return std::max({median(of[0]), median(of[1]), median(of[2])}); };
    const double best_out = best(plain_out), best_in = best(plain_in);
    figure("plain direct writes, best block size", best_out, "GB/s");
    figure("evict to the disk", median(out), "GB/s");
    figure("host to the disk", median(hosted), "GB/s");
    figure("evict over plain", median(out) / best_out, "x");
    figure("plain direct reads, best block size", best_in, "GB/s");
    figure("restore from the disk", median(in), "GB/s");
    figure("restore over plain", median(in) / best_in, "x");
    OWN(gpumem_free_async(p, handle(s)));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaFreeHost(buffer));
}

int main(int argc, char **argv) {
    const struct { const char *name; void (*run)(const std::string &); } cases[] = {
        {"trips", trips},   {"oversubscribe", oversubscribe}, {"cycles", cycles}, {"timeline", timeline},
        {"copies", copies}, {"sleep", sleep_and_wake},        {"disk", disk}};
    char *real = realpath(argc > 1 ? argv[1] : ".", nullptr);
    if (real == nullptr) {
        std::fprintf(stderr, "%s is no directory\n", argv[1]);
        return 2;
    }
    const std::string dir = real;
    std::free(real);
    setenv("GPUMEM_DISK", dir.c_str(), 0);
    CUDA(cudaSetDevice(0));
    CUDA(cudaMallocManaged(&wrong, sizeof *wrong));
    *wrong = 0;
    for (auto &one : cases) {
        bool wanted = argc < 3;
        for (int i = 2; i < argc; i++) wanted |= !std::strcmp(argv[i], one.name);
        if (!wanted) continue;
        const int before = failures;
        const double start = now();
        one.run(dir);
        std::printf("%-5s %-16s %.1f s\n", failures == before ? "pass" : "FAIL", one.name, now() - start);
        std::fflush(stdout);
    }
    return failures ? 1 : 0;
}

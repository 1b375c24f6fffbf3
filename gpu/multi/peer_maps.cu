// Peer access after every way in which memory gets mapped, and the price of copies between devices.
//
//   peer_maps
//
// For each device as the owner: memory by growth, by growth in place (realloc), by stitching, of
// one handle, exportable, guarded, restored after eviction, and of a capture is filled by each
// other device and compared by the owner, and the other way round. Without peer access between the
// devices only copies are made. Then copies of pool memory beside copies of cudaMalloc's: as fast?
#include "common.cuh"

#include <algorithm>
#include <functional>

static int devices;
static bool peers;
static u64 next_id = 1;

static void exchange(const char *what, int owner, cudaStream_t *streams, void *p, size_t bytes, const Reports &reports) {
    for (int user = 0; user < devices; user++) {
        if (user != owner && !peers) continue;
        const u64 id = next_id++;
        fill_on(user, streams[user], p, bytes, id);
        CUDA(cudaStreamSynchronize(streams[user]));
        for (int reader = 0; reader < devices; reader++) {
            if (reader != owner && !peers) continue;
            check_on(reader, streams[reader], p, bytes, id, reports);
            CUDA(cudaStreamSynchronize(streams[reader]));
        }
    }
    const u64 wrong = reports.wrong();
    REQUIRE(wrong == 0, "%s of device %d: %llu wrong words", what, owner, wrong);
}

static void *allocate(size_t bytes, cudaStream_t s, unsigned flags) {
    gpumem_malloc_options o;
    GPUMEM_INIT(&o);
    o.bytes = bytes;
    o.stream = handle(s);
    o.flags = flags;
    void *p = nullptr;
    OWN(gpumem_malloc_with(&o, &p));
    return p;
}

static void every_map(int owner, cudaStream_t *streams, const Reports &reports) {
    const cudaStream_t s = streams[owner];
    const size_t limit = 1024 * MiB;
    OWN(gpumem_device_limit_set(owner, limit));
    struct { const char *name; unsigned flags; } kinds[] = {{"growth", 0}, {"a single handle", GPUMEM_MALLOC_SINGLE_HANDLE},
                                                           {"exportable", GPUMEM_MALLOC_EXPORTABLE}, {"guarded", GPUMEM_MALLOC_GUARD}};
    for (auto &k : kinds) {
        void *p = allocate(48 * MiB, s, k.flags);
        exchange(k.name, owner, streams, p, 48 * MiB, reports);
        OWN(gpumem_free_async(p, handle(s)));
    }
    {
        void *p = allocate(8 * MiB, s, 0);
        for (size_t size = 24 * MiB; size <= 152 * MiB; size += 32 * MiB) {
            OWN(gpumem_realloc_async(p, size, handle(s), &p));
            CUDA(cudaStreamSynchronize(s));
            exchange("realloc", owner, streams, p, size, reports);
        }
        OWN(gpumem_free_async(p, handle(s)));
    }
    // What only stitching can satisfy: fifteen blocks of 64 MiB in 1 GiB, every other one freed,
    // then 256 MiB.
    CUDA(cudaStreamSynchronize(s));
    OWN(gpumem_device_trim(owner, 0));
    const u64 before = stats_of(owner).stitches;
    for (int round = 0; round < 4; round++) {
        void *block[15];
        for (auto &b : block) b = allocate(64 * MiB, s, 0);
        for (int i = 1; i < 15; i += 2) OWN(gpumem_free_async(block[i], handle(s)));
        CUDA(cudaStreamSynchronize(s));
        void *big = allocate(256 * MiB, s, 0);
        exchange("stitched memory", owner, streams, big, 256 * MiB, reports);
        for (int i = 0; i < 15; i += 2) exchange("its neighbours", owner, streams, block[i], 64 * MiB, reports);
        OWN(gpumem_free_async(big, handle(s)));
        for (int i = 0; i < 15; i += 2) OWN(gpumem_free_async(block[i], handle(s)));
        CUDA(cudaStreamSynchronize(s));
    }
    const u64 stitches = stats_of(owner).stitches - before;
    REQUIRE(stitches > 0, "device %d has not stitched", owner);
    {
        void *p = allocate(32 * MiB, s, GPUMEM_MALLOC_EVICTABLE);
        const u64 id = next_id++;
        const int user = peers ? (owner + 1) % devices : owner;
        fill_on(user, streams[user], p, 32 * MiB, id);
        CUDA(cudaStreamSynchronize(streams[user]));
        for (int i = 0; i < 3; i++) {
            OWN(gpumem_evict(p, nullptr, nullptr));
            OWN(gpumem_restore(p, nullptr, nullptr));
            check_on(user, streams[user], p, 32 * MiB, id, reports);
            CUDA(cudaStreamSynchronize(streams[user]));
        }
        exchange("restored memory", owner, streams, p, 32 * MiB, reports);
        OWN(gpumem_free_async(p, handle(s)));
    }
    {
        // A graph that fills memory of a capture; other devices read it after each launch.
        gpumem_capture c = nullptr;
        OWN(gpumem_capture_begin(handle(s), nullptr, &c));
        CUDA(cudaSetDevice(owner));
        CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        void *p = nullptr;
        OWN(gpumem_malloc_async(40 * MiB, handle(s), &p));
        const u64 id = next_id++;
        fill_on(owner, s, p, 40 * MiB, id);
        cudaGraph_t graph;
        cudaGraphExec_t run;
        CUDA(cudaStreamEndCapture(s, &graph));
        OWN(gpumem_capture_end(c));
        CUDA(cudaGraphInstantiate(&run, graph, 0));
        for (int i = 0; i < 3; i++) {
            CUDA(cudaSetDevice(owner));
            CUDA(cudaGraphLaunch(run, s));
            CUDA(cudaStreamSynchronize(s));
            for (int reader = 0; reader < devices; reader++) {
                if (reader != owner && !peers) continue;
                check_on(reader, streams[reader], p, 40 * MiB, id, reports);
                CUDA(cudaStreamSynchronize(streams[reader]));
            }
            exchange("memory of a capture", owner, streams, p, 40 * MiB, reports);
        }
        CUDA(cudaGraphExecDestroy(run));
        CUDA(cudaGraphDestroy(graph));
        OWN(gpumem_capture_release(c));
        OWN(gpumem_free_async(p, handle(s)));
    }
    sync_all(devices);
    OWN(gpumem_device_limit_set(owner, 0));
    OWN(gpumem_device_trim(owner, 0));
    OWN(gpumem_validate());
    REQUIRE(stats_of(owner).allocations == 0, "device %d has allocations left", owner);
    std::printf("device %d: every map is reached by %s; %llu stitches\n", owner, peers ? "every device" : "its own device", stitches);
}

// GB/s of copies from one device to another.
static double copy_speed(void *to, int to_device, void *from, int from_device, size_t bytes, cudaStream_t s) {
    CUDA(cudaSetDevice(from_device));
    CUDA(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, s));
    CUDA(cudaStreamSynchronize(s));
    const double start = now();
    for (int i = 0; i < 10; i++) CUDA(cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, s));
    CUDA(cudaStreamSynchronize(s));
    return 10.0 * (double)bytes / (now() - start) / 1e9;
}

static void copies(cudaStream_t *streams, const Reports &reports) {
    const size_t bytes = 512 * MiB;
    void *plain[2], *pool[2];
    for (int d = 0; d < 2; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaMalloc(&plain[d], bytes));
        if (peers) {
            const cudaError_t e = cudaDeviceEnablePeerAccess(1 - d, 0);
            if (e == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
            else CUDA(e);
        }
        pool[d] = allocate(bytes, streams[d], 0);
    }
    const u64 id = next_id++;
    fill_on(0, streams[0], pool[0], bytes, id);
    CUDA(cudaStreamSynchronize(streams[0]));
    std::vector<double> a, b;
    for (int round = 0; round < 7; round++) {
        a.push_back(copy_speed(plain[1], 1, plain[0], 0, bytes, streams[0]));
        b.push_back(copy_speed(pool[1], 1, pool[0], 0, bytes, streams[0]));
    }
    check_on(1, streams[1], pool[1], bytes, id, reports);
    CUDA(cudaStreamSynchronize(streams[1]));
    REQUIRE(reports.wrong() == 0, "a copy across devices is wrong");
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    const double ratio = b[3] / a[3];
    std::printf("figure copies from device 0 to 1: cudaMalloc %.1f GB/s, pool %.1f GB/s, ratio %.3f\n", a[3], b[3], ratio);
    for (int d = 0; d < 2; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaFree(plain[d]));
        OWN(gpumem_free_async(pool[d], handle(streams[d])));
    }
    REQUIRE(ratio >= 0.97, "copies of pool memory are slower");
}

int main() {
    if (std::getenv("GPUMEM_BACKEND") == nullptr) setenv("GPUMEM_BACKEND", "cuda", 1);
    devices = devices_or_skip(2);
    peers = all_peers(devices);
    std::vector<cudaStream_t> streams;
    for (int d = 0; d < devices; d++) streams.push_back(new_stream(d));
    const Reports reports(devices);
    for (int d = 0; d < devices; d++) every_map(d, streams.data(), reports);
    copies(streams.data(), reports);
    std::printf("figure %d devices, peer access %s\n", devices, peers ? "between all" : "NOT between all: only copies were made");
    std::printf("PASS\n");
    return 0;
}

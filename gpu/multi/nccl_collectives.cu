// NCCL on gpumem's memory, a process a device: right results, and the speed of the same on
// cudaMalloc's memory.
//
//   nccl_collectives check [RANKS=2] [KIND...]   all-reduce, reduce-scatter, all-gather on every
//                                                kind of memory, registered with
//                                            ncclCommRegister and not, called directly and in a
//                                            graph
//   nccl_collectives speed [RANKS=2] [MiB=256]   all-reduce bandwidth on each kind, of that on
//                                                cudaMalloc's
//   nccl_collectives churn [RANKS=2] [SECONDS=10]   registered memory in use while the pool around
//                                                   it stitches and trims
//
// Kinds: cudaMalloc; pool (ordinary memory); stitched (ordinary memory out of the gaps between
// others); single (GPUMEM_MALLOC_SINGLE_HANDLE); exportable; driver (exportable memory of the
// driver's, without gpumem, at addresses that are used again as gpumem's are). ncclMemAlloc is
// never called. NCCL is loaded at run time: NCCL_LIBRARY, else libnccl.so.2. The parent starts one
// process for each device and starts neither CUDA nor NCCL itself. Leave NVLink multicast off.
#include "common.cuh"

#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <dlfcn.h>
#include <map>
#include <random>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

// ---- NCCL, loaded -------------------------------------------------------------------------------

static struct {
    decltype(&ncclGetVersion) version;
    decltype(&ncclGetUniqueId) unique_id;
    decltype(&ncclCommInitRank) init;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommRegister) add;
    decltype(&ncclCommDeregister) remove;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclGetErrorString) text;
    decltype(&ncclGetLastError) last;
} nccl;

template <class F> static void find(void *library, const char *name, F &into) {
    into = (F)dlsym(library, name);
    if (into == nullptr) {
        std::printf("skipped: this NCCL has no %s\n", name);
        std::fflush(nullptr);
        std::_Exit(SKIPPED);
    }
}

static void load_nccl() {
    const char *path = std::getenv("NCCL_LIBRARY");
    void *library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        std::printf("skipped: no NCCL: %s\n", dlerror());
        std::fflush(nullptr);
        std::_Exit(SKIPPED);
    }
    find(library, "ncclGetVersion", nccl.version);
    find(library, "ncclGetUniqueId", nccl.unique_id);
    find(library, "ncclCommInitRank", nccl.init);
    find(library, "ncclCommDestroy", nccl.destroy);
    find(library, "ncclCommRegister", nccl.add);
    find(library, "ncclCommDeregister", nccl.remove);
    find(library, "ncclAllReduce", nccl.all_reduce);
    find(library, "ncclReduceScatter", nccl.reduce_scatter);
    find(library, "ncclAllGather", nccl.all_gather);
    find(library, "ncclGetErrorString", nccl.text);
    find(library, "ncclGetLastError", nccl.last);
}

static ncclComm_t comm;

#define NCCL(call)                                                                                                     \
    do {                                                                                                               \
        const ncclResult_t r_ = (call);                                                                                \
        if (r_ != ncclSuccess) {                                                                                       \
            std::printf("%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, nccl.text(r_), comm ? nccl.last(comm) : "");  \
            std::fflush(nullptr);                                                                                      \
            std::_Exit(1);                                                                                             \
        }                                                                                                              \
    } while (0)

// ---- memory -------------------------------------------------------------------------------------

static int rank_, ranks;
static cudaStream_t stream;

enum Kind { PLAIN, POOL, STITCHED, SINGLE, EXPORTABLE, OF_DRIVER, KINDS };
static const char *const kind_names[] = {"cudaMalloc", "pool", "stitched", "single", "exportable", "driver"};

static std::vector<std::string> chosen;  // kinds to check; none: all

static bool is_chosen(Kind kind) { return chosen.empty() || std::count(chosen.begin(), chosen.end(), kind_names[kind]) > 0; }

struct Memory {
    Kind kind;
    void *p = nullptr;
    size_t bytes = 0;
    void *registered = nullptr;
    std::vector<void *> around;  // of stitched memory: the blocks whose gaps it came from
};

static void *from_pool(size_t bytes, unsigned flags) {
    gpumem_malloc_options o;
    GPUMEM_INIT(&o);
    o.bytes = bytes;
    o.stream = handle(stream);
    o.flags = flags;
    void *p = nullptr;
    gpumem_status s = gpumem_malloc_with(&o, &p);
    if (s == GPUMEM_ERROR_OUT_OF_MEMORY) {
        CUDA(cudaStreamSynchronize(stream));
        OWN(gpumem_trim(0));
        s = gpumem_malloc_with(&o, &p);
    }
    OWN(s);
    return p;
}

// What is free keeps its addresses for the next of its size.
struct Range {
    CUdeviceptr at;
    size_t size;
    CUmemGenericAllocationHandle handle;  // 0: free
};
static std::vector<Range> ranges;

static void *from_driver(size_t bytes) {
    static const auto reserve = entry<CUresult (*)(CUdeviceptr *, size_t, size_t, CUdeviceptr, u64)>("cuMemAddressReserve");
    static const auto create =
        entry<CUresult (*)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, u64)>("cuMemCreate");
    static const auto map = entry<CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, u64)>("cuMemMap");
    static const auto access = entry<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)>("cuMemSetAccess");
    const size_t size = (bytes + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
    auto range = std::find_if(ranges.begin(), ranges.end(), [&](const Range &r) { return r.size == size && r.handle == 0; });
    if (range == ranges.end()) {
        CUdeviceptr at = 0;
        DRIVER(reserve(&at, size, 0, 0, 0));
        range = ranges.insert(ranges.end(), Range{at, size, 0});
    }
    CUmemAllocationProp what = {};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = rank_;
    what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DRIVER(create(&range->handle, size, &what, 0));
    DRIVER(map(range->at, size, 0, range->handle, 0));
    CUmemAccessDesc mine = {};
    mine.location = what.location;
    mine.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(access(range->at, size, &mine, 1));
    return (void *)range->at;
}

static void to_driver(void *p) {
    static const auto unmap = entry<CUresult (*)(CUdeviceptr, size_t)>("cuMemUnmap");
    static const auto release = entry<CUresult (*)(CUmemGenericAllocationHandle)>("cuMemRelease");
    for (Range &r : ranges) {
        if (r.at != (CUdeviceptr)p) continue;
        DRIVER(unmap(r.at, r.size));
        DRIVER(release(r.handle));
        r.handle = 0;
    }
}

// Blocks side by side, every other one freed, a limit at what is mapped, and then more than any one
// gap has.
static const size_t TOOTH = 64 * MiB;
static int stitched, not_stitched;

static void stitch(Memory &m) {
    CUDA(cudaStreamSynchronize(stream));
    OWN(gpumem_device_trim(rank_, 0));
    const size_t teeth = (m.bytes + TOOTH - 1) / TOOTH + 1;
    std::vector<void *> gaps;
    for (size_t i = 0; i < 2 * teeth; i++) (i % 2 ? m.around : gaps).push_back(from_pool(TOOTH, 0));
    for (void *p : gaps) OWN(gpumem_free_async(p, handle(stream)));
    CUDA(cudaStreamSynchronize(stream));
    const gpumem_stats before = stats_of(rank_);
    OWN(gpumem_device_limit_set(rank_, before.mapped));
    const gpumem_status s = gpumem_malloc_async(m.bytes, handle(stream), &m.p);
    OWN(gpumem_device_limit_set(rank_, 0));
    if (s == GPUMEM_ERROR_OUT_OF_MEMORY) m.p = from_pool(m.bytes, 0);
    else OWN(s);
    (stats_of(rank_).stitches > before.stitches ? stitched : not_stitched)++;
}

// Smaller than a gap, it would not be stitched.
static bool possible(Kind kind, size_t bytes) { return kind != STITCHED || bytes > TOOTH; }

static Memory allocate(Kind kind, size_t bytes) {
    Memory m;
    m.kind = kind;
    m.bytes = bytes;
    switch (kind) {
    case PLAIN: CUDA(cudaMalloc(&m.p, bytes)); break;
    case POOL: m.p = from_pool(bytes, 0); break;
    case STITCHED: stitch(m); break;
    case OF_DRIVER: m.p = from_driver(bytes); break;
    case SINGLE: m.p = from_pool(bytes, GPUMEM_MALLOC_SINGLE_HANDLE); break;
    default: m.p = from_pool(bytes, GPUMEM_MALLOC_EXPORTABLE); break;
    }
    return m;
}

// How often a registration was refused, by kind. NCCL may say so, or go on without; both are within
// its contract.
static std::map<std::string, int> refused;

static void register_it(Memory &m) {
    const ncclResult_t r = nccl.add(comm, m.p, m.bytes, &m.registered);
    if (r == ncclSuccess) return;
    m.registered = nullptr;
    REQUIRE(m.kind != PLAIN, "ncclCommRegister of cudaMalloc's memory: %s", nccl.text(r));
    refused[std::string(kind_names[m.kind]) + ": " + nccl.text(r)]++;
}

static void release(Memory &m) {
    CUDA(cudaStreamSynchronize(stream));
    if (m.registered) NCCL(nccl.remove(comm, m.registered));
    if (m.kind == PLAIN) CUDA(cudaFree(m.p));
    else if (m.kind == OF_DRIVER) to_driver(m.p);
    else OWN(gpumem_free_async(m.p, handle(stream)));
    for (void *p : m.around) OWN(gpumem_free_async(p, handle(stream)));
    m.around.clear();
}

// ---- checking -----------------------------------------------------------------------------------

// What rank r sends in element i: small whole numbers, so that sums are exact.
__device__ __host__ inline float value(int r, size_t i, int salt) { return (float)((int)((i * 7 + (size_t)salt) % 1021) + 3 * r); }

__global__ void put(float *p, size_t n, int r, size_t first, int salt) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = value(r, first + i, salt);
}

// From `from` on, the sum over all ranks, or what the rank `of` sent.
__global__ void wrong_sums(const float *p, size_t n, size_t first, int ranks, int salt, u64 *wrong) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += value(r, first + i, salt);
        if (p[i] != sum) atomicAdd(wrong, 1ull);
    }
}

__global__ void wrong_parts(const float *p, size_t n, int of, int salt, u64 *wrong) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (p[i] != value(of, i, salt)) atomicAdd(wrong, 1ull);
}

static u64 *wrong_count;

static u64 wrong() {
    u64 n = 0;
    CUDA(cudaMemcpyAsync(&n, wrong_count, sizeof n, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return n;
}

// ---- the collectives ----------------------------------------------------------------------------

enum What { ALL_REDUCE, ALL_REDUCE_IN_PLACE, REDUCE_SCATTER, ALL_GATHER, WHATS };
static const char *const what_names[] = {"all-reduce", "all-reduce in place", "reduce-scatter", "all-gather"};

static void put_in(What what, void *send, void *receive, size_t n, int salt) {
    const size_t part = n / (size_t)ranks;
    float *to = (float *)(what == ALL_REDUCE_IN_PLACE ? receive : send);
    put<<<256, 256, 0, stream>>>(to, what == ALL_GATHER ? part : n, rank_, 0, salt);
    CUDA(cudaGetLastError());
    if (what != ALL_REDUCE_IN_PLACE) CUDA(cudaMemsetAsync(receive, 0xff, (what == REDUCE_SCATTER ? part : n) * 4, stream));
}

static void call(What what, void *send, void *receive, size_t n) {
    const size_t part = n / (size_t)ranks;
    switch (what) {
    case ALL_REDUCE: NCCL(nccl.all_reduce(send, receive, n, ncclFloat, ncclSum, comm, stream)); break;
    case ALL_REDUCE_IN_PLACE: NCCL(nccl.all_reduce(receive, receive, n, ncclFloat, ncclSum, comm, stream)); break;
    case REDUCE_SCATTER: NCCL(nccl.reduce_scatter(send, receive, part, ncclFloat, ncclSum, comm, stream)); break;
    default: NCCL(nccl.all_gather(send, receive, part, ncclFloat, comm, stream)); break;
    }
}

static void compare(What what, void *receive, size_t n, int salt) {
    const size_t part = n / (size_t)ranks;
    const float *p = (const float *)receive;
    switch (what) {
    case ALL_REDUCE:
    case ALL_REDUCE_IN_PLACE: wrong_sums<<<256, 256, 0, stream>>>(p, n, 0, ranks, salt, wrong_count); break;
    case REDUCE_SCATTER: wrong_sums<<<256, 256, 0, stream>>>(p, part, part * (size_t)rank_, ranks, salt, wrong_count); break;
    default:
        for (int r = 0; r < ranks; r++) wrong_parts<<<256, 256, 0, stream>>>(p + part * (size_t)r, part, r, salt, wrong_count);
    }
    CUDA(cudaGetLastError());
}

static void direct(What what, const Memory &a, const Memory &b, size_t n, int salt) {
    put_in(what, a.p, b.p, n, salt);
    call(what, a.p, b.p, n);
    compare(what, b.p, n, salt);
}

// In a graph that is launched several times, with other contents each time.
static void in_graph(What what, const Memory &a, const Memory &b, size_t n, int salt) {
    cudaGraph_t graph;
    cudaGraphExec_t run;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call(what, a.p, b.p, n);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < 3; i++) {
        put_in(what, a.p, b.p, n, salt + i);
        CUDA(cudaGraphLaunch(run, stream));
        compare(what, b.p, n, salt + i);
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(run));
    CUDA(cudaGraphDestroy(graph));
}

// A graph whose buffers are allocated while it is captured.
static int of_capture(What what, size_t n, int salt) {
    gpumem_capture c = nullptr;
    OWN(gpumem_capture_begin(handle(stream), nullptr, &c));
    cudaGraph_t graph;
    cudaGraphExec_t run;
    void *send = nullptr, *receive = nullptr, *input = from_pool(n * 4, GPUMEM_MALLOC_SINGLE_HANDLE);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OWN(gpumem_malloc_async(n * 4, handle(stream), &send));
    OWN(gpumem_malloc_async(n * 4, handle(stream), &receive));
    CUDA(cudaMemcpyAsync(what == ALL_REDUCE_IN_PLACE ? receive : send, input, n * 4, cudaMemcpyDeviceToDevice, stream));
    call(what, send, receive, n);
    CUDA(cudaStreamEndCapture(stream, &graph));
    OWN(gpumem_capture_end(c));
    CUDA(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < 3; i++) {
        put<<<256, 256, 0, stream>>>((float *)input, n, rank_, 0, salt + i);
        CUDA(cudaGetLastError());
        CUDA(cudaGraphLaunch(run, stream));
        compare(what, receive, n, salt + i);
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(run));
    CUDA(cudaGraphDestroy(graph));
    OWN(gpumem_capture_release(c));
    OWN(gpumem_free_async(send, handle(stream)));
    OWN(gpumem_free_async(receive, handle(stream)));
    OWN(gpumem_free_async(input, handle(stream)));
    CUDA(cudaStreamSynchronize(stream));
    return 3;
}

static void checks() {
    int done = 0, salt = 0;
    for (const size_t bytes : {(size_t)1 << 16, 4 * MiB, 96 * MiB}) {
        const size_t n = bytes / 4;
        for (int kind = 0; kind < KINDS; kind++) {
            if (!possible((Kind)kind, bytes) || !is_chosen((Kind)kind)) continue;
            for (int registered = 0; registered < 2; registered++) {
                Memory a = allocate((Kind)kind, bytes), b = allocate((Kind)kind, bytes);
                if (registered) {
                    register_it(a);
                    register_it(b);
                }
                for (int what = 0; what < WHATS; what++) {
                    direct((What)what, a, b, n, salt++);
                    in_graph((What)what, a, b, n, salt += 3);
                    done += 4;
                    const u64 bad = wrong();
                    REQUIRE(bad == 0, "rank %d: %s of %zu bytes on %s memory, %s: %llu wrong elements", rank_, what_names[what], bytes,
                            kind_names[kind], registered ? "registered" : "not registered", bad);
                }
                release(a);
                release(b);
            }
        }
        for (int what = 0; what < WHATS && chosen.empty(); what++) {
            done += of_capture((What)what, n, salt += 3);
            const u64 bad = wrong();
            REQUIRE(bad == 0, "rank %d: %s of %zu bytes on memory of a capture: %llu wrong elements", rank_, what_names[what], bytes, bad);
        }
    }
    CUDA(cudaStreamSynchronize(stream));
    OWN(gpumem_trim(0));
    OWN(gpumem_validate());
    REQUIRE(stats_of(rank_).allocations == 0, "rank %d: allocations are left", rank_);
    REQUIRE(stitched > 0 || !is_chosen(STITCHED), "rank %d: no buffer was stitched", rank_);
    if (rank_ != 0) return;
    std::printf("figure %d collectives with the right results, %d ranks; %d buffers stitched, %d not\n", done, ranks, stitched, not_stitched);
    for (const auto &r : refused) std::printf("figure registration refused, %s: %d times\n", r.first.c_str(), r.second);
}

// ---- speed --------------------------------------------------------------------------------------

static double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + (long)v.size() / 2, v.end());
    return v[v.size() / 2];
}

static bool speed(size_t bytes) {
    REQUIRE(possible(STITCHED, bytes), "more than %zu MiB, please", TOOTH / MiB);
    const size_t n = bytes / 4;
    const int rounds = 15, calls = 10;
    struct Row { std::string name; Memory a, b; cudaGraphExec_t run; std::vector<double> ms; };
    std::vector<Row> rows;
    // Rows that share no memory would be warm or cold in turn; each has its own and keeps it.
    for (int graph = 0; graph < 2; graph++)
        for (int registered = 0; registered < 2; registered++)
            for (int kind = 0; kind < KINDS; kind++) {
                Row r;
                r.name = std::string(kind_names[kind]) + (registered ? ", registered" : "") + (graph ? ", graph" : "");
                r.a = allocate((Kind)kind, bytes);
                r.b = allocate((Kind)kind, bytes);
                if (registered) {
                    register_it(r.a);
                    register_it(r.b);
                }
                r.run = nullptr;
                if (graph) {
                    cudaGraph_t g;
                    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                    for (int i = 0; i < calls; i++) call(ALL_REDUCE, r.a.p, r.b.p, n);
                    CUDA(cudaStreamEndCapture(stream, &g));
                    CUDA(cudaGraphInstantiate(&r.run, g, 0));
                    CUDA(cudaGraphDestroy(g));
                }
                rows.push_back(r);
            }
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    for (int round = -2; round < rounds; round++)
        for (size_t k = 0; k < rows.size(); k++) {
            // In another order each round, the same on all ranks.
            Row &r = rows[(k + (size_t)(round + 2) * 7) % rows.size()];
            CUDA(cudaEventRecord(from, stream));
            if (r.run) CUDA(cudaGraphLaunch(r.run, stream));
            else for (int i = 0; i < calls; i++) call(ALL_REDUCE, r.a.p, r.b.p, n);
            CUDA(cudaEventRecord(to, stream));
            CUDA(cudaStreamSynchronize(stream));
            float ms = 0;
            CUDA(cudaEventElapsedTime(&ms, from, to));
            if (round >= 0) r.ms.push_back(ms / calls);
        }
    bool good = true;
    for (size_t i = 0; i < rows.size(); i++) {
        // The first row of each five is cudaMalloc's, with the same registration and the same way
        // of calling.
        const double plain = median(rows[i / KINDS * KINDS].ms), mine = median(rows[i].ms);
        const double bus = (double)bytes / mine / 1e6 * 2 * (ranks - 1) / ranks, ratio = plain / mine;
        if (rank_ == 0)
            std::printf("figure all-reduce of %zu MiB, %s: %.1f GB/s bus, of cudaMalloc's %.3f\n", bytes / MiB, rows[i].name.c_str(), bus, ratio);
        if (ratio < 0.99) good = false;
    }
    for (Row &r : rows) {
        if (r.run) CUDA(cudaGraphExecDestroy(r.run));
        release(r.a);
        release(r.b);
    }
    for (const auto &r : refused)
        if (rank_ == 0) std::printf("figure registration refused, %s: %d times\n", r.first.c_str(), r.second);
    if (!good && rank_ == 0) std::printf("FAIL: a kind of memory has less than .99 of the bandwidth of cudaMalloc's\n");
    return good || rank_ != 0;
}

// ---- registered memory while the pool works -----------------------------------------------------

static void churn(double seconds) {
    const size_t bytes = 32 * MiB, n = bytes / 4;
    std::mt19937_64 random((u64)rank_ + 1);
    OWN(gpumem_device_limit_set(rank_, 2048 * MiB));
    Memory kept[2] = {allocate(SINGLE, bytes), allocate(SINGLE, bytes)};
    for (Memory &m : kept) register_it(m);
    std::vector<std::pair<void *, size_t>> others;
    size_t total = 0;
    auto drop = [&](size_t k) {
        OWN(gpumem_free_async(others[k].first, handle(stream)));
        total -= others[k].second;
        others.erase(others.begin() + (long)k);
    };
    u64 rounds = 0;
    float *vote = nullptr;
    CUDA(cudaMalloc(&vote, sizeof *vote));
    const double start = now();
    for (int salt = 0;; salt++) {
        // All ranks stop in the same round: the one that has time left asks the others to go on.
        float mine = now() - start < seconds ? 1.0f : 0.0f, all = 0;
        CUDA(cudaMemcpyAsync(vote, &mine, sizeof mine, cudaMemcpyHostToDevice, stream));
        NCCL(nccl.all_reduce(vote, vote, 1, ncclFloat, ncclMin, comm, stream));
        CUDA(cudaMemcpyAsync(&all, vote, sizeof all, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        if (all == 0) break;
        // Memory that is registered, used, deregistered and freed; the next has its addresses, or
        // its physical memory.
        Memory fresh[2] = {allocate(salt % 2 ? POOL : SINGLE, bytes), allocate(salt % 2 ? POOL : EXPORTABLE, bytes)};
        for (Memory &m : fresh) register_it(m);
        for (int i = 0; i < 24; i++) {
            const size_t want = MiB + random() % (96 * MiB);
            while (total + want > 1300 * MiB) drop(random() % others.size());
            others.emplace_back(from_pool(want, 0), want);
            total += want;
        }
        if (salt % 16 == 15) OWN(gpumem_trim(0));
        const What what = (What)(salt % WHATS);
        direct(what, kept[0], kept[1], n, salt);
        direct(what, fresh[0], fresh[1], n, salt + 1);
        const u64 bad = wrong();
        REQUIRE(bad == 0, "rank %d, round %llu, %s: %llu wrong elements", rank_, rounds, what_names[what], bad);
        for (Memory &m : fresh) release(m);
        rounds++;
    }
    while (!others.empty()) drop(others.size() - 1);
    for (Memory &m : kept) release(m);
    CUDA(cudaFree(vote));
    OWN(gpumem_validate());
    const gpumem_stats s = stats_of(rank_);
    REQUIRE(s.stitches > 0, "rank %d has not stitched", rank_);
    if (rank_ == 0)
        std::printf("figure %llu rounds on registered memory, %llu stitches, %llu extents moved meanwhile, 0 wrong elements\n", rounds,
                    (u64)s.stitches, (u64)s.moved);
}

// ---- processes ----------------------------------------------------------------------------------

static int run_rank(int argc, char **argv, int in, int out) {
    if (std::getenv("GPUMEM_BACKEND") == nullptr) setenv("GPUMEM_BACKEND", "cuda", 1);
    devices_or_skip(ranks);
    load_nccl();
    CUDA(cudaSetDevice(rank_));
    ncclUniqueId id;
    if (rank_ == 0) {
        NCCL(nccl.unique_id(&id));
        // The others get it by the parent.
        REQUIRE(write(out, &id, sizeof id) == (ssize_t)sizeof id, "the id was not written");
    } else {
        size_t got = 0;
        while (got < sizeof id) {
            const ssize_t n = read(in, (char *)&id + got, sizeof id - got);
            REQUIRE(n > 0, "rank %d: no id came", rank_);
            got += (size_t)n;
        }
    }
    stream = new_stream(rank_);
    NCCL(nccl.init(&comm, ranks, id, rank_));
    CUDA(cudaMalloc(&wrong_count, sizeof *wrong_count));
    CUDA(cudaMemset(wrong_count, 0, sizeof *wrong_count));
    CUDA(cudaDeviceSynchronize());
    int version = 0;
    NCCL(nccl.version(&version));
    if (rank_ == 0) std::printf("NCCL %d\n", version);
    bool good = true;
    const std::string mode = argv[1];
    if (mode == "check") {
        chosen.assign(argv + std::min(3, argc), argv + argc);
        checks();
    }
    else if (mode == "speed") good = speed((size_t)(argc > 3 ? std::atoi(argv[3]) : 256) * MiB);
    else churn(argc > 3 ? std::atof(argv[3]) : 10);
    CUDA(cudaStreamSynchronize(stream));
    NCCL(nccl.destroy(comm));
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    ranks = argc > 2 ? std::atoi(argv[2]) : 2;
    if ((mode != "check" && mode != "speed" && mode != "churn") || ranks < 2) {
        std::fprintf(stderr, "usage: nccl_collectives check|speed|churn [RANKS >= 2] [kinds, MiB or seconds]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    std::vector<int> to((size_t)ranks);
    std::vector<pid_t> children;
    int first[2];
    REQUIRE(pipe(first) == 0, "no pipe");
    std::fflush(nullptr);
    for (int r = 0; r < ranks; r++) {
        int pipes[2];
        REQUIRE(pipe(pipes) == 0, "no pipe");
        const pid_t child = fork();
        REQUIRE(child >= 0, "no fork");
        if (child == 0) {
            rank_ = r;
            // So that the process at the other end of a pipe is told when the writer ends.
            close(pipes[1]);
            for (int k = 0; k < r; k++) close(to[(size_t)k]);
            if (r != 0) close(first[1]);
            const int status = run_rank(argc, argv, pipes[0], first[1]);
            std::fflush(nullptr);
            _exit(status);
        }
        children.push_back(child);
        close(pipes[0]);
        to[(size_t)r] = pipes[1];
    }
    close(first[1]);
    ncclUniqueId id;
    size_t got = 0;
    while (got < sizeof id) {
        const ssize_t n = read(first[0], (char *)&id + got, sizeof id - got);
        if (n <= 0) break;
        got += (size_t)n;
    }
    if (got == sizeof id)
        for (int r = 1; r < ranks; r++)
            if (write(to[(size_t)r], &id, sizeof id) != (ssize_t)sizeof id) std::printf("rank %d has ended early\n", r);
    for (int fd : to) close(fd);
    // One that fails leaves the others waiting for it in a collective: they are ended, by number.
    int status = 0;
    for (int left = ranks; left > 0; left--) {
        int how = 0;
        const pid_t ended = wait(&how);
        const int code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        if (code != 0 && status == 0) {
            status = code;
            if (code != SKIPPED) std::printf("a rank ended with %d\n", code);
            for (pid_t c : children)
                if (c != ended) kill(c, SIGKILL);
        }
    }
    std::printf("%s\n", status == 0 ? "PASS" : status == SKIPPED ? "skipped" : "FAIL");
    return status;
}

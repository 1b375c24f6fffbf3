/* A program of the driver API: `flows HOW FLOW`. HOW is how it finds the functions: proc
 * (cuGetProcAddress), own (the same, for per-thread default streams), dlsym, or direct, when it
 * is linked to the driver (-DDIRECT). What it prints is the same with gpumem and without, but
 * for lines that begin with "# ". */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t ptr;
typedef uintptr_t handle;
typedef struct { char c[64]; } ipc;
typedef struct { int location, id, flags; } access_desc;

/* name as cuGetProcAddress knows it, version, exported name, type */
#define FUNCTIONS(X)                                                                                                           \
    X(cuInit, 2000, cuInit, (unsigned))                                                                                        \
    X(cuCtxCreate, 3020, cuCtxCreate_v2, (handle *, unsigned, int))                                                            \
    X(cuCtxDestroy, 4000, cuCtxDestroy_v2, (handle))                                                                           \
    X(cuCtxSetCurrent, 4000, cuCtxSetCurrent, (handle))                                                                        \
    X(cuCtxSynchronize, 2000, cuCtxSynchronize, (void))                                                                        \
    X(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess, (handle, unsigned))                                                  \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, (handle *, int))                                               \
    X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, (int))                                                   \
    X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, (int))                                                       \
    X(cuGreenCtxCreate, 12040, cuGreenCtxCreate, (handle *, handle, int, unsigned))                                            \
    X(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy, (handle))                                                                   \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, (size_t *, int))                                                            \
    X(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool, (handle *, int))                                            \
    X(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, (int, handle))                                                            \
    X(cuStreamCreate, 2000, cuStreamCreate, (handle *, unsigned))                                                              \
    X(cuStreamDestroy, 4000, cuStreamDestroy_v2, (handle))                                                                     \
    X(cuStreamSynchronize, 2000, cuStreamSynchronize, (handle))                                                                \
    X(cuMemAlloc, 3020, cuMemAlloc_v2, (ptr *, size_t))                                                                        \
    X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, (ptr *, size_t *, size_t, size_t, unsigned))                                  \
    X(cuMemFree, 3020, cuMemFree_v2, (ptr))                                                                                    \
    X(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, (ptr, const void *, size_t))                                                        \
    X(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, (void *, ptr, size_t))                                                              \
    X(cuMemsetD8, 3020, cuMemsetD8_v2, (ptr, unsigned char, size_t))                                                           \
    X(cuMemsetD8Async, 3020, cuMemsetD8Async, (ptr, unsigned char, size_t, handle))                                            \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2, (size_t *, size_t *))                                                               \
    X(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2, (ptr *, size_t *, ptr))                                             \
    X(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, (handle *, ptr))                                        \
    X(cuPointerGetAttribute, 4000, cuPointerGetAttribute, (void *, int, ptr))                                                  \
    X(cuPointerGetAttributes, 7000, cuPointerGetAttributes, (unsigned, int *, void **, ptr))                                   \
    X(cuPointerSetAttribute, 6000, cuPointerSetAttribute, (const void *, int, ptr))                                            \
    X(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle, (ipc *, ptr))                                                                \
    X(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2, (ptr *, ipc, unsigned))                                                \
    X(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle, (ptr))                                                                   \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync, (ptr *, size_t, handle))                                                        \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync, (ptr, handle))                                                                    \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, (ptr *, size_t, handle, handle))                                \
    X(cuMemPoolCreate, 11020, cuMemPoolCreate, (handle *, const void *))                                                       \
    X(cuMemPoolDestroy, 11020, cuMemPoolDestroy, (handle))                                                                     \
    X(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo, (handle, size_t))                                                               \
    X(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute, (handle, int, void *))                                              \
    X(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute, (handle, int, void *))                                              \
    X(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess, (handle, const access_desc *, size_t))                                    \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, (handle, int))                                                     \
    X(cuStreamBeginRecaptureToGraph, 13030, cuStreamBeginRecaptureToGraph, (handle, int, handle, void *, void *))              \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture, (handle, handle *))                                                       \
    X(cuStreamBeginCaptureToCig, 13020, cuStreamBeginCaptureToCig, (handle, void *))                                           \
    X(cuStreamEndCaptureToCig, 13020, cuStreamEndCaptureToCig, (handle))                                                       \
    X(cuGraphAddNode, 12040, cuGraphAddNode_v2, (handle *, handle, const handle *, const void *, size_t, uint64_t *))          \
    X(cuGraphNodeSetParams, 12020, cuGraphNodeSetParams, (handle, uint64_t *))                                                 \
    X(cuGraphExecNodeSetParams, 12020, cuGraphExecNodeSetParams, (handle, handle, uint64_t *))                                 \
    X(cuMemCreate, 10020, cuMemCreate, (handle *, size_t, const void *, uint64_t))                                             \
    X(cuMemRelease, 10020, cuMemRelease, (handle))                                                                             \
    X(cuMemAddressReserve, 10020, cuMemAddressReserve, (ptr *, size_t, size_t, ptr, uint64_t))                                 \
    X(cuMemMap, 10020, cuMemMap, (ptr, size_t, size_t, handle, uint64_t))                                                      \
    X(cuMemSetAccess, 10020, cuMemSetAccess, (ptr, size_t, const access_desc *, size_t))                                       \
    X(cuEventCreate, 2000, cuEventCreate, (handle *, unsigned))                                                                \
    X(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate, (handle *, handle, unsigned, int))                                \
    X(cuFuncGetAttribute, 2020, cuFuncGetAttribute, (int *, int, handle))                                                      \
    X(cuArrayCreate, 3020, cuArrayCreate_v2, (handle *, const void *))                                                         \
    X(cuLaunchKernel, 4000, cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, const void *, const void *)) \
    X(simHold, 2000, simHold, (handle))                                                                                        \
    X(simRelease, 2000, simRelease, (handle))                                                                                  \
    X(simFail, 2000, simFail, (int))                                                                                           \
    X(simGate, 2000, simGate, (int))                                                                                           \
    X(simGreedy, 2000, simGreedy, (int))                                                                                       \
    X(simNative, 2000, simNative, (void))                                                                                      \
    X(simRetained, 2000, simRetained, (int))

/* Under names of the program's own, as the functions have theirs where it is linked to them. */
#define DECLARE(name, version, exported, args) static unsigned(*name) args __asm__("flow_" #name);
FUNCTIONS(DECLARE)

#ifdef DIRECT
#define EXTERN(name, version, exported, args) extern unsigned exported##_direct args __asm__(#exported);
FUNCTIONS(EXTERN)
#define TAKE(name, version, exported, args) name = exported##_direct;
static void find(const char *how) { (void)how; FUNCTIONS(TAKE) }
#else
typedef unsigned (*get_proc_1)(const char *, void **, int, uint64_t);
typedef unsigned (*get_proc_2)(const char *, void **, int, uint64_t, int *);
static void find(const char *how) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(2); }
    if (!strcmp(how, "dlsym")) {
#define BY_NAME(name, version, exported, args) name = (unsigned(*) args)dlsym(library, #exported);
        FUNCTIONS(BY_NAME)
    } else {
        int own = !strcmp(how, "own"), status;
        get_proc_2 first = (get_proc_2)dlsym(library, "cuGetProcAddress_v2"), get = 0;
        get_proc_1 old = 0;
        if (first("cuGetProcAddress", (void **)&get, 12000, own ? 2 : 0, &status) || !get) exit(3);
        if (get("cuGetProcAddress", (void **)&old, 11030, 0, &status) || !old || (void *)old == (void *)get) exit(3);
#define BY_ASKING(name, version, exported, args)                                                                               \
    if (version % 20 == 0) get(#name, (void **)&name, version, own ? 2 : 0, &status);                                          \
    else old(#name, (void **)&name, version, own ? 2 : 0);
        FUNCTIONS(BY_ASKING)
    }
}
#endif

static handle primary;
#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
#define CODE(call) SAY("%s = %u\n", #call, call)
static void start(void) {
    CODE(cuInit(0));
    CODE(cuDevicePrimaryCtxRetain(&primary, 0));
    CODE(cuCtxSetCurrent(primary));
}
static int all(ptr p, size_t n, unsigned char want) {
    unsigned char *b = malloc(n);
    size_t i;
    if (cuMemcpyDtoH(b, p, n)) return 0;
    for (i = 0; i < n && b[i] == want; i++) {}
    free(b);
    return i == n;
}

/* ---- flows ---- */
static void basic(void) {
    ptr p = 0, q = 0;
    CODE(cuMemAlloc(&p, 3 << 20));
    CODE(cuMemsetD8(p, 7, 3 << 20));
    SAY("all %d, aligned %d\n", all(p, 3 << 20, 7), !(p & 511));
    CODE(cuMemAlloc(&q, 1000));
    CODE(cuMemsetD8(q, 9, 1000));
    SAY("both %d %d\n", all(p, 3 << 20, 7), all(q, 1000, 9));
    SAY("# native %u\n", simNative());
    CODE(cuMemFree(p + 512));
    CODE(cuMemFree(p));
    CODE(cuMemFree(p));
    CODE(cuMemFreeAsync(p, 0));
    CODE(cuMemFree(q));
    CODE(cuMemFree(0));
    CODE(cuMemFree(0x1234));
    CODE(cuMemAlloc(0, 100));
    CODE(cuMemAlloc(&q, 0));
    CODE(cuCtxSetCurrent(0));
    CODE(cuMemAlloc(&q, 100));
    CODE(cuMemAllocAsync(&q, 100, 0));
}
static void async(void) {
    handle s, pool, own_pool;
    ptr p, q, r;
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemAllocAsync(&p, 1 << 20, s));
    CODE(cuMemsetD8Async(p, 5, 1 << 20, s));
    CODE(cuMemAllocAsync(&q, 1 << 20, 0));
    CODE(cuMemsetD8Async(q, 6, 1 << 20, 0));
    CODE(cuStreamSynchronize(s));
    CODE(cuCtxSynchronize());
    SAY("all %d %d\n", all(p, 1 << 20, 5), all(q, 1 << 20, 6));
    SAY("# native %u\n", simNative());
    CODE(cuDeviceGetDefaultMemPool(&pool, 0));
    CODE(cuMemAllocFromPoolAsync(&r, 4096, pool, s));
    SAY("# native %u\n", simNative());
    CODE(cuMemFreeAsync(r, s));
    CODE(cuMemPoolCreate(&own_pool, 0));
    CODE(cuMemAllocFromPoolAsync(&r, 4096, own_pool, s));
    SAY("# native, other pool %u\n", simNative());
    CODE(cuMemFreeAsync(r, s));
    CODE(cuDeviceSetMemPool(0, own_pool));
    CODE(cuMemAllocAsync(&r, 4096, s));
    SAY("# native, pool set %u\n", simNative());
    CODE(cuMemFreeAsync(r, s));
    CODE(cuMemPoolDestroy(own_pool));
    CODE(cuMemAllocAsync(&r, 4096, s));
    SAY("# native, pool gone %u\n", simNative());
    CODE(cuMemFreeAsync(r, s));
    CODE(cuDeviceSetMemPool(0, pool));
    CODE(cuMemFreeAsync(p, s));
    CODE(cuMemFreeAsync(p, s));
    CODE(cuMemFreeAsync(0x1234, s));
    CODE(cuMemFree(q));
    CODE(cuMemAlloc(&q, 1 << 20));
    CODE(cuMemFreeAsync(q, s));
    CODE(cuMemAllocAsync(0, 1 << 20, s));
    CODE(cuMemAllocAsync(&p, 0, s));
    CODE(cuStreamDestroy(s));
    CODE(cuMemAllocFromPoolAsync(&r, 4096, 0, 0));
}
static void pitch(void) {
    ptr p;
    size_t n = 0;
    CODE(cuMemAllocPitch(&p, &n, 1000, 10, 4));
    SAY("pitch %zu\n", n);
    CODE(cuMemsetD8(p, 1, n * 10));
    CODE(cuMemFree(p));
    CODE(cuMemAllocPitch(&p, &n, 1000, 10, 3));
    CODE(cuMemAllocPitch(&p, 0, 1000, 10, 4));
    CODE(cuMemAllocPitch(&p, &n, 0, 10, 4));
    CODE(cuMemAllocPitch(&p, &n, 1000, 0, 4));
}
static uint64_t attribute(handle pool, int what) {
    uint64_t v = 77;
    CODE(cuMemPoolGetAttribute(pool, what, &v));
    return v;
}
static void pool(void) {
    handle pool, s;
    ptr p;
    uint64_t v = 0;
    CODE(cuStreamCreate(&s, 1));
    CODE(cuDeviceGetDefaultMemPool(&pool, 0));
    /* Before gpumem serves the device: what the program has said to the driver holds. */
    v = 7;
    CODE(cuMemPoolSetAttribute(pool, 4, &v));
    v = 0;
    CODE(cuMemAllocAsync(&p, 100 << 20, s));
    SAY("# threshold of before %d\n", (int)attribute(pool, 4));
    SAY("# used %d\n", attribute(pool, 7) >> 20 == 100);
    SAY("# reserved %d\n", attribute(pool, 5) >= attribute(pool, 7));
    CODE(cuMemFreeAsync(p, s));
    CODE(cuStreamSynchronize(s));
    SAY("# used then %d\n", (int)attribute(pool, 7));
    SAY("# high %d\n", (int)(attribute(pool, 8) >> 20));
    CODE(cuMemPoolSetAttribute(pool, 8, &v));
    SAY("# high reset %d, reserved high %d\n", (int)(attribute(pool, 8) >> 20), (int)(attribute(pool, 6) >> 20));
    CODE(cuMemPoolTrimTo(pool, 0));
    SAY("# reserved then %d\n", (int)(attribute(pool, 5) >> 20));
    CODE(cuMemPoolSetAttribute(pool, 6, &v));
    SAY("# reserved high reset %d\n", (int)(attribute(pool, 6) >> 20));
    v = 5;
    CODE(cuMemPoolSetAttribute(pool, 4, &v));
    SAY("# threshold %d\n", (int)attribute(pool, 4));
    CODE(cuMemPoolSetAttribute(pool, 5, &v));
    CODE(cuMemPoolSetAttribute(pool, 99, &v));
    CODE(cuMemPoolGetAttribute(pool, 99, &v));
    CODE(cuMemPoolGetAttribute(pool, 7, 0));
    CODE(cuMemPoolGetAttribute(0, 7, &v));
    CODE(cuMemPoolTrimTo(0, 0));
    SAY("reuse %d\n", (int)(attribute(pool, 1) & 1));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemFree(p));
    SAY("# used after a free %d\n", (int)attribute(pool, 7));
}
static void facts(void) {
    ptr p, base = 0, at = 0, small[16], any = 0;
    size_t n = 0, free0, free1, free2, total;
    unsigned type = 0, sync = 1;
    uint64_t id = 0;
    int what[2] = {2, 12};
    void *where[2] = {&type, &n};
    handle s;
    for (int i = 0; i < 16; i++) {
        CODE(i % 2 ? cuMemAllocAsync(&small[i], 700, 0) : cuMemAlloc(&small[i], 100 + 300 * i));
        any |= small[i];
    }
    SAY("aligned %d\n", !(any & 511));
    for (int i = 0; i < 16; i++) CODE(cuMemFree(small[i]));
    CODE(cuMemGetInfo(&free0, &total));
    CODE(cuMemAlloc(&p, 64 << 20));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemsetD8Async(p, 7, 64 << 20, s));
    CODE(cuMemFree(p));
    CODE(cuMemGetInfo(&free1, &total));
    SAY("# free at once %d\n", free1 >= free0);
    CODE(cuMemAlloc(&p, 10000000));
    CODE(cuMemGetInfo(&free1, &total));
    SAY("less %d\n", free1 <= free0 - 9000000);
    CODE(cuMemGetAddressRange(&base, &n, p + 5000000));
    SAY("range %d %zu\n", base == p, n);
    CODE(cuMemGetAddressRange(0, &n, p));
    CODE(cuMemGetAddressRange(&base, &n, 0x1234));
    CODE(cuMemRetainAllocationHandle(&s, p));
    at = ~0ull;
    CODE(cuPointerGetAttribute(&at, 14, p));
    SAY("handle types %llx\n", (unsigned long long)at);
    CODE(cuPointerGetAttribute(&at, 11, p + 77));
    CODE(cuPointerGetAttribute(&type, 2, p));
    SAY("start %d type %u\n", at == p, type);
    n = 0;
    type = 0;
    CODE(cuPointerGetAttributes(1, what, where, p));
    SAY("type %u\n", type);
    SAY("# both %u", cuPointerGetAttributes(2, what, where, p));
    SAY(", %zu\n", n);
    CODE(cuPointerGetAttribute(0, 11, p));
    SAY("# sync %u", cuPointerSetAttribute(&sync, 6, p));
    sync = 7;
    SAY(" %u", cuPointerGetAttribute(&sync, 6, p));
    SAY(" %u, id %u", sync, cuPointerGetAttribute(&id, 7, p));
    SAY(" %d\n", id != 0);
    CODE(cuMemFree(p));
    CODE(cuMemGetInfo(&free2, &total));
    SAY("back %d\n", free2 >= free0 - (4 << 20));
    /* Freed memory is nothing, though gpumem may keep it. */
    CODE(cuMemAllocAsync(&at, 1 << 20, 0));
    CODE(cuMemFreeAsync(at, 0));
    CODE(cuCtxSynchronize());
    for (int i = 0; i < 2; i++) {
        ptr freed = i ? at : p;
        CODE(cuMemGetAddressRange(&base, &n, freed) != 0);
        CODE(cuMemRetainAllocationHandle(&s, freed));
        CODE(cuPointerGetAttribute(&type, 2, freed));
        type = 7;
        CODE(cuPointerGetAttributes(1, what, where, freed));
        SAY("type %u\n", type);
        SAY("set %d\n", cuPointerSetAttribute(&sync, 6, freed) != 0);
    }
}
/* A memset that names no context; then nodes that are none of gpumem's business, and errors. */
static void nodes(void) {
    ptr p;
    handle node = 0;
    uint64_t memset_node[32] = {2}, host_node[32] = {4};
    CODE(cuMemAlloc(&p, 4096));
    memset_node[2] = p;
    CODE(cuGraphAddNode(&node, 1, 0, 0, 0, memset_node));
    CODE(cuGraphNodeSetParams(node, memset_node));
    CODE(cuGraphExecNodeSetParams(1, node, memset_node));
    SAY("left as it was %d\n", memset_node[7] == 0);
    CODE(cuGraphAddNode(&node, 1, 0, 0, 0, host_node));
    CODE(cuGraphNodeSetParams(node, 0));
    memset_node[2] = 0x1234;
    CODE(cuGraphAddNode(&node, 1, 0, 0, 0, memset_node));
    CODE(cuMemFree(p));
}
static void *capture_elsewhere(void *arg) {
    ptr *p = arg;
    cuCtxSetCurrent(primary);
    SAY("other thread's free = %u\n", cuMemFree(*p));
    return 0;
}
enum capture { PLAIN, AGAIN, GRAPHICS };
static void captures(enum capture how) {
    handle s, graph = 0;
    ptr p, q, r = 0;
    pthread_t t;
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemAlloc(&q, 1 << 20));
    if (how == GRAPHICS) CODE(cuStreamBeginCaptureToCig(s, 0));
    else if (how == AGAIN) {
        CODE(cuStreamBeginCapture(s, 2));
        CODE(cuStreamEndCapture(s, &graph));
        CODE(cuStreamBeginRecaptureToGraph(s, 2, graph, 0, 0));
    } else CODE(cuStreamBeginCapture(s, 2));
    SAY("# native %u\n", simNative());
    SAY("# alloc %u\n", cuMemAllocAsync(&r, 4096, s));
    SAY("# native in the capture %u\n", simNative());
    CODE(cuMemsetD8Async(q, 3, 1 << 20, s));
    SAY("# free of the pool's in the capture %u\n", cuMemFreeAsync(q, s));
    pthread_create(&t, 0, capture_elsewhere, &p);
    pthread_join(t, 0);
    if (how == GRAPHICS) CODE(cuStreamEndCaptureToCig(s));
    else CODE(cuStreamEndCapture(s, &graph));
    CODE(how == GRAPHICS || graph != 0);
    CODE(cuMemFree(q));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemFree(p));
}
static void capture(void) { captures(PLAIN); }
static void recapture(void) { captures(AGAIN); }
static void graphics_capture(void) { captures(GRAPHICS); }
/* A thread captures its own stream of two devices, and ends one of them. */
static void own_captures(void) {
    handle other, graph = 0, second = 0;
    ptr p;
    pthread_t t;
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuMemAlloc(&p, 64 << 20));
    CODE(cuStreamBeginCapture(0, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuStreamBeginCapture(0, 1));
    CODE(cuStreamEndCapture(0, &second));
    CODE(cuCtxSetCurrent(primary));
    pthread_create(&t, 0, capture_elsewhere, &p);
    pthread_join(t, 0);
    CODE(cuStreamEndCapture(0, &graph));
    CODE(graph && second);
}
static void *begin_only(void *arg) {
    cuCtxSetCurrent(primary);
    CODE(cuStreamBeginCapture(0, 1));
    return arg;
}
static volatile int captures_end;
static void *capture_again_and_again(void *arg) {
    handle s, graph;
    cuCtxSetCurrent(primary);
    cuStreamCreate(&s, 1);
    while (!captures_end) {
        cuStreamBeginCapture(s, 1);
        cuStreamEndCapture(s, &graph);
    }
    return arg;
}
/* A forked child exits, whatever other threads did when it was made. */
static void forked_captures(void) {
    pthread_t t;
    int exited = 0, status;
    ptr p;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuStreamBeginCapture(0, 1));
    pthread_create(&t, 0, capture_again_and_again, 0);
    usleep(10000);
    for (int i = 0; i < 60; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            /* One that hangs in its exit is ended by this. */
            signal(SIGALRM, SIG_DFL);
            alarm(10);
            exit(0);
        }
        waitpid(child, &status, 0);
        exited += WIFEXITED(status);
        if (!WIFEXITED(status)) break;
    }
    captures_end = 1;
    pthread_join(t, 0);
    SAY("exited %d\n", exited);
}
/* A capture that nobody ends goes with the thread whose stream it is of. */
static void captured_thread(void) {
    pthread_t t;
    size_t f, total;
    ptr p;
    int i;
    CODE(cuMemGetInfo(&f, &total));
    pthread_create(&t, 0, begin_only, 0);
    pthread_join(t, 0);
    for (i = 0; i < 10; i++) {
        CODE(cuMemAlloc(&p, total / 3));
        CODE(cuMemFree(p));
    }
}
static void *taker(void *arg) {
    handle array;
    cuCtxSetCurrent(primary);
    CODE(cuArrayCreate(&array, 0));
    return arg;
}
/* A capture begins while a thread waits for the device. */
static void begins_while(void *(*waits)(void *), ptr *p, handle ctx) {
    handle s, graph = 0;
    pthread_t t;
    CODE(cuCtxSetCurrent(ctx));
    CODE(cuStreamCreate(&s, 1));
    alarm(20);
    simGate(1);
    pthread_create(&t, 0, waits, p);
    while (!simGate(1)) usleep(1000);
    CODE(cuStreamBeginCapture(s, 2));
    simGate(0);
    pthread_join(t, 0);
    CODE(cuStreamEndCapture(s, &graph));
    CODE(graph != 0);
    CODE(cuCtxSetCurrent(primary));
}
static void captured_meanwhile(void) {
    ptr p;
    CODE(cuMemAlloc(&p, 32 << 20));
    begins_while(capture_elsewhere, &p, primary);
}
static void captured_in_shortage(void) {
    ptr p;
    CODE(cuMemAlloc(&p, 600 << 20));
    CODE(cuMemFree(p));
    begins_while(taker, 0, primary);
}
static void captured_by_guest(void) {
    handle other;
    ptr p;
    CODE(cuMemAlloc(&p, 32 << 20));
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuCtxEnablePeerAccess(primary, 0));
    begins_while(capture_elsewhere, &p, other);
}
/* A free that waits tells what the device has come to. */
static void failed(void) {
    ptr p;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(simFail(700));
    CODE(cuMemFree(p));
    CODE(simFail(0));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemFree(p));
}
/* With work under way on another stream, freed memory is nobody else's yet. */
static void held(void) {
    handle s;
    ptr p, q, r;
    int i;
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemAlloc(&p, 32 << 20));
    CODE(simHold(s));
    CODE(cuMemsetD8Async(p, 1, 32 << 20, s));
    CODE(cuMemFree(p));
    for (i = 0; i < 3; i++) {
        CODE(cuMemAlloc(&q, 32 << 20));
        SAY("same %d\n", p == q);
        CODE(cuMemsetD8(q, 2, 32 << 20));
    }
    CODE(simRelease(s));
    CODE(cuStreamSynchronize(s));
    SAY("mine %d\n", all(q, 32 << 20, 2));
    CODE(cuMemAlloc(&r, 32 << 20));
    SAY("# same after %d\n", p == r);
}
/* A host that never waits for what it submits. */
static void ahead(void) {
    handle s;
    ptr p;
    int i;
    CODE(cuStreamCreate(&s, 1));
    for (i = 0; i < 32; i++) {
        CODE(cuMemAlloc(&p, 32 << 20));
        CODE(cuMemsetD8Async(p, i, 32 << 20, s));
        CODE(cuMemFree(p));
    }
    CODE(cuStreamSynchronize(s));
}
static void reset(void) {
    ptr p, q;
    size_t free0, free1, total;
    CODE(cuMemGetInfo(&free0, &total));
    CODE(cuMemAlloc(&p, 64 << 20));
    CODE(cuMemsetD8(p, 1, 64 << 20));
    CODE(cuDevicePrimaryCtxReset(0));
    SAY("retained %u\n", simRetained(0));
    CODE(cuDevicePrimaryCtxRetain(&primary, 0));
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemGetInfo(&free1, &total));
    SAY("all back %d\n", free1 >= free0);
    CODE(cuMemFree(p));
    CODE(cuMemAlloc(&q, 64 << 20));
    CODE(cuMemsetD8(q, 2, 64 << 20));
    SAY("all %d\n", all(q, 64 << 20, 2));
    SAY("# native %u\n", simNative());
    /* The reset has ended no hold. */
    CODE(cuDevicePrimaryCtxRelease(0));
    SAY("all %d\n", all(q, 64 << 20, 2));
    CODE(cuMemFree(q));
    CODE(cuDevicePrimaryCtxRelease(0));
    SAY("retained %u\n", simRetained(0));
}
static void *first_request(void *p) {
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)cuMemAlloc(p, 1 << 20);
}
static int has_been_reset;
static void *resetter(void *code) {
    *(unsigned *)code = cuDevicePrimaryCtxReset(0);
    __atomic_store_n(&has_been_reset, 1, __ATOMIC_RELEASE);
    return 0;
}
/* The first request is making a stream when another thread resets the device. */
static void reset_while_starting(void) {
    pthread_t t[2];
    void *requested;
    unsigned code = 99, native;
    ptr p;
    simGate(1);
    pthread_create(&t[0], 0, first_request, &p);
    /* Without gpumem it makes none. */
    for (int i = 0; i < 1000 && !simGate(1); i++) usleep(1000);
    pthread_create(&t[1], 0, resetter, &code);
    for (int i = 0; i < 200 && !__atomic_load_n(&has_been_reset, __ATOMIC_ACQUIRE); i++) usleep(1000);
    simGate(0);
    pthread_join(t[0], &requested);
    pthread_join(t[1], 0);
    SAY("requested %d, reset %u\n", (int)(uintptr_t)requested, code);
    CODE(cuDevicePrimaryCtxRetain(&primary, 0));
    CODE(cuCtxSetCurrent(primary));
    /* The driver serves the first request where its device ends under it. */
    native = simNative();
    CODE(cuMemAlloc(&p, 1 << 20));
    SAY("# native %u\n", simNative() - native);
    CODE(cuDevicePrimaryCtxReset(0));
    SAY("retained %u\n", simRetained(0));
}
static long resident(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2) exit(5);
    fclose(f);
    return pages * 4;
}
static void resets(void) {
    long before = 0;
    ptr p[8];
    int i, k;
    for (i = 0; i < 60; i++) {
        if (i == 10) before = resident();
        for (k = 0; k < 8; k++) if (cuMemAlloc(&p[k], (size_t)1000 << k * 2)) exit(4);
        for (k = 0; k < 8; k++) if (cuMemFree(p[k])) exit(4);
        if (cuDevicePrimaryCtxReset(0) || cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxSetCurrent(primary)) exit(4);
    }
    SAY("# KiB a reset %ld\n", (resident() - before) / 50);
}
/* Memory that is set to be synchronous, is freed, and comes again. */
static void synchronous(void) {
    long before = 0;
    unsigned sync = 1, bad = 0;
    ptr p;
    int i;
    for (i = 0; i < 121000; i++) {
        if (i == 1000) before = resident();
        sync = 7;
        bad += cuMemAllocAsync(&p, 1 << 20, 0) || cuPointerGetAttribute(&sync, 6, p) || sync != 0;
        sync = 1;
        bad += cuPointerSetAttribute(&sync, 6, p) || cuMemFreeAsync(p, 0);
    }
    SAY("bad %u\n", bad);
    SAY("# KiB kept %ld\n", resident() - before);
}
static void created(void) {
    handle c, s;
    ptr p, q;
    size_t n;
    CODE(cuCtxCreate(&c, 0, 0));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemsetD8(p, 4, 1 << 20));
    SAY("all %d\n", all(p, 1 << 20, 4));
    SAY("# native %u\n", simNative());
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemAllocAsync(&q, 1 << 20, s));
    SAY("# native, a stream of it %u\n", simNative());
    CODE(cuMemFreeAsync(q, s));
    CODE(cuMemAlloc(&q, 1 << 20));
    CODE(cuMemFreeAsync(q, s));
    CODE(cuMemAlloc(&q, 1 << 20));
    CODE(cuMemFree(q));
    CODE(cuCtxDestroy(c));
    CODE(cuCtxSetCurrent(primary));
    SAY("# freed with it %u\n", cuMemGetAddressRange(0, &n, p));
}
/* Memory of a created context outlives the primary context, however that ends. */
static void outlives(void) {
    handle c;
    ptr p, q, r;
    size_t n;
    CODE(cuMemAlloc(&r, 1 << 20));
    CODE(cuCtxCreate(&c, 0, 0));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemsetD8(p, 5, 1 << 20));
    for (int i = 0; i < 2; i++) {
        if (i) { CODE(cuDevicePrimaryCtxReset(0)); }
        else { CODE(cuDevicePrimaryCtxRelease(0)); }
        SAY("all %d\n", all(p, 1 << 20, 5));
        CODE(cuMemGetAddressRange(0, &n, p));
        SAY("of the primary one %d\n", cuMemGetAddressRange(0, &n, r) == 0);
        CODE(cuMemAlloc(&q, 1 << 20));
        SAY("elsewhere %d\n", p != q);
        CODE(cuMemFree(q));
        CODE(cuDevicePrimaryCtxRetain(&primary, 0));
        CODE(cuCtxSetCurrent(primary));
        CODE(cuMemAlloc(&r, 1 << 20));
        CODE(cuCtxSetCurrent(c));
    }
    CODE(cuMemFree(p));
    CODE(cuDevicePrimaryCtxRelease(0));
    CODE(cuDevicePrimaryCtxRelease(0));
    SAY("retained %u\n", simRetained(0));
}
/* A green context retains the primary one. */
static void green(void) {
    handle g;
    ptr p;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemsetD8(p, 5, 1 << 20));
    CODE(cuGreenCtxCreate(&g, 0, 0, 1));
    CODE(cuDevicePrimaryCtxRelease(0));
    SAY("all %d\n", all(p, 1 << 20, 5));
    CODE(cuGreenCtxDestroy(g));
    SAY("retained %u\n", simRetained(0));
}
static void children(void) {
    ptr p;
    int status;
    CODE(cuMemAlloc(&p, 1 << 20));
    if (!fork()) {
        /* No device memory here: nothing may crash or hang. */
        cuMemFree(p);
        _exit(5);
    }
    wait(&status);
    SAY("child %d\n", WEXITSTATUS(status));
    if (!fork()) { execl("/proc/self/exe", "flows", "dlsym", "basic", NULL); _exit(9); }
    wait(&status);
    SAY("other program %d\n", WEXITSTATUS(status));
    CODE(cuMemFree(p));
}
static ptr late;
static void at_end(void) { SAY("free at the end = %u\n", cuMemFree(late)); }
__attribute__((destructor)) static void later(void) { if (late) SAY("again = %u\n", cuMemFree(late)); }
static void ending(void) {
    atexit(at_end);
    CODE(cuMemAlloc(&late, 1 << 20));
}
static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg, bad = 0, i;
    handle s;
    ptr live[16] = {0};
    size_t size[16];
    unsigned char mark[16];
    cuCtxSetCurrent(primary);
    cuStreamCreate(&s, 1);
    for (i = 0; i < 400; i++) {
        unsigned k = rand_r(&seed) % 16;
        if (live[k]) {
            cuStreamSynchronize(s);
            bad += !all(live[k], size[k], mark[k]);
            bad += (rand_r(&seed) & 1 ? cuMemFree(live[k]) : cuMemFreeAsync(live[k], s)) != 0;
            live[k] = 0;
        } else {
            size[k] = 1 + rand_r(&seed) % (rand_r(&seed) & 1 ? 200000 : 4000000);
            mark[k] = (unsigned char)rand_r(&seed);
            bad += (rand_r(&seed) & 1 ? cuMemAlloc(&live[k], size[k]) : cuMemAllocAsync(&live[k], size[k], s)) != 0;
            bad += cuMemsetD8Async(live[k], mark[k], size[k], s) != 0;
        }
    }
    cuStreamSynchronize(s);
    for (i = 0; i < 16; i++) if (live[i]) bad += !all(live[i], size[i], mark[i]);
    return (void *)(uintptr_t)bad;
}
static void threads(void) {
    pthread_t t[6];
    uintptr_t i, bad = 0;
    void *one;
    for (i = 0; i < 6; i++) pthread_create(&t[i], 0, work, (void *)(i + 1));
    for (i = 0; i < 6; i++) { pthread_join(t[i], &one); bad += (uintptr_t)one; }
    SAY("bad %d\n", (int)bad);
}
/* Has the whole device allocated and freed, so that gpumem holds it free; says how many pieces. */
static int hold_free(void) {
    ptr p[64];
    int n = 0, i;
    while (n < 64 && !cuMemAlloc(&p[n], 64 << 20)) n++;
    for (i = 0; i < n; i++) cuMemFree(p[i]);
    return n;
}
static void shortage(void) {
    ptr p = 0;
    int n = hold_free();
    handle array, node, green;
    uint64_t kernel_node[32] = {0};
    SAY("some %d\n", n > 8 && n <= 16);
    CODE(cuMemAlloc(&p, (size_t)1 << 50));
    /* What gpumem holds free is there for others. */
    hold_free();
    CODE(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    hold_free();
    CODE(cuArrayCreate(&array, 0));
    CODE(cuMemRelease(array));
    hold_free();
    CODE(cuFuncGetAttribute(&n, 0, 0));
    hold_free();
    CODE(cuGraphAddNode(&node, 1, 0, 0, 0, kernel_node));
    hold_free();
    CODE(cuGreenCtxCreate(&green, 0, 0, 1));
}
/* A call that needs memory while gpumem holds almost all of it free. */
#define SHORT(x) (hold_free(), simGreedy(1), CODE(x), simGreedy(0))
static void shortage_of_little(void) {
    const int device[12] = {1, 0, 1, 0};
    const access_desc access = {1, 0, 3};
    handle memory, green, h;
    ptr p;
    CODE(cuGreenCtxCreate(&green, 0, 0, 1));
    CODE(cuMemCreate(&memory, 2 << 20, device, 0));
    CODE(cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    SHORT(cuMemMap(p, 2 << 20, 0, memory, 0));
    SHORT(cuMemSetAccess(p, 2 << 20, &access, 1));
    SHORT(cuMemPoolCreate(&h, 0));
    SHORT(cuEventCreate(&h, 0));
    SHORT(cuGreenCtxStreamCreate(&h, green, 1, 0));
}
/* A device that cannot be served for want of memory is tried again, and holds nothing meanwhile. */
static void full(void) {
    ptr p, q;
    CODE(cuMemAlloc(&p, 900 << 20));
    for (int i = 0; i < 3; i++) {
        CODE(cuMemAlloc(&q, 1 << 20));
        CODE(cuMemFree(q));
    }
    SAY("retained %u\n", simRetained(0));
    CODE(cuMemFree(p));
    CODE(cuMemAlloc(&q, 1 << 20));
    SAY("# native %u\n", simNative());
}
/* A device that is short of memory leaves the others alone. */
static void shortage_of_one(void) {
    handle other, pool, made;
    int on_the_other[12] = {1, 0, 1, 1};
    uint64_t reserved = 0;
    ptr p;
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuMemAlloc(&p, 64 << 20));
    CODE(cuMemFree(p));
    CODE(cuCtxSetCurrent(primary));
    hold_free();
    CODE(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    CODE(cuDeviceGetDefaultMemPool(&pool, 1));
    CODE(cuMemPoolGetAttribute(pool, 5, &reserved));
    SAY("# reserved on the other %d\n", (int)(reserved >> 20));
    /* But what is asked of another is made room for there. */
    CODE(cuCtxSetCurrent(other));
    hold_free();
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemCreate(&made, 600 << 20, on_the_other, 0));
}
/* Memory that gpumem holds free, for requests that are the driver's: large ones by
 * GPUMEM_NATIVE, and of the program's own pools. */
static void left(void) {
    ptr p[8], q;
    handle own_pool;
    int n = 0, i;
    size_t f, t;
    CODE(cuMemGetInfo(&f, &t));
    while (n < 8 && (size_t)n * (t / 10) < f * 8 / 10) { CODE(cuMemAlloc(&p[n], t / 10)); n++; }
    for (i = 0; i < n; i++) CODE(cuMemFree(p[i]));
    CODE(cuMemAlloc(&q, t / 2));
    CODE(cuMemFree(q));
    for (i = 0; i < n; i++) CODE(cuMemAlloc(&p[i], t / 10));
    for (i = 0; i < n; i++) CODE(cuMemFree(p[i]));
    CODE(cuMemPoolCreate(&own_pool, 0));
    CODE(cuMemAllocFromPoolAsync(&q, t / 2, own_pool, 0));
    CODE(cuMemFreeAsync(q, 0));
}
/* A capture that nobody ends goes with its context; what is freed later comes back all the same. */
static void captured_context(void) {
    handle c, s;
    ptr p;
    size_t f, t;
    int i;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemGetInfo(&f, &t));
    CODE(cuCtxCreate(&c, 0, 0));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuStreamBeginCapture(s, 2));
    CODE(cuCtxDestroy(c));
    CODE(cuCtxSetCurrent(primary));
    for (i = 0; i < 10; i++) {
        CODE(cuMemAlloc(&p, t / 3));
        CODE(cuMemFree(p));
    }
    CODE(cuStreamCreate(&s, 1));
    CODE(cuStreamBeginCapture(s, 2));
    CODE(cuDevicePrimaryCtxReset(0));
    CODE(cuDevicePrimaryCtxRetain(&primary, 0));
    CODE(cuCtxSetCurrent(primary));
    for (i = 0; i < 10; i++) {
        CODE(cuMemAlloc(&p, t / 3));
        CODE(cuMemFree(p));
    }
}
/* The primary context ends, and a capture in another one goes on. */
static void captured_elsewhere(void) {
    handle c, s, graph = 0;
    ptr p;
    int i;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuCtxCreate(&c, 0, 0));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuStreamBeginCapture(s, 2));
    CODE(cuDevicePrimaryCtxReset(0));
    CODE(cuDevicePrimaryCtxRetain(&primary, 0));
    CODE(cuCtxSetCurrent(primary));
    for (i = 0; i < 10; i++) {
        CODE(cuMemAlloc(&p, 8 << 20));
        CODE(cuMemFree(p));
    }
    CODE(cuStreamEndCapture(s, &graph));
    CODE(graph != 0);
}
static void limited(void) {
    ptr p;
    size_t f, t;
    CODE(cuDeviceTotalMem(&t, 0));
    SAY("# size %d\n", (int)(t >> 20));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemGetInfo(&f, &t));
    SAY("# free %d total %d\n", (int)(f >> 20), (int)(t >> 20));
    CODE(cuMemAlloc(&p, 200 << 20));
    CODE(cuMemAllocAsync(&p, 200 << 20, 0));
}
static void peers(void) {
    handle other, pool;
    ptr p, q;
    access_desc d = {1, 1, 3};
    handle s;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuCtxEnablePeerAccess(primary, 0));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemsetD8Async(p, 8, 1 << 20, s));
    CODE(cuStreamSynchronize(s));
    CODE(cuCtxSetCurrent(primary));
    SAY("all %d\n", all(p, 1 << 20, 8));
    CODE(cuMemAlloc(&q, 64 << 20));
    CODE(cuCtxSetCurrent(other));
    CODE(cuMemsetD8Async(q, 8, 64 << 20, s));
    CODE(cuStreamSynchronize(s));
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemFree(q));
    CODE(cuDeviceGetDefaultMemPool(&pool, 0));
    CODE(cuMemPoolSetAccess(pool, &d, 1));
    CODE(cuCtxEnablePeerAccess(other, 9));
}
/* The other device is let in before there is anything to reach, and is at work at the free. */
static void let_in_early(void) {
    handle other, pool, s;
    ptr p, q;
    access_desc d = {1, 1, 3};
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuDeviceGetDefaultMemPool(&pool, 0));
    CODE(cuMemPoolSetAccess(pool, &d, 1));
    CODE(cuMemAllocAsync(&p, 32 << 20, 0));
    CODE(cuCtxSynchronize());
    CODE(cuCtxSetCurrent(other));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemsetD8Async(p, 8, 32 << 20, s));
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemFree(p));
    CODE(cuMemAlloc(&q, 32 << 20));
    CODE(cuMemsetD8(q, 2, 32 << 20));
    CODE(cuCtxSetCurrent(other));
    CODE(cuStreamSynchronize(s));
    CODE(cuCtxSetCurrent(primary));
    SAY("mine %d\n", all(q, 32 << 20, 2));
}
/* A guest's primary context ends with the program's hold on it. */
static void guest_leaves(void) {
    handle other;
    ptr p;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuCtxEnablePeerAccess(primary, 0));
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemFree(p));
    CODE(cuDevicePrimaryCtxRelease(1));
    SAY("retained %u\n", simRetained(1));
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemFree(p));
    SAY("retained then %u\n", simRetained(1));
}
/* A created context of another device is at work at the free. */
static void created_guest(void) {
    handle c, s;
    ptr p, q;
    CODE(cuMemAlloc(&p, 32 << 20));
    CODE(cuCtxCreate(&c, 0, 1));
    CODE(cuCtxEnablePeerAccess(primary, 0));
    CODE(cuStreamCreate(&s, 1));
    CODE(cuMemsetD8Async(p, 8, 32 << 20, s));
    CODE(cuCtxSetCurrent(primary));
    CODE(cuMemFree(p));
    CODE(cuMemAlloc(&q, 32 << 20));
    CODE(cuMemsetD8(q, 2, 32 << 20));
    CODE(cuCtxSetCurrent(c));
    CODE(cuStreamSynchronize(s));
    CODE(cuCtxDestroy(c));
    CODE(cuCtxSetCurrent(primary));
    SAY("mine %d\n", all(q, 32 << 20, 2));
    CODE(cuMemFree(q));
}
/* Each device is asked about and used. */
static void all_devices(void) {
    handle other;
    size_t t;
    ptr p;
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuDeviceTotalMem(&t, 1));
    SAY("size %zu\n", t);
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuMemFree(p));
}
static void io(int fd, void *b, size_t n, int out) {
    if ((out ? write(fd, b, n) : read(fd, b, n)) != (ssize_t)n) exit(4);
}
/* The other process was forked before either used CUDA. */
static void share(void) {
    int to[2], from[2];
    ipc h;
    ptr p, q, r;
    char c = 0;
    if (pipe(to) || pipe(from)) exit(4);
    if (!fork()) {
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        CODE(cuIpcOpenMemHandle(&r, h, 1));
        SAY("once %d, all %d\n", q == r, all(q, 5 << 20, 3));
        CODE(cuMemsetD8(q, 4, 5 << 20));
        CODE(cuIpcCloseMemHandle(q));
        CODE(cuIpcCloseMemHandle(q));
        CODE(cuIpcCloseMemHandle(q));
        io(from[1], &c, 1, 1);
        io(to[0], &h, sizeof h, 0);
        SAY("freed = %d\n", cuIpcOpenMemHandle(&q, h, 1) != 0);
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&r, 100));
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p + 100));
    CODE(cuIpcOpenMemHandle(&q, h, 1));
    io(to[1], &h, sizeof h, 1);
    io(from[0], &c, 1, 0);
    SAY("changed %d\n", all(p, 5 << 20, 4));
    CODE(cuMemFree(p));
    CODE(cuIpcGetMemHandle(&h, p) != 0);
    io(to[1], &h, sizeof h, 1);
    wait(0);
    memset(&h, 0, sizeof h);
    CODE(cuIpcOpenMemHandle(&q, h, 1));
    CODE(cuIpcGetMemHandle(0, r));
}
/* Memory of another process is told like the allocation that it is, and ends with its context. */
static void share_facts(void) {
    int to[2];
    ipc h;
    ptr p, q, r, base = 0;
    size_t n = 0;
    handle c, node, made;
    unsigned sync = 1;
    uint64_t id = 0, memset_node[32] = {2};
    if (pipe(to)) exit(4);
    if (!fork()) {
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        CODE(cuMemGetAddressRange(&base, &n, q + 1000));
        SAY("range %d %zu\n", base == q, n);
        CODE(cuPointerGetAttribute(&base, 11, q + 1000));
        CODE(cuPointerGetAttribute(&id, 7, q));
        SAY("start %d, id %d\n", base == q, id != 0);
        CODE(cuMemRetainAllocationHandle(&made, q));
        CODE(cuPointerSetAttribute(&sync, 6, q));
        sync = 7;
        CODE(cuPointerGetAttribute(&sync, 6, q));
        SAY("sync %u\n", sync);
        memset_node[2] = q;
        CODE(cuGraphAddNode(&node, 1, 0, 0, 0, memset_node));
        CODE(cuCtxCreate(&c, 0, 0));
        CODE(cuDevicePrimaryCtxReset(0));
        SAY("gone %d\n", cuMemGetAddressRange(&base, &n, q) != 0);
        SAY("closed %d\n", cuIpcCloseMemHandle(q) == 0);
        CODE(cuIpcOpenMemHandle(&r, h, 1));
        CODE(cuDevicePrimaryCtxRetain(&primary, 0));
        CODE(cuDevicePrimaryCtxReset(0));
        SAY("all %d\n", all(r, 5 << 20, 3));
        CODE(cuCtxDestroy(c));
        CODE(cuCtxSetCurrent(primary));
        SAY("closed %d\n", cuIpcCloseMemHandle(r) == 0);
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&r, 100000));
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    io(to[1], &h, sizeof h, 1);
    wait(0);
}
static void *closer(void *arg) {
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)cuIpcCloseMemHandle(*(ptr *)arg);
}
/* A thread waits for the device to close a handle, and another one opens it meanwhile. */
static void share_while_closing(void) {
    int to[2];
    ipc h;
    ptr p, q, r;
    if (pipe(to)) exit(4);
    if (!fork()) {
        pthread_t t;
        void *closed;
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        alarm(20);
        simGate(1);
        pthread_create(&t, 0, closer, &q);
        while (!simGate(1)) usleep(1000);
        CODE(cuIpcOpenMemHandle(&r, h, 1));
        simGate(0);
        pthread_join(t, &closed);
        SAY("closed %d, once %d, all %d\n", !closed, q == r, all(r, 5 << 20, 3));
        CODE(cuIpcCloseMemHandle(r));
        CODE(cuIpcCloseMemHandle(r));
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    io(to[1], &h, sizeof h, 1);
    wait(0);
}
/* A handle is closed while a stream is being captured, and opened again before the capture ends or
 * after. */
static void share_captured(void) {
    int to[2], i;
    ipc h, other;
    ptr p, q, r, o;
    size_t n;
    if (pipe(to)) exit(4);
    if (!fork()) {
        handle s, graph = 0;
        start();
        io(to[0], &h, sizeof h, 0);
        io(to[0], &other, sizeof other, 0);
        CODE(cuIpcOpenMemHandle(&o, other, 1));
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        CODE(cuStreamCreate(&s, 1));
        for (i = 0; i < 2; i++) {
            CODE(cuStreamBeginCapture(s, 2));
            CODE(cuIpcCloseMemHandle(q));
            SAY("closed again %d\n", cuIpcCloseMemHandle(q) == 0);
            if (!i) {
                CODE(cuIpcOpenMemHandle(&r, h, 1));
                SAY("once %d\n", q == r);
            }
            CODE(cuStreamEndCapture(s, &graph));
            CODE(graph != 0);
            if (!i) SAY("all %d\n", all(q, 5 << 20, 3));
        }
        SAY("mapped %d\n", cuMemGetAddressRange(0, &n, q) == 0);
        CODE(cuIpcCloseMemHandle(o));
        SAY("mapped then %d\n", cuMemGetAddressRange(0, &n, q) == 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        SAY("all %d\n", all(q, 5 << 20, 3));
        CODE(cuIpcCloseMemHandle(q));
        SAY("closed again %d\n", cuIpcCloseMemHandle(q) == 0);
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemAlloc(&q, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    CODE(cuIpcGetMemHandle(&other, q));
    io(to[1], &h, sizeof h, 1);
    io(to[1], &other, sizeof other, 1);
    wait(0);
}
/* A handle is closed while another device is the current one, and its own at work. */
static void share_elsewhere(void) {
    int to[2];
    ipc h;
    ptr p, q;
    if (pipe(to)) exit(4);
    if (!fork()) {
        handle second, s;
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        CODE(cuDevicePrimaryCtxRetain(&second, 1));
        CODE(cuStreamCreate(&s, 1));
        CODE(cuMemsetD8Async(q, 4, 5 << 20, s));
        CODE(cuCtxSetCurrent(second));
        CODE(cuIpcCloseMemHandle(q));
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    io(to[1], &h, sizeof h, 1);
    wait(0);
    SAY("changed %d\n", all(p, 5 << 20, 4));
}
static void nothing(int signal) { (void)signal; }
static void *opener(void *arg) {
    ptr q;
    cuCtxSetCurrent(primary);
    return (void *)(uintptr_t)cuIpcOpenMemHandle(&q, *(ipc *)arg, 1);
}
/* Signals reach the thread that opens a handle while the other process does not answer. */
static void share_interrupted(void) {
    int to[2], i;
    ipc h;
    ptr p;
    if (pipe(to)) exit(4);
    if (!fork()) {
        struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
        pthread_t t;
        void *opened;
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuMemAlloc(&p, 5 << 20));
        sigaction(SIGUSR1, &action, 0);
        kill(getppid(), SIGSTOP);
        pthread_create(&t, 0, opener, &h);
        for (i = 0; i < 300; i++) {
            usleep(1000);
            pthread_kill(t, SIGUSR1);
        }
        kill(getppid(), SIGCONT);
        pthread_join(t, &opened);
        SAY("opened %d\n", !opened);
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    io(to[1], &h, sizeof h, 1);
    wait(0);
}
/* A handle that is opened on two devices is memory of both. */
static void share_devices(void) {
    int to[2];
    ipc h;
    ptr p, q, r;
    if (pipe(to)) exit(4);
    if (!fork()) {
        handle second;
        start();
        io(to[0], &h, sizeof h, 0);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        CODE(cuDevicePrimaryCtxRetain(&second, 1));
        CODE(cuCtxSetCurrent(second));
        CODE(cuIpcOpenMemHandle(&r, h, 1));
        CODE(cuMemsetD8(r, 4, 5 << 20));
        SAY("two %d, all %d\n", q != r, all(q, 5 << 20, 4));
        CODE(cuIpcCloseMemHandle(r));
        CODE(cuIpcCloseMemHandle(q));
        exit(0);
    }
    start();
    CODE(cuMemAlloc(&p, 5 << 20));
    CODE(cuMemsetD8(p, 3, 5 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    io(to[1], &h, sizeof h, 1);
    wait(0);
}
static int entries(const char *folder) {
    DIR *all = opendir(folder);
    int n = 0;
    if (!all) exit(4);
    while (readdir(all)) n++;
    closedir(all);
    return n;
}
static int open_descriptors(void) { return entries("/proc/self/fd"); }
static int open_sockets(void) {
    char path[64], what[64] = {0};
    int fd, n = 0;
    for (fd = 0; fd < 1024; fd++) {
        sprintf(path, "/proc/self/fd/%d", fd);
        if (readlink(path, what, sizeof what - 1) > 0) n += !strncmp(what, "socket:", 7);
    }
    return n;
}
/* A forked child keeps nothing at which its parent is asked for memory. */
static void share_child(void) {
    int before = open_sockets();
    ipc h;
    ptr p;
    start();
    CODE(cuMemAlloc(&p, 1 << 20));
    CODE(cuIpcGetMemHandle(&h, p));
    SAY("sockets %d\n", open_sockets() - before);
    if (!fork()) {
        SAY("sockets of the child %d\n", open_sockets() - before);
        _exit(0);
    }
    wait(0);
}
static void limit_descriptors(int most) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) exit(4);
    limit.rlim_cur = most;
    if (setrlimit(RLIMIT_NOFILE, &limit)) exit(4);
}
/* One allocation made of more pieces than one message has descriptors, in processes that may have
 * few more than the simulated memory takes: one for each piece. */
static void share_pieces(void) {
    enum { PIECES = 300 };
    const size_t piece = (size_t)32 << 20, end = PIECES * piece - (1 << 20);
    static ptr p[PIECES];
    int to[2], i, before;
    ipc h;
    ptr q;
    if (pipe(to)) exit(4);
    if (!fork()) {
        start();
        CODE(cuMemAlloc(&q, 100));
        io(to[0], &h, sizeof h, 0);
        before = open_descriptors();
        limit_descriptors(PIECES / 2);
        SAY("too many %d", cuIpcOpenMemHandle(&q, h, 1) != 0);
        limit_descriptors(PIECES + 64);
        SAY(", left open %d\n", open_descriptors() - before);
        CODE(cuIpcOpenMemHandle(&q, h, 1));
        SAY("all %d %d\n", all(q, 1 << 20, 5), all(q + end, 1 << 20, 6));
        CODE(cuIpcCloseMemHandle(q));
        SAY("left open then %d\n", open_descriptors() - before);
        exit(0);
    }
    limit_descriptors(PIECES + 64);
    start();
    for (i = 0; i < PIECES; i++) CODE(cuMemAlloc(&p[i], piece));
    for (i = 0; i < PIECES; i++) CODE(cuMemFree(p[i]));
    CODE(cuMemAlloc(&q, PIECES * piece));
    CODE(cuMemsetD8(q, 5, 1 << 20));
    CODE(cuMemsetD8(q + end, 6, 1 << 20));
    CODE(cuIpcGetMemHandle(&h, q));
    before = open_descriptors();
    io(to[1], &h, sizeof h, 1);
    wait(0);
    SAY("left open here %d\n", open_descriptors() - before);
}
static void pairs(void) {
    ptr p;
    int i, bad = 0;
    for (i = 0; i < 1000; i++) { bad += cuMemAlloc(&p, 65536) != 0; bad += cuMemFree(p) != 0; }
    for (i = 0; i < 1000; i++) { bad += cuMemAllocAsync(&p, 65536, 0) != 0; bad += cuMemFreeAsync(p, 0) != 0; }
    SAY("bad %d\n", bad);
}

/* A recording goes on when the device is reset, as at the end of many programs. */
static void recorded(void) {
    ptr p;
    for (int i = 0; i < 100; i++) {
        if (cuMemAlloc(&p, 3 << 20) || cuMemFree(p)) exit(3);
    }
    CODE(cuDevicePrimaryCtxReset(0));
}

/* What a reset takes is free from then on. */
static void recorded_resets(void) {
    ptr p;
    for (int i = 0; i < 10; i++) {
        if (cuMemAlloc(&p, 50 << 20)) exit(3);
        if (cuDevicePrimaryCtxReset(0) || cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxSetCurrent(primary)) exit(4);
    }
}

static int threads_of_all(void) { return entries("/proc/self/task"); }
/* How many devices the page of counters has. */
static int devices_on_page(void) {
    static char text[1 << 16];
    char name[64], *at = text;
    int n = 0;
    snprintf(name, sizeof name, "/dev/shm/gpumem.%d.stats", getpid());
    FILE *f = fopen(name, "r");
    if (!f) return -1;
    /* The text comes after 24 bytes. */
    size_t len = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[len] = 0;
    for (at += len < 24 ? len : 24; (at = strstr(at, "\"device\":")); at++) n++;
    return n;
}
/* Waits until a number is what it is to be; half a minute is for one that never is. */
static int becomes(int (*number)(void), int wanted) {
    for (int i = 0; i < 3000 && number() != wanted; i++) usleep(10000);
    return number() == wanted;
}
/* What watches a process is there once, and goes when what it watches does. */
static void observed(void) {
    handle other;
    ptr p;
    int threads, descriptors = 0;
    CODE(cuMemAlloc(&p, 10 << 20));
    threads = threads_of_all();
    for (int i = 0; i < 20; i++) {
        if (i == 1) descriptors = open_descriptors();
        if (cuDevicePrimaryCtxRetain(&other, 1) || cuCtxSetCurrent(other) || cuMemAlloc(&p, 30 << 20)) exit(3);
        if (i == 0) SAY("two devices %d\n", becomes(devices_on_page, 2));
        if (cuDevicePrimaryCtxReset(1)) exit(4);
    }
    SAY("one device %d\n", becomes(devices_on_page, 1));
    SAY("as many threads %d\n", becomes(threads_of_all, threads));
    SAY("more descriptors %d\n", open_descriptors() - descriptors);
    SAY("%d\n", getpid());
}

/* A thread's first calls with a pending cancellation: a cancellation point in them must not unwind
 * the library's frames. */
static ptr shared;
static void *cancelled(void *arg) {
    ptr p;
    ipc h;
    handle c, s, graph;
    cuCtxSetCurrent(primary);
    CODE(cuStreamCreate(&s, 1));
    pthread_cancel(pthread_self());
    switch ((uintptr_t)arg) {
    case 0: CODE(cuMemAlloc(&p, 3 << 20)); break;
    case 1: SAY("# exported %u\n", cuIpcGetMemHandle(&h, shared)); break;
    case 2:
        CODE(cuStreamBeginCapture(s, 1));
        CODE(cuStreamEndCapture(s, &graph));
        break;
    case 3:
        CODE(cuCtxCreate(&c, 0, 0));
        CODE(cuMemAlloc(&p, 1 << 20));
        CODE(cuMemFree(p));
        CODE(cuCtxDestroy(c));
        break;
    case 4:
        CODE(cuGreenCtxCreate(&c, 0, 0, 1));
        CODE(cuGreenCtxDestroy(c));
        break;
    case 5: CODE(cuDevicePrimaryCtxReset(0)); break;
    }
    pthread_testcancel();
    return arg;
}

static void cancel(void) {
    pthread_t thread;
    void *result = 0;
    for (uintptr_t i = 0; i < 6; i++) {
        pthread_create(&thread, 0, cancelled, (void *)i);
        pthread_join(thread, &result);
        SAY("cancelled %d\n", result == PTHREAD_CANCELED);
        if (i == 0) CODE(cuMemAlloc(&shared, 1 << 20));
    }
}

static void observed_late(void) {
    handle other;
    ptr p;
    CODE(cuMemAlloc(&p, 10 << 20));
    CODE(cuDevicePrimaryCtxReset(0));
    usleep(20000);
    CODE(cuDevicePrimaryCtxRetain(&other, 1));
    CODE(cuCtxSetCurrent(other));
    CODE(cuMemAlloc(&p, 30 << 20));
    CODE(cuDevicePrimaryCtxReset(1));
}

#define FLOW(name) if (!strcmp(argv[2], #name)) { if (strncmp(#name, "share", 5)) start(); name(); return 0; }
int main(int argc, char **argv) {
    if (argc < 3) return 2;
    find(argv[1]);
    FLOW(basic) FLOW(async) FLOW(pitch) FLOW(pool) FLOW(facts) FLOW(nodes) FLOW(capture) FLOW(recapture) FLOW(graphics_capture) FLOW(held) FLOW(ahead) FLOW(reset) FLOW(reset_while_starting) FLOW(resets) FLOW(synchronous) FLOW(created) FLOW(outlives) FLOW(green)
    FLOW(children) FLOW(ending) FLOW(threads) FLOW(shortage) FLOW(shortage_of_one) FLOW(shortage_of_little) FLOW(full) FLOW(left) FLOW(captured_context)
    FLOW(captured_elsewhere) FLOW(own_captures) FLOW(captured_thread) FLOW(forked_captures) FLOW(observed_late) FLOW(captured_meanwhile) FLOW(captured_in_shortage) FLOW(captured_by_guest) FLOW(failed)
    FLOW(share_captured) FLOW(share_elsewhere) FLOW(share_child) FLOW(limited) FLOW(peers) FLOW(all_devices) FLOW(let_in_early) FLOW(guest_leaves) FLOW(created_guest) FLOW(share) FLOW(share_facts) FLOW(share_while_closing) FLOW(share_interrupted) FLOW(share_pieces) FLOW(share_devices) FLOW(pairs)
    FLOW(recorded) FLOW(recorded_resets) FLOW(observed) FLOW(cancel)
    fprintf(stderr, "no flow %s\n", argv[2]);
    return 2;
}

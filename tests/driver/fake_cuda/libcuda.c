/* A driver library with no driver: it keeps the per-thread state that callers must leave as they
 * found it (current context, capture mode), enforces the rules that a real driver punishes with a
 * crash or a broken capture, and fails on request. Two devices. Built by tests/cuda_*.rs, in
 * variants:
 *   -DVERSION=11040        an old driver
 *   -DINIT=100             cuInit returns this
 *   -DDEVICES=0            no devices
 *   -DWITHOUT_MAP          lacks cuMemMap
 *   -DWITHOUT_NEWER        lacks what CUDA 12.3, 12.5 and 12.8 added
 * With -DSTREAMS a stream's handle is the address of a pointer to a structure, handles and
 * structures are given out again, and streams can be captured. The structure has the stream's id at
 * byte ID_AT and a word at CAPTURE_AT that is not 0 while the stream is being captured; -1 leaves
 * one out. More variants of it:
 *   -DREADABLE=n           nothing can be read beyond n bytes
 *   -DALSO_CAPTURE_AT=n    a second such word
 *   -DSTALE                a structure given out again keeps the id of its first stream
 *   -DCAPTURE_OF_THE_FIRST the word shows captures that begin on a stream, not those it joins
 *   -DBLOCKING_ELSEWHERE   captures of blocking streams show 512 bytes further on
 *   -DTO_GRAPH_ELSEWHERE   captures into a graph that is there show 512 bytes further on
 *   -DWITHOUT_CAPTURES     lacks captures and graphs
 *   -DWITHOUT_OBJECTS      lacks user objects
 *   -DWITHOUT_REGISTER     cannot register host memory
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT
#define INIT 0
#endif
#ifndef DEVICES
#define DEVICES 2
#endif

typedef int code;
typedef void *ptr;
enum { DEPTH = 8 };

static __thread ptr stack[DEPTH];
static __thread int depth;
static __thread unsigned mode;
static char primary[2]; /* &primary[d] is device d's primary context */
static char other;      /* &other is a context of device 1 that is not the primary one */

static char fail_call[64], last_call[64];
static int fail_code, deinitialised, calls, retains, destroying, refuses_usage;
static long last_size, last_stream, last_flags;

/* ---- for the test ---- */
void fake_fail(const char *call, int c) { snprintf(fail_call, sizeof fail_call, "%s", call); fail_code = c; }
void fake_refuse_usage(int on) { refuses_usage = on; }
void fake_deinitialise(int on) { deinitialised = on; }
int fake_calls(void) { return calls; }
int fake_retains(void) { return retains; }
int fake_depth(void) { return depth; }
ptr fake_current(void) { return depth ? stack[depth - 1] : 0; }
void fake_set_current(ptr c) { depth = c ? 1 : 0; stack[0] = c; }
ptr fake_primary(int d) { return &primary[d]; }
ptr fake_other(void) { return &other; }
unsigned fake_mode(void) { return mode; }
void fake_set_mode(unsigned m) { mode = m; }
const char *fake_last_call(void) { return last_call; }
long fake_last_size(void) { return last_size; }
long fake_last_stream(void) { return last_stream; }
long fake_last_flags(void) { return last_flags; }

/* ---- rules ---- */
static void die(const char *name, const char *why);
static code enter(const char *name) {
    if (destroying) die(name, "called by the destructor of a user object");
    calls++;
    snprintf(last_call, sizeof last_call, "%s", name);
    if (deinitialised) return 4;
    if (fail_code && !strcmp(fail_call, name)) return fail_code;
    return 0;
}
static void die(const char *name, const char *why) {
    fprintf(stderr, "fake driver: %s: %s\n", name, why);
    abort();
}
#define BEGIN                                                                                                                  \
    do {                                                                                                                       \
        code c_ = enter(__func__);                                                                                             \
        if (c_) return c_;                                                                                                     \
    } while (0)
/* A real driver crashes in these without a context. */
#define NEEDS_CONTEXT                                                                                                          \
    do {                                                                                                                       \
        if (!depth || !stack[depth - 1]) die(__func__, "no current context");                                                  \
    } while (0)
/* A real driver invalidates captures in these unless the thread is in relaxed mode (2). */
#define NEEDS_RELAXED                                                                                                          \
    do {                                                                                                                       \
        if (mode != 2) return 900;                                                                                             \
    } while (0)
static int device_of(ptr c) { return c == &primary[1] || c == &other ? 1 : 0; }

/* ---- start ---- */
code cuDriverGetVersion(int *v) { BEGIN; *v = VERSION; return 0; }
code cuInit(unsigned f) { BEGIN; return f ? 1 : INIT; }
code cuGetErrorName(int c, const char **s) {
    *s = c == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : c == 100 ? "CUDA_ERROR_NO_DEVICE" : c == 999 ? "CUDA_ERROR_UNKNOWN" : c == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
    return *s ? 0 : 1;
}
code cuGetErrorString(int c, const char **s) { *s = c == 2 ? "out of memory" : "words"; return c < 1000 ? 0 : 1; }
code cuDeviceGetCount(int *n) { BEGIN; *n = DEVICES; return 0; }
code cuDeviceGet(int *d, int i) { BEGIN; *d = i; return 0; }
code cuDeviceGetName(char *s, int n, int d) { BEGIN; snprintf(s, (size_t)n, "Fake %d", d); return 0; }
code cuDeviceGetPCIBusId(char *s, int n, int d) { BEGIN; snprintf(s, (size_t)n, "FFFF:%02X:00.0", d); return 0; }
code cuDeviceTotalMem_v2(size_t *n, int d) { BEGIN; *n = (size_t)(d + 1) << 30; return 0; }
code cuDeviceGetAttribute(int *v, int a, int d) {
    BEGIN;
    if (a == 110) return 1; /* an attribute this driver does not know */
    *v = a == 75 ? 9 : a == 76 ? 0 : 1;
    return 0;
}
code cuDeviceCanAccessPeer(int *y, int a, int b) { BEGIN; *y = a == 0 && b == 1; return 0; }

/* ---- contexts ---- */
code cuDevicePrimaryCtxRetain(ptr *c, int d) { BEGIN; retains++; *c = &primary[d]; return 0; }
code cuCtxGetCurrent(ptr *c) { BEGIN; *c = fake_current(); return 0; }
code cuCtxSetCurrent(ptr c) { BEGIN; if (!depth) depth = 1; stack[depth - 1] = c; return 0; }
code cuCtxPushCurrent_v2(ptr c) { BEGIN; if (depth == DEPTH) die(__func__, "context stack overflow"); stack[depth++] = c; return 0; }
code cuCtxPopCurrent_v2(ptr *c) { BEGIN; if (!depth) die(__func__, "context stack underflow"); *c = stack[--depth]; return 0; }
code cuCtxGetDevice(int *d) { BEGIN; if (!fake_current()) return 201; *d = device_of(fake_current()); return 0; }
code cuCtxSynchronize(void) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; return 0; }
code cuThreadExchangeStreamCaptureMode(unsigned *m) { BEGIN; unsigned t = mode; mode = *m; *m = t; return 0; }

/* ---- memory ---- */
struct prop { int type, handles, location, id; void *win; unsigned char compression, rdma; unsigned short usage; char r[4]; };
struct access { int location, id, flags; };
code cuMemGetInfo_v2(size_t *f, size_t *t) { BEGIN; NEEDS_CONTEXT; *f = 1u << 20; *t = 1u << 30; return 0; }
code cuMemAddressReserve(uint64_t *p, size_t n, size_t a, uint64_t at, uint64_t f) { BEGIN; NEEDS_CONTEXT; if (at || f) return 1; last_size = (long)n; *p = a; return 0; }
code cuMemAddressFree(uint64_t p, size_t n) { BEGIN; NEEDS_CONTEXT; return 0; }
code cuMemCreate(uint64_t *h, size_t n, const struct prop *p, uint64_t f) {
    BEGIN; NEEDS_CONTEXT;
    if (f || p->type != 1 || p->location != 1) return 1;
    if (p->usage && refuses_usage) return 801;
    last_size = (long)n; last_flags = p->usage * 10000 + p->handles * 1000 + p->rdma * 100 + p->id; *h = 77; return 0;
}
code cuMemRelease(uint64_t h) { BEGIN; NEEDS_CONTEXT; return 0; }
code cuMemExportToShareableHandle(int *fd, uint64_t h, int t, uint64_t f) { BEGIN; NEEDS_CONTEXT; if (t != 1 || f) return 1; *fd = dup(0); return *fd < 0 ? 999 : 0; }
code cuMemImportFromShareableHandle(uint64_t *h, ptr fd, int t) { BEGIN; NEEDS_CONTEXT; if (t != 1) return 1; *h = 1000 + (uint64_t)(intptr_t)fd; return 0; }
#ifndef WITHOUT_MAP
code cuMemMap(uint64_t p, size_t n, size_t o, uint64_t h, uint64_t f) { BEGIN; NEEDS_CONTEXT; return o || f ? 1 : 0; }
#endif
code cuMemSetAccess(uint64_t p, size_t n, const struct access *d, size_t count) {
    BEGIN; NEEDS_CONTEXT;
    last_flags = 0;
    for (size_t i = 0; i < count; i++) {
        if (d[i].location != 1 || d[i].flags != 3) return 1;
        last_flags = last_flags * 10 + d[i].id + 1;
    }
    return 0;
}
code cuMemUnmap(uint64_t p, size_t n) { BEGIN; NEEDS_CONTEXT; return 0; }
code cuMemGetAllocationGranularity(size_t *g, const struct prop *p, int o) { BEGIN; NEEDS_CONTEXT; *g = o ? 0 : 2u << 20; return 0; }

#ifndef STREAMS
/* ---- streams: handle 0x1000 * n is stream n, of device 1 when odd, capturing when 8 ---- */
#define NEEDS_STREAM(s)                                                                                                        \
    do {                                                                                                                       \
        last_stream = (long)(s);                                                                                               \
        if ((s) <= 2) NEEDS_CONTEXT;                                                                                           \
        else if ((s) & 0xfff) return 400;                                                                                      \
    } while (0)
code cuStreamGetId(uintptr_t s, uint64_t *id) { BEGIN; NEEDS_STREAM(s); *id = s <= 2 ? 500 : s >> 12; return 0; }
code cuStreamGetCtx(uintptr_t s, ptr *c) { BEGIN; NEEDS_STREAM(s); if (s == 0x8000) return 900; *c = s == 0x7000 ? (ptr)&other : &primary[s >> 12 & 1]; return 0; }
code cuStreamIsCapturing(uintptr_t s, unsigned *st) { BEGIN; NEEDS_STREAM(s); *st = s == 0x8000; return 0; }
code cuStreamCreate(uintptr_t *s, unsigned f) { BEGIN; NEEDS_CONTEXT; if (f != 1) return 1; *s = 0x3000; return 0; }
code cuStreamDestroy_v2(uintptr_t s) { BEGIN; NEEDS_STREAM(s); return 0; }
code cuStreamSynchronize(uintptr_t s) { BEGIN; NEEDS_STREAM(s); NEEDS_RELAXED; return 0; }
code cuStreamWaitEvent(uintptr_t s, ptr e, unsigned f) { BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT; return f ? 1 : 0; }
code cuEventCreate(uintptr_t *e, unsigned f) { BEGIN; NEEDS_CONTEXT; if (f != 2) return 1; *e = 0x99; return 0; }
code cuEventDestroy_v2(ptr e) { BEGIN; NEEDS_CONTEXT; return 0; }
code cuEventRecord(ptr e, uintptr_t s) { BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT; return 0; }
code cuEventQuery(ptr e) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; return 0; }
code cuEventSynchronize(ptr e) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; return 0; }
#ifndef WITHOUT_NEWER
code cuCtxRecordEvent(ptr c, ptr e) { BEGIN; NEEDS_CONTEXT; return c == fake_current() ? 0 : 400; }
code cuStreamGetDevice(uintptr_t s, int *d) { BEGIN; NEEDS_STREAM(s); if (s == 0x8000) return 900; *d = (int)(s >> 12 & 1); return 0; }
#endif
#else
/* ---- streams with structures ---- */
#ifndef ID_AT
#define ID_AT 336
#endif
#ifndef CAPTURE_AT
#define CAPTURE_AT 1096
#endif
#ifndef ALSO_CAPTURE_AT
#define ALSO_CAPTURE_AT -1
#endif
enum { STREAM_COUNT = 64, ROOM = 8192 };
struct graph;
struct event { struct graph *graph; };
static struct stream {
    char *structure; /* first: a handle is the address of this */
    uint64_t id;
    struct graph *graph; /* it is being captured into */
    int device, live, joined, blocking, to_graph;
} streams[STREAM_COUNT];
static uint64_t last_id = 40;
static int live_streams, live_events, capturing;
int fake_live(void) { return live_streams * 1000 + live_events; }
int fake_capturing(void) { return capturing; }

static void put(struct stream *s, long at, uint64_t word) {
    if (at >= 0) memcpy(s->structure + at, &word, sizeof word);
}
/* What the structure shows. A counter beside it changes in every structure when any stream is
 * captured. */
static void show(struct stream *s) {
    uint64_t word = (uint64_t)(uintptr_t)s->graph;
    int i;
#ifdef CAPTURE_OF_THE_FIRST
    if (s->joined) word = 0;
#endif
    long at = CAPTURE_AT;
#ifdef BLOCKING_ELSEWHERE
    if (s->blocking) at += 512;
#endif
#ifdef TO_GRAPH_ELSEWHERE
    if (s->to_graph) at += 512;
#endif
    put(s, at, word);
    put(s, ALSO_CAPTURE_AT, word);
    for (i = 0; i < STREAM_COUNT; i++)
        if (streams[i].structure) put(&streams[i], 8, (uint64_t)capturing);
}
static struct stream *known(uintptr_t s, const char *name) {
    struct stream *f = (struct stream *)s;
    if (f < streams || f >= streams + STREAM_COUNT || (s - (uintptr_t)streams) % sizeof *streams || !f->live)
        die(name, "no such stream");
    return f;
}
#define NEEDS_STREAM(s)                                                                                                        \
    do {                                                                                                                       \
        last_stream = (long)(s);                                                                                               \
        if ((s) <= 2) NEEDS_CONTEXT;                                                                                           \
        else known(s, __func__);                                                                                               \
    } while (0)
#define CREATED(s) ((s) > 2 ? (struct stream *)(s) : 0)
code cuStreamCreate(uintptr_t *out, unsigned f) {
    struct stream *s = streams;
    BEGIN; NEEDS_CONTEXT;
    while (s->live) if (++s == streams + STREAM_COUNT) return 2;
    if (!s->structure) {
        char *room = mmap(0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) return 2;
        memset(room, 0, ROOM);
#ifdef READABLE
        s->structure = room + ROOM / 2 - READABLE;
        if (mprotect(room + ROOM / 2, ROOM / 2, PROT_NONE)) return 2;
#else
        s->structure = room + 64;
#endif
        put(s, ID_AT, last_id + 1);
    }
    s->id = ++last_id; s->device = device_of(fake_current()); s->graph = 0; s->live = 1; s->joined = 0;
    s->blocking = !(f & 1);
#ifndef STALE
    put(s, ID_AT, s->id);
#endif
    show(s);
    live_streams++;
    *out = (uintptr_t)s;
    return 0;
}
code cuStreamGetFlags(uintptr_t s, unsigned *f) { BEGIN; NEEDS_STREAM(s); *f = CREATED(s) ? !CREATED(s)->blocking : 0; return 0; }
code cuStreamDestroy_v2(uintptr_t s) {
    BEGIN; NEEDS_STREAM(s);
    if (CREATED(s)->graph) die(__func__, "the stream is being captured");
    CREATED(s)->live = 0; live_streams--;
    return 0;
}
code cuStreamGetCtx(uintptr_t s, ptr *c) { BEGIN; NEEDS_STREAM(s); *c = &primary[CREATED(s) ? CREATED(s)->device : 0]; return 0; }
code cuStreamIsCapturing(uintptr_t s, unsigned *st) { BEGIN; NEEDS_STREAM(s); *st = CREATED(s) && CREATED(s)->graph; return 0; }
code cuEventCreate(uintptr_t *e, unsigned f) { BEGIN; NEEDS_CONTEXT; if (f != 2) return 1; *e = (uintptr_t)calloc(1, sizeof(struct event)); live_events++; return *e ? 0 : 2; }
code cuEventDestroy_v2(ptr e) { BEGIN; NEEDS_CONTEXT; free(e); live_events--; return 0; }
code cuEventRecord(struct event *e, uintptr_t s) { BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT; e->graph = CREATED(s) ? CREATED(s)->graph : 0; return 0; }
code cuEventQuery(ptr e) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; return 0; }
code cuEventSynchronize(ptr e) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; return 0; }
#include "graphs.h"
code cuStreamGetId(uintptr_t s, uint64_t *id) {
    BEGIN; NEEDS_STREAM(s);
    if (CREATED(s) && CREATED(s)->graph) { CREATED(s)->graph->valid = 0; return 906; }
    *id = CREATED(s) ? CREATED(s)->id : 20;
    return 0;
}
code cuStreamSynchronize(uintptr_t s) {
    BEGIN; NEEDS_STREAM(s);
    if (CREATED(s) && CREATED(s)->graph) { CREATED(s)->graph->valid = 0; return 900; }
    NEEDS_RELAXED;
    return 0;
}
code cuStreamWaitEvent(uintptr_t s, struct event *e, unsigned f) {
    BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT;
    if (f || !CREATED(s)) return 1;
    if (CREATED(s)->graph && e->graph != CREATED(s)->graph) { CREATED(s)->graph->valid = 0; return 907; }
    if (e->graph && !CREATED(s)->graph) {
        CREATED(s)->graph = e->graph; CREATED(s)->joined = 1; capturing++;
        show(CREATED(s));
    }
    return 0;
}
#ifndef WITHOUT_CAPTURES
code cuStreamBeginCapture_v2(uintptr_t s, unsigned m) {
    BEGIN; NEEDS_STREAM(s);
    if (m > 2 || !CREATED(s) || CREATED(s)->graph) return 1;
    CREATED(s)->graph = new_graph(m);
    if (!CREATED(s)->graph) return 2;
    CREATED(s)->joined = CREATED(s)->to_graph = 0; capturing++;
    show(CREATED(s));
    return 0;
}
#ifndef WITHOUT_NEWER
code cuGraphCreate(struct graph **g, unsigned f) { BEGIN; if (f) return 1; *g = new_graph(2); return *g ? 0 : 2; }
code cuStreamBeginCaptureToGraph(uintptr_t s, struct graph *g, ptr nodes, ptr edges, size_t n, unsigned m) {
    BEGIN; NEEDS_STREAM(s);
    if (m > 2 || !CREATED(s) || CREATED(s)->graph || !g || nodes || edges || n) return 1;
    g->mode = (int)m; g->thread = pthread_self();
    CREATED(s)->graph = g; CREATED(s)->joined = 0; CREATED(s)->to_graph = 1; capturing++;
    show(CREATED(s));
    return 0;
}
#endif
code cuStreamEndCapture(uintptr_t s, struct graph **g) {
    struct graph *graph;
    int i;
    BEGIN; NEEDS_STREAM(s);
    if (!CREATED(s) || !CREATED(s)->graph || CREATED(s)->joined) return 1;
    graph = CREATED(s)->graph;
    if (graph->mode != 2 && !pthread_equal(graph->thread, pthread_self())) return 908;
    for (i = 0; i < STREAM_COUNT; i++) {
        if (streams[i].graph != graph) continue;
        streams[i].graph = 0; capturing--;
        show(&streams[i]);
        streams[i].to_graph = 0;
    }
    *g = graph->valid ? graph : 0;
    if (graph->valid) return 0;
    drop_graph(graph);
    return 901;
}
#endif
#ifndef WITHOUT_NEWER
code cuCtxRecordEvent(ptr c, struct event *e) { BEGIN; NEEDS_CONTEXT; return capturing ? 900 : c == fake_current() ? 0 : 400; }
code cuStreamGetDevice(uintptr_t s, int *d) { BEGIN; NEEDS_STREAM(s); *d = CREATED(s) ? CREATED(s)->device : 0; return 0; }
#endif
#endif

/* ---- data ---- */
#ifdef STREAMS
#define CAPTURES(s, type)                                                                                                      \
    do {                                                                                                                       \
        if (CREATED(s) && CREATED(s)->graph) return node(CREATED(s)->graph, type);                                             \
    } while (0)
#else
#define CAPTURES(s, type)
#endif
code cuMemcpyAsync(uint64_t d, uint64_t s, size_t n, uintptr_t st) { BEGIN; NEEDS_STREAM(st); NEEDS_CONTEXT; CAPTURES(st, 1); last_size = (long)n; return 0; }
code cuMemsetD8Async(uint64_t d, unsigned char b, size_t n, uintptr_t st) { BEGIN; NEEDS_STREAM(st); NEEDS_CONTEXT; CAPTURES(st, 2); last_size = (long)n; last_flags = b; return 0; }
code cuMemHostAlloc(ptr *p, size_t n, unsigned f) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; *p = malloc(n); return *p ? 0 : 2; }
code cuMemFreeHost(ptr p) { BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED; free(p); return 0; }
#ifndef WITHOUT_REGISTER
/* Registered memory must be mapped and there, and is unregistered by the address it was
 * registered with. */
enum { BLOCKS = 16, PAGE = 4096 };
static struct { char *start; size_t size; } registered[BLOCKS];
int fake_registered(void) { int n = 0; for (int i = 0; i < BLOCKS; i++) n += registered[i].start != 0; return n; }
code cuMemHostRegister_v2(ptr p, size_t n, unsigned f) {
    BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED;
    last_size = (long)n; last_flags = (long)f;
    if (!n || n % PAGE || (uintptr_t)p % PAGE) return 1;
    for (size_t at = 0; at < n; at += PAGE) {
        unsigned char there = 0;
        if (mincore((char *)p + at, PAGE, &there) || !(there & 1)) die(__func__, "a page is not there");
    }
    for (int i = 0; i < BLOCKS; i++)
        if (!registered[i].start) { registered[i].start = p; registered[i].size = n; return 0; }
    return 2;
}
code cuMemHostUnregister(ptr p) {
    BEGIN; NEEDS_CONTEXT; NEEDS_RELAXED;
    for (int i = 0; i < BLOCKS; i++)
        if (p && registered[i].start == p) { registered[i].start = 0; return 0; }
    die(__func__, "not registered");
    return 1;
}
#endif
static uint64_t threshold[2];
static char pools[2];
uint64_t fake_threshold(int d) { return threshold[d]; }
code cuDeviceGetDefaultMemPool(ptr *p, int d) { BEGIN; *p = &pools[d]; return 0; }
code cuMemPoolSetAttribute(ptr p, int a, uint64_t *v) { BEGIN; if (a != 4) return 1; threshold[p == &pools[1]] = *v; return 0; }
code cuMemAllocAsync(uint64_t *p, size_t n, uintptr_t s) { BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT; NEEDS_RELAXED; *p = 0x42000; CAPTURES(s, 10); return 0; }
code cuMemFreeAsync(uint64_t p, uintptr_t s) { BEGIN; NEEDS_STREAM(s); NEEDS_CONTEXT; NEEDS_RELAXED; CAPTURES(s, 11); return 0; }

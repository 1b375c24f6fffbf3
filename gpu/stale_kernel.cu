// Kernels that use memory after the arena that it belonged to has ended, on a real GPU.
//
//   stale_kernel
//
// Every case is a child process with a GPUMEM_ARENA_DEBUG of its own, and what it says on stderr is
// looked at: unmapped memory must fault, and gpumem must name what went last; writes to poisoned
// memory must be found, and late reads give NaN; kept memory may be used in every mode; and with
// the detector off nobody notices anything. Exits with 1 when a case is not as it should be.
#include <gpumem.h>

#include <cuda_runtime.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

__global__ void scale(float *p, size_t n, float by) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = p[i] * by + 1;
}

__global__ void count_nan(const float *p, size_t n, unsigned *nan) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && p[i] != p[i]) atomicAdd(nan, 1u);
}

enum { FLOATS = 1 << 20, BYTES = FLOATS * 4, BLOCK = 256, BLOCKS = FLOATS / BLOCK };

[[noreturn]] static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stdout, "  ");
    vfprintf(stdout, format, arguments);
    va_end(arguments);
    char text[1024];
    gpumem_last_error(text, sizeof text);
    fprintf(stdout, "\n  last error of gpumem: %s\n", text);
    fflush(nullptr);
    _exit(1);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail("%s:%d: %s", __FILE__, __LINE__, #condition);                                           \
    } while (0)
#define OK(call) CHECK((call) == GPUMEM_OK)

static bool error_says(const char *part) {
    char text[1024];
    gpumem_last_error(text, sizeof text);
    return strstr(text, part) != nullptr;
}

static gpumem_stream stream;
static float *stale, *kept;
static uint64_t stale_id;

// One step that keeps one of its two buffers.
static void step() {
    gpumem_arena arena = nullptr;
    void *p = nullptr, *q = nullptr;
    OK(gpumem_stream_create(&stream));
    OK(gpumem_arena_enter_named("step", &arena));
    OK(gpumem_malloc_async(BYTES, stream, &p));
    OK(gpumem_malloc_async(BYTES, stream, &q));
    stale = (float *)p;
    kept = (float *)q;
    OK(gpumem_allocation_id_get(p, &stale_id));
    OK(gpumem_memset_async(p, 0, BYTES, stream));
    OK(gpumem_memset_async(q, 0, BYTES, stream));
    for (float *buffer : {stale, kept}) scale<<<BLOCKS, BLOCK, 0, (cudaStream_t)stream>>>(buffer, FLOATS, 2);
    CHECK(cudaGetLastError() == cudaSuccess);
    OK(gpumem_arena_exit(arena, &q, 1, nullptr));
}

static cudaError_t use(float *buffer) {
    scale<<<BLOCKS, BLOCK, 0, (cudaStream_t)stream>>>(buffer, FLOATS, 3);
    const cudaError_t launched = cudaGetLastError();
    return launched != cudaSuccess ? launched : cudaStreamSynchronize((cudaStream_t)stream);
}

static void late_use_faults() {
    step();
    char text[512];
    OK(gpumem_arena_describe(stale + 4, text, sizeof text, nullptr));
    CHECK(strstr(text, "is 16 bytes into allocation") != nullptr);
    const cudaError_t used = use(stale);
    if (used != cudaErrorIllegalAddress) fail("a late use gave %s", cudaGetErrorName(used));
    CHECK(gpumem_stream_sync(stream) == GPUMEM_ERROR_DRIVER);
    CHECK(error_says("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

static void late_helper_is_refused() {
    step();
    CHECK(gpumem_memset_async(stale, 0, 16, stream) != GPUMEM_OK);
    CHECK(error_says("is in memory reclaimed by arena_exit at depth 0"));
    CHECK(use(kept) == cudaSuccess);
}

static void kept_memory_is_fine() {
    step();
    OK(gpumem_check(kept, "scale", "buffer"));
    CHECK(use(kept) == cudaSuccess);
    float first = 0;
    OK(gpumem_memcpy_async(&first, kept, sizeof first, stream));
    OK(gpumem_stream_sync(stream));
    CHECK(first == 4);
    OK(gpumem_arena_verify());
    gpumem_free(kept);
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    OK(gpumem_validate());
    gpumem_stats stats;
    GPUMEM_INIT(&stats);
    OK(gpumem_stats_get(0, &stats));
    CHECK(stats.allocations == 0);
}

static void late_write_is_found() {
    step();
    OK(gpumem_arena_verify());
    void *count = nullptr;
    unsigned nan = 0;
    OK(gpumem_malloc_async(sizeof nan, stream, &count));
    OK(gpumem_memset_async(count, 0, sizeof nan, stream));
    count_nan<<<BLOCKS, BLOCK, 0, (cudaStream_t)stream>>>(stale, FLOATS, (unsigned *)count);
    OK(gpumem_memcpy_async(&nan, count, sizeof nan, stream));
    OK(gpumem_stream_sync(stream));
    CHECK(nan == FLOATS);
    // NaN times anything is NaN, but seldom with all bits set.
    CHECK(cudaMemsetAsync(stale + 100, 0, 16, (cudaStream_t)stream) == cudaSuccess);
    CHECK(use(stale) == cudaSuccess);
    CHECK(gpumem_arena_verify() == GPUMEM_ERROR_USE_AFTER_FREE);
    CHECK(error_says("stale write after arena_exit: "));
}

static void nobody_notices() {
    step();
    OK(gpumem_check(stale, "scale", "buffer"));
    CHECK(use(stale) == cudaSuccess);
    OK(gpumem_arena_verify());
}

// ---- running them -------------------------------------------------------------------------------

static int failed;

static void run(const char *name, const char *debug, void (*work)(), const char *says) {
    int pipes[2];
    fflush(nullptr);
    if (pipe(pipes) != 0) abort();
    const pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        setenv("GPUMEM_ARENA_DEBUG", debug, 1);
        work();
        fflush(nullptr);
        _exit(0);
    }
    close(pipes[1]);
    std::string said;
    char part[4096];
    for (;;) {
        const ssize_t got = read(pipes[0], part, sizeof part);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        said.append(part, (size_t)got);
    }
    close(pipes[0]);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    const bool told = says == nullptr ? said.find("gpumem: ") == std::string::npos : said.find(says) != std::string::npos;
    printf("%-4s %s (GPUMEM_ARENA_DEBUG=%s)\n", clean && told ? "ok" : "FAIL", name, debug);
    if (!clean || !told) {
        failed++;
        printf("  status %#x; expected on stderr: %s; it said:\n%s\n", status, says == nullptr ? "nothing" : says,
               said.c_str());
    }
}

int main() {
    // The children first and only: they start CUDA themselves.
    run("a late use by a kernel faults and is named", "unmap", late_use_faults,
        "gpumem: a kernel used memory that is not mapped; reclaimed most recently: allocation ");
    run("a late use by a helper is refused", "unmap", late_helper_is_refused, nullptr);
    run("a late write by a kernel is found", "poison", late_write_is_found, "gpumem: stale write after arena_exit: ");
    for (const char *debug : {"off", "check,abort", "poison,abort", "unmap,abort"}) {
        run("kept memory is fine", debug, kept_memory_is_fine, nullptr);
    }
    run("off, a late use goes unnoticed", "off", nobody_notices, nullptr);
    printf("stale_kernel: %d failed\n", failed);
    return failed != 0;
}

// What the programs with kernels share: checks that name the place, and handles.
#pragma once

#include <gpumem.h>

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

static int failures = 0;

// Counts a failure and goes on; what follows the condition is printed as by printf.
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            std::fprintf(stderr, "%s:%d: %s:", __FILE__, __LINE__, #condition);                                        \
            std::fprintf(stderr, " " __VA_ARGS__);                                                                     \
            std::fprintf(stderr, "\n");                                                                                \
        }                                                                                                              \
    } while (0)

static inline void must(cudaError_t e, const char *what, const char *file, int line) {
    if (e == cudaSuccess) return;
    std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(e));
    std::exit(1);
}
#define CUDA(call) must((call), #call, __FILE__, __LINE__)

static inline void own(gpumem_status s, const char *what, const char *file, int line) {
    if (s == GPUMEM_OK) return;
    char text[1024] = "";
    gpumem_last_error(text, sizeof text);
    std::fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, what, gpumem_status_name(s), text);
    std::exit(1);
}
#define OWN(call) own((call), #call, __FILE__, __LINE__)

static inline gpumem_stream handle(cudaStream_t s) { return (gpumem_stream)s; }

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* A cudaStream_t or CUstream: the same type, declared without CUDA's headers. */
typedef struct CUstream_st *gpumem_stream;

/* A handle to an arena: see arena.h. It is opaque: compare it only with NULL and other handles. */
typedef struct gpumem_arena_st *gpumem_arena;

/* A handle to a reservation: see reserve.h. It is opaque: compare it only with NULL and other
 * handles. */
typedef struct gpumem_reservation_st *gpumem_reservation;

/* Casts that neither language warns about, for the macros below. */
#ifdef __cplusplus
#define GPUMEM_CAST(type, value) static_cast<type>(value)
#define GPUMEM_STREAM_NUMBER(number) reinterpret_cast<gpumem_stream>(GPUMEM_CAST(uintptr_t, number))
#else
#define GPUMEM_CAST(type, value) ((type)(value))
#define GPUMEM_STREAM_NUMBER(number) ((gpumem_stream)(number))
#endif

/* The legacy default stream of the current device, CUDA's cudaStreamLegacy; NULL means the same. */
#define GPUMEM_STREAM_LEGACY GPUMEM_STREAM_NUMBER(1)
/* The default stream of the calling thread, CUDA's cudaStreamPerThread. */
#define GPUMEM_STREAM_PER_THREAD GPUMEM_STREAM_NUMBER(2)
/* What CUDA means by stream 0 in this file: the thread's own stream where it is compiled with
 * CUDA_API_PER_THREAD_DEFAULT_STREAM (nvcc --default-stream per-thread), else the legacy one. The
 * functions cannot know how their caller was compiled: NULL is the legacy stream to them, so pass
 * this where you would pass 0 to CUDA. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define GPUMEM_STREAM_DEFAULT GPUMEM_STREAM_PER_THREAD
#elif defined(__cplusplus)
#define GPUMEM_STREAM_DEFAULT GPUMEM_CAST(gpumem_stream, nullptr)
#else
#define GPUMEM_STREAM_DEFAULT GPUMEM_STREAM_NUMBER(0)
#endif

/* Zeroes a structure of this header and sets its size: gpumem_stats stats; GPUMEM_INIT(&stats); The
 * argument is evaluated once. The size is the first field of every structure. */
#define GPUMEM_INIT(structure) \
    GPUMEM_CAST(void, *GPUMEM_CAST(uint32_t *, memset((structure), 0, sizeof *(structure))) = \
        GPUMEM_CAST(uint32_t, sizeof *(structure) + 0 * sizeof (structure)->size))

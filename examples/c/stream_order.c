/*
 * Is a program's stream order right? Ask without a GPU.
 *
 * One stream fills buffers, another one reads them. The first version forgets two things, and works
 * nearly always: on a GPU that is busy with something else it reads a buffer too early, or one that
 * has a new owner. The simulated host device runs streams as late and in as odd an order as CUDA
 * allows, and says on stderr what is not ordered. The second version is mended, and the device has
 * nothing to say.
 *
 *   cc examples/c/stream_order.c -lgpumem && ./a.out
 *
 * Any program can be asked so, without a change: GPUMEM_BACKEND=host GPUMEM_HOST_MODE=simulate
 * ./program
 */
#include <gpumem.h>
#include <gpumem/sim.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                                             \
    do {                                                                     \
        if ((call) != GPUMEM_OK) {                                           \
            char text[1000];                                                 \
            gpumem_last_error(text, sizeof text);                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, text);        \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

#define BYTES ((size_t)1 << 20)

/* Fills buffers on one stream and copies them on another. */
static void pipeline(int mended) {
    gpumem_stream producer, consumer;
    void *result;
    int i;
    OK(gpumem_stream_create(&producer));
    OK(gpumem_stream_create(&consumer));
    OK(gpumem_malloc_async(BYTES, consumer, &result));
    for (i = 0; i < 3; i++) {
        void *buffer;
        OK(gpumem_malloc_async(BYTES, producer, &buffer));
        OK(gpumem_memset_async(buffer, i, BYTES, producer));
        /* The copy comes after the fill only if the consumer waits for the producer. */
        if (mended) OK(gpumem_stream_wait(consumer, producer));
        OK(gpumem_memcpy_async(result, buffer, BYTES, consumer));
        /* The buffer is the producer's again after this; so it must be the consumer that gives
         * it back, or the consumer must have been announced: gpumem_record_stream. */
        OK(gpumem_free_async(buffer, mended ? consumer : producer));
    }
    OK(gpumem_free_async(result, consumer));
    OK(gpumem_stream_sync(producer));
    OK(gpumem_stream_sync(consumer));
    OK(gpumem_stream_destroy(producer));
    OK(gpumem_stream_destroy(consumer));
}

static unsigned long long mistakes(void) {
    uint64_t n;
    /* Work is looked at when it runs. */
    OK(gpumem_device_sync());
    OK(gpumem_sim_reports_get(&n));
    return n;
}

int main(void) {
    gpumem_context_options options;
    unsigned long long racy, mended;
    GPUMEM_INIT(&options);
    options.backend = GPUMEM_BACKEND_HOST;
    options.host_mode = GPUMEM_HOST_MODE_SIMULATE;
    options.host_seed = 1; /* another seed is another order: try several */
    OK(gpumem_init(&options));
    pipeline(0);
    racy = mistakes();
    pipeline(1);
    mended = mistakes() - racy;
    printf("as it was first: %s\n", racy > 0 ? "mistakes were reported" : "nothing was reported");
    printf("mended: %llu mistakes\n", mended);
    return racy > 0 && mended == 0 ? 0 : 1;
}

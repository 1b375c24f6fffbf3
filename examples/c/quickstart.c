/*
 * The first program: memory on two streams, handed from one to the other, and what the allocator
 * did.
 *
 * Runs on a GPU, and without one on the host device (GPUMEM_BACKEND=host asks for it).
 *
 *     cc quickstart.c $(pkg-config --cflags --libs gpumem) -o quickstart
 */
#include <gpumem.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with what went wrong. */
static void check(gpumem_status status, const char *what) {
    if (status != GPUMEM_OK) {
        char text[512];
        gpumem_last_error(text, sizeof text);
        fprintf(stderr, "%s: %s: %s\n", what, gpumem_status_name(status), text);
        exit(EXIT_FAILURE);
    }
}

int main(void) {
    const size_t bytes = 64u << 20;
    gpumem_stream produce, consume;
    gpumem_device_props props;
    gpumem_stats stats;
    unsigned char last = 0;
    int device = 0, round;

    check(gpumem_device_get(&device), "device");
    GPUMEM_INIT(&props);
    check(gpumem_device_props_get(device, &props), "properties");
    printf("gpumem %s on %s (%s), %.1f GiB\n", gpumem_version_string(), props.name, gpumem_backend_name(),
           (double)props.total_bytes / (1024.0 * 1024.0 * 1024.0));

    check(gpumem_stream_create(&produce), "stream");
    check(gpumem_stream_create(&consume), "stream");

    for (round = 1; round <= 10; round++) {
        void *data, *copy;

        /* Allocated in the order of its stream: the memset comes after, nobody waits. */
        check(gpumem_malloc_async(bytes, produce, &data), "allocate");
        check(gpumem_memset_async(data, round, bytes, produce), "fill");

        /* The other stream takes over where the first one is now. */
        check(gpumem_stream_wait(consume, produce), "wait");
        check(gpumem_malloc_async(bytes, consume, &copy), "allocate");
        check(gpumem_memcpy_async(copy, data, bytes, consume), "copy");
        check(gpumem_memcpy_async(&last, (char *)copy + bytes - 1, 1, consume), "read");

        /* Freed while the copies may still be running; the memory is reused when they are done. */
        check(gpumem_free_async(data, consume), "free");
        check(gpumem_free_async(copy, consume), "free");
        check(gpumem_stream_sync(consume), "synchronise");
        if (last != round) {
            fprintf(stderr, "round %d read %d\n", round, last);
            return EXIT_FAILURE;
        }
    }

    GPUMEM_INIT(&stats);
    check(gpumem_stats_get(device, &stats), "statistics");
    printf("%llu allocations, %llu frees, %llu live\n", (unsigned long long)stats.mallocs,
           (unsigned long long)stats.frees, (unsigned long long)stats.allocations);
    printf("%.1f MiB mapped at most for %.1f MiB live at most\n", (double)stats.peak_mapped / (1024.0 * 1024.0),
           (double)stats.peak_live / (1024.0 * 1024.0));

    check(gpumem_stream_destroy(produce), "destroy");
    check(gpumem_stream_destroy(consume), "destroy");
    check(gpumem_trim(0), "trim");
    return EXIT_SUCCESS;
}

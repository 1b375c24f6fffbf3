/* A program that leaks: each step remembers one buffer that nobody needs any more. Two commands
 * point to the line:
 *
 *     GPUMEM_RECORD=leak.gmrec GPUMEM_RECORD_STACKS=16 target/examples/leak
 *     gpumem stats leak.gmrec                 (or gpumem view leak.gmrec, and the third tab)
 *
 * docs/recording.md shows what they say.
 */
#include <gpumem.h>

#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 200, LAYERS = 8 };

static void *must(size_t bytes) {
    void *p = gpumem_malloc(bytes);
    if (p == NULL) {
        char why[1024];
        gpumem_last_error(why, sizeof why);
        fprintf(stderr, "%s\n", why);
        exit(EXIT_FAILURE);
    }
    return p;
}

/* What the loss was, for a report at the end that was taken out long ago. */
static void *history[STEPS];

static void remember_the_loss(int step) {
    history[step] = must(300000); /* the leak */
}

static void forward_and_backward(int step) {
    void *activations[LAYERS];
    int i;
    for (i = 0; i < LAYERS; i++) activations[i] = must((size_t)(i + 1) << 20);
    remember_the_loss(step);
    for (i = LAYERS - 1; i >= 0; i--) gpumem_free(activations[i]);
}

int main(void) {
    void *weights = must(16u << 20);
    gpumem_stats stats;
    int step;
    for (step = 0; step < STEPS; step++) forward_and_backward(step);
    gpumem_free(weights);
    GPUMEM_INIT(&stats);
    if (gpumem_stats_get(0, &stats) != GPUMEM_OK) return EXIT_FAILURE;
    printf("%d steps, and %llu allocations are live still\n", STEPS, (unsigned long long)stats.allocations);
    return EXIT_SUCCESS;
}

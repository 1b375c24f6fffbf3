/* The host device runs work late, in an order that its seed decides, and says which work races. */
#include "harness.h"

#include <pthread.h>
#include <signal.h>

#define BYTES ((is_slow() ? 1 : 4) * MIB)

static int in_child(int (*work)(const char *), const char *argument) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) exit(work(argument));
    return exit_code(child);
}

static uint64_t reports(void) {
    uint64_t n = 0;
    OK(gpumem_device_sync());
    OK(gpumem_sim_reports_get(&n));
    return n;
}

/* What is on stderr from now on. */
static char said[8192];
static int saved, pipes[2];

static void listen(void) {
    fflush(stderr);
    CHECK(pipe(pipes) == 0);
    saved = dup(2);
    CHECK(saved >= 0 && dup2(pipes[1], 2) == 2);
}

static void heard(void) {
    ssize_t n;
    fflush(stderr);
    CHECK(dup2(saved, 2) == 2);
    close(pipes[1]);
    n = read(pipes[0], said, sizeof said - 1);
    said[n > 0 ? n : 0] = '\0';
    close(pipes[0]);
}

/* Two streams write the same memory. */
static void two_writes(int ordered) {
    gpumem_stream a = must_stream(), b = must_stream();
    void *p = must_malloc_async(BYTES, a);
    char text[64];
    OK(gpumem_memset_async(p, 1, BYTES, a));
    if (ordered) OK(gpumem_stream_wait(b, a));
    OK(gpumem_memset_async(p, 2, BYTES, b));
    OK(gpumem_device_sync());
    OK(gpumem_stream_wait(a, b));
    OK(gpumem_free_async(p, a));
    if (!ordered) {
        snprintf(text, sizeof text, "%p", p);
        CHECK(strlen(text) > 4);
    }
    OK(gpumem_stream_destroy(a));
    OK(gpumem_stream_destroy(b));
}

static int a_race_is_told(const char *unused) {
    gpumem_stream a, b;
    void *p;
    char pointer[64], stream_a[64], stream_b[64];
    (void)unused;
    two_writes(1);
    CHECK(reports() == 0);
    listen();
    a = must_stream();
    b = must_stream();
    p = must_malloc_async(BYTES, a);
    OK(gpumem_memset_async(p, 1, BYTES, a));
    OK(gpumem_memset_async(p, 2, BYTES, b));
    CHECK(reports() == 1);
    heard();
    snprintf(pointer, sizeof pointer, "[%p, ", p);
    snprintf(stream_a, sizeof stream_a, "stream %p of device 0", (void *)a);
    snprintf(stream_b, sizeof stream_b, "stream %p of device 0", (void *)b);
    CHECK(strstr(said, "Race") != NULL && strstr(said, "\"fill\"") != NULL);
    CHECK(strstr(said, pointer) != NULL && strstr(said, stream_a) != NULL && strstr(said, stream_b) != NULL);
    /* A free that is ordered on one stream while another still uses the memory. */
    p = must_malloc_async(BYTES, a);
    OK(gpumem_stream_wait(b, a));
    OK(gpumem_memset_async(p, 1, BYTES, b));
    OK(gpumem_free_async(p, a));
    p = must_malloc_async(BYTES, a);
    OK(gpumem_memset_async(p, 2, BYTES, a));
    CHECK(reports() == 2);
    return 0;
}

static int the_process_ends_at_a_mistake(const char *unused) {
    (void)unused;
    listen();
    two_writes(0);
    return 0;
}

static int work_is_done_at_once(const char *unused) {
    (void)unused;
    two_writes(0);
    CHECK(reports() == 0); /* nobody looks */
    return 0;
}

/* Which of some streams were done, call by call: the order in which the device ran them. */
static int tells_its_order(const char *to) {
    enum { STREAMS = 6 };
    gpumem_stream s[STREAMS];
    volatile unsigned char *host;
    void *pinned = NULL;
    FILE *file = fopen(to, "w");
    int i, round;
    CHECK(file != NULL);
    OK(gpumem_host_malloc(STREAMS, GPUMEM_HOST_NEAREST, &pinned));
    host = (volatile unsigned char *)pinned;
    for (i = 0; i < STREAMS; i++) {
        s[i] = must_stream();
        host[i] = 0;
    }
    for (round = 1; round <= (is_slow() ? 4 : 12); round++) {
        for (i = 0; i < STREAMS; i++) {
            void *p = must_malloc_async(1000, s[i]);
            OK(gpumem_memset_async(p, round, 1000, s[i]));
            OK(gpumem_memcpy_async((void *)(host + i), p, 1, s[i]));
            OK(gpumem_free_async(p, s[i]));
        }
        for (i = 0; i < STREAMS; i++) fprintf(file, "%d ", host[i]);
    }
    fclose(file);
    OK(gpumem_device_sync());
    return 0;
}

/* Memory of the default stream that another one uses, and that nobody has named to gpumem. */
static int unnamed_streams_are_waited_for(const char *unused) {
    gpumem_stream s = must_stream();
    gpumem_malloc_options options;
    int i;
    (void)unused;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = BYTES;
    for (i = 1; i < (is_slow() ? 3 : 10); i++) {
        void *p = NULL;
        OK(gpumem_malloc_with(&options, &p));
        OK(gpumem_stream_wait(s, NULL));
        OK(gpumem_memset_async(p, i, BYTES, s));
        OK(gpumem_evict(p, NULL, NULL));
        OK(gpumem_restore(p, NULL, NULL));
        CHECK(holds_byte(p, BYTES, (unsigned char)i, s));
        OK(gpumem_free_async(p, s));
    }
    CHECK(reports() == 0);
    return 0;
}

enum { USERS = 8 };

struct user {
    void *p;
    gpumem_stream s;
    pthread_t thread;
};

static void *use_it(void *arg) {
    struct user *user = (struct user *)arg;
    int k;
    for (k = 0; k < 20; k++) {
        OK(gpumem_hold(user->p));
        OK(gpumem_memset_async(user->p, k, 256, user->s));
        OK(gpumem_unhold(user->p, user->s));
    }
    return NULL;
}

/* All on one stream: the latest use is the one that counts, whatever call noted it last. */
static int threads_use_one_allocation(const char *unused) {
    gpumem_stream s = must_stream();
    gpumem_malloc_options options;
    struct user users[USERS];
    void *p = NULL;
    int round, i;
    (void)unused;
    GPUMEM_INIT(&options);
    options.flags = GPUMEM_MALLOC_EVICTABLE;
    options.bytes = BYTES;
    OK(gpumem_malloc_with(&options, &p));
    for (round = 0; round < (is_slow() ? 5 : 300); round++) {
        for (i = 0; i < USERS; i++) {
            users[i].p = p;
            users[i].s = s;
            CHECK(pthread_create(&users[i].thread, NULL, use_it, &users[i]) == 0);
        }
        for (i = 0; i < USERS; i++) CHECK(pthread_join(users[i].thread, NULL) == 0);
        OK(gpumem_evict(p, NULL, NULL));
        OK(gpumem_restore(p, NULL, NULL));
    }
    OK(gpumem_free_async(p, s));
    CHECK(reports() == 0);
    return 0;
}

static void slurp(const char *name, char *text, size_t cap) {
    FILE *file = fopen(name, "r");
    size_t n;
    CHECK(file != NULL);
    n = fread(text, 1, cap - 1, file);
    text[n] = '\0';
    fclose(file);
    remove(name);
}

static void mistakes_are_told(void) {
    setenv("GPUMEM_HOST_MODE", "simulate", 1);
    CHECK(in_child(a_race_is_told, NULL) == 0);
    setenv("GPUMEM_HOST_MODE", "abort", 1);
    CHECK(in_child(the_process_ends_at_a_mistake, NULL) == 1000 + SIGABRT);
    setenv("GPUMEM_HOST_MODE", "eager", 1);
    CHECK(in_child(work_is_done_at_once, NULL) == 0);
    unsetenv("GPUMEM_HOST_MODE");
}

static void a_seed_decides_the_order(void) {
    static const char *seeds[] = {"1", "1", "2", "0", "0"};
    static char order[5][4096];
    char name[64];
    size_t i;
    /* One chunk, so that no thread of gpumem's pins more and takes turns with this one. */
    setenv("GPUMEM_PINNED_BLOCKS", "1M,4,1", 1);
    for (i = 0; i < 5; i++) {
        if (is_slow() && (i == 1 || i == 4)) continue; /* the same once more, to compare with */
        setenv("GPUMEM_HOST_SEED", seeds[i], 1);
        snprintf(name, sizeof name, "/tmp/gpumem-order-%d-%zu", (int)getpid(), i);
        CHECK(in_child(tells_its_order, name) == 0);
        slurp(name, order[i], sizeof order[i]);
    }
    unsetenv("GPUMEM_HOST_SEED");
    CHECK(strcmp(order[0], order[2]) != 0); /* another one, another order */
    CHECK(strncmp(order[3], "1 1 1 1 1 1 2 2 2 2 2 2 ", 24) == 0); /* none: all of it at once */
    CHECK(strcmp(order[0], order[3]) != 0);
    if (is_slow()) return;
    CHECK(strcmp(order[0], order[1]) == 0 && strcmp(order[3], order[4]) == 0); /* the same seed, the same order */
}

static void moves_out_wait_for_the_device(void) {
    setenv("GPUMEM_HOST_MODE", "simulate", 1);
    CHECK(in_child(unnamed_streams_are_waited_for, NULL) == 0);
    CHECK(in_child(threads_use_one_allocation, NULL) == 0);
    unsetenv("GPUMEM_HOST_MODE");
}

int main(void) {
    if (strcmp(getenv("GPUMEM_BACKEND"), "host") != 0) {
        printf("skipped: a simulation is of the host device\n");
        return 0;
    }
    RUN(mistakes_are_told);
    RUN(a_seed_decides_the_order);
    RUN(moves_out_wait_for_the_device);
    return 0;
}

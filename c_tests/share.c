/* Exported memory in another process: the same bytes on both sides, and each side frees for
 * itself. */
#include "harness.h"
#include <fcntl.h>

#define BYTES (4 * MIB)

static const char *self;

static void *exportable(size_t bytes) {
    gpumem_malloc_options options;
    void *p = NULL;
    GPUMEM_INIT(&options);
    options.bytes = bytes;
    options.flags = GPUMEM_MALLOC_EXPORTABLE;
    OK(gpumem_malloc_with(&options, &p));
    return p;
}

/* The other process: sees the pattern of seed 1 and leaves that of seed 2. */
static int importer(int fd) {
    void *p = NULL;
    harness_test = "importer";
    OK(gpumem_import_fd(fd, BYTES, 0, &p));
    CHECK(close(fd) == 0);
    CHECK(gpumem_usable_size(p) >= BYTES);
    CHECK(holds(p, BYTES, 1, NULL));
    fill(p, BYTES, 2, NULL);
    gpumem_free(p);
    nothing_left();
    return 0;
}

static void another_process_sees_the_same_memory(void) {
    int fd = -1, copy;
    char number[16];
    pid_t child;
    void *p = exportable(BYTES);
    fill(p, BYTES, 1, NULL);
    OK(gpumem_export_fd(p, &fd));
    CHECK(fd >= 0);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    copy = dup(fd); /* without close-on-exec */
    CHECK(copy >= 0);
    snprintf(number, sizeof number, "%d", copy);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(self, self, "import", number, (char *)NULL);
        _exit(99);
    }
    CHECK(exit_code(child) == 0);
    CHECK(holds(p, BYTES, 2, NULL));
    CHECK(close(copy) == 0 && close(fd) == 0);
    gpumem_free(p);
    nothing_left();
}

static void an_import_outlives_the_original(void) {
    int fd = -1;
    void *p = exportable(BYTES), *q = NULL;
    fill(p, BYTES, 3, NULL);
    OK(gpumem_export_fd(p, &fd));
    OK(gpumem_import_fd(fd, BYTES, 0, &q));
    CHECK(q != p);
    CHECK(fcntl(fd, F_GETFD) >= 0); /* still ours */
    CHECK(close(fd) == 0);
    OK(gpumem_memset(p, 0x77, 100));
    CHECK(holds_byte(q, 100, 0x77, NULL)); /* one memory, two addresses */
    OK(gpumem_device_sync());
    gpumem_free(p);
    OK(gpumem_device_sync());
    OK(gpumem_trim(0));
    CHECK(holds_byte(q, 100, 0x77, NULL));
    gpumem_free(q);
    nothing_left();
}

static void sizes_need_not_be_round(void) {
    size_t bytes = 3 * MIB + 1000;
    int fd = -1;
    void *p = exportable(bytes), *q = NULL;
    fill(p, bytes, 4, NULL);
    OK(gpumem_export_fd(p, &fd));
    OK(gpumem_import_fd(fd, bytes, 0, &q));
    CHECK(close(fd) == 0);
    CHECK(holds(q, bytes, 4, NULL));
    gpumem_free(q);
    gpumem_free(p);
    nothing_left();
}

static void imported_memory_keeps_its_size_and_exportable_memory_its_flag(void) {
    int fd = -1;
    void *p = exportable(BYTES), *q = NULL, *r = &fd;
    OK(gpumem_export_fd(p, &fd));
    OK(gpumem_import_fd(fd, BYTES, 0, &q));
    CHECK(close(fd) == 0);
    /* Elsewhere the other would not see it. */
    CHECK(gpumem_realloc_async(q, BYTES * 2, NULL, &r) == GPUMEM_ERROR_UNSUPPORTED);
    CHECK(gpumem_realloc_async(q, 100, NULL, &r) == GPUMEM_ERROR_UNSUPPORTED);
    CHECK(r == &fd);
    OK(gpumem_memset(p, 0x55, 100));
    CHECK(holds_byte(q, 100, 0x55, NULL));
    gpumem_free(q);
    OK(gpumem_realloc_async(p, BYTES * 2, NULL, &r));
    OK(gpumem_export_fd(r, &fd));
    OK(gpumem_import_fd(fd, BYTES * 2, 0, &q));
    CHECK(close(fd) == 0);
    CHECK(holds_byte(q, 100, 0x55, NULL));
    gpumem_free(q);
    gpumem_free(r);
    nothing_left();
}

static void what_cannot_be_imported_is_refused(void) {
    int fd = -1, ends[2];
    void *p = exportable(BYTES), *q = (void *)&ends;
    OK(gpumem_export_fd(p, &fd));
    CHECK(gpumem_import_fd(fd, BYTES * 16, 0, &q) != GPUMEM_OK);
    CHECK(close(fd) == 0);
    CHECK(pipe(ends) == 0);
    CHECK(gpumem_import_fd(ends[0], BYTES, 0, &q) != GPUMEM_OK);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(q == (void *)&ends);
    gpumem_free(p);
    nothing_left();
}

int main(int argc, char **argv) {
    gpumem_device_props props;
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "import") == 0) return importer(atoi(argv[2]));
    GPUMEM_INIT(&props);
    OK(gpumem_device_props_get(0, &props));
    if (!props.posix_fd) {
        printf("skipped: this device cannot export memory as a file descriptor\n");
        return 0;
    }
    RUN(another_process_sees_the_same_memory);
    RUN(an_import_outlives_the_original);
    RUN(sizes_need_not_be_round);
    RUN(imported_memory_keeps_its_size_and_exportable_memory_its_flag);
    RUN(what_cannot_be_imported_is_refused);
    return 0;
}

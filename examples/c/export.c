/*
 * Memory shared with another process: this program allocates, writes, and starts itself again to
 * read the same memory.
 */
#include <gpumem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t BYTES = 4u << 20;

static void check(gpumem_status status, const char *what) {
    if (status != GPUMEM_OK) {
        char text[512];
        gpumem_last_error(text, sizeof text);
        fprintf(stderr, "%s: %s: %s\n", what, gpumem_status_name(status), text);
        exit(EXIT_FAILURE);
    }
}

static int reader(int fd) {
    char text[64];
    void *shared;
    check(gpumem_import_fd(fd, BYTES, 0, &shared), "import");
    close(fd);
    check(gpumem_memcpy(text, shared, sizeof text), "read");
    printf("process %ld reads: %s\n", (long)getpid(), text);
    gpumem_free(shared); /* its own hold on the memory; the writer keeps the other */
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    char text[64], number[16];
    gpumem_malloc_options options;
    void *shared;
    pid_t child;
    int fd, inherited, status = 0;

    if (argc == 3 && strcmp(argv[1], "--read") == 0) return reader(atoi(argv[2]));

    GPUMEM_INIT(&options);
    options.bytes = BYTES;
    options.flags = GPUMEM_MALLOC_EXPORTABLE;
    check(gpumem_malloc_with(&options, &shared), "allocate");
    memset(text, 0, sizeof text);
    snprintf(text, sizeof text, "written by process %ld", (long)getpid());
    check(gpumem_memcpy(shared, text, sizeof text), "write");

    /* The descriptor closes on exec; a copy of it does not. Between unrelated processes it goes
     * over a Unix socket. */
    check(gpumem_export_fd(shared, &fd), "export");
    inherited = dup(fd);
    close(fd);
    snprintf(number, sizeof number, "%d", inherited);
    fflush(stdout);

    /* The child of a fork must not use gpumem; a program started anew may. */
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "--read", number, (char *)NULL);
        _exit(EXIT_FAILURE);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return EXIT_FAILURE;
    gpumem_free(shared);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

/* Lets NVIDIA's runtime library look its functions up. */
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0, *p = 0;
    int (*alloc)(void **, unsigned long) = library ? (int (*)(void **, unsigned long))dlsym(library, "cudaMalloc") : 0;
    if (!alloc) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    printf("%d\n", alloc(&p, 1000));
    return 0;
}

/* What cuGetProcAddress gives for names, versions and flags. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef unsigned (*get_proc)(const char *, void **, int, uint64_t, int *);
static const char *where(void *p) {
    Dl_info i;
    const char *s;
    if (!p) return "nowhere";
    if (!dladdr(p, &i)) return "somewhere";
    s = strrchr(i.dli_fname, '/');
    return s ? s + 1 : i.dli_fname;
}
static void ask(get_proc get, const char *name, int version, uint64_t flags) {
    void *p = (void *)7;
    int status = 9;
    unsigned code = get(name, &p, version, flags, &status);
    printf("%s %d %d: %u %d %d\n", name, version, (int)flags, code, status, p != 0);
    if (!code) printf("# %s %d %d: %s\n", name, version, (int)flags, where(p));
}
int main(void) {
    get_proc get = (get_proc)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    void *p = 0;
    ask(get, "cuMemAlloc", 3020, 0);
    ask(get, "cuMemAlloc", 99000, 0);
    ask(get, "cuMemAlloc", 1000, 0);
    ask(get, "cuMemAlloc", 3020, 64);
    ask(get, "cuMemAllocAsync", 11020, 0);
    ask(get, "cuMemAllocAsync", 11020, 1);
    ask(get, "cuMemAllocAsync", 11020, 2);
    ask(get, "cuInit", 2000, 0);
    ask(get, "cuNothing", 12000, 0);
    ask(get, "", 0, 0);
    printf("no name %u, no place %u, no status %u\n", get(0, &p, 12000, 0, 0), get("cuInit", 0, 12000, 0, 0), get("cuInit", &p, 12000, 0, 0));
    return 0;
}

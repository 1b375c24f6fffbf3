/* Every way to look names up, and what comes out. With and without gpumem the same is printed:
 * whether a name is there, which object it is from, and the error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *where(void *p) {
    Dl_info i;
    const char *s;
    if (!p) return "nowhere";
    if (!dladdr(p, &i) || !i.dli_fname) return "somewhere";
    s = strrchr(i.dli_fname, '/');
    return s ? s + 1 : i.dli_fname;
}
static void show(const char *what, void *p) {
    const char *e = dlerror();
    printf("%s: %s%s%s\n", what, where(p), e ? ", " : "", e ? "error" : "");
}
int main(int argc, char **argv) {
    void *c = dlopen("libc.so.6", RTLD_NOW), *m = dlopen("libm.so.6", RTLD_NOW), *d, *p, *q;
    int same;
    show("malloc", dlsym(RTLD_DEFAULT, "malloc"));
    show("next malloc", dlsym(RTLD_NEXT, "malloc"));
    show("cos", dlsym(m, "cos"));
    show("no name", dlsym(c, "no_such_name"));
    show("cu, none", dlsym(c, "cuNothing"));
    show("c", dlsym(c, "c"));
    show("empty", dlsym(c, ""));
    show("version", dlvsym(c, "realpath", "GLIBC_2.3"));
    show("no version", dlvsym(c, "malloc", "NONE_1"));
    /* Before the driver is there, none of its functions is. */
    show("before", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    show("before, in the program", dlsym(dlopen(0, RTLD_NOW), "cuMemAlloc_v2"));
    if (argc > 2) {
        void *local = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
        void *(*look)(void *, const char *) = local ? (void *(*)(void *, const char *))dlsym(local, "look") : 0;
        show("a plugin's own", look ? look(RTLD_DEFAULT, "cu_helper") : 0);
    }
    d = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    show("init", dlsym(d, "cuInit"));
    p = dlsym(d, "cuMemAlloc_v2");
    q = dlsym(d, "cuMemAlloc_v2");
    same = p == q && p;
    printf("always the same: %d\n", same);
    printf("# alloc: %s\n", where(p));
    printf("# a private table: %s\n", where(dlsym(d, "cuGetExportTable")));
    if (argc > 1) {
        void *deep = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
        void *(*look)(void *, const char *) = deep ? (void *(*)(void *, const char *))dlsym(deep, "look") : 0;
        printf("# deep: %s\n", look ? where(look(d, "cuMemAlloc_v2")) : dlerror());
    }
    return 0;
}

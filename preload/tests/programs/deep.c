/* Part of an object that is opened with RTLD_DEEPBIND: its names are bound to its own libraries
 * first. */
#include <dlfcn.h>
void *look(void *library, const char *name);
void *look(void *library, const char *name) { return dlsym(library, name); }

/* Part of an object that is opened with RTLD_DEEPBIND: its names are bound to its own libraries
 * first. And of one that is opened with RTLD_LOCAL: only its own look-ups find its names. */
#include <dlfcn.h>
void *look(void *library, const char *name);
void *look(void *library, const char *name) { return dlsym(library, name); }
int cu_helper(void) { return 7; }

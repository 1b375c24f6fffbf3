// In a process with torch in it a failure is an exception, as torch needs. Linked against a library
// that is torch's libc10_cuda.so in name only.
#include "harness.h"
#include <dlfcn.h>
#include <stdexcept>
#include <string>

template <class F> static std::string thrown(F call) {
    try {
        call();
    } catch (const std::runtime_error &e) {
        return e.what();
    }
    return "";
}

static bool says(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

static void failures_throw_with_their_text() {
    int local = 0;
    CHECK(says(thrown([] { gpumem_torch_malloc(-1, 0, nullptr); }), "GPUMEM_ERROR_INVALID"));
    CHECK(says(thrown([] { gpumem_torch_malloc(SIZE_MAX / 2, 0, nullptr); }), "GPUMEM_ERROR_OUT_OF_MEMORY"));
    CHECK(says(thrown([&] { gpumem_torch_base_alloc(&local, nullptr); }), "GPUMEM_ERROR_UNKNOWN_POINTER"));
    CHECK(says(thrown([] { gpumem_torch_memory_fraction(7, 0); }), "fraction"));
    CHECK(says(thrown([] { gpumem_torch_init(100000); }), "100000"));
    nothing_left();
}

static void what_torch_cannot_catch_does_not_throw() {
    int local = 0;
    CHECK(thrown([&] { gpumem_torch_free(&local, 4, 0, nullptr); }).empty());
    CHECK(thrown([&] { gpumem_torch_record_stream(&local, nullptr); }).empty());
    CHECK(gpumem_last_status() == GPUMEM_ERROR_UNKNOWN_POINTER);
}

static void the_rest_of_the_library_does_not_throw() {
    CHECK(thrown([] { CHECK(gpumem_malloc(SIZE_MAX) == nullptr); }).empty());
    CHECK(thrown([] { CHECK(gpumem_device_set(999) == GPUMEM_ERROR_INVALID); }).empty());
}

static void success_is_as_ever() {
    void *p = gpumem_torch_malloc(1000, 0, nullptr);
    CHECK(p != nullptr);
    gpumem_torch_free(p, 1000, 0, nullptr);
    gpumem_torch_reset();
    nothing_left();
}

int main() {
    if (dlopen("libc10_cuda.so", RTLD_NOLOAD | RTLD_LAZY) == nullptr) {
        std::printf("skipped: linked without libc10_cuda.so or the stub of it\n");
        return 0;
    }
    RUN(success_is_as_ever);
    RUN(failures_throw_with_their_text);
    RUN(what_torch_cannot_catch_does_not_throw);
    RUN(the_rest_of_the_library_does_not_throw);
    RUN(success_is_as_ever);
    return 0;
}

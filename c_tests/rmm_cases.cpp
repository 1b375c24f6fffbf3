// RMM's 29 cases of a memory resource without RMM and without kernels: bytes are set and read by
// copies. With CCCL's headers on the include path through cuda::mr::any_resource, else through a
// stand-in.
#include "../gpu/rmm_cases.hpp"
#include "harness.h"

namespace {

// What a device's resource is before another is set: no gpumem::memory_resource to those who
// compare.
struct first_resource : gpumem::memory_resource {};

class host_world {
  public:
#if GPUMEM_HAS_CCCL
    using any = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;
    static ::cuda::stream_ref cuda(gpumem::stream_ref s) { return ::cuda::stream_ref(s.get()); }
#else
    using any = rmm_cases::any_resource;
    static gpumem::stream_ref cuda(gpumem::stream_ref s) { return s; }
#endif
    using out_of_memory = gpumem::out_of_memory;
    static bool says_out_of_memory(const char *text) {
        return std::string(text).find("OUT_OF_MEMORY") != std::string::npos;
    }

    explicit host_world(any subject = any(gpumem::memory_resource{})) : subject_(std::move(subject)) {}
    any subject() { return subject_; }
    any set_current(any to) { return current_.set(device(), std::move(to)); }
    void reset_current() { current_.reset(device()); }
    any current() { return current_.get(device()); }

    int devices() {
        int count = 0;
        OK(gpumem_device_count_get(&count));
        return count;
    }
    void use_device(int device) { OK(gpumem_device_set(device)); }
    bool is_device_memory(void *p) {
        gpumem_pointer_info info;
        GPUMEM_INIT(&info);
        return gpumem_pointer_info_get(p, &info) == GPUMEM_OK && info.base == p;
    }
    // Under valgrind every byte is dear.
    std::size_t largest() { return is_slow() ? 4 * MIB : 16 * MIB; }
    std::size_t most() { return 32 * KIB; }
    int messages() { return is_slow() ? 30 : 100; }

    void write(void *p, std::size_t bytes, unsigned seed, gpumem::stream_ref s) {
        OK(gpumem_memset_async(p, static_cast<unsigned char>(seed), bytes, s.get()));
    }
    void check(void *p, std::size_t bytes, unsigned seed, gpumem::stream_ref s) {
        std::vector<unsigned char> out(bytes);
        OK(gpumem_memcpy_async(out.data(), p, bytes, s.get()));
        s.sync();
        wrong_ += bytes != 0 && (out[0] != static_cast<unsigned char>(seed) ||
                                 memcmp(out.data(), out.data() + 1, bytes - 1) != 0);
    }
    // There are no events to call; the host waits.
    struct mark {
        void set(gpumem::stream_ref s) { s.sync(); }
        void before(gpumem::stream_ref) {}
    };
    unsigned long long wrong() {
        OK(gpumem_device_sync());
        return wrong_.exchange(0);
    }

  private:
    static int device() {
        int out = 0;
        OK(gpumem_device_get(&out));
        return out;
    }
    any subject_;
    std::atomic<unsigned long long> wrong_{0};
    rmm_cases::per_device<any> current_{any(first_resource{})};
};

} // namespace

int main(int argc, char **argv) {
    {
        host_world world;
        CHECK(rmm_cases::cases<host_world>(world).run(argc > 1 ? argv[1] : nullptr) == 0);
    }
    nothing_left();
    {
        host_world careless(host_world::any(rmm_cases::careless_resource{}));
        CHECK(rmm_cases::cases<host_world>(careless).finds_faults());
    }
    return 0;
}

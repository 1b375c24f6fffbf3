// What RMM's suite asks of every memory resource, 29 cases, asked of gpumem::memory_resource; and
// what it does not ask: every allocation is written and read back, byte for byte, in the order of
// its stream, so that memory which somebody else has, or gets too early, shows.
//
// c_tests/rmm_cases.cpp runs the cases without CUDA, gpu/rmm_conformance.cu with kernels. Each
// brings a World:
//
//   any                            a copyable owner of some resource: cuda::mr::any_resource, or
//                                  ours below
//   any subject()                  gpumem's
//   set_current, reset_current, current     the resource of the current device, as RMM keeps one
//                                           for each
//   write, check                   fill bytes with a pattern in the order of a stream; count those
//                                  that differ
//   mark                           a point of a stream that others are made to come after
//   wrong()                        how many bytes differed, when all work is done
//   messages                       how many allocations one thread hands to another
//   devices, use_device, is_device_memory, largest, most
#pragma once

#include <gpumem.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace rmm_cases {

inline std::atomic<unsigned> &failures() {
    static std::atomic<unsigned> count{0};
    return count;
}
// Whether failures are meant to be.
inline std::atomic<bool> &expected() {
    static std::atomic<bool> now{false};
    return now;
}
inline void fail(const char *file, int line, const char *what) {
    if (!expected()) {
        failures()++;
        std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
    }
}
#define EXPECT(...) ((__VA_ARGS__) ? (void)0 : ::rmm_cases::fail(__FILE__, __LINE__, #__VA_ARGS__))

constexpr std::size_t alignment = 256;

// Stands in for cuda::mr::any_resource where there is no CCCL.
class any_resource {
  public:
    template <class Resource>
    explicit any_resource(Resource r) : held_(std::make_shared<holds<Resource>>(std::move(r))) {}
    void *allocate(gpumem::stream_ref s, std::size_t bytes, std::size_t align) {
        return held_->allocate(s, bytes, align);
    }
    void deallocate(gpumem::stream_ref s, void *p, std::size_t bytes, std::size_t align) noexcept {
        held_->deallocate(s, p, bytes, align);
    }
    void *allocate_sync(std::size_t bytes, std::size_t align) {
        return held_->allocate_sync(bytes, align);
    }
    void deallocate_sync(void *p, std::size_t bytes, std::size_t align) noexcept {
        held_->deallocate_sync(p, bytes, align);
    }
    friend bool operator==(const any_resource &a, const any_resource &b) {
        return a.held_->equals(*b.held_);
    }

  private:
    struct face {
        virtual ~face() = default;
        virtual void *allocate(gpumem::stream_ref, std::size_t, std::size_t) = 0;
        virtual void deallocate(gpumem::stream_ref, void *, std::size_t, std::size_t) noexcept = 0;
        virtual void *allocate_sync(std::size_t, std::size_t) = 0;
        virtual void deallocate_sync(void *, std::size_t, std::size_t) noexcept = 0;
        virtual bool equals(const face &) const = 0;
    };
    template <class Resource> struct holds : face {
        explicit holds(Resource r) : resource(std::move(r)) {}
        void *allocate(gpumem::stream_ref s, std::size_t bytes, std::size_t align) override {
            return resource.allocate(s, bytes, align);
        }
        void deallocate(gpumem::stream_ref s, void *p, std::size_t bytes,
                        std::size_t align) noexcept override {
            resource.deallocate(s, p, bytes, align);
        }
        void *allocate_sync(std::size_t bytes, std::size_t align) override {
            return resource.allocate_sync(bytes, align);
        }
        void deallocate_sync(void *p, std::size_t bytes, std::size_t align) noexcept override {
            resource.deallocate_sync(p, bytes, align);
        }
        bool equals(const face &other) const override {
            auto same = dynamic_cast<const holds *>(&other);
            return same != nullptr && same->resource == resource;
        }
        Resource resource;
    };
    std::shared_ptr<face> held_;
};

// gpumem, but that every eighth allocation is freed at once and handed out all the same: the cases
// must find out.
class careless_resource {
  public:
    void *allocate(gpumem::stream_ref s, std::size_t bytes, std::size_t align) {
        void *p = honest_.allocate(s, bytes, align);
        if (p != nullptr && ++*count_ % 8 == 0) {
            honest_.deallocate(s, p, bytes, align);
            std::lock_guard<std::mutex> lock(freed_->mutex);
            freed_->all.push_back(p);
        }
        return p;
    }
    void deallocate(gpumem::stream_ref s, void *p, std::size_t bytes, std::size_t align) noexcept {
        {
            std::lock_guard<std::mutex> lock(freed_->mutex);
            auto &all = freed_->all;
            const auto at = std::find(all.begin(), all.end(), p);
            if (at != all.end()) {
                all.erase(at);
                return;
            }
        }
        honest_.deallocate(s, p, bytes, align);
    }
    void *allocate_sync(std::size_t bytes, std::size_t align) {
        return honest_.allocate_sync(bytes, align);
    }
    void deallocate_sync(void *p, std::size_t bytes, std::size_t align) noexcept {
        honest_.deallocate_sync(p, bytes, align);
    }
    friend bool operator==(const careless_resource &a, const careless_resource &b) noexcept {
        return a.freed_ == b.freed_;
    }
    friend bool operator!=(const careless_resource &a, const careless_resource &b) noexcept {
        return !(a == b);
    }
#if GPUMEM_HAS_CCCL
    friend constexpr void get_property(const careless_resource &,
                                       ::cuda::mr::device_accessible) noexcept {}
#endif

  private:
    struct freed {
        std::mutex mutex;
        std::vector<void *> all;
    };
    gpumem::memory_resource honest_;
    std::shared_ptr<std::atomic<unsigned>> count_ = std::make_shared<std::atomic<unsigned>>(0u);
    std::shared_ptr<freed> freed_ = std::make_shared<freed>();
};

// One resource for each device, and what it was at first: what rmm::mr::set_current_device_resource
// sets.
template <class Any> class per_device {
  public:
    explicit per_device(Any first) : first_(std::move(first)) {}
    // Returns the one before.
    Any set(int device, Any to) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::unique_ptr<Any> &here = at(device);
        Any old = here ? *here : first_;
        here = std::make_unique<Any>(std::move(to));
        return old;
    }
    void reset(int device) {
        std::lock_guard<std::mutex> lock(mutex_);
        at(device).reset();
    }
    Any get(int device) {
        std::lock_guard<std::mutex> lock(mutex_);
        const std::unique_ptr<Any> &here = at(device);
        return here ? *here : first_;
    }

  private:
    std::unique_ptr<Any> &at(int device) {
        const auto i = static_cast<std::size_t>(device);
        if (set_.size() <= i) {
            set_.resize(i + 1);
        }
        return set_[i];
    }
    Any first_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Any>> set_;
};

template <class World> class cases {
    using any = typename World::any;
    using stream_ref = gpumem::stream_ref;

    // How a case allocates: with a stream, or usable everywhere at once.
    struct ordered {
        any mr;
        stream_ref stream;
        void *take(std::size_t bytes) {
            return mr.allocate(World::cuda(stream), bytes, alignment);
        }
        void give(void *p, std::size_t bytes) {
            mr.deallocate(World::cuda(stream), p, bytes, alignment);
        }
        // Where work may touch the memory.
        stream_ref where() const { return stream; }
        void done() {}
    };
    struct synchronous {
        any mr;
        // No stream has been ordered after anything, and work here may begin at once.
        gpumem::stream other;
        explicit synchronous(any m) : mr(std::move(m)) {}
        void *take(std::size_t bytes) { return mr.allocate_sync(bytes, alignment); }
        void give(void *p, std::size_t bytes) { mr.deallocate_sync(p, bytes, alignment); }
        stream_ref where() const { return other; }
        // What is given back so is not in use any more.
        void done() { other.sync(); }
    };

    struct allocation {
        void *p;
        std::size_t bytes;
        unsigned seed;
    };

    unsigned next_seed() { return seed_++; }

    template <class How> allocation take(How &how, std::size_t bytes) {
        allocation a{how.take(bytes), bytes, next_seed()};
        EXPECT(a.p != nullptr);
        EXPECT(reinterpret_cast<std::uintptr_t>(a.p) % alignment == 0);
        EXPECT(world_.is_device_memory(a.p));
        world_.write(a.p, a.bytes, a.seed, how.where());
        return a;
    }
    template <class How> void give(How &how, const allocation &a) {
        world_.check(a.p, a.bytes, a.seed, how.where());
        how.done();
        how.give(a.p, a.bytes);
    }

    template <class How> void sizes(How how) {
        void *nothing = how.take(0);
        EXPECT(nothing == nullptr); // as of RMM's own resources
        how.give(nothing, 0);
        for (std::size_t bytes : {std::size_t{4}, std::size_t{1} << 10, std::size_t{1} << 20, world_.largest()}) {
            give(how, take(how, bytes));
        }
        void *p = nullptr;
        bool refused = false;
        try {
            p = how.take(std::size_t{1} << 50);
        } catch (const typename World::out_of_memory &e) {
            refused = World::says_out_of_memory(e.what());
        }
        EXPECT(refused && p == nullptr);
    }

    template <class How> void random(How how) {
        std::mt19937 draw(static_cast<unsigned>(next_seed()));
        std::uniform_int_distribution<std::size_t> size(1, world_.most());
        std::vector<allocation> all;
        for (int i = 0; i < 100; i++) {
            all.push_back(take(how, size(draw)));
        }
        for (const allocation &a : all) {
            give(how, a);
        }
    }

    template <class How> void mixed(How how) {
        std::mt19937 draw(static_cast<unsigned>(next_seed()));
        std::uniform_int_distribution<std::size_t> size(1, world_.most());
        std::vector<allocation> live;
        int left = 100;
        while (left > 0 || !live.empty()) {
            if (left > 0 && (live.empty() || draw() % 100 < 53)) {
                live.push_back(take(how, size(draw)));
                left--;
            } else {
                std::swap(live[draw() % live.size()], live.back());
                give(how, live.back());
                live.pop_back();
            }
        }
    }

    template <class How> void different(How how) {
        const allocation a = take(how, 8), b = take(how, 8);
        EXPECT(a.p != b.p);
        give(how, a);
        give(how, b);
    }

    void current_works() {
        synchronous how(world_.current());
        give(how, take(how, std::size_t{1} << 20));
    }

    // In four threads at once, which are of the device that this one is of.
    template <class F> void in_threads(F work) {
        int device = 0;
        gpumem::check(gpumem_device_get(&device));
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++) {
            threads.emplace_back([this, device, &work] {
                world_.use_device(device);
                work();
            });
        }
        for (std::thread &t : threads) {
            t.join();
        }
    }

    // One thread allocates and writes on a stream; another checks and frees on a stream that comes
    // after.
    void across_threads(stream_ref from, stream_ref to) {
        struct sent {
            allocation a;
            std::shared_ptr<typename World::mark> written;
        };
        std::mutex mutex;
        std::condition_variable came;
        std::deque<sent> queue;
        int device = 0;
        gpumem::check(gpumem_device_get(&device));
        const int count = world_.messages();
        std::thread producer([&] {
            world_.use_device(device);
            ordered how{world_.subject(), from};
            std::mt19937 draw(7);
            for (int i = 0; i < count; i++) {
                const allocation a = take(how, 1 + draw() % (std::size_t{1} << 20));
                auto written = std::make_shared<typename World::mark>();
                written->set(from);
                std::lock_guard<std::mutex> lock(mutex);
                queue.push_back({a, written});
                came.notify_one();
            }
            from.sync(); // a thread's own stream may go with the thread
        });
        std::thread consumer([&] {
            world_.use_device(device);
            ordered how{world_.subject(), to};
            for (int i = 0; i < count; i++) {
                std::unique_lock<std::mutex> lock(mutex);
                came.wait(lock, [&] { return !queue.empty(); });
                const sent next = queue.front();
                queue.pop_front();
                lock.unlock();
                next.written->before(to);
                give(how, next.a);
            }
            to.sync();
        });
        producer.join();
        consumer.join();
    }

    ordered on(stream_ref s) { return {world_.subject(), s}; }
    ordered on_default() { return on(stream_ref(GPUMEM_STREAM_LEGACY)); }
    synchronous at_once() { return synchronous(world_.subject()); }

    World &world_;
    gpumem::stream stream_;
    std::atomic<unsigned> seed_{1};

  public:
    explicit cases(World &world) : world_(world) {}

    // Whether a resource that hands out memory which others have is found out; for a World of one.
    bool finds_faults() {
        expected() = true;
        random(on(stream_));
        expected() = false;
        return world_.wrong() > 0;
    }

    // Runs all of them, or those with a text in their names. Returns how many ran and failed.
    int run(const char *only) {
        struct one {
            const char *name;
            void (*go)(cases &);
        };
        static const one all[] = {
            // A resource, and the one of a device.
            {"set_current_device_resource",
             [](cases &c) {
                 any first = c.world_.current();
                 any before = c.world_.set_current(c.world_.subject());
                 ordered old{before, stream_ref(GPUMEM_STREAM_LEGACY)};
                 c.give(old, c.take(old, 100));
                 ordered now{c.world_.current(), stream_ref(GPUMEM_STREAM_LEGACY)};
                 EXPECT(now.mr == c.world_.subject() && before == first);
                 c.give(now, c.take(now, 100));
                 c.current_works();
                 c.world_.reset_current();
                 EXPECT(c.world_.current() == first);
                 c.current_works();
             }},
            {"self_equality",
             [](cases &c) {
                 any a = c.world_.subject(), b = c.world_.subject();
                 EXPECT(a == a && a == b);
             }},
            {"allocations_are_different", [](cases &c) { c.different(c.at_once()); }},
            {"async_allocations_are_different_default_stream",
             [](cases &c) { c.different(c.on_default()); }},
            {"async_allocations_are_different", [](cases &c) { c.different(c.on(c.stream_)); }},
            // One thread.
            {"allocate", [](cases &c) { c.sizes(c.at_once()); }},
            {"allocate_default_stream", [](cases &c) { c.sizes(c.on_default()); }},
            {"allocate_on_stream", [](cases &c) { c.sizes(c.on(c.stream_)); }},
            {"random", [](cases &c) { c.random(c.at_once()); }},
            {"random_default_stream", [](cases &c) { c.random(c.on_default()); }},
            {"random_on_stream", [](cases &c) { c.random(c.on(c.stream_)); }},
            {"mixed", [](cases &c) { c.mixed(c.at_once()); }},
            {"mixed_default_stream", [](cases &c) { c.mixed(c.on_default()); }},
            {"mixed_on_stream", [](cases &c) { c.mixed(c.on(c.stream_)); }},
            // Several threads.
            {"set_current_device_resource_threads",
             [](cases &c) {
                 c.world_.set_current(c.world_.subject());
                 c.current_works();
                 c.in_threads([&c] { c.current_works(); });
                 c.world_.reset_current();
                 c.current_works();
             }},
            {"set_current_device_resource_per_thread",
             [](cases &c) {
                 std::vector<std::thread> threads;
                 for (int device = 0; device < c.world_.devices(); device++) {
                     threads.emplace_back([&c, device] {
                         c.world_.use_device(device);
                         c.current_works();
                         c.world_.set_current(c.world_.subject());
                         c.current_works();
                         c.world_.reset_current();
                         c.current_works();
                     });
                 }
                 for (std::thread &t : threads) {
                     t.join();
                 }
             }},
            {"allocate_threads", [](cases &c) { c.in_threads([&c] { c.sizes(c.at_once()); }); }},
            {"allocate_default_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.sizes(c.on_default()); }); }},
            {"allocate_on_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.sizes(c.on(c.stream_)); }); }},
            {"random_threads", [](cases &c) { c.in_threads([&c] { c.random(c.at_once()); }); }},
            {"random_default_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.random(c.on_default()); }); }},
            {"random_on_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.random(c.on(c.stream_)); }); }},
            {"mixed_threads", [](cases &c) { c.in_threads([&c] { c.mixed(c.at_once()); }); }},
            {"mixed_default_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.mixed(c.on_default()); }); }},
            {"mixed_on_stream_threads",
             [](cases &c) { c.in_threads([&c] { c.mixed(c.on(c.stream_)); }); }},
            {"across_threads_default_stream",
             [](cases &c) {
                 c.across_threads(stream_ref(GPUMEM_STREAM_LEGACY), stream_ref(GPUMEM_STREAM_LEGACY));
             }},
            {"across_threads_per_thread_stream",
             [](cases &c) {
                 c.across_threads(stream_ref(GPUMEM_STREAM_PER_THREAD),
                                  stream_ref(GPUMEM_STREAM_PER_THREAD));
             }},
            {"across_threads_same_stream",
             [](cases &c) { c.across_threads(c.stream_, c.stream_); }},
            {"across_threads_different_stream",
             [](cases &c) {
                 gpumem::stream other;
                 c.across_threads(c.stream_, other);
                 other.sync();
             }},
        };
        static_assert(sizeof all / sizeof *all == 29, "RMM has 29");
        int failed = 0;
        for (const one &test : all) {
            if (only != nullptr && std::string(test.name).find(only) == std::string::npos) {
                continue;
            }
            const unsigned before = failures();
            try {
                test.go(*this);
            } catch (const std::exception &e) {
                fail(test.name, 0, e.what());
            }
            const unsigned long long wrong = world_.wrong();
            const bool good = failures() == before && wrong == 0;
            failed += !good;
            std::printf("%s %s", good ? "ok" : "FAIL", test.name);
            std::printf(good ? "\n" : ": %llu wrong bytes\n", wrong);
            std::fflush(stdout);
        }
        return failed;
    }
};

} // namespace rmm_cases

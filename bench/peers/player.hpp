// Plays a script through one allocator.
#pragma once

#include "measure.hpp"
#include "script.hpp"

#include <algorithm>
#include <string>
#include <vector>

// Operations between two looks at the deadline and at the device's memory, neither of which is
// timed.
constexpr size_t CHUNK = 1000;

// An allocator has allocate(bytes, stream), which throws, and free(ptr, bytes, stream). It is a
// template parameter, so that the loops call it as a program would, without a table of functions in
// between.
template <class Allocator>
class Player {
public:
    Player(Allocator &allocator, const Script &script, std::vector<Stream> streams)
        : allocator_(allocator), script_(script), streams_(std::move(streams)), slots_(script.slots) {}
    Player(const Player &) = delete;
    Player &operator=(const Player &) = delete;
    ~Player() { free_the_rest(); }

    struct Result {
        Clock::duration time{};   // of the operations alone
        size_t done = 0;          // operations; fewer than there are when the deadline came first
        size_t failures = 0;      // allocations refused, with `tolerant`
        size_t peak_used = 0;     // most device memory in use at any look, bytes; 0 when not `watching`
        std::string first_failure;
    };
    struct How {
        Times *each = nullptr;    // times every call
        bool watching = false;    // looks at the device's memory
        bool tolerant = false;    // counts refused allocations instead of stopping at them
        double limit_s = 1e9;     // for all operations together
    };

    Result play(const How &how) {
        Result r;
        const auto begun = Clock::now();
        for (size_t i = 0; i < script_.ops.size() && seconds(Clock::now() - begun) < how.limit_s; i += CHUNK) {
            size_t end = std::min(i + CHUNK, script_.ops.size());
            if (how.each != nullptr) timed_each(i, end, *how.each, r);
            else if (how.tolerant) tolerant(i, end, r);
            else timed(i, end, r);
            r.done = end;
            if (how.watching) r.peak_used = std::max(r.peak_used, device::used());
        }
        return r;
    }

    void free_the_rest() {
        for (Slot &s : slots_) release(s);
    }

private:
    struct Slot {
        void *ptr = nullptr;
        uint64_t bytes = 0;
    };

    void step(const Op &op) {
        Slot &s = slots_[op.slot];
        if (op.allocate) {
            s.ptr = allocator_.allocate(op.bytes, streams_[op.stream]);
            s.bytes = op.bytes;
        } else if (s.ptr != nullptr) {
            void *ptr = s.ptr;
            s.ptr = nullptr;
            allocator_.free(ptr, op.bytes, streams_[op.stream]);
        }
    }
    [[gnu::noinline]] void timed(size_t i, size_t end, Result &r) {
        auto start = Clock::now();
        for (; i < end; i++) step(script_.ops[i]);
        r.time += Clock::now() - start;
    }
    [[gnu::noinline]] void timed_each(size_t i, size_t end, Times &times, Result &r) {
        for (; i < end; i++) {
            auto start = Clock::now();
            step(script_.ops[i]);
            auto took = Clock::now() - start;
            times.add(took);
            r.time += took;
        }
    }
    [[gnu::noinline]] void tolerant(size_t i, size_t end, Result &r) {
        auto start = Clock::now();
        for (; i < end; i++) {
            try {
                step(script_.ops[i]);
            } catch (const std::exception &e) {
                if (r.failures++ == 0) r.first_failure = e.what();
            }
        }
        r.time += Clock::now() - start;
    }
    void release(Slot &s) {
        if (s.ptr == nullptr) return;
        try {
            allocator_.free(s.ptr, s.bytes, streams_[0]);
        } catch (const std::exception &e) {
            fprintf(stderr, "peers: free: %s\n", e.what());
        }
        s.ptr = nullptr;
    }

    Allocator &allocator_;
    const Script &script_;
    std::vector<Stream> streams_;
    std::vector<Slot> slots_;
};

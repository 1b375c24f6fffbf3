// Work that never repeats: sizes and lifetimes are drawn anew all the time, and each run has other
// numbers unless a seed is given. `gpumem bench` does not have these. What is live goes on from
// pass to pass.
#pragma once

#include "measure.hpp"
#include "script.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

// What the device does meanwhile: it fills so much of each new block, on its stream, and the host
// waits for it after so many operations. None of that is timed.
struct DeviceWork {
    uint64_t bytes = 0;
    size_t operations = SIZE_MAX;
};

// Operations as they are drawn, played a chunk at a time so that drawing is not timed.
template <class Allocator>
class Endless {
public:
    Endless(Allocator &allocator, std::vector<Stream> streams, DeviceWork work)
        : allocator_(allocator), streams_(std::move(streams)), work_(work) {}
    Endless(const Endless &) = delete;
    Endless &operator=(const Endless &) = delete;
    ~Endless() {
        for (Live &l : live_) {
            if (l.ptr == nullptr) continue;
            try {
                allocator_.free(l.ptr, l.bytes, streams_[0]);
            } catch (const std::exception &e) {
                fprintf(stderr, "peers: free: %s\n", e.what());
            }
        }
    }

    struct Pass {
        Times each;
        size_t failures = 0;
        size_t peak_used = 0;        // most device memory in use at any look, bytes
        uint64_t peak_live = 0;      // most live, bytes
        bool cut = false;            // the deadline came first
        std::string first_failure;
    };

    // `draw` adds operations to the builder; it is asked until there are `ops` of them, or
    // `limit_s` seconds are over.
    Pass play(Builder &b, const std::function<void()> &draw, size_t ops, double limit_s, size_t used_before) {
        Pass pass{.each = Times(ops + 4096), .first_failure = ""};
        const auto begun = Clock::now();
        size_t done = 0;
        while (done < ops) {
            if (seconds(Clock::now() - begun) > limit_s) {
                pass.cut = true;
                break;
            }
            while (b.pending() < CHUNK) draw();
            const std::vector<Op> chunk = b.take();
            if (live_.size() < b.slots()) live_.resize(b.slots());
            for (const Op &op : chunk) step(op, pass);
            done += chunk.size();
            const size_t used = device::used() - std::min(device::used(), used_before);
            pass.peak_used = std::max(pass.peak_used, used);
            pass.peak_live = std::max(pass.peak_live, b.take_peak());
        }
        return pass;
    }

private:
    static constexpr size_t CHUNK = 500;
    struct Live {
        void *ptr = nullptr;
        uint64_t bytes = 0;
        uint16_t stream = 0;
    };

    void step(const Op &op, Pass &pass) {
        Live &l = live_[op.slot];
        if (work_.bytes > 0 && !op.allocate && l.ptr != nullptr && l.stream != op.stream) {
            device::wait(streams_[op.stream], streams_[l.stream]);
        }
        const auto start = Clock::now();
        try {
            if (op.allocate) {
                l.bytes = op.bytes;
                l.stream = op.stream;
                l.ptr = allocator_.allocate(op.bytes, streams_[op.stream]);
            } else if (l.ptr != nullptr) {
                void *ptr = l.ptr;
                l.ptr = nullptr;
                allocator_.free(ptr, op.bytes, streams_[op.stream]);
            }
        } catch (const std::exception &e) {
            if (pass.failures++ == 0) pass.first_failure = std::string(e.what()).substr(0, 200);
        }
        pass.each.add(Clock::now() - start);
        if (work_.bytes == 0) return;
        if (op.allocate && l.ptr != nullptr) device::fill(l.ptr, std::min(l.bytes, work_.bytes), streams_[op.stream]);
        if (++since_waited_ >= work_.operations) {
            device::sync();
            since_waited_ = 0;
        }
    }

    Allocator &allocator_;
    std::vector<Stream> streams_;
    DeviceWork work_;
    size_t since_waited_ = 0;
    std::vector<Live> live_;
};

template <class Allocator>
class Fresh {
public:
    static constexpr uint64_t K = 1024, M = 1024 * K, G = 1024 * M;

    // `total`: the device's memory, bytes. `used_before`: what of it was in use when the process
    // began.
    Fresh(size_t ops, double limit_s, uint64_t seed, Printer &printer, Stream a, size_t total, size_t used_before)
        : ops_(ops), limit_s_(limit_s), random_(seed), out_(printer), a_(a), total_(total), used_before_(used_before) {}

    // Key-value caches of requests that grow by concatenation: each step allocates the longer one
    // and frees the shorter.
    void serving() {
        const uint64_t cap = std::min<uint64_t>(24 * G, total_ / 3);
        constexpr size_t requests = 2000;
        constexpr uint64_t token = 16 * K;
        Builder b;
        auto prompt = [&] { return token * random_.bytes(6, 10.5); };
        run("serving", b, {a_}, [&] {
            if (b.live() < requests && b.live_bytes() < cap) return b.allocate(prompt(), 0);
            const size_t k = random_.below(b.live());
            if (b.live_bytes() > cap || random_.below(12) == 0) return b.free(k, 0);
            b.allocate(b.bytes_of(k) + token * (16 + random_.below(97)), 0);
            b.free(k, 0);
        });
    }

    // Every power of two as likely as any other, from 256 bytes to 256 MiB; half of the time below
    // the cap.
    void log_uniform() { mixed("log_uniform", 8, 28, std::min<uint64_t>(16 * G, total_ / 4), false); }
    // The same with what is live kept at the cap.
    void held() { mixed("held", 8, 28, std::min<uint64_t>(16 * G, total_ / 4), true); }
    // Nearly the whole device.
    void nearly_full() { mixed("nearly_full", 11, 31, total_ / 100 * 72, true); }
    void uniform() {
        const uint64_t cap = std::min<uint64_t>(16 * G, total_ / 4);
        Builder b;
        run("uniform", b, {a_}, [&] {
            const uint64_t bytes = M + random_.below(63 * M);
            while (b.live_bytes() + bytes > cap) b.free(random_.below(b.live()), 0);
            b.allocate(bytes, 0);
        });
    }

    // A cache of small entries that live long, among ten large temporaries that do not; any of
    // either kind goes next.
    void cache() {
        const uint64_t cap = std::min<uint64_t>(2 * G, total_ / 32);
        Builder b;
        uint64_t cached = 0;
        auto any = [&](bool small) {
            for (;;) {
                const size_t k = random_.below(b.live());
                if ((b.bytes_of(k) <= M) == small) return k;
            }
        };
        size_t temporaries = 0;
        run("cache", b, {a_}, [&] {
            const uint64_t entry = random_.bytes(12, 20);
            b.allocate(entry, 0);
            for (cached += entry; cached > cap;) {
                const size_t k = any(true);
                cached -= b.bytes_of(k);
                b.free(k, 0);
            }
            b.allocate(random_.bytes(24, 28), 0);
            if (++temporaries > 10) b.free(any(false), 0);
        });
    }

    // Training steps, each of another sequence length: what the forward pass keeps is freed by the
    // backward pass.
    void lengths() {
        Builder b;
        for (int i = 0; i < 48; i++) b.allocate(64 * M, 0);
        const size_t weights = b.live();
        run("lengths", b, {a_}, [&] {
            const uint64_t tokens = 512 + random_.below(7680), row = 4096 * 2;
            for (int layer = 0; layer < 24; layer++) {
                for (int kept : {1, 3, 1, 4}) b.allocate(tokens * row * static_cast<uint64_t>(kept) / 4, 0);
                b.allocate(tokens * row * 2, 0);
                b.free(b.live() - 1, 0);
            }
            while (b.live() > weights) {
                b.allocate(tokens * row / 2, 0);
                b.free(b.live() - 1, 0);
                b.free(b.live() - 1, 0);
            }
        });
    }

    // Buffers made on one stream, used on the next and freed there, round three streams.
    void pipeline() {
        std::vector<Stream> streams = {a_, device::new_stream(), device::new_stream()};
        Builder b;
        uint16_t turn = 0;
        run("pipeline", b, streams, [&] {
            b.allocate(random_.bytes(16, 26), turn);
            if (b.live() > 64) b.free(random_.below(16), static_cast<uint16_t>((turn + 1) % 3));
            turn = static_cast<uint16_t>((turn + 1) % 3);
        });
        device::sync();
        device::destroy_stream(streams[1]);
        device::destroy_stream(streams[2]);
    }

    // A program that is itself drawn: how many streams and how they take turns, which sizes, how
    // long blocks live, and on which stream they are freed. With `works` the device fills blocks
    // meanwhile, and may fall behind the host.
    void program(bool works) {
        constexpr size_t stream_counts[] = {1, 1, 2, 3, 8, 32, 100};
        const size_t count = stream_counts[random_.below(std::size(stream_counts))];
        std::vector<Stream> streams = {a_};
        while (streams.size() < count) streams.push_back(device::new_stream());
        enum { Random, FirstIn, LastIn, Recent, Phases, Steps } life = static_cast<decltype(life)>(random_.below(6));
        enum { LogUniform, Uniform, Set, Growing, TwoKinds } kind = static_cast<decltype(kind)>(random_.below(5));
        const double low = 10 + static_cast<double>(random_.below(15));
        const double high = std::min(30., low + 1 + static_cast<double>(random_.below(12)) + (kind == TwoKinds ? 4 : 0));
        const uint64_t smallest = exp2_of(low), largest = exp2_of(high), step = exp2_of(9 + static_cast<double>(random_.below(10)));
        std::vector<uint64_t> set(2 + random_.below(40));
        for (uint64_t &bytes : set) bytes = random_.bytes(low, high);
        const uint64_t cap = std::min({std::max(random_.bytes(28, 34), 20 * largest), 16 * G, total_ / 4});
        constexpr size_t shares[] = {0, 0, 10, 100};
        const size_t away = shares[random_.below(std::size(shares))];  // percent of the frees on another stream
        const size_t burst = size_t(1) << random_.below(12);
        const size_t turns = random_.below(3);
        constexpr uint64_t filled[] = {64 * K, 4 * M, G};
        constexpr size_t waits[] = {100, 1000, 10000};
        DeviceWork work;
        if (works) work = {filled[random_.below(std::size(filled))], waits[random_.below(std::size(waits))]};

        Builder b;
        size_t op = 0;
        uint64_t last = smallest;
        auto stream = [&] {
            op++;
            const size_t turn = turns == 0 ? op : turns == 1 ? random_.below(count) : op / burst;
            return static_cast<uint16_t>(turn % count);
        };
        auto size = [&]() -> uint64_t {
            switch (kind) {
            case Uniform: return smallest + random_.below(largest - smallest);
            case Set: return set[random_.below(set.size())];
            case Growing: return last = last + step > largest ? smallest : last + step;
            case TwoKinds: return random_.below(10) > 0 ? random_.bytes(low, low + 3) : random_.bytes(high - 2, high);
            default: return random_.bytes(low, high);
            }
        };
        // On the stream that it was made on, or wherever the program is.
        std::vector<uint16_t> made_on;
        auto make = [&] {
            made_on.push_back(stream());
            b.allocate(size(), made_on.back());
        };
        auto drop = [&](size_t k, bool in_order = false) {
            const uint16_t on = random_.below(100) < away ? stream() : made_on[k];
            if (in_order) {
                made_on.erase(made_on.begin());
                return b.free_in_order(on);
            }
            made_on[k] = made_on.back();
            made_on.pop_back();
            b.free(k, on);
        };
        auto is_full = [&](size_t most) { return b.live() > 0 && (b.live_bytes() >= cap || b.live() >= most); };
        auto time_to_drop = [&](size_t percent) { return is_full(5000) || (b.live() > 0 && random_.below(100) < percent); };
        constexpr const char *lifetimes[] = {"at random", "first in first out", "last in first out", "recent ones first", "in phases", "in steps"};
        constexpr const char *kinds[] = {"log-uniform", "uniform", "of a set", "growing", "of two kinds"};
        const std::string about = std::to_string(count) + " streams, sizes " + kinds[kind] + " from 2^" +
            std::to_string(static_cast<int>(low)) + " to 2^" + std::to_string(static_cast<int>(high)) + ", freed " +
            lifetimes[life] + ", " + std::to_string(cap / M) + " MiB, " + std::to_string(away) + " % elsewhere" +
            (works ? ", " + std::to_string(work.bytes / K) + " KiB filled, waits after " + std::to_string(work.operations) : "");
        run(works ? "working_program" : "program", b, streams, [&] {
            switch (life) {
            case FirstIn: return is_full(2000) ? drop(0, true) : make();
            case LastIn: return time_to_drop(48) ? drop(b.live() - 1) : make();
            case Phases:
                while (!is_full(2000)) make();
                for (size_t kept = b.live() * random_.below(30) / 100; b.live() > kept;) drop(random_.below(b.live()));
                return;
            case Steps: {
                const size_t before = b.live();
                for (size_t n = 20 + random_.below(200); n > 0 && b.live_bytes() < cap; n--) {
                    make();
                    if (random_.below(100) < 40) drop(b.live() - 1);
                }
                while (b.live() > before) drop(b.live() - 1);
                if (before < 50 && b.live_bytes() < cap / 2) make();
                else if (random_.below(10) == 0) while (b.live() > 0) drop(b.live() - 1);
                return;
            }
            case Recent:
                if (!time_to_drop(35)) return make();
                return drop(random_.below(10) > 0 ? b.live() - 1 - random_.below(std::min<size_t>(b.live(), 8))
                                                  : random_.below(b.live()));
            default: return time_to_drop(35) ? drop(random_.below(b.live())) : make();
            }
        }, about, work);
        device::sync();
        for (Stream s : streams) if (s != a_) device::destroy_stream(s);
    }

    // Each block a page longer than the last, first in first out.
    void fifo() {
        Builder b;
        uint64_t bytes = 2 * M;
        run("fifo", b, {a_}, [&] {
            bytes = bytes > 64 * M ? 2 * M : bytes + 4 * K;
            b.allocate(bytes, 0);
            if (b.live() > 128) b.free_in_order(0);
        });
    }

    // Streams that take turns and rest afterwards, 100 MiB each: what is mapped at the end for how
    // much.
    void turns() {
        Allocator allocator(0);
        std::vector<Stream> streams;
        Times each(4096);
        for (size_t i = 0; i < std::max<size_t>(ops_ / 100, 2); i++) {
            streams.push_back(device::new_stream());
            void *blocks[4];
            for (void *&p : blocks) {
                const auto start = Clock::now();
                p = allocator.allocate(25 * M, streams.back());
                each.add(Clock::now() - start);
            }
            for (void *p : blocks) allocator.free(p, 25 * M, streams.back());
            device::sync();
        }
        out_.at("turns", std::to_string(streams.size()) + " streams x 100 MiB");
        out_.print("mean malloc", each.mean_us(), "us");
        out_.print("device used", static_cast<double>(used()) / GIB, "GiB", Allocator::note);
        for (Stream s : streams) device::destroy_stream(s);
        // A stream that comes later to an idle device.
        Stream first = device::new_stream(), second = device::new_stream();
        const uint64_t bytes = std::min<uint64_t>(8 * G, total_ / 4);
        for (Stream s : {first, second}) {
            std::vector<void *> blocks;
            for (uint64_t at = 0; at < bytes; at += 64 * M) blocks.push_back(allocator.allocate(64 * M, s));
            for (void *p : blocks) allocator.free(p, 64 * M, s);
            device::sync();
        }
        out_.at("turns", "second stream");
        out_.print("device used", static_cast<double>(used()) / GIB, "GiB", Allocator::note);
        out_.print("utilisation", static_cast<double>(bytes) / static_cast<double>(used()), "1", Allocator::note);
        device::destroy_stream(first);
        device::destroy_stream(second);
    }

    // Nothing is freed: what a malloc costs, and what host memory it takes.
    void growth() {
        for (auto [most, bytes] : {std::pair<size_t, uint64_t>{20000, 64 * K}, {8000, 2 * M}, {3000, 3 * M}, {200000, 1000}}) {
            const size_t count = std::min(most, 5 * ops_);
            Allocator allocator(0);
            std::vector<void *> blocks;
            blocks.reserve(count);
            const double host = host_mib();
            const auto start = Clock::now();
            for (size_t i = 0; i < count; i++) blocks.push_back(allocator.allocate(bytes, a_));
            const double time = us(Clock::now() - start);
            out_.at("growth", std::to_string(count) + " x " + size_case(bytes));
            out_.print("mean malloc", time / static_cast<double>(count), "us");
            out_.print("host memory", host_mib() - host, "MiB");
            for (void *p : blocks) allocator.free(p, bytes, a_);
        }
    }

    // One stream among many that rest: a pair of malloc and free.
    void many_streams() {
        for (size_t others : {size_t(0), ops_ / 400, ops_ / 8}) {
            Allocator allocator(0);
            std::vector<Stream> streams;
            for (size_t i = 0; i < others; i++) {
                streams.push_back(device::new_stream());
                allocator.free(allocator.allocate(100 * K, streams.back()), 100 * K, streams.back());
            }
            device::sync();
            Times hot(4000);
            for (int i = 0; i < 4000; i++) {
                const uint64_t bytes = M + random_.below(15 * M);
                const auto start = Clock::now();
                void *p = allocator.allocate(bytes, a_);
                allocator.free(p, bytes, a_);
                hot.add(Clock::now() - start);
            }
            out_.at("many_streams", std::to_string(others) + " that rest");
            hot.sort();
            out_.print("pair mean", hot.mean_us(), "us");
            out_.print("p99", hot.quantile_us(0.99), "us");
            for (Stream s : streams) device::destroy_stream(s);
        }
    }

private:
    void mixed(const char *name, double low, double high, uint64_t cap, bool full) {
        Builder b;
        run(name, b, {a_}, [&] {
            const uint64_t bytes = random_.bytes(low, high);
            while (b.live() > 0 && (b.live_bytes() + bytes > cap || (!full && random_.number() % 2 == 0))) {
                b.free(random_.below(b.live()), 0);
                if (b.live_bytes() + bytes <= cap) break;
            }
            b.allocate(bytes, 0);
        });
    }

    static uint64_t exp2_of(double power) { return static_cast<uint64_t>(std::exp2(power)); }

    // `about`: what there is to know of the workload.
    void run(const char *name, Builder &b, std::vector<Stream> streams, const std::function<void()> &draw,
             const std::string &about = "", DeviceWork work = {}) {
        Allocator allocator(std::min<size_t>(total_ / 10 * 9, 32 * G));
        Endless<Allocator> endless(allocator, std::move(streams), work);
        // The first pass meets an empty device; the last one is what goes on for ever.
        constexpr int passes = 6;
        for (int pass = 1; pass <= passes; pass++) {
            auto calls = driver_calls(allocator);
            auto r = endless.play(b, draw, ops_, limit_s_ / passes, used_before_);
            calls = driver_calls(allocator) - calls;
            if (pass > 1 && pass < passes) continue;
            r.each.sort();
            out_.at(name, pass == 1 ? "first pass" : "sixth pass");
            out_.print("mean", r.each.mean_us(), "us", r.cut ? "stopped after " + std::to_string(r.each.count()) : about);
            for (auto [metric, share] : {std::pair{"p50", .5}, {"p99", .99}, {"p99.9", .999}, {"max", 1.}}) {
                out_.print(metric, r.each.quantile_us(share), "us");
            }
            out_.print("peak live", static_cast<double>(r.peak_live) / GIB, "GiB", "of the workload");
            out_.print("device used", static_cast<double>(r.peak_used) / GIB, "GiB", Allocator::note);
            if (r.peak_used > 0) {
                const double live = static_cast<double>(r.peak_live);
                out_.print("utilisation", live / static_cast<double>(r.peak_used), "1", Allocator::note);
            }
            out_.print("failures", static_cast<double>(r.failures), "1", r.first_failure);
            if constexpr (requires { allocator.driver_calls(); }) {
                const double each = static_cast<double>(calls) / static_cast<double>(std::max<size_t>(r.each.count(), 1));
                out_.print("driver calls an operation", each, "1");
            }
        }
    }

    size_t used() const { return device::used() - std::min(device::used(), used_before_); }
    static uint64_t driver_calls(const Allocator &allocator) {
        if constexpr (requires { allocator.driver_calls(); }) return allocator.driver_calls();
        else return 0;
    }
    static double host_mib() {
        long pages = 0, resident = 0;
        if (FILE *f = fopen("/proc/self/statm", "r")) {
            if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
            fclose(f);
        }
        return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / static_cast<double>(M);
    }

    size_t ops_;
    double limit_s_;
    Random random_;
    Printer &out_;
    Stream a_;
    uint64_t total_;
    size_t used_before_;
};

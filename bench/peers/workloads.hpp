// The workloads, those of `gpumem bench` with the same numbers. Each makes its allocator afresh.
#pragma once

#include "measure.hpp"
#include "player.hpp"
#include "script.hpp"
#include "threads.hpp"

#include <optional>
#include <string>
#include <vector>

struct Options {
    size_t ops = 0;         // allocations per case, and rounds of threads a tenth as long; 0: each workload's own
    double limit_s = 20;    // for one pass over a script
    int passes = 2;         // over each trace
    size_t ops_or(size_t own) const { return ops == 0 ? own : ops; }
};

template <class Allocator>
class Workloads {
public:
    Workloads(const Options &options, Printer &printer, Stream a, Stream b, size_t used_before)
        : o_(options), out_(printer), a_(a), b_(b), used_before_(used_before) {}

    void cold() {
        out_.at("cold", "first in the process");
        auto start = Clock::now();
        std::optional<Allocator> allocator(std::in_place, GiB);
        auto made = Clock::now();
        void *p = allocator->allocate(GiB, a_);
        auto done = Clock::now();
        allocator->free(p, GiB, a_);
        out_.print("malloc", us(done - made), "us");
        out_.print("both", us(done - start), "us");
        std::vector<double> times;
        for (int i = 0; i < 20; i++) {
            device::sync();
            if constexpr (requires { allocator->trim(); }) allocator->trim();
            else allocator.reset();
            auto again = Clock::now();
            if (!allocator) allocator.emplace(GiB);
            p = allocator->allocate(GiB, a_);
            times.push_back(us(Clock::now() - again));
            allocator->free(p, GiB, a_);
        }
        out_.at("cold", "again, median of 20");
        out_.print("malloc", median(times), "us");
    }

    void hot() {
        Allocator allocator(up_front());
        for (uint64_t bytes : {uint64_t(256), 4 * KiB, 64 * KiB, MiB, 2 * MiB, 64 * MiB, GiB}) {
            out_.at("hot", size_case(bytes));
            pairs(allocator, bytes);
        }
    }

    void live() {
        for (size_t blocks : {1000, 10000, 100000}) {
            Allocator allocator(up_front());
            Random random(3);
            Builder b;
            for (size_t i = 0; i < blocks + blocks / 4; i++) b.allocate(random.bytes(8, 18), 0);
            for (size_t k = b.live(); k-- > 0;) {
                if (k % 5 == 0) b.free(k, 0);
            }
            Script script = b.finish();
            Player<Allocator> player(allocator, script, {a_});
            if (player.play({.limit_s = o_.limit_s}).done < script.ops.size()) {
                out_.at("live", std::to_string(blocks) + " live");
                out_.print("failed", 1, "1", "making the live blocks took too long");
                continue;
            }
            for (uint64_t bytes : {4 * KiB, 2 * MiB}) {
                out_.at("live", std::to_string(blocks) + " live, " + size_case(bytes));
                pairs(allocator, bytes);
            }
        }
    }

    void random() {
        constexpr uint64_t cap = 16 * GiB;
        Random random(42);
        Builder b;
        for (size_t i = 0; i < o_.ops_or(20000); i++) {
            uint64_t bytes = random.bytes(8, 28);
            while (b.live() > 0 && (b.live_bytes() + bytes > cap || random.number() % 2 == 0)) {
                b.free(random.below(b.live()), 0);
                if (b.live_bytes() + bytes <= cap) break;
            }
            b.allocate(bytes, 0);
        }
        Script script = b.finish();
        Allocator allocator(up_front());
        Player<Allocator> player(allocator, script, {a_});
        Times cold(script.ops.size()), warm(script.ops.size());
        auto first = player.play({.each = &cold, .watching = true, .limit_s = o_.limit_s});
        out_.at("random", "cold");
        out_.print("mean", cold.mean_us(), "us", stopped(first.done, script));
        quantiles(cold);
        memory(script, first.peak_used);
        player.free_the_rest();
        auto calls = driver_calls(allocator);
        auto loop = player.play({.limit_s = o_.limit_s});
        calls = driver_calls(allocator) - calls;
        player.free_the_rest();
        auto each = player.play({.each = &warm, .watching = true, .limit_s = o_.limit_s});
        out_.at("random", "warm");
        out_.print("mean", mean(loop), "us", stopped(loop.done, script));
        quantiles(warm);
        memory(script, each.peak_used);
        print_calls(calls, loop.done);
    }

    void threads(bool one_stream) {
        const char *workload = one_stream ? "threads_one_stream" : "threads";
        Allocator allocator(up_front());
        std::vector<Stream> streams = {a_};
        for (size_t n : {1, 4, 16}) {
            while (!one_stream && streams.size() < n) streams.push_back(device::new_stream());
            std::vector<Script> scripts;
            for (size_t t = 0; t < n; t++) scripts.push_back(thread_script(t, o_.ops_or(20000)));
            out_.at(workload, n == 1 ? "1 thread" : std::to_string(n) + " threads");
            auto calls = driver_calls(allocator);
            const Rounds rounds = play_rounds(allocator, scripts, streams, o_.ops == 0 ? 0.1 : 0.01);
            calls = driver_calls(allocator) - calls;
            out_.print("rate", median(rounds.rates) / 1e6, "Mops/s", std::to_string(rounds.rates.size()) + " rounds");
            print_calls(calls, rounds.done);
        }
        for (size_t i = 1; i < streams.size(); i++) device::destroy_stream(streams[i]);
    }

    void cross_stream() {
        Random random(1);
        Builder b;
        for (size_t i = 0; i < o_.ops_or(5000); i++) {
            b.allocate(random.bytes(12, 26), 0);
            b.free(0, 1);
        }
        Script script = b.finish();
        Allocator allocator(up_front());
        Player<Allocator> player(allocator, script, {a_, b_});
        for (const char *pass : {"cold", "warm"}) {
            auto calls = driver_calls(allocator);
            auto r = player.play({.limit_s = o_.limit_s});
            calls = driver_calls(allocator) - calls;
            out_.at("cross_stream", pass);
            out_.print("pair mean", 2 * mean(r), "us", stopped(r.done, script));
            out_.print("device used", since_start(device::used()), "GiB", Allocator::note);
            print_calls(calls, r.done);
        }
    }

    void growing() {
        Random random(7);
        Builder b;
        size_t rounds = std::min<size_t>(60, (o_.ops_or(2400) + 39) / 40);
        for (uint64_t round = 0; round < rounds; round++) {
            for (int i = 0; i < 40; i++) b.allocate((16 + 4 * round + random.number() % 8) * MiB, 0);
            b.shuffle(random);
            while (b.live_bytes() > 12 * GiB) b.free(b.live() - 1, 0);
        }
        Script script = b.finish();
        Allocator allocator(up_front());
        Player<Allocator> player(allocator, script, {a_});
        auto r = player.play({.watching = true, .limit_s = o_.limit_s});
        // The last round has the peak, and the device was looked at after it too.
        out_.at("growing", std::to_string(rounds) + " rounds of 40");
        out_.print("mean", mean(r), "us", stopped(r.done, script));
        memory(script, std::max(r.peak_used, device::used()));
    }

    void checkerboard() {
        constexpr uint64_t block = 64 * MiB, blocks = 320, bytes = blocks / 2 * block;
        Builder b;
        for (uint64_t i = 0; i < blocks; i++) b.allocate(block, 0);
        for (size_t k = blocks; k-- > 0;) {
            if (k % 2 == 1) b.free(k, 0);
        }
        Script script = b.finish();
        size_t before = up_front();
        // A pool that can grow begins with little more than the blocks take.
        if constexpr (requires { Allocator::grows; }) before = std::min<size_t>(before, blocks * block + GiB);
        Allocator allocator(before);
        Player<Allocator> player(allocator, script, {a_});
        player.play({.limit_s = o_.limit_s});
        out_.at("checkerboard", "10.00 GiB from holes of 64.00 MiB");
        out_.print("device used before", since_start(device::used()), "GiB", Allocator::note);
        auto calls = driver_calls(allocator);
        auto start = Clock::now();
        void *p = allocator.allocate(bytes, a_);
        double took = us(Clock::now() - start) / 1e3;
        calls = driver_calls(allocator) - calls;
        out_.print("malloc", took, "ms");
        out_.print("device used after", since_start(device::used()), "GiB", Allocator::note);
        print_calls(calls, 1);
        allocator.free(p, bytes, a_);
    }

    void replay(const std::string &file) {
        Script script = TraceReader::read(file);
        std::vector<Stream> streams, made;
        for (uint64_t value : script.streams) {
            // The legacy stream (also as 1) and the per-thread stream stand for themselves, as
            // where it was recorded.
            if (value <= 2) streams.push_back(reinterpret_cast<Stream>(value == 2 ? 2 : 0));
            else made.push_back(device::new_stream()), streams.push_back(made.back());
        }
        std::string name = file.substr(file.find_last_of('/') + 1);
        {
            Allocator allocator(up_front());
            Player<Allocator> player(allocator, script, streams);
            for (int pass = 1; pass <= o_.passes; pass++) {
                auto calls = driver_calls(allocator);
                auto r = player.play({.watching = true, .tolerant = true, .limit_s = o_.limit_s});
                calls = driver_calls(allocator) - calls;
                player.free_the_rest();
                out_.at("replay", name + ", pass " + std::to_string(pass));
                out_.print("mean", mean(r), "us", stopped(r.done, script));
                memory(script, r.peak_used);
                if (r.done == script.ops.size() && since_start(r.peak_used) > 0) {
                    double live = static_cast<double>(script.peak_live) / GIB;
                    out_.print("utilisation", live / since_start(r.peak_used), "1", Allocator::note);
                }
                out_.print("failures", static_cast<double>(r.failures), "1", r.first_failure);
                print_calls(calls, r.done);
            }
        }
        for (Stream s : made) device::destroy_stream(s);
    }

private:
    using Result = typename Player<Allocator>::Result;

    // What a pool of fixed size takes: enough for every workload, if the device has it.
    size_t up_front() const {
        size_t free_bytes, total;
        device::memory(&free_bytes, &total);
        return std::min<size_t>(32 * GiB, free_bytes / 10 * 9 / GiB * GiB);
    }

    // Pairs of one size: a loop for the mean, then single calls.
    void pairs(Allocator &allocator, uint64_t bytes) {
        for (int i = 0; i < 50; i++) allocator.free(allocator.allocate(bytes, a_), bytes, a_);
        size_t wanted = o_.ops_or(200000), done = 0;
        Clock::duration time{};
        auto calls = driver_calls(allocator);
        while (done < wanted && seconds(time) < 0.25) {
            size_t batch = std::min<size_t>(1000, wanted - done);
            time += batch_of(allocator, batch, bytes);
            done += batch;
        }
        calls = driver_calls(allocator) - calls;
        size_t singles = std::min<size_t>(5000, o_.ops_or(5000));
        Times mallocs(singles), frees(singles);
        for (size_t i = 0; i < singles; i++) {
            auto start = Clock::now();
            void *p = allocator.allocate(bytes, a_);
            auto between = Clock::now();
            allocator.free(p, bytes, a_);
            frees.add(Clock::now() - between);
            mallocs.add(between - start);
        }
        mallocs.sort();
        frees.sort();
        out_.print("pair mean", us(time) / static_cast<double>(done), "us");
        out_.print("malloc p50", mallocs.quantile_us(0.5), "us");
        out_.print("malloc p99", mallocs.quantile_us(0.99), "us");
        out_.print("free p50", frees.quantile_us(0.5), "us");
        out_.print("free p99", frees.quantile_us(0.99), "us");
        print_calls(calls, 2 * done);
    }
    [[gnu::noinline]] Clock::duration batch_of(Allocator &allocator, size_t n, uint64_t bytes) {
        auto start = Clock::now();
        for (size_t i = 0; i < n; i++) allocator.free(allocator.allocate(bytes, a_), bytes, a_);
        return Clock::now() - start;
    }

    static double mean(const Result &r) { return us(r.time) / static_cast<double>(std::max<size_t>(r.done, 1)); }
    static std::string stopped(size_t done, const Script &script) {
        return done < script.ops.size() ? "stopped after " + std::to_string(done) + " operations" : "";
    }
    double since_start(size_t used) const {
        return used > used_before_ ? static_cast<double>(used - used_before_) / GIB : 0;
    }
    void quantiles(Times &times) {
        times.sort();
        out_.print("p50", times.quantile_us(0.5), "us");
        out_.print("p99", times.quantile_us(0.99), "us");
        out_.print("max", times.quantile_us(1), "us");
    }
    void memory(const Script &script, size_t peak_used) {
        out_.print("peak live", static_cast<double>(script.peak_live) / GIB, "GiB", "of the workload");
        out_.print("device used", since_start(peak_used), "GiB", Allocator::note);
    }
    // Counted by gpumem alone; the others do not say.
    static uint64_t driver_calls(const Allocator &allocator) {
        if constexpr (requires { allocator.driver_calls(); }) return allocator.driver_calls();
        else return 0;
    }
    void print_calls(uint64_t calls, size_t ops) {
        if constexpr (requires(const Allocator &a) { a.driver_calls(); }) {
            out_.print("driver calls an operation", static_cast<double>(calls) / static_cast<double>(ops), "1");
        }
    }

    const Options &o_;
    Printer &out_;
    Stream a_, b_;
    size_t used_before_;
};

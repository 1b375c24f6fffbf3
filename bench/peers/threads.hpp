// Several threads at once, each with a script of its own.
#pragma once

#include "device.hpp"
#include "measure.hpp"
#include "player.hpp"
#include "script.hpp"

#include <algorithm>
#include <barrier>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Seconds of each round, from the first thread's start to the last one's end: five rounds, or what two seconds have room
// for, after one round that fills the pool. Thread t uses stream t, or the first where there are fewer.
template <class Allocator>
std::vector<double> play_rounds(Allocator &allocator, const std::vector<Script> &scripts,
                                const std::vector<Stream> &streams) {
    constexpr int ROUNDS = 5;
    constexpr double ENOUGH_S = 2;
    const size_t n = scripts.size();
    struct Time {
        Clock::time_point start, end;
    };
    std::vector<Time> times(n);
    std::barrier<> barrier(static_cast<std::ptrdiff_t>(n) + 1);
    bool stop = false;  // written by this thread, and read by the others, on either side of the barrier
    std::mutex failing;
    std::string failure;
    auto guarded = [&](auto &&work) {
        try {
            work();
        } catch (const std::exception &e) {
            std::lock_guard lock(failing);
            if (failure.empty()) failure = e.what();
        }
    };
    auto one_thread = [&](size_t t) {
        std::optional<Player<Allocator>> player;
        guarded([&] {
            device::use_on_this_thread();
            player.emplace(allocator, scripts[t], std::vector<Stream>{streams[t < streams.size() ? t : 0]});
            player->play({});
        });
        for (;;) {
            barrier.arrive_and_wait();
            if (stop) return;
            times[t].start = Clock::now();
            guarded([&] {
                if (player) player->play({});
            });
            times[t].end = Clock::now();
            barrier.arrive_and_wait();
        }
    };
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n; t++) threads.emplace_back(one_thread, t);
    std::vector<double> rounds;
    double sum = 0;
    for (int round = 0;; round++) {
        // Until all have come to the barrier, a thread may still be at work.
        barrier.arrive_and_wait();
        if (stop) break;
        barrier.arrive_and_wait();
        auto start = times[0].start, end = times[0].end;
        for (const Time &time : times) start = std::min(start, time.start), end = std::max(end, time.end);
        rounds.push_back(seconds(end - start));
        sum += rounds.back();
        stop = round + 1 == ROUNDS || sum > ENOUGH_S;
    }
    for (std::thread &thread : threads) thread.join();
    if (!failure.empty()) throw std::runtime_error(failure);
    return rounds;
}

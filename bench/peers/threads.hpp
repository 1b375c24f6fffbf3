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

// Rounds of several threads.
struct Rounds {
    size_t plays;                 // how often each thread plays its script in a round
    std::vector<double> seconds;  // of each round, from the first thread's start to the last one's end
    size_t played = 1;            // how often each has played it in all, with the plays that are not in a round
};

// Five rounds, or what two seconds have room for, after one play that fills the pool and one that says how many make a round of 50 ms:
// shorter ones would measure how threads start. Thread t uses stream t, or the first where there are fewer.
template <class Allocator>
Rounds play_rounds(Allocator &allocator, const std::vector<Script> &scripts, const std::vector<Stream> &streams) {
    constexpr size_t ROUNDS = 5;
    constexpr double ENOUGH_S = 2;
    constexpr double ROUND_S = 0.05;
    constexpr double MOST_PLAYS = 1000;
    const size_t n = scripts.size();
    struct Time {
        Clock::time_point start, end;
    };
    std::vector<Time> times(n);
    std::barrier<> barrier(static_cast<std::ptrdiff_t>(n) + 1);
    bool stop = false;  // these two are written by this thread, and read by the others, on either side of the barrier
    Rounds rounds{1, {}};
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
                for (size_t i = 0; player && i < rounds.plays; i++) player->play({});
            });
            times[t].end = Clock::now();
            barrier.arrive_and_wait();
        }
    };
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n; t++) threads.emplace_back(one_thread, t);
    double sum = 0;
    bool tried = false;
    for (;;) {
        // Until all have come to the barrier, a thread may still be at work.
        barrier.arrive_and_wait();
        if (stop) break;
        barrier.arrive_and_wait();
        auto start = times[0].start, end = times[0].end;
        for (const Time &time : times) start = std::min(start, time.start), end = std::max(end, time.end);
        const double took = seconds(end - start);
        rounds.played += rounds.plays;
        if (!tried) rounds.plays = static_cast<size_t>(std::clamp(ROUND_S / std::max(took, 1e-6), 1.0, MOST_PLAYS));
        // The trial counts where it was long enough to be a round.
        if (tried || rounds.plays == 1) rounds.seconds.push_back(took), sum += took;
        tried = true;
        const std::lock_guard lock(failing);
        stop = rounds.seconds.size() == ROUNDS || sum > ENOUGH_S || !failure.empty();
    }
    for (std::thread &thread : threads) thread.join();
    if (!failure.empty()) throw std::runtime_error(failure);
    return rounds;
}

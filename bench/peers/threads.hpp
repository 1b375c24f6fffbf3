// Several threads at once, each with a script of its own.
#pragma once

#include "device.hpp"
#include "measure.hpp"
#include "player.hpp"
#include "script.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Rounds of several threads.
struct Rounds {
    std::vector<double> rates;  // operations a second of each round: the sum of the threads' own
    size_t done = 0;            // operations in all, also of what came before the rounds
};

// Five rounds of so many seconds, after one play that fills the pool. Every thread plays its script
// over and over until the round is over, and its time counts from the round's start; so all are at
// work for the whole of it, and one that loses its processor for a moment costs what it would have
// done, and not what all would have. Before a round they wait for the last one, awake, and start
// together. Thread t uses stream t, or the first where there are fewer.
template <class Allocator>
Rounds play_rounds(Allocator &allocator, const std::vector<Script> &scripts, const std::vector<Stream> &streams, double round_s) {
    constexpr size_t ROUNDS = 5;
    const size_t n = scripts.size();
    struct Share {
        size_t done;
        double took_s;
    };
    std::vector<Share> shares(n);
    // The round that is next, and that has started; how often a thread was awake for one, and has
    // ended one, filling the pool included. `stop` is written before a round is next, `start`
    // before it has started, and `shares` before its end is counted.
    std::atomic<size_t> round = 0, started = 0, awake = 0, ended = 0;
    bool stop = false;
    Clock::time_point start;
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
            shares[t].done = player->play({}).done;
        });
        for (size_t next = 1;; next++) {
            ended++, ended.notify_one();
            while (round < next) round.wait(next - 1);
            if (stop) return;
            if (++awake == n * next) start = Clock::now(), started = next;
            // Who is awake leaves its processor to who is not.
            while (started < next) std::this_thread::yield();
            guarded([&] {
                Share share{0, 0};
                for (; share.took_s < round_s; share.took_s = seconds(Clock::now() - start)) {
                    share.done += player->play({.limit_s = round_s - share.took_s}).done;
                }
                shares[t] = share;
                player->free_the_rest();
            });
        }
    };
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n; t++) threads.emplace_back(one_thread, t);
    Rounds rounds;
    do {
        // Asleep: the processors are for the threads.
        for (size_t so_far; (so_far = ended) < n * (round + 1);) ended.wait(so_far);
        double rate = 0;
        for (const Share &share : shares) rounds.done += share.done, rate += static_cast<double>(share.done) / share.took_s;
        if (round > 0) rounds.rates.push_back(rate);
        const std::lock_guard lock(failing);
        stop = rounds.rates.size() == ROUNDS || !failure.empty();
        round++, round.notify_all();
    } while (!stop);
    for (std::thread &thread : threads) thread.join();
    if (!failure.empty()) throw std::runtime_error(failure);
    return rounds;
}

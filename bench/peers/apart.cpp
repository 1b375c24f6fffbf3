// What a machine lets processes do that share nothing: the threads workload, each script in a process with a gpumem of its own
// on the host device (no GPU is used). How many times one process the several make is what threads of one process could
// reach at best: cores that share their units, caches and clock are no more than that. Beside it the same for arithmetic
// in registers, which shares not even caches: what is missing there is missing for any program.
//
//   apart [PROCESSES]      default: one for each processor
#include "allocators.hpp"
#include "measure.hpp"
#include "player.hpp"
#include "script.hpp"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t MOST = 256;
constexpr size_t OPERATIONS = 20000;
// Plays in a round, and rounds of which the median counts: a tenth of a second each where a hit takes 60 ns.
constexpr size_t PLAYS = 40;
constexpr size_t ROUNDS = 5;

// What the processes share: in memory that all of them have mapped.
struct Shared {
    std::atomic<size_t> ready, round, done;
    Clock::time_point start[MOST], end[MOST];
};

// The threads workload of one thread.
struct Allocations {
    static constexpr double IN_A_PLAY = 2 * OPERATIONS;
    const Script script;
    Gpumem allocator;
    Player<Gpumem> player;
    explicit Allocations(size_t number)
        : script(thread_script(number, OPERATIONS)), allocator(0), player(allocator, script, {nullptr}) {}
    void play() { player.play({}); }
};

// Four sums that do not wait for each other, as a core has units for, in registers alone.
struct Arithmetic {
    static constexpr double IN_A_PLAY = 32e6;
    explicit Arithmetic(size_t) {}
    void play() {
        uint64_t a = 1, b = 2, c = 3, d = 4;
        for (size_t i = 0; i < static_cast<size_t>(IN_A_PLAY / 4); i++) {
            a += i, b ^= i, c -= i, d += i;
            // The compiler must not know what comes of it.
            asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
        }
    }
};

template <class Work>
void one(Shared &shared, size_t number) {
    Gpumem::start();
    Work work(number);
    // Fills the pool, and the caches.
    for (int i = 0; i < 2; i++) work.play();
    shared.ready++;
    for (size_t round = 1; round <= ROUNDS; round++) {
        // Who is ready leaves its processor to who is not.
        while (shared.round < round) sched_yield();
        shared.start[number] = Clock::now();
        for (size_t i = 0; i < PLAYS; i++) work.play();
        shared.end[number] = Clock::now();
        shared.done++;
    }
}

// Millions of operations a second of so many processes together.
template <class Work>
double rate(size_t processes) {
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    Shared &shared = *new (memory) Shared{};
    const pid_t parent = getpid();
    for (size_t i = 0; i < processes; i++) {
        const pid_t child = fork();
        if (child < 0) throw std::runtime_error("fork failed");
        if (child > 0) continue;
        // Nobody waits for a round that does not come.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        try {
            one<Work>(shared, i);
        } catch (const std::exception &e) {
            std::fprintf(stderr, "apart: %s\n", e.what());
            _exit(1);
        }
        _exit(0);
    }
    // Sleeps: the processors are for the others. When a child fails, nobody waits for what it would have done.
    auto wait_for = [&](const std::atomic<size_t> &count, size_t number) {
        while (count < number) {
            int status = 0;
            if (waitpid(-1, &status, WNOHANG) > 0 && status != 0) throw std::runtime_error("a process ended early");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    wait_for(shared.ready, processes);
    std::vector<double> rates;
    for (size_t round = 1; round <= ROUNDS; round++) {
        shared.round = round;
        wait_for(shared.done, round * processes);
        const double took = seconds(*std::max_element(shared.end, shared.end + processes) -
                                    *std::min_element(shared.start, shared.start + processes));
        rates.push_back(Work::IN_A_PLAY * static_cast<double>(PLAYS * processes) / took / 1e6);
    }
    while (wait(nullptr) > 0) {}
    munmap(memory, sizeof(Shared));
    return median(rates);
}

}  // namespace

int main(int argc, char **argv) {
    const long processors = static_cast<long>(std::thread::hardware_concurrency());
    const long given = argc > 1 ? std::atol(argv[1]) : std::clamp(processors, 1L, static_cast<long>(MOST));
    if (given < 1 || given > static_cast<long>(MOST)) {
        std::fprintf(stderr, "apart: %ld processes; from 1 to %zu can be had\n", given, MOST);
        return 2;
    }
    setenv("GPUMEM_BACKEND", "host", 1);
    const size_t most = static_cast<size_t>(given);
    try {
        const double alone = rate<Allocations>(1);
        const double sums_alone = rate<Arithmetic>(1);
        std::printf("processes that share nothing: one makes %.1f Mops/s\n", alone);
        for (size_t n = 2; n <= most; n = n < most ? std::min(2 * n, most) : n + 1) {
            const double all = rate<Allocations>(n);
            const double sums = rate<Arithmetic>(n);
            std::printf("  %3zu make %.1f, %.1f times as much; of arithmetic in registers %.1f times\n", n, all, all / alone, sums / sums_alone);
        }
    } catch (const std::exception &e) {
        std::fprintf(stderr, "apart: %s\n", e.what());
        return 1;
    }
}

// What a machine lets processes do that share nothing: the threads workload, each script in a
// process with a gpumem of its own on the host device (no GPU is used). How many times one process
// the several make is what threads of one process could reach at best: cores that share their
// units, caches and clock are no more than that. Beside it the same for additions in registers,
// which share not even caches, and one process that allocates beside others that add: what is
// missing there is missing for any program. Prints figures as peers.cpp does; scaling.py makes a
// table of them.
//
//   apart [PROCESSES [SECONDS]]      default: one for each processor, and .1 seconds for each round
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
#include <numeric>
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
// Rounds of which the median counts, as those of threads.
constexpr size_t ROUNDS = 5;
double round_s = 0.1;

// What the processes share: in memory that all of them have mapped.
struct Shared {
    std::atomic<size_t> ready, round, done;
    Clock::time_point start;  // of the round, before it is the round
    double rate[MOST];        // operations a second of each in the round
    // The rounds are over for those that keep the others company.
    std::atomic<bool> stop;
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

// A process whose work counts.
template <class Work>
void measured(Shared &shared, size_t number) {
    Gpumem::start();
    Work work(number);
    // Fills the pool, and the caches.
    for (int i = 0; i < 2; i++) work.play();
    shared.ready++;
    for (size_t round = 1; round <= ROUNDS; round++) {
        // Who is ready leaves its processor to who is not.
        while (shared.round < round) sched_yield();
        double plays = 0, took_s = 0;
        for (; took_s < round_s; took_s = seconds(Clock::now() - shared.start)) work.play(), plays++;
        shared.rate[number] = plays * Work::IN_A_PLAY / took_s;
        shared.done++;
    }
}

// A process that only keeps a processor busy.
void company(Shared &shared) {
    Arithmetic work(0);
    shared.ready++;
    while (!shared.stop) work.play();
}

// Starts a process; an exception there ends it with 1.
template <class Body>
void start(Body body) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child > 0) return;
    // Nobody waits for a round that does not come.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    try {
        body();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "apart: %s\n", e.what());
        _exit(1);
    }
    _exit(0);
}

// Millions of operations a second of so many processes together, beside so many others that add.
template <class Work>
double rate(size_t processes, size_t others = 0) {
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    Shared &shared = *new (memory) Shared{};
    for (size_t i = 0; i < processes; i++) start([&] { measured<Work>(shared, i); });
    for (size_t i = 0; i < others; i++) start([&] { company(shared); });
    // Sleeps: the processors are for the others. When a child fails, nobody waits for what it would
    // have done.
    auto wait_for = [&](const std::atomic<size_t> &count, size_t number) {
        while (count < number) {
            int status = 0;
            if (waitpid(-1, &status, WNOHANG) > 0 && status != 0) throw std::runtime_error("a process ended early");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    wait_for(shared.ready, processes + others);
    std::vector<double> rates;
    for (size_t round = 1; round <= ROUNDS; round++) {
        shared.start = Clock::now();
        shared.round = round;
        wait_for(shared.done, round * processes);
        rates.push_back(std::accumulate(shared.rate, shared.rate + processes, 0.0) / 1e6);
    }
    shared.stop = true;
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
    if (argc > 2) round_s = std::atof(argv[2]);
    setenv("GPUMEM_BACKEND", "host", 1);
    const size_t most = static_cast<size_t>(given);
    Printer out("gpumem", 1);
    try {
        for (size_t n = 1; n <= most; n = n < most ? std::min(2 * n, most) : n + 1) {
            out.at("apart", std::to_string(n));
            out.print("processes", rate<Allocations>(n), "Mops/s");
            out.print("beside additions", rate<Allocations>(1, n - 1), "Mops/s");
            out.print("additions", rate<Arithmetic>(n), "Mops/s");
        }
    } catch (const std::exception &e) {
        std::fprintf(stderr, "apart: %s\n", e.what());
        return 1;
    }
}

// One allocator on the workloads of `gpumem bench` and on work that never repeats; prints a JSON
// line for every figure.
//
//   peers [--run N] [--ops N] [--limit SECONDS] [--passes N] [--seed N] ALLOCATOR WORKLOAD...
//   [replay FILE...]
//   peers --list                      the allocators that this build has
//
// run.sh calls it with one group of workloads at a time, so that a group finds a process of its
// own.

#include "allocators.hpp"
#include "device.hpp"
#include "fresh.hpp"
#include "workloads.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

struct Job {
    Options options;
    int run = 1;
    uint64_t seed = 0;  // of work that never repeats; 0: another one each time
    std::string allocator;
    std::vector<std::string> workloads, files;
};

// Every workload named. One that fails is a line of its own, and the others go on.
template <class Allocator>
bool run(const Job &job) {
    device::init();
    if constexpr (requires { Allocator::start(); }) Allocator::start();
    Stream a = device::new_stream(), b = device::new_stream();
    Printer out(job.allocator, job.run);
    Workloads<Allocator> w(job.options, out, a, b, device::used());
    size_t free_bytes, total;
    device::memory(&free_bytes, &total);
    const uint64_t seed = job.seed != 0 ? job.seed : std::random_device{}();
    Fresh<Allocator> fresh(job.options.ops_or(40000), job.options.limit_s, seed, out, a, total, device::used());
    bool well = true;
    auto attempt = [&](const std::string &workload, const std::string &c, const std::function<void()> &work) {
        try {
            work();
        } catch (const std::exception &e) {
            out.at(workload, c);
            out.print("failed", 1, "1", std::string(e.what()).substr(0, 300));
            well = false;
        }
    };
    const std::map<std::string, std::function<void()>> by_name = {
        {"cold", [&] { w.cold(); }},
        {"hot", [&] { w.hot(); }},
        {"live", [&] { w.live(); }},
        {"random", [&] { w.random(); }},
        {"threads", [&] { w.threads(false); }},
        {"threads_one_stream", [&] { w.threads(true); }},
        {"cross_stream", [&] { w.cross_stream(); }},
        {"growing", [&] { w.growing(); }},
        {"checkerboard", [&] { w.checkerboard(); }},
        {"serving", [&] { fresh.serving(); }},
        {"log_uniform", [&] { fresh.log_uniform(); }},
        {"held", [&] { fresh.held(); }},
        {"uniform", [&] { fresh.uniform(); }},
        {"nearly_full", [&] { fresh.nearly_full(); }},
        {"lengths", [&] { fresh.lengths(); }},
        {"cache", [&] { fresh.cache(); }},
        {"pipeline", [&] { fresh.pipeline(); }},
        {"fifo", [&] { fresh.fifo(); }},
        {"turns", [&] { fresh.turns(); }},
        {"growth", [&] { fresh.growth(); }},
        {"program", [&] { fresh.program(false); }},
        {"working_program", [&] { fresh.program(true); }},
        {"many_streams", [&] { fresh.many_streams(); }},
    };
    for (const std::string &name : job.workloads) {
        auto found = by_name.find(name);
        if (found == by_name.end()) {
            fprintf(stderr, "peers: there is no workload %s; choose from", name.c_str());
            for (const auto &[known, work] : by_name) fprintf(stderr, " %s", known.c_str());
            fprintf(stderr, ", or replay and files\n");
            exit(2);
        }
        attempt(name, "", found->second);
    }
    for (const std::string &file : job.files) {
        attempt("replay", file.substr(file.find_last_of('/') + 1), [&] { w.replay(file); });
    }
    return well;
}

const std::map<std::string, bool (*)(const Job &)> &allocators() {
    static const std::map<std::string, bool (*)(const Job &)> all = {
#ifdef WITH_GPUMEM
        {"gpumem", run<Gpumem>},
#endif
#ifndef WITHOUT_CUDA
        {"cudaMalloc", run<CudaMalloc>},
        {"cudaMallocAsync", run<CudaMallocAsync>},
#endif
#ifdef WITH_RMM
        {"rmm_pool", run<RmmPool>},
        {"rmm_arena", run<RmmArena>},
        {"rmm_async", run<RmmAsync>},
#endif
#ifdef WITH_TORCH
        {"torch_native", run<Torch>},
        {"torch_expandable", run<Torch>},
#endif
    };
    return all;
}

[[noreturn]] void usage() {
    fprintf(stderr, "usage: peers [--run N] [--ops N] [--limit SECONDS] [--passes N] [--seed N] ALLOCATOR WORKLOAD... [replay FILE...]\n"
                    "allocators of this build:");
    for (const auto &[name, work] : allocators()) fprintf(stderr, " %s", name.c_str());
    fprintf(stderr, "\n");
    exit(2);
}

Job parse(int argc, char **argv) {
    Job job;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        std::string option = argv[i];
        char *end = nullptr;
        double value = i + 1 < argc ? strtod(argv[i + 1], &end) : 0;
        if (end == nullptr || *end != '\0' || !(value >= 1)) usage();
        if (option == "--run") job.run = static_cast<int>(value);
        else if (option == "--ops") job.options.ops = static_cast<size_t>(value);
        else if (option == "--limit") job.options.limit_s = value;
        else if (option == "--seed") job.seed = static_cast<uint64_t>(value);
        else if (option == "--passes") job.options.passes = static_cast<int>(value);
        else usage();
    }
    if (i < argc) job.allocator = argv[i++];
    for (; i < argc && strcmp(argv[i], "replay") != 0; i++) job.workloads.emplace_back(argv[i]);
    for (i++; i < argc; i++) job.files.emplace_back(argv[i]);
    if (job.workloads.empty() && job.files.empty()) usage();
    return job;
}

// PyTorch reads its settings when its library is loaded, which is before main: so they are set for
// another start.
void choose_torch_mode(const std::string &allocator, char **argv) {
    const char *wanted = allocator == "torch_expandable" ? "expandable_segments:True" : "expandable_segments:False";
    const char *variables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    bool set = true;
    for (const char *variable : variables) {
        const char *now = getenv(variable);
        set = set && now != nullptr && strcmp(now, wanted) == 0;
    }
    if (set) return;
    for (const char *variable : variables) setenv(variable, wanted, 1);
    execv("/proc/self/exe", argv);
    perror("peers: cannot start again with PyTorch's settings");
    exit(2);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const auto &[name, work] : allocators()) printf("%s\n", name.c_str());
        return 0;
    }
    Job job = parse(argc, argv);
    auto found = allocators().find(job.allocator);
    if (found == allocators().end()) {
        fprintf(stderr, "peers: this build has no allocator %s\n", job.allocator.c_str());
        usage();
    }
    if (job.allocator.rfind("torch_", 0) == 0) choose_torch_mode(job.allocator, argv);
    try {
        return found->second(job) ? 0 : 1;
    } catch (const std::exception &e) {
        fprintf(stderr, "peers: %s: %s\n", job.allocator.c_str(), e.what());
        return 2;
    }
}

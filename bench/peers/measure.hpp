// Times, and the JSON lines that the program prints.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

inline double us(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }
inline double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Times of single calls. What a look at the clock costs is taken off each figure. Kept as small as
// they can be, as they go through the caches that the calls use: 4.3 seconds stand for anything
// longer.
class Times {
public:
    // Written to once, so that adding has nothing allocated between calls that are timed, and no
    // page cleared.
    explicit Times(size_t room) : ns_(room, UINT32_MAX) { ns_.clear(); }
    void add(Clock::duration d) {
        auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
        ns_.push_back(static_cast<uint32_t>(std::min<int64_t>(ns, UINT32_MAX)));
    }
    size_t count() const { return ns_.size(); }
    void sort() { std::sort(ns_.begin(), ns_.end()); }
    // The time that this share of all calls do not exceed; sort first.
    double quantile_us(double share) const { return less(raw(share)); }
    double mean_us() const {
        double sum = 0;
        for (uint32_t ns : ns_) sum += static_cast<double>(ns);
        return ns_.empty() ? 0 : less(sum / static_cast<double>(ns_.size()));
    }
    // Median time between two looks at the clock, nanoseconds.
    static double clock_ns() {
        static const double cost = [] {
            Times looks(20001);
            for (int i = 0; i < 20001; i++) {
                auto start = Clock::now();
                looks.add(Clock::now() - start);
            }
            looks.sort();
            return looks.raw(0.5);
        }();
        return cost;
    }

private:
    double raw(double share) const {
        if (ns_.empty()) return 0;
        size_t at = static_cast<size_t>(share * static_cast<double>(ns_.size()));
        return static_cast<double>(ns_[std::min(at, ns_.size() - 1)]);
    }
    static double less(double ns) { return std::max(0.0, ns - clock_ns()) / 1e3; }
    std::vector<uint32_t> ns_;
};

inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

inline std::string json_text(const std::string &text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\') (out += '\\') += static_cast<char>(c);
        else if (c < 0x20) snprintf(escaped, sizeof escaped, "\\u%04x", c), out += escaped;
        else out += static_cast<char>(c);
    }
    return out + "\"";
}

// Prints results, one JSON object a line.
class Printer {
public:
    Printer(std::string allocator, int run) : allocator_(std::move(allocator)), run_(run) {}
    // What the figures that follow belong to.
    void at(const std::string &workload, const std::string &c) { workload_ = workload, case_ = c; }
    // note: what has to be known to read the figure, or nothing.
    void print(const char *metric, double value, const char *unit, const std::string &note = "") const {
        printf("{\"allocator\":%s,\"run\":%d,\"workload\":%s,\"case\":%s,\"metric\":%s,\"value\":%.9g,\"unit\":%s",
               json_text(allocator_).c_str(), run_, json_text(workload_).c_str(), json_text(case_).c_str(),
               json_text(metric).c_str(), value, json_text(unit).c_str());
        if (!note.empty()) printf(",\"note\":%s", json_text(note).c_str());
        printf("}\n");
        fflush(stdout);
    }

private:
    std::string allocator_, workload_, case_;
    int run_;
};

constexpr double GIB = 1073741824.0;
constexpr uint64_t KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;

// A size in the name of a case.
inline std::string size_case(uint64_t bytes) {
    if (bytes >= GiB) return std::to_string(bytes / GiB) + " GiB";
    if (bytes >= MiB) return std::to_string(bytes / MiB) + " MiB";
    if (bytes >= KiB) return std::to_string(bytes / KiB) + " KiB";
    return std::to_string(bytes) + " B";
}

// A workload as a list of operations made beforehand, so that a timed loop draws no random number
// and reads no file.
#pragma once

#include "device.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

struct Op {
    uint64_t bytes;   // of the allocation, also in its free: some allocators want to be told
    uint32_t slot;    // where the pointer is kept
    uint16_t stream;  // index into the player's streams
    bool allocate;    // or free
};

struct Script {
    std::vector<Op> ops;
    size_t slots = 0;
    uint64_t peak_live = 0;
    std::vector<uint64_t> streams;  // a trace's values, in the order of first use
};

// Draws what `gpumem bench` draws.
class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}
    uint64_t number() { return engine_(); }
    size_t below(size_t n) { return number() % n; }
    // From 2^low to 2^high bytes, every power of two as likely as any other.
    uint64_t bytes(double low, double high) {
        double share = static_cast<double>(number()) / 18446744073709551616.0;
        return static_cast<uint64_t>(std::exp2(low + share * (high - low)));
    }

private:
    std::mt19937_64 engine_;
};

class Builder {
public:
    uint64_t live_bytes() const { return live_bytes_; }
    size_t live() const { return live_.size(); }

    void allocate(uint64_t bytes, uint16_t stream) {
        uint32_t slot = take_slot();
        live_.emplace_back(slot, bytes);
        grow(bytes);
        script_.ops.push_back({bytes, slot, stream, true});
    }
    // Frees live allocation number k; the last takes its number.
    void free(size_t k, uint16_t stream) {
        auto [slot, bytes] = live_[k];
        live_[k] = live_.back();
        live_.pop_back();
        live_bytes_ -= bytes;
        free_slots_.push_back(slot);
        script_.ops.push_back({bytes, slot, stream, false});
    }
    void shuffle(Random &random) {
        for (size_t i = live_.size(); i-- > 1;) std::swap(live_[i], live_[random.below(i + 1)]);
    }
    void free_all(uint16_t stream) {
        while (live() > 0) free(live() - 1, stream);
    }
    // Frees the live allocation that has been there longest, as long as nothing else was freed.
    void free_in_order(uint16_t stream) {
        auto [slot, bytes] = live_.front();
        live_.erase(live_.begin());
        live_bytes_ -= bytes;
        free_slots_.push_back(slot);
        script_.ops.push_back({bytes, slot, stream, false});
    }
    uint64_t bytes_of(size_t k) const { return live_[k].second; }
    Script finish() { return std::move(script_); }

    // For work that goes on: the operations since they were last taken. What is live stays so.
    size_t pending() const { return script_.ops.size(); }
    size_t slots() const { return script_.slots; }
    uint64_t take_peak() { return std::exchange(script_.peak_live, live_bytes_); }
    std::vector<Op> take() { return std::exchange(script_.ops, {}); }

protected:
    uint32_t take_slot() {
        if (free_slots_.empty()) return static_cast<uint32_t>(script_.slots++);
        uint32_t slot = free_slots_.back();
        free_slots_.pop_back();
        return slot;
    }
    void grow(uint64_t bytes) {
        live_bytes_ += bytes;
        if (live_bytes_ > script_.peak_live) script_.peak_live = live_bytes_;
    }
    Script script_;
    std::vector<uint32_t> free_slots_;
    uint64_t live_bytes_ = 0;

private:
    std::vector<std::pair<uint32_t, uint64_t>> live_;
};

// A log in the format of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream; plain, or
// gzip when its name ends in .gz. What failed when it was recorded, and operations on null, are
// left out, as `gpumem replay` does.
class TraceReader : Builder {
public:
    static Script read(const std::string &file) {
        bool packed = file.size() > 3 && file.compare(file.size() - 3, 3, ".gz") == 0;
        std::string quoted = "'";
        for (char c : file) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
        FILE *in = packed ? popen(("gzip -dc -- " + quoted + "'").c_str(), "r") : fopen(file.c_str(), "r");
        if (in == nullptr) throw std::runtime_error(file + ": cannot open");
        TraceReader reader;
        std::string fault;
        char line[1024];
        size_t at = 0;
        while (fault.empty() && fgets(line, sizeof line, in) != nullptr) {
            at++;
            if (at == 1 ? std::string(line).rfind("Thread,", 0) != 0 : !reader.line(line)) {
                fault = file + ":" + std::to_string(at) + ": not a line of an allocation log";
            }
        }
        bool ended_well = packed ? pclose(in) == 0 : fclose(in) == 0;
        if (!fault.empty()) throw std::runtime_error(fault);
        if (!ended_well || reader.script_.ops.empty()) throw std::runtime_error(file + ": no allocation log");
        return reader.finish();
    }

private:
    bool line(char *text) {
        char *fields[6];
        size_t found = 0;
        for (char *rest = text; found < 6 && rest != nullptr; found++) {
            fields[found] = rest;
            rest = strchr(rest, ',');
            if (rest != nullptr) *rest++ = '\0';
        }
        if (found != 6) return false;
        std::string action = fields[2];
        if (action == "allocate failure") return true;
        uint64_t pointer = strtoull(fields[3], nullptr, 0), bytes = strtoull(fields[4], nullptr, 10);
        if (pointer == 0) return true;
        uint16_t stream = index_of(strtoull(fields[5], nullptr, 0));
        if (action == "allocate") {
            uint32_t slot = take_slot();
            if (!by_pointer_.emplace(pointer, std::make_pair(slot, bytes)).second) return false;
            grow(bytes);
            script_.ops.push_back({bytes, slot, stream, true});
        } else if (action == "free" || action == "deallocate") {
            auto found_it = by_pointer_.find(pointer);
            if (found_it == by_pointer_.end()) return false;
            auto [slot, size] = found_it->second;
            by_pointer_.erase(found_it);
            live_bytes_ -= size;
            free_slots_.push_back(slot);
            script_.ops.push_back({size, slot, stream, false});
        } else {
            return false;
        }
        return true;
    }
    uint16_t index_of(uint64_t value) {
        for (size_t i = 0; i < script_.streams.size(); i++) {
            if (script_.streams[i] == value) return static_cast<uint16_t>(i);
        }
        script_.streams.push_back(value);
        return static_cast<uint16_t>(script_.streams.size() - 1);
    }
    std::unordered_map<uint64_t, std::pair<uint32_t, uint64_t>> by_pointer_;
};

// What one thread does in the threads workload, over and over: it begins and ends with nothing
// live.
inline Script thread_script(uint64_t seed, size_t allocations) {
    Random random(seed);
    Builder b;
    for (size_t i = 0; i < allocations; i++) {
        b.allocate(random.bytes(8, 24), 0);
        if (b.live() > 16) b.free(random.below(b.live()), 0);
    }
    b.free_all(0);
    return b.finish();
}

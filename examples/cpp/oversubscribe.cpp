// A job larger than its device: buffers of three times the limit, used a few at a time in skewed
// random order.
//
// Each step holds the buffers that it works on; gpumem brings those back that are elsewhere, and
// moves what was used longest ago out of the device to make room. No line here says what goes
// where. Data goes to pinned memory of the host, and when that is full to the directories in
// GPUMEM_DISK. At the end every byte is compared.
//
// Runs on a GPU, and without one on the host device (GPUMEM_BACKEND=host asks for it).
//
//     ./oversubscribe [LIMIT_MIB] [STEPS]
#include <gpumem.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t stripes = 64; // of a buffer
constexpr std::size_t per_step = 3; // buffers

static double in_mib(std::uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(mib); }

// How far the job is: a bar on a terminal, else a line for each tenth.
class progress_bar {
  public:
    progress_bar(const char *what, std::size_t total)
        : what_(what), total_(std::max<std::size_t>(total, 1)), live_(isatty(STDOUT_FILENO) == 1) {}

    void show(std::size_t done) {
        const std::size_t parts = live_ ? 100 : 10, now = done * parts / total_;
        if (now == shown_) {
            return;
        }
        shown_ = now;
        if (live_) {
            const std::size_t full = 40 * done / total_;
            std::printf("\r%-8s [%s%s] %3zu %%%s", what_, std::string(full, '#').c_str(),
                        std::string(40 - full, ' ').c_str(), now, done == total_ ? "\n" : "");
        } else {
            std::printf("%s: %zu of %zu\n", what_, done, total_);
        }
        std::fflush(stdout);
    }

  private:
    const char *what_;
    std::size_t total_;
    std::size_t shown_ = 0;
    bool live_;
};

// A buffer on the device, and what its bytes should be: one value in each stripe.
struct block {
    gpumem::unique_buffer<unsigned char> memory;
    std::array<unsigned char, stripes> values{};
};

class job {
  public:
    job(std::size_t count, std::size_t bytes) : bytes_(bytes), stripe_(bytes / stripes), blocks_(count) {}

    // Makes the buffers: the device holds a third of them, the others have gone when this returns.
    void fill() {
        progress_bar bar("fill", blocks_.size());
        for (std::size_t i = 0; i < blocks_.size(); i++) {
            block &b = blocks_[i];
            b.memory = gpumem::make_evictable<unsigned char>(bytes_, 0, stream_);
            gpumem::held here(b.memory, stream_);
            for (std::size_t k = 0; k < stripes; k++) set(b, k, static_cast<unsigned char>(i * 7 + k));
            bar.show(i + 1);
        }
    }

    void run(std::size_t steps) {
        progress_bar bar("steps", steps);
        for (std::size_t i = 0; i < steps; i++) {
            step();
            bar.show(i + 1);
        }
    }

    // How many bytes are not what they should be.
    std::size_t verify() {
        std::vector<unsigned char> bytes(bytes_);
        progress_bar bar("verify", blocks_.size());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < blocks_.size(); i++) {
            const block &b = blocks_[i];
            gpumem::held here = hold(b);
            gpumem::check(gpumem_memcpy_async(bytes.data(), b.memory.data(), bytes_, stream_.get()));
            stream_.sync();
            for (std::size_t at = 0; at < bytes_; at++) wrong += bytes[at] != b.values[at / stripe_];
            bar.show(i + 1);
        }
        return wrong;
    }

    std::uint64_t holds() const { return holds_; }
    std::uint64_t from_host() const { return from_host_; }
    std::uint64_t from_disk() const { return from_disk_; }
    std::size_t in_tier(std::int32_t tier) const {
        return static_cast<std::size_t>(std::count_if(blocks_.begin(), blocks_.end(), [tier](const block &b) {
            return gpumem::locate(b.memory).space.tier == tier;
        }));
    }

  private:
    // Half of all uses are of an eighth of the buffers, as in real jobs: some data is hotter than
    // other.
    block &pick() {
        const bool hot = random_() % 2 == 0;
        return blocks_[random_() % (hot ? std::max<std::size_t>(blocks_.size() / 8, 1) : blocks_.size())];
    }

    // In the device until the guard ends, and counted when it had to be brought back.
    gpumem::held hold(const block &b) {
        const std::int32_t tier = gpumem::locate(b.memory).space.tier;
        holds_++;
        from_host_ += tier == GPUMEM_TIER_HOST;
        from_disk_ += tier == GPUMEM_TIER_DISK;
        return gpumem::held(b.memory, stream_);
    }

    // The work, in place of kernels: writes a stripe of each buffer, and copies one from each to
    // the next.
    void step() {
        std::array<block *, per_step> used;
        std::vector<gpumem::held> here;
        for (block *&b : used) {
            b = &pick();
            here.push_back(hold(*b));
        }
        for (std::size_t i = 0; i < per_step; i++) {
            block &from = *used[i], &to = *used[(i + 1) % per_step];
            const std::size_t j = random_() % stripes, k = random_() % stripes;
            set(from, j, static_cast<unsigned char>(random_()));
            if (&from == &to) {
                continue;
            }
            gpumem::check(gpumem_memcpy_async(to.memory.data() + k * stripe_, from.memory.data() + j * stripe_, stripe_,
                                              stream_.get()));
            to.values[k] = from.values[j];
        }
        // The guards end here: the buffers may go when the stream has come this far. Nobody waits.
    }

    void set(block &b, std::size_t stripe, unsigned char value) {
        gpumem::check(gpumem_memset_async(b.memory.data() + stripe * stripe_, value, stripe_, stream_.get()));
        b.values[stripe] = value;
    }

    gpumem::stream stream_;
    std::size_t bytes_, stripe_;
    std::vector<block> blocks_;
    std::mt19937_64 random_{1};
    std::uint64_t holds_ = 0, from_host_ = 0, from_disk_ = 0;
};

// A number from 1 on; 0 for anything else.
static std::size_t number(const char *text) {
    char *end = nullptr;
    const unsigned long long value = std::strtoull(text, &end, 10);
    const bool good = text[0] >= '0' && text[0] <= '9' && *end == '\0' && value <= (1ull << 32);
    return good ? static_cast<std::size_t>(value) : 0;
}

int main(int argc, char **argv) try {
    const std::size_t limit = (argc > 1 ? number(argv[1]) : 64) * mib, steps = argc > 2 ? number(argv[2]) : 200;
    if (argc > 3 || steps == 0 || limit < 32 * mib) {
        std::fprintf(stderr, "usage: %s [LIMIT_MIB, at least 32] [STEPS]\n", argv[0]);
        return 2;
    }
    int device = 0;
    gpumem::check(gpumem_device_get(&device));
    gpumem::check(gpumem_device_limit_set(device, limit));

    // Whole pages of 2 MiB, and at least sixteen buffers at a time in the device.
    const std::size_t bytes = limit / 16 / (2 * mib) * (2 * mib), count = 3 * limit / bytes;
    std::printf("%zu buffers of %.0f MiB (%.0f MiB) on the %s device, which gives %.0f MiB\n", count, in_mib(bytes),
                in_mib(count * bytes), gpumem_backend_name(), in_mib(limit));
    job all(count, bytes);
    all.fill();
    all.run(steps);
    const std::size_t wrong = all.verify();

    gpumem_stats stats;
    GPUMEM_INIT(&stats);
    gpumem::check(gpumem_stats_get(device, &stats));
    const std::uint64_t back = all.from_host() + all.from_disk();
    std::printf("%llu holds, %llu of buffers that were elsewhere: %.0f MiB came back from the host, %.0f MiB from disk\n",
                static_cast<unsigned long long>(all.holds()), static_cast<unsigned long long>(back),
                in_mib(all.from_host() * bytes), in_mib(all.from_disk() * bytes));
    std::printf("now %zu are in the device, %zu in the host's memory, %zu on disk; %.0f MiB mapped at most\n",
                all.in_tier(GPUMEM_TIER_GPU), all.in_tier(GPUMEM_TIER_HOST), all.in_tier(GPUMEM_TIER_DISK),
                in_mib(stats.peak_mapped));
    if (wrong != 0 || back == 0 || stats.peak_mapped > limit) {
        std::fprintf(stderr, "%zu bytes are WRONG, %llu buffers came back, %.0f MiB were mapped\n", wrong,
                     static_cast<unsigned long long>(back), in_mib(stats.peak_mapped));
        return 1;
    }
    std::printf("%zu steps, and every byte of three times the limit is right\n", steps);
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}

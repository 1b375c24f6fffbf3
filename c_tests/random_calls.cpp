// Calls of nearly all of the API, drawn at random on several threads, as one program with many
// features makes them: every byte is what its owner wrote, no two allocations share one, refusals
// are those that are expected, and in the end nothing is left. Each seed is a process with settings
// of its own. `random_calls [SEED [OPERATIONS]]` runs one.
#include "evict.h"

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

struct block {
    char *p;
    size_t bytes;
    gpumem_stream stream;
    unsigned char holds_byte;
    bool is_evictable, is_held;
};

// What is live, by address, of all threads.
static std::mutex live_lock;
static std::map<const char *, size_t> live;

static void own(const block &b) {
    std::lock_guard<std::mutex> guard(live_lock);
    const size_t bytes = b.bytes > 0 ? b.bytes : 1;
    auto next = live.lower_bound(b.p);
    CHECK(next == live.end() || b.p + bytes <= next->first);
    CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= b.p);
    live[b.p] = bytes;
}

static void disown(const block &b) {
    std::lock_guard<std::mutex> guard(live_lock);
    CHECK(live.erase(b.p) == 1);
}

// A call that may find no memory and no other fault. Whether it was met.
static bool met(gpumem_status status) {
    if (status != GPUMEM_ERROR_OUT_OF_MEMORY) OK(status);
    return status == GPUMEM_OK;
}

class user {
  public:
    user(unsigned seed, int number) : random_(seed * 131 + static_cast<unsigned>(number)), number_(number) {
        for (gpumem_stream &s : streams_) OK(gpumem_stream_create(&s));
    }

    void run(int operations) {
        for (int i = 0; i < operations; i++) step();
        while (!arenas_.empty()) leave(false);
        while (!blocks().empty()) drop(take());
        for (gpumem_reservation r : reservations_) OK(gpumem_reservation_release(r, nullptr));
        for (gpumem_stream s : streams_) OK(gpumem_stream_sync(s));
        for (gpumem_stream s : streams_) OK(gpumem_stream_destroy(s));
    }

  private:
    struct scope {
        gpumem_arena arena;
        std::vector<block> blocks;
    };

    size_t below(size_t n) { return random_() % n; }
    gpumem_stream stream() { return streams_[below(4)]; }
    std::vector<block> &blocks() { return arenas_.empty() ? blocks_ : arenas_.back().blocks; }
    // Of this thread alone, so that no move meets another thread's holds.
    uint64_t tag() { return static_cast<uint64_t>(number_) * 10 + 1 + below(3); }
    size_t size() {
        static const size_t most[] = {1, 64, 4 * KIB, 4 * KIB, 128 * KIB, 4 * MIB, 8 * MIB, 20 * MIB};
        return below(most[below(8)]);
    }

    block take() {
        std::vector<block> &all = blocks();
        std::swap(all[below(all.size())], all.back());
        const block b = all.back();
        all.pop_back();
        return b;
    }

    void write(block &b, gpumem_stream s) {
        b.holds_byte = static_cast<unsigned char>(1 + below(255));
        if (b.bytes > 0) OK(gpumem_memset_async(b.p, b.holds_byte, b.bytes, s));
    }

    // Looks at some of it.
    void check(const block &b, size_t bytes) {
        for (size_t at : {size_t(0), bytes > 0 ? below(bytes) : 0, bytes > 64 ? bytes - 64 : 0}) {
            CHECK(holds_byte(b.p + at, bytes - at < 64 ? bytes - at : 64, b.holds_byte, b.stream));
        }
    }

    void make() {
        block b{};
        b.bytes = size();
        b.stream = stream();
        // An arena's memory is never evictable.
        b.is_evictable = arenas_.empty() && below(4) == 0;
        void *p = nullptr;
        if (b.is_evictable || below(2) == 0) {
            gpumem_malloc_options options;
            GPUMEM_INIT(&options);
            options.bytes = b.bytes;
            options.stream = b.stream;
            options.tag = tag();
            if (below(3) == 0) options.alignment = uint64_t(1) << (8 + below(14));
            if (b.is_evictable) options.flags = GPUMEM_MALLOC_EVICTABLE;
            else if (below(6) == 0) options.flags = below(2) == 0 ? GPUMEM_MALLOC_GUARD : GPUMEM_MALLOC_SINGLE_HANDLE;
            if (!reservations_.empty() && below(3) == 0) options.reservation = reservations_[below(reservations_.size())];
            if (!met(gpumem_malloc_with(&options, &p))) return CHECK(p == nullptr);
            CHECK(options.alignment == 0 || reinterpret_cast<uintptr_t>(p) % options.alignment == 0);
        } else if (!met(gpumem_malloc_async(b.bytes, b.stream, &p))) {
            return CHECK(p == nullptr);
        }
        b.p = static_cast<char *>(p);
        own(b);
        if (b.is_evictable && !hold(b)) return drop(b);
        write(b, b.stream);
        blocks().push_back(b);
    }

    void drop(const block &b) {
        disown(b);
        uint64_t id = 0;
        gpumem_stream other = stream();
        switch (below(4)) {
        case 0: return OK(gpumem_free_async(b.p, b.stream));
        case 1:
            OK(gpumem_stream_wait(other, b.stream));
            return OK(gpumem_free_async(b.p, other));
        case 2:
            OK(gpumem_allocation_id_get(b.p, &id));
            return OK(gpumem_free_id_async(b.p, id, b.stream));
        default: gpumem_free(b.p);
        }
    }

    // Sees to it that the memory is there. `false` if there is no room for it.
    bool hold(block &b) {
        if (b.is_evictable && !b.is_held) b.is_held = met(gpumem_hold(b.p));
        return !b.is_evictable || b.is_held;
    }

    void use(block &b) {
        if (!hold(b)) return;
        if (below(2) == 0) check(b, b.bytes);
        if (below(2) == 0) {
            gpumem_stream other = stream();
            OK(gpumem_stream_wait(other, b.stream));
            write(b, other);
            OK(gpumem_record_stream(b.p, other));
            OK(gpumem_stream_wait(b.stream, other));
        }
        if (b.is_held && below(3) > 0) {
            OK(gpumem_unhold(b.p, b.stream));
            b.is_held = false;
        }
    }

    void resize(block &b) {
        const size_t bytes = size(), kept = bytes < b.bytes ? bytes : b.bytes;
        if (b.is_evictable) return;
        void *p = nullptr;
        // Before, as another thread may get the old addresses.
        disown(b);
        if (met(gpumem_realloc_async(b.p, bytes, b.stream, &p))) {
            b.p = static_cast<char *>(p);
            b.bytes = bytes;
            check(b, kept);
            write(b, b.stream);
        }
        own(b);
    }

    void move(const block &b) {
        gpumem_move_report report;
        GPUMEM_INIT(&report);
        gpumem_status status = GPUMEM_OK;
        switch (below(4)) {
        case 0: status = b.is_evictable ? gpumem_evict(b.p, nullptr, &report) : GPUMEM_OK; break;
        case 1: status = b.is_evictable ? gpumem_restore(b.p, nullptr, &report) : GPUMEM_OK; break;
        case 2: status = gpumem_evict_tag(tag(), nullptr, &report); break;
        default: status = gpumem_restore_tag(tag(), nullptr, &report);
        }
        // What is held stays.
        if (status != GPUMEM_ERROR_INVALID) met(status);
    }

    // Ends the innermost arena, with some of what was allocated in it kept.
    void leave(bool keeps) {
        scope ends = std::move(arenas_.back());
        arenas_.pop_back();
        std::vector<void *> kept;
        for (const block &b : ends.blocks) {
            if (keeps && below(3) == 0) {
                kept.push_back(b.p);
                blocks().push_back(b);
            } else {
                disown(b);
            }
        }
        if (keeps) OK(gpumem_arena_exit(ends.arena, kept.data(), kept.size(), nullptr));
        else OK(gpumem_arena_abort(ends.arena, nullptr));
    }

    void arena() {
        if (arenas_.size() < 3 && below(2) == 0) {
            scope begins{};
            OK(gpumem_arena_enter(&begins.arena));
            arenas_.push_back(begins);
        } else if (!arenas_.empty()) {
            leave(below(4) > 0);
        }
    }

    void reserve() {
        if (reservations_.size() < 2 && below(2) == 0) {
            gpumem_reserve_options options;
            GPUMEM_INIT(&options);
            gpumem_reserve_policy policy;
            GPUMEM_INIT(&policy);
            policy.kind = static_cast<int32_t>(below(3));
            options.space = space_at(GPUMEM_TIER_GPU, 0);
            options.bytes = 1 + below(48 * MIB);
            options.policy = &policy;
            gpumem_reservation r = nullptr;
            if (met(gpumem_reserve(&options, &r))) reservations_.push_back(r);
        } else if (!reservations_.empty()) {
            gpumem_reservation r = reservations_.back();
            switch (below(4)) {
            case 0: met(gpumem_reservation_grow(r, 1 + below(16 * MIB), 0, nullptr)); break;
            case 1: OK(gpumem_reservation_shrink_to_fit(r, nullptr)); break;
            case 2:
                if (gpumem_reservation_attach_thread(r) == GPUMEM_OK) OK(gpumem_reservation_detach_thread(r));
                break;
            default:
                OK(gpumem_reservation_release(r, nullptr));
                reservations_.pop_back();
            }
        }
    }

    void look() {
        gpumem_pointer_info info;
        GPUMEM_INIT(&info);
        switch (below(6)) {
        case 0: return OK(gpumem_trim(below(2) == 0 ? 0 : below(64 * MIB)));
        case 1: return OK(gpumem_validate());
        case 2: return OK(gpumem_device_sync());
        case 3: return OK(gpumem_device_limit_set(0, below(2) == 0 ? 0 : (96 + below(160)) * MIB));
        default: break;
        }
        if (blocks().empty()) return;
        const block &b = blocks()[below(blocks().size())];
        OK(gpumem_pointer_info_get(b.p + (b.bytes > 0 ? below(b.bytes) : 0), &info));
        CHECK(info.base == b.p && info.requested == b.bytes);
    }

    void step() {
        std::vector<block> &all = blocks();
        if (all.size() > 40) drop(take());
        switch (below(all.empty() ? 10 : 20)) {
        case 6: return arena();
        case 7: return reserve();
        case 8:
        case 9: return look();
        case 10:
        case 11:
        case 12:
        case 13: return drop(take());
        case 14:
        case 15:
        case 16: return use(all[below(all.size())]);
        case 17: return resize(all[below(all.size())]);
        case 18:
        case 19: return move(all[below(all.size())]);
        default: make();
        }
    }

    std::mt19937_64 random_;
    const int number_;
    gpumem_stream streams_[4];
    std::vector<block> blocks_;
    std::vector<scope> arenas_;
    std::vector<gpumem_reservation> reservations_;
};

static void run(unsigned seed, int operations) {
    gpumem_context_options options;
    GPUMEM_INIT(&options);
    CHECK(mkdtemp(mount) != nullptr);
    options.disk = mount;
    options.host_seed = seed;
    options.host_mode = seed % 4 == 0 ? GPUMEM_HOST_MODE_EAGER : GPUMEM_HOST_MODE_SIMULATE;
    OK(gpumem_init(&options));
    std::vector<std::thread> threads;
    for (int number = 0; number < 3; number++) {
        threads.emplace_back([=] { user(seed, number).run(operations); });
    }
    for (std::thread &t : threads) t.join();
    uint64_t found = 0;
    OK(gpumem_device_limit_set(0, 0));
    OK(gpumem_device_sync());
    OK(gpumem_validate());
    OK(gpumem_sim_reports_get(&found));
    CHECK(found == 0 && live.empty());
    for (int32_t tier : {GPUMEM_TIER_GPU, GPUMEM_TIER_HOST, GPUMEM_TIER_DISK}) CHECK(used_in(tier) == 0);
    CHECK(rmdir(mount) == 0);
}

// As many as a test may take time for; each in a process, as settings are the process's.
static void every_seed_ends_with_nothing_left() {
    for (unsigned seed = 1; seed <= (is_slow() ? 1u : 4u); seed++) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            run(seed, rounds(1000));
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) {
        run(static_cast<unsigned>(atoi(argv[1])), argc > 2 ? atoi(argv[2]) : 1000);
        return 0;
    }
    RUN(every_seed_ends_with_nothing_left);
    return 0;
}

// Both allocators in one PyTorch process: a library for CUDAPluggableAllocator that passes every
// allocation on to the one that was chosen last, PyTorch's own or gpumem, and every free to whom
// the block came from. torch_turns.py chooses between two steps. What differs between steps is then
// the allocator alone: not the process, not the interface.
//
//   GPUMEM_LIBRARY=FOLDER/libgpumem.so.0    the gpumem that is meant
#include "torch_allocators.hpp"

#include <atomic>
#include <unordered_map>

namespace {

enum Who : int { OWN, GPUMEM };
// A block of each stays, as a program's parameters would: what a pool does when it runs empty is no
// part of a step.
constexpr ssize_t KEPT = 1 << 20;

std::string library() {
    const char *path = std::getenv("GPUMEM_LIBRARY");
    if (path == nullptr) die("torch_turns: GPUMEM_LIBRARY is not set: the path of libgpumem.so.0");
    return path;
}

struct Turns {
    TorchOwn own;
    Gpumem gpumem{library()};
    std::atomic<int> chosen{OWN};
    std::once_flag kept[2];
    std::mutex lock;
    std::unordered_map<void *, int> owners;  // under lock: whose every live block is

    void *allocate(int who, ssize_t size, int device, cudaStream_t stream) {
        return who == GPUMEM ? gpumem.allocate(size, device, stream) : own.allocate(size, stream);
    }
};

// Never destroyed: Python frees tensors while the process ends.
Turns &turns = *new Turns;

}  // namespace

// Whose the allocations from now on are: 0 PyTorch's, 1 gpumem's. Any thread; frees go to where a
// block came from.
extern "C" void torch_turns_choose(int who) { turns.chosen = who == GPUMEM ? GPUMEM : OWN; }

extern "C" void *gpumem_torch_malloc(ssize_t size, int device, cudaStream_t stream) {
    const int who = turns.chosen.load(std::memory_order_relaxed);
    turns.own.prepare();
    std::call_once(turns.kept[who], [&] { turns.allocate(who, KEPT, device, stream); });
    void *p = turns.allocate(who, size, device, stream);
    if (p == nullptr) return p;
    std::lock_guard<std::mutex> held(turns.lock);
    turns.owners[p] = who;
    return p;
}

extern "C" void gpumem_torch_free(void *p, ssize_t size, int device, cudaStream_t stream) {
    if (p == nullptr) return;
    int who;
    {
        std::lock_guard<std::mutex> held(turns.lock);
        const auto found = turns.owners.find(p);
        if (found == turns.owners.end()) die("torch_turns: a block is freed that was never allocated");
        who = found->second;
        turns.owners.erase(found);
    }
    if (who == GPUMEM) {
        turns.gpumem.release(p, size, device, stream);
    } else {
        turns.own.release(p);
    }
}

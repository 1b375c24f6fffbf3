// A heap of segments: memory of a private pool, of a tag, or for other processes. Best fit; what is
// freed joins its free neighbours in the segment. PyTorch sets pools back to an earlier state, so a
// chunk can also be had at a given address.
//
// Knows nothing of threads; the allocator's lock is held around every call.
#pragma once

#include "units.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace gpumem_torch {

using Context = std::shared_ptr<c10::GatheredContext>;

constexpr size_t kPage = 2 << 20;
constexpr size_t kMiddle = 10 << 20;
constexpr size_t kMiddleSegment = 20 << 20;

enum class Kind { pool, evictable, shared };

// A part of a segment.
struct Chunk {
  size_t size = 0;
  size_t requested = 0;
  bool allocated = false;
  // Freed, but used on other streams: not for anybody yet.
  bool waiting = false;
  cudaStream_t stream = nullptr;
  std::vector<cudaStream_t> uses;
  Context context;
};

// One allocation of libgpumem's, or of the allocator that a MemPool was given.
struct Segment {
  size_t size = 0;
  cudaStream_t stream = nullptr;
  bool small = false;
  // Chunks in use, a count.
  size_t allocated = 0;
};

inline bool captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  // Asking about the default stream is an error while another is captured.
  (void)cudaGetLastError();
  return true;
}

class Heap {
 public:
  c10::DeviceIndex device = 0;
  Kind kind = Kind::pool;
  c10::MempoolId_t id{0, 0};
  uint64_t tag = 0;
  // Graphs and MemPools that refer to it.
  int uses = 0;
  bool asleep = false;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> foreign;
  std::map<char*, Segment> segments;
  std::map<char*, Chunk> chunks;

  // How large a segment is made for a request.
  static size_t segment_for(size_t requested) {
    const size_t n = counted(requested);
    return n <= kSmall ? kPage : n < kMiddle ? kMiddleSegment : round_up(n, kPage);
  }
  std::map<char*, Segment>::iterator segment_of(char* at) {
    return std::prev(segments.upper_bound(at));
  }

  // A new segment's memory, for requests like this one.
  void grow(char* at, size_t size, size_t requested, cudaStream_t stream) {
    segments[at] = Segment{size, stream, counted(requested) <= kSmall, 0};
    Chunk chunk;
    chunk.size = size;
    chunk.stream = stream;
    chunks[at] = std::move(chunk);
    list(at);
  }
  // The best free chunk of the stream's; nullptr: there is none.
  char* malloc(size_t requested, cudaStream_t stream) {
    const size_t n = counted(requested);
    const bool small = n <= kSmall;
    auto& free = free_[{stream, small}];
    const auto best = free.lower_bound({n, nullptr});
    if (best == free.end()) return nullptr;
    char* at = best->second;
    free.erase(best);
    const size_t rest = chunks.at(at).size - n;
    // A little more than was asked for does less harm than a rest that nobody can use.
    if (small ? rest >= kUnit : rest > kSmall) split(at, n);
    take(at, requested);
    return at;
  }
  // The chunk [at, at + size), all of which is free.
  void malloc_at(char* at, size_t size, size_t requested) {
    auto it = std::prev(chunks.upper_bound(at));
    TORCH_INTERNAL_ASSERT(idle(it->second) && at + size <= it->first + it->second.size, "a checkpoint's allocation is not free");
    unlist(it->first);
    if (it->first < at) {
      Chunk rest;
      rest.size = it->second.size - size_t(at - it->first);
      rest.stream = it->second.stream;
      it->second.size = size_t(at - it->first);
      list(it->first);
      it = chunks.emplace(at, std::move(rest)).first;
    }
    if (it->second.size > size) split(at, size);
    take(at, requested);
  }
  // Where other streams have used it, it waits for settle().
  void free(char* at) {
    auto& chunk = chunks.at(at);
    chunk.allocated = false;
    chunk.context.reset();
    segment_of(at)->second.allocated--;
    if (chunk.uses.empty()) {
      join(at);
    } else {
      chunk.waiting = true;
      waiting_.push_back(at);
    }
  }
  bool has_waiting() const {
    return !waiting_.empty();
  }
  // Makes the streams of chunks that others used wait for those, on the device, so that they can be
  // had again. Not while a graph is captured: its stream must not wait for one that is not.
  void settle() {
    if (waiting_.empty()) return;
    c10::cuda::CUDAGuard guard(device);
    for (char* at : waiting_) {
      auto& chunk = chunks.at(at);
      for (cudaStream_t use : chunk.uses) {
        // What a graph does with it is in order in the graph, and graphs that share a pool never
        // run at the same time.
        if (!captured(use) && !captured(chunk.stream)) (void)gpumem_stream_wait(chunk.stream, use);
      }
      chunk.uses.clear();
      chunk.waiting = false;
      join(at);
    }
    waiting_.clear();
  }
  // Takes segments with nothing in them out, and returns them.
  std::vector<std::pair<char*, Segment>> take_empty() {
    std::vector<std::pair<char*, Segment>> empty;
    for (const auto& one : segments) {
      if (one.second.allocated == 0 && chunks.at(one.first).size == one.second.size && idle(chunks.at(one.first))) empty.push_back(one);
    }
    for (const auto& one : empty) {
      unlist(one.first);
      chunks.erase(one.first);
      segments.erase(one.first);
    }
    return empty;
  }

 private:
  // Free chunks by stream and class, then by size.
  std::map<std::pair<cudaStream_t, bool>, std::set<std::pair<size_t, char*>>> free_;
  std::vector<char*> waiting_;

  static bool idle(const Chunk& c) {
    return !c.allocated && !c.waiting;
  }
  std::set<std::pair<size_t, char*>>& like(char* at) {
    const Segment& s = segment_of(at)->second;
    return free_[{s.stream, s.small}];
  }
  void list(char* at) {
    like(at).insert({chunks.at(at).size, at});
  }
  void unlist(char* at) {
    like(at).erase({chunks.at(at).size, at});
  }
  // Cuts a chunk that is in no list; the rest of it goes to one.
  void split(char* at, size_t n) {
    auto& chunk = chunks.at(at);
    Chunk rest;
    rest.size = chunk.size - n;
    rest.stream = chunk.stream;
    chunk.size = n;
    chunks[at + n] = std::move(rest);
    list(at + n);
  }
  void take(char* at, size_t requested) {
    auto& chunk = chunks.at(at);
    chunk.allocated = true;
    chunk.requested = requested;
    chunk.uses.clear();
    segment_of(at)->second.allocated++;
  }
  // Lists a chunk, together with its free neighbours in the segment.
  void join(char* at) {
    const auto& [base, segment] = *segment_of(at);
    auto it = chunks.find(at);
    const auto next = std::next(it);
    if (next != chunks.end() && next->first < base + segment.size && idle(next->second)) {
      unlist(next->first);
      it->second.size += next->second.size;
      chunks.erase(next);
    }
    if (it->first != base && idle(std::prev(it)->second)) {
      const auto before = std::prev(it);
      unlist(before->first);
      before->second.size += it->second.size;
      chunks.erase(it);
      it = before;
    }
    list(it->first);
  }
};

}  // namespace gpumem_torch

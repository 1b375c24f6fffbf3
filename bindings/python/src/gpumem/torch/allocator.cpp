// gpumem as PyTorch's CUDAAllocator: statistics, snapshots, history, out-of-memory errors,
// checkpoints of graph pools, and handles for other processes, which the pluggable interface lacks.
// Built on the user's machine against the installed PyTorch (build.py).
//
// Ordinary tensors are allocations of libgpumem's. Private pools (torch.cuda.graph, MemPool),
// memory that sleeps, and memory that is shared with other processes are heaps of segments here,
// each segment one allocation of libgpumem's: PyTorch sets such pools back to an earlier state, at
// the same addresses, and small tensors share segments, of which each is whole pages.

#include "handles.hpp"
#include "heap.hpp"
#include "units.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <torch/version.h>

#include <gpumem.h>

#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <tuple>

// Which of PyTorch's signatures to override; build.py tries others where the version does not tell.
#ifndef GPUMEM_TORCH_API
#define GPUMEM_TORCH_API (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)
#endif

// As ATen/cuda/CUDAContextLight.h has them, which needs cuBLAS's headers. Where a version has the
// map alone, it is at the same place.
namespace at::cuda {
struct WorkspaceMapWithMutex {
  std::map<std::tuple<void*, void*>, at::DataPtr> map;
  std::shared_mutex mutex;
};
__attribute__((weak)) WorkspaceMapWithMutex& cublas_handle_stream_to_workspace();
__attribute__((weak)) WorkspaceMapWithMutex& cublaslt_handle_stream_to_workspace();
}  // namespace at::cuda

namespace gpumem_torch {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;
using native::BlockInfo;
using native::SegmentInfo;
using native::TraceEntry;

constexpr size_t kOneExa = 1ull << 60;

// A tensor's memory.
struct Block {
  size_t requested = 0;
  cudaStream_t stream = nullptr;
  DeviceIndex device = 0;
  Heap* heap = nullptr;
  Context context;
};

struct State : native::AllocatorState {
  struct Live {
    char* at;
    size_t size;
    size_t requested;
  };
  MempoolId_t id;
  std::vector<Live> live;
};

struct Device {
  DeviceStats stats;
  double fraction = 1.0;
  // Growths of its pool until they were last counted from 0.
  uint64_t growths_before = 0;
  std::deque<TraceEntry> trace;
};

void release(void* ptr);
void release_owned(void* owned);

// A tensor's memory that the end of an arena or the abort of a capture may take before the tensor
// ends. The address may be another tensor's by then, so the tensor holds this instead.
struct Owned {
  void* ptr;
  uint64_t id;
  Block block;
  bool gone = false;
};

// The number by which what was just allocated has to be freed, 0 where its address is enough.
uint64_t owner_id(void* ptr, cudaStream_t stream) {
  uint64_t id = 0;
  (void)gpumem_owner_id_get(ptr, stream, &id);
  return id;
}

thread_local uint64_t current_tag = 0;
thread_local int current_kind = 0;
thread_local std::vector<std::string> compile_contexts;

// What PyTorch keeps for cuBLAS is in no arena any more.
void escape_all(at::cuda::WorkspaceMapWithMutex& workspaces) {
#if GPUMEM_TORCH_API >= 211
  const std::shared_lock<std::shared_mutex> lock(workspaces.mutex);
#endif
  for (const auto& [key, workspace] : workspaces.map) (void)gpumem_arena_escape(workspace.get());
}

// What has gone is not PyTorch's any more: the next product makes another. No arena takes it
// (gpumem_torch_arena_ends), but the abort of a capture does.
void drop_gone(at::cuda::WorkspaceMapWithMutex& workspaces) {
#if GPUMEM_TORCH_API >= 211
  const std::lock_guard<std::shared_mutex> lock(workspaces.mutex);
#endif
  for (auto it = workspaces.map.begin(); it != workspaces.map.end();) {
    const auto& workspace = it->second;
    const bool gone = workspace.get_deleter() == &release_owned && static_cast<Owned*>(workspace.get_context())->gone;
    it = gone ? workspaces.map.erase(it) : std::next(it);
  }
}

// Does something with both maps that PyTorch keeps for cuBLAS, where it has them.
template <class F> void each_workspaces(F f) {
  if (&at::cuda::cublas_handle_stream_to_workspace != nullptr) f(at::cuda::cublas_handle_stream_to_workspace());
  if (&at::cuda::cublaslt_handle_stream_to_workspace != nullptr) f(at::cuda::cublaslt_handle_stream_to_workspace());
}

struct Export {
  Heap* heap;
  char* segment;
};

class Allocator final : public native::CUDAAllocator {
 public:
  // ---- allocating

  c10::DataPtr allocate(size_t n) override {
    TORCH_CHECK_WITH(OutOfMemoryError, n < kOneExa, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device);
    void* ptr = n == 0 ? nullptr : get(n, device, stream);
    const uint64_t id = ptr == nullptr ? 0 : owner_id(ptr, stream);
    if (C10_UNLIKELY(id != 0)) return numbered(ptr, id, device);
    return {ptr, ptr, &release, c10::Device(c10::DeviceType::CUDA, device)};
  }
  // What the tensor holds knows which allocation it is.
  c10::DataPtr numbered(void* ptr, uint64_t id, DeviceIndex device) {
    const c10::Device where(c10::DeviceType::CUDA, device);
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = blocks_.find(ptr);
    // Segments of pools are in no arena.
    if (found->second.heap != nullptr) return {ptr, ptr, &release, where};
    auto owned = std::make_unique<Owned>();
    owned->ptr = ptr;
    owned->id = id;
    owned->block = std::move(found->second);
    blocks_.erase(found);
    owned_.insert(owned.get());
    return {ptr, owned.release(), &release_owned, where};
  }
  void put_owned(Owned* held) {
    const std::unique_ptr<Owned> owned(held);
    const Context context = gather(native::RecordContext::ALL);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      owned_.erase(held);
      if (owned->gone) return;
      told_free(owned->ptr, owned->block, context);
      uncount(owned->block);
    }
    (void)gpumem_free_id(owned->ptr, owned->id);
    report(owned->ptr, -int64_t(counted(owned->block.requested)), owned->block.device);
  }
  // After the end of an arena or the abort of a capture: what it took is gone, no matter who still
  // holds a tensor over it.
  void arena_ended() {
    const Context context = gather(native::RecordContext::ALL);
    std::vector<std::tuple<void*, size_t, DeviceIndex>> gone;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (Owned* owned : owned_) {
        uint64_t id = 0;
        if (owned->gone || (gpumem_allocation_id_get(owned->ptr, &id) == GPUMEM_OK && id == owned->id)) continue;
        owned->gone = true;
        const Block& b = owned->block;
        told_free(owned->ptr, b, context);
        uncount(b);
        gone.emplace_back(owned->ptr, counted(b.requested), b.device);
      }
    }
    for (const auto& [ptr, size, device] : gone) report(ptr, -int64_t(size), device);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void* raw_alloc(size_t n) override {
    if (n == 0) return nullptr;
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return raw_alloc_with_stream(n, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    if (n == 0) return nullptr;
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* const ptr = get(n, device, stream);
    // Its end names an address only, and would free what has that by then.
    if (C10_UNLIKELY(owner_id(ptr, stream) != 0)) (void)gpumem_arena_escape(ptr);
    return ptr;
  }
  void raw_delete(void* ptr) override {
    if (ptr != nullptr) put(ptr);
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(dest, src, count, cudaMemcpyDeviceToDevice));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (!data.get()) return;
    if (data.get_deleter() == &release_owned) {
      gpumem_torch_record_stream(data.get(), stream.stream());
      return;
    }
    if (data.get_deleter() != &release) return;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(data.get());
    if (found == blocks_.end() || found->second.stream == stream.stream()) return;
    if (found->second.heap == nullptr) {
      gpumem_torch_record_stream(data.get(), stream.stream());
      return;
    }
    auto& uses = found->second.heap->chunks.at(static_cast<char*>(data.get())).uses;
    if (std::find(uses.begin(), uses.end(), stream.stream()) == uses.end()) uses.push_back(stream.stream());
  }

  // ---- starting, limits

  void init(int device_count) override {
    std::lock_guard<std::mutex> lock(mutex_);
    gpumem_torch_init(device_count);
    while (devices_.size() < size_t(device_count)) devices_.push_back(std::make_unique<Device>());
    initialized_ = true;
  }
  bool initialized() override {
    return initialized_;
  }
  double getMemoryFraction(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return of(device).fraction;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    std::lock_guard<std::mutex> lock(mutex_);
    size_t total = 0;
    ok(gpumem_device_memory_get(device, nullptr, &total), "memory fraction");
    // 0 would mean no limit.
    ok(gpumem_device_limit_set(device, fraction == 1 ? 0 : std::max<size_t>(1, size_t(double(total) * fraction))), "memory fraction");
    of(device).fraction = fraction;
  }
#if GPUMEM_TORCH_API >= 210
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
    return {};
  }
#endif
  void enable(bool) override {}
  bool isEnabled() const override {
    return true;
  }
  std::string name() override {
    return "gpumem";
  }

  void emptyCache(MempoolId_t id = {0, 0}) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& [key, heap] : heaps_) {
        const bool named = id.first != 0 || id.second != 0;
        if (named ? (heap->kind == Kind::pool && heap->id == id) : true) give_back(*heap);
      }
      drop_dead_heaps();
    }
    ok(gpumem_trim(0), "empty_cache");
  }
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    if (*largest == 0) {
      size_t total = 0;
      C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
    }
    const auto s = counters(device);
    *largest = std::max<size_t>(*largest, s.largest_without_growth);
  }
  void* getBaseAllocation(void* ptr, size_t* size) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const Block& block = live_at(ptr);
    if (block.heap == nullptr) {
      if (size != nullptr) *size = counted(block.requested);
      return ptr;
    }
    const auto segment = block.heap->segment_of(static_cast<char*>(ptr));
    if (size != nullptr) *size = segment->second.size;
    return segment->first;
  }

  // ---- statistics

  DeviceStats getDeviceStats(DeviceIndex device) override {
    const auto s = counters(device);
    std::lock_guard<std::mutex> lock(mutex_);
    refresh(of(device), s);
    return of(device).stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = of(device).stats;
    each(stats, [](Stat& s) { s.reset_accumulated(); });
    stats.num_alloc_retries = stats.num_ooms = 0;
    stats.num_sync_all_streams = 0;
    of(device).growths_before = counters(device).growths;
  }
  void resetPeakStats(DeviceIndex device) override {
    ok(gpumem_stats_reset_peak(device), "reset_peak_memory_stats");
    std::lock_guard<std::mutex> lock(mutex_);
    each(of(device).stats, [](Stat& s) { s.reset_peak(); });
  }

  // ---- snapshots and history

  native::SnapshotInfo take(MempoolId_t id, bool traces) {
    native::SnapshotInfo out;
    std::lock_guard<std::mutex> lock(mutex_);
    const bool named = id.first != 0 || id.second != 0;
    for (auto& [key, heap] : heaps_) {
      if (!named || (heap->kind == Kind::pool && heap->id == id)) segments_of(*heap, out.segments);
    }
    if (!named) {
      for (size_t d = 0; d < devices_.size(); d++) ordinary_segments(DeviceIndex(d), out.segments);
    }
    for (auto& device : devices_) {
      out.device_traces.emplace_back();
      if (traces) out.device_traces.back().assign(device->trace.begin(), device->trace.end());
    }
    for (auto& entries : out.device_traces) {
      for (auto& e : entries) e.time_.t_ = clock_(e.time_.approx_t_) / 1000;  // µs
    }
    out.config_metadata = native::AllocatorConfigInfo{};
    out.config_metadata.max_split_size = std::numeric_limits<size_t>::max();
    return out;
  }
#if GPUMEM_TORCH_API >= 211
  native::SnapshotInfo snapshot(MempoolId_t id = {0, 0}, bool traces = true) override {
    return take(id, traces);
  }
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    set_history(enabled, recorder, entries, when, clear);
    std::lock_guard<std::mutex> lock(mutex_);
    skip_.clear();
    for (const auto& action : skip) skip_.insert(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
#else
  native::SnapshotInfo snapshot(MempoolId_t id = {0, 0}) override {
    return take(id, true);
  }
  void recordHistory(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when, bool clear) override {
    set_history(enabled, recorder, entries, when, clear);
  }
#endif
  bool isHistoryEnabled() override {
    return recording_;
  }
  void pushCompileContext(std::string& md) override {
    compile_contexts.push_back(md);
  }
  void popCompileContext() override {
    if (!compile_contexts.empty()) compile_contexts.pop_back();
  }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    std::lock_guard<std::mutex> lock(mutex_);
    observers_.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    watched_ = true;
  }

  // ---- private pools

  void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& r : routes_) {
      TORCH_CHECK(r.device != device || r.id != id, "beginAllocateToPool: already recording to mempool_id");
    }
    pool(device, id).uses++;
    routes_.push_back({device, id, std::move(filter)});
    routing_ = true;
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override {
    std::set<cudaStream_t> met;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = std::find_if(routes_.begin(), routes_.end(), [&](auto& r) { return r.device == device && r.id == id; });
      TORCH_CHECK(found != routes_.end(), "endAllocatePool: not currently recording to mempool_id");
      met = std::move(found->met);
      routes_.erase(found);
      routing_ = !routes_.empty();
      for (auto& [key, heap] : heaps_) settle(*heap);
    }
    // PyTorch has ended the capture, and libgpumem learns of that when its streams are named. It
    // puts nothing to sleep before.
    for (const auto stream : met) {
      if (!captured(stream)) (void)gpumem_stream_sync(stream);
    }
  }
  void releasePool(DeviceIndex device, MempoolId_t id) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = heaps_.find(key_of(device, id));
    if (found == heaps_.end()) return;
    TORCH_INTERNAL_ASSERT(found->second->uses > 0);
    found->second->uses--;
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = heaps_.find(key_of(device, id));
    return found == heaps_.end() ? 0 : found->second->uses;
  }
#if GPUMEM_TORCH_API >= 211
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<native::CUDAAllocator> allocator = nullptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& heap = pool(device, id);
    heap.uses++;
    if (allocator && allocator.get() != this) heap.foreign = std::move(allocator);
  }
  void setUseOnOOM(DeviceIndex, MempoolId_t, bool) override {}
#else
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id, native::CUDAAllocator* allocator = nullptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& heap = pool(device, id);
    heap.uses++;
    // The caller keeps it alive for as long as the pool.
    if (allocator && allocator != this) heap.foreign = std::shared_ptr<native::CUDAAllocator>(allocator, [](native::CUDAAllocator*) {});
  }
  void setUseOnOOM(DeviceIndex, MempoolId_t) override {}
#endif
#if GPUMEM_TORCH_API >= 210
  void setNoSplit(DeviceIndex, MempoolId_t) override {}
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void*>& expected) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = heaps_.find(key_of(device, id));
    TORCH_CHECK(found != heaps_.end(), "Could not find pool of id");
    size_t live = 0;
    for (const auto& [at, chunk] : found->second->chunks) {
      if (!chunk.allocated) continue;
      if (expected.count(at) == 0) return false;
      live++;
    }
    return live == expected.size();
  }

  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto state = std::make_shared<State>();
    state->id = id;
    const auto found = heaps_.find(key_of(device, id));
    TORCH_CHECK(found != heaps_.end(), "getCheckpointState: there is no such pool");
    settle(*found->second);
    for (const auto& [at, chunk] : found->second->chunks) {
      if (chunk.allocated) state->live.push_back({at, chunk.size, chunk.requested});
    }
    return state;
  }
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<native::AllocatorState> state) override {
    const auto wanted = std::dynamic_pointer_cast<State>(state);
    TORCH_CHECK(wanted != nullptr, "setCheckpointPoolState: the state is of another allocator");
    native::CheckpointDelta delta;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = heaps_.find(key_of(device, wanted->id));
    TORCH_CHECK(found != heaps_.end(), "setCheckpointPoolState: there is no such pool");
    Heap& heap = *found->second;
    settle(heap);
    std::vector<char*> live;
    for (const auto& [at, chunk] : heap.chunks) {
      if (chunk.allocated) live.push_back(at);
    }
    for (char* at : live) {
      forget(blocks_.find(at));
      heap_free(heap, at);
      delta.ptrs_freed.push_back(at);
    }
    for (const auto& one : wanted->live) {
      heap.malloc_at(one.at, one.size, one.requested);
      note(one.at, Block{one.requested, heap.chunks.at(one.at).stream, device, &heap, nullptr});
      delta.dataptrs_allocd.emplace_back(one.at, one.at, &release, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

  // ---- other devices, other processes

  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
    c10::cuda::CUDAGuard guard(device);
    const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(code);
    }
  }
  cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, size_t count, cudaStream_t stream,
                          bool p2p_enabled) override {
    // The peers' form is right for mapped memory whether or not the devices reach each other.
    (void)p2p_enabled;
    if (dst_device == src_device) return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, count, stream);
  }
  native::ShareableHandle shareIpcHandle(void* ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  int export_segment(uint64_t number);

  // ---- what Python sets

  bool share_everything = false;

  // Whether tensors were allocated under a tag, and their memory has been given back.
  bool is_empty(uint64_t tag) {
    std::lock_guard<std::mutex> lock(mutex_);
    bool known = false;
    for (auto& [key, heap] : heaps_) {
      if (heap->kind != Kind::evictable || heap->tag != tag) continue;
      if (!heap->segments.empty()) return false;
      known = true;
    }
    return known;
  }
  void asleep(uint64_t tag, bool value) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, heap] : heaps_) {
      if (heap->kind != Kind::evictable || heap->tag != tag) continue;
      if (value) give_back(*heap);
      // One that holds nothing has nothing to wake, and no wake would come to it.
      heap->asleep = value && !heap->segments.empty();
    }
  }

 private:
  struct Route {
    DeviceIndex device;
    MempoolId_t id;
    std::function<bool(cudaStream_t)> filter;
    // Streams that libgpumem was told of while they were captured.
    std::set<cudaStream_t> met = {};
  };
  using Key = std::tuple<int, int, uint64_t, uint64_t>;

  static Key key_of(DeviceIndex device, MempoolId_t id) {
    return {int(Kind::pool), device, id.first, id.second};
  }
  Heap& pool(DeviceIndex device, MempoolId_t id) {
    auto& slot = heaps_[key_of(device, id)];
    if (!slot) {
      slot = std::make_unique<Heap>();
      slot->device = device;
      slot->id = id;
    }
    return *slot;
  }
  Heap& heap_of(DeviceIndex device, Kind kind, uint64_t tag) {
    auto& slot = heaps_[{int(kind), device, tag, 0}];
    if (!slot) {
      slot = std::make_unique<Heap>();
      slot->device = device;
      slot->kind = kind;
      slot->tag = tag;
      slot->uses = 1;
    }
    return *slot;
  }
  Device& of(DeviceIndex device) {
    while (devices_.size() <= size_t(device)) devices_.push_back(std::make_unique<Device>());
    return *devices_[device];
  }
  static gpumem_stats counters(DeviceIndex device) {
    gpumem_stats s;
    GPUMEM_INIT(&s);
    ok(gpumem_stats_get(device, &s), "memory_stats");
    return s;
  }

  // The heap that an allocation goes to; none: it is an allocation of libgpumem's.
  Heap* route(DeviceIndex device, cudaStream_t stream) {
    for (const auto& r : routes_) {
      if (r.device == device && r.filter(stream)) return &pool(device, r.id);
    }
    if (current_kind == int(Kind::evictable)) return &heap_of(device, Kind::evictable, current_tag);
    if (current_kind == int(Kind::shared) || share_everything) return &heap_of(device, Kind::shared, 0);
    return nullptr;
  }

  void* get(size_t n, DeviceIndex device, cudaStream_t stream) {
    void* ptr = nullptr;
    Context context = gather(native::RecordContext::STATE);
    if (C10_UNLIKELY(routing_ || current_kind != 0 || share_everything)) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (Heap* heap = route(device, stream)) {
        TORCH_CHECK(!heap->asleep, "allocating ", human(n), " under a tag that is asleep; call gpumem.torch.wake first");
        ptr = heap_malloc(*heap, n, stream);
        if (ptr == nullptr) {
          lock.unlock();
          if (reclaim(device)) {
            lock.lock();
            ptr = heap_malloc(*heap, n, stream);
            lock.unlock();
          }
          if (ptr == nullptr) out_of_memory(n, device, stream);
          lock.lock();
        }
        heap->chunks.at(static_cast<char*>(ptr)).context = context;
        told(TraceEntry::ALLOC, device, ptr, n, stream, heap->id, context);
        note(ptr, Block{n, stream, device, heap, std::move(context)});
        lock.unlock();
        report(ptr, int64_t(counted(n)), device);
        return ptr;
      }
    }
    const gpumem_status status = gpumem_malloc_async(n, stream, &ptr);
    if (C10_UNLIKELY(status != GPUMEM_OK)) ptr = again(n, device, stream, status);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (C10_UNLIKELY(recording_ || watched_)) told(TraceEntry::ALLOC, device, ptr, n, stream, {0, 0}, context);
      note(ptr, Block{n, stream, device, nullptr, std::move(context)});
    }
    report(ptr, int64_t(counted(n)), device);
    return ptr;
  }

  void put(void* ptr) {
    Block block;
    const Context context = gather(native::RecordContext::ALL);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = blocks_.find(ptr);
      TORCH_CHECK(found != blocks_.end(), "invalid device pointer: ", ptr);
      told_free(ptr, found->second, context);
      block = forget(found);
      if (block.heap != nullptr) heap_free(*block.heap, static_cast<char*>(ptr));
      else if (C10_UNLIKELY(routing_)) name(block.stream);
    }
    if (block.heap == nullptr) gpumem_torch_free(ptr, ssize_t(block.requested), block.device, block.stream);
    report(ptr, -int64_t(counted(block.requested)), block.device);
  }

  // Writes an allocation down.
  void note(void* ptr, Block block) {
    auto& stats = of(block.device).stats;
    const size_t n = counted(block.requested);
    add(stats.allocation, n, 1);
    add(stats.allocated_bytes, n, n);
    add(stats.requested_bytes, n, block.requested);
    blocks_[ptr] = std::move(block);
  }
  // The memory of the live tensor at an address.
  const Block& live_at(void* ptr) {
    const auto found = blocks_.find(ptr);
    if (found != blocks_.end()) return found->second;
    const auto owned = std::find_if(owned_.begin(), owned_.end(), [&](auto* o) { return o->ptr == ptr && !o->gone; });
    TORCH_CHECK(owned != owned_.end(), "invalid device pointer: ", ptr);
    return (*owned)->block;
  }
  Block forget(ska::flat_hash_map<void*, Block>::iterator found) {
    Block block = std::move(found->second);
    blocks_.erase(found);
    uncount(block);
    return block;
  }
  void uncount(const Block& block) {
    auto& stats = of(block.device).stats;
    const size_t n = counted(block.requested);
    subtract(stats.allocation, n, 1);
    subtract(stats.allocated_bytes, n, n);
    subtract(stats.requested_bytes, n, block.requested);
  }

  // ---- when there is no memory

  bool reclaim(DeviceIndex device) {
    bool any = false;
    const auto registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto& name : registry->Keys()) any |= registry->Create(name)->Execute();
    std::lock_guard<std::mutex> lock(mutex_);
    of(device).stats.num_alloc_retries++;
    for (auto& [key, heap] : heaps_) any |= give_back(*heap);
    return any;
  }
  void* again(size_t n, DeviceIndex device, cudaStream_t stream, gpumem_status status) {
    void* ptr = nullptr;
    if (status == GPUMEM_ERROR_OUT_OF_MEMORY) {
      const std::string why = last_error();
      if (reclaim(device) && gpumem_malloc_async(n, stream, &ptr) == GPUMEM_OK) return ptr;
      out_of_memory(n, device, stream, why);
    }
    TORCH_CHECK(false, "allocating ", human(n), " on CUDA device ", int(device), ": ", gpumem_status_name(status), ": ", last_error());
  }
  [[noreturn]] void out_of_memory(size_t n, DeviceIndex device, cudaStream_t stream, std::string why = last_error()) {
    size_t free = 0, total = 0;
    (void)gpumem_device_memory_get(device, &free, &total);
    const auto s = counters(device);
    std::vector<native::OutOfMemoryObserver> observers;
    int64_t allocated = 0;
    const Context context = gather(native::RecordContext::ALLOC);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& stats = of(device).stats;
      stats.num_ooms++;
      allocated = stats.allocated_bytes[size_t(StatType::AGGREGATE)].current;
      observers = observers_;
      if (recording_) told(TraceEntry::OOM, device, reinterpret_cast<void*>(free), n, stream, {0, 0}, context);
    }
    c10::reportOutOfMemoryToProfiler(int64_t(n), size_t(allocated), s.mapped, c10::Device(c10::DeviceType::CUDA, device));
    for (const auto& observer : observers) observer(device, n, s.limit ? s.limit : total, free);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", human(n), ". GPU ", int(device),
                     " has a total capacity of ", human(total), " of which ", human(free), " is free.",
                     s.limit ? " " + human(s.limit) + " allowed;" : "", " ", human(allocated), " is allocated by PyTorch, ",
                     human(s.mapped), " is held by gpumem. ", why);
  }

  // ---- heaps

  // Notes that libgpumem is told of a stream, if that is being captured.
  void name(cudaStream_t stream) {
    if (!routes_.empty() && captured(stream)) routes_.back().met.insert(stream);
  }
  char* new_segment(Heap& heap, size_t size, cudaStream_t stream) {
    if (heap.foreign) {
      try {
        return static_cast<char*>(heap.foreign->raw_alloc(size));
      } catch (const c10::OutOfMemoryError&) {
        return nullptr;
      }
    }
    gpumem_malloc_options o;
    GPUMEM_INIT(&o);
    o.bytes = size;
    o.stream = stream;
    o.tag = heap.tag;
    o.flags = heap.kind == Kind::evictable ? GPUMEM_MALLOC_EVICTABLE : heap.kind == Kind::shared ? GPUMEM_MALLOC_EXPORTABLE : 0;
    void* out = nullptr;
    // Without flags on the fast way, which also takes part in captures.
    const auto status = o.flags ? gpumem_malloc_with(&o, &out) : gpumem_malloc_async(size, stream, &out);
    if (status == GPUMEM_ERROR_OUT_OF_MEMORY) return nullptr;
    ok(status, "a segment of a pool");
    name(stream);
    // The pool outlives what arena the thread is in now, and what capture its stream is in.
    if (heap.kind != Kind::evictable) (void)gpumem_arena_escape(out);
    return static_cast<char*>(out);
  }

  char* heap_malloc(Heap& heap, size_t requested, cudaStream_t stream) {
    if (char* at = heap.malloc(requested, stream)) return at;
    const size_t size = Heap::segment_for(requested);
    char* at = new_segment(heap, size, stream);
    if (at == nullptr) return nullptr;
    heap.grow(at, size, requested, stream);
    told(TraceEntry::SEGMENT_ALLOC, heap.device, at, size, stream, heap.id);
    return heap.malloc(requested, stream);
  }
  void heap_free(Heap& heap, char* at) {
    heap.free(at);
    settle(heap);
  }
  // Not while a graph is captured.
  void settle(Heap& heap) {
    if (heap.has_waiting() && !capturing()) heap.settle();
  }
  // Whether a graph that allocates here is being captured. That there is a route does not tell: a
  // MemPool has one without a capture, and after a capture that failed PyTorch never ends its own.
  bool capturing() {
    if (routes_.empty()) return false;
    if (captured(c10::cuda::getCurrentCUDAStream())) return true;
    for (const auto& r : routes_) {
      for (const auto& [base, segment] : pool(r.device, r.id).segments) {
        if (captured(segment.stream)) return true;
      }
    }
    return false;
  }
  // Gives back segments with nothing in them, where no graph can use them any more. Whether there
  // were any.
  bool give_back(Heap& heap) {
    if ((heap.kind == Kind::pool && heap.uses > 0) || capturing()) return false;
    settle(heap);
    const auto empty = heap.take_empty();
    if (heap.segments.empty()) heap.asleep = false;
    if (empty.empty()) return false;
    c10::cuda::CUDAGuard guard(heap.device);
    // Launches of graphs that used it may be in flight, on any stream.
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    for (const auto& [at, segment] : empty) {
      exports_.erase(reinterpret_cast<uint64_t>(at));
      told(TraceEntry::SEGMENT_FREE, heap.device, at, segment.size, segment.stream, heap.id);
      if (heap.foreign) {
        heap.foreign->raw_delete(at);
      } else {
        gpumem_torch_free(at, ssize_t(segment.size), heap.device, segment.stream);
      }
    }
    return true;
  }
  void drop_dead_heaps() {
    for (auto it = heaps_.begin(); it != heaps_.end();) {
      const bool dead = it->second->kind == Kind::pool && it->second->uses == 0 && it->second->segments.empty();
      it = dead ? heaps_.erase(it) : std::next(it);
    }
  }

  // ---- looking

  void refresh(Device& device, const gpumem_stats& s) {
    auto& stats = device.stats;
    const auto all = size_t(StatType::AGGREGATE), large = size_t(StatType::LARGE_POOL);
    for (const auto which : {all, large}) {
      set(stats.reserved_bytes[which], s.mapped, s.peak_mapped);
      set(stats.segment[which], s.extents, std::max<uint64_t>(stats.segment[which].peak, s.extents));
    }
    // Nothing waits for other streams here: libgpumem knows what does.
    stats.active = stats.allocation;
    stats.active_bytes = stats.allocated_bytes;
    stats.num_device_alloc = int64_t(s.growths - std::min(device.growths_before, s.growths));
    stats.max_split_size = -1;
  }
  void fill(SegmentInfo& out) {
    for (const auto& b : out.blocks) {
      if (b.allocated) {
        out.allocated_size += b.size;
        out.requested_size += b.requested_size;
      }
      if (b.active) out.active_size += b.size;
    }
  }
  void segments_of(Heap& heap, std::vector<SegmentInfo>& out) {
    for (const auto& [base, segment] : heap.segments) {
      SegmentInfo info;
      info.device = heap.device;
      info.address = reinterpret_cast<size_t>(base);
      info.total_size = segment.size;
      info.stream = segment.stream;
      info.is_large = !segment.small;
      if (heap.kind == Kind::pool) info.owner_private_pool_id = heap.id;
      for (auto it = heap.chunks.find(base); it != heap.chunks.end() && it->first < base + segment.size; ++it) {
        const auto& c = it->second;
        BlockInfo b;
        b.size = c.size;
        b.requested_size = c.allocated ? c.requested : 0;
        b.allocated = c.allocated;
        b.active = c.allocated || c.waiting;
        b.context_when_allocated = c.context;
        info.blocks.push_back(std::move(b));
      }
      fill(info);
      out.push_back(std::move(info));
    }
  }
  // Runs of mapped memory, as the library lists them, with the tensors in them.
  void ordinary_segments(DeviceIndex device, std::vector<SegmentInfo>& out) {
    std::set<size_t> own;
    for (const auto& [key, heap] : heaps_) {
      for (const auto& [base, segment] : heap->segments) own.insert(reinterpret_cast<size_t>(base));
    }
    std::map<size_t, const Block*> live;
    for (const Owned* owned : owned_) {
      if (!owned->gone && owned->block.device == device) live[reinterpret_cast<size_t>(owned->ptr)] = &owned->block;
    }
    for (const auto& [ptr, block] : blocks_) {
      if (block.heap == nullptr && block.device == device) live[reinterpret_cast<size_t>(ptr)] = &block;
    }
    for (auto [begin, end] : mapped_runs(device)) {
      // A heap's segment is in this run, too: it is cut there.
      size_t at = begin;
      while (at < end) {
        const auto cut = own.lower_bound(at);
        const size_t until = cut == own.end() ? end : std::min(end, *cut);
        if (until > at) run(device, at, until, live, out);
        at = until;
        if (at < end) at += segment_size(at);
      }
    }
  }
  size_t segment_size(size_t at) {
    for (const auto& [key, heap] : heaps_) {
      const auto found = heap->segments.find(reinterpret_cast<char*>(at));
      if (found != heap->segments.end()) return found->second.size;
    }
    return 1;
  }
  void run(DeviceIndex device, size_t begin, size_t end, const std::map<size_t, const Block*>& live, std::vector<SegmentInfo>& out) {
    SegmentInfo info;
    info.device = device;
    info.address = begin;
    info.total_size = end - begin;
    info.is_large = true;
    info.is_expandable = true;
    size_t at = begin;
    const auto gap = [&](size_t until) {
      if (until <= at) return;
      BlockInfo b;
      b.size = until - at;
      info.blocks.push_back(std::move(b));
      at = until;
    };
    for (auto it = live.lower_bound(begin); it != live.end() && it->first < end; ++it) {
      gap(it->first);
      const auto next = std::next(it);
      const size_t room = (next == live.end() ? end : std::min(end, next->first)) - it->first;
      BlockInfo b;
      b.size = std::min(room, counted(it->second->requested));
      b.requested_size = it->second->requested;
      b.allocated = b.active = true;
      b.context_when_allocated = it->second->context;
      info.stream = it->second->stream;
      at += b.size;
      info.blocks.push_back(std::move(b));
    }
    gap(end);
    fill(info);
    out.push_back(std::move(info));
  }
  // From the library's list of regions: lines of an address and a mark, '*' for a hole, '!' for old
  // addresses of what has moved.
  static std::vector<std::pair<size_t, size_t>> mapped_runs(DeviceIndex device) {
    size_t needed = 0;
    std::string text;
    do {
      text.resize(needed + 4096);
      ok(gpumem_dump(device, text.data(), text.size(), &needed), "memory_snapshot");
    } while (needed > text.size());
    std::vector<std::pair<size_t, size_t>> runs;
    std::istringstream lines(text.c_str());
    bool inside = false;
    for (std::string line; std::getline(lines, line);) {
      uint64_t at = 0;
      char mark = 0;
      if (std::sscanf(line.c_str(), " 0x%" SCNx64 " [%c", &at, &mark) != 2) continue;
      if (inside) runs.back().second = at;
      const bool mapped = mark != '*' && mark != '!' && mark != '.' && line.find("evicted") == std::string::npos;
      if (mapped && !inside) runs.emplace_back(at, at);
      inside = mapped;
    }
    return runs;
  }

  void set_history(bool enabled, native::CreateContextFn recorder, size_t entries, native::RecordContext when, bool clear) {
    TORCH_CHECK(when == native::RecordContext::NEVER || recorder);
    std::lock_guard<std::mutex> lock(mutex_);
    recording_ = enabled;
    recorder_ = enabled ? recorder : nullptr;
    entries_ = std::max<size_t>(1, entries);
    when_ = when;
    if (!enabled || clear) {
      for (auto& device : devices_) device->trace.clear();
    }
  }
  // Where it was asked for, the stack. Outside of the lock, as it may take the interpreter's.
  Context gather(native::RecordContext level) {
    const auto recorder = recorder_.load();
    return C10_UNLIKELY(recorder != nullptr) && when_.load() >= level ? recorder() : nullptr;
  }
  // For the trace and its listeners, with the stack of the call where stacks of calls are wanted.
  // Of tensors `size` is what was asked for.
  void told(TraceEntry::Action action, DeviceIndex device, void* ptr, size_t size, cudaStream_t stream, MempoolId_t id,
            const Context& context = nullptr) {
    if (C10_LIKELY(!recording_ && !watched_)) return;
    TraceEntry entry(action, device, reinterpret_cast<size_t>(ptr), size, stream, id, c10::getApproximateTime(),
                     when_.load() >= native::RecordContext::ALLOC ? context : nullptr,
                     compile_contexts.empty() ? "" : compile_contexts.back());
    for (const auto& tracker : trackers_) tracker(entry);
    if (!recording_ || skip_.count(action) != 0) return;
    auto& trace = of(device).trace;
    trace.push_back(std::move(entry));
    while (trace.size() > entries_) trace.pop_front();
  }
  void told_free(void* ptr, const Block& b, const Context& context) {
    if (C10_LIKELY(!recording_ && !watched_)) return;
    const auto id = b.heap == nullptr ? MempoolId_t{0, 0} : b.heap->id;
    for (const auto action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
      told(action, b.device, ptr, b.requested, b.stream, id, context);
    }
  }
  void report(void* ptr, int64_t change, DeviceIndex device) {
    const auto* trace = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(trace != nullptr)) {
      if (change > 0) {
        (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
      } else {
        (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
      }
    }
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
      const auto s = counters(device);
      int64_t allocated = 0;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        allocated = of(device).stats.allocated_bytes[size_t(StatType::AGGREGATE)].current;
      }
      c10::reportMemoryUsageToProfiler(ptr, change, size_t(allocated), s.mapped, c10::Device(c10::DeviceType::CUDA, device));
    }
  }

  std::mutex mutex_;
  std::atomic<bool> initialized_{false};
  std::atomic<bool> routing_{false};
  std::atomic<bool> recording_{false};
  std::atomic<bool> watched_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};
  size_t entries_ = 1;
  // Actions that the history leaves out.
  std::set<TraceEntry::Action> skip_;
  ska::flat_hash_map<void*, Block> blocks_;
  std::set<Owned*> owned_;
  std::map<Key, std::unique_ptr<Heap>> heaps_;
  std::vector<Route> routes_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<native::OutOfMemoryObserver> observers_;
  std::vector<native::AllocatorTraceTracker> trackers_;
  // Segments that other processes may ask for, by address.
  std::map<uint64_t, Export> exports_;
  c10::ApproximateClockToUnixTimeConverter converter_;
  std::function<int64_t(c10::approx_time_t)> clock_ = converter_.makeConverter();
};

// Never destroyed: tensors may be freed at exit, after static objects.
Allocator& allocator() {
  static auto* const one = new std::shared_ptr<Allocator>(std::make_shared<Allocator>());
  return **one;
}
std::shared_ptr<native::CUDAAllocator> shared_allocator() {
  static auto* const one = new std::shared_ptr<native::CUDAAllocator>(&allocator(), [](native::CUDAAllocator*) {});
  return *one;
}

// Destructors call it, which must not throw.
void release(void* ptr) {
  try {
    allocator().raw_delete(ptr);
  } catch (const c10::Error& e) {
    TORCH_WARN(e.what_without_backtrace());
  }
}
void release_owned(void* owned) {
  allocator().put_owned(static_cast<Owned*>(owned));
}

// ---- handles for other processes

Server& server() {
  static auto* const one = new Server([](uint64_t segment) { return allocator().export_segment(segment); });
  return *one;
}

native::ShareableHandle Allocator::shareIpcHandle(void* ptr) {
  const uint64_t nonce = server().nonce;
  std::lock_guard<std::mutex> lock(mutex_);
  Heap* heap = live_at(ptr).heap;
  TORCH_CHECK(heap != nullptr && heap->kind == Kind::shared,
              "this CUDA tensor's memory cannot be shared with another process: allocate it in `with gpumem.torch.shared():`, or call "
              "gpumem.torch.enable(ipc=True), which makes all memory shareable");
  const auto segment = heap->segment_of(static_cast<char*>(ptr));
  const auto number = reinterpret_cast<uint64_t>(segment->first);
  exports_[number] = Export{heap, segment->first};
  Handle h{};
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  h.pid = getpid();
  h.device = heap->device;
  h.nonce = nonce;
  h.segment = number;
  h.bytes = segment->second.size;
  return {static_cast<char*>(ptr) - segment->first, h.text()};
}

// The descriptor of a segment, for the thread that serves them; the caller closes it.
int Allocator::export_segment(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = exports_.find(number);
  int fd = -1;
  if (found == exports_.end() || gpumem_export_fd(found->second.segment, &fd) != GPUMEM_OK) return -1;
  return fd;
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string text) {
  static std::mutex opening;
  static auto* const open = new std::map<std::string, std::weak_ptr<void>>();
  Handle h{};
  TORCH_CHECK(text.size() == sizeof h && std::memcmp(text.data(), kMagic, sizeof kMagic) == 0,
              "this handle of CUDA memory is of a process that does not use gpumem; enable it in both");
  std::memcpy(&h, text.data(), sizeof h);
  if (h.pid == getpid() && h.nonce == server().nonce) {
    return std::shared_ptr<void>(reinterpret_cast<void*>(h.segment), [](void*) {});
  }
  std::lock_guard<std::mutex> lock(opening);
  if (auto known = (*open)[text].lock()) return known;
  const int fd = fetch(h);
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  void* out = nullptr;
  const auto status = gpumem_import_fd(fd, h.bytes, device, &out);
  close(fd);
  ok(status, "opening CUDA memory of another process");
  std::shared_ptr<void> made(out, [device](void* ptr) {
    // Work of any stream may still use it, and it is unmapped.
    DeviceIndex before = 0;
    (void)c10::cuda::GetDevice(&before);
    (void)c10::cuda::SetDevice(device);
    (void)cudaDeviceSynchronize();
    (void)c10::cuda::SetDevice(before);
    gpumem_free(ptr);
  });
  (*open)[text] = made;
  return made;
}

}  // namespace gpumem_torch

// ---- what Python calls

namespace {
std::string failure;
}

// Makes gpumem PyTorch's allocator. NULL, or why not.
extern "C" const char* gpumem_torch_install(int share_everything) {
  try {
    gpumem_torch::allocator().share_everything = share_everything != 0;
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(gpumem_torch::shared_allocator());
    return nullptr;
  } catch (const c10::Error& e) {
    failure = e.what_without_backtrace();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  return failure.c_str();
}

// Where the thread's allocations go from now on: 0 ordinary memory, 1 memory that sleeps under a
// tag, 2 memory for other processes.
extern "C" void gpumem_torch_route(int kind, uint64_t tag, int* kind_before, uint64_t* tag_before) {
  *kind_before = gpumem_torch::current_kind;
  *tag_before = gpumem_torch::current_tag;
  gpumem_torch::current_kind = kind;
  gpumem_torch::current_tag = tag;
}

// Says that an arena is about to end. What cuBLAS works with stays: PyTorch makes it with the first
// product of a thread and stream, and goes on using it.
extern "C" void gpumem_torch_arena_ends() {
  gpumem_torch::each_workspaces(gpumem_torch::escape_all);
}

// Says that an arena has ended, or that a capture was aborted.
extern "C" void gpumem_torch_arena_ended() {
  gpumem_torch::allocator().arena_ended();
  gpumem_torch::each_workspaces(gpumem_torch::drop_gone);
}

// Says that a tag's memory is about to leave the device, or is back. NULL, or why not.
extern "C" const char* gpumem_torch_asleep(uint64_t tag, int value) {
  try {
    gpumem_torch::allocator().asleep(tag, value != 0);
    return nullptr;
  } catch (const std::exception& e) {
    failure = e.what();
    return failure.c_str();
  }
}

// Whether all memory of a tag that was in use has been given back.
extern "C" int gpumem_torch_is_empty(uint64_t tag) {
  return gpumem_torch::allocator().is_empty(tag);
}

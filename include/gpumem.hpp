// gpumem for C++17: objects that own memory, exceptions for failures, and a memory resource for
// CCCL, RMM and Thrust.
//
//     void step(cudaStream_t s) {
//         gpumem::async_buffer<float> x(count, s);       // any stream: CUDA's, RMM's, gpumem's
//         kernel<<<grid, block, 0, s>>>(x.data());
//     }                                                  // freed in the order of s; nobody waits
//
// Header-only over gpumem.h, whose conventions hold. This header includes all parts; each can be
// included alone.
//
//     gpumem/core.hpp     errors
//     gpumem/stream.hpp   stream_ref, stream, stream_pool
//     gpumem/buffer.hpp   unique_buffer, async_buffer
//     gpumem/rmm.hpp      memory_resource, allocator: for RMM, CCCL and Thrust
//     gpumem/arena.hpp    allocations that end together
//     gpumem/capture.hpp  memory for CUDA graphs
//     gpumem/reserve.hpp  spaces, reservations
//     gpumem/evict.hpp    memory that moves out of its device and back
//     gpumem/host.hpp     pinned memory of the host
//     gpumem/plan.hpp     layouts computed ahead of a run
//     gpumem/record.hpp   recordings
//     gpumem/stats.hpp    counters
//     gpumem/sim.hpp      graphs without a CUDA runtime, for tests
//
// CONVENTIONS
//
// Memory      Nothing here dereferences device memory. T is the type of the elements on the device;
//             the caller does the copies. No constructor of T runs.
// Owners      Owning objects are move-only. A moved-from object owns nothing and, except for
//             arenas, may be assigned to. get() returns what is owned, reset() ends it now, swap()
//             exchanges it. release() gives it up, where it may outlive its owner.
// Streams     Streams are taken as stream_ref, to which any stream converts. They are not owned and
//             must outlive what is made with them. A default stream is that of the device current
//             when it is used, and in files with per-thread default streams that of the current
//             thread.
// Threads     Different objects may be used from different threads at once; one object, from one
//             thread at a time.
// Exceptions  gpumem::bad_alloc (a std::bad_alloc) when memory is short, gpumem::error (a
//             std::runtime_error) for everything else. Destructors, reset() and deallocate() never
//             throw; what fails in them is kept as the thread's last error.
#ifndef GPUMEM_HPP
#define GPUMEM_HPP

#include <gpumem/arena.hpp>
#include <gpumem/buffer.hpp>
#include <gpumem/capture.hpp>
#include <gpumem/core.hpp>
#include <gpumem/evict.hpp>
#include <gpumem/host.hpp>
#include <gpumem/plan.hpp>
#include <gpumem/record.hpp>
#include <gpumem/reserve.hpp>
#include <gpumem/rmm.hpp>
#include <gpumem/sim.hpp>
#include <gpumem/stats.hpp>
#include <gpumem/stream.hpp>

#endif

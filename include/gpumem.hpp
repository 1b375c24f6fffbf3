// gpumem for C++17: ownership by objects, failures by exceptions, and a memory resource for CCCL,
// RMM and Thrust.
//
//     void step(cudaStream_t s) {
//         gpumem::async_buffer<float> x(count, s);       // any stream: CUDA's, RMM's, gpumem's
//         kernel<<<grid, block, 0, s>>>(x.data());
//     }                                                  // freed in the order of s; nobody waits
//
// Header-only over gpumem.h, whose conventions hold. This page includes all parts; each can be
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
// Memory      Nothing here dereferences device memory: T is the type of the elements on the device,
//             and copies are the caller's. No constructor of T runs.
// Owners      Move-only. One that was moved from owns nothing and may be assigned to, but for
//             arenas. get() shows what there is, reset() ends it now, swap() exchanges it; where it
//             may go on without its owner, release() gives it up.
// Streams     Are taken as stream_ref, which any stream becomes, and not owned: they outlive what
//             is made with them. A default stream is that of the device, and in files with
//             per-thread default streams that of the thread, that is current when it is used.
// Threads     Different objects may be used from different threads at once, one object from one
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

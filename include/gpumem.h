/*
 * gpumem: device memory for C and C++, and for every language that calls C.
 *
 * A stream-ordered pool over CUDA virtual memory that remaps its memory instead of fragmenting it.
 * The same calls work on a machine without a GPU, on a device made of ordinary memory. Valid C99
 * and C++17; needs no CUDA header.
 *
 *     gpumem_stream s;
 *     void *p;
 *     if (gpumem_stream_create(&s) != GPUMEM_OK) ...
 *     if (gpumem_malloc_async(1 << 20, s, &p) != GPUMEM_OK) ...
 *     gpumem_memset_async(p, 0, 1 << 20, s);
 *     gpumem_free_async(p, s);            (takes effect after the memset; nobody waits)
 *
 * This header states the conventions and includes the parts below. To allocate and free, read the
 * conventions and core.h. The names and words at the end are for reference.
 *
 *     gpumem/core.h      statuses, malloc and free
 *     gpumem/alloc.h     allocating with options, facts about an allocation, sharing it
 *     gpumem/settings.h  starting gpumem with the program's own settings
 *     gpumem/device.h    devices, streams, copies, for programs without a CUDA runtime
 *     gpumem/stats.h     counters, dumps, checks
 *     gpumem/record.h    recordings, snapshots, events
 *     gpumem/arena.h     allocations that end together, and finding late uses
 *     gpumem/capture.h   memory for CUDA graphs
 *     gpumem/space.h     spaces, and what happens when one is full
 *     gpumem/reserve.h   reservations
 *     gpumem/evict.h     moving memory out of the device and back
 *     gpumem/host.h      pinned host memory
 *     gpumem/plan.h      layouts computed ahead of a run
 *     gpumem/torch.h     the functions that PyTorch calls
 *     gpumem/sim.h       graphs without a CUDA runtime, for tests; not included here
 *
 * CONVENTIONS. They hold for every function unless it says otherwise.
 *
 * Status     A gpumem_status: GPUMEM_OK is 0, errors are GPUMEM_ERROR_*. gpumem_last_error has the
 *            text.
 * On error   Everything is as it was before the call, and the next call works. Only a stream
 *            capture that forbids a wait or a copy (device.h) is lost, as with CUDA's own calls.
 * Outputs    Output parameters come last and are written only on success. No parameter is both read
 *            and written, except that the caller sets the size field of an output structure.
 * NULL       A NULL parameter is GPUMEM_ERROR_INVALID unless its description allows it.
 * Units      Sizes are in bytes. Counts are called counts.
 * Structures Each begins with uint32_t size. Zero it all and set the size: GPUMEM_INIT(&options)
 *            does both. Zero means default. Structures grow at the end: fields that an older
 *            caller's version lacks are zero. A set field that the library does not know is
 *            GPUMEM_ERROR_INVALID.
 * Threads    Every function may be called from any thread at any time, except from signal handlers.
 *            None is a cancellation point: a deferred pthread_cancel takes effect after the call.
 * Streams    A gpumem_stream is a cudaStream_t or CUstream. A handle must be a live stream: CUDA
 *            crashes on a destroyed one. NULL (the legacy default stream) and
 *            GPUMEM_STREAM_PER_THREAD exist on every device. In a call that names a device
 *            (GPUMEM_MALLOC_ON_DEVICE, a space, a parameter) they are that device's. Elsewhere, as
 *            in CUDA, they are those of the calling thread's current device, whatever device the
 *            memory is on. A stream may be of another device than the memory: frees, realloc, moves
 *            and gpumem_record_stream then make the memory wait for it. That takes some
 *            microseconds, and is GPUMEM_ERROR_CAPTURING while the stream is being captured.
 * Peers      Memory is mapped from the start for every device that can reach its device. No
 *            cudaDeviceEnablePeerAccess is needed.
 * Ownership  Memory belongs to the caller that received it, until it is freed, once. Freeing memory
 *            that is not live is an error and is counted; it never does damage. Returned strings
 *            are static. Arguments are read during the call only, except the data of asynchronous
 *            copies. Callbacks are kept; their user pointers stay the program's.
 * Starting   The first call that needs gpumem's state starts the library. Until it has started,
 *            every such call can fail with GPUMEM_ERROR_CONFIG, GPUMEM_ERROR_NO_DEVICE or
 *            GPUMEM_ERROR_DRIVER, and the first that needs a device with GPUMEM_ERROR_OUT_OF_MEMORY
 *            for GPUMEM_PREALLOC. Functions list all their errors but these, GPUMEM_ERROR_FORKED
 *            and GPUMEM_ERROR_SHUTTING_DOWN (below), and GPUMEM_ERROR_INTERNAL, a bug in gpumem.
 *            One that lists GPUMEM_ERROR_DRIVER can also return GPUMEM_ERROR_OUT_OF_MEMORY: the
 *            driver had no memory for objects of its own. What needs spaces (pinned or evictable
 *            memory, say) fails with GPUMEM_ERROR_CONFIG while GPUMEM_DISK names a bad directory.
 * Fork       A process forked after gpumem has started gets GPUMEM_ERROR_FORKED, and its frees do
 *            nothing. After exec it can use gpumem.
 * Exit       Nothing needs to be freed or shut down. Calls from exit handlers are safe. Once the
 *            driver goes away they return GPUMEM_ERROR_SHUTTING_DOWN, but frees do nothing and
 *            return GPUMEM_OK.
 * Exceptions No C++ exception may enter the library, and none leaves it except as torch.h says.
 *
 * NAMES. gpumem_[<noun>_][<property>_]<verb>[_<what>]. A name without a noun is about memory. Each
 * verb has one meaning:
 *
 * malloc, free          to get and give back memory; realloc, usable_size, memcpy, memset: as in C
 * trim                  to give free physical memory back to the device or the system
 * create, destroy       to make an object that the caller holds by a handle, and to end it
 * enter, exit           to open an arena, and to end it, keeping what is named
 * begin, end            to start and to finish a period
 * abort                 to abandon an arena or a period
 * reserve, release      to get a promise of bytes, and to give up the promise, or a reference
 * retain                to take one more reference
 * attach, detach        to tie an object to a thread or a stream, and to untie it
 * borrow, return        to take one from a pool, and to give it back
 * get, set, add         to read, to change, to add; these follow the name of their object
 * reset                 to restart a counter
 * grow, shrink          to change the size of a promise
 * init, shutdown        to start gpumem with settings; to end all waits
 * prepare               to do now what a later call would have to wait for
 * sync, wait            the host waits for a device or stream; one stream waits for another
 * record                to announce that a stream uses memory
 * start, stop           to begin a recording, and to end it
 * visit, snapshot       to call back for each live allocation; to write all state to a file
 * cancel                to end what is in progress on another thread
 * evict, restore        to move memory out of its device, and back
 * hold, unhold          to keep memory in its device, and to let it go
 * export, import        to share memory with another process
 * keep                  to let something outlive its normal end
 * promote, escape, find to move an allocation one arena out, or out of all; to find its arena
 * check, verify         to test one pointer; to test a plan's layout, or all poisoned memory
 * validate              to test gpumem's own state
 * describe, dump        to give text for people about one address; about a whole device
 * launch                to run a graph
 * solve, resize, extend to find the offsets of a plan or a recorded capture; in a plan, to change a
 *                       buffer's size; its live range
 * share, unshare        to use another plan's weights in a plan, and to stop
 * materialise           to allocate a plan's arena
 *
 * Functions that cannot fail and return a value are named after it: gpumem_version,
 * gpumem_last_status. The functions that PyTorch calls, gpumem_torch_*, have torch's names.
 *
 * WORDS
 *
 * device           A GPU, or the host device that stands in for one. Numbered as CUDA numbers them.
 * stream           A queue of work on a device, done in order. Work on different streams is not
 *                  ordered.
 * stream order     Memory may be used by work submitted to its stream after the allocation and
 *                  before the free.
 * settled          Freed, and the device has passed the free on every stream that used the memory.
 * mapped           Physical memory that gpumem holds at addresses; gpumem_stats.mapped adds stock.
 * reserved         Addresses set aside. They cost nothing.
 * extent           One physical allocation from the driver, mapped as a whole.
 * region           A range of addresses in one state: live, free, hole, zombie.
 * hole             Reserved addresses with nothing mapped.
 * zombie           The old addresses of memory that has moved, still mapped so that it can come
 *                  back.
 * stitch           To meet a request by moving free extents to one range of addresses; nothing is
 *                  copied.
 * arena            Allocations that end together, entered and exited like a block of a program. In
 *                  a plan: a run of bytes in which its buffers are laid out, later one allocation.
 * keep, promote    To move an allocation from its arena to the enclosing one, or out of all arenas
 *                  when there is none.
 * stream capture   CUDA's recording of a stream into a graph.
 * capture          The memory of one or more stream captures: gpumem_capture.
 * space            A place where memory can be: a device, a NUMA node of the host, a disk's mount.
 *                  Its tier is its kind.
 * reservation      A promise of bytes in one space. Drawn: the part that live allocations use.
 * evictable        Memory that may leave its device and come back. While held, it stays.
 * pinned           Memory of the host that devices copy to and from directly.
 * plan             Buffers, or a graph of values and operations, laid out ahead of a run.
 * step             In a plan: a position in the execution order.
 * live             A buffer of a plan is live at the steps at which it holds something.
 *
 * DELIBERATELY NOT HERE
 *
 * Synchronous free  cudaFree waits for the device; gpumem_free does not. Synchronise yourself where
 *                   you need to.
 * Host access       The host must not dereference device addresses, even on the host device. Copy.
 * Kernels, events   CUDA's own work with this memory; gpumem replaces only the allocator.
 * Shutting down     See "Exit" above.
 * Managed memory    Migrates by faults; a different thing from a pool.
 */

#ifndef GPUMEM_H
#define GPUMEM_H

#include "gpumem/core.h"

#include "gpumem/alloc.h"
#include "gpumem/arena.h"
#include "gpumem/capture.h"
#include "gpumem/device.h"
#include "gpumem/evict.h"
#include "gpumem/host.h"
#include "gpumem/plan.h"
#include "gpumem/record.h"
#include "gpumem/reserve.h"
#include "gpumem/settings.h"
#include "gpumem/space.h"
#include "gpumem/stats.h"
#include "gpumem/torch.h"

#endif

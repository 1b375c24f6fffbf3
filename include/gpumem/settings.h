/* gpumem/settings.h: starting gpumem with the program's own settings.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_SETTINGS_H
#define GPUMEM_SETTINGS_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Starting ----------------------------------------------------------------------------------
 *
 * Nothing happens when the library loads. The first call that needs gpumem's state starts it with
 * the settings of the environment: GPUMEM_BACKEND, GPUMEM_VA_SIZE, GPUMEM_PAGE_SIZE,
 * GPUMEM_PREALLOC, GPUMEM_LIMIT, GPUMEM_SLACK, GPUMEM_REUSE, GPUMEM_TRIM_THRESHOLD,
 * GPUMEM_TRIM_INTERVAL, GPUMEM_STREAM_CHECK, GPUMEM_ARENA_DEBUG, GPUMEM_ARENA_QUARANTINE,
 * GPUMEM_CAPTURE, GPUMEM_TIERS, GPUMEM_PINNED_BLOCKS, GPUMEM_PINNED_LIMIT, GPUMEM_DISK,
 * GPUMEM_DOWNGRADE, GPUMEM_MOVER, GPUMEM_RECORD, GPUMEM_RECORD_STACKS, GPUMEM_SNAPSHOT_ON,
 * GPUMEM_SNAPSHOT, GPUMEM_SNAPSHOT_EVENTS, GPUMEM_STATS_PAGE, GPUMEM_NVTX, GPUMEM_LOG,
 * GPUMEM_POOL, and for the host device GPUMEM_HOST_DEVICES, GPUMEM_HOST_BYTES, GPUMEM_HOST_MODE
 * and GPUMEM_HOST_SEED. gpumem_init starts it with the program's own settings, which override the
 * environment's. While a variable does not parse, every such call returns GPUMEM_ERROR_CONFIG,
 * gpumem_init too, even where its options set the field; while the driver does not start,
 * GPUMEM_ERROR_DRIVER or GPUMEM_ERROR_NO_DEVICE. There is nothing to shut down: at exit the memory
 * goes with the process.
 */

// CUDA when a driver and a device exist, else the host device, with one line on stderr.
#define GPUMEM_BACKEND_AUTO 1

// CUDA or an error.
#define GPUMEM_BACKEND_CUDA 2

// A device made of ordinary memory that enforces CUDA's rules, for machines without a GPU.
#define GPUMEM_BACKEND_HOST 3

// Slack grows with how much memory the workload has moved, up to 23 %. None for work that
// repeats.
#define GPUMEM_SLACK_AUTO -1

// Next to no slack: memory is moved rather than added. A stream with less than 1 GiB may still add
// some where it keeps running short.
#define GPUMEM_SLACK_TIGHT -2

// Another stream gets freed memory only once the device has passed the free.
#define GPUMEM_REUSE_SETTLED 1

// As a last resort another stream gets freed memory earlier, and waits on the device for the free.
// The default.
#define GPUMEM_REUSE_WAIT 2

// Nothing on stderr, as GPUMEM_LOG=0. The other constants equal the variable's numbers.
#define GPUMEM_LOG_NOTHING -1

// Warnings on stderr: the default.
#define GPUMEM_LOG_WARNINGS 1

// Warnings and slow-path decisions on stderr.
#define GPUMEM_LOG_DECISIONS 2

// Every request goes to the pool.
#define GPUMEM_POOL_ON 1

// Every request goes straight to the driver's own allocator, for comparison.
#define GPUMEM_POOL_OFF 2

// Reads where the driver keeps the stream's state, if that place was found at the start, else asks
// the driver. The default.
#define GPUMEM_STREAM_CHECK_AUTO 1

// Asks the driver on every allocation, with two calls.
#define GPUMEM_STREAM_CHECK_DRIVER 2

// Does not look for late uses of an arena's memory. The default.
#define GPUMEM_ARENA_DEBUG_OFF 1

// Arenas remember what they free, for gpumem_check. GPUMEM_ARENA_DEBUG_ABORT, _POISON and _UNMAP
// imply it.
#define GPUMEM_ARENA_DEBUG_CHECK 2

// The first late use found aborts the process.
#define GPUMEM_ARENA_DEBUG_ABORT 4

// Freed memory is filled, kept for a while, and checked for writes. Not with
// GPUMEM_ARENA_DEBUG_UNMAP.
#define GPUMEM_ARENA_DEBUG_POISON 8

// Freed memory is unmapped and its addresses are kept for a while, so that any use faults.
#define GPUMEM_ARENA_DEBUG_UNMAP 16

// Only captures begun with gpumem_capture_begin get memory of their own: the default.
#define GPUMEM_CAPTURE_DETECTION_OFF 1

// Every stream that is being captured gets memory of its own.
#define GPUMEM_CAPTURE_DETECTION_AUTO 2

// Spaces count allocations from the first call about spaces or reservations: the default.
#define GPUMEM_TIERS_OFF 1

// Spaces count allocations from the first allocation.
#define GPUMEM_TIERS_ON 2

// Evictable memory moves out only on request, or when something else needs the room.
#define GPUMEM_MOVER_OFF 1

// Once there is evictable memory, a thread moves it out of spaces that are too full: the default.
#define GPUMEM_MOVER_ON 2

// No automatic snapshot: the default.
#define GPUMEM_SNAPSHOT_ON_NOTHING 1

// A snapshot when a request first fails for lack of memory. The last events are kept for it, so
// each malloc and free takes some tens of nanoseconds longer, unless there are to be no events.
#define GPUMEM_SNAPSHOT_ON_OOM 2

// A snapshot at the process's end.
#define GPUMEM_SNAPSHOT_ON_EXIT 4

// For gpumem_context_options.record_stacks: record no stacks.
#define GPUMEM_RECORD_STACKS_NONE UINT32_MAX

// For gpumem_context_options.snapshot_events: snapshots without events.
#define GPUMEM_SNAPSHOT_EVENTS_NONE UINT32_MAX

// No counters are published: the default.
#define GPUMEM_STATS_PAGE_OFF 1

// A thread publishes counters for gpumem top.
#define GPUMEM_STATS_PAGE_ON 2

// No NVTX ranges: the default.
#define GPUMEM_NVTX_OFF 1

// The slow path makes NVTX ranges, for the tool that NVTX_INJECTION64_PATH names.
#define GPUMEM_NVTX_ON 2

// The host device runs work when it is submitted: the default, unless there is a seed.
#define GPUMEM_HOST_MODE_EAGER 1

// The host device runs work late and in surprising orders, and reports mistakes on stderr: races,
// work on memory that is not mapped, and memory unmapped while in use.
#define GPUMEM_HOST_MODE_SIMULATE 2

// As GPUMEM_HOST_MODE_SIMULATE, and the first mistake aborts the process.
#define GPUMEM_HOST_MODE_ABORT 3

// For gpumem_context_options.pinned_chunks: pin nothing ahead of need.
#define GPUMEM_PINNED_CHUNKS_NONE UINT32_MAX

// Settings, for gpumem_init and from gpumem_settings_get. A field that is 0 means what the
// environment says, or the default where it says nothing.
typedef struct gpumem_context_options {
    // sizeof(gpumem_context_options).
    uint32_t size;
    // GPUMEM_BACKEND_*.
    int32_t backend;
    // GPUMEM_REUSE_*: how memory freed on another stream is reused.
    int32_t reuse;
    // GPUMEM_LOG_*: the numbers of GPUMEM_LOG, except that GPUMEM_LOG_NOTHING stands for its 0.
    int32_t log;
    // GPUMEM_POOL_*.
    int32_t pool;
    // Memory mapped when a pool starts, as a percentage of what is then free, 1 to 100. Not with
    // prealloc_bytes.
    uint32_t prealloc_percent;
    // Memory mapped when a pool starts, bytes. Not with prealloc_percent.
    uint64_t prealloc_bytes;
    // Addresses reserved at a time per device, bytes, a multiple of 2 MiB up to 64 TiB.
    uint64_t va_size;
    // Smallest physical allocation, bytes, a power of two up to 1 GiB. It is never smaller than
    // the device's granularity.
    uint64_t page_size;
    // Most bytes a pool may map on one device. Not with limit_percent.
    uint64_t limit_bytes;
    // After a free that leaves more unused mapped bytes than this, memory goes back to the device.
    uint64_t trim_threshold;
    // Host device only: memory of each simulated device, bytes. Only touched pages take memory.
    uint64_t host_bytes;
    // Host device only: the seed that chooses the order in which its streams run, with
    // GPUMEM_HOST_MODE_SIMULATE or _ABORT. It implies the first where no mode is given. A program
    // that calls from one thread gets the same order from the same seed.
    uint64_t host_seed;
    // Host device only: how many devices to simulate.
    uint32_t host_devices;
    // Most memory a pool may map on one device, as a percentage of the device's, 1 to 100. Not
    // with limit_bytes.
    uint32_t limit_percent;
    // The interval, milliseconds, at which a gpumem thread gives back free memory that has gone
    // unused for as long, on every device in use. It keeps trim_threshold bytes. 0 means no such
    // thread. While the thread has something to give back, it records a marker on the device. That
    // would break a capture on a stream that gpumem has never been called with; it does not happen
    // while a stream that gpumem knows is being captured.
    uint64_t trim_interval_ms;
    // GPUMEM_STREAM_CHECK_*: how gpumem learns which stream a handle names, and whether it is
    // being captured.
    int32_t stream_check;
    // GPUMEM_ARENA_DEBUG_*, or-ed together: how to find uses of memory whose arena has ended.
    uint32_t arena_debug;
    // How much of what arenas have freed is kept for arena_debug: bytes of memory with
    // GPUMEM_ARENA_DEBUG_POISON, of addresses with GPUMEM_ARENA_DEBUG_UNMAP.
    uint64_t arena_quarantine;
    // GPUMEM_CAPTURE_DETECTION_*: whether every captured stream gets memory of its own.
    int32_t capture_detection;
    // GPUMEM_TIERS_*: when spaces begin to count allocations.
    int32_t tiers;
    // GPUMEM_MOVER_*: whether a thread moves out of spaces that are too full.
    int32_t mover;
    // Most pinned memory of a NUMA node, as a percentage of the node's, 1 to 100. Not with
    // pinned_limit_bytes.
    uint32_t pinned_limit_percent;
    // Most pinned memory of a NUMA node, bytes. Not with pinned_limit_percent.
    uint64_t pinned_limit_bytes;
    // Size of a block of pinned memory, bytes, a power of two from 4 KiB to 1 GiB.
    uint64_t pinned_block_bytes;
    // How many blocks make a chunk, the unit of pinning: 1 to 1048576.
    uint32_t pinned_blocks;
    // How many chunks are pinned at first need, up to 1048576, or GPUMEM_PINNED_CHUNKS_NONE.
    uint32_t pinned_chunks;
    // Directories to move memory to: absolute paths separated by ;, each followed by = and a size
    // if it has a limit, such as "/scratch=200G;/mnt/nvme". NULL means those of GPUMEM_DISK.
    const char *disk;
    // The use at which data starts to move out of a space, as a fraction of its limit: above 0, up
    // to 1. 0 takes this and downgrade_stop from GPUMEM_DOWNGRADE.
    double downgrade_trigger;
    // The use at which moving out stops, as a fraction of the limit, from 0 to downgrade_trigger.
    // Must be 0 when that is 0.
    double downgrade_stop;
    // Host device only: GPUMEM_HOST_MODE_*, which says when it runs submitted work.
    int32_t host_mode;
    // GPUMEM_SLACK_*, or a percentage from 1 to 100: how much more than the peak of live memory
    // may stay mapped, of each stream's heap and of all together, so that memory moves less often.
    int32_t slack;
    // The file in which every allocation is recorded. NULL means that of GPUMEM_RECORD, if there
    // is one.
    const char *record;
    // Where automatic snapshots go. NULL means where GPUMEM_SNAPSHOT says.
    const char *snapshot;
    // Frames of the stack that is recorded with each allocation, up to 256, or
    // GPUMEM_RECORD_STACKS_NONE.
    uint32_t record_stacks;
    // GPUMEM_SNAPSHOT_ON_*, or-ed together: when to write a snapshot automatically.
    uint32_t snapshot_on;
    // How many of the last events are in a snapshot, up to 65536, or GPUMEM_SNAPSHOT_EVENTS_NONE.
    uint32_t snapshot_events;
    // GPUMEM_STATS_PAGE_*: whether counters are published for gpumem top.
    int32_t stats_page;
    // GPUMEM_NVTX_*: whether growths, stitches, trims and evictions are NVTX ranges.
    int32_t nvtx;
    // Must be 0.
    uint32_t reserved;
} gpumem_context_options;

// Starts gpumem now, with explicit settings.
//
// opts may be NULL, for the environment's settings. The options, and what they point to, are read
// and not kept.
// Errors: GPUMEM_ERROR_INVALID for a field out of range, or when gpumem has started already, by
// any call that needs its state; GPUMEM_ERROR_CONFIG, _DRIVER, _NO_DEVICE, _FORKED. After an error
// gpumem has not started, and this or any other call may start it.
gpumem_status gpumem_init(const struct gpumem_context_options *opts);

// Returns the kind of device in use: "cuda" or "host", or "none" when gpumem cannot start.
// gpumem_last_error then says why.
//
// Starts gpumem if need be. The string is static, never NULL.
const char *gpumem_backend_name(void);

// The settings in force: those of gpumem_init where it gave any, else the environment's.
//
// out->size must be set (GPUMEM_INIT). Starts gpumem if need be. A field with a constant for
// nothing (GPUMEM_LOG_NOTHING, GPUMEM_RECORD_STACKS_NONE, GPUMEM_SNAPSHOT_EVENTS_NONE,
// GPUMEM_PINNED_CHUNKS_NONE, those that end in _OFF) has that constant. Another is 0 where the
// setting means none, never, the device's granularity, or all that the device or node has.
// Otherwise a field, also host_mode and arena_quarantine, has the value in force; only page_size
// has the value set, even if the granularity of a device is larger. disk, record and snapshot are
// static strings, or NULL when there are none. `gpumem doctor` shows the same, and where each
// comes from.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
gpumem_status gpumem_settings_get(struct gpumem_context_options *out);

#ifdef __cplusplus
}
#endif

#endif

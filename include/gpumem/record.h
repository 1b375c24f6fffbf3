/* gpumem/record.h: recordings, snapshots, events.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_RECORD_H
#define GPUMEM_RECORD_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Recording, snapshots, events --------------------------------------------------------------
 *
 * A recording holds every allocation, free and slow step, for `gpumem view`, `gpumem replay` and
 * `gpumem record convert`; GPUMEM_RECORD=FILE records the whole process. A snapshot holds the
 * state of all memory at one moment, and the reason why a request failed. docs/recording.md
 * explains both; docs/spec/recording.md has the file's format.
 *
 *   gpumem_record_start("steps.gmrec", 16);            (with 16 frames of each stack)
 *   ...
 *   gpumem_record_stop(NULL, NULL);
 *
 * then `gpumem view steps.gmrec --out steps.html`. Recording costs a few tens of nanoseconds an
 * allocation and free, and some microseconds with stacks. While off it costs nothing, unless
 * GPUMEM_SNAPSHOT_ON=oom keeps the last events, which costs as much as a recording without stacks.
 */

// For gpumem_record_start: stacks as deep as GPUMEM_RECORD_STACKS says.
#define GPUMEM_RECORD_STACKS_DEFAULT UINT32_MAX

// Memory was handed out: address, bytes, stream, tag, arena.
#define GPUMEM_EVENT_MALLOC 1

// Memory was given back: address; other: 1 if a stream was named, and that stream.
#define GPUMEM_EVENT_FREE 2

// An allocation changed its size in place: address, bytes.
#define GPUMEM_EVENT_REALLOC 3

// A request failed for lack of memory: bytes, stream, tag, arena.
#define GPUMEM_EVENT_OUT_OF_MEMORY 4

// An arena was opened: arena.
#define GPUMEM_EVENT_ARENA_ENTER 6

// An arena has ended, and what was in it is free: arena.
#define GPUMEM_EVENT_ARENA_EXIT 7

// An allocation went to another arena: address, arena.
#define GPUMEM_EVENT_MOVE 8

// Free memory was given back to the device. In this kind and those below, other is the time it
// took in nanoseconds.
#define GPUMEM_EVENT_TRIM 9

// Evictable memory left the device: address or tag, bytes.
#define GPUMEM_EVENT_EVICT 10

// Evictable memory came back to the device: address or tag, bytes.
#define GPUMEM_EVENT_RESTORE 11

// A request was met with new physical memory, perhaps beside moved memory: address, new bytes.
#define GPUMEM_EVENT_GROWTH 15

// A request was met by moving physical memory, and none was added: address, bytes.
#define GPUMEM_EVENT_STITCH 16

// Which allocations gpumem_visit_allocations shows. Zero the whole and set the size: GPUMEM_INIT.
// A field that is 0 filters nothing.
typedef struct gpumem_visit_filter {
    // sizeof(gpumem_visit_filter).
    uint32_t size;
    // 1: only those on device; 0: on every device.
    uint32_t on_device;
    // Only those for which at least this many bytes were asked.
    uint64_t least_bytes;
    // Only those with this tag.
    uint64_t tag;
    // Only those of the arena with this number.
    uint64_t arena;
    // The device, if on_device is 1.
    int32_t device;
    // 1: with age and stack, from the recording under way; 0: without.
    uint32_t age_and_stack;
} gpumem_visit_filter;

// A live allocation, as gpumem_visit_allocations shows it.
typedef struct gpumem_allocation {
    // sizeof(gpumem_allocation) as the library has it; later versions may have more fields.
    uint32_t size;
    // The device it lives on.
    int32_t device;
    // Its first byte.
    void *base;
    // Bytes asked for.
    size_t requested;
    // Bytes usable from base.
    size_t usable;
    // The stream it was allocated on. A name only: the stream may be gone.
    gpumem_stream stream;
    // A number that is never reused in this process. While a stream has one heap, the larger of
    // two numbers is the younger allocation.
    uint64_t id;
    // The caller's tag.
    uint64_t tag;
    // The number of its arena, or 0: the number in recordings and dumps, not a gpumem_arena.
    uint64_t arena;
    // GPUMEM_MALLOC_* it was made with.
    uint32_t flags;
    // 0.
    uint32_t reserved;
    // Nanoseconds since it was made or resized, or since the recording began if that was later. 0
    // without gpumem_visit_filter.age_and_stack, and where the recording does not know the
    // allocation.
    uint64_t age_ns;
    // The stack of the request, a frame a line, the innermost first, valid until the visitor
    // returns. NULL without gpumem_visit_filter.age_and_stack, and where no stack was recorded.
    const char *stack;
} gpumem_allocation;

// Receives one allocation. Returns 0 to go on, anything else to end the visit.
typedef int (*gpumem_visitor)(const struct gpumem_allocation *allocation, void *user);

// What happened, for an event callback. docs/spec/recording.md has the numbers of the kinds and
// the meaning of the fields.
typedef struct gpumem_event {
    // sizeof(gpumem_event) as the library has it; later versions may have more fields.
    uint32_t size;
    // GPUMEM_EVENT_*.
    int32_t kind;
    // Nanoseconds of a clock of the library's own.
    uint64_t time;
    // An address, or a handle of physical memory.
    uint64_t address;
    // Bytes.
    uint64_t bytes;
    // What it means depends on the kind.
    uint64_t other;
    // A stream; 0 is the legacy default stream.
    uint64_t stream;
    // The caller's tag.
    uint64_t tag;
    // The arena's number, or 0.
    uint32_t arena;
    // The device's ordinal; 0 where it is about no single device.
    int32_t device;
} gpumem_event;

// Called with each event, after the call that caused it has released its locks. It must not
// unwind. It may call gpumem; such calls make no events.
typedef void (*gpumem_event_callback)(const struct gpumem_event *event, void *user);

// Writes the calling thread's stack into buf, one frame a line, innermost first, and returns its
// length in bytes. Text beyond cap is cut. Returns 0 to have gpumem record the native stack. For
// interpreters.
typedef size_t (*gpumem_stack_callback)(char *buf, size_t cap, void *user);

// Records every allocation to a file from now on, until gpumem_record_stop or the process's end.
//
// path is the file to create. If it exists, "." and the process's number are added to the name; if
// that exists too, ".2", ".3" and so on. stack_frames is the depth of the stacks recorded with
// each allocation: up to 256, 0 for none, or GPUMEM_RECORD_STACKS_DEFAULT. The file begins with
// the allocations that are live already.
// Errors: GPUMEM_ERROR_INVALID when path is NULL or empty, stack_frames is out of range, or a
// recording is under way; GPUMEM_ERROR_IO when the file cannot be created, or path is a directory.
gpumem_status gpumem_record_start(const char *path, uint32_t stack_frames);

// Ends the recording, and waits until it is written.
//
// events and lost may be NULL. They receive the number of events in the file and the number that
// were lost, with GPUMEM_ERROR_IO too.
// Errors: GPUMEM_ERROR_INVALID when no recording is under way; GPUMEM_ERROR_IO when it has ended
// but could not be written to its end, as on a full disk, was removed meanwhile, or its last
// events are not written after ten seconds.
gpumem_status gpumem_record_stop(uint64_t *events, uint64_t *lost);

// Writes a snapshot: the state of all memory now, as JSON, for `gpumem view`.
//
// path is a file to create or to replace. Other threads go on meanwhile: each heap is shown as it
// was at one moment.
// Errors: GPUMEM_ERROR_INVALID when path is NULL or empty, GPUMEM_ERROR_IO when it cannot be
// written.
gpumem_status gpumem_snapshot(const char *path);

// Calls a function with every live allocation, small ones too.
//
// filter may be NULL: all allocations. visitor runs on this thread and receives user, which is not
// kept. Heaps are visited one after the other, each as it was at one moment; other threads wait
// only while one is copied. The visitor may call gpumem. With gpumem_visit_filter.age_and_stack
// each allocation also has its age and its stack. That reads the recording so far, which takes
// about a second for four million events; other threads go on.
// Errors: GPUMEM_ERROR_INVALID when visitor is NULL, the filter's size impossible, on_device or
// age_and_stack neither 0 nor 1, or device one that does not exist or set without on_device; with
// age_and_stack also when nothing is recorded to a file.
gpumem_status gpumem_visit_allocations(const struct gpumem_visit_filter *filter, gpumem_visitor visitor, void *user);

// Calls a function with each event from now on, on the thread where it happens. NULL ends that.
//
// The callback receives user, which must be valid while the callback is set. Driver calls of the
// slow path are events too. A callback that is running on another thread may still be running, and
// use its user, when this returns.
gpumem_status gpumem_event_callback_set(gpumem_event_callback callback, void *user);

// Takes the stacks of recordings from a function. With NULL gpumem records the native stacks.
//
// The function receives user, which must be valid while the function is set. It runs on the thread
// that allocates, and must not allocate from gpumem. One that is running on another thread may
// still be running, and use its user, when this returns.
gpumem_status gpumem_stack_callback_set(gpumem_stack_callback callback, void *user);

#ifdef __cplusplus
}
#endif

#endif

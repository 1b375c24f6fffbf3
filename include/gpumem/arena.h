/* gpumem/arena.h: allocations that end together, and finding late uses.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_ARENA_H
#define GPUMEM_ARENA_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arenas ------------------------------------------------------------------------------------
 *
 * An arena holds what is allocated while it is entered. Its exit frees all of it except what you
 * keep, no matter who still holds a pointer. It is for programs that cannot say when each buffer
 * ends but know when all of them do: a step of a training loop, a request, a call into a runtime
 * whose garbage collector frees too late.
 *
 *   gpumem_arena step;
 *   gpumem_arena_enter(&step);
 *   ...                                                (allocate at will, free or not)
 *   void *keep[] = {weights, loss};
 *   gpumem_arena_exit(step, keep, 2, NULL);            (frees all else that was allocated since)
 *
 * Members    A thread can be attached to several arenas; the last one is its current arena.
 *            Everything that the thread allocates belongs to its current arena, whichever function
 *            allocates: gpumem_malloc and its relatives, gpumem_plan_materialise. In no arena are
 *            evictable memory, imported memory and what PyTorch's adapter allocates (torch.h).
 *            Other threads are not affected. gpumem_malloc_options can name another arena. A
 *            resized allocation stays in its arena. Memory allocated before an arena was entered
 *            is not in it.
 * Nesting    An arena entered while another is current is nested in that one and must be exited
 *            first. Allocations that an exit keeps move to the enclosing arena, and are freed with
 *            that one unless kept again. Kept from the outermost arena, they become ordinary
 *            allocations.
 * Frees      Any thread may free an allocation before its arena ends. Of all frees and the exit,
 *            exactly one frees the allocation; the others find it gone. gpumem_free after the exit
 *            is a double free or, worse, frees what lives at the address by then. Finalizers may
 *            run at any time, so they must call gpumem_free_id, with the number that
 *            gpumem_allocation_id_get gave while the allocation was live.
 * Streams    An exit frees each allocation in the order of the stream it was allocated on, as
 *            gpumem_free does, and waits for nothing. Use on other streams must be ordered before,
 *            or announced by gpumem_record_stream.
 * Threads    gpumem_arena_attach makes an arena current on a second thread, and
 *            gpumem_arena_detach undoes that. A thread that ends is detached. Only the last
 *            attached thread can exit an arena.
 * Handles    Exit and abort make the handle of an arena stale, and the handles of the arenas
 *            inside it. Every function here returns GPUMEM_ERROR_INVALID for a stale handle.
 *
 * Needs the pool: with GPUMEM_POOL=off there are no arenas (GPUMEM_ERROR_UNSUPPORTED).
 * docs/spec/arenas.md has every rule.
 */

// What an exit did. Bytes are as asked for.
typedef struct gpumem_arena_report {
    // sizeof(gpumem_arena_report), set by the caller; on return, the bytes filled.
    uint32_t size;
    // How many arenas enclosed it.
    uint32_t depth;
    // Allocations freed, a count.
    uint64_t freed;
    // Bytes of the freed allocations.
    uint64_t freed_bytes;
    // Allocations kept, a count.
    uint64_t kept;
    // Bytes of the kept allocations.
    uint64_t kept_bytes;
    // Entries of the keep list that are in no live allocation, a count.
    uint64_t unknown;
    // Entries of the keep list that repeat an allocation, a count.
    uint64_t duplicate;
    // Entries of the keep list that name an allocation of another arena or of none, a count. The
    // allocation stays where it is.
    uint64_t foreign;
    // How long the arena was open, nanoseconds.
    uint64_t nanoseconds;
} gpumem_arena_report;

// What has happened in an open arena so far. Bytes are as asked for. Other threads go on while it
// is read.
typedef struct gpumem_arena_stats {
    // sizeof(gpumem_arena_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // How many arenas enclose it.
    uint32_t depth;
    // Allocations in it now, a count.
    uint64_t live;
    // Bytes of the live allocations.
    uint64_t live_bytes;
    // The most that live_bytes was.
    uint64_t peak_bytes;
    // Allocations that came into it, made there or kept from a nested arena, a count.
    uint64_t joined;
    // Allocations that left it, freed, promoted or escaped, a count.
    uint64_t left;
    // Allocations that left it promoted or escaped, a count.
    uint64_t promoted;
    // Allocations that were freed before the exit, a count.
    uint64_t freed_early;
    // Threads attached to it, a count.
    uint64_t threads;
    // How long it has been open, nanoseconds.
    uint64_t nanoseconds;
    // A number that no other arena of this process has had or will have; error texts name it.
    uint64_t id;
    // Its name, terminated; empty when it has none.
    char name[64];
} gpumem_arena_stats;

// Opens an arena inside the calling thread's current one, if it has one, and makes it the current
// one.
//
// out receives the handle; end it with gpumem_arena_exit or gpumem_arena_abort.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, GPUMEM_ERROR_UNSUPPORTED with GPUMEM_POOL=off.
// GPUMEM_ERROR_INVALID also when the thread is ending and in the last round of its pthread keys'
// destructors.
gpumem_status gpumem_arena_enter(gpumem_arena *out);

// Like gpumem_arena_enter, with a name for statistics and the texts of errors.
//
// name is UTF-8 or NULL, which is no name; it is copied, and cut at 63 bytes.
// Errors: those of gpumem_arena_enter; GPUMEM_ERROR_INVALID also for a name that is not UTF-8.
gpumem_status gpumem_arena_enter_named(const char *name, gpumem_arena *out);

// Ends an arena and frees what is in it. Kept allocations move to the enclosing arena, or become
// ordinary memory where there is none.
//
// The arena must be the calling thread's current one, with no other thread attached to it and no
// open arena inside. keep has keep_len pointers, each to any byte of an allocation; it may be NULL
// when keep_len is 0. NULL entries are skipped. An entry that points to nothing live, repeats an
// allocation or names one outside this arena is not an error: it changes nothing, and the report
// counts it. An allocation that another thread frees at the same time is freed once. out_or_null
// receives the report; its size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID when the arena cannot be exited now, or by this thread; when keep
// is NULL and keep_len is not 0; or when the report's size is impossible. The arena is then open
// as before.
gpumem_status gpumem_arena_exit(gpumem_arena arena,
                                void *const *keep,
                                size_t keep_len,
                                struct gpumem_arena_report *out_or_null);

// Ends an arena and every open one inside it, keeping nothing.
//
// No other thread may be attached to any of them; the calling one need not be. out_or_null
// receives a report on all of them together; its size must be set (GPUMEM_INIT).
// Errors: GPUMEM_ERROR_INVALID while other threads are attached, or when the report's size is
// impossible. All of them are then open as before.
gpumem_status gpumem_arena_abort(gpumem_arena arena, struct gpumem_arena_report *out_or_null);

// Makes an open arena the calling thread's current one, on top of the present one.
//
// Until the thread detaches or ends, other threads can neither exit nor abort the arena.
// Errors: GPUMEM_ERROR_INVALID when the thread is attached to it already, or is ending and
// in the last round of its pthread keys' destructors.
gpumem_status gpumem_arena_attach(gpumem_arena arena);

// Detaches the calling thread from its current arena; the one before it is current again. The
// arena stays open.
//
// The thread that entered an arena can detach too, and so hand it over to a thread that attaches.
// Errors: GPUMEM_ERROR_INVALID when it is not the thread's current arena.
gpumem_status gpumem_arena_detach(gpumem_arena arena);

// Gets the calling thread's current arena, to which its allocations belong.
//
// out receives the handle, NULL when there is none.
// Errors: GPUMEM_ERROR_INVALID when out is NULL.
gpumem_status gpumem_arena_current_get(gpumem_arena *out);

// Gets the arena that a live allocation is in.
//
// ptr is any byte of it. out receives the handle, NULL when it is in none.
// Errors: GPUMEM_ERROR_INVALID when ptr or out is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_find(const void *ptr, gpumem_arena *out);

// Moves a live allocation into the enclosing arena now, or out of all arenas when there is none,
// as an exit does with what it keeps.
//
// ptr is any byte of it. Any thread may do this.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL or in no arena, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_promote(void *ptr);

// Takes a live allocation out of all arenas, and out of what gpumem_capture_abort frees: for a
// constant that one step makes and later steps use, and for owners that can only free by address.
//
// ptr is any byte of it. Nothing happens when it is in neither. Any thread may do this. A resize
// that moves it on a stream in a capture makes it that capture's again.
// Errors: GPUMEM_ERROR_INVALID when ptr is NULL, GPUMEM_ERROR_UNKNOWN_POINTER.
gpumem_status gpumem_arena_escape(void *ptr);

// What has happened in an open arena so far.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
// impossible.
gpumem_status gpumem_arena_stats_get(gpumem_arena arena, struct gpumem_arena_stats *out);

// Frees the allocation with this id, if it is still live: for finalizers, which may run after its
// arena has ended.
//
// ptr is the start of an allocation that gpumem made, live or not, or NULL, which does nothing. id
// is what gpumem_allocation_id_get gave for it. When that allocation is gone, even if another
// lives at its address now, nothing changes: the call returns GPUMEM_OK and
// gpumem_stats.late_frees counts it. Frees in the order of the stream it was allocated on, as
// gpumem_free does. It works for memory outside of arenas too.
// Errors: GPUMEM_ERROR_INVALID when id is 0, GPUMEM_ERROR_UNKNOWN_POINTER for an address that
// gpumem never gave; with GPUMEM_POOL=off such an address counts as one whose allocation is gone.
gpumem_status gpumem_free_id(void *ptr, uint64_t id);

// Like gpumem_free_id, but in the order of s, as gpumem_free_async frees.
//
// Errors: those of gpumem_free_id, and GPUMEM_ERROR_INVALID_STREAM; nothing is freed then.
gpumem_status gpumem_free_id_async(void *ptr, uint64_t id, gpumem_stream s);

/* ---- Finding late uses -------------------------------------------------------------------------
 *
 * An arena frees what was allocated in it, no matter who still holds a pointer.
 * GPUMEM_ARENA_DEBUG, or the field arena_debug of gpumem_context_options, turns on the search for
 * late uses:
 *
 *    check     Arenas remember what they free, and gpumem_check says whether a pointer points into
 *              that. A runtime calls it where its operations take their operands.
 *    abort     The first late use found ends the process by SIGABRT, after a line on stderr.
 *    poison    Freed memory is filled with 0xff, NaN in every floating-point format, and kept for
 *              a while (GPUMEM_ARENA_QUARANTINE). Late writes are found when the memory is handed
 *              out again, and by gpumem_arena_verify.
 *    unmap     Each allocation gets physical memory of its own, which is unmapped when the arena
 *              ends; its addresses are kept for a while. Any late use faults, a kernel's too.
 *
 * Combine them with commas, except poison with unmap. Each includes check. With poison or unmap,
 * the end of an arena waits for the device, which would break a capture on a stream that gpumem
 * has never been called with; it does not wait while a stream that gpumem knows is being captured.
 * When all are off, gpumem_check, gpumem_check_id and gpumem_arena_verify return GPUMEM_OK at the
 * cost of a branch, and gpumem_arena_describe returns GPUMEM_ERROR_UNSUPPORTED.
 */

// What has been found so far in this process, on all devices. Counts unless a field says bytes.
typedef struct gpumem_arena_debug_stats {
    // sizeof(gpumem_arena_debug_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // GPUMEM_ARENA_DEBUG_* in force.
    uint32_t mode;
    // Remembered allocations that arenas have freed. When there are very many, the oldest are
    // forgotten.
    uint64_t remembered;
    // Late uses that gpumem_check and gpumem_check_id have found.
    uint64_t stale_uses;
    // Poisoned allocations found overwritten.
    uint64_t stale_writes;
    // Allocations kept at present: their memory with "poison", their addresses with "unmap".
    uint64_t kept;
    // Size of what is kept, bytes.
    uint64_t kept_bytes;
    // Allocations that could not be filled, unmapped or checked in time: a stream was being
    // captured, a driver call failed, or with "poison" GPUMEM_ARENA_QUARANTINE had no room for
    // them.
    uint64_t unchecked;
} gpumem_arena_debug_stats;

// Says whether an arena has freed the memory at ptr.
//
// ptr is any address, also inside an allocation, or NULL, which is GPUMEM_OK. op and operand are
// for the text: which operation, and which of its operands ptr is; NULL is shown as "?". They are
// not kept.
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when ptr is in memory that the end of an arena has freed and
// that has not been handed out since: "use-after-arena-free: add lhs was reclaimed by arena_exit
// at depth 0 (arena 7 "step", allocation 123 of 4096 bytes); ...", where the outermost arena has
// depth 0. The text also goes to stderr (rate-limited; GPUMEM_LOG=0 turns it off), and with
// "abort" the process ends there. Always GPUMEM_OK without "check". Memory that was freed
// otherwise, or that has been handed out again, is not found: gpumem_check_id finds that.
gpumem_status gpumem_check(const void *ptr, const char *op, const char *operand);

// Says whether ptr is still in the allocation that it was made for.
//
// Like gpumem_check, but exact: id is the allocation's number, from gpumem_allocation_id_get, so a
// use is found also when memory of another allocation is at the address now, or when it was freed
// with no arena. Without "check" always GPUMEM_OK.
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when the live allocation that contains ptr has another
// number, or there is none.
gpumem_status gpumem_check_id(const void *ptr, uint64_t id, const char *op, const char *operand);

// Says what was at an address that an arena has freed, such as a faulting address that a tool
// reports.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits of a sentence like
// "0x7f0000001200 is 512 bytes into allocation 123 (4096 bytes, tag 5) of arena 7 "step",
// reclaimed by arena_exit at depth 0", always terminated. needed may be NULL; it receives the
// bytes that the whole text takes, its NUL included.
// Errors: GPUMEM_ERROR_UNKNOWN_POINTER when no arena is known to have freed what was there, or the
// address has been handed out since; GPUMEM_ERROR_UNSUPPORTED without "check";
// GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0.
gpumem_status gpumem_arena_describe(const void *addr, char *buf, size_t cap, size_t *needed);

// Checks now all the memory that "poison" keeps.
//
// Waits for the device, and reads up to GPUMEM_ARENA_QUARANTINE bytes of its memory. Each
// overwritten allocation is reported on stderr ("stale write after arena_exit: 16 bytes from
// offset 0 of allocation 123 (4096 bytes) of arena 7 "step", ..."), where the bytes run from the
// first changed one to the last, and is filled again. GPUMEM_OK without "poison".
// Errors: GPUMEM_ERROR_USE_AFTER_FREE when anything was written to; GPUMEM_ERROR_CAPTURING while a
// stream is being captured on which gpumem was called; GPUMEM_ERROR_DRIVER.
gpumem_status gpumem_arena_verify(void);

// Gets what has been found so far.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
// impossible.
gpumem_status gpumem_arena_debug_stats_get(struct gpumem_arena_debug_stats *out);

#ifdef __cplusplus
}
#endif

#endif

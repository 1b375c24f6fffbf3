/* gpumem/plan.h: layouts computed ahead of a run.
 * gpumem.h has the conventions that hold for every function here. */

#ifndef GPUMEM_PLAN_H
#define GPUMEM_PLAN_H

#include "core.h"
#include "alloc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Planning ----------------------------------------------------------------------------------
 *
 * A plan lays buffers out in an arena before anything runs. Given the size of each buffer and the
 * steps during which it is live, it finds an offset for each, so that buffers live at the same
 * step share no bytes and the arena is as small as possible. docs/spec/planner.md has the precise
 * rules.
 *
 *   gpumem_plan plan;
 *   gpumem_plan_buffer_options b;
 *   uint32_t id;
 *   uint64_t offset;
 *   gpumem_plan_create(NULL, &plan);
 *   GPUMEM_INIT(&b);
 *   b.bytes = 1 << 20, b.lower = 0, b.upper = 3;       (live at steps 0, 1 and 2)
 *   gpumem_plan_buffer_add(plan, &b, &id);
 *   ...
 *   gpumem_plan_solve(plan, NULL);
 *   gpumem_plan_offset_get(plan, id, NULL, &offset);
 *   gpumem_plan_destroy(plan);
 *
 * Planning needs no device and starts nothing, except for gpumem_plan_materialise, which allocates
 * the arena. A plan belongs to the process that made it. In a forked child every call on it,
 * gpumem_plan_destroy included, returns GPUMEM_ERROR_FORKED at once and does nothing, whatever the
 * parent was doing with it. The child can make plans of its own, even where gpumem had started
 * before the fork.
 *
 * Steps are positions in the execution order, counted from 0; a range of them is half-open,
 * [lower, upper). Ids count from 0 in the order of adding, in one sequence for buffers and the
 * values of a graph. Offsets, sizes and sums of them are at most 2^62 bytes.
 *
 * A gpumem_plan is a handle. Each of these functions returns GPUMEM_ERROR_INVALID for one that has
 * been destroyed or was never a plan. Calls on one plan from several threads take turns, so a
 * query waits for a solve in progress; gpumem_plan_cancel and gpumem_plan_destroy do not. A call
 * that changes a plan makes its layout stale: queries return GPUMEM_ERROR_INVALID until it is
 * solved again.
 */

// Kind of a buffer or value: made and used up within the run.
#define GPUMEM_PLAN_TEMPORARY 0

// Kind: given by the caller for each run.
#define GPUMEM_PLAN_INPUT 1

// Kind: read by the caller after each run.
#define GPUMEM_PLAN_OUTPUT 2

// Kind: a weight, which outlives the run.
#define GPUMEM_PLAN_PARAMETER 3

// Kind: never written.
#define GPUMEM_PLAN_CONSTANT 4

// All buffers and values of kind GPUMEM_PLAN_TEMPORARY. These sets are or-ed together.
#define GPUMEM_PLAN_TEMPORARIES 1

// All of kind GPUMEM_PLAN_INPUT.
#define GPUMEM_PLAN_INPUTS 2

// All of kind GPUMEM_PLAN_OUTPUT.
#define GPUMEM_PLAN_OUTPUTS 4

// All of kind GPUMEM_PLAN_PARAMETER.
#define GPUMEM_PLAN_PARAMETERS 8

// All of kind GPUMEM_PLAN_CONSTANT.
#define GPUMEM_PLAN_CONSTANTS 16

// A buffer may go wherever it fits.
#define GPUMEM_PLAN_ANYWHERE 0

// A buffer goes to its offset and nowhere else.
#define GPUMEM_PLAN_FIXED 1

// A buffer goes to its offset if that makes the arena no larger.
#define GPUMEM_PLAN_PREFERRED 2

// For a plan: no two buffers share bytes, at any step. It helps to find out whether a wrong result
// comes from sharing.
#define GPUMEM_PLAN_NO_REUSE 1

// For a buffer: it goes to the arena in its arena field. Without this flag it goes to the first
// arena that has room.
#define GPUMEM_PLAN_IN_ARENA 1

// The type that a gpumem_plan points to: opaque, never defined.
typedef struct gpumem_plan_st gpumem_plan_st;

// Settings of a plan, for gpumem_plan_create. A field that is 0 means its default.
typedef struct gpumem_plan_options {
    // sizeof(gpumem_plan_options).
    uint32_t size;
    // GPUMEM_PLAN_NO_REUSE or 0.
    uint32_t flags;
    // The most bytes of arena 0; 0 means as many as it takes.
    uint64_t capacity;
    // Every offset is a multiple of this many bytes, which need not be a power of two. Set it to
    // the size of the buffers' elements for offsets that can count elements. 0 means 1.
    uint64_t unit;
    // Alignment of what is added without one, bytes, a power of two up to 2^40. It does not apply
    // to views, which lie in their parents. 0 means 1; tensors on a GPU want 256.
    uint64_t alignment;
} gpumem_plan_options;

// A handle to a plan. It is opaque: compare it only with NULL and other handles.
typedef struct gpumem_plan_st *gpumem_plan;

// A half-open range of steps, [lower, upper).
typedef struct gpumem_plan_interval {
    // First step in it.
    uint64_t lower;
    // First step after it.
    uint64_t upper;
} gpumem_plan_interval;

// A buffer, for gpumem_plan_buffer_add, or a value, for gpumem_plan_value_add. A field that is 0
// means its default.
//
// While live, it occupies [offset, offset + bytes + guard) of its arena. A buffer of no bytes, or
// live at no step, occupies nothing, not even its guard. It still gets an aligned offset, which
// others may have too.
typedef struct gpumem_plan_buffer_options {
    // sizeof(gpumem_plan_buffer_options).
    uint32_t size;
    // GPUMEM_PLAN_IN_ARENA or 0.
    uint32_t flags;
    // What it is for: GPUMEM_PLAN_TEMPORARY and so on.
    int32_t kind;
    // Where it may go: GPUMEM_PLAN_ANYWHERE, _FIXED or _PREFERRED.
    int32_t place;
    // Its size in bytes, guard not included.
    uint64_t bytes;
    // First step at which it holds something. Must be 0 for a value.
    uint64_t lower;
    // First step after its last use. Must be 0 for a value.
    uint64_t upper;
    // Alignment of its offset, bytes, a power of two up to 2^40. 0 means the plan's alignment, or
    // none for a view.
    uint64_t alignment;
    // Bytes after it that nothing else may use while it is live.
    uint64_t guard;
    // Its offset in the arena, with GPUMEM_PLAN_FIXED and GPUMEM_PLAN_PREFERRED. Must be 0
    // otherwise.
    uint64_t offset;
    // The arena it goes to, with GPUMEM_PLAN_IN_ARENA. Must be 0 otherwise.
    uint32_t arena;
    // Must be 0.
    uint32_t reserved;
    // Ranges of steps inside its live range at which it holds nothing, so that others may use its
    // bytes. They are in order, do not overlap, and none is empty. Its contents do not survive
    // them. May be NULL when gap_count is 0. Not for a value.
    const struct gpumem_plan_interval *gaps;
    // How many gaps there are, a count.
    size_t gap_count;
    // Its name in reports, and for sharing with other plans: UTF-8, terminated, copied. May be
    // NULL.
    const char *name;
} gpumem_plan_buffer_options;

// Makes an empty plan with one arena, arena 0.
//
// opts may be NULL, which leaves every setting at its default; it is read and not kept. out
// receives the plan, which the caller owns until gpumem_plan_destroy. Needs no device.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or a setting is not allowed.
gpumem_status gpumem_plan_create(const struct gpumem_plan_options *opts, gpumem_plan *out);

// Destroys a plan. Memory that gpumem_plan_materialise allocated for it stays the caller's.
//
// plan may be NULL, which does nothing. Does not wait. A solve in progress on another thread is
// cancelled and returns GPUMEM_ERROR_INVALID there. Other calls in progress end as they would
// have.
// Errors: GPUMEM_ERROR_INVALID when it has been destroyed already or is no plan.
gpumem_status gpumem_plan_destroy(gpumem_plan plan);

// Adds a buffer whose live range is known.
//
// opts is read and not kept. out receives the buffer's id.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, or for a range that ends before it starts,
// an alignment that is not a power of two or is more than 2^40, an offset that is not aligned, an
// arena that does not exist, gaps out of order or out of range, an unknown kind, place or flag, a
// size beyond 2^62, a name that is not UTF-8. Nothing is added then. Solving finds out whether
// fixed buffers conflict.
gpumem_status gpumem_plan_buffer_add(gpumem_plan plan, const struct gpumem_plan_buffer_options *opts, uint32_t *out);

// Adds many temporaries at once: buffer i has bytes[i] bytes and is live in [lowers[i],
// uppers[i]).
//
// The arrays have count elements each and may be NULL when it is 0. They are read and not kept.
// first may be NULL; it receives the id of buffer 0, and the ids of the others follow it.
// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_buffer_add, naming the buffer's index; none is
// added then.
gpumem_status gpumem_plan_buffers_add(gpumem_plan plan,
                                      size_t count,
                                      const uint64_t *bytes,
                                      const uint64_t *lowers,
                                      const uint64_t *uppers,
                                      uint32_t *first);

// Adds an arena: a run of bytes of its own, such as another device's memory.
//
// capacity is the most bytes it may have; 0 means as many as it takes. name is for reports, UTF-8,
// copied, and may be NULL. out receives its number. Numbers are consecutive, and every plan has
// arena 0. A buffer that is bound to no arena goes to the first that has room.
// Errors: GPUMEM_ERROR_INVALID when out is NULL or name is not UTF-8.
gpumem_status gpumem_plan_arena_add(gpumem_plan plan, uint64_t capacity, const char *name, uint32_t *out);

// Sets the most bytes that an arena may have; 0 means as many as it takes.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such arena.
gpumem_status gpumem_plan_capacity_set(gpumem_plan plan, uint32_t arena, uint64_t bytes);

// Makes every offset a multiple of unit bytes, which need not be a power of two. 0 means 1.
//
// Errors: GPUMEM_ERROR_INVALID when it is more than 2^62.
gpumem_status gpumem_plan_unit_set(gpumem_plan plan, uint64_t unit);

// Sets whether buffers that are not live together may share bytes: 0 for no, anything else for
// yes, the default.
gpumem_status gpumem_plan_reuse_set(gpumem_plan plan, int32_t reuse);

// Keeps bytes [offset, offset + bytes) of an arena free of buffers during steps [lower, upper),
// for the caller's own use. UINT64_MAX for upper means to the end.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such arena, the range passes 2^62 bytes or the
// steps end before they start.
gpumem_status gpumem_plan_obstacle_add(gpumem_plan plan,
                                       uint32_t arena,
                                       uint64_t offset,
                                       uint64_t bytes,
                                       uint64_t lower,
                                       uint64_t upper);

// Sets the kinds that get no slot, because the caller provides their memory:
// GPUMEM_PLAN_TEMPORARIES and so on, or-ed together; 0 for none, the default. A view goes by the
// kind of its root: it has a slot if and only if the root has one. A shared weight is where it is
// shared all the same.
//
// Errors: GPUMEM_ERROR_INVALID for a bit that is no kind.
gpumem_status gpumem_plan_left_out_set(gpumem_plan plan, uint32_t kinds);

// Changes the size of a buffer or value. Solve again afterwards; GPUMEM_PLAN_EFFORT_FAST is made
// for that.
//
// Errors: GPUMEM_ERROR_INVALID when id does not exist, a view of it no longer fits, it no longer
// fits its own parent, or bytes passes 2^62 together with its guard or with its fixed or preferred
// offset. On failure the size stays as it was.
gpumem_status gpumem_plan_resize(gpumem_plan plan, uint32_t id, uint64_t bytes);

/* ---- Planning a graph --------------------------------------------------------------------------
 *
 * A plan can derive live ranges: tell it the values, and the operations that write and read them.
 * The operations run one per step, in the order of adding unless gpumem_plan_order_set says
 * otherwise. A value is live from the operation that writes it to the last that reads it; inputs,
 * parameters and constants are live throughout, outputs to the end. Values and buffers can be
 * mixed in one plan.
 */

// For running a model: inputs, parameters and constants are left out, because they are in memory
// already. Nothing is kept for a backward pass.
#define GPUMEM_PLAN_INFERENCE 1

// For a later backward pass: no kind is left out, and everything that outputs were computed from
// lives to the end. This can take many times the memory.
#define GPUMEM_PLAN_BACKWARD 2

// Adds a value: a tensor whose live range follows from the operations that write and read it.
//
// opts is read and not kept; its live range and gaps must be left zero. out receives the value's
// id.
// Errors: GPUMEM_ERROR_INVALID as for gpumem_plan_buffer_add.
gpumem_status gpumem_plan_value_add(gpumem_plan plan, const gpumem_plan_buffer_options *opts, uint32_t *out);

// Adds an operation that reads inputs and writes outputs. It runs after those added before it. A
// value that is both input and output is read and left with other contents.
//
// name is for reports, UTF-8, copied, and may be NULL. The arrays hold ids of values and may be
// NULL when their count is 0; they are read and not kept. out may be NULL; it receives the
// operation's number. Operations are numbered on their own, from 0.
// Errors: GPUMEM_ERROR_INVALID for an id that does not exist, an output that comes twice, and one
// that another operation produces already. Solving finds out whether each value is written before
// it is read.
gpumem_status gpumem_plan_op_add(gpumem_plan plan,
                                 const char *name,
                                 const uint32_t *inputs,
                                 size_t input_count,
                                 const uint32_t *outputs,
                                 size_t output_count,
                                 uint32_t *out);

// Sets the order in which the operations run: every operation added so far, once. Those added
// later run after them.
//
// ops has count operation numbers and may be NULL when it is 0; it is read and not kept.
// Errors: GPUMEM_ERROR_INVALID when an operation is missing, comes twice or does not exist.
// Solving finds out whether each value is written before it is read.
gpumem_status gpumem_plan_order_set(gpumem_plan plan, const uint32_t *ops, size_t count);

// Makes a value a view: child is the bytes of parent that start at offset, as many as child has.
// child gets no slot of its own. Reading it reads its parent, which may be a view itself.
//
// Errors: GPUMEM_ERROR_INVALID when a value does not exist, child is a view already or would be
// one of itself, was added with a place, a guard or a live range of its own, or passes the end of
// its parent. Solving finds out whether its kind, arena and alignment, where given, agree with the
// parent's.
gpumem_status gpumem_plan_view_set(gpumem_plan plan, uint32_t child, uint32_t parent, uint64_t offset);

// Allows an operation to write output over input, from its first byte on. The plan does so where
// input dies there and output fits: both then have the same offset.
//
// Errors: GPUMEM_ERROR_INVALID when op does not exist, does not read input or does not write
// output.
gpumem_status gpumem_plan_in_place_add(gpumem_plan plan, uint32_t op, uint32_t input, uint32_t output);

// Keeps a value live through a step, as an operation that reads it then would. A step after the
// last operation extends the plan.
//
// Errors: GPUMEM_ERROR_INVALID when the value does not exist, or step is UINT64_MAX or outside the
// range that was stated for the value or for what it is a view of.
gpumem_status gpumem_plan_extend(gpumem_plan plan, uint32_t value, uint64_t step);

// Keeps a value live to the end, for a reader outside the plan.
//
// Errors: GPUMEM_ERROR_INVALID when it does not exist.
gpumem_status gpumem_plan_keep(gpumem_plan plan, uint32_t value);

// Keeps everything that a value was computed from live to the end, but not the value itself. A
// value that is a view is kept too, because its bytes are those of its parent.
//
// Errors: GPUMEM_ERROR_INVALID when it does not exist.
gpumem_status gpumem_plan_keep_ancestors(gpumem_plan plan, uint32_t value);

// Sets whether everything that outputs were computed from lives to the end: 0 for no, the default,
// anything else for yes.
//
// Errors: GPUMEM_ERROR_INVALID when there is no such plan.
gpumem_status gpumem_plan_keep_ancestors_set(gpumem_plan plan, int32_t keep);

// Sets for a purpose, GPUMEM_PLAN_INFERENCE or GPUMEM_PLAN_BACKWARD, what gpumem_plan_left_out_set
// and gpumem_plan_keep_ancestors_set set.
//
// Errors: GPUMEM_ERROR_INVALID for another number.
gpumem_status gpumem_plan_preset_set(gpumem_plan plan, int32_t preset);

// States that another plan has the weight of this name at these bytes of an arena that both plans
// use. A parameter or constant of that name then gets this slot, and this plan puts nothing else
// there.
//
// name is UTF-8, copied. Stating the same again changes nothing. To share the weight at another
// place, take it back with gpumem_plan_unshare first.
// Errors: GPUMEM_ERROR_INVALID when name is NULL or not UTF-8, the weight is shared at another
// place or with another size already, there is no such arena, or the range passes 2^62 bytes.
// Solving finds out whether size, kind, alignment, arena and fixed offset of the value agree, and
// whether a guard covers another shared weight.
gpumem_status gpumem_plan_share(gpumem_plan plan, const char *name, uint32_t arena, uint64_t offset, uint64_t bytes);

// Like gpumem_plan_share, for every parameter and constant that lives throughout another solved
// plan and has a slot there, and for what that plan shares itself. Weights added with a range that
// does not cover the whole plan are left out. Those without a name, and the guards of all, are
// kept clear.
//
// from is not kept; later changes to it do not matter here. count may be NULL; it receives how
// many weights have a name. Calling this again with the same layout changes nothing. After from
// has been solved anew, call gpumem_plan_unshare first.
// Errors: those of gpumem_plan_share, and nothing is shared then; GPUMEM_ERROR_INVALID when from
// has no layout.
gpumem_status gpumem_plan_share_from(gpumem_plan plan, gpumem_plan from, size_t *count);

// Takes back what gpumem_plan_share or gpumem_plan_share_from stated about the weight of this
// name, its guard included. A value of that name then gets a slot of this plan's again. NULL takes
// everything back, weights without a name included.
//
// Errors: GPUMEM_ERROR_INVALID when no weight of that name is shared, or name is not UTF-8.
gpumem_status gpumem_plan_unshare(gpumem_plan plan, const char *name);

/* ---- Solving a plan ----------------------------------------------------------------------------
 *
 * Solving finds an offset for every buffer and value. The effort is counted in steps of the
 * search, so the same plan and options give the same layout on every machine, unless the clock or
 * gpumem_plan_cancel stops the search (the summary says so). Every layout is verified before it is
 * used.
 */

// Tries greedy orders, then searches for a limited number of steps. The default.
#define GPUMEM_PLAN_EFFORT_NORMAL 0

// Tries a few greedy orders and does not search. Takes under a millisecond for hundreds of
// buffers. For planning again at run time.
#define GPUMEM_PLAN_EFFORT_FAST 1

// Tries the order of the last layout first, if the plan still has as many slots. For planning
// again after gpumem_plan_resize. The layout then depends on the last one too.
#define GPUMEM_PLAN_FROM_LAST 1

// Status of a layout: no smaller arena is possible.
#define GPUMEM_PLAN_OPTIMAL 0

// Status of a layout: valid, and perhaps not the smallest.
#define GPUMEM_PLAN_FEASIBLE 1

// Status: no layout fits the capacities, which is proved.
#define GPUMEM_PLAN_INFEASIBLE 2

// Status: no layout that fits the capacities was found; there may be one.
#define GPUMEM_PLAN_OUT_OF_TIME 3

// Stands for the offset of a buffer or value that has no slot, in gpumem_plan_offsets_get and
// gpumem_plan_verify.
#define GPUMEM_PLAN_NO_OFFSET UINT64_MAX

// How to solve, for gpumem_plan_solve. A field that is 0 means its default.
typedef struct gpumem_plan_solve_options {
    // sizeof(gpumem_plan_solve_options).
    uint32_t size;
    // GPUMEM_PLAN_EFFORT_*.
    int32_t effort;
    // Time to search, milliseconds. With a limit, the normal effort searches until then, or until
    // it reaches the lower bound or a proof, and the layout may depend on the machine. 0 means the
    // steps of the effort however long they take, usually seconds at most. A quick answer is
    // made in any case, and the first greedy order for up to 4,096 buffers. Of several arenas,
    // each has its share of the time.
    uint64_t time_limit_ms;
    // Threads to search with, a count up to 256; 0 and 1 search on the caller's thread.
    uint32_t threads;
    // GPUMEM_PLAN_FROM_LAST or 0.
    uint32_t flags;
} gpumem_plan_solve_options;

// The result of solving, from gpumem_plan_stats_get. Bytes unless a field says otherwise.
typedef struct gpumem_plan_stats {
    // sizeof(gpumem_plan_stats), set by the caller; on return, the bytes filled.
    uint32_t size;
    // GPUMEM_PLAN_OPTIMAL, _FEASIBLE, _INFEASIBLE or _OUT_OF_TIME.
    int32_t status;
    // Size of all arenas together. With _INFEASIBLE and _OUT_OF_TIME, that of the smallest layout
    // found that ignores the capacities; 0 if none was found.
    uint64_t arena_bytes;
    // No layout can be smaller than this. It is at least the largest sum of what is live at one
    // step.
    uint64_t lower_bound;
    // What the buffers would take without sharing bytes.
    uint64_t total_unshared;
    // What sharing bytes saves: total_unshared - arena_bytes, but at least 0; 0 where arena_bytes
    // is 0.
    uint64_t saved;
    // How far arena_bytes is above lower_bound, as a fraction of lower_bound. 0 means optimal, if
    // there is a layout.
    double gap;
    // How long planning took, seconds.
    double seconds;
    // The first step at which most is live.
    uint64_t critical_step;
    // Steps, a count.
    uint64_t steps;
    // Slots laid out, a count: views and values written in place have none of their own.
    uint64_t slots;
    // Buffers and values, a count: ids are below it.
    uint64_t values;
    // Operations, a count.
    uint64_t operations;
    // Arenas, a count.
    uint32_t arenas;
    // 1 when the search was cancelled or stopped by the clock: another run may give another
    // layout.
    uint32_t interrupted;
} gpumem_plan_stats;

// Lays a plan out. The result of an earlier solve is replaced.
//
// opts may be NULL, which leaves every setting at its default; it is read and not kept. Other
// calls on the plan wait, except for gpumem_plan_cancel, which ends this one early with the best
// layout so far, and gpumem_plan_destroy.
// Errors: GPUMEM_ERROR_OUT_OF_MEMORY when no layout was found, within the capacities or with an
// arena for each fixed buffer that is bound to none; the text has the capacity, the lower bound
// and the smallest size found. gpumem_plan_stats_get has them too, and says whether it is proved
// that no layout fits. This replaces the result of an earlier solve, and there are no offsets.
// GPUMEM_ERROR_INVALID when a value is read before it is written, the graph contradicts itself,
// fixed buffers conflict with each other or an obstacle or are off the unit, sizes add up to more
// than 2^62 bytes, an option is not allowed, or the plan was destroyed meanwhile. The plan is then
// as it was.
gpumem_status gpumem_plan_solve(gpumem_plan plan, const struct gpumem_plan_solve_options *opts);

// Ends a solve in progress on another thread soon, with the best layout so far.
//
// Does nothing when none is in progress; does not wait. Errors: GPUMEM_ERROR_INVALID when there is
// no such plan.
gpumem_status gpumem_plan_cancel(gpumem_plan plan);

// Gets the result of solving, even where there is no layout.
//
// out->size must be set (GPUMEM_INIT). Errors: GPUMEM_ERROR_INVALID when out is NULL or its size
// impossible, or the plan has not been solved since it was changed.
gpumem_status gpumem_plan_stats_get(gpumem_plan plan, struct gpumem_plan_stats *out);

// Gets how many bytes an arena needs.
//
// bytes receives the size. lower_bound may be NULL; it receives a size that no layout of the
// arena's buffers can go below.
// Errors: GPUMEM_ERROR_INVALID when bytes is NULL, there is no such arena, or the plan has no
// layout.
gpumem_status gpumem_plan_arena_bytes_get(gpumem_plan plan, uint32_t arena, uint64_t *bytes, uint64_t *lower_bound);

// Gets the offset of a buffer or value. A view's lies inside its parent.
//
// arena may be NULL; it receives the arena. offset receives the offset in it.
// Errors: GPUMEM_ERROR_INVALID when offset is NULL, id does not exist or has no slot (its kind is
// left out, or nothing uses it), or the plan has no layout.
gpumem_status gpumem_plan_offset_get(gpumem_plan plan, uint32_t id, uint32_t *arena, uint64_t *offset);

// Gets the offsets of many buffers and values: ids first, first + 1 and so on.
//
// The arrays have room for cap elements. arenas may be NULL; it receives the arenas. offsets
// receives the offsets, GPUMEM_PLAN_NO_OFFSET for what has no slot; its arena is then 0. It may be
// NULL when cap is 0. count may be NULL; it receives how many there are from first on, so more
// than cap means that some were left out.
// Errors: GPUMEM_ERROR_INVALID when offsets is NULL and cap is not 0, first is more than the
// number of ids, or the plan has no layout.
gpumem_status gpumem_plan_offsets_get(gpumem_plan plan,
                                      uint32_t first,
                                      size_t cap,
                                      uint32_t *arenas,
                                      uint64_t *offsets,
                                      size_t *count);

/* ---- Looking at a plan -------------------------------------------------------------------------
 *
 * Reports are text for people and for scripts; their formats are in docs/spec/planner.md.
 */

// The layout as text: the sizes, and a line per slot in the order of offsets.
//
// buf may be NULL when cap is 0; cap is in bytes. Copies what fits, always terminated. needed may
// be NULL; it receives the bytes that the whole text takes, its NUL included, so more than cap
// means that it was cut.
// Errors: GPUMEM_ERROR_INVALID when buf is NULL and cap is not 0, or the plan has not been solved
// since it was changed.
gpumem_status gpumem_plan_report_get(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// The slots and their offsets as CSV, in the order of ids, with a header: what `gpumem plan` reads
// and writes. It reads offsets as fixed ones, so what it makes of a solved plan is the same
// layout.
//
// Like gpumem_plan_report_get.
gpumem_status gpumem_plan_csv_get(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// The layout as a picture, SVG: steps from left to right, offsets upwards, a rectangle for each
// live range.
//
// Like gpumem_plan_report_get.
gpumem_status gpumem_plan_svg_get(gpumem_plan plan, char *buf, size_t cap, size_t *needed);

// Gets the buffers and values whose slots are live at the critical step, in the order of ids. The
// critical step is the first at which most bytes are live, reserved ranges included. A slot is
// named by the value that owns it, not by views of it or values that took it over. Only smaller or
// shorter-lived ones among these can make the arena smaller.
//
// ids has room for cap entries and may be NULL when cap is 0; entries beyond are left out. count
// may be NULL; it receives how many there are. The step is in gpumem_plan_stats.
// Errors: GPUMEM_ERROR_INVALID when ids is NULL and cap is not 0, or the plan has not been solved
// since it was changed.
gpumem_status gpumem_plan_critical_get(gpumem_plan plan, uint32_t *ids, size_t cap, size_t *count);

// Gets the steps during which the slot of a buffer or value holds something, gaps ignored. A view
// has those of its parent. A value written in place also has those of what it was written over.
//
// lower receives the first such step, upper the first step after the last.
// Errors: GPUMEM_ERROR_INVALID when an output is NULL, id does not exist or has no slot, or the
// plan has not been solved since it was changed.
gpumem_status gpumem_plan_live_get(gpumem_plan plan, uint32_t id, uint64_t *lower, uint64_t *upper);

// Checks a layout of the caller's own for a plan: that what is live at the same step shares no
// bytes, and that alignments, the unit, fixed offsets, obstacles, guards, arenas and capacities
// are respected. The plan need not be solved, and is not changed.
//
// offsets[i] is where buffer or value i is; count is how many there are in the plan. arenas[i] is
// its arena; arenas may be NULL, which means arena 0 for all. GPUMEM_PLAN_NO_OFFSET stands for
// what has no slot. It may also stand for a view or a value written in place, whose offset follows
// from another's; an offset given for one must agree with that. The arrays are read and not kept.
// bytes may be NULL; it receives what all arenas together need.
// Errors: GPUMEM_ERROR_INVALID for the first fault found, which the text names; also when offsets
// is NULL and count is not 0, count is not the plan's, or the plan's graph contradicts itself. For
// an empty plan, NULL and 0 are a valid layout.
gpumem_status gpumem_plan_verify(gpumem_plan plan,
                                 const uint32_t *arenas,
                                 const uint64_t *offsets,
                                 size_t count,
                                 uint64_t *bytes);

/* ---- Giving a plan its memory ------------------------------------------------------------------
 *
 * An arena of a solved plan becomes one allocation of the pool, and its buffers pointers into it.
 * A plan can be given memory any number of times. It does not track that memory, which belongs to
 * the caller like any other.
 */

// Allocates an arena of a solved plan, in the order of a stream, on the stream's device.
//
// s is a live stream or NULL. out receives the memory, which the caller owns until gpumem_free or
// gpumem_free_async. An arena of no bytes gives a unique pointer all the same. The memory is
// aligned as its buffers ask, and to at least 256 bytes. Changing, solving or destroying the plan
// later does not touch it.
// Errors: GPUMEM_ERROR_INVALID when out is NULL, there is no such arena or the plan has no layout;
// those of gpumem_malloc_async; for an alignment that memory cannot have, GPUMEM_ERROR_INVALID
// beyond 1 GiB, and with GPUMEM_POOL=off GPUMEM_ERROR_UNSUPPORTED beyond what the driver gives.
gpumem_status gpumem_plan_materialise(gpumem_plan plan, uint32_t arena, gpumem_stream s, void **out);

// Like gpumem_plan_materialise, with the options of gpumem_malloc_with: flags, device, stream,
// tag.
//
// opts is read and not kept. Its bytes must be 0. Its alignment applies where it exceeds what the
// plan needs.
// Errors: those of gpumem_plan_materialise and of gpumem_malloc_with.
gpumem_status gpumem_plan_materialise_with(gpumem_plan plan,
                                           uint32_t arena,
                                           const gpumem_malloc_options *opts,
                                           void **out);

// Gets the address of a buffer or value in the memory of a solved plan.
//
// bases[a] is the address of arena a; base_count is how many arenas bases covers. For a plan with
// one arena, pass &base and 1. out receives bases[its arena] + its offset. Needs no device.
// Errors: GPUMEM_ERROR_INVALID when a pointer is NULL, the base of its arena included, base_count
// does not cover its arena, id does not exist or has no slot, or the plan has no layout.
gpumem_status gpumem_plan_pointer_get(gpumem_plan plan, uint32_t id, void *const *bases, size_t base_count, void **out);

#ifdef __cplusplus
}
#endif

#endif

/*
 * gpumem for Lean 4: what Gpumem/Raw.lean declares.
 *
 * Compiled against the lean.h of the machine that builds the package, and made for every Lean 4: no
 * function has a parameter for IO's world, which Lean passed last until 4.25 or so and no longer
 * does (a function that does not name it is called in the same way by both), and results are made
 * by lean.h's own helpers alone, because their layout changed with it.
 *
 * libgpumem is loaded when it is first needed, so that a package builds where there is none.
 *
 * Threads: every function may be called by any thread. Lean runs finalizers on whichever thread
 * drops the last reference, so they only free by (pointer, number): that never waits for the
 * device, and never frees what lives at the address by then.
 */
#include <lean/lean.h>

#include <gpumem.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */

#define FUNCTIONS(X)                                                                                                   \
    X(status_name) X(last_error) X(version_string) X(backend_name) X(malloc_async) X(free_async) X(free_id)            \
    X(free_id_async) X(allocation_id_get) X(check_id) X(memcpy_async) X(memset_async) X(record_stream)                 \
    X(stream_create) X(stream_destroy) X(stream_sync) X(device_get) X(device_set) X(device_limit_set)                  \
    X(arena_enter_named) X(arena_exit) X(arena_abort) X(arena_attach) X(arena_detach) X(arena_current_get)             \
    X(arena_find) X(arena_promote) X(arena_escape) X(arena_stats_get) X(capture_begin) X(capture_end)                  \
    X(capture_abort) X(capture_retain) X(capture_release) X(reserve) X(reservation_release)                            \
    X(reservation_attach_thread) X(reservation_detach_thread) X(reservation_info_get) X(stats_get) X(trim) X(validate)

#define DECLARE(name) __typeof__(&gpumem_##name) name;
/* The library's functions. Written once, before any of them is called. */
static struct {
    FUNCTIONS(DECLARE)
} api;

static pthread_once_t loading = PTHREAD_ONCE_INIT;
/* Why there is no library; empty when there is. */
static char missing[768];

static void load(void) {
    const char *path = getenv("GPUMEM_LIBRARY");
    const int named = path != NULL && path[0] != '\0';
    void *library = dlopen(named ? path : "libgpumem.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL && !named) library = dlopen("libgpumem.so", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror();
        if (named)
            snprintf(missing, sizeof missing, "libgpumem cannot be loaded from \"%.200s\", which GPUMEM_LIBRARY names: %.300s", path,
                     why != NULL ? why : "?");
        else
            snprintf(missing, sizeof missing,
                     "libgpumem is not on the loader's path: set GPUMEM_LIBRARY to the path of libgpumem.so (`make build` puts it "
                     "in target/release/). The loader says: %.300s",
                     why != NULL ? why : "?");
        return;
    }
#define RESOLVE(name)                                                                                                  \
    *(void **)&api.name = dlsym(library, "gpumem_" #name);                                                             \
    if (api.name == NULL && missing[0] == '\0')                                                                        \
        snprintf(missing, sizeof missing, "this libgpumem has no gpumem_" #name "; it is older than the Lean package");
    FUNCTIONS(RESOLVE)
}

/* Whether the library is there; loads it if need be. */
static int ready(void) {
    pthread_once(&loading, load);
    return missing[0] == '\0';
}

/* ---- results ---- */

static lean_obj_res user_error(const char *text) {
    return lean_io_result_mk_error(lean_mk_io_user_error(lean_mk_string(text)));
}

/* An error with the library's words: GPUMEM_ERROR_OUT_OF_MEMORY: what was asked, what there was,
 * what to do next. */
static lean_obj_res failure(gpumem_status status) {
    char text[1200];
    int n = snprintf(text, sizeof text, "%s: ", api.status_name(status));
    api.last_error(text + n, sizeof text - (size_t)n);
    return user_error(text);
}

static lean_obj_res unit(gpumem_status status) {
    return status == GPUMEM_OK ? lean_io_result_mk_ok(lean_box(0)) : failure(status);
}

static lean_obj_res u64(uint64_t value) { return lean_io_result_mk_ok(lean_box_uint64(value)); }

/* An Array UInt64: how structures go to Lean, which does not promise how it lays out its own. */
static lean_obj_res numbers(const uint64_t *values, size_t count) {
    lean_object *array = lean_mk_empty_array();
    size_t i;
    for (i = 0; i < count; i++) array = lean_array_push(array, lean_box_uint64(values[i]));
    return array;
}

#define NEED_LIBRARY                                                                                                   \
    if (!ready()) return user_error(missing)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static gpumem_stream stream_of(uint64_t handle) { return (gpumem_stream)(uintptr_t)handle; }

/* Raw.ownStream: the buffer's own stream, where an operation takes one. */
#define OWN_STREAM UINT64_MAX

/* ---- buffers ---- */

/* What a Buffer's external object points to. Nothing changes after it was made, but `released`. */
typedef struct {
    void *ptr;
    uint64_t id;
    size_t bytes;
    gpumem_stream stream;
    /* Of a default stream, as another device may be current when it is next used; else -1. */
    int device;
    /* 1 from the first release on: spares the finalizer a call that would be counted as late.
     * Atomic, as objects are shared. */
    int released;
} buffer;

static lean_external_class *buffer_class;

/* On any thread, at any time. Does not wait, cannot fail in a way that matters: what is gone is
 * gone. */
static void finalize_buffer(void *what) {
    buffer *b = (buffer *)what;
    if (!__atomic_exchange_n(&b->released, 1, __ATOMIC_RELAXED)) api.free_id(b->ptr, b->id);
    free(b);
}

/* A buffer holds no Lean object. */
static void no_children(void *what, b_lean_obj_arg f) {
    (void)what;
    (void)f;
}

/* Once, from an `initialize` block: registering is not safe from several threads. */
LEAN_EXPORT lean_obj_res gpumem_lean_initialize(void) {
    if (buffer_class == NULL) buffer_class = lean_register_external_class(finalize_buffer, no_children);
    return lean_io_result_mk_ok(lean_box(0));
}

static buffer *buffer_of(b_lean_obj_arg o) { return (buffer *)lean_get_external_data((lean_object *)o); }

static int is_live(const buffer *b) {
    uint64_t id = 0;
    if (__atomic_load_n(&b->released, __ATOMIC_RELAXED)) return 0;
    return api.allocation_id_get(b->ptr, &id) == GPUMEM_OK && id == b->id;
}

/* The stream that an operation runs on. */
typedef struct {
    gpumem_stream stream;
    /* Of a default stream, whose handle is the same on all devices; else -1. */
    int device;
    /* The device to make current again; -1 where it was current all along. */
    int back;
} place;

/* Makes a stream's handle mean that stream: a default stream's device is the current one until
 * `leave`, which follows also after an error. */
static gpumem_status go(const buffer *b, uint64_t stream, place *p) {
    gpumem_status status;
    int now = 0;
    p->stream = stream == OWN_STREAM ? b->stream : stream_of(stream);
    p->device = p->back = -1;
    if ((uintptr_t)p->stream > (uintptr_t)GPUMEM_STREAM_PER_THREAD) return GPUMEM_OK;
    status = api.device_get(&now);
    if (status != GPUMEM_OK) return status;
    p->device = stream == OWN_STREAM ? b->device : now;
    if (p->device == now) return GPUMEM_OK;
    status = api.device_set(p->device);
    if (status == GPUMEM_OK) p->back = now;
    return status;
}

static gpumem_status leave(const place *p, gpumem_status status) {
    const gpumem_status left = p->back < 0 ? GPUMEM_OK : api.device_set(p->back);
    return status == GPUMEM_OK ? left : status;
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_alloc(size_t bytes, uint64_t stream) {
    gpumem_status status;
    place p;
    buffer *b;
    NEED_LIBRARY;
    if (buffer_class == NULL) return user_error("Gpumem is not initialised: import Gpumem.Raw, which does it");
    b = (buffer *)calloc(1, sizeof *b);
    if (b == NULL) return user_error("the host is out of memory");
    status = go(b, stream, &p);
    b->bytes = bytes;
    b->stream = p.stream;
    b->device = p.device;
    if (status == GPUMEM_OK) status = api.malloc_async(bytes, b->stream, &b->ptr);
    if (status != GPUMEM_OK) {
        free(b);
        return failure(status);
    }
    status = api.allocation_id_get(b->ptr, &b->id);
    if (status != GPUMEM_OK) {
        lean_obj_res result = failure(status);
        api.free_async(b->ptr, b->stream);
        free(b);
        return result;
    }
    return lean_io_result_mk_ok(lean_alloc_external(buffer_class, b));
}

/* After the call that frees. Where it was refused nothing was freed, and the finalizer will. */
static lean_obj_res released(buffer *b, gpumem_status status) {
    if (status != GPUMEM_OK) __atomic_store_n(&b->released, 0, __ATOMIC_RELAXED);
    return unit(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_release(b_lean_obj_arg o) {
    buffer *b = buffer_of(o);
    NEED_LIBRARY;
    if (__atomic_exchange_n(&b->released, 1, __ATOMIC_RELAXED)) return unit(GPUMEM_OK);
    return released(b, api.free_id(b->ptr, b->id));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_release_on(b_lean_obj_arg o, uint64_t stream) {
    buffer *b = buffer_of(o);
    NEED_LIBRARY;
    if (__atomic_exchange_n(&b->released, 1, __ATOMIC_RELAXED)) return unit(GPUMEM_OK);
    return released(b, api.free_id_async(b->ptr, b->id, stream_of(stream)));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_is_live(b_lean_obj_arg o) {
    NEED_LIBRARY;
    return lean_io_result_mk_ok(lean_box((size_t)is_live(buffer_of(o))));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_addr(b_lean_obj_arg o) { return u64((uint64_t)(uintptr_t)buffer_of(o)->ptr); }
LEAN_EXPORT lean_obj_res gpumem_lean_buffer_id(b_lean_obj_arg o) { return u64(buffer_of(o)->id); }
LEAN_EXPORT lean_obj_res gpumem_lean_buffer_bytes(b_lean_obj_arg o) { return lean_io_result_mk_ok(lean_box_usize(buffer_of(o)->bytes)); }

/* NULL when a buffer may be used, else the error. The detector speaks first: it can name the
 * arena. */
static lean_object *unusable(const buffer *b, const char *op, const char *operand) {
    char text[512];
    gpumem_status status = api.check_id(b->ptr, b->id, op, operand);
    if (status != GPUMEM_OK) return failure(status);
    if (is_live(b)) return NULL;
    snprintf(text, sizeof text,
             "GPUMEM_ERROR_USE_AFTER_FREE: %.100s %.100s is no longer allocated: it was released, or the arena of its allocation has "
             "ended without keeping it (GPUMEM_ARENA_DEBUG=check names the arena)",
             op, operand);
    return user_error(text);
}

/* As above, also when the range is not inside of the buffer. */
static lean_object *unusable_range(const buffer *b, size_t offset, size_t bytes, const char *op, const char *operand) {
    char text[256];
    if (offset <= b->bytes && bytes <= b->bytes - offset) return unusable(b, op, operand);
    snprintf(text, sizeof text, "GPUMEM_ERROR_INVALID: %s: %zu bytes from offset %zu of %s, which has %zu", op, bytes, offset, operand,
             b->bytes);
    return user_error(text);
}

/* Before work on a buffer is submitted: were it announced after and that refused, the work would
 * be queued all the same. Sets *wait where nothing can be announced (GPUMEM_POOL=off): then the
 * use has to be over before the buffer may be freed. */
static gpumem_status announce(const buffer *b, const place *p, int *wait) {
    gpumem_status status;
    /* Which stream the thread's own is depends on the thread. */
    if (p->stream == b->stream && p->device == b->device && p->stream != GPUMEM_STREAM_PER_THREAD) return GPUMEM_OK;
    status = api.record_stream(b->ptr, p->stream);
    if (status != GPUMEM_ERROR_UNSUPPORTED) return status;
    *wait = 1;
    return GPUMEM_OK;
}

static gpumem_status wait_if(int wait, gpumem_status submitted, gpumem_stream s) {
    return wait && submitted == GPUMEM_OK ? api.stream_sync(s) : submitted;
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_check(b_lean_obj_arg o, b_lean_obj_arg op, b_lean_obj_arg operand) {
    lean_object *error;
    NEED_LIBRARY;
    error = unusable(buffer_of(o), lean_string_cstr(op), lean_string_cstr(operand));
    return error != NULL ? error : unit(GPUMEM_OK);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_fill(b_lean_obj_arg o, uint8_t byte, size_t offset, size_t bytes, uint64_t stream) {
    buffer *b = buffer_of(o);
    place p;
    gpumem_status status;
    lean_object *error;
    int wait = 0;
    NEED_LIBRARY;
    error = unusable_range(b, offset, bytes, "fill", "buffer");
    if (error != NULL) return error;
    status = go(b, stream, &p);
    if (status == GPUMEM_OK) status = announce(b, &p, &wait);
    if (status == GPUMEM_OK) status = api.memset_async((char *)b->ptr + offset, byte, bytes, p.stream);
    return unit(leave(&p, wait_if(wait, status, p.stream)));
}

/* Four scalars and two objects: the sixth and later arguments of a call may be in memory, in the
 * same place with and without a world behind them. */
LEAN_EXPORT lean_obj_res gpumem_lean_buffer_copy(b_lean_obj_arg to, b_lean_obj_arg from, size_t to_offset, size_t from_offset,
                                                 size_t bytes, uint64_t stream) {
    buffer *dst = buffer_of(to), *src = buffer_of(from);
    place p;
    gpumem_status status;
    lean_object *error;
    int wait = 0;
    NEED_LIBRARY;
    error = unusable_range(dst, to_offset, bytes, "copy", "destination");
    if (error == NULL) error = unusable_range(src, from_offset, bytes, "copy", "source");
    if (error != NULL) return error;
    /* The buffer's own stream is the destination's. */
    status = go(dst, stream, &p);
    if (status == GPUMEM_OK) status = announce(dst, &p, &wait);
    if (status == GPUMEM_OK) status = announce(src, &p, &wait);
    if (status == GPUMEM_OK) status = api.memcpy_async((char *)dst->ptr + to_offset, (char *)src->ptr + from_offset, bytes, p.stream);
    return unit(leave(&p, wait_if(wait, status, p.stream)));
}

/* A copy that is over when it returns: Lean may move or free the array after. So is its use of
 * the buffer: there is nothing to announce. */
static gpumem_status copy_and_wait(const buffer *b, void *dst, const void *src, size_t bytes, uint64_t stream) {
    place p;
    gpumem_status status;
    if (bytes == 0) return GPUMEM_OK;
    status = go(b, stream, &p);
    if (status == GPUMEM_OK) status = api.memcpy_async(dst, src, bytes, p.stream);
    if (status == GPUMEM_OK) status = api.stream_sync(p.stream);
    return leave(&p, status);
}

static lean_obj_res upload(b_lean_obj_arg o, const void *data, size_t bytes, size_t offset, uint64_t stream) {
    buffer *b = buffer_of(o);
    lean_object *error;
    NEED_LIBRARY;
    error = unusable_range(b, offset, bytes, "upload", "buffer");
    if (error != NULL) return error;
    return unit(copy_and_wait(b, (char *)b->ptr + offset, data, bytes, stream));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_upload(b_lean_obj_arg o, b_lean_obj_arg data, size_t offset, uint64_t stream) {
    return upload(o, lean_sarray_cptr((lean_object *)data), lean_sarray_size(data), offset, stream);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_upload_floats(b_lean_obj_arg o, b_lean_obj_arg data, size_t offset, uint64_t stream) {
    return upload(o, lean_float_array_cptr((lean_object *)data), lean_sarray_size(data) * sizeof(double), offset, stream);
}

/* `count` elements of `width` bytes, as a scalar array of them. */
static lean_obj_res download(b_lean_obj_arg o, unsigned width, size_t offset, size_t count, uint64_t stream) {
    buffer *b = buffer_of(o);
    gpumem_status status;
    lean_object *error, *array;
    NEED_LIBRARY;
    if (count > SIZE_MAX / width) count = SIZE_MAX / width;
    error = unusable_range(b, offset, count * width, "download", "buffer");
    if (error != NULL) return error;
    array = lean_alloc_sarray(width, count, count);
    status = copy_and_wait(b, lean_sarray_cptr(array), (char *)b->ptr + offset, count * width, stream);
    if (status == GPUMEM_OK) return lean_io_result_mk_ok(array);
    lean_dec(array);
    return failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_download(b_lean_obj_arg o, size_t offset, size_t count, uint64_t stream) {
    return download(o, 1, offset, count, stream);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_download_floats(b_lean_obj_arg o, size_t offset, size_t count, uint64_t stream) {
    return download(o, sizeof(double), offset, count, stream);
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_record(b_lean_obj_arg o, uint64_t stream) {
    buffer *b = buffer_of(o);
    lean_object *error;
    NEED_LIBRARY;
    error = unusable(b, "recordStream", "buffer");
    return error != NULL ? error : unit(api.record_stream(b->ptr, stream_of(stream)));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_escape(b_lean_obj_arg o) {
    lean_object *error;
    NEED_LIBRARY;
    error = unusable(buffer_of(o), "escape", "buffer");
    return error != NULL ? error : unit(api.arena_escape(buffer_of(o)->ptr));
}

LEAN_EXPORT lean_obj_res gpumem_lean_buffer_promote(b_lean_obj_arg o) {
    lean_object *error;
    NEED_LIBRARY;
    error = unusable(buffer_of(o), "promote", "buffer");
    return error != NULL ? error : unit(api.arena_promote(buffer_of(o)->ptr));
}

/* The arena a buffer is in; 0 when in none. */
LEAN_EXPORT lean_obj_res gpumem_lean_buffer_arena(b_lean_obj_arg o) {
    gpumem_arena arena = NULL;
    lean_object *error;
    gpumem_status status;
    NEED_LIBRARY;
    error = unusable(buffer_of(o), "arena", "buffer");
    if (error != NULL) return error;
    status = api.arena_find(buffer_of(o)->ptr, &arena);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)arena) : failure(status);
}

/* Frees an address with no regard to objects, for tests of what is refused. */
LEAN_EXPORT lean_obj_res gpumem_lean_free_address(uint64_t address) {
    NEED_LIBRARY;
    return unit(api.free_async((void *)(uintptr_t)address, NULL));
}

/* ---- streams ---- */

LEAN_EXPORT lean_obj_res gpumem_lean_stream_create(void) {
    gpumem_stream s = NULL;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.stream_create(&s);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)s) : failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_stream_destroy(uint64_t stream) {
    NEED_LIBRARY;
    return unit(api.stream_destroy(stream_of(stream)));
}

LEAN_EXPORT lean_obj_res gpumem_lean_stream_sync(uint64_t stream) {
    NEED_LIBRARY;
    return unit(api.stream_sync(stream_of(stream)));
}

/* ---- arenas ---- */

static gpumem_arena arena_of(uint64_t handle) { return (gpumem_arena)(uintptr_t)handle; }

LEAN_EXPORT lean_obj_res gpumem_lean_arena_enter(b_lean_obj_arg name) {
    const char *text = lean_string_cstr(name);
    gpumem_arena arena = NULL;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.arena_enter_named(text[0] != '\0' ? text : NULL, &arena);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)arena) : failure(status);
}

static lean_obj_res report_of(const gpumem_arena_report *r) {
    const uint64_t values[] = {r->depth,      r->freed,   r->freed_bytes, r->kept,       r->kept_bytes,
                               r->unknown,    r->duplicate, r->foreign,   r->nanoseconds};
    return lean_io_result_mk_ok(numbers(values, COUNT(values)));
}

/* `keep` is an Array Buffer, `addresses` an Array UInt64 of addresses inside of buffers. */
LEAN_EXPORT lean_obj_res gpumem_lean_arena_exit(uint64_t arena, b_lean_obj_arg keep, b_lean_obj_arg addresses) {
    const size_t buffers = lean_array_size(keep), more = lean_array_size(addresses);
    gpumem_arena_report report;
    gpumem_status status;
    void **list;
    size_t i;
    NEED_LIBRARY;
    list = (void **)calloc(buffers + more + 1, sizeof *list);
    if (list == NULL) return user_error("the host is out of memory");
    for (i = 0; i < buffers; i++) {
        /* A buffer that is gone keeps nothing: its address may be another's by now. */
        const buffer *b = buffer_of(lean_array_get_core(keep, i));
        list[i] = is_live(b) ? b->ptr : NULL;
    }
    for (i = 0; i < more; i++) list[buffers + i] = (void *)(uintptr_t)lean_unbox_uint64(lean_array_get_core(addresses, i));
    GPUMEM_INIT(&report);
    status = api.arena_exit(arena_of(arena), list, buffers + more, &report);
    free(list);
    return status == GPUMEM_OK ? report_of(&report) : failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_abort(uint64_t arena) {
    gpumem_arena_report report;
    gpumem_status status;
    NEED_LIBRARY;
    GPUMEM_INIT(&report);
    status = api.arena_abort(arena_of(arena), &report);
    return status == GPUMEM_OK ? report_of(&report) : failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_attach(uint64_t arena) {
    NEED_LIBRARY;
    return unit(api.arena_attach(arena_of(arena)));
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_detach(uint64_t arena) {
    NEED_LIBRARY;
    return unit(api.arena_detach(arena_of(arena)));
}

/* Detaches the calling thread from its arenas down to `before`, which was the current one, or 0.
 * After an error, which matters more than one here. */
LEAN_EXPORT lean_obj_res gpumem_lean_arena_leave(uint64_t before) {
    gpumem_arena now = NULL;
    NEED_LIBRARY;
    while (api.arena_current_get(&now) == GPUMEM_OK && now != NULL && now != arena_of(before))
        if (api.arena_detach(now) != GPUMEM_OK) break;
    return unit(GPUMEM_OK);
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_current(void) {
    gpumem_arena arena = NULL;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.arena_current_get(&arena);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)arena) : failure(status);
}

static gpumem_status arena_stats(uint64_t arena, gpumem_arena_stats *stats) {
    GPUMEM_INIT(stats);
    return api.arena_stats_get(arena_of(arena), stats);
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_stats(uint64_t arena) {
    gpumem_arena_stats s;
    gpumem_status status;
    NEED_LIBRARY;
    status = arena_stats(arena, &s);
    if (status != GPUMEM_OK) return failure(status);
    {
        const uint64_t values[] = {s.depth, s.live,     s.live_bytes,  s.peak_bytes, s.joined,     s.left,
                                   s.promoted, s.freed_early, s.threads,  s.nanoseconds, s.id};
        return lean_io_result_mk_ok(numbers(values, COUNT(values)));
    }
}

LEAN_EXPORT lean_obj_res gpumem_lean_arena_name(uint64_t arena) {
    gpumem_arena_stats s;
    gpumem_status status;
    NEED_LIBRARY;
    status = arena_stats(arena, &s);
    return status == GPUMEM_OK ? lean_io_result_mk_ok(lean_mk_string(s.name)) : failure(status);
}

/* ---- captures ---- */

static gpumem_capture capture_of(uint64_t handle) { return (gpumem_capture)(uintptr_t)handle; }

LEAN_EXPORT lean_obj_res gpumem_lean_capture_begin(uint64_t stream) {
    gpumem_capture capture = NULL;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.capture_begin(stream_of(stream), NULL, &capture);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)capture) : failure(status);
}

#define OF_CAPTURE(verb)                                                                                               \
    LEAN_EXPORT lean_obj_res gpumem_lean_capture_##verb(uint64_t capture) {                                            \
        NEED_LIBRARY;                                                                                                  \
        return unit(api.capture_##verb(capture_of(capture)));                                                          \
    }
OF_CAPTURE(end)
OF_CAPTURE(abort)
OF_CAPTURE(retain)
OF_CAPTURE(release)

/* ---- reservations ---- */

static gpumem_reservation reservation_of(uint64_t handle) { return (gpumem_reservation)(uintptr_t)handle; }

LEAN_EXPORT lean_obj_res gpumem_lean_reserve(uint64_t bytes, uint64_t timeout_ms) {
    gpumem_reserve_options want;
    gpumem_reservation r = NULL;
    gpumem_status status;
    NEED_LIBRARY;
    GPUMEM_INIT(&want);
    want.bytes = bytes;
    want.timeout_ms = timeout_ms;
    status = api.reserve(&want, &r);
    return status == GPUMEM_OK ? u64((uint64_t)(uintptr_t)r) : failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_reservation_release(uint64_t r) {
    uint64_t drawn = 0;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.reservation_release(reservation_of(r), &drawn);
    return status == GPUMEM_OK ? u64(drawn) : failure(status);
}

/* Also where it is released already. */
LEAN_EXPORT lean_obj_res gpumem_lean_reservation_end(uint64_t r) {
    gpumem_status status;
    NEED_LIBRARY;
    status = api.reservation_release(reservation_of(r), NULL);
    return unit(status == GPUMEM_ERROR_INVALID ? GPUMEM_OK : status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_reservation_attach(uint64_t r) {
    NEED_LIBRARY;
    return unit(api.reservation_attach_thread(reservation_of(r)));
}

/* Takes the reservation off the calling thread. A release has done that already. */
LEAN_EXPORT lean_obj_res gpumem_lean_reservation_detach(uint64_t r) {
    gpumem_reservation_info info;
    gpumem_status status;
    NEED_LIBRARY;
    GPUMEM_INIT(&info);
    status = api.reservation_info_get(reservation_of(r), &info);
    if (status == GPUMEM_ERROR_INVALID) return unit(GPUMEM_OK);
    return unit(status == GPUMEM_OK ? api.reservation_detach_thread(reservation_of(r)) : status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_reservation_info(uint64_t r) {
    gpumem_reservation_info info;
    gpumem_status status;
    NEED_LIBRARY;
    GPUMEM_INIT(&info);
    status = api.reservation_info_get(reservation_of(r), &info);
    if (status != GPUMEM_OK) return failure(status);
    {
        const uint64_t values[] = {info.number, info.promised, info.drawn, info.used, info.peak};
        return lean_io_result_mk_ok(numbers(values, COUNT(values)));
    }
}

/* ---- looking inside ---- */

LEAN_EXPORT lean_obj_res gpumem_lean_stats(uint32_t device) {
    gpumem_stats s;
    gpumem_status status;
    NEED_LIBRARY;
    GPUMEM_INIT(&s);
    status = api.stats_get((int)device, &s);
    if (status != GPUMEM_OK) return failure(status);
    {
        const uint64_t values[] = {s.reserved,   s.mapped,       s.peak_mapped,  s.requested,        s.live,       s.peak_live,
                                   s.free,       s.waiting,      s.largest_free, s.allocations,      s.mallocs,    s.frees,
                                   s.extents,    s.moved,        s.stitches,     s.growths,          s.double_frees,
                                   s.unknown_pointers, s.late_frees, s.out_of_memory};
        return lean_io_result_mk_ok(numbers(values, COUNT(values)));
    }
}

LEAN_EXPORT lean_obj_res gpumem_lean_device(void) {
    int device = 0;
    gpumem_status status;
    NEED_LIBRARY;
    status = api.device_get(&device);
    return status == GPUMEM_OK ? lean_io_result_mk_ok(lean_box_uint32((uint32_t)device)) : failure(status);
}

LEAN_EXPORT lean_obj_res gpumem_lean_device_set(uint32_t device) {
    NEED_LIBRARY;
    return unit(api.device_set((int)device));
}

LEAN_EXPORT lean_obj_res gpumem_lean_limit(uint32_t device, size_t bytes) {
    NEED_LIBRARY;
    return unit(api.device_limit_set((int)device, bytes));
}

LEAN_EXPORT lean_obj_res gpumem_lean_trim(size_t keep_bytes) {
    NEED_LIBRARY;
    return unit(api.trim(keep_bytes));
}

LEAN_EXPORT lean_obj_res gpumem_lean_validate(void) {
    NEED_LIBRARY;
    return unit(api.validate());
}

LEAN_EXPORT lean_obj_res gpumem_lean_version(void) {
    NEED_LIBRARY;
    return lean_io_result_mk_ok(lean_mk_string(api.version_string()));
}

LEAN_EXPORT lean_obj_res gpumem_lean_backend(void) {
    NEED_LIBRARY;
    return lean_io_result_mk_ok(lean_mk_string(api.backend_name()));
}

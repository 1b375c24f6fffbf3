"""The C ABI of libgpumem as ctypes sees it. Written by declare.py from include/gpumem/*.h; do not edit."""

from ctypes import (Structure, c_char, c_char_p, c_double, c_int, c_int32, c_size_t, c_ssize_t,
                    c_uint32, c_uint64, c_void_p)

ARENA_DEBUG_ABORT = 4
ARENA_DEBUG_CHECK = 2
ARENA_DEBUG_OFF = 1
ARENA_DEBUG_POISON = 8
ARENA_DEBUG_UNMAP = 16
BACKEND_AUTO = 1
BACKEND_CUDA = 2
BACKEND_HOST = 3
CAPTURE_DETECTION_AUTO = 2
CAPTURE_DETECTION_OFF = 1
CAPTURE_MONOTONE = 1
CAPTURE_RECORD = 2
ERROR_CANCELLED = 16
ERROR_CAPTURING = 12
ERROR_CONFIG = 8
ERROR_CORRUPT = 18
ERROR_DOUBLE_FREE = 4
ERROR_DRIVER = 5
ERROR_FORKED = 9
ERROR_INTERNAL = 10
ERROR_INVALID = 1
ERROR_INVALID_STREAM = 13
ERROR_IO = 17
ERROR_NO_DEVICE = 6
ERROR_OUT_OF_MEMORY = 2
ERROR_SHUTTING_DOWN = 11
ERROR_TIMED_OUT = 15
ERROR_UNKNOWN_POINTER = 3
ERROR_UNSUPPORTED = 7
ERROR_USE_AFTER_FREE = 14
EVENT_ARENA_ENTER = 6
EVENT_ARENA_EXIT = 7
EVENT_EVICT = 10
EVENT_FREE = 2
EVENT_GROWTH = 15
EVENT_MALLOC = 1
EVENT_MOVE = 8
EVENT_OUT_OF_MEMORY = 4
EVENT_REALLOC = 3
EVENT_RESTORE = 11
EVENT_STITCH = 16
EVENT_TRIM = 9
HOST_MODE_ABORT = 3
HOST_MODE_EAGER = 1
HOST_MODE_SIMULATE = 2
HOST_NEAREST = -1
LOG_DECISIONS = 2
LOG_NOTHING = -1
LOG_WARNINGS = 1
MALLOC_EVICTABLE = 8
MALLOC_EXPORTABLE = 2
MALLOC_GUARD = 4
MALLOC_ON_DEVICE = 65536
MALLOC_SINGLE_HANDLE = 1
MOVER_OFF = 1
MOVER_ON = 2
MOVE_ON_STREAM = 1
MOVE_TO_SPACE = 2
NVTX_OFF = 1
NVTX_ON = 2
OK = 0
OVERDRAW_FAIL = 0
OVERDRAW_IGNORE = -1
OVERDRAW_RETRY = -2
PLAN_ANYWHERE = 0
PLAN_BACKWARD = 2
PLAN_CONSTANT = 4
PLAN_CONSTANTS = 16
PLAN_EFFORT_FAST = 1
PLAN_EFFORT_NORMAL = 0
PLAN_FEASIBLE = 1
PLAN_FIXED = 1
PLAN_FROM_LAST = 1
PLAN_INFEASIBLE = 2
PLAN_INFERENCE = 1
PLAN_INPUT = 1
PLAN_INPUTS = 2
PLAN_IN_ARENA = 1
PLAN_NO_OFFSET = 0xffff_ffff_ffff_ffff
PLAN_NO_REUSE = 1
PLAN_OPTIMAL = 0
PLAN_OUTPUT = 2
PLAN_OUTPUTS = 4
PLAN_OUT_OF_TIME = 3
PLAN_PARAMETER = 3
PLAN_PARAMETERS = 8
PLAN_PREFERRED = 2
PLAN_TEMPORARIES = 1
PLAN_TEMPORARY = 0
POLICY_BEYOND_LIMIT = 1
POLICY_CALLBACK = 4
POLICY_FAIL = 1
POLICY_IGNORE = 2
POLICY_INCREASE = 3
POOL_OFF = 2
POOL_ON = 1
RESERVE_DOWNGRADE = 4
RESERVE_SPACE = 1
RESERVE_TIER = 2
RESERVE_TIERS = 3
RESERVE_UPGRADE = 5
REUSE_SETTLED = 1
REUSE_WAIT = 2
SIM_CAPTURE_GLOBAL = 0
SIM_CAPTURE_RELAXED = 2
SIM_CAPTURE_THREAD_LOCAL = 1
SLACK_AUTO = -1
SLACK_TIGHT = -2
SNAPSHOT_ON_EXIT = 4
SNAPSHOT_ON_NOTHING = 1
SNAPSHOT_ON_OOM = 2
STATS_PAGE_OFF = 1
STATS_PAGE_ON = 2
STREAM_CHECK_AUTO = 1
STREAM_CHECK_DRIVER = 2
STREAM_LEGACY = 1
STREAM_PER_THREAD = 2
TIERS_OFF = 1
TIERS_ON = 2
TIER_DISK = 3
TIER_GPU = 1
TIER_HOST = 2
VERSION_MAJOR = 0
VERSION_MINOR = 1
VERSION_PATCH = 0
WAIT_FOREVER = 0xffff_ffff_ffff_ffff


class gpumem_malloc_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("bytes", c_size_t),
        ("alignment", c_size_t),
        ("stream", c_void_p),
        ("tag", c_uint64),
        ("arena", c_void_p),
        ("device", c_int32),
        ("reserved", c_uint32),
        ("reservation", c_void_p),
    ]


class gpumem_pointer_info(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("base", c_void_p),
        ("requested", c_size_t),
        ("usable", c_size_t),
        ("stream", c_void_p),
        ("id", c_uint64),
        ("tag", c_uint64),
        ("device", c_int32),
        ("reserved", c_uint32),
    ]


class gpumem_arena_report(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("depth", c_uint32),
        ("freed", c_uint64),
        ("freed_bytes", c_uint64),
        ("kept", c_uint64),
        ("kept_bytes", c_uint64),
        ("unknown", c_uint64),
        ("duplicate", c_uint64),
        ("foreign", c_uint64),
        ("nanoseconds", c_uint64),
    ]


class gpumem_arena_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("depth", c_uint32),
        ("live", c_uint64),
        ("live_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("joined", c_uint64),
        ("left", c_uint64),
        ("promoted", c_uint64),
        ("freed_early", c_uint64),
        ("threads", c_uint64),
        ("nanoseconds", c_uint64),
        ("id", c_uint64),
        ("name", c_char * 64),
    ]


class gpumem_arena_debug_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("mode", c_uint32),
        ("remembered", c_uint64),
        ("stale_uses", c_uint64),
        ("stale_writes", c_uint64),
        ("kept", c_uint64),
        ("kept_bytes", c_uint64),
        ("unchecked", c_uint64),
    ]


class gpumem_capture_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("bytes", c_uint64),
        ("reserve", c_uint64),
        ("share", c_void_p),
        ("layout", c_void_p),
    ]


class gpumem_capture_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("device", c_int32),
        ("reserved", c_uint64),
        ("mapped", c_uint64),
        ("live", c_uint64),
        ("peak_live", c_uint64),
        ("total", c_uint64),
        ("allocations", c_uint64),
        ("references", c_uint64),
        ("planned", c_uint64),
        ("deviations", c_uint64),
        ("streams", c_uint64),
    ]


class gpumem_device_props(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("vmm", c_uint32),
        ("posix_fd", c_uint32),
        ("rdma", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("total_bytes", c_uint64),
        ("granularity", c_uint64),
        ("name", c_char * 128),
    ]


class gpumem_stream_pool_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("device", c_int32),
        ("made", c_uint64),
        ("idle", c_uint64),
        ("borrowed", c_uint64),
        ("waiters", c_uint64),
    ]


class gpumem_space(Structure):
    _fields_ = [
        ("tier", c_int32),
        ("id", c_uint32),
    ]


class gpumem_move_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("space", gpumem_space),
        ("stream", c_void_p),
        ("progress", c_void_p),
        ("user", c_void_p),
    ]


class gpumem_move_report(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("moved", c_uint64),
        ("moved_bytes", c_uint64),
        ("already", c_uint64),
    ]


class gpumem_location(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("space", gpumem_space),
        ("holds", c_uint32),
        ("bytes", c_uint64),
        ("device_bytes", c_uint64),
    ]


class gpumem_host_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("node", c_uint32),
        ("block_bytes", c_uint64),
        ("pinned", c_uint64),
        ("peak", c_uint64),
        ("blocks", c_uint64),
        ("shared", c_uint64),
        ("parts", c_uint64),
        ("free", c_uint64),
        ("longest", c_uint64),
        ("chunks", c_uint64),
        ("pins", c_uint64),
        ("refused", c_uint64),
    ]


class gpumem_plan_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("capacity", c_uint64),
        ("unit", c_uint64),
        ("alignment", c_uint64),
    ]


class gpumem_plan_interval(Structure):
    _fields_ = [
        ("lower", c_uint64),
        ("upper", c_uint64),
    ]


class gpumem_plan_buffer_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("kind", c_int32),
        ("place", c_int32),
        ("bytes", c_uint64),
        ("lower", c_uint64),
        ("upper", c_uint64),
        ("alignment", c_uint64),
        ("guard", c_uint64),
        ("offset", c_uint64),
        ("arena", c_uint32),
        ("reserved", c_uint32),
        ("gaps", c_void_p),
        ("gap_count", c_size_t),
        ("name", c_char_p),
    ]


class gpumem_plan_solve_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("effort", c_int32),
        ("time_limit_ms", c_uint64),
        ("threads", c_uint32),
        ("flags", c_uint32),
    ]


class gpumem_plan_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("status", c_int32),
        ("arena_bytes", c_uint64),
        ("lower_bound", c_uint64),
        ("total_unshared", c_uint64),
        ("saved", c_uint64),
        ("gap", c_double),
        ("seconds", c_double),
        ("critical_step", c_uint64),
        ("steps", c_uint64),
        ("slots", c_uint64),
        ("values", c_uint64),
        ("operations", c_uint64),
        ("arenas", c_uint32),
        ("interrupted", c_uint32),
    ]


class gpumem_visit_filter(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("on_device", c_uint32),
        ("least_bytes", c_uint64),
        ("tag", c_uint64),
        ("arena", c_uint64),
        ("device", c_int32),
        ("age_and_stack", c_uint32),
    ]


class gpumem_allocation(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("device", c_int32),
        ("base", c_void_p),
        ("requested", c_size_t),
        ("usable", c_size_t),
        ("stream", c_void_p),
        ("id", c_uint64),
        ("tag", c_uint64),
        ("arena", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("age_ns", c_uint64),
        ("stack", c_char_p),
    ]


class gpumem_event(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_int32),
        ("time", c_uint64),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("other", c_uint64),
        ("stream", c_uint64),
        ("tag", c_uint64),
        ("arena", c_uint32),
        ("device", c_int32),
    ]


class gpumem_reserve_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("strategy", c_int32),
        ("bytes", c_uint64),
        ("least_bytes", c_uint64),
        ("space", gpumem_space),
        ("tiers", c_int32 * 4),
        ("timeout_ms", c_uint64),
        ("cancel", c_void_p),
        ("policy", c_void_p),
        ("out_of_memory", c_void_p),
        ("user", c_void_p),
        ("free_user", c_void_p),
    ]


class gpumem_reservation_info(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("space", gpumem_space),
        ("reserved", c_uint32),
        ("number", c_uint64),
        ("promised", c_uint64),
        ("drawn", c_uint64),
        ("used", c_uint64),
        ("peak", c_uint64),
        ("arrived", c_uint64),
        ("granted", c_uint64),
    ]


class gpumem_context_options(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("backend", c_int32),
        ("reuse", c_int32),
        ("log", c_int32),
        ("pool", c_int32),
        ("prealloc_percent", c_uint32),
        ("prealloc_bytes", c_uint64),
        ("va_size", c_uint64),
        ("page_size", c_uint64),
        ("limit_bytes", c_uint64),
        ("trim_threshold", c_uint64),
        ("host_bytes", c_uint64),
        ("host_seed", c_uint64),
        ("host_devices", c_uint32),
        ("limit_percent", c_uint32),
        ("trim_interval_ms", c_uint64),
        ("stream_check", c_int32),
        ("arena_debug", c_uint32),
        ("arena_quarantine", c_uint64),
        ("capture_detection", c_int32),
        ("tiers", c_int32),
        ("mover", c_int32),
        ("pinned_limit_percent", c_uint32),
        ("pinned_limit_bytes", c_uint64),
        ("pinned_block_bytes", c_uint64),
        ("pinned_blocks", c_uint32),
        ("pinned_chunks", c_uint32),
        ("disk", c_char_p),
        ("downgrade_trigger", c_double),
        ("downgrade_stop", c_double),
        ("host_mode", c_int32),
        ("slack", c_int32),
        ("record", c_char_p),
        ("snapshot", c_char_p),
        ("record_stacks", c_uint32),
        ("snapshot_on", c_uint32),
        ("snapshot_events", c_uint32),
        ("stats_page", c_int32),
        ("nvtx", c_int32),
        ("reserved", c_uint32),
    ]


class gpumem_sim_graph_info(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("nodes", c_uint64),
        ("memory_nodes", c_uint64),
    ]


class gpumem_space_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("space", gpumem_space),
        ("should_downgrade", c_uint32),
        ("should_stop", c_uint32),
        ("reserved", c_uint32),
        ("capacity", c_uint64),
        ("limit", c_uint64),
        ("promised", c_uint64),
        ("unreserved", c_uint64),
        ("used", c_uint64),
        ("peak", c_uint64),
        ("available", c_uint64),
        ("beyond", c_uint64),
        ("trigger", c_uint64),
        ("stop", c_uint64),
        ("amount_to_downgrade", c_uint64),
        ("reservations", c_uint64),
        ("waiters", c_uint64),
    ]


class gpumem_overdraw(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("attempt", c_uint32),
        ("space", gpumem_space),
        ("number", c_uint64),
        ("promised", c_uint64),
        ("drawn", c_uint64),
        ("bytes", c_uint64),
        ("stream", c_void_p),
    ]


class gpumem_reserve_policy(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("kind", c_int32),
        ("factor", c_double),
        ("cap", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("callback", c_void_p),
        ("user", c_void_p),
        ("free_user", c_void_p),
    ]


class gpumem_shortage(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("attempt", c_uint32),
        ("space", gpumem_space),
        ("bytes", c_uint64),
        ("stream", c_void_p),
    ]


class gpumem_stats(Structure):
    _fields_ = [
        ("size", c_uint32),
        ("device", c_int32),
        ("reserved", c_uint64),
        ("mapped", c_uint64),
        ("peak_mapped", c_uint64),
        ("requested", c_uint64),
        ("live", c_uint64),
        ("peak_live", c_uint64),
        ("free", c_uint64),
        ("waiting", c_uint64),
        ("stock", c_uint64),
        ("holes", c_uint64),
        ("zombies", c_uint64),
        ("largest_without_growth", c_uint64),
        ("largest_free", c_uint64),
        ("allocations", c_uint64),
        ("mallocs", c_uint64),
        ("frees", c_uint64),
        ("extents", c_uint64),
        ("moved", c_uint64),
        ("stitches", c_uint64),
        ("growths", c_uint64),
        ("streams", c_uint64),
        ("double_frees", c_uint64),
        ("unknown_pointers", c_uint64),
        ("late_frees", c_uint64),
        ("out_of_memory", c_uint64),
        ("limit", c_uint64),
    ]


class gpumem_driver_call(Structure):
    _fields_ = [
        ("name", c_char * 40),
        ("calls", c_uint64),
    ]


class gpumem_torch_pool_id(Structure):
    _fields_ = [
        ("first", c_uint64),
        ("second", c_uint64),
    ]


# Name: (result, parameters).
FUNCTIONS = {
    "gpumem_allocation_id_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_arena_abort": (c_int32, [c_void_p, c_void_p]),
    "gpumem_arena_attach": (c_int32, [c_void_p]),
    "gpumem_arena_current_get": (c_int32, [c_void_p]),
    "gpumem_arena_debug_stats_get": (c_int32, [c_void_p]),
    "gpumem_arena_describe": (c_int32, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "gpumem_arena_detach": (c_int32, [c_void_p]),
    "gpumem_arena_enter": (c_int32, [c_void_p]),
    "gpumem_arena_enter_named": (c_int32, [c_char_p, c_void_p]),
    "gpumem_arena_escape": (c_int32, [c_void_p]),
    "gpumem_arena_exit": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "gpumem_arena_find": (c_int32, [c_void_p, c_void_p]),
    "gpumem_arena_promote": (c_int32, [c_void_p]),
    "gpumem_arena_stats_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_arena_verify": (c_int32, []),
    "gpumem_backend_name": (c_char_p, []),
    "gpumem_capture_abort": (c_int32, [c_void_p]),
    "gpumem_capture_begin": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_capture_end": (c_int32, [c_void_p]),
    "gpumem_capture_release": (c_int32, [c_void_p]),
    "gpumem_capture_retain": (c_int32, [c_void_p]),
    "gpumem_capture_solve": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_capture_stats_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_check": (c_int32, [c_void_p, c_char_p, c_char_p]),
    "gpumem_check_id": (c_int32, [c_void_p, c_uint64, c_char_p, c_char_p]),
    "gpumem_device_count_get": (c_int32, [c_void_p]),
    "gpumem_device_get": (c_int32, [c_void_p]),
    "gpumem_device_limit_set": (c_int32, [c_int, c_size_t]),
    "gpumem_device_memory_get": (c_int32, [c_int, c_void_p, c_void_p]),
    "gpumem_device_props_get": (c_int32, [c_int, c_void_p]),
    "gpumem_device_set": (c_int32, [c_int]),
    "gpumem_device_sync": (c_int32, []),
    "gpumem_device_trim": (c_int32, [c_int, c_size_t]),
    "gpumem_driver_calls_get": (c_int32, [c_void_p, c_size_t, c_void_p]),
    "gpumem_dump": (c_int32, [c_int, c_char_p, c_size_t, c_void_p]),
    "gpumem_event_callback_set": (c_int32, [c_void_p, c_void_p]),
    "gpumem_evict": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_evict_tag": (c_int32, [c_uint64, c_void_p, c_void_p]),
    "gpumem_export_fd": (c_int32, [c_void_p, c_void_p]),
    "gpumem_free": (None, [c_void_p]),
    "gpumem_free_async": (c_int32, [c_void_p, c_void_p]),
    "gpumem_free_id": (c_int32, [c_void_p, c_uint64]),
    "gpumem_free_id_async": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "gpumem_hold": (c_int32, [c_void_p]),
    "gpumem_host_blocks_count_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_host_blocks_free": (c_int32, [c_void_p]),
    "gpumem_host_blocks_get": (c_int32, [c_void_p, c_size_t, c_void_p, c_void_p]),
    "gpumem_host_blocks_malloc": (c_int32, [c_size_t, c_int32, c_void_p, c_void_p]),
    "gpumem_host_free": (c_int32, [c_void_p]),
    "gpumem_host_malloc": (c_int32, [c_size_t, c_int32, c_void_p]),
    "gpumem_host_prepare": (c_int32, [c_int32, c_uint64]),
    "gpumem_host_stats_get": (c_int32, [c_int32, c_void_p]),
    "gpumem_host_trim": (c_int32, [c_int32, c_uint64, c_void_p]),
    "gpumem_import_fd": (c_int32, [c_int, c_size_t, c_int, c_void_p]),
    "gpumem_init": (c_int32, [c_void_p]),
    "gpumem_last_error": (c_size_t, [c_char_p, c_size_t]),
    "gpumem_last_status": (c_int32, []),
    "gpumem_location_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_malloc": (c_void_p, [c_size_t]),
    "gpumem_malloc_async": (c_int32, [c_size_t, c_void_p, c_void_p]),
    "gpumem_malloc_with": (c_int32, [c_void_p, c_void_p]),
    "gpumem_memcpy": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "gpumem_memcpy_async": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "gpumem_memset": (c_int32, [c_void_p, c_int, c_size_t]),
    "gpumem_memset_async": (c_int32, [c_void_p, c_int, c_size_t, c_void_p]),
    "gpumem_owner_id_get": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_arena_add": (c_int32, [c_void_p, c_uint64, c_char_p, c_void_p]),
    "gpumem_plan_arena_bytes_get": (c_int32, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "gpumem_plan_buffer_add": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_buffers_add": (c_int32, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_cancel": (c_int32, [c_void_p]),
    "gpumem_plan_capacity_set": (c_int32, [c_void_p, c_uint32, c_uint64]),
    "gpumem_plan_create": (c_int32, [c_void_p, c_void_p]),
    "gpumem_plan_critical_get": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "gpumem_plan_csv_get": (c_int32, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "gpumem_plan_destroy": (c_int32, [c_void_p]),
    "gpumem_plan_extend": (c_int32, [c_void_p, c_uint32, c_uint64]),
    "gpumem_plan_in_place_add": (c_int32, [c_void_p, c_uint32, c_uint32, c_uint32]),
    "gpumem_plan_keep": (c_int32, [c_void_p, c_uint32]),
    "gpumem_plan_keep_ancestors": (c_int32, [c_void_p, c_uint32]),
    "gpumem_plan_keep_ancestors_set": (c_int32, [c_void_p, c_int32]),
    "gpumem_plan_left_out_set": (c_int32, [c_void_p, c_uint32]),
    "gpumem_plan_live_get": (c_int32, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "gpumem_plan_materialise": (c_int32, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "gpumem_plan_materialise_with": (c_int32, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "gpumem_plan_obstacle_add": (c_int32, [c_void_p, c_uint32, c_uint64, c_uint64, c_uint64, c_uint64]),
    "gpumem_plan_offset_get": (c_int32, [c_void_p, c_uint32, c_void_p, c_void_p]),
    "gpumem_plan_offsets_get": (c_int32, [c_void_p, c_uint32, c_size_t, c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_op_add": (c_int32, [c_void_p, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "gpumem_plan_order_set": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "gpumem_plan_pointer_get": (c_int32, [c_void_p, c_uint32, c_void_p, c_size_t, c_void_p]),
    "gpumem_plan_preset_set": (c_int32, [c_void_p, c_int32]),
    "gpumem_plan_report_get": (c_int32, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "gpumem_plan_resize": (c_int32, [c_void_p, c_uint32, c_uint64]),
    "gpumem_plan_reuse_set": (c_int32, [c_void_p, c_int32]),
    "gpumem_plan_share": (c_int32, [c_void_p, c_char_p, c_uint32, c_uint64, c_uint64]),
    "gpumem_plan_share_from": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_solve": (c_int32, [c_void_p, c_void_p]),
    "gpumem_plan_stats_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_plan_svg_get": (c_int32, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "gpumem_plan_unit_set": (c_int32, [c_void_p, c_uint64]),
    "gpumem_plan_unshare": (c_int32, [c_void_p, c_char_p]),
    "gpumem_plan_value_add": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_plan_verify": (c_int32, [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]),
    "gpumem_plan_view_set": (c_int32, [c_void_p, c_uint32, c_uint32, c_uint64]),
    "gpumem_pointer_info_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_realloc_async": (c_int32, [c_void_p, c_size_t, c_void_p, c_void_p]),
    "gpumem_record_start": (c_int32, [c_char_p, c_uint32]),
    "gpumem_record_stop": (c_int32, [c_void_p, c_void_p]),
    "gpumem_record_stream": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_attach_stream": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_attach_thread": (c_int32, [c_void_p]),
    "gpumem_reservation_detach_thread": (c_int32, [c_void_p]),
    "gpumem_reservation_grow": (c_int32, [c_void_p, c_uint64, c_uint64, c_void_p]),
    "gpumem_reservation_info_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_out_of_memory_set": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "gpumem_reservation_policy_set": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_release": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_shrink": (c_int32, [c_void_p, c_uint64]),
    "gpumem_reservation_shrink_to_fit": (c_int32, [c_void_p, c_void_p]),
    "gpumem_reservation_shutdown": (c_int32, []),
    "gpumem_reserve": (c_int32, [c_void_p, c_void_p]),
    "gpumem_restore": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "gpumem_restore_tag": (c_int32, [c_uint64, c_void_p, c_void_p]),
    "gpumem_settings_get": (c_int32, [c_void_p]),
    "gpumem_sim_capture_begin": (c_int32, [c_void_p, c_int32]),
    "gpumem_sim_capture_end": (c_int32, [c_void_p, c_void_p]),
    "gpumem_sim_graph_destroy": (c_int32, [c_void_p]),
    "gpumem_sim_graph_info_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_sim_graph_launch": (c_int32, [c_void_p, c_void_p]),
    "gpumem_sim_reports_get": (c_int32, [c_void_p]),
    "gpumem_snapshot": (c_int32, [c_char_p]),
    "gpumem_space_current_get": (c_int32, [gpumem_space, c_void_p, c_void_p]),
    "gpumem_space_detach_stream": (c_int32, [gpumem_space, c_void_p]),
    "gpumem_space_detach_thread": (c_int32, [gpumem_space]),
    "gpumem_space_disk_add": (c_int32, [c_char_p, c_uint64, c_void_p]),
    "gpumem_space_limit_set": (c_int32, [gpumem_space, c_uint64]),
    "gpumem_space_list_get": (c_int32, [c_void_p, c_size_t, c_void_p]),
    "gpumem_space_out_of_memory_set": (c_int32, [gpumem_space, c_void_p, c_void_p, c_void_p]),
    "gpumem_space_stats_get": (c_int32, [gpumem_space, c_void_p]),
    "gpumem_space_stats_reset_peak": (c_int32, [gpumem_space]),
    "gpumem_space_stream_stats_get": (c_int32, [gpumem_space, c_void_p, c_void_p, c_void_p]),
    "gpumem_space_stream_stats_reset_peak": (c_int32, [gpumem_space, c_void_p]),
    "gpumem_space_thresholds_set": (c_int32, [gpumem_space, c_double, c_double]),
    "gpumem_stack_callback_set": (c_int32, [c_void_p, c_void_p]),
    "gpumem_stats_get": (c_int32, [c_int, c_void_p]),
    "gpumem_stats_reset_peak": (c_int32, [c_int]),
    "gpumem_status_name": (c_char_p, [c_int32]),
    "gpumem_stream_create": (c_int32, [c_void_p]),
    "gpumem_stream_destroy": (c_int32, [c_void_p]),
    "gpumem_stream_pool_borrow": (c_int32, [c_void_p, c_uint64, c_void_p]),
    "gpumem_stream_pool_borrow_or_grow": (c_int32, [c_void_p, c_void_p]),
    "gpumem_stream_pool_create": (c_int32, [c_size_t, c_void_p]),
    "gpumem_stream_pool_destroy": (c_int32, [c_void_p]),
    "gpumem_stream_pool_return": (c_int32, [c_void_p, c_void_p]),
    "gpumem_stream_pool_stats_get": (c_int32, [c_void_p, c_void_p]),
    "gpumem_stream_sync": (c_int32, [c_void_p]),
    "gpumem_stream_wait": (c_int32, [c_void_p, c_void_p]),
    "gpumem_token_cancel": (c_int32, [c_void_p]),
    "gpumem_token_create": (c_int32, [c_void_p]),
    "gpumem_token_destroy": (c_int32, [c_void_p]),
    "gpumem_torch_base_alloc": (c_void_p, [c_void_p, c_void_p]),
    "gpumem_torch_begin_allocate_to_pool": (None, [c_int, gpumem_torch_pool_id, c_void_p]),
    "gpumem_torch_end_allocate_to_pool": (None, [c_int, gpumem_torch_pool_id]),
    "gpumem_torch_free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "gpumem_torch_init": (None, [c_int]),
    "gpumem_torch_malloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "gpumem_torch_memory_fraction": (None, [c_double, c_int]),
    "gpumem_torch_record_stream": (None, [c_void_p, c_void_p]),
    "gpumem_torch_release_pool": (None, [c_int, gpumem_torch_pool_id]),
    "gpumem_torch_reset": (None, []),
    "gpumem_trim": (c_int32, [c_size_t]),
    "gpumem_unhold": (c_int32, [c_void_p, c_void_p]),
    "gpumem_usable_size": (c_size_t, [c_void_p]),
    "gpumem_validate": (c_int32, []),
    "gpumem_version": (c_uint32, []),
    "gpumem_version_string": (c_char_p, []),
    "gpumem_visit_allocations": (c_int32, [c_void_p, c_void_p, c_void_p]),
}

"""Device memory for Python, from libgpumem: a pool that PyTorch, CuPy, Numba, RMM, Warp and your
own code share.

    import gpumem

    buffer = gpumem.Buffer(1 << 20)                          # freed when it is dropped, or by free()
    with gpumem.arena("step", keep=lambda: loss):            # everything allocated in the block is free after it
        ...
    with gpumem.reserve("4GiB", timeout=10):                 # memory that is promised
        ...
    print(gpumem.stats())

`gpumem.torch`, `gpumem.cupy`, `gpumem.numba`, `gpumem.rmm` and `gpumem.warp` make other libraries
allocate from gpumem; import each by name. On a machine without a GPU all of this runs on the host
device, which is made of ordinary memory.

Sizes are numbers of bytes, or strings such as "4GiB". A stream is None (the default stream), a
number, or a stream object of any of these libraries. A failure raises a `gpumem.Error`, with one
class per status; `gpumem.OutOfMemory` is also a MemoryError. Every function may be called from any
thread.
"""

from ._arena import Arena, ArenaReport, ArenaStats, arena, check, current_arena, escape, find_arena, promote
from ._buffer import (Buffer, View, export_fd, free, import_fd, malloc, malloc_with, memcpy, memset, pointer_info, record_stream,
                      usable_size)
from ._capture import Capture, CaptureStats, capture
from ._errors import (Cancelled, Capturing, ConfigError, Corrupt, DoubleFree, DriverError, Error, Forked, Internal, Invalid,
                      InvalidStream, IOFailed, NoDevice, OutOfMemory, ShuttingDown, TimedOut, UnknownPointer, Unsupported,
                      UseAfterFree)
from ._evict import Location, MoveReport, add_disk, evict, held, hold, location, restore, sleep, unhold, wake
from ._library import path as library_path
from ._plan import Layout, Plan, PlanStats, plan
from ._record import record_start, record_stop, recording, snapshot
from ._reserve import Reservation, ReservationInfo, reserve, set_space_limit
from ._stats import (Stats, backend, current_device, device_count, device_memory, driver_calls, dump, reset_peak, set_device,
                     set_limit, stats, trim, validate, version)
from ._stream import Stream, synchronize

__version__ = "0.1.0"

__all__ = [
    "Arena", "ArenaReport", "ArenaStats", "Buffer", "Cancelled", "Capture", "CaptureStats", "Capturing", "ConfigError", "Corrupt",
    "DoubleFree", "DriverError", "Error", "Forked", "IOFailed", "Internal", "Invalid", "InvalidStream", "Layout", "Location",
    "MoveReport", "NoDevice", "OutOfMemory", "Plan", "PlanStats", "Reservation", "ReservationInfo", "ShuttingDown", "Stats",
    "Stream", "TimedOut", "UnknownPointer", "Unsupported", "UseAfterFree", "View", "add_disk", "arena", "backend", "capture",
    "check", "current_arena", "current_device", "device_count", "device_memory", "driver_calls", "dump", "escape", "evict",
    "export_fd", "find_arena", "free", "held", "hold", "import_fd", "library_path", "location", "malloc", "malloc_with", "memcpy",
    "memset", "plan", "pointer_info", "promote", "record_start", "record_stop", "record_stream", "recording", "reserve",
    "reset_peak", "restore", "set_device", "set_limit", "set_space_limit", "sleep", "snapshot", "stats", "synchronize", "trim",
    "unhold", "usable_size", "validate", "version", "wake",
]

"""Counters, limits, devices."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from . import _declarations as d
from . import _values
from ._arena import as_dataclass
from ._errors import ok
from ._library import C, initialised
from ._types import Size


@dataclasses.dataclass(frozen=True)
class Stats:
    """One device's counters, from `stats()`. The fields before `allocations`, and `limit`, are in
    bytes; the others are counts.

    `mapped` is the physical memory that gpumem holds, `requested` what callers asked for and have
    not freed, `live` what was handed out for it. `print` shows the rest for people.
    """

    device: int
    reserved: int
    mapped: int
    peak_mapped: int
    requested: int
    live: int
    peak_live: int
    free: int
    waiting: int
    stock: int
    holes: int
    zombies: int
    largest_without_growth: int
    largest_free: int
    allocations: int
    mallocs: int
    frees: int
    extents: int
    moved: int
    stitches: int
    growths: int
    streams: int
    double_frees: int
    unknown_pointers: int
    late_frees: int
    out_of_memory: int
    limit: int

    def __str__(self):
        h = _values.human
        return "\n".join([
            f"device {self.device} ({backend()})",
            f"  live      {self.allocations} allocations, {h(self.requested)} asked for, {h(self.live)} handed out",
            f"  mapped    {h(self.mapped)}, {h(self.peak_mapped)} at most" + (f", limit {h(self.limit)}" if self.limit else ""),
            f"  free      {h(self.free)} at once, {h(self.waiting)} when streams are done",
            f"  so far    {self.mallocs} allocations, {self.frees} frees, {self.stitches} requests met by remapping, "
            f"{self.growths} by new memory",
            f"  refused   {self.out_of_memory} for lack of memory, {self.double_frees + self.unknown_pointers} wrong frees, "
            f"{self.late_frees} late ones",
        ])


def _device(device):
    return current_device() if device is None else _values.device(device)


def current_device() -> int:
    """The calling thread's current device."""
    out = ctypes.c_int()
    ok(C.gpumem_device_get(ctypes.byref(out)))
    return out.value


def set_device(device: int) -> None:
    """Makes a device the calling thread's current one."""
    ok(C.gpumem_device_set(_values.device(device)))


def on_device(device, call, *arguments):
    """Calls with a device as the thread's current one, whose default streams 0, 1 and 2 stand for.
    None is the one that is."""
    before = None if device is None else current_device()
    if before == device:
        return call(*arguments)
    set_device(device)
    try:
        return call(*arguments)
    finally:
        set_device(before)


def device_count() -> int:
    """How many devices there are, at least 1."""
    out = ctypes.c_int()
    ok(C.gpumem_device_count_get(ctypes.byref(out)))
    return out.value


def device_memory(device: int | None = None) -> tuple[int, int]:
    """Returns a device's free and total bytes, as the driver sees them for all processes
    together."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok(C.gpumem_device_memory_get(_device(device), ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def stats(device: int | None = None) -> Stats:
    """Returns a snapshot of a device's counters, by default the current device's. Other threads go
    on while it is taken."""
    out = initialised(d.gpumem_stats)
    ok(C.gpumem_stats_get(_device(device), ctypes.byref(out)))
    return as_dataclass(Stats, out)


def reset_peak(device: int | None = None) -> None:
    """Sets the peaks of a device back to the present values."""
    ok(C.gpumem_stats_reset_peak(_device(device)))


def trim(keep: Size = 0, device: int | None = None) -> None:
    """Gives free physical memory back until at most `keep` bytes stay mapped on each device, or on
    the given one. Live memory stays."""
    ok(C.gpumem_trim(_values.size(keep)) if device is None else C.gpumem_device_trim(_values.device(device), _values.size(keep)))


def set_limit(nbytes: Size, device: int | None = None) -> None:
    """Sets the most bytes that gpumem may map on a device; 0 means all that the device has. Free
    memory beyond that goes back to the device, and live memory stays. What `reserve` can promise has
    a limit of its own: `GPUMEM_LIMIT`, or a higher one that was set here before the first
    reservation. `set_space_limit` changes that."""
    ok(C.gpumem_device_limit_set(_device(device), _values.size(nbytes)))


def validate() -> None:
    """Checks every invariant of the library's own state. Slow; for tests."""
    ok(C.gpumem_validate())


def filled_text(call: Any) -> str:
    """Returns a text of unknown length, from a call that takes a buffer, its size, and a place for
    the size needed."""
    needed = ctypes.c_size_t(4096)
    while True:
        room = needed.value
        text = ctypes.create_string_buffer(room)
        ok(call(text, room, ctypes.byref(needed)))
        if needed.value <= room:
            return text.value.decode(errors="replace")


def dump(device: int | None = None) -> str:
    """Lists every region of a device's memory in address order, as text for people."""
    device = _device(device)
    return filled_text(lambda buf, cap, needed: C.gpumem_dump(device, buf, cap, needed))


def driver_calls() -> dict[str, int]:
    """Returns how often each driver call was made since gpumem started."""
    count = ctypes.c_size_t()
    ok(C.gpumem_driver_calls_get(None, 0, ctypes.byref(count)))
    out = (d.gpumem_driver_call * count.value)()
    ok(C.gpumem_driver_calls_get(out, count.value, None))
    return {c.name.decode(): c.calls for c in out}


def backend() -> str:
    """Returns the kind of device in use, "cuda" or "host", or "none" when the library cannot
    start."""
    return C.gpumem_backend_name().decode()


def version() -> str:
    """The library's version, such as "0.1.0"."""
    return C.gpumem_version_string().decode()

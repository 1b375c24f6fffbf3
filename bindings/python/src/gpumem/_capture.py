"""Memory for CUDA graphs."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

from . import _declarations as d
from . import _values
from ._arena import as_dataclass, ended, tell
from ._errors import Invalid, ok
from ._library import C, initialised
from ._types import Size, StreamLike


@dataclasses.dataclass(frozen=True)
class CaptureStats:
    """The counters of a capture's memory, in bytes; `allocations`, `references`, `deviations` and
    `streams` are counts."""

    device: int
    reserved: int
    mapped: int
    live: int
    peak_live: int
    total: int
    allocations: int
    references: int
    planned: int
    deviations: int
    streams: int


class Capture:
    """The memory of one or more CUDA graphs. Nothing else gets an address in it until the last
    `release()`.

        with gpumem.capture(stream) as memory:
            ...                              # begin the stream's capture, allocate, launch, end it
        ...                                  # launch the graph, any number of times
        memory.release()

    After an exception everything allocated in the block is freed and the exception propagates. The
    memory is never released automatically, because Python cannot see the graphs that use it.
    `monotone` never reuses memory during the capture. `record` records how long allocations live,
    for `solve()`; `layout` is a solved capture. `share` uses another capture's memory, for graphs
    that never run at the same time.
    """

    __slots__ = ("handle", "stream", "references", "_options")

    def __init__(self, stream: StreamLike = None, *, monotone: bool = False, record: bool = False, nbytes: Size = 0, reserve: Size = 0,
                 share: Capture | None = None, layout: Capture | None = None) -> None:
        self.handle: int | None = None
        self.stream, self.references = stream, 0
        o = initialised(d.gpumem_capture_options)
        o.flags = (monotone and d.CAPTURE_MONOTONE) | (record and d.CAPTURE_RECORD)
        o.bytes, o.reserve = _values.size(nbytes), _values.size(reserve)
        o.share, o.layout = _values.handle(share), _values.handle(layout)
        self._options = o

    def begin(self) -> Capture:
        """Begins the capture: from now on the stream allocates from its memory, on every thread."""
        if self.references:
            raise Invalid("the capture has begun already; release it first, or make another one with gpumem.capture()")
        out = ctypes.c_void_p()
        ok(C.gpumem_capture_begin(_values.stream(self.stream), ctypes.byref(self._options), ctypes.byref(out)))
        self.handle, self.references = out.value, 1
        return self

    def _begun(self):
        # The library would say that a handle is NULL.
        if self.handle is None:
            raise Invalid("the capture has not begun; do that by `with` or begin()")
        return self.handle

    def end(self) -> None:
        """Ends the capture: allocations on the stream are ordinary again."""
        ok(C.gpumem_capture_end(self._begun()))

    def abort(self) -> None:
        """Frees everything allocated in the capture and drops all references."""
        ok(C.gpumem_capture_abort(self._begun()))
        self.references = 0
        tell(ended)

    def retain(self) -> Capture:
        """Takes one more reference, for one more graph. Each needs a `release()`."""
        ok(C.gpumem_capture_retain(self._begun()))
        self.references += 1
        return self

    def release(self) -> None:
        """Drops a reference. The graph must not be launched afterwards. With the last reference the
        memory becomes ordinary."""
        ok(C.gpumem_capture_release(self._begun()))
        self.references -= 1

    def solve(self) -> tuple[int, int]:
        """Lays out what was recorded. Returns the layout's bytes and the most bytes that were live
        at a time."""
        length, peak = ctypes.c_uint64(), ctypes.c_uint64()
        ok(C.gpumem_capture_solve(self._begun(), ctypes.byref(length), ctypes.byref(peak)))
        return length.value, peak.value

    def stats(self) -> CaptureStats:
        """Returns the counters of the capture's memory."""
        out = initialised(d.gpumem_capture_stats)
        ok(C.gpumem_capture_stats_get(self._begun(), ctypes.byref(out)))
        return as_dataclass(CaptureStats, out)

    def __enter__(self) -> Capture:
        return self.begin()

    def __exit__(self, kind, value, trace):
        if not self.references:  # It ended within its block.
            return
        if kind is None:
            self.end()
        else:
            self.abort()

    __reduce__ = _values.no_copy

    def __repr__(self):
        return f"Capture({self.references} reference{'' if self.references == 1 else 's'})"


def capture(stream: StreamLike = None, **options: Any) -> Capture:
    """Returns a `Capture` for a `with` block."""
    return Capture(stream, **options)

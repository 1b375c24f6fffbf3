"""Memory that leaves its device and comes back: evict and restore, hold and unhold, sleep and
wake."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from typing import Any, Iterator

from . import _declarations as d
from . import _values
from ._errors import Invalid, ok
from ._library import C, initialised
from ._reserve import TIER_NAMES, TIERS
from ._reserve import space as as_space
from ._types import Address, Progress, Size, StreamLike, Tag, Where


@dataclasses.dataclass(frozen=True)
class MoveReport:
    """What a move did: the number and bytes of the allocations moved, and how many were there
    already."""

    moved: int
    moved_bytes: int
    already: int


@dataclasses.dataclass(frozen=True)
class Location:
    """Where an evictable allocation is. `tier` is "gpu", "host" or "disk", or None while it is
    being moved."""

    tier: str | None
    id: int
    holds: int
    nbytes: int
    device_bytes: int


_Progress = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)


def move_options(to, stream=None):
    """The library's options for a move."""
    o = initialised(d.gpumem_move_options)
    if isinstance(to, str):
        if to not in TIERS:
            raise ValueError(f"{to!r} is no tier; they are {', '.join(TIERS)}")
        o.space.tier = TIERS[to]
    elif to is not None:
        o.space, o.flags = as_space(to), d.MOVE_TO_SPACE
    if stream is not None:
        o.flags |= d.MOVE_ON_STREAM
        o.stream = _values.stream(stream)
    return o


def _move(call, what, to, stream, progress):
    o = move_options(to, stream)
    raised = []
    if progress is not None:
        def step(done, total, _):
            try:
                return 1 if progress(done, total) is False else 0
            except BaseException as why:  # It must not pass through the library: the move is cancelled, and then it goes on.
                raised.append(why)
                return 1
        callback = _Progress(step)
        o.progress = ctypes.cast(callback, ctypes.c_void_p)
    out = initialised(d.gpumem_move_report)
    status = call(what, ctypes.byref(o), ctypes.byref(out))
    if raised:
        raise raised[0]
    ok(status)
    return MoveReport(out.moved, out.moved_bytes, out.already)


def _move_tag(call, tag, to, stream, progress):
    number = _values.tag(tag)
    try:
        return _move(call, number, to, stream, progress)
    except Invalid as why:  # The library knows the number only.
        raise Invalid(str(why).replace(f"the tag {number}", f"the tag {tag!r}")) from None


def evict(buffer: Address, to: Where | None = None, *, stream: StreamLike = None, progress: Progress | None = None) -> MoveReport:
    """Moves an evictable allocation out of its device, and returns when its device memory is free.

    `to` is a tier ("host", "disk") or a space (("disk", 1)); the default is the nearest with room.
    The move waits on the device for the work that uses the memory; with `stream`, only for that
    stream's work. `progress(done, total)` is called now and then with bytes; it cancels the move by
    returning False.
    """
    return _move(C.gpumem_evict, _values.address(buffer), to, stream, progress)


def restore(buffer: Address, to: Where | None = None, *, stream: StreamLike = None, progress: Progress | None = None) -> MoveReport:
    """Moves an evictable allocation back to its device, at the same addresses, and returns when its
    bytes are there."""
    return _move(C.gpumem_restore, _values.address(buffer), to, stream, progress)


def sleep(tag: Tag, to: Where | None = None, *, stream: StreamLike = None, progress: Progress | None = None) -> MoveReport:
    """Moves all evictable allocations with a tag (a number or a string) out of their devices, each
    as by `evict`."""
    return _move_tag(C.gpumem_evict_tag, tag, to, stream, progress)


def wake(tag: Tag, *, stream: StreamLike = None, progress: Progress | None = None) -> MoveReport:
    """Moves all evictable allocations with a tag back to their devices, each as by `restore`."""
    return _move_tag(C.gpumem_restore_tag, tag, None, stream, progress)


def hold(buffer: Address) -> None:
    """Keeps an evictable allocation in its device until `unhold` has been called as often. Restores
    it first if need be."""
    ok(C.gpumem_hold(_values.address(buffer)))


def unhold(buffer: Address, stream: StreamLike = None) -> None:
    """Ends one hold. The allocation may leave once the stream has passed this point. Does not
    wait."""
    ok(C.gpumem_unhold(_values.address(buffer), _values.stream(stream)))


@contextlib.contextmanager
def held(buffer: Address, stream: StreamLike = None) -> Iterator[Any]:
    """Holds an evictable allocation in its device for a `with` block, for work on `stream`."""
    hold(buffer)
    try:
        yield buffer
    except BaseException:
        # Refused where the block has freed the buffer. Its own exception goes on.
        with contextlib.suppress(Exception):
            unhold(buffer, stream)
        raise
    unhold(buffer, stream)


def location(buffer: Address) -> Location:
    """Returns where an evictable allocation is."""
    out = initialised(d.gpumem_location)
    ok(C.gpumem_location_get(_values.address(buffer), ctypes.byref(out)))
    return Location(TIER_NAMES.get(out.space.tier), out.space.id, out.holds, out.bytes, out.device_bytes)


def add_disk(path: str | os.PathLike[str], limit: Size = 0) -> tuple[str, int]:
    """Adds a directory that memory can be moved to. `limit` is the most bytes of its files; 0 means
    as many as there is room for. Returns its space, such as ("disk", 0)."""
    out = d.gpumem_space()
    ok(C.gpumem_space_disk_add(_values.path(path), _values.size(limit), ctypes.byref(out)))
    return TIER_NAMES[out.tier], out.id

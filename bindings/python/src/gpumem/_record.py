"""Recordings and snapshots, for `gpumem view`, `stats` and `replay`."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Iterator

from . import _values
from ._errors import ok
from ._library import C


def record_start(path: str | os.PathLike[str], *, stacks: int = 0) -> None:
    """Records every allocation of the process in a file from now on, until `record_stop` or the end
    of the process. The file begins with what is live already.

    Where there is a file already, "." and the process's number are added to the name. `stacks` is
    the depth of the stacks that are recorded too, up to 256: the machine's, so Python's functions
    are not in them.
    """
    ok(C.gpumem_record_start(os.fsencode(path), _values.number(stacks, "stacks", 0, 257)))


def record_stop() -> tuple[int, int]:
    """Ends the recording, and waits until it is written. Returns how many events the file has, and
    how many it lacks."""
    events, lost = ctypes.c_uint64(), ctypes.c_uint64()
    ok(C.gpumem_record_stop(ctypes.byref(events), ctypes.byref(lost)))
    return events.value, lost.value


@contextlib.contextmanager
def recording(path: str | os.PathLike[str], *, stacks: int = 0) -> Iterator[None]:
    """A block in which every allocation is recorded in a file, as by `record_start`."""
    record_start(path, stacks=stacks)
    try:
        yield
    finally:
        record_stop()


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes all memory at this moment to a file, as JSON, for `gpumem view`. A file that is there
    is replaced."""
    ok(C.gpumem_snapshot(os.fsencode(path)))

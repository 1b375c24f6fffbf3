"""Recordings and snapshots, for `gpumem view`, `stats` and `replay`."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Iterator

from . import _values
from ._errors import Invalid, ok
from ._library import C


# Recordings that Python has begun, a count.
_begun = 0


def record_start(path: str | os.PathLike[str], *, stacks: int = 0) -> None:
    """Records every allocation of the process in a file from now on, until `record_stop` or the end
    of the process. The file begins with the allocations that are live already.

    If the file exists, "." and the process's number are added to the name. `stacks` is the depth of
    the stacks to record, up to 256. They are native stacks, without Python's functions.
    """
    global _begun
    ok(C.gpumem_record_start(_values.path(path), _values.number(stacks, "stacks", 0, 257)))
    _begun += 1


def record_stop() -> tuple[int, int]:
    """Ends the recording and waits until it is written. Returns the number of events in the file
    and the number that were lost. Raises `IOFailed`, whose text has both numbers, if the file could
    not be written to its end."""
    events, lost = ctypes.c_uint64(), ctypes.c_uint64()
    ok(C.gpumem_record_stop(ctypes.byref(events), ctypes.byref(lost)))
    return events.value, lost.value


@contextlib.contextmanager
def recording(path: str | os.PathLike[str], *, stacks: int = 0) -> Iterator[None]:
    """Records every allocation in a `with` block to a file, as `record_start` does."""
    record_start(path, stacks=stacks)
    own = _begun
    try:
        yield
    finally:
        # It may have ended within its block, and another one begun.
        if _begun == own:
            with contextlib.suppress(Invalid):
                record_stop()


def snapshot(path: str | os.PathLike[str]) -> None:
    """Writes the state of all memory now to a file, as JSON, for `gpumem view`. Replaces an
    existing file."""
    ok(C.gpumem_snapshot(_values.path(path)))

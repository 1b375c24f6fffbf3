"""Streams, for programs without another CUDA library."""

from __future__ import annotations

import ctypes
import numbers

from . import _values
from ._errors import ok
from ._library import C
from ._types import StreamLike


class _Life:
    """What destroys a stream, when nobody holds it any more: neither its `Stream`, nor buffers that
    were made or announced on it, whose free needs the stream."""

    __slots__ = ("handle", "ended")

    def __init__(self) -> None:
        self.handle: int | None = None
        self.ended: list[int] = []
        out = ctypes.c_void_p()
        ok(C.gpumem_stream_create(ctypes.byref(out)))
        self.handle = out.value

    def __del__(self, _destroy=C.gpumem_stream_destroy):
        try:
            if self.handle is not None:
                self.ended.append(_destroy(self.handle))
        except Exception:  # Nobody could take it.
            pass


class Stream:
    """A new stream of the current device that does not synchronise with the legacy default stream.
    It ends by `destroy()`, at the end of its `with` block, or when garbage-collected. Work
    submitted to it still runs, and buffers that were made or announced on it keep it until they are
    freed."""

    __slots__ = ("handle", "_life", "__weakref__")

    def __init__(self) -> None:
        self.handle: int | None = None
        self._life: _Life | None = _Life()
        self.handle = self._life.handle

    def synchronize(self) -> None:
        """Waits until everything submitted to it is done."""
        ok(C.gpumem_stream_sync(_values.stream(self)))

    def wait(self, other: StreamLike) -> None:
        """Makes later work on this stream wait, on the device, for everything submitted so far to
        `other`."""
        ok(C.gpumem_stream_wait(_values.stream(self), _values.stream(other)))

    def destroy(self) -> None:
        """Destroys the stream, once no buffer needs it. Calling it again does nothing."""
        life, self._life, self.handle = self._life, None, None
        if life is not None:
            ended = life.ended
            del life
            for status in ended:
                ok(status)

    def __cuda_stream__(self) -> tuple[int, int | None]:
        return 0, self.handle

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_):
        self.destroy()

    __reduce__ = _values.no_copy

    def __repr__(self):
        return f"Stream({self.handle:#x})" if self.handle is not None else "Stream(destroyed)"


def life(stream):
    """What keeps a stream from being destroyed; None for the default stream and for numbers."""
    return stream._life if isinstance(stream, Stream) else None if isinstance(stream, numbers.Integral) else stream


def synchronize(stream: StreamLike = None, *, device: int = False) -> None:
    """Waits until everything submitted to a stream is done, or with `device=True` everything
    submitted to the current device."""
    ok(C.gpumem_device_sync() if device else C.gpumem_stream_sync(_values.stream(stream)))

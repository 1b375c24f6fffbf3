"""Streams, for programs without another CUDA library."""

from __future__ import annotations

import ctypes

from . import _values
from ._errors import ok
from ._library import C
from ._types import StreamLike


class Stream:
    """A new stream of the current device that does not synchronise with the legacy default stream.
    It is destroyed by `destroy()`, at the end of its `with` block, or when garbage-collected. Work
    submitted to it still runs."""

    __slots__ = ("handle", "__weakref__")

    def __init__(self) -> None:
        self.handle = None
        out = ctypes.c_void_p()
        ok(C.gpumem_stream_create(ctypes.byref(out)))
        self.handle = out.value

    def synchronize(self) -> None:
        """Waits until everything submitted to it is done."""
        ok(C.gpumem_stream_sync(_values.stream(self)))

    def wait(self, other: StreamLike) -> None:
        """Makes later work on this stream wait, on the device, for everything submitted so far to
        `other`."""
        ok(C.gpumem_stream_wait(_values.stream(self), _values.stream(other)))

    def destroy(self) -> None:
        """Destroys the stream. Calling it again does nothing."""
        handle, self.handle = self.handle, None
        if handle is not None:
            ok(C.gpumem_stream_destroy(handle))

    def __cuda_stream__(self) -> tuple[int, int | None]:
        return 0, self.handle

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_):
        self.destroy()

    def __del__(self, _destroy=C.gpumem_stream_destroy):
        try:
            if self.handle is not None:
                _destroy(self.handle)
        except Exception:  # Nobody could take it.
            pass

    __reduce__ = _values.no_copy

    def __repr__(self):
        return f"Stream({self.handle:#x})" if self.handle is not None else "Stream(destroyed)"


def synchronize(stream: StreamLike = None, *, device: int = False) -> None:
    """Waits until everything submitted to a stream is done, or with `device=True` everything
    submitted to the current device."""
    ok(C.gpumem_device_sync() if device else C.gpumem_stream_sync(_values.stream(stream)))

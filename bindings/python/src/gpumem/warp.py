"""Warp on gpumem:

    wp.set_cuda_allocator(gpumem.warp.Allocator())

or `gpumem.warp.enable()`. Arrays are allocated in the order of the current stream of Warp's
device, and freed in the order of the stream they were made on. They belong to no arena, and outlive
the abort of a capture.
"""

import warp

from ._arena import outside
from ._buffer import malloc
from ._library import C


class Allocator:
    """The allocator for `warp.set_cuda_allocator`."""

    def allocate(self, size_in_bytes):
        """Allocates in the order of the current stream of the device whose context is current, and
        returns the address. 0 bytes give 0."""
        if not size_in_bytes:
            return 0
        stream = _current_stream()
        return outside(malloc(size_in_bytes, stream), stream)

    def deallocate(self, ptr, size_in_bytes):
        """Frees in the order of the stream that the memory was allocated on."""
        if ptr:
            C.gpumem_free(ptr)


def _current_stream():
    device = warp.get_cuda_device() if hasattr(warp, "get_cuda_device") else warp.get_device()
    try:
        # Warp makes the context of an array's device current before it calls; this is that device.
        from warp._src.context import runtime

        device = runtime.get_current_cuda_device()
    except (ImportError, AttributeError):
        pass
    return device.stream.cuda_stream


def enable():
    """Makes gpumem the allocator of all of Warp's CUDA devices."""
    warp.set_cuda_allocator(Allocator())


__all__ = ["Allocator", "enable"]

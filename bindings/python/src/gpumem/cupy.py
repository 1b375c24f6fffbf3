"""CuPy on gpumem:

    cupy.cuda.set_allocator(gpumem.cupy.allocator)

or `gpumem.cupy.enable()`, which also gives back what CuPy's own pool holds. Arrays are allocated in
the order of CuPy's current stream, and freed in the order of the stream they were made on.
`cupy.get_default_memory_pool()` no longer counts anything; use `gpumem.stats()`.
"""

import cupy

from ._buffer import Buffer


def allocator(nbytes):
    """The allocator for `cupy.cuda.set_allocator`: memory from gpumem on the current device, in the
    order of CuPy's current stream."""
    if nbytes == 0:
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, cupy.cuda.device.get_device_id()), 0)
    try:
        buffer = Buffer(nbytes, stream=cupy.cuda.get_current_stream())
    except MemoryError as why:
        raise cupy.cuda.memory.OutOfMemoryError(nbytes, _allocated(), 0) from why
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(buffer.ptr, nbytes, buffer, cupy.cuda.device.get_device_id()), 0)


def _allocated():
    from ._stats import stats

    return stats().requested


def enable():
    """Makes gpumem CuPy's allocator, and gives back the free memory of CuPy's pool."""
    cupy.cuda.set_allocator(allocator)
    cupy.get_default_memory_pool().free_all_blocks()

"""CuPy on gpumem:

    cupy.cuda.set_allocator(gpumem.cupy.allocator)

or `gpumem.cupy.enable()`, which also gives back what CuPy's own pool has. Arrays are allocated and
freed in the order of CuPy's current stream. `cupy.get_default_memory_pool()` counts nothing any
more: `gpumem.stats()` does.
"""

import cupy

from ._buffer import Buffer


def allocator(nbytes):
    """What `cupy.cuda.set_allocator` takes: memory of gpumem's for the current device, in the order
    of CuPy's current stream."""
    if nbytes == 0:
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, cupy.cuda.device.get_device_id()), 0)
    try:
        buffer = Buffer(nbytes, stream=cupy.cuda.get_current_stream().ptr)
    except MemoryError as why:
        raise cupy.cuda.memory.OutOfMemoryError(nbytes, _allocated(), 0) from why
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(buffer.ptr, nbytes, buffer, cupy.cuda.device.get_device_id()), 0)


def _allocated():
    from ._stats import stats

    return stats().requested


def enable():
    """Makes it CuPy's allocator, and gives back what CuPy's pool has free."""
    cupy.cuda.set_allocator(allocator)
    cupy.get_default_memory_pool().free_all_blocks()

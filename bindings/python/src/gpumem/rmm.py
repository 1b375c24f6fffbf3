"""RMM on gpumem, and what uses RMM's current resource (cuDF, cuML, cuGraph):

    rmm.mr.set_current_device_resource(gpumem.rmm.resource())

Each allocation passes through Python; C++ programs use `gpumem::memory_resource` of gpumem/rmm.hpp
instead. PyTorch and CuPy on gpumem share the same pool. RMM's memory belongs to no arena,
and outlives the abort of a capture.
"""

import rmm

from . import _values
from ._arena import outside
from ._buffer import free, malloc


def resource():
    """Returns an RMM resource that allocates from gpumem, on the current device, in the order of
    the stream that RMM names."""
    return rmm.mr.CallbackMemoryResource(_allocate, _deallocate)


# RMM turns a MemoryError into std::bad_alloc, and that into a MemoryError where Python asked.
def _allocate(nbytes, stream):
    stream = _values.stream(stream)
    return outside(malloc(nbytes, stream), stream)


def _deallocate(ptr, nbytes, stream):
    free(ptr, _values.stream(stream))


def enable():
    """Makes gpumem the current device's resource, and returns that resource."""
    made = resource()
    rmm.mr.set_current_device_resource(made)
    return made

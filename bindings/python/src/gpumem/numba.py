"""Numba on gpumem:

    NUMBA_CUDA_MEMORY_MANAGER=gpumem.numba python program.py

or `gpumem.numba.enable()` before the first use of CUDA. An External Memory Management plugin of
interface version 1, for Numba's own CUDA target and for the package numba-cuda. Memory is allocated
and freed in the order of the legacy default stream, which synchronises with the streams of
`numba.cuda.stream()`.

Handles for other processes (`DeviceNDArray.get_ipc_handle`) work for memory allocated in
`exportable()`, and are passed through `multiprocessing` (queues, arguments of processes).
"""

import contextlib
import ctypes
import os
import threading
import weakref

from numba.cuda import HostOnlyCUDAMemoryManager, IpcHandle, MemoryInfo, MemoryPointer

from . import _stats
from ._buffer import Buffer, export_fd, import_fd, pointer_info

_local = threading.local()


@contextlib.contextmanager
def exportable():
    """A `with` block in which the thread's arrays get memory that can be shared with other
    processes. Each takes whole pages of 2 MiB."""
    before = getattr(_local, "exportable", False)
    _local.exportable = True
    try:
        yield
    finally:
        _local.exportable = before


class GpumemManager(HostOnlyCUDAMemoryManager):
    """Device memory from gpumem; host memory from Numba."""

    def initialize(self):
        """Does nothing: gpumem starts with the first allocation."""

    def memalloc(self, size):
        options = {"exportable": True} if getattr(_local, "exportable", False) else {}
        try:
            buffer = Buffer(size, **options)
        except MemoryError:
            # Numba may be keeping for later what is missing.
            self.deallocations.clear()
            buffer = Buffer(size, **options)
        # The finalizer holds the buffer, and frees by its number: once, and nothing after its
        # arena's end.
        return MemoryPointer(self.context, _pointer(buffer.ptr), size, finalizer=buffer.free)

    def get_memory_info(self):
        free, total = _stats.device_memory()
        stats = _stats.stats()
        # Memory that gpumem holds unused is free for requests.
        return MemoryInfo(free=free + stats.free + stats.waiting + stats.stock, total=total)

    def get_ipc_handle(self, memory):
        at = _address(memory)
        info = pointer_info(at)
        from ._declarations import MALLOC_EXPORTABLE

        if not info.flags & MALLOC_EXPORTABLE:
            raise RuntimeError("this array's memory cannot be shared with another process: make it in `with gpumem.numba.exportable():`")
        identity = self.context.device.get_device_identity() if self.context is not None else None
        return GpumemIpcHandle(memory, info.base, info.requested, identity, at - info.base)

    @property
    def interface_version(self):
        return 1


def _pointer(address):
    """An address in the type of this version of Numba: numba-cuda of 2026 takes the driver's own
    type."""
    kind = _device_pointer_type()
    return kind(address) if kind is not None else ctypes.c_uint64(address)


def _device_pointer_type():
    try:
        from numba.cuda.cudadrv.driver import USE_NV_BINDING
    except ImportError:
        USE_NV_BINDING = True  # Versions without the switch have nothing else.
    if not USE_NV_BINDING:
        return None
    try:
        from cuda.bindings.driver import CUdeviceptr
    except ImportError:
        from cuda.cuda import CUdeviceptr
    return CUdeviceptr


def _address(memory):
    handle = getattr(memory, "device_pointer_value", None)
    return int(handle) if handle is not None else int(getattr(memory.handle, "value", memory.handle))


class GpumemIpcHandle(IpcHandle):
    """Memory of another process. Pickling it, as `multiprocessing` does, makes a file descriptor,
    which is fetched when the handle is opened: once for each pickle."""

    def __init__(self, base, address, size, source_info=None, offset=0, descriptor=None, pid=None):
        super().__init__(base, None, size, source_info, offset)
        self.address, self.descriptor, self.pid = address, descriptor, pid or os.getpid()
        self._buffer = None

    def open(self, context):
        if self._buffer is not None:
            raise ValueError("IpcHandle is already opened")
        if self.descriptor is None:
            raise RuntimeError("a handle is opened by another process than the one that made it")
        fd = self.descriptor.detach()
        try:
            self._buffer = import_fd(fd, self.size, _stats.current_device())
        finally:
            os.close(fd)
        pointer = MemoryPointer(context, _pointer(self._buffer.ptr + self.offset), self.size - self.offset)
        # Arrays keep this pointer, not the handle. close() frees the buffer all the same.
        pointer.gpumem_buffer = self._buffer
        return pointer

    open_direct = open_staged = open

    def close(self):
        if self._buffer is None:
            raise ValueError("IpcHandle not opened")
        self._buffer.free()
        self._buffer = None

    def __reduce__(self):
        from multiprocessing.context import get_spawning_popen
        from multiprocessing.reduction import DupFd

        fd = export_fd(self.address)
        # For an argument of a process that is being started only its number is taken, until the
        # process is there; the handle is an argument until then.
        closing = weakref.finalize(self, os.close, fd)
        descriptor = DupFd(fd)
        if get_spawning_popen() is None:
            closing()
        return _rebuild, (self.address, self.size, self.source_info, self.offset, descriptor, self.pid)


def _rebuild(address, size, source_info, offset, descriptor, pid):
    return GpumemIpcHandle(None, address, size, source_info, offset, descriptor, pid)


def enable():
    """Makes gpumem Numba's memory manager, for contexts made from now on."""
    from numba import cuda

    cuda.set_memory_manager(GpumemManager)


# What NUMBA_CUDA_MEMORY_MANAGER looks for.
_numba_memory_manager = GpumemManager

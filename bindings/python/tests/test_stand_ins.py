"""The adapters that are plain Python, with stand-ins for their libraries: memory is the host
device's."""

import importlib
import sys
import types
import weakref

import gpumem
import pytest


@pytest.fixture
def adapter(monkeypatch):
    """Imports an adapter with a stand-in for its library."""
    def load(name, **names):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**names))
        monkeypatch.delitem(sys.modules, f"gpumem.{name}", raising=False)
        return importlib.import_module(f"gpumem.{name}")
    return load


def test_cupy_memory_keeps_its_stream(adapter):
    class Stream:
        def __init__(self):
            self.stream = gpumem.Stream()
            self.ptr = self.stream.handle

    streams = [Stream()]
    kept = weakref.ref(streams[0])
    cupy = adapter("cupy", cuda=types.SimpleNamespace(
        get_current_stream=lambda: streams[0], device=types.SimpleNamespace(get_device_id=lambda: 0),
        UnownedMemory=lambda ptr, nbytes, owner, device: owner, MemoryPointer=lambda memory, offset: memory))
    memory = cupy.allocator(1000)
    assert gpumem.pointer_info(memory).stream == kept().ptr
    streams.clear()
    assert kept() is not None
    del memory
    assert kept() is None


def test_warp_arrays_outlive_arenas(adapter):
    with gpumem.Stream() as s:
        device = types.SimpleNamespace(stream=types.SimpleNamespace(cuda_stream=s.handle))
        allocator = adapter("warp", get_device=lambda: device).Allocator()
        outlives_arenas(lambda: allocator.allocate(4096), lambda ptr: allocator.deallocate(ptr, 4096), s)


def test_rmm_memory_outlives_arenas(adapter):
    rmm = adapter("rmm", mr=types.SimpleNamespace(CallbackMemoryResource=lambda *functions: functions))
    allocate, deallocate = rmm.resource()
    outlives_arenas(lambda: allocate(4096, 0), lambda ptr: deallocate(ptr, 4096, 0), None)


def outlives_arenas(allocate, deallocate, stream):
    """Its owner frees an address, which must be its own by then."""
    with gpumem.arena("step"):
        ptr = allocate()
    b = gpumem.Buffer(4096, stream=stream)
    deallocate(ptr)
    assert b.live and b.ptr != ptr
    with pytest.raises(gpumem.UnknownPointer):
        gpumem.pointer_info(ptr)

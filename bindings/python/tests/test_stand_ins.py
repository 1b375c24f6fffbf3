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


def test_warp_arrays_outlive_arenas_and_aborts(adapter):
    with gpumem.Stream() as s:
        device = types.SimpleNamespace(stream=types.SimpleNamespace(cuda_stream=s.handle))
        allocator = adapter("warp", get_device=lambda: device).Allocator()
        outlives(lambda: allocator.allocate(4096), lambda ptr: allocator.deallocate(ptr, 4096), s)


def test_rmm_memory_outlives_arenas_and_aborts(adapter):
    rmm = adapter("rmm", mr=types.SimpleNamespace(CallbackMemoryResource=lambda *functions: functions))
    allocate, deallocate = rmm.resource()
    with gpumem.Stream() as s:
        outlives(lambda: allocate(4096, s.handle), lambda ptr: deallocate(ptr, 4096, s.handle), s)


def outlives(allocate, deallocate, stream):
    """Its owner frees an address, which must be its own by then."""
    capture = gpumem.capture(stream).begin()
    captured = allocate()
    capture.abort()
    assert gpumem.pointer_info(captured).requested == 4096
    with gpumem.arena("step"):
        ptr = allocate()
    others = [gpumem.Buffer(4096, stream=stream) for _ in range(10)]
    for address in (captured, ptr):
        deallocate(address)
        assert all(b.live and b.ptr != address for b in others)
        with pytest.raises(gpumem.UnknownPointer):
            gpumem.pointer_info(address)

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

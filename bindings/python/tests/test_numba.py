"""The memory manager for Numba against Numba's own classes; memory is the host device's where there
is no GPU."""

import gc
import inspect
import multiprocessing
import os

import gpumem
import pytest

pytest.importorskip("numba")
try:
    from numba.cuda import BaseCUDAMemoryManager, HostOnlyCUDAMemoryManager
except Exception as why:  # Of numba-cuda's own kinds: it looks for the CUDA runtime as it loads.
    pytest.skip(f"numba.cuda does not load: {str(why).strip()}", allow_module_level=True)
import gpumem.numba  # noqa: E402


def manager():
    return gpumem.numba._numba_memory_manager(context=None)


def test_it_is_what_numba_asks_for():
    assert issubclass(gpumem.numba._numba_memory_manager, HostOnlyCUDAMemoryManager)
    assert manager().interface_version == 1
    # Everything abstract is there, with Numba's parameters.
    for name in BaseCUDAMemoryManager.__abstractmethods__:
        ours, theirs = (getattr(c, name) for c in (gpumem.numba.GpumemManager, BaseCUDAMemoryManager))
        if inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters)[:1] == ["self"], name
    from numba import cuda

    cuda.set_memory_manager(gpumem.numba.GpumemManager)


def test_memory():
    m, before = manager(), gpumem.stats().allocations
    p = m.memalloc(1000)
    assert gpumem.pointer_info(gpumem.numba._address(p)).requested == 1000
    info = m.get_memory_info()
    assert 0 < info.free <= info.total
    p.free()
    assert gpumem.stats().allocations == before
    p = m.memalloc(1000)
    del p
    assert gpumem.stats().allocations == before
    with pytest.raises(MemoryError):
        m.memalloc(1 << 50)
    with pytest.raises(RuntimeError, match="exportable"):
        m.get_ipc_handle(m.memalloc(10))


def open_files():
    return len(os.listdir("/proc/self/fd"))


def child(pipe, handle=None):
    handle = handle or pipe.recv()
    handle.open(None)
    with pytest.raises(ValueError):
        handle.open(None)
    pipe.send(handle._buffer.tobytes()[:3])
    handle._buffer.fill(9)
    gpumem.synchronize()
    handle.close()
    again = pipe.recv()
    if again is not None:
        # An array keeps the memory, not its handle.
        pointer = again.open(None)
        del again
        gc.collect()
        assert gpumem.pointer_info(gpumem.numba._address(pointer)).requested == 5000
    pipe.send("done")


@pytest.mark.parametrize("method, argument", [("spawn", False), ("spawn", True), ("forkserver", True)])
def test_other_processes(method, argument):
    with gpumem.numba.exportable():
        memory = manager().memalloc(5000)
    at = gpumem.numba._address(memory)
    gpumem.memset(at, 7, 5000)
    gpumem.synchronize()
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    # Makes what later ones share.
    first = context.Process(target=int)
    first.start()
    first.join(60)
    first.close()
    before = open_files()
    handle = manager().get_ipc_handle(memory)
    process = context.Process(target=child, args=(there, handle) if argument else (there,))
    process.start()
    if not argument:
        here.send(handle)
    del handle
    assert here.poll(60) and here.recv() == b"\7\7\7"
    here.send(None if argument else manager().get_ipc_handle(memory))
    assert here.poll(60) and here.recv() == "done"
    process.join(60)
    assert process.exitcode == 0
    process.close()
    # What is sent goes through a socket that stays.
    assert open_files() == before or not argument
    copy = gpumem.Buffer(3)
    gpumem.memcpy(copy, at, 3)
    assert copy.tobytes() == b"\t\t\t"

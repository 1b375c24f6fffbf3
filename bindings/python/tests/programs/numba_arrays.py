"""Numba on gpumem, by the variable that Numba reads."""

import multiprocessing
import os

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "gpumem.numba"

import numpy  # noqa: E402
from numba import cuda  # noqa: E402

import gpumem  # noqa: E402
import gpumem.numba  # noqa: E402
from checks import check, run  # noqa: E402


def arrays():
    before = gpumem.stats().allocations
    a = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
    check("arrays come from gpumem", gpumem.pointer_info(a.__cuda_array_interface__["data"][0]).requested == 4000)
    b = cuda.device_array_like(a)
    b.copy_to_device(a)
    check("contents", bool((b.copy_to_host() == numpy.arange(1000)).all()))
    free, total = cuda.current_context().get_memory_info()
    check("memory info", 0 < free <= total)
    del a, b
    cuda.current_context().deallocations.clear()
    check("and are given back", gpumem.stats().allocations == before, f"{before} {gpumem.stats().allocations}")


def kernel():
    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= 2

    b = gpumem.Buffer.of(numpy.arange(1000, dtype=numpy.float32))
    double[4, 256](cuda.as_cuda_array(b))
    cuda.synchronize()
    check("a kernel on a gpumem.Buffer", bool((b.numpy() == 2 * numpy.arange(1000)).all()))


def child(pipe):
    handle = pipe.recv()
    with handle as array:
        good = bool((array.copy_to_host() == 5).all())
        array.copy_to_device(numpy.full(1000, 6, dtype=numpy.float32))
        cuda.synchronize()
    pipe.send(good)


def processes():
    context = multiprocessing.get_context("spawn")
    with gpumem.numba.exportable():
        a = cuda.to_device(numpy.full(1000, 5, dtype=numpy.float32))
    cuda.synchronize()
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    here.send(a.get_ipc_handle())
    check("another process sees the contents", here.poll(120) and here.recv())
    check("and its changes are seen here", bool((a.copy_to_host() == 6).all()))
    process.join(60)


if __name__ == "__main__":
    run(arrays, kernel, processes)

"""CuPy on gpumem."""

import cupy
import gpumem
import gpumem.cupy
from checks import check, run


def arrays():
    gpumem.cupy.enable()
    before = gpumem.stats().allocations
    a = cupy.arange(1 << 20, dtype=cupy.float64)
    check("arrays come from gpumem", gpumem.pointer_info(a.data.ptr).requested == 8 << 20)
    for i in range(100):
        b = a * i + 1
        c = cupy.concatenate([b, a[: 1000 + 997 * i % (1 << 19)]])
    assert float(c[10]) == 10 * 99 + 1
    with cupy.cuda.Stream(non_blocking=True) as s:
        d = cupy.random.rand(1000, 1000)
        e = d @ d
        check("in the order of the current stream", gpumem.pointer_info(e.data.ptr).stream == s.ptr)
    s.synchronize()
    assert cupy.allclose(e, cupy.asarray(d.get() @ d.get()))
    del a, b, c, d, e
    cupy.cuda.Device().synchronize()
    check("and are given back", gpumem.stats().allocations <= before + 8, f"{before} {gpumem.stats().allocations}")


def out_of_memory():
    try:
        cupy.empty(1 << 45, dtype=cupy.uint8)
        check("CuPy's own error", False, "none")
    except cupy.cuda.memory.OutOfMemoryError:
        check("CuPy's own error", True)


def buffers():
    b = gpumem.Buffer(shape=(1000,), dtype="float32")
    a = cupy.asarray(b)
    a[:] = 3
    check("__cuda_array_interface__", a.data.ptr == b.ptr and float(a.sum()) == 3000)
    c = cupy.from_dlpack(b)
    c += 1
    check("DLPack", c.data.ptr == b.ptr and bool((b.numpy() == 4).all()))
    del b
    check("the array keeps the buffer alive", float(c.sum()) == 4000)
    with gpumem.arena("step") as step:
        left = cupy.zeros(1000)
    check("arenas take arrays", step.report.freed == 1, step.report)
    del left


run(arrays, out_of_memory, buffers)

"""CuPy over no pool, its own, or CUDA's: `cupy_check.py none|own|async`. Prints ok, and the time of a loop."""
import sys
import time

import cupy

kind = sys.argv[1]
cupy.cuda.set_allocator({"none": None, "own": cupy.get_default_memory_pool().malloc, "async": None}[kind])
if kind == "async":
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
a = cupy.arange(1 << 20, dtype=cupy.float64)
start = time.perf_counter()
for i in range(300):
    b = a * i + 1
    c = cupy.concatenate([b, a[: 1000 + 997 * i % (1 << 19)]])
    del b
cupy.cuda.Device().synchronize()
seconds = time.perf_counter() - start
assert float(c[10]) == 10 * 299 + 1
assert abs(float(a.sum()) - (2.0**20) * (2.0**20 - 1) / 2) < 1
s = cupy.cuda.Stream(non_blocking=True)
with s:
    d = cupy.random.rand(1000, 1000)
    e = d @ d
s.synchronize()
assert cupy.allclose(e, cupy.asarray(d.get() @ d.get()))
print("ok")
print(f"{seconds * 1e3:.1f} ms", file=sys.stderr)

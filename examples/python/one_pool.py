"""PyTorch, CuPy and Numba in one process, from one pool: what one frees the others use, and one set of statistics counts all.

    python one_pool.py

Without gpumem each of them keeps what it has once taken, and the three add up.
"""

import os

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "gpumem.numba"

import gpumem
import gpumem.torch

gpumem.torch.enable()

import cupy  # noqa: E402
import gpumem.cupy  # noqa: E402
import torch  # noqa: E402
from numba import cuda  # noqa: E402

gpumem.cupy.enable()
GIB = 1 << 30

torch.zeros(1, device="cuda")
cupy.zeros(1)
cuda.current_context()
torch.cuda.synchronize()
gpumem.trim()
start = gpumem.stats().mapped

# Each takes 2 GiB and lets go: the pool holds 2 GiB, not 6.
x = torch.full((2 * GIB,), 1, dtype=torch.uint8, device="cuda")
print(f"PyTorch has {x.numel() / GIB:.0f} GiB;", f"the pool maps {(gpumem.stats().mapped - start) / GIB:.2f} GiB")
del x
torch.cuda.synchronize()

y = cupy.full(2 * GIB, 2, dtype=cupy.uint8)
print(f"CuPy has {y.size / GIB:.0f} GiB;", f"the pool maps {(gpumem.stats().mapped - start) / GIB:.2f} GiB")
del y
cupy.cuda.Device().synchronize()

z = cuda.device_array(2 * GIB, dtype="uint8")
print(f"Numba has {z.size / GIB:.0f} GiB;", f"the pool maps {(gpumem.stats().mapped - start) / GIB:.2f} GiB")
del z
cuda.current_context().deallocations.clear()
cuda.synchronize()

# One array, three views: nothing is copied.
t = torch.arange(1000, dtype=torch.float32, device="cuda")
c = cupy.asarray(t)
n = cuda.as_cuda_array(t)
c *= 2
print("PyTorch sees what CuPy wrote:", t[:4].tolist(), "and so does Numba:", n.copy_to_host()[:4].tolist())

print(gpumem.stats())
print(f"torch.cuda.memory_reserved() is {torch.cuda.memory_reserved()} bytes: the same figure")
peak = (gpumem.stats().peak_mapped - start) / GIB
print(f"at most {peak:.2f} GiB were mapped for all three")
if peak > 2.5:
    raise SystemExit("they did not share")

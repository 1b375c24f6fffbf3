"""Warp on gpumem."""

import warp as wp

import gpumem
import gpumem.warp
from checks import check, run


def arrays():
    wp.init()
    wp.set_cuda_allocator(gpumem.warp.Allocator())
    before = gpumem.stats().allocations
    a = wp.full(shape=1000, value=3.0, dtype=float, device="cuda:0")
    check("arrays come from gpumem", gpumem.pointer_info(a.ptr).requested == 4000)
    check("contents", bool((a.numpy() == 3).all()))
    del a
    check("and are given back", gpumem.stats().allocations == before)


run(arrays)

#!/usr/bin/env python3
"""Two PyTorch programs that never repeat, in the form that gpu/torch.sh takes.

    WORKLOADS="streams moe" gpu/torch.sh bench/peers/torch_workloads.py
    torch_workloads.py WORKLOAD native|expandable|async|gpumem [LIBRARY]

`streams`: three stages on a stream each hand tensors on with `record_stream`; sizes are log-uniform
from 256 KiB to 128 MiB, and 24 results are kept. `moe`: four layers of sixteen experts, two for
each token, trained on batches of ever new lengths. Prints one JSON line: the most that the driver
said was used beyond what was there before, GiB; the most that tensors took, GiB, where PyTorch
counts it; the median of a step, ms.

    SEED=1   TRAIN_STEPS=60
"""

import ctypes
import json
import os
import random
import statistics
import sys
import time

if len(sys.argv) < 3 or sys.argv[1] not in ("streams", "moe") or sys.argv[2] not in ("native", "expandable", "async", "gpumem"):
    sys.exit(__doc__)
workload, mode = sys.argv[1], sys.argv[2]
SEED, STEPS = int(os.environ.get("SEED", "1")), int(os.environ.get("TRAIN_STEPS", "60"))
# Steps in which kernels are loaded and pools are filled; they are left out of the median.
WARMING = STEPS // 6
GIB = 1 << 30

configured = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}.get(mode)
if configured:
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = configured
if mode == "gpumem":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.join(here, "..", "..", "bindings", "python", "src"))
    if len(sys.argv) > 3:
        os.environ["GPUMEM_LIBRARY"] = sys.argv[3]

import torch
import torch.nn.functional as F

if mode == "gpumem":
    import gpumem.torch

    gpumem.torch.enable()

driver = ctypes.CDLL("libcuda.so.1")
rng = random.Random(SEED)


def used():
    """Bytes of the device that are in use, as the driver says."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value - free.value


def empty(count):
    return torch.empty(count, device="cuda", dtype=torch.bfloat16)


class Streams:
    """Produce, transform, join: a stream each."""

    TENSORS, KEPT = 60, 24

    def __init__(self):
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        self.kept = []
        for stream in self.streams:
            with torch.cuda.stream(stream):
                empty(64).normal_()

    def step(self, sample):
        first, second, third = self.streams
        for _ in range(self.TENSORS):
            with torch.cuda.stream(first):
                x = empty(int(2 ** rng.uniform(17, 26))).normal_()
            second.wait_stream(first)
            with torch.cuda.stream(second):
                y = F.gelu(x) * 2
                x.record_stream(second)
            third.wait_stream(second)
            with torch.cuda.stream(third):
                z = torch.cat([y, y])
                y.record_stream(third)
            self.kept.append(z)
            del x, y, z
            if len(self.kept) > self.KEPT:
                self.kept.pop(rng.randrange(len(self.kept)))
        sample()


class Experts:
    """A mixture of experts; how many tokens each of them gets is different in every step."""

    LAYERS, EXPERTS, HIDDEN, INNER = 4, 16, 1024, 2816

    def __init__(self):
        def weights(rows, columns):
            return torch.nn.Parameter((torch.randn(rows, columns, device="cuda") * 0.02).bfloat16())

        experts = self.LAYERS * self.EXPERTS
        self.up = [weights(self.INNER, self.HIDDEN) for _ in range(experts)]
        self.down = [weights(self.HIDDEN, self.INNER) for _ in range(experts)]
        self.routers = [weights(self.EXPERTS, self.HIDDEN) for _ in range(self.LAYERS)]
        self.optimiser = torch.optim.AdamW(self.up + self.down + self.routers, lr=1e-4)

    def step(self, sample):
        h = torch.randn(rng.randrange(2048, 16384), self.HIDDEN, device="cuda").bfloat16()
        for layer in range(self.LAYERS):
            weight, chosen = F.softmax(h @ self.routers[layer].t(), -1).topk(2, -1)
            out = torch.zeros_like(h)
            for expert in range(self.EXPERTS):
                n = layer * self.EXPERTS + expert
                row, column = (chosen == expert).nonzero(as_tuple=True)
                made = F.linear(F.gelu(F.linear(h[row], self.up[n])), self.down[n])
                out = out.index_add(0, row, made * weight[row, column, None])
            h = F.layer_norm(h + out, (self.HIDDEN,))
        h.float().pow(2).mean().backward()
        sample()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        sample()


torch.manual_seed(SEED)
# What the driver and cuBLAS take for themselves.
(torch.randn(64, 64, device="cuda").bfloat16() @ torch.randn(64, 64, device="cuda").bfloat16()).sum().item()
torch.cuda.synchronize()
torch.cuda.empty_cache()
before, peak, times = used(), 0, []


def sample():
    global peak
    peak = max(peak, used() - before)


program = Streams() if workload == "streams" else Experts()
for _ in range(STEPS):
    torch.cuda.synchronize()
    start = time.perf_counter()
    program.step(sample)
    torch.cuda.synchronize()
    times.append((time.perf_counter() - start) * 1e3)
result = {"workload": workload, "mode": mode, "driver_peak_gib": peak / GIB,
          "step_ms_median": statistics.median(times[WARMING:])}
# cudaMallocAsync's backend counts what it has freed and the device has not passed as well.
if mode != "async":
    result["torch_peak_allocated_gib"] = torch.cuda.max_memory_allocated() / GIB
print(json.dumps(result), flush=True)

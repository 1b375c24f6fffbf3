"""Sleep and wake of weights against plain copies: `torch_sleep.py GIB CYCLES`. Figures, and checks:
speed, and nothing grows."""

import math
import os
import sys
import time

# Half of what the system says that it has is the default, and a virtual machine may say little
# until memory is used.
os.environ.setdefault("GPUMEM_PINNED_LIMIT", f"{math.ceil(1.1 * float(sys.argv[1])) + 1}G")

import gpumem.torch  # noqa: E402

gpumem.torch.enable(native=True)

import torch  # noqa: E402
from checks import check, run  # noqa: E402

GIB = 1 << 30
size, cycles = float(sys.argv[1]), int(sys.argv[2])
device = torch.device("cuda")


def plain():
    """GB/s to pinned memory and back, of copies of 1 GiB, the best of rounds."""
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(GIB, dtype=torch.uint8, device=device)
    best = [0.0, 0.0]
    for _ in range(5):
        for i, (to, of) in enumerate(((host, there), (there, host))):
            torch.cuda.synchronize()
            start = time.perf_counter()
            to.copy_(of, non_blocking=True)
            to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            best[i] = max(best[i], 2 * GIB / (time.perf_counter() - start) / 1e9)
    return best


def used():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def cycle():
    out, back = plain()
    torch.cuda.empty_cache()
    with gpumem.torch.tag("weights"):
        # As a model has them: many of some MiB, and small ones.
        weights, left = [], int(size * GIB)
        while left > 0:
            n = min(left, 64 << 20)
            weights.append(torch.full((n,), len(weights) % 251, dtype=torch.uint8, device=device))
            weights.append(torch.full((4096,), 1, dtype=torch.uint8, device=device))
            left -= n
    x = torch.zeros(1, device=device)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        x.add_(weights[-2][:1].float()[0])
    times, levels = [], []
    for i in range(cycles):
        start = time.perf_counter()
        report = gpumem.torch.sleep("weights")
        middle = time.perf_counter()
        asleep = used()
        again = time.perf_counter()
        gpumem.torch.wake("weights")
        end = time.perf_counter()
        times.append((report.moved_bytes / (middle - start) / 1e9, report.moved_bytes / (end - again) / 1e9))
        levels.append((asleep, used(), gpumem.stats().reserved))
    good = all(int(weights[i][-1]) == i % 251 for i in range(0, len(weights), max(2, len(weights) // 64 * 2)))
    # The first cycle pins the host's memory.
    later = times[1:] or times
    sleep, wake = max(t[0] for t in later), max(t[1] for t in later)
    print(f"figure sleep {sleep:.1f} GB/s, wake {wake:.1f} GB/s, first cycle {times[0][0]:.1f} and {times[0][1]:.1f}; "
          f"plain {out:.1f} and {back:.1f}; {report.moved_bytes / GIB:.1f} GiB in {report.moved} pieces, {cycles} cycles")
    check("contents are whole", good)
    check("sleep is 0.95 of plain copies", sleep >= 0.95 * out, f"{sleep:.1f} of {out:.1f} GB/s = {sleep / out:.3f}")
    check("wake is 0.95 of plain copies", wake >= 0.95 * back, f"{wake:.1f} of {back:.1f} GB/s = {wake / back:.3f}")
    flat = levels[1:] or levels
    check("cycles are flat", max(a for a, _, _ in flat) - min(a for a, _, _ in flat) <= 64 << 20 and flat[-1][1] - flat[0][1] <= 64 << 20 and
          flat[-1][2] <= flat[0][2], f"asleep {flat[0]} first, {flat[-1]} last")
    g.replay()
    torch.cuda.synchronize()
    check("a captured graph replays right after a wake", float(x) == float(weights[-2][0]), float(x))


run(cycle)

"""What a torch.empty and its end take: `torch_pairs.py native|gpumem|pluggable`. One line of JSON:
ns by size, the least of several rounds, on the default stream and on another."""

import json
import statistics
import sys
import time

mode = sys.argv[1]
if mode != "native":
    import gpumem.torch

    gpumem.torch.enable(native=mode == "gpumem")
import torch  # noqa: E402

device = torch.device("cuda")
torch.zeros(1, device=device)


def pair(size, count=20000):
    empty = torch.empty
    for _ in range(500):
        empty(size, dtype=torch.uint8, device=device)
    start = time.perf_counter_ns()
    for _ in range(count):
        empty(size, dtype=torch.uint8, device=device)
    return (time.perf_counter_ns() - start) / count


out = {}
for where in ("default", "other"):
    stream = torch.cuda.current_stream() if where == "default" else torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for size in (256, 4096, 1 << 20, 64 << 20):
            rounds = [pair(size, 5000) for _ in range(40)]
            out[f"{where} {size}"] = [round(min(rounds), 1), round(statistics.median(rounds), 1)]
print(json.dumps({"mode": mode, "ns": out}))

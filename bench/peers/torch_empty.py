#!/usr/bin/env python3
"""What a tensor's memory costs in PyTorch, with gpumem and with PyTorch's own allocator, each as it comes.

    torch_empty.py [--runs N] [--cases CASE...]     measures; prints a table
    torch_empty.py --report RESULTS                 the table alone, of results that were kept

gpumem goes through PyTorch's interface for other allocators, PyTorch's own does not: what that interface costs is in
gpumem's figures, as in any program. A figure is the time of a torch.empty and of the end of the tensor that it made,
Python included, which is the same for both. Each process has one allocator; they come in turns.

Exits with 1 when a process fails, 2 on bad usage.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time

import shared

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAMES = ("torch_native", "gpumem")
SEED = 11
KIB, MIB = 1 << 10, 1 << 20
# Pairs of one size, and so many in a round; or LIVE tensors of sizes from 512 B to 16 MiB,
# log-uniform, and so many in a round of which each takes the place of another.
SIZES = {"512 B": 512, "4 KiB": 4 * KIB, "1 MiB": MIB, "64 MiB": 64 * MIB}
LIVE_SET, LIVE, SMALLEST, LARGEST = "1,000 live", 1000, 512, 16 * MIB
PAIRS, ROUNDS = 20_000, 15


def one(allocator, library, cases):
    """Measures in this process; prints microseconds a pair by case, the median of all rounds but the first."""
    import torch

    if allocator == "gpumem":
        pluggable = torch.cuda.memory.CUDAPluggableAllocator(library, "gpumem_torch_malloc", "gpumem_torch_free")
        torch.cuda.memory.change_current_allocator(pluggable)
    device, kind, empty = torch.device("cuda"), torch.uint8, torch.empty

    def same_size(size):
        for _ in range(PAIRS):
            empty(size, dtype=kind, device=device)

    draw = random.Random(SEED)
    some_size = lambda: int(SMALLEST * (LARGEST / SMALLEST) ** draw.random())
    changes = [(draw.randrange(LIVE), some_size()) for _ in range(PAIRS)]
    live = []

    def live_set():
        for place, size in changes:
            live[place] = None
            live[place] = empty(size, dtype=kind, device=device)

    found = {}
    for case in cases:
        if case == LIVE_SET:
            live.extend(empty(some_size(), dtype=kind, device=device) for _ in range(LIVE))
        rounds = []
        for _ in range(1 + ROUNDS):
            since = time.perf_counter()
            live_set() if case == LIVE_SET else same_size(SIZES[case])
            rounds.append(1e6 * (time.perf_counter() - since) / PAIRS)
        found[case] = round(statistics.median(rounds[1:]), 4)
        live.clear()
    print(json.dumps({"allocator": allocator, "us": found}))


def report(lines):
    """The table: medians of the processes, and between which limits each process's figures were."""
    out = ["| case | PyTorch's own, µs | gpumem, µs | gpumem ÷ PyTorch's own |", "|---|---|---|---|"]
    of = {name: [line["us"] for line in lines if line["allocator"] == name] for name in NAMES}
    for case in dict.fromkeys(case for line in lines for case in line["us"]):
        values = {name: [us[case] for us in of[name] if case in us] for name in NAMES}
        text = [shared.spread(v, 3) if v else "" for v in values.values()]
        own, gpumem = values.values()
        ratio = f"**{statistics.median(gpumem) / statistics.median(own):.2f}**" if own and gpumem else ""
        out.append(f"| {case} | {text[0]} | {text[1]} | {ratio} |")
    return "\n".join(out)


def measure(arguments):
    """Runs all processes; their lines, and whether one failed."""
    environment = dict(os.environ, GPUMEM_BACKEND="cuda")
    lines, failed = [], False
    for run in range(arguments.runs):
        # What drifts from one process to the next is on either side as often.
        for allocator in NAMES if run % 2 == 0 else reversed(NAMES):
            command = [sys.executable, os.path.abspath(__file__), "--one", allocator, "--library", arguments.library,
                       "--cases", *arguments.cases]
            printed = shared.output_of(command, f"torch_empty: {allocator}", environment, arguments.time)
            if printed is None:
                failed = True
            else:
                lines.append(json.loads(printed.splitlines()[-1]))
    return lines, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", metavar="CASE", choices=[*SIZES, LIVE_SET], default=[*SIZES, LIVE_SET],
                        help="of: " + ", ".join([*SIZES, LIVE_SET]))
    parser.add_argument("--runs", type=int, default=4, help="processes of each allocator")
    parser.add_argument("--time", type=float, default=120, help="seconds after which a process is ended")
    parser.add_argument("--results", help="where a line is added for each process")
    parser.add_argument("--library", default=os.path.join(ROOT, ".gpu", "lib", "libgpumem.so.0"))
    parser.add_argument("--report", metavar="RESULTS")
    parser.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report:
        try:
            with open(arguments.report, encoding="utf-8") as results:
                print(report([json.loads(line) for line in results]))
        except (OSError, ValueError, KeyError, TypeError) as fault:
            parser.error(f"{arguments.report}: no results of torch_empty.py: {fault!r}")
        return
    arguments.library = os.path.abspath(arguments.library)
    if not os.path.exists(arguments.library):
        parser.error(f"no library at {arguments.library}: run gpu/stage.sh")
    if arguments.one:
        one(arguments.one, arguments.library, arguments.cases)
        return
    lines, failed = measure(arguments)
    if arguments.results:
        with open(arguments.results, "a", encoding="utf-8") as results:
            results.writelines(json.dumps(line) + "\n" for line in lines)
    print(report(lines))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

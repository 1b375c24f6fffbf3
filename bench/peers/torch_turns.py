#!/usr/bin/env python3
"""Steps of PyTorch programs with gpumem and with PyTorch's own allocator, in turns within one process.

    torch_turns.py WORKLOAD-SCRIPT          measures; prints a table
    torch_turns.py --report RESULTS         the table alone, of results that were kept

Separate processes of one program differ by several per cent whatever allocates their memory, which hides what an
allocator does. Here a process has both. A library (torch_turns.cpp) passes the calls of a step on to one of them,
drawn at random, and a second process repeats the same steps with every draw the other way round: what only one
process has, or only one step, is on either side of the comparison.

WORKLOAD-SCRIPT is what gpu/torch.sh takes, called as `WORKLOAD-SCRIPT WORKLOAD gpumem LIBRARY`. It must do the same
work in every process and end each step with torch.cuda.synchronize(); a step lasts from one such call to the next.
The device needs room for what both allocators keep.

Exits with 1 when a run fails, 2 on bad usage.
"""

import argparse
import ctypes
import json
import math
import os
import random
import runpy
import statistics
import subprocess
import sys
import time

import shared

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# By the numbers that torch_turns_choose takes.
NAMES = ("torch_native", "gpumem")
SEED = 7
# The share of a process's steps, from the first on, in which both pools still grow; they are left
# out.
WARMING = 1 / 6
# The share of ratios left out at either end: steps in which the machine did something else.
TRIMMED = 1 / 10


def draws(swapped):
    """Whose turn it is, step after step: of each two steps one is gpumem's, which of them is drawn."""
    draw = random.Random(SEED)
    while True:
        first = draw.randrange(2) ^ swapped
        yield first
        yield 1 - first


def one(script, workload, library, swapped, results):
    """Runs the workload in this process and leaves its steps as one JSON line in the file `results`."""
    import torch

    turns, whole = ctypes.CDLL(library), torch.cuda.synchronize
    order, steps, state = draws(swapped), [], {}

    def next_turn():
        state["who"] = next(order)
        turns.torch_turns_choose(state["who"])
        state["since"] = time.perf_counter()

    def synchronize(*arguments, **names):
        whole(*arguments, **names)
        steps.append((NAMES[state["who"]], round(1e3 * (time.perf_counter() - state["since"]), 4)))
        next_turn()

    torch.cuda.synchronize = synchronize
    next_turn()
    sys.argv = [script, workload, "gpumem", library]
    runpy.run_path(script, run_name="__main__")
    with open(results, "w", encoding="utf-8") as out:
        json.dump({"workload": workload, "swapped": swapped, "steps": steps}, out)


def trimmed(values):
    cut = int(len(values) * TRIMMED)
    return sorted(values)[cut : len(values) - cut]


def compare(plain, swapped):
    """What two processes with opposite draws say, or why they say nothing.

    With g the allocators' ratio and p the processes', a step of which the first process had gpumem gives log g + log p,
    one of which the second had it log g - log p; so half the sum of the means is log g, half the difference log p.
    """
    pairs = list(zip(plain["steps"], swapped["steps"]))
    pairs = pairs[int(len(pairs) * WARMING) :]
    logs, times = {True: [], False: []}, {name: [] for name in NAMES}
    for (who, first), (other, second) in pairs:
        if {who, other} != set(NAMES) or min(first, second) <= 0:
            return f"not steps of opposite draws: {who} {first} ms, {other} {second} ms"
        own, gpumem = (second, first) if who == "gpumem" else (first, second)
        times["torch_native"].append(own)
        times["gpumem"].append(gpumem)
        logs[who == "gpumem"].append(math.log(gpumem / own))
    if min(map(len, logs.values())) < 4:
        return f"only {len(pairs)} steps after the first ones"
    kept = [trimmed(values) for values in (logs[True], logs[False])]
    means = [statistics.mean(values) for values in kept]
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in kept)) / 2
    return {"steps": len(pairs), "times": {name: statistics.median(values) for name, values in times.items()},
            "allocators": math.exp(sum(means) / 2), "error": error, "processes": math.exp((means[0] - means[1]) / 2)}


def report(lines):
    """The table of all pairs of processes, a workload's first with its first of the opposite draws and so on; and
    whether all could be compared."""
    out = ["| workload | steps | PyTorch's own, ms | gpumem, ms | gpumem ÷ PyTorch's own | standard error | "
           "one process ÷ the other |", "|---|---|---|---|---|---|---|"]
    failed = False
    for workload in dict.fromkeys(line["workload"] for line in lines):
        of = [[line for line in lines if line["workload"] == workload and line["swapped"] == swapped] for swapped in (0, 1)]
        found = [compare(*pair) for pair in zip(*of)]
        if len(of[0]) != len(of[1]):
            found.append(f"{len(of[0])} processes, {len(of[1])} of the opposite draws")
        for one_pair in found:
            if isinstance(one_pair, str):
                print(f"torch_turns: {workload}: {one_pair}", file=sys.stderr)
                failed = True
                continue
            own, gpumem = (f"{one_pair['times'][name]:.2f}" for name in NAMES)
            out.append(f"| {workload} | {one_pair['steps']} | {own} | {gpumem} | **{one_pair['allocators']:.3f}** | "
                       f"{one_pair['error']:.3f} | {one_pair['processes']:.3f} |")
    return "\n".join(out), failed


def measure(arguments):
    """Runs all processes, keeps their lines in `arguments.results`; the lines, and whether one failed."""
    environment = dict(os.environ, GPUMEM_BACKEND="cuda", GPUMEM_LIBRARY=os.path.abspath(arguments.gpumem))
    lines, failed = [], False
    one_result = arguments.results + ".one"
    for workload in arguments.workloads:
        for swapped in [0, 1] * arguments.runs:
            command = [sys.executable, os.path.abspath(__file__), arguments.script, "--one", workload, str(swapped),
                       "--library", arguments.library, "--results", one_result]
            if shared.output_of(command, f"torch_turns: {workload}", environment, arguments.time) is None:
                failed = True
                continue
            with open(one_result, encoding="utf-8") as result:
                lines.append(json.load(result))
            os.remove(one_result)
            with open(arguments.results, "a", encoding="utf-8") as results:
                results.write(json.dumps(lines[-1]) + "\n")
    return lines, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="?", metavar="WORKLOAD-SCRIPT")
    parser.add_argument("--workloads", nargs="+", default=["lora", "full", "unet", "eager"])
    parser.add_argument("--runs", type=int, default=1, help="pairs of processes for each workload")
    parser.add_argument("--time", type=float, default=300, help="seconds after which a process is ended")
    parser.add_argument("--results", default=os.path.join(ROOT, ".gpu", "torch_turns.jsonl"),
                        help="where a line is added for each process")
    parser.add_argument("--library", default=os.path.join(ROOT, ".gpu", "peers", "torch_turns.so"),
                        help="what bench/peers/build.sh makes; built first where it is missing")
    parser.add_argument("--gpumem", default=os.path.join(ROOT, ".gpu", "lib", "libgpumem.so.0"))
    parser.add_argument("--report", metavar="RESULTS")
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "SWAPPED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report:
        try:
            with open(arguments.report, encoding="utf-8") as results:
                table, failed = report([json.loads(line) for line in results])
        except (OSError, ValueError, KeyError, TypeError) as fault:
            parser.error(f"{arguments.report}: no results of torch_turns.py: {fault!r}")
        print(table)
        sys.exit(1 if failed else 0)
    if not arguments.script or not os.path.exists(arguments.script):
        parser.error(f"no workload script at {arguments.script}")
    arguments.library = os.path.abspath(arguments.library)
    if arguments.one:
        one(arguments.script, arguments.one[0], arguments.library, int(arguments.one[1]), arguments.results)
        return
    if not os.path.exists(arguments.library):
        built = subprocess.run(["bash", os.path.join(HERE, "build.sh"), os.path.dirname(arguments.library)], check=False)
        if built.returncode != 0 or not os.path.exists(arguments.library):
            sys.exit(f"torch_turns: {arguments.library} was not built; bench/peers/build.sh says what it lacks")
    if not os.path.exists(arguments.gpumem):
        sys.exit(f"torch_turns: no library at {arguments.gpumem}: run gpu/stage.sh")
    os.makedirs(os.path.dirname(os.path.abspath(arguments.results)), exist_ok=True)
    lines, failed = measure(arguments)
    table, incomparable = report(lines)
    print(table)
    sys.exit(1 if failed or incomparable else 0)


if __name__ == "__main__":
    main()

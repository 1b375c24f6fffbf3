#!/usr/bin/env python3
"""Programs drawn at random, each under every allocator: what they cost in time and device memory.

    programs.py [--programs N] [--seed N] [--work] [--built FOLDER] [--allocators NAME...]    measures; prints a table
    programs.py --report RESULTS                     the table alone, of results that were kept

A program is the workload `program` of peers.cpp with a seed of its own (fresh.hpp says what is drawn); its sixth pass
counts, and the mean of its first one, which meets an empty device. With --work it is `working_program`: the device
fills blocks meanwhile, and may fall behind the host. Each runs in a process of its own, the allocators in turns. Exits
with 1 when one of gpumem's fails, 2 on bad usage.
"""

import argparse
import json
import os
import statistics
import sys

import shared

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".gpu", "peers")
SUBJECT = "gpumem"
PROGRAMS = {"gpumem": "peers_cuda", "cudaMallocAsync": "peers_cuda", "torch_expandable": "peers_torch",
            "torch_native": "peers_torch", "rmm_pool": "peers_rmm", "rmm_async": "peers_rmm"}
# A peer is as tight when it takes no more than this: a share, and MiB.
AS_TIGHT, GRAIN = 1.02, 8


def measure(arguments, allocator, seed):
    """{metric: value} of a program's last pass, with the mean of its first one under "first pass" and what it was under
    "about"; None when it failed."""
    name = "peers_host" if arguments.host else PROGRAMS[allocator]
    command = [os.path.join(arguments.built, name), "--seed", str(seed), "--ops", str(arguments.ops), "--limit",
               str(arguments.limit), allocator, "working_program" if arguments.work else "program"]
    printed = shared.output_of(command, f"programs: {allocator}, seed {seed}", None, 4 * arguments.limit + 20)
    printed = list(map(json.loads, (printed or "").splitlines()))
    figures = [f for f in printed if f["case"] == "sixth pass"]
    if not figures or any(f["metric"] == "failures" and f["value"] > 0 for f in figures):
        return None
    about = next((f["note"] for f in figures if f["metric"] == "mean" and f.get("note")), "")
    first = next(f["value"] for f in printed if f["case"] == "first pass" and f["metric"] == "mean")
    return {**{f["metric"]: f["value"] for f in figures}, "first pass": first, "about": about}


def report(results):
    """The table: a row for each allocator. Means are geometric, over the programs that every allocator could run."""
    allocators = list(dict.fromkeys(a for of in results.values() for a in of))
    whole = {seed: of for seed, of in results.items() if all(of[a] for a in allocators)}
    out = [f"{len(results)} programs, {len(whole)} of which every allocator could run:", "",
           "| allocator | µs an operation | 99th percentile, µs | first pass, µs | device, MiB | fastest in | a peer is faster and as tight in | failed |",
           "|---|---|---|---|---|---|---|---|"]
    mebibytes = {(seed, a): of[a]["device used"] * 1024 + GRAIN for seed, of in whole.items() for a in allocators}
    for a in allocators:
        def mean(of):
            return statistics.geometric_mean(max(value, 1e-3) for value in of) if whole else float("nan")
        fastest = sum(of[a]["mean"] <= min(of[b]["mean"] for b in allocators) for of in whole.values())
        beaten = sum(any(of[b]["mean"] < .95 * of[a]["mean"] and mebibytes[seed, b] <= AS_TIGHT * mebibytes[seed, a]
                         for b in allocators) for seed, of in whole.items())
        failed = sum(of[a] is None for of in results.values())
        out.append(f"| {a} | {mean(of[a]['mean'] for of in whole.values()):.2f} | "
                   f"{mean(of[a]['p99'] for of in whole.values()):.1f} | "
                   f"{mean(of[a]['first pass'] for of in whole.values()):.2f} | {mean(mebibytes[seed, a] for seed in whole):,.0f} | "
                   f"{fastest} | {beaten} | {failed} |")
    if SUBJECT in allocators and len(allocators) > 1:
        def behind(of):
            return of[SUBJECT]["mean"] / min(of[a]["mean"] for a in allocators if a != SUBJECT)
        out += ["", f"Where {SUBJECT} is furthest behind:", "", "| seed | program | " + " | ".join(allocators) + " |",
                "|---|---|" + "---|" * len(allocators)]
        for seed, of in sorted(whole.items(), key=lambda of: -behind(of[1]))[:10]:
            cells = " | ".join(f"{of[a]['mean']:.2f} at {mebibytes[seed, a]:,.0f}" for a in allocators)
            out.append(f"| {seed} | {of[SUBJECT]['about']} | {cells} |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--work", action="store_true", help="the device fills blocks meanwhile")
    parser.add_argument("--ops", type=int, default=8000, help="operations a pass")
    parser.add_argument("--limit", type=int, default=20, help="seconds for one program")
    parser.add_argument("--built", default=BUILT, help="where build.sh put the programs")
    parser.add_argument("--allocators", nargs="+", default=None, choices=PROGRAMS)
    parser.add_argument("--host", action="store_true", help="gpumem alone, on the host device")
    parser.add_argument("--results", help="where to keep every figure")
    parser.add_argument("--report", metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.report:
        with open(arguments.report, encoding="utf-8") as kept:
            print(report({int(seed): of for seed, of in json.load(kept).items()}))
        return 0
    if arguments.host:
        os.environ["GPUMEM_BACKEND"] = "host"
    allocators = arguments.allocators or (["gpumem"] if arguments.host else [
        a for a in ("gpumem", "cudaMallocAsync", "torch_expandable", "torch_native")
        if os.access(os.path.join(arguments.built, PROGRAMS[a]), os.X_OK)])
    results = {}
    for seed in range(arguments.seed, arguments.seed + arguments.programs):
        results[seed] = {a: measure(arguments, a, seed) for a in allocators}
    if arguments.results:
        with open(arguments.results, "w", encoding="utf-8") as kept:
            json.dump(results, kept)
    print(report(results))
    return 1 if any(of.get(SUBJECT, True) is None for of in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

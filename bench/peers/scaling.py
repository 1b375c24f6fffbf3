#!/usr/bin/env python3
"""How many times one thread several make, and how many times it the machine lets any program make.

    scaling.py [--rounds N] [--program FILE] [--apart FILE]     measures; prints a table
    scaling.py --report RESULTS                                 the table alone, of results that were kept

A round is gpumem's threads workload (peers.cpp), and apart.cpp: the same scripts in processes that share nothing, in one
process beside others that add numbers in registers, and such additions alone. What comes first changes from round to
round. 1 is at times as slow as it is beside others, when somebody else's work shares its core; the most it made counts.

Exits with 1 when a process fails, 2 on bad usage.
"""

import argparse
import json
import os
import sys

import shared

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.join(os.path.dirname(os.path.dirname(HERE)), ".gpu", "peers")
MOST = 16
THREADS, PROCESSES, BESIDE, ADDITIONS = "rate", "processes", "beside additions", "additions"
# By the metric of a figure.
COLUMNS = {THREADS: "threads", PROCESSES: "processes that share nothing",
           BESIDE: "as many times one process beside others that add", ADDITIONS: "additions in registers"}


def figures(printed, metrics):
    """{metric: {how many at once: Mops/s}} of the lines that peers.cpp or apart.cpp printed."""
    found = {}
    for figure in map(json.loads, printed.splitlines()):
        if figure["metric"] in metrics:
            # The case of threads is "16 threads".
            found.setdefault(figure["metric"], {})[int(figure["case"].split()[0])] = figure["value"]
    return found


def one_round(arguments, apart_first):
    """The figures of one round; None when a process failed."""
    ops, short = (["--ops", str(arguments.ops)], ["0.01"]) if arguments.ops else ([], [])
    parts = [([arguments.program, *ops, "gpumem", "threads"], [THREADS]),
             ([arguments.apart, str(MOST), *short], [PROCESSES, BESIDE, ADDITIONS])]
    found = {}
    for command, metrics in reversed(parts) if apart_first else parts:
        printed = shared.output_of(command, f"scaling: {os.path.basename(command[0])}", None, arguments.time)
        if printed is None:
            return None
        found.update(figures(printed, metrics))
    return found


def report(rounds):
    """The table: a row for each number at once."""
    fastest = {metric: max(r[metric][1] for r in rounds) for metric in COLUMNS}
    out = [f"What several make, times the most that 1 made in any round; medians of {len(rounds)} rounds (and limits):", "",
           "| at once | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
    for at_once in sorted({n for r in rounds for of in r.values() for n in of}):
        cells = []
        for metric, best in fastest.items():
            # What one makes beside others: so much they would make together if each lost as much.
            times = at_once if metric == BESIDE else 1
            rates = [times * r[metric][at_once] for r in rounds if at_once in r[metric]]
            if at_once == 1:
                cells.append(shared.spread(rates, 1) + " Mops/s")
            else:
                cells.append(shared.spread([rate / best for rate in rates], 1) if rates else "")
        out.append(f"| {at_once} | " + " | ".join(cells) + " |")
    both = shared.spread([r[THREADS][MOST] / r[PROCESSES][MOST] for r in rounds], 2)
    alone = shared.spread([r[THREADS][MOST] / r[BESIDE][MOST] for r in rounds], 1)
    return "\n".join(out + ["", f"{MOST} threads make {both} times what {MOST} processes make in the same round, and {alone} "
                            f"times what one process makes beside {MOST - 1} that add."])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default=os.path.join(BUILT, "peers_cuda"), help="peers.cpp, as build.sh makes it")
    parser.add_argument("--apart", default=os.path.join(BUILT, "apart"))
    parser.add_argument("--ops", type=int, help="allocations of a thread, for a quick look")
    parser.add_argument("--time", type=float, default=120, help="seconds after which a process is ended")
    parser.add_argument("--results", help="where a line is added for each round")
    parser.add_argument("--report", metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.report:
        try:
            with open(arguments.report, encoding="utf-8") as results:
                lines = [json.loads(line) for line in results]
            print(report([{metric: {int(n): v for n, v in of.items()} for metric, of in r.items()} for r in lines]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
            parser.error(f"{arguments.report}: no results of scaling.py: {fault!r}")
        return
    for program in (arguments.program, arguments.apart):
        if not os.access(program, os.X_OK):
            parser.error(f"no program {program}: run bench/peers/build.sh")
    if arguments.rounds < 1:
        parser.error(f"{arguments.rounds} rounds: 1 or more can be measured")
    # What drifts within a round is on either side as often.
    rounds = [one_round(arguments, apart_first=i % 2 == 1) for i in range(arguments.rounds)]
    done = [r for r in rounds if r]
    if arguments.results:
        with open(arguments.results, "a", encoding="utf-8") as results:
            results.writelines(json.dumps(r) + "\n" for r in done)
    if done:
        print(report(done))
    sys.exit(0 if len(done) == len(rounds) else 1)


if __name__ == "__main__":
    main()

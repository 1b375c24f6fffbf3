#!/usr/bin/env python3
"""Turns the JSON lines of bench/peers/run.sh into one Markdown table, and a plot.

    table.py [--all] [--machine TEXT] [--svg FILE] PEERS.jsonl

Rows are workloads, cases and metrics, columns allocators. Where a run took a figure in several processes, theirs is the
median. The last column is gpumem divided by the best peer; of gpumem's two runs the worse one counts. --all shows every
metric instead of the main ones.
"""

import argparse
import html
import json
import math
import statistics
import sys

SUBJECT = "gpumem"
# The main metrics of each workload, as (case or None for all, metric).
MAIN = {
    "cold": [(None, "malloc"), (None, "both")],
    "hot": [(None, "pair mean")],
    "live": [(None, "pair mean")],
    "random": [(None, "mean"), (None, "p99"), ("warm", "device used")],
    "threads": [(None, "rate")],
    "threads_one_stream": [(None, "rate")],
    "cross_stream": [("warm", "pair mean")],
    "growing": [(None, "mean"), (None, "device used")],
    "checkerboard": [(None, "malloc"), (None, "device used after")],
    **dict.fromkeys(
        ["serving", "log_uniform", "held", "uniform", "nearly_full", "lengths", "cache", "pipeline", "fifo"],
        [("sixth pass", "mean"), ("sixth pass", "p99"), ("sixth pass", "p99.9"), ("sixth pass", "utilisation")],
    ),
    "turns": [(None, "mean malloc"), (None, "device used")],
    "growth": [(None, "mean malloc"), (None, "host memory")],
    "many_streams": [(None, "pair mean")],
    "replay": [(None, "mean"), (None, "utilisation")],
}
ORDER = list(MAIN)
# Facts about the workload and the run, not measurements to compare.
FACTS = {"failed", "failures", "peak live", "driver calls an operation", "device used before"}
NOTE_CHARACTERS = 200
UNITS = {"us": "µs", "1": ""}


def more_is_better(metric, unit):
    return unit == "Mops/s" or metric == "utilisation"


def read(path):
    """({(workload, case, metric): {(allocator, run): figure}}, failures), figures in the order of the file."""
    figures, failures = {}, []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                figure = json.loads(line)
                key = figure["workload"], figure["case"], figure["metric"]
                column = figure["allocator"], figure["run"]
                float(figure["value"])
            except (ValueError, KeyError, TypeError) as fault:
                sys.exit(f"{path}:{number}: not a figure: {fault!r}")
            if key[2] == "failed" or (key[2] == "failures" and figure["value"] > 0):
                failures.append(figure)
            figures.setdefault(key, {}).setdefault(column, []).append(figure)
    return {key: {column: median(of) for column, of in row.items()} for key, row in figures.items()}, failures


def median(figures):
    """One figure with the median of their values, and the first note that one of them has."""
    note = next((f["note"] for f in figures if f.get("note")), "")
    return {**figures[0], "value": statistics.median(f["value"] for f in figures), "note": note}


def is_main(key):
    workload, case, metric = key
    return any(m == metric and c in (None, case) for c, m in MAIN.get(workload, []))


def chosen(figures, everything):
    """The keys to show, by workload, then case, as they were measured."""
    keys = [k for k in figures if k[2] not in FACTS and (everything or is_main(k))]
    cases = {}
    for workload, case, _ in figures:
        cases.setdefault((workload, case), len(cases))
    place = {w: i for i, w in enumerate(ORDER)}
    return sorted(keys, key=lambda k: (place.get(k[0], len(ORDER)), cases[k[0], k[1]]))


def fixed(figure):
    """Memory that a pool took up front says nothing about what the workload needs."""
    return figure.get("note") == "taken up front"


def ratio(key, row, failures):
    """gpumem ÷ best peer, and that peer's name; None where either is missing. Who did only a part is no best peer."""
    unit = next(iter(row.values()))["unit"]
    better, worse = (max, min) if more_is_better(key[2], unit) else (min, max)
    own = [f["value"] for (a, _), f in row.items() if a == SUBJECT]
    partly = {f["allocator"] for f in failures if f["workload"] == key[0] and f["case"] in ("", key[1])}
    partly |= {a for (a, _), f in row.items() if f.get("note", "").startswith("stopped")}
    peers = [(f["value"], a) for (a, _), f in row.items()
             if a != SUBJECT and a not in partly and not fixed(f) and f["value"] > 0]
    if not own or not peers:
        return None
    best = better(peers)
    return worse(own) / best[0], best[1]


def driver_calls(figures):
    """{workload: driver calls an operation in the case that makes most}, as gpumem counts them."""
    most = {}
    for (workload, _, metric), row in figures.items():
        if metric == "driver calls an operation":
            most[workload] = max([most.get(workload, 0)] + [f["value"] for f in row.values()])
    return most


def text(figure):
    if figure is None:
        return ""
    value, unit = figure["value"], figure["unit"]
    if unit == "Mops/s":
        shown = f"{value:.2f}"
    elif unit == "GiB":
        shown = f"{value:.2f}"
    elif unit == "1":
        shown = f"{value:.3f}"
    else:
        shown = f"{value:.3f}" if value < 10 else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    if figure.get("note", "").startswith("stopped"):
        shown += " *"
    return f"({shown})" if fixed(figure) else shown


def table(figures, failures, keys, machine):
    columns = []
    for row in figures.values():
        columns += [c for c in row if c not in columns]
    columns.sort(key=lambda c: (c[0] != SUBJECT, c[1] if c[0] == SUBJECT else 0))
    names = [a if run == 1 else f"{a}, again" for a, run in columns]
    out = [f"Machine: {machine}." if machine else "", ""]
    out.append("| workload | case | metric | " + " | ".join(names) + f" | {SUBJECT} ÷ best peer |")
    out.append("|---|---|---|" + "---|" * (len(columns) + 1))
    for key in keys:
        row = figures[key]
        workload, case, metric = key
        unit = next(iter(row.values()))["unit"]
        shown = ", ".join(filter(None, [metric, UNITS.get(unit, unit)]))
        if more_is_better(metric, unit):
            shown += " (more is better)"
        broken = {(f["allocator"], f["run"]) for f in failures if f["workload"] == workload and f["case"] in ("", case)}
        cells = [text(row.get(c)) or ("failed" if c in broken else "") for c in columns]
        r = ratio(key, row, failures)
        cells.append(f"**{r[0]:.2f}** ({r[1]})" if r else "")
        out.append(f"| {workload} | {case} | {shown} | " + " | ".join(cells) + " |")
    out += ["", f"Of the two runs of {SUBJECT} the worse one is in the last column; the peer in brackets is the best one.",
            "Figures in brackets are memory that a pool of fixed size took before the workload; they do not count as the best.",
            "Where the time was not enough for a whole workload, * marks the figure of the part that was done; what did only",
            "a part, or failed in part, does not count as the best either."]
    calls = driver_calls(figures)
    if calls:
        most = ", ".join(f"{workload} {value:.2f}" for workload, value in calls.items())
        out += ["", f"Driver calls of {SUBJECT} an operation, the case with most of each workload: {most}."]
    if failures:
        out += ["", "What failed:", ""]
    for f in failures:
        where = ", ".join(filter(None, [f["workload"], f["case"]]))
        count = f"{f['value']:.0f} allocations refused: " if f["metric"] == "failures" else ""
        # Some libraries explain themselves over many lines.
        why = " ".join(f.get("note", "").split())
        line = f"- {f['allocator']}, {where}: {count}{why[:NOTE_CHARACTERS]}"
        # Several processes may fail alike.
        if line not in out:
            out.append(line)
    return "\n".join(out).strip() + "\n"


def plot(figures, failures, keys, machine):
    """One bar a row, to the right where gpumem is better than the best peer; logarithmic."""
    bars = []
    for key in keys:
        r = ratio(key, figures[key], failures)
        if r and r[0] > 0:
            unit = next(iter(figures[key].values()))["unit"]
            bars.append((key, r[0] if more_is_better(key[2], unit) else 1 / r[0], r[1]))
    height, label, width, right, top = 18, 440, 420, 190, 62
    low = min([0.5] + [b[1] for b in bars]) / 1.15
    high = max([2] + [b[1] for b in bars]) * 1.15
    x = lambda v: label + width * math.log(v / low) / math.log(high / low)
    whole = label + width + right
    bottom = top + height * len(bars)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {bottom + 40}" width="{whole}" '
           f'height="{bottom + 40}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">',
           f'<rect width="{whole}" height="{bottom + 40}" fill="#fff"/>',
           f'<text x="16" y="24" font-size="16">{SUBJECT} against the best peer of each row</text>',
           f'<text x="16" y="44" fill="#666">{html.escape(machine)}; times better (right of 1) or worse (left), '
           'logarithmic</text>']
    marks = [m for e in range(-3, 5) for m in (10.0 ** e, 2 * 10.0 ** e, 5 * 10.0 ** e) if low <= m <= high]
    # Where marks lie close, some go without a number; 1 comes first, so that it has one.
    written = []
    for m in sorted(marks, key=lambda m: m != 1):
        stroke = "#444" if m == 1 else "#ddd"
        out.append(f'<line x1="{x(m):.1f}" y1="{top}" x2="{x(m):.1f}" y2="{bottom}" stroke="{stroke}"/>')
        if all(abs(x(m) - w) >= 34 for w in written):
            written.append(x(m))
            out.append(f'<text x="{x(m):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{m:g}×</text>')
    for i, ((workload, case, metric), better, peer) in enumerate(bars):
        y = top + height * i
        start, end = sorted((x(1), x(better)))
        fill = "#2b7a5b" if better >= 1 else "#b5542c"
        name = html.escape(f"{workload}: {case}, {metric}")
        out.append(f'<text x="{label - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        out.append(f'<rect x="{start:.1f}" y="{y + 3}" width="{max(end - start, 1):.1f}" height="{height - 6}" fill="{fill}"/>')
        out.append(f'<text x="{end + 6:.1f}" y="{y + 13}" fill="#444">{better:.3g}× {html.escape(peer)}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--machine", default="")
    parser.add_argument("--svg")
    arguments = parser.parse_args()
    figures, failures = read(arguments.file)
    if not figures:
        sys.exit(f"{arguments.file}: no figure in it")
    keys = chosen(figures, arguments.all)
    sys.stdout.write(table(figures, failures, keys, arguments.machine))
    if arguments.svg:
        with open(arguments.svg, "w", encoding="utf-8") as out:
            out.write(plot(figures, failures, keys, arguments.machine))


if __name__ == "__main__":
    main()

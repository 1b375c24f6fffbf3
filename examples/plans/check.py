#!/usr/bin/env python3
"""Checks layouts: `python3 check.py FILE.csv ...`, with columns lower, upper, size and offset.

Buffers that are live at a common step must share no byte; live ranges are half-open. Prints of each file how many bytes
the layout takes and how many are live at the fullest step, which no layout can do without. Exits with 1 if any is wrong.
"""

import bisect
import csv
import sys

COLUMNS = ("lower", "upper", "size", "offset")


def check(path):
    with open(path, newline="") as file:
        table = csv.DictReader(file)
        there = table.fieldnames or ()
        missing = [name for name in COLUMNS if name not in there]
        if missing:
            sys.exit(f"{path}: no column {', '.join(missing)} among {', '.join(there)}; gpumem plan --out adds offsets")
        rows = []
        for row in table:
            values = [row[name] for name in COLUMNS]
            try:
                rows.append(dict(zip(COLUMNS, map(int, values))))
            except (TypeError, ValueError):  # TypeError: the line is too short.
                sys.exit(f"{path}: line {table.line_num}: {', '.join(COLUMNS)} are {', '.join(map(str, values))}, not whole numbers")
    # Of one step, what ends comes before what begins.
    events = []
    for k, row in enumerate(rows):
        if row["size"] > 0 and row["lower"] < row["upper"]:
            events += [(row["lower"], 1, k), (row["upper"], 0, k)]
    events.sort()
    live, bytes_live, most, end = [], 0, 0, 0
    for step, begins, k in events:
        here = (rows[k]["offset"], rows[k]["offset"] + rows[k]["size"], k)
        at = bisect.bisect_left(live, here)
        if not begins:
            del live[at]
            bytes_live -= rows[k]["size"]
            continue
        for other in live[max(at - 1, 0) : at + 1]:
            if other[0] < here[1] and here[0] < other[1]:
                sys.exit(f"{path}: lines {other[2] + 2} and {k + 2} share bytes at step {step}")
        if here[0] < 0:
            sys.exit(f"{path}: line {k + 2} begins before the arena")
        live.insert(at, here)
        bytes_live += rows[k]["size"]
        most, end = max(most, bytes_live), max(end, here[1])
    print(f"{path}: {len(rows)} buffers in {end} bytes; {most} are live at the fullest step")


for path in sys.argv[1:]:
    check(path)

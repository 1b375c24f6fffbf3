#!/usr/bin/env python3
"""What moving memory takes on recorded traces: utilisation, calls and modelled driver time, pass by pass.

    python3 scripts/extents.py TRACE.csv.gz...     (PASSES=2, GPUMEM=target/release/gpumem)

Replays on the host device, which counts calls exactly, and prices them as measured on an H200 (driver 580.159) for
extents of 2 to 64 MiB: docs/adr/extent-sizes.md. One table row a trace.
"""
import json
import os
import subprocess
import sys

# Microseconds per extent. set_access takes its time per extent, whatever the number of calls: it
# goes with map.
PRICES = {"phys_create": 10.0, "map": 0.7 + 23.5, "unmap": 15.0, "phys_release": 30.0}


def main():
    tool = os.environ.get("GPUMEM", "target/release/gpumem")
    passes = os.environ.get("PASSES", "2")
    env = {"GPUMEM_HOST_BYTES": "160G", **os.environ}
    print("| trace | pass | utilisation | created | mapped | unmapped | modelled ms | ns per operation here |")
    print("|---|---|---|---|---|---|---|---|")
    for trace in sys.argv[1:]:
        command = [tool, "replay", "--backend", "host", "--repeat", passes, "--json", trace]
        report = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)
        for i, p in enumerate(report.get("passes") or [report]):
            calls = p["driver_calls"]
            ms = sum(calls.get(name, 0) * price for name, price in PRICES.items()) / 1000
            row = [os.path.basename(trace), i + 1, f"{report['peak_live_bytes'] / p['peak_mapped_bytes']:.4f}"]
            row += [calls.get(name, 0) for name in ("phys_create", "map", "unmap")]
            row += [f"{ms:.1f}", f"{p['mean_ns_per_op']:.0f}"]
            print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# PyTorch workloads under four allocators: driver memory at peak and time of a step, gpumem against
# the others.
#
#   gpu/torch.sh WORKLOAD-SCRIPT [LIBRARY]
#
# WORKLOAD-SCRIPT is called as `python WORKLOAD-SCRIPT WORKLOAD MODE [LIBRARY]` and prints one JSON
# line with workload, mode, driver_peak_gib, step_ms_median and, in mode native,
# torch_peak_allocated_gib. LIBRARY is .gpu/lib/libgpumem.so.0 by default. Every run is a process of
# its own; runs of one workload follow each other, so that they can be compared.
#
#   WORKLOADS="lora full unet eager"   MODES="native expandable async gpumem"   RUNS=1
#   PYTHON=python3
#   RESULTS=.gpu/torch.jsonl           where the JSON lines go (appended; the table is of this run)
#
# Exits with 1 when a run fails.
set -uo pipefail
script="${1:?usage: gpu/torch.sh WORKLOAD-SCRIPT [LIBRARY]}"
here="$(cd "$(dirname "$0")/.." && pwd)"
library="${2:-$here/.gpu/lib/libgpumem.so.0}"
library="$(cd "$(dirname "$library")" && pwd)/$(basename "$library")"
: "${WORKLOADS:=lora full unet eager}" "${MODES:=native expandable async gpumem}" "${RUNS:=1}" "${PYTHON:=python3}"
: "${RESULTS:=$here/.gpu/torch.jsonl}"
if [ ! -r "$script" ]; then echo "no workload script at $script" >&2; exit 2; fi
if [ ! -r "$library" ]; then echo "no library at $library: run gpu/stage.sh" >&2; exit 2; fi
export GPUMEM_BACKEND=cuda
mkdir -p "$(dirname "$RESULTS")"
now="$(mktemp)"
errors="$(mktemp)"
trap 'rm -f "$now" "$errors"' EXIT
failed=0

for workload in $WORKLOADS; do
    for ((run = 0; run < RUNS; run++)); do
        for mode in $MODES; do
            argument=()
            if [ "$mode" = gpumem ]; then argument=("$library"); fi
            started=$SECONDS
            if line="$("$PYTHON" "$script" "$workload" "$mode" "${argument[@]+"${argument[@]}"}" 2> "$errors" | grep '^{' | tail -n 1)" && [ -n "$line" ]; then
                printf '%s\n' "$line" | tee -a "$RESULTS" >> "$now"
                printf 'ran  %-6s %-11s %4d s\n' "$workload" "$mode" $((SECONDS - started))
            else
                printf 'FAIL %-6s %-11s %4d s\n' "$workload" "$mode" $((SECONDS - started))
                tail -n 15 "$errors" | sed 's/^/     | /'
                failed=1
            fi
        done
    done
done

"$PYTHON" - "$now" << 'PYTHON'
import collections, json, statistics, sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    r = json.loads(line)
    runs[r["workload"], r["mode"]].append(r)
workloads = list(dict.fromkeys(w for w, _ in runs))
modes = list(dict.fromkeys(m for _, m in runs))

def middle(workload, mode, key):
    values = [r[key] for r in runs.get((workload, mode), []) if key in r]
    return statistics.median(values) if values else None

print()
print("| workload | mode | driver peak GiB | / torch's peak allocated (native) | step ms, median | / native |")
print("|---|---|---|---|---|---|")
text = lambda value, digits: "" if value is None else f"{value:.{digits}f}"
ratios = {}
for w in workloads:
    allocated = middle(w, "native", "torch_peak_allocated_gib")
    native_step = middle(w, "native", "step_ms_median")
    for m in modes:
        peak, step = middle(w, m, "driver_peak_gib"), middle(w, m, "step_ms_median")
        if peak is None:
            print(f"| {w} | {m} | failed | | | |")
            continue
        memory = peak / allocated if allocated else None
        time = step / native_step if native_step else None
        ratios[w, m] = memory, time
        print(f"| {w} | {m} | {text(peak, 3)} | {text(memory, 3)} | {text(step, 2)} | {text(time, 3)} |")
print()
for w in workloads:
    memory, time = ratios.get((w, "gpumem"), (None, None))
    if memory is None or time is None:
        continue
    peers = [r for m in modes if m != "gpumem" and (r := ratios.get((w, m), (None, None))[0]) is not None]
    print(f"{w}: gpumem {memory:.3f} of torch's peak, best peer {min(peers):.3f}; step {time:.3f} of native")
PYTHON
exit $failed

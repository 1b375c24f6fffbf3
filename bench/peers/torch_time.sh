#!/usr/bin/env bash
# What PyTorch programs spend in the allocator, gpumem beside PyTorch's own:
# bench/peers/torch_time.sh WORKLOAD-SCRIPT
#
# WORKLOAD-SCRIPT is what gpu/torch.sh takes: called as `python WORKLOAD-SCRIPT WORKLOAD gpumem
# LIBRARY`, it makes LIBRARY's gpumem_torch_malloc and gpumem_torch_free the allocator. LIBRARY is
# one that takes the time of each call and passes it on (torch_time.cpp). The two allocators come in
# turns. Ends with a table; calls of 20 us and more, in which the driver is at work or the thread
# lost its processor, are in its last column alone.
#
#   WORKLOADS="lora full unet eager"   RUNS=2   PYTHON=python3   BUILT=.gpu/peers
#   GPUMEM_LIBRARY=.gpu/lib/libgpumem.so.0
#
# Exits with 1 when a run fails.
set -uo pipefail
script="${1:?usage: bench/peers/torch_time.sh WORKLOAD-SCRIPT}"
if [ ! -r "$script" ]; then echo "torch_time: no workload script at $script" >&2; exit 2; fi
script="$(cd "$(dirname "$script")" && pwd)/$(basename "$script")"
cd "$(dirname "$0")/../.." || exit 2
: "${WORKLOADS:=lora full unet eager}" "${RUNS:=2}" "${PYTHON:=python3}" "${BUILT:=.gpu/peers}"
: "${GPUMEM_LIBRARY:=.gpu/lib/libgpumem.so.0}"
if [ ! -e "$BUILT/torch_time.so" ] || [ bench/peers/torch_time.cpp -nt "$BUILT/torch_time.so" ]; then
    bash bench/peers/build.sh "$BUILT" || exit 3
fi
if [ ! -e "$BUILT/torch_time.so" ]; then echo "torch_time: torch_time.so was not built; bench/peers/build.sh says what it lacks" >&2; exit 3; fi
library="$(cd "$BUILT" && pwd)/torch_time.so"
gpumem="$(cd "$(dirname "$GPUMEM_LIBRARY")" && pwd)/$(basename "$GPUMEM_LIBRARY")"
export GPUMEM_BACKEND=cuda
lines="$(mktemp)"; one="$(mktemp)"; errors="$(mktemp)"
trap 'rm -f "$lines" "$one" "$errors"' EXIT
failed=0

for workload in $WORKLOADS; do
    for ((run = 0; run < RUNS; run++)); do
        order=(native "$gpumem")
        if [ $((run % 2)) -eq 1 ]; then order=("$gpumem" native); fi
        for to in "${order[@]}"; do
            : > "$one"
            if TIMED="$to" TIMED_OUT="$one" "$PYTHON" "$script" "$workload" gpumem "$library" > /dev/null 2> "$errors" && [ -s "$one" ]; then
                printf '%s %s\n' "$workload" "$(cat "$one")" >> "$lines"
            else
                printf 'torch_time: %s through %s failed\n' "$workload" "$to" >&2
                tail -n 15 "$errors" | sed 's/^/     | /' >&2
                failed=1
            fi
        done
    done
done

"$PYTHON" - "$lines" << 'PYTHON'
import collections, json, statistics, sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1], encoding="utf-8"):
    workload, _, figures = line.strip().partition(" ")
    figures = json.loads(figures)
    runs[workload, figures["allocator"]].append(figures)
print("| workload | allocator | mallocs | malloc, us | frees | free, us | a pair against PyTorch's | longer calls: number, ms in all |")
print("|---|---|---|---|---|---|---|---|")
for workload in dict.fromkeys(w for w, _ in runs):
    pair = {}
    for allocator in ("torch_native", "gpumem"):
        of = runs.get((workload, allocator))
        if not of:
            continue
        middle = lambda key: statistics.median(r[key] for r in of)
        pair[allocator] = middle("malloc_us") + middle("free_us")
        against = f"{pair[allocator] / pair['torch_native']:.2f}" if "torch_native" in pair else ""
        print(f"| {workload} | {allocator} | {middle('mallocs'):,.0f} | {middle('malloc_us'):.3f} | {middle('frees'):,.0f} | "
              f"{middle('free_us'):.3f} | {against} | {middle('long_calls'):.0f}, {middle('long_ms'):.1f} |")
PYTHON
exit $failed

#!/usr/bin/env bash
# Measures on a machine with a GPU with what gpu/stage.sh put into .gpu/: `gpumem bench`, then
# gpumem beside its peers on the same workloads and traces (bench/peers), which ends in one table of
# ratios.
#
#   gpu/bench.sh [OUTPUT-FOLDER] [TRACE...]     default: .gpu/bench, and the trace of this
#                                               repository
#
# Leaves in OUTPUT-FOLDER: gpumem.txt (gpumem alone, with driver calls), tiers.txt (moves between
# tiers), peers.md (the table), peers.svg, peers.jsonl, peers.log. Needs g++ with C++20 and CUDA's
# headers and runtime library; measures RMM and PyTorch where they are (bench/peers/build.sh says
# what it lacks). Settings of bench/peers/run.sh hold. Exits with 1 when something failed.
set -uo pipefail
out="${1:-}"
if [ $# -gt 0 ]; then shift; fi
traces=()
for trace in "$@"; do
    if [ ! -r "$trace" ]; then echo "no trace $trace" >&2; exit 2; fi
    traces+=("$(cd "$(dirname "$trace")" && pwd)/$(basename "$trace")")
done
if [ -n "$out" ]; then mkdir -p "$out" && out="$(cd "$out" && pwd)" || exit 2; fi
cd "$(dirname "$0")/.." || exit 2
out="${out:-$PWD/.gpu/bench}"
mkdir -p "$out"
if [ ${#traces[@]} -eq 0 ]; then traces=("$PWD/.gpu/traces/training.csv.gz"); fi
if [ ! -x .gpu/bin/gpumem ]; then echo "nothing in .gpu: run gpu/stage.sh first" >&2; exit 2; fi
failed=0

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null
.gpu/bin/gpumem bench --backend cuda replay "${traces[@]}" > "$out/gpumem-replay.txt" || failed=1
.gpu/bin/gpumem bench --backend cuda > "$out/gpumem.txt" || failed=1
cat "$out/gpumem-replay.txt" >> "$out/gpumem.txt"
rm -f "$out/gpumem-replay.txt"
cat "$out/gpumem.txt"
echo
# Moves between tiers, beside plain copies and plain files.
tiers=.gpu/bin/tiers
if [ ! -x "$tiers" ] || [ gpu/tiers.cu -nt "$tiers" ]; then gpu/build_torture.sh "$tiers" gpu/tiers.cu || failed=1; fi
if [ -x "$tiers" ]; then
    mkdir -p "${TIERS_DIR:=.gpu/disk}"
    env LD_LIBRARY_PATH="$PWD/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" GPUMEM_PINNED_LIMIT="${GPUMEM_PINNED_LIMIT:-48G}" \
        "$tiers" "$TIERS_DIR" copies sleep disk | tee "$out/tiers.txt" || failed=1
    echo
fi
bash bench/peers/run.sh "$out" "${traces[@]}" || failed=1
exit $failed

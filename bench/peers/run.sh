#!/usr/bin/env bash
# gpumem and its peers on the same workloads in one run: bench/peers/run.sh OUTPUT-FOLDER [TRACE...]
#
# Every allocator has processes of its own. gpumem is measured first and once more last, so that
# drift of the machine shows; then how its threads scale, beside what the machine lets any program
# have (scaling.py). Leaves in OUTPUT-FOLDER: peers.jsonl (every figure), scaling.jsonl,
# programs.json, peers.md (the tables, also printed), peers.svg (the plot), peers.log (messages).
# Traces are logs of RMM's logging adaptor, .csv or .csv.gz.
#
#   ALLOCATORS="gpumem cudaMallocAsync rmm_pool ..."   default: all that were built; cudaMalloc is
#                                                      measured in cold only
#   BUILT=FOLDER    where build.sh put the programs; default .gpu/peers; built first where they are
#                   missing
#   TIME=180        seconds after which a process is ended
#   LIMIT=20        seconds for one pass over a workload or trace
#   COLD=5          processes of each allocator for cold, which has one first allocation each; the
#                   table has the medians
#   SCALING=5       rounds of scaling.py, 0: none
#   PROGRAMS=30     programs drawn at random (programs.py), from SEED on
#   OPS=N           allocations per case, for a quick look
#   SEED=N          of work that never repeats; another one in each run by default
#   BACKEND=host    gpumem alone, on the host device, without CUDA
#
# Exits with 1 when something failed. A peer that cannot do a workload is a cell of the table, not a
# failure.
set -uo pipefail
if [ $# -lt 1 ]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
# Before the change of folder: relative names are the caller's.
mkdir -p "$1" || exit 2
out="$(cd "$1" && pwd)"; shift
traces=()
for trace in "$@"; do
    if [ ! -r "$trace" ]; then echo "peers: no trace $trace" >&2; exit 2; fi
    traces+=("$(cd "$(dirname "$trace")" && pwd)/$(basename "$trace")")
done
cd "$(dirname "$0")/../.." || exit 2
: "${BUILT:=.gpu/peers}" "${SEED:=$((RANDOM + 1))}" "${TIME:=180}" "${LIMIT:=20}" "${COLD:=5}" "${SCALING:=5}" "${PROGRAMS:=30}" "${BACKEND:=cuda}" "${PYTHON:=python3}"
export GPUMEM_BACKEND="$BACKEND" BACKEND PYTHON
unset GPUMEM_LIMIT GPUMEM_POOL GPUMEM_PAGE_SIZE GPUMEM_PREALLOC GPUMEM_TRIM_THRESHOLD VPMM_PAGE_SIZE VPMM_PAGES VPMM_VA_SIZE
lines="$out/peers.jsonl"; log="$out/peers.log"
: > "$lines"; : > "$log"; rm -f "$out/scaling.jsonl"

first=peers_cuda
if [ "$BACKEND" = host ]; then first=peers_host; fi
if [ ! -x "$BUILT/$first" ] || [ -n "$(find bench/peers -newer "$BUILT/$first" \( -name '*.cpp' -o -name '*.hpp' \))" ]; then
    bash bench/peers/build.sh "$BUILT" || exit 3
fi

program_of() {
    case "$1" in
        gpumem) echo "$BUILT/$first" ;;
        cudaMalloc*) echo "$BUILT/peers_cuda" ;;
        rmm_*) echo "$BUILT/peers_rmm" ;;
        torch_*) echo "$BUILT/peers_torch" ;;
        *) echo "peers: there is no allocator $1" >&2; exit 2 ;;
    esac
}

if [ -z "${ALLOCATORS:-}" ]; then
    ALLOCATORS=
    for allocator in gpumem cudaMallocAsync rmm_pool rmm_arena rmm_async torch_native torch_expandable cudaMalloc; do
        if [ -x "$(program_of "$allocator")" ]; then ALLOCATORS="$ALLOCATORS $allocator"; fi
    done
    if [ "$BACKEND" = host ]; then ALLOCATORS=gpumem; fi
fi

for allocator in $ALLOCATORS; do
    program="$(program_of "$allocator")" || exit 2
    if [ ! -x "$program" ]; then echo "peers: $allocator was not built; bench/peers/build.sh says what it lacks" >&2; exit 2; fi
done

has_gpumem() { case " $ALLOCATORS " in *" gpumem "*) ;; *) return 1 ;; esac; }

# Workloads that leave no memory behind for others to stumble over share a process.
groups=("hot live threads threads_one_stream cross_stream" "random" "growing" "checkerboard")
# Work that never repeats, the same numbers for every allocator.
groups+=(serving log_uniform held uniform nearly_full lengths cache pipeline fifo turns growth many_streams)
options=(--limit "$LIMIT" --seed "$SEED")
if [ -n "${OPS:-}" ]; then options+=(--ops "$OPS"); fi
failed=0

process() {  # allocator, run, arguments of the program...
    local allocator="$1" run="$2" rc; shift 2
    echo "== $allocator $*" >> "$log"
    timeout "$TIME" "$(program_of "$allocator")" "${options[@]}" --run "$run" "$allocator" "$@" >> "$lines" 2>> "$log"
    rc=$?
    # The program says itself what failed (1); anything else ended it before it could.
    if [ $rc -gt 1 ]; then
        local why="ended with status $rc"
        if [ $rc -eq 124 ]; then why="stopped after $TIME s"; fi
        printf '{"allocator":"%s","run":%d,"workload":"%s","case":"","metric":"failed","value":1,"unit":"1","note":"%s"}\n' \
            "$allocator" "$run" "$1" "$why" >> "$lines"
    fi
    # Of gpumem nothing may fail.
    if [ $rc -ne 0 ] && [ "$allocator" = gpumem ]; then failed=1; fi
}

# In turns, both runs of gpumem too: what drifts is in every allocator's figures alike.
measure_cold() {
    local allocator i started=$SECONDS
    for ((i = 0; i < COLD; i++)); do
        for allocator in $ALLOCATORS; do process "$allocator" 1 cold; done
        if has_gpumem; then process gpumem 2 cold; fi
    done
    printf 'measured  %-18s        %4d s\n' "cold, all" $((SECONDS - started))
}

measure() {  # allocator, run
    if [ "$1" = cudaMalloc ]; then return; fi
    local group started=$SECONDS
    for group in "${groups[@]}"; do
        # shellcheck disable=SC2086
        process "$1" "$2" $group
    done
    if [ ${#traces[@]} -gt 0 ]; then process "$1" "$2" replay "${traces[@]}"; fi
    printf 'measured  %-18s run %d  %4d s\n' "$1" "$2" $((SECONDS - started))
}

measure_scaling() {
    local scaling=(--rounds "$SCALING" --time "$TIME" --program "$(program_of gpumem)" --apart "$BUILT/apart" --results "$out/scaling.jsonl")
    if [ -n "${OPS:-}" ]; then scaling+=(--ops "$OPS"); fi
    echo
    "$PYTHON" bench/peers/scaling.py "${scaling[@]}" 2>> "$log" || failed=1
}

measure_programs() {
    local allocator named=()
    for allocator in gpumem cudaMallocAsync torch_expandable torch_native; do
        case " $ALLOCATORS " in *" $allocator "*) named+=("$allocator") ;; esac
    done
    local programs=(--allocators "${named[@]}" --programs "$PROGRAMS" --seed "$SEED" --limit "$LIMIT" --built "$BUILT" --results "$out/programs.json")
    if [ -n "${OPS:-}" ]; then programs+=(--ops "$OPS"); fi
    if [ "$BACKEND" = host ]; then programs+=(--host); fi
    echo
    "$PYTHON" bench/peers/programs.py "${programs[@]}" 2>> "$log" || failed=1
}

measure_cold
for allocator in $ALLOCATORS; do measure "$allocator" 1; done
if has_gpumem; then measure gpumem 2; fi

machine="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -n 1)"
if [ "$BACKEND" = host ]; then machine="host device"; fi
"$PYTHON" bench/peers/table.py --machine "${machine:-unknown GPU}, $(nproc) host cores" --svg "$out/peers.svg" "$lines" > "$out/peers.md" || failed=1
if has_gpumem; then
    if [ "$SCALING" -gt 0 ]; then measure_scaling >> "$out/peers.md"; fi
    if [ "$PROGRAMS" -gt 0 ]; then measure_programs >> "$out/peers.md"; fi
fi
echo
cat "$out/peers.md"
if [ $failed -ne 0 ]; then echo "peers: something of gpumem's failed; see $log and the table" >&2; fi
exit $failed

#!/usr/bin/env bash
# Runs on a machine with a GPU what gpu/stage.sh put into .gpu/: the contract suite and the device
# tests on CUDA, the C tests on CUDA, the same under compute-sanitizer, late uses by kernels, CUDA
# graphs over capture arenas (with PyTorch too, where there is one), RMM's cases of a memory
# resource, moves between tiers, and the kernel-level torture. One line per step; output of failed
# steps is shown; exits with 1 when a step fails.
#
#   gpu/test.sh [LOG-FOLDER]            logs go to .gpu/logs by default
#   TORTURE_SECONDS=60                  how long the torture runs
#   TESTS="contract cuda_device"        which modules of the driver's tests run
#   STEPS="tests c sanitizer stale graphs rmm tiers torture"   which steps run
#   REPLAYS=10000                       launches of one graph
#   STEP_SECONDS=600                    a step that takes longer is stopped, and has failed
#   TIERS_DIR=.gpu/disk                 a directory on the disk that data is moved to, with 12 GiB
#                                       free
set -uo pipefail
cd "$(dirname "$0")/.."
logs="${1:-.gpu/logs}"
mkdir -p "$logs"
failures=0
: "${TORTURE_SECONDS:=60}" "${TESTS:=contract cuda_device}" "${STEPS:=tests c sanitizer stale graphs rmm tiers torture}" "${TIERS_DIR:=.gpu/disk}" "${REPLAYS:=10000}" "${STEP_SECONDS:=600}"
unset GPUMEM_ARENA_DEBUG GPUMEM_ARENA_QUARANTINE GPUMEM_CAPTURE GPUMEM_LIMIT GPUMEM_POOL GPUMEM_PAGE_SIZE GPUMEM_PREALLOC GPUMEM_DISK GPUMEM_TIERS GPUMEM_MOVER VPMM_PAGE_SIZE VPMM_PAGES VPMM_VA_SIZE
export GPUMEM_BACKEND=cuda GPUMEM_TEST_BACKEND=cuda
export LD_LIBRARY_PATH="$PWD/.gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

if [ ! -x .gpu/bin/gpumem ]; then echo "nothing in .gpu: run gpu/stage.sh first" >&2; exit 2; fi
chmod +x .gpu/bin/* .gpu/tests/* .gpu/c_tests/*.c99 .gpu/c_tests/*.cpp17 2> /dev/null

wanted() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

report() {  # result, name, seconds, log
    printf '%-5s %-44s %5d s\n' "$1" "$2" "$3"
    if [ "$1" = FAIL ]; then
        failures=$((failures + 1))
        sed 's/^/      | /' "$4" | tail -n 40
    fi
}

step() {  # name, command...
    local name="$1" log start rc
    shift
    log="$logs/$(printf '%s' "$name" | tr ' /' '__').log"
    start=$SECONDS
    timeout --kill-after=5 "$STEP_SECONDS" "$@" > "$log" 2>&1
    rc=$?
    if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then echo "stopped after $STEP_SECONDS s" >> "$log"; fi
    if [ $rc -eq 0 ]; then report pass "$name" $((SECONDS - start)) "$log"; else
        echo "exit status $rc" >> "$log"
        report FAIL "$name" $((SECONDS - start)) "$log"
    fi
    return $rc
}

skip() { printf 'skip  %s: %s\n' "$1" "$2"; }
lack() { printf '%s\n' "$2" > "$logs/lack.log"; report FAIL "$1" 0 "$logs/lack.log"; }

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null
step "doctor" .gpu/bin/gpumem doctor

if wanted tests; then
    for module in $TESTS; do
        # Each in a process of its own. No pipe: grep -q ends at the first match, and a list that it
        # cut short would count as a failure.
        if ! grep -q "^$module::" <<< "$(.gpu/tests/driver --list 2> /dev/null)"; then lack "$module" "no tests of that name in .gpu/tests/driver: run gpu/stage.sh"; continue; fi
        step "$module" .gpu/tests/driver "$module::" --nocapture --test-threads=1
        # A test that finds no GPU says so and passes; here that is a failure.
        log="$logs/$module.log"
        if grep -q 'skipped: .*\(NO_DEVICE\|no GPU\|no CUDA\|no driver\)' "$log"; then lack "$module was skipped" "$(grep -m1 -o 'skipped: .*' "$log")"; fi
    done
fi

c_tests=()
for test in .gpu/c_tests/*.c99 .gpu/c_tests/*.cpp17; do
    if [ -x "$test" ]; then c_tests+=("$test"); fi
done
if wanted c; then
    if [ ${#c_tests[@]} -eq 0 ]; then lack "C tests" "none in .gpu/c_tests: run gpu/stage.sh"; fi
    for test in "${c_tests[@]+"${c_tests[@]}"}"; do step "C $(basename "$test")" "$test"; done
fi

if wanted sanitizer; then
    sanitizer="${SANITIZER:-$(command -v compute-sanitizer || true)}"
    for dir in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
        if [ -z "$sanitizer" ] && [ -n "$dir" ] && [ -x "$dir/bin/compute-sanitizer" ]; then sanitizer="$dir/bin/compute-sanitizer"; fi
    done
    if [ -z "$sanitizer" ]; then
        skip "memcheck" "no compute-sanitizer; set SANITIZER or CUDA_HOME"
    else
        # Errors that calls return are the tests' business (some provoke them); memcheck looks at
        # memory. What it cannot bear itself a test leaves out when GPUMEM_TEST_SANITIZER is set,
        # and says so.
        for test in "${c_tests[@]+"${c_tests[@]}"}"; do
            # What only plans, or is of the host device, makes no CUDA call, which compute-sanitizer
            # calls an error of its own.
            case "$(basename "$test")" in
                plan.* | plan_graph.* | plan_threads.* | plan_no_threads.* | simulate.* | across.*) skip "memcheck $(basename "$test")" "it makes no CUDA call"; continue ;;
            esac
            step "memcheck $(basename "$test")" env GPUMEM_TEST_SANITIZER=1 "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 "$test"
        done
    fi
fi

if wanted stale; then
    stale=.gpu/bin/stale_kernel
    if [ ! -x "$stale" ] || [ gpu/stale_kernel.cu -nt "$stale" ]; then step "build stale_kernel" gpu/build_torture.sh "$stale" gpu/stale_kernel.cu; fi
    if [ -x "$stale" ]; then step "late uses by kernels" "$stale"; else lack "late uses by kernels" "not built"; fi
fi

if wanted graphs; then
    graphs=.gpu/bin/graph_replay
    if [ ! -x "$graphs" ] || [ gpu/graph_replay.cu -nt "$graphs" ]; then step "build graph_replay" gpu/build_torture.sh "$graphs" gpu/graph_replay.cu; fi
    if [ -x "$graphs" ]; then
        step "graphs" "$graphs" "$REPLAYS"
        grep -E '^(pass|FAIL)' "$logs/graphs.log" | sed 's/^/      | /'
        # It must be able to fail: without an arena the graph's memory is anybody's.
        start=$SECONDS
        "$graphs" 2000 unprotected > "$logs/graphs_unprotected.log" 2>&1
        if grep -qE 'wrong words|illegal memory access' "$logs/graphs_unprotected.log"; then
            report pass "graphs without an arena are disturbed" $((SECONDS - start)) "$logs/graphs_unprotected.log"
        else
            report FAIL "graphs without an arena are disturbed" $((SECONDS - start)) "$logs/graphs_unprotected.log"
        fi
    else
        lack "graphs" "not built"
    fi
    if "${PYTHON:-python3}" -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
        step "torch.cuda.graph" "${PYTHON:-python3}" gpu/torch_graph.py
    else
        skip "torch.cuda.graph" "no PyTorch with CUDA; set PYTHON"
    fi
fi

if wanted rmm; then
    # Through CCCL, which comes with CUDA, and through RMM, where it is staged. What is prebuilt
    # runs without either's headers.
    for variant in rmm_conformance rmm_conformance_rmm; do
        program=".gpu/bin/$variant"
        if [ ! -x "$program" ] || [ gpu/rmm_conformance.cu -nt "$program" ] || [ gpu/rmm_cases.hpp -nt "$program" ]; then
            gpu/build_rmm.sh .gpu/bin "$variant" > "$logs/build_$variant.log" 2>&1
            case $? in
                0) report pass "build $variant" 0 "$logs/build_$variant.log" ;;
                3) skip "$variant" "$(tail -n 1 "$logs/build_$variant.log")"; continue ;;
                *) report FAIL "build $variant" 0 "$logs/build_$variant.log"; continue ;;
            esac
        fi
        step "$variant" "$program"
        grep -E '^FAIL' "$logs/$variant.log" | sed 's/^/      | /'
    done
fi

if wanted tiers; then
    tiers=.gpu/bin/tiers
    if [ ! -x "$tiers" ] || [ gpu/tiers.cu -nt "$tiers" ]; then step "build tiers" gpu/build_torture.sh "$tiers" gpu/tiers.cu; fi
    mkdir -p "$TIERS_DIR"
    if [ -x "$tiers" ]; then
        for one in trips oversubscribe cycles timeline; do
            step "tiers: $one" env GPUMEM_PINNED_LIMIT="${GPUMEM_PINNED_LIMIT:-24G}" "$tiers" "$TIERS_DIR" "$one"
        done
    else
        lack "tiers" "not built"
    fi
fi

if wanted torture; then
    torture=.gpu/bin/torture
    if [ ! -x "$torture" ] || [ gpu/torture.cu -nt "$torture" ]; then step "build torture" gpu/build_torture.sh "$torture"; fi
    if [ ! -x "$torture" ]; then
        lack "torture" "not built"
    else
        step "torture" "$torture" "$TORTURE_SECONDS"
        tail -n 12 "$logs/torture.log" | sed 's/^/      | /'
        step "torture, tight, one seed more" "$torture" $(((TORTURE_SECONDS + 3) / 4)) 8 3072 2
        step "torture, settled reuse only" env GPUMEM_REUSE=settled "$torture" $(((TORTURE_SECONDS + 3) / 4)) 4 4096 3
        # The torture must be able to fail: with frees that are not ordered after the last use it
        # finds corruption.
        start=$SECONDS
        "$torture" 10 4 2048 4 break > "$logs/torture_break.log" 2>&1
        # Corruption, or a kernel that reaches memory which was unmapped under it.
        if grep -qE '^corrupted words [1-9]|illegal memory access' "$logs/torture_break.log"; then
            report pass "torture finds deliberate faults" $((SECONDS - start)) "$logs/torture_break.log"
        else
            report FAIL "torture finds deliberate faults" $((SECONDS - start)) "$logs/torture_break.log"
        fi
    fi
fi

if [ $failures -eq 0 ]; then echo "gpu/test.sh: pass"; else echo "gpu/test.sh: $failures failed; logs in $logs"; fi
[ $failures -eq 0 ]

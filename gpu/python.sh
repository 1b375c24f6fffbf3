#!/usr/bin/env bash
# The Python package on a machine with a GPU: frameworks, statistics, speed. No network and no Rust
# are needed where a wheel is given.
#
#   gpu/python.sh [OUT]                  a folder for logs and figures; .gpu/logs/python by default
#   WHEEL=FILE                           the wheel; else the one in bindings/python/dist, else one
#                                        is built (pip, hatchling, cargo)
#   STEPS="..."                          which steps run, of: doctor build snippet basics pluggable
#                                        compile processes pairs sleep cupy numba rmm warp jax pool
#                                        workloads suite
#   BUDGET=560                           seconds for all of them; what begins later is skipped
#   WORKLOAD_SCRIPT=FILE                 training workloads, called as `FILE WORKLOAD native`:
#                                        prints JSON with driver_peak_gib, step_ms_median
#   WORKLOADS="lora full unet eager"     WORKLOAD_STEPS=20
#   SLEEP_GIB=32 SLEEP_CYCLES=6          FLAT_GIB=2 FLAT_CYCLES=100
#   TORCH_TESTS=FOLDER                   test/ of PyTorch's repository at the installed version, for
#                                        `suite`, where the machine has it
#   TORCH_TEST_ARGS="-k memory ..."      which of test_cuda.py, as unittest takes them
#   PYTHON=python3
#
# Lines begin with PASS, FAIL or skip; figures follow. Exits with 1 when something failed.
set -uo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
: "${STEPS:=doctor build snippet basics compile processes pairs sleep cupy numba rmm warp jax pool workloads pluggable suite}"
: "${BUDGET:=560}" "${PYTHON:=python3}" "${WORKLOADS:=lora full unet eager}" "${WORKLOAD_STEPS:=20}"
: "${SLEEP_GIB:=32}" "${SLEEP_CYCLES:=6}" "${FLAT_GIB:=2}" "${FLAT_CYCLES:=100}"
out="${1:-.gpu/logs/python}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
table="$out/table"
: > "$table"
rm -f "$out"/*.jsonl "$out"/*.log
# What is large and of no use afterwards.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for name in $(env | sed -n 's/^\(GPUMEM_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF LD_PRELOAD PYTHONPATH
: "${TORCH_TEST_ARGS:=-k memory -k graph -k oom -k out_of_memory -k stream -k pool -k snapshot -k caching -k alloc}"
for folder in /opt/pytorch/pytorch/test /workspace/pytorch/test; do
    if [ -z "${TORCH_TESTS:-}" ] && [ -r "$folder/test_cuda.py" ]; then TORCH_TESTS="$folder"; fi
done
if [ -z "${WORKLOAD_SCRIPT:-}" ] && [ -r shared/peers/torch_workloads.py ]; then WORKLOAD_SCRIPT=shared/peers/torch_workloads.py; fi

wanted() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
row() { printf '%-4s %-28s %s\n' "$1" "$2" "${3:-}" | tee -a "$table"; }
left() { echo $((BUDGET - SECONDS)); }
file() { printf '%s/%s' "$out" "$(printf '%s' "$1" | tr ' /,' '___')"; }
why() { tail -n 4 "$(file "$1").log" 2> /dev/null | grep . | tail -n 2 | tr '\n' ' ' | cut -c1-300; }

# Runs a command within its limit and what is left of the budget; its output goes to NAME.log. 125:
# there was no time for that limit.
bounded() {  # limit, name, command...
    local limit="$1" name="$2" most code
    shift 2
    most="$(left)"
    if [ "$most" -le 3 ]; then echo "no time left" > "$(file "$name").log"; return 125; fi
    timeout --kill-after=5 "$((limit < most ? limit : most))" "$@" > "$(file "$name").log" 2>&1
    code=$?
    if [ "$limit" -gt "$most" ] && { [ $code -eq 124 ] || [ $code -eq 137 ]; }; then return 125; fi
    return $code
}
step() {  # limit, name, command...
    local name="$2" status began=$SECONDS
    bounded "$@"; status=$?
    case $status in
        0) row PASS "$name" "$((SECONDS - began)) s" ;;
        125) row skip "$name" "no time left of $BUDGET s" ;;
        124 | 137) row FAIL "$name" "stopped after $((SECONDS - began)) s: $(why "$name")" ;;
        *) row FAIL "$name" "status $status: $(why "$name")" ;;
    esac
    grep -h '^FAIL\|^figure' "$(file "$name").log" 2> /dev/null | sed 's/^/       /' | cut -c1-600 | tee -a "$table"
    return $status
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null | tee -a "$table"

# ---- installing ----------------------------------------------------------------------------------
if [ -z "${WHEEL:-}" ]; then WHEEL="$(ls bindings/python/dist/*.whl 2> /dev/null | tail -n 1)"; fi
if [ -z "$WHEEL" ]; then
    if ! bounded 400 wheel "$PYTHON" -m pip wheel --no-deps --wheel-dir "$out" ./bindings/python; then
        row FAIL wheel "$(why wheel)"
        exit 1
    fi
    WHEEL="$(ls "$out"/*.whl | tail -n 1)"
fi
if "$PYTHON" -m venv --system-site-packages "$work/venv" > "$out/install.log" 2>&1 &&
    "$work/venv/bin/python" -m pip install --no-index --no-deps "$WHEEL" >> "$out/install.log" 2>&1; then
    python="$work/venv/bin/python"
    row PASS install "a virtual environment, $(basename "$WHEEL")"
    # A virtual environment made from one sees the system's packages, not that one's.
    here="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
    "$python" -c 'import torch' > /dev/null 2>&1 || export PYTHONPATH="$here"
elif "$PYTHON" -m pip install --no-index --no-deps --target "$work/site" "$WHEEL" >> "$out/install.log" 2>&1; then
    python="$PYTHON"
    export PYTHONPATH="$work/site"
    row PASS install "no virtual environment ($(head -c 80 "$out/install.log" | tr '\n' ' ')); a folder, $(basename "$WHEEL")"
else
    row FAIL install "$(tail -n 2 "$out/install.log" | tr '\n' ' ')"
    exit 1
fi
export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-$work/extensions}"
timeout 150 "$python" - << 'PYTHON' 2>&1 | tee -a "$table"
import importlib, sys
found = []
for name in ("torch", "cupy", "numba", "numba_cuda", "rmm", "warp", "jax", "numpy", "pytest"):
    try:
        found.append(f"{name} {getattr(importlib.import_module(name), '__version__', '?')}")
    except Exception as why:
        found.append(f"no {name} ({type(why).__name__})")
print(f"Python {sys.version.split()[0]}: " + ", ".join(found))
PYTHON
has() { timeout 60 "$python" -c "import $1" > /dev/null 2>&1; }
programs="$root/bindings/python/tests/programs"
cd "$work" || exit 1

if wanted doctor; then step 60 doctor "$python" -m gpumem doctor; fi
if ! has torch; then row skip PyTorch "not installed for $python"; fi
if wanted build && has torch; then
    step 240 build "$python" -c 'import time; start = time.time()
import gpumem.torch
print("figure", gpumem.torch.enable(native=True), f"in {time.time() - start:.1f} s")' || sed 's/^/       /' "$(file build).log" | tail -n 25 | tee -a "$table"
fi
# The README's two lines, and then what anybody would do.
if wanted snippet && has torch; then
    step 120 snippet "$python" -c 'import gpumem.torch
gpumem.torch.enable()
import torch
x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
(x @ x).sum().backward()
print(torch.cuda.memory_summary())
print("figure", gpumem.torch.enabled(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())'
fi
if wanted basics && has torch; then step 150 basics "$python" "$programs/torch_basics.py"; fi
if wanted compile && has torch; then step 200 compile "$python" "$programs/torch_compile.py"; fi
if wanted processes && has torch; then step 150 processes "$python" "$programs/torch_processes.py"; fi
if wanted pairs && has torch; then
    for mode in native gpumem pluggable gpumem native gpumem native; do
        if bounded 60 "pairs $mode" "$python" "$programs/torch_pairs.py" "$mode"; then grep '^{' "$(file "pairs $mode").log" >> "$out/pairs.jsonl"
        else row FAIL "pairs $mode" "$(why "pairs $mode")"; fi
    done
    if [ -s "$out/pairs.jsonl" ]; then
        "$python" - "$out/pairs.jsonl" << 'PYTHON' | tee -a "$table"
import json, sys
modes = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    old = modes.setdefault(r["mode"], r["ns"])
    # Of several runs the best: the machine's other work only ever adds.
    modes[r["mode"]] = {k: [min(a, b) for a, b in zip(old[k], v)] for k, v in r["ns"].items()}
worst = 0
for key, (least, middle) in modes.get("native", {}).items():
    shown = f"native {least:.0f} ns"
    for mode in ("gpumem", "pluggable"):
        if mode in modes:
            shown += f", {mode} {modes[mode][key][0]:.0f} ns ({modes[mode][key][0] / least:.3f})"
    if "gpumem" in modes:
        worst = max(worst, modes["gpumem"][key][0] / least)
    print(f"       figure torch.empty pair, {key} B: {shown}")
print(f"{'PASS' if 0 < worst <= 1.03 else 'FAIL'} pairs                        gpumem / native at worst {worst:.3f}")
PYTHON
    fi
fi
if wanted sleep && has torch; then
    step 180 "sleep $SLEEP_GIB GiB" "$python" "$programs/torch_sleep.py" "$SLEEP_GIB" "$SLEEP_CYCLES"
    step 120 "sleep, $FLAT_CYCLES cycles" "$python" "$programs/torch_sleep.py" "$FLAT_GIB" "$FLAT_CYCLES"
fi
for framework in cupy:cupy_arrays numba:numba_arrays rmm:rmm_buffers warp:warp_arrays; do
    name="${framework%%:*}"
    wanted "$name" || continue
    if has "$name"; then step 100 "$name" "$python" "$programs/${framework##*:}.py"; else row skip "$name" "not installed for $python"; fi
done
if wanted jax; then
    if has jax; then
        XLA_PYTHON_CLIENT_PREALLOCATE=false step 100 jax "$python" -m gpumem run --stats -- "$python" "$root/gpu/preload/jax_check.py"
        grep -h '^gpumem: process' "$(file jax).log" | sed 's/^/       figure /' | tee -a "$table"
    else row skip jax "not installed for $python"; fi
fi
if wanted pool; then
    if has torch && has cupy && has numba; then step 100 pool "$python" "$root/examples/python/one_pool.py" && sed 's/^/       /' "$(file pool).log" | tee -a "$table"
    else row skip pool "needs torch, cupy and numba"; fi
fi
if wanted workloads && has torch; then
    script="${WORKLOAD_SCRIPT:-}"
    case "$script" in "" | /*) ;; *) script="$root/$script" ;; esac
    if [ -z "$script" ]; then row skip workloads "no WORKLOAD_SCRIPT"; else
        for workload in $WORKLOADS; do
            # In turn, so that what the machine does meanwhile falls on both.
            for run in native.1 gpumem.1 gpumem.2 native.2; do
                mode="${run%.*}"
                if STEPS="$WORKLOAD_STEPS" bounded 100 "workload $workload $run" "$python" "$root/gpu/python/enabled.py" "$mode" "$script" "$workload" native; then
                    { printf '{"workload":"%s","mode":"%s","runs":[' "$workload" "$mode"; grep '^{' "$(file "workload $workload $run").log" | tail -n 2 | paste -sd ,; echo ']}'; } | tr -d '\n' >> "$out/workloads.jsonl"
                    echo >> "$out/workloads.jsonl"
                elif [ "$(left)" -le 3 ]; then row skip "workload $workload $run" "no time left of $BUDGET s"
                else row FAIL "workload $workload $run" "$(why "workload $workload $run")"; fi
            done
        done
        if [ -s "$out/workloads.jsonl" ]; then
            "$python" - "$out/workloads.jsonl" << 'PYTHON' | tee -a "$table"
import json, sys
runs = {}
for line in open(sys.argv[1]):
    r = json.loads(line)
    merged = {}
    for part in r["runs"]:
        merged.update(part)
    known = runs.setdefault((r["workload"], r["mode"]), merged)
    # Of two runs the faster one and the larger one.
    known["step_ms_median"] = min(known["step_ms_median"], merged["step_ms_median"])
    if merged["driver"] > known["driver"]:
        known.update({k: merged[k] for k in ("driver", "reserved", "max_allocated")})
off = {key: (r["driver"] - r["reserved"]) / r["driver"] for key, r in runs.items()}
for (workload, mode), r in runs.items():
    driver, reserved = r["driver"], r["reserved"]
    line = (f"driver {driver / 2**30:.3f} GiB, reserved {reserved / 2**30:.3f} GiB, off {off[workload, mode]:.2%}; allocated at most "
            f"{r['max_allocated'] / 2**30:.3f} GiB; step {r['step_ms_median']} ms")
    native = runs.get((workload, "native"))
    verdict = "    "
    if mode == "gpumem":
        # Kernels and libraries take memory of the driver's, too, which no allocator sees: what
        # native is off by.
        good = abs(off[workload, mode]) <= 0.02 or (native and abs(off[workload, mode] - off[workload, "native"]) <= 0.02)
        verdict = "PASS" if good else "FAIL"
    if mode == "gpumem" and native:
        line += (f"; memory {driver / native['driver']:.3f} of native, {driver / r['max_allocated']:.3f} of allocated, "
                 f"step {r['step_ms_median'] / native['step_ms_median']:.3f} of native")
    print(f"{verdict} workload {workload:6} {mode:7} {line}")
PYTHON
        fi
    fi
fi
if wanted pluggable && has torch; then step 100 pluggable "$python" "$programs/torch_basics.py" pluggable; fi
if wanted suite && has torch; then
    if [ -z "${TORCH_TESTS:-}" ]; then row skip suite "no TORCH_TESTS"; else
        for mode in native gpumem; do
            # shellcheck disable=SC2086
            bounded 280 "suite $mode" "$python" "$root/gpu/python/enabled.py" "$mode" "$TORCH_TESTS/test_cuda.py" -v $TORCH_TEST_ARGS
            row done "suite $mode" "status $?; $(grep -h '^Ran \|^OK\|^FAILED' "$(file "suite $mode").log" | tr '\n' ' ')"
            grep -h ' \.\.\. ' "$(file "suite $mode").log" | sed 's/ (__main__[^)]*)//' | sort > "$out/suite.$mode"
        done
        # What comes out otherwise than native.
        diff "$out/suite.native" "$out/suite.gpumem" | grep '^[<>]' | cut -c1-160 | sed 's/^/       /' | tee -a "$table"
    fi
fi

echo
echo "== the table again"
cat "$table"
! grep -q '^FAIL' "$table"

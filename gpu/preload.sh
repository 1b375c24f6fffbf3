#!/usr/bin/env bash
# CUDA programs as they are, each with `gpumem run` and without, on a machine with a GPU and what
# gpu/stage.sh put into .gpu/ (no Rust is needed). The last lines are a table: pass, FAIL or skip,
# and what was seen. Exits with 1 when something failed.
#
#   gpu/preload.sh [LOG-FOLDER]              logs go to .gpu/logs/preload by default
#   STEPS="programs adversarial speed"       which steps run, of: programs adversarial speed
#                                            sanitizer torch workloads cupy jax rmm cuda_python
#   BUDGET=400                               seconds for all of them; what begins later is skipped
#   TORTURE_SECONDS=60
#   MODES="marker sync"                      which ways of GPUMEM_FREE the adversarial programs run
#                                            in
#   WORKLOAD_SCRIPT=FILE                     workloads of PyTorch, as gpu/torch.sh takes them
#                                            (WORKLOADS="lora full unet eager")
#   PAIRS=1                                  runs of each workload both ways, in turns. A host that
#                                            others use needs 5 or more: native's own step differs
#                                            there by a fifth from one run to the next
#   CUDA_PYTHON_TESTS=FOLDER                 cuda_bindings/tests of NVIDIA's cuda-python, of the
#                                            installed version
#   PYTHON=python3   NVCC=nvcc   CUDA_HOMES="/usr/local/cuda-12.9 /usr/local/cuda-13.0"
set -uo pipefail
cd "$(dirname "$0")/.."
: "${STEPS:=programs adversarial speed sanitizer torch workloads cupy jax rmm cuda_python}" "${BUDGET:=400}" "${TORTURE_SECONDS:=60}" "${PAIRS:=1}"
: "${MODES:=marker sync}" "${PYTHON:=python3}" "${WORKLOADS:=lora full unet eager}"
logs="${1:-.gpu/logs/preload}"
out=.gpu/preload
table="$logs/table"
mkdir -p "$logs" "$out"
: > "$table"
gpumem=.gpu/bin/gpumem
chmod +x "$gpumem" 2> /dev/null
if [ ! -x "$gpumem" ] || [ ! -e .gpu/lib/libgpumem_preload.so ]; then echo "no .gpu/bin/gpumem or .gpu/lib/libgpumem_preload.so: run gpu/stage.sh first" >&2; exit 2; fi
for name in $(env | sed -n 's/^\(GPUMEM_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF LD_PRELOAD

wanted() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
left() { echo $((BUDGET - SECONDS)); }
row() {  # result, name, what was seen
    printf '%-5s %-46s %s\n' "$1" "$2" "${3:-}" | tee -a "$table"
}
file() { printf '%s/%s' "$logs" "$(printf '%s' "$1" | tr ' /,:' '____')"; }

# Runs a command within its limit; output goes to NAME.out and NAME.err. 125: there was no time for
# that limit.
bounded() {  # limit, name, command...
    local limit="$1" name="$2" most code
    shift 2
    most="$(left)"
    if [ "$most" -le 2 ]; then echo "no time left" > "$(file "$name").err"; : > "$(file "$name").out"; return 125; fi
    timeout --kill-after=5 "$((limit < most ? limit : most))" "$@" > "$(file "$name").out" 2> "$(file "$name").err"
    code=$?
    if [ "$limit" -gt "$most" ] && { [ $code -eq 124 ] || [ $code -eq 137 ]; }; then return 125; fi
    return $code
}
# Allocations that gpumem served, all processes together.
served() { sed -n 's/^gpumem: process [0-9]*: \([0-9]*\) allocations.*/\1/p' "$(file "$1").err" | awk '{ n += $1 } END { print n + 0 }'; }
why() { tail -n 3 "$(file "$1").out" "$(file "$1").err" 2> /dev/null | grep -v '^==>' | grep . | tail -n 2 | tr '\n' ' ' | cut -c1-160; }

# A program both ways: the same output and exit status, and memory from gpumem.
both() {  # limit, name, options of gpumem run, command...
    local limit="$1" name="$2" options="$3" a b n
    shift 3
    bounded "$limit" "$name native" "$@"; a=$?
    # shellcheck disable=SC2086
    bounded "$limit" "$name gpumem" "$gpumem" run --stats $options -- "$@"; b=$?
    n="$(served "$name gpumem")"
    if [ $a -eq 125 ] || [ $b -eq 125 ]; then row skip "$name" "no time left of $BUDGET s"
    elif [ $b -eq 124 ] || [ $b -eq 137 ]; then row FAIL "$name" "gpumem: stopped after $limit s; native: status $a"
    elif [ $a -ne 0 ] && [ $b -ne 0 ]; then row FAIL "$name" "both fail, native $a, gpumem $b: $(why "$name native")"
    elif [ $b -ne 0 ]; then row FAIL "$name" "gpumem: status $b: $(why "$name gpumem")"
    elif [ $a -ne 0 ]; then row pass "$name" "native fails ($a), gpumem does not; $n served"
    elif ! diff -q "$(file "$name native").out" "$(file "$name gpumem").out" > /dev/null; then
        row FAIL "$name" "outputs differ: $(diff "$(file "$name native").out" "$(file "$name gpumem").out" | sed -n '2,4p' | tr '\n' ' ')"
    elif [ "$n" -eq 0 ]; then row FAIL "$name" "the same output, and nothing was served"
    else row pass "$name" "the same output, $n allocations served"; fi
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null

# ---- building ------------------------------------------------------------------------------------
nvcc="$(command -v "${NVCC:-nvcc}" || true)"
if [ -z "$nvcc" ]; then for d in "${CUDA_HOME:-}" /usr/local/cuda; do [ -n "$d" ] && [ -x "$d/bin/nvcc" ] && nvcc="$d/bin/nvcc" && break; done; fi
jobs_of=()
build() {  # output, source, flags...
    local to="$out/$1" from="gpu/preload/$2" cc="$nvcc"
    shift 2
    if [ -n "${WITH:-}" ]; then cc="$WITH"; fi
    # What is there already is used, so a machine without nvcc can run what another one built.
    if [ -x "$to" ] && [ ! "$from" -nt "$to" ] && [ ! gpu/preload/check.cuh -nt "$to" ]; then return; fi
    if [ -z "$cc" ]; then echo "no nvcc" > "$to.log"; return; fi
    timeout 150 "$cc" -std="${STD:-c++17}" -O2 -arch="${ARCH:-native}" "$from" -o "$to" "$@" > "$to.log" 2>&1 &
    jobs_of+=($!)
}
have() {  # program, name for the table
    if [ -x "$out/$1" ]; then return 0; fi
    row skip "$2" "not built: $(tail -n 1 "$out/$1.log" 2> /dev/null | cut -c1-120)"
    return 1
}
if wanted programs || wanted sanitizer; then
    build runtime_static runtime.cu -cudart static
    build runtime_shared runtime.cu -cudart shared
    build runtime_ptds runtime.cu -cudart static --default-stream per-thread
    build driver driver.cpp -lcuda -ldl
    for home in ${CUDA_HOMES:-$(ls -d /usr/local/cuda-1[23].* 2> /dev/null)}; do
        if [ -x "$home/bin/nvcc" ]; then
            WITH="$home/bin/nvcc" build "runtime_$(basename "$home")" runtime.cu -cudart static
            WITH="$home/bin/nvcc" build "runtime_shared_$(basename "$home")" runtime.cu -cudart shared
        fi
    done
fi
if wanted adversarial || wanted sanitizer; then build adversarial adversarial.cu -lpthread; fi
if wanted speed; then build speed speed.cu -ldl; fi
if wanted rmm; then
    rmm="${RMM:-$PWD/.gpu/rmm}"
    if [ -d "$rmm/librmm/include/rmm" ]; then
        STD=c++20 build rmm_resources rmm_resources.cu -I"$rmm/librmm/include/rapids" -I"$rmm/librmm/include" -I"$rmm/rapids_logger/include" \
            -L"$rmm/librmm/lib64" -lrmm -Xlinker -rpath -Xlinker "$rmm/librmm/lib64" -L"$rmm/rapids_logger/lib64" -lrapids_logger \
            -Xlinker -rpath -Xlinker "$rmm/rapids_logger/lib64"
    else
        echo "no RMM: stage it with WITH_RMM=1 gpu/stage.sh" > "$out/rmm_resources.log"
    fi
fi
for job in "${jobs_of[@]+"${jobs_of[@]}"}"; do wait "$job"; done
# The shared runtime is beside the compiler that made the program.
for dir in "$(dirname "$(dirname "${nvcc:-/x/x}")")"/lib64 "$(dirname "$(dirname "${nvcc:-/x/x}")")"/targets/x86_64-linux/lib; do
    if [ -d "$dir" ]; then export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$dir"; fi
done
echo "built after $SECONDS s"

# ---- programs ------------------------------------------------------------------------------------
if wanted programs; then
    for program in runtime_static runtime_shared runtime_ptds; do have "$program" "$program" && both 40 "$program" "" "$out/$program"; done
    have runtime_static "runtime, sync" && both 40 "runtime, sync" "--free sync" "$out/runtime_static"
    for program in "$out"/runtime_cuda-* "$out"/runtime_shared_cuda-*; do
        [ -x "$program" ] && [ "${program%.log}" = "$program" ] && both 40 "$(basename "$program")" "" env LD_LIBRARY_PATH="/usr/local/${program##*_}/lib64" "$program"
    done
    if have driver driver; then
        for how in direct dlsym proc; do for context in primary created; do both 30 "driver API, $how, $context" "" "$out/driver" "$how" "$context"; done; done
    fi
    # The price of the library where there is no CUDA.
    ms="$("$PYTHON" - "$PWD/.gpu/lib/libgpumem_preload.so" 2> /dev/null << 'P'
import os, subprocess, sys, time
def best(env):
    t = []
    for _ in range(40):
        s = time.perf_counter(); subprocess.run(["/bin/ls", "/"], env=env, stdout=subprocess.DEVNULL); t.append(time.perf_counter() - s)
    return sorted(t)[10] * 1e3
print(f"{best({**os.environ, 'LD_PRELOAD': sys.argv[1]}) - best(dict(os.environ)):.2f}")
P
)"
    if awk -v m="${ms:-9}" 'BEGIN { exit !(m <= 2) }'; then row pass "ls" "$ms ms more (at most 2)"; else row FAIL "ls" "${ms:-?} ms more (at most 2)"; fi
fi

# ---- adversarial ---------------------------------------------------------------------------------
if wanted adversarial && have adversarial adversarial; then
    for mode in $MODES; do
        for what in late late_async capture reset fork local; do both 30 "$what, $mode" "--free $mode" "$out/adversarial" "$what"; done
        both 30 "destructor, $mode" "--free $mode" "$out/adversarial" destructor
        both 30 "16 threads, $mode" "--free $mode" "$out/adversarial" threads 3
        bounded 30 "cudaFree in a capture, $mode gpumem" "$gpumem" run --free "$mode" --stats -- "$out/adversarial" capture_free
        if [ $? -eq 0 ]; then row pass "cudaFree in a capture, $mode" "the capture survives"; else row FAIL "cudaFree in a capture, $mode" "$(why "cudaFree in a capture, $mode gpumem")"; fi
    done
    name="torture, marker gpumem"
    bounded $((TORTURE_SECONDS + 25)) "$name" "$gpumem" run --stats --free marker -- "$out/adversarial" torture "$TORTURE_SECONDS"
    code=$?
    if [ $code -eq 125 ]; then row skip "torture, marker" "no time left"
    elif [ $code -eq 0 ] && [ "$(served "$name")" -gt 0 ]; then row pass "torture, marker" "$TORTURE_SECONDS s, $(grep -o '[0-9]* blocks' "$(file "$name").err"), $(cat "$(file "$name").out")"
    else row FAIL "torture, marker" "status $code: $(why "$name")"; fi
    # The torture must be able to fail: see gpu/torture.cu, whose frees can be broken on purpose.
fi

# ---- speed ---------------------------------------------------------------------------------------
if wanted speed && have speed speed; then
    # Of five runs in turns the fastest for each row: what else the machine does only adds, half as
    # much again in some processes.
    for run in 1 2 3 4 5; do
        bounded 60 "speed native $run" "$out/speed"
        for mode in marker sync; do bounded 60 "speed $mode $run" "$gpumem" run --free "$mode" -- "$out/speed"; done
    done
    for mode in native marker sync; do
        for run in 1 2 3 4 5; do cat "$(file "speed $mode $run").out" 2> /dev/null; done |
            awk '{ k = $1 " " $2; if (!(k in best)) { order[++n] = k; best[k] = $3 } else if ($3 < best[k]) best[k] = $3 }
                END { for (i = 1; i <= n; i++) print order[i], best[order[i]] }' > "$(file "speed $mode").out"
    done
    while read -r kind bytes native; do
        marker="$(awk -v k="$kind" -v b="$bytes" '$1 == k && $2 == b { print $3 }' "$(file "speed marker").out")"
        sync="$(awk -v k="$kind" -v b="$bytes" '$1 == k && $2 == b { print $3 }' "$(file "speed sync").out")"
        most=120; [ "$kind" = sync ] && most=1000   # the runtime's and the driver's pairs: 120
        seen="native $native ns, marker ${marker:-?}, sync ${sync:-?} (at most $most)"
        if [ -n "$marker" ] && [ "$marker" -le "$most" ]; then row pass "pair, $kind, $bytes B" "$seen"; else row FAIL "pair, $kind, $bytes B" "$seen"; fi
    done < "$(file "speed native").out"
fi

# ---- compute-sanitizer ---------------------------------------------------------------------------
if wanted sanitizer; then
    sanitizer="${SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)}"
    if [ -z "$sanitizer" ]; then row skip memcheck "no compute-sanitizer; set SANITIZER"; else
        memcheck() {  # name, command...
            local name="memcheck $1"
            shift
            bounded 60 "$name" "$gpumem" run -- "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 99 "$@"
            case $? in
                0) row pass "$name" "$(grep -ho 'ERROR SUMMARY.*' "$(file "$name").out" "$(file "$name").err" | head -n 1)" ;;
                125) row skip "$name" "no time left" ;;
                *) row FAIL "$name" "$(why "$name")" ;;
            esac
        }
        have runtime_static "memcheck runtime" && memcheck runtime "$out/runtime_static"
        have driver "memcheck driver" && memcheck driver "$out/driver" proc primary
        have adversarial "memcheck adversarial" && memcheck "16 threads" "$out/adversarial" threads 1
    fi
fi

# ---- Python --------------------------------------------------------------------------------------
python_has() { "$PYTHON" -c "import $1" > /dev/null 2>&1; }
field() { "$PYTHON" -c "import json,sys; print(json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])[sys.argv[2]])" "$1" "$2" 2> /dev/null; }
if wanted cupy; then
    if ! python_has cupy; then row skip CuPy "not installed for $PYTHON"; else
        for kind in none own async; do
            both 50 "CuPy, $kind" "" "$PYTHON" gpu/preload/cupy_check.py "$kind"
            echo "      loop: native $(grep -o '[0-9.]* ms$' "$(file "CuPy, $kind native").err" | tail -n 1), gpumem $(grep -v '^gpumem' "$(file "CuPy, $kind gpumem").err" | grep -o '[0-9.]* ms$' | tail -n 1)" | tee -a "$table"
        done
    fi
fi
if wanted jax; then
    if ! python_has jax; then row skip JAX "not installed for $PYTHON"; else
        both 60 "JAX, platform" "" env XLA_PYTHON_CLIENT_ALLOCATOR=platform "$PYTHON" gpu/preload/jax_check.py
        both 60 "JAX, default, no preallocation" "" env XLA_PYTHON_CLIENT_PREALLOCATE=false "$PYTHON" gpu/preload/jax_check.py
        both 60 "JAX, default" "" env XLA_PYTHON_CLIENT_MEM_FRACTION=.30 "$PYTHON" gpu/preload/jax_check.py
    fi
fi
if wanted rmm && have rmm_resources "RMM resources"; then both 40 "RMM resources" "" "$out/rmm_resources"; fi
if wanted cuda_python; then
    if [ -z "${CUDA_PYTHON_TESTS:-}" ]; then row skip cuda-python "set CUDA_PYTHON_TESTS to cuda_bindings/tests"; else
        bounded 90 "cuda-python native" "$PYTHON" -m pytest -q -rfE -p no:cacheprovider "$CUDA_PYTHON_TESTS"
        bounded 90 "cuda-python gpumem" "$gpumem" run --stats -- "$PYTHON" -m pytest -q -rfE -p no:cacheprovider "$CUDA_PYTHON_TESTS"
        failures() { grep -E '^(FAILED|ERROR) ' "$(file "$1").out" | awk '{ print $2 }' | sort; }
        seen="native: $(tail -n 1 "$(file "cuda-python native").out"); gpumem: $(tail -n 1 "$(file "cuda-python gpumem").out"); $(served "cuda-python gpumem") served"
        if grep -q passed "$(file "cuda-python gpumem").out" && [ "$(failures "cuda-python native")" = "$(failures "cuda-python gpumem")" ]; then row pass cuda-python "$seen"; else row FAIL cuda-python "$seen"; fi
    fi
fi
# Kernels are chosen by how memory is aligned, too, so sums are rounded in other orders.
same_losses() {
    "$PYTHON" -c 'import json, sys; a, b = map(json.loads, sys.argv[1:]); sys.exit(not (a and len(a) == len(b) and all(abs(x - y) <= 2e-3 * abs(x) for x, y in zip(a, b))))' "${1:-[]}" "${2:-[]}"
}

if wanted torch; then
    if ! python_has torch; then row skip torch "no PyTorch; set PYTHON"; else
        bounded 70 "train native" "$PYTHON" gpu/preload/torch_train.py
        bounded 70 "train torch" "$gpumem" run --torch --stats -- "$PYTHON" gpu/preload/torch_train.py
        bounded 70 "train caching" "$gpumem" run --stats -- "$PYTHON" gpu/preload/torch_train.py
        for mode in torch caching; do
            a="$(file "train native").out"; b="$(file "train $mode").out"
            seen="step $(field "$b" step_ms) ms (native $(field "$a" step_ms)), reserved $(field "$b" reserved_peak_mib) MiB of $(field "$b" allocated_peak_mib) allocated (native $(field "$a" reserved_peak_mib)), $(served "train $mode") served, $(sed -n 's/.*\(peak mapped [^;]*\);.*/\1/p' "$(file "train $mode").err" | tail -n 1)"
            if same_losses "$(field "$a" losses)" "$(field "$b" losses)" && [ "$(served "train $mode")" -gt 0 ]; then row pass "PyTorch training, $mode" "$seen"; else row FAIL "PyTorch training, $mode" "$seen $(why "train $mode")"; fi
        done
        for what in graph loader ipc compile; do
            # PyTorch's backend:cudaMallocAsync itself refuses to share memory with other processes.
            [ "$what" = ipc ] || both 60 "PyTorch $what, --torch" "--torch" "$PYTHON" gpu/preload/torch_features.py "$what"
            both 60 "PyTorch $what, caching" "" "$PYTHON" gpu/preload/torch_features.py "$what"
        done
    fi
fi

if wanted workloads; then
    if ! python_has torch; then row skip workloads "no PyTorch; set PYTHON"
    elif [ -z "${WORKLOAD_SCRIPT:-}" ]; then row skip workloads "set WORKLOAD_SCRIPT"
    else
        # The program has settings of its own of this name.
        once() {  # workload, pair, native or torch
            case "$3" in
                native) bounded 90 "$1 native $2" env -u STEPS "$PYTHON" "$WORKLOAD_SCRIPT" "$1" native ;;
                torch) bounded 90 "$1 torch $2" env -u STEPS "$gpumem" run --stats -- "$PYTHON" "$WORKLOAD_SCRIPT" "$1" async ;;
            esac
        }
        for workload in $WORKLOADS; do
            steps=""
            for pair in $(seq "$PAIRS"); do
                ways="native torch"
                if [ $((pair % 2)) -eq 0 ]; then ways="torch native"; fi
                for way in $ways; do once "$workload" "$pair" "$way" || break 2; done
                a="$(file "$workload native $pair").out"; b="$(file "$workload torch $pair").out"
                steps="$steps$(field "$b" step_ms_median) $(field "$a" step_ms_median)
"
                last="$workload torch $pair"
            done
            if [ -z "$steps" ]; then
                if [ "$(left)" -le 2 ]; then row skip "workload $workload" "no time left of $BUDGET s"; else row FAIL "workload $workload" "$(why "$workload native 1") $(why "$workload torch 1")"; fi
                continue
            fi
            # The driver's free bytes have in them what gpumem would give back, so what was mapped
            # is asked of gpumem.
            peak="$(sed -n 's/.*peak mapped \([0-9.]* [GM]iB\).*/\1/p' "$(file "$last").err" | tail -n 1)"
            ratios="$(printf '%s' "$steps" | awk '$2 { printf "%.3f\n", $1 / $2 }' | sort -n)"
            middle="$(printf '%s\n' "$ratios" | awk '{ r[NR] = $1 } END { print NR % 2 ? r[(NR + 1) / 2] : (r[NR / 2] + r[NR / 2 + 1]) / 2 }')"
            seen="peak mapped ${peak:-?} of $(field "$b" torch_peak_allocated_gib) GiB allocated (native $(field "$a" driver_peak_gib)), step ÷ native ${middle:-?} (at most 1.02; $(echo $ratios))"
            if [ -n "$peak" ] && [ "$(served "$last")" -gt 0 ] && awk -v m="${middle:-9}" 'BEGIN { exit !(m <= 1.02) }'; then row pass "workload $workload" "$seen"; else row FAIL "workload $workload" "$seen $(why "$last")"; fi
        done
    fi
fi

# ---- table ---------------------------------------------------------------------------------------
echo
echo "== gpu/preload.sh, $SECONDS s; logs in $logs"
cat "$table"
failures="$(grep -c '^FAIL' "$table")"
if [ "$failures" -eq 0 ]; then echo "gpu/preload.sh: pass"; else echo "gpu/preload.sh: $failures failed"; fi
[ "$failures" -eq 0 ]

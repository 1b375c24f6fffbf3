#!/usr/bin/env bash
# gpumem on several GPUs: peers, NCCL, processes. Needs two or more, and what `gpu/stage.sh --multi`
# put into .gpu/; no Rust, no network.
#
#   gpu/multi.sh [OUT]                   a folder for logs and figures, .gpu/logs/multi by default;
#                                        the logs come as one archive
#   STEPS="..."                          which steps run, of: build contract maps torture found
#                                        export locks nccl churn bandwidth allocator training peers
#                                        share sanitizer
#   BUDGET=560                           seconds for all of them; what begins later is skipped
#   SECONDS_TORTURE=60 SECONDS_CHURN=15
#   TRAIN="native gpumem expandable preload gpumem native"   runs of training, in this order
#   STRATEGIES="ddp fsdp fsdp2"  TRAIN_STEPS=30
#   TRAIN_DDP="gpumem native native gpumem"   runs of DDP alone after them: its step is compared,
#                                             and differs by a fifth from process to process
#   PYTHON=python3                       one that has PyTorch with NCCL; CuPy is used where it is
#                                        there
#
# One line for each step: ok, FAILED: why, or skipped: why; figures follow. Exits with 1 when
# something failed. NVLink multicast stays off.
set -uo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
# Run from the repository, or from the copy of this script in .gpu/gpu.
if [ -d "$here/.gpu" ]; then stage="$here/.gpu"; else stage="$here"; fi
: "${STEPS:=build contract maps torture found export locks nccl churn bandwidth allocator training peers share sanitizer}"
: "${BUDGET:=560}" "${PYTHON:=python3}" "${SECONDS_TORTURE:=60}" "${SECONDS_CHURN:=15}" "${TRAIN_STEPS:=30}"
: "${TRAIN:=native gpumem expandable preload gpumem native}" "${STRATEGIES:=ddp fsdp fsdp2}" "${TRAIN_DDP=gpumem native native gpumem}"
out="${1:-$stage/logs/multi}"
mkdir -p "$out"
out="$(cd "$out" && pwd)"
logs="$(mktemp -d)"
table="$out/table.txt"
: > "$table"
# Copies do not always keep what may be run.
chmod +x "$stage"/bin/* "$stage"/c_tests/* "$here"/gpu/*.sh 2> /dev/null
if [ ! -x "$stage/bin/gpumem" ] || [ ! -e "$stage/python/gpumem" ]; then echo "nothing in $stage: run gpu/stage.sh --multi first" >&2; exit 2; fi
for name in $(env | sed -n 's/^\(GPUMEM_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF LD_PRELOAD
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 NCCL_DEBUG="${NCCL_DEBUG:-WARN}" PYTHONUNBUFFERED=1
export PYTHONPATH="$stage/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH="$stage/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-$logs/extensions}"
gpumem="$stage/bin/gpumem"

wanted() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
row() { printf '%-22s %s\n' "$1" "$2" | tee -a "$table"; }
left() { echo $((BUDGET - SECONDS)); }
why() {  # log
    local said
    said="$(grep -hE 'FAIL|Error|error|: line|wrong|cuda[A-Z]|GPUMEM_ERROR' "$1" 2> /dev/null | grep -v '^figure' | tail -n 2)"
    if [ -z "$said" ]; then said="$(grep . "$1" 2> /dev/null | tail -n 2)"; fi
    printf '%s' "$said" | tr '\n' ' ' | cut -c1-300
}
# Runs a command within its limit and what is left of the budget, output to NAME.log. 125: there is
# no time left.
bounded() {  # limit, name, command...
    local limit="$1" log="$logs/$2.log" most
    shift 2
    most="$(left)"
    if [ "$most" -le 3 ]; then return 125; fi
    if [ "$limit" -gt "$most" ]; then limit="$most"; fi
    timeout --kill-after=5 "$limit" "$@" > "$log" 2>&1
}
step() {  # limit, name, command...
    local name="$2" began=$SECONDS status
    bounded "$@"
    status=$?
    case $status in
        0) row "$name" "ok ($((SECONDS - began)) s)" ;;
        77) row "$name" "skipped: $(sed -n 's/^skipped: //p' "$logs/$name.log" | head -n 1)" ;;
        125) row "$name" "skipped: no time left of $BUDGET s" ;;
        124 | 137) row "$name" "FAILED: stopped after $((SECONDS - began)) s: $(why "$logs/$name.log")" ;;
        *) row "$name" "FAILED: status $status: $(why "$logs/$name.log")" ;;
    esac
    if [ -e "$logs/$name.log" ]; then grep -h '^figure' "$logs/$name.log" | sed 's/^figure /    /' | cut -c1-400 | tee -a "$table"; fi
    return $status
}
# A program with kernels; what does not compile is skipped by name.
program() {  # limit, step, program, arguments...
    local limit="$1" name="$2" binary="$stage/bin/$3"
    shift 3
    if [ ! -x "$binary" ]; then row "$name" "skipped: $(basename "$binary") is not built: $(tail -n 1 "$logs/build.log" 2> /dev/null | cut -c1-160)"; return 77; fi
    step "$limit" "$name" "$binary" "$@"
}

{
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader
    nvidia-smi topo -m
} > "$logs/machine.log" 2>&1
head -n 8 "$logs/machine.log" | grep '^[0-9]' | tee -a "$table"
timeout 100 "$PYTHON" - > "$logs/python.log" 2>&1 << 'PYTHON'
import torch
n = torch.cuda.device_count()
peers = all(torch.cuda.can_device_access_peer(a, b) for a in range(n) for b in range(n) if a != b)
nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(f"devices {n}, peers {'yes' if peers else 'no'}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
PYTHON
torch=$?
grep '^devices' "$logs/python.log" | tee -a "$table"
devices="$(sed -n 's/^devices \([0-9]*\),.*/\1/p' "$logs/python.log")"
if [ -z "$devices" ]; then devices="$(nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU')"; fi
if [ "$devices" -lt 2 ]; then
    row devices "skipped: two GPUs are needed, there are $devices"
    exit 0
fi
if [ $torch -ne 0 ]; then row PyTorch "skipped: $(why "$logs/python.log")"; fi
NCCL_LIBRARY="${NCCL_LIBRARY:-$("$PYTHON" -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2> /dev/null)}"
if [ -r "$NCCL_LIBRARY" ]; then export NCCL_LIBRARY; else unset NCCL_LIBRARY; fi

# ---- the library itself --------------------------------------------------------------------------
if wanted build; then
    (cd "$here" && bounded 150 build env PYTHON="$PYTHON" gpu/build_multi.sh "$stage/bin")
    status=$?
    case $status in
        0) row build "ok" ;;
        3) row build "skipped: no nvcc; what is built already is used" ;;
        *) row build "FAILED: $(tail -n 3 "$logs/build.log" | tr '\n' ' ' | cut -c1-300)" ;;
    esac
    grep -h 'no nccl.h' "$logs/build.log" | sed 's/^/    /' | tee -a "$table"
fi
export GPUMEM_BACKEND=cuda
if wanted contract; then
    for test in devices reserve raii; do
        if [ -x "$stage/c_tests/$test" ]; then step 40 "contract.$test" env GPUMEM_BACKEND=cuda GPUMEM_TEST_BACKEND=cuda "$stage/c_tests/$test"; else row "contract.$test" "skipped: not built"; fi
    done
fi
if wanted maps; then program 60 maps peer_maps; fi
if wanted torture; then program $((SECONDS_TORTURE + 40)) torture peer_torture "$SECONDS_TORTURE" 4 4096 1; fi
if wanted found && [ -x "$stage/bin/peer_torture" ]; then
    # The torture is a proof only when it finds what is broken on purpose.
    bounded 40 found "$stage/bin/peer_torture" 5 4 4096 1 break
    status=$?
    if [ $status -eq 125 ]; then row found "skipped: no time left of $BUDGET s"
    elif grep -q 'illegal memory access' "$logs/found.log"; then row found "ok: the device met memory that was gone"
    elif [ $status -eq 1 ] && grep -q 'saw [0-9]* wrong words' "$logs/found.log"; then row found "ok: $(grep -h 'saw [0-9]* wrong words' "$logs/found.log" | head -n 1 | cut -d';' -f1)"
    else row found "FAILED: frees before their last use went unnoticed (status $status): $(why "$logs/found.log")"; fi
fi
if wanted export; then program 60 export processes; fi
if wanted locks; then program 60 locks device_locks; fi
unset GPUMEM_BACKEND

# ---- NCCL ----------------------------------------------------------------------------------------
# NCCL's registration of graphs outlives the graph, and then names memory that is gone: the driver's
# own memory, whose addresses are used again at once, is right only without it (docs/multi-gpu.md).
if wanted nccl; then
    program 60 nccl nccl_collectives check 2 cudaMalloc pool stitched single exportable
    NCCL_GRAPH_REGISTER=0 program 90 nccl.all nccl_collectives check 2
fi
if wanted churn; then program $((SECONDS_CHURN + 40)) churn nccl_collectives churn 2 "$SECONDS_CHURN"; fi
if wanted bandwidth; then program 60 bandwidth nccl_collectives speed 2 256; fi

# ---- PyTorch -------------------------------------------------------------------------------------
library="$stage/lib/libgpumem.so.0"
if [ $torch -eq 0 ]; then
    # Built once, before several processes want it at once.
    if wanted allocator || wanted training || wanted peers || wanted share; then
        step 150 allocator env GPUMEM_LIBRARY="$library" "$PYTHON" -c 'import gpumem.torch
print("figure", gpumem.torch.enable(native=True))
import torch
assert float(torch.ones(1000, device="cuda:1").sum()) == 1000'
    fi
    if wanted training; then
        rm -f "$out/training.jsonl"
        n=0
        strategies="$STRATEGIES"
        case " $STRATEGIES " in *" ddp "*) ;; *) TRAIN_DDP= ;; esac
        for mode in $TRAIN ddp-alone $TRAIN_DDP; do
            if [ "$mode" = ddp-alone ]; then strategies=ddp; continue; fi
            n=$((n + 1))
            command=("$PYTHON" "$here/gpu/multi/torch_train.py" "$mode" "$out/training.jsonl" 2)
            case "$mode" in
                preload) command=("$gpumem" run --torch --stats -- "${command[@]}") ;;
                gpumem) command=(env GPUMEM_LIBRARY="$library" "${command[@]}") ;;
            esac
            bounded 100 "training.$n.$mode" env STEPS="$TRAIN_STEPS" STRATEGIES="$strategies" LIMIT=95 "${command[@]}"
            status=$?
            case $status in
                0) ;;
                125) row "training.$mode" "skipped: no time left of $BUDGET s" ;;
                *) row "training.$mode" "FAILED: status $status: $(why "$logs/training.$n.$mode.log")" ;;
            esac
            if [ "$mode" = preload ]; then
                grep -h '^gpumem: process' "$logs/training.$n.$mode.log" 2> /dev/null | sed 's/^/    /' | cut -c1-240 | tee -a "$table"
            fi
        done
        if [ -s "$out/training.jsonl" ]; then
            BUDGET=$((BUDGET + 20)) step 20 training "$PYTHON" "$here/gpu/multi/training.py" "$out/training.jsonl"
            grep -h '^FAIL' "$logs/training.log" | sed 's/^/    /' | tee -a "$table"
        fi
    fi
    if wanted peers; then step 60 peers env GPUMEM_LIBRARY="$library" "$PYTHON" "$here/gpu/multi/torch_peers.py" gpumem; fi
    if wanted share; then
        step 70 share.gpumem env GPUMEM_LIBRARY="$library" "$PYTHON" "$here/gpu/multi/torch_share.py" gpumem
        step 70 share.preload "$gpumem" run --stats -- "$PYTHON" "$here/gpu/multi/torch_share.py" native
    fi
fi

# ---- what takes long -----------------------------------------------------------------------------
if wanted sanitizer; then
    if ! command -v compute-sanitizer > /dev/null 2>&1; then row sanitizer "skipped: no compute-sanitizer"
    elif [ ! -x "$stage/bin/peer_torture" ]; then row sanitizer "skipped: peer_torture is not built"
    else
        # Too slow to stitch much, so the run itself may fail; what counts is what the sanitizer
        # finds.
        bounded 120 sanitizer env GPUMEM_BACKEND=cuda compute-sanitizer --tool memcheck "$stage/bin/peer_torture" 8 2 2048 3
        status=$?
        found="$(grep -h 'ERROR SUMMARY' "$logs/sanitizer.log" | tail -n 1 | sed 's/^=* *//')"
        if [ $status -eq 125 ]; then row sanitizer "skipped: no time left of $BUDGET s"
        elif [ "$found" = "ERROR SUMMARY: 0 errors" ]; then row sanitizer "ok: $found"
        elif [ -n "$found" ]; then row sanitizer "FAILED: $found: $(grep -h '^=========' "$logs/sanitizer.log" | sed -n '2,4p' | tr '\n' ' ' | cut -c1-240)"
        else row sanitizer "skipped: it said nothing (status $status): $(why "$logs/sanitizer.log")"; fi
    fi
fi

rm -rf "$logs/extensions"
tar -C "$logs" -czf "$out/logs.tar.gz" . 2> /dev/null
rm -rf "$logs"
echo "all in $SECONDS s"
! grep -q 'FAILED' "$table"

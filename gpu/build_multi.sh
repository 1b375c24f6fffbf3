#!/usr/bin/env bash
# Builds the programs of gpu/multi/ against .gpu/: gpu/build_multi.sh [FOLDER=.gpu/bin] [PROGRAM...]
#
# Programs that were built from the same source stay. NCCL's header is looked for in NCCL_HOME,
# beside the Python packages (nvidia/nccl, as PyTorch brings it), and where the system has it;
# without it nccl_collectives is left out. PYTHON=python3 NVCC=nvcc ARCH=sm_90: see
# gpu/build_torture.sh. Ends with 1 when one does not compile, with 3 when there is no nvcc.
set -uo pipefail
cd "$(dirname "$0")/.."
folder="${1:-.gpu/bin}"
shift || true
programs=("$@")
if [ ${#programs[@]} -eq 0 ]; then programs=(peer_maps peer_torture device_locks processes nccl_collectives); fi
mkdir -p "$folder"
# Of the repository .gpu/ has the library; of the copy in .gpu/gpu the folder above.
stage=.gpu
if [ ! -d "$stage" ]; then stage=.; fi

nccl_include() {
    local from
    for from in "${NCCL_HOME:+$NCCL_HOME/include}" \
        "$("${PYTHON:-python3}" -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/include")' 2> /dev/null)" \
        /usr/include /usr/local/include; do
        if [ -n "$from" ] && [ -e "$from/nccl.h" ]; then echo "$from"; return; fi
    done
}

status=0
jobs_of=()
names=()
sums=()
for program in "${programs[@]}"; do
    source="gpu/multi/$program.cu"
    if [ ! -e "$source" ]; then echo "no program $program" >&2; exit 2; fi
    # By contents: not every way of copying keeps times.
    sum="$(cat "$source" gpu/multi/common.cuh | cksum)"
    if [ -x "$folder/$program" ] && [ "$sum" = "$(cat "$folder/$program.sum" 2> /dev/null)" ]; then continue; fi
    flags="-I$stage/include -L$stage/lib -ldl -lpthread"
    if [ "$program" = nccl_collectives ]; then
        include="$(nccl_include)"
        if [ -z "$include" ]; then echo "$program: no nccl.h; set NCCL_HOME"; continue; fi
        flags="$flags -I$include"
    fi
    NVCC_FLAGS="${NVCC_FLAGS:-} $flags" gpu/build_torture.sh "$folder/$program" "$source" > "$folder/$program.log" 2>&1 &
    jobs_of+=($!)
    names+=("$program")
    sums+=("$sum")
done
for i in "${!jobs_of[@]}"; do
    wait "${jobs_of[$i]}"
    case $? in
        0) rm -f "$folder/${names[$i]}.log"; echo "${sums[$i]}" > "$folder/${names[$i]}.sum" ;;
        3) status=3 ;;
        *) echo "${names[$i]} does not compile:"; tail -n 12 "$folder/${names[$i]}.log"; status=1 ;;
    esac
done
exit $status

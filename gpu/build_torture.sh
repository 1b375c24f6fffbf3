#!/usr/bin/env bash
# Builds gpu/torture.cu, or another program with kernels, against .gpu/: gpu/build_torture.sh OUTPUT
# [SOURCE] With a GPU in the machine for that GPU, otherwise (or with ARCH set, e.g. ARCH=sm_90) for
# what nvcc can target.
set -euo pipefail
cd "$(dirname "$0")/.."
output="${1:?usage: gpu/build_torture.sh OUTPUT [SOURCE]}"
source="${2:-gpu/torture.cu}"
nvcc="${NVCC:-nvcc}"
if ! command -v "$nvcc" > /dev/null 2>&1; then
    for dir in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
        if [ -n "$dir" ] && [ -x "$dir/bin/nvcc" ]; then nvcc="$dir/bin/nvcc"; break; fi
    done
fi
if ! command -v "$nvcc" > /dev/null 2>&1; then echo "no nvcc: set NVCC or CUDA_HOME" >&2; exit 3; fi
if [ -n "${ARCH:-}" ]; then
    arch=(-arch="$ARCH")
elif nvidia-smi > /dev/null 2>&1; then
    arch=(-arch=native)
else
    arch=(-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_80,code=compute_80)
fi
# Extra flags, e.g. -I and -L of a toolkit in an unusual place, come from NVCC_FLAGS;
# CXX_STANDARD=c++20 for another language. shellcheck disable=SC2086
"$nvcc" -std="${CXX_STANDARD:-c++17}" -O2 "${arch[@]}" ${NVCC_FLAGS:-} -I.gpu/include "$source" -o "$output" \
    -L.gpu/lib -l:libgpumem.so.0 -Xcompiler -rdynamic -Xlinker -rpath -Xlinker '$ORIGIN/../lib'

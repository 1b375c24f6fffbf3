#!/usr/bin/env bash
# Builds gpu/rmm_conformance.cu against .gpu/ and RMM's and CCCL's headers: gpu/build_rmm.sh FOLDER
# [VARIANT...]
#
#   rmm_conformance       through CCCL 3.2 or newer, the toolkit's or that of CCCL=FOLDER (which has
#                         cuda/std/version)
#   rmm_conformance_rmm   through RMM, staged with WITH_RMM=1 gpu/stage.sh, or that of RMM=FOLDER
#
# Without variants: those that can be built. Ends with 3, and says why in its last line, when one
# that was asked for, or all, cannot be for lack of something.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="${1:?usage: gpu/build_rmm.sh FOLDER [VARIANT...]}"
shift
# The first of the folders (last arguments) that has the file (first argument).
first_with() { local file="$1" dir; shift; for dir in "$@"; do if [ -n "$dir" ] && [ -e "$dir/$file" ]; then echo "$dir"; return; fi; done; }
nvcc="$(command -v "${NVCC:-nvcc}" || true)"
cuda="$(first_with bin/nvcc "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${nvcc:+$(dirname "$(dirname "$nvcc")")}" /usr/local/cuda)"
built=0
lacking=""

through_cccl() {
    local cccl
    cccl="$(first_with cuda/std/version "${CCCL:-}" "${cuda:+$cuda/include/cccl}" "${cuda:+$cuda/include}")"
    if [ -z "$cccl" ]; then lacking="no CCCL (cuda/std/version); set CCCL"; return 3; fi
    if ! printf '#include <cuda/std/version>\n#if CCCL_VERSION < 3002000\n#error old\n#endif\n' |
        "${CXX:-c++}" -std=c++17 -fsyntax-only -I"$cccl" -I"$cuda/include" -x c++ - 2> /dev/null; then
        lacking="the CCCL in $cccl is older than 3.2; set CCCL"
        return 3
    fi
    NVCC_FLAGS="${NVCC_FLAGS:-} -I$cccl -DGPUMEM_NO_RMM" gpu/build_torture.sh "$folder/rmm_conformance" gpu/rmm_conformance.cu
}

through_rmm() {
    local rmm
    rmm="$(first_with librmm/include/rmm "${RMM:-}" .gpu/rmm)"
    if [ -z "$rmm" ]; then lacking="no RMM (librmm/include/rmm); set RMM, or stage it with WITH_RMM=1 gpu/stage.sh"; return 3; fi
    rmm="$(cd "$rmm" && pwd)"
    # Staged folders move to another machine together.
    # RMM brings the CCCL it was made with, which must come before the toolkit's.
    CXX_STANDARD=c++20 NVCC_FLAGS="${NVCC_FLAGS:-} -DWITH_RMM -I$rmm/librmm/include/rapids -I$rmm/librmm/include \
        -I$rmm/rapids_logger/include -L$rmm/librmm/lib64 -lrmm -Xlinker -rpath -Xlinker $rmm/librmm/lib64:\$ORIGIN/../rmm/librmm/lib64 \
        -L$rmm/rapids_logger/lib64 -lrapids_logger -Xlinker -rpath -Xlinker $rmm/rapids_logger/lib64:\$ORIGIN/../rmm/rapids_logger/lib64" \
        gpu/build_torture.sh "$folder/rmm_conformance_rmm" gpu/rmm_conformance.cu
}

build() {  # function, name
    local rc=0
    if [ -z "$cuda" ]; then lacking="no nvcc: set NVCC or CUDA_HOME"; return 3; fi
    "$1" || rc=$?
    if [ $rc -eq 0 ]; then built=$((built + 1)); return 0; fi
    return $rc
}

asked=$#
if [ $asked -eq 0 ]; then set -- rmm_conformance rmm_conformance_rmm; fi
for variant in "$@"; do
    rc=0
    case "$variant" in
        rmm_conformance) build through_cccl || rc=$? ;;
        rmm_conformance_rmm) build through_rmm || rc=$? ;;
        *) echo "no variant $variant" >&2; exit 2 ;;
    esac
    if [ $rc -ne 0 ] && { [ $rc -ne 3 ] || [ $asked -gt 0 ]; }; then echo "${lacking:-$variant does not build}"; exit $rc; fi
done
if [ $built -eq 0 ]; then echo "$lacking"; exit 3; fi

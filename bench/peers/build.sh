#!/usr/bin/env bash
# Builds the peers' benchmark: bench/peers/build.sh [OUTPUT-FOLDER]     (default .gpu/peers)
#
#   peers_cuda    gpumem, cudaMallocAsync, cudaMalloc    needs CUDA's headers and libcudart
#   peers_rmm     RMM's pool, arena and async            needs its wheels besides, see RMM below
#   peers_torch   PyTorch's allocator                    needs an installed PyTorch with CUDA, too
#   torch_time.so, torch_turns.so                        the same; torch_time.sh and torch_turns.py
#                                                        use them
#   peers_host    gpumem on the host device              with BACKEND=host, alone; needs no CUDA
#   apart         what the machine lets processes do     needs no CUDA
#                 that share nothing
#
# What is missing is named, and what needs it left out; only the first (or the last) must be there.
#
#   GPUMEM=FOLDER   has include/gpumem.h and lib/libgpumem.so.0; default .gpu, else this repository
#                   and its target/release
#   CUDA_HOME=FOLDER   default: where nvcc is, else /usr/local/cuda, PyPI's packages of PYTHON, /usr
#   RMM=FOLDER      has librmm/ and rapids_logger/, as `pip install --no-deps --target FOLDER
#                   librmm-cu13 rapids-logger` makes it; default .gpu/rmm, else where PYTHON finds
#                   the module librmm
#   PYTHON=python3   CXX=g++   CXXFLAGS=
set -euo pipefail
cd "$(dirname "$0")/../.."
out="${1:-.gpu/peers}"
: "${CXX:=g++}" "${PYTHON:=python3}" "${CXXFLAGS:=}" "${BACKEND:=cuda}"
say() { printf 'peers: %s\n' "$*"; }
die() { printf 'peers: %s\n' "$*" >&2; exit 3; }
# The first of the folders (last arguments) that has the file (first argument).
first_with() { local file="$1" dir; shift; for dir in "$@"; do if [ -n "$dir" ] && [ -e "$dir/$file" ]; then echo "$dir"; return; fi; done; }

command -v "$CXX" > /dev/null 2>&1 || die "no C++ compiler $CXX; install one, or set CXX"
printf '#include <version>\n#ifndef __cpp_lib_atomic_wait\n#error\n#endif\n' | "$CXX" -std=c++20 -fsyntax-only -x c++ - 2> /dev/null || die "$CXX has no C++20 (std::atomic::wait); set CXX to a newer compiler"
mkdir -p "$out"
out="$(cd "$out" && pwd)"

if [ -n "${GPUMEM:-}" ]; then include="$GPUMEM/include"; library="$GPUMEM/lib"
elif [ -e .gpu/lib/libgpumem.so.0 ]; then include=.gpu/include; library=.gpu/lib
else include=include; library="${CARGO_TARGET_DIR:-target}/release"; fi
[ -e "$include/gpumem.h" ] || die "no gpumem.h in $include; set GPUMEM"
# Programs look for libgpumem.so.0 when they start, so that name is what there must be.
if [ ! -e "$library/libgpumem.so.0" ]; then die "no libgpumem.so.0 in $library; run make build or gpu/stage.sh, or set GPUMEM"; fi
library="$(cd "$library" && pwd)"
flags=(-std=c++20 -O2 -Wall -Wextra -Wno-missing-field-initializers -pthread)
gpumem=(-DWITH_GPUMEM "-I$include")
link_gpumem=("-L$library" -l:libgpumem.so.0 "-Wl,-rpath,$library")

compile() {  # source, output, arguments of the compiler...
    local source="$1" name="$2"; shift 2
    # shellcheck disable=SC2086
    "$CXX" "${flags[@]}" $CXXFLAGS "bench/peers/$source" -o "$out/$name" "$@"
}

build() {  # name, arguments of the compiler...
    compile peers.cpp "$@"
    say "$1: $("$out/$1" --list 2> /dev/null | tr '\n' ' ')"
}

compile apart.cpp apart -DWITHOUT_CUDA "${gpumem[@]}" "${link_gpumem[@]}"
if [ "$BACKEND" = host ]; then
    build peers_host -DWITHOUT_CUDA "${gpumem[@]}" "${link_gpumem[@]}"
    exit
fi

nvcc="$(command -v nvcc || true)"
if [ -n "$nvcc" ]; then nvcc="$(dirname "$(readlink -f "$nvcc")")/.."; fi
# PyPI's packages of CUDA lie in a folder of their own.
wheels="$("$PYTHON" -c 'import nvidia; print(list(nvidia.__path__)[0] + "/cu13")' 2> /dev/null || true)"
cuda="$(first_with include/cuda_runtime_api.h "${CUDA_HOME:-}" "${CUDA_PATH:-}" "$nvcc" /usr/local/cuda "$wheels" /usr)"
[ -n "$cuda" ] || die "no CUDA headers (include/cuda_runtime_api.h); set CUDA_HOME"
cudart=
for dir in lib64 lib targets/x86_64-linux/lib lib/x86_64-linux-gnu; do
    for file in "$cuda/$dir"/libcudart.so "$cuda/$dir"/libcudart.so.*; do
        if [ -z "$cudart" ] && [ -e "$file" ]; then cudart="$file"; fi
    done
done
[ -n "$cudart" ] || die "no libcudart.so under $cuda; set CUDA_HOME"
cuda_lib="$(cd "$(dirname "$cudart")" && pwd)"
cuda_flags=(-isystem "$cuda/include")
# The compiler looks there anyway, and must do so last.
if [ "$cuda" = /usr ]; then cuda_flags=(); fi
link_cuda=("-L$cuda_lib" "-l:$(basename "$cudart")" "-Wl,-rpath,$cuda_lib")
build peers_cuda "${gpumem[@]}" "${cuda_flags[@]}" "${link_gpumem[@]}" "${link_cuda[@]}"

where_librmm() { "$PYTHON" -c 'import librmm, os; print(os.path.dirname(os.path.dirname(librmm.__file__)))' 2> /dev/null || true; }
rmm="$(first_with librmm/include/rmm "${RMM:-}" .gpu/rmm "$(where_librmm)")"
if [ -z "$rmm" ]; then
    say "no RMM (librmm/include/rmm): left out; set RMM, or stage it with WITH_RMM=1 gpu/stage.sh"
else
    rmm="$(cd "$rmm" && pwd)"
    # RMM brings the CCCL it was made with, which must come before the toolkit's.
    build peers_rmm -DWITH_RMM -isystem "$rmm/librmm/include/rapids" -isystem "$rmm/librmm/include" \
        -isystem "$rmm/rapids_logger/include" "${cuda_flags[@]}" \
        "-L$rmm/librmm/lib64" -lrmm "-Wl,-rpath,$rmm/librmm/lib64" \
        "-L$rmm/rapids_logger/lib64" -lrapids_logger "-Wl,-rpath,$rmm/rapids_logger/lib64" "${link_cuda[@]}" ||
        { rm -f "$out/peers_rmm"; say "RMM in $rmm does not build here: left out"; }
fi

torch="$("$PYTHON" -c 'import torch, os; print(os.path.dirname(torch.__file__) if torch.version.cuda else "")' 2> /dev/null || true)"
if [ -z "$torch" ]; then
    say "$PYTHON has no PyTorch with CUDA: left out; set PYTHON"
else
    # What libc10_cuda needs besides comes from its own search path when the program starts.
    build peers_torch -DWITH_TORCH -isystem "$torch/include" "${cuda_flags[@]}" \
        "-L$torch/lib" -lc10_cuda -lc10 "-Wl,-rpath,$torch/lib" -Wl,--allow-shlib-undefined "${link_cuda[@]}" ||
        { rm -f "$out/peers_torch"; say "PyTorch in $torch does not build here: left out"; }
    for stand_in in torch_time torch_turns; do
        compile "$stand_in.cpp" "$stand_in.so" -shared -fPIC -isystem "$torch/include" \
            "${cuda_flags[@]}" "-L$torch/lib" -lc10_cuda -lc10 -ldl -Wl,--allow-shlib-undefined "${link_cuda[@]}" ||
            { rm -f "$out/$stand_in.so"; say "$stand_in.so does not build with the PyTorch in $torch: left out"; }
    done
fi

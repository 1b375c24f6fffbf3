#!/bin/sh
# What a pair of an allocation and a free of 4 KiB costs from C and from Julia: `make bench-julia`.
# Nanoseconds, the least of 7 runs of 1,000,000 pairs each.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
ln -s "$LIBRARY" "$out/libgpumem.so.0"
"${CC:-cc}" -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -Iinclude bindings/bench.c "$out/libgpumem.so.0" -Wl,-rpath,"$out" -o "$out/bench"
export GPUMEM_BACKEND="${GPUMEM_BACKEND:-host}" GPUMEM_LIBRARY="$LIBRARY"
"$out/bench"
"$JULIA" --startup-file=no -O2 --project=bindings/julia/Gpumem.jl bindings/julia/Gpumem.jl/bench/pairs.jl

#!/bin/sh
# `gpu.sh test` and `gpu.sh bench`: stages binaries with gpu/stage.sh where there is a compiler, and runs gpu/test.sh or
# gpu/bench.sh where there is a GPU. The two can be different machines.
set -u
cd "$(dirname "$0")/.."
what=$1
run=gpu/$what.sh

if [ ! -f "$run" ]; then
    echo "$run does not exist in this tree: there is nothing to $what on a GPU yet" >&2
    exit 1
fi

staged=no
if command -v "${CARGO:-cargo}" >/dev/null 2>&1; then
    sh gpu/stage.sh || exit 1
    staged=yes
elif [ -d .gpu ]; then
    echo "note: no cargo here; running the binaries that are already in .gpu/"
    staged=yes
fi

if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "There is no usable NVIDIA GPU here (nvidia-smi -L fails), so nothing was run." >&2
    if [ "$staged" = yes ]; then
        echo "The binaries are in .gpu/. Copy this directory to a machine with a GPU and run there: sh $run" >&2
    else
        echo "Run sh gpu/stage.sh where cargo is, copy the directory with its .gpu/ here, and run: sh $run" >&2
    fi
    exit 1
fi
if [ "$staged" = no ]; then
    echo "There is a GPU, but neither cargo nor staged binaries in .gpu/." >&2
    echo "Run sh gpu/stage.sh on a machine with Rust, copy the directory here, and run: sh $run" >&2
    exit 1
fi
exec sh "$run"

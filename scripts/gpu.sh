#!/bin/sh
# `gpu.sh test` and `gpu.sh bench`: stages binaries with gpu/stage.sh where there is cargo, and uses
# them where there is a GPU. The two can be different machines.
set -u
cd "$(dirname "$0")/.."
case ${1:-} in
    test) stage=; set -- bash gpu/test.sh ;;
    # PyTorch workloads are apart, as they need a workload script: gpu/torch.sh.
    bench) stage=--bench; set -- bash gpu/bench.sh ;;
    *) echo "usage: gpu.sh test|bench" >&2; exit 2 ;;
esac

cargo=${CARGO:-cargo}
# It may have flags, such as +stable.
if command -v "${cargo%% *}" >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    bash gpu/stage.sh $stage || exit 1
elif [ -x .gpu/bin/gpumem ]; then
    echo "note: no cargo here; using the binaries that are already in .gpu/"
else
    echo "There is neither cargo here nor anything staged in .gpu/." >&2
    echo "Run gpu/stage.sh on a machine with Rust, copy the directory with its .gpu/ here, and run: $*" >&2
    exit 1
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "There is no usable NVIDIA GPU here (nvidia-smi -L fails), so nothing was run." >&2
    echo "The binaries are in .gpu/. Copy this directory to a machine with a GPU and run there: $*" >&2
    exit 1
fi
exec "$@"

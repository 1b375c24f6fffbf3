#!/bin/sh
# The benches (criterion, and the hot pair beside mimalloc's), then the repository's trace: driver calls and time per operation on the host device.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
"$cargo" bench -p gpumem --benches --features bench-internals
"$cargo" build --release -p gpumem-cli
"${CARGO_TARGET_DIR:-target}/release/gpumem" replay --backend host --repeat 5 examples/traces/training.csv.gz

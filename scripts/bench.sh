#!/bin/sh
# Whatever benchmarks there are, then the repository's trace: driver calls and time per operation on the host device.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
if ls benches/*.rs >/dev/null 2>&1; then
    "$cargo" bench --workspace --benches
else
    echo "note: there are no benches/ yet; replaying the trace only"
fi
"$cargo" build --release -p gpumem-cli
"${CARGO_TARGET_DIR:-target}/release/gpumem" replay --backend host --repeat 5 examples/traces/training.csv.gz

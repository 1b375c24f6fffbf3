#!/bin/sh
# Whatever criterion benches there are, then `gpumem bench` with the repository's trace, all on the host device.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
if ls benches/*.rs >/dev/null 2>&1; then
    "$cargo" bench --workspace --benches
else
    echo "note: there are no benches/ yet; measuring the pool on the host device only"
fi
"$cargo" build --release -p gpumem-cli
gpumem=${CARGO_TARGET_DIR:-target}/release/gpumem
"$gpumem" bench --backend host
"$gpumem" bench --backend host replay examples/traces/training.csv.gz

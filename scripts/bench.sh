#!/bin/sh
# The benches (criterion, and the hot pair beside mimalloc's), then `gpumem bench` with the
# repository's trace, all on the host device.
# CARGO may have flags, such as +stable.
# shellcheck disable=SC2086
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
$cargo bench -p gpumem-bench
$cargo build --release -p gpumem-cli
gpumem=${CARGO_TARGET_DIR:-target}/release/gpumem
"$gpumem" bench --backend host
"$gpumem" bench --backend host replay examples/traces/training.csv.gz

#!/bin/sh
# Runs every test of the workspace and ends with one line: N passed, N failed, N skipped.
# Arguments go to cargo test, e.g. `sh scripts/test.sh -p gpumem-cli`.
set -u
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
log=$target/test.log
mkdir -p "$target"

for tool in valgrind cmake pkg-config g++ python3; do
    command -v "$tool" >/dev/null 2>&1 || echo "note: $tool is not installed; tests that need it say so (apt install $tool)"
done

[ $# -gt 0 ] || set -- --workspace --exclude gpumem-bench
{
    # Plain text, whatever the terminal is, because the summary is read from it. CARGO may have
    # flags.
    # shellcheck disable=SC2086
    CARGO_TERM_COLOR=never ${CARGO:-cargo} test --no-fail-fast "$@" -- --show-output --color never </dev/null 2>&1
    echo "cargo exit status: $?"
} | tee "$log"
awk -f scripts/test-summary.awk "$log"

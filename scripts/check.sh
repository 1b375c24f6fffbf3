#!/bin/sh
# What an edit needs: format, lints of what it touches, and the tests that take seconds. `make test`
# has all of them. Arguments go to cargo test, e.g. `sh scripts/check.sh --test pool`, instead of
# the unit tests and the rules.
# CARGO may have flags, such as +stable.
# shellcheck disable=SC2086
set -u
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
$cargo fmt --all --check || { echo "format it: cargo fmt --all" >&2; exit 1; }
$cargo clippy --quiet --workspace -- -D warnings || exit 1
[ $# -gt 0 ] || set -- --lib --test rules
sh scripts/test.sh -p gpumem "$@"

#!/bin/sh
# Formatting, lints, and the links of the documentation; warnings are errors.
set -u
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
for part in fmt clippy; do
    if ! "$cargo" "$part" --version >/dev/null 2>&1; then
        component=$part
        [ "$part" = fmt ] && component=rustfmt
        echo "cargo $part is missing; install it: rustup component add $component" >&2
        exit 1
    fi
done
"$cargo" fmt --all --check || { echo "format it: cargo fmt --all" >&2; exit 1; }
"$cargo" clippy --workspace --all-targets -- -D warnings || exit 1
# Only with its feature, which what is linted above must do without.
"$cargo" clippy -p gpumem-bench --features internals --bench pure_parts -- -D warnings || exit 1
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
    "$cargo" doc --workspace --no-deps --document-private-items --quiet

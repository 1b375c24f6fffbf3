#!/bin/sh
# Formatting, lints, and the links of the documentation; warnings are errors.
# CARGO may have flags, such as +stable.
# shellcheck disable=SC2086
set -u
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
for part in fmt clippy; do
    if ! $cargo "$part" --version >/dev/null 2>&1; then
        component=$part
        [ "$part" = fmt ] && component=rustfmt
        echo "cargo $part is missing; install it: rustup component add $component" >&2
        exit 1
    fi
done
$cargo fmt --all --check || { echo "format it: cargo fmt --all" >&2; exit 1; }
$cargo clippy --workspace --all-targets -- -D warnings || exit 1
RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
    $cargo doc --workspace --no-deps --document-private-items --quiet

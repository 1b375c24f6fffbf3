#!/bin/sh
# Models of what threads share: loom runs each under every order of the threads' steps. Its own
# target directory, as the whole crate is built with other atomics. Arguments go to the test binary,
# e.g. the name of one model.
# CARGO may have flags, such as +stable.
# shellcheck disable=SC2086
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/loom
RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_TARGET_DIR=$target ${CARGO:-cargo} test -p gpumem --lib \
    --config profile.test.debug-assertions=true -- "${@:-models::}" --test-threads 1 --show-output

#!/usr/bin/env bash
# Builds everything that gpu/test.sh, gpu/bench.sh, gpu/preload.sh and gpu/torch.sh need and puts it
# into .gpu/, so that a machine with a GPU needs no Rust: copy the working tree there, or only gpu/,
# bench/ and .gpu/, and run gpu/test.sh or gpu/bench.sh.
#
#   gpu/stage.sh [--dev] [--bench] [--multi] [--built]
#                  --dev      the library from a development build, which is quicker to make
#                  --bench    no tests, only what gpu/bench.sh and gpu/torch.sh need
#                  --multi    only what gpu/multi.sh needs, with that script and its programs, so
#                             that .gpu/ alone will do there
#                  --built    the library and the command as they are in target/ (`make build` makes
#                             them)
#   WITH_RMM=1                         RMM too, from PyPI, for gpu/bench.sh to measure it and
#                                      gpu/test.sh to use it; needs pip
#   RMM_PACKAGES="librmm-cu13 rapids-logger"    what that is, for another CUDA or version
#
# Needs cargo and cc; c++ and nvcc add the C++ runs of the C tests and a prebuilt torture. Both
# machines need the same processor architecture, and the GPU machine a C library no older than this
# one's.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release; flag=--release; tests=1; multi=; built=
for argument in "$@"; do
    case "$argument" in
        --dev) profile=debug; flag= ;;
        --bench) tests= ;;
        --multi) tests=; multi=1 ;;
        --built) built=1 ;;
        *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
target="${CARGO_TARGET_DIR:-target}"
out=.gpu
say() { printf 'stage: %s\n' "$*"; }
have() { command -v "$1" > /dev/null 2>&1; }

rm -rf "$out"
mkdir -p "$out/lib" "$out/bin" "$out/include" "$out/tests" "$out/c_tests/src"

say "library and command ($profile)"
# shellcheck disable=SC2086
if [ -z "$built" ]; then cargo build $flag -p gpumem -p gpumem-cli -p gpumem-preload; fi
# Two copies instead of a link: not every way of copying keeps links.
cp "$target/$profile/libgpumem.so" "$out/lib/libgpumem.so"
if have strip; then strip --strip-debug "$out/lib/libgpumem.so"; fi
cp "$out/lib/libgpumem.so" "$out/lib/libgpumem.so.0"
cp "$target/$profile/libgpumem_preload.so" "$out/lib/libgpumem_preload.so"
if have strip; then strip --strip-debug "$out/lib/libgpumem_preload.so"; fi
cp "$target/$profile/gpumem" "$out/bin/gpumem"
if have strip; then strip --strip-debug "$out/bin/gpumem"; fi
if [ -d include ]; then cp -R include/. "$out/include/"; fi
mkdir -p "$out/traces"
cp examples/traces/training.csv.gz "$out/traces/"

if [ -n "${WITH_RMM:-}" ]; then
    say "RMM"
    # shellcheck disable=SC2086
    "${PYTHON:-python3}" -m pip install --quiet --no-deps --only-binary=:all: --no-compile --target "$out/rmm" \
        ${RMM_PACKAGES:-librmm-cu13 rapids-logger}
    # Headers that nothing here includes are three quarters of it.
    rm -rf "$out"/rmm/*.dist-info "$out"/rmm/librmm/include/rapids/cub "$out"/rmm/librmm/include/rapids/thrust
    find "$out/rmm" -type d \( -name cmake -o -name __pycache__ \) -prune -exec rm -rf {} +
    if have strip; then find "$out/rmm" -name '*.so' -exec strip --strip-unneeded {} +; fi
fi

check_size() {
    du -sh "$out" | sed 's/^/stage: /'
    megabytes="$(du -sm "$out" | cut -f1)"
    if [ "$megabytes" -ge 60 ]; then say "that is 60 MiB or more; is strip (binutils) missing?"; exit 1; fi
}

build_c() {  # compiler, flags, source, output
    # shellcheck disable=SC2086
    $1 $2 -O1 -g -I"$out/include" -Ic_tests "$3" -o "$4" -L"$out/lib" -l:libgpumem.so.0 -Wl,-rpath,'$ORIGIN/../lib' -lpthread -lm
}
if [ -n "$multi" ]; then
    say "Python package and C tests"
    mkdir -p "$out/python"
    cp -R bindings/python/src/gpumem "$out/python/"
    find "$out/python" -name __pycache__ -prune -exec rm -rf {} +
    # The library is that of .gpu/lib: gpu/multi.sh says so. The headers are for the allocator that
    # PyTorch gets.
    cp -R "$out/include" "$out/python/gpumem/include"
    for name in devices reserve raii; do
        for source in c_tests/$name.c c_tests/$name.cpp; do
            case "$source" in
                *.c) [ ! -e "$source" ] || build_c "${CC:-cc}" "-std=c99 -D_GNU_SOURCE" "$source" "$out/c_tests/$name" ;;
                *.cpp) [ ! -e "$source" ] || build_c "${CXX:-c++}" "-std=c++17" "$source" "$out/c_tests/$name" ;;
            esac
        done
    done
    # The scripts too, so that nothing else has to travel.
    mkdir -p "$out/gpu"
    cp -R gpu/multi gpu/multi.sh gpu/build_multi.sh gpu/build_torture.sh "$out/gpu/"
    find "$out/gpu" -name __pycache__ -prune -exec rm -rf {} +
    if have nvcc; then
        say "programs with kernels"
        gpu/build_multi.sh "$out/bin" || say "not all are prebuilt; gpu/multi.sh builds them where there is nvcc"
        for program in "$out"/bin/*; do if have strip && [ -x "$program" ]; then strip --strip-debug "$program"; fi; done
    else
        say "no nvcc here: gpu/multi.sh builds its programs on the machine with GPUs"
    fi
fi
if [ -z "$tests" ]; then check_size; exit; fi

say "test executables"
messages="$(mktemp)"
trap 'rm -f "$messages"' EXIT
cargo test -p gpumem --test driver --no-run --message-format=json > "$messages"
# One line per executable: its target's kind and name, and where it is. The others need no GPU, and
# all of them together are more than one wants to copy about.
sed -n 's/.*"target":{"kind":\["\([a-z]*\)".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2 \3/p' "$messages" |
while read -r kind name path; do
    case "$kind $name" in "test driver") ;; *) continue ;; esac
    cp "$path" "$out/tests/$name"
    if have strip; then strip -s "$out/tests/$name"; fi
done

# Every source with a main is a test. Those that begin otherwise are parts of others.
if [ -d c_tests ]; then
    say "C tests"
    find c_tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' \) -exec cp {} "$out/c_tests/src/" \;
    for source in c_tests/*.c c_tests/*.cpp; do
        [ -e "$source" ] && grep -qE '\bmain *\(' "$source" || continue
        name="$(basename "$source")"
        # It needs a stand-in for a part of PyTorch, which tests/capi/c_abi.rs builds.
        [ "$name" = torch_throw.cpp ] && continue
        case "$source" in
            *.c)
                build_c "${CC:-cc}" "-std=c99 -D_GNU_SOURCE" "$source" "$out/c_tests/${name%.c}.c99"
                if have "${CXX:-c++}"; then
                    build_c "${CXX:-c++}" "-std=c++17 -x c++" "$source" "$out/c_tests/${name%.c}.cpp17"
                fi ;;
            *.cpp)
                if have "${CXX:-c++}"; then
                    build_c "${CXX:-c++}" "-std=c++17" "$source" "$out/c_tests/${name%.cpp}.cpp17"
                fi ;;
        esac
    done
fi

cp gpu/torture.cu "$out/torture.cu"
if have nvcc; then
    say "torture"
    gpu/build_torture.sh "$out/bin/torture" || say "torture not prebuilt; gpu/test.sh builds it where there is nvcc"
    for program in stale_kernel graph_replay tiers; do
        gpu/build_torture.sh "$out/bin/$program" "gpu/$program.cu" || say "$program not prebuilt either"
    done
    gpu/build_rmm.sh "$out/bin" || say "rmm_conformance not prebuilt either"
else
    say "no nvcc here: gpu/test.sh builds the torture on the GPU machine"
fi

check_size

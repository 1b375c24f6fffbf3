#!/bin/sh
# The package's tests on the host device, in a virtual environment that is made in a folder:
# `test.sh FOLDER [ARGUMENT OF PYTEST...]`. Says `ok NAME` for each behaviour of CONFORMANCE.md, and
# `skipped: why` for what cannot run here.
#
#   GPUMEM_PREBUILT=FOLDER   the libraries and the command: a wheel is made of them, installed, and
#                            tested
#   GPUMEM_LIBRARY=FILE      without these the sources are tested with this library
#   PYTHON=python3
set -eu
folder="$1"
shift
here="$(cd "$(dirname "$0")" && pwd)"
: "${PYTHON:=python3}"
mkdir -p "$folder"
folder="$(cd "$folder" && pwd)"
log="$folder/install.log"
: > "$log"

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>> "$log" || { echo "skipped: no Python 3.10 or newer ($PYTHON)"; exit 0; }
python="$folder/venv/bin/python"
if ! "$python" -m pip --version >> "$log" 2>&1; then
    rm -rf "$folder/venv"
    "$PYTHON" -m venv "$folder/venv" >> "$log" 2>&1 || { echo "skipped: $PYTHON -m venv does not work (apt install python3-venv)"; exit 0; }
fi
if ! "$python" -c 'import pytest, numpy, hatchling' 2>> "$log"; then
    "$python" -m pip install --quiet --disable-pip-version-check --timeout 20 --retries 1 pytest numpy hatchling >> "$log" 2>&1 ||
        { echo "skipped: pytest, numpy and hatchling cannot be installed from PyPI: $(tail -n 1 "$log")"; exit 0; }
fi

if [ -n "${GPUMEM_PREBUILT:-}" ]; then
    unset GPUMEM_LIBRARY PYTHONPATH
    rm -rf "$folder/wheel"
    "$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$folder/wheel" "$here" >> "$log" 2>&1 &&
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall "$folder"/wheel/*.whl >> "$log" 2>&1 ||
        { tail -n 20 "$log" >&2; exit 1; }
else
    PYTHONPATH="$here/src"
    export PYTHONPATH
fi

# The settings of every run, and none of the caller's.
library="${GPUMEM_LIBRARY:-}"
for name in $(env | sed -n 's/^\(GPUMEM_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
if [ -n "$library" ]; then GPUMEM_LIBRARY="$library"; export GPUMEM_LIBRARY; fi
export GPUMEM_BACKEND=host GPUMEM_ARENA_DEBUG=check GPUMEM_LOG=0 PYTHONDONTWRITEBYTECODE=1

cd "$folder"
status=0
"$python" -m pytest -q -s -rs -p no:cacheprovider --rootdir "$here" "$here/tests" "$@" > "$folder/pytest.log" 2>&1 || status=$?
sed 's/^SKIPPED \[[0-9]*\] /skipped: /' "$folder/pytest.log"
exit $status

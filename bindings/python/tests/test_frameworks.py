"""The programs of programs/, each a process of its own, where there are a GPU and the framework;
gpu/python.sh runs them too."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import gpumem
import pytest

PROGRAMS = pathlib.Path(__file__).with_name("programs")
CASES = [("torch", "torch_basics.py"), ("torch", "torch_basics.py pluggable"), ("torch", "torch_compile.py"), ("torch", "torch_processes.py"),
         ("torch", "torch_sleep.py 2 5"), ("cupy", "cupy_arrays.py"), ("numba", "numba_arrays.py"), ("rmm", "rmm_buffers.py"),
         ("warp", "warp_arrays.py")]


@pytest.mark.parametrize("framework, program", CASES)
def test_on_a_gpu(framework, program):
    if gpumem.backend() != "cuda":
        pytest.skip("needs a GPU")
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    name, *rest = program.split()
    done = subprocess.run([sys.executable, str(PROGRAMS / name), *rest], capture_output=True, text=True, timeout=300,
                          env={k: v for k, v in os.environ.items() if k != "GPUMEM_BACKEND"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_numba_that_does_not_load_is_skipped(tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba/__init__.py").touch()
    (tmp_path / "numba/cuda.py").write_text("raise RuntimeError('no libcudart.so')")
    done = subprocess.run([sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(PROGRAMS.parent / "test_numba.py")],
                          capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    assert "numba.cuda does not load: no libcudart.so" in done.stdout and "1 skipped" in done.stdout, done.stdout

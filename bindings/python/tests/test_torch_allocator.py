"""PyTorch's allocator without a GPU: built against the installed PyTorch, over the host device,
with a stub of CUDA's runtime."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import gpumem
import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("program, checks", [("torch_stub.py", 30), ("torch_stub_pluggable.py", 12), ("torch_stub_processes.py", 6)])
def test_over_a_stub_of_cuda(tmp_path, program, checks):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if gpumem.backend() == "cuda":
        pytest.skip("there is a GPU; programs/torch_basics.py is for it")
    if not (shutil.which("cc") and shutil.which("c++")):
        pytest.skip("no compiler")
    for name in ("libstub.so", "libcuda.so.1"):
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", tmp_path / name, HERE / "stub_cuda.c"], check=True)
    environment = {**os.environ, "GPUMEM_BACKEND": "host", "LD_PRELOAD": str(tmp_path / "libstub.so"),
                   "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}", "PYTHONPATH": os.pathsep.join(sys.path)}
    if "pluggable" in program:
        # So that there is none from an earlier build.
        environment["TORCH_EXTENSIONS_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, str(HERE / "programs" / program)], capture_output=True, text=True, timeout=300, env=environment)
    said = done.stdout + done.stderr
    if "CUDA's headers are not there" in said or "there is no C++ compiler" in said:
        pytest.skip("CUDA's headers are not there")
    assert done.returncode == 0, said[-4000:]
    assert done.stdout.count("ok ") > checks, said

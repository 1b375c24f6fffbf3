"""Runs a program of PyTorch's with gpumem enabled, and says what the statistics and the driver said at its synchronisations.

    enabled.py native|gpumem|pluggable SCRIPT [ARGUMENT...]

The last line is JSON: the most that the driver said was used above the start, and the most that PyTorch said was reserved and
allocated then, bytes. A test file of another version of PyTorch may import helpers that the installed one lacks: tests that are
decorated with them are skipped.
"""

import ast
import importlib
import json
import os
import runpy
import sys
import unittest

mode, script, *rest = sys.argv[1:]
if mode != "native":
    import gpumem.torch

    gpumem.torch.enable(native=mode == "gpumem")
import torch  # noqa: E402

torch.cuda.init()
x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
(x @ x).sum().item()
torch.cuda.synchronize()
real = torch.cuda.synchronize


def used():
    free, total = torch.cuda.mem_get_info()
    return total - free


base = used(), torch.cuda.memory_reserved()
most = [0, 0]


def synchronize(*arguments):
    real(*arguments)
    most[0] = max(most[0], used() - base[0])
    most[1] = max(most[1], torch.cuda.memory_reserved() - base[1])


torch.cuda.synchronize = synchronize
with open(script, encoding="utf-8") as file:
    imports = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.ImportFrom)]
for node in imports:
    if (node.module or "").startswith("torch.testing."):
        module = importlib.import_module(node.module)
        for name in node.names:
            if not hasattr(module, name.name):
                setattr(module, name.name, unittest.skip(f"this PyTorch has no {name.name}"))
sys.argv = [script, *rest]
sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
try:
    runpy.run_path(script, run_name="__main__")
finally:
    print(json.dumps({"driver": most[0], "reserved": most[1], "max_allocated": torch.cuda.max_memory_allocated(),
                      "max_reserved": torch.cuda.max_memory_reserved()}), flush=True)

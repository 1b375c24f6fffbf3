"""What the programs here share: each prints `ok NAME` or `FAIL NAME: why` for every check, and ends
with 1 when one failed.

They need a GPU and a framework. gpu/python.sh runs them, and test_frameworks.py where there is a
GPU.
"""

import sys
import traceback

_failed = []


def check(name, good, why=""):
    """One line about one fact."""
    print(f"ok {name}" if good else f"FAIL {name}: {why}", flush=True)
    if not good:
        _failed.append(name)


def run(*functions):
    """Runs them in order, each though one before failed, and ends the program."""
    for function in functions:
        try:
            function()
        except Exception as why:
            check(function.__name__, False, f"{type(why).__name__}: {' '.join(str(why).split())[:400]}")
            traceback.print_exc()
        else:
            if function.__name__ not in _failed:
                check(function.__name__, True)
    sys.exit(1 if _failed else 0)


def near(a, b, share):
    """Whether two figures differ by no more than a share of the second."""
    return abs(a - b) <= share * abs(b)

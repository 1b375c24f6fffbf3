"""What the scripts of this folder share: measurements in processes of their own, and how several are told."""

import statistics
import subprocess
import sys


def output_of(command, what, environment, seconds):
    """What the command printed. None when it failed or took longer; then why it did is said on stderr, after `what`."""
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace", timeout=seconds)
        why = "" if done.returncode == 0 else f"status {done.returncode}\n{done.stderr[-2000:]}"
    except subprocess.TimeoutExpired:
        why = f"stopped after {seconds} s"
    if why:
        print(f"{what} failed: {why}", file=sys.stderr)
        return None
    return done.stdout


def spread(values, digits):
    """The median, and between which limits the values are."""
    low, middle, high = (f"{f(values):,.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})"

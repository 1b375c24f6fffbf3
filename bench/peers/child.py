"""How the scripts of this folder take a measurement in a process of its own."""

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

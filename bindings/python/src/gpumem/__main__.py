"""`python -m gpumem doctor`, `run`, `view`, ...: the gpumem command that comes with the package."""

import os
import shutil
import sys

from ._library import FOLDER


def command():
    """Returns the path of the gpumem command: this package's, else the one on the PATH, else
    None."""
    own = FOLDER / "gpumem"
    return str(own) if own.is_file() else shutil.which("gpumem")


def main():
    program = command()
    if program is None:
        sys.exit("gpumem: this installation has no gpumem command, and there is none on the PATH; install a wheel that has it, or "
                 "`make install`")
    sys.stdout.flush()
    try:
        os.execv(program, ["gpumem", *sys.argv[1:]])
    except OSError as why:
        sys.exit(f"gpumem: {program} cannot be started: {why}")


if __name__ == "__main__":
    main()

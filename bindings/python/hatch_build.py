"""Puts libgpumem, the preload library, the gpumem command and the headers into the wheel.

They are taken from the folder GPUMEM_PREBUILT, such as target/release; where that is not set they
are built with cargo.
"""

import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {"libgpumem.so": "libgpumem.so.0", "libgpumem_preload.so": "libgpumem_preload.so", "gpumem": "gpumem"}


class Hook(BuildHookInterface):
    def initialize(self, version, build_data):
        repository = pathlib.Path(self.root).resolve().parents[1]
        named = os.environ.get("GPUMEM_PREBUILT")
        built = pathlib.Path(named) if named else self.build(repository)
        missing = [name for name in FILES if not (built / name).is_file()]
        if missing:
            raise RuntimeError(f"{built} has no {', '.join(missing)}; `make build` makes them, in target/release")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumem-wheel-"))
        for name, inside in FILES.items():
            target = self.folder / inside
            shutil.copy(built / name, target)
            target.chmod(0o755)
            # Names for debuggers are nine tenths of it.
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-debug", str(target)], check=True)
            build_data["force_include"][str(target)] = f"gpumem/lib/{inside}"
        build_data["force_include"][str(repository / "include")] = "gpumem/include"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def build(self, repository):
        if not (repository / "Cargo.toml").is_file():
            raise RuntimeError("the library is built from the repository, which this is not in; set GPUMEM_PREBUILT to a folder with "
                               f"{', '.join(FILES)}")
        cargo = os.environ.get("CARGO") or shutil.which("cargo") or str(pathlib.Path.home() / ".cargo/bin/cargo")
        try:
            subprocess.run([cargo, "build", "--release", "-p", "gpumem", "-p", "gpumem-cli", "-p", "gpumem-preload"], cwd=repository,
                           check=True)
        except FileNotFoundError:
            raise RuntimeError("cargo is missing; install Rust from https://rustup.rs, or set GPUMEM_PREBUILT to a folder with "
                               f"{', '.join(FILES)}") from None
        return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or repository / "target") / "release"

    def finalize(self, version, build_data, artifact_path):
        shutil.rmtree(self.folder, ignore_errors=True)

"""Builds allocator.cpp and the headers beside it against the installed PyTorch, into the user's
cache, once for each version of either.

Needs a C++17 compiler and CUDA's headers, from the toolkit (CUDA_HOME, or nvcc on the PATH) or from
the packages that come with PyTorch, together with nvidia-cuda-crt. There is no device code, so it
needs no nvcc.
"""

import ctypes
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from .. import _library

SOURCE = pathlib.Path(__file__).with_name("allocator.cpp")
SOURCES = [SOURCE, *sorted(SOURCE.parent.glob("*.hpp"))]
LIMIT = 300


class BuildError(RuntimeError):
    """The allocator could not be built. The text includes the compiler's output."""


def cache():
    """The cache folder: gpumem/ in TORCH_EXTENSIONS_DIR if that is set, as for PyTorch's own
    extensions, else in the user's cache folder."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    if named:
        return pathlib.Path(named) / "gpumem"
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "gpumem"


def headers():
    """The folder of gpumem.h, in this package or in the repository that it is run from."""
    here = pathlib.Path(__file__).resolve()
    for folder in (here.parents[1] / "include", *(p / "include" for p in here.parents[2:7])):
        if (folder / "gpumem.h").is_file():
            return folder
    raise BuildError("this installation has no gpumem.h")


def cuda_includes(torch):
    """Folders that may have CUDA's headers, best first."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.append(str(pathlib.Path(nvcc).resolve().parents[1]))
    homes.append("/usr/local/cuda")
    found = [pathlib.Path(h) / "include" for h in homes if h]
    packages = pathlib.Path(torch.__file__).parents[1] / "nvidia"
    found += [packages / f"cu{(torch.version.cuda or '0').split('.')[0]}" / "include", packages / "cuda_runtime" / "include"]
    return [f for f in found if (f / "cuda_runtime.h").is_file()]


def commands(torch, output):
    """The compiler's command lines, to be tried one after the other."""
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    # As make reads it: "ccache g++" is two words.
    compiler = shlex.split(os.environ.get("CXX", "")) or [found]
    if not compiler[0]:
        raise BuildError("there is no C++ compiler; install one (apt install g++), or set CXX")
    includes = cuda_includes(torch)
    if not includes:
        raise BuildError("CUDA's headers are not there; install a toolkit and set CUDA_HOME, or pip install nvidia-cuda-crt beside a PyTorch "
                         "from PyPI")
    root = pathlib.Path(torch.__file__).parent
    library, _ = _library.path()
    library = library if os.path.isabs(library) else _loaded(_library.SONAME)
    common = [*compiler, "-O2", "-fPIC", "-shared", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
              f"-I{headers()}", "-isystem", str(root / "include"), "-isystem", str(root / "include/torch/csrc/api/include")]
    for folder in includes:
        common += ["-isystem", str(folder)]
    # The process's own C++ library, by name: some compilers have only a static one, and two in a
    # process break locales and streams.
    link = [str(SOURCE), "-o", str(output), library, f"-L{root / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cuda", "-nodefaultlibs",
            _loaded("libstdc++.so.6"), "-lm", "-lgcc_s", "-lgcc", "-lpthread", "-lc"]
    for standard in ("c++17", "c++20"):
        for api in ((), ("-DGPUMEM_TORCH_API=211",), ("-DGPUMEM_TORCH_API=210",), ("-DGPUMEM_TORCH_API=209",)):
            yield [*common, f"-std={standard}", *api, *link]


def _loaded(name):
    """The file of a library that the process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith(f"/{name}") or f"/{name}." in line:
                return line[line.index("/"):].rstrip()
    raise BuildError(f"the process has no {name} loaded")


def built(torch):
    """The path of the built allocator, which is built first if there is none."""
    what = hashlib.sha256()
    for part in (*[s.read_bytes() for s in SOURCES], pathlib.Path(__file__).read_bytes(), torch.__version__.encode(), str(torch.version.cuda).encode(),
                 str(torch.version.git_version).encode(), _library.C.gpumem_version_string()):
        what.update(part + b"\0")
    folder = cache()
    output = folder / f"torch-{torch.__version__}-{what.hexdigest()[:16]}.so"
    if output.is_file():
        return output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Several processes may build at once: each its own file, which is then put in place as a
        # whole.
        handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
    except OSError as why:
        raise BuildError(f"the cache folder {folder} cannot be written to: {why}; set TORCH_EXTENSIONS_DIR") from None
    os.close(handle)
    said = ""
    try:
        for command in commands(torch, name):
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                      timeout=LIMIT, check=False)
            except subprocess.TimeoutExpired:
                raise BuildError(f"the compiler took more than {LIMIT} s") from None
            except OSError as why:
                raise BuildError(f"the compiler {command[0]!r} cannot be started: {why}; set CXX to one, or unset it") from None
            if done.returncode == 0:
                os.chmod(name, 0o755)
                os.replace(name, output)
                return output
            # The first attempt is the one that should have worked.
            said = said or f"{' '.join(command)}\n{done.stdout[-4000:]}"
        raise BuildError(f"PyTorch {torch.__version__}: the allocator does not compile:\n{said}")
    finally:
        if os.path.exists(name):
            os.unlink(name)


def load(torch):
    """Loads the built allocator and sets the signatures of what Python calls."""
    loaded = ctypes.CDLL(str(built(torch)))
    loaded.gpumem_torch_install.restype, loaded.gpumem_torch_install.argtypes = ctypes.c_char_p, [ctypes.c_int]
    loaded.gpumem_torch_asleep.restype, loaded.gpumem_torch_asleep.argtypes = ctypes.c_char_p, [ctypes.c_uint64, ctypes.c_int]
    for told in (loaded.gpumem_torch_arena_ends, loaded.gpumem_torch_arena_ended):
        told.restype, told.argtypes = None, []
    loaded.gpumem_torch_is_empty.argtypes = [ctypes.c_uint64]
    loaded.gpumem_torch_route.restype = None
    loaded.gpumem_torch_route.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    return loaded

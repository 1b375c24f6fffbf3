"""Finds and loads libgpumem, and sets the signature of each of its functions."""

import ctypes
import os
import pathlib

from ._declarations import FUNCTIONS, VERSION_MAJOR, VERSION_MINOR

SONAME = "libgpumem.so.0"
FOLDER = pathlib.Path(__file__).resolve().parent / "lib"


def path():
    """Returns the library's path and its source: GPUMEM_LIBRARY, this package's folder, or the
    loader's search path."""
    named = os.environ.get("GPUMEM_LIBRARY")
    if named:
        return named, "GPUMEM_LIBRARY"
    if (FOLDER / SONAME).is_file():
        return str(FOLDER / SONAME), "this package"
    return SONAME, "the loader's path"


def load():
    name, origin = path()
    try:
        library = ctypes.CDLL(name)
    except OSError as why:
        raise ImportError(f"libgpumem cannot be loaded from {name!r}, which {origin} names: {why}. Install a wheel that has it, "
                          "or set GPUMEM_LIBRARY to the path of libgpumem.so (`make build` puts it in target/release/)",
                          name="gpumem") from None
    for function, (result, parameters) in FUNCTIONS.items():
        try:
            declared = getattr(library, function)
        except AttributeError:
            raise ImportError(f"{name!r}, which {origin} names, has no {function}: it is no libgpumem of version "
                              f"{VERSION_MAJOR}.{VERSION_MINOR}", name="gpumem") from None
        declared.restype, declared.argtypes = result, parameters
    have = library.gpumem_version()
    if (have // 10000, have // 100 % 100) != (VERSION_MAJOR, VERSION_MINOR):
        raise ImportError(f"{name!r}, which {origin} names, is version {library.gpumem_version_string().decode()} and this "
                          f"package is for {VERSION_MAJOR}.{VERSION_MINOR}", name="gpumem")
    return library


C = load()


def initialised(kind):
    """Returns a zeroed structure of the library whose first field holds its size."""
    return kind(ctypes.sizeof(kind))


def address_of(function):
    """Returns the address of a library function, for callers that take it as a number."""
    return ctypes.cast(getattr(C, function), ctypes.c_void_p).value


"""Finds and loads libgpumem, and gives every function of it its signature."""

import ctypes
import os
import pathlib

from ._declarations import FUNCTIONS, VERSION_MAJOR, VERSION_MINOR

SONAME = "libgpumem.so.0"
FOLDER = pathlib.Path(__file__).resolve().parent / "lib"


def path():
    """Where the library is and who says so: GPUMEM_LIBRARY, the folder of this package, or the
    loader's path."""
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
    """A structure of the library's, all zero but for its first field, which says how large it
    is."""
    return kind(ctypes.sizeof(kind))


def address_of(function):
    """The address of a function of the library's, for those who take it as a number."""
    return ctypes.cast(getattr(C, function), ctypes.c_void_p).value


"""Converts arguments: sizes, streams, tags, addresses."""

import hashlib
import numbers
import operator
import os
import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(value, what="size"):
    """Bytes, from a number or a text such as "4GiB" or "512M" (powers of 1024): what gpumem's
    settings accept, and fractions."""
    if isinstance(value, str):
        m = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", value, re.ASCII | re.IGNORECASE)
        if not m:
            raise ValueError(f"{what} {value!r} is no size; write bytes, or a number with K, M, G, T or KiB, MiB, GiB, TiB "
                             "(powers of 1024)")
        unit = UNITS[(m[2] or "").upper()]
        bytes_ = float(m[1]) * unit
        if bytes_ != int(bytes_):
            raise ValueError(f"{what} {value!r} is no whole number of bytes")
        value = int(bytes_) if "." in m[1] else int(m[1]) * unit
    return number(value, what)


def no_copy(self):
    """`__reduce__` for owners of library objects: a copy or a pickle would be a second owner, and
    its end would take the object from the first."""
    raise TypeError(f"this {type(self).__name__} owns something of gpumem's in this process, and can be neither copied nor pickled")


def number(value, what, least=0, end=1 << 64):
    """Checks for a whole number from `least` up to but not including `end`. ctypes would silently
    truncate one out of range."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} {value!r} is no whole number") from None
    if not least <= value < end:
        raise ValueError(f"{what} {value} is out of range: it may be {least} to {end - 1}")
    return value


def c_string(value, what, encode=str.encode):
    """The bytes of a text. ctypes would silently cut them at a NUL."""
    encoded = encode(value)
    if b"\0" in encoded:
        raise ValueError(f"{what} {value!r} has a NUL character in it")
    return encoded


def path(value):
    """The bytes of a path."""
    return c_string(value, "path", os.fsencode)


def name(value):
    """The bytes of a name; None means no name."""
    return None if value is None else c_string(str(value), "name")


def handle(value):
    """The handle of a library object; None means no object. Refuses an object that has not begun:
    it has no handle yet, and the library would take that for no object."""
    begun = getattr(value, "_begun", None)
    return begun() if begun is not None else getattr(value, "handle", value)


def byte(value):
    """A byte, with a sign or without."""
    return number(value, "byte", -128, 256)


def device(value):
    """A device's number. The library checks whether there is such a device."""
    return number(value, "device", -1 << 31, 1 << 31)


def human(bytes_):
    """4096 as "4 KiB", 1000 as "1000 B"."""
    value, unit = float(bytes_), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


def stream(value):
    """The handle of a stream: None (the default stream), a number, a stream object of gpumem,
    PyTorch, CuPy, Numba or Warp, or any object with `__cuda_stream__`."""
    if value is None:
        return None
    if isinstance(value, numbers.Integral):
        return number(value, "stream")
    protocol = getattr(value, "__cuda_stream__", None)
    if protocol is not None:
        handle = (protocol() if callable(protocol) else protocol)[1]
        if handle is None:  # It would be taken for the default stream.
            raise ValueError(f"{value!r} is no stream any more")
        return int(handle)
    for name in ("handle", "cuda_stream", "ptr"):
        handle = getattr(value, name, None)
        if handle is not None:
            handle = getattr(handle, "value", handle)
            return int(handle or 0)
    raise TypeError(f"{value!r} is no stream; pass a stream of gpumem, PyTorch, CuPy, Numba or Warp, or its handle as a number")


def tag(value):
    """The number of a tag. A string maps to a fixed number."""
    if value is None:
        return 0
    if isinstance(value, str):
        number = int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
        return number or 1
    return size(value, "tag")


def address(value):
    """The device address of a buffer, a tensor, an array, or a number. A gpumem buffer must be
    live: otherwise something else may be at its address by now."""
    if getattr(value, "live", True) is False:
        value.check()
    return place(value)


def place(value):
    """Like `address`, but accepts a buffer that is gone."""
    if isinstance(value, numbers.Integral):
        return number(value, "address")
    if value is None:
        return 0
    pointer = getattr(value, "ptr", None)
    if isinstance(pointer, int):
        return pointer
    data_ptr = getattr(value, "data_ptr", None)
    if data_ptr is not None:
        return data_ptr()
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return interface["data"][0] or 0
    raise TypeError(f"{value!r} has no device address; pass a Buffer, a tensor, an array on the device, or an address")

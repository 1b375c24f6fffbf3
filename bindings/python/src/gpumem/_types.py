"""What parameters take, for type checkers and readers."""

from __future__ import annotations

from typing import Any, Callable, Sequence, SupportsIndex, Tuple, Union

# Bytes, a number of NumPy's too, or a text such as "4GiB".
Size = Union[SupportsIndex, str]
# None (the default stream), a number, or a stream of gpumem's, PyTorch's, CuPy's, Numba's or
# Warp's.
StreamLike = Any
# A number, or what has a device address: a Buffer, a tensor, an array.
Address = Any
# A number or a text.
Tag = Union[int, str]
Shape = Union[SupportsIndex, Sequence[SupportsIndex]]
# NumPy's, by name, by typestr, or as an object of NumPy's.
DType = Any
# "host", "disk", "gpu", or one of that tier: ("disk", 1).
Where = Union[str, Tuple[str, int]]
# What an arena's end keeps, or a function that returns it: addresses, or lists, tuples and
# dictionaries of them.
Keep = Any
# Called with bytes done and bytes in all; returning False cancels.
Progress = Callable[[int, int], Any]

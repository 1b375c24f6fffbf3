"""The types that parameters accept."""

from __future__ import annotations

from typing import Any, Callable, Sequence, SupportsIndex, Tuple, Union

# A number of bytes, NumPy's too, or a string such as "4GiB".
Size = Union[SupportsIndex, str]
# None (the default stream), a number, or a stream of gpumem, PyTorch, CuPy, Numba or Warp.
StreamLike = Any
# A number, or an object with a device address: a Buffer, a tensor, an array.
Address = Any
# A number or a string.
Tag = Union[int, str]
Shape = Union[SupportsIndex, Sequence[SupportsIndex]]
# A NumPy dtype: its name, its typestr, or the object.
DType = Any
# A tier, "host", "disk" or "gpu", or a space of one, such as ("disk", 1).
Where = Union[str, Tuple[str, int]]
# What an arena keeps at its end, or a function that returns it: addresses, or lists, tuples and
# dictionaries of them.
Keep = Any
# Called with the bytes done and the bytes in total; returning False cancels.
Progress = Callable[[int, int], Any]

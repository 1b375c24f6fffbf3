"""`__cuda_array_interface__` and DLPack capsules."""

from __future__ import annotations

import atexit
import collections
import ctypes
import gc
import math
import re
import sys

from . import _values
from ._declarations import STREAM_LEGACY, STREAM_PER_THREAD
from ._errors import ok
from ._library import C
from ._stats import on_device
from ._stream import life

KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
CUDA, EXTENSION = 2, 12
NAMES = {"bool": "|b1", "int8": "|i1", "uint8": "|u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4",
         "int64": "<i8", "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "complex64": "<c8",
         "complex128": "<c16"}


def typestr(dtype):
    """A dtype as the array interface writes it; None is bytes."""
    if dtype is None:
        return "|u1"
    text = getattr(dtype, "str", None) or (dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None))
    text = NAMES.get(text, text)
    if text in ("float", "int"):
        text = "<f8" if text == "float" else "<i8"
    if not text or not re.fullmatch(r"[<|=]?(?:[iu][1248]|f(?:2|4|8|16)|c(?:8|16|32)|b1)", text):
        raise TypeError(f"dtype {dtype!r} is none of those that have plain elements of the host's byte order; "
                        f"they are {', '.join(NAMES)}")
    return "<" + text[1:] if text[0] == "=" else text if text[0] in "<|" else ("|" if text[1:] == "1" else "<") + text


def item_bytes(text):
    return int(text[2:])


def _named_anywhere(stream):
    """A stream to wait for, whose handle means the same on each thread. A thread's own default stream
    has no such handle; the legacy one comes after those of all threads."""
    return STREAM_LEGACY if stream in (None, 0, STREAM_PER_THREAD) else stream


def array_interface(ptr, shape, text, stream):
    """What `__cuda_array_interface__` is, version 3. The consumer's work comes after the
    stream's."""
    return {"shape": shape, "typestr": text, "data": (ptr if math.prod(shape) else 0, False), "strides": None, "version": 3,
            "stream": _named_anywhere(stream)}


def device(number):
    """DLPack's device: CUDA's, or an extension where the host device stands in, whose memory is not
    for the host to read."""
    return (CUDA if C.gpumem_backend_name() == b"cuda" else EXTENSION), number


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("dl_tensor", Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("dl_tensor", Tensor)]


# The system's malloc: a consumer may hold a tensor beyond the end of the interpreter.
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [ctypes.c_void_p]
_python = ctypes.pythonapi
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_python.PyCapsule_IsValid.restype, _python.PyCapsule_IsValid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]

PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"

# What was handed out and not given back: the address of the structure, its owner and its kind.
_out: dict[int, tuple[object, type]] = {}


# Defaults, not globals: a tensor may be deleted when the interpreter has cleared this module.
def _give_back(at, _out=_out, _free=_libc.free):
    if _out.pop(at, None) is not None:
        _free(at)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _deleter(at, _give_back=_give_back, _raise_what_is_set=ctypes.pythonapi.PyErr_Occurred):
    """Called by the consumer, on any thread."""
    try:
        # A consumer that refuses a tensor may delete it with its exception set. Python's code
        # cannot leave that set; raised here, it is at least said on stderr.
        _raise_what_is_set()
    finally:
        _give_back(at)


# Capsules that somebody may hold: the address of the structure, the capsule's name, the capsule.
# They have no destructor: a consumer that refuses one drops it with its exception set, and
# Python's code cannot leave that set.
_unused: collections.deque[tuple[int, bytes, object]] = collections.deque()
_one = (object(),)
_HELD_ONCE = sys.getrefcount(_one[0])


def _give_back_dropped(*_):
    """Gives back what was dropped without being consumed: runs with every export and collection of
    garbage, on any thread."""
    for _ in range(len(_unused)):
        try:
            entry = _unused.popleft()
        except IndexError:  # Another thread has it.
            return
        # First of all: a capsule that nobody else holds any more cannot be consumed meanwhile.
        if sys.getrefcount(entry[2]) > _HELD_ONCE:
            _unused.append(entry)
        elif _python.PyCapsule_IsValid(id(entry[2]), entry[1]):
            _give_back(entry[0])  # Otherwise its consumer does.


gc.callbacks.append(_give_back_dropped)

_deleter_at = ctypes.cast(_deleter, ctypes.c_void_p).value
# Tensors may be deleted after this module: the code behind this address stays.
for _kept in (_deleter, _give_back, _out):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))

# A function that may be called with anything and does nothing.
_nothing_at = ctypes.cast(C.gpumem_version, ctypes.c_void_p).value


@atexit.register
def _let_go():
    """A tensor may be deleted when there is no interpreter any more; that must do nothing."""
    gc.callbacks.remove(_give_back_dropped)
    for at, (_, kind) in list(_out.items()):
        kind.from_address(at).deleter = _nothing_at


def capsule(owner, buffer, stream, max_version, dl_device, copy):
    """A capsule with a tensor over the memory of `owner`, the buffer or a view of it, which it keeps
    alive until its consumer deletes it."""
    _give_back_dropped()
    ptr, shape, text, own_device = owner.ptr, owner.shape, owner.typestr, owner.__dlpack_device__()
    if copy:
        raise BufferError("a copy was asked for; gpumem exports views only")
    if dl_device is not None and tuple(dl_device) != tuple(own_device):
        raise BufferError(f"the memory is on device {tuple(own_device)}, not on {tuple(dl_device)}")
    if 8 * item_bytes(text) > 255 or any(n >= 1 << 63 for n in shape):
        raise BufferError(f"DLPack has no tensor of {text} in shape {shape}: its elements have at most 255 bits, its lengths 63")
    if stream != -1:
        # The consumer's stream, by DLPack's numbers: its work comes after what was submitted here.
        # None stands for the legacy default stream, by the array API's standard.
        consumer, own = _values.stream(stream) or STREAM_LEGACY, _named_anywhere(buffer.stream)
        if consumer != own:
            ok(on_device(own_device[1], C.gpumem_stream_wait, consumer, own))
        # Its work may still run when it deletes the tensor.
        if on_device(own_device[1], buffer._announce, consumer, life(stream), own_device[1]):
            buffer._await_before_the_free(_named_anywhere(consumer), life(stream))
    versioned = max_version is not None and tuple(max_version)[0] >= 1
    kind, name = (Versioned, VERSIONED) if versioned else (Managed, PLAIN)
    at = _libc.malloc(ctypes.sizeof(kind) + 16 * max(1, len(shape)))
    if not at:
        raise MemoryError("no host memory for a DLPack tensor")
    ctypes.memset(at, 0, ctypes.sizeof(kind))
    made = kind.from_address(at)
    lengths = (ctypes.c_int64 * len(shape)).from_address(at + ctypes.sizeof(kind))
    strides = (ctypes.c_int64 * len(shape)).from_address(at + ctypes.sizeof(kind) + 8 * len(shape))
    step = 1
    for i in reversed(range(len(shape))):
        lengths[i], strides[i] = shape[i], step
        step *= shape[i]
    made.dl_tensor.data = ptr
    made.dl_tensor.device = Device(*own_device)
    made.dl_tensor.ndim = len(shape)
    made.dl_tensor.dtype = DataType(KINDS[text[1]], 8 * item_bytes(text), 1)
    made.dl_tensor.shape, made.dl_tensor.strides = ctypes.addressof(lengths), ctypes.addressof(strides)
    made.deleter = _deleter_at
    if versioned:
        made.major, made.minor = 1, 0
    _out[at] = owner, kind
    try:
        handed_out = _python.PyCapsule_New(at, name, None)
    except BaseException:
        _give_back(at)
        raise
    _unused.append((at, name, handed_out))
    return handed_out

"""Allocating, and buffers."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any

from . import _declarations as d
from . import _dlpack, _values
from ._errors import UseAfterFree, error, ok
from ._library import C, initialised
from ._stats import current_device, on_device
from ._stream import life
from ._types import Address, DType, Shape, Size, StreamLike, Tag

if TYPE_CHECKING:
    from ._arena import Arena
    from ._reserve import Reservation

_malloc, _malloc_async, _free_async, _free_id = C.gpumem_malloc, C.gpumem_malloc_async, C.gpumem_free_async, C.gpumem_free_id
_id_get = C.gpumem_allocation_id_get
_byref, _c_void_p, _c_uint64 = ctypes.byref, ctypes.c_void_p, ctypes.c_uint64


def malloc(nbytes: Size, stream: StreamLike = None) -> int:
    """Allocates in the order of a stream and returns the address, a number. None is the current
    device's legacy default stream.

    The memory is aligned to 256 bytes and not cleared. 0 bytes give a unique address. The caller
    frees it. The call waits for the device only when memory is short.
    """
    # Out of range, ctypes would cut it.
    if nbytes.__class__ is not int or not 0 <= nbytes < 1 << 64:
        nbytes = _values.size(nbytes)
    if stream is None:
        ptr = _malloc(nbytes)
        if ptr is None:
            raise error(C.gpumem_last_status())
        return ptr
    if stream.__class__ is not int or not 0 <= stream < 1 << 64:
        stream = _values.stream(stream)
    out = _c_void_p()
    status = _malloc_async(nbytes, stream, _byref(out))
    if status:
        raise error(status)
    return out.value  # type: ignore[return-value]


def malloc_with(nbytes: Size, *, stream: StreamLike = None, alignment: int = 0, tag: Tag | None = None, evictable: bool = False,
                exportable: bool = False, single_handle: bool = False, guard: bool = False, device: int | None = None,
                arena: Arena | int | None = None, reservation: Reservation | int | None = None) -> int:
    """Like `malloc`, with every option.

    `evictable` memory can be moved out of the device and back (`evict`, `sleep`). `exportable`
    memory can be shared with another process. `single_handle` uses one physical allocation, for
    NCCL and RDMA. `guard` leaves the addresses after the memory unmapped. `tag` is a number or a
    string.
    """
    o = initialised(d.gpumem_malloc_options)
    o.flags = (evictable and d.MALLOC_EVICTABLE) | (exportable and d.MALLOC_EXPORTABLE) | (
        single_handle and d.MALLOC_SINGLE_HANDLE) | (guard and d.MALLOC_GUARD) | (device is not None and d.MALLOC_ON_DEVICE)
    o.bytes, o.alignment, o.stream, o.tag = (_values.size(nbytes), _values.number(alignment, "alignment"), _values.stream(stream),
                                             _values.tag(tag))
    o.arena, o.reservation = _values.handle(arena), _values.handle(reservation)
    o.device = _values.device(device) if device is not None else 0
    out = _c_void_p()
    ok(C.gpumem_malloc_with(_byref(o), _byref(out)))
    return out.value  # type: ignore[return-value]


def free(ptr: Address, stream: StreamLike = None) -> None:
    """Frees memory from `malloc` in the order of a stream: it is reused once the work submitted to
    the stream before is done.

    A `stream` of None is the current device's legacy default stream. A `ptr` of None does nothing.
    A second free harms nothing and raises `DoubleFree` or `UnknownPointer`; for a `Buffer`,
    `UseAfterFree`. A `View` is refused.
    """
    if ptr.__class__ is not int or not 0 <= ptr < 1 << 64:
        if isinstance(ptr, View):
            raise TypeError(f"{ptr!r} owns nothing; free its buffer, view.owner")
        ptr = _values.address(ptr)
    status = _free_async(ptr, stream if stream is None else _values.stream(stream))
    if status:
        raise error(status)


def usable_size(ptr: Address) -> int:
    """Returns the bytes usable from the start of an allocation, at least those asked for."""
    at = _values.address(ptr)
    got = C.gpumem_usable_size(at)
    # Null has no bytes, and is no failure; a live allocation has some.
    if got == 0 and at != 0:
        raise error(C.gpumem_last_status())
    return got


def record_stream(ptr: Address, stream: StreamLike) -> None:
    """Announces that an allocation is also used on `stream`: after it is freed, reuse waits for the
    work submitted to that stream, which must live until the free. (`Buffer.record_stream` keeps it
    alive.)"""
    ok(C.gpumem_record_stream(_values.address(ptr), _values.stream(stream)))


def memcpy(dst: Address, src: Address, nbytes: Size, stream: StreamLike = None) -> None:
    """Copies between device addresses in the order of a stream. Does not wait."""
    ok(C.gpumem_memcpy_async(_values.address(dst), _values.address(src), _values.size(nbytes), _values.stream(stream)))


def memset(dst: Address, value: int, nbytes: Size, stream: StreamLike = None) -> None:
    """Fills with a byte, in the order of a stream; waits for nothing."""
    ok(C.gpumem_memset_async(_values.address(dst), _values.byte(value), _values.size(nbytes), _values.stream(stream)))


def _memory(data):
    try:
        return memoryview(data)
    except TypeError:
        raise TypeError(f"{type(data).__name__} is no host memory; pass bytes, a bytearray, an array.array, or an array of "
                        "NumPy's") from None


def _readable(data):
    """The address and bytes of host memory that is read, and what keeps it alive."""
    view = _memory(data)
    if view.nbytes == 0:
        return None, 0, view
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    view = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    if view.readonly:
        kept = view.obj if isinstance(view.obj, bytes) and len(view.obj) == view.nbytes else view.tobytes()
        return ctypes.cast(ctypes.c_char_p(kept), _c_void_p).value, view.nbytes, kept
    kept = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(kept), view.nbytes, kept


def _writable(data):
    view = _memory(data)
    if view.readonly or not view.c_contiguous:
        raise ValueError("the host memory to copy to is read-only or not contiguous")
    if view.nbytes == 0:
        return None, 0, view
    kept = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B") if view.format != "B" or view.ndim != 1 else view)
    return ctypes.addressof(kept), view.nbytes, kept


def _lengths(shape: Shape) -> tuple[int, ...]:
    # NumPy's integers are accepted too; fractions are not.
    lengths = tuple(map(operator.index, shape if hasattr(shape, "__len__") else (shape,)))  # type: ignore[arg-type]
    if any(n < 0 for n in lengths):
        raise ValueError(f"shape {lengths} has a negative length")
    return lengths


class Buffer:
    """Device memory that is freed once: by `free()`, at the end of its `with` block or its arena,
    or when the buffer is garbage-collected.

    The first of these frees it. Each frees by the allocation's number, so none can free something
    else that lives at the address by then. Using the buffer afterwards raises `UseAfterFree`. Other
    libraries accept it through `__cuda_array_interface__` and DLPack, and keep it alive. Until it is
    freed it keeps the objects of its streams; a stream given as a number must live as long.

    `shape` and `dtype` are what those libraries see. Without a shape the buffer is `nbytes` bytes;
    with one, `nbytes` follows from the shape. `dtype` is a NumPy dtype: its name, its `typestr`
    such as "<f4", or the object. Options are those of `malloc_with`.
    """

    __slots__ = ("ptr", "nbytes", "id", "stream", "shape", "typestr", "_gone", "_life", "_others", "_order", "_awaited", "__weakref__")
    ptr: int
    nbytes: int
    id: int
    stream: int | None
    shape: tuple[int, ...]
    typestr: str

    def __init__(self, nbytes: Size | None = None, *, stream: StreamLike = None, shape: Shape | None = None, dtype: DType = None,
                 **options: Any) -> None:
        self._gone = True
        typestr = _dlpack.typestr(dtype)
        item = _dlpack.item_bytes(typestr)
        if shape is None and nbytes is None:
            raise TypeError("a Buffer needs nbytes or a shape")
        given = None if nbytes is None else _values.size(nbytes)
        if shape is None:
            if given % item:
                raise ValueError(f"{given} bytes are no whole number of elements of {typestr}")
            lengths: tuple[int, ...] = (given // item,)
        else:
            lengths = _lengths(shape)
        wanted = math.prod(lengths) * item
        if given not in (None, wanted):
            raise ValueError(f"{nbytes} bytes asked for, but shape {lengths} of {typestr} takes {wanted}")
        self.nbytes, self.shape, self.typestr = wanted, lengths, typestr
        self.stream = self._life = self._others = self._order = self._awaited = None
        if stream is not None:
            self.stream, self._life = _values.stream(stream), life(stream)
        ptr = malloc_with(wanted, stream=self.stream, **options) if options else malloc(wanted, self.stream)
        number = _c_uint64()
        status = _id_get(ptr, _byref(number))
        if status:
            why = error(status)
            _free_async(ptr, self.stream)
            raise why
        self.ptr, self.id, self._gone = ptr, number.value, False

    @classmethod
    def of(cls, data: Any, *, stream: StreamLike = None, **options: Any) -> Buffer:
        """Returns a buffer with a copy of host memory: bytes, a NumPy array, anything with the
        buffer protocol. Waits until the copy is done."""
        shape, dtype = getattr(data, "shape", None), getattr(data, "dtype", None)
        if shape is None or dtype is None:
            shape, dtype = (_memory(data).nbytes,), None
        made = cls(shape=shape, dtype=dtype, stream=stream, **options)
        made.copy_from(data)
        return made

    @classmethod
    def adopt(cls, ptr: Address, *, stream: StreamLike = None, shape: Shape | None = None, dtype: DType = None) -> Buffer:
        """Takes ownership of an allocation made by `malloc` or by other code through gpumem: from
        now on the buffer frees it.

        `stream` is the buffer's own from now on; what was submitted before is ordered before it. By
        default it is the legacy default stream, which then waits for the one that the memory was
        allocated on."""
        ptr = _values.address(ptr)
        info = pointer_info(ptr)
        self = cls.__new__(cls)
        self._gone = True
        self.typestr = _dlpack.typestr(dtype)
        item = _dlpack.item_bytes(self.typestr)
        self.shape = (info.requested // item,) if shape is None else _lengths(shape)
        self.nbytes, self.stream = math.prod(self.shape) * item, _values.stream(stream)
        self._life, self._others, self._order, self._awaited = life(stream), None, None, None
        if info.base != ptr or self.nbytes > info.requested:
            raise ValueError(f"{ptr:#x} is no allocation of {self.nbytes} bytes: it is in one of {info.requested} at {info.base:#x}")
        if stream is None and (info.stream or 0) > d.STREAM_LEGACY:
            # That stream may be gone by now, with work of its that still runs.
            if on_device(info.device, C.gpumem_stream_wait, d.STREAM_LEGACY, info.stream):
                ok(on_device(info.device, C.gpumem_device_sync))
        self.ptr, self.id, self._gone = ptr, info.id, False
        return self

    # ---- its life

    @property
    def live(self) -> bool:
        """Whether the buffer's memory is still live: neither freed nor ended with an arena. It
        stays False when another allocation gets the address. False too in a process forked since,
        which cannot use the memory."""
        if self._gone:
            return False
        number = _c_uint64()
        return _id_get(self.ptr, _byref(number)) == 0 and number.value == self.id

    def free(self, stream: StreamLike = None) -> None:
        """Frees the memory in the order of `stream`, by default the stream that it was allocated
        on. Does nothing when the memory is gone already."""
        if self._gone:
            return
        self._await()
        status = (_free_id(self.ptr, self.id) if stream is None
                  else C.gpumem_free_id_async(self.ptr, self.id, _values.stream(stream)))
        if status:
            raise error(status)
        self._gone, self._life, self._others = True, None, None

    def check(self, operation: str = "use", operand: str = "buffer") -> None:
        """Raises `UseAfterFree` unless the buffer may be used. With GPUMEM_ARENA_DEBUG=check the
        text names the arena that freed it."""
        ok(C.gpumem_check_id(self.ptr, self.id, _values.c_string(operation, "operation"), _values.c_string(operand, "operand")))
        if not self.live:
            raise UseAfterFree(f"{operation} {operand} is no longer allocated: it was freed, or the arena of its allocation has ended "
                               "without keeping it (GPUMEM_ARENA_DEBUG=check names the arena)")

    def escape(self) -> None:
        """Takes the buffer out of all arenas, for example a constant made in one step and cached
        for later ones."""
        self.check("escape", "buffer")
        ok(C.gpumem_arena_escape(self.ptr))

    def promote(self) -> None:
        """Moves the buffer to the enclosing arena now, or out of all arenas where there is none, as
        an exit does with what it keeps."""
        self.check("promote", "buffer")
        ok(C.gpumem_arena_promote(self.ptr))

    def record_stream(self, stream: StreamLike) -> None:
        """Announces that the buffer is also used on `stream`: after it is freed, reuse waits for
        the work submitted to that stream."""
        record_stream(self, stream)
        self._keep(life(stream), _values.stream(stream))

    def _keep(self, kept, handle):
        """Keeps what keeps a stream, until the free, which needs it. A later object for the same
        handle takes an earlier one's place: with some libraries each step brings another."""
        if kept is not None:
            self._others = self._others or {}
            self._others[type(kept), handle] = kept

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_):
        self.free()

    # Runs on any thread, even at the end of the interpreter, when modules are gone: it needs only
    # its default arguments.
    def __del__(self, _free=_free_id):
        try:
            if not self._gone:
                self._gone = True
                if self._awaited:
                    self._await()
                _free(self.ptr, self.id)
        except Exception:  # Nobody could take it.
            pass

    # ---- its contents

    def _range(self, offset, nbytes, operation, operand):
        offset = _values.size(offset, "offset")
        nbytes = self.nbytes - offset if nbytes is None else _values.size(nbytes)
        if offset > self.nbytes or nbytes > self.nbytes - offset:
            raise ValueError(f"{operation}: {nbytes} bytes from offset {offset} of {operand}, which has {self.nbytes}")
        self.check(operation, operand)
        return offset, nbytes

    def _submit(self, stream, call, *arguments, uses=()):
        """Submits work in the order of a stream, by default the buffer's own. Its use of the given
        buffers is announced; without any, the work is waited for."""
        handle, kept = (self.stream, self._life) if stream is None else (_values.stream(stream), life(stream))

        def submit(device):
            # Before: were one refused after, the work would be queued all the same.
            wait = [b._announce(handle, kept, device) for b in uses]
            ok(call(*arguments, handle))
            if any(wait) or not uses:
                ok(C.gpumem_stream_sync(handle))

        device = None
        if (handle or 0) <= d.STREAM_PER_THREAD:
            # The buffer's own is of its device, whichever is current by now.
            device = self._home()[1] if stream is None else current_device()
        on_device(device, submit, device)

    def _home(self):
        """The stream that the memory was allocated on, and its device."""
        if self._order is None:
            info = _facts(self.ptr)
            self._order = info.stream or d.STREAM_LEGACY, info.device
        return self._order

    def _announce(self, handle, kept, device):
        """Announces a use on another stream than the one that the buffer is freed on. True where
        nothing can be announced (GPUMEM_POOL=off): the use has to be over before a free."""
        own, home = self._home()
        # CUDA's handle of the thread's own stream names another on each thread.
        if (handle or d.STREAM_LEGACY) == own and device in (None, home) and handle != d.STREAM_PER_THREAD:
            return False
        status = C.gpumem_record_stream(self.ptr, handle)
        if status == d.ERROR_UNSUPPORTED:
            return True
        ok(status)
        self._keep(kept, handle)
        return False

    def _await_before_the_free(self, handle, kept):
        """For a use to come that could not be announced."""
        self._awaited = {*(self._awaited or ()), handle}
        self._keep(kept, handle)

    def _await(self):
        for handle in self._awaited or ():
            # What fails has no work any more.
            on_device(self._home()[1], C.gpumem_stream_sync, handle)

    def copy_from(self, data: Any, *, offset: int = 0, stream: StreamLike = None) -> Buffer:
        """Copies host memory, or all of another buffer, into this buffer from `offset` on.

        A copy from the host waits until it is done. A copy between buffers is in the order of
        `stream` and does not wait; the buffers may be freed right after the call.
        """
        if isinstance(data, Buffer):
            data.check("copy", "source")
            offset, nbytes = self._range(offset, data.nbytes, "copy", "destination")
            self._submit(stream, C.gpumem_memcpy_async, self.ptr + offset, data.ptr, nbytes, uses=(self, data))
            return self
        source, nbytes, kept = _readable(data)
        offset, nbytes = self._range(offset, nbytes, "copy", "destination")
        if nbytes:
            self._submit(stream, C.gpumem_memcpy_async, self.ptr + offset, source, nbytes)
        del kept
        return self

    def copy_to(self, data: Any, *, offset: int = 0, stream: StreamLike = None) -> Any:
        """Fills host memory from this buffer, from `offset` on, and waits until the copy is
        done."""
        target, nbytes, kept = _writable(data)
        offset, nbytes = self._range(offset, nbytes, "copy", "source")
        if nbytes:
            self._submit(stream, C.gpumem_memcpy_async, target, self.ptr + offset, nbytes)
        del kept
        return data

    def fill(self, byte: int, *, offset: int = 0, nbytes: Size | None = None, stream: StreamLike = None) -> Buffer:
        """Fills with a byte, in the order of a stream; waits for nothing."""
        offset, nbytes = self._range(offset, nbytes, "fill", "buffer")
        self._submit(stream, C.gpumem_memset_async, self.ptr + offset, _values.byte(byte), nbytes, uses=(self,))
        return self

    def tobytes(self) -> bytes:
        """Returns the contents as bytes."""
        return bytes(self.copy_to(bytearray(self.nbytes)))

    def numpy(self) -> Any:
        """Returns a copy of the contents as a NumPy array on the host."""
        import numpy

        out = numpy.empty(self.shape, dtype=self.typestr)
        self.copy_to(out)
        return out

    def view(self, shape: Shape, dtype: DType = None, offset: Size = 0) -> View:
        """Returns a part of the buffer with a shape and a dtype of its own. The view keeps the
        buffer alive and frees nothing."""
        return View(self, shape, _dlpack.typestr(dtype) if dtype is not None else self.typestr, _values.size(offset))

    def __len__(self) -> int:
        return self.nbytes

    # ---- what other libraries ask

    @property
    def device(self) -> int:
        """The number of the buffer's device."""
        return pointer_info(self).device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.check("__cuda_array_interface__", "buffer")
        return _dlpack.array_interface(self.ptr, self.shape, self.typestr, self.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device(self.device)

    def __dlpack__(self, *, stream: StreamLike = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        self.check("__dlpack__", "buffer")
        return _dlpack.capsule(self, self, stream, max_version, dl_device, copy)

    __reduce__ = _values.no_copy

    def __repr__(self):
        if self._gone and not hasattr(self, "ptr"):
            return "Buffer()"
        shape = "" if self.typestr == "|u1" else f", {self.typestr} {self.shape}"
        return f"Buffer({_values.human(self.nbytes)} at {self.ptr:#x}{shape}{'' if self.live else ', gone'})"


class View:
    """A part of a buffer, which it keeps alive: see `Buffer.view`."""

    __slots__ = ("owner", "ptr", "shape", "typestr", "nbytes")

    def __init__(self, owner, shape: Shape, typestr, offset: int) -> None:
        self.shape = _lengths(shape)
        self.owner, self.typestr = owner, typestr
        self.nbytes = math.prod(self.shape) * _dlpack.item_bytes(typestr)
        if offset + self.nbytes > owner.nbytes:
            raise ValueError(f"shape {self.shape} of {typestr} from offset {offset} takes {offset + self.nbytes} bytes of a buffer of "
                             f"{owner.nbytes}")
        self.ptr = owner.ptr + offset

    @property
    def live(self) -> bool:
        """Whether the buffer's memory is still live."""
        return self.owner.live

    def check(self, operation: str = "use", operand: str = "view") -> None:
        """Raises `UseAfterFree` unless the view may be used."""
        self.owner.check(operation, operand)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.check("__cuda_array_interface__")
        return _dlpack.array_interface(self.ptr, self.shape, self.typestr, self.owner.stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.owner.__dlpack_device__()

    def __dlpack__(self, *, stream: StreamLike = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        self.check("__dlpack__")
        return _dlpack.capsule(self, self.owner, stream, max_version, dl_device, copy)

    def __repr__(self):
        return f"View({self.typestr} {self.shape} of {self.owner!r})"


def pointer_info(ptr: Address) -> d.gpumem_pointer_info:
    """Returns facts about the live allocation that contains an address: base, requested, usable,
    stream, id, tag, device, flags."""
    return _facts(_values.address(ptr))


def _facts(at):
    out = initialised(d.gpumem_pointer_info)
    ok(C.gpumem_pointer_info_get(at, _byref(out)))
    return out


def export_fd(buffer: Address) -> int:
    """Returns a file descriptor for memory allocated with `exportable=True`. The caller closes it;
    it keeps the memory alive."""
    out = ctypes.c_int()
    ok(C.gpumem_export_fd(_values.address(buffer), _byref(out)))
    return out.value


def import_fd(fd: int, nbytes: Size, device: int = 0, *, shape: Shape | None = None, dtype: DType = None) -> Buffer:
    """Returns a buffer over memory that `export_fd` exported in this or another process. `nbytes`
    is the size that the exporter asked for."""
    out = _c_void_p()
    ok(C.gpumem_import_fd(_values.number(fd, "fd", -1 << 31, 1 << 31), _values.size(nbytes), _values.device(device), _byref(out)))
    return taken(out.value, shape=shape, dtype=dtype)


def taken(ptr, **options):
    """`Buffer.adopt` for memory that nobody else has: it is freed where that fails."""
    try:
        return Buffer.adopt(ptr, **options)
    except BaseException:
        C.gpumem_free(ptr)
        raise

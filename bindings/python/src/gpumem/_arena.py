"""Arenas: allocations that end together."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from typing import Callable, Iterator

from . import _declarations as d
from . import _values
from ._errors import Invalid, ok
from ._library import C, initialised
from ._types import Address, Keep


@dataclasses.dataclass(frozen=True)
class ArenaReport:
    """What the end of an arena did: counts of allocations, and bytes as asked for. `unknown`,
    `duplicate` and `foreign` count entries of the keep list that changed nothing. `depth` is how
    many arenas enclosed it, `nanoseconds` how long it was open."""

    depth: int
    freed: int
    freed_bytes: int
    kept: int
    kept_bytes: int
    unknown: int
    duplicate: int
    foreign: int
    nanoseconds: int

    def __str__(self):
        odd = "".join(f", {getattr(self, n)} {n}" for n in ("unknown", "duplicate", "foreign") if getattr(self, n))
        return (f"freed {self.freed} of {_values.human(self.freed_bytes)}, kept {self.kept} of {_values.human(self.kept_bytes)}{odd}")


@dataclasses.dataclass(frozen=True)
class ArenaStats:
    """A snapshot of an open arena: counts of allocations, and bytes as asked for."""

    depth: int
    live: int
    live_bytes: int
    peak_bytes: int
    joined: int
    left: int
    promoted: int
    freed_early: int
    threads: int
    nanoseconds: int
    id: int
    name: str


def as_dataclass(kind, structure):
    """Converts a structure of the library to a dataclass with the same fields."""
    values = {f.name: getattr(structure, f.name) for f in dataclasses.fields(kind)}
    return kind(**{n: v.decode(errors="replace") if isinstance(v, bytes) else v for n, v in values.items()})


# Called before and after the end of an arena, for allocators that keep track of what has gone;
# after a capture's abort too.
ends: list[Callable[[], None]] = []
ended: list[Callable[[], None]] = []


def tell(listeners):
    for listener in listeners:
        listener()


def _addresses(keep):
    """The addresses in a keep list, including buffers inside lists, tuples and dictionaries."""
    if keep is None:
        return []
    if isinstance(keep, dict):
        keep = keep.values()
    elif not isinstance(keep, (list, tuple, set, frozenset)):
        return [_kept(keep)]
    return [a for one in keep for a in (_addresses(one) if isinstance(one, (dict, list, tuple, set, frozenset)) else
                                        [_kept(one)])]


def _kept(value):
    """The address. For a buffer that is gone it is 1, which is nobody's address and counts as
    unknown: something else may be at the buffer's own by now."""
    return 1 if getattr(value, "live", True) is False else _values.place(value)


class Arena:
    """When it ends, frees everything that was allocated in it, even if something still refers to
    it, except what it is told to keep.

        with gpumem.arena("step", keep=lambda: [loss]) as step:
            ...

    Everything that the thread allocates in the block belongs to the arena, whichever library
    allocates it, but for RMM and Warp, which free by address. Kept allocations move to the
    enclosing arena, or become ordinary memory where there is none. `keep` is a function that is
    called at the end, or what it would return: buffers, tensors, arrays, addresses, or lists,
    tuples and dictionaries of them. After an exception nothing is kept, nested arenas end too, and
    the exception propagates. Afterwards `report` says what was done. While another thread is
    attached no arena ends: after an exception the block's thread leaves it, and `abort()` ends it
    later.

    Without a block, call `enter()` and then `exit(keep)` or `abort()` on one thread. Other threads
    take part with `attached()`. Arenas belong to threads: while one asynchronous task is in an
    arena, allocations of all tasks on its thread are in that arena.
    """

    __slots__ = ("handle", "name", "keep", "report")

    def __init__(self, name: str = "", keep: Keep = None) -> None:
        self.handle: int | None = None
        self.name, self.keep = name, keep
        self.report: ArenaReport | None = None

    def enter(self) -> Arena:
        """Opens the arena, inside the thread's current one."""
        if self.handle is not None:
            raise Invalid(f"arena {self.name!r} is open already" if self.open else
                          f"arena {self.name!r} has ended; make another one with gpumem.arena()")
        out = ctypes.c_void_p()
        ok(C.gpumem_arena_enter_named(_values.name(self.name) or None, ctypes.byref(out)))
        self.handle = out.value
        return self

    def exit(self, keep: Keep = None) -> ArenaReport:
        """Ends the arena and returns an `ArenaReport`. Raises, and leaves it open, while an arena
        inside it is open or another thread is attached."""
        entries = _addresses(keep)
        array = (ctypes.c_void_p * len(entries))(*entries) if entries else None
        out, handle = initialised(d.gpumem_arena_report), self._begun()
        tell(ends)
        ok(C.gpumem_arena_exit(handle, array, len(entries), ctypes.byref(out)))
        return self._ended(out)

    def abort(self) -> ArenaReport:
        """Ends the arena and all open arenas inside it, keeping nothing. The report covers all of
        them."""
        out, handle = initialised(d.gpumem_arena_report), self._begun()
        tell(ends)
        ok(C.gpumem_arena_abort(handle, ctypes.byref(out)))
        return self._ended(out)

    def _begun(self):
        # The library would say that a handle is NULL.
        if self.handle is None:
            raise Invalid(f"arena {self.name!r} has not been entered; do that by `with` or enter()")
        return self.handle

    def _ended(self, report):
        # The handle stays: what names a stale one is refused, with the reason.
        self.report = as_dataclass(ArenaReport, report)
        tell(ended)
        return self.report

    @property
    def open(self) -> bool:
        """Whether the arena has been entered and has not ended."""
        return self.handle is not None and self.report is None

    @contextlib.contextmanager
    def attached(self) -> Iterator[Arena]:
        """Puts what this thread allocates in the block into the arena too. The arena cannot end
        meanwhile."""
        ok(C.gpumem_arena_attach(self._begun()))
        try:
            yield self
            ok(C.gpumem_arena_detach(self.handle))
        except BaseException:
            _leave(self.handle)
            raise

    def stats(self) -> ArenaStats:
        """Returns what has happened in the arena so far."""
        out = initialised(d.gpumem_arena_stats)
        ok(C.gpumem_arena_stats_get(self._begun(), ctypes.byref(out)))
        return as_dataclass(ArenaStats, out)

    def __enter__(self) -> Arena:
        return self.enter()

    def __exit__(self, kind, value, trace):
        if not self.open:
            return
        if kind is not None:
            self._give_up(value)
            return
        try:
            self.exit(self.keep() if callable(self.keep) else self.keep)
        except BaseException as why:
            if self.open:
                self._give_up(why)
            raise

    def _give_up(self, why):
        """Ends the arena with its block after an exception. While another thread is attached that is
        refused; the block's thread is not left in it then."""
        try:
            self.abort()
        except Exception as refused:
            if _leave(self.handle) and hasattr(why, "add_note"):  # From Python 3.11 on.
                why.add_note(f"arena {self.name!r} is still open, until abort() can end it: {refused}")

    __reduce__ = _values.no_copy

    def __repr__(self):
        state = "open" if self.open else "not entered" if self.handle is None else f"ended: {self.report}"
        return f"Arena({self.name!r}, {state})" if self.name else f"Arena({state})"


def _leave(handle):
    """Takes the thread out of an open arena and of those inside, which stay open. Returns whether
    the arena is open."""
    now = ctypes.c_void_p()

    def is_open():
        return C.gpumem_arena_stats_get(handle, ctypes.byref(initialised(d.gpumem_arena_stats))) == 0

    if not is_open():
        return False
    if C.gpumem_arena_attach(handle) == 0:
        # The thread has left it before.
        C.gpumem_arena_detach(handle)
        return True
    while C.gpumem_arena_current_get(ctypes.byref(now)) == 0 and C.gpumem_arena_detach(now) == 0:
        if now.value == handle or not is_open():
            break
    return True


def arena(name: str = "", keep: Keep = None) -> Arena:
    """Returns an `Arena` for a `with` block: everything allocated in the block is freed after it,
    except `keep`."""
    return Arena(name, keep)


def current_arena() -> Arena | None:
    """Returns the arena that the calling thread allocates in, or None."""
    out = ctypes.c_void_p()
    ok(C.gpumem_arena_current_get(ctypes.byref(out)))
    return _named(out.value)


def find_arena(ptr: Address) -> Arena | None:
    """Returns the arena that a live allocation is in, or None."""
    out = ctypes.c_void_p()
    ok(C.gpumem_arena_find(_values.address(ptr), ctypes.byref(out)))
    return _named(out.value)


def _named(handle):
    if not handle:
        return None
    found = Arena()
    found.handle = handle
    found.name = found.stats().name
    return found


def escape(ptr: Address) -> None:
    """Takes a live allocation out of all arenas, and out of what the abort of a capture frees."""
    ok(C.gpumem_arena_escape(_values.address(ptr)))


def outside(ptr, stream):
    """Takes what was just allocated on a stream out of the thread's arena and the stream's capture,
    if there is one, and returns it: for owners that free by address, which may be somebody else's
    once an arena or an abort has freed it."""
    number = ctypes.c_uint64()
    C.gpumem_owner_id_get(ptr, stream, ctypes.byref(number))
    if number:
        C.gpumem_arena_escape(ptr)
    return ptr


def promote(ptr: Address) -> None:
    """Moves a live allocation to the enclosing arena, or out of all arenas where there is none."""
    ok(C.gpumem_arena_promote(_values.address(ptr)))


def check(ptr: Address, operation: str = "use", operand: str = "pointer") -> None:
    """With GPUMEM_ARENA_DEBUG=check, raises `UseAfterFree` if an arena has freed the memory at an
    address."""
    ok(C.gpumem_check(_values.address(ptr), _values.c_string(operation, "operation"), _values.c_string(operand, "operand")))

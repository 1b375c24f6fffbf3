"""Reservations: promises of capacity."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import threading

from . import _declarations as d
from . import _values
from ._errors import ok
from ._library import C, initialised
from ._stats import current_device
from ._types import Size, StreamLike, Where

TIERS = {"gpu": d.TIER_GPU, "host": d.TIER_HOST, "disk": d.TIER_DISK}
TIER_NAMES = {number: name for name, number in TIERS.items()}


def space(value):
    """A space: ("gpu", 0), ("host", 0), ("disk", 0), or a tier's name for its first."""
    tier, number = (value, 0) if isinstance(value, str) else value
    if tier not in TIERS:
        raise ValueError(f"{tier!r} is no tier; they are {', '.join(TIERS)}")
    return d.gpumem_space(TIERS[tier], _values.number(number, "space", 0, 1 << 31))


def set_space_limit(where: Where, nbytes: Size | None) -> None:
    """Sets how much of a space, such as "gpu" or ("host", 0), may be promised or used; None means
    all that it has. What exceeds a lowered limit stays. Requests that wait are granted where they
    fit now, and raise `OutOfMemory` where they can never be met any more. `set_limit` bounds what is
    mapped."""
    ok(C.gpumem_space_limit_set(space(where), (1 << 64) - 1 if nbytes is None else _values.size(nbytes)))


@dataclasses.dataclass(frozen=True)
class ReservationInfo:
    """Facts about a reservation, in bytes. `promised` is its size, `drawn` the part that live
    allocations use, `used` that and what a policy took from outside, `peak` the most that `used`
    was. `number` is unique within the process."""

    number: int
    promised: int
    drawn: int
    used: int
    peak: int
    space: tuple


class Reservation:
    """A promise of bytes, from `reserve`.

    In a `with` block, the thread's allocations draw from it. It ends with the block, even after an
    exception, and even where the block cannot begin. Other threads take part with `attach_thread()`,
    streams with `attach_stream()`. Without a block, it ends by `release()`, or when
    garbage-collected, even if threads or streams are attached. Live allocations stay.
    """

    __slots__ = ("handle", "nbytes", "_pid", "_released")

    def __init__(self, handle: int, nbytes: int) -> None:
        self.handle, self.nbytes, self._pid, self._released = handle, nbytes, os.getpid(), False

    def attach_thread(self) -> Reservation:
        """Makes the calling thread's allocations draw from it, on streams without a reservation of
        their own."""
        ok(C.gpumem_reservation_attach_thread(self.handle))
        return self

    def attach_stream(self, stream: StreamLike) -> Reservation:
        """Makes allocations on a stream draw from it, on every thread."""
        ok(C.gpumem_reservation_attach_stream(self.handle, _values.stream(stream)))
        return self

    def detach_thread(self) -> None:
        """Undoes `attach_thread()`."""
        ok(C.gpumem_reservation_detach_thread(self.handle))

    def grow(self, nbytes: Size, timeout: float | None = 0) -> None:
        """Makes the reservation larger, or waits its turn until it can be."""
        more, wait = _values.size(nbytes), milliseconds(timeout)
        granted = False

        def call(token):
            nonlocal granted
            status = C.gpumem_reservation_grow(self.handle, more, wait, token)
            granted = status == 0
            return status

        try:
            _waited(wait, call)
        except BaseException:
            if granted:  # When Ctrl-C came.
                C.gpumem_reservation_shrink(self.handle, more)
            raise
        self.nbytes = self._structure().promised

    def shrink(self, nbytes: Size) -> None:
        """Makes the reservation smaller by `nbytes`, none of which may be drawn."""
        ok(C.gpumem_reservation_shrink(self.handle, _values.size(nbytes)))
        self.nbytes = self._structure().promised

    def release(self) -> int:
        """Ends the reservation and returns how many bytes are still drawn. They count as use
        outside any reservation from now on."""
        drawn = ctypes.c_uint64()
        ok(C.gpumem_reservation_release(self.handle, ctypes.byref(drawn)))
        self._released = True
        return drawn.value

    def _structure(self):
        out = initialised(d.gpumem_reservation_info)
        ok(C.gpumem_reservation_info_get(self.handle, ctypes.byref(out)))
        return out

    def info(self) -> ReservationInfo:
        """Returns the reservation's size, use and number."""
        out = self._structure()
        return ReservationInfo(out.number, out.promised, out.drawn, out.used, out.peak,
                               (TIER_NAMES.get(out.space.tier, out.space.tier), out.space.id))

    def __enter__(self) -> Reservation:
        if self._structure().space.tier == d.TIER_GPU:
            try:
                self.attach_thread()
            except BaseException:
                # The block, which would have ended it, does not begin.
                self.release()
                raise
        return self

    def __exit__(self, *_):
        if not self._released:
            self.release()

    __reduce__ = _values.no_copy

    def __del__(self, _release=C.gpumem_reservation_release, _getpid=os.getpid):
        try:
            if not self._released and self._pid == _getpid():
                _release(self.handle, None)
        except Exception:  # Nobody could take it.
            pass

    def __repr__(self):
        return f"Reservation({_values.human(self.nbytes)})"


def milliseconds(timeout, what="timeout"):
    """Converts seconds to what the library takes. None or infinity means no limit."""
    if timeout is None or timeout == math.inf:
        return d.WAIT_FOREVER
    if not timeout >= 0:
        raise ValueError(f"a {what} of {timeout} seconds")
    return min(math.ceil(1000 * timeout), d.WAIT_FOREVER)


def _waited(timeout, call):
    """Calls `call(token)`, which may wait. Ctrl-C raises on the main thread alone, and not inside
    a call of the library's: there another thread waits, and the token ends that."""
    if timeout == 0 or threading.current_thread() is not threading.main_thread():
        return ok(call(None))
    from concurrent.futures import ThreadPoolExecutor

    token = ctypes.c_void_p()
    ok(C.gpumem_token_create(ctypes.byref(token)))
    try:
        with ThreadPoolExecutor(1) as other:
            try:
                other.submit(lambda: ok(call(token))).result()
            except BaseException:
                C.gpumem_token_cancel(token)
                raise
    finally:
        C.gpumem_token_destroy(token)


def reserve(nbytes: Size, timeout: float | None = 0, *, least: Size = 0, space: Where | None = None, policy: str = "fail") -> Reservation:
    """Reserves bytes of the current device, or of a space such as ("host", 0), or waits its turn
    for them.

        with gpumem.reserve("4GiB", timeout=10):
            ...

    `timeout` is in seconds; 0 does not wait, None waits without limit. Raises `TimedOut`, or
    `OutOfMemory` if `timeout` is 0 or there can never be that much. `least` is the smallest size
    that will do. `policy` says what happens to an allocation that does not fit: "fail", "ignore"
    (it takes what is missing from outside) or "increase" (the reservation grows).
    """
    o = initialised(d.gpumem_reserve_options)
    o.bytes, o.least_bytes, o.timeout_ms = _values.size(nbytes), _values.size(least), milliseconds(timeout)
    # Another thread has another current device.
    o.space = globals()["space"](("gpu", current_device()) if space is None else space)
    kinds = {"fail": d.POLICY_FAIL, "ignore": d.POLICY_IGNORE, "increase": d.POLICY_INCREASE}
    if policy not in kinds:
        raise ValueError(f"{policy!r} is no policy; they are {', '.join(kinds)}")
    p = initialised(d.gpumem_reserve_policy)
    p.kind = kinds[policy]
    o.policy = ctypes.addressof(p)
    out = ctypes.c_void_p()

    def call(token):
        o.cancel = token
        return C.gpumem_reserve(ctypes.byref(o), ctypes.byref(out))

    try:
        _waited(o.timeout_ms, call)
        made = Reservation(out.value or 0, 0)
        made.nbytes = made._structure().promised
        return made
    except BaseException:
        if out:  # Granted when Ctrl-C came.
            C.gpumem_reservation_release(out, None)
        raise

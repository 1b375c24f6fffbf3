"""Layouts computed ahead of a run."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any, Iterator, Sequence, overload

from . import _declarations as d
from . import _values
from ._buffer import Buffer, taken
from ._errors import OutOfMemory, error, ok
from ._library import C, initialised
from ._reserve import milliseconds
from ._stats import filled_text
from ._types import Size, StreamLike

KINDS = {"temporary": d.PLAN_TEMPORARY, "input": d.PLAN_INPUT, "output": d.PLAN_OUTPUT, "parameter": d.PLAN_PARAMETER,
         "constant": d.PLAN_CONSTANT}
STATUSES = {d.PLAN_OPTIMAL: "optimal", d.PLAN_FEASIBLE: "feasible", d.PLAN_INFEASIBLE: "infeasible", d.PLAN_OUT_OF_TIME: "out of time"}


@dataclasses.dataclass(frozen=True)
class PlanStats:
    """The result of solving, in bytes. `gap` is how far `arena_bytes` is above `lower_bound`, as a
    fraction of it. `status` is "optimal", "feasible", "infeasible" or "out of time"."""

    status: str
    arena_bytes: int
    lower_bound: int
    total_unshared: int
    saved: int
    gap: float
    seconds: float
    critical_step: int
    steps: int
    slots: int
    values: int
    operations: int
    arenas: int
    interrupted: bool


class Plan:
    """Buffers, or a graph of values and operations, to lay out in an arena close to the smallest
    possible size. Needs no device.

        p = gpumem.Plan(alignment=256)
        a = p.buffer(1 << 20, 0, 3)             # live at steps 0, 1 and 2
        layout = p.solve()
        layout[a]                               # its offset

    For values, the steps follow from the operations that write and read them: `value`, `op`,
    `view`, `in_place`, `keep`.
    """

    def __init__(self, *, capacity: Size = 0, unit: int = 0, alignment: int = 0, reuse: bool = True) -> None:
        self.handle = None
        o = initialised(d.gpumem_plan_options)
        o.flags = 0 if reuse else d.PLAN_NO_REUSE
        o.capacity, o.unit, o.alignment = (_values.size(capacity, "capacity"), _values.number(unit, "unit"),
                                           _values.number(alignment, "alignment"))
        out = ctypes.c_void_p()
        ok(C.gpumem_plan_create(ctypes.byref(o), ctypes.byref(out)))
        self.handle, self._pid = out.value, os.getpid()

    def _add(self, call, nbytes, lower, upper, name, alignment, guard, kind, offset, prefer, gaps, arena):
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind; they are {', '.join(KINDS)}")
        if offset is not None and prefer is not None:
            raise ValueError("a buffer has a fixed or a preferred offset, not both")
        o = initialised(d.gpumem_plan_buffer_options)
        number = _values.number
        o.bytes, o.lower, o.upper, o.kind = _values.size(nbytes), number(lower, "lower"), number(upper, "upper"), KINDS[kind]
        o.alignment, o.guard = number(alignment, "alignment"), number(guard, "guard")
        o.name = _values.name(name)
        if offset is not None or prefer is not None:
            o.place = d.PLAN_FIXED if offset is not None else d.PLAN_PREFERRED
            o.offset = number(offset if offset is not None else prefer, "offset")
        if arena is not None:
            o.flags, o.arena = d.PLAN_IN_ARENA, _id(arena, "arena")
        ranges = (d.gpumem_plan_interval * len(gaps))(*[(number(a, "gap"), number(b, "gap")) for a, b in gaps])
        o.gaps, o.gap_count = (ctypes.addressof(ranges) if gaps else None), len(gaps)
        out = ctypes.c_uint32()
        ok(call(self.handle, ctypes.byref(o), ctypes.byref(out)))
        return out.value

    def buffer(self, nbytes: Size, lower: int, upper: int, *, name: str | None = None, alignment: int = 0, guard: int = 0,
               kind: str = "temporary", offset: int | None = None, prefer: int | None = None, gaps: Sequence[tuple[int, int]] = (),
               arena: int | None = None) -> int:
        """Adds a buffer that is live at the steps from `lower` up to but not including `upper`, and
        returns its number. `offset` fixes its place; `prefer` suggests one. `gaps` are ranges of
        steps at which it holds nothing. `guard` bytes after it stay unused."""
        return self._add(C.gpumem_plan_buffer_add, nbytes, lower, upper, name, alignment, guard, kind, offset, prefer, gaps, arena)

    def buffers(self, nbytes: Any, lowers: Any, uppers: Any) -> int:
        """Adds many temporaries at once from three sequences or arrays, and returns the number of
        the first."""
        columns = [_u64(column) for column in (nbytes, lowers, uppers)]
        count = len(columns[0][1])
        if any(len(c[1]) != count for c in columns):
            raise ValueError(f"{count} sizes, but {len(columns[1][1])} first and {len(columns[2][1])} last steps")
        first = ctypes.c_uint32()
        ok(C.gpumem_plan_buffers_add(self.handle, count, *[c[0] for c in columns], ctypes.byref(first)))
        return first.value

    def value(self, nbytes: Size, *, name: str | None = None, alignment: int = 0, guard: int = 0, kind: str = "temporary",
              offset: int | None = None, prefer: int | None = None, arena: int | None = None) -> int:
        """Adds a value, whose live range follows from the operations that write and read it, and
        returns its number."""
        return self._add(C.gpumem_plan_value_add, nbytes, 0, 0, name, alignment, guard, kind, offset, prefer, (), arena)

    def op(self, inputs: Sequence[int], outputs: Sequence[int], name: str | None = None) -> int:
        """Adds an operation that reads and writes values; it runs after those added before. Returns
        its number."""
        reads, writes = _ids(inputs, "input"), _ids(outputs, "output")
        out = ctypes.c_uint32()
        ok(C.gpumem_plan_op_add(self.handle, _values.name(name), reads, len(inputs), writes, len(outputs), ctypes.byref(out)))
        return out.value

    def order(self, ops: Sequence[int]) -> None:
        """Sets the order in which the operations run: each of them once."""
        ok(C.gpumem_plan_order_set(self.handle, _ids(ops, "operation"), len(ops)))

    def view(self, child: int, parent: int, offset: int = 0) -> None:
        """Makes a value a view: the bytes of its parent from `offset` on."""
        ok(C.gpumem_plan_view_set(self.handle, _id(child, "child"), _id(parent, "parent"), _values.number(offset, "offset")))

    def in_place(self, op: int, input: int, output: int) -> None:
        """Allows an operation to write an output over an input that dies there."""
        ok(C.gpumem_plan_in_place_add(self.handle, _id(op, "operation"), _id(input, "input"), _id(output, "output")))

    def keep(self, value: int) -> None:
        """Keeps a value live to the end."""
        ok(C.gpumem_plan_keep(self.handle, _id(value, "value")))

    def resize(self, number: int, nbytes: Size) -> None:
        """Changes the size of a buffer or value. Solve again afterwards."""
        ok(C.gpumem_plan_resize(self.handle, _id(number, "number"), _values.size(nbytes)))

    def obstacle(self, offset: int, nbytes: Size, lower: int = 0, upper: int | None = None, arena: int = 0) -> None:
        """Keeps bytes of an arena free of buffers during some steps."""
        number = _values.number
        ok(C.gpumem_plan_obstacle_add(self.handle, _id(arena, "arena"), number(offset, "offset"), _values.size(nbytes),
                                      number(lower, "lower"), d.PLAN_NO_OFFSET if upper is None else number(upper, "upper")))

    def arena(self, capacity: Size = 0, name: str | None = None) -> int:
        """Adds an arena besides arena 0, and returns its number."""
        out = ctypes.c_uint32()
        ok(C.gpumem_plan_arena_add(self.handle, _values.size(capacity), _values.name(name), ctypes.byref(out)))
        return out.value

    def solve(self, *, effort: str = "normal", time_limit: float | None = None, threads: int = 0, from_last: bool = False) -> Layout:
        """Lays the plan out and returns a `Layout`. `effort` is "normal" or "fast"; `time_limit` is
        in seconds. Raises `OutOfMemory` if no layout within the capacities was found; the text has
        the capacity and the smallest size found."""
        efforts = {"normal": d.PLAN_EFFORT_NORMAL, "fast": d.PLAN_EFFORT_FAST}
        if effort not in efforts:
            raise ValueError(f"{effort!r} is no effort; they are {', '.join(efforts)}")
        o = initialised(d.gpumem_plan_solve_options)
        o.effort, o.threads, o.flags = efforts[effort], _id(threads, "threads"), d.PLAN_FROM_LAST if from_last else 0
        o.time_limit_ms = 0 if time_limit is None else max(1, milliseconds(time_limit, "time limit"))
        status = C.gpumem_plan_solve(self.handle, ctypes.byref(o))
        if status:
            raise error(status)
        return Layout(self)

    def verify(self, offsets: Sequence[int | None], arenas: Sequence[int] | None = None) -> int:
        """Checks a layout of the caller's own, and returns the bytes that it needs. Raises
        `Invalid` for the first thing that is wrong."""
        address, array = _u64([d.PLAN_NO_OFFSET if at is None else at for at in offsets])
        if arenas is not None and len(arenas) != len(array):
            raise ValueError(f"{len(array)} offsets, but {len(arenas)} arenas; each offset has one")
        numbers = None if arenas is None else _ids(arenas, "arena")
        out = ctypes.c_uint64()
        ok(C.gpumem_plan_verify(self.handle, numbers, address, len(array), ctypes.byref(out)))
        return out.value

    def stats(self) -> PlanStats:
        """Returns the result of the last solve, even where there is no layout."""
        out = initialised(d.gpumem_plan_stats)
        ok(C.gpumem_plan_stats_get(self.handle, ctypes.byref(out)))
        values = {f.name: getattr(out, f.name) for f in dataclasses.fields(PlanStats)}
        return PlanStats(**{**values, "status": STATUSES.get(out.status, str(out.status)), "interrupted": bool(out.interrupted)})

    __reduce__ = _values.no_copy

    def __del__(self, _destroy=C.gpumem_plan_destroy, _getpid=os.getpid):
        try:
            if self.handle is not None and self._pid == _getpid():
                _destroy(self.handle)
        except Exception:  # Nobody could take it.
            pass


class Layout:
    """The offsets of a solved plan: `layout[number]` is an offset, or None for what has no slot.

    `stats` has the figures, and `report()`, `csv()` and `svg()` return text; a notebook shows the
    picture. `materialise()` allocates the arena. The offsets are those of the solve that returned
    this layout; the texts and `materialise` use the plan's latest solve.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.stats = plan, plan.stats()
        count = self.stats.values
        self._offsets, self._arenas = (ctypes.c_uint64 * count)(), (ctypes.c_uint32 * count)()
        ok(C.gpumem_plan_offsets_get(plan.handle, 0, count, self._arenas, self._offsets, None))

    @property
    def nbytes(self) -> int:
        """The bytes of all arenas together."""
        return self.stats.arena_bytes

    @property
    def offsets(self) -> list[int | None]:
        """All offsets in the order of numbers; None for what has no slot."""
        return [None if at == d.PLAN_NO_OFFSET else at for at in self._offsets]

    @property
    def arenas(self) -> list[int]:
        """The arenas of all, in the order of numbers."""
        return list(self._arenas)

    def numpy(self) -> Any:
        """Returns all offsets as a NumPy array of uint64. The largest number stands for what has no
        slot."""
        import numpy

        return numpy.array(self._offsets, dtype=numpy.uint64)

    @overload
    def __getitem__(self, number: int) -> int | None: ...

    @overload
    def __getitem__(self, number: slice) -> list[int | None]: ...

    def __getitem__(self, number):
        if isinstance(number, slice):
            return self.offsets[number]
        at = self._offsets[number]
        return None if at == d.PLAN_NO_OFFSET else at

    def __iter__(self) -> Iterator[int | None]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def critical(self) -> list[int]:
        """Returns the numbers of what is live at the step at which most is live."""
        count = ctypes.c_size_t()
        ok(C.gpumem_plan_critical_get(self.plan.handle, None, 0, ctypes.byref(count)))
        out = (ctypes.c_uint32 * count.value)()
        ok(C.gpumem_plan_critical_get(self.plan.handle, out, count.value, None))
        return list(out)

    def report(self) -> str:
        """Returns the layout as text for people."""
        return filled_text(lambda b, c, n: C.gpumem_plan_report_get(self.plan.handle, b, c, n))

    def csv(self) -> str:
        """Returns the layout as CSV, which `gpumem plan` reads and writes."""
        return filled_text(lambda b, c, n: C.gpumem_plan_csv_get(self.plan.handle, b, c, n))

    def svg(self) -> str:
        """Returns the layout as an SVG picture: steps from left to right, offsets upwards."""
        return filled_text(lambda b, c, n: C.gpumem_plan_svg_get(self.plan.handle, b, c, n))

    def _repr_svg_(self) -> str:
        return self.svg()

    def materialise(self, arena: int = 0, stream: StreamLike = None) -> Buffer:
        """Allocates an arena and returns it as a `Buffer`. Each buffer or value is at `buffer.ptr +
        layout[number]`, or `buffer.view(shape, dtype, offset)`."""
        out = ctypes.c_void_p()
        ok(C.gpumem_plan_materialise(self.plan.handle, _id(arena, "arena"), _values.stream(stream), ctypes.byref(out)))
        return taken(out.value, stream=stream)

    def __repr__(self):
        s = self.stats
        return (f"Layout({s.values} buffers in {_values.human(s.arena_bytes)}, {s.status}, lower bound {_values.human(s.lower_bound)}, "
                f"{_values.human(s.total_unshared)} side by side)")


def _id(value, what):
    return _values.number(value, what, 0, 1 << 32)


def _ids(values, what):
    return (ctypes.c_uint32 * len(values))(*[_id(v, what) for v in values])


def _u64(values):
    """The address of an array of uint64, and what keeps it alive. A NumPy array is taken as it is,
    anything else is copied."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if hasattr(values, "__array_interface__"):
        import numpy

        if values.dtype.kind not in "iu":
            raise TypeError(f"sizes and steps are whole numbers, not {values.dtype}")
        if values.dtype.kind == "i" and len(values) and values.min() < 0:
            raise ValueError(f"sizes and steps are not negative, but one is {values.min()}")
        array = numpy.ascontiguousarray(values, dtype=numpy.uint64)
        return array.ctypes.data, array
    array = (ctypes.c_uint64 * len(values))(*[_values.size(v) for v in values])
    return ctypes.addressof(array), array


def _rows(buffers):
    """The columns of a table: sizes, lower and upper steps, and names where it has them."""
    columns = getattr(buffers, "columns", None)
    if columns is None:
        columns = getattr(getattr(buffers, "dtype", None), "names", None)
    if columns is None and isinstance(buffers, dict):
        columns = buffers.keys()
    if columns is not None:
        columns = list(columns)
        size = next((c for c in ("bytes", "size", "nbytes") if c in columns), None)
        if size is None or "lower" not in columns or "upper" not in columns:
            raise ValueError(f"a table of buffers has columns bytes (or size), lower and upper, not {', '.join(map(str, columns))}")
        return buffers[size], buffers["lower"], buffers["upper"]
    if getattr(buffers, "ndim", None) == 2:
        if buffers.shape[1] != 3:
            raise ValueError(f"an array of buffers has three columns: bytes, lower, upper, not {buffers.shape[1]}")
        return buffers[:, 0], buffers[:, 1], buffers[:, 2]
    return None


def plan(buffers: Any, *, capacity: Size = 0, alignment: int = 0, unit: int = 0, reuse: bool = True, effort: str = "normal",
         time_limit: float | None = None, threads: int = 0) -> Layout:
    """Lays buffers with known live ranges out in one arena, and returns a `Layout`.

    `buffers` is a list of (bytes, lower, upper), or of dictionaries of `Plan.buffer`'s parameters;
    a NumPy array with three columns; or a table (pandas, a structured array, a dictionary of
    columns) with columns bytes or size, lower, upper. A buffer is live at the steps from `lower` up
    to but not including `upper`.
    """
    made = Plan(capacity=capacity, alignment=alignment, unit=unit, reuse=reuse)
    table = _rows(buffers)
    if table is not None:
        made.buffers(*table)
    else:
        buffers = list(buffers)
        if all(isinstance(b, (tuple, list)) and len(b) == 3 for b in buffers):
            made.buffers([b[0] for b in buffers], [b[1] for b in buffers], [b[2] for b in buffers])
        else:
            for b in buffers:
                if not isinstance(b, dict) and not (hasattr(b, "__len__") and len(b) == 3):
                    raise ValueError(f"a buffer is (bytes, lower, upper) or a dictionary, not {b!r}")
                options = dict(b) if isinstance(b, dict) else dict(zip(("nbytes", "lower", "upper"), b))
                for other in ("bytes", "size"):
                    if other in options:
                        options["nbytes"] = options.pop(other)
                made.buffer(**options)
    return made.solve(effort=effort, time_limit=time_limit, threads=threads)


__all__ = ["Layout", "OutOfMemory", "Plan", "PlanStats", "plan"]

"""What is Python's own: arguments, exceptions, the array protocols, the planner's inputs, the end
of the interpreter."""

import collections.abc
import copy
import ctypes
import gc
import importlib.resources
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import threading
import typing
import weakref
from unittest import mock

import gpumem
import pytest
from gpumem import _declarations, _dlpack, _reserve, _values
from gpumem._library import C

REPOSITORY = next((p for p in pathlib.Path(__file__).resolve().parents if (p / "include/gpumem.h").is_file()), None)
MIB = 1 << 20


def python(source, **environment):
    """Runs a program, which must end well and say nothing on stderr; what it printed."""
    done = subprocess.run([sys.executable, "-c", source], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout


# ---- the C ABI

@pytest.mark.skipif(REPOSITORY is None, reason="not in the repository")
def test_declarations_are_the_headers():
    sys.path.insert(0, str(REPOSITORY / "bindings/python"))
    import declare

    assert declare.text(REPOSITORY / "include/gpumem") == pathlib.Path(_declarations.__file__).read_text(), "run python declare.py"
    listed = set((REPOSITORY / "abi/symbols.txt").read_text().split())
    assert set(_declarations.FUNCTIONS) == listed
    assert len(listed) > 100


@pytest.mark.skipif(REPOSITORY is None, reason="not in the repository")
def test_structures_have_the_headers_layout():
    wanted, checked = None, 0
    for line in (REPOSITORY / "abi/structs.txt").read_text().splitlines():
        if m := re.fullmatch(r"(\w+) size (\d+) align (\d+)", line):
            wanted = getattr(_declarations, m[1])
            assert (ctypes.sizeof(wanted), ctypes.alignment(wanted)) == (int(m[2]), int(m[3])), m[1]
        elif m := re.fullmatch(r"\s+(\w+) at (\d+)", line):
            assert getattr(wanted, m[1]).offset == int(m[2]), f"{wanted.__name__}.{m[1]}"
            checked += 1
    assert checked > 100


def test_an_exception_for_every_status():
    statuses = {v for n, v in vars(_declarations).items() if n.startswith("ERROR_")}
    kinds = gpumem._errors.BY_STATUS
    assert set(kinds) == statuses and len(statuses) == 18
    for status, kind in kinds.items():
        assert getattr(gpumem, kind.__name__) is kind and issubclass(kind, gpumem.Error)
        raised = kind("text", status)
        assert str(raised) == "text" and raised.status == status and raised.name.startswith("GPUMEM_ERROR_")
    assert issubclass(gpumem.OutOfMemory, MemoryError) and issubclass(gpumem.TimedOut, TimeoutError)


# ---- finding the library

def test_what_is_missing_is_said():
    program = "import sys\ntry:\n import gpumem\nexcept ImportError as e: print(e)\n"
    said = python(program, GPUMEM_LIBRARY="/nowhere/libgpumem.so", PYTHONPATH=os.pathsep.join(sys.path))
    assert "/nowhere/libgpumem.so" in said and "GPUMEM_LIBRARY" in said
    other = next(line.split()[-1] for line in open("/proc/self/maps") if "libc.so.6" in line)
    said = python(program, GPUMEM_LIBRARY=other, PYTHONPATH=os.pathsep.join(sys.path))
    assert other in said and "has no gpumem_" in said


def test_the_command():
    found = subprocess.run([sys.executable, "-m", "gpumem", "--version"], capture_output=True, text=True, timeout=60)
    if found.returncode and "no gpumem command" in found.stderr:
        pytest.skip("no gpumem command beside this library")
    assert found.returncode == 0 and gpumem.version() in found.stdout
    ran = subprocess.run([sys.executable, "-m", "gpumem", "doctor"], capture_output=True, text=True, timeout=60)
    assert "backend" in ran.stdout, ran.stderr


def test_types_are_marked():
    assert (importlib.resources.files("gpumem") / "py.typed").is_file()


def test_types_allow_what_is_documented():
    for waits in (gpumem.reserve, gpumem.Reservation.grow):
        assert type(None) in typing.get_args(typing.get_type_hints(waits)["timeout"])
    assert typing.SupportsIndex in typing.get_args(typing.get_type_hints(gpumem.malloc)["nbytes"])
    assert issubclass(gpumem.Layout, collections.abc.Iterable)


def test_every_public_name_has_a_docstring():
    for name in gpumem.__all__:
        thing = getattr(gpumem, name)
        assert thing.__doc__ and not (isinstance(thing, type) and thing.__doc__.startswith(name + "(")), name


# ---- arguments

@pytest.mark.parametrize("text, bytes_", [("4GiB", 4 << 30), ("512M", 512 << 20), ("1.5 KiB", 1536), ("17", 17), ("17B", 17), ("0", 0),
                                          (8 * 2**40, 8 << 40), ("2T", 2 << 40), ("4GB", 4 << 30), ("2k", 2048), ("3 mib", 3 << 20), ("5b", 5)])
def test_sizes(text, bytes_):
    assert _values.size(text) == bytes_


@pytest.mark.parametrize("text", ["4GBi", "x", "", "-1", "1.0001", "1e9", "4 Gi", "4\u212a", "\uff14"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="size"):
        _values.size(text)


def test_sizes_out_of_range():
    for value in (-1, 1 << 64):
        with pytest.raises(ValueError):
            gpumem.malloc(value)
    with pytest.raises(TypeError):
        gpumem.malloc(1.5)


def two_values():
    plan = gpumem.Plan()
    plan.op([plan.value(9, kind="input")], [plan.value(9)])
    return plan


@pytest.mark.parametrize("call", [
    lambda: gpumem.malloc("16777216T"), lambda: gpumem.set_limit("16777216T"), lambda: gpumem.malloc(1, 1 << 64),
    lambda: gpumem.malloc_with(1, alignment=(1 << 64) + 256), lambda: gpumem.malloc_with(1, device=1 << 32),
    lambda: gpumem.set_device(1 << 32), lambda: gpumem.stats(1 << 32), lambda: gpumem.dump(1 << 32), lambda: gpumem.trim(0, 1 << 32),
    lambda: gpumem.pointer_info(1 << 64), lambda: gpumem.memset(1 << 64, 0, 1), lambda: gpumem.plan([{"size": 9, "lower": 0, "upper": 1 << 64}]),
    lambda: gpumem.Plan().buffer(9, -1, 3), lambda: gpumem.Plan().buffer(9, 0, 3, offset=1 << 64),
    lambda: gpumem.Plan().buffer(9, 0, 3, gaps=[(0, 1 << 64)]), lambda: gpumem.reserve(1, space=("gpu", 1 << 32)),
    lambda: gpumem.Plan(unit=(1 << 64) + 1), lambda: gpumem.Plan(alignment=(1 << 64) + 1), lambda: two_values().keep(1 << 32),
    lambda: two_values().buffer(9, 0, 3, arena=1 << 32), lambda: two_values().op([1 << 32], []), lambda: two_values().op([], [1 << 32]),
    lambda: two_values().order([1 << 32]), lambda: two_values().view(1, 1 << 32), lambda: two_values().view((1 << 32) + 1, 0),
    lambda: two_values().view(1, 0, 1 << 64), lambda: two_values().in_place(1 << 32, 0, 1), lambda: two_values().in_place(0, 1 << 32, 1),
    lambda: two_values().in_place(0, 0, (1 << 32) + 1), lambda: two_values().resize(1 << 32, 9), lambda: two_values().obstacle(1 << 64, 9),
    lambda: two_values().obstacle(0, 9, 1 << 64), lambda: two_values().obstacle(0, 9, 0, (1 << 64) + 1),
    lambda: two_values().obstacle(0, 9, arena=1 << 32), lambda: two_values().solve(threads=1 << 32),
    lambda: two_values().solve().materialise(1 << 32), lambda: two_values().verify([0, 16], [0, 1 << 32]),
])
def test_what_the_library_has_no_room_for_is_refused_and_not_cut(call):
    with pytest.raises(ValueError, match="is out of range"):
        call()


def test_a_wait_of_more_than_all_time_has_no_end():
    assert [_reserve.milliseconds(t) for t in (0.5, 1e30, None, float("inf"))] == [500, *[_declarations.WAIT_FOREVER] * 3]


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_what_is_no_time_is_refused(seconds):
    with pytest.raises(ValueError, match=f"a timeout of {seconds} seconds"):
        gpumem.reserve(1, timeout=seconds)
    with pytest.raises(ValueError, match=f"a time limit of {seconds} seconds"):
        two_values().solve(time_limit=seconds)


def test_a_nul_is_refused_and_cuts_no_text(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    path = f"{victim}\0.json"
    for call in (gpumem.snapshot, gpumem.record_start, gpumem.add_disk):
        for given in (path, os.fsencode(path)):
            with pytest.raises(ValueError, match="path .* has a NUL character"):
                call(given)
    assert [p.name for p in tmp_path.iterdir()] == ["victim"] and victim.read_text() == "as it was"
    b = gpumem.Buffer(9)
    for call in (lambda: gpumem.arena("a\0b").enter(), lambda: gpumem.Plan().buffer(9, 0, 3, name="a\0b"),
                 lambda: two_values().op([], [], "a\0b"), lambda: gpumem.Plan().arena(name="a\0b")):
        with pytest.raises(ValueError, match="name 'a.*b' has a NUL character"):
            call()
    for call in (b.check, lambda operation: gpumem.check(b, operation)):
        with pytest.raises(ValueError, match="operation 'a.*b' has a NUL character"):
            call("a\0b")


def test_streams_of_others():
    class Torch:
        cuda_stream = 16

    class Cupy:
        ptr = 17

    class Numba:
        handle = ctypes.c_void_p(18)

    class Protocol:
        def __cuda_stream__(self):
            return 0, 19

    assert [_values.stream(s) for s in (None, 5, Torch(), Cupy(), Numba(), Protocol())] == [None, 5, 16, 17, 18, 19]
    with pytest.raises(TypeError, match="is no stream"):
        _values.stream("0")


def test_numbers_of_numpy():
    numpy = pytest.importorskip("numpy")
    with gpumem.Stream() as s:
        handle = numpy.uint64(s.handle)
        p = gpumem.malloc(numpy.uint64(100), handle)
        gpumem.record_stream(numpy.uint64(p), numpy.uint64(2))
        gpumem.free(numpy.uint64(p), handle)
        with gpumem.Buffer(100, stream=handle) as b:
            assert b.stream == s.handle and b._life is None


def test_what_is_no_argument_is_named():
    for call, kind, words in [
        (lambda: gpumem.malloc(-1), ValueError, "size -1 is out of range: it may be 0 to"),
        (lambda: gpumem.malloc(1.5), TypeError, "size 1.5 is no whole number"),
        (lambda: gpumem.Buffer.of([1, 2, 3]), TypeError, "^list is no host memory"),
        (lambda: gpumem.Buffer(8).copy_to([1]), TypeError, "^list is no host memory"),
        (lambda: gpumem.plan([1, 2]), ValueError, "not 1"),
        (lambda: gpumem.sleep("nosuch"), gpumem.Invalid, "the tag 'nosuch'"),
        (lambda: gpumem.wake(12345), gpumem.Invalid, "the tag 12345"),
    ]:
        with pytest.raises(kind, match=words):
            call()


def test_tags():
    assert _values.tag("weights") == _values.tag("weights") != _values.tag("other") and _values.tag(7) == 7 and _values.tag(None) == 0
    b = gpumem.Buffer(100, tag="weights")
    assert gpumem.pointer_info(b.ptr + 50).tag == _values.tag("weights")


def test_malloc_and_free_by_address():
    with gpumem.Stream() as s:
        p = gpumem.malloc("1KiB", s)
        info = gpumem.pointer_info(p)
        assert (info.base, info.requested, info.stream) == (p, 1024, s.handle) and gpumem.usable_size(p) >= 1024
        gpumem.memset(p, 5, 1024, s)
        gpumem.record_stream(p, None)
        gpumem.free(p, s)
        gpumem.free(None)
    q = gpumem.malloc_with(1000, alignment=1 << 16, device=0, single_handle=True)
    assert q % (1 << 16) == 0
    gpumem.free(q)
    with pytest.raises(gpumem.Invalid):
        gpumem.malloc_with(1000, alignment=3)


def test_wrong_ranges():
    b = gpumem.Buffer(100)
    for wrong in (lambda: b.fill(0, offset=50, nbytes=51), lambda: b.copy_from(bytes(101)), lambda: b.copy_to(bytearray(101)),
                  lambda: b.view(26, "int32"), lambda: b.view(1, "int32", offset=97), lambda: gpumem.Buffer(7, dtype="float32"),
                  lambda: gpumem.Buffer(8, shape=3, dtype="float32"), lambda: gpumem.Buffer(shape=(-1,))):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(TypeError):
        gpumem.Buffer()
    with pytest.raises(TypeError):
        gpumem.Buffer(8, dtype=">f4")
    with pytest.raises(ValueError):
        b.copy_to(bytes(10))
    for wrong in (256, -129, 1 << 32):
        with pytest.raises(ValueError, match=f"byte {wrong} is out of range"):
            b.fill(wrong)
        with pytest.raises(ValueError, match=f"byte {wrong} is out of range"):
            gpumem.memset(b, wrong, 1)


@pytest.mark.parametrize("dtype", ["f0", "f1", "f3", "i3", "u16", "c4", "b2", "i999"])
def test_elements_of_no_such_width(dtype):
    with pytest.raises(TypeError, match="none of those that have plain elements"):
        gpumem.Buffer(shape=3, dtype=dtype)


def test_shapes_of_numpy():
    numpy = pytest.importorskip("numpy")
    assert gpumem.Buffer(shape=numpy.prod((2, 3)), dtype="f4").shape == (6,)
    assert gpumem.Buffer(shape=numpy.array([2, 3])).shape == (2, 3)
    for wrong in (2.5, (2, 2.5), numpy.float64(3)):
        with pytest.raises(TypeError):
            gpumem.Buffer(shape=wrong)


def test_buffers_of_arrays():
    numpy = pytest.importorskip("numpy")
    x = numpy.arange(60, dtype="float32").reshape(3, 4, 5)
    b = gpumem.Buffer.of(x)
    assert b.shape == (3, 4, 5) and b.typestr == "<f4" and (b.numpy() == x).all()
    # What is not contiguous is copied; what is read-only too.
    c = gpumem.Buffer(240).copy_from(x.transpose(2, 1, 0))
    assert c.tobytes() == x.transpose(2, 1, 0).tobytes()
    x.flags.writeable = False
    assert (gpumem.Buffer.of(x[1]).numpy() == x[1]).all()
    assert (gpumem.Buffer.of(numpy.zeros((0, 3)))).shape == (0, 3)
    out = numpy.empty((3, 4, 5), dtype="float32")
    assert (b.copy_to(out) == x).all()
    v = b.view((4, 5), offset=80)
    assert v.__cuda_array_interface__["data"][0] == b.ptr + 80 and "(4, 5)" in repr(v)


def test_adopting():
    p = gpumem.malloc(1000)
    b = gpumem.Buffer.adopt(p, shape=(250,), dtype="int32")
    assert b.ptr == p and b.nbytes == 1000 and b.live
    with pytest.raises(ValueError):
        gpumem.Buffer.adopt(p, shape=(251,), dtype="int32")
    with pytest.raises(ValueError):
        gpumem.Buffer.adopt(p + 256)
    del b
    with pytest.raises(gpumem.UnknownPointer):
        gpumem.pointer_info(p)


def test_a_buffer_stands_for_its_address_while_it_is_live():
    b = gpumem.Buffer(1000)
    assert gpumem.usable_size(b) >= 1000
    gpumem.free(b)
    assert not b.live
    # Somebody else is there now, and stays.
    c = gpumem.Buffer(1000)
    assert c.ptr == b.ptr
    for use in (gpumem.free, gpumem.usable_size, gpumem.pointer_info, gpumem.escape, gpumem.hold, gpumem.Buffer.adopt,
                lambda b: b.record_stream(None), lambda b: b.device, lambda b: gpumem.memset(b, 0, 10), lambda b: gpumem.memcpy(c, b, 10)):
        with pytest.raises(gpumem.UseAfterFree):
            use(b)
    assert c.live and gpumem.Buffer.adopt(c).ptr == c.ptr


def test_a_view_is_as_live_as_its_buffer():
    b = gpumem.Buffer(4096)
    v = b.view(4096)
    assert gpumem.usable_size(v) >= 4096
    with pytest.raises(TypeError, match="owns nothing"):
        gpumem.free(v)
    with gpumem.arena("step") as arena:
        inner = gpumem.Buffer(100)
        assert arena.exit([inner.view(50, offset=50)]).kept == 1 and inner.live
    b.free()
    # Somebody else is there now, and stays as it is.
    with gpumem.arena("step") as arena:
        c = gpumem.Buffer(4096).fill(1)
        assert c.ptr == v.ptr
        for use in (gpumem.usable_size, gpumem.escape, gpumem.Buffer.adopt, lambda v: gpumem.memset(v, 9, 4096), lambda v: v.check(),
                    lambda v: gpumem.memcpy(c, v, 10), lambda v: v.__cuda_array_interface__, lambda v: v.__dlpack__()):
            with pytest.raises(gpumem.UseAfterFree):
                use(v)
        assert c.live and c.tobytes() == b"\1" * 4096
        assert not v.live and arena.exit(v).unknown == 1 and not c.live


def test_only_live_memory_and_null_have_a_size():
    with pytest.raises(gpumem.UnknownPointer):
        gpumem.usable_size(5)
    p = gpumem.malloc(1000)
    gpumem.free(p)
    with pytest.raises(gpumem.DoubleFree):
        gpumem.usable_size(p)
    p = gpumem.malloc_with(0, evictable=True)
    gpumem.evict(p)
    assert gpumem.usable_size(p) > 0
    gpumem.free(p)
    # What failed before says nothing of it.
    assert gpumem.usable_size(None) == 0


def test_a_destroyed_stream_is_not_the_default_stream():
    s = gpumem.Stream()
    s.destroy()
    for use in (s.synchronize, lambda: s.wait(None), lambda: gpumem.malloc(1, s), lambda: gpumem.synchronize(s)):
        with pytest.raises(ValueError, match="no stream any more"):
            use()
    s.destroy()


def test_a_buffer_keeps_its_streams_until_it_is_freed():
    def made():
        return gpumem.Buffer.of(b"abc", stream=gpumem.Stream())

    b = made()
    assert b.tobytes() == b"abc" and b.fill(7).tobytes() == b"\7" * 3
    with gpumem.Stream() as s:
        handle = s.handle
        b.record_stream(s)
    gpumem.synchronize(handle)
    own = b.stream
    b.free()
    for gone in (own, handle):
        with pytest.raises(gpumem.InvalidStream):
            gpumem.synchronize(gone)


def test_a_buffer_keeps_the_stream_objects_of_others():
    class Stream:
        def __init__(self, stream):
            self.stream = stream

        def __cuda_stream__(self):
            return 0, self.stream.handle

    with gpumem.Stream() as s:
        for use in (lambda other: gpumem.Buffer(10, stream=other), lambda other: gpumem.Buffer.adopt(gpumem.malloc(10, s), stream=other),
                    lambda other: (b := gpumem.Buffer(10), b.record_stream(other))[0]):
            other = Stream(s)
            kept = weakref.ref(other)
            b = use(other)
            del other
            assert kept() is not None
            b.free()
            assert kept() is None


def test_a_stream_that_cannot_be_destroyed_says_so():
    with gpumem.Stream() as s:
        graph = ctypes.c_void_p()
        handle = s.handle
        assert C.gpumem_sim_capture_begin(handle, 1) == 0
        with pytest.raises(gpumem.Capturing):
            s.destroy()
        assert C.gpumem_sim_capture_end(handle, ctypes.byref(graph)) == 0
        assert C.gpumem_sim_graph_destroy(graph) == C.gpumem_stream_destroy(handle) == 0


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_owners_are_not_copied(copied):
    # The end of the copy would take it from the original.
    with gpumem.Buffer(10) as b, gpumem.Stream() as s, gpumem.reserve(MIB) as r, gpumem.arena("step") as a:
        for owner in (b, s, r, a, gpumem.Plan(), gpumem.capture(s)):
            with pytest.raises(TypeError, match=f"this {type(owner).__name__} owns"):
                copied(owner)
        gc.collect()
        assert b.live and gpumem.synchronize(s) is None


def test_sharing_by_descriptor():
    b = gpumem.Buffer(5000, exportable=True).fill(7)
    gpumem.synchronize()
    fd, before = gpumem.export_fd(b), gpumem.stats().allocations
    try:
        for wrong, options in ((ValueError, {"shape": 5001}), (TypeError, {"dtype": "i3"}), (TypeError, {"shape": 2.5})):
            with pytest.raises(wrong):
                gpumem.import_fd(fd, 5000, **options)
        with pytest.raises(ValueError, match="out of range"):
            gpumem.import_fd(fd, 5000, 1 << 32)
        assert gpumem.stats().allocations == before
        c = gpumem.import_fd(fd, 5000)
    finally:
        os.close(fd)
    c.fill(9, nbytes=10)
    gpumem.synchronize()
    assert b.tobytes() == b"\t" * 10 + b"\7" * 4990 and c.ptr != b.ptr


# ---- the order of streams

# The host device does work late, and counts what it finds unordered.
RACES = """
import ctypes, gpumem, sys, threading
from gpumem._library import C

N = 1 << 20

def races():
    for device in range(gpumem.device_count()):
        gpumem.set_device(device)
        gpumem.synchronize(device=True)
    gpumem.set_device(0)
    found = ctypes.c_uint64()
    assert C.gpumem_sim_reports_get(ctypes.byref(found)) == 0
    return found.value

def overwrite(stream):
    # Gets what was freed last, if it may.
    gpumem.Buffer(N, stream=stream).fill(9)
"""


def in_simulation(source, **environment):
    python(RACES + source, GPUMEM_HOST_MODE="simulate", PYTHONPATH=os.pathsep.join(sys.path), **environment)


def test_memory_is_not_reused_under_work_on_another_stream():
    in_simulation("""
for _ in range(10):
    s, t = gpumem.Stream(), gpumem.Stream()
    b, c = gpumem.Buffer.of(b"a" * N, stream=s), gpumem.Buffer(N, stream=t)
    c.copy_from(b)
    del b
    overwrite(s)
    assert c.tobytes() == b"a" * N
    gpumem.synchronize(device=True)
    c.fill(1, stream=s)
    del c
    overwrite(t)
    gpumem.synchronize(device=True)
    # What others made is freed in the order of its own stream.
    p = gpumem.malloc(N, s)
    gpumem.synchronize(device=True)
    gpumem.Buffer.adopt(p, stream=t).fill(1)
    overwrite(s)
assert races() == 0
""")


def test_memory_is_not_reused_under_a_consumers_work():
    in_simulation("""
sys.path.insert(0, TESTS)
import test_package
for view in (False, True):
    for _ in range(10):
        s, t = gpumem.Stream(), gpumem.Stream()
        b = gpumem.Buffer(N, stream=s).fill(1)
        made, delete = test_package.consume((b.view(N) if view else b).__dlpack__(stream=t if view else t.handle), False)
        del b
        gpumem.memset(made.dl_tensor.data, 2, N, t)
        delete()
        overwrite(s)
        gpumem.synchronize(device=True)
# Its own stream needs no announcement, and -1 asks for none.
b = gpumem.Buffer(N, stream=s)
b.__dlpack__(stream=s), b.__dlpack__(stream=-1)
assert b._others is None and races() == 0
""".replace("TESTS", repr(str(pathlib.Path(__file__).parent))))


def test_a_threads_own_stream_is_another_on_each_thread():
    in_simulation("""
own = 2
b = gpumem.Buffer(N, stream=own)
gpumem.synchronize(device=True)
thread = threading.Thread(target=lambda: b.fill(1))
thread.start()
thread.join()
del b, thread
overwrite(own)
assert races() == 0
""")


def test_a_consumer_waits_for_another_threads_own_stream():
    in_simulation("""
own = 2
for _ in range(10):
    made, read, one = [], threading.Event(), threading.Event()
    def work():
        made.append(gpumem.Buffer(N, stream=own).fill(7))
        one.set()
        read.wait()
    thread = threading.Thread(target=work)
    thread.start()
    one.wait()
    c = gpumem.Buffer(N, stream=own)
    made[0].__dlpack__(stream=own)
    gpumem.memcpy(c, made[0], N, own)
    assert made[0].__cuda_array_interface__["stream"] == 1
    gpumem.synchronize(own)
    read.set()
    thread.join()
assert races() == 0
""")


def test_what_is_adopted_comes_after_its_own_stream():
    in_simulation("""
for _ in range(10):
    s = gpumem.Stream()
    p = gpumem.malloc(N, s)
    gpumem.memset(p, 1, N, s)
    b, c = gpumem.Buffer.adopt(p), gpumem.Buffer(N)
    assert b.stream is None and b.__cuda_array_interface__["stream"] == 1
    b.__dlpack__(stream=1)
    gpumem.memcpy(c, p, N)
    gpumem.synchronize()
    b.fill(2)
    assert b.tobytes() == b"\\2" * N
    p = gpumem.malloc(N, s)
    gpumem.memset(p, 1, N, s)
    del s, b
    assert gpumem.Buffer.adopt(p).tobytes() == b"\\1" * N
assert races() == 0
""")


def test_without_a_pool_work_on_another_stream_is_waited_for():
    in_simulation("""
s, t = gpumem.Stream(), gpumem.Stream()
for _ in range(10):
    b, c = gpumem.Buffer.of(b"a" * N, stream=s), gpumem.Buffer(N, stream=t)
    c.copy_from(b)
    waits = gpumem.driver_calls()["stream_sync"]
    b.fill(1)
    assert gpumem.driver_calls()["stream_sync"] == waits
    t.wait(s)
    b.fill(1, stream=t)
    assert gpumem.driver_calls()["stream_sync"] == waits + 1
assert races() == 0
""", GPUMEM_POOL="off")


def test_without_a_pool_a_consumers_work_is_waited_for():
    in_simulation("""
sys.path.insert(0, TESTS)
import test_package
s, t = gpumem.Stream(), gpumem.Stream()
waits = lambda: gpumem.driver_calls()["stream_sync"]
for view in (False, True):
    for frees in (False, True):
        b = gpumem.Buffer(N, stream=s).fill(1)
        made, delete = test_package.consume((b.view(N) if view else b).__dlpack__(stream=t), False)
        gpumem.memset(made.dl_tensor.data, 2, N, t)
        before = waits()
        if frees:
            b.free()
        del b
        delete()
        assert waits() == before + 1
b = gpumem.Buffer(N, stream=s)
b.__dlpack__(stream=s), b.__dlpack__(stream=-1)
before = waits()
b.free()
assert waits() == before and races() == 0
""".replace("TESTS", repr(str(pathlib.Path(__file__).parent))), GPUMEM_POOL="off")


def test_a_buffers_default_stream_is_of_its_device():
    in_simulation("""
a = gpumem.Buffer(N).fill(1)
b = gpumem.Buffer(N, device=1).fill(2)
gpumem.set_device(1)
assert a.tobytes() == b"\\1" * N and b.tobytes() == b"\\2" * N
a.fill(3)
assert gpumem.current_device() == 1
gpumem.set_device(0)
a.fill(4)
with gpumem.Stream() as s:
    gpumem.set_device(1)
    a.__dlpack__(stream=s.handle)
    a.fill(5, stream=s)
    a.__cuda_array_interface__
    gpumem.synchronize(s)
    gpumem.set_device(0)
    assert a.tobytes() == b"\\5" * N
assert races() == 0
""", GPUMEM_HOST_DEVICES="2")


def test_a_default_stream_of_another_device_is_another_stream():
    in_simulation("""
for _ in range(10):
    a, b = gpumem.Buffer(N), gpumem.Buffer(N, device=1)
    gpumem.synchronize()
    b.copy_from(a)
    del a
    overwrite(None)
    a = gpumem.Buffer(N)
    gpumem.synchronize()
    gpumem.set_device(1)
    a.fill(1, stream=1)
    gpumem.set_device(0)
    del a
    overwrite(None)
assert races() == 0
""", GPUMEM_HOST_DEVICES="2")


# ---- what other libraries take

def test_cuda_array_interface():
    b = gpumem.Buffer(shape=(2, 3), dtype="int16")
    i = b.__cuda_array_interface__
    assert i == {"shape": (2, 3), "typestr": "<i2", "data": (b.ptr, False), "strides": None, "version": 3, "stream": 1}
    with gpumem.Stream() as s:
        assert gpumem.Buffer(8, stream=s).__cuda_array_interface__["stream"] == s.handle
    assert gpumem.Buffer(0).__cuda_array_interface__["data"] == (0, False)


# A capsule has the address only, and may outlive its use.
USED = [ctypes.c_char_p(b"used_" + name) for name in (_dlpack.PLAIN, _dlpack.VERSIONED)]


def consume(capsule, versioned):
    """What a consumer of a DLPack capsule does: takes the structure, renames the capsule, and
    returns how to delete it."""
    kind, name = (_dlpack.Versioned, _dlpack.VERSIONED) if versioned else (_dlpack.Managed, _dlpack.PLAIN)
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    for function in (python.PyCapsule_GetPointer, python.PyCapsule_SetName):
        function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    at = python.PyCapsule_GetPointer(id(capsule), name)
    assert python.PyCapsule_SetName(id(capsule), USED[versioned]) == 0
    made = kind.from_address(at)
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(made.deleter)
    return made, lambda: delete(at)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack(versioned):
    b = gpumem.Buffer(shape=(2, 3), dtype="float32")
    ptr, before = b.ptr, gpumem.stats().allocations
    capsule = b.__dlpack__(max_version=(1, 0) if versioned else None)
    made, delete = consume(capsule, versioned)
    t = made.dl_tensor
    assert t.data == ptr and t.ndim == 2 and t.byte_offset == 0
    assert (t.dtype.code, t.dtype.bits, t.dtype.lanes) == (2, 32, 1)
    assert list((ctypes.c_int64 * 2).from_address(t.shape)) == [2, 3] and list((ctypes.c_int64 * 2).from_address(t.strides)) == [3, 1]
    assert (t.device.device_type, t.device.device_id) == b.__dlpack_device__()
    if versioned:
        assert (made.major, made.flags) == (1, 0)
    # The consumer keeps the memory alive until it deletes the tensor, whatever becomes of buffer
    # and capsule.
    del b, capsule
    assert gpumem.stats().allocations == before and len(_dlpack._out) == 1
    delete()
    assert gpumem.stats().allocations == before - 1 and not _dlpack._out


def test_dlpack_unused():
    before = gpumem.stats().allocations
    b = gpumem.Buffer(100)
    capsule = b.__dlpack__()
    del b
    gc.collect()
    assert gpumem.stats().allocations == before + 1
    del capsule
    gc.collect()
    assert gpumem.stats().allocations == before and not _dlpack._out
    with pytest.raises(BufferError):
        gpumem.Buffer(1).__dlpack__(copy=True)
    with pytest.raises(BufferError):
        gpumem.Buffer(1).__dlpack__(dl_device=(1, 0))


def test_dlpack_consumed_while_looked_at():
    # The consumer takes the tensor, and drops the capsule, between any two steps of the look.
    b = gpumem.Buffer(100)
    ptr, ident, capsules, deletes = b.ptr, b.id, [b.__dlpack__()], []
    del b

    class Between:
        def PyCapsule_IsValid(self, *arguments):
            valid = _dlpack_python.PyCapsule_IsValid(*arguments)
            if capsules:
                deletes.append(consume(capsules.pop(), False)[1])
            return valid

    _dlpack_python, _dlpack._python = _dlpack._python, Between()
    try:
        gc.collect()
    finally:
        _dlpack._python = _dlpack_python
    deletes += [consume(c, False)[1] for c in capsules]
    capsules.clear()
    gc.collect()
    assert gpumem.pointer_info(ptr).id == ident
    deletes[0]()
    with pytest.raises(gpumem.Error):
        gpumem.pointer_info(ptr)


def test_dlpack_deleted_with_an_exception_set(tmp_path):
    # As PyTorch does with a tensor that it refuses.
    if shutil.which("cc") is None:
        pytest.skip("no compiler")
    source = "void refuse(void (*set)(void *, const char *), void *kind, void (*delete_)(void *), void *at) { set(kind, \"refused\"); delete_(at); }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", tmp_path / "refuse.so"], input=source, text=True, check=True)
    refuse = ctypes.PyDLL(str(tmp_path / "refuse.so")).refuse
    freed, said = [], []
    before = gpumem.stats().allocations
    made, _ = consume(gpumem.Buffer(100).__dlpack__(), False)
    with mock.patch.object(sys, "unraisablehook", said.append), \
            mock.patch.object(_dlpack._give_back, "__defaults__", (_dlpack._out, freed.append)):
        refuse(ctypes.cast(ctypes.pythonapi.PyErr_SetString, ctypes.c_void_p), ctypes.c_void_p(id(KeyError)),
               ctypes.c_void_p(made.deleter), ctypes.c_void_p(ctypes.addressof(made)))
    assert freed == [ctypes.addressof(made)] and gpumem.stats().allocations == before
    assert [str(s.exc_value) for s in said] == ["'refused'"]
    _dlpack._libc.free(freed[0])


def test_dlpack_refuses_what_its_fields_do_not_hold():
    before = gpumem.stats().allocations
    for shape, dtype in (((1,), "c32"), ((1 << 63, 0), "u1")):
        with pytest.raises(BufferError, match="255 bits"):
            gpumem.Buffer(shape=shape, dtype=dtype).__dlpack__()
    assert gpumem.stats().allocations == before


def test_dlpack_refused():
    # NumPy has no memory of devices: it drops the capsule with its exception set, which stays.
    numpy = pytest.importorskip("numpy")
    before = gpumem.stats().allocations
    for _ in range(3):
        b = gpumem.Buffer(100)
        # A RuntimeError before NumPy 2.
        with pytest.raises((BufferError, RuntimeError), match="Unsupported device"):
            numpy.from_dlpack(b)
        del b
        # With the next export, if no collection comes before.
        assert len(_dlpack._out) <= 1
    gc.collect()
    assert gpumem.stats().allocations == before and not _dlpack._out


def test_dlpack_waits_for_the_consumers_stream():
    with gpumem.Stream() as s:
        b = gpumem.Buffer(100, stream=s)
        calls = gpumem.driver_calls()
        b.__dlpack__(stream=1)
        after = gpumem.driver_calls()
        assert after["stream_wait"] == calls["stream_wait"] + 1
        b.__dlpack__(stream=-1)
        assert gpumem.driver_calls()["stream_wait"] == after["stream_wait"]
        # The array API's: no stream stands for the legacy default one.
        b.__dlpack__()
        assert gpumem.driver_calls()["stream_wait"] == after["stream_wait"] + 1
        b.free()


# ---- the end of the interpreter

def test_nothing_is_said_at_exit():
    python("""
import atexit, gpumem, sys, threading
b = gpumem.Buffer(100)
class Holder: pass
h = Holder(); h.self = h; h.b = gpumem.Buffer(100)
sys.modules["kept"] = gpumem.Buffer(10)
atexit.register(lambda b: b.free(), gpumem.Buffer(5))
c = b.__dlpack__(); d = b.__dlpack__(max_version=(1, 1))
s = gpumem.Stream(); p = gpumem.Plan(); a = gpumem.Arena().enter(); e = gpumem.Buffer(4)
l = gpumem.plan([(1, 0, 1)])
""", PYTHONPATH=os.pathsep.join(sys.path))


def test_a_consumer_that_outlives_the_interpreter():
    # Its deleter is called by a destructor of the C library's, when there is no Python any more.
    source = """
import ctypes, gpumem, sys
sys.path.insert(0, TESTS)
import test_package
b = gpumem.Buffer(100)
made, delete = test_package.consume(b.__dlpack__(), False)
import atexit
# Registered first of all, this runs last, after gpumem's own.
class Late:
    def __del__(self, made=made, address=ctypes.addressof(made), kind=ctypes.CFUNCTYPE(None, ctypes.c_void_p)):
        kind(made.deleter)(address)
sys.modules["late"] = Late()
""".replace("TESTS", repr(str(pathlib.Path(__file__).parent)))
    python(source, PYTHONPATH=os.pathsep.join(sys.path))


def test_fork():
    python("""
import gpumem, os, sys
b = gpumem.Buffer(100)
p, r = gpumem.Plan(), gpumem.reserve(100)
pid = os.fork()
if pid == 0:
    try: gpumem.Buffer(100)
    except gpumem.Forked: pass
    else: os._exit(1)
    for use in (b.check, b.__dlpack__, lambda: b.fill(1), lambda: b.device, lambda: b.__cuda_array_interface__, b.free, gpumem.stats):
        try: use()
        except gpumem.Forked: pass
        else: os._exit(2)
    if b.live or b.view(4).live or b.nbytes != 100 or not repr(b).endswith(", gone)"): os._exit(3)
    del b, p, r
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert b.live and r.info().promised >= 100
""", PYTHONPATH=os.pathsep.join(sys.path))


# ---- the planner

ROWS = [(100, 0, 2), (200, 1, 3), (100, 2, 4), (50, 0, 4)]


def no_two_overlap(rows, layout):
    for i, (bytes_i, lower_i, upper_i) in enumerate(rows):
        assert layout[i] + bytes_i <= layout.nbytes
        for j, (bytes_j, lower_j, upper_j) in enumerate(rows[:i]):
            if lower_i < upper_j and lower_j < upper_i:
                assert layout[i] + bytes_i <= layout[j] or layout[j] + bytes_j <= layout[i]


def test_plans_of_lists():
    for rows in (ROWS, [list(r) for r in ROWS], [dict(zip(("size", "lower", "upper"), r)) for r in ROWS],
                 [dict(zip(("bytes", "lower", "upper"), r), name=f"b{i}", alignment=64) for i, r in enumerate(ROWS)],
                 {"bytes": [r[0] for r in ROWS], "lower": [r[1] for r in ROWS], "upper": [r[2] for r in ROWS]}):
        layout = gpumem.plan(rows)
        no_two_overlap(ROWS, layout)
        assert len(layout) == 4 and layout.stats.status == "optimal" and layout.stats.total_unshared >= 450
    assert gpumem.plan(ROWS).nbytes == 350 == gpumem.plan(ROWS).stats.lower_bound
    assert gpumem.plan(ROWS, reuse=False).nbytes == 450
    assert gpumem.plan([]).nbytes == 0


@pytest.mark.parametrize("rows", [[(100, 0, 2, 5)], [(100, 0)], [(100, 0, 2), (7, 1, 2, 300)], ["abcd"]])
def test_plans_of_rows_of_another_length(rows):
    # A fourth number would be left out without a word.
    with pytest.raises(ValueError, match="a buffer is"):
        gpumem.plan(rows)


def test_plans_of_arrays():
    numpy = pytest.importorskip("numpy")
    named = numpy.array(ROWS, dtype=[("size", "u4"), ("lower", "i8"), ("upper", "i4")])
    for table in (numpy.array(ROWS), numpy.array(ROWS, dtype="uint32"), named):
        layout = gpumem.plan(table)
        no_two_overlap(ROWS, layout)
        assert layout.numpy().tolist() == layout.offsets
    with pytest.raises(TypeError, match="float64"):
        gpumem.plan(numpy.array(ROWS, dtype=float))
    with pytest.raises(ValueError, match="negative"):
        gpumem.plan(numpy.array([(-1, 0, 1)]))
    with pytest.raises(ValueError, match="three columns"):
        gpumem.plan(numpy.zeros((3, 4), dtype=int))


def test_plans_of_tables():
    pandas = pytest.importorskip("pandas")
    no_two_overlap(ROWS, gpumem.plan(pandas.DataFrame(ROWS, columns=["bytes", "lower", "upper"])))
    with pytest.raises(ValueError, match="columns"):
        gpumem.plan(pandas.DataFrame(ROWS, columns=["a", "lower", "upper"]))


def test_what_a_layout_shows():
    layout = gpumem.plan([dict(nbytes=n, lower=a, upper=b, name=f"buffer{n}") for n, a, b in ROWS], alignment=16)
    assert layout._repr_svg_().startswith("<svg") and layout.svg().rstrip().endswith("</svg>")
    assert layout.csv().splitlines()[0].startswith("id,lower,upper,size") and len(layout.csv().splitlines()) == 5
    assert "buffer200" in layout.report() and "4 buffers" in repr(layout)
    assert set(layout.critical()) <= {0, 1, 2, 3} and layout.plan.verify(layout.offsets) == layout.nbytes
    with pytest.raises(gpumem.Invalid):
        layout.plan.verify([0, 0, 0, 0])
    for arenas in ([0] * 3, [0] * 5, []):
        with pytest.raises(ValueError, match=f"4 offsets, but {len(arenas)} arenas"):
            layout.plan.verify(layout.offsets, arenas)
    assert layout.plan.verify(layout.offsets, layout.arenas) == layout.nbytes
    whole = layout.materialise()
    assert whole.nbytes == layout.nbytes and whole.view(25, "int32", layout[0]).ptr == whole.ptr + layout[0]
    with pytest.raises(gpumem.OutOfMemory):
        gpumem.plan(ROWS, capacity=300)


def test_a_part_of_a_layout():
    p = gpumem.Plan()
    p.buffer(100, 0, 1)
    p.value(100)  # Nothing uses it, so it has no slot.
    layout = p.solve()
    assert layout[1] is None and layout[0:] == layout.offsets == [0, None] and layout[-1:] == [None]


def test_plans_of_graphs():
    p = gpumem.Plan(alignment=1)
    x, y, z, v = p.value(100, kind="input"), p.value(100), p.value(100, kind="output"), p.value(50)
    first = p.op([x], [y], "relu")
    p.view(v, y, 10)
    p.op([v], [z], "sum")
    p.in_place(first, x, y)
    layout = p.solve(effort="fast")
    assert layout[v] == layout[y] + 10 and layout[z] is not None
    p.keep(y)
    p.resize(z, 300)
    assert p.solve(from_last=True).nbytes >= layout.nbytes
    with pytest.raises(ValueError, match="no kind"):
        p.value(1, kind="weight")
    with pytest.raises(ValueError, match="no effort"):
        p.solve(effort="all")


# ---- reservations, moves

def test_the_limit_of_promises():
    try:
        gpumem.set_space_limit("gpu", "1GiB")
        gpumem.reserve("1GiB").release()
        for limit, to_reserve in [("1GiB", "2GiB"), (0, 1)]:
            gpumem.set_space_limit(("gpu", 0), limit)
            with pytest.raises(gpumem.OutOfMemory, match="space_limit_set"):
                gpumem.reserve(to_reserve)
        with pytest.raises(gpumem.Invalid):
            gpumem.set_space_limit("gpu", 1 << 60)
        with pytest.raises(ValueError, match="no tier"):
            gpumem.set_space_limit("tape", 1)
    finally:
        gpumem.set_space_limit("gpu", None)
    gpumem.reserve("2GiB").release()


def test_waits_end():
    gpumem.set_limit(0)
    with gpumem.reserve("32GiB"):
        with pytest.raises(gpumem.TimedOut):
            gpumem.reserve("48GiB", timeout=0.05)
        with pytest.raises(gpumem.OutOfMemory):
            gpumem.reserve("48GiB")
        assert gpumem.reserve("48GiB", least="1GiB").nbytes >= 1 << 30
    with pytest.raises(ValueError):
        gpumem.reserve(1, timeout=-1)
    with pytest.raises(ValueError, match="no policy"):
        gpumem.reserve(1, policy="hope")
    with gpumem.reserve(MIB, policy="increase") as r:
        b = gpumem.Buffer(3 * MIB)
        assert r.info().promised >= 3 * MIB and r.info().space == ("gpu", 0)
        b.free()


def test_a_reservation_may_end_and_change_within_its_block():
    with gpumem.reserve(MIB) as r:
        r.grow(MIB)
        assert r.nbytes == 2 * MIB and "2 MiB" in repr(r)
        r.shrink(MIB)
        assert r.nbytes == r.info().promised == MIB
        r.release()
    with pytest.raises(KeyError):
        with gpumem.reserve(MIB) as r:
            r.release()
            raise KeyError("the body's own")
    with pytest.raises(gpumem.Invalid, match="released"):
        r.release()


def test_a_reservation_that_is_dropped_ends():
    for use in (gpumem.Reservation.info, gpumem.Reservation.attach_thread):
        use(gpumem.reserve("48GiB"))
        gc.collect()
    gpumem.reserve("48GiB").release()


def test_a_thread_is_detached_from_what_it_is_attached_to():
    with gpumem.reserve(MIB) as r, gpumem.reserve(MIB, space="host") as other, gpumem.Stream() as s:
        with pytest.raises(gpumem.Invalid, match="not attached"):
            other.detach_thread()
        second = gpumem.reserve(MIB)
        with pytest.raises(gpumem.Invalid, match="not attached"):
            second.detach_thread()
        with gpumem.Buffer(1000, stream=s):
            assert r.info().drawn > 0
        r.detach_thread()
        with gpumem.Buffer(1000, stream=s):
            assert r.info().drawn == 0
        second.release()


def test_a_block_that_cannot_begin_promises_nothing():
    with gpumem.reserve(MIB):
        with pytest.raises(gpumem.Invalid, match="attached"):
            with gpumem.reserve("20GiB") as r:
                pass
        gpumem.reserve("20GiB").release()


def test_ctrl_c_ends_a_wait():
    python("""
import gpumem, os, signal, threading, time

def everything():
    return gpumem.reserve(1 << 60, least=1)

def interrupted(wait):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    try:
        wait()
    except KeyboardInterrupt:
        assert time.monotonic() - begin < 4
    else:
        assert False

# A program that was started in the background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
small, held = gpumem.reserve(1 << 20), everything()
interrupted(lambda: gpumem.reserve("1GiB", timeout=5))
interrupted(lambda: small.grow("1GiB", timeout=5))
size = held.nbytes

def granted(*_):
    held.release()
    raise KeyboardInterrupt

# Granted in the same moment: nobody has it.
signal.signal(signal.SIGINT, granted)
interrupted(lambda: gpumem.reserve("1GiB", timeout=5))
held = everything()
interrupted(lambda: small.grow("1GiB", timeout=5))
assert everything().nbytes == size and small.info().promised == small.nbytes == 1 << 20
""", PYTHONPATH=os.pathsep.join(sys.path))


def test_a_wait_is_for_the_current_device():
    python("""
import gpumem
gpumem.set_device(1)
with gpumem.reserve("1MiB", timeout=5) as r:
    assert r.info().space == ("gpu", 1)
""", GPUMEM_HOST_DEVICES="2", PYTHONPATH=os.pathsep.join(sys.path))


def test_sleep_and_wake(tmp_path):
    weights = [gpumem.Buffer(3 * MIB, evictable=True, tag="weights").fill(i) for i in range(3)]
    pointers = [w.ptr for w in weights]
    seen = []
    report = gpumem.sleep("weights", progress=lambda done, total: seen.append((done, total)))
    assert (report.moved, report.moved_bytes) == (3, 9 * MIB) and seen[-1] == (seen[-1][1], seen[-1][1])
    assert gpumem.location(weights[0]).tier == "host" and gpumem.stats().mapped < 9 * MIB
    report = gpumem.wake("weights")
    assert report.moved == 3 and pointers == [w.ptr for w in weights]
    assert [w.tobytes() == bytes([i]) * 3 * MIB for i, w in enumerate(weights)] == [True] * 3
    space = gpumem.add_disk(tmp_path)
    gpumem.evict(weights[1], space)
    assert gpumem.location(weights[1]).tier == "disk"
    with gpumem.held(weights[1]):
        assert gpumem.location(weights[1]).tier == "gpu" and gpumem.location(weights[1]).holds == 1
        with pytest.raises(gpumem.Invalid):
            gpumem.evict(weights[1])
    assert weights[1].tobytes() == b"\1" * 3 * MIB
    # Cancelled, and an exception of the callback's own: the memory is where it was.
    with pytest.raises(gpumem.Cancelled):
        gpumem.evict(weights[0], progress=lambda done, total: False)
    with pytest.raises(ZeroDivisionError):
        gpumem.evict(weights[0], progress=lambda done, total: 1 // 0)
    assert gpumem.location(weights[0]).tier == "gpu"
    with pytest.raises(ValueError, match="no tier"):
        gpumem.evict(weights[0], "tape")
    with pytest.raises(gpumem.Invalid):
        gpumem.sleep("nobody")


def test_a_block_that_frees_what_it_holds_may_raise():
    with pytest.raises(KeyError), gpumem.held(gpumem.Buffer(MIB, evictable=True)) as brief:
        brief.free()
        raise KeyError


def test_captures_solve():
    with gpumem.Stream() as s:
        with gpumem.capture(s, record=True) as first:
            a = gpumem.Buffer(MIB, stream=s)
            b = gpumem.Buffer(2 * MIB, stream=s)
            a.free()
            c = gpumem.Buffer(MIB, stream=s)
        length, peak = first.solve()
        assert length >= peak >= 3 * MIB
        with gpumem.capture(s, layout=first) as second:
            d = gpumem.Buffer(MIB, stream=s)
        assert second.stats().planned == length and second.stats().references == 1
        for one in (b, c, d):
            one.free()
        second.release()
        first.release()


def test_stats_print_well():
    b, before = gpumem.Buffer(1000), gpumem.stats()
    text = str(before)
    assert f"{before.allocations} allocations, " in text and " asked for" in text and "mapped" in text
    assert "0x" in gpumem.dump() and sum(gpumem.driver_calls().values()) > 0
    free, total = gpumem.device_memory()
    assert 0 < free <= total and gpumem.device_count() >= 1
    gpumem.reset_peak()
    assert C.gpumem_version() > 0
    del b


def test_a_part_of_a_program_is_recorded(tmp_path):
    gc.collect()  # Of what other tests have left, nothing is freed meanwhile.
    with gpumem.recording(tmp_path / "block.gmrec", stacks=4):
        gpumem.free(gpumem.malloc(1000))
    assert (tmp_path / "block.gmrec").read_bytes().startswith(b"gpumemRC")
    gpumem.record_start(str(tmp_path / "part.gmrec"))
    gpumem.free(gpumem.malloc(1000))
    with pytest.raises(gpumem.Invalid, match="under way"):
        gpumem.record_start(tmp_path / "other.gmrec")
    events, lost = gpumem.record_stop()
    assert events >= 2 and lost == 0 and not (tmp_path / "other.gmrec").exists()
    with pytest.raises(gpumem.Invalid, match="no recording"):
        gpumem.record_stop()
    gpumem.record_start(tmp_path / "gone.gmrec")
    (tmp_path / "gone.gmrec").unlink()
    gpumem.free(gpumem.malloc(1000))
    with pytest.raises(OSError, match="gone.gmrec cannot be written: it was removed; .* has 0 events, and 2 are lost"):
        gpumem.record_stop()
    with pytest.raises(OSError, match="/dev/full cannot be written: No space left"):
        gpumem.snapshot("/dev/full")
    with pytest.raises(ValueError, match="stacks 257"):
        gpumem.record_start(tmp_path / "deep.gmrec", stacks=257)
    b = gpumem.Buffer(12345)
    gpumem.snapshot(tmp_path / "now.json")
    assert json.loads((tmp_path / "now.json").read_text()) and "12345" in (tmp_path / "now.json").read_text()
    del b


def test_a_block_ends_no_recording_but_its_own(tmp_path):
    with gpumem.recording(tmp_path / "own.gmrec"):
        gpumem.record_stop()
        gpumem.record_start(tmp_path / "other.gmrec")
    gpumem.record_stop()


def test_a_recording_may_end_within_its_block(tmp_path):
    with gpumem.recording(tmp_path / "part.gmrec"):
        gpumem.Buffer(100).free()
        assert gpumem.record_stop()[0] > 0
    with pytest.raises(gpumem.Invalid):
        gpumem.record_stop()


def test_a_buffer_that_is_gone_keeps_nothing():
    with gpumem.arena("step") as arena:
        gone = gpumem.Buffer(4096)
        gone.free()
        other = gpumem.Buffer(4096)
        assert other.ptr == gone.ptr
        report = arena.exit([gone, [gone]])
    assert (report.freed, report.kept, report.unknown + report.duplicate) == (1, 0, 2) and not other.live


def test_the_keep_list_may_fail():
    arena = gpumem.arena("step", keep=lambda: [object()])
    with pytest.raises(TypeError, match="no device address"):
        with arena:
            b = gpumem.Buffer(100)
    assert not arena.open and not b.live and gpumem.current_arena() is None


def test_a_failed_keep_list_is_reported_as_it_ended():
    with pytest.raises(ZeroDivisionError):
        with gpumem.arena("step", keep=lambda: 1 / 0) as arena:
            b = gpumem.Buffer(100)
    assert (arena.report.freed, arena.report.freed_bytes) == (1, 100) and not b.live


@pytest.mark.parametrize("why", [KeyError, None])
def test_a_thread_leaves_what_an_attached_block_left_open(why):
    with gpumem.arena("step") as step:
        inner = []

        def work():
            with pytest.raises(why or gpumem.Invalid):
                with step.attached():
                    inner.append(gpumem.arena("inner").enter())
                    if why is not None:
                        raise why("the body's own")
            assert gpumem.current_arena() is None

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert inner[0].open
        inner[0].abort()


@pytest.mark.parametrize("why", [KeyError, None])
def test_a_block_leaves_an_arena_that_cannot_end(why):
    attached, go_on = threading.Event(), threading.Event()

    def work():
        with arena.attached():
            attached.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    try:
        with pytest.raises(why or gpumem.Invalid) as raised:
            with gpumem.arena("step") as arena:
                b = gpumem.Buffer(100)
                thread.start()
                attached.wait()
                gpumem.arena("inner").enter()
                if why is not None:
                    raise why("the body's own")
        assert gpumem.current_arena() is None and arena.open and b.live
        if sys.version_info >= (3, 11):
            assert "arena 'step' is still open" in raised.value.__notes__[0]
    finally:
        go_on.set()
        thread.join()
    assert arena.abort().freed == 1 and not b.live


def test_a_block_leaves_no_arena_but_its_own():
    with gpumem.arena("around") as around:
        with pytest.raises(KeyError) as raised:
            with gpumem.arena("ended by another") as outer:
                with gpumem.arena("inner"):
                    outer.abort()
                    raise KeyError("the body's own")
        assert gpumem.current_arena().handle == around.handle and not hasattr(raised.value, "__notes__")
        attached, go_on = threading.Event(), threading.Event()

        def work():
            with handed_on.attached():
                attached.set()
                go_on.wait()

        thread = threading.Thread(target=work)
        with pytest.raises(KeyError):
            with gpumem.arena("handed on") as handed_on:
                gpumem._library.C.gpumem_arena_detach(handed_on.handle)
                thread.start()
                attached.wait()
                raise KeyError("the body's own")
        assert gpumem.current_arena().handle == around.handle
        go_on.set()
        thread.join()
        handed_on.abort()


def test_a_capture_may_end_within_its_block():
    with gpumem.Stream() as s:
        for end in (gpumem.Capture.abort, gpumem.Capture.release):
            with pytest.raises(KeyError):
                with gpumem.capture(s) as capture:
                    end(capture)
                    raise KeyError("the body's own")


def test_a_capture_begins_once():
    with gpumem.Stream() as s:
        with gpumem.capture(s) as capture:
            handle = capture.handle
        with pytest.raises(gpumem.Invalid, match="begun already"):
            capture.begin()
        assert capture.handle == handle and capture.stats().references == 1
        capture.release()
        capture.begin().release()


def test_an_arena_is_entered_once():
    with gpumem.arena("step") as arena:
        with pytest.raises(gpumem.Invalid, match="open already"):
            arena.enter()
    with pytest.raises(gpumem.Invalid, match="has ended"):
        arena.enter()


def test_what_has_not_begun_says_so():
    arena = gpumem.arena("step")
    for use in (arena.exit, arena.abort, arena.stats, arena.attached().__enter__, lambda: gpumem.malloc_with(100, arena=arena)):
        with pytest.raises(gpumem.Invalid, match="arena 'step' has not been entered"):
            use()
    capture = gpumem.capture()
    for use in (capture.end, capture.abort, capture.retain, capture.release, capture.solve, capture.stats,
                lambda: gpumem.capture(share=capture), lambda: gpumem.capture(layout=capture)):
        with pytest.raises(gpumem.Invalid, match="has not begun"):
            use()


# ---- the page

@pytest.mark.skipif(REPOSITORY is None, reason="not in the repository")
def test_the_pages_first_program_runs():
    pytest.importorskip("numpy")
    page = (REPOSITORY / "docs/python.md").read_text()
    program = page[page.index("## A first program"):].split("```python\n")[1].split("```")[0]
    said = python(program, PYTHONPATH=os.pathsep.join(sys.path))
    assert said.startswith("freed 1 of 4 KiB, kept 1 of 4 KiB\n1024.0\ndevice 0 (host)"), said

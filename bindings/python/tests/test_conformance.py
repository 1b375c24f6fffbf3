"""The behaviours of ../../CONFORMANCE.md: a test of the same name for each. With `pytest -s` each
that holds says `ok NAME`.

GPUMEM_ARENA_DEBUG=check must be set before the start.
"""

import threading

import gpumem
import pytest
from conftest import failed, settle

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """Each leaves no allocation behind and a sound library."""
    settle()
    assert gpumem.stats().allocations == 0
    yield
    settle()
    assert gpumem.stats().allocations == 0
    assert gpumem.stats().requested == 0
    gpumem.validate()


@pytest.fixture(autouse=True)
def say(request, nothing_is_left):
    yield
    # nothing_is_left ends after this, and has its own say; test.sh looks at pytest's status too.
    if not request.node.stash.get(failed, False):
        print(f"\nok {request.node.name.removeprefix('test_')}")


def on_a_thread(function):
    """Calls it on another thread, and gives its result or its exception."""
    out = []

    def body():
        try:
            out.append((function(), None))
        except BaseException as why:
            out.append((None, why))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    result, why = out.pop()
    if why is not None:
        raise why
    return result


def test_zero_bytes():
    a, b = gpumem.Buffer(0), gpumem.Buffer(0)
    assert a.live and b.live and a.ptr != b.ptr and len(a) == 0
    assert a.id != 0 and a.id != b.id
    a.free()
    b.free()
    assert not a.live


def test_round_trip():
    numbers = bytes(range(256)) * 32
    b = gpumem.Buffer.of(numbers)
    assert b.nbytes == 8192 and b.tobytes() == numbers
    c = gpumem.Buffer(8192).fill(7)
    c.copy_from(numbers[:4000], offset=96)
    assert c.tobytes() == b"\7" * 96 + numbers[:4000] + b"\7" * 4096
    d = gpumem.Buffer(8192)
    d.copy_from(c)
    d.fill(9, offset=8190)
    assert d.tobytes() == c.tobytes()[:-2] + b"\t\t"


def test_free_once():
    b = gpumem.Buffer(4 * KIB)
    before = gpumem.stats()
    b.free()
    b.free()
    assert not b.live
    del b
    after = gpumem.stats()
    assert after.frees == before.frees + 1 and after.double_frees == before.double_frees and after.late_frees == before.late_frees


def test_double_free():
    p = gpumem.malloc(4 * KIB)
    gpumem.free(p)
    before = gpumem.stats()
    with pytest.raises((gpumem.DoubleFree, gpumem.UnknownPointer)) as refused:
        gpumem.free(p)
    assert str(refused.value)
    after = gpumem.stats()
    assert after.double_frees + after.unknown_pointers == before.double_frees + before.unknown_pointers + 1


def test_unknown_pointer():
    with pytest.raises(gpumem.UnknownPointer, match="0x1000"):
        gpumem.free(0x1000)


def test_interior_free():
    b = gpumem.Buffer(4 * KIB)
    with pytest.raises(gpumem.UnknownPointer):
        gpumem.free(b.ptr + 256)
    assert b.live


def test_out_of_memory_text():
    gpumem.trim()
    gpumem.set_limit(64 * MIB)
    try:
        with pytest.raises(gpumem.OutOfMemory, match=str(65 * MIB)) as refused:
            gpumem.Buffer(65 * MIB)
        assert isinstance(refused.value, MemoryError) and refused.value.name == "GPUMEM_ERROR_OUT_OF_MEMORY"
    finally:
        gpumem.set_limit(0)
    gpumem.Buffer(65 * MIB).free()


def test_finalizer_frees():
    for _ in range(20):
        gpumem.Buffer(4 * KIB)
    settle()
    assert gpumem.stats().allocations == 0


def test_finalizer_after_exit():
    with gpumem.arena():
        b = gpumem.Buffer(4 * KIB)
    before = gpumem.stats()
    del b
    after = gpumem.stats()
    assert after.late_frees == before.late_frees + 1 and after.frees == before.frees and after.double_frees == before.double_frees


def test_finalizer_after_address_reuse():
    with gpumem.arena():
        old = gpumem.Buffer(4 * KIB)
    new = gpumem.Buffer.of(b"\x5a" * 4 * KIB)
    assert new.ptr == old.ptr and new.id != old.id
    assert not old.live
    del old
    assert new.live and new.tobytes() == b"\x5a" * 4 * KIB


def test_finalizer_on_other_thread():
    buffers = [gpumem.Buffer(4 * KIB) for _ in range(64)]
    on_a_thread(buffers.clear)
    assert gpumem.stats().allocations == 0


def test_hundred_thousand_buffers():
    before = gpumem.stats()
    for _ in range(100_000):
        gpumem.Buffer(256)
    settle()
    after = gpumem.stats()
    assert after.mallocs == before.mallocs + 100_000 and after.frees == before.frees + 100_000


def test_exit_frees_all():
    held, before = [], gpumem.stats()
    for round_ in range(4):
        with gpumem.arena():
            held += [gpumem.Buffer(4 * 4096) for _ in range(64)]
            during = gpumem.stats()
            assert during.allocations == before.allocations + 64 and during.frees == before.frees + 64 * round_
        after = gpumem.stats()
        assert after.allocations == before.allocations and after.requested == before.requested
        assert after.frees == before.frees + 64 * (round_ + 1)
    assert len(held) == 256 and not any(b.live for b in held)


def test_exit_keeps():
    with gpumem.arena("step", keep=lambda: {"loss": loss, "others": [(loss,)]}) as step:
        gpumem.Buffer(4 * KIB)
        gone = gpumem.Buffer(4 * KIB)
        loss = gpumem.Buffer.of(b"\x11" * 4 * KIB)
    assert (step.report.kept, step.report.duplicate) == (1, 1)
    assert gpumem.stats().allocations == 1 and loss.live and loss.tobytes() == b"\x11" * 4 * KIB and not gone.live


def test_exit_keeps_interior_pointer():
    arena = gpumem.Arena().enter()
    b = gpumem.Buffer(4 * KIB)
    report = arena.exit([b.ptr + 1000])
    assert report.kept == 1 and report.freed == 0 and b.live


def test_exit_counts_odd_entries():
    outside = gpumem.Buffer(256)
    arena = gpumem.Arena().enter()
    b, gone = gpumem.Buffer(256), gpumem.Buffer(256)
    gone.free()
    report = arena.exit([b, b, outside, gone.ptr, None])
    assert (report.kept, report.duplicate, report.foreign, report.unknown) == (1, 1, 1, 1)
    assert report.depth == 0 and report.kept_bytes == 256


def test_early_free_in_arena():
    arena = gpumem.Arena().enter()
    a, b = gpumem.Buffer(256), gpumem.Buffer(512)
    a.free()
    assert arena.stats().freed_early == 1
    report = arena.exit()
    assert report.freed == 1 and report.freed_bytes == 512 and not b.live


def test_exception_keeps_nothing():
    with pytest.raises(KeyError, match="of the body's own"):
        with gpumem.arena(keep=lambda: [b]):
            b = gpumem.Buffer(4 * KIB)
            raise KeyError("of the body's own")
    assert not b.live and gpumem.current_arena() is None


def test_exception_ends_inner_arenas():
    with pytest.raises(ZeroDivisionError):
        with gpumem.arena():
            inner = gpumem.Arena("forgotten").enter()
            b = gpumem.Buffer(256)
            raise ZeroDivisionError
    assert not b.live
    with pytest.raises(gpumem.Invalid):
        inner.exit()


def test_nested_promote():
    with gpumem.arena() as outer:
        with gpumem.arena() as inner:
            promoted = gpumem.Buffer(256)
            promoted.promote()
            assert outer.stats().live == 1 and inner.stats().live == 0
        assert promoted.live
    assert not promoted.live


def test_inner_keep_ends_with_outer():
    with gpumem.arena(keep=lambda: c) as outer:
        with gpumem.arena("inner", keep=lambda: [b, c]):
            b, c = gpumem.Buffer(256), gpumem.Buffer(512)
        assert b.live and c.live and outer.stats().live == 2
    assert not b.live and c.live


def test_outermost_keep_is_ordinary():
    with gpumem.arena(keep=lambda: b):
        b = gpumem.Buffer(256)
    assert gpumem.find_arena(b) is None
    with gpumem.arena():
        pass
    assert b.live


def test_exit_in_wrong_order():
    outer = gpumem.Arena().enter()
    inner = gpumem.Arena().enter()
    with pytest.raises(gpumem.Invalid) as refused:
        outer.exit()
    assert str(refused.value) and outer.open
    assert inner.exit().depth == 1
    assert outer.exit().depth == 0


def test_stale_arena():
    arena = gpumem.Arena().enter()
    arena.exit()
    for use in (arena.exit, arena.abort, arena.stats, lambda: gpumem.malloc_with(256, arena=arena), arena.attached().__enter__):
        with pytest.raises(gpumem.Invalid):
            use()


def test_escape():
    with gpumem.arena():
        with gpumem.arena():
            constant = gpumem.Buffer.of(b"\x33" * 256)
            constant.escape()
    assert constant.live and constant.tobytes() == b"\x33" * 256
    constant.escape()


def test_thread_attach():
    mine = [[] for _ in range(8)]
    with gpumem.arena() as arena:
        def work(i):
            with arena.attached():
                for _ in range(50):
                    mine[i].append(gpumem.Buffer(256))
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert arena.stats().live == 400
    assert not any(b.live for some in mine for b in some)


def test_other_threads_unaffected():
    with gpumem.arena() as arena:
        outside = on_a_thread(lambda: gpumem.Buffer(256))
        assert arena.stats().live == 0
    assert outside.live


def test_exit_refused_while_attached():
    arena = gpumem.Arena().enter()
    attached, go_on = threading.Event(), threading.Event()

    def holder():
        with arena.attached():
            attached.set()
            go_on.wait()

    thread = threading.Thread(target=holder)
    thread.start()
    attached.wait()
    try:
        for end in (arena.exit, arena.abort):
            with pytest.raises(gpumem.Invalid):
                end()
    finally:
        go_on.set()
        thread.join()
    assert arena.exit().freed == 0


def test_arena_name_and_stats():
    with gpumem.arena("forward") as arena:
        a = gpumem.Buffer(1000)
        gpumem.Buffer(24).free()
        s = arena.stats()
        assert (s.name, s.live, s.live_bytes, s.peak_bytes, s.depth) == ("forward", 1, 1000, 1024, 0)
        assert (s.joined, s.left, s.freed_early) == (2, 1, 1)
        assert gpumem.current_arena().name == "forward"
        del a


def test_detector_message():
    with gpumem.arena("step"):
        b = gpumem.Buffer(4096)
    with pytest.raises(gpumem.UseAfterFree) as found:
        b.check("add", "lhs")
    assert "use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena " in str(found.value)
    assert f'"step", allocation {b.id} of 4096 bytes)' in str(found.value)
    with pytest.raises(gpumem.UseAfterFree, match="fill buffer was reclaimed"):
        b.fill(1)
    with pytest.raises(gpumem.UseAfterFree):
        b.__cuda_array_interface__
    with pytest.raises(gpumem.UseAfterFree):
        b.__dlpack__()


def test_detector_after_address_reuse():
    with gpumem.arena("step"):
        old = gpumem.Buffer(4096)
    new = gpumem.Buffer(4096)
    assert new.ptr == old.ptr
    new.check("add", "lhs")
    with pytest.raises(gpumem.UseAfterFree):
        old.check("add", "rhs")


def test_exit_races_finalizers():
    for _ in range(20):
        before = gpumem.stats()
        arena = gpumem.Arena().enter()
        buffers = [gpumem.Buffer(256) for _ in range(1000)]
        started = threading.Event()

        def finalize():
            started.set()
            buffers.clear()

        thread = threading.Thread(target=finalize)
        thread.start()
        started.wait()
        report = arena.exit()
        thread.join()
        after = gpumem.stats()
        assert after.frees == before.frees + 1000 and after.double_frees == before.double_frees
        assert report.freed == after.late_frees - before.late_frees


def test_capture_keeps_addresses():
    with gpumem.Stream() as s:
        with gpumem.capture(s) as graph:
            b = gpumem.Buffer(4 * MIB, stream=s)
            inside = b.ptr
            b.free()
        others = [gpumem.Buffer(4 * MIB, stream=s) for _ in range(4)]
        assert all(o.ptr != inside for o in others)
        graph.retain()
        graph.release()
        gpumem.Buffer(256, stream=s).free()
        graph.release()
        with pytest.raises(gpumem.Invalid):
            graph.release()
        del others


def test_capture_error_frees():
    with gpumem.Stream() as s:
        with pytest.raises(ZeroDivisionError):
            with gpumem.capture(s):
                b = gpumem.Buffer(4 * KIB, stream=s)
                raise ZeroDivisionError
        assert not b.live
        with gpumem.capture(s) as graph:
            pass
        graph.release()


def test_reservation_draws():
    with gpumem.reserve(8 * MIB) as r:
        b = gpumem.Buffer(1 * MIB)
        assert (r.info().promised, r.info().drawn) == (8 * MIB, 1 * MIB)
        b.free()
        assert r.info().drawn == 0

        def elsewhere():
            r.attach_thread()
            c = gpumem.Buffer(2 * MIB)
            assert r.info().drawn == 2 * MIB
            c.free()

        on_a_thread(elsewhere)


def test_reservation_refuses_more():
    r = gpumem.reserve("1MiB")
    r.attach_thread()
    with pytest.raises(gpumem.OutOfMemory, match="reservation"):
        gpumem.Buffer(2 * MIB)
    assert r.release() == 0
    with pytest.raises(gpumem.Invalid):
        r.release()


def test_reservation_ends_after_error():
    with pytest.raises(ZeroDivisionError):
        with gpumem.reserve(1 * MIB) as r:
            raise ZeroDivisionError
    with pytest.raises(gpumem.Invalid):
        r.info()
    gpumem.Buffer(2 * MIB).free()


def test_trim_gives_back():
    gpumem.Buffer(64 * MIB).free()
    gpumem.synchronize(device=True)
    assert gpumem.stats().mapped >= 64 * MIB
    gpumem.trim()
    assert gpumem.stats().mapped == 0


def test_stats_count():
    before = gpumem.stats()
    b = gpumem.Buffer(1000)
    during = gpumem.stats()
    assert during.mallocs == before.mallocs + 1 and during.requested == 1000 and during.mapped >= during.live >= 1000
    b.free()
    assert gpumem.stats().frees == before.frees + 1


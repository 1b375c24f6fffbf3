"""PyTorch's allocator of gpumem's over the host device, with a stub of CUDA's runtime: what it
counts, pools and their checkpoints, tags, arenas, errors. No tensor has contents here.
test_torch_allocator.py starts it."""

import ctypes
import inspect
import os
import random
import tempfile
import warnings
from unittest import mock

import gpumem.torch

assert gpumem.torch.enable(native=True) == "native"

import torch  # noqa: E402
from checks import check, run  # noqa: E402
from gpumem.torch import build  # noqa: E402
from torch.cuda import _gpu_trace as gpu_trace  # noqa: E402

warnings.simplefilter("ignore")
MIB = 1 << 20
C = torch._C
stream = gpumem.Stream()
stub = ctypes.CDLL(None)
stub.stub_cublas_workspace.restype = ctypes.c_void_p


def malloc(n):
    return C._cuda_cudaCachingAllocator_raw_alloc(n, stream.handle)


free = C._cuda_cudaCachingAllocator_raw_delete


def live(address):
    try:
        return bool(gpumem.pointer_info(address))
    except gpumem.Error:
        return False


def empty(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def statistics():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x, y = empty(1000), empty(5 * MIB)
    check("tensors are counted", torch.cuda.memory_allocated() - before == 1024 + 5 * MIB)
    stats = torch.cuda.memory_stats()
    check("by class", stats["allocated_bytes.small_pool.current"] >= 1024 and stats["allocated_bytes.large_pool.current"] >= 5 * MIB)
    check("as asked for", stats["requested_bytes.all.current"] % 512 == 1000 % 512)
    check("reserved is what is mapped", torch.cuda.memory_reserved() == gpumem.stats().mapped)
    del x, y
    check("and the peak stays", torch.cuda.max_memory_allocated() - before == 1024 + 5 * MIB and torch.cuda.memory_allocated() == before)
    torch.cuda.reset_peak_memory_stats()
    check("until it is reset", torch.cuda.max_memory_allocated() == before)
    check("the summary", "Allocated memory" in torch.cuda.memory_summary())
    check("no bytes are no memory", empty(0).data_ptr() == 0 and torch.cuda.memory_allocated() == before)


def snapshots():
    torch.cuda.memory._record_memory_history(max_entries=4)
    x = empty(3 * MIB)
    del x
    x = empty(3 * MIB)
    s = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    check("segments are what is mapped", sum(g["total_size"] for g in s["segments"]) == gpumem.stats().mapped)
    check("and their blocks fill them", all(sum(b["size"] for b in g["blocks"]) == g["total_size"] for g in s["segments"]))
    block = next(b for g in s["segments"] for b in g["blocks"] if b["address"] == x.data_ptr())
    check("a tensor is in it", block["state"] == "active_allocated" and block["requested_size"] == 3 * MIB)
    check("with its stack", any("torch_stub" in f["filename"] for f in block["frames"]))
    check("the history", [e["action"] for e in s["device_traces"][0]] == ["alloc", "free_requested", "free_completed", "alloc"])
    if "skip_actions" in inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters:
        torch.cuda.memory._record_memory_history(skip_actions=["free_requested"])
        del x
        s = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        check("actions can be left out", [e["action"] for e in s["device_traces"][0]] == ["free_completed"])


def disjoint(pool, live):
    """The pool's segments are made of blocks side by side, and the live ones are these."""
    found = {}
    for g in C._cuda_memorySnapshot(None)["segments"]:
        if g["segment_pool_id"] != pool:
            continue
        at = g["address"]
        for b in g["blocks"]:
            assert b["address"] == at, "blocks are not side by side"
            if b["state"] == "active_allocated":
                found[at] = b["requested_size"]
            at += b["size"]
        assert at == g["address"] + g["total_size"]
    assert found == live, f"{len(found)} live blocks, {len(live)} wanted"


def checkpoints():
    """Random allocations in a pool, set back to random earlier states."""
    pool, random_ = (0, 77), random.Random(5)
    C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    live, states = {}, []
    before = torch.cuda.memory_allocated()
    for step in range(3000):
        choice = random_.random()
        if choice < 0.55 or not live:
            n = random_.choice([1, 500, 5000, 100_000, 700_000, 3 * MIB, 11 * MIB, 30 * MIB])
            n = random_.randint(1, n)
            live[malloc(n)] = n
        elif choice < 0.97 or len(live) > 60:
            at = random_.choice(list(live))
            free(at)
            del live[at]
        elif choice < 0.985 or not states:
            states.append((C._cuda_getCheckpointState(0, pool), dict(live)))
        else:
            # As cudagraph trees do it: what is live now has been freed before.
            for at in live:
                free(at)
            state, live = random_.choice(states)
            live = dict(live)
            C._cuda_setCheckpointPoolState(0, state, [], [])
            # The pointers are nobody's until they are freed by address.
        if step % 100 == 0:
            disjoint(pool, live)
            assert C._cuda_checkPoolLiveAllocations(0, pool, set(live))
            assert torch.cuda.memory_allocated() - before == sum((n + 511) // 512 * 512 for n in live.values())
    check("states were set back", len(states) > 5)
    C._cuda_endAllocateToPool(0, pool)
    for at in live:
        free(at)
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    check("a pool in use keeps its memory", torch.cuda.memory_reserved() > reserved // 2)
    C._cuda_releasePool(0, pool)
    torch.cuda.empty_cache()
    check("and gives it back after its release", torch.cuda.memory_reserved() < reserved // 2, torch.cuda.memory_reserved())
    check("nothing is counted any more", torch.cuda.memory_allocated() == before)


def mempools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(40 * MIB)
    segments = pool.snapshot()
    check("a MemPool has its tensor", [g["address"] for g in segments] == [x.data_ptr()] and segments[0]["segment_pool_id"] == pool.id)
    before = torch.cuda.memory_reserved()
    del x, pool
    torch.cuda.empty_cache()
    check("and gives its memory back", torch.cuda.memory_reserved() <= before - 40 * MIB)


def other_streams():
    pool, side = torch.cuda.MemPool(), torch.cuda.ExternalStream(stream.handle)
    with torch.cuda.use_mem_pool(pool):
        x = empty(40 * MIB)
        at = x.data_ptr()
        x.record_stream(side)
        stub.stub_capturing(1)
        del x
        y = empty(40 * MIB)
        check("what another stream used is not had again in a capture", y.data_ptr() != at)
        stub.stub_capturing(0)
        del y
    calls = gpumem.driver_calls()["stream_wait"]
    with torch.cuda.use_mem_pool(pool):
        z = [empty(40 * MIB), empty(40 * MIB)]
    check("but after it", at in [t.data_ptr() for t in z])
    check("a stream waits for another", gpumem.driver_calls()["stream_wait"] >= calls > 0)
    x = empty(40 * MIB)
    x.record_stream(side)
    del x, z, pool
    torch.cuda.empty_cache()


def captures_that_fail():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(40 * MIB)
    # PyTorch does not end what it began where the capture failed.
    C._cuda_beginAllocateCurrentThreadToPool(0, (0, 99))
    reserved = torch.cuda.memory_reserved()
    stub.stub_capturing(1)
    del x, pool
    torch.cuda.empty_cache()
    check("nothing of a heap is given back in a capture", torch.cuda.memory_reserved() > reserved - 40 * MIB)
    stub.stub_capturing(0)
    torch.cuda.empty_cache()
    check("after one that failed it is", torch.cuda.memory_reserved() <= reserved - 40 * MIB)
    C._cuda_endAllocateToPool(0, (0, 99))
    C._cuda_releasePool(0, (0, 99))


def tags():
    with gpumem.torch.tag("weights"):
        weights = [empty(n) for n in (3000, 40 * MIB, MIB, 5 * MIB)]
    pointers, mapped = [w.data_ptr() for w in weights], gpumem.stats().mapped
    report = gpumem.torch.sleep("weights")
    check("asleep, the memory is free", mapped - gpumem.stats().mapped >= 46 * MIB and report.moved_bytes >= 46 * MIB, report)
    try:
        with gpumem.torch.tag("weights"):
            empty(1)
        check("a tag that is asleep allocates nothing", False)
    except RuntimeError as why:
        check("a tag that is asleep allocates nothing", "is asleep" in str(why))
    with gpumem.torch.tag("others"):
        empty(1)
    del weights[2]
    check("awake, it is where it was", gpumem.torch.wake("weights").moved == report.moved and [w.data_ptr() for w in weights] ==
          pointers[:2] + pointers[3:])
    try:
        gpumem.torch.sleep("nobody")
        check("a tag that nothing has", False)
    except gpumem.Invalid:
        check("a tag that nothing has", True)
    with gpumem.torch.tag("brief"):
        empty(MIB)
    check("a sleep where nothing is left is no mistake", gpumem.torch.sleep("brief").moved == 0)
    with gpumem.torch.tag("brief"):
        check("and the tag is as new", live(empty(1).data_ptr()))

    with gpumem.torch.tag("dropped"):
        dropped = empty(40 * MIB)
    gpumem.torch.sleep("dropped")
    del dropped
    torch.cuda.empty_cache()
    check("a wake where nothing is left is no mistake", gpumem.torch.wake("dropped").moved == 0)
    with gpumem.torch.tag("dropped"):
        check("and the tag is as new", live(empty(1).data_ptr()))
    try:
        gpumem.torch.wake("nobody")
        check("a wake of a tag that nothing ever had", False)
    except gpumem.Invalid:
        check("a wake of a tag that nothing ever had", True)
    with gpumem.torch.tag("others"):
        other = empty(1)
    try:
        gpumem.torch.sleep("others", to="nowhere")
        check("a tier that is none", False)
    except ValueError:
        with gpumem.torch.tag("others"):
            check("a tier that is none changes nothing", live(empty(1).data_ptr()))
    del other

    # A copy takes a kernel, which the stub has none of.
    made = mock.patch.object(torch.UntypedStorage, "clone", lambda self: torch.UntypedStorage(self.nbytes(), device="cuda"))
    rows = empty(6 * MIB).view(3, 2 * MIB)
    at = rows.data_ptr()
    with made:
        gpumem.torch.adopt(rows, "rows")
    check("one tensor is adopted whole", rows.data_ptr() != at and gpumem.torch.sleep("rows").moved_bytes >= 6 * MIB)
    gpumem.torch.wake("rows")


def arenas():
    allocations, before, leaked = gpumem.stats().allocations, torch.cuda.memory_allocated(), []
    with gpumem.torch.arena("step", keep=lambda: [kept]) as step:
        leaked += [empty(MIB) for _ in range(10)]
        kept = empty(100)
        empty(100)
    check("what is held goes", (step.report.freed, step.report.kept) == (10, 1), step.report)
    check("and is not counted", torch.cuda.memory_allocated() - before == 512)
    again = [empty(MIB) for _ in range(10)]
    leaked.clear()
    del kept
    check("late ends free nothing of others", gpumem.stats().allocations == allocations + 10)
    del again
    check("and nothing is left", gpumem.stats().allocations == allocations and torch.cuda.memory_allocated() == before)
    try:
        with gpumem.torch.arena():
            leaked.append(empty(MIB))
            raise KeyError
    except KeyError:
        pass
    check("after an exception too", torch.cuda.memory_allocated() == before and gpumem.stats().allocations == allocations)
    with gpumem.arena("not PyTorch's"):
        leaked.append(empty(7 * MIB))
    other = empty(7 * MIB)
    check("an arena that another opened takes it too", other.data_ptr() == leaked[-1].data_ptr() and torch.cuda.memory_allocated() ==
          before + 7 * MIB)
    leaked.clear()
    check("and a late end frees nothing of others", live(other.data_ptr()))
    del other


def captures_that_are_aborted():
    allocations, before, held = gpumem.stats().allocations, torch.cuda.memory_allocated(), []
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        try:
            with gpumem.capture(stream):
                held.append(empty(7 * MIB))
                torch.cuda.current_blas_handle()
                raise KeyError
        except KeyError:
            pass
        check("what an aborted capture had is gone and not counted", gpumem.stats().allocations == allocations and
              torch.cuda.memory_allocated() == before)
        stream.synchronize()
        others = [empty(7 * MIB) for _ in range(20)]
        check("its addresses are had again", held[0].data_ptr() in [o.data_ptr() for o in others])
        held.clear()
        check("and a late end frees nothing of others", all(live(o.data_ptr()) for o in others))
        torch.cuda.current_blas_handle()
        check("cuBLAS works with other memory", gpumem.pointer_info(stub.stub_cublas_workspace()).base not in
              [o.data_ptr() for o in others])
        with gpumem.capture(stream) as memory:
            held.append(empty(MIB))
        memory.release()
        check("a capture that ends keeps what is held", live(held[0].data_ptr()))
        del others
    torch._C._cuda_clearCublasWorkspaces()
    held.clear()
    check("nothing is left of captures", gpumem.stats().allocations == allocations and torch.cuda.memory_allocated() == before)


def captures_and_what_outlives_them():
    pool = torch.cuda.MemPool()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        memory = gpumem.capture(stream).begin()
        raw = torch.cuda.caching_allocator_alloc(5 * MIB)
        with torch.cuda.use_mem_pool(pool):
            pooled = empty(3 * MIB)
        memory.abort()
        for what, at in [("memory without a tensor", raw), ("a pool", pooled.data_ptr())]:
            check(f"the abort of a capture does not take {what}", live(at))
        torch.cuda.caching_allocator_delete(raw)
        check("and its owner frees it", not live(raw))
    del pooled, pool
    torch.cuda.empty_cache()


def ends_of_what_is_unknown():
    x = empty(MIB)
    free(x.data_ptr())
    del x
    check("the end of a tensor whose memory was freed only warns", True)


def arenas_and_what_outlives_them():
    with gpumem.torch.arena():
        raw = torch.cuda.caching_allocator_alloc(5 * MIB)
        torch.cuda.current_blas_handle()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = empty(3 * MIB)
        with gpumem.torch.shared():
            shared = empty(3 * MIB)
    for what, at in [("memory without a tensor", raw), ("what cuBLAS works with", stub.stub_cublas_workspace()),
                     ("a pool", pooled.data_ptr()), ("memory for other processes", shared.data_ptr())]:
        check(f"an arena does not take {what}", live(at))
    torch.cuda.caching_allocator_delete(raw)
    check("memory without a tensor is freed by its owner", not live(raw))
    del pooled, shared, pool
    torch._C._cuda_clearCublasWorkspaces()


def out_of_memory():
    seen = []
    C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    ooms = torch.cuda.memory_stats()["num_ooms"]
    try:
        empty(1 << 45)
    except torch.OutOfMemoryError as why:
        check("PyTorch's error and words", str(why).startswith("CUDA out of memory. Tried to allocate 32768.00 GiB. GPU 0 has"), why)
    check("is counted and told", torch.cuda.memory_stats()["num_ooms"] == ooms + 1 and len(seen) == 1 and seen[0][:2] == (0, 1 << 45), seen)
    gpumem.set_limit(gpumem.stats().mapped + 64 * MIB)
    with gpumem.torch.tag("cache"):
        x = empty(48 * MIB)
    del x
    # The tag's heap keeps its segment until memory is short.
    check("memory that a tag has free is given back", empty(60 * MIB).numel() == 60 * MIB)
    gpumem.set_limit(0)


def sharing():
    with gpumem.torch.shared():
        x = empty(1000)
    check("memory for other processes is whole pages", gpumem.pointer_info(x.data_ptr()).requested == 2 * MIB)
    try:
        empty(10).untyped_storage()._share_cuda_()
        check("other memory says what to do", False)
    except RuntimeError as why:
        check("other memory says what to do", "gpumem.torch.shared()" in str(why), why)


def snapshots_of_arenas():
    freed = []
    # For good, and its calls would clear an error that is set: nothing that fails comes after.
    gpu_trace.register_callback_for_memory_deallocation(freed.append)
    torch._C._activate_gpu_trace()
    torch.cuda.memory._record_memory_history(max_entries=100)
    with gpumem.torch.arena(keep=lambda: kept):
        kept, left, early = empty(3 * MIB), empty(5 * MIB), empty(7 * MIB)
        held, ended = [t.data_ptr() for t in (kept, left)], early.data_ptr()
        del early
        blocks = [b for g in torch.cuda.memory._snapshot()["segments"] for b in g["blocks"]]
    check("a snapshot has what is in an arena", {b["address"]: b["requested_size"] for b in blocks if b["address"] in held} ==
          dict(zip(held, (3 * MIB, 5 * MIB))))
    try:
        kept.untyped_storage()._share_cuda_()
    except RuntimeError as why:
        check("what is kept of an arena is a tensor like any", "gpumem.torch.shared()" in str(why), why)
    del left
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    check("the history has the ends of what is in an arena", [(e["action"], e["addr"]) for e in trace if e["action"] != "alloc"] ==
          [(action, at) for at in (ended, held[1]) for action in ("free_requested", "free_completed")], trace)
    check("so has PyTorch's trace", freed == [ended, held[1]], freed)
    del kept
    check("a late end too", freed[2:] == held[:1])
    torch.cuda.memory._record_memory_history(enabled=None)


def enabling():
    check("once", gpumem.torch.enable() == gpumem.torch.enable(native=True) == "native")
    try:
        gpumem.torch.enable(ipc=True)
        check("what it has not is refused later", False)
    except RuntimeError as why:
        check("what it has not is refused later", "the first gpumem.torch.enable()" in str(why), why)


def compilers():
    with mock.patch.dict(os.environ, CXX="ccache g++"):
        check("a compiler of two words", next(build.commands(torch, "out"))[:2] == ["ccache", "g++"])
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CXX="/no/such/compiler", TORCH_EXTENSIONS_DIR=folder):
        try:
            build.built(torch)
            check("a compiler that is not there", False)
        except gpumem.torch.BuildError as why:
            check("a compiler that is not there", "'/no/such/compiler' cannot be started" in str(why), why)


def sound():
    gpumem.validate()
    check("frees were right", gpumem.stats().double_frees == 0 and gpumem.stats().unknown_pointers == 0)


torch.cuda.is_available = lambda: True
torch.cuda.synchronize = lambda *arguments: None
run(enabling, compilers, statistics, snapshots, checkpoints, mempools, other_streams, captures_that_fail, tags, arenas,
    captures_that_are_aborted, captures_and_what_outlives_them, ends_of_what_is_unknown, arenas_and_what_outlives_them, out_of_memory,
    sharing, snapshots_of_arenas, sound)

"""PyTorch on gpumem: statistics, snapshots, streams, graphs, pools, running out of memory, memory
that sleeps, arenas.

    torch_basics.py [pluggable]
"""

import gc
import pickle
import sys
import tempfile

import gpumem.torch

MODE = gpumem.torch.enable(native=False if "pluggable" in sys.argv else True)

import torch  # noqa: E402
from checks import check, near, run  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
device = torch.device("cuda")


def clean():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def driver_used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def statistics():
    torch.zeros(1, device=device)
    clean()
    torch.cuda.reset_peak_memory_stats()
    before, used = torch.cuda.memory_allocated(), driver_used()
    reserved = torch.cuda.memory_reserved()
    tensors = [torch.empty(3 * GIB // 4, dtype=torch.uint8, device=device), torch.empty(GIB // 4, dtype=torch.uint8, device=device),
               torch.empty(1000, dtype=torch.uint8, device=device)]
    torch.cuda.synchronize()
    grown, driver = torch.cuda.memory_reserved() - reserved, driver_used() - used
    check("allocated counts tensors", near(torch.cuda.memory_allocated() - before, GIB + 1024, 0.001), torch.cuda.memory_allocated() - before)
    check("reserved agrees with the driver", near(grown, driver, 0.02), f"{grown} and {driver}")
    del tensors[0]
    check("peak stays", torch.cuda.max_memory_allocated() - before >= GIB, torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    check("peak is reset", torch.cuda.max_memory_allocated() - before < GIB // 2, torch.cuda.max_memory_allocated())
    stats = torch.cuda.memory_stats()
    check("memory_stats has all keys", all(k in stats for k in ("allocated_bytes.all.current", "active.all.peak", "num_ooms",
                                                                 "reserved_bytes.large_pool.current", "requested_bytes.all.allocated")))
    check("memory_summary", "Allocated memory" in torch.cuda.memory_summary(), torch.cuda.memory_summary()[:200])
    reserved = torch.cuda.memory_reserved()
    del tensors
    clean()
    check("empty_cache gives back", torch.cuda.memory_reserved() < reserved - GIB // 8, torch.cuda.memory_reserved())
    check("max_memory_reserved", torch.cuda.max_memory_reserved() >= reserved, torch.cuda.max_memory_reserved())
    check("one set of figures", gpumem.stats().mapped == torch.cuda.memory_reserved(),
          f"{gpumem.stats().mapped} and {torch.cuda.memory_reserved()}")


def stock():
    """Memory that a stream has given up and that has no address yet is counted once."""
    clean()
    reserved, used = torch.cuda.memory_reserved(), driver_used()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        blocks = [torch.empty(GIB, dtype=torch.uint8, device=device) for _ in range(8)]
        del blocks[::2]
        # Not in one piece.
        large = torch.empty(4 * GIB, dtype=torch.uint8, device=device)
        del blocks, large
    torch.cuda.synchronize()
    held = gpumem.stats().stock
    check("there is some", held >= GIB, held)
    grown, driver = torch.cuda.memory_reserved() - reserved, driver_used() - used
    check("reserved agrees with the driver", near(grown, driver, 0.02), f"{grown} and {driver}")
    clean()
    check("and empty_cache gives it back", gpumem.stats().stock == 0, gpumem.stats().stock)


def snapshot():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.empty(3 * MIB, dtype=torch.uint8, device=device)
    y = torch.empty(100, device=device)
    del y
    s = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    check("segments add up to reserved", near(sum(g["total_size"] for g in s["segments"]), torch.cuda.memory_reserved(), 0.02),
          f"{sum(g['total_size'] for g in s['segments'])} and {torch.cuda.memory_reserved()}")
    live = {b["address"]: b for g in s["segments"] for b in g["blocks"] if b["state"] == "active_allocated"}
    check("the tensor is in it", x.data_ptr() in live and live[x.data_ptr()]["requested_size"] == 3 * MIB)
    check("with the stack of its allocation", any("torch_basics" in f["filename"] for f in live.get(x.data_ptr(), {}).get("frames", [])))
    actions = [e["action"] for t in s["device_traces"] for e in t]
    check("the history has allocations and frees", "alloc" in actions and "free_completed" in actions, set(actions))
    check("memory_snapshot", len(torch.cuda.memory_snapshot()) > 0)
    with tempfile.NamedTemporaryFile(suffix=".pickle") as f:
        torch.cuda.memory._dump_snapshot(f.name)
        check("it can be dumped", "segments" in pickle.load(open(f.name, "rb")))


def out_of_memory():
    clean()
    kind = torch.OutOfMemoryError if MODE == "native" else RuntimeError
    before = torch.cuda.memory_stats()["num_ooms"]
    seen = ""
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device=device)
    except kind as why:
        seen = str(why)
    check("its type", bool(seen))
    if MODE == "native":
        check("its text", seen.startswith("CUDA out of memory. Tried to allocate 32768.00 GiB"), seen[:300])
        check("it is counted", torch.cuda.memory_stats()["num_ooms"] == before + 1)
    blocks = []
    try:
        while True:
            blocks.append(torch.empty(4 * GIB, dtype=torch.uint8, device=device))
    except kind:
        check("the device was full", len(blocks) * 4 * GIB > torch.cuda.mem_get_info()[1] * 0.8, len(blocks))
    blocks.clear()
    x = torch.full((GIB,), 3, dtype=torch.uint8, device=device)
    check("and recovered from", int(x[::1 << 20].sum()) == 3 * 1024)
    if MODE == "native":
        torch.cuda.set_per_process_memory_fraction(0.25)
        try:
            torch.empty(int(torch.cuda.mem_get_info()[1] * 0.3), dtype=torch.uint8, device=device)
            check("the fraction is kept", False, "no error")
        except torch.OutOfMemoryError:
            check("the fraction is kept", True)
        check("get_per_process_memory_fraction", torch.cuda.get_per_process_memory_fraction() == 0.25)
        torch.cuda.set_per_process_memory_fraction(1.0)


def streams():
    side = torch.cuda.Stream()
    for i in range(50):
        x = torch.full((4 * MIB,), float(i), device=device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(200000)
            y = x * 2
            x.record_stream(side)
        del x
        z = torch.full((4 * MIB,), -1.0, device=device)
        torch.cuda.current_stream().wait_stream(side)
        assert bool((y == 2 * i).all()), i
        del z


def graph():
    x = torch.zeros(1 << 20, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = (x * 2 + 1).sin()
    torch.cuda.current_stream().wait_stream(side)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        y = (x * 2 + 1).sin()
    with torch.cuda.graph(second, pool=first.pool()):
        z = (y + x).cos().sum()
    for i in range(50):
        x.fill_(i)
        noise = [torch.randn(1 + 7919 * i % (1 << 21), device=device) for _ in range(3)]
        first.replay()
        second.replay()
        del noise
        if i % 10 == 0:
            torch.cuda.empty_cache()
        assert torch.allclose(y, torch.full_like(y, i * 2 + 1).sin(), atol=1e-5), i
        assert torch.allclose(z, (torch.full_like(y, i * 2 + 1).sin() + i).cos().sum(), rtol=1e-3), i
    del first, second, y, z
    clean()


def failed_capture():
    # Whatever the allocator, PyTorch's random numbers are of no use afterwards: so it comes last.
    x = torch.arange(1 << 20, device=device)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            w = x + 1
            torch.cuda.synchronize()
        check("a synchronisation in a capture is refused", False, "it was not")
    except RuntimeError:
        pass
    torch.cuda.synchronize()
    clean()
    y = torch.full((1 << 20,), -1, device=device)
    check("a capture that fails leaves memory usable", torch.equal(x + 1, torch.arange(1, (1 << 20) + 1, device=device)) and bool((y == -1).all()))


def pools():
    # What is cached is larger than these, and is given back as a whole.
    clean()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((10 * MIB,), 5.0, device=device)
    y = torch.full((10 * MIB,), 6.0, device=device)
    segments = pool.snapshot()
    inside = [s for s in segments if s["address"] <= x.data_ptr() < s["address"] + s["total_size"]]
    check("a MemPool has its tensor", len(inside) == 1 and tuple(inside[0]["segment_pool_id"]) == tuple(pool.id), segments)
    check("and no other", not any(s["address"] <= y.data_ptr() < s["address"] + s["total_size"] for s in segments))
    clean()
    before = torch.cuda.memory_reserved()
    del x, inside, segments
    del pool
    clean()
    check("its memory comes back", torch.cuda.memory_reserved() <= before - 40 * MIB + 2 * MIB, f"{before} {torch.cuda.memory_reserved()} {gpumem.stats()}")


def sleeping():
    with gpumem.torch.tag("weights"):
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(64)]).to(device)
    x = torch.randn(64, 1024, device=device)
    with torch.no_grad():
        for _ in range(3):
            wanted = model(x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = model(x)
        g.replay()
        torch.cuda.synchronize()
        first = y.clone()
    pointers = [p.data_ptr() for p in model.parameters()]
    clean()
    before = driver_used()
    report = gpumem.torch.sleep("weights")
    during = driver_used()
    check("asleep, the device has its memory", before - during >= 0.95 * report.moved_bytes and report.moved_bytes >= 256 * MIB,
          f"{before - during} of {report.moved_bytes}")
    other = torch.full((256 * MIB,), 1, dtype=torch.uint8, device=device)
    gpumem.torch.wake("weights")
    check("awake, the addresses are the same", pointers == [p.data_ptr() for p in model.parameters()])
    g.replay()
    torch.cuda.synchronize()
    check("a captured graph replays", torch.equal(y, first) and torch.allclose(y, wanted, atol=1e-4))
    del other
    # A model that was made without a tag.
    layer = torch.nn.Linear(1024, 1024).to(device)
    tied = layer.weight.detach()[:10]
    with torch.no_grad():
        wanted = layer(x)
        gpumem.torch.adopt([layer.weight, layer.bias, tied], "adopted")
        check("adopted, it is the same", torch.equal(layer(x), wanted) and tied.data_ptr() == layer.weight.data_ptr())
        check("and sleeps", gpumem.torch.sleep("adopted").moved_bytes >= 4 * MIB)
        gpumem.torch.wake("adopted")
        check("and wakes", torch.equal(layer(x), wanted))


def arenas():
    before = gpumem.stats().allocations
    allocated = torch.cuda.memory_allocated()
    leaked = []
    with gpumem.torch.arena("step", keep=lambda: kept) as step:
        for i in range(10):
            leaked.append(torch.full((MIB,), float(i), device=device))
        kept = torch.full((1000,), 7.0, device=device)
    check("an arena frees what is still held", step.report.freed == 10 and step.report.kept == 1, step.report)
    check("and statistics say so", torch.cuda.memory_allocated() - allocated <= 8192, torch.cuda.memory_allocated() - allocated)
    again = [torch.full((MIB,), -1.0, device=device) for _ in range(10)]
    leaked.clear()
    check("late ends of tensors do no harm", all(bool((t == -1).all()) for t in again) and bool((kept == 7).all()))
    del again, kept
    check("nothing is left", gpumem.stats().allocations == before, f"{before} {gpumem.stats().allocations}")


def products_in_arenas():
    """What PyTorch makes with the first product of a stream, and pools, outlast the arena that they begin in."""
    torch._C._cuda_clearCublasWorkspaces()
    a = torch.randn(512, 8192, device=device, dtype=torch.half) / 64
    pool = torch.cuda.MemPool()
    with torch.cuda.stream(torch.cuda.Stream()):
        with gpumem.torch.arena("step", keep=lambda: wanted):
            wanted = a @ a.T
            with torch.cuda.use_mem_pool(pool):
                pooled = torch.full((4 * MIB,), 3.0, device=device)
        # In place of whatever has gone.
        others = [torch.full((size * MIB // 4,), -1.0, device=device) for size in (1, 2, 4, 8, 8, 9, 32, 32, 64)]
        for _ in range(20):
            again = a @ a.T
        check("products go on as before", torch.equal(again, wanted))
        check("and write to nothing of others", all(bool((t == -1).all()) for t in others))
        check("a pool's memory is its own", bool((pooled == 3).all()))
        torch.cuda.synchronize()
    del pooled, pool, others, again, wanted, a
    torch._C._cuda_clearCublasWorkspaces()


def sound():
    clean()
    gpumem.validate()


everything = [statistics, stock, snapshot, out_of_memory, streams, graph, pools, sleeping, arenas, products_in_arenas, failed_capture, sound]
run(*(everything if MODE == "native" else [statistics, stock, out_of_memory, streams, graph, failed_capture, sound]))

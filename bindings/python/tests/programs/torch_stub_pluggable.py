"""PyTorch's pluggable interface where there is no compiler, over the host device with a stub of
CUDA's runtime."""

import os
import warnings

os.environ["CXX"] = "false"

import gpumem.torch  # noqa: E402

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    mode = gpumem.torch.enable()

import torch  # noqa: E402
from checks import check, run  # noqa: E402

MIB = 1 << 20
torch.cuda.is_available = lambda: True
torch.cuda.synchronize = lambda *arguments: None


def refused(call, kind, text):
    try:
        call()
    except kind as why:
        return text in str(why)
    return False


def falls_back():
    check("with a warning that says why", mode == "pluggable" and any("does not compile" in str(w.message) for w in said))
    check("once", gpumem.torch.enable() == "pluggable" == gpumem.torch.enabled())
    for asked in ({"native": True}, {"ipc": True}):
        check("what it has not is refused later", refused(lambda: gpumem.torch.enable(**asked), RuntimeError, "the first gpumem.torch.enable()"))


def statistics():
    before = torch.cuda.memory_allocated()
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    check("tensors are counted", torch.cuda.memory_allocated() - before == 5 * MIB)
    check("reserved is what is mapped", torch.cuda.memory_reserved() == gpumem.stats().mapped)
    del x
    check("the peak stays", torch.cuda.max_memory_allocated() >= 5 * MIB and torch.cuda.memory_allocated() == before)
    torch.cuda.reset_peak_memory_stats()
    check("until it is reset", torch.cuda.max_memory_allocated() == before)
    torch.cuda.empty_cache()
    check("empty_cache", torch.cuda.memory_reserved() == gpumem.stats().mapped < 5 * MIB)
    check("the summary", "Allocated memory" in torch.cuda.memory_summary())


def captures_that_are_aborted():
    stream = gpumem.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        memory = gpumem.capture(stream).begin()
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        memory.abort()
        stream.synchronize()
        others = [gpumem.Buffer(3 * MIB, stream=stream) for _ in range(8)]
        check("tensors outlive an abort", gpumem.pointer_info(x.data_ptr()).requested == 3 * MIB)
        del x
    check("and their ends free nothing of others", all(o.live for o in others))


def what_it_has_not():
    check("out of memory", refused(lambda: torch.empty(1 << 45, device="cuda"), RuntimeError, "GPUMEM_ERROR_OUT_OF_MEMORY"))
    check("snapshots", refused(torch.cuda.memory_snapshot, NotImplementedError, "compiler"))
    check("sleep", refused(lambda: gpumem.torch.sleep("weights"), RuntimeError, "pluggable"))
    check("tags", refused(lambda: gpumem.torch.tag("weights").__enter__(), RuntimeError, "pluggable"))
    check("arenas", refused(lambda: gpumem.torch.arena().__enter__(), RuntimeError, "pluggable"))


run(falls_back, statistics, captures_that_are_aborted, what_it_has_not)

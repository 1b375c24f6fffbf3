"""PyTorch on gpumem:

    import gpumem.torch
    gpumem.torch.enable()                        # before the first tensor on the GPU

Every CUDA tensor then comes from the pool that gpumem's other users in the process have too.
Statistics, `memory_summary`, snapshots and their history, `torch.OutOfMemoryError`,
`torch.cuda.graph`, `torch.cuda.MemPool`, `torch.compile(mode="reduce-overhead")` work as with
PyTorch's own allocator.

    with gpumem.torch.tag("weights"):            # memory that can leave the device
        model = build()
    gpumem.torch.sleep("weights")                # to pinned host memory; its device memory is free for others
    gpumem.torch.wake("weights")                 # back at the same addresses: captured graphs go on

This needs a C++ compiler the first time, as PyTorch has no stable interface for it. Without one
`enable()` takes PyTorch's pluggable interface (`enable(native=False)`), which has no checkpoints
(reduce-overhead), no handles for other processes, no snapshots, and no tags; `pool()` works without
`enable()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import warnings
from typing import Any, Iterator

import torch

from .. import _arena, _evict, _library, _values
from .._types import Keep, Progress, Tag, Where
from .build import BuildError

HOOKS = {"set_init_fn": "init", "set_reset_fn": "reset", "set_memory_fraction_fn": "memory_fraction", "set_base_alloc_fn": "base_alloc",
         "set_record_stream_fn": "record_stream", "set_begin_allocate_to_pool": "begin_allocate_to_pool",
         "set_end_allocate_to_pool_fn": "end_allocate_to_pool", "set_release_pool": "release_pool"}

_lock = threading.Lock()
_native = None
_pluggable = None
_mode = None
_ipc = False


def enabled() -> str | None:
    """None, "native" (the allocator that is built) or "pluggable"."""
    return _mode


def enable(*, native: bool | None = None, ipc: bool = False) -> str:
    """Makes gpumem PyTorch's allocator for CUDA, before the first tensor there; doing it again does
    nothing, and asking then for what the first time has not given raises. Returns the mode.

    `native`: True insists on the built allocator and raises `BuildError` without a compiler; False
    takes the pluggable interface; None takes what works, with a warning where that is the pluggable
    one. `ipc=True` makes all tensors shareable with other processes, at some cost in memory;
    without it only those that are allocated in `shared()` are.
    """
    global _ipc, _mode, _native
    with _lock:
        if _mode is not None:
            if native and _mode != "native":
                raise RuntimeError("gpumem is PyTorch's allocator in this process already, by the pluggable interface; ask for native=True "
                                   "in the first gpumem.torch.enable()")
            if ipc and not _ipc:
                raise RuntimeError("gpumem is PyTorch's allocator in this process already, without handles for other processes; ask for "
                                   "ipc=True in the first gpumem.torch.enable(), or allocate in gpumem.torch.shared()")
            return _mode
        if torch.version.cuda is None:
            raise RuntimeError(f"PyTorch {torch.__version__} is built without CUDA; there is nothing to enable")
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has used CUDA already, with an allocator of its own; call gpumem.torch.enable() before the first "
                               "tensor on the GPU, and before torch.cuda functions that start it")
        if ipc and native is False:
            raise ValueError("memory for other processes needs the built allocator; do not ask for native=False with ipc=True")
        if native is not False:
            try:
                from . import build

                loaded = build.load(torch)
                why = loaded.gpumem_torch_install(int(ipc))
                if why:
                    raise RuntimeError(why.decode(errors="replace"))
                _native, _mode, _ipc = loaded, "native", ipc
                _arena.ends.append(loaded.gpumem_torch_arena_ends)
                _arena.ended.append(loaded.gpumem_torch_arena_ended)
                return _mode
            except (BuildError, OSError) as why:
                if native or ipc:
                    raise
                warnings.warn(f"gpumem.torch uses PyTorch's pluggable interface, as its own allocator could not be built (no checkpoints for "
                              f"reduce-overhead, no snapshots, no tags): {why}", RuntimeWarning, stacklevel=2)
        from . import statistics

        torch.cuda.memory.change_current_allocator(allocator())
        statistics.replace()
        _mode = "pluggable"
        return _mode


def allocator() -> torch.cuda.memory.CUDAPluggableAllocator:
    """A `torch.cuda.memory.CUDAPluggableAllocator` with all hooks, for those who set things up
    themselves."""
    global _pluggable
    if _pluggable is None:
        made = torch.cuda.memory.CUDAPluggableAllocator.__new__(torch.cuda.memory.CUDAPluggableAllocator)
        inner = torch._C._cuda_customAllocator(_library.address_of("gpumem_torch_malloc"), _library.address_of("gpumem_torch_free"))
        torch.cuda.memory._CUDAAllocator.__init__(made, inner)
        for setter, function in HOOKS.items():
            getattr(inner, setter)(_library.address_of(f"gpumem_torch_{function}"))
        _pluggable = made
    return _pluggable


def pool(**options: Any) -> torch.cuda.MemPool:
    """A `torch.cuda.MemPool` whose segments come from gpumem, for `torch.cuda.use_mem_pool`; also
    without `enable()`, beside PyTorch's own allocator, which then keeps its statistics."""
    if _mode is not None:
        return torch.cuda.MemPool(**options)
    return torch.cuda.MemPool(allocator().allocator(), **options)


def _needs_native(what):
    if _native is None:
        raise RuntimeError(f"{what} needs gpumem.torch.enable() with its own allocator" +
                           ("; this process has the pluggable one" if _mode else ""))
    return _native


@contextlib.contextmanager
def _routed(kind, tag):
    native = _needs_native("gpumem.torch.tag()" if kind == 1 else "gpumem.torch.shared()")
    kind_before, tag_before = ctypes.c_int(), ctypes.c_uint64()
    native.gpumem_torch_route(kind, tag, ctypes.byref(kind_before), ctypes.byref(tag_before))
    try:
        yield
    finally:
        native.gpumem_torch_route(kind_before.value, tag_before.value, ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_uint64()))


def tag(name: Tag) -> contextlib.AbstractContextManager[None]:
    """A block in which the thread's tensors get memory that can leave the device under a tag, a
    text or a number (`sleep`, `wake`)."""
    number = _values.tag(name)
    if number == 0:
        raise ValueError("a tag is a text or a number that is not 0")
    return _routed(1, number)


def adopt(tensors: Any, name: Tag) -> None:
    """Moves what is on the GPU already into memory of a tag: the parameters and buffers of a
    module, tensors in a list, or one tensor.

    They stay the same tensors, at other addresses, so do it before graphs are captured. Takes as
    much memory again until it is done. For models that others have loaded, perhaps by threads of
    their own, which a `tag` block does not see.
    """
    if isinstance(tensors, torch.nn.Module):
        tensors = [*tensors.parameters(), *tensors.buffers()]
    elif isinstance(tensors, torch.Tensor):
        # Its rows are tensors too, but others than it.
        tensors = [tensors]
    moved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
    with torch.no_grad(), tag(name):
        for tensor in tensors:
            if not tensor.is_cuda or tensor.numel() == 0:
                continue
            old = tensor.untyped_storage()
            # Tensors that share a storage go on sharing one. The old ones live until all have
            # moved, so that no address comes again.
            if old.data_ptr() not in moved:
                moved[old.data_ptr()] = old, old.clone()
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor.data = view.set_(moved[old.data_ptr()][1], tensor.storage_offset(), tensor.size(), tensor.stride())


def shared() -> contextlib.AbstractContextManager[None]:
    """A block in which the thread's tensors get memory that other processes can be given: through
    `torch.multiprocessing` queues, with gpumem enabled there too."""
    return _routed(2, 0)


def sleep(name: Tag, to: Where | None = None, *, progress: Progress | None = None) -> _evict.MoveReport:
    """Moves all tensors of a tag out of the device, to pinned host memory or where `to` says
    ("host", "disk"), and returns a `MoveReport`.

    Their device memory is free for others. They keep their addresses; using them before `wake`
    faults. Waits for the device.
    """
    native, number = _needs_native("gpumem.torch.sleep()"), _values.tag(name)
    torch.cuda.synchronize()
    # After a failure too nothing is allocated under the tag before a wake: some of it may be gone.
    _said(native.gpumem_torch_asleep(number, 1))
    return _evict.sleep(name, to, progress=progress)


def wake(name: Tag, *, progress: Progress | None = None) -> _evict.MoveReport:
    """Brings all tensors of a tag back to their addresses, and returns a `MoveReport`. Captured
    graphs that use them go on."""
    native, number = _needs_native("gpumem.torch.wake()"), _values.tag(name)
    report = _evict.wake(name, progress=progress)
    _said(native.gpumem_torch_asleep(number, 0))
    return report


def _said(why):
    if why:
        raise RuntimeError(why.decode(errors="replace"))


@contextlib.contextmanager
def arena(name: str = "", keep: Keep = None) -> Iterator[_arena.Arena]:
    """An arena for a step: the tensors that the thread makes in the block are free after it, no
    matter who still holds them, except for `keep` (a function that is called at the end, or what it
    would return: tensors, lists, tuples, dictionaries).

    A tensor that was not kept must not be used afterwards; that it ends later than its memory does
    no harm. So name in `keep` what a cache has got hold of in the block; what PyTorch itself keeps
    for cuBLAS, and memory of pools, of graphs and for other processes, is in no arena. Gradients are made by threads
    of autograd's own, and so are not in the arena.
    """
    _needs_native("gpumem.torch.arena()")
    with _arena.Arena(name, keep) as opened:
        yield opened


__all__ = ["BuildError", "adopt", "allocator", "arena", "enable", "enabled", "pool", "shared", "sleep", "tag", "wake"]

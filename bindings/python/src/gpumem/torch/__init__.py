"""PyTorch on gpumem:

    import gpumem.torch
    gpumem.torch.enable()                        # before the first tensor on the GPU

Every CUDA tensor then comes from the pool that gpumem's other users in the process share.
Statistics, `memory_summary`, snapshots and their history, `torch.OutOfMemoryError`,
`torch.cuda.graph`, `torch.cuda.MemPool`, `torch.compile(mode="reduce-overhead")` work as with
PyTorch's own allocator.

    with gpumem.torch.tag("weights"):            # memory that can leave the device
        model = build()
    gpumem.torch.sleep("weights")                # to pinned host memory; its device memory is free for others
    gpumem.torch.wake("weights")                 # back at the same addresses: captured graphs go on

This needs a C++ compiler the first time, because PyTorch has no stable interface for it. Without
one, `enable()` uses PyTorch's pluggable interface (`enable(native=False)`), which has no
checkpoints (reduce-overhead), no handles for other processes, no snapshots and no tags. `pool()`
works without `enable()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import warnings
from typing import Any, Iterator

import torch

from .. import _arena, _evict, _library, _values
from .._errors import Invalid
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
    """Returns the mode in use: "native" (the built allocator), "pluggable" or None."""
    return _mode


def enable(*, native: bool | None = None, ipc: bool = False) -> str:
    """Makes gpumem PyTorch's allocator for CUDA. Call it before the first tensor on the GPU.
    Calling it again does nothing, but raises if it asks for what the first call did not give.
    Returns the mode.

    `native=True` insists on the built allocator and raises `BuildError` without a compiler; False
    uses the pluggable interface; None uses what works, with a warning if that is the pluggable one.
    `ipc=True` makes all tensors shareable with other processes, at some cost in memory. Without it
    only tensors allocated in `shared()` are shareable.
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
    """Returns a `torch.cuda.memory.CUDAPluggableAllocator` with all hooks, for setting it up by
    hand."""
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
    """Returns a `torch.cuda.MemPool` whose segments come from gpumem, for
    `torch.cuda.use_mem_pool`. It also works without `enable()`, beside PyTorch's own allocator,
    which then keeps its statistics."""
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
    """A `with` block in which the thread's tensors get memory that can leave the device (`sleep`,
    `wake`) under a tag, a string or a number."""
    number = _values.tag(name)
    if number == 0:
        raise ValueError("a tag is a text or a number that is not 0")
    return _routed(1, number)


def adopt(tensors: Any, name: Tag) -> None:
    """Moves tensors that are already on the GPU into memory of a tag: the parameters and buffers of
    a module, tensors in a list, or one tensor.

    They stay the same tensors but change their addresses, so call it before graphs are captured. It
    needs as much memory again until it is done. It is for models that other code has loaded,
    perhaps on threads that a `tag` block does not see.
    """
    if isinstance(tensors, torch.nn.Module):
        tensors = [*tensors.parameters(), *tensors.buffers()]
    elif isinstance(tensors, torch.Tensor):
        # Iterating over it would give its rows, which are other tensors.
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
            # The old memory may be of another stream than the one that copies it.
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor.data = view.set_(moved[old.data_ptr()][1], tensor.storage_offset(), tensor.size(), tensor.stride())


def shared() -> contextlib.AbstractContextManager[None]:
    """A `with` block in which the thread's tensors get memory that can be shared with other
    processes through `torch.multiprocessing` queues, with gpumem enabled there too."""
    return _routed(2, 0)


def sleep(name: Tag, to: Where | None = None, *, progress: Progress | None = None) -> _evict.MoveReport:
    """Moves all tensors of a tag out of the device and returns a `MoveReport`. They go to pinned
    host memory, or where `to` says ("host", "disk").

    Their device memory is then free for other uses. They keep their addresses; using them before
    `wake` faults. Waits for the device.
    """
    native, number = _needs_native("gpumem.torch.sleep()"), _values.tag(name)
    _evict.move_options(to)  # What is wrong with it is said while nothing has changed.
    torch.cuda.synchronize()
    # Even after a failure nothing is allocated under the tag before a wake: some of it may be gone.
    _said(native.gpumem_torch_asleep(number, 1))
    return _unless_empty(number, lambda: _evict.sleep(name, to, progress=progress))


def wake(name: Tag, *, progress: Progress | None = None) -> _evict.MoveReport:
    """Brings all tensors of a tag back to their addresses, and returns a `MoveReport`. Captured
    graphs that use them work again."""
    native, number = _needs_native("gpumem.torch.wake()"), _values.tag(name)
    report = _unless_empty(number, lambda: _evict.wake(name, progress=progress))
    _said(native.gpumem_torch_asleep(number, 0))
    return report


def _unless_empty(number, move):
    try:
        return move()
    except Invalid:
        # Not a mistake if there was a tensor, and its memory has been given back since.
        if not _native.gpumem_torch_is_empty(number):
            raise
        return _evict.MoveReport(0, 0, 0)


def _said(why):
    if why:
        raise RuntimeError(why.decode(errors="replace"))


@contextlib.contextmanager
def arena(name: str = "", keep: Keep = None) -> Iterator[_arena.Arena]:
    """An arena for a step: the memory of tensors that the thread makes in the block is freed after
    it, even if something still refers to them, except for `keep` (a function that is called at the
    end, or what it would return: tensors, lists, tuples, dictionaries).

    A tensor that was not kept must not be used afterwards, but it may outlive its memory. So name
    in `keep` what a cache has stored in the block. Memory that PyTorch itself keeps for cuBLAS, and
    memory of pools, of graphs and for other processes, is in no arena. Gradients are not in the
    arena either, because autograd's own threads make them.
    """
    _needs_native("gpumem.torch.arena()")
    with _arena.Arena(name, keep) as opened:
        yield opened


__all__ = ["BuildError", "adopt", "allocator", "arena", "enable", "enabled", "pool", "shared", "sleep", "tag", "wake"]

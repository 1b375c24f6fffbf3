"""CUDA tensors in queues between processes, over the host device with a stub of CUDA's runtime:
handles, descriptors, ends."""

import gpumem.torch

# At the top, so that the process which is spawned does it too.
gpumem.torch.enable(native=True, ipc=True)

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from checks import check, run  # noqa: E402

torch.cuda.is_available = lambda: True
torch.cuda.synchronize = lambda *arguments: None


def contents(tensor):
    n = tensor.numel()
    copy = gpumem.Buffer(n)
    gpumem.memcpy(copy, tensor.data_ptr(), n)
    return set(copy.tobytes())


def child(queue, back):
    large, small, view = queue.get(timeout=60)
    back.put((contents(large), contents(small), view.data_ptr() - large.data_ptr()))
    gpumem.memset(large.data_ptr(), 9, large.numel())
    gpumem.synchronize(device=True)
    imported = gpumem.stats().allocations
    del large, small, view
    back.put(imported)
    queue.get(timeout=60)


def queues():
    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, back))
    process.start()
    large = torch.empty(30_000_000, dtype=torch.uint8, device="cuda")
    small = torch.empty(100, dtype=torch.uint8, device="cuda")
    gpumem.memset(large.data_ptr(), 3, large.numel())
    gpumem.memset(small.data_ptr(), 4, small.numel())
    gpumem.synchronize(device=True)
    queue.put((large, small, large[1000:2000]))
    seen = back.get(timeout=120)
    check("the other process sees the contents", seen[:2] == ({3}, {4}), seen)
    check("views stay views", seen[2] == 1000, seen)
    check("a segment is opened once", back.get(timeout=60) == 2)
    check("and what the other writes is seen here", contents(large) == {9})
    queue.put(None)
    process.join(60)
    check("which ends well", process.exitcode == 0, process.exitcode)


def strange_handles():
    for text in (b"x" * 64, b"gpumemt\1" + bytes(56)):
        try:
            torch.UntypedStorage._new_shared_cuda(0, text, 100, 0, b"", 0, b"", False)
            check("a strange handle is refused", False, text)
        except RuntimeError as why:
            check("a strange handle is refused", "process" in str(why) or "handle" in str(why), why)


if __name__ == "__main__":
    run(queues, strange_handles)

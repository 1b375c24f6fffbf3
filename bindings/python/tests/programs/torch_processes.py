"""PyTorch in several processes: CUDA tensors in queues, and DataLoader."""

import gpumem.torch

# At the top, so that processes which are spawned do it too.
gpumem.torch.enable(native=True, ipc=True)

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from checks import check, run  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return torch.full((1000,), float(i))


def loader():
    total = 0.0
    torch.zeros(1, device="cuda")
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=4, pin_memory=True):
        total += float(batch.to("cuda", non_blocking=True).sum())
    assert total == 1000.0 * sum(range(256)), total


def child(queue, back):
    tensors = queue.get(timeout=120)
    good = bool((tensors[0] == 3).all()) and bool((tensors[1] == 4).all())
    tensors[0].add_(1)
    torch.cuda.synchronize()
    back.put(good)
    del tensors
    torch.cuda.synchronize()
    back.put(torch.full((1000,), 9.0, device="cuda"))
    queue.get(timeout=120)


def queues():
    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, back))
    process.start()
    x = torch.full((3_000_000,), 3.0, device="cuda")
    y = torch.full((100,), 4.0, device="cuda")
    torch.cuda.synchronize()
    queue.put([x, y])
    check("the child sees the contents", back.get(timeout=180))
    check("and its changes are seen here", bool((x == 4).all()))
    theirs = back.get(timeout=60)
    check("and the other way", bool((theirs == 9).all()))
    del theirs
    queue.put(None)
    process.join(60)
    check("the child ends well", process.exitcode == 0, process.exitcode)


if __name__ == "__main__":
    run(loader, queues)

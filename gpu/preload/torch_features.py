"""What of PyTorch is easily broken by an allocator: `torch_features.py graph|compile|loader|ipc`. Prints ok, or fails."""
import sys

import torch


def graph():
    x = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = (x * 2 + 1).sin()
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = (x * 2 + 1).sin()
    for i in range(50):
        x.fill_(i)
        noise = torch.randn(1 << 21, device="cuda")
        g.replay()
        del noise
        assert torch.allclose(y, torch.full_like(y, i * 2 + 1).sin()), i


def compiled():
    f = torch.compile(lambda a, b: (a @ b).relu().sum(dim=0))
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    assert torch.allclose(f(a, b), (a @ b).relu().sum(dim=0), rtol=1e-3, atol=1e-2)


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
    x = queue.get(timeout=60)
    ok = bool((x == 3).all())
    x.add_(1)
    torch.cuda.synchronize()
    del x
    back.put(ok)


def ipc():
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, back))
    process.start()
    x = torch.full((3_000_000,), 3.0, device="cuda")
    torch.cuda.synchronize()
    queue.put(x)
    assert back.get(timeout=90)
    torch.cuda.synchronize()
    assert bool((x == 4).all())
    process.join(30)


if __name__ == "__main__":
    {"graph": graph, "compile": compiled, "loader": loader, "ipc": ipc}[sys.argv[1]]()
    torch.cuda.synchronize()
    print("ok")

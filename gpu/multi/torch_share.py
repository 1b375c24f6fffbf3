"""CUDA tensors in queues between processes on different devices: `torch_share.py native|gpumem`.

The parent has device 0 and each child the next: children get tensors of device 0, compare them on their own device, write to them, and
send back tensors of theirs. Tensors are freed on both sides while others come. Prints ok, or fails.
"""

import sys

mode = sys.argv[1] if len(sys.argv) > 1 else "native"
if mode == "gpumem":
    # At the top, so that processes which are spawned do it too.
    import gpumem.torch

    gpumem.torch.enable(native=True, ipc=True)
import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

ROUNDS, SIZES = 12, (100, 300_000, 3_000_000, 20_000_000)


def child(number, queue, back):
    here = torch.device("cuda", number)
    torch.cuda.set_device(here)
    for i in range(ROUNDS):
        tensors = queue.get(timeout=120)
        good = []
        for k, t in enumerate(tensors):
            good.append(t.device.index == 0 and bool((t.to(here) == i + k).all()))
            t.add_(1)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(here)
        del tensors, t
        own = [torch.full((n,), float(100 * number + i), device=here) for n in SIZES]
        torch.cuda.synchronize(here)
        back.put((good, own))
        queue.get(timeout=120)
        del own


def main():
    context = mp.get_context("spawn")
    numbers = range(1, torch.cuda.device_count())
    assert len(numbers) > 0, "two devices are needed"
    queues = {n: (context.Queue(), context.Queue()) for n in numbers}
    processes = [context.Process(target=child, args=(n, *queues[n])) for n in numbers]
    for p in processes:
        p.start()
    keep = []
    for i in range(ROUNDS):
        for n, (queue, back) in queues.items():
            tensors = [torch.full((size,), float(i + k), device="cuda:0") for k, size in enumerate(SIZES)]
            torch.cuda.synchronize(0)
            queue.put(tensors)
            good, theirs = back.get(timeout=180)
            assert all(good), (n, i, good)
            for k, t in enumerate(tensors):
                assert bool((t == i + k + 1).all()), (n, i, k, t[:4].tolist())
            for t in theirs:
                assert t.device.index == n, t.device
                assert bool((t.to("cuda:0") == 100 * n + i).all()), (n, i, t[:4].tolist())
            del theirs, t
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(n)
            queue.put("go on")
            # Others come and go meanwhile, of sizes that do not repeat.
            keep.append(torch.full((1_000_003 * (1 + i % 5),), float(i), device=f"cuda:{(i + n) % 2}"))
            if len(keep) > 4:
                first = keep.pop(0)
                assert bool((first == first[0]).all())
    for p in processes:
        p.join(60)
        assert p.exitcode == 0, p.exitcode
    print("figure", ROUNDS, "rounds of", len(SIZES), "tensors each way between", len(processes) + 1, "processes")


if __name__ == "__main__":
    main()
    print("ok")

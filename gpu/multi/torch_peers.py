"""One process, several devices, PyTorch and CuPy on gpumem: `torch_peers.py native|gpumem`. Prints figures, and ok, or fails.

Tensors go from device to device by copies and by kernels; streams of one device free memory of another (`record_stream`); each device has
its statistics and its limit; a model is split over the devices, and gives the gradients that it gives on one.
"""

import sys

mode = sys.argv[1] if len(sys.argv) > 1 else "native"
if mode == "gpumem":
    import gpumem
    import gpumem.torch

    gpumem.torch.enable(native=True)
import torch  # noqa: E402

count = torch.cuda.device_count()
assert count > 1, "two devices are needed"
devices = [torch.device("cuda", d) for d in range(count)]


def copies():
    torch.manual_seed(0)
    for i in range(40):
        n = 1000 + 777_777 * (i % 13)
        x = torch.arange(n, dtype=torch.float32, device=devices[i % count]) + i
        for d in (*devices, *reversed(devices)):
            x = x.to(d, non_blocking=True)
            x += 1
        want = torch.arange(n, dtype=torch.float32) + i + 2 * count
        assert torch.equal(x.cpu(), want), i


def streams():
    """Freed at once in the order of its own device's stream, while a stream of another device reads it yet."""
    wrong = 0
    sides = [torch.cuda.Stream(d) for d in devices]
    for i in range(60):
        owner, user = devices[i % count], devices[(i + 1) % count]
        with torch.cuda.device(owner):
            x = torch.full((4_000_000 + 64 * i,), float(i), device=owner)
            ready = torch.cuda.Event()
            ready.record()
        side = sides[user.index]
        side.wait_event(ready)
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            y = x.to(user, non_blocking=True)
            done = torch.cuda.Event()
            done.record(side)
        x.record_stream(side)
        del x
        # What has the freed memory now must not be seen by the copy.
        others = [torch.full((4_000_000 + 64 * i,), -1.0, device=owner) for _ in range(2)]
        done.synchronize()
        wrong += int((y != i).sum())
        del others, y
    assert wrong == 0, f"{wrong} wrong elements"


def books():
    for d in devices:
        torch.cuda.synchronize(d)
    before = [torch.cuda.memory_allocated(d) for d in devices]
    x = torch.empty(64 << 20, dtype=torch.uint8, device=devices[1])
    assert torch.cuda.memory_allocated(devices[1]) - before[1] == 64 << 20
    assert torch.cuda.memory_allocated(devices[0]) == before[0]
    del x
    # A limit of one device is not one of the others.
    total = torch.cuda.get_device_properties(1).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.1, devices[1])
    try:
        torch.empty(total // 5, dtype=torch.uint8, device=devices[1])
        raise AssertionError("a fifth of the memory, with a limit of a tenth")
    except torch.OutOfMemoryError:
        pass
    y = torch.empty(total // 5, dtype=torch.uint8, device=devices[0])
    del y
    torch.cuda.set_per_process_memory_fraction(1.0, devices[1])
    y = torch.empty(total // 5, dtype=torch.uint8, device=devices[1])
    del y
    torch.cuda.empty_cache()


def split_model():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(512, 512) for _ in range(2 * count)]

    def run(places):
        moved = [type(layer)(512, 512).to(p) for layer, p in zip(layers, places)]
        for a, b in zip(moved, layers):
            a.load_state_dict(b.state_dict())
        x = torch.ones(64, 512, device=places[0]) / 7
        for layer, p in zip(moved, places):
            x = torch.tanh(layer(x.to(p)))
        x.square().sum().backward()
        return [layer.weight.grad.cpu() for layer in moved]

    one, several = run([devices[0]] * len(layers)), run([devices[i // 2] for i in range(len(layers))])
    for a, b in zip(one, several):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), (a - b).abs().max()


def cupy_peers():
    try:
        import cupy
    except ImportError as why:
        print("figure no CuPy:", why)
        return
    if mode == "gpumem":
        import gpumem.cupy

        gpumem.cupy.enable()
    arrays = []
    for d in range(count):
        with cupy.cuda.Device(d):
            arrays.append(cupy.arange(3_000_000, dtype=cupy.float32) + d)
            cupy.cuda.Device(d).synchronize()
    for d in range(count):
        other = (d + 1) % count
        with cupy.cuda.Device(d):
            there = cupy.empty_like(arrays[d])
            there.data.copy_from_device_async(arrays[other].data, arrays[other].nbytes, cupy.cuda.get_current_stream())
            cupy.cuda.Device(d).synchronize()
            assert bool((there == cupy.arange(3_000_000, dtype=cupy.float32) + other).all()), d
            assert there.device.id == d
    if mode == "gpumem":
        for d in range(count):
            assert gpumem.stats(d).live >= 12_000_000, d


for part in (copies, streams, books, split_model, cupy_peers):
    part()
    print(part.__name__, "ok", flush=True)
if mode == "gpumem":
    for d in range(count):
        torch.cuda.synchronize(d)
    gpumem.validate()
print("ok")

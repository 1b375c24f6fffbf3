"""A small Llama on several ranks, by DDP, FSDP and FSDP2, a process and a device each, over NCCL.

    torch_train.py native|expandable|gpumem|preload OUTPUT.jsonl [RANKS]

`native`: PyTorch's allocator as it is, and what `gpumem run --torch` makes of it (`preload` is the same with that name). `gpumem`:
gpumem.torch.enable(). The parent starts a process for each rank and waits. Rank 0 appends one JSON line for each strategy to OUTPUT:
the losses, the milliseconds of a step, and for each rank the most that the driver said was used beyond what was there before
training, and the most that tensors took, bytes.

    STRATEGIES="ddp fsdp fsdp2"   STEPS=30   LAYERS=12 HIDDEN=1024   DEVICE=cuda (cpu: gloo, to try the script)
"""

import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

mode, output = sys.argv[1], sys.argv[2]
ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
STRATEGIES = os.environ.get("STRATEGIES", "ddp fsdp fsdp2").split()
STEPS = int(os.environ.get("STEPS", "30"))
LAYERS, HIDDEN = int(os.environ.get("LAYERS", "12")), int(os.environ.get("HIDDEN", "1024"))
TOKENS, LONGEST = int(os.environ.get("TOKENS", "8192")), int(os.environ.get("LONGEST", "2048"))
VOCABULARY = 16000
DEVICE = os.environ.get("DEVICE", "cuda")
LIMIT = int(os.environ.get("LIMIT", "200"))


def parent():
    """Starts the ranks, and ends those that are left when one has failed."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "WORLD_SIZE": str(ranks), "STORE": os.path.join(folder, "store"), "NCCL_NVLS_ENABLE": "0",
               "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "PYTHONUNBUFFERED": "1",
               "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "4"}
        if mode == "expandable":
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        all_ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:]], env={**env, "RANK": str(r)})
                     for r in range(ranks)]
        end = time.monotonic() + LIMIT
        failed = None
        while any(p.poll() is None for p in all_ranks):
            failed = next((p.returncode for p in all_ranks if p.poll() not in (None, 0)), failed)
            if failed is not None or time.monotonic() > end:
                failed = failed if failed is not None else f"no end after {LIMIT} s"
                for p in all_ranks:
                    p.kill()
                break
            time.sleep(0.05)
        for p in all_ranks:
            p.wait()
            failed = failed or p.returncode
    if failed:
        sys.exit(f"a rank failed: {failed}")


if "RANK" not in os.environ:
    parent()
    sys.exit()

rank = int(os.environ["RANK"])
if mode == "gpumem":
    import gpumem.torch

    gpumem.torch.enable(native=True)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

gpu = DEVICE == "cuda"
device = torch.device("cuda", rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)


# ---- the model -----------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Layer(nn.Module):
    """Attention with rotated positions and a gated linear unit, each behind a norm, as Llama has them."""

    def __init__(self, width, head=64):
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        inner = width * 8 // 3 // 64 * 64
        self.gate, self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, width // self.head, self.head).permute(2, 0, 3, 1, 4)
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[: x.shape[-2]].to(x.dtype), sin[: x.shape[-2]].to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Llama(nn.Module):
    def __init__(self, layers=LAYERS, width=HIDDEN):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, VOCABULARY, bias=False)
        angles = torch.outer(torch.arange(LONGEST).float(), 1 / 10000 ** (torch.arange(0, 64, 2).float() / 64))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float()[:-1], ids.flatten()[1:])


def build(strategy, layers=LAYERS):
    torch.manual_seed(0)
    with device:
        model = Llama(layers)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[rank] if gpu else None, gradient_as_bucket_view=True)
    if strategy == "fsdp":
        from functools import partial

        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32)
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, mixed_precision=precision, use_orig_params=True,
                                        device_id=rank if gpu else None, limit_all_gathers=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    return model


# ---- training ------------------------------------------------------------------------------------


def wait():
    if gpu:
        torch.cuda.synchronize()


def used():
    """Bytes of the device in use, by NVML: what the driver tells a program that `gpumem run` has started leaves free memory out."""
    if not gpu:
        return 0
    global nvml
    if nvml is None:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        assert nvml.nvmlInit_v2() == 0, "NVML does not start"
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(rank, ctypes.byref(handle)) == 0, "NVML does not know the device"
    assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0, "NVML does not say how much is used"
    return memory[2]


nvml = None


def cuda(function, default=0):
    return getattr(torch.cuda, function)(device) if gpu else default


def step(model, optimiser, ids):
    # FSDP casts by its own policy.
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=isinstance(model, nn.parallel.DistributedDataParallel)):
        loss = model(ids)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return loss.detach()


def optimiser_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def batches(count, seed):
    """Lengths that change from step to step, the same number of tokens at most: the same shapes on all ranks, other contents."""
    shapes = random.Random(seed)
    words = torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(count):
        length = min(LONGEST, shapes.randrange(64, LONGEST + 1, 8))
        yield torch.randint(0, VOCABULARY, (max(1, TOKENS // length), length), generator=words).to(device)


def warm_up(strategy):
    """Loads kernels and opens NCCL's channels, which take memory of the driver's that no allocator sees."""
    for size in (1, 1 << 14, 1 << 23):
        whole, part = torch.ones(size * ranks, device=device), torch.ones(size, device=device)
        dist.all_reduce(whole)
        dist.all_gather(list(whole.view(ranks, size).unbind()), part)
        if gpu:
            dist.reduce_scatter_tensor(part, whole)
            dist.all_gather_into_tensor(whole, part)
    model = build(strategy, layers=2)
    optimiser = optimiser_of(model)
    for ids in batches(4, seed=9):
        step(model, optimiser, ids)
    wait()


def tidy():
    import gc

    gc.collect()
    wait()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.synchronize()


def train(strategy):
    warm_up(strategy)
    tidy()
    dist.barrier()
    # What the driver has given to others than the allocator.
    others = used() - cuda("memory_reserved")
    if gpu:
        torch.cuda.reset_peak_memory_stats(device)
    model = build(strategy)
    optimiser = optimiser_of(model)
    times, losses, most, reserved = [], [], 0, 0
    for ids in batches(STEPS, seed=1):
        wait()
        start = time.perf_counter()
        loss = step(model, optimiser, ids)
        wait()
        times.append((time.perf_counter() - start) * 1e3)
        losses.append(loss.item())
        most, reserved = max(most, used() - others), max(reserved, cuda("memory_reserved"))
    # Batches of one shape: the steps whose time is compared, as those of new shapes are also the
    # kernels' first.
    same = torch.randint(0, VOCABULARY, (max(1, TOKENS // 1024), min(1024, LONGEST)), generator=torch.Generator().manual_seed(rank)).to(device)
    steady = []
    for _ in range(STEPS):
        wait()
        start = time.perf_counter()
        step(model, optimiser, same)
        wait()
        steady.append((time.perf_counter() - start) * 1e3)
        most, reserved = max(most, used() - others), max(reserved, cuda("memory_reserved"))
    weights = sum(float(p.detach().double().abs().sum()) for p in local(model))
    mine = {"rank": rank, "driver_peak": most, "reserved_peak": reserved, "allocated_peak": cuda("max_memory_allocated"), "losses": losses,
            "weights": weights, "step_ms": statistics.median(steady[3:]), "varied_ms": statistics.median(times[3:])}
    of_all = [None] * ranks
    dist.all_gather_object(of_all, mine)
    if rank == 0:
        with open(output, "a", encoding="utf-8") as file:
            file.write(json.dumps({"mode": mode, "strategy": strategy, "torch": torch.__version__, "ranks": of_all}) + "\n")
    del model, optimiser, loss
    tidy()
    dist.barrier()


def local(model):
    for p in model.parameters():
        yield p.to_local() if hasattr(p, "to_local") else p


torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
torch.backends.cuda.matmul.allow_tf32 = False
# A file for the ranks to find each other by: no port to be taken.
options = {"device_id": device} if gpu else {}
dist.init_process_group("nccl" if gpu else "gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=ranks, **options)
for one in STRATEGIES:
    train(one)
if mode == "gpumem":
    import gpumem

    gpumem.validate()
    if rank == 0:
        print("stats", gpumem.stats())
dist.destroy_process_group()

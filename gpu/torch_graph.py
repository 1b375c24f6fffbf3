"""torch.cuda.graph on gpumem: a training step captured once and replayed, against the same steps run eagerly.

    python gpu/torch_graph.py [LIBRARY]

LIBRARY is .gpu/lib/libgpumem.so.0 by default. Both runs start from the same parameters and see the same batches; the
parameters afterwards must be equal bit by bit. Between replays other tensors come and go and the cache is emptied. Prints
one line per check; exits with 1 when one fails.
"""

import ctypes
import os
import sys

os.environ.setdefault("GPUMEM_BACKEND", "cuda")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch  # noqa: E402

here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
path = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, ".gpu/lib/libgpumem.so.0"))
library = ctypes.CDLL(path)
pluggable = torch.cuda.memory.CUDAPluggableAllocator(path, "gpumem_torch_malloc", "gpumem_torch_free")
torch.cuda.memory.change_current_allocator(pluggable)
hooks = pluggable._allocator if hasattr(pluggable, "_allocator") else pluggable.allocator()


def address(name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


for setter, function in [
    ("set_init_fn", "gpumem_torch_init"),
    ("set_reset_fn", "gpumem_torch_reset"),
    ("set_base_alloc_fn", "gpumem_torch_base_alloc"),
    ("set_record_stream_fn", "gpumem_torch_record_stream"),
    ("set_begin_allocate_to_pool", "gpumem_torch_begin_allocate_to_pool"),
    ("set_end_allocate_to_pool_fn", "gpumem_torch_end_allocate_to_pool"),
    ("set_release_pool", "gpumem_torch_release_pool"),
]:
    getattr(hooks, setter)(address(function))

failed = False


def check(what, good):
    global failed
    failed = failed or not good
    print(("pass " if good else "FAIL ") + what, flush=True)


torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
device = torch.device("cuda")
BATCH, WIDTH, STEPS = 256, 1024, 200


def model():
    torch.manual_seed(1)
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)]
    return torch.nn.Sequential(*layers).to(device)


def optimizer(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3, capturable=True)


def batches():
    source = torch.Generator(device=device).manual_seed(2)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, device=device, generator=source)


def step(net, opt, x):
    opt.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(net(x), x.roll(1, 1))
    loss.backward()
    opt.step()
    return loss


def warm_up(net, opt, x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(net, opt, x)
    torch.cuda.current_stream().wait_stream(side)


static = torch.zeros(BATCH, WIDTH, device=device)
eager, eager_opt = (lambda n: (n, optimizer(n)))(model())
warm_up(eager, eager_opt, static)
losses = []
for batch in batches():
    losses.append(step(eager, eager_opt, batch).detach().clone())

net, opt = (lambda n: (n, optimizer(n)))(model())
warm_up(net, opt, static)
graph = torch.cuda.CUDAGraph()
opt.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    captured_loss = step(net, opt, static)
replayed = []
churn = []
for i, batch in enumerate(batches()):
    static.copy_(batch)
    graph.replay()
    replayed.append(captured_loss.detach().clone())
    churn.append(torch.full((1 + (i * 7919) % 4000, 1024), float(i), device=device))
    if len(churn) > 5:
        churn.pop(i % 5)
    if i % 40 == 39:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
check(f"{STEPS} replayed training steps give the eager losses", all(torch.equal(a, b) for a, b in zip(losses, replayed)))
same = all(torch.equal(a, b) for a, b in zip(eager.parameters(), net.parameters()))
check("parameters are equal bit by bit", same)

# Two graphs that never run at once share a pool.
x = torch.ones(1 << 20, device=device)
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    a = (x * 2 + 1).sin().sum()
with torch.cuda.graph(second, pool=first.pool()):
    b = (x * 3 - 1).cos().sum()
for value in (0.5, 1.5, 2.5):
    x.fill_(value)
    first.replay()
    got_a = a.clone()
    second.replay()
    got_b = b.clone()
    check(f"graphs of one pool, input {value}", torch.equal(got_a, (x * 2 + 1).sin().sum()) and torch.equal(got_b, (x * 3 - 1).cos().sum()))

# A capture that fails leaves everything usable.
try:
    bad = torch.cuda.CUDAGraph()
    with torch.cuda.graph(bad):
        y = x + 1
        torch.cuda.synchronize()
    check("a synchronisation in a capture is refused", False)
except RuntimeError:
    check("a synchronisation in a capture is refused", True)
del bad
torch.cuda.synchronize()
check("and allocating goes on", bool(((x + 1) == (x + 1)).all()))

del graph, first, second, net, opt, a, b, captured_loss, churn
torch.cuda.synchronize()
torch.cuda.empty_cache()
library.gpumem_validate.restype = ctypes.c_int32
check("gpumem_validate", library.gpumem_validate() == 0)
sys.exit(failed)

"""torch.compile(mode="reduce-overhead"): cudagraph trees, whose checkpoints of pools are the
allocator's."""

import gpumem.torch

gpumem.torch.enable(native=True)

import torch  # noqa: E402
from checks import check, run  # noqa: E402

device = torch.device("cuda")


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[m for _ in range(6) for m in (torch.nn.Linear(512, 512), torch.nn.GELU())]).to(device)


def inference():
    model = net().eval()
    fast = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for i in range(30):
            x = torch.randn(64, 512, device=device)
            torch.compiler.cudagraph_mark_step_begin()
            got = fast(x).clone()
            assert torch.allclose(got, model(x), atol=1e-3, rtol=1e-3), i


def trees():
    # Two functions whose graphs follow one another by different ways: the pool is set back to
    # earlier states.
    a = torch.compile(lambda t: (t * 2).sin() + 1, mode="reduce-overhead")
    b = torch.compile(lambda t: (t - 1).cos() * t, mode="reduce-overhead")
    c = torch.compile(lambda t, u: t @ u.T, mode="reduce-overhead")
    x = torch.randn(256, 256, device=device)
    for i in range(24):
        torch.compiler.cudagraph_mark_step_begin()
        first = a(x)
        second = b(first) if i % 3 else b(x)
        third = c(first, second) if i % 2 else c(second, first)
        fa = (x * 2).sin() + 1
        fb = (fa - 1).cos() * fa if i % 3 else (x - 1).cos() * x
        fc = fa @ fb.T if i % 2 else fb @ fa.T
        assert torch.allclose(first, fa, atol=1e-4) and torch.allclose(second, fb, atol=1e-4), i
        assert torch.allclose(third, fc, atol=1e-2, rtol=1e-3), i
        del first, second, third


def training():
    model, same = net(), net()
    fast = torch.compile(model, mode="reduce-overhead")
    one, two = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, same))
    for i in range(20):
        x = torch.randn(64, 512, device=device)
        for m, o in ((fast, one), (same, two)):
            torch.compiler.cudagraph_mark_step_begin()
            o.zero_grad(set_to_none=True)
            m(x).square().mean().backward()
            o.step()
    worst = max(float((p - q).abs().max()) for p, q in zip(model.parameters(), same.parameters()))
    check("parameters agree with the eager ones", worst < 1e-3, worst)


def graphs_were_made():
    from torch._dynamo.utils import counters

    skipped = counters["inductor"]["cudagraph_skips"]
    check("no graph was skipped", skipped == 0, skipped)
    check("pools are in the snapshot", any(tuple(s["segment_pool_id"]) != (0, 0) for s in torch.cuda.memory_snapshot()))
    gpumem.validate()


run(inference, trees, training, graphs_were_made)

"""A small model trained with lengths that change: prints one JSON line. `torch_train.py [STEPS]`; the allocator is whatever the
environment says. Losses do not depend on it."""
import json
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
device = torch.device("cuda")
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True, device=device), 8, enable_nested_tensor=False
)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
lengths = torch.randint(64, 640, (steps,), generator=torch.Generator().manual_seed(1)).tolist()
free_at_start, total = torch.cuda.mem_get_info()
losses, times, peak = [], [], 0
for i, length in enumerate(lengths):
    batch = max(1, 8192 // length)
    x = torch.randn(batch, length, 1024, generator=torch.Generator().manual_seed(i)).to(device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (model(x).float() - x).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    times.append((time.perf_counter() - start) * 1e3)
    losses.append(round(float(loss), 4))
print(json.dumps({
    "backend": torch.cuda.get_allocator_backend(),
    "losses": losses[:: max(1, steps // 6)],
    "step_ms": round(statistics.median(times[steps // 3:]), 2),
    "allocated_peak_mib": torch.cuda.max_memory_allocated() >> 20,
    "reserved_peak_mib": torch.cuda.max_memory_reserved() >> 20,
}))

"""Statistics for PyTorch's pluggable interface, which has none: replacements for functions of
torch.cuda that read libgpumem's counters."""

import torch

from .. import _stats


def _device(device):
    return torch.cuda._utils._get_device_index(device, optional=True)


def _stat(current=0, peak=0, allocated=0, freed=0):
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def _pools(**values):
    # gpumem has no pool of small sizes apart.
    return {"all": _stat(**values), "small_pool": _stat(), "large_pool": _stat(**values)}


def memory_stats_as_nested_dict(device=None):
    """Returns libgpumem's counters under PyTorch's names. They count tensors together with all
    other gpumem memory of the device."""
    if not torch.cuda.is_initialized():
        return {}
    s = _stats.stats(_device(device))
    live = _pools(current=s.live, peak=s.peak_live)
    count = _pools(current=s.allocations, peak=s.allocations, allocated=s.mallocs, freed=s.frees)
    return {
        "allocation": count, "active": count, "segment": _pools(current=s.extents, peak=s.extents), "inactive_split": _pools(),
        "allocated_bytes": live, "active_bytes": live, "requested_bytes": _pools(current=s.requested, peak=s.peak_live),
        "reserved_bytes": _pools(current=s.mapped, peak=s.peak_mapped), "inactive_split_bytes": _pools(),
        "oversize_allocations": _stat(), "oversize_segments": _stat(), "num_alloc_retries": 0, "num_ooms": s.out_of_memory,
        "num_sync_all_streams": 0, "num_device_alloc": s.growths, "num_device_free": 0, "max_split_size": -1,
    }


def reset_accumulated_memory_stats(device=None):
    """Does nothing: libgpumem's counters since its start cannot be reset."""


def reset_peak_memory_stats(device=None):
    """Sets the peaks back to the present values."""
    _stats.reset_peak(_device(device))


def memory_snapshot(mempool_id=None, include_traces=True):
    """Raises: the pluggable interface has no snapshots."""
    raise NotImplementedError("memory snapshots need gpumem.torch's own allocator, which a C++ compiler builds; where the first "
                              "gpumem.torch.enable() of a process has native=True, it says why it cannot")


def replace():
    """Puts these functions into torch.cuda and torch.cuda.memory."""
    for function in (memory_stats_as_nested_dict, reset_accumulated_memory_stats, reset_peak_memory_stats, memory_snapshot):
        for module in (torch.cuda.memory, torch.cuda):
            if hasattr(module, function.__name__):
                setattr(module, function.__name__, function)

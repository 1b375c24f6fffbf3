"""RMM on gpumem."""

import rmm

import gpumem
import gpumem.rmm
from checks import check, run


def buffers():
    rmm.mr.set_current_device_resource(gpumem.rmm.resource())
    before = gpumem.stats().allocations
    buffer = rmm.DeviceBuffer(size=1 << 20)
    check("buffers come from gpumem", gpumem.pointer_info(buffer.ptr).requested == 1 << 20)
    copy = rmm.DeviceBuffer.to_device(b"hello" * 100)
    check("contents", copy.tobytes() == b"hello" * 100)
    del buffer, copy
    check("and are given back", gpumem.stats().allocations == before)
    try:
        rmm.DeviceBuffer(size=1 << 45)
        check("running out is a MemoryError", False, "no error")
    except MemoryError:
        check("running out is a MemoryError", True)


run(buffers)

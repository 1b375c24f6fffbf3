"""A stand-in for PyTorch that writes down what torch_empty.py asks of it, into `log` in the folder of its --library: who
allocates, tensors made, most of them alive when one was asked for, and a number that goes with their sizes. A file
`broken` there makes every allocator but PyTorch's own fail."""

import atexit
import os
import sys

FOLDER = os.path.dirname(sys.argv[sys.argv.index("--library") + 1])
uint8, device = 1, str
allocator, asked = ["torch_native"], []


class Tensor:
    alive = 0

    def __init__(self):
        Tensor.alive += 1

    def __del__(self):
        Tensor.alive -= 1


def empty(size, dtype, device):
    asked.append((size, Tensor.alive))
    return Tensor()


class cuda:
    class memory:
        CUDAPluggableAllocator = staticmethod(lambda *names: names)

        def change_current_allocator(names):
            if os.path.exists(os.path.join(FOLDER, "broken")):
                sys.exit("no such device")
            allocator[:] = [os.path.basename(names[0]), *names[1:]]


@atexit.register
def write_down():
    if asked:
        with open(os.path.join(FOLDER, "log"), "a", encoding="utf-8") as log:
            print(*allocator, len(asked), max(alive for _, alive in asked), hash(tuple(asked)), file=log)

#!/usr/bin/env python3
"""Writes training.csv.gz: the device allocations of a transformer's training steps, worked out from tensor shapes.

Nothing is run or recorded. The script walks through a decoder-only transformer (RMS norm, rotary attention with
grouped keys and values, gated MLP) as an eager framework executes it: weights, then per step the activations that
the backward pass needs, temporaries, gradients, optimiser state on the first step, temporaries of Adam. Batch and
length vary from step to step, every fifth step also evaluates without keeping activations, and batches arrive on a
copy stream of their own and are freed on the compute stream. Sizes are in bytes, pointers are running numbers.

    python3 make_training_trace.py          writes training.csv.gz beside this file
    python3 make_training_trace.py -        writes the same log, uncompressed, to stdout

The log depends on nothing but this file.
"""

import gzip
import io
import os
import sys

LAYERS, HIDDEN, HEADS, KV_HEADS, MLP, VOCAB = 4, 1024, 16, 4, 2816, 16000
KV = HIDDEN * KV_HEADS // HEADS
STEPS = 15
BATCHES = (1, 2, 3, 4, 6)
LENGTHS = range(96, 1025, 8)
COMPUTE, COPY = 0, 0x7F10
BF16, F32, I64 = 2, 4, 8


class Numbers:
    """A fixed linear congruential sequence: the same on every Python, which `random` does not promise."""

    def __init__(self, seed):
        self.state = seed

    def choice(self, items):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return items[(self.state >> 33) % len(items)]


class Log:
    """The log so far, and what is live in it."""

    def __init__(self, out):
        self.out, self.time, self.made, self.live = out, 0, 0, {}
        out.write("Thread,Time,Action,Pointer,Size,Stream\n")

    def line(self, action, pointer, size, stream):
        self.time += 1
        self.out.write(f"0,{self.time},{action},{pointer:#x},{size},{stream:#x}\n")

    def alloc(self, *shape, stream=COMPUTE):
        size = 1
        for n in shape:
            size *= n
        self.made += 1
        self.live[self.made] = size
        self.line("allocate", self.made, size, stream)
        return self.made

    def free(self, *pointers, stream=COMPUTE):
        for p in pointers:
            self.line("free", p, self.live.pop(p), stream)


def weight_shapes():
    """Elements of every parameter, in the order a module tree holds them."""
    yield VOCAB * HIDDEN
    for _ in range(LAYERS):
        yield from (HIDDEN * HIDDEN, KV * HIDDEN, KV * HIDDEN, HIDDEN * HIDDEN)
        yield from (MLP * HIDDEN, MLP * HIDDEN, HIDDEN * MLP)
        yield from (HIDDEN, HIDDEN)
    yield HIDDEN
    yield VOCAB * HIDDEN


def norm(log, tokens, keep):
    """RMS norm: works in f32, keeps the scale and the result. Returns (result, kept)."""
    wide = log.alloc(tokens, HIDDEN, F32)
    square = log.alloc(tokens, HIDDEN, F32)
    scale = log.alloc(tokens, F32)
    log.free(square)
    out = log.alloc(tokens, HIDDEN, BF16)
    log.free(wide)
    if not keep:
        log.free(scale)
        return out, []
    return out, [scale]


def layer(log, batch, length, x, keep):
    """One decoder layer. Returns (output, what the backward pass needs, in order of making)."""
    tokens, kept = batch * length, [x]

    def done(*pointers):
        kept.extend(pointers) if keep else log.free(*pointers)

    normed, scale = norm(log, tokens, keep)
    kept += scale
    q, k, v = (log.alloc(tokens, width, BF16) for width in (HIDDEN, KV, KV))
    done(normed)
    turned = []
    for p, width in ((q, HIDDEN), (k, KV)):
        half = log.alloc(tokens, width, BF16)
        turned.append(log.alloc(tokens, width, BF16))
        log.free(half, p)
    sums = log.alloc(batch, HEADS, length, F32)
    attended = log.alloc(tokens, HIDDEN, BF16)
    done(*turned, v, sums)
    projected = log.alloc(tokens, HIDDEN, BF16)
    done(attended)
    middle = log.alloc(tokens, HIDDEN, BF16)
    log.free(projected)
    if not keep:
        log.free(x)
    normed, scale = norm(log, tokens, keep)
    kept += scale
    gate = log.alloc(tokens, MLP, BF16)
    active = log.alloc(tokens, MLP, BF16)
    up = log.alloc(tokens, MLP, BF16)
    done(normed)
    product = log.alloc(tokens, MLP, BF16)
    done(gate, active, up)
    down = log.alloc(tokens, HIDDEN, BF16)
    done(product)
    out = log.alloc(tokens, HIDDEN, BF16)
    log.free(down)
    done(middle)
    return out, kept if keep else []


def forward(log, batch, length, keep):
    """From the embedding to the loss. Returns (loss, kept per layer, kept by the head)."""
    tokens = batch * length
    x = log.alloc(tokens, HIDDEN, BF16)
    angles = [log.alloc(length, HIDDEN // HEADS, BF16) for _ in range(2)]
    layers = []
    for _ in range(LAYERS):
        x, kept = layer(log, batch, length, x, keep)
        layers.append(kept)
    normed, scale = norm(log, tokens, keep)
    logits = log.alloc(tokens, VOCAB, BF16)
    wide = log.alloc(tokens, VOCAB, F32)
    log.free(logits)
    logarithms = log.alloc(tokens, VOCAB, F32)
    loss = log.alloc(F32)
    log.free(wide)
    if keep:
        return loss, layers, [*angles, x, *scale, normed, logarithms]
    log.free(logarithms, normed, x, *angles)
    return loss, [], []


def backward(log, batch, length, layers, head, weights):
    """Gradients in reverse order, freeing what each stage kept. Returns the weights' gradients."""
    tokens, gradients = batch * length, []

    def gradient(index):
        gradients.append(log.alloc(weights[index], BF16))

    *angles, x, scale, normed, logarithms = head
    wide = log.alloc(tokens, VOCAB, F32)
    log.free(logarithms)
    narrow = log.alloc(tokens, VOCAB, BF16)
    log.free(wide)
    gradient(-1)
    flow = log.alloc(tokens, HIDDEN, BF16)
    log.free(narrow, normed)
    gradient(-2)
    log.free(scale, x)
    for number in reversed(range(LAYERS)):
        kept, first = layers[number], 1 + 9 * number
        for step, index in enumerate((6, 5, 4, 8, 3, 2, 1, 0, 7)):
            width = (MLP, MLP, MLP, HIDDEN, HIDDEN, KV, KV, HIDDEN, HIDDEN)[step]
            part = log.alloc(tokens, width, BF16)
            gradient(first + index)
            if kept:
                log.free(kept.pop())
            if step in (3, 8):
                # The norm's own backward works in f32 and adds to the residual's gradient.
                wide = log.alloc(tokens, HIDDEN, F32)
                added = log.alloc(tokens, HIDDEN, BF16)
                log.free(wide, flow)
                flow = added
            log.free(part)
            if kept:
                log.free(kept.pop())
        log.free(*reversed(kept))
    gradient(0)
    log.free(flow, *angles)
    return gradients


def adam(log, weights, gradients, state):
    """One optimiser step, parameter by parameter; the two moments are made on the first."""
    for n in range(len(gradients)):
        if n >= len(state):
            state.append([log.alloc(weights[n], F32), log.alloc(weights[n], F32)])
        root = log.alloc(weights[n], F32)
        update = log.alloc(weights[n], F32)
        log.free(root)
        log.free(update)


def write(out):
    log, numbers = Log(out), Numbers(20)
    weights = list(weight_shapes())
    parameters = [log.alloc(n, BF16) for n in weights]
    assert len(parameters) == 3 + 9 * LAYERS
    state = []
    for step in range(STEPS):
        for training in (True, False):
            if not training and step % 5 != 4:
                continue
            batch, length = numbers.choice(BATCHES), numbers.choice(LENGTHS)
            ids = log.alloc(batch, length, I64, stream=COPY)
            labels = log.alloc(batch, length, I64, stream=COPY)
            loss, layers, head = forward(log, batch, length, keep=training)
            if training:
                gradients = backward(log, batch, length, layers, head, weights)
                # Gradients come in backward order; the optimiser walks the parameters forwards.
                adam(log, weights, gradients, state)
                log.free(*gradients)
            log.free(loss, ids, labels)


def main():
    text = io.StringIO()
    write(text)
    data = text.getvalue().encode()
    if sys.argv[1:] == ["-"]:
        sys.stdout.buffer.write(data)
        return
    if sys.argv[1:]:
        sys.exit(f"unknown argument {sys.argv[1]!r}: give none, or - for stdout")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training.csv.gz")
    with open(path, "wb") as file:
        # No name and no time in the gzip header, so that the bytes do not depend on when it was
        # made.
        with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed:
            packed.write(data)
    print(f"{path}: {data.count(10) - 1} operations, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()

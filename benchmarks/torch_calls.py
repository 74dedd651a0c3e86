"""Measures what a call from PyTorch costs beyond the bare kernel, and training steps of layers beside torch's.

    python benchmarks/torch_calls.py [--threads 1] [--rounds 400]

The kernel is bound to its tensors with packed weights. The calls alternate with it, one at a time, and what is shown is
the median of the differences: a mean would count the moments at which other processes run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from report import Report

import convsmith.torch as ct
from convsmith.frontend.window import ConvOptions, window_of
from convsmith.torch import operators
from convsmith.torch.calls import TensorForm, conv_problem, kept_kernel

LAST = torch.channels_last
CALLS = [(16, 16, 1, 1), (16, 16, 8, 3), (32, 32, 14, 3), (64, 64, 14, 1), (64, 64, 14, 3), (128, 128, 14, 3),
         (256, 256, 7, 3), (512, 512, 7, 3)]  # fmt: skip
"""Channels, output channels, height and width, and kernel of layers at batch 1."""
LAYERS = [(3, 64, 224, 7, 2), (64, 64, 56, 3, 1), (64, 128, 56, 3, 2), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1),
          (512, 512, 7, 3, 1)]  # fmt: skip
"""Channels, output channels, height and width, kernel and stride of layers of ResNet-18."""


def alternating(functions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return the seconds of each function in each round; who begins changes from round to round."""
    taken: list[list[float]] = [[] for _ in functions]
    for function in functions:
        for _ in range(3):
            function()
    for turn in range(rounds):
        for n in range(len(functions)):
            at = (n + turn) % len(functions)
            start = time.perf_counter()
            functions[at]()
            taken[at].append(time.perf_counter() - start)
    return taken


def calls(threads: int, rounds: int) -> list[list[str]]:
    """Return a row for each of `CALLS`: the bare kernel's time, and microseconds beyond it."""
    rows = []
    for ic, oc, size, k in CALLS:
        x = torch.randn(1, ic, size, size).to(memory_format=LAST)
        w = torch.nn.Parameter(torch.randn(oc, ic, k, k).to(memory_format=LAST), requires_grad=False)
        bias, pad = torch.nn.Parameter(torch.randn(oc), requires_grad=False), k // 2
        forms = [TensorForm(t.shape, t.stride(), t.dtype) for t in (x, w)]
        window = window_of((k, k), ConvOptions(padding=pad))
        kernel = kept_kernel(conv_problem(*forms, bias.dtype, window), threads)
        bare = kernel.kernel.bind(x, kernel.pack(w, bias), kernel.new())
        steps: tuple[Any, ...] = ((1, 1), (pad,) * 4, (1, 1), 1)
        functions = [
            bare, lambda x=x, w=w, b=bias, p=pad: ct.conv2d(x, w, b, padding=p),
            lambda x=x, w=w, b=bias, s=steps: operators.conv.seen(x, w, b, *s),
            lambda x=x, w=w, b=bias, p=pad: torch.nn.functional.conv2d(x, w, b, padding=p),
        ]  # fmt: skip
        with torch.inference_mode():
            first, *others = alternating(functions, rounds)
        beyond = [statistics.median(b - a for a, b in zip(first, other)) for other in others]
        rows.append([f"{ic} -> {oc}, {size}x{size}, {k}x{k}", f"{w.nbytes / 1024:.0f}",
                     *(f"{1e6 * seconds:.1f}" for seconds in (statistics.median(first), *beyond))])  # fmt: skip
    return rows


def training(threads: int, rounds: int, batch: int = 8) -> list[list[str]]:
    """Return a row for each of `LAYERS`: torch's time divided by ours, forward and backward."""
    rows = []
    for ic, oc, size, k, stride in LAYERS:
        x = torch.randn(batch, ic, size, size).to(memory_format=LAST).requires_grad_()
        w = torch.randn(oc, ic, k, k).to(memory_format=LAST).requires_grad_()
        grad = torch.randn_like(torch.nn.functional.conv2d(x, w, None, stride, k // 2))

        def step(function: Any, x: Any = x, w: Any = w, grad: Any = grad, options: Any = (stride, k // 2)) -> None:
            function(x, w, None, *options).backward(grad)
            with torch.no_grad():
                w.add_(w.grad, alpha=-1e-9)  # weights change at each step
            x.grad = w.grad = None

        ours, theirs = alternating([lambda s=step: s(ct.conv2d), lambda s=step: s(torch.nn.functional.conv2d)], rounds)
        ratio = statistics.median(b / a for a, b in zip(ours, theirs))
        rows.append([f"{ic} -> {oc}, {size}x{size}, {k}x{k}, stride {stride}", f"{1e3 * statistics.median(ours):.2f}",
                     f"{1e3 * statistics.median(theirs):.2f}", f"{ratio:.2f}"])  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--steps", type=int, default=9, help="rounds of training steps; 0 leaves them out")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    report = Report("torch-calls", "A call from PyTorch")
    report.note(f"{given.threads} threads, f32, channels last, with a bias; medians of {given.rounds} rounds.")
    columns = ["layer, batch 1", "KiB of weights", "bare kernel us", "conv2d +us", "operator +us", "torch's conv2d +us"]
    rows, steps = calls(given.threads, given.rounds), training(given.threads, given.steps) if given.steps else []
    report.table("Microseconds beyond the bare kernel", columns, rows)
    if steps:
        report.table("Forward and backward, batch 8", ["layer", "ms", "torch ms", "torch's time / ours"], steps)
    report.data = {"threads": given.threads, "calls": rows, "steps": steps}
    report.write()


if __name__ == "__main__":
    main()

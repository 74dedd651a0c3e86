"""A network of PyTorch, made faster: its convolutions run on convsmith's kernels.

    pip install '.[torch]'
    python examples/faster_model.py                 # a small residual network
    python examples/faster_model.py mobilenet_v2    # one of benchmarks/torch_networks.py
    python examples/faster_model.py resnet50 --batch 4 --threads 2

Prints which layer runs where, and the times of both networks, measured in turn. In this folder, the layers of the small
network can also be timed without changing it:

    convsmith bench --torch faster_model:example
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import convsmith.torch as ct

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
ROUNDS, CALLS = 15, 3
"""Rounds in which the two networks run in turn, and calls of each in a round."""


class Block(nn.Module):
    """Two convolutions with norms, and their source added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norms[0](self.first(x)))
        return self.relu(self.norms[1](self.second(y)) + x)


def small_network() -> nn.Module:
    """Return a residual network with 9 convolutions, for images of 64 x 64."""
    blocks = (Block(32) for _ in range(4))
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def example(batch: int = 1) -> tuple[nn.Module, Tensor]:
    """Return the small network and an input, as `bench --torch` takes them."""
    torch.manual_seed(0)
    return small_network().eval(), torch.randn(batch, 3, 64, 64)


def run(model: nn.Module, x: Tensor, threads: int) -> tuple[nn.Module, float]:
    """Optimize a network, print the report and both times; return the new one and eager's time divided by its time."""
    torch.set_num_threads(threads)
    fast = ct.optimize(model.eval(), x)  # once
    print(fast.convsmith_report)
    last = x.contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)
    ours, eager = [], []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for network, times in ((fast, ours), (model, eager)):
                network(last)  # refills the caches
                start = time.perf_counter()
                for _ in range(CALLS):
                    network(last)
                times.append((time.perf_counter() - start) / CALLS)
    ratio = median(b / a for a, b in zip(ours, eager))
    print(f"a call: {median(ours) * 1e3:.2f} ms; eager, channels last: {median(eager) * 1e3:.2f} ms, {ratio:.2f} times")
    return fast, ratio


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A network of PyTorch on convsmith's kernels.")
    parser.add_argument("name", nargs="?", help="a network of images in benchmarks/torch_networks.py")
    parser.add_argument("--batch", type=int, default=1, help="images in a batch (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default: 1)")
    options = parser.parse_args(arguments)
    if options.name is None:
        model, x = example(options.batch)
    else:
        from torch_networks import network

        torch.manual_seed(0)
        model, x = network(options.name, options.batch)
    run(model, x, options.threads)


if __name__ == "__main__":
    main()

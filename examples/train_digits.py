"""A small network learns digits: its convolutions, forward and backward, run on convsmith's kernels.

    pip install '.[torch,examples]'
    python examples/train_digits.py

Trains on scikit-learn's 8 x 8 images twice, from the same weights: once with `torch.nn.functional`, once with
`convsmith.torch`. Prints losses, accuracy and time of both.
"""

from __future__ import annotations

import argparse
import time
from types import ModuleType
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits

import convsmith.torch as ct

Tensor = torch.Tensor
BATCH = 64


class Result(NamedTuple):
    """Losses of each epoch, share of the test images that are classified correctly, and seconds."""

    losses: list[float]
    accuracy: float
    seconds: float


class DigitNetwork(torch.nn.Module):
    """Three convolutions and a linear layer; `functions` has conv2d."""

    def __init__(self, functions: ModuleType) -> None:
        super().__init__()
        self.functions = functions
        self.first = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.third = torch.nn.Conv2d(32, 64, 3, padding=1, groups=4)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second, self.third):
            x = self.functions.conv2d(
                x, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups
            ).relu()
        return self.head(x.mean((2, 3)))


def train(functions: ModuleType, epochs: int, samples: int) -> Result:
    """Return how a network learns the first `samples` images; a quarter of them tests it."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images[:samples]).float().unsqueeze(1) / 16
    images = images.to(memory_format=torch.channels_last)
    labels = torch.from_numpy(digits.target[:samples])
    model = DigitNetwork(functions).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train_count, losses, start = samples * 3 // 4, [], time.perf_counter()
    for _ in range(epochs):
        total = 0.0
        for batch in torch.randperm(train_count).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / train_count)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right = model(images[train_count:]).argmax(1) == labels[train_count:]
    return Result(losses, right.double().mean().item(), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=1797)
    given = parser.parse_args()
    for name, functions in (("torch", torch.nn.functional), ("convsmith", ct)):
        result = train(functions, given.epochs, given.samples)
        losses = " ".join(f"{loss:.3f}" for loss in result.losses)
        print(f"{name:10} accuracy {result.accuracy:.1%}  {result.seconds:.2f} s  losses {losses}")


if __name__ == "__main__":
    main()

"""The choice between a direct kernel and one with transforms, for calls that bring their weights, as in training.

A transform saves products of pixels, and transforms the weights anew in each call: many weights for few pixels take
longer than what is saved. Both kernels are timed in alternation, with the weights' part, and the cache keeps the times.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from convsmith.diag.settings import settings
from convsmith.machine import registry
from convsmith.problem.conv import Conv
from convsmith.torch.calls import TensorKernel, kept_kernel
from convsmith.torch.choice import LeastTimes, kept_times, least_seconds

__all__ = ["faster_with_transforms"]


def faster_with_transforms(direct: TensorKernel, problem: Conv, threads: int) -> TensorKernel:
    """Return the kernel of `problem` with transforms if its calls are faster than those of `direct`; else `direct`."""
    relaxed = problem.with_accuracy("relaxed")
    if direct.kernel.artifact is None or not problem.has_transforms or prod(problem.k) == 1:
        return direct
    made = kept_kernel(relaxed, threads)
    if not made.kernel.config.has_transform:
        return direct
    inputs = [_filled(direct, name) for name in direct.inputs]

    def measured(most: int) -> LeastTimes:
        with torch.no_grad():
            return least_seconds(lambda: direct(*inputs), lambda: made(*inputs), most=most)

    what = f"calls of {problem} without and with transforms on {threads}"
    target = registry.target(settings.target, ("f32", "f32", "f32"))
    return made if kept_times(what, target, measured).stays else direct


def _filled(kernel: TensorKernel, name: str) -> Tensor:
    """Return a tensor of an input's form; its values do not change the time of a call."""
    return torch.empty_strided(kernel.shapes[name], kernel.strides[name], dtype=torch.float32).fill_(0.5)

"""Codes: how bytes stand for real numbers in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from convsmith.network.graph import Work
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.problem.post_ops import Eltwise, PostOp
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array

__all__ = ["Code", "code_of"]


class Code(NamedTuple):
    """A byte x of `type` stands for the number `(x - point) * scale`; the scale is a number of f32."""

    type: str
    scale: float
    point: int

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest byte."""
        found = np.iinfo(TYPES[self.type].numpy)
        return int(found.min), int(found.max)

    @property
    def factor(self) -> np.float32:
        """The reciprocal of the scale."""
        return np.float32(1) / np.float32(self.scale)

    def of(self, number: float) -> int:
        """Return the byte that stands for a number most closely."""
        low, high = self.limits
        with np.errstate(all="ignore"):
            near = np.rint(np.float32(number) / np.float32(self.scale)) + self.point
        return int(np.clip(near, low, high))

    def within(self, step: Eltwise) -> bool:
        """Return whether a step leaves every number as it is that a byte stands for, and moves others to no other byte.
        """
        if step.scale != 1 or step.alg not in ("relu", "clip") or (step.alg == "relu" and step.alpha):
            return False
        low, high = (0.0, np.inf) if step.alg == "relu" else (step.alpha, step.beta)
        return (self.of(low), self.of(high)) == self.limits

    def without_saturation(self, steps: Sequence[PostOp]) -> Sequence[PostOp]:
        """Return steps without the last ones that the saturation of bytes makes unnecessary."""
        count = len(steps)
        while count and isinstance(last := steps[count - 1], Eltwise) and self.within(last):
            count -= 1
        return steps[:count]


def code_of(work: Work, arguments: Mapping[str, str], constants: Mapping[str, Array]) -> Code | None:
    """Return the code of a conversion with one scale, which is known; None for other nodes."""
    if not isinstance(work, Quantise | Dequantise) or work.scales != 1:
        return None
    scale, point = (constants.get(arguments[name]) for name in ("scale", "zero_point"))
    if scale is None or point is None:
        return None
    code = Code(work.type, float(scale.reshape(-1)[0]), int(point.reshape(-1)[0]))
    return code if 0 < code.scale < np.inf else None

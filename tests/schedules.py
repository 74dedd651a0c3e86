"""Runs of kernels for devices under several schedules, on whole numbers, for tests of passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from convsmith.interp import InterpError, run
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Barrier, Block, Kernel, Stmt
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of

SEEDS = range(3)


def results(kernel: Kernel, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the arrays of the parameters after a run on whole numbers that depend on their names and sizes only."""
    verify(kernel)
    numbers = np.random.default_rng(0)
    arrays = {b.name: numbers.integers(-4, 5, b.size).astype(b.dtype.numpy) for b in kernel.params}
    run(kernel, arrays, seed=seed)
    return arrays


def assert_same(old: Kernel, new: Kernel) -> None:
    """Require that both kernels compute the same under all schedules."""
    expected = results(old)
    for seed in SEEDS:
        for name, x in results(new, seed).items():
            np.testing.assert_array_equal(x, expected[name], err_msg=f"{name}, seed {seed}")


class _Without(Rewriter):
    """Drops the statement that comes after so many of its kind."""

    def __init__(self, dropped: type[Stmt], number: int) -> None:
        super().__init__()
        self.dropped, self.number = dropped, number

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, self.dropped):
            self.number -= 1
            return Block(()) if self.number == -1 else s
        return super().stmt(s)


def without_one(kernel: Kernel, dropped: type[Stmt] = Barrier) -> Iterator[Kernel]:
    """Yield the kernel without each of its statements of a class."""
    for n in range(sum(isinstance(x, dropped) for x in statements_of(kernel.body))):
        yield replace(kernel, body=_Without(dropped, n).stmt(kernel.body))


def assert_each_is_needed(kernel: Kernel, dropped: type[Stmt] = Barrier) -> None:
    """Require that the interpreter raises where any statement of the class is missing."""
    for less in without_one(kernel, dropped):
        with pytest.raises(InterpError):
            for seed in SEEDS:
                results(less, seed)

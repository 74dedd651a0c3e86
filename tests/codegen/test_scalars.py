"""Indices and conditions as machine code: what they are for Python's integers, of every sign."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from natives import run_native

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.machine.generic.level import level
from convsmith.passes.narrow_index import narrow_index

INDICES = [
    "i // 3", "i % 3", "i // 4", "i % 4", "(i - j) // 5 * 5", "(i * 2 - j) % 7", "min(i, j, 1)", "max(i, j - 2, -1)",
    "i - j", "j - i * 2 + 3", "-i - j", "(i + j) // 2 % 3", "(i // 2 - j) % 4 // 2", "max(min(i, j), -2) * 3",
]  # fmt: skip
CONDITIONS = [
    "i >= 0", "i - j >= 0 and j - 1 >= 0", "i == 1", "i % 3 == 0", "i * 2 - j == 1 and i >= 0", "i // 2 - j >= 0",
]


def same(body: str) -> None:
    """Interpreted and as machine code, for ``i`` and ``j`` below and above zero."""
    kernel = narrow_index(parse_kernel(f"""kernel k(a: f32[64], d: f32[300])
  for i in -7 .. 8:
    for j in -4 .. 5:
      {body}
"""))
    verify(kernel)
    found = []
    for native in (False, True):
        # A wrong address lies in memory of the test's own.
        memory = {"a": np.arange(-64, 128, dtype=np.float32), "d": np.full(900, -1, np.float32)}
        arrays = {"a": memory["a"][64:128], "d": memory["d"][300:600]}
        run_native(kernel, arrays, level()) if native else run(kernel, arrays)
        found.append(memory["d"])
    np.testing.assert_array_equal(*found)
    assert (found[0] >= 0).any()


@pytest.mark.parametrize("text", INDICES)
def test_indices_of_every_sign(text: str) -> None:
    same(f"d[i * 9 + j + 70] = a[{text} + 30]")


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text: str) -> None:
    same(f"if {text}: d[i * 9 + j + 70] = a[i + j + 12]")


def test_the_interpreter_is_right() -> None:
    """The implementation that others are compared with computes as Python does."""
    for text in INDICES:
        kernel = parse_kernel(f"kernel k(a: f32[64], d: f32[300])\n  for i in -7 .. 8:\n    for j in -4 .. 5:\n"
                              f"      d[i * 9 + j + 70] = a[{text} + 30]\n")  # fmt: skip
        d = np.zeros(300, np.float32)
        run(kernel, {"a": np.arange(64, dtype=np.float32), "d": d})
        for i, j in product(range(-7, 8), range(-4, 5)):
            assert d[i * 9 + j + 70] == eval(text, {"i": i, "j": j}) + 30, (text, i, j)

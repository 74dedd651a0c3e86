"""Registers that lanes take from the threads that start copies, as a statement of the IR."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.interp.memory import InterpError
from convsmith.ir.equal import first_mismatch
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify

TEXT = """kernel k(a: f32[8], c: f32[8])
  for g in 0 .. 1 #grid:
    registers 112 beside 24
    alloc s: f32[4] @shared:
      fence barriers
      for i in 0 .. 4 #signalled:
        tensor s[i % 2 * 2] = a[0] dims(2:1, 4:2) box(2, 1) at(0, i)
        receive
        for w in 0 .. 1 #warp:
          for l in 0 .. 2 #lane:
            c[i * 2 + l] = s[l + i % 2 * 2]
        release step i
"""


def results(text: str) -> np.ndarray:
    kernel = parse_kernel(text)
    verify(kernel)
    arrays = {"a": np.arange(8, dtype=np.float32), "c": np.zeros(8, np.float32)}
    run(kernel, arrays, {}, seed=0)
    return arrays["c"]


def test_the_statement_changes_no_value_and_is_parsed() -> None:
    kernel = parse_kernel(TEXT)
    assert str(kernel) == TEXT and results(TEXT).tolist() == [*range(8)]
    for other in ("registers 104 beside 24", "registers 112 beside 32"):
        assert first_mismatch(kernel, parse_kernel(TEXT.replace("registers 112 beside 24", other))) is not None


@pytest.mark.parametrize(("old", "new", "why"), [
    ("112 beside 24", "24 beside 24", "lanes take 24 registers where threads that start copies keep 24"),
    ("112 beside 24\n", "112 beside 24\n    registers 112 beside 24\n", "has shared its registers already"),
    ("        release step i\n", "        release step i\n      registers 112 beside 24\n", "already"),
])  # fmt: skip
def test_a_wrong_share_raises(old: str, new: str, why: str) -> None:
    with pytest.raises(InterpError, match=why):
        results(TEXT.replace(old, new))


def test_registers_are_shared_before_the_first_copies() -> None:
    late = TEXT.replace("    registers 112 beside 24\n", "") + "      registers 112 beside 24\n"
    with pytest.raises(InterpError, match="after its first copies have started"):
        results(late)


def test_all_threads_of_a_group_share() -> None:
    inside = TEXT.replace("            c[i", "            registers 112 beside 24\n            c[i")
    with pytest.raises(InternalError, match="stands in loops over threads"):
        verify(parse_kernel(inside))

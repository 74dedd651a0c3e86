"""Statements on vectors under a condition on their lanes: the interpreter, and what `verify` refuses."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import InterpError, run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify

FMA4 = parse_kernel("kernel fma4(c: f32[4], a: f32[4], b: f32[4])\n  for l in 0 .. 4: c[l] = fma(a[l], b[l], c[l])")


def _results(body: str) -> list[float]:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    text = f"kernel k(src: f32[4], dst: f32[4], n)\n  alloc t: f32[4] @register:\n    t[0]{{4}} = 7.0\n{lines}"
    dst = np.zeros(4, np.float32)
    run(parse_kernel(text), {"src": np.arange(1, 5, dtype=np.float32), "dst": dst}, {"fma4": FMA4}, {"n": 3})
    return dst.tolist()


def test_lanes_for_which_the_condition_holds_are_stored() -> None:
    assert _results("if n - lane - 1 >= 0: dst[0]{4} = src[0]{4}") == [1, 2, 3, 0]
    assert _results("if lane - 1 >= 0 and n - lane - 1 >= 0: dst[0]{4} = t[0]{4}") == [0, 7, 7, 0]
    assert _results("if lane - 9 >= 0: dst[0]{4} = src[0]{4}") == [0, 0, 0, 0]


def test_other_lanes_of_registers_keep_their_values() -> None:
    assert _results("if lane - 1 >= 0: t[0]{4} = src[0]{4}\ndst[0]{4} = t[0]{4}") == [7, 2, 3, 4]
    one = "if n - 2 - lane >= 0: fma4(t[0]{4}, src[0]{4}, src[1]{4:0})\ndst[0]{4} = t[0]{4}"
    assert _results(one) == [9, 11, 7, 7]


def test_other_lanes_are_not_read() -> None:
    """They lie beyond the array."""
    assert _results("if n - lane - 1 >= 0: dst[0]{4} = src[1]{4}") == [2, 3, 4, 0]
    with pytest.raises(InterpError, match="touches element 4"):
        _results("if n - lane >= 0: dst[0]{4} = src[1]{4}")


def test_illegal_conditions_on_lanes() -> None:
    with pytest.raises(InterpError, match="which are no run"):
        _results("if lane % 2 == 0: dst[0]{4} = src[0]{4}")
    with pytest.raises(InterpError, match="For stands under the condition"):
        _results("if lane - 1 >= 0: for i in 0 .. 2: dst[i] = src[i]")
    kernel = parse_kernel("kernel k(dst: f32[4])\n  if lane - 1 >= 0: dst[0] = 1.0")
    with pytest.raises(InternalError, match="legal are those on whole vectors"):
        verify(kernel)

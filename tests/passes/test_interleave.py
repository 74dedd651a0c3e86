"""Results that are written between the products of the next tile, and tiles that stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.passes.interleave import interleave

TEXT = """
kernel k(a: f32[96], dst: f32[96])
  for i in {lo} .. {hi}{kind}:
    alloc acc_m: f32[12] @cache:
      alloc acc: f32[12] @fragment:
        for r in 0 .. 12:
          acc[r] = 0.0
        for k in 0 .. {taps}:
          for q in 0 .. {terms}:
            {product}
{moves}
        {written}
"""
PRODUCT = "\n            ".join(f"acc[{r}] = acc[{r}] + {{read}}[i * 12 + {r}] * a[k + q]" for r in range(12))
MOVES = "\n".join(f"        acc_m[{r}] = acc[{r}]" for r in range(12))
ROWS = "for r in 0 .. 12:\n          dst[i * 12 + r] = acc_m[r] * 2.0"
INNER = "          for y in {}:\n            dst[i * 12 + {x}] = acc_m[{x}]"
NESTS = (
    ROWS,
    "for x in 0 .. 3:\n" + INNER.format("0 .. min(-x * 5 + 12, 5)", x="x * 5 + y"),
    "for x in 0 .. 2 #unrolled:\n" + INNER.format("0 .. 6", x="x * 6 + y"),
    "for x in 1 .. 4:\n" + INNER.format("2 .. 6", x="x * 4 + y - 6"),
    ROWS.replace("12:", "7:") + "\n        " + ROWS.replace("0 .. 12:", "7 .. 12:"),
    "dst[i * 12] = acc_m[0]\n        for r in 1 .. 12:\n          dst[i * 12 + r] = dst[i * 12 + r] + acc_m[r]",
)


def _kernel(
    written: str = ROWS, *, lo: int = 0, hi: int = 8, taps: int = 3, terms: int = 1, kind: str = "", read: str = "a"
) -> Kernel:
    product = PRODUCT.format(read=read)
    shape = dict(lo=lo, hi=hi, taps=taps, terms=terms)
    return parse_kernel(TEXT.format(**shape, kind=kind, product=product, moves=MOVES, written=written))


def _results(kernel: Kernel) -> np.ndarray:
    arrays = {"a": np.arange(96, dtype=np.float32) % 7, "dst": np.arange(96, dtype=np.float32)}
    run(kernel, arrays)
    return arrays["dst"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("written", NESTS)
@pytest.mark.parametrize("taps, terms", [(3, 1), (5, 1), (2, 2), (3, 5), (16, 2)])
@pytest.mark.parametrize("lo, hi", [(0, 8), (2, 4)])
def test_all_rows_are_written_once(written: str, taps: int, terms: int, lo: int, hi: int) -> None:
    kernel = _kernel(written, lo=lo, hi=hi, taps=taps, terms=terms)
    new = interleave(kernel)
    verify(new)
    assert f"for i in {lo + 1} .. {hi}:" in str(new)
    assert np.array_equal(_results(new), _results(kernel))


@pytest.mark.parametrize(
    "kernel",
    [
        _kernel(taps=2), _kernel(hi=1), _kernel(kind=" #parallel"), _kernel(read="dst"),
        _kernel(ROWS.replace("dst[i * 12 + r] =", "a[i * 12 + r] =")),
        _kernel("acc[0] = acc_m[0]\n        " + ROWS),
    ],
    ids=["two steps", "one tile", "threads", "results are factors", "factors are written", "sums are written"],
)  # fmt: skip
def test_tiles_that_stay(kernel: Kernel) -> None:
    assert interleave(kernel) is kernel

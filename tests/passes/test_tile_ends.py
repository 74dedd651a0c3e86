"""Tiles whose ends have sizes of their own, and the sums that memory keeps between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Var, floordiv, maximum
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import For, Kernel
from convsmith.ir.types import F32, S32
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.passes.bind import bind
from convsmith.passes.block_reduction import block_reduction
from convsmith.passes.tile import tile

ROW = """\
kernel k(a: f32[9], b: f32[9])
  for i in 0 .. 9:
    b[i] = a[i]
"""
SUM = """\
kernel k(a: s32[?], b: s32[3], n)
  for c in 0 .. 3:
    alloc acc: s32[] @register:
      acc[] = s32(5)
      for k in 0 .. n:
        acc[] = acc[] + a[k * 3 + c]
      b[c] = acc[]
"""
SUMS = make_buffer("sums", S32, (3,))


class _To(Rewriter):
    """Lets the loop over terms end at whole tiles: one of 2, as many of 4 as ``n`` terms need, and one of 5."""

    def visit_For(self, loop: For) -> For:
        out = self._For(loop)
        assert isinstance(out, For)
        count = maximum(floordiv(Var("n") - 7 + 3, 4), 0)
        return For(out.var, out.lo, count * 4 + 7, out.body) if out.var.name == "k" else out


def in_tiles() -> Kernel:
    kernel = parse_kernel(SUM)
    return replace(kernel, body=_To().stmt(kernel.body))


@pytest.mark.parametrize("n", [1, 7, 8, 11, 12, 30])
def test_a_reduction_of_a_length_known_at_the_call_is_summed_in_passes(n: int) -> None:
    with interning():
        kernel = in_tiles()
        tiled = tile(kernel, "k", 4, "p", "k", (2, 5))
        kept = block_reduction(tiled, "p", ("c",), SUMS)
        assert kept.params == (*kernel.params, SUMS)
        assert [x.var.name for x in loops_of(kept.body)] == ["p", "c", "k"] * 3
        verify(kept)
        a = np.arange(200, dtype=np.int32) ** 2 % 31
        wanted = 5 + a[: (max(-(-(n - 7) // 4), 0) * 4 + 7) * 3].reshape(-1, 3).sum(0)
        for made in (kernel, tiled, kept):
            arrays = {"a": a, "b": np.zeros(3, np.int32), "sums": np.full(3, 77, np.int32)}
            run(made, {x.name: arrays[x.name] for x in made.params}, sizes={"n": n})
            assert arrays["b"].tolist() == wanted.tolist()


def test_every_iteration_is_in_one_tile() -> None:
    with interning():
        tiled = tile(parse_kernel(ROW), "i", 2, "o", "i", (4, 1))
        assert str(tiled).splitlines()[1:] == [
            "  for o in 0 .. 1:", "    for i in 0 .. 4:", "      b[i] = a[i]",
            "  for o in 0 .. 2:", "    for i in 0 .. 2:", "      b[i + o * 2 + 4] = a[i + o * 2 + 4]",
            "  for o in 0 .. 1:", "    for i in 0 .. 1:", "      b[i + 8] = a[i + 8]",
        ]  # fmt: skip


def test_other_lengths_are_refused() -> None:
    message = r"tile: loop {} runs 0 .. {}; legal are {} \+ {} iterations, and any number of tiles of {} between"
    with interning():
        tile(parse_kernel(ROW), "i", 2, "o", "i", (4, 5))
        for sizes in ((5, 1, 5), (2, 2, 2)):
            with pytest.raises(ConfigError, match=message.format("i", 9, sizes[0], sizes[2], sizes[1])):
                tile(parse_kernel(ROW), "i", sizes[1], "o", "i", sizes[::2])
        with pytest.raises(ConfigError, match=message.format("k", "n", 1, 1, 1)):
            tile(parse_kernel(SUM), "k", 1, "o", "k", (1, 1))
        with pytest.raises(ConfigError, match="a tile has at least one iteration"):
            tile(parse_kernel(ROW), "i", 1, "o", "i", (4, 0))


def test_memory_that_does_not_fit_the_sums_is_refused() -> None:
    with interning():
        tiled = tile(in_tiles(), "k", 4, "p", "k", (2, 5))
        for memory, message in (
            (make_buffer("sums", F32, (3,)), "sums has 1 dims of f32; expected 1 of s32, for sums at [c]"),
            (make_buffer("sums", S32, (3, 1)), "sums has 2 dims of s32; expected 1 of s32, for sums at [c]"),
            (make_buffer("b", S32, (3,)), "kernel k has a buffer b already"),
        ):
            with pytest.raises(ConfigError) as error:
                block_reduction(tiled, "p", ("c",), memory)
            assert str(error.value) == f"block_reduction: {message}"
        with pytest.raises(ConfigError, match=r"block_reduction: k runs 0 \.\. n, and must start and end with"):
            block_reduction(parse_kernel(SUM), "k", ("c",), SUMS)


def test_threads_do_not_share_memory_that_is_given() -> None:
    head, *lines = SUM.replace("b: s32[3]", "b: s32[3, 4]").replace("0 .. n", "0 .. 9").splitlines()
    text = "\n".join([head, "  for x in 0 .. 4:", *(f"  {x}" for x in lines)]).replace("b[c]", "b[c, x]") + "\n"
    with interning():
        kernel = parse_kernel(text)
        block_reduction(kernel, "k", ("c",), SUMS)
        with pytest.raises(ConfigError, match="sums holds the sums of one thread; legal are serial loops around it"):
            block_reduction(bind(kernel, ("x",), "parallel"), "k", ("c",), SUMS)

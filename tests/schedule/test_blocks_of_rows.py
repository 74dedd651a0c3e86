"""Blocks of rows have the tiles of the whole image: their borders are bounds of loops, and no code of their own."""

from __future__ import annotations

import pytest

from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

LAYERS = {
    "--dir=BWD_D --stag=axb --dtag=axb g40mb1ic40ih23oc40oh9kh7sh2ph1": "--lane=g --register=iw:4,g:24 "
    "--order=mb,ih,iw,g,ic --reduce=kh,kw,oc",
    "--stag=axb --dtag=axb g40mb1ic40ih15oc40oh15kh3ph1": "--lane=g --register=ow:4,g:24 "
    "--order=mb,oh,ow,g,oc --reduce=kh,kw,ic",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LAYERS)
def test_blocks_of_rows_add_no_code(line: str, threads: int) -> None:
    problem, words = parse_problem(line), f"--target=avx2 {LAYERS[line]} --threads={threads}"
    rows = "ih" if "BWD_D" in line else "oh"
    with interning():
        whole, blocks = (lower(plan(problem, Config.parse(words + cache), target("avx2"))).kernel
                         for cache in ("", f" --cache={rows}:6"))  # fmt: skip
    assert 0 < len(blocks.functions) <= len(whole.functions)

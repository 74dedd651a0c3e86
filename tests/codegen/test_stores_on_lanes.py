"""Stores of the lanes for which a condition holds."""

from __future__ import annotations

import pytest

from convsmith.codegen.lane_masks import holds_on_all
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.ir.index import Var, conj, ge0
from convsmith.ir.intern import interning
from convsmith.ir.stmt import LANE
from convsmith.machine.registry import host_targets

LINE = "--stag=abx --dtag=abx g5mb1ic5ih8oc5kh3ph1"


def test_a_condition_holds_on_all_lanes_where_it_holds_on_the_first_or_the_last() -> None:
    n, m = Var("n"), Var("m")
    with interning():
        assert holds_on_all(ge0(n - LANE - 1), 8) is ge0(n - 8)
        assert holds_on_all(ge0(m + 2 * LANE), 8) is ge0(m)
        both = conj((ge0(n - LANE - 1), ge0(m + LANE)))
        assert holds_on_all(both, 4) is conj((ge0(n - 4), ge0(m)))


@pytest.mark.parametrize("level", [t.name for t in host_targets() if t.name in ("avx2", "avx512")])
def test_whole_vectors_have_no_mask_where_these_are_slow(level: str) -> None:
    kernel = compile_kernel(LINE, target=level, threads=1, config="--lane=ow --realise=mask", dynamic="mb,ih,iw")
    text = kernel.llvm()
    assert "@llvm.masked.store" in text
    assert ("label %whole." in text) == (level == "avx2")

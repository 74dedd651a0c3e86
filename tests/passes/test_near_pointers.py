"""Pointers near the elements that all lanes load: the same values, and no pointer that saves nothing."""

from __future__ import annotations

import pytest
from oracles import assert_same_results

from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.near_pointers import near_pointers


def step(*places: int, lanes: str = "{4:0}") -> Kernel:
    terms = " + ".join(f"a[a.j + {n}]{lanes}" for n in places)
    return parse_kernel(f"""kernel k(a: s32[200], c: s32[16])
  for j in 0 .. 4 carrying a.j: a = 64 step 1, c.j: c = 0 step 4:
    c[c.j]{{4}} = {terms}
""")


@pytest.mark.parametrize(
    ("places", "pointers"), [((-48, -32, -16, 0), 1), ((-64, -32, 0, 32, 64, 96), 3), ((70, 80, 90), 1)]
)
def test_far_elements_share_pointers(places: tuple[int, ...], pointers: int) -> None:
    kernel = step(*places)
    made = near_pointers(kernel, 64)
    assert str(made).count(": a =") == 1 + pointers
    assert_same_results(kernel, made)


@pytest.mark.parametrize(
    "kernel", [step(0, 16, 32, 63), step(0, 64), step(-64, 0), step(-48, -32, -16, lanes="{4}")],
    ids=["near", "a single one behind", "a single one before", "vectors"],
)  # fmt: skip
def test_these_are_left(kernel: Kernel) -> None:
    assert str(near_pointers(kernel, 64)) == str(kernel)

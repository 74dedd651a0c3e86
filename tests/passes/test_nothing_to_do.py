"""A pass that changes nothing returns the kernel it was given, not a copy."""

from __future__ import annotations

from typing import Any

import pytest

from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import F32, PTR
from convsmith.machine.generic.level import PORTABLE_FMA
from convsmith.passes.bind import bind
from convsmith.passes.collapse import collapse
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fill_terms import fill_terms
from convsmith.passes.flatten import flatten
from convsmith.passes.fuse import fuse
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.hoist_pointers import hoist_pointers
from convsmith.passes.indirect import indirect
from convsmith.passes.manager import Step
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.pieces import pieces
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace
from convsmith.passes.restrict import restrict
from convsmith.passes.round_up import round_up
from convsmith.passes.simplify import simplify
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.stage import stage
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_together import sum_together
from convsmith.passes.unroll import unroll
from convsmith.passes.unvectorise import unvectorise
from convsmith.passes.vectorise import vectorise

FLAT = """\
kernel k(a: f32[4], b: f32[4]) #i32
  for i in 0 .. 4 carrying p: a = 0 step 1, q: b = 0 step 1:
    b[q] = a[p]
  b[0] = 1.0
"""
NEST = """\
kernel k(a: f32[4], b: f32[4, 2])
  for i in 0 .. 4:
    for j in 0 .. 2:
      b[i, j] = a[i] + 1.0
  b[0, 0] = 2.0
"""
ONE: Any = ("i",)
ON_FLAT = [
    Step(flatten), Step(narrow_index), Step(outline), Step(strength_reduce), Step(replace, (PORTABLE_FMA,)),
    Step(sum_together, 4), Step(name_indices), Step(hoist_pointers),
    Step(vectorise, "j", 4, False), Step(unvectorise, ("f32",)),
]  # fmt: skip
ON_NEST = [
    Step(bind, ONE, "serial"), Step(fuse, "i", "j", "i_j", "nowhere"), Step(collapse),
    Step(derive_packing, ("c",), "c_p"), Step(guard_tails, ONE), Step(partition, ONE), Step(reorder, ("i", "j")),
    Step(round_up, ONE), Step(restrict, ONE),
    Step(indirect, "c", make_buffer("t", PTR, (4,)), make_buffer("z", F32, (1,)), (), as_index(0)),
    Step(pieces, "i", "j", "j", (4, 4, 2)),
    Step(fill_terms, "j", 2), Step(simplify), Step(reorder, ("j",), "innermost"), Step(skip_zero),
    Step(stage, "c", "i"), Step(unroll), Step(stage, "c", "i", OrderedCopy()),
]  # fmt: skip


@pytest.mark.parametrize("step", ON_FLAT, ids=lambda s: s.name)
def test_a_flat_kernel_comes_back(step: Step) -> None:
    kernel = parse_kernel(FLAT)
    assert step(kernel) is kernel


@pytest.mark.parametrize("step", ON_NEST, ids=lambda s: s.name)
def test_a_nest_comes_back(step: Step) -> None:
    kernel = parse_kernel(NEST)
    assert step(kernel) is kernel


def test_a_loop_that_a_condition_does_not_bound_comes_back() -> None:
    kernel = parse_kernel("kernel k(b: f32[4])\n  for i in 0 .. 4: if i % 2 == 0: b[i] = 1.0\n")
    assert restrict(kernel, ("i",)) is kernel

"""What tells packings apart, and what stands for absent pixels."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.compiler.arguments import argument_of, packing_note
from convsmith.compiler.tables import absent_array
from convsmith.ir.buffer import Buffer
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import S8
from convsmith.layout.block import LayoutBlock
from convsmith.problem import parse_problem


def test_a_note_tells_packings_apart() -> None:
    text = "kernel p(a: f32[4], b: f32[4])\n  for i in 0 .. 4:\n    b[i] = a[i]\n"
    notes = [packing_note(parse_kernel(t)) for t in (text, text.replace("a[i]", "a[3 - i]"), text.replace("4]", "5]"))]
    assert len(set(notes)) == 3 and packing_note(parse_kernel(text)) == notes[0]


@pytest.mark.parametrize("blocks", [((0, 6, 1),), ((0, 6, 2),), ((0, 3, 1), (0, 2, 3))])
def test_absent_pixels_hold_the_zero_points(blocks: tuple[tuple[int, int, int], ...]) -> None:
    problem = parse_problem("--dt=s8:s8:s32 --attr-zero-points=src:per_dim_1 mb1ic6iw4oc4ow4kw3pw1")
    zero = Buffer("src_0", S8, (6,), tuple(LayoutBlock(*b) for b in blocks))
    points = np.int32([1, -2, 300, 4, -300, 6])
    memory = absent_array(problem, zero, {"zero_points_src": points})
    places = [n * zero.blocks[0].stride if len(blocks) == 1 else n // 2 * 1 + n % 2 * 3 for n in range(6)]
    assert memory[places].tolist() == [1, -2, 127, 4, -128, 6] and np.count_nonzero(memory) == 6
    assert not absent_array(problem, zero, {}).any()


def test_an_argument_is_its_tensor() -> None:
    tensor = parse_problem("--stag=aBc4b mb2ic6iw4oc4ow4kw1").tensor("src")
    argument = argument_of(tensor)
    assert (argument.name, argument.role, argument.dtype, argument.shape) == ("src", "in", "f32", (2, 6, 4))
    assert (argument.layout, argument.size, argument.dims) == ("aBc4b", 2 * 2 * 4 * 4, ("mb", "ic", "iw"))

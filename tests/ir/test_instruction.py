"""Rows of instructions: layouts, and the facts that are derived from a specification."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand, vector
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS

PRODUCT = (
    "  for m in 0 .. 2:\n    for n in 0 .. 2:\n      for k in 0 .. 8:\n"
    "        c[m, n] = c[m, n] + cast(s32, a[m, k]) * cast(s32, b[n, k])\n"
)
BYTES = FragmentLayout(("l // 8", "l % 8"), 16)
SMMLA = Instruction(
    "smmla",
    (
        Operand("c", "s32", (2, 2), FragmentLayout(("l // 2", "l % 2"), 4), scope="fragment"),
        Operand("a", "s8", (2, 8), BYTES, scope="fragment"), Operand("b", "s8", (2, 8), BYTES, scope="fragment"),
    ),
    PRODUCT, "", "", (), "smmla",
)  # fmt: skip
SDOT = Instruction(
    "sdot_scalable",
    tuple(vector(x, t, n, scalable=True) for x, t, n in (("c", "s32", 4), ("a", "s8", 16), ("b", "s8", 16))),
    "  for l in 0 .. vscale * 4:\n    if l < active:\n      for r in 0 .. 4:\n"
    "        c[l] = c[l] + cast(s32, a[l * 4 + r]) * cast(s32, b[l * 4 + r])\n",
    "", "", (), "sdot", "active",
)  # fmt: skip
WARP = {
    "a": (FragmentLayout(("l // 4 + r % 2 * 8", "l % 4 * 2 + e + r // 2 * 8"), 32, 2, 4), (16, 16)),
    "b": (FragmentLayout(("l % 4 * 2 + e + r * 8", "l // 4"), 32, 2, 2), (16, 8)),
    "c": (FragmentLayout(("l // 4 + r // 2 * 8", "l % 4 * 2 + r % 2"), 32, 1, 4), (16, 8)),
}
"""The operands of mma.m16n8k16 on halves with sums in f32."""

ROWS = [SMMLA, SDOT, *{r.name: r for t in (*LEVELS, level()) for r in (*t.instructions, *t.transpositions)}.values()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("row, scale", [(SDOT, 3), *((row, 1) for row in ROWS)])
def test_a_layout_holds_each_element_once(row: Instruction, scale: int) -> None:
    for operand in row.operands:
        first, *rest = operand.shape
        extents = (first * scale if operand.layout.scalable else first, *rest)
        places = operand.layout.places(scale)
        assert places.keys() == set(product(*map(range, extents)))
        assert len(set(places.values())) == prod(extents)
        assert operand.layout.count == operand.size


@pytest.mark.parametrize("name", WARP)
def test_a_layout_over_the_threads_of_a_warp(name: str) -> None:
    layout, shape = WARP[name]
    assert layout.places().keys() == set(product(*map(range, shape))) and layout.count == prod(shape)


def test_a_place_of_a_warp_is_the_manual_s() -> None:
    """Thread 7 of a warp holds, in register 2 of `a`, elements 14 and 15 of row 1."""
    places = WARP["a"][0].places()
    assert (places[1, 14], places[1, 15]) == ((2, 7, 0), (2, 7, 1))


def test_facts_of_a_product_in_one_vector() -> None:
    assert (SMMLA.rows, SMMLA.lanes, SMMLA.terms, SMMLA.group) == (2, 2, 8, 8)
    assert SMMLA.types == ("s8", "s8", "s32")


def test_facts_of_a_scalable_row_count_for_each_unit() -> None:
    assert SDOT.is_scalable and not SMMLA.is_scalable
    assert (SDOT.rows, SDOT.lanes, SDOT.terms, SDOT.group) == (1, 4, 4, 4)
    assert {str(v): n for v, n in SDOT.loops.items()} == {"l": 4, "r": 4}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", ROWS[2:], ids=lambda row: row.name)
def test_facts_of_each_row(row: Instruction) -> None:
    """Sums and the terms of each are the multiply-adds of the specification."""
    if "transpose" in row.name or "interleave" in row.name:
        assert row.terms == 1
        return
    assert row.rows * row.lanes * row.terms == prod(row.loops.values())
    assert row.terms % row.group == 0 and row.operands[2].shape[-1] in (row.lanes * row.group, row.group)


@pytest.mark.parametrize("scale, active", [(1, 4), (1, 3), (2, 8), (4, 5), (4, 0)])
def test_a_specification_runs_at_each_scale(scale: int, active: int) -> None:
    rng = np.random.default_rng(scale)
    n = 4 * scale
    a, b = (rng.integers(-9, 10, 4 * n).astype(np.int8) for _ in "ab")
    c = rng.integers(-9, 10, n).astype(np.int32)
    sums = (a.astype(np.int32) * b).reshape(n, 4).sum(1) * (np.arange(n) < active)
    arrays = {"c": c.copy(), "a": a, "b": b}
    run(SDOT.kernel, arrays, {}, {"vscale": scale, "active": active})
    np.testing.assert_array_equal(arrays["c"], c + sums)


@pytest.mark.parametrize("scale", [1, 2, 4])
def test_a_row_at_a_scale_has_lanes_that_are_numbers(scale: int) -> None:
    row = SDOT.at(scale)
    assert not row.is_scalable and row.lanes == 4 * scale and row.terms == row.group == 4
    assert [x.layout.places() for x in row.operands] == [x.layout.places(scale) for x in SDOT.operands]
    assert str(row.kernel).splitlines() == [
        f"kernel sdot_scalable(c: s32[{4 * scale}], a: s8[{16 * scale}], b: s8[{16 * scale}], active)",
        f"  for l in 0 .. {4 * scale}:",
        "    if active - l - 1 >= 0:",
        "      for r in 0 .. 4:",
        "        c[l] = c[l] + cast(s32, a[l * 4 + r]) * cast(s32, b[l * 4 + r])",
    ]


def test_a_row_of_one_vector_multiplies_matrices() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 10, (2, 8)).astype(np.int8) for _ in "ab")
    arrays = {"c": np.ones(4, np.int32), "a": a.ravel(), "b": b.ravel()}
    run(SMMLA.kernel, arrays)
    np.testing.assert_array_equal(arrays["c"].reshape(2, 2), 1 + a.astype(np.int32) @ b.T)


def test_registers_of_an_operand_have_names_and_results_come_last() -> None:
    row = Instruction(
        "swap", (vector("c", "f32", 2, 4), vector("a", "f32", 2, 4), vector("b", "f32", 4)), "",
        "first {a0} {b}\nsecond {0}\nthird {a1} {1}", "", (), "",
    )  # fmt: skip
    lines: list[str] = []

    def put(text: str) -> str:
        lines.append(text)
        return f"%{len(lines)}"

    assert row.emit(put, {"a": ["%x", "%y"], "b": ["%z"]}) == ["%2", "%3"]
    assert lines == ["first %x %z", "second %1", "third %y %2"]

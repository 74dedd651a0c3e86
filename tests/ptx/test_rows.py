"""Every row of NVIDIA's tables: the PTX that it becomes computes the specification, and assembles to its mnemonic."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.compiler.cubin import assemble_ptx
from convsmith.emulate.ptx.launch import run
from convsmith.interp import run as interpret
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS
from ptx.rows import as_lanes, load_ptx, places_of, rows_ptx
from ptx.sass import sass, skip_without, skip_without_disassembler

OWNERS = {row.name: (t, row) for t in LEVELS for row in t.instructions}
"""The rows by name, each with the oldest level that has it."""
ROWS = [pytest.param(*pair, id=f"{pair[0].name}-{name}") for name, pair in OWNERS.items()]
FRAGMENTS = [x for x in ROWS if x.values[1].result.scope == "fragment"]
"""Rows of which an operand is a fragment, spread over lanes."""
LARGE = 64 * 16
"""Elements of a result beyond which the interpreter of PTX takes two seconds and more."""
INTERPRETED = [
    pytest.param(*x.values, id=x.id, marks=[pytest.mark.slow] * (x.values[1].result.size > LARGE)) for x in ROWS
]  # fmt: skip

WIDE = 32
"""Registers of sums above which the addresses from which these tests load each register spill; the kernels of problems
have no such loads.
"""


def operands(row: Instruction, seed: int) -> dict[str, np.ndarray]:
    """Return small integers other than zero for every operand; integers of a byte have the whole of their range.

    The integers up to 8 are elements of every type.
    """
    rng = np.random.default_rng(seed + 1)
    whole = {b.name for b in row.kernel.params if b.dtype.bits == 8 and b.dtype.kind != "float"}
    limits = {b.name: b.dtype.limits if b.name in whole else (-8, 8) for b in row.kernel.params}
    found = {b.name: rng.integers(*limits[b.name], b.size, endpoint=True) for b in row.kernel.params}
    return {b.name: np.where(found[b.name], found[b.name], 1).astype(b.dtype.numpy) for b in row.kernel.params}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("target, row", INTERPRETED)
def test_the_ptx_of_a_row_computes_the_specification(target: Machine, row: Instruction) -> None:
    text = rows_ptx(target, (row,))
    data = operands(row, 0)
    places = [places_of(as_lanes(x)) for x in row.operands]
    found = run(text, row.name, 1, [data["c"], data["a"], data["b"], *places])[0]
    wanted = {name: x.copy() for name, x in data.items()}
    interpret(row.kernel, wanted)
    np.testing.assert_array_equal(found, wanted["c"])
    assert (found != data["c"]).any()


@pytest.mark.parametrize("target, row", FRAGMENTS)
def test_a_layout_has_each_element_once(target: Machine, row: Instruction) -> None:
    for x in row.operands:
        if x.file == "shared":
            continue
        assert sorted(places_of(x).ravel().tolist()) == list(range(x.size))


@pytest.mark.sampled(4, "target")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
def test_rows_assemble_without_spills(target: Machine, part: int) -> None:
    """Of every fourth row of a table."""
    skip_without(target.name)
    rows = target.instructions[part::4]
    made = assemble_ptx(rows_ptx(target, rows), target.name)
    assert made.uses.keys() == {row.name for row in rows} and not made.warnings
    wide = {row.name for row in rows if row.result.layout.registers > WIDE}
    for use in (use for name, use in made.uses.items() if name not in wide):
        assert (use.spilled, use.filled, use.stack) == (0, 0, 0)
        assert 0 < use.registers <= target.registers


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.name)
def test_rows_become_their_mnemonics(target: Machine) -> None:
    skip_without_disassembler(target.name)
    found = sass(assemble_ptx(rows_ptx(target, target.instructions), target.name).cubin)
    for row in target.instructions:
        assert any(x.startswith(row.mnemonic) for x in found[row.name]), f"{row.mnemonic} is not in {found[row.name]}"


def test_needs_name_the_generations_before() -> None:
    for target in LEVELS:
        assert target.needs[-1] == target.name
        for row in target.instructions:
            assert set(row.needs) <= set(target.needs)


LOADS = [
    pytest.param(t, row, id=f"{row.name}-{t.name}") for t in LEVELS if t.name == "sm_80" for row in t.matrix_loads
]  # fmt: skip


@pytest.mark.parametrize("target, row", LOADS)
def test_a_load_of_matrices_gives_each_lane_its_elements(target: Machine, row: Instruction) -> None:
    """Lanes give the rows of an array in shared memory; the registers hold what the row's layout says."""
    assert row.exchange is not None
    width, layout = row.result.shape[0], row.exchange
    type_ = np.dtype(row.kernel.params[0].dtype.numpy)
    rows = np.arange(8 * layout.registers * width).reshape(-1, width).astype(type_)
    if type_.itemsize == 1:  # each element has its own bits, which a small float may take for no number
        rows = np.arange(rows.size).astype(np.uint8).reshape(rows.shape)
    found = run(load_ptx(target, row), row.name, 1, [np.zeros((32, layout.registers), np.int32), rows])[0]
    held = found.reshape(32, layout.registers).view(rows.dtype).reshape(32, layout.registers, -1)
    for (giver, element), (register, lane, e) in layout.places().items():
        assert held[lane, register, e] == rows[giver, element]


@pytest.mark.parametrize("target, row", LOADS)
def test_a_load_of_matrices_becomes_its_mnemonic(target: Machine, row: Instruction) -> None:
    skip_without_disassembler(target.name)
    (found,) = sass(assemble_ptx(load_ptx(target, row), target.name).cubin).values()
    assert any(x.startswith(row.mnemonic) for x in found), f"{row.mnemonic} is not in {found}"
